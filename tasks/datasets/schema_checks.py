"""Checks of a schema against a table's rows: counts of cells that are missing, outside, or cannot be clipped."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.columns.categories import Category
from storage.columns.column import Column
from storage.columns.label import Label
from storage.columns.numeric import Ordered
from storage.columns.person import Person
from storage.errors import InputError
from storage.fingerprints import Duplicates, Fingerprints
from storage.people import keyed_digests, named
from storage.readers.declared import settling_names
from storage.readers.raw_tables import expected_rows, raw_rows
from storage.schema import Examined, Schema, Table, parse_schema, read_declaration, schema_faults
from tasks.runtime.progress import report_progress

Flags = NDArray[np.bool_]
_ROWS = 4096
_MOST_EXAMPLES = 3


@dataclass(slots=True)
class ColumnReport:
    """The findings in one column.

    Attributes
    ----------
    name, bound : str
        What it is called and what it admits.
    missing, outside, unclippable : int
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
    unclippable: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    recoded: dict[str, int] = field(default_factory=dict)
    features: int = 0


@dataclass(slots=True)
class SchemaReport:
    """The outcome of a schema on a file.

    Attributes
    ----------
    rows : int
    broken : dict of int to str
        The first lines with another number of cells.
    broken_rows, missing_rows, outside_rows, unclippable_rows : int
        Rows with another number of cells, with a missing cell whose rule is to refuse or drop, with a cell outside the
        schema, and with one that cannot be clipped.
    columns : list of ColumnReport
    duplicates : Duplicates
        Among the rows that are in order.
    ordered_rows : int
        Rows that are used unchanged: valid, and with a person.
    trainable_rows : int
        Of these, how many can train: of each person ``rows_per_person`` at most.
    people : str
        The column that names whose row it is; empty where none does.
    rows_per_person : int
        The maximum per person; 1 where rows do not belong to people.
    repeated : dict of str to (int, int, int)
        Of that column, or without one of ignored columns whose values repeat: different values, rows that have one,
        and the most rows of one value.
    """

    rows: int = 0
    broken: dict[int, str] = field(default_factory=dict)
    broken_rows: int = 0
    missing_rows: int = 0
    outside_rows: int = 0
    unclippable_rows: int = 0
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
        report_progress("checking", f"{report.rows:,} rows", report.rows / expected if expected else None)
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
        f"column {name!r} is not in the schema (add it, with type: ignore if it is not needed)"
        for name in extra
        if name not in declared
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
    missing, outside, unclippable = (np.zeros(len(alive), dtype=bool) for _ in range(3))
    for checked, of_column in zip(examined, report.columns, strict=True):
        _count_column(of_column, checked, alive, block, schema)
        if not schema.rule(checked.column).keeps:
            missing |= checked.missing & alive
        outside |= checked.encoded.outside & alive
        unclippable |= checked.encoded.unclippable & alive
    report.rows += len(alive)
    report.broken_rows += int((~alive).sum())
    for line, fault in zip(block.lines.tolist(), block.faults or (), strict=False):
        if fault is not None and len(report.broken) < _MOST_EXAMPLES:
            report.broken[line] = fault
    report.missing_rows += int(missing.sum())
    report.outside_rows += int(outside.sum())
    report.unclippable_rows += int(unclippable.sum())
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
    report.unclippable += int((examined.encoded.unclippable & alive).sum())
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
