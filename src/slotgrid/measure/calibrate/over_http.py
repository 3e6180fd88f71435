"""A server behind an OpenAI-compatible API as the target of a calibration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError, RunError
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.target import Known
from slotgrid.measure.http import Endpoint
from slotgrid.measure.interrupts import ENDING
from slotgrid.measure.options import ReplayOptions
from slotgrid.measure.replay import ROWS, replay_over_http, server_traits
from slotgrid.plan import InputPlan

_INTERRUPTED = frozenset(f"stopped by {number.name}" for number in ENDING)


class HttpTarget:
    """Replays over HTTP, wall clock. Slots keep what earlier replays left in them; prompts are never the same twice.

    config: what is known of the server's configuration, e.g. from its event log. Asks the server once for what it can;
    raises RunError when it cannot be reached.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        model: str | None = None,
        prompts: str = "auto",
        config: ServingConfig | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._traits = server_traits(endpoint, model=model, prompts=prompts)
        self._config = config
        # a request that is sent twice would take two slots
        self._options = ReplayOptions(model=model, prompts=prompts, token_times=True, retries=0, metrics=False)

    @property
    def known(self) -> Known:
        traits = self._traits
        return Known(
            name=self._endpoint.root,
            model_id=traits.model,
            hardware="",
            software="",
            clock="wall",
            max_seq_len=traits.max_seq_len,
            config=self._config,
            identity={
                "base_url": self._endpoint.root,
                "model": traits.model,
                "prompts": "ids" if traits.exact else "text",
                "max_seq_len": traits.max_seq_len,
            },
        )

    def replay(self, plan: InputPlan, folder: Path) -> list[Seen]:
        if folder.exists():
            # left by a replay that did not end
            shutil.rmtree(folder)
        run = replay_over_http(
            plan=plan, base_url=self._endpoint, output=folder, options=self._options, traits=self._traits
        )
        reasons = run.details["invalid_reasons"]
        if not _INTERRUPTED.isdisjoint(reasons):
            raise KeyboardInterrupt
        if reasons:
            raise RunError(f"{plan.plan_id}: {'; '.join(reasons)}")
        return read_rows(folder / ROWS)


def read_rows(path: Path) -> list[Seen]:
    """The rows of a replay over HTTP in plan order. The planned prompt length where the server does not count it."""
    rows = []
    for line in files.read_bytes(path).splitlines():
        row = json.loads(line)
        prompt = row["prompt_tokens"]
        rows.append(
            Seen(
                session=row["session"],
                turn=row["turn"],
                prompt_tokens=row["planned_prompt_tokens"] if prompt is None else prompt,
                cached_tokens=row["cached_tokens"],
                arrival_s=row["arrival_s"],
                finish_s=row["finish_s"],
                token_times_s=tuple(row["token_times_s"]),
            )
        )
    return sorted(rows, key=lambda row: (row.session, row.turn))


def config_of_events(path: Path) -> ServingConfig:
    """The configuration that the first event of a server's log states. Raises InputError when it states none."""
    try:
        with open(path, "rb") as stream:
            line = stream.readline()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    event = files.parse_json(line, f"{path}: line 1")
    stated = event.get("config") if isinstance(event, dict) and event.get("event") == "start" else None
    if not isinstance(stated, dict) or "buckets" not in stated:
        raise InputError(f"{path}: line 1: not a start event with a config; the log of this server does not state it")
    return ServingConfig.from_dict(stated)
