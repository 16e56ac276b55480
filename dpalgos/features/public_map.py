"""What maps made from public parameters alone have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpalgos.algorithms import ProjectionAlgorithm
from dpalgos.errors import ParameterError
from dpalgos.guarantees import RELATIONS, Guarantee, Neighbours, Setting
from dpalgos.models import ArrayFields, Projection
from dpalgos.resources import Work
from dpalgos.rows import Floats, NoiseSource, Rows

if TYPE_CHECKING:
    from dpalgos.registry import AlgorithmSpec


class RowFeatures(ArrayFields, ABC):
    """What a public map gives: a function of one row at a time, made of arrays, which pipelines can hold."""

    __slots__ = ()
    kind: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that it needs beside what every model does."""
    kept: ClassVar[bool] = False
    """Whether mapping a row takes longer than reading its features from disk, so that they are worth keeping there."""

    @property
    def classes(self) -> tuple[type, ...]:
        """Classes of this map and of those in it: their code is its own."""
        return (type(self),)

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of features that come out."""

    @abstractmethod
    def transform(self, features: Floats) -> Floats:
        """Map rows (m, d) to (m, dimension), each by itself."""

    def apply(self, features: Floats) -> Floats:
        """Map rows, as :meth:`transform` does: what the door calls."""
        return self.transform(features)


@dataclass(frozen=True, kw_only=True)
class PublicMap(ProjectionAlgorithm):
    """A map of rows that no row has any part in making: it costs nothing and is no release."""

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    reads_rows: ClassVar[bool] = False
    kept: ClassVar[bool] = False
    """Whether it takes seconds to make, from parameters and the rows' dimension alone, without drawing noise."""

    def map_for(self, dimension: int) -> RowFeatures | Projection:
        """Return the map of rows of so many features; a subclass says which, or overrides :meth:`fit`."""
        raise NotImplementedError

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> RowFeatures | Projection:
        """Return the map; reads no row and draws no noise."""
        return self.map_for(setting.dimension)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of features of the map; said without making it where that takes long."""
        return self.map_for(dimension).dimension

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return a guarantee without cost."""
        return Guarantee(losses=(), neighbours=setting.neighbours)

    def work(self, setting: Setting) -> Work:
        """Return what making the map and mapping each row once asks of a machine; by default next to no time."""
        return Work(row=8 * 2 * self.output_dimension(setting.dimension))

    def stored_as(self, spec: AlgorithmSpec, dimension: int) -> AlgorithmSpec:
        """Return what is made and stored for this map, of which it may be a part; ``spec`` is its own."""
        return spec

    def part_of(self, stored: RowFeatures) -> RowFeatures:
        """Return the map as a part of what is stored for it."""
        return stored


@dataclass(frozen=True, kw_only=True)
class FileMap(ABC):
    """A map that somebody's file says: what is registered under ``encoders``, one class a file format."""

    source: ClassVar[str]
    normalisation: ClassVar[str] = "none"
    """The map of rows that comes before it: encoders want rows as they are registered."""
    largest: ClassVar[int] = 2**29
    """Bytes of a file at most: it is stored in the root and again in each logged model."""

    @abstractmethod
    def read(self, content: bytes, dimension: int) -> RowFeatures:
        """Return the map of a file for rows of ``dimension`` features.

        Raises
        ------
        ParameterError
            If the file says no such map.
        """

    @abstractmethod
    def outside(self, content: bytes) -> str:
        """Return in one sentence whose rows the guarantee leaves out because of the file."""


def image_shape(dimension: int, shape: Sequence[int] | None) -> tuple[int, int, int]:
    """Return (channels, height, width) of rows that are images, channel by channel, row by row.

    Parameters
    ----------
    dimension : int
        Features a row.
    shape : sequence of int, optional
        (height, width) or (channels, height, width); by default a square image of one channel, or of three.

    Raises
    ------
    ParameterError
        If rows of this dimension are no such images.
    """
    if shape is not None:
        sizes = tuple(int(size) for size in shape)
        if len(sizes) not in (2, 3) or min(sizes) < 1 or math.prod(sizes) != dimension:
            raise ParameterError(
                f"shape is {list(sizes)}; rows have {dimension} features: give height and width, or channels, height "
                "and width, with that product"
            )
        return (1, *sizes) if len(sizes) == 2 else (sizes[0], sizes[1], sizes[2])
    for channels in (1, 3):
        side = math.isqrt(dimension // channels)
        if channels * side * side == dimension:
            return channels, side, side
    raise ParameterError(
        f"rows with {dimension} features are no square images of one channel or three; give shape=[height, width]"
    )
