"""Laws whose scale says what they cost: sensitivity over epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from dpalgos.errors import ParameterError


@dataclass(frozen=True, slots=True)
class PureScale:
    """Noise that makes a vector epsilon-DP for epsilon = sensitivity / scale, in the norm that a subclass names.

    Parameters
    ----------
    scale : float
        Above 0, in the unit of what noise is added to.
    """

    scale: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ParameterError(f"scale is {self.scale!r}; it must be a finite number above 0: sensitivity / epsilon")

    @classmethod
    def calibrated(cls, epsilon: float, sensitivity: float) -> Self:
        """Return the law that gives epsilon-DP for a sensitivity, its scale rounded up."""
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ParameterError(f"epsilon is {epsilon!r}; it must be a finite number above 0")
        return cls(math.nextafter(sensitivity / epsilon, math.inf))

    def epsilon(self, sensitivity: float) -> float:
        """Return epsilon for a sensitivity, rounded up."""
        return math.nextafter(sensitivity / self.scale, math.inf) if sensitivity > 0 else 0.0
