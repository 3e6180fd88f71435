"""propose: candidates for spaces too large to enumerate, ranked by simulation.

For every batch size and number of slots ``finder`` finds the buckets; all of them are simulated and ranked as
:func:`search` does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slotgrid.config import ServingConfig
from slotgrid.engine.rules import RuleSet
from slotgrid.errors import InputError
from slotgrid.profile import StackProfile
from slotgrid.search.finder import Finder, Proposed
from slotgrid.search.inputs import drawn_plans, rules_and_turnaround, session_counts
from slotgrid.search.score import Score
from slotgrid.search.search import Candidate, SearchResult, search
from slotgrid.search.space import SearchSpace
from slotgrid.workload import Workload

Progress = Callable[[int, int], None]

# a larger space takes minutes to enumerate, which is what proposing avoids
MOST_CHECKED = 50_000


class ListedSpace(SearchSpace):
    """A space of exactly these configurations, in this order."""

    configs: tuple[ServingConfig, ...]

    def __init__(self, configs: Sequence[ServingConfig]) -> None:
        object.__setattr__(self, "configs", tuple(configs))

    def __len__(self) -> int:
        return len(self.configs)

    def __iter__(self) -> Iterator[ServingConfig]:
        return iter(self.configs)

    def describe(self) -> str:
        """One word for reports."""
        return "proposed"


@dataclass(frozen=True)
class Gap:
    """The proposal against the whole space: candidates enumerated, the best of them, how much higher the ratio of the
    best proposed one is, and its rank among all (1: the best itself)."""

    enumerated: int
    best: Candidate
    gap: float
    rank: int

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            "enumerated": self.enumerated,
            "best": self.best.to_dict(),
            "gap": self.gap,
            "rank": self.rank,
        }


@dataclass(frozen=True, eq=False)
class Proposal:
    """What :func:`propose` found.

    result: the proposed candidates, simulated and ranked. ways: how they were found. too_large: (batch, slots) that do
    not fit into a device and were not looked at. space_size: candidates of the whole space. checked: the gap to the
    enumerated best; None unless asked for.
    """

    result: SearchResult
    ways: tuple[Proposed, ...]
    too_large: tuple[tuple[int, int], ...]
    space_size: int
    checked: Gap | None

    @property
    def best(self) -> Candidate:
        """The proposed candidate with the smallest ratio."""
        return self.result.best

    @property
    def recommended(self) -> Candidate:
        """Of the proposed near-ties the one :func:`search` would recommend."""
        return self.result.recommended

    def to_dict(self, *, top: int = 10) -> dict[str, Any]:
        """Everything as JSON values: the search result's keys, and the ways, the space and the gap."""
        return {
            **self.result.to_dict(top=top),
            "space_size": self.space_size,
            "ways": [way.to_dict() for way in self.ways],
            "too_large": [list(room) for room in self.too_large],
            "checked": None if self.checked is None else self.checked.to_dict(),
        }

    def __repr__(self) -> str:
        gap = "" if self.checked is None else f", {self.checked.gap:.4f} above the best of {self.checked.enumerated:,}"
        return (
            f"Proposal({self.result.candidates} of {self.space_size:,} candidates: best {self.best.config.label}, "
            f"ratio {self.best.ratio:.4f}{gap})"
        )


