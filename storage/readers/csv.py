"""Tables of text with a declared schema."""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from storage.columns import named_twice
from storage.errors import InputError, RefusedError
from storage.readers.raw import text_rows
from storage.readers.registry import open_text, reading, register_reader, require_file
from storage.schema import Schema, Table, load_schema
from storage.source import Block, OnViolation, ReadOptions, Source, Tally, confirm

# A line that does not fit is looked at on its own.
_BLOCK_BYTES = 1 << 22


def _lines(file: IO[bytes]) -> Iterator[bytes]:
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


@dataclass(frozen=True, slots=True)
class _Rows:
    path: Path
    schema: Schema
    on_violation: OnViolation
    tally: Tally

    def __iter__(self) -> Iterator[Block]:
        """Yield blocks: columns as a whole as long as no cell is refused, then line by line."""
        self.tally.reset()
        for block in self._typed():
            if block is None:
                yield from self._line_by_line(self.tally.read)
                return
            yield block

    def _typed(self) -> Iterator[Block | None]:
        """Yield blocks, column by column; None, and nothing more, where a line has to be named or read otherwise."""
        schema = self.schema
        names = list(schema.in_file)
        if schema.skip_lines_beginning or not schema.needed:
            yield None
            return
        try:
            with reading(self.path), open_text(self.path, schema.encoding) as file:
                row, header = 1, None if schema.header else names
                for text in _lines(file):
                    table = arrow_csv.read_csv(
                        pa.BufferReader(text),
                        # In one piece where cells may hold line breaks: between pieces pyarrow ends a row there.
                        read_options=arrow_csv.ReadOptions(
                            column_names=header, block_size=len(text) if b'"' in text else None
                        ),
                        parse_options=arrow_csv.ParseOptions(delimiter=schema.delimiter),
                        convert_options=arrow_csv.ConvertOptions(
                            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                        ),
                    )
                    header = table.column_names
                    # A first line that names the columns where the schema says that none does is an error to be named.
                    first = table.slice(0, 1 if row == 1 else 0).to_pylist()
                    if sorted(header) != sorted(names) or dict(zip(names, names, strict=True)) in first:
                        yield None
                        return
                    for start in range(0, len(table), schema.block_rows):
                        piece = table.slice(start, schema.block_rows).combine_chunks()
                        # Lines are counted where one is to be named, which is done by reading line by line.
                        lines = np.arange(row, row + len(piece), dtype=np.int64)
                        cells = {name: piece.column(name).chunk(0) for name in schema.needed}
                        quoted = ((one, '"' if one in cells else '^ +"') for one in header if b'"' in text)
                        if any(pc.any(pc.match_substring_regex(piece[one], mark)).as_py() for one, mark in quoted) or (
                            any(pc.max(pc.binary_length(one)).as_py() > csv.field_size_limit() for one in piece.columns)
                        ):
                            raise pa.ArrowInvalid("a quotation mark that Python reads otherwise, or a cell it refuses")
                        yield schema.encode(Table(cells, lines, str(self.path)), self.on_violation, self.tally)
                        row += len(piece)
        except (pa.ArrowInvalid, UnicodeDecodeError, InputError):
            # Cells of another number, a line longer than a block, bytes that are not UTF-8; in names, Python says so.
            yield None

    def _line_by_line(self, done: int) -> Iterator[Block]:
        """Yield what comes after the first rows, each looked at on its own, naming the line of what is wrong."""
        with reading(self.path):
            rows = self._rows()
            names = next(rows)[1]
            rows = islice(rows, done, None)
            while chunk := list(islice(rows, self.schema.block_rows)):
                lines = np.array([line for line, _ in chunk], dtype=np.int64)
                broken = np.array([not row for _, row in chunk])
                blank: list[str | None] = [None] * len(names)
                cells = zip(*(row or blank for _, row in chunk), strict=True)
                table = Table(dict(zip(names, cells, strict=True)), lines, str(self.path), broken=broken)
                yield self.schema.encode(table, self.on_violation, self.tally)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the columns' names, then (line, cells); no cells for a row of another number of them."""
        names = list(self.schema.in_file)
        if not self.schema.header:
            yield 0, names
        headed, first = self.schema.header, True
        for line, cells in text_rows(self.path, self.schema):
            if headed:
                headed = False
                names = self._header(cells, line)
                yield line, names
            elif first and cells == names and not self.schema.header:
                raise InputError(
                    f"{self.path}, line {line} holds the columns' names, and the schema says 'header: false'; let it "
                    "say 'header: true', or nothing"
                )
            elif len(cells) == len(names):
                yield line, cells
            elif self.on_violation.drops:
                yield line, []
            else:
                raise InputError(
                    f"{self.path}, line {line}: {len(cells)} cells, the schema has {len(names)} columns; correct the "
                    "row or the delimiter, or use --on-violation drop"
                )
            first = False
        if headed:
            raise InputError(f"{self.path} holds no line of column names, and the schema says it has one")

    def _header(self, cells: list[str], line: int) -> list[str]:
        """Return the names that a line gives, which are the declared ones in any order."""
        declared = set(self.schema.in_file)
        place, present = f"{self.path}, line {line}", set(cells)
        if not present & declared:
            saw = ", ".join(repr(cell[:30]) for cell in cells[:6]) + (", …" if len(cells) > 6 else "")
            raise InputError(
                f"{place} should name the columns and holds {saw}; declare columns of these names, correct the "
                "delimiter, or let the schema say 'header: false' if the file begins with a row"
            )
        if twice := named_twice(cells):
            raise InputError(f"{place}: column {twice!r} is named twice; rename one in the file")
        for name in cells:
            if name not in declared:
                raise InputError(f"{place}: column {name!r} is not in the schema; add it (type: ignore leaves it out)")
        missing = sorted(declared - present)
        if missing:
            raise InputError(
                f"{place}: column {missing[0]!r} is missing; the schema declares {len(declared)} columns, add it to "
                "the file or take it out of the schema"
            )
        return cells


