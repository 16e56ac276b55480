"""Histograms of oriented gradients of images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.features.public_map import ImageMap, RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import COUNT, ParameterError
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, for_each, pieces

_LEAST_NORM = 1e-5
_CLIP = 0.2
_BATCH_ENTRIES = 2**18


@released_kind("hog-features")
@dataclass(frozen=True, slots=True)
class HogFeatures(RowFeatures):
    """A map from images to their histograms of oriented gradients, scaled to norm 1.

    Parameters
    ----------
    layout : array of 6 int
        Channels, height, width, side of a cell in pixels, bins, side of a block in cells.
    """

    layout: Ints

    @property
    def dimension(self) -> int:
        """Number of features."""
        _, height, width, cell, bins, block = (int(size) for size in self.layout)
        return (height // cell - block + 1) * (width // cell - block + 1) * block * block * bins

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, dimension), rows of norm 1 (or 0, for flat images)."""
        from dpalgos.features._compiled import histograms

        channels, height, width, cell, bins, block = (int(size) for size in self.layout)
        out = np.empty((len(features), self.dimension))
        angles = np.arange(1, bins) * (np.pi / bins)
        borders = np.stack([np.cos(angles), np.sin(angles)], axis=1)

        def batch(part: slice[int, int, None]) -> None:
            images = np.asarray(features[part], dtype=np.float64).reshape(-1, channels, height, width)
            cells = np.empty((height // cell, width // cell, bins))
            histograms(images, cell, block, _LEAST_NORM, _CLIP, borders, cells, out[part])

        for_each(batch, pieces(len(features), features.shape[1], _BATCH_ENTRIES))
        return out


@register("projections", "hog")
@dataclass(frozen=True, kw_only=True)
class Hog(ImageMap):
    """Histograms of oriented gradients: per cell, gradients counted by direction; per block of cells, normalised.

    Guarantee
    ---------
    No privacy cost: each image is mapped by itself, with public parameters. The result has norm 1.

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

    cell: int = field(default=4, metadata=COUNT)
    bins: int = field(default=9, metadata=COUNT)
    block: int = field(default=2, metadata=COUNT)
    source: ClassVar[str] = "Dalal, Triggs 2005; Wang et al. 2024, section 5.2.1"

    def map_for(self, dimension: int) -> HogFeatures:
        """Return the map of rows of so many features."""
        channels, height, width = self.sizes(dimension)
        if min(height, width) < self.cell * self.block:
            raise ParameterError(
                f"images of {height} x {width} pixels hold no block of {self.block} cells of {self.cell} pixels; "
                "choose a smaller cell or block"
            )
        return HogFeatures(layout=np.array([channels, height, width, self.cell, self.bins, self.block]))
