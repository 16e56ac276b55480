"""Data frames that are trained on: brought in under a schema, as a file of theirs would be."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

import unitball
from dpalgos.parameters import ParameterError
from storage.errors import InputError, OverspendError, RefusedError
from tasks.datasets.registration import find_dataset
from tasks.runtime.stores import open_catalog

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
