"""Objective perturbation: minimise the risk plus a random linear term, radial or Gaussian."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.accounting.profiles import mu_from_epsilon_delta, sigma_analytic
from dpalgos.algorithms import ApproximateAlgorithm, PureAlgorithm, Refused
from dpalgos.guarantees import RELATIONS, Claim, Guarantee, Neighbours, PureEpsilon, Setting, Trust
from dpalgos.integer_sums import sum_sensitivity
from dpalgos.linear import LinearClassifierTrainer, LinearTask
from dpalgos.losses import make_loss, minimise, outputs
from dpalgos.mechanisms.distributions import GaussianNoise, RadialLaplace
from dpalgos.models import LinearModel
from dpalgos.parameters import POSITIVE, ParameterError
from dpalgos.registry import register
from dpalgos.rows import Floats, NoiseSource, Rows, fingerprints

TOLERANCE = 1e-11
"""Gradient norm the solver is asked for: above float64's rounding error, below anything its noise would show."""
TOLERANCE_SHARE = 0.01
"""Share of epsilon that pays for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The noise and the regularisation that fit a budget.

    Parameters
    ----------
    regularisation : float
        Λ, the one asked for or the larger one that the Jacobian needs.
    noise_scale : float
        Scale b of the linear term's density ∝ exp(−‖R‖/b), or the standard deviation of each of its entries.
    tolerance_scale : float
        Scale (radial) or standard deviation (Gaussian) of the noise that hides the solver's tolerance; 0 for none.
    """

    regularisation: float
    noise_scale: float
    tolerance_scale: float = 0.0


def exp_minus_one(exponent: float) -> float:
    """Return e^exponent − 1, or something as large where that overflows."""
    return math.expm1(min(exponent, 700.0))


@dataclass(frozen=True, kw_only=True)
class OneVsRestTrainer(LinearClassifierTrainer):
    """A trainer whose loss is a sum over weight rows with slopes in [−1, 1].

    Parameters
    ----------
    regularisation : float
        λ, the least regularisation.
    """

    regularisation: float = field(default=0.01, metadata=POSITIVE)
    loss: str = "smoothed-hinge"

    trusts: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.CENTRAL)
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "sum of gradients at any weights, all classifiers, l2"

    def __post_init__(self) -> None:
        super().__post_init__()
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
        return sum(
            (self.task.gradient(*block[:2], setting) for block in rows.blocks()), np.zeros(self.task.shape(setting))
        )


