"""Metrics of a numeric label from a release of errors: error quantiles, MAE, RMSE and R², with 95 % margins.

All is post-processing of :class:`~dpalgos.evaluators.error_distribution.ErrorDistribution`. A margin holds the number
of the population that the held-out rows are drawn from, so it contains noise and sampling; whether a number is measured
follows from the noise's public deviations and from noisy numbers alone. n̂ is the release's own noisy total, never the
public number of held-out rows: null records, and what is cut of people, are among those. z = 1.96.

*Means of numbers between 0 and 1* (the squared error h up to B, the absolute error a up to B). With the noisy sum X̂,
not refuted are the means θ for which X̂ − θ n̂ is at most z times its deviation (Fieller 1954):

    (X̂ − θ n̂)² ≤ z² (s_X² + θ² s_n² + n̂ (κ θ − θ²)).

s_X and s_n are the noise's. The last term is the variance of drawing n̂ rows, at θ and not at the estimate, so that the
margin is longer upwards, as the law of a sum of few large errors is. κ = E x²/E x is how large errors are where they
are there at all: estimated by released second moments, one row with the largest error added (a row that was not drawn,
but could have been), and half a deviation of its noise; at most 1.

*R²_B* = 1 − N/D: N the sum of h and D that of g less what another centre takes off it, both over the same rows, so that
the total cancels out. Not refuted are the ratios ρ with

    (N̂ − ρ D̂)² ≤ z² (s_N² + ρ² s_D² + n̂ Var(h − ρ g)),

the last term from the released second moments of h, g and h g at the estimated ρ, half a deviation of its noise larger,
and no more than what numbers in [0, 1] with these means can have; upwards it grows by κ D̂ times what ρ is more.

What the best constant c* takes off D: within |v| < 1 the loss of c + t is the one of c less 2 t Σ v, plus t² for each
row, so the least is Σ g − (Σ v)²/n. This is small where c is the minimum by released counts, and exact where B is the
width of the range. The square of a noisy sum of drawn rows is larger than that of its mean by the variance of both on
average, which is taken off.

*When R²_B is shown.* Released counts of the label that say beforehand that the mean of g is large enough decide alone:
their noise is not that of this release. Otherwise D̂ decides whether it is far enough above its noise, and a margin made
of the same D̂ fails among the numbers that are shown: if few are shown, they are those of which noise made D̂ large, and
of a constant prediction 0.83 of the margins held, and 0.45 where fewer were shown. So the noisy sums of g and of v are
*split*. With W drawn from N(0, 2 s²), X̂ + W decides, and the margin is made of X̂ − W/2. Their noises, of variances 3 s²
and 1.5 s², have the covariance s² − 2 s²/2 = 0: Gaussian ones are independent, and Laplace ones uncorrelated. W comes
from a public generator whose seed is the released sums, so that each computation finds the same.

*Quantiles of the error.* An edge x is not refuted as the quantile of rank p where the noisy number of rows below it
differs from p n̂ by at most z times the root of the noise's variance and of n̂ p (1 − p), which is the variance of
drawing rows at that quantile. The margin goes from the lower edge of the first bin that is not refuted to the upper
edge of the last one: it contains the width of bins (:mod:`dpalgos.column_margins` has the proof).

*Why the mean absolute error counts errors up to B.* One row with an error of the whole range R changes the mean by R/m
of m rows, and differential privacy must hide such a row, so every valid margin has at least that order. For unbounded
errors, no valid margin is independent of the declared range. Up to B it is, and B is named.

*Several margins hold each by itself.*

References
----------
Fieller, "Some problems in interval estimation", JRSS B 16 (1954); Wilson, "Probable inference, the law of succession,
and statistical inference", JASA 22 (1927).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from dpalgos.evaluators.error_distribution import ErrorDistribution
from dpalgos.evaluators.error_sums import SQUARES_WEIGHT
from dpalgos.guarantees import Setting
from dpalgos.margins import PUBLIC_SEED, TWO_SIDED
from dpalgos.measured import TOO_MUCH_NOISE, Metrics, Scale
from dpalgos.rows import Floats

RANKS = (0.05, 0.5, 0.95)
"""Of the quantiles of the error that are reported."""
# Deviations that hold 95 % of Laplace noise: ln(20)/√2. Sums of it and of the drawing of rows are held by fewer.
_OF_LAPLACE = 2.12
# Of a second moment's noise: by how much it is moved to the side that makes a margin wider.
_ASIDE = 0.5
# Rows with the largest number that were not drawn, but could have been.
_UNSEEN = 0.1
# The variance of what is added to a sum of g or v before it decides whether R² is shown, in those of its noise.
_ADDED = 2.0
_SPLIT = (2, 6)
# A mean of g above that means that c lies outside of the labels: another centre could be far better.
_OFF_CENTRE = 0.5


@dataclass(frozen=True)
class ErrorCounts:
    """Noisy counts of held-out rows by their signed error, label − prediction, and the law of their noise.

    Nothing is smoothed: every number is as it was released, with independent noise but for what ``covariance`` says of
    one line's running sums.

    Parameters
    ----------
    label_range : (float, float)
        Declared; labels and predictions are clipped to it.
    rows : int
        Held-out rows (or persons), null records among them; public.
    edges : array (T,)
        Inner edges of the bins in the unit of the label, falling, the last one 0.
    sums : array (2, T)
        Rows with an error e ≥ ``edges[j]`` (first line, labels at or above their predictions), and with
        −e ≥ ``edges[j]``, e < 0 (second line). So ``sums[0, -1] + sums[1, -1]`` is one more count of all rows.
    covariance : array (T, T)
        Of the noise of one line's running sums; the two lines' noises are independent.
    total : float
        Count of rows that are not null records, noisy, with independent noise.
    total_deviation : float
        Of the noise of ``total``.
    bound, centre : float
        B and c, in the unit of the label.
    share : float
        Mean of g by an earlier release; 0 where there is none.
    moments : array (7,)
        Sums over rows of h, a, g, h², g², h g and v, where a = min(|e|, B)/B, h = a², v = clip((label − c)/B, −1, 1), g
        = v²; the last one of v where |v| < 1 only.
    deviations : array (7,)
        Of the noise of each of these.
    """

    label_range: tuple[float, float]
    rows: int
    edges: Floats
    sums: Floats
    covariance: Floats
    total: float
    total_deviation: float
    bound: float
    centre: float
    share: float
    moments: Floats
    deviations: Floats

    @classmethod
    def of_release(cls, values: Floats, algorithm: ErrorDistribution, setting: Setting) -> ErrorCounts:
        """Return the counts of a release, the noise being that of all parties, the most.

        Parameters
        ----------
        values : array (2 T + 11,)
            Of the released :class:`~dpalgos.models.Statistic`.
        algorithm : ErrorDistribution
            As it was planned: B and c are the release's own.
        setting : Setting
            In which it was released.
        """
        low, high = algorithm.label_range
        entry = algorithm.deviation(setting) * setting.noise_factor
        of_sums = entry * algorithm.units(setting) / algorithm.weights(setting)
        lines = np.asarray(values[: 2 * algorithm.bins], dtype=np.float64).reshape(2, algorithm.bins)
        total, *moments, bound, centre, share = (float(one) for one in values[2 * algorithm.bins :])
        return cls(
            label_range=(low, high),
            rows=setting.rows,
            edges=(high - low) * algorithm.edges(),
            sums=lines,
            covariance=entry**2 * algorithm.sums().covariance(),
            total=total,
            total_deviation=float(of_sums[0]),
            bound=bound,
            centre=centre,
            share=share,
            moments=np.array(moments),
            deviations=of_sums[1:],
        )

    @property
    def deviations_of_sums(self) -> Floats:
        """Standard deviation of the noise of each running sum of a line, (T,)."""
        return np.asarray(np.sqrt(np.diagonal(self.covariance)))


def mean_limits(
    total: Floats, first: Floats, second: Floats, noise: Sequence[float], reach: float = TWO_SIDED
) -> tuple[Floats, Floats, Floats]:
    """Return the mean of numbers in [0, 1] and its 95 % margin, from noisy sums of them and of their squares.

    Parameters
    ----------
    total, first, second : array
        Noisy, of one shape: rows, sum of the numbers, sum of their squares.
    noise : (float, float, float)
        Deviations of the noise of these.
    reach : float
        Deviations that hold 95 % of the noise.

    Returns
    -------
    (array, array, array)
        Mean, lower, upper limit; 0 and 1 where every mean is possible.
    """
    of_total, of_first, of_second = noise
    rows = np.maximum(total, 1.0)
    kappa = _jumps(rows, first, second, of_first, of_second)
    z = reach**2
    squared = total**2 + z * (rows - of_total**2)
    linear = total * first + z * rows * kappa / 2.0
    constant = first**2 - z * of_first**2
    low, high = _between_roots(squared, linear, constant)
    low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
    nothing = total <= reach * of_total
    low, high = np.where(nothing, 0.0, low), np.where(nothing, 1.0, high)
    return np.clip(first / rows, low, high), low, high


def _jumps(rows: Floats, first: Floats, second: Floats, of_first: float, of_second: float) -> Floats:
    """Return κ = E x²/E x of numbers in [0, 1], to the side that makes margins wider; no less than their mean."""
    squares = np.maximum(second, 0.0) + _ASIDE * of_second + _UNSEEN
    largest = np.clip((first + TWO_SIDED * of_first) / rows, 0.0, 1.0)
    return np.asarray(np.clip(squares / (np.maximum(first, 0.0) + _UNSEEN), largest, 1.0))


def _between_roots(squared: Floats, linear: Floats, constant: Floats) -> tuple[Floats, Floats]:
    """Return where ``squared x² − 2 linear x + constant`` is at most 0; −∞ and ∞ where that is no interval."""
    bounded = squared > 0
    squared = np.where(bounded, squared, 1.0)
    root = np.sqrt(np.maximum(linear**2 - squared * constant, 0.0))
    return (
        np.where(bounded, (linear - root) / squared, -np.inf),
        np.where(bounded, (linear + root) / squared, np.inf),
    )


def determination_limits(
    total: Floats, moments: Floats, deviations: Floats, total_deviation: float, reach: float = TWO_SIDED
) -> tuple[Floats, Floats, Floats]:
    """Return R²_B and its 95 % margin from noisy sums, −∞ as the lower limit where R²_B cannot be measured.

    Parameters
    ----------
    total : array (…)
    moments : array (…, 7)
        See :class:`ErrorCounts`.
    deviations : array (7,)
    total_deviation : float
    reach : float
        Deviations that hold 95 % of the noise.
    """
    h, _, g, hh, gg, hg, v = np.moveaxis(moments, -1, 0)
    s_h, _, s_g, s_hh, s_gg, s_hg, s_v = deviations
    rows = np.maximum(total, 1.0)
    z = reach**2
    # The square of a noisy sum of drawn rows is larger than that of its mean by its variance.
    of_v = s_v**2 + np.maximum(g, 0.0)
    off = np.maximum(v**2 - of_v, 0.0) / rows
    of_off = (4.0 * v**2 * of_v + 2.0 * of_v**2) / rows**2
    below = np.maximum(g - off, 0.0)
    mean_h, mean_g, mean_v = (np.clip(one / rows, 0.0, 1.0) for one in (h, below, np.abs(v)))
    known = below > 0
    ratio = np.where(known, np.maximum(h, 0.0) / np.where(known, below, 1.0), 0.0)
    # The variance of drawing rows at the estimate, to the side that makes margins wider, but no more than numbers in
    # [0, 1], and in [0, (1 + |mean v|)²], can have with these means.
    of_rows = hh - 2.0 * ratio * hg + ratio**2 * gg - rows * (mean_h - ratio * np.clip(g / rows, 0.0, 1.0)) ** 2
    of_rows = of_rows + _ASIDE * np.sqrt(s_hh**2 + (2.0 * ratio * s_hg) ** 2 + (ratio**2 * s_gg) ** 2)
    most = mean_h * (1.0 - mean_h) + ratio**2 * mean_g * np.maximum((1.0 + mean_v) ** 2 - mean_g, 0.0)
    of_rows = np.clip(of_rows, 0.0, rows * most)
    # Larger errors make it larger: upwards it grows with ρ as κ ρ D̂ does.
    growth = np.where(known, _jumps(rows, h, hh, s_h, s_hh) * below, 0.0)
    squared = (g - off) ** 2 - z * (s_g**2 + of_off)
    linear, constant = h * (g - off), h**2 - z * (s_h**2 + of_rows)
    low, _ = _between_roots(squared, linear, constant)
    _, high = _between_roots(squared, linear + z * growth / 2.0, constant + z * growth * ratio)
    unknown = ~known | (squared <= 0)
    unknown |= g - reach * s_g > _OFF_CENTRE * (total + reach * total_deviation)
    lower = np.where(unknown, -np.inf, 1.0 - np.maximum(high, 0.0))
    upper = np.where(unknown, 1.0, 1.0 - np.maximum(low, 0.0))
    return np.clip(1.0 - ratio, lower, upper), lower, upper


def quantile_limits(
    total: Floats, sums: Floats, edges: Floats, noise: tuple[Floats, float], rank: float
) -> tuple[Floats, Floats]:
    """Return the ends of the 95 % margin of a quantile of the signed error, in the unit of the edges.

    −∞ or ∞ where the outermost bin is not refuted.

    Parameters
    ----------
    total : array (…)
    sums : array (…, 2, T)
    edges : array (T,)
        As those of :class:`ErrorCounts`.
    noise : (array (T,), float)
        Variances of the noise of one line's running sums, and the deviation of the total's.
    rank : float
        Between 0 and 1.
    """
    places, excess, variance = _excess(total, sums, edges, noise, rank)
    rows = np.maximum(total, 1.0)[..., None]
    deviation = TWO_SIDED * np.sqrt(variance + rows * rank * (1.0 - rank))
    held, short = excess + deviation >= 0, excess - deviation < 0
    last = len(places) - 1
    first, final = held.argmax(axis=-1), last - short[..., ::-1].argmax(axis=-1)
    low = np.where(held.any(axis=-1) & (first > 0), places[np.maximum(first - 1, 0)], -np.inf)
    high = np.where(short.any(axis=-1) & (final < last), places[np.minimum(final + 1, last)], np.inf)
    return low, high


def _excess(
    total: Floats, sums: Floats, edges: Floats, noise: tuple[Floats, float], rank: float
) -> tuple[Floats, Floats, Floats]:
    """Return edges (E,) in rising order, rows below each less those below the quantile, and their noise's variance."""
    (above, below), total = np.moveaxis(sums, -2, 0), np.asarray(total)[..., None]
    places = np.concatenate([-edges, edges[-2::-1]])
    excess = np.concatenate([below - rank * total, (1.0 - rank) * total - above[..., -2::-1]], axis=-1)
    of_sums, of_total = noise[0], noise[1] ** 2
    variance = np.concatenate([of_sums + rank**2 * of_total, of_sums[-2::-1] + (1.0 - rank) ** 2 * of_total])
    return places, excess, variance


