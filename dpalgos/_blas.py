"""A BLAS routine that lets other threads run meanwhile: SciPy's wrapper of it holds the interpreter's lock."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Protocol

import numpy as np

from dpalgos.arrays import Floats

__all__ = ["add_gram"]

_INT, _DOUBLE = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_double)
_DECLARED = "void (char *, char *, int *, int *, double *, double *, int *, double *, double *, int *)"


class _Routine(Protocol):
    """A C function."""

    def __call__(self, *arguments: object) -> object: ...


def add_gram(total: Floats, rows: Floats) -> None:
    """Add Σ x xᵀ over rows (m, d) to the lower triangle of ``total`` (d, d), in place.

    Parameters
    ----------
    total : array (d, d)
        Of float64, column after column in memory.
    rows : array (m, d)
        Of float64.
    """
    routine = _routine()
    if routine is None:
        from scipy.linalg.blas import dsyrk

        dsyrk(1.0, rows.T, beta=1.0, c=total, overwrite_c=1, lower=1)
        return
    given = np.ascontiguousarray(rows)
    count, width = given.shape
    assert total.flags.f_contiguous
    assert total.shape == (width, width)
    order, one = ctypes.c_int(max(width, 1)), ctypes.c_double(1.0)
    # Row after row in memory is the transpose column after column.
    routine(
        b"L", b"N", order, ctypes.c_int(count), one, given.ctypes.data_as(_DOUBLE), order, one,
        total.ctypes.data_as(_DOUBLE), order,
    )  # fmt: skip


@cache
def _routine() -> _Routine | None:
    """Return SciPy's ``dsyrk`` as it exports it for other compiled code; None where it is declared otherwise."""
    from scipy.linalg import cython_blas

    capsule = getattr(cython_blas, "__pyx_capi__", {}).get("dsyrk")
    if capsule is None:
        return None
    name_of, address_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    address_of.restype, address_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    name = name_of(capsule) or b""
    if re.sub(r"__pyx_t_\w+_d \*", "double *", name.decode()) != _DECLARED:
        return None
    character = ctypes.c_char_p
    kind = ctypes.CFUNCTYPE(None, character, character, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _DOUBLE, _INT)
    return kind(address_of(capsule, name))
