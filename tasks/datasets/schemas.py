"""Schemas of a table: drafted from its columns' names, and checked against its rows."""

import codecs
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.atomic import write_bytes
from storage.cells import column_name
from storage.columns import Category, Column, Label, Ordered, Person, named_twice
from storage.errors import InputError
from storage.fingerprints import Duplicates, Fingerprints
from storage.people import keyed_digests, named
from storage.readers.arrow_batches import open_parquet
from storage.readers.delimited import first_row
from storage.readers.tables import PARQUET, expected_rows, raw_rows, settling_names
from storage.schema import Examined, Schema, Table, layout_of, parse_schema, read_declaration, schema_faults
from storage.source import LONGEST_LINE, open_binary, reading, require_file
from tasks.datasets.proposals import Proposal, entry, proposed, public_proposals, together
from tasks.runtime.progress import say

_DELIMITERS = (",", ";", "\t", "|")
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8"))

_HEAD = """\
# Schema of {file}, drafted from {source}.
# Write a type for every column instead of "todo", with what it needs, then see what is left:
#     unitball schema check {output} --path {path}
#
#   numeric    range: [0, 100]           centre: 20 (what lies at 0), scale: log (sizes of different magnitude);
#              ordered: ["[0-10)", "[10-20)"] instead of a range: brackets, each a number by its place
#   category   values: [north, south]    quotes around yes, no, true, false, numbers; hash: 64 without a list
#              values: {{N: north, S: south, "?": south}}    codes and what they mean; "25*" is all that begin with 25
#              first: 3                  only so many characters of a cell count, as of an ICD code
#   boolean                              values: ["nein", "ja"] where it is not yes/no, true/false, 1/0;
#              values: {{"No": false, "Up": true, "Down": true}}    codes and what they mean
#   date       range: [2020-01-01, 2026-12-31]    format: "%d.%m.%Y", parts: [days, year, month, weekday]
#   days       between: [admitted, discharged]     range: [0, 60], format as of dates: computed from two columns
#   person     whose row it is, where people have several: a patient's number    namespace: hospital-mrn
#   ignore     names, other identifiers, free text
#   label      classes: [well, ill] or {{"0": well, "1": ill}} or range: [0, 10]: what is to be predicted, one column
#
# names: [metformin, insulin] or names: "diag_*" instead of name: one declaration for several columns.
#
# Ranges, values and classes are what can be, from a code book or from knowing the matter, and never what the rows hold:
# they are public. Every key is explained in docs/your-data.md.
format_version: 1
"""
_UNREAD, _READ = ": no value was read", " and its rows, which are public"
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

_ARROW: Mapping[str, str] = {"bool": "boolean", "date": "date", "timestamp": "date"}


