"""No error of a Python call shows a cell of private rows: a value is planted, and every error is searched for it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import unitball
from tests.tasks.tracking.test_flavor import saved
from unitball import PrivateClassifier, PrivateRegressor

TEXT, NUMBER, DAY = "Q7 Maria Planted", 98765.4321, "1931-07-19"
COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "type": "numeric", "range": [18, 100]},
    {"name": "ward", "type": "category", "values": ["north", "south"]},
    {"name": "admitted", "type": "date", "range": ["2026-01-01", "2026-12-31"], "format": "%Y-%m-%d"},
    {"name": "urgent", "type": "boolean"},
]
LABEL = {"name": "outcome", "type": "label", "classes": ["well", "ill"]}
AMOUNT = {"name": "outcome", "type": "label", "range": [0, 9]}
TERMS: dict[str, Any] = {"name": "stays", "account": "clinic", "epsilon": 0.5}


def frame(label: Any = "ill") -> pd.DataFrame:
    rows = {"age": 40.0, "ward": "north", "admitted": "2026-02-01", "urgent": True, "outcome": label}
    return pd.DataFrame([rows] * 60).astype(object)


def planted() -> list[pd.DataFrame]:
    """Return frames that do not fit, each by a planted cell."""
    found = []
    for column, cells in {
        "age": [TEXT, NUMBER, {TEXT: 1}, [NUMBER], TEXT.encode(), complex(NUMBER, 1)],
        "ward": [TEXT, NUMBER, (TEXT,), TEXT.encode() + b"\xff"],
        "admitted": [TEXT, DAY, NUMBER, pd.Timestamp(DAY)],
        "urgent": [TEXT, NUMBER],
        "outcome": [TEXT, NUMBER, [TEXT]],
    }.items():
        for cell in cells:
            rows = frame()
            rows.at[7, column] = cell
            found.append(rows)
    return found


def said(call: Callable[[], Any]) -> str:
    """Return all that a notebook shows of a call's error, chained ones included; nothing where there is none."""
    try:
        call()
    except BaseException as error:
        return "".join(traceback.format_exception(error))
    return ""


def search(what: str, text: str) -> None:
    shown = [one for one in (TEXT, "Planted", "98765", "1931") if one in text.replace(__file__, "")]
    assert not shown, f"{what} shows {shown}:\n{text}"


@pytest.fixture(autouse=True)
def _opened(root: Path) -> None:
    unitball.open_account("clinic", epsilon=9.0, delta=1e-4)


def test_no_error_of_rows_that_are_trained_on_or_described(tmp_path: Path) -> None:
    refused = 0
    for rows in planted():
        for call in (unitball.train, unitball.describe):
            text = said(lambda: call(rows, schema={"columns": [*COLUMNS, LABEL]}, **TERMS))  # noqa: B023 - called at once
            search(call.__name__, text)
            refused += bool(text)
    assert refused == 2 * len(planted())
    path = tmp_path / "rows.csv"
    frame().assign(ward=TEXT).to_csv(path, index=False)
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump({"columns": [*COLUMNS, LABEL]}))
    given: dict[str, Any] = {"path": path, "format": "csv", "schema_path": tmp_path / "schema.yaml"}
    text = said(lambda: unitball.describe("stays", account="clinic", epsilon=0.5, **given))
    search("describe of a file", text)
    assert "column ward" in text


def _fits(kind: type, rows: pd.DataFrame, **given: Any) -> Callable[[], Any]:
    model = kind(0.5, 1e-6, account="clinic", **given)
    return lambda: model.fit(rows.drop(columns="outcome"), rows["outcome"])


def test_no_error_of_an_estimator() -> None:
    refused, clean = 0, frame()[["age", "outcome"]].assign(age=0.0)
    for rows in planted():
        numbers = rows.assign(age=rows["ward"].map(lambda one: 0.0 if one == "north" else one))[["age", "outcome"]]
        declared: dict[str, Any] = {"bounds": (0, 1), "classes": ["well", "ill"]}
        calls = {
            "classifier": _fits(PrivateClassifier, rows, schema={"columns": [*COLUMNS, LABEL]}),
            "regressor": _fits(PrivateRegressor, rows.assign(outcome=1), schema={"columns": [*COLUMNS, AMOUNT]}),
            "target": _fits(PrivateRegressor, rows, schema={"columns": [*COLUMNS, AMOUNT]}),
            "range": _fits(PrivateRegressor, numbers, bounds=(0, 1), label_range=(0, 9)),
            "one row": lambda: PrivateClassifier(0.5, **declared).fit(rows["age"].to_numpy(), rows["outcome"]),  # noqa: B023
            "groups": lambda: PrivateClassifier(0.5, **declared).fit(  # noqa: B023
                np.zeros((60, 1)),
                frame()["outcome"],
                groups=rows["ward"] if TEXT in rows["ward"].tolist() else [TEXT],  # noqa: B023
            ),
        }
        # Of others it is fitted.
        if not numbers.equals(clean):
            array = numbers[["age"]].to_numpy()
            calls["array"] = lambda: PrivateClassifier(0.5, **declared).fit(array, numbers["outcome"])  # noqa: B023
        for name, call in calls.items():
            text = said(call)
            search(name, text)
            refused += bool(text)
    assert refused > 2 * len(planted())
    # Public rows are nobody's secret.
    with pytest.raises(ValueError, match=TEXT):
        PrivateClassifier(public=True).fit(np.array([[TEXT]] * 4, dtype=object), ["a", "b"] * 2)


def test_no_error_of_a_prediction(tracked_root: Path) -> None:
    """Of a model of public rows, too: whose the rows are that it scores nobody here knows."""
    random = np.random.default_rng(1)
    rows = frame().assign(outcome=random.choice(["well", "ill"], 60), ward=random.choice(["north", "south"], 60))
    document = {"columns": [*COLUMNS, LABEL]}
    public: dict[str, Any] = {"visibility": "public", "epsilon": 50.0, "algorithm": "noisy-gd", "parties": 1}
    trained = unitball.train(rows, schema=document, name="stays", **public)
    X, y = rows.drop(columns="outcome"), rows["outcome"]
    estimator = PrivateClassifier(5.0, 1e-6, schema=document).fit(X, y)
    pipeline = make_pipeline(FunctionTransformer(), PrivateClassifier(5.0, 1e-6, schema=document)).fit(X, y)
    served = mlflow.pyfunc.load_model(saved(tracked_root, trained.pipeline, ("well", "ill")))
    calls: dict[str, Callable[[Any], Any]] = {
        "predict": lambda given: unitball.predict("stays.noisy-gd", given, root=tracked_root),
        "model": trained.predict,
        "estimator": estimator.predict,
        "scores": lambda given: estimator.decision_function(given),
        "score": lambda given: estimator.score(given, given["age"]),
        "pipeline": pipeline.predict,
        "pyfunc": served.predict,
    }
    refused = dict.fromkeys(calls, 0)
    for given in planted():
        for name, call in calls.items():
            text = said(lambda: call(given.drop(columns="outcome")))  # noqa: B023
            search(name, text)
            refused[name] += bool(text)
    assert min(refused.values()) > 8, refused
