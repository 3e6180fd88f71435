"""Published multi-turn plans: drawn anew from their seeds and written in their own format.

The content hash of a plan drawn here equals the published one, which is how we know that the draws are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotgrid.plan import published_content_sha256
from slotgrid.workload.seeds import derive_seed
from slotgrid.workload.workload import Workload


@dataclass(frozen=True)
class PublishedSpec:
    """The texts a published plan carries in ``spec``; they are hashed as they stand.

    ``gap`` names a file on the authors' machines, so it has to be given.
    """

    first_segment: str
    later_segment: str
    generation: str
    gap: str
    cycle_s: float
    turns: int
    sessions_per_slot: int
    max_seq_len: int


def published_plan(
    workload: Workload, spec: PublishedSpec, *, plan_id: str, base_seed: int, n_slots: int
) -> dict[str, Any]:
    """The published JSON object, ``_sha256`` included, of a plan drawn from ``workload``."""
    plan = workload.draw(
        clients=n_slots,
        seed=base_seed,
        plan_id=plan_id,
        cycle_s=spec.cycle_s,
        sessions_per_client=spec.sessions_per_slot,
    )
    slots = []
    for c, client in enumerate(plan.clients):
        sessions = []
        for session in client.sessions:
            turns = [
                {
                    "index": t,
                    "new_segment_tokens": turn.new_tokens,
                    "generation_tokens": turn.output_tokens,
                    "gap_after_s": turn.tool_wait_s,
                    "text_seed": derive_seed(base_seed, f"{session.id}/t{t}"),
                }
                for t, turn in enumerate(session.turns)
            ]
            sessions.append({"session_id": session.id, "turns": turns})
        slots.append({"slot": c, "start_s": client.start_s, "sessions": sessions})
    content: dict[str, Any] = {
        "plan_id": plan_id,
        "base_seed": base_seed,
        "n_slots": n_slots,
        "turns": spec.turns,
        "stagger_s": spec.cycle_s / n_slots,
        "spec": {
            "first_segment": spec.first_segment,
            "later_segment": spec.later_segment,
            "generation": spec.generation,
            "gap": spec.gap,
            "cycle_s": spec.cycle_s,
            "turns": spec.turns,
            "sessions_per_slot": spec.sessions_per_slot,
            "max_seq_len": spec.max_seq_len,
        },
        "slots": slots,
    }
    content["_sha256"] = published_content_sha256(content)
    return content
