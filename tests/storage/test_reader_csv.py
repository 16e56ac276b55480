"""CSV: the rows that Python's own reader finds, or a refusal that names the line; and no row moves another."""

from __future__ import annotations

import bz2
import csv
import gzip
import random as randomness
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import InputError
from storage.readers import delimited as module
from storage.refs import OnViolation
from storage.schema import Schema, parse_schema
from storage.source import LONGEST_LINE, ReadOptions, Source, read_source

SCHEMA = """
format_version: 1
header: true
columns:
  - {name: age, type: numeric, range: [0, 100]}
  - {name: colour, type: category, values: [red, green, "1"]}
  - {name: note, type: ignore}
  - {name: sick, type: label, classes: ["no", "yes"], suffix: "."}
missing: {marker: "?", rows: drop}
"""

GOOD = ["50,red,a,no", "1e1, green ,b,yes.", "0,1.0,c,no", "100,1,,yes", "-0.0,red,é,no"]


def source(
    folder: Path, lines: list[str], on_violation: OnViolation = OnViolation.DROP, *, public: bool = True
) -> Source:
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "rows.csv").write_text("\n".join(["age,colour,note,sick", *lines]) + "\n")
    options = ReadOptions(schema=folder / "schema.yaml", on_violation=on_violation, discover=public)
    return read_source("csv", folder / "rows.csv", options)


def taken(found: Source) -> tuple[list[list[float]], list[str], dict[str, int]]:
    blocks = list(found.parts["train"])
    features = [row for block in blocks for row in np.asarray(block.features).tolist()]
    return features, [str(label) for block in blocks for label in block.labels], found.tallies["train"].to_json()


def _layout(**more: Any) -> Schema:
    columns = [{"name": "a", "type": "boolean"}, {"name": "y", "type": "label", "range": [0, 1]}]
    return parse_schema({"columns": columns, "header": False, **more}, "schema")


Row = tuple[int, list[str] | int]
"""The line on which a row ends, and its stripped cells; of another number of cells, how many."""


def by_python(data: bytes, layout: Schema, width: int) -> list[Row]:
    """Return the rows that Python's reader finds, which takes what pyarrow does not."""
    last = 0

    def lines() -> Iterator[str]:
        nonlocal last
        for last, line in enumerate(re.findall(rb"[^\n]*\n|[^\n]+", data), start=1):
            text = line.decode("utf-8-sig" if last == 1 else "utf-8")
            if not text.startswith(layout.skip_lines_beginning):
                yield text

    rows = csv.reader(lines(), delimiter=layout.delimiter, skipinitialspace=True)
    return [(last, [cell.strip() for cell in row] if len(row) == width else len(row)) for row in rows if row]


def as_read(path: Path, layout: Schema, width: int) -> list[Row]:
    found: list[Row] = []
    for table in module.delimited_rows(path, layout, [str(number) for number in range(width)], 5):
        columns = [column.to_pylist() for column in table.columns.values()]
        for row, line in enumerate(table.lines.tolist()):
            fault, cells = table.faults[row] if table.faults else None, [column[row] for column in columns]
            assert not fault or cells == [None] * width
            found.append((line, int(fault.split()[0]) if fault else [cell.strip() for cell in cells]))
    return found


ODD = [
    "a", "1", ",", ",", ",", '"', '"', "\n", "\n", "\n", "\r\n", " ", "#", "é", '""', "\0", "\ufeff", "\t", ";", 'x"y',
    '"q, w"', '"l\nm"', ", ", ',"k"', "\r", "\x1f", "\u2028",
]  # fmt: skip
USUAL = [
    "a",
    "1",
    ",",
    ",",
    "\n",
    "\n",
    '"p"',
    '"l\nm"',
    '"d""e"',
    ',"k"',
    "\r\n",
    'x"y',
    " ",
    "é",
    ',""\n',
    "#c\n",
    '\n#"\n',
]
REFUSALS = "not UTF-8|a line ends with a single carriage return|opens a cell and is never closed|mark follows a space"


