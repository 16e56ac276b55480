"""Filters learnt by k-means from patches of synthetic images: a convolutional layer that no row has a part in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpalgos.features.patches import PatchFeatures, require_cells
from dpalgos.features.public_map import PublicMap, image_shape
from dpalgos.features.random_images import drawn_pairs
from dpalgos.guarantees import Setting
from dpalgos.noise import NoiseSource
from dpalgos.parameters import COUNT, NATURAL, POSITIVE
from dpalgos.registry import lookup, register
from dpalgos.resources import Work
from dpalgos.rows import Floats, Rows

_PATCHES, _STEPS, _BATCH = 40, 80, 8192
# Added to the eigenvalues of the patches' covariance, and to a patch's norm, where patches have variance 1 a pixel and
# images norm 1.
_FLOOR, _SMALL = 0.1, 4e-3


@register("projections", "dictionary")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dictionary(PublicMap):
    """How much an image's patches look like those of synthetic images, by place.

    Patches of synthetic images are contrast-normalised and whitened (ZCA); the centroids of a mini-batch k-means over
    them are the filters. What filters answer to an image's patches is rectified above a threshold, both signs apart,
    averaged over cells, and its root is taken.

    Guarantee
    ---------
    Costs nothing: filters are made from the seed, and each image is mapped by itself. Its rows have norm 1 (or 0).

    Parameters
    ----------
    filters : int
    side : int
        Of a patch, in pixels.
    cells : int
        A side, over which filters' answers are averaged.
    threshold : float
    processes : sequence of str
        Registered random processes, which draw as many images each.
    images : int
        Pairs of images that patches are taken from.
    mirror : bool
        Whether features are averaged over the image and its mirror image; then each filter's mirror image is one more.
    seed : int
        Public.
    shape : sequence of int, optional
        Of the images; square ones by default.

    References
    ----------
    Coates, Ng, Lee, AISTATS 2011, with synthetic patches in place of the images' own.
    """

    filters: int = field(default=400, metadata=COUNT)
    side: int = field(default=6, metadata=COUNT)
    cells: int = field(default=2, metadata=COUNT)
    threshold: float = field(default=0.25, metadata=POSITIVE)
    processes: Sequence[str] = ("dead-leaves",)
    images: int = field(default=3000, metadata=COUNT)
    mirror: bool = False
    seed: int = field(default=0, metadata=NATURAL)
    shape: Sequence[int] | None = None
    source: ClassVar[str] = "ours; Coates, Ng, Lee 2011 on synthetic patches"
    kept: ClassVar[bool] = True

    def output_dimension(self, dimension: int) -> int:
        """Return the number of features."""
        require_cells(image_shape(dimension, self.shape), self.side, self.cells)
        return 2 * self.filters * self.cells**2

    @classmethod
    def composed_of(cls, parameters: Mapping[str, Any]) -> tuple[type, ...]:
        """Return the random processes' classes: their code is this one's too."""
        return tuple(lookup("processes", name) for name in parameters.get("processes", ("dead-leaves",)))

    def work(self, setting: Setting) -> Work:
        """Return that of the filters' answers."""
        channels, height, width = image_shape(setting.dimension, self.shape)
        places = (height - self.side + 1) * (width - self.side + 1)
        answers = 2.0 * self.filters * (2 if self.mirror else 1) * channels * self.side**2 * places
        return Work(operations=answers * setting.rows, row=8 * 2 * self.output_dimension(setting.dimension))

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> PatchFeatures:
        """Return the map: neither rows nor noise have a part in it."""
        channels, height, width = shape = image_shape(setting.dimension, self.shape)
        require_cells(shape, self.side, self.cells)
        random = np.random.default_rng(self.seed)
        size = channels * self.side**2
        patches = self._patches(shape, random)
        flipped = self._mirrored(patches, channels)
        mean = (patches.mean(axis=0) + flipped.mean(axis=0)) / 2.0
        patches -= mean
        second = (patches.T @ patches + (flipped - mean).T @ (flipped - mean)) / (2.0 * len(patches))
        values, vectors = np.linalg.eigh(second.astype(np.float64))
        whitener = vectors @ np.diag((values + _FLOOR) ** -0.5) @ vectors.T
        found = _centroids(patches @ whitener, self.filters, random)
        if self.mirror:
            found = np.concatenate([found, self._mirrored(found, channels)])
        filters = whitener @ found.T
        return PatchFeatures(
            layout=np.array([channels, height, width, self.side, self.cells, int(self.mirror)]),
            # Patches of the map have norm 1 instead of variance 1.
            filters=(math.sqrt(size) * filters).astype(np.float32),
            offset=-(mean @ filters).astype(np.float32),
            curve=np.array([self.threshold, 0.5, _SMALL]),
        )

    def _patches(self, shape: tuple[int, int, int], random: np.random.Generator) -> Floats:
        """Return patches at random places of synthetic images, of mean 0 and about variance 1 each."""
        channels, height, width = shape
        drawn = [first for first, _ in drawn_pairs(self.processes, self.images, shape, random)]
        images = np.concatenate(drawn).reshape(-1, *shape)
        top = random.integers(0, height - self.side + 1, (len(images), _PATCHES))
        left = random.integers(0, width - self.side + 1, (len(images), _PATCHES))
        windows = np.lib.stride_tricks.sliding_window_view(images, (self.side, self.side), axis=(2, 3))
        chosen = windows[np.arange(len(images))[:, None], :, top, left]
        patches = chosen.reshape(-1, channels * self.side**2)
        patches = patches - patches.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(patches, axis=1, keepdims=True)
        return np.asarray(patches * (math.sqrt(patches.shape[1]) / (norms + _SMALL)))

    def _mirrored(self, patches: Floats, channels: int) -> Floats:
        return np.asarray(patches.reshape(-1, channels, self.side, self.side)[..., ::-1].reshape(patches.shape))


def _centroids(points: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return the directions (count, d) of centroids of a mini-batch k-means (Sculley, WWW 2010) over points (m, d)."""
    found = points[random.choice(len(points), count, replace=len(points) < count)].copy()
    members = np.ones(count)
    for _ in range(_STEPS):
        batch = points[random.integers(0, len(points), _BATCH)]
        nearest = (batch @ found.T - 0.5 * (found**2).sum(axis=1)).argmax(axis=1)
        new = np.bincount(nearest, minlength=count)
        members += new
        sums = np.zeros_like(found)
        np.add.at(sums, nearest, batch)
        found += (sums - new[:, None] * found) / members[:, None]
    return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12))
