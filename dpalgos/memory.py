"""What may be held of rows in memory: one limit for the whole process, reservations and claims against it.

Rows that could be read again are kept where a reservation fits, and streamed otherwise (:func:`reserve`). An algorithm
that must hold its rows waits for its turn (:func:`claim`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager


def machine_memory() -> int:
    """Return the machine's memory in bytes; four gigabytes where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**32


class _Account:
    """Bytes that are reserved, under a lock."""

    def __init__(self) -> None:
        self.limit = machine_memory() // 4
        self.held = 0
        self.claimed = 0
        self._lock = threading.Lock()
        self._given = threading.Condition(self._lock)

    def take(self, count: int) -> bool:
        with self._lock:
            if self.held + self.claimed + count > self.limit:
                return False
            self.held += count
            return True

    def claim(self, count: int) -> None:
        with self._lock:
            self._given.wait_for(lambda: not self.claimed or self.claimed + count <= self.limit)
            self.claimed += count

    def unclaim(self, count: int) -> None:
        with self._lock:
            self.claimed -= count
            self._given.notify_all()

    def give(self, count: int) -> None:
        with self._lock:
            self.held -= count


_account = _Account()


class Reserved:
    """A reservation, given back when nobody refers to it any more."""

    __slots__ = ("__weakref__", "size")

    def __init__(self, size: int) -> None:
        self.size = size


def reserve(size: int) -> Reserved | None:
    """Reserve ``size`` bytes for rows that are kept; None where they do not fit, and rows are to be read again.

    Whether they are kept changes no result, only how often they are read.
    """
    if not _account.take(size):
        return None
    reserved = Reserved(size)
    weakref.finalize(reserved, _account.give, size)
    return reserved


@contextmanager
def claim(size: int) -> Iterator[None]:
    """Hold ``size`` bytes for rows that must be in memory; wait until they fit beside what else is claimed.

    Whoever is alone goes ahead whatever the size: that it fits at all is for the caller to check before. What is kept
    by reservation is not waited for, since it ends when it is forgotten and not at a point of the program: it may come
    on top, but nothing more is kept meanwhile. A claim within a claim may wait forever.
    """
    if size <= 0:
        yield
        return
    _account.claim(size)
    try:
        yield
    finally:
        _account.unclaim(size)


def memory_limit() -> int:
    """Return how many bytes may be reserved at once; a quarter of the machine's where nobody said."""
    return _account.limit


def set_memory_limit(size: int) -> None:
    """Say how many bytes may be reserved at once, in the whole process."""
    _account.limit = size