@pytest.mark.parametrize("files", [700, pytest.param(50_000, marks=pytest.mark.nightly)])
def test_rows_are_those_that_python_finds_or_a_line_is_refused(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    """Rows of another number of cells and lines included; what Python refuses is refused."""
    of, path, equal = randomness.Random(int(random.integers(1 << 32))), tmp_path / "rows.csv", 0
    refused = 0
    for _ in range(files):
        pieces = of.choice([ODD, USUAL, USUAL])
        data = "".join(of.choice(pieces) for _ in range(of.randint(1, 40))).encode()
        path.write_bytes(data[:3] + b"\xff" + data[3:] if of.random() < 0.02 else data)
        monkeypatch.setattr(module, "_BLOCK_BYTES", of.choice([1, 2, 5, 13, 1 << 22]))
        layout = _layout(delimiter=of.choice(",,,;"), skip_lines_beginning=of.choice([[], ["#"], ["#", "a1"]]))
        width = of.choice([1, 2, 3])
        try:
            found = as_read(path, layout, width)
        except InputError as error:
            refused += re.search(rf"rows.csv, line \d+: .*({REFUSALS})", str(error)) is not None
            continue
        expected = by_python(path.read_bytes(), layout, width)
        assert found == expected, (path.read_bytes(), layout.document)
        first = module.first_row(path, layout)
        assert (first is None) == (not expected)
        assert first is None or first[0] == expected[0][0]
        equal += 1
    assert equal + refused == files
    assert equal > files / 2


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ('1,red,a,no\n1, "red",a,no\n', 3, 'a quotation mark follows a space; .*,"…"'),
        ('1,red, "a,b",no\n', 2, "a quotation mark follows a space"),
        ('1,red,a,no\n1,red,"a,no\n1,red,a,no\n', 3, "a quotation mark opens a cell and is never closed; close it"),
        ('1,red,a"b,no\n1,red,"a""b,no\n', 3, "a quotation mark opens a cell and is never closed"),
        ("1,red,a,no\r1,red,a,no\n", 2, r"a line ends with a single carriage return \(an old Mac format\); convert"),
        ("1,red,a,no\n1,red,a,no\r\r\n", 3, "a line ends with a single carriage return"),
        ('1,red,"a\nb",no\n1,red,a\rb,no\n', 4, "a line ends with a single carriage return"),
        (f"1,red,a,no\n1,red,{'a' * 131_073},no\n", 3, "field larger than field limit, 131072 characters; shorten"),
        (f'1,red,a,no\n1,red,"{"a" * 131_073}",no\n', 3, "field larger than field limit"),
        ('1,red,a,no\n1,red,"' + '""é\n' * 50_000, 3, "field larger than field limit"),
    ],
)
@pytest.mark.parametrize("block", [7, 1 << 22])
@pytest.mark.parametrize("rule", [OnViolation.REFUSE, OnViolation.DROP])
def test_what_leaves_a_row_in_doubt_is_refused_with_its_line(
    text: str, line: int, told: str, rule: OnViolation, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", block if len(text) < 1000 else 1 << 22)
    found = source(tmp_path, [], rule)
    (tmp_path / "rows.csv").write_text("age,colour,note,sick\n" + text, newline="")
    with pytest.raises(InputError, match=rf"rows.csv, line {line}: {told}"):
        taken(found)


def test_quoted_cells_hold_what_others_cannot(tmp_path: Path) -> None:
    cells = ["a,b", 'a"b', "a\nb", "a\rb", "a\r\nb", " a", "\n#a", "é" * 131_072, '"' * 100_000]
    lines = ['"1","red","{}","no"'.format(cell.replace('"', '""')) for cell in cells]
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress("\r\n".join(["age,colour,note,sick", *lines]).encode()))
    names = ["age", "colour", "note", "sick"]
    tables = list(module.delimited_rows(tmp_path / "rows.csv.gz", _layout(header=True), names, 100))
    assert [cell for table in tables for cell in table.columns["note"].to_pylist()] == cells
    assert [line for table in tables for line in table.lines] == [2, 3, 5, 6, 8, 9, 11, 12, 13]


def test_a_row_over_many_lines_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('"a\n' + ",".join(['b\n"', f'"{"c" * 100_000}\n'] * 100) + "\n")
    with pytest.raises(InputError, match=rf"line \d+: .*{LONGEST_LINE} bytes"):
        as_read(tmp_path / "rows.csv", _layout(), 101)


@pytest.mark.parametrize(
    ("encoding", "bad"),
    [("cp1252", b"\x81"), ("utf-16-le", b"\x00\xd8a\x00"), ("shift_jis", b"\xfd"), ("utf-8", b"\xff")],
)
@pytest.mark.parametrize("before", [3, 200_000])
def test_the_line_of_bytes_that_are_not_in_the_encoding(encoding: str, bad: bytes, before: int, tmp_path: Path) -> None:
    row = "1,2\n".encode(encoding)
    (tmp_path / "rows.csv").write_bytes(row * before + bad + row)
    with pytest.raises(InputError, match=rf"(?i)rows.csv, line {before + 1}: byte 0x[0-9a-f]+ .*{encoding}"):
        as_read(tmp_path / "rows.csv", _layout(encoding=encoding), 2)


