"""What is calibrated: something plans can be replayed on. Here the static engine in this process, on the CPU clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import RunError
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.inprocess import EVENTS, CpuClock, drive
from slotgrid.plan import InputPlan

if TYPE_CHECKING:
    from slotgrid.serve.artifact import Artifact
    from slotgrid.serve.executor import Executor


@dataclass(frozen=True)
class Known:
    """What is known of a target before anything is measured; None and empty where it does not say.

    clock: what its times are ("cpu" or "wall"). block_tokens and chunk_tokens are not here: they are measured.
    """

    name: str
    model_id: str
    hardware: str
    software: str
    clock: str
    max_seq_len: int | None
    config: ServingConfig | None
    identity: Mapping[str, Any]


class Target(Protocol):
    """Something that computes. ``replay`` runs a plan to its end and gives its rows in plan order.

    folder: for whatever else it wants to leave there. Raises RunError when a request fails.
    """

    @property
    def known(self) -> Known: ...

    def replay(self, plan: InputPlan, folder: Path) -> list[Seen]: ...


class InProcessTarget:
    """A compiled artifact in this process: the CPU time of each step moves the clock, nothing else does.

    Each replay begins with empty slots. Its event log stays in the folder.
    """

    def __init__(
        self, artifact: str | Path, *, rules: str = "real", slots: int | None = None, max_running: int | None = None
    ) -> None:
        from slotgrid.serve.artifact import load_artifact
        from slotgrid.serve.load import make_scheduler

        self._made: Artifact = load_artifact(artifact)
        self._config = self._made.config(slots, max_running)
        self._rules = rules
        # wrong rules or slots are known before anything is loaded
        make_scheduler(self._made, self._config, rules)
        self._executor: Executor | None = None

    @property
    def known(self) -> Known:
        made = self._made
        return Known(
            name=str(made.folder),
            model_id=made.shape.name,
            hardware=made.host,
            software=", ".join(f"{name} {version}" for name, version in sorted(made.versions.items())),
            clock="cpu",
            max_seq_len=made.max_seq_len,
            config=self._config,
            identity={
                "artifact": str(made.folder.resolve()),
                "graphs": {graph.name: graph.sha256 for graph in made.graphs},
                "rules": self._rules,
                "config": self._config.to_dict(),
            },
        )

    def replay(self, plan: InputPlan, folder: Path) -> list[Seen]:
        from slotgrid.serve.backend import on_cores, split_cores
        from slotgrid.serve.engine import Engine
        from slotgrid.serve.events import EventLog
        from slotgrid.serve.executor import Executor
        from slotgrid.serve.generation import Request
        from slotgrid.serve.load import make_scheduler

        made, arrivals = self._made, {}

        class Watched(Engine):
            def add(self, request: Request, arrival_ns: int | None = None) -> None:
                arrivals[request.id] = (request, arrival_ns)
                super().add(request, arrival_ns)

        clock = CpuClock()
        cores = split_cores()
        with on_cores(None if cores is None else cores[0]):
            if self._executor is None:
                self._executor = Executor(made)
                self._executor.warm_up()
            with files.replacing(folder / EVENTS) as path, open(path, "w", encoding="utf-8") as stream:
                engine = Watched(
                    runner=self._executor,
                    scheduler=make_scheduler(made, self._config, self._rules),
                    config=self._config,
                    prefill_chunk=made.prefill_chunk,
                    events=EventLog(stream, clock),
                )
                engine.log_start(versions=made.versions, clock="cpu")
                times: dict[str, list[float]] = {}
                cached: dict[str, int] = {}
                for report in drive(engine, clock, plan, 0.0, made.shape.vocabulary):
                    if report.request is not None:
                        cached[report.request] = report.cached_tokens or 0
                    for output in report.outputs:
                        times.setdefault(output.request, []).append(report.end_ns * 1e-9)
        rows = []
        for name, (request, arrival_ns) in arrivals.items():
            if name not in times:
                raise RunError(f"plan {plan.plan_id}: request {name} was never served")
            rows.append(
                Seen(
                    session=request.session or 0,
                    turn=request.turn or 0,
                    prompt_tokens=len(request.prompt),
                    cached_tokens=cached[name],
                    arrival_s=(arrival_ns or 0) * 1e-9,
                    finish_s=times[name][-1],
                    token_times_s=tuple(times[name]),
                )
            )
        return sorted(rows, key=lambda row: (row.session, row.turn))
