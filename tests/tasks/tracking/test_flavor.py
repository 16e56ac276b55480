"""A model of a table takes the table's columns, wherever it is asked: in Python, by MLflow, over HTTP."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
import yaml
from mlflow.models import Model
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from dpalgos.models import LinearModel
from storage.encoder import TableEncoder
from storage.errors import InputError, StorageError
from tasks.tracking.flavor import Scorer, load_pipeline, save_model, signature_of
from tasks.tracking.predicted_files import predict_file
from tasks.tracking.row_scores import predictions_of
from tasks.tracking.sklearn_export import to_sklearn

CLINIC = Path(__file__).parents[3] / "docs" / "examples"
GAPS: dict[str, Any] = {"missing": {"marker": "", "rows": "indicator"}}


def table_pipeline(classes: tuple[str, ...] = ("well", "readmitted"), **more: Any) -> Pipeline:
    columns = yaml.safe_load((CLINIC / "clinic.yaml").read_text())["columns"]
    encoder = TableEncoder({"columns": columns, **more})
    width = encoder.declared.dimension
    rng = np.random.default_rng(0)
    model = LinearModel(rng.normal(size=(1 if len(classes) <= 2 else len(classes), width)))
    return to_sklearn(
        normalisation="unit-norm", maps=[], model=model, classes=classes, dimension=width, encoder=encoder
    )


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.read_csv(CLINIC / "clinic.csv")


def saved(folder: Path, pipeline: Pipeline, classes: tuple[str, ...] = ("well", "readmitted")) -> str:
    path = str(folder / "model")
    save_model(
        path, Model(), pipeline=pipeline, classes=classes, dimension=0, requirements=["scikit-learn", "skops", "mlflow"]
    )
    return path


def test_no_file_of_an_installed_package_is_read_to_save_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements are read from what is installed; a user's own models are compared with it as ever."""
    from mlflow.utils import environment, requirements_utils

    compared = environment.warn_dependency_requirement_mismatches
    monkeypatch.setattr(requirements_utils, "_init_modules_to_packages_map", lambda: pytest.fail("read"))
    path = Path(saved(tmp_path, table_pipeline()))
    assert environment.warn_dependency_requirement_mismatches is compared
    assert "scikit-learn" in (path / "requirements.txt").read_text()


def test_a_model_of_a_table_takes_rows_as_they_came(rows: pd.DataFrame, tmp_path: Path) -> None:
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    pipeline = table_pipeline()
    loaded = mlflow.pyfunc.load_model(saved(tmp_path, pipeline))
    found = loaded.predict(rows)
    assert found["prediction"].tolist() == pipeline.predict(rows).tolist()
    assert set(found["prediction"]) == {"well", "readmitted"}
    assert ((found["score readmitted"] > 0) == (found["prediction"] == "readmitted")).all()
    assert loaded.metadata.get_input_schema().input_names() == [
        "age",
        "blood_pressure",
        "cholesterol",
        "smoker",
        "ward",
    ]
    # One row, columns in another order, whole numbers where others are fractions, one column too many.
    one = pd.DataFrame(
        [{"ward": "east", "smoker": "no", "cholesterol": 5, "blood_pressure": 147, "age": 86, "id": "x"}]
    )
    assert loaded.predict(one)["prediction"][0] in ("well", "readmitted")
    client = TestClient(init(loaded))
    answer = client.post("/invocations", json={"dataframe_records": one.to_dict("records")})
    assert answer.json()["predictions"] == loaded.predict(one).to_dict("records")
    split = {"dataframe_split": rows.head(9).to_dict("split")}
    answer = client.post("/invocations", json=split)
    assert [each["prediction"] for each in answer.json()["predictions"]] == found["prediction"].tolist()[:9]
    answer = client.post("/invocations", json={"dataframe_records": one.assign(age=300).to_dict("records")})
    assert "column age: the cell is not a number in [18, 100]" in answer.text


def test_the_request_on_the_page_about_http_is_answered(tmp_path: Path) -> None:
    """`docs/serve-a-model.md` shows a request and its answer: with the same keys, for a model of its columns."""
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    page = (CLINIC.parent / "serve-a-model.md").read_text("utf-8")
    (request,) = re.findall(r"-d '(\{.*\})'", page)
    (shown,) = re.findall(r'^ +(\{"predictions".*\})$', page, flags=re.M)
    client = TestClient(init(mlflow.pyfunc.load_model(saved(tmp_path, table_pipeline()))))
    answer = client.post("/invocations", content=request, headers={"Content-Type": "application/json"})
    assert answer.json()["predictions"][0].keys() == json.loads(shown)["predictions"][0].keys()
    outside = request.replace('"age": 61', '"age": 300')
    refused = client.post("/invocations", content=outside, headers={"Content-Type": "application/json"})
    assert refused.status_code == 400
    assert "age" in refused.text


