"""A schema for somebody's own table: drafted from names alone, checked against all rows at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import source as files
from storage.documents import parse_yaml
from storage.errors import InputError
from storage.schema import parse_schema
from tasks.datasets.drafts import draft_schema, fill_draft
from tasks.datasets.proposals import proposed
from tasks.datasets.schema_checks import check_schema
from tests.support.command_line import CommandLine

MESSY = """\
id;Größe;Ort;raucht;gesehen;Ergebnis
1;1,80;Köln;ja;01.02.2024;gut
2;;Bonn;nein;03.02.2024;schlecht
3;9,99;Bonn;vielleicht;03.02.2024;gut
4;1,70;Rom;ja;31.02.2024;gut
5;1.70;Köln;ja;01.02.2024;gut;zu viel
6;1,80;Köln;ja;01.02.2024;
7;1,80;Köln;ja;01.02.2024;gut
"""
COLUMNS = """
columns:
  - {name: id, type: ignore}
  - {name: Größe, type: numeric, range: [0.5, 2.5]}
  - {name: Ort, type: category, values: [Köln, Bonn, Ulm]}
  - {name: raucht, type: boolean, values: ["nein", "ja"]}
  - {name: gesehen, type: date, range: [2020-01-01, 2026-12-31], format: "%d.%m.%Y"}
  - {name: Ergebnis, type: label, classes: [gut, schlecht]}
