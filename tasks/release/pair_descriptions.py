"""Description of pairs of columns by released counts, in the columns' own units, with 95 % margins.

All is post-processing of :class:`~dpalgos.pair_tables.PairTable` and public facts: nothing here sees a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise

import numpy as np

from dpalgos.accounting.profiles import epsilon_of_mu
from dpalgos.column_margins import Margins, by_chance
from dpalgos.evaluators.pair_counts import PairCounts
from dpalgos.rows import Floats
from tasks.datasets.scales import Scale, Worth, label_of, scales_of
from tasks.planning.column_statistics import DescriptionPlan, DescriptionRequest
from tasks.planning.configuration import Json
from tasks.planning.plans import RunPlan
from tasks.release.column_counts import Values, counts_of, plan_counts, stored_values, version_of
from tasks.release.column_pairs import CountedPair, PairsPlan, counted_pairs, mu_together, named_pairs, plan_pairs
from tasks.release.descriptions import MISSING, Figure, Terms, described, ends_of_part, terms_of
from tasks.release.single import SinglePlan

ASSOCIATION = "Cramér's V"
MISSING_NUMBER = "(missing)"
_NOTE = "other: values too rare to be told apart in a cell of this release"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTerms(Terms):
    """Price of a release of pairs, the account that pays, and the releases on which the result rests.

    Parameters
    ----------
    tables, cells : int
        P; of all tables together.
    rests_on : tuple of str
        Keys of the one-way counts with which the tables were made consistent, or by which their cells were chosen.
    epsilon_together : float
        Of this release and of those that it rests on, at ``delta``. The account is charged for this release alone.
    """

    tables: int
    cells: int
    rests_on: tuple[str, ...]
    epsilon_together: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFigure(Figure):
    """A number of a cell of a pair's table and its 95 % margin.

    Parameters
    ----------
    group : str
        The cell of the pair's first column; ``of`` is the cell of its second one. ``what`` is ``total`` (rows of the
        group), ``count`` (rows), ``share`` (of the group's rows), ``difference`` (that share less the share in all
        other groups together) or ``association``.
    """

    group: str

    @property
    def ends(self) -> tuple[Worth | None, ...]:
        """The value, and the ends of its margin."""
        return self.value, self.low, self.high

    @property
    def beyond(self) -> bool:
        """Whether 0 lies outside the margin."""
        return self.measured and not (float(self.low or 0.0) <= 0.0 <= float(self.high or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPair:
    """Figures of a pair of columns.

    Parameters
    ----------
    first, second : str
        Names of the columns; the first one's cells are the groups.
    groups, cells : tuple of str
    association : PairFigure
        Cramér's V.
    figures : tuple of PairFigure
    measured, beyond : int
        Differences that are measured, and those whose margin does not hold 0.
    by_chance : float
        How many would not where the columns are independent, on average.
    notes : tuple of str
    """

    first: str
    second: str
    groups: tuple[str, ...]
    cells: tuple[str, ...]
    association: PairFigure
    figures: tuple[PairFigure, ...]
    measured: int
    beyond: int
    by_chance: float
    notes: tuple[str, ...] = ()

    def lines(self) -> list[Json]:
        """Return a line per number."""
        names = ("what", "group", "of", "value", "low", "high", "measured", "reason")
        return [
            {"first": self.first, "second": self.second, **{name: getattr(figure, name) for name in names}}
            for figure in (self.association, *self.figures)
        ]

    def of(self, what: str) -> list[PairFigure]:
        """Return the figures of one kind, group after group."""
        return [one for one in self.figures if one.what == what]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsDescription:
    """Description of pairs of columns by a release."""

    terms: PairTerms
    pairs: tuple[DescribedPair, ...]

    def to_json(self) -> Json:
        """Return a JSON object."""
        return asdict(self)

    def lines(self) -> list[Json]:
        """Return a line per number."""
        return [line for pair in self.pairs for line in pair.lines()]


def terms_of_pairs(plan: PairsPlan, *, paid: bool) -> PairTerms:
    """Return what a plan costs, who pays, and what its result rests on; nothing is charged."""
    planned = plan.counts.planned
    own = terms_of(plan.counts, paid=paid)
    given = {one.name: getattr(own, one.name) for one in fields(Terms)}
    given |= {"description": plan.run.run_key, "columns": len({place for pair in plan.pairs for place in pair})}
    together = own.epsilon if not plan.one_way else epsilon_of_mu(mu_together(plan), planned.delta)
    return PairTerms(
        **given,
        tables=len({tuple(sorted(pair)) for pair in plan.pairs}),
        cells=plan.cells,
        rests_on=tuple(one.key for one in plan.one_way),
        epsilon_together=together,
    )


def describe_pairs(plan: PairsPlan) -> PairsDescription:
    """Release the counts of pairs of columns, unless they are, and report them.

    Raises
    ------
    RefusedError
        If the account has no room; nothing is charged then.
    """
    paid = plan.counts.paid
    plan.counts.make()
    return pairs_description_of(plan, paid=paid)


def pairs_description_of(plan: PairsPlan, *, paid: bool) -> PairsDescription:
    """Return what the stored release of a plan holds."""
    return PairsDescription(terms=terms_of_pairs(plan, paid=paid), pairs=_pairs(plan, stored_values))


def _pairs(plan: PairsPlan, values: Values) -> tuple[DescribedPair, ...]:
    dataset, table = plan.counts.dataset, plan.counts.table
    scales = (*scales_of(dataset, table), label_of(dataset, table))
    return tuple(
        _described(scales[pair[0]], scales[pair[1]], counted)
        for pair, counted in zip(plan.pairs, counted_pairs(plan, values), strict=True)
    )


def plan_of(request: DescriptionRequest) -> SinglePlan | PairsPlan:
    """Return the plan of what a request describes; no row is read and nothing is charged.

    Raises
    ------
    InputError, ParameterError
        As :func:`~tasks.release.column_counts.plan_counts` and :func:`~tasks.release.column_pairs.plan_pairs` do.
    """
    dataset = version_of(request.dataset, request.version)
    if not request.pairs and request.by is None:
        return plan_counts(dataset, request.epsilon, delta=request.delta, trust=request.trust)
    pairs = named_pairs(dataset, request.pairs, request.by)
    return plan_pairs(dataset, pairs, request.epsilon, delta=request.delta, trust=request.trust)


def plan_description(request: DescriptionRequest) -> DescriptionPlan:
    """Return the same plan in the form that flows carry out."""
    plan = plan_of(request)
    single, one_way = (plan.counts, plan.one_way) if isinstance(plan, PairsPlan) else (plan, ())
    assert single.partition is not None, "rows are here"
    return DescriptionPlan(
        dataset=single.dataset,
        partition=single.partition,
        epsilon=single.epsilon,
        delta=single.delta,
        counts=single.planned,
        one_way=one_way,
    )


def numbers_of(run: RunPlan, table: Json, values: Values = stored_values) -> list[Json]:
    """Return the numbers of a description as its releases and its schema decide them, a line per number.

    The margin of Cramér's V is drawn, and V is moved into it: both are left out.

    Parameters
    ----------
    run : RunPlan
        Of :func:`~tasks.planning.plans.description_run`.
    table : dict
        As for :func:`~tasks.datasets.scales.declared_schema`.
    values : callable
    """
    planned, *one_way = run.evaluations
    single = SinglePlan(
        dataset=run.identity.dataset,
        partition=None,
        planned=planned,
        epsilon=run.epsilon or 0.0,
        at=lambda epsilon: single,
        table=table,
    )
    counting = planned.build()
    if not isinstance(counting, PairCounts):
        label, columns = described(single.dataset, counts_of(planned, values), table)
        return [line for column in (label, *columns) for line in column.lines()]
    pairs = tuple((places[0], places[1]) for places in counting.tables or ())
    found = _pairs(PairsPlan(counts=single, pairs=pairs, one_way=tuple(one_way)), values)
    return [line for pair in found for line in pair.lines() if line["what"] != "association"]


def _described(first: Scale, second: Scale, counted: CountedPair) -> DescribedPair:
    sides = [
        _cells(scale, size, edges, groups)
        for scale, size, edges, groups in zip(
            (first, second), counted.table.counts.shape, counted.parts, counted.groups, strict=True
        )
    ]
    table = counted.table.of(*([place for place, _ in side] for side in sides))
    groups, cells = ([name for _, name in side] for side in sides)
    differences = table.differences()
    figures = [
        *_figures("total", groups, [""], _column(table.totals())),
        *_figures("count", groups, cells, table.cells()),
        *_figures("share", groups, cells, table.shares()),
        *_figures("difference", groups, cells, differences),
    ]
    (association,) = _figures("association", [""], [ASSOCIATION], _column(table.association()))
    said = [one for one in figures if one.what == "difference" and one.measured]
    return DescribedPair(
        first=first.name,
        second=second.name,
        groups=tuple(groups),
        cells=tuple(cells),
        association=association,
        figures=tuple(figures),
        measured=len(said),
        beyond=sum(one.beyond for one in said),
        by_chance=by_chance(len(said)),
        notes=tuple(_notes((first, second), counted)),
    )


def _notes(scales: Sequence[Scale], counted: CountedPair) -> Iterator[str]:
    known = [scale.name for scale, used in zip(scales, counted.consistent, strict=True) if used]
    if known:
        yield f"consistent with released one-way counts of {' and '.join(known)}"
    if any(counted.groups):
        yield _NOTE


def _cells(scale: Scale, size: int, edges: tuple[float, ...], groups: tuple[int, ...]) -> list[tuple[int, str]]:
    """Return the places and names of a column's cells; a missing one only where cells can be missing."""
    if scale.numbers is None and not scale.discrete:
        names = list(scale.values)
        if groups:
            few = sum(group == max(groups) for group in groups)
            names = [value for value, group in zip(scale.values, groups, strict=True) if group < max(groups)]
            names.append(f"other ({few} values)")
        missing = [(len(names), MISSING)] if scale.can_lack and size > len(names) else []
        return [*enumerate(names), *missing]
    ends = (0.0, *edges, 1.0)
    if scale.discrete and len(scale.values) == len(ends) - 1:
        names = list(scale.values)
    else:
        names = [ends_of_part(scale, low, high) for low, high in pairwise(ends)]
    return [*enumerate(names), *([(len(names), MISSING_NUMBER)] if size > len(names) else [])]


def _column(margins: Margins) -> Margins:
    values, low, high = (part[:, None] for part in (margins.values, margins.low, margins.high))
    return Margins(values, low, high, margins.measured[:, None])


def _figures(what: str, groups: Sequence[str], cells: Sequence[str], margins: Margins) -> Iterator[PairFigure]:
    for row, group in enumerate(groups):
        for column, cell in enumerate(cells):
            measured = bool(margins.measured[row, column])
            value, low, high = (
                float(part[row, column]) if measured else None for part in (margins.values, margins.low, margins.high)
            )
            yield PairFigure(what=what, of=cell, value=value, low=low, high=high, measured=measured, group=group)


def shares_of(pair: DescribedPair) -> Floats:
    """Return the shares of each group's rows, (groups, cells), not-a-number where they are not measured."""
    shares = [np.nan if one.value is None else float(one.value) for one in pair.of("share")]
    return np.array(shares).reshape(len(pair.groups), len(pair.cells))
