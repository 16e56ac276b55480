"""Noise in shares: what each party adds so that the sum of those the adversary does not know is private enough.

Why discrete Gaussians, and what is proved
------------------------------------------
Sums of discrete Gaussians are not discrete Gaussian, and a discrete Gaussian is not as private as a continuous one of
the same variance. Both differences vanish exponentially with the variance in grid units, *uniformly over all
integers*, and that is enough for an exact statement in the terms of the continuous Gaussian:

**Theorem.** Let m parties add independent discrete Gaussians of parameter sigma to every coordinate of integer
vectors of dimension d whose sum has l2 sensitivity Delta. For every s with 0 < s^2 < m sigma^2 the sum is
mu-Gaussian-DP with

    mu    = Delta / sqrt(m sigma^2 - s^2) + 2 sqrt(2 pi) d kappa,
    kappa = 2 [ sum_{j=1}^{m-1} artanh e(sigma^2 j/(j+1)) + artanh e(s^2) ],
    e(h)  = 2 sum_{k>=1} exp(-2 pi^2 h k^2).

More shares than m only add independent noise, which is post-processing. For s^2 = 18 and sigma >= 6 grid units, kappa
is below 10^-150 m; on the grids in use sigma is thousands, and mu is Delta / (sqrt(m) sigma) to nine digits, though
nothing is neglected.

*Proof.* By Poisson summation, for real c and h > 0,
``sum_k exp(-(k-c)^2 / 2h) = sqrt(2 pi h) (1 + 2 sum_{k>=1} exp(-2 pi^2 h k^2) cos(2 pi k c))``, a number between
``sqrt(2 pi h) (1 - e(h))`` and ``sqrt(2 pi h) (1 + e(h))``. (P)

1. *The sum of j shares has weights ``exp(-z^2 / (2 j sigma^2)) W_j(z)``, W_j between constants whose ratio is
   ``prod_{i<j} (1 + e(h_i)) / (1 - e(h_i))``, h_i = sigma^2 i/(i+1).* For j = 1, W = 1. Convolving with one more share
   gives ``sum_k exp(-(z-k)^2 / (2 j sigma^2)) exp(-k^2 / (2 sigma^2)) W_j(z-k)``; completing the square, the exponents
   are ``-z^2 / (2 (j+1) sigma^2) - (k - z/(j+1))^2 / (2 h_j)``, and (P) bounds the sum over k.
2. *A rounding of the continuous Gaussian has such weights up to the ratio ``(1 + e(s^2)) / (1 - e(s^2))``.* Let v = m
   sigma^2, g ~ N(0, v - s^2), and, given g, let k = R(g) with probability proportional to ``exp(-(k-g)^2 / (2 s^2))``.
   The normalising sum is bounded by (P), and integrating g out leaves ``exp(-k^2 / (2 v))`` times a constant. R
   commutes with integer shifts, so x + R(g) has the distribution of R(x + g): a post-processing of the Gaussian
   mechanism, hence ``Delta / sqrt(v - s^2)``-Gaussian-DP in any dimension.
3. Both distributions are normalised, so their ratio lies between exp(-kappa) and exp(kappa), where kappa is the
   logarithm of the product of the ratios in 1 and 2; in d independent coordinates, between exp(-d kappa) and exp(d
   kappa).
4. *What is within exp(±k) of mu'-Gaussian-DP is (mu' + 2 sqrt(2 pi) k)-Gaussian-DP.* Any test's probability p, and p'
   under the close distribution, satisfy ``p <= e^k p'`` and ``1 - p >= e^-k (1 - p')``. Let u > u' be their normal
   quantiles. Below zero, d ln Phi/du = phi/Phi >= sqrt(2/pi); above zero, the same holds of -ln(1 - Phi). So where u
   and u' are on one side, u - u' <= k sqrt(pi/2), and where u' < 0 < u, the two inequalities bound |u'| and u by k
   sqrt(pi/2) each. Hence u - u' <= k sqrt(2 pi). This holds of the test's size and of its power, with the
   distributions' roles exchanged, so mu' moves by at most twice as much.

Others: Kairouz, Liu, Steinke (2021, Corollary 12 and Proposition 14) prove 1 with ``10 sum_j exp(-2 pi^2 sigma^2
j/(j+1))`` for the logarithm of the ratio and conclude concentrated DP, whose epsilon at a delta is larger than that of
the exact Gaussian profile which central noise gets; step 4 keeps Gaussian-DP. Skellam noise is closed under sums, but
its Rényi bound (Agarwal, Kairouz, Liu 2021) has an l1 term and holds for whole orders only. Rounded Gaussians, the
noise of central sums, are Gaussian-DP one by one, but their sums are close to that in total variation only, not in
ratio.

References
----------
Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning with secure aggregation",
ICML 2021; Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020; Dong, Roth, Su,
"Gaussian differential privacy", JRSS B 84 (2022); Micciancio, Regev, "Worst-case to average-case reductions based on
Gaussian measures", SIAM J. Comput. 37 (2007), for the smoothing argument of steps 1 and 2.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache, singledispatch
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.accounting.profiles import bisected
from dpalgos.guarantees import PureEpsilon
from dpalgos.mechanisms import _precise
from dpalgos.mechanisms.distributions import (
    DiscreteGaussian,
    DiscreteLaplace,
    RadialLaplace,
    RoundedGaussian,
    SymmetricDiscreteGaussian,
    SymmetricRoundedGaussian,
    SymmetricRoundedRadial,
    exceeded,
    packed_size,
    thresholds,
)
from dpalgos.parameters import COUNT, POSITIVE, Bounded, ParameterError, at_least
from dpalgos.rows import Ints, RandomStream, uniforms

# Larger than the relative error of the few float64 operations between inputs and results.
_MARGIN = 1.0 + 2.0**-40
# Variance that every radial share has at least, in grid units: e(16) is below 10^-136.
_FLOOR = 32.0


class NoiseShare(Protocol):
    """The noise that one party adds to its contribution."""

    @property
    def largest(self) -> int:
        """A bound that no draw exceeds in absolute value, from public parameters."""

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` integers."""