"""


def _drafted(path: Path, **more: Any) -> str:
    output = path.with_suffix(".yaml")
    output.unlink(missing_ok=True)
    draft_schema(path, output, **more)
    return output.read_text("utf-8")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_a_draft_holds_the_names_and_no_value(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(MESSY.encode(encoding))
    text = _drafted(path)
    given = parse_yaml(text, "draft")
    assert [column["name"] for column in given["columns"]] == ["id", "Größe", "Ort", "raucht", "gesehen", "Ergebnis"]
    assert {column["type"] for column in given["columns"]} == {"todo"}
    assert (given["delimiter"], given["header"]) == (";", True)
    assert given["encoding"] == {"utf-8-sig": "utf-8"}.get(encoding, encoding)
    for cell in ("1,80", "Köln", "vielleicht", "2024", "schlecht"):
        assert cell not in text
    # Filled in, it reads the file.
    output = tmp_path / "filled.yaml"
    output.write_text(text[: text.index("columns:")].replace('decimal: "."', 'decimal: ","') + COLUMNS, "utf-8")
    assert check_schema(output, path).rows == 7


def test_a_draft_reads_no_second_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "1,2\n" * 10)
    lines: list[int] = []

    def one_line(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
        for number, line in original(file, path):
            lines.append(number)
            yield number, line

    original = files.bounded_lines
    monkeypatch.setattr("storage.readers.delimited.bounded_lines", one_line)
    _drafted(path)
    assert lines == [1]


def test_a_draft_of_parquet_knows_types_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": [1.5], "b": [True], "c": pa.array([0], pa.timestamp("s"))}), path)
    given = parse_yaml(_drafted(path), "draft")
    assert {column["name"]: column["type"] for column in given["columns"]} == {"a": "todo", "b": "boolean", "c": "date"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("39,State-gov", "column 1.*--no-header"),
        ("a,,c", "column 2"),
        ("a,b,a", "column 'a'"),
    ],
)
def test_a_first_line_that_names_nothing_is_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match=message):
        _drafted(path)
    assert not path.with_suffix(".yaml").exists()
    text = _drafted(path, header=False)
    assert "State-gov" not in text
    given = parse_yaml(text, "draft")
    assert (given["header"], given["columns"][1]["name"]) == (False, "column-2")
    with pytest.raises(InputError, match="exists"):
        draft_schema(path, path.with_suffix(".yaml"))


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    path, schema = tmp_path / "rows.csv", tmp_path / "s.yaml"
    path.write_text(MESSY)
    schema.write_text('delimiter: ";"\ndecimal: ","\nmissing: {marker: "", rows: drop}' + COLUMNS)
    report = check_schema(schema, path)
    assert (report.rows, report.broken_rows, report.broken) == (7, 1, {6: "7 cells, there are 6 columns"})
    assert (report.missing_rows, report.outside_rows, report.unclippable_rows) == (2, 2, 2)
    found = {column.name: column for column in report.columns}
    assert found["Größe"].examples == {"line 4": "9,99"}
    assert (found["Größe"].missing, found["Größe"].outside, found["Größe"].unclippable) == (1, 1, 0)
    assert (found["Ort"].outside, found["Ort"].unclippable, found["Ort"].unseen) == (1, 0, ["Ulm"])
    assert (found["raucht"].unclippable, found["raucht"].examples) == (1, {"line 4": "vielleicht"})
    assert found["gesehen"].examples == {"line 5": "31.02.2024"}
    assert (found["Ergebnis"].missing, found["Ergebnis"].unseen) == (1, [])
    assert (report.duplicates.rows, report.duplicates.largest_group) == (1, 2)
    indicator = schema.read_text().replace("rows: drop", "rows: indicator")
    schema.write_text(indicator)
    assert check_schema(schema, path).missing_rows == 1, "a row without a label is of no use"


def test_all_faults_of_a_schema_and_of_names_are_said_at_once(tmp_path: Path) -> None:
    path, schema = tmp_path / "rows.csv", tmp_path / "s.yaml"
    path.write_text("a;b;c\n1;2;3\n")
    columns = [{"name": name, "type": "todo"} for name in "ab"] + [{"name": "c", "type": "numeric", "range": [1, 0]}]
    schema.write_text(str({"columns": columns}))
    with pytest.raises(InputError, match=r"3 faults: type.*'todo'.*range.*\[1, 0\]"):
        check_schema(schema, path)
    good = [{"name": name, "type": "boolean"} for name in "ax"] + [{"name": "y", "type": "label", "range": [0, 1]}]
    parse_schema({"columns": good}, "s")
    schema.write_text(str({"columns": good, "delimiter": ";"}))
    with pytest.raises(InputError) as caught:
        check_schema(schema, path)
    for what in ("'x' is missing", "'y' is missing", "'b' is not in the schema", "'c' is not in the schema"):
        assert what in str(caught.value)


@pytest.mark.parametrize("values", [200, 201])
def test_what_many_values_cost_is_said(values: int, commands: CommandLine, tmp_path: Path) -> None:
    rows, schema = tmp_path / "rows.csv", tmp_path / "schema.yaml"
    rows.write_text("model,y\nm0,a\nm1,b\n")
    listed = ", ".join(f"m{value}" for value in range(values))
    schema.write_text(
        f"columns:\n  - {{name: model, type: category, values: [{listed}]}}\n"
        "  - {name: y, type: label, classes: [a, b]}\n"
    )
    told = commands("schema", "check", str(schema), "--path", str(rows)).out
    assert ("model becomes 201 features" in told and "--categories model" in told) == (values > 200)


def test_a_column_that_is_always_missing_is_said(tmp_path: Path) -> None:
    path, schema = tmp_path / "rows.csv", tmp_path / "s.yaml"
    path.write_text("a,y\n,1\n,0\n")
    columns = [{"name": "a", "type": "boolean"}, {"name": "y", "type": "label", "classes": ["0", "1", "2"]}]
    schema.write_text(str({"columns": columns}))
    report = check_schema(schema, path)
    assert [column.missing for column in report.columns] == [report.rows, 0]
    assert report.columns[1].unseen == ["2"]


def test_people_and_values_that_repeat_are_said_to_the_owner(tmp_path: Path) -> None:
    rows, schema = tmp_path / "rows.csv", tmp_path / "schema.yaml"
    rows.write_text("id,note,age,sick\n7,a,50,no\n7.0,b,60,yes\n 7,c,70,no\n8,,20,yes\n,d,30,no\n")
    text = "columns:\n  - {name: id, type: ignore}\n  - {name: note, type: ignore}\n"
    text += '  - {name: age, type: numeric, range: [0, 100]}\n  - {name: sick, type: label, classes: ["no", "yes"]}\n'
    schema.write_text(text)
    report = check_schema(schema, rows)
    assert (report.people, report.repeated) == ("", {"id": (2, 4, 3)})
    schema.write_text(text.replace("id, type: ignore", "id, type: person"))
    report = check_schema(schema, rows)
    assert (report.people, report.repeated, report.missing_rows) == ("id", {"id": (2, 4, 3)}, 1)


RECODED = """
missing: {marker: "?", rows: indicator}
columns:
  - {name: race, type: category, values: {Caucasian: white, "?": other, Asian: other, Roma: other}}
  - {name: age, type: numeric, ordered: ["[0-10)", "[10-20)", "[20-30)"]}
  - {names: "diag_*", type: category, first: 3, values: ["250", V57]}
  - {names: [metformin, insulin], type: boolean, values: {"No": false, Up: true, "St*": true}}
  - {name: back, type: label, classes: {"<30": early, ">30": rest, "NO": rest}}
