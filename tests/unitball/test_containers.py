"""One table as CSV, Parquet, data frame, Arrow and JSON: every feature is equal to the bit, or refused alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.models import Model
from pyarrow import csv as arrow_csv

from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from storage.encoder import TableEncoder
from storage.fingerprints import Fingerprints
from storage.frames import frame_of
from storage.readers.raw_tables import raw_rows
from storage.refs import OnViolation
from storage.schema import parse_schema
from storage.source import ReadOptions, read_source
from tasks.tracking.flavor import save_model
from tasks.tracking.predicted_files import predict_file
from tasks.tracking.sklearn_export import to_sklearn
from tests.support.kinds import KINDS, means, schema_of
from unitball import PrivateClassifier

WHOLE = [0, 1, 2, 99, 17, 100]
GAPS: list[Any] = [0, 1, None, 99, 17, 100]
DAYS = ["2026-01-31", "2020-02-29", "2026-03-29", "2030-12-31", "2021-06-01", "2024-01-01"]
DAY_CELLS = [date.fromisoformat(day) for day in DAYS]
TIMES = [f"{day} {clock}" for day, clock in zip(DAYS, ["13:05:00", "00:00:00", "23:59:59.25"] * 2, strict=True)]


def columns() -> dict[str, Any]:
    """Return a column of each type that pandas has, six rows each."""
    found: dict[str, Any] = {
        kind: pd.Series(WHOLE, dtype=kind)
        for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    }
    found |= {
        kind: pd.Series(GAPS, dtype=kind)
        for kind in ("Int8", "Int64", "UInt32", "float32", "float64", "Float32", "Float64", "object", "int64[pyarrow]")
    }
    fractions = [0.1, 2.5, None, 1e-5, 33.333333, 99.5]
    found |= {f"fractions {kind}": pd.Series(fractions, dtype=kind) for kind in ("float32", "float64", "Float32")}
    found["large"] = pd.Series([2**53 + 1, 2**63 - 1, 99, 0, -1, 10**16])
    found["large with gaps"] = pd.Series([2**53 + 1, None, 99, 0, -1, 10**16], dtype="Int64")
    found["large floats"] = pd.Series([2.0**53, 1e16, 99.0, 1e22, -3.0, None])
    found["bool"] = pd.Series([True, False] * 3)
    found["boolean"] = pd.Series([True, None, False] * 2, dtype="boolean")
    found["object of bool"] = pd.Series([True, None, False] * 2, dtype=object)
    texts = ["S\u00fcd", "Su\u0308d", " Ost ", "007", "k.A.", "99.0"]
    found |= {f"text {kind}": pd.Series(texts, dtype=kind) for kind in ("object", "string", "category")}
    found["numbers as text"] = pd.Series(["+99", "1e+16", "12E4", "1.50", "0", "-0.0"])
    found["flags as text"] = pd.Series(["true", "FALSE", "1", "0.0", "yes", "t"])
    found["days as text"] = pd.Series(DAYS)
    found["categories of numbers"] = pd.Series(pd.Categorical(GAPS))
    found["categories of fractions"] = pd.Series(pd.Categorical(fractions))
    found["categories of days"] = pd.Series(pd.Categorical(pd.to_datetime(DAYS)))
    found["decimals"] = pd.Series([Decimal(one) for one in ("1.50", "99.00", "0.10", "-3", "100", "2.5")])
    found["decimal128"] = found["decimals"].astype(pd.ArrowDtype(pa.decimal128(20, 3)))
    found["dates"] = pd.Series([*DAY_CELLS[:5], None], dtype=object)
    found["date32"] = pd.Series(DAY_CELLS, dtype=pd.ArrowDtype(pa.date32()))
    for unit in ("s", "ms", "us", "ns"):
        found[f"midnights {unit}"] = pd.Series(np.array(DAYS, dtype=f"datetime64[{unit}]"))
        found[f"times {unit}"] = pd.Series(np.array([*TIMES[:5], "NaT"], dtype=f"datetime64[{unit}]"))
    found["times as text"] = pd.Series(TIMES)
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        found[zone] = pd.Series(pd.to_datetime(TIMES, format="ISO8601")).dt.tz_localize(zone)
        found[f"midnights {zone}"] = pd.Series(pd.to_datetime(DAYS)).dt.tz_localize(zone)
    found["durations"] = pd.Series(pd.to_timedelta([0, 90, 86400, None, 99, -5], unit="s"))
    found["whole days"] = pd.Series(pd.to_timedelta([0, 1, 2, 99, 17, 100], unit="D"))
    found["clock"] = pd.Series([time(5, 6, 7), time(0), time(23, 59, 59, 250000), None, time(1), time(2)], dtype=object)
    return found


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a frame as the records of JSON that a client sends."""
    cells = frame.astype(object).where(frame.notna(), None)
    found: list[dict[str, Any]] = json.loads(json.dumps(cells.to_dict("records"), default=str))
    return found


