"""The estimators: scikit-learn's own checks, and one budget for all who fit."""

from __future__ import annotations

import pickle
import warnings
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
import sklearn
import yaml
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

import unitball
from dpalgos.accounting.profiles import gaussian_epsilon
from dpalgos.parameters import ParameterError
from storage.errors import InputError
from storage.refs import OnViolation
from storage.source import ReadOptions, read_source
from tasks.datasets.registration import find_dataset
from tasks.runtime.settings import current_root
from tests.support.nights import spanning
from unitball import BudgetError, PrivateClassifier, PrivateRegressor
from unitball.bounds import Bounds
from unitball.screen import warn_of_fits, warn_of_scores

# No check is expected to fail; these skip themselves, and why.
SKIPPED = {
    "check_pipeline_consistency": "noise is not deterministic, as the estimators' tags say",
    "check_array_api_input": "needs SCIPY_ARRAY_API in the environment",
}
BOUNDS = (-3.0, 3.0)


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    labels = np.arange(240) % 2
    return random.normal(size=(240, 3)) + 1.5 * (2 * labels[:, None] - 1), np.where(labels, "ill", "well")


@pytest.fixture(autouse=True)
def fresh_books(root: Path) -> None:
    warn_of_scores.cache_clear()
    warn_of_fits.cache_clear()


def private(account: str | None = "clinic", **given: Any) -> PrivateClassifier:
    given = {"epsilon": 1.0, "bounds": BOUNDS, **given}
    return PrivateClassifier(account=account, classes=["well", "ill"], **given)


@pytest.mark.parametrize(
    "estimator",
    [PrivateClassifier(public=True), pytest.param(PrivateRegressor(public=True), marks=pytest.mark.nightly)],
    ids=type,
)
def test_scikit_learns_checks(estimator: Any) -> None:
    passed, skipped = set(), set()
    for checked, check in estimator_checks_generator(estimator):
        try:
            check(checked)
            passed.add(check.func.__name__)
        except SkipTest:
            skipped.add(check.func.__name__)
    assert skipped == set(SKIPPED)
    assert len(passed) > 35


def test_public_rows_are_fitted_in_memory(rows: tuple[Any, Any], root: Path) -> None:
    model = PrivateClassifier(public=True, random_state=1).fit(*rows)
    assert model.score(*rows) > 0.9
    assert list(model.classes_) == ["ill", "well"]
    # Rows are scaled to norm 1 before an intercept of the model's own is added: without one, signs agree on all rows.
    assert model.coef_.shape == (1, rows[0].shape[1])
    plain = PrivateClassifier(algorithm="noisy-gd", public=True, random_state=1).fit(*rows)
    assert np.array_equal(
        np.sign(plain.decision_function(rows[0])), np.sign(rows[0] @ plain.coef_[0] + plain.intercept_[0])
    )
    again = clone(model).fit(*rows)
    assert np.array_equal(again.coef_, model.coef_)
    assert not np.array_equal(clone(model).set_params(random_state=2).fit(*rows).coef_, model.coef_)
    assert not root.exists()


def test_private_rows_go_through_the_door(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=1.0, delta=1e-6)
    model = private().fit(*rows)
    assert model.score(*rows) > 0.8
    assert model.guarantee_.proved is not None
    assert 0.99 < model.guarantee_.proved.epsilon <= 1.0
    assert "folds" in str(model.guarantee_)
    # The mean that rows are centred by, and the model.
    assert list(model.charges_["account"]) == ["clinic", "clinic"]
    # Equal rows and parameters are the same release, with or without its price; a fresh one is a charge on top.
    for epsilon in (1.0, None):
        assert np.array_equal(clone(model).set_params(epsilon=epsilon).fit(*rows).coef_, model.coef_)
    with pytest.raises(BudgetError, match="above the cap"):
        clone(model).set_params(repetition=1).fit(*rows)
    with pytest.raises(BudgetError, match=r"^random_state"):
        clone(model).set_params(random_state=1).fit(*rows)


def test_clones_pickles_and_pipelines_spend_from_one_account(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=1.6, delta=1e-6)
    private().fit(*rows)
    make_pipeline(FunctionTransformer(), pickle.loads(pickle.dumps(private(repetition=1)))).fit(*rows)  # noqa: S301 - our own
    with pytest.raises(BudgetError):
        clone(private(repetition=2)).fit(*rows)


def test_a_search_charges_each_fit_and_ends_with_the_reason(rows: tuple[Any, Any]) -> None:
    """Every Exception would become a missing score, and the search would go on."""
    unitball.open_account("clinic", epsilon=1.6, delta=1e-6)
    search = GridSearchCV(private(), {"parameters": [{"iterations": 5}, {"iterations": 10}]}, cv=2)
    with pytest.raises(BudgetError, match="above the cap"):
        search.fit(*rows)