"""
ENCOUNTERS = """\
race,age,diag_2,diag_1,metformin,insulin,back
Caucasian,[0-10),250.83,V57,No,Up,<30
?,[20-30),428,250,Steady,No,>30
Asian,25,?,V57.89,Stopped,No,NO
Martian,[20-30),250,41,No,Down,NO
"""


def test_a_check_says_what_recodings_did(commands: CommandLine, tmp_path: Path) -> None:
    rows, schema = tmp_path / "rows.csv", tmp_path / "s.yaml"
    rows.write_text(ENCOUNTERS)
    schema.write_text(RECODED)
    report = check_schema(schema, rows)
    found = {column.name: column for column in report.columns}
    assert list(found) == ["race", "age", "diag_1", "diag_2", "metformin", "insulin", "back"]
    assert found["race"].recoded == {"Caucasian → white": 1, "? → other": 1, "Asian → other": 1, "Roma → other": 0}
    assert found["age"].recoded == {"[0-10) → 1 of 3": 1, "[10-20) → 2 of 3": 0, "[20-30) → 3 of 3": 2}
    assert (found["age"].unseen, found["age"].unclippable, found["age"].examples) == (["[10-20)"], 1, {"line 4": "25"})
    assert found["diag_1"].recoded == {"250": 1, "V57": 2, "cut to 3 characters": 1}
    assert found["diag_2"].recoded == {"250": 2, "V57": 0, "cut to 3 characters": 1}
    assert found["metformin"].recoded == {"No → false": 2, "Up → true": 0, "St* → true": 2}
    assert found["insulin"].recoded == {"No → false": 2, "Up → true": 1, "St* → true": 0}
    assert found["back"].recoded == {"<30 → early": 1, ">30 → rest": 1, "NO → rest": 2}
    assert (found["race"].outside, found["insulin"].unclippable) == (1, 1)
    shown = commands("schema", "check", schema, "--path", rows).out
    assert "2 columns (metformin, insulin), recoded cells: No → false (4), Up → true (1), St* → true (2)" in shown
    assert "column back, recoded cells: <30 → early (1), >30 → rest (1), NO → rest (2)" in shown
    assert commands.succeeds("schema", "check", schema, "--path", rows)["columns"][0]["recoded"]["? → other"] == 1
    schema.write_text(RECODED.replace('"diag_*"', '"lab_*"'))
    with pytest.raises(InputError, match=r"'lab_\*'"):
        check_schema(schema, rows)


BRACKETS = [f"[{low}-{low + 10})" for low in range(0, 100, 10)]
ICD = [f"{first}.{last}" for first in ("250", "428", "V57") for last in range(10)]


@pytest.mark.parametrize(
    ("values", "proposal"),
    [
        (sorted(BRACKETS, reverse=True), {"type": "numeric", "ordered": BRACKETS}),
        (["80+", "18-39", "<18", "40-79"], {"type": "numeric", "ordered": ["<18", "18-39", "40-79", "80+"]}),
        # In an order that nothing tells: these are three outcomes, and those overlap.
        (["<30", ">30", "NO"], {"type": "category", "values": ["<30", ">30", "NO"]}),
        (["0-20", "10-30", "40-50"], {"type": "category", "values": ["0-20", "10-30", "40-50"]}),
        (ICD, {"type": "category", "first": 3, "values": ["250", "428", "V57"]}),
        (ICD[:5], {"type": "category", "values": ["250", "250.1", "250.2", "250.3", "250.4"]}),
        (["north", "south"], {"type": "category", "values": ["north", "south"]}),
    ],
)
def test_what_values_suggest(values: list[str], proposal: dict[str, Any]) -> None:
    assert dict(proposed(values)) == proposal


def test_drawn_values_are_proposed_and_columns_alike_together(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.csv", tmp_path / "s.yaml"
    rows.write_text(ENCOUNTERS)
    names = ["race", "age", "diag_1", "metformin", "insulin"]
    for header, expected in ((True, [["metformin", "insulin"]]), (False, [])):
        output.unlink(missing_ok=True)
        asked = names if header else [f"column-{place}" for place in (1, 2, 4, 5, 6)]
        draft_schema(rows, output, header=header, categories=asked)
        drawn = dict(zip(asked, ([], BRACKETS[1:4], ICD, ["No", "Up"], ["No", "Up"]), strict=True))
        fill_draft(output, {}, (-1.0, 1.0), drawn)
        columns = parse_yaml(output.read_text("utf-8"), "draft")["columns"]
        assert [one["names"] for one in columns if "names" in one] == expected, "without names their order counts"
        assert sum(len(one.get("names", [""])) for one in columns) == 7
        by_name = {name: one for one in columns for name in one.get("names", [one.get("name")])}
        assert by_name[asked[0]] == {"name": asked[0], "type": "category"}, "nothing was drawn"
        assert by_name[asked[1]]["ordered"] == BRACKETS[1:4]
        assert (by_name[asked[2]]["first"], by_name[asked[2]]["values"]) == (3, ["250", "428", "V57"])
        assert by_name[asked[4]]["values"] == ["No", "Up"]


def test_public_rows_are_read_and_proposed_of(commands: CommandLine, tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.csv", tmp_path / "s.yaml"
    lines = [
        f"{place},{('?', 'Roma', 'Asian')[place % 3]},{BRACKETS[place % 10]},{ICD[place % 30]},{place % 7 + 0.5},"
        f"{('yes', 'no')[place % 2]},{('No', 'Up')[place % 2]},{('Up', 'No')[place % 2]},x,{7 * place}"
        for place in range(300)
    ]
    rows.write_text("id,race,age,diag,days,flag,metformin,insulin,same,number\n" + "\n".join(lines) + "\n")
    private = ("--person", "id", "--missing", "?")
    assert commands("schema", "draft", rows, "-o", output, *private).code == 0
    kept = output.read_text("utf-8")
    assert "no value was read" in kept
    for cell in ("Roma", "250.3", '[10-20)"', "6.5"):
        assert cell not in kept.split("columns:")[1]
    output.unlink()
    assert commands("schema", "draft", rows, "-o", output, *private, "--public").code == 0
    text = output.read_text("utf-8")
    assert "and its rows, which are public" in text
    given = parse_yaml(text, "draft")["columns"]
    assert given == [
        {"name": "id", "type": "person"},
        {"name": "race", "type": "category", "values": ["Asian", "Roma"]},
        {"name": "age", "type": "numeric", "ordered": BRACKETS},
        {"name": "diag", "type": "category", "first": 3, "values": ["250", "428", "V57"]},
        {"name": "days", "type": "numeric", "range": [0.5, 6.5]},
        {"name": "flag", "type": "boolean"},
        {"names": ["metformin", "insulin"], "type": "category", "values": ["No", "Up"]},
        {"name": "same", "type": "ignore"},
        {"name": "number", "type": "ignore"},
    ]
    both = commands("schema", "draft", rows, "-o", tmp_path / "t.yaml", "--public", "--numeric", "days",
                    "--range-epsilon", "1")  # fmt: skip
    both.refused(2, "--range-epsilon for private")
    assert not (tmp_path / "t.yaml").exists()
