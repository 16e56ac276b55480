"""Any cell as its one canonical value, and what compared cells in code of its own before."""

from __future__ import annotations

import unicodedata
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from storage.cells import absent, canonical_text, canonical_texts, column_name, days, numbers
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.people import identifiers
from storage.refs import OnViolation
from storage.source import ReadOptions, read_source

BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([99, 99.0, "99", "99.0", "+99", " 99", "9.9e+1", np.float32(99), np.uint8(99), Decimal("99.00"), "99."], "99"),
        ([0, -0.0, "-0.0", "0.0e5", "+0"], "0"),
        ([1.5, "1.50", Decimal("1.500"), np.float16(1.5)], "1.5"),
        ([0.1, np.float32(0.1), np.float16(0.1), "0.1", 0.10000000149011612, "0.10000000149011612"], "0.1"),
        ([1e-5, "0.00001", "1e-05", np.float32(1e-5), Decimal("0.00001")], "1e-05"),
        ([1.5e7, "1.5E7", "1.5e+07", "15000000.0", 15_000_000], "15000000"),
        ([-1.25e-7, "-1.25e-07", "-0.000000125"], "-1.25e-07"),
        ([2**63 - 1, "9223372036854775807", np.uint64(2**63 - 1), Decimal(2**63 - 1)], "9223372036854775807"),
        ([2**70, str(2**70)], str(2**70)),
        (["007"], "007"),
        (["12E4", " 12E4"], "12E4"),
        ([True, "true", "TRUE", "True", np.bool_(True)], "True"),
        (
            [
                date(2026, 1, 31), datetime(2026, 1, 31), pd.Timestamp("2026-01-31"), np.datetime64("2026-01-31", "ns"),
                "2026-01-31", "2026-01-31 00:00:00", "2026-01-31T00:00:00.000", "2026-01-31T00:00",
            ],
            "2026-01-31",
        ),
        ([datetime(2026, 1, 31, 5, 6, 7, 250_000), "2026-01-31T05:06:07.25", "2026-01-31 05:06:07.250000"],
         "2026-01-31 05:06:07.25"),
        (
            [
                datetime(2026, 1, 31, tzinfo=BERLIN), pd.Timestamp("2026-01-31", tz="Europe/Berlin"),
                datetime(2026, 1, 30, 23, tzinfo=UTC), "2026-01-31 00:00:00+01:00", "2026-01-31 00:00:00+0100",
                "2026-01-30T23:00:00.000Z",
            ],
            "2026-01-30 23:00:00Z",
        ),
        ([timedelta(days=1), np.timedelta64(1, "D"), pd.Timedelta("1 days"), "1 days 00:00:00.000"], "1 days"),
        ([timedelta(seconds=-5), pd.Timedelta(-5, "s"), "-1 days +23:59:55"], "-1 days 23:59:55"),
        ([time(5, 6, 7), "05:06:07.000000"], "05:06:07"),
        (["S\u00fcd", "Su\u0308d", " S\u00fcd\u2003", np.str_("S\u00fcd")], "S\u00fcd"),
        ([uuid.UUID(int=1), str(uuid.UUID(int=1))], str(uuid.UUID(int=1))),
        ([float("inf"), "inf"], "inf"),
    ],
)  # fmt: skip
def test_cells_of_one_value_have_one_text(cells: list[Any], text: str) -> None:
    """Together and alone: what a cell is does not depend on the cells beside it."""
    assert canonical_texts(cells).to_pylist() == [text] * len(cells)
    assert [canonical_text(cell) for cell in cells] == [text] * len(cells)
    assert canonical_text(text) == text
    assert len({numbers(cells).tobytes() for cells in ([cell] for cell in cells if not isinstance(cell, bool))}) == 1


@pytest.mark.parametrize(
    "cells",
    [
        ["007", "7"], ["12E4", 120000], [True, 1], ["True", "yes"], ["a", "A"], [1, "1 000"], [1, "1_0"],
        [date(2026, 1, 31), datetime(2026, 1, 31, tzinfo=UTC)], [9007199254740993, 9007199254740992],
        [np.float32(0.1), 0.1 + 1e-12], ["01.02.2026", date(2026, 2, 1)], ["1", "١"],
        [0.1, Decimal("0.10000000000001")],
    ],
)  # fmt: skip
def test_cells_of_other_values_stay_apart(cells: list[Any]) -> None:
    assert len(set(canonical_texts(cells).to_pylist())) == 2


