"""Keyed fingerprints of private rows: they tell rows that come back, under another name or as public ones.

Beside the sketches of columns (:mod:`storage.column_sketches`), which tell whole tables that were mapped column by
column, two kinds are kept of every private version, without labels and without an order, as 8-byte BLAKE2b values keyed
with the root's secret (without which they tell nothing about a guessed row):

*exact*
    of the non-zero float32 values and their columns: equal for equal rows however they are stored;
*pattern*
    of the values alone, sorted, so that permuted columns do not matter; where a row has five different values or more,
    of their ratios to the largest, rounded, so that a row scaled by a constant (pixels by 255, negated rows, rows to
    unit norm) mostly has the same one. Of a table they are its numbers as the file has them, where it has five such
    columns or more: in [0, 1], the range that was declared would decide the ratios.

Sets overlap when more than 1 % of the distinct rows of either are rows of the other, or two columns agree. Not caught:
rows whose values were perturbed; parts of a table, or few rows among others, that were mapped column by column;
permuted or scaled rows of fewer than two different values (0/1 tables), and scaled ones where fewer than two columns
have 50 different values.
Two populations may overlap by chance where rows are coarse (few columns, few values): their owner declares that they
are disjoint.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from storage.atomic import write_bytes
from storage.column_sketches import ColumnSketches, load_sketches
from storage.errors import StorageError
from storage.layout import COLUMNS, FINGERPRINTS, PATTERNS, Layout

ADMITTED_SHARE = 0.01
"""The share of distinct rows of either set above which two sets overlap; a public constant."""

_SCALED_FROM = 5
_Prints = NDArray[np.uint64]


def _nonzero(features: Any) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]], NDArray[np.float32]]:
    """Return where each row begins, and columns and values of its entries that are not zero."""
    if sparse.issparse(features):
        matrix = sparse.csr_matrix(features, dtype=np.float32)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix.indptr.astype(np.int64), matrix.indices, matrix.data
    dense = np.ascontiguousarray(features, dtype=np.float32)
    if dense.all():
        starts = np.arange(len(dense) + 1, dtype=np.int64) * dense.shape[1]
        return starts, np.tile(np.arange(dense.shape[1]), len(dense)), dense.reshape(-1)
    rows, columns = np.nonzero(dense)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(dense)))]).astype(np.int64)
    return starts, columns, dense[rows, columns]


def _hashed(parts: Iterator[bytes], key: bytes) -> _Prints:
    digests = b"".join(hashlib.blake2b(part, key=key, digest_size=8).digest() for part in parts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def row_fingerprints(features: Any, key: bytes) -> _Prints:
    """Return the exact fingerprint of each row: equal for equal float32 rows however they are stored.

    Parameters
    ----------
    features : array or CSR matrix of shape (m, d)
    key : bytes
        The root's secret.
    """
    starts, columns, values = _nonzero(features)
    places = np.ascontiguousarray(columns, dtype="<i4").tobytes()
    numbers = np.ascontiguousarray(values, dtype="<f4").tobytes()
    bounds = pairwise((4 * starts).tolist())
    return _hashed((places[start:stop] + numbers[start:stop] for start, stop in bounds), key)


def row_patterns(features: Any, key: bytes) -> _Prints:
    """Return the patterns of those rows that have two different values or more, in no particular order.

    A ratio computed from float32 values is off by about 2.4e-7 at most, so of k values rounded to multiples of 2⁻ᵇ
    about ``k 2ᵇ⁻²²`` fall on the other side of a boundary; with ``b = 20 − log2 k`` (8 to 16) most rows keep theirs.
    """
    starts, _, values = _nonzero(features)
    sizes = np.diff(starts)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    largest = np.zeros(len(sizes), dtype=np.float64)
    np.maximum.at(largest, rows, np.abs(values.astype(np.float64)))
    # Negated rows have the same ratios.
    largest[rows[values == -largest[rows]]] *= -1.0
    exact = values.view(np.int32).astype(np.int64)
    bits = np.clip(20 - np.ceil(np.log2(np.maximum(sizes, 1))), 8, 16)
    ratios = np.rint(values / largest[rows] * np.exp2(bits)[rows]).astype(np.int64)
    # One sort for all rows: the row in the upper bits, the value in the lower.
    # (NumPy's own way to distinct integers hashes them, which takes twenty times as long.)
    ordered = np.sort(rows << 34 | exact + (1 << 32))
    first = np.diff(ordered, prepend=-1) != 0
    different = np.bincount(ordered[first] >> 34, minlength=len(sizes))
    scaled = different >= _SCALED_FROM
    within = np.sort(rows << 34 | np.where(scaled[rows], ratios, exact) + (1 << 32)) & (1 << 34) - 1
    data = within.astype("<i8").tobytes()
    bounds = list(pairwise((8 * starts).tolist()))
    worth = np.flatnonzero(different >= 2).tolist()
    return _hashed((data[slice(*bounds[row])] + (b"s" if scaled[row] else b"e") for row in worth), key)


def _ordered(parts: list[_Prints]) -> _Prints:
    """Return all fingerprints, sorted, which are held as one array from now on."""
    parts[:] = [np.concatenate([np.zeros(0, dtype=np.uint64), *parts])]
    parts[0].sort()
    return parts[0]


def _differ(ordered: _Prints) -> NDArray[np.bool_]:
    """Return which of sorted fingerprints are not the one before."""
    differ = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=differ[1:])
    return differ


def _first_of(ordered: _Prints) -> _Prints:
    return ordered[_differ(ordered)]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """How often rows come again, labels aside.

    Attributes
    ----------
    rows : int
        Rows that are equal to an earlier one.
    largest_group : int
        Rows of the largest group of equal ones; 1 where all differ.
    """

    rows: int
    largest_group: int


class Fingerprints:
    """The fingerprints of rows as they pass, eight bytes each, and the sketches of their columns.

    Parameters
    ----------
    key : bytes
        The root's secret.
    patterns : bool
        Whether rows are to be compared with others; without, only their duplicates are counted.
    columns : bool
        Whether columns are, too.
    cells : callable, optional
        Of a table's rows: gives what patterns are made of (:meth:`storage.schema.Schema.cells`).
    """

    def __init__(
        self, key: bytes, *, patterns: bool = True, columns: bool = True, cells: Callable[[Any], Any] | None = None
    ) -> None:
        self._key = key
        self._compared = patterns
        self._cells = cells
        self.columns = ColumnSketches() if patterns and columns else None
        self._exact: list[_Prints] = []
        self._patterns: list[_Prints] = []

    def add(self, features: Any) -> None:
        """Take note of a block of rows; cells of a table that are NaN are missing."""
        known = features if sparse.issparse(features) else np.nan_to_num(features)
        self._exact.append(row_fingerprints(known, self._key))
        if self._compared:
            cells = known if self._cells is None else np.nan_to_num(self._cells(features))
            self._patterns.append(row_patterns(cells, self._key))
        if self.columns is not None:
            self.columns.add(features)

    def save(self, folder: Path, *, exact: bool = True) -> None:
        """Write all kinds beside the rows, the exact ones only if it is said: their digest is on record."""
        for name, prints in zip((FINGERPRINTS, PATTERNS), self.kinds(), strict=True):
            if exact or name != FINGERPRINTS:
                data = io.BytesIO()
                np.save(data, prints, allow_pickle=False)
                write_bytes(folder / name, data.getvalue(), mode=0o600)
        if self.columns is not None:
            self.columns.save(folder / COLUMNS, self._key)

    def columns_agree(self, path: Path) -> bool:
        """Whether columns agree with those that were sketched; of rows that were lost before, there are no sketches."""
        return self.columns is not None and path.exists() and self.columns.agree(load_sketches(path, self._key))

    def kinds(self) -> tuple[_Prints, _Prints]:
        """Return the distinct exact fingerprints and the distinct patterns, sorted."""
        return _first_of(_ordered(self._exact)), _first_of(_ordered(self._patterns))

    def duplicates(self) -> Duplicates:
        """Return how often the rows that passed come again; none of them is to be a null record."""
        ordered = _ordered(self._exact)
        starts = np.flatnonzero(_differ(ordered))
        return Duplicates(len(ordered) - len(starts), int(np.diff(starts, append=len(ordered)).max(initial=1)))

    def comparable(self, prints: _Prints) -> _Prints:
        """Return fingerprints without that of a row of zeros, such as a null record: it is nobody's."""
        (nobody,) = row_fingerprints(np.zeros((1, 1)), self._key)
        kept: _Prints = prints[prints != nobody]
        return kept


def _load(path: Path) -> _Prints:
    try:
        found: _Prints = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} is damaged: {error}; put it back from its back-up, or make it again: unitball doctor --clean"
        ) from error
    return found


def private_versions(layout: Layout) -> list[str]:
    """Return the stored versions that have fingerprints: the private ones, derived ones included."""
    return sorted(path.parent.name for path in layout.datasets.glob(f"[!.]*/{FINGERPRINTS}"))


def overlapping_versions(layout: Layout, prints: Fingerprints) -> list[str]:
    """Return the private versions of this root that overlap with rows: yes or no, never how much."""
    exact, patterns = prints.kinds()
    exact = prints.comparable(exact)
    found = []
    for version in private_versions(layout):
        folder = layout.dataset(version)
        known = prints.comparable(_load(folder / FINGERPRINTS))
        alike = len(np.intersect1d(patterns, _load(folder / PATTERNS), assume_unique=True))
        shared = max(len(np.intersect1d(exact, known, assume_unique=True)), alike)
        if shared > ADMITTED_SHARE * min(len(exact), len(known)) or prints.columns_agree(folder / COLUMNS):
            found.append(version)
    return found
