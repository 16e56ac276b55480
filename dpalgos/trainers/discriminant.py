"""Models in closed form from one noisy sum: of classes, with gradient descent from there, or of second moments."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from dpalgos.algorithms import GaussianAlgorithm, NeighbouringPair, OneSum, Work, antipodal_pair, grid, one_row_apart
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.integer_sums import OF_BOUNDED_TRACE, ClassSums, GradientSums, packed_gram
from dpalgos.linear import BALANCED, LinearTask
from dpalgos.losses import Squared, make_loss, outputs
from dpalgos.mechanisms.distributions import RoundedGaussian, total_mu, unpack
from dpalgos.models import Artefact, LinearModel, label_range_of
from dpalgos.parameters import NATURAL, NON_NEGATIVE, POSITIVE, SHARE, ParameterError, between
from dpalgos.projections.covariance import GaussianMoments
from dpalgos.registry import register
from dpalgos.rows import Array, Features, Floats, Ints, Rows
from dpalgos.trainers.gradient_descent import ClassedRows, DescentState


def linear_model(weights: Floats, intercept: Floats) -> LinearModel:
    """Return the model of one score a class; of two classes, that of the difference of their scores."""
    if len(weights) == 2:
        return LinearModel(weights=np.diff(weights, axis=0), intercept=np.diff(intercept))
    return LinearModel(weights=weights, intercept=intercept)


@dataclass(frozen=True, kw_only=True)
class ClassSumTrainer(GaussianAlgorithm):
    """Base of trainers that release the sums of each class.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    count_weight : float, optional
        a of the constant that counts rows, in [0, 1]; by default 1 under replace-one, where it is free, and ¼ under
        replace-special, where it costs 3 %.
    """

    count_weight: float | None = field(default=None, metadata=SHARE)

    measured: ClassVar[str] = "sum of the rows of each class, and their number times a, l2"

    def check(self, setting: Setting) -> None:
        """Raise for numeric labels."""
        super().check(setting)
        if setting.classes < 2:
            raise ParameterError(
                "class means need classes; for numeric labels use sufficient-statistics, or noisy-gd with loss=squared"
            )

    @abstractmethod
    def class_sums(self, setting: Setting) -> ClassSums:
        """Return the sums, on the grid of this trainer's noise."""

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums, in units of the rows."""
        return self.class_sums(setting).sensitivity(setting.neighbours) / self.class_sums(setting).scale

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sums, in units of the rows."""
        return np.asarray(self.class_sums(setting).total(rows, setting) / self.class_sums(setting).scale)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return antipodal rows of one class."""
        return antipodal_pair(setting)

    def _count_weight(self, setting: Setting) -> float:
        if self.count_weight is not None:
            return self.count_weight
        return 1.0 if setting.neighbours is Neighbours.REPLACE_ONE else 0.25


@register("trainers", "class-means")
@dataclass(frozen=True, kw_only=True)
class ClassMeansDiscriminant(ClassSumTrainer, OneSum):
    """Release the noisy sum of the rows of each class once; score x by x·m_c − ½‖m_c‖².

    The fewest numbers that tell classes apart, and so the least noise: at small budgets nothing beats it on features in
    which classes are round (:class:`~dpalgos.features.whitening.PublicWhitening`). Means are shrunk towards the mean of
    all rows by the noise that they have, those of rare classes most (:class:`~dpalgos.class_means.ClassMeans`). Where
    noise hides all differences, the model predicts the class with the largest noisy count.

    Guarantee
    ---------
    The budget: one Gaussian mechanism on an exact sum of integers whose sensitivity is
    :meth:`~dpalgos.integer_sums.ClassSums.sensitivity`: 2 under replace-one (two rows of a class may be antipodal), and
    √(1 + a²) under replace-special. Everything after the sum is post-processing.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    count_weight : float, optional
        See :class:`ClassSumTrainer`.

    References
    ----------
    Fisher 1936; private class means as classifiers in Wahdany, Jagielski, Dziedzic, Boenisch 2024 (prototypes).
    """

    source: ClassVar[str] = "ours; noisy class means, after Fisher 1936"
    people: ClassVar[str] = (
        "each of k rows adds c = ⌊a/k⌋ to the count and a vector of norm at most R c/a, so they add a point of the "
        "convex hull of what single rows add"
    )

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of the sum."""
        return RoundedGaussian.calibrated(self.budget, self.class_sums(setting).sensitivity(setting.neighbours))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return one row a class, of the features and the count."""
        return self.class_sums(setting).shape(setting)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact sums."""
        return self.class_sums(setting).total(rows, setting)

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Return the discriminant."""
        means = self.class_sums(setting).means(state, self.distribution(setting).sigma * setting.noise_factor, setting)
        return linear_model(*means.discriminant())

    def class_sums(self, setting: Setting) -> ClassSums:
        """Return the sums, on the grid of their noise."""
        return ClassSums(scale=grid(self.budget, 2.0, 1, setting), constant=self._count_weight(setting))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The number of steps after the class means, and the split of the budget.

    Parameters
    ----------
    iterations : int
        T; 0 releases the discriminant itself.
    step_size : float
    first_share : float
        Share of μ² that the class means get; 1 where nothing follows.
    """

    iterations: int
    step_size: float
    first_share: float


