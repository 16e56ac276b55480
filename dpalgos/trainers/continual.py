"""Horizons of nights: algorithms of one sum, released night after night at one price, and horizons in one run.

What a night contributes and what is made of a running sum is the algorithm's own; between them stands the factor
(:mod:`dpalgos.mechanisms.factorisation`). A night may contribute in view of the running sum of the nights before, as
gradients do, which are taken at the model that it makes: the algorithm says so (``adaptive``), and its state is that
sum. The noise of each night is that of the algorithm on the budget μ/‖Ĉe₁‖₂:
its distribution is a Gaussian mechanism for integers of any sensitivity, so that a sum ĉ x costs ĉ times what x
would cost, and the whole horizon costs μ.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpalgos.aggregators import Aggregator
from dpalgos.algorithms import GAUSSIAN_BUDGETS, GaussianAlgorithm, IntegerNoise, OneSum, Refused, Work, grid
from dpalgos.guarantees import RELATIONS, GaussianMu, Guarantee, Loss, Neighbours, Setting
from dpalgos.integer_sums import ClassSums, GradientSums
from dpalgos.mechanisms.distributions import RoundedGaussian, SymmetricRoundedGaussian, total_mu
from dpalgos.mechanisms.factorisation import GRID, ToeplitzFactor
from dpalgos.models import Artefact, LinearModel, Statistic
from dpalgos.parameters import POSITIVE, SHARE, ParameterError
from dpalgos.registry import register
from dpalgos.rows import ArrayRows, Floats, Ints, Rows
from dpalgos.sentences import coded
from dpalgos.trainers.discriminant import ClassMeansDiscriminant, ClassSumTrainer
from dpalgos.trainers.gradient_descent import ClippedGradientTrainer

_LARGEST_SUM = 2.0**62
_CHOICES = "--trainer class-means, --trainer ftrl or --trainer sufficient-statistics"


@runtime_checkable
class NightlyRows(Protocol):
    """A party's rows of tonight, its frozen sums of the nights before, and what was released of those."""

    def released(self) -> Sequence[Ints]:
        """Return y_1 … of all nights before tonight; public."""

    def sum_of(self, night: int, form: Callable[[Rows], Ints]) -> Ints:
        """Return the sum of a night as it was frozen; where it was not, form it of that night's rows and freeze it."""


def nightly_budget(budget: Loss, factor: ToeplitzFactor) -> GaussianMu:
    """Return the budget on which one night's sum by itself is calibrated, so that the horizon costs ``budget``.

    μ/‖Ĉe₁‖₂, rounded down.

    Raises
    ------
    ParameterError
        If the budget is not one of Gaussian noise.
    """
    if not isinstance(budget, GAUSSIAN_BUDGETS):
        raise ParameterError(f"a horizon draws Gaussian noise and needs a budget of kind mu or rho, not {budget.kind}")
    return GaussianMu(total_mu(budget) / factor.norm * (1.0 - 2.0**-50))


def night_again(budget: Loss, factor: ToeplitzFactor) -> GaussianMu:
    """Return what one night costs that is drawn once more, rounded up: see :mod:`dpalgos.mechanisms.factorisation`."""
    return GaussianMu(total_mu(budget) * (factor.largest_entry / factor.norm) * (1.0 + 2.0**-50))


def require_gaussian_sum(algorithm: object, setting: Setting, also: tuple[int, ...] | None = None) -> OneSum:
    """Return an algorithm whose sums may be released night after night.

    Parameters
    ----------
    algorithm : object
    setting : Setting
    also : tuple of int, optional
        Sizes at which the noise is to be the same, for sums of all nights are decoded on one grid.

    Raises
    ------
    ParameterError
        If it is not one Gaussian sum, sums of a horizon could leave 64-bit integers, or its noise depends on the sizes.
    """
    distribution = algorithm.distribution(setting) if isinstance(algorithm, OneSum) else None
    if not (isinstance(algorithm, OneSum) and isinstance(distribution, RoundedGaussian | SymmetricRoundedGaussian)):
        raise ParameterError(
            f"{type(algorithm).__name__} is not a single sum with Gaussian noise, as a horizon needs; choose {_CHOICES}"
        )
    (loss,) = algorithm.guarantee(setting).losses
    # A row adds no more than its sensitivity against a null record to any entry, and no coefficient exceeds the grid's.
    largest = setting.rows * GRID * distribution.sigma * total_mu(loss)
    if largest >= _LARGEST_SUM:
        raise ParameterError(
            f"sums over {setting.rows} rows of a horizon could reach {largest:.2g} grid units, and the bound is 2^62; "
            "declare fewer --expected-rows, or choose a smaller --epsilon, which has a coarser grid"
        )
    if also is not None and algorithm.distribution(replace(setting, sizes=also)) != distribution:
        raise ParameterError(
            f"{type(algorithm).__name__} draws different noise for {sum(also)} rows than for {setting.rows}, and a "
            f"horizon needs the same noise for any number of rows; choose {_CHOICES}, or declare fewer rows "
            "(--expected-rows)"
        )
    return algorithm


