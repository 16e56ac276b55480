"""Sketches of private columns: they tell columns that come back scaled, shifted or mirrored, each in its own way.

Sets of rounded values would not do. Those of two columns of whole numbers agree whosever they are, and where one per
cent of the rows is gone, all quantiles of n rows have moved by many times the distance between neighbouring values. So
a column is known by its distribution instead, and compared by whether it is *closer than other people's can be*.

The sketch of a column is the mean of cos(kθ) and sin(kθ), k = 1 … 16, over its cells x, where θ = 2π (x − c) / 2.5 s
is kept within ±π, c is the middle of the means of the lower and the upper half of the middle 90 % of the cells, and s
their difference. c and s follow every affine map, and the mirrored column has the negated sines. Cells that are missing
do not count, and a column has no sketch where fewer than 50 values differ or where s is 0.

Let Σ be the covariance of one row's influence on these 32 numbers (on c and s, too). For independent samples of m and
n rows of one distribution, the difference has the covariance (1/m + 1/n) Σ, and its square t ν in the norm of
((1/m + 1/n) Σ)⁻¹, over the ν directions in which Σ is no smaller than 0.02, is χ² with ν degrees of freedom (for many
rows: the means are normal in the limit); of different distributions it is larger. By Chernoff's bound,
P(χ² ≤ t ν) ≤ (t e^(1 − t))^(ν/2) for t < 1. A copy of a share f of the rows has t of about (1 − f) / (1 + f). Two
columns *agree* where that bound, times the number of pairs of columns, is 10⁻⁶ at most, and two of either set must
agree. A column whose bound against equally spaced values is below e⁻¹⁰ (row numbers, days of a calendar) does not
count: its distribution is everybody's.

Not told apart: other columns that were made to one distribution, such as normal scores of ranks. Not recognised:
columns that came back with less than about nine tenths of their rows, or more than a tenth of others, or with noise in
their cells.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray
from scipy import sparse

from storage.atomic import write_bytes
from storage.errors import StorageError

_COLUMNS = 1024  # of a set, the first ones
_CELLS = 1 << 22  # held before they are counted
_SUPPORT = 1024  # values a column whose counts are kept
_DIFFERENT = 50
_FREQUENCIES = np.tile(np.arange(1.0, 17.0), 2)[:, None]
_MIRROR = np.repeat([1.0, -1.0], 16)
_FLOOR = 0.02
_CHANCE, _REGULAR = 1e-6, 10.0
_FINEST = -149  # the exponent of the smallest float32
_Floats = NDArray[np.float64]


def _starts(values: _Floats, exponent: int) -> NDArray[np.intp]:
    """Return where cells of a width of a power of two begin among sorted values."""
    cells = np.floor(np.ldexp(values, -exponent))
    return np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]])[: len(cells)])


def _gathered(values: _Floats, counts: _Floats, exponent: int) -> tuple[_Floats, _Floats]:
    """Return mean and count of sorted values in each cell."""
    first = _starts(values, exponent)
    weights = np.add.reduceat(counts, first)
    return np.add.reduceat(values * counts, first) / weights, weights


class _Counts:
    """The counts of a column's values, in cells of the least power of two by which at most 1,024 differ.

    It is the same in whatever order values come, since cells of one width are unions of those of a smaller one.
    """

    __slots__ = ("counts", "exponent", "values")

    def __init__(self) -> None:
        self.values, self.counts, self.exponent = np.zeros(0), np.zeros(0), _FINEST

    def add(self, ordered: _Floats) -> None:
        first = _starts(ordered, self.exponent)
        counts = np.diff(first, append=len(ordered))
        values = np.concatenate([self.values, np.add.reduceat(ordered, first) / counts])
        order = np.argsort(values, kind="stable")
        counts = np.concatenate([self.counts, counts])[order]
        self.values, self.counts = _gathered(values[order], counts, self.exponent)
        while len(self.values) > _SUPPORT:
            # Cells of twice the width are at least half as many.
            self.exponent += math.ceil(math.log2(len(self.values) / _SUPPORT))
            self.values, self.counts = _gathered(self.values, self.counts, self.exponent)


def _sketch(values: _Floats, counts: _Floats) -> tuple[_Floats, _Floats, float] | None:
    """Return the sketch of a column, the directions that count divided by their standard deviations, and its rows."""
    if len(values) < _DIFFERENT:
        return None
    shares = counts / counts.sum()
    below = np.concatenate([[0.0], np.cumsum(shares)])
    halves = [(0.05, 0.5), (0.5, 0.95)]
    low, high = (np.diff(np.clip(below, *half)) @ values / 0.45 for half in halves)
    if not high > low:
        return None
    scaled = (values - (low + high) / 2.0) / (high - low)
    angles = 2.0 * np.pi / 2.5 * scaled
    inside = np.abs(angles) < np.pi
    angles = np.clip(angles, -np.pi, np.pi)
    waves = np.cos(_FREQUENCIES * angles - (_MIRROR[:, None] < 0) * np.pi / 2.0)
    sketch = waves @ shares
    # How the waves move with c and s, and how a row moves these: what it adds to the mean of a part of the quantiles.
    slopes = -np.sin(_FREQUENCIES * angles - (_MIRROR[:, None] < 0) * np.pi / 2.0) * _FREQUENCIES * inside
    slopes *= 2.0 * np.pi / 2.5
    moved = []
    for start, stop in halves:
        steps = np.diff(scaled) * ((below[1:-1] > start) & (below[1:-1] < stop)) / 0.45
        moved.append(steps @ below[1:-1] - np.concatenate([np.cumsum(steps[::-1])[::-1], [0.0]]))
    influence = waves - sketch[:, None]
    influence -= np.outer(slopes @ shares, (moved[0] + moved[1]) / 2.0)
    influence -= np.outer((slopes * scaled) @ shares, moved[1] - moved[0])
    variances, directions = np.linalg.eigh((influence * shares) @ influence.T)
    kept = variances > _FLOOR
    return sketch, directions[:, kept] / np.sqrt(variances[kept]), float(counts.sum())


@cache
def _even() -> _Floats:
    """Return the sketch of equally spaced values."""
    found = _sketch(np.arange(float(_SUPPORT)), np.ones(_SUPPORT))
    assert found is not None
    return found[0]


def _evidence(differences: _Floats, directions: _Floats, scale: Any) -> _Floats:
    """Return minus the logarithm of the bound on the chance that other people's columns are as close."""
    size = directions.shape[1]
    ratio = np.clip(((differences @ directions) ** 2).sum(axis=-1) / scale / max(size, 1), 1e-9, 1.0)
    return np.asarray(size / 2.0 * (ratio - 1.0 - np.log(ratio)))


