"""Principal components of noisy covariances, with Gaussian or with pure noise."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import (
    ApproximateAlgorithm,
    GaussianAlgorithm,
    NeighbouringPair,
    OneSum,
    PureAlgorithm,
    grid,
    one_row_apart,
)
from dpalgos.guarantees import (
    RELATIONS,
    Claim,
    GaussianMu,
    Guarantee,
    Neighbours,
    Numerics,
    Setting,
)
from dpalgos.integer_sums import OF_BOUNDED_TRACE, encoded_radius, gram_sensitivity, packed_gram
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
from dpalgos.projections.principal import TruncatedDirections, gram_matrix, leading_basis
from dpalgos.registry import register
from dpalgos.rows import (
    Array,
    Features,
    Floats,
    Ints,
    NoiseSource,
    Rows,
    null_labels,
)


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


@register("projections", "analyze-gauss")
@dataclass(frozen=True, kw_only=True)
class AnalyzeGauss(GaussianMoments, CovarianceSum):
    """The top eigenvectors of XᵀX plus symmetric Gaussian noise, on integers from the row on.

    Guarantee
    ---------
    The budget, for any rows. For rows of norm at most R the exact sum XᵀX moves in the Frobenius norm by at most
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
        Keep only as many of them as hold this share of the noisy trace; the rest are zero columns. This has no further
        privacy cost.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang, "Analyze Gauss", STOC 2014; Wang et al. 2024, Algorithm 2 (corrected: sensitivity
    √2 instead of 1, analytic instead of classical σ).
    """

    source: ClassVar[str] = "Dwork et al. 2014, Algorithm 1; Wang et al. 2024, Algorithm 2, corrected"
    people: ClassVar[str] = OF_BOUNDED_TRACE
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Dwork et al. 2014, Theorem 4")


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
