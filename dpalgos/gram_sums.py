"""Exact integer sums Σ x xᵀ of encoded rows, read block by block and added up on every core."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from dpalgos.arrays import Array, Features, Floats, Ints
from dpalgos.mechanisms.fixed_point import encode_into, encoded_radius
from dpalgos.mechanisms.symmetric import pack
from dpalgos.parallel import accumulate, pieces

_EXACT = 2**53
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
        self._most, self._held = max(1, int(_EXACT / radius**2)), 0

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
    blocks: Iterable[tuple[Features, Array]],
    clean: Callable[[Features, Array], Features],
    width: int,
    scale: float,
    *,
    count: int = 0,
) -> Ints:
    """Return the packed upper triangle of Σ x̃ x̃ᵀ over rows, exactly: the same in any order and on any number of cores.

    Parameters
    ----------
    blocks : iterable of (features, labels)
    clean : callable
        Takes features and labels of some rows and returns these as (m, width), null records zero; they are clipped to
        norm 1 and encoded here (:func:`~dpalgos.mechanisms.fixed_point.encode_rows`).
    width : int
    scale : float
        Grid units per unit.
    count : int
        Rows of all parties together: of many, those stored in float32 are encoded by compiled code.
    """
    many = count * width >= _COMPILED_FROM

    def add(gram: _Gram, part: tuple[Features, Array]) -> None:
        rows = clean(*part)
        compiled = many and rows.dtype == np.float32
        gram.add(encode_into(gram.space(len(rows)), rows, 1.0, scale, compiled=compiled))

    # Parts, not blocks, wait for a core: few blocks are held at once.
    parts = (
        (features[part], labels[part])
        for features, labels in blocks
        for part in pieces(len(features), width, _PART_ENTRIES)
    )
    grams = accumulate(lambda: _Gram(width, encoded_radius(1.0, scale)), add, parts)
    return np.asarray(sum(gram.packed() for gram in grams))