def test_a_model_of_recoded_columns_recodes_wherever_it_is_asked(tmp_path: Path) -> None:
    """Stored, loaded and served: what it keeps of its schema is the declaration."""
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    columns = [
        {"name": "race", "type": "category", "values": {"Caucasian": "white", "Afr*": "black"}},
        {"name": "age", "type": "numeric", "ordered": ["[60-70)", "[70-80)", "[80-90)"]},
        {"names": ["diag_1", "diag_2"], "type": "category", "first": 3, "values": ["250", "428"]},
        {"name": "insulin", "type": "boolean", "values": {"No": False, "Up": True, "Down": True}},
        {"name": "y", "type": "label", "classes": {"<30": "early", ">30": "rest", "NO": "rest"}},
    ]
    encoder = TableEncoder({"columns": columns}, "clip")
    width = encoder.declared.dimension
    model = LinearModel(np.random.default_rng(2).normal(size=(1, width)))
    given: dict[str, Any] = {"normalisation": "unit-norm", "maps": [], "classes": ("early", "rest")}
    pipeline = to_sklearn(**given, model=model, dimension=width, encoder=encoder)
    path = saved(tmp_path, pipeline, ("early", "rest"))
    rows = pd.DataFrame(
        {
            "race": ["Caucasian", "African", "Martian"],
            "age": ["[80-90)", "[60-70)", "[70-80)"],
            "diag_1": [250.83, 428.0, 1.0],
            "diag_2": ["428", "250.1", "999"],
            "insulin": ["No", "Down", "Up"],
        }
    )
    again, served = load_pipeline(path), mlflow.pyfunc.load_model(path)
    np.testing.assert_array_equal(again[0].transform(rows), encoder.transform(rows))
    expected = pipeline.predict(rows).tolist()
    assert again.predict(rows).tolist() == served.predict(rows)["prediction"].tolist() == expected
    answer = TestClient(init(served)).post("/invocations", json={"dataframe_records": rows.to_dict("records")})
    assert [each["prediction"] for each in answer.json()["predictions"]] == expected
    refused = TestClient(init(served)).post(
        "/invocations", json={"dataframe_records": rows.assign(age="75").to_dict("records")}
    )
    assert "column age: the cell is not one of [60-70), [70-80), [80-90)" in refused.text


def test_a_served_model_reads_missing_cells_as_json_and_no_csv(rows: pd.DataFrame, tmp_path: Path) -> None:
    """MLflow's server reads CSV by the types of a signature alone, and ``any`` is none of those."""
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    pipeline = table_pipeline(**GAPS)
    loaded = mlflow.pyfunc.load_model(saved(tmp_path, pipeline))
    client = TestClient(init(loaded))
    some = rows.head(9).astype({"age": object})
    some.loc[3, "age"] = None
    expected = pipeline.predict(some).tolist()
    answer = client.post("/invocations", content=some.to_csv(index=False), headers={"Content-Type": "text/csv"})
    assert answer.status_code == 400
    assert "not DataType" in answer.json()["message"]
    records = some.where(some.notna(), None).to_dict("records")
    answer = client.post("/invocations", json={"dataframe_records": records})
    assert [each["prediction"] for each in answer.json()["predictions"]] == expected


def test_missing_and_odd_cells_are_as_at_ingestion(rows: pd.DataFrame) -> None:
    pipeline = table_pipeline()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"age": None}, "row 1"),
        ({"ward": "moon"}, "row 1.*ward.*east"),
        ({"cholesterol": "high"}, "row 1, column cholesterol: .* [0-9]"),
    ]
    for change, message in changes:
        with pytest.raises(InputError, match=message):
            pipeline.predict(rows.assign(**change))
    with pytest.raises(InputError, match=r"column 'age'.*blood_pressure"):
        pipeline.predict(rows.drop(columns="age"))
    twice = pd.concat([rows, rows[["age"]]], axis=1)
    with pytest.raises(InputError, match="column 'age'"):
        pipeline.predict(twice)
    tolerant = table_pipeline(**GAPS)
    assert len(tolerant.predict(rows.assign(age=None, ward=np.nan))) == len(rows)
    clipping = TableEncoder(pipeline[0].schema, "clip")
    np.testing.assert_array_equal(
        clipping.transform(rows.assign(age=300, ward="moon"))[:, 0], clipping.transform(rows.assign(age=100))[:, 0]
    )


