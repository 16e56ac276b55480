"""Radial Laplace noise: pure differential privacy for vectors with an l2 sensitivity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.guarantees import Numerics
from dpalgos.mechanisms.pure_scale import PureScale
from dpalgos.noise import RandomStream, uniforms
from dpalgos.rows import Floats


@dataclass(frozen=True, slots=True)
class RadialLaplace(PureScale):
    """One vector with density proportional to ``exp(-|eta|_2 / scale)``.

    Guarantee
    ---------
    Added to a vector of l2 sensitivity Delta (units of the vector, either neighbouring relation): epsilon-DP with
    epsilon = Delta / scale. Proof: the densities at any output z for neighbouring vectors u, v have the ratio
    exp((|z - v| - |z - u|) / scale) <= exp(|u - v| / scale) <= exp(Delta / scale). The vector is the whole release:
    a matrix is flattened into one vector, not noised row by row. Numerics are ``idealised``.

    The length follows the Gamma law with shape d (the dimension; the surface of a sphere of radius r grows as r^(d-1))
    and this scale; the direction is uniform and independent of it. The mean length is d * scale.

    Parameters
    ----------
    scale : float
        Delta / epsilon, in units of the vector.

    References
    ----------
    Hardt, Talwar, "On the geometry of differential privacy", STOC 2010 (K-norm mechanism);
    Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011), Algorithm 1.
    """

    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def sample(self, count: int, stream: RandomStream) -> Floats:
        """Return one draw: a vector of ``count`` coordinates, which are not independent of each other."""
        uniform = uniforms(stream, count + 1)
        direction = scipy.special.ndtri(uniform[1:])
        length = self.scale * float(scipy.special.gammaincinv(count, uniform[0])) if count else 0.0
        return np.asarray(direction * (length / max(float(np.linalg.norm(direction)), np.finfo(np.float64).tiny)))
