"""What models and methods are measured by, and how many rows to hold out for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from dpalgos.evaluators.noisy_sums import SQUARES_WEIGHT, predicted_classes
from dpalgos.margins import Noise, correlation, margins_of_confusion, widened
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta
from dpalgos.rows import Floats, Ints
from dpalgos.solvers import Problem

TWO_SIDED = 1.96
"""Standard deviations that hold 95 % of a Gaussian law."""
_MOST_RECALLS = 20
# What trackers refuse in the name of a metric.
_NOT_OF_NAMES = r"[^\w\-. :/]"


def confusion_matrix(labels: Ints, predicted: Ints, classes: int, weights: Floats | None = None) -> Floats:
    """Return (weighted) counts (K, K), true class by predicted class; labels and predictions in 0 … K − 1."""
    cells = labels * classes + predicted
    return np.bincount(cells, weights, minlength=classes * classes).reshape(classes, classes).astype(np.float64)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def per_class(counts: Floats) -> tuple[Floats, Floats, Floats]:
    """Return precision, recall and F1 of each class, (K,) each; 0 where they are undefined.

    Parameters
    ----------
    counts : array (K, K)
        True class by predicted class, perhaps noisy; a negative sum counts as zero.
    """
    diagonal = np.diagonal(counts)
    # Sums are cut, not their counts: cut noise does not cancel.
    hits, wrong, missed = (
        np.maximum(part, 0.0) for part in (diagonal, counts.sum(axis=0) - diagonal, counts.sum(axis=1) - diagonal)
    )
    precision, recall = _ratio(hits, hits + wrong), _ratio(hits, hits + missed)
    return precision, recall, _ratio(2.0 * precision * recall, precision + recall)


def metrics_of_confusion(counts: Floats) -> dict[str, float]:
    """Return ``accuracy``, macro ``precision``, ``recall`` and ``f1``, and ``mcc`` of a (noisy) confusion matrix.

    With two classes precision, recall and F1 are those of class 1, as usual for binary problems. Beside the accuracy
    stand ``balanced_accuracy``, the mean recall of the classes that occur, and ``majority_rate``, the accuracy of
    always guessing the most frequent class. Total: where a denominator is zero the metric is 0.

    References
    ----------
    Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", 2004, for MCC.
    """
    known = np.maximum(counts, 0.0)
    total, hits = known.sum(), np.trace(known)
    by_class = per_class(counts)
    averaged = [values[1] if len(counts) == 2 else values.mean() for values in by_class]
    true, predicted = known.sum(axis=1), known.sum(axis=0)
    covariance = hits * total - true @ predicted
    spread = np.sqrt(max(total**2 - predicted @ predicted, 0.0)) * np.sqrt(max(total**2 - true @ true, 0.0))
    return {
        "accuracy": float(hits / total) if total > 0 else 0.0,
        "balanced_accuracy": float(by_class[1][true > 0].mean()) if total > 0 else 0.0,
        "majority_rate": float(true.max() / total) if total > 0 else 0.0,
        "precision": float(averaged[0]),
        "recall": float(averaged[1]),
        "f1": float(averaged[2]),
        "mcc": float(covariance / spread) if spread > 0 else 0.0,
    }


def metrics_of_noisy_confusion(
    counts: Floats, rows: int, deviation: float, noise: Noise, classes: Sequence[str] = ()
) -> dict[str, float]:
    """Return the metrics of a confusion matrix with independent noise of mean zero on each of its counts.

    Those of :func:`metrics_of_confusion`, and :func:`recalls`; with each the limits of its 95 % margin, ``<name>_low``
    and ``<name>_high``, by the noise and the drawing of the rows together (see :mod:`dpalgos.margins`). Limits from the
    least possible value to 1 say that the number cannot be told from guessing, nor from a perfect model's.
    ``predicted_<class>`` is the share of the held-out rows that a class is predicted for, and ``accuracy_noise`` the
    standard deviation that the noise gives the accuracy.

    The accuracy is the trace T, which is unbiased, over the number N of rows counted. N is the public number of rows,
    and T/N then has the noise deviation sqrt(K) sigma / N, unless the noisy total says that null records are among them
    (it is lower by more than 3 K sigma): then N is that total, with its noise, and T/N has
    sqrt(K (1 - a)^2 + (K^2 - K) a^2) sigma / N to first order.

    Parameters
    ----------
    counts : array (K, K)
        True class by predicted class, noisy.
    rows : int
        Rows that were held out, null records included; public.
    deviation : float
        sigma, of the noise of each count.
    noise : callable
        Draws from the noise's law.
    classes : sequence of str
        Names; no class has numbers of its own without them, or where there are more than twenty.
    """
    size, total, hits = len(counts), float(counts.sum()), float(np.trace(counts))
    all_counted = total >= rows - 3.0 * size * deviation
    counted = max(float(rows) if all_counted else total, 1.0)
    accuracy = min(max(hits / counted, 0.0), 1.0)
    cells = size if all_counted else size * (1 - accuracy) ** 2 + size * (size - 1) * accuracy**2
    found = metrics_of_confusion(counts) | {"accuracy": accuracy}
    if size > 2:
        found["mcc"] = correlation(counts)
    margins, of_recalls, of_predictions = margins_of_confusion(counts, counted if all_counted else None, noise)
    predicted = np.clip(counts.sum(axis=0) / counted, 0.0, 1.0)
    true = np.clip(counts.sum(axis=1) / counted, 0.0, 1.0)
    # What guessing gives that predicts each class as often as the model does.
    lucky = 2.0 * true[-1] * predicted[-1] / max(true[-1] + predicted[-1], 1e-12)
    guesses = {"balanced_accuracy": 1.0 / size, "mcc": 0.0}
    of_one = (true[-1], predicted[-1], lucky) if size == 2 else (1.0 / size,) * 3
    guesses |= dict(zip(("precision", "recall", "f1"), map(float, of_one), strict=True))
    named = recalls(counts, classes) if classes else {}
    for name, limits, guess in zip(named, of_recalls.tolist(), predicted.tolist(), strict=False):
        margins[name], guesses[name] = (limits[0], limits[1]), guess
    for name, guess in guesses.items():
        margins[name] = widened(margins[name], guess, -1.0 if name == "mcc" else 0.0)
    for name, share, limits in zip(named, predicted.tolist(), of_predictions.tolist(), strict=False):
        margins["predicted" + name.removeprefix("recall")] = limits
        found["predicted" + name.removeprefix("recall")] = share
    return {
        **with_margins(found | named, margins),
        "accuracy_noise": math.sqrt(cells) * deviation / counted,
        "held_out_rows": float(rows),
    }


def with_margins(values: Mapping[str, float], margins: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return numbers, each moved into its margin, and behind each its limits."""
    found = {}
    for name, value in values.items():
        low, high = margins.get(name, (value, value))
        found[name] = min(max(value, low), high)
        if name in margins:
            found |= {f"{name}_low": low, f"{name}_high": high}
    return found


