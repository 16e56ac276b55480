"""Averages of released subspaces that do not depend on how their bases are turned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.aggregators.aggregator import Aggregator
from dpalgos.models import Projection
from dpalgos.projections.covariance import leading_basis
from dpalgos.registry import register
from dpalgos.rows import Floats


@register("aggregators", "projector-mean")
@dataclass(frozen=True, kw_only=True)
class ProjectorMean(Aggregator[Projection]):
    """The top k eigenvectors of Σ wᵢ ÛᵢÛᵢᵀ, the subspace nearest to the parties' on (weighted) average.

    ÛÛᵀ does not change when eigenvectors change sign or turn within their span. Post-processing: costs nothing.
    """

    source: ClassVar[str] = "Fan, Wang, Wang, Zhu, Annals of Statistics 47 (2019), Algorithm 1, weighted"
    combines: ClassVar[str] = Projection.kind

    def combine(self, artefacts: Sequence[Projection], weights: Floats) -> Projection:
        """Return the mean subspace."""
        scaled = np.hstack([np.sqrt(w) * part.basis for part, w in zip(artefacts, weights, strict=True)])
        return leading_basis(scaled @ scaled.T, artefacts[0].dimension)


@register("aggregators", "procrustes")
@dataclass(frozen=True, kw_only=True)
class Procrustes(Aggregator[Projection]):
    """Turn each basis onto that of the party with the largest weight, average, and orthonormalise.

    The turn is the orthogonal matrix that brings the bases nearest. Post-processing: costs nothing.
    """

    source: ClassVar[str] = "Charisopoulos, Benson, Damle, SIAM J. Math. Data Sci. 3 (2021), Algorithm 1, weighted"
    combines: ClassVar[str] = Projection.kind

    def combine(self, artefacts: Sequence[Projection], weights: Floats) -> Projection:
        """Return the aligned mean basis."""
        reference = artefacts[int(np.argmax(weights))].basis
        total = np.zeros_like(reference)
        for part, weight in zip(artefacts, weights, strict=True):
            left, _, right = np.linalg.svd(part.basis.T @ reference)
            total += weight * part.basis @ (left @ right)
        left, _, right = np.linalg.svd(total, full_matrices=False)
        return Projection(basis=left @ right)


@register("aggregators", "sum-of-covariances")
@dataclass(frozen=True, kw_only=True)
class SumOfCovariances(Aggregator[Projection]):
    """The top k eigenvectors of Σ wᵢ Ûᵢ Λᵢ Ûᵢᵀ, the sum of the parties' released covariances.

    Of each released covariance only the k directions of its basis are known. Post-processing: costs nothing.
    """

    source: ClassVar[str] = "the released covariances added up"
    combines: ClassVar[str] = Projection.kind

    def combine(self, artefacts: Sequence[Projection], weights: Floats) -> Projection:
        """Return the basis of the summed covariances; bases without a spectrum count as projectors."""
        total = np.zeros((artefacts[0].basis.shape[0],) * 2)
        for part, weight in zip(artefacts, weights, strict=True):
            values = part.spectrum[: part.dimension] if part.spectrum.size else np.ones(part.dimension)
            total += weight * (part.basis * np.maximum(values, 0.0)) @ part.basis.T
        return leading_basis(total, artefacts[0].dimension)
