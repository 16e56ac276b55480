"""Sources of declared tables: a schema is required, says which files are read, and encodes their rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from storage.cells import column_name
from storage.columns.declarations import named_twice
from storage.errors import InputError, RefusedError
from storage.readers.arrow_batches import open_parquet
from storage.readers.delimited import first_row
from storage.readers.raw_tables import PARQUET
from storage.refs import OnViolation
from storage.schema import Schema, Table, layout_of, load_schema, read_declaration
from storage.several import patterned
from storage.source import (
    Block,
    ReadOptions,
    Rows,
    Source,
    Tally,
    confirm,
    reading,
    require_file,
)

Tables = Callable[[Any, Schema, OnViolation], Iterator[Table]]
"""What gives the rows of a file, or of a frame."""


def encoded_rows(
    read: Tables, files: Sequence[Any], schema: Schema, on_violation: OnViolation, tally: Tally, held: object = None
) -> Iterator[Block]:
    """Yield the rows of files or frames, encoded as a schema declares; the tally begins again with each reading.

    ``held`` is what has to last as long as the rows are read.
    """
    tally.clear()
    for path in files:
        for table in read(path, schema, on_violation):
            yield schema.encode(table, on_violation, tally)


def declared_source(
    format_name: str,
    place: str,
    options: ReadOptions,
    schema: Schema,
    parts: Mapping[str, tuple[Tables, Sequence[Any]]],
    held: object = None,
) -> Source:
    """Return the source of rows whose schema says all that is to be known of them."""
    label, tallies = schema.label, {part: Tally() for part in parts}
    confirm(options, place, dimension=schema.dimension, classes=label.classes, label_range=label.range)
    return Source(
        format=format_name,
        place=place,
        dimension=schema.dimension,
        classes=label.classes,
        label_range=label.range,
        parts={
            part: Rows(encoded_rows, (read, files, schema, options.on_violation, tallies[part], held))
            for part, (read, files) in parts.items()
        },
        tallies=tallies,
        # Without a document there is nothing from which the schema could be made again.
        table={"schema": dict(schema.document), "on_violation": str(options.on_violation)} if schema.document else None,
        people=schema.people,
        columns=schema.places,
    )


def require_schema(
    options: ReadOptions, format_name: str, files: Callable[[Schema], Mapping[str, Sequence[Path]]]
) -> Schema:
    """Return the declared schema.

    Parameters
    ----------
    options : ReadOptions
    format_name : str
        For messages.
    files : callable
        Returns the files of a table's parts by its schema; the first to train on settles patterns of names.

    Raises
    ------
    RefusedError
        If there is none: it would have to be learnt from the rows.
    """
    if options.schema is None:
        raise RefusedError(
            f"format {format_name} needs a declared schema (--schema FILE.yaml); a schema is never learnt from rows"
        )
    declaration, place, there = read_declaration(options.schema), str(options.schema), None
    if patterned(declaration):
        there = settling_names(declaration, place, files(layout_of(declaration, place))["train"][0])
    return replace(load_schema(options.schema, options.scaling, there), keeps_rows=not options.discover)


def settling_names(declaration: Any, place: str, path: Path) -> list[str] | None:
    """Return the names of a file's columns, which settle a declaration's patterns; None where it has none.

    Raises
    ------
    InputError
        If the file has no line of names.
    """
    if not patterned(declaration):
        return None
    layout = layout_of(declaration, place)
    if path.suffix in PARQUET:
        with open_parquet(require_file(path), 0) as file:
            return list(map(column_name, file.schema.names))
    if not layout.header:
        raise InputError(
            f"{place}: names holds a pattern, which needs a header line, and the schema declares 'header: false'; "
            "list the names"
        )
    with reading(require_file(path)):
        names = list(map(column_name, (first_row(path, layout) or (0, []))[1]))
    if twice := named_twice(names):
        raise InputError(f"{path}: column {twice!r} is named twice; rename one in the file")
    return names


def table_files(path: str | Path, schema: Schema, options: ReadOptions) -> dict[str, Path]:
    """Return the files of the parts: those named, or those the schema names in a folder."""
    place = Path(path)
    if not place.is_dir():
        files = {"train": place}
    elif "train" not in schema.files:
        raise InputError(
            f"{place} is a folder and the schema names no files; name a file, or declare 'files: {{train: …}}' in the "
            "schema"
        )
    else:
        files = {
            part: place / name for part, name in schema.files.items() if part == "train" or (place / name).exists()
        }
    if options.test is not None:
        files["test"] = options.test
    return {part: require_file(file) for part, file in files.items()}
