"""Averages of released models and bases with public weights, sound and as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.aggregators.aggregator import Aggregator
from dpalgos.models import LinearModel, Projection
from dpalgos.registry import register
from dpalgos.rows import Floats


def _mean(arrays: Sequence[Floats], weights: Floats) -> Floats:
    return np.asarray(np.tensordot(weights, np.stack(arrays), axes=1))


def _mean_model(models: Sequence[LinearModel], weights: Floats) -> LinearModel:
    return LinearModel(
        weights=_mean([model.weights for model in models], weights),
        intercept=_mean([model.intercept for model in models], weights),
    )


@register("aggregators", "weighted-mean")
@dataclass(frozen=True, kw_only=True)
class WeightedMean(Aggregator[LinearModel]):
    """Σ wᵢ βᵢ of released models, with public weights wᵢ = nᵢ/Σn.

    Post-processing: costs nothing.
    """

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 1, without its second division by N"
    combines: ClassVar[str] = LinearModel.kind

    def combine(self, artefacts: Sequence[LinearModel], weights: Floats) -> LinearModel:
        """Return the weighted mean of the models."""
        return _mean_model(artefacts, weights)


@register("aggregators", "published-model-average")
@dataclass(frozen=True, kw_only=True)
class PublishedModelAverage(Aggregator[LinearModel]):
    """(1/N) Σ wᵢ βᵢ as printed: the weights already sum to 1, so the model is N times too short.

    The shortening changes no prediction that compares scores. Post-processing: costs nothing.
    """

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 1, line 8"
    combines: ClassVar[str] = LinearModel.kind

    def combine(self, artefacts: Sequence[LinearModel], weights: Floats) -> LinearModel:
        """Return the paper's average of the models."""
        return _mean_model(artefacts, weights / len(artefacts))


@register("aggregators", "published-basis-average")
@dataclass(frozen=True, kw_only=True)
class PublishedBasisAverage(Aggregator[Projection]):
    """(1/N) Σ wᵢ Ûᵢ as printed, which has no meaning: eigenvectors have free signs and rotations.

    The result is neither orthonormal nor near the span of its parts. Post-processing: costs nothing.
    """

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 1, line 4"
    combines: ClassVar[str] = Projection.kind

    def combine(self, artefacts: Sequence[Projection], weights: Floats) -> Projection:
        """Return the paper's average of the bases."""
        return Projection(basis=_mean([projection.basis for projection in artefacts], weights) / len(artefacts))
