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
from storage.readers.csv import require_schema, table_files, table_of
from storage.readers.registry import register_reader, require_file
from storage.schema import Schema, Table
from storage.source import Block, OnViolation, ReadOptions, Source, Tally, canonical_label, cells_of, confirm, settle

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


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of Parquet files whose columns a schema declares."""

    files: tuple[Path, ...]
    schema: Schema
    on_violation: OnViolation
    tally: Tally

    def __iter__(self) -> Iterator[Block]:
        """Yield encoded blocks."""
        self.tally.reset()
        names = self.schema.needed
        for path in self.files:
            with open_parquet(path, self.schema.block_rows, names) as file:
                file.require(names, "correct the schema")
                for name in names:
                    if pa.types.is_nested(kind := file.schema.field(name).type):
                        raise InputError(f"{path}, column {name}: a cell is {str(kind)[:60]}, which no schema declares")
                row = 1
                for batch in file.batches:
                    columns = {name: cells_of(batch.column(name)) for name in names}
                    lines = np.arange(row, row + len(batch), dtype=np.int64)
                    row += len(batch)
                    table = Table(columns, lines, str(path), unit="row")
                    yield self.schema.encode(table, self.on_violation, self.tally)


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


def _declared(path: Path, options: ReadOptions, schema: Schema) -> Source:
    tallies = {part: Tally() for part in ("train", "test")}
    if path.is_dir() and not schema.files:
        places = {"train": _files(path)}
        if options.test is not None:
            places["test"] = _files(options.test)
    else:
        places = {part: _files(file) for part, file in table_files(path, schema, options).items()}
    label = schema.label
    confirm(options, str(path), dimension=schema.dimension, classes=label.classes, label_range=label.range)
    return Source(
        format="parquet",
        place=str(path),
        dimension=schema.dimension,
        classes=label.classes,
        label_range=label.range,
        parts={part: TableRows(files, schema, options.on_violation, tallies[part]) for part, files in places.items()},
        tallies={part: tallies[part] for part in places},
        table=table_of(schema, options),
        people=schema.people,
    )


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
        return _declared(place, options, require_schema(options, "parquet"))
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
