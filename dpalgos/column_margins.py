"""Bars, quartiles, means, shares and counts from noisy histograms, each with a 95 % margin, or nothing.

All is post-processing: margins, and whether something was measured, follow from the noise's public deviation σ and from
noisy counts alone. They hold for the value of these data (they exclude the sampling of rows), each individually and not
all at once. All deviations are those that are stated and half a row in 1.96 more, for rounding.

*Counts*: ± 1.96 σ. *Shares and means* are ratios of two sums with Gaussian noise, p and q: those r in [0, 1] are not
refuted for which |p − r q| is at most 1.96 times its deviation, which lie between the roots of a quadratic (Fieller
1954). Where q itself is within its noise there are no such ends, and nothing is said.

*At an end of what is possible* a noisy number is first moved there, and its margin begins from it. A noisy count of −40
with ± 30 is 0 with a margin of 0 to 30: cut at both ends it would be 0 to 0, which is narrower than the noise. Margins
made so hold those that are only cut, so that they hold at least as often.

*Some declared values together*, those whose noisy counts are small: which these are the noise decides, so that
± 1.96 σ √m of m of them would hold less often. Of M declared values with noise σ z the noise of any subset, however it
was chosen, lies between −σ Σ z⁻ and σ Σ z⁺, so ± b σ holds, b the 97.5 % point of Σ z⁺ over all M (:func:`_of_any`):
1.96 of one value, 0.40 M + 1.14 √M of many.

*Means* use cells clipped to their range: they come from the cells' sums or, without sums, from the middles of bins,
half a bin's width more on both sides. On another scale than that of the bins (the arithmetic mean of a column that is
counted on a logarithmic scale) they are between the means of the bins' lower and of their upper edges.

*Quartiles.* Let S_i be the running sums of a column (i = 1 … T), N = S_T and D_i = S_i − p N. The value of rank ⌈p N⌉
lies in bin b, where D_{b−1} < 0 ≤ D_b. With deviations s_i of D_i, all bins from the first with D_i + 1.96 s_i ≥ 0 to
the last with D_{i−1} − 1.96 s_{i−1} < 0 are not refuted. *Proof that they hold b with 95 %*: that the first one lies
beyond b needs D_b + 1.96 s_b < 0, noise below −1.96 s_b since the exact D_b is not negative, and that the last lies
before b needs D_{b−1} − 1.96 s_{b−1} ≥ 0, noise above 1.96 s_{b−1}; each has a probability of at most 2.5 %. The
margin goes from the lower edge of the first to the upper edge of the last, bin width included; in an end bin, where
cells are clipped, it is open to that side.

*Nothing is said*, "cannot be measured at this budget", where a margin is wider than half of what the number could be:
of all rows, of the range, of [0, 1]; or where N is within 3 deviations of its noise.

*Two versions*: a difference of what has independent noise has the margin 1.96 √(σ₁² + σ₂²), and both bin widths. Each
holds by itself: of m differences of equal shares about m/20 leave theirs by chance (:func:`by_chance`).

References
----------
Fieller, "Some problems in interval estimation", JRSS B 16 (1954).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.histograms import ColumnCounts
from dpalgos.margins import TWO_SIDED
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats

WIDEST = 0.5
"""Of what a number could be: beyond that its margin says nothing."""
_PRESENT, _MANY = 3.0, 10.0
_OUTSIDE = 0.05
QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Margins:
    """Numbers and their 95 % margins.

    Parameters
    ----------
    values, low, high : array
        Of one shape; −∞ and ∞ where a margin is open to that side.
    measured : array of bool
        Whether a value is reported; elsewhere all values are equally good.
    width : float
        What of the margins, on each side, is the width of bins and not noise.
    """

    values: Floats
    low: Floats
    high: Floats
    measured: NDArray[np.bool_]
    width: float = 0.0

    def holds(self, exact: Floats) -> NDArray[np.bool_]:
        """Return whether margins hold given values, or say nothing."""
        return np.asarray(((self.low <= exact) & (exact <= self.high)) | ~self.measured)


def _wider(counts: ColumnCounts) -> float:
    """Return by what deviations are multiplied, so that 1.96 of them are half a row more, for rounding."""
    return 1.0 + 0.5 / (TWO_SIDED * max(counts.deviation, 1e-9))


def of_counts(values: Floats, deviation: Floats | float, rows: int) -> Margins:
    """Return counts between 0 and all rows, by the deviations of their noise."""
    half = TWO_SIDED * np.broadcast_to(np.asarray(deviation, dtype=np.float64), values.shape)
    values = np.clip(values, 0.0, rows)
    low, high = np.clip(values - half, 0.0, rows), np.clip(values + half, 0.0, rows)
    return Margins(values, low, high, 2.0 * half <= WIDEST * rows)


def bars(counts: ColumnCounts) -> Margins:
    """Return the counts of all bins, (lines, T)."""
    return of_counts(counts.counts, _wider(counts) * counts.count_deviations(), counts.rows)


def bars_up_to(counts: ColumnCounts, line: int, last: Sequence[int]) -> Margins:
    """Return the counts of neighbouring bars of a line, each of bins up to a last one, (bars,).

    A bar is a difference of two running sums, whose noise has the variance C_aa + C_bb - 2 C_ab.

    Parameters
    ----------
    counts : ColumnCounts
    line : int
    last : sequence of int
        The last bin of each bar, rising.
    """
    looks = np.zeros((len(last), counts.bins))
    looks[np.arange(len(last)), list(last)] = 1.0
    looks[1:] -= looks[:-1].copy()
    deviations = np.sqrt(np.einsum("bi,ij,bj->b", looks, counts.covariance, looks))
    return of_counts(looks @ counts.sums[line], _wider(counts) * deviations, counts.rows)


def most_bars(counts: ColumnCounts, most: int = 32) -> int:
    """Return how many bars are worth drawing: a power of two, or 0 where not even two are.

    The most for which the margin of a bar is no more than the mean bar would be; from σ and the number of rows alone.
    """
    drawn = min(most, counts.bins)
    while drawn >= 2:
        deviation = float(counts.coarser(drawn).count_deviations().max())
        if TWO_SIDED * _wider(counts) * deviation <= counts.rows / drawn:
            return drawn
        drawn //= 2
    return 0


def category_counts(counts: ColumnCounts) -> list[Margins]:
    """Return of each category the counts of its values, and in the last place of missing cells, (values + 1,)."""
    return [of_counts(one, _wider(counts) * counts.deviation, counts.rows) for one in counts.categories]


@cache
def _of_any(values: int) -> float:
    """Return the 97.5 % point of a sum of so many independent max(z, 0), z standard normal; rounded up."""
    step = 0.01
    # Each is rounded up to a whole number of steps: the sum is never made smaller.
    edges = np.arange(0, 9.0 + step, step)
    mass = np.diff(scipy.stats.norm.cdf(edges), prepend=0.0)
    size = 1 << int(np.ceil(np.log2((0.45 * values + 8.0 * np.sqrt(values) + 10.0) / step)))
    law = np.fft.irfft(np.fft.rfft(mass, size) ** values, size)
    return float(step * np.searchsorted(np.cumsum(law), 0.975))


def value_counts(counts: ColumnCounts, line: int, places: Sequence[int]) -> Margins:
    """Return the counts of the bins of a line in which the values of a column with few of them lie, (values,)."""
    chosen = list(places)
    deviations = _wider(counts) * counts.count_deviations()[chosen]
    return of_counts(counts.counts[line, chosen], deviations, counts.rows)


def value_share(counts: ColumnCounts, line: int, place: int) -> Margins:
    """Return the share of a line's cells that lie in one bin, (1,)."""
    present, of_present = _totals(counts)
    covariance = counts.covariance * _wider(counts) ** 2
    cell = np.zeros(counts.bins)
    cell[place] = 1.0
    if place:
        cell[place - 1] = -1.0
    seen = covariance @ cell
    part = np.array([cell @ counts.sums[line]])
    return ratios(
        part, present[line : line + 1], np.array([cell @ seen]), np.array([of_present]), seen[-1:], (0.0, 1.0)
    )


