"""Principal components as published, without a proof: of noisy covariances, noisy rows, and a sampler stopped early."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.accounting.profiles import sigma_classical
from dpalgos.algorithms import ApproximateAlgorithm, PureAlgorithm, Unproved
from dpalgos.guarantees import Claim, Setting
from dpalgos.mechanisms.distributions import pack, unpack
from dpalgos.models import Projection
from dpalgos.parameters import COUNT
from dpalgos.projections.ppca import Bingham, drawn_basis, remaining
from dpalgos.projections.principal import PrincipalDirections, TruncatedDirections, gram_matrix, leading_basis
from dpalgos.registry import register
from dpalgos.rows import Floats, NoiseSource, Rows, normals, sanitise
from dpalgos.sentences import coded


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


@register("projections", "ppca-published")
@dataclass(frozen=True, kw_only=True)
class PublishedPpca(Unproved, PureAlgorithm, PrincipalDirections):
    """A subspace drawn by Gibbs sampling from the density ∝ exp(tr VᵀXᵀX V · ε/2) over orthonormal d × k matrices.

    A sweep draws each column again from its distribution given the others, which is exact.

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
                rest = remaining(np.delete(columns, index, axis=1))
                distribution = Bingham(rest.T @ exponent @ rest)
                columns[:, index] = rest @ distribution.sample(
                    noise.stream(f"column-{sweep}-{index}", distribution.exponent)
                )
        return drawn_basis(columns)
