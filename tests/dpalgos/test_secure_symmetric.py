"""Shares of noise for symmetric matrices: the bound against algebra, and the variance of the sum."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpalgos.mechanisms.distributions import (
    SymmetricDiscreteGaussian,
    SymmetricRoundedGaussian,
    SymmetricRoundedRadial,
    packed_size,
    to_vector,
    unpack,
)
from dpalgos.parameters import ParameterError
from dpalgos.secure.noise_shares import RadialShare, SymmetricRadialShare, mu_of_shares, share_distribution
from tests.support.statistics import rejects_law
from tests.support.streams import seeded


@pytest.mark.parametrize("shares", [1, 3, 40])
@pytest.mark.parametrize("sigma", [20.0, 4096.0])
def test_shares_cost_no_more_than_the_central_law_for_any_matrix(shares: int, sigma: float) -> None:
    dimension = 6
    law = SymmetricRoundedGaussian(sigma, dimension)
    share = share_distribution(law, shares, packed_size(dimension))
    assert isinstance(share, SymmetricDiscreteGaussian)
    for frobenius in (1.0, math.sqrt(2), 7.0, 1e4):
        # Equal shares of the off-diagonal parameter at distance |V|_F / sqrt(2) bound it: :func:`share_distribution`.
        cost = mu_of_shares(frobenius / math.sqrt(2), share.sigma / math.sqrt(2), shares, packed_size(dimension))
        assert cost <= frobenius / sigma * (1 + 1e-12)
        # And no noise is wasted: equal shares on the whole matrix would need sqrt(2) more off the diagonal.
        assert cost > frobenius / sigma * (1 - 0.1)


def _variances(share: SymmetricDiscreteGaussian, shares: int) -> tuple[float, float]:
    size = packed_size(share.dimension)
    draws = np.array([sum(share.sample(size, seeded(97 * i + j)) for j in range(shares)) for i in range(400)])
    matrices = np.array([unpack(draw) for draw in draws])
    diagonal = matrices[:, range(share.dimension), range(share.dimension)]
    off = matrices[:, *np.triu_indices(share.dimension, 1)]
    return float(diagonal.var()), float(off.var())


def _is_right(diagonal: float, off: float, sigma: float, dimension: int) -> bool:
    """Compare variances with sigma² and sigma²/2 within 6.5 standard errors (false alarm below 1e-9)."""
    counts = 400 * dimension, 400 * dimension * (dimension - 1) / 2
    targets = sigma**2, sigma**2 / 2
    return all(
        abs(found / target - 1) < 6.5 * math.sqrt(2 / count) + 0.001
        for found, target, count in zip((diagonal, off), targets, counts, strict=True)
    )


def test_the_sum_of_shares_has_the_central_variances() -> None:
    sigma, dimension, shares = 300.0, 12, 4
    share = share_distribution(SymmetricRoundedGaussian(sigma, dimension), shares, packed_size(dimension))
    assert isinstance(share, SymmetricDiscreteGaussian)
    assert _is_right(*_variances(share, shares), sigma, dimension)
    # Mutants: half the noise; the square root of two forgotten; the diagonal's noise everywhere.
    diagonal, off = _variances(share, shares)
    assert not _is_right(diagonal / 4, off / 4, sigma, dimension)
    assert not _is_right(diagonal, off / 2, sigma, dimension)
    assert not _is_right(diagonal, diagonal, sigma, dimension)


SCALE, DIMENSION, SHARES, RELEASES = 1e6, 3, 3, 1200


def radial_matrices(draw: Callable[[int], NDArray[np.int64]], releases: int = RELEASES) -> NDArray[np.float64]:
    """Return the isometric vectors of so many releases, (releases, 6)."""
    return np.array([to_vector(unpack(draw(release)).astype(np.float64)) for release in range(releases)])


def summed(share: SymmetricRadialShare, release: int) -> NDArray[np.int64]:
    size = packed_size(share.dimension)
    parts = [share.sample(size, seeded(1000 * release + party)) for party in range(SHARES)]
    return np.asarray(np.sum(parts, axis=0), dtype=np.int64)


def is_radial(vectors: NDArray[np.float64]) -> bool:
    """The length is Gamma(D, scale) and every coordinate's share of it has the law of a direction; 10^-9 each."""
    lengths = np.linalg.norm(vectors, axis=1)
    entries = vectors.shape[1]
    if rejects_law(lengths, stats.gamma(entries, scale=SCALE).cdf):
        return False
    # The square of one coordinate of a uniform direction is Beta(1/2, (D - 1)/2).
    shares = (vectors / lengths[:, None]) ** 2
    return not any(rejects_law(shares[:, i], stats.beta(0.5, (entries - 1) / 2).cdf) for i in range(entries))


