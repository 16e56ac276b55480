"""Minimisers of the risk: exact, and with noise on the sum of the parties' or on each exchange of ADMM."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import GaussianAlgorithm, IntegerNoise, OneSum, PureAlgorithm, Unproved, Work, gathering_work
from dpalgos.elementary import l2_norm
from dpalgos.guarantees import RELATIONS, Claim, Guarantee, Neighbours, Numerics, Setting, Trust, nothing_proved
from dpalgos.linear import LinearClassifierTrainer, LinearTask, LinearTrainer
from dpalgos.losses import Problem, ScoreLoss, Squared, certified_minimiser, minimise, outputs, rounding_bound
from dpalgos.mechanisms.distributions import DiscreteLaplace, RadialLaplace, RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.parameters import COUNT, POSITIVE, ParameterError
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, NoiseSource, Rows
from dpalgos.secure.noise_shares import RoundedRadial
from dpalgos.sentences import coded

# What is charged for the solver at least; it is small against any slope.
_TOLERANCE = 1e-9
_TOLERANCE_ROWS = 1e5
# Grid units per sensitivity: rounding K·d weights then adds about 10⁻⁵ of it.
_FINENESS = 24
SOLVER_ASSUMPTION = coded("arithmetic-of-solvers")
"""What guarantees assume that charge :meth:`MinimiserSum.solver_tolerance`."""
OF_MEAN_RISK = (
    "the risk is the mean over people of the mean over their rows, so the gradient of a person is no longer than that "
    "of one row"
)
"""Why a person's rows move a minimiser by no more than one row does."""


def slope_at_minimum(loss: ScoreLoss, classes: int, regularisation: float) -> float:
    """Return G: the largest norm of a row's slope vector over all weight rows, at any minimiser.

    The squared loss has no bounded slope, but with targets in [−1, 1] the risk at 0 is at most 1/2 a weight row, so
    a minimiser has norm at most 1/√λ and the slope there is at most 1 + 1/√λ.
    """
    if isinstance(loss, Squared):
        return math.sqrt(outputs(classes)) * (1.0 + 1.0 / math.sqrt(regularisation))
    return loss.slope_norm(outputs(classes))


def _loss_at_zero(task: LinearTask, setting: Setting) -> Floats:
    """Return a row's loss at zero weights, (1, m) or (1, 1)."""
    label = task.loss.targets(np.zeros(1, dtype=np.int64), max(setting.classes, 2))
    return task.loss.value(np.zeros((1, task.shape(setting)[0])), label)


def _provable(problem: Problem, slope: float, weight: float, linear: float = 0.0) -> float:
    """Return a gradient norm that :func:`~dpalgos.losses.certified_minimiser` is proved to reach.

    Of problems no larger than this one whose minimiser has slopes, weights and a linear term no longer than these.
    """
    error = rounding_bound(problem, slope=np.array([slope]), weight=np.array([weight]), linear=linear)
    return 4.0 * (problem.smoothness / problem.regularisation + 1.0) * float(error[0])


@register("trainers", "erm")
@dataclass(frozen=True, kw_only=True)
class EmpiricalRisk(Unproved, LinearTrainer):
    """Minimise mean loss + (λ/2)‖W‖² exactly, one-vs-rest unless the loss is joint, without noise.

    Guarantee
    ---------
    None: the model is a function of the rows.

    Parameters
    ----------
    regularisation : float
        λ.
    loss : str
        Name of a loss; ``squared`` for numeric labels.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.linear.LinearTrainer`.
    tolerance : float
        Norm of the gradient at which the solver stops.
    """

    regularisation: float = field(default=0.01, metadata=POSITIVE)
    tolerance: float = field(default=1e-8, metadata=POSITIVE)

    source: ClassVar[str] = "regularised empirical risk minimisation; Wang et al. 2024, eq. (4)"
    sound_counterpart: ClassVar[str | None] = "objective-perturbation"

    def problem(self, parties: Sequence[Rows], setting: Setting) -> Problem:
        """Return the risk over all parties' rows together."""
        return self.task.problem(parties, setting, self.regularisation)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the minimiser over all parties' rows together."""
        return self.diagnostics(parties, setting, noise)[0]

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[LinearModel, dict[str, float]]:
        """Return the minimiser and its ``objective``, J at the minimum."""
        self.check(setting)
        problem = self.problem(parties, setting)
        weights = minimise(problem, self.tolerance)
        return self.task.model(weights, setting), {"objective": problem.value(weights)}


