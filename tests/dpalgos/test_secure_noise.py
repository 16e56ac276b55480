"""Noise shares: the theorem against exact computation, calibration, and the law of sums of shares.

Statistical checks are functions run on the shares and on mutants; they raise a false alarm with probability 10^-9.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr, ndtri

from dpalgos.keystream import KeyStream
from dpalgos.mechanisms.distributions import DiscreteGaussian, RoundedGaussian
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats, Ints
from dpalgos.secure import noise_shares
from dpalgos.secure.messages import Tolerance
from dpalgos.secure.noise_shares import (
    RadialShare,
    RoundedRadial,
    TruexGaussian,
    mu_of_shares,
    share_distribution,
    share_sigma,
)
from tests.support.statistics import ERROR, fits


def discrete_gaussian(sigma: float, reach: int) -> Floats:
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return np.asarray(weights / weights.sum())


def sum_of_shares(sigma: float, shares: int, reach: int) -> Floats:
    """The law of a sum of discrete Gaussians, by convolution."""
    one = total = discrete_gaussian(sigma, reach)
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    return total


def exact_delta(law: Floats, shifts: tuple[int, ...], epsilon: float) -> float:
    """The smallest delta at epsilon for integer vectors that differ by ``shifts``, by enumeration."""
    here, there = np.ones(1), np.ones(1)
    for shift in shifts:
        padded = np.concatenate([np.zeros(shift), law]), np.concatenate([law, np.zeros(shift)])
        here, there = np.multiply.outer(here, padded[0]).ravel(), np.multiply.outer(there, padded[1]).ravel()
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


def gaussian_delta(mu: float, epsilon: float) -> float:
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


EPSILONS = np.linspace(0.0, 6.0, 61)


@pytest.mark.parametrize(
    ("sigma", "shares", "shifts"),
    [
        (1.0, 1, (1,)),
        (1.2, 1, (2,)),
        (1.0, 3, (1,)),
        (1.2, 4, (3,)),
        (1.2, 2, (1, 1)),
        (1.5, 3, (2, 1)),
        (1.3, 1, (1, 1, 1)),
        (3.0, 5, (4,)),
        (0.8, 2, (1,)),
    ],
)
def test_the_loss_covers_the_exact_privacy_profile(sigma: float, shares: int, shifts: tuple[int, ...]) -> None:
    """Where the claim of a central Gaussian would be too small by as much as the theorem's terms are there for."""
    law = sum_of_shares(sigma, shares, math.ceil(9 * sigma))
    sensitivity = math.sqrt(sum(shift**2 for shift in shifts))
    mu = mu_of_shares(sensitivity, sigma, shares, len(shifts))
    for epsilon in EPSILONS:
        assert exact_delta(law, shifts, epsilon) <= gaussian_delta(mu, epsilon) + 1e-12


def test_the_continuous_gaussians_loss_would_not_cover_it() -> None:
    """The check above rejects the naive claim mu = Delta / (sqrt(m) sigma) at small sigma."""
    for sigma, shares, shifts in ((1.0, 1, (1, 1, 1)), (0.5, 2, (1,)), (0.8, 1, (1,))):
        law = sum_of_shares(sigma, shares, math.ceil(9 * sigma))
        mu = math.sqrt(sum(shift**2 for shift in shifts)) / (math.sqrt(shares) * sigma)
        assert any(exact_delta(law, shifts, epsilon) > gaussian_delta(mu, epsilon) + 1e-6 for epsilon in EPSILONS)


def rounding(variance: float, smoothing: float, reach: int) -> Floats:
    """The law of R(g) of the theorem's second step, by quadrature (the integrand is smooth: the rule is exact)."""
    grid = np.arange(-(reach + 1), reach + 1, 1 / 256)
    integers = np.arange(-reach, reach + 1)
    kernel = np.exp(-((integers[:, None] - grid) ** 2) / (2 * smoothing))
    far = np.arange(-3 * reach, 3 * reach + 1)
    kernel /= np.exp(-((far[:, None] - grid) ** 2) / (2 * smoothing)).sum(axis=0)
    law = kernel @ np.exp(-(grid**2) / (2 * (variance - smoothing)))
    return np.asarray(law / law.sum())


