"""A noisy confusion matrix of private hold-out rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.evaluators.noisy_sums import GaussianSums, LaplaceSums, NoisySums
from dpalgos.guarantees import Setting
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, null_records


def predicted_classes(scores: Floats) -> Ints:
    """Return class indices (m,) from decision values (m, K), or (m, 1) where the sign decides; NaN is class 0."""
    if scores.shape[1] == 0:
        return np.zeros(len(scores), dtype=np.int64)
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(np.where(np.isfinite(scores), scores, -np.inf).argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class CountedPairs(NoisySums):
    """Counts of (true class, predicted class) with integer noise; subclasses say which noise, in which norm."""

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
            # A score too many is the last class's: whatever the model, a row is counted in one of the cells.
            predicted = np.minimum(predicted_classes(scores[kept]), classes - 1)
            cells = np.asarray(labels[kept], dtype=np.int64) * classes + predicted
            counts += np.bincount(cells, minlength=classes * classes)
        return counts.reshape(classes, classes)


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
    scale ``sensitivity / mu`` costs exactly what the Gaussian mechanism does (see ``mechanisms.rounded_gaussian``).

    Parameters
    ----------
    budget : GaussianMu

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

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

    measured: ClassVar[str] = "counts, l1"

    def sensitivity(self, setting: Setting) -> float:
        """Return the number of cells that one record moves by one."""
        return float(setting.neighbours.records)