def test_radial_shares_sum_to_the_radial_law_of_symmetric_matrices() -> None:
    """Dvoretzky-Kiefer-Wolfowitz with 1,200 releases notices 9.4 per cent."""
    law = SymmetricRoundedRadial(SCALE, DIMENSION)
    assert is_radial(radial_matrices(lambda release: law.sample(6, seeded(release))))
    share = share_distribution(law, SHARES, 6)
    assert share == SymmetricRadialShare(SCALE, SHARES, DIMENSION)
    assert isinstance(share, SymmetricRadialShare)
    assert is_radial(radial_matrices(lambda release: summed(share, release)))
    assert all(np.abs(summed(share, release)).max() <= SHARES * share.largest for release in range(50))


@pytest.mark.parametrize(
    ("share", "releases"),
    [
        (SymmetricRadialShare(SCALE / math.sqrt(2), SHARES, DIMENSION), 500),
        pytest.param(SymmetricRadialShare(SCALE, SHARES + 2, DIMENSION), RELEASES, marks=pytest.mark.nightly),
        pytest.param(SymmetricRadialShare(SCALE, 1, DIMENSION), RELEASES, marks=pytest.mark.nightly),
    ],
    ids=["half the variance", "split over all parties", "whole noise from everybody"],
)
def test_wrong_symmetric_radial_shares_are_caught(share: SymmetricRadialShare, releases: int) -> None:
    """The lengths of the first are 0.33 off, where 500 releases see 0.15."""
    assert not is_radial(radial_matrices(lambda release: summed(share, release), releases))


@pytest.mark.nightly
def test_the_isometry_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variance for all entries of the triangle, and the shape of a whole matrix instead of a triangle."""
    share = SymmetricRadialShare(SCALE, SHARES, DIMENSION)
    vector = RadialShare(SCALE, SHARES, 6)

    def flat(release: int) -> NDArray[np.int64]:
        return np.asarray(sum(vector.sample(6, seeded(1000 * release + party)) for party in range(SHARES)))

    assert not is_radial(radial_matrices(flat))
    monkeypatch.setattr(SymmetricRadialShare, "_vector", RadialShare(SCALE, SHARES, 12))
    assert not is_radial(radial_matrices(lambda release: summed(share, release)))


def test_the_symmetric_radial_loss_is_the_central_one() -> None:
    law, share = SymmetricRoundedRadial(1e4, 40), SymmetricRadialShare(1e4, 4, 40)
    assert law.epsilon(1e4) >= 1.0
    cost = share._vector.loss(1e4).epsilon
    assert cost == pytest.approx(law.epsilon(1e4), rel=1e-9)
    assert cost >= law.epsilon(1e4)
    for call in (
        lambda: SymmetricRoundedRadial(0.0, 3),
        lambda: SymmetricRoundedRadial(1.0, 0),
        lambda: SymmetricRadialShare(1e4, 0, 40),
        lambda: SymmetricRadialShare(2.0**44, 2, 40),
        lambda: law.sample(40, seeded(0)),
        lambda: share.sample(40, seeded(0)),
    ):
        with pytest.raises(ParameterError):
            call()
