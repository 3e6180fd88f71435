"""prefill(q) = ceil(q / chunk) * (per_chunk + per_token * q) + constant, fitted to prompts of many lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.measure.calibrate.prefill import IdlePrefill
from slotgrid.measure.calibrate.statistics import FEWEST_REPEATS, Estimate, Line, Refusal, linear_fit, t_factor

Floats = npt.NDArray[np.float64]

_CHUNKS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# twice the logarithm of a likelihood ratio at which one chunk length is told from another
_CLEAR = 10.0
_SMALLEST_MISFIT = 1e-9
_FEWEST_LENGTHS = 4


@dataclass(frozen=True)
class PrefillFit:
    """Seconds with intervals. chunk_tokens: the length that explains the times best; ``also`` are lengths the times do
    not tell from it. worst, rms: relative residuals. tokens: computed at once, from and to."""

    chunk_tokens: int
    also: tuple[int, ...]
    per_chunk: Estimate
    per_token: Estimate
    constant: Estimate
    tokens: tuple[int, int]
    worst: float
    rms: float
    samples: int

    def seconds(self, tokens: int) -> float:
        chunks = -(-tokens // self.chunk_tokens)
        return chunks * (self.per_chunk.value + self.per_token.value * tokens) + self.constant.value


def fit(measured: Sequence[IdlePrefill], *, prefer_chunk: int | None = None) -> PrefillFit | Refusal:
    """Least squares of relative residuals with no part below 0, over all chunk lengths that are usual.

    Repeats are counted by planned length, the form is of the tokens that were computed.
    prefer_chunk: taken where the times do not tell it from the best one (the reuse block, usually the same graph).
    """
    lengths = {entry.planned for entry in measured}
    repeats = min((sum(e.planned == q for e in measured) for q in lengths), default=0)
    if len(lengths) < _FEWEST_LENGTHS:
        return Refusal(f"{len(lengths)} prompt lengths, at least {_FEWEST_LENGTHS} are needed", len(measured))
    if repeats < FEWEST_REPEATS:
        return Refusal(
            f"{repeats} repeats of each prompt length, at least {FEWEST_REPEATS} are needed",
            repeats,
            FEWEST_REPEATS - repeats,
        )
    tokens = np.array([float(entry.tokens) for entry in measured])
    seconds = np.array([entry.seconds for entry in measured])
    candidates = sorted({*_CHUNKS, *([prefer_chunk] if prefer_chunk else [])})
    # longer chunks than any prompt are one chunk
    fits = {c: _solve(tokens, seconds, c) for c in candidates if c < tokens.max()}
    misfit = {c: max(found[1], _SMALLEST_MISFIT) for c, found in fits.items()}
    best = min(misfit, key=lambda c: misfit[c])
    close = [c for c in misfit if len(tokens) * 2 * math.log(misfit[c] / misfit[best]) < _CLEAR]
    chunk = prefer_chunk if prefer_chunk in close else best
    used = list(fits[chunk][0])
    while True:
        line = _line(tokens, seconds, chunk, used)
        if isinstance(line, Refusal):
            return line
        least = min(range(len(line.parameters)), key=lambda k: line.parameters[k].value)
        if line.parameters[least].value >= 0:
            break
        # robust weights can move a part below 0 that plain least squares has above
        used[[i for i, there in enumerate(used) if there][least]] = False
    widened = _by_rounds(
        _columns(tokens, chunk)[:, used], seconds, [entry.round for entry in measured], line.parameters
    )
    kept = iter(widened)
    free = _line(tokens, seconds, chunk, [True, True, True])
    parts = []
    for i, there in enumerate(used):
        # a part that would be below 0 is 0; how far above it may lie says the fit that lets it be below
        high = 0.0 if isinstance(free, Refusal) else max(0.0, free.parameters[i].high)
        parts.append(next(kept) if there else Estimate(0.0, 0.0, high, len(tokens)))
    return PrefillFit(
        chunk_tokens=chunk,
        also=tuple(c for c in close if c != chunk),
        per_chunk=parts[0],
        per_token=parts[1],
        constant=parts[2],
        tokens=(int(tokens.min()), int(tokens.max())),
        worst=line.worst,
        rms=line.rms,
        samples=len(tokens),
    )


def _by_rounds(columns: Floats, seconds: Floats, rounds: Sequence[int], parts: Sequence[Estimate]) -> list[Estimate]:
    """Intervals that also hold what a whole round was dearer or cheaper by: its prompts share the machine's mood, and
    count as one measurement of it."""
    fitted = columns @ np.array([part.value for part in parts])
    off = seconds / fitted - 1
    means = [float(off[np.array(rounds) == r].mean()) for r in sorted(set(rounds))]
    share = t_factor(len(means) - 1) * float(np.std(means, ddof=1)) / math.sqrt(len(means))
    found = []
    for part in parts:
        shared = share * part.value
        low = part.value - math.hypot(part.value - part.low, shared)
        found.append(Estimate(part.value, low, part.value + math.hypot(part.high - part.value, shared), part.samples))
    return found


def _columns(tokens: Floats, chunk: int) -> Floats:
    chunks = np.ceil(tokens / chunk)
    return np.stack([chunks, chunks * tokens, np.ones(len(tokens))], 1)


def _solve(tokens: Floats, seconds: Floats, chunk: int) -> tuple[list[bool], float]:
    """Which parts are above 0, and the root mean square of the relative residuals."""
    from scipy.optimize import nnls

    columns = _columns(tokens, chunk) / seconds[:, None]
    size = np.sqrt((columns**2).sum(0))
    found, rest = nnls(columns / size, np.ones(len(tokens)))
    return [bool(part > 0) for part in found], float(rest) / math.sqrt(len(tokens))


def _line(tokens: Floats, seconds: Floats, chunk: int, used: list[bool]) -> Line | Refusal:
    return linear_fit(_columns(tokens, chunk)[:, used], seconds)
