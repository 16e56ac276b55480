"""Declared schemas: what is declared becomes features; what is not declared is refused with its place."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from dpalgos.rows import NULL_LABEL
from storage.cells import numbers
from storage.columns.numeric import Numeric
from storage.datasets import ingestion_report, open_dataset
from storage.errors import FormatVersionError, InputError, RefusedError
from storage.layout import Layout
from storage.refs import OnViolation, Scaling
from storage.rowfiles import NULL_CLASS
from storage.schema import load_schema, parse_schema
from storage.source import ReadOptions, read_source
from tests.support.data import gathered, real_data, stored, temporaries
from tests.support.stating import stating

SCHEMA = """
scaling: unit-interval
header: false
delimiter: ";"
skip_lines_beginning: ["#"]
missing: {marker: "?", rows: drop}
columns:
  - {name: age, type: numeric, range: [0, 100]}
  - {name: id, type: ignore}
  - {name: colour, type: category, values: [red, green, "1"]}
  - {name: sick, type: label, classes: ["no", "yes"], suffix: "."}
"""
ROWS = '# a comment\n50; x;red ;no\n\n25;?;green;yes.\n100;y;1.0; yes\n?;z;red;no\n0;"a;b";red;no\n'


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _schema(tmp_path: Path, text: str = SCHEMA) -> Path:
    path = tmp_path / "schema.yaml"
    path.write_text(text)
    return path


def _options(
    tmp_path: Path, on_violation: OnViolation = OnViolation.REFUSE, text: str = SCHEMA, *, public: bool = False
) -> ReadOptions:
    return ReadOptions(schema=_schema(tmp_path, text), on_violation=on_violation, discover=public)


def _csv(tmp_path: Path, text: str = ROWS) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return path


def counts(read: int, **more: int) -> dict[str, int]:
    none = dict.fromkeys(("incomplete", "outside", "clipped", "dropped", "null"), 0)
    kept = read - more.get("dropped", 0) - more.get("null", 0)
    return {"read": read, "kept": kept, **none, **more}


def test_scaling_and_one_hot_come_from_the_schema(tmp_path: Path, layout: Layout) -> None:
    source = read_source("csv", _csv(tmp_path), _options(tmp_path))
    assert (source.dimension, source.classes, source.found) == (4, ("no", "yes"), frozenset())
    ref = stored(layout, source, private=True)
    features, labels = gathered(open_dataset(layout, ref))
    # The row with a missing value is a null record: whether there is a row must not depend on what it holds.
    assert features.tolist() == [[0.5, 1, 0, 0], [0.25, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert labels.tolist() == [0, 1, 1, NULL_CLASS, 0]
    other = Layout(tmp_path / "other").prepare()
    public = stored(other, read_source("csv", _csv(tmp_path), _options(tmp_path, public=True)), name="public")
    without, known = gathered(open_dataset(other, public))
    assert without.tolist() == [row for row in features.tolist() if any(row)]
    assert known.tolist() == [0, 1, 1, 0]
    report = ingestion_report(layout, ref)
    assert report.counts == {"train": counts(5, incomplete=1, null=1)}
    assert ingestion_report(other, public).counts == {"train": counts(5, incomplete=1, dropped=1)}
    assert not report.publishable


def test_the_rows_do_not_change_the_encoding(tmp_path: Path, layout: Layout) -> None:
    few = stored(layout, read_source("csv", _csv(tmp_path, "50;x;red;no\n"), _options(tmp_path)), private=True)
    assert few.dimension == 4
    assert gathered(open_dataset(layout, few))[0].tolist() == [[0.5, 1, 0, 0]]


VIOLATIONS = [
    ("101;x;red;no", "age", r"'101' is outside the schema, which allows a number in \[0, 100\]", [1, 1, 0, 0]),
    ("-inf;x;red;no", "age", r"'-inf' is outside", [0, 1, 0, 0]),
    ("nan;x;red;no", "age", r"'nan' is outside", None),
    ("old;x;red;no", "age", r"'old' is outside", None),
    ("1_0;x;red;no", "age", r"'1_0' is outside", None),
    (";x;red;no", "age", r"'' is outside", None),
    ("50;x;blue;no", "colour", r"'blue' is outside the schema, which allows one of red, green, 1", [0.5, 0, 0, 0]),
    ("50;x;red;perhaps", "sick", r"'perhaps' is outside the schema, which allows one of no, yes", None),
]


@pytest.mark.parametrize(("line", "column", "message", "clipped"), VIOLATIONS)
def test_rows_outside_are_refused_clipped_or_dropped(
    tmp_path: Path, layout: Layout, line: str, column: str, message: str, clipped: list[float] | None
) -> None:
    path = _csv(tmp_path, f"# comment\n50;x;red;no\n{line}\n20;x;red;yes\n")
    with pytest.raises(InputError, match=rf"rows.csv, line 3, column {column}: {message}.*--on-violation"):
        stored(layout, read_source("csv", path, _options(tmp_path)), private=True)
    dropped = stored(layout, read_source("csv", path, _options(tmp_path, OnViolation.DROP)), private=True)
    assert gathered(open_dataset(layout, dropped))[0][1].tolist() == [0, 0, 0, 0]
    assert gathered(open_dataset(layout, dropped))[1].tolist() == [0, NULL_CLASS, 1]
    assert ingestion_report(layout, dropped).counts["train"] == counts(3, outside=1, null=1)
    source = read_source("csv", path, _options(tmp_path, OnViolation.CLIP))
    if clipped is None:
        with pytest.raises(InputError, match=rf"line 3, column {column}: .*--on-violation drop"):
            stored(layout, source, private=True)
    else:
        ref = stored(layout, source, private=True)
        assert gathered(open_dataset(layout, ref))[0][1].tolist() == clipped
        assert ingestion_report(layout, ref).counts["train"] == counts(3, outside=1, clipped=1)
    either = stored(layout, read_source("csv", path, _options(tmp_path, OnViolation.CLIP_OR_DROP)), private=True)
    assert gathered(open_dataset(layout, either))[0][1].tolist() == (clipped or [0, 0, 0, 0])
    told = counts(3, outside=1, null=1) if clipped is None else counts(3, outside=1, clipped=1)
    assert ingestion_report(layout, either).counts["train"] == told
    assert not temporaries(layout.root)


def test_a_line_of_other_width_is_named(tmp_path: Path, layout: Layout) -> None:
    path = _csv(tmp_path, "50;x;red;no\n\n50;x;no\n")
    with pytest.raises(InputError, match=r"line 3: 3.*4"):
        stored(layout, read_source("csv", path, _options(tmp_path)), private=True)
    ref = stored(layout, read_source("csv", path, _options(tmp_path, OnViolation.DROP)), private=True)
    assert (ref.rows, ingestion_report(layout, ref).counts["train"]) == (2, counts(2, outside=1, null=1))
    assert gathered(open_dataset(layout, ref))[1].tolist() == [0, NULL_CLASS]
    either = stored(layout, read_source("csv", path, _options(tmp_path, OnViolation.CLIP_OR_DROP)), private=True)
    assert gathered(open_dataset(layout, either))[1].tolist() == [0, NULL_CLASS]
    assert NULL_CLASS == NULL_LABEL, "what is stored is what algorithms know"
    real = SCHEMA.replace('classes: ["no", "yes"], suffix: "."', "range: [0, 1]")
    ref = stored(
        layout,
        read_source("csv", _csv(tmp_path, "50;x;red;0.5\n50;x;0\n"), _options(tmp_path, OnViolation.DROP, real)),
        name="real",
        private=True,
    )
    np.testing.assert_array_equal(gathered(open_dataset(layout, ref))[1], [0.5, np.nan])


def test_rows_that_are_all_outside_are_still_as_many(tmp_path: Path, layout: Layout) -> None:
    path = _csv(tmp_path, "500;x;red;no\n?;x;red;no\n7\n")
    ref = stored(layout, read_source("csv", path, _options(tmp_path, OnViolation.DROP)), private=True)
    features, labels = gathered(open_dataset(layout, ref))
    assert not features.any()
    assert labels.tolist() == [NULL_CLASS] * 3


def test_a_missing_value_is_refused_where_the_schema_says_so(tmp_path: Path, layout: Layout) -> None:
    for text in (
        SCHEMA.replace("rows: drop", "rows: refuse"),
        SCHEMA.replace('missing: {marker: "?", rows: drop}', ""),
    ):
        source = read_source("csv", _csv(tmp_path), _options(tmp_path, text=text))
        with pytest.raises(InputError, match=r"line 6, column age: '\?'"):
            stored(layout, source, private=True)


def test_quoted_cells_may_span_lines_and_lines_still_count(tmp_path: Path, layout: Layout) -> None:
    path = _csv(tmp_path, '50;"x\ny";red;no\n500;x;red;no\n')
    with pytest.raises(InputError, match="line 3, column age"):
        stored(layout, read_source("csv", path, _options(tmp_path)), private=True)


def test_text_that_is_not_utf8_is_named(tmp_path: Path, layout: Layout) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xef\xbb\xbf50;x;red;no\n50;\xff;red;no\n")
    with pytest.raises(InputError, match=r"line 2: byte 0xff.*UTF-8"):
        stored(layout, read_source("csv", path, _options(tmp_path)), private=True)


def test_a_cell_without_end_is_named(tmp_path: Path, layout: Layout) -> None:
    path = _csv(tmp_path, '50;x;red;no\n50;"' + "x\n" * 70_000)
    with pytest.raises(InputError, match=r"rows.csv, line \d+: field"):
        stored(layout, read_source("csv", path, _options(tmp_path)), private=True)


def test_names_in_the_file_give_the_order(tmp_path: Path, layout: Layout) -> None:
    options = _options(tmp_path, text=SCHEMA.replace("header: false", "header: true"))
    path = _csv(tmp_path, "colour;sick;age;id\nred;no;50;x\ngreen;yes;0;y\n")
    features, labels = gathered(open_dataset(layout, stored(layout, read_source("csv", path, options))))
    assert features.tolist() == [[0.5, 1, 0, 0], [0, 0, 1, 0]]
    assert labels.tolist() == [0, 1]
    for header, message in [
        ("colour;sick;age;id;x", "line 1: column 'x'"),
        ("colour;sick;age", "line 1: column 'id' is missing"),
        ("colour;sick;age;id;id", "line 1: column 'id' is named"),
    ]:
        path = _csv(tmp_path, f"{header}\nred;no;50;x\n")
        with pytest.raises(InputError, match=message):
            stored(layout, read_source("csv", path, options))
    with pytest.raises(InputError, match=r"rows\.csv.*column names"):
        stored(layout, read_source("csv", _csv(tmp_path, "# only a comment\n"), options))


def test_an_empty_table_is_refused(tmp_path: Path, layout: Layout) -> None:
    with pytest.raises(InputError, match="is empty"):
        read_source("csv", _csv(tmp_path, ""), _options(tmp_path))
    for text, public in (("# a\n", False), ("?;x;red;no\n", True)):
        source = read_source("csv", _csv(tmp_path, text), _options(tmp_path, public=public))
        with pytest.raises(InputError, check=stating(value=0, bound=1)):
            stored(layout, source, private=not public)


def test_real_labels_are_held_to_their_range(tmp_path: Path, layout: Layout) -> None:
    text = SCHEMA.replace('classes: ["no", "yes"], suffix: "."', "range: [-1, 1]")
    path = _csv(tmp_path, "50;x;red;0.5\n20;x;red;3\n")
    with pytest.raises(InputError, match=r"line 2, column sick: '3'.*\[-1, 1\]"):
        stored(layout, read_source("csv", path, _options(tmp_path, text=text)), private=True)
    ref = stored(layout, read_source("csv", path, _options(tmp_path, OnViolation.CLIP, text)), private=True)
    assert ref.label_range == (-1.0, 1.0)
    assert gathered(open_dataset(layout, ref))[1].tolist() == [0.5, 1.0]


def test_a_table_without_schema_is_refused_for_privacy(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="--schema"):
        read_source("csv", _csv(tmp_path), ReadOptions(discover=True))


def test_a_declaration_beside_the_schema_must_agree(tmp_path: Path) -> None:
    schema = _schema(tmp_path)
    agreed = ReadOptions(schema=schema, dimension=4, classes=("no", "yes"))
    assert read_source("csv", _csv(tmp_path), agreed).dimension == 4
    with pytest.raises(InputError, match=r"dimension 4,.*5"):
        read_source("csv", _csv(tmp_path), ReadOptions(schema=schema, dimension=5))
    with pytest.raises(InputError, match=r"\('no', 'yes'\).*\('yes', 'no'\)"):
        read_source("csv", _csv(tmp_path), ReadOptions(schema=schema, classes=("yes", "no")))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("columns:", "colums:", "mapping.*columns"),
        ("delimiter:", "delimeter:", "'delimeter'"),
        ('delimiter: ";"', 'delimiter: "; "', "delimiter.*'; '"),
        ('delimiter: ";"', 'delimiter: "§"', "ASCII"),
        ('delimiter: ";"', "delimiter: '\"'", "delimiter.*'\"'"),
        ("range: [0, 100]", "range: [100, 0]", r"range.*\[100, 0\]"),
        ("range: [0, 100]", "range: [0, .inf]", "column age: range"),
        (", range: [0, 100]", "", "range.*None"),
        ("type: numeric", "type: number", "type.*'number'"),
        ("type: ignore", "type: ignore, range: [0, 1]", "'range'"),
        ("values: [red, green", "values: [red, red", "column colour.*'red'"),
        ('"no", "yes"', "no, yes", "False.*YAML"),
        ('"no", "yes"', '"no"', r"column sick: classes.*\['no'\]"),
        ("name: id", "name: age", "column 'age'"),
        ("type: ignore", 'type: label, classes: ["a", "b"]', "type label"),
        ("rows: drop", "rows: fill", "rows.*'fill'"),
        ('{marker: "?", rows: drop}', "drop", r"missing.*\{marker: \"\", rows: indicator\}"),
        ('marker: "?"', "marker: yes", "marker.*True"),
        ("- {name: id, type: ignore}", "- id", "column 2:"),
        ('classes: ["no", "yes"]', 'classes: ["no", "yes"], range: [0, 1]', "column sick.*classes.*range"),
        ("columns:", "columns: [", "not YAML"),
    ],
)
def test_a_wrong_schema_says_where(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SCHEMA
    with pytest.raises(InputError, match=message) as caught:
        load_schema(_schema(tmp_path, SCHEMA.replace(old, new)))
    assert "schema.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_newer_schema_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatVersionError, match="version 2", check=stating(value=2, bound=1)):
        load_schema(_schema(tmp_path, "format_version: 2" + SCHEMA))
    with pytest.raises(InputError, match=r"adlut.*: adult"):
        load_schema("adlut")


def test_the_adult_schema_has_104_features() -> None:
    schema = load_schema("adult", Scaling.UNIT_INTERVAL)
    assert schema.dimension == 104
    assert len(set(schema.feature_names)) == 104
    assert "sex=Female" in schema.feature_names


def test_adult_comes_out_with_its_complete_rows(layout: Layout) -> None:
    folder = real_data("adult")
    options = ReadOptions(schema=Path("adult"), discover=True, scaling=Scaling.UNIT_INTERVAL)
    ref = stored(layout, read_source("csv", folder, options), name="adult")
    assert (ref.rows, ref.test_rows, ref.dimension) == (30_162, 15_060, 104)
    assert ref.classes == ("<=50K", ">50K")
    counts = ingestion_report(layout, ref).counts
    assert [counts[part]["incomplete"] for part in ("train", "test")] == [2399, 1221]
    features, labels = gathered(open_dataset(layout, ref))
    assert features.min() == 0
    assert features.max() == 1
    # Eight categories, each with exactly one value.
    names = load_schema("adult", Scaling.UNIT_INTERVAL).feature_names
    categorical = np.array(["=" in name for name in names])
    assert categorical.sum() == 98
    assert (features[:, categorical].sum(axis=1) == 8).all()
    assert features[:, categorical].any(axis=0).all()
    assert int(labels.sum()) == 7508
    text = (Path(__file__).parents[2] / "storage/readers/schemas/adult.yaml").read_text()
    strict = ReadOptions(schema=_schema(layout.root, text.replace("rows: drop", "rows: refuse")))
    with pytest.raises(InputError, match=r"adult.data, line 15, column native-country"):
        stored(layout, read_source("csv", folder, strict), private=True, name="adult")


def test_a_whole_number_beyond_floats_is_none_beside_any_others() -> None:
    assert np.array_equal(numbers([10**400, "1e400", "5", 7]), [np.inf, np.inf, 5.0, 7.0])


_LABEL = "- {name: y, type: label, classes: [a, b]}"
_INPUT = "- {name: x, type: boolean}"
TEXTS = {
    "a value": f"- {{name: x, type: category, values: [a, @]}}\n{_LABEL}",
    "a code": f"- {{name: x, type: category, values: {{@: a, z: b}}}}\n{_LABEL}",
    "a meaning": f"- {{name: x, type: category, values: {{z: @, w: b}}}}\n{_LABEL}",
    "an ordered value": f"- {{name: x, type: numeric, ordered: [a, @]}}\n{_LABEL}",
    "a currency": f"- {{name: x, type: numeric, range: [0, 9], currency: @}}\n{_LABEL}",
    "a truth value": f"- {{name: x, type: boolean, values: [a, @]}}\n{_LABEL}",
    "a name": f"- {{name: @, type: boolean}}\n{_LABEL}",
    "names": f"- {{names: [a, @], type: boolean}}\n{_LABEL}",
    "between": f"- {{name: n, type: days, between: [y, @], range: [0, 9]}}\n{_LABEL}",
    "a class": f"{_INPUT}\n- {{name: y, type: label, classes: [a, @]}}",
    "positive": f"{_INPUT}\n- {{name: y, type: label, classes: [a, b], positive: @}}",
    "a suffix": f"{_INPUT}\n- {{name: y, type: label, classes: [a, b], suffix: @}}",
    "a marker": f"{_INPUT}\n{_LABEL}\nmissing: {{marker: [n, @], rows: drop}}",
    "a comment": f"{_INPUT}\n{_LABEL}\nskip_lines_beginning: [n, @]",
}
NUMBERS = ("01234", "007", "0x1F", "0b11", "1_000", "12:30:45", "1:30.5", "190:20", ".inf", ".nan")
"""What YAML 1.1 reads as another number than its text."""


@pytest.mark.parametrize("place", TEXTS)
def test_what_yaml_reads_otherwise_than_it_is_written_is_no_text(place: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    for text in (*NUMBERS, "yes", "off", "2020-01-02"):
        path.write_text(f"columns:\n{TEXTS[place].replace('@', text)}\n")
        shown = re.escape(text) if text in NUMBERS else ""
        with pytest.raises(InputError, match=f"schema.*holds {shown}.*quotes"):
            load_schema(path)
    # In quotes, or the digits that a number has anyway, it is a text; a day is between columns that there are, though,
    # and a positive class is a class.
    for text in (*(f"'{text}'" for text in NUMBERS), "'yes'", "1000", "-7", "0o17", "1e3"):
        path.write_text(f"columns:\n{TEXTS[place].replace('@', text)}\n")
        with (
            nullcontext()
            if place not in ("between", "positive")
            else pytest.raises(InputError, match=r"of type|one of")
        ):
            load_schema(path)


def test_a_bare_number_is_the_number_that_yaml_says_where_a_number_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(f"columns:\n- {{name: x, type: numeric, range: [-0x10, 1_000.50], centre: 1:30}}\n{_LABEL}\n")
    (column,) = load_schema(path).inputs
    assert column == Numeric("x", (-16.0, 1000.5), centre=90.0)
    again = parse_schema(json.loads(json.dumps(load_schema(path).document)), "document")
    assert again.inputs == (column,)


def test_keys_that_yaml_reads_as_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    for keys in ("{8: a, 0x8: b}", "{0x8: a, 8: b}", "{1.0: a, 1: b}"):
        path.write_text(f"columns:\n- {{name: x, type: category, values: {keys}}}\n{_LABEL}\n")
        first, second = re.findall(r"[\w.]+(?=:)", keys)
        with pytest.raises(InputError, match=f"schema.*'{first}'.*'{second}'"):
            load_schema(path)
