"""Dead leaves: opaque, textured shapes of power-law sizes in front of each other, seen as photographs see things."""

from __future__ import annotations

import numpy as np
import scipy

from dpalgos.features.random_images import Images, RandomProcess, random_textures
from dpalgos.registry import register

_LEAVES, _PALETTE, _BATCH = 120, 6, 256
# Side of what is drawn, of which a part is seen, in sides of an image; half axes of leaves: the least of an image,
# which differs from image to image, and the most.
_CANVAS, _LEAST, _MOST = 1.5, (0.06, 0.3), 1.0
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
        """Return images cropped, turned, mirrored and lit anew twice."""
        textures = random_textures(128, 64, random)
        found = np.empty((2, count, channels, height, width))
        for start in range(0, count, _BATCH):
            part = slice(start, min(start + _BATCH, count))
            drawn = self._drawn(part.stop - start, channels, height, width, textures, random)
            for own in found[:, part]:
                self._seen(drawn, own, random)
        return found[0], found[1]

    @staticmethod
    def _drawn(
        count: int, channels: int, height: int, width: int, textures: Images, random: np.random.Generator
    ) -> Images:
        from dpalgos.features._compiled_images import paint

        side, shape = float(min(height, width)), (count, _LEAVES)
        sizes = round(_CANVAS * height), round(_CANVAS * width)
        leaves = np.empty((*shape, 13))
        leaves[..., 0:2] = random.uniform(-0.1, 1.1, (*shape, 2)) * sizes
        angle = random.uniform(0.0, np.pi, shape)
        leaves[..., 2], leaves[..., 3] = np.cos(angle), np.sin(angle)
        # Sizes whose density falls as the cube: every octave covers as much.
        least = np.exp(random.uniform(np.log(_LEAST[0]), np.log(_LEAST[1]), (count, 1))) ** -2.0
        size = side * (least + (_MOST**-2.0 - least) * random.random(shape)) ** -0.5
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
        from dpalgos.features._compiled_images import warp

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
