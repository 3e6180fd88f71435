"""Serving stacks: one module per stack; each reads its artifacts and writes its commands."""

from __future__ import annotations

from slotgrid.config import ServingConfig
from slotgrid.profile import StackProfile
from slotgrid.stacks import rbln


def compile_command(profile: StackProfile, config: ServingConfig, max_seq_len: int) -> list[str] | None:
    """The command that compiles ``config`` on the profile's stack, as words; None when the stack has none."""
    if profile.stack == "rbln":
        devices = profile.memory.devices if profile.memory is not None else None
        return rbln.compile_command(config, model_id=profile.model_id, max_seq_len=max_seq_len, devices=devices)
    return None
