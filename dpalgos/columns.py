"""Public descriptions of a table's columns: which features of a row are a number's cell, a category's, none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from dpalgos.parameters import NATURAL, Bounded, ParameterError
from dpalgos.rows import Floats, Ints

# By how much of its range a cell is moved up before it is put into a bin: features are stored in float32, and a value
# that is the edge of a bin stays in the bin above it.
_UP = 2.0**-21


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Bounded):
    """The place of a column among the features of a row, before rows are scaled: a number, or a one-hot category.

    A number's cell is where its feature lies between ``low`` and ``high``, clipped to [0, 1]; where the feature
    ``missing`` is above 0 its cell is missing. A category has a feature a declared value, and the first of these above
    half of ``high`` says which it is: one value at most, for any row. Where none is, its cell is missing. So
    each row, of any numbers that are finite, has one cell of each column.

    Parameters
    ----------
    at : int
        The number's feature, or the category's first.
    values : int, optional
        How many declared values a category has, at least 1; None for a number.
    missing : int, optional
        The feature that says that a number is missing; none can be where None.
    low, high : float
        What a number's feature is at the ends of the declared range; of a category, ``high`` is what the feature of the
        value that a row has is, and the others are 0.

    Raises
    ------
    ParameterError
        For places that are none, and for a category with an indicator.
    """

    at: int = field(metadata=NATURAL)
    values: int | None = None
    missing: int | None = None
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.values is not None and not 1 <= self.values <= 2**20:
            raise ParameterError(f"values is {self.values!r}; a category has between 1 and 2^20 declared values")
        if self.missing is not None and (self.values is not None or self.missing < 0):
            raise ParameterError(
                f"missing is {self.missing!r}; give the index of the feature that marks a missing number (a category "
                "needs none: it is missing if none of its features exceeds ½)"
            )

        if not -math.inf < self.low < self.high < math.inf:
            raise ParameterError(
                f"a column lies between {self.low!r} and {self.high!r}; give two finite numbers, low < high"
            )

    @classmethod
    def of(cls, given: Column | Mapping[str, float]) -> Column:
        """Return a column of what a parameter says: itself, or a mapping of its fields."""
        if isinstance(given, Column):
            return given
        known = [one.name for one in fields(cls)]
        if unknown := [name for name in given if name not in known]:
            raise ParameterError(f"a column has no {unknown[0]!r}; it has {', '.join(known)}")
        if "at" not in given:
            raise ParameterError(f"a column is {dict(given)}; give the index of its feature: at")
        return cls(**given)  # type: ignore[arg-type]  # fields by name

    def to_json(self) -> dict[str, float]:
        """Return what :meth:`of` makes it of: the fields that are not what they are by default."""
        said = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return {"at": self.at, **said}

    @property
    def is_number(self) -> bool:
        """Whether it is a number."""
        return self.values is None

    @property
    def features(self) -> tuple[int, ...]:
        """Places of the features that it is read from."""
        own = range(self.at, self.at + (1 if self.values is None else self.values))
        return (*own, *([] if self.missing is None else [self.missing]))


def columns_of(given: Sequence[Column | Mapping[str, float]] | None, dimension: int) -> tuple[Column, ...]:
    """Return the columns of rows of so many features: those that are given, or each feature as a number.

    Raises
    ------
    ParameterError
        If there is none, or one lies beyond the features.
    """
    columns = tuple(Column(at=at) for at in range(dimension)) if given is None else tuple(map(Column.of, given))
    last = max((place for column in columns for place in column.features), default=-1)
    if not columns or last >= dimension:
        raise ParameterError(
            f"{len(columns)} columns extend to feature {last}, and rows have {dimension}; describe at least one "
            f"column, of features 0 to {dimension - 1}"
        )
    return columns


def numbers_of(features: Floats, numbers: Sequence[Column]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the cells of some numbers, each in [0, 1], and which of them are missing, (m, c) each.

    Parameters
    ----------
    features : array (m, d)
        Finite.
    numbers : sequence of Column
    """
    low, high = np.array([[column.low, column.high] for column in numbers]).reshape(-1, 2).T
    cells = np.clip((features[:, [column.at for column in numbers]] - low) / (high - low), 0.0, 1.0)
    missing = np.zeros(cells.shape, dtype=np.bool_)
    for place, column in enumerate(numbers):
        if column.missing is not None:
            missing[:, place] = features[:, column.missing] > 0.0
    return cells, missing


def bins_of(cells: Floats, bins: int) -> Ints:
    """Return which of ``bins`` equal parts of [0, 1] each cell lies in; 1 lies in the last.

    A part holds its lower edge, and the last 2⁻²¹ of [0, 1] below it. Of a power of two of them a cell's bin is that of
    half as many, halved: no edge is rounded.
    """
    return np.minimum(((cells + _UP) * bins).astype(np.int64), bins - 1)


def parts_between(cells: Floats, edges: Sequence[float]) -> Ints:
    """Return which part between rising edges each cell lies in, from 0 to ``len(edges)``.

    A part holds its lower edge, and the last 2⁻²¹ below it, as in :func:`bins_of`, whose bins these parts nest in where
    the edges are multiples of one of theirs.
    """
    return np.searchsorted(np.asarray(edges, dtype=np.float64), cells + _UP, side="right").astype(np.int64)


def value_of(features: Floats, category: Column) -> Ints:
    """Return the value of each row, (m,): its place among those declared, or their number where it is missing."""
    assert category.values is not None
    said = features[:, category.at : category.at + category.values] > category.high / 2.0
    return np.where(said.any(axis=1), said.argmax(axis=1), category.values)
