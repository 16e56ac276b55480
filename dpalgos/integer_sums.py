"""Exact integer sums over rows: the rows of each class with their number, and Gram matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpalgos.guarantees import Neighbours, Setting
from dpalgos.mechanisms.fixed_point import (
    EXACT,
    by_norm,
    by_square,
    encode_into,
    encode_rows,
    encoded_radius,
    portions,
    row_weights,
    squared_limit,
)
from dpalgos.mechanisms.symmetric import pack
from dpalgos.parallel import accumulate, pieces
from dpalgos.rows import Array, Block, Features, Floats, Ints, Rows, Shares, sanitise


@dataclass(frozen=True, slots=True)
class ClassMeans:
    """What one noisy sum a class tells: post-processing of the sums.

    Parameters
    ----------
    means : array (K, d)
    variance : array (K,)
        Of each mean's noise, a coordinate.
    counts : array (K,)
        Rows of each class, estimated.
    """

    means: Floats
    variance: Floats
    counts: Floats

    def lengths(self) -> Floats:
        """Return unbiased estimates of ‖m_c‖² (K,): noise adds d times its variance, which is public."""
        return np.asarray((self.means**2).sum(axis=1) - self.means.shape[1] * self.variance)

    def discriminant(self) -> tuple[Floats, Floats]:
        """Return weights (K, d) and intercepts (K,) of scores x·m_c − ½‖m_c‖²: the nearest mean has the largest."""
        return self.means, -0.5 * np.maximum(self.lengths(), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSums:
    """Σ (x, a) over the rows of each class, a vector of K (d + 1) integers.

    Guarantee
    ---------
    A row of class c adds (x̃, ã) to block c: x̃ encoded with ‖x̃‖ ≤ R (:func:`encode_rows`), ã a public constant. One
    record moves the vector in l2 by at most

    - ‖x̃ − z̃‖ ≤ 2R, where both rows are of one class (their constants cancel; attained by antipodal rows),
    - √(‖x̃‖² + ‖z̃‖² + 2ã²) ≤ √(2 (R² + ã²)), where they are of two classes,
    - √(R² + ã²), where one of them is null and adds nothing.

    Under ``replace-one`` the largest of the three, which is 2R for every ã ≤ R: the counts are free. Under
    ``replace-special`` the last. (√2 R, which holds for rows of different classes, is not enough for replace-one.)

    *Bare*, it is the counts alone, with R = 0: one record moves them by √2 ã at most, or by ã beside a null one.

    *People.* Of a person's k rows each adds (x̃, c) with c = ⌊ã/k⌋ and ‖x̃‖ ≤ R c/ã. That is the part c/ã of what a
    single row may add, (x̃ ã/c, ã), and k c/ã ≤ 1: the sum is in the convex hull of zero and of those, whose diameter
    is the largest of the three again (:func:`~dpalgos.mechanisms.fixed_point.row_weights`). With features up to R/k
    beside a smaller c it would not be. Where ã = 0, ‖x̃‖ ≤ R/k.

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
        counts = np.full(setting.classes, even)
        if self.unit > 0:
            noise = sigma / self.unit
            seen = noisy_sums[:, -1] / self.unit - even
            excess = (setting.classes - 2) * noise**2 / max(float((seen**2).sum()), np.finfo(np.float64).tiny)
            counts = even + max(0.0, 1.0 - excess) * seen
        counts = np.maximum(counts, max(even / 10.0, 1.0))
        deviation = sigma / self.scale
        return ClassMeans(means=sums / counts[:, None], variance=(deviation / counts) ** 2, counts=counts)


# Eight megabytes of encoded rows at a time: enough for fast products, next to nothing of memory.
_PART_ENTRIES = 2**20
# From this many numbers on, encoding is worth the start of the compiler.
_COMPILED_FROM = 2**25


class _Gram:
    """The sum of ``part.T @ part`` over parts that are added one by one.

    Proof of exactness: no product of two entries of a row of norm at most R exceeds R², so while m R² ≤ 2⁵³ every
    partial sum over m rows, in whatever order, is a whole number that float64 holds; then the sum moves on to int64.
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
        A person's rows weigh 1/k each (:func:`~dpalgos.mechanisms.fixed_point.by_square`), on both sides.
    clean : callable
        Takes features and labels of some rows and returns these as (m, width), null records zero; they are clipped to
        norm 1 and encoded here (:func:`~dpalgos.mechanisms.fixed_point.encode_rows`).
    width : int
    scale : float
        Grid units per unit.
    count : int
        Records of all parties together: of many, those stored in float32 are encoded by compiled code.
    """
    many = count * width >= _COMPILED_FROM

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
