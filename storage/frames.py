"""Rows of any frame as Arrow batches of canonical cells, column by column, as they are asked for.

Everything that takes rows in memory takes them through :func:`frame_of`: training, descriptions, predictions, the
estimators, logged models, a served model's JSON. Only the columns that the caller names are converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.cells import absent, column_name, numbers
from storage.errors import InputError
from storage.raw_cells import named_extension, pieces_of

TAKEN = "a pandas or polars data frame, an Arrow table, a mapping of column to cells, or a list of records"
"""What is a frame, for messages."""
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Rows in memory under the canonical names of their columns (:func:`storage.cells.column_name`).

    Attributes
    ----------
    names : tuple of str
        In order; a name that occurs twice is refused where it is asked for.
    rows : int
    column : callable
        Returns the column at a place as its container has it.
    index : object
        What a pandas frame calls its rows; None of others.
    hint : callable
        Returns the hint for an unknown column name.
    """

    names: tuple[str, ...]
    rows: int
    column: Callable[[int], Any]
    index: Any = None
    hint: Callable[[str], str] = field(default=lambda name: "")

    def require(self, names: Sequence[str]) -> None:
        """Raise an InputError that names the first column that is missing or there twice."""
        for name in names:
            if (count := self.names.count(name)) != 1:
                known = ", ".join(self.names[:_MOST_NAMED]) + (", …" if len(self.names) > _MOST_NAMED else "")
                what = "occurs twice" if count else "is missing"
                raise InputError(f"column {name!r} {what}; the rows have: {known}{self.hint(name)}")

    def batch(self, names: Sequence[str]) -> pa.RecordBatch:
        """Return the cells of some columns as arrays of :mod:`storage.raw_cells`.

        Raises
        ------
        InputError
            For a column that is missing, there twice or of another length, and for one whose cells have no value,
            naming the column and the type.
        """
        self.require(names)
        return pa.RecordBatch.from_arrays([self._cells(name) for name in names], names=list(names))

    def _cells(self, name: str) -> Any:
        found = pieces_of(self.column(self.names.index(name)))
        if (unread := found.unread) is not None:
            where = (
                f"column {name!r} has" if unread.row is None else f"row {unread.row + 1}, column {name!r} has a cell of"
            )
            raise InputError(
                f"{where} type {unread.kind}, which is not a text, number, truth value, day or time; convert "
                f"it, or give the column the type ignore"
            )
        if found.rows != self.rows:
            raise InputError(f"column {name!r} has {found.rows} cells for {self.rows} rows; give one cell per row")
        return found.array()

    def objects(self, name: str) -> list[Any]:
        """Return a column as Python objects, for values that are not table cells, such as the bytes of files."""
        self.require([name])
        column = self.column(self.names.index(name))
        return list(column.to_pylist() if hasattr(column, "to_pylist") else column)


def frame_of(rows: Any) -> Frame:
    """Return rows in memory as a frame; nothing is converted yet.

    Parameters
    ----------
    rows : frame
        A pandas or polars data frame, an Arrow table or record batch, an object that gives an Arrow stream, a mapping
        of column to cells, a sequence of mappings (records), a structured array of NumPy, or a :class:`Frame`.

    Raises
    ------
    InputError
        For other objects.
    """
    if (frame := find_frame(rows)) is not None:
        return frame
    way = "; collect() it first" if hasattr(rows, "collect") else ""
    raise InputError(f"rows have the type {type(rows).__name__}; give {TAKEN}, with the columns of the table{way}")


def number_rows(rows: Any) -> Any:
    """Return a frame of numbers as an array (m, p) of float64, columns in order; rows without names as they are.

    Truth values are 1 and 0, missing cells NaN.

    Raises
    ------
    InputError
        For a column that holds something else, naming it and its type.
    """
    frame = find_frame(rows)
    if frame is None:
        return rows
    columns = [_numbers(name, cells) for name, cells in _each_column(frame)]
    return np.stack(columns, axis=1) if columns else np.empty((frame.rows, 0))


def find_frame(rows: Any) -> Frame | None:
    """Return rows in memory as a frame, None where they have no named columns."""
    if isinstance(rows, Frame):
        return rows
    return next((frame for opened in _OPENERS if (frame := opened(rows)) is not None), None)


