"""Exact principal components, the reference without privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.guarantees import Claim, Guarantee, Loss, Setting, Trust, nothing_proved
from dpalgos.models import Projection
from dpalgos.noise import NoiseSource
from dpalgos.projections.covariance import gram_matrix, leading_basis, require_choice
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.validation import require_components

__all__ = ["PrincipalComponents"]


@register("projections", "pca")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalComponents:
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

    components: int = 20
    variance_share: float | None = None

    source: ClassVar[str] = "principal component analysis, uncentred"
    claim: ClassVar[Claim | None] = None
    sound_counterpart: ClassVar[str | None] = "analyze-gauss"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)
    budgets: ClassVar[tuple[type[Loss], ...]] = ()
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_choice(self.components, self.variance_share)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of directions."""
        return self.components

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return none."""
        require_components(self.components, setting)
        return nothing_proved("no noise is drawn", setting.neighbours)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the exact basis of all parties' rows together; its spectrum is that of XᵀX/n."""
        require_components(self.components, setting)
        covariance = gram_matrix(parties, setting) / max(setting.rows, 1)
        return leading_basis(covariance, self.components, self.variance_share)
