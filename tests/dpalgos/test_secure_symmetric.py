"""Shares of noise for symmetric matrices: the bound against algebra, and the variance of the sum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpalgos.mechanisms.symmetric import SymmetricRoundedGaussian, packed_size, unpack
from dpalgos.secure.noise_shares import SymmetricShare, secagg_loss, share_law
from tests.support.streams import seeded


@pytest.mark.parametrize("shares", [1, 3, 40])
@pytest.mark.parametrize("sigma", [20.0, 4096.0])
def test_shares_cost_no_more_than_the_central_law_for_any_matrix(shares: int, sigma: float) -> None:
    dimension = 6
    law = SymmetricRoundedGaussian(sigma, dimension)
    share = share_law(law, shares, packed_size(dimension))
    assert isinstance(share, SymmetricShare)
    for frobenius in (1.0, math.sqrt(2), 7.0, 1e4):
        # Equal shares of the off-diagonal parameter at distance |V|_F / sqrt(2) bound it, see the class.
        cost = secagg_loss(
            sensitivity=frobenius / math.sqrt(2),
            sigma_share=share.off_diagonal,
            shares=shares,
            dimension=packed_size(dimension),
        )
        assert cost.mu <= frobenius / sigma * (1 + 1e-12)
        # And no noise is wasted: equal shares on the whole matrix would need sqrt(2) more off the diagonal.
        assert cost.mu > frobenius / sigma * (1 - 0.1)


def _variances(share: SymmetricShare, shares: int) -> tuple[float, float]:
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
    share = share_law(SymmetricRoundedGaussian(sigma, dimension), shares, packed_size(dimension))
    assert isinstance(share, SymmetricShare)
    assert _is_right(*_variances(share, shares), sigma, dimension)
    # Mutants: half the noise; the square root of two forgotten; the diagonal's noise everywhere.
    diagonal, off = _variances(share, shares)
    assert not _is_right(diagonal / 4, off / 4, sigma, dimension)
    assert not _is_right(diagonal, off / 2, sigma, dimension)
    assert not _is_right(diagonal, diagonal, sigma, dimension)
