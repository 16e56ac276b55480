"""Output perturbation: each party's exact minimiser, noise once on their sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.gaussian_sums import GAUSSIAN_BUDGETS, gaussian_guarantee, gaussian_law
from dpalgos.guarantees import Claim, Guarantee, Loss, Setting, Trust
from dpalgos.losses import joint_slope_norm, make_loss, outputs
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.registry import register
from dpalgos.rows import Ints, Rows, gather
from dpalgos.solvers import Problem, minimise
from dpalgos.validation import require_budget, require_positive, require_replace_one

__all__ = ["OutputPerturbation"]

# The solver is asked for half of this; rounding errors of the gradient it certifies stay far below the other half.
_TOLERANCE = 1e-9
_TOLERANCE_ROWS = 1e5
# Grid units per sensitivity: rounding K·d weights then adds about 10⁻⁵ of it.
_FINENESS = 24


@register("trainers", "output-perturbation")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPerturbation:
    """Release Σ nᵢθᵢ + noise, θᵢ party i's exact minimiser of its own regularised risk; the model is that over Σ nᵢ.

    Guarantee
    ---------
    The budget, under replace-one, jointly for all classes, under ``local`` (one party) and ``central`` alike.

    *Sensitivity.* A row's gradient is r ⊗ x with ‖x‖ ≤ 1 and ‖r‖ ≤ G: √m for m one-vs-rest slopes in [−1, 1],
    √2 for softmax. Replacing a row of party i changes the gradient of its risk by at most 2G/nᵢ in the
    Frobenius norm; the risk is λ-strongly convex, so θᵢ moves by at most 2G/(nᵢλ) and nᵢθᵢ by at most 2G/λ, however
    small the party; the other parties' terms do not move. (2G is nearly reached: x and −x with one label and all
    slopes at their ends.)
    *Tolerance.* The solver certifies ‖∇‖ ≤ γ, so it is off by at most γ/λ on both neighbours: 2nᵢγ/λ more, for the
    largest party. With one-vs-rest each class is certified alone, which makes it √m times as much.
    *Integers.* nᵢθ̃ᵢ is rounded to a grid of step u (a power of two), which adds at most √(m d) steps; noise is added
    to the integer sum. Numerics are exact given the certified gradient: its float64 error, by the standard bounds at
    most (n + d c ‖w‖) 2⁻⁵² with ‖w‖ ≤ √(2/λ) a class, lies within the half of γ that the solver leaves unused.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    regularisation : float
        λ.
    loss : str
        A loss of bounded slope.
    width : float, optional
        h of the smooth hinges.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011), Corollary 8 (the sensitivity for one party and one class).
    """

    budget: Loss
    regularisation: float = 0.01
    loss: str = "huber-hinge"
    width: float | None = None

    source: ClassVar[str] = "Chaudhuri, Monteleoni, Sarwate 2011, Corollary 8, over parties and classes"
    claim: ClassVar[Claim | None] = None
    sound_counterpart: ClassVar[str | None] = None
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        require_positive("regularisation", self.regularisation)
        if not math.isfinite(make_loss(self.loss, self.width).slope_norm(1)):
            raise ParameterError(f"the loss {self.loss!r} has no bounded slope; use a hinge, logistic or softmax")

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget."""
        require_replace_one(setting)
        return gaussian_guarantee(
            self.budget,
            setting,
            "the float64 gradients that certify the solver are right to half of the tolerance charged",
        )

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one replaced row moves the exact Σ nᵢθᵢ, plus the solver's tolerance, in l2."""
        loss = make_loss(self.loss, self.width)
        problems = outputs(setting.classes) if loss.separable else 1
        tolerance = math.sqrt(problems) * self._tolerance(setting) * max(setting.sizes, default=0)
        return 2.0 * (joint_slope_norm(loss, setting) + tolerance) / self.regularisation

    def steps(self, setting: Setting) -> int:
        """Return 1: one sum of minimisers."""
        return 1

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of the sum."""
        rounding = math.sqrt(outputs(setting.classes) * setting.dimension)
        return gaussian_law(self.budget, self.sensitivity(setting) / self._unit(setting) + rounding)

    def initial(self, setting: Setting) -> Ints:
        """Return a zero sum."""
        return np.zeros((outputs(setting.classes), setting.dimension), dtype=np.int64)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's minimiser times its number of rows, in grid units."""
        features, labels = gather(rows, setting.classes)
        loss = make_loss(self.loss, self.width)
        targets = loss.targets(labels, setting.classes)
        problem = Problem(features=features, targets=targets, loss=loss, regularisation=self.regularisation)
        weights = minimise(problem, 0.5 * self._tolerance(setting)).weights
        return np.rint(len(labels) * weights / self._unit(setting)).astype(np.int64)

    def update(self, state: Ints, noisy_sum: Ints, setting: Setting) -> Ints:
        """Return the noisy sum."""
        return noisy_sum

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Return the weighted mean of the parties' minimisers, with the noise of the sum."""
        return LinearModel(weights=state * self._unit(setting) / max(setting.rows, 1))

    def _tolerance(self, setting: Setting) -> float:
        """Return γ, which grows with the rounding error of means over very many rows."""
        return _TOLERANCE * max(1.0, max(setting.sizes, default=0) / _TOLERANCE_ROWS)

    def _unit(self, setting: Setting) -> float:
        return 2.0 ** (math.floor(math.log2(self.sensitivity(setting))) - _FINENESS)
