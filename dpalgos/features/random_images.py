"""Random processes that draw images and what means nothing to them: strokes, objects, dead leaves."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names, register
from dpalgos.rows import unit_rows

Images = NDArray[np.float64]

# Points of a stroke; pairs that are drawn at once.
_POINTS, _BLOCK = 48, 1024


class RandomProcess(ABC):
    """A random process that draws images and changes them in ways without meaning."""

    __slots__ = ()

    @abstractmethod
    def pairs(
        self, count: int, channels: int, height: int, width: int, random: np.random.Generator
    ) -> tuple[Images, Images]:
        """Return images (count, channels, height, width) twice, each with its own random changes."""


def drawn_images(
    processes: Sequence[str], count: int, shape: tuple[int, int, int], random: np.random.Generator
) -> Iterator[tuple[Images, Images]]:
    """Yield ``count`` pairs of images (·, channels, height, width), as many of each registered process.

    They come block by block, process by process.

    Raises
    ------
    ParameterError
        If no process is named.
    """
    if not processes:
        raise ParameterError(f"processes is empty; give at least one of {', '.join(names('processes'))}")
    ends = [count * number // len(processes) for number in range(len(processes) + 1)]
    for name, start, end in zip(processes, ends, ends[1:], strict=False):
        process = lookup("processes", name)()
        for first in range(start, end, _BLOCK):
            yield process.pairs(min(_BLOCK, end - first), *shape, random)


def drawn_pairs(
    processes: Sequence[str], count: int, shape: tuple[int, int, int], random: np.random.Generator
) -> Iterator[tuple[Images, Images]]:
    """Yield the pairs of :func:`drawn_images` as rows (·, channels · height · width) of norm 1."""
    for pair in drawn_images(processes, count, shape, random):
        yield unit_rows(pair[0].reshape(len(pair[0]), -1)), unit_rows(pair[1].reshape(len(pair[1]), -1))


@register("processes", "strokes")
class Strokes(RandomProcess):
    """One to three smooth strokes, deformed by a little; of colour images each channel has its own contrast."""

    def pairs(
        self, count: int, channels: int, height: int, width: int, random: np.random.Generator
    ) -> tuple[Images, Images]:
        """Return strokes, deformed twice."""
        strokes = random_strokes(count, height, width, random)
        contrast = random.uniform(0.3, 1.0, (count, channels, 1, 1)) if channels > 1 else np.ones((1, 1, 1, 1))
        return contrast * deformed(strokes, random)[:, None], contrast * deformed(strokes, random)[:, None]


def random_strokes(count: int, height: int, width: int, random: np.random.Generator) -> Images:
    """Return images (count, height, width) of one to three smooth curves of random place, bend and thickness.

    Values in [0, 1], anti-aliased. Lengths are relative to the shorter side.
    """
    from dpalgos.features._compiled import stroke

    side = float(min(height, width))
    images = np.zeros((count, height, width))
    for image in images:
        for _ in range(random.integers(1, 4)):
            # A direction that turns smoothly: its curvature is a random walk.
            bend = random.normal(0.0, 2.5) + np.cumsum(random.normal(0.0, 0.9, _POINTS))
            angle = random.uniform(0.0, 2.0 * np.pi) + np.cumsum(bend) / _POINTS
            length = side * random.uniform(0.35, 1.6)
            line = np.cumsum(np.stack([np.sin(angle), np.cos(angle)]), axis=1) * length / _POINTS
            centre = np.array([[height], [width]]) / 2.0 + random.normal(0.0, 0.08 * side, (2, 1))
            line += centre - line.mean(axis=1, keepdims=True)
            stroke(line, side * random.uniform(0.025, 0.075), image)
    return images


def deformed(images: Images, random: np.random.Generator) -> Images:
    """Return each image under a small random affine map and its own smooth random displacement.

    Standard deviations: shift 0.02 sides, turn 0.1 radians, stretch 8 %, shear 0.12, displacement 0.03 sides over
    distances of 0.18 sides.
    """
    from dpalgos.features._compiled import warp

    count, height, width = images.shape
    side = float(min(height, width))
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    down, across = (height - 1) / 2.0, (width - 1) / 2.0
    blurs = [scipy.ndimage.gaussian_filter1d(np.eye(size), 0.18 * side, axis=0) for size in (height, width)]
    moved = np.empty_like(images)
    for index in range(count):
        turn, shear = random.normal(0.0, 0.1), random.normal(0.0, 0.12)
        stretch = np.exp(random.normal(0.0, 0.08, 2))
        rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        affine = rotation @ np.array([[stretch[0], 0.0], [shear, stretch[1]]])
        field = blurs[0] @ random.standard_normal((2, height, width)) @ blurs[1].T
        field *= 0.03 * side / (field.std() + 1e-12)
        shift = random.normal(0.0, 0.02 * side, 2)
        rows = affine[0, 0] * (y - down) + affine[0, 1] * (x - across) + down + shift[0] + field[0]
        columns = affine[1, 0] * (y - down) + affine[1, 1] * (x - across) + across + shift[1] + field[1]
        warp(images[index : index + 1], rows, columns, False, moved[index : index + 1])
    return moved


def random_textures(count: int, side: int, random: np.random.Generator) -> Images:
    """Return fields (count, side, side) of mean 0 and variance 1, with oriented spectra 1/fᵃ, a from ½ to 2."""
    y, x = np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side), indexing="ij")
    textures = np.empty((count, side, side))
    for field in textures:
        angle, stretch, slope = random.uniform(0.0, np.pi), np.exp(random.uniform(0.0, 1.8)), random.uniform(0.5, 2.0)
        along, beside = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
        frequency = np.sqrt(along**2 + (stretch * beside) ** 2)
        frequency[0, 0] = np.inf
        field[:] = np.real(np.fft.ifft2(np.fft.fft2(random.standard_normal((side, side))) * frequency**-slope))
        field /= field.std()
    return textures


_MOST, _HOLES = 5, 2
# Drawn at twice the resolution and averaged.
_FINER = 2


@register("processes", "objects")
class Objects(RandomProcess):
    """One to five textured super-ellipses of middle size before black, some of them with holes."""

    def pairs(
        self, count: int, channels: int, height: int, width: int, random: np.random.Generator
    ) -> tuple[Images, Images]:
        """Return objects, deformed twice, each time at another gain and gamma."""
        images = self._drawn(count, height, width, random)
        contrast = random.uniform(0.3, 1.0, (count, channels, 1, 1)) if channels > 1 else np.ones((1, 1, 1, 1))
        first, second = (self._changed(images, random)[:, None] * contrast for _ in range(2))
        return first, second

    @staticmethod
    def _drawn(count: int, height: int, width: int, random: np.random.Generator) -> Images:
        from dpalgos.features._compiled import paint

        side, leaves = float(_FINER * min(height, width)), np.zeros((count, _HOLES + _MOST, 13))
        shape = (count, _HOLES + _MOST)
        leaves[..., 0:2] = _FINER * np.array([height, width]) / 2.0 + random.normal(0.0, 0.13 * side, (*shape, 2))
        angle = random.uniform(0.0, np.pi, shape)
        leaves[..., 2], leaves[..., 3] = np.cos(angle), np.sin(angle)
        leaves[..., 4:6] = side * np.exp(random.uniform(np.log(0.1), np.log(0.42), (*shape, 2)))
        leaves[..., 6] = np.exp(random.uniform(np.log(1.2), np.log(8.0), shape))
        textures = random_textures(64, 64, random)
        leaves[..., 7] = random.integers(0, len(textures), shape)
        leaves[..., 8:10] = random.integers(0, 64, (*shape, 2))
        leaves[..., 10] = np.exp(random.normal(np.log(0.06), 0.8, shape))
        leaves[..., 11:13] = random.normal(0.0, 0.08, (*shape, 2))
        colours = random.uniform(0.25, 1.0, (*shape, 1))
        # The first are holes, smaller and black, of a third of the images.
        leaves[:, :_HOLES, 4:6] *= 0.4
        leaves[:, :_HOLES, 10:13], colours[:, :_HOLES] = 0.0, 0.0
        left_out = np.zeros(shape, dtype=bool)
        left_out[:, :_HOLES] = random.random((count, _HOLES)) > 0.25
        left_out[:, _HOLES:] = np.arange(_MOST) >= random.integers(1, _MOST + 1, (count, 1))
        leaves[left_out, 4] = 0.0
        out = np.empty((count, 1, _FINER * height, _FINER * width))
        paint(leaves, colours, textures, np.zeros((count, 1)), out)
        return np.asarray(out.reshape(count, height, _FINER, width, _FINER).mean(axis=(2, 4)))

    @staticmethod
    def _changed(images: Images, random: np.random.Generator) -> Images:
        gain, gamma = (np.exp(random.normal(0.0, spread, (len(images), 1, 1))) for spread in (0.1, 0.2))
        return np.asarray(gain * deformed(images, random) ** gamma)


_LEAVES, _PALETTE, _BATCH = 120, 6, 256
# Side of what is drawn, of which a part is seen, in sides of an image; half axes of leaves: the least of an image,
# which differs from image to image, and the most.
_CANVAS, _LEAST, _LARGEST_AXIS = 1.5, (0.06, 0.3), 1.0
# Two directions of colour at equal brightness.
_CHROMA = np.array([[1.0, -1.0, 0.0], [0.5, 0.5, -1.0]]) / np.sqrt([[2.0], [1.5]])


@register("processes", "dead-leaves")
class DeadLeaves(RandomProcess):
    """Ellipses, boxes, diamonds and triangles in the six colours of an image's palette, with textures and shades.

    References
    ----------
    Lee, Mumford, Huang, IJCV 41 (2001); for learning Baradad, Wulff, Wang, Isola, Torralba, NeurIPS 2021.
    """

    def pairs(
        self, count: int, channels: int, height: int, width: int, random: np.random.Generator
    ) -> tuple[Images, Images]:
        """Return images twice, each with its own random crop, rotation, mirroring and lighting."""
        textures = random_textures(128, 64, random)
        images = np.empty((2, count, channels, height, width))
        for start in range(0, count, _BATCH):
            part = slice(start, min(start + _BATCH, count))
            drawn = self._drawn(part.stop - start, channels, height, width, textures, random)
            for own in images[:, part]:
                self._seen(drawn, own, random)
        return images[0], images[1]

    @staticmethod
    def _drawn(
        count: int, channels: int, height: int, width: int, textures: Images, random: np.random.Generator
    ) -> Images:
        from dpalgos.features._compiled import paint

        side, shape = float(min(height, width)), (count, _LEAVES)
        sizes = round(_CANVAS * height), round(_CANVAS * width)
        leaves = np.empty((*shape, 13))
        leaves[..., 0:2] = random.uniform(-0.1, 1.1, (*shape, 2)) * sizes
        angle = random.uniform(0.0, np.pi, shape)
        leaves[..., 2], leaves[..., 3] = np.cos(angle), np.sin(angle)
        # Sizes whose density falls as the cube: every octave covers as much.
        least = np.exp(random.uniform(np.log(_LEAST[0]), np.log(_LEAST[1]), (count, 1))) ** -2.0
        size = side * (least + (_LARGEST_AXIS**-2.0 - least) * random.random(shape)) ** -0.5
        aspect = np.exp(random.normal(0.0, 0.35, shape))
        leaves[..., 4], leaves[..., 5] = size * aspect, size / aspect
        leaves[..., 6] = random.choice([2.0, 2.0, 8.0, 1.0, -1.0], shape)
        leaves[..., 7] = random.integers(0, len(textures), shape)
        leaves[..., 8:10] = random.integers(0, textures.shape[1], (*shape, 2))
        leaves[..., 10] = np.exp(random.normal(np.log(0.05), 0.8, shape))
        leaves[..., 11:13] = random.normal(0.0, 0.08, (*shape, 2))
        # One brightness and one cast an image, and colours that differ more in brightness than in hue.
        bright = random.uniform(0.25, 0.75, (count, 1, 1)) + random.normal(0.0, 0.22, (count, _PALETTE, 1))
        palette = np.repeat(bright, channels, axis=2)
        if channels == 3:
            hues = random.normal(0.0, 0.06, (count, 1, 2)) + random.normal(0.0, 0.08, (count, _PALETTE, 2))
            palette += hues @ _CHROMA
        chosen = random.integers(0, _PALETTE, shape)
        colours = np.take_along_axis(palette, chosen[..., None], axis=1) + random.normal(0.0, 0.02, (*shape, channels))
        out = np.empty((count, channels, *sizes))
        paint(leaves, colours, textures, np.clip(palette[:, 0], 0.0, 1.0), out)
        return out

    @staticmethod
    def _seen(drawn: Images, out: Images, random: np.random.Generator) -> None:
        from dpalgos.features._compiled import warp

        count, channels, (tall, wide) = len(drawn), drawn.shape[1], drawn.shape[2:]
        height, width = out.shape[2:]
        y, x = np.mgrid[0:height, 0:width] / np.array([[[height]], [[width]]]) + 0.5 / np.array([[[height]], [[width]]])
        area, aspect = random.uniform(0.5, 1.0, count), np.exp(random.uniform(-0.1, 0.1, count))
        down = np.minimum(np.sqrt(area) * aspect, 1.0)
        across = np.minimum(np.sqrt(area) / aspect, 1.0)
        top, left = random.random(count) * (1.0 - down), random.random(count) * (1.0 - across)
        mirrored, turn = random.random(count) < 0.5, random.normal(0.0, 0.12, count)
        blur = random.uniform(0.4, 0.8, count)
        for index in range(count):
            v, u = down[index] * (y - 0.5), across[index] * (x - 0.5) * (-1.0 if mirrored[index] else 1.0)
            cosine, sine = np.cos(turn[index]), np.sin(turn[index])
            rows = (cosine * v + sine * u + top[index] + down[index] / 2.0) * tall - 0.5
            columns = (cosine * u - sine * v + left[index] + across[index] / 2.0) * wide - 0.5
            soft = scipy.ndimage.gaussian_filter(drawn[index], (0.0, blur[index], blur[index]), truncate=2.5)
            warp(soft, rows, columns, True, out[index])
        grey = out.mean(axis=1, keepdims=True)
        saturation = random.uniform(0.5, 1.5, (count, 1, 1, 1))
        middle = out.mean(axis=(1, 2, 3), keepdims=True)
        contrast, light = random.uniform(0.6, 1.4, (count, 1, 1, 1)), random.uniform(0.7, 1.3, (count, 1, 1, 1))
        cast = np.exp(random.normal(0.0, 0.08, (count, channels, 1, 1))) if channels > 1 else 1.0
        lit = light * cast * (middle + contrast * (grey + saturation * (out - grey) - middle))
        np.clip(lit, 0.0, 1.0, out=out)
