"""The loops of image features and of synthetic images, compiled: over lines of pixels, patches and shapes."""

import math

import numpy as np
from numpy.typing import NDArray

from dpalgos.compiling import compiled, compiled_in_order
from dpalgos.rows import Floats, Ints

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


@compiled_in_order
def patches_of(image: Floats, side: int, small: float, out: Floats) -> None:
    """Write the patches of an image (channels, height, width), each less its mean and of norm 1, to (places, ·).

    ``small`` is added to the norm, so that next to flat patches stay small.
    """
    channels, height, width = image.shape
    across = width - side + 1
    for top in range(height - side + 1):
        for left in range(across):
            own, at, total = out[top * across + left], 0, 0.0
            for channel in range(channels):
                for y in range(side):
                    for x in range(side):
                        own[at] = image[channel, top + y, left + x]
                        total += own[at]
                        at += 1
            mean, squares = total / at, 0.0
            for place in range(at):
                own[place] -= mean
                squares += own[place] * own[place]
            factor = 1.0 / (math.sqrt(squares) + small)
            for place in range(at):
                own[place] *= factor


@compiled_in_order
def average(answers: Floats, across: int, borders: Ints, offset: Floats, threshold: Floats, out: Floats) -> None:
    """Write the means over cells of what filters answer (places, F), both signs rectified, to (cells, 2, F).

    Parameters
    ----------
    answers : array (places, F)
        Row by row of ``across`` places.
    borders : array (cells, 4) of int
        First row and row after the last, first column and column after the last, of each cell.
    offset : array (F,)
        Added to the answers.
    threshold : array (1,)
        Taken off their magnitudes.
    """
    filters = answers.shape[1]
    zero, least = answers.dtype.type(0.0), threshold[0]
    for cell in range(len(borders)):
        top, bottom, left, right = borders[cell]
        positive, negative = out[cell, 0], out[cell, 1]
        for number in range(filters):
            positive[number], negative[number] = zero, zero
        for row in range(top, bottom):
            for column in range(left, right):
                own = answers[row * across + column]
                for number in range(filters):
                    answer = own[number] + offset[number]
                    positive[number] += max(answer - least, zero)
                    negative[number] += max(-answer - least, zero)
        count = answers.dtype.type((bottom - top) * (right - left))
        for number in range(filters):
            positive[number] /= count
            negative[number] /= count


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
        Per leaf: its centre (y, x), the cosine and sine of its rotation, two half axes, exponent p of |u|ᵖ + |v|ᵖ ≤ 1
        (below 0 for a triangle), its texture, the place (y, x) and strength of that, and the slope (y, x) of its shade.
        A leaf with a half axis of 0 is not drawn.
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
