"""Scikit-learn estimators over the same plans, door and ledger as the flows."""

import math
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from dpalgos.columns import Column
from dpalgos.conformal import HeldOutErrors, HeldOutScores
from dpalgos.features.unit_rows import UnitRows
from dpalgos.models import AffineMap, LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.registry import names
from dpalgos.rows import Floats
from dpalgos.score_curves import Calibration, ScoreSums, operating_points, platt
from storage.cells import canonical
from storage.columns.coding import codes_of
from storage.columns.declarations import named_twice
from storage.documents import read_yaml
from storage.encoder import TableEncoder, columns_of
from storage.errors import InputError
from storage.ledger.entries import require_name
from storage.people import MOST_ROWS, People, identifiers, named
from storage.refs import OnViolation
from storage.several import patterned, settled
from tasks.accounts.room import one_more_run
from tasks.datasets.scales import scales_under
from tasks.planning.configuration import TrainingConfig, faults
from tasks.planning.resolution import resolve_normalisation
from tasks.release.held_out_counts import held_out_counts
from tasks.release.metrics import Evaluation, measure_by_statistics, sums_of_scores
from tasks.release.prices import RUN_EPSILON
from tasks.tracking.effects import described_effects
from tasks.tracking.results import Proved, proved_of
from unitball.bounds import Bounds
from unitball.fits import (
    BudgetError,
    Encoded,
    Fitted,
    Grouped,
    Target,
    fit_in_memory,
    fit_through_the_door,
    row_map,
    unpriced,
)
from unitball.training import PROCESS, budget, charged_root, other_process
from unitball.wording import in_python

NOT_COVERED = (
    "exact scores of these or other private rows, such as a search's scores of its folds, and what is chosen by them",
    "other steps of a pipeline that learn from the rows (a scaler, a selection of features), which "
    "unitball.check_pipeline(…) names",
    "whatever else is computed from the rows beside this estimator",
)
"""What no guarantee of an estimator covers."""
_MOST_SHOWN, _MOST_WHOLE = 80, 10**18
# Where nothing names an account or opens it, it holds what one fit costs.
_DEFAULT_ACCOUNT = "unnamed"


@cache
def _warn_of_scores() -> None:
    """Warn once in a process: Python itself forgets what it has shown whenever somebody changes its filters."""
    warnings.warn(
        "a score on private rows is exact and no release: keep it to yourself; a search or cross-validation also "
        "charges the fit of each fold to the account",
        UserWarning,
        stacklevel=2,
    )


