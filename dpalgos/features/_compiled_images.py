"""Loops that draw and change synthetic images."""

from __future__ import annotations

import math

from dpalgos.compiling import compiled_in_order
from dpalgos.rows import Floats


@compiled_in_order
def stroke(line: Floats, thickness: float, image: Floats) -> None:
    """Draw a curve (2, points) on an image (height, width), brighter where it is brighter."""
    height, width = image.shape
    for y in range(height):
        for x in range(width):
            nearest = math.inf
            for point in range(line.shape[1]):
                down, across = y - line[0, point], x - line[1, point]
                nearest = min(nearest, down * down + across * across)
            image[y, x] = max(image[y, x], min(max(thickness + 0.5 - math.sqrt(nearest), 0.0), 1.0))


@compiled_in_order
def warp(image: Floats, down: Floats, across: Floats, clamped: bool, out: Floats) -> None:
    """Write an image (channels, ·, ·), read between its pixels at places (height, width), to out.

    Beyond its borders it is 0, or goes on as it is at the border.
    """
    channels, height, width = image.shape
    for y in range(out.shape[1]):
        for x in range(out.shape[2]):
            row, column = down[y, x], across[y, x]
            if clamped:
                row, column = min(max(row, 0.0), height - 1.0), min(max(column, 0.0), width - 1.0)
            if row < 0.0 or column < 0.0 or row > height - 1.0 or column > width - 1.0:
                for channel in range(channels):
                    out[channel, y, x] = 0.0
                continue
            top, left = min(int(row), max(height - 2, 0)), min(int(column), max(width - 2, 0))
            below, right = min(top + 1, height - 1), min(left + 1, width - 1)
            v, u = row - top, column - left
            for channel in range(channels):
                own = image[channel]
                upper = own[top, left] * (1.0 - u) + own[top, right] * u
                lower = own[below, left] * (1.0 - u) + own[below, right] * u
                out[channel, y, x] = upper * (1.0 - v) + lower * v


@compiled_in_order
def paint(leaves: Floats, colours: Floats, textures: Floats, ground: Floats, out: Floats) -> None:
    """Draw opaque, textured shapes on images (n, channels, height, width), the foremost first.

    Parameters
    ----------
    leaves : array (n, leaves, 13)
        Of each its centre (y, x), the cosine and sine of its turn, two half axes, exponent p of |u|ᵖ + |v|ᵖ ≤ 1 (below
        0 for a triangle), its texture, the place (y, x) and strength of that, and the slope (y, x) of its shade. A half
        axis of 0 is no leaf.
    colours : array (n, leaves, channels)
    textures : array (textures, side, side)
        Repeated beyond their borders.
    ground : array (n, channels)
        Where no leaf is.
    """
    _, channels, height, width = out.shape
    side = textures.shape[1]
    for index in range(len(out)):
        image = out[index]
        for channel in range(channels):
            image[channel] = math.nan
        left = height * width
        for number in range(leaves.shape[1]):
            leaf = leaves[index, number]
            if left == 0:
                break
            if leaf[4] <= 0.0 or leaf[5] <= 0.0:
                continue
            reach = 1.5 * max(leaf[4], leaf[5])
            texture = textures[int(leaf[7])]
            for y in range(max(0, int(leaf[0] - reach)), min(height, int(leaf[0] + reach) + 2)):
                for x in range(max(0, int(leaf[1] - reach)), min(width, int(leaf[1] + reach) + 2)):
                    if not math.isnan(image[0, y, x]):
                        continue
                    down, across = y - leaf[0], x - leaf[1]
                    v = (leaf[2] * down + leaf[3] * across) / leaf[4]
                    u = (leaf[2] * across - leaf[3] * down) / leaf[5]
                    if leaf[6] < 0.0:
                        inside = v >= -0.6 and 1.8 * abs(u) + v <= 1.0
                    else:
                        inside = abs(u) <= 1.0 and abs(v) <= 1.0 and abs(u) ** leaf[6] + abs(v) ** leaf[6] <= 1.0
                    if not inside:
                        continue
                    left -= 1
                    grain = texture[(y + int(leaf[8])) % side, (x + int(leaf[9])) % side]
                    shade = leaf[10] * grain + leaf[11] * v + leaf[12] * u
                    for channel in range(channels):
                        image[channel, y, x] = min(max(colours[index, number, channel] + shade, 0.0), 1.0)
        if left > 0:
            for y in range(height):
                for x in range(width):
                    if math.isnan(image[0, y, x]):
                        for channel in range(channels):
                            image[channel, y, x] = ground[index, channel]