def _excess(variance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an upper bound on e(h) = 2 sum exp(-2 pi^2 h k^2): k^2 >= 1 + 3 (k - 1) makes it a geometric series."""
    q = np.exp(-2.0 * math.pi**2 * variance)
    return np.asarray(2.0 * q / (1.0 - q**3))


def _artanh(value: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.arctanh(np.minimum(value, 1.0 - 2.0**-50)) + np.where(value >= 1.0, np.inf, 0.0)


@lru_cache(maxsize=256)
def _sum_closeness(sigma: float, shares: int) -> float:
    """Return the logarithm of the ratio of step 1: 2 sum_j artanh e(sigma^2 j/(j+1))."""
    j = np.arange(1, shares, dtype=np.float64)
    return 2.0 * float(_artanh(_excess(sigma**2 * (j / (j + 1.0)))).sum())


def mu_of_shares(sensitivity: float, sigma: float, shares: int, dimension: int) -> float:
    """Return the mu that a sum costs which holds ``shares`` discrete Gaussian shares unknown to the adversary.

    Guarantee
    ---------
    The theorem above, with the best s^2 of a fine grid; every value of s^2 is valid. mu-Gaussian-DP is also
    mu^2/2-zCDP.

    Parameters
    ----------
    sensitivity : float
        l2 sensitivity of the integer sum, in grid units, above zero.
    sigma : float
        Parameter of each party's discrete Gaussian, in grid units.
    shares : int
        How many of them are in the sum and unknown (:attr:`dpalgos.secure.messages.Tolerance.unknown_shares`).
    dimension : int
        Coordinates of the sum.

    Returns
    -------
    float
        Infinite where the noise is too coarse for its sum to be near a Gaussian.
    """
    variance = shares * sigma**2
    smoothing = variance * np.geomspace(min(0.5, 0.02 / variance), 0.98, 600)
    kappa = _sum_closeness(sigma, shares) + 2.0 * _artanh(_excess(smoothing))
    bounds = sensitivity / np.sqrt(variance - smoothing) + 2.0 * math.sqrt(2.0 * math.pi) * dimension * kappa
    return float(bounds.min()) * _MARGIN


@lru_cache(maxsize=256)
def share_sigma(total_sigma: float, *, shares: int, dimension: int, sensitivity: float = 1.0) -> float:
    """Return the least share parameter with which the sum is as private as one central Gaussian of ``total_sigma``.

    Guarantee
    ---------
    For *every* integer-valued sum, with any l2 sensitivity Delta, it is Delta/total_sigma-Gaussian-DP, exactly
    what a rounded Gaussian of ``total_sigma`` gives. Proof: neighbouring integer vectors that differ at all are at a
    distance D >= 1. The theorem's bound is a D + b, and a + b <= 1/total_sigma by calibration at D = 1, so
    a D + b <= D (a + b) <= D / total_sigma.

    Hence an algorithm's guarantee under ``secagg`` is the same as under ``central``;
    :meth:`dpalgos.secure.messages.Tolerance.assumptions` says against whom.

    Parameters
    ----------
    total_sigma : float
        In grid units.
    shares, dimension : int
        As for :func:`mu_of_shares`.
    sensitivity : float
        The distance at which the bound is to be 1/total_sigma.
    """
    mu = 1.0 / total_sigma
    low = sensitivity / mu / math.sqrt(shares)
    # The theorem's bound falls as sigma grows, so doubling and then halving the gap finds the boundary.
    high = max(low, 0.5)
    while mu_of_shares(sensitivity, high, shares, dimension) > mu:
        high *= 1.0 + 2.0**-20 if high < low * 1.0001 else 1.5
    return bisected(
        lambda sigma: not mu_of_shares(sensitivity, sigma, shares, dimension) <= mu,
        low,
        high,
        lambda low, high: high - low <= 2.0**-32 * high,
    )[1]


@dataclass(frozen=True, slots=True)
class RoundedRadial(RadialLaplace):
    """Radial Laplace noise rounded to integers: pure differential privacy for integer sums.

    Guarantee
    ---------
    Added to an integer vector of l2 sensitivity Delta (grid units): epsilon-DP with epsilon = Delta / scale, because
    for integers S, ``S + round(eta) = round(S + eta)`` is a post-processing of the radial mechanism. Numerics are
    ``idealised``, as the radial distribution's.

    Parameters
    ----------
    scale : float
        Delta / epsilon in grid units.
    """

    def sample(self, count: int, stream: RandomStream) -> Ints:  # type: ignore[override]  # integers
        """Return one draw; its coordinates are not independent of each other."""
        return np.rint(RadialLaplace.sample(self, count, stream)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class RadialShare(Bounded):
    """One party's share of radial Laplace noise: discrete Gaussians of a common random variance.

    Guarantee
    ---------
    Let m be ``shares``, d the dimension, b the scale (grid units) and f = 32. Party i draws
    ``W_i ~ Gamma((d + 1) / (2 m), 1)`` and adds d independent discrete Gaussians of squared parameter
    ``2 b^2 W_i + f``. The sum of m shares, added to an integer vector of l2 sensitivity Delta, is epsilon-DP with
    ``epsilon = Delta / b + 2 d kappa``, kappa below 10^-130 m. Proof: given the W_i, step 1 of the module's theorem
    holds with h_j >= f/2 (v w / (v + w) for variances v, w >= f), and step 2 with s^2 = m f: the sum is within
    exp(±d kappa) of R(N(0, 2 b^2 sum W_i I)), where R does not depend on the W_i. Averaging over them keeps the ratio.
    sum W_i follows Gamma((d + 1)/2, 1), and the mixture of N(0, 2 b^2 W I) over it has the characteristic function
    ``E exp(-b^2 W |t|^2) = (1 + b^2 |t|^2)^(-(d+1)/2)``, which is that of the density proportional to exp(-|x|/b):
    radial Laplace noise, so R of it is a post-processing of the radial mechanism.

    Numerics are ``idealised``: the Gamma variable is drawn in floating point, and cut off where its tail is 2^-100.

    Parameters
    ----------
    scale : float
        Delta / epsilon in grid units.
    shares : int
    dimension : int
        The whole release is one vector of this length.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011), for the radial distribution; Kotz, Kozubowski, Podgórski, "The
    Laplace distribution and generalizations" (2001), for Gaussian scale mixtures and infinite divisibility.
    """

    scale: float = field(metadata=POSITIVE)
    shares: int = field(metadata=COUNT)
    dimension: int = field(metadata=COUNT)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        # Checked at the largest variance, so that nothing depends on what is drawn.
        DiscreteGaussian(self.largest_sigma)

    @property
    def _shape(self) -> float:
        return (self.dimension + 1) / (2 * self.shares)

    @property
    def _farthest(self) -> float:
        return float(scipy.special.gammainccinv(self._shape, 2.0**-100))

    @property
    def largest_sigma(self) -> float:
        """The square root of the largest variance that is drawn."""
        return math.sqrt(2.0 * self.scale**2 * self._farthest + _FLOOR)

    @property
    def largest(self) -> int:
        """14 standard deviations at the largest variance that is drawn."""
        return DiscreteGaussian(self.largest_sigma).largest

    def loss(self, sensitivity: float) -> PureEpsilon:
        """Return what a sum with ``shares`` such shares costs."""
        closeness = (self.shares + 1) * 2.0 * float(_artanh(_excess(np.array(_FLOOR / 2.0))))
        return PureEpsilon((sensitivity / self.scale + 2.0 * self.dimension * closeness) * _MARGIN)

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return one share; ``count`` must be the dimension, because the coordinates depend on each other."""
        if count != self.dimension:
            raise ParameterError(f"a radial share has {self.dimension} coordinates; {count} were requested")
        return DiscreteGaussian(math.sqrt(self.variance(stream))).sample(count, stream)

    def variance(self, stream: RandomStream) -> float:
        """Return the random variance that this share's coordinates have in common, 2 b^2 W + f."""
        weight = min(float(scipy.special.gammaincinv(self._shape, uniforms(stream, 1)[0])), self._farthest)
        return 2.0 * self.scale**2 * weight + _FLOOR


