"""A column of every type of pandas, polars, Arrow, NumPy and Python: what text holds of it, or refused by its type."""

from __future__ import annotations

import datetime as dt
import fractions
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.frames import frame_of, number_rows
from storage.readers.in_memory import DeclaredFrame, frame_source
from storage.readers.raw_tables import parquet_rows
from storage.schema import Schema
from storage.source import ReadOptions
from tests.support.kinds import KINDS, MARKERS, means, schema_of

_PANDAS_WHOLE = [f"{sign}{size}" for sign in ("Int", "UInt") for size in (8, 16, 32, 64)]
_POLARS_WHOLE = [f"{sign}{size}" for sign in ("Int", "UInt") for size in (8, 16, 32, 64, 128)]
_IDS = [uuid.UUID(int=number) for number in (1, 2**127, 3)]
_MONTHS = ["2021-01", None, "2022-12"]
_DAY, _NOON = dt.date(2026, 1, 31), dt.datetime(2026, 1, 31, 13, 5)
_BERLIN = dt.timezone(dt.timedelta(hours=1))


def _pandas(cells: list[Any], *kinds: Any) -> dict[str, Any]:
    return {f"pandas {kind}": pd.Series(cells, dtype=kind) for kind in kinds}


def _polars(cells: list[Any], *kinds: Any) -> dict[str, Any]:
    return {f"polars {kind}": pl.Series("x", cells, dtype=kind) for kind in kinds}


def _arrows(cells: list[Any], *kinds: Any) -> dict[str, Any]:
    return {f"Arrow {kind}": pa.array(cells).cast(kind) for kind in kinds}


def _encoded(array: pa.Array) -> dict[str, Any]:
    """Return the other ways in which Arrow, and pandas and polars by it, hold an array."""
    longer = pa.concat_arrays([array[:1], array, array[:1]])
    return {
        "dictionary": array.dictionary_encode(),
        "runs": pc.run_end_encode(array),
        "slice": longer[1:-1],
        "chunks": pa.chunked_array([array[:1], array[1:]]),
        "pandas by Arrow": pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([array]))),
        "pandas category": pd.Series(array.to_pylist(), dtype=object).astype("category"),
        "polars by Arrow": pl.Series(values=array),
        "objects": pd.Series(array.to_pylist(), dtype=object),
        "NumPy objects": np.array([*array.to_pylist(), None], dtype=object)[:-1],
        "list": array.to_pylist(),
        "tuple": tuple(array.to_pylist()),
    }


