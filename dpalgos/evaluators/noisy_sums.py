"""Charged sums over private rows, exact in integers, with Gaussian noise or with discrete Laplace noise."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import scipy

from dpalgos.algorithms import OneSum, PrivateAlgorithm
from dpalgos.guarantees import RELATIONS, GaussianMu, Loss, Neighbours, Numerics, PureEpsilon, Setting
from dpalgos.integer_sums import portions
from dpalgos.mechanisms.distributions import DiscreteLaplace, RoundedGaussian
from dpalgos.models import Statistic
from dpalgos.rows import Array, Floats, Ints, Rows, null_records

Simulation: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Floats]
"""Draws so many numbers of a noise's distribution, in the integers that are summed."""
PARTS_OF_A_UNIT = "each of k rows adds ⌊U/k⌋ of the U units that one record adds"
"""Why a person's rows move counts by no more than one row does."""


@dataclass(frozen=True, kw_only=True)
class NoisySums(PrivateAlgorithm, OneSum):
    """Sums over rows, exact in integers, with rounded Gaussian noise: mu-GDP for the l2 sensitivity.

    :class:`LaplaceNoise` takes the place of that noise.

    Where the unit is a person with k rows, each of these adds ⌊U/k⌋ times what a record's row adds, U the integer that
    stands for one: together a point of the convex hull of zero and what single rows may add, so that sums move by no
    more than one row moves them (:func:`~dpalgos.integer_sums.row_weights`).

    Attributes
    ----------
    unit : int
        What one is in the integers that are summed, of single rows.
    """

    budget: GaussianMu
    source: ClassVar[str] = "Dong, Roth, Su 2022, Theorem 1"
    budgets: ClassVar[tuple[type[Loss], ...]] = (GaussianMu,)
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    numerics: ClassVar[Numerics] = Numerics.EXACT
    unit: ClassVar[int] = 1
    fewest_classes: ClassVar[int] = 2
    """1 where rows may have numeric labels."""

    @abstractmethod
    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums, in the norm of the noise."""

    def length(self, cells: int) -> float:
        """Return how far so many sums that move by one each are moved together, in the norm of the noise."""
        return math.sqrt(cells)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum, in integers."""
        return RoundedGaussian.calibrated(self.budget, self.units(setting) * self.sensitivity(setting))

    def deviation(self, setting: Setting) -> float:
        """Return the standard deviation of the noise of each sum, public: sigma and rounding's 1/sqrt(12) together."""
        return math.hypot(self.distribution(setting).sigma, 1 / math.sqrt(12)) / self.units(setting)

    def simulated(self, setting: Setting) -> Simulation:
        """Return what draws noise of that distribution for simulations, from a generator with a public seed."""
        sigma = self.distribution(setting).sigma
        return lambda random, shape: np.rint(random.standard_normal(shape) * sigma)

    def exceeded(self, probability: float, setting: Setting) -> float:
        """Return what the noise of a sum exceeds with at most this probability: round(g) > t is g > t - 1/2."""
        sigma = self.distribution(setting).sigma
        return (sigma * -float(scipy.special.ndtri(probability)) + 0.5) / self.units(setting)

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
class LaplaceNoise(NoisySums):
    """Discrete Laplace noise in the place of Gaussian noise: epsilon-DP for the l1 sensitivity.

    Stands before the class whose sums it is drawn for (see ``mechanisms.distributions``).
    """

    budget: PureEpsilon  # type: ignore[assignment]  # another noise, another budget
    source: ClassVar[str] = "Dwork, McSherry, Nissim, Smith 2006, Theorem 1"
    budgets: ClassVar[tuple[type[Loss], ...]] = (PureEpsilon,)
    norm: ClassVar[int] = 1

    def length(self, cells: int) -> float:
        """Return their number."""
        return float(cells)

    def distribution(self, setting: Setting) -> DiscreteLaplace:  # type: ignore[override]  # another noise
        """Return the noise of each sum, in integers."""
        return DiscreteLaplace.calibrated(self.budget.epsilon, self.units(setting) * self.sensitivity(setting))

    def deviation(self, setting: Setting) -> float:
        """Return sqrt(2 p) / (1 - p) with p = exp(-1 / scale), in units of the sums."""
        inverse = 1.0 / self.distribution(setting).scale
        return math.sqrt(2.0 * math.exp(-inverse)) / -math.expm1(-inverse) / self.units(setting)

    def simulated(self, setting: Setting) -> Simulation:
        """Return what draws differences of two geometric numbers."""
        stop = -np.expm1(-1.0 / self.distribution(setting).scale)
        return lambda random, shape: np.asarray(
            random.geometric(stop, shape) - random.geometric(stop, shape), dtype=np.float64
        )

    def exceeded(self, probability: float, setting: Setting) -> float:
        """Return ``scale ln(1 / probability)``: P(k > t) <= p^t = exp(-t / scale) for whole t, p = exp(-1 / scale)."""
        return self.distribution(setting).scale * math.log(1.0 / probability) / self.units(setting)


def counted_cells(cells: Ints, parts: Ints, shape: tuple[int, ...]) -> Ints:
    """Return how often each cell of an array of this shape occurs, added up in int64.

    Parameters
    ----------
    cells : array (m,) or (m, c) of int64
        Places in the array, row after row, of the cells of each of m rows.
    parts : array (m,) of int64
        Units that each row adds to each of its cells.
    shape : tuple of int
    """
    counts = np.zeros(math.prod(shape), dtype=np.int64)
    np.add.at(counts, cells, parts if cells.ndim == 1 else parts[:, None])
    return counts.reshape(shape)
