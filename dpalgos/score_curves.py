"""Curves from released running sums of scores: counts at every threshold, areas, probabilities, thresholds.

All is post-processing. The noise of running sums is Gaussian, correlated over the edges, and its covariance is public
(:meth:`ScoreSums.of_release`).

*With the confusion matrix.* The matrix of the same rows counts those up to the middle edge and above it, for each
label: four sums of cells with independent noise of deviation tau. Running sums s of covariance V are combined with
these m = H s + noise by least squares, which is exact for Gaussian noise and without bias:

    s + V H' (H V H' + tau^2)^-1 (m - H s),    V - V H' (H V H' + tau^2)^-1 H V.

With half of mu^2 each and 32 bins, every count below a threshold then has 3.9/mu in place of 4.4/mu, every count above
one 4.1/mu in place of 5.3/mu, and at the middle both have 1.8/mu.

Information that is not used, and why. *The public number of rows* as one more equation would bring 5.3/mu to 4.6/mu
without the matrix and 4.1/mu to 3.9/mu with it; but null records are among these rows, a few of them hide in the noise,
and half of what is missing would be taken for rows of the rare class. *The matrix's own numbers* from the combined
sums: the accuracy's noise would fall from 2.8/mu to 2.5/mu, and the law of the matrix would be another one with and
without these sums. *More than two classes*: the matrix says only how many rows a class has, and the noises of the
classes' curves would depend on each other.

*Margins at all thresholds at once.* At one threshold a share a/(a + b) of counts with noise has the margin of
:mod:`dpalgos.margins`: quantiles of the share when new noise is subtracted and the rows are resampled,
at the probabilities Phi(-c) and Phi(c). For one threshold c would be 1.96. That c is taken which the largest of the
standardised deviations (1 - p) da - p db over all thresholds exceeds with a probability of 5 %: they are simulated
together, as Gaussians with the covariance of noise and drawing at the counts that were found, bent to rise. To rank
the draws themselves, as was done before, is too narrow: draws that end at 0 or 1 are tied there, and a tie never counts
as a deviation, though noise of the other sign would have been one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from dpalgos.evaluators.score_distribution import ScoreDistribution, edges
from dpalgos.guarantees import Setting
from dpalgos.margins import LEVELS, drawn_rates, draws_of, joined
from dpalgos.measured import Metrics, Scale
from dpalgos.metrics import ratio
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats

_SEED_OF_AREAS, _SEED_OF_BANDS, _DRAWS = 20260701, 20260702, 4_000
_AT_ONCE = 0.95


@dataclass(frozen=True)
class ScoreSums:
    """Noisy running sums of the scores of one class against the others, and the covariance of their noise.

    Parameters
    ----------
    sums : array (2, T)
        Rows of the other classes and of the class with a score up to each edge; the last are all of them.
    covariance : array (2, T, T)
        Of the noise over the edges; the two labels' noises are independent.
    scale : float
        By which scores were divided before they were squashed.
    """

    sums: Floats
    covariance: Floats
    scale: float = 1.0

    @classmethod
    def of_release(cls, values: Floats, algorithm: ScoreDistribution, setting: Setting) -> list[ScoreSums]:
        """Return the sums of each score of a release (scores, 2, T), the noise being that of all parties, the most."""
        deviation = algorithm.deviation(setting) * setting.noise_factor
        line = deviation**2 * algorithm.sums().covariance()
        return [cls(sums, np.stack([line, line]), algorithm.scale) for sums in values]

    def combined(self, matrix: Floats, deviation: float) -> ScoreSums:
        """Return the sums combined by least squares with the confusion matrix (2, 2) of the same rows.

        Parameters
        ----------
        matrix : array (2, 2)
            True class by predicted class, noisy; predicted is the second one where the score is above 0.
        deviation : float
            Of the noise of each of its counts.
        """
        middle = self.sums.shape[1] // 2 - 1
        looks = np.zeros((2, self.sums.shape[1]))
        looks[0, middle] = 1.0
        looks[1, -1], looks[1, middle] = 1.0, -1.0
        sums, covariances = [], []
        for known, covariance, counted in zip(self.sums, self.covariance, matrix, strict=True):
            spread = covariance @ looks.T
            gain = np.linalg.solve(looks @ spread + deviation**2 * np.eye(2), spread.T).T
            sums.append(known + gain @ (counted - looks @ known))
            reduced = covariance - gain @ spread.T
            covariances.append((reduced + reduced.T) / 2.0)
        return replace(self, sums=np.stack(sums), covariance=np.stack(covariances))

    def turned(self) -> ScoreSums:
        """Return the sums of the other class against this one, of negated scores.

        Rows whose negated score is up to an edge are all rows less those up to the mirrored edge, and edges lie
        mirrored at 0. It is a linear map of the sums, and the covariance follows.
        """
        edges_ = self.sums.shape[1]
        mirror = np.zeros((edges_, edges_))
        mirror[:, -1] = 1.0
        inner = np.arange(edges_ - 1)
        mirror[inner, edges_ - 2 - inner] = -1.0
        return replace(self, sums=self.sums[::-1] @ mirror.T, covariance=mirror @ self.covariance[::-1] @ mirror.T)

    @property
    def cells(self) -> Floats:
        """The counts of the bins (2, T), differences of the sums; negative ones are left as they are."""
        return np.diff(self.sums, axis=1, prepend=0.0)

    def rising(self) -> Floats:
        """Return the counts of the bins (2, T) of the sums bent to rise from 0: none is negative.

        The nearest rising sums, by isotonic regression, weighed by 1/variance.
        """
        bent = []
        for sums, covariance in zip(self.sums, self.covariance, strict=True):
            weights = 1.0 / np.maximum(np.diagonal(covariance), 1e-12)
            bent.append(scipy.optimize.isotonic_regression(sums, weights=weights).x)
        return np.diff(np.maximum(np.stack(bent), 0.0), axis=1, prepend=0.0)

    def drawn(self, random: np.random.Generator, draws: int) -> Floats:
        """Return the sums less draws of their noise, (draws, 2, T)."""
        normal = random.standard_normal((2, draws, self.sums.shape[1]))
        noise = normal @ np.linalg.cholesky(self.covariance).transpose(0, 2, 1)
        return self.sums - noise.transpose(1, 0, 2)

    def edge(self, place: int) -> float:
        """Return the score of an inner edge, counted from 0."""
        return float(edges(self.sums.shape[1], self.scale)[place])

    def place(self, threshold: float) -> int:
        """Return the inner edge, counted from 0, that has this score."""
        return int(np.abs(edges(self.sums.shape[1], self.scale) - threshold).argmin())

    def centres(self) -> Floats:
        """Return the scores in the middle of the bins, on the squashed scale."""
        bins = self.sums.shape[1]
        return np.asarray(self.scale * scipy.special.logit((np.arange(bins) + 0.5) / bins))


def curves_of(scores: Sequence[ScoreSums]) -> list[Floats]:
    """Return a ROC curve for each class: (false, true positive rate) from (0, 0).

    Of sums bent to rise, so that curves rise; one whose side is empty is the diagonal.
    """
    curves = []
    for sides in (one.rising()[:, ::-1] for one in scores):
        totals = sides.sum(axis=1, keepdims=True)
        rates = np.cumsum(sides, axis=1) / np.where(totals > 0, totals, 1.0)
        rates = rates if (totals > 0).all() else np.linspace([0.0, 0.0], [1.0, 1.0], sides.shape[1] + 1).T[:, 1:]
        curves.append(np.concatenate([np.zeros((1, 2)), rates.T]))
    return curves


def _areas(sums: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the area under the curve of running sums (D, 2, T), ties half, and rows of the class and of the others.

    NaN where one of these is not positive. Neither counts nor areas are cut, so that their noise cancels: an area above
    1 of one class makes up for one that is too small of another.
    """
    negative, positive = sums[:, 0], np.diff(sums[:, 1], axis=1, prepend=0.0)
    here, there = sums[:, 1, -1], negative[:, -1]
    below = negative - 0.5 * np.diff(negative, axis=1, prepend=0.0)
    known = (here > 0) & (there > 0)
    pairs = np.where(known, np.maximum(here, 1.0) * np.maximum(there, 1.0), np.nan)
    return (positive * below).sum(axis=1) / pairs, here, there


