"""Synthetic rows compared with the released tables they were drawn from, each released share with its 95 % margin.

All is post-processing of released counts and of rows that were drawn from them.

*Margins.* A released share is a noisy count over the public number of rows. Its margin is ±1.96 deviations of the
noise, so it holds the share in the counted rows with probability 0.95, each share by itself. A drawn share within the
margin cannot be told from the rows' own share at this budget.

*Distance.* Total variation between drawn and released shares, ½ Σ |drawn − released|. Noise alone makes it ½ √(2/π) Σ s
on average, s the deviations of the shares. Only what exceeds that shows what the drawn rows do not follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpalgos.columns import Column
from dpalgos.histograms import ColumnCounts
from dpalgos.margins import TWO_SIDED
from dpalgos.pair_tables import OneWay, one_way_of_number, one_way_of_values
from dpalgos.rows import Floats, Ints
from dpalgos.synthesis.drawing import Drawn
from dpalgos.synthesis.groups import groups_of
from dpalgos.synthesis.model import Synthesis

_ABSOLUTE = math.sqrt(2.0 / math.pi)


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """The cells of one column, or of two, in released and in drawn rows.

    Parameters
    ----------
    places : tuple of int
        Of the columns, one or two; that of the label is behind the last column.
    groups : tuple of arrays (places,) of int
        Of each column the group of each place of its cells (:mod:`dpalgos.synthesis.groups`).
    released, deviations, drawn : arrays, an axis per column
        Shares of all rows: as released, negative ones as they are; the deviations of their noise; in the drawn rows.
    """

    places: tuple[int, ...]
    groups: tuple[Ints, ...]
    released: Floats
    deviations: Floats
    drawn: Floats

    @property
    def margins(self) -> Floats:
        """Half the width of each share's 95 % margin."""
        return TWO_SIDED * self.deviations

    @property
    def distance(self) -> float:
        """Total variation between drawn and released shares, with the noise of the latter."""
        return 0.5 * float(np.abs(self.drawn - self.released).sum())

    @property
    def by_noise(self) -> float:
        """The distance that noise alone makes, on average."""
        return 0.5 * _ABSOLUTE * float(self.deviations.sum())

    @property
    def outside(self) -> int:
        """Cells whose margin does not hold the drawn share."""
        return int((np.abs(self.drawn - self.released) > self.margins).sum())


