"""Products of whole numbers, compiled: float32 rows are widened in registers instead of in memory.

The sums may be taken in any order (``reassoc``) because every partial sum is a whole number below 2^53. Both products
take four rows at a time, so that what is added up stays in registers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpalgos.compiling import compiled
from dpalgos.rows import Floats


@compiled
def write_dots(left: Floats, right: NDArray[np.float32], start: int, stop: int, offset: int, out: Floats) -> None:
    """Write Σ_j left[k, j] r0[j] to out[k, r − start] for the rows r of right from start to stop.

    ``left`` is (K, n), and so are the n columns of ``right`` from ``offset`` on.
    """
    outputs, n = left.shape
    m = stop - start
    fours = m - m % 4
    for q in range(0, fours, 4):
        r = start + q
        r0, r1 = right[r, offset : offset + n], right[r + 1, offset : offset + n]
        r2, r3 = right[r + 2, offset : offset + n], right[r + 3, offset : offset + n]
        for k in range(outputs):
            a0, a1, a2, a3 = 0.0, 0.0, 0.0, 0.0
            for j in range(n):
                a = left[k, j]
                a0 += a * r0[j]
                a1 += a * r1[j]
                a2 += a * r2[j]
                a3 += a * r3[j]
            out[k, q], out[k, q + 1], out[k, q + 2], out[k, q + 3] = a0, a1, a2, a3
    for q in range(fours, m):
        r0 = right[start + q, offset : offset + n]
        for k in range(outputs):
            a0 = 0.0
            for j in range(n):
                a0 += left[k, j] * r0[j]
            out[k, q] = a0


@compiled
def add_combinations(left: Floats, right: NDArray[np.float32], start: int, stop: int, offset: int, out: Floats) -> None:
    """Add Σ_r left[k, r − start] r0[j] to out[k, j] over the rows r of right from start to stop.

    ``left`` is (K, stop − start), ``out`` (K, n) for n columns of ``right`` from ``offset`` on.
    """
    outputs, n = out.shape
    m = stop - start
    fours = m - m % 4
    for q in range(0, fours, 4):
        r = start + q
        r0, r1 = right[r, offset : offset + n], right[r + 1, offset : offset + n]
        r2, r3 = right[r + 2, offset : offset + n], right[r + 3, offset : offset + n]
        for k in range(outputs):
            a0, a1, a2, a3 = left[k, q], left[k, q + 1], left[k, q + 2], left[k, q + 3]
            for j in range(n):
                out[k, j] += a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]
    for q in range(fours, m):
        r0 = right[start + q, offset : offset + n]
        for k in range(outputs):
            for j in range(n):
                out[k, j] += left[k, q] * r0[j]
