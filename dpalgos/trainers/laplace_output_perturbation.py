"""Output perturbation with Laplace noise on every coordinate, as multi-party papers publish it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import PureAlgorithm, Unproved
from dpalgos.guarantees import RELATIONS, Claim, Guarantee, Neighbours, Numerics, Setting, Trust, nothing_proved
from dpalgos.losses import outputs
from dpalgos.mechanisms.discrete_laplace import DiscreteLaplace
from dpalgos.models import LinearModel
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows
from dpalgos.trainers.output_perturbation import SOLVER_ASSUMPTION, MinimiserSum, slope_at_minimum

# The noise is this many bits coarser than the grid; its law allows two more.
_FINENESS = 30
# No party's numbers exceed 2^61 over its share of the rows, half of what secure summation allots to it.
_ROOM = 2.0**61
# More than the error of the few float64 operations that give the scale.
_MARGIN = 1.0 + 2.0**-40


@dataclass(frozen=True, kw_only=True)
class _MinimiserMean(PureAlgorithm, MinimiserSum):
    """The mean of the parties' minimisers as one sum of integers with discrete Laplace noise on each coordinate."""

    regularisation: float = 1e-3
    loss: str = "logistic"

    def check(self, setting: Setting) -> None:
        """Raise, too, where the noise is finer or coarser than its law allows."""
        super().check(setting)
        self.law(setting)

    def noise_scale(self, setting: Setting) -> float:
        """Return the paper's scale of the Laplace noise of the mean."""
        return self._multiple(setting) * self._change(setting, 0.0) / (self.budget.epsilon * max(len(setting.sizes), 1))

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "sum of the parties' minimisers, l1"
    norm: ClassVar[int] = 1

    def sensitivity(self, setting: Setting) -> float:
        """Return m√p times the change of one classifier: how far one record moves the sum of minimisers, in l1."""
        classes, width = self.task.shape(setting)
        return classes * math.sqrt(width) * self._change(setting, self.solver_tolerance(setting))

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's minimiser."""
        return self.minimiser(rows, setting)

    def law(self, setting: Setting) -> DiscreteLaplace:
        """Return the noise of the sum: N times the paper's, and what the grid and the solver's tolerance add."""
        reach = self._multiple(setting) * self._change(setting, self.solver_tolerance(setting)) / self._unit(setting)
        classes, width = self.task.shape(setting)
        return DiscreteLaplace((reach + classes * width) / self.budget.epsilon * _MARGIN)

    def party_weights(self, setting: Setting) -> tuple[int, ...]:
        """Return that every party counts the same: the mean is over parties, whatever their rows."""
        return (1,) * len(setting.sizes)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's minimiser in grid units, cut where no minimiser can be."""
        weights = np.nan_to_num(self.minimiser(rows, setting))
        largest = self._largest()
        return np.rint(np.clip(weights, -largest, largest) / self._unit(setting)).astype(np.int64)

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Return the mean over the parties, with the noise of the sum."""
        return self.task.model(state * self._unit(setting) / max(len(setting.sizes), 1), setting)

    def _multiple(self, setting: Setting) -> int:
        """Return how many changes of one classifier the scale of the sum's noise is, times ε."""
        raise NotImplementedError

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
        return 2.0 ** max(math.floor(math.log2(scale)) - _FINENESS, math.ceil(math.log2(room)))


@register("trainers", "mpc-op")
@dataclass(frozen=True, kw_only=True)
class PublishedMultiPartyOutputPerturbation(Unproved, _MinimiserMean):
    """The mean of the parties' exact minimisers plus Laplace noise of scale 2G/(N n₍₁₎ λ ε) on each coordinate.

    The sum of the parties' minimisers, in integers, gets discrete Laplace noise of N times that scale, once by a
    curator or in the parties' shares; the mean divides by the parties that took part.

    Guarantee
    ---------
    None: see the flaw. (What the noise does give for m classifiers of p weights is m√p·ε.)

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε.
    regularisation : float
        λ.
    loss : str
        ``logistic``; ``squared`` for real labels.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.

    References
    ----------
    Owusu-Agyemang et al., Math. Biosci. Eng. 18 (2021), Theorems 3 and 4.
    """

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, Theorem 4"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Owusu-Agyemang et al. 2021, Theorem 4",
        "The minimiser moves by 2G/(n lambda) in the l2 norm, which Laplace noise on each of d coordinates does not "
        "hide: the l1 norm can be sqrt(d) times as much, and so can epsilon.",
    )
    sound_counterpart: ClassVar[str | None] = "output-perturbation-radial"

    def _multiple(self, setting: Setting) -> int:
        """Return 1: the noise is that of one party's change."""
        return 1


@register("trainers", "pathak")
@dataclass(frozen=True, kw_only=True)
class Pathak(_MinimiserMean):
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
    regularisation : float
        λ.
    loss : str
        ``logistic``; ``squared`` for real labels.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.

    References
    ----------
    Pathak, Rane, Raj, "Multiparty differential privacy via aggregation of locally trained classifiers", NeurIPS 2010,
    Theorem 3; as PAT in Owusu-Agyemang et al. 2021, section 5.1.
    """

    source: ClassVar[str] = "Pathak, Rane, Raj 2010, Theorem 3"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Pathak, Rane, Raj 2010, Theorem 3",
        "The proof takes the l2 bound on the minimisers' change for one in l1; it holds only for at least m sqrt(p) "
        "parties, m classifiers of p weights each, where noise for the smallest party alone is enough for the mean.",
    )
    sound_counterpart: ClassVar[str | None] = "output-perturbation-radial"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget if there are at least m√p parties."""
        self.check(setting)
        needed = outputs(setting.classes) ** 2 * self.task.shape(setting)[1]
        if len(setting.sizes) ** 2 < needed:
            return nothing_proved(
                f"{len(setting.sizes)} parties; the proof for Laplace noise on each coordinate needs "
                f"{math.isqrt(needed - 1) + 1} of them, the number of classifiers times sqrt(dimension)",
                setting.neighbours,
            )
        return Guarantee(
            losses=(self.budget,),
            neighbours=setting.neighbours,
            numerics=Numerics.EXACT,
            assumptions=(SOLVER_ASSUMPTION,),
        )

    def _multiple(self, setting: Setting) -> int:
        """Return N: the noise of the mean is that of the smallest party alone."""
        return max(len(setting.sizes), 1)
