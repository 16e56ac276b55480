"""Linear tasks: the intercept inside the ball, numeric labels, and regression by every trainer that does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpalgos.guarantees import GaussianMu, PureEpsilon, Setting, Trust
from dpalgos.linear import LinearTask
from dpalgos.losses import HuberHinge, Squared
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import ArrayRows
from tests.support.training import blobs, fit, fitted, noise, setting_of

LARGE = GaussianMu(1e4)


def test_the_constant_stays_in_the_ball_and_comes_back_as_intercept() -> None:
    task = LinearTask(loss=HuberHinge(), intercept_scaling=2.0)
    rows = blobs(30, 5, 3, 0)
    setting = setting_of([rows], 3)
    problem = task.problem([rows], setting, 1.0)
    wide, targets = problem.features, problem.targets
    assert wide.shape == (30, 6)
    assert targets.shape == (30, 3)
    assert task.shape(setting) == (3, 6)
    assert np.linalg.norm(wide, axis=1).max() <= 1.0 + 1e-15
    weights = np.random.default_rng(1).normal(size=(3, 6))
    np.testing.assert_allclose(task.model(weights, setting).scores(rows.features), wide @ weights.T, atol=1e-12)


def test_an_intercept_finds_a_shifted_boundary() -> None:
    features = np.random.default_rng(2).uniform(0.2, 0.9, size=(400, 1))
    rows = ArrayRows(features, (features[:, 0] > 0.6).astype(np.int64))
    plain = AlgorithmSpec("trainers", "erm", {"regularisation": 1e-5, "loss": "logistic"})
    with_intercept = fitted(plain.with_parameters(intercept_scaling=1.0).build(), [rows], 2)
    assert (with_intercept.predict(features) == rows.labels).mean() > 0.97
    assert (fitted(plain.build(), [rows], 2).predict(features) == rows.labels).mean() < 0.7


def regression(seed: int, count: int = 4000) -> ArrayRows:
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return ArrayRows(features, 10.0 + 4.0 * (features @ np.array([0.5, -0.3, 0.2, 0.1])))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("erm", {"loss": "squared", "regularisation": 1e-6}),
        ("sufficient-statistics", {"budget": LARGE, "regularisation": 1e-6}),
        ("output-perturbation", {"budget": GaussianMu(1e8), "loss": "squared", "regularisation": 1e-3}),
        ("output-perturbation-radial", {"budget": PureEpsilon(1e8), "loss": "squared", "regularisation": 1e-3}),
        ("noisy-gd", {"budget": LARGE, "loss": "squared", "mean_weight": 1.0, "clip": 1.0, "step_size": 0.5}),
        ("gradient-perturbation", {"budget": LARGE, "loss": "squared", "iterations": 200}),
    ],
)
def test_regression_recovers_the_line_in_the_labels_own_units(name: str, given: dict[str, Any]) -> None:
    rows = regression(3)
    algorithm = AlgorithmSpec("trainers", name, {**given, "label_range": [7.0, 13.0]}).build()
    setting = Setting(sizes=(rows.count,), dimension=4, classes=1, trust=Trust.CENTRAL)
    assert algorithm.guarantee(setting) is not None
    model = fit(algorithm, [rows], setting, noise())
    assert model.weights.shape == (1, 4)
    errors = model.scores(rows.features)[:, 0] - rows.labels
    assert np.sqrt(np.mean(errors**2)) < 0.05


def test_wild_real_labels_are_clipped_to_the_declared_range() -> None:
    task = LinearTask(loss=Squared(), label_range=(0.0, 10.0))
    setting = Setting(sizes=(5,), dimension=2, classes=1)
    labels = np.array([np.nan, np.inf, -np.inf, 1e308, 2.5])
    np.testing.assert_allclose(task.block(np.zeros((5, 2)), labels, setting)[1][:, 0], [0.0, 1.0, -1.0, 1.0, -0.5])


def test_losses_for_classes_are_refused_on_real_labels() -> None:
    setting = Setting(sizes=(5,), dimension=2, classes=1)
    for name, given in (
        ("erm", {}),
        ("noisy-gd", {"budget": LARGE}),
        ("objective-perturbation", {"budget": PureEpsilon(1.0)}),
        ("output-perturbation", {"budget": LARGE}),
        ("mpc-op", {"budget": PureEpsilon(1.0)}),
    ):
        with pytest.raises(ParameterError, match="squared"):
            AlgorithmSpec("trainers", name, given).build().guarantee(setting)


@pytest.mark.parametrize(
    "given", [{"intercept_scaling": -1.0}, {"label_range": [1.0, 1.0]}, {"label_range": [0, np.inf]}]
)
def test_parameters_are_validated(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        AlgorithmSpec("trainers", "erm", given).build()
