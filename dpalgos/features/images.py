"""Public maps of images: histograms of gradients, likeness of patches to filters, wavelet scattering."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.algorithms import Work
from dpalgos.features.public_map import ImageMap, RowFeatures
from dpalgos.features.random_images import drawn_pairs
from dpalgos.guarantees import Setting
from dpalgos.models import released_kind
from dpalgos.parameters import COUNT, NATURAL, POSITIVE, ParameterError, at_least, between
from dpalgos.registry import lookup, register
from dpalgos.rows import Array, Floats, Ints, for_each, pieces

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


# Images of one pass: about 4 MB of work space a thread, which caches hold. Fixed, so that a row's features do not
# depend on the machine.
_IMAGES_AT_ONCE = 16
# Gaussian envelopes and centre frequencies as in Bruna and Mallat's and Kymatio's filter banks.
_ENVELOPE, _FREQUENCY = 0.8, 0.75 * np.pi
# Brightness, and red against green and both against blue three times as strong; each of them of length 1 before.
_OPPONENT = np.array([[1.0, 1.0, 1.0], [3.0, -3.0, 0.0], [3.0, 3.0, -6.0]]) / np.sqrt([[3.0], [2.0], [6.0]])

_Complex = NDArray[np.complex64]
_Single = NDArray[np.float32]
_Number = TypeVar("_Number", bound=np.generic)


def _gabor(
    height: int, width: int, sigma: float, angle: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """Return a periodised Gabor filter (height, width) in space."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    curve = turn @ np.diag([1.0, slant**2]) @ turn.T / (2 * sigma**2)
    total = np.zeros((height, width), dtype=np.complex128)
    for down in range(-2, 3):
        for across in range(-2, 3):
            y, x = np.mgrid[down * height : (down + 1) * height, across * width : (across + 1) * width]
            exponent = -(curve[0, 0] * x * x + (curve[0, 1] + curve[1, 0]) * x * y + curve[1, 1] * y * y)
            wave = 1j * frequency * (x * np.cos(angle) + y * np.sin(angle))
            total += np.exp(exponent + wave)
    return total / (2 * np.pi * sigma**2 / slant)


def _morlet(height: int, width: int, sigma: float, angle: float, frequency: float, slant: float) -> NDArray[np.float32]:
    """Return the (real) Fourier transform of a Morlet wavelet: a Gabor filter less its mean."""
    wave = _gabor(height, width, sigma, angle, frequency, slant)
    envelope = _gabor(height, width, sigma, angle, 0.0, slant)
    wavelet = wave - envelope * (wave.sum() / envelope.sum())
    return np.asarray(np.real(scipy.fft.fft2(wavelet)), dtype=np.float32)


