"""One declaration for many columns: names in a list, and patterns that a file's line of names settles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.schema import Schema, load_schema, parse_schema
from storage.source import ReadOptions, concatenate, read_source

LABEL = {"name": "y", "type": "label", "classes": ["no", "yes"]}
NUMBER = {"type": "numeric", "range": [0, 10]}
THERE = ["diag_10", "diag_2", "age", "diag_1", "y"]


def schema_of(*columns: dict[str, Any], there: list[str] | None = None) -> Schema:
    return parse_schema({"columns": [*columns, LABEL]}, "schema", None, there)


def test_a_list_of_names_is_a_column_each() -> None:
    together = schema_of({"names": ["b", "a"], **NUMBER}, {"names": ["i", "j"], "type": "ignore"})
    alone = schema_of(
        *({"name": name, **NUMBER} for name in "ba"), {"name": "i", "type": "ignore"}, {"name": "j", "type": "ignore"}
    )
    assert together == alone
    assert together.feature_names == ("b", "a", "(intercept)")


def test_a_pattern_takes_columns_in_an_order_of_its_own() -> None:
    """Features lie alike whatever order a file has its columns in: diag_2 before diag_10."""
    entries = [{"names": "diag_*", **NUMBER}, {"name": "age", **NUMBER}]
    schema = schema_of(*entries, there=THERE)
    assert schema.feature_names[:-1] == ("diag_1", "diag_2", "diag_10", "age")
    assert schema == schema_of(*entries, there=THERE[::-1])
    # What is stored names the columns, so that a model asks for these whatever else its rows have.
    assert schema.document["columns"][0]["names"] == ["diag_1", "diag_2", "diag_10"]
    assert parse_schema(schema.document, "elsewhere") == schema
    some = schema_of({"names": ["diag_1*", "age"], **NUMBER}, {"names": ["diag_2"], "type": "ignore"}, there=THERE)
    assert some.feature_names[:-1] == ("diag_1", "diag_10", "age")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([{"names": []}], r"column 1: names is \[\]"),
        ([{"names": None}], "column 1: names is None"),
        ([{"names": 3}], "column 1:.*3"),
        ([{"names": {"a": 1}}], r"column 1:.*\{'a': 1\}"),
        ([{"names": "age"}], "column 1: names is 'age'"),
        ([{"names": ["age", None]}], "column 1: names holds None"),
        ([{"names": ["age", " "]}], "column 1:.*' '"),
        ([{"names": ["age", "age"]}], "column 1: names holds 'age'"),
        ([{"names": ["age"], "name": "age"}], "column 1 has a name, 'age'"),
        ([{"name": "x"}, {"names": ["age", "x"]}], "column 'x'"),
        ([{"names": "lab_*"}], r"column 1:.*'lab_\*'.*diag_10"),
        ([{"names": ["age", "Diag_*"]}], r"'Diag_\*'"),
        (
            [{"names": "diag_*"}, {"name": "diag_2"}],
            r"column 2:.*'diag_2'.*'diag_\*'.*column 'diag_2'",
        ),
        ([{"name": "diag_2"}, {"names": "diag_*"}], r"column 2:.*'diag_\*'.*'diag_2'"),
        ([{"names": "diag_*"}, {"names": ["*_1"]}], r"'\*_1'.*'diag_\*'.*'diag_1'"),
        ([{"names": ["diag_*", "*_10"]}], r"'\*_10'.*'diag_\*'"),
        ([{"names": "*"}], r"'y'.*'\*'.*column 'y'"),
    ],
)
def test_wrong_names_say_what_is_right(columns: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=f"schema.*{message}"):
        schema_of(*({**NUMBER, **column} for column in columns), there=THERE)


def test_a_pattern_is_refused_where_no_file_settles_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"column 1: names holds.*'diag_\*'"):
        schema_of({"names": "diag_*", **NUMBER})
    (tmp_path / "rows.csv").write_text("1,2,no\n")
    document = {"header": False, "columns": [{"names": "diag_*", **NUMBER}, LABEL]}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match="'header: false'"):
        read_source("csv", tmp_path / "rows.csv", ReadOptions(schema=tmp_path / "schema.yaml"))


def _written(folder: Path, frame: pd.DataFrame, name: str) -> Path:
    path = folder / name
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_settles_patterns_and_so_does_a_folder(suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"diag_10": [1, 2], "diag_2": [3, 4], "age": [5, 6], "y": ["no", "yes"]})
    document = {"columns": [{"names": "diag_*", **NUMBER}, {"name": "age", **NUMBER}, LABEL]}
    schema = tmp_path / "schema.yaml"
    schema.write_text(yaml.safe_dump({**document, "files": {"train": f"rows.{suffix}"}}))
    folder = tmp_path / "folder"
    folder.mkdir()
    path = _written(folder, frame, f"rows.{suffix}")
    sources = [read_source(suffix, place, ReadOptions(schema=schema)) for place in (path, folder)]
    schema.write_text(yaml.safe_dump(document))
    if suffix == "parquet":
        sources.append(read_source(suffix, folder, ReadOptions(schema=schema)))
    else:
        with pytest.raises(InputError, match=r"folder.*'files: "):
            read_source(suffix, folder, ReadOptions(schema=schema))
    for source in sources:
        assert source.table is not None
        encoder = TableEncoder(**source.table)
        assert encoder.feature_names_in_.tolist() == ["diag_2", "diag_10", "age"]
        read = np.concatenate([block.features for block in source.parts["train"]])
        # A model's rows may have others that the pattern would take.
        assert encoder.transform(frame.assign(diag_3=[7, 8])).tobytes() == read.tobytes()


def test_parties_whose_columns_differ_are_refused(tmp_path: Path) -> None:
    """As many columns, and other ones: rows of different meaning would lie in one place."""
    schema = tmp_path / "schema.yaml"
    schema.write_text(yaml.safe_dump({"columns": [{"names": "diag_*", **NUMBER}, LABEL]}))
    sources = {}
    for party, name in (("north", "diag_3"), ("south", "diag_4")):
        path = _written(tmp_path, pd.DataFrame({"diag_1": [1], name: [2], "y": ["no"]}), f"{party}.csv")
        sources[party] = read_source("csv", path, ReadOptions(schema=schema))
    with pytest.raises(InputError, match=r"parties 'north'.*'south'"):
        concatenate(sources)
    assert concatenate({"a": sources["north"], "b": sources["north"]}).dimension == 3


def test_the_file_of_a_schema_without_patterns_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(yaml.safe_dump({"columns": [{"names": ["a", "b"], **NUMBER}, LABEL]}))
    assert load_schema(path).in_file == ("a", "b", "y")
    # A name is what it says, whatever characters it has.
    path.write_text(yaml.safe_dump({"columns": [{"name": "a*", **NUMBER}, LABEL]}))
    assert load_schema(path).in_file == ("a*", "y")
