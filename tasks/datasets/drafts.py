"""Drafts of schemas: a table's columns by name, with what is to be declared, and proposals filled in."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.atomic import write_bytes
from storage.cells import column_name
from storage.columns.declarations import named_twice
from storage.errors import InputError
from storage.readers.arrow_batches import open_parquet
from storage.readers.delimited import sniffed_layout
from storage.readers.raw_tables import PARQUET
from storage.source import require_file
from tasks.datasets.proposals import Proposal, entry, proposed, public_proposals, together

_HEAD = """\
# Schema of {file}, drafted from {source}.
# Replace "todo" with a type and its keys for every column, then list the remaining faults:
#     unitball schema check {output} --path {path}
#
#   numeric    range: [0, 100]           centre: 20 (what lies at 0), scale: log (sizes of different magnitude);
#              ordered: ["[0-10)", "[10-20)"] instead of a range: brackets, each a number by its place
#   category   values: [north, south]    quotes around yes, no, true, false, numbers; hash: 64 without a list
#              values: {{N: north, S: south, "?": south}}    codes and their meaning; "25*": all that begin with 25
#              first: 3                  only the first characters of a cell count, such as of an ICD code
#   boolean                              values: ["nein", "ja"] where it is not yes/no, true/false, 1/0;
#              values: {{"No": false, "Up": true, "Down": true}}    codes and their meaning
#   date       range: [2020-01-01, 2026-12-31]    format: "%d.%m.%Y", parts: [days, year, month, weekday]
#   days       between: [admitted, discharged]     range: [0, 60], format as of dates: computed from two columns
#   person     the person, where people have several rows: a patient's number    namespace: hospital-mrn
#   ignore     names, other identifiers, free text
#   label      classes: [well, ill] or {{"0": well, "1": ill}} or range: [0, 10]: the target, one column
#
# names: [metformin, insulin] or names: "diag_*" instead of name: one declaration for several columns.
#
# Ranges, values and classes are public. Take them from a code book or from domain knowledge, never from the rows.
# Every key is explained on the page "The schema of a table".
format_version: 1
"""
_UNREAD, _READ = ": no value was read", " and its rows, which are public"
_DRAWN = ", and from charged counts, with noise, of the columns of --numeric and --categories"
_TEXT = """\
header: {header}           # false: the file begins with a row, and columns are taken in this order
delimiter: {delimiter}
encoding: {encoding}
decimal: {decimal}           # "," where 1,5 is one and a half
"""
_MISSING = """\
# How a missing cell is written, and how its row is treated: indicator (a feature marks it), constant (the middle),
# drop, or refuse. A column may override the rule: missing: drop.
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
        Whether the rows are public. If they are, the draft proposes what their values suggest.

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
        layout, cells = sniffed_layout(place)
        names = [(cell, "todo") for cell in cells]
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
        raise InputError(f"column {person!r} is declared as the person and as {known_types[person]}; give it one role")
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


def _parquet_names(path: Path) -> list[tuple[str, str]]:
    """Return the columns of a Parquet file, each with the kind that its type suggests."""
    with open_parquet(path, 0) as file:
        # date32 and date64 alike, and timestamps of any unit.
        return [(field.name, _ARROW.get(str(field.type).split("[")[0].rstrip("3264"), "todo")) for field in file.schema]


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
    text = output.read_text("utf-8").replace(_UNREAD, _DRAWN, 1)
    for name, limits in ranges.items():
        comment = "" if limits else "no bin exceeded the noise: the declared fallback"
        filled = entry([name], {"type": "numeric", "range": list(limits or fallback)}, comment)
        text = text.replace(entry([name], {"type": "numeric"}), filled)
    write_bytes(output, text.encode(), mode=0o644)
    proposals = {name: proposed(occurring) for name, occurring in (values or {}).items() if occurring}
    _propose(output, proposals, dict.fromkeys(proposals, "category"))


def _require_names(path: Path, names: Sequence[tuple[str, str]]) -> None:
    cells = [name for name, _ in names]
    twice = named_twice(cells)
    for number, cell in enumerate(cells, start=1):
        if not cell:
            raise InputError(f"{path}, line 1: column {number} has no name; give it one in the file")
        if cell.replace(",", ".").lstrip("+-").replace(".", "", 1).isdigit():
            raise InputError(
                f"{path}, line 1: column {number} is a number, so the line is probably a row instead of column names; "
                "if so, give --no-header"
            )
        if cell == twice:
            raise InputError(f"{path}, line 1: column {cell!r} is named twice; rename one in the file")