@dataclass(frozen=True, kw_only=True)
class MinimiserSum(LinearTrainer, OneSum):
    """One sum, over the parties, of integers made of each party's exact minimiser.

    Parameters
    ----------
    regularisation : float
        λ.
    """

    additive = False

    regularisation: float = field(default=0.01, metadata=POSITIVE)

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the shape of the weights (m, p)."""
        return self.task.shape(setting)

    def work(self, setting: Setting) -> Work:
        """Return that of the parties' solvers, one after the other."""
        return gathering_work(setting, rows=max(setting.sizes, default=0))

    def minimiser(self, rows: Rows, setting: Setting) -> Floats:
        """Return the weights (m, p) that minimise the party's own regularised risk."""
        problem = self.task.problem([rows], setting, self.regularisation)
        return certified_minimiser(problem, self.solver_tolerance(setting))

    def solver_tolerance(self, setting: Setting) -> float:
        """Return γ, the norm of the exact gradient that every party's minimiser is certified to; public.

        At least what :func:`~dpalgos.losses.certified_minimiser` is proved to reach on any rows.
        """
        loss, rows = self.task.loss, max(setting.sizes, default=0)
        slope = slope_at_minimum(loss, 2 if loss.separable else setting.classes, self.regularisation)
        # The risk at the minimiser is at most the risk at 0.
        weight = math.sqrt(2.0 * float(np.max(_loss_at_zero(self.task, setting))) / self.regularisation)
        provable = _provable(self.task.largest_problem(setting, self.regularisation), slope, weight)
        return max(_TOLERANCE * max(1.0, rows / _TOLERANCE_ROWS), provable)


class _WeightedMinimiserSum(MinimiserSum):
    """Σ nᵢθᵢ in integers, its sensitivity, and the model it decodes to."""

    measured: ClassVar[str] = "Σ nᵢθᵢ, θᵢ party i's minimiser, l2"

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the exact Σ nᵢθᵢ, plus the solver's tolerance, in l2."""
        loss = self.task.loss
        problems = outputs(setting.classes) if loss.separable else 1
        tolerance = math.sqrt(problems) * self.solver_tolerance(setting) * max(setting.sizes, default=0)
        slope = slope_at_minimum(loss, setting.classes, self.regularisation)
        return (setting.neighbours.records * slope + 2.0 * tolerance) / self.regularisation

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return n θ of the party."""
        return rows.count * self.minimiser(rows, setting)

    def integer_sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the integer sum, in grid units."""
        classes, width = self.task.shape(setting)
        return self.sensitivity(setting) / self._unit(setting) + math.sqrt(classes * width)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's minimiser times its number of rows, in grid units."""
        return np.rint(rows.count * self.minimiser(rows, setting) / self._unit(setting)).astype(np.int64)

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Return the weighted mean of the parties' minimisers, with the noise of the sum."""
        return self.task.model(state * self._unit(setting) / max(setting.rows, 1), setting)

    def _unit(self, setting: Setting) -> float:
        return 2.0 ** (math.floor(math.log2(self.sensitivity(setting))) - _FINENESS)


def _shrunken(weights: Floats, variance: float) -> Floats:
    """Shrink how the classes differ in each feature as James and Stein do, (K, p); fewer than four stay as they are.

    What all classes have in common moves all scores alike and is left alone.
    """
    if len(weights) < 4:
        return weights
    common = weights.mean(axis=0)
    differences = weights - common
    squares = np.maximum((differences**2).sum(axis=0), np.finfo(np.float64).tiny)
    return np.asarray(common + np.maximum(0.0, 1.0 - (len(weights) - 3) * variance / squares) * differences)


