"""Maps of rows into the unit ball: row-local ones, and one that looks at all rows, for public data only."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from dpalgos.registry import register
from dpalgos.rows import Floats, clip_to_unit_ball, squared_norms

RowMap: TypeAlias = Callable[[Floats], Floats]
"""A map of rows (m, d), each looked at alone."""


class Normalisation(ABC):
    """Base of classes registered under ``normalisations``."""

    row_local: ClassVar[bool]
    """Whether each row is mapped by itself; what looks at other rows is refused on private data."""
    unit_ball: ClassVar[bool]
    """Whether the result lies in the unit ball."""
    scales_rows: ClassVar[bool] = False
    """Whether each row comes out as a positive multiple of itself: zeros stay zeros, and ratios what they were."""

    @abstractmethod
    def learn(self, blocks: Iterable[Floats]) -> RowMap:
        """Return the map; row-local normalisations learn nothing and do not touch the blocks."""


class RowLocal(Normalisation):
    """A normalisation that maps each row by itself."""

    row_local: ClassVar[bool] = True
    unit_ball: ClassVar[bool] = True

    def learn(self, blocks: Iterable[Floats]) -> RowMap:
        """Return itself."""
        return self

    @abstractmethod
    def __call__(self, features: Floats) -> Floats:
        """Return (m, d) from (m, d)."""


@register("normalisations", "unit-norm")
@dataclass(frozen=True, slots=True, kw_only=True)
class UnitNorm(RowLocal):
    """Scale every row to l2 norm 1; zero rows, and rows that are not finite, become zero."""

    scales_rows: ClassVar[bool] = True

    def __call__(self, features: Floats) -> Floats:
        """Return rows of norm 1."""
        finite = np.where(np.isfinite(features).all(axis=1, keepdims=True), features, 0.0)
        # Dividing by the largest entry first keeps squares from overflowing and underflowing.
        largest = np.abs(finite).max(axis=1, keepdims=True, initial=0.0)
        scaled = finite / np.where(largest > 0, largest, 1.0)
        norms = np.sqrt(squared_norms(scaled))[:, None]
        return clip_to_unit_ball(scaled / np.where(norms > 0, norms, 1.0))


@register("normalisations", "clip")
@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(RowLocal):
    """Scale rows of norm above 1 to norm 1 and leave the others."""

    scales_rows: ClassVar[bool] = True

    def __call__(self, features: Floats) -> Floats:
        """Return rows of norm at most 1."""
        return clip_to_unit_ball(features)


@register("normalisations", "none")
@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged(RowLocal):
    """Leave rows as they are; private algorithms clip them to the unit ball themselves."""

    unit_ball: ClassVar[bool] = False
    scales_rows: ClassVar[bool] = True

    def __call__(self, features: Floats) -> Floats:
        """Return the rows."""
        return features


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineMap:
    """Columns scaled to [−1, 1] by ranges learnt elsewhere; constant columns become zero.

    Parameters
    ----------
    low, high : array (d,)
        Smallest and largest value of each column.
    """

    low: Floats
    high: Floats

    def __call__(self, features: Floats) -> Floats:
        """Return 2 (x − low) / (high − low) − 1; rows outside the learnt range leave [−1, 1]."""
        width = self.high - self.low
        varies = width > 0
        scaled = 2.0 * (features - self.low) / np.where(varies, width, 1.0) - 1.0
        return np.where(varies, scaled, 0.0)


@register("normalisations", "minmax")
@dataclass(frozen=True, slots=True, kw_only=True)
class MinMax(Normalisation):
    """Scale each column to [−1, 1] by its smallest and largest value. Looks at all rows: public data only."""

    row_local: ClassVar[bool] = False
    unit_ball: ClassVar[bool] = False

    def learn(self, blocks: Iterable[Floats]) -> RowMap:
        """Return the map for the columns' ranges over all (finite) rows."""
        low, high = np.array(np.inf), np.array(-np.inf)
        for features in blocks:
            low = np.minimum(low, np.fmin.reduce(features, axis=0, initial=np.inf))
            high = np.maximum(high, np.fmax.reduce(features, axis=0, initial=-np.inf))
        return AffineMap(low=low, high=high) if low.ndim else Unchanged()
