"""Checks of the rows that a reader gives: finite features and declared labels, refused by their place."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from storage.cells import canonical_texts, numbers
from storage.columns.coding import codes_of
from storage.columns.declarations import shown
from storage.errors import InputError
from storage.hidden_cells import shown_cell
from storage.rowfiles import NULL_CLASS, Features
from storage.source import Block, Source


def finite_features(block: Block, source: Source, part: str, before: int) -> Features:
    """Return a block's features as float32.

    Parameters
    ----------
    block : Block
    source : Source
    part : {"train", "test"}
    before : int
        Rows of the part that came before the block.

    Raises
    ------
    InputError
        For features of another width or that are not finite in float32, naming the row, the column and the value.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        features = block.features.astype(np.float32)
    if features.ndim != 2 or features.shape != (len(block.labels), source.dimension):
        raise InputError(
            f"{block.place or source.place} has shape {features.shape} for {len(block.labels)} rows; expected "
            f"{source.dimension} features per row, check --dimension"
        )
    packed = sparse.issparse(features)
    numbers = features.data if packed else features
    if np.isfinite(numbers).all():
        return features
    if packed:
        entry = int(np.argmin(np.isfinite(numbers)))
        row = int(np.searchsorted(features.indptr, entry, side="right")) - 1
        column, value = int(features.indices[entry]), numbers[entry]
    else:
        row, column = (int(place) for place in np.argwhere(~np.isfinite(numbers))[0])
        value = block.features[row, column]
    raise InputError(
        f"{_where(block, source, part, row, before)}: feature {column + 1} is {shown_cell(value)}; features must be "
        "finite (at most 3.4e38); remove or correct the row"
    )


def declared_labels(block: Block, source: Source, part: str, before: int) -> NDArray[Any]:
    """Return a block's labels as they are stored; those of null records are ignored.

    Parameters
    ----------
    block, source, part, before
        As for :func:`finite_features`.

    Raises
    ------
    InputError
        For a label that is not declared, naming the row and the value.
    """
    if block.null is not None:
        kept = ~block.null
        real = source.label_range is not None
        labels = np.full(len(kept), np.nan) if real else np.full(len(kept), NULL_CLASS, dtype=np.int32)
        labels[kept] = declared_labels(replace(block.kept(kept), null=None), source, part, before)
        return labels
    if source.label_range is None:
        return _class_indices(block, source, part, before)
    return _real_labels(block, source, part, before, source.label_range)


def _class_indices(block: Block, source: Source, part: str, before: int) -> NDArray[np.int32]:
    raw = np.asarray(block.labels)
    texts = canonical_texts(raw if raw.dtype != object else raw.tolist())
    indices = codes_of(texts, source.classes).astype(np.int32)
    if (indices < 0).any():
        row = int(np.argmin(indices))
        label = shown_cell(texts[row].as_py() or str(raw[row]))
        raise InputError(
            f"{_where(block, source, part, row, before)}: label {label} is not among the classes "
            f"{shown(source.classes)}; correct the row or declare it with --classes"
        )
    return indices


def _real_labels(
    block: Block, source: Source, part: str, before: int, bounds: tuple[float, float]
) -> NDArray[np.float64]:
    raw = np.asarray(block.labels)
    labels = numbers(raw if raw.dtype != object else raw.tolist())
    low, high = bounds
    good = (labels >= low) & (labels <= high)
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(
            f"{_where(block, source, part, row, before)}: label {shown_cell(raw[row])} is outside the declared "
            f"range [{low:g}, {high:g}]; correct the row or declare a wider --label-range"
        )
    return labels


def _where(block: Block, source: Source, part: str, row: int, before: int) -> str:
    if block.lines is not None:
        return f"{block.place or source.place}, {block.unit} {int(block.lines[row])}"
    return f"{block.place or source.place}, {part} row {before + row + 1}"
