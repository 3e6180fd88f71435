"""A server behind an OpenAI-compatible API as the target of a calibration."""

from __future__ import annotations

import itertools
import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import replace
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

# more tokens that share their time with another, and times are not those of steps
_TOGETHER = 1 / 3
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
            # left by a replay that did not end; the server may still hold what was sent of it
            shutil.rmtree(folder)
            plan = with_other_prompts(plan, secrets.token_hex(4))
        run = replay_over_http(
            plan=plan, base_url=self._endpoint, output=folder, options=self._options, traits=self._traits
        )
        reasons = run.details["invalid_reasons"]
        if not _INTERRUPTED.isdisjoint(reasons):
            raise KeyboardInterrupt
        if reasons:
            raise RunError(f"{plan.plan_id}: {'; '.join(reasons)}")
        rows = read_rows(folder / ROWS)
        check_one_by_one(rows, plan.plan_id)
        return [seen for seen, _ in rows]


def with_other_prompts(plan: InputPlan, name: str) -> InputPlan:
    """The same lengths and waits; no prompt begins as one of the plan's."""
    return replace(
        plan,
        plan_id=f"{plan.plan_id}-{name}",
        clients=tuple(
            replace(
                client,
                sessions=tuple(
                    s if s.prefix_id is None else replace(s, prefix_id=f"{s.prefix_id}-{name}") for s in client.sessions
                ),
            )
            for client in plan.clients
        ),
    )


def check_one_by_one(rows: Sequence[tuple[Seen, int]], name: str) -> None:
    """Raise RunError where tokens do not come one by one: the times between them are then not steps."""
    times = tokens = together = 0
    for row, output_tokens in rows:
        if output_tokens > 1:
            times += len(row.token_times_s)
            tokens += output_tokens
            together += sum(a == b for a, b in itertools.pairwise(row.token_times_s))
    if abs(tokens - times) > _TOGETHER * tokens or together > _TOGETHER * tokens:
        raise RunError(
            f"{name}: {tokens} tokens came at {times - together} times: several in one event or at once, so that steps "
            "cannot be seen; let the server stream every token by itself (vLLM: --stream-interval 1, no speculative "
            "decoding), without a proxy that collects them"
        )


def read_rows(path: Path) -> list[tuple[Seen, int]]:
    """The rows of a replay over HTTP in plan order, and how many tokens each generated. The planned prompt length where
    the server does not count it."""
    rows = []
    for line in files.read_bytes(path).splitlines():
        row = json.loads(line)
        prompt = row["prompt_tokens"]
        seen = Seen(
            session=row["session"],
            turn=row["turn"],
            prompt_tokens=row["planned_prompt_tokens"] if prompt is None else prompt,
            cached_tokens=row["cached_tokens"],
            arrival_s=row["arrival_s"],
            finish_s=row["finish_s"],
            token_times_s=tuple(row["token_times_s"]),
        )
        tokens = row["output_tokens"]
        rows.append((seen, len(seen.token_times_s) if tokens is None else tokens))
    return sorted(rows, key=lambda pair: (pair[0].session, pair[0].turn))


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
