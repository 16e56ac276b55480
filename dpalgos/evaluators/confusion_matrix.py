"""A noisy confusion matrix of private hold-out rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import OneSum, PrivateAlgorithm
from dpalgos.guarantees import RELATIONS, GaussianMu, Guarantee, Loss, Neighbours, Numerics, PureEpsilon, Setting
from dpalgos.mechanisms.discrete_laplace import DiscreteLaplace
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import Statistic
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, null_records
from dpalgos.summation import IntegerNoise

__all__ = ["ConfusionMatrix", "CountedPairs", "LaplaceConfusionMatrix", "predicted_classes"]


def predicted_classes(scores: Floats) -> Ints:
    """Return class indices (m,) from decision values (m, K), or (m, 1) where the sign decides; NaN is class 0."""
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(np.where(np.isfinite(scores), scores, -np.inf).argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class CountedPairs(PrivateAlgorithm, OneSum):
    """Counts of (true class, predicted class) with integer noise; subclasses say which noise, in which norm."""

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS

    @abstractmethod
    def deviation(self, setting: Setting) -> float:
        """Return the standard deviation of the noise of each count, public."""
        raise NotImplementedError

    @abstractmethod
    def law(self, setting: Setting) -> IntegerNoise:
        """Return the noise of each count."""
        raise NotImplementedError

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, exact."""
        self.check(setting)
        return Guarantee(losses=(self.budget,), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact counts."""
        return self.contribution(self.initial(setting), rows, setting).astype(np.float64)

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (K, K)."""
        return (max(setting.classes, 2),) * 2

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the exact counts (K, K), true class by predicted class."""
        classes, _ = self.sum_shape(setting)
        counts = np.zeros(classes * classes, dtype=np.int64)
        for block, labels in rows.blocks():
            scores = np.asarray(block, dtype=np.float64)
            kept = ~null_records(scores, labels, classes)
            cells = np.asarray(labels[kept], dtype=np.int64) * classes + predicted_classes(scores[kept])
            counts += np.bincount(cells, minlength=classes * classes)
        return counts.reshape(classes, classes)

    def result(self, state: Ints, setting: Setting) -> Statistic:
        """Return the noisy counts; negative ones are left as they are, for unbiased sums."""
        return Statistic(values=state.astype(np.float64))


@register("evaluators", "confusion-matrix")
@dataclass(frozen=True, kw_only=True)
class ConfusionMatrix(CountedPairs):
    """Count (true class, predicted class) pairs over the hold-out rows and add integer noise to each count.

    The rows' features are decision values of a released model. Accuracy, precision, recall, F1 and MCC of the noisy
    matrix are post-processing.

    Guarantee
    ---------
    mu-GDP, exact. Replace-one moves one unit from one cell to another, an l2 change of at most sqrt(2); a null record
    is not counted, so replace-special changes one cell by one. The counts are integers, so rounded Gaussian noise of
    scale ``sensitivity / mu`` costs exactly what the Gaussian mechanism does (see ``mechanisms.rounded_gaussian``).

    Parameters
    ----------
    budget : GaussianMu

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    budget: GaussianMu
    source: ClassVar[str] = "Dong, Roth, Su 2022, Theorem 1"
    budgets: ClassVar[tuple[type[Loss], ...]] = (GaussianMu,)
    measured: ClassVar[str] = "counts, l2"
    norm: ClassVar[int] = 2

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each count."""
        return RoundedGaussian(self.sensitivity(setting) / self.budget.mu)

    def deviation(self, setting: Setting) -> float:
        """Return the root of sigma^2 and of 1/12, the variance of rounding."""
        return math.hypot(self.law(setting).sigma, 1 / math.sqrt(12))

    def sensitivity(self, setting: Setting) -> float:
        """Return the root of the number of cells that one record moves by one."""
        return math.sqrt(setting.neighbours.records)


@register("evaluators", "laplace-confusion-matrix")
@dataclass(frozen=True, kw_only=True)
class LaplaceConfusionMatrix(CountedPairs):
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

    budget: PureEpsilon
    source: ClassVar[str] = "Dwork, McSherry, Nissim, Smith 2006, Theorem 1"
    budgets: ClassVar[tuple[type[Loss], ...]] = (PureEpsilon,)
    measured: ClassVar[str] = "counts, l1"
    norm: ClassVar[int] = 1

    def law(self, setting: Setting) -> DiscreteLaplace:
        """Return the noise of each count."""
        return DiscreteLaplace.calibrated(self.budget.epsilon, self.sensitivity(setting))

    def deviation(self, setting: Setting) -> float:
        """Return sqrt(2 p) / (1 - p) with p = exp(-1 / scale)."""
        base = math.exp(-1.0 / self.law(setting).scale)
        return math.sqrt(2.0 * base) / (1.0 - base)

    def sensitivity(self, setting: Setting) -> float:
        """Return the number of cells that one record moves by one."""
        return float(setting.neighbours.records)
