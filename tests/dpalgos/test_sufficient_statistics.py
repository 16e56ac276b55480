"""Sufficient statistics: the joint sensitivity of both moments, the solution, and broken copies."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.mechanisms.distributions import SymmetricRoundedGaussian, to_vector, unpack
from dpalgos.rows import ArrayRows
from dpalgos.trainers.discriminant import SufficientStatistics
from tests.support.training import blobs, fitted, parties_of, setting_of

MU = GaussianMu(0.7)


def spent(algorithm: Any, classes: int, dimension: int = 4) -> float:
    random = np.random.default_rng(classes)
    largest = 0.0
    for trial in range(40):
        count = 5
        row = 10 * random.normal(size=(count, dimension))
        other, labels = row.copy(), random.integers(0, max(classes, 2), count)
        others = labels.copy()
        if trial % 2:
            # Orthogonal features and, where there are classes, orthogonal targets.
            other[0] = np.linalg.svd(row[:1])[2][1] * 10
            others[0] = (labels[0] + 1) % max(classes, 2)
        else:
            other[0] = random.normal(size=dimension) * 10
        first, second = ArrayRows(row, labels), ArrayRows(other, others)
        known = setting_of([first], classes)
        state = algorithm.initial(known)
        change = algorithm.contribution(state, first, known) - algorithm.contribution(state, second, known)
        length = np.linalg.norm(to_vector(unpack(change.astype(np.float64))))
        largest = max(largest, float(length) / algorithm.distribution(known).sigma)
    return largest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddRemoveNoise(SufficientStatistics):
    """Noise for an added row where one is replaced."""

    def distribution(self, setting: Setting) -> SymmetricRoundedGaussian:
        return SufficientStatistics.distribution(
            self, dataclasses.replace(setting, neighbours=Neighbours.REPLACE_SPECIAL)
        )


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("weight", [0.3, 1.0, 2.0])
def test_the_worst_neighbours_spend_the_budget_and_no_more(classes: int, weight: float) -> None:
    largest = spent(SufficientStatistics(budget=MU, target_weight=weight), classes)
    assert largest <= MU.mu
    if classes == 5:
        assert largest >= 0.99 * MU.mu
        assert spent(AddRemoveNoise(budget=MU, target_weight=weight), classes) > MU.mu


def test_a_large_budget_gives_ridge_regression() -> None:
    from sklearn.linear_model import Ridge

    rows = blobs(300, 5, 3, 1)
    model = fitted(SufficientStatistics(budget=GaussianMu(1e5), regularisation=0.01), parties_of(rows, 3), 3)
    targets = np.eye(3)[rows.labels]
    peer = Ridge(alpha=300 * 0.01, fit_intercept=False).fit(rows.features, targets)
    np.testing.assert_allclose(model.weights, peer.coef_, atol=1e-3)


def test_negative_eigenvalues_of_the_noise_do_no_harm() -> None:
    rows = blobs(5, 30, 3, 2)
    weights = fitted(SufficientStatistics(budget=GaussianMu(0.01)), [rows], 3).weights
    assert np.isfinite(weights).all()
    assert np.linalg.norm(weights) < 30.0