def test_a_search_within_its_budget(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=20.0, delta=1e-6)
    search = GridSearchCV(private(), {"parameters": [{"iterations": 5}]}, cv=2)
    assert search.fit(*rows).best_score_ > 0.6


def test_an_account_is_asked_for_by_its_name(rows: tuple[Any, Any], root: Path) -> None:
    unitball.open_account("clinic", epsilon=3.0, delta=1e-6, group_size=2)
    # In the unit of the option, which is a row's, where a person may have two.
    opened, first = unitball.budget("clinic").left_epsilon, unitball.budget("clinic").left
    assert opened is not None
    assert first is not None
    # At the delta of the account's runs; an estimator says it at its own.
    assert opened == private(delta=first.delta).remaining_budget()
    assert 1.4 < opened < 1.5
    model = private(epsilon=0.3, delta=1e-7).fit(*rows)
    report = unitball.budget("clinic")
    assert report.group_size == 2
    assert private(delta=first.delta).remaining_budget() == report.left_epsilon
    left = report.left_epsilon
    assert left is not None
    assert (model.remaining_budget() or 0.0) > left, "at a smaller delta the same noise is a larger epsilon"
    assert 1.0 < left < opened
    assert report.epsilon_spent is not None
    assert report.epsilon_spent > 0.3, "a person has two rows"
    (charge,) = report.charges
    assert charge.mu is not None
    # Of a person with two rows, whose mu is twice a row's.
    assert charge.epsilon == pytest.approx(gaussian_epsilon(charge.mu, 1e-7), rel=1e-6)
    assert charge.epsilon is not None
    assert charge.epsilon > 0.6
    assert (charge.delta, charge.name) == (1e-7, "basis of all parties, model of all parties")
    assert abs((datetime.now(UTC) - charge.date).total_seconds()) < 3600
    assert list(report.to_frame().columns) == ["date", "name", "epsilon", "delta", "mu", "run"]
    for shown in (report._repr_html_(), repr(report)):
        assert "remaining: one more run" in shown
    assert len(repr(report).splitlines()) == 2 + len(report.charges), "a line, headings, and a line a charge"
    assert PrivateClassifier(public=True).remaining_budget() is None
    with pytest.raises(InputError, match="'nobody'"):
        unitball.budget("nobody")


def test_refusals_are_in_pythons_words(rows: tuple[Any, Any]) -> None:
    for account in ("clinic", "another"):
        unitball.open_account(account, epsilon=3.0, delta=1e-6)
    private(epsilon=0.3).fit(*rows)
    with pytest.raises(BudgetError, match=r"account='clinic'.*disjoint_people=.reason") as refused:
        private("another", epsilon=0.3).fit(*rows)
    assert "--" not in str(refused.value)
    private("another", epsilon=0.3, disjoint_people="another town").fit(*rows)
    assert unitball.budget("another").disjoint[0]["reason"] == "another town"
    with pytest.raises(ParameterError, match=r"epsilon.*-1.*0"):
        private(epsilon=-1).fit(*rows)
    with pytest.raises(ParameterError, match="schema=FILE"):
        private().fit(np.array([["a", "b"]] * 4, dtype=object), ["well", "ill"] * 2)


def test_classes_are_weighed_by_label_or_balanced(rows: tuple[Any, Any]) -> None:
    features, _ = rows
    labels = np.where(np.arange(len(features)) % 10 == 0, "rare", "common")
    given: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4, "public": True, "random_state": 0}
    found = {
        str(weights): float(
            np.mean(PrivateClassifier(**given, class_weight=weights).fit(features, labels).predict(features) == "rare")
        )
        for weights in (None, {"common": 0.1}, "balanced")
    }
    assert found["None"] < 0.05 < 0.2 < min(found["{'common': 0.1}"], found["balanced"])
    halved, tenth = (
        PrivateClassifier(**given, class_weight=weights).fit(features, labels).decision_function(features)
        for weights in ({"rare": 0.5, "common": 0.05}, {"common": 0.1})
    )
    np.testing.assert_array_equal(halved, tenth)
    for weights, says in (
        ({"comon": 0.1}, "'comon'.*'common', 'rare'"),
        ({"common": -3.0}, r"class_weight:.*greater.*0.*-3.0\)"),
        ({"common": float("nan")}, "class_weight:.*1"),
        ("balance", "class_weight.*'balance'.*'balanced'"),
    ):
        with pytest.raises(ParameterError, match=says):
            PrivateClassifier(**given, class_weight=weights).fit(features, labels)


def test_an_empty_text_is_a_class_like_any_other(rows: tuple[Any, Any]) -> None:
    features, _ = rows
    for labels in (["", "a", "b"], ["", "b"]):
        of_rows = np.array(labels)[np.arange(240) % len(labels)]
        model = PrivateClassifier(epsilon=50.0, public=True, random_state=0, bounds=BOUNDS).fit(features, of_rows)
        assert model.classes_.tolist() == labels


