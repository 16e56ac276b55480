"""MOD-SuLQ: principal components of a covariance with the Gaussian noise of Chaudhuri, Sarwate and Sinha."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.algorithms import ApproximateAlgorithm
from dpalgos.gaussian_sums import grid
from dpalgos.guarantees import Claim, GaussianMu, Guarantee, Numerics, Setting
from dpalgos.mechanisms.fixed_point import encoded_radius, gram_sensitivity
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.projections.covariance import CovarianceSum
from dpalgos.registry import register
from dpalgos.rows import Floats, Rows


@register("projections", "mod-sulq")
@dataclass(frozen=True, kw_only=True)
class ModSulq(ApproximateAlgorithm, CovarianceSum):
    """The top eigenvectors of XᵀX/n plus N(0, β²) on each entry of the upper triangle, copied below.

    β = (d + 1)/(nε) √(2 ln((d² + d)/(2√(2π) δ))) + 1/(n√ε).

    Guarantee
    ---------
    μ-GDP with μ = √2/(nβ) under replace-one, 1/(nβ) under replace-special: the upper triangle of XᵀX/n moves in l2 by
    no more than XᵀX/n in the Frobenius norm, √2/n (reached by e₁ and e₂) or 1/n. That is at most about √2 ε/(d + 1),
    far below the paper's claim: the noise is some d times more than (ε, δ) needs. Rows are encoded and clipped on an
    integer grid, sums and noise are integers: numerics exact.

    Parameters
    ----------
    budget : ApproximateDP
        The paper's (ε, δ).
    components : int
        Number of directions k.
    variance_share : float, optional
        Keep only as many of them as hold this share of the noisy trace; the rest are zero columns.

    References
    ----------
    Chaudhuri, Sarwate, Sinha, "A near-optimal algorithm for differentially-private principal components", JMLR 14
    (2013), Algorithm 1, Theorem 1.
    """

    source: ClassVar[str] = "Chaudhuri, Sarwate, Sinha 2013, Algorithm 1"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Chaudhuri, Sarwate, Sinha 2013, Theorem 1")

    measured: ClassVar[str] = "upper triangle of XᵀX, l2"

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the upper triangle of the party's exact XᵀX."""
        return self._upper_triangle(rows, setting)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what the paper's noise is proved to cost."""
        self.check(setting)
        mu = self.law(setting).mu(gram_sensitivity(encoded_radius(1.0, self._scale(setting)), setting.neighbours))
        return Guarantee(losses=(GaussianMu(mu),), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def deviation(self, setting: Setting) -> float:
        """Return β."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        d, rows = setting.dimension, max(setting.rows, 1)
        inside = max((d * d + d) / (2.0 * math.sqrt(2.0 * math.pi) * delta), 1.0)
        return (d + 1) / (rows * epsilon) * math.sqrt(2.0 * math.log(inside)) + 1.0 / (rows * math.sqrt(epsilon))

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each entry of XᵀX, nβ in grid units."""
        return RoundedGaussian(self._noise(setting) * self._scale(setting) ** 2)

    def _noise(self, setting: Setting) -> float:
        return self.deviation(setting) * max(setting.rows, 1)

    def _scale(self, setting: Setting) -> float:
        sensitivity = gram_sensitivity(1.0, setting.neighbours)
        return grid(GaussianMu(sensitivity / self._noise(setting)), sensitivity, 1, setting)
