"""The range that a numeric label is clipped to and scaled by, and how far labels lie apart, by released counts alone.

A declared range that is far too wide costs accuracy: labels are scaled by it, and the noise of a model is a part of it.
So the range follows from the released running sums of the label. All is post-processing.

*By quantiles*, where noise leaves the tails visible: two deviations of a running sum are 5 % of the labels at most.
The range is the narrowest pair of quantiles, at ranks t and 1 − t, between which the label's variance by the released
masses loses at most 3 % when labels are clipped there: t from a public list, no less than one deviation of a count as a
share of the rows, and eight bins apart at least. The declared range where there is none, or nothing is known. Where the
middle nine tenths of the labels lie within a tenth of the declared range, that is far too wide, and what noise alone
puts into its tails would outweigh all labels: there a tail of less than one and a half deviations of its running sum,
or of up to three where these are 2 % of the labels at most, holds none. (On held-out rows, the range made 25 times as
wide, R² at ε = 1 is 0.44 for −6.8 on cpu_act and 0.45 on house_16H. Where ranges are not loose, labels of real tails
would be lost: 0.64 for 0.85 on cpu_act.)

*By a normal distribution*, where noise hides the tails. All running sums together say far more than each of them: with
the covariance V of their noise, the sums S of n labels of the distribution function F have the log-likelihood

    n F' V⁻¹ S − n² F' V⁻¹ F / 2    (and a constant).

F is that of a normal label, clipped to the declared range, on a grid of deviations s (from 2 bins to half of the range,
by factors of √2, equally likely beforehand) and of middles m (s apart). The weights of the grid are the posterior.

- Where labels with s below a thirtieth of the range, so that three deviations to each side are a fifth of it, have less
  than 0.98 of the weight, the counts do not say that the range is too wide, and it stays as it is declared.
- Otherwise the range is, of those with a middle among the quantiles of m and of at most 0.3 of the declared width, the
  one of the least mean of ln(1 + L). L is what R² loses at (m, s) by a range [a, b]: in units of s², the squares that
  clipping takes off a normal label of three times the deviation (real tails are longer than normal ones), and the noise
  of a model, (b − a)²/40² (0.025 of the range is its deviation on the sets below; both constants were chosen there).
- It is not cut where most of the weight is on labels at an end of the declared range (within s, or 2 bins), as claims
  that are mostly zero.
- A share of labels that lies apart is looked for: moving labels from the best normal distribution to bin j gains as
  much likelihood as an amount with the z-value z_j and the deviation d_j. Of the bin with the largest z_j counts what
  is above 4.5: (z_j − 4.5) d_j (distance/s)² is added to L, with the distance from [a, b] of the nearest bin whose
  z-value is less by 1 at most.

What this can tell follows from two deviations of a running sum as a share of the labels. On training rows of cpu_act,
house_16H and wind, with fresh noise, the range as declared and made 10 and 40 times as wide about the same middle:

- 0.2 (5,000 rows at ε = 0.5): all ranges that are 10 or 40 times as wide are cut;
- 0.5 (ε = 0.2): 0.9 or more of them;
- 0.9 (ε = 0.1): 0.1 to 0.4 of those 10 times, 0.35 to 0.7 of those 40 times as wide;
- 1.7 or more (ε = 0.05): none. The middle of the labels is then known to within several of their deviations: a
  constant there has R² from −13 to 0.3 on ranges that fit, where a model in the declared range has −0.05 to 0.54.

Ranges that fit were cut in 0.3 % of these draws. What the counts cannot tell apart is not told apart: of labels of
which 10 % lie far from all others, the 10 % are clipped where they hide in the noise.

*How far labels lie apart* (:class:`~dpalgos.models.Spread`), as long as it is known: B is the 95 % quantile less the
5 % quantile, c the centre, and the third number the mean of min(d/B, 1)², d a label's distance from c. Where the range
was found by the fitted distribution, so are these. Otherwise they follow from interpolated quantiles of counts whose
tails hold nothing that noise of their sums could be. (On wind and cpu_act at ε = 1 that is 0.5 to 0.9 of the exact one.
With what noise puts into tails it is 1.0 to 1.5 of it, and up to 12 times where the declared range is ten times as
wide.) Any B and c are valid (:class:`~dpalgos.evaluators.error_distribution.ErrorDistribution`): these decide how
useful the numbers are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import scipy

from dpalgos.histograms import ColumnCounts
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats

# Tails that may be clipped off a numeric label, and the share of its variance that may be lost.
_TAILS, LABEL_LOSS, _FEWEST_BINS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05), 0.03, 8
# A declared range is loose where the middle nine tenths of the labels lie within so much of it; its tails hold nothing
# below so many deviations: the more, the fewer labels they are.
LOOSE, _BY_NOISE, _FEW = 0.1, (1.5, 3.0), 0.02
# Two deviations of a running sum from which on noise hides the tails, as a share of the labels.
_HIDDEN = 0.05
# The grid: the least deviation in bins, and from one to the next.
_LEAST_DEVIATION, _NEXT = 2.0, math.sqrt(2.0)
# Narrower labels, as a share of the range, make it far too wide; so much of the weight says it.
_NARROW, _SURE = 1.0 / 30.0, 0.98
# Of the declared width at most; the deviation of a model's noise; by how much tails are longer than normal ones.
_WIDEST, _NOISE_OF_MODEL, _LONGER = 0.3, 0.025, 3.0
# A z-value that noise alone hardly has at any of a thousand bins, and the difference of two that are told apart; what
# has less weight than a part of the largest is left out.
_SEEN, _ALIKE, _LEAST_WEIGHT = 4.5, 1.0, 1e-3
_MIDDLES = np.linspace(0.02, 0.98, 15)
# Finer ones tell B and the centre to within an eighth of B.
_FEWEST_BINS_OF_SPREAD = 8
# Between the 5 % and the 95 % quantile of a normal distribution, in deviations.
_OF_NORMAL = 2.0 * NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class LabelRange:
    """The range of a numeric label by released counts.

    Parameters
    ----------
    ends : (float, float)
        Of the range that labels are clipped to, within the declared one, in the unit of the label.
    spread : array (3,)
        The numbers of a :class:`~dpalgos.models.Spread`; zeros where the counts do not tell.
    """

    ends: tuple[float, float]
    spread: Floats


def label_range_of_counts(counts: ColumnCounts) -> LabelRange:
    """Return where a numeric label lies, by the module's rule.

    Parameters
    ----------
    counts : ColumnCounts
        Of a numeric label, the last line.

    Raises
    ------
    ParameterError
        If the counts have no numeric label.
    """
    if counts.layout.label_range is None:
        raise ParameterError("these counts have class labels, which have no range; release counts with a numeric label")
    return _by_normal(counts) or LabelRange(_by_quantiles(counts), _spread_by_quantiles(counts))


def _edges(counts: ColumnCounts) -> Floats:
    """Return the edges of a numeric label's bins, (T + 1,), in the unit of the label."""
    low, high = counts.layout.label_range or (0.0, 1.0)
    return np.asarray(low + np.arange(counts.bins + 1) * ((high - low) / counts.bins), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Posterior:
    """Weights of normal distributions of a label, and of the grid only what has weight; numbers are in bins.

    Parameters
    ----------
    middles, deviations, weights : array (g,)
    best : array (T,)
        The distribution function of the likeliest.
    precision : array (T, T)
    """

    middles: Floats
    deviations: Floats
    weights: Floats
    best: Floats
    precision: Floats

    def quantiles(self, ranks: Floats) -> Floats:
        """Return quantiles of the middle."""
        order = np.argsort(self.middles, kind="stable")
        return np.interp(ranks, np.cumsum(self.weights[order]), self.middles[order])


def _posterior(counts: ColumnCounts) -> _Posterior | None:
    """Return how likely each normal distribution of the label is; None where the counts do not say it is narrow."""
    bins, rows = counts.bins, max(counts.rows, 1)
    levels = np.arange(max(math.floor(math.log(max(bins / 2.0 / _LEAST_DEVIATION, 0.5), _NEXT) + 1e-9) + 1, 0))
    each = [(one, np.arange(one / 2.0, bins, one)) for one in _LEAST_DEVIATION * _NEXT**levels]
    if not each or each[0][0] > _NARROW * bins:
        return None
    middles = np.concatenate([places for _, places in each])
    deviations = np.concatenate([np.full(len(places), one) for one, places in each])
    beforehand = np.concatenate([np.full(len(places), -math.log(len(places))) for _, places in each])
    below = scipy.special.ndtr((np.arange(1, bins + 1) - middles[:, None]) / deviations[:, None])
    below[:, -1] = 1.0
    precision = np.asarray(np.linalg.inv(counts.covariance), dtype=np.float64)
    weighed = below @ precision
    likelihood = rows * (weighed @ counts.sums[-1]) - rows**2 / 2.0 * np.einsum("ij,ij->i", weighed, below) + beforehand
    weights = np.exp(likelihood - likelihood.max())
    weights /= weights.sum()
    # All is finite, and every comparison with what is not is false.
    if not weights[deviations < _NARROW * bins].sum() >= _SURE:
        return None
    at_an_end = np.minimum(middles, bins - middles) < np.maximum(deviations, _LEAST_DEVIATION)
    if weights[at_an_end].sum() > 0.5:
        return None
    kept = weights > _LEAST_WEIGHT * weights.max()
    likely = np.asarray(below[int(weights.argmax())], dtype=np.float64)
    return _Posterior(middles[kept], deviations[kept], weights[kept] / weights[kept].sum(), likely, precision)


def _by_normal(counts: ColumnCounts) -> LabelRange | None:
    """Return where labels lie by the fitted normal distribution; None where tails are seen, or the range may fit."""
    bins, rows = counts.bins, max(counts.rows, 1)
    if 2.0 * math.sqrt(float(np.diagonal(counts.covariance).max())) <= _HIDDEN * rows:
        return None
    known = _posterior(counts)
    if known is None:
        return None
    halves = _FEWEST_BINS / 2.0 * _NEXT ** np.arange(64.0)
    halves = halves[2.0 * halves <= _WIDEST * bins]
    middles = np.unique(np.round(known.quantiles(_MIDDLES)))
    first = np.maximum(np.floor(middles[:, None] - halves), 0.0).ravel()
    last = np.minimum(np.ceil(middles[:, None] + halves), bins).ravel()
    # The declared range comes last.
    first, last = np.append(first, 0.0), np.append(last, bins)
    place, share = _apart(counts, known)
    left_out = share * np.maximum(np.maximum(first - place, place + 1 - last), 0.0) ** 2
    m, s = known.middles, known.deviations
    longer = _LONGER * s
    clipped = _beyond((last[:, None] - m) / longer) + _beyond((m - first[:, None]) / longer)
    noise = _NOISE_OF_MODEL * (last - first)
    lost = _LONGER**2 * clipped + ((noise**2 + left_out)[:, None]) / s**2
    best = int((np.log1p(lost) @ known.weights).argmin())
    if best == len(first) - 1:
        return None
    edges = _edges(counts)
    width = float(edges[1] - edges[0])
    # Rounded, so that the last bits of a matrix product change nothing that is stored.
    centre = float(edges[0]) + width * round(float(known.quantiles(np.array([0.5]))[0]), 2)
    spread = width * round(_OF_NORMAL * float(np.exp(known.weights @ np.log(s))), 2)
    ends = float(edges[int(first[best])]), float(edges[int(last[best])])
    return LabelRange(ends, np.array([centre, spread, _OF_NORMAL**-2]))


def _beyond(ends: Floats) -> Floats:
    """Return the mean square by which a standard normal number is beyond each end."""
    density = np.exp(-np.square(ends) / 2.0) / math.sqrt(2.0 * math.pi)
    return np.asarray((1.0 + ends**2) * scipy.special.ndtr(-ends) - ends * density)


def _apart(counts: ColumnCounts, known: _Posterior) -> tuple[int, float]:
    """Return the nearest bin where labels that the best distribution leaves out may lie, and the least share of them.

    The share is 0 where these may be noise.
    """
    rows = max(counts.rows, 1)
    precision, best = known.precision, known.best

    def from_here(sums: Floats) -> Floats:
        return np.asarray(np.cumsum(sums[::-1], axis=0)[::-1])

    # Moved to bin j are labels whose running sums are 1 from j on, less those of the best distribution.
    rest = precision @ (counts.sums[-1] - rows * best)
    gained = from_here(rest) - best @ rest
    of_best = precision @ best
    of_steps = np.diagonal(from_here(from_here(precision).T))
    curvature = np.maximum(of_steps - 2.0 * from_here(of_best) + best @ of_best, 1e-12)
    # The amount is gained/curvature, and its deviation the root of 1/curvature.
    z_values = gained / np.sqrt(curvature)
    first = int(z_values.argmax())
    amount = gained[first] / curvature[first] - _SEEN / math.sqrt(curvature[first])
    # Far away, bins are hardly told from one another: of those that are about as likely the nearest.
    likely = np.flatnonzero(z_values >= z_values[first] - _ALIKE)
    middle = float(known.middles[known.weights.argmax()])
    return int(likely[np.abs(likely - middle).argmin()]), float(max(amount, 0.0)) / rows


def _by_quantiles(counts: ColumnCounts) -> tuple[float, float]:
    """Return the narrowest pair of quantiles that loses little of the label's variance."""
    edges, below, (first_held, last_held) = _label_shares(counts)
    width = float(edges[1] - edges[0])
    middles, masses = edges[:-1] + width / 2.0, np.diff(below)
    variance = float(masses @ (middles - masses @ middles) ** 2)
    least = counts.deviation / max(counts.rows, 1)
    best = float(edges[first_held]), float(edges[last_held + 1])
    for tail in (one for one in _TAILS if one >= least):
        first, last = _between(below, tail)
        ends = float(edges[first]), float(edges[last + 1])
        lost = float(masses @ (middles - np.clip(middles, *ends)) ** 2)
        if lost <= LABEL_LOSS * variance and last + 1 - first > _FEWEST_BINS:
            best = ends
    return best if best[1] - best[0] > _FEWEST_BINS * width else (float(edges[0]), float(edges[-1]))


def _label_shares(counts: ColumnCounts, loose: float = LOOSE) -> tuple[Floats, Floats, tuple[int, int]]:
    """Return the edges of a numeric label's bins, shares of labels below each, and the first and last bin that is held.

    Where the declared range is far too wide, without what noise alone puts into its tails.
    """
    edges, below, bins = _edges(counts), counts.shares_below()[-1], counts.bins
    first, last = _between(below, 0.05)
    held = 0, bins - 1
    if last + 1 - first < loose * bins:
        below = _without_noise(below, np.sqrt(np.diagonal(counts.covariance)) / max(counts.rows, 1))
        held = _between(below, 0.0)
    return edges, below, held


def _spread_by_quantiles(counts: ColumnCounts) -> Floats:
    """Return the numbers of a :class:`~dpalgos.models.Spread`, zeros where B is less than eight bins.

    The centre is the middle of the bin from which Σ min(|label − c|, B)² is least.
    """
    # For any range: tails that noise alone makes would put B at its ends.
    edges, below, _ = _label_shares(counts, 2.0)
    low, high = (float(np.interp(rank, below, edges)) for rank in (0.05, 0.95))
    spread, step = high - low, float(edges[1] - edges[0])
    if spread < _FEWEST_BINS_OF_SPREAD * step:
        return np.zeros(3)
    middles, masses = edges[:-1] + step / 2.0, np.diff(below)
    losses = np.minimum(np.square(middles[:, None] - middles[None, :]), spread**2) @ masses
    best = int(losses.argmin())
    return np.array([middles[best], spread, losses[best] / spread**2])


def _between(below: Floats, tail: float) -> tuple[int, int]:
    """Return the first and the last bin between two ranks, of shares below each edge."""
    first = int(np.searchsorted(below[1:], tail, side="right" if tail == 0.0 else "left"))
    last = int(np.searchsorted(below[1:], 1.0 - tail))
    return min(first, len(below) - 2), min(last, len(below) - 2)


def _without_noise(below: Floats, deviations: Floats) -> Floats:
    """Return shares below each edge whose tails hold nothing that noise of their sums could be."""
    # Three deviations where these are few labels: the largest of a thousand sums' noise is about that.
    times = float(np.clip(_FEW / max(deviations[-1], 1e-12), *_BY_NOISE))
    noise = times * np.concatenate([[0.0], deviations])
    lower, upper = np.maximum(below - noise, 0.0), np.minimum(below + noise, 1.0)
    held = np.where(below <= 0.5, lower, upper)
    held[-1] = 1.0
    return np.asarray(np.maximum.accumulate(held))
