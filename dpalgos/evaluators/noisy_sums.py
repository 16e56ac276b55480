"""Charged counts and sums over private rows: of models on hold-out rows, and of a table before it has a schema."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import (
    ApproximateAlgorithm,
    NeighbouringPair,
    OneSum,
    PrivateAlgorithm,
    PureAlgorithm,
    Refused,
    Work,
    one_row_apart,
)
from dpalgos.guarantees import RELATIONS, GaussianMu, Loss, Neighbours, Numerics, Setting
from dpalgos.integer_sums import portions
from dpalgos.mechanisms.distributions import DiscreteLaplace, PartitionSelection, RoundedGaussian
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.models import Statistic, predicted_classes
from dpalgos.parameters import COUNT, NATURAL, POSITIVE, ParameterError, at_least
from dpalgos.registry import register
from dpalgos.rows import NULL_LABEL, Array, ArrayRows, Floats, Ints, NoiseSource, Rows, null_records


@dataclass(frozen=True, kw_only=True)
class NoisySums(PrivateAlgorithm, OneSum):
    """Sums over rows, exact in integers, with noise; :class:`GaussianSums` and :class:`LaplaceSums` say which noise.

    Where the unit is a person with k rows, each of these adds ⌊U/k⌋ times what a record's row adds, U the integer that
    stands for one: together a point of the convex hull of zero and what single rows may add, so that sums move by no
    more than one row moves them (:func:`~dpalgos.integer_sums.row_weights`).

    Attributes
    ----------
    unit : int
        What one is in the integers that are summed, of single rows.
    """

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    numerics: ClassVar[Numerics] = Numerics.EXACT
    unit: ClassVar[int] = 1
    fewest_classes: ClassVar[int] = 2
    """1 where rows may have real labels."""

    @abstractmethod
    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums, in the norm of the noise."""

    @abstractmethod
    def deviation(self, setting: Setting) -> float:
        """Return the standard deviation of the noise of each sum, public."""

    def units(self, setting: Setting) -> int:
        """Return U: for people so fine that ⌊U/k⌋ is U/k up to a thousandth."""
        if self.unit > 1 or setting.rows_per_person == 1:
            return self.unit
        return 1 << (10 + (setting.rows_per_person - 1).bit_length())

    @abstractmethod
    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact sums of a block of rows, none of them a null record, each of which adds so many units."""

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact sums; null records add nothing."""
        total = np.zeros(self.sum_shape(setting), dtype=np.int64)
        for block, labels, shares in rows.blocks():
            numbers = np.asarray(block, dtype=np.float64)
            real = ~null_records(numbers, labels, max(setting.classes, self.fewest_classes))
            parts = portions(self.units(setting), shares, len(labels))
            total += self.of_block(numbers[real], np.asarray(labels)[real], parts[real], setting)
        return total

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sums."""
        return self.contribution(self.initial(setting), rows, setting).astype(np.float64) / self.units(setting)

    def result(self, state: Ints, setting: Setting) -> Statistic:
        """Return the noisy sums; negative ones are left as they are, for unbiased totals."""
        return Statistic(values=state.astype(np.float64) / self.units(setting))


@dataclass(frozen=True, kw_only=True)
class GaussianSums(NoisySums):
    """Sums with rounded Gaussian noise: mu-GDP for the l2 sensitivity (see ``mechanisms.distributions``)."""

    budget: GaussianMu
    source: ClassVar[str] = "Dong, Roth, Su 2022, Theorem 1"
    budgets: ClassVar[tuple[type[Loss], ...]] = (GaussianMu,)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum, in integers."""
        return RoundedGaussian.calibrated(self.budget, self.units(setting) * self.sensitivity(setting))

    def deviation(self, setting: Setting) -> float:
        """Return the root of sigma^2 and of 1/12, the variance of rounding, in units of the sums."""
        return math.hypot(self.distribution(setting).sigma, 1 / math.sqrt(12)) / self.units(setting)


