"""Objective perturbation: the density of the release under neighbours, its law, and broken copies."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import gamma

from dpalgos.guarantees import GaussianMu, Neighbours, PureEpsilon, Setting
from dpalgos.losses import make_loss
from dpalgos.parameters import ParameterError
from dpalgos.published.minimisers import PublishedObjectivePerturbation
from dpalgos.rows import ArrayRows
from dpalgos.trainers.objective_perturbation import Calibration, ObjectivePerturbation
from dpalgos.trainers.output_perturbation import EmpiricalRisk
from tests.support.nights import spanning
from tests.support.statistics import rejects_law
from tests.support.training import blobs, fitted, noise, setting_of

Array = NDArray[np.float64]
BUDGET = PureEpsilon(1.0)


def log_density(
    algorithm: Any, features: Array, labels: Array, grid: Array, calibration: Calibration
) -> tuple[Array, Array]:
    """Return the two parts of the log-density of the exact minimiser at points (g, 2): noise and Jacobian."""
    loss = make_loss(algorithm.loss, algorithm.width)
    margins = (grid @ features.T) * labels
    ones = np.ones_like(margins)
    strength = len(features) * calibration.regularisation
    linear = -(loss.slope(margins, ones) * labels) @ features - strength * grid
    curvature = loss.curvature_product(margins, ones)(ones)
    jacobian = np.einsum("gn,ni,nj->gij", curvature, features, features) + strength * np.eye(2)
    return -np.linalg.norm(linear, axis=1) / calibration.noise_scale, np.linalg.slogdet(jacobian)[1]


def largest_loss(algorithm: Any, calibration: Calibration, count: int = 3) -> tuple[float, float, float]:
    """Return the largest privacy loss over worst and random neighbours and a grid of outputs; and its two parts'."""
    random = np.random.default_rng(2)
    rows = [np.array(row) for row in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (-1.0, 0.0), (0.6, 0.8))]
    reach = 3.0 / (count * calibration.regularisation)
    wide = np.array(list(itertools.product(np.linspace(-reach, reach, 41), repeat=2)))
    narrow = np.array(list(itertools.product(np.linspace(-2, 2, 41), repeat=2)))
    grid = np.vstack([wide, narrow])
    best = (0.0, 0.0, 0.0)
    for former, two, ends in itertools.product(rows, rows, ((1.0, 1.0), (1.0, -1.0))):
        for spread in (0.0, 0.3):
            common = spread * random.normal(size=(count - 1, 2)).clip(-2, 2)
            labels = random.choice([-1.0, 1.0], count - 1)
            first = log_density(algorithm, np.vstack([common, former]), np.append(labels, ends[0]), grid, calibration)
            second = log_density(algorithm, np.vstack([common, two]), np.append(labels, ends[1]), grid, calibration)
            from_noise, from_jacobian = first[0] - second[0], first[1] - second[1]
            found = (from_noise + from_jacobian, from_noise, from_jacobian)
            best = tuple(max(old, float(np.abs(new).max())) for old, new in zip(best, found, strict=True))  # type: ignore[assignment]  # as many
    return best


CASES = [("smoothed-hinge", 0.5), ("huber-hinge", 0.5), ("logistic", None)]


@pytest.mark.parametrize(
    ("loss", "width", "regularisation"), spanning([pytest.param(*case, id=case[0]) for case in CASES], [0.3, 2.0])
)
def test_no_output_is_more_likely_than_allowed(loss: str, width: float | None, regularisation: float) -> None:
    algorithm = ObjectivePerturbation(budget=BUDGET, loss=loss, width=width, regularisation=regularisation)
    setting = Setting(sizes=(3,), dimension=2, classes=2)
    calibration = algorithm.calibration(setting)
    whole, from_noise, from_jacobian = largest_loss(algorithm, calibration)
    assert whole <= 0.99 * BUDGET.epsilon * (1 + 1e-9)
    # Each part of the bound is reached, so neither constant can be smaller. (Logistic slopes reach 1 at infinity.)
    assert from_noise >= (0.4 if loss == "logistic" else 0.95) * 2.0 / calibration.noise_scale
    curvature = make_loss(loss, width).curvature_bound
    assert from_jacobian >= 0.9 * math.log1p(curvature / (3 * calibration.regularisation))


