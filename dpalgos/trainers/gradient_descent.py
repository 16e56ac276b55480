"""Noisy gradient descent: full-batch, on means of parties' means, and on sampled rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dpalgos.accounting.composition import gaussian_part, noise_multiplier
from dpalgos.algorithms import ApproximateAlgorithm, GaussianAlgorithm, Refused, Work, grid
from dpalgos.guarantees import Claim, GaussianMu, Guarantee, Neighbours, Numerics, Setting, SlackGaussian, Trust
from dpalgos.integer_sums import ClassSums, EncodedRows, GradientSums, sum_sensitivity
from dpalgos.linear import BALANCED, LinearTask, LinearTrainer
from dpalgos.mechanisms.distributions import RoundedGaussian, total_mu
from dpalgos.models import LinearModel
from dpalgos.parameters import COUNT, NON_NEGATIVE, POSITIVE, SHARE, ParameterError, at_least, between
from dpalgos.registry import register
from dpalgos.rows import Block, ChosenRows, Floats, Ints, NoiseSource, Rows, fingerprints
from dpalgos.secure.noise_shares import TruexGaussian, share_sigma
from dpalgos.sentences import coded

State = TypeVar("State")

OF_WEIGHED_GRADIENTS = (
    "the gradient of each of k rows has weight 1/k, and no score depends on k, so their sum is no longer than the "
    "gradient of one row"
)
"""Why a person's rows move a sum of clipped gradients by no more than one row does."""


@dataclass(frozen=True, kw_only=True)
class ClippedGradientTrainer(LinearTrainer):
    """A trainer of linear models that sees rows through exact sums of clipped gradients.

    Parameters
    ----------
    clip : float
        Largest norm of a row's gradient.
    """

    clip: float = field(default=1.0, metadata=POSITIVE)

    measured: ClassVar[str] = "sum of clipped gradients, l2"

    def sensitivity(self, setting: Setting) -> float:
        """Return clip times the records that neighbours differ in, at any weights."""
        return sum_sensitivity(self.clip, setting.neighbours)


@dataclass(frozen=True, kw_only=True)
class GradientSumTrainer(GaussianAlgorithm, ClippedGradientTrainer, Generic[State]):
    """T noisy integer sums of clipped gradients; a subclass says what the server makes of them.

    Guarantee
    ---------
    The budget, for any rows and for any use of the sums: with Δ = 2·clip under replace-one and Δ = clip under
    replace-special (in grid units, from the encoded norms, :class:`~dpalgos.integer_sums.GradientSums`) each of the T
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

    iterations: int = field(default=100, metadata=COUNT)
    regularisation: float = field(default=1e-3, metadata=NON_NEGATIVE)

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
        scale = grid(self.mu(), 2.0, self.iterations, setting)
        return GradientSums(task=self.task, clip=self.clip, scale=scale)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sum at the first weights."""
        sums = self.sums(setting)
        return sums.decode(sums.total(self.weights(self.initial(setting)), rows, setting))

    def steps(self, setting: Setting) -> int:
        """Return the number of gradient sums."""
        return self.iterations

    def distribution(self, setting: Setting) -> RoundedGaussian:
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
        return self.sums(setting).work(setting, self.steps(setting))

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

    step_size: float = field(default=1.0, metadata=POSITIVE)

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


# Found by cross-validation on the training rows of digits (epsilon 0.3, 1, 3) and MNIST (epsilon 0.1): the noise's
# random walk over all steps may reach this length in each coordinate before momentum.
_WALK = 0.25
_LARGEST_STEP = 4.0
# Of mu^2, what counting the classes takes.
_COUNTED = 0.05


def chosen_step(step_size: float | None, deviation: float, iterations: int) -> float:
    """Return the step size that is given, or the one at which noise of this deviation walks as far as is good."""
    if step_size is not None:
        return step_size
    return min(_LARGEST_STEP, _WALK / (math.sqrt(iterations) * deviation))