# Below this signal no step pays after the class means; above the other they know so much that steps' length counts.
_STEPS_FROM, _SURE = 100.0, 2400.0


def schedule_of(strength: float, classes: int) -> Schedule:
    """Return how many steps pay, by the signal s = n μ r / (f K) of a class mean in units of its noise.

    Found on training rows of MNIST, USPS and digits (``docs/accuracy.md``).

    Parameters
    ----------
    strength : float
        s, for n rows, μ of the budget, r of 1 under replace-one and 2 under replace-special, and noise of f times a
        curator's.
    classes : int
        K.
    """
    if strength < _STEPS_FROM:
        return Schedule(0, 1.0, 1.0)
    iterations = 200 if strength >= _SURE else round(min(max(strength / 6.0, 15.0), 100.0))
    step_size = min(16.0, 0.07 * strength * classes / iterations)
    share = min(max(100.0 / strength, 0.05), 0.5)
    return Schedule(iterations, float(f"{step_size:.3g}"), float(f"{share:.3g}"))


@register("trainers", "discriminant-gd")
@dataclass(frozen=True, kw_only=True)
class DiscriminantDescent(ClassSumTrainer):
    """Release the sums of each class, start softmax regression at their discriminant, descend on noisy gradients.

    Guarantee
    ---------
    The budget. All T + 1 sums get noise of one σ; the class sums are multiplied by a public integer, so that their
    sensitivity Δ₀ (:meth:`~dpalgos.integer_sums.ClassSums.sensitivity`) stands to that of a gradient sum, Δ
    (:class:`~dpalgos.integer_sums.GradientSums`), as the shares of μ² ask. Each sum is a Gaussian mechanism on an
    integer vector, and their adaptive composition is exactly √(Δ₀² + TΔ²)/σ-GDP (Dong, Roth, Su 2022, Corollary 2);
    σ makes that μ. Everything after the sums is post-processing. Numerics are exact.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        For all sums together.
    iterations : int, optional
        T; with ``step_size`` and ``first_share`` by a rule from n, K and μ where left out: the better the class means
        are known, the more steps pay.
    step_size : float, optional
    first_share : float, optional
        Share of μ² for the class means, in [0.01, 0.99].
    momentum : float
        In [0, 1).
    clip : float
        Largest norm of a row's gradient.
    class_weight : sequence of float, or ``"balanced"``
        As for ``noisy-gd``; the class sums' counts balance without further cost. The discriminant itself takes all
        classes as equally frequent.
    start : float
        Length of the starting weights, on average over the classes: how sure the first softmax is.
    intercept_scaling : float
        B of the constant feature inside the unit ball.
    count_weight : float, optional
        As for ``class-means``.

    References
    ----------
    As for ``noisy-gd`` and ``class-means``; warm starts of private descent in Mehta, Thakurta, Kurakin, Cutkosky 2022.
    """

    iterations: int | None = field(default=None, metadata=NATURAL)
    step_size: float | None = field(default=None, metadata=POSITIVE)
    first_share: float | None = field(default=None, metadata=between(0.01, 0.99))
    momentum: float = field(default=0.9, metadata=between(0.0, 1.0, open_high=True))
    clip: float = field(default=0.5, metadata=POSITIVE)
    class_weight: Sequence[float] | str = ()
    start: float = field(default=12.0, metadata=POSITIVE)
    intercept_scaling: float = field(default=0.25, metadata=POSITIVE)

    source: ClassVar[str] = "ours; noisy gradient descent from noisy class means"
    people: ClassVar[str] = (
        "as for class-means, then as for noisy-gd: a person moves each sum of the adaptive composition no more than "
        "one row does"
    )

    def check(self, setting: Setting) -> None:
        """Raise where the weights of classes do not fit."""
        super().check(setting)
        self._task.check(setting)
        if self._balances and self._count_weight(setting) == 0.0:
            raise ParameterError("class_weight is 'balanced' and count_weight 0, so no class is counted: increase it")

    def schedule(self, setting: Setting) -> Schedule:
        """Return iterations, step size and share of the class means, from public numbers alone."""
        halved = 2.0 if setting.neighbours is Neighbours.REPLACE_SPECIAL else 1.0
        strength = setting.rows * total_mu(self.budget) * halved / (setting.noise_factor * setting.classes)
        rule = schedule_of(strength, setting.classes)
        iterations = rule.iterations if self.iterations is None else self.iterations
        if iterations == 0:
            return Schedule(0, 1.0, 1.0)
        share = rule.first_share if rule.iterations else 0.5
        return Schedule(
            iterations=iterations,
            step_size=self.step_size if self.step_size is not None else rule.step_size,
            first_share=self.first_share if self.first_share is not None else share,
        )

    def steps(self, setting: Setting) -> int:
        """Return the number of sums: the classes', and a gradient's a step."""
        return 1 + self.schedule(setting).iterations

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum."""
        means, gradients = self.sensitivities(setting)
        together = math.hypot(means, math.sqrt(self.schedule(setting).iterations) * gradients)
        return RoundedGaussian(math.nextafter(together / total_mu(self.budget) * (1.0 + 2.0**-48), math.inf))

    def initial(self, setting: Setting) -> DescentState:
        """Return zero weights."""
        self.check(setting)
        zero = np.zeros(self._task.shape(setting))
        return DescentState(step=0, weights=zero, velocity=zero, average=zero)

    def prepare(self, rows: Rows, setting: Setting) -> ClassedRows:
        """Add up the party's classes and encode its rows, in one pass, unless they are too many to keep."""
        return ClassedRows.of(rows, self.class_sums(setting), self._gradient_sums(setting), setting)

    def merge(self, prepared: Sequence[ClassedRows]) -> Sequence[ClassedRows]:
        """Join parties for a curator who adds up anyway."""
        return ClassedRows.merged(prepared)

    def work(self, setting: Setting) -> Work:
        """Return that of the class sums and the gradient sums."""
        return self._gradient_sums(setting).work(setting, self.steps(setting))

    def contribution(self, state: DescentState, rows: Rows | ClassedRows, setting: Setting) -> Ints:
        """Return the party's class sums, and afterwards its sum of encoded, clipped gradients."""
        party = rows if isinstance(rows, ClassedRows) else self.prepare(rows, setting)
        if state.step == 0:
            return party.class_sums * self._multiple(setting)
        return self._gradient_sums(setting).weighing(state.class_weight).total(state.weights, party.rows, setting)

    def update(self, state: DescentState, noisy_sum: Ints, setting: Setting) -> DescentState:
        """Start at the discriminant; then take steps with momentum, and average the last half of them."""
        if state.step == 0:
            multiple = self._multiple(setting)
            sums, sigma = noisy_sum / multiple, self.distribution(setting).sigma * setting.noise_factor / multiple
            balanced = self.class_sums(setting).balance(sums, sigma) if self._balances else ()
            return replace(state, step=1, weights=self._start(sums, sigma, setting), class_weight=balanced)
        schedule = self.schedule(setting)
        gradient = self._gradient_sums(setting).decode(noisy_sum) / max(setting.rows, 1)
        return state.moved(gradient, schedule.step_size, self.momentum, schedule.iterations, first=1)

    def result(self, state: DescentState, setting: Setting) -> LinearModel:
        """Return the averaged model, or the discriminant where no step follows."""
        return self._task.model(state.average if self.schedule(setting).iterations else state.weights, setting)

    @property
    def _task(self) -> LinearTask:
        return LinearTask(
            loss=make_loss("softmax", None),
            intercept_scaling=self.intercept_scaling,
            class_weight=() if self._balances else self.class_weight,
        )

    @property
    def _balances(self) -> bool:
        return self.class_weight == BALANCED

    def _grid(self, setting: Setting) -> float:
        return grid(GaussianMu(total_mu(self.budget)), 2.0, self.steps(setting), setting)

    def _gradient_sums(self, setting: Setting) -> GradientSums:
        return GradientSums(task=self._task, clip=self.clip, scale=self._grid(setting))

    def class_sums(self, setting: Setting) -> ClassSums:
        """Return the sums of the first step, on the grid of all steps' noise."""
        return ClassSums(scale=self._grid(setting), constant=self._count_weight(setting))

    def _multiple(self, setting: Setting) -> int:
        """Return the public integer that the class sums are multiplied by, so that they get their share of μ²."""
        schedule = self.schedule(setting)
        if schedule.iterations == 0:
            return 1
        wanted = math.sqrt(schedule.iterations * schedule.first_share / (1.0 - schedule.first_share))
        neighbours = setting.neighbours
        gradient = self._gradient_sums(setting).sensitivity(neighbours)
        return max(1, math.floor(wanted * gradient / self.class_sums(setting).sensitivity(neighbours)))

    def sensitivities(self, setting: Setting) -> tuple[float, float]:
        """Return those of the class sums, multiplied, and of a gradient sum, in grid units."""
        neighbours = setting.neighbours
        means = self.class_sums(setting).sensitivity(neighbours) * self._multiple(setting)
        return math.nextafter(means, math.inf), self._gradient_sums(setting).sensitivity(neighbours)

    def _start(self, sums: Floats, sigma: float, setting: Setting) -> Floats:
        """Return the discriminant of noisy class sums as weights of the rows with their constant feature.

        Shrunk means are as long as the exact ones are expected to be, or shorter: no noise is subtracted from their
        length. Where no difference of the classes is seen, the descent starts at zero.
        """
        weights, intercept = self.class_sums(setting).means(sums, sigma, setting).discriminant()
        weights, intercept = weights - weights.mean(axis=0), intercept - intercept.mean()
        model = linear_model(weights, intercept)
        if self.schedule(setting).iterations:
            # The softmax needs scores of a size.
            length = float((weights**2).sum(axis=1).mean())
            scale = self.start / math.sqrt(length) if length > 0.0 else 0.0
            model = LinearModel(weights=scale * model.weights, intercept=scale * model.intercept)
        return self._task.weights_of(model)


