"""May a measured condition be used? The checks of the published study, on what the run left behind."""

from __future__ import annotations

from pathlib import Path

from slotgrid.errors import InputError
from slotgrid.measure.options import WindowRule
from slotgrid.plan import InputPlan, load_plan
from slotgrid.run import Run, load_run, read_run
from slotgrid.run.steady import find_window
from slotgrid.run.window import Window

# times of rows are kept to a microsecond
_SAME_S = 2e-6


def problems(folder: Path, *, plan: InputPlan, window: WindowRule | None) -> list[str]:
    """Why the run in ``folder`` is not a valid condition for ``plan``; empty when it is.

    It ended by itself (by its window where it has one), no client ran out of sessions, the window read off while it ran
    is the one its finished requests give, nothing was sent after the window, no HTTP error, its plan is the registered
    one, and every evaluated request has its prompt length and, where the server left a log, its place in it.
    """
    try:
        run = load_run(folder)
    except InputError as error:
        return [str(error)]
    details = run.details
    found = [str(reason) for reason in details.get("invalid_reasons", ())]
    wanted = "plan" if window is None else "window"
    if details.get("stopped_by") != wanted and not found:
        found.append(f"stopped by {details.get('stopped_by')}, not by its {wanted}")
    if details.get("http_errors"):
        found.append(f"{details['http_errors']} HTTP errors, retried or not")
    found += _plan_problems(folder, plan, run)
    if not found:
        found += _evaluation_problems(folder, plan, run, window)
    return found


def _plan_problems(folder: Path, plan: InputPlan, run: Run) -> list[str]:
    expected = plan.content_sha256
    if run.plan_sha256 != expected:
        return [f"ran plan {run.plan_sha256}, registered is {expected}"]
    try:
        kept = load_plan(folder / "plan.json")
    except InputError as error:
        return [str(error)]
    return [] if kept.content_sha256 == expected else [f"{folder / 'plan.json'}: was changed after the run"]


def _evaluation_problems(folder: Path, plan: InputPlan, run: Run, rule: WindowRule | None) -> list[str]:
    found = []
    inside = run.requests
    if rule is None:
        if inside.height != plan.turn_count:
            found.append(f"{inside.height} of {plan.turn_count} turns have a result")
    else:
        rule = rule.of(plan)
        online = Window(run.details["window"]["start_s"], run.details["window"]["end_s"])
        try:
            offline = find_window(
                run,
                plan,
                cycle_s=None if rule.warmup_s is not None else rule.cycle_s,
                evaluation_s=rule.evaluation_s,
                warmup_s=rule.warmup_s,
            )
        except InputError as error:
            return [str(error)]
        if abs(offline.start_s - online.start_s) > _SAME_S:
            found.append(
                f"the window began at {online.start_s:.6f} s while it ran, its requests give {offline.start_s:.6f} s"
            )
        if run.details["last_sent_s"] > online.end_s:
            found.append(f"a request was sent at {run.details['last_sent_s']:.6f} s, after the end of the window")
        inside = inside.filter(online.covers(inside["arrival_s"].to_numpy()))
        if inside.is_empty():
            found.append("no request was sent in the window")
    unknown = inside["prompt_tokens"].null_count()
    if unknown:
        found.append(f"{unknown} evaluated requests have no prompt length")
    try:
        joined = read_run(folder)
    except InputError as error:
        return [*found, str(error)]
    if joined.steps is not None and "admit_order" in joined.requests.columns:
        keys = inside.select("session", "turn")
        lost = keys.join(joined.requests, on=["session", "turn"], how="left")["admit_order"].null_count()
        if lost:
            found.append(f"{lost} evaluated requests are not in the server's log")
    return found
