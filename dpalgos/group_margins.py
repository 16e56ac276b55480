r"""Rates of a small part of the held-out rows, with 95 % margins among those that are shown.

*Why not the margins of all rows.* A margin that holds in 95 % of runs may hold in far fewer of those runs in which it
is printed. Of a group whose class has few rows beside the noise most margins reach from 0 to 1. If these are not
printed, the printed ones are mostly those that the noise has misled: of no rows at all 64 % hold, of 60 rows under
noise of standard deviation 15 some 93 % (a recall of 1/2). One such number was a recall of 0.352 (0.021 to 0.641),
which was 0.

*Counts of groups* are estimates that the counts of all rows have sharpened, cell by cell
(:class:`~dpalgos.evaluators.by_group.ConfusionByGroup`). So those of one group are independent of each other, each with
the same standard deviation; those of two groups are not, and no margin is of two groups.

*What is printed, and its margin.* Let A and B be sums of a and of b counts of the group, each count with independent
noise of standard deviation :math:`\sigma`, and D = A + B, whose noise has :math:`s = \sigma\sqrt{a+b}`. The rate A/D is
printed where :math:`D \ge c\,s` with c = :data:`SHOWN_FROM`, and nowhere else, whatever its margin is. So the decision
follows from the noise and from noisy counts, and the margin is the conditional one (Fithian, Sun, Taylor 2014).

Take "the rate is t". Then :math:`T = (1-t)A - tB` has mean 0 and variance
:math:`V = (1-t)^2 a\sigma^2 + t^2 b\sigma^2 + n\,t(1-t)`, for n rows that were drawn. With
:math:`\gamma = \mathrm{cov}(T, D)/V = ((1-t)a - tb)\,\sigma^2/V`, the number :math:`S = D - \gamma T` is uncorrelated
with T; for Gaussian noise it is independent of T, and it is sufficient for the unknown n. Given S, "printed" says
:math:`\gamma T \ge c\,s - S`, that is, with what was observed, :math:`\gamma T' \ge \gamma T - (D - c\,s)`. So, given
S, T is a Gaussian that is cut at a known place. The probability of a T' as large as T, and not cut, is

.. math:: p / \Phi\bigl((( D - c\,s)/\gamma - T)/\sqrt V\bigr) \quad (\gamma > 0),

with p the unconditional one; for :math:`\gamma < 0` the cut is at the other end, and p itself is an upper limit. A
lower limit of the rate is therefore the largest t up to which draws (:mod:`dpalgos.margins`) below t are no more than
2.5 % times that :math:`\Phi`; upper limits are the same of 1 - t. Where D is far above c s, :math:`\Phi` is 1, and the
margin is that of :mod:`dpalgos.margins`. n is taken to be D: where n is far smaller, :math:`\Phi` says so by itself.
Of Laplace noise S and T are only uncorrelated; that margins hold then is tried by night
(``tests/dpalgos/test_by_group.py``).

References
----------
Fithian, Sun, Taylor, "Optimal inference after model selection", arXiv 1410.2597 (2014); Lee, Sun, Sun, Taylor, "Exact
post-selection inference, with application to the lasso", Annals of Statistics 44 (2016).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpalgos.evaluators.by_group import ConfusionByGroup
from dpalgos.margins import LEVELS, PUBLIC_SEED, TWO_SIDED, Noise, drawn_cells, drawn_rates, of_sum
from dpalgos.measured import Metrics
from dpalgos.metrics import rates_of_group
from dpalgos.rows import Floats

SHOWN_FROM = 4.0
"""Standard deviations of its noise that the number of rows of a rate must exceed for the rate to be printed."""
FEW_ROWS = "the noisy number of its rows is less than 4 standard deviations of the noise"


def noise_of_estimates(algorithm: ConfusionByGroup, noise: Noise, deviation: float) -> tuple[Noise, Noise]:
    """Return the noise of the estimated counts of a group and of all rows; see :class:`ConfusionByGroup`.

    The noise of the other groups and of all rows enters that of one group with small weights. Their sum is drawn as a
    Gaussian of its variance.

    Parameters
    ----------
    algorithm : ConfusionByGroup
    noise : callable
        Draws the noise of a released number.
    deviation : float
        Its standard deviation.
    """
    (own, other, common), (of_each, of_whole) = algorithm.of_noise()
    small = math.hypot(math.sqrt(algorithm.groups - 1) * other, common) * deviation if algorithm.whole else 0.0
    summed = of_sum(noise, algorithm.groups)

    def of_group(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        drawn = own * noise(random, shape)
        return drawn + small * random.standard_normal(shape) if small else drawn

    def of_all(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        drawn = of_each * summed(random, shape)
        return drawn + of_whole * noise(random, shape) if algorithm.whole else drawn

    return of_group, of_all


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Rates of one kind, A / (A + B) each.

    Attributes
    ----------
    hits, misses : array (r,)
        A and B, noisy.
    drawn : (array (D, r), array (D, r))
        Rates that the release leaves possible, for lower and for upper limits.
    parts : (int, int)
        a and b.
    deviation : float
    sampled : bool
        Whether the rows are drawn from a population whose rates they are.
    """

    hits: Floats
    misses: Floats
    drawn: tuple[Floats, Floats]
    parts: tuple[int, int]
    deviation: float
    sampled: bool = True

    @property
    def room(self) -> Floats:
        """By how much the number of rows exceeds what it must be."""
        return self.hits + self.misses - SHOWN_FROM * math.sqrt(sum(self.parts)) * self.deviation

    @property
    def shown(self) -> NDArray[np.bool_]:
        return self.room >= 0.0

    def limits(self, level: float = LEVELS[0]) -> Floats:
        """Return the ends (r, 2) of margins, each of which is missed with at most that probability if it is shown."""
        lows = self._ends(self.drawn[0], level, self.hits, self.misses, self.parts)
        highs = self._ends(1.0 - self.drawn[1], level, self.misses, self.hits, self.parts[::-1])
        return np.stack([lows, 1.0 - highs], axis=1)

    def _ends(self, drawn: Floats, level: float, hits: Floats, misses: Floats, parts: tuple[int, int]) -> Floats:
        draws = len(drawn)
        most = max(int(level * draws), 1)
        rate = np.sort(drawn, axis=0)[:most]
        above, below = ((one * self.deviation**2) for one in parts)
        variance = (1.0 - rate) ** 2 * above + rate**2 * below
        if self.sampled:
            variance = variance + np.maximum(hits + misses, 0.0) * rate * (1.0 - rate)
        excess, slope = (1.0 - rate) * hits - rate * misses, ((1.0 - rate) * above - rate * below) / variance
        cut = (self.room / np.where(slope > 0, slope, 1.0) - excess) / np.sqrt(variance)
        allowed = level * np.where(slope > 0, ndtr(cut), 1.0)
        fits = np.arange(1, most + 1)[:, None] <= allowed * draws
        # The largest rate up to which all are refuted.
        count = np.where(fits.all(axis=0), most, fits.argmin(axis=0))
        return np.where(count > 0, rate[np.maximum(count - 1, 0), np.arange(rate.shape[1])], 0.0)


