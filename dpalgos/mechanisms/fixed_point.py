"""The exact path from rows to integer sums: encode, clip in integers, multiply and sum without rounding, decode."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.guarantees import Neighbours
from dpalgos.parameters import ParameterError
from dpalgos.rows import Features, Floats, Ints, Shares, clip_to_unit_ball, pieces

EXACT = 2**53
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
    from dpalgos import _compiled

    start, stop, _ = part.indices(len(rows))
    weights = np.ascontiguousarray(weights)
    if rows.flags.c_contiguous:
        out = np.empty((len(weights), stop - start))
        _compiled.write_dots(weights, rows, start, stop, 0, out)
    else:
        out = np.zeros((len(weights), stop - start))
        _compiled.add_combinations(weights, np.ascontiguousarray(rows.T), 0, rows.shape[1], start, out)
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
    from dpalgos import _compiled

    start, stop, _ = part.indices(len(rows))
    if rows.flags.c_contiguous:
        total = np.zeros((len(left), rows.shape[1]))
        _compiled.add_combinations(left, rows, start, stop, 0, total)
    else:
        total = np.empty((len(left), rows.shape[1]))
        _compiled.write_dots(left, np.ascontiguousarray(rows.T), 0, rows.shape[1], start, total)
    return total.astype(np.int64)


_Number = TypeVar("_Number", np.int64, np.float64, np.float32)


# Squared norms and products of two encoded coordinates then stay below 2^52 and are exact in float64.
_LARGEST_RADIUS = 2.0**26
# Leaves room for the noise before int64 overflows.


# Asked for once a party and block, and exact arithmetic takes its time.
@lru_cache(maxsize=64)
def squared_limit(radius: float, scale: float) -> float:
    """Return floor((scale * radius)^2), which no encoded row's squared norm exceeds; exact, below 2^52."""
    for name, value in (("radius", radius), ("scale", scale)):
        if not (math.isfinite(value) and value > 0):
            raise ParameterError(f"{name} is {value!r}; it must be a finite number above 0")
    limit = math.floor((Fraction(radius) * Fraction(scale)) ** 2)
    if not 1 <= limit < _LARGEST_RADIUS**2:
        raise ParameterError(
            f"scale * radius is {scale * radius!r} grid units; it must be at least 1 and below 2^26: "
            f"choose a {'finer' if limit < 1 else 'coarser'} grid"
        )
    return float(limit)


def by_norm(rows: int) -> Fraction:
    """Return 1/k²: the squared weight of each of k rows whose vectors are added up, or one factor of whose products."""
    return Fraction(1, rows * rows)


def by_square(rows: int) -> Fraction:
    """Return 1/k: the squared weight of each of k rows whose squares xxᵀ are added up."""
    return Fraction(1, rows)


def row_weights(
    shares: Shares, limit: float, squared_weight: Callable[[int], Fraction] = by_norm
) -> tuple[Floats, Floats]:
    """Return what rows of people weigh: each row's factor, and the squared norm that it may have, both (m,).

    Guarantee
    ---------
    Let a record be a person with k rows in what is summed, each of whom says k. A row that contributes nothing (it is
    null, or no number) only leaves a term out below, and a person without rows adds zero. Let L² be ``limit``, the
    squared norm that no single record's row exceeds, and s(k) the squared weight. Every encoded row has a squared norm
    of at most ⌊L² s(k)⌋, in whole numbers. Then whatever all k rows add lies in the convex hull of zero and what single
    rows may add, and a convex function, such as the distance of two such sums in any norm, is nowhere larger on the
    hull than on what spans it. So each sensitivity is that of single rows, under both relations (zero is what a null
    record adds):

    - *sums of vectors* (s = 1/k²): each of norm at most L/k, together at most L;
    - *outer products* l ⊗ r, l of norm at most L/k (s = 1/k²) and r of at most R: together at most L R in the Frobenius
      norm. The factor that is weighed must make no score, or scores would depend on k;
    - *squares* xxᵀ (s = 1/k): together positive semidefinite of trace at most L². Two such matrices A, B are ‖A − B‖² =
      ‖A‖² + ‖B‖² − 2 tr AB ≤ 2L⁴ apart. (A row weighed in one of its factors alone is not symmetric once it is rounded,
      and may be farther away.) Any other norm: xxᵀ = (‖x‖²/L²) yyᵀ with ‖y‖ = L, and k ‖x‖²/L² ≤ 1;
    - *sums with a count* (:class:`~dpalgos.integer_sums.ClassSums`, s = (c/a)², c = ⌊a/k⌋).

    ⌊·⌋ is essential: k ⌈L/k⌉ exceeds L. So is that k is the same in all blocks, chunks and parts.

    Parameters
    ----------
    shares : array (m,)
        k of each row; a row whose k is below 1 weighs nothing.
    limit : float
        A whole number, see :func:`squared_limit`.
    squared_weight : callable
        Of k, at most 1/k² or as above.
    """
    values, places = np.unique(shares, return_inverse=True)
    squared = [squared_weight(int(rows)) if rows >= 1 else Fraction(0) for rows in values]
    limits = np.array([math.floor(Fraction(limit) * each) for each in squared], dtype=np.float64)
    return np.sqrt(np.array(squared, dtype=np.float64))[places], limits[places]


