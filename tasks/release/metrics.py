"""Evaluation of released models: exact on public rows, a charged release on private ones.

Of people every metric weighs people: a person counts as one, each of their k rows as 1/k. *Why there are no metrics by
row.* They do not follow from these counts: a person with one right answer of two adds the same as a person with ten of
twenty, so tables with equal counts have different metrics by row. It would be a separate release. In a count of rows
a person moves one cell by up to R = ``rows_per_person``, where a person who counts as one moves it by 1, and in place
of another person a second cell likewise: √2·R instead of √2 in the Euclidean norm, and R instead of 1 where a null
record takes the place. At the same epsilon the noise is R times as large, 64 times by default, while there are only as
many times more rows as a person has on average.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, PlainSerializer, PlainValidator

from dpalgos.confusions import FEW, extremes, largest_confusions, recalls_at_once
from dpalgos.error_margins import ErrorCounts, metrics_of_error_counts, metrics_of_noisy_errors
from dpalgos.evaluators.by_group import ConfusionByGroup, CountedByGroup
from dpalgos.evaluators.confusion import ConfusionMatrix
from dpalgos.evaluators.error_distribution import ErrorDistribution
from dpalgos.evaluators.error_sums import LaplaceErrorSums
from dpalgos.evaluators.noisy_sums import NoisySums
from dpalgos.evaluators.score_distribution import ScoreDistribution
from dpalgos.evaluators.scores_by_group import ScoresByGroup
from dpalgos.features.column_groups import ColumnGroups, GroupOfRow
from dpalgos.group_curves import GroupCurve, sums_of_groups
from dpalgos.group_margins import GroupEstimates, rates_of_noisy_group
from dpalgos.margins import (
    Noise,
    metrics_of_noisy_confusion,
    simulated,
)
from dpalgos.measured import Metrics, Scale, mean
from dpalgos.metrics import classification_metrics, confusion_matrix, rates_of_group, recalls, regression_metrics
from dpalgos.models import Statistic, predicted_classes
from dpalgos.rows import Floats, Ints, Rows, null_records
from dpalgos.score_curves import (
    Calibration,
    ScoreSums,
    area_under_curve,
    calibration_error,
    choose,
    curves_of,
    margins_of_area,
    platt,
)
from dpalgos.trust.model import EVERYONE
from storage.refs import DatasetRef, Labels, ReleaseRef, ShardRef
from tasks.planning.plans import RunPlan, noise_of
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import Shards
from tasks.release.seen_rows import RowMaps, maps_of, rows_of
from tasks.release.storing import diagnostics_of, read_release

# Beyond so many classes nobody reads a matrix, and a curve is drawn from so many points.
_MOST_CLASSES, _CURVE_POINTS = 50, 101


MetricsField = Annotated[Metrics, PlainValidator(Metrics.from_json), PlainSerializer(Metrics.to_json, when_used="json")]
"""Metrics of a model of pydantic's: as JSON what cannot be measured is null, with its reason."""


class GroupDifference(BaseModel, frozen=True):
    """The rates of one group less those of another; of noisy ones each with a 95 % margin that holds by itself."""

    group: str
    less: str
    metrics: MetricsField


class ByGroup(BaseModel, frozen=True):
    """Metrics of a model for each group of rows by one declared column.

    Attributes
    ----------
    column : str
    metrics : mapping of group to Metrics
        See :func:`dpalgos.metrics.rates_of_group`; of private rows each with the limits of its margin.
    confusion : mapping of group to counts
        True class by predicted class: exact of public rows, estimates from what was released of private ones.
    differences : tuple of GroupDifference
        Of each two groups; see :meth:`dpalgos.group_margins.RatesOfGroup.less`.
    times : float or None
        How many times the noise of one matrix that of all groups together is; None of public rows.
    combined : bool
        Whether counts of groups are combined with counts of all rows that were released before.
    curves : mapping of group to points
        ROC curves of two classes' scores, of groups with enough rows of both: false and true positive rate at each
        threshold, then the ends of the margin of each, which hold at all thresholds at once.
    """

    column: str
    metrics: dict[str, MetricsField]
    confusion: dict[str, tuple[tuple[float, ...], ...]]
    differences: tuple[GroupDifference, ...] = ()
    times: float | None = None
    combined: bool = False
    curves: dict[str, tuple[tuple[float, ...], ...]] = {}


