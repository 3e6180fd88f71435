"""What a configuration costs to have, and after how many runs its saving has paid for the compilation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from slotgrid.profile import StackProfile
from slotgrid.study.settings import Arm

NO_DECISION = "none"


@dataclass(frozen=True)
class ArmCost:
    """Seconds to compile, GiB on disk and on the fullest device; None is not known.

    compile_from: where the seconds come from ("given", "study.toml", "profile").
    """

    arm: str
    slots: int
    compile_s: float | None
    compile_from: str | None
    artifact_gib: float | None
    memory_gib_per_device: float | None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class BreakEven:
    """saved_s: device seconds one run (a plan, or a turn in steady load) takes less than on the baseline.

    runs: after so many the saved device seconds exceed the compile seconds; None where nothing is saved or the compile
    time is not known. decision: of the comparison the saving is from (``decisions.py``), "none" before a verdict;
    the saving is established only where it is "passed".
    """

    sessions: int
    arm: str
    basis: str
    unit: str
    compile_s: float | None
    saved_s: float
    runs: int | None
    decision: str

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def arm_cost(arm: Arm, profile: StackProfile, given_compile_s: float | None = None) -> ArmCost:
    """Costs of an arm: a compile time given on the command line, else the study's, else the profile's model."""
    compile_s, source = given_compile_s, "given"
    if compile_s is None:
        compile_s, source = arm.compile_s, "study.toml"
    if compile_s is None and profile.compile is not None:
        compile_s, source = profile.compile.seconds(arm.config), "profile"
    return ArmCost(
        arm.name,
        arm.config.slots,
        compile_s,
        None if compile_s is None else source,
        None if profile.compile is None else profile.compile.artifact_gib(arm.config),
        None if profile.memory is None else profile.memory.fullest_device_gib(arm.config),
    )


def break_even_runs(compile_s: float | None, saved_s: float) -> int | None:
    """Runs after which ``saved_s`` a run exceeds ``compile_s``; None where it never does or is not known."""
    if compile_s is None or saved_s <= 0:
        return None
    return math.ceil(compile_s / saved_s)