@dataclass(frozen=True, kw_only=True)
class LaplaceSums(PureAlgorithm, NoisySums):
    """Sums with discrete Laplace noise: epsilon-DP for the l1 sensitivity (see ``mechanisms.discrete_laplace``)."""

    source: ClassVar[str] = "Dwork, McSherry, Nissim, Smith 2006, Theorem 1"
    norm: ClassVar[int] = 1

    def distribution(self, setting: Setting) -> DiscreteLaplace:
        """Return the noise of each sum, in integers."""
        return DiscreteLaplace.calibrated(self.budget.epsilon, self.units(setting) * self.sensitivity(setting))

    def deviation(self, setting: Setting) -> float:
        """Return sqrt(2 p) / (1 - p) with p = exp(-1 / scale), in units of the sums."""
        inverse = 1.0 / self.distribution(setting).scale
        return math.sqrt(2.0 * math.exp(-inverse)) / -math.expm1(-inverse) / self.units(setting)


def counted_cells(cells: Ints, parts: Ints, shape: tuple[int, ...]) -> Ints:
    """Return how often each cell of an array of this shape occurs, the i-th time for so many units."""
    # Sums of whole numbers, exact in float64 below 2^53.
    return np.bincount(cells.ravel(), parts, math.prod(shape)).astype(np.int64).reshape(shape)


@dataclass(frozen=True, kw_only=True)
class CountedPairs(NoisySums):
    """Counts of (true class, predicted class) with integer noise; subclasses say which noise, in which norm."""

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (K, K)."""
        return (max(setting.classes, 2),) * 2

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (K, K), true class by predicted class."""
        classes, _ = shape = self.sum_shape(setting)
        # A score too many is the last class's: whatever the model, a row is counted in one of the cells.
        predicted = np.minimum(predicted_classes(features), classes - 1)
        return counted_cells(np.asarray(labels, dtype=np.int64) * classes + predicted, parts, shape)


