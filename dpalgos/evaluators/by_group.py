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


@register("evaluators", "confusion-by-group")
@dataclass(frozen=True, kw_only=True)
class ConfusionByGroup(NoisySums):
    """Count (group, true class, predicted class) over the hold-out rows and add integer noise to each count.

    A row's first feature is the number of its group: what a public map makes of one declared column, a missing value
    being a group of its own (:class:`dpalgos.features.column_groups.ColumnGroups`). The others are decision values of a
    released model. Whatever number that is, the row is counted in one group: the nearest from 0 to G − 1.

    Guarantee
    ---------
    mu-GDP, exact. How far one record moves the G K² counts:

    - *replace-one*: a row lies in one cell of one group. Another row in its place lies in one cell of one group, the
      same or another: one count falls by one and one rises by one, or nothing moves. So √2 in l2 and 2 in l1, the same
      as for one matrix, and not √2 for each of the two groups: what a group loses and another gains are the two counts.
    - *replace-special*: a null record is counted nowhere, so that one count moves by one: 1 in l2 and in l1.
    - *people*: each of k rows adds ⌊U/k⌋ units to its own cell, of whatever group. A person adds a vector of
      non-negative numbers whose sum is at most U. Two such vectors differ most, in any norm, at the ends of that
      convex set, where all lies in one cell: by what single rows differ.

    The counts are integers, so rounded Gaussian noise of scale ``sensitivity / mu`` costs exactly what the Gaussian
    mechanism does (see ``mechanisms.distributions``). Each count has the noise of one matrix. The sum of the groups'
    matrices, the matrix of all rows, has √G times its standard deviation.

    Parameters
    ----------
    budget : GaussianMu
    groups : int
        G, with that of missing values.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    groups: int = field(default=2, metadata=COUNT)
    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts, l2"

    def sensitivity(self, setting: Setting) -> float:
        """Return how far as many cells as one record moves by one are moved."""
        return self.length(setting.neighbours.records)

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (G, K, K)."""
        return (self.groups, *(max(setting.classes, 2),) * 2)

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (G, K, K): group, true class, predicted class."""
        groups, classes, _ = shape = self.sum_shape(setting)
        group = np.clip(np.rint(features[:, 0]), 0, groups - 1).astype(np.int64)
        # A score too many is the last class's: whatever the model, a row is counted in one of the cells.
        predicted = np.minimum(predicted_classes(features[:, 1:]), classes - 1)
        return counted_cells((group * classes + np.asarray(labels, dtype=np.int64)) * classes + predicted, parts, shape)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row of the first group against one of the last and of another class: two counts move."""
        left, right = np.full((2, setting.dimension), 1.0)
        left[0], right[0] = 0.0, self.groups - 1.0
        return one_row_apart(setting, left, right, labels=(0, 1))


@register("evaluators", "laplace-confusion-by-group")
@dataclass(frozen=True, kw_only=True)
class LaplaceConfusionByGroup(LaplaceNoise, ConfusionByGroup):
    """Count as ``confusion-by-group`` does, with discrete Laplace noise, for models that spend a pure epsilon.

    Guarantee
    ---------
    epsilon-DP, exact: the cells that a record moves change by at most 2 in l1 under replace-one, and by 1 under
    replace-special, whatever their groups. Discrete Laplace noise of scale ``sensitivity / epsilon`` on each count.

    Parameters
    ----------
    budget : PureEpsilon
    groups : int
        G, with that of missing values.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1.
    """

    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "counts, l1"