def metrics_of_noisy_group(counts: Floats, deviation: float, noise: Noise, classes: Sequence[str]) -> Metrics:
    """Return the rates of one group of the held-out rows, each with its 95 % margin; how many rows it has is not known.

    Those of :func:`dpalgos.metrics.rates_of_group`. A rate is measured where the noisy number of the rows that it is of
    exceeds :data:`SHOWN_FROM` standard deviations of its noise, and its margin holds in 95 % of the runs in which it is
    shown. So a margin may reach from 0 to 1. The balanced accuracy's margin has the means of the
    ends of recalls' margins that hold all at once.
    ``rows`` is the noisy number of rows, which may be negative; its margin, ``rows_low`` and ``rows_high``, is by the
    noise alone, and the lower end is never below 0. ``predicted_<class>`` is of the rows themselves.

    Parameters
    ----------
    counts : array (K, K)
        True class by predicted class of the rows of the group, noisy.
    deviation : float
        sigma, of the noise of each count.
    noise : callable
        Draws from the noise's distribution.
    classes : sequence of str
    """
    size, random = len(counts), np.random.default_rng(PUBLIC_SEED)
    hits, missed, wrong = drawn_cells(counts, noise, random)
    right, true, predicted = hits.sum(axis=1, keepdims=True), hits + missed, hits + wrong
    whole = true.sum(axis=1, keepdims=True)
    trace, total = float(np.trace(counts)), float(counts.sum())
    of_true, of_predicted, diagonal = counts.sum(axis=1), counts.sum(axis=0), np.diagonal(counts)
    line = (size, size * (size - 1))

    def kind(
        of: Floats, base: Floats, drawn: tuple[Floats, Floats], parts: tuple[int, int], *, sampled: bool = True
    ) -> _Rates:
        return _Rates(hits=of, misses=base - of, drawn=drawn, parts=parts, deviation=deviation, sampled=sampled)

    accuracy = kind(np.array([trace]), np.array([total]), drawn_rates(random, right, whole - right), line)
    recall = kind(diagonal, of_true, drawn_rates(random, hits, missed), (1, size - 1))
    frequency = kind(of_true, np.full(size, total), drawn_rates(random, true, whole - true), line)
    ratio = np.maximum(predicted, 0.0) / np.maximum(
        np.maximum(predicted, 0.0) + np.maximum(whole - predicted, 0.0), 1.0
    )
    prediction = kind(of_predicted, np.full(size, total), (ratio, ratio), line, sampled=False)

    values = rates_of_group(counts, classes)
    found = Metrics()

    def add(name: str, limits: Floats, shown: bool) -> None:
        low, high = map(float, limits)
        if not shown:
            found.refuse(name, FEW_ROWS, (0.0, 1.0))
        else:
            found.update({name: min(max(values[name], low), high), f"{name}_low": low, f"{name}_high": high})

    of_recalls, of_predictions = recall.limits(), prediction.limits()
    add("accuracy", accuracy.limits()[0], bool(accuracy.shown[0]))
    # Of recalls of 1 the mean of upper limits holds only where each does.
    add("balanced_accuracy", recall.limits(LEVELS[0] / size).mean(axis=0), bool(recall.shown.all()))
    # The largest is at least the largest of lower limits that hold all at once.
    largest = np.array([frequency.limits(LEVELS[0] / size)[:, 0].max(), frequency.limits()[:, 1].max()])
    add("majority_rate", largest, bool(accuracy.shown[0]))
    recalls = [name for name in values if name.startswith("recall_")]
    for place, name in enumerate(recalls):
        add(name, of_recalls[place], bool(recall.shown[place]))
        add(f"predicted{name.removeprefix('recall')}", of_predictions[place], bool(prediction.shown[place]))
    margin = TWO_SIDED * size * deviation
    # A noisy number below 0 has a margin that begins at 0: it is never narrower than the noise.
    ends = {"rows_low": max(total - margin, 0.0), "rows_high": max(total, 0.0) + margin}
    return found.merged({"rows": total, **ends})
