"""Cells coded: numbers clipped to a range, and texts as places in a list of values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.columns.column import Encoded, Floats
from storage.recoding import Recoding


def clip(numbers: Floats, low: float, high: float) -> Encoded:
    """Return numbers clipped to a range; what is none cannot be clipped."""
    outside = ~((numbers >= low) & (numbers <= high))
    if not outside.any():
        return Encoded(numbers[:, None], outside, outside)
    unclippable = np.isnan(numbers)
    return Encoded(np.where(unclippable, low, np.clip(numbers, low, high))[:, None], outside, unclippable)


def codes_of(texts: pa.StringArray, values: Sequence[str]) -> NDArray[np.int64]:
    """Return which of the declared values each canonical text is, -1 where it is none."""
    found = pc.index_in(texts, pa.array(values, pa.string()), skip_nulls=True).fill_null(-1)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.int64)


def recoded(texts: pa.StringArray, recoding: Recoding, values: Sequence[str]) -> NDArray[np.int64]:
    """Return which of the values each canonical text means, -1 where it means none."""
    coded, places = texts.dictionary_encode(), recoding.places(values)
    found = [places.get(text, -1) for text in coded.dictionary.to_pylist()]
    rows: NDArray[np.int32] = coded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    return np.array([*found, -1], dtype=np.int64)[rows]


def counted(texts: pa.StringArray) -> dict[str, int]:
    """Return how many cells are each canonical text."""
    return {each["values"]: each["counts"] for each in texts.drop_null().value_counts().to_pylist()}


def one_hot(codes: NDArray[np.int64], width: int) -> Floats:
    """Return one feature a value; zeros for the code -1."""
    values = np.zeros((len(codes), width))
    rows = np.flatnonzero(codes >= 0)
    values[rows, codes[rows]] = 1.0
    return values
