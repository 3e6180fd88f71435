"""One line that says what to install when the extra is missing."""

from __future__ import annotations

from importlib.util import find_spec

from slotgrid.errors import InputError


def require(command: str, *modules: str) -> None:
    """Raise InputError unless every module can be imported; none is imported here."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{command} needs {', '.join(missing)}, which is not installed; run: pip install 'slotgrid[serve]'"
        )
