"""The engine's thread: it loads, serves, and says when it fails."""

from __future__ import annotations

import io
import queue
from collections.abc import Callable

import pytest

from slotgrid.serve.engine import StepReport
from slotgrid.serve.events import EventLog
from slotgrid.serve.generation import Request
from slotgrid.serve.worker import Load, Worker
from tests.serve.conftest import Bench


def make_worker(
    make_bench: Callable[[], Bench],
) -> tuple[Worker, queue.Queue[tuple[StepReport | None, Load]], queue.Queue[BaseException]]:
    reports: queue.Queue[tuple[StepReport | None, Load]] = queue.Queue()
    failures: queue.Queue[BaseException] = queue.Queue()
    worker = Worker(
        lambda: make_bench().engine,
        cores=None,
        on_step=lambda report, load: reports.put((report, load)),
        on_failure=failures.put,
    )
    return worker, reports, failures


def request(name: str, max_tokens: int, order: int = 0) -> Request:
    return Request(id=name, prompt=(300, 301, 302), max_tokens=max_tokens, order=(order,))


def test_requests_run_and_can_be_cancelled(bench: Callable[..., Bench]) -> None:
    worker, reports, failures = make_worker(bench)
    worker.start()
    worker.add(request("a", 3))
    kinds = [reports.get(timeout=60)[0] for _ in range(3)]
    assert [report.kind for report in kinds if report] == ["prefill", "decode", "decode"]
    worker.add(request("long", 900))
    assert reports.get(timeout=60)[1].running == 1
    worker.cancel("long")
    worker.cancel("unknown")
    while (load := reports.get(timeout=60)[1]).running:
        pass
    assert (load.running, load.waiting, load.slots_in_use, load.capacity) == (0, 0, 0, 8)
    worker.close()
    assert failures.empty()


def test_what_loading_raises_is_raised_by_start() -> None:
    def fail() -> Bench:
        raise OSError("no weights")

    worker, _, _ = make_worker(fail)
    with pytest.raises(OSError, match="no weights"):
        worker.start()
    worker.close()


def test_a_failing_step_is_reported(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()

    def fail() -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(b.engine, "step", fail)
    worker, _, failures = make_worker(lambda: b)
    worker.start()
    worker.add(request("a", 1))
    assert str(failures.get(timeout=60)) == "device lost"
    worker.close()


class Full(io.StringIO):
    """A stream on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_the_event_log_and_is_said_once() -> None:
    said: list[OSError] = []
    log = EventLog(Full(), lambda: 0, said.append)
    for _ in range(3):
        log.write("release")
        log.flush()
    assert [error.strerror for error in said] == ["No space left on device"]
    with pytest.raises(OSError, match="No space left"):
        EventLog(Full(), lambda: 0).write("release")
