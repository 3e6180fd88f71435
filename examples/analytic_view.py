"""The analytic view against what was published and observed, and what a proposal loses against enumerating.

``python examples/analytic_view.py --write docs/analytic.md`` prints the tables and writes them into the document
(about two minutes). Nothing is fitted: costs are those of the built-in profile, plans are drawn from their seeds.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import slotgrid as sg
from slotgrid.analytic import grid_seconds, moments_of, optimal_buckets, predict
from slotgrid.engine.rules import REAL
from slotgrid.search.load import simulated_load

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
BEGIN, END = "<!-- analytic view: begin -->", "<!-- analytic view: end -->"

PROFILE = sg.load_profile("rbln-ca25-qwen3-4b")
TWO_TURN = sg.load_workload("tracelab-two-turn")
MULTI_TURN = sg.load_workload("tracelab-multi-turn")
BASE = sg.ServingConfig((1, 2, 4, 8))
TUNED = sg.ServingConfig((1, 4, 6, 8, 10, 16))


def rows(name: str) -> list[dict[str, str]]:
    """Rows of a published table."""
    with open(DATA / name, newline="") as stream:
        return list(csv.DictReader(stream))


@dataclass(frozen=True)
class Cell:
    """One published steady-state cell: our figures, the published analytic ones (v1, v1.1), the simulated and the
    observed reuse. Ratios are device time per turn over BASE's."""

    sessions: int
    arm: str
    inside: bool
    reuse: float
    reuse_v1: float
    reuse_v1_1: float
    reuse_simulated: float
    reuse_observed: float
    ratio: float
    ratio_v1: float | None
    ratio_observed: float
    cycle_error_s: float


def cells() -> list[Cell]:
    """Every cell the published model was printed for; each is the mean over its five plans."""
    plans: dict[int, list[tuple[sg.InputPlan, float]]] = {}
    for row in rows("plan_index.csv"):
        if row["substrate"] == "NPU" and row["index_file"] in ("INDEX.json", "INDEX_HI.json"):
            clients, cycle_s = int(row["n_slots"]), float(row["cycle_s"])
            plan = MULTI_TURN.draw(clients=clients, seed=int(row["base_seed"]), plan_id=row["plan_id"], cycle_s=cycle_s)
            plans.setdefault(clients, []).append((plan, cycle_s))
    found: list[Cell] = []
    base_s: dict[int, float] = {}
    for row in rows("multi_turn_cells.csv"):
        clients = int(row["n_sessions"])
        if not row["reuse_pred_analytic_v1"]:
            continue
        config = sg.ServingConfig([int(size) for size in row["grid"].split()])
        drawn = [plan for plan, _ in plans[clients]]
        figures = [
            predict(PROFILE, config, moments_of([plan], PROFILE), clients=clients, outside_range=True) for plan in drawn
        ]
        load = simulated_load(PROFILE, config, drawn, rules=REAL, turnaround_s=REAL.turnaround_s)
        per_turn_s = float(np.mean([figure.device_time_per_turn_s for figure in figures]))
        base_s.setdefault(clients, per_turn_s)
        errors = [figure.cycle_s - cycle_s for figure, (_, cycle_s) in zip(figures, plans[clients], strict=True)]
        found.append(
            Cell(
                sessions=clients,
                arm=row["config"],
                inside=clients <= config.max_running,
                reuse=float(np.mean([figure.reuse for figure in figures])),
                reuse_v1=float(row["reuse_pred_analytic_v1"]),
                reuse_v1_1=float(row["reuse_pred_analytic_v1_1"]),
                reuse_simulated=float(load.reuse or 0.0),
                reuse_observed=float(row["reuse_observed"]),
                ratio=per_turn_s / base_s[clients],
                ratio_v1=float(row["ratio_pred_analytic_v1"]) if row["ratio_pred_analytic_v1"] else None,
                ratio_observed=float(row["cost_ratio_vs_base_median"]),
                cycle_error_s=max(map(abs, errors)),
            )
        )
    return found


def cells_table(found: Sequence[Cell]) -> list[str]:
    """The cells and their mean errors as markdown lines."""

    def error(chosen: Sequence[Cell], name: str, other: str) -> str:
        pairs = [(getattr(c, name), getattr(c, other)) for c in chosen if getattr(c, other) is not None]
        return f"{np.mean([abs(a - b) for a, b in pairs]):.4f}"

    lines = [
        "| N | configuration | in range | reuse | published v1 | v1.1 | simulated | observed | cost ratio | v1 "
        "| observed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.sessions} | {c.arm} | {'yes' if c.inside else 'no'} | {c.reuse:.4f} | {c.reuse_v1:.4f} "
        f"| {c.reuse_v1_1:.4f} | {c.reuse_simulated:.4f} | {c.reuse_observed:.4f} | {c.ratio:.4f} "
        f"| {'' if c.ratio_v1 is None else f'{c.ratio_v1:.4f}'} | {c.ratio_observed:.4f} |"
        for c in found
    ]
    lines += ["", "Mean absolute difference of our values:", ""]
    lines += ["| cells | reuse to v1 | to v1.1 | to simulated | to observed | ratio to v1 | ratio to observed |"]
    lines += ["|---|---|---|---|---|---|---|"]
    groups = (
        ("in range", [c for c in found if c.inside]),
        ("in range, N to 8", [c for c in found if c.inside and c.sessions <= 8]),
        ("outside", [c for c in found if not c.inside]),
    )
    for name, chosen in groups:
        # BASE over itself is 1 whatever a model says, and a ratio needs BASE in range as well
        compared = [c for c in chosen if c.arm != "BASE" and c.sessions <= BASE.max_running]
        ratios = [error(compared, "ratio", other) if compared else "" for other in ("ratio_v1", "ratio_observed")]
        reuse = [error(chosen, "reuse", f"reuse_{o}") for o in ("v1", "v1_1", "simulated", "observed")]
        lines.append(f"| {name} ({len(chosen)}) | {' | '.join([*reuse, *ratios])} |")
    tuned = [c for c in found if c.arm == "TUNED"]
    apart = [c for c in found if c.inside and (c.arm, c.sessions) != ("BASE", 8)]
    full = next(c for c in found if (c.arm, c.sessions) == ("BASE", 8))
    worst = max(found, key=lambda c: abs(c.reuse - c.reuse_v1))
    lines += [
        "",
        "Inside the range the reuse differs from the simulator's by at most "
        f"{max(abs(c.reuse - c.reuse_simulated) for c in apart):.4f}, except for BASE with as many clients as slots "
        f"({full.reuse - full.reuse_simulated:+.4f}).",
        f"Largest difference to v1: {abs(worst.reuse - worst.reuse_v1):.4f} ({worst.arm}, N = {worst.sessions}). The "
        f"published plans carry the model's cycle of TUNED, to a millisecond: ours differs by at most "
        f"{max(c.cycle_error_s for c in tuned) * 1000:.1f} ms over {5 * len(tuned)} plans.",
    ]
    return lines


