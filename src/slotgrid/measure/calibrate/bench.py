"""Replays that are kept: each is written down once it is whole, and never done twice.

A probe asks for its replays by name and gets rows, whether they were measured now or before the last interruption. So a
probe needs no state of its own, and a stopped calibration goes on after its last whole replay.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError, RunError, SlotgridError
from slotgrid.measure.calibrate.rows import Seen, check_rows
from slotgrid.measure.calibrate.target import Target
from slotgrid.plan import InputPlan

FORMAT = "slotgrid-calibration/1"
HEAD = "calibration.json"


class Bench:
    """A target, and the folder its replays are kept in.

    seed: names all prompts, so that no two calibrations share a prefix; drawn anew unless given, kept for resuming.
    asked: what must be the same for replays to be of one calibration. Raises InputError when the folder holds a
    calibration of something else, or a finished one (unless ``again``, which removes it).
    """

    def __init__(
        self,
        target: Target,
        folder: Path,
        *,
        asked: Mapping[str, Any],
        seed: int | None = None,
        again: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.target = target
        self.folder = folder
        self._say = say or (lambda text: None)
        head = folder / HEAD
        if again and head.exists():
            shutil.rmtree(folder)
        known = target.known
        config = None if known.config is None else known.config.to_dict()
        identity: dict[str, dict[str, Any]] = {
            "target": {**known.identity, "config": config},
            "asked": dict(asked),
        }
        if head.exists():
            data = files.read_json(head)
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise InputError(f"{head}: not the record of a calibration; give another -o, or remove {folder}")
            if data.get("finished"):
                raise InputError(f"{folder}: this calibration is finished; measure anew with --again")
            changed = _changed(data["identity"], identity)
            if changed or (seed is not None and seed != data["seed"]):
                what = ", ".join(changed or ["seed"])
                raise InputError(
                    f"{folder}: holds a calibration of something else, or asked otherwise ({what} differ); use --again"
                )
            # a configuration that is not stated this time stays the one that was
            identity["target"]["config"] = config or data["identity"]["target"].get("config")
            self._head = {**data, "identity": identity, "starts": data["starts"] + 1}
        else:
            self._head = {
                "format": FORMAT,
                "identity": identity,
                "seed": random.SystemRandom().randrange(2**32) if seed is None else seed,
                "started_unix_s": time.time(),
                "starts": 1,
                "finished": False,
            }
        files.write_json(head, self._head)
        self.measured = self.kept = 0
        self._asked_before: set[str] = set()

    @property
    def config(self) -> ServingConfig | None:
        """The server's configuration as it was stated in this start or an earlier one; None if it never was."""
        config = self._head["identity"]["target"].get("config")
        return None if config is None else ServingConfig.from_dict(config)

    @property
    def seed(self) -> int:
        return int(self._head["seed"])

    @property
    def starts(self) -> int:
        """How often this calibration was started, resuming included."""
        return int(self._head["starts"])

    @property
    def started_unix_s(self) -> float:
        return float(self._head["started_unix_s"])

    def order(self, values: list[int], what: str) -> list[int]:
        """The values in an order drawn from the seed: drift of the machine must not look like a trend."""
        drawn = list(values)
        random.Random(f"{self.seed}:{what}").shuffle(drawn)
        return drawn

    def id(self, name: str) -> str:
        """The plan id of a replay; it decides the prompts."""
        return f"calibrate-{self.seed:x}-{name}"

    def say(self, text: str) -> None:
        self._say(text)

    def replay(self, name: str, plan: InputPlan) -> list[Seen]:
        """Rows of a plan in plan order, measured now or kept from before. Raises RunError when a request fails."""
        path = self.folder / f"{name}.json"
        if path.exists():
            data = files.read_json(path)
            if data.get("plan_sha256") == plan.content_sha256:
                self.kept += name not in self._asked_before
                self._asked_before.add(name)
                return [Seen.from_dict(row) for row in data["rows"]]
        try:
            rows = self.target.replay(plan, self.folder / name)
            check_rows(rows, plan.turn_count, name)
            files.write_json(
                path,
                {
                    "name": name,
                    "unix_s": time.time(),
                    "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
                    "plan_sha256": plan.content_sha256,
                    "plan": plan.to_dict(),
                    "rows": [row.to_dict() for row in rows],
                },
                indent=None,
            )
        except SlotgridError as error:
            # whatever it is (the server, the disk): a run has failed, and what is whole stays
            raise RunError(f"{error}; whole replays are kept in {self.folder}, the same command goes on") from None
        self.measured += 1
        self._asked_before.add(name)
        return rows

    def finish(self) -> None:
        """Nothing is left to do; a later start is a new calibration."""
        self._head["finished"] = True
        files.write_json(self.folder / HEAD, self._head)


def _changed(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not the same; a configuration that either start does not know is no difference."""
    names = []
    for part in ("target", "asked"):
        before, after = earlier.get(part, {}), now[part]
        for key in sorted({*before, *after}):
            old, new = before.get(key), after.get(key)
            if old != new and not (key == "config" and None in (old, new)):
                names.append(key)
    return names
