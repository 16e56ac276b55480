"""The encoding of cells: numbers around 0, weighted blocks, missing cells as data, types of columns.

The expected numbers are computed here by hand from the declaration.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.svm import LinearSVC

from storage.datasets import ingestion_report, open_dataset
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.fingerprints import Duplicates, Fingerprints, row_patterns
from storage.layout import Layout
from storage.refs import OnViolation, Scaling
from storage.schema import Schema, Table, load_schema, parse_schema
from storage.source import ReadOptions, read_source
from tests.support.data import gathered, real_data, stored
from tests.support.stating import stating

LABEL = {"name": "y", "type": "label", "classes": ["no", "yes"]}


def schema_of(*columns: dict[str, Any], **more: Any) -> Schema:
    return parse_schema({"columns": [*columns, LABEL], **more}, "schema")


def encoded(schema: Schema, *rows: Sequence[object]) -> np.ndarray[Any, Any]:
    """Return the features of rows of cells, without the weights and the intercept's coordinate."""
    names = [column.name for column in schema.inputs]
    table = Table(dict(zip(names, zip(*rows, strict=True), strict=True)), np.arange(len(rows)), "rows")
    features = schema.features(schema.examine(table, schema.inputs))
    if schema.scaling is Scaling.CENTRED:
        return (features / schema._weights)[:, :-1]
    return features


def test_blocks_weigh_alike_and_the_intercept_is_there() -> None:
    numbers = [{"name": f"x{place}", "type": "numeric", "range": [0, 10]} for place in range(3)]
    kinds = [{"name": f"c{place}", "type": "category", "values": ["a", "b"]} for place in range(5)]
    schema = schema_of(*numbers, *kinds)
    assert schema.feature_names[-2:] == ("c4=b", "(intercept)")
    table = Table(
        {**{f"x{place}": [0.0, 5.0, 10.0] for place in range(3)}, **{f"c{place}": ["a"] * 3 for place in range(5)}},
        np.arange(3),
        "rows",
    )
    features = schema.features(schema.examine(table, schema.inputs))
    whole = math.sqrt(2 + 0.1**2)
    np.testing.assert_allclose(features[:, :3], np.array([[-1.0], [0.0], [1.0]]) * np.ones(3) / whole)
    np.testing.assert_allclose(features[:, 3:13:2], math.sqrt(1 / 5) / whole)
    np.testing.assert_allclose(features[:, -1], 0.1 / whole)
    # Numbers that are uniform on their ranges have as large a mean squared norm as the categories, which have 1.
    np.testing.assert_allclose(whole**2 * 3 * (1 / 3) * (features[2, 0] ** 2), 1.0)
    alone = schema_of(numbers[0])
    np.testing.assert_allclose(alone._weights, np.array([math.sqrt(3), 0.1]) / math.sqrt(1.01))


@pytest.mark.parametrize(
    ("given", "cells", "expected"),
    [
        ({}, [0, 50, 100], [-1, 0, 1]),
        ({"centre": 20}, [0, 20, 100], [-0.25, 0, 1]),
        ({"scale": "log"}, [0, 100, 9], [-1, 1, 2 * math.log(10) / math.log(101) - 1]),
        ({"scale": "log", "centre": 0}, [0, 100, 9], [0, 1, math.log(10) / math.log(101)]),
        ({"range": [-100, 100], "scale": "log"}, [-100, 0, 9], [-1, 0, math.log(10) / math.log(101)]),
    ],
)
def test_numbers_lie_around_zero(given: dict[str, Any], cells: list[float], expected: list[float]) -> None:
    schema = schema_of({"name": "x", "type": "numeric", "range": [0, 100], **given})
    found = encoded(schema, *([cell] for cell in cells))
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-12)
    placed = schema.columns[0].place(np.linspace(0, 1, 11)[:, None])
    np.testing.assert_allclose(schema.columns[0].unplace(placed)[:, 0], np.linspace(0, 1, 11), atol=1e-12)


