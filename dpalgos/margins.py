"""Margins (95 %) of numbers that follow from noisy counts, by simulating the noise whose law is public.

Let X = C + Z be released, C the exact counts of the held-out rows and Z the noise. Counts that the release leaves
possible are drawn as X - Z', Z' of the law of Z, by a generator with a public seed: the margins are post-processing of
the release, cost nothing, and are the same for whoever computes them again. Nothing of the release's own noise is used.

For a ratio A / (A + B) of sums of counts the 2.5 % and 97.5 % quantiles of the draws are the limits of Fieller's
interval, with the exact law of the noise for the normal one: with a = A - Z'_A and b = B - Z'_B cut at zero,
a / (a + b) <= t exactly where (1 - t) (A - Z'_A) <= t (B - Z'_B), so that the share of such draws is the p-value of
"the ratio is t". Draws with a = b = 0 may be any ratio, and count as 0 for the lower and as 1 for the upper limit; the
interval covers with at least 95 %, whatever the denominator, where the noise is all there is.

The held-out rows are themselves drawn, and the margins are of the number in the population they are drawn from: each
drawn pair (a, b) becomes a drawn probability, Beta(a, b + 1) for the lower and Beta(a + 1, b) for the upper limit
(Clopper and Pearson). Counts are whole, so that these limits hold in 98 of 100 runs where counts are few, and are a
third wider than they must be. A quarter of the draws are therefore of the other side's distribution; half of them would
be Lancaster's mid-p. Coverage stays above 94 %, for class counts from 10 to 10,000 and epsilon from 0.05 to 3
(``tests/dpalgos/test_margins.py``).

Where the unit is a person, counts are sums of the means over people's rows. In the place of a mean stands a row of that
person drawn at random: it has the same expectation, and by Jensen's inequality no smaller variance, of any linear
combination of counts. So the margins are those of one row a person, and no narrower than they need to be.

References
----------
Fieller, "Some problems in interval estimation", JRSS B 16 (1954); Clopper, Pearson, "The use of confidence or fiducial
limits illustrated in the case of the binomial", Biometrika 26 (1934); Lancaster, "Significance tests in discrete
distributions", JASA 56 (1961); Hanley, McNeil, "The meaning and use of the area under a receiver operating
characteristic (ROC) curve", Radiology 143 (1982).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpalgos.evaluators.noisy_sums import GaussianSums, LaplaceSums, NoisySums
from dpalgos.guarantees import Setting
from dpalgos.rows import Floats

Noise = Callable[[np.random.Generator, tuple[int, ...]], Floats]
"""Draws noise of the law of a release, in units of its counts."""
Margins = dict[str, tuple[float, float]]
LEVELS = (0.025, 0.975)
PERFECT, WIDE = 0.99, 0.2
_SEED = 20260701
_MID_P = 0.25
# So many numbers are drawn, and at least and at most so many times each: limits are exact to some 0.002 of probability.
_NUMBERS, _FEWEST, _MOST = 4_000_000, 1_000, 5_000
# Beyond so many classes a row of the matrix and a column of it are drawn as if they had no cell in common.
_MOST_CLASSES = 30


def simulated(algorithm: NoisySums, setting: Setting) -> Noise:
    """Return the noise of released sums, drawn anew from its law: that of the full number of parties, the most."""
    scale = setting.noise_factor / algorithm.units(setting)
    if isinstance(algorithm, LaplaceSums):
        stop = -np.expm1(-1.0 / algorithm.law(setting).scale)
        return lambda random, shape: np.asarray(
            scale * (random.geometric(stop, shape) - random.geometric(stop, shape)), dtype=np.float64
        )
    assert isinstance(algorithm, GaussianSums)
    sigma = algorithm.law(setting).sigma
    return lambda random, shape: scale * np.rint(random.standard_normal(shape) * sigma)


def _says_nothing(low: float, high: float, guess: float) -> bool:
    return low <= guess and high >= PERFECT and high - low >= WIDE


def widened(limits: tuple[float, float], guess: float, least: float = 0.0) -> tuple[float, float]:
    """Return limits as they are, or from the least value to 1 where they hold both guessing and a perfect model.

    Such a number was not measured, and :func:`is_measured` says so of it. A margin of less than 0.2 says something all
    the same: where guessing is nearly perfect, as for the recall of a class that is most of the rows.
    """
    return (least, 1.0) if _says_nothing(*limits, guess) else limits


def is_measured(metrics: Mapping[str, float], name: str) -> bool:
    """Whether a number's margin tells it from guessing or from a perfect model's; without a margin it is exact."""
    low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
    if low is None or high is None:
        return True
    if name == "accuracy":
        # Its margin is left as it is, for comparisons.
        return not _says_nothing(low, high, metrics.get("majority_rate", 0.0))
    return low > (-1.0 if name == "mcc" else 0.0) or high < 1.0


def _draws(numbers: int) -> int:
    return min(max(_NUMBERS // numbers, _FEWEST), _MOST)


def _limits(low: Floats, high: Floats) -> tuple[float, float]:
    return float(np.quantile(low, LEVELS[0])), float(np.quantile(high, LEVELS[1]))


def shares(random: np.random.Generator, hits: Floats, misses: Floats) -> tuple[Floats, Floats]:
    """Return drawn probabilities, for lower and for upper limits, of drawn numbers of hits and misses."""
    hits, misses = np.maximum(hits, 0.0), np.maximum(misses, 0.0)
    sides = []
    # Without any row nothing is known, from 0 to 1.
    exchanged = (random.random(hits.shape) < _MID_P) & (hits + misses > 0)
    for more in (exchanged, ~exchanged):
        one, other = random.standard_gamma(hits + more), random.standard_gamma(misses + ~more)
        sides.append(one / (one + other))
    return sides[0], sides[1]


def _drawn_cells(counts: Floats, noise: Noise, random: np.random.Generator) -> tuple[Floats, ...]:
    """Return draws of the diagonal (D, K), of the rest of each row and of each column."""
    classes = len(counts)
    hits = np.diagonal(counts)
    missed, wrong = counts.sum(axis=1) - hits, counts.sum(axis=0) - hits
    if classes <= _MOST_CLASSES:
        drawn = noise(random, (_draws(classes**2), classes, classes))
        on = np.einsum("dkk->dk", drawn)
        return hits - on, missed - (drawn.sum(axis=2) - on), wrong - (drawn.sum(axis=1) - on)
    draws = _draws(40 * classes)
    # Sums of thirty and more draws are normal enough.
    scale = float(noise(random, (100_000,)).std()) * np.sqrt(classes - 1)
    normal = random.standard_normal((2, draws, classes)) * scale
    return hits - noise(random, (draws, classes)), missed - normal[0], wrong - normal[1]


def margins_of_confusion(counts: Floats, rows: float | None, noise: Noise) -> tuple[Margins, Floats, Floats]:
    """Return the 95 % margins of a noisy confusion matrix's metrics by name, and two arrays (K, 2).

    These are the margins of each class's recall, and of the share of rows that it is predicted for: of the held-out
    rows themselves, by the noise alone.

    Parameters
    ----------
    counts : array (K, K)
        True class by predicted class, noisy.
    rows : float or None
        That were counted, public; None where only the noisy total says.
    noise : callable
    """
    random = np.random.default_rng(_SEED)
    classes = len(counts)
    hits, missed, wrong = _drawn_cells(counts, noise, random)
    right, total = hits.sum(axis=1), (hits + missed).sum(axis=1)
    errors = total - right if rows is None else rows - np.clip(right, 0.0, rows)
    recall = shares(random, hits, missed)
    precision = shares(random, hits, wrong)
    overlap = shares(random, hits, missed + wrong)
    predicted = np.clip((hits + wrong) / np.maximum(total if rows is None else rows, 1.0).reshape(-1, 1), 0.0, 1.0)
    # Of class 1 where there are two, as usual; the mean of the classes otherwise.
    of = [slice(1, 2), slice(None)][classes > 2]
    true = hits + missed
    # Of two classes the noisy total is the better base: the noise of either class is in it.
    base = total if rows is None or classes == 2 else np.full_like(total, rows)
    frequencies = shares(random, true, base[:, None] - true)
    # The largest is at least the largest of lower limits that hold all at once.
    largest = (
        float(np.quantile(frequencies[0], LEVELS[0] / classes, axis=0).max()),
        float(np.quantile(frequencies[1], LEVELS[1], axis=0).max()),
    )
    found = {
        "accuracy": _limits(*shares(random, right, errors)),
        "balanced_accuracy": _mean(*recall),
        "majority_rate": largest,
        "precision": _mean(*(drawn[:, of] for drawn in precision)),
        "recall": _mean(*(drawn[:, of] for drawn in recall)),
        "f1": _mean(*((2.0 * drawn / (1.0 + drawn))[:, of] for drawn in overlap)),
        "mcc": _correlation(random, counts, hits, missed, wrong, (recall, precision)),
    }
    each = np.stack([np.quantile(side, level, axis=0) for side, level in zip(recall, LEVELS, strict=True)], axis=1)
    return found, each, np.quantile(predicted, LEVELS, axis=0).T


def _mean(low: Floats, high: Floats) -> tuple[float, float]:
    """Return the limits of the mean of several classes' numbers, from draws (D, K) of each.

    Where a class's own limits reach 0 or 1 its number may be all that they leave, and the quantile of a mean with
    others falls short of it: such classes move together, the others independently.
    """
    at_ends = (np.quantile(low, LEVELS[0], axis=0) <= 0) | (np.quantile(high, LEVELS[1], axis=0) >= 1)
    sides = [np.where(at_ends, np.sort(side, axis=0), side).mean(axis=1) for side in (low, high)]
    return _limits(*sides)


def _correlation(
    random: np.random.Generator,
    counts: Floats,
    hits: Floats,
    missed: Floats,
    wrong: Floats,
    sides: Sequence[tuple[Floats, Floats]],
) -> tuple[float, float]:
    """Return the limits of Matthews' coefficient, from draws of counts and of recall and precision.

    With two classes it is the geometric mean of informedness (the sum of the recalls less 1) and markedness (that of
    the precisions), which have the same sign: where a recall or a precision reaches 0 or 1, of their limits.
    """
    if hits.shape[1] == 2:
        if any(
            np.quantile(low, LEVELS[0], axis=0).min() <= 0 or np.quantile(high, LEVELS[1], axis=0).max() >= 1
            for low, high in sides
        ):
            lows, highs = zip(*(_mean(*drawn) for drawn in sides), strict=True)
            least, most = (np.clip(2.0 * np.array(limits) - 1.0, -1.0, 1.0) for limits in (lows, highs))
            low = np.sqrt(least.prod()) if least.min() > 0 else -np.sqrt(np.minimum(least, 0.0).prod())
            high = np.sqrt(most.prod()) if most.min() > 0 else -np.sqrt(np.minimum(most, 0.0).prod())
            return float(low), float(high)
        cells = np.stack([hits[:, 0], hits[:, 1], missed[:, 0], missed[:, 1]])
        a, b, c, d = random.standard_gamma(np.maximum(cells, 0.0) + 0.5)
        values = (a * b - c * d) / np.sqrt((a + c) * (a + d) * (b + c) * (b + d))
    else:
        total = max(float(counts.sum()), 1.0)
        true = hits + missed
        # By so much noise the chance of agreement is too uncertain for a law of first order.
        noisy = float(true.var(axis=0).sum())
        together = max(float(np.square(counts.sum(axis=1)).sum()) - noisy, 0.0)
        if noisy > 0.04 * (total**2 - together):
            return -1.0, 1.0
        known = np.maximum(counts, 0.0) + 1.0 / counts.size
        known *= total / known.sum()
        if len(counts) > _MOST_CLASSES:
            accuracy = float(np.trace(known)) / total
            drawn = random.standard_normal(len(hits)) * np.sqrt(accuracy * (1.0 - accuracy) / total)
        else:
            cells = random.standard_gamma(known, (len(hits), *known.shape))
            on = np.einsum("dkk->dk", cells)
            drawn = _coefficient(on, cells.sum(axis=2) - on, cells.sum(axis=1) - on)
            on = np.diagonal(known)[None]
            drawn -= _coefficient(on, known.sum(axis=1) - on, known.sum(axis=0) - on)
        values = np.clip(_coefficient(hits, missed, wrong) + drawn, -1.0, 1.0)
    return _limits(values, values)


def correlation(counts: Floats) -> float:
    """Return Matthews' coefficient of a noisy matrix (K, K), from sums whose noise is not cut; 0 without spread."""
    hits = np.diagonal(counts)[None]
    return float(_coefficient(hits, counts.sum(axis=1) - hits, counts.sum(axis=0) - hits)[0])


