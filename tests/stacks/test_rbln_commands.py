"""Command lines, parsed back by the stack's own code where it runs without its native runtime."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.stacks.rbln import commands
from slotgrid.stacks.rbln.artifact import read_artifact
from tests.stacks import wheels
from tests.stacks.artifacts import optimum_stand_ins, write, written_config

MODEL = "Qwen/Qwen3-4B"


def compiled_with(release: str, words: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """What the real ``optimum-rbln-cli`` would hand to the compiler, or to its resize function."""
    seen: dict[str, Any] = {}

    class Model:
        @classmethod
        def from_pretrained(cls, model_id: str, **options: Any) -> None:
            seen.update(model_id=model_id, **options)

    stand_ins = optimum_stand_ins()
    for name, value in (("model_utils", "get_rbln_model_cls"), ("runtime_utils", "ContextRblnConfig")):
        module = types.ModuleType(f"optimum.rbln.utils.{name}")
        setattr(module, value, (lambda _: Model) if name == "model_utils" else mock.MagicMock())
        stand_ins[module.__name__] = module
    with wheels.imported(release, stand_ins):
        cli = wheels.load("optimum.rbln.cli")
        cli._infer_rbln_class_from_model_id = lambda *_, **__: "RBLNQwen3ForCausalLM"
        cli._handle_kvcache_num_blocks = lambda folder, get, blocks, output, budget: seen.update(
            resized=folder, blocks=blocks, output_dir=output, get=get, budget=budget
        )
        with mock.patch.object(sys, "argv", list(words)), mock.patch("builtins.print"):
            cli.main()
    return seen


@pytest.mark.parametrize("release", ["0.11.1", "0.11.2", "0.12.0"])
@pytest.mark.parametrize(
    "config",
    [
        sg.ServingConfig((1, 2, 4, 8)),
        sg.ServingConfig((1, 4, 6, 8, 10, 16)),
        sg.ServingConfig((8,)),
        sg.ServingConfig((1, 8), slots=9),
        sg.ServingConfig((1, 8), slots=6),
    ],
    ids=lambda config: config.label,
)
def test_compile_command_is_parsed_back(tmp_path: Path, release: str, config: sg.ServingConfig) -> None:
    out = tmp_path / "compiled"
    words = commands.compile_command(config, model_id=MODEL, max_seq_len=8192, devices=4, output_dir=str(out))
    seen = compiled_with(release, words)
    assert seen["model_id"] == MODEL
    assert seen["model_save_dir"] == str(out)
    expected: dict[str, Any] = {
        "batch_size": config.max_running,
        "decoder_batch_sizes": list(config.buckets),
        "max_seq_len": 8192,
        "num_devices": 4,
    }
    if config.slots != config.max_running:
        expected["kvcache_num_blocks"] = config.slots
    assert seen["rbln_config"] == expected
    # and the configuration class accepts it
    blocks = expected.get("kvcache_num_blocks", config.max_running)
    written = written_config(release, batch_size=config.max_running, buckets=config.buckets, blocks=blocks, layers=1)
    assert read_artifact(write(tmp_path / "artifact", written)).config == config


def test_only_the_blocks_differ_so_resize(tmp_path: Path) -> None:
    data = written_config("0.11.1", batch_size=8, buckets=[1, 2, 4, 8], blocks=8, auto=True)
    artifact = read_artifact(write(tmp_path / "a", data))

    def build(config: sg.ServingConfig, **changes: Any) -> commands.Command:
        options: dict[str, Any] = {"release": "0.12.0", "max_seq_len": 8192, "devices": 4} | changes
        return commands.build_command(config, model_id=MODEL, output_dir=str(tmp_path / "b"), **options)

    nine = sg.ServingConfig((1, 2, 4, 8), slots=9)
    command = build(nine, artifact=artifact)
    assert command.purpose == "resize"
    seen = compiled_with("0.12.0", command.words)
    assert seen == {
        "resized": artifact.folder,
        "blocks": 9,
        "output_dir": str(tmp_path / "b"),
        "get": False,
        "budget": None,
    }
    # anything else needs a compilation
    assert build(nine).purpose == "compile"
    assert build(nine, artifact=artifact, release="0.11.2").purpose == "compile"
    assert build(nine, artifact=artifact, max_seq_len=4096).purpose == "compile"
    assert build(nine, artifact=artifact, devices=8).purpose == "compile"
    assert build(sg.ServingConfig((1, 4, 8), slots=9), artifact=artifact).purpose == "compile"
    assert build(sg.ServingConfig((1, 2, 4, 8)), artifact=artifact).purpose == "compile"
    assert build(sg.ServingConfig((1, 2, 4, 8), slots=7), artifact=artifact).purpose == "compile"
    fixed = read_artifact(write(tmp_path / "c", written_config("0.12.0", batch_size=8, buckets=[1, 2, 4, 8], blocks=8)))
    assert build(nine, artifact=fixed).purpose == "compile"
    options: dict[str, Any] = {"max_seq_len": 8192, "devices": 4}
    assert "fixed size" in str(commands.why_not_resize(fixed, nine, release="0.12.0", **options))
    assert "0.12.0 is the first" in str(commands.why_not_resize(artifact, nine, release="0.11.1", **options))
    seven = sg.ServingConfig((1, 2, 4, 8), slots=7)
    assert "refused by the command" in str(commands.why_not_resize(artifact, seven, release="0.12.0", **options))
    with pytest.raises(sg.InputError, match="the one block is kept back for padding; at least 2"):
        build(sg.ServingConfig((1, 8), slots=1))


def test_the_resize_command_would_leave_a_fixed_cache_as_it_is() -> None:
    """Why ``is_auto`` is asked for: the wheel rescales only those tensors, and eager attention settles the number of
    blocks before the caches are described."""
    root = wheels.site_packages("0.12.0") / "optimum/rbln/transformers"
    attention = (root / "modeling_attention_utils.py").read_text()
    assert "for cache_meta in rbln_config.cache_metas if cache_meta.can_resize}" in attention
    model = (root / "models/decoderonly/modeling_decoderonly.py").read_text()
    assert "rbln_config.kvcache_num_blocks = rbln_config.num_full_blocks" in model


def serve_parser() -> argparse.ArgumentParser:
    """The documented options of ``vllm serve`` that are used here."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("program", choices=["vllm"])
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model_tag")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--model-impl", choices=["auto", "vllm", "transformers", "optimum"])
    parser.add_argument("--rbln-decode-batch-bucket-strategy", choices=["exponential", "linear", "manual"])
    parser.add_argument("--rbln-decode-batch-bucket-manual-buckets", type=int, nargs="+")
    return parser


