"""A schema in a minute: the names of a file's columns as a commented draft, types and ranges left to fill in."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from storage.atomic import write_bytes
from storage.columns.column import named_twice
from storage.errors import InputError
from storage.readers.arrow_batches import open_parquet
from storage.readers.files import LONGEST_LINE, open_binary, reading, require_file
from storage.readers.raw import PARQUET, header_of
from storage.schema import Schema, parse_schema

_DELIMITERS = (",", ";", "\t", "|")
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8"))

_HEAD = """\
# Schema of {file}, drafted from {source}: no value was read.
# Write a type for every column instead of "todo", with what it needs, then see what is left:
#     unitball schema check {output} --path {path}
#
#   numeric    range: [0, 100]           centre: 20 (what lies at 0), scale: log (sizes of different magnitude)
#   category   values: [north, south]    quotes around yes, no, true, false and numbers
#   boolean                              values: ["nein", "ja"] where it is not yes/no, true/false, 1/0
#   date       range: [2020-01-01, 2026-12-31]    format: "%d.%m.%Y", parts: [days, year, month, weekday]
#   ignore     names, identifiers, free text
#   label      classes: [well, ill] or {{"0": well, "1": ill}} or range: [0, 10]: what is to be predicted, one column
#
# Ranges, values and classes are what can be, from a code book or from knowing the matter, and never what the rows hold:
# they are public. Every key is explained in docs/your-data.md.
format_version: 1
"""
_TEXT = """\
header: {header}           # false: the file begins with a row, and columns are taken in this order
delimiter: {delimiter}
encoding: {encoding}
decimal: {decimal}           # "," where 1,5 is one and a half
"""
_MISSING = """\
# How a missing cell is written, and what becomes of its row: indicator (a feature says so), constant (the middle),
# drop, or refuse. A column may have a rule of its own: missing: drop.
missing: {{marker: {markers}, rows: indicator}}
columns:
"""

_ARROW: Mapping[str, str] = MappingProxyType({"bool": "boolean", "date": "date", "timestamp": "date"})


def draft_schema(
    path: Path,
    output: Path,
    *,
    header: bool = True,
    decimal: str = ".",
    missing: Sequence[str] = ("",),
    numeric: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> int:
    """Write a commented schema from the names of a file's columns, and return how many there are.

    Of text the first line is read, of Parquet the names and types; no value of a row is.

    Parameters
    ----------
    path : Path
        CSV (plain, .gz, .bz2) or Parquet.
    output : Path
        The YAML file to write.
    header : bool
        Whether the first line names the columns. If not, its cells are only counted.
    decimal : {".", ","}
        Of the file's numbers.
    missing : sequence of str
        How missing cells are written.
    numeric, categories : sequence of str
        Columns that are known to be numbers, or categories.

    Raises
    ------
    InputError
        If there is an output already, the first line cannot be one of names (a cell is a number, empty, or twice), or
        there is no such column.
    """
    if decimal not in (".", ","):
        raise InputError(f"decimal is {decimal!r}; it must be a point or a comma")
    if output.exists():
        raise InputError(f"{output} exists; name another output, or remove it first")
    place = require_file(path)
    known = {"file": path.name, "path": path, "output": output}
    if path.suffix in PARQUET:
        names = _parquet_names(place)
        text = _HEAD.format(source="its names and types", **known)
    else:
        layout, names = _text_layout(place)
        if header:
            _require_names(place, names)
        else:
            names = [(f"column-{number}", "todo") for number in range(1, len(names) + 1)]
        text = _HEAD.format(source="its first line" if header else "the number of its columns", **known) + _TEXT.format(
            header=str(header).lower(),
            delimiter=json.dumps(layout.delimiter),
            encoding=layout.encoding,
            decimal=json.dumps(decimal),
        )
    known_types = dict.fromkeys(numeric, "numeric") | dict.fromkeys(categories, "category")
    unknown = [name for name in known_types if name not in dict(names)]
    if unknown:
        raise InputError(f"{path} has no column {unknown[0]!r}; it has: {', '.join(name for name, _ in names)}")
    lines = [_line(name, known_types.get(name, kind)) for name, kind in names]
    markers = json.dumps(missing[0] if len(missing) == 1 else [*missing], ensure_ascii=False)
    output.write_text(text + _MISSING.format(markers=markers) + "".join(lines), "utf-8")
    return len(lines)


def _line(name: str, kind: str, more: str = "") -> str:
    return f"  - {{name: {json.dumps(name, ensure_ascii=False)}, type: {kind}{more}}}\n"


def fill_ranges(output: Path, ranges: Mapping[str, tuple[float, float] | None], fallback: tuple[float, float]) -> None:
    """Write ranges into a draft's numeric columns, the fallback where there is none."""
    text = output.read_text("utf-8")
    for name, found in ranges.items():
        low, high = (f"{end:.17g}" for end in found or fallback)
        comment = "" if found else "  # no bin stood out of the noise: the declared fallback"
        filled = _line(name, "numeric", f", range: [{low}, {high}]").rstrip("\n") + comment + "\n"
        text = text.replace(_line(name, "numeric"), filled)
    write_bytes(output, text.encode(), mode=0o644)


def fill_values(output: Path, values: Mapping[str, Sequence[str]]) -> None:
    """Write values into a draft's categories; those without any stay to be filled in."""
    text = output.read_text("utf-8")
    for name, found in values.items():
        if found:
            listed = f", values: {json.dumps(list(found), ensure_ascii=False)}"
            text = text.replace(_line(name, "category"), _line(name, "category", listed))
    write_bytes(output, text.encode(), mode=0o644)


def _text_layout(path: Path) -> tuple[Schema, list[tuple[str, str]]]:
    """Return how a text is laid out as far as its first line tells, and the cells of that line."""
    with reading(path), open_binary(path) as file:
        first = file.readline(LONGEST_LINE)
    encoding = next((name for mark, name in _MARKS if first.startswith(mark)), "")
    if not encoding:
        try:
            first.decode("utf-8")
            encoding = "utf-8"
        except UnicodeDecodeError:
            encoding = "cp1252"
    line = first.decode(encoding, errors="replace")
    delimiter = max(_DELIMITERS, key=line.count)
    blank: dict[str, object] = {
        "columns": [{"name": "x", "type": "boolean"}, {"name": "y", "type": "label", "range": [0, 1]}]
    }
    layout = parse_schema({**blank, "delimiter": delimiter, "encoding": encoding}, str(path))
    return layout, [(cell, "todo") for cell in header_of(path, layout)]


def _require_names(path: Path, names: Sequence[tuple[str, str]]) -> None:
    cells = [name for name, _ in names]
    twice = named_twice(cells)
    for number, cell in enumerate(cells, start=1):
        if not cell:
            raise InputError(f"{path}, line 1: column {number} has no name; give it one in the file")
        if cell.replace(",", ".").lstrip("+-").replace(".", "", 1).isdigit():
            raise InputError(
                f"{path}, line 1: column {number} is a number, so that the line seems to be a row and not the columns' "
                "names; if so, give --no-header"
            )
        if cell == twice:
            raise InputError(f"{path}, line 1: column {cell!r} is named twice; rename one in the file")


def _parquet_names(path: Path) -> list[tuple[str, str]]:
    with open_parquet(path, 0) as file:
        return [(field.name, _ARROW.get(str(field.type).split("[")[0].rstrip("3264"), "todo")) for field in file.schema]