@pytest.mark.parametrize("spelling", [str, float, bool, int])
def test_a_score_knows_labels_in_each_spelling_that_a_fit_knows(rows: tuple[Any, Any], spelling: Any) -> None:
    features, numbers = rows[0], (rows[1] == "ill").astype(int)
    model = PrivateClassifier(epsilon=50.0, public=True, random_state=0, bounds=BOUNDS, classes=[0, 1])
    labels = np.array([spelling(one) for one in numbers.tolist()])
    model.fit(features, labels)
    assert model.score(features, labels) == np.mean(model.predict(features) == numbers)
    weights = np.arange(240)
    assert model.score(features, labels, weights) == pytest.approx(
        np.average(model.predict(features) == numbers, weights=weights)
    )
    assert np.isfinite(cross_val_score(model, features, labels, cv=3)).all()


def test_a_label_that_is_no_class_is_predicted_wrongly_and_a_missing_one_is_named(rows: tuple[Any, Any]) -> None:
    features, labels = rows
    model = PrivateClassifier(epsilon=50.0, public=True, random_state=0, bounds=BOUNDS).fit(features, labels)
    others = np.where(np.arange(240) < 120, "other", labels)
    assert model.score(features, others) == np.mean(model.predict(features) == others) <= 0.5
    with pytest.raises(ParameterError, match="row 3"):
        model.score(features, np.where(np.arange(240) == 2, None, labels.astype(object)))


def test_a_score_of_private_rows_is_said_to_be_exact(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=3.0, delta=1e-6)
    model = private(epsilon=0.3).fit(*rows)
    with pytest.warns(UserWarning, match="exact"):
        model.score(*rows)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError, match=r"test_fraction=0.2.*decision_function"):
        model.predict_proba(rows[0])


@pytest.mark.parametrize("scoring", [None, "balanced_accuracy"])
def test_cross_validation_warns_once_whatever_scores(rows: tuple[Any, Any], scoring: str | None) -> None:
    """A scorer by name calls predict and never ``score``; scikit-learn changes Python's filters as it goes."""
    unitball.open_account("clinic", epsilon=5.0, delta=1e-6)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        cross_val_score(private(epsilon=0.3), *rows, cv=2, scoring=scoring)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
        private(epsilon=0.3).fit(*rows).score(*rows)
    said = [str(one.message) for one in shown if "release" in str(one.message) or "secret" in str(one.message)]
    assert len(said) == 2
    # Before the first fit, and again for another estimator.
    assert "account 'clinic': the first costs epsilon 0.3 at delta 1e-06" in said[0]
    with pytest.warns(UserWarning, match="no account"):
        cross_val_score(PrivateClassifier(0.3, bounds=BOUNDS, classes=["well", "ill"]), rows[0] ** 2, rows[1], cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_scores.cache_clear()
        clone(private(epsilon=0.3, public=True, bounds=(-9, 9))).fit(*rows)
        private(epsilon=0.3, repetition=1, bounds=(-9, 9)).fit(*rows)


def test_private_rows_need_declarations(rows: tuple[Any, Any]) -> None:
    with pytest.raises(ParameterError, match="public=True"):
        PrivateClassifier().fit(*rows)
    with pytest.raises(ParameterError, match="label_range"):
        PrivateRegressor(bounds=BOUNDS).fit(rows[0], rows[0][:, 0])
    with pytest.raises(ParameterError, match=r"row 1.*'well', 'ill'"):
        private().fit(rows[0], np.full(240, "sick"))


def test_without_delta(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=2.0, delta=0.0, allow_idealised=True)
    model = private(delta=0).fit(*rows)
    assert model.guarantee_.proved is not None
    assert model.guarantee_.proved.delta == 0
    with pytest.raises(ParameterError, match=r"delta.*delta"):
        private(delta=0, algorithm="noisy-gd").fit(*rows)


def test_data_frames_by_a_schema() -> None:
    table = pd.read_csv("docs/examples/clinic.csv")
    rows, labels = table.drop(columns="outcome"), table["outcome"]
    model = PrivateClassifier(schema="docs/examples/clinic.yaml", epsilon=2.0).fit(rows, labels)
    assert list(model.classes_) == ["well", "readmitted"]
    assert set(model.predict(rows)) <= {"well", "readmitted"}
    assert model.n_features_in_ == 5


RECODED = """
columns:
  - {name: patient, type: person}
  - {name: race, type: category, values: {Caucasian: white, "Afr*": black, "?": other}}
  - {name: age, type: numeric, ordered: ["[60-70)", "[70-80)", "[80-90)"]}
  - {names: "diag_*", type: category, first: 3, values: ["250", "428"]}
  - {names: [metformin, insulin], type: boolean, values: {"No": false, Up: true, Down: true}}
  - {name: back, type: label, classes: {"<30": early, ">30": rest, "NO": rest}}
"""


def test_data_frames_by_a_schema_that_recodes(tmp_path: Path) -> None:
    """The columns of the rows that are fitted settle its patterns, and those of others to predict do not."""
    (tmp_path / "schema.yaml").write_text(RECODED)
    random = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "patient": np.arange(400) % 300,
            "race": random.choice(["Caucasian", "AfricanAmerican", "?"], 400),
            "age": random.choice(["[60-70)", "[80-90)"], 400),
            "diag_10": random.choice([250.83, 428.0], 400),
            "diag_2": random.choice(["250", "428.9"], 400),
            "metformin": random.choice(["No", "Up"], 400),
            "insulin": random.choice(["No", "Down"], 400),
        }
    )
    codes = np.where(frame["insulin"] == "No", "NO", np.where(frame["race"] == "?", ">30", "<30"))
    classes = pd.Series(codes).map({"<30": "early", ">30": "rest", "NO": "rest"})
    unitball.open_account("recoded", epsilon=3.0, delta=1e-6, people=True)
    model = PrivateClassifier(account="recoded", schema=tmp_path / "schema.yaml", epsilon=3.0).fit(frame, classes)
    assert model.classes_.tolist() == ["early", "rest"]
    columns = ["race", "age", "diag_2", "diag_10", "metformin", "insulin"]
    assert model.feature_names_in_.tolist() == columns
    found = model.predict(frame)
    assert (model.predict(frame[columns[::-1]].assign(diag_3=1)) == found).all()
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - its own
    assert (again.predict(frame) == found).all()
    with pytest.raises(InputError, match=r"row 1.*age.*\[60-70\)"):
        model.predict(frame.assign(age="75"))
    # Labels may be written as in the table, where several codes are one class.
    coded = PrivateClassifier(account="recoded", schema=tmp_path / "schema.yaml", epsilon=3.0).fit(frame, codes)
    assert (coded.predict(frame) == found).all(), "the same rows, and so the same release"
    assert coded.score(frame, codes) == coded.score(frame, classes) > 0
    with pytest.raises(InputError, match=r"'diag_\*'.*matches"):
        PrivateClassifier(account="recoded", schema=tmp_path / "schema.yaml").fit(
            frame.drop(columns=["diag_2", "diag_10"]), classes
        )


