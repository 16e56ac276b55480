"""Sums of a regression's errors: exact integers, the sensitivity is the supremum, metrics follow without bias."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpalgos.error_margins import metrics_of_noisy_errors
from dpalgos.evaluators.error_sums import LaplaceErrorSums
from dpalgos.guarantees import RELATIONS, Neighbours, PureEpsilon, Setting
from dpalgos.metrics import regression_metrics
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows, Floats
from tests.support.coverage import least

RANGE = (-3.0, 5.0)
SUMS = LaplaceErrorSums(budget=PureEpsilon(0.5), label_range=RANGE)


def setting_of(rows: int, relation: Neighbours = Neighbours.REPLACE_ONE) -> Setting:
    return Setting(sizes=(rows,), dimension=1, classes=1, neighbours=relation)


def sums(algorithm: LaplaceErrorSums, predictions: Floats, targets: Floats) -> Floats:
    return algorithm.statistic(ArrayRows(predictions[:, None], targets), setting_of(len(targets)))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("algorithm", [SUMS])
def test_no_two_records_are_farther_apart_and_two_are_as_far(algorithm: LaplaceErrorSums, relation: Neighbours) -> None:
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
    """2.12 times the standard deviation of the rows' errors over the root of their number."""
    random = np.random.default_rng(3)
    targets = random.uniform(*RANGE, 4000)
    predictions = np.clip(targets + random.normal(0, 1, 4000), *RANGE)
    errors = np.abs(targets - predictions)
    found = metrics_of_noisy_errors(sums(SUMS, predictions, targets), 4000, 0.0, RANGE)
    half = 2.12 * errors.std() / math.sqrt(4000)
    assert found["mae_high"] - found["mae"] == pytest.approx(half, rel=0.05)
    assert found["mae"] - found["mae_low"] == pytest.approx(half, rel=0.05)


def test_metrics_without_noise_are_those_of_clipped_predictions() -> None:
    random = np.random.default_rng(1)
    targets = random.uniform(-4, 5.5, 5000)
    predictions = np.clip(targets, *RANGE) * 0.7 + random.normal(0, 1.5, 5000)
    exact = regression_metrics(np.clip(targets, *RANGE), np.clip(predictions, *RANGE))
    found = metrics_of_noisy_errors(sums(SUMS, predictions, targets), 5000, 0.0, RANGE)
    # A grid of 2^-10 of the range: errors of rounding are below 8 / 2^11 each, and average out.
    assert found["mae"] == pytest.approx(exact["mae"], rel=1e-3)
    assert found["rmse"] == pytest.approx(math.sqrt(exact["mse"]), rel=1e-3)
    assert found["r2"] == pytest.approx(exact["r2"], rel=2e-3)


def test_margins_hold_with_laplace_noise() -> None:
    """2,000 releases of other rows: at least 95 % less six standard deviations of the margins hold the truth."""
    random = np.random.default_rng(2)
    truth, missed = {"mae": 0.0, "rmse": 0.0, "r2": 0.0}, {"mae": 0, "rmse": 0, "r2": 0}
    targets = random.uniform(-3, 5, 1_000_000)
    predictions = np.clip(targets + random.normal(0, 1.0, len(targets)), *RANGE)
    exact = regression_metrics(targets, predictions)
    truth.update(mae=exact["mae"], rmse=math.sqrt(exact["mse"]), r2=exact["r2"])
    deviation, count = SUMS.deviation(setting_of(2000)), 2000
    width = RANGE[1] - RANGE[0]
    share, t = np.abs(targets - predictions) / width, (targets - 1.0) / 4.0
    each = np.stack([np.ones_like(share), 2 * share**2, share, t, t**2], axis=1)
    for _ in range(2000):
        drawn = each[random.integers(0, len(each), count)].sum(axis=0)
        noisy = drawn + random.laplace(0, deviation / math.sqrt(2), 5)
        found = metrics_of_noisy_errors(noisy, count, deviation, RANGE)
        for name, value in truth.items():
            missed[name] += not found[f"{name}_low"] <= value <= found[f"{name}_high"]
    assert max(missed.values()) <= 2000 * 0.05 + 6 * math.sqrt(2000 * 0.05 * 0.95)
    assert found.is_known("mae")


@pytest.mark.nightly
@pytest.mark.parametrize("deviation", [60.0, 80.0])
def test_r2_holds_among_the_runs_in_which_laplace_noise_lets_it_be_shown(deviation: float) -> None:
    """Of 3,000 runs 1,095 and 72; the split sums are uncorrelated here, not independent."""
    random, count, held = np.random.default_rng(5), 2000, []
    targets = random.uniform(*RANGE, 200_000)
    share, t = np.abs(targets - 1.0) / 8.0, (targets - 1.0) / 4.0
    each = np.stack([np.ones_like(share), 2 * share**2, share, t, t**2], axis=1)
    truth = regression_metrics(targets, np.full(len(targets), 1.0))["r2"]
    for _ in range(3000):
        drawn = each[random.integers(0, len(each), count)].sum(axis=0)
        found = metrics_of_noisy_errors(drawn + random.laplace(0, deviation / math.sqrt(2), 5), count, deviation, RANGE)
        if found.is_known("r2"):
            held.append(found["r2_low"] <= truth <= found["r2_high"])
    assert sum(held) >= least(len(held)) > 0


def test_what_noise_hides_cannot_be_measured() -> None:
    exact = sums(SUMS, np.full(400, 1.0), np.full(400, 2.0))
    found = metrics_of_noisy_errors(exact, 400, 200.0, RANGE)
    assert set(found.reasons) == {"mae", "rmse", "r2"}
    assert math.isnan(found["r2"])


def test_null_records_are_not_taken_for_exact_predictions() -> None:
    exact = sums(SUMS, np.full(400, 1.0), np.full(400, 2.0))
    assert metrics_of_noisy_errors(exact, 400, 2.0, RANGE)["mae"] == pytest.approx(1.0, rel=1e-3)
    assert metrics_of_noisy_errors(exact, 1000, 2.0, RANGE)["mae"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("label_range", [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0), (1.0,)])
def test_a_range_that_is_none_is_refused(label_range: tuple[float, ...]) -> None:
    with pytest.raises(ParameterError, match="label_range"):
        LaplaceErrorSums(budget=PureEpsilon(1.0), label_range=label_range)
