"""Steps of a scikit-learn pipeline that learn from rows in addition to a private estimator.

A step that is fitted on private rows before or around a private estimator is outside its guarantee: a scaler's mean
changes with every row. What a class learns cannot be seen from outside. The rule is therefore a list of classes that
are known to learn nothing, each with the settings for which this holds; all others are reported.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import scipy
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler, PolynomialCountSketch, RBFSampler, SkewedChi2Sampler
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
)
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

from dpalgos.pipeline import UnitBallClipper
from storage.encoder import PictureEncoder, TableEncoder

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True, kw_only=True)
class PipelineFinding:
    """A step that learns from rows, or is not known to learn nothing.

    Attributes
    ----------
    step : str
        Its place: names of steps, joined by points; empty for the estimator itself.
    estimator : str
        Its class.
    reason : str
        What it learns, and what to do.
    """

    step: str
    estimator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.step or 'the estimator itself'} ({self.estimator}): {self.reason}"


def _learns_nothing(_: Any) -> str | None:
    return None


def _by_number(function: Any) -> bool:
    """Whether nothing is done, or by a ufunc of NumPy or SciPy; one that somebody has made may keep what it meets."""
    return function is None or (
        isinstance(function, np.ufunc)
        and any(getattr(module, function.__name__, None) is function for module in (np, scipy.special))
    )


def _function(step: FunctionTransformer) -> str | None:
    if all(_by_number(one) for one in (step.func, step.inverse_func)):
        return None
    return (
        "its function is handed all rows at once, and may take a mean of them; a ufunc of NumPy (numpy.log1p) looks at "
        "each number by itself. Apply your own function to the rows before, if it looks at one row at a time"
    )


def _number(name: str, learnt: str) -> Callable[[Any], str | None]:
    def check(step: Any) -> str | None:
        value = getattr(step, name)
        if isinstance(value, Real):
            return None
        return f"{name}={value!r} is learnt from the rows, {learnt}; give a number"

    return check


def _projection(step: Any) -> str | None:
    if isinstance(step.n_components, Integral):
        return None
    return f"n_components={step.n_components!r} goes by the number of rows, which of people is private; give a number"


def _analysed(step: HashingVectorizer) -> str | None:
    own = [name for name in ("preprocessor", "tokenizer", "analyzer") if callable(getattr(step, name))]
    return f"{own[0]} is a function of yours, and what it keeps of the rows is unknown; omit it" if own else None


def _categories(step: Any) -> str | None:
    if isinstance(step.categories, str):
        return "its categories are learnt from the rows; declare them: categories=[[…], …], or schema= of our estimator"
    if step.min_frequency is not None or step.max_categories is not None:
        return "min_frequency and max_categories count rows; omit them"
    return None


def _constant(step: SimpleImputer) -> str | None:
    if step.strategy != "constant" or step.fill_value is None:
        return (
            f"strategy={step.strategy!r} learns from the rows; declare schema= of our estimator with missing: {{rows: "
            "indicator}, or strategy='constant' with a fill_value"
        )
    if step.add_indicator or not step.keep_empty_features:
        return "which columns it leaves out or marks goes by the rows: keep_empty_features=True, add_indicator=False"
    return None


def _indicator(step: MissingIndicator) -> str | None:
    return None if step.features == "all" else "which columns have gaps is learnt from the rows: features='all'"


def _knots(step: SplineTransformer) -> str | None:
    if isinstance(step.knots, str):
        return f"knots={step.knots!r} are learnt from the rows; give them as an array (knots, features)"
    return None


_KNOWN: dict[type, Callable[[Any], str | None]] = {
    TableEncoder: _learns_nothing,
    PictureEncoder: _learns_nothing,
    UnitBallClipper: _learns_nothing,
    Normalizer: _learns_nothing,
    Binarizer: _learns_nothing,
    PolynomialFeatures: _learns_nothing,
    FeatureHasher: _learns_nothing,
    AdditiveChi2Sampler: _learns_nothing,
    SkewedChi2Sampler: _learns_nothing,
    PolynomialCountSketch: _learns_nothing,
    FunctionTransformer: _function,
    HashingVectorizer: _analysed,
    RBFSampler: _number("gamma", "their variance"),
    GaussianRandomProjection: _projection,
    SparseRandomProjection: _projection,
    OneHotEncoder: _categories,
    OrdinalEncoder: _categories,
    SimpleImputer: _constant,
    MissingIndicator: _indicator,
    SplineTransformer: _knots,
}
"""Classes, and no subclasses of them, that learn nothing from rows but their number of features; or why one does."""


def learns_nothing(kind: _Class) -> _Class:
    """Let a class be known to learn nothing from rows outside its own guarantee; to be used as a decorator."""
    _KNOWN[kind] = _learns_nothing
    return kind


_SKIPPED = ("passthrough", "drop", None)


def check_pipeline(pipeline: Any) -> tuple[PipelineFinding, ...]:
    """List the steps of a pipeline that learn from the rows they are fitted on, outside Unitball's guarantees.

    Nothing is fitted and no row is read. Nested steps are examined: pipelines, ``ColumnTransformer``,
    ``FeatureUnion``, and the estimator inside a search or a calibration. Classes that are not known to learn nothing
    are listed, including subclasses of known ones.

    Known to learn nothing, with any settings: ``Normalizer``, ``Binarizer``, ``PolynomialFeatures``, ``FeatureHasher``,
    ``AdditiveChi2Sampler``, ``SkewedChi2Sampler``, ``PolynomialCountSketch``, ``"passthrough"``. And with these:

    - ``FunctionTransformer``: no function, or a ufunc of NumPy or SciPy; any other is handed all rows at once;
    - ``HashingVectorizer``: no callable among its parameters;
    - ``RBFSampler``: ``gamma`` a number; ``GaussianRandomProjection``, ``SparseRandomProjection``: ``n_components`` a
      number, since ``"auto"`` depends on the number of rows, which is private if people are protected;
    - ``OneHotEncoder``, ``OrdinalEncoder``: ``categories`` declared, no ``min_frequency`` or ``max_categories``;
    - ``SimpleImputer``: ``strategy="constant"``, a ``fill_value``, ``keep_empty_features=True``, no indicator;
    - ``MissingIndicator``: ``features="all"``; ``SplineTransformer``: ``knots`` as an array;
    - ``Pipeline``, ``ColumnTransformer``, ``FeatureUnion``, ``FixedThresholdClassifier``: of such steps, columns by
      name; ``sparse_threshold=0`` around words or one-hot columns that may be empty, because it counts zeros.

    Scalers, selections, decompositions, target encoders, calibrations and searches learn from the rows: ``bounds=`` or
    ``schema=`` of Unitball's estimators scale, encode and fill without reading rows.

    Parameters
    ----------
    pipeline : estimator
        A pipeline, or anything that is fitted around a :class:`unitball.PrivateClassifier` or a
        :class:`unitball.PrivateRegressor`.

    Returns
    -------
    tuple of PipelineFinding
        Empty if only Unitball's estimators learn from the rows.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from unitball import PrivateClassifier, check_pipeline
    >>> [finding.step for finding in check_pipeline(make_pipeline(StandardScaler(), PrivateClassifier()))]
    ['standardscaler']
    """
    return tuple(_findings(pipeline, ""))


def fitted_around(estimator: Any) -> tuple[PipelineFinding, ...]:
    """Name what learns from rows and is being fitted around an estimator, as far as its own fit can see it.

    Seen are the estimators whose ``fit`` has called this one in this thread: pipelines, searches, calibrations. What
    was fitted before, and what fits in another thread or process, is not.
    """
    around = _outermost(estimator)
    return () if around is None else check_pipeline(around)


def steps_around(estimator: Any) -> tuple[Any, ...]:
    """Return all steps, other than an estimator, of what is being fitted around it, as its own fit can see them."""
    around = _outermost(estimator)
    return () if around is None else tuple(one for one in _inner(around) if one is not estimator)


def fitted_steps_around(estimator: Any) -> tuple[Any, ...]:
    """Return the steps that stand before an estimator in the pipelines that are fitting it in this thread."""
    found: list[Any] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        one = frame.f_locals.get("self")
        if frame.f_code.co_name.startswith("fit") and isinstance(one, Pipeline):
            found += [step for _, step in one.steps[:-1]]
        frame = frame.f_back
    return tuple(one for each in found for one in (each, *_inner(each)) if one is not estimator)


def _inner(step: Any) -> Iterator[Any]:
    """Yield all steps within a step."""
    if type(step) in _AROUND:
        within = _AROUND[type(step)](step)[1]
    else:
        within = {"estimator": step.estimator} if isinstance(step, BaseSearchCV) else {}
    for one in within.values():
        yield one
        yield from _inner(one)


def _outermost(estimator: Any) -> BaseEstimator | None:
    """Return what is being fitted around an estimator in this thread: the outermost of those whose fit has called."""
    around = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.startswith("fit") and isinstance(one := frame.f_locals.get("self"), BaseEstimator):
            around = one if one is not estimator else around
        frame = frame.f_back
    return around


def _findings(step: Any, place: str) -> Iterator[PipelineFinding]:
    if step is None or (isinstance(step, str) and step in _SKIPPED):
        return
    kind = type(step)
    if kind in _AROUND:
        why, within = _AROUND[kind](step)
    elif isinstance(step, BaseSearchCV):
        why, within = _SEARCH, {"estimator": step.estimator}
    else:
        why, within = (_KNOWN[kind](step) if kind in _KNOWN else _unknown(step)), {}
    if why is not None:
        yield PipelineFinding(step=place, estimator=kind.__name__, reason=why)
    for name, inner in within.items():
        yield from _findings(inner, f"{place}.{name}" if place else name)


_SEARCH = (
    "it fits every candidate on every fold and chooses by exact scores: each fit of our estimator is a release of its "
    "own, charged to the account, and the scores and what is chosen by them are outside the guarantee. tune= of "
    "unitball.train chooses privately"
)
_THRESHOLD = (
    "it chooses a threshold by exact scores of folds, and fits on each of them: take aim= of our estimator, or "
    "FixedThresholdClassifier with a threshold that thresholds_ shows"
)


def _unknown(step: Any) -> str:
    if any(isinstance(step, known) for known in _KNOWN):
        return "it is a subclass of a known class and may learn from rows in another way"
    if hasattr(step, "transform") or hasattr(step, "fit_transform"):
        return (
            "it may learn from the rows, which the guarantee would not cover; bounds= or schema= of Unitball's "
            "estimators scale, encode and fill without reading rows"
        )
    return (
        "it is fitted on the rows without noise; only Unitball's estimators are private, and their test_fraction= "
        "gives probabilities and thresholds"
    )


_Around = tuple[str | None, Mapping[str, Any]]


def _columns(step: ColumnTransformer) -> _Around:
    within = {name: inner for name, inner, _ in step.transformers}
    looking = [name for name, _, columns in step.transformers if callable(columns) and not _by_name(columns)]
    why = None
    if looking:
        why = (
            f"which columns {looking[0]} takes is chosen by looking at the table, whose types one row can change; name "
            "them"
        )
    elif step.sparse_threshold != 0 and any(map(_sparse_by_rows, within.values())):
        why = (
            f"sparse_threshold={step.sparse_threshold!r}: whether it gives sparse or dense rows goes by how many of "
            "all cells are zero, which it counts and keeps; sparse_threshold=0"
        )
    return why, {**within, "remainder": step.remainder}


def _sparse_by_rows(step: Any) -> bool:
    """Whether a step may give sparse rows, of which the rows themselves say how many cells are not zero."""
    kind = type(step)
    if kind in (Pipeline, FeatureUnion, ColumnTransformer):
        return any(map(_sparse_by_rows, _AROUND[kind](step)[1].values()))
    if kind is OneHotEncoder:
        # Otherwise each cell becomes a one and zeros.
        return bool(step.sparse_output) and (step.drop is not None or step.handle_unknown != "error")
    return kind in (FeatureHasher, HashingVectorizer) or (kind is SplineTransformer and bool(step.sparse_output))


def _by_name(columns: Any) -> bool:
    return type(columns) is make_column_selector and columns.dtype_include is None and columns.dtype_exclude is None


def _target(step: TransformedTargetRegressor) -> _Around:
    why = None
    if not all(_by_number(one) for one in (step.func, step.inverse_func)):
        why = "its function is handed all targets at once, and may take a mean of them; take a ufunc of NumPy"
    elif step.regressor is None:
        why = "without a regressor it fits an ordinary linear regression, which has no noise: give a PrivateRegressor"
    return why, {"transformer": step.transformer, "regressor": step.regressor}


_AROUND: dict[type, Callable[[Any], _Around]] = {
    Pipeline: lambda step: (None, dict(step.steps)),
    FeatureUnion: lambda step: (None, dict(step.transformer_list)),
    ColumnTransformer: _columns,
    TransformedTargetRegressor: _target,
    # What it holds is not fitted again, and was fitted on rows of which nobody here knows whose they were.
    FrozenEstimator: lambda step: (None, {"estimator": step.estimator}),
    FixedThresholdClassifier: lambda step: (None, {"estimator": step.estimator}),
    TunedThresholdClassifierCV: lambda step: (_THRESHOLD, {"estimator": step.estimator}),
}
"""What is fitted around other estimators: what it learns itself, and which those are, by name."""
