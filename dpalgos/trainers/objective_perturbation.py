"""Objective perturbation: minimise the risk plus a random linear term, sound and as published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.algorithms import PureAlgorithm, Unproved
from dpalgos.errors import ParameterError
from dpalgos.guarantees import RELATIONS, Claim, Guarantee, Neighbours, PureEpsilon, Setting, Trust
from dpalgos.linear import LinearTask
from dpalgos.losses import HuberHinge, make_loss, outputs
from dpalgos.mechanisms.fixed_point import sum_sensitivity
from dpalgos.mechanisms.radial import RadialLaplace
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Floats, Rows
from dpalgos.solvers import Problem, minimise
from dpalgos.trainers.linear import LinearClassifierTrainer
from dpalgos.validation import require_positive

TOLERANCE = 1e-11
"""Gradient norm the solver is asked for: above float64's rounding error, below anything its noise would show."""
TOLERANCE_SHARE = 0.01
"""Share of epsilon that pays for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a classifier's epsilon buys.

    Parameters
    ----------
    regularisation : float
        Λ, the one asked for or the larger one that the Jacobian needs.
    noise_scale : float
        Scale b of the linear term's density ∝ exp(−‖R‖/b).
    tolerance_scale : float
        Scale of the noise that hides the solver's tolerance; 0 where none is added.
    """

    regularisation: float
    noise_scale: float
    tolerance_scale: float = 0.0


def exp_minus_one(exponent: float) -> float:
    """Return e^exponent − 1, or something as large where that overflows."""
    return math.expm1(min(exponent, 700.0))


def rows_fingerprint(parties: Sequence[Rows]) -> NDArray[np.uint8]:
    """Return what noise is keyed by that comes before any value: a digest of the rows."""
    return np.concatenate([np.zeros(0, np.uint8), *(rows.fingerprint() for rows in parties)])


