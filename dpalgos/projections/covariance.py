"""What the covariance-based projections share: the exact matrix, and the basis of a (noisy) one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpalgos.guarantees import Setting
from dpalgos.mechanisms.fixed_point import encode_rows, exact_outer_sum
from dpalgos.mechanisms.symmetric import pack, packed_size, unpack
from dpalgos.models import Projection
from dpalgos.rows import Floats, Ints, Rows, sanitise
from dpalgos.validation import require_between, require_components, require_count

__all__ = ["CovarianceSum", "gram_matrix", "leading_basis", "require_choice"]


class CovarianceSum:
    """The exact XᵀX of all parties' rows as one sum of integers, packed; what is made of it once noise is added."""

    components: int
    variance_share: float | None

    def steps(self, setting: Setting) -> int:
        """Return 1: one sum of covariances."""
        return 1

    def initial(self, setting: Setting) -> Ints:
        """Return an empty covariance."""
        require_components(self.components, setting)
        return np.zeros(packed_size(setting.dimension), dtype=np.int64)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the packed upper triangle of the party's exact integer covariance."""
        total = np.zeros((setting.dimension, setting.dimension), dtype=np.int64)
        for features, labels in rows.blocks():
            clean, _ = sanitise(features, labels, setting.classes)
            encoded = encode_rows(clean, 1.0, self._scale(setting))
            total += exact_outer_sum(encoded, encoded)
        return pack(total)

    def update(self, state: Ints, noisy_sum: Ints, setting: Setting) -> Ints:
        """Return the noisy covariance."""
        return noisy_sum

    def result(self, state: Ints, setting: Setting) -> Projection:
        """Return the basis; its spectrum is that of the noisy XᵀX/n."""
        covariance = unpack(state) / self._scale(setting) ** 2 / max(setting.rows, 1)
        return leading_basis(covariance, self.components, self.variance_share)

    def _scale(self, setting: Setting) -> float:
        """Return the grid units per unit in which rows are encoded."""
        raise NotImplementedError


def require_choice(components: int, variance_share: float | None) -> None:
    """Raise unless the number of directions and the share of the variance are in range."""
    require_count("components", components)
    if variance_share is not None:
        require_between("variance_share", variance_share, 0.0, 1.0)


def gram_matrix(parties: Sequence[Rows], setting: Setting) -> Floats:
    """Return the uncentred XᵀX of all rows, clipped to the unit ball and null records zero, (d, d)."""
    total = np.zeros((setting.dimension, setting.dimension))
    for rows in parties:
        for features, labels in rows.blocks():
            clean, _ = sanitise(features, labels, setting.classes)
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
        Its spectrum holds all d eigenvalues.
    """
    finite = np.where(np.isfinite(matrix), matrix, 0.0)
    values, vectors = np.linalg.eigh((finite + finite.T) / 2.0)
    values, vectors = values[::-1], vectors[:, ::-1][:, :components]
    largest = np.abs(vectors).argmax(axis=0)
    basis = vectors * np.where(vectors[largest, np.arange(components)] < 0, -1.0, 1.0)
    if variance_share is not None:
        kept = _directions_for(values, variance_share)
        basis = np.where(np.arange(components) < kept, basis, 0.0)
    return Projection(basis=np.ascontiguousarray(basis), spectrum=np.ascontiguousarray(values))


def _directions_for(values: Floats, variance_share: float) -> int:
    trace = values.sum()
    if trace <= 0:
        return 1
    reached = np.flatnonzero(np.cumsum(values) >= variance_share * trace * (1.0 - 1e-12))
    return max(1, int(reached[0]) + 1)
