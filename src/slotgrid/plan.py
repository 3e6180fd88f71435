"""The fixed input of a run: clients, their sessions, the turns of each.

A client runs its sessions one after another. A turn appends ``new_tokens`` to the context, generates exactly
``output_tokens`` and then waits ``tool_wait_s`` for its tool; its prompt is everything before it plus its
``new_tokens``. A session's last turn has no wait.

Files: ``slotgrid-plan/1`` JSON (docs/formats.md), and two published formats that are read as they are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError

FORMAT = "slotgrid-plan/1"
# about three centuries; also what keeps NaN and infinity out
_LONGEST_S = 1e10


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: tokens appended, tokens generated, seconds of tool wait after the answer.

    ``arrival_s``, when given, fixes when the request is sent (seconds from the start of the run).
    """

    new_tokens: int
    output_tokens: int
    tool_wait_s: float = 0.0
    arrival_s: float | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation whose context grows turn by turn.

    prefix_id, prefix_tokens: the first ``prefix_tokens`` of the first prompt are the same in every session with this
    ``prefix_id`` (a system prompt); None and 0 when nothing is shared.
    """

    id: str
    turns: tuple[Turn, ...]
    prefix_id: str | None = None
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    """One closed loop: starts at ``start_s`` and runs its sessions one after another."""

    start_s: float
    sessions: tuple[Session, ...]


@dataclass(frozen=True)
class InputPlan:
    """The input of a run. Built by a workload, read from a file, or with :meth:`from_turns`.

    max_seq_len: most tokens a sequence may reach, or None when unknown (the profile's slot length then decides).
    turnaround_s: seconds between an answer and the client's next request besides the tool wait, or None.

    Raises InputError naming client, session, turn and field when a value is not allowed.
    """

    plan_id: str
    clients: tuple[Client, ...]
    max_seq_len: int | None = None
    turnaround_s: float | None = None

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def from_turns(
        cls,
        sessions: Sequence[Sequence[Sequence[float]]],
        *,
        plan_id: str = "plan",
        max_seq_len: int | None = None,
        turnaround_s: float | None = None,
    ) -> InputPlan:
        """One client per session, all starting at 0; a turn is [new_tokens, output_tokens, tool_wait_s]."""
        clients = []
        for s, turns in enumerate(sessions):
            built = []
            if not isinstance(turns, Sequence):
                raise InputError(f"plan {plan_id}: client {s}, session 0: {turns!r} is not a list of turns")
            for t, turn in enumerate(turns):
                if not isinstance(turn, Sequence) or len(turn) != 3:
                    raise InputError(
                        f"plan {plan_id}: client {s}, session 0, turn {t}: {turn!r} is not "
                        "[new_tokens, output_tokens, tool_wait_s]"
                    )
                built.append(Turn(turn[0], turn[1], turn[2]))  # type: ignore[arg-type]  # checked in __post_init__
            clients.append(Client(0.0, (Session(f"s{s}", tuple(built)),)))
        return cls(plan_id, tuple(clients), max_seq_len, turnaround_s)

    # --- reading off -------------------------------------------------------------------------------

    def sessions(self) -> Iterator[tuple[int, Session]]:
        """(client index, session) in plan order; the position is the ``session`` index of every table."""
        for c, client in enumerate(self.clients):
            for session in client.sessions:
                yield c, session

    @property
    def session_count(self) -> int:
        """Sessions of all clients."""
        return sum(len(client.sessions) for client in self.clients)

    @property
    def turn_count(self) -> int:
        """Turns of all sessions; each is one request."""
        return sum(len(session.turns) for _, session in self.sessions())

    @property
    def longest_context_tokens(self) -> int:
        """Most tokens any sequence reaches: prompt plus output of its last turn."""
        return max(
            sum(turn.new_tokens + turn.output_tokens for turn in session.turns) for _, session in self.sessions()
        )

    @property
    def total_wait_s(self) -> float:
        """Tool waits of all turns, seconds."""
        return sum(turn.tool_wait_s for _, session in self.sessions() for turn in session.turns)

    @property
    def open_loop(self) -> bool:
        """No client renews its session, and they do not all start together: sessions arrive by themselves."""
        return not self.renews and len({client.start_s for client in self.clients}) > 1

    @property
    def renews(self) -> bool:
        """Some client runs more than one session."""
        return any(len(client.sessions) > 1 for client in self.clients)

    @property
    def cycle_s(self) -> float:
        """Clients times the seconds between two starts, 0 when they start together.

        Raises InputError when the starts are not evenly spaced: the cycle must then be given.
        """
        starts = [client.start_s for client in self.clients]
        gaps = [b - a for a, b in itertools.pairwise(starts)]
        if not gaps or max(gaps) - min(gaps) <= 1e-9 * max(1.0, starts[-1]):
            return len(starts) * (gaps[0] if gaps else 0.0)
        raise InputError(f"plan {self.plan_id}: clients do not start evenly spaced; give the cycle in seconds")

    @property
    def has_arrivals(self) -> bool:
        """Whether arrivals are fixed in the plan (open loop), not a consequence of answers."""
        return self.clients[0].sessions[0].turns[0].arrival_s is not None

    def check_context(self, limit_tokens: int, limit_name: str) -> None:
        """Raise InputError naming the first turn whose context exceeds ``limit_tokens``."""
        for c, client in enumerate(self.clients):
            for s, session in enumerate(client.sessions):
                context = 0
                for t, turn in enumerate(session.turns):
                    context += turn.new_tokens
                    if context + turn.output_tokens > limit_tokens:
                        raise InputError(
                            f"{_place(self.plan_id, c, s, session.id, t)}: prompt {context} + output "
                            f"{turn.output_tokens} tokens exceed {limit_name} {limit_tokens}"
                        )
                    context += turn.output_tokens

    @property
    def content_sha256(self) -> str:
        """SHA-256 (hex) of the compact, key-sorted JSON of :meth:`to_dict`."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values (format ``slotgrid-plan/1``)."""
        data: dict[str, Any] = {"format": FORMAT, "plan_id": self.plan_id, "max_seq_len": self.max_seq_len}
        if self.turnaround_s is not None:
            data["turnaround_s"] = self.turnaround_s
        data["clients"] = [
            {
                "start_s": client.start_s,
                "sessions": [_session_dict(session) for session in client.sessions],
            }
            for client in self.clients
        ]
        return data

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, whole or not at all."""
        files.write_json(path, self.to_dict())

    def __repr__(self) -> str:
        return (
            f"InputPlan({self.plan_id!r}: {len(self.clients)} clients, {self.session_count} sessions, "
            f"{self.turn_count} turns, longest context {self.longest_context_tokens} tokens, "
            f"waits {self.total_wait_s:.1f} s)"
        )

    # --- transformations: everything else stays ----------------------------------------------------

    def without_waits(self) -> InputPlan:
        """The control condition: every tool wait 0."""
        return self._with_turns(lambda turn, last: replace(turn, tool_wait_s=0.0))

    def with_mean_waits(self) -> InputPlan:
        """Every wait between turns replaced by their mean, so that the total stays."""
        between = sum(len(session.turns) - 1 for _, session in self.sessions())
        mean_s = self.total_wait_s / between if between else 0.0
        return self._with_turns(lambda turn, last: turn if last else replace(turn, tool_wait_s=mean_s))

    def with_arrivals(self, arrival_s: Sequence[float]) -> InputPlan:
        """Fix when each request is sent: one time per turn in plan order, seconds from the start of the run."""
        if len(arrival_s) != self.turn_count:
            raise InputError(
                f"plan {self.plan_id}: {len(arrival_s)} arrival times for {self.turn_count} turns; one each is needed"
            )
        times = iter(arrival_s)
        return self._with_turns(lambda turn, last: replace(turn, arrival_s=float(next(times))))

    def _with_turns(self, change: Any) -> InputPlan:
        clients = tuple(
            Client(
                client.start_s,
                tuple(
                    replace(
                        session,
                        turns=tuple(change(turn, t == len(session.turns) - 1) for t, turn in enumerate(session.turns)),
                    )
                    for session in client.sessions
                ),
            )
            for client in self.clients
        )
        return replace(self, clients=clients)


def _session_dict(session: Session) -> dict[str, Any]:
    data: dict[str, Any] = {"id": session.id, "turns": [_turn_dict(turn) for turn in session.turns]}
    if session.prefix_id is not None:
        data.update(prefix_id=session.prefix_id, prefix_tokens=session.prefix_tokens)
    return data


def _turn_dict(turn: Turn) -> dict[str, Any]:
    data: dict[str, Any] = {
        "new_tokens": turn.new_tokens,
        "output_tokens": turn.output_tokens,
        "tool_wait_s": turn.tool_wait_s,
    }
    if turn.arrival_s is not None:
        data["arrival_s"] = turn.arrival_s
    return data


# --- checking -------------------------------------------------------------------------------------------


def _place(plan_id: str, client: int, session: int, session_id: str, turn: int) -> str:
    return f"plan {plan_id}: client {client}, session {session} ({session_id}), turn {turn}"


def _check(plan: InputPlan) -> None:
    if not plan.clients:
        raise InputError(f"plan {plan.plan_id}: no clients; at least one with one session and one turn is needed")
    if plan.max_seq_len is not None and not _is_whole(plan.max_seq_len, 1):
        raise InputError(f"plan {plan.plan_id}: max_seq_len is {plan.max_seq_len!r}; a whole number of at least 1")
    if plan.turnaround_s is not None and not _is_seconds(plan.turnaround_s):
        raise InputError(f"plan {plan.plan_id}: turnaround_s is {plan.turnaround_s!r}; seconds of at least 0")
    with_arrivals: bool | None = None
    for c, client in enumerate(plan.clients):
        if not _is_seconds(client.start_s):
            raise InputError(f"plan {plan.plan_id}: client {c}: start_s is {client.start_s!r}; seconds of at least 0")
        if not client.sessions:
            raise InputError(f"plan {plan.plan_id}: client {c}: no sessions; at least one is needed")
        for s, session in enumerate(client.sessions):
            if not session.turns:
                raise InputError(
                    f"plan {plan.plan_id}: client {c}, session {s} ({session.id}): no turns; at least one is needed"
                )
            prefix = _prefix_problem(session)
            if prefix is not None:
                raise InputError(f"plan {plan.plan_id}: client {c}, session {s} ({session.id}): {prefix}")
            last = len(session.turns) - 1
            for t, turn in enumerate(session.turns):
                problem = _turn_problem(turn, t == last)
                if problem is None and (turn.arrival_s is not None) is not with_arrivals:
                    if with_arrivals is None:
                        with_arrivals = turn.arrival_s is not None
                    else:
                        problem = "arrival_s is given for some turns only; give it for all or none"
                if problem is not None:
                    raise InputError(f"{_place(plan.plan_id, c, s, session.id, t)}: {problem}")
    if plan.max_seq_len is not None:
        plan.check_context(plan.max_seq_len, "max_seq_len")


def _prefix_problem(session: Session) -> str | None:
    tokens = session.prefix_tokens
    if session.prefix_id is None:
        return None if tokens == 0 else f"prefix_tokens is {tokens!r} without a prefix_id; give both or neither"
    if not isinstance(session.prefix_id, str) or not session.prefix_id:
        return f"prefix_id is {session.prefix_id!r}; a text"
    first = session.turns[0].new_tokens
    if not _is_whole(tokens, 1) or (_is_whole(first, 1) and tokens > first):
        return f"prefix_tokens is {tokens!r}; a whole number from 1 to the first turn's new_tokens"
    return None


def _turn_problem(turn: Turn, last: bool) -> str | None:
    if not _is_whole(turn.new_tokens, 1):
        return f"new_tokens is {turn.new_tokens!r}; a whole number of at least 1"
    if not _is_whole(turn.output_tokens, 1):
        return f"output_tokens is {turn.output_tokens!r}; a whole number of at least 1"
    if not _is_seconds(turn.tool_wait_s):
        return f"tool_wait_s is {turn.tool_wait_s!r}; seconds of at least 0"
    if last and turn.tool_wait_s != 0:
        return f"tool_wait_s is {turn.tool_wait_s!r} on the session's last turn; it must be 0"
    if turn.arrival_s is not None and not _is_seconds(turn.arrival_s):
        return f"arrival_s is {turn.arrival_s!r}; seconds of at least 0"
    return None


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_seconds(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # compared, not converted: a whole number may be too large for a float
    return 0 <= value <= _LONGEST_S


# --- files ----------------------------------------------------------------------------------------------


def load_plan(path: str | Path) -> InputPlan:
    """Read a plan file: ours, a published multi-turn plan, or a published two-turn sample.

    Raises InputError naming the file and what is wrong with it.
    """
    return plan_from_json(files.read_json(path), str(path))


def plan_from_json(data: Any, where: str) -> InputPlan:
    """A plan from parsed JSON; ``where`` names the source in errors."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: not a plan; expected a JSON object")
    try:
        if data.get("format") == FORMAT:
            return _from_ours(data, where)
        if "format" in data:
            raise InputError(f"{where}: format is {data['format']!r}; this version reads {FORMAT!r}")
        if "slots" in data and "spec" in data:
            return _from_published(data, where)
        if isinstance(data.get("plan"), list):
            turnaround = data.get("turnaround_s")
            name = str(data.get("block", Path(where).stem))
            return InputPlan.from_turns(data["plan"], plan_id=name, turnaround_s=turnaround)
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(where) else f"{where}: {text}") from None
    raise InputError(f'{where}: not a plan; expected "format": "{FORMAT}" or a published plan')


