"""Another bucket list on the same steps: what it does to padding and to decode time, which need not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slotgrid.config import ServingConfig
from slotgrid.diagnose.cost import decode_s, unmeasured
from slotgrid.diagnose.padding import Alignment, Histogram, PaddingChange, align, fit_buckets, padding_changes, rebucket
from slotgrid.profile import DecodeCost

OPPOSITE_WARNING = (
    "padding and cost can move in opposite directions: a step costs what its bucket costs, "
    "and a longer list costs compile time; read the seconds, not the ratio"
)


@dataclass(frozen=True)
class BucketChange:
    """buckets: the other list; fitted: whether it was fitted here. before, after: alignment on the same steps.
    changes: per running count. decode_before_s, decode_after_s: priced seconds without context, None without a price.
    floor_s: the same with a bucket for every running count that occurred. unmeasured, floor_unmeasured: bucket ->
    "interpolated" or "extrapolated" for the sizes of either list that the profile has not measured."""

    buckets: tuple[int, ...]
    fitted: bool
    before: Alignment
    after: Alignment
    changes: tuple[PaddingChange, ...]
    decode_before_s: float | None
    decode_after_s: float | None
    floor_s: float | None
    unmeasured: Mapping[int, str] = field(default_factory=dict)
    floor_unmeasured: Mapping[int, str] = field(default_factory=dict)

    @property
    def saved_s(self) -> float | None:
        """Decode seconds that the other buckets save; None where a price is missing."""
        if self.decode_before_s is None or self.decode_after_s is None:
            return None
        return self.decode_before_s - self.decode_after_s

    @property
    def opposite(self) -> bool:
        """Padding and priced decode time move in opposite directions."""
        drop = (self.before.padding_ratio or 0.0) - (self.after.padding_ratio or 0.0)
        return self.saved_s is not None and drop * self.saved_s < 0


def bucket_change(
    histogram: Histogram, config: ServingConfig | None, price: DecodeCost | None, wanted: Sequence[int] | None
) -> BucketChange | None:
    """The wanted list, or one of the configuration's length fitted to the observed running counts.

    Fitted by priced seconds with a price, else by padded rows. None without steps, or without both a list and a
    configuration. Raises InputError when the wanted list does not reach the observed counts.
    """
    if not histogram:
        return None
    steps: dict[int, int] = {}
    for (running, _), count in histogram.items():
        steps[running] = steps.get(running, 0) + count
    if wanted is not None:
        buckets = tuple(ServingConfig(wanted).buckets)
    elif config is None:
        return None
    else:
        cost = None if price is None else lambda bucket: price.fixed(bucket) + price.base_s.value
        buckets = fit_buckets(steps, len(config.buckets), config.buckets[-1], cost)
    after = rebucket(histogram, buckets)
    every = rebucket(histogram, sorted(steps))
    return BucketChange(
        buckets=buckets,
        fitted=wanted is None,
        before=align(histogram),
        after=align(after),
        changes=tuple(padding_changes(histogram, buckets)),
        decode_before_s=None if price is None else decode_s(price, histogram),
        decode_after_s=None if price is None else decode_s(price, after),
        floor_s=None if price is None else decode_s(price, every),
        unmeasured={} if price is None else unmeasured(price, buckets),
        floor_unmeasured={} if price is None else unmeasured(price, steps),
    )
