"""Delimited text (plain, .gz, .bz2) whose columns a schema declares."""

from collections.abc import Iterator
from pathlib import Path

from storage.cells import column_name
from storage.columns.declarations import named_twice
from storage.errors import InputError
from storage.readers.declared import declared_source, require_schema, table_files
from storage.readers.delimited import first_row
from storage.readers.raw_tables import raw_rows
from storage.refs import OnViolation
from storage.schema import Schema, Table
from storage.source import (
    ReadOptions,
    Source,
    register_reader,
)


def text_tables(path: Path, schema: Schema, on_violation: OnViolation) -> Iterator[Table]:
    """Yield the rows of a text whose columns are those declared."""
    for table in raw_rows(path, schema, schema.block_rows, _column_names(path, schema)):
        if not on_violation.drops:
            for line, fault in zip(table.lines, table.faults or (), strict=False):
                if fault is not None:
                    raise InputError(
                        f"{path}, line {line}: {fault}; correct the row or the delimiter, or use --on-violation drop"
                    )
        yield table


def _column_names(path: Path, schema: Schema) -> list[str]:
    """Return the names of a text's columns, which are the declared ones in any order."""
    names = list(schema.in_file)
    line, cells = first_row(path, schema) or (0, [])
    cells = list(map(column_name, cells))
    place, declared, present = f"{path}, line {line}", set(names), set(cells)
    if not schema.header:
        if cells == names:
            raise InputError(
                f"{place} holds the columns' names, and the schema declares 'header: false'; write 'header: true', or "
                "omit it"
            )
        return names
    if not line:
        raise InputError(
            f"{path} has no line of column names, and the schema declares one; add it, or declare 'header: false'"
        )
    if not present & declared:
        saw = ", ".join(repr(cell[:30]) for cell in cells[:6]) + (", …" if len(cells) > 6 else "")
        raise InputError(
            f"{place} should name the columns and holds {saw}; declare columns of these names, correct the delimiter, "
            "or declare 'header: false' in the schema if the file begins with a row"
        )
    if twice := named_twice(cells):
        raise InputError(f"{place}: column {twice!r} is named twice; rename one in the file")
    for name in cells:
        if name not in declared:
            raise InputError(
                f"{place}: column {name!r} is not in the schema; add it (with type: ignore it is not read)"
            )
    if missing := sorted(declared - present):
        raise InputError(
            f"{place}: column {missing[0]!r} is missing; the schema declares {len(declared)} columns, add it to "
            "the file or remove it from the schema"
        )
    return cells


@register_reader("csv", takes=("schema", "on_violation", "test", "scaling"))
def read_csv(path: str | Path, options: ReadOptions) -> Source:
    """Read delimited text (plain, .gz, .bz2) with a declared schema; scaling and one-hot come from the schema.

    Parameters
    ----------
    path : path
        A file, or a folder in which the schema names the files.
    """

    def files(schema: Schema) -> dict[str, tuple[Path, ...]]:
        return {part: (file,) for part, file in table_files(path, schema, options).items()}

    schema = require_schema(options, "csv", files)
    parts = {part: (text_tables, paths) for part, paths in files(schema).items()}
    return declared_source("csv", str(path), options, schema, parts)
