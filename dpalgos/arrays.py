"""Types of arrays, by what they hold."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Floats", "Ints"]

Array: TypeAlias = "NDArray[np.generic[object]]"
"""Numbers of any type: labels, stored arrays, values that key noise."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
