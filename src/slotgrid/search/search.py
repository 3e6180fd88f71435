"""search: every candidate of a space on the same plans, and the configuration to compile."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from slotgrid._version import __version__
from slotgrid.config import ServingConfig
from slotgrid.engine.inner_pool import inner_block_notes
from slotgrid.engine.perturb import check_members
from slotgrid.engine.rules import RuleSet, find_rules, pick_turnaround
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.search.evaluate import Evaluator, PlanGroup
from slotgrid.search.ledger import LedgerFolder, finished_rows, reused_column, seconds_column
from slotgrid.search.numbers import distinct
from slotgrid.search.recommend import near_tie_rows, recommend
from slotgrid.search.repeats import Repeats
from slotgrid.search.score import SCORES, Score, ratios
from slotgrid.search.space import SearchSpace
from slotgrid.search.uncertain import contenders, standing
from slotgrid.workload import Workload

if TYPE_CHECKING:
    import polars as pl

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

# Candidates simulated between two looks at the progress bar, the checkpoint and ctrl-c.
_CHUNK = 512
PHASES = ("explore", "evaluate")
# Ledger columns that only a search with repeats has.
REPEAT_COLUMNS = ("probability_best", "probability_not_behind", "ratio_low", "ratio_high")


@dataclass(frozen=True)
class Candidate:
    """One configuration of the ledger. Ratios are device time over the baseline's on the same plans.

    extrapolated: what it asks of the profile outside the measured ranges (prefill sizes: see the result).
    With repeats: ratios and reuses are means; probability_best is the share of the repeats in which it has the
    smallest ratio, ratio_interval the 95 % prediction interval of its ratio (None for candidates far behind).
    """

    config: ServingConfig
    ratio: float
    ratio_evaluated: float
    ratio_by_sessions: dict[int, float]
    ratio_evaluated_by_sessions: dict[int, float]
    reused_by_sessions: dict[int, float]
    compile_s: float | None
    artifact_gib: float | None
    memory_gib_per_device: float | None
    extrapolated: tuple[str, ...]
    probability_best: float | None = None
    ratio_interval: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The candidate as JSON values."""
        repeats = {}
        if self.probability_best is not None:
            interval = None if self.ratio_interval is None else list(self.ratio_interval)
            repeats = {"probability_best": self.probability_best, "ratio_interval": interval}
        return {
            **self.config.to_dict(),
            "ratio": self.ratio,
            "ratio_evaluated": self.ratio_evaluated,
            "ratio_by_sessions": {str(n): value for n, value in self.ratio_by_sessions.items()},
            "ratio_evaluated_by_sessions": {str(n): v for n, v in self.ratio_evaluated_by_sessions.items()},
            "reused_by_sessions": {str(n): value for n, value in self.reused_by_sessions.items()},
            "compile_s": self.compile_s,
            "artifact_gib": self.artifact_gib,
            "memory_gib_per_device": self.memory_gib_per_device,
            "extrapolated": list(self.extrapolated),
            **repeats,
        }


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    ledger: one row per candidate in enumeration order. best: smallest explored ratio, ties in that order.
    near_ties: explored ratio within ``near_tie`` of the best, by ratio. recommended: of those the fewest compile
    seconds, then least memory, then smallest ratio, then lexicographic buckets.
    extrapolated: prefill sizes outside the measured range, the same for every candidate.
    simulated: distinct simulations run; plans: (explored, evaluated) plans per candidate.
    notes: what blocks inside the slots and shared prefixes changed, over all simulations run.
    ensemble: repeats of every plan, None without (near-ties are then also candidates not behind the best in 5 % of
    them); clock: what moves time, in words; turnaround_given: an argument fixed it, so repeats keep it.
    """

    profile: StackProfile
    workload_id: str
    rules: RuleSet
    turnaround_s: float
    sessions: tuple[int, ...]
    score: Score
    near_tie: float
    ledger: pl.DataFrame
    baseline_row: pl.DataFrame
    skipped: dict[str, int]
    plans: tuple[int, int]
    returns_by_sessions: dict[int, int]
    simulated: int
    resumed: int
    extrapolated: tuple[str, ...]
    notes: tuple[str, ...]
    elapsed_s: float
    ensemble: int | None = None
    clock: str = "price"
    turnaround_given: bool = False

    @property
    def candidates(self) -> int:
        """How many candidates were simulated."""
        return self.ledger.height

    @property
    def baseline(self) -> Candidate:
        """The configuration that ratios are relative to."""
        return _candidate(self.baseline_row.row(0, named=True), self.sessions)

    @property
    def best(self) -> Candidate:
        """The candidate with the lowest ratio."""
        return self.candidate(int(self.ledger["ratio"].arg_min() or 0))

    @property
    def near_ties(self) -> list[Candidate]:
        """Candidates within ``near_tie`` of the best, the best included."""
        return [self.candidate(row) for row in near_tie_rows(self.ledger, self.near_tie)]

    @property
    def recommended(self) -> Candidate:
        """The near-tie that costs least to compile (the rule is in :func:`recommend`)."""
        return self.candidate(recommend(self.ledger, self.near_tie))

    def top(self, count: int) -> list[Candidate]:
        """The ``count`` smallest explored ratios, ties in enumeration order."""
        order = np.argsort(self.ledger["ratio"].to_numpy(), kind="stable")[:count]
        return [self.candidate(int(row)) for row in order]

    def candidate(self, row: int) -> Candidate:
        """The candidate of a ledger row (from 0)."""
        return _candidate(self.ledger.row(row, named=True), self.sessions)

    def rescored(self, *, sessions: Sequence[int] | None = None, score: Score | None = None) -> SearchResult:
        """The same simulations under another score or for a subset of the session counts; nothing is run again.

        Probabilities belong to the score they were found with and are left out.
        Raises InputError for a session count that was not searched.
        """
        chosen = self.sessions if sessions is None else tuple(sessions)
        for n in chosen:
            if n not in self.sessions:
                raise InputError(f"sessions: {n} was not searched; searched: {', '.join(map(str, self.sessions))}")
        new_score = self.score if score is None else score
        return replace(
            self,
            sessions=chosen,
            score=new_score,
            ledger=_scored(self.ledger.drop(REPEAT_COLUMNS, strict=False), self.baseline_row, chosen, new_score),
            baseline_row=_scored(self.baseline_row, self.baseline_row, chosen, new_score),
        )

    def to_dict(self, *, top: int = 20) -> dict[str, Any]:
        """What scripts read, as JSON values; ``top`` entries of the ranking."""
        return {
            "candidates": self.candidates,
            "simulated": self.simulated,
            "best": self.best.to_dict(),
            "recommended": self.recommended.to_dict(),
            "top": [candidate.to_dict() for candidate in self.top(top)],
            "near_ties": [candidate.to_dict() for candidate in self.near_ties],
            "baseline": self.baseline.to_dict(),
            "elapsed_s": self.elapsed_s,
            "profile": self.profile.id,
            "workload": self.workload_id,
            "rules": self.rules.name,
            "turnaround_s": self.turnaround_s,
            "score": self.score,
            "near_tie": self.near_tie,
            "sessions": list(self.sessions),
            "plans_explored": self.plans[0],
            "plans_evaluated": self.plans[1],
            "skipped": dict(self.skipped),
            "resumed": self.resumed,
            "ensemble": self.ensemble,
            "clock": self.clock,
            "extrapolated": list(self.extrapolated),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        chosen = self.recommended
        return (
            f"SearchResult({self.candidates} candidates: recommended {chosen.config.label}, ratio {chosen.ratio:.4f} "
            f"explored, {chosen.ratio_evaluated:.4f} evaluated; {len(self.near_ties)} near-ties)"
        )


def search(
    profile: StackProfile,
    space: SearchSpace,
    workload: Workload,
    *,
    sessions: Sequence[int],
    baseline: ServingConfig,
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    without: Sequence[str] = (),
    ensemble: int | None = None,
    ensemble_seed: int = 0,
    explore_seeds: Sequence[int] | None = None,
    evaluate_seeds: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    score: Score = "sum",
    near_tie: float = 0.005,
    compile_budget_s: float | None = None,
    memory_budget_gib: float | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every_s: float = 5.0,
    threads: int = 1,
    progress: Progress | None = None,
) -> SearchResult:
    """Simulate every candidate of ``space`` on the same plans and rank them against ``baseline``.

    sessions: numbers of concurrent clients; plans are drawn for each, each seed and each block. The ranking uses
    the exploration seeds; the evaluation seeds give the ratio on inputs the choice has not seen.
    clock, without: as in :func:`engine.simulate`; the operating clock is the mean of all measured configurations for
    every candidate. ensemble: repeats of every plan that differ by the profile's scatter, the same for every candidate:
    ratios are then of mean seconds, and candidates get the probability of being best.
    compile_budget_s, memory_budget_gib: candidates above are skipped and counted; the memory budget defaults to
    what the profile says a device holds.
    folder: where the ledger is kept; with it a stopped search can be continued with ``resume``.
    progress: called with (candidates done, candidates) after every chunk.

    Raises InputError for overlapping seeds, empty lists, or a space that the budgets leave empty;
    UnmeasuredError when a budget needs a cost the profile does not hold.
    """
    started = time.perf_counter()
    if clock is not None:
        profile = profile.clocked(clock, None, without=without)
    elif without:
        raise InputError("without: leaves out corrections of the operating clock; choose clock operating")
    repeats = None if ensemble is None else _repeats(profile, ensemble, ensemble_seed, turnaround_s is not None)
    rule_set = find_rules(profile.rules if rules is None else rules)
    gap_s = pick_turnaround(
        rule_set, turnaround_s, None, None if profile.turnaround_s is None else profile.turnaround_s.value
    )
    counts = distinct(sessions, "sessions", 1)
    seeds = {
        "explore": distinct(workload.explore_seeds if explore_seeds is None else explore_seeds, "explore-seeds", 0),
        "evaluate": distinct(workload.evaluate_seeds if evaluate_seeds is None else evaluate_seeds, "eval-seeds", 0),
    }
    chosen_blocks = distinct(workload.blocks if blocks is None else blocks, "blocks", 0)
    shared = set(seeds["explore"]) & set(seeds["evaluate"])
    if shared:
        raise InputError(
            f"eval-seeds: {min(shared)} is also an exploration seed; evaluation needs inputs the choice has not seen"
        )
    if not 0 <= near_tie < math.inf:
        raise InputError(f"near-tie: {near_tie!r}; allowed: a finite number of at least 0")
    if score not in SCORES:
        raise InputError(f"score: {score!r}; allowed: {', '.join(SCORES)}")

    configs, skipped = _within_budget(profile, space, compile_budget_s, memory_budget_gib)
    groups = []
    plans: list[str] = []
    identity = hashlib.sha256()
    for n in counts:
        drawn: dict[str, list[InputPlan]] = {
            phase: [workload.draw(clients=n, seed=seed, block=b) for seed in seeds[phase] for b in chosen_blocks]
            for phase in PHASES
        }
        for phase in PHASES:
            for plan in drawn[phase]:
                identity.update(f"{n}{phase}{plan.content_sha256}".encode())
                plans.append(plan.content_sha256)
        groups.append(
            PlanGroup.build(
                n,
                drawn["explore"],
                drawn["evaluate"],
                profile,
                gap_s,
                inner_blocks=rule_set.inner_blocks == "stack",
                repeats=repeats,
            )
        )
    evaluator = Evaluator(profile, rule_set, groups, threads=threads, repeats=repeats)
    baseline_row = _rows(profile, [baseline], counts, evaluator)

    labels = [config.label for config in configs]
    identity.update(json.dumps([profile.sha256, str(rule_set), gap_s, labels, baseline.label, __version__]).encode())
    identity.update(json.dumps([profile.clock_text, ensemble, ensemble_seed, turnaround_s is None]).encode())
    store = LedgerFolder(folder, identity.hexdigest()) if folder is not None else None
    done_rows = finished_rows(store.start(resume=resume), labels) if store is not None else None
    parts = [] if done_rows is None else [done_rows.select(baseline_row.columns)]
    resumed = done = sum(part.height for part in parts)
    saved_at = time.perf_counter()
    # repeats make each candidate as many times longer
    size = _CHUNK if ensemble is None else max(1, 8 * _CHUNK // ensemble)
    try:
        while done < len(configs):
            if progress is not None:
                progress(done, len(configs))
            chunk = configs[done : done + size]
            parts.append(_rows(profile, chunk, counts, evaluator))
            done += len(chunk)
            if store is not None and time.perf_counter() - saved_at >= checkpoint_every_s:
                store.checkpoint(_joined(parts))
                saved_at = time.perf_counter()
        if progress is not None:
            progress(done, len(configs))
        ledger = _scored(_joined(parts), baseline_row, counts, score)
        if repeats is not None:
            ledger = _with_standing(ledger, configs, baseline, evaluator, score)
    except KeyboardInterrupt:
        if store is not None and parts:
            store.checkpoint(_joined(parts))
        raise

    result = SearchResult(
        profile=profile,
        workload_id=workload.id,
        rules=rule_set,
        turnaround_s=gap_s,
        sessions=counts,
        score=score,
        near_tie=near_tie,
        ledger=ledger,
        baseline_row=_scored(baseline_row, baseline_row, counts, score),
        skipped=skipped,
        plans=(
            len(counts) * len(seeds["explore"]) * len(chosen_blocks),
            len(counts) * len(seeds["evaluate"]) * len(chosen_blocks),
        ),
        returns_by_sessions={group.clients: group.explored_returns for group in groups},
        simulated=evaluator.simulated,
        resumed=resumed,
        extrapolated=tuple(profile.price.prefill.beyond(np.concatenate([group.computed_tokens for group in groups]))),
        notes=tuple(inner_block_notes(*evaluator.inner_blocks)),
        elapsed_s=time.perf_counter() - started,
        ensemble=ensemble,
        turnaround_given=turnaround_s is not None,
        clock=profile.clock_text or ("price" if profile.clock is profile.price else "the profile's"),
    )
    if store is not None:
        used = {phase: list(seeds[phase]) for phase in PHASES}
        state = {"slotgrid": __version__, "seeds": used, "plans": plans, "result": result.to_dict(top=1)}
        store.finish(result.ledger, state)
    return result


def _repeats(profile: StackProfile, members: int, seed: int, turnaround_given: bool) -> Repeats:
    check_members(members, seed)
    return Repeats(members, seed, profile.needed_scatter(), turnaround_given)


def _with_standing(
    ledger: pl.DataFrame, configs: Sequence[ServingConfig], baseline: ServingConfig, evaluator: Evaluator, score: Score
) -> pl.DataFrame:
    """The ledger with the columns of ``REPEAT_COLUMNS``; candidates far behind have probability 0 and no interval."""
    import polars as pl

    rows = contenders(ledger["ratio"].to_numpy())
    samples_s = evaluator.samples([configs[row] for row in rows])
    found = standing(rows, samples_s, evaluator.samples([baseline])[0], score)
    columns = []
    for name, values, other in zip(
        REPEAT_COLUMNS, (found.best, found.not_behind, found.low, found.high), (0.0, 0.0, np.nan, np.nan), strict=True
    ):
        column = np.full(ledger.height, other)
        column[rows] = values
        columns.append(pl.Series(name, column).fill_nan(None))
    return ledger.with_columns(columns)


def _within_budget(
    profile: StackProfile, space: SearchSpace, compile_budget_s: float | None, memory_budget_gib: float | None
) -> tuple[list[ServingConfig], dict[str, int]]:
    compile_model = profile.needed_compile() if compile_budget_s is not None else None
    memory_model = profile.needed_memory() if memory_budget_gib is not None else profile.memory
    if memory_budget_gib is None and memory_model is not None:
        memory_budget_gib = memory_model.device_gib.value
    kept, skipped = [], {"compile": 0, "memory": 0}
    cheapest_s, smallest_gib = math.inf, math.inf
    for config in space:
        if compile_model is not None and compile_budget_s is not None:
            seconds = compile_model.seconds(config)
            cheapest_s = min(cheapest_s, seconds)
            if seconds > compile_budget_s:
                skipped["compile"] += 1
                continue
        if memory_model is not None and memory_budget_gib is not None:
            gib = memory_model.fullest_device_gib(config)
            smallest_gib = min(smallest_gib, gib)
            if gib > memory_budget_gib:
                skipped["memory"] += 1
                continue
        kept.append(config)
    if not kept:
        reasons = []
        if skipped["compile"]:
            reasons.append(f"the cheapest takes {cheapest_s:.0f} s to compile, allowed are {compile_budget_s:.0f} s")
        if skipped["memory"]:
            reasons.append(
                f"the smallest takes {smallest_gib:.2f} GiB of a device, allowed are {memory_budget_gib:.2f} GiB"
            )
        raise InputError(f"budget: no candidate is left; {'; '.join(reasons)}")
    return kept, skipped


def _rows(
    profile: StackProfile, configs: Sequence[ServingConfig], counts: Sequence[int], evaluator: Evaluator
) -> pl.DataFrame:
    """Ledger rows without ratios: identity, costs, seconds and reuses per phase and session count."""
    import polars as pl

    explored_s, evaluated_s, explored_reuse, evaluated_reuse = evaluator.run(configs)
    columns: dict[str, Any] = {
        "config": pl.Series([config.label for config in configs], dtype=pl.String),
        "buckets": pl.Series([",".join(map(str, config.buckets)) for config in configs], dtype=pl.String),
        "slots": pl.Series([config.slots for config in configs], dtype=pl.Int64),
        "max_running": pl.Series([config.max_running for config in configs], dtype=pl.Int64),
    }
    seconds = {"explore": explored_s, "evaluate": evaluated_s}
    reuses = {"explore": explored_reuse, "evaluate": evaluated_reuse}
    for phase in PHASES:
        for g, n in enumerate(counts):
            columns[seconds_column(phase, n)] = seconds[phase][:, g]
    for phase in PHASES:
        for g, n in enumerate(counts):
            counted = reuses[phase][:, g]
            columns[reused_column(phase, n)] = counted if evaluator.repeated else counted.astype(np.int64)
    build, memory = profile.compile, profile.memory
    columns["compile_s"] = pl.Series([build.seconds(c) if build else None for c in configs], dtype=pl.Float64)
    columns["artifact_gib"] = pl.Series([build.artifact_gib(c) if build else None for c in configs], dtype=pl.Float64)
    columns["extrapolated"] = pl.Series(
        ["; ".join(_beyond(profile, config, evaluator.most_clients)) for config in configs], dtype=pl.String
    )
    columns["memory_gib_per_device"] = pl.Series(
        [memory.fullest_device_gib(c) if memory else None for c in configs], dtype=pl.Float64
    )
    return pl.DataFrame(columns)


def _joined(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    return pl.concat(parts)


def _scored(rows: pl.DataFrame, baseline: pl.DataFrame, sessions: Sequence[int], score: Score) -> pl.DataFrame:
    """Rows with the columns ratio, ratio_evaluated and, per session count, ratio_n* and ratio_evaluated_n*."""
    import polars as pl

    columns = []
    for phase, prefix in (("explore", "ratio"), ("evaluate", "ratio_evaluated")):
        names = [seconds_column(phase, n) for n in sessions]
        device_s = rows.select(names).to_numpy()
        base_s = baseline.select(names).to_numpy()[0]
        columns.append(pl.Series(prefix, ratios(device_s, base_s, score)))
        columns += [pl.Series(f"{prefix}_n{n}", device_s[:, i] / base_s[i]) for i, n in enumerate(sessions)]
    return rows.with_columns(columns)


def _candidate(row: dict[str, Any], sessions: Sequence[int]) -> Candidate:
    return Candidate(
        config=ServingConfig(
            [int(size) for size in row["buckets"].split(",")],
            slots=row["slots"],
            max_running=row["max_running"],
        ),
        ratio=row["ratio"],
        ratio_evaluated=row["ratio_evaluated"],
        ratio_by_sessions={n: row[f"ratio_n{n}"] for n in sessions},
        ratio_evaluated_by_sessions={n: row[f"ratio_evaluated_n{n}"] for n in sessions},
        reused_by_sessions={n: row[reused_column("explore", n)] for n in sessions},
        compile_s=row["compile_s"],
        artifact_gib=row["artifact_gib"],
        memory_gib_per_device=row["memory_gib_per_device"],
        extrapolated=tuple(text for text in row["extrapolated"].split("; ") if text),
        probability_best=row.get("probability_best"),
        ratio_interval=None if row.get("ratio_low") is None else (row["ratio_low"], row["ratio_high"]),
    )


def _beyond(profile: StackProfile, config: ServingConfig, most_clients: int) -> list[str]:
    """What one candidate asks of the profile outside the ranges it was measured in, besides prefill sizes."""
    most = min(most_clients, config.max_running)
    limit = config.bucket_for(most)
    sizes = [size for size in config.buckets if size <= limit]
    notes = profile.price.decode.beyond(sizes, range(1, most + 1))
    if profile.clock is not profile.price:
        notes += [f"clock: {text}" for text in profile.clock.decode.beyond(sizes, range(1, most + 1))]
    build, memory = profile.compile, profile.memory
    count = len(config.buckets)
    if build is not None and build.buckets_range is not None and not build.buckets_range.covers(count):
        notes.append(f"compile time of {count} buckets (measured {build.buckets_range})")
    if memory is not None and memory.slots_range is not None and not memory.slots_range.covers(config.slots):
        notes.append(f"memory with {config.slots} slots (measured {memory.slots_range})")
    return notes
