"""Gradient descent on the mean of the parties' mean gradients, as multi-party papers do it: sound, published, local."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from dpalgos.algorithms import ApproximateAlgorithm
from dpalgos.gaussian_sums import GAUSSIAN_BUDGETS
from dpalgos.gradient_sums import GradientSums
from dpalgos.guarantees import Claim, GaussianMu, Guarantee, Loss, Numerics, Setting, Trust
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.registry import register
from dpalgos.trainers.descent import PlainDescent


@dataclass(frozen=True, kw_only=True)
class MeanDescent(PlainDescent):
    """Descent on the mean over parties of their mean gradients, whatever their rows."""

    loss: str = "logistic"
    iterations: int = 1000

    def sums(self, setting: Setting) -> GradientSums:
        """Return sums in which each party's gradients weigh as those of the smallest party."""
        return replace(super().sums(setting), smallest_party=setting.smallest)

    def party_weights(self, setting: Setting) -> tuple[int, ...]:
        """Return that every party counts the same: the mean is over parties, whatever their rows."""
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
        ``logistic``; ``squared`` for real labels.
    iterations : int
        T.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        G, the largest norm of a row's gradient; binary logistic losses never exceed 1.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.

    References
    ----------
    Jayaraman, Wang, Evans, Gu, "Distributed learning without distress", NeurIPS 2018, section 3.2 (with zCDP).
    """

    source: ClassVar[str] = "Jayaraman et al. 2018, section 3.2"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP by zCDP", "Jayaraman et al. 2018, Theorem 3.4")
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS


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
        ``logistic``; ``squared`` for real labels.
    iterations : int
        T; the paper's figures have 1000. By its Theorem 9, T = 2 ln(n)/(ην) for a curvature ν known in advance.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        G.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.

    References
    ----------
    Owusu-Agyemang, Qin, Benjamin, Xiong, Qin, "Insuring against the perils in distributed learning", Math. Biosci. Eng.
    18 (2021), Theorem 7, eq. (4.2), Algorithm 1.
    """

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, Theorem 7, Algorithm 1"
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
    """The baseline in which every party adds to each of its mean gradients all the noise its own guarantee needs.

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
    loss : str
        ``logistic``; ``squared`` for real labels.
    iterations : int
        T.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        G.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.

    References
    ----------
    Shokri, Shmatikov, "Privacy-preserving deep learning", CCS 2015; as a baseline in Owusu-Agyemang et al. 2021,
    section 5.1, with zCDP.
    """

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, section 5.1 (locally perturbed gradients)"
    claim: ClassVar[Claim | None] = None
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the sum of the parties' noise in each step."""
        alone = super().law(setting)
        shares = (setting.smallest / max(size, 1) for size in setting.sizes)
        return RoundedGaussian(alone.sigma * math.sqrt(sum(share * share for share in shares)))
