"""Cells of any container as Arrow arrays: the one conversion, which all others read.

What comes out is an array of text, whole numbers, floats, truth values, days or times, or, where a column holds cells
of several kinds, a dense union of such arrays: what a cell is never depends on the cells next to it. What has no such
value (bytes, lists, structures, objects of unknown classes) is not converted and not guessed at.

============================================== ============================================
cells                                          become
============================================== ============================================
text, whole numbers, floats, truth values      themselves
days, times, with a zone or without            themselves, times with a zone in UTC
categories, run-end encoding, sparse columns   what they stand for
decimals, times of day, durations              text, as pandas writes them into CSV
periods, intervals, UUIDs                      text, as pandas writes them into CSV
whole numbers of 128 bits                      themselves, or text beyond 64 bits
NumPy's numbers, dates and texts               as those of Python
None, NaN, NA, NaT                             null
============================================== ============================================
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Unread:
    """A cell, or a whole column, that has no value.

    Attributes
    ----------
    kind : str
        Its type, which tells nothing of what it holds.
    row : int or None
        The first such cell's, from 0; None where the column's own type says it.
    """

    kind: str
    row: int | None = None


@dataclass(frozen=True, slots=True)
class Pieces:
    """Cells as Arrow arrays of one type each.

    Attributes
    ----------
    found : sequence of (array, int array or None)
        Arrays, and which rows they are; None for all.
    rows : int
        How many cells there are. Rows that are in no array hold what has no value.
    unread : Unread or None
        The first cell that has no value.
    """

    found: Sequence[tuple[Any, Places | None]]
    rows: int
    unread: Unread | None = None

    def array(self) -> Any:
        """Return all cells as one array: null where a cell is in no piece, a dense union of several kinds."""
        if len(self.found) == 1 and self.found[0][1] is None:
            return self.found[0][0]
        known = [(cells, places) for cells, places in self.found if not pa.types.is_null(cells.type)]
        if not known:
            return pa.nulls(self.rows)
        if len(known) == 1:
            ((cells, places),) = known
            return cells.take(_inverse(places, self.rows))
        kinds, offsets = np.full(self.rows, len(known), np.int8), np.zeros(self.rows, np.int32)
        for kind, (cells, places) in enumerate(known):
            kinds[places], offsets[places] = kind, np.arange(len(cells))
        return pa.UnionArray.from_dense(
            pa.array(kinds), pa.array(offsets), [*(cells for cells, _ in known), pa.nulls(1)]
        )

    def placed(self, rows: Places) -> Self:
        """Return the same as pieces of a longer column, whose rows these cells are."""
        found = [(cells, rows if places is None else rows[places]) for cells, places in self.found]
        unread = self.unread
        if unread is not None and unread.row is not None:
            unread = Unread(unread.kind, int(rows[unread.row]))
        return type(self)(found, self.rows, unread)


def _inverse(places: Places | None, rows: int) -> Any:
    """Return for each row which cell of a piece it is, null where it is none."""
    chosen = np.full(rows, -1, np.int64)
    chosen[places] = np.arange(len(chosen) if places is None else len(places))
    return pa.array(chosen, mask=chosen < 0)


def pieces_of(column: Any) -> Pieces:
    """Return the cells of a column as Arrow arrays.

    Parameters
    ----------
    column : Arrow array or chunked array, column of pandas or polars, array (m,) of NumPy, or sequence of cells
    """
    if isinstance(column, list | tuple):
        return _of_cells(column)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.Array):
        return _of_arrow(column)
    if isinstance(column, np.ndarray):
        return _of_numpy(column)
    if hasattr(column, "__arrow_c_stream__") and not hasattr(column, "iloc"):
        return _of_stream(column)
    if hasattr(column, "iloc") or type(column).__module__.partition(".")[0] == "pandas":
        return _of_pandas(column)
    return _of_cells(list(column))


def _of_numpy(column: NDArray[Any]) -> Pieces:
    if column.ndim != 1:
        return Pieces([], len(column) if column.ndim else 0, Unread(f"array of {column.ndim} dimensions"))
    if column.dtype.kind == "M" and np.datetime_data(column.dtype)[0] not in ("D", "s", "ms", "us", "ns"):
        column = column.astype("datetime64[s]")
    if column.dtype.kind == "m" and np.datetime_data(column.dtype)[0] in ("D", "h", "m", "W"):
        column = column.astype("timedelta64[s]")
    if column.dtype != object:
        with suppress(pa.ArrowException):
            return _of_arrow(pa.array(column))
    return _of_cells(column.tolist() if column.dtype == object else list(column))


def _of_pandas(column: Any) -> Pieces:
    """Return the cells of a series, an index or an array of pandas."""
    kind = column.dtype
    if hasattr(kind, "categories") and hasattr(column, "cat"):
        column = column.cat
    if hasattr(column, "categories") and hasattr(column, "codes"):
        values, codes = pieces_of(column.categories), np.asarray(column.codes)
        if values.unread is not None:
            return Pieces([], len(codes), Unread(f"category of {values.unread.kind}"))
        return Pieces([(_taken(values.array(), pa.array(codes, mask=codes < 0)), None)], len(codes))
    if type(kind).__name__ == "SparseDtype":
        return pieces_of(np.asarray(column))
    if isinstance(kind, np.dtype) and kind.kind not in "biufmMO":
        return _of_cells(list(column))
    if kind != np.dtype(object):
        # Missing is what pandas calls missing, in a column of any type.
        with suppress(pa.ArrowException, TypeError, ValueError):
            array = pa.array(column, from_pandas=True)
            return pieces_of(array)
    return _of_cells(list(column.astype(object)))


def _of_stream(column: Any) -> Pieces:
    """Return the cells of a column of another library, such as polars, that gives an Arrow stream."""
    try:
        # As a table's column, whose field has the name of an extension that Arrow does not know.
        table = pa.table(column.to_frame()) if hasattr(column, "to_frame") else pa.table({"": pa.chunked_array(column)})
        named = table.schema.field(0)
        cells = named_extension(named, table.column(0))
        unsure = pa.types.is_fixed_size_binary(cells.type)
    except pa.ArrowException:
        cells, unsure = None, True
    # Numbers of 128 bits have no type in Arrow, and objects are addresses there.
    if unsure and hasattr(column, "to_list"):
        return _of_cells(column.to_list())
    return Pieces([], len(column), Unread(str(column.dtype))) if cells is None else pieces_of(cells)


_NOTHING = type(None)
_NUMPY = frozenset("biufmMU")


def _kind(cell: Any) -> Any:
    """Return what cells go into one Arrow array: their type; of times also whether they have a zone."""
    kind = type(cell)
    if kind is str or kind is int or kind is _NOTHING:
        return kind
    if kind.__name__ in ("NAType", "NaTType") or _is_nan(cell):
        return _NOTHING
    return (kind, cell.tzinfo is None) if isinstance(cell, datetime) else kind


def _is_nan(cell: Any) -> bool:
    if isinstance(cell, Decimal):
        # A signalling one must not be compared.
        return cell.is_nan()
    return isinstance(cell, (float, np.generic)) and bool(cell != cell)


def _of_cells(cells: Sequence[Any]) -> Pieces:
    kinds = list(map(_kind, cells))
    distinct = dict.fromkeys(kinds)
    found: list[tuple[Any, Places | None]] = []
    unread: Unread | None = None
    for kind in distinct:
        if len(distinct) == 1:
            piece = _of_one_kind(kind, cells)
        else:
            rows = np.array([row for row, one in enumerate(kinds) if one is kind or one == kind], np.int64)
            piece = _of_one_kind(kind, [cells[row] for row in rows.tolist()]).placed(rows)
        found += piece.found
        if piece.unread is not None and (unread is None or (piece.unread.row or 0) < (unread.row or 0)):
            unread = piece.unread
    return Pieces(found or ([] if cells else [(pa.nulls(0), None)]), len(cells), unread)


def _of_one_kind(kind: Any, cells: Sequence[Any]) -> Pieces:
    base = kind[0] if isinstance(kind, tuple) else kind
    array = _array(kind, base, cells)
    if array is not None:
        return _of_arrow(array)
    if not _has_value(base):
        return Pieces([], len(cells), Unread(base.__qualname__, 0))
    # One of them has no place in an array; the others have.
    alone = [(row, _array(kind, base, [cell])) for row, cell in enumerate(cells)]
    found = [(_of_arrow(array).found[0][0], np.array([row])) for row, array in alone if array is not None]
    lost = next((row for row, array in alone if array is None), None)
    return Pieces(
        found, len(cells), None if lost is None else Unread(f"{base.__qualname__} (not to be written as text)", lost)
    )


def _has_value(base: type) -> bool:
    return base is _NOTHING or _holds(base) or _is_written(base)


def _holds(base: type) -> bool:
    """Whether Arrow holds cells of a class as what they are."""
    if issubclass(base, np.generic):
        return np.dtype(base).kind in _NUMPY
    return issubclass(base, (str, bool, int, float, Decimal, date, timedelta))


def _is_written(base: type) -> bool:
    """Whether cells of a class are their text, as pandas writes it into CSV."""
    pandas = base.__module__.partition(".")[0] == "pandas" and base.__name__ in ("Period", "Interval")
    return pandas or issubclass(base, (time, uuid.UUID))


def _array(kind: Any, base: type, cells: Sequence[Any]) -> Any:
    """Return cells of one kind as an Arrow array, None where Arrow or text cannot hold them."""
    if base is _NOTHING:
        return pa.nulls(len(cells))
    if not _has_value(base):
        return None
    try:
        if issubclass(base, str):
            return pa.array(list(map(str.__str__, cells)), pa.string())
        if not _is_written(base):
            with suppress(pa.ArrowException, OverflowError, TypeError):
                # pandas' times have nanoseconds, which Arrow leaves out unless it is told.
                if isinstance(kind, tuple):
                    unit = "ns" if hasattr(base, "nanosecond") else "us"
                    return pa.array(cells, pa.timestamp(unit, None if kind[1] else "UTC"))
                if issubclass(base, timedelta):
                    return pa.array(cells, pa.duration("ns" if hasattr(base, "nanoseconds") else "us"))
                if issubclass(base, int) and base is not bool:
                    return pa.array(list(map(int, cells)), pa.int64())
                return pa.array(np.array(cells) if issubclass(base, np.generic) else cells)
            if len(cells) > 1:
                # Each is tried alone.
                return None
        return pa.array([str(cell) for cell in cells], pa.string())
    except (pa.ArrowException, UnicodeError, ValueError, OverflowError):
        return None


def _of_arrow(array: Any) -> Pieces:
    """Return an Arrow array as pieces: itself, or the parts of a union."""
    if not pa.types.is_union(array.type):
        plain = _plain(array)
        return Pieces([] if plain is None else [(plain, None)], len(array), None if plain is not None else _type(array))
    if array.offset:
        # Its parts would be those of the whole.
        array = array.take(pa.array(np.arange(len(array))))
    kinds = np.asarray(array.type_codes)
    offsets = np.asarray(array.offsets) if array.type.mode == "dense" else np.arange(len(array), dtype=np.int32)
    found: list[tuple[Any, Places | None]] = []
    for place in range(array.type.num_fields):
        rows = np.flatnonzero(kinds == array.type.type_codes[place])
        part = _plain(array.field(place).take(pa.array(offsets[rows])))
        if part is None:
            return Pieces([], len(array), _type(array))
        if len(rows):
            found.append((part, rows))
    return Pieces(found or [(pa.nulls(0), None)], len(array))


def _type(array: Any) -> Unread:
    kind = array.type
    return Unread(str(getattr(kind, "extension_name", None) or kind)[:60])


_FREQUENT = frozenset({pa.string(), pa.int64(), pa.float64()})


def _plain(array: Any) -> Any:
    """Return an array of text, whole numbers, floats, truth values, days or times; None of what has no value."""
    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        known = _EXTENSIONS.get(kind.extension_name)
        # A file says what its own types are, and may say nonsense.
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            return None if known is None else known[1](array.storage, kind)
        return None
    if kind in _FREQUENT:
        return array
    if types.is_dictionary(kind):
        values = _plain(array.dictionary)
        return None if values is None else _taken(values, array.indices)
    if types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if types.is_decimal(kind) or types.is_time(kind):
        return array.cast(pa.string())
    if types.is_duration(kind):
        return pa.array([_duration(one, kind.unit) for one in array.cast(pa.int64()).to_pylist()], pa.string())
    if types.is_timestamp(kind):
        return array if kind.tz is None else array.cast(pa.timestamp(kind.unit, "UTC"))
    if types.is_string_view(kind):
        # Little is implemented for it.
        return array.cast(pa.string())
    text = types.is_string(kind) or types.is_large_string(kind)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return array if text or number or types.is_date(kind) or types.is_null(kind) else None


def _taken(array: Any, places: Any) -> Any:
    return pa.nulls(len(places)) if pa.types.is_null(array.type) else array.take(places)


def _periods(storage: Any, kind: Any) -> Any:
    import pandas as pd

    frequency = json.loads(kind.__arrow_ext_serialize__())["freq"]
    return _each_number(storage, lambda ordinal: str(pd.Period(ordinal=ordinal, freq=frequency)))


def _intervals(storage: Any, kind: Any) -> Any:
    import pandas as pd

    closed = json.loads(kind.__arrow_ext_serialize__())["closed"]
    ends = zip(storage.field("left").to_pylist(), storage.field("right").to_pylist(), strict=True)
    known = storage.is_valid().to_pylist()
    texts = [
        str(pd.Interval(low, high, closed)) if there and low is not None else None
        for there, (low, high) in zip(known, ends, strict=True)
    ]
    return pa.array(texts, pa.string())


def _each_number(numbers: Any, function: Callable[[int], str]) -> Any:
    coded = numbers.dictionary_encode()
    return pa.array([function(one) for one in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)


def _uuids(storage: Any, _: Any) -> Any:
    return pa.array([None if one is None else str(uuid.UUID(bytes=one)) for one in storage.to_pylist()], pa.string())


_EXTENSIONS: Mapping[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "pandas.period": (pa.string(), _periods),
    "pandas.interval": (pa.string(), _intervals),
    "arrow.uuid": (pa.string(), _uuids),
    "arrow.bool8": (pa.bool_(), lambda storage, _: storage.cast(pa.bool_())),
    "arrow.json": (pa.string(), lambda storage, _: storage),
}
"""Arrow's extension types whose values are known, by name: what they become, and how, from storage and type."""


