"""Images from a random process: smooth strokes and small random deformations of them, made from a public seed alone."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["deformed", "random_strokes"]

_Images = NDArray[np.float64]

_POINTS = 48
"""Points of a stroke."""


def random_strokes(count: int, height: int, width: int, random: np.random.Generator) -> _Images:
    """Return images (count, height, width) of one to three smooth curves of random place, bend and thickness.

    Values in [0, 1], anti-aliased. Lengths are relative to the shorter side.
    """
    side = float(min(height, width))
    y, x = np.mgrid[0:height, 0:width]
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
            thickness = side * random.uniform(0.025, 0.075)
            away = np.sqrt(((y[..., None] - line[0]) ** 2 + (x[..., None] - line[1]) ** 2).min(axis=-1))
            np.maximum(image, np.clip(thickness + 0.5 - away, 0.0, 1.0), out=image)
    return images


def deformed(images: _Images, random: np.random.Generator) -> _Images:
    """Return each image under a small random affine map and a smooth random displacement of its own.

    Standard deviations: shift 0.02 sides, turn 0.1 radians, stretch 8 %, shear 0.12, displacement 0.03 sides over
    distances of 0.18 sides.
    """
    count, height, width = images.shape
    side = float(min(height, width))
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    down, across = (height - 1) / 2.0, (width - 1) / 2.0
    found = np.empty_like(images)
    for index in range(count):
        turn, shear = random.normal(0.0, 0.1), random.normal(0.0, 0.12)
        stretch = np.exp(random.normal(0.0, 0.08, 2))
        rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        affine = rotation @ np.array([[stretch[0], 0.0], [shear, stretch[1]]])
        spread = 0.18 * side
        field = scipy.ndimage.gaussian_filter(random.standard_normal((2, height, width)), (0.0, spread, spread))
        field *= 0.03 * side / (field.std() + 1e-12)
        shift = random.normal(0.0, 0.02 * side, 2)
        places = [
            affine[0, 0] * (y - down) + affine[0, 1] * (x - across) + down + shift[0] + field[0],
            affine[1, 0] * (y - down) + affine[1, 1] * (x - across) + across + shift[1] + field[1],
        ]
        found[index] = scipy.ndimage.map_coordinates(images[index], places, order=1, mode="constant")
    return found
