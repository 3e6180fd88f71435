"""Operating costs: what steps and prefills take in a running server, measured per compiled configuration.

They move the clock; device time is still summed with the price. Every correction against the price can be switched
off alone, to see what it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.profile.costs import CostModel, DecodeCost, PrefillCost
from slotgrid.profile.quantity import Quantity, Range

CORRECTIONS = ("decode", "context", "prefill", "excess")


@dataclass(frozen=True)
class OperatingCosts:
    """Costs measured on the artifact compiled for ``buckets``.

    estimate: why these are no measurement ("" when they are); such costs are never pooled with others.
    """

    name: str
    buckets: tuple[int, ...]
    cost: CostModel
    estimate: str = ""


def operating_clock(
    measured: Sequence[OperatingCosts], price: CostModel, config: ServingConfig | None, without: Iterable[str] = ()
) -> tuple[CostModel, str]:
    """The clock for a configuration, and in words where it comes from.

    A configuration that was measured gets its own costs; any other, and None, the mean of all measured ones (per
    bucket over those that have it), so that candidates never differ by the scatter between artifacts.
    without: corrections to leave out: ``decode`` (bucket and per-request terms are the price's), ``context``,
    ``prefill`` (the price's), ``excess`` (of small prefills on a cached prefix).
    Raises InputError for an unknown correction or when nothing was measured.
    """
    off = set(without)
    for name in sorted(off - set(CORRECTIONS)):
        raise InputError(f"without: {name!r}; allowed: {', '.join(CORRECTIONS)}")
    own = next((costs for costs in measured if config is not None and costs.buckets == config.buckets), None)
    if own is not None:
        clock = own.cost
        text = f"operating costs of {own.name}" + (f", an estimate: {own.estimate}" if own.estimate else "")
    else:
        pooled = [costs for costs in measured if not costs.estimate]
        if not pooled:
            raise InputError("clock: 'operating' needs measured operating costs; the profile has none")
        clock = _mean([costs.cost for costs in pooled])
        names = ", ".join(costs.name for costs in pooled)
        text = f"operating costs: mean of {names}" + ("" if config is None else "; this bucket list was not measured")
    decode, prefill = clock.decode, clock.prefill
    if "decode" in off:
        decode = replace(price.decode, per_context_token_s=decode.per_context_token_s, residual_s=decode.residual_s)
    if "context" in off:
        decode = replace(decode, per_context_token_s=None, context_range=None)
    if "prefill" in off:
        excess = {"cached_excess_s": prefill.cached_excess_s, "cached_excess_tokens": prefill.cached_excess_tokens}
        prefill = replace(price.prefill, **excess)  # type: ignore[arg-type]
    if "excess" in off:
        prefill = replace(prefill, cached_excess_s=None, cached_excess_tokens=0)
    return CostModel(decode, prefill), text + (f", without {', '.join(sorted(off))}" if off else "")


def _mean(costs: Sequence[CostModel]) -> CostModel:
    """The mean of several cost models: per bucket over those that have it."""
    decodes, prefills = [cost.decode for cost in costs], [cost.prefill for cost in costs]
    sizes = sorted({size for decode in decodes for size, _ in decode.fixed_s})
    fixed = tuple(
        (size, _mean_quantity([q for decode in decodes for b, q in decode.fixed_s if b == size])) for size in sizes
    )
    return CostModel(
        DecodeCost(
            fixed,
            _mean_quantity([decode.base_s for decode in decodes]),
            _mean_quantity([decode.per_request_s for decode in decodes]),
            _mean_optional([decode.per_context_token_s for decode in decodes]),
            _widest([decode.running_range for decode in decodes]),
            _widest([decode.context_range for decode in decodes]),
            _mean_optional([decode.residual_s for decode in decodes]),
        ),
        PrefillCost(
            prefills[0].chunk_tokens,
            _mean_quantity([prefill.per_chunk_s for prefill in prefills]),
            _mean_quantity([prefill.per_token_s for prefill in prefills]),
            _mean_optional([prefill.constant_s for prefill in prefills]),
            _widest([prefill.tokens_range for prefill in prefills]),
            _mean_optional([prefill.cached_excess_s for prefill in prefills]),
            max(prefill.cached_excess_tokens for prefill in prefills),
        ),
    )


def _mean_quantity(values: Sequence[Quantity]) -> Quantity:
    if len(values) == 1:
        return values[0]
    mean = sum(q.value for q in values) / len(values)
    return Quantity(mean, f"{mean:g} s", "derived", f"mean of {len(values)} measured configurations")


def _mean_optional(values: Sequence[Quantity | None]) -> Quantity | None:
    known = [value for value in values if value is not None]
    return _mean_quantity(known) if known else None


def _widest(spans: Sequence[Range | None]) -> Range | None:
    known = [span for span in spans if span is not None]
    return Range(min(s.low for s in known), max(s.high for s in known)) if known else None
