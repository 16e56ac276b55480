"""Noise distributions and the selection of keys: what each costs, with its proof, and a sampler from a keystream."""

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar, Self, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.elementary import l2_norm
from dpalgos.guarantees import GaussianMu, Loss, ZeroConcentrated
from dpalgos.mechanisms import _precise
from dpalgos.parameters import COUNT, POSITIVE, Bound, Bounded, ParameterError
from dpalgos.rows import Floats, Ints, RandomStream, normals, uniforms

# Below this many grid units the first words decide; above it, a coarse cell is drawn first and a place in it next.
_COARSE_SIGMA = 2.0**22
_MINIMUM_SIGMA = 2.0**-20
_MAXIMUM_SIGMA = 2.0**44
# Relative error granted to a float64 quantile: scipy documents a peak of 7.2e-16, this is a thousand times more.
_QUANTILE_ERROR = 2.0**-40
# Heads below this one are too coarse a part of their cell.
_FEWEST = np.uint64(1 << 44)
# Draws that are made at a time: their numbers stay in a core's cache.
_BLOCK = 2**13
# No tail probability of 127 bits lies beyond this many standard deviations: 2 Phi(-13.2) < 2^-129.
_FARTHEST = 13.2


def total_mu(budget: Loss) -> float:
    """Return the mu of Gaussian-DP that a budget buys; mu-GDP by Gaussian noise is mu²/2-zCDP."""
    if isinstance(budget, GaussianMu):
        return budget.mu
    assert isinstance(budget, ZeroConcentrated)
    return math.sqrt(2.0 * budget.rho)


@dataclass(frozen=True, slots=True)
class _GaussianIntegers:
    """Integer noise of a standard deviation, in grid units, for which it can be drawn."""

    sigma: float

    def __post_init__(self) -> None:
        if not _MINIMUM_SIGMA <= self.sigma <= _MAXIMUM_SIGMA:
            raise ParameterError(
                f"sigma is {self.sigma!r} grid units; it must lie between 2^-20 and 2^44: choose a finer grid for a "
                "smaller value, a coarser grid for a larger one"
            )


