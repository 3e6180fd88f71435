"""Which session of the plan a row belongs to, and whether the rows are of that plan at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.run.readers.rows import RequestRow


def session_indices(
    rows: Sequence[RequestRow], plan: InputPlan | None, plan_name: str, warn: Callable[[str], None]
) -> tuple[list[int | None], bool]:
    """The session index (plan order, from 0) of each row, and whether the rows belong to ``plan``.

    By the plan's session ids, else by the order the rows state, else by first arrival. Raises InputError for rows of
    another plan and for two rows of the same session and turn.
    """
    if any(row.session is None or row.turn is None for row in rows):
        named = sum(row.session is not None and row.turn is not None for row in rows)
        if named:
            warn(f"{len(rows) - named} of {len(rows)} request rows name no session; returns are not observable")
        return [None] * len(rows), False
    keys = {row.session: row for row in reversed(rows)}
    ids = {session.id: i for i, (_, session) in enumerate(plan.sessions())} if plan is not None else {}
    known = sum(key in ids for key in keys)
    of_plan = False
    if plan is not None and known == len(keys):
        index = {key: ids[key] for key in keys if key is not None}
        of_plan = True
    else:
        if known:
            stranger = next(row for key, row in keys.items() if key not in ids)
            raise InputError(f"{stranger.where}: session {stranger.session!r} is not in {plan_name}")
        index = _by_order(keys)
        if plan is not None:
            of_plan = all(row.planned_output_tokens is not None for row in rows) or _fits(rows, index, plan)
    _unique(rows)
    result: list[int | None] = [index[row.session] for row in rows if row.session is not None]
    if plan is not None and of_plan:
        _check_plan(rows, index, plan, plan_name, warn)
    elif plan is not None:
        warn(f"{plan_name}: its sessions are not those of the request rows, so it is not used")
    return result, of_plan


def _by_order(keys: dict[str | None, RequestRow]) -> dict[str, int]:
    stated = [(row.order, key) for key, row in keys.items() if key is not None]
    orders = [order for order, _ in stated if order is not None]
    if len(orders) == len(stated) and len(set(orders)) == len(orders):
        if all(len(order) == 1 and order[0].is_integer() and order[0] >= 0 for order in orders):
            return {key: int(order[0]) for order, key in stated if order is not None}
        ranked = sorted(stated, key=lambda entry: entry[0] or ())
        return {key: i for i, (_, key) in enumerate(ranked)}
    first: dict[str, tuple[bool, float]] = {}
    for key, row in keys.items():
        if key is not None:
            # the row kept for a key is its first in the file; sent times may be missing
            first[key] = (row.arrival_s is None, row.arrival_s or 0.0)
    return {key: i for i, key in enumerate(sorted(first, key=lambda key: first[key]))}


def _unique(rows: Sequence[RequestRow]) -> None:
    seen: dict[tuple[str | None, int | None], RequestRow] = {}
    for row in rows:
        key = (row.session, row.turn)
        if key in seen:
            raise InputError(
                f"{row.where}: session {row.session!r} turn {row.turn} was already at {seen[key].where}; "
                "rows of two runs in one directory?"
            )
        seen[key] = row


def _fits(rows: Sequence[RequestRow], index: dict[str, int], plan: InputPlan) -> bool:
    turns = [len(session.turns) for _, session in plan.sessions()]
    return all(
        row.session is not None
        and row.turn is not None
        and index[row.session] < len(turns)
        and row.turn < turns[index[row.session]]
        for row in rows
    )


def _check_plan(
    rows: Sequence[RequestRow],
    index: dict[str, int],
    plan: InputPlan,
    plan_name: str,
    warn: Callable[[str], None],
) -> None:
    sessions = [session for _, session in plan.sessions()]
    other = 0
    for row in rows:
        assert row.session is not None
        assert row.turn is not None
        s = index[row.session]
        if s >= len(sessions) or row.turn >= len(sessions[s].turns):
            raise InputError(
                f"{row.where}: session {s} turn {row.turn} is not in {plan_name}; the rows are of another plan"
            )
        turn = sessions[s].turns[row.turn]
        for key, stated, planned in (
            ("output", row.planned_output_tokens, turn.output_tokens),
            ("new", row.planned_new_tokens, turn.new_tokens),
        ):
            if stated is not None and stated != planned:
                raise InputError(
                    f"{row.where}: session {s} turn {row.turn} asked for {stated} {key} tokens, {plan_name} says "
                    f"{planned}; the rows are of another plan"
                )
        other += row.failed is None and row.output_tokens is not None and row.output_tokens != turn.output_tokens
    if other:
        warn(f"{other} requests generated another number of tokens than planned")
    missing = plan.turn_count - len(rows)
    if missing:
        warn(f"{missing} of the {plan.turn_count} turns of {plan_name} have no request row")
