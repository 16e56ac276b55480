"""Calibration shared by all algorithms that see rows through noisy integer sums."""

from __future__ import annotations

import math

from dpalgos.guarantees import GaussianMu, Guarantee, Loss, Numerics, Setting, ZeroConcentrated
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.mechanisms.symmetric import SymmetricRoundedGaussian

__all__ = ["GAUSSIAN_BUDGETS", "gaussian_guarantee", "gaussian_law", "grid", "symmetric_law", "total_mu"]

GAUSSIAN_BUDGETS: tuple[type[Loss], ...] = (GaussianMu, ZeroConcentrated)
"""Budgets that Gaussian noise can be calibrated to: rho-zCDP follows from mu = sqrt(2 rho)."""

# The grid is as fine as this where the noise allows: the encoding error is then far below any noise worth adding.
_FINEST = 16
_COARSEST = 6
_NOISE_ROOM = 2.0**43
_ROWS_ROOM = 60


def total_mu(budget: Loss) -> float:
    """Return the mu of Gaussian-DP that a budget buys; mu-GDP by Gaussian noise is mu²/2-zCDP."""
    if isinstance(budget, GaussianMu):
        return budget.mu
    assert isinstance(budget, ZeroConcentrated)
    return math.sqrt(2.0 * budget.rho)


def grid(budget: Loss, sensitivity: float, steps: int, setting: Setting) -> float:
    """Return the grid units per unit, a power of two, for both factors of a sum of outer products.

    Public: it depends on the budget and the sizes. Fine enough not to matter, coarse enough that neither the noise
    nor the sum over all rows leaves 64-bit integers.

    Parameters
    ----------
    budget : Loss
    sensitivity : float
        l2 sensitivity of one sum, before encoding.
    steps : int
        Number of sums.
    setting : Setting
    """
    noise = sensitivity * math.sqrt(steps) / total_mu(budget)
    for_noise = (math.log2(_NOISE_ROOM) - math.log2(noise)) / 2.0
    for_rows = (_ROWS_ROOM - math.log2(max(setting.rows, 1))) / 2.0
    return 2.0 ** max(_COARSEST, min(_FINEST, math.floor(min(for_noise, for_rows))))


def gaussian_law(budget: Loss, sensitivity: float, steps: int = 1) -> RoundedGaussian:
    """Return the noise of each of ``steps`` sums of equal l2 sensitivity (grid units), so that all cost the budget.

    T-fold composition of mu₀-GDP Gaussian mechanisms is exactly √T·mu₀-GDP, adaptively too
    (Dong, Roth, Su 2022, Corollary 2). The standard deviation is rounded up by more than the arithmetic's error.
    """
    return RoundedGaussian(sensitivity * math.sqrt(steps) / total_mu(budget) * (1.0 + 2.0**-48))


def symmetric_law(budget: Loss, sensitivity: float, dimension: int) -> SymmetricRoundedGaussian:
    """Return the noise of one packed symmetric matrix of given Frobenius sensitivity (grid units).

    Off-diagonal noise is √2 smaller than the diagonal's, by the isometry.
    """
    return SymmetricRoundedGaussian(gaussian_law(budget, sensitivity).sigma, dimension)


def gaussian_guarantee(budget: Loss, setting: Setting, *assumptions: str) -> Guarantee:
    """Return the guarantee of Gaussian noise calibrated by :func:`gaussian_law`."""
    return Guarantee(losses=(budget,), neighbours=setting.neighbours, numerics=Numerics.EXACT, assumptions=assumptions)