def _tied(sums: Floats) -> Floats:
    """Return half the share of pairs of a row of the class and another that share a bin, of running sums (D, 2, T)."""
    negative, positive = (np.diff(sums[:, line], axis=1, prepend=0.0) for line in (0, 1))
    pairs = np.maximum(sums[:, 0, -1], 1.0) * np.maximum(sums[:, 1, -1], 1.0)
    return np.asarray(0.5 * np.maximum((negative * positive).sum(axis=1), 0.0) / pairs)


def area_under_curve(scores: Sequence[ScoreSums]) -> float:
    """Return the area under the ROC curve, averaged over the classes.

    Ties within a bin count half; 0.5 where a side is empty.
    """
    areas = np.nan_to_num(_areas(np.stack([one.sums for one in scores]))[0], nan=0.5)
    return float(np.clip(areas.mean(), 0.0, 1.0))


def margins_of_area(scores: Sequence[ScoreSums]) -> tuple[float, float]:
    """Return the 95 % margin of the area under the ROC curve, averaged over classes.

    The area is a ratio of bilinear sums of counts, and only the mean over classes is cut at its ends: sums of cut
    counts are biased, and so are means of cut areas. The draw of the rows is that of Hanley and McNeil, at an area
    moved towards 1/2 by as much as two rows more would. Of more than two classes, whose scores lie far apart and
    share few bins, the margin contains the area of any order within the bins: of letter's 26 classes, 32 bins lose
    0.026.
    """
    random = np.random.default_rng(_SEED_OF_AREAS)
    low, high = [], []
    draws = draws_of(sum(one.sums.size for one in scores))
    for of_class in scores:
        drawn = of_class.drawn(random, draws)
        area, here, there = _areas(drawn)
        tied = _tied(drawn) if len(scores) > 1 else 0.0
        unknown = np.isnan(area)
        area, here, there = np.nan_to_num(area, nan=0.5), np.maximum(here, 1.0), np.maximum(there, 1.0)
        fewer = np.minimum(here, there)
        moved = (np.clip(area, 0.0, 1.0) * fewer + 1.0) / (fewer + 2.0)
        of_one, other = moved / (2.0 - moved), 2.0 * moved**2 / (1.0 + moved)
        variance = moved * (1 - moved) + (here - 1) * (of_one - moved**2) + (there - 1) * (other - moved**2)
        area = area + random.standard_normal(draws) * np.sqrt(variance / (here * there))
        low.append(np.where(unknown, 0.0, area - tied))
        high.append(np.where(unknown, 1.0, area + tied))
    ends = np.quantile(np.mean(low, axis=0), LEVELS[0]), np.quantile(np.mean(high, axis=0), LEVELS[1])
    return float(np.clip(ends[0], 0.0, 1.0)), float(np.clip(ends[1], 0.0, 1.0))


