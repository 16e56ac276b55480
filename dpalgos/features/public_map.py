"""Maps made from public parameters alone: what they have in common, linear ones, elementwise ones, Fourier features."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import Directions, ProjectionAlgorithm, Work, require_components
from dpalgos.guarantees import RELATIONS, Guarantee, Neighbours, Setting
from dpalgos.models import ArrayFields, Projection, released_kind
from dpalgos.parameters import COUNT, NATURAL, POSITIVE, ParameterError, between
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, NoiseSource, Rows, row_products, unit_rows

if TYPE_CHECKING:
    from dpalgos.registry import AlgorithmSpec


class RowFeatures(ArrayFields, ABC):
    """The function that a public map makes: of one row at a time, made of arrays, so that pipelines can hold it."""

    __slots__ = ()
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
    """A map of rows that no row has any part in making: it has no privacy cost and is not a release."""

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
class ImageMap(PublicMap):
    """A public map of images.

    Parameters
    ----------
    shape : sequence of int, optional
        Of the images; square ones by default.
    """

    shape: Sequence[int] | None = None

    def sizes(self, dimension: int) -> tuple[int, int, int]:
        """Return (channels, height, width) of rows of so many features."""
        return image_shape(dimension, self.shape)


@dataclass(frozen=True, kw_only=True)
class FileMap(ABC):
    """A map defined by a user's file: registered under ``encoders``, one class per file format."""

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

    def output_dimension(self, features: RowFeatures, dimension: int) -> int:
        """Return the number of features of the finished map, which is not made; ``features`` is what was read."""
        return features.dimension

    def finished(self, features: RowFeatures, dimension: int) -> RowFeatures:
        """Return the map that rows pass, made of what was read; reads no row. By default it is what was read."""
        return features

    @abstractmethod
    def outside(self, content: bytes) -> str:
        """Return whose rows the guarantee leaves out because of the file, as a code (:mod:`dpalgos.sentences`)."""


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
        If rows of this dimension are not such images.
    """
    if shape is not None:
        sizes = tuple(int(size) for size in shape)
        if len(sizes) not in (2, 3) or min(sizes) < 1 or math.prod(sizes) != dimension:
            raise ParameterError(
                f"shape is {list(sizes)}; rows have {dimension} features: give height and width, or channels, height "
                "and width, whose product is that number"
            )
        return (1, *sizes) if len(sizes) == 2 else (sizes[0], sizes[1], sizes[2])
    for channels in (1, 3):
        side = math.isqrt(dimension // channels)
        if channels * side * side == dimension:
            return channels, side, side
    raise ParameterError(
        f"rows with {dimension} features are not square images of one or three channels; give shape=[height, width]"
    )


@register("projections", "dct")
@dataclass(frozen=True, kw_only=True)
class LowFrequencies(Directions, ImageMap):
    """The lowest frequencies of images' two-dimensional discrete cosine transform (type II, orthonormal).

    Guarantee
    ---------
    No privacy cost: the basis is made from the image's shape. It is orthonormal, so rows stay in the unit ball.

    Parameters
    ----------
    components : int
        Number of frequencies k, ordered by the sum of their two indices, then channel by channel.
    shape : sequence of int, optional
        Of the images; square ones by default.
    """

    source: ClassVar[str] = "Ahmed, Natarajan, Rao 1974"

    def map_for(self, dimension: int) -> Projection:
        """Return the basis."""
        require_components(self.components, dimension)
        channels, height, width = self.sizes(dimension)
        down, across = (scipy.fft.dct(np.eye(size), norm="ortho", axis=0).T for size in (height, width))
        waves = [
            (u + v, max(u, v), u, channel, np.outer(down[:, u], across[:, v]))
            for channel in range(channels)
            for u in range(height)
            for v in range(width)
        ]
        basis = np.zeros((dimension, self.components))
        order = sorted(range(len(waves)), key=lambda place: waves[place][:4])
        for column, place in enumerate(order[: self.components]):
            channel, wave = waves[place][3], waves[place][4]
            start = channel * height * width
            basis[start : start + height * width, column] = wave.ravel()
        return Projection(basis=basis)


@register("projections", "random-projection")
@dataclass(frozen=True, kw_only=True)
class RandomProjection(Directions, PublicMap):
    """A random k-dimensional subspace, drawn with a public seed.

    Guarantee
    ---------
    No privacy cost: the basis is made from the seed. It is orthonormal times √(d/k), so that lengths are kept on
    average; rows longer than 1 are clipped by the next reader.

    Parameters
    ----------
    components : int
        Number of directions k.
    seed : int
        Public.

    References
    ----------
    Johnson, Lindenstrauss 1984; Blocki, Blum, Datta, Sheffet 2012 on what it does not give by itself.
    """

    seed: int = field(default=0, metadata=NATURAL)
    source: ClassVar[str] = "Johnson, Lindenstrauss 1984"

    def map_for(self, dimension: int) -> Projection:
        """Return the basis."""
        require_components(self.components, dimension)
        draws = np.random.default_rng(self.seed).standard_normal((dimension, self.components))
        directions, upper = np.linalg.qr(draws)
        scale = math.sqrt(dimension / self.components)
        return Projection(basis=scale * directions * np.sign(np.diagonal(upper)))


@register("projections", "pooling")
@dataclass(frozen=True, kw_only=True)
class AveragePooling(ImageMap):
    """Sums over square blocks of pixels, divided by the root of their number.

    Guarantee
    ---------
    No privacy cost: the basis is made from the image's shape. It is orthonormal, so rows stay in the unit ball.

    Parameters
    ----------
    size : int
        Side of a block; blocks at the border may be smaller.
    shape : sequence of int, optional
        Of the images; square ones by default.
    """

    size: int = field(default=2, metadata=COUNT)
    source: ClassVar[str] = "average pooling"

    def output_dimension(self, dimension: int) -> int:
        """Return the number of blocks."""
        channels, height, width = self.sizes(dimension)
        return channels * -(-height // self.size) * -(-width // self.size)

    def map_for(self, dimension: int) -> Projection:
        """Return the basis."""
        channels, height, width = self.sizes(dimension)
        channel, row, column = np.indices((channels, height, width)).reshape(3, -1)
        across = -(-width // self.size)
        block = (channel * -(-height // self.size) + row // self.size) * across + column // self.size
        basis: Floats = np.zeros((dimension, self.output_dimension(dimension)))
        basis[np.arange(dimension), block] = 1.0
        if not basis.any(axis=0).all():
            raise ParameterError(f"size is {self.size!r}, which leaves empty blocks; choose a smaller size")
        return Projection(basis=basis / np.sqrt(basis.sum(axis=0)))


@released_kind("elementwise-features")
@dataclass(frozen=True, slots=True)
class ElementwiseFeatures(RowFeatures):
    """The map x ↦ u/‖u‖ with uᵢ = sign(xᵢ) g(|xᵢ|), g(v) = v^power, or ln(1 + scale·v) where the power is 0.

    Parameters
    ----------
    size : array of 1 int
        Number of features, which stays.
    curve : array (2,)
        Power and scale.
    """

    size: Ints
    curve: Floats

    @property
    def dimension(self) -> int:
        """Number of features."""
        return int(self.size[0])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, d), rows of norm 1 (or 0, for zero rows)."""
        power, scale = self.curve
        sizes = np.abs(np.asarray(features, dtype=np.float64))
        curved = np.sign(features) * (sizes**power if power > 0 else np.log1p(scale * sizes))
        return unit_rows(curved)


