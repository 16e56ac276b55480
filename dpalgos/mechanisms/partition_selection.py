"""Which keys to release by how many rows hold each: the optimal probabilities of partition selection."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Numerics
from dpalgos.noise import RandomStream
from dpalgos.rows import Ints

_BITS = 128
_WHOLE = 1 << _BITS
# Numbers beyond the grid's, so that the recursion's products are rounded once, at the end.
_FACTOR_BITS = 192
_DIGITS = 90
_LEAST_EPSILON, _MOST_EPSILON = 1e-4, 64.0
_LEAST_DELTA = 2.0**-100


@dataclass(frozen=True)
class PartitionSelection:
    """Select each key by itself with a probability pi(n) that depends on the number n of rows that hold it alone.

    Guarantee
    ---------
    Of one key, for a count that changes by one: (epsilon, delta)-DP, exact. pi is the largest function with pi(0) = 0
    and, for all n,

        pi(n + 1) <= e^epsilon pi(n) + delta,
        1 - pi(n) <= e^epsilon (1 - pi(n + 1)) + delta,

    which are the two conditions on a coin that says yes with probability pi(n) or pi(n + 1); the other two,
    pi(n) <= e^epsilon pi(n + 1) + delta and its complement, hold because pi rises. Hence

        pi(n + 1) = min(e^epsilon pi(n) + delta, 1 - e^-epsilon (1 - pi(n) - delta), 1).

    A key that nobody holds is never released, so the keys need not be known beforehand.

    The probabilities are multiples of 2^-128, each rounded down after both bounds were taken from the rounded ones
    before it, with a lower bound of e^epsilon, an upper one of e^-epsilon, and delta rounded down: so what is drawn
    satisfies the conditions exactly. A draw compares 128 random bits with such a multiple.

    Parameters
    ----------
    epsilon : float
        From 0.0001 to 64: the table of probabilities has about 2 ln(1 / delta) / epsilon entries.
    delta : float
        From 2^-100 to below 1.

    References
    ----------
    Desfontaines, Voss, Gipson, Mandayam, "Differentially private partition selection", PoPETs 2022(1), Theorem 2 (the
    recursion and its closed form) and Theorem 1 (no (epsilon, delta)-DP selection has a larger probability at any n).
    """

    epsilon: float
    delta: float
    numerics: ClassVar[Numerics] = Numerics.EXACT

    def __post_init__(self) -> None:
        if not _LEAST_EPSILON <= self.epsilon <= _MOST_EPSILON:
            raise ParameterError(
                f"epsilon for one key is {self.epsilon:g}; it must lie between {_LEAST_EPSILON:g} and "
                f"{_MOST_EPSILON:g}: give the keys another part of the budget"
            )
        if not _LEAST_DELTA <= self.delta < 1:
            raise ParameterError(f"delta for one key is {self.delta:g}; it must lie between 2^-100 and 1")

    @cached_property
    def table(self) -> tuple[int, ...]:
        """Probabilities of 0, 1, 2, … rows in units of 2^-128, up to the first that is 1; all beyond it are 1."""
        with decimal.localcontext(prec=_DIGITS):
            # exp() is correctly rounded to 90 digits, far beyond 2^-192; one unit more or less bounds it.
            growth = int(decimal.Decimal(self.epsilon).exp() * (1 << _FACTOR_BITS)) - 1
            decay = int((-decimal.Decimal(self.epsilon)).exp() * (1 << _FACTOR_BITS)) + 2
        numerator, denominator = self.delta.as_integer_ratio()
        delta = numerator * _WHOLE // denominator
        found = [0]
        while found[-1] < _WHOLE:
            last = found[-1]
            above = (growth * last >> _FACTOR_BITS) + delta
            # What is taken away is rounded up; beyond 1 - delta nothing is.
            below = _WHOLE - max(-(-decay * (_WHOLE - last - delta) >> _FACTOR_BITS), 0)
            found.append(min(above, below, _WHOLE))
        return tuple(found)

    def select(self, counts: Ints, stream: RandomStream) -> NDArray[np.bool_]:
        """Return for each key whether it is released, by its number of rows."""
        words = stream.words(2 * len(counts)).reshape(len(counts), 2)
        last = len(self.table) - 1
        return np.array(
            [
                (int(first) << 64 | int(second)) < self.table[min(int(count), last)]
                for count, (first, second) in zip(counts, words, strict=True)
            ],
            dtype=bool,
        )

    def likely(self, probability: float) -> int:
        """Return the fewest rows by which a key is released with at least this probability."""
        return next(rows for rows, found in enumerate(self.table) if found >= probability * _WHOLE)
