"""Discrete Laplace noise in shares: differences of Pólya variables, of which exactly m make the whole law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Numerics, PureEpsilon
from dpalgos.mechanisms import _precise
from dpalgos.mechanisms._tables import exceeded, thresholds
from dpalgos.mechanisms.discrete_laplace import DiscreteLaplace
from dpalgos.noise import RandomStream
from dpalgos.rows import Ints

# An octave is six bits of a word.
_OCTAVES = 64
# Jumps of more than this many scales have together a probability below 2^-127 a coordinate.
_REACH = 90.0
# More than the error of a float64 acceptance probability and of a coin's first word.
_DOUBT = 2.0**-40
# Weights of the number of candidates, relative to that of none.
_GUARD = 320
# Coordinates drawn at a time, so that memory does not grow with the dimension.
_BLOCK = 2**12


@dataclass(frozen=True, slots=True)
class LaplaceShare:
    """One party's share of discrete Laplace noise: independent differences of two Pólya (negative binomial) variables.

    Guarantee
    ---------
    **Theorem.** Let q = exp(-1/scale) and let each of m = ``shares`` parties add ``X - Y`` to every coordinate of
    integer vectors, X and Y independent with P(X = k) = Gamma(k + 1/m) / (k! Gamma(1/m)) (1 - q)^(1/m) q^k. The sum of
    the m shares is exactly discrete Laplace, P(z) proportional to exp(-|z| / scale), independently in each coordinate;
    so for sums of l1 sensitivity Delta (grid units) it is epsilon-DP with epsilon = Delta / scale. More shares than m,
    or shares that the adversary knows, change nothing: they only add what is independent of the rows.

    *Proof.* X has the generating function E t^X = ((1 - q) / (1 - q t))^(1/m) for |t| <= 1 (the binomial series), so
    the m variables X add up to one with (1 - q) / (1 - q t): a geometric variable, P(k) = (1 - q) q^k. So do the
    variables Y, and the difference of two independent geometric variables is z >= 0 with probability
    ``sum_y (1 - q)^2 q^(z + 2 y) = (1 - q)^2 / (1 - q^2) q^z``, and -z as often: the law of
    :class:`~dpalgos.mechanisms.discrete_laplace.DiscreteLaplace`, where the ratio of probabilities is bounded. Further
    shares are post-processing.

    The law is infinitely divisible, so no share is wasted and nothing is lost to discreteness, for any number of
    parties. The sensitivity must be one in l1: an l2 bound is no l1 bound.

    Numerics are ``exact`` up to :meth:`total_variation` a coordinate (below 2^-116).

    Parameters
    ----------
    scale : float
        Delta / epsilon in grid units, from 2^-10 to 2^32.
    shares : int
        m, how many shares carry the whole law.

    Notes
    -----
    ``-ln(1 - q t) = sum_k q^k t^k / k``, so X is a sum of jumps: Poisson(q^k / (k m)) many of each length k >= 1,
    independently, and X - Y is one of jumps k and -k. Since q^k / k <= 2^-j for the 2^j lengths k of octave j
    (2^j <= k < 2^(j+1)), candidates are drawn at the rate 2^-j / m for either sign, 1/m an octave, and each is kept
    with probability 2^j / k q^k, which leaves a Poisson number of every length at its own rate. So a coordinate has
    Poisson(2 * 64 / m) candidates, counted by a table of 127-bit thresholds; a candidate's octave, sign and length are
    bits of one word, and its coin has 128 bits, compared with the probability in float64 where that decides and in 320
    bits elsewhere. Octaves from the first with 2^j >= 90 scale are left out.

    The table's weights come from integers, w_0 = 2^320 and w_(i+1) = floor(128 w_i / (m (i+1))). Where w_i >= 2^160
    each floor changes it by less than 2^-160 of itself, and what lies beyond adds less than 2^-150 of the total, so
    each threshold is right to less than two units of 2^-127.

    References
    ----------
    Goryczka, Xiong, "A comprehensive comparison of multiparty secure additions with differential privacy", IEEE TDSC 14
    (2017), for geometric noise in Pólya shares; Ghosh, Roughgarden, Sundararajan, STOC 2009, for the whole law; Feller,
    "An introduction to probability theory and its applications" I, chapter XII, for infinite divisibility.
    """

    scale: float
    shares: int
    numerics: ClassVar[Numerics] = Numerics.EXACT

    def __post_init__(self) -> None:
        DiscreteLaplace(self.scale)
        if self.shares < 1:
            raise ParameterError(f"shares is {self.shares!r}; at least 1 share has to carry the noise")

    @property
    def _end(self) -> int:
        """The first octave that is left out."""
        return max(0, math.ceil(math.log2(_REACH * self.scale)))

    @property
    def largest(self) -> int:
        """As many jumps as the table has, each as long as the last octave has."""
        return len(_table(self.shares)[0]) * ((1 << self._end) - 1)

    def total_variation(self) -> float:
        """Return an upper bound on the distance of one coordinate's share from its law.

        Two units of 2^-127 for every threshold, 2^-128 a coin, and the probability of a jump that is left out: from
        K = 2^j >= 90 scale on at most 2 sum_{k>=K} q^k / k <= 2 q^K (1 + scale) / K < 2^-127.
        """
        return (len(_table(self.shares)[0]) + 1.0) * 2.0**-126 + 2.0 * _OCTAVES / self.shares * 2.0**-128 + 2.0**-127

    def loss(self, sensitivity: float) -> PureEpsilon:
        """Return what a sum with ``shares`` such shares costs, for an l1 sensitivity in grid units."""
        return PureEpsilon(DiscreteLaplace(self.scale).epsilon(sensitivity))

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` independent shares of one coordinate each."""
        blocks = [self._block(min(_BLOCK, count - start), stream) for start in range(0, count, _BLOCK)]
        return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int64)

    def _block(self, count: int, stream: RandomStream) -> Ints:
        words = stream.words(2 * count).reshape(count, 2)
        candidates = exceeded(words[:, 0] >> np.uint64(1), words[:, 1], *_table(self.shares))
        owners = np.repeat(np.arange(count), candidates)
        words = stream.words(len(owners))
        octaves = words >> np.uint64(58)
        possible = octaves < np.uint64(self._end)
        owners, words, octaves = owners[possible], words[possible], octaves[possible]
        powers = np.uint64(1) << octaves
        lengths = (powers | (words & (powers - np.uint64(1)))).astype(np.int64)
        kept = self._kept(octaves.astype(np.int64), lengths, stream.words(2 * len(owners)).reshape(-1, 2))
        signs = np.where((words & np.uint64(1 << 57)).astype(bool), np.int64(-1), np.int64(1))
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, owners[kept], (signs * lengths)[kept])
        return total

    def _kept(self, octaves: Ints, lengths: Ints, coins: NDArray[np.uint64]) -> NDArray[np.bool_]:
        chances = np.ldexp(1.0, octaves) / lengths * np.exp(-(lengths / self.scale))
        gaps = chances - coins[:, 0].astype(np.float64) * 2.0**-64
        kept = gaps > 0.0
        for index in np.flatnonzero(np.abs(gaps) <= _DOUBT):
            coin = _precise.dyadic((int(coins[index, 0]) << 64) | int(coins[index, 1]), -128)
            chance = _precise.damped(int(octaves[index]), int(lengths[index]), self.scale)
            kept[index] = _precise.less(coin, chance)
        return np.asarray(kept)


@lru_cache(maxsize=64)
def _table(shares: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the thresholds of the number of candidates, Poisson(128 / shares)."""
    weight, weights = 1 << _GUARD, []
    while weight:
        weights.append(weight)
        weight = 2 * _OCTAVES * weight // (shares * len(weights))
    return thresholds(weights)
