"""Scikit-learn estimators over the same plans, door and ledger as the flows."""

from __future__ import annotations

import math
import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from dpalgos.errors import ParameterError
from dpalgos.models import AffineMap, LinearModel
from dpalgos.registry import names
from dpalgos.rows import Floats
from storage.documents import read_yaml
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.people import MOST_ROWS, People, identifiers, named
from storage.refs import OnViolation
from tasks.planning.configuration import TrainingConfig
from tasks.tracking.results import Proved, proved_of
from unitball.fitting import (
    DEFAULT_ACCOUNT,
    PROCESS,
    BudgetError,
    Fit,
    Grouped,
    budget,
    fit_private,
    fit_public,
    other_process,
    row_map,
)

# As tables are encoded: an intercept's coordinate of a tenth beside a row of norm 1.
_INTERCEPT = 0.1


@dataclass(frozen=True, eq=False)
class Bounds:
    """Clip numbers to their bounds, put the middle of the bounds at 0, weigh all alike, add an intercept's coordinate.

    The same map as that of a table's numbers under ``scaling: centred`` (:class:`storage.schema.Schema`): a row of p
    numbers that are uniform on their bounds has a mean squared norm of 1.

    Parameters
    ----------
    low, high : array (p,)
        Finite, low below high, or equal for a constant, which becomes 0.
    """

    low: Floats
    high: Floats

    @classmethod
    def of(cls, bounds: Any, features: int) -> Bounds:
        """Return bounds from a pair of numbers or of arrays (p,), lows first.

        Raises
        ------
        ParameterError
            For what is no such pair.
        """
        try:
            low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), features) for end in bounds)
        except (TypeError, ValueError):
            raise ParameterError(
                f"bounds is {str(bounds)[:80]}; give (low, high), each a number or one number a feature ({features})"
            ) from None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ParameterError("bounds hold numbers that are not finite, or a low above its high; correct them")
        return cls(low=low, high=high)

    @classmethod
    def observed(cls, rows: Floats) -> Bounds:
        """Return the smallest and largest number of each column; of public rows only."""
        return cls(low=rows.min(axis=0), high=rows.max(axis=0))

    @property
    def _scale(self) -> Floats:
        """What a distance from the middle is multiplied by, (p,)."""
        half, norm = (self.high - self.low) / 2.0, np.sqrt((1.0 + _INTERCEPT**2) * len(self.low) / 3.0)
        return np.where(half > 0, 1.0 / (np.where(half > 0, half, 1.0) * norm), 0.0)

    @property
    def _constant(self) -> float:
        return float(_INTERCEPT / np.sqrt(1.0 + _INTERCEPT**2))

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Return (m, p + 1) from (m, p)."""
        middle = (self.low + self.high) / 2.0
        centred = (np.clip(np.asarray(rows, dtype=np.float64), self.low, self.high) - middle) * self._scale
        return np.concatenate([centred, np.full((len(centred), 1), self._constant)], axis=1)

    def unscaled(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return coefficients and intercepts for raw rows within bounds, from weights (k, p + 1) of encoded ones."""
        coefficients = weights[:, :-1] * self._scale
        return coefficients, weights[:, -1] * self._constant - coefficients @ ((self.low + self.high) / 2.0)

    def names(self, names_declared: Sequence[str] | None = None) -> list[str]:
        """Return the encoded features' names."""
        return [
            *(names_declared if names_declared is not None else [f"x{place}" for place in range(len(self.low))]),
            "(intercept)",
        ]


NOT_COVERED = (
    "exact scores of these or other private rows, such as a search's scores of its folds, and what is chosen by them",
    "earlier steps of a pipeline that learn from the rows (a scaler, a selection of features)",
    "whatever else is computed from the rows beside this estimator",
)
"""What no guarantee of an estimator covers."""
# Not spent where training is of pure epsilon, and below one over the rows of any set.
_UNSPENT_DELTA = 1e-12


