"""Keyed fingerprints of private rows and sketches of private columns: they tell tables that come back."""

import hashlib
import io
import math
import secrets
import weakref
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray
from scipy import sparse

from storage.atomic import write_bytes
from storage.column_order import ColumnOrder, Order, orders_agree
from storage.errors import StorageError
from storage.layout import COLUMNS, DRAWN, FINGERPRINTS, PATTERNS, Layout

ADMITTED_SHARE = 0.01
"""The share of distinct rows of either set above which two sets overlap; a public constant."""

_SCALED_FROM = 5
_PLAIN = np.uint64(2**64 - 1)
_Prints = NDArray[np.uint64]


def _nonzero(features: Any) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]], NDArray[np.float32]]:
    """Return where each row begins, and columns and values of its entries that are not zero.

    Where no row has a zero, the columns are those of one of them: all rows share them.
    """
    if sparse.issparse(features):
        matrix = sparse.csr_matrix(features, dtype=np.float32)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix.indptr.astype(np.int64), matrix.indices, matrix.data
    dense = np.ascontiguousarray(features, dtype=np.float32)
    if dense.all():
        starts = np.arange(len(dense) + 1, dtype=np.int64) * dense.shape[1]
        return starts, np.arange(dense.shape[1]), dense.reshape(-1)
    # In one dimension, in which NumPy finds entries several times as fast as in two.
    entries = dense.reshape(-1)
    places, ends = np.flatnonzero(entries != 0), np.arange(len(dense) + 1) * dense.shape[1]
    starts = np.searchsorted(places, ends)
    return starts, places - np.repeat(ends[:-1], np.diff(starts)), entries[places]


def _hashed(parts: Iterator[bytes], key: bytes, before: bytes = b"") -> _Prints:
    """Return the digest of each part with what is before all of them, which is hashed once."""
    begun, digests = hashlib.blake2b(before, key=key, digest_size=8), list[bytes]()
    for part in parts:
        digest = begun.copy()
        digest.update(part)
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


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
    bounds, shared = pairwise((4 * starts).tolist()), len(columns) < len(values)
    parts = (numbers[start:stop] if shared else places[start:stop] + numbers[start:stop] for start, stop in bounds)
    return _hashed(parts, key, places if shared else b"")