def propose(
    profile: StackProfile,
    workload: Workload,
    *,
    sessions: Sequence[int],
    batch: Sequence[int],
    baseline: ServingConfig,
    max_buckets: int = 6,
    intermediate: Sequence[int] | None = None,
    extra_slots: Sequence[int] = (0,),
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    ensemble: int | None = None,
    ensemble_seed: int = 0,
    explore_seeds: Sequence[int] | None = None,
    evaluate_seeds: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    score: Score = "sum",
    near_tie: float = 0.005,
    compile_budget_s: float | None = None,
    memory_budget_gib: float | None = None,
    threads: int = 1,
    check: bool = False,
    progress: Progress | None = None,
) -> Proposal:
    """Propose configurations without enumerating a space, simulate and rank them.

    Arguments as in :func:`search` and :class:`SearchSpace`. check: enumerate the space as well and say how far the best
    proposal is from its best. progress: called with (ways done, ways).
    Raises InputError as those do, and when ``check`` is asked of more than 50,000 candidates.
    """
    rule_set, gap_s = rules_and_turnaround(profile, rules, turnaround_s)
    counts = session_counts(sessions)
    # two buckets: the checks of a space without its size
    small = SearchSpace(batch, min(max_buckets, 2), intermediate, extra_slots)
    space_size = sum(_sets(top, max_buckets, small.intermediate) for top in small.batch) * len(small.extra_slots)
    whole = None
    if check:
        if space_size > MOST_CHECKED:
            raise InputError(
                f"check: the space holds {space_size:,} candidates; at most {MOST_CHECKED:,} are enumerated to check a "
                "proposal"
            )
        whole = SearchSpace(batch, max_buckets, intermediate, extra_slots)
    plans = drawn_plans(workload, counts, explore_seeds, blocks)

    clocked = profile if clock is None else profile.clocked(clock)
    affordable = _affordable(profile, max_buckets, compile_budget_s)
    ways: list[Proposed] = []
    configs: dict[ServingConfig, None] = {}
    rooms = [(top, extra) for top in small.batch for extra in small.extra_slots]
    fitting = [room for room in rooms if _fits(profile, *room, memory_budget_gib)]
    if not fitting:
        # the search says by how much
        configs = {ServingConfig((1, top) if top > 1 else (1,), slots=top + extra): None for top, extra in rooms}
    for done, (top, extra) in enumerate(fitting):
        if progress is not None:
            progress(done, len(fitting))
        finder = Finder(clocked, plans, rule_set, gap_s, top, top + extra, affordable, intermediate)
        way = finder.find()
        ways.append(way)
        for found in finder.candidates(way):
            configs.setdefault(found, None)
    if progress is not None:
        progress(len(fitting), len(fitting))

    def ranked(space: SearchSpace) -> SearchResult:
        return search(
            profile,
            space,
            workload,
            sessions=counts,
            baseline=baseline,
            rules=rule_set,
            turnaround_s=turnaround_s,
            clock=clock,
            ensemble=ensemble,
            ensemble_seed=ensemble_seed,
            explore_seeds=explore_seeds,
            evaluate_seeds=evaluate_seeds,
            blocks=blocks,
            score=score,
            near_tie=near_tie,
            compile_budget_s=compile_budget_s,
            memory_budget_gib=memory_budget_gib,
            threads=threads,
        )

    result = ranked(ListedSpace(list(configs)))
    return Proposal(
        result=result,
        ways=tuple(ways),
        too_large=tuple((top, top + extra) for top, extra in rooms if (top, extra) not in fitting),
        space_size=space_size,
        checked=None if whole is None else _gap(result, ranked(whole)),
    )


def _fits(profile: StackProfile, top: int, extra: int, budget_gib: float | None) -> bool:
    """Whether a device holds that many slots; buckets do not matter for it."""
    if profile.memory is None:
        return True
    most = profile.memory.device_gib.value if budget_gib is None else budget_gib
    return profile.memory.fullest_device_gib(ServingConfig((top,), slots=top + extra)) <= most


def _affordable(profile: StackProfile, max_buckets: int, budget_s: float | None) -> int:
    """The most sizes up to ``max_buckets`` that compile within the budget (two, for the search to refuse, if none)."""
    if budget_s is None:
        return max_buckets
    model = profile.needed_compile()
    counts = range(max_buckets, 2, -1)
    return next((k for k in counts if model.seconds(ServingConfig(range(1, k + 1))) <= budget_s), min(max_buckets, 2))


def _sets(top: int, max_buckets: int, intermediate: Sequence[int] | None) -> int:
    """Bucket sets that enumerating one batch size would take."""
    between = sum(1 < size < top for size in (range(2, top) if intermediate is None else intermediate))
    return sum(math.comb(between, k) for k in range(min(max_buckets - 2, between) + 1)) if top > 1 else 1


def _gap(result: SearchResult, enumerated: SearchResult) -> Gap:
    ratio = result.best.ratio
    better = int((enumerated.ledger["ratio"] < ratio).sum())
    return Gap(enumerated.candidates, enumerated.best, ratio - enumerated.best.ratio, better + 1)