@register("evaluators", "confusion-matrix")
@dataclass(frozen=True, kw_only=True)
class ConfusionMatrix(CountedPairs, GaussianSums):
    """Count (true class, predicted class) pairs over the hold-out rows and add integer noise to each count.

    The rows' features are decision values of a released model. Accuracy, precision, recall, F1 and MCC of the noisy
    matrix are post-processing.

    Guarantee
    ---------
    mu-GDP, exact. Replace-one moves one unit from one cell to another, an l2 change of at most sqrt(2); a null record
    is not counted, so replace-special changes one cell by one. The counts are integers, so rounded Gaussian noise of
    scale ``sensitivity / mu`` costs exactly what the Gaussian mechanism does (see ``mechanisms.distributions``).

    Parameters
    ----------
    budget : GaussianMu

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    people: ClassVar[str] = "each of k rows adds ⌊U/k⌋ of the U units that one record adds"
    measured: ClassVar[str] = "counts, l2"

    def sensitivity(self, setting: Setting) -> float:
        """Return the root of the number of cells that one record moves by one."""
        return math.sqrt(setting.neighbours.records)


@register("evaluators", "laplace-confusion-matrix")
@dataclass(frozen=True, kw_only=True)
class LaplaceConfusionMatrix(CountedPairs, LaplaceSums):
    """Count (true class, predicted class) pairs over the hold-out rows and add discrete Laplace noise to each count.

    For models whose training spends a pure epsilon: measuring them spends no delta either.

    Guarantee
    ---------
    epsilon-DP, exact. Replace-one moves one unit from one cell to another, an l1 change of at most 2; a null record is
    not counted, so replace-special changes one cell by one. Discrete Laplace noise of scale ``sensitivity / epsilon``
    on each count (see ``mechanisms.discrete_laplace``).

    Parameters
    ----------
    budget : PureEpsilon

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1;
    Ghosh, Roughgarden, Sundararajan, "Universally utility-maximizing privacy mechanisms", STOC 2009.
    """

    people: ClassVar[str] = "each of k rows adds ⌊U/k⌋ of the U units that one record adds"
    measured: ClassVar[str] = "counts, l1"

    def sensitivity(self, setting: Setting) -> float:
        """Return the number of cells that one record moves by one."""
        return float(setting.neighbours.records)


def edges(bins: int, scale: float) -> Floats:
    """Return the scores (bins - 1,) between bins of equal width on the logistic scale; the middle one of them is 0.

    Parameters
    ----------
    bins : int
    scale : float
        By which scores are divided before they are squashed.
    """
    shares = np.arange(1, bins) / bins
    return scale * np.array([math.log(share / (1.0 - share)) for share in shares.tolist()])


@register("evaluators", "score-distribution")
@dataclass(frozen=True, kw_only=True)
class ScoreDistribution(GaussianSums):
    """Release how many rows of each class, and of the others, have a score up to each of some public edges.

    Scores are squashed by the logistic function first, so that bins on [0, 1] need no range learnt from the rows. A row
    lies above an edge where its score is larger, as it is predicted by a threshold there. For each of the K scores (one
    for a binary problem) there are two lines of bins, of rows of the class and of the others, and each line goes
    through a factor of its own (:mod:`dpalgos.mechanisms.running_sums`).

    Guarantee
    ---------
    mu-GDP, exact. Let c be the first column of the integer factor, D = max |c_i - c_j|^2 over its columns. A row stands
    in one cell of one of the two lines of each score.

    *replace-one*, K = 1: two rows of different labels stand in different lines, which move by a column each: at most
    **sqrt(2) |c|**, attained in the first bins. Rows of one label move one line by at most sqrt(D) <= sqrt(2) |c|.
    K > 1: of labels a and b, the scores a and b have the two rows in different lines, 2 |c|^2 each; in the K - 2 others
    both rows are of the other classes and stand in one line, at most D each. So **sqrt(4 |c|^2 + (K - 2) D)**, attained
    for every choice of bins; two rows of one label move at most K D, less since D <= 2 |c|^2, and a row against a null
    record K |c|^2, less since D >= |c|^2.

    *replace-special*: against a null record, which is not counted, **sqrt(K) |c|**.

    Rounded Gaussian noise of scale ``sensitivity / mu`` on each integer (see ``mechanisms.distributions``).

    Parameters
    ----------
    budget : GaussianMu
    bins : int
        Even, so that 0, where a binary prediction changes, is an edge; the area is exact up to ties within a bin.
    scale : float
        By which scores are divided before they are squashed, positive. Log-odds of a class of 4 % lie around -3, and
        1 leaves most of them in one of 32 bins; 2 spreads them over eight.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    bins: int = field(default=32, metadata=at_least(2))
    scale: float = field(default=1.0, metadata=POSITIVE)
    people: ClassVar[str] = "each of k rows adds ⌊U/k⌋ of the U units that one record adds"
    measured: ClassVar[str] = "running sums through the factor, l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins % 2:
            raise ParameterError(f"bins is {self.bins}; it must be even, so that a score of 0 is an edge")
        self.sums()

    def sums(self) -> RunningSums:
        """Return what each line is released through."""
        return RunningSums(bins=self.bins)

    @staticmethod
    def _scores(setting: Setting) -> int:
        return 1 if setting.classes <= 2 else setting.classes

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the encoded lines, in l2."""
        scores = self._scores(setting)
        if setting.neighbours is not Neighbours.REPLACE_ONE:
            return self.sums().sensitivity(entered=scores)
        return self.sums().sensitivity(entered=2 if scores == 1 else 4, moved=max(scores - 2, 0))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (scores, 2, bins)."""
        return self._scores(setting), 2, self.bins

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return rows of two classes with the lowest scores; where they share a line, in its bins farthest apart."""
        known = edges(self.bins, self.scale)
        places = np.concatenate([[known[0] - 1.0], (known[:-1] + known[1:]) / 2.0, [known[-1] + 1.0]])
        left, right = np.full((2, setting.dimension), places[0])
        right[2:] = places[self._farthest()]
        return one_row_apart(setting, left, right, labels=(0, 1))

    def _farthest(self) -> int:
        """Return the bin whose column is farthest from the first one's."""
        columns = self.sums().encode(np.eye(self.bins, dtype=np.int64))
        return int(np.square(columns - columns[0]).sum(axis=1).argmax())

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (scores, 2, bins): rows of the other classes, rows of the class."""
        scores = self._scores(setting)
        truth = np.asarray(labels, dtype=np.int64)
        # A score that the model does not have is zero.
        known = np.pad(features, ((0, 0), (0, max(scores - features.shape[1], 0))))[:, :scores]
        bins = np.searchsorted(edges(self.bins, self.scale), known)
        positive = truth[:, None] == (1 if scores == 1 else np.arange(scores))
        cells = (2 * np.arange(scores) + positive) * self.bins + bins
        return counted_cells(cells, np.repeat(parts, scores), self.sum_shape(setting))

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact counts through the factor of each line."""
        return self.sums().encode(super().contribution(state, rows, setting))

    def result(self, state: Ints, setting: Setting) -> Statistic:
        """Return the noisy running sums (scores, 2, bins), of rows up to the upper edge of each bin."""
        return Statistic(values=self.sums().decode(state) / self.units(setting))