class Confused(BaseModel, frozen=True):
    """Number of held-out rows of one class that are taken for another, with a margin for a noisy count."""

    true: str
    predicted: str
    rows: float
    low: float | None = None
    high: float | None = None


class RecallOf(BaseModel, frozen=True):
    """The recall of one class; of noisy counts with a margin."""

    name: str
    recall: float
    low: float | None = None
    high: float | None = None


class ManyClasses(BaseModel, frozen=True):
    """The largest confusions of more than five classes; see :mod:`dpalgos.confusions`.

    Attributes
    ----------
    confusions : tuple of Confused
        The largest first, at most ten. Margins hold for all pairs of classes at once.
    others_at_most : float
        How many rows any other pair of classes has at most, at once with these margins.
    lowest, highest : tuple of RecallOf
        At most three each. Margins hold for all classes at once.
    not_measured : int
        Classes whose recall cannot be measured.
    noisy : bool
    """

    confusions: tuple[Confused, ...]
    others_at_most: float
    lowest: tuple[RecallOf, ...]
    highest: tuple[RecallOf, ...]
    not_measured: int
    noisy: bool


class Evaluation(BaseModel, frozen=True):
    """Measured numbers of a run: of the model, or the mean over the parties' models, and of each; or released ones."""

    metrics: MetricsField = Metrics()
    by_party: dict[str, MetricsField] = {}
    measured_on: str | None = None
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[float, ...], ...] = ()
    """Counts, true class by predicted class: exact of public rows, as released of private ones; mean over models."""
    calibration: tuple[float, float, float] | None = None
    """Slope, offset and threshold of the scores, of one model of two classes of which running sums were released."""
    roc: tuple[tuple[tuple[float, float], ...], ...] = ()
    """(False, true positive rate) of each class against the others, of the second where there are two; of one model."""
    many_classes: ManyClasses | None = None
    """What stands out in the confusion matrix of one model of more than five classes."""
    by_group: ByGroup | None = None
    """Where the run was measured by group; the mean over models of several."""


@dataclass(frozen=True)
class Measured:
    """Of one model: its metrics, and what figures are drawn from, where it predicts classes."""

    metrics: Metrics
    confusion: Floats | None = None
    roc: Sequence[Floats] = ()
    calibration: Calibration | None = None
    groups: Mapping[str, tuple[Floats, Metrics]] = field(default_factory=dict)
    """Of each group of rows its counts and its rates."""
    many: ManyClasses | None = None
    differences: Mapping[tuple[str, str], Metrics] = field(default_factory=dict)
    """Of each two groups the rates of the first less those of the second."""
    times: float | None = None
    """How many times the noise of one matrix that of all groups together is."""
    combined: bool = False
    """Whether counts of groups are combined with counts of all rows that were released before."""
    curves: Mapping[str, Floats] = field(default_factory=dict)
    """Of groups the ROC curve with its band (:meth:`dpalgos.group_curves.GroupCurve.roc`)."""

    def __or__(self, other: Self) -> Self:
        confusion = other.confusion if self.confusion is None else self.confusion
        calibration = other.calibration if self.calibration is None else self.calibration
        return type(self)(
            self.metrics.merged(other.metrics),
            confusion,
            [*self.roc, *other.roc],
            calibration,
            {**self.groups, **other.groups},
            other.many if self.many is None else self.many,
            {**self.differences, **other.differences},
            other.times if self.times is None else self.times,
            self.combined or other.combined,
            {**self.curves, **other.curves},
        )


def _scored(rows: Rows) -> tuple[Floats, NDArray[np.generic], Floats | None]:
    """Return scores, labels and weights: of a person with k rows each weighs 1/k, so that metrics are over people."""
    scores, labels, shares = zip(*rows.blocks(), strict=True)
    weights = None if shares[0] is None else 1.0 / np.concatenate(shares)
    return np.concatenate(scores), np.concatenate(labels), weights


def _measure(maps: RowMaps, shard: ShardRef, *, turned: bool) -> Measured:
    classes = len(shard.dataset.classes)
    return measure_rows(rows_of(shard, maps, classes if classes > 2 else 1), shard.dataset, turned=turned)