def from_shell(text: str) -> tuple[dict[str, str], list[str]]:
    """What a shell makes of a command line: added environment and words."""
    script = f"set -- {text}; printf '%s\\0' \"$@\""
    assert "\n" not in text
    found = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ))
    words = found.stdout.split("\0")[:-1]
    environment = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    return environment, words


def test_serve_command_is_parsed_back() -> None:
    command = commands.serve_command("compiled/my model", port=8001, observe="out/events.jsonl")
    environment, words = from_shell(command.text)
    arguments = serve_parser().parse_args(words)
    assert (arguments.model_tag, arguments.port) == ("compiled/my model", 8001)
    assert arguments.enable_prefix_caching is True
    assert arguments.enable_prompt_tokens_details is True
    assert environment == {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_RBLN_METRICS": "1",
        "SLOTGRID_OBSERVE": "out/events.jsonl",
    }
    assert "SLOTGRID_OBSERVE" not in commands.serve_command("x").text


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.sets(st.integers(2, 64), max_size=5), st.integers(0, 2))
def test_torch_compile_buckets_are_parsed_back(between: set[int], which: int) -> None:
    config = sg.ServingConfig((1, *sorted(between)) if between else (1,))
    release = ("0.11.1", "0.11.2", "0.12.0")[which]
    command = commands.torch_compile_command(config, model_id=MODEL, max_seq_len=4096, release=release, port=9)
    environment, words = dict(command.environment), shlex.split(shlex.join(command.words))
    arguments = serve_parser().parse_args(words)
    assert (arguments.model_tag, arguments.max_num_seqs, arguments.max_model_len) == (MODEL, config.buckets[-1], 4096)
    if release == "0.12.0":
        assert arguments.model_impl == "vllm"
        assert arguments.rbln_decode_batch_bucket_strategy == "manual"
        assert arguments.rbln_decode_batch_bucket_manual_buckets == list(config.buckets)
        assert not any("BUCKET" in name for name in environment)
    else:
        with wheels.imported("0.12.0"), mock.patch.dict(os.environ, environment):
            # the wheel's reading of the same variables
            envs = wheels.load("vllm_rbln.envs")
            assert envs.get_decode_batch_bucket_strategy() == "manual"
            assert envs.get_decode_batch_bucket_manual_buckets() == list(config.buckets)


def test_flags_are_fields_of_the_real_config() -> None:
    source = (wheels.site_packages("0.12.0") / "vllm_rbln" / "config.py").read_text()
    command = commands.torch_compile_command(
        sg.ServingConfig((1, 8)), model_id=MODEL, max_seq_len=4096, release="0.12.0"
    )
    flags = [word for word in command.words if word.startswith("--rbln-")]
    assert len(flags) == 2
    for flag in flags:
        assert f"    {flag.removeprefix('--rbln-').replace('-', '_')}: " in source
    old = (wheels.site_packages("0.11.1") / "vllm_rbln" / "envs.py").read_text()
    for name in (commands.STRATEGY, commands.MANUAL_BUCKETS, commands.USE_TORCH_COMPILE, "VLLM_RBLN_METRICS"):
        assert f'"{name}"' in old


def test_bad_input() -> None:
    with pytest.raises(sg.InputError, match=r"release: '0.13.0' is not known; known are 0.11.1"):
        commands.serve_command("x") and commands.torch_compile_command(
            sg.ServingConfig((1,)), model_id=MODEL, max_seq_len=1, release="0.13.0"
        )
    uneven = sg.ServingConfig((1, 8), max_running=6)
    with pytest.raises(sg.InputError, match="must equal max_running 6"):
        commands.torch_compile_command(uneven, model_id=MODEL, max_seq_len=1, release="0.12.0")
    with pytest.raises(sg.InputError, match="on RBLN both are the batch size"):
        commands.build_command(
            uneven, model_id=MODEL, max_seq_len=1, devices=None, output_dir="x", release="0.12.0", artifact=None
        )
