"""How much memory is admitted: for rows that are kept, and for whatever comes from outside."""

from __future__ import annotations

import math
import os

from storage.errors import InputError

MEMORY_VARIABLE = "UNITBALL_MEMORY"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Less would not do for a file as any.
_LEAST_ADMITTED = 1 << 28


def kept_memory() -> int:
    """Return how many bytes of rows this process keeps between passes over them: ``UNITBALL_MEMORY``, or a quarter.

    A number of bytes, or one with K, M, G or T (powers of 1024); by default a quarter of the machine's memory. Rows
    beyond it are read again at every pass. 0 keeps none.

    Raises
    ------
    storage.errors.InputError
        If it is no such number.
    """
    value = os.environ.get(MEMORY_VARIABLE, "").strip()
    if not value:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
        except (AttributeError, OSError, ValueError):
            return 2**30
    number, unit = (value[:-1], _UNITS[value[-1].upper()]) if value[-1].upper() in _UNITS else (value, 1)
    try:
        size = float(number) * unit
    except ValueError:
        size = math.nan
    if not (math.isfinite(size) and size >= 0):
        raise InputError(f"{MEMORY_VARIABLE} is {value!r}; give bytes, or a number with K, M, G or T, such as 2G")
    return int(size)


def admitted_memory() -> int:
    """Return how many bytes what comes from outside may take to read: :func:`kept_memory`, and 256 MiB at least."""
    return max(kept_memory(), _LEAST_ADMITTED)