@dataclass(frozen=True, slots=True)
class SymmetricRadialShare:
    """One party's share of radial noise for a packed symmetric matrix: off the diagonal half of the variance.

    Guarantee
    ---------
    The sum of m shares is as private as ``SymmetricRoundedRadial(scale)``: Delta_F / scale + 2 D kappa for every
    integer matrix of D packed entries, kappa below 10^-130 m. Proof: as for :class:`RadialShare` with D coordinates,
    W_i ~ Gamma((D + 1) / (2 m), 1), squared parameters b^2 W_i + f off the diagonal and twice that on it. Given the
    W_i, the theorem's first step holds with h_j >= f/2 and its second with s^2 = m f off the diagonal and 2 m f on it:
    the sum is within exp(±D kappa) of R(N), N with independent entries of variance b^2 sum W_i and twice that. R
    rounds each entry, does not depend on the W_i and commutes with integer shifts. The isometry that scales
    off-diagonals by sqrt(2) makes all variances 2 b^2 sum W_i, so mixed over the W_i it is the radial distribution of
    scale b: a post-processing of the radial mechanism for the Frobenius norm.

    Numerics are ``idealised``, as those of :class:`RadialShare`.

    Parameters
    ----------
    scale : float
        Delta_F / epsilon in grid units.
    shares : int
    dimension : int
        Rows of the matrix.
    """

    scale: float
    shares: int
    dimension: int

    def __post_init__(self) -> None:
        SymmetricDiscreteGaussian(self._diagonal(self._vector.largest_sigma**2), self.dimension)

    @property
    def _vector(self) -> RadialShare:
        return RadialShare(self.scale, self.shares, packed_size(self.dimension))

    @staticmethod
    def _diagonal(variance: float) -> float:
        # 2 b^2 W + f becomes 2 b^2 W + 2 f, so that half of it has the floor f.
        return math.sqrt(variance + _FLOOR)

    @property
    def largest(self) -> int:
        """As for :class:`RadialShare`, of the diagonal."""
        return DiscreteGaussian(self._diagonal(self._vector.largest_sigma**2)).largest

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return the share of one packed matrix of ``count`` entries."""
        sigma = self._diagonal(self._vector.variance(stream))
        return SymmetricDiscreteGaussian(sigma, self.dimension).sample(count, stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruexGaussian(Bounded):
    """Gaussian noise of a sum, split as Truex et al. publish it: each party adds variance sigma^2 / (t - 1).

    Guarantee
    ---------
    What :func:`mu_of_shares` proves for t - 1 shares of that variance (the paper states the loss of a Gaussian):
    of t honest parties one may be curious, and knows its own share. The split of this module does the same where no
    dropouts and N - t + 1 colluders are tolerated.

    Parameters
    ----------
    sigma : float
        Noise wanted in the sum, grid units.
    honest : int
        t, at least 2.

    References
    ----------
    Truex, Baracaldo, Anwar, Steinke, Ludwig, Zhang, Zhou, "A hybrid approach to privacy-preserving federated learning",
    AISec 2019, section 4.
    """

    sigma: float = field(metadata=POSITIVE)
    honest: int = field(metadata=at_least(2))

    @property
    def share(self) -> DiscreteGaussian:
        """Noise that each party adds."""
        return DiscreteGaussian(self.sigma / math.sqrt(self.honest - 1))

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return the noise of t - 1 shares at once, as a trusted curator would add it."""
        draws = self.share.sample(count * (self.honest - 1), stream)
        return np.asarray(draws.reshape(self.honest - 1, count).sum(axis=0), dtype=np.int64)