@dataclass(frozen=True, slots=True)
class ClassedRows:
    """A party's sums over each class, and its rows, encoded where they are few enough to keep."""

    class_sums: Ints
    rows: Rows | EncodedRows

    @classmethod
    def of(cls, rows: Rows, sums: ClassSums, gradients: GradientSums, setting: Setting) -> ClassedRows:
        """Add up a party's classes and encode its rows, in one pass, unless they are too many to keep."""
        total: Ints = np.zeros(sums.shape(setting), dtype=np.int64)

        def adding(block: Block) -> Block:
            np.add(total, sums.of_block(*block, setting), out=total)
            return block

        encoded = gradients.prepare(rows, setting, adding)
        return cls(sums.total(rows, setting) if encoded is rows else total, encoded)

    @classmethod
    def merged(cls, parties: Sequence[ClassedRows]) -> list[ClassedRows]:
        """Join parties for a curator who adds up anyway."""
        rows = GradientSums.merge([party.rows for party in parties])
        first: Ints = sum((party.class_sums for party in parties[1:]), start=parties[0].class_sums)
        return [cls(np.zeros_like(first) if index else first, part) for index, part in enumerate(rows)]


@dataclass(frozen=True, slots=True)
class DescentState:
    """The server's state between two sums, made of noisy sums alone.

    Parameters
    ----------
    class_weight : tuple of float
        By noisy counts (:meth:`~dpalgos.integer_sums.ClassSums.balance`); empty where none are counted.
    """

    step: int
    weights: Floats
    velocity: Floats
    average: Floats
    class_weight: tuple[float, ...] = ()

    def moved(self, gradient: Floats, step_size: float, momentum: float, steps: int, first: int = 0) -> DescentState:
        """Return the state after a step with momentum; iterates of the last half of ``steps`` are averaged.

        Parameters
        ----------
        gradient : array
            Divided by the number of rows.
        step_size, momentum : float
        steps : int
            Of the whole descent.
        first : int
            Number of the descent's first step.
        """
        velocity = momentum * self.velocity + gradient
        weights = self.weights - step_size * velocity
        late = self.step - first >= steps // 2
        average = self.average + weights / (steps - steps // 2) if late else self.average
        return replace(self, step=self.step + 1, weights=weights, velocity=velocity, average=average)


@register("trainers", "noisy-gd")
@dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent(GradientSumTrainer[DescentState]):
    """Minimise a loss, softmax by default, by full-batch gradient descent on noisy integer sums of clipped gradients.

    Each step sums the rows' gradients r ⊗ x (for softmax r = p − e_y over all classes, jointly clipped so that
    ‖r ⊗ x‖ = ‖r‖ ‖x‖ ≤ clip), adds integer noise once, and takes a step with momentum; the released model is the
    average of the last half of the iterates.

    Guarantee
    ---------
    The budget, for any rows: with Δ = 2·clip under replace-one, clip under replace-special (in grid units, from
    the encoded norms) each of the T sums is a Gaussian mechanism on an integer vector, μ/√T-GDP, and their adaptive
    composition is exactly μ-GDP.
    Everything after the sums is post-processing. Numerics are exact: :class:`~dpalgos.integer_sums.GradientSums`
    encodes, clips and sums in integers.
    *Balanced classes.* The first sum is then that of the classes' counts in units of a public integer u
    (:class:`~dpalgos.integer_sums.ClassSums`, bare), of sensitivity Δ₀ = √2 u under replace-one and u under
    replace-special. All T + 1 sums get noise of one σ and cost √(Δ₀² + TΔ²)/σ together; u is the largest at which Δ₀²
    is at most a twentieth of Δ₀² + TΔ². The noisy counts change nothing but the weights of classes, each at most 1, and
    Δ holds at any of them.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        For all steps together.
    loss : str
        ``softmax``, or any other; ``squared`` for numeric labels.
    iterations : int
        T.
    clip : float
        Largest norm of a row's gradient; softmax never exceeds √2.
    class_weight : sequence of float, or ``"balanced"``
        See :class:`~dpalgos.linear.LinearClassifierTrainer`. ``"balanced"`` weighs the classes by noisy counts, which
        take a twentieth of μ².
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
        the first step, at any budget. 0 starts from zero.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.linear.LinearTrainer`.

    References
    ----------
    Bassily, Smith, Thakurta, FOCS 2014; Abadi et al., CCS 2016 (clipping); Dong, Roth, Su, JRSS B 84 (2022),
    Corollary 2 (composition); Shejwalkar et al. 2022 (averaging iterates is free).
    """

    loss: str = "softmax"
    iterations: int = 80
    clip: float = 0.5
    step_size: float | None = field(default=None, metadata=POSITIVE)
    momentum: float = field(default=0.9, metadata=between(0.0, 1.0, open_high=True))
    mean_weight: float = field(default=0.25, metadata=SHARE)
    regularisation: float = 0.0
    public_start: float = field(default=0.0, metadata=NON_NEGATIVE)

    source: ClassVar[str] = "ours; full-batch DP gradient descent after Bassily, Smith, Thakurta 2014"
    people: ClassVar[str] = OF_WEIGHED_GRADIENTS

    @property
    def task(self) -> LinearTask:
        """The learning task; of balanced classes before they are counted."""
        return replace(super().task, class_weight=()) if self._balances else super().task

    def check(self, setting: Setting) -> None:
        """Raise where the last features cannot be the scores of the classes, or there are no classes to balance."""
        super().check(setting)
        if self._balances and setting.classes < 2:
            raise ParameterError("class_weight is 'balanced', and numeric labels have no classes: omit it")
        if self.public_start > 0 and not 2 <= setting.classes <= setting.dimension:
            raise ParameterError(
                f"public_start is {self.public_start:g}; rows have {setting.dimension} features and {setting.classes} "
                "classes, too few features for the scores of a public head (one per class): omit it"
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

    def steps(self, setting: Setting) -> int:
        """Return the number of sums: a gradient's a step, and the counts of balanced classes."""
        return self.iterations + self._balances

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum."""
        if not self._balances:
            return super().distribution(setting)
        counts = self.counts(setting).sensitivity(setting.neighbours)
        return RoundedGaussian.calibrated(self.mu(), math.hypot(self._of_gradients(setting), counts))

    def counts(self, setting: Setting) -> ClassSums:
        """Return how classes are counted: in the largest units that cost no more than their share of μ²."""
        one = ClassSums(scale=1.0, constant=1.0, bare=True).sensitivity(setting.neighbours)
        unit = math.floor(math.sqrt(_COUNTED / (1.0 - _COUNTED)) * self._of_gradients(setting) / one)
        # All rows' counts stay within 64-bit integers.
        unit = min(unit, 2**60 // max(setting.rows, 1))
        return ClassSums(scale=unit, constant=1.0, bare=True)

    def _of_gradients(self, setting: Setting) -> float:
        return self.sums(setting).sensitivity(setting.neighbours) * math.sqrt(self.iterations)

    def prepare(  # type: ignore[override]  # the counts of balanced classes go with the rows
        self, rows: Rows, setting: Setting
    ) -> Rows | EncodedRows | ClassedRows:
        """Encode the party's rows once, and count their classes where these are balanced."""
        if not self._balances:
            return super().prepare(rows, setting)
        return ClassedRows.of(rows, self.counts(setting), self.sums(setting), setting)

    def merge(  # type: ignore[override]  # as above
        self, prepared: Sequence[Rows | EncodedRows | ClassedRows]
    ) -> Sequence[Rows | EncodedRows | ClassedRows]:
        """Join parties for a curator who adds up anyway."""
        if self._balances:
            return ClassedRows.merged(cast(Sequence[ClassedRows], prepared))
        return super().merge(cast(Sequence[Rows | EncodedRows], prepared))

    def contribution(self, state: DescentState, rows: Rows | EncodedRows | ClassedRows, setting: Setting) -> Ints:
        """Return the party's counts where classes are balanced, and afterwards its sum of clipped gradients."""
        if not isinstance(rows, ClassedRows):
            if isinstance(rows, EncodedRows) or not self._balances:
                return super().contribution(state, rows, setting)
            rows = ClassedRows.of(rows, self.counts(setting), self.sums(setting), setting)
        if state.step == 0:
            return rows.class_sums
        return self.sums(setting).weighing(state.class_weight).total(state.weights, rows.rows, setting)

    def update(self, state: DescentState, noisy_sum: Ints, setting: Setting) -> DescentState:
        """Take one step with momentum and add to the average; first, weigh balanced classes by their counts."""
        if state.step < self._balances:
            deviation = self.distribution(setting).sigma * setting.noise_factor
            return replace(state, step=1, class_weight=self.counts(setting).balance(noisy_sum, deviation))
        gradient = self.sums(setting).decode(noisy_sum) / max(setting.rows, 1)
        gradient = gradient + self.regularisation * state.weights
        step_size = self._step_size(setting)
        return state.moved(gradient, step_size, self.momentum, self.iterations, first=self._balances)

    def result(self, state: DescentState, setting: Setting) -> LinearModel:
        """Return the averaged model on the rows as they were given."""
        return self.task.model(self.sums(setting).shrunk(state.average), setting)

    def sums(self, setting: Setting) -> GradientSums:
        """Return sums of gradients at rows whose means are shrunk."""
        return replace(super().sums(setting), mean_weight=self.mean_weight)

    @property
    def _balances(self) -> bool:
        return self.class_weight == BALANCED

    def _step_size(self, setting: Setting) -> float:
        mean_mu = self.mu().mu * max(setting.rows, 1)
        deviation = setting.noise_factor * self.sensitivity(setting) * math.sqrt(self.iterations) / mean_mu
        return chosen_step(self.step_size, deviation, self.iterations)


@dataclass(frozen=True, kw_only=True)
class MeanDescent(PlainDescent):
    """Descent on the mean over parties of their mean gradients for any rows."""

    loss: str = "logistic"
    iterations: int = 1000

    def sums(self, setting: Setting) -> GradientSums:
        """Return sums in which each party's gradients weigh as those of the smallest party."""
        return replace(super().sums(setting), smallest_party=setting.smallest)

    def party_weights(self, setting: Setting) -> tuple[int, ...]:
        """Return that every party counts the same: the mean is over parties for any rows."""
        return (1,) * len(setting.sizes)

    def divisor(self, setting: Setting) -> int:
        """Return N n₍₁₎."""
        return max(len(setting.sizes), 1) * setting.smallest


@register("trainers", "gradient-perturbation")
@dataclass(frozen=True, kw_only=True)
class GradientPerturbation(MeanDescent):
    """Full-batch gradient descent on the mean of the parties' mean gradients, noise once on each mean.

    Guarantee
    ---------
    The budget. Party i's mean gradient times n₍₁₎ (the smallest party's size) is a sum of row gradients of norm at most
    clip·n₍₁₎/nᵢ ≤ clip, so a replaced row moves the sum over the parties by at most Δ = 2·clip, and a row against a
    null record by clip (in grid units, from the encoded norms; nᵢ counts null records); T Gaussian mechanisms on
    integer vectors of that sensitivity cost exactly √T Δ/σ. The mean is the sum over N n₍₁₎. Numerics exact.

    Parameters
    ----------
    budget : ZeroConcentrated or GaussianMu
        For all steps together.
    loss : str
        ``logistic``; ``squared`` for numeric labels.
    iterations : int
        T.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        G, the largest norm of a row's gradient; binary logistic losses never exceed 1.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.linear.LinearTrainer`.

    References
    ----------
    Jayaraman, Wang, Evans, Gu, "Distributed learning without distress", NeurIPS 2018, section 3.2 (with zCDP).
    """

    source: ClassVar[str] = "Jayaraman et al. 2018, section 3.2"
    people: ClassVar[str] = OF_WEIGHED_GRADIENTS
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP by zCDP", "Jayaraman et al. 2018, Theorem 3.4")


@register("trainers", "mpc-gp")
@dataclass(frozen=True, kw_only=True)
class PublishedGradientPerturbation(ApproximateAlgorithm, MeanDescent):
    """Owusu-Agyemang et al.'s iterative gradient perturbation, with the paper's σ.

    Guarantee
    ---------
    μ-GDP with μ = √T Δ/σ = epsilon/√(2 ln(1/δ)), exactly, for the paper's σ² = 8G²T ln(1/δ)/(epsilon² N² n₍₁₎²), which
    is for a replaced row; under replace-special Δ and σ are half as much and μ is the same. The
    paper's own proof goes through zCDP and drops the term Tρ of ε = Tρ + 2√(Tρ ln(1/δ)); what is stated here needs
    neither. That μ implies the claimed (epsilon, delta) up to epsilon ≈ 7 at δ = 10⁻³. Rows' gradients are clipped
    to G, which the paper assumes; sums and noise are integers, numerics exact.

    Parameters
    ----------
    budget : ApproximateDP
        The paper's total (ε, δ).
    loss : str
        ``logistic``; ``squared`` for numeric labels.
    iterations : int
        T; the paper's figures have 1000. By its Theorem 9, T = 2 ln(n)/(ην) for a curvature ν known in advance.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        G.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.linear.LinearTrainer`.

    References
    ----------
    Owusu-Agyemang, Qin, Benjamin, Xiong, Qin, "Insuring against the perils in distributed learning", Math. Biosci. Eng.
    18 (2021), Theorem 7, eq. (4.2), Algorithm 1.
    """

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, Theorem 7, Algorithm 1"
    people: ClassVar[str] = OF_WEIGHED_GRADIENTS
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Owusu-Agyemang et al. 2021, Theorem 7")

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what the paper's noise is proved to cost."""
        self.check(setting)
        return Guarantee(losses=(self.mu(),), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def mu(self) -> GaussianMu:
        """Return what the paper's σ costs."""
        return GaussianMu(self.budget.epsilon / math.sqrt(2.0 * math.log(1.0 / self.budget.delta)))


@register("trainers", "local-gradient")
@dataclass(frozen=True, kw_only=True)
class LocalGradient(MeanDescent):
    """Baseline: each party adds to each of its mean gradients all the noise that its own guarantee needs.

    The N parties' noise is simulated by one draw of its sum.

    Guarantee
    ---------
    The budget, towards a server that sees each party's noisy gradients: party i's mean gradient moves by at most
    2·clip/nᵢ (clip/nᵢ under replace-special, and all that follows halves), and its noise has deviation
    √T·2·clip/(nᵢ μ). In units of n₍₁₎ times the mean, that is a deviation of
    n₍₁₎/nᵢ times the one of ``gradient-perturbation``; the simulated sum has their root of summed squares, at least
    as much as the sum alone would need.

    Parameters
    ----------
    budget : ZeroConcentrated or GaussianMu
        For all steps together, of each party.
    loss, iterations, step_size, regularisation, clip, width, intercept_scaling, label_range
        See :class:`PublishedGradientPerturbation`.

    References
    ----------
    Shokri, Shmatikov, "Privacy-preserving deep learning", CCS 2015; as a baseline in Owusu-Agyemang et al. 2021,
    section 5.1, with zCDP.
    """

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, section 5.1 (locally perturbed gradients)"
    people: ClassVar[str] = OF_WEIGHED_GRADIENTS
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the sum of the parties' noise in each step."""
        alone = super().distribution(setting)
        shares = (setting.smallest / max(size, 1) for size in setting.sizes)
        return RoundedGaussian(alone.sigma * math.sqrt(sum(share * share for share in shares)))


@register("trainers", "truex")
@dataclass(frozen=True, kw_only=True)
class TruexDescent(PlainDescent):
    """Linear SVM by full-batch gradient descent on sums of clipped gradients; each party adds variance σ²/(t − 1).

    The paper has its parties send clipped and noised weights under threshold encryption; here the sums are masked, and
    what is clipped are the rows' gradients, which is what the noise is calibrated to.

    Guarantee
    ---------
    The budget, if of the parties at least t are honest and one of those curious: the shares of the other t − 1 are
    unknown to it. With Δ = 2·clip under replace-one, clip under replace-special (in grid units, from the encoded norms)
    and σ = √T Δ/μ, t − 1
    discrete Gaussians of variance σ²/(t − 1), raised by what :func:`dpalgos.secure.noise_shares.share_sigma` proves
    is lost in the sum's discreteness, are as private as one Gaussian of σ; T of them compose adaptively to the budget.
    Numerics exact. Under ``central`` the curator adds the noise of t − 1 shares.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        For all steps together.
    honest : int, optional
        t, at least 2: parties assumed honest. Default: all parties. Fewer than that mean more noise.
    loss : str
        ``huber-hinge``.
    iterations, step_size, regularisation, clip, width, intercept_scaling, label_range
        See :class:`GradientPerturbation`.

    References
    ----------
    Truex, Baracaldo, Anwar, Steinke, Ludwig, Zhang, Zhou, "A hybrid approach to privacy-preserving federated learning",
    AISec 2019, section 4 (the split of the noise); as a row of Table 1 in Wang et al. 2024.
    """

    honest: int | None = field(default=None, metadata=at_least(2))

    source: ClassVar[str] = "Truex et al. 2019, section 4"
    people: ClassVar[str] = OF_WEIGHED_GRADIENTS
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP if t parties are honest", "Truex et al. 2019, section 4")
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, and who is assumed honest."""
        assumed = coded("honest-parties", honest=self._honest(setting))
        return replace(super().guarantee(setting), assumptions=(assumed,))

    def distribution(self, setting: Setting) -> TruexGaussian:  # type: ignore[override]  # another distribution, of the same deviation
        """Return the noise of each sum, with its published split."""
        honest = self._honest(setting)
        whole = super().distribution(setting).sigma
        classes, width = self.task.shape(setting)
        share = share_sigma(whole, shares=honest - 1, dimension=classes * width)
        return TruexGaussian(sigma=share * math.sqrt(honest - 1) * (1.0 + 2.0**-48), honest=honest)

    def _honest(self, setting: Setting) -> int:
        parties = len(setting.sizes)
        # One party alone, as under a curator, adds the whole noise: t - 1 = 1.
        honest = max(parties, 2) if self.honest is None else self.honest
        if honest > max(parties, 2):
            raise ParameterError(f"honest is {honest} of {parties} parties; choose from 2 to {max(parties, 2)}")
        return honest


_RATE_BITS = 32


@register("trainers", "dp-sgd")
@dataclass(frozen=True, kw_only=True)
class SampledDescent(ApproximateAlgorithm, ClippedGradientTrainer):
    """Minimise a loss by stochastic gradient descent on noisy sums over Poisson samples of the rows.

    What others' results are compared with: at each step every row takes part with probability q, drawn independently
    of all else from its holder's secret; the clipped gradients of those that do are summed, get noise once, and are
    divided by q n, which is public. Which rows took part, and how many, is never released.

    Guarantee
    ---------
    The budget, under ``replace-special`` alone. The T sampled steps are dominated by the (s, μ) of
    :mod:`dpalgos.accounting.composition`, s = ``slack_share``·δ, and the loss is stated as it: everything revealed with
    probability s, in addition to μ-Gaussian-DP, which together are (ε, δ)-DP. Later plans add s to s and μ² to μ².
    Noise is integer noise on integer sums (:class:`~dpalgos.integer_sums.GradientSums`), draws are 32-bit integers
    below ⌊q 2³²⌋, so numerics are exact, given that the stream is indistinguishable from random bits.

    Refused under ``replace-one``: doubling the sensitivity proves nothing there (Lebeda et al. 2024), and an (s, μ) of
    one step of a chain says nothing of two (:func:`~dpalgos.accounting.costs.group_loss`). An account that keeps
    replace-one, or counts several rows a person, admits no such release.

    The sampling protects a row from an observer who does not know its draws. The draws come from a secret. A trusted
    curator (``central``), who knows the rows as well, or the party itself (``local``) holds it. Against these no
    amplification is claimed. Secure sums are not supported: their contributions are made without a secret.

    Parameters
    ----------
    budget : ApproximateDP
    loss : str
        ``softmax``, or any other; ``squared`` for numeric labels.
    sampling_rate : float
        q, in [2⁻²⁰, 1]; rounded up to a multiple of 2⁻³².
    iterations : int
        T.
    clip : float
        Largest norm of a row's gradient.
    step_size : float, optional
        By default by the rule of ``noisy-gd``, from public quantities.
    momentum : float
        In [0, 1).
    slack_share : float
        s/δ, in (0, 1). A tenth costs less than 1 % of noise against pricing this plan alone.
    regularisation : float
        λ of (λ/2)‖W‖², free of charge.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.linear.LinearTrainer`.

    References
    ----------
    Song, Chaudhuri, Sarwate 2013; Bassily, Smith, Thakurta, FOCS 2014; Abadi et al., CCS 2016; Zhu, Dong, Wang, AISTATS
    2022 (dominating pairs); Lebeda, Regehr, Kamath, Steinke 2024 (pitfalls); Shejwalkar et al. 2022 (averaging).
    """

    loss: str = "softmax"
    sampling_rate: float = field(default=0.1, metadata=between(2.0 ** (-20), 1.0))
    iterations: int = field(default=200, metadata=COUNT)
    clip: float = 0.5
    step_size: float | None = field(default=None, metadata=POSITIVE)
    momentum: float = field(default=0.9, metadata=between(0.0, 1.0, open_high=True))
    slack_share: float = field(default=0.1, metadata=between(0.0, 1.0, open_low=True, open_high=True))
    regularisation: float = field(default=0.0, metadata=NON_NEGATIVE)

    source: ClassVar[str] = "Abadi et al. 2016; Zhu, Dong, Wang 2022"
    people: ClassVar[str] = Refused("it samples rows, so it samples a person with many rows more often")
    relations: ClassVar[tuple[Neighbours, ...]] = (Neighbours.REPLACE_SPECIAL,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget.delta == 0.0:
            raise ParameterError("delta is 0: a sampled Gaussian step has no pure guarantee; choose delta > 0")

    def check(self, setting: Setting) -> None:
        """Raise under replace-one, where nothing is proved."""
        if setting.neighbours is Neighbours.REPLACE_ONE:
            raise ParameterError(
                "dp-sgd is proved only under replace-special: for a replaced row that may or may not take "
                "part, twice the sensitivity does not bound the change (Lebeda, Regehr, Kamath, Steinke 2024); "
                "choose --neighbours replace-special, "
                "or noisy-gd, which uses all rows at each step"
            )
        super().check(setting)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the slack and μ."""
        self.check(setting)
        return Guarantee(
            losses=(SlackGaussian(mu=self._mu, slack=self._slack),),
            neighbours=setting.neighbours,
            numerics=Numerics.EXACT,
            assumptions=(coded("secret-participation"),),
        )

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sum at zero weights, were all rows to take part."""
        sums = self.sums(setting)
        return sums.decode(sums.total(np.zeros(self.task.shape(setting)), rows, setting))

    def work(self, setting: Setting) -> Work:
        """Return that of a sum over a sample of the rows in each step."""
        share = self._threshold / 2.0**_RATE_BITS
        whole = self.sums(setting).work(setting, self.iterations)
        return replace(
            whole, operations=whole.operations * share, small_operations=whole.small_operations * share + setting.rows
        )

    def sums(self, setting: Setting) -> GradientSums:
        """Return how gradients are clipped, encoded and added."""
        return GradientSums(task=self.task, clip=self.clip, scale=grid(GaussianMu(self._mu), 1.0, 1, setting))

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum."""
        multiplier = noise_multiplier(self._threshold / 2.0**_RATE_BITS, self.iterations, self._slack, self._mu)
        sensitivity = self.sums(setting).sensitivity(setting.neighbours)
        return RoundedGaussian(math.nextafter(multiplier * sensitivity * (1.0 + 2.0**-48), math.inf))

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the average of the last half of the iterates."""
        self.check(setting)
        sums, distribution = self.sums(setting), self.distribution(setting)
        prepared = [sums.prepare(rows, setting) for rows in parties]
        ends = np.cumsum([rows.count for rows in parties])
        prints = fingerprints(parties)
        expected = max(self._threshold / 2.0**_RATE_BITS * setting.rows, 1.0)
        deviation = distribution.sigma / sums.scale**2 * self.clip / expected
        step_size = chosen_step(self.step_size, deviation, self.iterations)
        zero = np.zeros(self.task.shape(setting))
        state = DescentState(0, zero, zero, zero)
        for step in range(self.iterations):
            # Words of 64 bits; the upper half decides.
            words = noise.stream(f"rows-{step}", prints).words(sum(rows.count for rows in parties))
            taking_part = (words >> np.uint64(64 - _RATE_BITS)) < np.uint64(self._threshold)
            total = np.zeros(zero.shape, dtype=np.int64)
            for kept, own in zip(prepared, np.split(taking_part, ends[:-1]), strict=True):
                total += sums.total(state.weights, _chosen(kept, own), setting)
            noisy = total + distribution.sample(total.size, noise.stream(f"sum-{step}", total)).reshape(total.shape)
            gradient = sums.decode(noisy) / expected + self.regularisation * state.weights
            state = state.moved(gradient, step_size, self.momentum, self.iterations)
        return self.task.model(state.average, setting)

    @property
    def _threshold(self) -> int:
        """Below which a draw of 32 bits means that the row takes part: q, rounded up."""
        return math.ceil(self.sampling_rate * 2.0**_RATE_BITS)

    @property
    def _slack(self) -> float:
        return self.slack_share * self.budget.delta

    @property
    def _mu(self) -> float:
        return gaussian_part(self.budget.epsilon, self.budget.delta, self._slack)


def _chosen(kept: Rows | EncodedRows, taking_part: NDArray[np.bool_]) -> Rows | EncodedRows:
    """Return the rows that take part, of one party's."""
    if isinstance(kept, EncodedRows):
        return kept.where(taking_part)
    return ChosenRows(kept, lambda start, stop: taking_part[start:stop], int(taking_part.sum()))
