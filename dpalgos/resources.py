"""The bound on memory that rows may take."""

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


# Of what is free, for rows that do not all fit.
_SHARE_OF_FREE = 0.5


class _Account:
    """Bytes that are kept by reservation and claimed for a while; whoever changes them holds ``changed``."""

    def __init__(self) -> None:
        self.limit = machine_memory() // 4
        self.held = 0
        self.claimed = 0
        # Re-entrant, because a reservation may be forgotten, and given back, while its thread makes another.
        self.changed = threading.Condition()

    def free(self) -> int:
        return max(0, self.limit - self.held - self.claimed)


_account = _Account()


class Reserved:
    """A reservation, released with the last reference to it."""

    __slots__ = ("__weakref__",)


def reserve(size: int) -> Reserved | None:
    """Reserve ``size`` bytes for rows that are kept; None where they do not fit, and rows are to be read again.

    Whether they are kept changes no result, only how often they are read.
    """
    with _account.changed:
        if size > _account.free():
            return None
        return _reserved(size)


def reserve_some(size: int, most: int, share: float) -> tuple[Reserved | None, int]:
    """Reserve bytes for some of ``most`` rows of ``size`` bytes each; return the reservation and the number of rows.

    Theirs is half of what is free, times ``share``, in whole rows: the next reservation finds as much again. Without
    room for a row there is no reservation.
    """
    with _account.changed:
        rows = min(most, int(_SHARE_OF_FREE * _account.free() * share) // size)
        return (_reserved(rows * size), rows) if rows > 0 else (None, 0)


def room_for(size: int, limit: int) -> int:
    """Return how many of ``size`` bytes of rows are kept where nothing else is: all, or half of what there is room for.

    Parameters
    ----------
    size, limit : int
    """
    return size if size <= limit else int(_SHARE_OF_FREE * limit)


def _reserved(size: int) -> Reserved:
    _account.held += size
    reserved = Reserved()
    weakref.finalize(reserved, _give_back, size)
    return reserved


def _give_back(size: int) -> None:
    with _account.changed:
        _account.held -= size


@contextmanager
def claim(size: int) -> Iterator[None]:
    """Hold ``size`` bytes for rows that must be in memory; wait until they fit next to all other claims.

    A claim without others is granted at any size: the caller checks beforehand that it fits at all. What is kept
    by reservation is not waited for, since it ends when it is forgotten and not at a point of the program: it may come
    on top, but nothing more is kept meanwhile. A claim within a claim may wait forever.
    """
    if size <= 0:
        yield
        return
    with _account.changed:
        _account.changed.wait_for(lambda: not _account.claimed or _account.claimed + size <= _account.limit)
        _account.claimed += size
    try:
        yield
    finally:
        with _account.changed:
            _account.claimed -= size
            _account.changed.notify_all()


def memory_limit() -> int:
    """Return how many bytes may be reserved at once; a quarter of the machine's memory by default."""
    return _account.limit


def set_memory_limit(size: int) -> None:
    """Set how many bytes may be reserved at once, in the whole process."""
    _account.limit = size
