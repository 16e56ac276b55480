"""Scikit-learn estimators over the same plans, door and ledger as the flows."""

import math
import os
import secrets
import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from dpalgos.algorithms import fit
from dpalgos.column_maps import LearntColumns
from dpalgos.columns import Column
from dpalgos.features.unit_rows import UnitRows
from dpalgos.guarantees import Numerics, PureEpsilon
from dpalgos.histograms import ColumnCounts
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import AffineMap, LinearModel
from dpalgos.normalisation import RowMap
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names
from dpalgos.rows import ArrayRows, Floats
from storage.cells import canonical
from storage.columns.coding import codes_of
from storage.columns.declarations import named_twice
from storage.documents import read_yaml
from storage.encoder import TableEncoder, columns_of
from storage.errors import InputError, RefusedError
from storage.ledger.charges import PERSON
from storage.ledger.entries import require_name
from storage.people import MOST_ROWS, People, at_most, identifiers, named, shares
from storage.refs import DatasetRef, OnViolation, ShardRef, TableColumn, Visibility
from storage.several import patterned, settled
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.datasets.scales import Scale, scales_under
from tasks.planning.configuration import BudgetSettings, TrainingConfig, faults
from tasks.planning.graph import materialise
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.resolution import resolve, resolve_normalisation
from tasks.preparation.prepare import AllRows, prepare_over
from tasks.release.preflight import require_feasible
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog
from tasks.tracking.effects import counts_behind, described_effects
from tasks.tracking.results import Proved, proved_of
from unitball.training import PROCESS, budget, charged_root, other_process
from unitball.wording import in_python