@cache
def _warn_of_scores() -> None:
    """Warn once in a process: Python itself forgets what it has shown whenever somebody changes its filters."""
    warnings.warn(
        "a score on private rows is exact and no release: keep it to yourself; a search or cross-validation also "
        "charges the fit of each fold to the account",
        UserWarning,
        stacklevel=2,
    )


@dataclass(frozen=True)
class FitGuarantee:
    """What is proved of a fitted model, and what is outside.

    Attributes
    ----------
    proved : Proved or None
        None for an algorithm about which nothing is proved; it fits public rows only.
    not_covered : tuple of str
    """

    proved: Proved | None
    not_covered: tuple[str, ...] = NOT_COVERED

    def __str__(self) -> str:
        if self.proved is None:
            return "Nothing is proved about this model."
        return f"The model is {self.proved}. Not covered: {'; '.join(self.not_covered)}."


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What classifier and regressor share; each says what its labels are."""

    # Where it was made, kept by pickling and lost by cloning, which happens in the process that fits.
    _process = PROCESS
    # Kept by pickling, too. What clones and fits is a search or a cross-validation, which scores in ways of its own.
    _cloned = False

    def __init__(self, given: Mapping[str, Any]) -> None:
        # What scikit-learn reads is the signature of each class itself; only the assignments can be shared.
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def __sklearn_clone__(self) -> Any:
        cloned = super().__sklearn_clone__()
        cloned._cloned = True
        return cloned

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_process": self._process}

    def _require_own_process(self) -> None:
        if self._process != PROCESS and self.root is None:
            raise BudgetError(other_process("this estimator came from another"))

    @abstractmethod
    def _label_facts(self, y: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...], tuple[float, float] | None]:
        """Return labels as algorithms take them, names of the classes, range of targets; check the declarations."""

    def _fit(self, X: Any, y: Any, groups: Any) -> None:
        if not self.public:
            self._require_declared()
            if self._cloned:
                _warn_of_scores()
        rows, y = self._rows(X, y)
        grouped = self._grouped(X, groups, len(y))
        self._encoding = self._encoder(rows)
        labels, classes, label_range = self._label_facts(y)
        features = np.asarray(self._encoding(rows))
        pure = self.delta == 0
        fields = {
            "dataset": "estimator",
            ("algorithm" if self._algorithm in names("systems") else "trainer"): self._algorithm,
            "epsilon": self.epsilon,
            "delta": _UNSPENT_DELTA if pure else self.delta,
            "parties": 1,
            "evaluation": False,
            "test_fraction": 0.0,
            "repetition": self.repetition,
            "parameters": self._parameters(len(y) if grouped is None else grouped.records, features.shape[1]),
            "class_weight": self._class_weight(),
        }
        try:
            config = TrainingConfig.model_validate(fields)
        except ValidationError as error:
            faults = (
                f"{fault['loc'][0] if fault['loc'] else ''} is {fault['input']!r}: {fault['msg']}"
                for fault in error.errors()
            )
            raise ParameterError("; ".join(faults)) from None
        if self.public:
            fitted = fit_public(
                config,
                features,
                labels,
                classes=classes,
                label_range=label_range,
                seed=self._seed(),
                grouped=grouped,
            )
        else:
            if self.random_state is not None:
                raise BudgetError("random_state is a public seed of the noise and the rows are private; leave it out")
            fitted = fit_private(
                config,
                features,
                labels,
                classes=classes,
                label_range=label_range,
                account=self.account,
                root=self.root,
                pure=pure,
                grouped=grouped,
                disjoint_people=self.disjoint_people,
            )
        self._take(fitted)

    def remaining_budget(self) -> float | None:
        """Return the epsilon that the account has left, at the delta of its cap; None where the rows are public."""
        if self.public:
            return None
        left = budget(self.account or DEFAULT_ACCOUNT, root=self.root).attrs["epsilon_left"]
        return None if left is None else float(left)

    def _grouped(self, X: Any, groups: Any, rows: int) -> Grouped | None:
        """Return whose rows they are: by ``groups``, or by the schema's column of type person."""
        people = None if self.schema is None else self._table().declared.people
        if groups is not None and people is not None:
            raise ParameterError(f"the schema's column {people.column} says whose rows they are; leave groups out")
        if groups is not None:
            people = People("groups", self.rows_per_person)
            cells = np.asarray(groups, dtype=object).ravel().tolist()
        elif people is not None:
            table = self._table()
            cells = [None if cell in table.declared.missing else cell for cell in table.cells(X, people.column)]
        if people is None:
            return None
        names = identifiers(cells)
        if len(names) != rows or not named(names).all():
            raise ParameterError(
                f"{people.column} has {len(names)} cells, {int(named(names).sum())} of them identifiers, and there are "
                f"{rows} rows; give each row the text or the whole number that names its person"
            )
        return Grouped(people=people, names=names)

    def _parameters(self, records: int, width: int) -> dict[str, Any]:
        """Return the parameters of the algorithm's parts."""
        return dict(self.parameters or {})

    def _class_weight(self) -> dict[str, float] | str:
        return {}

    def _require_declared(self) -> None:
        """Refuse private rows whose bounds or labels would have to be learnt from them."""
        self._require_own_process()
        missing = [name for name in ("bounds", self._declares) if getattr(self, name) is None]
        if self.schema is None and missing:
            raise ParameterError(
                f"the rows are private and {' and '.join(missing)} would have to be learnt from them; declare "
                f"{self._example} or schema=FILE, or say public=True if the rows are nobody's secret"
            )

    def _rows(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        if self.schema is None:
            try:
                checked, labels = validate_data(self, X, y, dtype=np.float64, y_numeric=self._numeric)
            except ValueError as error:
                if "could not convert string" not in str(error):
                    raise
                raise ParameterError(
                    f"{error}; columns of texts need their values declared: give schema=FILE"
                ) from None
            return checked, labels
        encoder = self._table()
        self.feature_names_in_, self.n_features_in_ = encoder.feature_names_in_, encoder.n_features_in_
        return X, np.asarray(y).ravel()

    def _table(self) -> TableEncoder:
        if self.on_violation not in (OnViolation.REFUSE, OnViolation.CLIP):
            raise ParameterError(
                f"on_violation is {self.on_violation!r}; an estimator takes refuse or clip. How many rows there are is "
                "public and does not depend on what they hold: unitball ingest --on-violation drop keeps null records"
            )
        document = self.schema if isinstance(self.schema, Mapping) else read_yaml(Path(str(self.schema)))
        return TableEncoder(dict(document), on_violation=str(self.on_violation))

    def _encoder(self, rows: Any) -> Any:
        if self.schema is not None:
            return self._table().transform
        return Bounds.observed(rows) if self.bounds is None else Bounds.of(self.bounds, rows.shape[1])

    def _seed(self) -> int | None:
        return None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))

    def _take(self, fitted: Fit) -> None:
        self.guarantee_ = FitGuarantee(proved_of(fitted.plan))
        self.charges_ = fitted.charges
        *self._maps, self._model = fitted.artefacts
        self._normalisation = fitted.normalisation
        if isinstance(self._model, LinearModel) and all(isinstance(one, AffineMap) for one in self._maps):
            linear = self._model
            for one in reversed(self._maps):
                linear = one.before(linear)
            self._set_coefficients(linear.weights, linear.intercept)

    def _set_coefficients(self, weights: Floats, intercept: Floats) -> None:
        if isinstance(self._encoding, Bounds):
            coefficients, constants = self._encoding.unscaled(weights)
            # A row is scaled by its norm before the model's own intercept is added; without one the map is linear.
            self.coef_, self.intercept_ = coefficients, constants + intercept
        else:
            self.coef_, self.intercept_ = weights, intercept

    def _scores(self, X: Any) -> Floats:
        check_is_fitted(self)
        if self.schema is None:
            X = validate_data(self, X, reset=False, dtype=np.float64)
        seen = row_map(self._normalisation)(np.asarray(self._encoding(X)))
        for one in self._maps:
            seen = one.apply(seen)
        return np.asarray(self._model.scores(seen))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.string = self.schema is not None
        return tags