def error_quantile(counts: ErrorCounts, rank: float) -> tuple[float, float, float]:
    """Return a quantile of the signed error, label − prediction, and its margin of :func:`quantile_limits`.

    Parameters
    ----------
    counts : ErrorCounts
    rank : float
        Between 0 and 1.
    """
    given = (np.array(counts.total), counts.sums, counts.edges)
    noise = (np.diagonal(counts.covariance), counts.total_deviation)
    low, high = (float(end) for end in quantile_limits(*given, noise, rank))
    edges, excess, variance = _excess(*given, noise, rank)
    bent = scipy.optimize.isotonic_regression(excess, weights=1.0 / np.maximum(variance, 1e-12)).x
    width = counts.label_range[1] - counts.label_range[0]
    place = int(np.searchsorted(bent, 0.0))
    outer = np.concatenate([[-width], edges, [width]])
    known = np.concatenate([[min(bent[0], 0.0)], bent, [max(bent[-1], 0.0)]])
    step = known[place + 1] - known[place]
    part = float(np.clip(-known[place] / step, 0.0, 1.0)) if step > 0 else 0.5
    value = float(outer[place] + part * (outer[place + 1] - outer[place]))
    return min(max(value, low), high), low, high


_WIDEST = 0.5
OPEN_ENDED = "its 95 % margin reaches an end of the declared range"
NO_DENOMINATOR = "the noise leaves no variance of the label that is surely above 0"


