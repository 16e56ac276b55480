"""Products of whole numbers, compiled: float32 rows are widened in registers instead of in memory.

The sums may be taken in any order (``reassoc``) because every partial sum is a whole number below 2^53. Both products
take four vectors of the inner, long axis and five of the other at a time, so that what is widened once is used five
times and what is added up stays in registers.
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
    fours, fives, twos = m - m % 4, outputs - outputs % 5, outputs - outputs % 5 % 2
    for q in range(0, fours, 4):
        r = start + q
        r0, r1 = right[r, offset : offset + n], right[r + 1, offset : offset + n]
        r2, r3 = right[r + 2, offset : offset + n], right[r + 3, offset : offset + n]
        for k in range(0, fives, 5):
            a0, a1, a2, a3, b0, b1, b2, b3, c0, c1 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            c2, c3, d0, d1, d2, d3, e0, e1, e2, e3 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for j in range(n):
                x0, x1 = np.float64(r0[j]), np.float64(r1[j])
                x2, x3 = np.float64(r2[j]), np.float64(r3[j])
                a, b, c = left[k, j], left[k + 1, j], left[k + 2, j]
                d, e = left[k + 3, j], left[k + 4, j]
                a0 += a * x0
                a1 += a * x1
                a2 += a * x2
                a3 += a * x3
                b0 += b * x0
                b1 += b * x1
                b2 += b * x2
                b3 += b * x3
                c0 += c * x0
                c1 += c * x1
                c2 += c * x2
                c3 += c * x3
                d0 += d * x0
                d1 += d * x1
                d2 += d * x2
                d3 += d * x3
                e0 += e * x0
                e1 += e * x1
                e2 += e * x2
                e3 += e * x3
            out[k, q], out[k, q + 1], out[k, q + 2], out[k, q + 3] = a0, a1, a2, a3
            out[k + 1, q], out[k + 1, q + 1], out[k + 1, q + 2], out[k + 1, q + 3] = b0, b1, b2, b3
            out[k + 2, q], out[k + 2, q + 1], out[k + 2, q + 2], out[k + 2, q + 3] = c0, c1, c2, c3
            out[k + 3, q], out[k + 3, q + 1], out[k + 3, q + 2], out[k + 3, q + 3] = d0, d1, d2, d3
            out[k + 4, q], out[k + 4, q + 1], out[k + 4, q + 2], out[k + 4, q + 3] = e0, e1, e2, e3
        for k in range(fives, twos, 2):
            a0, a1, a2, a3, b0, b1, b2, b3 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for j in range(n):
                x0, x1 = np.float64(r0[j]), np.float64(r1[j])
                x2, x3 = np.float64(r2[j]), np.float64(r3[j])
                a, b = left[k, j], left[k + 1, j]
                a0 += a * x0
                a1 += a * x1
                a2 += a * x2
                a3 += a * x3
                b0 += b * x0
                b1 += b * x1
                b2 += b * x2
                b3 += b * x3
            out[k, q], out[k, q + 1], out[k, q + 2], out[k, q + 3] = a0, a1, a2, a3
            out[k + 1, q], out[k + 1, q + 1], out[k + 1, q + 2], out[k + 1, q + 3] = b0, b1, b2, b3
        for k in range(twos, outputs):
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
    fours, fives, twos = m - m % 4, outputs - outputs % 5, outputs - outputs % 5 % 2
    for q in range(0, fours, 4):
        r = start + q
        r0, r1 = right[r, offset : offset + n], right[r + 1, offset : offset + n]
        r2, r3 = right[r + 2, offset : offset + n], right[r + 3, offset : offset + n]
        for k in range(0, fives, 5):
            a0, a1, a2, a3 = left[k, q], left[k, q + 1], left[k, q + 2], left[k, q + 3]
            b0, b1, b2, b3 = left[k + 1, q], left[k + 1, q + 1], left[k + 1, q + 2], left[k + 1, q + 3]
            c0, c1, c2, c3 = left[k + 2, q], left[k + 2, q + 1], left[k + 2, q + 2], left[k + 2, q + 3]
            d0, d1, d2, d3 = left[k + 3, q], left[k + 3, q + 1], left[k + 3, q + 2], left[k + 3, q + 3]
            e0, e1, e2, e3 = left[k + 4, q], left[k + 4, q + 1], left[k + 4, q + 2], left[k + 4, q + 3]
            for j in range(n):
                x0, x1 = np.float64(r0[j]), np.float64(r1[j])
                x2, x3 = np.float64(r2[j]), np.float64(r3[j])
                out[k, j] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                out[k + 1, j] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                out[k + 2, j] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
                out[k + 3, j] += d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3
                out[k + 4, j] += e0 * x0 + e1 * x1 + e2 * x2 + e3 * x3
        for k in range(fives, twos, 2):
            a0, a1, a2, a3 = left[k, q], left[k, q + 1], left[k, q + 2], left[k, q + 3]
            b0, b1, b2, b3 = left[k + 1, q], left[k + 1, q + 1], left[k + 1, q + 2], left[k + 1, q + 3]
            for j in range(n):
                x0, x1 = np.float64(r0[j]), np.float64(r1[j])
                x2, x3 = np.float64(r2[j]), np.float64(r3[j])
                out[k, j] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                out[k + 1, j] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
        for k in range(twos, outputs):
            a0, a1, a2, a3 = left[k, q], left[k, q + 1], left[k, q + 2], left[k, q + 3]
            for j in range(n):
                out[k, j] += a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]
    for q in range(fours, m):
        r0 = right[start + q, offset : offset + n]
        for k in range(outputs):
            for j in range(n):
                out[k, j] += left[k, q] * r0[j]
