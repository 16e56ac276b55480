"""Metrics against scikit-learn, closed forms and numerical derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as peers

from dpalgos.curvature import hessian, mean_and_least_curvature
from dpalgos.losses import Problem, loss_names, make_loss
from dpalgos.margins import Noise, metrics_of_noisy_confusion
from dpalgos.metrics import (
    classification_metrics,
    confusion_matrix,
    metrics_of_confusion,
    per_class,
    recalls,
    regression_metrics,
    roc_auc,
)
from dpalgos.rows import clip_to_unit_ball


@pytest.mark.parametrize("classes", [2, 5])
def test_classification_metrics_equal_scikit_learns(classes: int) -> None:
    random = np.random.default_rng(classes)
    labels = random.integers(0, classes, 300)
    scores = np.round(random.normal(size=(300, 1 if classes == 2 else classes)), 1)
    predicted = (scores[:, 0] > 0).astype(int) if classes == 2 else scores.argmax(axis=1)
    average = "binary" if classes == 2 else "macro"
    ours = classification_metrics(labels, scores, classes)
    auc = (
        peers.roc_auc_score(labels, scores[:, 0])
        if classes == 2
        else np.mean([peers.roc_auc_score(labels == c, scores[:, c]) for c in range(classes)])
    )
    expected = {
        "accuracy": peers.accuracy_score(labels, predicted),
        "balanced_accuracy": peers.balanced_accuracy_score(labels, predicted),
        "majority_rate": peers.accuracy_score(labels, np.full_like(labels, np.bincount(labels).argmax())),
        "precision": peers.precision_score(labels, predicted, average=average),
        "recall": peers.recall_score(labels, predicted, average=average),
        "f1": peers.f1_score(labels, predicted, average=average),
        "mcc": peers.matthews_corrcoef(labels, predicted),
        "auc": auc,
    }
    if classes == 2:
        expected["prevalence"] = np.mean(labels)
    assert ours == pytest.approx(expected, abs=1e-12)
    np.testing.assert_array_equal(
        confusion_matrix(labels, predicted, classes), peers.confusion_matrix(labels, predicted)
    )
    for mine, theirs in zip(
        per_class(confusion_matrix(labels, predicted, classes)),
        peers.precision_recall_fscore_support(labels, predicted)[:3],
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs)


def test_nothing_and_one_class_are_survived() -> None:
    empty = classification_metrics(np.zeros(0, dtype=np.int64), np.zeros((0, 3)), 3)
    assert empty["accuracy"] == 0.0
    assert empty["auc"] == 0.5
    one = classification_metrics(np.zeros(5, dtype=np.int64), np.full((5, 3), np.nan), 3)
    assert one["accuracy"] == 1.0
    assert one["balanced_accuracy"] == 1.0, "classes that do not occur have no recall"
    assert one["majority_rate"] == 1.0
    assert one["mcc"] == 0.0
    noisy = metrics_of_confusion(np.array([[10.0, -3.0], [-2.0, 5.0]]))
    assert noisy["accuracy"] == 1.0


def test_auc_of_constant_scores_is_a_half_and_of_perfect_ones_one() -> None:
    labels = np.array([0, 0, 1, 1])
    assert roc_auc(labels, np.zeros((4, 1))) == 0.5
    assert roc_auc(labels, labels[:, None].astype(float)) == 1.0
    assert roc_auc(labels, -labels[:, None].astype(float)) == 0.0


def test_regression_metrics_equal_scikit_learns() -> None:
    random = np.random.default_rng(1)
    targets, predictions = random.normal(size=50), random.normal(size=50)
    ours = regression_metrics(targets, predictions)
    assert ours["mse"] == pytest.approx(peers.mean_squared_error(targets, predictions))
    assert ours["mae"] == pytest.approx(peers.mean_absolute_error(targets, predictions))
    assert ours["r2"] == pytest.approx(peers.r2_score(targets, predictions))
    assert regression_metrics(np.zeros(0), np.zeros(0)) == {"mse": 0.0, "mae": 0.0, "r2": 0.0}


def some_problem(loss: str, classes: int) -> Problem:
    random = np.random.default_rng(6)
    made = make_loss(loss)
    features = clip_to_unit_ball(random.normal(size=(40, 4)))
    return Problem(
        features=features,
        targets=made.targets(random.integers(0, classes, 40), classes),
        loss=made,
        regularisation=0.01,
    )


@pytest.mark.parametrize("loss", loss_names())
@pytest.mark.parametrize("classes", [2, 3])
def test_hessian_is_the_derivative_of_the_gradient(loss: str, classes: int) -> None:
    problem = some_problem(loss, classes)
    random = np.random.default_rng(7)
    weights, direction = random.normal(size=problem.shape), random.normal(size=problem.shape)
    step = 1e-6
    change = problem.gradient(weights + step * direction) - problem.gradient(weights - step * direction)
    np.testing.assert_allclose(hessian(problem, weights) @ direction.ravel(), change.ravel() / (2 * step), atol=1e-6)


def test_curvature_of_the_squared_loss_is_the_covariances() -> None:
    problem = some_problem("squared", 2)
    covariance = problem.features.T @ problem.features / 40
    average, least = mean_and_least_curvature(problem, np.zeros(problem.shape))
    assert average == pytest.approx(np.trace(covariance) / 4 + 0.01)
    assert least == pytest.approx(np.linalg.eigvalsh(covariance)[0] + 0.01)


def gaussian(sigma: float) -> Noise:
    return lambda random, shape: random.normal(0, sigma, shape)


def test_the_accuracy_of_noisy_counts_is_unbiased_and_says_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 draws: the mean within six standard errors, the spread within 20 % of what is stated (false alarm < 1e-8)."""
    exact = 4.0 * np.array([[60.0, 10.0, 0.0], [5.0, 20.0, 5.0], [0.0, 1.0, 9.0]])
    rows, sigma = int(exact.sum()), 8.0
    random = np.random.default_rng(3)
    law = gaussian(sigma)
    monkeypatch.setattr("dpalgos.margins._MOST", 200)
    found = [metrics_of_noisy_confusion(exact + law(random, exact.shape), rows, sigma, law) for _ in range(400)]
    accuracies = np.array([one["accuracy"] for one in found])
    noise = np.sqrt(3) * sigma / rows
    assert accuracies.mean() == pytest.approx(356 / rows, abs=6 * noise / 20)
    assert found[0]["accuracy_noise"] == pytest.approx(noise)
    assert accuracies.std() == pytest.approx(noise, rel=0.2)
    assert all(one["accuracy_low"] <= one["accuracy"] <= one["accuracy_high"] for one in found)
    # Cutting negative counts first, as for the other metrics, is biased: what this must tell apart.
    cut = [metrics_of_confusion(exact + random.normal(0, sigma, exact.shape))["accuracy"] for _ in range(400)]
    assert abs(np.mean(cut) - 356 / rows) > 6 * noise / 20


