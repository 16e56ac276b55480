"""What may be kept in memory between passes over rows: one limit for the whole process, and reservations against it."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["Reserved", "machine_memory", "memory_limit", "reserve", "set_memory_limit"]


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
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        with self._lock:
            if self.held + count > self.limit:
                return False
            self.held += count
            return True

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


def memory_limit() -> int:
    """Return how many bytes may be reserved at once; a quarter of the machine's where nobody said."""
    return _account.limit


def set_memory_limit(size: int) -> None:
    """Say how many bytes may be reserved at once, in the whole process."""
    _account.limit = size
