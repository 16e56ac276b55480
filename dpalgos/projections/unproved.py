"""Principal components without privacy, and published private projections whose proofs fail: DPSVD and Wishart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import ApproximateAlgorithm, PureAlgorithm, Unproved
from dpalgos.guarantees import (
    Claim,
    Setting,
    Trust,
)
from dpalgos.mechanisms.gaussian import sigma_classical
from dpalgos.models import Projection
from dpalgos.noise import NoiseSource, normals
from dpalgos.projections.covariance import TruncatedDirections, gram_matrix, leading_basis
from dpalgos.registry import register
from dpalgos.rows import Rows, sanitise


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
        Number of directions k.
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
        "Noise is calibrated to a change of 1 where replacing a row changes X by up to 2, and what the paper releases "
        "is trained on the raw rows once more.",
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
    components : int
        Number of directions k.
    variance_share : float, optional
        Keep only as many of them as hold this share of the noisy trace.

    References
    ----------
    Jiang, Xie, Zhang, "Wishart mechanism for differentially private principal components analysis", AAAI 2016,
    Algorithm 1, Theorem 4.
    """

    source: ClassVar[str] = "Jiang, Xie, Zhang 2016, Algorithm 1"
    claim: ClassVar[Claim | None] = Claim(
        "(epsilon, 0)-DP",
        "Jiang, Xie, Zhang 2016, Theorem 4",
        "Wishart noise is positive semidefinite, so its support is one-sided: replacing a zero row by a unit row makes "
        "a share 1 - exp(-epsilon/3) of the outputs impossible, 28 per cent at epsilon = 1.",
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
