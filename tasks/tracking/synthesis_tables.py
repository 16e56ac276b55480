"""Synthetic rows compared with released tables, by names of columns and cells: the report of a synthesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from dpalgos.evaluators.pair_counts import PairCounts
from dpalgos.models import Statistic
from dpalgos.rows import Floats, Ints
from dpalgos.synthesis.codes import GroupCodes, unpadded
from dpalgos.synthesis.drawing import Drawing
from dpalgos.synthesis.fidelity import ComparedTable, compared_columns, compared_pairs, compared_tables
from dpalgos.synthesis.makers import TreeSynthesis
from dpalgos.synthesis.model import Synthesis
from storage.refs import ReleaseRef
from tasks.datasets.scales import Scale, label_of, scales_of
from tasks.datasets.synthetic_cells import places_written
from tasks.planning.column_statistics import SynthesisPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.release.descriptions import MISSING, ends_of_part
from tasks.release.drawn_rows import SyntheticRows
from tasks.release.pair_descriptions import MISSING_NUMBER
from tasks.release.storing import read_release

_MOST_CELLS = 12


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A compared table with the names of its columns and cells.

    Parameters
    ----------
    columns : tuple of str
    cells : tuple of tuples of str
        Of each column.
    table : ComparedTable
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    table: ComparedTable

    def to_json(self) -> dict[str, object]:
        """Return a JSON object: shares of all rows."""
        return {
            "columns": list(self.columns),
            "cells": [list(one) for one in self.cells],
            **{name: getattr(self.table, name).tolist() for name in ("released", "margins", "drawn")},
            **{name: getattr(self.table, name) for name in ("distance", "by_noise", "outside")},
        }


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Synthetic rows compared with all released tables.

    Parameters
    ----------
    columns : sequence of NamedTable
        Each column alone, the label last.
    tables : sequence of NamedTable
        The tables that rows are drawn by.
    pairs : sequence of NamedTable
        All pairs that were counted, in few groups; none where no pairs were.
    """

    columns: Sequence[NamedTable]
    tables: Sequence[NamedTable]
    pairs: Sequence[NamedTable]

    def to_json(self) -> dict[str, object]:
        """Return a JSON object."""
        return {name: [one.to_json() for one in getattr(self, name)] for name in ("columns", "tables", "pairs")}


def fidelity_of(plan: SynthesisPlan, found: SyntheticRows) -> Fidelity:
    """Return the comparison of synthetic rows with the released tables.

    Post-processing: no counted row is read. Columns that are not written into the rows, as the weekday of a drawn day,
    are left out.
    """
    synthesis = _stored(plan.synthesis)
    assert isinstance(synthesis, Synthesis)
    maker = cast(TreeSynthesis, plan.synthesis.algorithm.build())
    later = [one for one in (plan.pairs, plan.tables) if one is not None]
    counts, _ = maker.counts_of([cast(Statistic, _stored(one)) for one in (*plan.counts, *later)], len(later))
    drawn, rows = synthesis.draw(Drawing(found.seed, found.rows)), plan.tables.setting.rows
    columns = compared_columns(synthesis, counts, drawn, rows, _MOST_CELLS)
    tables = compared_tables(synthesis, _tables(plan.tables), _deviation(plan.tables), rows, drawn)
    pairs: list[ComparedTable] = []
    if plan.pairs is not None and plan.pair_groups is not None:
        coarse = _stored(plan.pair_groups)
        assert isinstance(coarse, GroupCodes)
        groups = unpadded(coarse.groups, [len(one.groups) for one in synthesis.drawn_columns()])
        pairs = list(compared_pairs(_tables(plan.pairs), groups, _deviation(plan.pairs), rows, drawn))
    scales, bins = (*scales_of(plan.dataset), label_of(plan.dataset)), int(synthesis.bins[0])

    def named(one: ComparedTable) -> NamedTable:
        behind = [scales[place] for place in one.places]
        cells = tuple(_cells(scale, groups, bins) for scale, groups in zip(behind, one.groups, strict=True))
        return NamedTable(tuple(scale.name for scale in behind), cells, one)

    # Other parts of a date follow from the day that is drawn.
    written = {*places_written(plan.dataset).values(), len(scales) - 1}
    return Fidelity(
        *([named(one) for one in part if written.issuperset(one.places)] for part in (columns, tables, pairs))
    )


def _stored(planned: PlannedRelease | PlannedCombination) -> object:
    return read_release(ReleaseRef(key=planned.key, kind="", party="server"))


def _tables(planned: PlannedRelease) -> dict[tuple[int, ...], Floats]:
    algorithm = cast(PairCounts, planned.build())
    return algorithm.tables_of(cast(Statistic, _stored(planned)).values, planned.setting)


def _deviation(planned: PlannedRelease) -> float:
    return cast(PairCounts, planned.build()).deviation(planned.setting) * planned.setting.noise_factor


def _cells(scale: Scale, groups: Ints, bins: int) -> tuple[str, ...]:
    """Return the name of each group of a column's places."""
    found = []
    for group in range(int(groups.max()) + 1):
        places = np.flatnonzero(groups == group)
        if scale.numbers is None and not scale.discrete:
            values = (*scale.values, MISSING)
            found.append(values[places[0]] if len(places) == 1 else f"other ({len(places)})")
        elif places[0] == bins:
            found.append(MISSING_NUMBER)
        elif scale.discrete:
            held = zip(scale.values, scale.places(bins), strict=False)
            found.append(", ".join(value for value, place in held if place in places) or "–")
        else:
            # A number that is never missing has a place for it all the same, behind its last bin.
            parts = len(groups) if len(groups) < bins else bins
            last = min(int(places[-1]) + 1, parts)
            found.append(ends_of_part(scale, places[0] / parts, last / parts))
    return tuple(found)