def with_radial_noise(
    parties: Sequence[Rows],
    setting: Setting,
    noise: NoiseSource,
    task: LinearTask,
    calibration: Calibration,
) -> LinearModel:
    """Return the perturbed minimisers, each weight row with an independent radial linear term."""
    classes, width = task.shape(setting)
    key, distribution = fingerprints(parties), RadialLaplace(calibration.noise_scale)
    linear = np.stack([distribution.sample(width, noise.stream(f"objective-{row}", key)) for row in range(classes)])
    problem = task.problem(parties, setting, calibration.regularisation, linear / max(setting.rows, 1))
    weights = minimise(problem, TOLERANCE)
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
    *Class weights* are at most 1 and public: they multiply slope and curvature of a row's loss, which stay at most 1
    and c.
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
        See :class:`~dpalgos.linear.LinearClassifierTrainer`.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, "Differentially private empirical risk minimization", JMLR 12 (2011),
    Algorithm 2, Theorem 9; Iyengar et al., "Towards practical differentially private convex optimization", S&P 2019,
    for the idea of charging the tolerance; Wang et al. 2024, Algorithm 3 (corrected).
    """

    source: ClassVar[str] = "Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 2; Wang et al. 2024, Algorithm 3, corrected"
    people: ClassVar[str] = Refused("its Jacobian bound needs a Hessian of rank one, and only that of one row has it")
    claim: ClassVar[Claim | None] = Claim("epsilon-DP for the exact minimiser", "Chaudhuri et al. 2011, Theorem 9")

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
        return with_radial_noise(parties, setting, noise, self.task, self.calibration(setting))


# Of epsilon and of delta, what approximate minima perturbation pays for its coarse solver.
_COARSE_SHARE = 0.1


def _calibrate(
    task: LinearTask, setting: Setting, least_regularisation: float, epsilon: float, delta: float
) -> tuple[float, float]:
    """Return Λ and σ for exact minimisers; see :class:`GaussianObjectivePerturbation` for the proof."""
    classes, rows = outputs(setting.classes), max(setting.rows, 1)
    curvature = task.loss.curvature_bound
    enough = curvature / (rows * exp_minus_one(epsilon / (2.0 * classes)))
    regularisation = max(least_regularisation, enough)
    remaining = epsilon - classes * math.log1p(curvature / (rows * regularisation))
    return regularisation, _least_sigma(classes, setting.neighbours.records, remaining, delta)


@lru_cache(maxsize=4096)
def _least_sigma(classes: int, records: int, epsilon: float, delta: float) -> float:
    """Return the least σ with E[(r Σ (g/σ + r/(2σ²))₊ − epsilon)₊] ≤ delta, r = ``records``, rounded up."""

    def excess(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        bound = log_expected_excess(classes, records / (2.0 * sigma), epsilon * sigma / records)
        return math.log(records / sigma) + bound - math.log(delta)

    # One class needs at least the noise of a Gaussian mechanism whose sensitivity is r.
    low = math.log(records / mu_from_epsilon_delta(epsilon, delta)) - 1e-6
    high = low + 0.1
    while excess(high) > 0:
        low, high = high, 2.0 * high - low
    log_sigma, step = (float(scipy.optimize.brentq(excess, low, high, xtol=1e-12)) if excess(low) > 0 else low), 1e-11
    while excess(log_sigma) > 0:
        log_sigma, step = log_sigma + step, 2.0 * step
    return math.exp(log_sigma) * (1.0 + 1e-12)


@dataclass(frozen=True, kw_only=True)
class GaussianPerturbation(ApproximateAlgorithm, OneVsRestTrainer):
    """Objective perturbation with one Gaussian linear term for all weights; a subclass hides the solver's tolerance."""

    people: ClassVar[str] = Refused("its Jacobian bound needs a Hessian of rank one, and only that of one row has it")
    hiding: ClassVar[type[RadialLaplace] | type[GaussianNoise]]
    """The noise that hides it."""

    @abstractmethod
    def calibration(self, setting: Setting) -> Calibration:
        """Return regularisation and noise, from public facts."""

    def solver_tolerance(self, setting: Setting) -> float:
        """Return the norm of the gradient that the solver is asked for."""
        return TOLERANCE

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the perturbed minimiser over all given rows."""
        task, calibration, shape = self.task, self.calibration(setting), self.task.shape(setting)
        stream = noise.stream("objective", fingerprints(parties))
        linear = GaussianNoise(calibration.noise_scale).sample(math.prod(shape), stream).reshape(shape)
        problem = task.problem(parties, setting, calibration.regularisation, linear / max(setting.rows, 1))
        weights = minimise(problem, self.solver_tolerance(setting))
        hidden = self.hiding(calibration.tolerance_scale).sample(weights.size, noise.stream("tolerance", weights))
        return task.model(weights + hidden.reshape(shape), setting)


@register("trainers", "objective-perturbation-gaussian")
@dataclass(frozen=True, kw_only=True)
class GaussianObjectivePerturbation(GaussianPerturbation):
    """Minimise the risk plus ⟨R, W⟩/n with Gaussian R over all classes at once.

    Guarantee
    ---------
    (epsilon, delta)-DP under either relation, jointly for all m one-vs-rest classifiers; numerics idealised.
    1 % of epsilon, x = epsilon/200 twice, pays for the solver's tolerance: radial noise of scale b = ρ/x hides the
    distance ρ = √m γ/Λ between W and what the solver returns, so with d for delta below
    P[A ∈ S] ≤ e^x P[M ∈ S] ≤ e^x (e^e P[M′ ∈ S] + d) ≤ e^{2x + e} P[A′ ∈ S] + e^x d; d = e^{−x} delta, e is the rest.

    *Proof.* For fixed rows D the exact minimiser W and the noise R_D(W) determine each other (with kinks as there). Let
    D′ have the record z where D has x (under replace-special one of the two is null), W be drawn from D, and
    R = R_D(W), whose m rows are independent N(0, σ²I). The privacy loss at W is L = (‖R_D′‖² − ‖R_D‖²)/(2σ²) plus the
    logarithm of the Jacobians' ratio. With f(u) = (1 − e^{ε−u})₊, H_{e^ε} = E f(L).

    (i) The Jacobian is block diagonal over the classes and each block costs at most ln(1 + c/(nΛ)): j in total.

    (ii) R_D′ = R + V, and row k of V is sₖ x − s′ₖ z. A loss of the margin has a slope in [−1, 0], so sₖ and s′ₖ are
    one-sided: sₖ ∈ [0, 1]·σₖ and s′ₖ ∈ [0, 1]·σ′ₖ with signs that depend on the labels alone. They depend on W, so take
    the worst. L − j is at most Σₖ uₖ, uₖ the largest of ⟨gₖ, v⟩/σ + ‖v‖²/(2σ²) over v = sₖ x − s′ₖ z, gₖ = Rₖ/σ: a
    convex function of (sₖ, s′ₖ), largest at a corner, where v is 0, p, q or p + q with p = σₖ x, q = −σ′ₖ z. Since
    ‖p + q‖² ≤ 4 and ‖p‖², ‖q‖² ≤ 1, uₖ ≤ (⟨gₖ, p⟩/σ + 1/σ²)₊ + (⟨gₖ, q⟩/σ + 1/σ²)₊. So L ≤ j + A + B, A the sum of
    the first terms over the classes and B of the second: m independent numbers each, for any labels.

    (iii) f(u) ≤ (u − ε)₊, which is convex and increasing, and so (A + B − e′)₊ ≤ ½(2A − e′)₊ + ½(2B − e′)₊ with
    e′ = ε − j, however A and B depend on each other. (2A − e′)₊ is convex in the Gaussian numbers ⟨gₖ, p⟩, whose
    deviation is ‖p‖ ≤ 1, so by Jensen its expectation is largest at ‖p‖ = 1; alike for B. Hence

        δ(ε) ≤ E[(2 Σₖ (gₖ/σ + 1/σ²)₊ − e′)₊], gₖ independent N(0, 1), k = 1 … m.

    For a null z there is no q, and δ(ε) ≤ E[(Σₖ (gₖ/σ + 1/(2σ²))₊ − e′)₊]. σ is the least with δ(e) ≤ d. Nothing
    depends on the number of features. Λ is the regularisation asked for or, where that is larger, the one that leaves
    e′ ≥ e/2. The price of (iii) is small: above e′ the loss exceeds it by little, so f(u) and u − ε nearly agree. For
    one class δ is the Gaussian mechanism's of sensitivity 2, up to that; for m the positive parts add their means.

    *What is attained.* Two antipodal rows of one class have all slopes of a hinge at their ends at margin 0, so that
    ‖V‖ = 2√m: no smaller bound on ‖V‖ holds for the hinges, at any m. Rows of two classes move less,
    ‖V‖² ≤ max(4m − 6, m + 6) for m ≥ 2.

    Parameters
    ----------
    budget : ApproximateDP
        For all classes together.
    regularisation : float
        λ, the least regularisation.
    loss : str
        A one-vs-rest loss of bounded slope.
    width, intercept_scaling
        See :class:`~dpalgos.linear.LinearClassifierTrainer`.

    References
    ----------
    Kifer, Smith, Thakurta, "Private convex empirical risk minimization and high-dimensional regression", COLT 2012,
    Algorithm 1 (Gaussian version); Redberg, Koskela, Wang, "Improving the privacy and practicality of objective
    perturbation for differentially private linear learners", NeurIPS 2023, for the hockey-stick divergence along the
    row (scalar models, add-remove-one; Theorem 3.1 does not carry over to several classes).
    """

    source: ClassVar[str] = "Kifer, Smith, Thakurta 2012, Algorithm 1, Gaussian; constants rederived"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP for the exact minimiser", "Kifer et al. 2012, Theorem 2")
    hiding: ClassVar[type[RadialLaplace] | type[GaussianNoise]] = RadialLaplace

    def calibration(self, setting: Setting) -> Calibration:
        """Return regularisation and noise, from public facts."""
        for_tolerance = TOLERANCE_SHARE * self.budget.epsilon
        objective_delta = self.budget.delta * math.exp(-min(for_tolerance / 2.0, 700.0))
        regularisation, sigma = _calibrate(
            self.task, setting, self.regularisation, self.budget.epsilon - for_tolerance, objective_delta
        )
        distance = math.sqrt(outputs(setting.classes)) * TOLERANCE / regularisation
        return Calibration(
            regularisation=regularisation, noise_scale=sigma, tolerance_scale=2.0 * distance / for_tolerance
        )


@register("trainers", "approximate-minima-perturbation")
@dataclass(frozen=True, kw_only=True)
class ApproximateMinimaPerturbation(GaussianPerturbation):
    """Objective perturbation with a solver that may stop early: its distance from the minimum is covered by noise.

    Guarantee
    ---------
    (epsilon, delta)-DP under either relation for all classes jointly; numerics idealised. The exact perturbed minimiser
    W is (e, d)-DP by the proof of ``objective-perturbation-gaussian``. The solver's W̃ is within ρ = √m γ/Λ of it, and
    Gaussian noise N hides a shift of ρ with (ε_t, δ_t). With M = W + N and A = W̃ + N for neighbours D, D′:
    P[A ∈ S] ≤ e^{ε_t} P[M ∈ S] + δ_t ≤ e^{ε_t}(e^e P[M′ ∈ S] + d) + δ_t
    ≤ e^{2ε_t + e} P[A′ ∈ S] + e^{ε_t + e} δ_t + e^{ε_t} d + δ_t,
    so epsilon = e + 2ε_t and delta = e^{ε_t} d + (1 + e^{ε_t + e}) δ_t. A tenth of either pays for the solver.

    Parameters
    ----------
    budget : ApproximateDP
        For all classes together.
    tolerance : float, optional
        γ, the gradient norm at which the solver stops; 1/n² by default.
    regularisation, loss, width, intercept_scaling
        See :class:`GaussianObjectivePerturbation`.

    References
    ----------
    Iyengar, Near, Song, Thakkar, Thakurta, Wang, "Towards practical differentially private convex optimization",
    S&P 2019, Algorithm 1; constants derived again.
    """

    tolerance: float | None = field(default=None, metadata=POSITIVE)

    source: ClassVar[str] = "Iyengar et al. 2019, Algorithm 1; constants rederived"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Iyengar et al. 2019, Theorem 1")
    hiding: ClassVar[type[RadialLaplace] | type[GaussianNoise]] = GaussianNoise

    def calibration(self, setting: Setting) -> Calibration:
        """Return regularisation and noise, from public facts."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        each = _COARSE_SHARE * epsilon / 2.0
        objective_epsilon = epsilon - 2.0 * each
        tolerance_delta = _COARSE_SHARE * delta / (1.0 + math.exp(min(each + objective_epsilon, 700.0)))
        objective_delta = (1.0 - _COARSE_SHARE) * delta / math.exp(min(each, 700.0))
        regularisation, sigma = _calibrate(self.task, setting, self.regularisation, objective_epsilon, objective_delta)
        distance = math.sqrt(outputs(setting.classes)) * self.solver_tolerance(setting) / regularisation
        return Calibration(
            regularisation=regularisation,
            noise_scale=sigma,
            tolerance_scale=sigma_analytic(each, tolerance_delta, distance),
        )

    def solver_tolerance(self, setting: Setting) -> float:
        """Return the norm asked for, or 1/n²."""
        return self.tolerance if self.tolerance is not None else 1.0 / max(setting.rows, 1) ** 2


