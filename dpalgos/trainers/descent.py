"""Gradient descent on noisy sums of clipped gradients: what all such trainers share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np

from dpalgos.algorithms import PrivateAlgorithm
from dpalgos.gaussian_sums import GAUSSIAN_BUDGETS, gaussian_guarantee, grid
from dpalgos.gradient_sums import EncodedRows, GradientSums
from dpalgos.guarantees import RELATIONS, GaussianMu, Guarantee, Loss, Neighbours, Setting
from dpalgos.mechanisms.fixed_point import sum_sensitivity
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian, total_mu
from dpalgos.models import LinearModel
from dpalgos.rows import Floats, Ints, Rows
from dpalgos.trainers.linear import LinearTrainer
from dpalgos.validation import require_between, require_count, require_positive
from dpalgos.work import Work

State = TypeVar("State")


@dataclass(frozen=True, kw_only=True)
class ClippedGradientTrainer(PrivateAlgorithm, LinearTrainer):
    """A trainer of linear models that sees rows through exact sums of clipped gradients, and costs its budget.

    Parameters
    ----------
    clip : float
        Largest norm of a row's gradient.
    """

    clip: float = 1.0

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS
    measured: ClassVar[str] = "sum of clipped gradients, l2"
    norm: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("clip", self.clip)

    def sensitivity(self, setting: Setting) -> float:
        """Return clip times the records that neighbours differ in, at any weights."""
        return sum_sensitivity(self.clip, setting.neighbours)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget."""
        self.check(setting)
        return gaussian_guarantee(self.budget, setting)


@dataclass(frozen=True, kw_only=True)
class GradientSumTrainer(ClippedGradientTrainer, Generic[State]):
    """T noisy integer sums of clipped gradients; a subclass says what the server makes of them.

    Guarantee
    ---------
    The budget, whatever the rows and whatever is made of the sums: with Δ = 2·clip under replace-one and Δ = clip under
    replace-special (in grid units, from the encoded norms, :class:`~dpalgos.gradient_sums.GradientSums`) each of the T
    sums is a Gaussian mechanism on an integer vector, μ/√T-GDP, and their adaptive composition is exactly μ-GDP (Dong,
    Roth, Su 2022, Corollary 2). A null record's gradient is zero at all weights. Numerics exact.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        For all steps together.
    iterations : int
        T.
    regularisation : float
        λ of (λ/2)‖W‖², free of charge.
    clip : float
        Largest norm of a row's gradient.
    """

    iterations: int = 100
    regularisation: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("iterations", self.iterations)
        require_between("regularisation", self.regularisation, 0.0, math.inf, open_high=True)

    @abstractmethod
    def initial(self, setting: Setting) -> State:
        """Return the state before the first sum, with zero weights."""

    @abstractmethod
    def weights(self, state: State) -> Floats:
        """Return the weights (m, p) at which the next gradients are taken."""

    def mu(self) -> GaussianMu:
        """Return what all sums together cost."""
        return GaussianMu(total_mu(self.budget))

    def sums(self, setting: Setting) -> GradientSums:
        """Return how gradients are clipped, encoded and added."""
        return GradientSums(task=self.task, clip=self.clip, scale=self.grid(setting))

    def grid(self, setting: Setting) -> float:
        """Return the grid units per unit of both factors of a gradient."""
        return grid(self.mu(), 2.0, self.iterations, setting)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sum at the first weights."""
        return self.sums(setting).decode(self.contribution(self.initial(setting), rows, setting))

    def steps(self, setting: Setting) -> int:
        """Return the number of gradient sums."""
        return self.iterations

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum."""
        return RoundedGaussian.calibrated(
            self.mu(), self.sums(setting).sensitivity(setting.neighbours), self.iterations
        )

    def prepare(self, rows: Rows, setting: Setting) -> Rows | EncodedRows:
        """Encode the party's rows once, unless they are too many to keep."""
        return self.sums(setting).prepare(rows, setting)

    def merge(self, prepared: Sequence[Rows | EncodedRows]) -> Sequence[Rows | EncodedRows]:
        """Join parties for a curator who adds up anyway."""
        return GradientSums.merge(prepared)

    def work(self, setting: Setting) -> Work:
        """Return that of all gradient sums."""
        return self.sums(setting).work(setting, self.iterations)

    def contribution(self, state: State, rows: Rows | EncodedRows, setting: Setting) -> Ints:
        """Return the party's exact sum of encoded, clipped gradients."""
        return self.sums(setting).total(self.weights(state), rows, setting)


@dataclass(frozen=True, kw_only=True)
class PlainDescent(GradientSumTrainer[Floats]):
    """W ← W − η (noisy mean gradient + λW), T times from zero; the last W is released.

    Parameters
    ----------
    step_size : float
        η.
    """

    step_size: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("step_size", self.step_size)

    def divisor(self, setting: Setting) -> int:
        """Return what the sum of gradients is divided by to be their mean."""
        return max(setting.rows, 1)

    def weights(self, state: Floats) -> Floats:
        """Return the iterate."""
        return state

    def initial(self, setting: Setting) -> Floats:
        """Return zero weights."""
        self.check(setting)
        return np.zeros(self.task.shape(setting))

    def update(self, state: Floats, noisy_sum: Ints, setting: Setting) -> Floats:
        """Take one step."""
        gradient = self.sums(setting).decode(noisy_sum) / self.divisor(setting)
        return state - self.step_size * (gradient + self.regularisation * state)

    def result(self, state: Floats, setting: Setting) -> LinearModel:
        """Return the last iterate."""
        return self.task.model(state, setting)