@pytest.mark.parametrize(("sigma", "shares", "part"), [(0.5, 2, 0.4), (0.6, 3, 0.3), (0.45, 4, 0.3), (0.7, 1, 0.4)])
def test_the_closeness_bounds_the_true_ratio(sigma: float, shares: int, part: float) -> None:
    """Steps 1 to 3: the logarithm of the true ratio stays below kappa; with either step's term left out it does not."""
    smoothing = part * shares * sigma**2
    reach = 4 * shares
    law = sum_of_shares(sigma, shares, 8)
    centre = len(law) // 2
    close = rounding(shares * sigma**2, smoothing, reach)
    inner = slice(reach - 4, reach + 5)
    log_ratio = np.abs(np.log(law[centre - 4 : centre + 5] / close[inner])).max()
    first = noise_shares._sum_closeness(sigma, shares)
    second = 2 * float(noise_shares._artanh(noise_shares._excess(np.array(smoothing))))
    assert 1e-3 < log_ratio <= first + second
    if shares > 1:
        assert log_ratio > second
    else:
        assert log_ratio > first == 0.0


def test_the_lemma_on_quantiles() -> None:
    """Step 4: the worst probability within exp(±k) moves the normal quantile by at most k sqrt(2 pi)."""
    probabilities = ndtr(np.linspace(-8, 8, 4001))
    for closeness in (1e-6, 1e-3, 0.1, 1.0, 5.0):
        worst = np.minimum(np.exp(closeness) * probabilities, 1 - np.exp(-closeness) * (1 - probabilities))
        moved = ndtri(worst) - ndtri(probabilities)
        assert moved[np.isfinite(moved)].max() <= closeness * math.sqrt(2 * math.pi) + 1e-8
    small = np.minimum(math.exp(0.01) * 0.5, 1 - math.exp(-0.01) * 0.5)
    assert ndtri(small) >= 0.99 * 0.01 * math.sqrt(math.pi / 2)


def published(sensitivity: float, sigma: float, shares: int, dimension: int) -> float:
    """Kairouz, Liu, Steinke 2021, Proposition 14: rho of the sum, from its third bound on sqrt(2 rho)."""
    tau = 10 * math.fsum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, shares))
    return (sensitivity / (math.sqrt(shares) * sigma) + tau * math.sqrt(dimension)) ** 2 / 2


@pytest.mark.parametrize(("sigma", "shares"), [(100.0, 2), (50.0, 40), (1e6, 900)])
def test_the_loss_agrees_with_the_published_concentrated_bound(sigma: float, shares: int) -> None:
    mu = mu_of_shares(7.0, sigma, shares, 10_000)
    assert mu**2 / 2 == pytest.approx(published(7.0, sigma, shares, 10_000), rel=1e-3)


@pytest.mark.parametrize("total", [0.5, 3.0, 50.0, 1e4, 1e10, 2.0**43])
@pytest.mark.parametrize(("shares", "dimension"), [(1, 1), (3, 12_960), (900, 307_720)])
def test_shares_are_as_private_as_the_central_noise_for_every_sensitivity(
    total: float, shares: int, dimension: int
) -> None:
    sigma = share_sigma(total, shares=shares, dimension=dimension)
    for sensitivity in (1.0, math.sqrt(2.0), 17.0, 1e5):
        found = mu_of_shares(sensitivity, sigma, shares, dimension)
        assert found <= sensitivity / total * (1 + 1e-12)
    if total >= 1e4:
        assert sigma * math.sqrt(shares) <= total * (1 + 1e-6)


@pytest.mark.parametrize("total", [1 / 0.3, 0.5])
def test_calibration_inverts_the_loss(total: float) -> None:
    sigma = share_sigma(total, sensitivity=40.0, shares=4, dimension=100)
    assert mu_of_shares(40.0, sigma, 4, 100) <= 1 / total < mu_of_shares(40.0, 0.999 * sigma, 4, 100)