def draft_schema(
    path: Path,
    output: Path,
    *,
    header: bool = True,
    decimal: str = ".",
    missing: Sequence[str] = ("",),
    numeric: Sequence[str] = (),
    categories: Sequence[str] = (),
    person: str | None = None,
    public: bool = False,
) -> int:
    """Write a commented schema from the names of a file's columns, and return how many there are.

    Of text the first line is read, of Parquet the names and types; no value of a row is, unless the rows are public.

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
    person : str, optional
        The column that says whose row it is.
    public : bool
        Whether the rows are nobody's secret: what their values suggest is proposed then.

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
        text = _HEAD.format(source=f"its names and types{_UNREAD if not public else _READ}", **known)
    else:
        layout, names = _text_layout(place)
        if header:
            _require_names(place, names)
        else:
            names = [(f"column-{number}", "todo") for number in range(1, len(names) + 1)]
        names = [(column_name(name), kind) for name, kind in names]
        source = "its first line" if header else "the number of its columns"
        text = _HEAD.format(source=source + (_READ if public else _UNREAD), **known) + _TEXT.format(
            header=str(header).lower(),
            delimiter=json.dumps(layout.delimiter),
            encoding=layout.encoding,
            decimal=json.dumps(decimal),
        )
    person = None if person is None else column_name(person)
    known_types = dict.fromkeys(map(column_name, numeric), "numeric")
    known_types |= dict.fromkeys(map(column_name, categories), "category")
    if person in known_types:
        raise InputError(f"column {person!r} says whose row it is, and is {known_types[person]}; it can be one of both")
    known_types |= {} if person is None else {person: "person"}
    unknown = [name for name in known_types if name not in dict(names)]
    if unknown:
        raise InputError(f"{path} has no column {unknown[0]!r}; it has: {', '.join(name for name, _ in names)}")
    kinds = {name: known_types.get(name, kind) for name, kind in names}
    lines = [entry([name], {"type": kind}) for name, kind in kinds.items()]
    markers = json.dumps(missing[0] if len(missing) == 1 else [*missing], ensure_ascii=False)
    output.write_text(text + _MISSING.format(markers=markers) + "".join(lines), "utf-8")
    if public:
        try:
            asked = {name: kind for name, kind in kinds.items() if kind in ("todo", "numeric", "category")}
            _propose(output, public_proposals(place, output, asked), kinds)
        except BaseException:
            output.unlink()
            raise
    return len(lines)


def _propose(output: Path, proposals: Mapping[str, Proposal], kinds: Mapping[str, str]) -> None:
    """Write proposals into a draft, columns of one declaration together."""
    text = output.read_text("utf-8")
    for names, proposal in together(proposals, ordered=re.search(r"^header: false", text, flags=re.M) is not None):
        first, *others = (entry([name], {"type": kinds[name]}) for name in names)
        text = text.replace(first, entry(names, proposal))
        for line in others:
            text = text.replace(line, "")
    write_bytes(output, text.encode(), mode=0o644)


def fill_draft(
    output: Path,
    ranges: Mapping[str, tuple[float, float] | None],
    fallback: tuple[float, float],
    values: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write ranges into a draft's numeric columns, the fallback where there is none, and values into its categories.

    What the drawn values suggest is proposed of them (:func:`tasks.datasets.proposals.proposed`). Categories without
    any stay to be filled in.
    """
    text = output.read_text("utf-8")
    for name, limits in ranges.items():
        comment = "" if limits else "no bin stood out of the noise: the declared fallback"
        filled = entry([name], {"type": "numeric", "range": list(limits or fallback)}, comment)
        text = text.replace(entry([name], {"type": "numeric"}), filled)
    write_bytes(output, text.encode(), mode=0o644)
    proposals = {name: proposed(occurring) for name, occurring in (values or {}).items() if occurring}
    _propose(output, proposals, dict.fromkeys(proposals, "category"))


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
    layout = layout_of({"delimiter": delimiter, "encoding": encoding}, str(path))
    names = first_row(path, layout)
    if names is None:
        raise InputError(f"{path} holds no line of column names")
    return layout, [(cell, "todo") for cell in names[1]]


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
    """Return the columns of a Parquet file, each with the kind that its type suggests."""
    with open_parquet(path, 0) as file:
        # date32 and date64 alike, and timestamps whatever their unit.
        return [(field.name, _ARROW.get(str(field.type).split("[")[0].rstrip("3264"), "todo")) for field in file.schema]


Flags = NDArray[np.bool_]

_ROWS = 4096
_MOST_EXAMPLES = 3


@dataclass(slots=True)
class ColumnReport:
    """What was found in one column.

    Attributes
    ----------
    name, bound : str
        What it is called and what it admits.
    missing, outside, hopeless : int
        Cells that are missing; that the schema does not admit; and those of them that cannot be clipped either.
    examples : dict of str to str
        The first of them: line and cell.
    unseen : list of str
        Declared values or classes that do not occur.
    recoded : dict of str to int
        By rule of the column's recoding how many cells it takes, every one that is declared.
    features : int
        How many it becomes.
    """

    name: str
    bound: str
    missing: int = 0
    outside: int = 0
    hopeless: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    recoded: dict[str, int] = field(default_factory=dict)
    features: int = 0


