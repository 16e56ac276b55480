"""Directions drawn by the exponential mechanism."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import PureAlgorithm
from dpalgos.guarantees import RELATIONS, Guarantee, Neighbours, Numerics, PureEpsilon, Setting
from dpalgos.integer_sums import OF_BOUNDED_TRACE, gram_sensitivity
from dpalgos.models import Projection
from dpalgos.projections.principal import PrincipalDirections, gram_matrix, oriented
from dpalgos.registry import register
from dpalgos.rows import Floats, NoiseSource, RandomStream, Rows, normals, uniforms

# Directions proposed at once. In q dimensions some 1.2 √q are needed on average where the distribution is most
# concentrated.
_PROPOSALS = 32
_HALVINGS = 100


@dataclass(frozen=True, slots=True)
class Bingham:
    """A unit vector v with density proportional to ``exp(vᵀ B v)`` on the sphere of q dimensions.

    Guarantee
    ---------
    *The exponential mechanism* (McSherry, Talwar 2007) over directions. Let the exponents of neighbouring data sets
    differ by g(v) = vᵀ(B − B′)v. The densities' ratio at v is exp(g(v)) / E′[exp(g)], the mean taken under the second
    distribution, so it lies between exp(min g − max g) and exp(max g − min g): epsilon-DP with epsilon the largest
    eigenvalue of B − B′ minus the smallest. Numerics are ``idealised``.

    *The sampler is exact* in real arithmetic. Let ℓ ≥ 0 be B's largest eigenvalue minus each of them, u = Σ ℓᵢ vᵢ² in
    B's eigenvectors, b the root of Σ 1/(b + 2ℓᵢ) = 1, which is in [1, q], and ωᵢ = 1 + 2ℓᵢ/b. A Gaussian vector of
    variances 1/ωᵢ, scaled to length 1, has a density proportional to (1 + 2u/b)^(−q/2) (angular central Gaussian), and
    e^(−u) ≤ e^(−(q − b)/2) (q/b)^(q/2) (1 + 2u/b)^(−q/2) with equality at u = (q − b)/2. The proposal is accepted with
    the ratio of the two sides. The number of proposals is random; its distribution depends on B, so the run time
    reveals something about B (docs/security.md).

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
    """Return the root b of Σ 1/(b + 2ℓᵢ) = 1, by bisection: between 1, as one of the ℓᵢ is 0, and their number."""
    low, high = 1.0, float(len(below))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.sum(1.0 / (middle + 2.0 * below)) > 1.0 else (low, middle)
    return 0.5 * (low + high)


def remaining(directions: Floats) -> Floats:
    """Return an orthonormal basis (d, d − i) of what is orthogonal to i orthonormal columns."""
    full, _ = np.linalg.qr(directions, mode="complete")
    return np.asarray(full[:, directions.shape[1] :])


def drawn_basis(directions: Floats) -> Projection:
    """Return the projection; the signs, which the distribution leaves open, by the largest entry of each direction."""
    # No spectrum: the exact one is a function of the rows, and none is drawn.
    return Projection(basis=np.ascontiguousarray(oriented(directions)), spectrum=np.zeros(0))


@register("projections", "ppca")
@dataclass(frozen=True, kw_only=True)
class Ppca(PureAlgorithm, PrincipalDirections):
    """Directions drawn one after the other, each orthogonal to those before, by the exponential mechanism.

    Guarantee
    ---------
    epsilon-DP in total, epsilon/k for each of k directions (they are drawn from the same rows, adaptively). The i-th
    has the density ∝ exp(c vᵀXᵀX v) on the unit sphere of what is orthogonal to those before: the exponential mechanism
    (:class:`~dpalgos.projections.ppca.Bingham`), which is c·r-DP for r the range over v of the change of vᵀXᵀX v.
    That change is vᵀ(xxᵀ − zzᵀ)v, of a matrix of rank two with eigenvalues p ≥ 0 ≥ −q and Frobenius norm √(p² + q²) ≤
    √2 (:func:`~dpalgos.integer_sums.gram_sensitivity`), so r = p + q ≤ √2·√2 = 2, reached by orthogonal unit
    rows; against a null record it is ‖x‖² ≤ 1. So c = epsilon/(2k) under replace-one, epsilon/k under replace-special.
    The sampler draws from exactly this distribution; numerics idealised. The released basis has no spectrum.

    For k = 1 this is the distribution of PPCA; for more, PPCA draws the subspace at once, for which no exact method is
    known.

    Parameters
    ----------
    budget : PureEpsilon
    components : int
        Number of directions k.

    References
    ----------
    Chaudhuri, Sarwate, Sinha, JMLR 14 (2013), Algorithm 2 (k = 1); Kapralov, Talwar, "On differentially private low
    rank approximation", SODA 2013 (direction by direction); McSherry, Talwar, FOCS 2007, Theorem 6.
    """

    source: ClassVar[str] = "Chaudhuri, Sarwate, Sinha 2013, Algorithm 2; Kapralov, Talwar 2013 for several directions"
    people: ClassVar[str] = OF_BOUNDED_TRACE
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "XᵀX, Frobenius"

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves XᵀX."""
        return gram_sensitivity(1.0, setting.neighbours)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact XᵀX."""
        return gram_matrix([rows], setting)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return an equal share of epsilon for each direction."""
        self.check(setting)
        share = PureEpsilon(self.budget.epsilon / self.components)
        return Guarantee(losses=(share,) * self.components, neighbours=setting.neighbours)

    def weight(self, setting: Setting) -> float:
        """Return c, by which vᵀXᵀX v is multiplied in the exponent."""
        return self.budget.epsilon / (self.components * setting.neighbours.records)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the directions as they were drawn."""
        self.check(setting)
        exponent = self.weight(setting) * gram_matrix(parties, setting)
        drawn = np.zeros((setting.dimension, 0))
        for index in range(self.components):
            rest = remaining(drawn)
            distribution = Bingham(rest.T @ exponent @ rest)
            direction = rest @ distribution.sample(noise.stream(f"direction-{index}", distribution.exponent))
            drawn = np.column_stack([drawn, direction])
        return drawn_basis(drawn)
