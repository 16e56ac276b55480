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
2. *A rounding of the continuous Gaussian has such weights up to the ratio ``(1 + e(s^2)) / (1 - e(s^2))``.* Let
   v = m sigma^2, g ~ N(0, v - s^2), and, given g, let k = R(g) with probability proportional to
   ``exp(-(k-g)^2 / (2 s^2))``. The normalising sum is bounded by (P), and integrating g out leaves
   ``exp(-k^2 / (2 v))`` times a constant. R commutes with integer shifts, so x + R(g) has the law of R(x + g): a
   post-processing of the Gaussian mechanism, hence ``Delta / sqrt(v - s^2)``-Gaussian-DP in any dimension.
3. Both laws are normalised, so their ratio lies between exp(-kappa) and exp(kappa), where kappa is the logarithm of
   the product of the ratios in 1 and 2; in d independent coordinates, between exp(-d kappa) and exp(d kappa).
4. *What is within exp(±k) of mu'-Gaussian-DP is (mu' + 2 sqrt(2 pi) k)-Gaussian-DP.* Any test's probability p, and p'
   under the close law, satisfy ``p <= e^k p'`` and ``1 - p >= e^-k (1 - p')``. Let u > u' be their normal quantiles.
   Below zero, d ln Phi/du = phi/Phi >= sqrt(2/pi); above zero, the same holds of -ln(1 - Phi). So where u and u' are on
   one side, u - u' <= k sqrt(pi/2), and where u' < 0 < u, the two inequalities bound |u'| and u by k sqrt(pi/2) each.
   Hence u - u' <= k sqrt(2 pi). This holds of the test's size and of its power, with the laws' roles exchanged, so
   mu' moves by at most twice as much.

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

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.guarantees import GaussianMu, Loss, PureEpsilon, ZeroConcentrated
from dpalgos.mechanisms.discrete_gaussian import DiscreteGaussian
from dpalgos.mechanisms.discrete_laplace import DiscreteLaplace
from dpalgos.mechanisms.radial import RadialLaplace
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.mechanisms.symmetric import (
    SymmetricDiscreteGaussian,
    SymmetricRoundedGaussian,
    SymmetricRoundedRadial,
    packed_size,
)
from dpalgos.noise import RandomStream, uniforms
from dpalgos.rows import Ints
from dpalgos.secure.laplace_share import LaplaceShare

# Larger than the relative error of the few float64 operations between inputs and results.
_MARGIN = 1.0 + 2.0**-40
# No draw of the sampler lies farther out: its tables end where the tail is below 2^-127.
_SUPPORT = 14.0
# Variance that every radial share has at least, in grid units: e(16) is below 10^-136.
_FLOOR = 32.0