def require_schema(options: ReadOptions, format_name: str) -> Schema:
    """Return the declared schema.

    Raises
    ------
    RefusedError
        If there is none: it would have to be learnt from the rows.
    """
    if options.schema is None:
        raise RefusedError(
            f"format {format_name} needs a declared schema (--schema FILE.yaml); none is learnt from rows"
        )
    return replace(load_schema(options.schema, options.scaling), keeps_rows=not options.discover)


def table_of(schema: Schema, options: ReadOptions) -> dict[str, Any]:
    """Return what of a declaration decides how raw rows become features, as JSON."""
    return {"schema": dict(schema.document), "on_violation": str(options.on_violation)}


def table_files(path: str | Path, schema: Schema, options: ReadOptions) -> dict[str, Path]:
    """Return the files of the parts: those named, or those the schema names in a folder."""
    place = Path(path)
    if not place.is_dir():
        files = {"train": place}
    elif "train" not in schema.files:
        raise InputError(
            f"{place} is a folder and the schema names no files; name a file, or let it say 'files: {{train: …}}'"
        )
    else:
        files = {
            part: place / name for part, name in schema.files.items() if part == "train" or (place / name).exists()
        }
    if options.test is not None:
        files["test"] = options.test
    return {part: require_file(file) for part, file in files.items()}


@register_reader("csv", takes=("schema", "on_violation", "test", "scaling"))
def read_csv(path: str | Path, options: ReadOptions) -> Source:
    """Read delimited text (plain, .gz, .bz2) with a declared schema; scaling and one-hot come from the schema.

    Parameters
    ----------
    path : path
        A file, or a folder in which the schema names the files.
    """
    schema = require_schema(options, "csv")
    tallies = {part: Tally() for part in ("train", "test")}
    parts = {
        part: _Rows(file, schema, options.on_violation, tallies[part])
        for part, file in table_files(path, schema, options).items()
    }
    label = schema.label
    confirm(options, str(path), dimension=schema.dimension, classes=label.classes, label_range=label.range)
    return Source(
        format="csv",
        place=str(path),
        dimension=schema.dimension,
        classes=label.classes,
        label_range=label.range,
        parts=parts,
        tallies={part: tallies[part] for part in parts},
        table=table_of(schema, options),
        people=schema.people,
    )
