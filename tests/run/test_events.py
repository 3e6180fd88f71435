"""The event format: what is accepted, what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.run import events

START = {
    "event": "start",
    "t_ns": 1,
    "pid": 7,
    "format": events.FORMAT,
    "writer": "test 1",
    "versions": {},
    "files": {},
    "known": True,
}
STEP = {"event": "step_start", "t_ns": 5, "pid": 7, "step": 0, "kind": "decode", "running": 3, "bucket": 4}


def write(path: Path, *lines: Any, end: str = "\n") -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return path


def test_events_are_sorted_by_time_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    other = {**START, "pid": 8, "t_ns": 3}
    early = {"event": "release", "t_ns": 4, "pid": 8, "request": "r", "slot": 0}
    path = write(tmp_path / "e", START, STEP, "", other, early, '{"event": "rel', end="")
    assert [e["t_ns"] for e in events.read_events(path)] == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"event": "stop"}, "event is 'stop'; allowed: start, step_start"),
        ({"step": None}, "step_start: step is missing"),
        ({"step": "0"}, "step is '0'; expected int"),
        ({"step": True}, "step is True; expected int"),
        ({"t_ns": 1.5}, "t_ns is 1.5; expected int"),
        ({"kind": "both"}, "kind is 'both'; allowed: prefill, decode"),
        ({"pid": 9}, "process 9 has no start event before it"),
    ],
)
def test_bad_events(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "e", START, {**STEP, **change})
    with pytest.raises(sg.InputError) as caught:
        events.read_events(path)
    assert str(caught.value).startswith(f"{path}: line 2: ")
    assert message in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    for text, message in (("", "no events"), ("x\n", "line 1: not JSON"), ("[1]\n", "line 1: not a JSON object")):
        (tmp_path / "e").write_text(text)
        with pytest.raises(sg.InputError, match=message):
            events.read_events(tmp_path / "e")
    with pytest.raises(sg.InputError, match="allowed: slotgrid-events/1"):
        events.read_events(write(tmp_path / "e", {**START, "format": "slotgrid-events/0"}))


def test_the_page_names_every_field() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "events.md").read_text()
    for name, fields in events.FIELDS.items():
        assert f"### `{name}`" in page
        section = page.split(f"### `{name}`")[1].split("###")[0]
        for field in fields:
            assert f"`{field.name}`" in section, f"{name}: {field.name}"
    for field in events.COMMON:
        assert f"`{field.name}`" in page
