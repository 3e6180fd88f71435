"""ServingConfig: what is fixed when a server is compiled."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotgrid.errors import InputError


@dataclass(frozen=True)
class ServingConfig:
    """Decode batch buckets, KV slots and running limit of one compiled server.

    buckets: compiled decode batch sizes, ascending, unique, each at least 1 (requests).
    slots: KV slots, each holds one sequence; defaults to the top bucket.
    max_running: most requests in one decode step; defaults to the top bucket.

    Raises InputError when buckets are empty, not ascending, not unique, the top bucket is below
    ``max_running``, or slots is below 1.
    """

    buckets: tuple[int, ...]
    slots: int
    max_running: int

    def __init__(self, buckets: Sequence[int], slots: int | None = None, max_running: int | None = None) -> None:
        checked = tuple(_whole(b, "buckets") for b in buckets)
        if not checked:
            raise InputError("buckets: empty; give at least one decode batch size, e.g. 1,2,4,8")
        for lower, upper in itertools.pairwise(checked):
            if upper == lower:
                raise InputError(f"buckets: {upper} appears twice; each size may appear once")
            if upper < lower:
                raise InputError(f"buckets: {upper} after {lower}; sizes must ascend")
        if checked[0] < 1:
            raise InputError(f"buckets: {checked[0]} is below 1")
        top = checked[-1]
        limit = top if max_running is None else _whole(max_running, "max_running")
        if limit < 1:
            raise InputError(f"max_running: {limit} is below 1")
        if top < limit:
            raise InputError(
                f"buckets: the top bucket {top} is below max_running {limit}; "
                f"a step of {limit} requests would have no compiled size"
            )
        count = top if slots is None else _whole(slots, "slots")
        if count < 1:
            raise InputError(f"slots: {count} is below 1; a server needs at least one KV slot")
        object.__setattr__(self, "buckets", checked)
        object.__setattr__(self, "slots", count)
        object.__setattr__(self, "max_running", limit)

    def bucket_for(self, running: int) -> int:
        """Smallest compiled size that holds ``running`` requests (1 to the top bucket)."""
        return self.buckets[bisect_left(self.buckets, running)]

    @property
    def label(self) -> str:
        """Short text: ``1,2,4,8``, with ``@slots`` or ``/max_running`` where they differ from the top."""
        text = ",".join(map(str, self.buckets))
        if self.slots != self.buckets[-1]:
            text += f"@{self.slots}"
        if self.max_running != self.buckets[-1]:
            text += f"/{self.max_running}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """The three settings as JSON values."""
        return {"buckets": list(self.buckets), "slots": self.slots, "max_running": self.max_running}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ServingConfig:
        """From :meth:`to_dict` or an event log. Raises InputError as the constructor does."""
        return cls(data["buckets"], slots=data.get("slots"), max_running=data.get("max_running"))

    @classmethod
    def parse(cls, text: str, *, slots: int | None = None, max_running: int | None = None) -> ServingConfig:
        """Read ``1,2,4,8`` or ``1,2,4,8@9`` (nine slots). Raises InputError naming the part that is wrong."""
        sizes, at, slot_text = text.partition("@")
        try:
            buckets = [int(part) for part in sizes.split(",")]
            if at:
                slots = int(slot_text)
        except ValueError:
            raise InputError(f"buckets: {text!r} is not a list of whole numbers like 1,2,4,8 or 1,2,4,8@9") from None
        return cls(buckets, slots=slots, max_running=max_running)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        try:
            as_int = int(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{name}: {value!r} is not a whole number") from None
        if isinstance(value, bool) or as_int != value:
            raise InputError(f"{name}: {value!r} is not a whole number")
        return as_int
    return value
