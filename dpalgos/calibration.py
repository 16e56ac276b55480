"""Probabilities and a threshold from a released score histogram of two classes: post-processing, free of charge."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from dpalgos.errors import ParameterError
from dpalgos.metrics import LEVELS, Margins, Noise, ratio, shares, widened, with_margins
from dpalgos.rows import Floats

_SEED, _DRAWS = 20260702, 4_000
_AIMS = "balanced, f1, recall=0.8 (a share), or cost=1:20 (of a false alarm, and of a miss)"


@dataclass(frozen=True)
class Aim:
    """What a threshold is chosen for: ``balanced``, ``f1``, ``recall=SHARE`` or ``cost=FALSE:MISSED``."""

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
    """What turns a score into a probability of the second class, and the score above which it is predicted.

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
        return np.asarray(expit(self.slope * scores + self.offset))


def platt(histogram: Floats, deviation: float, scale: float = 1.0) -> Calibration:
    """Fit a logistic curve to a noisy histogram of squashed scores, rows of the first class and of the second.

    Post-processing. The logistic risk is linear in the counts p of the second class, and convex where the counts n of
    both are not negative: sum n log(1 + exp(m)) - p m for the margin m = slope * score + offset. So p stays as noisy as
    it is, and its noise cancels; n counts where it is above twice its noise's deviation. Platt's one row more of
    either class makes nobody certain.

    Parameters
    ----------
    histogram : array (2, bins)
        See :class:`dpalgos.evaluators.noisy_sums.ScoreHistogram`.
    deviation : float
        Of the noise of each count.
    scale : float
        By which scores were divided before they were squashed.

    References
    ----------
    Platt, "Probabilistic outputs for support vector machines", 1999.
    """
    bins = histogram.shape[1]
    scores = scale * logit((np.arange(bins) + 0.5) / bins)
    rows = _known(histogram, deviation)
    positive = np.where(rows > 0, histogram[1], 0.0)
    total = max(float(rows.sum()), 1.0)

    def risk(parameters: Floats) -> float:
        margin = parameters[0] * scores + parameters[1]
        of_rows = float(rows @ np.logaddexp(0.0, margin) - positive @ margin)
        one_each = float(np.logaddexp(0.0, parameters[1]) + np.logaddexp(0.0, -parameters[1]))
        return (of_rows + one_each) / total + 1e-6 * float(parameters[0] ** 2)

    share = (max(float(positive.sum()), 0.0) + 1.0) / (total + 2.0)
    start = np.array([1.0, float(logit(min(share, 0.999)))])
    solution = minimize(risk, start, method="L-BFGS-B", bounds=[(0.0, 20.0), (-20.0, 20.0)]).x
    return Calibration(float(solution[0]), float(solution[1]))


def _known(histogram: Floats, deviation: float) -> Floats:
    """Return the rows of each bin (bins,), none where noise alone may have made them."""
    rows = histogram.sum(axis=0)
    return np.asarray(np.where(rows > 2.0 * np.sqrt(2.0) * deviation, rows, 0.0))


def _band(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return limits (T,) that 95 % of the draws (D, T) keep at all thresholds at once."""
    limits = []
    for sign, side in ((1.0, low), (-1.0, high)):
        ordered = np.sort(sign * side, axis=0)
        pairs = zip(ordered.T, (sign * side).T, strict=True)
        ranks = np.stack([np.searchsorted(column, values, side="right") for column, values in pairs])
        level = np.quantile(ranks.min(axis=0) / len(side), LEVELS[0])
        limits.append(sign * np.quantile(ordered, level, axis=0))
    return limits[0], limits[1]


def operating_points(histogram: Floats, noise: Noise) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """Return recall, precision, F1 and balanced accuracy at each inner edge of the bins, and their 95 % margins.

    Each number's margins hold for all thresholds at once, so that they hold at one that is chosen by the same
    histogram. They are simulated as in :mod:`dpalgos.metrics`, the drawing of the rows included.

    Parameters
    ----------
    histogram : array (2, bins)
    noise : callable
    """
    random = np.random.default_rng(_SEED)
    drawn = histogram - noise(random, (_DRAWS, *histogram.shape))
    hits, missed, alarms, quiet = _counts(drawn)
    recall, precision = shares(random, hits, missed), shares(random, hits, alarms)
    overlap, specificity = shares(random, hits, missed + alarms), shares(random, quiet, alarms)
    bands = {
        "recall": _band(*recall),
        "precision": _band(*precision),
        "f1": _band(*(2 * side / (1 + side) for side in overlap)),
        "balanced_accuracy": _band(*((one + other) / 2 for one, other in zip(recall, specificity, strict=True))),
    }
    hits, missed, alarms, quiet = (np.maximum(part[0], 0.0) for part in _counts(histogram[None]))
    hit_rates, same = ratio(hits, hits + missed), ratio(hits, hits + missed + alarms)
    values = {
        "recall": hit_rates,
        "precision": ratio(hits, hits + alarms),
        "f1": 2 * same / (1 + same),
        "balanced_accuracy": (hit_rates + ratio(quiet, quiet + alarms)) / 2,
    }
    return values, bands


def _counts(histograms: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return hits, misses, false alarms and quiet rows (D, bins - 1) of histograms (D, 2, bins)."""
    below = np.cumsum(histograms, axis=2)
    above = below[:, :, -1:] - below
    return above[:, 1, :-1], below[:, 1, :-1], above[:, 0, :-1], below[:, 0, :-1]


def choose(
    histogram: Floats, noise: Noise, deviation: float, aim: str, scale: float = 1.0
) -> tuple[Calibration, dict[str, float]]:
    """Return calibration and threshold for a stated aim, and what is to be expected there with 95 % margins.

    Returns
    -------
    (Calibration, dict)
        The numbers are called ``aim_recall``, ``aim_recall_low`` and so on; ``aim_probability`` is the calibrated
        probability at the threshold.
    """
    bins = histogram.shape[1]
    fitted, rows = platt(histogram, deviation, scale), _known(histogram, deviation)
    # The best of many noisy numbers is mostly noise: expected counts, of two parameters, are compared instead.
    second = fitted.probability(scale * logit((np.arange(bins) + 0.5) / bins)) * rows
    place = Aim.parse(aim).best(*(part[0] for part in _counts(np.stack([rows - second, second])[None])))
    values, bands = operating_points(histogram, noise)
    calibration = Calibration(fitted.slope, fitted.offset, float(scale * logit((place + 1) / bins)))
    predicted = float(np.clip(histogram[:, place + 1 :].sum() / max(histogram.sum(), 1.0), 0.0, 1.0))
    guesses = {"balanced_accuracy": 0.5}
    margins: Margins = {
        f"aim_{name}": widened((float(low[place]), float(high[place])), guesses.get(name, predicted))
        for name, (low, high) in bands.items()
    }
    numbers = with_margins({f"aim_{name}": float(of[place]) for name, of in values.items()}, margins)
    return calibration, {**numbers, "aim_probability": float(calibration.probability(np.array(calibration.threshold)))}
