"""vLLM's own OpenAI server with only the device stood in for: ``python -m tests.stacks.vllm_server --port 8000``.

Runs in the environment of ``make test-stack``. HTTP frontend, protocol, input processor, engine core in a process of
its own, scheduler (asynchronous, as on a GPU), cache manager, prefix cache and metrics are vLLM's, with their defaults.
The executor is ours: a step takes the milliseconds that ``step_s`` says and gives each request that is through with its
prompt the same token again and again. The model is a folder with a configuration and a tokenizer, without weights.
More options go to vLLM as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

# platform plugins of other stacks need their native runtime; models come from a folder
os.environ.setdefault("VLLM_PLUGINS", "none")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
import uvloop
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

MODEL = "stand-in"
VOCABULARY = 8192
MAX_MODEL_LEN = 1024
MAX_NUM_SEQS = 8
BLOCK = 16
# 8 sequences of full length would take 512; block 0 is never used
BLOCKS = 257
BATCHED_TOKENS = 256

# milliseconds of a step by padded number of requests that decode, as captured graphs have it
DECODE_MS = {1: 8.0, 2: 10.0, 4: 13.0, 8: 19.0}
_PREFILL_MS = 6.0
_TOKEN_MS = 0.08
_TOKEN = 1000


def step_s(decoding: int, prompt_tokens: int) -> float:
    """Seconds of one step: the smallest size that holds the requests that decode, and what it computes of prompts."""
    ms = min((ms for size, ms in DECODE_MS.items() if size >= decoding), default=0.0) if decoding else 0.0
    if prompt_tokens:
        ms += _PREFILL_MS + _TOKEN_MS * prompt_tokens
    return ms * 1e-3


class StandInPlatform(CpuPlatform):
    """A device that needs no kernels. Nothing of the configuration is changed as a CPU would need it."""

    @classmethod
    def import_kernels(cls) -> None:
        pass

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "unused"


vllm.platforms.current_platform = StandInPlatform()


class PacedExecutor(Executor):
    """Computes nothing, takes its time. Steps follow one another, however early they are handed over."""

    def _init_executor(self) -> None:
        self._device = ThreadPoolExecutor(1)
        # by request: tokens there are to compute before its next one, and which one it generates
        self._known: dict[str, int] = {}
        self._token: dict[str, int] = {}
        self._free_at = 0.0
        self._sampled: Future[ModelRunnerOutput] | None = None

    @property
    def max_concurrent_batches(self) -> int:
        return 2 if self.scheduler_config.async_scheduling else 1

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        hf = self.model_config.hf_config
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=hf.num_key_value_heads,
            head_size=hf.hidden_size // hf.num_attention_heads,
            dtype=torch.bfloat16,
        )
        return [{f"layer{i}": spec for i in range(hf.num_hidden_layers)}]

    def determine_available_memory(self) -> list[int]:
        return [1 << 30]

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        pass

    @property
    def supported_tasks(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("generate",)

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        done: Future[Any] = Future()
        self._forget(scheduler_output.finished_req_ids)
        names = list(scheduler_output.num_scheduled_tokens)
        if not names:
            done.set_result(EMPTY_MODEL_RUNNER_OUTPUT)
            return done if non_block else done.result()
        computed = {}
        for new in scheduler_output.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            self._known[new.req_id] = len(new.prompt_token_ids)
            self._token[new.req_id] = _TOKEN + sum(new.prompt_token_ids) % 997
        cached = scheduler_output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        tokens: list[list[int]] = []
        decoding = prompt_tokens = 0
        for name in names:
            count = scheduler_output.num_scheduled_tokens[name]
            whole = computed[name] + count >= self._known[name]
            if whole and count == 1 and computed[name]:
                decoding += 1
            else:
                prompt_tokens += count
            tokens.append([self._token[name]] if whole else [])
            self._known[name] += whole
        output = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens
        )
        begin = max(time.monotonic(), self._free_at)
        self._free_at = begin + step_s(decoding, prompt_tokens)
        self._sampled = self._device.submit(self._at, self._free_at, output)
        done.set_result(None)
        return done if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        assert self._sampled is not None
        return self._sampled if non_block else self._sampled.result()

    @staticmethod
    def _at(at_s: float, output: ModelRunnerOutput) -> ModelRunnerOutput:
        time.sleep(max(0.0, at_s - time.monotonic()))
        return output

    def _forget(self, names: set[str]) -> None:
        for name in names:
            self._known.pop(name, None)
            self._token.pop(name, None)

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [None]

    def check_health(self) -> None:
        pass

    def shutdown(self) -> None:
        self._device.shutdown(wait=False, cancel_futures=True)


def write_model(folder: Path) -> None:
    """The configuration of a small Llama and a tokenizer of words; no weights."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_MODEL_LEN,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    stated = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": MAX_MODEL_LEN,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))


def main() -> None:
    from vllm.entrypoints.openai.api_server import run_server
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    own = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    own.add_argument("--port", type=int, default=8000)
    ours, rest = own.parse_known_args()
    cli_env_setup()
    with tempfile.TemporaryDirectory(prefix="stand-in-") as folder:
        write_model(Path(folder))
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(
            [
                *("--model", folder),
                *("--served-model-name", MODEL),
                *("--host", "127.0.0.1"),
                *("--port", str(ours.port)),
                *("--max-model-len", str(MAX_MODEL_LEN)),
                *("--max-num-seqs", str(MAX_NUM_SEQS)),
                *("--max-num-batched-tokens", str(BATCHED_TOKENS)),
                *("--num-gpu-blocks-override", str(BLOCKS)),
                "--enable-prompt-tokens-details",
                "--no-enable-log-requests",
                *rest,
            ]
        )
        # not the class of __main__: the engine's process imports it by name
        args.distributed_executor_backend = "tests.stacks.vllm_server.PacedExecutor"
        validate_parsed_serve_args(args)
        uvloop.run(run_server(args))


if __name__ == "__main__":
    main()
