"""The released model as one scikit-learn pipeline that takes raw rows: normalise, map, classify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Normalizer
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted, validate_data

from dpalgos.errors import ParameterError
from dpalgos.models import LinearModel, Projection
from dpalgos.rows import clip_to_unit_ball

__all__ = ["TRUSTED_TYPES", "UnitBallClipper", "raw_row_pipeline", "row_map_step"]


class UnitBallClipper(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale each row longer than 1 (l2) onto the unit sphere and leave the others alone; it learns nothing."""

    def fit(self, X: Any, y: object = None) -> UnitBallClipper:
        """Take note of the number of features."""
        validate_data(self, X, accept_sparse="csr")
        return self

    def transform(self, X: Any) -> Any:
        """Return the clipped rows.

        Parameters
        ----------
        X : array or sparse matrix (m, d)
        """
        check_is_fitted(self, "n_features_in_")
        X = validate_data(self, X, accept_sparse="csr", reset=False, dtype=np.float64)
        if sparse.issparse(X):
            norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1))).ravel()
            return sparse.diags_array(1.0 / np.maximum(norms, 1.0)).dot(X).tocsr()
        return clip_to_unit_ball(X)


TRUSTED_TYPES = (f"{UnitBallClipper.__module__}.{UnitBallClipper.__qualname__}",)
"""Our own classes in a pipeline, which whoever loads one names as trusted; everything else is scikit-learn's."""


def _unit_norm(dimension: int) -> Normalizer:
    step = Normalizer(norm="l2")
    step.n_features_in_ = dimension
    return step


def _clip(dimension: int) -> UnitBallClipper:
    step = UnitBallClipper()
    step.n_features_in_ = dimension
    return step


# "none" is no step at all; a map that learnt something from (public) rows comes as a fitted transformer instead.
_NORMALISATIONS: MappingProxyType[str, Callable[[int], BaseEstimator] | None] = MappingProxyType(
    {"unit-norm": _unit_norm, "clip": _clip, "none": None}
)


@singledispatch
def row_map_step(artefact: Any) -> tuple[str, BaseEstimator]:
    """Return the pipeline step, named, that does what a released feature map does.

    A new kind of map registers itself: ``@row_map_step.register``.

    Raises
    ------
    ParameterError
        If nothing is registered for this kind of artefact.
    """
    raise ParameterError(
        f"no pipeline step is known for {type(artefact).__name__}; register one with tasks.pipeline.row_map_step"
    )


@row_map_step.register
def _(artefact: Projection) -> tuple[str, BaseEstimator]:
    # A fitted TruncatedSVD is scikit-learn's own ``X @ components_.T``, for dense and sparse rows.
    dimension, directions = artefact.basis.shape
    step = TruncatedSVD(n_components=directions)
    step.components_ = np.ascontiguousarray(artefact.basis.T, dtype=np.float64)
    step.n_features_in_ = dimension
    return "project", step


@row_map_step.register(BaseEstimator)
def _(artefact: BaseEstimator) -> tuple[str, BaseEstimator]:
    return type(artefact).__name__.lower(), artefact


def _head(model: LinearModel, classes: Sequence[str]) -> tuple[str, BaseEstimator]:
    weights = np.ascontiguousarray(model.weights, dtype=np.float64)
    if not classes:
        if len(weights) != 1:
            raise ParameterError(f"a model without classes has one row of weights; this one has {len(weights)}")
        regressor = LinearRegression(fit_intercept=False)
        regressor.coef_, regressor.intercept_ = weights[0], 0.0
        regressor.n_features_in_ = weights.shape[1]
        return "predict", regressor
    if len(weights) != (1 if len(classes) == 2 else len(classes)):
        raise ParameterError(
            f"{len(weights)} rows of weights do not fit {len(classes)} classes: two classes take 1 row, K > 2 take K"
        )
    if len(set(classes)) != len(classes):
        raise ParameterError(f"class names must differ; got {', '.join(classes)}")
    # LinearSVC gives decisions but no made-up probabilities, whatever loss the weights come from.
    classifier = LinearSVC(fit_intercept=False)
    classifier.coef_, classifier.intercept_ = weights, np.zeros(len(weights))
    # In index order, not sorted: column i of the scores is class i.
    classifier.classes_ = np.asarray(list(classes), dtype=np.str_)
    classifier.n_features_in_ = weights.shape[1]
    return "classify", classifier


def raw_row_pipeline(
    *,
    normalisation: str | BaseEstimator,
    maps: Sequence[Any],
    model: LinearModel,
    classes: Sequence[str],
    dimension: int,
) -> Pipeline:
    """Put released arrays together into one fitted pipeline from raw rows to class names (or real values).

    Post-processing of releases: it sees no rows and costs nothing. Its predictions are those of
    ``LinearModel.predict`` on the normalised and mapped rows, ties and the binary case included.

    Parameters
    ----------
    normalisation : str or fitted transformer
        ``"unit-norm"``, ``"clip"``, ``"none"``, or a transformer (for one that learnt from public rows).
    maps : sequence
        Released feature maps in order, each of a kind :func:`row_map_step` knows; may be empty.
    model : LinearModel
    classes : sequence of str
        Class names in index order; empty for a regression.
    dimension : int
        Features of a raw row.

    Raises
    ------
    ParameterError
        If a step is unknown or the shapes do not chain.
    """
    steps: list[tuple[str, BaseEstimator]] = []
    if isinstance(normalisation, str):
        if normalisation not in _NORMALISATIONS:
            raise ParameterError(
                f"normalisation {normalisation!r} has no pipeline step; known: {', '.join(_NORMALISATIONS)}"
            )
        make = _NORMALISATIONS[normalisation]
        if make is not None:
            steps.append(("normalise", make(dimension)))
    else:
        steps.append(("normalise", normalisation))
    for artefact in maps:
        name, step = row_map_step(artefact)
        steps.append((name if name not in dict(steps) else f"{name}-{len(steps)}", step))
    steps.append(_head(model, classes))
    width = dimension
    for name, step in steps:
        if step.n_features_in_ != width:
            raise ParameterError(f"step {name!r} takes {step.n_features_in_} features but gets {width}")
        width = _width_after(step, width)
    return Pipeline(steps)


def _width_after(step: BaseEstimator, width: int) -> int:
    components: NDArray[np.float64] | None = getattr(step, "components_", None)
    if components is not None:
        return len(components)
    return int(getattr(step, "_n_features_out", width))