def measure_rows(rows: Rows, dataset: DatasetRef, *, turned: bool = False) -> Measured:
    """Measure exactly a model whose scores stand in place of the features, of public rows.

    Predictions of a number are clipped to the declared range, as they are wherever the model is asked. With ``turned``
    the first of two classes is the positive one.
    """
    scores, labels, weights = _scored(rows)
    if dataset.labels is Labels.REAL:
        predicted = scores[:, 0] if dataset.label_range is None else np.clip(scores[:, 0], *dataset.label_range)
        return Measured(Metrics(regression_metrics(np.asarray(labels, dtype=np.float64), predicted, weights)))
    classes = len(dataset.classes)
    kept = ~null_records(scores, labels, classes)
    truth, known = np.asarray(labels[kept], dtype=np.int64), scores[kept]
    weights, names = None if weights is None else weights[kept], dataset.classes
    if turned:
        # A score of 0 is of the first class, and stays of it.
        truth, known, names = 1 - truth, np.where(known == 0.0, np.finfo(np.float64).tiny, -known), names[::-1]
    counts = confusion_matrix(truth, predicted_classes(known), max(classes, 2), weights)
    metrics = classification_metrics(truth, known, classes, weights) | recalls(counts, names)
    return Measured(Metrics(metrics), counts, _curves(truth, known, weights), many=_of_many(counts, names, None, 0.0))


def _of_many(counts: Floats, classes: Sequence[str], noise: Noise | None, deviation: float) -> ManyClasses | None:
    """Return what stands out in a matrix of more than five classes; nothing of fewer."""
    if len(classes) <= FEW:
        return None
    confusions, others = largest_confusions(counts, noise)
    recalls = recalls_at_once(counts, noise, deviation)

    def recall_of(place: int) -> RecallOf:
        low, high = recalls.limits(f"recall_{place}") or (None, None)
        return RecallOf(name=classes[place], recall=recalls[f"recall_{place}"], low=low, high=high)

    lowest, highest = extremes(recalls)
    return ManyClasses(
        confusions=tuple(
            Confused(
                true=classes[confusion.true],
                predicted=classes[confusion.predicted],
                rows=confusion.count,
                low=confusion.low,
                high=confusion.high,
            )
            for confusion in confusions
        ),
        others_at_most=others,
        lowest=tuple(map(recall_of, lowest)),
        highest=tuple(map(recall_of, highest)),
        not_measured=len(recalls.reasons),
        noisy=noise is not None,
    )


def _curves(truth: Ints, scores: Floats, weights: Floats | None) -> list[Floats]:
    """Return the ROC of each class against the others, thinned for drawing; none where a class does not occur."""
    from sklearn.metrics import roc_curve

    curves = []
    for column, label in enumerate([1] if scores.shape[1] == 1 else range(scores.shape[1])):
        positive = truth == label
        if positive.all() or not positive.any():
            return []
        false, true, _ = roc_curve(positive, scores[:, column], sample_weight=weights)
        curve = np.stack([false, true], axis=1)
        curves.append(curve[np.unique(np.linspace(0, len(curve) - 1, _CURVE_POINTS).astype(int))])
    return curves


def _measure_groups(
    groups: ColumnGroups, key: str, path: Sequence[ReleaseRef], shards: Sequence[ShardRef], *, turned: bool
) -> dict[str, tuple[Floats, Metrics]]:
    """Measure exactly how a model does for each group of public rows; a group without rows has no rates."""
    classes, names = shards[0].dataset.classes, groups.names
    size = max(len(classes), 2)
    reference = ReleaseRef(key=key, kind=GroupOfRow.kind, party=EVERYONE)
    maps = maps_of([reference, *path], (1, len(path)))
    counts = np.zeros((len(names), size, size))
    for shard in shards:
        features, labels, weights = _scored(rows_of(shard, maps, 1 + (size if size > 2 else 1)))
        kept = ~null_records(features, labels, size)
        group = np.clip(features[kept, 0], 0, len(names) - 1).astype(np.int64)
        truth, predicted = np.asarray(labels[kept], dtype=np.int64), predicted_classes(features[kept, 1:])
        for place in range(len(names)):
            own = group == place
            counts[place] += confusion_matrix(
                truth[own], predicted[own], size, None if weights is None else weights[kept][own]
            )
    if turned:
        counts, classes = counts[:, ::-1, ::-1], classes[::-1]
    return {
        name: (of_group, Metrics(rates_of_group(of_group, classes) if of_group.any() else {"rows": 0.0}))
        for name, of_group in zip(names, counts, strict=True)
    }


