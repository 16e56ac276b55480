"""Rows of a table's file as they are, cells by column, held against no declaration: to be checked or predicted."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from storage.columns import named_twice
from storage.errors import InputError
from storage.readers.arrow_batches import open_parquet
from storage.readers.registry import COMPRESSED, bounded_lines, open_text, reading, require_file
from storage.schema import Schema

PARQUET = (".parquet", ".pq")
"""Ends of the names of Parquet files."""


@dataclass(frozen=True, slots=True)
class RawRows:
    """Some rows of a file.

    Attributes
    ----------
    columns : mapping of column name to cells
        A list of texts, None in rows that have another number of cells; an Arrow array where the file is Parquet.
    lines : sequence of int
        Where they stand in the file.
    unit : str
        What ``lines`` counts: ``"line"`` or ``"row"``.
    faults : sequence of str or None
        Why a row has no cells.
    """

    columns: Mapping[str, Any]
    lines: Sequence[int]
    unit: str
    faults: Sequence[str | None]


class _Lines:
    """The lines of a file as text, with the number of the last one given."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path = path
        self._encoding = schema.encoding
        self._skip = schema.skip_lines_beginning
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        with open_text(self._path, self._encoding) as file:
            for number, raw in bounded_lines(file, self._path):
                self.number = number
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{self._path}, line {self.number}: byte {raw[error.start]:#04x} is not UTF-8; let the schema "
                        "declare the file's encoding (latin-1, cp1252, utf-16), or convert the file"
                    ) from error
                if not (self._skip and text.startswith(self._skip)):
                    yield text


def text_rows(path: Path, schema: Schema) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the stripped cells of each row of delimited text, the line of names among them.

    Raises
    ------
    InputError
        While reading, for bytes or quotes that cannot be read, naming the line.
    """
    lines = _Lines(path, schema)
    try:
        for row in csv.reader(lines, delimiter=schema.delimiter, skipinitialspace=True):
            if cells := [cell.strip() for cell in row]:
                yield lines.number, cells
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.number}: {error}; correct the row") from error


def header_of(path: Path, schema: Schema) -> list[str]:
    """Return the cells of a text file's first line.

    Raises
    ------
    InputError
        If there is none.
    """
    with reading(path):
        for _, cells in text_rows(require_file(path), schema):
            return cells
    raise InputError(f"{path} holds no line of column names")


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
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 22), b""))
    except (OSError, InputError):
        return None


def raw_rows(path: Path, schema: Schema | None, rows: int) -> Iterator[RawRows]:
    """Yield the rows of a file, text or Parquet by its name's end, some at once.

    Parameters
    ----------
    path : Path
    schema : Schema or None
        Says how text is laid out; None for Parquet alone. Where it says that there is no line of names, the declared
        ones are taken, without the label's if the first row has a cell less.
    rows : int
        How many at once.

    Raises
    ------
    InputError
        If the file cannot be read or names a column twice.
    """
    with reading(require_file(path)):
        if schema is None or path.suffix in PARQUET:
            yield from _parquet_rows(path, rows)
            return
        read = text_rows(path, schema)
        first = next(read, None)
        if first is None:
            raise InputError(f"{path} holds no rows; it must hold at least one")
        names = first[1]
        if not schema.header:
            read = chain([first], read)
            names = list(schema.in_file)
            if len(first[1]) == len(names) - 1:
                names.remove(schema.label.name)
        if twice := named_twice(names):
            raise InputError(f"{path}: column {twice!r} is named twice; rename one in the file")
        blank: list[str | None] = [None] * len(names)
        while chunk := list(islice(read, rows)):
            fits = [len(cells) == len(names) for _, cells in chunk]
            columns = zip(*(cells if fit else blank for (_, cells), fit in zip(chunk, fits, strict=True)), strict=True)
            yield RawRows(
                dict(zip(names, columns, strict=True)),
                [line for line, _ in chunk],
                "line",
                [
                    None if fit else f"{len(cells)} cells, there are {len(names)} columns"
                    for (_, cells), fit in zip(chunk, fits, strict=True)
                ],
            )


def _parquet_rows(path: Path, rows: int) -> Iterator[RawRows]:
    with open_parquet(path, rows) as file:
        line = 1
        for batch in file.batches:
            columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
            yield RawRows(columns, range(line, line + len(batch)), "row", [None] * len(batch))
            line += len(batch)
