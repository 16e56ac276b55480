"""What a schema makes of a file, all of it at once, for the owner of the rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.columns.category import Category
from storage.columns.column import Column
from storage.columns.label import Label
from storage.errors import InputError
from storage.fingerprints import Duplicates, Fingerprints
from storage.readers.raw import RawRows, expected_rows, raw_rows
from storage.schema import Examined, Schema, Table, parse_schema, read_declaration, schema_faults
from tasks.runtime.progress import say

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
    """

    name: str
    bound: str
    missing: int = 0
    outside: int = 0
    hopeless: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)


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
    """

    rows: int = 0
    broken: dict[int, str] = field(default_factory=dict)
    broken_rows: int = 0
    missing_rows: int = 0
    outside_rows: int = 0
    hopeless_rows: int = 0
    columns: list[ColumnReport] = field(default_factory=list)
    duplicates: Duplicates = field(default_factory=lambda: Duplicates(0, 1))


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
    faults = schema_faults(declaration, str(path))
    if faults:
        raise InputError(_listed(path, faults))
    schema = parse_schema(declaration, str(path))
    used = [column for column in schema.columns if column.used]
    report = SchemaReport(
        columns=[ColumnReport(column.name, column.bound, unseen=_declared(column)) for column in used]
    )
    prints = Fingerprints(b"", patterns=False)
    expected = expected_rows(rows)
    for block in raw_rows(rows, schema, _ROWS):
        if not report.rows:
            _require_columns(rows, schema, block)
        _count(report, schema, block, prints)
        say("checking", f"{report.rows:,} rows", report.rows / expected if expected else None)
    if not report.rows:
        raise InputError(f"{rows} holds no rows; it must hold at least one")
    report.duplicates = prints.duplicates()
    return report


def _declared(column: Column) -> list[str]:
    """Return the declared values of a column that has any."""
    if isinstance(column, Category):
        return list(column.values)
    return list(column.classes) if isinstance(column, Label) else []


def _occurring(found: Examined, good: Flags) -> set[str]:
    """Return those of the declared values that occur."""
    values = found.encoded.values[good & ~found.missing]
    if isinstance(found.column, Category):
        return {found.column.values[place] for place in np.flatnonzero(values.any(axis=0))}
    return {str(name) for name in np.unique(values)} if _declared(found.column) else set()


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


def _require_columns(path: Path, schema: Schema, block: RawRows) -> None:
    """Refuse a file whose columns are not those declared; of Parquet only those that are looked at are read."""
    declared = [column.name for column in schema.columns]
    needed, extra = (schema.needed, []) if block.unit == "row" else (declared, [*block.columns])
    faults = [f"column {name!r} is missing" for name in needed if name not in block.columns]
    faults += [
        f"column {name!r} is not in the schema (type: ignore leaves it out)" for name in extra if name not in declared
    ]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}")


def _count(report: SchemaReport, schema: Schema, block: RawRows, prints: Fingerprints) -> None:
    lines = np.asarray(block.lines, dtype=np.int64)
    cells = {
        name: column.to_pylist() if hasattr(column, "to_pylist") else column for name, column in block.columns.items()
    }
    alive = np.array([fault is None for fault in block.faults])
    used = [column for column in schema.columns if column.used]
    examined = schema.examine(Table(cells, lines, "", unit=block.unit), used)
    missing, outside, hopeless = (np.zeros(len(lines), dtype=bool) for _ in range(3))
    for found, of_column in zip(examined, report.columns, strict=True):
        _count_column(of_column, found, alive, block)
        if not schema.rule(found.column).keeps:
            missing |= found.missing & alive
        outside |= found.encoded.outside & alive
        hopeless |= found.encoded.hopeless & alive
    report.rows += len(lines)
    report.broken_rows += int((~alive).sum())
    for line, fault in zip(block.lines, block.faults, strict=True):
        if fault is not None and len(report.broken) < _MOST_EXAMPLES:
            report.broken[line] = fault
    report.missing_rows += int(missing.sum())
    report.outside_rows += int(outside.sum())
    report.hopeless_rows += int(hopeless.sum())
    inputs = [found.encoded.values for found in examined if not isinstance(found.column, Label)]
    prints.add(np.concatenate(inputs, axis=1)[alive & ~missing & ~outside])


def _count_column(report: ColumnReport, found: Examined, alive: Flags, block: RawRows) -> None:
    wrong = found.encoded.outside & alive
    report.missing += int((found.missing & alive).sum())
    report.outside += int(wrong.sum())
    report.hopeless += int((found.encoded.hopeless & alive).sum())
    occurring = _occurring(found, alive & ~wrong)
    report.unseen = [name for name in report.unseen if name not in occurring]
    for row in np.flatnonzero(wrong)[: _MOST_EXAMPLES - len(report.examples)].tolist():
        report.examples[f"{block.unit} {block.lines[row]}"] = str(found.cells[row])[:40]
