"""Sums of whole numbers over blocks of rows, on every core: exact, so that the number of cores changes no bit."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue
from typing import TypeVar

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
    """Call a function for every item, on all cores; each writes to a place of its own."""

    def add(_: None, item: _Item) -> None:
        function(item)

    accumulate(lambda: None, add, items)
