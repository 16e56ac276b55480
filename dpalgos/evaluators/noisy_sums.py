"""What evaluators share: sums of integers over rows, with integer noise on each number."""

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
from dpalgos.rows import Floats, Ints, Rows


@dataclass(frozen=True, kw_only=True)
class NoisySums(PrivateAlgorithm, OneSum):
    """Sums over rows, exact in integers, with noise; :class:`GaussianSums` and :class:`LaplaceSums` say which noise.

    Attributes
    ----------
    unit : int
        What one is in the integers that are summed.
    """

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    unit: ClassVar[int] = 1

    @abstractmethod
    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return a party's exact sums, in integers."""

    @abstractmethod
    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums, in the norm of the noise."""

    @abstractmethod
    def deviation(self, setting: Setting) -> float:
        """Return the standard deviation of the noise of each sum, public."""

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, exact."""
        self.check(setting)
        return Guarantee(losses=(self.budget,), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sums."""
        return self.contribution(self.initial(setting), rows, setting).astype(np.float64) / self.unit

    def result(self, state: Ints, setting: Setting) -> Statistic:
        """Return the noisy sums; negative ones are left as they are, for unbiased totals."""
        return Statistic(values=state.astype(np.float64) / self.unit)


@dataclass(frozen=True, kw_only=True)
class GaussianSums(NoisySums):
    """Sums with rounded Gaussian noise: mu-GDP for the l2 sensitivity (see ``mechanisms.rounded_gaussian``)."""

    budget: GaussianMu
    source: ClassVar[str] = "Dong, Roth, Su 2022, Theorem 1"
    budgets: ClassVar[tuple[type[Loss], ...]] = (GaussianMu,)
    norm: ClassVar[int] = 2

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum, in integers."""
        return RoundedGaussian.calibrated(self.budget, self.unit * self.sensitivity(setting))

    def deviation(self, setting: Setting) -> float:
        """Return the root of sigma^2 and of 1/12, the variance of rounding, in units of the sums."""
        return math.hypot(self.law(setting).sigma, 1 / math.sqrt(12)) / self.unit


@dataclass(frozen=True, kw_only=True)
class LaplaceSums(NoisySums):
    """Sums with discrete Laplace noise: epsilon-DP for the l1 sensitivity (see ``mechanisms.discrete_laplace``)."""

    budget: PureEpsilon
    source: ClassVar[str] = "Dwork, McSherry, Nissim, Smith 2006, Theorem 1"
    budgets: ClassVar[tuple[type[Loss], ...]] = (PureEpsilon,)
    norm: ClassVar[int] = 1

    def law(self, setting: Setting) -> DiscreteLaplace:
        """Return the noise of each sum, in integers."""
        return DiscreteLaplace.calibrated(self.budget.epsilon, self.unit * self.sensitivity(setting))

    def deviation(self, setting: Setting) -> float:
        """Return sqrt(2 p) / (1 - p) with p = exp(-1 / scale), in units of the sums."""
        inverse = 1.0 / self.law(setting).scale
        return math.sqrt(2.0 * math.exp(-inverse)) / -math.expm1(-inverse) / self.unit
