"""Noisy sums of a regression's errors on private hold-out rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.evaluators.noisy_sums import GaussianSums, LaplaceSums, NoisySums
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.neighbouring import NeighbouringPair, one_row_apart
from dpalgos.registry import register
from dpalgos.rows import NULL_LABEL, Ints, Rows, null_records

_GRID = 1 << 10
_UNIT = _GRID * _GRID
SQUARES_WEIGHT = 2
"""The squared errors' sum is the smallest in a good model, and gets twice the precision."""


@dataclass(frozen=True, kw_only=True)
class ErrorSums(NoisySums):
    """Five sums over the hold-out rows, with integer noise; subclasses say which noise, in which norm.

    The rows' features are the predictions p of a released model, their labels the targets. Both are clipped to the
    declared range [low, high]; with t the target mapped to [-1, 1] and a = |p - t| / (high - low) in [0, 1], a row adds

        s = (1, 2 a^2, a, t, t^2),

    and a null record nothing. Mean squared error, mean absolute error and R^2 of the clipped predictions follow from
    the sums. All is in integers from the row on: A = round(G a) and T = round(G t) with G = 1024, and the row adds
    (G^2, 2 A^2, G A, G T, T^2), which is s exactly at a = A / G and t = T / G, both still in their ranges.

    Sensitivity
    -----------
    Let d = |t - t'| and m = |t + t'|, so that d + m <= 2.

    *l2, replace-one*, both records real: (2 a^2 - 2 a'^2)^2 + (a - a')^2 <= 5, and
    (t - t')^2 + (t^2 - t'^2)^2 = d^2 (1 + m^2) <= d^2 (1 + (2 - d)^2), which rises in d (its derivative is
    2 d (2 d^2 - 6 d + 5) > 0) to 4. Together at most 9, attained by a = 1, t = 1 against a = 0, t = -1: **3**.
    One record null: |s|^2 <= 1 + 4 + 1 + 1 + 1 = 8, less. *Replace-special*: **sqrt(8)**, attained by a = t = 1.

    *l1*: real against real at most 2 + 1 + d (1 + m) <= 3 + d (3 - d) <= 5.25; real against null at most 6, attained
    by a = t = 1. So **6** under both relations, since null records occur under replace-one too.

    Parameters
    ----------
    budget : Loss
    label_range : (float, float)
        Declared, low below high, in the unit of the target.
    """

    label_range: Sequence[float] = (0.0, 1.0)
    unit: ClassVar[int] = _UNIT

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.label_range) != 2 or not -math.inf < self.label_range[0] < self.label_range[1] < math.inf:
            raise ParameterError(f"label_range is {list(self.label_range)}; it must be two finite numbers, low < high")
        object.__setattr__(self, "label_range", tuple(float(end) for end in self.label_range))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (5,)."""
        return (5,)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the exact sums (5,) in integers."""
        low, high = self.label_range
        total = np.zeros(5, dtype=np.int64)
        for block, labels in rows.blocks():
            predictions = np.asarray(block, dtype=np.float64)
            targets = np.asarray(labels, dtype=np.float64)
            kept = ~null_records(predictions, targets, setting.classes)
            # Fractions of the range, clipped before anything can overflow; a product with its reciprocal could.
            target = (np.clip(targets[kept], low, high) - low) / (high - low)
            predicted = (np.clip(predictions[kept, :1].sum(axis=1), low, high) - low) / (high - low)
            error = np.rint(_GRID * np.abs(predicted - target)).astype(np.int64)
            centred = np.rint(_GRID * (2.0 * target - 1.0)).astype(np.int64)
            total += [
                _UNIT * len(error),
                SQUARES_WEIGHT * int((error * error).sum()),
                _GRID * int(error.sum()),
                _GRID * int(centred.sum()),
                int((centred * centred).sum()),
            ]
        return total

    def _worst(self, setting: Setting, *, against_null: bool) -> NeighbouringPair:
        low, high = self.label_range
        null = NULL_LABEL if setting.classes > 1 else math.nan
        row = np.full(setting.dimension, low)
        return one_row_apart(setting, row, row, labels=(high, null if against_null else low))


@register("evaluators", "error-sums")
@dataclass(frozen=True, kw_only=True)
class GaussianErrorSums(ErrorSums, GaussianSums):
    """Sum the errors of a regression over the hold-out rows, with rounded Gaussian noise.

    Guarantee
    ---------
    mu-GDP, exact: integer sums of (1, 2 a^2, a, t, t^2) over the rows, a in [0, 1] the error and t in [-1, 1] the
    target in units of the declared range, have the l2 sensitivity 3, attained by (1, 2, 1, 1, 1) against
    (1, 0, 0, -1, 1), and sqrt(8) under replace-special, against nothing. Rounded Gaussian noise of scale
    ``sensitivity / mu`` (see ``mechanisms.rounded_gaussian``).

    Parameters
    ----------
    budget : GaussianMu
    label_range : (float, float)

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    measured: ClassVar[str] = "sums of errors, l2"

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums."""
        return 3.0 if setting.neighbours is Neighbours.REPLACE_ONE else math.sqrt(8.0)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the largest error at the upper end of the range against none at the lower, or a null record."""
        return self._worst(setting, against_null=False)


@register("evaluators", "laplace-error-sums")
@dataclass(frozen=True, kw_only=True)
class LaplaceErrorSums(ErrorSums, LaplaceSums):
    """Sum the errors of a regression over the hold-out rows, with discrete Laplace noise.

    For models whose training spends a pure epsilon: measuring them spends no delta either.

    Guarantee
    ---------
    epsilon-DP, exact: integer sums of (1, 2 a^2, a, t, t^2) over the rows, a in [0, 1] the error and t in [-1, 1] the
    target in units of the declared range, have the l1 sensitivity 6, attained by (1, 2, 1, 1, 1) against a null
    record. Discrete Laplace noise of scale ``6 / epsilon``.

    Parameters
    ----------
    budget : PureEpsilon
    label_range : (float, float)

    References
    ----------
    Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis", TCC 2006, Theorem 1.
    """

    measured: ClassVar[str] = "sums of errors, l1"

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the sums: most against a null record, which occurs under both relations."""
        return 6.0

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the largest error at the upper end of the range against a null record."""
        return self._worst(setting, against_null=True)
