"""Noisy histograms of private hold-out rows' scores, for the area under the ROC curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.evaluators.noisy_sums import GaussianSums
from dpalgos.guarantees import Setting
from dpalgos.neighbouring import NeighbouringPair, one_row_apart
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, null_records


@register("evaluators", "score-histogram")
@dataclass(frozen=True, kw_only=True)
class ScoreHistogram(GaussianSums):
    """Histogram each class's scores apart for rows of the class and rows of the others, with integer noise.

    Scores are squashed by the logistic function first, so that bins on [0, 1] need no range learnt from the rows.

    Guarantee
    ---------
    mu-GDP, exact. A row is counted once in each of the K histograms (one for a binary problem), so replace-one
    moves the counts by at most sqrt(2 K) in l2 and replace-special by sqrt(K): a null record is not counted.

    Parameters
    ----------
    budget : GaussianMu
    bins : int
        At least 2; the area is exact up to ties within a bin.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    bins: int = 32
    measured: ClassVar[str] = "counts, l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins < 2:
            raise ParameterError(f"bins is {self.bins}; it must be at least 2")

    @staticmethod
    def _histograms(setting: Setting) -> int:
        return 1 if setting.classes <= 2 else setting.classes

    def sensitivity(self, setting: Setting) -> float:
        """Return the root of the number of bins that one record moves by one."""
        return math.sqrt(setting.neighbours.records * self._histograms(setting))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (histograms, 2, bins)."""
        return self._histograms(setting), 2, self.bins

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row with the largest score for every class against one with the smallest: all histograms move."""
        scores = np.ones(setting.dimension)
        return one_row_apart(setting, scores, -scores)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the exact counts (histograms, 2, bins): rows of the other classes, rows of the class."""
        histograms = self._histograms(setting)
        counts = np.zeros(self.sum_shape(setting), dtype=np.int64)
        for block, labels in rows.blocks():
            scores = np.asarray(block, dtype=np.float64)
            kept = ~null_records(scores, labels, max(setting.classes, 2))
            truth = np.asarray(labels[kept], dtype=np.int64)
            # A score that the model does not have is zero.
            known = np.pad(scores[kept], ((0, 0), (0, max(histograms - scores.shape[1], 0))))
            squashed = 1.0 / (1.0 + np.exp(-np.clip(known, -50.0, 50.0)))
            bins = np.minimum((squashed * self.bins).astype(np.int64), self.bins - 1)
            for index in range(histograms):
                positive = truth == (1 if histograms == 1 else index)
                for side, chosen in enumerate((~positive, positive)):
                    counts[index, side] += np.bincount(bins[chosen, index], minlength=self.bins)
        return counts


def area_under_curve(histograms: Floats) -> float:
    """Return the area under the ROC curve from (noisy) histograms (K, 2, bins), averaged over the classes.

    Post-processing: negative counts are cut to zero; ties within a bin count half; 0.5 where a side is empty.
    """
    areas = []
    for negative, positive in np.maximum(histograms, 0.0):
        below = np.cumsum(negative) - negative
        pairs = positive.sum() * negative.sum()
        areas.append(0.5 if pairs == 0 else float(positive @ (below + 0.5 * negative) / pairs))
    return float(np.mean(areas))


def curves_of(histograms: Floats) -> list[Floats]:
    """Return a ROC curve for each of the (noisy) histograms (K, 2, bins): (false, true positive rate) from (0, 0).

    Post-processing: negative counts are cut to zero, so that curves rise; one whose side is empty is the diagonal.
    """
    curves = []
    for sides in np.maximum(histograms, 0.0)[:, :, ::-1]:
        totals = sides.sum(axis=1, keepdims=True)
        rates = np.cumsum(sides, axis=1) / np.where(totals > 0, totals, 1.0)
        rates = rates if (totals > 0).all() else np.linspace([0.0, 0.0], [1.0, 1.0], sides.shape[1] + 1).T[:, 1:]
        curves.append(np.concatenate([np.zeros((1, 2)), rates.T]))
    return curves
