"""Types of arrays, by what they hold."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.generic[object]]"
"""Numbers of any type: labels, stored arrays, values that key noise."""
Floats = NDArray[np.float64]
Features: TypeAlias = "NDArray[np.float64] | NDArray[np.float32]"
"""Rows as they are read: float32 where they are stored so."""
Ints = NDArray[np.int64]
