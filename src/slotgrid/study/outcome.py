"""Outcome: what one arm did, or is predicted to do, on one plan. Predictions and observations have the same shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from slotgrid.errors import InputError

PREDICTED = "predicted"


@dataclass(frozen=True)
class Outcome:
    """One arm on the plan of one replicate. Seconds and tokens; None is not observed (or not predicted).

    device_s: channel A, priced decode plus priced prefill. channel_b_s: union of the clients' in-flight intervals.
    turns: requests the seconds belong to. later_turns, reused: of those the returns, and the returns that found part
    of their prefix. occupancy: share of decode steps by running count. samples_s: device seconds of an ensemble.
    source: "predicted", "simulated" or "measured".
    """

    sessions: int
    replicate: str
    arm: str
    device_s: float
    decode_s: float | None = None
    prefill_s: float | None = None
    channel_b_s: float | None = None
    turns: int | None = None
    later_turns: int | None = None
    reused: int | None = None
    decode_steps: int | None = None
    occupancy: Mapping[int, float] | None = None
    samples_s: tuple[float, ...] = ()
    extrapolated: tuple[str, ...] = ()
    source: str = PREDICTED

    def __post_init__(self) -> None:
        for name in ("device_s", "decode_s", "prefill_s", "channel_b_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{self.place}: {name} is {value!r}; allowed: finite seconds of at least 0")
        if any(not math.isfinite(value) for value in self.samples_s):
            raise InputError(f"{self.place}: a sample of the ensemble is not a finite number")

    @property
    def place(self) -> str:
        """Which arm on which plan, for messages."""
        return f"N = {self.sessions}, replicate {self.replicate}, arm {self.arm}"

    @property
    def per_turn_s(self) -> float:
        """Device seconds a turn. Raises InputError when the turns are not known."""
        if not self.turns:
            raise InputError(f"{self.place}: no turns are known, so there are no seconds per turn")
        return self.device_s / self.turns

    def to_dict(self) -> dict[str, Any]:
        """JSON values; :meth:`from_dict` reads them back."""
        data = asdict(self)
        data["occupancy"] = None if self.occupancy is None else {str(n): share for n, share in self.occupancy.items()}
        data["samples_s"] = list(self.samples_s)
        data["extrapolated"] = list(self.extrapolated)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> Outcome:
        """Read :meth:`to_dict`. Raises InputError naming ``where`` when a field is missing or wrong."""
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            if values["occupancy"] is not None:
                values["occupancy"] = {int(n): float(share) for n, share in values["occupancy"].items()}
            for name in ("samples_s", "extrapolated"):
                values[name] = tuple(values[name])
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{where}: not the outcome of a study ({type(error).__name__}: {error})") from None


Key = tuple[int, str, str]


class Outcomes:
    """Outcomes by (sessions, replicate, arm); looking one up that is not there is an error that names it."""

    def __init__(self, rows: Iterable[Outcome], what: str) -> None:
        """what: "prediction" or "run", for messages. Raises InputError for two rows of one arm on one plan."""
        self.what = what
        self._rows: dict[Key, Outcome] = {}
        for row in rows:
            key = (row.sessions, row.replicate, row.arm)
            if key in self._rows:
                raise InputError(f"{row.place}: two {what}s; one each is needed")
            self._rows[key] = row

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Any:
        return iter(self._rows.values())

    def session_counts(self) -> tuple[int, ...]:
        """N in ascending order."""
        return tuple(sorted({n for n, _, _ in self._rows}))

    def replicates(self, sessions: int) -> tuple[str, ...]:
        """Replicates of one N in the order they came."""
        return tuple(dict.fromkeys(r for n, r, _ in self._rows if n == sessions))

    def get(self, sessions: int, replicate: str, arm: str) -> Outcome:
        """One outcome. Raises InputError naming what is missing."""
        found = self._rows.get((sessions, replicate, arm))
        if found is None:
            raise InputError(f"N = {sessions}, replicate {replicate}, arm {arm}: the {self.what} is missing")
        return found

    def arm(self, sessions: int, arm: str, replicates: Sequence[str]) -> list[Outcome]:
        """The outcomes of one arm on these replicates, in their order."""
        return [self.get(sessions, replicate, arm) for replicate in replicates]


def total(rows: Sequence[Outcome], name: str) -> Any:
    """Sum of a field over outcomes; None when one of them does not have it."""
    values = [getattr(row, name) for row in rows]
    return None if any(value is None for value in values) else sum(values)


def ratio(value: float, base: float, what: str) -> float:
    """value / base. Raises InputError when the baseline took no time."""
    if not base > 0:
        raise InputError(f"{what}: the baseline is {base:g} s; a ratio needs a baseline above 0")
    return value / base
