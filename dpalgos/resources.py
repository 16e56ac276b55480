"""What an algorithm asks of a machine, and what may be held of rows in memory."""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dpalgos.guarantees import Setting
from dpalgos.losses import outputs

# An exact minimiser takes about as many looks at the rows, line searches included.
_SOLVER_LOOKS = 100
# Arrays of a number for each row and weight row that a minimiser holds: targets, scores, slopes, directions.
_SOLVER_COLUMNS = 8
# What sequential minimal optimisation keeps of the kernel, at most.
_KERNEL_CACHE = 200 * 2**20
# From so many features on rows are taken to be sparse: one entry in ten, with its place.
_SPARSE_FROM, _SPARSE_BYTES = 1024, 1.2
# Of all eigenvectors of a symmetric matrix, over the cube of its width.
_DECOMPOSITION = 10.0
# Square matrices that are held where one is decomposed: itself, what is made of it, its vectors, work space.
_SQUARES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An estimate, not a bound.

    Parameters
    ----------
    passes : int
        How often every row is looked at.
    operations : float
        Floating-point operations of matrix products.
    small_operations : float
        Numbers that go through element-wise functions (exponentials, clipping, rounding) besides each row's encoding.
    kept : int
        Bytes that are kept between the passes; where they do not fit, rows are read from disk at every pass.
    held : int
        Bytes of rows, and of numbers for each of them, that are held from beginning to end whether or not they fit.
    sums : int
        Bytes of what a core adds up, and of what is made of the sum; they do not grow with rows.
    row : int
        Bytes of a row on its way through a map.
    """

    passes: int = 1
    operations: float = 0.0
    small_operations: float = 0.0
    kept: int = 0
    held: int = 0
    sums: int = 0
    row: int = 0


def gathering_work(setting: Setting, *, rows: int | None = None, times: int = 1) -> Work:
    """Return the work of an algorithm that holds rows in float64 and minimises a risk over them.

    Parameters
    ----------
    setting : Setting
    rows : int, optional
        How many are held at once; all by default.
    times : int
        How often risks over all rows are minimised.
    """
    weights, looks = outputs(setting.classes), _SOLVER_LOOKS * times
    products = float(setting.most_rows) * setting.dimension * weights
    return Work(
        passes=looks,
        operations=4.0 * products * looks,
        small_operations=float(setting.most_rows) * weights * looks,
        held=8
        * (setting.rows if rows is None else rows)
        * setting.rows_per_person
        * (setting.dimension + 1 + _SOLVER_COLUMNS * weights),
        sums=8 * _SQUARES * setting.dimension**2,
    )


def covariance_work(setting: Setting) -> Work:
    """Return the work of one pass that adds up a d × d matrix, and of its eigenvectors."""
    square = setting.dimension**2
    return Work(
        operations=float(setting.most_rows) * (square + setting.dimension)
        + _DECOMPOSITION * float(setting.dimension) ** 3,
        sums=8 * _SQUARES * square,
    )


def machine_work(setting: Setting) -> Work:
    """Return the work of sequential minimal optimisation on rows that are held as they are."""
    numbers, weights = float(setting.rows) * setting.dimension, outputs(setting.classes)
    # Row by row, and once more column by column, dense ones in float32.
    rows = numbers * (8 + 4 if setting.dimension < _SPARSE_FROM else 2 * _SPARSE_BYTES)
    cache = min(_KERNEL_CACHE, 4 * setting.rows**2)
    looks = _SOLVER_LOOKS * weights
    return Work(
        passes=looks, operations=2.0 * numbers * looks, held=int(rows) + cache + 8 * setting.rows * _SOLVER_COLUMNS
    )


def machine_memory() -> int:
    """Return the machine's memory in bytes; four gigabytes where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**32


class _Account:
    """Bytes that are kept by reservation and claimed for a while; whoever changes them holds ``changed``."""

    def __init__(self) -> None:
        self.limit = machine_memory() // 4
        self.held = 0
        self.claimed = 0
        self.changed = threading.Condition()


_account = _Account()


class Reserved:
    """A reservation, given back when nobody refers to it any more."""

    __slots__ = ("__weakref__",)


def reserve(size: int) -> Reserved | None:
    """Reserve ``size`` bytes for rows that are kept; None where they do not fit, and rows are to be read again.

    Whether they are kept changes no result, only how often they are read.
    """
    with _account.changed:
        if _account.held + _account.claimed + size > _account.limit:
            return None
        _account.held += size
    reserved = Reserved()
    weakref.finalize(reserved, _give_back, size)
    return reserved


def _give_back(size: int) -> None:
    with _account.changed:
        _account.held -= size


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
    """Return how many bytes may be reserved at once; a quarter of the machine's where nobody said."""
    return _account.limit


def set_memory_limit(size: int) -> None:
    """Say how many bytes may be reserved at once, in the whole process."""
    _account.limit = size
