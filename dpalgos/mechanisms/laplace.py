"""Continuous Laplace noise, coordinate by coordinate: pure differential privacy for an l1 sensitivity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.guarantees import Numerics
from dpalgos.mechanisms.pure_scale import PureScale
from dpalgos.noise import RandomStream, uniforms
from dpalgos.rows import Floats


@dataclass(frozen=True, slots=True)
class Laplace(PureScale):
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

    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def sample(self, count: int, stream: RandomStream) -> Floats:
        """Return ``count`` independent draws."""
        centred = uniforms(stream, count) - 0.5
        return np.asarray(-self.scale * np.sign(centred) * np.log1p(-2.0 * np.abs(centred)))