class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that is differentially private towards the rows it is fitted on.

    ``fit`` on private rows declares, charges, draws and stores like any run: the ledger of ``root`` (or this process's
    own, where there is none) refuses what would exceed the account's cap, whoever fits: clones, pickled copies and
    searches of this process spend from one account by its name. Fitting again on equal rows with equal parameters gives
    the same release and costs nothing; another ``repetition`` is a fresh one.

    There is no ``predict_proba``. The scores of a private model are no probabilities: clipping and noise change their
    scale, and calibrating them takes held-out rows, whose release is charged. ``unitball.train(…, roc=True)`` makes
    that release and returns probabilities. ``CalibratedClassifierCV`` would fit on the rows exactly, outside the
    guarantee.

    Parameters
    ----------
    epsilon : float
        Of one fit.
    delta : float
        Of one fit, below one over the number of rows; 0 for algorithms of pure epsilon.
    algorithm : str, optional
        A registered system or trainer. By default ``"unitball"``, the recommended system; where delta is 0,
        ``"objective-perturbation"`` with lambda = 1.5 sqrt(p) / (n epsilon) for p encoded features: its noise, of norm
        about 2 p / epsilon, then moves the minimiser by at most about 4 sqrt(p) / 3 (``dpalgos.trainers``). It is
        proved in real arithmetic only, so that an account must admit that (``open_account(allow_idealised=True)``).
    account : str, optional
        Whose budget private rows spend (:func:`unitball.open_account`). One that nobody has opened holds one fit.
    schema : mapping or path, optional
        Declares the columns of data frames (see docs/your-data.md), the label's classes included.
    bounds : (low, high), optional
        Of arrays: each a number, or one a feature. Numbers outside are clipped. Needed for private rows without schema.
    classes : sequence, optional
        The labels there may be, in order. Needed for private rows without schema.
    public : bool
        The rows are nobody's secret: bounds and classes may be learnt from them, nothing is stored or charged, and the
        same noise is added.
    root : path, optional
        Whose ledger is charged. Needed where several processes fit (``n_jobs`` above 1).
    parameters : mapping, optional
        Of the algorithm's parts, such as ``{"trainer.regularisation": 0.01}``.
    class_weight : dict or "balanced", optional
        What the rows of a class weigh beside those that weigh 1, by label: public, above 0, 1 where left out.
        All are divided by the largest: a weight above 1 would raise the sensitivity.
        ``"balanced"`` weighs the classes by noisy counts, which take a twentieth of a gradient trainer's budget.
    repetition : int
        Another number is another release, drawn and charged anew.
    random_state : int, RandomState or None
        Public seed of the noise; for public rows only.
    disjoint_people : str
        Where rows like these are under another account: the reason why their people are others, which is recorded.
    on_violation : {"refuse", "clip"}
        What happens to cells outside the schema, in ``fit`` and ``predict``, as ``unitball ingest --on-violation`` says
        it of a file: an error names the first one, or numbers go to the nearest end of their range and an unknown
        category is none.
    rows_per_person : int
        With ``groups``: the most rows of one person that are taken; public.

    Attributes
    ----------
    classes_ : array (K,)
    coef_ : array (1 or K, p)
        Of raw features within their bounds, if the model is linear and bounds are given; otherwise of encoded ones. For
        rows whose encoding has norm 1, to which the others are scaled.
    intercept_ : array (1 or K,)
    guarantee_ : FitGuarantee
        What is proved, and what is not covered: exact scores of folds and earlier steps of a pipeline are outside.
    charges_ : data frame
        A line a release.
    n_features_in_ : int

    Raises
    ------
    BudgetError
        From ``fit``, if the account does not admit it. It is no ``Exception``, so that a search ends with the reason
        instead of a missing score.
    dpalgos.errors.ParameterError
        From ``fit``, if something would have to be learnt from private rows, or parameters do not fit.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from unitball import PrivateClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = PrivateClassifier(epsilon=1.0, delta=1e-6, public=True, random_state=0).fit(X, y)
    >>> model.predict(X[:3]).shape
    (3,)
    """

    _declares, _numeric = "classes", False
    _example = "bounds=(low, high) and classes=[…]"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        algorithm: str | None = None,
        account: str | None = None,
        schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        bounds: Sequence[Any] | None = None,
        classes: Sequence[Any] | None = None,
        public: bool = False,
        root: str | os.PathLike[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        repetition: int = 0,
        random_state: Any = None,
        rows_per_person: int = MOST_ROWS,
        disjoint_people: str = "",
        on_violation: str = "refuse",
    ) -> None:
        super().__init__(locals())

    @property
    def _algorithm(self) -> str:
        return self.algorithm or ("objective-perturbation" if self.delta == 0 else "unitball")

    def _parameters(self, records: int, width: int) -> dict[str, Any]:
        parameters = super()._parameters(records, width)
        if self.algorithm is not None or self.delta > 0 or parameters:
            return parameters
        return {"regularisation": 1.5 * math.sqrt(width) / (records * self.epsilon)}

    def _class_weight(self) -> dict[str, float] | str:
        """Return weights by the names under which classes are trained, which are their places."""
        if not isinstance(self.class_weight, Mapping):
            return self.class_weight or {}
        places = {label: str(place) for place, label in enumerate(self.classes_.tolist())}
        if unknown := [label for label in self.class_weight if label not in places]:
            raise ParameterError(
                f"class_weight names {unknown[0]!r}, which is no class; there are: {', '.join(map(repr, places))}"
            )
        weights = {place: self.class_weight.get(label, 1.0) for label, place in places.items()}
        if not all(isinstance(weight, Real) and 0 < float(weight) < math.inf for weight in weights.values()):
            return weights  # which the configuration refuses, with the value
        largest = max(weights.values())
        return {place: weight / largest for place, weight in weights.items()}

    def fit(self, X: Any, y: Any, groups: Any = None) -> PrivateClassifier:
        """Train, charged to the account.

        Parameters
        ----------
        X : array (m, p), or a data frame of the schema's columns
        y : array (m,)
        groups : array (m,), optional
            Whose each row is, text or whole numbers: what is protected is then a person with all rows, in an account of
            people. In a pipeline: ``set_fit_request(groups=True)``. A schema's column of type ``person`` says the same.
        """
        self._fit(X, y, groups)
        return self

    def _label_facts(self, y: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...], None]:
        declared: Any = self.classes
        if declared is None and self.schema is not None:
            declared = self._table().declared.label.classes
        if declared is None:
            check_classification_targets(y)
            if type_of_target(y) not in ("binary", "multiclass"):
                raise ParameterError(f"y is {type_of_target(y)}; give one class a row")
            declared = np.unique(y)
        self.classes_ = np.asarray(declared)
        if len(self.classes_) < 2:
            raise ParameterError(f"there is one class, {self.classes_[0]!r}; a classifier needs two at the least")
        places = {label: index for index, label in enumerate(self.classes_.tolist())}
        if len(places) < len(self.classes_):
            raise ParameterError("classes are declared twice; names must differ")
        known = y.tolist()
        if unknown := [label for label in known if label not in places]:
            raise ParameterError(
                f"label {unknown[0]!r} is none of the classes {', '.join(map(repr, places))}; declare it or leave the "
                "row out"
            )
        indices = np.array([places[label] for label in known], dtype=np.int64)
        return indices, tuple(str(index) for index in range(len(places))), None

    def decision_function(self, X: Any) -> Floats:
        """Return scores: (m,) for two classes, positive for the second; (m, K) otherwise."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on these rows, which is exact and no release."""
        if not self.public:
            _warn_of_scores()
        return float(super().score(X, y, sample_weight))

    @property
    def predict_proba(self) -> Any:
        """Not offered: see the class's own words.

        Raises
        ------
        AttributeError
            Always, so that scikit-learn's tools take the decision function.
        """
        raise AttributeError(
            "a private model's scores are no probabilities, and calibrating them takes a charged release of held-out "
            "rows: unitball.train(…, roc=True) makes it; decision_function gives the scores"
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """Return a class for each row, (m,)."""
        scores = self.decision_function(X)
        return np.asarray(self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Noise that hides a row hides what a few dozen rows could teach.
        tags.classifier_tags.poor_score = True
        return tags


class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A linear regression that is differentially private towards the rows it is fitted on.

    Parameters are those of :class:`PrivateClassifier`, but for the labels: instead of ``classes`` the range of the
    targets is declared.

    Parameters
    ----------
    epsilon, delta, algorithm, account, schema, bounds, public, root, parameters, repetition, random_state
    rows_per_person, disjoint_people, on_violation
        See :class:`PrivateClassifier`; the algorithm is ``"ridge-noisy-gd"`` by default.
    label_range : (low, high), optional
        Targets outside are clipped. Needed for private rows without schema.

    Attributes
    ----------
    coef_ : array (p,)
    intercept_ : float
    guarantee_, charges_, n_features_in_
        See :class:`PrivateClassifier`.

    Raises
    ------
    BudgetError, dpalgos.errors.ParameterError
        See :class:`PrivateClassifier`.
    """

    _declares, _numeric = "label_range", True
    _example = "bounds=(low, high) and label_range=(low, high)"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        algorithm: str | None = None,
        account: str | None = None,
        schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        bounds: Sequence[Any] | None = None,
        label_range: Sequence[float] | None = None,
        public: bool = False,
        root: str | os.PathLike[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        repetition: int = 0,
        random_state: Any = None,
        rows_per_person: int = MOST_ROWS,
        disjoint_people: str = "",
        on_violation: str = "refuse",
    ) -> None:
        super().__init__(locals())

    @property
    def _algorithm(self) -> str:
        return self.algorithm or "ridge-noisy-gd"

    def fit(self, X: Any, y: Any, groups: Any = None) -> PrivateRegressor:
        """Train, charged to the account.

        Parameters
        ----------
        X : array (m, p), or a data frame of the schema's columns
        y : array (m,)
        groups : array (m,), optional
            Whose each row is, text or whole numbers: what is protected is then a person with all rows, in an account of
            people. In a pipeline: ``set_fit_request(groups=True)``. A schema's column of type ``person`` says the same.
        """
        self._fit(X, y, groups)
        return self

    def _label_facts(self, y: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...], tuple[float, float]]:
        declared = self.label_range
        if declared is None and self.schema is not None:
            declared = self._table().declared.label.range
        targets = np.asarray(y, dtype=np.float64)
        low, high = (targets.min(), targets.max()) if declared is None else map(float, declared)
        outside = np.flatnonzero((targets < low) | (targets > high))
        if self.label_range is None and self.on_violation == OnViolation.REFUSE and len(outside):
            raise InputError(
                f"row {outside[0] + 1}, target {targets[outside[0]]:g} is outside the schema's range [{low:g}, "
                f'{high:g}]; correct it, or say on_violation="clip"'
            )
        if declared is None and low == high:
            high = low + 1.0
        if not low < high:
            raise ParameterError(f"label_range is {declared!r}; give (low, high), low below high")
        return np.clip(targets, low, high), (), (float(low), float(high))

    def _set_coefficients(self, weights: Floats, intercept: Floats) -> None:
        super()._set_coefficients(weights, intercept)
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² on these rows, which is exact and no release."""
        if not self.public:
            _warn_of_scores()
        return float(super().score(X, y, sample_weight))

    def predict(self, X: Any) -> Floats:
        """Return a number for each row, (m,)."""
        return self._scores(X)[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