def compared_columns(
    synthesis: Synthesis, counts: ColumnCounts, drawn: Drawn, rows: int, most: int
) -> list[ComparedTable]:
    """Return each column alone, the label last, by the released one-way counts.

    Parameters
    ----------
    synthesis : Synthesis
    counts : ColumnCounts
        What it was made of; may count more rows than later stages.
    drawn : Drawn
    rows : int
        Records that the later stages counted; groups hold a share of them.
    most : int
        Cells per column, at most.
    """
    columns = synthesis.described()
    weights = [one.weights for one in synthesis.drawn_columns()]
    # A part of a cell of the least group is told from noise.
    groups = groups_of(columns, weights, most, max(rows // (4 * most), 1))
    one_way = _one_way(columns, counts, groups)
    found = [_compared((at,), (groups[at],), one, counts.rows, drawn) for at, one in enumerate(one_way)]
    numeric = bool(synthesis.labels.size)
    kinds = len(synthesis.labels) if numeric else len(synthesis.classes)
    parts = np.arange(kinds) * min(most, kinds) // kinds if numeric else np.arange(kinds)
    label = _of_number(counts, -1, parts) if numeric else one_way_of_values(counts.classes, counts.deviation)
    return [*found, _compared((len(columns),), (parts,), label, counts.rows, drawn)]


def compared_tables(
    synthesis: Synthesis, tables: Mapping[tuple[int, ...], Floats], deviation: float, rows: int, drawn: Drawn
) -> list[ComparedTable]:
    """Return each column's one released table: by its parent, all classes together, or by class where it has none.

    Parameters
    ----------
    synthesis : Synthesis
    tables : mapping of places to array
        Of the release of one table per column (:meth:`~dpalgos.evaluators.pair_counts.PairCounts.tables_of`).
    deviation : float
        Of the noise of a count.
    rows : int
    drawn : Drawn
    """
    columns, classes = synthesis.drawn_columns(), len(synthesis.classes)
    found = []
    for (at, *_), table in tables.items():
        one, parent = columns[at], int(synthesis.parents[at])
        cells = int(one.groups.max()) + 1
        # With an axis of parents' groups, of one cell where no pairs were counted.
        by_class = np.asarray(table, dtype=np.float64).reshape(table.shape[0], -1, classes)[:cells]
        if parent >= 0:
            seen = columns[parent].as_parent
            counts, other, summed = by_class[:, : int(seen.max()) + 1].sum(axis=2), parent, classes
        else:
            seen, other, summed = np.arange(classes), len(columns), 1
            counts = by_class[:, 0]
        deviations = np.full(counts.shape, deviation * math.sqrt(summed) / rows)
        places = _label_parts(synthesis, drawn) if other == len(columns) else drawn.places[:, other]
        shares = _shares((one.groups, seen), (drawn.places[:, at], places), counts.shape)
        found.append(ComparedTable((at, other), (one.groups, seen), counts / rows, deviations, shares))
    return found


def compared_pairs(
    tables: Mapping[tuple[int, ...], Floats], groups: Sequence[Ints], deviation: float, rows: int, drawn: Drawn
) -> Iterator[ComparedTable]:
    """Yield the pairs of columns from which the tree was chosen, in their few groups, all classes together.

    Parameters
    ----------
    tables : mapping of places to array
        Of the release of tables of pairs × class.
    groups : sequence of arrays (places,) of int
        Of each column the groups in which it was counted.
    deviation : float
        Of the noise of a count.
    rows : int
    drawn : Drawn
    """
    for (one, other, _), table in tables.items():
        cells = int(groups[one].max()) + 1, int(groups[other].max()) + 1
        counts = np.asarray(table, dtype=np.float64)[: cells[0], : cells[1]].sum(axis=2)
        deviations = np.full(cells, deviation * math.sqrt(table.shape[2]) / rows)
        both = groups[one], groups[other]
        shares = _shares(both, (drawn.places[:, one], drawn.places[:, other]), cells)
        yield ComparedTable((one, other), both, counts / rows, deviations, shares)


def _compared(
    places: tuple[int, ...], groups: tuple[Ints, ...], counted: OneWay, rows: int, drawn: Drawn
) -> ComparedTable:
    (at,) = places
    cells = drawn.labels if at == drawn.places.shape[1] else drawn.places[:, at]
    deviations = np.sqrt(np.diagonal(counted.covariance))
    shares = _shares(groups, (cells,), counted.counts.shape)
    return ComparedTable(places, groups, counted.counts / rows, deviations / rows, shares)


def _one_way(columns: Sequence[Column], counts: ColumnCounts, groups: Sequence[Ints]) -> Iterator[OneWay]:
    line = category = 0
    for column, own in zip(columns, groups, strict=True):
        if column.is_number:
            yield _of_number(counts, line, own[:-1])
            line += 1
        else:
            looks = own[None, :] == np.arange(int(own.max()) + 1)[:, None]
            summed = looks @ counts.categories[category]
            yield OneWay(summed, counts.deviation**2 * np.diag(looks.sum(axis=1).astype(np.float64)))
            category += 1


def _of_number(counts: ColumnCounts, line: int, groups: Ints) -> OneWay:
    """Return a number's counts in neighbouring bins together."""
    line %= len(counts.sums)
    edges = (np.flatnonzero(np.diff(groups)) + 1) / len(groups)
    found = one_way_of_number(counts, line, [float(edge) for edge in edges])
    assert found is not None, "groups end where bins do"
    return found


def _label_parts(synthesis: Synthesis, drawn: Drawn) -> Ints:
    """Return of each drawn row its class, or the part of a numeric label's range."""
    if not synthesis.labels.size:
        return drawn.labels
    return drawn.labels * len(synthesis.classes) // len(synthesis.labels)


def _shares(groups: Sequence[Ints], places: Sequence[Ints], shape: tuple[int, ...]) -> Floats:
    """Return the shares of drawn rows in the cells of a table."""
    cells = np.ravel_multi_index([own[at] for own, at in zip(groups, places, strict=True)], shape)
    return np.bincount(cells, minlength=math.prod(shape)).reshape(shape) / len(cells)
