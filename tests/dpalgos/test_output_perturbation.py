"""Output perturbation over parties: the sensitivity against worst pairs, the integers, the law, and broken copies."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos.guarantees import GaussianMu, Neighbours, Numerics, PureEpsilon, Setting
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows
from dpalgos.trainers.output_perturbation import EmpiricalRisk, OutputPerturbation
from tests.support.training import blobs, fitted, parties_of, setting_of

Array = NDArray[np.float64]
MU = GaussianMu(0.5)


def spent(algorithm: Any, first: ArrayRows, second: ArrayRows, classes: int, sizes: tuple[int, ...]) -> float:
    setting = Setting(sizes=sizes, dimension=first.dimension, classes=classes)
    state = algorithm.initial(setting)
    change = algorithm.contribution(state, first, setting) - algorithm.contribution(state, second, setting)
    return float(np.linalg.norm(change.astype(np.float64))) / float(algorithm.distribution(setting).sigma)


def pairs(classes: int, count: int, dimension: int = 4) -> list[tuple[ArrayRows, ArrayRows]]:
    """Neighbours by replacement: one row against its opposite with the same label, and random ones."""
    random = np.random.default_rng(3)
    found = []
    for trial in range(12):
        common = np.zeros((count - 1, dimension)) if trial < 6 else 0.1 * random.normal(size=(count - 1, dimension))
        row = np.linalg.qr(random.normal(size=(dimension, dimension)))[0][0]
        labels = random.integers(0, classes, count)
        other = labels.copy()
        if trial % 3 == 2:
            other[-1] = (labels[-1] + 1) % classes
        found.append(
            (
                ArrayRows(np.vstack([common, row]), labels),
                ArrayRows(np.vstack([common, -row if trial % 3 == 0 else random.normal(size=dimension)]), other),
            )
        )
    return found


def largest_spent(algorithm: Any, classes: int, count: int = 2, sizes: tuple[int, ...] = (2,)) -> float:
    return max(spent(algorithm, *pair, classes, sizes) for pair in pairs(classes, count))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneClassOnly(OutputPerturbation):
    """Classes not composed: the sensitivity of one classifier."""

    def sensitivity(self, setting: Setting) -> float:
        return OutputPerturbation.sensitivity(self, dataclasses.replace(setting, classes=2))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddRemove(OutputPerturbation):
    """The sensitivity of adding a row, half of what replacing costs."""

    def sensitivity(self, setting: Setting) -> float:
        return OutputPerturbation.sensitivity(self, setting) / 2.0


# At λ = 10 a single row cannot bend its own margin, so all slopes stay at their ends and the bound is reached.
STRONG = 10.0


@pytest.mark.parametrize(("loss", "classes"), [("huber-hinge", 2), ("huber-hinge", 5), ("smoothed-hinge", 5)])
@pytest.mark.parametrize(("count", "sizes"), [(2, (2,)), (2, (7, 2)), (4, (4,))])
def test_the_worst_neighbours_spend_the_budget_and_no_more(
    loss: str, classes: int, count: int, sizes: tuple[int, ...]
) -> None:
    algorithm = OutputPerturbation(budget=MU, loss=loss, regularisation=STRONG)
    largest = largest_spent(algorithm, classes, count, sizes)
    assert 0.99 * MU.mu <= largest <= MU.mu


@pytest.mark.parametrize("loss", ["logistic", "softmax", "huber-hinge"])
@pytest.mark.parametrize("regularisation", [1e-3, 0.1])
def test_no_neighbours_spend_more_where_slopes_bend(loss: str, regularisation: float) -> None:
    algorithm = OutputPerturbation(budget=MU, loss=loss, regularisation=regularisation)
    assert largest_spent(algorithm, 3) <= MU.mu


@pytest.mark.parametrize("mutant", [OneClassOnly, AddRemove])
def test_mutants_overspend(mutant: Any) -> None:
    assert largest_spent(mutant(budget=MU, regularisation=STRONG), 5) > MU.mu


def test_sensitivity_in_closed_form() -> None:
    ten = Setting(sizes=(50, 10_000), dimension=20, classes=10)
    huber = OutputPerturbation(budget=MU, regularisation=0.01).sensitivity(ten)
    assert huber == pytest.approx(2 * math.sqrt(10) / 0.01, rel=1e-4)
    assert huber > 2 * math.sqrt(10) / 0.01
    softmax = OutputPerturbation(budget=MU, loss="softmax", regularisation=0.01).sensitivity(ten)
    assert softmax == pytest.approx(2 * math.sqrt(2) / 0.01, rel=1e-4)
    law = OutputPerturbation(budget=MU, regularisation=0.01).distribution(ten)
    assert isinstance(law, RoundedGaussian)
    released = law.sigma * 2.0 ** (math.floor(math.log2(huber)) - 24)
    assert released == pytest.approx(huber / MU.mu, rel=1e-4)


def test_the_solvers_tolerance_is_kept() -> None:
    """What the certificate promises: the sum moves by no more than rounding when the solver is asked for more."""
    rows = blobs(80, 6, 3, 4)
    setting = setting_of([rows], 3)
    algorithm = OutputPerturbation(budget=MU, regularisation=0.01)
    coarse = algorithm.contribution(algorithm.initial(setting), rows, setting)
    exact = 80 * fitted(EmpiricalRisk(tolerance=1e-13), [rows], 3).weights / algorithm._unit(setting)
    allowed = math.sqrt(3) * 1e-9 * 80 / 0.01 / algorithm._unit(setting) + 0.5 * math.sqrt(coarse.size)
    assert np.linalg.norm(coarse - exact) <= allowed


def test_the_result_is_the_weighted_mean_of_the_parties_minimisers() -> None:
    rows = blobs(90, 5, 3, 5)
    parties = [ArrayRows(rows.features[:20], rows.labels[:20]), ArrayRows(rows.features[20:], rows.labels[20:])]
    model = fitted(OutputPerturbation(budget=GaussianMu(1e5)), parties, 3)
    alone = [fitted(EmpiricalRisk(), [party], 3).weights for party in parties]
    np.testing.assert_allclose(model.weights, (20 * alone[0] + 70 * alone[1]) / 90, atol=0.02)


def test_the_order_of_parties_does_not_matter() -> None:
    parties = parties_of(blobs(60, 4, 3, 6), 3)
    algorithm = OutputPerturbation(budget=MU)
    np.testing.assert_array_equal(fitted(algorithm, parties, 3).weights, fitted(algorithm, parties[::-1], 3).weights)


def test_released_noise_has_the_stated_deviation() -> None:
    """40 releases of 150 weights: the sample deviation is within 6 % of the stated one but for 1e-9."""
    rows = ArrayRows(np.zeros((10, 50)), np.zeros(10, dtype=np.int64))
    algorithm = OutputPerturbation(budget=MU, regularisation=1.0)
    found = np.concatenate([fitted(algorithm, [rows], 3, seed).weights.ravel() for seed in range(40)])
    expected = 2 * math.sqrt(3) / 1.0 / MU.mu / 10
    assert abs(found.std() / expected - 1) < 0.06
    assert abs(found.std() / 2 / expected - 1) > 0.06


def test_guarantee_and_validation() -> None:
    rows = blobs(10, 4, 2, 7)
    guarantee = OutputPerturbation(budget=MU).guarantee(setting_of([rows], 2))
    assert guarantee.losses == (MU,)
    assert guarantee.numerics is Numerics.EXACT
    assert guarantee.assumptions
    for make in (
        lambda: OutputPerturbation(budget=PureEpsilon(1.0)),
        lambda: OutputPerturbation(budget=MU, regularisation=0.0),
        lambda: OutputPerturbation(budget=MU, loss="hinge"),
        lambda: OutputPerturbation(budget=MU).guarantee(
            dataclasses.replace(setting_of([rows], 2), neighbours=Neighbours.ADD_REMOVE_ONE)
        ),
    ):
        with pytest.raises(ParameterError):
            make()


def shrunken(noisy: Array, sigma: float) -> Array:
    """Return the model of a sum whose noise has this deviation a weight, (K, p)."""
    classes, dimension = noisy.shape
    setting = Setting(sizes=(1000,), dimension=dimension, classes=classes)
    algorithm = OutputPerturbation(budget=MU, regularisation=1.0)
    unit = algorithm.distribution(setting).sigma / sigma
    model = algorithm.result(np.rint(noisy * unit).astype(np.int64), setting)
    return np.asarray(model.weights * 1000 / algorithm._unit(setting) / unit)


def test_shrinkage_loses_less_than_the_noise_and_is_the_textbooks() -> None:
    """4,000 features, ten classes, differences as large as the noise: the loss is known within 5 %."""
    random = np.random.default_rng(8)
    sigma = 2.0
    truth = 5.0 + sigma * random.normal(size=(10, 4000))
    noisy = truth + sigma * random.normal(size=truth.shape)
    found = shrunken(noisy, sigma)
    centred = noisy - noisy.mean(axis=0)
    kept = np.maximum(0.0, 1.0 - 7.0 * sigma**2 / (centred**2).sum(axis=0))
    np.testing.assert_allclose(found, noisy.mean(axis=0) + kept * centred, atol=1e-3)
    # A normal prior of the noise's variance: Bayes halves the loss of the nine differences, James and Stein add 2/9.
    risk = ((found - truth) ** 2).sum() / 4000 / sigma**2
    assert abs(risk - (1.0 + 9.0 * (0.5 + 0.5 * 2.0 / 9.0))) < 0.3
    assert risk < 7.5 < 10.0


@pytest.mark.parametrize("classes", [2, 3])
def test_fewer_than_four_classes_are_not_shrunken(classes: int) -> None:
    noisy = np.random.default_rng(9).normal(size=(1 if classes == 2 else classes, 6))
    algorithm = OutputPerturbation(budget=MU, regularisation=1.0)
    setting = Setting(sizes=(1000,), dimension=6, classes=classes)
    whole = np.rint(noisy * 1e6).astype(np.int64)
    expected = whole * algorithm._unit(setting) / 1000
    np.testing.assert_allclose(algorithm.result(whole, setting).weights, expected, rtol=1e-12)


def test_what_all_classes_share_is_left_alone_and_clear_differences_stay() -> None:
    random = np.random.default_rng(10)
    clear = 1e4 * random.normal(size=(10, 20))
    np.testing.assert_allclose(shrunken(clear, 1.0), clear, rtol=1e-3, atol=1.0)
    same = np.tile(random.normal(size=20), (10, 1)) * 50
    np.testing.assert_allclose(shrunken(same, 1.0), same, atol=1e-2)