def metrics_of_noisy_errors(
    sums: Floats, rows: int, deviation: float, label_range: Sequence[float]
) -> dict[str, float]:
    """Return what follows from noisy sums of a regression's errors, in the unit of the target.

    ``mse``, ``mae`` and ``r2`` (1 - mse / variance of the targets; 0 where no variance is left) of predictions clipped
    to the declared range; ``mae_noise`` and ``r2_noise``, their standard deviations by the noise alone (of R^2 to first
    order); ``mae_low`` and ``mae_high``, 1.96 standard deviations of noise and drawn rows together below and above.
    Means are over the public number of rows, unless the noisy count says that null records are among them (it is lower
    by more than three standard deviations): then over that count, whose noise the margins leave out.

    Parameters
    ----------
    sums : array (5,)
        Of (1, 2 a^2, a, t, t^2); see :class:`dpalgos.evaluators.noisy_sums.ErrorSums`.
    rows : int
        Rows that were held out, null records included; public.
    deviation : float
        Of the noise of each sum.
    label_range : (float, float)
        Declared.
    """
    count, squares, absolute, first, second = (float(value) for value in sums)
    width = label_range[1] - label_range[0]
    counted = max(float(rows) if count >= rows - 3.0 * deviation else count, 1.0)
    noise = deviation / counted
    mse = max(squares / SQUARES_WEIGHT / counted, 0.0)
    mae = min(max(absolute / counted, 0.0), 1.0)
    # Of t / 2: in units of the width, like the errors.
    variance = max(second / counted - (first / counted) ** 2, 0.0) / 4.0
    r2, r2_noise = 0.0, 0.0
    if variance > 0:
        r2 = 1.0 - mse / variance
        of_variance = math.hypot(1.0, 2.0 * first / counted) * noise / 4.0
        r2_noise = math.hypot(noise / SQUARES_WEIGHT, (1.0 - r2) * of_variance) / variance
    margin = TWO_SIDED * math.hypot(noise, math.sqrt(max(mse - mae * mae, 0.0) / counted))
    return {
        "mse": mse * width**2,
        "mae": mae * width,
        "r2": r2,
        "mae_noise": noise * width,
        "mae_low": max(mae - margin, 0.0) * width,
        "mae_high": min(mae + margin, 1.0) * width,
        "r2_noise": r2_noise,
    }


