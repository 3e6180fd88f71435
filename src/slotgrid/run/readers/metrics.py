"""``/metrics`` snapshots in Prometheus text form, as vLLM writes them (parsed with prometheus_client).

Counters are sums since the server started. With one snapshot they are taken as they are; with several, the first
(by name: before or start first, after or end last, else natural order) is subtracted from the last.

``vllm:prefix_cache_hits_total`` counts the inner block layer of vllm-rbln and over-reports: it is shown beside the
real reuse and never taken for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from slotgrid.errors import InputError
from slotgrid.run.readers.stream import Meter, Piece

# sample name -> name in our results
_NAMES = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prompt_tokens_cached_total": "prompt_tokens_cached",
    "vllm:prefix_cache_queries_total": "prefix_cache_queries",
    "vllm:prefix_cache_hits_total": "prefix_cache_hits",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:request_prefill_time_seconds_sum": "request_prefill_s",
    "vllm:request_prefill_time_seconds_count": "request_prefill_count",
}


def read_metrics(
    paths: Sequence[Path], meter: Meter | None, warn: Callable[[str], None]
) -> tuple[dict[str, float], bool]:
    """Counters by short name over the run, and whether they are a difference of two snapshots.

    Raises InputError naming the file that is not Prometheus text. Counters that go back give a warning and nothing.
    """
    ordered = sorted(paths, key=_place)
    first, last = _snapshot(ordered[0], meter, warn), None
    for path in ordered[1:]:
        last = _snapshot(path, meter, warn)
    if last is None:
        return first, False
    back = [name for name, value in first.items() if last.get(name, value) < value]
    if back:
        warn(
            f"{ordered[-1].name}: {back[0]} is smaller than in {ordered[0].name}; "
            "the server was restarted in between, so its counters are not used"
        )
        return {}, True
    return {name: value - first.get(name, 0.0) for name, value in last.items()}, True


def _place(path: Path) -> tuple[int, list[tuple[int, str]]]:
    name = path.name.lower()
    rank = 0 if re.search(r"before|start|begin", name) else 2 if re.search(r"after|end|final", name) else 1
    return rank, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _snapshot(path: Path, meter: Meter | None, warn: Callable[[str], None]) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    piece = Piece(path)
    data = b"".join(piece.blocks(meter))
    if piece.cut:
        raise InputError(f"{path}: the gzip stream ends in the middle")
    found: dict[str, float] = {}
    models: set[str] = set()
    samples = 0
    try:
        for family in text_string_to_metric_families(data.decode("utf-8")):
            for sample in family.samples:
                samples += 1
                name = _NAMES.get(sample.name)
                if name is not None:
                    found[name] = found.get(name, 0.0) + float(sample.value)
                    models.add(sample.labels.get("model_name", ""))
    except (ValueError, KeyError, IndexError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: not Prometheus text: {text}") from None
    if not samples:
        raise InputError(f"{path}: no metrics in it; expected Prometheus text as /metrics gives it")
    if len(models) > 1:
        warn(f"{path.name}: counters of {len(models)} models are added up: {', '.join(sorted(models))}")
    if not found:
        warn(f"{path.name}: none of the known vllm counters are in it")
    return found
