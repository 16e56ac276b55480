"""Null records: counted in n, and nothing of them in any release, whatever maps rows and whatever they hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos import testing
from dpalgos.algorithms import is_sum_algorithm
from dpalgos.features.public_map import FourierFeatures
from dpalgos.guarantees import ApproximateDP, GaussianMu, Neighbours, PureEpsilon, Setting, Trust
from dpalgos.linear import LinearTask
from dpalgos.losses import HuberHinge, Squared
from dpalgos.normalisation import Clip, UnitNorm
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import NULL_LABEL, ArrayRows, null_records, sanitise
from dpalgos.testing import CLASSES, DIMENSION, blobs, with_null_records
from dpalgos.trainers.gradient_descent import DescentState
from tests.dpalgos.parameters import PARAMETERS
from tests.support.training import fit, noise

ROWS, NULLS = 30, 7
# Adds noise to each record, null or not, and proves nothing.
NOISE_A_RECORD = {"dpsvd"}


TABLE: list[tuple[str, str, dict[str, Any]]] = [
    (kind, name, given)
    for (kind, name), table in PARAMETERS.items()
    for given in table
    if lookup(kind, name).reads_rows and name not in NOISE_A_RECORD
]


def setting_for(kind: str, count: int, trust: Trust, relation: Neighbours = Neighbours.REPLACE_ONE) -> Setting:
    return Setting(
        sizes=(count,),
        dimension=CLASSES if kind == "evaluators" else DIMENSION,
        classes=CLASSES,
        trust=trust,
        neighbours=relation,
    )


def held_by_the_contract(kind: str, name: str, given: dict[str, Any]) -> bool:
    """Whether the contract's own test, by day of each name's first parameters, compares the same releases."""
    concerns = testing._CHECKS[testing._leaves_null_records_out]
    return given is PARAMETERS[kind, name][0] and concerns(testing._Case(kind, name, given))


@pytest.mark.parametrize(("kind", "name", "given"), [row for row in TABLE if not held_by_the_contract(*row)])
def test_what_a_null_record_holds_is_of_no_account(kind: str, name: str, given: dict[str, Any]) -> None:
    """Four ways to be null, one release, for what reads rows: what is not proved, and second parameters."""
    algorithm = AlgorithmSpec(kind, name, given).build()
    setting = setting_for(kind, ROWS + NULLS, algorithm.trusts[0], algorithm.relations[0])
    rows = with_null_records(blobs(ROWS, setting.dimension, CLASSES, 0))
    first, *others = (fit(algorithm, [each], setting, noise()).arrays() for each in rows.values())
    for other in others:
        for key, array in first.items():
            np.testing.assert_array_equal(array, other[key])


def states(algorithm: Any, setting: Setting) -> list[Any]:
    """The first state, and for gradient methods one with weights that are not zero."""
    first = algorithm.initial(setting)
    random = np.random.default_rng(1)
    if isinstance(first, DescentState):
        return [first, dataclasses.replace(first, weights=random.normal(size=first.weights.shape))]
    if isinstance(first, np.ndarray) and first.dtype == np.float64:
        return [first, random.normal(size=first.shape)]
    return [first]


MINIMISERS = {"output-perturbation", "output-perturbation-radial", "mpc-op", "pathak"}
# A null record is one of the rows that go to nights in turn, so that the others come in other nights.
DEALT_IN_TURN = {"continual-class-means", "continual-ftrl"}
SUMS = [row for row in TABLE if is_sum_algorithm(lookup(*row[:2])) and row[1] not in MINIMISERS | DEALT_IN_TURN]


@pytest.mark.parametrize(("kind", "name", "given"), SUMS)
def test_a_null_record_adds_zero_to_every_sum(kind: str, name: str, given: dict[str, Any]) -> None:
    algorithm = AlgorithmSpec(kind, name, given).build()
    setting = setting_for(kind, ROWS + NULLS, algorithm.trusts[0])
    rows = blobs(ROWS, setting.dimension, CLASSES, 0)
    scored = with_null_records(rows)["mapped"]
    for state in states(algorithm, setting):
        without, among = (algorithm.contribution(state, each, setting) for each in (rows, scored))
        np.testing.assert_array_equal(without, among)
        real = dataclasses.replace(scored, labels=np.maximum(scored.labels.astype(np.float64), 0.0))
        # The same records with a label do add something.
        assert not np.array_equal(without, algorithm.contribution(state, real, setting))


@pytest.mark.parametrize("loss", ["huber-hinge", "softmax", "squared"])
def test_a_null_record_leaves_the_gradient_of_a_risk_alone_and_n_counts_it(loss: str) -> None:
    """The minimiser over n records of which N are null is that of the others with λ n/(n − N), intercept and all."""
    rows = blobs(30, DIMENSION, CLASSES, 2)
    shared: dict[str, Any] = {"loss": loss, "intercept_scaling": 1.0, "tolerance": 1e-11}
    count = rows.count + NULLS
    with_null = AlgorithmSpec("trainers", "erm", {**shared, "regularisation": 0.01}).build()
    without = AlgorithmSpec("trainers", "erm", {**shared, "regularisation": 0.01 * count / rows.count}).build()
    first = fit(with_null, [with_null_records(rows)["mapped"]], setting_for("trainers", count, Trust.CENTRAL), noise())
    second = fit(without, [rows], setting_for("trainers", rows.count, Trust.CENTRAL), noise())
    np.testing.assert_allclose(first.weights, second.weights, atol=1e-7)
    np.testing.assert_allclose(first.intercept, second.intercept, atol=1e-7)


def test_the_machine_of_rows_with_null_records_is_that_of_the_rows() -> None:
    """½‖w‖² + C Σ hinge has no n: null records change nothing, the constant feature included."""
    rows = blobs(40, DIMENSION, 2, 3)
    machine = AlgorithmSpec(
        "trainers", "smo-output-perturbation", {"budget": GaussianMu(1e9), "tolerance": 1e-6, "intercept_scaling": 1.0}
    ).build()
    setting = Setting(sizes=(rows.count + NULLS,), dimension=DIMENSION, classes=2)
    first = fit(machine, [with_null_records(rows)["mapped"]], setting, noise())
    second = fit(machine, [rows], setting, noise())
    np.testing.assert_allclose(first.weights, second.weights, atol=1e-4)
    np.testing.assert_allclose(first.intercept, second.intercept, atol=1e-4)


def test_a_null_record_survives_maps_that_take_zero_elsewhere() -> None:
    """Scaling, clipping, and a feature map that gives the zero row norm 1: the label decides at the end."""
    mapped = FourierFeatures(frequencies=np.ones((2, 3))).transform(UnitNorm()(Clip()(np.zeros((1, 2)))))
    assert np.linalg.norm(mapped) == pytest.approx(1.0)
    clean, labels = sanitise(mapped, np.array([NULL_LABEL]), 2)
    assert not clean.any()
    assert labels.tolist() == [NULL_LABEL]
    setting = Setting(sizes=(1,), dimension=6, classes=2)
    rows, targets = LinearTask(loss=HuberHinge(), intercept_scaling=1.0).block(mapped, np.array([NULL_LABEL]), setting)
    assert not rows.any()
    assert not targets.any()


def test_real_labels_have_a_null_record_too() -> None:
    setting = Setting(sizes=(3,), dimension=1, classes=1)
    task = LinearTask(loss=Squared(), intercept_scaling=1.0, label_range=(10.0, 20.0))
    rows, targets = task.block(np.ones((3, 1)), np.array([np.nan, 20.0, -1.0]), setting)
    np.testing.assert_allclose(rows, [[0.0, 0.0], [0.5**0.5] * 2, [0.5**0.5] * 2])
    np.testing.assert_allclose(targets[:, 0], [0.0, 1.0, -1.0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_which_records_are_null(dtype: type) -> None:
    labels: NDArray[Any] = np.array([0, 1, 2, -1, 3, 100]).astype(dtype)
    features = np.zeros((6, 2))
    assert null_records(features, labels, 3).tolist() == [False, False, False, True, True, True]
    assert null_records(features, labels, 1).tolist() == [False] * 6
    features[1, 1] = np.inf
    assert null_records(features, labels, 1).tolist() == [False, True, False, False, False, False]
    assert null_records(np.zeros((0, 2)), labels[:0], 3).tolist() == []


@pytest.mark.parametrize(
    ("name", "budget"),
    [("objective-perturbation", PureEpsilon(1.0)), ("approximate-minima-perturbation", ApproximateDP(1.0, 1e-5))],
)
def test_a_party_of_null_records_only_is_a_party(name: str, budget: Any) -> None:
    setting = Setting(sizes=(5,), dimension=2, classes=2)
    rows = ArrayRows(np.ones((5, 2)), np.full(5, NULL_LABEL))
    assert np.isfinite(
        fit(AlgorithmSpec("trainers", name, {"budget": budget}).build(), [rows], setting, noise()).weights
    ).all()
