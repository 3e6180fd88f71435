"""The study.toml that ``init`` writes: every key with what it means."""

from __future__ import annotations

from pathlib import Path

from slotgrid.errors import InputError
from slotgrid.study import store
from slotgrid.study.strangers import ATTRIBUTES, ATTRIBUTES_TEXT
from slotgrid.study.texts import check_text

TEXT = """\
# A study: arms and plans are fixed first, predictions registered, runs measured, and judged once.
#   slotgrid study register DIR     draws the plans, predicts every arm, fixes all of it in a manifest
#   slotgrid study measure DIR      runs every arm on every plan (or: ingest DIR RUN_DIR ... for runs made elsewhere)
#   slotgrid study verdict DIR      once per data set
#   slotgrid study report DIR       one HTML page and a CSV of every table
# After registering, this file may only change together with an amendment (register DIR --amend "why"), which counts for
# new [[plans]] alone.
format = "slotgrid-study/1"
title = "Does the recommended configuration pay?"
profile = "rbln-ca25-qwen3-4b"       # built-in id, or a TOML file beside this one
# rules = "real"                     # of the predictions: real or paper; the profile's unless given
# clock = "operating"                # what moves time: price or operating; the profile's unless given
# turnaround = "0.8ms"               # client turnaround of the predictions; the plan's or profile's unless given
ensemble = 0                         # repeats per plan and arm for 95 % intervals, at least 39; 0: points only
ensemble_seed = 0
baseline = "base"

[[arm]]
name = "base"
buckets = [1, 2, 4, 8]               # slots and max_running default to the top bucket
# slots = 8
# compile = "6m"                     # what compiling it took; the profile's model unless given

[[arm]]
name = "tuned"
buckets = [1, 4, 6, 8, 10, 16]
# runs = "simulated"                 # in every arm or in none: stand-in runs from the simulator instead of hardware,
# [arm.simulated]                    # never called measured; rules, release, padding, clock, turnaround, scatter_seed
# rules = "paper"

[[plans]]                            # one data set, judged once
name = "main"
workload = "tracelab-two-turn"       # built-in name, or a TOML file beside this one
sessions = [6, 8]                    # confirmatory N: concurrent clients that are judged
exploratory = [10]                   # N that get errors and no decision
seeds = [20262000]                   # must be new: no seed of any search
blocks = [0, 1, 2]                   # replicates: one plan per seed and block
# load = "steady"                    # judge device time per turn in a window ([steady_criteria]) instead of whole runs;
#                                    # needs at least five replicates (seeds x blocks)
# window = "120s"

[criteria]                           # whole runs, in this order
tolerance = "fixed"                  # 1. channels: |A - B| <= channel_difference, else the decision is withheld;
channel_difference = 0.02            #    "residual": <= max(channel_difference, r_base / B_base)
largest_error = 0.03                 # 2. |predicted - observed|
equal_band = [0.98, 1.02]            # 3. same side of 1, or both in this band

# [steady_criteria]
# null_reuse = 0.68                  # what a predictor without knowledge would say, from earlier data; without it the
#                                    # reuse criterion cannot be confirmed

[measure]
# arms = "arms.toml"                 # how servers of the arms are started (slotgrid measure); its plans are not used
# order_seed = 0                     # of the order of the arms

[search]                             # what the configurations were chosen with: none of it may be used again.
# TO CHOOSE: seeds, folders or both; or none = true. Without it, register refuses.
# seeds = [1, 2, 3]                  # seeds of the searches
# folders = ["../slotgrid-search"]   # outputs of slotgrid search, relative to this directory
# none = true                        # no search chose the configurations
"""


def init_study(folder: str | Path) -> Path:
    """Write study.toml, and .gitattributes where there is none, into the directory; the path of the first.

    Raises InputError when there is one.
    """
    check_text(Path(folder).resolve(), "study directory")
    path = Path(folder) / store.STUDY_FILE
    if not store.write_new(path, TEXT.encode()):
        raise InputError(f"{path}: already there; a study is never overwritten")
    store.write_new(path.with_name(ATTRIBUTES), ATTRIBUTES_TEXT.encode())
    return path
