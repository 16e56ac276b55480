"""Losses: derivatives against differences, the constants that proofs use, against grids that reach them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpalgos.losses import HuberHinge, Softmax, loss_names, make_loss, outputs, signs
from dpalgos.parameters import ParameterError, UnknownNameError

WIDTHS = {"huber-hinge": (0.1, 0.5, 2.0), "smoothed-hinge": (0.1, 0.5, 2.0)}
LOSSES = [(name, width) for name in loss_names() for width in WIDTHS.get(name, (None,))]


@pytest.mark.parametrize(("name", "width"), LOSSES)
@pytest.mark.parametrize("classes", [2, 4])
def test_slope_is_the_derivative_of_the_value(name: str, width: float | None, classes: int) -> None:
    loss = make_loss(name, width)
    random = np.random.default_rng(1)
    scores = random.normal(scale=2.0, size=(200, outputs(classes)))
    targets = loss.targets(random.integers(0, classes, 200), classes)
    step = 1e-6
    for column in range(scores.shape[1]):
        moved = np.zeros_like(scores)
        moved[:, column] = step
        change = loss.value(scores + moved, targets).sum(axis=1) - loss.value(scores - moved, targets).sum(axis=1)
        np.testing.assert_allclose(change / (2 * step), loss.slope(scores, targets)[:, column], atol=2e-6)


@pytest.mark.parametrize(("name", "width"), LOSSES)
@pytest.mark.parametrize("classes", [2, 4])
def test_curvature_is_the_derivative_of_the_slope(name: str, width: float | None, classes: int) -> None:
    loss = make_loss(name, width)
    random = np.random.default_rng(2)
    scores = random.normal(scale=2.0, size=(200, outputs(classes)))
    targets = loss.targets(random.integers(0, classes, 200), classes)
    direction = random.normal(size=scores.shape)
    step = 1e-7
    change = loss.slope(scores + step * direction, targets) - loss.slope(scores - step * direction, targets)
    away = np.ones_like(scores, dtype=bool)
    if width is not None:
        away = np.abs(np.abs(1.0 - scores * targets) - width) > 1e-5
    expected = loss.curvature_product(scores, targets)(direction)
    np.testing.assert_allclose((change / (2 * step))[away], expected[away], atol=1e-5)


@pytest.mark.parametrize(("name", "width"), [case for case in LOSSES if case[0] != "squared"])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_slope_norm_and_curvature_are_bounds_and_nearly_reached(name: str, width: float | None, classes: int) -> None:
    loss = make_loss(name, width)
    random = np.random.default_rng(3)
    columns = outputs(classes)
    # Scores far out in every pattern of signs reach the largest slopes; small ones the largest curvature.
    patterns = np.array(np.meshgrid(*[[-50.0, 50.0]] * columns)).reshape(columns, -1).T
    scores = np.concatenate([patterns, random.normal(scale=2.0, size=(4000, columns)), np.zeros((1, columns))])
    scores = np.concatenate([scores, np.eye(columns)[:1] - np.eye(columns)[-1:], np.ones((1, columns))])
    scores = np.repeat(scores, classes, axis=0)
    targets = loss.targets(np.arange(len(scores)) % classes, classes)
    norms = np.linalg.norm(loss.slope(scores, targets), axis=1)
    bound = loss.slope_norm(columns)
    assert norms.max() <= bound * (1 + 1e-12)
    assert norms.max() >= 0.999 * bound
    product = loss.curvature_product(scores, targets)
    directions = [*np.eye(columns), (np.eye(columns)[0] - np.eye(columns)[-1]) / math.sqrt(2.0)]
    largest = max(np.abs((product(np.tile(v, (len(scores), 1))) @ v) / max(v @ v, 1e-9)).max() for v in directions)
    assert largest <= loss.curvature_bound * (1 + 1e-12)
    if classes == 2 and name != "softmax":
        assert largest >= 0.99 * loss.curvature_bound


def test_softmax_curvature_bound_is_reached_by_two_even_classes() -> None:
    scores = np.array([[0.0, 0.0, -60.0]])
    direction = np.array([[1.0, -1.0, 0.0]]) / math.sqrt(2.0)
    bent = Softmax().curvature_product(scores, np.array([[1.0, 0.0, 0.0]]))(direction)
    assert float((bent * direction).sum()) == pytest.approx(0.5)


@pytest.mark.parametrize(("name", "width"), LOSSES)
def test_extreme_scores_give_finite_numbers(name: str, width: float | None) -> None:
    loss = make_loss(name, width)
    scores = np.array([[1e8, -1e8, 0.0], [-1e8, -1e8, -1e8]])
    targets = loss.targets(np.array([0, 2]), 3)
    assert np.isfinite(loss.value(scores, targets)).all()
    assert np.isfinite(loss.slope(scores, targets)).all()
    assert np.isfinite(loss.curvature_product(scores, targets)(np.ones_like(scores))).all()


def test_known_values() -> None:
    huber, smooth = make_loss("huber-hinge", 0.5), make_loss("smoothed-hinge", 0.5)
    one = np.array([[1.0]])
    assert huber.value(np.array([[1.0]]), one)[0, 0] == pytest.approx(0.5 / 4)
    assert smooth.value(np.array([[1.0]]), one)[0, 0] == pytest.approx(3 * 0.5 / 16)
    for loss in (huber, smooth):
        assert loss.value(np.array([[-2.0]]), one)[0, 0] == 3.0
        assert loss.value(np.array([[1.5]]), one)[0, 0] == 0.0
        assert loss.value(np.array([[0.5]]), one)[0, 0] == pytest.approx(0.5)
    assert huber.curvature_bound == 1.0
    assert smooth.curvature_bound == 1.5


def test_targets() -> None:
    labels = np.array([0, 1, 1])
    np.testing.assert_array_equal(signs(labels, 2)[:, 0], [-1, 1, 1])
    np.testing.assert_array_equal(signs(labels, 3), [[1, -1, -1], [-1, 1, -1], [-1, 1, -1]])
    np.testing.assert_array_equal(make_loss("softmax").targets(labels, 3), [[1, 0, 0], [0, 1, 0], [0, 1, 0]])


def test_slope_norm_counts_the_classes() -> None:
    assert HuberHinge().slope_norm(outputs(10)) == pytest.approx(math.sqrt(10))
    assert HuberHinge().slope_norm(outputs(2)) == 1.0
    assert Softmax().slope_norm(outputs(10)) == pytest.approx(math.sqrt(2))


def test_wrong_names_and_widths_are_told() -> None:
    with pytest.raises(UnknownNameError, match="huber-hinge"):
        make_loss("huber-hing")
    with pytest.raises(ParameterError, match="'logistic'"):
        make_loss("logistic", 0.5)
    for width in (0.0, -1.0, math.nan):
        with pytest.raises(ParameterError, match="width"):
            make_loss("smoothed-hinge", width)