@dataclass(slots=True)
class SchemaReport:
    """What a schema makes of a file.

    Attributes
    ----------
    rows : int
    broken : dict of int to str
        The first lines with another number of cells.
    broken_rows, missing_rows, outside_rows, hopeless_rows : int
        Rows with another number of cells, with a missing cell whose rule is to refuse or drop, with a cell outside the
        schema, and with one that cannot be clipped.
    columns : list of ColumnReport
    duplicates : Duplicates
        Among the rows that are in order.
    ordered_rows : int
        Rows that are taken as they are: in order, and somebody's.
    trainable_rows : int
        Of these, how many can train: of each person ``rows_per_person`` at most.
    people : str
        The column that names whose row it is; empty where none does.
    rows_per_person : int
        The most that are taken of one; 1 where rows are nobody's.
    repeated : dict of str to (int, int, int)
        Of that column, or without one of ignored columns whose values repeat: different values, rows that have one,
        and the most rows of one value.
    """

    rows: int = 0
    broken: dict[int, str] = field(default_factory=dict)
    broken_rows: int = 0
    missing_rows: int = 0
    outside_rows: int = 0
    hopeless_rows: int = 0
    columns: list[ColumnReport] = field(default_factory=list)
    duplicates: Duplicates = field(default_factory=lambda: Duplicates(0, 1))
    ordered_rows: int = 0
    trainable_rows: int = 0
    people: str = ""
    rows_per_person: int = 1
    repeated: dict[str, tuple[int, int, int]] = field(default_factory=dict)


def check_schema(path: Path, rows: Path) -> SchemaReport:
    """Hold a file against a schema without storing anything: for the owner's own screen, never for a log.

    Parameters
    ----------
    path : Path
        The schema.
    rows : Path
        CSV or Parquet.

    Raises
    ------
    InputError
        If the schema is faulty, with all its faults; if the file's columns are not those declared, with all that are
        missing or too many.
    """
    declaration = read_declaration(path)
    there = settling_names(declaration, str(path), rows)
    faults = schema_faults(declaration, str(path), there)
    if faults:
        raise InputError(_listed(path, faults))
    schema = parse_schema(declaration, str(path), None, there)
    used = [column for column in schema.columns if column.used]
    report = SchemaReport(
        columns=[
            ColumnReport(column.name, column.bound, unseen=_declared(column), features=column.width) for column in used
        ]
    )
    prints, whose = Fingerprints(b"", patterns=False), defaultdict[str, list[NDArray[np.uint64]]](list)
    ordered: list[NDArray[np.uint64]] = []
    expected = expected_rows(rows)
    for block in raw_rows(rows, schema, _ROWS):
        if not report.rows:
            _require_columns(rows, schema, block)
        _count(report, schema, block, prints, whose, ordered)
        say("checking", f"{report.rows:,} rows", report.rows / expected if expected else None)
    if not report.rows:
        raise InputError(f"{rows} holds no rows; it must hold at least one")
    report.duplicates = prints.duplicates()
    for name, digests in whose.items():
        counts = np.unique(np.concatenate(digests), return_counts=True)[1]
        if schema.people is not None or counts.max(initial=0) > 1:
            report.repeated[name] = (len(counts), int(counts.sum()), int(counts.max(initial=0)))
    report.trainable_rows = report.ordered_rows
    if schema.people is not None:
        report.people, report.rows_per_person = schema.people.column, schema.people.rows_per_person
        counts = np.unique(np.concatenate(ordered), return_counts=True)[1]
        report.trainable_rows = int(np.minimum(counts, report.rows_per_person).sum())
    return report


def _declared(column: Column) -> list[str]:
    """Return the declared values of a column that has any."""
    if isinstance(column, Category) and not column.hashed:
        return list(column.values)
    if isinstance(column, Ordered):
        return list(column.values)
    return list(column.classes) if isinstance(column, Label) else []


def _occurring(examined: Examined, good: Flags) -> set[str]:
    """Return those of the declared values that occur."""
    values = examined.encoded.values[good & ~examined.missing]
    if isinstance(examined.column, Category):
        return {examined.column.values[place] for place in np.flatnonzero(values.any(axis=0))}
    if isinstance(examined.column, Ordered):
        steps = np.rint(np.unique(values) * (len(examined.column.values) - 1)).astype(int)
        return {examined.column.values[place] for place in steps.tolist()}
    return {str(name) for name in np.unique(values)} if _declared(examined.column) else set()