def columns() -> dict[str, tuple[list[str | None], dict[str, Any]]]:
    """Return, by what they hold, cells as text holds them, and columns that hold the same."""
    whole, few = [0, 1, None, 99, 17, 100], [0, 1, 99]
    fractions_ = [0.1, 2.5, None, 99.5]
    found: dict[str, tuple[list[str | None], dict[str, Any]]] = {}
    found["whole numbers"] = (
        ["0", "1", None, "99", "17", "100"],
        _pandas(whole, *_PANDAS_WHOLE, "Float32", "Float64", "float32", "float64", "int8[pyarrow]", "double[pyarrow]")
        | _pandas([float("nan") if one is None else float(one) for one in whole], "Sparse[float]")
        | _polars(whole, *(getattr(pl, kind) for kind in [*_POLARS_WHOLE, "Float16", "Float32", "Float64", "Object"]))
        | _arrows(whole, pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64())
        | {
            "masked": pd.Series(pd.array(whole, dtype="Int64")),
            "numbers of NumPy": [None if one is None else np.int16(one) for one in whole],
            "several kinds": [np.float32(0), 1, None, "99", Decimal("17.0"), np.uint8(100)],
            **_encoded(pa.array(whole)),
        },
    )
    found["no gaps"] = (
        ["0", "1", "99"],
        {str(kind): np.array(few, kind) for kind in ("i1", "u8", "f2", "f4", "f8", np.longdouble, ">i4", "O")}
        | _pandas(few, "uint8", "int32", np.longdouble, "Sparse[int]")
        | {"range": pd.RangeIndex(0, 2).append(pd.Index([99])), "range of Python": [*range(2), 99]},
    )
    found["huge numbers"] = (
        [str(2**53 + 1), str(2**63), str(10**30), str(-(2**90))],
        {"objects": pd.Series([2**53 + 1, 2**63, 10**30, -(2**90)], dtype=object)}
        | _polars([2**53 + 1, 2**63, 10**30, -(2**90)], pl.Int128, pl.Object),
    )
    found["fractions"] = (
        ["0.1", "2.5", None, "99.5"],
        _pandas(fractions_, "float32", "float64", "Float32", "float[pyarrow]")
        | _polars(fractions_, pl.Float32, pl.Float64)
        | _encoded(pa.array(fractions_)),
    )
    decimals = [Decimal("1.50"), None, Decimal("-3.00")]
    found["decimals"] = (
        ["1.50", None, "-3"],
        _arrows(decimals, *(kind(9, 2) for kind in (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256)))
        | _polars(decimals, pl.Decimal(10, 2), pl.Object)
        | _encoded(pa.array(decimals)),
    )
    texts = ["S\u00fcd", "Su\u0308d", " Ost ", "007", None, "k.A.", "99.0"]
    found["texts"] = (
        list(texts),
        _pandas(texts, "object", "string", "string[pyarrow]", "str", "category", "large_string[pyarrow]")
        | _polars(texts, pl.String, pl.Categorical, pl.Enum([one for one in texts if one]), pl.Object)
        | _arrows(texts, pa.large_string(), pa.string_view(), pa.json_(pa.string()))
        | _encoded(pa.array(texts)),
    )
    found["texts of NumPy"] = (
        ["a", "99.0"],
        {"U": np.array(["a", "99.0"]), "T": np.array(["a", "99.0"], dtype=np.dtypes.StringDType())},
    )
    flags = [True, None, False]
    found["truth values"] = (
        ["True", None, "False"],
        _pandas(flags, "boolean", "object", "bool[pyarrow]", "category")
        | _polars(flags, pl.Boolean, pl.Object)
        | {"bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8()))}
        | _encoded(pa.array(flags)),
    )
    days = [_DAY, None, dt.date(2020, 2, 29)]
    found["days"] = (
        ["2026-01-31", None, "2020-02-29"],
        _arrows(days, pa.date32(), pa.date64(), *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")))
        | _polars(days, pl.Date, *(pl.Datetime(unit) for unit in ("ms", "us", "ns")))
        | {f"datetime64[{unit}]": np.array(days, f"datetime64[{unit}]") for unit in ("D", "h", "m", "s", "ms", "ns")}
        | _pandas(days, "datetime64[s]", "datetime64[ns]", "date32[day][pyarrow]")
        | _encoded(pa.array(days)),
    )
    times = [_NOON, None, dt.datetime(2020, 2, 29, 23, 59, 59, 250_000)]
    found["times"] = (
        ["2026-01-31 13:05:00", None, "2020-02-29 23:59:59.25"],
        _arrows(times, *(pa.timestamp(unit) for unit in ("ms", "us", "ns")))
        | _polars(times, *(pl.Datetime(unit) for unit in ("ms", "us", "ns")))
        | _pandas(times, "datetime64[ms]", "datetime64[ns]")
        | _encoded(pa.array(times)),
    )
    zoned = [None if one is None else one.replace(tzinfo=_BERLIN) for one in times]
    found["times with a zone"] = (
        ["2026-01-31 13:05:00+01:00", None, "2020-02-29 23:59:59.25+01:00"],
        _arrows(zoned, pa.timestamp("us", "America/New_York"), pa.timestamp("ns", "+01:00"))
        | _polars(zoned, pl.Datetime("ms", "UTC"), pl.Datetime("us", "Europe/Berlin"))
        | _pandas(zoned, "datetime64[ns, Europe/Berlin]", "object", "timestamp[us, tz=UTC][pyarrow]")
        | _encoded(pa.array(zoned)),
    )
    found["times of day"] = (
        ["05:06:07", None, "23:59:59.25"],
        _polars([dt.time(5, 6, 7), None, dt.time(23, 59, 59, 250_000)], pl.Time)
        | _encoded(pa.array([dt.time(5, 6, 7), None, dt.time(23, 59, 59, 250_000)])),
    )
    lengths = [dt.timedelta(days=1), None, dt.timedelta(seconds=-5)]
    found["durations"] = (
        ["1 days", None, "-1 days +23:59:55"],
        _arrows(lengths, *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")))
        | _polars(lengths, *(pl.Duration(unit) for unit in ("ms", "us", "ns")))
        | {f"timedelta64[{unit}]": np.array(lengths, f"timedelta64[{unit}]") for unit in ("s", "ms", "ns")}
        | _pandas(lengths, "timedelta64[s]", "timedelta64[ns]")
        | _encoded(pa.array(lengths)),
    )
    months = pd.PeriodIndex(_MONTHS, freq="M")
    found["months"] = (
        list(_MONTHS),
        {
            "index": months,
            "series": pd.Series(months),
            "objects": pd.Series(months, dtype=object),
            "category": pd.Series(months).astype("category"),
            "Arrow": pa.array(pd.Series(months)),
        },
    )
    cut = pd.Series(pd.cut(np.array([1.0, np.nan, 5.0]), [0, 3, 10]))
    found["intervals"] = (
        ["(0, 3]", None, "(3, 10]"],
        {
            "cut": cut,
            "quantiles": pd.Series(
                pd.qcut(np.array([1.0, np.nan, 5.0]), [0, 0.5, 1]).rename_categories(cut.cat.categories)
            ),
            "objects": cut.astype(object),
            "Arrow": pa.array(cut),
        },
    )
    found["identifiers"] = (
        [str(one) for one in _IDS],
        _polars(_IDS, pl.Object) | {"Arrow": pa.array(_IDS)} | {"objects": pd.Series(_IDS), "list": _IDS},
    )
    found["nothing"] = (
        [None] * 3,
        _pandas([None] * 3, "object", "float64", "Int64", "datetime64[ns]", "null[pyarrow]", "category")
        | _polars([None] * 3, pl.Null, pl.Int128, pl.Categorical, pl.Object)
        | {
            "kinds": [None, float("nan"), pd.NaT],
            "Arrow": pa.nulls(3),
            "NA": [pd.NA, Decimal("NaN"), Decimal("sNaN")],
        },
    )
    return found


COLUMNS = columns()


@pytest.mark.parametrize("held", COLUMNS)
def test_a_column_of_any_type_is_what_text_holds_of_it(held: str) -> None:
    texts, given = COLUMNS[held]
    schemas = {kind: schema_of(kind) for kind in KINDS}
    expected = {kind: repr(means(schema, texts)) for kind, schema in schemas.items()}
    differ = []
    for name, column in given.items():
        cells = frame_of({"x": column}).batch(["x"]).column(0)
        differ += [
            (name, kind, found, expected[kind])
            for kind, schema in schemas.items()
            if (found := repr(means(schema, cells))) != expected[kind]
        ]
    assert not differ


def trained(schema: Schema, rows: Any) -> bytes:
    """Return the features of rows as training stores them."""
    source = frame_source(DeclaredFrame(frame=frame_of(rows), schema=schema.document), ReadOptions())
    return b"".join(block.features.tobytes() for block in source.parts["train"])


class Extended(pl.BaseExtension):
    """A column whose storage is numbers, and whose meaning is somebody else's."""

    def __init__(self) -> None:
        super().__init__("test.months", pl.Int64)


REFUSED: dict[str, tuple[Any, str]] = {
    "bytes": ([b"a", None], "bytes"),
    "bytes of NumPy": (np.array([b"a", b"b"]), "binary"),
    "lists": ([1, [2]], "list"),
    "structures": ([{"a": 1}, {"a": 2}], "dict"),
    "complex": (np.array([1, 1j]), "complex"),
    "a class of the user's": ([fractions.Fraction(1, 3), None], "Fraction"),
    "two dimensions": (np.zeros((2, 2)), "2 dimensions"),
    "scalars": ([pa.scalar(1), None], "Int64Scalar"),
    "Arrow lists": (pa.array([[1], None]), "list"),
    "Arrow structures": (pa.array([{"a": 1}, None]), "struct"),
    "Arrow bytes": (pa.array([b"a", None]), "binary"),
    "Arrow months and days": (pa.array([pa.MonthDayNano([1, 2, 3]), None]), "month_day_nano_interval"),
    "Arrow tensors": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), [1]), pa.array([[1], [2]], pa.list_(pa.int8(), 1))
        ),
        "fixed_shape_tensor",
    ),
    "pandas bytes by Arrow": (pd.Series([b"a", None], dtype="binary[pyarrow]"), "binary"),
    "category of bytes": (pd.Series([b"a", b"b"]).astype("category"), "bytes"),
    "polars bytes": (pl.Series([b"a", None]), "binary"),
    "polars lists": (pl.Series([[1], None]), "list"),
    "polars arrays": (pl.Series([[1], None], dtype=pl.Array(pl.Int8, 1)), "list"),
    "polars structures": (pl.Series([{"a": 1}, None]), "struct"),
    "polars objects": (pl.Series([object(), None], dtype=pl.Object), "object"),
    "polars extension": (pl.Series([600, 601]).ext.to(Extended()), "test.months"),
}  # fmt: skip


