"""Errors a user can act on. Each carries one line: what is wrong, where, and what is allowed."""

from __future__ import annotations


class SlotgridError(Exception):
    """Base of every error the command line prints as one line."""

    exit_code = 1


class InputError(SlotgridError):
    """Something the user gave is wrong (a file, a key, an option). Exit code 2."""

    exit_code = 2


class UnmeasuredError(InputError):
    """A cost or fact was asked for that the profile does not hold."""


class RunError(SlotgridError):
    """A run that was started and failed. Exit code 1."""
