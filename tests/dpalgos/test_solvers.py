"""Solvers: certificates, agreement with scikit-learn, and rows chosen to break them."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos import losses
from dpalgos.losses import (
    HuberHinge,
    Problem,
    _accelerated,
    _norms,
    certified_minimiser,
    loss_names,
    make_loss,
    minimise,
    rounding_bound,
)
from dpalgos.rows import clip_to_unit_ball

Array = NDArray[np.float64]


def rows(count: int, dimension: int, classes: int, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    centres = random.normal(size=(classes, dimension))
    return clip_to_unit_ball(centres[labels] + random.normal(size=(count, dimension)), 1.0), labels


def problem(loss: str, features: Array, labels: NDArray[np.int64], classes: int, regularisation: float) -> Problem:
    made = make_loss(loss)
    return Problem(features=features, targets=made.targets(labels, classes), loss=made, regularisation=regularisation)


@pytest.mark.parametrize("loss", loss_names())
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("dimension", [5, 80])
def test_the_gradient_is_zero_to_tolerance_and_that_of_the_value(loss: str, classes: int, dimension: int) -> None:
    given = problem(loss, *rows(150, dimension, classes), classes, 1e-3)
    solution = minimise(given, 1e-10)
    assert (_norms(given, given.gradient(solution)) <= 1e-10).all()
    random = np.random.default_rng(4)
    weights, direction = random.normal(size=given.shape), random.normal(size=given.shape)
    slope = (given.value(weights + 1e-6 * direction) - given.value(weights - 1e-6 * direction)) / 2e-6
    assert slope == pytest.approx(float(np.sum(given.gradient(weights) * direction)), rel=1e-5)
    for _ in range(5):
        nearby = solution + 0.01 * random.normal(size=given.shape)
        assert given.value(nearby) > given.value(solution)


@pytest.mark.parametrize("loss", loss_names())
@pytest.mark.parametrize("dimension", [5, 80])
def test_people_count_by_the_mean_of_their_rows(loss: str, dimension: int) -> None:
    """Whoever has one row k times is as whoever has it once; people without rows count in what is divided by."""
    single = replace(problem(loss, *rows(90, dimension, 3), 3, 1e-2), records=100)
    times = np.random.default_rng(1).integers(1, 30, 90)
    many = replace(
        single,
        features=np.repeat(single.features, times, axis=0),
        targets=np.repeat(single.targets, times, axis=0),
        weights=np.repeat(1.0 / times, times),
    )
    found = minimise(many, 1e-11)
    np.testing.assert_allclose(found, minimise(single, 1e-11), atol=1e-8)
    assert many.value(found) == pytest.approx(single.value(found), rel=1e-12)
    assert np.linalg.norm(found - minimise(replace(many, weights=None), 1e-11)) > 1e-3
    gradient, bounds = many.certified_gradient(found)
    np.testing.assert_allclose(gradient, single.gradient(found), atol=1e-14)
    assert (bounds < 1e-10).all()
    assert certified_minimiser(many, 1e-10).shape == found.shape


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_and_softmax_objectives_equal_scikit_learns(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    features, labels = rows(300, 8, classes)
    for regularisation in (1e-1, 1e-3):
        strength = 1.0 / (len(labels) * regularisation)
        peer = LogisticRegression(C=strength, fit_intercept=False, tol=1e-12, max_iter=5000).fit(features, labels)
        given = problem("softmax", features, labels, classes, regularisation)
        ours = given.value(minimise(given, 1e-11))
        assert ours == pytest.approx(given.value(peer.coef_), abs=1e-6)
        assert ours <= given.value(peer.coef_) + 1e-12


def test_ridge_equals_scikit_learns() -> None:
    from sklearn.linear_model import Ridge

    features, labels = rows(200, 6, 3)
    given = problem("squared", features, labels, 3, 1e-2)
    peer = Ridge(alpha=200 * 1e-2, fit_intercept=False, tol=1e-14).fit(features, given.targets)
    assert given.value(minimise(given, 1e-12)) == pytest.approx(given.value(peer.coef_), abs=1e-10)


def test_a_narrow_huber_hinge_equals_scikit_learns_svm() -> None:
    from sklearn.svm import LinearSVC

    features, labels = rows(200, 6, 2)
    width, regularisation = 1e-4, 1e-2
    loss = make_loss("huber-hinge", width)
    given = Problem(features=features, targets=loss.targets(labels, 2), loss=loss, regularisation=regularisation)
    peer = LinearSVC(
        C=1.0 / (200 * regularisation), loss="hinge", fit_intercept=False, tol=1e-9, max_iter=1_000_000
    ).fit(features, labels)
    hinge = np.maximum(0.0, 1.0 - given.targets * given.scores(minimise(given, 1e-10))).mean()
    ours = hinge + 0.5 * regularisation * float(np.sum(np.square(minimise(given, 1e-10))))
    theirs = np.maximum(0.0, 1.0 - given.targets * given.scores(peer.coef_)).mean()
    theirs += 0.5 * regularisation * float(np.sum(np.square(peer.coef_)))
    # The Huber hinge differs from the hinge by at most h/4.
    assert ours == pytest.approx(theirs, abs=width)


@pytest.mark.parametrize("loss", ["huber-hinge", "smoothed-hinge", "softmax"])
@pytest.mark.parametrize(
    "kind", ["equal", "rank-one", "one-row", "no-rows", "zero", "one-class", "tiny", "separable", "duplicated"]
)
def test_hard_rows_reach_the_tolerance(loss: str, kind: str) -> None:
    features, labels = rows(60, 70, 3, seed=5)
    features, labels = {
        "equal": (np.tile(features[:1], (60, 1)), labels),
        "rank-one": (np.outer(np.linspace(-1, 1, 60), features[0]), labels),
        "one-row": (features[:1], labels[:1]),
        "no-rows": (features[:0], labels[:0]),
        "zero": (np.zeros_like(features), labels),
        "one-class": (features, np.zeros_like(labels)),
        "tiny": (features * 1e-9, labels),
        "separable": (np.eye(70)[labels], labels),
        "duplicated": (np.repeat(features[:20], 3, axis=0), labels),
    }[kind]
    given = problem(loss, features, labels, 3, 1e-5)
    solution = minimise(given, 1e-10)
    assert np.isfinite(solution).all()
    assert (_norms(given, given.gradient(solution)) <= 1e-10).all()


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e8])
def test_a_large_linear_term_is_solved_to_rounding(scale: float) -> None:
    features, labels = rows(40, 90, 2, seed=6)
    loss = make_loss("smoothed-hinge")
    linear = scale * np.random.default_rng(7).normal(size=(1, 90))
    given = Problem(features=features, targets=loss.targets(labels, 2), loss=loss, regularisation=0.01, linear=linear)
    norms = _norms(given, given.gradient(minimise(given, 1e-11)))
    assert norms.max() <= max(1e-11, 2.0**-46 * float(np.linalg.norm(linear)))


def test_the_fall_back_alone_reaches_the_tolerance_in_the_steps_it_promises() -> None:
    given = problem("huber-hinge", *rows(100, 10, 3, seed=8), 3, 1e-3)
    weights = _accelerated(given, np.zeros(given.shape), 1e-9)
    assert np.linalg.norm(given.gradient(weights), axis=1).max() <= 1e-9
    np.testing.assert_allclose(weights, minimise(given, 1e-12), atol=1e-5)


def test_classes_are_solved_as_if_each_were_alone() -> None:
    features, labels = rows(100, 70, 3, seed=9)
    together = minimise(problem("huber-hinge", features, labels, 3, 1e-4), 1e-11)
    for label in range(3):
        alone = minimise(problem("huber-hinge", features, (labels == label).astype(np.int64), 2, 1e-4), 1e-11)
        np.testing.assert_allclose(alone[0], together[label], atol=1e-6)


# ── the certificate ──────────────────────────────────────────────────────────────────────────────────────────────────


def exact_norms(given: Problem, weights: Array) -> list[float]:
    """Return the norm of each weight row's gradient in 60 digits, from the float64 numbers as they are."""
    with mpmath.workdps(60):
        mpf, found = mpmath.mpf, []
        for row, target in zip(weights, given.targets.T, strict=True):
            total = [mpf(given.regularisation) * mpf(float(w)) for w in row]
            for x, y in zip(given.features, target, strict=True):
                margin = mpf(float(y)) * mpmath.fsum(mpf(float(a)) * mpf(float(b)) for a, b in zip(x, row, strict=True))
                if isinstance(given.loss, HuberHinge):
                    inside = (1 + mpf(given.loss.width) - margin) / (2 * mpf(given.loss.width))
                    slope = -min(max(inside, mpf(0)), mpf(1))
                else:
                    slope = -1 / (1 + mpmath.exp(margin))
                total = [
                    t + mpf(float(y)) * slope * mpf(float(a)) / len(given.features)
                    for t, a in zip(total, x, strict=True)
                ]
            found.append(float(mpmath.sqrt(mpmath.fsum(t * t for t in total))))
        return found


