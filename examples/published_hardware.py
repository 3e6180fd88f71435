"""Predictions against published hardware runs: steady-state cells, cost ratios, step utilization.

``make fidelity`` prints the tables and writes them into docs/fidelity.md. Nothing is fitted to these rows: costs and
scatter are those of the built-in profile, each with its source.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import slotgrid as sg
from slotgrid.engine.ensemble import Ensemble, prediction_interval
from slotgrid.engine.steady import simulate_steady, simulate_steady_ensemble
from slotgrid.run.steady import SteadyLoad
from slotgrid.workload.distributions import Uniform

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
BEGIN, END = "<!-- published hardware: begin -->", "<!-- published hardware: end -->"

PROFILE = sg.load_profile("rbln-ca25-qwen3-4b")
ARMS = {own.name: sg.ServingConfig(own.buckets) for own in PROFILE.operating}
LOW_LOAD = 12


def rows(name: str) -> list[dict[str, str]]:
    """Rows of a published table."""
    with open(DATA / name, newline="") as stream:
        return list(csv.DictReader(stream))


# --- steady state ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One published cell: a configuration under N clients, pooled over its replicates.

    reuse, ratio: predicted; the ratio is of pooled seconds per turn over BASE. None where BASE has no counterpart.
    """

    experiment: str
    sessions: int
    arm: str
    reuse: float
    reuse_observed: float
    ratio: float | None
    ratio_observed: float | None
    queue: float
    queue_observed: float | None
    ttft_s: float
    ttft_observed_s: float | None

    @property
    def estimate(self) -> bool:
        """Its clock is an estimate: left out of the means."""
        return self.arm == "DP"


def steady_cells(*, without: tuple[str, ...] = (), clock: str = "operating", ensemble: int | None = None) -> list[Cell]:
    """Every cell of multi_turn_cells.csv, predicted from single runs or ensemble means."""
    workload = sg.load_workload("tracelab-multi-turn")
    index = {row["plan_id"]: row for row in rows("plan_index.csv")}
    loads: dict[tuple[str, int, str], list[list[SteadyLoad]]] = defaultdict(list)
    for row in rows("multi_turn_replicates.csv"):
        # replicates 5 to 9 were measured for another comparison and have no cost
        if int(row["replicate"]) > 4:
            continue
        sessions = int(row["n_sessions"])
        drawn = index[row["plan_id"]]
        plan = workload.draw(
            clients=sessions,
            seed=int(drawn["base_seed"]),
            plan_id=drawn["plan_id_inside_file"],
            cycle_s=float(drawn["cycle_s"]),
        )
        config = ARMS[row["config"]]
        if ensemble is None:
            members = [simulate_steady(PROFILE, config, plan, clock=clock, without=without)]
        else:
            members = list(
                simulate_steady_ensemble(PROFILE, config, plan, clock=clock, without=without, ensemble=ensemble).members
            )
        loads[row["experiment"], sessions, row["config"]].append(members)

    cells = []
    for row in rows("multi_turn_cells.csv"):
        key = (row["experiment"], int(row["n_sessions"]), row["config"])
        base = loads[*key[:2], "BASE"]
        observed = row["cost_ratio_vs_base_median"]
        known = observed != "" and row["config"] != "BASE"
        cells.append(
            Cell(
                *key,
                reuse=_pooled(loads[key], lambda s: s.reused or 0, lambda s: s.later_turns),
                reuse_observed=float(row["reuse_observed"]),
                ratio=_cost(loads[key]) / _cost(base) if known else None,
                ratio_observed=float(observed) if known else None,
                queue=float(np.mean([load.queue_mean for runs in loads[key] for load in runs])),
                queue_observed=_optional(row["queue_mean_observed"]),
                ttft_s=float(np.median([load.ttft_later.p50_s for runs in loads[key] for load in runs])),
                ttft_observed_s=_optional(row["ttft_median_s_turn_ge1"]),
            )
        )
    return cells


def _optional(text: str) -> float | None:
    return float(text) if text else None


def _pooled(replicates: list[list[SteadyLoad]], above: object, below: object) -> float:
    """Ratio of sums over replicates, mean over members."""
    members = zip(*replicates, strict=True)
    return float(np.mean([sum(map(above, group)) / sum(map(below, group)) for group in members]))  # type: ignore[call-overload]


def _cost(replicates: list[list[SteadyLoad]]) -> float:
    return _pooled(replicates, lambda s: s.device_time_s, lambda s: s.requests)


def mean_errors(cells: list[Cell]) -> dict[str, tuple[float, float]]:
    """Mean absolute errors (reuse, ratio) below and above 12 clients, estimates left out."""
    found = {}
    for name, chosen in (
        (f"N = 6 to {LOW_LOAD}", [c for c in cells if c.sessions <= LOW_LOAD and not c.estimate]),
        ("N = 14 and 16", [c for c in cells if c.sessions > LOW_LOAD and not c.estimate]),
    ):
        ratios = [abs(c.ratio - c.ratio_observed) for c in chosen if c.ratio is not None and c.ratio_observed]
        found[name] = (float(np.mean([abs(c.reuse - c.reuse_observed) for c in chosen])), float(np.mean(ratios)))
    return found


