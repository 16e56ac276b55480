"""Shamir's secret sharing over a prime field."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from dpalgos.errors import ParameterError

PRIME = 2**256 - 189
"""The largest prime below 2^256; a uniform 256-bit string is a uniform field element up to 2^-248."""
ELEMENT = 32
"""Bytes of an encoded field element, big-endian."""

# Between reductions an intermediate value grows by the bits of the evaluation point only.
_REDUCE_EVERY = 16


def to_bytes(value: int) -> bytes:
    """Return the canonical 32 bytes of a field element."""
    return value.to_bytes(ELEMENT, "big")


def split(secret: int, threshold: int, points: Sequence[int], randomness: bytes) -> list[int]:
    """Return one share a point; any ``threshold`` of them determine the secret, fewer say nothing.

    Guarantee
    ---------
    The shares are values of a polynomial of degree threshold - 1 with constant term ``secret`` and otherwise uniform
    coefficients. For any threshold - 1 non-zero points the map from those coefficients to the shares is a bijection
    (Vandermonde), so such shares are uniform and independent of the secret. Coefficients come from 256-bit strings:
    2^-248 each from uniform.

    Parameters
    ----------
    secret : int
        Field element.
    threshold : int
        From 1 to the number of points.
    points : sequence of int
        Distinct and not zero.
    randomness : bytes
        32 (threshold - 1) fresh uniform bytes, used for this secret only.

    References
    ----------
    Shamir, "How to share a secret", CACM 22 (1979).
    """
    if not 1 <= threshold <= len(points):
        raise ParameterError(f"threshold is {threshold} of {len(points)} shares; it must be from 1 to {len(points)}")
    _require_points(points)
    if not 0 <= secret < PRIME:
        raise ParameterError("the secret is not a field element; it must be from 0 to 2^256 - 190")
    if len(randomness) != ELEMENT * (threshold - 1):
        raise ParameterError(
            f"{len(randomness)} bytes of randomness; a threshold of {threshold} needs {ELEMENT * (threshold - 1)}"
        )
    # Highest coefficient first, as Horner's rule takes them.
    coefficients = [
        int.from_bytes(randomness[start : start + ELEMENT], "big") for start in range(0, len(randomness), ELEMENT)
    ]
    coefficients.append(secret)
    return [_evaluate(coefficients, point) for point in points]


def _evaluate(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for index, coefficient in enumerate(coefficients):
        value = value * point + coefficient
        if index % _REDUCE_EVERY == 0:
            value %= PRIME
    return value % PRIME


def _require_points(points: Sequence[int]) -> None:
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ParameterError(f"points {points!r} must be distinct and from 1 to 2^256 - 190")


@lru_cache(maxsize=4096)
def lagrange_weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights w with ``f(0) = sum w_i f(points_i)`` for polynomials of degree below ``len(points)``.

    ``w_i`` is the product over j != i of ``x_j / (x_j - x_i)`` modulo the prime.

    Raises
    ------
    ParameterError
        If a point is zero or occurs twice.
    """
    _require_points(points)
    # The points are small, so the products are formed over the integers and reduced once.
    whole = prod(points)
    weights = []
    for point in points:
        differences = prod(other - point for other in points if other != point)
        weights.append(whole // point * pow(differences, -1, PRIME) % PRIME)
    return tuple(weights)


def reconstruct(points: tuple[int, ...], shares: Sequence[int]) -> int:
    """Return the secret from as many shares as the threshold, given in the order of their points."""
    return sum(weight * share for weight, share in zip(lagrange_weights(points), shares, strict=True)) % PRIME
