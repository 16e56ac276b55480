"""Softmax regression by noisy full-batch gradient descent: the default that works."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.gaussian_sums import GAUSSIAN_BUDGETS, gaussian_guarantee, gaussian_law, grid, total_mu
from dpalgos.guarantees import Claim, Guarantee, Loss, Setting, Trust
from dpalgos.losses import Softmax, outputs
from dpalgos.mechanisms.fixed_point import encode_rows, encoded_radius, outer_sensitivity
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, sanitise
from dpalgos.validation import require_between, require_budget, require_count, require_positive, require_replace_one

__all__ = ["DescentState", "EncodedRows", "NoisyGradientDescent"]

# Found by cross-validation on the training rows of digits (epsilon 0.3, 1, 3) and MNIST (epsilon 0.1): the noise's
# random walk over all steps may reach this length in each coordinate before momentum.
_WALK = 0.25
_LARGEST_STEP = 4.0


_KEPT_ENTRIES = 2**27
_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """A party's rows as integers: unit vectors x/‖x‖ on the grid (m, d), norms (m, 1), class indices (m,)."""

    units: NDArray[np.float32]
    norms: Floats
    labels: Ints


@dataclass(frozen=True, slots=True)
class DescentState:
    """What the server holds between two sums; made of noisy sums alone."""

    step: int
    weights: Floats
    velocity: Floats
    average: Floats


