"""What a stored verdict decided on each arm, for what is shown beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotgrid.study.decide import EXPLORATORY
from slotgrid.study.steady import COST_RATIO, UNRESOLVED


def decisions_of(data: Mapping[str, Any]) -> dict[tuple[int, str], str]:
    """What a stored verdict decided on each (N, arm) against the baseline.

    On whole runs the comparison's decision. In steady load, where one criterion holds for all cells: "exploratory", or
    "unresolved" where the replicates do not tell the arm from the baseline, else the verdict on the cost ratio.
    """
    if "comparisons" in data:
        return {(c["sessions"], c["arm"]): c["decision"] for c in data["comparisons"]}
    cost = next(f["verdict"] for f in data["findings"] if f["criterion"] == COST_RATIO)
    exploratory = {c["sessions"] for c in data["cells"] if c["exploratory"]}
    found = {}
    for pair in data["pairs"]:
        if pair["x"] == data["baseline"]:
            n = pair["sessions"]
            found[n, pair["y"]] = EXPLORATORY if n in exploratory else cost if pair["resolved"] else UNRESOLVED
    return found
