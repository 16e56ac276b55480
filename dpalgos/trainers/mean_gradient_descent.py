"""Gradient descent on the mean of the parties' mean gradients, as multi-party papers do it: sound, published, local."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.gaussian_sums import GAUSSIAN_BUDGETS, gaussian_guarantee, gaussian_law, grid, total_mu
from dpalgos.gradient_sums import EncodedRows, GradientSums
from dpalgos.guarantees import ApproximateDP, Claim, GaussianMu, Guarantee, Loss, Numerics, Setting, Trust
from dpalgos.linear import LinearTask
from dpalgos.losses import make_loss
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows
from dpalgos.validation import require_between, require_budget, require_count, require_positive, require_replace_one

__all__ = ["GradientPerturbation", "LocalGradient", "PublishedGradientPerturbation"]


def _smallest(setting: Setting) -> int:
    return max(1, min(setting.sizes, default=1))


class _MeanDescent:
    """W ← W − η (mean over parties of their mean clipped gradients + noise + λW), T times; the last W is released."""

    budget: Loss
    loss: str
    width: float | None
    iterations: int
    step_size: float
    regularisation: float
    clip: float
    intercept_scaling: float
    label_range: Sequence[float]

    def _validate(self) -> None:
        require_count("iterations", self.iterations)
        require_positive("step_size", self.step_size)
        require_between("regularisation", self.regularisation, 0.0, math.inf, open_high=True)
        require_positive("clip", self.clip)
        self._task()

    def _task(self) -> LinearTask:
        return LinearTask(
            loss=make_loss(self.loss, self.width),
            intercept_scaling=self.intercept_scaling,
            label_range=self.label_range,
        )

    def _sums(self, setting: Setting) -> GradientSums:
        return GradientSums(
            task=self._task(),
            clip=self.clip,
            scale=grid(self._mu(), 2.0, self.iterations, setting),
            smallest_party=_smallest(setting),
        )

    def _mu(self) -> GaussianMu:
        """Return what all sums together cost, for the choice of the grid."""
        raise NotImplementedError

    def steps(self, setting: Setting) -> int:
        """Return the number of gradient sums."""
        return self.iterations

    def party_weights(self, setting: Setting) -> tuple[int, ...]:
        """Return that every party counts the same: the mean is over parties, whatever their rows."""
        return (1,) * len(setting.sizes)

    def initial(self, setting: Setting) -> Floats:
        """Return zero weights."""
        self._task().check(setting)
        return np.zeros(self._task().shape(setting))

    def prepare(self, rows: Rows, setting: Setting) -> Rows | EncodedRows:
        """Encode the party's rows once, unless they are too many to keep."""
        return self._sums(setting).prepare(rows, setting)

    def merge(self, prepared: Sequence[Rows | EncodedRows]) -> Sequence[Rows | EncodedRows]:
        """Join parties for a curator who adds up anyway."""
        return GradientSums.merge(prepared)

    def contribution(self, state: Floats, rows: Rows | EncodedRows, setting: Setting) -> Ints:
        """Return the party's mean gradient times the smallest party's size, in integers."""
        return self._sums(setting).total(state, rows, setting)

    def update(self, state: Floats, noisy_sum: Ints, setting: Setting) -> Floats:
        """Take one step."""
        gradient = self._sums(setting).decode(noisy_sum) / (max(len(setting.sizes), 1) * _smallest(setting))
        return state - self.step_size * (gradient + self.regularisation * state)

    def result(self, state: Floats, setting: Setting) -> LinearModel:
        """Return the last iterate."""
        return self._task().model(state, setting)


@register("trainers", "gradient-perturbation")
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPerturbation(_MeanDescent):
    """Full-batch gradient descent on the mean of the parties' mean gradients, noise once on each mean.

    Guarantee
    ---------
    The budget under replace-one. Party i's mean gradient times n₍₁₎ (the smallest party's size) is a sum of row
    gradients of norm at most clip·n₍₁₎/nᵢ ≤ clip, so one row moves the sum over the parties by at most 2·clip (in grid
    units, from the encoded norms); T Gaussian mechanisms on integer vectors of that sensitivity cost exactly √T Δ/σ.
    The mean is the sum over N n₍₁₎. Numerics exact.

    Parameters
    ----------
    budget : ZeroConcentrated or GaussianMu
        For all steps together.
    loss : str
        ``logistic``; ``squared`` for real labels.
    width : float, optional
        h of the smooth hinges.
    iterations : int
        T.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        G, the largest norm of a row's gradient; binary logistic losses never exceed 1.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of real labels.

    References
    ----------
    Jayaraman, Wang, Evans, Gu, "Distributed learning without distress", NeurIPS 2018, section 3.2 (with zCDP).
    """

    budget: Loss
    loss: str = "logistic"
    width: float | None = None
    iterations: int = 1000
    step_size: float = 1.0
    regularisation: float = 1e-3
    clip: float = 1.0
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)

    source: ClassVar[str] = "Jayaraman et al. 2018, section 3.2"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP by zCDP", "Jayaraman et al. 2018, Theorem 3.4")
    sound_counterpart: ClassVar[str | None] = None
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS[::-1]
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        self._validate()

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget."""
        require_replace_one(setting)
        self._task().check(setting)
        return gaussian_guarantee(self.budget, setting)

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum."""
        return gaussian_law(self.budget, self._sums(setting).sensitivity(setting.neighbours), self.iterations)

    def _mu(self) -> GaussianMu:
        return GaussianMu(total_mu(self.budget))


