"""Description of a table by released histograms, in the columns' own units, with 95 % margins.

All is post-processing of :class:`~dpalgos.histograms.ColumnCounts` and public facts: nothing here sees a row. Margins
hold for the value of these data (:mod:`dpalgos.column_margins`), each individually. Bins are equal parts of a column's
range on the scale on which its numbers become features: their edges are mapped back, which is monotone, so that a
margin holds in the column's units as it holds in shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TypedDict, cast

import numpy as np

from dpalgos.column_margins import (
    QUARTILES,
    Margins,
    bars,
    bars_up_to,
    by_chance,
    category_counts,
    category_shares,
    class_shares,
    difference,
    means,
    means_on,
    missing_shares,
    most_bars,
    quartiles,
    rare_together,
    share_differences,
    value_counts,
    value_share,
)
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.evaluators.noisy_sums import NoisySums
from dpalgos.guarantees import GaussianMu
from dpalgos.histograms import ColumnCounts
from dpalgos.measured import TOO_MUCH_NOISE, in_digits
from dpalgos.rows import Floats
from storage.columns.column import MissingRows
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef
from tasks.accounts.reports import budget_report
from tasks.accounts.room import OneMore
from tasks.datasets.scales import Scale, Worth, label_of, same_columns, scales_of
from tasks.planning.configuration import Json
from tasks.planning.releases import PlannedRelease
from tasks.preparation.paid_counts import paid_counts
from tasks.release.column_counts import counts_of, plan_counts, version_of
from tasks.release.single import SinglePlan
from tasks.runtime.stores import open_catalog

UNMEASURED = "cannot be measured at this budget"
MISSING = "(none of them, or missing)"
"""In the place of a category's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number of a column and its 95 % margin.

    Parameters
    ----------
    what : str
        ``bar``, ``count`` and ``other`` (rows), ``share`` and ``missing`` (of rows), ``quartile``, ``mean``.
    of : str
        Of what: a value, a class, the ends of a bar, which quartile.
    value, low, high : float, str or None
        In the column's units, a day as text; None where nothing is measured. An end that is None with a value is open:
        the value lies in the part of the range at that end, or beyond it.
    measured : bool
        Whether anything is said.
    reason : str or None
        Why nothing is; None where something is.
    """

    what: str
    of: str
    value: Worth | None
    low: Worth | None
    high: Worth | None
    measured: bool
    reason: str | None = field(init=False)

    def __post_init__(self) -> None:
        # A ratio to so few rows that their noise hides them has no margin that ends.
        object.__setattr__(self, "reason", None if self.measured else TOO_MUCH_NOISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Figure):
    """A number of one version less that of another, and both."""

    here: Worth | None
    there: Worth | None

    @property
    def beyond(self) -> bool:
        """Whether no difference lies outside its margin."""
        return self.measured and not (float(self.low or 0.0) <= 0.0 <= float(self.high or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedColumn:
    """Figures of one column, or of the label.

    Parameters
    ----------
    name, kind : str
    figures : tuple of Figure
    notes : tuple of str
        Explanations of the numbers that their names do not give.
    """

    name: str
    kind: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[Json]:
        """Return a line per number."""
        return [{"column": self.name, "kind": self.kind, **asdict(figure)} for figure in self.figures]

    def of(self, *what: str) -> list[Figure]:
        """Return the figures of some kinds."""
        return [one for one in self.figures if one.what in what]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Price of a release, its noise, and the account that pays.

    Parameters
    ----------
    epsilon, delta, mu : float
        Of the release, for one row or person.
    rows, columns, bins : int
        n; d, all counted columns, the label among them; T, 0 where columns have their own cells.
    deviation : float
        Standard deviation of the noise of the count of a value or a class, or of a cell of a pair of columns.
    bars : int
        Bars that this noise allows for each number; 0 without numbers, or with too much noise.
    bar_deviation : float
        The largest of the noise of the count of a bar; 0 without bars.
    unit, trust : str
    parties : tuple of str
        Each of whom pays.
    account : str
        Empty where each party pays from an account in its own root.
    cap_epsilon, cap_delta, cap_promised : float or None
        What charges go by, and the cap itself, which is above it where a soft limit is in force. None of public rows,
        which pay nothing.
    unit, relation : str
    group_size : int
    spent : float or None
        Of the account's epsilon, as `unitball budget` says it.
    left : OneMore or None
        Of the account; None of public rows.
    key : str
        The release's.
    paid : bool
        Whether it was stored before, so that the request is free.
    description : str
        Identity of the release together with all that the numbers rest on: the name by which ``unitball export`` and
        MLflow find them.
    """

    dataset: str
    version: str
    epsilon: float
    delta: float
    mu: float
    rows: int
    columns: int
    bins: int
    deviation: float
    bars: int
    bar_deviation: float
    parties: tuple[str, ...]
    trust: str
    account: str
    cap_epsilon: float | None
    cap_delta: float | None
    cap_promised: float | None
    unit: str
    relation: str
    group_size: int
    spent: float | None
    left: OneMore | None
    key: str
    paid: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionComparison:
    """One version compared with another.

    Parameters
    ----------
    version : str
        The other one.
    columns : tuple of DescribedColumn
        Of :class:`Difference`: this version's less the other's.
    measured, beyond : int
        Differences that are measured, and those of them whose margin does not hold 0.
    by_chance : float
        How many would not where nothing differs, on average.
    """

    version: str
    columns: tuple[DescribedColumn, ...]
    measured: int
    beyond: int
    by_chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Description of a table by a release."""

    terms: Terms
    label: DescribedColumn
    columns: tuple[DescribedColumn, ...]
    comparison: VersionComparison | None = None

    def to_json(self) -> Json:
        """Return a JSON object."""
        return asdict(self)

    def lines(self) -> list[Json]:
        """Return a line per number; of a comparison, per difference."""
        columns = self.all if self.comparison is None else self.comparison.columns
        return [line for column in columns for line in column.lines()]

    @property
    def all(self) -> tuple[DescribedColumn, ...]:
        """The label, and then the columns."""
        return (self.label, *self.columns)


def terms_of(plan: SinglePlan, *, paid: bool) -> Terms:
    """Return what a plan costs and who pays; nothing is charged."""
    planned, dataset = plan.planned, plan.dataset
    assert isinstance(planned.budget, GaussianMu), "counts take Gaussian noise"
    parameters = planned.algorithm.parameters
    own = _of_account(dataset) if plan.partition is not None else _ELSEWHERE
    return Terms(
        dataset=dataset.name,
        version=dataset.version,
        epsilon=plan.epsilon,
        delta=planned.delta,
        mu=planned.budget.mu,
        rows=dataset.rows,
        columns=len(dataset.columns) + 1,
        bins=int(str(parameters.get("bins", 0))),
        **_noise_of(planned),
        parties=planned.parties,
        trust=planned.trust.name,
        unit=str(dataset.unit),
        relation=str(planned.setting.neighbours),
        key=planned.key,
        paid=paid,
        description=plan.run.run_key,
        **own,
    )


class _Noise(TypedDict):
    deviation: float
    bars: int
    bar_deviation: float


def _noise_of(planned: PlannedRelease) -> _Noise:
    """Return the noise of each count, from public numbers: the same before and after the release."""
    algorithm, setting = cast(NoisySums, planned.build()), planned.setting
    if not isinstance(algorithm, ColumnHistograms):
        return {"deviation": algorithm.deviation(setting) * setting.noise_factor, "bars": 0, "bar_deviation": 0.0}
    counts = ColumnCounts.of_release(np.zeros(algorithm.sum_shape(setting)), algorithm, setting)
    drawn = most_bars(counts) if counts.layout.lines else 0
    reach = float(counts.coarser(drawn).count_deviations().max()) if drawn else 0.0
    return {"deviation": counts.deviation, "bars": drawn, "bar_deviation": reach}


class _Account(TypedDict):
    account: str
    cap_epsilon: float | None
    cap_delta: float | None
    cap_promised: float | None
    group_size: int
    spent: float | None
    left: OneMore | None


_ELSEWHERE: _Account = {
    "account": "",
    "cap_epsilon": None,
    "cap_delta": None,
    "cap_promised": None,
    "group_size": 1,
    "spent": None,
    "left": None,
}


def _of_account(dataset: DatasetRef) -> _Account:
    account, report = open_catalog().account_of(dataset.name), budget_report(dataset.name)
    return {
        "account": dataset.account,
        "cap_epsilon": None if account.cap is None else account.cap.epsilon,
        "cap_delta": None if account.cap is None else account.cap.delta,
        "cap_promised": account.promised,
        "group_size": account.group_size,
        "spent": report["epsilon_spent"],
        "left": None if report["left"] is None else OneMore(**report["left"]),
    }


def describe(plan: SinglePlan, against: str | None = None) -> Description:
    """Release a version's histograms, unless they are, and report them.

    Parameters
    ----------
    plan : SinglePlan
    against : str, optional
        Another version of the data set, whose own release must be paid.

    Raises
    ------
    RefusedError
        If the account has no room, or the other version's release is not paid; nothing is charged then.
    """
    other = None if against is None else _other(plan, against)
    paid = plan.paid
    plan.make()
    found = description_of(plan, paid=paid)
    return (
        found if other is None else replace(found, comparison=compared(plan.dataset, counts_of(plan.planned), *other))
    )


def description_of(plan: SinglePlan, *, paid: bool) -> Description:
    """Return what the stored release of a plan holds."""
    label, columns = described(plan.dataset, counts_of(plan.planned), plan.table)
    return Description(terms=terms_of(plan, paid=paid), label=label, columns=columns)


def _other(plan: SinglePlan, version: str) -> tuple[DatasetRef, ColumnCounts]:
    """Return another version and its counts, of the least noise where several were paid."""
    other = version_of(plan.dataset.name, version)
    if other.version == plan.dataset.version:
        raise InputError(f"--against {version} is the described version itself; give another version")
    if other.classes != plan.dataset.classes or other.label_range != plan.dataset.label_range:
        raise InputError(
            f"the label of version {version} has different classes or a different range, so the versions cannot be "
            "compared; omit --against"
        )
    if (name := same_columns(scales_of(plan.dataset), scales_of(other))) is not None:
        raise InputError(
            f"column {name} is declared differently in version {version}, so its bins cannot be compared; omit "
            "--against"
        )
    # A run may have counted the rows that it trained on, and these alone.
    released = [one for one in paid_counts(other.account, other.version) if one.setting.rows == other.rows]
    if not released:
        price = plan_counts(other, plan.epsilon, delta=plan.planned.delta).planned
        raise RefusedError(
            f"version {version} has no charged histograms to compare with. Release them for epsilon {plan.epsilon:g} "
            f"at delta {price.delta:g}, charged to account {other.account}; unitball describe {other.name} --version "
            f"{version} --epsilon {plan.epsilon:g}"
        )
    return other, min((counts_of(one) for one in released), key=lambda counts: counts.deviation)


def described(
    dataset: DatasetRef, counts: ColumnCounts, table: Json | None = None
) -> tuple[DescribedColumn, tuple[DescribedColumn, ...]]:
    """Return what counts say of a version's label and of its columns.

    Parameters
    ----------
    dataset : DatasetRef
    counts : ColumnCounts
    table : dict, optional
        As for :func:`~tasks.datasets.scales.declared_schema`.
    """
    scales, label = scales_of(dataset, table), label_of(dataset, table)
    of_categories = zip(category_counts(counts), counts.rare(), rare_together(counts), strict=True)
    lines, found, said = iter(range(counts.layout.lines)), [], _Lines(counts)
    for place, scale in zip(dataset.columns, scales, strict=True):
        figures = (
            _of_number(scale, said, next(lines)) if place.values is None else _of_category(scale, *next(of_categories))
        )
        notes = tuple(_notes(scale))
        found.append(DescribedColumn(name=scale.name, kind=scale.kind, figures=tuple(figures), notes=notes))
    if label.numbers is None:
        figures = _figures("share", label.values, class_shares(counts))
        return DescribedColumn(name=label.name, kind="classes", figures=tuple(figures)), tuple(found)
    figures = _of_number(label, said, next(lines))
    return DescribedColumn(name=label.name, kind="number", figures=tuple(figures), notes=_LABEL), tuple(found)


_LABEL = ("the label; numbers beyond its range are clipped to it",)


def _notes(scale: Scale) -> Iterator[str]:
    if scale.kind in ("number", "date"):
        yield "cells clipped to the declared range"
    if scale.log:
        yield "the geometric mean is exp(mean of log(1 + x)) - 1, x the cell; below 0 the same of -x, with its sign"
        yield "the arithmetic mean's margin includes the width of the bins, which are wide where numbers are large"
    if scale.kind == "hashed":
        yield "bins of hashed values, without names"
    if scale.missing is MissingRows.CONSTANT and scale.kind not in ("category", "hashed"):
        yield "missing cells are counted in the middle of the range, or at the declared centre"


def _said(number: float, measured: bool) -> float | None:
    return float(number) if measured and math.isfinite(number) else None


def _figures(
    what: str, of: Iterable[str], margins: Margins, worth: Callable[[float, int], Worth | None] | None = None
) -> Iterator[Figure]:
    """Yield margins of one dimension as figures, in a column's units."""
    numbers = zip(of, margins.values, margins.low, margins.high, margins.measured, strict=True)
    for name, value, low, high, measured in numbers:
        ends: tuple[Worth | None, ...] = tuple(
            None if not measured else _said(one, True) if worth is None else worth(float(one), toward)
            for one, toward in ((value, 0), (low, -1), (high, 1))
        )
        yield Figure(what=what, of=name, value=ends[0], low=ends[1], high=ends[2], measured=bool(measured))


