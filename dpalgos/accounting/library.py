"""Privacy-loss distributions of dp-accounting: composition on a grid, where the exact sums have too many terms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpalgos.accounting.conversions import require_delta, require_epsilon
from dpalgos.accounting.profiles import pure_atoms, smallest_epsilon, zcdp_grid

_CELLS = 40_000
_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class LibraryProfile:
    """A composed distribution of the library, plus what its arithmetic may have lost.

    Parameters
    ----------
    distribution
        A ``dp_accounting`` privacy-loss distribution, pessimistic.
    lost : float
        Charged to delta beside the distribution's own.
    reach : float
        An epsilon beyond which no finite loss lies, a Gaussian's farthest tail apart.
    """

    distribution: Any
    lost: float
    reach: float

    def delta(self, epsilon: float) -> float:
        """Return the distribution's delta plus what its arithmetic may have lost."""
        require_epsilon(epsilon)
        return min(1.0, float(self.distribution.get_delta_for_epsilon(epsilon)) + self.lost)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon at which :meth:`delta` is at most delta; infinite where there is none."""
        require_delta(delta)
        return smallest_epsilon(self.delta, delta, self.reach) if self.delta(self.reach) <= delta else math.inf


def library_profile(pure: Mapping[float, int], mu: float, rho: float, infinity: float) -> LibraryProfile:
    """Compose by dp-accounting, distribution by distribution.

    The library's events are not used: its event accountant ignores how often a randomised response is repeated, and the
    multiplier of its Gaussian event counts in norm bounds, so that under replace-one it stands for twice the noise.

    Guarantee
    ---------
    Never low. Every loss is put on the grid pessimistically (pure epsilons rounded up; Gaussian and zCDP by "connect
    the dots"), the tails that the library cuts off it moves to infinity. It convolves by fast Fourier transforms, whose
    error is charged here: with N points and unit round-off u, the computed transform is off by at most ``7 u log2 N``
    of its l2 norm (Higham, "Accuracy and stability of numerical algorithms", 2002, Theorem 24.2). Two forward
    transforms, a product and one backward transform of vectors whose l1 norms (and so l2 norms) are at most 1 leave an
    l2 error of at most ``21 u log2 N``, hence an l1 error of at most that times sqrt N, and delta is a sum over the
    result with weights from 0 to 1.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    total = math.fsum(epsilon * count for epsilon, count in pure.items())
    gaussian_reach = mu * (mu / 2 + 9) if mu > 0 else 0.0
    zcdp_reach = rho + 2 * math.sqrt(40 * rho)
    reach = total + gaussian_reach + zcdp_reach
    interval = max(reach, 1e-9) / _CELLS
    parts = []
    for epsilon, count in pure.items():
        rounded: dict[int, float] = defaultdict(float)
        atoms = pure_atoms(epsilon, count)
        for loss, probability in zip(atoms.losses.tolist(), atoms.probabilities.tolist(), strict=True):
            rounded[math.ceil(loss / interval)] += probability
        parts.append(
            privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
                dict(rounded), 0.0, interval
            )
        )
    if mu > 0:
        parts.append(privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval))
    if rho > 0:
        cells = math.ceil(zcdp_reach / interval)
        grid = np.arange(-cells, cells + 1)
        parts.append(
            privacy_loss_distribution.PrivacyLossDistribution(
                pld_pmf.create_pmf_pessimistic_connect_dots(
                    interval, grid, zcdp_grid(rho, np.asarray(grid * interval, dtype=np.float64))
                )
            )
        )
    composed = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        {0: 1.0 - infinity}, infinity, interval
    )
    for part in parts:
        composed = composed.compose(part)
    points = 2.0 ** math.ceil(math.log2(4 * _CELLS * (len(parts) + 1)))
    lost = len(parts) * 21 * _UNIT * math.log2(points) * math.sqrt(points)
    # Rounding up moves each part's largest loss by less than a cell.
    return LibraryProfile(composed, lost + 1e-12, reach + (len(parts) + sum(pure.values()) + 1) * interval)
