"""Aggregators: what they average, what they do not depend on, and what the published ones do wrong."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos.aggregators import Procrustes, ProjectorMean, SumOfCovariances, WeightedMean
from dpalgos.models import LinearModel, Projection
from dpalgos.projections.principal import leading_basis
from dpalgos.published.aggregators import PublishedBasisAverage, PublishedModelAverage

Array = NDArray[np.float64]
WEIGHTS = np.array([0.5, 0.3, 0.2])


def bases(seed: int = 0, spread: float = 0.02) -> list[Projection]:
    """Return three bases near one subspace of dimension 3 in 8."""
    random = np.random.default_rng(seed)
    truth = np.linalg.qr(random.normal(size=(8, 3)))[0]
    return [Projection(np.linalg.qr(truth + spread * random.normal(size=(8, 3)))[0]) for _ in range(3)]


def turned(parts: list[Projection], seed: int = 1) -> list[Projection]:
    random = np.random.default_rng(seed)
    return [Projection(part.basis @ np.linalg.qr(random.normal(size=(3, 3)))[0]) for part in parts]


def projector(basis: Array) -> Array:
    return np.asarray(basis @ basis.T)


def test_models_are_averaged_with_their_weights_intercepts_too() -> None:
    models = [LinearModel(np.full((2, 3), value), intercept=np.array([value, -value])) for value in (1.0, 2.0, 4.0)]
    mean = WeightedMean().combine(models, WEIGHTS)
    np.testing.assert_allclose(mean.weights, 0.5 + 0.6 + 0.8)
    np.testing.assert_allclose(mean.intercept, [1.9, -1.9])
    published = PublishedModelAverage().combine(models, WEIGHTS)
    np.testing.assert_allclose(published.weights, mean.weights / 3)


@pytest.mark.parametrize("aggregator", [ProjectorMean(), Procrustes(), SumOfCovariances()])
def test_mean_subspaces_are_orthonormal_near_their_parts_and_blind_to_rotations(aggregator: object) -> None:
    parts = bases()
    mean = aggregator.combine(parts, WEIGHTS)  # type: ignore[attr-defined]  # an aggregator's
    np.testing.assert_allclose(mean.basis.T @ mean.basis, np.eye(3), atol=1e-12)
    for part in parts:
        assert np.linalg.norm(projector(part.basis) - projector(mean.basis)) < 0.3
    again = aggregator.combine(turned(parts), WEIGHTS)  # type: ignore[attr-defined]  # an aggregator's
    np.testing.assert_allclose(projector(again.basis), projector(mean.basis), atol=1e-10)


def test_the_published_average_of_bases_depends_on_signs() -> None:
    """The mutant that the test above must catch, at its worst: two equal subspaces cancel."""
    part = bases()[0]
    cancelled = PublishedBasisAverage().combine([part, Projection(-part.basis)], np.array([0.5, 0.5]))
    np.testing.assert_array_equal(cancelled.basis, np.zeros((8, 3)))
    average = PublishedBasisAverage().combine([part] * 3, WEIGHTS)
    np.testing.assert_allclose(average.basis, part.basis / 3)


def test_projector_mean_is_the_top_of_the_mean_projector() -> None:
    parts = bases(spread=0.5)
    mean = sum(weight * projector(part.basis) for weight, part in zip(WEIGHTS, parts, strict=True))
    expected = leading_basis(np.asarray(mean), 3).basis
    np.testing.assert_allclose(
        projector(ProjectorMean().combine(parts, WEIGHTS).basis), projector(expected), atol=1e-10
    )


def test_summed_covariances_of_full_bases_are_the_pooled_covariance() -> None:
    random = np.random.default_rng(4)
    blocks = [random.normal(size=(size, 5)) @ np.diag([3, 2, 1, 0.5, 0.1]) for size in (50, 30, 20)]
    parts = [leading_basis(block.T @ block / len(block), 5) for block in blocks]
    pooled = leading_basis(np.vstack(blocks).T @ np.vstack(blocks) / 100, 5)
    combined = SumOfCovariances().combine(parts, WEIGHTS)
    np.testing.assert_allclose(combined.spectrum, pooled.spectrum, atol=1e-10)


def test_one_party_alone_keeps_its_own() -> None:
    part = bases()[0]
    for aggregator in (ProjectorMean(), Procrustes(), SumOfCovariances()):
        alone = aggregator.combine([part], np.ones(1))
        np.testing.assert_allclose(projector(alone.basis), projector(part.basis), atol=1e-10)
    model = LinearModel(np.ones((2, 3)))
    np.testing.assert_array_equal(WeightedMean().combine([model], np.ones(1)).weights, model.weights)