@pytest.mark.parametrize("factor", [0.5, 0.8])
def test_less_noise_overspends(factor: float) -> None:
    """Mutants: the density exp(−ε′‖R‖) instead of exp(−ε′‖R‖/2), and noise a fifth short."""
    algorithm = ObjectivePerturbation(budget=BUDGET, regularisation=2.0)
    right = algorithm.calibration(Setting(sizes=(3,), dimension=2, classes=2))
    mutant = dataclasses.replace(right, noise_scale=factor * right.noise_scale)
    assert largest_loss(algorithm, mutant)[0] > BUDGET.epsilon


def test_the_jacobian_must_be_paid() -> None:
    """Mutant: the whole of epsilon to the noise, none to the Jacobian, at little regularisation."""
    algorithm = ObjectivePerturbation(budget=BUDGET, regularisation=1e-3)
    right = algorithm.calibration(Setting(sizes=(3,), dimension=2, classes=2))
    assert right.regularisation > 1e-3
    mutant = Calibration(regularisation=0.05, noise_scale=2.0 / BUDGET.epsilon)
    assert largest_loss(algorithm, mutant)[0] > BUDGET.epsilon


def test_calibration_in_closed_form() -> None:
    setting = Setting(sizes=(10_000,), dimension=20, classes=10)
    calibration = ObjectivePerturbation(budget=BUDGET, regularisation=0.01).calibration(setting)
    share = 0.099
    assert calibration.regularisation == 0.01
    assert 2.0 / calibration.noise_scale == pytest.approx(share - math.log(1 + 1.5 / 100))
    assert calibration.tolerance_scale == pytest.approx(2e-11 / (0.01 * 0.001))
    small = ObjectivePerturbation(budget=BUDGET, regularisation=1e-9).calibration(setting)
    assert small.regularisation == pytest.approx(1.5 / (10_000 * math.expm1(share / 2)))
    assert 2.0 / small.noise_scale == pytest.approx(share / 2)


def test_published_calibration_is_the_papers() -> None:
    setting = Setting(sizes=(10_000,), dimension=20, classes=10)
    calibration = PublishedObjectivePerturbation(budget=PureEpsilon(0.05)).calibration(setting)
    assert 2.0 / calibration.noise_scale == pytest.approx(0.05 - math.log(1 + 2 / 100 + 1 / 100**2))
    few = PublishedObjectivePerturbation(budget=PureEpsilon(0.05)).calibration(
        Setting(sizes=(100,), dimension=20, classes=10)
    )
    assert 2.0 / few.noise_scale == pytest.approx(0.025)
    assert few.regularisation == pytest.approx(1.0 / (100 * math.expm1(0.05 / 4)))


def lengths(algorithm: Any, calibration: Calibration, dimension: int, classes: int, draws: int) -> Array:
    """Release from zero rows, where the minimiser is −R/(nΛ), and return ‖R‖ of every weight row."""
    rows = ArrayRows(np.zeros((4, dimension)), np.zeros(4, dtype=np.int64))
    found = [fitted(algorithm, [rows], classes, seed).weights for seed in range(draws)]
    return np.concatenate([np.linalg.norm(weights, axis=1) for weights in found]) * 4 * calibration.regularisation


