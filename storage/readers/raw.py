"""Rows of a table's file as they are, cells by column, held against no declaration: to be encoded or predicted."""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Generator, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from storage.columns import named_twice
from storage.errors import InputError
from storage.readers.arrow_batches import open_parquet
from storage.readers.registry import COMPRESSED, bounded_lines, open_text, reading, require_file
from storage.schema import Schema, Table

PARQUET = (".parquet", ".pq")
"""Ends of the names of Parquet files."""

_BLOCK_BYTES = 1 << 22


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


def raw_rows(path: Path, schema: Schema | None, rows: int, names: Sequence[str] | None = None) -> Iterator[Table]:
    """Yield the rows of a file, text or Parquet by its name's end, some at once.

    Cells of text are text, in an Arrow array or a list; those of a row of another number of cells are None, and its
    fault says so.

    Parameters
    ----------
    path : Path
    schema : Schema or None
        Says how text is laid out; None for Parquet alone. Where it says that there is no line of names, the declared
        ones are taken, without the label's if the first row has a cell less.
    rows : int
        How many at once.
    names : sequence of str, optional
        The columns of a text in their order, as they are known; those of Parquet that are read, all by default.

    Raises
    ------
    InputError
        If the file cannot be read, names a column twice or lacks one of those.
    """
    with reading(require_file(path)):
        if schema is None or path.suffix in PARQUET:
            yield from parquet_rows(path, rows, names)
            return
        read = text_rows(path, schema)
        first = next(read, None)
        if first is None:
            raise InputError(f"{path} holds no rows; it must hold at least one")
        found = first[1]
        if not schema.header:
            read = chain([first], read)
            found = list(schema.in_file)
            if names is None and len(first[1]) == len(found) - 1:
                found.remove(schema.label.name)
        if twice := named_twice(found):
            raise InputError(f"{path}: column {twice!r} is named twice; rename one in the file")
        done = yield from _arrow_rows(path, schema, found, rows)
        blank: list[str | None] = [None] * len(found)
        read = islice(read, done, None)
        while done is not None and (chunk := list(islice(read, rows))):
            faults = [
                None if len(cells) == len(found) else f"{len(cells)} cells, there are {len(found)} columns"
                for _, cells in chunk
            ]
            columns = zip(
                *(blank if fault else row for (_, row), fault in zip(chunk, faults, strict=True)), strict=True
            )
            lines = np.array([line for line, _ in chunk], dtype=np.int64)
            yield Table(dict(zip(found, columns, strict=True)), lines, str(path), faults=faults)


def _arrow_rows(path: Path, schema: Schema, names: Sequence[str], rows: int) -> Generator[Table, None, int | None]:
    """Yield rows column by column; return after how many of them Python has to read on, None where all are read."""
    done = passed = 0
    if schema.skip_lines_beginning or not schema.needed:
        return done
    try:
        with open_text(path, schema.encoding) as file:
            for text in _whole_lines(file):
                table = arrow_csv.read_csv(
                    pa.BufferReader(text),
                    # In one piece where cells may hold line breaks: between pieces pyarrow ends a row there.
                    read_options=arrow_csv.ReadOptions(
                        column_names=names, block_size=len(text) if b'"' in text else None
                    ),
                    parse_options=arrow_csv.ParseOptions(delimiter=schema.delimiter),
                    convert_options=arrow_csv.ConvertOptions(
                        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                    ),
                )
                lines = passed + _line_numbers(text)
                if len(lines) != len(table):
                    raise pa.ArrowInvalid("rows that pyarrow and Python end otherwise")
                # The line of names.
                begin = int(schema.header and not passed)
                passed += text.count(b"\n")
                for start in range(begin, len(table), rows):
                    piece = table.slice(start, rows).combine_chunks()
                    cells = {name: piece.column(name).chunk(0) for name in names}
                    quoted = ((one, '"' if one in schema.needed else '^ +"') for one in names if b'"' in text)
                    if any(pc.any(pc.match_substring_regex(cells[one], mark)).as_py() for one, mark in quoted) or (
                        any(pc.max(pc.binary_length(one)).as_py() > csv.field_size_limit() for one in piece.columns)
                    ):
                        raise pa.ArrowInvalid("a quotation mark that Python reads otherwise, or a cell it refuses")
                    yield Table(cells, lines[start : start + rows], str(path))
                    done += len(piece)
    except (pa.ArrowInvalid, UnicodeDecodeError, InputError):
        # Cells of another number, a line longer than a block, bytes that are not UTF-8: Python names the line.
        return done
    return None


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield whole lines, about a block of them at a time.

    They are read here, not by pyarrow: its thread that reads a file of Python's goes on after a refusal, and a process
    that ends meanwhile is aborted.
    """
    rest, whole, begun = b"", False, False
    while not whole:
        data = rest + file.read(_BLOCK_BYTES)
        whole = len(data) == len(rest)
        end = len(data) if whole else data.rfind(b"\n") + 1
        text, rest = data[:end], data[end:]
        # Python's reader refuses carriage returns that end lines alone, and reads on in quotes that are open where a
        # block ends; pyarrow's does neither, and leaves out a mark of the order of bytes wherever a block begins.
        if (
            (not end and not whole)
            or text.count(b"\r") != text.count(b"\r\n")
            or text.count(b'"') % 2
            or (begun and text.startswith(BOM_UTF8))
        ):
            raise pa.ArrowInvalid("a line longer than a block, or one that Python reads otherwise")
        if begun := bool(text):
            yield text


def _line_numbers(text: bytes) -> NDArray[np.int64]:
    """Return the line on which each row of whole lines ends, from 1; blank lines are no rows."""
    characters = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(characters == ord("\n"))
    if not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    lines = np.arange(1, len(ends) + 1)
    if b'"' in text:
        closed = np.cumsum(characters == ord('"'))[np.minimum(ends, len(text) - 1)] % 2 == 0
        ends, lines = ends[closed], lines[closed]
    starts = np.concatenate([[0], ends[:-1] + 1])
    rows: NDArray[np.int64] = lines[(starts < ends) & (characters[starts] != ord("\r"))]
    return rows


def parquet_rows(path: Path, rows: int, names: Sequence[str] | None = None) -> Iterator[Table]:
    """Yield the rows of a Parquet file as :func:`raw_rows` does, whatever its name's end; cells are Arrow arrays."""
    with open_parquet(path, rows, names) as file:
        file.require(names or (), "correct the schema")
        row = 1
        for batch in file.batches:
            columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
            yield Table(columns, np.arange(row, row + len(batch), dtype=np.int64), str(path), unit="row")
            row += len(batch)
