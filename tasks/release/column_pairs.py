"""Counts of pairs of columns as releases: which pairs, in which cells, and what they say with one-way counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from dpalgos.evaluators.pair_counts import PairCounts
from dpalgos.guarantees import GaussianMu, Neighbours, Trust
from dpalgos.histograms import ColumnCounts, combined
from dpalgos.margins import TWO_SIDED
from dpalgos.pair_tables import (
    MOST_CELLS,
    MOST_PARTS,
    OneWay,
    PairTable,
    edges_of_equal_mass,
    one_way_of_number,
    one_way_of_values,
    parts_for,
)
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import Floats
from storage.datasets import origins
from storage.errors import InputError
from storage.refs import DatasetRef
from tasks.accounts.terms import relation_of
from tasks.datasets.scales import Scale, label_of, scales_of
from tasks.planning.configuration import Json
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.preparation.paid_counts import counted_columns, described_columns, paid_releases
from tasks.release.column_counts import Values, counts_of, stored_values
from tasks.release.prices import DESCRIPTION_EPSILON
from tasks.release.single import SinglePlan, plan_single, run_of
from tasks.runtime.settings import current_layout

NAME = "pair-counts"
"""Of the evaluator, as the registry has it."""
LABEL = "counts of pairs of columns"
Pair = tuple[int, int]
"""Two places among a version's columns, the label behind them; the first one's cells are the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsPlan:
    """One release of the tables of some pairs of columns.

    Attributes
    ----------
    counts : SinglePlan
        What is charged and made.
    pairs : tuple of (int, int)
        As they were asked for; a table has its two places in rising order.
    one_way : tuple of PlannedRelease
        Paid one-way counts of the same version, relation and unit, which the result rests on too.
    """

    counts: SinglePlan
    pairs: tuple[Pair, ...]
    one_way: tuple[PlannedRelease, ...]

    @property
    def run(self) -> RunPlan:
        """The run that its description is."""
        return run_of(self.counts, self.one_way)

    @property
    def cells(self) -> int:
        """Cells of all tables together."""
        planned = self.counts.planned
        return math.prod(cast(PairCounts, planned.build()).sum_shape(planned.setting))


def named_pairs(
    dataset: DatasetRef, pairs: Iterable[str | Sequence[str]], by: str | None = None, table: Json | None = None
) -> tuple[Pair, ...]:
    """Return pairs of places of a version's columns, by their names.

    Parameters
    ----------
    dataset : DatasetRef
    pairs : iterable of str, or of two names
        A text is two names with a comma between them.
    by : str, optional
        A column whose values are groups: all other columns, the label among them, are paired with it.
    table : dict, optional
        As for :func:`~tasks.datasets.scales.declared_schema`.

    Raises
    ------
    InputError
        For a name that no column has, a pair of a column with itself, or no pair.
    """
    names = [*(scale.name for scale in scales_of(dataset, table)), label_of(dataset, table).name]

    def place(name: str) -> int:
        if name not in names:
            what = "is the person column" if name == dataset.person else "is not a column"
            raise InputError(f"{name!r} {what} of {dataset.name}; choose from: {', '.join(names)}")
        return names.index(name)

    found: list[Pair] = []
    for pair in pairs:
        first, second = two_names(pair, names)
        found.append((place(first), place(second)))
        if first == second:
            raise InputError(f"the pair {first},{second} is a column with itself; name two columns")
    if by is not None:
        found += [(place(by), other) for other in range(len(names)) if other != place(by)]
    if not found:
        raise InputError("no pair of columns is given; give --pairs A,B or --by COLUMN")
    return tuple(dict.fromkeys(found))


def two_names(pair: str | Sequence[str], names: Sequence[str]) -> tuple[str, str]:
    """Return the two names of a pair; a comma may be part of a column's name."""
    parts = pair.split(",") if isinstance(pair, str) else list(pair)
    if isinstance(pair, str):
        cuts = [(",".join(parts[:cut]).strip(), ",".join(parts[cut:]).strip()) for cut in range(1, len(parts))]
        known = [cut for cut in cuts if cut[0] in names and cut[1] in names]
        parts = list((known or cuts)[0]) if cuts else parts
    if len(parts) != 2:
        raise InputError(f"a pair is {pair!r}; give two columns with a comma between them, as age,outcome")
    return parts[0], parts[1]


