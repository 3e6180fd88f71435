"""What the equations need of a workload, read off drawn plans.

Plans rather than distributions: the simulation beside it then sees the same turns and waits, so a difference between
the two is the model's and not the draw's, and any kind of workload (observed waits, traces) has plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.profile.costs import PrefillCost

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PrefillMeans:
    """Mean seconds of a prefill: of a session's first turn, of a later turn with and without reuse (0 without any)."""

    first_s: float
    hit_s: float
    miss_s: float

    def mean_s(self, first_share: float, reuse: float) -> float:
        """Mean over all turns when ``reuse`` of the later ones find their prefix."""
        return first_share * self.first_s + (1 - first_share) * (reuse * self.hit_s + (1 - reuse) * self.miss_s)


@dataclass(frozen=True, eq=False)
class Moments:
    """A workload in a few numbers.

    turns: turns of one plan on average. first_share: share of turns that start a session. think_s: mean seconds from an
    answer to the client's next request, the zeros after a session's last turn and the turnaround included. waits_s:
    float64[W], every wait between two turns of a session, turnaround included. decode_steps: mean decode steps of a
    turn, one less than it generates. context_tokens: mean context of a running request over decode steps.
    prefill_clock, prefill_price: prefill seconds that move time and that are summed. renews: clients run further
    sessions, so that a steady state exists.
    """

    turns: float
    first_share: float
    think_s: float
    waits_s: Floats
    decode_steps: float
    context_tokens: float
    prefill_clock: PrefillMeans
    prefill_price: PrefillMeans
    renews: bool

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON values (waits as their count)."""
        return {
            "turns": self.turns,
            "first_share": self.first_share,
            "think_s": self.think_s,
            "waits": len(self.waits_s),
            "decode_steps_per_turn": self.decode_steps,
            "context_tokens": self.context_tokens,
            "prefill_first_s": self.prefill_price.first_s,
            "prefill_hit_s": self.prefill_price.hit_s,
            "prefill_miss_s": self.prefill_price.miss_s,
            "renews": self.renews,
        }


def moments_of(plans: Sequence[InputPlan], profile: StackProfile, *, turnaround_s: float = 0.0) -> Moments:
    """Moments over all turns of the plans (at least one plan, all closed loop).

    Raises InputError for plans with fixed arrivals or open-loop sessions, a context above the slot, or plans in which
    nothing is ever decoded or waited for.
    """
    first, prompts, outputs, waits, previous_prompt, previous_output = _turns(plans, profile)
    later = ~first
    last = np.append(first[1:], True)
    hits = np.zeros(len(first), np.int64)
    hits[later] = profile.kv.reusable_tokens(prompts[later], previous_prompt[later], previous_output[later])
    steps = outputs - 1
    total_steps = int(steps.sum())
    think_s = waits + turnaround_s
    if total_steps == 0:
        raise InputError("analytic: every turn generates one token, so nothing is ever decoded")
    if not think_s.any():
        raise InputError("analytic: no wait and no turnaround anywhere; the model needs a mean think time above 0 s")
    # request with prompt p and G outputs: its G - 1 steps see p + 1 to p + G - 1 context tokens
    context = float((steps * prompts + steps * (steps + 1) // 2).sum()) / total_steps
    return Moments(
        turns=len(first) / len(plans),
        first_share=float(first.mean()),
        think_s=float(think_s.mean()),
        waits_s=np.sort(think_s[~last]),
        decode_steps=total_steps / len(first),
        context_tokens=context,
        prefill_clock=_means(profile.clock.prefill, first, prompts, hits),
        prefill_price=_means(profile.price.prefill, first, prompts, hits),
        renews=all(len(client.sessions) > 1 for plan in plans for client in plan.clients),
    )


def _turns(
    plans: Sequence[InputPlan], profile: StackProfile
) -> tuple[npt.NDArray[np.bool_], Ints, Ints, Floats, Ints, Ints]:
    """Per turn of all plans: starts a session, prompt, output, wait, and the turn's before: prompt and output."""
    rows: list[tuple[bool, int, int, float, int, int]] = []
    for plan in plans:
        if plan.has_arrivals or plan.open_loop:
            raise InputError(
                f"plan {plan.plan_id}: its sessions arrive by themselves; the analytic model is of a fixed number of "
                "clients that wait for their answers"
            )
        if plan.longest_context_tokens > profile.kv.slot_tokens:
            plan.check_context(profile.kv.slot_tokens, f"the slot length of profile {profile.id},")
        for _, session in plan.sessions():
            context = before_prompt = before_output = 0
            for t, turn in enumerate(session.turns):
                prompt = context + turn.new_tokens
                rows.append((t == 0, prompt, turn.output_tokens, turn.tool_wait_s, before_prompt, before_output))
                context = prompt + turn.output_tokens
                before_prompt, before_output = prompt, turn.output_tokens
    columns = list(zip(*rows, strict=True))
    prompts, outputs, previous_prompts, previous_outputs = (np.array(columns[i], np.int64) for i in (1, 2, 4, 5))
    first, waits = np.array(columns[0], np.bool_), np.array(columns[3], np.float64)
    return first, prompts, outputs, waits, previous_prompts, previous_outputs


def _means(cost: PrefillCost, first: npt.NDArray[np.bool_], prompts: Ints, hits: Ints) -> PrefillMeans:
    later = ~first
    if not later.any():
        return PrefillMeans(float(cost.seconds(prompts[first]).mean()), 0.0, 0.0)
    computed = prompts[later] - hits[later]
    return PrefillMeans(
        float(cost.seconds(prompts[first]).mean()),
        float(np.where(hits[later] > 0, cost.seconds(computed, cached=True), cost.seconds(computed)).mean()),
        float(cost.seconds(prompts[later]).mean()),
    )