def rare_together(counts: ColumnCounts) -> list[Margins]:
    """Return of each category how many rows have one of the values that are shown as "other", (1,) each."""
    found = []
    for rare, one in zip(counts.rare(), counts.categories, strict=True):
        deviation = _wider(counts) * counts.deviation * _of_any(len(rare)) / TWO_SIDED
        found.append(of_counts(np.array([float(rare @ one[:-1])]), deviation, counts.rows))
    return found


def ratios(
    part: Floats, whole: Floats, of_part: Floats, of_whole: Floats, of_both: Floats, ends: tuple[float, float]
) -> Margins:
    """Return ratios of sums with Gaussian noise, between the ends that they could have.

    Parameters
    ----------
    part, whole : array
    of_part, of_whole, of_both : array
        Variances of their noise, and covariance.
    ends : (float, float)
        Between which the exact ratio lies.
    """
    part, whole, of_part, of_whole, of_both = np.broadcast_arrays(part, whole, of_part, of_whole, of_both)
    squared = TWO_SIDED**2
    leading = whole**2 - squared * of_whole
    known = (leading > 0) & (whole > _PRESENT * np.sqrt(of_whole))
    safe = np.where(known, leading, 1.0)
    middle = (part * whole - squared * of_both) / safe
    reach = np.sqrt(np.maximum(middle**2 - (part**2 - squared * of_part) / safe, 0.0))
    middle = np.clip(middle, *ends)
    low, high = np.clip(middle - reach, *ends), np.clip(middle + reach, *ends)
    low, high = np.where(known, low, ends[0]), np.where(known, high, ends[1])
    values = np.clip(np.where(known, part / np.where(known, whole, 1.0), np.mean(ends)), low, high)
    return Margins(values, low, high, known & (high - low <= WIDEST * (ends[1] - ends[0])))


