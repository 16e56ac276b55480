"""Texts of a table as their bytes, for finding out which of them are frequent before any category is declared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.schema import Schema
from storage.source import canonical_label

WIDTH = 32
"""Bytes of a text that count, in UTF-8; longer ones that begin alike are one."""


def text_of(key: NDArray[np.float64]) -> str:
    """Return the text of a key's bytes; what was cut within a character loses it."""
    return bytes(key.astype(np.uint8)).rstrip(b"\0").decode("utf-8", errors="ignore")


def encode_keys(column: Any, layout: Schema) -> NDArray[np.float64]:
    """Return the bytes of each cell's text as 255ths, (m, WIDTH); zeros where a cell is missing."""
    cells = column.to_pylist() if hasattr(column, "to_pylist") else column
    keys = np.zeros((len(cells), WIDTH), dtype=np.uint8)
    for row, cell in enumerate(cells):
        text = "" if cell is None or cell != cell else canonical_label(cell)
        if text not in layout.missing:
            data = text.encode()[:WIDTH]
            keys[row, : len(data)] = np.frombuffer(data, dtype=np.uint8)
    return keys / 255.0
