"""Whole directories: what is found, configuration from several places, metrics, and clear refusals."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from tests.samples import copy_sample, row, sample_lines, write_rows


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match="the directory is empty; expected a server log"):
        sg.read_run(tmp_path)
    with pytest.raises(sg.InputError, match="no such directory; give the directory of one run"):
        sg.read_run(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(sg.InputError, match="nothing in it can be diagnosed"):
        sg.read_run(tmp_path)
    with pytest.raises(sg.InputError, match=r"notes\.txt: a file; give the directory"):
        sg.read_run(tmp_path / "notes.txt")


def test_files_of_no_use_are_named(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path)
    (folder / "lifecycle.txt").write_text("runner_exit=0\n")
    (folder / "summary.json").write_text("{}")
    (folder / ".hidden").write_text("")
    (folder / "expected.json").write_text("{}")
    (folder / "windows.BASE.json").write_text("{}")
    run = sg.read_run(folder)
    assert run.notes == (
        "windows.BASE.json: not used; it belongs to rows of the multi-turn runner, whose clock it is on",
        "not read: lifecycle.txt, summary.json",
    )


def test_two_plans(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path)
    (folder / "plan.b.json").write_text((folder / "plan.json").read_text())
    with pytest.raises(sg.InputError, match=r"plan\.json: a second plan beside plan\.b\.json"):
        sg.read_run(folder)


def test_configuration_from_an_artifact(tmp_path: Path) -> None:
    folder = copy_sample("tuned_n8_b0", tmp_path, "server.log", "requests.jsonl")
    data: dict[str, Any] = {"batch_size": 16, "decoder_batch_sizes": [16, 10, 8, 6, 4, 1], "kvcache_num_blocks": 17}
    (folder / "rbln_config.json").write_text(json.dumps(data))
    run = sg.read_run(folder)
    assert run.config == sg.ServingConfig((1, 4, 6, 8, 10, 16), slots=17, max_running=16)
    assert run.details["config_from"] == "rbln_config.json"


def test_configuration_from_the_log(tmp_path: Path) -> None:
    run = sg.read_run(copy_sample("tuned_n8_b0", tmp_path, "server.log", "requests.jsonl"))
    assert run.config == sg.ServingConfig((1, 4, 6, 8, 16), slots=16, max_running=16)
    assert "compiled buckets are not stated; taken from the log: 1, 4, 6, 8, 16" in run.notes


def test_configuration_from_options(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path, "server.log", "requests.jsonl")
    run = sg.read_run(folder, buckets=(1, 2, 4, 6, 8), slots=9)
    assert run.config == sg.ServingConfig((1, 2, 4, 6, 8), slots=9, max_running=8)
    with pytest.raises(sg.InputError, match="the log ran bucket 2, 4, which is not among 1, 8"):
        sg.read_run(folder, buckets=(1, 8))
    with pytest.raises(sg.InputError, match="slots: the log used 8 slots, more than the 7 of options"):
        sg.read_run(folder, buckets=(1, 2, 4, 8), slots=7)


def test_a_plan_that_states_other_buckets(tmp_path: Path) -> None:
    folder = copy_sample("tuned_n8_b0", tmp_path)
    data = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**data, "buckets": [1, 2, 16]}))
    run = sg.read_run(folder)
    assert run.config is not None
    assert run.config.buckets == (1, 4, 6, 8, 16)
    assert any("plan.json: buckets [1, 2, 16] are not those of the log" in note for note in run.notes)


def metrics(**values: float) -> str:
    return "".join(f'# TYPE vllm:{n} counter\nvllm:{n}_total{{model_name="m"}} {v}\n' for n, v in values.items())


def test_metrics_alone(tmp_path: Path) -> None:
    run = sg.read_run(copy_sample("base_n8_b0", tmp_path, "metrics.prom"))
    assert run.details["metrics"]["prefix_cache_hits"] == 9856
    assert (run.requests.height, run.returns, run.steps) == (0, None, None)


def test_metrics_before_and_after(tmp_path: Path) -> None:
    (tmp_path / "metrics-before.prom").write_text(metrics(prompt_tokens=100, prefix_cache_hits=30))
    (tmp_path / "metrics-after.prom").write_text(metrics(prompt_tokens=400, prefix_cache_hits=50))
    assert sg.read_run(tmp_path).details["metrics"] == {"prompt_tokens": 300, "prefix_cache_hits": 20}


def test_metrics_in_natural_order_and_packed(tmp_path: Path) -> None:
    for number, value in ((2, 10), (10, 70), (9, 50)):
        data = metrics(prompt_tokens=value).encode()
        (tmp_path / f"metrics-{number}.prom.gz").write_bytes(gzip.compress(data))
    assert sg.read_run(tmp_path).details["metrics"] == {"prompt_tokens": 60}


def test_metrics_of_a_restarted_server(tmp_path: Path) -> None:
    (tmp_path / "metrics-1.prom").write_text(metrics(prompt_tokens=400))
    (tmp_path / "metrics-2.prom").write_text(metrics(prompt_tokens=100))
    write_rows(tmp_path / "requests.jsonl", [row(0, 0)])
    run = sg.read_run(tmp_path)
    assert run.details["metrics"] == {}
    assert any("metrics-2.prom: prompt_tokens is smaller than in metrics-1.prom" in note for note in run.notes)


@pytest.mark.parametrize("text", ["<html>not found</html>\n", "", "vllm:prompt_tokens_total{a=} x\n"])
def test_metrics_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.prom").write_text(text)
    with pytest.raises(sg.InputError, match=r"metrics\.prom: (not Prometheus text|no metrics in it)"):
        sg.read_run(tmp_path)


def test_metrics_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "metrics.prom").write_text("# TYPE up gauge\nup 1\n")
    write_rows(tmp_path / "requests.jsonl", [row(0, 0)])
    assert "metrics.prom: none of the known vllm counters are in it" in sg.read_run(tmp_path).notes


def test_metrics_of_two_models(tmp_path: Path) -> None:
    text = metrics(prompt_tokens=1).rstrip() + '\nvllm:prompt_tokens_total{model_name="n"} 2\n'
    (tmp_path / "metrics.prom").write_text(text)
    run = sg.read_run(tmp_path)
    assert run.details["metrics"] == {"prompt_tokens": 3}
    assert "metrics.prom: counters of 2 models are added up: m, n" in run.notes


def test_cut_gzip_log(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    packed = gzip.compress(("\n".join(sample_lines()) + "\n").encode())
    (folder / "server.log.gz").write_bytes(packed[: len(packed) * 2 // 3])
    run = sg.read_run(folder)
    assert 0 < (run.decode_steps or 0) < 913
    assert "server.log.gz: the gzip stream ends in the middle; read up to there" in run.notes


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path)
    (folder / "server.log").chmod(0)
    with pytest.raises(sg.InputError, match=r"server\.log: Permission denied"):
        sg.read_run(folder)


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "server.log").mkdir()
    with pytest.raises(sg.InputError, match="nothing in it can be diagnosed"):
        sg.read_run(tmp_path)