# As tables are encoded: an intercept's coordinate of a tenth beside a row of norm 1.
_INTERCEPT = 0.1
_CONSTANT = float(_INTERCEPT / np.sqrt(1.0 + _INTERCEPT**2))


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
    def of(cls, bounds: Any, features: int) -> Self:
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

    @property
    def _scale(self) -> Floats:
        """What a distance from the middle is multiplied by, (p,)."""
        half, norm = (self.high - self.low) / 2.0, np.sqrt((1.0 + _INTERCEPT**2) * len(self.low) / 3.0)
        return np.where(half > 0, 1.0 / (np.where(half > 0, half, 1.0) * norm), 0.0)

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Return (m, p + 1) from (m, p)."""
        middle = (self.low + self.high) / 2.0
        centred = (np.clip(np.asarray(rows, dtype=np.float64), self.low, self.high) - middle) * self._scale
        return np.concatenate([centred, np.full((len(centred), 1), _CONSTANT)], axis=1)

    @property
    def places(self) -> tuple[TableColumn, ...]:
        """Which features are numbers, and what they are at the ends of their bounds; a constant is none."""
        ends = (self.high - self.low) / 2.0 * self._scale
        return tuple(TableColumn(at=at, low=-end, high=end) for at, end in enumerate(ends.tolist()) if end > 0)

    def scales(self, names: Sequence[Any] | None) -> tuple[Scale, ...]:
        """Return the numbers' own units, by their names or their places."""
        ends = zip(self.low.tolist(), self.high.tolist(), strict=True)
        return tuple(
            Scale(f"x{at}" if names is None else str(names[at]), "number", numbers=partial(_between, low, high))
            for at, (low, high) in enumerate(ends)
            if low < high
        )

    def middle(self) -> Floats:
        """Return the encoded row in the middle of all bounds, (p + 1,)."""
        return np.asarray(self(((self.low + self.high) / 2.0)[None])[0])

    def unscaled(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return coefficients and intercepts for raw rows within bounds, from weights (k, p + 1) of encoded ones."""
        coefficients = weights[:, :-1] * self._scale
        return coefficients, weights[:, -1] * _CONSTANT - coefficients @ ((self.low + self.high) / 2.0)


def _between(low: float, high: float, shares: Floats) -> Floats:
    return np.asarray(low + np.asarray(shares) * (high - low))


NOT_COVERED = (
    "exact scores of these or other private rows, such as a search's scores of its folds, and what is chosen by them",
    "earlier steps of a pipeline that learn from the rows (a scaler, a selection of features)",
    "whatever else is computed from the rows beside this estimator",
)
"""What no guarantee of an estimator covers."""
_PUBLIC = "public rows"
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


class BudgetError(BaseException):
    """A fit on private rows was refused; nothing was spent.

    Not an ``Exception``: scikit-learn's searches turn each of those into a score that is missing, and go on fitting.
    """


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Whose rows are fitted on, where what is protected is a person.

    Attributes
    ----------
    people : People
    names : array (m,) of str
    """

    people: People
    names: NDArray[Any]

    @property
    def records(self) -> int:
        """How many people they are."""
        return len(np.unique(self.names))

    def weighed(self, features: Floats, labels: Any) -> ArrayRows:
        """Return public rows with how many each one's person has; of more than are taken, the first."""
        whose = np.unique(self.names, return_inverse=True)[1].astype(np.int32)
        order = np.arange(len(whose), dtype=np.uint64)
        kept = at_most(whose, order, np.zeros(len(whose)), self.people.rows_per_person)
        counted = shares(kept, self.records)
        there = counted > 0
        return ArrayRows(features[there], labels[there], shares=counted[there], people=self.records)


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


class _Target(NamedTuple):
    """Labels as algorithms take them, with names of their classes or the range that holds them."""

    labels: NDArray[Any]
    classes: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What classifier and regressor share; each says what its labels are."""

    # Where it was made, kept by pickling and lost by cloning, which happens in the process that fits.
    _process = PROCESS
    # Kept by pickling, too. What clones and fits is a search or a cross-validation, which scores in ways of its own.
    _cloned = False

    def __init__(
        self,
        *,
        epsilon: float,
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
    ) -> None:
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
    def _target(self, y: NDArray[Any]) -> _Target:
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
        fields = {
            "dataset": "estimator",
            ("algorithm" if self._algorithm in names("systems") else "trainer"): self._algorithm,
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "parties": 1,
            "evaluation": False,
            "test_fraction": 0.0,
            "replicate": int(self.replicate),
            "parameters": self._parameters(len(y) if grouped is None else grouped.records, features.shape[1]),
            "class_weight": self._class_weight(),
        }
        try:
            config = TrainingConfig.model_validate(fields)
        except ValidationError as error:
            raise ParameterError(in_python("; ".join(faults(error, {name: name for name in fields})))) from None
        self._normalisation = resolve_normalisation(config, None, table=bool(self._places))
        self._counts: ColumnCounts | None = None
        self._people = grouped is not None
        train = self._in_memory if self.public else self._through_the_door
        plan, artefacts, account = train(config, features, target, grouped)
        self.guarantee_, self.charges_ = FitGuarantee(proved_of(plan)), _charges(plan, account)
        *self._maps, self._model = artefacts
        # Rows of norm 1 are what coefficients are for, whoever brought them there.
        maps = self._maps[1:] if self._maps and isinstance(self._maps[0], UnitRows) else self._maps
        if isinstance(self._model, LinearModel) and all(isinstance(one, AffineMap) for one in maps):
            linear = self._model
            for one in reversed(maps):
                linear = one.before(linear)
            self._set_coefficients(linear.weights, linear.intercept)
        return self

    def _planned(self, config: TrainingConfig, width: int, target: _Target, grouped: Grouped | None) -> RunPlan:
        """Plan a run over rows of which only public facts are known; nothing is opened, stored or charged.

        Raises
        ------
        ParameterError
            For parameters that do not fit, a delta of 0 for what spends one among them.
        """
        records = len(target.labels) if grouped is None else grouped.records
        people = None if grouped is None else grouped.people
        dataset = DatasetRef(
            **({} if people is None else {"person": people.column, "rows_per_person": people.rows_per_person}),
            name=_PUBLIC,
            version=_PUBLIC,
            account=_PUBLIC,
            visibility=Visibility.PUBLIC,
            rows=records,
            test_rows=0,
            dimension=width,
            classes=target.classes,
            label_range=target.label_range,
            normalisation=self._normalisation,
            columns=self._places if self._normalisation == "none" else (),
        )
        if self.delta == 0:
            _require_pure(config, dataset)
        shard = ShardRef(dataset=dataset, partition=_PUBLIC, party="0", rows=records)
        return prepare_over(config, AllRows(training=[shard])).whole

    def _in_memory(
        self, config: TrainingConfig, features: Floats, target: _Target, grouped: Grouped | None
    ) -> tuple[RunPlan, list[Any], str]:
        """Plan a run over public rows and carry it out, its noise from a public seed or drawn afresh.

        Returns the plan, what an encoded row passes through with the model last, and who pays.
        """
        given = ArrayRows(features, target.labels) if grouped is None else grouped.weighed(features, target.labels)
        plan = self._planned(config, features.shape[1], target, grouped)
        mapped = _row_map(self._normalisation)(given.features)
        secret = secrets.token_bytes(32)
        if self.random_state is not None:
            secret = public_secret(int(check_random_state(self.random_state).randint(2**31 - 1)))

        def make(node: PlannedRelease | PlannedCombination, inputs: list[Any]) -> Any:
            if isinstance(node, PlannedCombination):
                return node.combine(inputs)
            seen = mapped
            for one in inputs:
                seen = one.apply(seen)
            return fit(
                node.build().informed(inputs),
                [replace(given, features=seen)],
                node.setting,
                KeyedNoise(secret, node.key),
            )

        outputs = materialise(plan.training, make, at_hand=plan.partitions)
        (path,) = plan.paths().values()
        learnt = None if plan.column_map is None else plan.column_map.build()
        if isinstance(learnt, LearntColumns) and plan.column_map is not None:
            self._counts = learnt.counts_of([outputs[key] for key in plan.column_map.upstream])
        return plan, [outputs[key] for key in path], "none: the rows are public"

    def _through_the_door(
        self, config: TrainingConfig, features: Floats, target: _Target, grouped: Grouped | None
    ) -> tuple[RunPlan, list[Any], str]:
        """Register encoded rows under an account and train on them as a flow does; the ledger is charged.

        Equal rows under equal parameters are the same release: it is charged once.
        """
        if self.random_state is not None:
            raise BudgetError("random_state is a public seed of the noise and the rows are private; leave it out")
        population = self.account or _DEFAULT_ACCOUNT
        named = config.model_copy(update={"dataset": f"{population}.fits"})
        try:
            # What does not fit is refused before an account is opened for it, which is for good.
            planned = self._planned(config, features.shape[1], target, grouped)
            with charged_root(self.root):
                terms = self._terms_of(population, config, planned, people=grouped is not None)
                with tempfile.TemporaryDirectory(dir=current_layout().private, prefix="fit-") as folder:
                    path = Path(folder, "rows.parquet")
                    width = features.shape[1]
                    numbers = pa.FixedSizeListArray.from_arrays(pa.array(features.astype(np.float32).ravel()), width)
                    kind = pa.string() if target.classes else pa.float64()
                    column = np.take(target.classes, target.labels) if target.classes else target.labels
                    whose = {} if grouped is None else {grouped.people.column: pa.array(grouped.names, pa.string())}
                    pq.write_table(pa.table({**whose, "features": numbers, "label": pa.array(column, kind)}), path)
                    ingest(
                        IngestRequest(
                            **terms,
                            name=named.dataset,
                            format="parquet",
                            path=path,
                            account=population,
                            dimension=width,
                            classes=target.classes or None,
                            label_range=target.label_range,
                            people=None if grouped is None else grouped.people,
                            columns=self._places,
                            disjoint_people=self.disjoint_people,
                        )
                    )
                prepared = require_feasible(named)
                # Prefect takes seconds.
                from flows.federated_training import chain
                from tasks.runtime.steps import inline

                with inline():
                    chained = chain(prepared)
                (references,) = chained.models.values()
                artefacts = [read_release(reference) for reference in references]
                self._counts = counts_behind(references)
        except RefusedError as refusal:
            raise BudgetError(in_python(str(refusal))) from None
        except (ParameterError, InputError) as error:
            raise type(error)(in_python(str(error))) from None
        self._normalisation = chained.dataset.normalisation
        return chained.plan, artefacts, population

    def _terms_of(self, population: str, config: BudgetSettings, planned: RunPlan, *, people: bool) -> dict[str, Any]:
        """Return what is said of the account that pays; one that nobody has opened is opened for one fit.

        Raises
        ------
        InputError
            If the root that was named has no such account.
        RefusedError
            If it is of another unit, or is new and would not admit what is planned.
        """
        known = open_catalog().account(population)
        if known is None:
            if self.root is not None:
                raise InputError(
                    f"this root has no account {population!r}; open it: "
                    f"unitball.open_account({population!r}, epsilon=…, delta=…, root=…)"
                )
            guarantees = {release.name: release.guarantee() for release in planned.releases}
            for name, guarantee in guarantees.items():
                if not guarantee.proved:
                    raise RefusedError(f"{name} is not proved, and the rows are private: {guarantee.reason}")
            for name, guarantee in guarantees.items():
                if guarantee.numerics is Numerics.IDEALISED:
                    raise RefusedError(
                        f"{name} is proved in real arithmetic only (idealised), which an account has to admit; "
                        f"open it before: unitball.open_account({population!r}, epsilon=…, delta=…, "
                        "allow_idealised=True); or choose an exact algorithm, such as algorithm='noisy-gd'"
                    )
            return {"epsilon_cap": config.epsilon, "delta_cap": config.stated_delta}
        if (known.unit == PERSON) != people:
            way = (
                "other rows may go to one of people: open_account(…, people=True)"
                if people
                else "say whose rows they are: fit(…, groups=…)"
            )
            raise RefusedError(f"account {population!r} is of unit {known.unit}, for good; {way}")
        return {"group_size": known.group_size}

    def remaining_budget(self) -> float | None:
        """Return the largest epsilon of one more fit that the account would admit; None where the rows are public."""
        if self.public:
            return None
        left = budget(self.account or _DEFAULT_ACCOUNT, root=self.root).attrs["left"]
        return None if left is None else float(left["epsilon"])

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
        _require_number("epsilon", self.epsilon, "above 0 and at most 1000", lambda value: 0 < value <= 1000)
        _require_number("delta", self.delta, "from 0 to below 1, below one over the rows", lambda value: 0 <= value < 1)
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
                message = str(error)
                if "could not convert string" in message:
                    message += "; columns of texts need their values declared: give schema=FILE"
                elif "inconsistent numbers of samples" in message:
                    message = f"y has {len(y)} labels and X has {len(X)} rows; give each row one label"
                raise ParameterError(message) from None
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
        check_is_fitted(self)
        if self.schema is None:
            # A delivery may be empty, and so is what is said of it.
            X = validate_data(self, X, reset=False, dtype=np.float64, ensure_min_samples=0)
        return self._scores_of(np.asarray(self._encoding(X)))

    def _scores_of(self, encoded: Floats) -> Floats:
        seen = _row_map(self._normalisation)(encoded)
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
        return described_effects(
            self._scores_of, names, columns, scales, missing, self._counts, path, people=self._people
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

    There is no ``predict_proba``. The scores of a private model are no probabilities: clipping and noise change their
    scale, and calibrating them takes held-out rows, whose release is charged. ``unitball.train(…, roc=True)`` makes
    that release and returns probabilities. ``CalibratedClassifierCV`` would fit on the rows exactly, outside the
    guarantee. Likewise an estimator trains on all of its rows and releases no measurement: how good a model is for each
    value of a column is said by ``unitball.train(…, by="column")``, of held-out rows.

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
        replicate: int = 0,
        random_state: Any = None,
        rows_per_person: int = MOST_ROWS,
        disjoint_people: str = "",
        on_violation: str = "refuse",
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
        )
        self.classes = classes
        self.class_weight = class_weight

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

    def _target(self, y: NDArray[Any]) -> _Target:
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
        return _Target(
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
    rows_per_person, disjoint_people
        See :class:`PrivateClassifier`; the algorithm is ``"unitball"`` by default.

    Attributes
    ----------
    coef_ : array (p,)
    intercept_ : float
    guarantee_, charges_, n_features_in_
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
        epsilon: float = 1.0,
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
        )
        self.label_range = label_range

    @property
    def _algorithm(self) -> str:
        return self.algorithm or "unitball"

    def _target(self, y: NDArray[Any]) -> _Target:
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
        return _Target(np.clip(targets, low, high), label_range=(float(low), float(high)))

    def _set_coefficients(self, weights: Floats, intercept: Floats) -> None:
        super()._set_coefficients(weights, intercept)
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]

    def predict(self, X: Any) -> Floats:
        """Return a number for each row, (m,)."""
        return self._scores(X)[:, 0]

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


def _row_map(normalisation: str) -> RowMap:
    """Return a row-local normalisation as a function of rows."""
    return cast(RowMap, lookup("normalisations", normalisation)().learn(()))


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


def _require_pure(config: TrainingConfig, dataset: DatasetRef) -> None:
    parts = [lookup(part.kind, part.name) for part in resolve(config, dataset).parts.values()]
    if any(part.budgets[0] is not PureEpsilon for part in parts if getattr(part, "budgets", ())):
        raise ParameterError(
            f"{config.system} spends a delta and delta is 0; choose a delta, or an algorithm of pure epsilon"
        )


def _charges(plan: RunPlan, account: str) -> pd.DataFrame:
    """Return a line a release that reads rows: what it is, what it costs, who pays."""
    lines = [
        {
            "release": release.label,
            "algorithm": release.name,
            "loss": ", ".join(str(loss) for loss in release.guarantee().losses),
            "account": account,
            "key": release.key,
        }
        for release in plan.releases
        if release.reads_rows
    ]
    return pd.DataFrame(lines, columns=["release", "algorithm", "loss", "account", "key"])
