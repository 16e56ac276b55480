"""The Gaussian mechanism: its exact privacy curve, the noise for a target, and continuous noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import scipy

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Numerics
from dpalgos.mechanisms import _precise
from dpalgos.noise import RandomStream
from dpalgos.rows import Floats

__all__ = [
    "GaussianNoise",
    "delta_of_mu",
    "epsilon_of_mu",
    "mu_from_epsilon_delta",
    "sigma_analytic",
    "sigma_classical",
]

_LARGEST = 1e6
_SMALLEST_DELTA = 1e-300


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ParameterError(f"{name} is {value!r}; it must be a finite number above 0")


def _require_mu(mu: float) -> None:
    if not 0 <= mu <= _LARGEST:
        raise ParameterError(f"mu is {mu!r}; it must lie between 0 and {_LARGEST:g}: choose a larger sigma")


def _require_epsilon(epsilon: float) -> None:
    if not 0 <= epsilon <= _LARGEST:
        raise ParameterError(f"epsilon is {epsilon!r}; it must lie between 0 and {_LARGEST:g}")


def _require_delta(delta: float) -> None:
    if not _SMALLEST_DELTA <= delta < 1:
        raise ParameterError(
            f"delta is {delta!r}; it must be at least {_SMALLEST_DELTA:g} and below 1 (well below 1/rows, to protect "
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
    _require_epsilon(epsilon)
    if mu == 0:
        return 0.0
    return min(1.0, math.nextafter(_precise.to_float(_precise.gaussian_delta(mu, epsilon)), math.inf))


def _log_delta(mu: float, epsilon: float) -> float:
    return _precise.log(_precise.gaussian_delta(mu, epsilon))


@lru_cache(maxsize=4096)
def mu_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-Gaussian-DP implies (epsilon, delta)-DP, rounded down.

    The root of :func:`delta_of_mu` in mu (delta grows strictly with mu); the value returned is verified to satisfy
    ``delta_of_mu(mu, epsilon) <= delta`` in high precision and is within a few units in the last place of the root.
    """
    _require_epsilon(epsilon)
    _require_delta(delta)
    target = math.log(delta)
    low, high = -1.0, 1.0
    while _log_delta(math.exp(low), epsilon) > target:
        low = max(2.0 * low, -700.0)
    while _log_delta(math.exp(high), epsilon) < target:
        high += 1.0 + 0.25 * high
    root = scipy.optimize.brentq(lambda t: _log_delta(math.exp(t), epsilon) - target, low, high, xtol=1e-15, rtol=1e-15)
    mu, step = math.exp(root), 2.0**-52
    while _precise.less(_precise.exactly(delta), _precise.gaussian_delta(mu, epsilon)):
        mu, step = mu * (1.0 - step), 2.0 * step
    return mu


@lru_cache(maxsize=4096)
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which mu-Gaussian-DP implies (epsilon, delta)-DP, rounded up."""
    _require_mu(mu)
    _require_delta(delta)
    if mu == 0 or delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    target = math.log(delta)
    # The tail bound delta <= Phi(mu/2 - epsilon/mu) <= exp(-(epsilon/mu - mu/2)^2 / 2) gives an upper end.
    high = mu * (mu / 2 + math.sqrt(-2.0 * target)) * 1.01 + 1e-300
    epsilon, step = 0.0, 2.0**-52
    if _log_delta(mu, 0.0) > target:
        epsilon = float(scipy.optimize.brentq(lambda e: _log_delta(mu, e) - target, 0.0, high, xtol=1e-300, rtol=1e-15))
    while _precise.less(_precise.exactly(delta), _precise.gaussian_delta(mu, epsilon)):
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
    _require_positive("sensitivity", sensitivity)
    return math.nextafter(sensitivity / mu_from_epsilon_delta(epsilon, delta), math.inf)


def sigma_classical(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return ``sqrt(2 ln(1.25/delta)) * sensitivity / epsilon``, for reproducing papers that use it.

    Guarantee
    ---------
    (epsilon, delta)-DP for epsilon below 1 only (Dwork, Roth 2014, Theorem A.1), and wasteful there. For epsilon of 1
    and more nothing is proved: at delta = 1e-5 the noise is too small from epsilon = 8.5 on. Ask
    :func:`delta_of_mu` with ``mu = sensitivity / sigma`` what it really gives.
    """
    _require_positive("epsilon", epsilon)
    _require_delta(delta)
    _require_positive("sensitivity", sensitivity)
    return math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / epsilon


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Independent N(0, sigma^2) numbers.

    Guarantee
    ---------
    Added to a vector of l2 sensitivity Delta (units of the vector, either neighbouring relation):
    mu-Gaussian-DP with mu = Delta / sigma, in any dimension. Numerics are ``idealised``: the guarantee is for real
    numbers, not for float64. Integer sums take :class:`~dpalgos.mechanisms.rounded_gaussian.RoundedGaussian`, which is
    exact at no extra cost.

    Parameters
    ----------
    sigma : float
        Standard deviation.

    References
    ----------
    Dong, Roth, Su 2022, Theorem 1.
    """

    sigma: float
    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def __post_init__(self) -> None:
        _require_positive("sigma", self.sigma)

    def mu(self, sensitivity: float) -> float:
        """Return the Gaussian-DP parameter for an l2 sensitivity, rounded up."""
        return math.nextafter(sensitivity / self.sigma, math.inf) if sensitivity > 0 else 0.0

    def sample(self, count: int, stream: RandomStream) -> Floats:
        """Return ``count`` independent draws."""
        return self.sigma * stream.generator().standard_normal(count)
