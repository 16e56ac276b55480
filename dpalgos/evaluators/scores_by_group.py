"""Charged running sums of a model's scores over the hold-out rows of each group and of all, by class."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.evaluators.by_group import CountedByGroup
from dpalgos.evaluators.noisy_sums import PARTS_OF_A_UNIT, counted_cells
from dpalgos.evaluators.score_distribution import ScoreDistribution, edges
from dpalgos.guarantees import Setting
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints


@register("evaluators", "scores-by-group")
@dataclass(frozen=True, kw_only=True)
class ScoresByGroup(CountedByGroup, ScoreDistribution):
    """Release, per public edge, the number of rows with a score up to it: of each group and class, and of all groups.

    A row's first feature is the number of its group, as for :class:`~dpalgos.evaluators.by_group.ConfusionByGroup`; the
    second is its score for the second class. Bins, edges and the factor are those of
    :class:`~dpalgos.evaluators.score_distribution.ScoreDistribution`. There are two lines of bins for each group, of
    rows of the other classes and of the second class, and each line goes through its own factor.

    Guarantee
    ---------
    mu-GDP, exact. Let c be the first column of the integer factor. A row stands in one bin of one line, that of its
    group and class, and moves this line by one column of the factor; later columns are no longer than c, and the inner
    product of two columns is not negative.

    - *replace-one*: two rows of different groups or classes stand in two different lines, which move by one column
      each: at most **√2 |c|** in l2, attained in the first bins. Two rows in one line move it by the difference of two
      columns, which is no longer than √2 |c|. This is the sensitivity of one pair of lines, for any number of groups:
      what a group loses and another gains are the two columns.
    - *replace-special*: a null record is counted nowhere, so one line moves by one column: **|c|**.
    - *people*: each of k rows adds ⌊U/k⌋ units to its own bin, of any group. The vectors that a person may add
      lie in the convex hull of 0 and of what single rows add, and two points of it differ most between its corners.

    *All rows.* They have two separate lines. A row is counted ``each`` = 2 times in the line of its group and
    ``whole`` = once in that of its class, with the same noise on every integer. Two rows of different classes move two
    lines of groups and two lines of classes: **√(2² + 1²)** times the lengths above. Two rows of one class and of
    different groups move two lines of groups and one line of a class, by √2 |c| at most: no farther. So the sums of all
    rows take a fifth of the squared sensitivity, and :class:`dpalgos.group_margins.GroupEstimates` combines the sums by
    least squares. Where the sums of all rows were released before (``alone``), they are left out.

    Rounded Gaussian noise of scale ``sensitivity / mu`` on each integer (see ``mechanisms.distributions``).

    Parameters
    ----------
    budget : GaussianMu
    groups : int
        G, with that of missing values.
    alone : bool
        Whether all rows together are left out.
    bins : int
        Even, so that 0, where a prediction changes, is an edge.
    scale : float
        By which scores are divided before they are squashed, positive.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "running sums through the factor, l2"

    @staticmethod
    def _scores(setting: Setting) -> int:
        return 1

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the encoded lines of groups and of all rows, in l2."""
        return self.sums().sensitivity(entered=setting.neighbours.records * self.cost)

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (G, 2, bins), or (G + 1, 2, bins) with the lines of all rows, which are the last."""
        return self.groups + (self.whole > 0), 2, self.bins

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact weighted counts: group, class, bin."""
        (cells,) = self.cells(features[:, 1:], labels, setting).T
        cells = self.group_of(features) * 2 * self.bins + cells
        return self.with_all_rows(counted_cells(cells, parts, (self.groups, 2, self.bins)))

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row of the first group against one of the last and of the other class, with the lowest scores."""
        left, right = np.full((2, setting.dimension), edges(self.bins, self.scale)[0] - 1.0)
        left[0], right[0] = 0.0, self.groups - 1.0
        return one_row_apart(setting, left, right, labels=(0, 1))
