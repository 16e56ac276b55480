"""Principal components of noisy covariances, with Gaussian or with pure noise, and as published."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.accounting.profiles import sigma_classical
from dpalgos.algorithms import (
    ApproximateAlgorithm,
    Directions,
    GaussianAlgorithm,
    NeighbouringPair,
    OneSum,
    PureAlgorithm,
    Unproved,
    Work,
    covariance_work,
    grid,
    one_row_apart,
    orthogonal_pair,
)
from dpalgos.guarantees import (
    RELATIONS,
    Claim,
    GaussianMu,
    Guarantee,
    Neighbours,
    Numerics,
    PureEpsilon,
    Setting,
    Trust,
)
from dpalgos.integer_sums import encoded_radius, gram_sensitivity, packed_gram
from dpalgos.mechanisms.distributions import (
    DiscreteLaplace,
    Laplace,
    RoundedGaussian,
    SymmetricRoundedGaussian,
    SymmetricRoundedRadial,
    pack,
    packed_size,
    to_vector,
    unpack,
)
from dpalgos.models import Projection
from dpalgos.parameters import COUNT, SHARE
from dpalgos.registry import register
from dpalgos.rows import (
    Array,
    Features,
    Floats,
    Ints,
    NoiseSource,
    RandomStream,
    Rows,
    normals,
    null_labels,
    sanitise,
    uniforms,
)
from dpalgos.sentences import coded

OF_BOUNDED_TRACE = "k rows of squared norm at most R²/k each: their Σ xxᵀ is positive semidefinite of trace at most R²"
"""Why a person's rows move a sum of outer products by no more than one row does."""


class PrincipalDirections(Directions):
    """A projection onto leading eigenvectors of a covariance."""

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


class SecondMoments(OneSum):
    """The exact Σ zzᵀ of vectors z made of the rows as one sum of integers, packed.

    A null record adds zero. For vectors of norm at most R, the sum moves in the Frobenius norm by at most √2 R² where a
    row is replaced and by R² against a null record (:func:`~dpalgos.integer_sums.gram_sensitivity`).
    """

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS

    @abstractmethod
    def width(self, setting: Setting) -> int:
        """Return the length of z."""

    @abstractmethod
    def _scale(self, setting: Setting) -> float:
        """Return the grid units per unit in which vectors are encoded."""

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the statistic."""
        return gram_sensitivity(1.0, setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact sum as a vector of the same length."""
        return to_vector(unpack(self._upper_triangle(rows, setting)))

    def _upper_triangle(self, rows: Rows, setting: Setting) -> Floats:
        return self.contribution(self.initial(setting), rows, setting) / self._scale(setting) ** 2

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the number of entries of the upper triangle."""
        return (packed_size(self.width(setting)),)


class GaussianMoments(GaussianAlgorithm, SecondMoments):
    """Σ zzᵀ plus symmetric Gaussian noise, on integers from the row on."""

    def distribution(self, setting: Setting) -> SymmetricRoundedGaussian:
        """Return the noise of the packed upper triangle."""
        sensitivity = gram_sensitivity(encoded_radius(1.0, self._scale(setting)), setting.neighbours)
        return SymmetricRoundedGaussian.calibrated(self.budget, sensitivity, self.width(setting))

    def _scale(self, setting: Setting) -> float:
        return grid(self.budget, gram_sensitivity(1.0, setting.neighbours), 1, setting)


class CovarianceSum(TruncatedDirections, SecondMoments):
    """The exact XᵀX of all parties' rows; what is made of it once noise is added."""

    measured: ClassVar[str] = "XᵀX, Frobenius"

    def width(self, setting: Setting) -> int:
        """Return the number of features."""
        return setting.dimension

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
    basis = _oriented(vectors)
    if variance_share is not None:
        kept = _directions_for(values, np.trace(finite), variance_share)
        basis = np.where(np.arange(components) < kept, basis, 0.0)
    return Projection(basis=np.ascontiguousarray(basis), spectrum=np.ascontiguousarray(values))


def _oriented(vectors: Floats) -> Floats:
    """Return columns with the sign that makes each one's largest entry positive."""
    largest = np.abs(vectors).argmax(axis=0)
    return np.asarray(vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0))


