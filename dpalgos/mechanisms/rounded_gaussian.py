"""Rounded Gaussian integers: the noise of exact sums, as private as the continuous Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.guarantees import GaussianMu, Loss, Numerics, ZeroConcentrated
from dpalgos.mechanisms import _precise
from dpalgos.rows import Floats, Ints, RandomStream

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


def require_sigma(sigma: float) -> None:
    """Raise a ParameterError for a standard deviation, in grid units, beyond what integer noise is drawn for."""
    if not _MINIMUM_SIGMA <= sigma <= _MAXIMUM_SIGMA:
        raise ParameterError(
            f"sigma is {sigma!r} grid units; it must lie between 2^-20 and 2^44: "
            "choose a finer grid for a smaller and a coarser grid for a larger one"
        )


@dataclass(frozen=True, slots=True)
class RoundedGaussian:
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
    that large deviations keep their relative precision. From the first 63 bits alone float64 arithmetic gives
    |g|/sigma =: x with an error below ``(1 + x) 2^-41``: the quantile function's own error (scipy's documented
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
    ``|s - s0| <= 2 lam^2 + 4 kap`` for s0 = V - lam V (1 - V) / 2. Proof: exp(-psi(u)) = 1 - lam u + r(u) with
    |r| <= e := kap + (lam + kap)^2 / 2, so F(s) = s - lam s^2 / 2 + E(s) with |E| <= e, and
    F(s0) - V F(1) = lam (V - s0)(V + s0) / 2 + E(s0) - V E(1), at most lam^2 / 8 + 2 e in absolute value; the slope of
    F is at least exp(-lam - kap) > 0.99, because lam <= 13.2 * 2^-21 and kap <= 2^-43. Where that error (plus rounding)
    could change round(h s), the draw is decided from all 128 bits as above. There are at most h <= 2^23 boundaries in a
    cell: another 2^23 * 2^-128 of total variation.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1 and post-processing; rounding as
    post-processing: Bun, Steinke, "Concentrated differential privacy", TCC 2016, Lemma 1.8 (post-processing).
    """

    sigma: float
    numerics: ClassVar[Numerics] = Numerics.EXACT

    def __post_init__(self) -> None:
        require_sigma(self.sigma)

    @classmethod
    def calibrated(cls, budget: Loss, sensitivity: float, steps: int = 1) -> RoundedGaussian:
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
    return _precise.first_at_least(max(guess, 0), lambda k: _precise.less(tail.two_sided(2 * k + 1), target))


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
        return k >= width or _precise.less(target, tail.share(2 * start, 2 * (start + k) + 1, 2 * (start + width)))

    return start + _precise.first_at_least(min(max(guess, 0), width), reached)