def _by_group(of: Sequence[Measured], column: str) -> ByGroup:
    """Return the models' mean counts and rates of each group."""
    metrics, confusion = {}, {}
    for name in of[0].groups:
        counts, rates = zip(*(one.groups[name] for one in of), strict=True)
        metrics[name] = mean(rates)
        confusion[name] = tuple(tuple(round(float(count), 3) for count in row) for row in np.mean(counts, axis=0))
    differences = tuple(
        GroupDifference(group=group, less=less, metrics=mean([one.differences[group, less] for one in of]))
        for group, less in of[0].differences
    )
    return ByGroup(
        column=column,
        metrics=metrics,
        confusion=confusion,
        differences=differences,
        times=of[0].times,
        combined=of[0].combined,
        curves={name: _rounded_outwards(curve) for name, curve in of[0].curves.items()} if len(of) == 1 else {},
    )


def _rounded_outwards(curve: Floats) -> tuple[tuple[float, ...], ...]:
    """Return a curve with its band in four digits; the band is not narrowed."""
    points, lows, highs = curve[:, :2], curve[:, 2::2], curve[:, 3::2]
    ends = np.stack([np.floor(lows * 1e4), np.ceil(highs * 1e4)], axis=2).reshape(len(curve), -1) / 1e4
    return tuple(tuple(map(float, one)) for one in np.concatenate([np.round(points, 4), ends], axis=1))


def _evaluation(
    measured: Mapping[str, Measured], measured_on: str, classes: Sequence[str], groups: ColumnGroups | None
) -> Evaluation:
    """Return the models' mean metrics, and what figures are drawn from: counts, and curves if there is one model."""
    of = list(measured.values())
    figures: dict[str, Any] = {}
    counts = [one.confusion for one in of if one.confusion is not None]
    if counts and len(classes) <= _MOST_CLASSES:
        confusion = tuple(tuple(round(float(count), 3) for count in row) for row in np.mean(counts, axis=0))
        figures = {"classes": tuple(classes), "confusion": confusion}
        if len(of) == 1:
            curves, calibration = of[0].roc, of[0].calibration
            figures["roc"] = tuple(tuple((round(float(x), 4), round(float(y), 4)) for x, y in one) for one in curves)
            figures["calibration"] = None if calibration is None else astuple(calibration)
    if len(of) == 1:
        figures["many_classes"] = of[0].many
    if groups is not None:
        figures["by_group"] = _by_group(of, groups.column)
    by_party = {name: one.metrics for name, one in measured.items()} if len(of) > 1 else {}
    metrics = mean([one.metrics for one in of])
    return Evaluation(metrics=metrics, by_party=by_party, measured_on=measured_on, **figures)


def measure(
    plan: RunPlan,
    models: Mapping[str, Sequence[ReleaseRef]],
    released: Mapping[str, ReleaseRef],
    shards: Shards,
) -> Evaluation:
    """Report the metrics of the released models, each given by name with the releases that its rows pass through.

    Public test rows are measured exactly; without test rows the public training rows are, and the metrics say so.
    Private rows are measured by the charged releases planned for them, if any, and otherwise not at all.
    """
    dataset = shards.training[0].dataset
    if not dataset.private:
        return measure_exactly(models, shards, plan)
    return measure_by_releases(plan, models, released)


def measure_by_releases(
    plan: RunPlan,
    models: Mapping[str, Sequence[ReleaseRef]],
    released: Mapping[str, ReleaseRef],
) -> Evaluation:
    """Report the metrics of models, by the charged releases that the plan has for it; nothing where it has none.

    Parameters
    ----------
    plan : RunPlan
    models : mapping
        As for :func:`measure`.
    released : mapping of key to ReleaseRef
        The plan's evaluations, as they were made.
    """
    if not plan.evaluations:
        return Evaluation()
    statistics = {one.key: read_release(released[one.key]) for one in plan.evaluations if one.reads_rows}
    return measure_by_statistics(
        plan, {name: [one.key for one in path] for name, path in models.items()}, statistics, plan.identity.classes
    )