@register("trainers", "output-perturbation")
@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(GaussianAlgorithm, _WeightedMinimiserSum):
    """Release Σ nᵢθᵢ + noise, θᵢ the exact minimiser of party i's regularised risk; the model is this divided by Σ nᵢ.

    Guarantee
    ---------
    The budget, jointly for all classes, under ``local`` (one party) and ``central`` alike.

    *Sensitivity.* A row's gradient is r ⊗ x with ‖x‖ ≤ 1 and ‖r‖ ≤ G: √m for m one-vs-rest slopes in [−1, 1],
    √2 for softmax, √m (1 + 1/√λ) for the squared loss in the ball where its minimiser must lie. Replacing a row of
    party i changes the gradient of its risk at the new minimiser by at most 2G/nᵢ in the Frobenius norm; the
    risk is λ-strongly convex, so θᵢ moves by at most 2G/(nᵢλ) and nᵢθᵢ by at most 2G/λ, however small the party; the
    other parties' terms do not move. (2G is reached: x and −x with one label and all slopes at their ends.)
    Under replace-special one of the two gradients is zero, at any weights, and G takes the place of 2G; nᵢ counts
    null records, whose losses are constant, so the risk stays λ-strongly convex and its mean is over the same nᵢ.
    *Tolerance.* Each minimiser comes with a certificate that its exact gradient has norm at most γ
    (:func:`~dpalgos.losses.certified_minimiser`), so it is off by at most γ/λ on both neighbours: 2nᵢγ/λ more, for the
    largest party. With one-vs-rest each class is certified alone, which makes it √m times as much. γ is public and at
    least what the solver is proved to reach on any rows; the certificate is the computed norm and its rounding error.
    *Integers.* nᵢθ̃ᵢ is rounded to a grid of step u (a power of two), which adds at most √(m d) steps; noise is added
    to the integer sum. Numerics are exact.
    *Class weights* are at most 1 and public. They multiply r, whose norm stays at most G, and the risk at 0, so that
    the minimiser of the squared loss stays in its ball; the mean is over the same nᵢ.
    *Shrinkage.* From four classes on, what is returned is the positive-part James–Stein estimate of how the classes
    differ in each feature, from the noisy sum and the public variance of its noise alone: post-processing.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    regularisation : float
        λ.
    loss, width, intercept_scaling, label_range
        See :class:`EmpiricalRisk`.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011), Corollary 8 (the sensitivity for one party and one class);
    Efron, Morris, "Stein's estimation rule and its competitors", JASA 68 (1973), section 7 (towards the mean).
    """

    source: ClassVar[str] = "Chaudhuri, Monteleoni, Sarwate 2011, Corollary 8, over parties and classes"
    people: ClassVar[str] = OF_MEAN_RISK
    assumptions: ClassVar[tuple[str, ...]] = (SOLVER_ASSUMPTION,)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of the sum."""
        return RoundedGaussian.calibrated(self.budget, self.integer_sensitivity(setting))

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Return the weighted mean of the parties' minimisers, with the noise of the sum, shrunken."""
        grid = self._unit(setting) / max(setting.rows, 1)
        deviation = setting.noise_factor * self.distribution(setting).sigma * grid
        return self.task.model(_shrunken(np.asarray(state * grid), deviation**2), setting)


@register("trainers", "output-perturbation-radial")
@dataclass(frozen=True, kw_only=True)
class RadialOutputPerturbation(PureAlgorithm, _WeightedMinimiserSum):
    """Release Σ nᵢθᵢ plus one radial noise vector over all classes: pure epsilon.

    Guarantee
    ---------
    epsilon-DP, jointly for all classes: the l2 sensitivity is that of ``output-perturbation`` (Δ = 2G/λ, or G/λ under
    replace-special, the solver's tolerance and the rounding to the grid added), and the noise has density
    ∝ exp(−‖η‖ epsilon/Δ) over all m·d weights. Numerics idealised.

    Parameters
    ----------
    budget : PureEpsilon
    regularisation, loss, width, intercept_scaling, label_range
        See :class:`OutputPerturbation`.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011), Algorithm 1, Theorem 6; Owusu-Agyemang et al. 2021, Theorem 4
    (corrected: radial instead of coordinate by coordinate).
    """

    source: ClassVar[str] = "Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1, over parties and classes"
    people: ClassVar[str] = OF_MEAN_RISK
    assumptions: ClassVar[tuple[str, ...]] = (SOLVER_ASSUMPTION,)
    claim: ClassVar[Claim | None] = Claim("epsilon-DP for one party", "Chaudhuri et al. 2011, Theorem 6")

    def distribution(self, setting: Setting) -> IntegerNoise:
        """Return the noise of the sum."""
        distribution = RadialLaplace.calibrated(self.budget.epsilon, self.integer_sensitivity(setting))
        return RoundedRadial(distribution.scale)


