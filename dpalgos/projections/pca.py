"""Exact principal components, the reference without privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.algorithms import Unproved
from dpalgos.guarantees import Setting, Trust
from dpalgos.models import Projection
from dpalgos.noise import NoiseSource
from dpalgos.projections.covariance import TruncatedDirections, gram_matrix, leading_basis
from dpalgos.registry import register
from dpalgos.rows import Rows


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
