"""Charged counts of the hold-out rows that one of two models alone gets right, and what they say."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.evaluators.confusion import ConfusionMatrix
from dpalgos.guarantees import Setting
from dpalgos.models import predicted_classes
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints

QUANTILE = 1.6448536269514722
"""Of the normal distribution: one-sided, 95 %."""


@register("evaluators", "discordance")
@dataclass(frozen=True, kw_only=True)
class Discordance(ConfusionMatrix):
    """Count held-out rows that only one of two models classifies correctly (McNemar's test), with integer noise.

    The rows' features are the decision values of the first model, followed by those of the second: ``dimension //
    2`` columns, and the rest. A model without columns says class 0.

    The difference of the two counts is that of the models' correct answers. Under replace-one it has the noise that
    this difference would need by itself: a row adds -1, 0 or 1 to it, so that its sensitivity is 2 and its noise 2 /
    mu; here each count has sqrt(2) / mu, and the difference sqrt(2) times that. What is gained is their sum, which says
    how much of a difference the draw of the rows explains. Under replace-special, where the difference alone would need
    1 / mu, the price of that is a factor of sqrt(2).

    Guarantee
    ---------
    mu-GDP, exact. Replace-one takes one from one of two counts at most and adds one to one at most, an l2 change of at
    most sqrt(2); a null record is not counted, so replace-special changes one count by one. Rounded Gaussian noise of
    scale ``sensitivity / mu`` on each count, as for :class:`~dpalgos.evaluators.confusion.ConfusionMatrix`.

    Parameters
    ----------
    budget : GaussianMu

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1; McNemar, "Note on the sampling error
    of the difference between correlated proportions or percentages", Psychometrika 12 (1947).
    """

    people: ClassVar[str] = "each of k rows adds ⌊U/k⌋ of the U units that one record adds"

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (2,): rows that the first model alone gets right, rows that the second alone does."""
        return (2,)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row of class 1, which the second model alone gets right, against one of class 0, the first's."""
        width = setting.dimension // 2
        scores = np.concatenate([_says(0, width), _says(1, setting.dimension - width)]) / 2
        return one_row_apart(setting, scores, scores, labels=(1, 0))

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (2,)."""
        width, truth = setting.dimension // 2, np.asarray(labels, dtype=np.int64)
        first, second = (predicted_classes(part) == truth for part in (features[:, :width], features[:, width:]))
        return np.array([parts[first & ~second].sum(), parts[second & ~first].sum()], dtype=np.int64)


def _says(index: int, columns: int) -> Floats:
    """Return decision values of so many columns that say class 0 or 1."""
    return np.full(1, 2.0 * index - 1.0) if columns == 1 else np.eye(1, columns, index)[0]


def accuracy_gain(counts: Floats, rows: int, deviation: float) -> tuple[float, float]:
    """Return by how much the second model is more accurate than the first, and the 95 % margin of that.

    Post-processing. The margin is one-sided: with the normal approximation, a second model that is not better has a
    gain above it with a probability of at most 1/20, over the noise and the draw of the rows. The variance of a row's
    difference is at most the share of discordant rows, which is taken at its own upper 95 % limit.

    Parameters
    ----------
    counts : array (2,)
        Noisy or exact.
    rows : int
        That were counted, public.
    deviation : float
        Standard deviation of the noise of each count; 0 for exact ones.

    Returns
    -------
    (float, float)
    """
    noise = math.sqrt(2.0) * deviation
    discordant = min(max(float(counts.sum()) + QUANTILE * noise, 0.0), float(rows))
    return float(counts[1] - counts[0]) / rows, QUANTILE * math.sqrt(noise**2 + discordant) / rows