def test_booleans_and_dates() -> None:
    schema = schema_of(
        {"name": "smoker", "type": "boolean"},
        {"name": "ill", "type": "boolean", "values": ["nein", "ja"]},
        {
            "name": "seen",
            "type": "date",
            "range": ["2020-01-01", "2024-12-31"],
            "format": "%d.%m.%Y",
            "parts": ["weekday", "year", "month", "days"],
        },
    )
    assert [column.width for column in schema.inputs] == [1, 1, 21]
    found = encoded(schema, ["Yes", "ja", "01.01.2020"], ["0", "nein", "31.12.2024"], [True, "ja", "29.02.2024"])
    assert found[:, 0].tolist() == [1, -1, 1]
    assert found[:, 1].tolist() == [1, -1, 1]
    assert found[0, 2:4].tolist() == [-1, -1]
    assert found[1, 2:4].tolist() == [1, 1]
    np.testing.assert_allclose(found[2, 2], 2 * (366 + 365 * 3 + 31 + 28) / 1826 - 1)
    names = schema.feature_names
    assert [names[place] for place in np.flatnonzero(found[2] == 1)][-2:] == ["seen month=02", "seen weekday=Thursday"]
    for cells, column in [(["maybe", "ja", "01.01.2020"], 0), (["yes", "ja", "2020-01-01"], 2)]:
        table = Table(dict(zip(["smoker", "ill", "seen"], [[cell] for cell in cells], strict=True)), np.arange(1), "")
        assert [bool(one.encoded.unclippable[0]) for one in schema.examine(table, schema.inputs)].index(True) == column
    late = Table({"smoker": ["t"], "ill": ["ja"], "seen": ["01.01.2030"]}, np.arange(1), "")
    found_late = schema.examine(late, schema.inputs)[2].encoded
    assert (found_late.outside[0], found_late.unclippable[0], found_late.values[0, 0]) == (True, False, 1.0)


def test_days_written_in_two_ways() -> None:
    """The first format that fits; what fits none is no day."""
    both = {"name": "x", "type": "date", "range": ["2020-01-01", "2024-12-31"], "format": ["%d.%m.%Y", "%Y-%m-%d"]}
    found = encoded(schema_of(both), ["03.02.2021"], ["2021-02-03"])
    assert found[0, 0] == found[1, 0]
    (column,) = schema_of(both).inputs
    assert column.encode(column.read(["2021/02/03", "03.02.2021"])).unclippable.tolist() == [True, False]
    assert column.bound.endswith("written %d.%m.%Y or %Y-%m-%d")


@pytest.mark.parametrize(
    ("span", "cell", "day"),
    [
        ((1920, 2010), "04.03.45", "1945-03-04"),
        ((1920, 2010), "04.03.10", "2010-03-04"),
        ((1920, 2010), "04.03.20", "1920-03-04"),
        # Beyond the range it is read next to it, and clipped there; in the middle between both ends it is no day.
        ((1920, 2010), "04.03.12", "2010-12-31"),
        ((1920, 2010), "04.03.18", "1920-01-01"),
        ((1920, 2010), "04.03.15", None),
        ((2020, 2025), "04.03.26", "2025-12-31"),
        ((1880, 1950), "29.02.00", None),
        ((1950, 2010), "29.02.00", "2000-02-29"),
        ((2070, 2090), "04.03.75", "2075-03-04"),
    ],
)
def test_the_century_of_a_short_year_is_the_range_s(span: tuple[int, int], cell: str, day: str | None) -> None:
    ends = [f"{span[0]}-01-01", f"{span[1]}-12-31"]
    (short,) = schema_of({"name": "x", "type": "date", "range": ends, "format": "%d.%m.%y"}).inputs
    (whole,) = schema_of({"name": "x", "type": "date", "range": ends}).inputs
    found = short.encode(short.read([cell]))
    assert found.unclippable.tolist() == [day is None]
    if day is not None:
        assert found.values.tolist() == whole.encode(whole.read([day])).values.tolist()


@pytest.mark.parametrize("form", ["%d.%m.%y", "%x", "%%y %d.%m.%y"])
def test_a_short_year_of_two_centuries_is_refused(form: str) -> None:
    given = {"name": "x", "type": "date", "format": [form, "%Y-%m-%d"]}
    with pytest.raises(InputError, match=f"column x.*{re.escape(form)}.*1920-01-01 to 2020-01-01.*20.*%Y"):
        schema_of({**given, "range": ["1920-01-01", "2020-01-01"]})
    schema_of({**given, "range": ["1920-01-01", "2019-12-31"]})
    between = {"name": "n", "type": "days", "between": ["x", "x"], "range": [0, 9], "format": form}
    with pytest.raises(InputError, match=f"column n.*{re.escape(form)}.*%Y"):
        schema_of({**given, "range": ["1920-01-01", "2019-12-31"]}, between)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "pandas over arrow"])
