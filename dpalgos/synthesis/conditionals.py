"""Noisy tables of a column, its parent and the class to whole numbers that rows can be drawn by.

*Rows of few records.* Of a parent's cell a and class k, let m be the released counts of the column's F groups, N their
sum and q the column's shares given the class. Noise of variance s² per count moves m away from N q by (F − 1) s² on
average, and dependence by as much as there is. The counts are drawn to N q by the positive part of James and Stein,

    N q + h (m − N q),    h = max(0, 1 − (F − 1) s²/‖m − N q‖²),

so that where noise is all that there is, the column is independent of its parent given the class. The result is
projected to whole numbers ≥ 0 of the sum N (:func:`~dpalgos.synthesis.projection.to_simplex`).

*Margins.* The column's shares given the class come from three releases, added by least squares.

1. The table's own sums over the parent say the rows of each class in each group, with variance v.
2. Tables of pairs, where they were counted, say the sums over blocks of groups, with variance w. Of a block of b groups
   each gets v/(b v + w) of the difference. This leaves the covariance P = v I − c J, c = v²/(b v + w), J of ones.
3. One-way counts say the sums over the K classes, with variance u. Each class gets P (K P + u I)⁻¹ of the difference.

Sums are one number after the other, all else is integers or one operation at a time: processors agree.

References
----------
James, Stein, 4th Berkeley Symposium (1961); Baranchik, Stanford technical report 51 (1964) (the positive part).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpalgos.rows import Floats, Ints
from dpalgos.synthesis.dependence import added
from dpalgos.synthesis.projection import to_simplex


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of each class in blocks of a column's groups, by tables of pairs.

    Parameters
    ----------
    of_groups : array (F,) of int
        The block of each group.
    counts : array (K, blocks)
        Noisy.
    variances : array (blocks,)
        Of their noise.
    """

    of_groups: Ints
    counts: Floats
    variances: Floats


def class_margins(
    table: Floats,
    totals: Ints,
    deviation: float,
    one_way: Ints,
    one_way_deviation: float,
    blocks: Blocks | None = None,
) -> Ints:
    """Return the rows of each class in each group of a column, (K, F), whole numbers that add up to ``totals``.

    Parameters
    ----------
    table : array (K, A, F)
        Noisy counts by class, parent's group and group.
    totals : array (K,) of int
        Rows of each class.
    deviation : float
        Of the noise of each of the table's counts.
    one_way : array (F,) of int
        The column's released counts.
    one_way_deviation : float
        Of their noise.
    blocks : Blocks, optional
        None where no pairs were counted.
    """
    margins = least_squares(added(table, axis=1), table.shape[1] * deviation**2, one_way, one_way_deviation**2, blocks)
    return np.stack([to_simplex(_whole(row), int(total)) for row, total in zip(margins, totals, strict=True)])


def least_squares(
    margins: Floats, variance: float, one_way: Ints, one_way_variance: float, blocks: Blocks | None = None
) -> Floats:
    """Return the rows of each class in each group, (K, F), that are nearest to all releases in units of their noise.

    Parameters
    ----------
    margins : array (K, F)
        Noisy.
    variance : float
        Of the noise of each.
    one_way : array (F,)
        Sums over the classes.
    one_way_variance : float
    blocks : Blocks, optional
        Sums over groups.
    """
    found, classes = np.array(margins), len(margins)
    of_groups = np.arange(found.shape[1]) if blocks is None else blocks.of_groups
    for block in range(int(of_groups.max()) + 1):
        at = np.flatnonzero(of_groups == block)
        common = 0.0
        if blocks is not None:
            gain = variance / (len(at) * variance + float(blocks.variances[block]))
            lacking = blocks.counts[:, block] - added(found[:, at])
            found[:, at] += gain * lacking[:, None]
            common = variance * gain
        difference = one_way[at] - added(found[:, at], axis=0)
        several = classes * variance + one_way_variance
        shared = classes * common / (several - len(at) * classes * common)
        weighed = (difference + shared * float(added(difference))) / several
        found[:, at] += variance * weighed - common * float(added(weighed))
    return found


def conditional_counts(table: Floats, margins: Ints, parents: Ints, deviation: float) -> Ints:
    """Return whole weights by which a column is drawn given the class and its parent's group, (K, A, F).

    Parameters
    ----------
    table : array (K, A, F)
        Noisy counts.
    margins : array (K, F) of int
        Of the column, as :func:`class_margins` returns them.
    parents : array (K, A) of int
        Rows of each class in each group of the parent.
    deviation : float
        Of the noise of each count.

    Returns
    -------
    int64 array (K, A, F)
        Each line of positive sum: where no row is, the column's own margin, and even weights where that is empty too.
    """
    found = np.zeros(table.shape, dtype=np.int64)
    for label in range(len(table)):
        alone = margins[label] if margins[label].any() else np.ones_like(margins[label])
        total = int(alone.sum())
        for cell, (counts, rows) in enumerate(zip(table[label], parents[label], strict=True)):
            if rows == 0:
                found[label, cell] = alone
                continue
            expected = int(rows) * alone / total
            away = counts - expected
            # The parent says how many rows there are.
            away = away - added(away) / len(away)
            length = float(added(away * away))
            noise = (len(away) - 1) * deviation**2
            kept = max(0.0, 1.0 - noise / length) if length > 0.0 else 0.0
            found[label, cell] = to_simplex(_whole(expected + kept * away), int(rows))
    return found


def _whole(numbers: Floats) -> Ints:
    return np.asarray(np.rint(numbers), dtype=np.int64)
