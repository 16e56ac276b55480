"""What an algorithm asks of a machine: numbers to plan by, from public facts alone."""

from __future__ import annotations

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
    products = float(setting.rows) * setting.dimension * weights
    return Work(
        passes=looks,
        operations=4.0 * products * looks,
        small_operations=float(setting.rows) * weights * looks,
        held=8 * (setting.rows if rows is None else rows) * (setting.dimension + 1 + _SOLVER_COLUMNS * weights),
        sums=8 * _SQUARES * setting.dimension**2,
    )


def covariance_work(setting: Setting) -> Work:
    """Return the work of one pass that adds up a d × d matrix, and of its eigenvectors."""
    square = setting.dimension**2
    return Work(
        operations=float(setting.rows) * (square + setting.dimension) + _DECOMPOSITION * float(setting.dimension) ** 3,
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
