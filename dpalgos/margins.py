"""Metrics of released noisy counts, with 95 % margins from the law of the noise and of the rows drawn.

Let X = C + Z be released, C the exact counts of the held-out rows and Z the noise. Counts that the release leaves
possible are drawn as X - Z', Z' distributed as Z, by a generator with a public seed: the margins are post-processing of
the release, have no privacy cost, and are the same in every repetition. Nothing of the release's own noise is used.

For a ratio A / (A + B) of sums of counts the 2.5 % and 97.5 % quantiles of the draws are the limits of Fieller's
interval, with the exact distribution of the noise for the normal one: with a = A - Z'_A and b = B - Z'_B cut at zero,
a / (a + b) <= t exactly where (1 - t) (A - Z'_A) <= t (B - Z'_B), so that the share of such draws is the p-value of
"the ratio is t". Draws with a = b = 0 may be any ratio, and count as 0 for the lower and as 1 for the upper limit; the
interval covers with at least 95 %, for any denominator, where the noise is all there is.

The held-out rows are a sample, and the margins hold for the number in the population: each
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

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpalgos.evaluators.noisy_sums import NoisySums
from dpalgos.guarantees import Setting
from dpalgos.measured import SHARE, Metrics, Scale
from dpalgos.metrics import correlation, correlation_coefficient, metrics_of_confusion, recalls
from dpalgos.rows import Floats


def metrics_of_noisy_confusion(
    counts: Floats, rows: int | None, deviation: float, noise: Noise, classes: Sequence[str] = ()
) -> Metrics:
    """Return the metrics of a confusion matrix with independent noise of mean zero on each of its counts.

    Those of :func:`metrics_of_confusion`, and :func:`recalls`; with each the limits of its 95 % margin, ``<name>_low``
    and ``<name>_high``, by the noise and the drawing of the rows together. Each margin holds by itself, not all of them
    at once. What cannot be told from guessing, nor from a perfect model's, cannot be measured
    (:mod:`dpalgos.measured`). ``predicted_<class>`` is the share of the counted rows that a class is predicted for, and
    ``accuracy_noise`` the standard deviation that the noise gives the accuracy.

    The accuracy is the trace T, which is unbiased, over the number N of rows counted. With two classes N is the noisy
    total: T/N then has sqrt(2 (1 - a)^2 + 2 a^2) sigma / N to first order, never more than the sqrt(2) sigma / N that a
    known N would give, and null records need not be known. With K > 2 that would be more, and N is the public number of
    rows, unless the noisy total says that null records are among them (it is lower by more than 3 K sigma): T/N then
    has sqrt(K) sigma / N, and null records too few to be told from the noise count as wrong answers. Otherwise N is the
    total, with sqrt(K (1 - a)^2 + (K^2 - K) a^2) sigma / N.

    Parameters
    ----------
    counts : array (K, K)
        True class by predicted class, noisy.
    rows : int or None
        Rows that were held out, null records included; public. None of a part of them, whose number is not: N is the
        noisy total then, for any K.
    deviation : float
        sigma, of the noise of each count.
    noise : callable
        Draws from the noise's distribution.
    classes : sequence of str
        Names; without them, or with more than twenty classes, there are no numbers per class.
    """
    size, total, hits = len(counts), float(counts.sum()), float(np.trace(counts))
    known = rows if rows is not None and size > 2 and total >= rows - 3.0 * size * deviation else None
    all_counted = known is not None
    counted = max(total if known is None else float(known), 1.0)
    accuracy = min(max(hits / counted, 0.0), 1.0)
    cells = size if all_counted else size * (1 - accuracy) ** 2 + size * (size - 1) * accuracy**2
    metrics = metrics_of_confusion(counts) | {"accuracy": accuracy}
    if size > 2:
        metrics["mcc"] = correlation(counts)
    margins, of_recalls, of_predictions = margins_of_confusion(counts, counted if all_counted else None, noise)
    predicted = np.clip(counts.sum(axis=0) / counted, 0.0, 1.0)
    true = np.clip(counts.sum(axis=1) / counted, 0.0, 1.0)
    # What guessing gives that predicts each class as often as the model does.
    lucky = 2.0 * true[-1] * predicted[-1] / max(true[-1] + predicted[-1], 1e-12)
    scales = {"balanced_accuracy": Scale(guess=1.0 / size), "mcc": Scale(least=-1.0)}
    of_one = (true[-1], predicted[-1], lucky) if size == 2 else (1.0 / size,) * 3
    scales |= {name: Scale(guess=float(of)) for name, of in zip(("precision", "recall", "f1"), of_one, strict=True)}
    named = recalls(counts, classes) if classes else {}
    for name, limits, guess in zip(named, of_recalls.tolist(), predicted.tolist(), strict=False):
        margins[name], scales[name] = (limits[0], limits[1]), Scale(guess=guess)
    metrics |= named
    for name, share, limits in zip(named, predicted.tolist(), of_predictions.tolist(), strict=False):
        margins["predicted" + name.removeprefix("recall")] = (limits[0], limits[1])
        metrics["predicted" + name.removeprefix("recall")] = share
    scales["accuracy"] = Scale(guess=float(np.clip(metrics["majority_rate"], *margins["majority_rate"])))
    of_noise = _deviations(counts, deviation, list(named))
    of_noise["accuracy"] = math.sqrt(cells) * deviation / counted
    found = Metrics()
    for name, value in metrics.items():
        limits = no_narrower(margins[name], value, TWO_SIDED * of_noise.get(name, 0.0))
        # The accuracy's margin is left as it is, for comparisons.
        found.measure(name, value, limits, scales.get(name, SHARE), widen=name != "accuracy")
    found["accuracy_noise"] = of_noise["accuracy"]
    return found if rows is None else found.merged({"held_out_rows": float(rows)})


def no_narrower(limits: tuple[float, float], value: float, reach: float) -> tuple[float, float]:
    """Return a margin of a share that is at least as wide as the noise reaches.

    Draws of counts are cut at 0: where a noisy count is far below 0, no draw of it is above, and the drawing of rows
    alone is left of the margin. Noise of A by delta takes a share A / (A + B) from 0 to delta / (B + delta), and noise
    of B takes it as far from 1: with r = delta / (A + B), the reach to first order, that is r / (1 + r). The margin is
    widened to this width and no further, toward ``value`` less and plus r, as far as shares go. It holds what it held,
    so that its coverage does not fall.

    Parameters
    ----------
    limits : (float, float)
    value : float
    reach : float
        1.96 standard deviations that the noise gives the share, to first order.
    """
    low, high = limits
    missing = reach / (1.0 + reach) - (high - low)
    if missing <= 0:
        return limits
    value = min(max(value, 0.0), 1.0)
    below, above = max(low - max(value - reach, 0.0), 0.0), max(min(value + reach, 1.0) - high, 0.0)
    # Together they are at least what is missing, but for rounding, by which both may be 0.
    part = missing / (below + above) if below + above > missing else 1.0
    return low - part * below, high + part * above


def _deviations(counts: Floats, deviation: float, named: Sequence[str]) -> dict[str, float]:
    """Return to first order the standard deviations that noise gives shares of a matrix's counts.

    A share A/(A + B), of sums of a and of b counts, has sigma sqrt(a (1 - s)^2 + b s^2) / (A + B).
    """
    size, hits = len(counts), np.maximum(np.diagonal(counts), 0.0)

    def of_share(whole: Floats, others: int) -> tuple[Floats, Floats]:
        whole = np.maximum(np.maximum(whole, hits), 1.0)
        share = hits / whole
        return share, deviation * np.sqrt((1.0 - share) ** 2 + others * share**2) / whole

    true, wrong = counts.sum(axis=1), counts.sum(axis=0)
    _, recall = of_share(true, size - 1)
    _, precision = of_share(wrong, size - 1)
    overlap, of_overlap = of_share(true + wrong - np.diagonal(counts), 2 * size - 2)
    # F1 is 2 s / (1 + s).
    f1 = of_overlap * 2.0 / (1.0 + overlap) ** 2
    chosen = slice(1, 2) if size == 2 else slice(None)
    means = {"precision": precision[chosen], "recall": recall[chosen], "f1": f1[chosen], "balanced_accuracy": recall}
    found = {name: float(np.sqrt(np.square(of).sum()) / len(of)) for name, of in means.items()}
    # Of more than twenty classes none is named.
    found |= {name: float(of) for name, of in zip(named, recall, strict=False)}
    # Of a class that is predicted for a share p of the rows: at least the noise of its own counts but for p.
    total = max(float(counts.sum()), 1.0)
    shares_of = np.clip(wrong / total, 0.0, 1.0)
    predicted = deviation * np.sqrt(size * (1.0 - shares_of) ** 2 + (size**2 - size) * shares_of**2) / total
    return found | {
        f"predicted{name.removeprefix('recall')}": float(of) for name, of in zip(named, predicted, strict=False)
    }


TWO_SIDED = 1.96
"""Standard deviations that hold 95 % of a Gaussian distribution."""
Noise = Callable[[np.random.Generator, tuple[int, ...]], Floats]
"""Draws noise of the distribution of a release, in units of its counts."""
Margins = dict[str, tuple[float, float]]
LEVELS = (0.025, 0.975)
PUBLIC_SEED = 20260701
"""Of what is drawn again to say a margin."""
_MID_P = 0.25
# So many numbers are drawn, and at least and at most so many times each: limits are exact to some 0.002 of probability.
_NUMBERS, _FEWEST, _MOST = 4_000_000, 1_000, 5_000
# Beyond so many classes a row of the matrix and a column of it are drawn as if they had no cell in common.
_MOST_CLASSES = 30


def simulated(algorithm: NoisySums, setting: Setting) -> Noise:
    """Return simulated noise of released sums, from its distribution: that of all the parties, the most."""
    scale = setting.noise_factor / algorithm.units(setting)
    drawn = algorithm.simulated(setting)
    return lambda random, shape: scale * drawn(random, shape)


def of_sum(noise: Noise, parts: int) -> Noise:
    """Return the noise of a sum of so many parts, each of which has that noise, independent of the others'."""

    def summed(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        total = noise(random, shape)
        for _ in range(parts - 1):
            total = total + noise(random, shape)
        return total

    return summed


def draws_of(numbers: int) -> int:
    """Return how often as many numbers are drawn."""
    return min(max(_NUMBERS // numbers, _FEWEST), _MOST)


def _limits(low: Floats, high: Floats) -> tuple[float, float]:
    return float(np.quantile(low, LEVELS[0])), float(np.quantile(high, LEVELS[1]))


def drawn_rates(random: np.random.Generator, hits: Floats, misses: Floats) -> tuple[Floats, Floats]:
    """Return drawn probabilities, for lower and for upper limits, of drawn numbers of hits and misses."""
    hits, misses = np.maximum(hits, 0.0), np.maximum(misses, 0.0)
    sides = []
    # Without any row nothing is known, from 0 to 1.
    exchanged = (random.random(hits.shape) < _MID_P) & (hits + misses > 0)
    for more in (exchanged, ~exchanged):
        one, other = random.standard_gamma(hits + more), random.standard_gamma(misses + ~more)
        sides.append(one / (one + other))
    return sides[0], sides[1]


def drawn_cells(counts: Floats, noise: Noise, random: np.random.Generator) -> tuple[Floats, ...]:
    """Return draws of the diagonal (D, K), of the rest of each row and of each column."""
    classes = len(counts)
    hits = np.diagonal(counts)
    missed, wrong = counts.sum(axis=1) - hits, counts.sum(axis=0) - hits
    if classes <= _MOST_CLASSES:
        drawn = noise(random, (draws_of(classes**2), classes, classes))
        on = np.einsum("dkk->dk", drawn)
        return hits - on, missed - (drawn.sum(axis=2) - on), wrong - (drawn.sum(axis=1) - on)
    draws = draws_of(40 * classes)
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
    random = np.random.default_rng(PUBLIC_SEED)
    classes = len(counts)
    hits, missed, wrong = drawn_cells(counts, noise, random)
    right, total = hits.sum(axis=1), (hits + missed).sum(axis=1)
    errors = total - right if rows is None else rows - np.clip(right, 0.0, rows)
    recall = drawn_rates(random, hits, missed)
    precision = drawn_rates(random, hits, wrong)
    overlap = drawn_rates(random, hits, missed + wrong)
    predicted = np.clip((hits + wrong) / np.maximum(total if rows is None else rows, 1.0).reshape(-1, 1), 0.0, 1.0)
    # Of class 1 where there are two, as usual; the mean of the classes otherwise.
    of = [slice(1, 2), slice(None)][classes > 2]
    true = hits + missed
    # Of two classes the noisy total is the better base: the noise of either class is in it.
    base = total if rows is None or classes == 2 else np.full_like(total, rows)
    frequencies = drawn_rates(random, true, base[:, None] - true)
    # The largest is at least the largest of lower limits that hold all at once.
    largest = (
        float(np.quantile(frequencies[0], LEVELS[0] / classes, axis=0).max()),
        float(np.quantile(frequencies[1], LEVELS[1], axis=0).max()),
    )
    margins = {
        "accuracy": _limits(*drawn_rates(random, right, errors)),
        "balanced_accuracy": _mean(*recall),
        "majority_rate": largest,
        "precision": _mean(*(drawn[:, of] for drawn in precision)),
        "recall": _mean(*(drawn[:, of] for drawn in recall)),
        "f1": _mean(*((2.0 * drawn / (1.0 + drawn))[:, of] for drawn in overlap)),
        "mcc": _correlation(random, counts, hits, missed, wrong, (recall, precision)),
    }
    if classes == 2:
        margins["prevalence"] = _limits(frequencies[0][:, 1], frequencies[1][:, 1])
    each = np.stack([np.quantile(side, level, axis=0) for side, level in zip(recall, LEVELS, strict=True)], axis=1)
    return margins, each, np.quantile(predicted, LEVELS, axis=0).T


def joined(parts: Floats, at_ends: NDArray[np.bool_]) -> Floats:
    """Return draws of the mean over the last axis of ``parts`` (D, …, K), for a limit of it.

    Numbers whose own limits on that side reach the end move together, and with the sum of the others, which are
    independent. Draws that are cut at 0, of lower limits, have nothing beyond it that would make up for another
    number's deviation: the quantile of a sum of independent draws is then missed as the product of two p-values is
    below alpha, with alpha (1 - ln alpha). For an upper limit such a cut is safe: no draw is below the one that was not
    cut, and so no quantile of the sum is. It is the other way round at 1.

    Parameters
    ----------
    parts : array (D, …, K)
    at_ends : array (…, K) of bool
        Whose own limits reach 0, for a lower limit, or 1, for an upper one.
    """
    together = np.where(at_ends, np.sort(parts, axis=0), 0.0).sum(axis=-1)
    others = np.where(at_ends, 0.0, parts).sum(axis=-1)
    summed = together + np.where(at_ends.any(axis=-1), np.sort(others, axis=0), others)
    return np.asarray(summed / parts.shape[-1])


def _mean(low: Floats, high: Floats) -> tuple[float, float]:
    """Return the limits of the mean of several classes' numbers, from draws (D, K) of each; see :func:`joined`."""
    lowest, highest = np.quantile(low, LEVELS[0], axis=0), np.quantile(high, LEVELS[1], axis=0)
    return _limits(joined(low, lowest <= 0), joined(high, highest >= 1))


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
        # By so much noise the chance of agreement is too uncertain for a distribution of first order.
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
            drawn = correlation_coefficient(on, cells.sum(axis=2) - on, cells.sum(axis=1) - on)
            on = np.diagonal(known)[None]
            drawn -= correlation_coefficient(on, known.sum(axis=1) - on, known.sum(axis=0) - on)
        values = np.clip(correlation_coefficient(hits, missed, wrong) + drawn, -1.0, 1.0)
    return _limits(values, values)
