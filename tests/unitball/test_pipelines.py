"""What a pipeline learns beside our estimators: each transformer of scikit-learn is classified, and by what it does."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import scipy
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.ensemble import BaggingClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
)
from sklearn.utils import all_estimators

from unitball import BudgetError, PrivateClassifier, PrivateRegressor, check_pipeline, pipelines

OURS = PrivateClassifier()
TRANSFORMERS = dict(all_estimators("transformer"))
GRID = np.linspace(-3, 3, 4)[:, None].repeat(3, axis=1)
# Settings beside the default ones; what a class learns may hang on them.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "FunctionTransformer": [
        {},
        {"func": np.log1p},
        {"func": scipy.special.expit},
        {"func": lambda rows: rows - rows.mean(axis=0)},
    ],
    "RBFSampler": [{"random_state": 0}, {"gamma": "scale", "random_state": 0}],
    "SkewedChi2Sampler": [{"random_state": 0}],
    "PolynomialCountSketch": [{"random_state": 0}],
    "GaussianRandomProjection": [{"n_components": 2, "random_state": 0}, {}],
    "SparseRandomProjection": [{"n_components": 2, "random_state": 0}, {}],
    "OneHotEncoder": [
        {"categories": [[0, 1, 2]] * 3},
        {"categories": [[0, 1, 2]] * 3, "min_frequency": 0.3, "handle_unknown": "infrequent_if_exist"},
        {},
    ],
    "OrdinalEncoder": [{"categories": [[0, 1, 2]] * 3}, {}],
    "SimpleImputer": [
        {"strategy": "constant", "fill_value": 0, "keep_empty_features": True},
        {"strategy": "constant", "fill_value": 0, "add_indicator": True},
        {"strategy": "most_frequent"},
        {},
    ],
    "MissingIndicator": [{"features": "all"}, {}],
    "SplineTransformer": [{"knots": GRID, "extrapolation": "linear"}, {}],
}
CATEGORIES = {"OneHotEncoder", "OrdinalEncoder"}
GAPS = {"SimpleImputer", "MissingIndicator"}


def _rows(name: str, seed: int) -> Any:
    random = np.random.default_rng(seed)
    if name == "HashingVectorizer":
        return [" ".join(random.choice(["a", "bc", "def"], 5)) for _ in range(20)]
    if name == "FeatureHasher":
        return [{str(one): 1.0 for one in random.integers(0, 5, 3)} for _ in range(20)]
    if name in CATEGORIES:
        # One value is missing from either, another one each time.
        return np.concatenate([random.choice([0, 1, 2], (20, 3)), random.choice([0, 1] if seed else [1, 2], (40, 3))])
    rows = random.gamma(1.0 + seed, 0.3, (20, 3))
    if name in GAPS:
        rows[:5, seed] = np.nan
    return rows


def learns(name: str, transformer: Any) -> bool:
    """Whether a third table is transformed in two ways after fits on two others; what cannot be told counts as yes."""
    labels, third = np.arange(20) % 2, _rows(name, 2) if name not in CATEGORIES else np.array([[0, 1, 2]] * 3)
    if name in GAPS:
        third = np.full((4, 3), np.nan)
    seen = []
    for seed in (0, 1):
        try:
            table = _rows(name, seed)
            out = clone(transformer).fit(table, labels[: len(table)] if len(table) == 20 else None).transform(third)
        except Exception:  # whatever keeps it from being fitted so
            return True
        seen.append(out.toarray() if scipy.sparse.issparse(out) else np.asarray(out))
    return seen[0].shape != seen[1].shape or not np.array_equal(seen[0], seen[1])


def _configured() -> list[tuple[str, Any]]:
    found = []
    for name, kind in TRANSFORMERS.items():
        for given in SETTINGS.get(name, [{}]):
            try:
                found.append((name, kind(**given)))
            except TypeError:
                # What is made of others: searched by the tests below.
                continue
    return found


def _wrong(configured: list[tuple[str, Any]]) -> list[str]:
    return [
        f"{name} {transformer}"
        for name, transformer in configured
        if learns(name, transformer) and not check_pipeline(make_pipeline(transformer, OURS))
    ]


def test_every_transformer_that_learns_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that scikit-learn has, by what becomes of a third table; a scaler on the list would be found."""
    configured = _configured()
    assert not _wrong(configured)
    safe = {name for name, one in configured if not check_pipeline(make_pipeline(one, OURS))}
    assert safe == {
        "AdditiveChi2Sampler", "Binarizer", "FeatureHasher", "FunctionTransformer", "GaussianRandomProjection",
        "HashingVectorizer", "MissingIndicator", "Normalizer", "OneHotEncoder", "OrdinalEncoder",
        "PolynomialCountSketch", "PolynomialFeatures", "RBFSampler", "SimpleImputer", "SkewedChi2Sampler",
        "SparseRandomProjection", "SplineTransformer",
    }  # fmt: skip
    assert len(configured) - len(safe) > 50
    monkeypatch.setitem(pipelines._KNOWN, StandardScaler, pipelines._learns_nothing)
    monkeypatch.setitem(pipelines._KNOWN, RBFSampler, pipelines._learns_nothing)
    assert len(_wrong([one for one in configured if one[0] in ("StandardScaler", "RBFSampler")])) == 2


class _Centring(Normalizer):  # type: ignore[misc]  # scikit-learn has no types
    """A subclass of what learns nothing learns what it likes."""


