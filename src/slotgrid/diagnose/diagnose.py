"""diagnose: from a run to everything it shows about padding, reuse, interference and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slotgrid.diagnose.buckets import bucket_change
from slotgrid.diagnose.compare import compare as compare_diagnoses
from slotgrid.diagnose.cost import channel_a, channel_b_s, decode_s, extrapolated, step_s, unmeasured
from slotgrid.diagnose.interference import stalls, time_to_first_token, token_gaps
from slotgrid.diagnose.order import event_order
from slotgrid.diagnose.padding import Histogram, align
from slotgrid.diagnose.result import Diagnosis
from slotgrid.diagnose.reuse import find_returns
from slotgrid.diagnose.summary import Facts, summarize
from slotgrid.diagnose.survival import survival_curve
from slotgrid.errors import UnmeasuredError
from slotgrid.profile import StackProfile, load_profile
from slotgrid.run import Run
from slotgrid.run.memory import give_back
from slotgrid.run.steady import SteadyLoad, steady_load
from slotgrid.run.window import Window


def diagnose(
    run: Run | str | Path,
    *,
    profile: StackProfile | str | Path | None = None,
    compare: Run | str | Path | None = None,
    buckets: Sequence[int] | None = None,
) -> Diagnosis:
    """Diagnose a run, measured or simulated, or a run directory.

    profile: prices for device time, stalls and what a change is worth; a built-in id or a TOML file. compare: a
    baseline run of the same plan. buckets: another bucket list to try on the same steps; one fitted to the observed
    running counts when None. Raises InputError for unreadable files, plans that differ, or a list that is too short.
    """
    stack = profile if profile is None or isinstance(profile, StackProfile) else load_profile(profile)
    result = _diagnose(_run(run), stack, buckets)
    if compare is None:
        return result
    baseline = _diagnose(_run(compare), stack, None)
    return replace(result, comparison=compare_diagnoses(result, baseline))


def _run(run: Run | str | Path) -> Run:
    if isinstance(run, Run):
        return run
    from slotgrid.run.readers import read_run

    return read_run(run)


def _diagnose(run: Run, profile: StackProfile | None, buckets: Sequence[int] | None) -> Diagnosis:
    warnings = list(run.notes)
    histogram: Histogram | None = None
    if run.histogram is not None:
        histogram = {(n, b): steps for n, b, steps in run.histogram.iter_rows()}
    decode_price = None if profile is None else profile.price.decode
    if profile is not None and decode_price is not None and histogram:
        try:
            for running, bucket in histogram:
                step_s(decode_price, running, bucket)
        except UnmeasuredError as error:
            warnings.append(f"decode steps are not priced: {error}")
            decode_price = None
    priceable = profile is None or decode_price is not None
    order = event_order(run)
    # of a long log what each step leaves over is worth giving back
    give_back()
    returns = find_returns(run, order, profile)
    give_back()
    survival = survival_curve(run, order, returns, run.config)
    waiting = stalls(run, order, profile)
    give_back()
    costs = channel_a(run, order, histogram if priceable else None, profile)
    change = None if histogram is None else bucket_change(histogram, run.config, decode_price, buckets)
    in_flight_s = channel_b_s(run)
    give_back()
    seconds = None
    if histogram is not None and decode_price is not None:
        seconds = {key: decode_s(decode_price, {key: steps}) for key, steps in histogram.items()}
    elif histogram is not None and run.source == "simulated":
        seconds = _simulated_s(run)
    draft = Diagnosis(
        run=run,
        profile=profile,
        order=order,
        histogram=histogram,
        alignment=None if histogram is None else align(histogram),
        bucket_s=seconds,
        change=change,
        returns=returns,
        survival=survival,
        stalls=waiting,
        first_token_s=time_to_first_token(run),
        gaps=token_gaps(run),
        channel_a=costs,
        channel_b_s=in_flight_s,
        extrapolated=extrapolated(run, histogram, profile),
        unmeasured={} if decode_price is None or not histogram else unmeasured(decode_price, {b for _, b in histogram}),
        window=_window(run, profile, warnings),
        warnings=(),
        not_observed={},
        summary=(),
    )
    warnings += _cross_checks(draft)
    return replace(
        draft, warnings=tuple(warnings), not_observed=_not_observed(draft), summary=summarize(_facts(draft, buckets))
    )


def _window(run: Run, profile: StackProfile | None, warnings: list[str]) -> SteadyLoad | None:
    """What the run did inside the evaluation window its client wrote; priced with a profile."""
    stated = run.details.get("window")
    if stated is None:
        return None
    name = stated["file"]
    if profile is None:
        warnings.append(f"{name}: its window is not evaluated without a profile; all else covers the whole run")
        return None
    if run.requests["arrival_s"].has_nulls() or run.returns is None or run.requests["output_tokens"].has_nulls():
        warnings.append(f"{name}: its window is not evaluated: sessions, lengths or arrivals are not observed")
        return None
    price = profile.price
    try:
        made = steady_load(
            run,
            Window(stated["start_s"], stated["end_s"]),
            decode_price=price.decode.seconds,
            prefill_price=price.prefill.seconds,
        )
    except UnmeasuredError as error:
        warnings.append(f"{name}: its window is not priced: {error}")
        return None
    warnings.append(f"{name}: the evaluation window stands in its own section; all else covers the whole run")
    return made


def _simulated_s(run: Run) -> dict[tuple[int, int], float]:
    import polars as pl

    assert run.steps is not None
    table = run.steps.filter(pl.col("kind") == "decode").group_by("running", "bucket").agg(pl.col("duration_s").sum())
    return {(n, b): s for n, b, s in table.iter_rows()}


def _cross_checks(d: Diagnosis) -> list[str]:
    """What the server's counters say against the rows, and what is misleading."""
    metrics = d.run.details.get("metrics") or {}
    notes = []
    for counter, mine in (
        ("prompt_tokens", d.run.prompt_tokens),
        ("prompt_tokens_cached", d.run.cached_tokens),
    ):
        counted = metrics.get(counter)
        if counted is not None and mine is not None and round(counted) != mine:
            notes.append(
                f"the server counted {round(counted):,} {counter}, the request rows have {mine:,} "
                "(other traffic, or a snapshot of another run?)"
            )
    if d.inner_hit_tokens is not None and d.inner_hit_tokens != (d.run.cached_tokens or 0):
        real = "not observable" if d.run.cached_tokens is None else f"{d.run.cached_tokens:,} tokens"
        notes.append(
            f"vllm:prefix_cache_hits says {d.inner_hit_tokens:,} tokens; it counts the inner block layer and is "
            f"misleading: the real reuse is {real}"
        )
    return notes