CELLS = {"age": 40, "ward": "north", "admitted": "01.02.2026", "discharged": "2026-02-09", "plate": "B-XY 12"}
STAY = """
format_version: 1
columns:
  - {name: age, type: numeric, range: [18, 100]}
  - {name: ward, type: category, values: [north, south]}
  - {name: admitted, type: date, range: [2026-01-01, 2026-12-31], format: "%d.%m.%Y"}
  - {name: discharged, type: ignore}
  - {name: plate, type: category, hash: 8}
  - {name: stay, type: days, between: [admitted, discharged], range: [0, 60], format: ["%d.%m.%Y", "%Y-%m-%d"]}
  - {name: outcome, type: label, classes: [well, ill]}
"""


@pytest.mark.parametrize(
    "outside",
    [{}, {"age": 130}, {"ward": "west"}, {"discharged": "2026-01-09"}, {"discharged": "9.9."}, {"age": "old"}],
)
@pytest.mark.parametrize("on_violation", ["refuse", "clip"])
def test_a_row_is_encoded_alike_from_a_file_and_in_an_estimator(
    outside: dict[str, Any], on_violation: str, tmp_path: Path
) -> None:
    (tmp_path / "schema.yaml").write_text(STAY)
    frame = pd.DataFrame([CELLS, CELLS | outside] * 2)
    frame.assign(outcome=["well", "ill"] * 2).to_csv(tmp_path / "rows.csv", index=False)
    options = ReadOptions(schema=tmp_path / "schema.yaml", on_violation=OnViolation(on_violation))
    try:
        read = np.concatenate(
            [one.features for one in read_source("csv", tmp_path / "rows.csv", options).parts["train"]]
        )
    except InputError:
        read = None
    given: dict[str, Any] = {} if on_violation == "refuse" else {"on_violation": on_violation}
    model = PrivateClassifier(50.0, 1e-6, schema=tmp_path / "schema.yaml", **given)
    if read is None:
        with pytest.raises(InputError, match="row 2"):
            model.fit(frame, ["well", "ill"] * 2)
    else:
        assert np.array_equal(model.fit(frame, ["well", "ill"] * 2)._encoded(frame), read)
    assert (read is None) == (
        bool(outside) if on_violation == "refuse" else outside in ({"discharged": "9.9."}, {"age": "old"})
    )


