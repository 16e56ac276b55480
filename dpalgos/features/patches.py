"""Random filters over an image's patches, rectified and pooled: a convolutional layer that is never trained."""

from __future__ import annotations

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
from dpalgos.validation import require_count

__all__ = ["PatchFeatures", "RandomPatches"]

_BATCH_ENTRIES = 2**24
_SMALL = 1e-3


@released_kind
@dataclass(frozen=True, slots=True)
class PatchFeatures(RowFeatures):
    """Patches, each centred and scaled to norm 1, times filters; both signs rectified, averaged over cells; norm 1.

    Parameters
    ----------
    layout : array of 5 int
        Channels, height, width, side of a patch, cells a side.
    filters : array (channels · side², F)
    """

    layout: Ints
    filters: Floats
    kind: ClassVar[str] = "patch-features"

    @property
    def dimension(self) -> int:
        """Number of features, 2 F cells²."""
        return 2 * int(self.filters.shape[1]) * int(self.layout[4]) ** 2

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, dimension), rows of norm 1 (or 0, for flat images)."""
        channels, height, width, side, _ = (int(size) for size in self.layout)
        count = (height - side + 1) * (width - side + 1)
        batch = max(1, _BATCH_ENTRIES // (count * max(channels * side * side, 2 * self.filters.shape[1])))
        parts = [self._batch(features[start : start + batch]) for start in range(0, len(features), batch)]
        return np.concatenate(parts) if parts else np.zeros((0, self.dimension))

    def arrays(self) -> dict[str, Array]:
        """Return layout and filters."""
        return {"layout": self.layout, "filters": self.filters}

    def _batch(self, features: Floats) -> Floats:
        channels, height, width, side, cells = (int(size) for size in self.layout)
        images = np.asarray(features, dtype=np.float64).reshape(len(features), channels, height, width)
        windows = np.lib.stride_tricks.sliding_window_view(images, (side, side), axis=(2, 3))
        patches = np.moveaxis(windows, 1, 3).reshape(len(images), *windows.shape[2:4], -1)
        patches = patches - patches.mean(axis=-1, keepdims=True)
        patches /= np.linalg.norm(patches, axis=-1, keepdims=True) + _SMALL
        answers = patches @ self.filters
        both = np.concatenate([np.maximum(answers, 0.0), np.maximum(-answers, 0.0)], axis=-1)
        # Cells that differ in size by a patch at most; each is at least one.
        down, across = (np.linspace(0, size, cells + 1).astype(int) for size in both.shape[1:3])
        pooled = [
            both[:, down[i] : down[i + 1], across[j] : across[j + 1]].mean(axis=(1, 2))
            for i in range(cells)
            for j in range(cells)
        ]
        flat = np.concatenate(pooled, axis=1)
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        return np.asarray(flat / np.where(norms > 0, norms, 1.0))


@register("projections", "patches")
@dataclass(frozen=True, kw_only=True)
class RandomPatches(PublicMap):
    """How much an image's patches look like random filters, by place: contrast-normalised, rectified, pooled.

    Guarantee
    ---------
    Costs nothing: filters are drawn with a public seed, and each image is mapped by itself. Its rows have norm 1 (or
    0). (Filters learnt from patches of the images, as in the reference, would be a release.)

    Parameters
    ----------
    filters : int
        F; there are 2 F features a cell.
    side : int
        Of a patch, in pixels.
    cells : int
        A side, over which filters' answers are averaged.
    seed : int
        Public.
    shape : sequence of int, optional
        Of the images; square ones by default.

    References
    ----------
    Coates, Ng, Lee, AISTATS 2011 (patches, triangle features, pooling; random filters in section 4).
    """

    filters: int = 64
    side: int = 5
    cells: int = 4
    seed: int = 0
    shape: Sequence[int] | None = None
    source: ClassVar[str] = "Coates, Ng, Lee 2011"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("filters", "side", "cells"):
            require_count(name, getattr(self, name))
        require_count("seed", self.seed, 0)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of features."""
        return self._features(dimension).dimension

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> PatchFeatures:
        """Return the map."""
        return self._features(setting.dimension)

    def _features(self, dimension: int) -> PatchFeatures:
        channels, height, width = image_shape(dimension, self.shape)
        if min(height, width) - self.side + 1 < self.cells:
            raise ParameterError(
                f"images of {height} x {width} pixels have no {self.cells} x {self.cells} cells of patches of "
                f"{self.side} pixels; choose fewer cells or smaller patches"
            )
        drawn = np.random.default_rng(self.seed).standard_normal((channels * self.side**2, self.filters))
        drawn -= drawn.mean(axis=0)
        lengths = np.linalg.norm(drawn, axis=0)
        filters = drawn / np.where(lengths > 0, lengths, 1.0)
        return PatchFeatures(layout=np.array([channels, height, width, self.side, self.cells]), filters=filters)