def ranked_pairs(cells: list[Cell]) -> list[tuple[int, str, bool]]:
    """Pairs of configurations that all five published replicates order alike (the published rule of "resolved"):
    clients, pair, whether the predicted order is the same."""
    cost: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows("multi_turn_replicates.csv"):
        if int(row["replicate"]) <= 4:
            cost[int(row["n_sessions"]), row["config"]].append(float(row["device_time_per_turn_ms"]))
    ratio = {(cell.sessions, cell.arm): 1.0 if cell.arm == "BASE" else cell.ratio for cell in cells}
    found = []
    for (sessions, above), (other, below) in itertools.combinations(cost, 2):
        if sessions != other:
            continue
        cheaper = [x < y for x, y in zip(cost[sessions, above], cost[sessions, below], strict=True)]
        if all(cheaper) or not any(cheaper):
            x, y = ratio[sessions, above], ratio[sessions, below]
            found.append((sessions, f"{above}/{below}", x is not None and y is not None and (x < y) == cheaper[0]))
    return found


# --- two-turn comparisons ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """One published cost ratio (channel A, from its seconds) and its predicted distribution."""

    seed: int
    sessions: int
    arm: str
    mean: float
    low: float
    high: float
    observed: float

    @property
    def covered(self) -> bool:
        """The 95 % prediction interval holds the observation."""
        return self.low <= self.observed <= self.high


def two_turn_ratios(*, members: int = 1_000, seed: int = 0, clock: str = "operating") -> list[Comparison]:
    """The eight comparisons of table T08: sums over three blocks, ``real`` rules."""
    workload = sg.load_workload("tracelab-two-turn")

    def total(arm: str, base_seed: int, sessions: int) -> Ensemble:
        parts = [
            sg.simulate(
                PROFILE,
                ARMS[arm],
                workload.draw(clients=sessions, seed=base_seed, block=block),
                clock=clock,
                ensemble=members,
                seed=seed,
            )
            for block in range(3)
        ]
        return parts[0] + parts[1] + parts[2]

    table = {
        (int(r["plan_seed"]), int(r["n_sessions"]), r["config"]): r for r in rows("t08_device_time_by_channel.csv")
    }
    found = []
    for base_seed, sessions in sorted({key[:2] for key in table}):
        base = total("BASE", base_seed, sessions)
        base_s = float(table[base_seed, sessions, "BASE"]["channel_a_s"])
        for arm in ("BATCHONLY", "TUNED"):
            ratio = total(arm, base_seed, sessions).ratio(base)
            observed = float(table[base_seed, sessions, arm]["channel_a_s"]) / base_s
            found.append(
                Comparison(base_seed, sessions, arm, float(ratio.mean()), *prediction_interval(ratio), observed)
            )
    return found


# --- step utilization of single runs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Utilization:
    """One measured run: its step utilization, the single prediction and the 95 % interval of an ensemble."""

    plan_id: str
    buckets: str
    waits: bool
    predicted: float
    low: float
    high: float
    observed: float

    @property
    def covered(self) -> bool:
        """The interval, widened by the rounding of the printed value, holds the observation."""
        return self.low - 0.00005 <= self.observed <= self.high + 0.00005


def utilizations(*, members: int = 200, seed: int = 0) -> list[Utilization]:
    """Every single run of measured_step_utilization.csv under BASE's operating costs, bucket 6 interpolated."""
    workload = replace(sg.load_workload("tracelab-two-turn"), tool_wait_s=Uniform(1, 5))
    profile = PROFILE.clocked("operating", ARMS["BASE"])
    found = []
    for row in rows("measured_step_utilization.csv"):
        plan = workload.draw(clients=int(row["n_sessions"]), seed=int(row["base_seed"]), plan_id=row["block_id"])
        if row["arm"] == "NOWAIT":
            plan = plan.without_waits()
        config = sg.ServingConfig([int(size) for size in row["buckets"].split()], slots=int(row["slots"]))
        run = sg.simulate(profile, config, plan)
        repeats = sg.simulate(profile, config, plan, ensemble=members, seed=seed)
        found.append(
            Utilization(
                row["block_id"],
                row["buckets"],
                row["arm"] == "WAIT",
                1 - (run.padding_ratio or 0.0),
                *prediction_interval(repeats.utilization),
                float(row["utilization"]),
            )
        )
    return found


# --- as text -----------------------------------------------------------------------------------------------------


