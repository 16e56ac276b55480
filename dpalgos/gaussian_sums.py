"""What algorithms share that see rows through integer sums with Gaussian noise: budgets, grid, guarantee."""

from __future__ import annotations

import math

from dpalgos.guarantees import GaussianMu, Guarantee, Loss, Numerics, Setting, ZeroConcentrated
from dpalgos.mechanisms.rounded_gaussian import total_mu

GAUSSIAN_BUDGETS: tuple[type[Loss], ...] = (GaussianMu, ZeroConcentrated)
"""Budgets that Gaussian noise can be calibrated to: rho-zCDP follows from mu = sqrt(2 rho)."""

# The grid is as fine as this where the noise allows: the encoding error is then far below any noise worth adding.
_FINEST = 16
_COARSEST = 6
_NOISE_ROOM = 2.0**43
_ROWS_ROOM = 60


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


def gaussian_guarantee(budget: Loss, setting: Setting, *assumptions: str) -> Guarantee:
    """Return the guarantee of Gaussian noise calibrated to a budget (``RoundedGaussian.calibrated``)."""
    return Guarantee(losses=(budget,), neighbours=setting.neighbours, numerics=Numerics.EXACT, assumptions=assumptions)
