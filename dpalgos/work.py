"""What an algorithm asks of a machine: numbers to plan by, from public facts alone."""

from __future__ import annotations

from dataclasses import dataclass

from dpalgos.guarantees import Setting
from dpalgos.losses import outputs

__all__ = ["Work", "gathering_work"]

# An exact minimiser takes about as many looks at the rows, line searches included.
_SOLVER_LOOKS = 100


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
    """

    passes: int = 1
    operations: float = 0.0
    small_operations: float = 0.0
    kept: int = 0


def gathering_work(setting: Setting) -> Work:
    """Return the work of an algorithm that holds all rows in float64 and minimises a risk over them."""
    products = float(setting.rows) * setting.dimension * outputs(setting.classes)
    return Work(
        passes=_SOLVER_LOOKS,
        operations=4.0 * products * _SOLVER_LOOKS,
        small_operations=float(setting.rows) * outputs(setting.classes) * _SOLVER_LOOKS,
        kept=8 * setting.rows * setting.dimension,
    )