def _totals(counts: ColumnCounts) -> tuple[Floats, float]:
    """Return of each line the rows whose cell is there, and the variance of the noise."""
    return counts.totals, float(counts.covariance[-1, -1]) * _wider(counts) ** 2


def missing_shares(counts: ColumnCounts) -> Margins:
    """Return the share of rows in which a number is missing, a numeric label last, (lines,); 0 where none can be."""
    present, of_present = _totals(counts)
    can = np.zeros(len(present), dtype=np.bool_)
    can[list(counts.layout.lacking)] = True
    noise = np.where(can, (_wider(counts) * counts.deviation) ** 2, 0.0)
    found = ratios(counts.missing, counts.missing + present, noise, noise + of_present, noise, (0.0, 1.0))
    zero = np.zeros(len(present))
    return Margins(
        np.where(can, found.values, zero),
        np.where(can, found.low, zero),
        np.where(can, found.high, zero),
        np.where(can, found.measured, True),
    )


def shares_of_counts(counts: Floats, deviation: float) -> Margins:
    """Return each count's share of their sum: for classes, or for a category's values.

    Parameters
    ----------
    counts : array (K,)
        With independent noise.
    deviation : float
    """
    one = np.full(len(counts), deviation**2)
    return ratios(counts, np.full(len(counts), counts.sum()), one, len(counts) * one, one, (0.0, 1.0))


def class_shares(counts: ColumnCounts) -> Margins:
    """Return the share of each class, (K,)."""
    return shares_of_counts(counts.classes, _wider(counts) * counts.deviation)