def test_an_estimator_leaves_no_rows_out_and_holds_targets_to_the_schema(tmp_path: Path) -> None:
    schema = {
        "columns": [{"name": "x", "type": "numeric", "range": [0, 1]}, {"name": "y", "type": "label", "range": [0, 9]}]
    }
    frame, targets = pd.DataFrame({"x": [0.5] * 40}), np.append(np.arange(39) % 10, 12)
    with pytest.raises(InputError, match=r"row 40.*range \[0, 9\]"):
        PrivateRegressor(epsilon=1.0, schema=schema).fit(frame, targets)
    PrivateRegressor(epsilon=1.0, schema=schema, on_violation="clip").fit(frame, targets)
    with pytest.raises(ParameterError, match=r"on_violation.*'drop'"):
        PrivateRegressor(epsilon=1.0, schema=schema, on_violation="drop").fit(frame, targets)


def test_a_regression() -> None:
    random = np.random.default_rng(2)
    X = random.uniform(-1, 1, (2000, 2))
    y = 3.0 * X[:, 0] + 1.0
    model = PrivateRegressor(20.0, 1e-6, bounds=(-1, 1), label_range=(-2, 4)).fit(X, y)
    assert np.corrcoef(model.predict(X), y)[0, 1] > 0.9


def test_bounds_are_the_encoding_of_a_tables_numbers() -> None:
    from storage.encoder import TableEncoder

    columns = [{"name": f"x{place}", "type": "numeric", "range": [-2, 6]} for place in range(3)]
    label = {"name": "y", "type": "label", "classes": ["a", "b"]}
    encoder = TableEncoder({"columns": [*columns, label]}, on_violation="clip")
    X = np.random.default_rng(1).uniform(-3, 7, (20, 3))
    table = pd.DataFrame(X, columns=["x0", "x1", "x2"])
    assert Bounds.of((-2, 6), 3)(X) == pytest.approx(encoder.transform(table), abs=1e-12)
    with pytest.raises(ParameterError, match="bounds"):
        Bounds.of((1, 2, 3), 3)
    with pytest.raises(ParameterError, match=r"^bounds hold"):
        Bounds.of((1, 0), 3)


@pytest.fixture(scope="module")
def whose(rows: tuple[Any, Any]) -> Any:
    """Eighty people of two rows, and one of eighty."""
    return np.concatenate([np.repeat(np.arange(80), 2), np.full(80, 80)])


def test_people_are_fitted_by_their_groups(rows: tuple[Any, Any], whose: Any) -> None:
    unitball.open_account("clinic", epsilon=3.0, delta=1e-6, people=True)
    model = private(rows_per_person=8).fit(*rows, groups=whose)
    assert model.score(*rows) > 0.8
    assert "for a person (column groups) under" in str(model.guarantee_)
    dataset = find_dataset("clinic.fits")
    assert (dataset.rows, dataset.person, dataset.rows_per_person) == (81, "groups", 8)
    # One spelling of each identifier: the same people, the same release.
    for spelled in (whose.astype(float), [f" {one}" for one in whose], pd.Series(whose)):
        assert np.array_equal(clone(model).fit(*rows, groups=spelled).coef_, model.coef_)
    with pytest.raises(BudgetError, match=r"account 'clinic'.*groups="):
        private().fit(*rows)
    with pytest.raises(BudgetError, match=r"column.*8"):
        private(rows_per_person=9).fit(*rows, groups=whose)


def test_an_account_of_rows_takes_no_groups(rows: tuple[Any, Any], whose: Any) -> None:
    unitball.open_account("clinic", epsilon=1.0, delta=1e-6)
    with pytest.raises(BudgetError, match=r"account 'clinic'.*unit row"):
        private().fit(*rows, groups=whose)
    opening: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
    for other, says in (
        ({"people": True}, "unit row.*person"),
        ({"group_size": 2}, "group size 1.*2"),
        ({"relation": "replace-special"}, "relation replace-one.*replace-special"),
        ({"delta": 1e-7}, "delta 1e-06.*delta 1e-07"),
    ):
        with pytest.raises(InputError, match=f"'clinic'.*{says}"):
            unitball.open_account("clinic", **{**opening, **other})
    with pytest.raises(ParameterError, match=r"'add-remove-one'.*'replace-special'"):
        unitball.open_account("other", epsilon=1.0, delta=1e-6, relation="add-remove-one")


def test_groups_pass_a_pipeline(rows: tuple[Any, Any], whose: Any) -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        unitball.open_account("clinic", epsilon=3.0, delta=1e-6, people=True)
        model = make_pipeline(FunctionTransformer(), private().set_fit_request(groups=True))
        assert model.fit(*rows, groups=whose).score(*rows) > 0.8
        assert model[-1].guarantee_.proved.person == "groups"


def test_public_people_weigh_the_same_whatever_their_rows(rows: tuple[Any, Any]) -> None:
    """One person's 160 rows, all of the wrong class, move a model of people by one in eighty-one."""
    X, y = rows
    heavy = np.arange(240) >= 80
    wrong = np.where(heavy, np.where(y == "ill", "well", "ill"), y)
    model = PrivateClassifier(30.0, public=True, random_state=1, bounds=BOUNDS, rows_per_person=200)
    people = np.where(heavy, 80, np.arange(240))
    assert clone(model).fit(X, wrong, groups=people).score(X[~heavy], y[~heavy]) > 0.9
    # As rows they are the majority.
    assert clone(model).fit(X, wrong).score(X[~heavy], y[~heavy]) < 0.3


