"""Rooms named like their verb: ``slotgrid.search`` is the package and, called, its function.

Python binds an imported subpackage to its parent's attribute of the same name, so a function of that name would
vanish behind the package once anything in it is imported. Making the package itself callable keeps both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    verb: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.verb(*args, **kwargs)


def make_verb(module_name: str, function: Callable[..., Any]) -> None:
    """Make the module callable; calling it calls ``function`` and it shows that function's docstring in help."""
    module = sys.modules[module_name]
    module.__class__ = _Verb
    module.verb = function  # type: ignore[attr-defined]