def measure_by_statistics(
    plan: RunPlan,
    models: Mapping[str, Sequence[str]],
    statistics: Mapping[str, Statistic],
    classes: Sequence[str],
) -> Evaluation:
    """Report the metrics of models, by what was counted of their predictions.

    Parameters
    ----------
    plan : RunPlan
    models : mapping
        Each by name with the keys of what its rows pass through, the model's last.
    statistics : mapping of key to Statistic
        What the plan's evaluations have released.
    classes : sequence of str
    """
    measured = {
        name: _of_releases(
            _own(plan, path, statistics), classes, plan.identity.aim, plan.groups, turned=plan.identity.turned
        )
        for name, path in models.items()
    }
    several = plan.identity.dataset.unit.several
    return _evaluation(measured, f"held-out {several}, noisy", classes, plan.groups)


def sums_of_scores(plan: RunPlan, path: Sequence[str], statistics: Mapping[str, Statistic]) -> list[ScoreSums]:
    """Return one model's released running sums of scores, one a score, of two classes the positive one's; or none.

    Parameters
    ----------
    plan : RunPlan
    path : sequence of str
        Keys of what the model's rows pass through, its own last.
    statistics : mapping of key to Statistic
    """
    found = _sums(_own(plan, path, statistics))
    return [one.turned() for one in found] if plan.identity.turned else found


def _sums(released: Sequence[tuple[PlannedRelease, Statistic]]) -> list[ScoreSums]:
    """Return running sums of scores; of two classes combined with the confusion matrix of the same rows."""
    groups = _Groups.of(released)
    if groups is not None and groups.scores is not None:
        return [groups.sums[1]]
    scores: list[ScoreSums] = []
    for planned, statistic in released:
        if isinstance(algorithm := planned.build(), ScoreDistribution):
            scores = ScoreSums.of_release(statistic.values, algorithm, planned.setting)
    for planned, statistic in released if len(scores) == 1 else ():
        if isinstance(planned.build(), ConfusionMatrix):
            scores = [scores[0].combined(statistic.values, noise_of(planned))]
    return scores


def _own(
    plan: RunPlan, path: Sequence[str], statistics: Mapping[str, Statistic]
) -> list[tuple[PlannedRelease, Statistic]]:
    """Return the evaluations of one model, each with what it released."""
    own = (one for one in plan.evaluations if one.reads_rows and one.seen_last == tuple(path))
    return [(one, statistics[one.key]) for one in own]


def _of_releases(
    released: Sequence[tuple[PlannedRelease, Statistic]],
    classes: Sequence[str],
    aim: str | None,
    groups: ColumnGroups | None,
    *,
    turned: bool,
) -> Measured:
    """Return what one model's evaluations say: counts of its predictions, and with them its scores' running sums.

    With ``turned``, ``classes`` and all that is returned have the first declared class last.
    """
    way = -1 if turned else 1
    measured, of_scores, scores = Measured(Metrics()), Measured(Metrics()), _sums(released)
    if scores:
        of_scores = _of_scores([one.turned() for one in scores] if turned else scores, aim)
    by_group = _Groups.of(released)
    if by_group is not None:
        assert groups is not None, "who counts by group has planned what says the groups"
        threshold = None if aim is None or of_scores.calibration is None else of_scores.calibration.threshold
        return by_group.measured(groups.names, classes, threshold, turned=turned) | of_scores
    for planned, statistic in released:
        algorithm, values, setting = cast(NoisySums, planned.build()), statistic.values, planned.setting
        deviation = noise_of(planned)
        if isinstance(algorithm, LaplaceErrorSums):
            measured |= Measured(metrics_of_noisy_errors(values, setting.rows, deviation, algorithm.label_range))
        elif isinstance(algorithm, ErrorDistribution):
            measured |= Measured(metrics_of_error_counts(ErrorCounts.of_release(values, algorithm, setting)))
        elif isinstance(algorithm, ConfusionMatrix):
            noise, values = simulated(algorithm, setting), values[::way, ::way]
            metrics = metrics_of_noisy_confusion(values, setting.rows, deviation, noise, classes)
            measured |= Measured(metrics, values, many=_of_many(values, classes, noise, deviation))
    return measured | of_scores


_Released = tuple[PlannedRelease, Statistic]


