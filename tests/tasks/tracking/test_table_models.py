"""Wherever a model of a table goes, its map of columns goes: the same predictions, from raw rows, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.models import Model

import unitball
from dpalgos.features.column_functions import ColumnFunctions
from tasks import records
from tasks.exports.archive import export_run
from tasks.exports.verifying import verify
from tasks.runtime.steps import inline
from tasks.tracking.flavor import load_pipeline, save_model
from tasks.tracking.model_files import load_model
from tasks.tracking.model_versions import find_model
from tasks.tracking.predicted_files import predict_file
from tasks.tracking.scoring import ScoringRequest
from tests.support.tables import Trained


def test_the_pipeline_is_the_release(trained: Trained) -> None:
    """The map of columns first, and what comes out of all maps the same to the last bit."""
    assert isinstance(trained.path[0], ColumnFunctions)
    rest = trained.pipeline[1:]
    assert np.array_equal(rest[:-1].transform(trained.features), trained.seen())
    assert rest.predict(trained.features).tolist() == trained.released()
    # Rows that were never in single precision are the same rows: no cell moves into another bin.
    assert trained.pipeline[1:-1].transform(trained.pipeline[0].transform(trained.rows)) == pytest.approx(
        trained.seen(), abs=1e-12
    )
    assert len(set(trained.released())) > 1


def test_a_released_range_of_real_labels_is_in_the_models_own_units(trained: Trained) -> None:
    if trained.classes:
        assert trained.path[0].label_range.tolist() == []
        return
    low, high = trained.path[0].label_range
    assert 0 <= low < high <= 100
    # Labels lie around 20; scores between -1 and 1, as they are trained on, would not.
    assert 10 < np.mean(trained.pipeline.predict(trained.rows)) < 40


def test_stored_and_loaded_it_is_the_same_map(trained: Trained, tmp_path: Path) -> None:
    import mlflow.pyfunc
    import mlflow.sklearn

    path = str(tmp_path / "model")
    save_model(
        path, Model(), pipeline=trained.pipeline, classes=trained.classes, dimension=0, requirements=["scikit-learn"]
    )
    expected = trained.pipeline.predict(trained.rows).tolist()
    loaded = load_pipeline(path)
    assert np.array_equal(loaded[1:-1].transform(trained.features), trained.seen())
    assert loaded.predict(trained.rows).tolist() == expected
    assert mlflow.pyfunc.load_model(path).predict(trained.rows)["prediction"].tolist() == expected


def test_served_it_is_the_same_map(trained: Trained, tmp_path: Path) -> None:
    """What ``mlflow models serve`` runs, asked over HTTP with rows as JSON."""
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    path = str(tmp_path / "model")
    save_model(
        path, Model(), pipeline=trained.pipeline, classes=trained.classes, dimension=0, requirements=["scikit-learn"]
    )
    client = TestClient(init(mlflow.pyfunc.load_model(path)))
    answer = client.post("/invocations", json={"dataframe_split": trained.rows.head(40).to_dict("split")})
    expected = trained.pipeline.predict(trained.rows.head(40)).tolist()
    assert [one["prediction"] for one in answer.json()["predictions"]] == expected


def test_files_are_predicted_by_the_same_map(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``unitball predict``, and batch scoring of a registered model."""
    monkeypatch.setenv("UNITBALL_ROOT", str(trained.root))
    monkeypatch.setattr(records, "create_markdown_artifact", lambda *_, **__: None)
    expected = trained.pipeline.predict(trained.rows).tolist()
    trained.rows.to_csv(tmp_path / "new.csv", index=False)
    pq.write_table(pa.Table.from_pandas(trained.rows.astype({"pressure": str})), tmp_path / "new.parquet")
    for source in (tmp_path / "new.csv", tmp_path / "new.parquet"):
        output = source.with_suffix(f"{source.suffix}.out")
        predict_file(trained.pipeline, source, output)
        assert pq.read_table(output)["prediction"].to_pylist() == expected
    assert unitball.predict(trained.name, trained.rows).tolist() == expected
    with inline():
        name = records.score(ScoringRequest(model=trained.name, input=str(tmp_path / "new.csv")))
    scored = pq.read_table(trained.root / "private" / "predictions" / name)
    assert scored["prediction"].to_pylist() == expected
    registered = load_model(trained.root, find_model(trained.root, trained.name))
    assert np.array_equal(registered[1:-1].transform(trained.features), trained.seen())


def test_an_export_holds_the_map_and_verifies(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(trained.root))
    archive = tmp_path / "run.zip"
    archive.write_bytes(export_run(trained.run_key[:10])[0])
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "elsewhere"))
    checks = {check.what: check.holds for check in verify(archive).checks}
    failed = [what for what, holds in checks.items() if holds is False]
    assert failed == []
    assert checks["epsilon"] is True


def test_a_map_that_is_left_out_is_noticed(trained: Trained) -> None:
    """A mutant: the model on rows of norm 1 instead of functions does not even fit; on others it says other things."""
    made = trained.path[0]
    tables = made.tables.copy()
    tables[:, 1] = -tables[:, 1]
    other = replace(made, tables=tables)
    seen = other.apply(trained.features)
    for one in trained.path[1:-1]:
        seen = one.apply(seen)
    assert not np.array_equal(trained.pipeline[1:-1].transform(trained.features), seen)
    with pytest.raises(ValueError, match="matmul"):
        trained.path[-1].scores(trained.features)
