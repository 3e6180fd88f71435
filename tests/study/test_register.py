"""Registering: what is fixed, what refuses to be fixed twice, and how a change is noticed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.errors import InputError
from slotgrid.run import save_run
from slotgrid.search import SearchSpace
from slotgrid.study import manifest
from slotgrid.study import register as registering
from slotgrid.study.collect import ingest, measure
from slotgrid.study.overview import overview
from slotgrid.study.register import register
from slotgrid.study.settings import load_settings
from slotgrid.study.study import open_study
from slotgrid.study.template import init_study
from slotgrid.study.verdict import verdict
from tests.study.small import LATER, NOW, PLACES, hardware_run, registered, text, ticking, write_study


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return registered(tmp_path_factory.mktemp("made") / "study")


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    """A registered study of its own."""
    return Path(shutil.copytree(made, tmp_path / "study"))


def test_template_is_a_study(tmp_path: Path) -> None:
    path = init_study(tmp_path / "new" / "study")
    settings = load_settings(path.parent)
    assert settings.arm_names == ("base", "tuned")
    assert settings.baseline.config == sg.ServingConfig((1, 2, 4, 8))
    assert settings.sets[0].all_sessions == (6, 8, 10)
    assert len(settings.sets[0].replicates) == 3
    path.write_text("mine")
    with pytest.raises(InputError, match=r"study\.toml: already there; a study is never overwritten"):
        init_study(path.parent)
    assert path.read_text() == "mine"


def test_what_is_registered(study: Path) -> None:
    entry = open_study(study).entries[0]
    data = json.loads((entry.folder / "manifest.json").read_text())
    assert data["registered_at"] == NOW
    assert data["kind"] == "registration"
    assert data["previous_sha256"] is None
    assert sorted(data["files"]) == sorted(
        ["study.toml", "profile.toml", "predictions.json"]
        + [f"plans/main/n{n}-s5-b{b}.json" for n in (3, 4) for b in (0, 1)]
    )
    assert data["files"]["study.toml"] == manifest.sha256_of(study / "study.toml")
    assert {"engine/kernel.py", "study/decide.py", "diagnose/cost.py"} <= set(data["code"])
    for row in entry.predictions("main"):
        cell = manifest.Cell("main", row.sessions, row.replicate)
        plan = entry.plan(cell)
        assert plan.content_sha256 == entry.plan_sha256(cell)
        run = sg.simulate(entry.profile, entry.settings.arm(row.arm).config, plan)
        assert (row.device_s, row.reused, row.decode_steps) == (run.device_time_s, run.reused, run.decode_steps)
    assert len(entry.predictions("main")) == PLACES


LATER_COMMANDS: dict[str, Callable[[Path], Any]] = {
    "register": lambda folder: register(folder, now=lambda: LATER, amend="more"),
    "register again": lambda folder: register(folder, now=lambda: LATER),
    "measure": lambda folder: measure(folder, now=lambda: LATER),
    "ingest": lambda folder: ingest(folder, [folder], now=lambda: LATER),
    "verdict": lambda folder: verdict(folder, now=lambda: LATER),
    "report": lambda folder: overview(open_study(folder)),
}


@pytest.mark.parametrize("command", [name for name in LATER_COMMANDS if name != "register again"])
@pytest.mark.parametrize(
    "name",
    [
        "study.toml",
        "registered/0001/study.toml",
        "registered/0001/profile.toml",
        "registered/0001/predictions.json",
        "registered/0001/plans/main/n3-s5-b1.json",
        "registered/0001/manifest.json",
    ],
)
def test_a_changed_file_is_named(name: str, command: str, study: Path) -> None:
    path = study / name
    path.write_bytes(path.read_bytes() + b"\n")
    if (name, command) == ("study.toml", "register"):
        # what an amendment is for; without its option the file is named
        with pytest.raises(InputError, match=r"no new \[\[plans\]\] set"):
            LATER_COMMANDS[command](study)
        command = "register again"
    with pytest.raises(InputError) as error:
        LATER_COMMANDS[command](study)
    assert str(error.value).startswith(f"{path}: changed after it was registered")


def test_missing_and_added_files_are_named(study: Path) -> None:
    plan = study / "registered/0001/plans/main/n3-s5-b1.json"
    kept = plan.read_bytes()
    plan.unlink()
    with pytest.raises(InputError, match=r"n3-s5-b1\.json: missing; it was registered on 2026"):
        open_study(study)
    plan.write_bytes(kept)
    plan.with_name("n3-s5-b9.json").write_bytes(kept)
    with pytest.raises(InputError, match=r"n3-s5-b9\.json: was not there .*\(\.DS_Store, an editor's backup\) can be"):
        open_study(study)
    plan.with_name("n3-s5-b9.json").unlink()
    (study / "registered/0001~").mkdir()
    with pytest.raises(InputError, match=r"0001~: not an entry; 0002 is expected here .* can be removed\)$"):
        open_study(study)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("registered/0001/manifest.json", "registered/0001/manifest.json"),
        ("registered/0001/predictions.json", "registered/0001/predictions.json"),
        ("study.toml", "study.toml"),
        ("log.jsonl", "log.jsonl: line 1"),
    ],
)
def test_line_ends_that_git_changed(name: str, place: str, study: Path) -> None:
    """The message says what a clone with core.autocrlf did; any other change is only a change."""
    path = study / name
    plain = path.read_bytes()
    path.write_bytes(plain.replace(b"\n", b"\r\n"))
    words = r"only its line ends differ, as git makes them with core\.autocrlf: write '\* -text' into \.gitattributes"
    with pytest.raises(InputError, match=rf"{place}: changed after it was .*{words}"):
        verdict(study, now=lambda: LATER)
    path.write_bytes(plain.replace(b"\n", b"\r\n").replace(b"1", b"2", 1))
    with pytest.raises(InputError) as error:
        open_study(study)
    assert "line ends" not in str(error.value)


def test_git_is_told_to_leave_line_ends(tmp_path: Path) -> None:
    """By init, and by register where study.toml was written by hand; what is there stays."""
    assert init_study(tmp_path / "a").with_name(".gitattributes").read_text().endswith("\n* -text\n")
    folder = write_study(tmp_path / "b")
    (folder / ".gitattributes").write_text("* binary\n")
    register(folder, now=lambda: NOW)
    assert (folder / ".gitattributes").read_text() == "* binary\n"
    assert (registered(tmp_path / "c") / ".gitattributes").read_text().endswith("\n* -text\n")


def test_a_clone_with_other_line_ends(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real git: the study is whole in a clone that changes line ends wherever it may."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    for arguments in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=x", "-c", "user.email=x@example.invalid", "commit", "-q", "-m", "one"],
        ["clone", "-q", "-c", "core.autocrlf=true", str(study), str(tmp_path / "clone")],
    ):
        subprocess.run(["git", *arguments], cwd=study, check=True)
    assert open_study(tmp_path / "clone").log.head == open_study(study).log.head


def test_an_entry_of_another_study(study: Path, tmp_path: Path) -> None:
    other = registered(tmp_path / "other", sets=(("main", [6]),))
    shutil.copytree(other / "registered/0001", study / "registered/0002")
    with pytest.raises(InputError, match=r"0002/manifest\.json: does not follow the entry before it"):
        open_study(study)


def test_an_amendment_of_another_study(study: Path, tmp_path: Path) -> None:
    """It has the right number, and another entry before it."""
    other = registered(tmp_path / "other", sets=(("main", [6]),))
    (other / "study.toml").write_text(text(sets=(("main", [6]), ("next", [7]))))
    register(other, now=lambda: LATER, amend="more")
    shutil.copytree(other / "registered/0002", study / "registered/0002")
    with pytest.raises(InputError, match=r"0002/manifest\.json: does not follow the entry before it"):
        open_study(study)


def test_nothing_is_registered_twice(study: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"registered on 2026-03-01.*never registered again"):
        register(study, now=lambda: LATER)
    assert {path: path.read_bytes() for path in study.rglob("*") if path.is_file()} == before
    with pytest.raises(InputError, match="nothing is registered yet"):
        register(write_study(tmp_path / "new"), now=lambda: NOW, amend="why")
    with pytest.raises(InputError, match="nothing is registered; slotgrid study register"):
        open_study(tmp_path / "new")


def test_amendments(study: Path) -> None:
    """They need new plans, leave what was registered alone and follow it in the chain."""
    path = study / "study.toml"
    with pytest.raises(InputError, match=r"no new \[\[plans\]\] set; an amendment counts for plans drawn after it"):
        register(study, now=lambda: LATER, amend="wider")
    path.write_text(text(sets=(("main", [7]),)))
    with pytest.raises(InputError, match="set main differs from what entry 1 registered"):
        register(study, now=lambda: LATER, amend="other seed")
    path.write_text(text(sets=(("main", [5]), ("again", [5]))))
    with pytest.raises(InputError, match=r"set again, N = 3, replicate s5-b0: the plan is the same as entry 1"):
        register(study, now=lambda: LATER, amend="again")
    path.write_text(text(sets=(("main", [5]), ("again", [6])), more="[criteria]\nchannel_difference = 0.05\n"))
    with pytest.raises(InputError, match="--amend: empty"):
        register(study, now=lambda: LATER, amend="  ")
    with pytest.raises(InputError, match=r"study\.toml: changed after it was registered"):
        measure(study, now=lambda: LATER)
    entry = register(study, now=lambda: LATER, amend="channels differ more than thought")
    first, second = open_study(study).entries
    assert (entry.number, entry.data["kind"], entry.data["reason"]) == (
        2, "amendment", "channels differ more than thought",
    )  # fmt: skip
    assert second.data["previous_sha256"] == first.sha256
    assert [plans.name for plans in first.sets] == ["main"]
    assert [plans.name for plans in second.sets] == ["again"]
    assert first.settings.device_time.channel_difference == 0.02
    assert second.settings.device_time.channel_difference == 0.05


@pytest.mark.parametrize(
    ("seeds", "more", "words"),
    [
        ([2], "", "seed 2 is an exploration seed of workload small"),
        ([11], "", "seed 11 is an evaluation seed of workload small"),
        ([77], "[search]\nseeds = [77]\n", r"seed 77 is listed in search\.seeds"),
    ],
)
def test_seeds_of_a_search_are_refused(seeds: list[int], more: str, words: str, tmp_path: Path) -> None:
    folder = write_study(tmp_path, sets=(("main", seeds),), more=more)
    with pytest.raises(InputError, match=words):
        register(folder, now=lambda: NOW)
    assert not (folder / "registered").exists()


@pytest.mark.parametrize("more", ["[search]\n", "[search]\nseeds = []\n", "[search]\nfolders = []\n"])
def test_what_chose_the_configurations_must_be_said(more: str, tmp_path: Path) -> None:
    folder = write_study(tmp_path, more=more)
    with pytest.raises(InputError) as error:
        register(folder, now=lambda: NOW)
    words = (
        "study.toml: search: does not say what the configurations were chosen with; write [search] and seeds = [1, 2]"
    )
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    path = folder / "study.toml"
    path.write_text(path.read_text().replace(more, ""))
    with pytest.raises(InputError, match="none = true if no search chose them"):
        register(folder, now=lambda: NOW)
    path.write_text(
        "[search]\nnone = true\n".join(path.read_text().split("[[arm]]", 1)).replace("true\n", "true\n[[arm]]")
    )
    assert register(folder, now=lambda: NOW).data["search"]["none"] is True


def test_the_template_leaves_the_choice(tmp_path: Path) -> None:
    """Every way to say it is there, as a comment; the file as it is written is refused."""
    path = init_study(tmp_path)
    with pytest.raises(InputError, match="does not say what the configurations were chosen with"):
        register(tmp_path, now=lambda: NOW)
    for line in ("seeds = [1, 2, 3]", 'folders = ["../slotgrid-search"]', "none = true"):
        assert path.read_text().count(f"\n# {line}") == 1
        path.write_text(path.read_text().replace(f"\n# {line}", f"\n{line}"))
        settings = load_settings(tmp_path)
        assert settings.search_seeds or settings.search_folders or settings.search_none
        path.write_text(path.read_text().replace(f"\n{line}", f"\n# {line}"))


def test_no_run_of_the_predicting_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of registration is read after the last prediction."""
    clock = ticking()
    real, during = registering.predict, []

    def timed(*args: Any) -> Any:
        during.append(clock())
        return real(*args)

    folder = write_study(tmp_path / "study", runs="")
    with monkeypatch.context() as patch:
        patch.setattr(registering, "predict", timed)
        entry = register(folder, now=clock)
    assert entry.registered_at > during[-1]
    run = hardware_run(entry, entry.cells(entry.sets[0])[0], "base", details={"started_at": during[-1]})
    save_run(run, tmp_path / "run")
    with pytest.raises(InputError, match=rf"began {re.escape(during[-1])}, before the registration"):
        ingest(folder, [tmp_path / "run"], now=lambda: LATER)