QUANTILE = 1.6448536269514722
"""Of the normal distribution: one-sided, 95 %."""


@register("evaluators", "discordance")
@dataclass(frozen=True, kw_only=True)
class Discordance(ConfusionMatrix):
    """Count the hold-out rows that one of two models alone gets right (McNemar's discordant pairs), with integer noise.

    The rows' features are the decision values of the first model, and beside them those of the second: ``dimension //
    2`` columns, and the rest. A model without columns says class 0.

    The difference of the two counts is that of the models' correct answers. Under replace-one it has the noise that
    this difference would need by itself: a row adds -1, 0 or 1 to it, so that its sensitivity is 2 and its noise 2 /
    mu; here each count has sqrt(2) / mu, and the difference sqrt(2) times that. What is gained is their sum, which says
    how much of a difference the draw of the rows explains. Under replace-special, where the difference alone would need
    1 / mu, the price of that is a factor of sqrt(2).

    Guarantee
    ---------
    mu-GDP, exact. Replace-one takes one from one of two counts at most and adds one to one at most, an l2 change of at
    most sqrt(2); a null record is not counted, so replace-special changes one count by one. Rounded Gaussian noise of
    scale ``sensitivity / mu`` on each count, as for :class:`~dpalgos.evaluators.noisy_sums.ConfusionMatrix`.

    Parameters
    ----------
    budget : GaussianMu

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1; McNemar, "Note on the sampling error
    of the difference between correlated proportions or percentages", Psychometrika 12 (1947).
    """

    people: ClassVar[str] = "each of k rows adds ⌊U/k⌋ of the U units that one record adds"

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (2,): rows that the first model alone gets right, rows that the second alone does."""
        return (2,)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row of class 1, which the second model alone gets right, against one of class 0, the first's."""
        width = setting.dimension // 2
        scores = np.concatenate([_says(0, width), _says(1, setting.dimension - width)]) / 2
        return one_row_apart(setting, scores, scores, labels=(1, 0))

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (2,)."""
        width, truth = setting.dimension // 2, np.asarray(labels, dtype=np.int64)
        first, second = (predicted_classes(part) == truth for part in (features[:, :width], features[:, width:]))
        return np.array([parts[first & ~second].sum(), parts[second & ~first].sum()], dtype=np.int64)


def _says(index: int, columns: int) -> Floats:
    """Return decision values of so many columns that say class 0 or 1."""
    return np.full(1, 2.0 * index - 1.0) if columns == 1 else np.eye(1, columns, index)[0]


def accuracy_gain(counts: Floats, rows: int, deviation: float) -> tuple[float, float]:
    """Return by how much the second model is more accurate than the first, and the 95 % margin of that.

    Post-processing. The margin is one-sided: with the normal approximation, a second model that is no better has a gain
    above it with a probability of at most 1/20, over the noise and the draw of the rows. The variance of a row's
    difference is at most the share of discordant rows, which is taken at its own upper 95 % limit.

    Parameters
    ----------
    counts : array (2,)
        Noisy or exact.
    rows : int
        That were counted, public.
    deviation : float
        Standard deviation of the noise of each count; 0 for exact ones.

    Returns
    -------
    (float, float)
    """
    noise = math.sqrt(2.0) * deviation
    discordant = min(max(float(counts.sum()) + QUANTILE * noise, 0.0), float(rows))
    return float(counts[1] - counts[0]) / rows, QUANTILE * math.sqrt(noise**2 + discordant) / rows


_GRID = 1 << 10
_UNIT = _GRID * _GRID
SQUARES_WEIGHT = 2
"""The squared errors' sum is the smallest in a good model, and gets twice the precision."""


