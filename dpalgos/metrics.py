"""What models and methods are measured by, and how many rows to hold out for it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from dpalgos.evaluators.noisy_sums import SQUARES_WEIGHT, predicted_classes
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta
from dpalgos.rows import Floats, Ints
from dpalgos.solvers import Problem

TWO_SIDED = 1.96
"""Standard deviations that hold 95 % of a Gaussian law."""
_MOST_RECALLS = 20
# What trackers refuse in the name of a metric.
_NOT_OF_NAMES = r"[^\w\-. :/]"


def confusion_matrix(labels: Ints, predicted: Ints, classes: int) -> Floats:
    """Return counts (K, K), true class by predicted class; labels and predictions in 0 … K − 1."""
    cells = labels * classes + predicted
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes).astype(np.float64)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def per_class(counts: Floats) -> tuple[Floats, Floats, Floats]:
    """Return precision, recall and F1 of each class, (K,) each; 0 where they are undefined.

    Parameters
    ----------
    counts : array (K, K)
        True class by predicted class; negative (noisy) counts count as zero.
    """
    known = np.maximum(counts, 0.0)
    hits = np.diagonal(known).copy()
    precision, recall = _ratio(hits, known.sum(axis=0)), _ratio(hits, known.sum(axis=1))
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
    by_class = per_class(known)
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


def metrics_of_noisy_confusion(counts: Floats, rows: int, deviation: float) -> dict[str, float]:
    """Return the metrics of a confusion matrix with independent noise of mean zero on each of its counts.

    Those of :func:`metrics_of_confusion`, and how far the accuracy may be off: ``accuracy_noise``, the standard
    deviation that the noise gives it, and ``accuracy_margin``, 1.96 standard deviations of noise and drawn rows
    together: half of a 95 % interval. The accuracy is the trace T, which is unbiased, over the number N of rows
    counted. N is the public number of rows, and T/N then has the noise deviation sqrt(K) sigma / N, unless the noisy
    total says that null records are among them (it is lower by more than 3 K sigma): then N is that total, with its
    noise, and T/N has sqrt(K (1 - a)^2 + (K^2 - K) a^2) sigma / N to first order.

    Parameters
    ----------
    counts : array (K, K)
        True class by predicted class, noisy.
    rows : int
        Rows that were held out, null records included; public.
    deviation : float
        sigma, of the noise of each count.
    """
    classes, total, hits = len(counts), float(counts.sum()), float(np.trace(counts))
    all_counted = total >= rows - 3.0 * classes * deviation
    counted = max(float(rows) if all_counted else total, 1.0)
    accuracy = min(max(hits / counted, 0.0), 1.0)
    cells = classes if all_counted else classes * (1 - accuracy) ** 2 + classes * (classes - 1) * accuracy**2
    noise = math.sqrt(cells) * deviation / counted
    margin = TWO_SIDED * math.hypot(noise, math.sqrt(accuracy * (1.0 - accuracy) / counted))
    return {
        **metrics_of_confusion(counts),
        "accuracy": accuracy,
        "accuracy_noise": noise,
        "accuracy_margin": margin,
    }


def metrics_of_noisy_errors(
    sums: Floats, rows: int, deviation: float, label_range: Sequence[float]
) -> dict[str, float]:
    """Return what follows from noisy sums of a regression's errors, in the unit of the target.

    ``mse``, ``mae`` and ``r2`` (1 - mse / variance of the targets; 0 where no variance is left) of predictions clipped
    to the declared range; ``mae_noise`` and ``r2_noise``, their standard deviations by the noise alone (of R^2 to first
    order), and ``mae_margin``, 1.96 standard deviations of noise and drawn rows together. Means are over the public
    number of rows, unless the noisy count says that null records are among them (it is lower by more than three
    standard deviations): then over that count, whose noise the margins leave out.

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
    drawn = math.sqrt(max(mse - mae * mae, 0.0) / counted)
    return {
        "mse": mse * width**2,
        "mae": mae * width,
        "r2": r2,
        "mae_noise": noise * width,
        "mae_margin": TWO_SIDED * math.hypot(noise, drawn) * width,
        "r2_noise": r2_noise,
    }


def recalls(counts: Floats, classes: Sequence[str]) -> dict[str, float]:
    """Return the recall of each class by name, as ``recall_<class>``; none where there are more than twenty."""
    if len(classes) > _MOST_RECALLS:
        return {}
    found = per_class(counts)[1]
    return {f"recall_{re.sub(_NOT_OF_NAMES, '_', name)}": float(of) for name, of in zip(classes, found, strict=True)}


def _ranks(values: Floats) -> Floats:
    """Ranks from 1, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])


def roc_auc(labels: Ints, scores: Floats) -> float:
    """Return the area under the ROC curve, averaged over one-vs-rest problems where there are several scores.

    Ties count half. Classes that are absent, or alone, are left out; without any problem left the area is 0.5.
    NaN scores rank lowest.

    Parameters
    ----------
    labels : array (m,)
    scores : array (m, K), or (m, 1) for class 1 of two
    """
    positives = [1] if scores.shape[1] == 1 else list(range(scores.shape[1]))
    areas = []
    for column, label in enumerate(positives):
        positive = labels == label
        here, there = int(positive.sum()), int((~positive).sum())
        if here and there:
            ranks = _ranks(np.nan_to_num(scores[:, column], nan=-np.inf, posinf=np.inf, neginf=-np.inf))
            areas.append((ranks[positive].sum() - here * (here + 1) / 2.0) / (here * there))
    return float(np.mean(areas)) if areas else 0.5


def classification_metrics(labels: Ints, scores: Floats, classes: int) -> dict[str, float]:
    """Return the metrics of a classifier: those of its confusion matrix, and ``auc``.

    Parameters
    ----------
    labels : array (m,) of class indices
    scores : array (m, K), or (m, 1) for two classes
    classes : int
    """
    counts = confusion_matrix(labels, predicted_classes(scores), max(classes, 2))
    return {**metrics_of_confusion(counts), "auc": roc_auc(labels, scores)}


def regression_metrics(targets: Floats, predictions: Floats) -> dict[str, float]:
    """Return ``mse``, ``mae`` and ``r2`` (0 for constant targets)."""
    errors = predictions - targets
    mse = float(np.mean(np.square(errors))) if errors.size else 0.0
    variance = float(np.var(targets)) if targets.size else 0.0
    return {
        "mse": mse,
        "mae": float(np.mean(np.abs(errors))) if errors.size else 0.0,
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