def test_noise_too_coarse_for_its_sum_proves_nothing() -> None:
    assert mu_of_shares(1.0, 0.1, 3, 1) == math.inf


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: DiscreteGaussian(-1.0), "sigma"),
        (lambda: RadialShare(0.0, 2, 3), "scale"),
        (lambda: RoundedRadial(math.inf), "scale"),
        (lambda: RadialShare(2.0**44, 2, 3), "sigma"),
        (lambda: TruexGaussian(sigma=1.0, honest=1), "honest"),
        (lambda: share_distribution(object(), 1, 1), "object.*RoundedGaussian"),
        (lambda: share_distribution(TruexGaussian(sigma=9.0, honest=5), 3, 10), "5 honest.*3 shares"),
    ],
)
def test_parameters_are_validated_by_name(call: Callable[[], object], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        call()


def test_laws_are_shared_by_their_kind() -> None:
    sigma = share_sigma(1e5, shares=3, dimension=50)
    assert (
        share_distribution(RoundedGaussian(1e5), 3, 50)
        == share_distribution(DiscreteGaussian(1e5), 3, 50)
        == DiscreteGaussian(sigma)
    )
    assert share_distribution(RoundedRadial(1e5), 3, 50) == RadialShare(1e5, 3, 50)
    assert share_distribution(TruexGaussian(sigma=1e5, honest=4), 3, 50) == DiscreteGaussian(1e5 / math.sqrt(3))


def test_truex_split_is_ours_with_all_others_colluding_but_for_the_published_variance() -> None:
    law = TruexGaussian(sigma=1e6, honest=4)
    tolerance = Tolerance(parties=6, colluders=3)
    assert tolerance.unknown_shares == law.honest - 1
    ours = share_distribution(RoundedGaussian(1e6), tolerance.unknown_shares, 100)
    assert isinstance(ours, DiscreteGaussian)
    assert law.share.sigma == pytest.approx(ours.sigma, rel=1e-9)
    assert mu_of_shares(3.0, law.share.sigma, law.honest - 1, 100) == pytest.approx(3e-6, rel=1e-9)
    draws = law.sample(20_000, KeyStream(b"\x05" * 32))
    # Six standard errors of a variance estimate.
    assert draws.var() / 1e12 == pytest.approx(1.0, abs=6 * math.sqrt(2 / 20_000))


# --- distributions of sums --------------------------------------------------------------------------------------------


COUNT, SHARES = 40_000, 3


def shares_of(sigmas: list[float], *, same_key: bool = False) -> NDArray[np.int64]:
    return np.stack(
        [
            DiscreteGaussian(sigma).sample(COUNT, KeyStream(bytes([7 if same_key else index]) * 32))
            for index, sigma in enumerate(sigmas)
        ]
    )


def test_a_sum_of_shares_follows_the_convolution() -> None:
    law = sum_of_shares(2.5, SHARES, 40)
    assert fits(shares_of([2.5] * SHARES).sum(axis=0), law)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda: shares_of([2.5] * (SHARES - 1)).sum(axis=0),
        lambda: shares_of([2.5 * math.sqrt(3 / 5)] * SHARES).sum(axis=0),
        lambda: shares_of([2.5] * SHARES, same_key=True).sum(axis=0),
        lambda: np.abs(shares_of([2.5] * SHARES).sum(axis=0)),
        lambda: shares_of([2.5] * (SHARES + 1)).sum(axis=0),
    ],
    ids=["one share missing", "split over all parties", "one key for all", "one-sided", "one share too many"],
)
def test_wrong_sums_of_shares_are_caught(mutant: Callable[[], Ints]) -> None:
    assert not fits(mutant(), sum_of_shares(2.5, SHARES, 40))


def test_no_draw_exceeds_the_stated_bound() -> None:
    for sigma in (0.1, 1.0, 40.0, 5e6):
        share = DiscreteGaussian(sigma)
        assert np.abs(share.sample(20_000, KeyStream(b"\x09" * 32))).max() <= share.largest
    # The end of the sampler's tables: the largest magnitude that any words give.
    for sigma in (0.05, 0.5, 3.0, 1000.0):

        class Ends:
            def words(self, count: int) -> NDArray[np.uint64]:
                return np.zeros(count, dtype=np.uint64)

            def generator(self) -> np.random.Generator:
                raise NotImplementedError

        assert np.abs(DiscreteGaussian(sigma).sample(1, Ends())).max() <= DiscreteGaussian(sigma).largest