class _Lines:
    """Lines about all numbers of a release, each computed once."""

    def __init__(self, counts: ColumnCounts) -> None:
        self.counts = counts
        self.drawn = most_bars(counts)

    @cached_property
    def bars(self) -> Margins:
        """Of ``drawn`` bars."""
        return bars(self.counts.coarser(self.drawn))

    @cached_property
    def quartiles(self) -> Margins:
        return quartiles(self.counts)

    @cached_property
    def means(self) -> Margins:
        return means(self.counts)

    @cached_property
    def missing(self) -> Margins:
        return missing_shares(self.counts)


def _line(margins: Margins, line: int) -> Margins:
    """Return one line of margins, as one dimension."""
    parts = (margins.values, margins.low, margins.high, margins.measured)
    values, low, high, measured = (np.atleast_1d(one[line]) for one in parts)
    return replace(margins, values=values, low=low, high=high, measured=measured)


def _of_number(scale: Scale, lines: _Lines, line: int) -> Iterator[Figure]:
    counts = lines.counts
    if places := scale.places(counts.bins):
        yield from _figures("count", scale.values, value_counts(counts, line, places))
    elif lines.drawn and (whole := scale.whole_bars(counts.bins, lines.drawn)):
        yield from _figures("bar", [of for of, _ in whole], bars_up_to(counts, line, [last for _, last in whole]))
    elif lines.drawn:
        drawn = scale.most_parts(lines.drawn)
        of_bars = lines.bars if drawn == lines.drawn else bars(counts.coarser(drawn))
        yield from _figures("bar", _ends(scale, drawn), _line(of_bars, line))
    else:
        yield Figure(what="bar", of="histogram", value=None, low=None, high=None, measured=False)
    if scale.kind == "boolean":
        yield from _figures("share", scale.values[1:], value_share(counts, line, counts.bins - 1))
    else:
        yield from _figures("quartile", map(str, QUARTILES), _line(lines.quartiles, line), scale.worth)
    if not scale.discrete:
        name = "geometric mean" if scale.log else "mean"
        yield from _figures("mean", [name], _line(lines.means, line), scale.exact)
        if scale.log and scale.numbers is not None:
            edges = scale.numbers(np.arange(counts.bins + 1) / counts.bins)
            yield from _figures("mean", ["arithmetic mean"], means_on(counts, line, edges))
    if line in counts.layout.lacking:
        yield from _figures("missing", ["missing"], _line(lines.missing, line))


