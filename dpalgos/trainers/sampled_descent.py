"""Descent on noisy gradients of random batches: DP-SGD, with the draws and the price that its guarantee speaks of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.accounting.composition import gaussian_part, noise_multiplier
from dpalgos.algorithms import ApproximateAlgorithm, Refused
from dpalgos.errors import ParameterError
from dpalgos.gradient_sums import EncodedRows, GradientSums
from dpalgos.guarantees import GaussianMu, Guarantee, Neighbours, Numerics, Setting, SlackGaussian
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.parameters import COUNT, NON_NEGATIVE, POSITIVE, between
from dpalgos.registry import register
from dpalgos.resources import Work
from dpalgos.rows import ChosenRows, Floats, Rows, fingerprints
from dpalgos.summation import grid
from dpalgos.trainers.gradient_descent import DescentState
from dpalgos.trainers.linear import LinearTrainer

_RATE_BITS = 32
# As for noisy-gd: how far the noise may walk in all steps, and the largest step.
_WALK, _LARGEST_STEP = 0.25, 4.0


@register("trainers", "dp-sgd")
@dataclass(frozen=True, kw_only=True)
class SampledDescent(ApproximateAlgorithm, LinearTrainer):
    """Minimise a loss by stochastic gradient descent on noisy sums over Poisson samples of the rows.

    What others' results are compared with: at each step every row takes part with probability q, drawn independently
    of all else from its holder's secret; the clipped gradients of those that do are summed, get noise once, and are
    divided by q n, which is public. Which rows took part, and how many, is never released.

    Guarantee
    ---------
    The budget, under ``replace-special`` alone. The T sampled steps are dominated by the (s, μ) of
    :mod:`dpalgos.accounting.composition`, s = ``slack_share``·δ, and the loss is stated as it: everything revealed with
    probability s, beside μ-Gaussian-DP, which together are (ε, δ)-DP. Later plans add s to s and μ² to μ². Noise is
    integer noise on integer sums (:class:`~dpalgos.gradient_sums.GradientSums`), draws are 32-bit integers below
    ⌊q 2³²⌋, so numerics are exact, given that the stream is indistinguishable from random bits.

    Refused under ``replace-one``: doubling the sensitivity proves nothing there (Lebeda et al. 2024), and an (s, μ) of
    one step of a chain says nothing of two (:func:`~dpalgos.accounting.calibration.group_loss`). An account that keeps
    replace-one, or counts several rows a person, admits no such release.

    The sampling protects a row from whoever does not know its draws. They come from the secret of whoever holds it:
    a trusted curator (``central``), who knows them, as he knows the rows; or the party itself (``local``). Against
    these no amplification is claimed. Secure sums are not supported: their contributions are made without a secret.

    Parameters
    ----------
    budget : ApproximateDP
    loss : str
        ``softmax``, or any other; ``squared`` for real labels.
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
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.

    References
    ----------
    Song, Chaudhuri, Sarwate 2013; Bassily, Smith, Thakurta, FOCS 2014; Abadi et al., CCS 2016; Zhu, Dong, Wang, AISTATS
    2022 (dominating pairs); Lebeda, Regehr, Kamath, Steinke 2024 (pitfalls); Shejwalkar et al. 2022 (averaging).
    """

    loss: str = "softmax"
    sampling_rate: float = field(default=0.1, metadata=between(2.0 ** (-20), 1.0))
    iterations: int = field(default=200, metadata=COUNT)
    clip: float = field(default=0.5, metadata=POSITIVE)
    step_size: float | None = field(default=None, metadata=POSITIVE)
    momentum: float = field(default=0.9, metadata=between(0.0, 1.0, open_high=True))
    slack_share: float = field(default=0.1, metadata=between(0.0, 1.0, open_low=True, open_high=True))
    regularisation: float = field(default=0.0, metadata=NON_NEGATIVE)

    source: ClassVar[str] = "Abadi et al. 2016; Zhu, Dong, Wang 2022"
    people: ClassVar[str] = Refused("it draws rows, and a person with many is drawn more often")
    relations: ClassVar[tuple[Neighbours, ...]] = (Neighbours.REPLACE_SPECIAL,)
    measured: ClassVar[str] = "sum of clipped gradients, l2"
    norm: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget.delta == 0.0:
            raise ParameterError("delta is 0: a sampled Gaussian step has no pure guarantee; choose delta > 0")

    def check(self, setting: Setting) -> None:
        """Raise under replace-one, where nothing is proved."""
        if setting.neighbours is Neighbours.REPLACE_ONE:
            raise ParameterError(
                "dp-sgd is proved under replace-special alone: of a replaced row that may take part or not, twice the "
                "sensitivity is no bound (Lebeda, Regehr, Kamath, Steinke 2024); choose --neighbours replace-special, "
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
            assumptions=("which rows take part in a step is known to nobody but their holder",),
        )

    def sensitivity(self, setting: Setting) -> float:
        """Return clip: a null record adds nothing."""
        return self.clip

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

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum."""
        multiplier = noise_multiplier(self._threshold / 2.0**_RATE_BITS, self.iterations, self._slack, self._mu)
        sensitivity = self.sums(setting).sensitivity(setting.neighbours)
        return RoundedGaussian(math.nextafter(multiplier * sensitivity * (1.0 + 2.0**-48), math.inf))

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the average of the last half of the iterates."""
        self.check(setting)
        sums, law = self.sums(setting), self.law(setting)
        prepared = [sums.prepare(rows, setting) for rows in parties]
        ends = np.cumsum([rows.count for rows in parties])
        prints = fingerprints(parties)
        expected = max(self._threshold / 2.0**_RATE_BITS * setting.rows, 1.0)
        step_size = self._step_size(law.sigma / sums.scale**2 * self.clip / expected)
        zero = np.zeros(self.task.shape(setting))
        state = DescentState(0, zero, zero, zero)
        for step in range(self.iterations):
            # Words of 64 bits; the upper half decides.
            words = noise.stream(f"rows-{step}", prints).words(sum(rows.count for rows in parties))
            taking_part = (words >> np.uint64(64 - _RATE_BITS)) < np.uint64(self._threshold)
            total = np.zeros(zero.shape, dtype=np.int64)
            for kept, own in zip(prepared, np.split(taking_part, ends[:-1]), strict=True):
                total += sums.total(state.weights, _chosen(kept, own), setting)
            noisy = total + law.sample(total.size, noise.stream(f"sum-{step}", total)).reshape(total.shape)
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

    def _step_size(self, deviation: float) -> float:
        if self.step_size is not None:
            return self.step_size
        return min(_LARGEST_STEP, _WALK / (math.sqrt(self.iterations) * deviation))


def _chosen(kept: Rows | EncodedRows, taking_part: NDArray[np.bool_]) -> Rows | EncodedRows:
    """Return the rows that take part, of one party's."""
    if isinstance(kept, EncodedRows):
        return kept.where(taking_part)
    return ChosenRows(kept, lambda start, stop: taking_part[start:stop], int(taking_part.sum()))
