"""Noisy counts to the nearest counts that are not negative and have a given sum, in integers."""

from __future__ import annotations

import numpy as np

from dpalgos.parameters import ParameterError
from dpalgos.rows import Ints


def to_simplex(counts: Ints, total: int) -> Ints:
    """Return the whole numbers ≥ 0 of sum ``total`` that are nearest to some whole numbers, in the least squares.

    The nearest real ones are max(xᵢ − θ, 0), with θ = (Σ_{j ≤ ρ} x₍ⱼ₎ − total)/ρ for the ρ largest. Multiplied by ρ all
    are whole. They are rounded down, and the units that are then missing go to the largest remainders, the first of
    equal ones first. No step is a floating-point one: the result depends on no processor.

    Parameters
    ----------
    counts : array (m,) of int
        Below 2^31 in size, m below 2^31.
    total : int
        From 0 on, below 2^31.

    References
    ----------
    Held, Wolfe, Crowder, "Validation of subgradient optimization", Mathematical Programming 6 (1974), section 2.
    """
    if not 0 <= total < 2**31 or not counts.size or int(np.abs(counts).max()) >= 2**31:
        raise ParameterError(
            f"{counts.size} counts with sum {total} are requested; give at least one count, and a sum below 2^31"
        )
    ordered = -np.sort(-counts, kind="stable")
    summed = np.cumsum(ordered)
    ranks = np.arange(1, len(counts) + 1)
    # x₍ρ₎ ρ > Σ x₍ⱼ₎ − total; of a total of 0 nothing is left.
    above = np.flatnonzero(ordered * ranks > summed - total)
    if not above.size:
        return np.zeros(len(counts), dtype=np.int64)
    rank = int(above[-1]) + 1
    scaled = np.maximum(rank * counts - (int(summed[rank - 1]) - total), 0)
    return _rounded(scaled, rank, total)


def apportioned(weights: Ints, total: int) -> Ints:
    """Return whole numbers of sum ``total`` in proportion to weights, by their largest remainders.

    Parameters
    ----------
    weights : array (m,) of int
        Not negative, of a sum from 1 to 2^31 − 1.
    total : int
        From 0 on, below 2^31.
    """
    return _rounded(weights * total, int(weights.sum()), total)


def _rounded(scaled: Ints, divisor: int, total: int) -> Ints:
    """Return quotients rounded down, and the units that the sum lacks at the largest remainders, the first first."""
    whole, remainders = scaled // divisor, scaled % divisor
    whole[np.argsort(-remainders, kind="stable")[: total - int(whole.sum())]] += 1
    return np.asarray(whole, dtype=np.int64)