def plan_pairs(
    dataset: DatasetRef,
    pairs: Sequence[Pair],
    epsilon: float | None = None,
    *,
    delta: float | None = None,
    trust: str | None = None,
) -> PairsPlan:
    """Return the plan of the counts of some pairs of a version's columns; no row is read and nothing is charged.

    Where these tables are released and paid at this budget, the plan is that of the release, also if one-way counts
    came later: their cells would be others now, and the counts would be charged again.

    Parameters
    ----------
    dataset : DatasetRef
        As registered.
    pairs : sequence of (int, int)
        See :func:`named_pairs`.
    epsilon, delta, trust
        As for :func:`~tasks.release.column_counts.plan_counts`.

    Raises
    ------
    InputError, ParameterError
        As :func:`~tasks.release.column_counts.plan_counts` does, and for a table of too many cells.
    """
    several = bool(origins(current_layout(), dataset))
    relation = relation_of(dataset.name)
    usable = _one_way(dataset, relation, trust or str(Trust.LOCAL) if several else str(Trust.CENTRAL))

    def spec_of(mu: float) -> AlgorithmSpec:
        return counting_pairs(dataset, pairs, relation, mu, usable)

    stated = DESCRIPTION_EPSILON if epsilon is None else epsilon
    plan = plan_single(dataset, spec_of, LABEL, stated, delta=delta, trust=trust)
    for released in paid_releases(dataset.account, dataset.version, NAME):
        if _asks_alike(released, plan.planned):
            plan = replace(plan, planned=released.model_copy(update={"label": plan.planned.label}))
            break
    else:
        require_readable(dataset, plan.planned)
    return PairsPlan(counts=plan, pairs=tuple(pairs), one_way=tuple(usable))


def _asks_alike(released: PlannedRelease, asked: PlannedRelease) -> bool:
    """Whether a release counts the same tables as another, but for where their cells end."""
    cells = ("edges", "groups", "label_edges")
    mine, its = (
        {
            **one.model_dump(mode="json", exclude={"label", "account", "algorithm"}),
            **{name: value for name, value in one.algorithm.parameters.items() if name not in cells},
        }
        for one in (released, asked)
    )
    return mine == its


def _one_way(dataset: DatasetRef, relation: Neighbours, trust: str) -> list[PlannedRelease]:
    """Return the paid one-way counts of all of a version's rows; none of public rows, which have no account."""
    found = described_columns(dataset, relation, trust)
    return [one for one in found if one.setting.rows == dataset.rows]


def _combined(one_way: Sequence[PlannedRelease], values: Values = stored_values) -> ColumnCounts | None:
    return combined([counts_of(one, values) for one in one_way]) if one_way else None


def counting_pairs(
    dataset: DatasetRef,
    pairs: Sequence[Pair],
    relation: Neighbours,
    mu: float,
    one_way: Sequence[PlannedRelease] = (),
    table: Json | None = None,
) -> AlgorithmSpec:
    """Return what counts pairs, and in which cells: by released one-way counts, or by equal parts of declared ranges.

    Parameters
    ----------
    dataset : DatasetRef
    pairs : sequence of (int, int)
    relation : Neighbours
    mu : float
        Of the noise of all parties together.
    one_way : sequence of PlannedRelease
        Stored.
    table : dict, optional
        As for :func:`~tasks.datasets.scales.declared_schema`.
    """
    tables = sorted({tuple(sorted(pair)) for pair in pairs})
    scales, label, counts = scales_of(dataset, table), label_of(dataset, table), _combined(one_way)
    deviation = math.sqrt(relation.records * len(tables)) / mu
    parts = parts_for(dataset.rows, deviation)
    used = {place for places in tables for place in places}
    edges: list[list[float]] = [[] for _ in dataset.columns]
    groups: list[list[int]] = [[] for _ in dataset.columns]
    lines, categories = iter(range(len(dataset.columns) + 1)), iter(range(len(dataset.columns)))
    for place, (column, scale) in enumerate(zip(dataset.columns, scales, strict=True)):
        if column.values is None:
            line = next(lines)
            if place in used:
                edges[place] = _edges(scale, counts, line, parts)
        else:
            at = next(categories)
            if place in used and counts is not None:
                groups[place] = _groups(counts.categories[at][:-1], TWO_SIDED * deviation)
    ends = None if dataset.label_range is None else list(dataset.label_range)
    of_label = _edges(label, counts, next(lines), parts) if ends is not None and len(scales) in used else []
    cells = {"edges": edges, "groups": groups, "label_range": ends, "label_edges": of_label}
    counted = {"columns": counted_columns(dataset), "tables": [list(places) for places in tables]}
    return AlgorithmSpec("evaluators", NAME, {**counted, **cells})