_AIMS = "balanced, f1, recall=0.8 (a share), or cost=1:20 (of a false alarm, and of a miss)"


@dataclass(frozen=True)
class Aim:
    """Goal of a threshold: ``balanced``, ``f1``, ``recall=SHARE`` or ``cost=FALSE:MISSED``."""

    kind: str
    numbers: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Aim:
        """Read an aim.

        Raises
        ------
        ParameterError
            Naming the text and what may be said.
        """
        number = r"(\d+\.?\d*|\.\d+)"
        match = re.fullmatch(rf"(balanced|f1)|(recall)={number}|(cost)={number}:{number}", text)
        if match is None:
            raise ParameterError(f"aim is {text!r}; it must be {_AIMS}")
        numbers = tuple(float(part) for part in (match[3], match[5], match[6]) if part)
        if not all(one > 0 for one in numbers) or (match[2] and numbers[0] > 1):
            raise ParameterError(f"aim is {text!r}; a recall must lie in (0, 1], and costs must be positive")
        return cls(match[1] or match[2] or match[4], numbers)

    def best(self, hits: Floats, missed: Floats, alarms: Floats, quiet: Floats) -> int:
        """Return which of several thresholds, rising, serves it best by (noisy) counts."""
        recall, specificity = hits / np.maximum(hits + missed, 1.0), quiet / np.maximum(quiet + alarms, 1.0)
        if self.kind == "balanced":
            return int(np.argmax(recall + specificity))
        if self.kind == "f1":
            return int(np.argmax(2 * hits / np.maximum(2 * hits + missed + alarms, 1.0)))
        if self.kind == "recall":
            reached = np.flatnonzero(recall >= self.numbers[0])
            return int(reached[-1]) if len(reached) else 0
        return int(np.argmin(self.numbers[0] * alarms + self.numbers[1] * missed))


