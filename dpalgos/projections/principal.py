"""Leading eigenvectors of a symmetric matrix: what projections onto them share, and those of exact covariances."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import Directions, NeighbouringPair, Unproved, Work, covariance_work, orthogonal_pair
from dpalgos.guarantees import Setting, Trust
from dpalgos.models import Projection
from dpalgos.parameters import SHARE
from dpalgos.registry import register
from dpalgos.rows import Floats, NoiseSource, Rows, sanitise


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
    basis = oriented(vectors)
    if variance_share is not None:
        kept = _directions_for(values, np.trace(finite), variance_share)
        basis = np.where(np.arange(components) < kept, basis, 0.0)
    return Projection(basis=np.ascontiguousarray(basis), spectrum=np.ascontiguousarray(values))


def oriented(vectors: Floats) -> Floats:
    """Return columns with the sign that makes each one's largest entry positive."""
    largest = np.abs(vectors).argmax(axis=0)
    return np.asarray(vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0))


def _directions_for(values: Floats, trace: float, variance_share: float) -> int:
    """Return how many of the leading eigenvalues hold a share of the trace; all of these where they hold less."""
    if trace <= 0:
        return 1
    reached = np.flatnonzero(np.cumsum(values) >= variance_share * trace * (1.0 - 1e-12))
    return int(reached[0]) + 1 if reached.size else len(values)


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
