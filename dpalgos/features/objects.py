"""Objects before black: a few textured super-ellipses, some with holes, under small deformations, gain and gamma."""

from __future__ import annotations

import numpy as np

from dpalgos.features.random_images import Images, RandomProcess, deformed, random_textures
from dpalgos.registry import register

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
        from dpalgos.features._compiled_images import paint

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