def _listed(path: Path, faults: list[str]) -> str:
    """Return all faults in one line, columns of the same fault together."""
    if len(faults) == 1:
        return faults[0]
    columns: dict[str, list[str]] = {}
    for fault in faults:
        _, _, rest = fault.partition(f"{path}, column ")
        name, _, what = rest.partition(": ")
        columns.setdefault(what or fault, []).append(name)
    listed = [f"{what} ({', '.join(filter(None, names))})" for what, names in columns.items()]
    return f"schema {path} has {len(faults)} faults: " + "; ".join(listed)


def _require_columns(path: Path, schema: Schema, block: Table) -> None:
    """Refuse a file whose columns are not those declared; of Parquet only those that are looked at are read."""
    declared = schema.in_file
    needed, extra = (schema.needed, []) if block.unit == "row" else (declared, [*block.columns])
    faults = [f"column {name!r} is missing" for name in needed if name not in block.columns]
    faults += [
        f"column {name!r} is not in the schema (type: ignore leaves it out)" for name in extra if name not in declared
    ]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}")


def _count(
    report: SchemaReport,
    schema: Schema,
    block: Table,
    prints: Fingerprints,
    whose: Mapping[str, list[NDArray[np.uint64]]],
    ordered: list[NDArray[np.uint64]],
) -> None:
    alive = block.whole
    examined = schema.examine(block, [column for column in schema.columns if column.used])
    missing, outside, hopeless = (np.zeros(len(alive), dtype=bool) for _ in range(3))
    for one, of_column in zip(examined, report.columns, strict=True):
        _count_column(of_column, one, alive, block, schema)
        if not schema.rule(one.column).keeps:
            missing |= one.missing & alive
        outside |= one.encoded.outside & alive
        hopeless |= one.encoded.hopeless & alive
    report.rows += len(alive)
    report.broken_rows += int((~alive).sum())
    for line, fault in zip(block.lines.tolist(), block.faults or (), strict=False):
        if fault is not None and len(report.broken) < _MOST_EXAMPLES:
            report.broken[line] = fault
    report.missing_rows += int(missing.sum())
    report.outside_rows += int(outside.sum())
    report.hopeless_rows += int(hopeless.sum())
    in_order = alive & ~missing & ~outside
    for column in schema.columns:
        looked_at = column.name in schema.needed
        if column.name in block.columns and (isinstance(column, Person) or not (looked_at or schema.people)):
            names = schema.whose(block.columns[column.name])
            known = alive & named(names)
            # Without a key: they are kept for this count alone, in this process.
            digests = keyed_digests(names[known], b"")
            whose[column.name].append(digests)
            if isinstance(column, Person):
                ordered.append(digests[in_order[known]])
                in_order &= known
    inputs = [one.encoded.values for one in examined if one.column.width]
    report.ordered_rows += int(in_order.sum())
    prints.add(np.concatenate(inputs, axis=1)[alive & ~missing & ~outside])


def _count_column(report: ColumnReport, examined: Examined, alive: Flags, block: Table, schema: Schema) -> None:
    wrong = examined.encoded.outside & alive
    report.missing += int((examined.missing & alive).sum())
    report.outside += int(wrong.sum())
    report.hopeless += int((examined.encoded.hopeless & alive).sum())
    occurring = _occurring(examined, alive & ~wrong)
    report.unseen = [name for name in report.unseen if name not in occurring]
    told: dict[str, int] = {}
    if len(examined.cells) == 1:
        texts = examined.column.read(examined.cells[0], schema.decimal)
        if isinstance(texts, pa.StringArray):
            told = examined.column.taken(texts.filter(pa.array(alive & ~examined.missing)))
    report.recoded = {rule: report.recoded.get(rule, 0) + count for rule, count in told.items()}
    for row in np.flatnonzero(wrong)[: _MOST_EXAMPLES - len(report.examples)].tolist():
        report.examples[f"{block.unit} {block.lines[row]}"] = examined.shown(row)[:40]
