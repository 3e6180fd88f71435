"""What a replay would be: totals and the shortest it can take, without sending anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from slotgrid.measure.options import WindowRule
from slotgrid.plan import Client, InputPlan
from slotgrid.run.window import WARMUP_CYCLES, WARMUP_TURNS


@dataclass(frozen=True)
class DryRun:
    """Totals of a plan. Tokens; prompt_tokens counts every turn's whole prompt, new_tokens what turns append.

    least_s: no run can be shorter: starts, tool waits and fixed arrivals (or the window) alone, as if every answer came
    at once. sessions_per_client: the fewest any client has.
    """

    plan_id: str
    plan_sha256: str
    clients: int
    sessions: int
    sessions_per_client: int
    turns: int
    longest_context_tokens: int
    max_seq_len: int | None
    new_tokens: int
    prompt_tokens: int
    output_tokens: int
    total_wait_s: float
    least_s: float
    window: bool

    def to_dict(self) -> dict[str, Any]:
        """The totals as JSON values."""
        return asdict(self)


def dry_run(plan: InputPlan, window: WindowRule | None = None) -> DryRun:
    """Add up a plan; the plan itself was checked when it was read."""
    prompt = new = output = 0
    for _, session in plan.sessions():
        context = 0
        for turn in session.turns:
            context += turn.new_tokens
            prompt += context
            context += turn.output_tokens
            new += turn.new_tokens
            output += turn.output_tokens
    if window is None:
        least_s = max(_least_s(client, None) for client in plan.clients)
    else:
        window = window.of(plan)
        warmup_s = window.warmup_s
        if warmup_s is None:
            two_turns_s = max(_least_s(client, WARMUP_TURNS) for client in plan.clients)
            warmup_s = max(WARMUP_CYCLES * (window.cycle_s or 0.0), two_turns_s)
        least_s = warmup_s + window.evaluation_s
    return DryRun(
        plan_id=plan.plan_id,
        plan_sha256=plan.content_sha256,
        clients=len(plan.clients),
        sessions=plan.session_count,
        sessions_per_client=min(len(client.sessions) for client in plan.clients),
        turns=plan.turn_count,
        longest_context_tokens=plan.longest_context_tokens,
        max_seq_len=plan.max_seq_len,
        new_tokens=new,
        prompt_tokens=prompt,
        output_tokens=output,
        total_wait_s=plan.total_wait_s,
        least_s=least_s,
        window=window is not None,
    )


def _least_s(client: Client, turns: int | None) -> float:
    """When a client's last (or ``turns``-th) answer is there at the earliest."""
    now_s, wait_s, count = client.start_s, 0.0, 0
    for session in client.sessions:
        for turn in session.turns:
            if count == turns:
                return now_s
            now_s = max(now_s + wait_s, turn.arrival_s or 0.0)
            wait_s = turn.tool_wait_s
            count += 1
    return now_s
