"""Held-out rows of an estimator: probabilities, thresholds and margins, by one plan and charged once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import RocCurveDisplay
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

import unitball
from dpalgos.parameters import ParameterError
from storage.people import People
from tasks.preparation.partitions import _places
from tests.support.nights import by_night
from unitball import BudgetError, PrivateClassifier, PrivateRegressor
from unitball.fits import Encoded, Grouped, Target
from unitball.screen import warn_of_fits, warn_of_scores

BOUNDS = (-4.0, 4.0)


@pytest.fixture(autouse=True)
def fresh_books(root: Path) -> None:
    warn_of_scores.cache_clear()
    warn_of_fits.cache_clear()


def drawn(count: int, seed: int) -> tuple[Any, Any]:
    """Two classes that overlap, one of them in three rows of ten."""
    random = np.random.default_rng(seed)
    ill = random.random(count) < 0.3
    return random.normal(size=(count, 3)) + np.where(ill, 0.8, -0.5)[:, None], np.where(ill, "sick", "healthy")


def private(account: str = "clinic", **given: Any) -> PrivateClassifier:
    fields = {"epsilon": 2.0, "delta": 1e-5, "test_fraction": 0.4, **given}
    return PrivateClassifier(account=account, bounds=BOUNDS, classes=["healthy", "sick"], **fields)


def public(**given: Any) -> PrivateClassifier:
    # Whatever code draws it, noise this small moves nothing that is asserted here.
    fields = {"epsilon": 300.0, "delta": 1e-5, "test_fraction": 0.4, "random_state": 0, **given}
    return PrivateClassifier(public=True, bounds=BOUNDS, classes=["healthy", "sick"], **fields)


def held_out(count: int, fraction: float) -> Any:
    """Return which rows are held out: by their places and the public seed of partitions."""
    return _places(0, "", count) < fraction


HELD = held_out(3000, 0.4)


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any]:
    return drawn(3000, 1)


@pytest.fixture(scope="module")
def plain(rows: tuple[Any, Any]) -> PrivateClassifier:
    """A fit of public rows, which no root keeps and no test changes."""
    return public().fit(*rows)


def test_probabilities_are_calibrated(rows: tuple[Any, Any]) -> None:
    """Of fresh rows as many are sick as is said, in each fifth; the logistic function of the scores is far off."""
    model = public(algorithm="class-means").fit(*rows)
    fresh, labels = drawn(20_000, 2)
    said = model.predict_proba(fresh)
    assert said.shape == (20_000, 2)
    np.testing.assert_allclose(said.sum(axis=1), 1.0)
    order = np.argsort(said[:, 1])
    raw = 1.0 / (1.0 + np.exp(-model.decision_function(fresh)))

    def error(of: Any) -> float:
        return max(float(abs(of[one].mean() - (labels[one] == "sick").mean())) for one in np.array_split(order, 5))

    assert error(said[:, 1]) < 0.1 < 0.2 < error(raw)
    assert model.predict_proba(fresh[:0]).shape == (0, 2)
    exact = model.score(rows[0][HELD], rows[1][HELD])
    assert model.measured_["accuracy"] == pytest.approx(exact, abs=5e-3)
    assert model.measured_["accuracy_low"] < exact < model.measured_["accuracy_high"]
    assert model.measured_["held_out_rows"] == HELD.sum()


def test_a_threshold_is_chosen_by_an_aim_and_its_margin_includes_the_choice(
    rows: tuple[Any, Any], plain: PrivateClassifier
) -> None:
    aimed = public(aim="balanced").fit(*rows)
    np.testing.assert_array_equal(plain.predict_proba(rows[0]), aimed.predict_proba(rows[0]))
    chosen = aimed.thresholds_.iloc[int(np.abs(aimed.thresholds_["score"]).argmin())]
    assert chosen["score"] == 0.0
    for name in ("recall", "precision", "f1", "balanced_accuracy"):
        assert [chosen[f"{name}{end}"] for end in ("", "_low", "_high")] == [
            aimed.measured_[f"aim_{name}{end}"] for end in ("", "_low", "_high")
        ]
    fresh, labels = drawn(20_000, 3)
    found = aimed.predict(fresh)
    assert np.array_equal(found == "sick", aimed.decision_function(fresh) > 0)
    recall = (found == "sick")[labels == "sick"].mean()
    exact = (aimed.predict(rows[0])[HELD & (rows[1] == "sick")] == "sick").mean()
    assert aimed.measured_["aim_recall"] == pytest.approx(exact, abs=5e-3)
    assert recall > (plain.predict(fresh) == "sick")[labels == "sick"].mean() + 0.05
    # All thresholds at once: wider than the margin of the one that nobody has chosen.
    middle = plain.thresholds_.iloc[int(np.abs(plain.thresholds_["score"]).argmin())]
    assert middle["score"] == 0.0
    alone = plain.measured_["recall_sick_high"] - plain.measured_["recall_sick_low"]
    assert middle["recall_high"] - middle["recall_low"] > 1.1 * alone


def test_what_is_held_out_is_released_in_the_same_plan(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=1.0, delta=1e-5)
    model = private(epsilon=1.0).fit(*rows)
    assert model.guarantee_.proved is not None
    assert 0.99 < model.guarantee_.proved.epsilon <= 1.0
    held_out = [one for one in model.charges_["release"] if "held-out" in one]
    assert held_out == ["confusion-matrix of held-out rows", "score-distribution of held-out rows"]
    spent = model.remaining_budget()
    # Another aim, a clone and a fixed threshold are the same release; the account admits one fit.
    aimed = private(epsilon=1.0, aim="cost=1:5").fit(*rows)
    fixed = FixedThresholdClassifier(model, threshold=0.0, response_method="predict_proba", pos_label="sick")
    predicted = fixed.fit(*rows).predict(rows[0])
    assert predicted.shape == (3000,)
    assert set(predicted.tolist()) == {"sick"}
    np.testing.assert_array_equal(clone(model).fit(*rows).predict_proba(rows[0]), aimed.predict_proba(rows[0]))
    assert model.remaining_budget() == spent
    with pytest.raises(BudgetError, match="above the cap"):
        private(epsilon=1.0, test_fraction=0.0).fit(*rows)


def test_held_out_rows_move_no_weight_and_training_rows_no_count(
    rows: tuple[Any, Any], plain: PrivateClassifier
) -> None:
    """The parts are disjoint: with all labels of one part turned, the other part's releases stay as they were."""
    features, labels = rows
    turned = np.where(labels == "sick", "healthy", "sick")
    other = public().fit(features, np.where(HELD, turned, labels))
    np.testing.assert_array_equal(other.decision_function(features), plain.decision_function(features))
    assert other.measured_["accuracy"] < 0.5 < plain.measured_["accuracy"]
    trained = public().fit(features, np.where(HELD, labels, turned))
    assert not np.array_equal(trained.decision_function(features), plain.decision_function(features))