@pytest.mark.parametrize(
    "cell",
    [
        2.0**53, 1e16, -1e22, "1e+16", "9007199254740992.0", "1.0E16", "1.0e99999", np.float32(2**24),
        np.float16(2**11), b"a", [1], (1,), {}, np.array([1]), "\ud800", 1j,
    ],
)  # fmt: skip
def test_what_cannot_be_known_has_no_value(cell: Any) -> None:
    cells = ["a", cell, None]
    assert canonical_texts(cells).to_pylist() == ["a", None, None]
    assert absent(cells).tolist() == [False, False, True]


def test_a_whole_number_of_single_precision_is_what_a_file_of_text_would_hold() -> None:
    """123456792 in a column of numbers, where pandas writes 1.2345679e+08; in a column of values it is refused."""
    single = pd.Series([123456792], dtype="float32")
    written = pd.read_csv(pd.io.common.StringIO(single.to_csv(index=False)), dtype=str).iloc[:, 0]
    assert numbers(pa.array(single)).tolist() == numbers(written.tolist()).tolist() == [123456790.0]
    assert canonical_texts(pa.array(single)).to_pylist() == [None]


def test_arrow_types_of_every_kind() -> None:
    texts = pa.array(["a", None, "1.0"])
    arrays = [texts, texts.cast(pa.large_string()), texts.cast(pa.string_view()), texts.dictionary_encode()]
    arrays += [pa.chunked_array([texts.slice(0, 1), texts.slice(1)])]
    assert [canonical_texts(array).to_pylist() for array in arrays] == [["a", None, "1"]] * len(arrays)
    assert canonical_texts(pa.chunked_array([], pa.string())).to_pylist() == []
    assert canonical_texts([]).to_pylist() == []
    assert canonical_texts(pa.array([10**14, 0], pa.timestamp("s"))).to_pylist() == [None, "1970-01-01"]
    assert canonical_texts(pa.array([b"a"], pa.binary())).to_pylist() == [None]
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], "i4")), pa.py_buffer(b"\xffa")]
    )
    assert canonical_texts(broken).to_pylist() == [None, "a"]
    assert days(pa.array([86_400_000], pa.date64())).tolist() == [1.0]


def test_days_are_read_in_digits_and_by_format() -> None:
    cells = [20260131, 20260131.0, "20260131", "20260131.0", date(2026, 1, 31), "31.01.2026", True, None, b"20260131"]
    day = float((date(2026, 1, 31) - date(1970, 1, 1)).days)
    wanted = [day] * 6 + [np.nan] * 3
    assert np.array_equal(days(cells, ("%Y%m%d", "%d.%m.%Y")), wanted, equal_nan=True)
    # A day by its type is that day, however text writes days.
    assert days([date(2026, 2, 1)], ("%Y-%d-%m",)).tolist() == days(["2026-01-02"], ("%Y-%d-%m",)).tolist()


CELLS = some.one_of(
    some.integers(-(2**64), 2**64), some.floats(), some.floats(width=32), some.text(max_size=8), some.booleans(),
    some.decimals(allow_nan=False, allow_infinity=False, places=3), some.dates(), some.datetimes(), some.timedeltas(),
    some.datetimes(timezones=some.just(BERLIN)), some.none(),
)  # fmt: skip


@settings(max_examples=75, deadline=None)
@given(some.lists(CELLS, max_size=6))
@example([1, "1", 1.0, None])
@example([timedelta(0), timedelta(days=106751992)])
@example(["0001-01-01 00:00:00+05:00", "1.", "0.00000000149011612", "9" * 5000])
def test_canonical_texts_are_canonical(cells: list[Any]) -> None:
    """Made again, alone, or from what text holds of the cell."""
    together = canonical_texts(cells).to_pylist()
    assert canonical_texts(together).to_pylist() == together
    assert [canonical_text(cell) for cell in cells] == together
    for cell, text in zip(cells, together, strict=True):
        if isinstance(cell, (int, float, date)) and not isinstance(cell, bool) and text is not None:
            assert canonical_text(str(cell)) == text
        if text is not None:
            assert unicodedata.is_normalized("NFC", text)
            assert text == text.strip()
            assert np.array_equal(numbers([text]), numbers([cell]), equal_nan=True) or isinstance(cell, str)


