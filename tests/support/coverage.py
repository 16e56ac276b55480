"""How often simulated margins hold, and how wide they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.rows import Floats


@dataclass(frozen=True)
class Held:
    """How often margins held a number: of all runs and of those in which it was shown; how wide they are there.

    Attributes
    ----------
    runs, held : int
    shown, held_of_shown : int
        Runs in which the number was measured, and in how many of these the margin held.
    width : float
        Median width of the margins that are shown.
    spread : float
        Width of the central 95 % of the estimates that are shown.
    """

    runs: int
    held: int
    shown: int
    held_of_shown: int
    width: float
    spread: float

    @classmethod
    def of(cls, truth: float | Floats, limits: Floats, shown: NDArray[np.bool_], values: Floats) -> Held:
        """Return it of margins (runs, 2) of a number, or of one of each run, and of estimates among those shown."""
        near = 1e-9 * (1.0 + np.abs(np.asarray(truth, dtype=np.float64)))
        holds = (limits[:, 0] - near <= truth) & (truth <= limits[:, 1] + near)
        said = len(values) > 0
        return cls(
            runs=len(limits),
            held=int(holds.sum()),
            shown=int(shown.sum()),
            held_of_shown=int(holds[shown].sum()),
            width=float(np.median(np.ptp(limits[shown], axis=1))) if said else math.nan,
            spread=float(np.subtract(*np.quantile(values, [0.975, 0.025]))) if said else math.nan,
        )

    @property
    def enough(self) -> bool:
        return all(held >= least(runs) for held, runs in ((self.held, self.runs), (self.held_of_shown, self.shown)))


def least(runs: int) -> float:
    """0.95 less six standard deviations: 9,369 of 10,000."""
    return 0.95 * runs - 6.0 * math.sqrt(runs * 0.95 * 0.05)