def test_people_are_held_out_whole(rows: tuple[Any, Any]) -> None:
    features, labels = rows
    whose = np.random.default_rng(4).integers(0, 700, len(labels))
    grouped = Grouped(people=People("groups", 8), names=whose.astype(str))
    encoded = Encoded(
        features=features, target=Target(np.arange(len(labels))), grouped=grouped, columns=(), normalisation="none"
    )
    people = np.arange(grouped.records)
    parts = encoded.divided({"0": people[people % 3 > 0], "test": people[people % 3 == 0]})
    of = {name: set(whose[np.asarray(part.labels)].tolist()) for name, part in parts.items()}
    assert not of["0"] & of["test"]
    assert {name: len(found) for name, found in of.items()} == {name: part.people for name, part in parts.items()}

    unitball.open_account("clinic", epsilon=3.0, delta=1e-5, people=True)
    model = private(rows_per_person=8).fit(features, labels, groups=whose)
    assert model.guarantee_.proved.person == "groups"  # type: ignore[union-attr]  # proved
    assert model.measured_["held_out_rows"] == pytest.approx(0.4 * grouped.records, rel=0.2)
    assert model.predict_proba(features).shape == (3000, 2)
    kept = public(rows_per_person=8).fit(features, labels, groups=whose)
    assert kept.measured_["held_out_rows"] == model.measured_["held_out_rows"]


def test_many_classes_have_probabilities_and_no_threshold() -> None:
    features, labels = load_digits(return_X_y=True)
    given: dict[str, Any] = {"epsilon": 300.0, "delta": 1e-5, "public": True, "random_state": 0, "test_fraction": 0.3}
    model = PrivateClassifier(**given).fit(features, labels)
    said = model.predict_proba(features)
    assert said.shape == (1797, 10)
    np.testing.assert_allclose(said.sum(axis=1), 1.0)
    assert (model.classes_[said.argmax(axis=1)] == labels).mean() > 0.9
    # A tenth each is 2.3.
    assert -np.log(said[np.arange(1797), labels]).mean() < 0.6
    assert model.thresholds_ is None
    with pytest.raises(ParameterError, match=r"^aim is balanced.*10"):
        PrivateClassifier(**given, aim="balanced").fit(features, labels)


def test_a_regressors_errors_are_measured() -> None:
    random = np.random.default_rng(2)
    features = random.uniform(-1, 1, (3000, 2))
    targets = 3.0 * features[:, 0] + 1.0
    model = PrivateRegressor(300.0, 1e-6, public=True, label_range=(-2, 4), random_state=0, test_fraction=0.3)
    model.fit(features, targets)
    held = held_out(3000, 0.3)
    exact = float(np.abs(model.predict(features) - targets)[held].mean())
    assert model.measured_["mae"] == pytest.approx(exact, abs=5e-3)
    assert model.measured_["mae_low"] < exact < model.measured_["mae_high"]
    assert "r2" in model.measured_
    assert not hasattr(model, "predict_proba")


