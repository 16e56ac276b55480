"""A stored synthesis: whole weights of a tree of columns, from which rows are drawn on a public seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpalgos.columns import Column
from dpalgos.models import ArrayFields, released_kind
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats, Ints
from dpalgos.synthesis.codes import arrays_of, described, padded, unpadded
from dpalgos.synthesis.drawing import Drawing, Drawn, DrawnColumn


@released_kind("synthesis")
@dataclass(frozen=True, slots=True)
class Synthesis(ArrayFields):
    """The model that draws rows: class, then each column given class and parent's group, then a place in a group.

    All but the ends of features are whole numbers, so that drawing is integer arithmetic.

    Parameters
    ----------
    columns : array (d, 3) of int
        As of :class:`~dpalgos.synthesis.codes.GroupCodes`.
    ends : array (d, 2)
    bins : array (1,) of int
        T, of each number and of a numeric label.
    classes : array (K,) of int
        Weights of the classes, or of the parts of a numeric label's range.
    labels : array (T,) of int, or (0,)
        Of a numeric label the released rows of each bin: what tells the bins of a part apart.
    parents : array (d,) of int
        −1 of a root.
    shapes : array (d, 2) of int
        A and F of each column's table.
    tables : array of int
        Weights of all tables (K, A, F), one after another.
    groups, as_parent, weights : array (d, places) of int
        Of each place its group in its column's own table, in those of its children, and its released count; −1 behind
        the last place.
    """

    columns: Ints
    ends: Floats
    bins: Ints
    classes: Ints
    labels: Ints
    parents: Ints
    shapes: Ints
    tables: Ints
    groups: Ints
    as_parent: Ints
    weights: Ints

    def __post_init__(self) -> None:
        cells = len(self.classes) * int((self.shapes[:, 0] * self.shapes[:, 1]).sum())
        if cells != len(self.tables) or len({len(self.columns), len(self.parents), len(self.shapes)}) != 1:
            raise ParameterError("the arrays do not belong to a synthesis; run unitball synthesise again")

    @classmethod
    def of(
        cls, columns: Sequence[Column], bins: int, classes: Ints, labels: Ints, drawn: Sequence[DrawnColumn]
    ) -> Synthesis:
        """Return the synthesis of some columns, each with what it is drawn by."""
        said, ends = arrays_of(columns)
        return cls(
            columns=said,
            ends=ends,
            bins=np.array([bins], dtype=np.int64),
            classes=classes,
            labels=labels,
            parents=np.array([one.parent for one in drawn], dtype=np.int64),
            shapes=np.array([one.table.shape[1:] for one in drawn], dtype=np.int64),
            tables=np.concatenate([one.table.ravel() for one in drawn]),
            groups=padded([one.groups for one in drawn]),
            as_parent=padded([one.as_parent for one in drawn]),
            weights=padded([one.weights for one in drawn]),
        )

    def described(self) -> tuple[Column, ...]:
        """Return the columns."""
        return described(self.columns, self.ends)

    def drawn_columns(self) -> list[DrawnColumn]:
        """Return what each column is drawn by."""
        sizes = [1 + (int(self.bins[0]) if one.values is None else one.values) for one in self.described()]
        cells = [len(self.classes) * math.prod(map(int, shape)) for shape in self.shapes]
        tables = np.split(self.tables, np.cumsum(cells)[:-1])
        return [
            DrawnColumn(int(parent), table.reshape(-1, *map(int, shape)), groups, as_parent, weights)
            for parent, table, shape, groups, as_parent, weights in zip(
                self.parents,
                tables,
                self.shapes,
                *(unpadded(lines, sizes) for lines in (self.groups, self.as_parent, self.weights)),
                strict=True,
            )
        ]

    def draw(self, drawing: Drawing) -> Drawn:
        """Return drawn rows: of each the class, or the bin of a numeric label, and the place of each cell."""
        classes = drawing.classes(self.classes)
        places = drawing.columns(classes, self.drawn_columns())
        if not self.labels.size:
            return Drawn(classes, places)
        parts = np.arange(len(self.labels)) * len(self.classes) // len(self.labels)
        return Drawn(drawing.within("label", classes, parts, self.labels), places)
