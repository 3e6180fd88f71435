"""Device seconds of candidates on paired plans; identical simulations run once.

Two candidates give the same simulation for N clients when their usable slots, running limit, padding rule and
step seconds for 1 to N running are equal: a batch size above N, buckets above N and slots beyond the number of
requests change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slotgrid.config import ServingConfig
from slotgrid.engine.batch import Jobs, StepTables, Totals, simulate_jobs, simulate_jobs_parallel
from slotgrid.engine.kernel import I_HIDDEN, I_RECYCLED, I_RECYCLED_TOKENS, I_REUSED, I_SHARED
from slotgrid.engine.prepare import PlanBatch, flatten, lay_out
from slotgrid.engine.rules import RuleSet
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.search.repeats import Repeats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Key = tuple[int, int, bool, bytes]

# Below this many simulations threads cost more than they bring.
_PARALLEL_FROM = 2_000


@dataclass
class PlanGroup:
    """All plans with the same number of clients: exploration first, then evaluation.

    computed_tokens: every prefill size these plans can ask for, with and without reuse (sorted, unique).
    members: repeats of every plan (1: none is perturbed); the batch holds them plan by plan.
    Results are kept by key: explored seconds float64[members], evaluated seconds float64[members], explored reuses,
    evaluated reuses (means over the members).
    """

    clients: int
    explored: int
    members: int
    batch: PlanBatch
    most_requests: int
    explored_returns: int
    computed_tokens: Ints
    results: dict[Key, tuple[Floats, Floats, float, float]] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        clients: int,
        explore: Sequence[InputPlan],
        evaluate: Sequence[InputPlan],
        profile: StackProfile,
        turnaround_s: float,
        *,
        inner_blocks: bool = False,
        repeats: Repeats | None = None,
    ) -> PlanGroup:
        """repeats: perturb every plan; None simulates each once as it is."""
        flat = [
            flatten(plan, profile, turnaround_s, fixed_arrivals=False, inner_blocks=inner_blocks)
            for plan in (*explore, *evaluate)
        ]
        laid_out = flat
        if repeats is not None:
            pairs = zip((*explore, *evaluate), flat, strict=True)
            laid_out = [copy for plan, one in pairs for copy in repeats.of(plan, one, turnaround_s)]
        return cls(
            clients,
            len(explore),
            1 if repeats is None else repeats.members,
            lay_out(laid_out),
            max(plan.requests for plan in flat),
            sum(int(plan.continues.sum()) for plan in flat[: len(explore)]),
            np.unique(
                np.concatenate([sizes for p in flat for sizes in (p.prompt_tokens, p.prompt_tokens - p.hit_tokens)])
            ),
        )

    def key(self, config: ServingConfig, rules: RuleSet, clock_s: Floats, price_s: Floats) -> Key:
        """What this group's simulations of a candidate depend on. clock_s, price_s: float64[>= clients + 1].

        With repeats also on the buckets in use: each is off by its own amount.
        """
        capacity = min(rules.usable_slots(config.slots, config.max_running), self.most_requests + 1)
        padding = rules.evicts_for_padding(config.slots, config.max_running) and capacity <= self.most_requests
        limit = min(config.max_running, self.clients + 1)
        count = min(config.max_running, self.clients) + 1
        used = b"" if self.members == 1 else bytes(str([config.bucket_for(n) for n in range(1, count)]), "ascii")
        return capacity, limit, padding, clock_s[:count].tobytes() + price_s[:count].tobytes() + used


class Evaluator:
    """Runs candidates on groups of plans. ``simulated`` counts the distinct simulations run; ``inner_blocks`` holds
    how many requests of those lost reuse to recycled blocks, with how many tokens, took a shared prefix, and lost
    theirs to a newer holder."""

    def __init__(
        self,
        profile: StackProfile,
        rules: RuleSet,
        groups: Sequence[PlanGroup],
        *,
        threads: int = 1,
        repeats: Repeats | None = None,
    ) -> None:
        self._profile = profile
        self._repeats = repeats
        self._rules = rules
        self._groups = groups
        self._threads = threads
        self.most_clients = max(group.clients for group in groups)
        self.simulated = 0
        self.inner_blocks: tuple[int, ...] = (0, 0, 0, 0)

    @property
    def repeated(self) -> bool:
        """Whether results are means over repeats."""
        return self._repeats is not None

    def run(self, configs: Sequence[ServingConfig]) -> tuple[Floats, Floats, Floats, Floats]:
        """Explored and evaluated device seconds and reuses, float64[K, N] each, N groups; means over the repeats.

        Raises UnmeasuredError when a step time is not positive.
        """
        shape = (len(configs), len(self._groups))
        explored_s, evaluated_s, explored_reuse, evaluated_reuse = (np.zeros(shape) for _ in range(4))
        for g, results in enumerate(self._all_results(configs)):
            for i, (explored, evaluated, *reuses) in enumerate(results):
                explored_s[i, g], evaluated_s[i, g] = explored.mean(), evaluated.mean()
                explored_reuse[i, g], evaluated_reuse[i, g] = reuses
        return explored_s, evaluated_s, explored_reuse, evaluated_reuse

    def samples(self, configs: Sequence[ServingConfig]) -> Floats:
        """Explored device seconds of every repeat, float64[K, N, members]; nothing is run twice."""
        return np.array([[explored for explored, *_ in results] for results in self._all_results(configs)]).transpose(
            1, 0, 2
        )

    def _all_results(self, configs: Sequence[ServingConfig]) -> list[list[tuple[Floats, Floats, float, float]]]:
        """Results per group and configuration, simulating what is missing."""
        width = self.most_clients + 1
        clock_s, price_s = np.zeros((len(configs), width)), np.zeros((len(configs), width))
        same = self._profile.clock is self._profile.price
        for i, config in enumerate(configs):
            seconds = self._profile.price.decode.step_s(config, self.most_clients)
            price_s[i, : len(seconds)] = seconds
            if not same:
                seconds = self._profile.clock.decode.step_s(config, self.most_clients)
            clock_s[i, : len(seconds)] = seconds
        found = []
        for group in self._groups:
            keys = [group.key(c, self._rules, clock_s[i], price_s[i]) for i, c in enumerate(configs)]
            first: dict[Key, int] = {}
            for i, key in enumerate(keys):
                if key not in group.results:
                    first.setdefault(key, i)
            if first:
                self._simulate(group, configs, first, clock_s, price_s)
            found.append([group.results[key] for key in keys])
        return found

    def _simulate(
        self,
        group: PlanGroup,
        configs: Sequence[ServingConfig],
        first: dict[Key, int],
        clock_s: Floats,
        price_s: Floats,
    ) -> None:
        rows = np.array(list(first.values()), np.int64)
        plans, members = group.batch.plans, group.members
        capacity = np.array([key[0] for key in first], np.int64)
        limit = np.array([key[1] for key in first], np.int64)
        padding = np.array([key[2] for key in first], np.bool_)
        # a table per candidate and repeat; plan p's repeat m is plan p * members + m of the batch
        table = np.repeat(np.arange(len(rows)), plans) * members + np.tile(np.arange(plans) % members, len(rows))
        jobs = Jobs(
            plan=np.tile(np.arange(plans), len(rows)),
            table=table,
            capacity=np.repeat(capacity, plans),
            max_running=np.repeat(limit, plans),
            padding=np.repeat(padding, plans),
        )
        clock_tables = clock_s[rows]
        if self._repeats is not None:
            clock_tables = np.concatenate([self._repeats.steps(clock_s[i], configs[i], self._profile) for i in rows])
        tables = StepTables(
            clock_tables,
            np.repeat(price_s[rows], members, axis=0),
            self._profile.clock.decode.context_s,
            self._profile.price.decode.context_s,
        )
        at_once = self._rules.release == "at_once"
        totals: Totals
        if self._threads > 1 and len(jobs) >= _PARALLEL_FROM:
            totals = simulate_jobs_parallel(group.batch, tables, jobs, release_at_once=at_once, threads=self._threads)
        else:
            totals = simulate_jobs(group.batch, tables, jobs, release_at_once=at_once)
        self.simulated += len(jobs)
        if group.batch.pool is not None:
            columns = (I_RECYCLED, I_RECYCLED_TOKENS, I_SHARED, I_HIDDEN)
            added = (int(totals.ints[:, column].sum()) for column in columns)
            self.inner_blocks = tuple(a + b for a, b in zip(self.inner_blocks, added, strict=True))
        # members first, so that each one's plans are summed in the same order as without repeats
        device_s = totals.device_time_s.reshape(len(rows), plans // members, members).transpose(0, 2, 1)
        reused = totals.ints[:, I_REUSED].reshape(len(rows), plans // members, members)
        cut = group.explored
        for i, key in enumerate(first):
            group.results[key] = (
                np.ascontiguousarray(device_s[i, :, :cut]).sum(axis=1),
                np.ascontiguousarray(device_s[i, :, cut:]).sum(axis=1),
                float(reused[i, :cut].sum()) / members,
                float(reused[i, cut:].sum()) / members,
            )
