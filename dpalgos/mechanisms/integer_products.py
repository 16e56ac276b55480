"""Products of whole numbers held in floating point: exact, hence the same in any order, block, thread or library."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpalgos.arrays import Floats

EXACT = 2.0**53
"""float64 holds every whole number up to here."""


def on_weight_grid(weights: Floats, radius: float) -> tuple[Floats, float]:
    """Return weights (K, p) as whole numbers, and the grid units to a unit, for exact scores.

    The grid is a power of two, the finest for which a row of integers of norm at most ``radius`` has scores below 2^53:
    by Cauchy-Schwarz no partial sum is larger than the product of the two norms. Weights that are not finite become 0.

    Parameters
    ----------
    weights : array (K, p)
    radius : float
        Largest l2 norm of a row of integers, in grid units.
    """
    weights = np.where(np.isfinite(weights), weights, 0.0)
    # A row's norm is at most its largest entry times the root of p; two bits are left for rounding each of p weights.
    sizes = (float(np.abs(weights).max(initial=0.0)), math.sqrt(weights.shape[1]), radius)
    exponent = min(51 - sum(math.frexp(size)[1] for size in sizes), 1000)
    return np.rint(np.ldexp(weights, exponent)), math.ldexp(1.0, exponent)


def inner_products(
    weights: Floats, rows: NDArray[np.float32], part: slice[int, int, None], *, compiled: bool
) -> Floats:
    """Return the exact ``weights @ rows[part].T``, (K, m), of whole numbers whose partial sums stay below 2^53.

    Class after class in memory: what is done to each class's scores then runs over many rows at once.

    Parameters
    ----------
    weights : array (K, p) of float64
        Whole numbers, see :func:`on_weight_grid`.
    rows : array (b, p) of float32
        Whole numbers below 2^24, row after row or column after column in memory.
    part : slice
        The m rows that are meant.
    compiled : bool
        Whether the work is worth the compiler's start; the result is the same.
    """
    if not compiled:
        return np.asarray(weights @ rows[part].T.astype(np.float64))
    from dpalgos.mechanisms import _compiled_products

    start, stop, _ = part.indices(len(rows))
    weights = np.ascontiguousarray(weights)
    if rows.flags.c_contiguous:
        out = np.empty((len(weights), stop - start))
        _compiled_products.write_dots(weights, rows, start, stop, 0, out)
    else:
        out = np.zeros((len(weights), stop - start))
        _compiled_products.add_combinations(weights, np.ascontiguousarray(rows.T), 0, rows.shape[1], start, out)
    return out


def outer_products(
    left: Floats, rows: NDArray[np.float32], part: slice[int, int, None], *, compiled: bool
) -> NDArray[np.int64]:
    """Return the exact sum of outer products, ``left @ rows[part]``, (K, p).

    Parameters
    ----------
    left : array (K, m) of float64
    rows : array (b, p) of float32
        Whole numbers; m max|left| max|rows| is at most 2^53.
    part : slice
        The m rows that are meant.
    compiled : bool
        As in :func:`inner_products`.
    """
    if not compiled:
        return (left @ rows[part].astype(np.float64)).astype(np.int64)
    from dpalgos.mechanisms import _compiled_products

    start, stop, _ = part.indices(len(rows))
    if rows.flags.c_contiguous:
        total = np.zeros((len(left), rows.shape[1]))
        _compiled_products.add_combinations(left, rows, start, stop, 0, total)
    else:
        total = np.empty((len(left), rows.shape[1]))
        _compiled_products.write_dots(left, np.ascontiguousarray(rows.T), 0, rows.shape[1], start, total)
    return total.astype(np.int64)
