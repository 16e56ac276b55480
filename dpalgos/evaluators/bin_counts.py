"""Charged counts of the rows in public bins of each column, and which bins hold rows."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.evaluators.noisy_sums import PARTS_OF_A_UNIT, LaplaceNoise, NoisySums, counted_cells
from dpalgos.guarantees import Setting
from dpalgos.parameters import ParameterError, at_least
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints

# With which probability noise in any empty bin of a column passes its threshold, at most.
_BY_NOISE = 0.01


@register("evaluators", "bin-counts")
@dataclass(frozen=True, kw_only=True)
class BinCounts(NoisySums):
    """Count the rows in each public bin of each column, and add integer noise to each count.

    A row's features are the numbers of its bins, one per column; any other value is not counted.

    Guarantee
    ---------
    mu-GDP, exact. A row is counted at most once in each of d columns: replace-one takes one count away and adds one in
    each, an l2 change of at most sqrt(2 d); a null record is not counted, so replace-special changes at most d counts
    by one, sqrt(d). A person's rows add a point of the convex hull of zero and what records add, so that the distance
    between two persons has the same bound. Rounded Gaussian noise of scale ``sensitivity / mu`` on each count (see
    ``mechanisms.distributions``).

    Parameters
    ----------
    budget : GaussianMu
    bins : int
        At least 2.
    columns : int or None
        The first so many features; all where None.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    bins: int = field(default=2, metadata=at_least(2))
    columns: int | None = None
    fewest_classes: ClassVar[int] = 1
    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts, l2"

    def check(self, setting: Setting) -> None:
        """Raise where there are not so many columns."""
        super().check(setting)
        if not 1 <= self._columns(setting) <= setting.dimension:
            raise ParameterError(f"columns is {self.columns}; it must lie between 1 and {setting.dimension}")

    def sensitivity(self, setting: Setting) -> float:
        """Return how far the counts that one record moves by one are moved: two per column, one against null."""
        return self.length(setting.neighbours.records * self._columns(setting))

    def threshold(self, setting: Setting) -> float:
        """Return what a count must exceed to be told from none: noise in all bins of a column does with 1 % at most.

        A union bound over the empty bins of a column.
        """
        return self.exceeded(_BY_NOISE / self.bins, setting)

    def _columns(self, setting: Setting) -> int:
        return setting.dimension if self.columns is None else self.columns

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (columns, bins)."""
        return self._columns(setting), self.bins

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row in the first bin of every column against one in the second: two counts per column move."""
        return one_row_apart(setting, np.zeros(setting.dimension), np.ones(setting.dimension))

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (columns, bins)."""
        columns, _ = shape = self.sum_shape(setting)
        bins = features[:, :columns]
        inside = (bins >= 0) & (bins < self.bins)
        cells = np.where(inside, bins, 0).astype(np.int64) + self.bins * np.arange(columns)[None, :]
        return counted_cells(cells[inside], np.broadcast_to(parts[:, None], inside.shape)[inside], shape)


@register("evaluators", "laplace-bin-counts")
@dataclass(frozen=True, kw_only=True)
class LaplaceBinCounts(LaplaceNoise, BinCounts):
    """Count as ``bin-counts`` does, with discrete Laplace noise, for accounts without a delta.

    Guarantee
    ---------
    epsilon-DP, exact: the counts that a record moves in d columns change by at most 2 d in l1 under replace-one, and by
    d under replace-special. Discrete Laplace noise of scale ``sensitivity / epsilon`` on each count.

    Parameters
    ----------
    budget : PureEpsilon
    bins, columns
        See :class:`BinCounts`.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1.
    """

    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts, l1"


def occupied(counts: Floats, threshold: float) -> tuple[int, int] | None:
    """Return the first and the last bin of a column that hold rows, from its noisy counts: those above a threshold.

    Post-processing.

    Parameters
    ----------
    counts : array (bins,)
    threshold : float
        See :meth:`BinCounts.threshold`.

    Returns
    -------
    (int, int) or None
        None where no bin passes.
    """
    passing = np.flatnonzero(counts > threshold)
    return (int(passing[0]), int(passing[-1])) if len(passing) else None
