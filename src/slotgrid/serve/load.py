"""From an artifact to an engine that is ready to step."""

from __future__ import annotations

from collections.abc import Callable

from slotgrid.config import ServingConfig
from slotgrid.serve.artifact import Artifact
from slotgrid.serve.engine import Engine
from slotgrid.serve.events import EventLog
from slotgrid.serve.executor import Executor
from slotgrid.serve.scheduler import Scheduler


def make_scheduler(artifact: Artifact, config: ServingConfig, rules: str) -> Scheduler:
    """The scheduler for an artifact. Raises InputError for unknown rules or too few slots."""
    return Scheduler(
        slots=config.slots, max_running=config.max_running, block_tokens=artifact.prefill_chunk, rules=rules
    )


def load_engine(
    artifact: Artifact,
    *,
    config: ServingConfig,
    rules: str,
    events: EventLog,
    token_bytes: Callable[[int], bytes] | None = None,
) -> Engine:
    """Load the executables, run each once and give the engine. Call it on the core that is to compute."""
    scheduler = make_scheduler(artifact, config, rules)
    executor = Executor(artifact)
    executor.warm_up()
    return Engine(
        runner=executor,
        scheduler=scheduler,
        config=config,
        prefill_chunk=artifact.prefill_chunk,
        events=events,
        token_bytes=token_bytes,
    )