@register("trainers", "noisy-gd")
@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyGradientDescent:
    """Minimise the softmax loss by full-batch gradient descent on noisy integer sums of clipped gradients.

    Each step sums the rows' gradients r ⊗ x (r = p − e_y over all classes, jointly clipped so that
    ‖r ⊗ x‖ = ‖r‖ ‖x‖ ≤ clip), adds integer noise once, and takes a step with momentum; the released model is the
    average of the last half of the iterates. Two classes are one logistic regression.

    Guarantee
    ---------
    The budget, whatever the rows: with Δ = 2·clip under replace-one and clip under add-remove-one (in grid units,
    from the encoded norms) each of the T sums is a Gaussian mechanism on an integer vector, μ/√T-GDP, and their
    adaptive composition is exactly μ-GDP. Everything after the sums is post-processing. Numerics are exact: rows are
    written as a unit vector x/‖x‖ and a vector r‖x‖ of norm at most clip, both rounded to a grid and clipped again
    in integers, and their outer products are summed without rounding, so one row moves the sum by at most
    the product of the two encoded radii (twice that if replaced).

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        For all steps together.
    steps : int
    clip : float
        Largest norm of a row's gradient; √2 is never exceeded.
    step_size : float, optional
        By default from public quantities: the noise of a step's mean gradient has standard deviation
        s = 2·clip·√T/(μ n) a coordinate; the step is 0.25/(√T s), at most 4.
    momentum : float
        In [0, 1).
    mean_weight : float
        Each row's own mean is shrunk by this factor before training (a public symmetric linear map that the released
        weights include), so that the clipped gradient is not spent on brightness; 1 leaves rows as they are.
    regularisation : float
        λ of (λ/2)‖W‖², free of charge.

    References
    ----------
    Bassily, Smith, Thakurta, FOCS 2014; Abadi et al., CCS 2016 (clipping); Dong, Roth, Su, JRSS B 84 (2022),
    Corollary 2 (composition); Shejwalkar et al. 2022 (averaging iterates is free).
    """

    budget: Loss
    iterations: int = 80
    clip: float = 0.5
    step_size: float | None = None
    momentum: float = 0.9
    mean_weight: float = 0.25
    regularisation: float = 0.0

    source: ClassVar[str] = "ours; full-batch DP gradient descent after Bassily, Smith, Thakurta 2014"
    claim: ClassVar[Claim | None] = None
    sound_counterpart: ClassVar[str | None] = None
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        require_count("iterations", self.iterations)
        require_positive("clip", self.clip)
        if self.step_size is not None:
            require_positive("step_size", self.step_size)
        require_between("momentum", self.momentum, 0.0, 1.0, open_high=True)
        require_between("mean_weight", self.mean_weight, 0.0, 1.0)
        require_between("regularisation", self.regularisation, 0.0, math.inf, open_high=True)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget; replace-one only, because the step uses the number of rows."""
        require_replace_one(setting)
        return gaussian_guarantee(self.budget, setting)

    def steps(self, setting: Setting) -> int:
        """Return the number of gradient sums."""
        return self.iterations

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum."""
        return gaussian_law(self.budget, self._sensitivity(setting), self.iterations)

    def initial(self, setting: Setting) -> DescentState:
        """Return zero weights."""
        zero = np.zeros((outputs(setting.classes), setting.dimension))
        return DescentState(step=0, weights=zero, velocity=zero, average=zero)

    def prepare(self, rows: Rows, setting: Setting) -> Rows | EncodedRows:
        """Encode the party's rows once, unless they are too many to keep."""
        return rows if rows.count * rows.dimension > _KEPT_ENTRIES else self._encoded(rows.blocks(), setting)

    def contribution(self, state: DescentState, rows: Rows | EncodedRows, setting: Setting) -> Ints:
        """Return the party's exact sum of encoded, clipped gradients."""
        if isinstance(rows, EncodedRows):
            return self._gradient_sum(state, rows, setting)
        total = np.zeros(state.weights.shape, dtype=np.int64)
        for block in rows.blocks():
            total += self._gradient_sum(state, self._encoded([block], setting), setting)
        return total

    def _encoded(self, blocks: Iterable[tuple[Floats, NDArray[np.generic]]], setting: Setting) -> EncodedRows:
        scale = self._scales(setting)[1]
        units, norms, labels = [], [], []
        for features, raw_labels in blocks:
            clean, known = sanitise(features, raw_labels, setting.classes)
            clean = self._shrunk(clean)
            length = np.linalg.norm(clean, axis=1, keepdims=True)
            # At most 16 bits and a sign: float32 holds them exactly in half the memory.
            units.append(encode_rows(clean / np.where(length > 0, length, 1.0), 1.0, scale).astype(np.float32))
            norms.append(length)
            labels.append(known)
        if not units:
            return EncodedRows(
                units=np.zeros((0, setting.dimension), np.float32), norms=np.zeros((0, 1)), labels=np.zeros(0, np.int64)
            )
        return EncodedRows(units=np.concatenate(units), norms=np.concatenate(norms), labels=np.concatenate(labels))

    def _gradient_sum(self, state: DescentState, rows: EncodedRows, setting: Setting) -> Ints:
        """Sum r̃ ⊗ x̃ exactly.

        Both factors' entries are integers of at most 2¹⁶, so a block's 1024 products of at most 2³² and all their
        partial sums stay below 2⁵³ and are exact in float64.
        """
        left_scale, right_scale = self._scales(setting)
        total = np.zeros(state.weights.shape, dtype=np.int64)
        for start in range(0, len(rows.labels), _BLOCK):
            part = slice(start, start + _BLOCK)
            units, norms = rows.units[part].astype(np.float64), rows.norms[part]
            scores = units @ (state.weights.T / right_scale) * norms
            residuals = Softmax().slope(scores, Softmax().targets(rows.labels[part], setting.classes)) * norms
            encoded = encode_rows(residuals, self.clip, left_scale).astype(np.float64)
            total += (encoded.T @ units).astype(np.int64)
        return total

    def update(self, state: DescentState, noisy_sum: Ints, setting: Setting) -> DescentState:
        """Take one step with momentum and add to the average."""
        left_scale, right_scale = self._scales(setting)
        gradient = noisy_sum / (left_scale * right_scale) / max(setting.rows, 1)
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
        return LinearModel(weights=self._shrunk(state.average))

    def _shrunk(self, rows: Floats) -> Floats:
        """Apply the symmetric map that shrinks each row's mean."""
        return np.asarray(rows - (1.0 - self.mean_weight) * rows.mean(axis=1, keepdims=True))

    def _scales(self, setting: Setting) -> tuple[float, float]:
        """Return the grids of residuals and rows, in units per unit; the same number of units to each radius."""
        scale = grid(self.budget, 2.0, self.iterations, setting)
        return scale / self.clip, scale

    def _sensitivity(self, setting: Setting) -> float:
        left_scale, right_scale = self._scales(setting)
        left, right = encoded_radius(self.clip, left_scale), encoded_radius(1.0, right_scale)
        return outer_sensitivity(left, right, setting.neighbours)

    def _step_size(self, setting: Setting) -> float:
        if self.step_size is not None:
            return self.step_size
        deviation = 2.0 * self.clip * math.sqrt(self.iterations) / (total_mu(self.budget) * max(setting.rows, 1))
        return min(_LARGEST_STEP, _WALK / (math.sqrt(self.iterations) * deviation))
