"""Horizons in one run: class means and follow-the-regularised-leader, released night after night."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.algorithms import GaussianAlgorithm, OneSum, Refused, grid
from dpalgos.continual import model_of, nightly_budget, state_after
from dpalgos.errors import ParameterError
from dpalgos.gradient_sums import GradientSums
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.integer_sums import ClassSums
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian, total_mu
from dpalgos.models import Artefact, LinearModel
from dpalgos.parameters import POSITIVE, SHARE
from dpalgos.registry import register
from dpalgos.resources import Work
from dpalgos.rows import ArrayRows, Floats, Ints, Rows
from dpalgos.trainers.discriminant import ClassMeansDiscriminant, ClassSumTrainer
from dpalgos.trainers.gradient_descent import ClippedGradientTrainer

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
        See :class:`~dpalgos.linear.LinearTrainer`.
    """

    loss: str = "softmax"
    clip: float = 0.5
    step_size: float | None = field(default=None, metadata=POSITIVE)
    mean_weight: float = field(default=0.25, metadata=SHARE)

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
    people: ClassVar[str] = (
        "each of k rows' gradients is weighed 1/k in the factor that makes no score, at weights of earlier releases: "
        "their sum is no longer than one row's"
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
_PreparedNights = tuple[ArrayRows, ...]


@dataclass(frozen=True, kw_only=True)
class ContinualTrainer(GaussianAlgorithm):
    """What releases every night's running sums of a horizon in one run; the state is the nights' releases so far.

    Parameters
    ----------
    nights : int
        T.
    bands : int, optional
        Coefficients of the factor that are kept.
    """

    nights: int = 8
    bands: int | None = None

    people: ClassVar[str] = Refused("it divides rows among its nights by their places, a person's into several of them")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.factor()

    @abstractmethod
    def once(self) -> ClassMeansDiscriminant | FollowTheRegularisedLeader:
        """Return the trainer of one night by itself, on its part of the budget."""

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
    nights : int
        T.
    bands : int, optional
        Coefficients of the factor that are kept.

    References
    ----------
    Denisov et al. 2022; Fichtenberger, Henzinger, Upadhyay 2023.
    """

    source: ClassVar[str] = "class means by factorisation of running sums, after Fichtenberger et al. 2023"
    measured: ClassVar[str] = "the nights' sums of the rows of each class times the factor, in l2"

    def work(self, setting: Setting) -> Work:
        """Return that of one pass, and of a sum for each night."""
        shape = self.class_sums(setting).shape(setting)
        return Work(operations=2.0 * setting.rows * math.prod(shape), sums=8 * self.nights * math.prod(shape))

    def class_sums(self, setting: Setting) -> ClassSums:
        """Return one night's sums, on the grid of their noise."""
        return self.once().class_sums(setting)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact stream (T, K, d + 1), in units of the rows."""
        nights = self.prepare(rows, setting)
        stream = [self.mixed(nights[:night]) for night in range(1, self.nights + 1)]
        return np.stack(stream) / self.class_sums(setting).scale

    def prepare(self, rows: Rows, setting: Setting) -> _Nights:
        """Return the party's exact sums of each night."""
        sums = self.class_sums(setting)
        nights = np.zeros((self.nights, *sums.shape(setting)), dtype=np.int64)
        first = 0
        for features, labels, shares in rows.blocks():
            arrival = np.arange(first, first + len(labels)) % self.nights
            for night in np.unique(arrival):
                now = arrival == night
                own = None if shares is None else shares[now]
                nights[night] += sums.of_block(features[now], labels[now], own, setting)
            first += len(labels)
        return tuple(nights)

    def contribution(self, state: _Nights, rows: Rows | _Nights, setting: Setting) -> Ints:
        """Return the party's (Ĉx)_t, t the first night that the state has no release of."""
        nights = rows if isinstance(rows, tuple) else self.prepare(rows, setting)
        return self.mixed(nights[: len(state) + 1])

    def once(self) -> ClassMeansDiscriminant:
        """Return class means on a night's part of the budget."""
        return ClassMeansDiscriminant(budget=nightly_budget(self.budget, self.factor()), count_weight=self.count_weight)


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
    nights : int
        T.
    bands : int, optional
        Coefficients of the factor that are kept.

    References
    ----------
    Kairouz et al., ICML 2021; Denisov et al., NeurIPS 2022.
    """

    source: ClassVar[str] = "DP-FTRL by factorisation of running sums, Denisov et al. 2022"
    measured: ClassVar[str] = "the nights' sums of clipped gradients times the factor, in l2"

    def work(self, setting: Setting) -> Work:
        """Return that of holding all nights' rows, and of each night's sum again in all later ones."""
        once = self.once().sums(setting).work(setting, self.nights)
        return replace(once, kept=0, held=2 * 8 * setting.rows * setting.dimension)

    def prepare(self, rows: Rows, setting: Setting) -> _PreparedNights:
        """Return the party's rows of each night."""
        blocks = list(rows.blocks())
        features = np.concatenate([np.zeros((0, rows.dimension)), *(block[0] for block in blocks)])
        labels = np.concatenate([np.zeros(0), *(block[1] for block in blocks)])
        return tuple(
            ArrayRows(features[night :: self.nights], labels[night :: self.nights]) for night in range(self.nights)
        )

    def contribution(self, state: _Nights, rows: Rows | _PreparedNights, setting: Setting) -> Ints:
        """Return the party's (Ĉx)_t, t the first night that the state has no release of."""
        once, nights = self.once(), rows if isinstance(rows, tuple) else self.prepare(rows, setting)
        before = (state_after(self.factor(), state[:night], once, setting) for night in range(len(state) + 1))
        return self.mixed([once.contribution(then, nights[night], setting) for night, then in enumerate(before)])

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact stream (T, ·, ·) at nothing released, in units of the rows or gradients."""
        nights = [self.once().statistic(night, setting) for night in self.prepare(rows, setting)]
        return np.stack([self.mixed(nights[:night]) for night in range(1, self.nights + 1)])

    def once(self) -> FollowTheRegularisedLeader:
        """Return the leader on a night's part of the budget."""
        return FollowTheRegularisedLeader(
            budget=nightly_budget(self.budget, self.factor()),
            clip=self.clip,
            step_size=self.step_size,
            mean_weight=self.mean_weight,
            class_weight=self.class_weight,
            loss=self.loss,
            width=self.width,
            intercept_scaling=self.intercept_scaling,
            label_range=self.label_range,
        )