def test_decimal_commas_are_points() -> None:
    assert canonical_texts(["1,50", "99,0", "a,b", 1.5, "1.234,5"], ",").to_pylist() == [
        "1.5",
        "99",
        "a,b",
        "1.5",
        "1.234,5",
    ]
    assert np.array_equal(numbers(["1,50", 1.5, "1.5"], ","), [1.5, 1.5, np.nan], equal_nan=True)


def test_names_of_columns() -> None:
    assert [column_name(name) for name in (0, "0", np.int64(0), " fu\u0308r ", "1.10", "1.1", 1.0)] == [
        "0", "0", "0", "f\u00fcr", "1.10", "1.1", "1",
    ]  # fmt: skip


def written(frame: pd.DataFrame, folder: Path, document: str) -> dict[str, Any]:
    """Return what CSV, Parquet and the frame itself become under a schema: features of each."""
    (folder / "schema.yaml").write_text(document)
    frame.to_csv(folder / "rows.csv", index=False)
    frame.to_parquet(folder / "rows.parquet")
    options = ReadOptions(schema=folder / "schema.yaml", on_violation=OnViolation.CLIP)
    found = {}
    for kind in ("csv", "parquet"):
        source = read_source(kind, folder / f"rows.{kind}", options)
        found[kind] = (np.asarray(next(iter(source.parts["train"])).features), source.tallies["train"].to_json())
    return found


def test_a_marker_is_found_in_every_container(tmp_path: Path) -> None:
    """99 marks three cells, which pandas writes as 99.0 where the column has a gap."""
    frame = pd.DataFrame({"age": [99, 50, None, 99], "c": [99.0, 1, None, 2], "y": ["a", "b", "a", "b"]})
    document = """
missing: {marker: ["", "99"], rows: indicator}
columns:
  - {name: age, type: numeric, range: [0, 100]}
  - {name: c, type: category, values: ["1", "2"]}
  - {name: y, type: label, classes: [a, b]}
"""
    found = written(frame, tmp_path, document)
    assert [tally["incomplete"] for _, tally in found.values()] == [3, 3]
    assert found["csv"][0].tobytes() == found["parquet"][0].tobytes()
    assert found["csv"][0][:, 3].astype(bool).tolist() == [True, False, True, True]
    encoder = TableEncoder(
        {
            "missing": {"marker": ["", 99.0], "rows": "indicator"},
            "columns": [
                {"name": "age", "type": "numeric", "range": [0, 100]},
                {"name": "c", "type": "category", "values": ["1", "2"]},
                {"name": "y", "type": "label", "classes": ["a", "b"]},
            ],
        }
    )
    assert encoder.transform(frame).tobytes() == found["csv"][0].tobytes()


@pytest.mark.parametrize("marker", [-999, "-999", "-999.0", "-9.99e2", -999.0])
def test_a_marker_of_numbers_is_a_number(marker: Any) -> None:
    document = {
        "missing": {"marker": marker, "rows": "indicator"},
        "columns": [
            {"name": "x", "type": "numeric", "range": [-1e6, 1e6], "thousands": ","},
            {"name": "y", "type": "label", "classes": ["a", "b"]},
        ],
    }
    cells = [-999, -999.0, "-999", " -999.00", "-9.99E2", "-999,000", np.float32(-999)]
    found = TableEncoder(document).transform({"x": cells})
    assert (found[:, 1] != 0).tolist() == [True, True, True, True, True, False, True]


def test_a_marker_of_days_is_a_day() -> None:
    document = {
        "missing": {"marker": "01.01.1900", "rows": "indicator"},
        "columns": [
            {"name": "x", "type": "date", "range": ["1900-01-01", "2030-01-01"], "format": "%d.%m.%Y"},
            {"name": "y", "type": "label", "classes": ["a", "b"]},
        ],
    }
    found = TableEncoder(document).transform(
        {"x": ["01.01.1900", date(1900, 1, 1), pd.Timestamp("1900-01-01"), "02.01.1900"]}
    )
    assert (found[:, 1] != 0).tolist() == [True, True, True, False]


