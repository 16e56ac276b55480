"""The Gaussian mechanism: its exact privacy curve, the noise for a target, and continuous noise."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial

from dpalgos.errors import ParameterError
from dpalgos.mechanisms import _precise
from dpalgos.parameters import POSITIVE, Bound, Bounded
from dpalgos.rows import Floats, RandomStream, normals

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
            f"delta is {delta!r}; it must be at least {SMALLEST_DELTA:g} and below 1 (well below 1/rows, to protect "
            "anybody); for delta = 0 use a pure-epsilon mechanism"
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
    mu, step = math.exp(_root(excess, near)), 2.0**-52
    while delta < _precise.gaussian_delta(mu, epsilon):
        mu, step = mu * (1.0 - step), 2.0 * step
    return mu


def _root(excess: Callable[[_Curve, float], tuple[float, float]], start: float) -> float:
    """Return where a growing function of the curve, given with its slope, is 0: first by float64, where it can tell."""
    with suppress(ArithmeticError):
        start = _newton(partial(excess, _estimated_curve), start)
    return _newton(partial(excess, _curve), start)


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


def _curve(mu: float, epsilon: float) -> tuple[float, float]:
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
    epsilon = max(mu * _root(excess, mu / 2 + math.sqrt(-2.0 * target)), 0.0)
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


@dataclass(frozen=True, slots=True)
class GaussianNoise(Bounded):
    """Independent N(0, sigma^2) numbers.

    Guarantee
    ---------
    Added to a vector of l2 sensitivity Delta (units of the vector, either neighbouring relation):
    mu-Gaussian-DP with mu = Delta / sigma, in any dimension. Numerics are ``idealised``: the guarantee is for real
    numbers, not for float64. Integer sums take :class:`~dpalgos.mechanisms.distributions.RoundedGaussian`, which is
    exact at no extra cost.

    Parameters
    ----------
    sigma : float
        Standard deviation.

    References
    ----------
    Dong, Roth, Su 2022, Theorem 1.
    """

    sigma: float = field(metadata=POSITIVE)

    def mu(self, sensitivity: float) -> float:
        """Return the Gaussian-DP parameter for an l2 sensitivity, rounded up."""
        return math.nextafter(sensitivity / self.sigma, math.inf) if sensitivity > 0 else 0.0

    def sample(self, count: int, stream: RandomStream) -> Floats:
        """Return ``count`` independent draws."""
        return self.sigma * normals(stream, count)