# The noise is this many bits coarser than the grid; its distribution allows two more.
_LAPLACE_FINENESS = 30
# No party's numbers exceed 2^61 over its share of the rows, half of what secure summation allots to it.
_ROOM = 2.0**61
# More than the error of the few float64 operations that give the scale.
_MARGIN = 1.0 + 2.0**-40


@dataclass(frozen=True, kw_only=True)
class MinimiserMean(PureAlgorithm, MinimiserSum):
    """The mean of the parties' minimisers as one sum of integers with discrete Laplace noise on each coordinate."""

    regularisation: float = 1e-3
    loss: str = "logistic"

    def check(self, setting: Setting) -> None:
        """Raise, too, where the noise is finer or coarser than its distribution allows."""
        super().check(setting)
        self.distribution(setting)

    def noise_scale(self, setting: Setting) -> float:
        """Return the paper's scale of the Laplace noise of the mean."""
        return self._multiple(setting) * self._change(setting, 0.0) / (self.budget.epsilon * max(len(setting.sizes), 1))

    measured: ClassVar[str] = "sum of the parties' minimisers, l1"
    norm: ClassVar[int] = 1

    def sensitivity(self, setting: Setting) -> float:
        """Return m√p times the change of one classifier: how far one record moves the sum of minimisers, in l1."""
        classes, width = self.task.shape(setting)
        return classes * math.sqrt(width) * self._change(setting, self.solver_tolerance(setting))

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's minimiser."""
        return self.minimiser(rows, setting)

    def distribution(self, setting: Setting) -> DiscreteLaplace:
        """Return the noise of the sum: N times the paper's, and what the grid and the solver's tolerance add."""
        reach = self._multiple(setting) * self._change(setting, self.solver_tolerance(setting)) / self._unit(setting)
        classes, width = self.task.shape(setting)
        return DiscreteLaplace((reach + classes * width) / self.budget.epsilon * _MARGIN)

    def party_weights(self, setting: Setting) -> tuple[int, ...]:
        """Return that every party counts the same: the mean is over parties for any rows."""
        return (1,) * len(setting.sizes)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's minimiser in grid units, cut where no minimiser can be."""
        weights = np.nan_to_num(self.minimiser(rows, setting))
        largest = self._largest()
        return np.rint(np.clip(weights, -largest, largest) / self._unit(setting)).astype(np.int64)

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Return the mean over the parties, with the noise of the sum."""
        return self.task.model(state * self._unit(setting) / max(len(setting.sizes), 1), setting)

    @abstractmethod
    def _multiple(self, setting: Setting) -> int:
        """Return how many changes of one classifier the scale of the sum's noise is, times ε."""

    def _slope(self) -> float:
        """Return G of one classifier, as the papers count."""
        return slope_at_minimum(self.task.loss, 2, self.regularisation)

    def _largest(self) -> float:
        """Return G/λ, which no weight of a minimiser exceeds: λ w is a mean of slopes in [−G, G] times unit rows."""
        return self._slope() / self.regularisation

    def _change(self, setting: Setting, tolerance: float) -> float:
        """Return 2G/(n₍₁₎ λ) + 2γ/λ: how far a replaced row moves one classifier, in l2; G for one against null."""
        slope = setting.neighbours.records * self._slope()
        return (slope / setting.smallest + 2.0 * tolerance) / self.regularisation

    def _unit(self, setting: Setting) -> float:
        """Return the grid's step, a power of two: fine against the noise, and every sum below 2^62 steps."""
        scale = self._multiple(setting) * self._change(setting, 0.0) / self.budget.epsilon
        room = self._largest() * max(setting.rows, 1) / setting.smallest / _ROOM
        return 2.0 ** max(math.floor(math.log2(scale)) - _LAPLACE_FINENESS, math.ceil(math.log2(room)))


