"""Delimited text: bytes to Arrow columns of text; a scan finds where rows end, and pyarrow alone reads their cells.

The scan knows one thing of what came before: whether a quoted cell is open. Where a row ends is thus decided by RFC
4180's one rule, for which a quotation mark opens a cell only where a cell begins; what leaves a row in doubt (a
quotation mark that stays open or stands after a space, a carriage return that ends a line alone) is refused with its
line. pyarrow gets whole rows, reads them in the thread that calls it, and must find as many of them.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from storage.errors import InputError
from storage.schema import Schema, Table, layout_of
from storage.source import (
    LONGEST_LINE,
    bounded_blocks,
    bounded_lines,
    count_lines,
    lone_return,
    not_utf8,
    open_binary,
    open_text,
    reading,
    require_text,
)

LONGEST_CELL = 1 << 17
"""Characters of a cell."""
_BLOCK_BYTES = 1 << 22
_NEWLINE, _RETURN, _QUOTE, _CONTINUES = ord("\n"), ord("\r"), ord('"'), 0b1000_0000

_Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Whole lines of UTF-8, each with its newline: their number in the file, and where their newlines are."""

    text: bytes
    numbers: _Places
    newlines: _Places

    def number_at(self, place: int) -> int:
        """Return the number of the line that a place lies in."""
        return int(self.numbers[np.searchsorted(self.newlines, place)])


def first_row(path: Path, schema: Schema) -> tuple[int, list[str]] | None:
    """Return the line and the stripped cells of a text's first row; no line after it is read. None: no row.

    Raises
    ------
    InputError
        For bytes or quotes that cannot be read, naming the line.
    """
    with reading(path), open_text(path, schema.encoding) as file:
        for text, lines in _whole_rows(path, _uncommented(path, bounded_lines(file, path), schema), schema):
            if len(lines):
                # As names: of these pyarrow wants to know no number beforehand, and it takes any for text.
                options = arrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 4)
                named = arrow_csv.read_csv(
                    _buffer(text), read_options=options, parse_options=_parse_options(schema.delimiter)
                )
                return int(lines[0]), [name.strip() for name in named.column_names]
    return None


_DELIMITERS = (",", ";", "\t", "|")
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8"))


def sniffed_layout(path: Path) -> tuple[Schema, list[str]]:
    """Return how a text is laid out as far as its first line tells, and the cells of that line.

    Raises
    ------
    InputError
        If it has no line.
    """
    with reading(path):
        require_text(path)
        with open_binary(path) as file:
            first = file.readline(LONGEST_LINE)
    encoding = next((name for mark, name in _MARKS if first.startswith(mark)), "")
    if not encoding:
        try:
            first.decode("utf-8")
            encoding = "utf-8"
        except UnicodeDecodeError:
            encoding = "cp1252"
    line = first.decode(encoding, errors="replace")
    layout = layout_of({"delimiter": max(_DELIMITERS, key=line.count), "encoding": encoding}, str(path))
    names = first_row(path, layout)
    if names is None:
        raise InputError(f"{path} holds no line of column names")
    return layout, names[1]


def delimited_rows(path: Path, schema: Schema, names: Sequence[str], rows: int) -> Iterator[Table]:
    """Yield the rows of a text, at most so many at once: cells are text as it stands, in Arrow arrays.

    Cells of a row of another number of cells are null, and its fault says so.

    Parameters
    ----------
    path : Path
    schema : Schema
        Says how the text is laid out.
    names : sequence of str
        The columns in their order.
    rows : int

    Raises
    ------
    InputError
        For bytes, quotes or line ends that leave a row in doubt and for what is too long, naming the line.
    """
    begin = int(schema.header)
    with closing(bounded_blocks(path, _BLOCK_BYTES, schema.encoding)) as blocks:
        for text, lines in _whole_rows(path, _uncommented(path, blocks, schema), schema):
            if not len(lines):
                continue
            table, others = _cells(text, schema.delimiter, names)
            if len(table) + len(others) != len(lines):
                raise InputError(
                    f"{path}, lines {lines[0]} to {lines[-1]}: the number of rows is {len(lines)} or "
                    f"{len(table) + len(others)}, depending on how quotation marks are parsed; quote each of their "
                    "cells"
                )
            faults = None
            if others:
                # What pyarrow left out stands where it was, as nulls.
                known = np.ones(len(lines), dtype=bool)
                known[list(others)] = False
                places = pa.array(np.cumsum(known) - 1, mask=~known)
                table = table.take(places)
                faults = [
                    f"{others[row]} cells, there are {len(names)} columns" if row in others else None
                    for row in range(len(lines))
                ]
            # The line of names.
            for start in range(begin, len(lines), rows):
                piece = table.slice(start, rows).combine_chunks()
                cells = {name: piece.column(place).chunk(0) for place, name in enumerate(names)}
                some = slice(start, start + rows)
                _require_short(path, piece, lines[some])
                yield Table(cells, lines[some], str(path), faults=None if faults is None else faults[some])
            begin = 0