@register("evaluators", "laplace-error-sums")
@dataclass(frozen=True, kw_only=True)
class LaplaceErrorSums(LaplaceSums):
    """Sum the errors of a regression over the hold-out rows, with discrete Laplace noise.

    For models whose training spends a pure epsilon: measuring them spends no delta either. (With Gaussian noise,
    :class:`~dpalgos.evaluators.error_distribution.ErrorDistribution` measures them.)

    The rows' features are the predictions p of a released model, their labels the targets. Both are clipped to the
    declared range [low, high]; with t the target mapped to [-1, 1] and a = |p - t| / (high - low) in [0, 1], a row adds

        s = (1, 2 a^2, a, t, t^2),

    and a null record nothing. Mean squared error, mean absolute error and R^2 of the clipped predictions follow from
    the sums. All is in integers from the row on: A = round(G a) and T = round(G t) with G = 1024, and the row adds
    (G^2, 2 A^2, G A, G T, T^2), which is s exactly at a = A / G and t = T / G, both still in their ranges. A person's
    row has a coarser grid, B = floor(G / sqrt(k)) in the place of G: it adds the part B^2 / G^2 <= 1 / k of s at A / B
    and T / B, so that a person's rows together stay in the convex hull.

    Guarantee
    ---------
    epsilon-DP, exact: with d = |t - t'| and m = |t + t'|, so that d + m <= 2, two real records are at most 2 + 1 + d (1
    + m) <= 3 + d (3 - d) <= 5.25 apart in l1, and a record and a null record at most 6, attained by a = t = 1. So **6**
    under both relations, since null records occur under replace-one too. Discrete Laplace noise of scale ``6 /
    epsilon``.

    Parameters
    ----------
    budget : PureEpsilon
    label_range : (float, float)
        Declared, low below high, in the unit of the target.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1.
    """

    label_range: Sequence[float] = (0.0, 1.0)
    unit: ClassVar[int] = _UNIT
    fewest_classes: ClassVar[int] = 1
    people: ClassVar[str] = "each of k rows adds the part B²/G² ≤ 1/k of what one record may add"
    measured: ClassVar[str] = "sums of errors, l1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.label_range) != 2 or not -math.inf < self.label_range[0] < self.label_range[1] < math.inf:
            raise ParameterError(f"label_range is {list(self.label_range)}; it must be two finite numbers, low < high")
        object.__setattr__(self, "label_range", tuple(float(end) for end in self.label_range))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (5,)."""
        return (5,)

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact sums (5,) in integers."""
        low, high = self.label_range
        target = (np.clip(np.asarray(labels, dtype=np.float64), low, high) - low) / (high - low)
        # Fractions of the range, clipped before anything can overflow; a product with its reciprocal could.
        predicted = (np.clip(features[:, :1].sum(axis=1), low, high) - low) / (high - low)
        # Roots of whole numbers below 2^21 are never rounded up to the next whole number.
        grid = np.floor(np.sqrt(parts)).astype(np.int64)
        error = np.rint(grid * np.abs(predicted - target)).astype(np.int64)
        centred = np.rint(grid * (2.0 * target - 1.0)).astype(np.int64)
        sums = (grid * grid, SQUARES_WEIGHT * error * error, grid * error, grid * centred, centred * centred)
        return np.array([each.sum() for each in sums], dtype=np.int64)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums: most against a null record, which occurs under both relations."""
        return 6.0

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the largest error at the upper end of the range against a null record."""
        low, high = self.label_range
        null = NULL_LABEL if setting.classes > 1 else math.nan
        row = np.full(setting.dimension, low)
        return one_row_apart(setting, row, row, labels=(high, null))