def test_a_day_beyond_the_calendar_refuses_its_own_row_alone(kind: str) -> None:
    seconds = pa.array([0, 10**14, -(10**14)], pa.timestamp("s"))
    table: Any = pa.table({"day": seconds})
    if kind != "arrow":
        frame = {"day": pd.Series(seconds, dtype=pd.ArrowDtype(seconds.type))}
        table = pd.DataFrame(frame if "over" in kind else {"day": seconds.to_numpy()})
    day = {"name": "day", "type": "date", "range": ["1970-01-01", "1970-01-03"], "missing": "constant"}
    found = TableEncoder(dict(schema_of(day).document), "clip").encode(table)
    assert [refusal is None for refusal in found.refusals] == [True, False, False]
    assert found.features[0, 0] != 0


def test_a_cell_of_any_type_is_encoded_alike_beside_others_and_alone() -> None:
    """NumPy makes a number of a time that stands alone, and an array of more dimensions of lists."""
    schema = schema_of({"name": "x", "type": "numeric", "range": [0, 10], "missing": "indicator"})
    encoder = TableEncoder(dict(schema.document), "clip")
    cells = [5, "7", np.timedelta64(5, "s"), "1_0", pd.NA, pd.NaT, None, 2**70, 10**400, True]
    together = encoder.encode({"x": cells})
    for place, cell in enumerate(cells):
        alone = encoder.encode({"x": [cell]})
        assert alone.features[0].tobytes() == together.features[place].tobytes(), cell
        assert alone.refusals[0] == together.refusals[place]
    assert together.refusals[:2] == (None, None)
    assert together.refusals[4:7] == (None, None, None), "missing"
    for cell in ([5], (1, 2), b"5", {}, {5}, 1j):
        with pytest.raises(InputError, match=f"row 2, column 'x'.*{type(cell).__name__}"):
            encoder.encode({"x": [5, cell]})


@pytest.mark.parametrize("beside", [None, "x", "1"])
def test_a_text_of_arrow_is_encoded_alike_beside_a_null(beside: str | None) -> None:
    schema = schema_of({"name": "x", "type": "numeric", "range": [0, 10], "missing": "indicator"})
    for cell in ("7\x1f", " 7", "\u00a07", "7\x00", "1_0"):
        found = []
        for cells in ([cell], [cell, beside]):
            (one,) = schema.examine(Table({"x": pa.array(cells)}, np.arange(len(cells)), ""), schema.inputs)
            found.append([part[0].tolist() for part in (one.missing, one.encoded.values, one.encoded.unclippable)])
        assert found[0] == found[1], cell


def test_days_between_two_dates_are_a_number() -> None:
    """Whether the dates are features themselves or not; a row where one is missing has none."""
    stay = {"name": "stay", "type": "days", "between": ["admitted", "discharged"], "range": [0, 60], "centre": 10}
    day = {"name": "admitted", "type": "date", "range": ["2026-01-01", "2026-12-31"]}
    schema = schema_of(stay, day, {"name": "discharged", "type": "ignore"}, missing={"marker": "", "rows": "constant"})
    assert schema.in_file == ("admitted", "discharged", "y")
    assert set(schema.needed) == {"admitted", "discharged", "y"}
    table = Table(
        {
            "admitted": ["2026-02-25", "2026-02-25", date(2026, 3, 1), "2026-03-01", "", "soon"],
            "discharged": ["2026-03-07", "2026-02-24", "2026-12-31", datetime(2026, 3, 31), "2026-03-31", "2026-03-31"],
        },
        np.arange(6),
        "",
    )
    (found,) = schema.examine(table, schema.inputs[:1])
    np.testing.assert_allclose(found.encoded.values[:, 0] * 60, [10, 0, 60, 30, 0, 0])
    assert found.encoded.outside.tolist() == [False, True, True, False, False, True]
    assert found.encoded.unclippable.tolist() == [False] * 5 + [True]
    assert found.missing.tolist() == [False] * 4 + [True, False]
    np.testing.assert_allclose(found.column.place(found.encoded.values[:4])[:, 0], [0, -0.2, 1, 0.4])
    with pytest.raises(InputError, match=r"column stay.*'y'.*date.*ignore"):
        schema_of({**stay, "between": ["admitted", "y"]}, day)
    encoder = TableEncoder(dict(schema.document), "clip")
    assert encoder.feature_names_in_.tolist() == ["admitted", "discharged"]
    assert encoder.encode(table.columns).refusals[4:] == (
        None,
        "column stay: \"('soon', '2026-03-31')\" is not 0 to 60 days from admitted to discharged, written 2026-01-31",
    )


