"""Partitions of rows among simulated parties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.parameters import COUNT, NATURAL, POSITIVE, Bound, Bounded, ParameterError
from dpalgos.registry import register
from dpalgos.rows import Array, Ints


@dataclass(frozen=True, kw_only=True)
class Partition(Bounded, ABC):
    """Base of classes registered under ``partitions``."""

    content_dependent: ClassVar[bool] = False
    """Whether the rows' labels decide who gets them: for simulation on public data only."""

    def assign(self, count: int, labels: Array | None = None) -> dict[int, Ints]:
        """Return the row positions of each party 0 … N − 1, disjoint, in increasing order.

        Parameters
        ----------
        count : int
            Number of rows.
        labels : array (count,), optional
            Read by content-dependent partitions alone.

        Raises
        ------
        ParameterError
            If there are too few rows for the parties, or no labels where they are read.
        """
        known = np.zeros(count) if labels is None else labels
        if self.content_dependent and (labels is None or len(labels) != count):
            raise ParameterError("this partition depends on the labels; give one label per row")
        parts = self.parts(count, known)
        return {party: np.sort(np.asarray(positions, dtype=np.int64)) for party, positions in enumerate(parts)}

    @abstractmethod
    def parts(self, count: int, labels: Array) -> Sequence[Ints | list[int]]:
        """Return the row positions of each party, in any order."""


def _require_enough(count: int, parties: int) -> None:
    if count < parties:
        raise ParameterError(f"{count} rows leave some of the {parties} parties empty; choose at most {count} parties")


@register("partitions", "even")
@dataclass(frozen=True, slots=True, kw_only=True)
class Even(Partition):
    """Divide row positions in equal shares (differing by at most one), in the order of a public permutation.

    Parameters
    ----------
    parties : int
    rows_per_party : int, optional
        All rows by default.
    seed : int
        Of the permutation.
    """

    parties: int = field(default=5, metadata=COUNT)
    rows_per_party: int | None = field(default=None, metadata=COUNT)
    seed: int = field(default=0, metadata=NATURAL)

    def parts(self, count: int, labels: Array) -> Sequence[Ints | list[int]]:
        """Return positions by party."""
        _require_enough(count, self.parties)
        order = np.random.default_rng(self.seed).permutation(count)
        if self.rows_per_party is None:
            return np.array_split(order, self.parties)
        wanted = self.parties * self.rows_per_party
        if wanted > count:
            raise ParameterError(
                f"{self.parties} parties of {self.rows_per_party} rows need {wanted} rows, and the set has {count}; "
                f"choose at most {count // self.parties} rows per party"
            )
        return np.split(order[:wanted], self.parties)


@register("partitions", "sized")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sized(Partition):
    """Divide row positions in shares of given sizes, in the order of a public permutation.

    Parameters
    ----------
    sizes : sequence of int
    seed : int
        Of the permutation.
    """

    sizes: Sequence[int]
    seed: int = field(default=0, metadata=NATURAL)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if not self.sizes:
            raise ParameterError("sizes is empty; give the number of rows of at least one party")
        for size in self.sizes:
            Bound(1, whole=True).require("a party's size", size)

    def parts(self, count: int, labels: Array) -> Sequence[Ints | list[int]]:
        """Return positions by party."""
        wanted = sum(self.sizes)
        if wanted > count:
            raise ParameterError(
                f"the sizes add up to {wanted} rows, and the set has {count}; give sizes of at most {count} in total"
            )
        order = np.random.default_rng(self.seed).permutation(count)
        return np.split(order[:wanted], np.cumsum(self.sizes)[:-1])


def _fill_empty(parts: list[list[int]]) -> None:
    """Give each empty party one row of the largest, so that all take part."""
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())


@register("partitions", "dirichlet")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dirichlet(Partition):
    """Split each class over the parties in proportions drawn from a symmetric Dirichlet distribution: label skew.

    Depends on the labels: for simulation on public data.

    Parameters
    ----------
    parties : int
    concentration : float
        Small for parties of one class each, large for an even mixture.
    seed : int
    """

    parties: int = field(default=5, metadata=COUNT)
    concentration: float = field(default=0.5, metadata=POSITIVE)
    seed: int = field(default=0, metadata=NATURAL)
    content_dependent: ClassVar[bool] = True

    def parts(self, count: int, labels: Array) -> Sequence[Ints | list[int]]:
        """Return positions by party; no party is empty."""
        _require_enough(count, self.parties)
        generator = np.random.default_rng(self.seed)
        parts: list[list[int]] = [[] for _ in range(self.parties)]
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(self.parties, self.concentration))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.extend(piece.tolist())
        _fill_empty(parts)
        return parts


@register("partitions", "by-label")
@dataclass(frozen=True, slots=True, kw_only=True)
class ByLabel(Partition):
    """Sort rows by label and cut the sorted list into equal shares: the strongest label skew.

    Depends on the labels: for simulation on public data.

    Parameters
    ----------
    parties : int
    """

    parties: int = field(default=5, metadata=COUNT)
    content_dependent: ClassVar[bool] = True

    def parts(self, count: int, labels: Array) -> Sequence[Ints | list[int]]:
        """Return positions by party."""
        _require_enough(count, self.parties)
        return np.array_split(np.argsort(labels, kind="stable"), self.parties)
