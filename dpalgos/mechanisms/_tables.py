"""Inverse distribution functions on tables of 127-bit thresholds: laws on 0, 1, 2, … from integer weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpalgos.rows import Ints

_BITS = 127


def thresholds(weights: Sequence[int]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return floor(2^127 P(K > i)), i descending, as upper 63 and lower 64 bits, for P(K = i) as the weights.

    Thresholds that are zero are left out.
    """
    total = sum(weights)
    heads, tails = [], []
    tail = 0
    for weight in reversed(weights[1:]):
        tail += weight
        threshold = (tail << _BITS) // total
        if threshold:
            heads.append(threshold >> 64)
            tails.append(threshold & (2**64 - 1))
    # A law concentrated at zero still needs one entry to search in.
    return np.array(heads or [0], dtype=np.uint64), np.array(tails or [0], dtype=np.uint64)


def exceeded(
    firsts: NDArray[np.uint64], seconds: NDArray[np.uint64], heads: NDArray[np.uint64], tails: NDArray[np.uint64]
) -> Ints:
    """Return the number of thresholds above each uniform 127-bit integer, of which 63 bits come first and 64 second."""
    # Thresholds whose upper bits exceed the draw's; where upper bits are equal the lower ones decide.
    above = len(heads) - np.searchsorted(heads, firsts, side="right")
    equal = np.flatnonzero(heads[len(heads) - above - 1] == firsts)
    for index in equal:
        low, high = np.searchsorted(heads, firsts[index], side="left"), len(heads) - above[index]
        above[index] += int((tails[low:high] > seconds[index]).sum())
    return np.asarray(above, dtype=np.int64)
