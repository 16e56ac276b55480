"""MOD-SuLQ: principal components of a covariance with the Gaussian noise of Chaudhuri, Sarwate and Sinha."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.guarantees import ApproximateDP, Claim, GaussianMu, Guarantee, Loss, Setting, Trust
from dpalgos.mechanisms.gaussian import GaussianNoise
from dpalgos.mechanisms.symmetric import pack, unpack
from dpalgos.models import Projection
from dpalgos.noise import NoiseSource
from dpalgos.projections.covariance import gram_matrix, leading_basis, require_choice
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.validation import require_budget, require_components, require_replace_one

__all__ = ["ModSulq"]


@register("projections", "mod-sulq")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModSulq:
    """The top eigenvectors of XᵀX/n plus N(0, β²) on each entry of the upper triangle, copied below.

    β = (d + 1)/(nε) √(2 ln((d² + d)/(2√(2π) δ))) + 1/(n√ε).

    Guarantee
    ---------
    μ-GDP with μ = √2/(nβ), under replace-one: the upper triangle of XᵀX/n moves by at most √2/n in l2. That is at most
    about √2 ε/(d + 1), far below the paper's claim: the noise is some d times more than (ε, δ) needs.
    Numerics idealised.

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

    budget: Loss
    components: int = 20
    variance_share: float | None = None

    source: ClassVar[str] = "Chaudhuri, Sarwate, Sinha 2013, Algorithm 1"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP", "Chaudhuri, Sarwate, Sinha 2013, Theorem 1")
    sound_counterpart: ClassVar[str | None] = None
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.CENTRAL)
    budgets: ClassVar[tuple[type[Loss], ...]] = (ApproximateDP,)
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        require_choice(self.components, self.variance_share)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of directions."""
        return self.components

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what the paper's noise is proved to cost."""
        require_replace_one(setting)
        require_components(self.components, setting)
        noise = GaussianNoise(self.deviation(setting) * max(setting.rows, 1))
        return Guarantee(losses=(GaussianMu(noise.mu(math.sqrt(2.0))),), neighbours=setting.neighbours)

    def deviation(self, setting: Setting) -> float:
        """Return β."""
        assert isinstance(self.budget, ApproximateDP)
        epsilon, delta = self.budget.epsilon, self.budget.delta
        d, rows = setting.dimension, max(setting.rows, 1)
        inside = max((d * d + d) / (2.0 * math.sqrt(2.0 * math.pi) * delta), 1.0)
        return (d + 1) / (rows * epsilon) * math.sqrt(2.0 * math.log(inside)) + 1.0 / (rows * math.sqrt(epsilon))

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the basis; its spectrum is that of the noisy XᵀX/n."""
        require_components(self.components, setting)
        covariance = pack(gram_matrix(parties, setting) / max(setting.rows, 1))
        stream = noise.stream("covariance", covariance)
        draws = GaussianNoise(self.deviation(setting)).sample(len(covariance), stream)
        return leading_basis(unpack(np.asarray(covariance + draws)), self.components, self.variance_share)