def test_null_records_are_not_taken_for_wrong_answers() -> None:
    counts = np.array([[400.0, 0.0], [0.0, 400.0]])
    assert metrics_of_noisy_confusion(counts, 1000, 2.0, gaussian(2.0))["accuracy"] == 1.0
    assert metrics_of_noisy_confusion(counts, 804, 2.0, gaussian(2.0))["accuracy"] == 1.0, "nor too few to be seen"
    three = np.diag([400.0, 200.0, 200.0])
    assert metrics_of_noisy_confusion(three, 1000, 2.0, gaussian(2.0))["accuracy"] == 1.0
    assert metrics_of_noisy_confusion(three, 804, 2.0, gaussian(2.0))["accuracy"] == pytest.approx(800 / 804)


def test_recalls_are_named_by_class() -> None:
    counts = np.array([[3.0, 1.0], [2.0, 2.0]])
    assert recalls(counts, ("<=50K", "yes, more")) == {"recall___50K": 0.75, "recall_yes_ more": 0.5}
    assert set(recalls(counts, ("low", "high"))) == {"recall_low_class", "recall_high_class"}, "limits have such names"
    assert recalls(np.eye(30), tuple(map(str, range(30)))) == {}
    assert list(recalls(counts, ("<=50K", ">=50K")).values()) == [0.75, 0.5], "no class takes the place of another"
    assert len(recalls(np.eye(4), ("a+", "a-", "a_1", "a__2"))) == 4
    assert len(recalls(counts, ("low", "low_class"))) == 2
