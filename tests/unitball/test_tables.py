"""Data frames that are trained on: brought in under a schema, as a file of theirs would be."""

from __future__ import annotations

import uuid
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import yaml

import unitball
from dpalgos.parameters import ParameterError
from storage.errors import InputError, OverspendError, RefusedError
from tasks.datasets.registration import find_dataset
from tasks.runtime.stores import open_catalog
from tasks.tracking.flavor import save_model
from unitball import PrivateClassifier

SCHEMA: dict[str, Any] = {
    "missing": {"marker": ["", "k.A."], "rows": "indicator"},
    "columns": [
        {"name": "age", "type": "numeric", "range": [18, 100]},
        {"name": "ward", "type": "category", "values": ["north", "south"]},
        {"name": "admitted", "type": "date", "range": [date(2026, 1, 1), date(2026, 12, 31)], "format": "%Y-%m-%d"},
        {"name": "0", "type": "numeric", "range": [0, 1]},
        {"name": "outcome", "type": "label", "classes": ["well", "back"]},
    ],
}
TERMS: dict[str, Any] = {"epsilon_cap": 22.0, "delta_cap": 1e-4}
RUN: dict[str, Any] = {"algorithm": "noisy-gd", "epsilon": 20.0, "parties": 1}


class Stream:
    """What a frame of another library, such as polars, has in common with all others."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def frame(count: int = 600, seed: int = 1) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    back = random.random(count) < 0.5
    age = np.clip(60 + 15 * np.where(back, 1, -1) + random.normal(0, 8, count), 18, 100).round()
    return pd.DataFrame(
        {
            # Cells of several kinds, as a spreadsheet gives them.
            "age": [None if place % 50 == 7 else "k.A." if place % 50 == 9 else one for place, one in enumerate(age)],
            "ward": pd.Categorical(random.choice(["north", "south"], count)),
            "admitted": pd.to_datetime(random.choice(["2026-02-01", "2026-05-31"], count)),
            0: random.random(count),
            "outcome": np.where(back, "back", "well"),
        }
    )


def test_a_data_frame_is_trained_on_under_a_schema_and_charged_once(tracked_root: Path) -> None:
    rows = frame()
    model = unitball.train(rows, schema=SCHEMA, name="stays", account="clinic", **TERMS, **RUN)
    assert str(model.guarantee).startswith("(20, ")
    # About 0.95; the noise at this budget is less than a hundredth.
    assert model.result.metrics["accuracy"] > 0.7
    assert set(model.predict(rows.drop(columns="outcome"))) <= {"well", "back"}
    spent = model.budget.epsilon_spent
    # The same rows, whatever holds them, are the same version, and the run is the same release.
    texts = pa.table(
        {str(name): pa.array([None if pd.isna(one) else str(one) for one in rows[name]]) for name in rows.columns}
    )
    for again in (Stream(texts), {name: rows[name].tolist() for name in rows.columns}):
        same = unitball.train(again, schema=SCHEMA, name="stays", **RUN)
        assert same.result.run_key == model.result.run_key
        assert same.budget.epsilon_spent == spent
    with pytest.raises(OverspendError):
        unitball.train(frame(seed=2), schema=SCHEMA, name="stays", **RUN)


def test_people_and_a_schemas_file(tracked_root: Path, tmp_path: Path) -> None:
    document = {**SCHEMA, "columns": [*SCHEMA["columns"], {"name": "who", "type": "person", "rows_per_person": 4}]}
    path = tmp_path / "stays.yaml"
    path.write_text(yaml.safe_dump(document))
    rows = frame(900).assign(who=np.arange(900) % 400)
    model = unitball.train(rows, schema=path, name="stays", **TERMS, **RUN)
    assert model.guarantee is not None
    assert model.guarantee.person == "who"
    assert find_dataset("stays").rows == 400


def test_what_is_missing_is_named_and_nothing_is_registered(root: Path) -> None:
    rows = frame(60)
    for given, says in (
        ({"schema": SCHEMA}, "DataFrame.*name='visits'"),
        ({}, "name='visits'"),
        ({"name": "stays"}, "schema="),
        ({"schema": SCHEMA, "name": "stays", "epsilom": 1.0}, "'epsilom'.*epsilon"),
        ({"schema": SCHEMA, "name": "stays", "epsilon": -1.0}, "epsilon"),
    ):
        with pytest.raises(ParameterError, match=says):
            unitball.train(rows, **{**RUN, **given})
    with pytest.raises(RefusedError, match=r"epsilon_cap.*delta_cap"):
        unitball.train(rows, schema=SCHEMA, name="stays", **RUN)
    with pytest.raises(InputError, match="age"):
        unitball.train(rows.drop(columns="age"), schema=SCHEMA, name="stays", **TERMS, **RUN)
    with pytest.raises(InputError, match="column 'ward'"):
        unitball.train(pd.concat([rows, rows[["ward"]]], axis=1), schema=SCHEMA, name="stays", **TERMS, **RUN)
    with pytest.raises(InputError, match=r"^schema is not"):
        unitball.train(rows, schema={"columns": 3}, name="stays", **TERMS, **RUN)
    with pytest.raises(ParameterError, match="'digits'"):
        unitball.train("digits", schema=SCHEMA, **RUN)
    with pytest.raises(ParameterError, match="'account'"):
        unitball.train("digits", account="clinic", **RUN)
    with pytest.raises((InputError, ParameterError), match="ndarray"):
        unitball.train(np.zeros((3, 2)), schema=SCHEMA, name="stays", **TERMS, **RUN)
    assert open_catalog().datasets() == []


def test_cells_of_every_library_are_the_same_wherever_rows_are_taken(tracked_root: Path, tmp_path: Path) -> None:
    """Months were 612 in training and "2021-01" in prediction; intervals, and polars in prediction, ended in errors."""
    import mlflow.pyfunc
    from mlflow.models import Model
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    random, count = np.random.default_rng(3), 400
    month, amount = random.integers(0, 4, count), random.integers(0, 10, count)
    ids = [uuid.UUID(int=int(one) + 1) for one in random.integers(0, 3, count)]
    months = pd.period_range("2021-01", periods=4, freq="M")
    rows = pd.DataFrame(
        {
            "month": months[month],
            "id": ids,
            "band": pd.cut(amount, [-1, 4, 10]),
            "amount": amount,
            # No column of the schema: nobody looks at it.
            "notes": [object() for _ in range(count)],
            "outcome": np.where(month % 2, "back", "well"),
        }
    )
    others = pl.DataFrame(
        {
            "month": pl.Series([str(one) for one in rows["month"]], dtype=pl.Enum([str(one) for one in months])),
            "id": pl.Series(ids, dtype=pl.Object),
            "band": pl.Series([str(one) for one in rows["band"]], dtype=pl.Categorical),
            "amount": pl.Series(amount, dtype=pl.Int128),
            "outcome": pl.Series(rows["outcome"].tolist()),
        }
    )
    schema = {
        "columns": [
            {"name": "month", "type": "category", "values": [str(one) for one in months]},
            {"name": "id", "type": "category", "values": [str(uuid.UUID(int=one)) for one in (1, 2, 3)]},
            {"name": "band", "type": "category", "values": ("(-1, 4]", "(4, 10]")},
            {"name": "amount", "type": "numeric", "range": (0, np.int64(10))},
            {"name": "outcome", "type": "label", "classes": ["well", "back"]},
        ]
    }
    records = [{name: str(cell) for name, cell in row.items()} for row in rows.drop(columns="notes").to_dict("records")]
    table = pa.table({name: [row[name] for row in records] for name in records[0]})
    containers: list[Any] = [rows, others, table, records]
    given: dict[str, Any] = {"schema": schema, "name": "months", "visibility": "public"}
    model = unitball.train(rows, **given, **RUN)
    assert model.result.metrics["accuracy"] == 1.0
    assert unitball.train(others, **given, **RUN).result.run_key == model.result.run_key
    described = [unitball.describe(one, **given, epsilon=1.0) for one in containers]
    assert all(one.equals(described[0]) for one in described)
    predicted = [model.predict(one).tolist() for one in containers]
    assert predicted == [rows["outcome"].tolist()] * len(containers)
    scores = []
    for one in containers:
        labels = one["outcome"] if not isinstance(one, list) else [row["outcome"] for row in one]
        fitted = PrivateClassifier(schema=schema, public=True, random_state=0, algorithm="noisy-gd").fit(one, labels)
        scores.append(fitted.decision_function(one).tolist())
    assert scores == scores[:1] * len(scores)
    names = model.pipeline[0].feature_names_in_.tolist()
    parts: dict[str, Any] = {"classes": ["well", "back"], "dimension": 0, "requirements": ["skops"]}
    save_model(str(tmp_path / "model"), Model(), pipeline=model.pipeline, **parts)
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert loaded.predict(rows[names])["prediction"].tolist() == predicted[0]
    answer = TestClient(init(loaded)).post("/invocations", json={"dataframe_records": records})
    assert [one["prediction"] for one in answer.json()["predictions"]] == predicted[0]
    train, describe = partial(unitball.train, **given, **RUN), partial(unitball.describe, **given)
    calls: tuple[Any, ...] = (train, describe, model.predict)
    for taken in calls:
        with pytest.raises(InputError, match=r"column 'band'.*list"):
            taken(rows.assign(band=[[1]] * count))


def test_what_is_clipped_of_a_data_frame_is_counted_on_the_screen(root: Path) -> None:
    rows = frame(60).assign(age=150.0, ward=["moon7713"] + ["north"] * 59)
    with pytest.warns(UserWarning, match="column age: 60 cells, column ward: 1 cell") as told:
        unitball.describe(rows, schema=SCHEMA, name="stays", visibility="public", on_violation="clip", plan=True)
    assert not [one for one in told if "7713" in str(one.message) or "150" in str(one.message)]
