"""slotgrid: choose KV slots and decode batch buckets for compile-time-static LLM servers.

The public names below load what they need when they are first used, so that importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slotgrid._version import __version__

if TYPE_CHECKING:
    from slotgrid.config import ServingConfig
    from slotgrid.diagnose import Diagnosis
    from slotgrid.diagnose import diagnose as diagnose  # type: ignore[no-redef]  # the room is its verb, see _verb
    from slotgrid.engine import RuleSet, simulate
    from slotgrid.errors import InputError, RunError, SlotgridError, UnmeasuredError
    from slotgrid.plan import Client, InputPlan, Session, Turn, load_plan
    from slotgrid.profile import StackProfile, load_profile
    from slotgrid.run import Run, load_run, read_run, save_run
    from slotgrid.search import SearchResult, SearchSpace
    from slotgrid.search import search as search  # type: ignore[no-redef]  # the room is its verb, see _verb
    from slotgrid.search.explain import Explanation, explain
    from slotgrid.search.propose import Proposal, propose
    from slotgrid.workload import Workload, load_workload

_HOMES = {
    "ServingConfig": "slotgrid.config",
    "Diagnosis": "slotgrid.diagnose",
    "diagnose": "slotgrid.diagnose",
    "RuleSet": "slotgrid.engine",
    "simulate": "slotgrid.engine",
    "InputError": "slotgrid.errors",
    "RunError": "slotgrid.errors",
    "SlotgridError": "slotgrid.errors",
    "UnmeasuredError": "slotgrid.errors",
    "Client": "slotgrid.plan",
    "InputPlan": "slotgrid.plan",
    "Session": "slotgrid.plan",
    "Turn": "slotgrid.plan",
    "load_plan": "slotgrid.plan",
    "StackProfile": "slotgrid.profile",
    "load_profile": "slotgrid.profile",
    "Run": "slotgrid.run",
    "load_run": "slotgrid.run",
    "read_run": "slotgrid.run",
    "save_run": "slotgrid.run",
    "Explanation": "slotgrid.search",
    "Proposal": "slotgrid.search",
    "SearchResult": "slotgrid.search",
    "SearchSpace": "slotgrid.search",
    "explain": "slotgrid.search",
    "propose": "slotgrid.search",
    "search": "slotgrid.search",
    "Workload": "slotgrid.workload",
    "load_workload": "slotgrid.workload",
}

__all__ = [
    "Client",
    "Diagnosis",
    "Explanation",
    "InputError",
    "InputPlan",
    "Proposal",
    "RuleSet",
    "Run",
    "RunError",
    "SearchResult",
    "SearchSpace",
    "ServingConfig",
    "Session",
    "SlotgridError",
    "StackProfile",
    "Turn",
    "UnmeasuredError",
    "Workload",
    "__version__",
    "diagnose",
    "explain",
    "load_plan",
    "load_profile",
    "load_run",
    "load_workload",
    "propose",
    "read_run",
    "save_run",
    "search",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'slotgrid' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    # a room named like its verb is the verb (see _verb)
    return home if home.__name__ == f"slotgrid.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
