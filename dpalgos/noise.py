"""Where randomness comes from, as an algorithm sees it: a source handed in by the door, never one of its own making."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.rows import Array, Floats


class RandomStream(Protocol):
    """One keystream: independent of every other stream, the same again for the same key."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next ``count`` uniform 64-bit words; what exact samplers are built on."""


def uniforms(stream: RandomStream, count: int) -> Floats:
    """Return ``count`` uniform numbers strictly between 0 and 1, a word each; for idealised mechanisms."""
    return ((stream.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normals(stream: RandomStream, count: int) -> Floats:
    """Return ``count`` standard normal numbers as quantiles, a word each; for idealised mechanisms."""
    return np.asarray(scipy.special.ndtri(uniforms(stream, count)))


class NoiseSource(Protocol):
    """The randomness of one release."""

    def stream(self, step: str, value: Array) -> RandomStream:
        """Return the stream for one draw.

        Parameters
        ----------
        step : str
            Names the draw within the release (``"covariance"``, ``"gradient-17"``); no name is used twice.
        value : array
            The exact value that the noise is about to hide, or, where the noise comes first (objective
            perturbation), the rows it will be used on. Equal values meet equal noise and different values
            independent noise, so that a retry repeats the bytes and can never reveal a difference.
        """