def report(members: int) -> str:
    """All three tables as Markdown."""
    lines = [
        "### Steady state: reuse and cost ratio per cell",
        "",
        "Clock: operating costs. Single: one simulation per replicate. Mean: ensemble mean over "
        f"{members} repeats per replicate. DP's clock is an estimate and left out of the means. "
        "",
        "| N | configuration | reuse observed | single | mean | ratio observed | single | mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    single, mean = steady_cells(), steady_cells(ensemble=members)
    for one, many in zip(single, mean, strict=True):
        lines.append(
            f"| {one.sessions} | {one.arm}{' (estimate)' if one.estimate else ''} | {one.reuse_observed:.4f} "
            f"| {one.reuse:.4f} | {many.reuse:.4f} | {_ratio(one.ratio_observed)} | {_ratio(one.ratio)} "
            f"| {_ratio(many.ratio)} |"
        )
    lines += [
        "",
        "Mean absolute errors (18 cells have a measured clock, 12 of them a ratio), and how many of the published "
        "pairs of configurations that all five replicates order alike are ordered right:",
        "",
        "| clock | predictor | reuse, N = 6 to 12 | reuse, N = 14, 16 | ratio, N = 6 to 12 | ratio, N = 14, 16 | "
        "pairs right |",
        "|---|---|---|---|---|---|---|",
    ]
    variants: list[tuple[str, str, list[Cell]]] = [
        ("operating", "single", single),
        ("operating", f"mean of {members}", mean),
        ("operating without excess", "single", steady_cells(without=("excess",))),
        ("operating without context", "single", steady_cells(without=("context",))),
        ("operating without prefill, excess", "single", steady_cells(without=("prefill", "excess"))),
        ("operating without decode", "single", steady_cells(without=("decode",))),
        ("price", "single", steady_cells(clock="price")),
    ]
    for clock, predictor, cells in variants:
        (reuse_low, ratio_low), (reuse_high, ratio_high) = mean_errors(cells).values()
        pairs = ranked_pairs(cells)
        lines.append(
            f"| {clock} | {predictor} | {reuse_low:.4f} | {reuse_high:.4f} | {ratio_low:.4f} | {ratio_high:.4f} "
            f"| {sum(right for *_, right in pairs)} of {len(pairs)} |"
        )
    lines += [
        "",
        "Queue and median time to first token of later turns (single; how the published queue was sampled is not "
        "known):",
        "",
        "| N | configuration | queue observed | predicted | TTFT observed, s | predicted, s |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.sessions} | {c.arm} | {_ratio(c.queue_observed)} | {c.queue:.4f} | {_ratio(c.ttft_observed_s)} "
        f"| {c.ttft_s:.4f} |"
        for c in single
    ]
    comparisons = two_turn_ratios()
    errors = [abs(c.mean - c.observed) for c in comparisons]
    lines += [
        "",
        "### Two-turn cost ratios: ensembles of 1,000",
        "",
        f"Operating clock. Mean absolute error {np.mean(errors):.5f} (published simulator: 0.0169); "
        f"{sum(c.covered for c in comparisons)} of {len(comparisons)} observations inside the 95 % interval.",
        "",
        "| seed | N | configuration | mean | 95 % interval | observed | inside |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.seed} | {c.sessions} | {c.arm} | {c.mean:.4f} | {c.low:.4f} to {c.high:.4f} | {c.observed:.4f} "
        f"| {'yes' if c.covered else 'no'} |"
        for c in comparisons
    ]
    lines += ["", "Other seeds of the ensemble (mean absolute error, inside):", ""]
    for clock in ("operating", "price"):
        texts = []
        for seed in range(1, 5):
            others = two_turn_ratios(seed=seed, clock=clock)
            error = np.mean([abs(c.mean - c.observed) for c in others])
            texts.append(f"{error:.5f}, {sum(c.covered for c in others)} of 8")
        lines.append(f"* {clock} clock: {'; '.join(texts)}")
    texts = []
    for seed in range(5):
        few = two_turn_ratios(seed=seed, members=200)
        texts.append(f"{np.mean([abs(c.mean - c.observed) for c in few]):.5f}, {sum(c.covered for c in few)} of 8")
    lines.append(f"* operating clock, 200 repeats, seeds 0 to 4: {'; '.join(texts)}")
    runs = utilizations()
    waiting = [run for run in runs if run.waits]
    lines += [
        "",
        "### Step utilization of single runs",
        "",
        f"{len(runs)} runs, operating costs of BASE, bucket 6 interpolated: mean absolute error "
        f"{np.mean([abs(run.predicted - run.observed) for run in runs]):.5f} (published simulator: 0.0028). "
        f"Of the {len(waiting)} runs with waits {sum(run.covered for run in waiting)} lie inside the 95 % interval "
        "of 200 repeats, widened by the rounding of the printed value; outside: "
        + (", ".join(f"{r.plan_id} on {r.buckets.replace(' ', ',')}" for r in waiting if not r.covered) or "none")
        + ".",
    ]
    return "\n".join(lines)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def main() -> None:
    """Print the tables; with --write also put them between their markers in a document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=40, help="repeats per replicate for the ensemble means")
    parser.add_argument("--write", type=Path, help="document to update between its markers")
    options = parser.parse_args()
    text = report(options.members)
    print(text)
    if options.write is not None:
        document = options.write.read_text()
        if BEGIN not in document or END not in document:
            sys.exit(f"{options.write}: no markers {BEGIN} and {END}")
        head, _, rest = document.partition(BEGIN)
        options.write.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