@pytest.mark.parametrize("groups", [[1.5] * 240, [""] * 240, [1] * 239, [None] * 240])
def test_who_is_nobody_surely_is_named(rows: tuple[Any, Any], groups: Any) -> None:
    with pytest.raises(ParameterError, match=r"^groups.*240 rows"):
        private().fit(*rows, groups=groups)


def test_a_schema_names_the_people_of_a_data_frame(tmp_path: Path) -> None:
    table = pd.read_csv("docs/examples/clinic.csv")
    schema = yaml.safe_load(Path("docs/examples/clinic.yaml").read_text())
    table["Patient"] = np.arange(len(table)) // 3
    schema["columns"].append({"name": "Patient", "type": "person", "rows_per_person": 3})
    rows, labels = table.drop(columns="outcome"), table["outcome"]
    model = PrivateClassifier(schema=schema, epsilon=2.0).fit(rows, labels)
    assert "for a person (column Patient)" in str(model.guarantee_)
    # Whose a new row is nobody asks.
    assert len(model.predict(rows.drop(columns="Patient"))) == len(rows)
    with pytest.raises(ParameterError, match="column Patient"):
        clone(model).fit(rows, labels, groups=rows["Patient"])


def test_objective_perturbation_refuses_people(rows: tuple[Any, Any], whose: Any) -> None:
    with pytest.raises((BudgetError, ParameterError), match="people"):
        private(delta=0.0).fit(*rows, groups=whose)


TABLE: dict[str, Any] = {
    "columns": [
        {"name": "a", "type": "numeric", "range": [-3, 3]},
        {"name": "b", "type": "numeric", "range": [-3, 3]},
        {"name": "y", "type": "label"},
    ]
}
LABELS: dict[type, tuple[dict[str, Any], dict[str, Any], Any]] = {
    PrivateClassifier: ({"classes": ["well", "ill"]}, {"classes": ["well", "ill"]}, np.array(["well", "ill"] * 20)),
    PrivateRegressor: ({"range": [0, 9]}, {"label_range": (0, 9)}, np.arange(40.0) % 9),
}
WAYS = ("schema", "bounds", "neither")
ESTIMATORS = (PrivateClassifier, PrivateRegressor)
X = pd.DataFrame(np.random.default_rng(0).uniform(-2, 2, (40, 2)), columns=["a", "b"])


def _declared(kind: type, way: str) -> dict[str, Any]:
    """Return how the rows are declared: by a schema, by bounds, or not at all, in which case they are public."""
    in_schema, beside, _ = LABELS[kind]
    if way == "schema":
        columns = [*TABLE["columns"][:-1], {**TABLE["columns"][-1], **in_schema}]
        return {"schema": {"columns": columns}}
    return {"bounds": BOUNDS, **beside} if way == "bounds" else {"public": True}


def _refused(
    kind: type, way: str, says: str, *, rows: Any = X, y: Any = None, groups: Any = None, **given: Any
) -> None:
    """Fit, and hold that the error is ours, names what is wrong, and that nothing was made for it."""
    model = kind(**{**_declared(kind, way), **given})
    labels = LABELS[kind][2] if y is None else y
    with pytest.raises((ParameterError, InputError, BudgetError), match=says) as refused:
        model.fit(rows, labels, **({} if groups is None else {"groups": groups}))
    assert "--" not in str(refused.value)
    assert not current_root().exists()


BAD_PARAMETERS: list[tuple[dict[str, Any], str]] = [
    *(({"epsilon": bad}, "^epsilon.*0") for bad in (0, -1, "1", np.nan, np.inf, True, [1])),
    *(({"delta": bad}, "^delta.*0.*1") for bad in (None, "x", -1e-6, 1, np.nan, 2)),
    ({"epsilon": 0, "delta": 0}, "^epsilon.*0"),
    ({"epsilon": 0.0, "delta": 0.0}, "^epsilon.*0.0"),
    ({"epsilon": 1001}, "^epsilon.*1001.*0.*1000"),
    *(({"repetition": bad}, "^repetition is") for bad in (-1, 1.5, "1", None)),
    *(({"rows_per_person": bad}, "^rows_per_person.*1") for bad in (0, 2.5, None)),
    ({"algorithm": 3}, "^algorithm is 3"),
    ({"algorithm": "noisy-dg"}, "noisy-dg"),
    ({"algorithm": "noisy-gd", "parameters": {"clip": -1}}, "clip"),
    ({"parameters": {"no_such": 1}}, "no_such"),
    ({"parameters": 3}, "^parameters is 3"),
    ({"parameters": {3: 1}}, "^parameters names 3"),
    ({"on_violation": "klip"}, "^on_violation.*'klip'"),
    ({"public": "yes"}, "^public.*'yes'.*True"),
    ({"disjoint_people": None}, "^disjoint_people.*None"),
    ({"disjoint_people": "another town", "public": False}, "^disjoint_people.*account="),
    ({"root": ":memory:", "public": False}, "^root.*account="),
    ({"account": 3}, "^account is 3"),
    ({"account": " x"}, "^account.*' x'.*1.*200"),
    ({"root": 3}, "^root is 3"),
    ({"delta": 0, "algorithm": "noisy-gd"}, "delta.*delta.*0"),
]


