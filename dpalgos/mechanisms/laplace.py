"""Laplace noise, continuous and in integers, and the selection of frequent keys by it."""

import decimal
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Numerics
from dpalgos.mechanisms import _precise
from dpalgos.parameters import POSITIVE, Bound, Bounded
from dpalgos.rows import Floats, Ints, RandomStream, uniforms


@dataclass(frozen=True, slots=True)
class PureScale(Bounded):
    """Noise that makes a vector epsilon-DP for epsilon = sensitivity / scale, in the norm that a subclass names.

    Parameters
    ----------
    scale : float
        Above 0, in the unit of what noise is added to.
    """

    scale: float = field(metadata=POSITIVE)

    @classmethod
    def calibrated(cls, epsilon: float, sensitivity: float) -> Self:
        """Return the distribution that gives epsilon-DP for a sensitivity, its scale rounded up."""
        Bound(0.0, open_low=True).require("epsilon", epsilon)
        return cls(math.nextafter(sensitivity / epsilon, math.inf))

    def epsilon(self, sensitivity: float) -> float:
        """Return epsilon for a sensitivity, rounded up."""
        return math.nextafter(sensitivity / self.scale, math.inf) if sensitivity > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Laplace(PureScale):
    """Independent numbers with density ``exp(-|x| / scale) / (2 scale)``.

    Guarantee
    ---------
    Added to a vector of **l1** sensitivity Delta (units of the vector, either neighbouring relation): epsilon-DP with
    epsilon = Delta / scale. An l2 sensitivity is not enough: a vector of d coordinates that moves by Delta in l2 can
    move by sqrt(d) Delta in l1; use :class:`~dpalgos.mechanisms.laplace.RadialLaplace` there. Numerics are
    ``idealised``; integers take :class:`~dpalgos.mechanisms.laplace.DiscreteLaplace`, which is exact.

    Parameters
    ----------
    scale : float
        Delta / epsilon, in units of the vector; the standard deviation is sqrt(2) times as large.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1;
    on floating point: Mironov, "On significance of the least significant bits for differential privacy", CCS 2012.
    """

    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def sample(self, count: int, stream: RandomStream) -> Floats:
        """Return ``count`` independent draws."""
        centred = uniforms(stream, count) - 0.5
        return np.asarray(-self.scale * np.sign(centred) * np.log1p(-2.0 * np.abs(centred)))


_MINIMUM_SCALE = 2.0**-10
_MAXIMUM_SCALE = 2.0**32
# Error granted to a float64 logarithm of the tail, relative to 1 + the logarithm; numpy's is below 2^-50.
_LOGARITHM_ERROR = 2.0**-44