@singledispatch
def share_distribution(distribution: object, shares: int, dimension: int) -> NoiseShare:
    """Return what each party adds so that any ``shares`` of them are as private as the distribution of the whole noise.

    Parameters
    ----------
    distribution
        The distribution of the noise of the sum, as an algorithm states it: RoundedGaussian, DiscreteGaussian (each
        shared as :func:`share_sigma` proves), SymmetricRoundedGaussian, :class:`RoundedRadial`, SymmetricRoundedRadial
        (:class:`SymmetricRadialShare`), DiscreteLaplace (:class:`~dpalgos.secure.noise_shares.LaplaceShare`) or
        :class:`TruexGaussian`.
    shares : int
        :attr:`dpalgos.secure.messages.Tolerance.unknown_shares`.
    dimension : int
        Coordinates of the sum.

    Raises
    ------
    ParameterError
        If no sharing of this distribution is proved.
    """
    raise ParameterError(
        f"no proof covers shared {type(distribution).__name__} noise; proved distributions: RoundedGaussian, "
        "SymmetricRoundedGaussian, DiscreteGaussian, DiscreteLaplace, RoundedRadial, SymmetricRoundedRadial, "
        "TruexGaussian"
    )


@share_distribution.register(RoundedGaussian)
@share_distribution.register(DiscreteGaussian)
def _(distribution: RoundedGaussian | DiscreteGaussian, shares: int, dimension: int) -> NoiseShare:
    return DiscreteGaussian(share_sigma(distribution.sigma, shares=shares, dimension=dimension))