@pytest.mark.parametrize(
    ("bad", "says", "kind", "way"),
    spanning([pytest.param(*each, id=str(each[0])) for each in BAD_PARAMETERS], ESTIMATORS, WAYS, every=3),
)
def test_a_bad_parameter_is_named_before_anything_is_opened(
    bad: dict[str, Any], says: str, kind: type, way: str
) -> None:
    _refused(kind, way, says, **bad)


@pytest.mark.parametrize("way", ["schema", "bounds"])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_bad_rows_are_named_alike_whatever_declares_them(kind: type, way: str) -> None:
    labels = LABELS[kind][2]
    _refused(kind, way, "39.*X.*40", y=labels[:-1])
    _refused(kind, way, r"y (has shape|should be a 1d array)", y=np.stack([labels, labels], axis=1))
    _refused(kind, way, "groups.*39.*40", groups=[1] * 39)
    if kind is PrivateRegressor:
        for bad in (np.nan, np.inf):
            _refused(
                kind,
                way,
                "(row 3, target .*finite number|Input y contains)",
                y=np.where(np.arange(40) == 2, bad, labels),
            )
    else:
        _refused(
            kind,
            way,
            "row 3, label|NaN",
            y=np.where(np.arange(40) == 2, np.nan, labels.astype(object)),
        )


@pytest.mark.parametrize("public", [True, False])
def test_labels_that_are_none_are_named_by_their_row(*, public: bool) -> None:
    labels = LABELS[PrivateClassifier][2]
    declared = {**_declared(PrivateClassifier, "schema"), "classes": np.unique(labels).tolist(), "public": public}
    missing = pd.Series(labels).astype("string")
    missing[2] = pd.NA
    shown = "<NA>" if public else r"\(not shown\)"
    listed = labels.astype(object)
    listed[2] = ["secret"]
    for y, says in (
        (missing, f"^row 3, label {shown} is not one of the classes"),
        (listed, "^row 3, the label is of type list; give a text, a number or a boolean$"),
    ):
        with pytest.raises(ParameterError, match=says):
            PrivateClassifier(**declared).fit(X, y)


@pytest.mark.parametrize(
    ("kind", "bad", "says"),
    [
        (PrivateClassifier, {"classes": 3}, "^classes is 3"),
        (PrivateClassifier, {"classes": "ill"}, "^classes is 'ill'"),
        (PrivateClassifier, {"classes": []}, r"^classes is \[\]"),
        (PrivateClassifier, {"class_weight": 3}, "^class_weight.*3.*'balanced'"),
        (PrivateRegressor, {"label_range": 3}, "^label_range.*3"),
        (PrivateRegressor, {"label_range": (1, 1)}, r"^label_range.*\(1, 1\)"),
        (PrivateRegressor, {"label_range": (0, np.nan)}, "^label_range"),
        (PrivateRegressor, {"label_range": ("a", "b")}, "^label_range"),
    ],
    ids=str,
)
def test_bad_declarations_are_named(kind: type, bad: dict[str, Any], says: str) -> None:
    for way in WAYS:
        _refused(kind, way, says, **bad)


def test_numbers_of_numpy_are_numbers(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=1.0, delta=1e-6)
    model = private(epsilon=np.float32(0.5), delta=np.float32(1e-7)).fit(*rows)
    assert model.guarantee_.proved is not None
    assert model.guarantee_.proved.epsilon == pytest.approx(0.5, rel=1e-2)
    given: dict[str, Any] = {"epsilon": np.int64(1), "repetition": np.int32(2)}
    assert PrivateClassifier(**given, public=True).fit(*rows).classes_.size == 2


def test_what_is_said_of_public_rows_is_what_was_asked_for(rows: tuple[Any, Any]) -> None:
    """Asked for delta 0 it said (1, 1e-12)-DP."""
    model = PrivateClassifier(1.0, 0.0, public=True).fit(*rows)
    assert model.guarantee_.proved is not None
    assert model.guarantee_.proved.delta == 0
    assert "e-12" not in str(model.guarantee_)


def test_weights_are_not_taken_for_people(rows: tuple[Any, Any]) -> None:
    """A third argument is a row's weight elsewhere; as people it opened an account of people for good."""
    weights = np.ones(240, dtype=int)
    models: list[Any] = [private(), PrivateRegressor(public=True)]
    for model in models:
        with pytest.raises(TypeError, match="positional"):
            model.fit(*rows, weights)
    assert not current_root().exists()


