"""Rows of a table's file as the file has them: delimited text or Parquet, some at once, nothing encoded."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from storage.cells import column_name
from storage.columns.declarations import named_twice
from storage.errors import InputError
from storage.readers.arrow_batches import open_parquet
from storage.readers.delimited import delimited_rows, first_row
from storage.schema import Schema, Table
from storage.source import (
    COMPRESSED,
    count_lines,
    reading,
    require_file,
)

PARQUET = (".parquet", ".pq")
"""Ends of the names of Parquet files."""


def expected_rows(path: Path) -> int | None:
    """Return how many rows a file will turn out to have: of Parquet exactly, of plain text by its lines.

    None where it would have to be unpacked for that, or cannot be read. Quoted line breaks and a line of names are
    counted as rows: for showing progress, and nothing else.
    """
    try:
        if path.suffix in PARQUET:
            with open_parquet(path, 0) as file:
                return file.count
        if path.suffix in COMPRESSED or not path.is_file():
            return None
        with path.open("rb") as file:
            return sum(count_lines(chunk) for chunk in iter(lambda: file.read(1 << 22), b""))
    except (OSError, InputError):
        return None


def raw_rows(
    path: Path, schema: Schema | None, rows: int, names: Sequence[str] | None = None, most: int | None = None
) -> Iterator[Table]:
    """Yield the rows of a file, text or Parquet by its name's end, some at once.

    Cells of a text are text in an Arrow array; those of a row of another number of cells are null, and its fault says
    so.

    Parameters
    ----------
    path : Path
    schema : Schema or None
        Says how text is laid out; None for Parquet alone. Where it says that there is no line of names, the declared
        ones are taken, without the label's if the first row has a cell less; an empty file has no rows then.
    rows : int
        How many at once.
    names : sequence of str, optional
        The columns of a text in their order, as they are known; those of Parquet that are read, all by default.
    most : int, optional
        How many rows Parquet may state, before any is read.

    Raises
    ------
    InputError
        If the file cannot be read, names a column twice or lacks one of those.
    """
    with reading(path):
        if schema is None or path.suffix in PARQUET:
            yield from parquet_rows(require_file(path), rows, names, most=most)
        else:
            yield from delimited_rows(path, schema, _text_names(path, schema, names), rows)


def names_of(path: Path, schema: Schema | None) -> list[str]:
    """Return the columns that :func:`raw_rows` gives, of a file without rows, too."""
    with reading(path):
        if schema is None or path.suffix in PARQUET:
            with open_parquet(require_file(path), 0) as file:
                return list(file.schema.names)
        return _text_names(path, schema)


def _text_names(path: Path, schema: Schema, names: Sequence[str] | None = None) -> list[str]:
    first = first_row(path, schema)
    if first is None and schema.header:
        raise InputError(f"{path} is empty; add a line of column names")
    found = list(map(column_name, first[1])) if first is not None and schema.header else list(schema.in_file)
    if not schema.header and first is not None and names is None and len(first[1]) == len(found) - 1:
        found.remove(schema.label.name)
    if twice := named_twice(found):
        raise InputError(f"{path}: column {twice!r} is named twice; rename one in the file")
    return found


def chunked(read: Iterator[tuple[int, list[str]]], names: Sequence[str], rows: int, place: str) -> Iterator[Table]:
    """Yield rows that come with their lines, each of as many cells as there are names, so many at once."""
    while chunk := list(islice(read, rows)):
        columns = zip(*(cells for _, cells in chunk), strict=True)
        lines = np.array([line for line, _ in chunk], dtype=np.int64)
        yield Table(dict(zip(names, columns, strict=True)), lines, place)


def parquet_rows(
    path: Path,
    rows: int,
    names: Sequence[str] | None = None,
    way_out: str = "correct the schema",
    most: int | None = None,
) -> Iterator[Table]:
    """Yield the rows of a Parquet file with any name as :func:`raw_rows` does; cells are Arrow arrays."""
    with open_parquet(path, rows, names) as file:
        file.require(names or (), way_out)
        if most is not None and file.count > most:
            raise InputError(f"{path} states {file.count} rows, more than {most}; if this is expected, give --max-rows")
        row = 1
        for batch in file.batches:
            columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
            yield Table(columns, np.arange(row, row + len(batch), dtype=np.int64), str(path), unit="row")
            row += len(batch)