@dataclass(frozen=True)
class Calibration:
    """Map from a score to the probability of the second class, and the score above which it is predicted.

    Parameters
    ----------
    slope, offset : float
        P = 1 / (1 + exp(-(slope * score + offset))), the slope at least 0.
    threshold : float
        Of the score; 0 where no aim was stated.
    """

    slope: float
    offset: float
    threshold: float = 0.0

    def probability(self, scores: Floats) -> Floats:
        """Return the probability of the second class."""
        return np.asarray(scipy.special.expit(self.slope * scores + self.offset))


def platt(scores: ScoreSums) -> Calibration:
    """Fit a logistic curve to noisy sums of squashed scores, rows of the first class and of the second.

    The logistic risk sum n log(1 + exp(m)) - p m, for the margin m = slope * score + offset, of n rows in a bin and p
    of the second class, is convex where n is not negative: counts are those of the sums bent to rise. Platt's
    additional row of either class keeps every probability away from 0 and 1.

    Parameters
    ----------
    scores : ScoreSums

    References
    ----------
    Platt, "Probabilistic outputs for support vector machines", 1999.
    """
    places, sides = scores.centres(), scores.rising()
    rows, positive = sides.sum(axis=0), sides[1]
    total = max(float(rows.sum()), 1.0)

    def risk(parameters: Floats) -> float:
        margin = parameters[0] * places + parameters[1]
        of_rows = float(rows @ np.logaddexp(0.0, margin) - positive @ margin)
        one_each = float(np.logaddexp(0.0, parameters[1]) + np.logaddexp(0.0, -parameters[1]))
        return (of_rows + one_each) / total + 1e-6 * float(parameters[0] ** 2)

    share = (float(positive.sum()) + 1.0) / (total + 2.0)
    start = np.array([1.0, float(scipy.special.logit(min(share, 0.999)))])
    solution = scipy.optimize.minimize(risk, start, method="L-BFGS-B", bounds=[(0.0, 20.0), (-20.0, 20.0)]).x
    return Calibration(float(solution[0]), float(solution[1]))


def calibration_error(scores: ScoreSums, calibration: Calibration) -> tuple[float, tuple[float, float]]:
    """Return how far the probabilities are off, by the same sums, and its 95 % margin.

    The largest difference, over the edges t, between the rows of the second class with a score up to t and what their
    probabilities add up to, as a share of all rows: max |S_t - sum_{b <= t} n_b p_b| / N, the Kolmogorov-Smirnov
    calibration error at the edges. It needs no bins of probabilities, and no square of noise.

    *Margin.* For given probabilities p the difference G_t is linear in the running sums of both classes, so the error
    of all G_t together is Gaussian with a known covariance: noise, and drawing at the counts that were found, bent to
    rise. A band of so many standard deviations as :func:`reach` says holds at all edges at once, and with it the
    largest |G_t|. That p was fitted to the same sums changes the error of G_t to second order only: it is the same
    linear function of noise and drawing, at p as it is. Within a bin a row's probability is not the one at its centre;
    by so much both ends are wider. The number of rows N is noisy as well: the lower end is divided by the largest N
    that as many standard deviations of its noise admit, the upper end by the smallest; where that is not above 0, the
    margin holds everything.

    Returns
    -------
    (float, (float, float))
    """
    bins = scores.sums.shape[1]
    # Not infinite, for a slope of 0 times infinity is no number.
    places = np.concatenate([[-1e9], [scores.edge(place) for place in range(bins - 1)], [1e9]])
    said, ends = calibration.probability(scores.centres()), calibration.probability(places)
    running = np.tril(np.ones((bins, bins)))
    of_bins = running * said[None, :] @ (np.eye(bins) - np.eye(bins, k=-1))
    maps = (-of_bins, np.eye(bins) - of_bins)
    cells = scores.rising()
    below = np.cumsum(cells, axis=1)
    lower = np.minimum.outer(np.arange(bins), np.arange(bins))
    covariance = sum(
        one @ (noise + drawn[lower]) @ one.T for one, noise, drawn in zip(maps, scores.covariance, below, strict=True)
    )
    total = float(scores.sums[:, -1].sum())
    differences = maps[0] @ scores.sums[0] + maps[1] @ scores.sums[1]
    factor = reach(covariance)
    farthest = factor * np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    within = np.maximum(ends[1:] - said, said - ends[:-1])
    width = np.cumsum(cells.sum(axis=0) * within)
    sizes = np.abs(differences)
    # The number of rows is noisy too.
    off = factor * float(np.sqrt(scores.covariance[:, -1, -1].sum()))
    if total <= off:
        return min(float(sizes.max()) / max(total, 1.0), 1.0), (0.0, 1.0)
    low = float(np.maximum(sizes - farthest - width, 0.0).max()) / (total + off)
    high = float((sizes + farthest + width).max()) / (total - off)
    return min(float(sizes.max()) / total, 1.0), (min(low, 1.0), min(high, 1.0))


