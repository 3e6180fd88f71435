"""Diagnose: what a run lost to padding, lost prefixes and interference, in numbers and in words.

One idea a module, each a pure function of a run: ``order`` (the order of events), ``padding`` with ``shapley`` and
``buckets``, ``reuse`` and ``survival``, ``interference``, ``cost``, ``summary``, ``compare``; ``diagnose`` puts them
together. ``slotgrid.diagnose(...)`` is :func:`slotgrid.diagnose.diagnose.diagnose`.
"""

from slotgrid._verb import make_verb
from slotgrid.diagnose.diagnose import diagnose
from slotgrid.diagnose.result import Diagnosis

make_verb(__name__, diagnose)

__all__ = ["Diagnosis", "diagnose"]
