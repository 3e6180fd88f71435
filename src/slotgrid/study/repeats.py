"""Run directories of untreated repeats: what of them may be counted, and their channels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slotgrid.errors import InputError
from slotgrid.plan import load_plan
from slotgrid.profile import StackProfile
from slotgrid.run import Run
from slotgrid.run.readers import read_run
from slotgrid.study.null import Repeat
from slotgrid.study.observe import channels
from slotgrid.study.records import content_digest
from slotgrid.study.settings import SIMULATED
from slotgrid.study.validity import Planned, planned_tokens, ran_tokens, repeat_reasons

# beside the rows of a run
_PLAN = "plan.json"


def repeats_of_runs(folders: Sequence[Path], profile: StackProfile) -> dict[str, list[Repeat]]:
    """Repeats from run directories, grouped by plan and configuration.

    Raises InputError for a run that does not say its plan, is not valid, lacks a channel, or is there twice.
    """
    groups: dict[str, list[Repeat]] = {}
    seen: dict[str, Path] = {}
    plans: dict[str, tuple[Planned, str]] = {}
    for path in folders:
        run = read_run(path)
        if run.plan_sha256 is None:
            raise InputError(
                f"{path}: does not say which plan it ran; repeats are of one plan (plan.json beside the rows)"
            )
        digest = content_digest(run)
        if seen.get(digest) == path:
            raise InputError(f"{path}: is given twice; a copy is no repeat")
        if digest in seen:
            more = "; a simulation without scatter repeats itself exactly" if run.source == SIMULATED else ""
            raise InputError(f"{path}: the same run as {seen[digest]}; a copy is no repeat{more}")
        seen[digest] = path
        planned = _planned(path, run.plan_sha256)
        if planned is None:
            planned = plans.get(run.plan_sha256)
        reasons = repeat_reasons(run, planned)
        if reasons:
            raise InputError(f"{path}: not a valid repeat: {'; '.join(reasons)}")
        # of runs without their plan beside them, the first says what the others must have run
        plans.setdefault(run.plan_sha256, (ran_tokens(run), str(path)))
        config = "configuration not known" if run.config is None else run.config.label
        name = f"plan {run.plan_id} ({run.plan_sha256[:8]}), {config}, {run.source}"
        groups.setdefault(name, []).append(_repeat(run, path, profile))
    return groups


def _planned(path: Path, sha256: str) -> tuple[Planned, str] | None:
    """Tokens of the plan that lies beside the rows, where one does and it is the run's."""
    if not (path / _PLAN).is_file():
        return None
    plan = load_plan(path / _PLAN)
    return (planned_tokens(plan), "the plan") if plan.content_sha256 == sha256 else None


def _repeat(run: Run, path: Path, profile: StackProfile) -> Repeat:
    _, a_s, b_s = channels(run, profile, str(path))
    return Repeat(str(path), a_s, b_s, run.source)
