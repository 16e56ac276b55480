"""The map of a table's rows to groups of their cells, through which pairs of columns are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.columns import Column, bins_of, numbers_of, value_of
from dpalgos.features.public_map import RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats, Ints


@released_kind("group-codes")
@dataclass(frozen=True, slots=True)
class GroupCodes(RowFeatures):
    """Groups of a row's cells, one feature each, in [0, 1]: group g of ``parts`` as (g + ½)/parts.

    A row with a number that is none stays a null record: all its features are NaN.

    Parameters
    ----------
    columns : array (d, 3) of int
        Of each column its first feature, how many values a category has (−1: a number), and the feature that says that
        a number is missing, or −1.
    ends : array (d, 2)
        Of each column's features, at the low and the high end.
    bins : array (1,) of int
        T, of each number.
    groups : array (m, places) of int
        Of each feature that comes out, the group of each place of its column; −1 behind the last place.
    seen : array (m,) of int
        Of each feature the column; −1 where there is none, whose group is 0.
    parts : array (1,) of int
        Groups that tables have room for.
    """

    columns: Ints
    ends: Floats
    bins: Ints
    groups: Ints
    seen: Ints
    parts: Ints

    kept: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.groups) != len(self.seen) or int(self.seen.max(initial=-1)) >= len(self.columns):
            raise ParameterError("the arrays do not belong to groups of columns; build the map again")

    @property
    def dimension(self) -> int:
        """Number of features that come out."""
        return len(self.seen)

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to codes of groups; NaN where a row has a number that is none."""
        features = np.asarray(features, dtype=np.float64)
        null = np.logical_not(np.isfinite(features).all(axis=1))
        if null.any():
            features = np.where(null[:, None], 0.0, features)
        places = places_of(features, described(self.columns, self.ends), int(self.bins[0]))
        codes = np.zeros((len(features), self.dimension), dtype=np.int64)
        for at, column in enumerate(self.seen):
            if column >= 0:
                codes[:, at] = self.groups[at][places[:, column]]
        mapped: Floats = (codes.astype(np.float64) + 0.5) / float(self.parts[0])
        mapped[null] = np.nan
        return mapped


def places_of(features: Floats, columns: Sequence[Column], bins: int) -> Ints:
    """Return the place of each row's cell in each column, (m, d): a bin or a value, the last one where it is missing.

    Parameters
    ----------
    features : array (m, D)
        Finite.
    columns : sequence of Column
    bins : int
    """
    found = np.zeros((len(features), len(columns)), dtype=np.int64)
    for at, column in enumerate(columns):
        if column.is_number:
            cells, missing = numbers_of(features, [column])
            found[:, at] = np.where(missing[:, 0], bins, bins_of(cells[:, 0], bins))
        else:
            found[:, at] = value_of(features, column)
    return found


def described(columns: Ints, ends: Floats) -> tuple[Column, ...]:
    """Return columns from the arrays that say them."""
    return tuple(
        Column(
            at=int(at),
            values=None if values < 0 else int(values),
            missing=None if missing < 0 else int(missing),
            low=float(low),
            high=float(high),
        )
        for (at, values, missing), (low, high) in zip(columns, ends, strict=True)
    )


def arrays_of(columns: Sequence[Column]) -> tuple[Ints, Floats]:
    """Return the arrays that say columns: what :func:`described` makes them of."""
    said = [
        (one.at, -1 if one.values is None else one.values, -1 if one.missing is None else one.missing)
        for one in columns
    ]
    ends = [(one.low, one.high) for one in columns]
    return np.array(said, dtype=np.int64).reshape(-1, 3), np.array(ends, dtype=np.float64).reshape(-1, 2)


def padded(lines: Sequence[Ints], filling: int = -1) -> Ints:
    """Return lines of whole numbers as one array, filled up behind the last of each."""
    width = max((len(line) for line in lines), default=0)
    return np.stack([np.pad(line, (0, width - len(line)), constant_values=filling) for line in lines])


def unpadded(lines: Ints, sizes: Sequence[int]) -> list[Ints]:
    """Return the lines of an array that :func:`padded` made, of these sizes."""
    return [line[:size] for line, size in zip(lines, sizes, strict=True)]