STEPS: list[tuple[Any, list[str]]] = [
    (make_pipeline(Normalizer(), OURS), []),
    (make_pipeline("passthrough", None, OURS), []),
    (make_pipeline(StandardScaler(), OURS), ["standardscaler"]),
    (make_pipeline(_Centring(), OURS), ["_centring"]),
    (make_pipeline(make_pipeline(PolynomialFeatures(), MinMaxScaler()), OURS), ["pipeline.minmaxscaler"]),
    (
        Pipeline(
            [
                (
                    "columns",
                    ColumnTransformer(
                        [
                            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["a"]),
                            ("wards", OneHotEncoder(categories=[["north", "south"]]), ["b"]),
                            ("gone", "drop", ["c"]),
                            ("kept", "passthrough", make_column_selector(pattern="^d")),
                        ],
                        remainder=MinMaxScaler(),
                    ),
                ),
                ("ours", OURS),
            ]
        ),
        ["columns.numbers.simpleimputer", "columns.numbers.standardscaler", "columns.remainder"],
    ),
    (
        make_pipeline(ColumnTransformer([("n", "passthrough", make_column_selector(dtype_include="number"))]), OURS),
        ["columntransformer"],
    ),
    (make_pipeline(FeatureUnion([("one", Normalizer()), ("two", OrdinalEncoder())]), OURS), ["featureunion.two"]),
    (GridSearchCV(make_pipeline(StandardScaler(), OURS), {}), ["", "estimator.standardscaler"]),
    (RandomizedSearchCV(OURS, {}), [""]),
    (CalibratedClassifierCV(OURS), [""]),
    (TunedThresholdClassifierCV(OURS), [""]),
    (FixedThresholdClassifier(OURS, threshold=0.2), []),
    (BaggingClassifier(OURS), [""]),
    (make_pipeline(FrozenEstimator(StandardScaler()), OURS), ["frozenestimator.estimator"]),
    (make_pipeline(Normalizer(), LogisticRegression()), ["logisticregression"]),
    (make_pipeline(FunctionTransformer(np.frompyfunc(abs, 1, 1)), OURS), ["functiontransformer"]),
    (TransformedTargetRegressor(PrivateRegressor(), func=np.log1p, inverse_func=np.expm1), []),
    (TransformedTargetRegressor(PrivateRegressor(), transformer=StandardScaler()), ["transformer"]),
    (TransformedTargetRegressor(PrivateRegressor(), func=lambda y: y - y.mean(), inverse_func=np.abs), [""]),
    # It fits scikit-learn's own linear regression where none is given.
    (TransformedTargetRegressor(), [""]),
    # Whether the output is sparse goes by how many words, or unknown values, the rows have.
    (ColumnTransformer([("t", HashingVectorizer(), "t"), ("n", "passthrough", ["n"])]), [""]),
    (ColumnTransformer([("t", make_pipeline(HashingVectorizer()), "t")], sparse_threshold=0), []),
    (ColumnTransformer([("t", make_pipeline(HashingVectorizer()), "t"), ("n", "passthrough", ["n"])]), [""]),
    (ColumnTransformer([("w", OneHotEncoder(categories=[["n"]], handle_unknown="ignore"), ["w"])]), [""]),
    (OURS, []),
    (BaseEstimator(), [""]),
    (object(), [""]),
    (make_pipeline(SplineTransformer(knots=GRID), OURS), []),
]


@pytest.mark.parametrize(("pipeline", "steps"), STEPS, ids=lambda one: str(one)[:60] if isinstance(one, list) else None)
def test_steps_within_steps_are_named_by_their_place(pipeline: Any, steps: list[str]) -> None:
    found = check_pipeline(pipeline)
    assert [one.step for one in found] == steps
    assert all(one.reason and one.estimator in str(one) for one in found)


def test_a_reason_says_what_to_do() -> None:
    (finding,) = check_pipeline(make_pipeline(RBFSampler(gamma="scale"), OURS))
    assert (finding.step, finding.estimator) == ("rbfsampler", "RBFSampler")
    assert "gamma='scale' is learnt from the rows, their variance; give a number" in str(finding)
    (search,) = check_pipeline(GridSearchCV(OURS, {}))
    assert "each fit of our estimator is a release of its own" in search.reason


@pytest.mark.parametrize(
    ("around", "steps"),
    [
        (lambda ours: make_pipeline(StandardScaler(), ours), r"standardscaler \(StandardScaler\)"),
        (lambda ours: GridSearchCV(make_pipeline(StandardScaler(), ours), {}, cv=2), "GridSearchCV.*standardscaler"),
        (lambda ours: CalibratedClassifierCV(ours, cv=2), r"\(CalibratedClassifierCV\)"),
        (lambda ours: make_pipeline(Normalizer(), ours), None),
        (lambda ours: ours, None),
    ],
)
def test_each_private_fit_warns_of_what_is_fitted_around_it(around: Any, steps: str | None) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    # Private rows with a public seed of the noise: refused after the warning, and nothing is released.
    ours = PrivateClassifier(1.0, bounds=(-9.0, 9.0), classes=[0, 1], random_state=0)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with pytest.raises(BudgetError, match="random_state"):
                around(ours).fit(*rows)
        said = [str(one.message) for one in told if "check_pipeline" in str(one.message)]
        assert len(said) == (steps is not None)
        assert steps is None or re.search(steps, said[0])
    public = around(ours.set_params(public=True))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*check_pipeline")
        public.fit(*rows)
