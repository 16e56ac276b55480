"""Predicting the rows of a file: all that can be, in order, for its owner alone."""

from __future__ import annotations

import errno
import gzip
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.models import Model

from dpalgos.models import LinearModel
from dpalgos.registry import AlgorithmSpec
from storage.encoder import Clipped
from storage.errors import InputError, StorageError
from tasks.tracking import predicted_files as module
from tasks.tracking.flavor import load_pipeline, save_model
from tasks.tracking.predicted_files import Predicted, predict_file
from tasks.tracking.sklearn_export import to_sklearn
from tests.support.encoders import BOTH, small_encoder
from tests.support.leaks import found_in
from tests.tasks.tracking.test_flavor import CLINIC, table_pipeline
from unitball.training import predicted

ROWS = CLINIC / "clinic.csv"


def test_each_row_gets_a_prediction_or_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_ROWS", 7)
    caplog.set_level(logging.DEBUG)
    lines = ROWS.read_text().splitlines()[:31]
    lines = [f"{'id' if not place else f'p{place}'},{line}" for place, line in enumerate(lines)]
    lines[4] = lines[4].rsplit(",", 1)[0]
    lines[9] = "p9,300,120,5,no,north,well"
    lines[20] = "p20,60,,5,no,moon,well"
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    pipeline = table_pipeline()
    output = tmp_path / "out.parquet"
    assert predict_file(pipeline, tmp_path / "new.csv", output, id_column="id") == Predicted(30, 3)
    assert output.stat().st_mode & 0o777 == 0o600
    found = pq.read_table(output).to_pandas()
    assert list(found.columns) == ["row", "id", "prediction", "score readmitted", "refusal"]
    assert found["row"].tolist() == list(range(2, 32))
    refused = found[found["refusal"].notna()].set_index("row")["refusal"]
    assert refused.to_dict() == {
        5: "6 cells, there are 7 columns",
        10: "column age: '300' is not a number in [18, 100]",
        21: "column blood_pressure: the value is missing",
    }
    assert found[found["refusal"].notna()][["prediction", "score readmitted"]].isna().all(axis=None)
    good = found[found["refusal"].isna()]
    raw = pd.read_csv(ROWS).iloc[good["row"].to_numpy() - 2]
    assert good["prediction"].tolist() == pipeline.predict(raw).tolist()
    np.testing.assert_allclose(good["score readmitted"], pipeline.decision_function(raw))
    assert good["id"].tolist() == [f"p{row - 1}" for row in good["row"]]
    assert not [record for record in caplog.records if "30" in record.getMessage() or "refus" in record.getMessage()]