def files(frame: pd.DataFrame, folder: Path) -> tuple[Path, Path, Path]:
    """Write a frame as CSV, by pandas and by Arrow, and as Parquet."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, folder / "rows.parquet")
    frame.to_csv(folder / "rows.csv", index=False)
    # Arrow's writer has no decimals of categories and no durations; what it makes of the others is what is looked at.
    plain = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    written = {
        name: column.cast(pa.string()) if pa.types.is_decimal(column.type) else column
        for name, column in zip(table.column_names, plain, strict=True)
    }
    spelled = {name: pa.array(frame[name].astype(str).where(frame[name].notna(), None), pa.string(), from_pandas=True)
               for name, column in written.items() if pa.types.is_duration(column.type)}  # fmt: skip
    arrow_csv.write_csv(pa.table({**written, **spelled}), folder / "arrow.csv")
    return folder / "rows.csv", folder / "arrow.csv", folder / "rows.parquet"


def containers(frame: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return the columns of one frame as each container gives them to the encoder, read once each."""
    names = list(frame.columns)
    first, *others = names
    declared: list[dict[str, Any]] = [{"name": name, "type": "boolean"} for name in others]
    declared += [{"name": first, "type": "label", "range": [0, 1]}]
    layout = parse_schema({"columns": declared}, "layout")
    given: dict[str, Any] = {}
    for path in files(frame, folder):
        (rows,) = raw_rows(path, layout, 4096)
        given[path.name] = rows.columns
    given["data frame"] = encoded_cells(frame)
    given["Arrow"] = encoded_cells(pa.Table.from_pandas(frame, preserve_index=False))
    given["JSON"] = {name: [row[name] for row in records(frame)] for name in names}
    given["served JSON"] = encoded_cells(pd.DataFrame(records(frame)))
    return given


