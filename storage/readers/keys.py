"""Texts of a table as their bytes, for finding out which of them are frequent before any category is declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.readers.drafts import drafted_source
from storage.readers.registry import register_reader
from storage.schema import Schema
from storage.source import ReadOptions, Source, canonical_label

__all__ = ["WIDTH", "read_keys", "text_of"]

WIDTH = 32
"""Bytes of a text that count, in UTF-8; longer ones that begin alike are one."""


def text_of(key: NDArray[np.float64]) -> str:
    """Return the text of a key's bytes; what was cut within a character loses it."""
    return bytes(key.astype(np.uint8)).rstrip(b"\0").decode("utf-8", errors="ignore")


def _keys(column: Any, layout: Schema) -> NDArray[np.float64]:
    cells = column.to_pylist() if hasattr(column, "to_pylist") else column
    keys = np.zeros((len(cells), WIDTH), dtype=np.uint8)
    for row, cell in enumerate(cells):
        text = "" if cell is None or cell != cell else canonical_label(cell)
        if text not in layout.missing:
            data = text.encode()[:WIDTH]
            keys[row, : len(data)] = np.frombuffer(data, dtype=np.uint8)
    return keys / 255.0


@register_reader("table-keys", takes=("schema",))
def read_keys(path: str | Path, options: ReadOptions) -> Source:
    """Read the categories of a drafted schema as bytes: what private lists of values are drawn from.

    Parameters
    ----------
    path : path
        CSV or Parquet. Missing cells, and rows of another number of cells, hold no text.
    options : ReadOptions
        ``schema`` names the draft; of its columns those of type category count, with values or without.
    """
    return drafted_source("table-keys", path, options, kind="category", width=WIDTH, encode=_keys)
