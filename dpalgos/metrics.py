"""Metrics of models: of a confusion matrix, of scores, of predicted numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dpalgos.models import predicted_classes
from dpalgos.rows import Floats, Ints

_MOST_RECALLS = 20
# What trackers refuse in the name of a metric.
_NOT_OF_NAMES = r"[^\w\-. :/]"


def confusion_matrix(labels: Ints, predicted: Ints, classes: int, weights: Floats | None = None) -> Floats:
    """Return (weighted) counts (K, K), true class by predicted class; labels and predictions in 0 … K − 1."""
    cells = labels * classes + predicted
    return np.bincount(cells, weights, minlength=classes * classes).reshape(classes, classes).astype(np.float64)


def ratio(part: Floats, whole: Floats) -> Floats:
    """Return the share of each whole that its part is; 0 of nothing."""
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
    precision, recall = ratio(hits, hits + wrong), ratio(hits, hits + missed)
    return precision, recall, ratio(2.0 * precision * recall, precision + recall)


def metrics_of_confusion(counts: Floats) -> dict[str, float]:
    """Return ``accuracy``, macro ``precision``, ``recall`` and ``f1``, and ``mcc`` of a (noisy) confusion matrix.

    With two classes precision, recall and F1 are those of class 1, as usual for binary problems. ``balanced_accuracy``
    is the mean recall of the classes that occur, ``majority_rate`` the accuracy of always guessing the most frequent
    class; with two classes ``prevalence`` is the share of class 1. Total: where a denominator is zero the metric is 0.

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
        **({"prevalence": float(true[1] / total) if total > 0 else 0.0} if len(counts) == 2 else {}),
        "precision": float(averaged[0]),
        "recall": float(averaged[1]),
        "f1": float(averaged[2]),
        "mcc": float(covariance / spread) if spread > 0 else 0.0,
    }


def safe_name(name: str) -> str:
    """Return a name that may be part of a metric's."""
    return re.sub(_NOT_OF_NAMES, "_", name)


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return names that may be part of metrics' names, no two alike: ``<=50K`` and ``>=50K`` have their places behind.

    Parameters
    ----------
    names : sequence of str
        All different.
    """
    found = [safe_name(name) for name in names]
    while len(set(found)) < len(found):
        found = [f"{name}_{place}" if found.count(name) > 1 else name for place, name in enumerate(found, 1)]
    return found


def class_names(classes: Sequence[str]) -> list[str]:
    """Return how metrics of single classes call them: ``recall_<name>``; none of more than twenty."""
    if len(classes) > _MOST_RECALLS:
        return []
    # Not to be taken for what stands beside another number: limits, noise, a reason.
    ends = ("low", "high", "noise", "reason")
    return distinct_names([f"{name}_class" if name.endswith(ends) else name for name in classes])


def recalls(counts: Floats, classes: Sequence[str]) -> dict[str, float]:
    """Return the recall of each class by name, as ``recall_<class>``; none where there are more than twenty."""
    return {f"recall_{name}": float(of) for name, of in zip(class_names(classes), per_class(counts)[1], strict=False)}


def rates_of_group(counts: Floats, classes: Sequence[str]) -> dict[str, float]:
    """Return what is said of one group of rows: rates of its (noisy) confusion matrix, and how many rows it has.

    ``rows``, ``accuracy``, ``balanced_accuracy``, ``majority_rate``, and of each class ``recall_<class>`` and
    ``predicted_<class>``, the share of the group's rows that it is predicted for.
    """
    known, metrics, named = np.maximum(counts, 0.0), metrics_of_confusion(counts), recalls(counts, classes)
    shares = ratio(known.sum(axis=0), np.full(len(counts), known.sum()))
    predicted = {f"predicted{name.removeprefix('recall')}": float(of) for name, of in zip(named, shares, strict=False)}
    several = {name: metrics[name] for name in ("accuracy", "balanced_accuracy", "majority_rate")}
    return {"rows": float(counts.sum()), **several, **named, **predicted}


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


def correlation(counts: Floats) -> float:
    """Return Matthews' coefficient of a noisy matrix (K, K), from sums whose noise is not cut; 0 without spread."""
    hits = np.diagonal(counts)[None]
    return float(correlation_coefficient(hits, counts.sum(axis=1) - hits, counts.sum(axis=0) - hits)[0])


def correlation_coefficient(hits: Floats, missed: Floats, wrong: Floats) -> Floats:
    """Return Matthews' correlation of matrices, one a row, from each class's hits, misses and wrong predictions."""
    true, predicted = hits + missed, hits + wrong
    total = np.maximum(true.sum(axis=1), 1.0)
    chance = (true * predicted).sum(axis=1) / total**2
    square = (1.0 - (true**2).sum(axis=1) / total**2) * (1.0 - (predicted**2).sum(axis=1) / total**2)
    spread = np.sqrt(np.where(square <= 0.0, np.inf, square))
    return np.asarray(np.clip((hits.sum(axis=1) / total - chance) / spread, -1.0, 1.0))