class NoiseShare(Protocol):
    """The noise that one party adds to its contribution."""

    @property
    def largest(self) -> int:
        """A bound that no draw exceeds in absolute value, from public parameters."""
        ...

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` integers."""
        ...


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


def _mu(sensitivity: float, sigma: float, shares: int, dimension: int) -> float:
    """Return the theorem's mu at the best of a grid of s^2; infinite where the noise is too coarse for any."""
    variance = shares * sigma**2
    smoothing = variance * np.geomspace(min(0.5, 0.02 / variance), 0.98, 600)
    kappa = _sum_closeness(sigma, shares) + 2.0 * _artanh(_excess(smoothing))
    bounds = sensitivity / np.sqrt(variance - smoothing) + 2.0 * math.sqrt(2.0 * math.pi) * dimension * kappa
    return float(bounds.min()) * _MARGIN


def _require(name: str, value: float, *, at_least: float = 0.0, above: bool = True) -> None:
    if not math.isfinite(value) or value < at_least or (above and value == at_least):
        bound = "above" if above else "at least"
        raise ParameterError(f"{name} is {value!r}; it must be a finite number, {bound} {at_least:g}")


def secagg_loss(*, sensitivity: float, sigma_share: float, shares: int, dimension: int) -> GaussianMu:
    """Return what a sum costs that holds ``shares`` discrete Gaussian shares unknown to the adversary.

    Guarantee
    ---------
    The theorem above, with the best s^2 of a fine grid; every value of s^2 is valid. mu-Gaussian-DP is also
    mu^2/2-zCDP.

    Parameters
    ----------
    sensitivity : float
        l2 sensitivity of the integer sum, in grid units.
    sigma_share : float
        Parameter of each party's discrete Gaussian, in grid units.
    shares : int
        How many of them are in the sum and unknown (:attr:`Tolerance.unknown_shares`).
    dimension : int
        Coordinates of the sum.

    Raises
    ------
    ParameterError
        If a parameter is out of range, or the noise is so small in grid units that nothing is proved.
    """
    _require("sensitivity", sensitivity, above=False)
    _require("sigma_share", sigma_share)
    _require("shares", shares, at_least=1, above=False)
    _require("dimension", dimension, at_least=1, above=False)
    if sensitivity == 0:
        return GaussianMu(0.0)
    mu = _mu(sensitivity, sigma_share, shares, dimension)
    if not math.isfinite(mu):
        raise ParameterError(
            f"shares of sigma {sigma_share!r} grid units are too small for their sum to be near a Gaussian; "
            "choose a finer grid, so that sigma is at least 2 grid units"
        )
    return GaussianMu(mu)


def share_sigma_for(budget: Loss, *, sensitivity: float, shares: int, dimension: int) -> float:
    """Return the smallest share parameter (grid units) with which one sum costs no more than the budget.

    The inverse of :func:`secagg_loss`. For T sums on a budget mu, ask for GaussianMu(mu / sqrt(T)): T-fold composition
    of mu-Gaussian-DP is sqrt(T) mu, adaptively too.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        Above zero.
    sensitivity : float
        l2, in grid units.
    shares, dimension : int

    Raises
    ------
    ParameterError
        If the budget is of another type or a parameter is out of range.
    """
    if isinstance(budget, GaussianMu):
        mu = budget.mu
    elif isinstance(budget, ZeroConcentrated):
        mu = math.sqrt(2.0 * budget.rho)
    else:
        raise ParameterError(
            f"a budget of kind {budget.kind} does not calibrate Gaussian shares; give a Gaussian mu or a zCDP rho "
            "(pure epsilon: radial Laplace shares)"
        )
    _require("the budget", mu)
    _require("sensitivity", sensitivity)
    _require("shares", shares, at_least=1, above=False)
    _require("dimension", dimension, at_least=1, above=False)
    return _calibrated(mu, sensitivity, shares, dimension)


@lru_cache(maxsize=256)
def _calibrated(mu: float, sensitivity: float, shares: int, dimension: int) -> float:
    low = sensitivity / mu / math.sqrt(shares)
    # The theorem's bound falls as sigma grows, so doubling and then halving the gap finds the boundary.
    high = max(low, 0.5)
    while _mu(sensitivity, high, shares, dimension) > mu:
        high *= 1.0 + 2.0**-20 if high < low * 1.0001 else 1.5
    while high - low > 2.0**-32 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if _mu(sensitivity, middle, shares, dimension) <= mu else (middle, high)
    return high


def share_sigma(total_sigma: float, *, shares: int, dimension: int) -> float:
    """Return the share parameter with which the sum is as private as one central Gaussian of ``total_sigma``.

    Guarantee
    ---------
    For *every* integer-valued sum, whatever its l2 sensitivity Delta, it is Delta/total_sigma-Gaussian-DP, exactly
    what a rounded Gaussian of ``total_sigma`` gives. Proof: neighbouring integer vectors that differ at all are at a
    distance D >= 1. The theorem's bound is a D + b, and a + b <= 1/total_sigma by calibration at D = 1, so
    a D + b <= D (a + b) <= D / total_sigma.

    Hence an algorithm's guarantee under ``secagg`` is the same as under ``central``; :meth:`Tolerance.assumptions` says
    against whom.
    """
    return share_sigma_for(GaussianMu(1.0 / total_sigma), sensitivity=1.0, shares=shares, dimension=dimension)


@dataclass(frozen=True, slots=True)
class GaussianShare:
    """Independent discrete Gaussians: one party's share of Gaussian noise.

    Parameters
    ----------
    sigma : float
        In grid units.
    """

    sigma: float

    def __post_init__(self) -> None:
        DiscreteGaussian(self.sigma)

    @property
    def largest(self) -> int:
        """14 sigma + 2: beyond the end of the sampler's tables (13.2 sigma), which is charged as total variation."""
        return math.ceil(_SUPPORT * self.sigma) + 2

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` independent draws."""
        return DiscreteGaussian(self.sigma).sample(count, stream)


@dataclass(frozen=True, slots=True)
class SymmetricShare:
    """One party's share of noise for a packed symmetric matrix: off the diagonal smaller by the square root of two.

    Guarantee
    ---------
    With ``off_diagonal = sigma_o`` calibrated to ``1 / total_sigma`` at distance 1/sqrt(2), the sum of m shares is as
    private as ``SymmetricRoundedGaussian(total_sigma)``: Delta_F / total_sigma-Gaussian-DP for every integer matrix,
    Delta_F its Frobenius sensitivity. Proof: the module's theorem holds coordinate by coordinate, with
    v = 2 m sigma_o^2 on the diagonal and m sigma_o^2 off it and the same s, up to a ratio that is largest for the
    smaller parameter. For a difference V of neighbouring matrices the Gaussian part has

        mu'^2 = sum_i V_ii^2 / (2 m sigma_o^2 - s^2) + sum_{i<j} V_ij^2 / (m sigma_o^2 - s^2)
             <= (sum_i V_ii^2 + 2 sum_{i<j} V_ij^2) / (2 (m sigma_o^2 - s^2))
              = (|V|_F / sqrt(2))^2 / (m sigma_o^2 - s^2),

    since ``2 m sigma_o^2 - s^2 >= 2 (m sigma_o^2 - s^2)``. So the bound is that of equal shares sigma_o at distance
    ``D = |V|_F / sqrt(2)``. An integer V other than 0 has D >= 1/sqrt(2), where :func:`share_sigma` wants D >= 1;
    so it is not used as it is, but the same argument with the calibration at the least distance 1/sqrt(2):
    ``a D + b <= sqrt(2) D (a / sqrt(2) + b) <= sqrt(2) D / total_sigma = |V|_F / total_sigma``.

    Parameters
    ----------
    off_diagonal : float
        Parameter off the diagonal, in grid units; on it sqrt(2) times as much.
    dimension : int
        Rows of the matrix.
    """

    off_diagonal: float
    dimension: int

    def __post_init__(self) -> None:
        SymmetricDiscreteGaussian(self._diagonal, self.dimension)

    @property
    def _diagonal(self) -> float:
        # Up by more than the rounding of the product and of the division that the law undoes it with.
        return self.off_diagonal * math.sqrt(2.0) * _MARGIN

    @property
    def largest(self) -> int:
        """As for :class:`GaussianShare`, of the diagonal."""
        return GaussianShare(self._diagonal).largest

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return the share of one packed matrix of ``count`` entries."""
        return SymmetricDiscreteGaussian(self._diagonal, self.dimension).sample(count, stream)


