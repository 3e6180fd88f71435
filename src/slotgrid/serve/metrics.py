"""Prometheus metrics under vLLM's names, so that its dashboards and scripts read this server."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from slotgrid.serve.engine import Output, StepReport
from slotgrid.serve.worker import Load

_LABELS = ("model_name", "engine")
_NS = 1e-9
_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.4, 0.8, 1.6)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


@dataclass
class _Seen:
    """Times of one request, nanoseconds."""

    arrival_ns: int
    admit_ns: int = 0
    last_token_ns: int = 0
    first_token_ns: int = 0
    prompt_tokens: int = 0
    generated: int = 0


@dataclass
class Metrics:
    """Counts step reports. Not thread-safe: call it from the server's thread only."""

    model_name: str
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of admitted requests.")
        self._cached = self._counter("prompt_tokens_cached", "Prompt tokens taken from a slot.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the slots.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the slots.")
        self._generated = self._counter("generation_tokens", "Generated tokens.")
        self._success = Counter(
            "vllm:request_success",
            "Finished requests by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._running = self._gauge("num_requests_running", "Requests in the decode batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests in the queue.")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of the usable KV slots that running requests hold.")
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self._itl = self._histogram("inter_token_latency_seconds", "Between tokens of a request.", _STEP_SECONDS)
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Decode time by tokens after the first.", _STEP_SECONDS
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.")
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to admission.")
        self._prefill = self._histogram("request_prefill_time_seconds", "Prefill of a request.")
        self._decode = self._histogram("request_decode_time_seconds", "From the first to the last token.")
        self._inference = self._histogram("request_inference_time_seconds", "From admission to the last token.")
        self._prompts = self._histogram("request_prompt_tokens", "Prompt tokens by request.", _TOKENS)
        self._outputs = self._histogram("request_generation_tokens", "Generated tokens by request.", _TOKENS)
        self._computed = self._histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens computed in prefill by request.", _TOKENS
        )

    def arrived(self, request: str, t_ns: int) -> None:
        self._seen[request] = _Seen(t_ns)

    def gone(self, request: str) -> None:
        """The request was given up; nothing more is expected of it."""
        if self._seen.pop(request, None) is not None:
            self._success.labels(self.model_name, "0", "abort").inc()

    def stepped(self, report: StepReport) -> None:
        if report.kind == "prefill":
            self._prefilled(report)
        self._generated.inc(len(report.outputs))
        for output in report.outputs:
            seen = self._seen.get(output.request)
            if seen is not None:
                self._token(output, seen, report)

    def loaded(self, load: Load) -> None:
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._usage.set(load.slots_in_use / load.capacity)

    def text(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def _prefilled(self, report: StepReport) -> None:
        prompt, cached = report.prompt_tokens or 0, report.cached_tokens or 0
        self._prompt.inc(prompt)
        self._cached.inc(cached)
        self._queries.inc(prompt)
        self._hits.inc(cached)
        self._computed.observe(prompt - cached)
        self._prefill.observe((report.end_ns - report.start_ns) * _NS)
        seen = self._seen.get(report.request or "")
        if seen is not None:
            seen.admit_ns, seen.first_token_ns, seen.prompt_tokens = report.start_ns, report.end_ns, prompt
            self._queue.observe((report.start_ns - seen.arrival_ns) * _NS)
            self._ttft.observe((report.end_ns - seen.arrival_ns) * _NS)

    def _token(self, output: Output, seen: _Seen, report: StepReport) -> None:
        if seen.generated:
            self._itl.observe((report.end_ns - seen.last_token_ns) * _NS)
        seen.generated += 1
        seen.last_token_ns = report.end_ns
        if output.finish_reason is None:
            return
        del self._seen[output.request]
        self._success.labels(self.model_name, "0", output.finish_reason).inc()
        decode_s = (report.end_ns - seen.first_token_ns) * _NS
        self._e2e.observe((report.end_ns - seen.arrival_ns) * _NS)
        self._decode.observe(decode_s)
        self._inference.observe((report.end_ns - seen.admit_ns) * _NS)
        self._prompts.observe(seen.prompt_tokens)
        self._outputs.observe(seen.generated)
        if seen.generated > 1:
            self._per_token.observe(decode_s / (seen.generated - 1))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(self.model_name, "0")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(self.model_name, "0")

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...] = _SECONDS) -> Histogram:
        made = Histogram(f"vllm:{name}", text, _LABELS, registry=self.registry, buckets=bounds)
        return made.labels(self.model_name, "0")
