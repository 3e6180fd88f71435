"""What a calibration found out besides costs: rules of the server, and questions it could not decide."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from slotgrid.errors import InputError
from slotgrid.toml_reader import Table


@dataclass(frozen=True)
class Finding:
    """One answer, or the reason why there is none.

    name: what was asked. value: the answer as text; empty when it is not decided, and then ``reason`` says why and
    what would decide it. samples: independent measurements. conditions: under which they were made.
    """

    name: str
    value: str
    samples: int
    conditions: str
    reason: str = ""

    @property
    def decided(self) -> bool:
        """Whether there is an answer."""
        return bool(self.value)

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return asdict(self)


def read_findings(top: Table) -> tuple[Finding, ...]:
    """Read ``[[finding]]`` tables; none is fine. Raises InputError for one with neither a value nor a reason."""
    if not top.has("finding"):
        return ()
    found = []
    for entry in top.tables("finding"):
        finding = Finding(
            entry.text("name"),
            entry.text("value", ""),
            entry.whole("samples", 0),
            entry.text("conditions", ""),
            entry.text("reason", ""),
        )
        if not finding.value and not finding.reason:
            raise InputError(
                f"{entry.at('value')} is empty and there is no reason; say what was found, or why nothing was"
            )
        entry.finish()
        found.append(finding)
    return tuple(found)