@register("projections", "signed-root")
@dataclass(frozen=True, kw_only=True)
class SignedRoot(PublicMap):
    """The signed square root of every number, then rows scaled to norm 1; for histograms, the Hellinger map.

    Guarantee
    ---------
    No privacy cost: each row is mapped by itself, with public parameters. Its rows have norm 1 (or 0).

    Parameters
    ----------
    power : float
        In (0, 1]; ½ is the square root.

    References
    ----------
    Perronnin, Sánchez, Mensink, ECCV 2010 (power normalisation); Arandjelović, Zisserman, CVPR 2012 (Hellinger).
    """

    power: float = field(default=0.5, metadata=between(0.0, 1.0, open_low=True))
    source: ClassVar[str] = "Perronnin, Sánchez, Mensink 2010"

    def map_for(self, dimension: int) -> ElementwiseFeatures:
        """Return the curve for rows of so many features."""
        return ElementwiseFeatures(size=np.array([dimension]), curve=np.array([self.power, 1.0]))


@register("projections", "signed-log")
@dataclass(frozen=True, kw_only=True)
class SignedLogarithm(PublicMap):
    """sign(x)·ln(1 + scale·|x|) of every number, then rows scaled to norm 1.

    Guarantee
    ---------
    No privacy cost: each row is mapped by itself, with public parameters. Its rows have norm 1 (or 0).

    Parameters
    ----------
    scale : float
        What is large; below 1/scale the map is nearly linear.
    """

    scale: float = field(default=100.0, metadata=POSITIVE)
    source: ClassVar[str] = "logarithmic compression"

    def map_for(self, dimension: int) -> ElementwiseFeatures:
        """Return the curve for rows of so many features."""
        return ElementwiseFeatures(size=np.array([dimension]), curve=np.array([0.0, self.scale]))


@released_kind("fourier-features")
@dataclass(frozen=True, slots=True)
class FourierFeatures(RowFeatures):
    """The map x ↦ (cos ωᵢ·x, sin ωᵢ·x)/√D, rows of norm exactly 1.

    Parameters
    ----------
    frequencies : array (d, D)
    """

    frequencies: Floats

    @property
    def dimension(self) -> int:
        """Number of features, 2D."""
        return 2 * int(self.frequencies.shape[1])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, 2D)."""
        phases = row_products(features, self.frequencies)
        return np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(self.frequencies.shape[1])


@register("projections", "random-fourier")
@dataclass(frozen=True, kw_only=True)
class RandomFourier(PublicMap):
    """Features whose inner products approximate exp(−γ‖x − x′‖²), frequencies drawn with a public seed.

    Guarantee
    ---------
    No privacy cost: the map is made from the seed. Its rows have norm 1.

    Parameters
    ----------
    frequencies : int
        D; there are twice as many features.
    gamma : float
        γ of the kernel.
    seed : int
        Public.

    References
    ----------
    Rahimi, Recht, NeurIPS 2007; for private SVMs Rubinstein, Bartlett, Huang, Taft, JPC 4 (2012).
    """

    frequencies: int = field(default=256, metadata=COUNT)
    gamma: float = field(default=1.0, metadata=POSITIVE)
    seed: int = field(default=0, metadata=NATURAL)
    source: ClassVar[str] = "Rahimi, Recht 2007"

    def map_for(self, dimension: int) -> FourierFeatures:
        """Return the frequencies for rows of so many features."""
        draws = np.random.default_rng(self.seed).standard_normal((dimension, self.frequencies))
        return FourierFeatures(frequencies=math.sqrt(2.0 * self.gamma) * draws)