def metrics_of_error_counts(counts: ErrorCounts) -> Metrics:
    """Return what follows from a release of errors, in the unit of the label, each number with its 95 % margin.

    ``mae`` and ``rmse`` with errors counted up to B, ``r2`` with B in both parts, ``error_q05``, ``error_q50`` and
    ``error_q95``, quantiles of label − prediction; ``error_bound``, B; ``mae_noise``, the standard deviation that the
    noise alone gives ``mae``; ``held_out_rows``.
    """
    found = metrics_of_error_sums(counts)
    for rank in RANKS:
        name = f"error_q{round(100 * rank):02d}"
        value, low, high = error_quantile(counts, rank)
        if np.isfinite(high - low):
            found.update({name: value, f"{name}_low": low, f"{name}_high": high})
        else:
            found.refuse(name, OPEN_ENDED, (low, high))
    return found


def metrics_of_error_sums(counts: ErrorCounts) -> Metrics:
    """Return the metrics of :func:`metrics_of_error_counts` that the sums alone give, without quantiles."""
    return _of_sums(
        counts.rows,
        counts.bound,
        counts.share,
        (counts.total, counts.total_deviation),
        (counts.moments, counts.deviations),
        TWO_SIDED,
    )


def metrics_of_noisy_errors(sums: Floats, rows: int, deviation: float, label_range: Sequence[float]) -> Metrics:
    """Return what follows from sums of errors with Laplace noise, each number with its 95 % margin.

    ``mae``, ``rmse`` and ``r2`` of predictions clipped to the declared range, B its width. Second moments are not
    released: a number in [0, 1] with the mean θ has a variance of at most θ (1 − θ), which stands in their place, so
    that margins are wider than the drawing of rows needs.

    Parameters
    ----------
    sums : array (5,)
        Of (1, 2 a^2, a, t, t^2); see :class:`dpalgos.evaluators.error_sums.LaplaceErrorSums`.
    rows : int
        Rows that were held out, null records included; public.
    deviation : float
        Of the noise of each sum.
    label_range : (float, float)
        Declared.
    """
    count, squares, absolute, first, second = (float(value) for value in sums)
    h, g = squares / SQUARES_WEIGHT, second / 4.0
    # Of t in [-1, 1]: v = t / 2, g = t² / 4 ≤ 1/4, so g² ≤ g / 4.
    moments = np.array([h, absolute, g, h, g / 4.0, 0.0, first / 2.0])
    parts = np.array([1.0 / SQUARES_WEIGHT, 1.0, 0.25, 1.0 / SQUARES_WEIGHT, 1.0 / 16.0, 0.0, 0.5])
    width = float(label_range[1] - label_range[0])
    return _of_sums(rows, width, 0.0, (count, deviation), (moments, deviation * parts), _OF_LAPLACE)