@dataclass(frozen=True, kw_only=True)
class NightSum(OneSum):
    """One night of a horizon: y_t = Σ_{s ≤ t} ĉ_{t−s} x_s with noise once.

    Guarantee
    ---------
    Of all nights of the horizon together, this one included, whichever of them are released: the budget
    (:mod:`dpalgos.mechanisms.factorisation`). A record is a row, or a person with the rows of each night in which the
    person takes part; which nights these are depends on no row.

    Parameters
    ----------
    inner : OneSum
        The algorithm, on :func:`nightly_budget`.
    budget : GaussianMu or ZeroConcentrated
        Of the horizon.
    factor : ToeplitzFactor
    night : int
        From 1.
    """

    inner: OneSum
    budget: Loss
    factor: ToeplitzFactor
    night: int

    source: ClassVar[str] = "running sums by factorisation, Denisov et al. 2022; Fichtenberger et al. 2023"
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    people: ClassVar[str] = (
        "arrivals alone decide in which nights a person takes part, and all rows of a person in a night are one record"
    )

    def check(self, setting: Setting) -> None:
        """Raise where the algorithm cannot run, or not night after night."""
        super().check(setting)
        require_gaussian_sum(self.inner, setting)
        self.inner.check(setting)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what the whole horizon costs: the budget."""
        self.check(setting)
        once = self.inner.guarantee(setting)
        # A record of one row at most may be a row or a person.
        who, factor = "record" if setting.rows_per_person == 1 else "person", self.factor
        shared = (
            coded(f"{who}-in-one-night")
            if factor.participations == 1
            else coded(f"{who}-in-nights", nights=factor.participations, separation=factor.separation)
        )
        return replace(once, losses=(self.budget,), assumptions=(*once.assumptions, shared))

    def work(self, setting: Setting) -> Work:
        """Return that of the nights whose sums take part."""
        once, nights = self.inner.work(setting), min(self.night, self.factor.kept_nights)
        return replace(
            once,
            passes=once.passes * nights,
            operations=once.operations * nights,
            small_operations=once.small_operations * nights,
        )

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the shape of a night's sum."""
        return self.inner.sum_shape(setting)

    def distribution(self, setting: Setting) -> IntegerNoise:
        """Return the noise of the night."""
        return self.inner.distribution(setting)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's (Ĉx)_t; of rows without earlier nights, that of tonight's alone."""
        if not isinstance(rows, NightlyRows):
            return self.factor.coefficients[0] * self.inner.contribution(state, rows, setting)
        before = state_after(self.factor, rows.released(), self.inner, setting) if self.inner.adaptive else state

        def form(of: Rows) -> Ints:
            return self.inner.contribution(before, of, setting)

        total = np.zeros_like(state)
        for night in range(max(1, self.night - self.factor.kept_nights + 1), self.night + 1):
            total += self.factor.coefficients[self.night - night] * rows.sum_of(night, form)
        return total

    def result(self, state: Ints, setting: Setting) -> Artefact:
        """Return y_t as it is."""
        return Statistic(values=cast(Floats, state))


def state_after(factor: ToeplitzFactor, released: Sequence[Floats | Ints], inner: OneSum, setting: Setting) -> Ints:
    """Return what the next night's sums are formed at: the running sum of the nights before, zero before the first."""
    if not released:
        return np.zeros(inner.sum_shape(setting), dtype=np.int64)
    return cast(Ints, decode_running_sum(factor, released))