def row_patterns(features: Any, key: bytes) -> _Prints:
    """Return the pattern of each row, of one with fewer than two different values :data:`_PLAIN`.

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
    worth = np.flatnonzero(different >= 2)
    patterns = np.full(len(sizes), _PLAIN)
    patterns[worth] = _hashed(
        (data[slice(*bounds[row])] + (b"s" if scaled[row] else b"e") for row in worth.tolist()), key
    )
    return patterns


class _Spool:
    """Fingerprints as they pass, in a file without a name: in memory only while they are asked for."""

    def __init__(self, folder: Path | None) -> None:
        # No context manager: it is open as long as this lives.
        self._file: IO[bytes] = io.BytesIO() if folder is None else TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def add(self, prints: _Prints) -> None:
        self._file.write(prints.tobytes())

    def prints(self) -> _Prints:
        """Return all of them, in the order in which they came."""
        self._file.flush()
        whole = np.empty(self._file.tell() // 8, dtype=np.uint64)
        self._file.seek(0)
        # Both kinds of file have it; the type that they share does not.
        self._file.readinto(whole)  # type: ignore[attr-defined]
        return whole


def _differ(ordered: _Prints) -> NDArray[np.bool_]:
    """Return which of sorted fingerprints are not the one before."""
    differ = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=differ[1:])
    return differ


def _distinct(prints: _Prints, whose: _Prints) -> _Prints:
    """Return the distinct fingerprints, sorted; of rows of people those that are somebody's least."""
    if len(whose) and len(prints):
        order = np.lexsort((prints, whose))
        prints = prints[order][_differ(whose[order])]
    prints.sort()
    return prints[_differ(prints)]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Numbers of repeated rows, labels aside.

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
    summaries : callable, optional
        Gives what further patterns are made of, by which rows are recognised that were made otherwise.
    folder : Path, optional
        Where they are written as they pass, into files without a name; without, they are held in memory.
    """

    def __init__(
        self,
        key: bytes,
        *,
        patterns: bool = True,
        columns: bool = True,
        cells: Callable[[Any], Any] | None = None,
        summaries: Callable[[Any], Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._key = key
        self._compared = patterns
        self._cells, self._summaries = cells, summaries
        self.columns = ColumnSketches() if patterns and columns else None
        self._order = ColumnOrder(key) if patterns and columns else None
        self._exact, self._patterns, self._further, self._whose = (_Spool(folder) for _ in range(4))
        self._kept: NDArray[np.bool_] | None = None

    def add(self, features: Any, whose: _Prints | None = None) -> _Prints:
        """Take note of a block of rows, and return their exact fingerprints; cells that are NaN are missing.

        ``whose``: of rows of people, what stands for each row's person, (m,).
        """
        known = features if sparse.issparse(features) else np.nan_to_num(features)
        exact = row_fingerprints(known, self._key)
        self._exact.add(exact)
        if self._compared:
            cells = known if self._cells is None else np.nan_to_num(self._cells(features))
            self._patterns.add(row_patterns(cells, self._key))
            if self._summaries is not None:
                self._further.add(row_patterns(self._summaries(known), self._key))
        if self.columns is not None:
            self.columns.add(features)
        if whose is not None:
            self._whose.add(whose)
        elif self._order is not None:
            # Not of people's rows: one with many of them would decide.
            self._order.add(features)
        return exact

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """State which of the rows that passed are stored, (m,): the others are in no fingerprint that is saved.

        The columns' sketches cover all rows that passed.
        """
        self._kept = kept

    def save(self, folder: Path, *, exact: bool = True) -> None:
        """Write all kinds next to the rows, the exact ones only on request: their digest is on record."""
        for name, prints in zip((FINGERPRINTS, PATTERNS), self.kinds(), strict=True):
            if exact or name != FINGERPRINTS:
                data = io.BytesIO()
                np.save(data, prints, allow_pickle=False)
                write_bytes(folder / name, data.getvalue(), mode=0o600)
        if self.columns is not None and self._order is not None:
            save_columns(folder / COLUMNS, self._key, self.columns.numbers(), self._order.order())

    def columns_agree(self, path: Path) -> bool:
        """Whether columns agree with stored ones, by sketch or by order; of rows that were lost there are neither."""
        if self.columns is None or self._order is None or not path.exists():
            return False
        sketches, order = load_columns(path, self._key)
        return self.columns.agree(sketches) or orders_agree(self._order.order(), order, ADMITTED_SHARE)

    def kinds(self) -> tuple[_Prints, _Prints]:
        """Return the distinct exact fingerprints and the distinct patterns, sorted; of people each one's least.

        So a person is at most one of either kind, as a row is (two of patterns, where there are further ones): whether
        a table overlaps with another depends on a person with many rows as little as on a person with one. In two
        tables the same person has the same least one with the probability that a row of theirs, of either table, is in
        both.
        """
        whose, *kinds = (kind.prints() for kind in (self._whose, self._exact, self._patterns, self._further))
        if self._kept is not None:
            whose, *kinds = (each[self._kept] if len(each) else each for each in (whose, *kinds))
        exact, patterns, further = (_distinct(kind, whose) for kind in kinds)
        if len(further):
            patterns = np.union1d(patterns, further)
        return exact, patterns[patterns != _PLAIN]

    def save_drawn(self, path: Path) -> None:
        """Write both kinds of a derived version's rows, by which they are recognised later."""
        exact, patterns = self.kinds()
        data = io.BytesIO()
        np.savez(data, exact=self.comparable(exact), patterns=patterns)
        write_bytes(path, data.getvalue(), mode=0o600)

    def share_drawn(self, path: Path) -> float:
        """Return which share of the rows that passed is among a derived version's, in any order and with any labels.

        The larger one of rows and of distinct rows, by either kind: neither copies of few drawn rows nor copies of
        other rows hide what is there. A row of zeros, and a pattern that many tables have, do not count.
        """
        known = _load(path)
        shares, rows = [0.0], self._exact.prints()
        for prints, kind in ((self.comparable(rows), "exact"), (self._patterns.prints(), "patterns")):
            found = prints[np.isin(prints, known[kind]) & (prints != _PLAIN)]
            shares.append(len(found) / max(len(rows), 1))
            shares.append(len(np.unique(found)) / max(len(np.unique(rows)), 1))
        return min(max(shares), 1.0)

    def duplicates(self) -> Duplicates:
        """Return how often the rows that passed come again; none of them is to be a null record."""
        ordered = self._exact.prints()
        ordered.sort()
        starts = np.flatnonzero(_differ(ordered))
        return Duplicates(len(ordered) - len(starts), int(np.diff(starts, append=len(ordered)).max(initial=1)))

    def comparable(self, prints: _Prints) -> _Prints:
        """Return fingerprints without that of a row of zeros, such as a null record: it identifies no data set."""
        (nobody,) = row_fingerprints(np.zeros((1, 1)), self._key)
        return np.asarray(prints[prints != nobody])