@dataclass(frozen=True, slots=True)
class RoundedGaussian(_GaussianIntegers):
    """Integers ``round(g)`` with ``g ~ N(0, sigma^2)``, for adding to integer sums.

    Guarantee
    ---------
    Adding independent draws to an integer vector whose l2 sensitivity is Delta (in grid units, under either
    neighbouring relation) is mu-Gaussian-DP with ``mu = Delta / sigma``, in any dimension and with no loss for
    discreteness. Proof: let S be the integer vector and g ~ N(0, sigma^2 I). For an integer S_i and any real g_i,
    ``round(S_i + g_i) = S_i + round(g_i)`` (ties, a null set, apart). So ``S + round(g) = round(S + g)``
    coordinate by coordinate: a post-processing of the Gaussian mechanism, which is Delta/sigma-Gaussian-DP.

    Numerics are ``exact``: the integers are decided from at least 127 random bits each by an inverse distribution
    function with rigorous margins, so that the distribution differs from the stated one by no more than
    :meth:`total_variation` per draw, below 2^-101. A release of m draws adds (1 + e^epsilon) m times that to
    its delta: below 2^-79 for a million draws at epsilon = 0.69.

    Parameters
    ----------
    sigma : float
        Standard deviation before rounding, in grid units; from 2^-20 to 2^44.

    Notes
    -----
    Method, for sigma up to 2^22. The first word's low bit is the sign, its upper 63 bits and the second word's 64
    bits are the binary expansion of q, uniform in (0, 1); |g| solves ``2 Phi(-|g|/sigma) = q``, a tail probability, so
    that large deviations keep their relative precision. From the first 63 bits alone float64 arithmetic
    gives |g|/sigma =: x with an error below ``(1 + x) 2^-41``: the quantile function's own error (scipy's documented
    peak is 7.2e-16; ``x 2^-42`` is granted), the rounding of q (2^-52 relative) and the width of q's cell (2^-44
    relative where the 63 bits are at least 2^44; q' = dq/dx satisfies |q'| >= max(x, 0.79) q, so relative changes of q
    move x by at most 1.27 times as much). Draws for which an error of twice that size could change the rounded
    integer, or whose 63 bits are below 2^44, are decided again from all 127 bits with 320-bit arithmetic: k is the
    integer with ``Q(k + 1/2) < q <= Q(k - 1/2)``, ``Q(t) = erfc(t / (sqrt 2 sigma))``, at the middle of q's cell.
    The second word is always read, so the stream's position never depends on the values.

    The distribution is then wrong only on cells of width 2^-127 that hold a boundary Q(k + 1/2); there are at most
    ``13.2 sigma + 1`` of them (all boundaries beyond 13.2 sigma lie in the first cell), hence the total variation is at
    most ``(13.2 sigma + 2) 2^-127``, below 2^-101.

    For larger sigma let B be a power of two with sigma/B in (2^21, 2^22]. The cell j = round(|g|/B) is drawn as above.
    Given j, |g| = a + h s with a = (j - 1/2) B, h = B (a = 0, h = B/2 for j = 0), where s in [0, 1] has density
    proportional to exp(-psi(s)), psi(s) = lam s + kap s^2, lam = a h / sigma^2, kap = h^2 / (2 sigma^2). With V uniform
    from the third and fourth word, s solves F(s) = V F(1), F(s) = integral of exp(-psi) from 0 to s. Then
    ``|s - s0| <= 2 lam^2 + 4 kap`` for s0 = V - lam V (1 - V) / 2. Proof: exp(-psi(u)) = 1 - lam u + r(u)
    with |r| <= e := kap + (lam + kap)^2 / 2, so F(s) = s - lam s^2 / 2 + E(s) with |E| <= e, and
    F(s0) - V F(1) = lam (V - s0)(V + s0) / 2 + E(s0) - V E(1), at most lam^2 / 8 + 2 e in absolute value; the slope of
    F is at least exp(-lam - kap) > 0.99, because lam <= 13.2 * 2^-21 and kap <= 2^-43. Where that error (plus rounding)
    could change round(h s), the draw is decided from all 128 bits as above. There are at most h <= 2^23 boundaries in a
    cell: another 2^23 * 2^-128 of total variation.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1 and post-processing; rounding as
    post-processing: Bun, Steinke, "Concentrated differential privacy", TCC 2016, Lemma 1.8 (post-processing).
    """

    @classmethod
    def calibrated(cls, budget: Loss, sensitivity: float, steps: int = 1) -> Self:
        """Return the noise of each of ``steps`` sums of equal l2 sensitivity (grid units), so that all cost the budget.

        T-fold composition of mu₀-GDP Gaussian mechanisms is exactly √T·mu₀-GDP, adaptively too
        (Dong, Roth, Su 2022, Corollary 2). The standard deviation is rounded up by more than the arithmetic's error.

        Parameters
        ----------
        budget : GaussianMu or ZeroConcentrated
        sensitivity : float
        steps : int
        """
        return cls(sensitivity * math.sqrt(steps) / total_mu(budget) * (1.0 + 2.0**-48))

    def mu(self, sensitivity: float) -> float:
        """Return the Gaussian-DP parameter for an l2 sensitivity in grid units, rounded up."""
        return math.nextafter(sensitivity / self.sigma, math.inf) if sensitivity > 0 else 0.0

    def total_variation(self) -> float:
        """Return an upper bound on one draw's distance from the stated distribution; below 2^-101 for every sigma.

        If P, Q are (epsilon, delta)-indistinguishable and P', Q' within tv of them, then P'(E) <= P(E) + tv <=
        e^epsilon Q(E) + delta + tv <= e^epsilon Q'(E) + delta + (1 + e^epsilon) tv; distances of independent
        draws add up.
        """
        cell = self._cell()
        coarse = (_FARTHEST * (self.sigma / cell) + 2.0) * 2.0**-127
        return coarse if cell == 1 else coarse + (cell + 1.0) * 2.0**-128

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` independent draws; reads two words a draw, four where sigma exceeds 2^22."""
        cell = self._cell()
        integers = np.empty(count, dtype=np.int64)
        for start in range(0, count, _BLOCK):
            part = integers[start : start + _BLOCK]
            words = stream.words((2 if cell == 1 else 4) * len(part)).reshape(len(part), -1)
            part[:] = _rounded_magnitudes(words, self.sigma / cell)
            if cell > 1:
                part[:] = _places(words[:, 2:], part, self.sigma, cell)
            _sign(part, words)
        return integers

    def _cell(self) -> int:
        """Return B: 1, or the power of two for which sigma/B is in (2^21, 2^22]."""
        if self.sigma <= _COARSE_SIGMA:
            return 1
        return 1 << math.ceil(math.log2(self.sigma / _COARSE_SIGMA))


def _sign(magnitudes: Ints, words: NDArray[np.uint64]) -> None:
    """Negate the magnitudes whose first word is odd."""
    flipped = -(words[:, 0] & np.uint64(1)).view(np.int64)
    magnitudes ^= flipped
    magnitudes -= flipped


def _rounded_magnitudes(words: NDArray[np.uint64], sigma: float) -> Ints:
    """Return round(|g|) with the tail probability of |g| read from the first two words of each row."""
    heads = words[:, 0] >> np.uint64(1)
    # Halved: the quantile function wants the probability of one tail.
    scaled: Floats = heads.astype(np.float64)
    scaled += 0.5
    scaled *= 2.0**-64
    scipy.special.ndtri(scaled, out=scaled)
    scaled *= -sigma
    magnitudes = np.floor(scaled + 0.5)
    result = magnitudes.astype(np.int64)
    # How far from the integer: one half and the quantile is beside a boundary. Exact, for both are alike.
    magnitudes -= scaled
    np.abs(magnitudes, out=magnitudes)
    margin = _QUANTILE_ERROR * (sigma + scaled.max(initial=0.0))
    if magnitudes.max(initial=0.0) >= 0.5 - margin or heads.min(initial=_FEWEST) < _FEWEST:
        near = magnitudes >= 0.5 - _QUANTILE_ERROR * (sigma + scaled)
        for index in np.flatnonzero(near | (heads < _FEWEST)):
            head, tail = int(heads[index]), int(words[index, 1])
            result[index] = _precise_magnitude((head << 64) | tail, sigma)
    return result


def _precise_magnitude(numerator: int, sigma: float) -> int:
    """Return the integer k with Q(k + 1/2) < q <= Q(k - 1/2) for q = (numerator + 1/2) / 2^127."""
    guess = math.floor(sigma * -float(scipy.special.ndtri(math.ldexp(numerator + 0.5, -128))) + 0.5)
    tail = _precise.GaussianTail(sigma)
    target = _precise.dyadic(2 * numerator + 1, -128)
    return _precise.first_at_least(max(guess, 0), lambda k: bool(tail.two_sided(2 * k + 1) < target))


def _places(words: NDArray[np.uint64], coarse: Ints, sigma: float, cell: int) -> Ints:
    """Return round(|g|) given round(|g| / cell), the place in the cell read from two words a row."""
    # Cells are even, so their ends are integers, exactly represented.
    start = np.where(coarse > 0, coarse * cell - cell // 2, 0)
    width = np.where(coarse > 0, float(cell), cell / 2.0)
    uniform = (words[:, 0].astype(np.float64) + 0.5) * 2.0**-64
    slope = start * (width / sigma**2)
    place = width * (uniform - 0.5 * slope * uniform * (1.0 - uniform))
    # The last term covers the rounding of float64 and the width of the first word's cell.
    margin = width * (2.0 * slope**2 + 2.0 * (width / sigma) ** 2 + 2.0**-48)
    offset = np.floor(place + 0.5)
    nearness = np.abs(place - offset + 0.5)
    nearness = np.minimum(nearness, np.abs(nearness - 1.0))
    result = start + offset.astype(np.int64)
    for index in np.flatnonzero(nearness <= margin):
        numerator = (int(words[index, 0]) << 64) | int(words[index, 1])
        result[index] = _precise_place(numerator, int(start[index]), int(width[index]), sigma, int(offset[index]))
    return result


def _precise_place(numerator: int, start: int, width: int, sigma: float, guess: int) -> int:
    """Return start + k where the conditional distribution function at k - 1/2 and k + 1/2 encloses the uniform."""
    tail = _precise.GaussianTail(sigma)
    target = _precise.dyadic(2 * numerator + 1, -129)

    def reached(k: int) -> bool:
        return k >= width or bool(target < tail.share(2 * start, 2 * (start + k) + 1, 2 * (start + width)))

    return start + _precise.first_at_least(min(max(guess, 0), width), reached)


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
class DiscreteGaussian(_GaussianIntegers):
    """Independent integers k with probability proportional to ``exp(-k^2 / (2 sigma^2))``.

    Guarantee
    ---------
    Added to an integer vector of l2 sensitivity Delta (grid units, either neighbouring relation): rho-zCDP with
    ``rho = Delta^2 / (2 sigma^2)``, in any dimension. The mu of the continuous Gaussian does not carry over: at
    sigma = 1 in four dimensions its delta would be up to 54 per cent too small. Where Gaussian-DP is wanted of
    integers, :class:`~dpalgos.mechanisms.distributions.RoundedGaussian` gives it without loss.

    Numerics are ``exact`` up to :meth:`total_variation` a draw (below 2^-100), of which a release of m draws adds
    (1 + e^epsilon) m times as much to its delta (:meth:`RoundedGaussian.total_variation
    <dpalgos.mechanisms.distributions.RoundedGaussian.total_variation>`).

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
    for the at most 21.2 * 2^10 weights that are not zero, below 2^-270 in any tail sum, negligible next to 2^-127. Each
    T_i is thus too small by less than two units, so the total variation is at most (entries + 1) 2^-126.

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
    ratio = _precise.fixed_exp(2, sigma, _GUARD)
    change = _precise.fixed_exp(1, sigma, _GUARD)
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
        accepted[index] = coin >= tail.excess(abs(int(proposals[index])))
    return accepted


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
    move by sqrt(d) Delta in l1; use :class:`~dpalgos.mechanisms.distributions.RadialLaplace` there. Numerics are
    ``idealised``; integers take :class:`~dpalgos.mechanisms.distributions.DiscreteLaplace`, which is exact.

    Parameters
    ----------
    scale : float
        Delta / epsilon, in units of the vector; the standard deviation is sqrt(2) times as large.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1;
    on floating point: Mironov, "On significance of the least significant bits for differential privacy", CCS 2012.
    """

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

    def __post_init__(self) -> None:
        if not _MINIMUM_SCALE <= self.scale <= _MAXIMUM_SCALE:
            raise ParameterError(
                f"scale is {self.scale!r} grid units; it must lie between 2^-10 and 2^32: choose a finer grid for a "
                "smaller value, a coarser grid for a larger one"
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

    def sample(self, count: int, stream: RandomStream) -> Floats:
        """Return one draw: a vector of ``count`` coordinates, which are not independent of each other."""
        uniform = uniforms(stream, count + 1)
        direction = scipy.special.ndtri(uniform[1:])
        length = self.scale * float(scipy.special.gammaincinv(count, uniform[0])) if count else 0.0
        return np.asarray(direction * (length / max(l2_norm(direction), np.finfo(np.float64).tiny)))


_SELECTION_BITS = 128
_WHOLE = 1 << _SELECTION_BITS
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

    A key without rows is never released, so the keys need not be known beforehand.

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

    def __post_init__(self) -> None:
        if not _LEAST_EPSILON <= self.epsilon <= _MOST_EPSILON:
            raise ParameterError(
                f"epsilon for one key is {self.epsilon:g}; it must lie between {_LEAST_EPSILON:g} and "
                f"{_MOST_EPSILON:g}: change the keys' share of the budget"
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

    def likely(self) -> int:
        """Return the fewest rows by which a key is released half of the time or more often."""
        return next(rows for rows, chance in enumerate(self.table) if 2 * chance >= _WHOLE)


_Number = TypeVar("_Number", np.float64, np.int64)


def packed_size(dimension: int) -> int:
    """Return ``dimension * (dimension + 1) / 2``, the number of entries on and above the diagonal."""
    return dimension * (dimension + 1) // 2


def pack(matrix: NDArray[_Number]) -> NDArray[_Number]:
    """Return the upper triangle (d (d+1) / 2,) of a symmetric matrix (d, d), row by row, diagonal included."""
    places = np.arange(len(matrix))
    return matrix[places[:, None] <= places]


def unpack(vector: NDArray[_Number]) -> NDArray[_Number]:
    """Return the symmetric matrix whose upper triangle is given; the inverse of :func:`pack`."""
    dimension = _dimension(len(vector))
    rows, columns = np.triu_indices(dimension)
    matrix: NDArray[_Number] = np.zeros((dimension, dimension), dtype=vector.dtype)
    matrix[rows, columns] = vector
    matrix[columns, rows] = vector
    return matrix


def to_vector(matrix: Floats) -> Floats:
    """Map a symmetric matrix to a vector of the same length in l2: off-diagonal entries times sqrt(2).

    An isometry: |M|_F^2 = sum_i M_ii^2 + 2 sum_{i<j} M_ij^2 is the squared l2 norm of the vector. So a Frobenius
    sensitivity of symmetric matrices is the l2 sensitivity of their vectors.
    """
    return pack(matrix) * _weights(len(matrix))


@dataclass(frozen=True, slots=True)
class _SymmetricIntegers(Bounded):
    """A distribution of integers on the diagonal, and the same distribution of sigma / sqrt(2), rounded up, off it."""

    sigma: float
    dimension: int = field(metadata=COUNT)
    distribution: ClassVar[type[RoundedGaussian] | type[DiscreteGaussian]]

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        self._distributions()

    def _distributions(self) -> tuple[RoundedGaussian | DiscreteGaussian, ...]:
        return self.distribution(self.sigma), self.distribution(math.nextafter(self.sigma / math.sqrt(2.0), math.inf))

    def total_variation(self) -> float:
        """Return an upper bound on the distance of one draw from its stated distribution."""
        return max(distribution.total_variation() for distribution in self._distributions())

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return the noise of one packed matrix; ``count`` must be its number of entries."""
        _require_packed(count, self.dimension)
        result = np.zeros(count, dtype=np.int64)
        diagonal, (on, off) = _diagonal(self.dimension), self._distributions()
        result[diagonal] = on.sample(self.dimension, stream)
        result[~diagonal] = off.sample(count - self.dimension, stream)
        return result


@dataclass(frozen=True, slots=True)
class SymmetricRoundedGaussian(_SymmetricIntegers):
    """Integer noise for the upper triangle of a symmetric integer matrix.

    ``RoundedGaussian(sigma)`` on the diagonal, ``RoundedGaussian(sigma / sqrt(2))`` off it.

    Guarantee
    ---------
    Added to the packed upper triangle of an integer matrix S of Frobenius sensitivity Delta_F (grid units):
    mu-Gaussian-DP with mu = Delta_F / sigma. Proof: the Gaussian mechanism releases v(S) + g, g ~ N(0, sigma^2 I),
    where v is :func:`to_vector`, an isometry, so its l2 sensitivity is Delta_F. Dividing its off-diagonal coordinates
    by sqrt(2) gives S_ii + g_ii and S_ij + g_ij / sqrt(2); rounding each gives S_ii + round(g_ii) and
    S_ij + round(g_ij / sqrt(2)), because S is an integer matrix. Both steps are post-processing. The integers released
    are the ones this distribution draws, sigma / sqrt(2) being rounded up. (The vector v(S) itself is not an integer
    vector, so scaling first and rounding then would not be exact.)

    Numerics are ``exact``, with the total variation of :meth:`total_variation` a draw.

    Parameters
    ----------
    sigma : float
        Standard deviation on the diagonal before rounding, in grid units; from 2^-19 to 2^44.
    dimension : int
        Rows of the matrix.
    """

    distribution: ClassVar[type[RoundedGaussian]] = RoundedGaussian

    @classmethod
    def calibrated(cls, budget: Loss, sensitivity: float, dimension: int) -> Self:
        """Return the noise of one packed matrix of given Frobenius sensitivity (grid units) that costs the budget."""
        return cls(RoundedGaussian.calibrated(budget, sensitivity).sigma, dimension)

    def mu(self, sensitivity: float) -> float:
        """Return the Gaussian-DP parameter for a Frobenius sensitivity in grid units, rounded up."""
        return RoundedGaussian(self.sigma).mu(sensitivity)


@dataclass(frozen=True, slots=True)
class SymmetricRoundedRadial(RadialLaplace):
    """Radial Laplace noise for the upper triangle of a symmetric integer matrix, rounded to integers.

    Guarantee
    ---------
    Added to the packed upper triangle of an integer matrix S of Frobenius sensitivity Delta_F (grid units):
    epsilon-DP with epsilon = Delta_F / scale. Proof: :func:`to_vector` is an isometry, so the radial mechanism on
    it in d (d+1) / 2 dimensions is epsilon-DP; its inverse and rounding are post-processing, and since S is an integer
    matrix, S + round(N) = round(S + N). Numerics are ``idealised``, as the radial distribution's.

    Parameters
    ----------
    scale : float
        Delta_F / epsilon in grid units.
    dimension : int
        Rows of the matrix.
    """

    dimension: int = field(metadata=COUNT)

    def sample(self, count: int, stream: RandomStream) -> Ints:  # type: ignore[override]  # integers
        """Return the noise of one packed matrix; ``count`` must be its number of entries."""
        _require_packed(count, self.dimension)
        return np.rint(RadialLaplace.sample(self, count, stream) / _weights(self.dimension)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class SymmetricDiscreteGaussian(_SymmetricIntegers):
    """Integer noise for the upper triangle of a symmetric integer matrix, with a zCDP guarantee.

    ``DiscreteGaussian(sigma)`` on the diagonal, ``DiscreteGaussian(sigma / sqrt(2))`` off it.

    Guarantee
    ---------
    Added to the packed upper triangle of an integer matrix of Frobenius sensitivity Delta_F (grid units): rho-zCDP
    with rho = Delta_F^2 / (2 sigma^2). Proof: for a difference V of neighbouring matrices the Rényi divergence of
    order alpha of one coordinate is at most alpha V_ii^2 / (2 sigma^2) on the diagonal and
    alpha V_ij^2 / (2 sigma^2 / 2) off it (Canonne, Kamath, Steinke 2020, Proposition 5); coordinates are independent,
    so they add up to alpha (sum_i V_ii^2 + 2 sum_{i<j} V_ij^2) / (2 sigma^2) = alpha |V|_F^2 / (2 sigma^2).

    Numerics are ``exact``, with the total variation of :meth:`total_variation` a draw charged to delta.

    Parameters
    ----------
    sigma : float
        Parameter on the diagonal, in grid units; from 2^-19 to 2^44.
    dimension : int
        Rows of the matrix.
    """

    distribution: ClassVar[type[DiscreteGaussian]] = DiscreteGaussian

    @property
    def largest(self) -> int:
        """As for one discrete Gaussian, of the diagonal."""
        return DiscreteGaussian(self.sigma).largest

    def rho(self, sensitivity: float) -> float:
        """Return the zCDP parameter for a Frobenius sensitivity in grid units, rounded up."""
        return DiscreteGaussian(self.sigma).rho(sensitivity)


def _require_packed(count: int, dimension: int) -> None:
    if count != packed_size(dimension):
        raise ParameterError(
            f"{count} entries were requested for symmetric {dimension} x {dimension} matrices; request "
            f"{packed_size(dimension)}, the size of their packed upper triangle"
        )


def _diagonal(dimension: int) -> NDArray[np.bool_]:
    rows, columns = np.triu_indices(dimension)
    return np.asarray(rows == columns)


def _weights(dimension: int) -> Floats:
    return np.where(_diagonal(dimension), 1.0, math.sqrt(2.0))


def _dimension(size: int) -> int:
    dimension = (math.isqrt(8 * size + 1) - 1) // 2
    if packed_size(dimension) != size:
        raise ParameterError(f"{size} entries are not a packed symmetric matrix, whose sizes are d (d + 1) / 2")
    return dimension