def published_content_sha256(data: Mapping[str, Any]) -> str:
    """Content hash of a published multi-turn plan (hex): compact, key-sorted JSON without ``_sha256``."""
    content = {key: value for key, value in data.items() if key != "_sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _from_ours(data: Mapping[str, Any], where: str) -> InputPlan:
    _only(data, {"format", "plan_id", "max_seq_len", "turnaround_s", "clients"}, where)
    clients = []
    for c, client in enumerate(_list(data, "clients", where)):
        at_client = f"{where}: client {c}"
        _only(client, {"start_s", "sessions"}, at_client)
        sessions = []
        for s, session in enumerate(_list(client, "sessions", at_client)):
            at_session = f"{at_client}, session {s}"
            _only(session, {"id", "turns", "prefix_id", "prefix_tokens"}, at_session)
            turns = []
            for t, turn in enumerate(_list(session, "turns", at_session)):
                at_turn = f"{at_session}, turn {t}"
                _only(turn, {"new_tokens", "output_tokens", "tool_wait_s", "arrival_s"}, at_turn)
                turns.append(
                    Turn(
                        _get(turn, "new_tokens", at_turn),
                        _get(turn, "output_tokens", at_turn),
                        _get(turn, "tool_wait_s", at_turn),
                        turn.get("arrival_s"),
                    )
                )
            sessions.append(
                Session(
                    str(_get(session, "id", at_session)),
                    tuple(turns),
                    session.get("prefix_id"),
                    session.get("prefix_tokens", 0),
                )
            )
        clients.append(Client(_get(client, "start_s", at_client), tuple(sessions)))
    return InputPlan(
        str(_get(data, "plan_id", where)), tuple(clients), data.get("max_seq_len"), data.get("turnaround_s")
    )


def _from_published(data: Mapping[str, Any], where: str) -> InputPlan:
    stated = data.get("_sha256")
    if stated is not None and stated != published_content_sha256(data):
        raise InputError(f"{where}: _sha256 does not match the content; the file was changed after it was written")
    clients = []
    for c, slot in enumerate(_list(data, "slots", where)):
        at_client = f"{where}: slot {c}"
        sessions = []
        for s, session in enumerate(_list(slot, "sessions", at_client)):
            at_session = f"{at_client}, session {s}"
            turns = []
            for t, turn in enumerate(_list(session, "turns", at_session)):
                at_turn = f"{at_session}, turn {t}"
                turns.append(
                    Turn(
                        _get(turn, "new_segment_tokens", at_turn),
                        _get(turn, "generation_tokens", at_turn),
                        _get(turn, "gap_after_s", at_turn),
                    )
                )
            sessions.append(Session(str(_get(session, "session_id", at_session)), tuple(turns)))
        clients.append(Client(_get(slot, "start_s", at_client), tuple(sessions)))
    spec = data["spec"]
    limit = spec.get("max_seq_len") if isinstance(spec, Mapping) else None
    return InputPlan(str(_get(data, "plan_id", where)), tuple(clients), limit)


def _get(data: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in data:
        raise InputError(f"{where}: {key} is missing")
    return data[key]


def _list(data: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = _get(data, key, where)
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise InputError(f"{where}: {key} is not a list of objects")
    return value


def _only(data: Mapping[str, Any], allowed: set[str], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise InputError(f"{where}: unknown key {key!r}; allowed: {', '.join(sorted(allowed))}")