def _ends(scale: Scale, drawn: int) -> list[str]:
    """Return the ends of bars, for people."""
    return [ends_of_part(scale, place / drawn, (place + 1) / drawn) for place in range(drawn)]


def ends_of_part(scale: Scale, low: float, high: float) -> str:
    """Return the ends of a part of the range, from one share to another, for people."""
    ends = scale.part(low, high)
    first, last = (end if isinstance(end, str) else in_digits(float(end or 0.0), 6) for end in ends)
    return f"{first} to {last}"


def _of_category(scale: Scale, margins: Margins, rare: Floats, other: Margins) -> Iterator[Figure]:
    figures = list(_figures("count", (*scale.values, MISSING), margins))
    yield from (one for one, few in zip(figures, rare, strict=False) if not few)
    if few := int(rare.sum()):
        yield from _figures("other", [f"other ({few} value{'s' * (few > 1)})"], other)
    if scale.can_lack:
        yield figures[-1]


def compared(dataset: DatasetRef, here: ColumnCounts, other: DatasetRef, there: ColumnCounts) -> VersionComparison:
    """Return a version's shares, quartiles and means less another's, at common bins."""
    scales, label = scales_of(dataset), label_of(dataset)
    found, lines, at = [], iter(range(here.layout.lines)), iter(range(len(here.layout.categories)))
    mine, its = _Lines(here), _Lines(there)
    of_categories = category_shares(here), category_shares(there)
    for place, scale in zip(dataset.columns, scales, strict=True):
        if place.values is None:
            figures = _differences(scale, mine, its, next(lines))
        else:
            category = next(at)
            figures = _share_differences((*scale.values, MISSING), *(of[category] for of in of_categories))
            figures = (one for one in figures if scale.can_lack or one.of != MISSING)
        found.append(DescribedColumn(name=scale.name, kind=scale.kind, figures=tuple(figures)))
    if label.numbers is None:
        figures = _share_differences(label.values, class_shares(here), class_shares(there))
    else:
        figures = _differences(label, mine, its, next(lines))
    columns = (DescribedColumn(name=label.name, kind="label", figures=tuple(figures)), *found)
    said = [one for column in columns for one in column.figures if isinstance(one, Difference) and one.measured]
    return VersionComparison(
        version=other.version,
        columns=columns,
        measured=len(said),
        beyond=sum(one.beyond for one in said),
        by_chance=by_chance(len(said)),
    )