@dataclass(frozen=True, kw_only=True)
class BinCounts(NoisySums):
    """Counts of the rows in each of some public bins of each column; subclasses say which noise, in which norm.

    A row's features are the numbers of its bins, one a column; what is no such number is counted nowhere.

    Parameters
    ----------
    bins : int
        At least 2.
    columns : int or None
        The first so many features; all where None.
    """

    bins: int = field(default=2, metadata=at_least(2))
    columns: int | None = None
    fewest_classes: ClassVar[int] = 1

    def check(self, setting: Setting) -> None:
        """Raise where there are not so many columns."""
        super().check(setting)
        if not 1 <= self._columns(setting) <= setting.dimension:
            raise ParameterError(f"columns is {self.columns}; it must lie between 1 and {setting.dimension}")

    @abstractmethod
    def threshold(self, setting: Setting) -> float:
        """Return what a count must exceed to be told from none: noise in all bins of a column does with 1 % at most."""

    def _columns(self, setting: Setting) -> int:
        return setting.dimension if self.columns is None else self.columns

    def moved(self, setting: Setting) -> int:
        """Return the number of counts that one record moves by one: two a column, one against a null record."""
        return setting.neighbours.records * self._columns(setting)

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (columns, bins)."""
        return self._columns(setting), self.bins

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row in the first bin of every column against one in the second: two counts a column move."""
        return one_row_apart(setting, np.zeros(setting.dimension), np.ones(setting.dimension))

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (columns, bins)."""
        columns, _ = shape = self.sum_shape(setting)
        bins = features[:, :columns]
        inside = (bins >= 0) & (bins < self.bins)
        cells = np.where(inside, bins, 0).astype(np.int64) + self.bins * np.arange(columns)[None, :]
        return counted_cells(cells[inside], np.broadcast_to(parts[:, None], inside.shape)[inside], shape)


@register("evaluators", "bin-counts")
@dataclass(frozen=True, kw_only=True)
class GaussianBinCounts(BinCounts, GaussianSums):
    """Count, for each column, how many rows lie in each of some public bins, and add rounded Gaussian noise.

    Guarantee
    ---------
    mu-GDP, exact. A row is counted at most once in each of d columns: replace-one takes one count away and adds one in
    each, an l2 change of at most sqrt(2 d); a null record is not counted, so replace-special changes at most d counts
    by one, sqrt(d). A person's rows add a point of the convex hull of zero and what records add, so that two persons
    are no further apart. Rounded Gaussian noise of scale ``sensitivity / mu`` on each count (see
    ``mechanisms.distributions``).

    Parameters
    ----------
    budget : GaussianMu
    bins : int
        At least 2.
    columns : int or None
        The first so many features; all where None.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    people: ClassVar[str] = "each of k rows adds ⌊U/k⌋ of the U units that one record adds"
    measured: ClassVar[str] = "counts, l2"

    def sensitivity(self, setting: Setting) -> float:
        """Return the root of the number of counts that one record moves by one."""
        return math.sqrt(self.moved(setting))

    def threshold(self, setting: Setting) -> float:
        """Return the (1 - 0.01 / bins) point of the noise: round(g) > t is g > t - 1/2, and so has at most 0.01 / bins.

        A union bound over the empty bins of a column.
        """
        sigma = self.distribution(setting).sigma
        return (sigma * -float(scipy.special.ndtri(_BY_NOISE / self.bins)) + 0.5) / self.units(setting)