def recalls(counts: Floats, classes: Sequence[str]) -> dict[str, float]:
    """Return the recall of each class by name, as ``recall_<class>``; none where there are more than twenty."""
    if len(classes) > _MOST_RECALLS:
        return {}
    found = per_class(counts)[1]
    names = (re.sub(_NOT_OF_NAMES, "_", name) for name in classes)
    # Not to be taken for the limits of another number's margin.
    safe = (f"{name}_class" if name.endswith(("low", "high")) else name for name in names)
    return {f"recall_{name}": float(of) for name, of in zip(safe, found, strict=True)}


def roc_auc(labels: Ints, scores: Floats, weights: Floats | None = None) -> float:
    """Return the area under the ROC curve, averaged over one-vs-rest problems where there are several scores.

    Ties count half. Classes that are absent, or alone, are left out; without any problem left the area is 0.5.
    NaN scores rank lowest.

    Parameters
    ----------
    labels : array (m,)
    scores : array (m, K), or (m, 1) for class 1 of two
    weights : array (m,), optional
        Of each row, above 0; 1 by default.
    """
    positives = [1] if scores.shape[1] == 1 else list(range(scores.shape[1]))
    weights = np.ones(len(labels)) if weights is None else weights
    areas = []
    for column, label in enumerate(positives):
        positive = np.where(labels == label, weights, 0.0)
        here, there = float(positive.sum()), float((weights - positive).sum())
        if here > 0 and there > 0:
            known = np.nan_to_num(scores[:, column], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
            _, places = np.unique(known, return_inverse=True)
            equal = np.bincount(places, weights - positive)
            below = np.cumsum(equal) - equal / 2.0
            areas.append(float(positive @ below[places]) / (here * there))
    return float(np.mean(areas)) if areas else 0.5


def classification_metrics(
    labels: Ints, scores: Floats, classes: int, weights: Floats | None = None
) -> dict[str, float]:
    """Return the metrics of a classifier: those of its confusion matrix, and ``auc``.

    Parameters
    ----------
    labels : array (m,) of class indices
    scores : array (m, K), or (m, 1) for two classes
    classes : int
    weights : array (m,), optional
        Of each row, above 0; 1 by default.
    """
    counts = confusion_matrix(labels, predicted_classes(scores), max(classes, 2), weights)
    return {**metrics_of_confusion(counts), "auc": roc_auc(labels, scores, weights)}


def regression_metrics(targets: Floats, predictions: Floats, weights: Floats | None = None) -> dict[str, float]:
    """Return ``mse``, ``mae`` and ``r2`` (0 for constant targets), of weighted rows or of rows that count the same."""
    if not targets.size:
        return {"mse": 0.0, "mae": 0.0, "r2": 0.0}
    errors = predictions - targets
    mse = float(np.average(np.square(errors), weights=weights))
    variance = float(np.average(np.square(targets - np.average(targets, weights=weights)), weights=weights))
    return {
        "mse": mse,
        "mae": float(np.average(np.abs(errors), weights=weights)),
        "r2": 1.0 - mse / variance if variance > 0 else 0.0,
    }


def hessian(problem: Problem, weights: Floats) -> Floats:
    """Return the Hessian of the risk, (m d, m d), in the order of the flattened weights."""
    rows, columns = problem.shape
    product = problem.loss.curvature_product(problem.scores(weights), problem.targets)
    result = np.zeros((rows, columns, rows, columns))
    for row in range(rows):
        unit = np.zeros_like(problem.targets)
        unit[:, row] = 1.0
        bent = product(unit)
        for other in np.flatnonzero(np.abs(bent).max(axis=0, initial=0.0)):
            weighted = problem.features * bent[:, other : other + 1]
            result[other, :, row, :] = weighted.T @ problem.features / max(len(problem.features), 1)
    flat = result.reshape(rows * columns, rows * columns)
    return flat + problem.regularisation * np.eye(rows * columns)


def curvature(problem: Problem, weights: Floats) -> tuple[float, float]:
    """Return average and minimum curvature at a point: tr H / p and the smallest eigenvalue of H."""
    matrix = hessian(problem, weights)
    return float(np.trace(matrix)) / len(matrix), float(np.linalg.eigvalsh(matrix)[0])


# Halving in two steps, so that a fraction holds for a wide range of sizes: f goes as n^(-1/3), so n may triple.
_LADDER: tuple[float, ...] = tuple(1.0 / denominator for power in range(8) for denominator in (3 << power, 4 << power))
_EXCESS = 0.1


def held_out_fraction(rows: int, classes: int, epsilon: float, delta: float) -> float:
    """Return the share of private rows to hold out for a noisy confusion matrix that costs (epsilon, delta).

    Holding out m = f n of n rows has two prices, both in units of accuracy:

    - the training loses rows. To first order in f, a model whose error exceeds the best one's by E loses at most E f
      (excess errors fall at most as fast as 1/n; under noise of a fixed privacy they fall like that). E is set to
      0.1, which is an assumption and no bound: what is too small a value for costs precision, not privacy;
    - the measured accuracy, the trace of K^2 noisy counts over m, has the standard deviation
      sqrt(a (1 - a) / m + K sigma^2 / m^2), with a (1 - a) at most 1/4 and sigma = sqrt(2) / mu, the noise of a count
      under replace-one at the (epsilon, delta) of the whole run.

    The result is the fraction of 1/3, 1/4, 1/6, 1/8, … at which their sum is least. It falls as n, epsilon grow (the
    derivative of the second price in f shrinks with n and mu), and held-out rows are chosen so that those of a smaller
    fraction are among those of a larger one: a row that trained a model is not held out when rows are added later.

    Parameters
    ----------
    rows : int
        n, all rows of the data set.
    classes : int
        K; 0 where numbers are predicted, for which the rule of two classes is taken: the sums of errors are as many
        noisy numbers, of a sensitivity of the same order.
    epsilon, delta : float
        What a run spends in all.

    Raises
    ------
    ParameterError
        If epsilon or delta is out of range.
    """
    noise = 2.0 * max(classes, 2) / mu_from_epsilon_delta(epsilon, delta) ** 2

    def price(fraction: float) -> float:
        held_out = max(fraction * rows, 1.0)
        return _EXCESS * fraction + math.sqrt(0.25 / held_out + noise / (held_out * held_out))

    return min(_LADDER, key=price)
