"""Predictions and scores of rows in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpalgos.rows import Floats
from storage.encoder import Clipped, PictureEncoder, TableEncoder
from storage.errors import InputError
from storage.frames import number_rows
from storage.names import SCORED
from tasks.tracking.coverings import NO_COVERING, Cover, Covering, covering_columns

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


ENCODERS = (TableEncoder, PictureEncoder)
"""First steps of models that take raw rows."""


def score_names(pipeline: Pipeline, classes: Sequence[str]) -> list[str]:
    """Return the columns after the prediction: a score per class (of two, the second), a calibrated probability."""
    score, probability = SCORED
    scores = [f"{score}{name}" for name in (classes[1:] if len(classes) == 2 else classes)]
    return [*scores, f"{probability}{classes[-1]}"] if hasattr(pipeline, "predict_proba") else scores


def scores_of(
    pipeline: Pipeline,
    features: Floats | pd.DataFrame,
    threshold: float | None = None,
    covering: Covering = NO_COVERING,
) -> pd.DataFrame:
    """Return predictions and, for classes, the scores they come from.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        A logged model, or its steps after the first.
    features : array or data frame (m, d)
    threshold : float, optional
        Probability from which on the second class is predicted; the model's own threshold where left out.
    covering : Covering, optional
        Whether intervals or sets are asked for.

    Returns
    -------
    data frame
        ``prediction``; ``score CLASS`` for each class, of two classes for the second one, above 0 where the model
        predicts it: distances from a boundary. ``probability CLASS`` where released sums have calibrated them. As asked
        for, ``prediction_low`` and ``prediction_high``, or ``prediction_set``, a list of classes.

    Raises
    ------
    InputError
        If a threshold is asked of a model without probabilities, or intervals or sets of one that has none.
    dpalgos.conformal.UnreachableError
        If the noise or the number of held-out rows does not admit the coverage.
    """
    found = encoded(pipeline, features)
    return scored(found.rest, found.features, threshold, covering_columns(pipeline, covering))


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as numbers, and the steps of a model that take them.

    Attributes
    ----------
    rest : sklearn.pipeline.Pipeline
    features : array (m, d)
    clipped : mapping of column to Clipped
    """

    rest: Pipeline
    features: Floats
    clipped: Mapping[str, Clipped] = field(default_factory=dict)


def encoded(pipeline: Pipeline, rows: Floats | pd.DataFrame) -> EncodedRows:
    """Return rows as a model's first step encodes them; rows of numbers as an array.

    Raises
    ------
    InputError
        If a column is missing, or for the first row that is refused.
    """
    encoder = pipeline[0]
    if not isinstance(encoder, ENCODERS):
        return EncodedRows(pipeline, number_rows(rows))
    encoding = encoder.encode_or_raise(rows)
    return EncodedRows(pipeline[1:], encoding.features, encoding.clipped)


def scored(pipeline: Pipeline, features: Floats, threshold: float | None, cover: Cover) -> pd.DataFrame:
    """Return predictions, scores and the columns of intervals or sets of encoded rows."""
    if not len(features):
        return scored(pipeline, _one_row(pipeline, features), threshold, cover).iloc[:0]
    covered = cover(pipeline, features)
    calibrated = hasattr(pipeline, "predict_proba")
    if threshold is not None and not calibrated:
        raise InputError(
            f"threshold is {threshold:g}, and this model has no probabilities: train two classes with --roc, which "
            "calibrates the scores"
        )
    if not hasattr(pipeline, "decision_function"):
        return pd.DataFrame({"prediction": pipeline.predict(features), **covered})
    classes = [str(name) for name in pipeline.classes_]
    scores = np.asarray(pipeline.decision_function(features), dtype=np.float64).reshape(len(features), -1)
    chosen = (scores[:, 0] > 0).astype(int) if len(classes) == 2 else scores.argmax(axis=1)
    if calibrated:
        probabilities = pipeline.predict_proba(features)[:, 1]
        scores = np.column_stack([scores, probabilities])
        chosen = chosen if threshold is None else (probabilities >= threshold).astype(int)
    columns = dict(zip(score_names(pipeline, classes), scores.T, strict=True))
    return pd.DataFrame({"prediction": np.array(classes, dtype=object)[chosen], **columns, **covered})


def predictions_of(pipeline: Pipeline, rows: Floats | pd.DataFrame) -> NDArray[np.float64] | NDArray[np.str_]:
    """Return what a logged model predicts of each row, (m,); of no rows nothing, of the same type.

    A nightly delivery may be empty, and scikit-learn's own steps refuse that.
    """
    found = encoded(pipeline, rows)
    if len(found.features):
        return np.asarray(found.rest.predict(found.features))
    return np.asarray(found.rest.predict(_one_row(found.rest, found.features)))[:0]


def _one_row(pipeline: Pipeline, rows: Floats) -> Floats:
    """Return a row of zeros in place of no rows.

    Raises
    ------
    InputError
        If these are of another width.
    """
    given, width = np.shape(rows), int(pipeline[0].n_features_in_)
    if given not in ((0,), (0, width)):
        raise InputError(f"the rows have shape {given}; the model needs (m, {width})")
    return np.zeros((1, width))
