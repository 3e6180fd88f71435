"""Capacity: the largest number of concurrent agents that a configuration serves within latency limits.

Every replicate is a plan of its own (its seed), and one repeat of it where the profile knows the scatter. A limit holds
for N agents when 95 % of all values of all replicates keep it. The interval comes from resampling the replicates. The
largest N is found by doubling and halving, which takes for granted that fewer agents are never slower. Latency
percentiles of hardware runs are not published, so these are validated against none (docs/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.config import ServingConfig
from slotgrid.engine.outside import Outside
from slotgrid.engine.perturb import perturbed
from slotgrid.engine.rules import RuleSet
from slotgrid.engine.setup import set_up
from slotgrid.engine.single import record
from slotgrid.engine.steady import measure_window
from slotgrid.errors import InputError
from slotgrid.profile import StackProfile
from slotgrid.run.steady import SteadyLoad, pooled_p95_s
from slotgrid.run.window import EVALUATION_S, PlanTooShort
from slotgrid.search.numbers import distinct
from slotgrid.workload import Workload

Ints = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

_SHARE = 0.95
_RESAMPLES = 2_000
# Resampling fewer replicates gives no interval.
_FEWEST = 5
# A window that needs more sessions of a client is refused.
_MOST_SESSIONS = 2_000
# Enough for most windows; more are drawn when a client runs out. A longer plan begins with the same sessions.
_SESSIONS = 6


@dataclass(frozen=True)
class Limits:
    """Highest allowed 95th percentiles in seconds; None is no limit.

    Raises InputError when there is no limit at all or one is not positive.
    """

    ttft_p95_s: float | None = None
    inter_token_p95_s: float | None = None

    def __post_init__(self) -> None:
        given = {"TTFT p95": self.ttft_p95_s, "inter-token p95": self.inter_token_p95_s}
        if all(value is None for value in given.values()):
            raise InputError("limits: none given; allowed: TTFT p95, inter-token p95 or both")
        for name, value in given.items():
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"limits: {name} {value!r} s; allowed: a finite time above 0")

    def items(self) -> list[tuple[str, float]]:
        """The limits that are set: name and seconds."""
        pairs = (("TTFT p95", self.ttft_p95_s), ("inter-token p95", self.inter_token_p95_s))
        return [(name, value) for name, value in pairs if value is not None]

    def __str__(self) -> str:
        parts = []
        for name, value in self.items():
            parts.append(f"{name} < {f'{value:g} s' if value >= 1 else f'{value * 1000:g} ms'}")
        return " and ".join(parts)


@dataclass(frozen=True)
class Capacity:
    """What one configuration serves.

    agents: largest number within the limits over all replicates. low, high: 95 % of 2,000 resamples of the replicates;
    None with fewer than five. repeated: each replicate is also one repeat of its plan (the profile knows the scatter).
    windows_within: replicates whose own window keeps the limits at ``agents``. at_top: the limits still held with the
    most agents tried, so that agents and high are lower bounds.
    ttft_p95_s, inter_token_p95_s: over all replicates at ``agents``; None with 0 agents.
    next_broken: the limits that one agent more breaks.
    """

    config: ServingConfig
    limits: Limits
    agents: int
    low: int | None
    high: int | None
    repeated: bool
    replicates: int
    windows_within: int
    most_tried: int
    at_top: bool
    ttft_p95_s: float | None
    inter_token_p95_s: float | None
    device_time_per_turn_s: float | None
    next_broken: tuple[str, ...]
    compile_s: float | None
    memory_gib_per_device: float | None
    device_gib: float | None
    extrapolated: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether the fullest device holds it; None when memory is not known."""
        if self.memory_gib_per_device is None or self.device_gib is None:
            return None
        return self.memory_gib_per_device <= self.device_gib

    @property
    def sentence(self) -> str:
        """What a buyer wants to read; ± only where the interval is symmetric."""
        text = (
            f"{'at least ' if self.at_top else ''}{self.agents} agent{'' if self.agents == 1 else 's'} at {self.limits}"
        )
        if self.low is None or self.high is None:
            text += f" (no interval from {self.replicates} replicate{'' if self.replicates == 1 else 's'})"
        elif self.at_top:
            text += f" ({self.low} or more)"
        elif self.high - self.agents == self.agents - self.low:
            text += f", ± {self.high - self.agents}"
        else:
            text += f" ({self.low} to {self.high}{' or more' if self.high == self.most_tried else ''})"
        if self.fits is False:
            text += f"; does not fit: {self.memory_gib_per_device:.1f} GiB of {self.device_gib:g} GiB a device"
        return text

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            **self.config.to_dict(),
            "agents": self.agents,
            "low": self.low,
            "high": self.high,
            "repeated": self.repeated,
            "replicates": self.replicates,
            "windows_within": self.windows_within,
            "most_tried": self.most_tried,
            "at_top": self.at_top,
            "ttft_p95_s": self.ttft_p95_s,
            "inter_token_p95_s": self.inter_token_p95_s,
            "device_time_per_turn_s": self.device_time_per_turn_s,
            "next_broken": list(self.next_broken),
            "compile_s": self.compile_s,
            "memory_gib_per_device": self.memory_gib_per_device,
            "device_gib": self.device_gib,
            "fits": self.fits,
            "extrapolated": list(self.extrapolated),
            "sentence": self.sentence,
        }

    def __repr__(self) -> str:
        return f"Capacity({self.config.label}: {self.sentence})"


