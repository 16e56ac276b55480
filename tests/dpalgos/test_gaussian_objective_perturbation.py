"""Gaussian objective perturbation: the whole privacy curve by integration, the coarse solver's price, broken copies."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi

from dpalgos.errors import ParameterError
from dpalgos.guarantees import ApproximateDP, GaussianMu, Setting
from dpalgos.losses import make_loss
from dpalgos.mechanisms.gaussian import delta_of_mu
from dpalgos.rows import ArrayRows
from dpalgos.trainers.empirical_risk import EmpiricalRisk
from dpalgos.trainers.gaussian_objective_perturbation import (
    ApproximateMinimaPerturbation,
    GaussianCalibration,
    GaussianObjectivePerturbation,
)
from tests.support.training import blobs, fitted

Array = NDArray[np.float64]
BUDGET = ApproximateDP(1.0, 1e-3)
ONE = Setting(sizes=(2,), dimension=1, classes=2)


def density(loss: Any, row: tuple[float, float], grid: Array, calibration: GaussianCalibration) -> Array:
    """Return the density of the exact minimiser on a grid, one feature, a zero row and one row (x, y)."""
    x, y = row
    margins = (y * x * grid)[:, None]
    ones = np.ones_like(margins)
    strength = 2 * calibration.regularisation
    linear = -y * x * loss.slope(margins, ones)[:, 0] - strength * grid
    jacobian = x * x * loss.curvature_product(margins, ones)(ones)[:, 0] + strength
    sigma = calibration.sigma
    return np.asarray(np.exp(-(linear**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) * jacobian)


def true_delta(loss: Any, calibration: GaussianCalibration, epsilon: float) -> float:
    """Return the largest ∫ max(p − e^ε p′, 0) over pairs of neighbours that replace a row."""
    reach = (12 * calibration.sigma + 2) / (2 * calibration.regularisation)
    grid = np.linspace(-reach, reach, 400_001)
    step = grid[1] - grid[0]
    worst = 0.0
    rows = list(itertools.product((1.0, 0.6, 0.0), (1.0, -1.0)))
    densities = [density(loss, row, grid, calibration) for row in rows]
    for first, second in itertools.permutations(densities, 2):
        assert first.sum() * step == pytest.approx(1.0, abs=1e-4)
        worst = max(worst, float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum() * step))
    return worst


@pytest.mark.parametrize("loss", ["smoothed-hinge", "huber-hinge", "logistic"])
@pytest.mark.parametrize("regularisation", [0.05, 5.0])
@pytest.mark.parametrize("budget", [BUDGET, ApproximateDP(4.0, 1e-6)])
def test_delta_holds(loss: str, regularisation: float, budget: ApproximateDP) -> None:
    algorithm = GaussianObjectivePerturbation(budget=budget, loss=loss, regularisation=regularisation)
    assert true_delta(make_loss(loss), algorithm.calibration(ONE), 0.99 * budget.epsilon) <= budget.delta


def test_a_third_of_the_noise_or_no_pay_for_the_jacobian_overspends() -> None:
    """The bound is a tail bound: half the noise would still do for one feature, a third does not."""
    loss = make_loss("smoothed-hinge")
    right = GaussianObjectivePerturbation(budget=BUDGET, regularisation=5.0).calibration(ONE)
    assert true_delta(loss, right, BUDGET.epsilon) > 0.0
    third = dataclasses.replace(right, sigma=right.sigma / 3)
    assert true_delta(loss, third, BUDGET.epsilon) > BUDGET.delta
    unpaid = dataclasses.replace(right, regularisation=0.01)
    assert true_delta(loss, unpaid, BUDGET.epsilon) > BUDGET.delta


def test_calibration_in_closed_form() -> None:
    setting = Setting(sizes=(1000,), dimension=50, classes=10)
    calibration = GaussianObjectivePerturbation(budget=BUDGET, regularisation=0.1).calibration(setting)
    assert calibration.regularisation == 0.1
    remaining = 0.99 - 10 * math.log1p(1.5 / 100)
    slope = math.sqrt(10)
    reach = (remaining * calibration.sigma**2 - 2 * slope**2) / (2 * slope * calibration.sigma)
    assert 2 * chi.sf(reach, 10) == pytest.approx(1e-3 * math.exp(-0.005), rel=1e-5)
    assert calibration.tolerance_scale == pytest.approx(2 * math.sqrt(10) * 1e-11 / 0.1 / 0.01)
    wide = dataclasses.replace(setting, dimension=5000)
    assert GaussianObjectivePerturbation(budget=BUDGET, regularisation=0.1).calibration(wide).sigma == calibration.sigma


def test_the_coarse_solver_is_paid_for() -> None:
    """The chain of the proof, with the numbers that the calibration gives, ends within (epsilon, delta)."""
    setting = Setting(sizes=(50,), dimension=4, classes=3)
    algorithm = ApproximateMinimaPerturbation(budget=BUDGET, tolerance=1e-3)
    calibration = algorithm.calibration(setting)
    shift = math.sqrt(3) * 1e-3 / calibration.regularisation
    each = 0.05 * BUDGET.epsilon
    hidden = delta_of_mu(shift / calibration.tolerance_scale, each)
    remaining = 0.9 * BUDGET.epsilon - 3 * math.log1p(1.5 / (50 * calibration.regularisation))
    slope = math.sqrt(3)
    reach = (remaining * calibration.sigma**2 - 2 * slope**2) / (2 * slope * calibration.sigma)
    exact = 2 * chi.sf(reach, 3)
    total = math.exp(each) * exact + (1 + math.exp(each + 0.9 * BUDGET.epsilon)) * hidden
    assert total <= BUDGET.delta * (1 + 1e-9)
    assert total >= 0.99 * BUDGET.delta
    # Mutant: the shift counted half would not be hidden.
    assert delta_of_mu(2 * shift / calibration.tolerance_scale, each) > hidden * 10


@pytest.mark.parametrize("kind", [GaussianObjectivePerturbation, ApproximateMinimaPerturbation])
def test_a_large_budget_gives_the_exact_minimiser(kind: Any) -> None:
    rows = blobs(300, 5, 3, 1)
    algorithm = kind(budget=ApproximateDP(500.0, 0.1), loss="huber-hinge")
    exact = fitted(EmpiricalRisk(), [rows], 3)
    np.testing.assert_allclose(fitted(algorithm, [rows], 3).weights, exact.weights, atol=0.1)


def test_released_noise_has_the_stated_deviation() -> None:
    """Zero rows: the minimiser is −R/(nΛ). 40 × 3 × 30 entries: within 8 % of the deviation but for 1e-9."""
    rows = ArrayRows(np.zeros((4, 30)), np.zeros(4, dtype=np.int64))
    algorithm = GaussianObjectivePerturbation(budget=BUDGET)
    calibration = algorithm.calibration(Setting(sizes=(4,), dimension=30, classes=3))
    found = np.concatenate([fitted(algorithm, [rows], 3, seed).weights.ravel() for seed in range(40)])
    assert abs(found.std() * 4 * calibration.regularisation / calibration.sigma - 1) < 0.08


def test_parameters_are_validated() -> None:
    for make in (
        lambda: GaussianObjectivePerturbation(budget=GaussianMu(1.0)),  # type: ignore[arg-type]
        lambda: GaussianObjectivePerturbation(budget=ApproximateDP(1.0, 0.0)),
        lambda: GaussianObjectivePerturbation(budget=BUDGET, loss="softmax"),
        lambda: ApproximateMinimaPerturbation(budget=BUDGET, tolerance=0.0),
        lambda: ApproximateMinimaPerturbation(budget=BUDGET, regularisation=-1.0),
    ):
        with pytest.raises(ParameterError):
            make()