def _edges(scale: Scale, counts: ColumnCounts | None, line: int, parts: int) -> list[float]:
    """Return the inner edges of a number's parts, in shares of its range."""
    bins = 32 if counts is None else counts.bins
    if len(scale.values) <= MOST_PARTS and (places := scale.places(bins)):
        # A few declared values have a part each, which begins with the value's own bin.
        return [place / bins for place in places[1:]]
    if counts is not None:
        edges = list(edges_of_equal_mass(counts, line, parts))
    else:
        equal = scale.most_parts(1 << (parts.bit_length() - 1))
        edges = [place / equal for place in range(1, equal)]
    if not edges:
        edges = [0.5]
    # A part of whole numbers holds one at least.
    kept: list[float] = []
    for edge in edges:
        first, last = scale.part(kept[-1] if kept else 0.0, edge) if scale.whole else (0.0, 1.0)
        if isinstance(first, str) or isinstance(last, str) or first is None or last is None or first <= last:
            kept.append(edge)
    return kept


def _groups(counts: Floats, least: float) -> list[int]:
    """Return a cell per value, the last of which is of all too rare to be seen in a cell; none for fewer than two."""
    rare = counts < least
    if int(rare.sum()) < 2 or rare.all():
        return []
    kept = np.cumsum(~rare) - 1
    return [int(cell) for cell in np.where(rare, int((~rare).sum()), kept)]


def require_readable(dataset: DatasetRef, planned: PlannedRelease, table: Json | None = None) -> None:
    """Refuse a table of more cells than anything could be said of."""
    names = [*(scale.name for scale in scales_of(dataset, table)), label_of(dataset, table).name]
    algorithm = cast(PairCounts, planned.build())
    for places, shape in algorithm.shapes(planned.setting).items():
        if (cells := math.prod(shape)) > MOST_CELLS:
            raise InputError(
                f"the table of {' and '.join(names[place] for place in places)} has {cells} cells "
                f"({' × '.join(map(str, shape))}); at most {MOST_CELLS} are counted: omit the pair, or declare "
                "fewer values"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPair:
    """One released table, made consistent with one-way counts.

    Attributes
    ----------
    table : PairTable
        With the first column of the pair as rows.
    parts : pair of tuple of float
        Inner edges of each of the two columns; none of a category.
    groups : pair of tuple of int
        Cells of each one's declared values; none where each value has its own.
    consistent : pair of bool
        Whether one-way counts of each of the two columns went in.
    """

    table: PairTable
    parts: tuple[tuple[float, ...], tuple[float, ...]]
    groups: tuple[tuple[int, ...], tuple[int, ...]]
    consistent: tuple[bool, bool]


def counted_pairs(plan: PairsPlan, values: Values = stored_values) -> list[CountedPair]:
    """Return the tables of a release, in the order of the plan's pairs.

    Raises
    ------
    RefusedError
        If it is not stored.
    """
    planned, dataset = plan.counts.planned, plan.counts.dataset
    algorithm, setting = cast(PairCounts, planned.build()), planned.setting
    tables = algorithm.tables_of(values(planned), setting)
    deviation = algorithm.deviation(setting) * setting.noise_factor
    counts = _combined(plan.one_way, values)
    found = []
    for pair in plan.pairs:
        places = tuple(sorted(pair))
        sides = [_side(algorithm, dataset, place) for place in places]
        one_way = [
            None if counts is None else _of_column(counts, dataset, place, *side)
            for place, side in zip(places, sides, strict=True)
        ]
        table = PairTable.consistent(tables[places], deviation, setting.rows, (one_way[0], one_way[1]))
        used = [one is not None for one in one_way]
        if pair != places:
            table, sides, used = table.turned, sides[::-1], used[::-1]
        found.append(
            CountedPair(
                table=table,
                parts=(sides[0][0], sides[1][0]),
                groups=(sides[0][1], sides[1][1]),
                consistent=(used[0], used[1]),
            )
        )
    return found


def _side(algorithm: PairCounts, dataset: DatasetRef, place: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    if place == len(dataset.columns):
        return tuple(algorithm.label_edges), ()
    return tuple((algorithm.edges or ())[place]), tuple((algorithm.groups or ())[place])


def _of_column(
    counts: ColumnCounts, dataset: DatasetRef, place: int, edges: tuple[float, ...], groups: tuple[int, ...]
) -> OneWay | None:
    """Return one column's one-way counts in the cells of a table; None where its parts end within a bin."""
    before = [column.values is None for column in dataset.columns[:place]]
    if place == len(dataset.columns):
        if dataset.label_range is None:
            return one_way_of_values(counts.classes, counts.deviation)
        return one_way_of_number(counts, sum(before), edges)
    if dataset.columns[place].values is None:
        return one_way_of_number(counts, sum(before), edges)
    return one_way_of_values(counts.categories[len(before) - sum(before)], counts.deviation, groups)


def mu_together(plan: PairsPlan) -> float:
    """Return the μ of the release and of the one-way counts that its result rests on, together."""
    return math.sqrt(sum(cast(GaussianMu, one.budget).mu ** 2 for one in (plan.counts.planned, *plan.one_way)))