def _of_sums(
    rows: int,
    bound: float,
    share: float,
    counted: tuple[float, float],
    moments: tuple[Floats, Floats],
    reach: float,
) -> Metrics:
    """Return mean absolute error, RMSE and R², each with its margin or why it cannot be measured.

    That is decided by the deviations of the noise, the public number of rows and what was known of the label
    beforehand, or, of R², by noise that its margin does not have: what is shown is not what noise has made look good.
    """
    found = Metrics({"error_bound": bound, "held_out_rows": float(rows)})
    (total, of_total), (sums, deviations), rows = (np.array(counted[0]), counted[1]), moments, max(rows, 1)
    h, a, _, hh, *_ = (np.array(one) for one in sums)
    s_h, s_a, s_g, s_hh, *_ = (float(one) for one in deviations)
    up_to = Scale(guess=bound, perfect=0.0, most=bound, whole=bound)
    mae = [bound * float(one) for one in mean_limits(total, a, h, (of_total, s_a, s_h), reach)]
    rmse = [bound * float(one) ** 0.5 for one in mean_limits(total, h, hh, (of_total, s_h, s_hh), reach)]
    found["mae_noise"] = bound * s_a / rows
    # In units of B the margin of a root reaches from 0 to that of the square.
    too_wide = {"mae": 2.0 * reach * s_a > _WIDEST * rows, "rmse": reach * s_h > _WIDEST**2 * rows}
    for name, (value, low, high) in (("mae", mae), ("rmse", rmse)):
        if too_wide[name]:
            found.refuse(name, TOO_MUCH_NOISE, (0.0, bound))
        else:
            found.measure(name, value, (low, high), up_to)
    enough = 2.0 * reach * float(np.hypot(s_h, s_g)) <= share * rows
    if not enough:
        enough, sums, deviations = _decided(sums, deviations, max(float(total), 1.0), reach)
    r2, low, high = (float(one) for one in determination_limits(total, sums, deviations, of_total, reach))
    if not enough:
        found.refuse("r2", TOO_MUCH_NOISE, (-np.inf, 1.0))
    elif not np.isfinite(low):
        found.refuse("r2", NO_DENOMINATOR, (-np.inf, 1.0))
    else:
        found.measure("r2", r2, (low, high), Scale(least=-np.inf))
    return found