@lru_cache(maxsize=32)
def _averaging(size: int, pixels: int, sigma: float, places: int, aligned: bool) -> _Single:
    """Return the matrix (places, size) that averages a line of samples over Gaussian windows, one a place.

    The line covers ``pixels`` pixels of the image in ``size`` samples; windows repeat at the borders. Samples lie at
    every so many pixels from the first on; windows that are not ``aligned`` with that are half a sample off at most.
    """
    centres = np.arange(pixels) * size / pixels - (0.0 if aligned else 0.5 - 0.5 * size / pixels)
    samples = np.arange(size)
    away = (samples[None, :] - centres[:, None] + size / 2) % size - size / 2
    window = np.exp(-(away**2) / (2 * (sigma * size / pixels) ** 2))
    window /= window.sum(axis=1, keepdims=True)
    return np.asarray(window.reshape(places, pixels // places, size).mean(axis=1), dtype=np.float32)


@lru_cache(maxsize=8)
def _bank(height: int, width: int, scales: int, angles: int) -> tuple[tuple[_Single, ...], ...]:
    """Return, for each scale a wavelet responds to, its filters (angles, ·, ·) at every resolution it is used at.

    ``bank[j][r]`` are the filters of scale j on images whose resolution was halved r times.
    """
    bank = []
    for scale in range(scales):
        full = np.stack(
            [
                _morlet(
                    height,
                    width,
                    _ENVELOPE * 2**scale,
                    (angles // 2 - 1 - index) * np.pi / angles,
                    _FREQUENCY / 2**scale,
                    4.0 / angles,
                )
                for index in range(angles)
            ]
        )
        bank.append(tuple(_cropped(full, 2**halved) for halved in range(scale + 1)))
    return tuple(bank)


def _cropped(spectrum: NDArray[_Number], factor: int) -> NDArray[_Number]:
    """Return the low frequencies of a spectrum (…, h, w), of an image with ``factor`` times fewer pixels a side."""
    if factor == 1:
        return spectrum
    height, width = spectrum.shape[-2] // factor, spectrum.shape[-1] // factor
    rows = np.r_[0 : height // 2, spectrum.shape[-2] - height // 2 : spectrum.shape[-2]]
    columns = np.r_[0 : width // 2, spectrum.shape[-1] - width // 2 : spectrum.shape[-1]]
    return np.ascontiguousarray(spectrum[..., rows[:, None], columns])


def _low(half: _Complex, factor: int, width: int) -> _Complex:
    """Return the low frequencies (…, h, w) of images of real numbers, of even size, with ``factor`` times fewer pixels.

    Of their spectra, ``half`` (…, H, width // 2 + 1) has the columns that are not negative; the others are those
    reversed and conjugated.
    """
    full = half.shape[-2]
    height, kept = full // factor, width // factor
    spectrum = np.empty((*half.shape[:-2], height, kept), dtype=half.dtype)
    rows = np.r_[0 : height // 2, full - height // 2 : full]
    spectrum[..., : height // 2, : kept // 2] = half[..., : height // 2, : kept // 2]
    spectrum[..., height // 2 :, : kept // 2] = half[..., full - height // 2 :, : kept // 2]
    reversed_rows, reversed_columns = -rows % full, np.arange(kept // 2, 0, -1)
    np.conjugate(half[..., reversed_rows[:, None], reversed_columns], out=spectrum[..., kept // 2 :])
    return spectrum


def _over_mirror_images(coefficients: _Single, channels: int, scales: int, angles: int) -> _Single:
    """Return the mean of coefficients (m, down, across, channels · paths) of images and their mirror images.

    A mirror image has the same ones at mirrored places, and a wavelet across at an angle answers as that at the
    opposite angle did. So the left half of the means says it all.
    """
    mirrored, paths = (angles - 2 - np.arange(angles)) % angles, [0]
    for first in range(scales):
        paths.extend(len(paths) + mirrored)
        for _ in range(first + 1, scales):
            paths.extend(len(paths) + (mirrored[:, None] * angles + mirrored).ravel())
    every = (np.arange(channels)[:, None] * len(paths) + np.array(paths)).ravel()
    kept = -(-coefficients.shape[2] // 2)
    return np.asarray((coefficients + coefficients[:, :, ::-1][..., every])[:, :, :kept] / np.float32(2.0))


@released_kind("scattering-features")
@dataclass(frozen=True, slots=True)
class ScatteringFeatures(RowFeatures):
    """A map from images to scattering coefficients, each raised to a power.

    Parameters
    ----------
    layout : array of 6 to 8 int
        Channels, height, width, scales J, angles L, places a side; whether coefficients are averaged over the image and
        its mirror image; whether brightness and two opponent colours are scattered.
    power : array of 1 float
        Exponent of the coefficients' magnitudes; 1 leaves them as they are.
    """

    layout: Ints
    power: Floats
    kept: ClassVar[bool] = True

    @property
    def dimension(self) -> int:
        """Number of features."""
        channels, _, _, scales, angles, places = (int(size) for size in self.layout[:6])
        paths = 1 + scales * angles + angles * angles * scales * (scales - 1) // 2
        return channels * paths * places * (-(-places // 2) if self._mirror else places)

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, dimension): by place, then by channel and path. A row that is no numbers stays one."""
        out = np.empty((len(features), self.dimension))

        def batch(part: slice[int, int, None]) -> None:
            # Every call is of one shape: how many stand beside a row changes none of its bits.
            images = np.zeros((_IMAGES_AT_ONCE, features.shape[1]), dtype=np.float32)
            images[: len(out[part])] = features[part]
            out[part] = self._batch(images)[: len(out[part])]

        for_each(batch, pieces(len(features), 1, _IMAGES_AT_ONCE))
        return out

    @property
    def _mirror(self) -> bool:
        return len(self.layout) > 6 and bool(self.layout[6])

    def _batch(self, features: _Single) -> _Single:
        channels, height, width, scales, angles, places = (int(size) for size in self.layout[:6])
        if len(self.layout) > 7 and self.layout[7]:
            features = np.matmul(_OPPONENT.astype(np.float32), features.reshape(len(features), channels, -1))
        images = features.reshape(len(features) * channels, height, width)
        # Every resolution has an even number of pixels a side, and every place the same number of them.
        unit = math.lcm(2**scales, places)
        tall, wide = (unit * -(-size // unit) for size in (height, width))
        top, left = (tall - height) // 2, (wide - width) // 2
        padded = np.pad(images, ((0, 0), (top, tall - height - top), (left, wide - width - left)), mode="reflect")
        bank = _bank(tall, wide, scales, angles)
        means = [
            (
                _averaging(tall >> halved, tall, _ENVELOPE * 2 ** (scales - 1), places, self._mirror),
                _averaging(wide >> halved, wide, _ENVELOPE * 2 ** (scales - 1), places, self._mirror).T,
            )
            for halved in range(scales)
        ]

        def averaged(layer: _Single, halved: int) -> _Single:
            down, across = means[halved]
            return np.asarray(np.matmul(np.matmul(down, layer), across), dtype=np.float32)

        paths = [averaged(padded, 0)[:, None]]
        # Images and moduli are real: half of a spectrum says it all.
        half = scipy.fft.rfft2(padded)
        for first in range(scales):
            moduli = self._moduli(_low(half, 2**first, wide)[:, None], bank[first][first])
            paths.append(averaged(moduli, first))
            if first + 1 == scales:
                break
            half_of_moduli = scipy.fft.rfft2(moduli)
            for second in range(first + 1, scales):
                spectra = _low(half_of_moduli, 2 ** (second - first), wide >> first)
                deeper = self._moduli(spectra[:, :, None], bank[second][second])
                paths.append(averaged(deeper, second).reshape(len(images), -1, places, places))
        outputs = np.concatenate(paths, axis=1)
        by_place = np.moveaxis(outputs.reshape(len(features), -1, places, places), 1, 3)
        power = float(self.power[0])
        curved = by_place if power == 1.0 else np.sign(by_place) * np.abs(by_place) ** power
        coefficients: _Single = np.asarray(curved, dtype=np.float32)
        if self._mirror:
            coefficients = _over_mirror_images(coefficients, channels, scales, angles)
        return coefficients.reshape(len(features), -1)

    @staticmethod
    def _moduli(spectra: _Complex, filters: _Single) -> _Single:
        """Return |x ⋆ ψ| for every filter, at the resolution of the spectra (…, 1, h, w)."""
        return np.asarray(np.abs(scipy.fft.ifft2(spectra * filters, overwrite_x=True)), dtype=np.float32)


@register("projections", "scattering")
@dataclass(frozen=True, slots=True, kw_only=True)
class Scattering(ImageMap):
    """Wavelet scattering of order two: moduli of wavelets of moduli of wavelets, averaged over a grid of places.

    Guarantee
    ---------
    Costs nothing: each image is mapped by itself, with public parameters. Norms are not bounded by 1: whatever reads
    the rows next clips them, or :class:`~dpalgos.features.whitening.PublicWhitening` brings them to the unit sphere.

    Parameters
    ----------
    scales : int
        J; the largest wavelet spans about 2^J pixels.
    angles : int
        L, directions in half a turn.
    places : int
        Averages a side; places² a path.
    power : float
        Exponent of the coefficients, in (0, 1]; ½ evens out strong and weak paths.
    mirror : bool
        Whether coefficients are averaged over the image and its mirror image, up to a pixel's place.
    opponent : bool
        Whether brightness and two opponent colours are scattered in place of red, green and blue.
    shape : sequence of int, optional
        Of the images; square ones by default.

    Notes
    -----
    Between layers the resolution is halved by dropping high frequencies instead of letting them alias, which makes the
    second layer four times cheaper. Single precision throughout.

    References
    ----------
    Bruna, Mallat, IEEE TPAMI 35 (2013); filters as in Andreux et al., "Kymatio", JMLR 21 (2020); as features for
    private linear models Tramèr, Boneh, ICLR 2021.
    """

    scales: int = field(default=2, metadata=COUNT)
    angles: int = field(default=8, metadata=at_least(2))
    places: int = field(default=4, metadata=COUNT)
    power: float = field(default=0.5, metadata=between(0.0, 1.0, open_low=True))
    mirror: bool = False
    opponent: bool = False
    source: ClassVar[str] = "Bruna, Mallat 2013; Tramèr, Boneh 2021"

    def map_for(self, dimension: int) -> ScatteringFeatures:
        """Return the map of rows of so many features."""
        channels, height, width = self.sizes(dimension)
        if min(height, width) < 2**self.scales:
            raise ParameterError(
                f"images of {height} x {width} pixels are smaller than a wavelet of scale {self.scales}; "
                "choose fewer scales"
            )
        if self.opponent and channels != 3:
            raise ParameterError(f"opponent colours are of images of three channels; these have {channels}")
        more = [int(self.mirror), int(self.opponent)] if self.opponent else [1] if self.mirror else []
        layout = np.array([channels, height, width, self.scales, self.angles, self.places, *more])
        return ScatteringFeatures(layout=layout, power=np.array([self.power]))
