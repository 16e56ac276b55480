"""Random processes that draw images, and changes of these that mean nothing: made from a public seed alone.

A process is registered under ``processes``, one file a process; a new one touches no other file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.registry import lookup, names, register
from dpalgos.rows import unit_rows

Images = NDArray[np.float64]

# Points of a stroke; pairs that are drawn at once.
_POINTS, _BLOCK = 48, 1024


class RandomProcess(ABC):
    """What draws images and changes them by what means nothing."""

    __slots__ = ()

    @abstractmethod
    def pairs(
        self, count: int, channels: int, height: int, width: int, random: np.random.Generator
    ) -> tuple[Images, Images]:
        """Return images (count, channels, height, width) twice, each time changed anew by what means nothing."""


def drawn_pairs(
    processes: Sequence[str], count: int, shape: tuple[int, int, int], random: np.random.Generator
) -> Iterator[tuple[Images, Images]]:
    """Yield ``count`` pairs as rows (·, channels · height · width) of norm 1, as many of each registered process.

    They come block by block, process by process.

    Raises
    ------
    ParameterError
        If no process is named.
    """
    if not processes:
        raise ParameterError(f"processes is empty; name random processes: {', '.join(names('processes'))}")
    ends = [count * number // len(processes) for number in range(len(processes) + 1)]
    for name, start, end in zip(processes, ends, ends[1:], strict=False):
        process = lookup("processes", name)()
        for first in range(start, end, _BLOCK):
            pair = process.pairs(min(_BLOCK, end - first), *shape, random)
            yield unit_rows(pair[0].reshape(len(pair[0]), -1)), unit_rows(pair[1].reshape(len(pair[1]), -1))


@register("processes", "strokes")
class Strokes(RandomProcess):
    """One to three smooth strokes, deformed by a little; of colour images each channel has a contrast of its own."""

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
    from dpalgos.features._compiled_images import stroke

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
    """Return each image under a small random affine map and a smooth random displacement of its own.

    Standard deviations: shift 0.02 sides, turn 0.1 radians, stretch 8 %, shear 0.12, displacement 0.03 sides over
    distances of 0.18 sides.
    """
    from dpalgos.features._compiled_images import warp

    count, height, width = images.shape
    side = float(min(height, width))
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    down, across = (height - 1) / 2.0, (width - 1) / 2.0
    blurs = [scipy.ndimage.gaussian_filter1d(np.eye(size), 0.18 * side, axis=0) for size in (height, width)]
    found = np.empty_like(images)
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
        warp(images[index : index + 1], rows, columns, False, found[index : index + 1])
    return found


def random_textures(count: int, side: int, random: np.random.Generator) -> Images:
    """Return fields (count, side, side) of mean 0 and variance 1, with oriented spectra 1/fᵃ, a from ½ to 2."""
    y, x = np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side), indexing="ij")
    found = np.empty((count, side, side))
    for field in found:
        angle, stretch, slope = random.uniform(0.0, np.pi), np.exp(random.uniform(0.0, 1.8)), random.uniform(0.5, 2.0)
        along, beside = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
        frequency = np.sqrt(along**2 + (stretch * beside) ** 2)
        frequency[0, 0] = np.inf
        field[:] = np.real(np.fft.ifft2(np.fft.fft2(random.standard_normal((side, side))) * frequency**-slope))
        field /= field.std()
    return found