@register("trainers", "mpc-gp")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGradientPerturbation(_MeanDescent):
    """Owusu-Agyemang et al.'s iterative gradient perturbation, with the paper's σ.

    Guarantee
    ---------
    μ-GDP with μ = √T Δ/σ = epsilon/√(2 ln(1/δ)), exactly, for the paper's σ² = 8G²T ln(1/δ)/(epsilon² N² n₍₁₎²). The
    paper's own proof goes through zCDP and drops the term Tρ of ε = Tρ + 2√(Tρ ln(1/δ)); what is stated here needs
    neither. That μ implies the claimed (epsilon, delta) up to epsilon ≈ 7 at δ = 10⁻³. Rows' gradients are clipped
    to G, which the paper assumes; sums and noise are integers, numerics exact.

    Parameters
    ----------
    budget : ApproximateDP
        The paper's total (ε, δ).
    loss : str
        ``logistic``; ``squared`` for real labels.
    width : float, optional
        h of the smooth hinges.
    iterations : int
        T; the paper's figures have 1000. By its Theorem 9, T = 2 ln(n)/(ην) for a curvature ν known in advance.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        G.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of real labels.

    References
    ----------
    Owusu-Agyemang, Qin, Benjamin, Xiong, Qin, "Insuring against the perils in distributed learning", Math. Biosci. Eng.
    18 (2021), Theorem 7, eq. (4.2), Algorithm 1.
    """

    budget: Loss
    loss: str = "logistic"
    width: float | None = None
    iterations: int = 1000
    step_size: float = 1.0
    regularisation: float = 1e-3
    clip: float = 1.0
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, Theorem 7, Algorithm 1"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Owusu-Agyemang et al. 2021, Theorem 7")
    sound_counterpart: ClassVar[str | None] = None
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)
    budgets: ClassVar[tuple[type[Loss], ...]] = (ApproximateDP,)
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        self._validate()

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what the paper's noise is proved to cost."""
        require_replace_one(setting)
        self._task().check(setting)
        return Guarantee(losses=(self._mu(),), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each sum: the paper's, by the sensitivity that the grid gives."""
        return gaussian_law(self._mu(), self._sums(setting).sensitivity(setting.neighbours), self.iterations)

    def _mu(self) -> GaussianMu:
        assert isinstance(self.budget, ApproximateDP)
        return GaussianMu(self.budget.epsilon / math.sqrt(2.0 * math.log(1.0 / self.budget.delta)))


@register("trainers", "local-gradient")
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGradient(_MeanDescent):
    """The baseline in which every party adds to each of its mean gradients all the noise its own guarantee needs.

    The N parties' noise is simulated by one draw of its sum.

    Guarantee
    ---------
    The budget, towards a server that sees each party's noisy gradients: party i's mean gradient moves by at most
    2·clip/nᵢ, and its noise has deviation √T·2·clip/(nᵢ μ). In units of n₍₁₎ times the mean, that is a deviation of
    n₍₁₎/nᵢ times the one of ``gradient-perturbation``; the simulated sum has their root of summed squares, at least
    as much as the sum alone would need.

    Parameters
    ----------
    budget : ZeroConcentrated or GaussianMu
        For all steps together, of each party.
    loss : str
        ``logistic``; ``squared`` for real labels.
    width : float, optional
        h of the smooth hinges.
    iterations : int
        T.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        G.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of real labels.

    References
    ----------
    Shokri, Shmatikov, "Privacy-preserving deep learning", CCS 2015; as a baseline in Owusu-Agyemang et al. 2021,
    section 5.1, with zCDP.
    """

    budget: Loss
    loss: str = "logistic"
    width: float | None = None
    iterations: int = 1000
    step_size: float = 1.0
    regularisation: float = 1e-3
    clip: float = 1.0
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, section 5.1 (locally perturbed gradients)"
    claim: ClassVar[Claim | None] = None
    sound_counterpart: ClassVar[str | None] = None
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS[::-1]
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        self._validate()

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget."""
        require_replace_one(setting)
        self._task().check(setting)
        return gaussian_guarantee(self.budget, setting)

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the sum of the parties' noise in each step."""
        alone = gaussian_law(self.budget, self._sums(setting).sensitivity(setting.neighbours), self.iterations)
        shares = (_smallest(setting) / max(size, 1) for size in setting.sizes)
        return RoundedGaussian(alone.sigma * math.sqrt(sum(share * share for share in shares)))

    def _mu(self) -> GaussianMu:
        return GaussianMu(total_mu(self.budget))
