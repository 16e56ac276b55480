"""Aggregators: post-processing of the parties' released artefacts into one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np

from dpalgos.models import Artefact, LinearModel, Projection
from dpalgos.projections.principal import leading_basis
from dpalgos.registry import register
from dpalgos.rows import Floats

Released = TypeVar("Released", bound=Artefact)
Made = TypeVar("Made", bound=Artefact)


class Aggregator(ABC, Generic[Released, Made]):
    """Make one artefact of releases, with public weights; no privacy cost."""

    source: ClassVar[str]
    """Paper and algorithm."""
    combines: ClassVar[str]
    """The kind of artefact that it takes."""

    @abstractmethod
    def combine(self, artefacts: Sequence[Released], weights: Floats) -> Made:
        """Return one artefact, of the same kind or of another one.

        Parameters
        ----------
        artefacts : sequence
            One a party, or a release; all of kind ``combines``.
        weights : array
            One for each artefact, not negative, of sum 1.
        """


class BasisAggregator(Aggregator[Projection, Projection]):
    """Base of aggregators of parties' bases."""

    combines: ClassVar[str] = Projection.kind


@register("aggregators", "projector-mean")
@dataclass(frozen=True, kw_only=True)
class ProjectorMean(BasisAggregator):
    """The top k eigenvectors of Σ wᵢ ÛᵢÛᵢᵀ, the subspace nearest to the parties' on (weighted) average.

    ÛÛᵀ does not change when eigenvectors change sign or turn within their span. Post-processing, without privacy cost.
    """

    source: ClassVar[str] = "Fan, Wang, Wang, Zhu, Annals of Statistics 47 (2019), Algorithm 1, weighted"

    def combine(self, artefacts: Sequence[Projection], weights: Floats) -> Projection:
        """Return the mean subspace."""
        scaled = np.hstack([np.sqrt(w) * part.basis for part, w in zip(artefacts, weights, strict=True)])
        return leading_basis(scaled @ scaled.T, artefacts[0].dimension)


@register("aggregators", "procrustes")
@dataclass(frozen=True, kw_only=True)
class Procrustes(BasisAggregator):
    """Turn each basis onto that of the party with the largest weight, average, and orthonormalise.

    The turn is the orthogonal matrix that brings the bases nearest. Post-processing, without privacy cost.
    """

    source: ClassVar[str] = "Charisopoulos, Benson, Damle, SIAM J. Math. Data Sci. 3 (2021), Algorithm 1, weighted"

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
class SumOfCovariances(BasisAggregator):
    """The top k eigenvectors of Σ wᵢ Ûᵢ Λᵢ Ûᵢᵀ, the sum of the parties' released covariances.

    Of each released covariance only the k directions of its basis are known. Post-processing, without privacy cost.
    """

    source: ClassVar[str] = "sum of the released covariances"

    def combine(self, artefacts: Sequence[Projection], weights: Floats) -> Projection:
        """Return the basis of the summed covariances; bases without a spectrum count as projectors."""
        total = np.zeros((artefacts[0].basis.shape[0],) * 2)
        for part, weight in zip(artefacts, weights, strict=True):
            values = part.spectrum[: part.dimension] if part.spectrum.size else np.ones(part.dimension)
            total += weight * (part.basis * np.maximum(values, 0.0)) @ part.basis.T
        return leading_basis(total, artefacts[0].dimension)


def mean_of(arrays: Sequence[Floats], weights: Floats) -> Floats:
    """Return the weighted sum of arrays of one shape."""
    return np.asarray(np.tensordot(weights, np.stack(arrays), axes=1))


@register("aggregators", "weighted-mean")
@dataclass(frozen=True, kw_only=True)
class WeightedMean(Aggregator[LinearModel, LinearModel]):
    """Σ wᵢ βᵢ of released models, with public weights wᵢ = nᵢ/Σn.

    Post-processing, without privacy cost.
    """

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 1, without its second division by N"
    combines: ClassVar[str] = LinearModel.kind

    def combine(self, artefacts: Sequence[LinearModel], weights: Floats) -> LinearModel:
        """Return the weighted mean of the models."""
        return LinearModel(
            weights=mean_of([model.weights for model in artefacts], weights),
            intercept=mean_of([model.intercept for model in artefacts], weights),
        )
