"""Parquet files: columns by a declared schema, or one list column of features beside a label column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.errors import InputError
from storage.people import People, identifiers, named
from storage.readers.arrow_batches import open_parquet
from storage.readers.csv import EncodedRows, declared_source, require_schema, table_files
from storage.readers.raw import parquet_rows
from storage.readers.registry import register_reader, require_file
from storage.schema import Schema, Table
from storage.source import Block, OnViolation, ReadOptions, Source, canonical_label, cells_of, settle

FEATURES = "features"
LABEL = "label"


def _files(path: Path) -> tuple[Path, ...]:
    """Return the file, or the Parquet files of a folder in the order of their names."""
    if not path.is_dir():
        return (require_file(path),)
    files = tuple(sorted(file for file in path.iterdir() if file.suffix in (".parquet", ".pq")))
    if not files:
        raise InputError(f"{path} holds no .parquet file")
    return tuple(require_file(file) for file in files)


def parquet_tables(path: Path, schema: Schema, _: OnViolation) -> Iterator[Table]:
    """Yield the rows of a file, the columns that a schema looks at."""
    for table in parquet_rows(path, schema.block_rows, schema.needed):
        for name, column in table.columns.items():
            if pa.types.is_nested(column.type):
                raise InputError(f"{path}, column {name}: a cell is {str(column.type)[:60]}, which no schema declares")
        yield table


@dataclass(frozen=True, slots=True)
class _ListRows:
    files: tuple[Path, ...]
    dimension: int
    people: People | None

    def __iter__(self) -> Iterator[Block]:
        for path in self.files:
            row = 1
            for features, labels, names in _list_batches(path, self.dimension, self.people):
                lines = np.arange(row, row + len(labels), dtype=np.int64)
                row += len(labels)
                yield Block(features, labels, lines, place=str(path), unit="row", people=names)


def _list_batches(
    path: Path, dimension: int, people: People | None = None
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]]:
    rows = max(1, min(2048, (1 << 22) // max(1, dimension)))
    columns = (FEATURES, LABEL) if people is None else (FEATURES, LABEL, people.column)
    with open_parquet(path, rows, columns) as file:
        file.require(columns, "name the columns so, or declare others with --schema")
        kind = file.schema.field(FEATURES).type
        if not _is_list(kind):
            raise InputError(f"{path}, column {FEATURES}: type is {str(kind)[:100]}; it must be a list of numbers")
        row = 1
        for batch in file.batches:
            lists, labels = batch.column(FEATURES), batch.column(LABEL)
            for name, column in ((FEATURES, lists), (LABEL, labels)):
                if column.null_count:
                    place = row + column.is_null().to_pylist().index(True)
                    raise InputError(
                        f"{path}, row {place}, column {name}: the value is missing; fill or remove the row"
                    )
            lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
            if (lengths != dimension).any():
                bad = int(np.argmax(lengths != dimension))
                raise InputError(
                    f"{path}, row {row + bad}: {lengths[bad]} features, expected {dimension}; correct the row or "
                    "--dimension"
                )
            flat = lists.flatten()
            if flat.null_count:
                bad = flat.is_null().to_pylist().index(True)
                raise InputError(
                    f"{path}, row {row + bad // dimension}: feature {bad % dimension + 1} is missing; "
                    "fill or remove the row"
                )
            names = None if people is None else identifiers(cells_of(batch.column(people.column)))
            if names is not None and not named(names).all():
                bad = int(np.argmin(named(names)))
                raise InputError(f"{path}, row {row + bad}: it is nobody's; fill the cell that names its person")
            row += len(batch)
            numbers = flat.to_numpy(zero_copy_only=False).reshape(len(batch), dimension)
            yield numbers, np.asarray(cells_of(labels)), names


def _is_list(kind: Any) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not listed:
        return False
    number = kind.value_type
    return bool(pa.types.is_floating(number) or pa.types.is_integer(number))


def _list_dimension(path: Path) -> int:
    """Return the length of the first list, or of all where the type says so."""
    with open_parquet(path, 1, (FEATURES,)) as file:
        file.require((FEATURES,), "name the columns so, or declare others with --schema")
        kind = file.schema.field(FEATURES).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for batch in file.batches:
            cell = batch.column(0).to_pylist()[0]
            return len(cell) if isinstance(cell, list) else 0
    raise InputError(f"{path} holds no rows; it must hold at least one")


@register_reader("parquet", takes=("schema", "on_violation", "test", "scaling", "people"))
def read_parquet(path: str | Path, options: ReadOptions) -> Source:
    """Read Parquet: columns by a declared schema, or a list column "features" beside a column "label".

    Parameters
    ----------
    path : path
        A file, or a folder of .parquet files.
    """
    place = Path(path)
    if options.schema is not None:
        schema = require_schema(options, "parquet")
        if place.is_dir() and not schema.files:
            files = {"train": place} if options.test is None else {"train": place, "test": options.test}
        else:
            files = table_files(path, schema, options)
        return declared_source(
            "parquet",
            str(place),
            options,
            {
                part: EncodedRows(parquet_tables, _files(Path(file)), schema, options.on_violation)
                for part, file in files.items()
            },
        )
    if options.on_violation is not OnViolation.REFUSE or options.scaling is not None:
        raise InputError(f"{place}: rows are clipped, dropped or scaled by a declared schema only; give --schema")
    parts = {"train": _files(place)}
    if options.test is not None:
        parts["test"] = _files(options.test)
    dimension, labels = None, None
    if options.discover and options.dimension is None:
        dimension = _list_dimension(parts["train"][0])
    if options.discover and options.classes is None and options.label_range is None:
        size = options.dimension or dimension or 0
        labels = {
            canonical_label(value)
            for files in parts.values()
            for file in files
            for _, block, _ in _list_batches(file, size)
            for value in np.unique(block).tolist()
        }
    size, classes, discovered = settle(options, str(place), dimension=dimension, labels=labels)
    return Source(
        format="parquet",
        place=str(place),
        dimension=size,
        classes=classes,
        label_range=options.label_range,
        parts={part: _ListRows(files, size, options.people) for part, files in parts.items()},
        found=discovered,
        people=options.people,
    )