class ColumnSketches:
    """The sketches of columns whose rows pass; memory does not grow with rows."""

    def __init__(self) -> None:
        self._held: list[NDArray[np.float32]] = []
        self._counts: list[_Counts] = []
        self._found: list[tuple[_Floats, _Floats, float]] | None = None

    def add(self, features: Any) -> None:
        """Take note of a block of rows; cells that are NaN are missing."""
        block = features[:, :_COLUMNS]
        self._held.append(np.asarray(block.toarray() if sparse.issparse(block) else block, dtype=np.float32).T)
        if sum(block.size for block in self._held) >= _CELLS:
            self._count()

    def _count(self) -> None:
        columns = np.concatenate(self._held, axis=1)
        self._held.clear()
        columns.sort(axis=1)
        self._counts = self._counts or [_Counts() for _ in columns]
        for counts, column in zip(self._counts, columns, strict=True):
            counts.add(column[: np.isfinite(column).sum()].astype(np.float64))

    def _sketches(self) -> list[tuple[_Floats, _Floats, float]]:
        """Return the sketches of those columns that count."""
        if self._found is None:
            if self._held:
                self._count()
            found = [_sketch(counts.values, counts.counts) for counts in self._counts]
            even = _even()
            self._found = [one for one in found if one and _evidence(one[0] - even, one[1], 1.0 / one[2]) < _REGULAR]
        return self._found

    def save(self, path: Path, key: bytes) -> None:
        """Write number of rows and sketch of each column that counts, enciphered under the root's secret."""
        rows = [np.concatenate([[rows], sketch]) for sketch, _, rows in self._sketches()]
        nonce = secrets.token_bytes(12)
        data = np.array(rows, dtype="<f8").tobytes()
        write_bytes(path, nonce + _cipher(key).encrypt(nonce, data, None), mode=0o600)

    def agree(self, known: _Floats) -> bool:
        """Whether two of these columns and two of the known ones are closer than other people's can be."""
        sketches = self._sketches()
        if min(len(sketches), len(known)) < 2:
            return False
        needed = math.log(len(sketches) * len(known) / _CHANCE)
        scales, others = known[:, 0], known[:, 1:]
        rows = []
        for sketch, directions, size in sketches:
            scale = 1.0 / size + 1.0 / scales
            straight, mirrored = (_evidence(sketch - others * sign, directions, scale) for sign in (1.0, _MIRROR))
            rows.append(np.maximum(straight, mirrored) >= needed)
        alike = np.array(rows)
        return bool(min(alike.any(axis=0).sum(), alike.any(axis=1).sum()) >= 2)


def load_sketches(path: Path, key: bytes) -> _Floats:
    """Return what :meth:`ColumnSketches.save` wrote."""
    try:
        data = path.read_bytes()
        found = np.frombuffer(_cipher(key).decrypt(data[:12], data[12:], None), dtype="<f8")
    except (OSError, ValueError, InvalidTag) as error:
        raise StorageError(
            f"{path} is damaged ({error!r}); remove it: the next ingestion makes it again from the rows"
        ) from error
    return found.reshape(-1, 1 + len(_MIRROR)).astype(np.float64)


def _cipher(key: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(hashlib.blake2b(b"column sketches", key=key, digest_size=32).digest())
