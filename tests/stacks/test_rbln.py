"""Compile commands for Rebellions."""

from __future__ import annotations

import shlex

import slotgrid as sg
from slotgrid.stacks import compile_command


def test_compile_command(profile: sg.StackProfile) -> None:
    words = compile_command(profile, sg.ServingConfig((1, 4, 6, 8, 10, 16)), 8192)
    assert words is not None
    assert shlex.join(words) == (
        "optimum-rbln-cli --output-dir qwen3-4b-b1-4-6-8-10-16-s16 --model-id Qwen/Qwen3-4B --batch_size 16 "
        "--decoder_batch_sizes 1,4,6,8,10,16 --max_seq_len 8192 --num_devices 4"
    )


def test_extra_slots_are_named_and_one_bucket_stays_a_list(profile: sg.StackProfile) -> None:
    words = compile_command(profile, sg.ServingConfig((8,), slots=9), 4096)
    assert words is not None
    assert words[words.index("--decoder_batch_sizes") + 1] == "[8]"
    assert words[-2:] == ["--kvcache_num_blocks", "9"]