@pytest.mark.parametrize("held", REFUSED)
def test_a_column_without_values_is_refused_by_its_type_if_the_schema_names_it(held: str) -> None:
    column, kind = REFUSED[held]
    schema = schema_of("values")
    given = {"other": [True, False], "x": column, "label": [0, 1]}
    for call in (TableEncoder(dict(schema.document), "clip").transform, partial(trained, schema)):
        with pytest.raises(InputError, match=f"column 'x'.*{kind}"):
            call(given)
        assert call({"y": column, **given, "x": ["1.0", "17"]}) is not None


FRAMES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "mapping": dict,
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "Arrow": pa.table,
    "batch": pa.RecordBatch.from_pydict,
    "records": lambda cells: [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)],
    "reader": lambda cells: pa.table(cells).to_reader(),
    "NumPy": lambda cells: pd.DataFrame(cells).to_records(index=False),
}


@pytest.mark.parametrize("rows", [5, 0])
def test_rows_are_the_same_in_every_container(rows: int) -> None:
    schema = schema_of("numbers")
    cells: dict[str, list[Any]] = {"x": list(range(rows)), "other": [True] * rows, "label": [0.5] * rows}
    encoder, found = TableEncoder(dict(schema.document)), []
    for name, opened in FRAMES.items():
        if not rows and name == "records":
            continue
        blocks = trained(schema, opened(cells))
        found.append((frame_of(opened(cells)).rows, blocks, encoder.transform(opened(cells)).tobytes()))
    assert found == [(rows, found[0][2], found[0][2])] * len(found)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (np.zeros((2, 2)), "ndarray"),
        ([], "list"),
        ([1, 2], "list"),
        ("rows", "str"),
        (None, "NoneType"),
        (pl.DataFrame({"x": [1]}).lazy(), "LazyFrame.*collect"),
        (pd.Series([1]), "Series"),
        (pa.array([1]), "Int64Array"),
        (pd.DataFrame({"y": [1]}), "'x' is missing.*y"),
        (pd.DataFrame({"x": [1]}).set_index("x"), "reset_index"),
        (pd.DataFrame([[1, 2]], columns=["x", "x "]), "'x' occurs twice"),
        (pa.table([[1], [2]], ["x", "x"]), "'x' occurs twice"),
        (pd.DataFrame({("x", "a"): [1]}), "missing"),
        ({"x": [1], "other": [True, False]}, "other.* 2 cells"),
        ({"x": "1", "other": [True]}, "'x' is a str"),
        ({"x": 1, "other": [True]}, "'x' is a int"),
        ({"x": {1}, "other": [True]}, "'x' is a set"),
        ({"x": ["\ud800"], "other": [True]}, "row 1, column 'x'.*str"),
        ({"x": {"a": 1}, "other": [True]}, "'x' is a dict"),
    ],
)
def test_what_is_no_frame_of_the_schema_is_refused(rows: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        TableEncoder(dict(schema_of("numbers").document)).transform(rows)


def test_names_that_are_no_texts() -> None:
    day = pd.Timestamp("2026-01-31")
    frame = pd.DataFrame([[1, 2, 3, 4]], columns=pd.Index([0, 1.5, day, None], dtype=object))
    assert frame_of(frame).names == ("0", "1.5", "2026-01-31", "None")
    assert frame_of(frame).batch(["0", "2026-01-31"]).to_pylist() == [{"0": 1, "2026-01-31": 3}]


def test_cells_of_several_kinds_keep_their_kinds_where_rows_are_taken() -> None:
    cells = [dt.date(2026, 2, 1), "31.01.2026", None, 5, 2.5, True, "5"]
    schema = schema_of("days")
    (day,) = (column for column in schema.columns if column.name == "x")
    batch = frame_of({"x": cells}).batch(["x"])
    for start in range(len(cells)):
        part = batch.slice(start, 2).column(0)
        alone = [means(schema, frame_of({"x": [cell]}).batch(["x"]).column(0)) for cell in cells[start : start + 2]]
        assert means(schema, part) == tuple([one[field][0] for one in alone] for field in range(4))
    assert day.name in MARKERS or batch.num_rows == len(cells)


def test_numbers_of_a_frame_are_those_of_its_array() -> None:
    values = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    wanted = values.astype(np.float64).tobytes()
    frame = pd.DataFrame(values, columns=["a", "b"])
    for rows in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame), frame.astype("Float32"), values):
        assert np.asarray(number_rows(rows), np.float64).tobytes() == wanted
    assert number_rows({"a": [True, None, Decimal("1.5"), "2"]})[:, 0].tolist()[0::2] == [1.0, 1.5]
    for column in ([_DAY, _NOON], ["a", 1], [b"a", 1], pd.period_range("2021-01", periods=2, freq="M")):
        with pytest.raises(InputError, match="column 'a'"):
            number_rows({"a": column})


