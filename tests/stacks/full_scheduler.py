"""The whole real RBLNOptimumScheduler under a virtual clock against the engine: ``make test-stack`` (not in CI).

Runs in an environment with torch, vLLM and vllm-rbln (docs/rbln.md). The scheduler, its cache manager, vLLM's block
pool, requests and hashes are the real ones; only the device is stood in for: a step takes the seconds the profile
says and returns one token a request. Admission, reuse and finish time of every request must be equal, exactly.
"""

from __future__ import annotations

import heapq
import os
import random
import sys
from types import SimpleNamespace
from typing import Any

# the platform plugin of the stack needs its native runtime
os.environ["VLLM_PLUGINS"] = "none"

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm_rbln.v1.core.optimum_scheduler import RBLNOptimumScheduler

import slotgrid as sg
from tests.engine.test_inner_blocks import random_plan as long_plan
from tests.stacks.test_rbln_judge import CONFIGS, random_plan

BLOCK, SLOT = 128, 8192
TURNAROUND_S = 0.0008
PLANS = 50


def scheduler_for(config: sg.ServingConfig) -> Any:
    """A scheduler as the server builds it for an artifact with these sizes."""
    full = config.slots >= config.max_running
    blocks = (config.slots if full else config.slots - 1) * (SLOT // BLOCK) + 1
    vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=config.max_running,
            max_num_scheduled_tokens=None,
            max_num_batched_tokens=BLOCK,
            policy="fcfs",
            async_scheduling=False,
        ),
        cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=BLOCK, enable_prefix_caching=True),
        lora_config=None,
        kv_events_config=None,
        parallel_config=SimpleNamespace(data_parallel_rank=0, decode_context_parallel_size=1),
        observability_config=SimpleNamespace(kv_cache_metrics=False, enable_mfu_metrics=False),
        model_config=SimpleNamespace(
            is_encoder_decoder=False,
            max_model_len=SLOT,
            hf_config=SimpleNamespace(architectures=["Qwen3ForCausalLM"]),
            enable_return_routed_experts=False,
        ),
        ec_transfer_config=None,
        kv_transfer_config=None,
        speculative_config=None,
        additional_config={"attn_block_size": SLOT},
    )
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    return RBLNOptimumScheduler(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=SimpleNamespace(should_advance=lambda _: False),
        block_size=BLOCK,
    )


class Server:
    """One run: closed-loop clients on the real scheduler, time from the profile."""

    def __init__(self, profile: sg.StackProfile, config: sg.ServingConfig, plan: sg.InputPlan) -> None:
        self.plan = plan
        self.scheduler = scheduler_for(config)
        self.step_s = profile.clock.decode.step_s(config, config.max_running)
        self.prefill_s = profile.clock.prefill.seconds(np.arange(SLOT + 1))
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.sessions = [session for _, session in plan.sessions()]
        self.context: list[list[int]] = [[] for _ in self.sessions]
        self.arrivals: list[tuple[int, int, int, float]] = []
        self.next_session: dict[int, int] = {}
        self.rows: dict[tuple[int, int], list[float]] = {}
        self.cached: dict[tuple[int, int], int] = {}
        index = 0
        for client in plan.clients:
            for offset in range(len(client.sessions)):
                if offset:
                    self.next_session[index + offset - 1] = index + offset
            self.push(client.start_s, index, 0)
            index += len(client.sessions)

    def push(self, time_s: float, session: int, turn: int) -> None:
        heapq.heappush(self.arrivals, (int(np.rint(time_s * 1e9)), session, turn, time_s))

    def send(self, session: int, turn: int, time_s: float) -> None:
        facts = self.sessions[session]
        step = facts.turns[turn]
        tokens = self.context[session]
        own = [1000 + session] * step.new_tokens
        if turn == 0 and facts.prefix_id is not None:
            own[: facts.prefix_tokens] = [ord(facts.prefix_id[0])] * facts.prefix_tokens
        tokens += own
        request = Request(
            request_id=f"{session}.{turn}",
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=step.output_tokens, ignore_eos=True, temperature=0.0),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        self.rows[session, turn] = [time_s]
        self.scheduler.add_request(request)

    def go(self) -> None:
        now = 0.0
        while True:
            while self.arrivals and self.arrivals[0][3] <= now + 1e-12:
                _, session, turn, time_s = heapq.heappop(self.arrivals)
                self.send(session, turn, time_s)
            output = self.scheduler.schedule()
            names = list(output.num_scheduled_tokens)
            if not names:
                if not self.arrivals:
                    return
                now = self.arrivals[0][3]
                continue
            if output.scheduled_new_reqs:
                (new,) = output.scheduled_new_reqs
                session, turn = map(int, new.req_id.split("."))
                cached = sum(output.cached_length)
                self.cached[session, turn] = cached
                self.rows[session, turn].append(now)
                now += self.prefill_s[len(new.prompt_token_ids) - cached]
            else:
                now += self.step_s[len(names)]
            result = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[1000 + int(name.split(".")[0])] for name in names],
            )
            self.scheduler.update_from_output(output, result)
            for name in names:
                if name not in self.scheduler.requests:
                    session, turn = map(int, name.split("."))
                    self.finish(session, turn, now)

    def finish(self, session: int, turn: int, now: float) -> None:
        self.rows[session, turn].append(now)
        turns = self.sessions[session].turns
        self.context[session] += [1000 + session] * turns[turn].output_tokens
        after = now + (turns[turn].tool_wait_s + TURNAROUND_S)
        if turn + 1 < len(turns):
            self.push(after, session, turn + 1)
        elif session in self.next_session:
            self.push(after, self.next_session[session], 0)


def main() -> int:
    init_none_hash(sha256)
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    rng = random.Random(20261000)
    wrong = compared = reused = noted = 0
    for number in range(PLANS):
        config = CONFIGS[number % len(CONFIGS)]
        clients = rng.randint(2, config.slots + 4)
        short = number % 3 == 0
        plan = random_plan(rng, clients) if short else long_plan(rng, clients, SLOT, shared=number % 3 == 1)
        server = Server(profile, config, plan)
        server.go()
        run = sg.simulate(profile, config, plan, rules="real", turnaround_s=TURNAROUND_S)
        noted += bool(run.notes)
        for row in run.requests.iter_rows(named=True):
            key = (row["session"], row["turn"])
            mine = (row["arrival_s"], row["admit_s"], row["finish_s"], row["cached_tokens"])
            real = (*server.rows[key], server.cached[key])
            compared += 1
            reused += row["cached_tokens"] > 0
            if mine != real:
                wrong += 1
                print(f"plan {number} on {config.label}, session {key[0]}, turn {key[1]}: engine {mine}, real {real}")
    print(
        f"{PLANS} plans, {compared} requests, {reused} with reuse, {noted} plans where inner blocks or shared "
        f"prefixes mattered: {wrong} differ in arrival, admission, finish or reuse"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
