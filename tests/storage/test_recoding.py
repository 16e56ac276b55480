"""Codes of a file and what they mean: several codes of one value, prefixes, first characters, values in an order."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from storage.columns.categories import Boolean, Category
from storage.columns.column import Column, Encoded
from storage.columns.label import Label
from storage.datasets import declared_table, open_dataset
from storage.documents import digest, parse_yaml
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.fingerprints import Fingerprints
from storage.layout import Layout
from storage.refs import OnViolation
from storage.schema import Schema, Table, parse_schema
from storage.source import ReadOptions, read_source
from tests.support.data import gathered, stored
from tests.support.untraced import calls_of

LABEL = {"name": "y", "type": "label", "classes": {"<30": "early", ">30": "rest", "NO": "rest"}}
RACE = {"Caucasian": "white", "AfricanAmerican": "black", "Asian": "other", "?": "other"}
BRACKETS = [f"[{low}-{low + 10})" for low in range(0, 100, 10)]
COLUMNS: list[dict[str, Any]] = [
    {"name": "race", "type": "category", "values": RACE},
    {"name": "age", "type": "numeric", "ordered": BRACKETS},
    {"name": "diag", "type": "category", "first": 3, "values": ["250", "428", "V57", "42"]},
    {"name": "other", "type": "category", "values": {"V*": "outside", "250*": "sugar", "41": "heart", "42*": "heart"}},
    {"name": "many", "type": "category", "first": 3, "hash": 16},
    {
        "names": ["metformin", "insulin"],
        "type": "boolean",
        "values": {"No": False, "Steady": True, "Up": True, "Down": True},
    },
    LABEL,
]


def schema_of(*columns: dict[str, Any], **more: Any) -> Schema:
    return parse_schema({"columns": [*columns, LABEL], **more}, "schema")


def declared(**column: Any) -> Any:
    return schema_of({"name": "x", **column}).columns[0]


def encode(column: Column, cells: list[Any]) -> Encoded:
    return column.encode(column.read(cells))


def test_several_codes_are_one_class() -> None:
    """Refused once as the same value twice, which is what such a table is about."""
    label = schema_of({"name": "x", "type": "boolean"}).label
    assert label.classes == ("early", "rest")
    found = encode(label, ["<30", ">30", " NO ", "rest"])
    assert found.values[:3, 0].tolist() == ["early", "rest", "rest"]
    assert found.unclippable.tolist() == [False, False, False, True]
    assert label.bound == "one of <30, >30, NO"


def test_several_codes_are_one_value() -> None:
    column = declared(type="category", values=RACE)
    assert column.features == ("x=white", "x=black", "x=other")
    found = encode(column, ["Caucasian", "Asian", "?", "white", "Asia", "Asians"])
    assert found.values.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1], *[[0, 0, 0]] * 3]
    assert found.outside.tolist() == [False, False, False, True, True, True]
    assert not found.unclippable.any()


def test_a_code_is_a_value_even_where_it_marks_a_missing_cell_elsewhere() -> None:
    schema = schema_of(
        {"name": "x", "type": "category", "values": RACE},
        {"name": "z", "type": "category", "values": {"a*": "a", "b": "b"}},
        missing={"marker": "?", "rows": "indicator"},
    )
    one, other = schema.examine(Table({"x": ["?"], "z": ["?"]}, np.arange(1), ""), schema.inputs)
    assert (one.missing.tolist(), other.missing.tolist()) == ([False], [True])


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("V45.81", "outside"), ("V", "outside"),
        ("250.83", "sugar"), (250, "sugar"), (250.0, "sugar"), ("2500", "sugar"),
        ("41", "heart"), (41.0, "heart"), ("41.0", "heart"), ("42.9", "heart"), (427.31, "heart"),
        ("410", None), ("v45", None), ("25", None), ("4", None), ("", None), ("XV", None),
    ],
)  # fmt: skip
def test_prefixes(cell: object, value: str | None) -> None:
    column = declared(type="category", values={"V*": "outside", "250*": "sugar", "41": "heart", "42*": "heart"})
    assert column.values == ("outside", "sugar", "heart"), "in the order of the declaration"
    found = encode(column, [cell])
    assert found.outside.tolist() == [value is None]
    if value is not None:
        assert column.features[int(found.values[0].argmax())] == f"x={value}"


def test_one_code_takes_what_no_other_does() -> None:
    given = {"type": "category", "values": {"*": "other", "V*": "outside", "250": "sugar", "25*0": "odd"}}
    column = declared(**given)
    cells = ["250", 250.0, "V1", "V", "41", "", "*", "25*0", "x", 2.0**60, None]
    found = encode(column, cells)
    values = [column.values[row.argmax()] if row.any() else None for row in found.values]
    assert values == ["sugar"] * 2 + ["outside"] * 2 + ["other"] * 3 + ["odd", "other", None, None]
    assert found.outside.tolist() == [False] * 9 + [True, True], "what cannot be known has no text"
    assert column.taken(column.read(["41", "x", "250"])) == {
        "* → other": 2, "V* → outside": 0, "250 → sugar": 1, "25*0 → odd": 0,
    }  # fmt: skip
    schema = schema_of({"name": "x", **given}, missing={"marker": "?", "rows": "drop"})
    assert schema.read(schema.columns[0], ["?", "41"])[1].tolist() == [True, False], "a marker stays one"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("250.83", "250"), (250.83, "250"), ("250", "250"), (250, "250"), ("V57.89", "V57"), ("42", "42"),
        # What three characters leave of 42.9 ends in a point, which numbers lose.
        ("42.9", "42"), (42.9, "42"), ("25", None), ("V5", None), ("0250", None),
    ],
)  # fmt: skip
def test_first_characters(cell: object, value: str | None) -> None:
    column = declared(type="category", first=3, values=["250", "428", "V57", "42"])
    found = encode(column, [cell])
    assert found.outside.tolist() == [value is None]
    if value is not None:
        assert column.values[int(found.values[0].argmax())] == value


def test_first_characters_before_prefixes_and_bins() -> None:
    both = declared(type="category", first=2, values={"V*": "outside", "25": "sugar"})
    assert encode(both, ["V57", "250.1", "2"]).values.tolist() == [[1, 0], [0, 1], [0, 0]]
    binned, plain = declared(type="category", first=3, hash=64), declared(type="category", hash=64)
    assert (encode(binned, ["428.0", "428.9"]).values == encode(plain, ["428", "428"]).values).all()
    assert binned.bound == "any text, by the first 3 characters"


def test_brackets_are_a_number_by_their_place() -> None:
    column = declared(type="numeric", ordered=BRACKETS)
    found = encode(column, BRACKETS)
    np.testing.assert_array_equal(found.values[:, 0], np.arange(10) / 9)
    assert (column.features, column.numbers, column.groups) == (("x",), 1, ())
    np.testing.assert_allclose(column.unplace(column.place(found.values)), found.values, atol=1e-15)
    # A number is in no bracket, and above or below none: it has no place, whatever it would be as one.
    lost = encode(column, ["75", 75, 3, 0, "0", "[70-80]", "70-80", None, 1.0, "[170-180)"])
    assert lost.outside.all()
    assert lost.unclippable.all()
    numbers = declared(type="numeric", ordered=["1", "2", "4"])
    assert encode(numbers, [1, "2.0", 4.0, 3]).values[:, 0].tolist() == [0, 0.5, 1, 0]
    assert encode(numbers, [3]).unclippable.tolist() == [True]


def test_codes_of_no_and_yes() -> None:
    column = declared(type="boolean", values={"No": False, "Steady": True, "Up": True, "Down": True})
    found = encode(column, ["No", "Up", "Down", "Steady", "no", "Yes"])
    assert found.values[:4, 0].tolist() == [0, 1, 1, 1]
    assert found.unclippable.tolist() == [False] * 4 + [True] * 2
    assert column.bound == "No or Steady, Up, Down"


WRONG = [
    ({"type": "category", "values": {}}, r"values is \{\}"),
    ({"type": "category", "values": "white"}, "values.*'white'"),
    ({"type": "category", "values": {True: "x"}}, "True.*YAML"),
    ({"type": "category", "values": {"a": None}}, "values holds None"),
    ({"type": "category", "values": {"a": ["x"]}}, r"values.*\['x'\]"),
    ({"type": "category", "values": {"1": "x", "1.0": "y"}}, r"values.*\['1', '1\.0'\]"),
    ({"type": "category", "values": {"25*": "x", "250*": "y"}}, r"'25\*'.*'250\*'"),
    ({"type": "category", "values": {"250": "x", "25*": "y"}}, r"'25\*'.*'250'"),
    ({"type": "category", "values": {"25*": "x", "25": "x"}}, r"'25\*'.*'25'"),
    ({"type": "category", "values": {"a *": "x", "a*": "y"}}, r"'a\*'.*'a\*'"),
    ({"type": "category", "values": {"250.0*": "x"}}, r"'250.0'.*\(250.00.*250\).*'250\*'"),
    ({"type": "category", "values": {"250.*": "x"}}, r"'250\.'"),
    ({"type": "category", "values": {"+25*": "x"}}, r"'\+25'.*'25\*'"),
    ({"type": "category", "first": 0, "values": ["a"]}, "first is 0"),
    ({"type": "category", "first": -3, "values": ["a"]}, "first is -3"),
    ({"type": "category", "first": True, "values": ["a"]}, "first is True"),
    ({"type": "category", "first": 2.0, "values": ["a"]}, r"2\.0"),
    ({"type": "category", "first": "3", "values": ["a"]}, "first is '3'"),
    ({"type": "category", "first": [3], "hash": 8}, r"\[3\]"),
    ({"type": "category", "first": 3, "values": ["2500"]}, "'2500'.*4.*'first: 3'.*3"),
    ({"type": "category", "first": 3, "values": {"2500*": "x"}}, "'2500'.*4"),
    ({"type": "category", "first": 3}, "neither values nor hash.*hash: 64"),
    ({"type": "numeric", "first": 3, "range": [0, 1]}, "'first'"),
    ({"type": "boolean", "first": 3}, "'first'"),
    ({"type": "numeric", "ordered": []}, "ordered.*list"),
    ({"type": "numeric", "ordered": ["a"]}, r"ordered.*\['a'\]"),
    ({"type": "numeric", "ordered": {"a": 1, "b": 2}}, "ordered.*list"),
    ({"type": "numeric", "ordered": ["a", "b", "a"]}, r"ordered.*\['a', 'b', 'a'\]"),
    ({"type": "numeric", "ordered": ["a", None]}, "ordered holds None"),
    ({"type": "numeric", "ordered": ["a", "b"], "range": [0, 1]}, "ordered and range"),
    ({"type": "numeric", "ordered": ["a", "b"], "centre": 1}, "ordered and centre"),
    ({"type": "category", "ordered": ["a", "b"]}, "'ordered'"),
    ({"type": "boolean", "values": {"No": "no", "Up": "yes"}}, "'No'.*'no'"),
    ({"type": "boolean", "values": {"Up": True, "Down": True}}, r"values are \{'Up': True, 'Down': True\}"),
    ({"type": "boolean", "values": {"N*": False, "No": True}}, r"'N\*'.*'No'"),
    ({"type": "boolean", "values": ["No", "Up", "Down"]}, r'\{"No"'),
    ({"type": "boolean", "values": {}}, r"values are \{\}"),
    ({"type": "days", "between": ["a", "b"], "range": [0, 1], "ordered": ["a", "b"]}, "'ordered'"),
]


@pytest.mark.parametrize(("column", "message"), WRONG)
def test_a_wrong_recoding_says_what_is_right(column: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"schema, column x.*{message}"):
        declared(**column)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"classes": {"a": "x", "b": "x"}}, r"classes.*\['x'\]"),
        ({"classes": {}}, r"classes is \{\}"),
        ({"classes": {"a*": "x", "ab": "z"}}, r"'a\*'.*'ab'"),
        ({"classes": {"a": "x", "b": False}}, "classes holds False"),
        ({"range": [0, 1], "first": 2}, "first.*numeric"),
    ],
)
def test_wrong_classes_say_what_is_right(label: dict[str, Any], message: str) -> None:
    columns = [{"name": "x", "type": "boolean"}, {"name": "y", "type": "label", **label}]
    with pytest.raises(InputError, match=f"schema, column y.*{message}"):
        parse_schema({"columns": columns}, "schema")


@pytest.mark.parametrize("text", ["values: {a: x, b: y, a: z}", "columns:\n  - {name: x, name: z}", "a: 1\na: 2\n"])
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    """YAML takes the last one without a word."""
    with pytest.raises(InputError, match=r"line \d: key '(a|name)'"):
        parse_yaml(text, "schema")
    assert parse_yaml("- {a: b, b: a}\n- {a: {a: a}, b: [a, a]}\n", "schema") == [
        {"a": "b", "b": "a"},
        {"a": {"a": "a"}, "b": ["a", "a"]},
    ]


def test_a_schema_is_the_same_from_its_document() -> None:
    schema = parse_schema({"columns": COLUMNS, "missing": {"marker": "?", "rows": "indicator"}}, "schema")
    # Whoever keeps it may sort keys, as manifests do; features lie in the order of the declaration.
    written = json.loads(json.dumps(schema.document, sort_keys=True))
    for document in (written, parse_yaml(yaml.safe_dump(written, sort_keys=False), "schema")):
        again = parse_schema(document, "elsewhere")
        assert again == schema
        assert again.feature_names == schema.feature_names
        assert digest(dict(again.document)) == digest(dict(schema.document))
    assert schema.feature_names[:3] == ("race=white", "race=black", "race=other")


FRAME = pd.DataFrame(
    {
        "race": ["Caucasian", "?", "Asian", "AfricanAmerican", "Martian"],
        "age": ["[0-10)", "[70-80)", "[90-100)", "[40-50)", "[10-20)"],
        "diag": ["250.83", "V57.1", "428", "42.9", "999"],
        "other": ["250.83", "V57.1", "41", "427.1", "999"],
        "many": ["250.83", "V57.1", "428", "42.9", "999"],
        "metformin": ["No", "Up", "Down", "Steady", "No"],
        "insulin": ["Up", "No", "No", "Down", "Steady"],
        "y": ["<30", ">30", "NO", "NO", "<30"],
    }
)


@pytest.mark.parametrize("form", ["csv", "parquet", "categorical"])
def test_a_row_is_encoded_alike_whatever_it_comes_in(form: str, tmp_path: Path) -> None:
    """In a file, a data frame and JSON, at ingestion and in prediction."""
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump({"columns": COLUMNS}, sort_keys=False))
    path = tmp_path / f"rows.{'csv' if form == 'csv' else 'parquet'}"
    if form == "csv":
        FRAME.to_csv(path, index=False)
    else:
        given = FRAME if form == "parquet" else FRAME.astype("category")
        pq.write_table(pa.Table.from_pandas(given, preserve_index=False), path)
    options = ReadOptions(schema=tmp_path / "schema.yaml", on_violation=OnViolation.CLIP)
    source = read_source(path.suffix[1:], path, options)
    blocks = list(source.parts["train"])
    read = np.concatenate([block.features for block in blocks])
    assert [name for block in blocks for name in block.labels] == ["early", "rest", "rest", "rest", "early"]
    assert source.table is not None
    encoder = TableEncoder(**source.table)
    for rows in (FRAME, FRAME.astype("category"), pa.Table.from_pandas(FRAME), FRAME.to_dict("list")):
        assert encoder.transform(rows).tobytes() == read.tobytes()
    names = list(encoder.get_feature_names_out())
    assert read[4, [names.index(f"race={value}") for value in ("white", "black", "other")]].tolist() == [0, 0, 0]
    assert read[3, names.index("diag=42")] > 0
    assert read[1, names.index("age")] == pytest.approx(read[2, names.index("age")] * (2 * 7 / 9 - 1))


def test_a_stored_table_gives_its_model_the_order_of_its_features(tmp_path: Path) -> None:
    """A manifest has its keys sorted: a mapping read from one has another order than the declaration."""
    path, schema = tmp_path / "rows.csv", tmp_path / "schema.yaml"
    schema.write_text(yaml.safe_dump({"columns": COLUMNS}, sort_keys=False))
    FRAME.to_csv(path, index=False)
    layout = Layout(tmp_path / "root").prepare()
    source = read_source("csv", path, ReadOptions(schema=schema, on_violation=OnViolation.CLIP))
    ref = stored(layout, source, private=True)
    table = declared_table(layout, ref)
    assert table is not None
    encoder = TableEncoder(**table)
    features = gathered(open_dataset(layout, ref))[0]
    np.testing.assert_allclose(encoder.transform(FRAME), features, rtol=1e-6)
    assert encoder.declared.label.classes == ref.classes == ("early", "rest")
    assert encoder.get_feature_names_out()[:3].tolist() == ["race=white", "race=black", "race=other"]


@pytest.mark.parametrize(
    ("on_violation", "message"),
    [("refuse", "column race: 'Martian'.*Caucasian"), ("clip", None)],
)
def test_codes_that_nobody_named_follow_the_rule(on_violation: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump({"columns": COLUMNS}, sort_keys=False))
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    options = ReadOptions(schema=tmp_path / "schema.yaml", on_violation=OnViolation(on_violation))
    source = read_source("csv", tmp_path / "rows.csv", options)
    if message is None:
        assert sum(len(block.labels) for block in source.parts["train"]) == 5
        return
    with pytest.raises(InputError, match=f"line 6, {message}"):
        list(source.parts["train"])


@pytest.mark.parametrize(("on_violation", "refused"), [("refuse", True), ("clip", True), ("drop", False)])
def test_a_number_that_is_no_bracket_is_not_clipped(on_violation: str, refused: bool, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump({"columns": COLUMNS}, sort_keys=False))
    frame = FRAME.head(4).assign(age=["[0-10)", "75", "[90-100)", "7"])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    options = ReadOptions(schema=tmp_path / "schema.yaml", on_violation=OnViolation(on_violation), discover=True)
    source = read_source("csv", tmp_path / "rows.csv", options)
    if refused:
        with pytest.raises(InputError, match=r"line 3.*'75'.*\[0"):
            list(source.parts["train"])
    else:
        assert sum(len(block.labels) for block in source.parts["train"]) == 2
    said = TableEncoder({"columns": COLUMNS}, on_violation).encode(frame).refusals
    assert [refusal is None for refusal in said] == [True, False, True, False]


def test_rows_are_recognised_whatever_their_scaling(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    ages, codes = random.integers(0, 10, 80) * 10, random.choice(["250.1", "42.9", "V57"], 80)
    drugs = ["Up" if age % 20 else "No" for age in ages]
    lines = [f"{age},{code},{drug},NO" for age, code, drug in zip(ages, codes, drugs, strict=True)]
    (tmp_path / "rows.csv").write_text("age,other,insulin,y\n" + "\n".join(lines) + "\n")
    brackets = [str(low) for low in range(0, 100, 10)]
    columns = [
        {"name": "age", "type": "numeric", "ordered": brackets},
        COLUMNS[3],
        {**COLUMNS[5], "names": ["insulin"]},
    ]
    prints = []
    for scaling in ("centred", "unit-interval"):
        document = {"scaling": scaling, "columns": [*columns, LABEL]}
        (tmp_path / "schema.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        schema, found = parse_schema(document, "schema"), Fingerprints(b"k" * 32)
        for block in read_source("csv", tmp_path / "rows.csv", ReadOptions(schema=tmp_path / "schema.yaml")).parts[
            "train"
        ]:
            assert block.plain is not None
            found.add(block.plain)
            again = schema.plain(np.asarray(block.features, dtype=np.float32))
            np.testing.assert_allclose(again, block.plain, atol=1e-5)
        prints.append([part.tolist() for part in found.kinds()])
    assert prints[0] == prints[1]


def test_columns_made_in_code_mean_themselves() -> None:
    """As the readers of sets by name make them."""
    assert encode(Category("x", ("a", "b")), ["b"]).values.tolist() == [[0, 1]]
    assert encode(Label("y", classes=("a", "b")), ["b"]).values.tolist() == [["b"]]
    assert encode(Boolean("z"), ["yes", "f"]).values.tolist() == [[1], [0]]


def test_many_codes_take_time_by_their_number() -> None:
    """The attack: each was once compared with every other, a hundred thousand of them for longer than an hour."""

    def work(codes: int) -> object:
        values = {f"{place:06d}{'*' if place % 2 else ''}": "a" for place in range(codes)}
        return declared(type="category", values={**values, "*": "b"})

    few, many = (calls_of(partial(work, codes)) for codes in (300, 3000))
    assert many < 15 * few
