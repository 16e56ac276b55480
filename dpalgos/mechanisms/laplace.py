"""Continuous Laplace noise, coordinate by coordinate: pure differential privacy for an l1 sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Numerics
from dpalgos.noise import RandomStream
from dpalgos.rows import Floats

__all__ = ["Laplace"]


@dataclass(frozen=True, slots=True)
class Laplace:
    """Independent numbers with density ``exp(-|x| / scale) / (2 scale)``.

    Guarantee
    ---------
    Added to a vector of **l1** sensitivity Delta (units of the vector, either neighbouring relation): epsilon-DP with
    epsilon = Delta / scale. An l2 sensitivity is not enough: a vector of d coordinates that moves by Delta in l2 can
    move by sqrt(d) Delta in l1; use :class:`~dpalgos.mechanisms.radial.RadialLaplace` there. Numerics are
    ``idealised``; integers take :class:`~dpalgos.mechanisms.discrete_laplace.DiscreteLaplace`, which is exact.

    Parameters
    ----------
    scale : float
        Delta / epsilon, in units of the vector; the standard deviation is sqrt(2) times as large.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1;
    on floating point: Mironov, "On significance of the least significant bits for differential privacy", CCS 2012.
    """

    scale: float
    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ParameterError(f"scale is {self.scale!r}; it must be a finite number above 0: sensitivity / epsilon")

    @classmethod
    def calibrated(cls, epsilon: float, sensitivity: float) -> Laplace:
        """Return the law that gives epsilon-DP for an l1 sensitivity, its scale rounded up."""
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ParameterError(f"epsilon is {epsilon!r}; it must be a finite number above 0")
        return cls(math.nextafter(sensitivity / epsilon, math.inf))

    def epsilon(self, sensitivity: float) -> float:
        """Return epsilon for an l1 sensitivity, rounded up."""
        return math.nextafter(sensitivity / self.scale, math.inf) if sensitivity > 0 else 0.0

    def sample(self, count: int, stream: RandomStream) -> Floats:
        """Return ``count`` independent draws."""
        return stream.generator().laplace(0.0, self.scale, count)
