"""Parquet: a table that a schema declares, or lists of features with labels."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.cells import canonical_texts, column_name
from storage.errors import InputError
from storage.people import People, identifiers, named
from storage.readers.arrow_batches import open_parquet
from storage.readers.declared import declared_source, require_schema, table_files
from storage.readers.raw_tables import PARQUET, parquet_rows
from storage.refs import OnViolation
from storage.schema import Schema, Table
from storage.source import (
    Block,
    ReadOptions,
    Rows,
    Source,
    most_rows,
    register_reader,
    require_file,
    settle,
)

FEATURES = "features"
LABEL = "label"
_NO_SCHEMA = "name the columns so, or declare others with --schema"


def _files(path: Path) -> tuple[Path, ...]:
    """Return the file, or the Parquet files of a folder in the order of their names."""
    files = sorted(file for file in path.iterdir() if file.suffix in PARQUET) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no .parquet file")
    return tuple(require_file(file) for file in files)


def parquet_tables(path: Path, schema: Schema, _: OnViolation) -> Iterator[Table]:
    """Yield the rows of a file, the columns that a schema looks at."""
    for table in parquet_rows(path, schema.block_rows, schema.needed, most=most_rows()):
        for name, column in table.columns.items():
            if pa.types.is_nested(column.type):
                raise InputError(
                    f"{path}, column {name}: a cell has the type {str(column.type)[:60]}, which a schema cannot "
                    "declare; convert the column"
                )
        yield table


def _list_rows(files: Sequence[Path], dimension: int, people: People | None) -> Iterator[Block]:
    """Yield the rows of files whose features are a list column."""
    rows = max(1, min(2048, (1 << 22) // max(1, dimension)))
    columns = (FEATURES, LABEL) if people is None else (FEATURES, LABEL, column_name(people.column))
    for path in files:
        for table in parquet_rows(path, rows, columns, _NO_SCHEMA, most_rows()):
            yield _list_block(table, dimension, people)


def _list_block(table: Table, dimension: int, people: People | None) -> Block:
    lists, labels = table.columns[FEATURES], table.columns[LABEL]
    kind = lists.type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not (listed and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))):
        raise InputError(
            f"{table.place}, column {FEATURES}: type is {str(lists.type)[:100]}; it must be a list of numbers"
        )

    def place(row: int) -> str:
        return f"{table.place}, row {table.lines[row]}"

    for name, column in ((FEATURES, lists), (LABEL, labels)):
        if column.null_count:
            bad = column.is_null().to_pylist().index(True)
            raise InputError(f"{place(bad)}, column {name}: the value is missing; fill it or remove the row")
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    if (lengths != dimension).any():
        bad = int(np.argmax(lengths != dimension))
        raise InputError(f"{place(bad)}: {lengths[bad]} features, expected {dimension}; correct the row or --dimension")
    flat = lists.flatten()
    if flat.null_count:
        bad, feature = divmod(flat.is_null().to_pylist().index(True), dimension)
        raise InputError(f"{place(bad)}: feature {feature + 1} is missing; fill or remove the row")
    names = None if people is None else identifiers(table.columns[column_name(people.column)])
    if names is not None and not named(names).all():
        bad = int(np.argmin(named(names)))
        raise InputError(f"{place(bad)}: the person is missing; fill that cell")
    numbers = flat.to_numpy(zero_copy_only=False).reshape(len(lists), dimension)
    return Block(numbers, labels_of(labels), table.lines, place=table.place, unit=table.unit, people=names)


def labels_of(labels: Any) -> NDArray[Any]:
    """Return labels as they are compared: numbers where they are numbers by their type, else canonical texts."""
    kind = labels.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(labels.to_numpy(zero_copy_only=False))
    return np.asarray(canonical_texts(labels).to_numpy(zero_copy_only=False))


def _list_dimension(path: Path) -> int:
    """Return the length of the first list, or of all where the type says so."""
    with open_parquet(path, 1, (FEATURES,)) as file:
        file.require((FEATURES,), _NO_SCHEMA)
        kind = file.schema.field(FEATURES).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for batch in file.batches:
            cell = batch.column(0).to_pylist()[0]
            return len(cell) if isinstance(cell, list) else 0
    raise InputError(f"{path} holds no rows; it must hold at least one")


@register_reader("parquet", takes=("schema", "on_violation", "test", "scaling", "people"))
def read_parquet(path: str | Path, options: ReadOptions) -> Source:
    """Read Parquet: columns by a declared schema, or a list column "features" and a column "label".

    Parameters
    ----------
    path : path
        A file, or a folder of .parquet files.
    """
    place = Path(path)
    if options.people is not None and options.schema is not None:
        raise InputError(f"{place}: the schema declares the person (type: person); omit --person")
    if options.people is not None and not options.people.column:
        raise InputError(f"{place}: no person column is declared; name it with --person")
    if options.schema is not None:

        def files(schema: Schema) -> dict[str, tuple[Path, ...]]:
            if place.is_dir() and not schema.files:
                found = {"train": place} if options.test is None else {"train": place, "test": options.test}
            else:
                found = table_files(path, schema, options)
            return {part: _files(Path(file)) for part, file in found.items()}

        schema = require_schema(options, "parquet", files)
        parquet = {part: (parquet_tables, paths) for part, paths in files(schema).items()}
        return declared_source("parquet", str(place), options, schema, parquet)
    if options.on_violation is not OnViolation.REFUSE or options.scaling is not None:
        raise InputError(f"{place}: clipping, dropping and scaling rows need a schema; give --schema")
    parts = {"train": _files(place)}
    if options.test is not None:
        parts["test"] = _files(options.test)
    dimension = options.dimension
    if options.discover and dimension is None:
        dimension = _list_dimension(parts["train"][0])
    labels = (
        text
        for files in parts.values()
        for block in _list_rows(files, dimension or 0, None)
        for text in canonical_texts(block.labels).unique().to_pylist()
    )
    size, classes, discovered = settle(options, str(place), dimension=dimension, labels=labels)
    return Source(
        format="parquet",
        place=str(place),
        dimension=size,
        classes=classes,
        label_range=options.label_range,
        parts={part: Rows(_list_rows, (files, size, options.people)) for part, files in parts.items()},
        found=discovered,
        people=options.people,
    )
