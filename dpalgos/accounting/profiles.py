"""Privacy profiles: epsilon at delta and delta at epsilon, of single losses and of compositions; never too low.

A *dominating pair* (P, Q) of a mechanism satisfies ``H_t(M(D) || M(D')) <= H_t(P || Q)`` for all neighbours and all
t >= 0, where ``H_t(P || Q) = integral of max(0, p - t q)`` is the hockey-stick divergence; a release is
(epsilon, delta)-DP exactly if ``H_{e^epsilon} <= delta``. The product of dominating pairs dominates the composition,
also when each mechanism is chosen in view of earlier outputs from a family with that pair (Zhu, Dong, Wang 2022,
Theorem 10). What is needed of a pair is the distribution of its privacy loss ``L = log(p/q)`` under P:
``H_t = E[max(0, 1 - t e^-L)]``, with L = infinity where q = 0.

The pairs of the loss types:

- pure epsilon: L = ± epsilon with odds e^epsilon (randomised response; Kairouz, Oh, Viswanath 2015, Theorem 2.3);
- (epsilon, delta): L = infinity with probability delta, else as for pure epsilon (same place);
- Gaussian mu: N(mu, 1) against N(0, 1) (Dong, Roth, Su 2022); several merge into one with ``mu^2 = sum of mu_i^2``;
- rho-zCDP: :func:`zcdp_atoms`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Protocol, Self

import numpy as np
import scipy

from dpalgos.mechanisms import _precise
from dpalgos.parameters import Bound, ParameterError
from dpalgos.rows import Floats

_POSITIVE = Bound(0.0, open_low=True)
LARGEST = 1e6
_EPSILON = Bound(0.0, LARGEST)
SMALLEST_DELTA = 1e-300
_MOST_STEPS = 200
_FAR = 2.0
_LOG_2_PI = math.log(2 * math.pi)
_Curve = Callable[[float, float], tuple[float, float]]


def _require_mu(mu: float) -> None:
    if not 0 <= mu <= LARGEST:
        raise ParameterError(f"mu is {mu!r}; it must lie between 0 and {LARGEST:g}: choose a larger sigma")


def _require_delta(delta: float) -> None:
    if not SMALLEST_DELTA <= delta < 1:
        raise ParameterError(
            f"delta is {delta!r}; it must be at least {SMALLEST_DELTA:g} and below 1 (and well below 1/rows, "
            "otherwise it protects no row); for delta = 0 use a pure-epsilon mechanism"
        )


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which mu-Gaussian-DP implies (epsilon, delta)-DP, rounded up.

    ``delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)``, exact for the Gaussian mechanism
    with mu = sensitivity / sigma. Evaluated with enough bits that the cancellation does not matter.

    References
    ----------
    Balle, Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018, Theorem 8;
    Dong, Roth, Su 2022, Corollary 1.
    """
    _require_mu(mu)
    _EPSILON.require("epsilon", epsilon)
    if mu == 0:
        return 0.0
    return min(1.0, math.nextafter(float(_precise.gaussian_delta(mu, epsilon)), math.inf))


