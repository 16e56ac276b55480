"""Histograms of oriented gradients, for whole blocks of images at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.arrays import Array
from dpalgos.errors import ParameterError
from dpalgos.features.public_map import PublicMap, RowFeatures, image_shape
from dpalgos.guarantees import Setting
from dpalgos.models import released_kind
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows

__all__ = ["Hog", "HogFeatures"]

_SMALL = 1e-5
_CLIP = 0.2
_BATCH = 1024


@released_kind
@dataclass(frozen=True, slots=True)
class HogFeatures(RowFeatures):
    """A map from images to their histograms of oriented gradients, scaled to norm 1.

    Parameters
    ----------
    layout : array of 6 int
        Channels, height, width, side of a cell in pixels, bins, side of a block in cells.
    """

    layout: Ints
    kind: ClassVar[str] = "hog-features"

    @property
    def dimension(self) -> int:
        """Number of features."""
        _, height, width, cell, bins, block = (int(size) for size in self.layout)
        return (height // cell - block + 1) * (width // cell - block + 1) * block * block * bins

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, dimension), rows of norm 1 (or 0, for flat images)."""
        parts = [self._batch(features[start : start + _BATCH]) for start in range(0, len(features), _BATCH)]
        return np.concatenate(parts) if parts else np.zeros((0, self.dimension))

    def arrays(self) -> dict[str, Array]:
        """Return the layout."""
        return {"layout": self.layout}

    def _batch(self, features: Floats) -> Floats:
        channels, height, width, cell, bins, block = (int(size) for size in self.layout)
        images = features.reshape(len(features), channels, height, width)
        down, across = np.zeros_like(images), np.zeros_like(images)
        down[:, :, 1:-1] = images[:, :, 2:] - images[:, :, :-2]
        across[..., 1:-1] = images[..., 2:] - images[..., :-2]
        magnitude = np.hypot(across, down)
        # Of several channels, each pixel takes the one with the largest gradient.
        strongest = magnitude.argmax(axis=1)[:, None]
        down, across, magnitude = (
            np.take_along_axis(array, strongest, axis=1)[:, 0] for array in (down, across, magnitude)
        )
        angle = np.rad2deg(np.arctan2(down, across)) % 180.0
        place = np.minimum((angle * bins / 180.0).astype(np.int64), bins - 1)
        rows, columns = height // cell, width // cell
        inside = (slice(None), slice(0, rows * cell), slice(0, columns * cell))
        cells = np.empty((len(images), rows, columns, bins))
        for index in range(bins):
            chosen = np.where(place == index, magnitude, 0.0)[inside]
            cells[..., index] = chosen.reshape(len(images), rows, cell, columns, cell).mean(axis=(2, 4))
        windows = np.lib.stride_tricks.sliding_window_view(cells, (block, block), axis=(1, 2))
        blocks = np.moveaxis(windows, 3, 5).reshape(len(images), rows - block + 1, columns - block + 1, -1)
        for limit in (_CLIP, math.inf):
            blocks = blocks / np.sqrt((blocks**2).sum(axis=-1, keepdims=True) + _SMALL**2)
            blocks = np.minimum(blocks, limit)
        flat = blocks.reshape(len(images), -1)
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        return np.asarray(flat / np.where(norms > 0, norms, 1.0))


@register("projections", "hog")
@dataclass(frozen=True, kw_only=True)
class Hog(PublicMap):
    """Histograms of oriented gradients: per cell, gradients counted by direction; per block of cells, normalised.

    Guarantee
    ---------
    Costs nothing: each image is mapped by itself, with public parameters. The result has norm 1.

    Parameters
    ----------
    cell : int
        Side of a cell in pixels; cells do not overlap.
    bins : int
        Directions in half a turn.
    block : int
        Side of a block in cells; blocks move by one cell.
    shape : sequence of int, optional
        Of the images; square ones by default.

    References
    ----------
    Dalal, Triggs, CVPR 2005 (L2-Hys normalisation); with cell 4, 9 bins, block 2 and step 4 in Wang et al. 2024,
    section 5.2.1. Equal to ``skimage.feature.hog``, but for the last scaling.
    """

    cell: int = 4
    bins: int = 9
    block: int = 2
    shape: Sequence[int] | None = None
    source: ClassVar[str] = "Dalal, Triggs 2005; Wang et al. 2024, section 5.2.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cell", "bins", "block"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)!r}; it must be at least 1")

    def output_dimension(self, dimension: int) -> int:
        """Return the number of features."""
        return self._features(dimension).dimension

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> HogFeatures:
        """Return the map."""
        return self._features(setting.dimension)

    def _features(self, dimension: int) -> HogFeatures:
        channels, height, width = image_shape(dimension, self.shape)
        if min(height, width) < self.cell * self.block:
            raise ParameterError(
                f"images of {height} x {width} pixels hold no block of {self.block} cells of {self.cell} pixels; "
                "choose a smaller cell or block"
            )
        return HogFeatures(layout=np.array([channels, height, width, self.cell, self.bins, self.block]))
