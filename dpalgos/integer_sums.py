"""Exact sums over rows: encoded and clipped in integers, multiplied and added without rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.algorithms import Work
from dpalgos.class_means import ClassMeans
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.linear import LinearTask
from dpalgos.mechanisms.distributions import pack
from dpalgos.parameters import ParameterError
from dpalgos.resources import Reserved, memory_limit, reserve, reserve_some
from dpalgos.rows import (
    Array,
    Block,
    ChosenRows,
    Features,
    Floats,
    Ints,
    Rows,
    Shares,
    accumulate,
    clip_to_unit_ball,
    for_each,
    null_labels,
    pieces,
    rows_after,
    sanitise,
)

EXACT = 2**53
"""float64 holds every whole number up to here."""
OF_BOUNDED_TRACE = (
    "each of k rows has a squared norm of at most R²/k, so their Σ xxᵀ is positive semidefinite with a trace of at "
    "most R²"
)
"""Why a person's rows move a sum of outer products by no more than one row does."""


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
    of at most ⌊L² s(k)⌋, in whole numbers. Then the sum of all k rows lies in the convex hull of zero and of what
    single rows may add, and a convex function, such as the distance of two such sums in any norm, is nowhere larger on
    the hull than on what spans it. So each sensitivity is that of single rows, under both relations (zero is what a
    null record adds):

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSums:
    """Σ (x, a) over the rows of each class, a vector of K (d + 1) integers.

    Guarantee
    ---------
    A row of class c adds (x̃, ã) to block c: x̃ encoded with ‖x̃‖ ≤ R (:func:`encode_rows`), ã a public constant. One
    record moves the vector in l2 by at most

    - ‖x̃ − z̃‖ ≤ 2R, where both rows have one class (their constants cancel; attained by antipodal rows),
    - √(‖x̃‖² + ‖z̃‖² + 2ã²) ≤ √(2 (R² + ã²)), where they have two classes,
    - √(R² + ã²), where one of them is null and adds nothing.

    Under ``replace-one`` the largest of the three, which is 2R for every ã ≤ R: the counts are free. Under
    ``replace-special`` the last. (√2 R, which holds for rows of different classes, is not enough for replace-one.)

    *Bare*, it is the counts alone, with R = 0: one record moves them by √2 ã at most, or by ã next to a null one.

    *People.* Of a person's k rows each adds (x̃, c) with c = ⌊ã/k⌋ and ‖x̃‖ ≤ R c/ã. That is the part c/ã of what a
    single row may add, (x̃ ã/c, ã), and k c/ã ≤ 1: the sum is in the convex hull of zero and of those, whose diameter
    is the largest of the three again (:func:`~dpalgos.integer_sums.row_weights`). With features up to R/k and a smaller
    c it would not be. Where ã = 0, ‖x̃‖ ≤ R/k.

    Parameters
    ----------
    scale : float
        Grid units to the radius 1.
    constant : float
        a, in [0, 1].
    bare : bool
        Whether the counts alone are summed.
    """

    scale: float
    constant: float
    bare: bool = False

    @property
    def unit(self) -> int:
        """The constant in grid units, ã."""
        return math.floor(self.constant * self.scale)

    def sensitivity(self, neighbours: Neighbours) -> float:
        """Return how far one record moves the integer vector, in l2."""
        radius = 0.0 if self.bare else encoded_radius(1.0, self.scale)
        alone = math.hypot(radius, self.unit)
        if neighbours.in_force() is Neighbours.REPLACE_SPECIAL:
            return math.nextafter(alone, math.inf)
        return math.nextafter(max(2.0 * radius, math.sqrt(2.0) * alone), math.inf)

    def shape(self, setting: Setting) -> tuple[int, int]:
        """Return the shape (K, d + 1) of the sums; (K, 1) of bare ones."""
        return setting.classes, 1 if self.bare else setting.dimension + 1

    def total(self, rows: Rows, setting: Setting) -> Ints:
        """Return a party's exact sums; null records add nothing."""
        total = np.zeros(self.shape(setting), dtype=np.int64)
        for block in rows.blocks():
            total += self.of_block(*block, setting)
        return total

    def of_block(self, features: Features, labels: Array, shares: Shares | None, setting: Setting) -> Ints:
        """Return the sums of a block, features (m, d), labels (m,) and shares (m,); null records add nothing."""
        clean, known = sanitise(features, labels, setting.classes)
        member = np.equal.outer(np.arange(setting.classes), known).astype(np.float64)
        summed = portions(self.unit, shares, len(labels))[:, None]
        if not self.bare:
            limit = squared_limit(1.0, self.scale)
            weights = None if shares is None else row_weights(shares, limit, self._squared_weight)
            summed = np.hstack([encode_rows(clean, 1.0, self.scale, weights), summed])
        # Whole numbers below 2^26: float64 holds the sums of up to 2^27 rows.
        return (member @ summed).astype(np.int64)

    def _squared_weight(self, rows: int) -> Fraction:
        return Fraction(self.unit // rows, self.unit) ** 2 if self.unit > 0 else by_norm(rows)

    def balance(self, noisy_sums: Floats | Ints, sigma: float) -> tuple[float, ...]:
        """Return weights of classes in inverse proportion to their noisy counts, the largest 1.

        A count below two deviations of its noise is taken for as much: none comes near zero. The noise has standard
        deviation ``sigma`` in grid units.
        """
        counts = np.maximum(noisy_sums[:, -1] / self.unit, max(2.0 * sigma / self.unit, 1.0))
        return tuple((counts.min() / counts).tolist())

    def means(self, noisy_sums: Floats | Ints, sigma: float, setting: Setting) -> ClassMeans:
        """Return the means behind noisy sums whose noise has standard deviation ``sigma`` in grid units.

        A class's count is the noisy one, drawn towards n/K by the positive-part James–Stein rule as far as the counts'
        spread is no larger than their noise would make it; never below n/(10 K).
        """
        sums = noisy_sums[:, :-1] / self.scale
        even = setting.rows / setting.classes
        counts = noisy_counts = np.full(setting.classes, even)
        if self.unit > 0:
            noise = sigma / self.unit
            noisy_counts = noisy_sums[:, -1] / self.unit
            seen = noisy_counts - even
            excess = (setting.classes - 2) * noise**2 / max(float((seen**2).sum()), np.finfo(np.float64).tiny)
            counts = even + max(0.0, 1.0 - excess) * seen
        counts = np.maximum(counts, max(even / 10.0, 1.0))
        deviation = sigma / self.scale
        variance = (deviation / counts) ** 2
        return ClassMeans(means=sums / counts[:, None], variance=variance, counts=counts, noisy_counts=noisy_counts)


# Eight megabytes of encoded rows at a time: enough for fast products, next to nothing of memory.
_PART_ENTRIES = 2**20
# From this many numbers on, encoding is worth the start of the compiler.
_GRAM_COMPILED_FROM = 2**25


class _Gram:
    """The sum of ``part.T @ part`` over parts that are added one by one.

    Proof of exactness: no product of two entries of a row of norm at most R exceeds R², so while m R² ≤ 2⁵³ every
    partial sum over m rows, in any order, is a whole number that float64 holds; then the sum moves on to int64.
    """

    def __init__(self, width: int, radius: float) -> None:
        self._space = np.empty((0, width))
        self._sum, self._product = np.zeros((width, width)), np.empty((width, width))
        self._moved = np.zeros((width, width), dtype=np.int64)
        self._most, self._held = max(1, int(EXACT / radius**2)), 0

    def space(self, rows: int) -> Floats:
        """Return room for so many encoded rows, the same memory each time."""
        if rows > len(self._space):
            self._space = np.empty((rows, self._space.shape[1]))
        return self._space[:rows]

    def add(self, part: Floats) -> None:
        for start in range(0, len(part), self._most):
            rows = part[start : start + self._most]
            if self._held + len(rows) > self._most:
                self._moved += self._sum.astype(np.int64)
                self._sum[:], self._held = 0.0, 0
            self._held += len(rows)
            self._sum += np.matmul(rows.T, rows, out=self._product)

    def packed(self) -> Ints:
        return pack(self._moved + self._sum.astype(np.int64))


def packed_gram(
    blocks: Iterable[Block],
    clean: Callable[[Features, Array], Features],
    width: int,
    scale: float,
    *,
    count: int = 0,
) -> Ints:
    """Return the packed upper triangle of Σ x̃ x̃ᵀ over rows, exactly: the same in any order and on any number of cores.

    Parameters
    ----------
    blocks : iterable of (features, labels, shares)
        A person's rows weigh 1/k each (:func:`~dpalgos.integer_sums.by_square`), on both sides.
    clean : callable
        Takes features and labels of some rows and returns these as (m, width), null records zero; they are clipped to
        norm 1 and encoded here (:func:`~dpalgos.integer_sums.encode_rows`).
    width : int
    scale : float
        Grid units per unit.
    count : int
        Records of all parties together: of many, those stored in float32 are encoded by compiled code.
    """
    many = count * width >= _GRAM_COMPILED_FROM

    def add(gram: _Gram, part: Block) -> None:
        features, labels, shares = part
        rows = clean(features, labels)
        weights = None if shares is None else row_weights(shares, squared_limit(1.0, scale), by_square)
        compiled = many and rows.dtype == np.float32
        gram.add(encode_into(gram.space(len(rows)), rows, 1.0, scale, weights, compiled=compiled))

    # Parts, not blocks, wait for a core: few blocks are held at once.
    parts = (
        (features[part], labels[part], None if shares is None else shares[part])
        for features, labels, shares in blocks
        for part in pieces(len(features), width, _PART_ENTRIES)
    )
    grams = accumulate(lambda: _Gram(width, encoded_radius(1.0, scale)), add, parts)
    return np.asarray(sum(gram.packed() for gram in grams))


# From this many products a sum on, the compiled ones are worth the start of the compiler.
_COMPILED_FROM = 2**23
# Rows that stay in a core's cache between their scores and their sum.
_PIECE_ENTRIES = 2**18
# Rows that a core takes at a time: enough of them to be worth handing over, few enough for all cores to end together.
_SHARE_ENTRIES = 2**20
# Up to this width rows are kept column after column: loops are then long at any width.
_NARROW = 128
# Parties' blocks are joined up to this many rows.
_JOINED_ROWS = 4096


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """Some rows: unit vectors x/‖x‖ as integers (b, p), norms, targets (b, m), and what they weigh.

    A weight (b, 1) is that of the party, in [0, 1], over k of a person; a limit (b,) the squared norm that an encoded
    slope may have. Targets lie column after column in memory, and so do narrow rows' units.
    """

    units: NDArray[np.float32]
    norms: NDArray[np.float32]
    targets: NDArray[np.float32]
    weights: NDArray[np.float32]
    limits: Floats

    @classmethod
    def joined(cls, blocks: Sequence[EncodedBlock]) -> EncodedBlock:
        """Return some blocks as one."""
        units = np.concatenate([block.units for block in blocks])
        return cls(
            units=np.asarray(units, order=_order(units.shape[1])),
            norms=np.concatenate([block.norms for block in blocks]),
            targets=np.asfortranarray(np.concatenate([block.targets for block in blocks])),
            weights=np.concatenate([block.weights for block in blocks]),
            limits=np.concatenate([block.limits for block in blocks]),
        )

    def where(self, chosen: NDArray[np.bool_]) -> EncodedBlock:
        """Return some of the rows: those marked among the first of ``chosen``."""
        own = chosen[: len(self.units)]
        units = np.asarray(self.units[own], order=_order(self.units.shape[1]))
        targets = np.asfortranarray(self.targets[own])
        return EncodedBlock(units, self.norms[own], targets, self.weights[own], self.limits[own])


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Parties' encoded rows, kept in memory that is reserved while they are.

    Parameters
    ----------
    blocks : tuple of EncodedBlock
    memory : tuple of Reserved
    rest : tuple of Rows
        The rows that there was no room for: read and encoded again at every pass.
    """

    blocks: tuple[EncodedBlock, ...]
    memory: tuple[Reserved, ...]
    rest: tuple[Rows, ...] = ()

    @property
    def kept(self) -> int:
        """Number of rows that are kept."""
        return sum(len(block.units) for block in self.blocks)

    def shares(self, entries: int) -> Iterator[tuple[EncodedBlock, slice[int, int, None]]]:
        """Yield blocks and slices of them of at most about so many numbers."""
        for block in self.blocks:
            rows, width = block.units.shape
            for part in pieces(rows, width, entries):
                yield block, slice(part.start, min(part.stop, rows))

    def where(self, chosen: NDArray[np.bool_]) -> EncodedRows:
        """Return some of a party's rows, all of them marked or not in ``chosen``."""
        starts = np.cumsum([0, *(len(block.units) for block in self.blocks)])
        kept = (block.where(chosen[start:]) for block, start in zip(self.blocks, starts, strict=False))
        later = chosen[self.kept :]
        rest = (ChosenRows(rows, lambda start, stop: later[start:stop], int(later.sum())) for rows in self.rest)
        return EncodedRows(blocks=tuple(kept), memory=(), rest=tuple(rest))


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSums:
    """Σ clip(∇ℓ(W; x, t)) over rows, in integers.

    Guarantee
    ---------
    A row's gradient r ⊗ x is written as (r‖x‖) ⊗ (x/‖x‖), its first factor clipped to norm ``clip``, both rounded to a
    grid and clipped again in integers. The sum of the outer products is exact, so one row moves it by at most the
    product of the two encoded radii in the Frobenius norm, and a replaced row by twice that
    (:func:`~dpalgos.integer_sums.outer_sensitivity`), at any weights. A null record is a zero row: its part
    is zero. Of a person's k rows each has a first factor, which makes no score, of 1/k of that norm at most: a person
    moves the sum by no more (:func:`~dpalgos.integer_sums.row_weights`).

    Parameters
    ----------
    task : LinearTask
        Its ``class_weight`` multiplies a row's first factor after it is clipped, which stays within its limit.
    clip : float
        Largest norm of a row's gradient, over all weight rows jointly.
    scale : float
        Grid units to each factor's radius, at most 2¹⁶.
    mean_weight : float
        Each row's own mean is shrunk by this factor first; 1 leaves rows as they are. :meth:`shrunk` is the symmetric
        linear map that does it.
    smallest_party : int, optional
        Where given, a party of n records scales its gradients by ``smallest_party / n`` ≤ 1, so that the sum is that of
        the parties' means times ``smallest_party``.
    """

    task: LinearTask
    clip: float
    scale: float
    mean_weight: float = 1.0
    smallest_party: int | None = None

    def sensitivity(self, neighbours: Neighbours) -> float:
        """Return how far one record moves the integer sum, in l2."""
        left, right = encoded_radius(self.clip, self.scale / self.clip), encoded_radius(1.0, self.scale)
        return outer_sensitivity(left, right, neighbours)

    def weighing(self, class_weight: Sequence[float]) -> GradientSums:
        """Return the sums in which classes weigh this much; these, where nothing is given."""
        return replace(self, task=replace(self.task, class_weight=class_weight)) if class_weight else self

    def decode(self, total: Ints | Floats) -> Floats:
        """Return the sum of gradients of an integer sum."""
        return np.asarray(total * (self.clip / self.scale**2))

    def shrunk(self, rows: Floats) -> Floats:
        """Return rows with their means shrunk."""
        if self.mean_weight == 1.0:
            return rows
        return np.asarray(rows - (1.0 - self.mean_weight) * rows.mean(axis=1, keepdims=True))

    def work(self, setting: Setting, sums: int) -> Work:
        """Return the work of some sums: scores and outer products, and the slopes' functions."""
        scores = float(setting.most_rows) * self.task.shape(setting)[0]
        return Work(
            passes=sums,
            operations=4.0 * scores * self.task.shape(setting)[1] * sums,
            small_operations=scores * sums,
            kept=self._kept(setting.most_rows, setting),
        )

    def _kept(self, rows: int, setting: Setting) -> int:
        """Return the bytes of some rows encoded: units, targets, norm and weight in float32, a limit in float64."""
        return 4 * rows * (sum(self.task.shape(setting)) + 4)

    def prepare(self, rows: Rows, setting: Setting, seen: Callable[[Block], Block] | None = None) -> Rows | EncodedRows:
        """Encode a party's rows once, each block as it is ``seen``: as many of the first ones as there is room to keep.

        That is all of them, where all that the parties may have fit the limit on memory and this party's fit what is
        free, and otherwise a share of what is free. How many follows from public numbers alone: from how many records
        there are, the most rows of each and the features, and neither from what rows hold nor from how many there are.
        The rows that come after those are read at every pass. Without room for a row they come back as they are.
        """
        memory, room = self._room(rows, setting)
        if memory is None:
            return rows
        encoded: dict[int, EncodedBlock] = {}
        kept, whole = 0, True

        def fitting() -> Iterator[tuple[int, Block]]:
            nonlocal kept, whole
            for number, block in enumerate(rows.blocks()):
                # What sees them may count: in this thread alone, and all of them.
                features, labels, shares = block if seen is None else seen(block)
                own = slice(0, room - kept)
                whole = whole and len(labels) <= own.stop
                if own.stop > 0:
                    kept += len(labels[own])
                    yield number, (features[own], labels[own], None if shares is None else shares[own])
                elif seen is None:
                    break

        def encode(numbered: tuple[int, Block]) -> None:
            number, block = numbered
            encoded[number] = self._encoded(block, rows.count, setting)

        for_each(encode, fitting())
        rest = () if whole else (rows_after(rows, kept),)
        return EncodedRows(tuple(block for _, block in sorted(encoded.items())), (memory,), rest)

    def _room(self, rows: Rows, setting: Setting) -> tuple[Reserved | None, int]:
        """Reserve memory for a party's rows; return the reservation and for how many rows it is."""
        most = rows.count * setting.rows_per_person
        if self._kept(setting.most_rows, setting) <= memory_limit():
            memory = reserve(self._kept(most, setting))
            if memory is not None:
                return memory, most
        return reserve_some(self._kept(1, setting), most, min(1.0, rows.count / max(setting.rows, 1)))

    @staticmethod
    def merge(parties: Sequence[Rows | EncodedRows]) -> list[Rows | EncodedRows]:
        """Join the parties whose rows are encoded; each row keeps its party's weight."""
        encoded = [rows for rows in parties if isinstance(rows, EncodedRows)]
        merged: list[Rows | EncodedRows] = [rows for rows in parties if not isinstance(rows, EncodedRows)]
        if encoded:
            blocks = tuple(_joined(block for rows in encoded for block in rows.blocks))
            memory = tuple(held for rows in encoded for held in rows.memory)
            merged.append(EncodedRows(blocks, memory, tuple(later for rows in encoded for later in rows.rest)))
        return merged

    def total(self, weights: Floats, rows: Rows | EncodedRows, setting: Setting) -> Ints:
        """Return a party's integer sum at some weights (m, p).

        The scores are exact, too, so that the sum does not depend on how rows are cut into blocks, whether they are
        kept, and how many cores add them up.
        """
        scored, unit = on_weight_grid(weights, encoded_radius(1.0, self.scale))
        compiled = self._compiled(setting)

        def add(total: Ints, share: tuple[EncodedBlock, slice[int, int, None]]) -> None:
            block, own = share
            for piece in pieces(own.stop - own.start, weights.shape[1], _PIECE_ENTRIES):
                part = slice(own.start + piece.start, min(own.start + piece.stop, own.stop))
                scores = inner_products(scored, block.units, part, compiled=compiled)
                scores *= (block.norms[part] / np.float64(self.scale * unit)).T
                slopes = self.encoded_slopes(
                    scores,
                    block,
                    part,
                    weighed=setting.rows_per_person > 1 or bool(self.task.class_weight),
                    compiled=compiled,
                )
                total += outer_products(slopes, block.units, part, compiled=compiled)

        def zero() -> Ints:
            return np.zeros(weights.shape, dtype=np.int64)

        def read(party: Rows) -> list[Ints]:
            def encode(total: Ints, block: Block) -> None:
                encoded = self._encoded(block, party.count, setting)
                add(total, (encoded, slice(0, len(encoded.units))))

            return accumulate(zero, encode, party.blocks())

        if not isinstance(rows, EncodedRows):
            return np.asarray(sum(read(rows)))
        totals = accumulate(zero, add, rows.shares(_SHARE_ENTRIES))
        return np.asarray(sum([*totals, *(total for party in rows.rest for total in read(party))]))

    def encoded_slopes(
        self, scores: Floats, block: EncodedBlock, part: slice[int, int, None], *, weighed: bool, compiled: bool
    ) -> Floats:
        """Return the (r‖x‖) of some rows of a block, clipped and encoded, (m, b); their scores are overwritten.

        Entries are whole numbers of at most 2¹⁶, as those of the units are, so a block's products and all their partial
        sums stay below 2⁵³ (for up to 2²¹ rows) and are exact in float64.
        """
        norms, targets, weights = block.norms[part], block.targets[part], block.weights[part]
        limits = block.limits[part]
        if self.task.class_weight:
            weights = weights * self.task.class_weights(targets).astype(np.float32)[:, None]
        grid = self.scale / self.clip
        if compiled:
            from dpalgos import _compiled

            self.task.loss.write_slopes(scores, block.targets.T, part.start)
            _compiled.encode_columns(scores, norms[:, 0], weights[:, 0], self.clip, grid, limits)
            return scores
        # A row's norm is rounded by the order in which its entries lie.
        slopes = np.ascontiguousarray(self.task.loss.slope_in_order(scores.T, targets.astype(np.float64)) * norms)
        if weighed or self.smallest_party is not None:
            slopes = clip_to_unit_ball(slopes, self.clip) * weights
        return encode_into(np.empty(slopes.shape), slopes, self.clip, grid, (np.ones(len(slopes)), limits)).T

    def _compiled(self, setting: Setting) -> bool:
        """Whether all parties' sum is worth the start of the compiler; public, as what is compiled rounds otherwise."""
        return setting.rows * math.prod(self.task.shape(setting)) >= _COMPILED_FROM

    def _encoded(self, block: Block, party: int, setting: Setting) -> EncodedBlock:
        """Encode a block of a party of ``party`` records."""
        features, labels, shares = block
        classes, width = self.task.shape(setting)
        count = len(labels)
        weight = 1.0 if self.smallest_party is None else min(1.0, self.smallest_party / max(party, 1))
        # At most 16 bits and a sign: float32 holds them exactly in half the memory.
        units, targets = (
            np.empty((count, width), np.float32, _order(width)),
            np.empty((count, classes), np.float32, "F"),
        )
        norms, weights = np.empty((2, count, 1), np.float32)
        shares = np.ones(count, np.int64) if shares is None else shares
        limit = squared_limit(self.clip, self.scale / self.clip)
        factors, limits = row_weights(shares, limit)
        weights[:, 0] = weight * factors
        encoded = EncodedBlock(units, norms, targets, weights, limits)
        if features.dtype == np.float32 and self._compiled(setting):
            from dpalgos import _compiled

            null = null_labels(labels, setting.classes)
            grid = (self.scale, squared_limit(1.0, self.scale))
            for part in pieces(count, width):
                # Row after row, and then into columns: a row's entries there may be a power of two apart, which the
                # caches map to one place.
                lines = np.empty((len(features[part]), width), np.float32)
                arguments = (features[part], null[part], self.task.intercept_scaling, self.mean_weight)
                _compiled.encode_units(*arguments, *grid, lines, encoded.norms[part])
                encoded.units[part] = lines
            encoded.targets[:] = self.task.targets(labels, null, setting)
            return encoded
        for part in pieces(count, width):
            clean, encoded.targets[part] = self.task.block(features[part], labels[part], setting)
            clean = self.shrunk(clean)
            lengths = np.linalg.norm(clean, axis=1, keepdims=True)
            norms[part] = lengths
            encode_into(units[part], clean / np.where(lengths > 0, lengths, 1.0), 1.0, self.scale)
        return encoded


def _order(width: int) -> Literal["C", "F"]:
    """Return how units of this width lie in memory: row after row, or column after column."""
    return "F" if width <= _NARROW else "C"


def _joined(blocks: Iterator[EncodedBlock]) -> Iterator[EncodedBlock]:
    """Yield blocks of a few thousand rows, or of more where they come so."""
    held: list[EncodedBlock] = []
    rows = 0
    for block in blocks:
        held.append(block)
        rows += len(block.units)
        if rows >= _JOINED_ROWS:
            yield EncodedBlock.joined(held) if len(held) > 1 else block
            held, rows = [], 0
    if held:
        yield EncodedBlock.joined(held)