def test_seeds_of_a_search_folder(profile: sg.StackProfile, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", more='[search]\nfolders = ["../found"]\n')
    sg.search(
        profile,
        SearchSpace((2,), 2),
        sg.load_workload(folder / "small.toml"),
        sessions=(2,),
        baseline=sg.ServingConfig((1, 2)),
        explore_seeds=(5,),
        evaluate_seeds=(6,),
        blocks=(0,),
        folder=tmp_path / "found",
    )
    with pytest.raises(InputError, match=r"seed 5 is a seed of the search in \.\./found"):
        register(folder, now=lambda: NOW)
    state = tmp_path / "found" / "search.json"
    told = json.loads(state.read_text())
    # the same plans under other seeds: what was drawn counts, not what it is called
    state.write_text(json.dumps({**told, "seeds": {"explore": [905], "evaluate": [906]}}))
    write_study(folder, sets=(("main", [5]),), more='[search]\nfolders = ["../found"]\n')
    (folder / "study.toml").write_text((folder / "study.toml").read_text().replace("[3]", "[2]"))
    words = r"set main, N = 2, replicate s5-b0: the plan is one that the search in \.\./found drew"
    with pytest.raises(InputError, match=words):
        register(folder, now=lambda: NOW)
    for wrong in ({"seeds": {"explore": ["x"]}}, {"seeds": {"explore": [1]}, "plans": 3}):
        state.write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=r"search\.json: not the seeds and plans of a search"):
            register(folder, now=lambda: NOW)
    state.write_text(json.dumps({"result": {}}))
    with pytest.raises(InputError, match=r"search\.json: does not tell the seeds"):
        register(folder, now=lambda: NOW)
    state.unlink()
    with pytest.raises(InputError, match=r"search\.json: No such file"):
        register(folder, now=lambda: NOW)
    # what was checked is kept
    state.write_text(json.dumps(told))
    (folder / "study.toml").write_text((folder / "study.toml").read_text().replace("seeds = [5]", "seeds = [7]"))
    search = register(folder, now=lambda: NOW).data["search"]
    assert search["folders"] == [
        {"folder": "../found", "sha256": manifest.sha256_of(state), "seeds": [5, 6], "plans": told["plans"]}
    ]
    assert len(told["plans"]) == 2
    assert search["workload_seeds"] == {"small": [1, 2, 11]}


