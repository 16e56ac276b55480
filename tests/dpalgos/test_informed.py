"""What a map before a trainer says of numeric labels: their range, on which no guarantee and no noise depends."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from dpalgos.algorithms import Algorithm, Calibrated, fit, is_sum_algorithm, moved
from dpalgos.features.column_functions import column_functions
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import LinearModel, Projection
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names
from dpalgos.rows import ArrayRows
from tests.dpalgos.parameters import PARAMETERS
from tests.dpalgos.test_column_functions import COLUMNS, counts_of, rows_of

DECLARED = (0.0, 100.0)
LABELS = np.clip(np.random.default_rng(5).normal(30, 2, 3000), 0, 100)
SETTING = Setting(sizes=(3000,), dimension=3, classes=1, trust="central")


def trainers() -> list[tuple[str, dict[str, Any]]]:
    """Return every trainer of numeric labels, with test parameters that fit them."""
    found = []
    for name in names("trainers"):
        fields = {field.name for field in dataclasses.fields(lookup("trainers", name))}
        given = {**PARAMETERS["trainers", name][0], "label_range": DECLARED}
        if "label_range" in fields:
            found.append((name, {**given, "loss": "squared"} if "loss" in fields else given))
    return found


def setting_of(trainer: Algorithm) -> Setting:
    """Return a setting that a trainer takes, of numeric labels where it takes these."""
    setting = dataclasses.replace(SETTING, neighbours=trainer.relations[0], trust=trainer.trusts[0])
    try:
        trainer.check(setting)
    except ParameterError:
        setting = dataclasses.replace(setting, classes=2)
    return setting


@functools.cache
def said(classes: int = 1) -> Any:
    counts = counts_of(rows_of(3000), 3.0, 1024, labels=LABELS if classes == 1 else None)
    return column_functions(COLUMNS, "scores", counts)


@pytest.mark.parametrize(("name", "given"), trainers(), ids=[name for name, _ in trainers()])
def test_the_released_range_moves_no_guarantee_and_no_noise(name: str, given: dict[str, Any]) -> None:
    """Of every trainer with a declared range; the map is informed by the range that it says, and by that alone."""
    trainer: Any = lookup("trainers", name)(**given)
    informed = trainer.informed([said(), Projection(basis=np.eye(3))])
    low, high = said().label_range
    assert (informed.label_range[0], informed.label_range[1]) == (low, high)
    assert (low, high) != DECLARED
    assert dataclasses.replace(informed, label_range=DECLARED) == trainer
    setting = setting_of(trainer)
    assert informed.guarantee(setting) == trainer.guarantee(setting)
    if is_sum_algorithm(trainer):
        assert informed.distribution(setting) == trainer.distribution(setting)
        assert informed.steps(setting) == trainer.steps(setting)
    if isinstance(trainer, Calibrated):
        assert informed.sensitivity(setting) == trainer.sensitivity(setting)


@pytest.mark.parametrize("name", ["noisy-gd", "sufficient-statistics"])
def test_hostile_labels_move_an_informed_trainer_as_far_as_any(name: str) -> None:
    """Labels far outside the released range, of rows as long as they may be: the sensitivity is not exceeded."""
    given = {"loss": "squared", "clip": 0.25, "iterations": 1} if name == "noisy-gd" else {}
    trainer = lookup("trainers", name)(budget=GaussianMu(1.0), label_range=DECLARED, **given).informed([said()])
    pair = trainer.neighbouring_pair(SETTING)
    labels = [1e9, -1e9, 30.0, np.inf]
    for one in labels:
        for other in labels:
            pair.left.labels[0], pair.right.labels[0] = one, other
            assert moved(trainer, SETTING, pair) <= trainer.sensitivity(SETTING) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["noisy-gd", "sufficient-statistics"])
def test_predictions_come_out_in_the_labels_own_units(name: str) -> None:
    """Labels 20 to 40 of a declared 0 to 100: informed, the fit is closer at the same budget."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(3000, 3)) / 3
    labels = 30 + 4 * rows[:, 0]
    given: dict[str, Any] = (
        {"loss": "squared", "iterations": 80, "clip": 0.25, "mean_weight": 1.0} if name == "noisy-gd" else {}
    )
    given |= {"budget": GaussianMu(1.0), "label_range": DECLARED, "intercept_scaling": 0.25}
    trainer: Algorithm = lookup("trainers", name)(**given)
    errors = []
    for algorithm in (trainer, trainer.informed([said()])):
        noise = KeyedNoise(public_secret(0), name)
        model: Any = fit(algorithm, [ArrayRows(rows, labels)], SETTING, noise)
        assert isinstance(model, LinearModel)
        errors.append(float(np.sqrt(np.mean((model.scores(rows)[:, 0] - labels) ** 2))))
    assert errors[1] < 1.0
    assert errors[1] < errors[0]


def test_what_says_no_range_changes_nothing() -> None:
    trainer = lookup("trainers", "noisy-gd")(budget=GaussianMu(1.0), loss="squared", label_range=DECLARED)
    assert trainer.informed([]) == trainer
    assert trainer.informed([Projection(basis=np.eye(3)), said(classes=2)]) == trainer
    wrong = dataclasses.replace(said(), label_range=np.array([np.nan, 1.0]))
    assert trainer.informed([wrong]) == trainer
    basis = lookup("projections", "identity")()
    assert basis.informed([said()]) is basis
