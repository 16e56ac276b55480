"""Counts of tables over one or two columns, each with or without the label, in one release.

*What is counted.* P tables. A table lies over one to three places: columns, and behind the last of them the label. Each
place has public cells. A number: the parts between its edges, end parts clip, and a separate cell for missing where
cells can be missing. A category: a cell per declared value, or per group of them, and one for missing. The label: its
classes, or the parts of its declared range. A column may be listed twice, in fine and in coarse cells.

*The vector*: the cells of all tables, one table after another, as integers. A record lies in exactly one cell of each
table, for any numbers (NaN makes it a null record; a value that is not declared lies in the missing cell), or
in none of any table where it is a null record.

*Sensitivity.* Let e(x) be the vector of record x: P blocks, one per table, each a unit vector; e(null) = 0.

*Replace-one*: two records lie in equal cells of a table, which adds 0 to ‖e(x) − e(y)‖², or in different ones, which
adds 2. A null record against another adds 1 per table. So ‖e(x) − e(y)‖² ≤ 2P. The bound is attained: x in the first
cell of each place, y in the last cell of each. Every table has two cells (a table of one cell is refused, since it
counts all rows), so one of its places has two, and there x and y differ. A record that lies in the first cell of one
listing of a column and in the last cell of another is not needed: first and last cells of fine and of coarse parts hold
the same ends of the range.

*Replace-special*: a record against a null record, ‖e(x)‖² = P.

*Rows of one person*, k of them, add u = ⌊U/k⌋ of the U units that a record adds: Σ u e(x_i) = U (u k/U) · mean of
e(x_i). Since u k ≤ U this is U times a point of the convex hull of 0 and the e(x). A norm of differences is convex, and
so is largest between extreme points: those above. Neither how many rows a person has nor their cells matter.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import NeighbouringPair, Work, one_row_apart
from dpalgos.columns import Column, columns_of, numbers_of, parts_between, value_of
from dpalgos.evaluators.noisy_sums import PARTS_OF_A_UNIT, NoisySums, counted_cells
from dpalgos.guarantees import Setting
from dpalgos.parameters import ParameterError
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints

MOST_CELLS = 2**22
"""Of all tables together."""
MOST_PLACES = 3
"""Of a table: two columns and the label."""
_EQUAL_PARTS = (0.25, 0.5, 0.75)
_ROOM = 2.0**61


@register("evaluators", "pair-counts")
@dataclass(frozen=True, kw_only=True)
class PairCounts(NoisySums):
    """Count the cells of tables over pairs of columns, exactly in integers, with noise on each cell.

    Features are cells, before rows are scaled (:class:`~dpalgos.columns.Column`).

    Guarantee
    ---------
    mu-GDP, exact. A record lies in one cell of each of P tables, so it moves the counts in l2 by at most

    *replace-one*: sqrt(2 P).

    *replace-special*: sqrt(P).

    Both by the module's proof, which holds for all rows of a person as for a row. Rounded Gaussian noise of scale
    ``sensitivity / mu`` on each integer (see ``mechanisms.distributions``).

    Parameters
    ----------
    budget : GaussianMu
    columns : sequence of Column, or of mappings of their fields; optional
        Which features are cells of what; each feature is a number that is never missing where None. The same column may
        be listed more than once, with other edges.
    tables : sequence of sequences of int, optional
        Of each table its places in rising order, one to three of them: places in ``columns``, and ``len(columns)`` for
        the label. All pairs of columns where None.
    edges : sequence of sequences of float, optional
        Of each of ``columns``, the inner edges of its parts, rising, as shares of the declared range, each between 0
        and 1; empty for a category, and for a number in one part. Quarters of each number where None. A part holds its
        lower edge; edges that are multiples of 1/T nest in T equal bins (:func:`~dpalgos.columns.bins_of`).
    groups : sequence of sequences of int, optional
        Of each of ``columns``, the cell of each declared value of a category, from 0 on without gaps; empty for a
        number, and where each value has a separate cell. No groups where None.
    label_range : (float, float), optional
        Of numeric labels, which are clipped to it. Required where a table has the label and there are no classes.
    label_edges : sequence of float
        Inner edges of a numeric label's parts, as shares of ``label_range``.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    columns: Sequence[Column | Mapping[str, float]] | None = None
    tables: Sequence[Sequence[int]] | None = None
    edges: Sequence[Sequence[float]] | None = None
    groups: Sequence[Sequence[int]] | None = None
    label_range: tuple[float, float] | None = None
    label_edges: Sequence[float] = field(default=())
    fewest_classes: ClassVar[int] = 1
    source: ClassVar[str] = "ours; Dong, Roth, Su 2022, Theorem 1 (the noise)"
    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts of all tables' cells, l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(map(Column.of, self.columns)))
        if self.tables is not None:
            object.__setattr__(self, "tables", _table_places(self.tables))
        if self.edges is not None:
            object.__setattr__(self, "edges", tuple(_rising("edges", one) for one in self.edges))
        if self.groups is not None:
            object.__setattr__(self, "groups", tuple(tuple(int(cell) for cell in one) for one in self.groups))
        object.__setattr__(self, "label_edges", _rising("label_edges", self.label_edges))
        if self.label_range is not None:
            low, high = (float(end) for end in self.label_range)
            if not (math.isfinite(high - low) and low < high):
                raise ParameterError(f"label_range is {[low, high]}; it must be two finite numbers, low < high")
            object.__setattr__(self, "label_range", (low, high))

    def check(self, setting: Setting) -> None:
        """Raise where places lie beyond the columns, a table has one cell, or sums would leave 64-bit integers."""
        super().check(setting)
        shapes = self.shapes(setting)
        for places, shape in shapes.items():
            if math.prod(shape) < 2:
                raise ParameterError(
                    f"the table of places {list(places)} has one cell, which counts all rows; give it edges, or omit it"
                )
        if (cells := sum(map(math.prod, shapes.values()))) > MOST_CELLS:
            raise ParameterError(
                f"{len(shapes)} tables have {cells} cells; count at most {MOST_CELLS}: fewer tables, or fewer edges"
            )
        if setting.rows * self.units(setting) >= _ROOM:
            raise ParameterError(
                f"{setting.rows} records in units of {self.units(setting)} exceed 64-bit integers; declare fewer rows "
                "per person"
            )

    def shapes(self, setting: Setting) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Return of each table, by its places and in the order of the vector, how many cells each place has.

        Missing cells are the last ones of their place.
        """
        columns = columns_of(self.columns, setting.dimension)
        sizes = [self._cells_of(place, column) for place, column in enumerate(columns)]
        for name, given in (("edges", self.edges), ("groups", self.groups)):
            if given is not None and len(given) != len(columns):
                raise ParameterError(
                    f"{name} are given for {len(given)} columns; give one entry for each of {len(columns)} columns"
                )
        sizes.append(setting.classes if setting.classes > 1 else len(self.label_edges) + 1)
        tables = self.tables
        if tables is None:
            places = range(len(columns))
            tables = list(itertools.combinations(places, min(2, len(columns))))
        last = max(max(table) for table in tables)
        if last > len(columns):
            raise ParameterError(
                f"a table uses place {last}; there are {len(columns)} columns, and place {len(columns)} is the label"
            )
        if last == len(columns) and setting.classes <= 1 and self.label_range is None:
            raise ParameterError("a table uses a numeric label and label_range is None; give its range")
        return {tuple(table): tuple(sizes[place] for place in table) for table in tables}

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the counts, in l2, rounded up."""
        squared = setting.neighbours.records * len(self.shapes(setting))
        root = math.sqrt(squared)
        return root if math.isqrt(squared) ** 2 == squared else math.nextafter(root, math.inf)

    def work(self, setting: Setting) -> Work:
        """Return that of one pass, in which each row is looked up and counted in each table."""
        places = sum(map(len, self.shapes(setting)))
        return Work(small_operations=float(setting.most_rows) * places, sums=2 * 8 * math.prod(self.sum_shape(setting)))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the number of all cells."""
        return (sum(map(math.prod, self.shapes(setting).values())),)

    def tables_of(self, values: Floats, setting: Setting) -> dict[tuple[int, ...], Floats]:
        """Return the counts of each table, by its places, as arrays with an axis per place.

        Parameters
        ----------
        values : array (cells,)
            Of the released :class:`~dpalgos.models.Statistic`: rows, or people's parts, negative ones as they are.
        setting : Setting
            In which it was released.
        """
        shapes = self.shapes(setting)
        parts = np.split(values, np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1])
        return {places: part.reshape(shape) for (places, shape), part in zip(shapes.items(), parts, strict=True)}

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return rows in the first cell of each place and in the last, a missing one where cells can be missing."""
        left, right = np.zeros((2, setting.dimension))
        for column in columns_of(self.columns, setting.dimension):
            if column.is_number:
                left[column.at], right[column.at] = column.low, column.high
            else:
                left[column.at] = column.high
            if column.missing is not None:
                right[column.missing] = 1.0
        labels = (0.0, float(setting.classes - 1)) if setting.classes > 1 else (self.label_range or (0.0, 1.0))
        return one_row_apart(setting, left, right, labels=labels)

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts of a block, in units."""
        columns, shapes = columns_of(self.columns, setting.dimension), self.shapes(setting)
        cells = {
            place: self._places(place, columns[place], features) if place < len(columns) else self._of(labels, setting)
            for place in sorted({place for table in shapes for place in table})
        }
        counts = [
            counted_cells(np.ravel_multi_index([cells[place] for place in table], shape), parts, shape).ravel()
            for table, shape in shapes.items()
        ]
        return np.concatenate(counts)

    def _cells_of(self, place: int, column: Column) -> int:
        """Return how many cells a column has, a missing one among them."""
        edges = self.edges[place] if self.edges is not None and place < len(self.edges) else None
        groups = self.groups[place] if self.groups is not None and place < len(self.groups) else ()
        if column.values is None:
            if groups:
                raise ParameterError(f"groups of column {place} are {list(groups)}; it is a number: give edges")
            return len(_EQUAL_PARTS if edges is None else edges) + 1 + (column.missing is not None)
        if edges:
            raise ParameterError(f"edges of column {place} are {list(edges)}; it is a category: give groups")
        if not groups:
            return column.values + 1
        if len(groups) != column.values or set(groups) != set(range(max(groups) + 1)):
            raise ParameterError(
                f"groups of column {place} are {list(groups)}; give one cell for each of {column.values} values, from "
                "0 on without gaps"
            )
        return max(groups) + 2

    def _places(self, place: int, column: Column, features: Floats) -> Ints:
        """Return the cell of each row in one column."""
        if column.is_number:
            edges = _EQUAL_PARTS if self.edges is None else self.edges[place]
            cells, missing = numbers_of(features, [column])
            return np.where(missing[:, 0], len(edges) + 1, parts_between(cells[:, 0], edges))
        values = value_of(features, column)
        groups = () if self.groups is None else self.groups[place]
        return np.array([*groups, max(groups) + 1], dtype=np.int64)[values] if groups else values

    def _of(self, labels: Array, setting: Setting) -> Ints:
        """Return the cell of each row's label."""
        if self.label_range is None or setting.classes > 1:
            return np.asarray(labels, dtype=np.int64)
        low, high = self.label_range
        shares = (np.clip(np.asarray(labels, dtype=np.float64), low, high) - low) / (high - low)
        return parts_between(shares, self.label_edges)


def _table_places(tables: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return tables as tuples; refuse what is not one to three places in rising order, or is given twice."""
    kept = tuple(tuple(int(place) for place in table) for table in tables)
    if not kept:
        raise ParameterError("tables is empty; give at least one")
    for table in kept:
        rising = all(low < high for low, high in itertools.pairwise(table))
        if not 1 <= len(table) <= MOST_PLACES or table[0] < 0 or not rising:
            raise ParameterError(
                f"a table uses the places {list(table)}; give one to {MOST_PLACES} different places in rising order, "
                "from 0 on"
            )
    if twice := [table for table, times in Counter(kept).items() if times > 1]:
        raise ParameterError(f"the table of places {list(twice[0])} is given twice; give it once")
    return kept


def _rising(name: str, edges: Sequence[float]) -> tuple[float, ...]:
    kept = tuple(float(edge) for edge in edges)
    if any(not low < high for low, high in itertools.pairwise((0.0, *kept, 1.0))):
        raise ParameterError(f"{name} are {list(kept)}; they must rise, each above 0 and below 1")
    return kept