_NODE_GAP = 0.02
_UNIT = 2.0**-53


def _log_excess(points: Floats, shift: float) -> Floats:
    """Return log E[(y - x)+], y = (g + shift)+ with g ~ N(0, 1), at points x >= 0."""
    z = points - shift
    # phi(z) - z Phi(-z): the factor phi(z) is taken out where the terms are small.
    far = np.maximum(z, 0.0)
    inside = 1.0 - far * math.sqrt(math.pi / 2.0) * scipy.special.erfcx(far / math.sqrt(2.0))
    tail = -(far**2) / 2.0 - math.log(math.sqrt(2.0 * math.pi)) + np.log(inside)
    near = np.minimum(z, 0.0)
    density = np.exp(-(near**2) / 2.0) / math.sqrt(2.0 * math.pi)
    return np.asarray(np.where(z > 0, tail, np.log(density - near * np.exp(scipy.special.log_ndtr(-near)))))


def _log_moment(tilt: float, shift: float) -> tuple[float, float]:
    """Return log E[e^(tilt y)] and its derivative."""
    moved = tilt * shift + tilt**2 / 2.0
    none, some = float(scipy.special.log_ndtr(-shift)), float(moved + scipy.special.log_ndtr(shift + tilt))
    whole = float(np.logaddexp(none, some))
    density = math.exp(moved - (shift + tilt) ** 2 / 2.0 - whole) / math.sqrt(2.0 * math.pi)
    return whole, density + (shift + tilt) * math.exp(some - whole)


