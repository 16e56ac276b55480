"""Rows in parts that others sum: threads, processes, or workers on other machines, with the bits of one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.arrays import Array, Features, Ints
from dpalgos.rows import Rows

MapParts = Callable[[Callable[[Rows], Ints], Sequence[Rows]], Iterable[Ints]]
"""Applies a function to each part, wherever that happens, and returns the results in any order."""


@dataclass(frozen=True, slots=True)
class SpreadRows:
    """A party's rows, cut into parts whose contributions to a sum are formed apart.

    Guarantee
    ---------
    Contributions are sums over rows of whole numbers, in int64, so those of the parts add up to the whole party's, bit
    for bit, in whatever order and wherever they are formed (tests/dpalgos/test_spreading.py). What leaves a worker is
    an exact sum of private rows: it may go to whoever may read the rows anyway, and to nobody else.

    Attributes
    ----------
    parts : sequence of Rows
        Each says the whole party's ``count``, by which weights and grids go, and its fingerprint, and yields its own
        blocks.
    map_parts : callable
        See :data:`MapParts`.
    """

    parts: Sequence[Rows]
    map_parts: MapParts

    @property
    def count(self) -> int:
        """Number of rows of the party."""
        return self.parts[0].count

    @property
    def dimension(self) -> int:
        """Features a row."""
        return self.parts[0].dimension

    def blocks(self) -> Iterator[tuple[Features, Array]]:
        """Yield the blocks of all parts in order, here."""
        for part in self.parts:
            yield from part.blocks()

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the digest of the party's rows, which every part knows."""
        return self.parts[0].fingerprint()

    def total(self, contribution: Callable[[Rows], Ints]) -> Ints:
        """Return the sum of the parts' contributions."""
        return np.asarray(sum(self.map_parts(contribution, self.parts)))
