"""Search: every candidate of a space on the same plans, scored against a baseline.

``slotgrid.search(...)`` is :func:`slotgrid.search.search.search`.
"""

from slotgrid._verb import make_verb
from slotgrid.search.search import Candidate, SearchResult, search
from slotgrid.search.space import SearchSpace

make_verb(__name__, search)

__all__ = ["Candidate", "SearchResult", "SearchSpace", "search"]
