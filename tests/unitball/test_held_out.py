"""Estimators: intervals of numbers and sets of classes from what was released of held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpalgos.conformal import UnreachableError
from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from tests.unitball.test_probabilities import drawn, public
from unitball import PrivateRegressor


def numbers(count: int, seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, 3))
    return rows, rows @ [3.0, -2.0, 1.0] + random.normal(size=count)


def regressor(**given: Any) -> PrivateRegressor:
    fields = {"epsilon": 50.0, "delta": 1e-6, "test_fraction": 0.4, "public": True, "random_state": 0, **given}
    return PrivateRegressor(bounds=(-4.0, 4.0), label_range=(-20.0, 20.0), **fields)


def test_a_classifier_gives_sets_that_hold_each_class_as_often() -> None:
    """Fresh rows of each class; less six deviations of 5,000 rows. One seed, in which the scan stops where it may."""
    model = public(algorithm="class-means").fit(*drawn(3000, 1))
    fresh, labels = drawn(20_000, 2)
    sets = model.predict_set(fresh, 0.9)
    assert sets.shape == (20_000, 2)
    for place, name in enumerate(model.classes_):
        assert sets[labels == name, place].mean() >= 0.9 - 6.0 * (0.09 / 5_000) ** 0.5
    assert 0.0 < sets.all(axis=1).mean() < 1.0


def test_a_threshold_for_an_aim_moves_no_set() -> None:
    rows, fresh = drawn(3000, 1), drawn(500, 2)[0]
    plain, aimed = (public(algorithm="class-means", aim=aim).fit(*rows) for aim in (None, "recall=0.9"))
    assert (plain.predict_set(fresh) == aimed.predict_set(fresh)).all()
    assert (plain.predict(fresh) != aimed.predict(fresh)).any()


def test_several_classes_have_sets() -> None:
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 6_000)
    rows = random.normal(size=(6_000, 3)) + 1.5 * np.eye(3)[labels]
    model = public(algorithm="class-means").set_params(classes=[0, 1, 2]).fit(rows[:3_000], labels[:3_000])
    sets = model.predict_set(rows[3_000:], 0.8)
    own = sets[np.arange(3_000), labels[3_000:]]
    for name in range(3):
        assert own[labels[3_000:] == name].mean() >= 0.8 - 6.0 * (0.16 / 900) ** 0.5
    assert sets.sum(axis=1).mean() < 3.0


def test_without_held_out_rows_there_are_no_sets() -> None:
    model = public(algorithm="class-means", test_fraction=0.0).fit(*drawn(300, 1))
    with pytest.raises(ParameterError, match="test_fraction"):
        model.predict_set(drawn(3, 2)[0])
    with pytest.raises(ParameterError, match="test_fraction"):
        regressor(test_fraction=0.0).fit(*numbers(300, 1)).predict_interval(numbers(3, 2)[0])


def test_a_coverage_that_the_noise_does_not_admit_is_refused() -> None:
    model = public(algorithm="class-means", epsilon=0.01).fit(*drawn(3000, 1))
    with pytest.raises(UnreachableError, match="ε = "):
        model.predict_set(drawn(3, 2)[0])


def test_a_prediction_lies_in_the_declared_range() -> None:
    model = regressor(test_fraction=0.0).fit(*numbers(3000, 1))
    far = np.array([[4.0, -4.0, 4.0], [-4.0, 4.0, -4.0]])
    # A model so steep comes of noise alone; it is put there.
    model._model = LinearModel(1e6 * model._model.weights, model._model.intercept)
    assert model.predict(far).tolist() == [20.0, -20.0]
    assert model.score(far, [20.0, -20.0]) == 1.0


def test_a_regressor_gives_intervals() -> None:
    model = regressor().fit(*numbers(6000, 1))
    fresh, targets = numbers(20_000, 2)
    ends = model.predict_interval(fresh, 0.9)
    assert ends.shape == (20_000, 2)
    inside = (ends[:, 0] <= targets) & (targets <= ends[:, 1])
    assert 0.9 - 6.0 * (0.09 / 20_000) ** 0.5 <= inside.mean() <= 0.97
    assert ends.min() >= -20.0
    assert ends.max() <= 20.0