@lru_cache(maxsize=4096)
def mu_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-Gaussian-DP implies (epsilon, delta)-DP, rounded down.

    The root of :func:`delta_of_mu` in mu (delta grows strictly with mu, at the rate ``phi(mu/2 - epsilon/mu)``); the
    value returned is verified to satisfy ``delta_of_mu(mu, epsilon) <= delta`` in high precision and is within a few
    units in the last place of the root.
    """
    _EPSILON.require("epsilon", epsilon)
    _require_delta(delta)
    target = math.log(delta)

    def excess(curve: _Curve, log_mu: float) -> tuple[float, float]:
        mu = math.exp(log_mu)
        centre = mu / 2 - epsilon / mu
        log_delta, _ = curve(mu, epsilon)
        return log_delta - target, math.exp(min(log_mu - (centre * centre + _LOG_2_PI) / 2 - log_delta, 700.0))

    # The tail bound delta <= exp(-(epsilon/mu - mu/2)^2 / 2), and delta = 2 Phi(mu/2) - 1 at epsilon 0.
    tail = math.sqrt(-2.0 * target)
    near = math.log(max(2 * epsilon / (math.sqrt(tail * tail + 2 * epsilon) + tail), delta))
    mu, step = math.exp(_newton_root(excess, near)), 2.0**-52
    while delta < _precise.gaussian_delta(mu, epsilon):
        mu, step = mu * (1.0 - step), 2.0 * step
    return mu


def _newton_root(excess: Callable[[_Curve, float], tuple[float, float]], start: float) -> float:
    """Return where a growing function of the curve, given with its slope, is 0: first by float64, where it can tell."""
    with suppress(ArithmeticError):
        start = _newton(partial(excess, _estimated_curve), start)
    return _newton(partial(excess, _precise_curve), start)


def _newton(function: Callable[[float], tuple[float, float]], start: float) -> float:
    """Return where a growing function, given with its slope, is 0: Newton's method, within what is known to hold it."""
    low, high, place = -math.inf, math.inf, start
    for _ in range(_MOST_STEPS):
        value, slope = function(place)
        low, high = (low, place) if value > 0 else (place, high)
        move = max(-_FAR, min(-value / slope, _FAR)) if slope > 0 else math.copysign(_FAR, -value)
        if not low <= place + move <= high:
            move = (low + high) / 2 - place
        place += move
        # What is left is of the square of the last step.
        if abs(move) <= 1e-9:
            return place
    raise ArithmeticError("Newton's method did not converge")


def _estimated_curve(mu: float, epsilon: float) -> tuple[float, float]:
    """Return log delta and log e^epsilon Phi(-mu/2 - epsilon/mu) in float64, of few digits where the terms cancel.

    Raises
    ------
    ArithmeticError
        Where none are left.
    """
    first = _log_cdf(mu / 2 - epsilon / mu)
    second = epsilon + _log_cdf(-mu / 2 - epsilon / mu)
    if not second < first:
        raise ArithmeticError("the two terms cannot be told apart")
    return first + math.log(-math.expm1(second - first)), second


def _precise_curve(mu: float, epsilon: float) -> tuple[float, float]:
    """Return both to full precision."""
    delta, second = _precise.gaussian_curve(mu, epsilon)
    return _precise.log(delta), _precise.log(second)


def _log_cdf(z: float) -> float:
    """Return log Phi(z) in float64.

    Raises
    ------
    ArithmeticError
        Below about -37, where Phi itself is too small for float64.
    """
    twice = math.erfc(-z / math.sqrt(2.0))
    if twice < 2.0**-1000:
        raise ArithmeticError("the tail is too small")
    return math.log(twice / 2.0)


@lru_cache(maxsize=4096)
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which mu-Gaussian-DP implies (epsilon, delta)-DP, rounded up.

    The root of :func:`delta_of_mu` in epsilon; the value returned is verified in high precision.
    """
    _require_mu(mu)
    _require_delta(delta)
    # At epsilon 0 it is 2 Phi(mu/2) - 1, which float64 can tell from delta unless they are close.
    if mu == 0 or (math.erf(mu / math.sqrt(8)) < 1.001 * delta and delta_of_mu(mu, 0.0) <= delta):
        return 0.0
    target = math.log(delta)

    def excess(curve: _Curve, ratio: float) -> tuple[float, float]:
        log_delta, log_second = curve(mu, max(mu * ratio, 0.0))
        return target - log_delta, mu * math.exp(min(log_second - log_delta, 700.0))

    # The tail bound delta <= Phi(mu/2 - epsilon/mu) <= exp(-(epsilon/mu - mu/2)^2 / 2). Log delta is concave in epsilon
    # (a convolution of log-concave functions, Prékopa) and falls: steps from above the root stay above it.
    epsilon = max(mu * _newton_root(excess, mu / 2 + math.sqrt(-2.0 * target)), 0.0)
    step = 2.0**-52
    while delta < _precise.gaussian_delta(mu, epsilon):
        epsilon, step = epsilon + step * max(epsilon, 2.0**-60), 2.0 * step
    return epsilon


def sigma_analytic(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the least standard deviation for which Gaussian noise is (epsilon, delta)-DP, rounded up.

    Parameters
    ----------
    epsilon : float
        At least 0; there is no upper limit of 1 as in the classical formula.
    delta : float
        Strictly between 0 and 1.
    sensitivity : float
        In l2, for the neighbouring relation in force.

    References
    ----------
    Balle, Wang 2018, Algorithm 1.
    """
    _POSITIVE.require("sensitivity", sensitivity)
    return math.nextafter(sensitivity / mu_from_epsilon_delta(epsilon, delta), math.inf)


