"""Regression of all classes at once by noisy full-batch gradient descent: the default that works."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.gradient_sums import GradientSums
from dpalgos.guarantees import Setting
from dpalgos.models import LinearModel
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints
from dpalgos.trainers.descent import GradientSumTrainer
from dpalgos.validation import require_between, require_positive

# Found by cross-validation on the training rows of digits (epsilon 0.3, 1, 3) and MNIST (epsilon 0.1): the noise's
# random walk over all steps may reach this length in each coordinate before momentum.
_WALK = 0.25
_LARGEST_STEP = 4.0


@dataclass(frozen=True, slots=True)
class DescentState:
    """What the server holds between two sums; made of noisy sums alone."""

    step: int
    weights: Floats
    velocity: Floats
    average: Floats


@register("trainers", "noisy-gd")
@dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent(GradientSumTrainer[DescentState]):
    """Minimise a loss, softmax by default, by full-batch gradient descent on noisy integer sums of clipped gradients.

    Each step sums the rows' gradients r ⊗ x (for softmax r = p − e_y over all classes, jointly clipped so that
    ‖r ⊗ x‖ = ‖r‖ ‖x‖ ≤ clip), adds integer noise once, and takes a step with momentum; the released model is the
    average of the last half of the iterates.

    Guarantee
    ---------
    The budget, whatever the rows: with Δ = 2·clip under replace-one, clip under replace-special (in grid units, from
    the encoded norms) each of the T sums is a Gaussian mechanism on an integer vector, μ/√T-GDP, and their adaptive
    composition is exactly μ-GDP.
    Everything after the sums is post-processing. Numerics are exact: :class:`~dpalgos.gradient_sums.GradientSums`
    encodes, clips and sums in integers.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        For all steps together.
    loss : str
        ``softmax``, or any other; ``squared`` for real labels.
    iterations : int
        T.
    clip : float
        Largest norm of a row's gradient; softmax never exceeds √2.
    step_size : float, optional
        By default from public quantities: the noise of a step's mean gradient has standard deviation
        s = Δ√T/(μ n) a coordinate; the step is 0.25/(√T s), at most 4.
    momentum : float
        In [0, 1).
    mean_weight : float
        Each row's own mean is shrunk by this factor before training (a public symmetric linear map that the released
        weights include), so that the clipped gradient is not spent on brightness; 1 leaves rows as they are.
    regularisation : float
        λ of (λ/2)‖W‖², free of charge.
    public_start : float
        Weight that descent starts from on each of the last K features in its class's score, where these are the scores
        of a head trained on public rows (``--public-dataset`` with ``public.head``): the model is that head's before
        the first step, whatever the budget. 0 starts from zero.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.

    References
    ----------
    Bassily, Smith, Thakurta, FOCS 2014; Abadi et al., CCS 2016 (clipping); Dong, Roth, Su, JRSS B 84 (2022),
    Corollary 2 (composition); Shejwalkar et al. 2022 (averaging iterates is free).
    """

    loss: str = "softmax"
    iterations: int = 80
    clip: float = 0.5
    step_size: float | None = None
    momentum: float = 0.9
    mean_weight: float = 0.25
    regularisation: float = 0.0
    public_start: float = 0.0

    source: ClassVar[str] = "ours; full-batch DP gradient descent after Bassily, Smith, Thakurta 2014"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None:
            require_positive("step_size", self.step_size)
        require_between("momentum", self.momentum, 0.0, 1.0, open_high=True)
        require_between("mean_weight", self.mean_weight, 0.0, 1.0)
        require_between("public_start", self.public_start, 0.0, math.inf, open_high=True)

    def check(self, setting: Setting) -> None:
        """Raise where the last features cannot be the scores of the classes."""
        super().check(setting)
        if self.public_start > 0 and not 2 <= setting.classes <= setting.dimension:
            raise ParameterError(
                f"public_start is {self.public_start:g}; rows have {setting.dimension} features and {setting.classes} "
                "classes, and the last features would be the scores of a public head, one a class: leave it out"
            )

    def initial(self, setting: Setting) -> DescentState:
        """Return zero weights, or those of a public head."""
        self.check(setting)
        zero = np.zeros(self.task.shape(setting))
        weights = zero.copy()
        if self.public_start > 0:
            scores = slice(setting.dimension - setting.classes, setting.dimension)
            each = np.eye(setting.classes)
            weights[:, scores] = self.public_start * (each if len(zero) > 1 else each[1:] - each[:1])
        return DescentState(step=0, weights=weights, velocity=zero, average=zero)

    def weights(self, state: DescentState) -> Floats:
        """Return the iterate."""
        return state.weights

    def update(self, state: DescentState, noisy_sum: Ints, setting: Setting) -> DescentState:
        """Take one step with momentum and add to the average."""
        gradient = self.sums(setting).decode(noisy_sum) / max(setting.rows, 1)
        velocity = self.momentum * state.velocity + gradient + self.regularisation * state.weights
        weights = state.weights - self._step_size(setting) * velocity
        tail = self.iterations - self.iterations // 2
        late = state.step >= self.iterations // 2
        return DescentState(
            step=state.step + 1,
            weights=weights,
            velocity=velocity,
            average=state.average + weights / tail if late else state.average,
        )

    def result(self, state: DescentState, setting: Setting) -> LinearModel:
        """Return the averaged model on the rows as they were given."""
        return self.task.model(self.sums(setting).shrunk(state.average), setting)

    def sums(self, setting: Setting) -> GradientSums:
        """Return sums of gradients at rows whose means are shrunk."""
        return replace(super().sums(setting), mean_weight=self.mean_weight)

    def _step_size(self, setting: Setting) -> float:
        if self.step_size is not None:
            return self.step_size
        mean_mu = self.mu().mu * max(setting.rows, 1)
        deviation = setting.noise_factor * self.sensitivity(setting) * math.sqrt(self.iterations) / mean_mu
        return min(_LARGEST_STEP, _WALK / (math.sqrt(self.iterations) * deviation))
