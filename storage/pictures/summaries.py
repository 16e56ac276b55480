"""Images as few numbers that do not depend on the stored side length, to recognise the images."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.pictures.declaration import Pictures

_CELLS = 4


def summaries_of(declared: Pictures) -> Callable[[Any], NDArray[np.float32]] | None:
    """Return what gives the mean of each sixteenth of images; None for sides that do not divide into four.

    Means of areas are means of means of their parts, so that of an image brought to 32 pixels and to 64 they are equal
    up to the rounding of float32, which patterns forgive (:func:`storage.fingerprints.row_patterns`).
    """
    if declared.side % _CELLS:
        return None
    return partial(_summaries, declared)


def _summaries(declared: Pictures, features: Any) -> NDArray[np.float32]:
    """Return the means of images' cells, (m, 16) or (m, 48)."""
    part = declared.side // _CELLS
    cells = np.asarray(features, dtype=np.float64).reshape(len(features), -1, _CELLS, part, _CELLS, part)
    return np.asarray(cells.mean(axis=(3, 5)).reshape(len(features), -1), dtype=np.float32)
