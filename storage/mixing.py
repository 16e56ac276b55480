"""A permutation of 64-bit numbers that spreads what they differ in over all bits."""

import numpy as np
from numpy.typing import NDArray


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finaliser of SplitMix64 (Steele, Lea, Flood 2014) of each number: a bijection, and no cipher."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ words >> np.uint64(shift)) * np.uint64(factor)
    return np.asarray(words ^ words >> np.uint64(31))