def _parse_options(delimiter: str, **more: Any) -> Any:
    return arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, **more)


def _buffer(text: bytes) -> Any:
    """Return text for pyarrow, which takes a mark of the order of bytes away wherever one comes first.

    It lies in memory of Arrow's: a thread of Arrow's looks ahead of the one that reads, and if it were the last to let
    go of something of Python's while the interpreter ends, the process would be aborted.
    """
    marked = len(codecs.BOM_UTF8) if text.startswith(codecs.BOM_UTF8) else 0
    buffer = pa.allocate_buffer(marked + len(text))
    memory = memoryview(buffer).cast("B")
    memory[:marked], memory[marked:] = codecs.BOM_UTF8[:marked], text
    return pa.BufferReader(buffer)


def _cells(text: bytes, delimiter: str, names: Sequence[str]) -> tuple[Any, dict[int, int]]:
    """Return the rows of as many cells as there are names, and of each other one its place and its number of cells."""
    others: dict[int, int] = {}

    def leave_out(row: Any) -> str:
        others[row.number - 1] = row.actual_columns
        return "skip"

    table = arrow_csv.read_csv(
        _buffer(text),
        # In one piece, for rows do not end where a block of pyarrow's would; in this thread, or rows that are left out
        # would have no number.
        read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 4),
        parse_options=_parse_options(delimiter, invalid_row_handler=leave_out),
        convert_options=arrow_csv.ConvertOptions(
            # That it is UTF-8 is known.
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=False,
            check_utf8=False,
        ),
    )
    return table, others


def _require_short(path: Path, piece: Any, lines: _Places) -> None:
    for column in piece.columns if piece.nbytes > LONGEST_CELL else ():
        if column.nbytes > LONGEST_CELL and pc.max(pc.binary_length(column)).as_py() > LONGEST_CELL:
            long = pc.greater(pc.utf8_length(column), LONGEST_CELL).to_pylist()
            if True in long:
                raise _too_long(path, int(lines[long.index(True)]))


def _too_long(path: Path, line: int) -> InputError:
    return InputError(
        f"{path}, line {line}: field larger than field limit, {LONGEST_CELL} characters; shorten the cell, or close "
        "its quotation mark"
    )


def _uncommented(path: Path, blocks: Iterator[tuple[int, bytes]], schema: Schema) -> Iterator[_Lines]:
    """Yield lines without those that the schema says are no rows."""
    comments = None
    if schema.skip_lines_beginning:
        beginnings = b"|".join(re.escape(one.encode()) for one in schema.skip_lines_beginning)
        comments = re.compile(rb"^(?:" + beginnings + rb")[^\n]*\n", re.MULTILINE)
    for number, text in blocks:
        if not text.isascii():
            _require_utf8(path, number, text)
        if number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        if not text.endswith(b"\n"):
            text += b"\n"
        newlines = _places(text, _NEWLINE)
        numbers = np.arange(number, number + len(newlines))
        if comments is not None and (found := [match.start() for match in comments.finditer(text)]):
            numbers = np.delete(numbers, np.searchsorted(newlines, found))
            text = comments.sub(b"", text)
            newlines = _places(text, _NEWLINE)
        yield _Lines(text, numbers, newlines)


def _require_utf8(path: Path, number: int, text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, number + count_lines(text[: error.start]), text[error.start]) from error


def _places(text: bytes, character: int) -> _Places:
    return np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == character)