@cache
def _warn_of_order(classes: tuple[Any, ...]) -> None:
    warnings.warn(
        f"classes are declared as {', '.join(map(repr, classes))}, which is not their sorted order, and scikit-learn's "
        "scorers by name (roc_auc, neg_log_loss, average_precision, …) take classes for sorted: they would score the "
        "other class. Declare them sorted, or give make_scorer(…) pos_label or labels",
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
        The same of all models.
    """

    proved: Proved | None
    not_covered: ClassVar[tuple[str, ...]] = NOT_COVERED

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

    def __init__(
        self,
        *,
        epsilon: float | None,
        delta: float,
        algorithm: str | None,
        account: str | None,
        schema: Mapping[str, Any] | str | os.PathLike[str] | None,
        bounds: Sequence[Any] | None,
        public: bool,
        root: str | os.PathLike[str] | None,
        parameters: Mapping[str, Any] | None,
        replicate: int,
        random_state: Any,
        rows_per_person: int,
        disjoint_people: str,
        on_violation: str,
        test_fraction: float,
    ) -> None:
        self.test_fraction = test_fraction
        self.epsilon = epsilon
        self.delta = delta
        self.algorithm = algorithm
        self.account = account
        self.schema = schema
        self.bounds = bounds
        self.public = public
        self.root = root
        self.parameters = parameters
        self.replicate = replicate
        self.random_state = random_state
        self.rows_per_person = rows_per_person
        self.disjoint_people = disjoint_people
        self.on_violation = on_violation

    def __sklearn_clone__(self) -> Any:
        cloned = super().__sklearn_clone__()
        cloned._cloned = True
        return cloned

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_process": self._process}

    @abstractmethod
    def _target(self, y: NDArray[Any]) -> Target:
        """Return the labels as algorithms take them, and what is public of them; check the declarations."""

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Train, charged to the account.

        Parameters
        ----------
        X : array (m, p), or a data frame of the schema's columns
        y : array (m,)
        groups : array (m,), optional
            Whose each row is, text or whole numbers: what is protected is then a person with all rows, in an account of
            people. By keyword alone: a third argument is elsewhere the rows' weights. In a pipeline:
            ``set_fit_request(groups=True)``. A schema's column of type ``person`` says the same.
        """
        self._require_parameters()
        if not self.public:
            self._require_declared()
            if self._cloned:
                _warn_of_scores()
        rows, y = self._rows(X, y)
        grouped = self._grouped(X, groups, len(y))
        self._encoding = self._encoder(rows)
        self._places = self._encoding.places if self.schema is None else self._columns.declared.places
        target = self._target(y)
        features = np.asarray(self._encoding(rows))
        if self.test_fraction > 0 and (len(y) if grouped is None else grouped.records) == 1:
            raise ParameterError("there is one sample, and some are to be held out; give more, or test_fraction=0")
        config = self._configuration(len(y) if grouped is None else grouped.records, features.shape[1])
        encoded = Encoded(
            features=features,
            target=target,
            grouped=grouped,
            columns=tuple(self._places),
            normalisation=resolve_normalisation(config, None, table=bool(self._places)),
        )
        if self.public:
            fitted = fit_in_memory(config, encoded, self.random_state)
        elif self.random_state is not None:
            raise BudgetError("random_state is a public seed of the noise and the rows are private; leave it out")
        else:
            population = self.account or _DEFAULT_ACCOUNT
            if self.epsilon is None:
                raise unpriced(config, encoded, population, root=self.root)
            fitted = fit_through_the_door(
                config, encoded, population, root=self.root, disjoint_people=self.disjoint_people
            )
        self._people = grouped is not None
        self._take(fitted)
        return self

    def _configuration(self, records: int, width: int) -> TrainingConfig:
        """Return what a run does that fits so many records of so many encoded features."""
        measured = self.test_fraction > 0
        fields = {
            "dataset": "estimator",
            ("algorithm" if self._algorithm in names("systems") else "trainer"): self._algorithm,
            "epsilon": float(self._epsilon),
            "delta": float(self.delta),
            "parties": 1,
            "evaluation": measured,
            "test_fraction": float(self.test_fraction),
            "replicate": int(self.replicate),
            "parameters": self._parameters(records, width),
            "class_weight": self._class_weight(),
            **(self._measuring() if measured else {}),
        }
        try:
            return TrainingConfig.model_validate(fields)
        except ValidationError as error:
            raise ParameterError(in_python("; ".join(faults(error, {name: name for name in fields})))) from None

    def _measuring(self) -> dict[str, Any]:
        """Return what is released of held-out rows beside how the model does."""
        return {}

    def _take(self, fitted: Fitted) -> None:
        """Keep what a fit has released, and what follows from it."""
        self.guarantee_, self._charged = FitGuarantee(proved_of(fitted.plan)), fitted.charges
        self._maps, self._model, self._counts = fitted.maps, fitted.model, fitted.counts
        self._normalisation = fitted.normalisation
        found = Evaluation()
        if fitted.statistics:
            found = measure_by_statistics(fitted.plan, {"all": fitted.path}, fitted.statistics, self._class_names())
        # An open end of a margin is infinite; what cannot be measured is nan.
        self.measured_, self.unmeasured_ = dict(found.metrics), dict(found.metrics.reasons)
        self._held_out = held_out_counts(fitted.plan, fitted.path, fitted.statistics) if fitted.statistics else None
        self._calibrate(found, sums_of_scores(fitted.plan, fitted.path, fitted.statistics))
        # Rows of norm 1 are what coefficients are for, whoever brought them there.
        maps = self._maps[1:] if self._maps and isinstance(self._maps[0], UnitRows) else self._maps
        if isinstance(self._model, LinearModel) and all(isinstance(one, AffineMap) for one in maps):
            linear = self._model
            for one in reversed(maps):
                linear = one.before(linear)
            self._set_coefficients(linear.weights, linear.intercept - self._threshold)

    def _calibrate(self, found: Evaluation, sums: Sequence[ScoreSums]) -> None:
        """Keep what turns scores into probabilities, where sums of scores were released."""

    def _require_held_out(self) -> HeldOutErrors | HeldOutScores:
        """Return the released counts of held-out rows; ParameterError where there are none."""
        check_is_fitted(self)
        if self._held_out is None:
            given = f"test_fraction is {self.test_fraction:g} and delta is {self.delta:g}"
            raise ParameterError(
                f"{given}; intervals and sets follow from a release of held-out rows with Gaussian noise: give a "
                "test_fraction above 0, such as 0.2, and a delta above 0"
            )
        return self._held_out

    @property
    def _epsilon(self) -> float:
        """Of a fit: the stated one, or the default of public rows, which is proposed for private ones."""
        return RUN_EPSILON if self.epsilon is None else self.epsilon

    @property
    def _threshold(self) -> float:
        """Of the model's scores; what it says are those above it."""
        return 0.0

    def _class_names(self) -> tuple[str, ...]:
        return ()

    @property
    def charges_(self) -> pd.DataFrame:
        """A line a release that reads rows: what it is, what it costs, who pays."""
        return pd.DataFrame(self._charged, columns=["release", "algorithm", "loss", "account", "key"])

    def remaining_budget(self) -> float | None:
        """Return the largest epsilon of one more fit that the account would admit; None where the rows are public.

        At this estimator's own ``delta``, under which another epsilon fits than under that of the account's runs.
        """
        if self.public:
            return None
        account = self.account or _DEFAULT_ACCOUNT
        if budget(account, root=self.root).left is None:
            return None
        with charged_root(self.root):
            left = one_more_run(account, float(self.delta))
        return None if left is None else left.epsilon

    def _grouped(self, X: Any, groups: Any, rows: int) -> Grouped | None:
        """Return whose rows they are: by ``groups``, or by the schema's column of type person."""
        people = None if self.schema is None else self._columns.declared.people
        if groups is not None and people is not None:
            raise ParameterError(f"the schema's column {people.column} says whose rows they are; leave groups out")
        if groups is not None:
            people = People("groups", self.rows_per_person)
            names = identifiers(np.asarray(groups, dtype=object).ravel().tolist())
        elif people is not None:
            names = self._columns.people(X)
        if people is None:
            return None
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

    def _require_parameters(self) -> None:
        """Refuse, by name, what is no parameter, before anything is computed from it.

        Raises
        ------
        ParameterError
        """
        _require_number("epsilon", self._epsilon, "above 0 and at most 1000", lambda value: 0 < value <= 1000)
        _require_number("delta", self.delta, "from 0 to below 1, below one over the rows", lambda value: 0 <= value < 1)
        _require_number("test_fraction", self.test_fraction, "from 0 to below 1", lambda value: 0 <= value < 1)
        _require_whole("replicate", self.replicate, 0)
        _require_whole("rows_per_person", self.rows_per_person, 1)
        if not isinstance(self.public, bool | np.bool_):
            raise ParameterError(f"public is {self.public!r}; give True, or False where the rows are private")
        if self.on_violation not in (OnViolation.REFUSE, OnViolation.CLIP):
            raise ParameterError(
                f"on_violation is {self.on_violation!r}; an estimator takes refuse or clip. How many rows there are is "
                "public and does not depend on what they hold: unitball ingest keeps null records of rows that it drops"
            )
        if not isinstance(self.disjoint_people, str):
            raise ParameterError(
                f"disjoint_people is {self.disjoint_people!r}; give the reason as a text, or '' where none is declared"
            )
        for name, kinds, what in (
            ("algorithm", str, "a name of `unitball algorithms`"),
            ("account", str, "the population's name"),
            ("parameters", Mapping, "a mapping, as {'trainer.regularisation': 0.01}"),
            ("root", (str, os.PathLike), "a folder"),
            ("schema", (Mapping, str, os.PathLike), "a mapping, or the path of a YAML file"),
        ):
            value = getattr(self, name)
            if not (value is None or isinstance(value, kinds)) or value == "":
                raise ParameterError(f"{name} is {_shown(value)}; give {what}, or None")
        for name in self.parameters or ():
            if not isinstance(name, str):
                raise ParameterError(f"parameters names {name!r}; give names as texts, as in 'trainer.regularisation'")
        if self.account is not None:
            require_name("account", self.account)
        if self.random_state is not None:
            try:
                check_random_state(self.random_state)
            except ValueError:
                raise ParameterError(
                    f"random_state is {_shown(self.random_state)}; give a whole number from 0 to 2**32 - 1, a "
                    "numpy.random.RandomState, or None"
                ) from None

    def _require_declared(self) -> None:
        """Refuse private rows whose bounds or labels would have to be learnt from them."""
        if self._process != PROCESS and self.root is None:
            raise BudgetError(other_process("this estimator came from another"))
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
                if "inconsistent numbers of samples" in str(error):
                    raise ParameterError(
                        f"y has {len(y)} labels and X has {len(X)} rows; give each row one label"
                    ) from None
                raise ParameterError(_said_of_rows(error)) from None
            return checked, labels
        self._columns = self._table(X)
        self.feature_names_in_, self.n_features_in_ = self._columns.feature_names_in_, self._columns.n_features_in_
        if y is None:
            raise ParameterError("y is None; give each row its label")
        labels = np.asarray(y)
        if labels.ndim > 1 and labels.shape[1:] != (1,):
            raise ParameterError(f"y has shape {labels.shape}; give each row one label, (m,)")
        rows = len(next(iter(X.values()), ())) if isinstance(X, Mapping) else len(X)
        if len(labels) != rows:
            raise ParameterError(f"y has {len(labels)} labels and X has {rows} rows; give each row one label")
        if not rows:
            raise ParameterError("X has 0 rows; at least one is needed to fit")
        return X, self._labels(labels)

    def _labels(self, y: Any) -> NDArray[Any]:
        """Return labels as the schema names them, where it declares them."""
        labels = np.asarray(y).ravel()
        named = self.schema is None or getattr(self, self._declares) is not None
        return labels if named else self._columns.labels(labels)

    def _table(self, X: Any) -> TableEncoder:
        """Return what encodes rows like these, whose columns settle what the schema's patterns take."""
        document = self.schema if isinstance(self.schema, Mapping) else read_yaml(Path(str(self.schema)))
        if patterned(document):
            document = settled(document, "schema", [*columns_of(X)])
        return TableEncoder(dict(document), on_violation=str(self.on_violation))

    def _encoder(self, rows: Any) -> Any:
        if self.schema is not None:
            return self._columns.transform
        # None are declared of public rows alone.
        bounds = (rows.min(axis=0), rows.max(axis=0)) if self.bounds is None else self.bounds
        return Bounds.of(bounds, rows.shape[1])

    def _set_coefficients(self, weights: Floats, intercept: Floats) -> None:
        if isinstance(self._encoding, Bounds):
            coefficients, constants = self._encoding.unscaled(weights)
            # A row is scaled by its norm before the model's own intercept is added; without one the map is linear.
            self.coef_, self.intercept_ = coefficients, constants + intercept
        else:
            self.coef_, self.intercept_ = weights, intercept

    def _scores(self, X: Any) -> Floats:
        """Return scores counted from the threshold, (m, 1) or (m, K)."""
        return self._counted(self._raw_scores(X))

    def _counted(self, scores: Floats) -> Floats:
        return np.asarray(scores - self._threshold)

    def _raw_scores(self, X: Any) -> Floats:
        check_is_fitted(self)
        if self.schema is None:
            # A delivery may be empty, and so is what is said of it.
            try:
                X = validate_data(self, X, reset=False, dtype=np.float64, ensure_min_samples=0)
            except ValueError as error:
                raise ParameterError(_said_of_rows(error)) from None
        return self._raw_scores_of(np.asarray(self._encoding(X)))

    def _raw_scores_of(self, encoded: Floats) -> Floats:
        seen = row_map(self._normalisation)(encoded)
        for one in self._maps:
            seen = one.apply(seen)
        return np.asarray(self._model.scores(seen))

    def effects(self) -> pd.DataFrame:
        """Return what the model says about each column: its scores along it, from weights and released counts alone.

        No row is looked at, so it costs nothing. The data frame is that of :meth:`unitball.TrainedModel.effects`.

        Raises
        ------
        InputError
            If no column has a declared range or values.
        """
        check_is_fitted(self)
        if self.schema is None:
            known, scales = self._encoding.places, self._encoding.scales(getattr(self, "feature_names_in_", None))
            missing = self._encoding.middle()
        else:
            declared = self._columns.declared
            known, missing = declared.places, declared.missing_row()
            scales = scales_under(declared, clips=OnViolation(self.on_violation).clips)
        if not known:
            raise InputError(
                "effects are of declared columns, each with a range or its values; declare bounds or a schema"
            )
        columns = [Column(**place.model_dump()) for place in known]
        path = [*self._maps, self._model]
        names = self._score_names()

        def score(encoded: Floats) -> Floats:
            return self._counted(self._raw_scores_of(encoded))

        return described_effects(
            score, names, columns, scales, missing, self._counts, path, people=self._people
        ).to_frame()

    def _score_names(self) -> tuple[str, ...]:
        return ("prediction",)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.string = self.schema is not None
        return tags


class _Scored:
    """Before scikit-learn's own mixin, which knows the score."""

    public: bool
    _labels: Callable[[Any], NDArray[Any]]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, or R² of numbers, on these rows, which is exact and no release."""
        if not self.public:
            _warn_of_scores()
        return float(super().score(X, self._labels(y), sample_weight))  # type: ignore[misc]  # of the mixin


class PrivateClassifier(_Scored, ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that is differentially private towards the rows it is fitted on.

    ``fit`` on private rows declares, charges, draws and stores like any run: the ledger of ``root`` (or this process's
    own, where there is none) refuses what would exceed the account's cap, whoever fits: clones, pickled copies and
    searches of this process spend from one account by its name. Fitting again on equal rows with equal parameters gives
    the same release and costs nothing; another ``replicate`` is a fresh one.

    With ``test_fraction`` a part of the rows (of people, where the rows have groups) trains nothing. A noisy confusion
    matrix and noisy running sums of the scores are released of that part, in the same plan: no row is in both parts, so
    ε and δ of the fit stay what they are. ``measured_`` says how good the model is, ``predict_proba`` gives calibrated
    probabilities, and a threshold can be chosen, by ``aim`` or by ``thresholds_``. It costs the rows that do not train.
    By default all rows train, nothing is measured and there is no ``predict_proba``: scores of a private model are no
    probabilities, because clipping and noise change their scale. ``CalibratedClassifierCV`` would fit on the rows
    exactly, outside the guarantee. How good a model is for each value of a column is said by
    ``unitball.train(…, by="column")``.

    Parameters
    ----------
    epsilon : float, optional
        Of one fit. Public rows are fitted at 1 without it; ``fit`` on private rows raises :class:`BudgetError` with the
        price of that and charges nothing.
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
        Declares the columns of data frames (see docs/schema.md), the label's classes included.
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
    replicate : int
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
    test_fraction : float
        Of the rows, or people, that are held out, from 0 to below 1. Places and a public seed say which, never what
        rows contain. Another fraction divides the rows otherwise, and a fit with it is charged on top.
    aim : str, optional
        With ``test_fraction``, of two classes: what the threshold is chosen for, ``"balanced"``, ``"f1"``,
        ``"recall=0.8"`` or ``"cost=1:20"`` (a false alarm costs 1, a miss 20). It costs nothing: a fit with another aim
        is the same release. ``decision_function`` is then counted from the threshold. Any other threshold of
        the probabilities: ``sklearn.model_selection.FixedThresholdClassifier``, whose fit is the same release, too.

    Attributes
    ----------
    classes_ : array (K,)
    coef_ : array (1 or K, p)
        Of raw features within their bounds, if the model is linear and bounds are given; otherwise of encoded ones. For
        rows whose encoding has norm 1, to which the others are scaled.
    intercept_ : array (1 or K,)
    guarantee_ : FitGuarantee
        What is proved, and what is not covered: exact scores of folds and other steps of a pipeline are outside
        (:func:`unitball.check_pipeline` names those that learn from rows).
    charges_ : data frame
        A line a release.
    measured_ : dict of str to float
        With ``test_fraction``: ``accuracy``, ``balanced_accuracy``, ``auc``, ``recall_CLASS``, … of the held-out rows
        or people, noisy, each with the ends ``…_low`` and ``…_high`` of its 95 % margin; ``aim_…`` at the threshold
        that was chosen, whose margins hold for all thresholds at once and so include the choice. What cannot be
        measured is nan.
    unmeasured_ : dict of str to str
        Why each metric of ``measured_`` that is nan cannot be measured.
    calibration_ : tuple of Calibration
        With ``test_fraction``: one of two classes, or one a class.
    thresholds_ : data frame or None
        With ``test_fraction``, of two classes, a line a threshold: ``score``, ``probability``, and ``recall``,
        ``precision``, ``f1``, ``balanced_accuracy`` of the second class for rows above it, with margins that hold for
        all thresholds at once: choose one by looking, and its margin stays true.
    n_features_in_ : int

    Raises
    ------
    BudgetError
        From ``fit``, if the account does not admit it, or private rows come without ``epsilon``. It is no
        ``Exception``, so that a search ends with the reason instead of a missing score.
    dpalgos.parameters.ParameterError
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
        epsilon: float | None = None,
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
        replicate: int = 0,
        random_state: Any = None,
        rows_per_person: int = MOST_ROWS,
        disjoint_people: str = "",
        on_violation: str = "refuse",
        test_fraction: float = 0.0,
        aim: str | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            algorithm=algorithm,
            account=account,
            schema=schema,
            bounds=bounds,
            public=public,
            root=root,
            parameters=parameters,
            replicate=replicate,
            random_state=random_state,
            rows_per_person=rows_per_person,
            disjoint_people=disjoint_people,
            on_violation=on_violation,
            test_fraction=test_fraction,
        )
        self.classes = classes
        self.class_weight = class_weight
        self.aim = aim

    def _require_parameters(self) -> None:
        super()._require_parameters()
        if self.aim is not None and (self.test_fraction == 0 or self.delta == 0):
            raise ParameterError(
                f"aim is {_shown(self.aim)}; a threshold is chosen by noisy sums of the scores of held-out rows: give "
                "a test_fraction above 0, and a delta above 0"
            )

    @property
    def _algorithm(self) -> str:
        return self.algorithm or ("objective-perturbation" if self.delta == 0 else "unitball")

    def _parameters(self, records: int, width: int) -> dict[str, Any]:
        parameters = super()._parameters(records, width)
        if self.algorithm is not None or self.delta > 0 or parameters:
            return parameters
        return {"regularisation": 1.5 * math.sqrt(width) / (records * self._epsilon)}

    def _class_weight(self) -> dict[str, float] | str:
        """Return weights by the names under which classes are trained, which are their places."""
        if not isinstance(self.class_weight, Mapping):
            if self.class_weight not in (None, "balanced"):
                raise ParameterError(
                    f"class_weight is {_shown(self.class_weight)}; give 'balanced', weights by label, or None"
                )
            return self.class_weight or {}
        places = {label: str(place) for place, label in enumerate(self.classes_.tolist())}
        if unknown := [label for label in self.class_weight if label not in places]:
            raise ParameterError(
                f"class_weight names {unknown[0]!r}, which is no class; there are: {', '.join(map(repr, places))}"
            )
        weights: dict[str, Any] = {place: self.class_weight.get(label, 1.0) for label, place in places.items()}
        if not all(isinstance(weight, Real) and 0 < float(weight) < math.inf for weight in weights.values()):
            return weights  # which the configuration refuses, with the value
        largest = max(weights.values())
        return {place: weight / largest for place, weight in weights.items()}

    def _target(self, y: NDArray[Any]) -> Target:
        declared: Any = self.classes
        if declared is None and self.schema is not None:
            declared = self._columns.declared.label.classes
        if declared is None:
            check_classification_targets(y)
            if type_of_target(y) not in ("binary", "multiclass"):
                raise ParameterError(f"y is {type_of_target(y)}; give one class a row")
            declared = np.unique(y)
        if isinstance(declared, str | bytes | Mapping) or not np.iterable(declared):
            raise ParameterError(f"classes is {_shown(declared)}; give the labels there may be, as a list")
        self.classes_ = np.asarray(declared if hasattr(declared, "dtype") else list(declared))
        if self.classes_.ndim != 1 or not self.classes_.size:
            raise ParameterError(
                f"classes is {_shown(declared)}; give the labels there may be, as a list of two or more"
            )
        if len(self.classes_) < 2:
            raise ParameterError(
                f"there is one class, {self.classes_.tolist()[0]!r}; a classifier needs two at the least"
            )
        if self._cloned and self.classes_.tolist() != np.unique(self.classes_).tolist():
            _warn_of_order(tuple(self.classes_.tolist()))
        places = {label: index for index, label in enumerate(self.classes_.tolist())}
        texts = canonical(list(places)).to_pylist()
        if len(places) < len(self.classes_) or named_twice([text for text in texts if text is not None]):
            raise ParameterError("classes are declared twice; names must differ")
        known = y.tolist()
        # Classes are any objects; what is none of them may be one in another spelling.
        others = [label for label in dict.fromkeys(known) if label not in places]
        alike = dict(zip(others, codes_of(canonical(others), texts).tolist(), strict=True))
        if unknown := [label for label, place in alike.items() if place < 0]:
            raise ParameterError(
                f"label {unknown[0]!r} is none of the classes {', '.join(map(repr, places))}; declare it or leave the "
                "row out"
            )
        places |= alike
        return Target(
            np.array([places[label] for label in known], dtype=np.int64),
            classes=tuple(str(index) for index in range(len(self.classes_))),
        )

    def _score_names(self) -> tuple[str, ...]:
        known = self.classes_.tolist()
        return tuple(f"score {name}" for name in (known[1:] if len(known) == 2 else known))

    def decision_function(self, X: Any) -> Floats:
        """Return scores: (m,) for two classes, positive for the second; (m, K) otherwise."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _measuring(self) -> dict[str, Any]:
        # Sums of scores are released with Gaussian noise, which spends a delta.
        return {"roc": self.delta > 0, "aim": self.aim}

    def _class_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_.tolist()))

    def _calibrate(self, found: Evaluation, sums: Sequence[ScoreSums]) -> None:
        self.calibration_: tuple[Calibration, ...] = tuple(map(platt, sums))
        if found.calibration is not None:
            self.calibration_ = (Calibration(*found.calibration),)
        self._points = self._operating_points(sums[0]) if len(sums) == 1 else None

    @property
    def _threshold(self) -> float:
        return self.calibration_[0].threshold if len(self.calibration_) == 1 else 0.0

    @property
    def thresholds_(self) -> Any:
        """What is to be expected at each threshold that sums of scores tell apart, of two classes."""
        return None if self._points is None else pd.DataFrame(self._points)

    def _operating_points(self, sums: ScoreSums) -> dict[str, Floats]:
        values, bands = operating_points(sums)
        (calibration,) = self.calibration_
        scores = np.array([sums.edge(place) for place in range(len(values["recall"]))])
        found = {"score": scores - calibration.threshold, "probability": calibration.probability(scores)}
        for name, of in values.items():
            found |= {name: of, f"{name}_low": bands[name][0], f"{name}_high": bands[name][1]}
        return found

    @property
    def predict_proba(self) -> Callable[[Any], Floats]:
        """From rows to the probability of each class, (m, K), calibrated on the held-out rows or people.

        A logistic curve of each score, by the released sums; of more than two classes divided by their sum. Columns are
        in the order of ``classes_``. Of people they are probabilities of people: each weighs the same, whatever rows
        they have. ``predict`` goes by the scores, whose sign the confusion matrix counts, and by ``aim``, so that the
        most probable class need not be the one predicted.

        Raises
        ------
        AttributeError
            Where no sums of scores were released, with the way to have them: scikit-learn's tools take the decision
            function then.
        """
        # What was fitted says it; before that, what is asked for does.
        if getattr(self, "calibration_", self.test_fraction > 0 and self.delta > 0):
            return self._probabilities
        if self.test_fraction == 0 or self.delta > 0:
            raise AttributeError(
                "a private model's scores are no probabilities, and calibrating them takes a charged release of "
                "held-out rows: test_fraction=0.2 makes it; decision_function gives the scores"
            )
        raise AttributeError(
            "probabilities are calibrated by sums with Gaussian noise, which spends a delta, and delta is 0; "
            "decision_function gives the scores"
        )

    def _probabilities(self, X: Any) -> Floats:
        scores = self._raw_scores(X)
        columns = [one.probability(scores[:, place]) for place, one in enumerate(self.calibration_)]
        if len(columns) == 1:
            return np.stack([1.0 - columns[0], columns[0]], axis=1)
        probabilities = np.stack(columns, axis=1)
        return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True))

    # By the name of what it is handed, scikit-learn tells probabilities of all classes from other scores.
    _probabilities.__name__ = "predict_proba"

    def predict_set(self, X: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Return which classes are in the set of each row, (m, K), columns in the order of ``classes_``.

        By the released sums of scores of the held-out rows or people (``test_fraction``), at no further charge.

        Guarantee: with probability 0.95 over noise and held-out rows, for every class at once, a new row of this class,
        drawn as the held-out ones were, has it in its set with at least the probability ``coverage``; where rows have
        groups, coverage is averaged over people, each of whom counts as one. This holds for one coverage, chosen
        beforehand. A set may hold no class: the row is unlike the held-out rows of each.

        Parameters
        ----------
        X : array (m, p), or data frame
        coverage : float
            From 0.5 to below 1.

        Raises
        ------
        dpalgos.parameters.ParameterError
            If no sums of scores were released, or the noise or the number of held-out rows does not admit the coverage:
            which one can be reached, and which ε the requested one needs.
        """
        found = self._require_held_out()
        assert isinstance(found, HeldOutScores)
        return found.sets(self._raw_scores(X), coverage)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return a class for each row, (m,)."""
        scores = self.decision_function(X)
        return np.asarray(self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Noise that hides a row hides what a few dozen rows could teach.
        tags.classifier_tags.poor_score = True
        return tags


class PrivateRegressor(_Scored, RegressorMixin, _PrivateEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A linear regression that is differentially private towards the rows it is fitted on.

    Parameters are those of :class:`PrivateClassifier`, but for the labels: instead of ``classes`` the range of the
    targets is declared.

    Parameters
    ----------
    epsilon, delta
        See :class:`PrivateClassifier`.
    label_range : (low, high), optional
        Targets outside are clipped. Needed for private rows without schema.
    bounds, schema, on_violation, algorithm, parameters, public, random_state, replicate, account, root
    rows_per_person, disjoint_people, test_fraction
        See :class:`PrivateClassifier`; the algorithm is ``"unitball"`` by default. Of held-out rows noisy sums of the
        errors are released: ``measured_`` has ``mae``, ``rmse`` and ``r2``.

    Attributes
    ----------
    coef_ : array (p,)
    intercept_ : float
    guarantee_, charges_, measured_, unmeasured_, n_features_in_
        See :class:`PrivateClassifier`.

    Raises
    ------
    BudgetError, dpalgos.parameters.ParameterError
        See :class:`PrivateClassifier`.
    """

    _declares, _numeric = "label_range", True
    _example = "bounds=(low, high) and label_range=(low, high)"

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float = 1e-6,
        *,
        label_range: Sequence[float] | None = None,
        bounds: Sequence[Any] | None = None,
        schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        on_violation: str = "refuse",
        algorithm: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        public: bool = False,
        random_state: Any = None,
        replicate: int = 0,
        account: str | None = None,
        root: str | os.PathLike[str] | None = None,
        rows_per_person: int = MOST_ROWS,
        disjoint_people: str = "",
        test_fraction: float = 0.0,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            algorithm=algorithm,
            account=account,
            schema=schema,
            bounds=bounds,
            public=public,
            root=root,
            parameters=parameters,
            replicate=replicate,
            random_state=random_state,
            rows_per_person=rows_per_person,
            disjoint_people=disjoint_people,
            on_violation=on_violation,
            test_fraction=test_fraction,
        )
        self.label_range = label_range

    @property
    def _algorithm(self) -> str:
        return self.algorithm or "unitball"

    def _target(self, y: NDArray[Any]) -> Target:
        declared = self.label_range
        if declared is None and self.schema is not None:
            declared = self._columns.declared.label.range
        targets = _finite(y)
        low, high = (targets.min(), targets.max()) if declared is None else _ends(declared)
        outside = np.flatnonzero((targets < low) | (targets > high))
        if self.label_range is None and self.on_violation == OnViolation.REFUSE and len(outside):
            raise InputError(
                f"row {outside[0] + 1}, target {targets[outside[0]]:g} is outside the schema's range [{low:g}, "
                f'{high:g}]; correct it, or say on_violation="clip"'
            )
        if declared is None and low == high:
            high = low + 1.0
        self._label_range = (float(low), float(high))
        return Target(np.clip(targets, low, high), label_range=(float(low), float(high)))

    def _set_coefficients(self, weights: Floats, intercept: Floats) -> None:
        super()._set_coefficients(weights, intercept)
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]

    def predict(self, X: Any) -> Floats:
        """Return a number within the declared range for each row, (m,)."""
        return np.clip(self._scores(X)[:, 0], *self._label_range)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Floats:
        """Return the lower and the upper end of an interval for each row, (m, 2), within the declared range.

        By the released errors of the held-out rows or people (``test_fraction``), at no further charge.

        Guarantee: with probability 0.95 over noise and held-out rows, a new row, drawn as the held-out ones were, has
        its target, clipped to the declared range, in its interval with at least the probability ``coverage``; where
        rows have groups, coverage is averaged over people, each of whom counts as one. This holds for one coverage,
        chosen beforehand.

        Parameters
        ----------
        X : array (m, p), or data frame
        coverage : float
            From 0.5 to below 1.

        Raises
        ------
        dpalgos.parameters.ParameterError
            If no errors were released, or the noise or the number of held-out rows does not admit the coverage: which
            one can be reached, and which ε the requested one needs.

        Examples
        --------
        >>> from sklearn.datasets import make_regression
        >>> from unitball import PrivateRegressor
        >>> X, y = make_regression(3000, 5, noise=10.0, random_state=0)
        >>> model = PrivateRegressor(epsilon=4.0, test_fraction=0.3, public=True, random_state=0).fit(X, y)
        >>> model.predict_interval(X[:3], coverage=0.9).shape
        (3, 2)
        """
        found = self._require_held_out()
        assert isinstance(found, HeldOutErrors)
        return found.intervals(self.predict(X), coverage)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def _require_number(name: str, value: Any, bound: str, within: Callable[[float], bool]) -> None:
    """Refuse what is no number within its bound; numbers of NumPy, in single precision too, are numbers."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real) or not within(float(value)):
        raise ParameterError(f"{name} is {_shown(value)}; give a number {bound}")


def _require_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral) or not least <= int(value) <= _MOST_WHOLE:
        raise ParameterError(f"{name} is {_shown(value)}; give a whole number from {least} on")


def _said_of_rows(error: ValueError) -> str:
    """Return what scikit-learn says of rows, with our way out in place of its own.

    An imputer, which it names for missing cells, would learn from the private rows.
    """
    message = str(error)
    if "could not convert string" in message:
        return f"{message}; columns of texts need their values declared: give schema=FILE"
    if "contains NaN" in message:
        return (
            f"{message.splitlines()[0].rstrip('.')}: cells are missing. Declare what a missing cell counts as: "
            "schema=FILE with missing: {rows: indicator}. An imputer would learn from the rows, outside the guarantee"
        )
    return message


def _finite(y: NDArray[Any]) -> Floats:
    """Return targets as numbers; ParameterError for the first that is none."""
    try:
        targets = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        texts = [cell for cell in np.asarray(y, dtype=object).tolist() if not isinstance(cell, Real)]
        raise ParameterError(f"y holds {_shown(texts[0] if texts else y)}; give numbers") from None
    if len(wrong := np.flatnonzero(~np.isfinite(targets))):
        raise ParameterError(
            f"row {wrong[0] + 1}, target {targets[wrong[0]]} is no finite number; correct it or leave the row out"
        )
    return targets


def _ends(declared: Any) -> tuple[float, float]:
    """Return low and high of a declared range; ParameterError where it is none."""
    try:
        low, high = map(float, declared)
    except (TypeError, ValueError):
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise ParameterError(f"label_range is {_shown(declared)}; give (low, high), two finite numbers, low below high")
    return low, high