def _coefficient(hits: Floats, missed: Floats, wrong: Floats) -> Floats:
    true, predicted = hits + missed, hits + wrong
    total = np.maximum(true.sum(axis=1), 1.0)
    chance = (true * predicted).sum(axis=1) / total**2
    square = (1.0 - (true**2).sum(axis=1) / total**2) * (1.0 - (predicted**2).sum(axis=1) / total**2)
    spread = np.sqrt(np.where(square <= 0.0, np.inf, square))
    return np.asarray(np.clip((hits.sum(axis=1) / total - chance) / spread, -1.0, 1.0))


def _areas(sides: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the area under the curve of histograms (D, 2, bins), ties half, and rows of the class and of the others.

    NaN where one of these is not positive. Counts are not cut, so that their noise cancels.
    """
    negative, positive = sides[:, 0], sides[:, 1]
    here, there = positive.sum(axis=1), negative.sum(axis=1)
    below = np.cumsum(negative, axis=1) - 0.5 * negative
    known = (here > 0) & (there > 0)
    pairs = np.where(known, np.maximum(here, 1.0) * np.maximum(there, 1.0), np.nan)
    return np.clip((positive * below).sum(axis=1) / pairs, 0.0, 1.0), here, there


def area_under_curve(histograms: Floats) -> float:
    """Return the area under the ROC curve from (noisy) histograms (K, 2, bins), averaged over the classes.

    Post-processing: ties within a bin count half; 0.5 where a side is empty.
    """
    return float(np.nan_to_num(_areas(histograms)[0], nan=0.5).mean())


def margins_of_area(histograms: Floats, noise: Noise) -> tuple[float, float]:
    """Return the 95 % margin of the area under the ROC curve, averaged over classes, from noisy histograms.

    The area is a ratio of bilinear sums of counts, cut nowhere but at its ends: sums of cut counts are biased. The draw
    of the rows is that of Hanley and McNeil, at an area moved towards 1/2 by as much as two rows more would.

    Parameters
    ----------
    histograms : array (H, 2, bins)
        Rows of the other classes and of the class, as of :class:`dpalgos.evaluators.score_histogram.ScoreHistogram`.
    noise : callable
    """
    random = np.random.default_rng(_SEED)
    low, high = [], []
    draws = _draws(histograms.size)
    for sides in histograms:
        area, here, there = _areas(sides - noise(random, (draws, *sides.shape)))
        unknown = np.isnan(area)
        area, here, there = np.nan_to_num(area, nan=0.5), np.maximum(here, 1.0), np.maximum(there, 1.0)
        fewer = np.minimum(here, there)
        moved = (area * fewer + 1.0) / (fewer + 2.0)
        one, other = moved / (2.0 - moved), 2.0 * moved**2 / (1.0 + moved)
        variance = moved * (1 - moved) + (here - 1) * (one - moved**2) + (there - 1) * (other - moved**2)
        area = np.clip(area + random.standard_normal(draws) * np.sqrt(variance / (here * there)), 0.0, 1.0)
        low.append(np.where(unknown, 0.0, area))
        high.append(np.where(unknown, 1.0, area))
    return _limits(np.mean(low, axis=0), np.mean(high, axis=0))
