"""Workloads: what plans are drawn from, read from TOML or built in."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.plan import Client, InputPlan, Session, Turn
from slotgrid.toml_reader import Table, parse_toml
from slotgrid.workload.distributions import Distribution, read_tokens, read_wait
from slotgrid.workload.seeds import session_random

FORMAT = "slotgrid-workload/1"


@dataclass(frozen=True)
class Workload:
    """How sessions look: turns, token counts, tool waits, and how clients start and renew them.

    first_session_shorter: a client's first session has a random 1 to ``turns`` turns, so that clients that
    start together do not stay in step.
    cycle_s: clients start ``cycle_s / clients`` seconds apart; None or 0 starts them together.
    plan_id, session_id: patterns of ``{clients}``, ``{block}`` and ``{plan}``, ``{client}``, ``{session}``; the
    session id seeds the session's draws.
    """

    id: str
    description: str
    max_seq_len: int
    turns: int
    sessions_per_client: int
    first_session_shorter: bool
    cycle_s: float | None
    plan_id: str
    session_id: str
    first_new_tokens: Distribution
    later_new_tokens: Distribution
    output_tokens: Distribution
    tool_wait_s: Distribution
    explore_seeds: tuple[int, ...]
    evaluate_seeds: tuple[int, ...]
    blocks: tuple[int, ...]

    def draw(
        self,
        *,
        clients: int,
        seed: int,
        block: int = 0,
        plan_id: str | None = None,
        cycle_s: float | None = None,
        sessions_per_client: int | None = None,
        whole_first: bool = False,
    ) -> InputPlan:
        """Draw one plan of ``clients`` concurrent clients; the same arguments give the same plan.

        whole_first: no first session is shorter, whatever the workload says.

        Draw order per session: the turn count (first session of a client, only if shorter ones are asked for),
        then per turn the new tokens, the output tokens and, except on the last turn, the tool wait.
        Raises InputError when a count is below 1.
        """
        count = self.sessions_per_client if sessions_per_client is None else sessions_per_client
        for name, value in (("clients (--sessions)", clients), ("sessions per client", count)):
            if value < 1:
                raise InputError(f"{name}: {value}; allowed: at least 1")
        name = plan_id if plan_id is not None else self.plan_id.format(clients=clients, block=block)
        cycle = self.cycle_s if cycle_s is None else cycle_s
        stagger_s = (cycle or 0.0) / clients
        drawn = tuple(
            Client(
                c * stagger_s,
                tuple(
                    self._session(
                        self.session_id.format(plan=name, client=c, session=g), seed, first=g == 0 and not whole_first
                    )
                    for g in range(count)
                ),
            )
            for c in range(clients)
        )
        return InputPlan(name, drawn, self.max_seq_len)

    def _session(self, session_id: str, seed: int, *, first: bool) -> Session:
        rng = session_random(seed, session_id)
        turns = 1 + rng.randrange(self.turns) if first and self.first_session_shorter else self.turns
        drawn = []
        for t in range(turns):
            new_tokens = (self.first_new_tokens if t == 0 else self.later_new_tokens).draw(rng)
            output_tokens = self.output_tokens.draw(rng)
            wait_s = self.tool_wait_s.draw(rng) if t < turns - 1 else 0.0
            drawn.append(Turn(int(new_tokens), int(output_tokens), float(wait_s)))
        return Session(session_id, tuple(drawn))

    def to_dict(self) -> dict[str, Any]:
        """Identity and what is drawn, as JSON values."""
        return {
            "id": self.id,
            "description": self.description,
            "max_seq_len": self.max_seq_len,
            "turns": self.turns,
            "sessions_per_client": self.sessions_per_client,
            "first_session_shorter": self.first_session_shorter,
            "cycle_s": self.cycle_s,
            "first_new_tokens": self.first_new_tokens.describe(),
            "later_new_tokens": self.later_new_tokens.describe(),
            "output_tokens": self.output_tokens.describe(),
            "tool_wait_s": self.tool_wait_s.describe(),
            "explore_seeds": list(self.explore_seeds),
            "evaluate_seeds": list(self.evaluate_seeds),
            "blocks": list(self.blocks),
        }


def built_in_workloads() -> list[str]:
    """Names of the workloads inside the package, sorted."""
    folder = resources.files("slotgrid.workload") / "data"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_workload(name: str | Path) -> Workload:
    """A built-in workload by name, or a TOML file by path. Raises InputError naming file and key."""
    text = str(name)
    if text in built_in_workloads():
        entry = resources.files("slotgrid.workload") / "data" / f"{text}.toml"
        return workload_from_toml(entry.read_bytes(), f"{text}.toml", Path())
    if not text.endswith(".toml") and not Path(text).exists():
        raise InputError(
            f"workload {text!r}: no such built-in workload or file; built in: {', '.join(built_in_workloads())}"
        )
    return workload_from_toml(files.read_bytes(text), text, Path(text).parent)


def workload_from_toml(data: bytes, where: str, folder: Path) -> Workload:
    """Parse workload TOML (format: docs/formats.md); files it names are relative to ``folder``."""
    top = parse_toml(data, where)
    stated = top.text("format")
    if stated != FORMAT:
        raise InputError(f"{top.at('format')} is {stated!r}; this version reads {FORMAT!r}")
    search = top.table("search") if top.has("search") else Table({}, where, "search")
    workload = Workload(
        id=top.text("id"),
        description=top.text("description", ""),
        max_seq_len=top.whole("max_seq_len", 1),
        turns=top.whole("turns", 1),
        sessions_per_client=top.whole("sessions_per_client", 1, 1),
        first_session_shorter=top.flag("first_session_shorter", False),
        cycle_s=top.number("cycle_s", 0) if top.has("cycle_s") else None,
        plan_id=_pattern(top, "plan_id", "n{clients}b{block}", ("clients", "block")),
        session_id=_pattern(top, "session_id", "{plan}/c{client}s{session}", ("plan", "client", "session")),
        first_new_tokens=read_tokens(top.table("first_new_tokens"), folder),
        later_new_tokens=read_tokens(top.table("later_new_tokens"), folder),
        output_tokens=read_tokens(top.table("output_tokens"), folder),
        tool_wait_s=read_wait(top.table("tool_wait"), folder),
        explore_seeds=search.wholes("explore_seeds", 0, (1, 2, 3)),
        evaluate_seeds=search.wholes("evaluate_seeds", 0, (11, 12, 13)),
        blocks=search.wholes("blocks", 0, (0, 1, 2)),
    )
    search.finish()
    top.finish()
    return workload


def _pattern(table: Table, key: str, default: str, allowed: Sequence[str]) -> str:
    pattern = table.text(key, default)
    try:
        fields = [field for field in string.Formatter().parse(pattern) if field[1] is not None]
        names = [name for _, name, _, _ in fields if name is not None]
        if any(spec or conversion for _, _, spec, conversion in fields):
            raise InputError(f"{table.at(key)} is {pattern!r}: plain fields only, without ! or :")
    except ValueError as error:
        raise InputError(f"{table.at(key)} is {pattern!r}: {error}") from None
    for name in names:
        if name not in allowed:
            choices = ", ".join(f"{{{a}}}" for a in allowed)
            raise InputError(f"{table.at(key)}: unknown field {{{name}}}; allowed: {choices}")
    return pattern