RADIAL_SCALE, RADIAL_DIMENSION, RELEASES = 1e7, 2, 1000


def central_radial(law: RoundedRadial) -> Floats:
    """Draws of the whole noise."""
    streams = (KeyStream(b"\xff" + release.to_bytes(31, "big")) for release in range(RELEASES))
    return np.stack([law.sample(RADIAL_DIMENSION, stream) for stream in streams]).astype(float)


def radial_sums(share: RadialShare, releases: int = RELEASES) -> Floats:
    """Sums of ``SHARES`` shares, many times over."""
    return np.stack(
        [
            np.sum(
                [
                    share.sample(RADIAL_DIMENSION, KeyStream(bytes([party]) + release.to_bytes(31, "big")))
                    for party in range(SHARES)
                ],
                axis=0,
            )
            for release in range(releases)
        ]
    ).astype(float)


def is_radial_laplace(vectors: Floats) -> bool:
    """Kolmogorov–Smirnov: the length is Gamma(d, scale), the angle uniform; 10^-9 each."""
    length = stats.kstest(np.linalg.norm(vectors, axis=1), stats.gamma(RADIAL_DIMENSION, scale=RADIAL_SCALE).cdf)
    angle = stats.kstest(np.arctan2(vectors[:, 1], vectors[:, 0]), stats.uniform(-math.pi, 2 * math.pi).cdf)
    return bool(length.pvalue > ERROR and angle.pvalue > ERROR)


def test_radial_shares_sum_to_the_radial_law() -> None:
    assert is_radial_laplace(central_radial(RoundedRadial(RADIAL_SCALE)))
    assert is_radial_laplace(radial_sums(RadialShare(RADIAL_SCALE, SHARES, RADIAL_DIMENSION)))


@pytest.mark.parametrize(
    "share",
    [
        RadialShare(RADIAL_SCALE / math.sqrt(2), SHARES, RADIAL_DIMENSION),
        RadialShare(RADIAL_SCALE, SHARES + 2, RADIAL_DIMENSION),
        RadialShare(RADIAL_SCALE, 1, RADIAL_DIMENSION),
    ],
    ids=["half the variance", "split over all parties", "whole noise from everybody"],
)
def test_wrong_radial_shares_are_caught(share: RadialShare) -> None:
    """Already in a half of the releases that the right ones pass."""
    assert not is_radial_laplace(radial_sums(share, RELEASES // 2))


def test_radial_shares_with_the_wrong_gamma_shape_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """d / 2m instead of (d + 1) / 2m."""
    monkeypatch.setattr(RadialShare, "_shape", property(lambda self: self.dimension / (2 * self.shares)))
    assert not is_radial_laplace(radial_sums(RadialShare(RADIAL_SCALE, SHARES, RADIAL_DIMENSION)))


def test_radial_loss_is_the_central_one() -> None:
    share = RadialShare(1e4, 4, 7_840)
    assert share.loss(1e4).epsilon == pytest.approx(1.0, rel=1e-9)
    assert share.loss(1e4).epsilon >= RoundedRadial(1e4).epsilon(1e4) >= 1.0
    with pytest.raises(ParameterError, match="7840 coordinates"):
        share.sample(5, KeyStream(bytes(32)))


def test_every_allowed_set_of_missing_shares_leaves_enough() -> None:
    """Whoever is lost and whoever colludes, at least ``unknown_shares`` shares are in the sum and unknown."""
    for parties, dropouts, colluders in itertools.product(range(2, 7), range(4), range(4)):
        try:
            tolerance = Tolerance(parties=parties, dropouts=dropouts, colluders=colluders)
        except ParameterError:
            assert parties - dropouts - max(colluders, 1) < 1
            continue
        everyone = range(parties)
        for lost in itertools.combinations(everyone, dropouts):
            for known in itertools.combinations(everyone, max(colluders, 1)):
                unknown = set(everyone) - set(lost) - set(known)
                assert len(unknown) >= tolerance.unknown_shares
