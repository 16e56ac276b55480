"""Sums of a regression's errors: exact integers, the sensitivity is the supremum, metrics follow without bias."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpalgos.evaluators.noisy_sums import ErrorSums, GaussianErrorSums, LaplaceErrorSums
from dpalgos.guarantees import RELATIONS, GaussianMu, Neighbours, PureEpsilon, Setting
from dpalgos.margins import metrics_of_noisy_errors
from dpalgos.metrics import regression_metrics
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows, Floats

RANGE = (-3.0, 5.0)
EITHER: list[ErrorSums] = [
    GaussianErrorSums(budget=GaussianMu(0.5), label_range=RANGE),
    LaplaceErrorSums(budget=PureEpsilon(0.5), label_range=RANGE),
]


def setting_of(rows: int, relation: Neighbours = Neighbours.REPLACE_ONE) -> Setting:
    return Setting(sizes=(rows,), dimension=1, classes=1, neighbours=relation)


def sums(algorithm: ErrorSums, predictions: Floats, targets: Floats) -> Floats:
    return algorithm.statistic(ArrayRows(predictions[:, None], targets), setting_of(len(targets)))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("algorithm", EITHER, ids=["l2", "l1"])
def test_no_two_records_are_farther_apart_and_two_are_as_far(algorithm: ErrorSums, relation: Neighbours) -> None:
    """All pairs of a grid of predictions and targets, beyond the range too, and the null record."""
    places = np.array([-math.inf, -9.0, *np.linspace(*RANGE, 17), 9.0])
    targets = places[1:]
    records = [sums(algorithm, np.array([p]), np.array([t])) for p, t in itertools.product(places[1:], targets)]
    null = sums(algorithm, np.array([0.0]), np.array([math.nan]))
    assert null.tolist() == [0.0] * 5
    assert sums(algorithm, np.array([math.inf]), np.array([1.0])).tolist() == [0.0] * 5
    among, norm = np.array([*records, null]), getattr(algorithm, "norm", 2)
    gaps = among[:, None] - (null[None, None] if relation is Neighbours.REPLACE_SPECIAL else among[None])
    most = np.linalg.norm(gaps, ord=norm, axis=2).max()
    setting = setting_of(4, relation)
    assert most == pytest.approx(algorithm.sensitivity(setting), rel=1e-12)
    pair = algorithm.neighbouring_pair(setting)
    moved = algorithm.statistic(pair.left, setting) - algorithm.statistic(pair.right, setting)
    assert np.linalg.norm(moved, ord=norm) == pytest.approx(most, rel=1e-12)


def test_without_noise_the_margin_of_the_mean_absolute_error_is_that_of_a_mean() -> None:
    """1.96 times the standard deviation of the rows' errors over the root of their number."""
    random = np.random.default_rng(3)
    targets = random.uniform(*RANGE, 400)
    predictions = np.clip(targets + random.normal(0, 1, 400), *RANGE)
    errors = np.abs(targets - predictions)
    found = metrics_of_noisy_errors(sums(EITHER[0], predictions, targets), 400, 0.0, RANGE)
    half = 1.96 * errors.std() / math.sqrt(400)
    assert found["mae_high"] - found["mae"] == pytest.approx(half, rel=0.02)
    assert found["mae"] - found["mae_low"] == pytest.approx(half, rel=0.02)


def test_metrics_without_noise_are_those_of_clipped_predictions() -> None:
    random = np.random.default_rng(1)
    targets = random.uniform(-4, 5.5, 5000)
    predictions = np.clip(targets, *RANGE) * 0.7 + random.normal(0, 1.5, 5000)
    exact = regression_metrics(np.clip(targets, *RANGE), np.clip(predictions, *RANGE))
    found = metrics_of_noisy_errors(sums(EITHER[0], predictions, targets), 5000, 0.0, RANGE)
    for name, value in exact.items():
        # A grid of 2^-10 of the range: errors of rounding are below 8 / 2^11 each, and average out.
        assert found[name] == pytest.approx(value, rel=1e-3), name
    assert found["mae_noise"] == found["r2_noise"] == 0


@pytest.mark.parametrize("algorithm", EITHER, ids=["gaussian", "laplace"])
def test_noisy_metrics_are_as_exact_as_they_say(algorithm: ErrorSums) -> None:
    """1,000 draws: means within six standard errors, spreads within 20 % of what is stated."""
    random = np.random.default_rng(2)
    targets = random.uniform(-3, 5, 2000)
    predictions = targets + random.normal(0, 1.0, 2000)
    setting = setting_of(2000)
    exact = sums(algorithm, predictions, targets)
    truth = metrics_of_noisy_errors(exact, 2000, 0.0, RANGE)
    sigma = algorithm.deviation(setting)
    noise = random.normal(0, sigma, (1000, 5))
    found = [metrics_of_noisy_errors(exact + one, 2000, sigma, RANGE) for one in noise]
    for name in ("mae", "r2"):
        values = np.array([one[name] for one in found])
        stated = found[0][f"{name}_noise"]
        assert values.std() == pytest.approx(stated, rel=0.2), name
        assert values.mean() == pytest.approx(truth[name], abs=0.2 * stated + 6 * stated / math.sqrt(1000)), name
    assert all(one["mae_high"] - one["mae"] >= 1.96 * one["mae_noise"] * (1 - 1e-12) for one in found)


def test_null_records_are_not_taken_for_exact_predictions() -> None:
    exact = sums(EITHER[0], np.full(400, 1.0), np.full(400, 2.0))
    assert metrics_of_noisy_errors(exact, 400, 2.0, RANGE)["mae"] == pytest.approx(1.0, rel=1e-3)
    assert metrics_of_noisy_errors(exact, 1000, 2.0, RANGE)["mae"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("label_range", [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0), (1.0,)])
def test_a_range_that_is_none_is_refused(label_range: tuple[float, ...]) -> None:
    with pytest.raises(ParameterError, match="label_range"):
        GaussianErrorSums(budget=GaussianMu(1.0), label_range=label_range)
