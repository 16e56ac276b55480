"""The loop of histograms of oriented gradients, compiled."""

from __future__ import annotations

import math

from dpalgos.compiling import compiled
from dpalgos.rows import Floats

__all__ = ["histograms"]


@compiled
def histograms(
    images: Floats, cell: int, bins: int, block: int, small: float, clip: float, cells: Floats, out: Floats
) -> None:
    """Write the features of images (m, channels, height, width) to out (m, features); ``cells`` is working space."""
    count, channels, height, width = images.shape
    down, across = height // cell, width // cell
    size = block * block * bins
    for index in range(count):
        cells[:] = 0.0
        finite = True
        for y in range(down * cell):
            for x in range(across * cell):
                strongest, steep, wide = -1.0, 0.0, 0.0
                for channel in range(channels):
                    dy, dx = 0.0, 0.0
                    if 0 < y < height - 1:
                        dy = images[index, channel, y + 1, x] - images[index, channel, y - 1, x]
                    if 0 < x < width - 1:
                        dx = images[index, channel, y, x + 1] - images[index, channel, y, x - 1]
                    # Of several channels, each pixel takes the one with the largest gradient.
                    magnitude = math.hypot(dx, dy)
                    finite = finite and magnitude < math.inf
                    if magnitude > strongest:
                        strongest, steep, wide = magnitude, dy, dx
                if strongest > 0.0:
                    angle = math.degrees(math.atan2(steep, wide))
                    angle += 180.0 if angle < 0.0 else 0.0
                    angle -= 180.0 if angle >= 180.0 else 0.0
                    place = min(int(angle * bins / 180.0), bins - 1)
                    cells[y // cell, x // cell, place] += strongest / (cell * cell)
        position, whole = 0, 0.0
        for top in range(down - block + 1):
            for left in range(across - block + 1):
                for step in range(2):
                    squares = small * small
                    if step == 0:
                        at = position
                        for y in range(top, top + block):
                            for x in range(left, left + block):
                                for place in range(bins):
                                    out[index, at] = cells[y, x, place]
                                    at += 1
                    for at in range(position, position + size):
                        squares += out[index, at] * out[index, at]
                    factor = 1.0 / math.sqrt(squares)
                    for at in range(position, position + size):
                        value = out[index, at] * factor
                        out[index, at] = min(value, clip) if step == 0 else value
                for at in range(position, position + size):
                    whole += out[index, at] * out[index, at]
                position += size
        if not finite:
            # No features of what is no image.
            out[index] = math.nan
        elif whole > 0.0:
            factor = 1.0 / math.sqrt(whole)
            for at in range(position):
                out[index, at] *= factor