def category_shares(counts: ColumnCounts) -> list[Margins]:
    """Return of each category the share of its values, and in the last place of none of them, (values + 1,)."""
    return [shares_of_counts(one, _wider(counts) * counts.deviation) for one in counts.categories]


def means(counts: ColumnCounts) -> Margins:
    """Return the mean of each number's cells, clipped to their range and in shares of it, (lines,)."""
    present, of_present = _totals(counts)
    nothing = np.zeros(len(present))
    if counts.layout.centred:
        noise = np.full(len(present), counts.centred_deviation**2)
        found = ratios(counts.centred, present, noise, nothing + of_present, nothing, (-0.5, 0.5))
        moved, width = 0.5, counts.cut
    else:
        bins = counts.bins
        # Of counts times the middles of their bins, in terms of running sums.
        look = np.full(bins, -1.0 / bins)
        look[-1] = (bins - 0.5) / bins
        seen = counts.covariance @ look * _wider(counts) ** 2
        found = ratios(
            counts.sums @ look, present, nothing + look @ seen, nothing + of_present, nothing + seen[-1], (0.0, 1.0)
        )
        moved, width = 0.0, 0.5 / bins
    low, high = np.clip(found.low + moved - width, 0.0, 1.0), np.clip(found.high + moved + width, 0.0, 1.0)
    return Margins(found.values + moved, low, high, found.measured & (high - low <= WIDEST), width)


def means_on(counts: ColumnCounts, line: int, edges: Floats) -> Margins:
    """Return the mean of a line's cells on another scale, of which the bins' edges are known, (1,).

    Of log-scaled cells in their own unit, say. A cell lies somewhere in its bin: the mean lies between those with all
    cells at the lower and at the upper edges of their bins, and the margin goes from the lower end of the one to the
    upper end of the other, noise and bin width together. It holds at least as often as each of them does on its side.

    Parameters
    ----------
    counts : ColumnCounts
    line : int
    edges : array (T + 1,)
        Rising, in the unit of the result.
    """
    present, of_present = _totals(counts)
    covariance = counts.covariance * _wider(counts) ** 2
    ends = (float(edges[0]), float(edges[-1]))

    def mean_at(places: Floats) -> Margins:
        # Of counts times places, in terms of running sums.
        look = places - np.append(places[1:], 0.0)
        seen = covariance @ look
        part, of_both = np.array([look @ counts.sums[line]]), seen[-1:]
        return ratios(part, present[line : line + 1], np.array([look @ seen]), np.array([of_present]), of_both, ends)

    lower, middle, upper = (mean_at(at) for at in (edges[:-1], (edges[:-1] + edges[1:]) / 2.0, edges[1:]))
    low, high = lower.low, upper.high
    known = lower.measured & upper.measured & (high - low <= WIDEST * (ends[1] - ends[0]))
    return Margins(np.clip(middle.values, low, high), low, high, known)