def _load(path: Path) -> Any:
    """Return stored fingerprints, or a mapping of both kinds of a derived version."""
    try:
        prints = np.load(path, allow_pickle=False)
        if path.suffix == ".npz":
            prints = {kind: prints[kind] for kind in ("exact", "patterns")}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise StorageError(
            f"{path} is damaged: {error}; restore it from its back-up, or remove it and run unitball doctor --clean; "
            "the next ingestion rebuilds the rest"
        ) from error
    return prints


def private_versions(layout: Layout) -> list[str]:
    """Return the stored versions that have fingerprints: the private ones, derived ones included."""
    return sorted(path.parent.name for path in layout.datasets.glob(f"[!.]*/{FINGERPRINTS}"))


def drawn_versions(layout: Layout) -> list[str]:
    """Return the stored versions whose rows were drawn from releases."""
    return sorted(path.parent.name for path in layout.datasets.glob(f"[!.]*/{DRAWN}"))


def overlapping_versions(layout: Layout, prints: Fingerprints, versions: Sequence[str]) -> list[str]:
    """Return those of some private versions that overlap with rows: yes or no, never how much."""
    if not versions:
        return []
    exact, patterns = prints.kinds()
    exact = prints.comparable(exact)
    overlapping = []
    for version in versions:
        folder = layout.dataset(version)
        known = prints.comparable(_load(folder / FINGERPRINTS))
        alike = len(np.intersect1d(patterns, _load(folder / PATTERNS), assume_unique=True))
        shared = max(len(np.intersect1d(exact, known, assume_unique=True)), alike)
        if shared > ADMITTED_SHARE * min(len(exact), len(known)) or prints.columns_agree(folder / COLUMNS):
            overlapping.append(version)
    return overlapping


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

    It is the same in any order values come, since cells of one width are unions of those of a smaller one.
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
    sketch = _sketch(np.arange(float(_SUPPORT)), np.ones(_SUPPORT))
    assert sketch is not None
    return sketch[0]


def _evidence(differences: _Floats, directions: _Floats, scale: Any) -> _Floats:
    """Return minus the logarithm of the bound on the chance that other people's columns are as close."""
    size = directions.shape[1]
    ratio = np.clip(((differences @ directions) ** 2).sum(axis=-1) / scale / max(size, 1), 1e-9, 1.0)
    return np.asarray(size / 2.0 * (ratio - 1.0 - np.log(ratio)))


