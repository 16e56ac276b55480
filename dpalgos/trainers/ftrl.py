"""Follow the regularised leader: a linear model made of a running sum of gradients, each row's taken once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import OneSum
from dpalgos.errors import ParameterError
from dpalgos.gaussian_sums import grid
from dpalgos.gradient_sums import GradientSums
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian, total_mu
from dpalgos.models import LinearModel
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows
from dpalgos.trainers.descent import ClippedGradientTrainer
from dpalgos.validation import require_between, require_positive

# Found on training rows of digits, 300 of them held out (three seeds): the deviation of a weight by one night's noise.
_WALK = 0.1
_LARGEST_STEP = 1.0


@dataclass(frozen=True, kw_only=True)
class LeaderTrainer(ClippedGradientTrainer):
    """What trainers have in common whose weights are a running sum of gradients, W = −η Ĝ.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    clip : float
        Largest norm of a row's gradient.
    step_size : float, optional
        η of W = −η Ĝ, a row's gradient moving the weights by at most η clip. By default from the noise alone: η σ =
        0.1, at most 1, where σ is the deviation of the noise of one sum of gradients.
    mean_weight : float
        Each row's own mean is shrunk by this factor first; 1 leaves rows as they are.
    loss, width, intercept_scaling
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.
    """

    loss: str = "softmax"
    clip: float = 0.5
    step_size: float | None = None
    mean_weight: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None:
            require_positive("step_size", self.step_size)
        require_between("mean_weight", self.mean_weight, 0.0, 1.0)

    def check(self, setting: Setting) -> None:
        """Raise for real labels, whose scale a step that knows no curvature misses."""
        super().check(setting)
        if setting.classes < 2:
            raise ParameterError(
                "follow-the-regularised-leader needs classes; real labels need another trainer: sufficient-statistics, "
                "or noisy-gd with loss=squared"
            )


@register("trainers", "ftrl")
@dataclass(frozen=True, kw_only=True)
class FollowTheRegularisedLeader(LeaderTrainer, OneSum):
    """W = −η Ĝ: the minimiser of ⟨Ĝ, W⟩ + ‖W‖²/(2η), Ĝ a noisy sum of clipped gradients.

    In a horizon of nights (``--horizon``) this is DP-FTRL: the gradients of each night's rows are taken at the model of
    the nights before, each row's once, and Ĝ is their running sum. Outside of one it is a single step from zero
    weights.

    Guarantee
    ---------
    The budget: one Gaussian mechanism on an exact sum of integers, of sensitivity 2·clip under replace-one and clip
    under replace-special, at whatever weights (:class:`~dpalgos.gradient_sums.GradientSums`). So it is night after
    night: the weights of night t are made of what was released before, hence fixed given that; of rows of other nights
    the sums are then the same for both neighbours, and the row's own moves its night's sum by at most the sensitivity
    (:mod:`dpalgos.mechanisms.factorisation`, adaptive streams).

    Parameters
    ----------
    budget, clip, step_size, mean_weight, loss, width, intercept_scaling
        See :class:`LeaderTrainer`.

    References
    ----------
    Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, "Practical and private (deep) learning without sampling or
    shuffling", ICML 2021 (DP-FTRL); Denisov, McMahan, Rush, Smith, Thakurta, NeurIPS 2022 (by factorisation).
    """

    source: ClassVar[str] = "DP-FTRL, Kairouz et al. 2021"
    adaptive: ClassVar[bool] = True

    def sums(self, setting: Setting) -> GradientSums:
        """Return how gradients are clipped, encoded and added."""
        scale = grid(GaussianMu(total_mu(self.budget)), 2.0, 1, setting)
        return GradientSums(task=self.task, clip=self.clip, scale=scale, mean_weight=self.mean_weight)

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of the sum."""
        return RoundedGaussian.calibrated(self.budget, self.sums(setting).sensitivity(setting.neighbours))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the shape of the weights."""
        return self.task.shape(setting)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sum at zero weights."""
        return self.sums(setting).decode(self.contribution(self.initial(setting), rows, setting))

    def weights(self, state: Ints | Floats, setting: Setting) -> Floats:
        """Return the weights (m, p) that a sum of gradients makes, in the coordinates of the shrunk rows."""
        sums = self.sums(setting)
        step = self.step_size
        if step is None:
            step = min(_LARGEST_STEP, _WALK / float(sums.decode(np.asarray(self.law(setting).sigma))))
        return -step * sums.decode(state)

    def contribution(self, state: Ints | Floats, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact sum of clipped gradients, at the weights that the sum so far makes."""
        return self.sums(setting).total(self.weights(state, setting), rows, setting)

    def result(self, state: Ints | Floats, setting: Setting) -> LinearModel:
        """Return the model on rows as they were given."""
        return self.task.model(self.sums(setting).shrunk(self.weights(state, setting)), setting)