def _share_differences(of: Sequence[str], here: Margins, there: Margins) -> Iterator[Difference]:
    return _paired("share", of, here.values.tolist(), there.values.tolist(), difference(here, there))


def _paired(
    what: str,
    of: Iterable[str],
    here: Sequence[Worth | None],
    there: Sequence[Worth | None],
    margins: Margins,
    unit: float = 1.0,
) -> Iterator[Difference]:
    numbers = zip(of, here, there, margins.values, margins.low, margins.high, margins.measured, strict=True)
    for name, mine, its, value, low, high, measured in numbers:
        yield Difference(
            what=what,
            of=name,
            # What is measured of neither alone is not shown either.
            here=mine if measured else None,
            there=its if measured else None,
            value=_said(unit * value, measured),
            low=_said(unit * low, measured),
            high=_said(unit * high, measured),
            measured=bool(measured),
        )


def _differences(scale: Scale, here: _Lines, there: _Lines, line: int) -> Iterator[Difference]:
    one, two = here.counts, there.counts
    if mine := scale.places(one.bins):
        its = scale.places(two.bins) or mine
        for value, at, beside in zip(scale.values, mine, its, strict=True):
            yield from _share_differences([value], value_share(one, line, at), value_share(two, line, beside))
    elif drawn := scale.most_parts(min(here.drawn, there.drawn)):
        pair = one.coarser(drawn), two.coarser(drawn)
        first, second = ((each.counts[line] / max(float(each.totals[line]), 1.0)).tolist() for each in pair)
        yield from _paired("share", _ends(scale, drawn), first, second, _line(share_differences(*pair), line))
    if scale.numbers is not None and not scale.log:
        low, high = (float(end) for end in scale.numbers(np.array([0.0, 1.0])))
        for what, names, margins in (
            ("quartile", list(map(str, QUARTILES)), [_line(each.quartiles, line) for each in (here, there)]),
            ("mean", ["mean"], [_line(each.means, line) for each in (here, there)]),
        ):
            first, second = ([scale.worth(float(value)) for value in each.values] for each in margins)
            yield from _paired(what, names, first, second, difference(*margins), high - low)
    if line in one.layout.lacking:
        margins = [_line(each.missing, line) for each in (here, there)]
        first, second = (each.values.tolist() for each in margins)
        yield from _paired("missing", ["missing"], first, second, difference(*margins))