def sigma_classical(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return ``sqrt(2 ln(1.25/delta)) * sensitivity / epsilon``, for reproducing papers that use it.

    Guarantee
    ---------
    (epsilon, delta)-DP for epsilon below 1 only (Dwork, Roth 2014, Theorem A.1), and wasteful there. For epsilon of 1
    and more nothing is proved: at delta = 1e-5 the noise is too small from epsilon = 8.5 on. Ask
    :func:`delta_of_mu` with ``mu = sensitivity / sigma`` what it really gives.
    """
    _POSITIVE.require("epsilon", epsilon)
    _require_delta(delta)
    _POSITIVE.require("sensitivity", sensitivity)
    return math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / epsilon


# Relative error granted to float64 special functions; scipy documents a few 1e-16 to 1e-15 for those used here.
ROUNDING = 1e-12
_LARGEST_ALPHA_STEPS = 200


def require_epsilon(epsilon: float) -> None:
    """Raise ParameterError unless epsilon is finite and at least 0."""
    Bound(0.0).require("epsilon", epsilon)


def require_delta(delta: float) -> None:
    """Raise ParameterError unless delta is at least 0 and below 1."""
    if not 0 <= delta < 1:
        raise ParameterError(f"delta is {delta!r}; it must be at least 0 and below 1, and well below 1/rows")


def bisected(
    holds: Callable[[float], bool], low: float, high: float, close: Callable[[float, float], bool]
) -> tuple[float, float]:
    """Return the ends of an interval after it was halved until they are close; it holds up to a point between."""
    while not close(low, high):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def largest_fitting(
    fits: Callable[[float], bool], start: float, close: Callable[[float, float], bool], *, most: float = math.inf
) -> float:
    """Return nearly the largest number that fits, from below, where all smaller ones fit as well.

    Parameters
    ----------
    fits : callable
    start : float
        Doubled until it does not fit, or reaches ``most``.
    close : callable
        Whether what fits and what does not are near enough to each other.
    most : float
    """
    low, high = 0.0, start
    while high < most and fits(high):
        low, high = high, 2 * high
    return bisected(fits, low, high, close)[0]


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
    return mu * (1 + ROUNDING)


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
    return epsilon * math.tanh(epsilon / 2) * (1 + ROUNDING)


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
        tail = np.exp(np.minimum(exponent, 1) + ROUNDING * (1 + np.abs(np.maximum(exponent, -700))))
    variation = min(math.sqrt(rho / 2), math.sqrt(-math.expm1(-rho))) * (1 + ROUNDING)
    # Tails too small for a float are not zero.
    return np.asarray(np.clip(np.minimum(tail, variation), SMALLEST_DELTA, 1.0))


@lru_cache(maxsize=4096)
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
    if delta < SMALLEST_DELTA:
        return math.inf
    # The conversion of most papers (Bun, Steinke 2016, Prop. 1.3) is no lower.
    high = (rho + 2 * math.sqrt(rho * -math.log(delta))) * (1 + ROUNDING)
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return math.log(max(zcdp_delta(rho, epsilon), 5e-324)) - target

    if excess(high) >= 0:
        return high
    epsilon, step = float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14)), 1e-15
    while zcdp_delta(rho, epsilon) > delta:
        epsilon, step = epsilon + step * epsilon, 2 * step
    return min(epsilon, high)


@lru_cache(maxsize=4096)
def rho_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """Return the largest rho for which :func:`zcdp_delta` proves (epsilon, delta)-DP, rounded down."""
    require_epsilon(epsilon)
    require_delta(delta)
    if delta < SMALLEST_DELTA:
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


_ZCDP_NODES = 1500


class PrivacyProfile(Protocol):
    """Proved cost of a composition, as a curve."""

    def epsilon(self, delta: float) -> float:
        """Return an epsilon at which the composition is (epsilon, delta)-DP; infinite where there is none."""

    def delta(self, epsilon: float) -> float:
        """Return a delta at which the composition is (epsilon, delta)-DP; 1 where nothing is proved."""


def smallest_epsilon(curve: Callable[[float], float], delta: float, high: float) -> float:
    """Return the epsilon at which a falling curve reaches delta, rounded up; ``high`` is known to be enough."""
    if curve(0.0) <= delta:
        return 0.0
    if curve(high) > delta:
        return high
    epsilon, step = float(scipy.optimize.brentq(lambda e: curve(e) - delta, 0.0, high, xtol=1e-300, rtol=1e-14)), 1e-15
    while curve(epsilon) > delta and epsilon < high:
        epsilon, step = epsilon * (1 + step), 2 * step
    return min(epsilon, high)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return :func:`~dpalgos.accounting.profiles.epsilon_of_mu`, infinite outside its range (delta 0, mu above 1e6)."""
    return epsilon_of_mu(mu, delta) if delta >= SMALLEST_DELTA and mu <= LARGEST else math.inf


@dataclass(frozen=True, slots=True)
class GaussianProfile:
    """The exact profile of mu-Gaussian-DP (Balle, Wang 2018, Theorem 8)."""

    mu: float

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon, rounded up."""
        require_delta(delta)
        return gaussian_epsilon(self.mu, delta) if self.mu > 0 else 0.0

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta, rounded up."""
        require_epsilon(epsilon)
        return delta_of_mu(self.mu, min(epsilon, LARGEST)) if self.mu <= LARGEST else 1.0


@dataclass(frozen=True, slots=True)
class ZeroConcentratedProfile:
    """Upper bounds for rho-zCDP outside an event of probability ``slack`` (Bun, Steinke 2016, Definition 8.1).

    Such a pair is a mixture that agrees with probability ``1 - slack`` with a rho-zCDP pair; the hockey-stick
    divergence is jointly convex, so it is at most ``slack + (1 - slack) delta_rho(epsilon)``.
    """

    rho: float
    slack: float = 0.0

    def epsilon(self, delta: float) -> float:
        """Return the conversion's epsilon at what the slack leaves of delta."""
        require_delta(delta)
        left = delta - self.slack
        return zcdp_epsilon(self.rho, math.nextafter(left, 0.0) if self.slack else left) if left >= 0 else math.inf

    def delta(self, epsilon: float) -> float:
        """Return the slack plus the curve's delta."""
        require_epsilon(epsilon)
        return min(1.0, math.nextafter(self.slack + zcdp_delta(self.rho, epsilon), 1.0))


@dataclass(frozen=True, slots=True)
class LeastProfile:
    """The least of several proved profiles of one composition."""

    profiles: tuple[PrivacyProfile, ...]

    def epsilon(self, delta: float) -> float:
        """Return the least of the proved epsilons."""
        return min(profile.epsilon(delta) for profile in self.profiles)

    def delta(self, epsilon: float) -> float:
        """Return the least of the proved deltas."""
        return min(profile.delta(epsilon) for profile in self.profiles)


@dataclass(frozen=True, slots=True)
class Atoms:
    """A privacy loss with finitely many values: ``probabilities`` at ``losses``, and mass ``infinity`` at infinity."""

    losses: Floats
    probabilities: Floats
    infinity: float = 0.0

    def times(self, other: Self) -> Self:
        """Return the distribution of the sum of independent losses (what leads to infinity in one does so in the sum).

        The mass at infinity is bounded by the sum of both.
        """
        return type(self)(
            np.add.outer(self.losses, other.losses).ravel(),
            np.multiply.outer(self.probabilities, other.probabilities).ravel(),
            self.infinity + other.infinity,
        )


def pure_atoms(epsilon: float, count: int) -> Atoms:
    """Return the loss of ``count`` randomised responses: ``epsilon (2 J - count)``, J binomial."""
    heads = np.arange(count + 1)
    logarithms = scipy.special.gammaln(np.arange(1, count + 2))
    ways = logarithms[-1] - logarithms - logarithms[::-1]
    # log(expit(x)) = -log(1 + e^-x), without loss for large x.
    tossed = -heads * np.logaddexp(0, -epsilon) - (count - heads) * np.logaddexp(0, epsilon)
    probabilities = np.exp(ways + tossed) if count > 1 else scipy.special.expit(np.array([-epsilon, epsilon]))
    return Atoms(np.asarray(epsilon * (2.0 * heads - count), dtype=np.float64), probabilities)


def zcdp_grid(rho: float, nodes: Floats) -> Floats:
    """Return values v with ``H_{e^x} <= v`` at each node x for rho-zCDP, convex in e^x together with (0, 1).

    Proof. Let ``D(t)``, t >= 0, be the supremum of ``H_t(M(D) || M(D'))`` over neighbours. It is convex,
    non-increasing, D(0) = 1, and, the relation being symmetric, ``D(t) = 1 - t + t D(1/t)``. So ``U(t)``, the curve of
    :func:`zcdp_curve` for t >= 1 and ``1 - t + t U(1/t)`` below, is at least D. The
    values of D at 0 and the nodes are a convex sequence below those of U; the lower convex hull of U's values is the
    largest convex sequence below them, so it is at least D's.
    """
    magnitude = np.abs(nodes)
    curve = zcdp_curve(rho, magnitude)
    t = np.exp(np.minimum(nodes, 0.0))
    upper = np.where(nodes >= 0, curve, (1 - t) + t * curve)
    # The hull in t = e^x; slopes are compared after division by e^x, since e^x itself may overflow.
    points: list[tuple[float, float]] = [(-math.inf, 1.0)]
    for x, value in zip(nodes.tolist(), upper.tolist(), strict=True):
        while len(points) > 1:
            (x0, v0), (x1, v1) = points[-2:]
            left = (v0 - v1) / -math.expm1(x0 - x1)
            right = (v1 - value) / math.expm1(min(x - x1, 700.0))
            if left >= right:
                break
            points.pop()
        points.append((x, value))
    places, corners = np.array(points).T
    # Linear in e^x between two corners, divided through by the larger one.
    right = np.searchsorted(places, nodes)
    below, above = places[right - 1], places[right]
    weight = np.expm1(below - nodes) / np.expm1(below - above) * np.exp(nodes - above)
    between = corners[right - 1] + weight * (corners[right] - corners[right - 1])
    hull = np.where(above == nodes, corners[right], between)
    return np.minimum.accumulate(np.clip(hull, 0.0, 1.0))


@lru_cache(maxsize=16)
def zcdp_atoms(rho: float) -> Atoms:
    """Return a pair that dominates every rho-zCDP mechanism, with its loss on a grid.

    Proof. Let v be :func:`zcdp_grid`'s values at nodes ``x_1 < … < x_n`` (v = 1 at t = 0), and h the function that
    interpolates them linearly in t = e^x and is constant beyond t_n. D is convex and at most v at the nodes and at 0,
    so D <= h up to t_n, and beyond it because D does not increase. The distribution with mass v_n at infinity and ``p_i
    = (v_{i-1} - v_i) / (1 - e^(x_{i-1} - x_i)) - (v_i - v_{i+1}) / (e^(x_{i+1} - x_i) - 1)`` (second term zero for i =
    n) at x_i has ``H_t = h(t)``: both are piecewise linear with kinks at the t_i, and the slopes agree. Convexity makes
    p_i >= 0, and ``h(t) >= 1 - t`` makes Q a probability measure ("connect the dots": Doroshenko, Ghazi, Kamath, Kumar,
    Manurangsi 2022). The grid ends where v_n is below 1e-17; what lies beyond is at infinity, and matters for deltas
    about as small.
    """
    reach = rho + 2 * math.sqrt(40 * rho)
    nodes = np.linspace(-reach, reach, 2 * _ZCDP_NODES + 1)
    values = np.concatenate([[1.0], zcdp_grid(rho, nodes)])
    falls = -np.diff(values)
    gap = nodes[1] - nodes[0]
    rising = falls / np.concatenate([[1.0], np.full(nodes.size - 1, -math.expm1(-gap))])
    falling = np.concatenate([falls[1:] / math.expm1(gap), [0.0]])
    return Atoms(nodes, np.maximum(rising - falling, 0.0), float(values[-1]))


def atom_count(pure: Mapping[float, int], rho: float) -> int:
    """Return how many values the loss of these components takes."""
    return math.prod(count + 1 for count in pure.values()) * (2 * _ZCDP_NODES + 1 if rho > 0 else 1)


def gaussian_curve(mu: float, epsilons: Floats) -> Floats:
    """Return delta of mu-Gaussian-DP at real epsilons (also negative), rounded up.

    ``Phi(a) - e^eps Phi(b)`` with ``a, b = ± mu/2 - eps/mu``. Where a < 0 both terms are written through
    ``Phi(z) = exp(-z^2/2) erfcx(-z/sqrt 2) / 2`` with the common factor ``exp(-a^2/2) = e^eps exp(-b^2/2)`` taken out.
    """
    root = math.sqrt(2)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        a, b = mu / 2 - epsilons / mu, -mu / 2 - epsilons / mu
        first, other = (scipy.special.erfcx(-np.minimum(z, 0) / root) for z in (a, b))
        tail = np.exp(-(np.minimum(a, 0) ** 2) / 2) / 2 * (first - other + 1e-14 * first)
        second = np.exp(np.minimum(epsilons + scipy.special.log_ndtr(b), 0.0))
        middle = np.exp(scipy.special.log_ndtr(a)) - second * (1 - 1e-14 * (8 + np.abs(epsilons))) + 1e-15
    return np.asarray(np.where(a < 0, tail * (1 + 1e-11), middle))


@dataclass(frozen=True, slots=True)
class AtomsProfile:
    """The profile of a loss with finitely many values, a Gaussian added to it, and more mass ``infinity`` at infinity.

    Proof. Where the loss is finite it is A + G, independent, so with i for the mass at infinity of everything except
    the atoms, ``H_t = i + (1 - i) * (the atoms' own + sum over atoms of p E[max(0, 1 - t e^(-a - G))])``; the
    expectation is the Gaussian's own curve at ``epsilon - a`` (without a Gaussian, ``max(0, 1 - e^(epsilon - a))``).
    Both masses at infinity are added here, which is no less. Nothing is discretised; float64 rounding is added (terms
    of a sum of non-negative numbers, each rounded up).
    """

    atoms: Atoms
    infinity: float = 0.0
    mu: float = 0.0

    @property
    def _lost(self) -> float:
        """The mass at infinity of everything together."""
        lost = self.infinity + self.atoms.infinity
        return min(1.0, math.nextafter(lost, math.inf)) if self.atoms.infinity else lost

    def deltas(self, epsilons: Floats) -> Floats:
        """Return the finite sum at each epsilon >= 0, rounded up."""
        apart = np.subtract.outer(epsilons, self.atoms.losses)
        if self.mu > 0:
            curve = gaussian_curve(self.mu, apart)
        else:
            gaps = np.subtract.outer(epsilons * (1 - 1e-14), self.atoms.losses)
            curve = np.where(apart < 0, -np.expm1(np.minimum(gaps, 0.0)), 0.0)
        # Pairwise summation of up to 2^17 non-negative terms errs by less than 1e-14; log-binomials by less than 1e-11;
        # a Gaussian's tail may have been too small for a float.
        finite = np.sum(self.atoms.probabilities * curve, axis=-1) * (1 + 1e-10) + (
            SMALLEST_DELTA if self.mu > 0 else 0.0
        )
        either = np.nextafter(self._lost + (1 - self.infinity) * finite, math.inf)
        return np.where(finite == 0, self._lost, np.minimum(either, 1.0))

    def delta(self, epsilon: float) -> float:
        """Return the finite sum, rounded up."""
        require_epsilon(epsilon)
        return float(self.deltas(np.array([epsilon]))[0])

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon, rounded up."""
        require_delta(delta)
        if delta < self._lost:
            return math.inf
        high = max(float(self.atoms.losses.max()), 0.0)
        if self.mu > 0:
            left = max(math.nextafter(delta - self._lost, 0.0), 0.0)
            high += gaussian_epsilon(self.mu, left)
            if math.isinf(high):
                return math.inf
        return smallest_epsilon(self.delta, delta, high)


def product(parts: Iterable[Atoms]) -> Atoms:
    """Return the distribution of the sum of independent losses; the zero loss for none."""
    return reduce(Atoms.times, parts, Atoms(np.zeros(1), np.ones(1)))
