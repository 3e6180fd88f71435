"""A run its client saved, joined with the event log of the server: steps and evictions beside what the client saw.

Joined by request id. The server's times are moved to the client's clock by causality alone, as no request can arrive
before it was sent and no first token can be seen before it was made; the two bounds say how exact that is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from slotgrid.errors import InputError
from slotgrid.run.readers.event_log import run_from_events, stall_session_s
from slotgrid.run.run import Run


def with_events(saved: Run, path: Path) -> Run:
    """``saved`` with the steps, evictions, admissions and configuration of the event log at ``path``.

    Requests of the log that the client has no row for (a probe, other clients, failed ones) keep their steps and have
    no session. Raises InputError when log and rows share no request.
    """
    seen = saved.requests.drop("slot", "admit_order", "finish_order", strict=False)
    ids = seen.select("request_id", "session", "turn").drop_nulls().iter_rows()
    served = run_from_events(path, {name: (session, turn) for name, session, turn in ids})
    assert served.steps is not None
    assert served.evictions is not None
    of_server = served.requests.drop_nulls("session").select(
        "session",
        "turn",
        pl.col("arrival_s").alias("server_arrival_s"),
        pl.col("first_token_s").alias("server_first_s"),
        pl.col("admit_s").alias("server_admit_s"),
        pl.col("cached_tokens").alias("server_cached"),
        "slot",
        "admit_order",
        "finish_order",
    )
    both = seen.join(of_server, on=["session", "turn"], how="left", maintain_order="left")
    if not both["server_admit_s"].is_not_null().any():
        raise InputError(
            f"{path}: none of its requests is one of the {seen.height} that the client saw; another run's log?"
        )
    shift_s, slack_s = _shift(both)
    notes = [*saved.notes, *served.notes, *_notes(both, served, path, slack_s)]
    cached = pl.coalesce("server_cached", "cached_tokens")
    requests = both.with_columns(
        admit_s=pl.col("server_admit_s") - shift_s,
        cached_tokens=cached,
        computed_tokens=pl.col("prompt_tokens") - cached,
    ).select(*seen.columns, "slot", "admit_order", "finish_order")
    # what the server did before and after this run is another run's
    first, last = requests["admit_order"].min(), requests["finish_order"].max()
    steps = served.steps.filter(pl.col("order").is_between(first, last))
    # an eviction stands before the admission it makes room for
    before = served.steps.filter(pl.col("order") < first)["order"].max()
    evictions = served.evictions.filter(pl.col("order").is_between(0 if before is None else before, last))
    return replace(
        saved,
        config=served.config,
        steps=steps.with_columns(pl.col("start_s") - shift_s),
        requests=requests,
        evictions=evictions.with_columns(pl.col("time_s") - shift_s),
        stall_session_s=stall_session_s(steps),
        rules=served.rules,
        notes=tuple(notes),
        details={**served.details, **saved.details, "clock_slack_s": slack_s},
    )


def _shift(both: pl.DataFrame) -> tuple[float, float | None]:
    """(seconds to take off the server's times, how far off that can be).

    Every request: sent <= arrival - shift and first token made - shift <= first token seen.
    """
    most = (both["server_arrival_s"] - both["arrival_s"]).min()
    least = (both["server_first_s"] - both["first_token_s"]).max()
    if not isinstance(most, float):
        # a log without arrivals: the first token is all there is
        return (least if isinstance(least, float) else 0.0), None
    return most, most - least if isinstance(least, float) else None


def _notes(both: pl.DataFrame, served: Run, path: Path, slack_s: float | None) -> list[str]:
    found = []
    missing = both["server_admit_s"].null_count()
    if missing:
        found.append(f"{missing} request rows have no events in {path.name}")
    inside = pl.col("admit_order").is_between(both["admit_order"].min(), both["finish_order"].max())
    others = served.requests.filter(pl.col("session").is_null() & inside).height
    if others:
        found.append(f"{others} other requests of {path.name} were served during the run; their steps count")
    differ = both.filter(pl.col("server_cached") != pl.col("cached_tokens")).height
    if differ:
        found.append(f"{differ} requests have other cached tokens in the log than in their row; the log's are used")
    if slack_s is not None and slack_s < 0:
        found.append(
            f"client and server clocks drift: a first token was seen {-slack_s * 1e3:.1f} ms before it was made; times "
            "of steps and requests are that far apart"
        )
    return found
