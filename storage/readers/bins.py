"""Numbers of a table as the numbers of public bins, for counting where they lie before any range is declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.columns.column import as_numbers
from storage.errors import InputError
from storage.readers.files import require_file
from storage.readers.raw import raw_rows
from storage.readers.registry import register_reader
from storage.schema import Schema, parse_schema, read_declaration
from storage.source import Block, ReadOptions, Source

__all__ = ["BINS", "binned_columns", "bins_of", "range_of_bins", "read_bins"]

_SMALLEST, _LARGEST = -10, 40
_ZERO = _LARGEST - _SMALLEST + 1
BINS = 2 * _ZERO + 1
"""Bins of a number: powers of two from 2^-10 to 2^40 of either sign, and one for what is nearer to 0."""
_ROWS = 4096
# Nothing is to be predicted: all rows are of one class.
_CLASSES = ("a row", "no row")


def bins_of(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bin of each number, ascending with it; -1 for what is no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.clip(np.floor(np.log2(np.abs(numbers))), _SMALLEST - 1, _LARGEST) - _SMALLEST + 1
    return np.where(np.isnan(numbers), -1.0, _ZERO + np.sign(numbers) * np.nan_to_num(steps))


def range_of_bins(first: int, last: int) -> tuple[float, float]:
    """Return the ends of some bins in a row; the bin around 0 ends at 0 where it is the first or the last."""
    low = 0.0 if first == _ZERO else _edge(first, outer=first < _ZERO)
    high = 0.0 if last == _ZERO > first else _edge(last, outer=last > _ZERO) if last != _ZERO else 2.0**_SMALLEST
    return low, high


def _edge(place: int, *, outer: bool) -> float:
    """Return the end of a bin that is further from 0, or the nearer one."""
    exponent = abs(place - _ZERO) - 1 + _SMALLEST
    return float(np.sign(place - _ZERO)) * 2.0 ** (exponent + outer)


@dataclass(frozen=True, slots=True)
class _Bins:
    path: Path
    layout: Schema
    columns: tuple[str, ...]

    def __iter__(self) -> Iterator[Block]:
        for rows in raw_rows(self.path, self.layout, _ROWS):
            for name in self.columns:
                if name not in rows.columns:
                    raise InputError(f"{self.path} has no column {name!r}; it has: {', '.join(rows.columns)}")
            bins = [bins_of(as_numbers(self._cells(rows.columns[name]))) for name in self.columns]
            lines = np.asarray(rows.lines, dtype=np.int64)
            yield Block(
                np.stack(bins, axis=1), np.full(len(lines), _CLASSES[0]), lines, place=str(self.path), unit=rows.unit
            )

    def _cells(self, column: Any) -> Sequence[Any]:
        cells = column.to_pylist() if hasattr(column, "to_pylist") else column
        exchanged = str.maketrans(".,", ",.")
        texts = self.layout.decimal != "."
        return [cell.translate(exchanged) if texts and isinstance(cell, str) else cell for cell in cells]


def binned_columns(draft: str | Path) -> tuple[str, ...]:
    """Return the columns of a drafted schema that are numbers.

    Raises
    ------
    InputError
        If there are none, or it is no draft.
    """
    given = read_declaration(draft)
    found = given.get("columns") if isinstance(given, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) and "name" in one for one in found):
        raise InputError(f"{draft} is not a schema: it must be a mapping with a list of columns, each with a name")
    names = tuple(str(column["name"]) for column in found if column.get("type") == "numeric")
    if not names:
        raise InputError(f"{draft} has no column of type numeric, whose range could be drawn")
    return names


@register_reader("table-bins", takes=("schema",))
def read_bins(path: str | Path, options: ReadOptions) -> Source:
    """Read the numeric columns of a drafted schema as public bins: what private ranges are drawn from.

    Parameters
    ----------
    path : path
        CSV or Parquet. Cells that are no number, and rows of another number of cells, lie in no bin: nothing here
        raises because of what rows contain, but for bytes that cannot be read.
    options : ReadOptions
        ``schema`` names the draft; of its columns those of type numeric count, with a range or without.
    """
    if options.schema is None:
        raise InputError("format table-bins needs a drafted schema (--schema FILE.yaml)")
    columns = binned_columns(options.schema)
    given = read_declaration(options.schema)
    if len(given["columns"]) < 2:
        raise InputError(f"{options.schema} has one column; a table has a label and something to predict it from")
    # Of the draft the layout of the text counts; what its columns are is not declared yet.
    names = [{"name": column["name"], "type": "ignore"} for column in given["columns"]]
    names[0]["type"] = "boolean"
    names[-1] |= {"type": "label", "range": [0, 1]}
    layout = parse_schema({**given, "columns": names}, str(options.schema))
    return Source(
        format="table-bins",
        place=str(path),
        dimension=len(columns),
        classes=_CLASSES,
        parts={"train": _Bins(require_file(path), layout, columns)},
    )
