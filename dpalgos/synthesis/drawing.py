"""Rows drawn from whole weights, class first, then each column after its parent: integers on a public seed.

*Systematic draws.* Of m rows that share a class and a parent's group, with weights w of sum W, row i of a random order
gets the group that holds the point i W + u of the line m w₁ | m w₂ | …, u uniform in [0, W). Each row has a group with
probability w/W, and each group as many rows as m w/W says, to less than one: drawing adds next to nothing to what noise
and sampling of the released counts did.

*Random numbers* are words of a keystream of the seed (:mod:`dpalgos.keystream`), the upper 32 bits of a word times a
bound, shifted: a whole number below the bound, each with probability 1/bound to 2⁻³². Nothing is a floating-point
number, and sorting is stable, so that a seed gives the same rows with any version of NumPy, on any processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpalgos.keystream import KeyedNoise, KeyStream, public_secret
from dpalgos.parameters import ParameterError
from dpalgos.rows import Ints

MOST_ROWS = 2**24
"""Of one drawing."""
MOST_POINTS = 2**32
"""Of a place: a random number has 32 bits."""
_IDENTITY = "synthetic rows"


def below(stream: KeyStream, bounds: Ints) -> Ints:
    """Return a random whole number below each bound.

    Parameters
    ----------
    stream : KeyStream
    bounds : array (n,) of int
        Each from 1 to :data:`MOST_POINTS`.

    Raises
    ------
    ParameterError
        For another bound.
    """
    if len(bounds) and not (int(bounds.min()) >= 1 and int(bounds.max()) <= MOST_POINTS):
        raise ParameterError(
            f"bounds of random numbers go from {bounds.min()} to {bounds.max()}; give bounds from 1 to {MOST_POINTS}"
        )
    words = (stream.words(len(bounds)) >> np.uint64(32)) * bounds.astype(np.uint64)
    return (words >> np.uint64(32)).astype(np.int64)


def systematic(stream: KeyStream, given: Ints, weights: Ints) -> Ints:
    """Return for each row a place that is drawn by the weights of what the row is given.

    Parameters
    ----------
    stream : KeyStream
    given : array (n,) of int
        Lines of ``weights``.
    weights : array (lines, places) of int
        Not negative, each line of a sum from 1 to 2^31 − 1.
    """
    rows = len(given)
    totals = weights.sum(axis=1)
    if rows and (int(weights.min()) < 0 or int(totals.min()) < 1 or int(totals.max()) >= 2**31):
        raise ParameterError("the sum of a row of weights is not between 1 and 2^31; give non-negative whole numbers")
    # Equal words are in order of rows.
    order = np.argsort(stream.words(rows), kind="stable")
    order = order[np.argsort(given[order], kind="stable")]
    starts = below(stream, np.maximum(totals, 1))
    found = np.empty(rows, dtype=np.int64)
    lines, firsts, sizes = np.unique(given[order], return_index=True, return_counts=True)
    for line, first, size in zip(lines, firsts, sizes, strict=True):
        points = np.arange(size, dtype=np.int64) * totals[line] + starts[line]
        ends = np.cumsum(weights[line]) * size
        found[order[first : first + size]] = np.searchsorted(ends, points, side="right")
    return found


@dataclass(frozen=True, slots=True)
class Drawn:
    """Drawn rows.

    Parameters
    ----------
    labels : array (n,) of int
        Class, or place of a numeric label.
    places : array (n, d) of int
        Of each column the place of the row's cell; the last one of missing cells.
    """

    labels: Ints
    places: Ints


@dataclass(frozen=True, slots=True)
class DrawnColumn:
    """By what one column is drawn.

    Parameters
    ----------
    parent : int
        −1 of a root.
    table : array (K, A, F) of int
        Whole weights given the class and the parent's group; A is 1 of a root.
    groups : array (places,) of int
        Of each place its group among F.
    as_parent : array (places,) of int
        Of each place its group among those that tables of its children have.
    weights : array (places,) of int
        Released counts: what tells the places of a group apart.
    """

    parent: int
    table: Ints
    groups: Ints
    as_parent: Ints
    weights: Ints


class Drawing:
    """Random numbers of one drawing: a public seed and how many rows.

    Parameters
    ----------
    seed : int
        Public.
    rows : int
        Up to :data:`MOST_ROWS`.

    Raises
    ------
    ParameterError
        For more rows.
    """

    def __init__(self, seed: int, rows: int) -> None:
        if not 1 <= rows <= MOST_ROWS:
            raise ParameterError(f"{rows} rows are requested; draw 1 to {MOST_ROWS} at a time")
        self.rows = rows
        self._source = KeyedNoise(public_secret(seed), _IDENTITY)
        self._asked = np.array([rows], dtype=np.int64)

    def stream(self, step: str) -> KeyStream:
        """Return the words of one step."""
        return self._source.stream(step, self._asked)

    def classes(self, weights: Ints) -> Ints:
        """Return the class of each row, (n,), by whole weights."""
        return systematic(self.stream("class"), np.zeros(self.rows, dtype=np.int64), weights[None, :])

    def columns(self, labels: Ints, columns: Sequence[DrawnColumn]) -> Ints:
        """Return the place of each row's cell in each column, (n, d), each column after its parent.

        Raises
        ------
        ParameterError
            If parents go in a circle.
        """
        places = np.zeros((self.rows, len(columns)), dtype=np.int64)
        waiting, done = list(range(len(columns))), {-1}
        while waiting:
            ready = [at for at in waiting if columns[at].parent in done]
            if not ready:
                raise ParameterError(f"columns {waiting} depend on each other in a cycle; give each tree a root")
            for at in ready:
                one = columns[at]
                given = labels * one.table.shape[1]
                if one.parent >= 0:
                    given += columns[one.parent].as_parent[places[:, one.parent]]
                lines = one.table.reshape(-1, one.table.shape[2])
                groups = systematic(self.stream(f"group {at}"), given, lines)
                places[:, at] = self.within(f"place {at}", groups, one.groups, one.weights)
            done.update(ready)
            waiting = [at for at in waiting if at not in done]
        return places

    def within(self, step: str, groups: Ints, of_places: Ints, weights: Ints) -> Ints:
        """Return of each row a place in its group, by the places' weights; even where a group's are all zero."""
        inside = of_places[None, :] == np.arange(int(of_places.max()) + 1)[:, None]
        lines = np.where(inside, weights[None, :], 0)
        lines = np.where(lines.any(axis=1, keepdims=True), lines, inside.astype(np.int64))
        return systematic(self.stream(step), groups, lines)

    def points(self, step: str, places: Ints, points: Ints) -> Ints:
        """Return of each row which of its place's points it has, each as likely, (n,); 0 where a place has none.

        Parameters
        ----------
        step : str
            Names the column.
        places : array (n,) of int
        points : array (places,) of int
            How many points of a public grid lie in each place, up to :data:`MOST_POINTS`.
        """
        return below(self.stream(f"point {step}"), np.maximum(points[places], 1))