def capacity(
    profile: StackProfile,
    configs: Sequence[ServingConfig],
    workload: Workload,
    limits: Limits,
    *,
    most_agents: int = 64,
    seeds: Sequence[int] = tuple(range(20)),
    evaluation_s: float = EVALUATION_S,
    cycle_s: float | None = None,
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    without: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Capacity]:
    """The capacity of each configuration, in the order given; one replicate per seed.

    cycle_s: clients start this long over their number apart; None takes the workload's. progress is called with
    (done, all) configurations. Raises InputError for empty or repeated seeds, or most_agents below 1.
    """
    if most_agents < 1:
        raise InputError(f"agents: {most_agents}; allowed: at least 1")
    if not configs:
        raise InputError("buckets: no configuration given")
    chosen = distinct(seeds, "seeds", 0)
    if clock is None and tuple(without):
        raise InputError("without: leaves out corrections of the operating clock; choose clock operating")
    found = []
    for i, config in enumerate(configs):
        if progress is not None:
            progress(i, len(configs))
        stack = profile if clock is None else profile.clocked(clock, config, without=without)
        trial = _Trial(stack, config, workload, limits, chosen, evaluation_s, cycle_s, rules, turnaround_s)
        found.append(_capacity(profile, trial, most_agents))
    if progress is not None:
        progress(len(configs), len(configs))
    return found