class ColumnSketches:
    """The sketches of columns whose rows pass; memory does not grow with rows.

    Sets of rounded values would not do. Those of two columns of whole numbers agree for unrelated people, and where one
    per cent of the rows is gone, all quantiles of n rows have moved by many times the distance between neighbouring
    values. So a column is known by its distribution instead, and compared by whether it is *closer than other people's
    can be*.

    The sketch of a column is the mean of cos(kθ) and sin(kθ), k = 1 … 16, over its cells x, where θ = 2π (x − c) / 2.5
    s is kept within ±π, c is the middle of the means of the lower and the upper half of the middle 90 % of the cells,
    and s their difference. c and s follow every affine map, and the mirrored column has the negated sines. Cells that
    are missing do not count, and a column has no sketch where fewer than 50 values differ or where s is 0.

    Let Σ be the covariance of one row's influence on these 32 numbers (on c and s, too). For independent samples of m
    and n rows of one distribution, the difference has the covariance (1/m + 1/n) Σ, and its square t ν in the norm of
    ((1/m + 1/n) Σ)⁻¹, over the ν directions in which Σ is no smaller than 0.02, is χ² with ν degrees of freedom (for
    many rows: the means are normal in the limit); of different distributions it is larger. By Chernoff's bound, P(χ² ≤
    t ν) ≤ (t e^(1 − t))^(ν/2) for t < 1. A copy of a share f of the rows has t of about (1 − f) / (1 + f). Two columns
    *agree* where that bound, times the number of pairs of columns, is 10⁻⁶ at most, and two of either set must agree. A
    column whose bound against equally spaced values is below e⁻¹⁰ (row numbers, days of a calendar) does not count: its
    distribution is common.

    Not told apart: other columns that were made to one distribution, such as normal scores of ranks. Not recognised:
    columns that came back with less than about nine tenths of their rows, or more than a tenth of others, or with noise
    in their cells.
    """

    def __init__(self) -> None:
        self._held: list[NDArray[np.float32]] = []
        self._counts: list[_Counts] = []

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

    @cached_property
    def _sketches(self) -> list[tuple[_Floats, _Floats, float]]:
        """The sketches of those columns that count, once all rows have passed."""
        if self._held:
            self._count()
        sketches = [_sketch(counts.values, counts.counts) for counts in self._counts]
        even = _even()
        return [one for one in sketches if one and _evidence(one[0] - even, one[1], 1.0 / one[2]) < _REGULAR]

    def numbers(self) -> _Floats:
        """Return number of rows and sketch of each column that counts, a row each."""
        rows = [np.concatenate([[rows], sketch]) for sketch, _, rows in self._sketches]
        return np.array(rows, dtype=np.float64).reshape(-1, 1 + len(_MIRROR))

    def agree(self, known: _Floats) -> bool:
        """Whether two of these columns and two of the known ones are closer than other people's can be."""
        sketches = self._sketches
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


def save_columns(path: Path, key: bytes, sketches: _Floats, order: Order) -> None:
    """Write columns' sketches and the fingerprints of their order, enciphered under the root's secret."""
    data, nonce = io.BytesIO(), secrets.token_bytes(12)
    prints = np.concatenate([*order.columns, np.zeros(0, dtype=np.uint64)])
    sizes = np.array([order.level, *map(len, order.columns)], dtype=np.int64)
    np.savez(data, sketches=sketches, sizes=sizes, prints=prints)
    write_bytes(path, nonce + _cipher(key).encrypt(nonce, data.getvalue(), None), mode=0o600)


def load_columns(path: Path, key: bytes) -> tuple[_Floats, Order]:
    """Return what :func:`save_columns` wrote.

    Raises
    ------
    StorageError
    """
    try:
        data = path.read_bytes()
        with np.load(io.BytesIO(_cipher(key).decrypt(data[:12], data[12:], None)), allow_pickle=False) as arrays:
            level, *sizes = arrays["sizes"].tolist()
            return arrays["sketches"], Order(np.split(arrays["prints"], np.cumsum(sizes, dtype=np.int64))[:-1], level)
    except (OSError, ValueError, InvalidTag) as error:
        raise StorageError(
            f"{path} is damaged ({error!r}); remove it; the next ingestion rebuilds it from the rows"
        ) from error


def _cipher(key: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(hashlib.blake2b(b"column sketches", key=key, digest_size=32).digest())
