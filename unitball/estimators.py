"""Scikit-learn estimators over the same plans, door and ledger as the flows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from dpalgos.conformal import HeldOutErrors, HeldOutScores
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from dpalgos.score_curves import Calibration, ScoreSums, operating_points, platt
from storage.cells import canonical_texts
from storage.columns.coding import codes_of
from storage.columns.declarations import named_twice
from storage.encoder import Clipped
from storage.errors import InputError
from storage.hidden_cells import shown_cell
from storage.refs import OnViolation
from tasks.release.metrics import Evaluation
from tasks.tracking.explanations import score_names
from unitball.fits import Target
from unitball.parameter_checks import ends, finite, shown
from unitball.pipelines import learns_nothing
from unitball.private_estimator import PrivateEstimator, Scored
from unitball.screen import warn_of_clipped, warn_of_order
from unitball.wording import spoken_in_python


def _require_labels(y: NDArray[Any]) -> None:
    for row, label in enumerate(y.tolist() if y.dtype == object else ()):
        try:
            hash(label)
        except TypeError:
            raise ParameterError(
                f"row {row + 1}, the label is of type {type(label).__name__}; give a text, a number or a boolean"
            ) from None


@learns_nothing
@dataclass(eq=False, repr=False)
class PrivateClassifier(Scored, ClassifierMixin, PrivateEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A differentially private classifier with scikit-learn's interface.

    ``fit`` on private rows is a run like any other: it is planned, charged to the account, released and stored, and the
    ledger of ``root`` refuses a charge that would exceed the account's cap. Clones, pickled copies, searches and other
    processes charge the same account by its name. A fit of equal rows in the same order with equal parameters is the
    same release and is free, also after a restart. Every other fit is charged in addition, including fits of folds and
    subsets; another ``repetition`` draws fresh noise and is charged. The encoded rows are kept in the root as the data
    set ``ACCOUNT.fits``: a release that was charged but not stored is computed again from them, and the rows are
    recognised under other accounts.

    Without ``account`` no fit is recorded: a second fit of the same rows is not counted, and the printed guarantee says
    so. Rows that belong to an account of the root are then refused.

    With ``test_fraction`` some rows (people, if the rows have groups) are held out of training. The same plan releases
    a noisy confusion matrix and noisy running sums of scores of the held-out part. No row is in both parts, so ε and δ
    of the fit do not change. ``measured_`` has the metrics, ``predict_proba`` gives calibrated probabilities, and a
    threshold can be chosen by ``aim`` or from ``thresholds_``. The price is fewer training rows. By default all rows
    train, nothing is measured, and there is no ``predict_proba``: scores of a private model are not probabilities,
    because clipping and noise change their scale. ``CalibratedClassifierCV`` would fit on the rows exactly, outside the
    guarantee. Metrics by the values of a column: ``unitball.train(…, by="column")``.

    Parameters
    ----------
    epsilon : float, optional
        ε of one fit. Default: 1 for public rows. For private rows ``fit`` without it raises
        :class:`unitball.BudgetError` with the price at ε = 1, unless that fit is already stored.
    delta : float
        δ of one fit, below one over the number of rows; 0 for algorithms of pure ε.
    algorithm : str, optional
        A registered system or trainer. Default: ``"unitball"``, the recommended system; if delta is 0,
        ``"objective-perturbation"`` with λ = 1.5 √p / (n ε) for p encoded features: its noise, of norm about 2 p / ε,
        then moves the minimiser by at most about 4 √p / 3 (``dpalgos.trainers``). It is proved in real arithmetic only,
        which an account must allow (``open_account(allow_idealised=True)``).
    account : str, optional
        Account that pays for private rows: an existing one (:func:`unitball.open_account`). Without ``epsilon``, a
        stored fit is returned at no charge.
    schema : mapping or path, optional
        Declares the columns of data frames and the label's classes (page The schema of a table).
    bounds : (low, high), optional
        Bounds of arrays: two numbers, or one of each per feature. Values outside are clipped. Required for private rows
        without a schema. Default for scores of :class:`unitball.PrivatePCA`: three standard deviations of each
        component, as released.
    classes : sequence, optional
        Possible labels, in order. Required for private rows without a schema.
    positive : label, optional
        The positive class of two: scores, thresholds, ``aim``, precision, recall and F1 refer to it, and it comes last
        in ``classes_``. Default: the schema's ``positive``, or the last class. It changes no release and is free.
    public : bool
        Whether the rows are public: bounds and classes may then be learnt from them, nothing is stored or charged, and
        the same noise is added.
    root : path, optional
        Folder whose ledger is charged. Default: ``UNITBALL_ROOT`` or the user's own. ``":memory:"`` keeps the ledger in
        this process and forgets it at the end, for tests; the printed guarantee says so.
    parameters : mapping, optional
        Parameters of the algorithm's parts, such as ``{"trainer.regularisation": 0.01}``.
    class_weight : dict or "balanced", optional
        Weights of rows by label: public, above 0. Default: 1. All are divided by the largest, because a weight above 1
        would raise the sensitivity. ``"balanced"`` computes weights from noisy class counts, which take 5 % of a
        gradient trainer's budget (in μ²).
    repetition : int
        Number of the release: another number is another release with fresh noise and its own charge.
    random_state : int, RandomState or None
        Public seed of the noise; public rows only.
    disjoint_people : str
        Reason why these rows belong to other people than similar rows of another account; it is recorded.
    on_violation : {"refuse", "clip"}
        Treatment of cells outside the schema, in ``fit`` and ``predict``, as ``unitball ingest --on-violation``.
        ``"refuse"`` raises an error that names the first cell. ``"clip"`` moves numbers to the nearest end of their
        range and encodes an unknown category as no category.
    rows_per_person : int
        With ``groups``: maximum number of rows per person; public.
    test_fraction : float
        Fraction of the rows, or people, that is held out, from 0 to below 1. Positions and a public seed decide which
        ones, independently of what rows contain. A fit with another fraction is another release and is charged.
    aim : str, optional
        With ``test_fraction`` and two classes: the goal of the threshold, ``"balanced"``, ``"f1"``, ``"recall=0.8"`` or
        ``"cost=1:20"`` (a false positive costs 1, a false negative 20). It is free: a fit with another aim is the same
        release. ``decision_function`` is then relative to the threshold. Any other threshold of the probabilities:
        ``sklearn.model_selection.FixedThresholdClassifier``, whose fit is the same release, too.

    Attributes
    ----------
    classes_ : array (K,)
        Classes in their declared order, except that ``positive`` comes last.
    coef_ : array (1 or K, p)
        Weights of raw features within their bounds, if the model is linear and bounds are given; otherwise of encoded
        features. They apply to rows whose encoding has norm 1, to which all rows are scaled.
    intercept_ : array (1 or K,)
    guarantee_ : FitGuarantee
        What is proved, and what is not covered: exact scores of folds, and other steps of a pipeline
        (:func:`unitball.check_pipeline` lists the steps that learn from rows).
    charges_ : data frame
        One line per release.
    measured_ : dict of str to float
        With ``test_fraction``: ``accuracy``, ``balanced_accuracy``, ``auc``, ``recall_CLASS``, … of the held-out rows
        or people, noisy, each with the ends ``…_low`` and ``…_high`` of its 95 % margin. ``aim_…`` holds at the chosen
        threshold; these margins hold for all thresholds at once and so include the choice. A metric that cannot be
        measured is nan.
    unmeasured_ : dict of str to str
        Reason for each metric of ``measured_`` that is nan.
    calibration_ : tuple of Calibration
        With ``test_fraction``: one of two classes, or one per class.
    thresholds_ : data frame or None
        With ``test_fraction`` and two classes, one line per threshold: ``score``, ``probability``, and ``recall``,
        ``precision``, ``f1``, ``balanced_accuracy`` of the second class for rows above it, with margins that hold for
        all thresholds at once: choose one by looking, and its margin stays true.
    n_features_in_ : int

    Raises
    ------
    BudgetError
        From ``fit``, if the account's cap does not allow it, or private rows come without ``epsilon``. It does not
        derive from ``Exception``, so that a search ends with the reason instead of a missing score.
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

    _declares, _label_declaration, _numeric = ("bounds", "classes"), "classes", False
    _example = "bounds=(low, high) and classes=[…]"

    _: KW_ONLY
    classes: Sequence[Any] | None = None
    positive: Any = None
    class_weight: Mapping[Any, float] | str | None = None
    aim: str | None = None

    def _require_parameters(self) -> None:
        super()._require_parameters()
        if self.aim is not None and (self.test_fraction == 0 or self.delta == 0):
            raise ParameterError(
                f"aim is {shown(self.aim)}; a threshold is chosen by noisy sums of the scores of held-out rows: give "
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
                    f"class_weight is {shown(self.class_weight)}; give 'balanced', weights by label, or None"
                )
            return self.class_weight or {}
        places = {label: str(place) for place, label in enumerate(self.classes_.tolist())}
        if unknown := [label for label in self.class_weight if label not in places]:
            raise ParameterError(
                f"class_weight names {unknown[0]!r}, which is not a class; the classes are "
                f"{', '.join(map(repr, places))}"
            )
        weights: dict[str, Any] = {place: self.class_weight.get(label, 1.0) for label, place in places.items()}
        if not all(isinstance(weight, Real) and 0 < float(weight) < math.inf for weight in weights.values()):
            return weights  # which the configuration refuses, with the value
        largest = max(weights.values())
        return {place: weight / largest for place, weight in weights.items()}

    def _positive(self) -> str | None:
        known, positive = self.classes_.tolist(), self.positive
        if positive is None:
            declared = "" if self.schema is None else self._columns.declared.label.positive
            # Where other classes are given than the schema's, its positive one is none of them.
            positive = declared if declared and declared in known else None
        elif len(known) != 2 or positive not in known:
            raise ParameterError(
                f"positive is {shown(positive)}; it must be one of two classes, and the classes are "
                f"{', '.join(map(repr, known))}"
            )
        return None if positive is None else str(known.index(positive))

    def _codes(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """Return which class each label is, also in another spelling; -1 where it is none."""
        known = labels.tolist()
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        # Classes are any objects; what is none of them may be one in another spelling.
        others = [label for label in dict.fromkeys(known) if label not in places]
        spelled = canonical_texts(list(places)).to_pylist()
        places |= zip(others, codes_of(canonical_texts(others), spelled).tolist(), strict=True)
        return np.array([places[label] for label in known], dtype=np.int64)

    def _target(self, y: NDArray[Any]) -> Target:
        _require_labels(y)
        declared: Any = self.classes
        if declared is None and self.schema is not None:
            declared = self._columns.declared.label.classes
        if declared is None:
            check_classification_targets(y)
            if type_of_target(y) not in ("binary", "multiclass"):
                raise ParameterError(f"y is {type_of_target(y)}; give one class per row")
            declared = np.unique(y)
        if isinstance(declared, str | bytes | Mapping) or not np.iterable(declared):
            raise ParameterError(f"classes is {shown(declared)}; give the possible labels, as a list")
        self.classes_ = np.asarray(declared if hasattr(declared, "dtype") else list(declared))
        if self.classes_.ndim != 1 or not self.classes_.size:
            raise ParameterError(f"classes is {shown(declared)}; give the possible labels, as a list of at least two")
        if len(self.classes_) < 2:
            raise ParameterError(f"y has one class, {self.classes_.tolist()[0]!r}; a classifier needs at least two")
        order = self.classes_.tolist()[:: -1 if self._positive() == "0" else 1]
        if self._cloned and order != np.unique(self.classes_).tolist():
            warn_of_order(tuple(order))
        places = {label: index for index, label in enumerate(self.classes_.tolist())}
        texts = canonical_texts(list(places)).to_pylist()
        if len(places) < len(self.classes_) or named_twice([text for text in texts if text is not None]):
            raise ParameterError("classes are declared twice; names must differ")
        codes = self._codes(y)
        if codes.min(initial=0) < 0:
            row = int(np.flatnonzero(codes < 0)[0])
            raise ParameterError(
                f"row {row + 1}, label {shown_cell(y.tolist()[row])} is not one of the classes "
                f"{', '.join(map(repr, places))}; declare it or omit the row"
            )
        return Target(codes, classes=tuple(str(index) for index in range(len(self.classes_))))

    def _score_names(self) -> tuple[str, ...]:
        known = self.classes_.tolist()
        return tuple(f"score {name}" for name in (known[1:] if len(known) == 2 else known))

    def _explained_scores(self, scores: Floats) -> Floats:
        if len(self.classes_) == 2 and self.calibration_:
            return self.calibration_[0].slope * scores + self.calibration_[0].offset
        return self._counted(scores)

    def _explained_names(self) -> tuple[str, ...]:
        return score_names(self._class_names(), calibrated=bool(self.calibration_))

    def decision_function(self, X: Any) -> Floats:
        """Return scores: (m,) for two classes, positive for the second; (m, K) otherwise."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _measuring(self) -> dict[str, Any]:
        # Sums of scores are released with Gaussian noise, which spends a delta.
        return {"roc": self.delta > 0, "aim": self.aim}

    def _turn_classes(self) -> None:
        self.classes_ = self.classes_[::-1]

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
        """Expected rates at each threshold that the sums of scores distinguish, for two classes."""
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
        """Return the probability of each class per row, (m, K), calibrated on the held-out rows or people.

        Each score is mapped by a logistic curve that is fitted to the released sums; with more than two classes the
        results are divided by their sum. Columns are in the order of ``classes_``. If people are protected, each person
        has the same weight, however many rows they have. ``predict`` uses the scores, whose sign the confusion matrix
        counts, and ``aim``, so the most probable class need not be the predicted one.

        Raises
        ------
        AttributeError
            If no sums of scores were released; the message says how to get them. scikit-learn's tools then use the
            decision function.
        """
        # What was fitted says it; before that, what is asked for does.
        if getattr(self, "calibration_", self.test_fraction > 0 and self.delta > 0):
            return self._probabilities
        if self.test_fraction == 0 or self.delta > 0:
            raise AttributeError(
                "scores of a private model are not probabilities; calibration needs a charged release of held-out "
                "rows: give test_fraction=0.2, or use the scores of decision_function"
            )
        raise AttributeError(
            "delta is 0, and calibrated probabilities need Gaussian noise; give a delta above 0, or use the scores of "
            "decision_function"
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

    @spoken_in_python()
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
        predicted = self._predicted(X)
        return np.asarray(self.classes_[predicted])

    def _predicted(self, X: Any) -> NDArray[np.int64]:
        scores = self.decision_function(X)
        return np.asarray(scores > 0 if scores.ndim == 1 else scores.argmax(axis=1), dtype=np.int64)

    def _exact_score(self, X: Any, labels: NDArray[Any], sample_weight: Any) -> float:
        predicted = self._predicted(X)
        _require_labels(labels)
        codes = self._codes(labels)
        if len(missing := np.flatnonzero((codes < 0) & pd.isna(labels))):
            raise ParameterError(f"row {missing[0] + 1} of y has no label; omit the row")
        return float(accuracy_score(codes, predicted, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Noise that hides a row hides what a few dozen rows could teach.
        tags.classifier_tags.poor_score = True
        return tags


@learns_nothing
@dataclass(eq=False, repr=False)
class PrivateRegressor(Scored, RegressorMixin, PrivateEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A linear regression that is differentially private towards the rows it is fitted on.

    Parameters are those of :class:`PrivateClassifier`, but for the labels: instead of ``classes`` the range of the
    targets is declared.

    Parameters
    ----------
    epsilon, delta
        See :class:`PrivateClassifier`.
    label_range : (low, high), optional
        Targets outside are clipped. Needed for private rows without schema.
    bounds, schema, on_violation, algorithm, parameters, public, random_state, repetition, account, root
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

    _declares, _label_declaration, _numeric = ("bounds", "label_range"), "label_range", True
    _example = "bounds=(low, high) and label_range=(low, high)"

    _: KW_ONLY
    label_range: Sequence[float] | None = None

    @property
    def _algorithm(self) -> str:
        return self.algorithm or "unitball"

    def _target(self, y: NDArray[Any]) -> Target:
        declared = self.label_range
        if declared is None and self.schema is not None:
            declared = self._columns.declared.label.range
        targets = finite(y)
        low, high = (targets.min(), targets.max()) if declared is None else ends(declared)
        outside = np.flatnonzero((targets < low) | (targets > high))
        if self.label_range is None and self.on_violation == OnViolation.REFUSE and len(outside):
            raise InputError(
                f"row {outside[0] + 1}, target {shown_cell(targets[outside[0]])} is outside the schema's range "
                f'[{low:g}, {high:g}]; correct it, or give on_violation="clip"'
            )
        if declared is None and low == high:
            high = low + 1.0
        if len(outside):
            warn_of_clipped({"y": Clipped(len(outside), int(outside[0]), "")}, "the declared range")
        self._label_range = (float(low), float(high))
        return Target(np.clip(targets, low, high), label_range=(float(low), float(high)))

    def _set_coefficients(self, weights: Floats, intercept: Floats) -> None:
        super()._set_coefficients(weights, intercept)
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]

    def predict(self, X: Any) -> Floats:
        """Return a number within the declared range for each row, (m,)."""
        return np.clip(self._scores(X)[:, 0], *self._label_range)

    def _explained_scores(self, scores: Floats) -> Floats:
        return np.clip(scores[:, :1], *self._label_range)

    def _explained_names(self) -> tuple[str, ...]:
        return score_names((), calibrated=False)

    @spoken_in_python()
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