def portions(unit: int, shares: Shares | None, count: int) -> Ints:
    """Return ⌊unit/k⌋ for each of ``count`` rows, (m,): a person's together are at most one unit."""
    if shares is None:
        return np.full(count, unit)
    return np.where(shares >= 1, unit // np.maximum(shares, 1).astype(np.int64), 0)


def encoded_radius(radius: float, scale: float) -> float:
    """Return the l2 norm in grid units that no encoded row exceeds: sqrt(floor((scale * radius)^2)), rounded up."""
    return math.nextafter(math.sqrt(squared_limit(radius, scale)), math.inf)


def encode_rows(features: Features, radius: float, scale: float, weights: tuple[Floats, Floats] | None = None) -> Ints:
    """Encode rows on the integer grid so that each has integer norm at most ``scale * radius``.

    Guarantee
    ---------
    Row-local, deterministic and total: each row's integers depend on that row alone, NaN or infinite rows become
    zero, and every row z of the result satisfies sum z_i^2 <= floor((scale * radius)^2) in exact integer
    arithmetic. (An integer vector's squared norm is an integer, so this is the same as norm <= scale * radius.)

    Rows are clipped to the radius in float64, scaled and rounded to the nearest integers. Rows that rounding pushed
    out of the ball are truncated towards zero instead, which shrinks every coordinate, and shrunk further in the
    (float64-error) cases that remain.

    Parameters
    ----------
    features : array (m, d)
    radius : float
        Bound on a row's l2 norm.
    scale : float
        Grid units per unit of the features; a power of two makes decoding exact.
    weights : (array (m,), array (m,)), optional
        What rows of people weigh (:func:`row_weights`): a row within the radius is multiplied by its factor, and its
        integers' squared norm is at most its own limit.

    Returns
    -------
    array (m, d) of int64
    """
    return encode_into(np.empty(features.shape, dtype=np.int64), features, radius, scale, weights)


def encode_into(
    out: NDArray[_Number],
    features: Features,
    radius: float,
    scale: float,
    weights: tuple[Floats, Floats] | None = None,
    *,
    compiled: bool = False,
) -> NDArray[_Number]:
    """Write what :func:`encode_rows` returns to an array (m, d) of any type that holds it, and return that.

    float32 holds whole numbers up to 2^24, float64 up to 2^53. Some rows at a time, so that they stay in the caches.

    Parameters
    ----------
    compiled : bool
        Whether the work is worth the compiler's start. A norm may then differ in its last bit, hence an entry by one
        unit, so public numbers alone are to decide.
    """
    factors, limits = weights or (np.ones(len(features)), np.full(len(features), squared_limit(radius, scale)))
    if compiled:
        from dpalgos import _compiled

        _compiled.encode(features, radius, scale * factors, limits, out)
        return out
    for piece in pieces(*features.shape):
        clipped = clip_to_unit_ball(features[piece], radius) * (
            scale if weights is None else scale * factors[piece, None]
        )
        limit = limits[piece]
        encoded = np.rint(clipped)
        # Integers: sums of squares are exact in float64 below 2^53, and above it they exceed the limit all the same.
        outside = np.flatnonzero(np.einsum("ij,ij->i", encoded, encoded) > limit)
        excess = 2.0**-48
        while outside.size:
            encoded[outside] = np.trunc(clipped[outside] * max(0.0, 1.0 - excess))
            excess *= 4.0
            remaining = np.einsum("ij,ij->i", encoded[outside], encoded[outside]) > limit[outside]
            outside = outside[remaining]
        out[piece] = encoded
    return out


def _up(value: float) -> float:
    return math.nextafter(value, math.inf) if value > 0 else 0.0


def sum_sensitivity(radius: float, neighbours: Neighbours) -> float:
    """Return how far one record moves a sum of vectors of norm at most ``radius``, in l2.

    ``radius`` against a null record; ``2 radius`` when it is replaced (x - y with y = -x).
    """
    return _up(radius * neighbours.records)


def outer_sensitivity(left_radius: float, right_radius: float, neighbours: Neighbours) -> float:
    """Return how far one record moves a sum of outer products ``x r^T``, in the Frobenius norm.

    Guarantee
    ---------
    For |x| <= left_radius and |r| <= right_radius, ``|x r^T|_F = |x| |r|``, so against a null record the sum moves
    by at most left_radius * right_radius. A replaced record moves it by at most twice that (triangle inequality), which
    is attained by (x, r) and (x, -r).

    The radii are in grid units (:func:`encoded_radius`) for sums of encoded rows, and so is the result.
    """
    return _up(left_radius * right_radius * neighbours.records)


def gram_sensitivity(radius: float, neighbours: Neighbours) -> float:
    """Return how far one record moves a sum of squares ``x x^T``, in the Frobenius norm.

    Guarantee
    ---------
    For |x|, |y| <= R: against a null record x moves the sum by |x x^T|_F = |x|^2 <= R^2. Replacing x by y moves it
    by ``|x x^T - y y^T|_F``, whose square is |x|^4 + |y|^4 - 2 (x . y)^2 <= 2 R^4: at most sqrt(2) R^2, attained by
    orthogonal rows of norm R.
    """
    return _up(radius * radius * math.sqrt(neighbours.records))
