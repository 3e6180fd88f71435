"""Search: every candidate of a space on the same plans, scored against a baseline; and what needs no enumeration.

``slotgrid.search(...)`` is :func:`slotgrid.search.search.search`. ``slotgrid.explain(...)`` says why a bucket set is
what it is, ``slotgrid.propose(...)`` finds candidates in spaces too large to enumerate; both use the analytic view.
"""

from slotgrid._verb import make_verb
from slotgrid.search.explain import Explanation, explain
from slotgrid.search.propose import Proposal, propose
from slotgrid.search.search import Candidate, SearchResult, search
from slotgrid.search.space import SearchSpace

make_verb(__name__, search)

__all__ = ["Candidate", "Explanation", "Proposal", "SearchResult", "SearchSpace", "explain", "propose", "search"]
