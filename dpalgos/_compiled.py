"""The inner loops of exact sums and of kernels, compiled: each number is read once, the rest happens in a core's cache.

Sums that are rounded are taken in one order, eight lanes wide, and nothing is fused, so that equal numbers give equal
bits on every processor. Sums of whole numbers may be taken in any order (``reassoc``), because every partial sum is a
whole number below 2^53: the products of float32 rows, four at a time, widen them in registers instead of in memory. So
may those of coordinate descent, whose result is certified afterwards.
"""

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpalgos.compiling import compiled, compiled_in_order
from dpalgos.elementary import LEAST, LN2_HIGH, LN2_LOW, LOG2_E, TAYLOR, WHOLE
from dpalgos.rows import Features, Floats, Ints

# Rows whose numbers stay in the nearest cache.
_TILE = 256


@compiled_in_order
def _exponentials(numbers: Floats, powers: Floats, bits: Ints) -> None:
    """Replace numbers (n,), none above 0, by e to them, to within two units in the last place; below e^−700 by that.

    e^v = 2^q e^r with q whole and |r| ≤ ln(2)/2, e^r by its Taylor polynomial of degree 13. ``powers`` (n,) is working
    space and ``bits`` the same memory as integers.
    """
    for i in range(numbers.size):
        value = max(numbers[i], LEAST)
        shifted = value * LOG2_E + WHOLE
        powers[i] = shifted
        q = shifted - WHOLE
        r = (value - q * LN2_HIGH) - q * LN2_LOW
        total = TAYLOR[0]
        for coefficient in TAYLOR[1:]:
            total = total * r + coefficient
        numbers[i] = total
    # The last twelve bits are those of q; moved, they are the exponent of 2^q.
    for i in range(numbers.size):
        bits[i] = (bits[i] + 1023) << 52
    for i in range(numbers.size):
        numbers[i] *= powers[i]


@compiled_in_order
def write_slopes(scores: Floats, targets: NDArray[np.float32], start: int) -> None:
    """Replace scores (K, m) of two classes or more by p − t, t the columns of targets (K, n) from ``start`` on."""
    classes, m = scores.shape
    largest, total = np.empty(_TILE), np.empty(_TILE)
    powers = np.empty(_TILE)
    bits = powers.view(np.int64)
    for first in range(0, m, _TILE):
        size = min(_TILE, m - first)
        largest[:] = -np.inf
        for k in range(classes):
            # Slices, whose places need no look at the sign: otherwise nothing is vectorised.
            part = scores[k, first : first + size]
            for i in range(size):
                largest[i] = max(largest[i], part[i])
        total[:] = 0.0
        for k in range(classes):
            part = scores[k, first : first + size]
            for i in range(size):
                part[i] -= largest[i]
            _exponentials(part, powers[:size], bits[:size])
            for i in range(size):
                total[i] += part[i]
        for k in range(classes):
            part, own = scores[k, first : first + size], targets[k, start + first : start + first + size]
            for i in range(size):
                part[i] = part[i] / total[i] - own[i]


@compiled_in_order
def write_sigmoids(numbers: Floats) -> None:
    """Replace numbers (n,) by 1/(1 + e^−number), to the bits of :func:`dpalgos.elementary.sigmoid`."""
    powers, small = np.empty(_TILE), np.empty(_TILE)
    bits = powers.view(np.int64)
    for first in range(0, numbers.size, _TILE):
        size = min(_TILE, numbers.size - first)
        part, own = numbers[first : first + size], small[:size]
        for i in range(size):
            own[i] = -abs(part[i])
        _exponentials(own, powers[:size], bits[:size])
        for i in range(size):
            part[i] = (own[i] if part[i] < 0.0 else 1.0) / (1.0 + own[i])


@compiled_in_order
def write_gaussian_kernel(products: Floats, squares: Floats, square: float, gamma: float) -> None:
    """Replace products (n,) by exp(−gamma max(0, squares + square − 2 products))."""
    powers = np.empty(_TILE)
    bits = powers.view(np.int64)
    for first in range(0, products.size, _TILE):
        size = min(_TILE, products.size - first)
        part, lengths = products[first : first + size], squares[first : first + size]
        for i in range(size):
            part[i] = -gamma * max(lengths[i] + square - 2.0 * part[i], 0.0)
        _exponentials(part, powers[:size], bits[:size])


@compiled_in_order
def dense_products(columns: Features, point: Floats, out: Floats) -> None:
    """Write the inner products of n rows, columns (d, n), with a point (d,); its zeros take no time."""
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