def test_released_noise_has_the_law_of_a_classifiers_share() -> None:
    """1,200 lengths: DKW notices a distance of 0.19 at a false alarm of 1e-9; halving the noise is at 0.6."""
    algorithm = ObjectivePerturbation(budget=BUDGET)
    setting = Setting(sizes=(4,), dimension=3, classes=4)
    calibration = algorithm.calibration(setting)
    sample = lengths(algorithm, calibration, 3, 4, 300)
    law = gamma(3, scale=calibration.noise_scale)
    assert not rejects_law(sample, law.cdf)
    # Without composition over the four classes; half the noise; one dimension too many.
    single = algorithm.calibration(dataclasses.replace(setting, classes=2)).noise_scale
    assert rejects_law(sample, gamma(3, scale=single).cdf)
    assert rejects_law(sample / 2, law.cdf)
    assert rejects_law(sample, gamma(4, scale=calibration.noise_scale * 1.5).cdf)


def test_each_class_is_charged() -> None:
    algorithm = ObjectivePerturbation(budget=BUDGET)
    rows = blobs(20, 3, 5, 0)
    assert algorithm.guarantee(setting_of([rows], 5)).losses == (PureEpsilon(0.2),) * 5
    assert algorithm.guarantee(setting_of([rows], 2)).losses == (PureEpsilon(1.0),)
    published = PublishedObjectivePerturbation(budget=BUDGET)
    assert not published.guarantee(setting_of([rows], 5)).proved


def test_classes_get_independent_noise() -> None:
    rows = ArrayRows(np.zeros((4, 3)), np.zeros(4, dtype=np.int64))
    weights = fitted(ObjectivePerturbation(budget=BUDGET), [rows], 4).weights
    assert len(np.unique(weights)) == weights.size


@pytest.mark.parametrize("name", ["sound", "published"])
def test_a_large_budget_gives_the_exact_minimiser(name: str) -> None:
    rows = blobs(300, 5, 3, 1)
    algorithm: Any = {
        "sound": ObjectivePerturbation(budget=PureEpsilon(1e7), loss="huber-hinge"),
        "published": PublishedObjectivePerturbation(budget=PureEpsilon(1e7)),
    }[name]
    exact = fitted(EmpiricalRisk(), [rows], 3)
    np.testing.assert_allclose(fitted(algorithm, [rows], 3).weights, exact.weights, atol=1e-3)


def test_noise_belongs_to_the_rows() -> None:
    """Other rows meet other noise: the difference of two releases must not be that of the exact minimisers."""
    rows = blobs(50, 3, 2, 2)
    other = ArrayRows(rows.features.copy(), rows.labels.copy())
    other.features[0] *= -1
    algorithm = ObjectivePerturbation(budget=BUDGET)
    first, second = (fitted(algorithm, [given], 2).weights for given in (rows, other))
    exact = [fitted(EmpiricalRisk(loss="smoothed-hinge"), [given], 2).weights for given in (rows, other)]
    assert np.abs((first - second) - (exact[0] - exact[1])).max() > 0.1
    again = fitted(algorithm, [ArrayRows(rows.features.copy(), rows.labels.copy())], 2).weights
    np.testing.assert_array_equal(first, again)


def test_parameters_are_validated() -> None:
    rows = blobs(10, 4, 2, 5)
    for make in (
        lambda: ObjectivePerturbation(budget=GaussianMu(1.0)),  # type: ignore[arg-type]  # the wrong kind
        lambda: ObjectivePerturbation(budget=PureEpsilon(0.0)),
        lambda: ObjectivePerturbation(budget=BUDGET, regularisation=0.0),
        lambda: ObjectivePerturbation(budget=BUDGET, loss="softmax"),
        lambda: ObjectivePerturbation(budget=BUDGET, loss="squared"),
        lambda: ObjectivePerturbation(budget=BUDGET, loss="logistic", width=0.5),
        lambda: PublishedObjectivePerturbation(budget=BUDGET, width=-1.0),
        lambda: ObjectivePerturbation(budget=BUDGET).guarantee(
            dataclasses.replace(setting_of([rows], 2), neighbours=Neighbours.ADD_REMOVE_ONE)
        ),
    ):
        with pytest.raises(ParameterError):
            make()
    assert noise() is not None
