"""Post-processing of a synthesis' releases: groups of columns, the tree, the tables that rows are drawn by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar, cast

import numpy as np

from dpalgos.aggregators import Aggregator
from dpalgos.column_maps import HowCounted, decoded_counts
from dpalgos.columns import Column, columns_of
from dpalgos.histograms import ColumnCounts, combined
from dpalgos.models import Artefact, Statistic
from dpalgos.parameters import COUNT, POSITIVE, Bounded, ParameterError, at_least, between
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints
from dpalgos.synthesis.codes import GroupCodes, arrays_of, padded
from dpalgos.synthesis.conditionals import Blocks, class_margins, conditional_counts
from dpalgos.synthesis.dependence import added, dependence, spanning_forest
from dpalgos.synthesis.drawing import DrawnColumn
from dpalgos.synthesis.groups import (
    group_weights,
    groups_of,
    groups_within,
    joined,
    label_weights,
    place_weights,
    regrouped,
)
from dpalgos.synthesis.model import Synthesis
from dpalgos.synthesis.projection import apportioned

Made = TypeVar("Made", bound=Artefact)


@dataclass(frozen=True, kw_only=True)
class OfColumnCounts(Bounded, Aggregator[Statistic, Made], Generic[Made]):
    """Base of aggregators of released histograms of columns, and of later releases that rest on these.

    Parameters
    ----------
    columns : sequence of Column, or of mappings
        Of a row before any map; public.
    dimension : int
        Features of a row.
    rows : int
        Records that later stages count, public: those of the histograms may be more.
    releases : sequence of mapping
        How each of the releases of histograms counted (:func:`~dpalgos.column_maps.how_counted`); these come first.
    """

    columns: Sequence[Column | Mapping[str, float]]
    dimension: int = field(metadata=COUNT)
    rows: int = field(metadata=COUNT)
    releases: Sequence[HowCounted] = ()

    source: ClassVar[str] = "ours"
    combines: ClassVar[str] = Statistic.kind

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        object.__setattr__(self, "columns", columns_of(self.columns, self.dimension))

    @property
    def described(self) -> tuple[Column, ...]:
        """The columns."""
        return cast("tuple[Column, ...]", self.columns)

    def counts_of(self, artefacts: Sequence[Statistic], later: int = 0) -> tuple[ColumnCounts, list[Floats]]:
        """Return the histograms together, and the numbers of the releases after them.

        Raises
        ------
        ParameterError
            If there are more or fewer releases than the parameters describe.
        """
        if len(artefacts) != len(self.releases) + later or not self.releases:
            raise ParameterError(
                f"{len(artefacts)} releases are given; expected: {len(self.releases)} of histograms, then {later} "
                "others"
            )
        known = [
            decoded_counts(self.described, one.values, how) for one, how in zip(artefacts, self.releases, strict=False)
        ]
        return combined(known), [one.values for one in artefacts[len(self.releases) :]]

    def weights_of(self, counts: ColumnCounts) -> list[Ints]:
        """Return of each column the rows in each of its places, of sum ``rows``."""
        return [self.scaled(one) for one in place_weights(self.described, counts)]

    def scaled(self, weights: Ints) -> Ints:
        """Return released counts in proportion, of sum ``rows``."""
        return weights if int(weights.sum()) == self.rows else apportioned(weights, self.rows)


@register("aggregators", "pair-groups")
@dataclass(frozen=True, kw_only=True)
class PairGroups(OfColumnCounts[GroupCodes]):
    """Groups of about equally many rows of each column, in which all pairs are counted once. Post-processing.

    Parameters
    ----------
    parts : int
        Groups per column, at most.
    """

    parts: int = field(default=4, metadata=at_least(2))

    def combine(self, artefacts: Sequence[Statistic], weights: Floats) -> GroupCodes:
        """Return the map of rows to their groups."""
        counts, _ = self.counts_of(artefacts)
        groups = self.groups(self.weights_of(counts))
        said, ends = arrays_of(self.described)
        return GroupCodes(
            columns=said,
            ends=ends,
            bins=np.array([counts.bins], dtype=np.int64),
            groups=padded(groups),
            seen=np.arange(len(groups), dtype=np.int64),
            parts=np.array([self.parts], dtype=np.int64),
        )

    def groups(self, weights: Sequence[Ints]) -> list[Ints]:
        """Return the group of each place of each column: a group holds a quarter of its part of the rows at least."""
        return groups_of(self.described, weights, self.parts, max(self.rows // (4 * self.parts), 1))


@dataclass(frozen=True, kw_only=True)
class OfTree(OfColumnCounts[Made], Generic[Made]):
    """Base of aggregators that use the tree of the columns.

    Parameters
    ----------
    classes : int
        K; of a numeric label the equal parts of its range in which it is counted.
    pairs : sequence of (int, int)
        The pairs of columns that were counted × class; none where each column is drawn given the class alone.
    pair_parts : int
        Groups of each column in these tables, at most.
    pair_deviation : float
        Of the noise of each of their counts.
    parts, parent_parts : int
        Groups of a column in its own table, and in those of its children, at most.
    deviation : float
        Of the noise of each count in these tables.
    """

    classes: int = field(metadata=COUNT)
    pairs: Sequence[Sequence[int]] = ()
    pair_parts: int = field(default=4, metadata=at_least(2))
    pair_deviation: float = field(default=0.0, metadata=between(0.0, 2.0**40))
    parts: int = field(default=24, metadata=at_least(2))
    parent_parts: int = field(default=10, metadata=at_least(1))
    deviation: float = field(default=1.0, metadata=POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pairs", tuple((int(one), int(other)) for one, other in self.pairs))

    @property
    def of_pairs(self) -> int:
        """Releases of tables of pairs."""
        return 1 if self.pairs else 0

    def parents(self, weights: Sequence[Ints], tables: Sequence[Floats]) -> tuple[int, ...]:
        """Return the parent of each column, −1 of a root, by the released tables of pairs."""
        columns = len(self.described)
        if not self.pairs:
            return (-1,) * columns
        found = {
            pair: dependence(table, self.pair_deviation, len(self.pairs))
            for pair, table in self._counted(self.coarse(weights), tables[0])
            # A column of one group says nothing.
            if min(table.shape[1:]) > 1
        }
        return spanning_forest(found, columns)

    def coarse(self, weights: Sequence[Ints]) -> list[Ints]:
        """Return the group of each place of each column in the tables of pairs."""
        made = PairGroups(
            columns=self.columns,
            dimension=self.dimension,
            rows=self.rows,
            releases=self.releases,
            parts=self.pair_parts,
        )
        return made.groups(weights)

    def _counted(self, coarse: Sequence[Ints], numbers: Floats) -> Iterator[tuple[tuple[int, int], Floats]]:
        """Yield each pair and its table, (K, A, B), of the groups that its columns have."""
        sizes = [int(one.max()) + 1 for one in coarse]
        shape = (len(self.pairs), self.pair_parts, self.pair_parts, self.classes)
        by_class = np.moveaxis(numbers.reshape(shape), -1, 1)
        for (one, other), table in zip(self.pairs, by_class, strict=True):
            yield (one, other), table[:, : sizes[one], : sizes[other]]

    def of_pairs_by_column(self, coarse: Sequence[Ints], numbers: Floats) -> dict[int, tuple[Floats, float]]:
        """Return of each column that was counted in pairs its rows by class and group, (K, C), and their noise.

        Each table of the column says them with the variance of as many cells as the other column has groups; the mean
        weighs tables by that.
        """
        sums: dict[int, Floats] = {}
        weights: dict[int, float] = {}
        for pair, table in self._counted(coarse, numbers):
            for at, axis in zip(pair, (2, 1), strict=True):
                weight = 1.0 / table.shape[axis]
                sums[at] = sums.get(at, 0.0) + weight * added(table, axis=axis)
                weights[at] = weights.get(at, 0.0) + weight
        return {at: (sums[at] / weights[at], self.pair_deviation**2 / weights[at]) for at in sums}

    def groups(self, weights: Sequence[Ints]) -> tuple[list[Ints], list[Ints]]:
        """Return the group of each place of each column, in its own table and in those of its children.

        A group holds rows enough to be told from noise, and a parent's a quarter of its part of all rows. Groups lie
        within those of the tables of pairs, where there are any.
        """
        told = math.ceil(_TOLD * self.deviation)
        if self.pairs:
            own = groups_within(self.described, weights, self.coarse(weights), self.parts, told)
        else:
            own = groups_of(self.described, weights, self.parts, told)
        least = max(self.rows // (4 * self.parent_parts), math.ceil(_TOLD_OF_PARENTS * self.deviation))
        return own, groups_of(self.described, weights, max(self.parent_parts, 2), least)


# Deviations of a count: rows of the smallest group.
_TOLD, _TOLD_OF_PARENTS = 4.0, 2.0


@register("aggregators", "tree-groups")
@dataclass(frozen=True, kw_only=True)
class TreeGroups(OfTree[GroupCodes]):
    """Groups of each column and, where pairs were counted, behind them of its parent: what its one table is counted in.

    Post-processing. A column without a parent has group 0 of none, so that the number of tables, and the cells of each,
    are public before anything is counted.
    """

    def combine(self, artefacts: Sequence[Statistic], weights: Floats) -> GroupCodes:
        """Return the map of rows to d groups of columns and d groups of parents."""
        counts, tables = self.counts_of(artefacts, self.of_pairs)
        released = self.weights_of(counts)
        parents = self.parents(released, tables)
        own, as_parent = self.groups(released)
        nothing = np.zeros(1, dtype=np.int64)
        behind = parents if self.pairs else ()
        said, ends = arrays_of(self.described)
        return GroupCodes(
            columns=said,
            ends=ends,
            bins=np.array([counts.bins], dtype=np.int64),
            groups=padded([*own, *(nothing if parent < 0 else as_parent[parent] for parent in behind)]),
            seen=np.array([*range(len(own)), *behind], dtype=np.int64),
            parts=np.array([max(self.parts, self.parent_parts)], dtype=np.int64),
        )


@register("aggregators", "tree-synthesis")
@dataclass(frozen=True, kw_only=True)
class TreeSynthesis(OfTree[Synthesis]):
    """The tree's noisy tables as whole weights that rows are drawn by. Post-processing."""

    source: ClassVar[str] = "ours; Chow and Liu 1968 (the tree); James and Stein 1961 (the conditional counts)"

    def combine(self, artefacts: Sequence[Statistic], weights: Floats) -> Synthesis:
        """Return the synthesis."""
        counts, numbers = self.counts_of(artefacts, self.of_pairs + 1)
        released = self.weights_of(counts)
        parents = self.parents(released, numbers)
        own, as_parent = self.groups(released)
        shape = (len(own), self.parts, self.parent_parts, self.classes)
        by_class = np.transpose(numbers[-1].reshape(shape), (0, 3, 2, 1))
        labels = self.scaled(label_weights(counts))
        classes = labels
        if counts.layout.label_range is not None:
            ends = np.arange(len(labels)) * self.classes // len(labels)
            classes = np.bincount(ends, weights=labels, minlength=self.classes).astype(np.int64)
        tables, margins = [], []
        coarse = self.coarse(released) if self.pairs else []
        of_pairs = self.of_pairs_by_column(coarse, numbers[0]) if self.pairs else {}
        for at, column in enumerate(self.described):
            cells = 1 if parents[at] < 0 else int(as_parent[parents[at]].max()) + 1
            tables.append(by_class[at, :, :cells, : int(own[at].max()) + 1])
            alone = group_weights(own[at], released[at])
            noise = _bar_deviation(counts) if column.is_number else counts.deviation
            noise *= self.rows / counts.rows
            blocks = _blocks(own[at], coarse[at], *of_pairs[at]) if at in of_pairs else None
            margins.append(class_margins(tables[-1], classes, self.deviation, alone, noise, blocks))
        drawn = []
        for at, parent in enumerate(parents):
            rows = classes[:, None]
            if parent >= 0:
                rows = regrouped(margins[parent], own[parent], as_parent[parent], released[parent])
            table = conditional_counts(tables[at], margins[at], rows, self.deviation)
            drawn.append(DrawnColumn(parent, table, own[at], as_parent[at], released[at]))
        numeric = counts.layout.label_range is not None
        return Synthesis.of(self.described, counts.bins, classes, labels if numeric else labels[:0], drawn)


def _blocks(groups: Ints, coarse: Ints, counts: Floats, variance: float) -> Blocks:
    """Return what tables of pairs say of a column, in blocks of its own groups."""
    of_groups, of_coarse = joined(groups, coarse)
    several = int(of_groups.max()) + 1
    together = [added(counts[:, of_coarse == block]) for block in range(several)]
    variances = np.bincount(of_coarse, minlength=several).astype(np.float64) * variance
    return Blocks(of_groups, np.stack(together, axis=1), variances)


def _bar_deviation(counts: ColumnCounts) -> float:
    """Return the deviation of the noise of the middle half of a number's bins: about that of any of its groups."""
    covariance, bins = counts.covariance, counts.bins
    first, last = bins // 4, 3 * bins // 4
    variance = covariance[first, first] + covariance[last, last] - 2.0 * covariance[first, last]
    return math.sqrt(max(float(variance), 0.0))
