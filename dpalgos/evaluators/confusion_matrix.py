"""A noisy confusion matrix of private hold-out rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import OneSum, PrivateAlgorithm
from dpalgos.guarantees import RELATIONS, GaussianMu, Guarantee, Loss, Neighbours, Numerics, Setting
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import Statistic
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, null_records

__all__ = ["ConfusionMatrix", "predicted_classes"]


def predicted_classes(scores: Floats) -> Ints:
    """Return class indices (m,) from decision values (m, K), or (m, 1) where the sign decides; NaN is class 0."""
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(np.where(np.isfinite(scores), scores, -np.inf).argmax(axis=1), dtype=np.int64)


@register("evaluators", "confusion-matrix")
@dataclass(frozen=True, kw_only=True)
class ConfusionMatrix(PrivateAlgorithm, OneSum):
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
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    budgets: ClassVar[tuple[type[Loss], ...]] = (GaussianMu,)
    measured: ClassVar[str] = "counts, l2"
    norm: ClassVar[int] = 2

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, exact."""
        self.check(setting)
        return Guarantee(losses=(self.budget,), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each count."""
        return RoundedGaussian(self.sensitivity(setting) / self.budget.mu)

    def sensitivity(self, setting: Setting) -> float:
        """Return the root of the number of cells that one record moves by one."""
        return math.sqrt(setting.neighbours.records)

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
        for scores, labels in rows.blocks():
            kept = ~null_records(scores, labels, classes)
            cells = np.asarray(labels[kept], dtype=np.int64) * classes + predicted_classes(scores[kept])
            counts += np.bincount(cells, minlength=classes * classes)
        return counts.reshape(classes, classes)

    def result(self, state: Ints, setting: Setting) -> Statistic:
        """Return the noisy counts; negative ones are left as they are, for unbiased sums."""
        return Statistic(values=state.astype(np.float64))