def test_one_refused_row_does_not_stop_the_others(rows: pd.DataFrame) -> None:
    some = rows.head(3).astype({"age": object})
    some.loc[1, "age"] = "old"
    encoding = table_pipeline()[0].encode(some)
    assert [refusal is None for refusal in encoding.refusals] == [True, False, True]
    assert not encoding.features[1].any()
    assert encoding.features[[0, 2]].any(axis=1).all()


def test_the_signature_names_columns_and_types() -> None:
    def types(**more: Any) -> dict[str, str]:
        inputs = signature_of(table_pipeline(**more), ("well", "readmitted"), 0).inputs
        return {each["name"]: each["type"] for each in inputs.to_dict()}

    assert types() == {
        "age": "any", "blood_pressure": "any", "cholesterol": "any", "smoker": "any", "ward": "any"
    }  # fmt: skip
    assert set(types(**GAPS).values()) == {"any"}
    day = [{"name": name, "type": "ignore"} for name in ("admitted", "discharged")]
    stay = {"name": "stay", "type": "days", "between": ["admitted", "discharged"], "range": [0, 60]}
    label = {"name": "outcome", "type": "label", "classes": ["well", "readmitted"]}
    assert types(columns=[*day, stay, label]) == {"admitted": "any", "discharged": "any"}
    three = ("a", "b", "c")
    outputs = signature_of(table_pipeline(three), three, 0).outputs.to_dict()
    assert [each["name"] for each in outputs] == ["prediction", "score a", "score b", "score c"]


def test_a_regression_of_a_table_gives_numbers(rows: pd.DataFrame, tmp_path: Path) -> None:
    import mlflow.pyfunc

    found = mlflow.pyfunc.load_model(saved(tmp_path, table_pipeline(()), ())).predict(rows)
    assert list(found.columns) == ["prediction"]
    assert found["prediction"].dtype == np.float64


def test_which_types_are_trusted_is_not_the_files_to_say(tmp_path: Path, rows: pd.DataFrame) -> None:
    pipeline = table_pipeline()
    path = saved(tmp_path, pipeline)
    requirements = (tmp_path / "model" / "requirements.txt").read_text()
    assert "unitball" not in requirements
    assert load_pipeline(path).predict(rows).tolist() == pipeline.predict(rows).tolist()
    foreign = Pipeline([*pipeline.steps[:1], ("f", FunctionTransformer(dataclasses.replace)), *pipeline.steps[1:]])
    skops.io.dump(foreign, tmp_path / "model" / "model.skops")
    declared = (tmp_path / "model" / "MLmodel").read_text()
    (tmp_path / "model" / "MLmodel").write_text(
        declared.replace("skops_trusted_types:", "skops_trusted_types:\n    - dataclasses.replace")
    )
    with pytest.raises(StorageError, match=r"\(dataclasses.replace\)"):
        load_pipeline(path)
    with pytest.raises(StorageError, match=r"no model\.skops"):
        load_pipeline(tmp_path)


def test_arrow_and_frames_are_encoded_alike(rows: pd.DataFrame) -> None:
    import pyarrow as pa

    encoder = table_pipeline()[0]
    table = pa.Table.from_pandas(rows)
    np.testing.assert_array_equal(encoder.transform(rows), encoder.transform(table))
    np.testing.assert_array_equal(encoder.transform(rows), encoder.transform(table.to_batches()[0]))
    texts = pd.read_csv(io.StringIO(rows.to_csv(index=False)), dtype=str)
    np.testing.assert_allclose(encoder.transform(rows), encoder.transform(texts))
    with pytest.raises(InputError, match="ndarray"):
        encoder.transform(rows.to_numpy())


def test_no_rows_get_no_predictions(rows: pd.DataFrame) -> None:
    """A nightly delivery may be empty; scikit-learn's own steps refuse no rows."""
    for classes in (("well", "readmitted"), ("a", "b", "c"), ()):
        pipeline = table_pipeline(classes)
        whole, empty = (Scorer(pipeline).predict(frame) for frame in (rows, rows[:0]))
        assert isinstance(whole, pd.DataFrame)
        assert isinstance(empty, pd.DataFrame)
        assert len(empty) == 0
        assert list(empty.columns) == list(whole.columns)
        assert empty.dtypes.to_dict() == whole.dtypes.to_dict()
        with pytest.raises(InputError, match="'age'"):
            Scorer(pipeline).predict(rows[["ward"]][:0])
    arrays = to_sklearn(
        normalisation="unit-norm", maps=[], model=LinearModel(np.eye(3)), classes=("a", "b", "c"), dimension=3
    )
    whole = predictions_of(arrays, np.eye(3))
    assert predictions_of(arrays, np.zeros((0, 3))).dtype == whole.dtype
    assert Scorer(arrays).predict(np.zeros((0, 3))).shape == (0,)
    with pytest.raises(InputError, match=r"shape \(0, 5\).*3\)"):
        predictions_of(arrays, np.zeros((0, 5)))