def test_cells_that_are_clipped_are_counted_by_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of rows that are predicted alone; whoever asked gets the first of each, and no log or file does."""
    monkeypatch.setattr(module, "_ROWS", 7)
    caplog.set_level(logging.DEBUG)
    lines = ROWS.read_text().splitlines()[:31]
    # Line 4 is refused for its pressure, line 6 for its length.
    lines[3] = "371,,5,no,mars7713,well"
    lines[5] = "372,120,5,no,mars7713"
    lines[9] = "373,120,5,no,venus7713,well"
    lines[20] = "374,120,5,no,north,well"
    lines[21] = "60,120,5,no,moon7713,well"
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    pipeline, output = table_pipeline(), tmp_path / "out.parquet"
    pipeline[0].on_violation = "clip"
    done = predict_file(pipeline, tmp_path / "new.csv", output)
    assert (done.rows, done.refused) == (30, 2)
    assert dict(done.clipped) == {"age": Clipped(2, 10, "373"), "ward": Clipped(2, 10, "venus7713")}
    assert {path.name for path in tmp_path.iterdir()} == {"new.csv", "out.parquet"}
    assert found_in([tmp_path / "new.csv"], [b"7713"])
    assert not found_in([output], [b"7713", b"373", b"374"])
    assert not [record for record in caplog.records if "37" in record.getMessage() or "7713" in record.getMessage()]
    pipeline[0].on_violation = "refuse"
    assert predict_file(pipeline, tmp_path / "new.csv", tmp_path / "refused.parquet") == Predicted(30, 5)


def test_what_a_notebook_is_told_of_clipped_cells_names_no_value(tmp_path: Path) -> None:
    pipeline = table_pipeline()
    rows = pd.read_csv(ROWS).head(4).astype({"ward": object})
    rows.loc[2, "ward"] = "moon7713"
    pipeline[0].on_violation = "clip"
    with pytest.warns(UserWarning, match=r"column ward: 1 cell .*row 3") as told:
        found = predicted(pipeline, rows)
    assert not [one for one in told if "7713" in str(one.message)]
    assert found.tolist() == pipeline.predict(rows).tolist()
    pipeline[0].on_violation = "refuse"
    with pytest.raises(InputError, match="row 3"):
        predicted(pipeline, rows)


def test_parquet_keeps_its_types_and_lacks_nothing(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(pd.read_csv(ROWS).drop(columns="outcome").assign(number=range(4000)))
    pq.write_table(table, tmp_path / "new.parquet")
    done = predict_file(table_pipeline(), tmp_path / "new.parquet", tmp_path / "out.parquet", id_column="number")
    assert done == Predicted(4000, 0)
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema.field("number").type == pa.int64()
    assert found.column("number").to_pylist() == list(range(4000))


def test_what_is_wrong_with_the_file_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    pipeline = table_pipeline()
    output = tmp_path / "out.parquet"
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("age,ward\n1,north\n", {}, "column 'blood_pressure'"),
        ("age,age\n1,2\n", {}, r"new\.csv: column 'age'"),
        (ROWS.read_text(), {"id_column": "number"}, "column 'number'"),
        ("\n", {}, r"new\.csv is empty"),
    ]
    for text, more, message in cases:
        (tmp_path / "new.csv").write_text(text)
        with pytest.raises(InputError, match=message):
            predict_file(pipeline, tmp_path / "new.csv", output, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]
    output.write_text("something")
    with pytest.raises(InputError, match="exists"):
        predict_file(pipeline, ROWS, output)
    assert output.read_text() == "something"
    with pytest.raises(InputError, match=r"out\.csv.*Parquet.*out\.parquet"):
        predict_file(pipeline, ROWS, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    with pytest.raises(StorageError, match="No such file"):
        predict_file(pipeline, ROWS, tmp_path / "nowhere" / "out.parquet")


def test_rows_without_a_header_are_taken_by_place(tmp_path: Path) -> None:
    lines = ROWS.read_text().splitlines()[1:6]
    with_label, without = tmp_path / "a.csv", tmp_path / "b.csv"
    with_label.write_text("\n".join(lines) + "\n")
    without.write_text("\n".join(line.rsplit(",", 1)[0] for line in lines) + "\n")
    pipeline = table_pipeline(header=False)
    for source in (with_label, without):
        predict_file(pipeline, source, source.with_suffix(".parquet"))
    found = [pq.read_table(source.with_suffix(".parquet")) for source in (with_label, without)]
    assert found[0].equals(found[1])
    assert found[0].column("prediction").to_pylist() == table_pipeline().predict(pd.read_csv(ROWS).head(5)).tolist()


def test_a_model_of_arrays_takes_lists(tmp_path: Path) -> None:
    pipeline = to_sklearn(
        normalisation="unit-norm", maps=[], model=LinearModel(np.eye(3)), classes=("a", "b", "c"), dimension=3
    )
    lists = [[1.0, 0, 0], [0, 2.0, 0], [0, 0], None, [0, 0, float("nan")]]
    pq.write_table(pa.table({"features": lists}), tmp_path / "new.parquet")
    assert predict_file(pipeline, tmp_path / "new.parquet", tmp_path / "out.parquet") == Predicted(5, 3)
    assert pq.read_table(tmp_path / "out.parquet").column("prediction").to_pylist() == ["a", "b", None, None, None]
    with pytest.raises(InputError, match=r"model.*Parquet"):
        predict_file(pipeline, ROWS, tmp_path / "other.parquet")


def test_a_model_behind_the_encoder_answers_alike_wherever_it_is_asked(tmp_path: Path) -> None:
    """In Python, from MLflow, over HTTP, from a file, and of a picture by itself."""
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    random, names = np.random.default_rng(3), ("coat", "shoe", "bag")
    made = AlgorithmSpec("projections", "side-by-side", small_encoder((2, 3))).build().map_for(6)
    # Dense pictures would all be alike.
    pictures = np.where(random.random((12, 6)) > 0.6, random.random((12, 6)), 0.0)
    model = LinearModel(random.normal(size=(3, BOTH)))
    pipeline = to_sklearn(normalisation="unit-norm", maps=[made], model=model, classes=names, dimension=6)
    rows = pictures / np.linalg.norm(pictures, axis=1, keepdims=True)
    expected = [names[label] for label in model.predict(made.transform(rows))]
    assert len(set(expected)) > 1
    path = str(tmp_path / "model")
    save_model(path, Model(), pipeline=pipeline, classes=names, dimension=6, requirements=["scikit-learn"])
    loaded = mlflow.pyfunc.load_model(path)
    assert loaded.predict(pictures).tolist() == expected
    assert [loaded.predict(one[None]).item() for one in pictures] == expected
    answer = TestClient(init(loaded)).post("/invocations", json={"inputs": pictures.tolist()})
    assert answer.json()["predictions"] == expected
    pq.write_table(pa.table({"features": pictures.tolist()}), tmp_path / "new.parquet")
    again = load_pipeline(path)
    assert predict_file(again, tmp_path / "new.parquet", tmp_path / "out.parquet") == Predicted(12, 0)
    assert pq.read_table(tmp_path / "out.parquet").column("prediction").to_pylist() == expected


@pytest.mark.parametrize("more", [{}, {"id_column": "ward"}])
def test_a_delivery_without_rows_is_an_output_without_rows(more: dict[str, Any], tmp_path: Path) -> None:
    """A nightly delivery may be empty; scikit-learn's own steps refuse no rows."""
    text, table = tmp_path / "new.csv", tmp_path / "new.parquet"
    frame = pd.read_csv(ROWS).drop(columns="outcome").astype({"ward": "category"}).head(3)
    for name, rows in (("whole", frame), ("empty", frame[:0])):
        rows.to_csv(text, index=False)
        pq.write_table(pa.Table.from_pandas(rows.astype({"ward": str}), preserve_index=False), table)
        for source in (text, table):
            done = predict_file(table_pipeline(), source, tmp_path / f"{name}{source.suffix}.out", **more)
            assert done == Predicted(len(rows), 0)
    for suffix in (".csv", ".parquet"):
        whole, empty = (pq.read_table(tmp_path / f"{name}{suffix}.out") for name in ("whole", "empty"))
        assert empty.num_rows == 0
        assert empty.schema.names == whole.schema.names
        assert [one.type for one in empty.schema if one.name != "ward"] == [
            one.type for one in whole.schema if one.name != "ward"
        ]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_delivery_without_rows_has_the_columns_of_one_with_rows(suffix: str, tmp_path: Path) -> None:
    """What will be refused with its first row is refused before."""
    source, frame = tmp_path / f"new{suffix}", pd.read_csv(ROWS).drop(columns="outcome").head(1)

    def write(rows: pd.DataFrame) -> None:
        if suffix == ".csv":
            rows.to_csv(source, index=False)
        else:
            pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), source)

    for rows in (frame, frame[:0]):
        write(rows.drop(columns="age"))
        with pytest.raises(InputError, match=r"column 'age'.*blood_pressure"):
            predict_file(table_pipeline(), source, tmp_path / "out")
        write(rows)
        with pytest.raises(InputError, match="column 'number'"):
            predict_file(table_pipeline(), source, tmp_path / "out", id_column="number")
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_an_empty_file_is_a_delivery_where_there_is_no_line_of_names(tmp_path: Path) -> None:
    source = tmp_path / "new.csv"
    for number, text in enumerate(("", "\n\n")):
        source.write_text(text)
        done = predict_file(table_pipeline(header=False), source, tmp_path / f"{number}.out", id_column="ward")
        assert done == Predicted(0, 0)
        assert pq.read_schema(tmp_path / f"{number}.out").names[:2] == ["row", "ward"]
        with pytest.raises(InputError, match="column names"):
            predict_file(table_pipeline(), source, tmp_path / "other.out")