@dataclass(frozen=True)
class _Level:
    """All replicates with one number of agents (R replicates, L limits).

    within, total: int64[R, L], values that keep a limit and all values. p95_s: over all replicates, TTFT and gaps.
    """

    within: Ints
    total: Ints
    ttft_p95_s: float | None
    inter_token_p95_s: float | None
    device_time_per_turn_s: float | None

    def holds(self, weights: Ints) -> npt.NDArray[np.bool_]:
        """Whether all limits hold with replicates counted ``weights`` times, int64[B, R] -> bool[B]."""
        kept: npt.NDArray[np.bool_] = np.all(weights @ self.within >= _SHARE * (weights @ self.total), axis=1)
        return kept

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Limits that hold over all replicates, bool[L]."""
        held: npt.NDArray[np.bool_] = self.within.sum(axis=0) >= _SHARE * self.total.sum(axis=0)
        return held


class _Trial:
    """One configuration: levels by number of agents, simulated when asked for."""

    def __init__(
        self,
        profile: StackProfile,
        config: ServingConfig,
        workload: Workload,
        limits: Limits,
        seeds: tuple[int, ...],
        evaluation_s: float,
        cycle_s: float | None,
        rules: str | RuleSet | None,
        turnaround_s: float | None,
    ) -> None:
        self._profile, self.config, self._workload, self.limits = profile, config, workload, limits
        self.seeds, self._evaluation_s, self._rules, self._turnaround_s = seeds, evaluation_s, rules, turnaround_s
        self._cycle_s = (workload.cycle_s or 0.0) if cycle_s is None else cycle_s
        self._levels: dict[int, _Level] = {}
        self.outside = Outside(profile, config)
        self.repeated = profile.scatter is not None

    def level(self, agents: int) -> _Level:
        """All replicates with this many agents."""
        if agents not in self._levels:
            windows = [self._window(agents, seed) for seed in self.seeds]
            items = self.limits.items()
            within, total = (np.zeros((len(windows), len(items)), np.int64) for _ in range(2))
            for r, window in enumerate(windows):
                for column, (name, limit) in enumerate(items):
                    spread = window.ttft if name == "TTFT p95" else window.inter_token
                    if spread is not None:
                        within[r, column], total[r, column] = spread.within(limit), spread.count
            for (name, _), values in zip(items, total.sum(axis=0), strict=True):
                if values == 0:
                    raise InputError(f"limits: {name} cannot be seen: no window of {agents} agents has such a value")
            self._levels[agents] = _Level(
                within,
                total,
                pooled_p95_s([window.ttft for window in windows]),
                pooled_p95_s([window.inter_token for window in windows]),
                sum(w.device_time_s or 0.0 for w in windows) / max(sum(w.requests for w in windows), 1),
            )
        return self._levels[agents]

    def holds(self, agents: int) -> bool:
        """All limits hold over all replicates."""
        return bool(self.level(agents).kept.all())

    def _window(self, agents: int, seed: int) -> SteadyLoad:
        sessions = _SESSIONS
        while True:
            try:
                return self._simulate(agents, seed, sessions)
            except PlanTooShort as error:
                sessions = error.sessions_per_client
                if sessions > _MOST_SESSIONS:
                    raise InputError(
                        f"window: {self._evaluation_s:g} s need {sessions:,} sessions of every agent; "
                        f"allowed: windows that {_MOST_SESSIONS:,} last for"
                    ) from None

    def _simulate(self, agents: int, seed: int, sessions_per_client: int) -> SteadyLoad:
        plan = self._workload.draw(
            clients=agents, seed=seed, cycle_s=self._cycle_s, sessions_per_client=sessions_per_client
        )
        setup = set_up(self._profile, self.config, plan, self._rules, self._turnaround_s, None, ())
        flat, step_s = setup.flat, setup.step_s
        if self._profile.scatter is not None:
            member = perturbed(setup, self._profile.scatter, 1, np.random.default_rng([seed, agents]))
            flat, step_s = member.flat(0), member.step_s[0]
        run = record(setup, flat, step_s)
        # a tool can take longer than a short window
        steady = measure_window(
            run, plan, self._profile, evaluation_s=self._evaluation_s, cycle_s=self._cycle_s, may_be_empty=True
        )
        running = np.array([n for n, _, _ in steady.histogram or ()], np.int64)
        self.outside.add(running, run.requests["computed_tokens"].to_numpy(), plan.longest_context_tokens)
        return steady


def _capacity(profile: StackProfile, trial: _Trial, most: int) -> Capacity:
    good, bad = 0, 1
    while bad <= most and trial.holds(bad):
        good, bad = bad, bad * 2
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if trial.holds(middle) else (good, middle)
    agents = good

    # the capacity of every resample: look at neighbours until few of them are left undecided
    replicates = len(trial.seeds)
    rng = np.random.default_rng(0)
    weights = rng.multinomial(replicates, np.full(replicates, 1 / replicates), _RESAMPLES)
    # a tail of no more than the cut changes neither end
    cut = int(0.025 * _RESAMPLES)
    low, high = agents, agents
    sampled = np.full(_RESAMPLES, agents)
    undecided = np.ones(_RESAMPLES, np.bool_)
    while low > 0 and undecided.sum() > cut:
        undecided &= ~trial.level(low).holds(weights)
        sampled[undecided] = low - 1
        low -= 1
    undecided = sampled == agents
    while high < most and undecided.sum() > cut:
        undecided &= trial.level(high + 1).holds(weights)
        sampled[undecided] = high + 1
        high += 1
    ordered = np.sort(sampled)
    enough = replicates >= _FEWEST

    at = trial.level(agents) if agents else None
    after = trial.level(agents + 1).kept if agents < most else np.ones(len(trial.limits.items()), np.bool_)
    build, memory = profile.compile, profile.memory
    return Capacity(
        config=trial.config,
        limits=trial.limits,
        agents=agents,
        low=int(ordered[cut]) if enough else None,
        high=int(ordered[-1 - cut]) if enough else None,
        repeated=trial.repeated,
        replicates=replicates,
        windows_within=0 if at is None else int(at.holds(np.eye(replicates, dtype=np.int64)).sum()),
        most_tried=most,
        at_top=agents == most,
        ttft_p95_s=None if at is None else at.ttft_p95_s,
        inter_token_p95_s=None if at is None else at.inter_token_p95_s,
        device_time_per_turn_s=None if at is None else at.device_time_per_turn_s,
        next_broken=tuple(name for (name, _), kept in zip(trial.limits.items(), after, strict=True) if not kept),
        compile_s=None if build is None else build.seconds(trial.config),
        memory_gib_per_device=None if memory is None else memory.fullest_device_gib(trial.config),
        device_gib=None if memory is None else memory.device_gib.value,
        extrapolated=trial.outside.texts(),
    )
