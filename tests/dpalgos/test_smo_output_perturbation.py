"""The sound counterpart: the certificate of the solver, the sensitivity, the noise."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.svm import LinearSVC

from dpalgos.coordinate_descent import certified_gap, minimise_hinge, rounding_slack
from dpalgos.guarantees import GaussianMu, Neighbours, Numerics, PureEpsilon, Setting, ZeroConcentrated
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows, clip_to_unit_ball
from dpalgos.trainers.hinge_perturbation import SmoOutputPerturbation
from tests.support.statistics import rejects_law
from tests.support.streams import seeded
from tests.support.training import blobs, noise

Floats = NDArray[np.float64]


def ball(rows: int, dimension: int, seed: int) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    y = np.where(random.random(rows) < 0.5, 1.0, -1.0)
    return clip_to_unit_ball(random.normal(size=(rows, dimension)) + 0.3 * y[:, None]), y


def risk(features: Floats, y: Floats, cost: float, weights: Floats) -> float:
    return float(0.5 * weights @ weights + cost * np.maximum(0.0, 1.0 - y * (features @ weights)).sum())


@pytest.mark.parametrize("cost", [1e-3, 0.1, 1.0, 30.0])
def test_the_minimum_is_scikit_learns(cost: float) -> None:
    features, y = ball(400, 6, 0)
    oracle = LinearSVC(C=cost, loss="hinge", fit_intercept=False, tol=1e-9, max_iter=1_000_000).fit(features, y)
    reference = risk(features, y, cost, oracle.coef_[0])
    gap = 1e-9 * cost * len(y)
    found = risk(features, y, cost, minimise_hinge(features, y, cost, gap, seeded(0)))
    assert found == pytest.approx(reference, rel=1e-6)
    assert found <= reference + gap


@pytest.mark.parametrize("cost", [1e-4, 1.0, 1e3, 1e6])
def test_hard_rows_end_with_a_certificate(cost: float) -> None:
    """A large C must not take C passes: equal rows of both classes took minutes by plain coordinate descent."""
    features, y = ball(300, 5, 1)
    cases = {
        "equal rows": np.tile(features[:1], (300, 1)),
        "duplicates": np.repeat(features[:30], 10, axis=0),
        "zeros": np.zeros_like(features),
        "tiny": 1e-9 * features,
        "badly scaled": features * 10.0 ** -np.arange(0, 10, 2),
        "one column": features[:, :1],
        "orthogonal": np.eye(300),
    }
    for name, rows in cases.items():
        for labels in (y, np.ones_like(y)):
            trainer = SmoOutputPerturbation(budget=GaussianMu(1.0), C=cost)
            gap = trainer.gap(Setting(sizes=(300,), dimension=rows.shape[1], classes=2))
            weights = minimise_hinge(rows, labels, cost, gap, seeded(1))
            # Convexity: no small step in any of a few directions lowers the risk by more than the gap.
            here = risk(rows, labels, cost, weights)
            for seed in range(5):
                step = np.random.default_rng(seed).normal(size=len(weights))
                for length in (1e-3, 0.1):
                    assert risk(rows, labels, cost, weights + length * step) >= here - 1.01 * gap, name


def exact_gap(features: Floats, y: Floats, alpha: Floats, cost: float, weights: Floats) -> Fraction:
    """Return primal(weights) − dual(α) in rational arithmetic."""
    rows = [[Fraction(float(entry)) for entry in row] for row in features]
    w, a = [Fraction(float(entry)) for entry in weights], [Fraction(float(entry)) for entry in alpha]
    signs = [Fraction(int(sign)) for sign in y]
    margins = [sign * sum(x * z for x, z in zip(row, w, strict=True)) for sign, row in zip(signs, rows, strict=True)]
    losses = sum((max(Fraction(0), 1 - margin) for margin in margins), start=Fraction(0))
    v = [
        sum((t * sign * row[column] for t, sign, row in zip(a, signs, rows, strict=True)), start=Fraction(0))
        for column in range(len(w))
    ]
    primal = sum((x * x for x in w), start=Fraction(0)) / 2 + Fraction(cost) * losses
    return primal - (sum(a, start=Fraction(0)) - sum((x * x for x in v), start=Fraction(0)) / 2)


def test_the_certificate_holds_in_exact_arithmetic() -> None:
    """The bound is above the exact gap for every α tried, and without the allowance for rounding it would not be."""
    without = 0
    for seed in range(30):
        features, y = ball(60, 4, seed)
        random = np.random.default_rng(seed)
        alpha = random.choice([0.0, 1.0, 0.37, 1e-9], 60)
        weights = features.T @ (alpha * y)
        bound, gradient = certified_gap(features, y, alpha, 1.0, weights)
        exact = exact_gap(features, y, alpha, 1.0, weights)
        losses = float(np.maximum(0.0, -gradient).sum())
        slack = rounding_slack(60, 4, 1.0, losses, float(alpha.sum()), float(np.linalg.norm(weights)))
        assert Fraction(bound) >= exact >= 0
        assert slack < 1e-11
        without += Fraction(bound - slack) < exact
    assert without > 0, "the mutant without the allowance"


def test_the_returned_weights_meet_the_gap_in_exact_arithmetic() -> None:
    """½‖ŵ − w*‖² ≤ Γ, w* being the solution to a far smaller gap."""
    features, y = ball(80, 4, 2)
    coarse = minimise_hinge(features, y, 1.0, 1e-3, seeded(2))
    fine = minimise_hinge(features, y, 1.0, 1e-11, seeded(3))
    assert 0.5 * np.sum((coarse - fine) ** 2) <= 1e-3
    assert risk(features, y, 1.0, coarse) - risk(features, y, 1.0, fine) <= 1e-3
    assert not np.array_equal(coarse, fine)


def moved(first: tuple[Floats, Floats], second: tuple[Floats, Floats], cost: float, gap: float) -> float:
    weights = [minimise_hinge(rows, y, cost, gap, seeded(4)) for rows, y in (first, second)]
    return float(np.linalg.norm(weights[0] - weights[1]))


def with_constant(features: Floats, *, rescaled: bool = True) -> Floats:
    longer = np.hstack([features, np.ones((len(features), 1))])
    return longer / math.sqrt(2.0) if rescaled else longer


def test_the_sensitivity_is_attained_and_not_exceeded() -> None:
    """Worst pair: a unit row changes its label where its loss is active on both sides: w moves by 2C exactly."""
    cost, gap = 0.1, 1e-10
    row = np.array([[0.6, 0.8]])
    unit = with_constant(row)
    worst = moved((unit, np.array([1.0])), (unit, np.array([-1.0])), cost, gap)
    assert worst == pytest.approx(2 * cost, rel=1e-4)
    longer = with_constant(row, rescaled=False)
    mutant = moved((longer, np.array([1.0])), (longer, np.array([-1.0])), cost, gap)
    assert mutant > 1.4 * 2 * cost, "the mutant that appends 1 without rescaling"
    for seed in range(30):
        features, y = ball(25, 3, seed)
        other, labels = features.copy(), y.copy()
        replacement, label = ball(1, 3, 1000 + seed)
        other[0], labels[0] = replacement[0] / np.linalg.norm(replacement[0]), label[0]
        bound = 2 * cost + 2 * math.sqrt(2 * gap)
        assert moved((with_constant(features), y), (with_constant(other), labels), cost, gap) <= bound


@pytest.mark.parametrize("cost", [1.0, 100.0])
def test_two_solvers_within_the_gap_stay_within_the_sensitivity(cost: float) -> None:
    """The tolerance's share: the trainer's own gap, another order, and a neighbour."""
    features, y = ball(50, 3, 5)
    trainer = SmoOutputPerturbation(budget=GaussianMu(1.0), C=cost, tolerance=1.0)
    setting = Setting(sizes=(50,), dimension=3, classes=2)
    gap = trainer.gap(setting)
    first = minimise_hinge(features, y, cost, gap, seeded(5))
    for seed in range(10):
        again = minimise_hinge(features, y, cost, gap, seeded(6 + seed))
        assert np.linalg.norm(first - again) <= 2 * math.sqrt(2 * gap)
        assert np.linalg.norm(first - again) <= trainer.sensitivity(setting) - 2 * cost * (1 - 1e-9)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("budget", [GaussianMu(0.5), ZeroConcentrated(0.125)])
def test_the_noise_is_the_sensitivity_over_mu(classes: int, budget: Any) -> None:
    """Closed form: √K (2C + 2√(2Γ)) and the rounding of √(K (d + 1)) grid steps, over μ = 0.5 = √(2 · 0.125)."""
    trainer = SmoOutputPerturbation(budget=budget, C=0.7, tolerance=0.2)
    setting = Setting(sizes=(1000,), dimension=8, classes=classes)
    problems = 1 if classes == 2 else classes
    assert trainer.gap(setting) == 0.5 * (0.2 * 0.7) ** 2
    expected = math.sqrt(problems) * (2 * 0.7 * (1 + 1e-12) + 2 * 0.2 * 0.7)
    assert trainer.sensitivity(setting) == pytest.approx(expected, rel=1e-14)
    unit = trainer._unit(setting)
    assert math.log2(unit) == int(math.log2(unit))
    steps = expected / unit + math.sqrt(problems * 9)
    assert trainer.distribution(setting).sigma == pytest.approx(steps / 0.5, rel=1e-12)
    assert trainer.distribution(setting).sigma >= steps / 0.5
    assert steps < 1.001 * expected / unit


def test_the_guarantee_is_the_budget_exactly() -> None:
    trainer = SmoOutputPerturbation(budget=GaussianMu(0.5))
    guarantee = trainer.guarantee(Setting(sizes=(100,), dimension=3, classes=2))
    assert guarantee.losses == (GaussianMu(0.5),)
    assert guarantee.numerics is Numerics.EXACT
    with pytest.raises(ParameterError, match="replace-one"):
        trainer.guarantee(Setting(sizes=(100,), dimension=3, classes=2, neighbours=Neighbours.ADD_REMOVE_ONE))


def residuals(trainer: SmoOutputPerturbation) -> Floats:
    """Return released minus exact weights, in standard deviations, over 400 releases of 3 × 5 numbers."""
    rows = blobs(60, 4, 3, 7)
    setting = Setting(sizes=(60,), dimension=4, classes=3)
    factor = 1.0 / math.sqrt(2.0)
    longer = with_constant(np.asarray(rows.features))
    exact = np.stack(
        [minimise_hinge(longer, np.where(rows.labels == c, 1.0, -1.0), trainer.C, 1e-10, seeded(8)) for c in range(3)]
    )
    spread = trainer.distribution(setting).sigma * trainer._unit(setting)
    collected = []
    for seed in range(400):
        model = trainer.fit([rows], setting, noise(seed))
        released = np.hstack([model.weights, model.intercept[:, None]]) / factor
        collected.append((released - exact).ravel() / spread)
    return np.concatenate(collected)


def test_the_noise_follows_its_law() -> None:
    """False-alarm rate 1e-9; 6,000 numbers tell apart standard deviations that differ by 25 %."""
    values = residuals(SmoOutputPerturbation(budget=GaussianMu(1.0)))
    assert not rejects_law(values, ndtr)
    for name, factor in {"half the noise": 0.5, "one class's sensitivity": 1 / math.sqrt(3.0), "twice": 2.0}.items():
        assert rejects_law(factor * values, ndtr), name


def test_without_noise_the_model_is_the_machine() -> None:
    """A tiny C times a huge μ leaves almost no noise: predictions are the exact machine's."""
    rows = blobs(300, 4, 3, 9, spread=0.1)
    setting = Setting(sizes=(300,), dimension=4, classes=3)
    model = SmoOutputPerturbation(budget=GaussianMu(1e4), C=1.0).fit([rows], setting, noise())
    assert np.mean(model.predict(rows.features) == rows.labels) > 0.95
    oracle = LinearSVC(C=1.0, loss="hinge", tol=1e-9, max_iter=1_000_000, fit_intercept=False)
    oracle.fit(with_constant(np.asarray(rows.features)), np.where(rows.labels == 1, 1, -1))
    expected = oracle.decision_function(with_constant(np.asarray(rows.features)))
    assert model.scores(rows.features)[:, 1] == pytest.approx(expected, abs=0.05)


