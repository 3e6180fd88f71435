"""The exact Shapley value of each running count in a drop of the padding ratio.

The padding ratio is 1 - R / B with R the running requests and B the bucket rows summed over all steps. Changing the
bucket of running count i takes d_i rows off B, so a set S of changes is worth v(S) = R / (B - d(S)) - R / B. The value
depends on S only through d(S), which gives a closed integral instead of 2^k subsets:

    phi_i = R * int_0^1 dq int_0^inf ds  e^(-B s) (e^(d_i s) - 1) * prod_{j != i} (1 - q + q e^(d_j s))

(1 / x as the integral of e^(-x s), and q the chance that a player has already joined). The integrand is a polynomial
of degree k - 1 in q: Gauss-Legendre with k / 2 nodes is exact. The one in s decays exponentially and is smooth:
the trapezoidal rule on s = exp(u - exp(-u)) converges to rounding error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shapley_drops(running_sum: int, bucket_sum: int, removed: Sequence[int]) -> list[float]:
    """Each entry's part of the drop in padding ratio when ``removed`` rows go (negative: rows added).

    running_sum: requests over all steps; bucket_sum: bucket rows over all steps before the change; every bucket still
    holds its requests afterwards. The parts add up to running_sum / (bucket_sum - sum(removed)) - running_sum /
    bucket_sum. Entries that change nothing get 0.
    """
    parts = [0.0] * len(removed)
    players = [i for i, rows in enumerate(removed) if rows != 0]
    if not players:
        return parts
    d = np.array([removed[i] for i in players], float)
    if len(players) == 1:
        parts[players[0]] = running_sum / (bucket_sum - d[0]) - running_sum / bucket_sum
        return parts
    # seconds scaled so that the slowest decay, e^(-(B - rows taken off) s), is e^(-s)
    slowest = bucket_sum - d[d > 0].sum()
    d, b = d / slowest, bucket_sum / slowest
    nodes, weights = np.polynomial.legendre.leggauss((len(players) + 1) // 2 + 1)
    q, q_weight = (nodes + 1) / 2, weights / 2
    step = 1 / 32
    u = np.arange(-4.5, 5.0, step)
    s = np.exp(u - np.exp(-u))
    ds = s * (1 + np.exp(-u)) * step
    # log of each player's factor on the grid (player, q, s); large exponents stay in range
    exponent = np.maximum(d, 0)[:, None] * s[None, :]
    growth = np.exp(-np.abs(d)[:, None] * s[None, :])
    joined = np.where(d[:, None] > 0, 1.0, growth)
    apart = np.where(d[:, None] > 0, growth, 1.0)
    factor = np.log(q[None, :, None] * joined[:, None, :] + (1 - q)[None, :, None] * apart[:, None, :])
    total = factor.sum(axis=0)
    decay = -b * s + exponent.sum(axis=0)
    for k, i in enumerate(players):
        others = total - factor[k] + decay[None, :] - exponent[k][None, :]
        # e^(d s) - 1, with its sign and without overflow
        change = np.exp(others + np.maximum(d[k], 0) * s[None, :]) * (-np.sign(d[k]) * np.expm1(-np.abs(d[k]) * s))
        parts[i] = float(running_sum / slowest * (q_weight[:, None] * change * ds[None, :]).sum())
    return parts