@register("evaluators", "laplace-bin-counts")
@dataclass(frozen=True, kw_only=True)
class LaplaceBinCounts(BinCounts, LaplaceSums):
    """Count, for each column, how many rows lie in each of some public bins, and add discrete Laplace noise.

    Where the account has no delta that Gaussian noise could be stated at.

    Guarantee
    ---------
    epsilon-DP, exact. A row is counted at most once in each of d columns: replace-one takes one count away and adds
    one in each, an l1 change of at most 2 d; a null record is not counted, so replace-special changes at most d counts
    by one. Discrete Laplace noise of scale ``sensitivity / epsilon`` on each count.

    Parameters
    ----------
    budget : PureEpsilon
    bins : int
        At least 2.
    columns : int or None
        The first so many features; all where None.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1.
    """

    people: ClassVar[str] = "each of k rows adds ⌊U/k⌋ of the U units that one record adds"
    measured: ClassVar[str] = "counts, l1"

    def sensitivity(self, setting: Setting) -> float:
        """Return the number of counts that one record moves by one."""
        return float(self.moved(setting))

    def threshold(self, setting: Setting) -> float:
        """Return ``scale ln(bins / 0.01)``: P(k > t) <= p^t = exp(-t / scale) for whole t, p = exp(-1 / scale).

        A union bound over the empty bins of a column.
        """
        return self.distribution(setting).scale * math.log(self.bins / _BY_NOISE) / self.units(setting)


# With which probability noise in any empty bin of a column passes its threshold, at most.
_BY_NOISE = 0.01


def occupied(counts: Floats, threshold: float) -> tuple[int, int] | None:
    """Return the first and the last bin of a column that hold rows, from its noisy counts: those above a threshold.

    Post-processing.

    Parameters
    ----------
    counts : array (bins,)
    threshold : float
        See :meth:`BinCounts.threshold`.

    Returns
    -------
    (int, int) or None
        None where no bin passes.
    """
    passing = np.flatnonzero(counts > threshold)
    return (int(passing[0]), int(passing[-1])) if len(passing) else None