def extension_of(field: Any) -> str | None:
    """Return the name of the extension type of a field, also where Arrow has not recognised it; None of others."""
    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    name = (field.metadata or {}).get(b"ARROW:extension:name")
    return None if name is None else name.decode(errors="replace")


def extended_type(name: str) -> Any:
    """Return what cells of an extension type become, None where that is not known."""
    return _EXTENSIONS[name][0] if name in _EXTENSIONS else None


class _Unknown(pa.ExtensionType):  # type: ignore[misc]  # Arrow has no types
    """An extension that Arrow knows by its name alone: what stores its values is not what they mean."""

    def __init__(self, storage: Any, name: str, described: bytes) -> None:
        self._described = described
        super().__init__(storage, name)

    def __arrow_ext_serialize__(self) -> bytes:
        return self._described


def named_extension(field: Any, column: Any) -> Any:
    """Return a column under the extension that its field names, where Arrow has not recognised it."""
    name = extension_of(field)
    if name is None or isinstance(field.type, pa.BaseExtensionType):
        return column
    kind = _Unknown(field.type, name, field.metadata.get(b"ARROW:extension:metadata", b""))
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.ExtensionArray.from_storage(kind, array)


_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def _duration(length: int | None, unit: str) -> str | None:
    """Return how pandas writes a duration."""
    if length is None:
        return None
    seconds, fraction = divmod(length, 10 ** _UNITS[unit])
    day, second = divmod(seconds, 24 * 3600)
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{day} days {clock}.{fraction:0{_UNITS[unit]}d}" if fraction else f"{day} days {clock}"
