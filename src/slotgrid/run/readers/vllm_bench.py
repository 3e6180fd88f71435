"""The result file of ``vllm bench serve --save-result --save-detailed``.

Written against ``vllm/benchmarks/serve.py`` of vLLM 0.22 and later: one JSON object whose lists ``input_lens``,
``output_lens``, ``ttfts``, ``itls``, ``errors`` and, in newer versions, ``start_times`` and ``latencies`` hold one
entry a request, in the order of sending. It carries no request ids, no sessions and no cached tokens: such requests
cannot be joined with a log and their reuse is not observable. A failed request has a non-empty error text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from slotgrid.errors import InputError
from slotgrid.run.readers.rows import Fields, RequestRow

NAME = "vllm bench serve result"


def is_result(data: Mapping[str, Any]) -> bool:
    """Whether parsed JSON looks like a result of ``vllm bench serve``."""
    return "request_throughput" in data and "total_input_tokens" in data


def read_result(data: Mapping[str, Any], where: str) -> Iterator[RequestRow]:
    """Rows of a result. Raises InputError when it was written without ``--save-detailed`` or its lists differ in
    length."""
    f = Fields(data, where)
    inputs, outputs = f.numbers("input_lens"), f.numbers("output_lens")
    if inputs is None or outputs is None:
        raise InputError(f"{where}: input_lens and output_lens are missing; run vllm bench serve with --save-detailed")
    count = len(inputs)
    columns: dict[str, list[Any]] = {}
    for key in ("ttfts", "itls", "errors", "start_times", "latencies"):
        value = data.get(key)
        columns[key] = value if isinstance(value, list) else [None] * count
    for key, column in [("output_lens", outputs), *columns.items()]:
        if len(column) != count:
            raise InputError(f"{where}: {key} has {len(column)} entries, input_lens {count}; one each is needed")
    for i in range(count):
        entry = Fields(
            {
                "input_len": data["input_lens"][i],
                "output_len": data["output_lens"][i],
                "ttft": columns["ttfts"][i],
                "itl": columns["itls"][i],
                "start_time": columns["start_times"][i],
                "latency": columns["latencies"][i],
            },
            f"{where}: entry {i}",
        )
        start_s, ttft_s = entry.seconds("start_time", nullable=True), entry.seconds("ttft", nullable=True)
        gaps, latency_s = entry.numbers("itl"), entry.seconds("latency", nullable=True)
        if latency_s is None and ttft_s is not None and gaps is not None:
            latency_s = ttft_s + sum(gaps)
        error = columns["errors"][i]
        yield RequestRow(
            where=entry.where,
            request_id=None,
            session=None,
            order=None,
            turn=None,
            prompt_tokens=entry.whole("input_len"),
            output_tokens=entry.whole("output_len"),
            cached_tokens=None,
            arrival_s=start_s,
            first_token_s=None if start_s is None or ttft_s is None else start_s + ttft_s,
            finish_s=None if start_s is None or latency_s is None else start_s + latency_s,
            token_gaps_s=None if gaps is None else np.asarray(gaps, np.float32),
            failed=f"error: {str(error).splitlines()[-1][:60]}" if error else None,
        )
