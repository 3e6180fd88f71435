"""calibrate: probes on a target, and the profile they give."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid._version import __version__
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError, RunError
from slotgrid.measure.calibrate.bench import HEAD, Bench
from slotgrid.measure.calibrate.findings import findings
from slotgrid.measure.calibrate.profile_text import Head, Stated, missing, profile_text
from slotgrid.measure.calibrate.session import Asked, Found, run_probes
from slotgrid.measure.calibrate.target import Target
from slotgrid.measure.interrupts import ended_as_interrupt
from slotgrid.profile import Finding, StackProfile
from slotgrid.profile.stack_profile import profile_from_toml

FOLDER_SUFFIX = ".calibration"


@dataclass(frozen=True)
class Calibration:
    """What a calibration gave. profile: None when something it cannot do without is ``missing``.

    config: the configuration as far as it was seen or stated. kept, measured: replays from before, and from now.
    """

    found: Found
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    profile: StackProfile | None
    config: ServingConfig | None
    folder: Path
    kept: int
    measured: int

    def to_dict(self) -> dict[str, Any]:
        """Findings and profile as JSON values."""
        return {
            "profile": None if self.profile is None else self.profile.to_dict(),
            "config": None if self.config is None else self.config.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "missing": list(self.missing),
            "folder": str(self.folder),
            "replays": {"kept": self.kept, "measured": self.measured},
        }

    def __repr__(self) -> str:
        state = f"lacks {len(self.missing)} parts" if self.missing else "whole"
        return f"Calibration({self.folder}: {self.kept + self.measured} replays, profile {state})"


def calibrate(
    *,
    target: Target,
    output: str | Path,
    asked: Asked | None = None,
    stated: Stated | None = None,
    profile_id: str | None = None,
    stack: str = "",
    hardware: str | None = None,
    rules: str = "real",
    seed: int | None = None,
    again: bool = False,
    say: Callable[[str], None] | None = None,
) -> Calibration:
    """Measure what a target costs and which rules it follows, and write the profile to ``output``.

    Every replay is kept in the folder ``output`` + ``.calibration``; the same call goes on after an interruption. The
    profile is written only when it is whole. asked: how much is measured; the target's own length and buckets where
    it states them. rules: the rule set simulations with this profile use. Raises RunError when a request fails.
    """
    path = Path(output)
    known = target.known
    asked = asked or Asked(max_seq_len=known.max_seq_len or 0)
    if asked.max_seq_len < 1:
        raise InputError("the server does not say how long a sequence may be; give it with --max-seq-len")
    stated = stated or Stated()
    folder = path.with_name(path.name.removesuffix(".toml") + FOLDER_SUFFIX)
    if path.exists() and not again and not (folder / HEAD).exists():
        raise InputError(f"{path}: exists already, not made by a calibration kept in {folder}; replace it with --again")
    # everything else only adds replays, or reads the same ones otherwise
    same = {"max_seq_len": asked.max_seq_len}
    bench = Bench(target, folder, asked=same, seed=seed, again=again, say=say)
    config = bench.config or known.config
    if config is not None:
        asked = replace(asked, buckets=asked.buckets or config.buckets, top=asked.top or config.max_running)
    with ended_as_interrupt():
        found = run_probes(bench, asked)
    started = datetime.datetime.fromtimestamp(bench.started_unix_s, datetime.UTC)
    conditions = f"{known.clock} clock, seed {bench.seed}" + (f", in {bench.starts} starts" if bench.starts > 1 else "")
    made = findings(found, asked, conditions)
    gaps = missing(found, stated)
    profile = None
    if not gaps:
        head = Head(
            id=profile_id or path.name.removesuffix(".toml"),
            description=f"calibrated on {known.name}, {started:%Y-%m-%d %H:%M} UTC",
            stack=stack,
            model_id=known.model_id,
            hardware=hardware or known.hardware,
            software=known.software,
            rules=rules,
            source=f"slotgrid calibrate {__version__}, {started:%Y-%m-%d}",
            conditions=conditions,
        )
        text = profile_text(head, found, stated, slot_tokens=asked.max_seq_len, clock=known.clock, findings=made)
        profile = profile_from_toml(text.encode(), str(path))
        files.write_text(path, text)
        bench.finish()
    return Calibration(
        found, made, tuple(gaps), profile, configuration(found, config), folder, bench.kept, bench.measured
    )


def require_profile(result: Calibration, output: str | Path) -> StackProfile:
    """The profile. Raises RunError naming what is missing."""
    if result.profile is None:
        raise RunError(f"{output}: not written, a profile needs more than was found: {'; '.join(result.missing)}")
    return result.profile


def configuration(found: Found, known: ServingConfig | None) -> ServingConfig | None:
    """What the server stated, else what was seen; None where buckets are not decided or slots are not, or there are
    none, or may be none: a pool of blocks by tokens holds as many requests as fit."""
    from slotgrid.measure.calibrate.slots import Slots

    if known is not None:
        return known
    if found.buckets is None or found.limit.open or not isinstance(found.slots, Slots) or not found.slots.certain:
        return None
    return ServingConfig(found.buckets, slots=found.slots.slots, max_running=min(found.limit.most, found.buckets[-1]))