@compiled
def write_dots(left: Floats, right: NDArray[np.float32], start: int, stop: int, offset: int, out: Floats) -> None:
    """Write Σ_j left[k, j] r0[j] to out[k, r − start] for the rows r of right from start to stop.

    ``left`` is (K, n), and so are the n columns of ``right`` from ``offset`` on. Two outputs share four widened rows.
    """
    outputs, n = left.shape
    m = stop - start
    pairs, fours = outputs - outputs % 2, m - m % 4
    for q in range(0, fours, 4):
        r = start + q
        r0, r1 = right[r, offset : offset + n], right[r + 1, offset : offset + n]
        r2, r3 = right[r + 2, offset : offset + n], right[r + 3, offset : offset + n]
        for k in range(0, pairs, 2):
            a0, a1, a2, a3 = 0.0, 0.0, 0.0, 0.0
            b0, b1, b2, b3 = 0.0, 0.0, 0.0, 0.0
            for j in range(n):
                a, b = left[k, j], left[k + 1, j]
                a0, b0 = a0 + a * r0[j], b0 + b * r0[j]
                a1, b1 = a1 + a * r1[j], b1 + b * r1[j]
                a2, b2 = a2 + a * r2[j], b2 + b * r2[j]
                a3, b3 = a3 + a * r3[j], b3 + b * r3[j]
            out[k, q], out[k, q + 1], out[k, q + 2], out[k, q + 3] = a0, a1, a2, a3
            out[k + 1, q], out[k + 1, q + 1], out[k + 1, q + 2], out[k + 1, q + 3] = b0, b1, b2, b3
        for k in range(pairs, outputs):
            a0, a1, a2, a3 = 0.0, 0.0, 0.0, 0.0
            for j in range(n):
                a = left[k, j]
                a0, a1 = a0 + a * r0[j], a1 + a * r1[j]
                a2, a3 = a2 + a * r2[j], a3 + a * r3[j]
            out[k, q], out[k, q + 1], out[k, q + 2], out[k, q + 3] = a0, a1, a2, a3
    for q in range(fours, m):
        row = right[start + q, offset : offset + n]
        for k in range(outputs):
            total = 0.0
            for j in range(n):
                total += left[k, j] * row[j]
            out[k, q] = total


@compiled
def add_combinations(left: Floats, right: NDArray[np.float32], start: int, stop: int, offset: int, out: Floats) -> None:
    """Add Σ_r left[k, r − start] r0[j] to out[k, j] over the rows r of right from start to stop.

    ``left`` is (K, stop − start), ``out`` (K, n) for n columns of ``right`` from ``offset`` on.
    """
    outputs, n = out.shape
    pairs, fours = outputs - outputs % 2, stop - (stop - start) % 4
    for r in range(start, fours, 4):
        r0, r1 = right[r, offset : offset + n], right[r + 1, offset : offset + n]
        r2, r3 = right[r + 2, offset : offset + n], right[r + 3, offset : offset + n]
        q = r - start
        for k in range(0, pairs, 2):
            a0, a1, a2, a3 = left[k, q], left[k, q + 1], left[k, q + 2], left[k, q + 3]
            b0, b1, b2, b3 = left[k + 1, q], left[k + 1, q + 1], left[k + 1, q + 2], left[k + 1, q + 3]
            for j in range(n):
                x0, x1, x2, x3 = r0[j], r1[j], r2[j], r3[j]
                out[k, j] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                out[k + 1, j] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
        for k in range(pairs, outputs):
            a0, a1, a2, a3 = left[k, q], left[k, q + 1], left[k, q + 2], left[k, q + 3]
            for j in range(n):
                out[k, j] += a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]
    for r in range(fours, stop):
        row = right[r, offset : offset + n]
        for k in range(outputs):
            for j in range(n):
                out[k, j] += left[k, r - start] * row[j]


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
    """Round a row in grid units; see :func:`dpalgos.integer_sums.encode_rows`.

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
    √(1 + constant²)), and its mean is shrunk by ``mean_weight``. Rows with a value that is not a number are marked in
    ``null`` (m,); null records become zero.
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


@compiled
def sweep(order: Ints, rows: Floats, y: Floats, squares: Floats, cost: float, alpha: Floats, weights: Floats) -> float:
    """One pass of dual coordinate descent without the equality constraint; return the largest projected gradient."""
    largest = 0.0
    d = weights.size
    for t in order:
        margin = 0.0
        for f in range(d):
            margin += rows[t, f] * weights[f]
        gradient = y[t] * margin - 1.0
        before = alpha[t]
        projected = gradient
        if before <= 0.0:
            projected = min(gradient, 0.0)
        elif before >= cost:
            projected = max(gradient, 0.0)
        if projected == 0.0:
            continue
        largest = max(largest, abs(projected))
        # A row of zeros has no margin to gain: its loss is constant and its variable belongs at the bound.
        after = min(max(before - gradient / squares[t], 0.0), cost) if squares[t] > 0.0 else cost
        alpha[t] = after
        change = (after - before) * y[t]
        for f in range(d):
            weights[f] += change * rows[t, f]
    return largest
