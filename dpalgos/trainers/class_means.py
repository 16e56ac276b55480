"""The linear discriminant of noisy class means, from one noisy sum."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import GaussianAlgorithm, OneSum
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.integer_sums import ClassSums
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.neighbouring import NeighbouringPair, antipodal_pair
from dpalgos.parameters import SHARE
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows
from dpalgos.summation import grid


def linear_model(weights: Floats, intercept: Floats) -> LinearModel:
    """Return the model of one score a class; of two classes, that of the difference of their scores."""
    if len(weights) == 2:
        return LinearModel(weights=np.diff(weights, axis=0), intercept=np.diff(intercept))
    return LinearModel(weights=weights, intercept=intercept)


@dataclass(frozen=True, kw_only=True)
class ClassSumTrainer(GaussianAlgorithm):
    """What trainers that release the sums of each class have in common.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    count_weight : float, optional
        a of the constant that counts rows, in [0, 1]; by default 1 under replace-one, where it is free, and ¼ under
        replace-special, where it costs 3 %.
    """

    count_weight: float | None = field(default=None, metadata=SHARE)

    measured: ClassVar[str] = "the rows of each class and their number times a, summed, in l2"

    def check(self, setting: Setting) -> None:
        """Raise for real labels."""
        super().check(setting)
        if setting.classes < 2:
            raise ParameterError(
                "class means need classes; real labels need another trainer: sufficient-statistics, or noisy-gd with "
                "loss=squared"
            )

    @abstractmethod
    def class_sums(self, setting: Setting) -> ClassSums:
        """Return the sums, on the grid of this trainer's noise."""

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums, in units of the rows."""
        return self.class_sums(setting).sensitivity(setting.neighbours) / self.class_sums(setting).scale

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sums, in units of the rows."""
        return np.asarray(self.class_sums(setting).total(rows, setting) / self.class_sums(setting).scale)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return antipodal rows of one class."""
        return antipodal_pair(setting)

    def _count_weight(self, setting: Setting) -> float:
        if self.count_weight is not None:
            return self.count_weight
        return 1.0 if setting.neighbours is Neighbours.REPLACE_ONE else 0.25


@register("trainers", "class-means")
@dataclass(frozen=True, kw_only=True)
class ClassMeansDiscriminant(ClassSumTrainer, OneSum):
    """Add up the rows of each class with noise once; score x by x·m_c − ½‖m_c‖².

    The fewest numbers that tell classes apart, and so the least noise: at small budgets nothing beats it on features in
    which classes are round (:class:`~dpalgos.features.whitening.PublicWhitening`).

    Guarantee
    ---------
    The budget: one Gaussian mechanism on an exact sum of integers whose sensitivity is
    :meth:`~dpalgos.integer_sums.ClassSums.sensitivity`: 2 under replace-one (two rows of a class may be antipodal), and
    √(1 + a²) under replace-special. Everything after the sum is post-processing.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    count_weight : float, optional
        a of the constant that counts rows, in [0, 1]; by default 1 under replace-one, where it is free, and ¼ under
        replace-special, where it costs 3 %.

    References
    ----------
    Fisher 1936; private class means as classifiers in Wahdany, Jagielski, Dziedzic, Boenisch 2024 (prototypes).
    """

    source: ClassVar[str] = "ours; noisy class means, after Fisher 1936"
    people: ClassVar[str] = (
        "each of k rows adds c = ⌊a/k⌋ and at most R c/a: together a point of the hull of single rows"
    )

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of the sum."""
        return RoundedGaussian.calibrated(self.budget, self.class_sums(setting).sensitivity(setting.neighbours))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return one row a class, of the features and the count."""
        return self.class_sums(setting).shape(setting)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact sums."""
        return self.class_sums(setting).total(rows, setting)

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Return the discriminant."""
        means = self.class_sums(setting).means(state, self.law(setting).sigma * setting.noise_factor, setting)
        return linear_model(*means.discriminant())

    def class_sums(self, setting: Setting) -> ClassSums:
        """Return the sums, on the grid of their noise."""
        return ClassSums(scale=grid(self.budget, 2.0, 1, setting), constant=self._count_weight(setting))
