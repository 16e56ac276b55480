"""Conversions between loss types, each proved: pure to Gaussian and to zCDP, zCDP to (epsilon, delta) and back."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy

from dpalgos.errors import ParameterError
from dpalgos.rows import Floats

# Relative error granted to float64 special functions; scipy documents a few 1e-16 to 1e-15 for those used here.
_ROUNDING = 1e-12
_SMALLEST_DELTA = 1e-300
_LARGEST_ALPHA_STEPS = 200


def require_epsilon(epsilon: float) -> None:
    """Raise ParameterError unless epsilon is finite and at least 0."""
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ParameterError(f"epsilon is {epsilon!r}; it must be a finite number, at least 0")


def require_delta(delta: float) -> None:
    """Raise ParameterError unless delta is at least 0 and below 1."""
    if not 0 <= delta < 1:
        raise ParameterError(f"delta is {delta!r}; it must be at least 0 and below 1, and well below 1/rows")


def mu_of_pure(epsilon: float) -> float:
    """Return the mu for which epsilon-DP implies mu-Gaussian-DP, ``-2 Phi^-1(1 / (1 + e^epsilon))``, rounded up.

    Proof. Write F for the trade-off function of epsilon-DP, ``max(0, 1 - e^eps a, e^-eps (1 - a))`` (Wasserman, Zhou
    2010), and G for that of N(0, 1) against N(mu, 1). Both go through (0, 1) and (1, 0). F is linear on either side of
    its corner ``a = b = 1/(1 + e^eps)``, and G goes through that corner exactly for the stated mu. G is convex, so it
    lies below its chords, which are F. Hence telling the outputs apart is at least as hard as F >= G. No smaller mu
    will do, since randomised response attains F.
    """
    require_epsilon(epsilon)
    if epsilon < 1:
        mu = 2 * math.sqrt(2) * float(scipy.special.erfinv(math.tanh(epsilon / 2)))
    else:
        mu = -2 * float(scipy.special.ndtri_exp(-np.logaddexp(0, epsilon)))
    return mu * (1 + _ROUNDING)


def rho_of_pure(epsilon: float) -> float:
    """Return the least rho for which epsilon-DP implies rho-zCDP, ``epsilon tanh(epsilon / 2)``, rounded up.

    Proof. Any pair of epsilon-DP outputs is a post-processing of randomised response (Kairouz, Oh, Viswanath 2015),
    whose Rényi divergence is, with x = epsilon/2, ``log(cosh((2 alpha - 1) x) / cosh x) / (alpha - 1)``. As a function
    of ``s = (alpha - 1/2)^2``, ``log cosh(2 x sqrt s)`` is concave (its slope ``x tanh(2 x sqrt s) / sqrt s`` falls),
    so it lies below its tangent at s = 1/4: ``log cosh x + 2 x tanh(x) (s - 1/4)``. With
    ``s - 1/4 = alpha (alpha - 1)`` the divergence is at most ``alpha epsilon tanh(epsilon / 2)``. For alpha to 1
    this is the Kullback-Leibler divergence itself, so no smaller rho will do.

    Notes
    -----
    Bun and Steinke 2016, Proposition 3.3, has ``epsilon^2 / 2``, the limit for small epsilon and always larger.
    """
    require_epsilon(epsilon)
    return epsilon * math.tanh(epsilon / 2) * (1 + _ROUNDING)


def rho_of_mu(mu: float) -> float:
    """Return the rho of a mu-Gaussian-DP release, ``mu^2 / 2`` (Bun, Steinke 2016, Proposition 1.6), rounded up.

    The pair N(0, 1), N(mu, 1) has Rényi divergence ``alpha mu^2 / 2``, and every mu-Gaussian-DP pair is a
    post-processing of it (Dong, Roth, Su 2022, Theorem 2).
    """
    return math.nextafter(mu * mu / 2, math.inf) if mu > 0 else 0.0


def zcdp_curve(rho: float, epsilons: Floats) -> Floats:
    """Return upper bounds on delta at each epsilon >= 0 for a rho-zCDP release, rounded up.

    The least of three bounds, the first mostly:

    1. ``inf over alpha > 1 of exp((alpha-1)(alpha rho - eps)) / (alpha - 1) * (1 - 1/alpha)^alpha``
       (Canonne, Kamath, Steinke 2020, Corollary 13). Every alpha gives a valid bound, so an inexact minimiser costs
       tightness only. The derivative of the exponent, ``(2 alpha - 1) rho - eps + log(1 - 1/alpha)``, is increasing and
       concave, so Newton's method from a point below the root climbs to it without passing it.
    2. ``sqrt(rho / 2)`` and 3. ``sqrt(1 - exp(-rho))``: delta at any epsilon is at most the total variation, which
       the Kullback-Leibler divergence (at most rho) bounds by Pinsker and by Bretagnolle-Huber.
    """
    if rho == 0:
        return np.zeros_like(epsilons)
    with np.errstate(under="ignore"):
        below = np.maximum((epsilons / rho - 1) / 2, np.exp(-(3 * rho + 1)))
        excess = np.maximum(below, 1e-300)
        for _ in range(_LARGEST_ALPHA_STEPS):
            slope = (2 * excess + 1) * rho - epsilons - np.log1p(1 / excess)
            step = -slope / (2 * rho + 1 / (excess * (excess + 1)))
            excess = np.maximum(excess + step, excess)
            if np.all(step <= 1e-12 * excess):
                break
        # log(1 - 1/alpha) as -log1p(1 / (alpha - 1)), which keeps its precision for large alpha.
        exponent = excess * ((excess + 1) * rho - epsilons) - np.log(excess) - (excess + 1) * np.log1p(1 / excess)
        tail = np.exp(np.minimum(exponent, 1) + _ROUNDING * (1 + np.abs(np.maximum(exponent, -700))))
    variation = min(math.sqrt(rho / 2), math.sqrt(-math.expm1(-rho))) * (1 + _ROUNDING)
    # Tails too small for a float are not zero.
    return np.asarray(np.clip(np.minimum(tail, variation), _SMALLEST_DELTA, 1.0))


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Return an upper bound on delta at epsilon for a rho-zCDP release: :func:`zcdp_curve` at one point."""
    require_epsilon(epsilon)
    return float(zcdp_curve(rho, np.array([epsilon]))[0])


