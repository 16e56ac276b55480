"""High-precision decisions behind the exact samplers: Gaussian tails as binary floating-point numbers of 320 bits."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mpmath
from mpmath import libmp

_PRECISION = 320
_CURVE_PRECISION = 160
_CONTEXT = mpmath.MPContext()
_LOCK = threading.RLock()

Number = Any
"""A number of mpmath's; numbers of any precision compare exactly."""


@contextmanager
def _working(precision: int) -> Iterator[Any]:
    """Lend the context at a precision, to one thread at a time: it is shared, and so are mpmath's cached constants."""
    with _LOCK, _CONTEXT.workprec(precision):
        yield _CONTEXT


def dyadic(numerator: int, exponent: int) -> Number:
    """Return ``numerator * 2**exponent`` exactly."""
    return _CONTEXT.ldexp(numerator, exponent)


def _erfc(x: Number) -> Number:
    # The context's own looks for a complex argument first, which takes longer than the value.
    return _CONTEXT.make_mpf(libmp.mpf_erfc(x._mpf_, _CONTEXT.prec, "n"))


def first_at_least(guess: int, reached: Callable[[int], bool]) -> int:
    """Return the smallest k >= 0 with ``reached(k)``, for a monotone predicate, searching from a guess nearby."""
    while not reached(guess):
        guess += 1
    while guess > 0 and reached(guess - 1):
        guess -= 1
    return guess


class GaussianTail:
    """Tail probabilities of N(0, sigma^2) at half-integers, to a relative error far below 2^-256."""

    __slots__ = ("_step",)

    def __init__(self, sigma: float) -> None:
        # erfc(t / (sqrt 2 sigma)) with t counted in halves.
        with _working(_PRECISION) as mp:
            self._step = 1 / (mp.sqrt(8) * sigma)

    def two_sided(self, halves: int) -> Number:
        """Return P(|g| > halves / 2)."""
        with _working(_PRECISION):
            return _erfc(halves * self._step)

    def share(self, left: int, middle: int, right: int) -> Number:
        """Return P(left < 2 |g| <= middle) / P(left < 2 |g| <= right)."""
        with _working(_PRECISION):
            base = self.two_sided(left)
            return (base - self.two_sided(middle)) / (base - self.two_sided(right))

    def excess(self, k: int) -> Number:
        """Return 1 - I(0) / I(k), I(k) = exp(k^2 / (2 sigma^2)) P(k - 1/2 < g <= k + 1/2), for k >= 0."""
        if k == 0:
            return _CONTEXT.zero
        with _working(_PRECISION) as mp:
            # Half of both signs' probability, and k^2 / (2 sigma^2) = (2 k step)^2.
            cell = (self.two_sided(2 * k - 1) - self.two_sided(2 * k + 1)) / 2
            return 1 - (1 - self.two_sided(1)) * mp.exp(-((2 * k * self._step) ** 2)) / cell


def fixed_exp(denominator: int, sigma: float, bits: int) -> int:
    """Return floor(2^bits exp(-1 / (denominator sigma^2))) to within one unit."""
    # The square of a float64 has at most 106 bits.
    with _working(bits + 64) as mp:
        return int(mp.floor(mp.ldexp(mp.exp(-1 / (denominator * mp.mpf(sigma) ** 2)), bits)))


def damped(power: int, jump: int, scale: float) -> Number:
    """Return 2^power / jump * exp(-jump / scale), to a relative error far below 2^-256."""
    with _working(_PRECISION) as mp:
        return mp.ldexp(mp.exp(-jump / mp.mpf(scale)) / jump, power)


def laplace_magnitude(numerator: int, bits: int, scale: float, *, up: bool) -> int:
    """Return floor(scale E), E = -ln q - ln((1 + exp(-1/scale)) / 2), q = numerator / 2^bits, E moved by a margin.

    The margin of 2^-(bits + 128), up or down, exceeds the error of the evaluation, so that the true floor lies between
    the two results.
    """
    with _working(bits + 192) as mp:
        exponent = -(mp.log((1 + mp.exp(-1 / mp.mpf(scale))) / 2) + mp.log(dyadic(numerator, -bits)))
        return int(mp.floor(scale * (exponent + dyadic(1 if up else -1, -(bits + 128)))))


def log(value: Number) -> float:
    """Return the natural logarithm of a positive number of any size."""
    with _working(64) as mp:
        return float(mp.log(value))


def gaussian_delta(mu: float, epsilon: float) -> Number:
    """Return Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) for mu > 0, relative error below 2^-100."""
    return gaussian_curve(mu, epsilon)[0]


def gaussian_curve(mu: float, epsilon: float) -> tuple[Number, Number]:
    """Return :func:`gaussian_delta` and how fast it falls with epsilon, e^epsilon Phi(-mu/2 - epsilon/mu).

    The difference is at least about mu^2 / (1 + epsilon) of its terms, which costs 2 log2(1 / mu) + log2(1 + epsilon)
    bits, and a tail at t, with t at most epsilon / mu + mu / 2, loses 2 log2 t + 1 of those of t. What is added to the
    precision is no less than both together but for a few bits, of which 60 are at hand beyond 2^-100.
    """
    with _working(_CURVE_PRECISION + 4 * abs(math.frexp(mu)[1]) + 4 * max(math.frexp(epsilon)[1], 0)) as mp:
        quotient, half, root = mp.mpf(epsilon) / mu, mp.mpf(mu) / 2, mp.sqrt(2)
        first, other = (_erfc(t / root) / 2 for t in (quotient - half, quotient + half))
        second = mp.exp(epsilon) * other
        return first - second, second