@pytest.mark.parametrize("account", [None, "clinic"])
def test_what_rows_do_not_admit_is_refused_with_and_without_an_account(
    rows: tuple[Any, Any], account: str | None
) -> None:
    if account:
        unitball.open_account(account, epsilon=1.0, delta=1e-3)
    given: dict[str, Any] = {"epsilon": 1.0, "account": account, "bounds": BOUNDS, "classes": ["well", "ill"]}
    for bad, says in (
        ({"delta": 0}, "allow_idealised=True"),
        ({"algorithm": "dppca-svm"}, "not proved|idealised"),
        ({"delta": 0.01}, r"1/n|240 rows"),
    ):
        with pytest.raises(BudgetError, match=says):
            PrivateClassifier(**{**given, **bad}).fit(*rows)
    if account:
        assert unitball.budget(account).charges == ()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_no_rows_get_no_predictions(kind: type, way: str) -> None:
    """A nightly delivery may be empty."""
    model = kind(8.0, 1e-6, **_declared(kind, way)).fit(X, LABELS[kind][2])
    whole = model.predict(X)
    empty = model.predict(X[:0])
    assert empty.shape == (0,)
    assert empty.dtype == whole.dtype
    with pytest.raises((ParameterError, InputError, ValueError), match=r"[Mm]issing|0 feature|minimum"):
        model.predict(X[["a"]][:0])


def test_messages_name_parameters_and_no_options_and_no_cells(rows: tuple[Any, Any]) -> None:
    weighed = PrivateClassifier(1.0, class_weight={"ill": 2.0}, algorithm="sufficient-statistics", public=True)
    with pytest.raises(ParameterError, match="algorithm='noisy-gd'"):
        weighed.fit(*rows)
    for taken in (np.array([["moon7713", "1"]]), pd.DataFrame([["moon7713", 1.0]])):
        with pytest.raises((ParameterError, InputError), match="schema=FILE") as refused:
            private(None).fit(taken, ["ill"])
        assert "7713" not in str(refused.value)


def test_a_terminal_shows_what_was_charged(rows: tuple[Any, Any]) -> None:
    many = {"columns": [{"name": "x", "type": "category", "values": [*map(str, range(400))]}]}
    model = private(None, epsilon=np.float32(1.0), bounds=(-9.0, 9.0)).fit(*rows)
    for shown in (repr(model.set_params(schema=many)), repr((model.guarantee_,))):
        assert len(shown) < 300
    assert "DP" in repr((model.guarantee_,))
    with pd.option_context("display.width", 80, "display.max_columns", 0):
        printed = repr(model.charges_)
    assert all(str(epsilon) in printed for epsilon in model.charges_["epsilon"])
    assert 0.8 < model.charges_["epsilon"].iloc[-1] < 1.0


def test_an_epsilon_of_single_precision_without_delta_is_that_number(rows: tuple[Any, Any]) -> None:
    given: dict[str, Any] = {"public": True, "bounds": (-9.0, 9.0), "random_state": 0}
    found = [PrivateClassifier(one, 0, **given).fit(*rows).coef_ for one in (0.5, np.float32(0.5), np.float16(0.5))]
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.parametrize("way", ["bounds", "schema"])
def test_cells_that_are_clipped_are_counted_and_not_shown(way: str) -> None:
    random = np.random.default_rng(0)
    rows = pd.DataFrame({"age": random.uniform(0, 1, 40), "ward": np.arange(40) % 2})
    declared: dict[str, Any] = {"bounds": (0.0, 1.0), "classes": [0, 1]}
    if way == "schema":
        columns = [
            {"name": "age", "type": "numeric", "range": [0, 1]},
            {"name": "ward", "type": "category", "values": ["0", "1"]},
            {"name": "y", "type": "label", "classes": ["0", "1"]},
        ]
        declared = {"schema": {"columns": columns}, "on_violation": "clip"}
    model = PrivateClassifier(1.0, public=True, random_state=0, **declared).fit(rows, rows["ward"])
    outside = rows.assign(age=rows["age"].where(~rows.index.isin([3, 7]), 77.13), ward=[7713, *rows["ward"][1:]])
    calls: list[Any] = [partial(model.fit, y=rows["ward"]), model.predict, model.decision_function]
    for call in calls:
        with pytest.warns(UserWarning, match=r"age: 2 .*row 4.*ward: 1 ") as told:
            call(outside)
        assert not [one for one in told if "77" in str(one.message)]
        assert told[0].filename == __file__
    regression = PrivateRegressor(1.0, public=True, bounds=(0.0, 1.0), label_range=(0.0, 1.0))
    with pytest.warns(UserWarning, match="column y: 1 cell"):
        regression.fit(rows, [77.0, *rows["age"][1:]])
