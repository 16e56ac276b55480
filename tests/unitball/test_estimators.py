"""The estimators: scikit-learn's own checks, and one budget for all who fit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

import unitball
from dpalgos.errors import ParameterError
from storage.errors import InputError
from unitball import BudgetError, PrivateClassifier, PrivateRegressor
from unitball.estimators import Bounds

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
def fresh_process_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unitball.roots._PROCESS_ROOTS", {})


def private(account: str = "clinic", **given: Any) -> PrivateClassifier:
    return PrivateClassifier(account=account, bounds=BOUNDS, classes=["well", "ill"], **given)


@pytest.mark.parametrize("estimator", [PrivateClassifier(public=True), PrivateRegressor(public=True)], ids=type)
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
    model = private().fit(*rows)
    assert model.score(*rows) > 0.8
    assert model.guarantee_.proved is not None
    assert 0.99 < model.guarantee_.proved.epsilon <= 1.0
    assert "folds" in str(model.guarantee_)
    # The mean that rows are centred by, and the model.
    assert list(model.charges_["account"]) == ["clinic", "clinic"]
    # Equal rows and parameters are the same release; a fresh one is a charge that the account, of one fit, refuses.
    assert np.array_equal(clone(model).fit(*rows).coef_, model.coef_)
    with pytest.raises(BudgetError, match="above the cap"):
        clone(model).set_params(repetition=1).fit(*rows)
    with pytest.raises(BudgetError, match="public seed"):
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


@pytest.mark.nightly
def test_a_search_over_processes_needs_a_root(rows: tuple[Any, Any]) -> None:
    search = GridSearchCV(private(), {"parameters": [{"iterations": 5}]}, cv=2, n_jobs=2)
    with pytest.raises(BudgetError, match="n_jobs"):
        search.fit(*rows)


def test_what_comes_from_another_process_needs_a_root(rows: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stored = pickle.dumps(private())
    monkeypatch.setattr("unitball.estimators.PROCESS", "another")
    with pytest.raises(BudgetError, match="root=FOLDER"):
        pickle.loads(stored).fit(*rows)  # noqa: S301 - our own


def test_a_roots_ledger_is_charged(rows: tuple[Any, Any], tmp_path: Path) -> None:
    folder = tmp_path / "root"
    with pytest.raises(InputError, match="open_account"):
        private(root=folder).fit(*rows)
    unitball.open_account("clinic", epsilon=3.0, delta=1e-6, root=folder)
    private(root=folder).fit(*rows)
    table = unitball.budget("clinic.fits", root=folder)
    assert list(table["releases"]) == [2]
    assert 0.9 < table.attrs["epsilon_spent"] <= 1.0


def test_private_rows_need_declarations(rows: tuple[Any, Any]) -> None:
    with pytest.raises(ParameterError, match=r"bounds and classes .*public=True"):
        PrivateClassifier().fit(*rows)
    with pytest.raises(ParameterError, match="label_range"):
        PrivateRegressor(bounds=BOUNDS).fit(rows[0], rows[0][:, 0])
    with pytest.raises(ParameterError, match="'sick' is none of the classes"):
        private().fit(rows[0], np.full(240, "sick"))


def test_without_delta(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=2.0, delta=0.0, allow_idealised=True)
    model = private(delta=0).fit(*rows)
    assert model.guarantee_.proved is not None
    assert model.guarantee_.proved.delta == 0
    with pytest.raises(ParameterError, match="spends a delta"):
        private(delta=0, algorithm="noisy-gd").fit(*rows)


def test_data_frames_by_a_schema() -> None:
    table = pd.read_csv("docs/examples/clinic.csv")
    rows, labels = table.drop(columns="outcome"), table["outcome"]
    model = PrivateClassifier(account="clinic", schema="docs/examples/clinic.yaml", epsilon=2.0).fit(rows, labels)
    assert list(model.classes_) == ["well", "readmitted"]
    assert set(model.predict(rows)) <= {"well", "readmitted"}
    assert model.n_features_in_ == 5


def test_a_regression() -> None:
    random = np.random.default_rng(2)
    X = random.uniform(-1, 1, (2000, 2))
    y = 3.0 * X[:, 0] + 1.0
    model = PrivateRegressor(20.0, 1e-6, account="x", bounds=(-1, 1), label_range=(-2, 4)).fit(X, y)
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
    with pytest.raises(ParameterError, match="low above"):
        Bounds.of((1, 0), 3)
