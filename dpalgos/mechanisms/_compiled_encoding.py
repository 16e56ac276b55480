"""Rows into whole numbers, compiled: each is read from memory once, the rest happens in a core's cache.

Sums that are rounded are taken in one order, eight lanes wide, so that a row's numbers are the same on every processor.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpalgos.compiling import compiled, compiled_in_order
from dpalgos.rows import Features, Floats, Ints

# Rows whose numbers stay in the nearest cache while a step of theirs is done to all of them.
_TILE = 256

Numbers: TypeAlias = "NDArray[np.float32] | Floats | Ints"


@compiled_in_order
def _sum_of_products(left: Floats, right: Floats) -> float:
    a0, a1, a2, a3, a4, a5, a6, a7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    eights = left.size - left.size % 8
    for j in range(0, eights, 8):
        a0 += left[j] * right[j]
        a1 += left[j + 1] * right[j + 1]
        a2 += left[j + 2] * right[j + 2]
        a3 += left[j + 3] * right[j + 3]
        a4 += left[j + 4] * right[j + 4]
        a5 += left[j + 5] * right[j + 5]
        a6 += left[j + 6] * right[j + 6]
        a7 += left[j + 7] * right[j + 7]
    total = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))
    for j in range(eights, left.size):
        total += left[j] * right[j]
    return total


@compiled_in_order
def _norm(row: Floats) -> float:
    """Return the l2 norm; infinite where it is none or beyond float64."""
    squares = _sum_of_products(row, row)
    if 2.0**-900 < squares < 2.0**900:
        return math.sqrt(squares)
    largest = 0.0
    for j in range(row.size):
        if not abs(row[j]) < math.inf:
            return math.inf
        largest = max(largest, abs(row[j]))
    if largest == 0.0:
        return 0.0
    scaled = row / largest
    return largest * math.sqrt(_sum_of_products(scaled, scaled))


@compiled_in_order
def _clip(row: Floats, norm: float, radius: float) -> None:
    """Scale a row of this norm onto the sphere where it is outside; one without a finite norm becomes zero."""
    if norm == math.inf:
        row[:] = 0.0
    elif norm > radius:
        row *= radius / norm


@compiled
def _write(row: Floats, limit: float, out: Numbers) -> None:
    """Round a row in grid units; see :func:`dpalgos.mechanisms.fixed_point.encode_rows`.

    Squares of whole numbers add up to the same in any order below 2^53, and above it to more than any limit.
    """
    squares = 0.0
    for j in range(row.size):
        whole = np.rint(row[j])
        squares += whole * whole
        out[j] = whole
    excess = 2.0**-48
    while squares > limit:
        squares = 0.0
        for j in range(row.size):
            whole = np.trunc(row[j] * max(0.0, 1.0 - excess))
            squares += whole * whole
            out[j] = whole
        excess *= 4.0


@compiled_in_order
def encode(features: Features, radius: float, scales: Floats, limits: Floats, out: Numbers) -> None:
    """Write rows (m, d), clipped to the radius, to out (m, d): each by its own scale, to its own squared norm, (m,)."""
    row = np.empty(features.shape[1])
    for r in range(len(features)):
        for j in range(row.size):
            row[j] = features[r, j]
        _clip(row, _norm(row), radius)
        row *= scales[r]
        _write(row, limits[r], out[r])


@compiled_in_order
def encode_units(
    features: Features,
    null: NDArray[np.bool_],
    constant: float,
    mean_weight: float,
    scale: float,
    limit: float,
    out: NDArray[np.float32],
    norms: NDArray[np.float32],
) -> None:
    """Write rows (m, d) as unit vectors in grid units to out (m, p), and their norms to (m, 1).

    Each row is clipped to the unit ball, ``constant`` is appended where p = d + 1 (and the row divided by
    √(1 + constant²)), and its mean is shrunk by ``mean_weight``. Rows that are no numbers are marked in ``null`` (m,);
    null records become zero.
    """
    d, width = features.shape[1], out.shape[1]
    row, ones = np.empty(width), np.ones(width)
    for r in range(len(features)):
        for j in range(d):
            row[j] = features[r, j]
        norm = _norm(row[:d])
        null[r] = null[r] or norm == math.inf
        if null[r]:
            out[r] = 0.0
            norms[r] = 0.0
            continue
        _clip(row[:d], norm, 1.0)
        if width > d:
            row[d] = constant
            row /= math.hypot(1.0, constant)
            _clip(row, _norm(row), 1.0)
        if mean_weight != 1.0:
            row -= (1.0 - mean_weight) * (_sum_of_products(row, ones) / width)
        norm = _norm(row)
        norms[r] = norm
        # Rounded, a unit vector's length is checked in whole numbers.
        row *= scale / norm if norm > 0.0 else 0.0
        _write(row, limit, out[r])


@compiled_in_order
def encode_columns(
    columns: Floats,
    norms: NDArray[np.float32],
    weights: NDArray[np.float32],
    radius: float,
    scale: float,
    limits: Floats,
) -> None:
    """Replace columns (K, m), a row's K numbers below each other, by what :func:`encode` writes of the rows.

    Each row is multiplied by its entry of ``norms`` (m,), clipped to the radius and multiplied by its entry of
    ``weights`` (m,), at most 1, before it is rounded to a squared norm of at most its entry of ``limits`` (m,). Every
    step runs over many rows at once, class after class, so that it is vectorised and yet rounds in one order.
    """
    outputs, m = columns.shape
    held, row, whole = np.empty((outputs, _TILE)), np.empty(outputs), np.empty(outputs)
    squares, factors = np.empty(_TILE), np.empty(_TILE)
    for first in range(0, m, _TILE):
        size = min(_TILE, m - first)
        # Slices, whose places need no look at the sign: otherwise nothing is vectorised.
        own_norms, own_weights = norms[first : first + size], weights[first : first + size]
        own_limits = limits[first : first + size]
        squares[:] = 0.0
        for k in range(outputs):
            numbers, column = held[k, :size], columns[k, first : first + size]
            for i in range(size):
                value = column[i] * own_norms[i]
                numbers[i] = value
                squares[i] += value * value
        odd = 0
        for i in range(size):
            usual = (squares[i] > 2.0**-900) & (squares[i] < 2.0**900)
            odd += 0 if usual | (squares[i] == 0.0) else 1
            factor = min(1.0, radius / math.sqrt(squares[i])) * own_weights[i]
            factors[i] = factor * scale if usual else 0.0
        if odd:
            # Squares beyond float64's range, or of what is no number, are taken with care.
            for i in range(size):
                if not ((squares[i] > 2.0**-900) & (squares[i] < 2.0**900)):
                    row[:] = held[:, i]
                    _clip(row, _norm(row), radius)
                    held[:, i] = row
                    factors[i] = own_weights[i] * scale
        squares[:] = 0.0
        for k in range(outputs):
            numbers, column = held[k, :size], columns[k, first : first + size]
            for i in range(size):
                numbers[i] *= factors[i]
                rounded = np.rint(numbers[i])
                column[i] = rounded
                squares[i] += rounded * rounded
        over = 0
        for i in range(size):
            over += 0 if squares[i] <= own_limits[i] else 1
        if over:
            # Where rounding has left the ball, entries are truncated towards zero, as in encode.
            factors[:size] = squares[:size]
            squares[:] = 0.0
            for k in range(outputs):
                numbers, column = held[k, :size], columns[k, first : first + size]
                for i in range(size):
                    truncated = np.trunc(numbers[i] * (1.0 - 2.0**-48))
                    value = column[i] if factors[i] <= own_limits[i] else truncated
                    column[i] = value
                    squares[i] += value * value
            for i in range(size):
                if not squares[i] <= own_limits[i]:
                    row[:] = held[:, i]
                    _write(row, own_limits[i], whole)
                    columns[:, first + i] = whole
