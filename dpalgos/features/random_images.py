"""Images from a random process: smooth strokes, thresholded textures; made from a public seed, seen by nobody's rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.ndimage import gaussian_filter

__all__ = ["random_images"]

_BATCH = 500


def random_images(count: int, channels: int, height: int, width: int, seed: int) -> NDArray[np.float64]:
    """Return images (count, channels · height · width) with values in [0, 1].

    The first half are strokes: one to three smooth curves of random place, bend and thickness, anti-aliased. The other
    half are patches: smoothed noise, softly thresholded, times a smooth texture. Channels share an image up to a random
    contrast each. Nothing but the arguments has a part in them.

    References
    ----------
    Baradad et al., NeurIPS 2021 (learning from noise processes); Tang, Panda, Sehwag, Mittal, NeurIPS 2023 (as priors
    for private learning).
    """
    random = np.random.default_rng(seed)
    grey = np.concatenate([_strokes(count - count // 2, height, width, random), _patches(count // 2, height, width, random)])
    contrast = random.uniform(0.3, 1.0, size=(count, channels, 1)) if channels > 1 else np.ones((count, 1, 1))
    return np.asarray((grey.reshape(count, 1, -1) * contrast).reshape(count, -1))


def _strokes(count: int, height: int, width: int, random: np.random.Generator) -> NDArray[np.float64]:
    side = float(min(height, width))
    y, x = np.mgrid[0:height, 0:width]
    images = np.zeros((count, height, width))
    steps = 48
    for image in images:
        for _ in range(random.integers(1, 4)):
            # A direction that turns smoothly: its curvature is a random walk that is pulled back.
            bend = random.normal(0.0, 2.5) + np.cumsum(random.normal(0.0, 0.9, steps))
            angle = random.uniform(0.0, 2.0 * np.pi) + np.cumsum(bend) / steps
            length = side * random.uniform(0.35, 1.6)
            line = np.cumsum(np.stack([np.sin(angle), np.cos(angle)]), axis=1) * length / steps
            centre = np.array([[height], [width]]) / 2.0 + random.normal(0.0, 0.08 * side, (2, 1))
            line += centre - line.mean(axis=1, keepdims=True)
            thick = side * random.uniform(0.025, 0.075)
            away = np.sqrt(
                ((y[..., None] - line[0]) ** 2 + (x[..., None] - line[1]) ** 2).min(axis=-1)
            )
            np.maximum(image, np.clip(thick + 0.5 - away, 0.0, 1.0), out=image)
    return images


def _smooth(count: int, height: int, width: int, sigma: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Return noise of unit variance, smoothed by a Gaussian of its own width each."""
    waves = fft.rfft2(random.standard_normal((count, height, width)))
    down, across = fft.fftfreq(height)[:, None], fft.rfftfreq(width)[None, :]
    window = np.exp(-2.0 * (np.pi * sigma[:, None, None]) ** 2 * (down**2 + across**2))
    fields = fft.irfft2(waves * window, s=(height, width))
    fields -= fields.mean(axis=(1, 2), keepdims=True)
    return np.asarray(fields / (fields.std(axis=(1, 2), keepdims=True) + 1e-12))


def _patches(count: int, height: int, width: int, random: np.random.Generator) -> NDArray[np.float64]:
    side = float(min(height, width))
    shape = _smooth(count, height, width, side * random.uniform(0.04, 0.2, count), random)
    texture = _smooth(count, height, width, side * random.uniform(0.02, 0.3, count), random)
    steep = random.uniform(2.0, 12.0, (count, 1, 1))
    level = random.uniform(-0.5, 1.2, (count, 1, 1))
    mask = 1.0 / (1.0 + np.exp(-steep * (shape - level)))
    depth = random.uniform(0.0, 0.5, (count, 1, 1))
    return np.clip(mask * (1.0 - depth * (0.5 + 0.5 * np.tanh(texture))), 0.0, 1.0)
