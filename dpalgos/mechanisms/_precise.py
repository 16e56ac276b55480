"""High-precision decisions behind the exact samplers: Gaussian tails as binary floating-point numbers of 320 bits."""

import math
import threading
from collections.abc import Callable
from typing import Any

from mpmath import libmp

_PRECISION = 320
_CURVE_PRECISION = 160
# mpmath's constants are cached in two unguarded steps; computing them once at the highest precision used, before any
# thread can ask, leaves only reads. Its context objects, whose precision is shared between threads, are not used.
_LOCK = threading.Lock()
with _LOCK:
    for _constant in (libmp.mpf_pi, libmp.mpf_ln2):
        _constant(8 * _PRECISION)

Number = Any
"""A raw mpmath number (sign, mantissa, exponent, bit count)."""


def dyadic(numerator: int, exponent: int) -> Number:
    """Return ``numerator * 2**exponent`` exactly."""
    return libmp.from_man_exp(numerator, exponent)


def less(left: Number, right: Number) -> bool:
    """Whether ``left < right``."""
    return bool(libmp.mpf_lt(left, right))


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
        root = libmp.mpf_sqrt(libmp.from_int(8), _PRECISION, "n")
        self._step = libmp.mpf_div(
            libmp.fone, libmp.mpf_mul(root, libmp.from_float(sigma), _PRECISION, "n"), _PRECISION, "n"
        )

    def two_sided(self, halves: int) -> Number:
        """Return P(|g| > halves / 2)."""
        argument = libmp.mpf_mul(libmp.from_int(halves), self._step, _PRECISION, "n")
        with _LOCK:
            return libmp.mpf_erfc(argument, _PRECISION, "n")

    def share(self, left: int, middle: int, right: int) -> Number:
        """Return P(left < 2 |g| <= middle) / P(left < 2 |g| <= right)."""
        base = self.two_sided(left)
        part = libmp.mpf_sub(base, self.two_sided(middle), _PRECISION, "n")
        whole = libmp.mpf_sub(base, self.two_sided(right), _PRECISION, "n")
        return libmp.mpf_div(part, whole, _PRECISION, "n")

    def excess(self, k: int) -> Number:
        """Return 1 - I(0) / I(k), I(k) = exp(k^2 / (2 sigma^2)) P(k - 1/2 < g <= k + 1/2), for k >= 0."""
        if k == 0:
            return libmp.fzero
        centre = libmp.mpf_sub(libmp.fone, self.two_sided(1), _PRECISION, "n")
        # Half of both signs' probability, and k^2 / (2 sigma^2) = (2 k step)^2.
        cell = libmp.mpf_shift(libmp.mpf_sub(self.two_sided(2 * k - 1), self.two_sided(2 * k + 1), _PRECISION, "n"), -1)
        root = libmp.mpf_mul(libmp.from_int(2 * k), self._step, _PRECISION, "n")
        with _LOCK:
            weight = libmp.mpf_exp(libmp.mpf_neg(libmp.mpf_mul(root, root, _PRECISION, "n")), _PRECISION, "n")
        kept = libmp.mpf_div(libmp.mpf_mul(centre, weight, _PRECISION, "n"), cell, _PRECISION, "n")
        return libmp.mpf_sub(libmp.fone, kept, _PRECISION, "n")


def fixed_exp(numerator: int, denominator: int, sigma: float, bits: int) -> int:
    """Return floor(2^bits exp(numerator / (denominator sigma^2))) to within one unit, for an exponent below 0."""
    square = libmp.mpf_mul(libmp.from_float(sigma), libmp.from_float(sigma))
    precision = bits + 64
    exponent = libmp.mpf_div(
        libmp.from_int(numerator), libmp.mpf_mul(libmp.from_int(denominator), square), precision, "n"
    )
    with _LOCK:
        return int(libmp.to_fixed(libmp.mpf_exp(exponent, precision, "n"), bits))


