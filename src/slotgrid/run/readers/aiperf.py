"""aiperf's per-request records (``profile_export.jsonl``).

Written against aiperf 0.13.0 (``MetricRecordInfo``): one object a line with ``metadata`` (request_start_ns and
request_end_ns on the wall clock, x_correlation_id and turn_index of the conversation, x_request_id, benchmark_phase),
``metrics`` (each ``{"value", "unit"}``) and ``error``. The number of cached tokens is there only when the server
reported it; the inter-chunk latencies only with streaming. There is no server-side request id, but vLLM builds its
own from the X-Request-ID header, so x_request_id joins ``cmpl-<x_request_id>-0-...``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slotgrid.errors import InputError
from slotgrid.run.readers.rows import Fields, Gaps, RequestRow, Shape

_TO_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}


def _read(data: Mapping[str, Any], where: str) -> RequestRow:
    metadata, metrics = data["metadata"], data["metrics"]
    if not isinstance(metadata, Mapping) or not isinstance(metrics, Mapping):
        raise InputError(f"{where}: metadata and metrics must be objects")
    meta = Fields(metadata, f"{where}: metadata")
    values = Fields(
        {tag: entry.get("value") if isinstance(entry, Mapping) else None for tag, entry in metrics.items()},
        f"{where}: metrics",
    )
    start_ns, end_ns = meta.whole("request_start_ns"), meta.whole("request_end_ns")
    failed = None
    error = data.get("error")
    if error:
        code = error.get("code") if isinstance(error, Mapping) else None
        failed = f"status {code}" if code is not None else "error"
    elif metadata.get("was_cancelled"):
        failed = "cancelled"
    elif metadata.get("benchmark_phase", "profiling") != "profiling":
        failed = "warm-up"
    conversation = meta.text("x_correlation_id", needed=False) or meta.text("conversation_id", needed=False)
    turn = meta.whole("turn_index", needed=False)
    first_s = _seconds(metrics, values, "time_to_first_token")
    gaps = values.numbers("inter_chunk_latency") if isinstance(_raw(metrics, "inter_chunk_latency"), list) else None
    arrival_s = None if start_ns is None else start_ns / 1e9
    prompt = values.whole("usage_prompt_tokens", needed=False)
    output = values.whole("usage_completion_tokens", needed=False)
    return RequestRow(
        where=where,
        request_id=meta.text("x_request_id", needed=False),
        session=conversation if turn is not None else None,
        order=None,
        turn=turn if conversation is not None else None,
        # the server's own count first; aiperf's is of its tokenizer
        prompt_tokens=values.whole("input_sequence_length", needed=False) if prompt is None else prompt,
        output_tokens=values.whole("output_sequence_length", needed=False) if output is None else output,
        cached_tokens=values.whole("usage_prompt_cache_read_tokens", needed=False),
        arrival_s=arrival_s,
        first_token_s=None if first_s is None or arrival_s is None else arrival_s + first_s,
        finish_s=None if end_ns is None else end_ns / 1e9,
        token_gaps_s=None if gaps is None else _scaled(gaps, metrics, "inter_chunk_latency", where),
        failed=failed,
    )


def _raw(metrics: Mapping[str, Any], tag: str) -> Any:
    entry = metrics.get(tag)
    return entry.get("value") if isinstance(entry, Mapping) else None


def _unit(metrics: Mapping[str, Any], tag: str, where: str) -> float:
    unit = metrics[tag].get("unit")
    if unit not in _TO_SECONDS:
        raise InputError(f"{where}: {tag}: unit is {unit!r}; allowed: {', '.join(_TO_SECONDS)}")
    return _TO_SECONDS[unit]


def _seconds(metrics: Mapping[str, Any], values: Fields, tag: str) -> float | None:
    value = values.seconds(tag, needed=False)
    return None if value is None else value * _unit(metrics, tag, values.where)


def _scaled(gaps: list[float], metrics: Mapping[str, Any], tag: str, where: str) -> Gaps:
    return (np.asarray(gaps) * _unit(metrics, tag, where)).astype(np.float32)


AIPERF = Shape("aiperf records", frozenset({"metadata", "metrics"}), _read)