def grid_table() -> list[str]:
    """The published grid checks (table M03) as markdown lines: programme on simulated steps of TUNED."""
    published = {row["h_source"]: row for row in rows("m03_grid_dp_vs_selected.csv")}
    measured = ((6, (20261000, 20261100)), (8, (20261000,)), (10, (20261000,)))
    search = tuple((n, TWO_TURN.explore_seeds) for n in (6, 8, 10))
    cases = [
        ("R3a simulator (27 search cells)", "paper", search),
        ("R3b measured TUNED all", "real", measured),
        *((f"R3b N={n} (report only)", "real", ((n, seeds),)) for n, seeds in measured),
    ]
    lines = [
        "| steps of | cheapest set | published | TUNED costs | published | regret of TUNED | published |",
        "|---|---|---|---|---|---|---|",
    ]
    cost = PROFILE.price.decode.fixed
    for name, rules, drawn in cases:
        steps = np.zeros(17)
        for n, seeds in drawn:
            for seed in seeds:
                for block in TWO_TURN.blocks:
                    plan = TWO_TURN.draw(clients=n, seed=seed, block=block)
                    for running, _, count in sg.simulate(PROFILE, TUNED, plan, rules=rules).histogram.iter_rows():
                        steps[running] += count
        best = optimal_buckets(steps, cost, top=16, max_buckets=6)
        tuned_s = grid_seconds(steps, cost, TUNED.buckets)
        row = published[name]
        lines.append(
            f"| {name} | {','.join(map(str, best.buckets))} | {row['dp_grid'].replace(' ', ',')} | {tuned_s:.4f} s "
            f"| {row['cost_selected_grid_s']} s | {tuned_s / best.seconds - 1:.2%} "
            f"| {float(row['relative_regret']):.2%} |"
        )
    return lines


SPACES: tuple[tuple[str, sg.Workload, dict[str, object]], ...] = (
    ("published", TWO_TURN, {"sessions": (6, 8, 10), "batch": (8, 10, 12, 16), "rules": "paper"}),
    ("published, real rules", TWO_TURN, {"sessions": (6, 8, 10), "batch": (8, 10, 12, 16)}),
    ("without N = 10", TWO_TURN, {"sessions": (6, 8), "batch": (8, 10, 12, 16)}),
    ("4 buckets, N = 8", TWO_TURN, {"sessions": (8,), "batch": (8, 10, 12, 16), "max_buckets": 4}),
    ("more slots", TWO_TURN, {"sessions": (12, 16), "batch": (8, 12, 16), "max_buckets": 5, "extra_slots": (0, 1, 4)}),
    ("batch 20 and 24", TWO_TURN, {"sessions": (16, 24), "batch": (20, 24), "max_buckets": 5}),
    (
        "multi-turn",
        MULTI_TURN,
        {"sessions": (8, 12), "batch": (8, 12, 16), "max_buckets": 5, "explore_seeds": (1,), "evaluate_seeds": (11,)},
    ),
)


def gap_table() -> list[str]:
    """Proposals against the enumerated best as markdown lines."""
    lines = [
        "| space | candidates | proposed | best proposal | ratio | enumerated best | gap | rank |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, workload, options in SPACES:
        found = sg.propose(PROFILE, workload, baseline=BASE, check=True, threads=2, **options)  # type: ignore[arg-type]
        gap = found.checked
        assert gap is not None
        lines.append(
            f"| {name} | {gap.enumerated:,} | {found.result.candidates} | {found.best.config.label} "
            f"| {found.best.ratio:.6f} | {gap.best.config.label} | {gap.gap:.6f} | {gap.rank} |"
        )
    return lines


def report() -> str:
    """All tables as markdown."""
    return "\n".join(
        [
            "### Steady-state cells",
            "",
            *cells_table(cells()),
            "",
            "### The cheapest set for the steps of TUNED",
            "",
            *grid_table(),
            "",
            "### Proposals against enumerating",
            "",
            *gap_table(),
        ]
    )


def main() -> None:
    """Print the tables; with --write also put them between their markers in a document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="document to update between its markers")
    options = parser.parse_args()
    text = report()
    print(text)
    if options.write is not None:
        document = options.write.read_text()
        if BEGIN not in document or END not in document:
            sys.exit(f"{options.write}: no markers {BEGIN} and {END}")
        head, _, rest = document.partition(BEGIN)
        options.write.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