@dataclass(frozen=True, kw_only=True)
class OneVsRestTrainer(LinearClassifierTrainer):
    """A trainer whose loss is a sum over weight rows with slopes in [−1, 1].

    Parameters
    ----------
    regularisation : float
        λ, the least regularisation.
    """

    regularisation: float = 0.01
    loss: str = "smoothed-hinge"

    trusts: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.CENTRAL)
    measured: ClassVar[str] = "sum of gradients at any weights, all classifiers, l2"
    norm: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("regularisation", self.regularisation)
        if not self.task.loss.separable or not math.isfinite(self.task.loss.slope_norm(1)):
            raise ParameterError(
                f"the loss {self.loss!r} is not one-vs-rest with a bounded slope; "
                "use smoothed-hinge, logistic or huber-hinge"
            )

    def sensitivity(self, setting: Setting) -> float:
        """Return Δ√m: how far one record moves the gradients of m classifiers together, each by Δ at most."""
        return sum_sensitivity(self.task.loss.slope_norm(outputs(setting.classes)), setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the sum of gradients at zero weights, (m, p)."""
        return sum((self.task.gradient(*block, setting) for block in rows.blocks()), np.zeros(self.task.shape(setting)))


def perturbed_minimiser(
    parties: Sequence[Rows],
    setting: Setting,
    task: LinearTask,
    *,
    linear: Floats,
    regularisation: float,
    tolerance: float = TOLERANCE,
) -> Floats:
    """Return weights (m, p) with ‖∇‖ ≤ ``tolerance`` a weight row, of the risk plus ⟨linear, W⟩/n."""
    features, targets = task.gather(parties, setting)
    problem = Problem(
        features=features,
        targets=targets,
        loss=task.loss,
        regularisation=regularisation,
        linear=linear / max(setting.rows, 1),
    )
    return minimise(problem, tolerance).weights


def _with_radial_noise(
    parties: Sequence[Rows],
    setting: Setting,
    noise: NoiseSource,
    task: LinearTask,
    calibration: Calibration,
) -> LinearModel:
    """Return the perturbed minimisers, each weight row with a radial linear term of its own."""
    classes, width = task.shape(setting)
    key, law = rows_fingerprint(parties), RadialLaplace(calibration.noise_scale)
    linear = np.stack([law.sample(width, noise.stream(f"objective-{row}", key)) for row in range(classes)])
    weights = perturbed_minimiser(parties, setting, task, linear=linear, regularisation=calibration.regularisation)
    if calibration.tolerance_scale > 0:
        hiding = RadialLaplace(calibration.tolerance_scale)
        weights = weights + np.stack(
            [hiding.sample(width, noise.stream(f"tolerance-{row}", each)) for row, each in enumerate(weights)]
        )
    return task.model(weights, setting)


@register("trainers", "objective-perturbation")
@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(PureAlgorithm, OneVsRestTrainer):
    """Minimise (1/n) Σ ℓ(y w·x) + (Λ/2)‖w‖² + R·w/n for each class against the rest, R random.

    Guarantee
    ---------
    epsilon-DP in total, for m one-vs-rest classifiers epsilon/m each (they read the same rows, so they compose). Of a
    classifier's share, 1 % (epsilon_tol) pays for the solver's tolerance and the rest is e.

    *Objective perturbation.* The loss has slope at most 1 and curvature at most c, rows lie in the unit ball.
    For fixed rows D the exact minimiser w and the noise determine each other,
    R(w) = −Σ y ℓ′(y w·x) x − nΛw, so the density of w is that of R(w) times |det R′(w)|. For neighbours:
    (i) ‖R_D(w) − R_D'(w)‖ ≤ Δ, so with density ∝ exp(−‖R‖ e′/Δ) the first factor's ratio is at most exp(e′); Δ = 2
    under replace-one, and Δ = 1 under replace-special, where one of the two terms −y ℓ′(y w·x) x is zero.
    (ii) −R′ = A₀ + a xxᵀ with A₀ ⪰ nΛ I common to both data sets and 0 ≤ a ≤ c, so det(A₀ + b zzᵀ)/det(A₀ + a xxᵀ) ≤ 1
    + b zᵀA₀⁻¹z ≤ 1 + c/(nΛ). (The paper's factor is the square of this; the common part makes one factor enough; a null
    record has a = 0, which is among the cases.) So e′ = e − ln(1 + c/(nΛ)), and Λ is the regularisation asked for or,
    where that is larger, c/(n (e^{e/2} − 1)), which leaves e′ ≥ e/2.
    *Kinks.* For the Huber hinge R is piecewise linear in w: a bijection, Lipschitz both ways (its slope is between nΛ
    and nΛ + nc), and differentiable off the hyperplanes y w·x = 1 ± h, a null set that it maps to a null set. The
    change of variables holds almost everywhere, hence so do (i) and (ii), and a bound on the density almost
    everywhere is enough. (A zero row contributes nothing, wherever its margin lies.)
    *Tolerance.* The solver returns w̃ with ‖∇‖ ≤ γ = 10⁻¹¹, so ‖w̃ − w‖ ≤ γ/Λ. Released is w̃ + N with N of density
    ∝ exp(−‖N‖/b), b = 2γ/(Λ epsilon_tol). Given R, the densities of w̃ + N and w + N differ by at most exp(γ/(Λb))
    everywhere, and w + N is post-processing of the exact minimiser; so for neighbours
    p(w̃ + N) ≤ e^{γ/(Λb)} p(w + N) ≤ e^{γ/(Λb) + e} p′(w + N) ≤ e^{2γ/(Λb) + e} p′(w̃ + N), in total e + epsilon_tol.

    *The split over the classes* is optimal to leading order. One radial term over all classes, of the joint sensitivity
    2√m, would have a norm of about m p · 2√m/e′ for p features; m terms of scale 2m/e′ each have norms of about
    p · 2m/e′, together √m times that: the same.

    Numerics are idealised: real arithmetic, but for the solver.

    Parameters
    ----------
    budget : PureEpsilon
        For all classes together.
    regularisation : float
        λ, the least regularisation.
    loss : str
        A one-vs-rest loss of bounded slope: ``smoothed-hinge``, ``logistic`` or ``huber-hinge``.
    width, intercept_scaling
        See :class:`~dpalgos.trainers.linear.LinearClassifierTrainer`.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, "Differentially private empirical risk minimization", JMLR 12 (2011),
    Algorithm 2, Theorem 9; Iyengar et al., "Towards practical differentially private convex optimization", S&P 2019,
    for the idea of charging the tolerance; Wang et al. 2024, Algorithm 3 (corrected).
    """

    source: ClassVar[str] = "Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 2; Wang et al. 2024, Algorithm 3, corrected"
    claim: ClassVar[Claim | None] = Claim("epsilon-DP for the exact minimiser", "Chaudhuri et al. 2011, Theorem 9")

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return an equal share of epsilon for each classifier."""
        self.check(setting)
        classifiers = outputs(setting.classes)
        return Guarantee(
            losses=(PureEpsilon(self.budget.epsilon / classifiers),) * classifiers,
            neighbours=setting.neighbours,
        )

    def calibration(self, setting: Setting) -> Calibration:
        """Return regularisation and noise scales, from public facts."""
        share = self.budget.epsilon / outputs(setting.classes)
        for_tolerance = TOLERANCE_SHARE * share
        for_objective = share - for_tolerance
        curvature = make_loss(self.loss, self.width).curvature_bound
        rows = max(setting.rows, 1)
        regularisation = max(self.regularisation, curvature / (rows * exp_minus_one(for_objective / 2.0)))
        for_noise = for_objective - math.log1p(curvature / (rows * regularisation))
        return Calibration(
            regularisation=regularisation,
            noise_scale=setting.neighbours.records / for_noise,
            tolerance_scale=2.0 * TOLERANCE / (regularisation * for_tolerance),
        )

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the perturbed minimisers over all given rows."""
        return _with_radial_noise(parties, setting, noise, self.task, self.calibration(setting))


@register("trainers", "objective-perturbation-published")
@dataclass(frozen=True, kw_only=True)
class PublishedObjectivePerturbation(Unproved, PureAlgorithm):
    """Wang et al.'s Algorithm 3 as printed: Huber hinge, the full epsilon_2 for every one-vs-rest classifier.

    Guarantee
    ---------
    None for the whole release: see the flaw.

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε₂, spent by each classifier.
    regularisation : float
        λ.
    width : float
        h of the Huber hinge.

    References
    ----------
    Wang et al., CMC 78 (2024), Algorithm 3, Theorem 4.2.
    """

    regularisation: float = 0.01
    width: float = 0.5

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 3"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon_2-DP",
        "Wang et al. 2024, Theorem 4.2",
        "Ten one-vs-rest classifiers read the same rows and spend epsilon_2 each without composition; besides, the "
        "theorem cited needs a twice differentiable loss and the exact minimiser, and has neither.",
    )
    sound_counterpart: ClassVar[str | None] = "objective-perturbation"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.CENTRAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("regularisation", self.regularisation)
        HuberHinge(width=self.width)

    def calibration(self, setting: Setting) -> Calibration:
        """Return regularisation and noise scale as printed."""
        epsilon, rows = self.budget.epsilon, max(setting.rows, 1)
        curvature = HuberHinge(width=self.width).curvature_bound
        ratio = curvature / (rows * self.regularisation)
        # ln(1 + 2 ratio + ratio²), without overflow.
        remaining = epsilon - 2.0 * math.log1p(ratio)
        if remaining > 0:
            return Calibration(regularisation=self.regularisation, noise_scale=2.0 / remaining)
        # The paper adds θ = c/(n (e^{ε/4} − 1)) − λ to λ.
        return Calibration(regularisation=curvature / (rows * exp_minus_one(epsilon / 4.0)), noise_scale=4.0 / epsilon)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the perturbed minimisers over all given rows."""
        task = LinearTask(loss=HuberHinge(width=self.width))
        return _with_radial_noise(parties, setting, noise, task, self.calibration(setting))