def _counts(sums: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return hits, misses, false alarms and quiet rows (D, T - 1) at the inner edges, of running sums (D, 2, T)."""
    below = sums[:, :, :-1]
    above = sums[:, :, -1:] - below
    return above[:, 1], below[:, 1], above[:, 0], below[:, 0]


def _deviations(scores: ScoreSums) -> dict[str, Floats]:
    """Return, of each number, how its deviations at the inner edges are correlated, (T - 1, T - 1) each.

    To first order a share a / (a + b) =: p deviates as (1 - p) da - p db does, by noise and by the drawing of rows,
    which in sums up to two edges has the covariance of the rows up to the lower one.
    """
    cells = scores.rising()
    bins = cells.shape[1]
    running = np.cumsum(cells, axis=1)
    lower = np.minimum.outer(np.arange(bins), np.arange(bins))
    spread = scores.covariance + running[:, lower]
    hits, missed, alarms, quiet = (part[0] for part in _counts(running[None]))
    below = np.eye(bins)[:-1]
    above = np.eye(bins)[-1] - below

    def share(part: Floats, whole: Floats) -> Floats:
        return np.where(whole > 0, ratio(part, whole), 0.5)[:, None]

    recall, quietly = share(hits, hits + missed), share(quiet, quiet + alarms)
    precision, same = share(hits, hits + alarms), share(hits, hits + missed + alarms)
    absent = share(quiet, quiet + missed)
    of_recall = (1 - recall) * above - recall * below
    of_quiet = (1 - quietly) * below - quietly * above
    nothing = np.zeros_like(above)
    slopes = {
        "recall": (nothing, of_recall),
        "precision": (-precision * above, (1 - precision) * above),
        "f1": (-same * above, (1 - same) * above - same * below),
        "other_recall": (of_quiet, nothing),
        "other_precision": ((1 - absent) * below, -absent * below),
        "balanced_accuracy": (of_quiet / max(running[0, -1], 1.0), of_recall / max(running[1, -1], 1.0)),
    }
    return {
        name: sum(slope @ of @ slope.T for slope, of in zip(sides, spread, strict=True))
        for name, sides in slopes.items()
    }


def reach(covariance: Floats) -> float:
    """Return c: the largest of the standardised deviations (T,) of this covariance (T, T) is above it in 5 % of draws.

    At least 1.96, that of a single one.
    """
    deviation = np.sqrt(np.maximum(np.diagonal(covariance), 1e-300))
    # Deviations at edges between which no row lies are all but equal where there is little noise.
    root = np.linalg.cholesky(covariance / np.outer(deviation, deviation) + 1e-9 * np.eye(len(deviation)))
    normal = np.random.default_rng(_SEED_OF_BANDS).standard_normal((_DRAWS, len(root)))
    largest = np.abs(normal @ root.T).max(axis=1)
    return max(float(np.quantile(largest, _AT_ONCE)), -float(scipy.special.ndtri(LEVELS[0])))


def _band(low: Floats, high: Floats, farthest: float) -> tuple[Floats, Floats]:
    """Return the quantiles (T,) of draws (D, T) so many standard deviations out."""
    outside = float(scipy.special.ndtr(-farthest))
    # By ranks over D + 1, which hold that probability outside on average however few draws there are.
    return (
        np.quantile(low, outside, axis=0, method="weibull"),
        np.quantile(high, 1.0 - outside, axis=0, method="weibull"),
    )


def operating_points(scores: ScoreSums) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """Return recall, precision, F1 and balanced accuracy at each inner edge of the bins, and their 95 % margins.

    ``other_recall`` and ``other_precision`` describe the first class, which is predicted up to the edge.

    Each number's margins hold for all thresholds at once, so that they hold at one that is chosen by the same sums.
    They are simulated as in :mod:`dpalgos.margins`, the drawing of the rows included.

    Parameters
    ----------
    scores : ScoreSums
    """
    random = np.random.default_rng(_SEED_OF_BANDS)
    hits, missed, alarms, quiet = _counts(scores.drawn(random, _DRAWS))
    farthest = {name: reach(covariance) for name, covariance in _deviations(scores).items()}
    of_both = farthest["balanced_accuracy"]
    recall, precision = drawn_rates(random, hits, missed), drawn_rates(random, hits, alarms)
    overlap, quietly = drawn_rates(random, hits, missed + alarms), drawn_rates(random, quiet, alarms)
    absent = drawn_rates(random, quiet, missed)
    bands = {
        "recall": _band(*recall, farthest["recall"]),
        "precision": _band(*precision, farthest["precision"]),
        "f1": _band(2 * overlap[0] / (1 + overlap[0]), 2 * overlap[1] / (1 + overlap[1]), farthest["f1"]),
        "other_recall": _band(*quietly, farthest["other_recall"]),
        "other_precision": _band(*absent, farthest["other_precision"]),
        "balanced_accuracy": _band(*_means(recall, quietly, of_both), of_both),
    }
    hits, missed, alarms, quiet = (np.maximum(part[0], 0.0) for part in _counts(scores.sums[None]))
    hit_rates, same = ratio(hits, hits + missed), ratio(hits, hits + missed + alarms)
    values = {
        "recall": hit_rates,
        "precision": ratio(hits, hits + alarms),
        "f1": 2 * same / (1 + same),
        "other_recall": ratio(quiet, quiet + alarms),
        "other_precision": ratio(quiet, quiet + missed),
        "balanced_accuracy": (hit_rates + ratio(quiet, quiet + alarms)) / 2,
    }
    return values, bands


def _means(one: tuple[Floats, Floats], other: tuple[Floats, Floats], farthest: float) -> tuple[Floats, Floats]:
    """Return draws of the mean of two shares, (D, T), for lower and for upper limits so far out."""
    bands = [_band(*drawn, farthest) for drawn in (one, other)]
    # Of either limit wherever one of the two reaches its end: more than `joined` asks for, and some 3 % wider.
    at_ends = np.stack([(low <= 0) | (high >= 1) for low, high in bands], axis=-1)
    low, high = (joined(np.stack(sides, axis=-1), at_ends) for sides in zip(one, other, strict=True))
    return low, high


def choose(scores: ScoreSums, aim: str) -> tuple[Calibration, Metrics]:
    """Return calibration and threshold for a stated aim, and what is to be expected there with 95 % margins.

    The margins are those that hold for all thresholds at once.

    Returns
    -------
    (Calibration, Metrics)
        The numbers are called ``aim_recall``, ``aim_recall_low`` and so on; ``aim_probability`` is the calibrated
        probability at the threshold.
    """
    fitted, rows = platt(scores), scores.rising().sum(axis=0)
    # The best of many noisy numbers is mostly noise: expected counts, of two parameters, are compared instead.
    second = fitted.probability(scores.centres()) * rows
    place = Aim.parse(aim).best(*(part[0] for part in _counts(np.cumsum([rows - second, second], axis=1)[None])))
    values, bands = operating_points(scores)
    calibration = Calibration(fitted.slope, fitted.offset, scores.edge(place))
    totals = scores.sums.sum(axis=0)
    predicted = float(np.clip(1.0 - totals[place] / max(float(totals[-1]), 1.0), 0.0, 1.0))
    guesses = {"balanced_accuracy": 0.5, "other_recall": 1.0 - predicted, "other_precision": 1.0 - predicted}
    found = Metrics()
    for name, of in values.items():
        low, high = bands[name]
        guess = Scale(guess=guesses.get(name, predicted))
        found.measure(f"aim_{name}", float(of[place]), (float(low[place]), float(high[place])), guess)
    found["aim_probability"] = float(calibration.probability(np.array(calibration.threshold)))
    return calibration, found
