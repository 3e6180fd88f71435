"""The space of candidate configurations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from slotgrid.config import ServingConfig
from slotgrid.errors import InputError

# More candidates than this are refused: enumerating them says less than a coarser space.
MOST_CANDIDATES = 2_000_000


@dataclass(frozen=True)
class SearchSpace:
    """Bucket sets of up to ``max_buckets`` sizes that hold 1 and the batch size, for each batch size.

    batch: batch sizes (top bucket = running limit), ascending. intermediate: sizes allowed between 1 and the
    batch; None allows all. extra_slots: KV slots above the batch size, ascending; 0 is as many as the batch.
    Raises InputError for an empty or oversized space.
    """

    batch: tuple[int, ...]
    max_buckets: int
    intermediate: tuple[int, ...] | None = None
    extra_slots: tuple[int, ...] = (0,)

    def __init__(
        self,
        batch: Sequence[int],
        max_buckets: int,
        intermediate: Sequence[int] | None = None,
        extra_slots: Sequence[int] = (0,),
    ) -> None:
        object.__setattr__(self, "batch", _ascending(batch, "batch", 1))
        object.__setattr__(self, "max_buckets", max_buckets)
        between = None if intermediate is None else _ascending(intermediate, "intermediate", 2)
        object.__setattr__(self, "intermediate", between)
        object.__setattr__(self, "extra_slots", _ascending(extra_slots, "slots", 0))
        least = 1 if self.batch == (1,) else 2
        if max_buckets < least:
            raise InputError(f"max-buckets: {max_buckets}; allowed: at least {least} (1 and the batch size)")
        if len(self) > MOST_CANDIDATES:
            raise InputError(
                f"space: {len(self):,} candidates, at most {MOST_CANDIDATES:,} are enumerated; "
                "name fewer intermediate sizes, batch sizes or buckets"
            )

    def _between(self, batch: int) -> tuple[int, ...]:
        sizes = range(2, batch) if self.intermediate is None else self.intermediate
        return tuple(size for size in sizes if 1 < size < batch)

    def __len__(self) -> int:
        total = 0
        for batch in self.batch:
            between = len(self._between(batch))
            most = min(self.max_buckets - 2, between) if batch > 1 else 0
            total += sum(math.comb(between, k) for k in range(most + 1))
        return total * len(self.extra_slots)

    def __iter__(self) -> Iterator[ServingConfig]:
        """Candidates by batch, number of intermediate sizes, lexicographic sizes, slots."""
        for batch in self.batch:
            between = self._between(batch)
            most = min(self.max_buckets - 2, len(between)) if batch > 1 else 0
            for count in range(most + 1):
                for chosen in combinations(between, count):
                    buckets = (1, *chosen, batch) if batch > 1 else (1,)
                    for extra in self.extra_slots:
                        yield ServingConfig(buckets, slots=batch + extra)

    def describe(self) -> str:
        """The space in one line for reports."""
        sizes = "any" if self.intermediate is None else ", ".join(map(str, self.intermediate))
        text = f"batch {', '.join(map(str, self.batch))}; at most {self.max_buckets} buckets; sizes between: {sizes}"
        if self.extra_slots != (0,):
            text += f"; slots {', '.join(f'+{extra}' for extra in self.extra_slots)}"
        return text


def _ascending(values: Sequence[int], name: str, least: int) -> tuple[int, ...]:
    if not values:
        raise InputError(f"{name}: empty; give at least one whole number")
    for value in values:
        if value < least:
            raise InputError(f"{name}: {value}; allowed: at least {least}")
    return tuple(sorted(set(values)))