@share_distribution.register
def _(distribution: SymmetricRoundedGaussian, shares: int, dimension: int) -> NoiseShare:
    """Return shares that are smaller off the diagonal by the square root of two.

    With sigma_o calibrated to ``1 / total_sigma`` at distance 1/sqrt(2), the sum of m shares of parameter sigma_o off
    the diagonal and sqrt(2) sigma_o on it is as private as ``SymmetricRoundedGaussian(total_sigma)``:
    Delta_F / total_sigma-Gaussian-DP for every integer matrix, Delta_F its Frobenius sensitivity. Proof: the module's
    theorem holds coordinate by coordinate, with v = 2 m sigma_o^2 on the diagonal and m sigma_o^2 off it and the same
    s, up to a ratio that is largest for the smaller parameter. For a difference V of neighbouring matrices the
    Gaussian part has

        mu'^2 = sum_i V_ii^2 / (2 m sigma_o^2 - s^2) + sum_{i<j} V_ij^2 / (m sigma_o^2 - s^2)
             <= (sum_i V_ii^2 + 2 sum_{i<j} V_ij^2) / (2 (m sigma_o^2 - s^2))
              = (|V|_F / sqrt(2))^2 / (m sigma_o^2 - s^2),

    since ``2 m sigma_o^2 - s^2 >= 2 (m sigma_o^2 - s^2)``. So the bound is that of equal shares sigma_o at distance
    ``D = |V|_F / sqrt(2)``. An integer V other than 0 has D >= 1/sqrt(2), where :func:`share_sigma` wants D >= 1;
    so it is not used as it is, but the same argument with the calibration at the least distance 1/sqrt(2):
    ``a D + b <= sqrt(2) D (a / sqrt(2) + b) <= sqrt(2) D / total_sigma = |V|_F / total_sigma``.
    """
    distance = 1.0 / math.sqrt(2.0) * _MARGIN
    sigma = share_sigma(distribution.sigma, shares=shares, dimension=dimension, sensitivity=distance)
    # Up by more than the rounding of the product and of the division that the distribution undoes it with.
    return SymmetricDiscreteGaussian(sigma * math.sqrt(2.0) * _MARGIN, distribution.dimension)


