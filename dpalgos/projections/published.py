"""Projections as published, whose proofs fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import ApproximateAlgorithm, PureAlgorithm, Unproved
from dpalgos.guarantees import (
    RELATIONS,
    Claim,
    Guarantee,
    Neighbours,
    Numerics,
    PureEpsilon,
    Setting,
    Trust,
)
from dpalgos.mechanisms.fixed_point import gram_sensitivity
from dpalgos.mechanisms.gaussian import sigma_classical
from dpalgos.models import Projection
from dpalgos.parameters import COUNT
from dpalgos.projections.covariance import PrincipalDirections, TruncatedDirections, gram_matrix, leading_basis
from dpalgos.registry import register
from dpalgos.rows import Floats, NoiseSource, RandomStream, Rows, normals, sanitise, uniforms


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
        "The noise is calibrated to a change of 1. Replacing a row changes X by up to 2. What the paper releases is"
        " then trained on the raw rows once more.",
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
    None: see the flaw.

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
        "Wishart noise is positive semidefinite, so its support is one-sided. Replacing a zero row by a unit row "
        "makes a share 1 - exp(-epsilon/3) of the outputs impossible: 28 per cent at epsilon = 1.",
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
    """Return the root b of Σ 1/(b + 2ℓᵢ) = 1: between 1, as one of the ℓᵢ is 0, and their number."""
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
    largest = np.abs(directions).argmax(axis=0)
    signs = np.where(directions[largest, np.arange(directions.shape[1])] < 0, -1.0, 1.0)
    # No spectrum: the exact one is a function of the rows, and none is drawn.
    return Projection(basis=np.ascontiguousarray(directions * signs), spectrum=np.zeros(0))


@register("projections", "ppca")
@dataclass(frozen=True, kw_only=True)
class Ppca(PureAlgorithm, PrincipalDirections):
    """Directions drawn one after the other, each orthogonal to those before, by the exponential mechanism.

    Guarantee
    ---------
    epsilon-DP in total, epsilon/k for each of k directions (they are drawn from the same rows, adaptively). The i-th
    has the density ∝ exp(c vᵀXᵀX v) on the unit sphere of what is orthogonal to those before: the exponential mechanism
    (:class:`~dpalgos.projections.published.Bingham`), which is c·r-DP for r the range over v of the change of vᵀXᵀX v.
    That change is vᵀ(xxᵀ − zzᵀ)v, of a matrix of rank two with eigenvalues p ≥ 0 ≥ −q and Frobenius norm √(p² + q²) ≤
    √2 (:func:`~dpalgos.mechanisms.fixed_point.gram_sensitivity`), so r = p + q ≤ √2·√2 = 2, reached by orthogonal unit
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
    people: ClassVar[str] = (
        "k rows of squared norm at most R²/k each: their Σ xxᵀ is positive semidefinite of trace at most R²"
    )
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "XᵀX, Frobenius"
    norm: ClassVar[int] = 2

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
        "The proof is of the exact distribution. A Gibbs sampler that is stopped does not have it. No bound on how "
        "far it is from it is known.",
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
