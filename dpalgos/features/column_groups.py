"""The group that a row belongs to by one of its columns: a public map of rows, for measurements group by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.features.public_map import PublicMap, RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import NATURAL, POSITIVE, ParameterError
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints

_NONE = -1
# A category's feature, or an indicator's, is zero or far above this, for any divisor of the row.
_SAID = 1e-6


@released_kind("column-groups")
@dataclass(frozen=True, slots=True)
class GroupOfRow(RowFeatures):
    """The map of a row to the number of its group, by the features of one column.

    Parameters
    ----------
    places : array (4,) of int
        The first feature, the number of a category's values (−1 for a number), the feature that says that a number is
        missing and the one that all features are divided by, −1 where there is none.
    edges : array (c,)
        Between the groups of a number, rising.
    unit : array (1,)
        What the feature that is divided by is before rows are scaled.
    """

    places: Ints
    edges: Floats
    unit: Floats

    @property
    def dimension(self) -> int:
        """One."""
        return 1

    def transform(self, features: Floats) -> Floats:
        """Map rows (m, d) to the numbers of their groups, (m, 1); NaN for a row with a number that is none."""
        rows = np.asarray(features, dtype=np.float64)
        at, values, missing, scale = (int(place) for place in self.places)
        null: NDArray[np.bool_] = np.asarray(~np.isfinite(rows).all(axis=1))
        rows = np.where(null[:, None], 0.0, rows)
        if values != _NONE:
            said = rows[:, at : at + values] > _SAID
            group = np.where(said.any(axis=1), said.argmax(axis=1), values)
        else:
            number = rows[:, at]
            if scale != _NONE:
                # A row is a multiple of what it was, and by this feature it is known of what.
                known = rows[:, scale] > 0
                number = np.where(known, number * self.unit[0] / np.where(known, rows[:, scale], 1.0), 0.0)
            group = np.searchsorted(self.edges, number, side="right")
            if missing != _NONE:
                group = np.where(rows[:, missing] > _SAID, len(self.edges) + 1, group)
        return np.asarray(np.where(null, np.nan, group.astype(np.float64))[:, None])


@register("projections", "column-groups")
@dataclass(frozen=True, kw_only=True)
class ColumnGroups(PublicMap):
    """The group of a row by one declared column: a category's values, or parts of a number's range.

    The map that gives each row's group, so that a model's rows are counted group by group. A missing value is a
    separate group, the last; of a number only where a feature says so.

    Guarantee
    ---------
    No privacy cost: each row is mapped by itself, with the column's declaration.

    Parameters
    ----------
    column : str
        Its name, for people.
    names : sequence of str
        Of the groups, in order; at least one.
    at : int
        The number's feature, or the category's first.
    values : int, optional
        How many features a category has, which are 0 but for the one that says its value; None for a number.
    edges : sequence of float
        Of a number, between its groups; a group holds its lower edge.
    missing : int, optional
        The feature that says, above 0, that a number is missing.
    scale : int, optional
        A feature that is the same in all rows before these are scaled: a number is told by its ratio to it. None where
        rows are not scaled.
    unit : float
        That feature's value then.
    """

    column: str = "column 1"
    names: Sequence[str] = ("all",)
    at: int = field(default=0, metadata=NATURAL)
    values: int | None = None
    edges: Sequence[float] = ()
    missing: int | None = None
    scale: int | None = None
    unit: float = field(default=1.0, metadata=POSITIVE)
    source: ClassVar[str] = "ours"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
        object.__setattr__(self, "names", tuple(str(name) for name in self.names))
        for what, value, least in (("values", self.values, 1), ("missing", self.missing, 0), ("scale", self.scale, 0)):
            if value is not None and (type(value) is not int or value < least):
                raise ParameterError(f"{what} is {value!r}; it must be a whole number of at least {least}")
        if not all(map(math.isfinite, self.edges)) or list(self.edges) != sorted(set(self.edges)):
            raise ParameterError(f"edges are {list(self.edges)}; they must be finite and increasing")
        if self.values is not None and (self.edges or self.missing is not None or self.scale is not None):
            raise ParameterError("edges, missing and scale apply to numbers, values to categories: give one of them")
        least = self.values or len(self.edges) + (1 if self.missing is None else 2)
        most = least if self.values is None else self.values + 1
        if not least <= len(self.names) <= most:
            raise ParameterError(f"{len(self.names)} names are given; there are {most} groups, one for missing values")

    def output_dimension(self, dimension: int) -> int:
        """Return one."""
        return 1

    def map_for(self, dimension: int) -> GroupOfRow:
        """Return the map of rows of so many features.

        Raises
        ------
        ParameterError
            If the column lies beyond them.
        """
        last = max(self.at + (self.values or 1) - 1, self.missing or 0, self.scale or 0)
        if last >= dimension:
            raise ParameterError(f"column {self.column} extends to feature {last}, and rows have {dimension}")
        places = [self.at, *(_NONE if one is None else one for one in (self.values, self.missing, self.scale))]
        return GroupOfRow(np.array(places), np.array(self.edges, dtype=np.float64), np.array([self.unit]))