def _not_observed(d: Diagnosis) -> dict[str, str]:
    """What is missing and what would show it."""
    missing: dict[str, str] = {}
    if d.histogram is None:
        missing["step distribution"] = "needs [BUCKET] lines in the server log"
    if d.run.evictions is None:
        missing["evictions"] = "needs [PFX] lines in the server log"
    if d.run.requests.is_empty() or d.run.prompt_tokens is None:
        missing["prompt tokens"] = "needs a request row with its prompt length for every request"
    if d.returns is None:
        missing["returns"] = "needs request rows that name session and turn"
    elif not d.returns.observable:
        unknown = int((d.returns.cached_tokens < 0).sum())
        missing["reuse"] = (
            f"not observable for {unknown} of {len(d.returns.row)} returns: needs cached_tokens in the rows "
            "(--enable-prompt-tokens-details) or [PFX] lines in the server log"
        )
    if d.survival is None and d.returns is not None:
        missing["survival curve"] = "needs the server log's order of events and the number of slots"
    if d.stalls is None:
        missing["stalls"] = "needs [PFX] lines, request rows for every admission, and a profile"
    if d.first_token_s is None:
        missing["time to first token"] = "needs first-token times in the request rows"
    if d.gaps is None:
        missing["inter-token gaps"] = "needs token times in or beside the request rows"
    if d.channel_a.total_s is None:
        missing["channel A"] = f"needs {' and '.join(d.channel_a.missing)}"
    if d.channel_b_s is None:
        missing["channel B"] = "needs sent and done times of every request"
    return missing


def _facts(d: Diagnosis, wanted: Sequence[int] | None) -> Facts:
    # the verdict speaks of a fitted list, whatever other list was asked for
    fit = d.change
    if wanted is not None and d.histogram is not None:
        fit = bucket_change(
            d.histogram,
            d.run.config,
            None if fit is None or fit.decode_before_s is None or d.profile is None else d.profile.price.decode,
            None,
        )
    extra = d.additional_prefill_s()
    rows = floor_rows = None
    if fit is not None and fit.before.bucket_sum:
        rows = 1 - fit.after.bucket_sum / fit.before.bucket_sum
        floor_rows = 1 - fit.before.running_sum / fit.before.bucket_sum
    enough = None
    if d.survival is not None and d.survival.all_kept_at is not None:
        enough = (d.survival.all_kept_at, max(d.survival.kept))
    config = d.run.config
    return Facts(
        returns=d.run.returns,
        lost_returns=d.lost_returns,
        lost_tokens=d.lost_tokens,
        computed_tokens=d.run.computed_tokens,
        recomputed_s=None if extra is None else extra[1],
        device_s=d.channel_a.total_s,
        causes=d.causes(),
        slots=None if config is None else config.slots,
        enough_slots=enough,
        padding_ratio=None if d.alignment is None else d.alignment.padding_ratio,
        buckets=None if config is None else config.buckets,
        fitted=None if fit is None else fit.buckets,
        saved_s=None if fit is None else fit.saved_s,
        floor_saved_s=None
        if fit is None or fit.decode_before_s is None or fit.floor_s is None
        else fit.decode_before_s - fit.floor_s,
        saved_rows=rows,
        floor_saved_rows=floor_rows,
        stall_session_s=None if d.stalls is None else d.stalls.stall_session_s,
        beside_decode_s=None if d.stalls is None else d.stalls.beside_decode_s,
        longest_wait_s=float(d.stalls.waited_s[d.stalls.longest[0]]) if d.stalls and d.stalls.longest else None,
    )
