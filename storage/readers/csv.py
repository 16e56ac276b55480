"""Tables with a declared schema, and the reader of those in delimited text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage.columns import named_twice
from storage.errors import InputError, RefusedError
from storage.readers.raw import raw_rows, text_rows
from storage.readers.registry import reading, register_reader, require_file
from storage.schema import Schema, Table, load_schema
from storage.source import Block, OnViolation, ReadOptions, Source, Tally, confirm

Tables = Callable[[Path, Schema, OnViolation], Iterator[Table]]
"""What gives the rows of a file."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of files, encoded as a schema declares.

    Attributes
    ----------
    read : Tables
        Gives each file's rows.
    files : sequence of Path
    schema : Schema
    on_violation : OnViolation
    tally : Tally
        Begins again with each reading.
    held : object
        What has to last as long as the rows are read.
    """

    read: Tables
    files: Sequence[Path]
    schema: Schema
    on_violation: OnViolation
    tally: Tally = field(default_factory=Tally)
    held: Any = None

    def __iter__(self) -> Iterator[Block]:
        """Yield encoded blocks."""
        self.tally.reset()
        for path in self.files:
            for table in self.read(path, self.schema, self.on_violation):
                yield self.schema.encode(table, self.on_violation, self.tally)


def declared_source(format_name: str, place: str, options: ReadOptions, parts: Mapping[str, EncodedRows]) -> Source:
    """Return the source of rows whose schema says all that is to be known of them."""
    schema = parts["train"].schema
    label = schema.label
    confirm(options, place, dimension=schema.dimension, classes=label.classes, label_range=label.range)
    return Source(
        format=format_name,
        place=place,
        dimension=schema.dimension,
        classes=label.classes,
        label_range=label.range,
        parts=parts,
        tallies={part: rows.tally for part, rows in parts.items()},
        # Without a document there is nothing from which the schema could be made again.
        table={"schema": dict(schema.document), "on_violation": str(options.on_violation)} if schema.document else None,
        people=schema.people,
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
    with reading(path):
        line, cells = next(text_rows(path, schema), (0, []))
    place, declared, present = f"{path}, line {line}", set(names), set(cells)
    if not schema.header:
        if cells == names:
            raise InputError(
                f"{place} holds the columns' names, and the schema says 'header: false'; let it say 'header: true', or "
                "nothing"
            )
        return names
    if not line:
        raise InputError(f"{path} holds no line of column names, and the schema says it has one")
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
    if missing := sorted(declared - present):
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
    parts = {
        part: EncodedRows(text_tables, (file,), schema, options.on_violation)
        for part, file in table_files(path, schema, options).items()
    }
    return declared_source("csv", str(path), options, parts)