@register("trainers", "pathak")
@dataclass(frozen=True, kw_only=True)
class Pathak(MinimiserMean):
    """The mean of the parties' exact minimisers plus Laplace noise for the smallest party alone, 2G/(n₍₁₎ λ ε).

    Guarantee
    ---------
    epsilon-DP where there are enough parties, none otherwise.

    *Sensitivity.* Replacing a row of party i moves each of its m classifiers, of p weights, by at most 2G/(nᵢλ) in l2
    (each risk is λ-strongly convex; G/(nᵢλ) under replace-special, and the published scale with it), and what the
    solver finds, whose gradients it certifies to be at most γ, by at most 2γ/λ more: D = 2(G/n₍₁₎ + γ)/λ at most, for
    any party. Other parties' minimisers do not move. So the sum of the N minimisers moves by at most √m·D in l2, and by
    at most √(m p) √m·D = m√p·D in l1. (Softmax classifiers move by √2 D together, which is no more.)
    *Integers.* Weights are cut to ±G/λ, where every minimiser lies, which moves none apart, and rounded to a grid of
    step u (a power of two): the integer sum moves by at most m√p·D/u + m p in l1.
    *Noise.* Discrete Laplace of scale (N·D/u + m p)/ε on every coordinate of the sum: the published scale, D/ε of the
    mean, but for γ and the grid. The loss is ε (m√p·D/u + m p)/(N·D/u + m p), at most ε if N ≥ m√p. Dropouts change
    neither the sum's noise nor its sensitivity, so N are the parties of the round, not those that are left.
    (The published proof does not ask for that; it forgets the step from l2 to l1, and the N times too much noise makes
    up for it.) Numerics are exact given the certified gradients, as for ``output-perturbation``.

    Parameters
    ----------
    budget : PureEpsilon
    regularisation, loss, width, intercept_scaling, label_range
        See :class:`~dpalgos.linear.LinearTrainer`.

    References
    ----------
    Pathak, Rane, Raj, "Multiparty differential privacy via aggregation of locally trained classifiers", NeurIPS 2010,
    Theorem 3; as PAT in Owusu-Agyemang et al. 2021, section 5.1.
    """

    source: ClassVar[str] = "Pathak, Rane, Raj 2010, Theorem 3"
    people: ClassVar[str] = OF_MEAN_RISK
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Pathak, Rane, Raj 2010, Theorem 3",
        coded("laplace-for-l2-of-parties"),
    )
    sound_counterpart: ClassVar[str | None] = "output-perturbation-radial"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)
    numerics: ClassVar[Numerics] = Numerics.EXACT
    assumptions: ClassVar[tuple[str, ...]] = (SOLVER_ASSUMPTION,)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget if there are at least m√p parties."""
        self.check(setting)
        needed = outputs(setting.classes) ** 2 * self.task.shape(setting)[1]
        if len(setting.sizes) ** 2 < needed:
            return nothing_proved(
                coded("few-parties-for-laplace", parties=len(setting.sizes), needed=math.isqrt(needed - 1) + 1),
                setting.neighbours,
            )
        return super().guarantee(setting)

    def _multiple(self, setting: Setting) -> int:
        """Return N: the noise of the mean is that of the smallest party alone."""
        return max(len(setting.sizes), 1)


# Grid units per sensitivity of what is exchanged: rounding thousands of weights then adds about 10⁻⁴ of it.
_EXCHANGED_FINENESS = 20
# Noise and its sums must stay within 64-bit integers, too.
_LARGEST_EXCHANGED = 2.0**60


@dataclass(frozen=True, kw_only=True)
class Consensus(LinearClassifierTrainer):
    """Consensus ADMM in scaled form: parties' weights wᵢ, the server's z, dual variables uᵢ.

    Minimised is Σ aᵢ Rᵢ(wᵢ) + (λ/2)‖z‖² subject to wᵢ = z, with Rᵢ party i's mean loss and aᵢ = nᵢ/n; the augmented
    term of party i is aᵢ(ρ/2)‖wᵢ − z + uᵢ‖². A step is wᵢ ← argmin Rᵢ(w) + (ρ/2)‖w − z + uᵢ‖², then
    z ← ρ Σ aᵢ(wᵢ + uᵢ)/(λ + ρ), then uᵢ ← uᵢ + wᵢ − z.

    Parameters
    ----------
    iterations : int
        T.
    penalty : float
        ρ: the noise falls with it, and so does the speed.
    regularisation : float
        λ.
    """

    iterations: int = field(default=10, metadata=COUNT)
    penalty: float = field(default=1.0, metadata=POSITIVE)
    regularisation: float = field(default=0.01, metadata=POSITIVE)

    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.task.loss.slope_norm(2)):
            raise ParameterError(f"the loss {self.loss!r} has no bounded slope; use huber-hinge, logistic or softmax")

    def work(self, setting: Setting) -> Work:
        """Return that of the parties' solvers, one after the other in each step."""
        return gathering_work(setting, rows=max(setting.sizes, default=0), times=self.iterations)

    def slope(self, setting: Setting) -> float:
        """Return G: the largest norm of one row's gradient, over all weight rows."""
        return self.task.loss.slope_norm(outputs(setting.classes))

    def reach(self, setting: Setting) -> float:
        """Return how long z − uᵢ may be before it is shortened: twice what the minimiser of the whole can be.

        The risk at the minimiser is at most that at 0.
        """
        return 2.0 * math.sqrt(2.0 * float(np.sum(_loss_at_zero(self.task, setting))) / self.regularisation)

    def solver_tolerance(self, setting: Setting) -> float:
        """Return γ, the norm of the exact gradient that every party's step is certified to; public.

        At least what :func:`~dpalgos.losses.certified_minimiser` is proved to reach on any rows: ‖z − uᵢ‖ ≤ R, so that
        the linear term is at most ρR and the minimiser, within G/ρ of z − uᵢ, at most R + G/ρ.
        """
        slope, reach = self.slope(setting), self.reach(setting)
        problem = self.task.largest_problem(setting, self.penalty)
        return max(_TOLERANCE, _provable(problem, slope, reach + slope / self.penalty, self.penalty * reach))

    def local_minimiser(self, rows: Rows, centre: Floats, setting: Setting) -> Floats:
        """Return a party's step from z − uᵢ, (m, p)."""
        problem = self.task.problem([rows], setting, self.penalty, -self.penalty * centre)
        return certified_minimiser(problem, self.solver_tolerance(setting))

    @abstractmethod
    def sent(
        self, rows: Rows, centre: Floats, setting: Setting, noise: NoiseSource, step: str
    ) -> tuple[Floats, Floats]:
        """Return the iterate that a party sends, (m, p), and the one that its dual variable takes."""

    def consensuses(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Iterator[Floats]:
        """Yield the consensus of each iteration; a party without rows sends nothing."""
        self.check(setting)
        shape = self.task.shape(setting)
        duals, common = np.zeros((len(parties), *shape)), np.zeros(shape)
        for step in range(self.iterations):
            sent, own = np.zeros_like(duals), np.zeros_like(duals)
            for party, rows in enumerate(parties):
                if rows.count > 0:
                    centre = self.shortened(common - duals[party], setting)
                    sent[party], own[party] = self.sent(rows, centre, setting, noise, f"party-{party}-step-{step}")
            common = self.consensus(sent, duals, setting)
            duals += own - common
            yield common

    def consensus(self, weights: Floats, duals: Floats, setting: Setting) -> Floats:
        """Return z from the parties' weights and dual variables (N, m, p)."""
        shares = np.array(setting.sizes, dtype=np.float64) / max(setting.rows, 1)
        mean = np.einsum("i,imp->mp", shares, weights + duals)
        return np.asarray(self.penalty / (self.regularisation + self.penalty) * mean)

    def shortened(self, centre: Floats, setting: Setting) -> Floats:
        """Return z − uᵢ, no longer than :meth:`reach`."""
        length = l2_norm(centre)
        return centre * min(1.0, self.reach(setting) / length) if length > 0 else centre


@register("trainers", "consensus-admm")
@dataclass(frozen=True, kw_only=True)
class ConsensusAdmm(GaussianAlgorithm, Consensus):
    """Consensus ADMM: each party sends its weights with Gaussian noise, and all else is computed from these.

    Guarantee
    ---------
    The budget, for each party's rows, of everything that is exchanged: the noisy weights w̃ᵢ of all T steps, and so z,
    the dual variables and the model. No server needs to be trusted; that all runs in one process is a simulation.

    *One step.* Given what was exchanged before, z and uᵢ are fixed: the dual variables take the noisy w̃ᵢ, uᵢ ← uᵢ +
    w̃ᵢ − z. (With the exact wᵢ they would carry the rows from step to step, and a step's sensitivity would grow with
    the steps before.) Party i's step minimises a ρ-strongly convex risk; a replaced row changes its gradient at the
    minimiser by at most 2G/nᵢ in the Frobenius norm, G√m for m one-vs-rest slopes in [−1, 1] or √2 for softmax, so wᵢ
    moves by at most 2G/(nᵢρ), a record against a null one by half of it, however z − uᵢ lies.
    *Tolerance.* Each step is certified to a gradient norm γ that is public
    (:meth:`Consensus.solver_tolerance`): 2√m γ/ρ more.
    *Integers.* nᵢwᵢ is rounded to a grid whose step is a power of two, √(m p) steps at most; rounded Gaussian integers
    are added, of μ/√T each, so that T steps, adaptively chosen, cost exactly μ (Dong, Roth, Su 2022, Corollary 2). A
    row is in one party: the parties' releases do not add up. Numerics exact.

    The model is the mean of z over the second half of the steps: post-processing.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    iterations : int
        T.
    penalty : float
        ρ.
    regularisation : float
        λ.
    loss : str
        A loss of bounded slope.
    width, intercept_scaling
        See :class:`~dpalgos.linear.LinearClassifierTrainer`.

    References
    ----------
    Boyd, Parikh, Chu, Peleato, Eckstein, "Distributed optimization and statistical learning via the alternating
    direction method of multipliers", 2011, section 8.2.3; Tavara, Schliep, Basu 2021 (corrected); Huang, Hu, Guo,
    Chan-Tin, Gong, "DP-ADMM", IEEE TIFS 15 (2020), for noise on the primal variables.
    """

    source: ClassVar[str] = "Tavara, Schliep, Basu 2021, corrected: every exchanged iterate is a release"
    people: ClassVar[str] = OF_MEAN_RISK
    assumptions: ClassVar[tuple[str, ...]] = (SOLVER_ASSUMPTION,)
    measured: ClassVar[str] = "nᵢwᵢ of one step, l2"

    def check(self, setting: Setting) -> None:
        """Raise where weights could leave the grid of their noise."""
        super().check(setting)
        self.distribution(setting)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves nᵢwᵢ of one step, the solver's tolerance included, in l2."""
        weights, _ = self.task.shape(setting)
        tolerance = math.sqrt(weights) * self.solver_tolerance(setting) * max(setting.sizes, default=0)
        return (setting.neighbours.records * self.slope(setting) + 2.0 * tolerance) / self.penalty

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return nᵢwᵢ of the party's first step."""
        return rows.count * self.local_minimiser(rows, np.zeros(self.task.shape(setting)), setting)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of nᵢwᵢ in each step, in grid units."""
        weights, width = self.task.shape(setting)
        unit, largest = self._unit(setting), self.reach(setting) + self.slope(setting) / self.penalty
        if max(setting.sizes, default=0) * largest / unit > _LARGEST_EXCHANGED:
            raise ParameterError(
                f"regularisation is {self.regularisation!r} and penalty {self.penalty!r}; with parties of "
                f"{max(setting.sizes)} rows the weights could exceed the grid: choose larger values"
            )
        moved = self.sensitivity(setting) / unit + math.sqrt(weights * width)
        return RoundedGaussian.calibrated(self.budget, moved, self.iterations)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the mean of the last half of the consensuses of all parties."""
        kept = list(self.consensuses(parties, setting, noise))
        return self.task.model(np.mean(kept[self.iterations // 2 :], axis=0), setting)

    def sent(
        self, rows: Rows, centre: Floats, setting: Setting, noise: NoiseSource, step: str
    ) -> tuple[Floats, Floats]:
        """Return the noisy minimiser, which the dual variable takes too."""
        unit = self._unit(setting)
        exact = np.rint(rows.count * self.local_minimiser(rows, centre, setting) / unit).astype(np.int64)
        drawn = self.distribution(setting).sample(exact.size, noise.stream(step, exact))
        noisy = (exact + drawn.reshape(exact.shape)) * unit / rows.count
        return noisy, noisy

    def _unit(self, setting: Setting) -> float:
        return 2.0 ** (math.floor(math.log2(self.sensitivity(setting))) - _EXCHANGED_FINENESS)
