"""Analyze Gauss: principal components of a covariance with Gaussian noise, sound and as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import ApproximateAlgorithm, PrivateAlgorithm, Unproved
from dpalgos.gaussian_sums import GAUSSIAN_BUDGETS, gaussian_guarantee, grid
from dpalgos.guarantees import Claim, Guarantee, Loss, Setting
from dpalgos.mechanisms.fixed_point import encoded_radius, gram_sensitivity
from dpalgos.mechanisms.gaussian import sigma_classical
from dpalgos.mechanisms.symmetric import SymmetricRoundedGaussian, pack, unpack
from dpalgos.models import Projection
from dpalgos.noise import NoiseSource, normals
from dpalgos.projections.covariance import (
    CovarianceSum,
    PrincipalDirections,
    gram_matrix,
    leading_basis,
)
from dpalgos.registry import register
from dpalgos.rows import Floats, Rows


@register("projections", "analyze-gauss")
@dataclass(frozen=True, kw_only=True)
class AnalyzeGauss(PrivateAlgorithm, CovarianceSum):
    """The top eigenvectors of XᵀX plus symmetric Gaussian noise, on integers from the row on.

    Guarantee
    ---------
    The budget, whatever the rows. For rows of norm at most R the exact sum XᵀX moves in the Frobenius norm by at most
    √2 R² when a row is replaced (‖xxᵀ − zzᵀ‖² = ‖x‖⁴ + ‖z‖⁴ − 2(xᵀz)² ≤ 2R⁴, reached by orthogonal rows) and by
    R² against a null record. The noise is calibrated to that through the isometry that scales off-diagonals
    by √2, so off-diagonal noise is √2 smaller than in the textbook. Rows are encoded on an integer grid and
    clipped again there, R being the norm no encoded row exceeds, and summed exactly; numerics are exact. The
    eigenvectors and the choice of k by the noisy spectrum are post-processing.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    components : int
        Number of directions k.
    variance_share : float, optional
        Keep only as many of them as hold this share of the noisy trace; the rest are zero columns. Costs nothing more.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang, "Analyze Gauss", STOC 2014; Wang et al. 2024, Algorithm 2 (corrected: sensitivity
    √2 instead of 1, analytic instead of classical σ).
    """

    source: ClassVar[str] = "Dwork et al. 2014, Algorithm 1; Wang et al. 2024, Algorithm 2, corrected"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Dwork et al. 2014, Theorem 4")
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget."""
        self.check(setting)
        return gaussian_guarantee(self.budget, setting)

    def law(self, setting: Setting) -> SymmetricRoundedGaussian:
        """Return the noise of the packed upper triangle."""
        sensitivity = gram_sensitivity(encoded_radius(1.0, self._scale(setting)), setting.neighbours)
        return SymmetricRoundedGaussian.calibrated(self.budget, sensitivity, setting.dimension)

    def _scale(self, setting: Setting) -> float:
        return grid(self.budget, gram_sensitivity(1.0, setting.neighbours), 1, setting)


@register("projections", "analyze-gauss-published")
@dataclass(frozen=True, kw_only=True)
class PublishedAnalyzeGauss(Unproved, ApproximateAlgorithm, PrincipalDirections):
    """Wang et al.'s Algorithm 2 as printed: σ = √(2 ln(1.25/δ))·1/ε on the upper triangle of XᵀX, copied below.

    Guarantee
    ---------
    None stated: see the flaw. (Below ε ≈ 0.73 at δ = 10⁻⁴, or 0.37 at 10⁻⁵, the noise happens to be enough under
    replace-one, because the classical σ is wasteful there; at ε = 4 and δ = 10⁻⁴ the true ε is 5.2.)

    Parameters
    ----------
    budget : ApproximateDP
        The paper's (ε₁, δ).
    components : int
        Number of directions k.

    References
    ----------
    Wang et al., "Differentially private support vector machines with knowledge aggregation", CMC 78 (2024),
    Algorithm 2, Lemma 4.1, Theorem 4.1.
    """

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 2"
    claim: ClassVar[Claim | None] = Claim(
        "(epsilon_1, delta)-DP",
        "Wang et al. 2024, Theorem 4.1",
        "Lemma 4.1 bounds the change of the covariance by 1, but replacing a row moves it by up to sqrt(2), and "
        "sigma = sqrt(2 ln(1.25/delta))/epsilon_1 is proved for epsilon_1 < 1 only.",
    )
    flaw_shows_at: ClassVar[tuple[float, float] | None] = (4.0, 1e-4)
    sound_counterpart: ClassVar[str | None] = "analyze-gauss"

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the basis of the noisy covariance; its spectrum is that of the noisy XᵀX/n."""
        self.check(setting)
        noisy = unpack(self.noisy(parties, setting, noise, 1)[0])
        return leading_basis(noisy / max(setting.rows, 1), self.components)

    def noisy(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource, count: int) -> Floats:
        """Return the upper triangle of XᵀX plus ``count`` draws of the noise, (count, d (d + 1)/2)."""
        covariance = pack(gram_matrix(parties, setting))
        sigma = sigma_classical(self.budget.epsilon, self.budget.delta, 1.0)
        draws = normals(noise.stream("covariance", covariance), count * len(covariance)).reshape(count, -1)
        return np.asarray(covariance + sigma * draws)
