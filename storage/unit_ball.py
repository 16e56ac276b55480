"""Rows in the unit ball: the rounding to float32 that keeps their norms at most 1."""

import numpy as np
from numpy.typing import NDArray

# Numbers that are brought into the unit ball at a time.
_PIECE_ENTRIES = 1 << 16
# Numbers that NumPy adds up at once.
_SUMMED = 8192


def into_unit_ball(features: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round rows to float32 such that their norms, taken in float64, are at most 1.

    Total: rows that are not finite become zero. Rounding moves a row's norm by up to one part in 2²⁴, in either
    direction, so the norm is checked after the round trip and longer rows are scaled once more.
    """
    stored = np.empty(features.shape, dtype=np.float32)
    # What is made on the way is several times as large as the rows.
    rows = max(16, _PIECE_ENTRIES // max(1, features.shape[1]))
    for start in range(0, len(features), rows):
        stored[start : start + rows] = _rounded(features[start : start + rows])
    return stored


def _norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's norm, with the bits that it has beside any others: NumPy's own stretches cross wider rows."""
    parts = (rows[:, start : start + _SUMMED] for start in range(0, rows.shape[1], _SUMMED))
    return np.sqrt(sum((np.einsum("ij,ij->i", part, part) for part in parts), np.zeros(len(rows))))


def _rounded(features: NDArray[np.float64]) -> NDArray[np.float32]:
    rows = np.array(features, dtype=np.float64, order="C")
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    # A row with an entry above 1 is outside anyway; dividing by that entry first keeps the square from overflowing.
    rows /= np.maximum(np.abs(rows).max(axis=1, initial=0.0), 1.0)[:, None]
    rows /= np.maximum(_norms(rows), 1.0)[:, None]
    stored = rows.astype(np.float32)
    shrink = 2.0**-23
    while True:
        back = stored.astype(np.float64)
        norms = _norms(back)
        outside = norms > 1.0
        if not outside.any():
            return stored
        stored[outside] = (back[outside] * ((1.0 - shrink) / norms[outside, None])).astype(np.float32)
        shrink *= 2.0
