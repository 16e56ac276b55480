"""What the covariance-based projections share: their fields, the exact matrix, and the basis of a (noisy) one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import OneSum, ProjectionAlgorithm
from dpalgos.gram_sums import packed_gram
from dpalgos.guarantees import RELATIONS, Neighbours, Setting
from dpalgos.mechanisms.fixed_point import gram_sensitivity
from dpalgos.mechanisms.symmetric import packed_size, to_vector, unpack
from dpalgos.models import Projection
from dpalgos.neighbouring import NeighbouringPair, orthogonal_pair
from dpalgos.rows import Array, Features, Floats, Ints, Rows, null_labels, sanitise
from dpalgos.validation import require_between, require_components, require_count
from dpalgos.work import Work, covariance_work


@dataclass(frozen=True, kw_only=True)
class PrincipalDirections(ProjectionAlgorithm):
    """A projection onto leading eigenvectors of a covariance.

    Parameters
    ----------
    components : int
        Number of directions k.
    """

    components: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("components", self.components)

    def check(self, setting: Setting) -> None:
        """Raise where rows have fewer features than there are directions."""
        super().check(setting)
        require_components(self.components, setting)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of directions."""
        return self.components

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

    variance_share: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variance_share is not None:
            require_between("variance_share", self.variance_share, 0.0, 1.0)


class CovarianceSum(TruncatedDirections, OneSum):
    """The exact XᵀX of all parties' rows as one sum of integers, packed; what is made of it once noise is added.

    A null record adds zero. For rows of norm at most R, XᵀX moves in the Frobenius norm by at most √2 R² where a row is
    replaced and by R² against a null record (:func:`~dpalgos.mechanisms.fixed_point.gram_sensitivity`).
    """

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "XᵀX, Frobenius"
    norm: ClassVar[int] = 2

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the statistic."""
        return gram_sensitivity(1.0, setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact XᵀX as a vector of the same length."""
        return to_vector(unpack(self._upper_triangle(rows, setting)))

    def _upper_triangle(self, rows: Rows, setting: Setting) -> Floats:
        return self.contribution(self.initial(setting), rows, setting) / self._scale(setting) ** 2

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the number of entries of the upper triangle."""
        return (packed_size(setting.dimension),)

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

    @abstractmethod
    def _scale(self, setting: Setting) -> float:
        """Return the grid units per unit in which rows are encoded."""


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
        Its spectrum holds the eigenvalues of its columns.
    """
    finite = np.where(np.isfinite(matrix), matrix, 0.0)
    symmetric = (finite + finite.T) / 2.0
    last = len(symmetric) - 1
    values, vectors = scipy.linalg.eigh(
        symmetric, subset_by_index=(last + 1 - components, last), overwrite_a=True, check_finite=False
    )
    values, vectors = values[::-1], vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    basis = vectors * np.where(vectors[largest, np.arange(components)] < 0, -1.0, 1.0)
    if variance_share is not None:
        kept = _directions_for(values, np.trace(finite), variance_share)
        basis = np.where(np.arange(components) < kept, basis, 0.0)
    return Projection(basis=np.ascontiguousarray(basis), spectrum=np.ascontiguousarray(values))


def _directions_for(values: Floats, trace: float, variance_share: float) -> int:
    """Return how many of the leading eigenvalues hold a share of the trace; all of these where they hold less."""
    if trace <= 0:
        return 1
    reached = np.flatnonzero(np.cumsum(values) >= variance_share * trace * (1.0 - 1e-12))
    return int(reached[0]) + 1 if reached.size else len(values)
