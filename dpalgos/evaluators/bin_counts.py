"""Noisy counts of public bins, column by column: where a private table's numbers lie before it has ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.evaluators.noisy_sums import LaplaceSums
from dpalgos.guarantees import Setting
from dpalgos.neighbouring import NeighbouringPair, one_row_apart
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, null_records


@register("evaluators", "bin-counts")
@dataclass(frozen=True, kw_only=True)
class BinCounts(LaplaceSums):
    """Count, for each column, how many rows lie in each of some public bins, and add discrete Laplace noise.

    A row's features are the numbers of its bins, one a column; what is no such number is counted nowhere.

    Guarantee
    ---------
    epsilon-DP, exact. A row is counted at most once in each of d columns: replace-one takes one count away and adds
    one in each, an l1 change of at most 2 d; a null record is not counted, so replace-special changes at most d counts
    by one. Discrete Laplace noise of scale ``sensitivity / epsilon`` on each count.

    Parameters
    ----------
    budget : PureEpsilon
    bins : int
        At least 2.
    columns : int or None
        The first so many features; all where None.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1.
    """

    bins: int = 2
    columns: int | None = None
    measured: ClassVar[str] = "counts, l1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins < 2:
            raise ParameterError(f"bins is {self.bins}; it must be at least 2")

    def check(self, setting: Setting) -> None:
        """Raise where there are not so many columns."""
        super().check(setting)
        if not 1 <= self._columns(setting) <= setting.dimension:
            raise ParameterError(f"columns is {self.columns}; it must lie between 1 and {setting.dimension}")

    def _columns(self, setting: Setting) -> int:
        return setting.dimension if self.columns is None else self.columns

    def sensitivity(self, setting: Setting) -> float:
        """Return the number of counts that one record moves by one."""
        return float(setting.neighbours.records * self._columns(setting))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (columns, bins)."""
        return self._columns(setting), self.bins

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row in the first bin of every column against one in the second: two counts a column move."""
        return one_row_apart(setting, np.zeros(setting.dimension), np.ones(setting.dimension))

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the exact counts (columns, bins)."""
        counts = np.zeros(self.sum_shape(setting), dtype=np.int64)
        for block, labels in rows.blocks():
            numbers = np.asarray(block, dtype=np.float64)
            kept = numbers[~null_records(numbers, labels, setting.classes)]
            inside = (kept >= 0) & (kept < self.bins)
            places = np.where(inside, kept, 0).astype(np.int64)
            for column in range(self._columns(setting)):
                found = places[inside[:, column], column]
                counts[column] += np.bincount(found, minlength=self.bins)
        return counts


def occupied(counts: Floats, scale: float) -> tuple[int, int] | None:
    """Return the first and the last bin of a column that hold rows, from its noisy counts.

    Post-processing. A bin passes above t = ``scale * ln(100 bins)``: that noise takes any empty bin of a column
    beyond it has probability at most 0.01, since P(k > t) <= p^t = exp(-t / scale) in each (p = exp(-1 / scale)).

    Parameters
    ----------
    counts : array (bins,)
    scale : float
        Of the discrete Laplace noise.

    Returns
    -------
    (int, int) or None
        None where no bin passes.
    """
    passing = np.flatnonzero(counts > scale * math.log(100 * len(counts)))
    return (int(passing[0]), int(passing[-1])) if len(passing) else None
