"""Which session of the plan a row belongs to, and whether the rows are of that plan at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.run.readers.row_table import RowTable

Ints = npt.NDArray[np.signedinteger[Any]]
Warn = Callable[[str], None]


def session_indices(
    table: RowTable, kept: Ints, plan: InputPlan | None, plan_name: str, warn: Warn
) -> tuple[Ints, bool]:
    """The session index (plan order, from 0; -1 unknown) of each kept row, and whether the rows belong to ``plan``.

    By the plan's session ids, else by the order the rows state, else by first arrival. Raises InputError for rows of
    another plan and for two rows of the same session and turn.
    """
    code, turn = table.session[kept], table.whole("turn")[kept]
    named = (code >= 0) & (turn >= 0)
    if not named.all():
        if named.any():
            warn(f"{int((~named).sum())} of {len(kept)} request rows name no session; returns are not observable")
        return np.full(len(kept), -1, np.int64), False
    _unique(table, kept, code, turn)
    ids = {session.id: i for i, (_, session) in enumerate(plan.sessions())} if plan is not None else {}
    used = np.unique(code).tolist()
    known = [c for c in used if table.session_key(c) in ids] if ids else []
    index = np.full(table.session_codes, -1, np.int32)
    of_plan = False
    if plan is not None and len(known) == len(used):
        index[used] = [ids[table.session_key(c)] for c in used]
        of_plan = True
    else:
        if known:
            stranger = next(c for c in used if table.session_key(c) not in ids)
            row = int(kept[np.flatnonzero(code == stranger)[0]])
            raise InputError(f"{table.where(row)}: session {table.session_key(stranger)!r} is not in {plan_name}")
        _by_order(table, kept, code, np.unique(code), index)
        if plan is not None:
            stated = (table.whole("planned_output_tokens")[kept] >= 0).all()
            of_plan = bool(stated) or _fits(index[code], turn, plan)
    if plan is not None and of_plan:
        _check_plan(table, kept, index[code], turn, plan, plan_name, warn)
    elif plan is not None:
        warn(f"{plan_name}: its sessions are not those of the request rows, so it is not used")
    return index[code], of_plan


def _by_order(table: RowTable, kept: Ints, code: Ints, used: Ints, index: Ints) -> None:
    """Fill in the sessions' places: as stated, else by when each was first sent."""
    stated, alone = table.session_orders(used).T
    order = np.lexsort((alone, stated))
    same = (stated[order][1:] == stated[order][:-1]) & (
        (alone[order][1:] == alone[order][:-1]) | (np.isnan(alone[order][1:]) & np.isnan(alone[order][:-1]))
    )
    if not np.isnan(stated).any() and not same.any():
        if np.isnan(alone).all() and (stated == np.floor(stated)).all() and (stated >= 0).all():
            index[used] = stated
        else:
            index[used[order]] = np.arange(len(used))
        return
    first = np.full(table.session_codes, np.inf)
    sent = table.seconds("arrival_s")[kept]
    np.minimum.at(first, code, np.where(np.isnan(sent), np.inf, sent))
    index[used[np.argsort(first[used], kind="stable")]] = np.arange(len(used))


def _unique(table: RowTable, kept: Ints, code: Ints, turn: Ints) -> None:
    order = np.lexsort((turn, code))
    twice = np.flatnonzero((code[order][1:] == code[order][:-1]) & (turn[order][1:] == turn[order][:-1]))
    if len(twice):
        a, b = (int(kept[order[twice[0] + i]]) for i in (0, 1))
        c = table.session[a]
        raise InputError(
            f"{table.where(b)}: session {table.session_key(int(c))!r} turn {table.whole('turn')[b]} was already at "
            f"{table.where(a)}; rows of two runs in one directory?"
        )


def _turns(plan: InputPlan) -> tuple[Ints, Ints, Ints]:
    """Per session its first turn's place, and per turn new and output tokens."""
    sessions = [session for _, session in plan.sessions()]
    first = np.concatenate([[0], np.cumsum([len(session.turns) for session in sessions])])
    new = np.array([turn.new_tokens for session in sessions for turn in session.turns], np.int64)
    output = np.array([turn.output_tokens for session in sessions for turn in session.turns], np.int64)
    return first, new, output


def _fits(session: Ints, turn: Ints, plan: InputPlan) -> bool:
    first, _, _ = _turns(plan)
    if (session >= len(first) - 1).any():
        return False
    return bool((turn < np.diff(first)[session]).all())


def _check_plan(
    table: RowTable, kept: Ints, session: Ints, turn: Ints, plan: InputPlan, plan_name: str, warn: Warn
) -> None:
    first, new, output = _turns(plan)
    outside = session >= len(first) - 1
    outside[~outside] = turn[~outside] >= np.diff(first)[session[~outside]]
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise InputError(
            f"{table.where(int(kept[at]))}: session {session[at]} turn {turn[at]} is not in {plan_name}; "
            "the rows are of another plan"
        )
    place = first[session] + turn
    for key, planned in (("output", output[place]), ("new", new[place])):
        stated = table.whole(f"planned_{key}_tokens")[kept]
        other = np.flatnonzero((stated >= 0) & (stated != planned))
        if len(other):
            at = int(other[0])
            raise InputError(
                f"{table.where(int(kept[at]))}: session {session[at]} turn {turn[at]} asked for {stated[at]} {key} "
                f"tokens, {plan_name} says {planned[at]}; the rows are of another plan"
            )
    made = table.whole("output_tokens")[kept]
    differ = int(((made >= 0) & (made != output[place])).sum())
    if differ:
        warn(f"{differ} requests generated another number of tokens than planned")
    missing = plan.turn_count - len(kept)
    if missing:
        warn(f"{missing} of the {plan.turn_count} turns of {plan_name} have no request row")
