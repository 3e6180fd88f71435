"""Whether a run may stand in its place: it ran the plan on the arm, its numbers are numbers, it began after the
registration."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.run import Run
from slotgrid.study.settings import SIMULATED, STEADY, Arm, PlanSet

if TYPE_CHECKING:
    import polars as pl

Planned = dict[tuple[int, int], tuple[int, int]]
_NO_STEPS = "decode steps are not observed (channel A needs them)"
# where a configuration was pieced together from what ran, buckets that never ran are not in it
_SEEN_ONLY = "the log"
# part of the tokens by which the steps of a run that was cut off by its window may differ from its requests
PARTIAL = 0.01


def invalid_reasons(run: Run, plan: InputPlan, arm: Arm, plans: PlanSet) -> list[str]:
    """Why the run may not stand for this arm on this plan; empty when it may."""
    reasons = _marked(run)
    if plans.load != STEADY and run.requests.height != plan.turn_count:
        reasons.append(f"{run.requests.height} of {plan.turn_count} requests have a result")
    if run.config is not None and not _fits(run, arm):
        reasons.append(f"configuration {run.config.label}, the arm has {arm.config.label}")
    if plans.load != STEADY:
        reasons += _unobserved(run)
    if run.histogram is None:
        reasons.append(_NO_STEPS)
    if reasons:
        return reasons
    in_flight = len(plan.clients) if plans.load == STEADY else None
    return (
        _other_times(run.requests)
        or _other_requests(run, (planned_tokens(plan), "the plan"), in_flight)
        or _other_steps(run, arm)
    )


def repeat_reasons(run: Run, planned: tuple[Planned, str] | None) -> list[str]:
    """Why a whole run may not count as an untreated repeat, without a study; empty when it may.

    planned: tokens of every request and who says so (the plan, or another run of it); None leaves that out.
    """
    reasons = _marked(run) + _unobserved(run)
    if run.histogram is None:
        reasons.append(_NO_STEPS)
    if planned is not None and run.requests.height != len(planned[0]):
        reasons.append(f"{run.requests.height} requests have a result, {planned[1]} has {len(planned[0])}")
    return reasons or _other_times(run.requests) or _other_requests(run, planned, None)


def _marked(run: Run) -> list[str]:
    """What the replay that made the run found wrong with it."""
    if run.details.get("valid") is not False:
        return []
    told = run.details.get("invalid_reasons") or run.details.get("reasons") or ["no reason is given"]
    return [f"marked invalid: {text}" for text in ([told] if isinstance(told, str) else told)]


def _unobserved(run: Run) -> list[str]:
    """What every request of a whole run must have."""
    found = []
    for name, what in (("computed_tokens", "cached tokens are not observable"), ("finish_s", "no finish time")):
        missing = run.requests[name].null_count()
        if missing:
            found.append(f"{missing} requests: {what}")
    return found


def _other_times(rows: pl.DataFrame) -> list[str]:
    """The first row whose times are no times. A missing time is another matter (unknown, or still in flight)."""
    import polars as pl

    for name in ("arrival_s", "finish_s"):
        wrong = rows.with_row_index().filter(~pl.col(name).cast(pl.Float64).is_finite())
        if wrong.height:
            return [f"request row {wrong['index'][0]}: {name} is {wrong[name][0]}; allowed: finite seconds"]
    late = rows.with_row_index().filter(pl.col("finish_s") < pl.col("arrival_s"))
    if late.height:
        row = late.row(0, named=True)
        return [f"request row {row['index']}: finish_s {row['finish_s']} is before arrival_s {row['arrival_s']}"]
    return []


def _other_requests(run: Run, planned: tuple[Planned, str] | None, in_flight: int | None) -> list[str]:
    """The first request that is not a planned one, and steps that do not make the tokens of the requests.

    in_flight: requests that may have been open when the run was cut off by its window; None for a whole run.
    """
    told, whose = planned or (None, "")
    names = ("session", "turn", "prompt_tokens", "output_tokens", "finish_s", "cached_tokens", "computed_tokens")
    seen: set[tuple[int, int]] = set()
    made = 0
    for i, (session, turn, prompt, output, finish, *prefill) in enumerate(run.requests.select(names).iter_rows()):
        if session is None or turn is None:
            return [f"request row {i}: session and turn are not known"]
        key, place = (session, turn), f"request row {i} (session {session}, turn {turn})"
        if told is not None and key not in told:
            return [f"{place}: is not in {whose}"]
        if key in seen:
            return [f"{place}: is there twice"]
        seen.add(key)
        wanted = (prompt, output) if told is None else told[key]
        # the price of a prefill counts as soon as the request arrived, so it must be right in flight too
        wrong = _other_prefill(wanted[0], *prefill)
        if wrong is not None:
            return [f"{place}: {wrong}"]
        if in_flight is not None and finish is None:
            continue
        for name, value, want in zip(names[2:4], (prompt, output), wanted, strict=True):
            if value != want:
                return [f"{place}: {name} is {value}, {whose} has {want}"]
        if prompt is None or output is None:
            return [f"{place}: its tokens are not known"]
        made += output - 1
    assert run.histogram is not None
    stepped = int((run.histogram["running"] * run.histogram["steps"]).sum())
    if in_flight is None:
        return [] if stepped == made else [f"decode steps make {stepped:,} tokens, the requests need {made:,}"]
    # when the window ended, every client may have had one request in flight
    assert told is not None
    most = made + in_flight * max(output for _, output in told.values())
    if not (1 - PARTIAL) * made <= stepped <= (1 + PARTIAL) * most:
        return [f"decode steps make {stepped:,} tokens, the requests need {made:,} to {most:,}"]
    return []


def _other_prefill(prompt: int | None, cached: int | None, computed: int | None) -> str | None:
    """What is wrong with the prefill of a request: what is not reused is computed, and at least the last token is."""
    if prompt is None or computed is None:
        return None
    if cached is not None and computed != prompt - cached:
        return f"computed_tokens is {computed}; a prompt of {prompt} with {cached} cached leaves {prompt - cached}"
    if not 1 <= computed <= prompt:
        return f"computed_tokens is {computed}; allowed: 1 to {prompt}, its prompt"
    return None


def _other_steps(run: Run, arm: Arm) -> list[str]:
    """The first decode step that a server of the arm cannot make, whatever configuration the run states.

    More requests than its limit, another bucket than the smallest that holds them (or none that is known: such a step
    has no price), or more slots than it has.
    """
    assert run.histogram is not None
    config = arm.config
    for running, bucket, steps in run.histogram.iter_rows():
        if running is None or running < 1:
            return [f"decode steps of {running} running requests; allowed: 1 to {config.max_running}"]
        place = f"{steps:,} decode steps of {running} running" + ("" if bucket is None else f" in bucket {bucket}")
        if running > config.max_running:
            return [f"{place}: arm {arm.name} ({config.label}) runs at most {config.max_running}"]
        if bucket is None:
            return [f"{place}: in which bucket is not known (channel A needs it)"]
        if bucket != config.bucket_for(running):
            return [f"{place}: arm {arm.name} ({config.label}) has bucket {config.bucket_for(running)} for them"]
    if "slot" in run.requests.columns:
        held = run.requests["slot"].drop_nulls().n_unique()
        if held > config.slots:
            return [f"{held} different slots were held: arm {arm.name} ({config.label}) has {config.slots}"]
    return []


def ran_tokens(run: Run) -> Planned:
    """(prompt, output) tokens of every (session, turn) of a run."""
    names = ("session", "turn", "prompt_tokens", "output_tokens")
    return {(s, t): (prompt, output) for s, t, prompt, output in run.requests.select(names).iter_rows()}


def planned_tokens(plan: InputPlan) -> Planned:
    """(prompt, output) tokens of every (session, turn) of a plan."""
    found = {}
    for s, (_, session) in enumerate(plan.sessions()):
        context = 0
        for t, turn in enumerate(session.turns):
            context += turn.new_tokens
            found[s, t] = (context, turn.output_tokens)
            context += turn.output_tokens
    return found


def check_started(run: Run, told: Any, where: str, registered_at: str, now: str) -> str | None:
    """When the run began: what it says itself, else ``told``. After the registration and not in the future.

    None for a simulated run, which has no such moment. Raises InputError naming ``where``.
    """
    if run.source == SIMULATED:
        return None
    told = run.details.get("started_at") or told
    if told is None:
        raise InputError(
            f"{where}: does not say when it began; give it with --started (ISO 8601 with zone, e.g. {registered_at})"
        )
    begun = moment(told, f"{where}: started_at")
    if begun < moment(registered_at, "registered_at"):
        raise InputError(
            f"{where}: began {told}, before the registration ({registered_at}); only what is measured after it counts"
        )
    if begun > moment(now, "now"):
        raise InputError(f"{where}: began {told}, which is still to come (it is {now})")
    return str(told)


def moment(text: Any, where: str) -> datetime:
    """A time in ISO 8601 with its zone. Raises InputError naming ``where``."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {text!r} is not a time in ISO 8601") from None
    if found.tzinfo is None:
        raise InputError(f"{where}: {text!r} has no zone; write e.g. {text}+00:00")
    return found


def _fits(run: Run, arm: Arm) -> bool:
    assert run.config is not None
    if run.details.get("config_from") == _SEEN_ONLY:
        return set(run.config.buckets) <= set(arm.config.buckets) and run.config.slots <= arm.config.slots
    return run.config == arm.config
