"""Functions that round alike on every processor: each step is one addition, product or division of IEEE arithmetic.

NumPy chooses the code of ``exp``, ``log`` and ``tanh`` by the processor it runs on, and their last bits differ; so do
those of ``@``, whose order of summation is BLAS's. Where numbers decide what integers a party adds up, or are stored
with a release, they are made by these instead. What each step rounds is defined, and NumPy fuses no two of them.
"""

import math

import numpy as np

from dpalgos.rows import Floats, squared_norms

# Compiled loops keep the values that they were compiled with (dpalgos/compiling.py): other ones need other names.
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 in two parts; a whole number below 2^11 times the first is exact."""
WHOLE = 1.5 * 2.0**52
"""Added to a number below 2^51, it leaves the nearest whole number in the last bits."""
TAYLOR = tuple(1.0 / math.factorial(power) for power in range(13, -1, -1))
"""1/13!, 1/12!, …, 1/0!."""
LEAST = -700.0
"""Below this, e to a number is taken for e to this."""
# Numbers whose powers are made at a time, which a core's cache holds.
_BLOCK = 2**13


def exponentials(numbers: Floats) -> Floats:
    """Return e to numbers none of which is above 0, to within two units in the last place; below e^−700, that.

    e^v = 2^q e^r with q whole and |r| ≤ ln(2)/2, e^r by its Taylor polynomial of degree 13: as compiled loops do it,
    to the same bits.
    """
    flat = np.maximum(numbers, LEAST).ravel()
    shifted, powers = np.empty(min(_BLOCK, flat.size)), np.empty(min(_BLOCK, flat.size))
    for start in range(0, flat.size, _BLOCK):
        value = flat[start : start + _BLOCK]
        whole, total = shifted[: value.size], powers[: value.size]
        np.multiply(value, LOG2_E, out=whole)
        whole += WHOLE
        # The last twelve bits are those of q; moved, they are the exponent of 2^q.
        scale = ((whole.view(np.int64) + 1023) << 52).view(np.float64)
        whole -= WHOLE
        value -= whole * LN2_HIGH
        whole *= LN2_LOW
        value -= whole
        total[:] = TAYLOR[0]
        for coefficient in TAYLOR[1:]:
            total *= value
            total += coefficient
        np.multiply(total, scale, out=value)
    return flat.reshape(np.shape(numbers))


def sigmoid(scores: Floats) -> Floats:
    """Return 1/(1 + e^−s), which neither overflows nor loses the small tail."""
    small = exponentials(-np.abs(scores))
    return np.asarray(np.where(scores < 0, small, 1.0) / (1.0 + small))


def l2_norm(vector: Floats) -> float:
    """Return the l2 norm of all entries of an array."""
    return math.sqrt(float(squared_norms(np.reshape(vector, (1, -1)))[0]))