def test_zero_scaling_trains_without_intercept() -> None:
    rows = blobs(60, 4, 2, 10)
    setting = Setting(sizes=(60,), dimension=4, classes=2)
    model = SmoOutputPerturbation(budget=GaussianMu(1.0), intercept_scaling=0.0).fit([rows], setting, noise())
    assert model.intercept.tolist() == [0.0]


def test_rows_outside_the_ball_are_clipped() -> None:
    rows = blobs(60, 4, 2, 11)
    longer = ArrayRows(np.asarray(rows.features) * 50.0, rows.labels)
    setting = Setting(sizes=(60,), dimension=4, classes=2)
    trainer = SmoOutputPerturbation(budget=GaussianMu(1e4))
    one, two = trainer.fit([rows], setting, noise(1)), trainer.fit([longer], setting, noise(1))
    assert one.weights == pytest.approx(two.weights, abs=0.1)


def test_equal_values_meet_equal_noise() -> None:
    rows = blobs(60, 4, 2, 12)
    setting = Setting(sizes=(60,), dimension=4, classes=2)
    trainer = SmoOutputPerturbation(budget=GaussianMu(1.0))
    first, again = (trainer.fit([rows], setting, noise(1)) for _ in range(2))
    assert np.array_equal(first.weights, again.weights)
    assert not np.array_equal(first.weights, trainer.fit([rows], setting, noise(2)).weights)


def test_the_gap_grows_where_float64_cannot_certify_less() -> None:
    """Ten million rows at C = 1e-9: 2C is below what sums of that length can certify, and the noise pays for it."""
    trainer = SmoOutputPerturbation(budget=GaussianMu(1.0), C=1e-9)
    setting = Setting(sizes=(10_000_000,), dimension=100, classes=2)
    assert trainer.gap(setting) > 0.5 * (0.01 * 1e-9) ** 2
    assert trainer.sensitivity(setting) > 2e-9 * 1.05
    assert isinstance(trainer.distribution(setting), RoundedGaussian)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"C": 0.0}, "C"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": 1.5}, "tolerance"),
        ({"intercept_scaling": -1.0}, "intercept_scaling"),
        ({"intercept_scaling": float("inf")}, "intercept_scaling"),
        ({"budget": PureEpsilon(1.0)}, "budget"),
        ({"budget": GaussianMu(0.0)}, "mu"),
    ],
)
def test_parameters_are_checked(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        SmoOutputPerturbation(**{"budget": GaussianMu(1.0), **options})