def _decided(sums: Floats, deviations: Floats, rows: float, reach: float) -> tuple[bool, Floats, Floats]:
    """Return whether R² is shown, and what its margin is then made of: sums and deviations whose noise has not decided.

    See the module's text. Shown is R² where the noisy variance of the label, less one deviation of its noise, is so
    large that the noise of both of its parts moves R² of 0 by at most a half to either side.
    """
    one, other = np.array(sums), np.array(sums)
    of_one, of_other = np.array(deviations), np.array(deviations)
    random = np.random.default_rng([PUBLIC_SEED, *np.asarray(sums, dtype=np.float64).view(np.uint32).tolist()])
    for place in _SPLIT:
        added = np.sqrt(_ADDED) * deviations[place] * random.standard_normal()
        one[place] += added
        other[place] -= added / _ADDED
        of_one[place] *= np.sqrt(1.0 + _ADDED)
        of_other[place] *= np.sqrt(1.0 + 1.0 / _ADDED)
    g, v = one[2], one[6]
    off = max(v**2 - of_one[6] ** 2 - max(g, 0.0), 0.0) / rows
    # Of the noise of g, and of what another centre takes off.
    of_spread, of_shown = (float(np.hypot(noise[2], 2.0 * v * noise[6] / rows)) for noise in (of_one, of_other))
    enough = 2.0 * reach * float(np.hypot(deviations[0], of_shown)) <= g - off - of_spread
    return bool(enough), other, of_other