def test_a_marker_with_a_decimal_comma(tmp_path: Path) -> None:
    document = 'decimal: ","\ndelimiter: ";"\nmissing: {marker: ["", -9.5], rows: indicator}\ncolumns:\n'
    document += "  - {name: x, type: numeric, range: [-10, 10]}\n  - {name: y, type: label, classes: [a, b]}\n"
    (tmp_path / "schema.yaml").write_text(document)
    (tmp_path / "rows.csv").write_text("x;y\n-9,5;a\n-9,50;b\n1,5;a\n")
    pq.write_table(pa.table({"x": [-9.5, -9.5, 1.5], "y": ["a", "b", "a"]}), tmp_path / "rows.parquet")
    options = ReadOptions(schema=tmp_path / "schema.yaml")
    found = [
        next(iter(read_source(kind, tmp_path / f"rows.{kind}", options).parts["train"])) for kind in ("csv", "parquet")
    ]
    assert (found[0].features[:, 1] != 0).tolist() == [True, True, False]
    assert np.asarray(found[0].features).tobytes() == np.asarray(found[1].features).tobytes()


def test_a_day_has_one_bin_and_so_has_a_number(tmp_path: Path) -> None:
    document = {
        "columns": [
            {"name": "x", "type": "category", "hash": 1021},
            {"name": "y", "type": "label", "classes": ["a", "b"]},
        ]
    }
    encoder = TableEncoder(document)
    for same in (
        ["2026-01-31", date(2026, 1, 31), pd.Timestamp("2026-01-31"), "2026-01-31 00:00:00"],
        [np.float32(0.1), 0.1, "0.1", Decimal("0.10")],
    ):
        assert len({encoder.transform({"x": [cell]}).tobytes() for cell in same}) == 1
    frame = pd.DataFrame({"x": pd.Series([0.1, 0.3], dtype="float32"), "y": ["a", "b"]})
    found = written(frame, tmp_path, f"columns: {document['columns']}")
    assert encoder.transform(frame).tobytes() == found["csv"][0].tobytes() == found["parquet"][0].tobytes()


def test_columns_named_by_numbers(tmp_path: Path) -> None:
    """As ``pd.read_csv(header=None)`` names them."""
    (tmp_path / "rows.csv").write_text("5,a\n7,b\n")
    document = {
        "header": False,
        "columns": [
            {"name": 0, "type": "numeric", "range": [0, 10]},
            {"name": "1", "type": "label", "classes": ["a", "b"]},
        ],
    }
    (tmp_path / "schema.yaml").write_text(str(document))
    frame = pd.read_csv(tmp_path / "rows.csv", header=None)
    source = read_source("csv", tmp_path / "rows.csv", ReadOptions(schema=tmp_path / "schema.yaml"))
    block = next(iter(source.parts["train"]))
    encoder = TableEncoder(document)
    assert encoder.feature_names_in_.tolist() == ["0"]
    assert encoder.transform(frame).tobytes() == np.asarray(block.features).tobytes()
    assert encoder.transform({0: [5, 7]}).tobytes() == np.asarray(block.features).tobytes()
    with pytest.raises(InputError, match=r"column '0'.*0, 1"):
        encoder.transform(pd.DataFrame([[1, 2, 3]], columns=[0, "0", 1]))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_composed_and_decomposed_letters_are_equal(form: Any, tmp_path: Path) -> None:
    other: Any = "NFD" if form == "NFC" else "NFC"
    document = unicodedata.normalize(
        form,
        "missing: {marker: kéine, rows: indicator}\ncolumns:\n  - {name: größe, type: category, values: [Süd, Köln]}\n"
        "  - {name: für, type: label, classes: [näh, weit]}\n",
    )
    frame = pd.DataFrame({"größe": ["Süd", "Köln", "kéine"], "für": ["näh", "weit", "näh"]})
    frame = frame.map(lambda text: unicodedata.normalize(other, text))
    frame.columns = [unicodedata.normalize(other, name) for name in frame.columns]
    found = written(frame, tmp_path, document)
    assert found["csv"][1] == found["parquet"][1]
    assert (found["csv"][1]["outside"], found["csv"][1]["incomplete"]) == (0, 1)
    assert found["csv"][0].tobytes() == found["parquet"][0].tobytes()


def test_people_are_compared_like_all_cells() -> None:
    same = [[17, 17.0, "17", "17.0", Decimal(17)], ["2026-01-31", date(2026, 1, 31)]]
    assert [len(set(identifiers(cells))) for cells in same] == [1, 1]