def _directions_for(values: Floats, trace: float, variance_share: float) -> int:
    """Return how many of the leading eigenvalues hold a share of the trace; all of these where they hold less."""
    if trace <= 0:
        return 1
    reached = np.flatnonzero(np.cumsum(values) >= variance_share * trace * (1.0 - 1e-12))
    return int(reached[0]) + 1 if reached.size else len(values)


@register("projections", "analyze-gauss")
@dataclass(frozen=True, kw_only=True)
class AnalyzeGauss(GaussianMoments, CovarianceSum):
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
    people: ClassVar[str] = OF_BOUNDED_TRACE
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Dwork et al. 2014, Theorem 4")


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

    Notes
    -----
    Under replace-one, e₁ in the place of e₂ moves XᵀX by e₁e₁ᵀ − e₂e₂ᵀ, which is √2 long in the upper triangle (two
    entries of the diagonal). Nothing moves it by more: the triangle is no longer than the whole matrix, whose Frobenius
    norm moves by at most √2. So what is released is exactly μ-Gaussian-DP with μ = √2/σ = ε/√(ln(1.25/δ)), and its true
    ε at δ is that of μ:

    =======  ========================  ======================  ============
    δ        noise is enough up to ε   true ε at claimed 1     at claimed 4
    =======  ========================  ======================  ============
    10⁻⁴     0.726                     1.04                    5.22
    10⁻⁵     0.365                     1.10                    5.24
    10⁻⁶     0.162                     1.14                    5.26
    =======  ========================  ======================  ============

    References
    ----------
    Wang et al., "Differentially private support vector machines with knowledge aggregation", CMC 78 (2024),
    Algorithm 2, Lemma 4.1, Theorem 4.1.
    """

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 2"
    claim: ClassVar[Claim | None] = Claim(
        "(epsilon_1, delta)-DP",
        "Wang et al. 2024, Theorem 4.1",
        coded("covariance-moves-by-sqrt-2"),
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
    components, variance_share
        See :class:`AnalyzeGauss`.

    References
    ----------
    Chaudhuri, Sarwate, Sinha, "A near-optimal algorithm for differentially-private principal components", JMLR 14
    (2013), Algorithm 1, Theorem 1.
    """

    source: ClassVar[str] = "Chaudhuri, Sarwate, Sinha 2013, Algorithm 1"
    people: ClassVar[str] = OF_BOUNDED_TRACE
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Chaudhuri, Sarwate, Sinha 2013, Theorem 1")

    measured: ClassVar[str] = "upper triangle of XᵀX, l2"

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the upper triangle of the party's exact XᵀX."""
        return self._upper_triangle(rows, setting)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what the paper's noise is proved to cost."""
        self.check(setting)
        mu = self.distribution(setting).mu(
            gram_sensitivity(encoded_radius(1.0, self._scale(setting)), setting.neighbours)
        )
        return Guarantee(losses=(GaussianMu(mu),), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def deviation(self, setting: Setting) -> float:
        """Return β."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        d, rows = setting.dimension, max(setting.rows, 1)
        inside = max((d * d + d) / (2.0 * math.sqrt(2.0 * math.pi) * delta), 1.0)
        return (d + 1) / (rows * epsilon) * math.sqrt(2.0 * math.log(inside)) + 1.0 / (rows * math.sqrt(epsilon))

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each entry of XᵀX, nβ in grid units."""
        return RoundedGaussian(self._noise(setting) * self._scale(setting) ** 2)

    def _noise(self, setting: Setting) -> float:
        return self.deviation(setting) * max(setting.rows, 1)

    def _scale(self, setting: Setting) -> float:
        sensitivity = gram_sensitivity(1.0, setting.neighbours)
        return grid(GaussianMu(sensitivity / self._noise(setting)), sensitivity, 1, setting)


# Discrete Laplace noise goes up to 2^32 grid units; below 2^4 units rows would be too coarse to mean anything.
_NOISE_ROOM = 2.0**31
_FINEST, _COARSEST = 16, 4


def triangle_sensitivity(dimension: int, radius: float, neighbours: Neighbours) -> float:
    """Return how far one row moves the upper triangle of Σ xxᵀ in l1, diagonal included.

    Against a null record x moves it by Σ_{i≤j}|xᵢxⱼ| = (‖x‖₁² + ‖x‖₂²)/2 ≤ (d + 1)/2 R². Replacing x by z moves it by
    half of (l1 norm of M + that of its diagonal) for M = xxᵀ − zzᵀ: the first is at most d ‖M‖_F ≤ √2 d R², the second
    at most 2R². So d/√2 + 1, or twice (d + 1)/2 where that is less.
    """
    if neighbours.records == 1:
        return math.nextafter((dimension + 1) / 2.0 * radius**2, math.inf)
    return math.nextafter(min(dimension + 1.0, dimension / math.sqrt(2.0) + 1.0) * radius**2, math.inf)


def spread_pair(setting: Setting) -> NeighbouringPair:
    """Return neighbours that move the upper triangle by at least (d − 1)/√2 in l1, and by (d + 1)/2 against null.

    With angles θᵢ = π/8 and 5π/8 in turn, xᵢ = √(2/d) cos θᵢ and zᵢ = √(2/d) sin θᵢ are orthogonal unit vectors for
    even d, and xᵢxⱼ − zᵢzⱼ = (2/d) cos(θᵢ + θⱼ) is ± √2/d for all i, j: (d + 1)/√2 over the triangle. For odd d the
    last feature is left out. Against a null record all |xᵢ| = 1/√d.
    """
    d = setting.dimension
    if setting.neighbours.records == 1 or d == 1:
        return one_row_apart(setting, np.full(d, 1.0 / math.sqrt(d)), np.zeros(d))
    even = d - d % 2
    angles = np.pi / 8.0 + np.pi / 2.0 * (np.arange(even) % 2)
    rows = np.zeros((2, d))
    rows[:, :even] = math.sqrt(2.0 / even) * np.array([np.cos(angles), np.sin(angles)])
    return one_row_apart(setting, rows[0], rows[1])


@register("projections", "laplace-pca")
@dataclass(frozen=True, kw_only=True)
class LaplaceCovariance(PureAlgorithm, CovarianceSum):
    """The top eigenvectors of XᵀX plus discrete Laplace noise on each entry of the upper triangle, copied below.

    Guarantee
    ---------
    epsilon-DP: the l1 sensitivity of the upper triangle is :func:`triangle_sensitivity`, d/√2 + 1 for a replaced row
    and (d + 1)/2 for one against null, at the norm that no encoded row exceeds. Rows are integers from the start, and
    so is the noise: numerics exact.

    Parameters
    ----------
    budget : PureEpsilon
    components, variance_share
        See :class:`AnalyzeGauss`.

    References
    ----------
    Huang et al. 2021, Algorithm 1 (with a smaller constant); Xu, Yang, Bai 2019.
    """

    source: ClassVar[str] = "Huang et al. 2021, Algorithm 1, steps 1–5, with d/sqrt(2) + 1 instead of 2d"
    people: ClassVar[str] = OF_BOUNDED_TRACE
    numerics: ClassVar[Numerics] = Numerics.EXACT
    measured: ClassVar[str] = "upper triangle of XᵀX, l1"
    norm: ClassVar[int] = 1

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the statistic, at most."""
        return triangle_sensitivity(setting.dimension, 1.0, setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the upper triangle of the party's exact XᵀX."""
        return self._upper_triangle(rows, setting)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return neighbours that move all entries alike."""
        return spread_pair(setting)

    def distribution(self, setting: Setting) -> DiscreteLaplace:
        """Return the noise of each entry."""
        radius = encoded_radius(1.0, self._scale(setting))
        sensitivity = triangle_sensitivity(setting.dimension, radius, setting.neighbours)
        return DiscreteLaplace(sensitivity / self.budget.epsilon * (1.0 + 2.0**-48))

    def _scale(self, setting: Setting) -> float:
        noise = triangle_sensitivity(setting.dimension, 1.0, setting.neighbours) / self.budget.epsilon
        room = math.floor(math.log2(_NOISE_ROOM / noise) / 2.0)
        return 2.0 ** max(_COARSEST, min(_FINEST, room))


@register("projections", "dppca")
@dataclass(frozen=True, kw_only=True)
class PublishedLaplaceCovariance(PureAlgorithm, TruncatedDirections):
    """Huang et al.'s noisy covariance: Laplace noise of scale 2d/(nε) on the upper triangle of XᵀX/n, copied below.

    Guarantee
    ---------
    epsilon-DP: the upper triangle of XᵀX/n moves by at most (d + 1)/n ≤ 2d/n in l1 where a row is replaced, and by half
    of that against a null record. (The published proof bounds an operator norm instead, but the constant is enough.)
    Numerics idealised. What the paper does next,
    training on the projected rows without noise, is not covered.

    Parameters
    ----------
    budget : PureEpsilon
    components : int
        Number of directions k.
    variance_share : float, optional
        The paper's α: keep only as many directions as hold this share of the noisy trace.

    References
    ----------
    Huang, Yang, Xu, Zhou, Security and Communication Networks 2021, Algorithm 1, Lemma 1.
    """

    source: ClassVar[str] = "Huang et al. 2021, Algorithm 1, steps 1–5"
    people: ClassVar[str] = OF_BOUNDED_TRACE
    claim: ClassVar[Claim | None] = Claim("(epsilon, 0)-DP", "Huang et al. 2021, Theorem 1, of the covariance")
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "upper triangle of XᵀX/n, l1"
    norm: ClassVar[int] = 1

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the statistic, at most."""
        return triangle_sensitivity(setting.dimension, 1.0, setting.neighbours) / max(setting.rows, 1)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the upper triangle of the party's part of XᵀX/n."""
        return pack(gram_matrix([rows], setting)) / max(setting.rows, 1)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return neighbours that move all entries alike."""
        return spread_pair(setting)

    def noise_scale(self, setting: Setting) -> float:
        """Return 2d/(nε)."""
        return 2.0 * setting.dimension / (max(setting.rows, 1) * self.budget.epsilon)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the basis; its spectrum is that of the noisy XᵀX/n."""
        self.check(setting)
        covariance = pack(gram_matrix(parties, setting) / max(setting.rows, 1))
        draws = Laplace(self.noise_scale(setting)).sample(len(covariance), noise.stream("covariance", covariance))
        return leading_basis(unpack(np.asarray(covariance + draws)), self.components, self.variance_share)


@register("projections", "radial-pca")
@dataclass(frozen=True, kw_only=True)
class RadialCovariance(PureAlgorithm, CovarianceSum):
    """The top eigenvectors of XᵀX plus symmetric noise of density ∝ exp(−‖N‖_F ε/Δ), rounded to a fine grid.

    Guarantee
    ---------
    epsilon-DP: the Frobenius sensitivity Δ is √2 R² under replace-one and R² under replace-special, as for
    ``analyze-gauss``, R the norm that no encoded row exceeds; radial noise on the symmetric isometry is the K-norm
    mechanism for that norm. Sums are exact integers, the noise is drawn in floating point: numerics idealised.

    Parameters
    ----------
    budget : PureEpsilon
        ε, all of it for the covariance.
    components, variance_share
        See :class:`AnalyzeGauss`.

    References
    ----------
    Hardt, Talwar, STOC 2010; Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011) for the sampler.
    """

    source: ClassVar[str] = "Hardt, Talwar 2010 (K-norm mechanism), on symmetric matrices"
    people: ClassVar[str] = OF_BOUNDED_TRACE

    def distribution(self, setting: Setting) -> SymmetricRoundedRadial:
        """Return the noise of the packed upper triangle."""
        sensitivity = gram_sensitivity(encoded_radius(1.0, self._scale(setting)), setting.neighbours)
        return SymmetricRoundedRadial(math.nextafter(sensitivity / self.budget.epsilon, math.inf), setting.dimension)

    def _scale(self, setting: Setting) -> float:
        # The vector of D entries is some D scales long, so that each entry deviates by some sqrt(D) of them.
        entries = packed_size(setting.dimension)
        return grid(GaussianMu(self.budget.epsilon), gram_sensitivity(1.0, setting.neighbours), entries, setting)


@register("projections", "pca")
@dataclass(frozen=True, kw_only=True)
class PrincipalComponents(Unproved, TruncatedDirections):
    """The top eigenvectors of the uncentred covariance XᵀX/n, without noise.

    Guarantee
    ---------
    None: the basis is a function of the rows.

    Parameters
    ----------
    components : int
        Number of directions k.
    variance_share : float, optional
        Keep only as many of them as hold this share of the total variance; the rest are zero columns.
    """

    source: ClassVar[str] = "principal component analysis, uncentred"
    sound_counterpart: ClassVar[str | None] = "analyze-gauss"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the exact basis of all parties' rows together; its spectrum is that of XᵀX/n."""
        self.check(setting)
        covariance = gram_matrix(parties, setting) / max(setting.rows, 1)
        return leading_basis(covariance, self.components, self.variance_share)


@register("projections", "dpsvd")
@dataclass(frozen=True, kw_only=True)
class PublishedSvd(Unproved, ApproximateAlgorithm, TruncatedDirections):
    """The top right singular vectors of X + E, every entry of E from N(0, β²); the raw rows are projected on them.

    β is the classical √(2 ln(1.25/δ))·1/ε for a row of norm 1.

    Guarantee
    ---------
    None: see the flaw. The paper was retracted.

    Parameters
    ----------
    budget : ApproximateDP
        The paper's (ε, δ).
    components : int
        Directions k.
    variance_share : float, optional
        The paper's γ: keep only as many directions as hold this share of the spectrum.

    References
    ----------
    Sun, Yang, Li, "Differentially private singular value decomposition for training support vector machines",
    Computational Intelligence and Neuroscience 2022 (retracted), Algorithm 1.
    """

    source: ClassVar[str] = "Sun, Yang, Li 2022 (retracted), Algorithm 1"
    claim: ClassVar[Claim | None] = Claim(
        "(epsilon, delta)-DP",
        "Sun, Yang, Li 2022",
        coded("rows-move-by-2"),
    )
    sound_counterpart: ClassVar[str | None] = "analyze-gauss"

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the right singular vectors; the spectrum is that of (X + E)ᵀ(X + E)/n."""
        self.check(setting)
        deviation = sigma_classical(self.budget.epsilon, self.budget.delta, 1.0)
        total = np.zeros((setting.dimension, setting.dimension))
        for party, rows in enumerate(parties):
            stream = noise.stream(f"rows-{party}", rows.fingerprint())
            for features, labels, _ in rows.blocks():
                clean, _ = sanitise(features, labels, setting.classes)
                noisy = clean + deviation * normals(stream, features.size).reshape(features.shape)
                total += noisy.T @ noisy
        return leading_basis(total / max(setting.rows, 1), self.components, self.variance_share)


@register("projections", "wishart-pca")
@dataclass(frozen=True, kw_only=True)
class PublishedWishart(Unproved, PureAlgorithm, TruncatedDirections):
    """The top eigenvectors of XᵀX/n + W, W Wishart of d + 1 degrees of freedom and scale 3/(2nε) I.

    Guarantee
    ---------
    None: see the flaw. The paper states ε-DP.

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε.
    components, variance_share
        See :class:`~dpalgos.projections.covariance.AnalyzeGauss`.

    References
    ----------
    Jiang, Xie, Zhang, "Wishart mechanism for differentially private principal components analysis", AAAI 2016,
    Algorithm 1, Theorem 4.
    """

    source: ClassVar[str] = "Jiang, Xie, Zhang 2016, Algorithm 1"
    claim: ClassVar[Claim | None] = Claim(
        "(epsilon, 0)-DP",
        "Jiang, Xie, Zhang 2016, Theorem 4",
        coded("one-sided-support"),
    )
    sound_counterpart: ClassVar[str | None] = "radial-pca"

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the basis; its spectrum is that of the noisy XᵀX/n."""
        self.check(setting)
        d, rows = setting.dimension, max(setting.rows, 1)
        covariance = gram_matrix(parties, setting) / rows
        factors = normals(noise.stream("covariance", covariance), (d + 1) * d).reshape(d + 1, d)
        noisy = covariance + 3.0 / (2.0 * rows * self.budget.epsilon) * (factors.T @ factors)
        return leading_basis(noisy, self.components, self.variance_share)


# Directions proposed at once. In q dimensions some 1.2 √q are needed on average where the distribution is most
# concentrated.
_PROPOSALS = 32
_HALVINGS = 100


@dataclass(frozen=True, slots=True)
class Bingham:
    """A unit vector v with density proportional to ``exp(vᵀ B v)`` on the sphere of q dimensions.

    Guarantee
    ---------
    *The exponential mechanism* (McSherry, Talwar 2007) over directions. Let the exponents of neighbouring data sets
    differ by g(v) = vᵀ(B − B′)v. The densities' ratio at v is exp(g(v)) / E′[exp(g)], the mean taken under the second
    distribution, so it lies between exp(min g − max g) and exp(max g − min g): epsilon-DP with epsilon the largest
    eigenvalue of B − B′ minus the smallest. Numerics are ``idealised``.

    *The sampler is exact* in real arithmetic. Let ℓ ≥ 0 be B's largest eigenvalue minus each of them, u = Σ ℓᵢ vᵢ² in
    B's eigenvectors, b the root of Σ 1/(b + 2ℓᵢ) = 1, which is in [1, q], and ωᵢ = 1 + 2ℓᵢ/b. A Gaussian vector of
    variances 1/ωᵢ, scaled to length 1, has a density proportional to (1 + 2u/b)^(−q/2) (angular central Gaussian), and
    e^(−u) ≤ e^(−(q − b)/2) (q/b)^(q/2) (1 + 2u/b)^(−q/2) with equality at u = (q − b)/2. The proposal is accepted with
    the ratio of the two sides. The number of proposals is random; its distribution depends on B, which is for whoever
    measures the time (docs/security.md).

    Parameters
    ----------
    exponent : array (q, q)
        B, symmetric.

    References
    ----------
    Kent, Ganeiko, Mardia, "A new unified approach for the simulation of a wide class of directional distributions",
    JCGS 27 (2018), sections 2 and 3.
    """

    exponent: Floats
    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def sample(self, stream: RandomStream) -> Floats:
        """Return one direction, (q,)."""
        values, vectors = np.linalg.eigh(self.exponent)
        below = values[-1] - values
        width = _envelope(below)
        deviations = 1.0 / np.sqrt(1.0 + 2.0 * below / width)
        q = len(values)
        highest = 0.5 * (q - width) - 0.5 * q * math.log(q / width)
        while True:
            proposals = normals(stream, _PROPOSALS * q).reshape(-1, q) * deviations
            proposals /= np.linalg.norm(proposals, axis=1, keepdims=True)
            u = proposals**2 @ below
            log_ratio = 0.5 * q * np.log1p(2.0 * u / width) - u + highest
            accepted = np.flatnonzero(np.log(uniforms(stream, _PROPOSALS)) <= log_ratio)
            if len(accepted):
                return np.asarray(vectors @ proposals[accepted[0]])


def _envelope(below: Floats) -> float:
    """Return the root b of Σ 1/(b + 2ℓᵢ) = 1, by bisection: between 1, as one of the ℓᵢ is 0, and their number."""
    low, high = 1.0, float(len(below))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.sum(1.0 / (middle + 2.0 * below)) > 1.0 else (low, middle)
    return 0.5 * (low + high)


def _remaining(directions: Floats) -> Floats:
    """Return an orthonormal basis (d, d − i) of what is orthogonal to i orthonormal columns."""
    full, _ = np.linalg.qr(directions, mode="complete")
    return np.asarray(full[:, directions.shape[1] :])


def _basis(directions: Floats) -> Projection:
    """Return the projection; the signs, which the distribution leaves open, by the largest entry of each direction."""
    # No spectrum: the exact one is a function of the rows, and none is drawn.
    return Projection(basis=np.ascontiguousarray(_oriented(directions)), spectrum=np.zeros(0))


@register("projections", "ppca")
@dataclass(frozen=True, kw_only=True)
class Ppca(PureAlgorithm, PrincipalDirections):
    """Directions drawn one after the other, each orthogonal to those before, by the exponential mechanism.

    Guarantee
    ---------
    epsilon-DP in total, epsilon/k for each of k directions (they are drawn from the same rows, adaptively). The i-th
    has the density ∝ exp(c vᵀXᵀX v) on the unit sphere of what is orthogonal to those before: the exponential mechanism
    (:class:`~dpalgos.projections.covariance.Bingham`), which is c·r-DP for r the range over v of the change of vᵀXᵀX v.
    That change is vᵀ(xxᵀ − zzᵀ)v, of a matrix of rank two with eigenvalues p ≥ 0 ≥ −q and Frobenius norm √(p² + q²) ≤
    √2 (:func:`~dpalgos.integer_sums.gram_sensitivity`), so r = p + q ≤ √2·√2 = 2, reached by orthogonal unit
    rows; against a null record it is ‖x‖² ≤ 1. So c = epsilon/(2k) under replace-one, epsilon/k under replace-special.
    The sampler draws from exactly this distribution; numerics idealised. The released basis has no spectrum.

    For k = 1 this is the distribution of PPCA; for more, PPCA draws the subspace at once, which nobody can do exactly.

    Parameters
    ----------
    budget : PureEpsilon
    components : int
        Number of directions k.

    References
    ----------
    Chaudhuri, Sarwate, Sinha, JMLR 14 (2013), Algorithm 2 (k = 1); Kapralov, Talwar, "On differentially private low
    rank approximation", SODA 2013 (direction by direction); McSherry, Talwar, FOCS 2007, Theorem 6.
    """

    source: ClassVar[str] = "Chaudhuri, Sarwate, Sinha 2013, Algorithm 2; Kapralov, Talwar 2013 for several directions"
    people: ClassVar[str] = OF_BOUNDED_TRACE
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "XᵀX, Frobenius"

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves XᵀX."""
        return gram_sensitivity(1.0, setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact XᵀX."""
        return gram_matrix([rows], setting)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return an equal share of epsilon for each direction."""
        self.check(setting)
        share = PureEpsilon(self.budget.epsilon / self.components)
        return Guarantee(losses=(share,) * self.components, neighbours=setting.neighbours)

    def weight(self, setting: Setting) -> float:
        """Return c, by which vᵀXᵀX v is multiplied in the exponent."""
        return self.budget.epsilon / (self.components * setting.neighbours.records)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the directions as they were drawn."""
        self.check(setting)
        exponent = self.weight(setting) * gram_matrix(parties, setting)
        drawn = np.zeros((setting.dimension, 0))
        for index in range(self.components):
            rest = _remaining(drawn)
            distribution = Bingham(rest.T @ exponent @ rest)
            direction = rest @ distribution.sample(noise.stream(f"direction-{index}", distribution.exponent))
            drawn = np.column_stack([drawn, direction])
        return _basis(drawn)


@register("projections", "ppca-published")
@dataclass(frozen=True, kw_only=True)
class PublishedPpca(Unproved, PureAlgorithm, PrincipalDirections):
    """A subspace drawn by Gibbs sampling from the density ∝ exp(tr VᵀXᵀX V · ε/2) over orthonormal d × k matrices.

    A sweep draws each column anew from its distribution given the others, which is exact.

    Guarantee
    ---------
    None: see the flaw. (The stated distribution is the exponential mechanism and ε-DP: the trace moves by at most 1
    either way. For k = 1 a sweep draws from it; use ``ppca``.)

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε.
    components : int
        Number of directions k.
    sweeps : int
        From a basis of uniform distribution.

    References
    ----------
    Chaudhuri, Sarwate, Sinha, JMLR 14 (2013), Algorithm 2; Hoff, "Simulation of the matrix Bingham–von Mises–Fisher
    distribution", JCGS 18 (2009).
    """

    sweeps: int = field(default=20, metadata=COUNT)

    source: ClassVar[str] = "Chaudhuri, Sarwate, Sinha 2013, Algorithm 2, with a Gibbs sampler as in its section 5"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Chaudhuri, Sarwate, Sinha 2013, Algorithm 2",
        coded("sampler-stopped"),
    )
    sound_counterpart: ClassVar[str | None] = "ppca"

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the subspace after the last sweep."""
        self.check(setting)
        exponent = 0.5 * self.budget.epsilon * gram_matrix(parties, setting)
        start = normals(noise.stream("start", exponent), setting.dimension * self.components)
        columns, _ = np.linalg.qr(start.reshape(setting.dimension, self.components))
        for sweep in range(self.sweeps):
            for index in range(self.components):
                rest = _remaining(np.delete(columns, index, axis=1))
                distribution = Bingham(rest.T @ exponent @ rest)
                columns[:, index] = rest @ distribution.sample(
                    noise.stream(f"column-{sweep}-{index}", distribution.exponent)
                )
        return _basis(columns)