def test_searches_take_probabilities(rows: tuple[Any, Any]) -> None:
    scoring = ["neg_log_loss", "roc_auc"]
    given: dict[str, Any] = {"scoring": scoring, "refit": "neg_log_loss", "cv": 2, "error_score": "raise"}
    search = GridSearchCV(public(), {"test_fraction": [0.3]}, **given).fit(*rows)
    for name, least in (("neg_log_loss", -0.69), ("roc_auc", 0.7)):
        assert min(search.cv_results_[f"split{fold}_test_{name}"][0] for fold in range(2)) > least
    assert search.predict_proba(rows[0]).shape == (3000, 2)
    # One column of probabilities, of the class that is asked about.
    display = RocCurveDisplay.from_estimator(search, *rows, response_method="predict_proba", pos_label="sick")
    assert display.roc_auc > 0.7


def test_it_is_kept_with_its_probabilities(rows: tuple[Any, Any]) -> None:
    model = public(aim="f1").fit(*rows)
    stored = skops.io.dumps(model)
    for again in (
        pickle.loads(pickle.dumps(model)),  # noqa: S301 - our own
        skops.io.loads(stored, trusted=skops.io.get_untrusted_types(data=stored)),
    ):
        np.testing.assert_array_equal(again.predict_proba(rows[0]), model.predict_proba(rows[0]))
        np.testing.assert_array_equal(again.predict(rows[0]), model.predict(rows[0]))
        pd.testing.assert_frame_equal(again.thresholds_, model.thresholds_)
    fresh = clone(model)
    assert not hasattr(fresh, "calibration_")
    np.testing.assert_array_equal(fresh.fit(*rows).predict_proba(rows[0]), model.predict_proba(rows[0]))


def test_a_root_keeps_what_measures_it(rows: tuple[Any, Any], tmp_path: Path) -> None:
    folder = tmp_path / "root"
    unitball.open_account("clinic", epsilon=3.0, delta=1e-5, root=folder)
    first = private(root=folder).fit(*rows)
    again = private(root=folder).fit(*rows)
    np.testing.assert_array_equal(again.predict_proba(rows[0]), first.predict_proba(rows[0]))
    assert again.measured_ == first.measured_


def test_without_held_out_rows_there_are_no_probabilities(rows: tuple[Any, Any]) -> None:
    model = public(test_fraction=0.0).fit(*rows)
    assert not hasattr(model, "predict_proba")
    assert model.measured_ == {}
    with pytest.raises(AttributeError, match=r"test_fraction=0.2.*decision_function"):
        model.predict_proba(rows[0])
    # What was fitted says it, and not what would be asked for next.
    with pytest.raises(AttributeError, match="test_fraction"):
        model.set_params(test_fraction=0.3).predict_proba(rows[0])
    pure = public(delta=0.0).fit(*rows)
    assert pure.guarantee_.proved.delta == 0  # type: ignore[union-attr]  # proved
    assert pure.measured_["held_out_rows"] == HELD.sum()
    with pytest.raises(AttributeError, match=r"delta.*0"):
        pure.predict_proba(rows[0])
    assert hasattr(public(), "predict_proba")
    assert not hasattr(public(), "partial_fit")


def test_what_cannot_be_held_out_is_named(rows: tuple[Any, Any]) -> None:
    for bad in (-0.1, 1.0, "0.2", None, float("nan"), True):
        with pytest.raises(ParameterError, match=r"test_fraction.*0.*1"):
            public(test_fraction=bad).fit(*rows)
    with pytest.raises(ParameterError, match=r"aim.*'balanced'.*test_fraction.*0"):
        public(test_fraction=0.0, aim="balanced").fit(*rows)
    with pytest.raises(ParameterError, match="aim"):
        public(aim="best").fit(*rows)
    with pytest.raises((ParameterError, unitball.BudgetError, ValueError), match="0 of 4 rows"):
        public(test_fraction=0.001).fit(rows[0][:4], ["healthy", "sick"] * 2)
    with pytest.raises(TypeError, match="sample_weight"):
        public().fit(*rows, sample_weight=np.ones(3000))  # type: ignore[call-arg]  # on purpose


def test_missing_cells_name_the_schema_and_no_imputer(rows: tuple[Any, Any]) -> None:
    features = rows[0].copy()
    with_gap = np.where(np.arange(features.size).reshape(features.shape) == 4, np.nan, features)
    for model in (private(), public()):
        with pytest.raises(ParameterError, match=r"NaN:.*schema=FILE") as refused:
            model.fit(with_gap, rows[1])
        assert "HistGradientBoosting" not in str(refused.value)
    with pytest.raises(ParameterError, match="schema=FILE"):
        public().fit(*rows).predict_proba(with_gap)


