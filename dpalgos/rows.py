"""Rows as algorithms read them, made safe, the source of their noise, and sums over blocks of rows.

*The null record.* A record is null where its label is outside the task, or a feature is not a finite number
(:func:`null_records`). It stands for a row that may not be used: one a schema rejects on private data, or the row that
is missing in a neighbouring data set under ``replace-special``. It is counted in n, which is public, and contributes
nothing else: :func:`sanitise` gives it zero features and the label :data:`NULL_LABEL`, and every algorithm leaves it
out or sums a zero in its place.

*Why the label carries it.* Whether a record is null is decided row by row and must survive all maps that are applied to
rows: scaling to norm 1 leaves a zero row alone, but a feature map does not (cos 0 = 1), nor does the constant feature
of an intercept. No map touches labels. So the label decides at the end, after all maps and after the constant feature.

*What follows for sensitivities.* Let a release be a mechanism on f(D) = Σ g(x) over the n records of D, g(null) = 0,
and let g range over a set G for real rows. Then one record moves f by at most

- sup ‖g‖ over G under ``replace-special`` (one of the two records is null), and
- sup ‖g − g′‖ over G ∪ {0} under ``replace-one``, since null records occur in data there too: at most twice as much by
  the triangle inequality, and never less.

So a guarantee under replace-one whose supremum includes null holds under replace-special, and one under
replace-special holds for a replaced row as a group of two (x to null to z), which is the conversion that
:func:`dpalgos.accounting.costs.losses_under` makes. A supremum over real rows alone proves neither: replacing a row
moves a sum of constant features by 0, and making the row null moves it by 1.

References
----------
Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, "Practical and private (deep) learning without sampling or shuffling",
ICML 2021, Definition 1.1 (zero-out neighbours); ``NeighboringRelation.REPLACE_SPECIAL`` in dp-accounting.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from queue import SimpleQueue
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.generic[object]]"
"""Numbers of any type: labels, stored arrays, values that key noise."""
Floats = NDArray[np.float64]
Features: TypeAlias = "NDArray[np.float64] | NDArray[np.float32]"
"""Rows as they are read: float32 where they are stored so."""
Ints = NDArray[np.int64]
Shares: TypeAlias = "NDArray[np.int32] | NDArray[np.int64]"
"""Of each row, k: the number of rows of its person in what is summed, at least 1."""
Block: TypeAlias = "tuple[Features, Array, Shares | None]"
"""``(features, labels, shares)``: (m, d); (m,) class indices or real targets; (m,), or None where each row is a
separate record.
Three on purpose: what unpacks two knows nothing of people, and fails."""


# Rows of one product, and their numbers where they are wide.
_PRODUCT_ROWS, _PRODUCT_ENTRIES = 512, 2**22
# NumPy's own, in numbers.
_BUFFER = 8192
NULL_LABEL = -1
"""Class index of a null record; among numeric labels, NaN."""
RowMap: TypeAlias = Callable[[Floats], Features]
"""A map of rows (m, d), each by itself."""


class Rows(Protocol):
    """The rows of one party, readable any number of times, in a fixed order, block by block."""

    @property
    def count(self) -> int:
        """Number of records, null ones included; public under every relation.

        Rows, or people where the unit is a person: then the number of rows is not published.
        """

    @property
    def dimension(self) -> int:
        """Features a row."""

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of some rows, in order.

        Features are float64, or float32 where they are stored so (:func:`sanitise` widens them), and not to be written
        to. Null records are among the rows; see :func:`null_records`.
        """

    def whose(self) -> Shares | None:
        """Return each row's place among the party's records, in the order of the blocks; None: each is a record.

        Of people: from 0 to below :attr:`count`, in the order of the roster. Neighbours share it. A person's place does
        not depend on any rows, so that a rule by places divides people alike in both.
        """

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return a digest of the rows, for keying noise that is drawn before a value exists; never published."""


def squared_norms(features: Floats) -> Floats:
    """Return each row's squared l2 norm, (m,), with bits that do not depend on its place or on the other rows.

    NumPy adds up the squares of all rows in stretches of its buffer's size: in wider rows, where these begin depends on
    how many rows are before. It adds up column after column where these are what lies side by side in memory, and no
    single row lies so.
    """
    features = np.ascontiguousarray(features)
    stretches = (features[:, start : start + _BUFFER] for start in range(0, features.shape[1], _BUFFER))
    return sum((np.einsum("ij,ij->i", part, part) for part in stretches), np.zeros(len(features)))


def _norms(features: Floats) -> Floats:
    """Return each row's l2 norm, (m,); infinite where it is none or beyond float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = squared_norms(features)
    norms: Floats = np.sqrt(squares, where=squares >= 0, out=np.full(len(squares), np.inf))
    # Squares that left float64's range, or nearly so, are taken of the row divided by its largest entry.
    odd = np.flatnonzero(~((squares > 2.0**-900) & (squares < 2.0**900)))
    if odd.size:
        rows = features[odd]
        largest = np.abs(rows).max(axis=1, initial=0.0)
        finite = np.isfinite(largest)
        scale = np.where(finite & (largest > 0), largest, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            rows = rows / scale[:, None]
            norms[odd] = np.where(finite, scale * np.sqrt(squared_norms(rows)), np.inf)
    return norms


def clip_to_unit_ball(features: Features, radius: float = 1.0) -> Floats:
    """Scale each row whose l2 norm exceeds ``radius`` onto the sphere; NaN and infinite rows become zero.

    Total: no input raises. The result's norms are at most ``radius`` in float64 up to one part in 10^15;
    mechanisms that need the bound exactly clip again in integers.
    """
    rows: Floats = np.asarray(features, dtype=np.float64)
    norms = _norms(rows)
    factor = np.minimum(1.0, radius / np.maximum(norms, np.finfo(np.float64).tiny))
    lost = factor == 0.0
    if lost.any():
        # No number times zero would still be none.
        rows = np.where(lost[:, None], 0.0, rows)
    return rows * factor[:, None] if (factor < 1.0).any() else rows


def unit_rows(features: Floats) -> Floats:
    """Return rows divided by their norms; zero rows stay zero."""
    norms = np.linalg.norm(np.ascontiguousarray(features), axis=1, keepdims=True)
    return np.asarray(features / np.where(norms > 0, norms, 1.0))


def row_products(features: Features, matrix: Floats) -> Floats:
    """Return ``features @ matrix``, each row with bits that do not depend on its place or on the other rows.

    A library forms a product of another shape in another order, so that a row alone has other last bits than in a
    block, and others at a block's end. Here every call has one shape, that of some hundred rows of this width, filled
    up with zeros: no row moves what another one is rounded to. That a row's place among those makes no difference is no
    theorem about libraries; a test looks at all of them.

    Parameters
    ----------
    features : array (m, d)
    matrix : array (d, k)
    """
    width = features.shape[1]
    size = max(16, min(_PRODUCT_ROWS, _PRODUCT_ENTRIES // max(width, 1)))
    products, padded = np.empty((len(features), matrix.shape[1])), np.zeros((size, width))
    for start in range(0, len(features), size):
        part = np.ascontiguousarray(features[start : start + size], dtype=np.float64)
        if len(part) < size:
            padded[: len(part)] = part
            part = padded
        products[start : start + size] = (part @ matrix)[: len(features) - start]
    return products


def null_labels(labels: Array, classes: int) -> NDArray[np.bool_]:
    """Return which labels are outside the task: not one of 0 … classes − 1, or NaN where ``classes`` is 1; (m,)."""
    numbers = np.asarray(labels, dtype=np.float64)
    if classes <= 1:
        return np.isnan(numbers)
    return np.asarray(~((numbers >= 0) & (numbers < classes) & (numbers == np.floor(numbers))))


def null_records(features: Features, labels: Array, classes: int) -> NDArray[np.bool_]:
    """Return which rows of a block are null records, (m,).

    A row is null where a feature is not a finite number, or its label is outside the task (:func:`null_labels`).

    Parameters
    ----------
    features : array (m, d)
        Before or after any map, or decision values.
    labels : array (m,)
    classes : int
        Classes of the task; 1 for numeric labels.
    """
    null = null_labels(labels, classes)
    numbers = np.asarray(features)
    # A row with a number that is none has no finite sum; one whose sum is not finite is looked at.
    with np.errstate(over="ignore", invalid="ignore"):
        odd = np.flatnonzero(~np.isfinite(numbers @ np.ones(numbers.shape[1], dtype=numbers.dtype)))
    null[odd[~np.isfinite(numbers[odd]).all(axis=1)]] = True
    return null


def sanitise(features: Features, labels: Array, classes: int) -> tuple[Floats, Ints]:
    """Make a block safe for any algorithm: rows into the unit ball, null records to zero and :data:`NULL_LABEL`.

    Where ``classes`` is 1 (numeric labels), others' labels come back as 0. Total: no input raises because of what it
    contains.
    """
    features = np.asarray(features, dtype=np.float64)
    null = null_records(features, labels, classes)
    if null.any():
        features = np.where(null[:, None], 0.0, features)
        labels = np.where(null, NULL_LABEL, np.asarray(labels, dtype=np.float64))
    if classes <= 1:
        labels = np.where(null, NULL_LABEL, 0)
    return clip_to_unit_ball(features), np.asarray(labels, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """Rows held in memory: features (n, d), labels (n,); of people, shares (n,) too and how many people they are.

    ``places`` (n,) gives each row's person, for algorithms that divide people (:meth:`Rows.whose`).
    """

    features: Floats
    labels: Array
    block: int = 8192
    shares: Shares | None = None
    people: int | None = None
    places: Shares | None = None

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.features) if self.people is None else self.people

    @property
    def dimension(self) -> int:
        """Features a row."""
        return int(self.features.shape[1])

    def blocks(self) -> Iterator[Block]:
        """Yield blocks in order."""
        for start in range(0, len(self.features), self.block):
            part = slice(start, start + self.block)
            yield self.features[part], self.labels[part], None if self.shares is None else self.shares[part]

    def whose(self) -> Shares | None:
        """Return the places."""
        return self.places

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the SHA-256 digest of the features, labels and shares."""
        import hashlib

        digest = hashlib.sha256(np.ascontiguousarray(self.features).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        if self.shares is not None:
            digest.update(np.ascontiguousarray(self.shares).tobytes())
        if self.places is not None:
            digest.update(np.ascontiguousarray(self.places).tobytes())
        return np.frombuffer(digest.digest(), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Some of a party's rows, chosen by their positions, read block by block.

    Parameters
    ----------
    rows : Rows
    chosen : callable
        Of a start and a stop, positions in ``rows``: which rows between them are taken, (stop − start,) of bool.
    count : int
        How many it takes of all.
    """

    rows: Rows
    chosen: Callable[[int, int], NDArray[np.bool_]]
    count: int

    @property
    def dimension(self) -> int:
        """Features a row."""
        return self.rows.dimension

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of the chosen rows, in order."""
        start = 0
        for features, labels, shares in self.rows.blocks():
            kept = self.chosen(start, start + len(labels))
            yield features[kept], labels[kept], None if shares is None else shares[kept]
            start += len(labels)

    def whose(self) -> Shares | None:
        """Return the places of the chosen rows among all records of the party."""
        places = self.rows.whose()
        return None if places is None else places[self.chosen(0, len(places))]

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the digest of all rows, chosen or not."""
        return self.rows.fingerprint()


def fits(maps: Sequence[RowMap], number: int, wanted: int) -> bool:
    """Whether maps, one after another, make rows of ``wanted`` features of rows of ``given``; tried on zero rows."""
    try:
        return _through(maps, np.zeros((2, number))).shape == (2, wanted)
    except (ValueError, TypeError, IndexError):
        return False


def _through(maps: Sequence[RowMap], features: Features) -> Features:
    """Return rows seen through maps, in turn; no warning says what their numbers are."""
    with np.errstate(all="ignore"):
        return functools.reduce(lambda seen, one: one(np.asarray(seen, dtype=np.float64)), maps, features)


class MappedRows:
    """A party's rows seen through a sequence of maps, which come from other artefacts.

    Total in the maps: for any numbers of theirs, a block has ``dimension`` features and no warning is given. Where the
    maps do not fit together, or do not give so many features, which no row decides, all rows are null records.

    Parameters
    ----------
    rows : Rows
    maps : sequence of callable
    dimension : int
        Features that come out.
    """

    def __init__(self, rows: Rows, maps: Sequence[RowMap], dimension: int) -> None:
        self._rows, self._maps, self.dimension = rows, maps, dimension

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._rows.count

    @functools.cached_property
    def _fitting(self) -> bool:
        return fits(self._maps, self._rows.dimension, self.dimension)

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of the mapped rows, in order."""
        for features, labels, shares in self._rows.blocks():
            if self._fitting:
                yield _through(self._maps, features), labels, shares
            else:
                yield np.full((len(labels), self.dimension), np.nan), labels, shares

    def whose(self) -> Shares | None:
        """Return those of the rows before the maps."""
        return self._rows.whose()

    def after(self, first: int) -> MappedRows:
        """Return the rows after the first ones, which are not mapped."""
        return MappedRows(LaterRows(self._rows, first), self._maps, self.dimension)

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return that of the rows before the maps, which are part of the release's identity already."""
        return self._rows.fingerprint()


@dataclass(frozen=True, slots=True)
class LaterRows:
    """A party's rows without the first ones of them, read block by block; its count is that of the whole party.

    Parameters
    ----------
    rows : Rows
        The whole party's.
    first : int
        How many are left out.
    """

    rows: Rows
    first: int

    @property
    def count(self) -> int:
        """Number of records of the party."""
        return self.rows.count

    @property
    def dimension(self) -> int:
        """Features a row."""
        return self.rows.dimension

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of the rows from ``first`` on."""
        before = 0
        for features, labels, shares in self.rows.blocks():
            start, before = max(0, self.first - before), before + len(labels)
            if start < len(labels):
                yield features[start:], labels[start:], None if shares is None else shares[start:]

    def whose(self) -> Shares | None:
        """Return those of the rows that are left."""
        places = self.rows.whose()
        return None if places is None else places[self.first :]

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the digest of all rows."""
        return self.rows.fingerprint()


def rows_after(rows: Rows, first: int) -> Rows:
    """Return a party's rows without the first ones, which no map sees; the count is that of the whole party."""
    return rows.after(first) if isinstance(rows, MappedRows) else LaterRows(rows, first)


def fingerprints(parties: Sequence[Rows]) -> NDArray[np.uint8]:
    """Return the parties' digests one after the other: the key of what is drawn before any value exists."""
    return np.concatenate([np.zeros(0, np.uint8), *(rows.fingerprint() for rows in parties)])


class RandomStream(Protocol):
    """One keystream: independent of every other stream, the same again for the same key."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next ``count`` uniform 64-bit words; what exact samplers are built on."""


def uniforms(stream: RandomStream, count: int) -> Floats:
    """Return ``count`` uniform numbers strictly between 0 and 1, a word each; for idealised mechanisms."""
    return ((stream.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normals(stream: RandomStream, count: int) -> Floats:
    """Return ``count`` standard normal numbers as quantiles, a word each; for idealised mechanisms."""
    return np.asarray(scipy.special.ndtri(uniforms(stream, count)))


class NoiseSource(Protocol):
    """The randomness of one release."""

    def stream(self, step: str, value: Array) -> RandomStream:
        """Return the stream for one draw.

        Parameters
        ----------
        step : str
            Names the draw within the release (``"covariance"``, ``"gradient-17"``); no name is used twice.
        value : array
            The exact value that the noise is about to hide, or, where the noise comes first (objective
            perturbation), the rows it will be used on. Equal values meet equal noise and different values
            independent noise, so that a retry repeats the bytes and can never reveal a difference.
        """


_PIECE_ENTRIES = 2**16
_Item = TypeVar("_Item")
_Total = TypeVar("_Total")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pieces(rows: int, width: int, entries: int = _PIECE_ENTRIES) -> Iterator[slice[int, int, None]]:
    """Yield slices of at most ``entries`` numbers (by default half a megabyte in float64, which caches hold)."""
    size = max(16, entries // max(width, 1))
    return (slice(start, start + size) for start in range(0, rows, size))


def accumulate(new: Callable[[], _Total], add: Callable[[_Total, _Item], None], items: Iterable[_Item]) -> list[_Total]:
    """Add items to accumulators, one a core, and return those; what they hold together must not depend on who got what.

    Items are asked for one after another in the caller's thread, while the cores work on those before: never more than
    three above the number of cores at once, so that reading and computing overlap and memory stays flat. Whole numbers
    add up to the same in any order.
    """
    remaining = iter(items)
    few = list(islice(remaining, 2))
    if len(few) < 2 or cores() == 1:
        total = new()
        for item in chain(few, remaining):
            add(total, item)
        return [total]
    totals = [new() for _ in range(cores())]
    idle: SimpleQueue[_Total] = SimpleQueue()
    for total in totals:
        idle.put(total)

    def work(item: _Item) -> None:
        total = idle.get()
        try:
            add(total, item)
        finally:
            idle.put(total)

    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(cores()) as pool:
        for item in chain(few, remaining):
            waiting.append(pool.submit(work, item))
            # One waits while the next is read: without it a core would be idle for as long as reading takes.
            if len(waiting) > cores() + 1:
                waiting.popleft().result()
        for future in waiting:
            future.result()
    return totals


def for_each(function: Callable[[_Item], None], items: Iterable[_Item]) -> None:
    """Call a function for every item, on all cores; each writes to its own place. No warning says what it met."""

    def add(_: None, item: _Item) -> None:
        with np.errstate(all="ignore"):
            function(item)

    accumulate(lambda: None, add, items)


MapParts = Callable[[Callable[[Rows], Ints], Sequence[Rows]], Iterable[Ints]]
"""Applies a function to each part, wherever that happens, and returns the results in any order."""


@dataclass(frozen=True, slots=True)
class SpreadRows:
    """A party's rows, cut into parts whose contributions to a sum are formed apart.

    Guarantee
    ---------
    Contributions are sums over rows of whole numbers, in int64, so those of the parts add up to the whole party's, bit
    for bit, in any order and wherever they are formed (tests/dpalgos/test_spreading.py). What leaves a worker is
    an exact sum of private rows: only a process that may read the rows may receive it.

    Attributes
    ----------
    parts : sequence of Rows
        Each says the whole party's ``count``, by which weights and grids go, and its fingerprint, and yields its own
        blocks.
    map_parts : callable
        See :data:`MapParts`.
    """

    parts: Sequence[Rows]
    map_parts: MapParts

    @property
    def count(self) -> int:
        """Number of rows of the party."""
        return self.parts[0].count

    @property
    def dimension(self) -> int:
        """Features a row."""
        return self.parts[0].dimension

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of all parts in order, here."""
        for part in self.parts:
            yield from part.blocks()

    def whose(self) -> Shares | None:
        """Return those of all parts in order."""
        places = [found for part in self.parts if (found := part.whose()) is not None]
        return np.concatenate(places).astype(np.int64) if places else None

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the digest of the party's rows, which every part knows."""
        return self.parts[0].fingerprint()

    def together(self) -> Rows:
        """Return the party's rows in one piece, read here."""
        return _Together(self)

    def total(self, contribution: Callable[[Rows], Ints]) -> Ints:
        """Return the sum of the parts' contributions."""
        return np.asarray(sum(self.map_parts(contribution, self.parts)))


@dataclass(frozen=True, slots=True)
class _Together:
    """The rows of all parts in order, as if they had not been cut."""

    rows: SpreadRows

    @property
    def count(self) -> int:
        return self.rows.count

    @property
    def dimension(self) -> int:
        return self.rows.dimension

    def blocks(self) -> Iterator[Block]:
        return self.rows.blocks()

    def whose(self) -> Shares | None:
        return self.rows.whose()

    def fingerprint(self) -> NDArray[np.uint8]:
        return self.rows.fingerprint()
