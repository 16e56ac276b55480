"""Numbers of a table as the numbers of public bins, for counting where they lie before any range is declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.columns.column import as_numbers
from storage.readers.drafts import drafted_source
from storage.readers.registry import register_reader
from storage.schema import Schema
from storage.source import ReadOptions, Source

__all__ = ["BINS", "bins_of", "range_of_bins", "read_bins"]

_SMALLEST, _LARGEST = -10, 40
_ZERO = _LARGEST - _SMALLEST + 1
BINS = 2 * _ZERO + 1
"""Bins of a number: powers of two from 2^-10 to 2^40 of either sign, and one for what is nearer to 0."""


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


def _bins(column: Any, layout: Schema) -> NDArray[np.float64]:
    cells = column.to_pylist() if hasattr(column, "to_pylist") else column
    if layout.decimal != ".":
        exchanged = str.maketrans(".,", ",.")
        cells = [cell.translate(exchanged) if isinstance(cell, str) else cell for cell in cells]
    return bins_of(as_numbers(cells))[:, None]


@register_reader("table-bins", takes=("schema",))
def read_bins(path: str | Path, options: ReadOptions) -> Source:
    """Read the numeric columns of a drafted schema as public bins: what private ranges are drawn from.

    Parameters
    ----------
    path : path
        CSV or Parquet. Cells that are no number, and rows of another number of cells, lie in no bin.
    options : ReadOptions
        ``schema`` names the draft; of its columns those of type numeric count, with a range or without.
    """
    return drafted_source("table-bins", path, options, kind="numeric", width=1, encode=_bins)
