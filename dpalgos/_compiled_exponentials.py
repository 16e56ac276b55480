"""Loops over exponentials, compiled: over many numbers at once, and the same on every processor.

Nothing here is added up in another order than written and nothing is fused, so equal numbers give equal bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpalgos.compiling import compiled_in_order
from dpalgos.rows import Floats, Ints

# Rows whose numbers stay in the nearest cache.
_TILE = 256
_LOG2_E = 1.4426950408889634
# ln 2 in two parts; a whole number below 2^11 times the first is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Added to a number below 2^51, it leaves the nearest whole number in the last bits.
_WHOLE = 1.5 * 2.0**52
# 1/13!, 1/12!, …, 1/0!.
_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(13, -1, -1))


@compiled_in_order
def _exponentials(numbers: Floats, powers: Floats, bits: Ints) -> None:
    """Replace numbers (n,), none above 0, by e to them, to within two units in the last place; below e^−700 by that.

    e^v = 2^q e^r with q whole and |r| ≤ ln(2)/2, e^r by its Taylor polynomial of degree 13. ``powers`` (n,) is working
    space and ``bits`` the same memory as integers.
    """
    for i in range(numbers.size):
        value = max(numbers[i], -700.0)
        shifted = value * _LOG2_E + _WHOLE
        powers[i] = shifted
        q = shifted - _WHOLE
        r = (value - q * _LN2_HIGH) - q * _LN2_LOW
        total = _TAYLOR[0]
        for coefficient in _TAYLOR[1:]:
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
