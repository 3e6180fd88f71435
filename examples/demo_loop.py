"""The whole loop on this machine, without an accelerator: compile a small static engine, serve it, calibrate it, replay
a plan on it, diagnose the run, and compare what was predicted from the calibrated profile with what was measured.

    make demo-loop          # or: python examples/demo_loop.py [FOLDER] [--calibrate http]

The engine is calibrated in process on the CPU clock: it computes in this machine's processor, and there whatever else
runs makes wall times useless for costs (docs/calibrate.md has the numbers). The plan is replayed twice: over HTTP, as
clients would, and in process on the CPU clock, where time is comparable with the profile. On a quiet machine
``--calibrate http`` does everything over HTTP. Under five minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import slotgrid as sg
from slotgrid.measure.interrupts import ended_as_interrupt
from slotgrid.run.readers import read_run

BUCKETS, SLOTS, LENGTH, CHUNK = (1, 2, 4), 5, 512, 64
PATIENCE_S = 60.0
MARKER = ".demo-loop"
BEGIN = time.monotonic()


def make_plan() -> sg.InputPlan:
    """Seven clients, more than there are slots: some returns find their prefix, some do not."""
    draw = random.Random(20261130)
    clients = []
    for c in range(7):
        turns = []
        for t in range(4):
            new = draw.randint(60, 140) if t == 0 else draw.randint(8, 24)
            turns.append(sg.Turn(new, draw.randint(12, 40), draw.choice([0.1, 0.3, 0.8, 2.0]) if t < 3 else 0.0))
        clients.append(sg.Client(0.2 * c, (sg.Session(f"c{c}", tuple(turns)),)))
    return sg.InputPlan("demo-loop", tuple(clients), max_seq_len=LENGTH)


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGIN:5.1f} s] {text}", flush=True)


def slotgrid(*arguments: object) -> str:
    """Run a command; its stdout. Raises SystemExit with its error when it fails."""
    words = [str(argument) for argument in arguments]
    say(f"slotgrid {' '.join(words)}")
    done = subprocess.run([sys.executable, "-m", "slotgrid", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"slotgrid {words[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def serving(artifact: Path, events: Path) -> Iterator[str]:
    """A server on a free port; it is ended whatever happens, by its own process."""
    words = ["serve", str(artifact), "--port", "0", "--json", "--events", str(events)]
    say(f"slotgrid {' '.join(words)}")
    log = open(events.with_name("server.log"), "w")  # noqa: SIM115  # closed below
    server = subprocess.Popen(
        [sys.executable, "-m", "slotgrid", *words],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # ctrl-c in the terminal is this script's to handle
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        ready, _, _ = select.select([server.stdout], [], [], PATIENCE_S)
        line = server.stdout.readline() if ready else ""
        if not line:
            raise SystemExit(f"the server did not start: {Path(log.name).read_text().strip()}")
        yield json.loads(line)["base_url"]
    finally:
        server.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                server.wait(PATIENCE_S)
        finally:
            # also when a second ctrl-c does not want to wait
            server.kill()
            server.wait()
        assert server.stdout is not None
        server.stdout.close()
        log.close()


def measured(folder: Path) -> dict[str, float]:
    """What a run shows that was also predicted."""
    run = read_run(folder)
    if run.steps is None or run.reused is None or run.wall_s is None or run.padding_ratio is None:
        raise SystemExit(f"{folder}: the server's event log is not part of the run")
    requests = run.requests
    return {
        "reused": run.reused,
        "device_s": float(run.steps["duration_s"].sum()),
        "makespan_s": float(requests["finish_s"].max() - requests["arrival_s"].min()),  # type: ignore[operator]
        "padding": run.padding_ratio,
    }


def compare(predicted: dict[str, Any], runs: dict[str, dict[str, float]], returns: int) -> None:
    mine = {
        "reused": predicted["reused"],
        "device_s": predicted["device_time_s"],
        "makespan_s": predicted["wall_s"],
        "padding": predicted["padding_ratio"],
    }
    names = {
        "reused": f"returns reused, of {returns}",
        "device_s": "device time, s",
        "makespan_s": "makespan, s",
        "padding": "padding ratio",
    }
    print(f"\n{'':24}{'predicted':>10}" + "".join(f"{name:>24}{'error':>9}" for name in runs))
    for key, label in names.items():
        digits = 0 if key == "reused" else 3
        line = f"{label:24}{mine[key]:>10.{digits}f}"
        for run in runs.values():
            off = mine[key] - run[key]
            # shares are compared as they are, seconds by their ratio
            error = f"{off / run[key]:+.1%}" if key.endswith("_s") else f"{off:+.{digits}f}"
            line += f"{run[key]:>24.{digits}f}{error:>9}"
        print(line)


def make_room(folder: Path) -> None:
    """An empty folder. Only what this script made before is removed: it is known by a file of its own."""
    if folder.exists() and not folder.is_dir():
        raise SystemExit(f"demo-loop: {folder}: a file; give a folder")
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).is_file():
            raise SystemExit(f"demo-loop: {folder}: holds something else already; give a new folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("made by examples/demo_loop.py, which removes this folder when it runs again\n")


def loop(folder: Path, how: str) -> None:
    make_room(folder)
    artifact, plan, profile = folder / "artifact", folder / "plan.json", folder / "profile.toml"
    buckets = ",".join(map(str, BUCKETS))
    slotgrid(
        *("compile", "--buckets", buckets, "--slots", SLOTS, "--max-seq-len", LENGTH),
        *("--prefill-chunk", CHUNK, "-o", artifact),
    )
    drawn = make_plan()
    drawn.save(plan)
    events = folder / "events.jsonl"
    with serving(artifact, events) as url:
        target: Sequence[object] = (
            ("--base-url", url, "--events", events) if how == "http" else ("--artifact", artifact)
        )
        print(slotgrid("calibrate", *target, "-o", profile, "--most-repeats", 5), end="")
        predicted = json.loads(
            slotgrid("simulate", plan, "--profile", profile, "--buckets", buckets, "--slots", SLOTS, "--json")
        )
        slotgrid("replay", plan, "--base-url", url, "-o", folder / "http")
    # the server's own log of what it did: steps, evictions, admissions
    shutil.copy(events, folder / "http" / "events.jsonl")
    slotgrid("replay", plan, "--artifact", artifact, "-o", folder / "cpu")
    print(slotgrid("diagnose", folder / "http", "--profile", profile), end="")
    runs = {"HTTP, wall clock": measured(folder / "http"), "in process, CPU clock": measured(folder / "cpu")}
    compare(predicted, runs, predicted["returns"])
    busy = runs["HTTP, wall clock"]["device_s"] / runs["in process, CPU clock"]["device_s"]
    print(f"\nA step took {busy:.2f} x as long by the wall as on the CPU: what else this machine does, and HTTP.")
    say(f"everything is in {folder}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("out/demo-loop"))
    parser.add_argument("--calibrate", choices=["cpu", "http"], default="cpu", help="where the costs are measured")
    options = parser.parse_args()
    try:
        with ended_as_interrupt():
            loop(options.folder, options.calibrate)
    except KeyboardInterrupt:
        print("demo-loop: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
