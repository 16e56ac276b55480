"""Compilation of inner loops. Imported when a loop starts, so that importing dpalgos stays light.

Functions that call each other keep to one file, because the compiler's cache notices changes of the file a function is
in, and of no other.
"""

from collections.abc import Callable
from typing import TypeVar

import numba

_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F) -> _F:
    """Compile at first use, without the interpreter's lock; sums may be taken in any order.

    Kept on disk where a place can be written to (NUMBA_CACHE_DIR names one).
    """
    return _compiled(function, fastmath={"contract", "reassoc"})


def compiled_in_order(function: _F) -> _F:
    """Compile like :func:`compiled`, for the same rounding as written, on every processor."""
    return _compiled(function)


def _compiled(function: _F, **options: object) -> _F:
    # A division by zero gives what it gives in NumPy, and does not keep a loop from being vectorised.
    options["error_model"] = "numpy"
    try:
        return numba.njit(cache=True, nogil=True, **options)(function)  # type: ignore[no-any-return]  # numba has no types
    except RuntimeError:
        # Neither the package's folder nor the user's cache can be written to: compile in every process.
        return numba.njit(nogil=True, **options)(function)  # type: ignore[no-any-return]  # numba has no types
