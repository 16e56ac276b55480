"""Released arrays as a scikit-learn pipeline that takes raw rows: normalise, map, classify.

Every step is a fitted scikit-learn estimator whose attributes are set from released arrays, so that the pipeline
loads wherever scikit-learn does and needs no pickle; :mod:`dpalgos.pipeline` fills the gaps.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.decomposition import TruncatedSVD
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer
from sklearn.svm import LinearSVC

from dpalgos.conformal import HeldOutErrors, HeldOutScores
from dpalgos.features.public_map import RowFeatures
from dpalgos.features.unit_rows import UnitRows
from dpalgos.models import KernelModel, LinearModel, Projection
from dpalgos.normalisation import AffineMap, Clip, MinMax, Unchanged, UnitNorm
from dpalgos.parameters import ParameterError
from dpalgos.pipeline import (
    BoundedRegressor,
    CalibratedClassifier,
    ReleasedMap,
    ScoredClassifier,
    UnitBallClipper,
    stored,
)
from dpalgos.registry import lookup
from dpalgos.rows import Floats
from dpalgos.score_curves import Calibration

Step = tuple[str, BaseEstimator]


class NotExportableError(ParameterError):
    """No scikit-learn step is known for a kind of map or model, so only the release holds it."""


def _fitted(step: BaseEstimator, features: int, **learnt: object) -> BaseEstimator:
    """Return an estimator as if it were fitted: attributes are what it has learnt."""
    for name, value in {"n_features_in_": features, **learnt}.items():
        setattr(step, name, value)
    return step


def _unknown(artefact: object, register: str) -> NotExportableError:
    return NotExportableError(
        f"no scikit-learn step is known for {type(artefact).__name__}; "
        f"register one with tasks.tracking.sklearn_export.{register}"
    )


@singledispatch
def row_map_step(artefact: object, dimension: int) -> Step | None:
    """Return the pipeline step, named, that does what a map of rows does; None where that is nothing.

    A new kind of map registers itself with ``@row_map_step.register``.

    Parameters
    ----------
    artefact : Projection, a normalisation, a learnt map, or a fitted transformer
    dimension : int
        Features that reach the step.

    Raises
    ------
    NotExportableError
        If no step is known for this kind.
    """
    raise _unknown(artefact, "row_map_step")


@row_map_step.register
def _(artefact: UnitNorm, dimension: int) -> Step:
    return "normalise", _fitted(Normalizer(norm="l2"), dimension)


@row_map_step.register
def _(artefact: Clip, dimension: int) -> Step:
    return "normalise", _fitted(UnitBallClipper(), dimension)


@row_map_step.register
def _(artefact: Unchanged, dimension: int) -> None:
    return None


@row_map_step.register
def _(artefact: MinMax, dimension: int) -> None:
    raise ParameterError("minmax learns its ranges from rows: pass the AffineMap it has learnt, not its name")


@row_map_step.register
def _(artefact: AffineMap, dimension: int) -> Step:
    width = artefact.high - artefact.low
    varies = width > 0
    scale = np.where(varies, 2.0 / np.where(varies, width, 1.0), 0.0)
    shift = np.where(varies, -1.0 - artefact.low * scale, 0.0)
    data = {"data_min_": artefact.low, "data_max_": artefact.high, "data_range_": width}
    step = MinMaxScaler(feature_range=(-1, 1))
    return "normalise", _fitted(step, len(artefact.low), scale_=scale, min_=shift, **data)


@row_map_step.register
def _(artefact: Projection, dimension: int) -> Step:
    # A fitted TruncatedSVD is scikit-learn's own ``X @ components_.T``, for dense and sparse rows.
    features, directions = artefact.basis.shape
    components = np.ascontiguousarray(artefact.basis.T, dtype=np.float64)
    return "project", _fitted(TruncatedSVD(n_components=directions), features, components_=components)


@row_map_step.register
def _(artefact: RowFeatures, dimension: int) -> Step:
    step = ReleasedMap(artefact.kind, dict(artefact.arrays()))
    return artefact.kind, _fitted(step, dimension, _n_features_out=artefact.dimension)


@row_map_step.register
def _(artefact: UnitRows, dimension: int) -> Step:
    return "normalise", _fitted(Normalizer(norm="l2"), dimension)


@row_map_step.register(BaseEstimator)
def _(artefact: BaseEstimator, dimension: int) -> Step:
    return type(artefact).__name__.lower(), artefact


@singledispatch
def model_steps(model: object, classes: Sequence[str], label_range: tuple[float, float] | None = None) -> list[Step]:
    """Return the last steps of a pipeline for a released model; a new kind registers with ``@model_steps.register``.

    Predictions of a number are clipped to its declared range.

    Raises
    ------
    NotExportableError
        If no steps are known for this kind.
    ParameterError
        If the classes do not fit the model.
    """
    raise _unknown(model, "model_steps")


@model_steps.register
def _(model: LinearModel, classes: Sequence[str], label_range: tuple[float, float] | None = None) -> list[Step]:
    if classes:
        return [_classifier(model.weights, model.intercept, classes)]
    if len(model.weights) != 1:
        raise ParameterError(f"a model without classes has one row of weights; this one has {len(model.weights)}")
    weights = np.ascontiguousarray(model.weights[0], dtype=np.float64)
    low, high = (-math.inf, math.inf) if label_range is None else label_range
    learnt = {"coef_": weights, "intercept_": float(model.intercept[0]), "low_": low, "high_": high, "held_out_": None}
    return [("predict", _fitted(BoundedRegressor(), len(weights), **learnt))]


@model_steps.register
def _(model: KernelModel, classes: Sequence[str], label_range: tuple[float, float] | None = None) -> list[Step]:
    # A Nystroem map is kernel(X, components_) @ normalization_.T: with the coefficients there, it gives the scores.
    count, vectors = len(model.coefficients), np.ascontiguousarray(model.support_vectors, dtype=np.float64)
    step = _fitted(
        Nystroem(kernel="rbf", gamma=float(model.gamma[0]), n_components=count),
        vectors.shape[1],
        components_=vectors,
        normalization_=np.ascontiguousarray(model.coefficients, dtype=np.float64),
        _n_features_out=count,
    )
    return [("kernel", step), _classifier(np.eye(count), np.broadcast_to(model.intercept, (count,)), classes)]


def _classifier(weights: Floats, intercept: Floats, classes: Sequence[str]) -> Step:
    if len(classes) < 2 or len(weights) != (1 if len(classes) == 2 else len(classes)):
        raise ParameterError(
            f"{len(weights)} rows of weights do not fit {len(classes)} classes: two classes take 1 row, K > 2 take K"
        )
    if len(set(classes)) != len(classes):
        raise ParameterError(f"class names must differ; got {', '.join(classes)}")
    # LinearSVC gives decisions but no invented probabilities, for any loss of the weights; classes are in index
    # order, not sorted: column i of the scores is class i.
    return "classify", _fitted(
        LinearSVC(),
        weights.shape[1],
        coef_=np.ascontiguousarray(weights, dtype=np.float64),
        intercept_=np.array(intercept, dtype=np.float64),
        classes_=np.asarray(list(classes), dtype=np.str_),
    )


def to_sklearn(
    *,
    normalisation: str | object,
    maps: Sequence[object],
    model: object,
    classes: Sequence[str],
    dimension: int,
    encoder: BaseEstimator | None = None,
    label_range: tuple[float, float] | None = None,
    calibration: Calibration | None = None,
    held_out: HeldOutErrors | HeldOutScores | None = None,
) -> Pipeline:
    """Put released arrays together into one fitted pipeline from raw rows to class names (or real values).

    Post-processing of releases: it sees no rows and has no privacy cost. Its predictions are those of ``model.predict``
    on the normalised and mapped rows, ties and the binary case included.

    Parameters
    ----------
    normalisation : str or map of rows
        A registered normalisation that learns nothing (``"unit-norm"``, ``"clip"``, ``"none"``), or what one that
        looks at rows has learnt.
    maps : sequence
        Released feature maps in order, each of a kind :func:`row_map_step` knows; may be empty.
    model : LinearModel or KernelModel
        Of a kind :func:`model_steps` knows.
    classes : sequence of str
        Class names in index order; empty for a regression.
    dimension : int
        Features of a row as it is stored.
    encoder : transformer, optional
        What makes such rows from a table's columns.
    label_range : (float, float), optional
        Declared for a regression: predictions are clipped to it.
    calibration : Calibration, optional
        Of a model of two classes: its threshold becomes the zero of the scores, and it has probabilities.
    held_out : HeldOutErrors or HeldOutScores, optional
        Released counts of held-out rows, from which intervals or sets follow.

    Raises
    ------
    NotExportableError
        If no step is known for one of them.
    ParameterError
        If the shapes do not chain.
    """
    first = lookup("normalisations", normalisation)() if isinstance(normalisation, str) else normalisation
    steps: list[Step] = []
    width = dimension
    if encoder is not None:
        width = _append(steps, ("encode", encoder), encoder.n_features_in_)
    for artefact in [first, *maps]:
        step = row_map_step(artefact, width)
        if step is not None:
            width = _append(steps, step, width)
    for step in model_steps(model, classes, label_range):
        width = _append(steps, step, width)
    name, last = steps[-1]
    if isinstance(held_out, HeldOutErrors):
        last.held_out_ = stored(held_out)
    elif calibration is not None or held_out is not None:
        steps[-1] = name, _scored(last, calibration, held_out)
    return Pipeline(steps)


def _scored(last: LinearSVC, calibration: Calibration | None, held_out: HeldOutScores | None) -> BaseEstimator:
    """Return a classifier with what held-out rows' scores say, these counted from its threshold."""
    threshold = 0.0 if calibration is None else calibration.threshold
    learnt = {"coef_": last.coef_, "intercept_": last.intercept_ - threshold, "classes_": last.classes_}
    learnt["held_out_"] = held_out and stored(replace(held_out, edges=held_out.edges - threshold))
    if calibration is None:
        return _fitted(ScoredClassifier(), last.n_features_in_, **learnt)
    offset = calibration.offset + calibration.slope * threshold
    return _fitted(CalibratedClassifier(), last.n_features_in_, **learnt, slope_=calibration.slope, offset_=offset)


def _append(steps: list[Step], step: Step, width: int) -> int:
    """Add a step that takes ``width`` features, and return how many come out."""
    name, estimator = step
    if estimator.n_features_in_ != width:
        raise ParameterError(f"step {name!r} takes {estimator.n_features_in_} features but gets {width}")
    steps.append((name if name not in dict(steps) else f"{name}-{len(steps)}", estimator))
    return int(getattr(estimator, "_n_features_out", width))
