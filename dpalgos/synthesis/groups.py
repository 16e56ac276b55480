"""Places of a column's cells, their released weights, and groups of places that hold about equally many rows.

A number has T places, the bins of its histogram, and a category one per declared value; one more, the last, is of
missing cells. Groups are what tables of pairs are counted in: made of released counts, so post-processing. Numbers that
decide groups are whole, and each step is integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpalgos.columns import Column
from dpalgos.histograms import ColumnCounts
from dpalgos.parameters import ParameterError
from dpalgos.rows import Ints
from dpalgos.synthesis.projection import apportioned, to_simplex


def place_weights(columns: Sequence[Column], counts: ColumnCounts) -> list[Ints]:
    """Return of each column the rows in each of its places, whole numbers of sum n: the released counts, projected.

    Counts of a number are differences of its running sums, bent to rise. Each column's counts are then moved to the
    nearest ones that are not negative and add up to the public number of rows.

    Parameters
    ----------
    columns : sequence of Column
        The counted ones, in any order that has numbers among themselves, and categories, as they are counted.
    counts : ColumnCounts
    """
    lines = np.diff(np.rint(counts.rising()).astype(np.int64), axis=1, prepend=0)
    at_line, at_category, found = 0, 0, []
    for column in columns:
        if column.is_number:
            missing = np.rint(counts.missing[at_line : at_line + 1]).astype(np.int64)
            weights = np.append(lines[at_line], missing)
            at_line += 1
        else:
            weights = np.rint(counts.categories[at_category]).astype(np.int64)
            at_category += 1
        # A number that cannot be missing has the place all the same, and no row in it.
        lacks = column.missing is not None or not column.is_number
        found.append(_of_sum(weights, counts.rows, lacks=lacks))
    return found


def label_weights(counts: ColumnCounts) -> Ints:
    """Return the rows of each class, or in each bin of a numeric label, whole numbers of sum n."""
    if counts.layout.label_range is None:
        return to_simplex(np.rint(counts.classes).astype(np.int64), counts.rows)
    rising = np.rint(counts.rising()[-1]).astype(np.int64)
    return to_simplex(np.diff(rising, prepend=0), counts.rows)


def _of_sum(weights: Ints, rows: int, *, lacks: bool) -> Ints:
    kept = weights if lacks else weights[:-1]
    return np.append(to_simplex(kept, rows), np.zeros(len(weights) - len(kept), dtype=np.int64))


def groups_of(columns: Sequence[Column], weights: Sequence[Ints], most: int, least: int) -> list[Ints]:
    """Return of each column the group of each of its places, from 0 on, at most ``most`` of them.

    *Numbers*: neighbouring places together, cut where a group holds its part of the rows that are left. A place that
    alone holds so many is a separate group, so that a frequent value is told from its neighbours. *Categories*: a
    group per value, in the order of their counts; those that are left, or hold fewer than ``least`` rows, share the
    last. *Missing cells* of a number are a separate group, the last.

    Parameters
    ----------
    columns : sequence of Column
    weights : sequence of array (places,)
        As :func:`place_weights` returns them.
    most : int
        At least 2.
    least : int
        Rows that a group should hold, at least.

    Raises
    ------
    ParameterError
        For fewer than two groups.
    """
    if most < 2:
        raise ParameterError(f"most is {most}; give at least 2, since tables of pairs need two groups per column")
    return [
        _of_number(one, most, least, lacks=column.missing is not None)
        if column.is_number
        else _of_values(one, most, least)
        for column, one in zip(columns, weights, strict=True)
    ]


def groups_within(
    columns: Sequence[Column], weights: Sequence[Ints], blocks: Sequence[Ints], most: int, least: int
) -> list[Ints]:
    """Return groups as :func:`groups_of` does, those of a number within blocks of its places.

    A block has its part of the groups, by its rows. Each value of a category is its own group anyway.

    Parameters
    ----------
    columns, weights, most, least
        As of :func:`groups_of`.
    blocks : sequence of array (places,) of int
        Of each column the block of each place: groups of :func:`groups_of` of fewer parts.
    """
    found = groups_of(columns, weights, most, least)
    for at, column in enumerate(columns):
        if column.is_number:
            found[at] = _within(weights[at], blocks[at], most, least)
    return found


def _within(weights: Ints, blocks: Ints, most: int, least: int) -> Ints:
    several = int(blocks.max()) + 1
    rows = [int(weights[blocks == block].sum()) for block in range(several)]
    parts = 1 + apportioned(np.array(rows) if any(rows) else np.ones(several, dtype=np.int64), most - several)
    found, groups = np.zeros(len(weights), dtype=np.int64), 0
    for block in range(several):
        places = np.flatnonzero(blocks == block)
        inside = _of_number(np.append(weights[places], 0), int(parts[block]), least, lacks=False)[:-1]
        found[places] = groups + inside
        groups += int(inside.max()) + 1
    return found


def joined(groups: Ints, blocks: Ints) -> tuple[Ints, Ints]:
    """Return the finest partition that both are finer than: of each group, and of each block, its part.

    Parameters
    ----------
    groups, blocks : array (places,) of int
        Of each place.
    """
    of_groups, of_blocks = np.arange(int(groups.max()) + 1), np.arange(int(blocks.max()) + 1)
    changed = True
    while changed:
        before = of_groups.copy(), of_blocks.copy()
        for group, block in zip(groups, blocks, strict=True):
            of_groups[group] = of_blocks[block] = min(of_groups[group], of_blocks[block])
        changed = bool((before[0] != of_groups).any() or (before[1] != of_blocks).any())
    parts = np.unique(of_groups)
    return np.searchsorted(parts, of_groups), np.searchsorted(parts, of_blocks)


def _of_number(weights: Ints, most: int, least: int, *, lacks: bool) -> Ints:
    bins, groups = [int(one) for one in weights[:-1]], most - lacks
    found, group, held, left = [], 0, 0, sum(bins)
    for rows in bins:
        if held and group + 1 < groups:
            # Its part of what is left, this group's own rows among it; a frequent value begins a group.
            part = max(left // (groups - group), least)
            if held >= part or (rows >= part and held >= least):
                group, left, held = group + 1, left - held, 0
        found.append(group)
        held += rows
    # What is too little for a group belongs to the one before.
    if group and held < least:
        found = [min(one, group - 1) for one in found]
    return np.array([*found, max(found) + lacks], dtype=np.int64)


def _of_values(weights: Ints, most: int, least: int) -> Ints:
    order = np.argsort(-weights, kind="stable")
    own = [int(place) for place in order if weights[place] >= least]
    if len(own) == len(weights) <= most:
        return np.arange(len(weights), dtype=np.int64)
    own = sorted(own[: most - 1])
    found = np.full(len(weights), len(own), dtype=np.int64)
    found[own] = np.arange(len(own))
    return found


def group_weights(groups: Ints, weights: Ints) -> Ints:
    """Return the rows in each group."""
    found = np.zeros(int(groups.max()) + 1, dtype=np.int64)
    np.add.at(found, groups, weights)
    return found


def regrouped(margins: Ints, groups: Ints, others: Ints, weights: Ints) -> Ints:
    """Return counts in other groups of the same places, (K, A), each group's rows spread over its places by weight.

    Parameters
    ----------
    margins : array (K, F) of int
    groups, others : array (places,) of int
        Of each place its group among F and among A.
    weights : array (places,) of int
        Released counts; even where a group's are all zero.
    """
    found = np.zeros((len(margins), int(others.max()) + 1), dtype=np.int64)
    for group in range(margins.shape[1]):
        places = np.flatnonzero(groups == group)
        parts = weights[places] if weights[places].any() else np.ones_like(places)
        for label, rows in enumerate(margins[:, group]):
            np.add.at(found[label], others[places], apportioned(parts, int(rows)))
    return found