def test_extensions_in_parquet_are_what_they_are_in_a_frame(tmp_path: Path) -> None:
    """Arrow stores months as numbers, 612 and so on, under a type that it knows by its name alone."""
    months = pd.Series(pd.period_range("2021-01", periods=3, freq="M"))
    frame = pa.table({"month": pa.array(months), "id": pa.array(_IDS), "tag": pl.Series([1, 2, 3]).to_arrow()})
    pq.write_table(frame, tmp_path / "rows.parquet")
    wanted = frame_of(frame).batch(["month", "id", "tag"]).to_pydict()
    assert wanted["month"] == ["2021-01", "2021-02", "2021-03"]
    (read,) = parquet_rows(tmp_path / "rows.parquet", 9)
    assert {name: cells.to_pylist() for name, cells in read.columns.items()} == wanted
    path = tmp_path / "other.parquet"
    for name, described in (("test.months", "{}"), ("pandas.period", "{}"), ("pandas.interval", '{"closed": "left"}')):
        metadata = {"ARROW:extension:name": name, "ARROW:extension:metadata": described}
        fields = [pa.field("month", pa.int64(), metadata=metadata), pa.field("id", pa.int64())]
        table = pa.table([pa.array([1]), pa.array([2])], pa.schema(fields))
        pq.write_table(table, path)
        assert [rows.columns["id"].to_pylist() for rows in parquet_rows(path, 9, ["id"])] == [[2]]
        for call in (lambda: list(parquet_rows(path, 9)), partial(frame_of(table).batch, ["month"])):
            with pytest.raises(InputError, match=f"month.*{name}"):
                call()
