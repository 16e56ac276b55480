"""Where randomness comes from, as an algorithm sees it: a source handed in by the door, never one of its own making."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpalgos.arrays import Array

__all__ = ["NoiseSource", "RandomStream"]


class RandomStream(Protocol):
    """One keystream: independent of every other stream, the same again for the same key."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next ``count`` uniform 64-bit words; what exact samplers are built on."""
        ...

    def generator(self) -> np.random.Generator:
        """Return a NumPy generator fed by the words that follow; for idealised (floating-point) mechanisms."""
        ...


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
        ...