def test_a_category_of_unknown_values_is_hashed() -> None:
    schema = schema_of({"name": "model", "type": "category", "hash": 64})
    (column,) = schema.inputs
    found = column.encode(column.read(["A4", " A4 ", "Golf", "\ud800", 17, 17.0]))
    # What is no Unicode can stand in no file.
    assert found.outside.tolist() == [False, False, False, True, False, False]
    assert found.values.sum(axis=1).tolist() == [1, 1, 1, 0, 1, 1]
    places = found.values.argmax(axis=1).tolist()
    # CRC-32 is the same on every machine, so that a logged model encodes as the ingestion did.
    assert places[:3] == [zlib.crc32(b"A4") % 64, zlib.crc32(b"A4") % 64, zlib.crc32(b"Golf") % 64]
    assert places[4] == places[5] == zlib.crc32(b"17") % 64
    assert (column.width, column.features[3]) == (64, "model#3")


@pytest.mark.parametrize(
    ("written", "cells", "numbers"),
    [
        (
            {"currency": "€", "thousands": ","},
            ["€ 1,234.50", "€12", "-€ 3", "€ -3", "1,000,000 €"],
            [1234.5, 12, -3, -3, 1e6],
        ),
        ({"currency": ["EUR", "$"]}, ["EUR 7", "7.5EUR", "$8", 9], [7, 7.5, 8, 9]),
        ({"thousands": "'"}, ["1'234", "-12'345.6", "999"], [1234, -12345.6, 999]),
    ],
)
def test_sums_of_money(written: dict[str, Any], cells: list[Any], numbers: list[float]) -> None:
    (column,) = schema_of({"name": "x", "type": "numeric", "range": [-1e6, 1e6], **written}).inputs
    found = column.encode(column.read(cells))
    assert not found.unclippable.any()
    np.testing.assert_allclose(found.values[:, 0] * 2e6 - 1e6, numbers, atol=1e-6)
    # What could mean something else is no number: another currency, digits that do not stand in threes.
    assert column.encode(column.read(["£ 5", "1,23", "12'34", "1,2345", ",123", "€"])).unclippable.all()


