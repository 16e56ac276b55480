"""Base of the estimators: parameters, a fit by the same plans, door and ledger as the flows, and scores."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.utils.validation import check_is_fitted

from dpalgos.columns import Column
from dpalgos.conformal import HeldOutErrors, HeldOutScores
from dpalgos.features.unit_rows import UnitRows
from dpalgos.models import AffineMap, LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.registry import names
from dpalgos.rows import Floats
from dpalgos.score_curves import ScoreSums
from dpalgos.shapley import PERMUTATIONS, Player
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.frames import find_frame, frame_of
from storage.readers.in_memory import document_of
from storage.refs import OnViolation
from storage.schema import parse_schema
from tasks.datasets.scales import Scale, scales_under
from tasks.planning.configuration import TrainingConfig, faults
from tasks.planning.resolution import resolve_normalisation
from tasks.release.held_out_counts import held_out_counts
from tasks.release.metrics import Evaluation, measure_by_statistics, sums_of_scores
from tasks.tracking.effects import described_effects
from tasks.tracking.explanations import Basis, explaining, players_of
from tasks.tracking.results import proved_of
from unitball.fits import (
    BudgetError,
    Encoded,
    Fitted,
    Target,
    fit_in_memory,
    fit_through_the_door,
    row_map,
)
from unitball.guarantees import FitGuarantee
from unitball.lineage import ReleasedBasis, bases_under, require_one_account, rests_on, score_bounds
from unitball.parameter_checks import require_number
from unitball.pipelines import fitted_around
from unitball.private_step import PrivateStep
from unitball.screen import warn_of_clipped, warn_of_scores, warn_of_steps
from unitball.wording import in_python, spoken_in_python


@dataclass(eq=False, repr=False)
class PrivateEstimator(PrivateStep):
    """Base of classifier and regressor; each defines its labels.

    The fields are the parameters of both.
    """

    _: KW_ONLY
    algorithm: str | None = None
    parameters: Mapping[str, Any] | None = None
    test_fraction: float = 0.0

    # Whether labels are numbers, and the parameter that declares them.
    _numeric: ClassVar[bool]
    _label_declaration: ClassVar[str]

    def _require_parameters(self) -> None:
        super()._require_parameters()
        require_number("test_fraction", self.test_fraction, "from 0 to below 1", lambda value: 0 <= value < 1)
        self._require_kind("algorithm", str, "a name of `unitball algorithms`")
        self._require_kind("parameters", Mapping, "a mapping, as {'trainer.regularisation': 0.01}")
        for name in self.parameters or ():
            if not isinstance(name, str):
                raise ParameterError(f"parameters names {name!r}; give names as texts, as in 'trainer.regularisation'")

    @abstractmethod
    def _target(self, y: NDArray[Any]) -> Target:
        """Return the labels as algorithms take them, and what is public of them; check the declarations."""

    @spoken_in_python()
    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Train, charged to the account.

        Parameters
        ----------
        X : array (m, p), or a data frame of the schema's columns
        y : array (m,)
        groups : array (m,), optional
            Person of each row, text or whole numbers. A person with all rows is then protected, in an account of
            people. Keyword only, since a third argument is usually the rows' weights. In a pipeline:
            ``set_fit_request(groups=True)``. A schema's column of type ``person`` has the same effect.
        """
        self._require_parameters()
        require_one_account(self, PrivateStep)
        bases = bases_under(self, X)
        self._score_bounds = None if self.schema is not None else score_bounds(X)
        if not self.public:
            self._require_declared()
            if self._cloned:
                self._warn_of_fits()
                warn_of_scores()
            warn_of_steps(fitted_around(self))
        with self._without_cells():
            rows, y = self._rows(X, y)
            grouped = self._grouped(rows, groups, len(y))
            self._encoding = self._encoder(rows)
            self._places = self._columns.declared.places if self._encoding is None else self._encoding.places
            target = self._target(y)
            features = self._encoded(rows)
            if self.bounds is None and self._score_bounds is not None and self._encoding is not None:
                # Three deviations hold eight of nine scores; more are beyond them where scores were changed.
                outside = self._encoding.clipped(rows, getattr(self, "feature_names_in_", None))
                many = {name: one for name, one in outside.items() if 9 * one.cells > len(rows)}
                warn_of_clipped(many, "three standard deviations of the components")
        if self.test_fraction > 0 and (len(y) if grouped is None else grouped.records) == 1:
            raise ParameterError(
                "X has one sample, and test_fraction holds some out; give more samples, or test_fraction=0"
            )
        config = self._configuration(len(y) if grouped is None else grouped.records, features.shape[1])
        encoded = Encoded(
            features=features,
            target=target,
            grouped=grouped,
            columns=tuple(self._places),
            normalisation=resolve_normalisation(config, None, table=bool(self._places)),
            **self._recognised_by(X, features),
        )
        if self.public:
            fitted = fit_in_memory(config, encoded, self.random_state)
        elif self.random_state is not None:
            raise BudgetError("random_state is a public seed of the noise and the rows are private; omit it")
        else:
            fitted = fit_through_the_door(
                config,
                encoded,
                self.account,
                root=self.root,
                disjoint_people=self.disjoint_people,
                agreed=self.epsilon is not None,
            )
        self._people = grouped is not None
        self._take(fitted, bases)
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
            "replicate": int(self.repetition),
            "parameters": self._parameters(records, width),
            "class_weight": self._class_weight(),
            "positive": self._positive(),
            **(self._measuring() if measured else {}),
        }
        try:
            return TrainingConfig.model_validate(fields)
        except ValidationError as error:
            raise ParameterError(in_python("; ".join(faults(error, {name: name for name in fields})))) from None

    def _measuring(self) -> dict[str, Any]:
        """Return what is released of held-out rows in addition to the metrics of the model."""
        return {}

    def _positive(self) -> str | None:
        """Return the positive class by the name under which it is trained; None for the last one."""
        return None

    def _turn_classes(self) -> None:
        """Name the classes in the other order; a numeric label has none."""

    def _take(self, fitted: Fitted, bases: Sequence[ReleasedBasis]) -> None:
        """Keep what a fit has released, and what follows from it."""
        losses = [loss for one in bases for loss in one.losses]
        self.guarantee_ = FitGuarantee(
            proved_of(fitted.plan, losses), fitted.remembered, rests_on(bases, measured=self.test_fraction > 0)
        )
        self._charged = fitted.charges
        self._maps, self._model, self._counts = fitted.maps, fitted.model, fitted.counts
        if fitted.plan.identity.turned:
            # As the logged model of a run has it: scores, thresholds and metrics are of the last class.
            self._model = fitted.model.turned()
            self._turn_classes()
        self._normalisation = fitted.normalisation
        found = Evaluation()
        if fitted.statistics:
            found = measure_by_statistics(fitted.plan, {"all": fitted.path}, fitted.statistics, self._class_names())
        # An open end of a margin is infinite; what cannot be measured is nan.
        self.measured_, self.unmeasured_ = dict(found.metrics), dict(found.metrics.reasons)
        self._held_out = None
        if fitted.statistics and not bases:
            # A basis of all rows has read those that are held out, so that no claim about new rows follows from these.
            self._held_out = held_out_counts(fitted.plan, fitted.path, fitted.statistics)
        self._calibrate(found, sums_of_scores(fitted.plan, fitted.path, fitted.statistics))
        # Coefficients are those of rows of norm 1, whichever step divides by the norm.
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
        if self._held_out is None and self.guarantee_.rests_on:
            raise ParameterError(
                "the rows are scores of principal components, whose basis has read the held-out rows too; intervals "
                "and sets need rows that no earlier step has read: fit on the columns themselves"
            )
        if self._held_out is None:
            given = f"test_fraction is {self.test_fraction:g} and delta is {self.delta:g}"
            raise ParameterError(
                f"{given}; intervals and sets need a release of held-out rows with Gaussian noise: give a "
                "test_fraction above 0, such as 0.2, and a delta above 0"
            )
        return self._held_out

    @property
    def _threshold(self) -> float:
        """Of the model's scores; what it says are those above it."""
        return 0.0

    def _class_names(self) -> tuple[str, ...]:
        return ()

    def _parameters(self, records: int, width: int) -> dict[str, Any]:
        """Return the parameters of the algorithm's parts."""
        return dict(self.parameters or {})

    def _class_weight(self) -> dict[str, float] | str:
        return {}

    def _rows(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        """Return rows as numbers, or as a frame where a schema is declared, and their labels."""
        if self.schema is None:
            taken: tuple[Any, NDArray[Any]] = self._validated(X, y, y_numeric=self._numeric)
            return taken
        rows = frame_of(X)
        document, called = document_of(self.schema, rows)
        parse_schema(document, called)
        self._columns = TableEncoder(document, on_violation=str(self.on_violation))
        self.feature_names_in_, self.n_features_in_ = self._columns.feature_names_in_, self._columns.n_features_in_
        if y is None:
            raise ParameterError("y is None; give one label per row")
        shape = np.shape(y)
        if not shape or (len(shape) > 1 and shape[1:] != (1,)):
            raise ParameterError(f"y has shape {shape}; give one label per row, (m,)")
        if shape[0] != rows.rows:
            raise ParameterError(f"y has {shape[0]} labels and X has {rows.rows} rows; give one label per row")
        if not rows.rows:
            raise ParameterError("X has 0 rows; at least one is needed to fit")
        return rows, self._labels(y)

    def _labels(self, y: Any) -> NDArray[Any]:
        """Return labels as the schema names them, where it declares them."""
        if self.schema is None or getattr(self, self._label_declaration) is not None:
            return np.asarray(y).ravel()
        return self._columns.labels(np.ravel(y) if len(np.shape(y)) > 1 else y)

    def _set_coefficients(self, weights: Floats, intercept: Floats) -> None:
        if self._encoding is not None:
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

    @spoken_in_python()
    def _raw_scores(self, X: Any) -> Floats:
        check_is_fitted(self)
        with self._without_cells():
            # A delivery may be empty, and so is what is said of it.
            rows = X if self._encoding is None else self._validated(X, reset=False, ensure_min_samples=0)
            return self._raw_scores_of(self._encoded(rows))

    def _raw_scores_of(self, encoded: Floats) -> Floats:
        seen = row_map(self._normalisation)(encoded)
        for one in self._maps:
            seen = one.apply(seen)
        return np.asarray(self._model.scores(seen))

    @spoken_in_python()
    def effects(self) -> pd.DataFrame:
        """Return the effect of each column on the score, from weights and released counts.

        No row is read, so this is free. The data frame is that of :meth:`unitball.TrainedModel.effects`.

        Raises
        ------
        InputError
            If no column has a declared range or values.
        """
        check_is_fitted(self)
        scales, missing = self._declared_columns("effects need")
        columns = [Column(**place.model_dump()) for place in self._places]
        path = [*self._maps, self._model]
        names = self._score_names()

        def score(encoded: Floats) -> Floats:
            return self._counted(self._raw_scores_of(encoded))

        return described_effects(
            score, names, columns, scales, missing, self._counts, path, people=self._people
        ).to_frame()

    def _score_names(self) -> tuple[str, ...]:
        return ("prediction",)

    def _declared_columns(self, what: str) -> tuple[Sequence[Scale], Floats]:
        """Return the scale of each declared column, and the features of a row whose cells are all missing.

        Raises
        ------
        InputError
            If none has a range or values; ``what`` says what needs them.
        """
        if not self._places:
            raise InputError(f"{what} declared columns, each with a range or its values; declare bounds or a schema")
        if self._encoding is not None:
            return self._encoding.scales(getattr(self, "feature_names_in_", None)), self._encoding.middle()
        declared = self._columns.declared
        return scales_under(declared, clips=OnViolation(self.on_violation).clips), declared.missing_row()

    @spoken_in_python()
    def explain(self, X: Any, *, permutations: int = PERMUTATIONS, seed: int = 0) -> pd.DataFrame:
        """Return why rows have their scores: what each column adds, a Shapley value with its standard error.

        No training row is read: reference rows are drawn from the counts of columns that the fit has released, so this
        is free. The data frame is that of :func:`unitball.explain`.

        Parameters
        ----------
        X : array (m, p), or data frame
        permutations, seed : int
            As of :func:`unitball.explain`.

        Raises
        ------
        InputError
            If no column has a declared range or values, or the fit has released no counts of columns.
        dpalgos.parameters.ParameterError
            For a number of orders, or a seed, beyond its bounds.
        """
        check_is_fitted(self)
        scales, missing = self._declared_columns("explanations need")
        if self._counts is None:
            raise InputError(
                f"this fit released no counts of its columns, which explanations need: {self._algorithm} releases "
                "none for this number of rows at this epsilon. Fit algorithm='unitball' with a larger epsilon, or "
                "train on a described table: unitball.describe(…), unitball.train(…)"
            )
        if self._encoding is None:
            players = players_of(self._columns.declared, scales)
        else:
            players = [
                Player(scale.name, (place.at,), (Column(**place.model_dump()),), (0,))
                for place, scale in zip(self._places, scales, strict=True)
            ]
        basis = Basis(counts=self._counts, proved=self.guarantee_.proved, with_counts=True)
        divided = explaining(
            lambda encoded: self._explained_scores(self._raw_scores_of(encoded)),
            self._explained_names(),
            players,
            missing,
            basis,
            permutations=permutations,
            seed=seed,
        )
        with self._without_cells():
            rows = X if self._encoding is None else self._validated(X, reset=False, ensure_min_samples=0)
            features = self._encoded(rows)
        frame = find_frame(X)
        return divided.frame(features, None if frame is None else frame.index)

    @abstractmethod
    def _explained_scores(self, scores: Floats) -> Floats:
        """Return from the model's own scores what is divided among columns."""

    @abstractmethod
    def _explained_names(self) -> tuple[str, ...]:
        """Return what these are."""


class Scored:
    """Before scikit-learn's own mixin, which knows the score."""

    public: bool
    _labels: Callable[[Any], NDArray[Any]]
    _without_cells: Callable[[], AbstractContextManager[None]]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, or R² of numbers, on these rows, which is exact and no release."""
        if not self.public:
            warn_of_scores()
        with self._without_cells():
            return self._exact_score(X, self._labels(y), sample_weight)

    def _exact_score(self, X: Any, labels: NDArray[Any], sample_weight: Any) -> float:
        return float(super().score(X, labels, sample_weight))  # type: ignore[misc]  # of the mixin
