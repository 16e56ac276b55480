"""Numbers of a table as the numbers of public bins, for counting where they lie before any range is declared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.columns.column import as_numbers
from storage.schema import Schema

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


def encode_bins(column: Any, layout: Schema) -> NDArray[np.float64]:
    """Return the bin of each cell, (m, 1); -1 for what is no number."""
    cells = column.to_pylist() if hasattr(column, "to_pylist") else column
    if layout.decimal != ".":
        exchanged = str.maketrans(".,", ",.")
        cells = [cell.translate(exchanged) if isinstance(cell, str) else cell for cell in cells]
    return bins_of(as_numbers(cells))[:, None]
