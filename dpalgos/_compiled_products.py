"""Inner products of many rows with one, compiled: summed in the order of the features, the same on every processor."""

from __future__ import annotations

import numpy as np

from dpalgos.compiling import compiled_in_order
from dpalgos.rows import Features, Floats, Ints


@compiled_in_order
def dense_products(columns: Features, point: Floats, out: Floats) -> None:
    """Write the inner products of n rows, columns (d, n), with a point (d,), whose zeros cost nothing."""
    out[:] = 0.0
    chosen = np.flatnonzero(point)
    fours = chosen.size - chosen.size % 4
    for q in range(0, fours, 4):
        a, b, c, d = chosen[q], chosen[q + 1], chosen[q + 2], chosen[q + 3]
        first, second, third, fourth = columns[a], columns[b], columns[c], columns[d]
        w, x, y, z = point[a], point[b], point[c], point[d]
        for t in range(out.size):
            out[t] = (((out[t] + w * first[t]) + x * second[t]) + y * third[t]) + z * fourth[t]
    for q in range(fours, chosen.size):
        column, w = columns[chosen[q]], point[chosen[q]]
        for t in range(out.size):
            out[t] += w * column[t]


@compiled_in_order
def sparse_products(pointers: Ints, rows: Ints, values: Floats, entries: Ints, point: Floats, out: Floats) -> None:
    """Write the inner products of n rows, in columns one after another (CSC), with a point of some entries."""
    out[:] = 0.0
    for q in range(entries.size):
        for place in range(pointers[entries[q]], pointers[entries[q] + 1]):
            out[rows[place]] += point[q] * values[place]


@compiled_in_order
def tables_of_products(columns: Features, points: Floats, out: Floats) -> None:
    """Write the inner products (s, n) of n rows, columns (d, n), with points (s, d), whose zeros cost nothing."""
    for s in range(points.shape[0]):
        dense_products(columns, points[s], out[s])
