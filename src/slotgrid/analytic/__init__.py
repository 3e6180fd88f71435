"""The analytic view: what a configuration does to steady load, by equations instead of events.

One idea a module: ``moments`` (what the equations need of a workload), ``occupancy`` (how many requests run: a closed
network with exclusive prefill), ``survival`` (whether a prefix is still in its slot when the session returns: an
absorbing chain), ``fixed_point`` (both together, they need each other), ``grid`` (the bucket set that is cheapest for
an occupancy: a dynamic programme), ``best_response`` (set and occupancy in turn).

The equations hold for clients that renew their sessions, for 1 to ``max_running`` of them; more is refused
(docs/analytic.md). They are the published analytic model (v1) of the study repository dongkyeomjang/escapement.
"""

from slotgrid.analytic.best_response import Response, best_response
from slotgrid.analytic.fixed_point import Prediction, check_range, predict
from slotgrid.analytic.grid import BucketReason, GridChoice, bucket_reasons, grid_seconds, optimal_buckets, used_buckets
from slotgrid.analytic.moments import Moments, moments_of
from slotgrid.analytic.occupancy import Occupancy, closed_network
from slotgrid.analytic.survival import survival_probability

__all__ = [
    "BucketReason",
    "GridChoice",
    "Moments",
    "Occupancy",
    "Prediction",
    "Response",
    "best_response",
    "bucket_reasons",
    "check_range",
    "closed_network",
    "grid_seconds",
    "moments_of",
    "optimal_buckets",
    "predict",
    "survival_probability",
    "used_buckets",
]
