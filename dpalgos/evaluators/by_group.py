"""Charged confusion matrices of the groups that a public map of rows says, in one release."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.evaluators.noisy_sums import PARTS_OF_A_UNIT, LaplaceNoise, NoisySums, counted_cells
from dpalgos.guarantees import Setting
from dpalgos.models import predicted_classes
from dpalgos.parameters import COUNT
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints


@dataclass(frozen=True, kw_only=True)
class CountedByGroup(NoisySums):
    """Sums over the rows of each group, ``each`` times, and over all rows, ``whole`` times, in one release.

    A row's first feature is the number of its group; for any number, the row is counted in one group.

    Parameters
    ----------
    groups : int
        G, with that of missing values.
    alone : bool
        Whether all rows together are left out.
    """

    groups: int = field(default=2, metadata=COUNT)
    alone: bool = False

    @property
    def each(self) -> int:
        """Number of times that a row is counted in its group."""
        return 1 if self.alone else 2

    @property
    def whole(self) -> int:
        """Number of times that a row is counted among all rows."""
        return 0 if self.alone else 1

    @property
    def cost(self) -> int:
        """Contribution of a row to the power of the norm: e² + w², or e + w."""
        return int(self.each**self.norm + self.whole**self.norm)

    def group_of(self, features: Floats) -> Ints:
        """Return the group (m,) of each row: the nearest from 0 to G − 1."""
        return np.clip(np.rint(features[:, 0]), 0, self.groups - 1).astype(np.int64)

    def with_all_rows(self, counts: Ints) -> Ints:
        """Return the counts of groups (G, …), and behind them those of all rows, each so many times."""
        if not self.whole:
            return self.each * counts
        return np.concatenate([self.each * counts, self.whole * counts.sum(axis=0, keepdims=True)])


@register("evaluators", "confusion-by-group")
@dataclass(frozen=True, kw_only=True)
class ConfusionByGroup(CountedByGroup):
    """Count held-out rows by (group, true class, predicted class), and all of them, with integer noise on each count.

    A row's first feature is the number of its group: what a public map makes of one declared column, a missing value
    being a separate group (:class:`dpalgos.features.column_groups.ColumnGroups`). The others are decision values of a
    released model. For any such number, the row is counted in one group: the nearest from 0 to G − 1.

    Guarantee
    ---------
    mu-GDP, exact. How far one record moves the G K² counts of groups, each row counted once:

    - *replace-one*: a row lies in one cell of one group. Another row in its place lies in one cell of one group, the
      same or another: one count falls by one and one rises by one, or nothing moves. So √2 in l2 and 2 in l1, the same
      as for one matrix, and not √2 for each of the two groups: what a group loses and another gains are the two counts.
    - *replace-special*: a null record is counted nowhere, so that one count moves by one: 1 in l2 and in l1.
    - *people*: each of k rows adds ⌊U/k⌋ units to its own cell, of any group. A person adds a vector of
      non-negative numbers whose sum is at most U. Two such vectors differ most, in any norm, at the ends of that
      convex set, where all lies in one cell: by what single rows differ.

    The counts are integers, so rounded Gaussian noise of scale ``sensitivity / mu`` costs exactly what the Gaussian
    mechanism does (see ``mechanisms.distributions``).

    *The matrix of all rows.* As the sum of the groups' matrices it has √G times a group's noise. So it is counted too:
    each cell of a group ``each`` = 2 times, each cell of all rows ``whole`` = once, with the same noise on every
    integer. A record that moves a group's cell moves the cell of all rows with it, or less where two rows differ in
    their group alone, so that squared l2 changes are 2² + 1² = 5 times those above. The counts of all rows take a fifth
    of the squared sensitivity, and :class:`dpalgos.group_margins.GroupEstimates` combines the counts by least squares.
    In l1 the same weights would cost three times the noise, √(9G/(G + 4)), no less than √G up to five groups, and 1.37
    times or more for each group: Laplace noise leaves all rows out. Where their matrix has been released before
    (``alone``), they are left out as well, and each cell of a group is counted once.

    What is known of the groups' counts and of all rows' is linear in the released integers, so it has no further
    privacy cost.

    Parameters
    ----------
    budget : GaussianMu
    groups : int
        G, with that of missing values.
    alone : bool
        Whether all rows together are left out.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts, l2"

    def sensitivity(self, setting: Setting) -> float:
        """Return how far the cells of groups that one record moves are moved, each with one of all rows."""
        return self.length(setting.neighbours.records * self.cost)

    @property
    def times(self) -> float:
        """Noise of a released number, as a multiple of the noise of one matrix at the same budget."""
        return self.length(self.cost)

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (G, K, K), or (G + 1, K, K) with the matrix of all rows, which is the last."""
        return (self.groups + (self.whole > 0), *(max(setting.classes, 2),) * 2)

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact weighted counts: group, true class, predicted class."""
        _, classes, _ = self.sum_shape(setting)
        # A score too many is the last class's: for any model, a row is counted in one of the cells.
        predicted = np.minimum(predicted_classes(features[:, 1:]), classes - 1)
        cells = (self.group_of(features) * classes + np.asarray(labels, dtype=np.int64)) * classes + predicted
        return self.with_all_rows(counted_cells(cells, parts, (self.groups, classes, classes)))

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row of the first group against one of the last and of another class: two counts move."""
        left, right = np.full((2, setting.dimension), 1.0)
        left[0], right[0] = 0.0, self.groups - 1.0
        return one_row_apart(setting, left, right, labels=(0, 1))


@register("evaluators", "laplace-confusion-by-group")
@dataclass(frozen=True, kw_only=True)
class LaplaceConfusionByGroup(LaplaceNoise, ConfusionByGroup):
    """Count groups as ``confusion-by-group`` does, with discrete Laplace noise, for models that spend a pure epsilon.

    Guarantee
    ---------
    epsilon-DP, exact: the cells of groups that a record moves change by at most 2 in l1 under replace-one, and by 1
    under replace-special, for any groups; three times as much where all rows are counted as well. Discrete
    Laplace noise of scale ``sensitivity / epsilon`` on each count.

    Parameters
    ----------
    budget : PureEpsilon
    groups : int
        G, with that of missing values.
    alone : bool
        Whether all rows together are left out.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1.
    """

    alone: bool = True
    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts, l1"