def decode_running_sum(factor: ToeplitzFactor, released: Sequence[Floats | Ints]) -> Floats:
    """Return the running sum of the last night behind y_1 … y_t; post-processing.

    Parameters
    ----------
    factor : ToeplitzFactor
    released : sequence of array
        Of equal shapes, one a night.
    """
    weights = factor.decoder(len(released))
    return np.asarray(sum(weight * noisy for weight, noisy in zip(weights, released, strict=True)))


def model_of(
    inner: OneSum,
    factor: ToeplitzFactor,
    released: Sequence[Floats | Ints],
    setting: Setting,
    sizes: tuple[int, ...],
) -> Artefact:
    """Return what the algorithm makes of the running sum of the last night.

    Parameters
    ----------
    inner : OneSum
        On :func:`nightly_budget`.
    factor : ToeplitzFactor
    released : sequence of array
    setting : Setting
        Under which the nights were released; its noise factor is that of one night's sum.
    sizes : tuple of int
        Rows of each party that have arrived, from which means are taken.

    Raises
    ------
    ParameterError
        If the algorithm's noise for as many rows as have arrived is another one.
    """
    require_gaussian_sum(inner, setting, sizes)
    setting = replace(setting, sizes=sizes)
    louder = replace(setting, noise_factor=setting.noise_factor * factor.amplification(len(released)))
    return inner.result(cast(Ints, decode_running_sum(factor, released)), louder)


@dataclass(frozen=True, kw_only=True)
class RunningSumModel(Aggregator[Statistic, Artefact]):
    """Make a model of the nights released so far (:func:`model_of`); post-processing.

    Parameters
    ----------
    inner : OneSum
        On :func:`nightly_budget`.
    factor : ToeplitzFactor
    setting : Setting
    sizes : tuple of int
        Rows of each party that have arrived.
    """

    inner: OneSum
    factor: ToeplitzFactor
    setting: Setting
    sizes: tuple[int, ...]

    source: ClassVar[str] = NightSum.source
    combines: ClassVar[str] = Statistic.kind

    def combine(self, artefacts: Sequence[Statistic], weights: Floats) -> Artefact:
        """Return the model of the last night; weights are the factor's own."""
        return model_of(self.inner, self.factor, [one.values for one in artefacts], self.setting, self.sizes)


# Found on training rows of digits, 300 of them held out (three seeds): the deviation of a weight by one night's noise.
_WALK = 0.1
_LARGEST_STEP = 1.0