def damped(power: int, jump: int, scale: float) -> Number:
    """Return 2^power / jump * exp(-jump / scale), to a relative error far below 2^-256."""
    exponent = libmp.mpf_div(libmp.from_int(-jump), libmp.from_float(scale), _PRECISION, "n")
    with _LOCK:
        decay = libmp.mpf_exp(exponent, _PRECISION, "n")
    return libmp.mpf_shift(libmp.mpf_div(decay, libmp.from_int(jump), _PRECISION, "n"), power)


def laplace_magnitude(numerator: int, bits: int, scale: float, *, up: bool) -> int:
    """Return floor(scale E), E = -ln q - ln((1 + exp(-1/scale)) / 2), q = numerator / 2^bits, E moved by a margin.

    The margin of 2^-(bits + 128), up or down, exceeds the error of the evaluation, so that the true floor lies between
    the two results.
    """
    precision = bits + 192
    t = libmp.from_float(scale)
    with _LOCK:
        p = libmp.mpf_exp(libmp.mpf_neg(libmp.mpf_div(libmp.fone, t, precision, "n")), precision, "n")
        centre = libmp.mpf_log(libmp.mpf_shift(libmp.mpf_add(libmp.fone, p, precision, "n"), -1), precision, "n")
        tail = libmp.mpf_log(dyadic(numerator, -bits), precision, "n")
    exponent = libmp.mpf_neg(libmp.mpf_add(centre, tail, precision, "n"))
    margin = dyadic(1 if up else -1, -(bits + 128))
    product = libmp.mpf_mul(t, libmp.mpf_add(exponent, margin, precision, "n"), precision, "n")
    return int(libmp.to_int(libmp.mpf_floor(product, precision, "n")))


def exactly(value: float) -> Number:
    """Return a float64 as a raw number, exactly."""
    return libmp.from_float(value)


def to_float(value: Number) -> float:
    """Return the nearest float64."""
    return float(libmp.to_float(value, rnd="n"))


def log(value: Number) -> float:
    """Return the natural logarithm of a positive number of any size."""
    with _LOCK:
        return to_float(libmp.mpf_log(value, 64, "n"))


def gaussian_delta(mu: float, epsilon: float) -> Number:
    """Return Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) for mu > 0, relative error below 2^-100."""
    return gaussian_curve(mu, epsilon)[0]


def gaussian_curve(mu: float, epsilon: float) -> tuple[Number, Number]:
    """Return :func:`gaussian_delta` and how fast it falls with epsilon, e^epsilon Phi(-mu/2 - epsilon/mu).

    The difference is at least about mu^2 / (1 + epsilon) of its terms, which costs 2 log2(1 / mu) + log2(1 + epsilon)
    bits, and a tail at t, with t at most epsilon / mu + mu / 2, loses 2 log2 t + 1 of those of t. What is added to the
    precision is no less than both together but for a few bits, of which 60 are at hand beyond 2^-100.
    """
    precision = _CURVE_PRECISION + 4 * abs(math.frexp(mu)[1]) + 4 * max(math.frexp(epsilon)[1], 0)
    m, e = libmp.from_float(mu), libmp.from_float(epsilon)
    quotient = libmp.mpf_div(e, m, precision, "n")
    half = libmp.mpf_shift(m, -1)
    root = libmp.mpf_sqrt(libmp.from_int(2), precision, "n")

    def upper(t: Number) -> Number:
        return libmp.mpf_shift(libmp.mpf_erfc(libmp.mpf_div(t, root, precision, "n"), precision, "n"), -1)

    with _LOCK:
        first = upper(libmp.mpf_sub(quotient, half, precision, "n"))
        second = libmp.mpf_mul(
            libmp.mpf_exp(e, precision, "n"), upper(libmp.mpf_add(quotient, half, precision, "n")), precision, "n"
        )
    return libmp.mpf_sub(first, second, precision, "n"), second
