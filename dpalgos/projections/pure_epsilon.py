"""Principal components of a covariance with pure-epsilon noise: Laplace entry by entry, and radial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import PureAlgorithm
from dpalgos.guarantees import RELATIONS, Claim, GaussianMu, Neighbours, Numerics, Setting
from dpalgos.mechanisms.fixed_point import encoded_radius, gram_sensitivity
from dpalgos.mechanisms.laplace import DiscreteLaplace, Laplace
from dpalgos.mechanisms.symmetric import SymmetricRoundedRadial, pack, packed_size, unpack
from dpalgos.models import Projection
from dpalgos.neighbouring import NeighbouringPair, one_row_apart
from dpalgos.noise import NoiseSource
from dpalgos.projections.covariance import (
    CovarianceSum,
    TruncatedDirections,
    gram_matrix,
    leading_basis,
)
from dpalgos.registry import register
from dpalgos.rows import Floats, Rows
from dpalgos.summation import grid

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
    components : int
        Number of directions k.
    variance_share : float, optional
        Keep only as many of them as hold this share of the noisy trace; the rest are zero columns. Costs nothing more.

    References
    ----------
    Huang et al. 2021, Algorithm 1 (with a smaller constant); Xu, Yang, Bai 2019.
    """

    source: ClassVar[str] = "Huang et al. 2021, Algorithm 1, steps 1–5, with d/sqrt(2) + 1 instead of 2d"
    people: ClassVar[str] = (
        "k rows of squared norm at most R²/k each: their Σ xxᵀ is positive semidefinite of trace at most R²"
    )
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

    def law(self, setting: Setting) -> DiscreteLaplace:
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
    people: ClassVar[str] = (
        "k rows of squared norm at most R²/k each: their Σ xxᵀ is positive semidefinite of trace at most R²"
    )
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
    components : int
        Number of directions k.
    variance_share : float, optional
        Keep only as many of them as hold this share of the noisy trace; the rest are zero columns. Costs nothing more.

    References
    ----------
    Hardt, Talwar, STOC 2010; Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011) for the sampler.
    """

    source: ClassVar[str] = "Hardt, Talwar 2010 (K-norm mechanism), on symmetric matrices"
    people: ClassVar[str] = (
        "k rows of squared norm at most R²/k each: their Σ xxᵀ is positive semidefinite of trace at most R²"
    )

    def law(self, setting: Setting) -> SymmetricRoundedRadial:
        """Return the noise of the packed upper triangle."""
        sensitivity = gram_sensitivity(encoded_radius(1.0, self._scale(setting)), setting.neighbours)
        return SymmetricRoundedRadial(math.nextafter(sensitivity / self.budget.epsilon, math.inf), setting.dimension)

    def _scale(self, setting: Setting) -> float:
        # The vector of D entries is some D scales long, so that each entry deviates by some sqrt(D) of them.
        entries = packed_size(setting.dimension)
        return grid(GaussianMu(self.budget.epsilon), gram_sensitivity(1.0, setting.neighbours), entries, setting)
