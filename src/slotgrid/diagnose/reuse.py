"""Reuse: which returning requests found their prefix, what was lost, and why.

A return is a request with turn > 0. It could reuse ``floor(min(previous prompt, prompt - 1) / block) * block`` tokens
(more where the stack keeps generated tokens); lost tokens are that less what it did reuse. What the loss costs has two
published definitions (table a01): the prefill of the lost tokens alone, and the difference the loss makes to the
request's own prefill, which is longer because a prefill's cost grows faster than its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.diagnose.order import ADMIT, EventOrder, rows_of
from slotgrid.profile import PrefillCost, StackProfile
from slotgrid.run import Run

# narrow where they can be: a long log has a million returns
Ints = npt.NDArray[np.signedinteger[Any]]
Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]

DEFAULT_BLOCK_TOKENS = 128
CAUSES = ("admission", "padding", "unknown")


@dataclass(frozen=True)
class Returns:
    """Every return of a run, as arrays of equal length in the order of run.requests.

    row: row of run.requests; previous: row of the turn before, -1 without one; prompt_tokens, cached_tokens (-1 not
    observable), reusable_tokens (-1 not known), away_s (from the answer before to this request; NaN not known),
    between: other admissions since the previous turn's admission (-1 not observed), cause: 0 admission, 1 padding
    slot, 2 not known, -1 nothing lost; own: the return's own admission evicted the prefix it wanted.
    standalone_s, incremental_s: seconds of additional prefill; NaN without a profile or where nothing is known.
    """

    row: Ints
    previous: Ints
    prompt_tokens: Ints
    cached_tokens: Ints
    reusable_tokens: Ints
    away_s: Floats
    between: Ints
    cause: Codes
    own: npt.NDArray[np.bool_]
    standalone_s: Floats
    incremental_s: Floats

    @property
    def lost_tokens(self) -> Ints:
        """Reusable less cached tokens, never below 0; -1 where either is not known."""
        known = (self.cached_tokens >= 0) & (self.reusable_tokens >= 0)
        return np.where(known, np.maximum(self.reusable_tokens - self.cached_tokens, 0), -1)

    @property
    def observable(self) -> bool:
        """Whether every request says its cached tokens."""
        return bool((self.cached_tokens >= 0).all())


def additional_prefill_s(
    prefill: PrefillCost, prompt_tokens: Ints, cached_tokens: Ints, lost_tokens: Ints
) -> tuple[Floats, Floats]:
    """Seconds a lost prefix costs, in both definitions of table a01 (arrays of equal length).

    standalone: prefill of the lost tokens alone. incremental: prefill of what was computed less the prefill of what
    would have been computed with the prefix.
    """
    lost = lost_tokens.astype(np.int64)
    computed = prompt_tokens.astype(np.int64) - cached_tokens
    return prefill.seconds(lost), prefill.seconds(computed) - prefill.seconds(computed - lost)


def find_returns(run: Run, order: EventOrder | None, profile: StackProfile | None) -> Returns | None:
    """The returns of a run; None when its rows name no sessions."""
    if run.returns is None:
        return None
    requests = run.requests
    session, turn = requests["session"].to_numpy(), requests["turn"].to_numpy()
    prompt = requests["prompt_tokens"].fill_null(-1).to_numpy()
    output = requests["output_tokens"].fill_null(-1).to_numpy()
    cached = requests["cached_tokens"].fill_null(-1).to_numpy()
    row = np.flatnonzero(turn > 0).astype(np.int32)
    previous = rows_of(session, turn, session[row], turn[row] - 1)
    reusable = _reusable(run, profile, row, previous, prompt, output).astype(np.int32)
    arrival, finish = requests["arrival_s"].to_numpy(), requests["finish_s"].to_numpy()
    away = np.where(previous >= 0, arrival[row] - finish[previous], np.nan) if len(row) else np.empty(0)
    between: Ints = np.full(len(row), -1, np.int32)
    cause = np.full(len(row), -1, np.int8)
    own = np.zeros(len(row), bool)
    lost = np.where((cached[row] >= 0) & (reusable >= 0), np.maximum(reusable - cached[row], 0), -1)
    if order is not None:
        between = _between(order, row, previous)
        cause, own = _cause(order, row, previous, lost)
    standalone = np.full(len(row), np.nan)
    incremental = np.full(len(row), np.nan)
    if profile is not None:
        known = (lost >= 0) & (prompt[row] >= 0)
        a, b = additional_prefill_s(profile.price.prefill, prompt[row][known], cached[row][known], lost[known])
        standalone[known], incremental[known] = a, b
    return Returns(
        row, previous, prompt[row], cached[row], reusable, away, between, cause, own, standalone, incremental
    )


def _reusable(run: Run, profile: StackProfile | None, row: Ints, previous: Ints, prompt: Ints, output: Ints) -> Ints:
    """Reusable tokens of each return; -1 where a length is not known."""
    left = np.where(previous >= 0, prompt[previous], -1) if len(row) else np.empty(0, np.int64)
    known = (left >= 0) & (prompt[row] > 0)
    if profile is not None:
        before = output[previous] if len(row) else output[:0]
        if profile.kv.generated_reusable:
            known &= before >= 1
        lengths = (values.astype(np.int64) for values in (prompt[row], left, before))
        return np.where(known, profile.kv.reusable_tokens(*lengths), -1)
    block = run.details.get("block_tokens") or DEFAULT_BLOCK_TOKENS
    return np.where(known, np.minimum(left, prompt[row] - 1) // block * block, -1)


def _between(order: EventOrder, row: Ints, previous: Ints) -> Ints:
    """Other admissions between the previous turn's admission and the return's own."""
    # up to and with each event
    admissions = np.cumsum(order.kind == ADMIT, dtype=np.int32)
    own, before = order.admitted[row], np.where(previous >= 0, order.admitted[previous], np.int32(-1))
    known = (own >= 0) & (before >= 0)
    return np.where(known, admissions[own] - admissions[before] - np.int32(1), np.int32(-1))


def _cause(order: EventOrder, row: Ints, previous: Ints, lost: Ints) -> tuple[Codes, npt.NDArray[np.bool_]]:
    """Cause code of each loss, and whether the return's own admission evicted the prefix.

    The eviction that counts is the one of the previous turn's slot, between its admission and the return's.
    """
    evicted = np.full(len(order.admitted), -1, np.int32)
    at_all = order.evictions
    victims = order.request[at_all]
    evicted[victims[victims >= 0]] = at_all[victims >= 0]
    cause = np.full(len(row), -1, np.int8)
    at = np.where(previous >= 0, evicted[previous], np.int32(-1)) if len(row) else np.empty(0, np.int32)
    admitted = order.admitted[row]
    told = (at >= 0) & ((admitted < 0) | (at < admitted))
    gone = lost > 0
    cause[gone] = np.where(told, order.cause[at], 2)[gone]
    own = gone & told & (cause == 0) & (at + 1 == admitted)
    return cause, own