def quartiles(counts: ColumnCounts, ranks: Sequence[float] = QUARTILES) -> Margins:
    """Return quantiles of each number, in shares of its range, (lines, ranks); open to an end bin's side.

    Parameters
    ----------
    counts : ColumnCounts
    ranks : sequence of float
        Above 0 and below 1.
    """
    if any(not 0.0 < rank < 1.0 for rank in ranks):
        raise ParameterError(f"ranks are {list(ranks)}; each must lie above 0 and below 1")
    bins, shape = counts.bins, (len(counts.sums), len(ranks))
    values, low, high = np.empty(shape), np.empty(shape), np.empty(shape)
    present, of_present = _totals(counts)
    covariance = counts.covariance * _wider(counts) ** 2
    share = counts.shares_below()
    for place, rank in enumerate(ranks):
        excess = counts.sums - rank * present[:, None]
        variance = np.diagonal(covariance) - 2.0 * rank * covariance[:, -1] + rank**2 * of_present
        reach = TWO_SIDED * np.sqrt(np.maximum(variance, 0.0))
        # The last sum is N itself: the value lies in one of the bins. Before the first there is nothing.
        can_begin = np.append(excess[:, :-1] + reach[:-1] >= 0, np.ones((shape[0], 1), dtype=np.bool_), axis=1)
        can_end = np.append(np.ones((shape[0], 1), dtype=np.bool_), excess[:, :-1] - reach[:-1] < 0, axis=1)
        first = can_begin.argmax(axis=1)
        last = np.maximum(bins - 1 - can_end[:, ::-1].argmax(axis=1), first)
        low[:, place], high[:, place] = first / bins, (last + 1) / bins
        for line, below in enumerate(share):
            # Where the share rises through the rank, cells being spread evenly in a bin.
            bin_ = min(int(np.searchsorted(below[1:], rank)), bins - 1)
            risen = (rank - below[bin_]) / max(float(below[bin_ + 1] - below[bin_]), 1e-12)
            values[line, place] = (bin_ + min(max(risen, 0.0), 1.0)) / bins
    values = np.clip(values, low, high)
    known = (present > _PRESENT * np.sqrt(of_present))[:, None] & (high - low <= WIDEST)
    return Margins(values, np.where(low <= 0, -np.inf, low), np.where(high >= 1, np.inf, high), known, 1.0 / bins)


def difference(one: Margins, other: Margins) -> Margins:
    """Return ``one`` less ``other``, of two versions with independent noise: means, quartiles, shares.

    The parts of the margins that are noise add up by their squares, the widths of bins as they are.
    """
    values = one.values - other.values

    def reach(down: Floats, up: Floats) -> Floats:
        noise = np.hypot(np.maximum(down - one.width, 0.0), np.maximum(up - other.width, 0.0))
        return np.where(np.isfinite(noise), noise + one.width + other.width, np.inf)

    low = values - reach(one.values - one.low, other.high - other.values)
    high = values + reach(one.high - one.values, other.values - other.low)
    return Margins(values, low, high, one.measured & other.measured, one.width + other.width)


def share_differences(one: ColumnCounts, other: ColumnCounts) -> Margins:
    """Return the share of cells in each bin in ``one`` less that in ``other``, at their common bins, (lines, T).

    Of those cells that are there. The edges are the same, so that no width of a bin is in the margins, and shares are
    not cut at 0: their noise is Gaussian to first order, where N is ten deviations of its noise or more. Below that
    nothing is said.

    Raises
    ------
    ParameterError
        If they count other numbers.
    """
    if len(one.sums) != len(other.sums):
        raise ParameterError(
            f"one version has {len(one.sums)} counts and the other {len(other.sums)}; compare versions with the same "
            "columns and bins"
        )
    bins = min(one.bins, other.bins)
    (mine, of_mine, known), (its, of_its, too) = (_bin_shares(each.coarser(bins)) for each in (one, other))
    half = TWO_SIDED * np.sqrt(of_mine + of_its)
    values = mine - its
    return Margins(values, values - half, values + half, known & too & (half <= WIDEST))


def _bin_shares(counts: ColumnCounts) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return the shares of cells in bins, the variances of their noise, and whether there are cells enough."""
    present, of_present = _totals(counts)
    covariance = counts.covariance * _wider(counts) ** 2
    cells = np.eye(counts.bins) - np.eye(counts.bins, k=-1)
    alone, with_total = np.einsum("ti,ij,tj->t", cells, covariance, cells), cells @ covariance[:, -1]
    known = (present > _MANY * np.sqrt(of_present))[:, None]
    whole = np.where(known, present[:, None], 1.0)
    found = np.where(known, counts.counts / whole, 0.0)
    return found, (alone - 2.0 * found * with_total + found**2 * of_present) / whole**2, known


def by_chance(differences: int) -> float:
    """Return how many of so many differences leave their margins by chance where nothing differs, on average."""
    return _OUTSIDE * differences