def log_expected_excess(count: int, shift: float, level: float) -> float:
    """Return an upper bound on log E[(S - level)+], S the sum of ``count`` independent (g + shift)+, g ~ N(0, 1).

    Parameters
    ----------
    count : int
        At least 1.
    shift : float
        At least 0.
    level : float
        Above 0.

    Notes
    -----
    Guarantee. Never low. (i) Each summand y is cut at a far Y, which costs at most ``count E[(y - Y)+]``. (ii) The cut
    distribution is put on a grid by moving the mass of each cell to the cell's ends, means kept; that makes it larger
    in the convex order, which sums of independent numbers inherit, and x -> (x - level)+ is convex, so the expectation
    grows (by a factor of about 1 + 10^-3). The mass of a node is the second difference of ``E[(y - x)+]`` over the
    step. (iii) The sum is convolved by fast Fourier transforms of the distribution tilted by e^(tilt y), so that the
    part above the level is the bulk. An error of the tilted distribution in l1 is multiplied by at most ``exp(-tilt
    level) / (tilt e)``, the largest value of ``exp(-tilt s) (s - level)+``; with N points and unit round-off u it is at
    most ``21 u log2(N) sqrt(N)`` a summand (:func:`~dpalgos.accounting.composition.library_profile`).
    """
    tilt = 0.1
    if _log_moment(tilt, shift)[1] * count < level:
        tilt = float(
            scipy.optimize.brentq(lambda t: _log_moment(t, shift)[1] * count - level, tilt, level + 1.0, xtol=1e-6)
        )
    farthest = 2.0 * shift + tilt + math.hypot(14.0, level / math.sqrt(count))
    nodes: Floats = _NODE_GAP * np.arange(math.ceil(farthest / _NODE_GAP) + 2, dtype=np.float64)
    log_values = _log_excess(nodes, shift)
    # Second differences relative to the middle value, so that far tails keep their precision.
    middle = log_values[1:-1]
    bends = np.expm1(log_values[:-2] - middle) + np.expm1(log_values[2:] - middle)
    first = -math.expm1(log_values[1] - log_values[0]) * math.exp(log_values[0])
    last = log_values[-2] + math.log(-math.expm1(log_values[-1] - log_values[-2]))
    with np.errstate(divide="ignore"):
        logs = np.concatenate(
            [
                [math.log(max(1.0 - first / _NODE_GAP, 1e-300))],
                middle + np.log(np.maximum(bends, 1e-300)) - math.log(_NODE_GAP),
                [last - math.log(_NODE_GAP)],
            ]
        )
    logs = logs + tilt * nodes
    largest = float(logs.max())
    weights = np.exp(logs - largest)
    whole = float(weights.sum())
    log_moment = (largest + math.log(whole)) * count
    length = 2 ** math.ceil(math.log2(count * nodes.size + 1))
    summed = np.fft.irfft(np.fft.rfft(weights / whole, length) ** count, length)
    sums = _NODE_GAP * np.arange(length)
    above = sums > level
    expected = float(
        np.sum(np.maximum(summed[above], 0.0) * np.exp(-tilt * (sums[above] - level)) * (sums[above] - level))
    )
    lost = 21.0 * _UNIT * math.log2(length) * math.sqrt(length) * count / (math.e * tilt)
    bulk = log_moment - tilt * level + math.log(expected + lost)
    return float(np.logaddexp(bulk, math.log(count) + log_values[-1])) + 1e-8
