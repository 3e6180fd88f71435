"""The engine: plans on configurations, simulated rule by rule.

Read in this order: ``rules`` (what differs between schedulers), ``prepare`` (from plans and profiles to numbers),
``kernel`` (the event loop), ``setup`` and ``single`` (one plan, all tables), ``batch`` (many plans, totals only),
``perturb`` and ``ensemble`` (repeats that differ by what is random on a server), ``steady`` (evaluation windows).

Invariants, each a property test in ``tests/engine/test_invariants.py``:

1. every request finishes once;
2. slots in use never exceed the usable slots;
3. time never goes back: arrival <= admit < first token <= finish, and steps do not overlap;
4. cached + computed tokens = prompt tokens, and at least one prompt token is computed;
5. device time is the sum over the priced steps;
6. with a slot for every request, and one for padding, nothing is ever evicted;
7. the same input gives the same bytes, compiled or as plain Python.

Not an invariant: more slots, more reuse. FIFO eviction has Belady's anomaly.
"""

from slotgrid.engine.rules import PAPER, REAL, RULE_SETS, RuleSet, find_rules
from slotgrid.engine.single import simulate

__all__ = ["PAPER", "REAL", "RULE_SETS", "RuleSet", "find_rules", "simulate"]