@dataclass(frozen=True, slots=True)
class RoundedRadial:
    """Radial Laplace noise rounded to integers: pure differential privacy for integer sums.

    Guarantee
    ---------
    Added to an integer vector of l2 sensitivity Delta (grid units): epsilon-DP with epsilon = Delta / scale, because
    for integers S, ``S + round(eta) = round(S + eta)`` is a post-processing of the radial mechanism. Numerics are
    ``idealised``, as the radial law's.

    Parameters
    ----------
    scale : float
        Delta / epsilon in grid units.
    """

    scale: float

    def __post_init__(self) -> None:
        RadialLaplace(self.scale)

    def loss(self, sensitivity: float) -> PureEpsilon:
        """Return what one sum costs."""
        return PureEpsilon(RadialLaplace(self.scale).epsilon(sensitivity))

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return one draw; its coordinates are not independent of each other."""
        return np.rint(RadialLaplace(self.scale).sample(count, stream)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class RadialShare:
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
    Chaudhuri, Monteleoni, Sarwate, JMLR 12 (2011), for the radial law; Kotz, Kozubowski, Podgórski, "The Laplace
    distribution and generalizations" (2001), for Gaussian scale mixtures and infinite divisibility.
    """

    scale: float
    shares: int
    dimension: int

    def __post_init__(self) -> None:
        _require("scale", self.scale)
        _require("shares", self.shares, at_least=1, above=False)
        _require("dimension", self.dimension, at_least=1, above=False)
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
        return math.ceil(_SUPPORT * self.largest_sigma) + 2

    def loss(self, sensitivity: float) -> PureEpsilon:
        """Return what a sum with ``shares`` such shares costs."""
        closeness = (self.shares + 1) * 2.0 * float(_artanh(_excess(np.array(_FLOOR / 2.0))))
        return PureEpsilon((sensitivity / self.scale + 2.0 * self.dimension * closeness) * _MARGIN)

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return one share; ``count`` must be the dimension, because the coordinates depend on each other."""
        if count != self.dimension:
            raise ParameterError(f"a radial share has {self.dimension} coordinates, {count} were asked for")
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
    off-diagonals by sqrt(2) makes all variances 2 b^2 sum W_i, so mixed over the W_i it is the radial law of scale b:
    a post-processing of the radial mechanism for the Frobenius norm.

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
        return GaussianShare(self._diagonal(self._vector.largest_sigma**2)).largest

    def loss(self, sensitivity: float) -> PureEpsilon:
        """Return what a sum with ``shares`` such shares costs, for a Frobenius sensitivity."""
        return self._vector.loss(sensitivity)

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return the share of one packed matrix of ``count`` entries."""
        sigma = self._diagonal(self._vector.variance(stream))
        return SymmetricDiscreteGaussian(sigma, self.dimension).sample(count, stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruexGaussian:
    """Gaussian noise of a sum, split as Truex et al. publish it: each party adds variance sigma^2 / (t - 1).

    Guarantee
    ---------
    What :func:`secagg_loss` proves for t - 1 shares of that variance (the paper states the continuous Gaussian's loss):
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

    sigma: float
    honest: int

    def __post_init__(self) -> None:
        _require("sigma", self.sigma)
        _require("honest", self.honest, at_least=2, above=False)

    @property
    def share(self) -> GaussianShare:
        """What each party adds."""
        return GaussianShare(self.sigma / math.sqrt(self.honest - 1))

    def loss(self, *, sensitivity: float, dimension: int) -> GaussianMu:
        """Return what one sum costs."""
        return secagg_loss(
            sensitivity=sensitivity, sigma_share=self.share.sigma, shares=self.honest - 1, dimension=dimension
        )

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return the noise of t - 1 shares at once, as a trusted curator would add it."""
        draws = self.share.sample(count * (self.honest - 1), stream)
        return np.asarray(draws.reshape(self.honest - 1, count).sum(axis=0), dtype=np.int64)


@singledispatch
def share_law(law: object, shares: int, dimension: int) -> NoiseShare:
    """Return what each party adds so that any ``shares`` of them are as private as the law of the whole noise.

    Parameters
    ----------
    law
        The law of the noise of the sum, as an algorithm states it: RoundedGaussian, DiscreteGaussian (each shared as
        :func:`share_sigma` proves), SymmetricRoundedGaussian (:class:`SymmetricShare`), :class:`RoundedRadial`,
        SymmetricRoundedRadial (:class:`SymmetricRadialShare`),
        DiscreteLaplace (:class:`~dpalgos.secure.laplace_share.LaplaceShare`) or :class:`TruexGaussian`.
    shares : int
        :attr:`Tolerance.unknown_shares`.
    dimension : int
        Coordinates of the sum.

    Raises
    ------
    ParameterError
        If no sharing of this law is proved.
    """
    raise ParameterError(
        f"no sharing of {type(law).__name__} noise is proved; laws that can be shared: "
        "RoundedGaussian, SymmetricRoundedGaussian, DiscreteGaussian, DiscreteLaplace, RoundedRadial, "
        "SymmetricRoundedRadial, TruexGaussian"
    )


@share_law.register
def _(law: RoundedGaussian, shares: int, dimension: int) -> NoiseShare:
    return GaussianShare(share_sigma(law.sigma, shares=shares, dimension=dimension))


@share_law.register
def _(law: DiscreteGaussian, shares: int, dimension: int) -> NoiseShare:
    return GaussianShare(share_sigma(law.sigma, shares=shares, dimension=dimension))


@share_law.register
def _(law: SymmetricRoundedGaussian, shares: int, dimension: int) -> NoiseShare:
    # Calibrated where an integer matrix's distance may be as small as 1/sqrt(2), see SymmetricShare.
    distance = 1.0 / math.sqrt(2.0)
    budget = GaussianMu(1.0 / law.sigma)
    sigma = share_sigma_for(budget, sensitivity=distance * _MARGIN, shares=shares, dimension=dimension)
    return SymmetricShare(sigma, law.dimension)


@share_law.register
def _(law: RoundedRadial, shares: int, dimension: int) -> NoiseShare:
    return RadialShare(law.scale, shares, dimension)


@share_law.register
def _(law: SymmetricRoundedRadial, shares: int, dimension: int) -> NoiseShare:
    return SymmetricRadialShare(law.scale, shares, law.dimension)


@share_law.register
def _(law: DiscreteLaplace, shares: int, dimension: int) -> NoiseShare:
    return LaplaceShare(law.scale, shares)


@share_law.register
def _(law: TruexGaussian, shares: int, dimension: int) -> NoiseShare:
    if shares < law.honest - 1:
        raise ParameterError(
            f"the published split assumes {law.honest} honest parties, but only {shares} shares unknown to the "
            "adversary are certain to be in the sum; tolerate fewer losses or colluders, or assume fewer honest parties"
        )
    return law.share