def test_lists_of_no_rows(tmp_path: Path) -> None:
    pipeline = to_sklearn(
        normalisation="unit-norm", maps=[], model=LinearModel(np.eye(3)), classes=("a", "b", "c"), dimension=3
    )
    kind = pa.schema({"features": pa.list_(pa.float64()), "id": pa.int64()})
    pq.write_table(kind.empty_table(), tmp_path / "new.parquet")
    assert predict_file(pipeline, tmp_path / "new.parquet", tmp_path / "o", id_column="id") == Predicted(0, 0)
    assert pq.read_schema(tmp_path / "o").field("id").type == pa.int64()


def test_what_prediction_refuses_names_no_option_of_ingestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is the model's by then: nobody can declare another encoding, or more bytes."""
    (tmp_path / "latin.csv").write_bytes(ROWS.read_bytes().replace(b"north", "Süd".encode("latin-1"), 1))
    (tmp_path / "large.csv.gz").write_bytes(gzip.compress(ROWS.read_bytes()))
    monkeypatch.setattr("storage.source._ALWAYS_UNFOLDED", 100)
    monkeypatch.setattr("storage.source._MOST_UNFOLDED", 1)
    for name, bound in (("latin.csv", "0xfc"), ("large.csv.gz", "bytes"), ("gone.csv", "--input")):
        with pytest.raises(InputError, match=bound) as refused:
            predict_file(table_pipeline(), tmp_path / name, tmp_path / "out.parquet")
        assert not re.search("schema|declare|--path|--max-bytes|--on-violation", str(refused.value))


def test_a_full_disk_is_named_with_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(StorageError, match=r"out\.parquet"):
        predict_file(table_pipeline(), ROWS, tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []
