"""The discrete Gaussian, and samplers of integers by tables of 127-bit thresholds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.guarantees import Numerics
from dpalgos.mechanisms import _precise
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian, require_sigma
from dpalgos.rows import Ints, RandomStream

_BITS = 127


def thresholds(weights: Sequence[int]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return floor(2^127 P(K > i)), i descending, as upper 63 and lower 64 bits, for P(K = i) as the weights.

    Thresholds that are zero are left out.
    """
    total = sum(weights)
    heads, tails = [], []
    tail = 0
    for weight in reversed(weights[1:]):
        tail += weight
        threshold = (tail << _BITS) // total
        if threshold:
            heads.append(threshold >> 64)
            tails.append(threshold & (2**64 - 1))
    # A distribution concentrated at zero still needs one entry to search in.
    return np.array(heads or [0], dtype=np.uint64), np.array(tails or [0], dtype=np.uint64)


def exceeded(
    firsts: NDArray[np.uint64], seconds: NDArray[np.uint64], heads: NDArray[np.uint64], tails: NDArray[np.uint64]
) -> Ints:
    """Return the number of thresholds above each uniform 127-bit integer, of which 63 bits come first and 64 second."""
    # Thresholds whose upper bits exceed the draw's; where upper bits are equal the lower ones decide.
    above = len(heads) - np.searchsorted(heads, firsts, side="right")
    equal = np.flatnonzero(heads[len(heads) - above - 1] == firsts)
    for index in equal:
        low, high = np.searchsorted(heads, firsts[index], side="left"), len(heads) - above[index]
        above[index] += int((tails[low:high] > seconds[index]).sum())
    return np.asarray(above, dtype=np.int64)


_SUPPORT = 14.0
# Up to this sigma the distribution is tabulated; above it, rounded Gaussians are corrected by a rare rejection.
_TABLE_SIGMA = 2.0**10
_GUARD = 320


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """Independent integers k with probability proportional to ``exp(-k^2 / (2 sigma^2))``.

    Guarantee
    ---------
    Added to an integer vector of l2 sensitivity Delta (grid units, either neighbouring relation): rho-zCDP with
    ``rho = Delta^2 / (2 sigma^2)``, in any dimension. The mu of the continuous Gaussian does not carry over: at
    sigma = 1 in four dimensions its delta would be up to 54 per cent too small. Where Gaussian-DP is wanted of
    integers, :class:`~dpalgos.mechanisms.rounded_gaussian.RoundedGaussian` gives it without loss.

    Numerics are ``exact`` up to :meth:`total_variation` a draw (below 2^-100), of which a release of m draws adds
    (1 + e^epsilon) m times as much to its delta (:meth:`RoundedGaussian.total_variation
    <dpalgos.mechanisms.rounded_gaussian.RoundedGaussian.total_variation>`).

    Parameters
    ----------
    sigma : float
        The parameter of the distribution in grid units, from 2^-20 to 2^44 (the standard deviation is a little smaller
        when sigma is below 1).

    Notes
    -----
    Up to sigma = 2^10: inverse distribution function on a table. The low bit of the first word is the sign; its other
    63 bits and the second word's 64 are an integer u, and |k| is the number of i with ``u < T_i``,
    ``T_i = floor(2^127 P(|k| > i))``. The table comes from fixed-point integers of 320 bits: w_{i+1} = w_i r_i,
    r_{i+1} = r_i c with r_0 = exp(-1/(2 sigma^2)), c = exp(-1/sigma^2). Every factor is at most 1, so each
    multiplication adds at most one unit in the last place and i of them make at most i^2 units of error in w_i:
    for the at most 21.2 * 2^10 weights that are not zero, below 2^-270 in any tail sum, nothing beside 2^-127. Each T_i
    is thus too small by less than two units, so the total variation is at most (entries + 1) 2^-126.

    Above: rejection. Propose k = round(g), g ~ N(0, sigma^2), and accept with probability p(k) = I(0) / I(k), where
    ``I(k) = exp(k^2/(2 sigma^2)) * integral over [k - 1/2, k + 1/2] of exp(-t^2/(2 sigma^2)) dt``
    ``= integral over [-1/2, 1/2] of cosh(k u/sigma^2) exp(-u^2/(2 sigma^2)) du``, which is smallest at k = 0, so p <= 1
    and the accepted distribution is proportional to (integral over the cell) / I(k) = exp(-k^2/(2 sigma^2)). Rejections
    are rare: I(k)/I(0) is the mean of cosh(k U/sigma^2) with |U| <= 1/2 and E U^2 <= 1/12, and |k| <= 13.2 sigma + 1,
    so ``1 - p(k) <= k^2/(24 sigma^4) * 1.001``. Only where the third word is below ``k^2/(23 sigma^4)`` is p(k)
    computed, in 320 bits, and compared with the third and fourth word together. If the proposals are within tv of their
    distribution and are accepted with probability A, the accepted ones are within 2 tv / A of theirs; A > 1 - 2^-20.

    References
    ----------
    Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, Theorem 4 (zCDP).
    """

    sigma: float
    numerics: ClassVar[Numerics] = Numerics.EXACT

    def __post_init__(self) -> None:
        require_sigma(self.sigma)

    def rho(self, sensitivity: float) -> float:
        """Return the zCDP parameter for an l2 sensitivity in grid units, rounded up."""
        return (sensitivity / self.sigma) ** 2 / 2.0 * (1.0 + 2.0**-50)

    @property
    def largest(self) -> int:
        """14 sigma + 2: beyond the end of the sampler's tables (13.2 sigma), which is charged as total variation."""
        return math.ceil(_SUPPORT * self.sigma) + 2

    def total_variation(self) -> float:
        """Return an upper bound on one draw's distance from the stated distribution; below 2^-100 for every sigma."""
        if self.sigma <= _TABLE_SIGMA:
            return (len(_table(self.sigma)[0]) + 1.0) * 2.0**-126
        return 2.0 * (1.0 + 2.0**-19) * RoundedGaussian(self.sigma).total_variation() + 2.0**-127

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` independent draws."""
        if self.sigma <= _TABLE_SIGMA:
            words = stream.words(2 * count).reshape(count, 2)
            magnitudes = exceeded(words[:, 0] >> np.uint64(1), words[:, 1], *_table(self.sigma))
            return np.where((words[:, 0] & np.uint64(1)).astype(bool), -magnitudes, magnitudes)
        result = np.zeros(count, dtype=np.int64)
        missing = np.arange(count)
        while missing.size:
            proposals = RoundedGaussian(self.sigma).sample(missing.size, stream)
            accepted = _accepted(proposals, stream.words(2 * missing.size).reshape(-1, 2), self.sigma)
            result[missing[accepted]] = proposals[accepted]
            missing = missing[~accepted]
        return result


@lru_cache(maxsize=64)
def _table(sigma: float) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the thresholds floor(2^127 P(|k| > i)), i descending, as upper 63 and lower 64 bits."""
    ratio = _precise.fixed_exp(-1, 2, sigma, _GUARD)
    change = _precise.fixed_exp(-1, 1, sigma, _GUARD)
    weight, weights = 1 << _GUARD, []
    while weight:
        weights.append(weight)
        weight = (weight * ratio) >> _GUARD
        ratio = (ratio * change) >> _GUARD
    weights[0] >>= 1
    return thresholds(weights)


def _accepted(proposals: Ints, words: NDArray[np.uint64], sigma: float) -> NDArray[np.bool_]:
    coins = words[:, 0].astype(np.float64) * 2.0**-64
    # One unit covers the bits of the coin that its first word does not show.
    bound = (proposals / sigma) ** 2 * (1.0 / (23.0 * sigma**2)) + 2.0**-63
    accepted = coins > bound
    tail = _precise.GaussianTail(sigma)
    for index in np.flatnonzero(~accepted):
        coin = _precise.dyadic((int(words[index, 0]) << 64) | int(words[index, 1]), -128)
        accepted[index] = not _precise.less(coin, tail.excess(abs(int(proposals[index]))))
    return accepted
