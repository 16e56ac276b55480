"""The least Gaussian-DP under which the whole trade-off curve of a plan lies: how a composed plan enters a filter.

Write ``H_t`` for the hockey-stick divergence of a plan's dominating pair (P, Q) and ``G_t`` for that of N(mu, 1)
against N(0, 1). If

    ``H_t <= s + (1 - s) G_t`` for all t > 0, in both orders of the pair,

then the plan is, towards whoever sees its outputs, no easier to tell apart than the pair that reveals everything with
probability s and is mu-Gaussian-DP otherwise. Proof: let that pair be ``P* = s [a] + (1 - s) N(mu, 1)`` and
``Q* = s [b] + (1 - s) N(0, 1)`` with points a, b that tell P* and Q* apart for certain. Its divergence is the
right-hand side for each t > 0 (a contributes s, b nothing), so (P, Q) is a post-processing of (P*, Q*) (Blackwell's
theorem: Dong, Roth, Su 2022, Theorem 2; the divergences at all t > 0 determine the trade-off function, Proposition 2).
A single (epsilon, delta) point is one t of this condition and proves nothing about the others.

The second order needs no work of its own. ``H_t(Q || P) = 1 - t + t H_{1/t}(P || Q)`` holds for every pair, and
inserted on both sides it turns the condition for (Q, P) at t into the condition for (P, Q) at 1/t. The pairs composed
here (pure epsilon, Gaussian) are symmetric, ``H_t(P || Q) = H_t(Q || P)``, and so are their products; for them the same
identity says that the condition at t < 1 is the one at 1/t. It is therefore checked for t >= 1, which covers all t > 0
and both orders.

For zCDP nothing is to be gained from the joint curve: of pure epsilons and Gaussians the Rényi divergences add, each
``D_alpha / alpha`` is largest as alpha falls to 1, where it is the Kullback-Leibler divergence
(:func:`~dpalgos.accounting.conversions.rho_of_pure`, :func:`~dpalgos.accounting.conversions.rho_of_mu`), and so is
their sum's: the sum of the rhos is the least rho with ``D_alpha <= alpha rho`` for all alpha > 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from dpalgos.accounting.conversions import mu_of_pure, rho_of_mu, rho_of_pure
from dpalgos.accounting.profiles import AtomsProfile, atom_count, gaussian_curve, product, pure_atoms
from dpalgos.rows import Floats

_CELLS = 256
# Beyond this many products of atoms and nodes the closed form is taken.
_MOST_TERMS = 2**22
_RESOLUTION = 1e-4


def least_mu(pure: Mapping[float, int], mu: float, slack: float) -> float:
    """Return a mu for which pure epsilons and a Gaussian together are ``(slack, mu)`` in the sense of this module.

    Parameters
    ----------
    pure : mapping of float to int
        How often each epsilon occurs.
    mu : float
        Of the Gaussian beside them; 0 for none.
    slack : float
        s, in [0, 1). It is needed where a Gaussian is present (its tail shifted by the pure losses is above every
        Gaussian's with nearly the same mu far out) and may be tiny: the least mu is decided where H is large.

    Returns
    -------
    float
        At most the root of ``mu^2 + sum of mu_of_pure(epsilon)^2``; never below the least, and relatively within about
        1e-4 of it.

    Notes
    -----
    Guarantee. The condition is proved for all t >= 1, not at the nodes alone. H and G are convex in t. On a cell from
    ``t`` to ``t e^h`` H lies below its chord, and G above its chord less ``(t (e^h - 1))^2 / 8`` times the largest G''
    on the cell; ``G'' = phi(mu/2 + ln(t)/mu) / (mu t)`` falls for t >= 1, so it is largest at the left end. Hence the
    condition with that gap taken off G, at both ends of each cell, implies it on the cell. To the right of the last
    node H is at most its value there, which is at most s. H is rounded up and G down.
    """
    return _least_mu(tuple(sorted(pure.items())), mu, slack)


@lru_cache(maxsize=4096)
def _least_mu(pure: tuple[tuple[float, int], ...], mu: float, slack: float) -> float:
    counts = dict(pure)
    # Squares, sum and root are each rounded once.
    alone = math.sqrt(math.fsum([mu * mu, *(n * mu_of_pure(epsilon) ** 2 for epsilon, n in pure)])) * (1 + 1e-15)
    several = sum(counts.values()) + (mu > 0) > 1
    if several and (mu == 0 or slack > 0) and counts and atom_count(counts, 0.0) * _CELLS <= _MOST_TERMS:
        curve = Curve.of(counts, mu, slack)
        # The Kullback-Leibler divergence of a dominated pair is no larger, slack apart.
        divergence = math.fsum([rho_of_mu(mu), *(n * rho_of_pure(epsilon) for epsilon, n in pure)])
        return curve.least(math.sqrt(2 * divergence), alone)
    return alone


class Curve:
    """H at evenly spaced nodes from t = 1 on, rounded up, and how far a Gaussian's curve is from lying above it.

    Parameters
    ----------
    nodes : array
        Values of ln t, the first 0.
    values : array
        The larger of both orders' H at the nodes, rounded up.
    slack : float
        s.
    """

    def __init__(self, nodes: Floats, values: Floats, slack: float) -> None:
        self._nodes, self._values, self._slack = nodes, values, slack

    @classmethod
    def of(cls, pure: Mapping[float, int], mu: float, slack: float) -> Curve:
        """Return the curve of pure epsilons and a Gaussian."""
        atoms = product(pure_atoms(epsilon, count) for epsilon, count in pure.items())
        # Phi(mu/2 - x/mu) <= exp(-(x/mu - mu/2)^2 / 2) / 2 bounds a Gaussian's H at e^x.
        tail = mu * (mu / 2 + math.sqrt(-2 * math.log(slack))) if mu > 0 else 0.0
        reach = (float(atoms.losses.max()) + tail) * (1 + 1e-9)
        nodes: Floats = np.linspace(0.0, reach, _CELLS + 1)
        return cls(nodes, AtomsProfile(atoms, mu=mu).deltas(nodes), slack)

    def excess(self, mu: float) -> float:
        """Return by how much ``s + (1 - s) G_t`` is too low for some t >= 1; it dominates where this is at most 0."""
        nodes, slack = self._nodes, self._slack
        if self._values[-1] > slack:
            return math.inf
        # The curve's error is relative in its tail and absolute where two terms of like size are subtracted.
        cancelled = np.where(nodes <= mu * mu / 2, 1e-13, 0.0)
        lower = np.maximum(gaussian_curve(mu, nodes) * (1 - 1e-9) - cancelled, 0.0)
        left = nodes[:-1]
        with np.errstate(over="ignore", under="ignore"):
            # t^2 G'' in one exponent, so that neither factor overflows.
            bend = np.exp(left - (mu / 2 + left / mu) ** 2 / 2) / (math.sqrt(2 * math.pi) * mu)
        gap = math.expm1(nodes[1] - nodes[0]) ** 2 / 8 * bend * (1 + 1e-9)
        ends = np.stack([lower[:-1], lower[1:]]) - gap
        values = np.stack([self._values[:-1], self._values[1:]])
        return float(np.max(values - slack - (1 - slack) * np.maximum(ends, 0.0)))

    def least(self, low: float, high: float) -> float:
        """Return nearly the least mu that is found to dominate between two bounds; the upper one is known to."""
        while high - low > _RESOLUTION * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.excess(middle) <= 0 else (middle, high)
        return high
