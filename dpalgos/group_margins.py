r"""Rates of a small part of the held-out rows, with 95 % margins among those that are shown, and their differences.

*Why not the margins of all rows.* A margin that holds in 95 % of runs may hold in far fewer of those runs in which it
is printed. In a group whose class has few rows compared with the noise, most margins reach from 0 to 1. If these are
not printed, the printed ones are mostly those that the noise has misled: of no rows at all 64 % hold, of 60 rows under
noise of standard deviation 15 some 93 % (a recall of 1/2). One such number was a recall of 0.352 (0.021 to 0.641),
which was 0.

*Counts of groups* are estimates, cell by cell (:class:`GroupEstimates`). Released counts of groups y_g have noise of
variance s²; counts of all rows y, where there are any, have noise of variance τ². The true ones add up, so with the
residual r = y − Σ_g y_g, of variance τ² + G s², the least squares estimates are

    n̂_g = y_g + β r,  n̂ = Σ_g y_g + G β r,  β = s²/(τ² + G s²),

of variance s² (1 − β) and τ² G β; n̂ is Σ_g n̂_g, and the covariance of two groups is −β s². It is exact for Gaussian
noise, and without bias for any. In multiples of one matrix's noise, for 5 and for 9 groups:

- all rows counted in the same release, a fifth of its squared sensitivity (s² = 5/4, τ² = 5, β = 1/(G + 4)): all
  groups together √(5G/(G + 4)) = 1.67 and 1.86 in place of √G (2.24 and 3.00), each group 1.05 and 1.07;
- a matrix of the same rows released before at the same budget (s² = τ² = 1, β = 1/(G + 1)): all groups together
  √(G/(G + 1)) = 0.91 and 0.95, each group the same.

The estimates of one group's cells are independent of each other, each with the same standard deviation. Running sums of
scores (:mod:`dpalgos.group_curves`) are estimated alike, edge by edge: their noise is correlated over the edges, the
same for groups and for all rows but for its size.

*What is printed, and its margin.* Let A and B be sums of counts of the group whose noise has the variances a and b and
the covariance k, and D = A + B, whose noise has :math:`s = \sqrt{a+b+2k}`. (Of sums of independent counts, a and b are
multiples of the variance of one, and k is 0.) The rate A/D is printed where :math:`D \ge c\,s` with c =
:data:`SHOWN_FROM`, and nowhere else; its margin does not matter. So the decision follows from the noise and from noisy
counts, and the margin is the conditional one (Fithian, Sun, Taylor 2014).

Take "the rate is t". Then :math:`T = (1-t)A - tB` has mean 0 and variance
:math:`V = (1-t)^2 a + t^2 b - 2t(1-t)k + n\,t(1-t)`, for n rows that were drawn. With
:math:`\gamma = \mathrm{cov}(T, D)/V = ((1-t)a - tb + (1-2t)k)/V`, the number :math:`S = D - \gamma T` is uncorrelated
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

*Differences of two groups* are shown where both rates are. Their margins are made of the two rates' own ones (MOVER,
Zou and Donner 2008), which hold among those that are shown: with the rates p and q, the distances x of p to its lower
limit and y of q to its upper one, the lower limit of p − q is

.. math:: p - q - \sqrt{x^2 + y^2 - 2\rho\,x\,y},

and the upper one likewise. The drawing of rows is independent between groups, and the noise is not: the noises of the T
of both groups have the covariance :math:`-\beta/(1-\beta)` times a bilinear form of (1 − p, −p) and (1 − q, −q), that
of the noise of one group's A and B. It has the magnitude of :math:`\beta/(1-\beta)` times the root of the noise's two
variances at most. So :math:`\rho` is that, below 0, times the root of the two shares that the noise has in the variance
of T. A limit that reaches 0 or 1 is nearer than the noise goes; where one of the two does, the limit of the difference
is p − q − x − y. (Of a rate of 1 less one of 1/2, 90.8 % of the margins would hold otherwise.) Each margin holds by
itself, in 95 % of the runs; of many differences some 5 % do not hold.

References
----------
Fithian, Sun, Taylor, "Optimal inference after model selection", arXiv 1410.2597 (2014); Lee, Sun, Sun, Taylor, "Exact
post-selection inference, with application to the lasso", Annals of Statistics 44 (2016); Zou, Donner, "Construction of
confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.evaluators.by_group import CountedByGroup
from dpalgos.margins import LEVELS, PUBLIC_SEED, TWO_SIDED, Noise, drawn_cells, drawn_rates, of_sum
from dpalgos.measured import Metrics
from dpalgos.metrics import rates_of_group
from dpalgos.rows import Floats

SHOWN_FROM = 4.0
"""Standard deviations of its noise that the number of rows of a rate must exceed for the rate to be printed."""
FEW_ROWS = "the noisy number of its rows is less than 4 standard deviations of the noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEstimates:
    """Least squares estimates of the counts of groups and of all rows, from noisy counts of both.

    Parameters
    ----------
    groups : int
        G.
    deviation : float
        s, of the noise of each count of a group.
    whole : float or None
        τ, of the noise of each count of all rows; None where these have not been counted.
    """

    groups: int
    deviation: float
    whole: float | None = None

    @classmethod
    def of_release(cls, algorithm: CountedByGroup, deviation: float, whole: float | None = None) -> Self:
        """Return the estimates of a release.

        Parameters
        ----------
        algorithm : CountedByGroup
        deviation : float
            Of the noise of each number that it releases.
        whole : float, optional
            Of the noise of each count of all rows that was released before; it is taken where this release has none of
            its own.
        """
        own = deviation / algorithm.whole if algorithm.whole else whole
        return cls(groups=algorithm.groups, deviation=deviation / algorithm.each, whole=own)

    @property
    def gain(self) -> float:
        """β; 0 where all rows have not been counted."""
        if self.whole is None:
            return 0.0
        return self.deviation**2 / (self.whole**2 + self.groups * self.deviation**2)

    @property
    def deviations(self) -> tuple[float, float]:
        """The standard deviations of the estimates of a group and of all rows."""
        of_group = math.sqrt(1.0 - self.gain) * self.deviation
        if self.whole is None:
            return of_group, math.sqrt(self.groups) * self.deviation
        return of_group, math.sqrt(self.groups * self.gain) * self.whole

    @property
    def correlation(self) -> float:
        """Of the noise of two groups' estimates of one cell: 0, or negative."""
        return -self.gain / (1.0 - self.gain)

    def counts(self, groups: Floats, whole: Floats | None = None) -> tuple[Floats, Floats]:
        """Return the estimates of the groups' counts (G, …) and of all rows' (…), from the noisy ones."""
        together = groups.sum(axis=0)
        if whole is None:
            return groups, together
        residual = whole - together
        return groups + self.gain * residual, together + self.groups * self.gain * residual

    def noise(self, of_group: Noise, of_whole: Noise | None = None) -> tuple[Noise, Noise]:
        """Return the noise of the estimates of a group and of all rows, from that of the counts that were released.

        The noise of the other groups and of all rows enters that of one group with small weights. Their sum is drawn as
        a Gaussian of its variance.
        """
        gain = self.gain
        small = gain * math.hypot(math.sqrt(self.groups - 1) * self.deviation, self.whole or 0.0)
        summed = of_sum(of_group, self.groups)

        def each(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
            drawn = (1.0 - gain) * of_group(random, shape)
            return drawn + small * random.standard_normal(shape) if small else drawn

        def together(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
            drawn = (1.0 - self.groups * gain) * summed(random, shape)
            return drawn if of_whole is None else drawn + self.groups * gain * of_whole(random, shape)

        return each, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one kind, A / (A + B) each.

    Attributes
    ----------
    hits, misses : array (r,)
        A and B, noisy.
    drawn : (array (D, r), array (D, r))
        Rates that the release leaves possible, for lower and for upper limits.
    noise : (float or array (r,), …)
        The variances of the noise of A and of B, and their covariance.
    sampled : bool
        Whether the rows are drawn from a population whose rates they are.
    """

    hits: Floats
    misses: Floats
    drawn: tuple[Floats, Floats]
    noise: tuple[Floats | float, Floats | float, Floats | float]
    sampled: bool = True

    @property
    def room(self) -> Floats:
        """By how much the number of rows exceeds what it must be."""
        above, below, shared = self.noise
        return self.hits + self.misses - SHOWN_FROM * np.sqrt(above + below + 2.0 * shared)

    @property
    def shown(self) -> NDArray[np.bool_]:
        """Mask (r,) of the rates with enough rows to be measured."""
        return self.room >= 0.0

    @property
    def of_noise(self) -> Floats:
        """The noise's share (r,) of the variance of T, at the noisy rates."""
        rows = np.maximum(self.hits + self.misses, 1.0)
        rate = np.clip(self.hits / rows, 0.0, 1.0)
        noise = _variance(rate, *self.noise)
        return np.asarray(noise / (noise + rows * rate * (1.0 - rate) * self.sampled))

    def limits(self, level: float = LEVELS[0]) -> Floats:
        """Return the ends (r, 2) of margins, each of which is missed with at most that probability if it is shown."""
        above, below, shared = self.noise
        lows = self._ends(self.drawn[0], level, self.hits, self.misses, self.noise)
        highs = self._ends(1.0 - self.drawn[1], level, self.misses, self.hits, (below, above, shared))
        return np.stack([lows, 1.0 - highs], axis=1)

    def _ends(
        self, drawn: Floats, level: float, hits: Floats, misses: Floats, noise: tuple[Floats | float, ...]
    ) -> Floats:
        draws = len(drawn)
        most = max(int(level * draws), 1)
        rate = np.sort(drawn, axis=0)[:most]
        above, below, shared = noise
        variance = _variance(rate, above, below, shared)
        if self.sampled:
            variance = variance + np.maximum(hits + misses, 0.0) * rate * (1.0 - rate)
        excess = (1.0 - rate) * hits - rate * misses
        slope = ((1.0 - rate) * above - rate * below + (1.0 - 2.0 * rate) * shared) / variance
        cut = (self.room / np.where(slope > 0, slope, 1.0) - excess) / np.sqrt(variance)
        allowed = level * np.where(slope > 0, scipy.special.ndtr(cut), 1.0)
        fits = np.arange(1, most + 1)[:, None] <= allowed * draws
        # The largest rate up to which all are refuted.
        count = np.where(fits.all(axis=0), most, fits.argmin(axis=0))
        return np.where(count > 0, rate[np.maximum(count - 1, 0), np.arange(rate.shape[1])], 0.0)


def _variance(rate: Floats, above: Floats | float, below: Floats | float, shared: Floats | float) -> Floats:
    """Return the variance that noise gives (1 − t) A − t B."""
    return np.asarray((1.0 - rate) ** 2 * above + rate**2 * below - 2.0 * rate * (1.0 - rate) * shared)


@dataclass(frozen=True, slots=True)
class RatesOfGroup:
    """The rates of one group with their margins, and of each which share of its variance is the noise's."""

    metrics: Metrics
    of_noise: dict[str, float]

    def __or__(self, other: RatesOfGroup) -> RatesOfGroup:
        """Return these rates and those of ``other``, of the same group."""
        return RatesOfGroup(self.metrics.merged(other.metrics), {**self.of_noise, **other.of_noise})

    def less(self, other: RatesOfGroup, correlation: float) -> Metrics:
        """Return the differences of this group's rates and another's, each with its 95 % margin, which holds by itself.

        A difference is measured where both rates are.

        Parameters
        ----------
        other : RatesOfGroup
        correlation : float
            Of the noise of the two groups' counts, at most 0 (:attr:`GroupEstimates.correlation`).
        """
        found = Metrics()
        for name, share in self.of_noise.items():
            if name not in other.metrics:
                continue
            unknown = next((one.metrics for one in (self, other) if not one.metrics.is_known(name)), None)
            if unknown is not None:
                found.refuse(name, unknown.reasons[name], (-1.0, 1.0))
                continue
            (low, high), (other_low, other_high) = (_limits_of(one.metrics, name) for one in (self, other))
            value, rate = self.metrics[name], other.metrics[name]
            crossed = -2.0 * correlation * math.sqrt(share * other.of_noise[name])
            below = _reach(value - low, other_high - rate, crossed, at_end=low <= 0.0 or other_high >= 1.0)
            above = _reach(high - value, rate - other_low, crossed, at_end=high >= 1.0 or other_low <= 0.0)
            least, most = value - rate - below, value - rate + above
            limits = {f"{name}_low": max(least, -1.0), f"{name}_high": min(most, 1.0)}
            found.update({name: value - rate, **limits})
        return found


def _reach(one: float, another: float, crossed: float, *, at_end: bool) -> float:
    """Return how far a difference's limit lies from it, by those of its two rates."""
    return one + another if at_end else math.sqrt(one**2 + another**2 + crossed * one * another)


def _limits_of(metrics: Metrics, name: str) -> tuple[float, float]:
    limits = metrics.limits(name)
    assert limits is not None, "a noisy rate has a margin"
    return limits


def metrics_of_noisy_group(counts: Floats, deviation: float, noise: Noise, classes: Sequence[str]) -> Metrics:
    """Return the rates of one group of the held-out rows, as :func:`rates_of_noisy_group` does."""
    return rates_of_noisy_group(counts, deviation, noise, classes).metrics


def rates_of_noisy_group(counts: Floats, deviation: float, noise: Noise, classes: Sequence[str]) -> RatesOfGroup:
    """Return the rates of one group of the held-out rows, each with its 95 % margin; how many rows it has is not known.

    Those of :func:`dpalgos.metrics.rates_of_group`. A rate is measured where the noisy number of the rows that it is of
    exceeds :data:`SHOWN_FROM` standard deviations of its noise, and its margin holds in 95 % of the runs in which it is
    shown. So a margin may reach from 0 to 1. The balanced accuracy's margin has the means of the
    ends of recalls' margins that hold all at once.
    ``rows`` is the noisy number of rows, which may be negative; its margin, ``rows_low`` and ``rows_high``, covers the
    noise alone, and the lower end is never below 0. ``predicted_<class>`` describes these rows, not the population.

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
    ) -> Rates:
        above, below = (cells * deviation**2 for cells in parts)
        return Rates(hits=of, misses=base - of, drawn=drawn, noise=(above, below, 0.0), sampled=sampled)

    accuracy = kind(np.array([trace]), np.array([total]), drawn_rates(random, right, whole - right), line)
    recall = kind(diagonal, of_true, drawn_rates(random, hits, missed), (1, size - 1))
    frequency = kind(of_true, np.full(size, total), drawn_rates(random, true, whole - true), line)
    ratio = np.maximum(predicted, 0.0) / np.maximum(
        np.maximum(predicted, 0.0) + np.maximum(whole - predicted, 0.0), 1.0
    )
    prediction = kind(of_predicted, np.full(size, total), (ratio, ratio), line, sampled=False)

    values = rates_of_group(counts, classes)
    found, shares = Metrics(), {}

    def add(name: str, limits: Floats, shown: bool, of_noise: float | None = None) -> None:
        if of_noise is not None:
            shares[name] = float(of_noise)
        low, high = map(float, limits)
        if not shown:
            found.refuse(name, FEW_ROWS, (0.0, 1.0))
        else:
            found.update({name: min(max(values[name], low), high), f"{name}_low": low, f"{name}_high": high})

    of_recalls, of_predictions = recall.limits(), prediction.limits()
    add("accuracy", accuracy.limits()[0], bool(accuracy.shown[0]), accuracy.of_noise[0])
    # Of recalls of 1 the mean of upper limits holds only where each does.
    together = recall.limits(LEVELS[0] / size).mean(axis=0)
    add("balanced_accuracy", together, bool(recall.shown.all()), recall.of_noise.max())
    # The largest is at least the largest of lower limits that hold all at once.
    largest = np.array([frequency.limits(LEVELS[0] / size)[:, 0].max(), frequency.limits()[:, 1].max()])
    add("majority_rate", largest, bool(accuracy.shown[0]))
    recalls = [name for name in values if name.startswith("recall_")]
    for place, name in enumerate(recalls):
        add(name, of_recalls[place], bool(recall.shown[place]), recall.of_noise[place])
        predicted_as = f"predicted{name.removeprefix('recall')}"
        add(predicted_as, of_predictions[place], bool(prediction.shown[place]), prediction.of_noise[place])
    margin = TWO_SIDED * size * deviation
    # A noisy number below 0 has a margin that begins at 0: it is never narrower than the noise.
    ends = {"rows_low": max(total - margin, 0.0), "rows_high": max(total, 0.0) + margin}
    return RatesOfGroup(found.merged({"rows": total, **ends}), shares)