def test_a_file_that_nests_without_end_is_refused(tmp_path: Path, rows: pd.DataFrame) -> None:
    """It ended in RecursionError, which nobody who loads a model expects."""
    path = Path(saved(tmp_path, table_pipeline()))
    with zipfile.ZipFile(path / "model.skops") as archive:
        schema = json.loads(archive.read("schema.json"))
        others = {name: archive.read(name) for name in archive.namelist() if name != "schema.json"}
    inner = {name: value for name, value in schema.items() if name not in ("protocol", "_skops_version")}
    for depth in (3_000, 200_000):
        text = json.dumps(inner)
        opening = '{"__class__": "list", "__module__": "builtins", "__loader__": "ListNode", "__id__": 1, "content": ['
        nested = opening * depth + text + "]}" * depth
        body = nested[:-1] + f', "protocol": {schema["protocol"]}, "_skops_version": "{schema["_skops_version"]}"}}'
        with zipfile.ZipFile(path / "model.skops", "w") as archive:
            archive.writestr("schema.json", body)
            for name, content in others.items():
                archive.writestr(name, content)
        with pytest.raises(StorageError, match=r"model\.skops.*nested"):
            load_pipeline(path)


LISTS: list[list[float | None] | None] = [
    [1.0, 2.0, 3.0],
    [1.0, 2.0],
    None,
    [4.0, None, 6.0],
    [],
    [7.0, 8.0, 9.0, 1.0],
    [5.0, 1.0, 2.0],
]


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        (pa.list_(pa.float64()), [*LISTS, [1.0, np.inf, 2.0], [np.nan, 1.0, 2.0], [3.0, 2.0, 1.0]]),
        (pa.large_list(pa.float32()), LISTS),
        (pa.list_(pa.int64()), LISTS),
        (pa.list_(pa.uint8()), LISTS),
        (pa.list_(pa.int32(), 3), [LISTS[0], LISTS[3], LISTS[-1]]),
        (pa.list_(pa.int32(), 2), [[1, 2], [3, 4]]),
        (pa.list_(pa.string()), [["1", "2", "3"], ["1", "two", "3"], ["1"], None]),
        (pa.float64(), [1.0, None]),
    ],
    ids=str,
)
def test_lists_of_any_type_are_taken_as_their_numbers(kind: pa.DataType, cells: list[Any], tmp_path: Path) -> None:
    """Each row has the prediction of its own numbers, or says how many there are, or that one is missing."""
    model = LinearModel(np.array([[1.0, -2.0, 0.5]]))
    pipeline = to_sklearn(normalisation="clip", maps=[], model=model, classes=("no", "yes"), dimension=3)
    source, target = tmp_path / "new.parquet", tmp_path / "predicted.parquet"
    pq.write_table(pa.table({"features": pa.array(cells, kind)}), source)
    predict_file(pipeline, source, target)
    predicted = pq.read_table(target).to_pylist()
    assert len(predicted) == len(cells)
    for cell, row in zip(cells, predicted, strict=True):
        try:
            numbers = np.asarray([] if cell is None else cell, dtype=np.float64)
        except ValueError:
            numbers = np.full(3, np.nan)
        if numbers.shape == (3,) and np.isfinite(numbers).all():
            assert row["refusal"] is None
            assert row["prediction"] == pipeline.predict(numbers[None])[0]
        else:
            assert row["prediction"] is None
            said = "missing or not finite" if numbers.size == 3 else f"{numbers.size} numbers, the model takes 3"
            assert said in row["refusal"]


def test_a_number_is_no_list_of_one(tmp_path: Path) -> None:
    """Nor is it scored, though it is as many numbers as the model takes."""
    pipeline = to_sklearn(
        normalisation="clip", maps=[], model=LinearModel(np.array([[1.0]])), classes=("no", "yes"), dimension=1
    )
    source, target = tmp_path / "new.parquet", tmp_path / "predicted.parquet"
    pq.write_table(pa.table({"features": [1.0, 2.0]}), source)
    predict_file(pipeline, source, target)
    assert [row["prediction"] for row in pq.read_table(target).to_pylist()] == [None, None]