def encoded_cells(table: Any) -> dict[str, Any]:
    """Return the cells of a table as the encoder of a logged model reads them."""
    frame = frame_of(table)
    batch = frame.batch(frame.names)
    return dict(zip(batch.schema.names, batch.columns, strict=True))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return containers(pd.DataFrame(columns()), tmp_path_factory.mktemp("containers"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_means_the_same_in_every_container(kind: str, everything: dict[str, Any]) -> None:
    differ, schema = [], schema_of(kind)
    for name in columns():
        found = {container: repr(means(schema, cells[name])) for container, cells in everything.items()}
        if name == "large with gaps":
            # pandas makes floats of them, whose neighbours nobody knows: refused, and not taken for another.
            served = found.pop("served JSON")
            assert KINDS[kind]["type"] in ("numeric", "date", "boolean") or served.startswith("([False, True, ")
        differ += [(name, *found.items())] if len(set(found.values())) > 1 else []
    assert not differ


def test_the_kinds_admit_something(everything: dict[str, Any]) -> None:
    """Otherwise all might be refused alike, and nothing be compared."""
    for kind in KINDS:
        schema = schema_of(kind)
        admitted = [name for name in columns() if not all(means(schema, everything["rows.csv"][name])[1])]
        assert len(admitted) >= 9, kind
    missing = means(schema_of("numbers"), everything["rows.csv"]["float64"])[0]
    assert missing == [False, False, True, True, False, False]


CHOSEN: dict[str, dict[str, Any]] = {
    "int64": {"type": "numeric", "range": [0, 100]},
    "float64": {"type": "numeric", "range": [0, 100]},
    "fractions float32": {"type": "numeric", "range": [0, 100], "scale": "log"},
    "Int64": {"type": "category", "values": ["0", "1", "17.0", "100"]},
    "categories of fractions": {"type": "category", "values": [0.1, 2.5, 1e-5, 33.333333, 99.5]},
    "text category": {"type": "category", "values": ["S\u00fcd", "Ost", "007"]},
    "boolean": {"type": "boolean"},
    "decimals": {"type": "category", "hash": 64},
    "dates": {"type": "category", "hash": 64},
    "midnights ns": {"type": "date", "range": ["2020-01-01", "2030-12-31"], "parts": ["days", "month"]},
    "Europe/Berlin": {"type": "date", "range": ["2020-01-01", "2031-01-01"], "parts": ["days", "weekday"]},
}


def test_ingestion_prediction_and_estimator_see_the_same_rows(tmp_path: Path) -> None:
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    frame = pd.DataFrame(columns())[[*CHOSEN, "bool"]]
    # A letter of two characters in the name of a column, of one in the schema.
    decomposed = frame.rename(columns={"dates": "gesehen fu\u0308r"})
    declared = [{"name": name if name != "dates" else "gesehen f\u00fcr", **kind} for name, kind in CHOSEN.items()]
    document = {
        "columns": [*declared, {"name": "bool", "type": "label", "classes": ["false", "true"]}],
        "missing": {"marker": ["", 99, "k.A."], "rows": "indicator"},
    }
    (tmp_path / "schema.yaml").write_text(json.dumps(document))
    csv, by_arrow, parquet = files(decomposed, tmp_path)
    features, prints, labels = [], [], []
    for path in (csv, by_arrow, parquet):
        options = ReadOptions(schema=tmp_path / "schema.yaml", on_violation=OnViolation.REFUSE)
        (block,) = read_source("parquet" if path is parquet else "csv", path, options).parts["train"]
        features.append(np.asarray(block.features))
        labels.append(np.asarray(block.labels).tolist())
        noted = Fingerprints(b"k" * 32)
        assert block.plain is not None
        noted.add(block.plain)
        prints.append([kind.tolist() for kind in noted.kinds()])
    assert labels == [["True", "False"] * 3] * 3
    assert prints == prints[:1] * 3, "rows are not recognised where they come back"
    encoder = TableEncoder(document)
    tables: dict[str, Any] = {
        "frame": decomposed, "JSON": pd.DataFrame(records(decomposed)), "Arrow": pa.Table.from_pandas(decomposed),
    }  # fmt: skip
    features += [encoder.transform(table) for table in tables.values()]
    assert {one.tobytes() for one in features} == {features[0].tobytes()}
    # The model's signature has the names as they are declared, and MLflow compares names on its own.
    named = frame.rename(columns={"dates": "gesehen f\u00fcr"})
    width = encoder.declared.dimension
    pipeline = to_sklearn(
        normalisation="unit-norm",
        maps=[],
        model=LinearModel(np.random.default_rng(0).normal(size=(1, width))),
        classes=("False", "True"),
        dimension=width,
        encoder=encoder,
    )
    expected = pipeline.decision_function(named).tolist()
    assert len(set(expected)) == len(expected)
    for path in (csv, by_arrow, parquet):
        output = tmp_path / f"{path.name}.predicted"
        assert predict_file(pipeline, path, output).refused == 0
        assert pq.read_table(output).column("score True").to_pylist() == expected
    model = Model()
    save_model(
        str(tmp_path / "model"),
        model,
        pipeline=pipeline,
        classes=("False", "True"),
        dimension=0,
        requirements=["skops"],
    )
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert loaded.predict(named)["score True"].tolist() == expected
    answer = TestClient(init(loaded)).post("/invocations", json={"dataframe_records": records(named)})
    assert [one["score True"] for one in answer.json()["predictions"]] == expected
    spelled: dict[str, Callable[[], Any]] = {
        "bool": lambda: frame["bool"], "text": lambda: frame["bool"].map({True: "TRUE", False: "false"}),
    }  # fmt: skip
    scores = []
    for table in tables.values():
        for labelled in spelled.values():
            fitted = PrivateClassifier(schema=document, public=True, random_state=0, algorithm="noisy-gd")
            scores.append(fitted.fit(table, labelled()).decision_function(table).tolist())
    assert scores == scores[:1] * len(scores)


def test_labels_of_an_estimator_are_compared_like_all_cells() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = np.where(X[:, 0] > 0, "S\u00fcd", "Ost")
    scores = []
    for labels in (y, np.char.replace(y, "\u00fc", "u\u0308"), y.astype(object)):
        model = PrivateClassifier(classes=["Ost", "S\u00fcd"], public=True, random_state=0)
        scores.append(model.fit(X, labels).decision_function(X).tolist())
        assert set(model.predict(X)) <= {"Ost", "S\u00fcd"}
    assert scores == scores[:1] * 3
    whole = PrivateClassifier(classes=[0, 1], public=True, random_state=0)
    fits = [whole.fit(X, labels).predict(X).tolist() for labels in (X[:, 0] > 0, (X[:, 0] > 0) * 1.0, ["0", "1"] * 20)]
    assert fits[0] == fits[1]
    with pytest.raises(ParameterError, match=r"label 'Nord'.*'Ost'"):
        PrivateClassifier(classes=["Ost", "West"], public=True).fit(X, ["Ost", "Nord"] * 20)
    with pytest.raises(ParameterError, match=r"classes.*declared"):
        PrivateClassifier(classes=["S\u00fcd", "Su\u0308d"], public=True).fit(X, y)