def test_a_stopped_registration_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    """Stopped after four predictions, the fourth line cut, and after two more: three are made, nothing differs."""
    folder = write_study(tmp_path / "study")
    real, made_now = registering.predict, []

    def counted(*args: Any) -> Any:
        if len(made_now) == stop_after:
            raise KeyboardInterrupt
        made_now.append(args[3])
        return real(*args)

    monkeypatch.setattr(registering, "predict", counted)
    stop_after = 4
    with pytest.raises(KeyboardInterrupt):
        register(folder, now=lambda: NOW)
    assert manifest.load_entries(folder) == []
    so_far = next(folder.rglob(".so-far.jsonl"))
    so_far.write_bytes(so_far.read_bytes()[:-20])
    made_now.clear()
    stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        register(folder, now=lambda: NOW)
    made_now.clear()
    stop_after = 99
    entry = register(folder, now=lambda: NOW)
    assert len(made_now) == PLACES - 3 - 2
    assert sorted(entry.data["files"].items()) == sorted(open_study(made).entries[0].data["files"].items())
    assert [path.name for path in (folder / "registered").iterdir()] == ["0001"]


def test_what_a_stopped_registration_left_is_not_used_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_study(tmp_path / "study")
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write_manifest", _stop)
        with pytest.raises(KeyboardInterrupt):
            register(folder, now=lambda: NOW)
    (folder / "study.toml").write_text(text(sets=(("main", [6]),)))
    entry = register(folder, now=lambda: NOW)
    assert sorted(entry.data["plans"]) == [f"plans/main/n{n}-s6-b{b}.json" for n in (3, 4) for b in (0, 1)]
    assert entry.predictions("main")[0].replicate == "s6-b0"