def test_german_sums_and_marks_that_are_one() -> None:
    column = {"name": "x", "type": "numeric", "range": [0, 10_000], "currency": "€", "thousands": "."}
    document = {"format_version": 1, "decimal": ",", "delimiter": ";", "columns": [column, LABEL]}
    (found,) = parse_schema(document, "schema").examine(
        Table({"x": ["1.234,50 €", "1.234", "1,5", "1.5"]}, np.arange(4), ""), parse_schema(document, "schema").inputs
    )
    np.testing.assert_allclose(found.encoded.values[:3, 0], [0.12345, 0.1234, 0.00015])
    assert found.encoded.unclippable.tolist() == [False, False, False, True]
    with pytest.raises(InputError, match=r"decimal.*thousands.*'\.'"):
        parse_schema({**document, "decimal": "."}, "schema")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            {"name": "x", "type": "numeric", "range": [0, 1], "centre": 2},
            "centre.*2",
        ),
        (
            {"name": "x", "type": "numeric", "range": [0, 1], "scale": "root"},
            "scale.*'root'",
        ),
        ({"name": "x", "type": "numeric", "range": [0, 1], "thousands": "_"}, "thousands.*'_'"),
        ({"name": "x", "type": "numeric", "range": [0, 1], "currency": []}, "currency"),
        ({"name": "x", "type": "numeric", "range": [0, 1], "missing": "mean"}, "missing.*'mean'"),
        ({"name": "x", "type": "category", "hash": 1}, "hash.*1.*2.*4096"),
        ({"name": "x", "type": "category", "hash": 8, "values": ["a"]}, "hash.*8"),
        ({"name": "x", "type": "days", "between": "y", "range": [0, 9]}, "between.*'y'"),
        ({"name": "x", "type": "boolean", "values": ["a"]}, r"values.*\['a'\]"),
        ({"name": "x", "type": "date", "range": ["2020-01-01"]}, r"range.*\['2020-01-01'\]"),
        ({"name": "x", "type": "date", "range": ["2020-01-01", "2021-01-01"], "parts": ["hour"]}, r"parts.*\['hour'\]"),
        ({"name": "x", "type": "date", "range": ["2020-01-01", "2021-01-01"], "format": 3}, r"format.*3.*%d\.%m\.%Y"),
        *(
            (
                {"name": "x", "type": "date", "range": ["2020-01-01", "2021-01-01"], "format": form},
                "format.*a year, a month",
            )
            for form in ("%d.%m.", "%Y-%m", "%Y", "%H:%M", "%d.%Y", "day", "%Q", "", ["%Y-%m-%d", "%m/%d"])
        ),
        (
            {"name": "x", "type": "days", "between": ["y", "y"], "range": [0, 9], "format": "%d.%m."},
            "format.*a year, a month",
        ),
        (
            {"name": "x", "type": "label", "classes": ["a", "b"], "missing": "indicator"},
            "missing is indicator",
        ),
        (
            {"name": "x", "type": "label", "classes": 3},
            "classes.*3",
        ),
    ],
)
def test_a_wrong_column_says_what_is_right(column: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"schema, column x.*{message}"):
        schema_of(column)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"decimal": ";"}, "decimal.*';'"),
        ({"decimal": ",", "delimiter": ","}, "decimal.*','.*delimiter"),
        ({"encoding": "utf-9"}, "encoding.*'utf-9'"),
        ({"encoding": "hex"}, "encoding.*'hex'"),
        ({"header": "no"}, "header.*'no'"),
        ({"scaling": "minmax"}, "scaling.*'minmax'.*unit-interval"),
    ],
)
def test_a_wrong_key_says_what_is_right(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        schema_of({"name": "x", "type": "numeric", "range": [0, 1]}, **given)


MISSING = [
    ("indicator", [[0, 0, 0, 1, 1], [-1, 1, 0, 0, 0], [0, 0, 1, 1, 0]]),
    ("constant", [[0, 0, 0], [-1, 1, 0], [0, 0, 1]]),
]


@pytest.mark.parametrize(("rule", "expected"), MISSING)
def test_a_row_with_a_missing_cell_is_data(rule: str, expected: list[list[float]]) -> None:
    schema = schema_of(
        {"name": "x", "type": "numeric", "range": [0, 10]},
        {"name": "c", "type": "category", "values": ["a", "b"]},
        missing={"marker": ["", "NA", "-9"], "rows": rule},
    )
    found = encoded(schema, [None, " NA "], [0.0, "a"], [-9, "b"])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    middle = schema_of(
        *[{"name": "x", "type": "numeric", "range": [0, 10]}],
        scaling="unit-interval",
        missing={"marker": "", "rows": rule},
    )
    assert encoded(middle, [float("nan")])[0, 0] == 0.5


def _file(folder: Path, text: str, schema: str, name: str = "rows") -> tuple[Path, Path]:
    (folder / f"{name}.csv").write_text(text)
    (folder / f"{name}.yaml").write_text(schema)
    return folder / f"{name}.csv", folder / f"{name}.yaml"


GAPS = """
missing: {marker: "", rows: indicator}
columns:
  - {name: x, type: numeric, range: [0, 10]}
  - {name: z, type: numeric, range: [0, 10], missing: drop}
  - {name: y, type: label, classes: {"0": well, "1": ill}}
"""


def test_columns_may_have_a_rule_of_their_own_and_labels_names(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "root").prepare()
    path, schema = _file(tmp_path, "x,z,y\n1,2,0\n,3,1\n4,,0\n", GAPS)
    ref = stored(layout, read_source("csv", path, ReadOptions(schema=schema)), private=True)
    assert ref.classes == ("well", "ill")
    features, labels = gathered(open_dataset(layout, ref))
    assert labels.tolist()[:2] == [0, 1]
    assert not features[2].any()
    assert ingestion_report(layout, ref).counts["train"] == {
        "read": 3, "kept": 2, "incomplete": 2, "outside": 0, "clipped": 0, "dropped": 0, "null": 1,
    }  # fmt: skip
    path, schema = _file(tmp_path, "x,z,y\n1,2,\n", GAPS)
    with pytest.raises(InputError, match=r"line 2.*'missing: drop'"):
        stored(layout, read_source("csv", path, ReadOptions(schema=schema)), private=True)
    # A marker is one in every column, and then the cell does not look missing.
    path, schema = _file(tmp_path, "x,z,y\n1,2,9\n", GAPS.replace('marker: ""', 'marker: ["", "9"]'))
    with pytest.raises(InputError, match=r"line 2.*'9'.*'missing: drop'"):
        stored(layout, read_source("csv", path, ReadOptions(schema=schema)), private=True)


TABLE = """
{more}
columns:
  - {{name: größe, type: numeric, range: [0, 3]}}
  - {{name: ort, type: category, values: [Köln, Bonn]}}
  - {{name: y, type: label, classes: ["0", "1"]}}
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
@pytest.mark.parametrize("gap", ["", "0,5;Bonn;\n"])
def test_other_encodings_and_decimal_commas(encoding: str, gap: str, tmp_path: Path) -> None:
    text = f"größe;ort;y\n1,5;Köln;0\n2,5;Bonn;1\n{gap}"
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode(encoding))
    (tmp_path / "s.yaml").write_text(
        TABLE.format(more=f'encoding: {encoding}\ndecimal: ","\ndelimiter: ";"\nmissing: {{marker: "", rows: drop}}')
    )
    blocks = list(read_source("csv", path, ReadOptions(schema=tmp_path / "s.yaml", discover=True)).parts["train"])
    assert len(blocks) == 1
    plain = blocks[0].plain
    assert plain is not None
    np.testing.assert_allclose(plain, [[0.5, 1, 0], [2.5 / 3, 0, 1]])


def test_a_point_beside_a_decimal_comma_is_no_number(tmp_path: Path) -> None:
    path, schema = _file(tmp_path, "größe;ort;y\n1.500;Bonn;0\n", TABLE.format(more='decimal: ","\ndelimiter: ";"'))
    layout = Layout(tmp_path / "root").prepare()
    with pytest.raises(InputError, match=r"line 2.*'1\.500'"):
        stored(layout, read_source("csv", path, ReadOptions(schema=schema)), private=True)


def test_text_in_another_encoding_says_so(tmp_path: Path) -> None:
    path, schema = _file(tmp_path, "", TABLE.format(more=""))
    layout = Layout(tmp_path / "root").prepare()
    path.write_bytes("größe,ort,y\n1,Köln,0\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"line 1: byte 0xf6.*UTF-8.*latin-1"):
        stored(layout, read_source("csv", path, ReadOptions(schema=schema)), private=True)
    schema.write_text(TABLE.format(more="encoding: utf-16"))
    with pytest.raises(InputError, match=r"rows\.csv is not"):
        stored(layout, read_source("csv", path, ReadOptions(schema=schema)), private=True)


def test_a_file_without_names_says_what_was_seen(tmp_path: Path) -> None:
    path, schema = _file(tmp_path, "1,2,0\n", GAPS)
    layout = Layout(tmp_path / "root").prepare()
    with pytest.raises(InputError, match=r"line 1.*'1', '2', '0'.*'header: false'"):
        stored(layout, read_source("csv", path, ReadOptions(schema=schema)), private=True)
    path, schema = _file(tmp_path, "x,z,y\n1,2,0\n", "header: false\n" + GAPS)
    for rule in OnViolation:
        with pytest.raises(InputError, match=r"line 1.*'header: true'"):
            stored(layout, read_source("csv", path, ReadOptions(schema=schema, on_violation=rule)), private=True)


def test_rows_are_recognised_whatever_their_scaling(tmp_path: Path) -> None:
    """A budget is not refilled by declaring another scaling."""
    adult = """
columns:
  - {name: a, type: numeric, range: [0, 10]MORE}
  - {name: b, type: numeric, range: [-5, 5]}
  - {name: c, type: category, values: [u, v]}
  - {name: y, type: label, classes: ["0", "1"]}
"""
    lines = "".join(f"{row % 10},{row % 7 - 3},{'uv'[row % 2]},{row % 2}\n" for row in range(60))
    prints = []
    for more, scaling in [
        ("", "unit-interval"),
        ("", "centred"),
        (", scale: log", "centred"),
        (", centre: 3", "centred"),
    ]:
        path, schema = _file(tmp_path, "a,b,c,y\n" + lines, f"scaling: {scaling}\n" + adult.replace("MORE", more))
        found = Fingerprints(b"k" * 32)
        for block in read_source("csv", path, ReadOptions(schema=schema)).parts["train"]:
            assert block.plain is not None
            found.add(block.plain)
            declared = load_schema(schema)
            # Made again from stored features, they are the same up to rounding, which patterns forgive.
            again = declared.plain(np.asarray(block.features, dtype=np.float32))
            np.testing.assert_allclose(again, block.plain, atol=1e-5)
            assert len(row_patterns(again, b"k" * 32)) == len(row_patterns(block.plain, b"k" * 32))
        prints.append([part.tolist() for part in found.kinds()])
    assert prints[1:] == prints[:1] * 3


def test_musk_can_be_learnt() -> None:
    """Declared as -1000 to 1000, its numbers fill a small part of [0, 1], on which a linear SVM guesses."""
    path = real_data("musk", "clean2.data")
    accuracy = {}
    for scaling in Scaling:
        options = ReadOptions(schema=Path("musk"), discover=True, scaling=scaling)
        blocks = list(read_source("csv", path, options).parts["train"])
        features = np.concatenate([block.features for block in blocks])
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        labels = np.concatenate([block.labels for block in blocks]) == "1"
        # Rows lie molecule by molecule: every third one has its neighbours among the others.
        held_out = np.arange(len(labels)) % 3 == 0
        machine = LinearSVC(loss="hinge", max_iter=3000, random_state=0).fit(features[~held_out], labels[~held_out])
        accuracy[scaling] = float(machine.score(features[held_out], labels[held_out]))
    assert accuracy[Scaling.UNIT_INTERVAL] < 0.86
    assert accuracy[Scaling.CENTRED] > 0.91


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    text = "x,z,y\n" + "1,2,0\n" * 3 + "1,2,1\n,3,1\n5,,0\n6,7,0\n6,7,1\n1\n99,1,0\n"
    path, schema = _file(tmp_path, text, GAPS)
    for private in (True, False):
        layout = Layout(tmp_path / f"root-{private}").prepare()
        options = ReadOptions(schema=schema, on_violation=OnViolation.DROP, discover=not private)
        ref = stored(layout, read_source("csv", path, options), private=private)
        report = ingestion_report(layout, ref)
        counts = report.counts["train"]
        gone = {"null": 3, "dropped": 0} if private else {"null": 0, "dropped": 3}
        assert counts == {"read": 10, "kept": 7, "incomplete": 2, "outside": 2, "clipped": 0, **gone}
        # Four rows (1, 2) and two rows (6, 7); a null record is nobody's.
        assert report.duplicates == Duplicates(rows=4, largest_group=4)


@pytest.mark.parametrize("private", [True, False])
def test_a_column_that_is_always_missing_follows_its_rule(private: bool, tmp_path: Path) -> None:
    path, schema = _file(tmp_path, "x,z,y\n,1,0\n,2,1\n", GAPS)
    layout = Layout(tmp_path / "root").prepare()
    options = ReadOptions(schema=schema, discover=not private)
    ref = stored(layout, read_source("csv", path, options), private=private, name="indicator")
    assert ref.rows == 2
    schema.write_text(GAPS.replace("indicator", "refuse"))
    with pytest.raises(InputError, match="line 2"):
        stored(layout, read_source("csv", path, options), private=private)
    schema.write_text(GAPS.replace("indicator", "drop"))
    if private:
        ref = stored(layout, read_source("csv", path, options), private=True)
        assert ingestion_report(layout, ref).counts["train"]["null"] == ref.rows == 2
    else:
        with pytest.raises(InputError, check=stating(value=0, bound=1)):
            stored(layout, read_source("csv", path, options))
