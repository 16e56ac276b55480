"""The averages of bases and models that a paper prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.aggregators import BasisAggregator, WeightedMean, mean_of
from dpalgos.models import LinearModel, Projection
from dpalgos.registry import register
from dpalgos.rows import Floats


@register("aggregators", "published-model-average")
@dataclass(frozen=True, kw_only=True)
class PublishedModelAverage(WeightedMean):
    """(1/N) Σ wᵢ βᵢ as printed: the weights already sum to 1, so the model is N times too short.

    The shortening changes no prediction that compares scores. Post-processing, without privacy cost.
    """

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 1, line 8"

    def combine(self, artefacts: Sequence[LinearModel], weights: Floats) -> LinearModel:
        """Return the paper's average of the models."""
        return super().combine(artefacts, weights / len(artefacts))


@register("aggregators", "published-basis-average")
@dataclass(frozen=True, kw_only=True)
class PublishedBasisAverage(BasisAggregator):
    """(1/N) Σ wᵢ Ûᵢ as printed, which has no meaning: eigenvectors have free signs and rotations.

    The result is neither orthonormal nor near the span of its parts. Post-processing, without privacy cost.
    """

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 1, line 4"

    def combine(self, artefacts: Sequence[Projection], weights: Floats) -> Projection:
        """Return the paper's average of the bases."""
        return Projection(basis=mean_of([projection.basis for projection in artefacts], weights) / len(artefacts))