@register("evaluators", "key-selection")
@dataclass(frozen=True, kw_only=True)
class KeySelection(ApproximateAlgorithm):
    """Release which keys each column holds, as far as enough rows hold them: optimal partition selection.

    A row has one key a column: ``width`` bytes, each a feature of that many 255ths, or none where all are zero. What
    cannot be guessed beforehand, a key, is released only where so many rows hold it that one row hardly decides.

    Guarantee
    ---------
    (epsilon, delta)-DP, exact. A record holds one key a column, so neighbours differ in the counts of m keys by one at
    most: m = 2 d in d columns under replace-one (in each, one key loses a row and another gains one), m = d under
    replace-special (a null record holds none). Whether a key is released is a coin of its own, whose probability
    depends on that key's count alone and which is (epsilon / m, delta / m)-DP for a count that changes by one
    (:class:`dpalgos.mechanisms.distributions.PartitionSelection`); a key that occurs in one of the neighbours
    only is one of the m, its count being 0 in the other, where it is never released. All other coins have the same
    distribution. The m coins are independent, so together they are (epsilon, delta)-DP by basic composition.

    The number of keys is public (``most`` a column): of more, the first in order of their bytes are kept.

    Parameters
    ----------
    budget : ApproximateDP
    columns : int
        How many columns; together ``columns * width`` features.
    width : int or None
        Bytes of a key; all features from ``first`` on, shared equally, where None.
    first : int
        The feature at which they begin.
    most : int
        Keys of a column.

    References
    ----------
    Desfontaines, Voss, Gipson, Mandayam, "Differentially private partition selection", PoPETs 2022(1), Theorem 2.
    """

    columns: int = field(default=1, metadata=COUNT)
    width: int | None = None
    first: int = field(default=0, metadata=NATURAL)
    most: int = field(default=256, metadata=COUNT)
    source: ClassVar[str] = "Desfontaines et al. 2022, Theorem 2"
    people: ClassVar[str] = Refused("a person's rows may hold several keys of one column")
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    numerics: ClassVar[Numerics] = Numerics.EXACT
    audited_rows: ClassVar[int] = 64
    measured: ClassVar[str] = "counts, l1"
    norm: ClassVar[int] = 1

    def check(self, setting: Setting) -> None:
        """Raise where the columns do not fit the features, or the budget is beyond what can be drawn."""
        super().check(setting)
        width = self._width(setting)
        if width < 1 or self.first + self.columns * width > setting.dimension:
            raise ParameterError(
                f"{setting.dimension} features cannot be {self.columns} columns of equal width from feature "
                f"{self.first} on"
            )
        self.distribution(setting)

    def _width(self, setting: Setting) -> int:
        if self.width is not None:
            return self.width
        whole = (setting.dimension - self.first) % self.columns == 0
        return (setting.dimension - self.first) // self.columns if whole else 0

    def work(self, setting: Setting) -> Work:
        """Return that of one pass."""
        return Work(small_operations=float(setting.rows) * self.columns)

    def sensitivity(self, setting: Setting) -> float:
        """Return m: how many counts one record changes by one."""
        return float(setting.neighbours.records * self.columns)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the exact counts, keys of the same first byte together: of a size that no row decides."""
        counts = np.zeros((self.columns, 256))
        for column, counter in enumerate(self._counted([rows], setting)):
            for key, count in counter.items():
                counts[column, key[0]] += count
        return counts

    def distribution(self, setting: Setting) -> PartitionSelection:
        """Return by which probabilities keys are released."""
        changes = self.sensitivity(setting)
        # Both are rounded down by a unit, so that m of them are within the budget.
        epsilon, delta = (math.nextafter(part / changes, 0.0) for part in (self.budget.epsilon, self.budget.delta))
        return PartitionSelection(epsilon, delta)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return rows of two keys a column, about half of the time released, one row changing from one to the other.

        Fewer where there are not so many rows.
        """
        one, other = np.zeros((2, setting.dimension))
        one[self.first :], other[self.first :] = 1.0, 0.5
        pair = one_row_apart(setting, one, other)
        crowd = min(self.distribution(setting).likely(), (setting.sizes[pair.party] + 1) // 2)

        def side(rows: ArrayRows) -> ArrayRows:
            features, labels = rows.features.copy(), rows.labels.copy()
            features[1:crowd], features[crowd : 2 * crowd - 1] = one, other
            labels[1 : 2 * crowd - 1] = 0
            return ArrayRows(features, labels)

        return NeighbouringPair(side(pair.left), side(pair.right), pair.party)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Statistic:
        """Return the bytes of the released keys, (columns, most, width), in order; -1 where there is none."""
        self.check(setting)
        released = np.full((self.columns, self.most, self._width(setting)), -1.0)
        for column, counter in enumerate(self._counted(parties, setting)):
            for place, key in enumerate(self._chosen(counter, setting, noise, f"keys-{column}")):
                released[column, place] = list(key)
        return Statistic(values=released)

    def _counted(self, parties: Sequence[Rows], setting: Setting) -> list[Counter[bytes]]:
        width = self._width(setting)
        held = slice(self.first, self.first + self.columns * width)
        counts: list[Counter[bytes]] = [Counter() for _ in range(self.columns)]
        for rows in parties:
            for block, labels, _ in rows.blocks():
                numbers = np.asarray(block, dtype=np.float64)
                kept = numbers[~null_records(numbers, labels, setting.classes)][:, held]
                keys = np.rint(255.0 * np.clip(kept, 0.0, 1.0)).astype(np.uint8).reshape(len(kept), self.columns, width)
                for column, counter in enumerate(counts):
                    counter.update(key.tobytes() for key in keys[:, column] if key.any())
        return counts

    def _chosen(self, counter: Counter[bytes], setting: Setting, noise: NoiseSource, step: str) -> list[bytes]:
        if not counter:
            return []
        keys = sorted(counter)
        exact = np.array([counter[key] for key in keys], dtype=np.int64)
        # What the noise hides is which keys there are as much as how often.
        hidden = np.concatenate([np.frombuffer(b"".join(keys), dtype=np.uint8).astype(np.int64), exact])
        selected = self.distribution(setting).select(exact, noise.stream(step, hidden))
        return [keys[place] for place in np.flatnonzero(selected)[: self.most]]
