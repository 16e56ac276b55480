"""Keyed fingerprints of the order in which the values of a column follow one another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from storage.mixing import mixed

_Words = NDArray[np.uint64]

_COLUMNS = 32  # of a set, the first ones
_STEPS = 64  # compared in one window, a bit each
_TURNS = 16  # ups, and downs, that a window needs at least: runs and trends are nobody's own
_PERIODS = np.arange(2, 25, dtype=np.uint64)  # rows after which a window may not come back: to a day's hours
_UNLIKE = 4  # one step in four at least differs from the step a period before
_LEVEL = 4  # leading bits that are zero in the fingerprints that are kept: one window of sixteen
_MOST = 1 << 14  # fingerprints that are kept of a column; of longer columns one window of 32, 64, …
_FEWEST = 3  # windows that two columns must have in common


def _rolling(bits: NDArray[np.bool_]) -> _Words:
    """Return, from each place on, the next 64 bits as one number, (m - 63,)."""
    words, width = bits.astype(np.uint64), 1
    while width < _STEPS:
        words = words[:-width] << np.uint64(width) | words[width:]
        width *= 2
    return words


def _periodic(up: _Words, down: _Words) -> NDArray[np.bool_]:
    """Return which windows, of steps up and steps down, nearly repeat themselves after a few steps."""
    up, down = up[:, None], down[:, None]
    # Of the first step there is the highest bit: the lower ones have another a period before.
    unlike = np.bitwise_count(((up ^ up >> _PERIODS) | (down ^ down >> _PERIODS)) << _PERIODS)
    return np.asarray((_UNLIKE * unlike < _STEPS - _PERIODS).any(axis=1))


@dataclass(frozen=True, slots=True)
class Order:
    """The fingerprints of each column's windows, sorted, and how many of their leading bits are zero."""

    columns: list[_Words]
    level: int

    def at(self, level: int) -> list[_Words]:
        """Return those whose leading bits are zero up to a level: so many would be kept of a longer table."""
        return [column[: np.searchsorted(column, np.uint64(1 << 64 - level))] for column in self.columns]


class ColumnOrder:
    """Fingerprints of windows of 64 steps, up or down, between successive rows of a column, as rows pass.

    A strictly monotone curve through a column leaves every step as it is, or turns all of them around, which counts as
    the same; so does everything that leaves the values alone: other rows before or behind, a column's name and place.
    Equal neighbours are not a step. A window counts if at least 16 of its steps go up and 16 down, if for each
    period of 2 to 24 rows one step in four at least differs from the step a period before, and if it occurs once in its
    column: a column that is sorted, counts up, repeats or recurs with exceptions looks the same in unrelated tables.

    In a table of other people, whose rows are in an order independent of these columns, a window has a given pattern
    with a probability of at most ``2 (2/pi)^65``, below 4e-13, where values are continuous (the alternating
    permutations are the most frequent pattern; André 1881), and tables agree only by several of them in each of two
    columns. The order of rows may have a period: a case and its control in turns, the hours of a day. One row against
    the period reverses two steps and so changes at most four comparisons; a window that counts has at least four such
    rows of 65 for a period of 2, three for one of 24. Where each row is against it with probability q, independently,
    the probability of a given window is then at most max q^4 (1 - q)^61 = 3e-7, or 6e-6. Without the condition it would
    be that of one exception or none, and two such tables of 2,000 rows would nearly always agree. What is seen by all
    at the same time (a public series by date) may agree all the same.

    Memory does not grow with rows: of long columns fewer windows are kept, those whose fingerprints are least.

    Parameters
    ----------
    key : bytes
        The root's secret: which windows are kept, one in 16, and as what, depends on it.
    """

    def __init__(self, key: bytes) -> None:
        digest = hashlib.blake2b(b"column order", key=key, digest_size=16).digest()
        self._first, self._second = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._last: NDArray[np.float32] | None = None
        self._found: list[list[_Words]] = []
        self._level = _LEVEL

    def add(self, features: Any) -> None:
        """Take note of the next rows, (m, d); cells that are NaN are missing, and next to one there is no step."""
        block = features[:, :_COLUMNS]
        rows = np.asarray(block.toarray() if sparse.issparse(block) else block, dtype=np.float32)
        if self._last is not None:
            rows = np.concatenate([self._last, rows])
        # A window begins in one block only.
        self._last = rows[-_STEPS:]
        self._found = self._found or [[] for _ in range(rows.shape[1])]
        if len(rows) > _STEPS:
            for found, column in zip(self._found, np.ascontiguousarray(rows.T), strict=True):
                found.append(self._windows(column))
        while any(sum(map(len, found)) > 2 * _MOST for found in self._found):
            self._thin()

    def _windows(self, column: NDArray[np.float32]) -> _Words:
        up, down = (_rolling(steps) for steps in (column[1:] > column[:-1], column[1:] < column[:-1]))
        turns = np.minimum(np.bitwise_count(up), np.bitwise_count(down)) >= _TURNS
        up, down = up[turns], down[turns]
        # Mirrored columns exchange the two.
        prints = mixed((mixed(np.maximum(up, down) ^ self._first) + np.minimum(up, down)) ^ self._second)
        chosen = prints < self._bound
        prints, up, down = prints[chosen], up[chosen], down[chosen]
        return np.asarray(prints[~_periodic(up, down)])

    @property
    def _bound(self) -> np.uint64:
        return np.uint64(1 << 64 - self._level)

    def _thin(self) -> None:
        """Count each window that repeats as two; where too many are left, keep one in two fewer of all columns."""
        thinned = []
        for found in self._found:
            prints, counts = _counted(found)
            thinned.append(np.repeat(prints, np.minimum(counts, 2)))
        if any(len(prints) > _MOST for prints in thinned):
            self._level += 1
            thinned = [prints[prints < self._bound] for prints in thinned]
        self._found = [[prints] for prints in thinned]

    def order(self) -> Order:
        """Return the fingerprints of windows that occur once in their column."""
        columns = [prints[counts == 1] for prints, counts in map(_counted, self._found)]
        return Order(columns, self._level)


def _counted(found: list[_Words]) -> tuple[_Words, NDArray[np.int64]]:
    prints, counts = np.unique(np.concatenate([*found, np.zeros(0, np.uint64)]), return_counts=True)
    return prints, counts


def orders_agree(first: Order, second: Order, share: float) -> bool:
    """Whether two columns of each have more than a share of windows in common with a column of the other.

    Parameters
    ----------
    first, second : Order
    share : float
        Of the windows of the column that has fewer; three of them at least.
    """
    level = max(first.level, second.level)
    one, other = first.at(level), second.at(level)
    alike = np.zeros((len(one), len(other)), dtype=np.bool_)
    prints = np.concatenate([*other, np.zeros(0, np.uint64)])
    whose = np.repeat(np.arange(len(other)), [len(column) for column in other])
    order = np.argsort(prints, kind="stable")
    prints, whose = prints[order], whose[order]
    sizes = np.array([len(column) for column in other], dtype=np.int64)
    for place, column in enumerate(one):
        starts, stops = (np.searchsorted(prints, column, side) for side in ("left", "right"))
        found = stops - starts
        # All places between each start and its stop.
        places = np.arange(found.sum()) + np.repeat(starts - np.cumsum(found) + found, found)
        shared = np.bincount(whose[places], minlength=len(other))
        alike[place] = shared >= np.maximum(_FEWEST, share * np.minimum(len(column), sizes))
    return bool(min(alike.any(axis=0).sum(), alike.any(axis=1).sum()) >= 2)
