"""Likeness of an image's patches to filters: random patches, or the centroids of a dictionary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpalgos.algorithms import Work
from dpalgos.features.public_map import ImageMap, RowFeatures
from dpalgos.features.random_images import drawn_pairs
from dpalgos.guarantees import Setting
from dpalgos.models import released_kind
from dpalgos.parameters import COUNT, NATURAL, POSITIVE, ParameterError
from dpalgos.registry import lookup, register
from dpalgos.rows import Array, Floats, Ints, for_each, pieces

# Images of one piece of work.
_IMAGES = 16
_SMALL = 1e-3


@released_kind("patch-features")
@dataclass(frozen=True, slots=True)
class PatchFeatures(RowFeatures):
    """Patches, each centred and scaled to norm 1, times filters; both signs rectified, averaged over cells; norm 1.

    Computed in the precision of the filters.

    Parameters
    ----------
    layout : array of 5 or 6 int
        Channels, height, width, side of a patch, cells a side; whether features are averaged over the image and its
        mirror image (then the second half of the filters are the mirror images of the first).
    filters : array (channels · side², F)
    offset : array (F,), optional
        Added to the filters' answers. Where there is one, cells of unequal size overlap by a patch, so that the mirror
        image's are the mirrored ones.
    curve : array of 3 float
        What is taken off the magnitude of an answer, the power that means are raised to, what is added to the norm of
        a patch.
    """

    layout: Ints
    filters: Floats
    offset: Floats = field(default_factory=lambda: np.zeros(0))
    curve: Floats = field(default_factory=lambda: np.array([0.0, 1.0, _SMALL]))
    kept: ClassVar[bool] = True

    @property
    def dimension(self) -> int:
        """Number of features: 2 F cells², half of it where features are averaged over mirror images."""
        return 2 * int(self.filters.shape[1]) * int(self.layout[4]) ** 2 // (2 if self._mirror else 1)

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, dimension), rows of norm 1 (or 0, for flat images)."""
        from dpalgos.features._compiled import average, patches_of

        channels, height, width, side, cells = (int(size) for size in self.layout[:5])
        places, count = (height - side + 1, width - side + 1), self.filters.shape[1]
        kind, power = self.filters.dtype, float(self.curve[1])
        offset = np.zeros(count, dtype=kind) if not len(self.offset) else self.offset.astype(kind)
        borders = np.array(
            [[*down, *across] for down in self._cells(places[0], cells) for across in self._cells(places[1], cells)]
        )
        out = np.empty((len(features), self.dimension))

        def batch(part: slice[int, int, None]) -> None:
            patches = np.empty((places[0] * places[1], channels * side * side), dtype=kind)
            answers = np.empty((len(patches), count), dtype=kind)
            pooled = np.empty((cells * cells, 2, count), dtype=kind)
            for row, image in zip(out[part], features[part], strict=True):
                shaped = np.asarray(image, dtype=kind).reshape(channels, height, width)
                patches_of(shaped, side, float(self.curve[2]), patches)
                # One image at a time: a row's features do not depend on the rows beside it.
                np.matmul(patches, self.filters, out=answers)
                average(answers, places[1], borders, offset, self.curve[:1].astype(kind), pooled)
                powers = np.asarray(pooled if power == 1.0 else pooled**power, dtype=np.float64)
                if self._mirror:
                    half, mirrored = count // 2, powers.reshape(cells, cells, 2, count)[:, ::-1].reshape(powers.shape)
                    powers = (powers[..., :half] + mirrored[..., half:]) / 2.0
                norm = np.linalg.norm(powers)
                row[:] = powers.ravel() / (norm if norm > 0 else 1.0)

        for_each(batch, pieces(len(features), 1, _IMAGES))
        return out

    def arrays(self) -> dict[str, Array]:
        """Return layout and filters, and what differs from rectified answers."""
        more = {"offset": self.offset, "curve": self.curve} if len(self.offset) else {}
        return {"layout": self.layout, "filters": self.filters, **more}

    @property
    def _mirror(self) -> bool:
        return len(self.layout) > 5 and bool(self.layout[5])

    def _cells(self, size: int, cells: int) -> Iterator[tuple[int, int]]:
        """Yield first place and place after the last of each cell, which differ in size by a patch at most."""
        for cell in range(cells):
            last = (cell + 1) * size
            yield cell * size // cells, (-(-last // cells) if len(self.offset) else last // cells)