@lru_cache(maxsize=4096)
def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return an epsilon for which rho-zCDP implies (epsilon, delta)-DP: the inverse of :func:`zcdp_delta`, rounded up.

    Infinite where delta is 0 (below 1e-300) and rho is not.
    """
    require_delta(delta)
    if zcdp_delta(rho, 0.0) <= delta:
        return 0.0
    if delta < _SMALLEST_DELTA:
        return math.inf
    high = zcdp_epsilon_classical(rho, delta) * (1 + _ROUNDING)
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return math.log(max(zcdp_delta(rho, epsilon), 5e-324)) - target

    if excess(high) >= 0:
        return high
    epsilon, step = float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14)), 1e-15
    while zcdp_delta(rho, epsilon) > delta:
        epsilon, step = epsilon + step * epsilon, 2 * step
    return min(epsilon, high)


def zcdp_epsilon_classical(rho: float, delta: float) -> float:
    """Return ``rho + 2 sqrt(rho log(1/delta))``, the conversion of most papers (Bun, Steinke 2016, Prop. 1.3)."""
    require_delta(delta)
    if rho == 0:
        return 0.0
    return rho + 2 * math.sqrt(rho * -math.log(delta)) if delta > 0 else math.inf


@lru_cache(maxsize=4096)
def rho_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """Return the largest rho for which :func:`zcdp_delta` proves (epsilon, delta)-DP, rounded down."""
    require_epsilon(epsilon)
    require_delta(delta)
    if delta < _SMALLEST_DELTA:
        raise ParameterError(f"delta is {delta!r}: zCDP gives no pure guarantee; choose delta > 0 or a pure mechanism")
    target = math.log(delta)

    def excess(log_rho: float) -> float:
        return math.log(max(zcdp_delta(math.exp(log_rho), epsilon), 5e-324)) - target

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high += 1
    rho, step = math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14))), 1e-15
    while zcdp_delta(rho, epsilon) > delta:
        rho, step = rho * (1 - step), 2 * step
    return rho
