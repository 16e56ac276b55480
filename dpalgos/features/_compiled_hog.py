"""The loops of histograms of oriented gradients, compiled: a line of pixels at a time, so that they are vectorised."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpalgos.compiling import compiled, compiled_in_order
from dpalgos.rows import Floats

# A gradient this near to the border of two bins, relative to its length, has its angle computed: far more than the
# rounding of either way to tell.
_NEAR = 1e-12


@compiled_in_order
def _lengths(wide: Floats, steep: Floats, out: Floats) -> None:
    """Write the gradients' lengths."""
    odd = 0
    for x in range(out.size):
        squares = wide[x] * wide[x] + steep[x] * steep[x]
        flat = (wide[x] == 0.0) & (steep[x] == 0.0)
        odd += 0 if flat | ((squares > 2.0**-900) & (squares < 2.0**900)) else 1
        out[x] = math.sqrt(squares)
    if odd:
        # Squares beyond float64's range, or of what is no number.
        for x in range(out.size):
            out[x] = math.hypot(wide[x], steep[x])


@compiled_in_order
def _gradients(images: Floats, index: int, y: int, wide: Floats, steep: Floats, lengths: Floats, held: Floats) -> bool:
    """Write the gradients of a line of pixels and their lengths; return whether all are numbers.

    Of several channels, each pixel takes the one with the largest gradient. At the image's border there is none.
    """
    channels, height, width = images.shape[1:]
    size = wide.size
    inner = min(size, width - 1)
    finite = True
    for channel in range(channels):
        line = images[index, channel, y]
        across, down, long = (held[0], held[1], held[2]) if channel else (wide, steep, lengths)
        across[0], across[size - 1] = 0.0, 0.0
        before, after = line[: inner - 1], line[2 : inner + 1]
        between = across[1:inner]
        for x in range(inner - 1):
            between[x] = after[x] - before[x]
        if 0 < y < height - 1:
            above, below = images[index, channel, y - 1], images[index, channel, y + 1]
            for x in range(size):
                down[x] = below[x] - above[x]
        else:
            down[:] = 0.0
        _lengths(across, down, long)
        numbers = 0
        for x in range(size):
            numbers += 1 if long[x] < math.inf else 0
        finite = finite and numbers == size
        if channel:
            for x in range(size):
                larger = long[x] > lengths[x]
                wide[x] = across[x] if larger else wide[x]
                steep[x] = down[x] if larger else steep[x]
                lengths[x] = long[x] if larger else lengths[x]
    return finite


@compiled_in_order
def _count(
    wide: Floats,
    steep: Floats,
    lengths: Floats,
    borders: Floats,
    places: NDArray[np.int64],
    near: NDArray[np.bool_],
    cell: int,
    cells: Floats,
) -> None:
    """Add the gradients of a line to its cells (across, bins).

    A bin is told by the borders (bins − 1, 2), cosine and sine, beyond which a gradient is.
    """
    size, bins = places.size, len(borders) + 1
    for x in range(size):
        # Opposite gradients are one direction.
        opposite = (steep[x] < 0.0) | ((steep[x] == 0.0) & (wide[x] < 0.0))
        wide[x] = -wide[x] if opposite else wide[x]
        steep[x] = -steep[x] if opposite else steep[x]
        places[x] = 0
        near[x] = False
    for border in range(bins - 1):
        cosine, sine = borders[border, 0], borders[border, 1]
        for x in range(size):
            beyond = cosine * steep[x] - sine * wide[x]
            places[x] += 1 if beyond >= 0.0 else 0
            near[x] |= abs(beyond) <= _NEAR * lengths[x]
    for x in range(size):
        if lengths[x] > 0.0:
            place = places[x]
            if near[x]:
                angle = math.degrees(math.atan2(steep[x], wide[x]))
                angle -= 180.0 if angle >= 180.0 else 0.0
                place = min(int(angle * bins / 180.0), bins - 1)
            cells[x // cell, place] += lengths[x] / (cell * cell)


@compiled
def _normalise(cells: Floats, block: int, small: float, clip: float, out: Floats) -> None:
    """Write the blocks of cells (down, across, bins), each of norm 1, clipped and of norm 1 again."""
    down, across, bins = cells.shape
    line = block * bins
    size = block * line
    at = 0
    for top in range(down - block + 1):
        for left in range(across - block + 1):
            own = out[at : at + size]
            for y in range(block):
                for x in range(block):
                    for place in range(bins):
                        own[y * line + x * bins + place] = cells[top + y, left + x, place]
            for step in range(2):
                squares = small * small
                for place in range(size):
                    squares += own[place] * own[place]
                factor = 1.0 / math.sqrt(squares)
                for place in range(size):
                    value = own[place] * factor
                    own[place] = min(value, clip) if step == 0 else value
            at += size


@compiled
def histograms(
    images: Floats, cell: int, block: int, small: float, clip: float, borders: Floats, cells: Floats, out: Floats
) -> None:
    """Write the features of images (m, channels, height, width) to out (m, features).

    ``borders`` (bins − 1, 2) are the cosines and sines of the angles between bins; ``cells`` is working space.
    """
    down, across, _ = cells.shape
    size = across * cell
    wide, steep, lengths, held = np.empty(size), np.empty(size), np.empty(size), np.empty((3, size))
    places, near = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.bool_)
    for index in range(len(images)):
        cells[:] = 0.0
        finite = True
        for y in range(down * cell):
            numbers = _gradients(images, index, y, wide, steep, lengths, held)
            finite = finite and numbers
            _count(wide, steep, lengths, borders, places, near, cell, cells[y // cell])
        if not finite:
            # No features of what is no image.
            out[index] = math.nan
            continue
        own = out[index]
        _normalise(cells, block, small, clip, own)
        whole = 0.0
        for at in range(own.size):
            whole += own[at] * own[at]
        if whole > 0.0:
            factor = 1.0 / math.sqrt(whole)
            for at in range(own.size):
                own[at] *= factor