@pytest.mark.parametrize(
    ("data", "kind", "way"),
    [
        (
            gzip.compress(b"a,b\n1,2\n"),
            "gzip",
            r"rename it to rows\.csv\.gz, and Unitball decompresses it while reading",
        ),
        (bz2.compress(b"a,b\n1,2\n"), "bzip2", r"rows\.csv\.bz2"),
        (b"PK\x03\x04" + bytes(40), "zip", "decompress it first; save a spreadsheet as CSV"),
    ],
    ids=["gzip", "bzip2", "zip"],
)
def test_a_packed_file_that_is_named_as_a_text_is_named(data: bytes, kind: str, way: str, tmp_path: Path) -> None:
    """A byte was said not to be UTF-8, and an encoding was to be declared."""
    path = tmp_path / "rows.csv"
    path.write_bytes(data)
    for look in (lambda: module.first_row(path, _layout()), lambda: module.sniffed_layout(path)):
        with pytest.raises(InputError, match=rf"rows\.csv.*{kind}.*{way}"):
            look()


def test_a_file_of_an_old_mac_is_named_however_long_it_is(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,0\r" * 3_000_000, newline="")
    for read in (
        lambda: as_read(tmp_path / "rows.csv", _layout(), 2),
        lambda: module.first_row(tmp_path / "rows.csv", _layout()),
    ):
        with pytest.raises(InputError, match="line 1"):
            read()


def test_faulty_rows_and_comments_leave_the_others_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["5,red,a,no", "# it's 5\" wide", "5,red", '5,red,"x\ny",no', "", '#"', "5,red,a,b,no", "7,red,a,yes"]
    (tmp_path / "schema.yaml").write_text(SCHEMA.replace("columns:", 'skip_lines_beginning: ["#"]\ncolumns:'))
    (tmp_path / "rows.csv").write_text("\n".join(["age,colour,note,sick", *lines]))
    options = ReadOptions(schema=tmp_path / "schema.yaml", on_violation=OnViolation.DROP)
    for size in (9, 30, 1 << 22):
        monkeypatch.setattr(module, "_BLOCK_BYTES", size)
        blocks = list(read_source("csv", tmp_path / "rows.csv", options).parts["train"])
        lines_found = [line for block in blocks for line in (block.lines if block.lines is not None else [])]
        nulls = [
            null
            for block in blocks
            for null in (np.zeros(len(block.labels), bool) if block.null is None else block.null)
        ]
        assert lines_found == [2, 4, 6, 9, 10]
        assert nulls == [False, True, False, True, False]


_THREADS = """
import os, sys, threading
from pathlib import Path
from storage.rowfiles import ahead
from storage.refs import OnViolation
from storage.source import ReadOptions, read_source
before = len(os.listdir("/proc/self/task"))
options = ReadOptions(schema=Path(sys.argv[2]), discover=True, on_violation=OnViolation.DROP)
rows = sum(len(block.labels) for block in ahead(read_source("csv", Path(sys.argv[1]), options).parts["train"]))
print(rows, len(os.listdir("/proc/self/task")) - before, threading.active_count())
if len(sys.argv) > 3:
    next(iter(ahead(read_source("csv", Path(sys.argv[1]), options).parts["train"])))
"""


@pytest.mark.parametrize("runs", [2, pytest.param(40, marks=pytest.mark.nightly)])
def test_a_process_that_read_csv_ends_well(runs: int, tmp_path: Path) -> None:
    """With none of Arrow's threads: one that ran while the interpreter ended aborted the process, once in 26 times."""
    source(tmp_path, [*GOOD, '5,red,"a\nb",no', "5,red"] * 20_000)
    for run in range(runs):
        command = [sys.executable, "-c", _THREADS, str(tmp_path / "rows.csv"), str(tmp_path / "schema.yaml"), "x"]
        done = subprocess.run(command[: 5 + run % 2], capture_output=True, text=True, check=False, timeout=300)
        assert (done.returncode, done.stderr) == (0, ""), (run, done)
        rows, threads, ours = map(int, done.stdout.split())
        # One of Arrow's looks ahead, and knows nothing of Python's.
        assert (rows, ours) == (120_000, 1)
        assert threads <= 1


def test_a_line_ends_alike_in_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(["age,colour,note,sick", *GOOD * 20])
    found, expected = source(tmp_path, []), taken(source(tmp_path, GOOD * 20))
    monkeypatch.setattr(module, "_BLOCK_BYTES", 97)
    for written in (text, text.replace("\n", "\r\n"), "\ufeff" + text + "\n" * 3):
        (tmp_path / "rows.csv").write_bytes(written.encode())
        assert taken(found) == expected
    (tmp_path / "rows.csv").write_bytes(text.replace("\n", "\r").encode())
    with pytest.raises(InputError, match=r"line 1:.*return"):
        taken(found)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("101,red,a,no", "line 402.*'101'"),
        ("5,red,a", "line 402: 3"),
        ("5,red,\udcff,no", "line 402: byte 0xff.*UTF-8"),
    ],
)
def test_the_faulty_line_is_named(line: str, told: str, tmp_path: Path) -> None:
    found = source(tmp_path, [*GOOD * 80, *GOOD], OnViolation.REFUSE)
    with (tmp_path / "rows.csv").open("wb") as file:
        lines = ["age,colour,note,sick", *GOOD * 80, line, *GOOD]
        file.write("\n".join(lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=told):
        taken(found)


BESIDE = """
format_version: 1
columns:
  - {name: note, type: ignore}
  - {name: remark, type: ignore}
  - {name: age, type: numeric, range: [0, 100]}
  - {name: born, type: date, range: [2000-01-01, 2026-12-31]}
  - {name: sick, type: label, classes: ["no", "yes"], suffix: "."}
missing: {marker: "", rows: indicator}
"""
OTHERS = ["a,b,5,2001-01-01,no", "a,b,x,2001-01-01,no", "a,b,5\x1f,,no", "a,b,5,,no", "a,b,5,no"]


@pytest.mark.parametrize("block", [40, 1 << 22])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    "row", ["a,b,7\x1f,2001-01-01,no", 'a,"b,c",7,2001-01-01,no', 'a"b,"c",7,2001-01-01,no', "a,b,7,2001-01-01,no. "]
)
def test_a_row_is_the_same_beside_other_rows(
    row: str, other: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one row would move others: whole columns are read together, or line by line where a row asks for it."""
    monkeypatch.setattr(module, "_BLOCK_BYTES", block)
    (tmp_path / "schema.yaml").write_text(BESIDE)
    options = ReadOptions(schema=tmp_path / "schema.yaml", on_violation=OnViolation.DROP, discover=False)
    found = []
    for lines in ([row], [other, row], [other, other, row]):
        text = "\n".join(["note,remark,age,born,sick", *lines]) + "\n"
        (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
        block_of_it = list(read_source("csv", tmp_path / "rows.csv", options).parts["train"])[-1]
        null = block_of_it.null is not None and bool(block_of_it.null[-1])
        found.append((null, block_of_it.features[-1].tolist(), None if null else str(block_of_it.labels[-1])))
    assert found == [found[0]] * 3


def test_a_cell_of_two_lines_is_whole_where_a_block_ends_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f'{age},red,a,"no\n"' for age in range(10)] + ['7,red,a,"no\nt"']
    for size in range(20, 60):
        monkeypatch.setattr(module, "_BLOCK_BYTES", size)
        tally = taken(source(tmp_path, lines))[2]
        assert (tally["read"], tally["kept"], tally["dropped"]) == (11, 10, 1), size


def test_a_cell_that_begins_with_a_mark_of_order_is_none_of_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the beginning of a block as anywhere else but in the file's first line."""
    for size in range(20, 60):
        monkeypatch.setattr(module, "_BLOCK_BYTES", size)
        found = source(tmp_path, [*GOOD, "\ufeff1,red,a,no", *GOOD] * 3)
        assert taken(found)[2]["dropped"] == 3, size


LAST = """
format_version: 1
columns:
  - {name: sick, type: label, classes: ["no", "yes"]}
  - {name: age, type: numeric, range: [0, 100]}
  - {name: note, type: ignore}
"""


def test_a_cell_of_two_lines_is_whole_wherever_it_stands(tmp_path: Path) -> None:
    """Otherwise a longer cell before it would make two rows of one, and move all that follow."""
    (tmp_path / "schema.yaml").write_text(LAST)
    options = ReadOptions(schema=tmp_path / "schema.yaml")
    head, filler = "sick,age,note\n", "no,5,a\n"
    whole, rest = divmod((1 << 20) - len(head) - 20, len(filler))
    for wider in range(0, 24, 2):
        first = f"no,5,{'a' * (1 + rest + wider)}\n"
        (tmp_path / "rows.csv").write_text(head + first + filler * (whole - 1) + 'no,7,"x\nno,5,y"\n' + filler * 40)
        blocks = read_source("csv", tmp_path / "rows.csv", options).parts["train"]
        assert sum(len(block.labels) for block in blocks) == whole + 41, wider