@share_distribution.register
def _(distribution: RoundedRadial, shares: int, dimension: int) -> NoiseShare:
    return RadialShare(distribution.scale, shares, dimension)


@share_distribution.register
def _(distribution: SymmetricRoundedRadial, shares: int, dimension: int) -> NoiseShare:
    return SymmetricRadialShare(distribution.scale, shares, distribution.dimension)


@share_distribution.register
def _(distribution: DiscreteLaplace, shares: int, dimension: int) -> NoiseShare:
    return LaplaceShare(distribution.scale, shares)


@share_distribution.register
def _(distribution: TruexGaussian, shares: int, dimension: int) -> NoiseShare:
    if shares < distribution.honest - 1:
        raise ParameterError(
            f"the published split assumes {distribution.honest} honest parties, but the sum is certain to contain "
            f"only {shares} shares unknown to the adversary; tolerate fewer dropouts or colluders, or assume fewer "
            "honest parties"
        )
    return distribution.share


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
class LaplaceShare(Bounded):
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
    ``sum_y (1 - q)^2 q^(z + 2 y) = (1 - q)^2 / (1 - q^2) q^z``, and -z as often: the distribution of
    :class:`~dpalgos.mechanisms.distributions.DiscreteLaplace`, where the ratio of probabilities is bounded. Further
    shares are post-processing.

    The distribution is infinitely divisible, so no share is wasted and nothing is lost to discreteness, for any number
    of parties. The sensitivity must be one in l1: an l2 bound is no l1 bound.

    Numerics are ``exact`` up to :meth:`total_variation` a coordinate (below 2^-116).

    Parameters
    ----------
    scale : float
        Delta / epsilon in grid units, from 2^-10 to 2^32.
    shares : int
        m, how many shares carry the whole distribution.

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
    (2017), for geometric noise in Pólya shares; Ghosh, Roughgarden, Sundararajan, STOC 2009, for the whole
    distribution; Feller, "An introduction to probability theory and its applications" I, chapter XII, for infinite
    divisibility.
    """

    scale: float
    shares: int = field(metadata=COUNT)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        DiscreteLaplace(self.scale)

    @property
    def _end(self) -> int:
        """The first octave that is left out."""
        return max(0, math.ceil(math.log2(_REACH * self.scale)))

    @property
    def largest(self) -> int:
        """As many jumps as the table has, each as long as the last octave has."""
        return len(_table(self.shares)[0]) * ((1 << self._end) - 1)

    def total_variation(self) -> float:
        """Return an upper bound on the distance of one coordinate's share from its distribution.

        Two units of 2^-127 for every threshold, 2^-128 a coin, and the probability of a jump that is left out: from
        K = 2^j >= 90 scale on at most 2 sum_{k>=K} q^k / k <= 2 q^K (1 + scale) / K < 2^-127.
        """
        return (len(_table(self.shares)[0]) + 1.0) * 2.0**-126 + 2.0 * _OCTAVES / self.shares * 2.0**-128 + 2.0**-127

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
            kept[index] = coin < _precise.damped(int(octaves[index]), int(lengths[index]), self.scale)
        return np.asarray(kept)


@lru_cache(maxsize=64)
def _table(shares: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the thresholds of the number of candidates, Poisson(128 / shares)."""
    weight, weights = 1 << _GUARD, []
    while weight:
        weights.append(weight)
        weight = 2 * _OCTAVES * weight // (shares * len(weights))
    return thresholds(weights)
