"""Serving stacks: one package per stack; each reads its artifacts, writes its commands and observes its server.

Nothing is imported here: an observer inside a server passes through this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotgrid.config import ServingConfig
    from slotgrid.profile import StackProfile


def compile_command(profile: StackProfile, config: ServingConfig, max_seq_len: int) -> list[str] | None:
    """The command that compiles ``config`` on the profile's stack, as words; None when the stack has none."""
    if profile.stack == "rbln":
        from slotgrid.stacks.rbln import commands

        devices = profile.memory.devices if profile.memory is not None else None
        return commands.compile_command(config, model_id=profile.model_id, max_seq_len=max_seq_len, devices=devices)
    return None