def _stop(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


def test_another_profile_or_version_is_named(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed code is refused by name unless a reason is given, which is then kept."""
    real = manifest.code_hashes()
    monkeypatch.setattr(manifest, "code_hashes", lambda: {**real, "study/decide.py": "0", "engine/new.py": "1"})
    for command in (measure, verdict):
        with pytest.raises(InputError, match=r"slotgrid/engine/new\.py and 1 more: changed after entry 1"):
            command(study, now=lambda: LATER)
    found = measure(study, now=lambda: LATER, other_code="a bug in the page")
    assert found.added[0].data["code"]["changed"] == ["engine/new.py", "study/decide.py"]
    stored = verdict(study, now=lambda: LATER, other_code="a bug in the page")
    assert stored.data["code"]["reason"] == "a bug in the page"


BAD = [
    ('name = "wide"', 'name = "base"', "base is there twice"),
    ('name = "wide"', 'name = "../wide"', "allowed: letters, digits"),
    ("sessions = [3]", "sessions = [4]", "4 is there twice"),
    (
        "sessions = [3]\nexploratory = [4]",
        "sessions = []\nexploratory = []",
        "sessions is []; expected a list of whole",
    ),
    ("seeds = [5]", "seeds = [5, 5]", "5 is there twice"),
    ("blocks = [0, 1]", 'blocks = [0, 1]\nload = "long"', "allowed: whole run, steady"),
    ("blocks = [0, 1]", 'blocks = [0, 1]\nwindow = "60s"', "a window belongs to load = 'steady'"),
    ("blocks = [0, 1]", 'blocks = [0, 1]\nload = "steady"\nwindow = "60"', "has no unit"),
    ("buckets = [1, 2]\n", "buckets = [2, 1]\n", "sizes must ascend"),
    ('runs = "simulated"', 'runs = "guessed"', "allowed: measured, simulated"),
    ('rules = "paper"', 'rules = "none"', "allowed: real, paper"),
    ('rules = "paper"', 'padding = "much"', "padding: 'much'"),
    ('format = "slotgrid-study/1"', 'format = "slotgrid-study/9"', "this version reads"),
    ('format = "slotgrid-study/1"', 'format = "slotgrid-study/1"\nensemble = 5', "at least 39"),
    ('format = "slotgrid-study/1"', 'format = "slotgrid-study/1"\nbaseline = "x"', "allowed: a name of an arm"),
    ('format = "slotgrid-study/1"', 'format = "slotgrid-study/1"\nclock = "sun"', "allowed: price, operating"),
    ('format = "slotgrid-study/1"', 'format = "slotgrid-study/1"\nspeed = 1', "speed: unknown key"),
    ("[criteria]", "[criteria]\nequal_band = [1.1, 1.2]", r"expected [low, high] around 1"),
    ("[criteria]", '[criteria]\ntolerance = "wide"', "allowed: fixed, residual"),
    ("[criteria]", "[criteria]\nlargest_error = nan", "expected a finite number"),
    ("[criteria]", "[steady_criteria]\nresamples = 0", "at least 1"),
    ("[criteria]", "[criteria]\nlargest_errors = 0.1", "largest_errors: unknown key"),
    ("none = true", "folders = 3", "expected a list of texts"),
    ("none = true", "none = false", "search.none is False; allowed: true, or leave it out"),
    ("none = true", "none = true\nseeds = [1]", "no search chose the configurations; leave out seeds"),
]


@pytest.mark.parametrize(("old", "new", "words"), BAD, ids=[words for _, _, words in BAD])
def test_bad_settings_are_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    folder = write_study(tmp_path, more="[criteria]\n")
    path = folder / "study.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError) as error:
        load_settings(folder)
    assert "study.toml" in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_to_read(tmp_path: Path) -> None:
    for command in LATER_COMMANDS.values():
        with pytest.raises(InputError, match=r"nowhere: no such directory; expected a study directory"):
            command(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: is a file; expected a study directory"):
        open_study(tmp_path / "file")
    with pytest.raises(InputError, match=r"no study\.toml in it; slotgrid study init"):
        load_settings(tmp_path)
    (tmp_path / "study.toml").write_text("")
    with pytest.raises(InputError, match=r"study\.toml: the file is empty"):
        load_settings(tmp_path)


def test_ensembles_give_intervals(tmp_path: Path) -> None:
    """As many samples as asked for, the same for the same seed, and an interval around what they say."""
    folder = write_study(tmp_path / "study")
    path = folder / "study.toml"
    path.write_text(path.read_text().replace("profile =", "ensemble = 39\nprofile =", 1))
    entry = register(folder, now=lambda: NOW)
    row = entry.predictions("main")[1]
    plan = entry.plan(manifest.Cell("main", row.sessions, row.replicate))
    again = sg.simulate(entry.profile, entry.settings.arm(row.arm).config, plan, ensemble=39, seed=0)
    assert row.samples_s == tuple(again.device_time_s)
    for ratio in overview(open_study(folder)).sets[0].predicted:
        assert ratio.interval is not None
        assert 0.5 < ratio.interval.low < ratio.interval.high < 1.5
