"""Linear reductions that do not look at the rows: low frequencies, random directions, pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.errors import ParameterError
from dpalgos.features.public_map import PublicMap, image_shape
from dpalgos.guarantees import Setting
from dpalgos.models import Projection
from dpalgos.noise import NoiseSource
from dpalgos.parameters import COUNT, NATURAL
from dpalgos.registry import register
from dpalgos.rows import Floats, Rows
from dpalgos.validation import require_components


@register("projections", "dct")
@dataclass(frozen=True, kw_only=True)
class LowFrequencies(PublicMap):
    """The lowest frequencies of images' two-dimensional discrete cosine transform (type II, orthonormal).

    Guarantee
    ---------
    Costs nothing: the basis is made from the image's shape. It is orthonormal, so rows stay in the unit ball.

    Parameters
    ----------
    components : int
        Number of frequencies k, ordered by the sum of their two indices, then channel by channel.
    shape : sequence of int, optional
        Of the images; square ones by default.
    """

    components: int = field(default=20, metadata=COUNT)
    shape: Sequence[int] | None = None
    source: ClassVar[str] = "Ahmed, Natarajan, Rao 1974"

    def output_dimension(self, dimension: int) -> int:
        """Return the number of frequencies."""
        return self.components

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the basis."""
        require_components(self.components, setting)
        channels, height, width = image_shape(setting.dimension, self.shape)
        down, across = (scipy.fft.dct(np.eye(size), norm="ortho", axis=0).T for size in (height, width))
        waves = [
            (u + v, max(u, v), u, channel, np.outer(down[:, u], across[:, v]))
            for channel in range(channels)
            for u in range(height)
            for v in range(width)
        ]
        basis = np.zeros((setting.dimension, self.components))
        order = sorted(range(len(waves)), key=lambda place: waves[place][:4])
        for column, place in enumerate(order[: self.components]):
            channel, wave = waves[place][3], waves[place][4]
            start = channel * height * width
            basis[start : start + height * width, column] = wave.ravel()
        return Projection(basis=basis)


@register("projections", "random-projection")
@dataclass(frozen=True, kw_only=True)
class RandomProjection(PublicMap):
    """A random k-dimensional subspace, drawn with a public seed.

    Guarantee
    ---------
    Costs nothing: the basis is made from the seed. It is orthonormal times √(d/k), so that lengths are kept on
    average; rows that come out longer than 1 are clipped by whatever reads them next.

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

    components: int = field(default=20, metadata=COUNT)
    seed: int = field(default=0, metadata=NATURAL)
    source: ClassVar[str] = "Johnson, Lindenstrauss 1984"

    def output_dimension(self, dimension: int) -> int:
        """Return the number of directions."""
        return self.components

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the basis."""
        require_components(self.components, setting)
        draws = np.random.default_rng(self.seed).standard_normal((setting.dimension, self.components))
        directions, upper = np.linalg.qr(draws)
        scale = math.sqrt(setting.dimension / self.components)
        return Projection(basis=scale * directions * np.sign(np.diagonal(upper)))


@register("projections", "pooling")
@dataclass(frozen=True, kw_only=True)
class AveragePooling(PublicMap):
    """Sums over square blocks of pixels, divided by the root of their number.

    Guarantee
    ---------
    Costs nothing: the basis is made from the image's shape. It is orthonormal, so rows stay in the unit ball.

    Parameters
    ----------
    size : int
        Side of a block; blocks at the border may be smaller.
    shape : sequence of int, optional
        Of the images; square ones by default.
    """

    size: int = field(default=2, metadata=COUNT)
    shape: Sequence[int] | None = None
    source: ClassVar[str] = "average pooling"

    def output_dimension(self, dimension: int) -> int:
        """Return the number of blocks."""
        channels, height, width = image_shape(dimension, self.shape)
        return channels * -(-height // self.size) * -(-width // self.size)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the basis."""
        channels, height, width = image_shape(setting.dimension, self.shape)
        channel, row, column = np.indices((channels, height, width)).reshape(3, -1)
        across = -(-width // self.size)
        block = (channel * -(-height // self.size) + row // self.size) * across + column // self.size
        basis: Floats = np.zeros((setting.dimension, self.output_dimension(setting.dimension)))
        basis[np.arange(setting.dimension), block] = 1.0
        if not basis.any(axis=0).all():
            raise ParameterError(f"size is {self.size!r}; it leaves empty blocks")
        return Projection(basis=basis / np.sqrt(basis.sum(axis=0)))