def test_another_order_of_the_classes_is_told_to_whoever_scores(rows: tuple[Any, Any]) -> None:
    """Scikit-learn's scorers by name take the last class in sorted order for the positive one, whatever we declare."""
    turned = public().set_params(classes=["sick", "healthy"])
    with pytest.warns(UserWarning, match=r"'sick', 'healthy'.*sorted.*pos_label"):
        assert cross_val_score(turned, *rows, cv=2, scoring="roc_auc").max() < 0.5


# By the contract the most probable class is the predicted one; ours is predicted by the scores, as it is measured.
EXPECTED = {"check_classifiers_train", "check_classifiers_classes"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "estimator",
    [PrivateClassifier(public=True, test_fraction=0.3), PrivateRegressor(public=True, test_fraction=0.3)],
    ids=type,
)
def test_scikit_learns_checks_with_held_out_rows(estimator: Any) -> None:
    passed = 0
    for checked, check in estimator_checks_generator(estimator):
        try:
            check(checked)
            passed += 1
        except SkipTest:
            pass
        except AssertionError:
            assert check.func.__name__ in EXPECTED
    assert passed > 35


@pytest.mark.parametrize("delta", by_night([0.0, 1e-6, 9e-5, 1e-4], {9e-5, 1e-4}))
def test_what_remains_is_admitted_at_the_estimators_own_delta(delta: float) -> None:
    """It was told at the delta of the account's runs, under which a larger epsilon fits than under a larger delta."""
    unitball.open_account("clinic", epsilon=2.0, delta=1e-4, allow_idealised=True)
    rows, labels = drawn(300, 1)
    left = private(delta=delta).remaining_budget()
    assert left is not None
    with pytest.raises(BudgetError, match="above the cap"):
        private(delta=delta, epsilon=1.01 * left, test_fraction=0.0).fit(rows, labels)
    fitted = private(delta=delta, epsilon=left, test_fraction=0.0).fit(rows, labels)
    assert (fitted.remaining_budget() or 0.0) < left


def test_the_positive_class_may_be_the_first(rows: tuple[Any, Any], plain: PrivateClassifier) -> None:
    """Scores, sets and metrics are turned around, and nothing else: it is the same release."""
    turned = public(positive="healthy").fit(*rows)
    assert turned.classes_.tolist() == ["sick", "healthy"]
    fresh, labels = drawn(2000, 4)
    np.testing.assert_allclose(turned.decision_function(fresh), -plain.decision_function(fresh), atol=1e-12)
    np.testing.assert_array_equal(turned.predict(fresh), plain.predict(fresh))
    # The curve is fitted to the same bins from the other side.
    np.testing.assert_allclose(turned.predict_proba(fresh), plain.predict_proba(fresh)[:, ::-1], atol=2e-3)
    np.testing.assert_array_equal(turned.predict_set(fresh), plain.predict_set(fresh)[:, ::-1])
    exact = (labels == "healthy")[turned.predict(fresh) == "healthy"].mean()
    assert turned.measured_["precision_low"] < exact < turned.measured_["precision_high"]
    assert turned.measured_["precision"] > plain.measured_["precision_high"]
    assert turned.measured_["recall_sick"] == plain.measured_["recall_sick"]
    aimed = public(positive="healthy", aim="recall=0.8").fit(*rows)
    assert (aimed.predict(fresh)[labels == "healthy"] == "healthy").mean() == pytest.approx(0.8, abs=0.06)
    with pytest.raises(ParameterError, match="'ill'"):
        public(positive="ill").fit(*rows)
    unitball.open_account("clinic", epsilon=3.0, delta=1e-5)
    some = rows[0][:300], rows[1][:300]
    charged = private().fit(*some).remaining_budget()
    assert private(positive="healthy").fit(*some).remaining_budget() == charged


def test_a_schema_names_the_positive_class() -> None:
    frame = pd.DataFrame({"age": np.linspace(20, 80, 300)})
    labels = np.where(frame["age"] > 60, "sick", "healthy")
    columns: list[dict[str, Any]] = [{"name": "age", "type": "numeric", "range": [18, 100]}]
    label = {"name": "state", "type": "label", "classes": ["sick", "healthy"]}
    for more, last in (({}, "healthy"), ({"positive": "sick"}, "sick")):
        schema = {"format_version": 1, "columns": [*columns, label | more]}
        model = PrivateClassifier(epsilon=300.0, public=True, schema=schema, random_state=0).fit(frame, labels)
        assert model.classes_[-1] == last
        assert (model.predict(frame) == labels).mean() > 0.8