@dataclass(frozen=True, slots=True)
class DiscreteLaplace(PureScale):
    """Independent integers k with probability proportional to ``exp(-|k| / scale)``.

    Guarantee
    ---------
    Added to an integer vector of l1 sensitivity Delta (grid units, either neighbouring relation): epsilon-DP with
    epsilon = Delta / scale, because the probabilities at any z for neighbours u, v have the ratio
    exp((|z - v|_1 - |z - u|_1) / scale) <= exp(Delta / scale).

    Numerics are ``exact`` without any remainder: a draw that its bits leave open reads more bits until it is decided,
    so the distribution is the stated one and delta is zero.

    Parameters
    ----------
    scale : float
        Delta / epsilon in grid units, from 2^-10 to 2^32.

    Notes
    -----
    The low bit of a draw's first word is the sign; its other 63 bits and the second word's 64 (and further words, with
    probability below 2^-60 a draw) expand q, uniform in (0, 1). With p = exp(-1/scale),
    ``P(|k| > i) = 2 p^(i+1) / (1 + p)``, so |k| = #{i >= 0 : q <= P(|k| > i)} = floor(scale * E) where
    ``E = -ln q - ln((1 + p) / 2)``. float64 decides where its error cannot matter; elsewhere both ends of q's interval
    are evaluated with directed margins in high precision until they agree.

    References
    ----------
    Ghosh, Roughgarden, Sundararajan, "Universally utility-maximizing privacy mechanisms", STOC 2009.
    """

    numerics: ClassVar[Numerics] = Numerics.EXACT

    def __post_init__(self) -> None:
        if not _MINIMUM_SCALE <= self.scale <= _MAXIMUM_SCALE:
            raise ParameterError(
                f"scale is {self.scale!r} grid units; it must lie between 2^-10 and 2^32: "
                "choose a finer grid for a smaller and a coarser grid for a larger one"
            )

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` independent draws."""
        words = stream.words(2 * count).reshape(count, 2)
        firsts = words[:, 0] >> np.uint64(1)
        centre = math.log1p(math.expm1(-1.0 / self.scale) / 2.0)
        exponent = -np.log((firsts.astype(np.float64) + 0.5) * 2.0**-63) - centre
        scaled = self.scale * exponent
        margin = self.scale * (1.0 + exponent) * _LOGARITHM_ERROR
        # The width of the first word's cell is within the margin where the word is large.
        doubtful = (np.abs(scaled - np.rint(scaled)) <= margin) | (firsts < np.uint64(1 << 50))
        magnitudes = np.floor(scaled).astype(np.int64)
        for index in np.flatnonzero(doubtful):
            magnitudes[index] = self._decide((int(firsts[index]) << 64) | int(words[index, 1]), stream)
        return np.where((words[:, 0] & np.uint64(1)).astype(bool), -magnitudes, magnitudes)

    def _decide(self, numerator: int, stream: RandomStream) -> int:
        """Return |k| for a q in [numerator, numerator + 1] / 2^127, reading on where that leaves it open."""
        bits = 127
        while True:
            if numerator:
                least = _precise.laplace_magnitude(numerator + 1, bits, self.scale, up=False)
                if least == _precise.laplace_magnitude(numerator, bits, self.scale, up=True):
                    return least
            numerator, bits = (numerator << 64) | int(stream.words(1)[0]), bits + 64


@dataclass(frozen=True, slots=True)
class RadialLaplace(PureScale):
    """One vector with density proportional to ``exp(-|eta|_2 / scale)``.

    Guarantee
    ---------
    Added to a vector of l2 sensitivity Delta (units of the vector, either neighbouring relation): epsilon-DP with
    epsilon = Delta / scale. Proof: the densities at any output z for neighbouring vectors u, v have the ratio
    exp((|z - v| - |z - u|) / scale) <= exp(|u - v| / scale) <= exp(Delta / scale). The vector is the whole release:
    a matrix is flattened into one vector, not noised row by row. Numerics are ``idealised``.

    The length follows the Gamma distribution with shape d (the dimension; the surface of a sphere of radius r grows as
    r^(d-1)) and this scale; the direction is uniform and independent of it. The mean length is d * scale.

    Parameters
    ----------
    scale : float
        Delta / epsilon, in units of the vector.

    References
    ----------
    Hardt, Talwar, "On the geometry of differential privacy", STOC 2010 (K-norm mechanism);
    Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011), Algorithm 1.
    """

    numerics: ClassVar[Numerics] = Numerics.IDEALISED

    def sample(self, count: int, stream: RandomStream) -> Floats:
        """Return one draw: a vector of ``count`` coordinates, which are not independent of each other."""
        uniform = uniforms(stream, count + 1)
        direction = scipy.special.ndtri(uniform[1:])
        length = self.scale * float(scipy.special.gammaincinv(count, uniform[0])) if count else 0.0
        return np.asarray(direction * (length / max(float(np.linalg.norm(direction)), np.finfo(np.float64).tiny)))


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
        thresholds = [0]
        while thresholds[-1] < _WHOLE:
            last = thresholds[-1]
            above = (growth * last >> _FACTOR_BITS) + delta
            # What is taken away is rounded up; beyond 1 - delta nothing is.
            below = _WHOLE - max(-(-decay * (_WHOLE - last - delta) >> _FACTOR_BITS), 0)
            thresholds.append(min(above, below, _WHOLE))
        return tuple(thresholds)

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
        return next(rows for rows, chance in enumerate(self.table) if chance >= probability * _WHOLE)
