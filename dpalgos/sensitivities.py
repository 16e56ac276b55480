"""What algorithms say of their sensitivity, and how much of it a pair of neighbours attains."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from dpalgos.guarantees import Setting
from dpalgos.neighbouring import NeighbouringPair
from dpalgos.rows import Floats, Rows


@runtime_checkable
class Calibrated(Protocol):
    """An algorithm whose noise is calibrated to the sensitivity of one statistic of the rows.

    ``sensitivity`` is the supremum over neighbours under the relation of the setting, null records included, in the
    units of ``statistic``; rounding to a grid, where there is any, is added by the noise's law.
    """

    measured: ClassVar[str]
    """The statistic and the norm in which it moves, for people."""
    norm: ClassVar[int]
    """Order of that norm, 1 or 2."""

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the statistic, at most."""
        ...

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the exact statistic of one party's rows, without noise: for made-up rows, never for release."""
        ...

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the neighbours that the proof says are worst."""
        ...


def moved(algorithm: Calibrated, setting: Setting, pair: NeighbouringPair) -> float:
    """Return how far the statistic moves from one neighbour to the other, in its norm.

    Parameters
    ----------
    algorithm : Calibrated
    setting : Setting
    pair : NeighbouringPair
        Of made-up rows; the other parties' part of the statistic is the same on both sides.
    """
    difference = algorithm.statistic(pair.left, setting) - algorithm.statistic(pair.right, setting)
    return float(np.linalg.norm(difference.ravel(), ord=algorithm.norm))


def attained(algorithm: Calibrated, setting: Setting) -> float:
    """Return the share of the sensitivity by which the algorithm's own pair of neighbours moves its statistic."""
    return moved(algorithm, setting, algorithm.neighbouring_pair(setting)) / algorithm.sensitivity(setting)
