"""Slopes of many rows' losses at once, class after class in memory; a loss that has compiled code enters it here."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from dpalgos.arrays import Floats
from dpalgos.losses import ScoreLoss, Softmax


@singledispatch
def write_slopes(loss: ScoreLoss, scores: Floats, targets: NDArray[np.float32], start: int) -> None:
    """Replace scores (K, m) by the loss's slopes; what ``@write_slopes.register`` adds may differ in the last bits.

    Parameters
    ----------
    loss : ScoreLoss
    scores : array (K, m)
        Overwritten.
    targets : array (K, n) of float32
        Those of the rows are the columns from ``start`` on.
    start : int
    """
    _write(loss, scores, targets, start)


@write_slopes.register
def _(loss: Softmax, scores: Floats, targets: NDArray[np.float32], start: int) -> None:
    if len(scores) == 1:
        _write(loss, scores, targets, start)
        return
    from dpalgos import _compiled_exponentials

    _compiled_exponentials.write_slopes(scores, targets, start)


def _write(loss: ScoreLoss, scores: Floats, targets: NDArray[np.float32], start: int) -> None:
    own = targets[:, start : start + scores.shape[1]].astype(np.float64)
    scores[:] = loss.slope(scores.T, own.T).T
