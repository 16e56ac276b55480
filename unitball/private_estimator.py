"""What the estimators share: their parameters, a fit by the same plans, door and ledger as the flows, and scores."""

import hashlib
import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpalgos.columns import Column
from dpalgos.conformal import HeldOutErrors, HeldOutScores
from dpalgos.features.unit_rows import UnitRows
from dpalgos.models import AffineMap, LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.registry import names
from dpalgos.rows import Floats
from dpalgos.score_curves import ScoreSums
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.frames import find_frame, frame_of, number_rows
from storage.hidden_cells import cells_hidden
from storage.ledger.entries import require_name
from storage.people import MOST_ROWS, People, identifiers, named
from storage.readers.in_memory import document_of
from storage.refs import OnViolation
from storage.schema import parse_schema
from tasks.accounts.room import one_more_run
from tasks.datasets.scales import scales_under
from tasks.planning.configuration import TrainingConfig, faults
from tasks.planning.resolution import resolve_normalisation
from tasks.release.held_out_counts import held_out_counts
from tasks.release.metrics import Evaluation, measure_by_statistics, sums_of_scores
from tasks.release.prices import RUN_EPSILON
from tasks.runtime.settings import current_root
from tasks.tracking.effects import described_effects
from tasks.tracking.results import proved_of
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
)
from unitball.guarantees import FitGuarantee
from unitball.parameter_checks import NoNumberError, require_number, require_whole, said_of_rows, shown
from unitball.pipelines import fitted_around
from unitball.screen import called_by, warn_of_clipped, warn_of_fits, warn_of_scores, warn_of_steps
from unitball.training import MEMORY, budget, using_root
from unitball.wording import in_python, spoken_in_python


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What classifier and regressor share; each says what its labels are.

    The fields are the parameters of both: a data class has the constructor that scikit-learn's cloning asks for.
    """

    # Which root it was pickled on, where none is named: another process may find another one.
    _pickled_on = ""
    # What it is a clone of, kept by pickling; what it was cloned for.
    _family = ""
    _cloned = False

    epsilon: float | None = None
    delta: float = 1e-6
    _: KW_ONLY
    algorithm: str | None = None
    account: str | None = None
    schema: Mapping[str, Any] | str | os.PathLike[str] | None = None
    bounds: Sequence[Any] | None = None
    public: bool = False
    root: str | os.PathLike[str] | None = None
    parameters: Mapping[str, Any] | None = None
    repetition: int = 0
    random_state: Any = None
    rows_per_person: int = MOST_ROWS
    disjoint_people: str = ""
    on_violation: str = "refuse"
    test_fraction: float = 0.0

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the class and the parameters that are not the default, each cut where it is long."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        defaults = {one.name: one.default for one in fields(self)}
        changed = [f"{name}={shown(value)}" for name, value in given.items() if repr(value) != repr(defaults[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_clone__(self) -> Any:
        cloned = super().__sklearn_clone__()
        self._family = self._family or secrets.token_hex(8)
        # What clones and fits is a search or a cross-validation, which scores in ways of its own.
        cloned._cloned, cloned._family, cloned._pickled_on = True, self._family, self._pickled_on
        if called_by("sklearn.model_selection"):
            # Here and not where it is fitted: that may be another process, whose warnings no notebook shows.
            self._warn_of_fits()
        return cloned

    def _warn_of_fits(self) -> None:
        # A parameter that is no number is refused where it is fitted.
        epsilon, delta = cast("tuple[object, object]", (self._epsilon, self.delta))
        if not self.public and isinstance(epsilon, Real) and isinstance(delta, Real):
            warn_of_fits(self._family, self.account, float(epsilon), float(delta))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self.account is not None and self.root is None:
            state["_pickled_on"] = self._pickled_on or _digest(current_root())
        return dict(state)

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
            Whose each row is, text or whole numbers: what is protected is then a person with all rows, in an account of
            people. By keyword alone: a third argument is elsewhere the rows' weights. In a pipeline:
            ``set_fit_request(groups=True)``. A schema's column of type ``person`` says the same.
        """
        self._require_parameters()
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
            fitted = fit_through_the_door(
                config,
                encoded,
                self.account,
                root=self.root,
                disjoint_people=self.disjoint_people,
                agreed=self.epsilon is not None,
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

    def _take(self, fitted: Fitted) -> None:
        """Keep what a fit has released, and what follows from it."""
        self.guarantee_, self._charged = FitGuarantee(proved_of(fitted.plan), fitted.remembered), fitted.charges
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
        self._held_out = held_out_counts(fitted.plan, fitted.path, fitted.statistics) if fitted.statistics else None
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
        return RUN_EPSILON if self.epsilon is None else float(self.epsilon)

    @property
    def _threshold(self) -> float:
        """Of the model's scores; what it says are those above it."""
        return 0.0

    def _class_names(self) -> tuple[str, ...]:
        return ()

    @property
    def charges_(self) -> pd.DataFrame:
        """A line per release that reads rows: what it is, what it costs by itself at the fit's delta, who pays."""
        return pd.DataFrame(self._charged, columns=["epsilon", "release", "loss", "algorithm", "account", "key"])

    @spoken_in_python()
    def remaining_budget(self) -> float | None:
        """Return the largest epsilon of one more fit that the account would admit; None without an account.

        At this estimator's own ``delta``, under which another epsilon fits than under that of the account's runs.
        """
        if self.public or self.account is None or budget(self.account, root=self.root).left is None:
            return None
        with using_root(self.root):
            left = one_more_run(self.account, float(self.delta))
        return None if left is None else left.epsilon

    def _grouped(self, X: Any, groups: Any, rows: int) -> Grouped | None:
        """Return whose rows they are: by ``groups``, or by the schema's column of type person."""
        people = None if self.schema is None else self._columns.declared.people
        if groups is not None and people is not None:
            raise ParameterError(f"the schema's column {people.column} says whose rows they are; leave groups out")
        if groups is not None:
            people = People("groups", self.rows_per_person)
            names = identifiers(np.ravel(groups).tolist() if len(np.shape(groups)) > 1 else groups)
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
        require_number(
            "epsilon",
            RUN_EPSILON if self.epsilon is None else self.epsilon,
            "above 0 and at most 1000",
            lambda value: 0 < value <= 1000,
        )
        require_number("delta", self.delta, "from 0 to below 1, below one over the rows", lambda value: 0 <= value < 1)
        require_number("test_fraction", self.test_fraction, "from 0 to below 1", lambda value: 0 <= value < 1)
        require_whole("repetition", self.repetition, 0)
        require_whole("rows_per_person", self.rows_per_person, 1)
        if not isinstance(self.public, bool | np.bool_):
            raise ParameterError(f"public is {self.public!r}; give True, or False where the rows are private")
        if self.on_violation not in (OnViolation.REFUSE, OnViolation.CLIP):
            raise ParameterError(
                f"on_violation is {self.on_violation!r}; an estimator takes refuse or clip. How many rows there are is "
                "public and does not depend on what they hold: only registered data sets keep null records of "
                "rows that are dropped"
            )
        if not isinstance(self.disjoint_people, str):
            raise ParameterError(
                f"disjoint_people is {self.disjoint_people!r}; give the reason as a text, or '' where none is declared"
            )
        for name, kinds, what in (
            ("algorithm", str, "a name of `unitball algorithms`"),
            ("account", str, "the population's name"),
            ("parameters", Mapping, "a mapping, as {'trainer.regularisation': 0.01}"),
            ("root", (str, os.PathLike), f"a folder, or {MEMORY!r}"),
            ("schema", (Mapping, str, os.PathLike), "a mapping, or the path of a YAML file"),
        ):
            value = getattr(self, name)
            if not (value is None or isinstance(value, kinds)) or value == "":
                raise ParameterError(f"{name} is {shown(value)}; give {what}, or None")
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
                    f"random_state is {shown(self.random_state)}; give a whole number from 0 to 2**32 - 1, a "
                    "numpy.random.RandomState, or None"
                ) from None

    def _require_declared(self) -> None:
        """Refuse private rows whose bounds or labels would have to be learnt from them, and accounts in doubt."""
        for name in ("root", "disjoint_people"):
            if self.account is None and getattr(self, name):
                raise ParameterError(
                    f"{name} is {shown(getattr(self, name))} and no account is named, which {name} is of; give account="
                )
        if self.root is None and self._pickled_on not in ("", _digest(current_root())):
            raise BudgetError(
                f"this estimator was pickled on another root than {current_root()}, whose ledger may have another "
                f"account {self.account!r}; say which one is meant: root=FOLDER"
            )
        missing = [name for name in ("bounds", self._declares) if getattr(self, name) is None]
        if self.schema is None and missing:
            raise ParameterError(
                f"the rows are private and {' and '.join(missing)} would have to be learnt from them; declare "
                f"{self._example} or schema=FILE, or give public=True if the rows are public"
            )

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
            raise ParameterError("y is None; give each row its label")
        shape = np.shape(y)
        if not shape or (len(shape) > 1 and shape[1:] != (1,)):
            raise ParameterError(f"y has shape {shape}; give each row one label, (m,)")
        if shape[0] != rows.rows:
            raise ParameterError(f"y has {shape[0]} labels and X has {rows.rows} rows; give each row one label")
        if not rows.rows:
            raise ParameterError("X has 0 rows; at least one is needed to fit")
        return rows, self._labels(y)

    def _validated(self, X: Any, *y: Any, **given: Any) -> Any:
        """Return rows of numbers as scikit-learn validates them, frames converted by our own rules before."""
        frame = find_frame(X)
        if frame is not None:
            X = pd.DataFrame(number_rows(frame), columns=X.columns if hasattr(X, "iloc") else list(frame.names))
        elif getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M"):
            raise ParameterError(f"X is an array of {X.dtype}, and numbers are needed; declare a schema")
        try:
            return validate_data(self, X, *y, dtype=np.float64, **given)
        except TypeError as error:
            if not str(error).startswith("float()"):
                raise
            # It names the cell's type, and not the cell.
            raise NoNumberError(f"{error}; declare what the columns hold: give schema=FILE") from None
        except ValueError as error:
            if y and "inconsistent numbers of samples" in str(error):
                raise ParameterError(
                    f"y has {len(y[0])} labels and X has {len(X)} rows; give each row one label"
                ) from None
            raise ParameterError(said_of_rows(error)) from None

    def _labels(self, y: Any) -> NDArray[Any]:
        """Return labels as the schema names them, where it declares them."""
        if self.schema is None or getattr(self, self._declares) is not None:
            return np.asarray(y).ravel()
        return self._columns.labels(np.ravel(y) if len(np.shape(y)) > 1 else y)

    def _encoder(self, rows: Any) -> Bounds | None:
        """Return how numbers are encoded; None where a schema says it."""
        if self.schema is not None:
            return None
        # None are declared of public rows alone.
        bounds = (rows.min(axis=0), rows.max(axis=0)) if self.bounds is None else self.bounds
        return Bounds.of(bounds, rows.shape[1])

    def _encoded(self, rows: Any) -> Floats:
        """Return encoded rows, and warn of cells that were clipped to what is declared."""
        if self._encoding is None:
            encoding = self._columns.encode_or_raise(rows)
            warn_of_clipped(encoding.clipped, "the schema")
            return encoding.features
        if self.bounds is not None:
            names = getattr(self, "feature_names_in_", None)
            warn_of_clipped(self._encoding.clipped(rows, names), "their bounds")
        return self._encoding(rows)

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

    def _without_cells(self) -> AbstractContextManager[None]:
        """Return what keeps cells of private rows out of errors: a notebook keeps what it shows."""
        return nullcontext() if self.public else cells_hidden()

    def _raw_scores_of(self, encoded: Floats) -> Floats:
        seen = row_map(self._normalisation)(encoded)
        for one in self._maps:
            seen = one.apply(seen)
        return np.asarray(self._model.scores(seen))

    @spoken_in_python()
    def effects(self) -> pd.DataFrame:
        """Return what the model says about each column: its scores along it, from weights and released counts alone.

        No row is looked at, so it costs nothing. The data frame is that of :meth:`unitball.TrainedModel.effects`.

        Raises
        ------
        InputError
            If no column has a declared range or values.
        """
        check_is_fitted(self)
        if self._encoding is not None:
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


def _digest(root: Path) -> str:
    """Return what tells a root's place from another without naming it."""
    return hashlib.sha256(str(root).encode()).hexdigest()[:16]


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
            return float(super().score(X, self._labels(y), sample_weight))  # type: ignore[misc]  # of the mixin