@dataclass(slots=True)
class _Quotes:
    """Quotation marks that open and close cells, block after block."""

    path: Path
    delimiter: str
    line: int = 0
    """On which the cell began that is open; 0 where none is."""
    length: int = 0
    """Characters of it so far."""
    cell: re.Pattern[bytes] = field(init=False)

    def __post_init__(self) -> None:
        mark = re.escape(self.delimiter.encode())
        space = rb"" if self.delimiter == " " else rb" *+"
        self.cell = re.compile(rb"(?:\A|(?<=[\n" + mark + rb"]))(" + space + rb")\"" + _INSIDE.pattern)

    def edges(self, lines: _Lines) -> _Places:
        """Return where quoted cells begin and end, in turn; the first ends one that was open before.

        Raises
        ------
        InputError
            For a quotation mark after spaces that begin a cell, and for a cell that is too long while it is open.
        """
        text, was_open = lines.text, bool(self.line)
        characters = np.frombuffer(text, dtype=np.uint8)
        edges = np.flatnonzero(characters == _QUOTE) if b'"' in text else np.zeros(0, dtype=np.int64)
        # Marks open and close in turn as long as each that opens stands where a cell begins, or doubles the one before.
        before = characters[edges[was_open::2] - 1]
        doubles = before == _QUOTE
        if not ((before == ord(self.delimiter)) | (before == _NEWLINE) | doubles).all():
            edges = self._one_by_one(lines, was_open)
        elif doubles.any():
            second = np.flatnonzero(doubles) * 2 + was_open
            edges = np.delete(edges, np.concatenate([second - 1, second]))
        if (len(edges) + was_open) % 2 == 0:
            self.line = 0
            return edges
        if len(edges):
            self.line, self.length = lines.number_at(int(edges[-1])), 0
        inside = characters[edges[-1] + 1 :] if len(edges) else characters
        # Within a cell a character has one byte that continues none, and a mark is written as two.
        self.length += int(np.count_nonzero((inside & 0b1100_0000) != _CONTINUES))
        self.length -= int(np.count_nonzero(inside == _QUOTE)) // 2
        if self.length > LONGEST_CELL:
            raise _too_long(self.path, self.line)
        return edges

    def _one_by_one(self, lines: _Lines, was_open: bool) -> _Places:
        """Return the same where some marks are part of a cell that is not quoted."""
        edges, place = [], 0
        if was_open and (rest := _INSIDE.match(lines.text)):
            edges, place = [rest.start("end")] if rest["end"] else [], rest.end()
        for cell in self.cell.finditer(lines.text, place):
            if cell[1]:
                raise InputError(
                    f"{self.path}, line {lines.number_at(cell.end(1))}: a quotation mark follows a space; remove the "
                    f'space, so that the cell begins with the mark ({self.delimiter}"…")'
                )
            edges += [cell.end(1), cell.start("end")] if cell["end"] else [cell.end(1)]
        return np.array(edges, dtype=np.int64)


# A quoted cell after the mark that opens it; without an end where it is still open.
_INSIDE = re.compile(rb'[^"]*+(?:""[^"]*+)*+(?P<end>"?)')


def _outside(places: _Places, edges: _Places, was_open: bool) -> NDArray[np.bool_]:
    """Return which places lie in no quoted cell, from where these begin and end."""
    return np.asarray((np.searchsorted(edges, places) + was_open) % 2 == 0)


def _whole_rows(path: Path, blocks: Iterator[_Lines], schema: Schema) -> Iterator[tuple[bytes, _Places]]:
    """Yield the text of whole rows, and the line on which each ends; blank lines are no rows."""
    quotes = _Quotes(path, schema.delimiter)
    # A row of which the end is still to come.
    begun: list[bytes] = []
    for lines in blocks:
        was_open = bool(quotes.line)
        edges = quotes.edges(lines)
        text, newlines = lines.text, lines.newlines
        if b"\r" in text:
            returns = _places(text, _RETURN)
            alone = returns[np.frombuffer(text, dtype=np.uint8)[returns + 1] != _NEWLINE]
            alone = alone[_outside(alone, edges, was_open)]
            if len(alone):
                raise lone_return(path, lines.number_at(int(alone[0])))
        ends = newlines[_outside(newlines, edges, was_open)] if was_open or len(edges) else newlines
        if not len(ends):
            begun += [text] if text else []
        else:
            cut = int(ends[-1]) + 1
            numbers = lines.numbers if len(ends) == len(newlines) else lines.numbers[np.searchsorted(newlines, ends)]
            starts = np.concatenate([[0], ends[:-1] + 1])
            filled = (starts < ends) & (np.frombuffer(text, dtype=np.uint8)[starts] != _RETURN)
            filled[0] |= bool(begun)
            yield b"".join([*begun, text[:cut]]), numbers[filled]
            begun = [text[cut:]] if cut < len(text) else []
        if sum(map(len, begun)) > LONGEST_LINE:
            raise InputError(
                f"{path}, line {quotes.line}: a row is longer than {LONGEST_LINE} bytes; shorten its cells, or close "
                "their quotation marks"
            )
    if quotes.line:
        raise InputError(
            f"{path}, line {quotes.line}: a quotation mark opens a cell and is never closed; close it, or double it "
            "and quote the cell"
        )
