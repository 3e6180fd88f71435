"""Profiles: what was measured of a model on a stack, and the cost functions built from it."""

from slotgrid.profile.costs import CompileModel, CostModel, DecodeCost, KvFacts, MemoryModel, PrefillCost
from slotgrid.profile.finding import Finding
from slotgrid.profile.operating import CORRECTIONS, OperatingCosts
from slotgrid.profile.quantity import Quantity, Range
from slotgrid.profile.scatter import Scatter
from slotgrid.profile.stack_profile import StackProfile, built_in_profiles, load_profile, profile_from_toml

__all__ = [
    "CORRECTIONS",
    "CompileModel",
    "CostModel",
    "DecodeCost",
    "Finding",
    "KvFacts",
    "MemoryModel",
    "OperatingCosts",
    "PrefillCost",
    "Quantity",
    "Range",
    "Scatter",
    "StackProfile",
    "built_in_profiles",
    "load_profile",
    "profile_from_toml",
]
