"""Principal components of noisy covariances: Analyze Gauss, MOD-SULQ, and what they share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import ApproximateAlgorithm, GaussianAlgorithm, OneSum, ProjectionAlgorithm, Unproved
from dpalgos.guarantees import RELATIONS, Claim, GaussianMu, Guarantee, Neighbours, Numerics, Setting
from dpalgos.integer_sums import packed_gram
from dpalgos.mechanisms.fixed_point import encoded_radius, gram_sensitivity
from dpalgos.mechanisms.gaussian import sigma_classical
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.mechanisms.symmetric import SymmetricRoundedGaussian, pack, packed_size, to_vector, unpack
from dpalgos.models import Projection
from dpalgos.neighbouring import NeighbouringPair, orthogonal_pair
from dpalgos.noise import NoiseSource, normals
from dpalgos.parameters import COUNT, SHARE
from dpalgos.registry import register
from dpalgos.resources import Work, covariance_work
from dpalgos.rows import Array, Features, Floats, Ints, Rows, null_labels, sanitise
from dpalgos.summation import grid
from dpalgos.validation import require_components


@dataclass(frozen=True, kw_only=True)
class PrincipalDirections(ProjectionAlgorithm):
    """A projection onto leading eigenvectors of a covariance.

    Parameters
    ----------
    components : int
        Number of directions k.
    """

    components: int = field(default=20, metadata=COUNT)

    def check(self, setting: Setting) -> None:
        """Raise where rows have fewer features than there are directions."""
        super().check(setting)
        require_components(self.components, setting)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of directions."""
        return self.components

    def work(self, setting: Setting) -> Work:
        """Return that of a covariance and of all its eigenvectors."""
        return covariance_work(setting)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return two orthogonal rows, which move XᵀX by √2 in the Frobenius norm, or one and a null record: by 1."""
        return orthogonal_pair(setting)


@dataclass(frozen=True, kw_only=True)
class TruncatedDirections(PrincipalDirections):
    """Leading eigenvectors, as many of them as hold a share of the variance.

    Parameters
    ----------
    variance_share : float, optional
        Keep only as many directions as hold this share of the (noisy) trace; the rest are zero columns.
    """

    variance_share: float | None = field(default=None, metadata=SHARE)


class CovarianceSum(TruncatedDirections, OneSum):
    """The exact XᵀX of all parties' rows as one sum of integers, packed; what is made of it once noise is added.

    A null record adds zero. For rows of norm at most R, XᵀX moves in the Frobenius norm by at most √2 R² where a row is
    replaced and by R² against a null record (:func:`~dpalgos.mechanisms.fixed_point.gram_sensitivity`).
    """

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "XᵀX, Frobenius"
    norm: ClassVar[int] = 2

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the statistic."""
        return gram_sensitivity(1.0, setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact XᵀX as a vector of the same length."""
        return to_vector(unpack(self._upper_triangle(rows, setting)))

    def _upper_triangle(self, rows: Rows, setting: Setting) -> Floats:
        return self.contribution(self.initial(setting), rows, setting) / self._scale(setting) ** 2

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the number of entries of the upper triangle."""
        return (packed_size(setting.dimension),)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the packed upper triangle of the party's exact integer covariance."""

        def clean(features: Features, labels: Array) -> Features:
            null = null_labels(labels, setting.classes)
            return np.where(null[:, None], np.zeros((), features.dtype), features) if null.any() else features

        return packed_gram(rows.blocks(), clean, setting.dimension, self._scale(setting), count=setting.rows)

    def result(self, state: Ints, setting: Setting) -> Projection:
        """Return the basis; its spectrum is that of the noisy XᵀX/n."""
        covariance = unpack(state) / self._scale(setting) ** 2 / max(setting.rows, 1)
        return leading_basis(covariance, self.components, self.variance_share)

    @abstractmethod
    def _scale(self, setting: Setting) -> float:
        """Return the grid units per unit in which rows are encoded."""


def gram_matrix(parties: Sequence[Rows], setting: Setting) -> Floats:
    """Return the uncentred XᵀX of all rows, clipped to the unit ball and null records zero, (d, d)."""
    total = np.zeros((setting.dimension, setting.dimension))
    for rows in parties:
        for features, labels, shares in rows.blocks():
            clean, _ = sanitise(features, labels, setting.classes)
            if shares is not None:
                # As where squares are encoded: k rows of 1/√k, together of trace at most 1.
                clean = clean * np.sqrt(np.where(shares >= 1, 1.0 / np.maximum(shares, 1), 0.0))[:, None]
            total += clean.T @ clean
    return total


def leading_basis(matrix: Floats, components: int, variance_share: float | None = None) -> Projection:
    """Return the eigenvectors of a symmetric matrix with the largest eigenvalues, largest first.

    Total: entries that are not finite count as zero. The sign of each vector is fixed by its largest entry, so that
    equal matrices give equal bases.

    Parameters
    ----------
    matrix : array (d, d)
    components : int
        Number of columns of the basis.
    variance_share : float, optional
        Keep only as many of them as together hold this share of the trace (Huang et al. 2021, eq. (3)); the other
        columns are zero, so that the basis's shape is public. The trace of a noisy matrix is that of the exact one
        plus noise of mean zero; where it is not positive, one direction is kept.

    Returns
    -------
    Projection
        Its spectrum holds the eigenvalues of its columns.
    """
    finite = np.where(np.isfinite(matrix), matrix, 0.0)
    symmetric = (finite + finite.T) / 2.0
    last = len(symmetric) - 1
    values, vectors = scipy.linalg.eigh(
        symmetric, subset_by_index=(last + 1 - components, last), overwrite_a=True, check_finite=False
    )
    values, vectors = values[::-1], vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    basis = vectors * np.where(vectors[largest, np.arange(components)] < 0, -1.0, 1.0)
    if variance_share is not None:
        kept = _directions_for(values, np.trace(finite), variance_share)
        basis = np.where(np.arange(components) < kept, basis, 0.0)
    return Projection(basis=np.ascontiguousarray(basis), spectrum=np.ascontiguousarray(values))


def _directions_for(values: Floats, trace: float, variance_share: float) -> int:
    """Return how many of the leading eigenvalues hold a share of the trace; all of these where they hold less."""
    if trace <= 0:
        return 1
    reached = np.flatnonzero(np.cumsum(values) >= variance_share * trace * (1.0 - 1e-12))
    return int(reached[0]) + 1 if reached.size else len(values)


@register("projections", "analyze-gauss")
@dataclass(frozen=True, kw_only=True)
class AnalyzeGauss(GaussianAlgorithm, CovarianceSum):
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
    people: ClassVar[str] = (
        "k rows of squared norm at most R²/k each: their Σ xxᵀ is positive semidefinite of trace at most R²"
    )
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Dwork et al. 2014, Theorem 4")

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
    people: ClassVar[str] = (
        "k rows of squared norm at most R²/k each: their Σ xxᵀ is positive semidefinite of trace at most R²"
    )
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