def _each_column(frame: Frame) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a frame by place: an array of numbers may have the same name twice."""
    for place, name in enumerate(frame.names):
        one = Frame(names=(name,), rows=frame.rows, column=partial(_at, frame, place))
        yield name, one.batch([name]).column(0)


def _at(frame: Frame, place: int, _: int) -> Any:
    return frame.column(place)


def _numbers(name: str, cells: Any) -> NDArray[np.float64]:
    found = np.full(len(cells), np.nan)
    for piece, rows in pieces_of(cells).found:
        found[slice(None) if rows is None else rows] = _of_piece(piece)
    unread = np.isnan(found) & ~absent(cells)
    if unread.any():
        row = int(np.argmax(unread))
        raise InputError(
            f"row {row + 1}, column {name!r}: the cell is not a number; declare columns of texts, days and times: "
            "give schema=FILE"
        )
    return found


def _of_piece(piece: Any) -> NDArray[np.float64]:
    if pa.types.is_boolean(piece.type):
        piece = piece.cast(pa.int8())
    if pa.types.is_integer(piece.type) or pa.types.is_floating(piece.type):
        # As NumPy holds them, which numbers without a schema come in.
        return np.asarray(piece.to_numpy(zero_copy_only=False), dtype=np.float64)
    return numbers(piece)


def _pandas(rows: Any) -> Frame | None:
    if not (hasattr(rows, "iloc") and hasattr(rows, "columns")):
        return None
    levels = [column_name(name) for name in rows.index.names if name is not None]

    def hint(name: str) -> str:
        return f"; {name!r} is the index: call reset_index()" if name in levels else ""

    names = tuple(map(column_name, rows.columns))
    return Frame(names=names, rows=len(rows), column=lambda place: rows.iloc[:, place], index=rows.index, hint=hint)


def _polars(rows: Any) -> Frame | None:
    if not (hasattr(rows, "get_column") and hasattr(rows, "columns") and hasattr(rows, "height")):
        return None
    found = list(rows.columns)
    return Frame(
        names=tuple(map(column_name, found)), rows=rows.height, column=lambda place: rows.get_column(found[place])
    )


def _arrow(rows: Any) -> Frame | None:
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        if not hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "dtype") or isinstance(rows, pa.ChunkedArray):
            return None
        # A stream is read once.
        rows = pa.table(rows)

    def column(place: int) -> Any:
        return named_extension(rows.schema.field(place), rows.column(place))

    return Frame(names=tuple(map(column_name, rows.schema.names)), rows=rows.num_rows, column=column)


def _mapping(rows: Any) -> Frame | None:
    # A sparse array of SciPy is a mapping, too.
    if not isinstance(rows, Mapping) or hasattr(rows, "shape"):
        return None
    keys = list(rows)

    def column(place: int) -> Any:
        cells = rows[keys[place]]
        if isinstance(cells, str | bytes | Mapping | Set) or not hasattr(cells, "__len__"):
            what = f"column {column_name(keys[place])!r} is a {type(cells).__name__}"
            raise InputError(f"{what}; give a list or an array of cells")
        return cells

    rows_of = [len(cells) for cells in rows.values() if hasattr(cells, "__len__")]
    return Frame(names=tuple(map(column_name, keys)), rows=rows_of[0] if rows_of else 0, column=column)


def _records(rows: Any) -> Frame | None:
    if not isinstance(rows, list | tuple) or not rows or not all(isinstance(row, Mapping) for row in rows):
        return None
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return Frame(
        names=tuple(map(column_name, keys)),
        rows=len(rows),
        column=lambda place: [row.get(keys[place]) for row in rows],
    )


def _structured(rows: Any) -> Frame | None:
    if not isinstance(rows, np.ndarray) or rows.dtype.names is None or rows.ndim != 1:
        return None
    names = rows.dtype.names
    return Frame(names=tuple(map(column_name, names)), rows=len(rows), column=lambda place: rows[names[place]])


_OPENERS: Sequence[Callable[[Any], Frame | None]] = (_pandas, _polars, _arrow, _mapping, _records, _structured)
"""What opens each kind of container, in the order in which they are asked."""