@dataclass(frozen=True, kw_only=True)
class LeaderTrainer(GaussianAlgorithm, ClippedGradientTrainer):
    """Base of trainers whose weights are a running sum of gradients, W = −η Ĝ.

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
        See :class:`~dpalgos.linear.LinearTrainer`.
    """

    loss: str = "softmax"
    clip: float = 0.5
    step_size: float | None = field(default=None, metadata=POSITIVE)
    mean_weight: float = field(default=0.25, metadata=SHARE)

    def check(self, setting: Setting) -> None:
        """Raise for numeric labels, whose scale a step that knows no curvature misses."""
        super().check(setting)
        if setting.classes < 2:
            raise ParameterError(
                "follow-the-regularised-leader needs classes; for numeric labels use sufficient-statistics, or "
                "noisy-gd with loss=squared"
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
    under replace-special, at any weights (:class:`~dpalgos.integer_sums.GradientSums`). So it is night after
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
    people: ClassVar[str] = (
        "the gradient of each of k rows, at weights from earlier releases, has weight 1/k, and no score depends on k, "
        "so their sum is no longer than the gradient of one row"
    )
    adaptive: ClassVar[bool] = True

    def sums(self, setting: Setting) -> GradientSums:
        """Return how gradients are clipped, encoded and added."""
        scale = grid(GaussianMu(total_mu(self.budget)), 2.0, 1, setting)
        return GradientSums(task=self.task, clip=self.clip, scale=scale, mean_weight=self.mean_weight)

    def distribution(self, setting: Setting) -> RoundedGaussian:
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
            step = min(_LARGEST_STEP, _WALK / float(sums.decode(np.asarray(self.distribution(setting).sigma))))
        return -step * sums.decode(state)

    def contribution(self, state: Ints | Floats, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact sum of clipped gradients, at the weights that the sum so far makes."""
        return self.sums(setting).total(self.weights(state, setting), rows, setting)

    def result(self, state: Ints | Floats, setting: Setting) -> LinearModel:
        """Return the model on rows as they were given."""
        return self.task.model(self.sums(setting).shrunk(self.weights(state, setting)), setting)


_Number = TypeVar("_Number", np.int64, np.float64)
_Nights = tuple[Ints, ...]
_Prepared = tuple[ArrayRows | Ints, ...]


@dataclass(frozen=True, kw_only=True)
class ContinualTrainer(GaussianAlgorithm):
    """Base of trainers that release the running sums of all nights in one run; the state is the releases so far.

    Parameters
    ----------
    nights : int
        T.
    bands : int, optional
        Coefficients of the factor that are kept.
    """

    additive = False

    nights: int = 8
    bands: int | None = None

    nightly: ClassVar[type[ClassMeansDiscriminant | FollowTheRegularisedLeader]]
    """What trains on one night by itself."""
    people: ClassVar[str] = Refused("it assigns rows to its nights by position, so it splits the rows of a person")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.factor()

    def once(self) -> ClassMeansDiscriminant | FollowTheRegularisedLeader:
        """Return the trainer of one night by itself, with the same parameters, on its part of the budget."""
        own = {one.name: getattr(self, one.name) for one in fields(self.nightly)}
        return self.nightly(**{**own, "budget": nightly_budget(self.budget, self.factor())})

    def work(self, setting: Setting) -> Work:
        """Return that of holding all nights' rows, and of each night's sum again in all later ones."""
        once = self.once().work(setting)
        return replace(once, operations=once.operations * self.nights, held=2 * 8 * setting.rows * setting.dimension)

    def prepare(self, rows: Rows, setting: Setting) -> _Prepared:
        """Return the party's rows of each night, or the sums of these where they do not depend on earlier releases."""
        blocks = list(rows.blocks())
        features = np.concatenate([np.zeros((0, rows.dimension)), *(block[0] for block in blocks)])
        labels = np.concatenate([np.zeros(0), *(block[1] for block in blocks)])
        return tuple(
            ArrayRows(features[night :: self.nights], labels[night :: self.nights]) for night in range(self.nights)
        )

    def contribution(self, state: _Nights, rows: Rows | _Prepared, setting: Setting) -> Ints:
        """Return the party's (Ĉx)_t, t the first night that the state has no release of."""
        once, nights = self.once(), rows if isinstance(rows, tuple) else self.prepare(rows, setting)

        def summed(night: int, own: ArrayRows | Ints) -> Ints:
            if isinstance(own, np.ndarray):
                return own
            return once.contribution(state_after(self.factor(), state[:night], once, setting), own, setting)

        return self.mixed([summed(*numbered) for numbered in enumerate(nights[: len(state) + 1])])

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact stream (T, ·, ·) at nothing released, in units of the rows or gradients."""
        once, nights = self.once(), self.prepare(rows, setting)
        exact: list[Floats] = [
            own.astype(np.float64) if isinstance(own, np.ndarray) else once.statistic(own, setting) for own in nights
        ]
        return np.stack([self.mixed(exact[:night]) for night in range(1, self.nights + 1)])

    def factor(self) -> ToeplitzFactor:
        """Return the factor of the horizon."""
        return ToeplitzFactor(nights=self.nights, bands=self.bands)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record of the first night moves the stream, in units of the rows or gradients."""
        return self.once().sensitivity(setting) * self.factor().norm

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each night."""
        return self.once().distribution(setting)

    def steps(self, setting: Setting) -> int:
        """Return the number of nights."""
        return self.nights

    def initial(self, setting: Setting) -> _Nights:
        """Return no night."""
        self.check(setting)
        return ()

    def update(self, state: _Nights, noisy_sum: Ints, setting: Setting) -> _Nights:
        """Return the nights' releases so far."""
        return (*state, noisy_sum)

    def result(self, state: _Nights, setting: Setting) -> Artefact:
        """Return the model that the last night's running sums make."""
        return model_of(self.once(), self.factor(), state, setting, setting.sizes)

    def mixed(self, nights: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
        """Return (Ĉx)_t of the exact sums x_1 … x_t."""
        coefficients = self.factor().coefficients[: len(nights)][::-1]
        return np.asarray(sum(each * part for each, part in zip(coefficients, nights, strict=True)))


@register("trainers", "continual-class-means")
@dataclass(frozen=True, kw_only=True)
class ContinualClassMeans(ContinualTrainer, ClassSumTrainer):
    """Release every night's running class sums over a horizon, and return the discriminant of the last night.

    Row i of a party (from 0) arrives in night 1 + (i mod T). For rows that are here already it is worse than
    ``class-means``, which releases their sum once: it is what a year of nights gives, in one run, to compare and audit.

    Guarantee
    ---------
    The budget, for all nights together (:mod:`dpalgos.mechanisms.factorisation`): the stream Ĉx moves by
    ‖Ĉe₁‖₂ times what a sum of the rows of each class moves by, in l2.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        Of the horizon.
    count_weight : float, optional
        As of ``class-means``.
    nights, bands
        See :class:`ContinualTrainer`.

    References
    ----------
    Denisov et al. 2022; Fichtenberger, Henzinger, Upadhyay 2023.
    """

    source: ClassVar[str] = "class means by factorisation of running sums, after Fichtenberger et al. 2023"
    measured: ClassVar[str] = "sums of the rows of each class per night, times the factor, l2"
    nightly: ClassVar[type[ClassMeansDiscriminant | FollowTheRegularisedLeader]] = ClassMeansDiscriminant

    def work(self, setting: Setting) -> Work:
        """Return that of one pass, and of a sum for each night."""
        size = math.prod(self.class_sums(setting).shape(setting))
        return Work(operations=2.0 * setting.rows * size, sums=8 * self.nights * size)

    def class_sums(self, setting: Setting) -> ClassSums:
        """Return one night's sums, on the grid of their noise."""
        return cast(ClassMeansDiscriminant, self.once()).class_sums(setting)

    def prepare(self, rows: Rows, setting: Setting) -> _Prepared:
        """Return the party's exact sums of each night, which one pass adds up: rows are not held."""
        sums = self.class_sums(setting)
        nights = np.zeros((self.nights, *sums.shape(setting)), dtype=np.int64)
        first = 0
        for features, labels, _ in rows.blocks():
            for night in range(self.nights):
                own = slice((night - first) % self.nights, None, self.nights)
                nights[night] += sums.of_block(features[own], labels[own], None, setting)
            first += len(labels)
        return tuple(nights)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact stream (T, K, d + 1), in units of the rows."""
        return super().statistic(rows, setting) / self.class_sums(setting).scale


@register("trainers", "continual-ftrl")
@dataclass(frozen=True, kw_only=True)
class ContinualLeader(ContinualTrainer, LeaderTrainer):
    """Release every night's running sum of gradients over a horizon, and return the model of the last night.

    Row i of a party (from 0) arrives in night 1 + (i mod T); its gradient is taken once, at the model of the nights
    before. It is what ``ftrl`` gives over a horizon of nights, in one run, to compare and audit.

    Guarantee
    ---------
    The budget, for all nights together (:mod:`dpalgos.mechanisms.factorisation`): given what was released before, night
    t is a Gaussian mechanism whose sum moves by ĉ_{t−s} times what one sum of gradients moves by, s the row's night.
    The weights of all nights are made of earlier releases, so the sums of other nights are the same for both
    neighbours. Together they cost ‖Ĉe₁‖₂ times what one sum costs.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        Of the horizon.
    clip, step_size, mean_weight, loss, width, intercept_scaling
        See :class:`~dpalgos.trainers.continual.LeaderTrainer`.
    nights, bands
        See :class:`ContinualTrainer`.

    References
    ----------
    Kairouz et al., ICML 2021; Denisov et al., NeurIPS 2022.
    """

    source: ClassVar[str] = "DP-FTRL by factorisation of running sums, Denisov et al. 2022"
    measured: ClassVar[str] = "sums of clipped gradients per night, times the factor, l2"
    nightly: ClassVar[type[ClassMeansDiscriminant | FollowTheRegularisedLeader]] = FollowTheRegularisedLeader