@register("projections", "patches")
@dataclass(frozen=True, kw_only=True)
class RandomPatches(ImageMap):
    """Similarity of an image's patches to random filters, per place: contrast-normalised, rectified, pooled.

    Guarantee
    ---------
    No privacy cost: filters are drawn with a public seed, and each image is mapped by itself. Its rows have norm 1 (or
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

    filters: int = field(default=64, metadata=COUNT)
    side: int = field(default=5, metadata=COUNT)
    cells: int = field(default=4, metadata=COUNT)
    seed: int = field(default=0, metadata=NATURAL)
    source: ClassVar[str] = "Coates, Ng, Lee 2011"

    def map_for(self, dimension: int) -> PatchFeatures:
        """Return the map of rows of so many features."""
        channels, height, width = self.sizes(dimension)
        require_cells((channels, height, width), self.side, self.cells)
        drawn = np.random.default_rng(self.seed).standard_normal((channels * self.side**2, self.filters))
        drawn -= drawn.mean(axis=0)
        lengths = np.linalg.norm(drawn, axis=0)
        filters = drawn / np.where(lengths > 0, lengths, 1.0)
        return PatchFeatures(layout=np.array([channels, height, width, self.side, self.cells]), filters=filters)


def require_cells(shape: tuple[int, int, int], side: int, cells: int) -> None:
    """Raise unless images (channels, height, width) have so many cells a side of patches of this side.

    Raises
    ------
    ParameterError
        If they are too small.
    """
    _, height, width = shape
    if min(height, width) - side + 1 < cells:
        raise ParameterError(
            f"images of {height} x {width} pixels have no {cells} x {cells} cells of patches of "
            f"{side} pixels; choose fewer cells or smaller patches"
        )


_PATCHES, _STEPS, _BATCH = 40, 80, 8192
# Added to the eigenvalues of the patches' covariance, and to a patch's norm, where patches have variance 1 a pixel and
# images norm 1.
_FLOOR, _SMALLEST_NORM = 0.1, 4e-3


@register("projections", "dictionary")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dictionary(ImageMap):
    """Similarity of an image's patches to patches of synthetic images, per place.

    Patches of synthetic images are contrast-normalised and whitened (ZCA); the centroids of a mini-batch k-means over
    them are the filters. What filters answer to an image's patches is rectified above a threshold, both signs apart,
    averaged over cells, and its root is taken.

    Guarantee
    ---------
    No privacy cost: filters are made from the seed, and each image is mapped by itself. Its rows have norm 1 (or 0).

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
    seed, shape
        See :class:`RandomPatches`.

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
    source: ClassVar[str] = "ours; Coates, Ng, Lee 2011 on synthetic patches"
    kept: ClassVar[bool] = True

    def output_dimension(self, dimension: int) -> int:
        """Return the number of features."""
        require_cells(self.sizes(dimension), self.side, self.cells)
        return 2 * self.filters * self.cells**2

    @classmethod
    def composed_of(cls, parameters: Mapping[str, Any]) -> tuple[type, ...]:
        """Return the random processes' classes: their code is this one's too."""
        return tuple(lookup("processes", name) for name in parameters.get("processes", ("dead-leaves",)))

    def work(self, setting: Setting) -> Work:
        """Return that of the filters' answers."""
        channels, height, width = self.sizes(setting.dimension)
        places = (height - self.side + 1) * (width - self.side + 1)
        answers = 2.0 * self.filters * (2 if self.mirror else 1) * channels * self.side**2 * places
        return Work(operations=answers * setting.rows, row=8 * 2 * self.output_dimension(setting.dimension))

    def map_for(self, dimension: int) -> PatchFeatures:
        """Return the filters for rows of so many features."""
        channels, height, width = shape = self.sizes(dimension)
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
        centroids = _centroids(patches @ whitener, self.filters, random)
        if self.mirror:
            centroids = np.concatenate([centroids, self._mirrored(centroids, channels)])
        filters = whitener @ centroids.T
        return PatchFeatures(
            layout=np.array([channels, height, width, self.side, self.cells, int(self.mirror)]),
            # Patches of the map have norm 1 instead of variance 1.
            filters=(math.sqrt(size) * filters).astype(np.float32),
            offset=-(mean @ filters).astype(np.float32),
            curve=np.array([self.threshold, 0.5, _SMALLEST_NORM]),
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
        return np.asarray(patches * (math.sqrt(patches.shape[1]) / (norms + _SMALLEST_NORM)))

    def _mirrored(self, patches: Floats, channels: int) -> Floats:
        return np.asarray(patches.reshape(-1, channels, self.side, self.side)[..., ::-1].reshape(patches.shape))


def _centroids(points: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return the directions (count, d) of centroids of a mini-batch k-means (Sculley, WWW 2010) over points (m, d)."""
    centroids = points[random.choice(len(points), count, replace=len(points) < count)].copy()
    members = np.ones(count)
    for _ in range(_STEPS):
        batch = points[random.integers(0, len(points), _BATCH)]
        nearest = (batch @ centroids.T - 0.5 * (centroids**2).sum(axis=1)).argmax(axis=1)
        new = np.bincount(nearest, minlength=count)
        members += new
        sums = np.zeros_like(centroids)
        np.add.at(sums, nearest, batch)
        centroids += (sums - new[:, None] * centroids) / members[:, None]
    return np.asarray(centroids / np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12))
