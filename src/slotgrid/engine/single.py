"""simulate: one plan on one configuration, as a Run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from slotgrid.config import ServingConfig
from slotgrid.engine.backend import kernel
from slotgrid.engine.inner_pool import inner_block_notes, new_pool
from slotgrid.engine.outside import Outside
from slotgrid.engine.prepare import FlatPlan, Floats, Ints, sharing_left_out
from slotgrid.engine.rules import RuleSet
from slotgrid.engine.setup import Setup, set_up
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.run import Run

if TYPE_CHECKING:
    import polars as pl

    from slotgrid.engine.ensemble import Ensemble
    from slotgrid.profile import Scatter


@overload
def simulate(
    profile: StackProfile,
    config: ServingConfig,
    plan: InputPlan,
    *,
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    without: Sequence[str] = (),
    compiled: bool | None = None,
    ensemble: None = None,
) -> Run: ...


@overload
def simulate(
    profile: StackProfile,
    config: ServingConfig,
    plan: InputPlan,
    *,
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    without: Sequence[str] = (),
    compiled: bool | None = None,
    ensemble: int,
    seed: int = 0,
    scatter: Scatter | None = None,
) -> Ensemble: ...


def simulate(
    profile: StackProfile,
    config: ServingConfig,
    plan: InputPlan,
    *,
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    without: Sequence[str] = (),
    compiled: bool | None = None,
    ensemble: int | None = None,
    seed: int = 0,
    scatter: Scatter | None = None,
) -> Run | Ensemble:
    """Simulate one plan on one configuration (rules: docs/fidelity.md).

    rules: "real", "paper" or a RuleSet; None takes the profile's. turnaround_s: seconds between an answer and
    the client's next request besides the tool wait; None takes the plan's, the profile's, then the rule set's.
    clock: "price" or "operating", what moves time; None takes the profile's. without: corrections of the operating
    clock to leave out: "decode", "context", "prefill", "excess". Device time is always summed with the price.
    compiled: False runs the same kernel source as plain Python; None follows ``SLOTGRID_ENGINE``.
    ensemble: this many repeats that differ by what is random on a real server (the profile's scatter unless
    ``scatter`` says otherwise), drawn from ``seed``; the result is then an Ensemble. A turnaround given here or by the
    plan is not perturbed.
    Raises InputError when a context exceeds the slot, no slot is usable or an ensemble has fewer than two members,
    UnmeasuredError when a cost or the scatter is missing.
    """
    setup = set_up(profile, config, plan, rules, turnaround_s, clock, tuple(without))
    if ensemble is not None:
        from slotgrid.engine.ensemble import simulate_ensemble

        return simulate_ensemble(setup, members=ensemble, seed=seed, scatter=scatter, compiled=compiled)
    return record(setup, setup.flat, setup.step_s, compiled=compiled)


def record(setup: Setup, flat: FlatPlan, step_s: Floats, *, compiled: bool | None = None) -> Run:
    """Simulate ``flat`` (the setup's or a perturbed one) with these step seconds and keep every table."""
    import polars as pl

    profile, config, plan, rule_set = setup.profile, setup.config, setup.plan, setup.rules
    k = kernel(compiled=compiled)
    pool = None
    if flat.pool is not None:
        pool = new_pool(setup.capacity, flat.pool.slot_blocks, flat.pool_keys, flat.requests)

    requests, clients = flat.requests, flat.clients
    most = setup.most
    out_float = np.zeros(k.FLOAT_RESULTS)
    out_int = np.zeros(k.INT_RESULTS, np.int64)
    steps_by_running = np.zeros(most + 1, np.int64)
    cached = np.zeros(requests, np.int64)
    times = [np.zeros(requests) for _ in range(4)]
    arrival_s, admit_s, first_token_s, finish_s = times
    # a segment ends with a finish, an arrival, or one step after a refused admission
    segments = 3 * requests + clients + 4
    segment_start_s = np.zeros(segments)
    segment_running, segment_steps, segment_context = (np.zeros(segments, np.int64) for _ in range(3))
    eviction_s = np.zeros(2 * requests + 1)
    eviction_request, eviction_cause = (np.zeros(2 * requests + 1, np.int64) for _ in range(2))

    k.simulate_one(
        flat.first_requests,
        flat.first_arrival_s,
        flat.output_tokens - 1,
        flat.prompt_tokens,
        flat.gap_s,
        flat.has_next,
        flat.continues,
        flat.hit_tokens,
        flat.fixed_arrival_s,
        flat.prefill_miss_s,
        flat.prefill_hit_s,
        flat.price_miss_s,
        flat.price_hit_s,
        step_s,
        setup.price_s,
        profile.clock.decode.context_s,
        profile.price.decode.context_s,
        setup.capacity,
        config.max_running,
        setup.pads_by_eviction,
        setup.releases_at_once,
        flat.pool is not None,
        0,
        flat.pool,
        pool,
        np.empty(clients + 1),
        np.empty(clients + 1, np.int64),
        np.empty(requests + 1, np.int64),
        np.empty(requests + 1, np.int64),
        np.empty(requests + 1, np.int64),
        np.empty(requests + 1, np.int64),
        np.empty(requests + 1, np.int64),
        np.zeros(requests + 1, np.bool_),
        np.empty(requests + 1, np.int64),
        np.empty(clients + 1, np.int64),
        steps_by_running,
        out_float,
        out_int,
        True,
        cached,
        arrival_s,
        admit_s,
        first_token_s,
        finish_s,
        segment_start_s,
        segment_running,
        segment_steps,
        segment_context,
        eviction_s,
        eviction_request,
        eviction_cause,
    )
    if out_int[k.I_FINISHED] != requests:
        raise InputError(
            f"plan {plan.plan_id}: only {out_int[k.I_FINISHED]} of {requests} requests could be served with "
            f"{config.label}"
        )

    decode_count = int(out_int[k.I_DECODE_STEPS])
    used = int(out_int[k.I_SEGMENTS])
    start_s, duration_s = np.empty(decode_count), np.empty(decode_count)
    running = np.empty(decode_count, np.int64)
    k.expand_steps(
        segment_start_s[:used],
        segment_running[:used],
        segment_steps[:used],
        segment_context[:used],
        step_s,
        profile.clock.decode.context_s,
        start_s,
        duration_s,
        running,
    )
    bucket_of = np.array([0] + [config.bucket_for(n) for n in range(1, most + 1)], np.int64)
    computed = flat.prompt_tokens - cached
    request_table = pl.DataFrame(
        {
            "session": flat.session,
            "turn": flat.turn,
            "prompt_tokens": flat.prompt_tokens,
            "cached_tokens": cached,
            "computed_tokens": computed,
            "output_tokens": flat.output_tokens,
            "arrival_s": arrival_s,
            "admit_s": admit_s,
            "first_token_s": first_token_s,
            "finish_s": finish_s,
        }
    )
    if flat.pool is None:
        prefill_s = np.where(cached > 0, flat.prefill_hit_s, flat.prefill_miss_s)
    else:
        prefill_s = np.where(
            cached > 0, flat.pool.prefill_cached_clock_s[computed], flat.pool.prefill_clock_s[computed]
        )
    steps = _step_table(request_table, prefill_s, start_s, duration_s, running, bucket_of[running])
    evicted = int(out_int[k.I_EVICTIONS])
    causes = np.array(["admission", "padding"])
    eviction_table = pl.DataFrame(
        {
            "time_s": eviction_s[:evicted],
            "session": flat.session[eviction_request[:evicted]],
            "cause": pl.Series(causes[eviction_cause[:evicted]], dtype=pl.String),
        }
    )
    outside = Outside(profile, config)
    outside.add(np.flatnonzero(steps_by_running), computed, plan.longest_context_tokens)
    notes = [f"clock: {profile.clock_text}"] if profile.clock_text not in ("", "price") else []
    if out_int[k.I_DELAYED_ARRIVALS]:
        notes.append(
            f"{out_int[k.I_DELAYED_ARRIVALS]} fixed arrivals came before the answer they build on and were moved to it"
        )
    if flat.pool is not None:
        counts = (k.I_RECYCLED, k.I_RECYCLED_TOKENS, k.I_SHARED, k.I_HIDDEN)
        notes += inner_block_notes(*(int(out_int[i]) for i in counts))
    notes += sharing_left_out(plan, profile, flat)
    return Run(
        config=config,
        steps=steps,
        requests=request_table,
        evictions=eviction_table,
        decode_s=float(out_float[k.F_DECODE_S]),
        prefill_s=float(out_float[k.F_PREFILL_S]),
        stall_session_s=float(out_float[k.F_STALL_SESSION_S]),
        wall_s=float(out_float[k.F_WALL_S]),
        rules=rule_set.name,
        turnaround_s=setup.gap_s,
        plan_id=plan.plan_id,
        plan_sha256=plan.content_sha256,
        profile_id=profile.id,
        profile_sha256=profile.sha256,
        extrapolated=outside.texts(),
        notes=tuple(notes),
    )


def _step_table(
    requests: pl.DataFrame,
    prefill_s: Floats,
    start_s: Floats,
    duration_s: Floats,
    running: Ints,
    bucket: Ints,
) -> pl.DataFrame:
    """Prefills and decode steps in order of their start; ``running`` of a prefill is who waits for it."""
    import polars as pl

    admit_s = requests["admit_s"].to_numpy()
    decoding = np.searchsorted(np.sort(requests["first_token_s"].to_numpy()), admit_s, "right")
    gone = np.searchsorted(np.sort(requests["finish_s"].to_numpy()), admit_s, "right")
    prefills = pl.DataFrame(
        {
            "start_s": admit_s,
            "duration_s": prefill_s,
            "kind": pl.repeat("prefill", requests.height, eager=True),
            "running": decoding - gone,
            "bucket": pl.repeat(None, requests.height, dtype=pl.Int64, eager=True),
            "session": requests["session"],
            "turn": requests["turn"],
            "computed_tokens": requests["computed_tokens"],
        }
    )
    count = len(start_s)
    nothing = pl.repeat(None, count, dtype=pl.Int64, eager=True)
    decodes = pl.DataFrame(
        {
            "start_s": start_s,
            "duration_s": duration_s,
            "kind": pl.repeat("decode", count, eager=True),
            "running": running,
            "bucket": bucket,
            "session": nothing,
            "turn": nothing,
            "computed_tokens": nothing,
        }
    )
    return pl.concat([prefills, decodes]).sort("start_s", maintain_order=True)