@dataclass(frozen=True)
class _Groups:
    """Releases of one model's rows by group, and of all of them before.

    Parameters
    ----------
    counts : (PlannedRelease, Statistic)
        Counts of predictions by group.
    matrix : (PlannedRelease, Statistic) or None
        Counts of all rows' predictions, where these were released before.
    scores : (PlannedRelease, Statistic) or None
        Running sums of scores by group.
    scores_before : (PlannedRelease, Statistic) or None
        Of all rows, where these were released before.
    """

    counts: _Released
    matrix: _Released | None
    scores: _Released | None
    scores_before: _Released | None

    @classmethod
    def of(cls, released: Sequence[_Released]) -> Self | None:
        """Return what was released by group, or None."""

        def first(kind: type[NoisySums], *, by_group: bool) -> _Released | None:
            built = ((one, one[0].build()) for one in released)
            return next(
                (one for one, of in built if isinstance(of, kind) and isinstance(of, CountedByGroup) is by_group),
                None,
            )

        counts = first(ConfusionByGroup, by_group=True)
        if counts is None:
            return None
        matrix, sums = (first(kind, by_group=False) for kind in (ConfusionMatrix, ScoreDistribution))
        return cls(counts, matrix, scores := first(ScoresByGroup, by_group=True), sums if scores else None)

    @cached_property
    def algorithm(self) -> ConfusionByGroup:
        return cast(ConfusionByGroup, self.counts[0].build())

    @cached_property
    def estimates(self) -> GroupEstimates:
        before = None if self.matrix is None else noise_of(self.matrix[0])
        return GroupEstimates.of_release(self.algorithm, noise_of(self.counts[0]), before)

    @cached_property
    def matrices(self) -> tuple[Floats, Floats]:
        """Estimated counts of the groups (G, K, K) and of all rows (K, K)."""
        algorithm, values = self.algorithm, self.counts[1].values
        whole = None if self.matrix is None else self.matrix[1].values
        if algorithm.whole:
            # Each row is counted once among all rows.
            whole = values[algorithm.groups]
        return self.estimates.counts(values[: algorithm.groups] / algorithm.each, whole)

    @cached_property
    def sums(self) -> tuple[list[ScoreSums], ScoreSums]:
        """Estimated running sums of the groups' scores and of all rows'; of the last declared class."""
        assert self.scores is not None, "asked of a run that counts scores by group"
        planned, statistic = self.scores
        before = None
        if self.scores_before is not None:
            before = self.scores_before[1].values[0], noise_of(self.scores_before[0])
        return sums_of_groups(
            statistic.values,
            cast(ScoresByGroup, planned.build()),
            planned.setting,
            self.matrices,
            self.estimates.deviations,
            before,
        )

    def measured(
        self, names: Sequence[str], classes: Sequence[str], threshold: float | None, *, turned: bool
    ) -> Measured:
        """Return what noisy counts say of each group, of all of them together, and of the differences of each two.

        Parameters
        ----------
        names, classes : sequence of str
            Of the groups, and of the classes as results list them.
        threshold : float or None
            That was chosen by the released scores of all rows.
        turned : bool
            Whether results list the classes the other way round.
        """
        algorithm, setting, estimates = self.algorithm, self.counts[0].setting, self.estimates
        way, drawn = -1 if turned else 1, simulated(self.algorithm, self.counts[0].setting)
        each, together = self.matrices[0][:, ::way, ::way], self.matrices[1][::way, ::way]
        of_group, of_all = estimates.deviations
        noise_of_whole: Noise | None = None
        if algorithm.whole:
            noise_of_whole = drawn
        elif self.matrix is not None:
            noise_of_whole = simulated(cast(NoisySums, self.matrix[0].build()), self.matrix[0].setting)

        def of_each(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
            return np.asarray(drawn(random, shape) / algorithm.each)

        noise, noise_of_all = estimates.noise(of_each, noise_of_whole)
        metrics = metrics_of_noisy_confusion(together, setting.rows, of_all, noise_of_all, classes)
        rates = {
            name: rates_of_noisy_group(counts, of_group, noise, classes)
            for name, counts in zip(names, each, strict=True)
        }
        curves = self._curves(names, turned=turned)
        if threshold is not None:
            rates = {name: rates[name] | curve.at(curve.scores.place(threshold)) for name, curve in curves.items()}
        drawable = ((name, curve.roc()) for name, curve in curves.items())
        return Measured(
            metrics,
            together,
            groups={name: (counts, rates[name].metrics) for name, counts in zip(names, each, strict=True)},
            differences=_differences(rates, lambda one, other: one.less(other, estimates.correlation)),
            many=_of_many(together, classes, noise_of_all, of_all),
            times=algorithm.times * of_all / noise_of(self.counts[0]),
            combined=self.matrix is not None,
            curves={name: curve for name, curve in drawable if curve is not None},
        )

    def _curves(self, names: Sequence[str], *, turned: bool) -> dict[str, GroupCurve]:
        if self.scores is None:
            return {}
        of_groups = (one.turned() if turned else one for one in self.sums[0])
        return {name: GroupCurve(scores) for name, scores in zip(names, of_groups, strict=True)}


_Rates = TypeVar("_Rates")


def _differences(
    rates: Mapping[str, _Rates], less: Callable[[_Rates, _Rates], Metrics]
) -> dict[tuple[str, str], Metrics]:
    """Return for each two groups, in their order, the rates of the first less those of the second."""
    pairs = itertools.combinations(rates, 2)
    return {(group, other): less(rates[group], rates[other]) for group, other in pairs}


def _less(one: Metrics, other: Metrics) -> Metrics:
    """Return the differences of exact rates that both groups have; the number of rows is no rate."""
    return Metrics({name: value - other[name] for name, value in one.items() if name in other and name != "rows"})


# Probabilities that are right are off by nothing; nothing bounds those that are wrong below 1.
_OFF = Scale(guess=1.0, perfect=0.0)


def _of_scores(scores: Sequence[ScoreSums], aim: str | None) -> Measured:
    metrics = Metrics()
    metrics.measure("auc", area_under_curve(scores), margins_of_area(scores), Scale(guess=0.5))
    calibration = None
    if len(scores) == 1:
        calibration = platt(scores[0])
        if aim is not None:
            calibration, at_threshold = choose(scores[0], aim)
            metrics = metrics.merged(at_threshold)
        metrics.measure("calibration_error", *calibration_error(scores[0], calibration), _OFF)
    return Measured(metrics, roc=curves_of(scores), calibration=calibration)


def measure_exactly(
    models: Mapping[str, Sequence[ReleaseRef]], shards: Shards, plan: RunPlan | None = None
) -> Evaluation:
    """Measure released models on public rows: on those held out, or where there are none on the training rows.

    Parameters
    ----------
    models : mapping
        As for :func:`measure`.
    shards : Shards
        Of public rows.
    plan : RunPlan, optional
        It says whether rows are to be measured by group.
    """
    test, measured = shards.held_out, {}
    groups, turned = (None, False) if plan is None else (plan.groups, plan.identity.turned)
    for name, path in models.items():
        maps = maps_of(path)
        own = [test] if test is not None else []
        if test is not None:
            of_model = _measure(maps, test, turned=turned)
        else:
            own = [shard for shard in shards.training if shard.party == name] or list(shards.training)
            each = [_measure(maps, shard, turned=turned) for shard in own]
            of_model = _of_training(each, [shard.rows for shard in own])
        if plan is not None and groups is not None:
            of_model |= Measured(
                Metrics(),
                groups=(exact := _measure_groups(groups, plan.evaluations[0].key, path, own, turned=turned)),
                differences=_differences({name: rates for name, (_, rates) in exact.items()}, _less),
            )
        measured[name] = of_model | Measured(Metrics(diagnostics_of(path[-1])))
    dataset = shards.training[0].dataset
    measured_on = f"{'training' if test is None else 'test'} {dataset.unit.several}"
    classes = dataset.classes if plan is None else plan.identity.classes
    return _evaluation(measured, measured_on, classes, groups)


def _of_training(of: Sequence[Measured], rows: Sequence[int]) -> Measured:
    """Return the metrics of several shards' rows, each under two names, so that nothing is taken for a test."""
    mean_of = {name: float(np.average([one.metrics[name] for one in of], weights=rows)) for name in of[0].metrics}
    counts = [one.confusion for one in of if one.confusion is not None]
    return Measured(
        Metrics(mean_of | {f"train_{name}": value for name, value in mean_of.items()}),
        np.sum(counts, axis=0) if counts else None,
        of[0].roc if len(of) == 1 else (),
        many=of[0].many if len(of) == 1 else None,
    )