@pytest.mark.parametrize("loss", ["huber-hinge", "logistic"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_the_certificate_bounds_the_exact_gradient(loss: str, scale: float) -> None:
    """At the minimiser, where all digits cancel, near it and far away, where the scores lose theirs."""
    given = problem(loss, *rows(60, 7, 3), 3, 1e-3)
    weights = minimise(given, 1e-13) + scale * np.random.default_rng(5).normal(size=given.shape)
    _, bounds = given.certified_gradient(weights)
    exact = exact_norms(given, weights)
    assert (np.asarray(exact) <= bounds).all()
    assert (bounds <= np.asarray(exact) * (1 + 1e-9) + 1e-9 * (1 + scale * 1e-3)).all()


def test_without_the_rounding_error_it_would_not() -> None:
    """The mutant: the computed norm alone, which is often below the exact one."""
    below = 0
    for seed in range(6):
        given = problem("huber-hinge", *rows(60, 7, 3, seed), 3, 1e-3)
        weights = minimise(given, 1e-16)
        computed = np.linalg.norm(given.gradient(weights), axis=1)
        below += int((computed < exact_norms(given, weights)).sum())
    assert below > 0


def test_the_certificate_is_reached_whatever_the_fast_methods_return(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem("huber-hinge", *rows(200, 5, 3), 3, 1e-2)
    exact = minimise(given, 1e-12)
    far = np.full(given.shape, 3.0)
    monkeypatch.setattr(losses, "minimise", lambda *_: far)
    found = certified_minimiser(given, 1e-9)
    assert (given.certified_gradient(found)[1] <= 1e-9).all()
    np.testing.assert_allclose(found, exact, atol=1e-6)


def test_blocks_keep_the_bound_small() -> None:
    """Twenty times the rows may not cost twenty times the rounding error."""
    few, many = (
        rounding_bound(
            problem("logistic", np.zeros((count, 3)), np.zeros(count, dtype=np.int64), 2, 0.1),
            slope=np.ones(1),
            weight=np.ones(1),
        )[0]
        for count in (5_000, 100_000)
    )
    assert few <= many <= 1.1 * few
    given = problem("logistic", *rows(9_000, 3, 2), 2, 0.1)
    weights = np.ones(given.shape)
    np.testing.assert_allclose(given.certified_gradient(weights)[0], given.gradient(weights), rtol=1e-12)
