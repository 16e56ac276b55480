"""Charged counts of true and predicted classes over hold-out rows."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.evaluators.noisy_sums import PARTS_OF_A_UNIT, LaplaceNoise, NoisySums, counted_cells
from dpalgos.guarantees import Setting
from dpalgos.models import predicted_classes
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints


@register("evaluators", "confusion-matrix")
@dataclass(frozen=True, kw_only=True)
class ConfusionMatrix(NoisySums):
    """Count (true class, predicted class) pairs over the held-out rows and add integer noise to each count.

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

    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts, l2"

    def sensitivity(self, setting: Setting) -> float:
        """Return how far as many cells as one record moves by one are moved."""
        return self.length(setting.neighbours.records)

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (K, K)."""
        return (max(setting.classes, 2),) * 2

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (K, K), true class by predicted class."""
        classes, _ = shape = self.sum_shape(setting)
        # A score too many is the last class's: for any model, a row is counted in one of the cells.
        predicted = np.minimum(predicted_classes(features), classes - 1)
        return counted_cells(np.asarray(labels, dtype=np.int64) * classes + predicted, parts, shape)


@register("evaluators", "laplace-confusion-matrix")
@dataclass(frozen=True, kw_only=True)
class LaplaceConfusionMatrix(LaplaceNoise, ConfusionMatrix):
    """Count as ``confusion-matrix`` does, with discrete Laplace noise, for models that spend a pure epsilon.

    Guarantee
    ---------
    epsilon-DP, exact: the cells that a record moves change by at most 2 in l1 under replace-one, and by 1 under
    replace-special. Discrete Laplace noise of scale ``sensitivity / epsilon`` on each count.

    Parameters
    ----------
    budget : PureEpsilon

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1;
    Ghosh, Roughgarden, Sundararajan, "Universally utility-maximizing privacy mechanisms", STOC 2009.
    """

    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts, l1"
