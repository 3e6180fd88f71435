"""The wheel's own prefix-cache manager, driven by a simulated run.

The manager maps inner blocks to slots; the inner blocks themselves come from vLLM's block pool, which is not in the
wheel. ``BlockPool`` stands for it: a queue of free blocks, taken from the front, released to the back last block
first; a block keeps its hash until it is taken again; a lookup finds the newest other block with the same hash.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from types import ModuleType
from typing import Any

import slotgrid as sg

BLOCK = 128


class BlockPool:
    """Inner blocks 1 to ``count``; block 0 is never handed out."""

    def __init__(self, count: int) -> None:
        self.free = deque(range(1, count + 1))
        self.hash_of: dict[int, Hashable] = {}
        self.holders: dict[Hashable, OrderedDict[int, None]] = {}

    def take(self, count: int) -> list[int]:
        taken = [self.free.popleft() for _ in range(count)]
        for block in taken:
            key = self.hash_of.pop(block, None)
            if key is not None:
                del self.holders[key][block]
        return taken

    def keep(self, block: int, key: Hashable) -> None:
        self.hash_of[block] = key
        self.holders.setdefault(key, OrderedDict())[block] = None

    def newest_other(self, key: Hashable) -> int | None:
        """The block before the newest, which is the asking request's own."""
        blocks = list(self.holders.get(key, ()))
        return blocks[-2] if len(blocks) > 1 else None

    def give_back(self, blocks: list[int]) -> None:
        self.free.extend(reversed(blocks))


class Replay:
    """Replays a run's order of admissions, steps and finishes on the real manager and notes what it does."""

    def __init__(self, package: ModuleType, plan: sg.InputPlan, run: sg.Run, slot_tokens: int) -> None:
        config = run.config
        ratio = slot_tokens // BLOCK
        full = config.slots >= config.max_running
        usable = config.slots if full else config.slots - 1
        self.manager: Any = package.RBLNPrefixKVCacheManager(
            ob_size=slot_tokens,
            ib_size=BLOCK,
            max_model_len=slot_tokens,
            max_num_seqs=config.max_running,
            num_inner_blocks=usable * ratio,
        )
        self.pool = BlockPool(usable * ratio)
        self.turns = {
            (s, t): turn for s, (_, session) in enumerate(plan.sessions()) for t, turn in enumerate(session.turns)
        }
        self.prefix = [(session.prefix_id, session.prefix_tokens) for _, session in plan.sessions()]
        self.max_running = config.max_running
        self.run = run
        self.running: dict[tuple[int, int], dict[str, Any]] = {}
        self.slot_owner: dict[int, int] = {}
        self.victims: list[tuple[int, str]] = []
        self.cached: dict[tuple[int, int], int] = {}
        self._cause = ""
        evict = self.manager._evict_block

        def noted(block: int) -> None:
            self.victims.append((self.slot_owner[block], self._cause))
            evict(block)

        self.manager._evict_block = noted

    def go(self) -> None:
        prompts = {
            (row["session"], row["turn"]): row["prompt_tokens"] for row in self.run.requests.iter_rows(named=True)
        }
        for step in self.run.steps.iter_rows(named=True):
            if step["kind"] == "prefill":
                key = (step["session"], step["turn"])
                self.admit(key, prompts[key])
            else:
                assert step["running"] == len(self.running)
                self.decode()
            for key in [key for key, state in self.running.items() if state["left"] == 0]:
                state = self.running.pop(key)
                self.manager.free_request(state["id"])
                self.pool.give_back(state["blocks"])

    def _hash(self, session: int, index: int) -> Hashable:
        prefix_id, prefix_tokens = self.prefix[session]
        return (prefix_id, index) if (index + 1) * BLOCK <= prefix_tokens else (session, index)

    def admit(self, key: tuple[int, int], prompt: int) -> None:
        session, turn = key
        need = -(-prompt // BLOCK)
        name = f"{session}.{turn}"
        self._cause = "admission"
        assert self.manager.can_allocate(need, 0)
        blocks = self.pool.take(need)
        self.manager.allocate_blocks(name, 0, blocks)
        (slot,) = self.manager.get_block_ids(name)
        self.slot_owner[slot] = session
        for index in range(prompt // BLOCK):
            self.pool.keep(blocks[index], self._hash(session, index))
        found: list[int] = []
        for index in range((prompt - 1) // BLOCK):
            block = self.pool.newest_other(self._hash(session, index))
            if block is None:
                break
            found.append(block)
        _, lengths = self.manager.get_matched_outer_blocks(name, found, len(found) * BLOCK)
        self.cached[key] = sum(lengths)
        self.running[key] = {
            "id": name,
            "blocks": blocks,
            "tokens": prompt,
            "left": self.turns[key].output_tokens - 1,
        }

    def decode(self) -> None:
        for state in self.running.values():
            # the token this step computes needs a place
            if state["tokens"] % BLOCK == 0:
                assert self.manager.can_allocate(1, state["tokens"])
                grown = self.pool.take(1)
                self.manager.allocate_blocks(state["id"], state["tokens"], grown)
                state["blocks"] += grown
            state["tokens"] += 1
            state["left"] -= 1
        if len(self.running) < self.max_running:
            self._cause = "padding"
            self.manager.get_dummy_block()


def judge(package: ModuleType, plan: sg.InputPlan, run: sg.Run, slot_tokens: int) -> None:
    """Assert that the real manager reuses the same tokens and evicts the same sessions for the same causes."""
    real = Replay(package, plan, run, slot_tokens)
    real.go()
    mine = {(row["session"], row["turn"]): row["cached_tokens"] for row in run.requests.iter_rows(named=True)}
    assert real.cached == mine
    assert real.victims == [(row["session"], row["cause"]) for row in run.evictions.iter_rows(named=True)]