@register("trainers", "sufficient-statistics")
@dataclass(frozen=True, kw_only=True)
class SufficientStatistics(GaussianMoments):
    """Release Σ zzᵀ with noise once, z = (x, a t)/√(1 + a²), and solve ridge regression of the targets t from it.

    The blocks of Σ zzᵀ are XᵀX, XᵀT and TᵀT. Targets are one-hot classes (±1 for two classes) or numeric labels in
    [−1, 1].

    Guarantee
    ---------
    The budget. ‖x‖ ≤ 1 and ‖t‖ ≤ 1, so ‖z‖ ≤ 1 and the sum's Frobenius sensitivity is √2 under replace-one and 1 under
    replace-special (z = 0 for a null record, target and constant feature included), as for ``analyze-gauss``, on the
    same exact integer path. (Releasing XᵀX and XᵀT alone, with weights
    that balance them, has the same sensitivity, so TᵀT is free.) All that follows is post-processing.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    regularisation : float
        Least λ of the mean squared loss plus (λ/2)‖W‖².
    target_weight : float
        a: a larger one spends more of the budget on the targets.
    noise_regularisation : float
        λ is at least this many times the noise's typical largest eigenvalue, 2s√p/n for off-diagonal deviation s.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of numeric labels.

    References
    ----------
    Vu, Slavkovic, ICDM Workshops 2009; Foulds et al., UAI 2016; Wang, UAI 2018 (noise-aware ridge).
    """

    regularisation: float = field(default=1e-3, metadata=POSITIVE)
    target_weight: float = field(default=1.0, metadata=POSITIVE)
    noise_regularisation: float = field(default=0.5, metadata=NON_NEGATIVE)
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)

    source: ClassVar[str] = "sufficient statistics perturbation after Vu, Slavkovic 2009 and Wang 2018"
    people: ClassVar[str] = OF_BOUNDED_TRACE
    measured: ClassVar[str] = "Σ zzᵀ of z = (x, a t)/√(1 + a²), Frobenius"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._task()

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return rows x, x′ and targets t, t′ with z ⟂ z′, or as near to it as there are any.

        (1 + a²) z·z′ = x·x′ + a² t·t′. Different classes have t·t′ = 0, but −1 if there are two, and numeric labels at
        the ends of their range as well; and with u for the row before the constant B, x·x′ = (u·u′ + B²)/(1 + B²).
        """
        wanted = self.target_weight**2 if outputs(setting.classes) == 1 else 0.0
        constant = self.intercept_scaling**2
        cosine = min(1.0, max(-1.0, wanted * (1.0 + constant) - constant))
        other = np.zeros(max(setting.dimension, 2))
        other[:2] = cosine, math.sqrt(1.0 - cosine**2)
        low, high = (float(end) for end in self.label_range) if setting.classes == 1 else (0.0, 1.0)
        row = np.eye(1, setting.dimension)[0]
        return one_row_apart(setting, row, other[: setting.dimension], labels=(low, high))

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the packed upper triangle of the party's exact integer sum."""

        def joined(features: Features, labels: Array) -> Floats:
            clean, targets = self._task().block(features, labels, setting)
            if outputs(setting.classes) > 1:
                # One-hot; a null record's zeros stay.
                targets = np.maximum(targets, 0.0)
            return np.hstack([clean, self.target_weight * targets]) / math.hypot(1.0, self.target_weight)

        return packed_gram(rows.blocks(), joined, self.width(setting), self._scale(setting))

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Solve (Â + nλ) Wᵀ = B̂ with the negative eigenvalues of the noisy Â = XᵀX cut to zero."""
        scaling = 1.0 + self.target_weight**2
        sums = unpack(state) / self._scale(setting) ** 2 * scaling
        width = self._task().shape(setting)[1]
        gram, moments = sums[:width, :width], sums[:width, width:] / self.target_weight
        values, vectors = np.linalg.eigh(gram)
        strength = max(setting.rows, 1) * self.regularisation
        sigma = setting.noise_factor * self.distribution(setting).sigma
        deviation = sigma / math.sqrt(2.0) / self._scale(setting) ** 2 * scaling
        strength = max(strength, self.noise_regularisation * 2.0 * deviation * math.sqrt(width))
        weights: Floats = vectors @ ((vectors.T @ moments) / (np.maximum(values, 0.0) + strength)[:, None])
        return self._task().model(weights.T, setting)

    def informed(self, artefacts: Sequence[Artefact]) -> Self:
        """Return it with the range of numeric labels that a map before it says; targets are in [−1, 1] by any range."""
        return replace(self, label_range=label_range_of(artefacts, self.label_range))

    def _task(self) -> LinearTask:
        return LinearTask(loss=Squared(), intercept_scaling=self.intercept_scaling, label_range=self.label_range)

    def width(self, setting: Setting) -> int:
        """Return the features, the constant and the targets."""
        return sum(self._task().shape(setting))
