"""Replay a plan against an OpenAI-compatible server over HTTP and write a run directory.

Every client is one closed loop: send a turn, wait for the whole answer, wait for the tool, send the next; its sessions
follow one another. ``slotgrid diagnose`` reads the result like any other run.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid._version import __version__
from slotgrid.errors import InputError, RunError
from slotgrid.measure.clients import Clients, Status
from slotgrid.measure.garbage import only_new_garbage
from slotgrid.measure.http import Endpoint, get_text
from slotgrid.measure.interrupts import ENDING
from slotgrid.measure.journal import Journal
from slotgrid.measure.lag import LoopClock, client_lag
from slotgrid.measure.measured import measured_run
from slotgrid.measure.misses import settle_misses
from slotgrid.measure.options import ReplayOptions, WindowRule
from slotgrid.measure.traits import ServerTraits, find_traits
from slotgrid.plan import InputPlan
from slotgrid.run import Run, save_run

ROWS = "requests.jsonl"
# how often the run looks after itself: progress, the server's process, its own lag
_LOOK_S = 0.1


def replay_over_http(
    *,
    plan: InputPlan,
    base_url: str | Endpoint,
    output: str | Path | None = None,
    options: ReplayOptions | None = None,
    token_times: bool | None = None,
    window: WindowRule | None = None,
    traits: ServerTraits | None = None,
    progress: Callable[[Status], None] | None = None,
    watch: Callable[[], str | None] | None = None,
) -> Run:
    """Run a plan against a server and return what was measured; write it to the directory ``output``, or nowhere.

    token_times, window: override the options. traits: of an earlier call of :func:`server_traits`, so that the
    server is not asked again. watch: asked every 0.1 s; text it returns ends the run with that reason (the server
    died). The run ends early, with what it has, when the server is gone, on SIGINT, SIGTERM or SIGHUP, and on a full
    disk; ``run.details["valid"]`` is then False and ``run.details["invalid_reasons"]`` says why, also when some
    requests failed. Raises InputError for a directory that has a run already or a plan that does not fit the server,
    RunError when no run was started because the server cannot be reached or refuses a small request.
    """
    endpoint = base_url if isinstance(base_url, Endpoint) else Endpoint(base_url)
    chosen = options or ReplayOptions()
    changes: dict[str, Any] = {}
    if token_times is not None:
        changes["token_times"] = token_times
    if window is not None:
        changes["window"] = window
    chosen = replace(chosen, **changes)
    if chosen.window is not None:
        chosen = replace(chosen, window=chosen.window.of(plan))
    if output is not None:
        check_free(Path(output))
        return asyncio.run(_replay(plan, endpoint, Path(output), chosen, traits, progress, watch))
    with tempfile.TemporaryDirectory(prefix="slotgrid-") as folder:
        return asyncio.run(_replay(plan, endpoint, Path(folder), chosen, traits, progress, watch))


def server_traits(base_url: str | Endpoint, *, model: str | None = None, prompts: str = "auto") -> ServerTraits:
    """What a server can do; sends it a small request or two. Raises RunError when it cannot be reached or refuses."""
    endpoint = base_url if isinstance(base_url, Endpoint) else Endpoint(base_url)

    async def find() -> ServerTraits:
        async with endpoint.session() as session:
            return await find_traits(session, endpoint, model=model, prompts=prompts)

    return asyncio.run(find())


def check_free(folder: Path) -> None:
    """Raise InputError when a directory holds (part of) a run: a measured run is never overwritten."""
    for name in ("run.json", ROWS):
        if (folder / name).exists():
            raise InputError(f"{folder}: {name} is there already; give another directory, or remove that run first")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: a file; give a directory for the run")


def invalid_reasons(run: Run) -> tuple[str, ...]:
    """Why a replayed run must not be used for a comparison; empty when it may."""
    return tuple(run.details.get("invalid_reasons", ()))


async def _replay(
    plan: InputPlan,
    endpoint: Endpoint,
    folder: Path,
    options: ReplayOptions,
    traits: ServerTraits | None,
    progress: Callable[[Status], None] | None,
    watch: Callable[[], str | None] | None,
) -> Run:
    async with endpoint.session() as session:
        known = traits or await find_traits(session, endpoint, model=options.model, prompts=options.prompts)
        if known.max_seq_len is not None:
            plan.check_context(known.max_seq_len, f"what {endpoint.root} serves,")
        metrics: list[str] = []

        async def snapshot(name: str) -> None:
            text = (await get_text(session, endpoint, "/metrics"))[0] if options.metrics else None
            if text:
                # a full disk shows in the rows, too, and is said there
                with suppress(InputError):
                    files.write_text(folder / name, text)
                    metrics.append(name)

        with _as_run_error(), Journal(folder / ROWS) as journal:
            plan.save(folder / "plan.json")
            await snapshot("metrics-before.prom")
            loop_clock = LoopClock()
            clients = Clients(plan, endpoint, session, known, options, journal)
            started = datetime.datetime.now(datetime.UTC)
            with _on_signals(lambda name: clients.stop(f"stopped by {name}")):
                ticking = asyncio.ensure_future(loop_clock.run())
                looking = asyncio.ensure_future(_look(clients, progress, watch))
                try:
                    with only_new_garbage():
                        await clients.run()
                finally:
                    for task in (ticking, looking):
                        task.cancel()
                    await asyncio.gather(ticking, looking, return_exceptions=True)
                if progress is not None:
                    progress(clients.status())
                await snapshot("metrics-after.prom")
    settled = settle_misses(clients.rows, _counters([folder / name for name in metrics]))
    lag = client_lag(clients.late_s, loop_clock.delays_s, clients.spans_s, len(plan.clients))
    run = measured_run(
        plan=plan,
        clients=clients,
        lag=lag,
        details={
            "base_url": endpoint.root,
            "server": known.to_dict(),
            "started_at": started.isoformat(),
            "finished_at": datetime.datetime.now(datetime.UTC).isoformat(),
            "metrics_files": metrics,
            "misses_by_counters": settled,
            "options": options.to_dict(),
            "client": {"slotgrid": __version__, "python": platform.python_version(), "host": platform.node()},
        },
    )
    try:
        save_run(run, folder)
    except InputError as error:
        raise RunError("; ".join([*invalid_reasons(run), str(error)])) from None
    return run


def _counters(snapshots: Sequence[Path]) -> dict[str, float]:
    """What the server counted between two snapshots; nothing where there are not both or they cannot be read."""
    from slotgrid.run.readers.metrics import read_metrics

    if len(snapshots) < 2:
        return {}
    try:
        return read_metrics(snapshots, None, lambda text: None)[0]
    except InputError:
        return {}


async def _look(
    clients: Clients, progress: Callable[[Status], None] | None, watch: Callable[[], str | None] | None
) -> None:
    while True:
        if progress is not None:
            progress(clients.status())
        reason = None if watch is None else watch()
        if reason is not None:
            clients.stop(reason)
        await asyncio.sleep(_LOOK_S)


@contextmanager
def _as_run_error() -> Iterator[None]:
    """A run that cannot be written has failed; it is not the user's input that is wrong."""
    try:
        yield
    except InputError as error:
        raise RunError(str(error)) from None


@contextmanager
def _on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """A signal ends the run in order; whoever handled it before does so again afterwards. Not in other threads than the
    main one: only that gets signals."""
    loop = asyncio.get_running_loop()
    before = {}
    with suppress(RuntimeError, ValueError, NotImplementedError):
        for number in ENDING:
            handler = signal.getsignal(number)
            if handler is signal.SIG_IGN:
                # nohup
                continue
            loop.add_signal_handler(number, stop, number.name)
            before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
