"""The inputs of all probes, as ordinary plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slotgrid.plan import Client, InputPlan, Session, Turn


@dataclass(frozen=True)
class Ask:
    """One request of a sequence. prefix: name of a prompt beginning shared with other requests of that name.

    prefix_tokens: its length, 0 without one. own_tokens: tokens of its own after that. Together at least 1.
    """

    own_tokens: int
    prefix: str | None = None
    prefix_tokens: int = 0
    output_tokens: int = 1


def in_order(plan_id: str, asks: Sequence[Ask]) -> InputPlan:
    """One client sends all requests, each after the answer to the one before: their order needs no waiting."""
    sessions = tuple(
        Session(
            f"{plan_id}/{i}",
            (Turn(ask.prefix_tokens + ask.own_tokens, ask.output_tokens),),
            # named after the plan: another plan must not find it
            None if ask.prefix is None else f"{plan_id}/{ask.prefix}",
            ask.prefix_tokens,
        )
        for i, ask in enumerate(asks)
    )
    return InputPlan(plan_id, (Client(0.0, sessions),))


def together(plan_id: str, *, streams: int, prompt_tokens: int, output_tokens: int) -> InputPlan:
    """Streams that start at once, one request each."""
    return InputPlan(plan_id, tuple(_single(plan_id, i, 0.0, prompt_tokens, output_tokens) for i in range(streams)))


def beside(
    plan_id: str, *, streams: int, prompt_tokens: int, output_tokens: int, injections: Sequence[tuple[float, int]]
) -> InputPlan:
    """Streams that start at once, and requests for one token that come in beside them: (seconds, prompt tokens)."""
    clients = [_single(plan_id, i, 0.0, prompt_tokens, output_tokens) for i in range(streams)]
    clients += [_single(plan_id, streams + i, at_s, tokens, 1) for i, (at_s, tokens) in enumerate(injections)]
    return InputPlan(plan_id, tuple(clients))


def conversation(plan_id: str, turns: Sequence[tuple[int, int]]) -> InputPlan:
    """One session; (new tokens, output tokens) of each turn, sent as soon as the answer is there."""
    return InputPlan(plan_id, (Client(0.0, (Session(f"{plan_id}/0", tuple(Turn(*turn) for turn in turns)),)),))


def _single(plan_id: str, index: int, start_s: float, prompt_tokens: int, output_tokens: int) -> Client:
    return Client(start_s, (Session(f"{plan_id}/{index}", (Turn(prompt_tokens, output_tokens),)),))
