"""Sums of integers over blocks of rows: on every core, in other processes, or on other machines, with the same bits."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.rows import Block, Ints, Rows

_PIECE_ENTRIES = 2**16
_Item = TypeVar("_Item")
_Total = TypeVar("_Total")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pieces(rows: int, width: int, entries: int = _PIECE_ENTRIES) -> Iterator[slice[int, int, None]]:
    """Yield slices of at most ``entries`` numbers (by default half a megabyte in float64, which caches hold)."""
    size = max(16, entries // max(width, 1))
    return (slice(start, start + size) for start in range(0, rows, size))


def accumulate(new: Callable[[], _Total], add: Callable[[_Total, _Item], None], items: Iterable[_Item]) -> list[_Total]:
    """Add items to accumulators, one a core, and return those; what they hold together must not depend on who got what.

    Items are asked for one after another in the caller's thread, while the cores work on those before: never more than
    two above the number of cores at once, so that reading and computing overlap and memory stays flat. Whole numbers
    add up to the same in any order.
    """
    remaining = iter(items)
    few = list(islice(remaining, 2))
    if len(few) < 2 or cores() == 1:
        total = new()
        for item in chain(few, remaining):
            add(total, item)
        return [total]
    totals = [new() for _ in range(cores())]
    idle: SimpleQueue[_Total] = SimpleQueue()
    for total in totals:
        idle.put(total)

    def work(item: _Item) -> None:
        total = idle.get()
        try:
            add(total, item)
        finally:
            idle.put(total)

    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(cores()) as pool:
        for item in chain(few, remaining):
            waiting.append(pool.submit(work, item))
            if len(waiting) > cores():
                waiting.popleft().result()
        for future in waiting:
            future.result()
    return totals


def for_each(function: Callable[[_Item], None], items: Iterable[_Item]) -> None:
    """Call a function for every item, on all cores; each writes to a place of its own. No warning says what it met."""

    def add(_: None, item: _Item) -> None:
        with np.errstate(all="ignore"):
            function(item)

    accumulate(lambda: None, add, items)


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

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of all parts in order, here."""
        for part in self.parts:
            yield from part.blocks()

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the digest of the party's rows, which every part knows."""
        return self.parts[0].fingerprint()

    def total(self, contribution: Callable[[Rows], Ints]) -> Ints:
        """Return the sum of the parts' contributions."""
        return np.asarray(sum(self.map_parts(contribution, self.parts)))
