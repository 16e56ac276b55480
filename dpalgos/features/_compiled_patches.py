"""Loops over patches of images: contrast-normalised, rectified, averaged over cells."""

from __future__ import annotations

import math

from dpalgos.compiling import compiled_in_order
from dpalgos.rows import Floats, Ints


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
