"""Parquet files from outside: decoded in a separate process, in pieces that are bounded."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.cells import column_name
from storage.confined import admitted_memory, confined
from storage.errors import InputError
from storage.raw_cells import extended_type, extension_of, named_extension, pieces_of

_MOST_PIECE = 1 << 26
_SECONDS = 120
_PAGES = 1 << 20


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """A Parquet file that is being read.

    Attributes
    ----------
    path : Path
    schema : pyarrow.Schema
        Of all of its columns, by their canonical names, as in the batches.
    count : int
        How many rows it states.
    batches : iterator of pyarrow.RecordBatch
        The columns that were asked for, dictionaries written out.
    """

    path: Path
    schema: pa.Schema
    count: int
    batches: Iterator[pa.RecordBatch]

    def require(self, names: Sequence[str], way_out: str) -> None:
        """Raise an InputError that names the first column that is not there."""
        known = self.schema.names
        for name in dict.fromkeys(names) if not set(names) <= set(known) else ():
            if name not in known:
                raise InputError(f"{self.path} has no column {name!r}, it has: {', '.join(known[:20])}; {way_out}")


@contextmanager
def open_parquet(path: Path, rows: int, columns: Sequence[str] | None = None) -> Iterator[ParquetRows]:
    """Open a Parquet file in a separate process, of which nothing is left afterwards.

    Parameters
    ----------
    path : Path
    rows : int
        At most how many at once; 0 reads the schema alone.
    columns : sequence of str, optional
        Those of them that there are, by their canonical names (:func:`storage.cells.column_name`); by default all.

    Raises
    ------
    InputError
        If it is not a Parquet file, is damaged, nests lists or structures in columns that are asked for, or takes more
        memory than is admitted (:func:`storage.confined.admitted_memory`).
    """
    pieces = confined(
        f"{__name__}:pieces",
        str(path),
        rows,
        None if columns is None else list(columns),
        place=str(path),
        memory=admitted_memory(),
        seconds=_SECONDS,
    )
    try:
        head = json.loads(next(pieces))
        whole = pa.ipc.read_schema(pa.py_buffer(next(pieces)))
        chosen = pa.ipc.read_schema(pa.py_buffer(next(pieces)))
        batches = (pa.ipc.read_record_batch(pa.py_buffer(piece), chosen) for piece in pieces)
        yield ParquetRows(path, whole, int(head["rows"]), batches)
    finally:
        pieces.close()


def pieces(path: str, rows: int, columns: Sequence[str] | None) -> Iterator[Any]:
    """Yield what a file says of itself, its schema, that of the columns asked for, and batches of these."""
    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_PAGES) as file:
            found = file.schema_arrow.remove_metadata()
            schema = pa.schema([one.with_name(column_name(one.name)) for one in found])
            yield json.dumps({"rows": file.metadata.num_rows}).encode()
            yield pa.schema([pa.field(one.name, _named(one)) for one in schema]).serialize()
            written = dict(zip(schema.names, found.names, strict=True))
            names = None if columns is None else [name for name in dict.fromkeys(columns) if name in written]
            if names and (twice := [name for name in names if schema.get_field_index(name) < 0]):
                raise InputError(f"{path}: column {twice[0]!r} is named twice; rename one in the file")
            fields = list(schema) if names is None else [schema.field(name) for name in names]
            asked = None if names is None else [written[name] for name in names]
            chosen = pa.schema([_plain(path, field) for field in fields] if rows else [])
            yield chosen.serialize()
            for batch in file.iter_batches(rows, columns=asked, use_threads=False) if rows else ():
                cells = batch.columns if asked is None else [batch.column(name) for name in asked]
                arrays = [
                    _sent(path, column, given, field.type)
                    for column, given, field in zip(cells, fields, chosen, strict=True)
                ]
                yield from _bounded(path, pa.RecordBatch.from_arrays(arrays, schema=chosen))
    except pa.ArrowMemoryError as error:
        raise MemoryError from error
    except (pa.ArrowException, OSError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged or no Parquet file: {' '.join(str(error).split())[:200]}; download the file again"
        ) from error


def _is_deep(kind: Any) -> bool:
    """Whether a type is a structure, or a list of something else than plain values."""
    return bool(pa.types.is_nested(kind) and (kind.num_fields != 1 or pa.types.is_nested(kind.field(0).type)))


def _named(field: Any) -> Any:
    """Return the type of a column that may not be asked for.

    A schema of many levels cannot be sent, and what a file says of extensions may be nonsense; nothing is read of them.
    """
    if (name := extension_of(field)) is not None:
        return extended_type(name) or pa.null()
    return pa.null() if _is_deep(field.type) else field.type


def _sent(path: str, column: Any, field: Any, kind: Any) -> Any:
    """Return a column as it is sent."""
    if (name := extension_of(field)) is not None:
        found = pieces_of(named_extension(field, column))
        if found.unread is not None:
            raise InputError(f"{path}, column {field.name}: its cells are not {name[:60]}; write them as text")
        return found.array().cast(kind)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column.cast(kind)


def _plain(path: str, field: Any) -> Any:
    """Return a column as it is sent: no extension, no dictionary, and no list or structure within another."""
    if (name := extension_of(field)) is not None:
        if (known := extended_type(name)) is None:
            raise InputError(
                f"{path}, column {field.name}: its type is {name[:60]}, which is not a text, number, truth "
                f"value, day or time; convert it to one of them"
            )
        return pa.field(field.name, known)
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if _is_deep(kind):
        raise InputError(
            f"{path}, column {field.name}: it nests {str(kind)[:100]}; supported are numbers, texts and lists of "
            "them, and sparse rows as LIBSVM text"
        )
    return pa.field(field.name, kind)


def _bounded(path: str, batch: Any) -> Iterator[Any]:
    if batch.nbytes <= _MOST_PIECE:
        yield batch.serialize()
    elif len(batch) == 1:
        raise InputError(f"{path}: a row takes {batch.nbytes:,} bytes; at most {_MOST_PIECE:,} are allowed")
    else:
        for half in (batch.slice(0, len(batch) // 2), batch.slice(len(batch) // 2)):
            yield from _bounded(path, half)
