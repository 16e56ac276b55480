"""The Bingham law of a random direction, drawn exactly by rejection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.guarantees import Numerics
from dpalgos.noise import RandomStream, normals, uniforms
from dpalgos.rows import Floats

# Directions proposed at once. In q dimensions some 1.2 √q are needed on average where the law is most concentrated.
_PROPOSALS = 32
_HALVINGS = 100


@dataclass(frozen=True, slots=True)
class Bingham:
    """A unit vector v with density proportional to ``exp(vᵀ B v)`` on the sphere of q dimensions.

    Guarantee
    ---------
    *The exponential mechanism* (McSherry, Talwar 2007) over directions. Let the exponents of neighbouring data sets
    differ by g(v) = vᵀ(B − B′)v. The densities' ratio at v is exp(g(v)) / E′[exp(g)], the mean taken under the second
    law, so it lies between exp(min g − max g) and exp(max g − min g): epsilon-DP with epsilon the largest eigenvalue of
    B − B′ minus the smallest. Numerics are ``idealised``.

    *The sampler is exact* in real arithmetic. Let ℓ ≥ 0 be B's largest eigenvalue minus each of them, u = Σ ℓᵢ vᵢ² in
    B's eigenvectors, b the root of Σ 1/(b + 2ℓᵢ) = 1, which is in [1, q], and ωᵢ = 1 + 2ℓᵢ/b. A Gaussian vector of
    variances 1/ωᵢ, scaled to length 1, has a density proportional to (1 + 2u/b)^(−q/2) (angular central Gaussian), and
    e^(−u) ≤ e^(−(q − b)/2) (q/b)^(q/2) (1 + 2u/b)^(−q/2) with equality at u = (q − b)/2. The proposal is accepted with
    the ratio of the two sides. The number of proposals is random; its law depends on B, which is for whoever measures
    the time (docs/security.md).

    Parameters
    ----------
    exponent : array (q, q)
        B, symmetric.

    References
    ----------
    Kent, Ganeiko, Mardia, "A new unified approach for the simulation of a wide class of directional distributions",
    JCGS 27 (2018), sections 2 and 3.
    """

    exponent: Floats
    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def sample(self, stream: RandomStream) -> Floats:
        """Return one direction, (q,)."""
        values, vectors = np.linalg.eigh(self.exponent)
        below = values[-1] - values
        width = _envelope(below)
        deviations = 1.0 / np.sqrt(1.0 + 2.0 * below / width)
        q = len(values)
        highest = 0.5 * (q - width) - 0.5 * q * math.log(q / width)
        while True:
            proposals = normals(stream, _PROPOSALS * q).reshape(-1, q) * deviations
            proposals /= np.linalg.norm(proposals, axis=1, keepdims=True)
            u = proposals**2 @ below
            log_ratio = 0.5 * q * np.log1p(2.0 * u / width) - u + highest
            accepted = np.flatnonzero(np.log(uniforms(stream, _PROPOSALS)) <= log_ratio)
            if len(accepted):
                return np.asarray(vectors @ proposals[accepted[0]])


def _envelope(below: Floats) -> float:
    """Return the root b of Σ 1/(b + 2ℓᵢ) = 1: between 1, as one of the ℓᵢ is 0, and their number."""
    low, high = 1.0, float(len(below))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.sum(1.0 / (middle + 2.0 * below)) > 1.0 else (low, middle)
    return 0.5 * (low + high)
