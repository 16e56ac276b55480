"""Charged sums of a regression's errors over hold-out rows, for accounts of pure epsilon."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.evaluators.noisy_sums import LaplaceNoise
from dpalgos.guarantees import Setting
from dpalgos.parameters import ParameterError
from dpalgos.registry import register
from dpalgos.rows import NULL_LABEL, Array, Floats, Ints

_GRID = 1 << 10
_UNIT = _GRID * _GRID
SQUARES_WEIGHT = 2
"""The squared errors' sum is the smallest in a good model, and gets twice the precision."""


@register("evaluators", "laplace-error-sums")
@dataclass(frozen=True, kw_only=True)
class LaplaceErrorSums(LaplaceNoise):
    """Sum the errors of a regression over the held-out rows, with discrete Laplace noise.

    For models whose training spends a pure epsilon: measuring them spends no delta either. (With Gaussian noise,
    :class:`~dpalgos.evaluators.error_distribution.ErrorDistribution` measures them.)

    The rows' features are the predictions p of a released model, their labels the targets. Both are clipped to the
    declared range [low, high]; with t the target mapped to [-1, 1] and a = |p - t| / (high - low) in [0, 1], a row adds

        s = (1, 2 a^2, a, t, t^2),

    and a null record nothing. Mean squared error, mean absolute error and R^2 of the clipped predictions follow from
    the sums. All is in integers from the row on: A = round(G a) and T = round(G t) with G = 1024, and the row adds
    (G^2, 2 A^2, G A, G T, T^2), which is s exactly at a = A / G and t = T / G, both still in their ranges. A person's
    row has a coarser grid, B = floor(G / sqrt(k)) in the place of G: it adds the part B^2 / G^2 <= 1 / k of s at A / B
    and T / B, so that a person's rows together stay in the convex hull.

    Guarantee
    ---------
    epsilon-DP, exact: with d = |t - t'| and m = |t + t'|, so that d + m <= 2, two real records are at most 2 + 1 + d (1
    + m) <= 3 + d (3 - d) <= 5.25 apart in l1, and a record and a null record at most 6, attained by a = t = 1. So **6**
    under both relations, since null records occur under replace-one too. Discrete Laplace noise of scale ``6 /
    epsilon``.

    Parameters
    ----------
    budget : PureEpsilon
    label_range : (float, float)
        Declared, low below high, in the unit of the target.

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1.
    """

    label_range: Sequence[float] = (0.0, 1.0)
    unit: ClassVar[int] = _UNIT
    fewest_classes: ClassVar[int] = 1
    people: ClassVar[str] = "each of k rows adds the share B²/G² ≤ 1/k of what one record adds at most"
    measured: ClassVar[str] = "sums of errors, l1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.label_range) != 2 or not -math.inf < self.label_range[0] < self.label_range[1] < math.inf:
            raise ParameterError(f"label_range is {list(self.label_range)}; it must be two finite numbers, low < high")
        object.__setattr__(self, "label_range", tuple(float(end) for end in self.label_range))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (5,)."""
        return (5,)

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact sums (5,) in integers."""
        low, high = self.label_range
        target = (np.clip(np.asarray(labels, dtype=np.float64), low, high) - low) / (high - low)
        # Fractions of the range, clipped before anything can overflow; a product with its reciprocal could.
        predicted = (np.clip(features[:, :1].sum(axis=1), low, high) - low) / (high - low)
        # Roots of whole numbers below 2^21 are never rounded up to the next whole number.
        grid = np.floor(np.sqrt(parts)).astype(np.int64)
        error = np.rint(grid * np.abs(predicted - target)).astype(np.int64)
        centred = np.rint(grid * (2.0 * target - 1.0)).astype(np.int64)
        sums = (grid * grid, SQUARES_WEIGHT * error * error, grid * error, grid * centred, centred * centred)
        return np.array([each.sum() for each in sums], dtype=np.int64)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums: most against a null record, which occurs under both relations."""
        return 6.0

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the largest error at the upper end of the range against a null record."""
        low, high = self.label_range
        null = NULL_LABEL if setting.classes > 1 else math.nan
        row = np.full(setting.dimension, low)
        return one_row_apart(setting, row, row, labels=(high, null))
