"""Products of whole numbers, compiled: float32 rows are widened in registers instead of in memory.

The sums may be taken in any order (``reassoc``) because every partial sum is a whole number below 2^53.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpalgos.arrays import Floats
from dpalgos.compiling import compiled

__all__ = ["add_outer_products", "inner_products"]


@compiled
def inner_products(rows: NDArray[np.float32], weights: Floats, out: Floats) -> None:
    """Write rows (m, p) times weights (K, p) to out (m, K): four rows and two weights at a time."""
    m, p = rows.shape
    outputs = weights.shape[0]
    fours, twos = m - m % 4, outputs - outputs % 2
    for r in range(0, fours, 4):
        for k in range(0, twos, 2):
            a0, a1, a2, a3, b0, b1, b2, b3 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for j in range(p):
                u, v = weights[k, j], weights[k + 1, j]
                x0, x1 = np.float64(rows[r, j]), np.float64(rows[r + 1, j])
                x2, x3 = np.float64(rows[r + 2, j]), np.float64(rows[r + 3, j])
                a0 += u * x0
                a1 += u * x1
                a2 += u * x2
                a3 += u * x3
                b0 += v * x0
                b1 += v * x1
                b2 += v * x2
                b3 += v * x3
            out[r, k], out[r + 1, k], out[r + 2, k], out[r + 3, k] = a0, a1, a2, a3
            out[r, k + 1], out[r + 1, k + 1], out[r + 2, k + 1], out[r + 3, k + 1] = b0, b1, b2, b3
        for k in range(twos, outputs):
            a0, a1, a2, a3 = 0.0, 0.0, 0.0, 0.0
            for j in range(p):
                u = weights[k, j]
                a0 += u * rows[r, j]
                a1 += u * rows[r + 1, j]
                a2 += u * rows[r + 2, j]
                a3 += u * rows[r + 3, j]
            out[r, k], out[r + 1, k], out[r + 2, k], out[r + 3, k] = a0, a1, a2, a3
    for r in range(fours, m):
        for k in range(outputs):
            a0 = 0.0
            for j in range(p):
                a0 += weights[k, j] * rows[r, j]
            out[r, k] = a0


@compiled
def add_outer_products(left: Floats, rows: NDArray[np.float32], total: Floats) -> None:
    """Add left (m, K) transposed times rows (m, p) to total (K, p): eight rows at a time."""
    m, p = rows.shape
    outputs = left.shape[1]
    eights = m - m % 8
    for r in range(0, eights, 8):
        for k in range(outputs):
            a0, a1, a2, a3 = left[r, k], left[r + 1, k], left[r + 2, k], left[r + 3, k]
            a4, a5, a6, a7 = left[r + 4, k], left[r + 5, k], left[r + 6, k], left[r + 7, k]
            for j in range(p):
                total[k, j] += (
                    a0 * rows[r, j]
                    + a1 * rows[r + 1, j]
                    + a2 * rows[r + 2, j]
                    + a3 * rows[r + 3, j]
                    + a4 * rows[r + 4, j]
                    + a5 * rows[r + 5, j]
                    + a6 * rows[r + 6, j]
                    + a7 * rows[r + 7, j]
                )
    for r in range(eights, m):
        for k in range(outputs):
            for j in range(p):
                total[k, j] += left[r, k] * rows[r, j]
