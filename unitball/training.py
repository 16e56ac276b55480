"""Functions for notebooks, without a server: accounts and budgets, training, predicting, results and their plot."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dpalgos.accounting.spending import RESERVED
from dpalgos.guarantees import RELATIONS
from dpalgos.parameters import ParameterError
from storage.atomic import locked_directory
from storage.errors import InputError, RefusedError
from storage.hidden_cells import cells_hidden
from storage.layout import path_component
from storage.ledger.charges import DEFAULT_RELATION, PERSON, ROW, Cap
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import ensure_registered, find_dataset
from tasks.host.engine import on_running_server, quick_flows
from tasks.planning.configuration import TrainingConfig
from tasks.release.preflight import require_feasible
from tasks.release.prices import price_of, with_epsilon
from tasks.runtime.settings import ROOT_VARIABLE, current_layout, current_root, isolated_root, restoring
from tasks.runtime.stores import forget_ledger
from tasks.tracking.results import Proved, RunResult, rests_on, shown_metric, synthetic_of
from unitball.accounts import AccountBudget, read_budget
from unitball.guarantees import IN_MEMORY_ALONE
from unitball.wording import checked, spoken_in_python

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tasks.tracking.effects import Effects
    from tasks.tracking.explanations import Basis
    from tasks.tracking.lineage import Lineage

MEMORY = ":memory:"
"""In place of a folder: a root of this process alone, which ends with it."""
# A root is the environment's, which belongs to the whole process.
_LOCK = threading.RLock()
_PROCESS_ROOTS: dict[int, Path] = {}


@contextmanager
def using_root(root: str | os.PathLike[str] | None) -> Iterator[None]:
    """Work on a root; where none is named, on ``UNITBALL_ROOT`` or the user's own.

    Calls of several threads wait for each other.

    Raises
    ------
    RefusedError
        For :data:`MEMORY` in a process that another one has started: each would have its own ledger, and spend the
        same cap again.
    """
    with _LOCK, _memory_root() if root == MEMORY else restoring(ROOT_VARIABLE):
        if root not in (None, MEMORY):
            os.environ[ROOT_VARIABLE] = str(Path(root).expanduser().resolve())
        yield


def _memory_root() -> AbstractContextManager[None]:
    """Return the root of this process: its accounts hold for all who spend from them here, and end with it."""
    if multiprocessing.parent_process() is not None or multiprocessing.current_process().name != "MainProcess":
        raise RefusedError(other_process("this process was started by another"))
    number = os.getpid()
    if number not in _PROCESS_ROOTS:
        if _PROCESS_ROOTS:
            raise RefusedError(other_process("this process is a copy of another"))
        folder = Path(tempfile.mkdtemp(prefix="unitball-"))
        _PROCESS_ROOTS[number] = folder
        atexit.register(_remove, number, folder)
    return isolated_root(_PROCESS_ROOTS[number] / "root")


@contextmanager
def root_of_one_call() -> Iterator[None]:
    """Work on a root that nothing else knows and that is removed afterwards, with its accounts."""
    with _LOCK, tempfile.TemporaryDirectory(prefix="unitball-") as folder, isolated_root(Path(folder) / "root"):
        try:
            yield
        finally:
            forget_ledger(current_root())


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Keep other processes from registering rows as a data set of this name.

    Held from the registration to the plan, because a plan reads the newest version.
    """
    folder = current_layout().private / "frames" / path_component(name, "data set name")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked_directory(folder):
        yield


def other_process(what: str) -> str:
    """Return why an account in memory belongs to one process, and what to do."""
    return (
        f"root={MEMORY!r} keeps accounts in the memory of one process, and {what}; omit root, give root=FOLDER (its "
        "ledger is shared by all processes), or use n_jobs=1"
    )


def _remove(number: int, folder: Path) -> None:
    # A fork runs its parent's exit handlers, too.
    if os.getpid() == number:
        shutil.rmtree(folder, ignore_errors=True)


@spoken_in_python()
def open_account(
    name: str,
    *,
    epsilon: float,
    delta: float,
    root: str | os.PathLike[str] | None = None,
    allow_idealised: bool = False,
    people: bool = False,
    group_size: int = 1,
    relation: str = DEFAULT_RELATION,
    soft_limit: float | None = None,
) -> None:
    """Open an account: the privacy budget for all releases about one population.

    The root keeps it, like an account that ``unitball ingest`` opens. Everything that names it charges it: estimators,
    :func:`unitball.train`, :func:`unitball.describe` and commands, in any process. A second call with the same terms
    changes nothing; the cap may be the one at opening or the one in force, if it was raised since.

    Parameters
    ----------
    name : str
        Name of the account, which estimators give as ``account=``.
    epsilon, delta : float
        The cap; delta below one over the number of rows.
    root : path, optional
        Folder whose ledger keeps the account. Default: ``UNITBALL_ROOT`` or the user's own. ``":memory:"`` keeps it in
        this process and forgets it at the end: for tests, because the same rows then have their whole budget again.
    allow_idealised : bool
        Whether to allow algorithms that are proved in real arithmetic only.
    people : bool
        Whether people are protected, each with all their rows, instead of single rows. This is fixed at opening.
        ``fit(…, groups=…)`` or a schema's column of type ``person`` names the person of each row.
    group_size : int
        Maximum number of rows per person, if rows are protected; the account then computes a person's loss.
    relation : {"replace-one", "replace-special"}
        The neighbouring relation, fixed at opening (page Guarantees).
    soft_limit : float, optional
        ε below the cap's. Charges above it are refused until the owner lifts it, which is recorded. The guarantee is
        that of the cap; lifting the limit spends nothing, unlike raising a cap (page See, raise or limit a budget).

    Raises
    ------
    storage.errors.InputError
        If the account exists with other terms, the cap bounds nothing, or the soft limit is not below the cap.
    """
    path_component(name, "account")
    if relation not in RELATIONS:
        raise ParameterError(f"relation is {relation!r}; give one of {', '.join(map(repr, map(str, RELATIONS)))}")
    with using_root(root):
        open_ledger().open_account(
            name,
            Cap(epsilon=epsilon, delta=delta),
            idealised_allowed=allow_idealised,
            deltas={"reserved": RESERVED},
            unit=PERSON if people else ROW,
            group_size=group_size,
            relation=relation,
            soft_limit=soft_limit,
        )


@spoken_in_python()
def budget(dataset: str, *, root: str | os.PathLike[str] | None = None) -> AccountBudget:
    """Return an account's spending, its charges, and its remaining budget.

    Parameters
    ----------
    dataset : str
        A registered data set, or an account.
    root : path, optional
        Default: ``UNITBALL_ROOT`` or the user's own folder. ``":memory:"``: accounts of this process.

    Returns
    -------
    AccountBudget
        ``left_epsilon`` is the largest ε of one more run that the cap allows; ``charges`` has date, ε, δ and μ of each
        charge.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set or account.
    """
    with using_root(root):
        ensure_registered(dataset)
        # Otherwise it says which data sets there are.
        return read_budget(dataset)


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedModel:
    """A trained model with its result and its account.

    Attributes
    ----------
    result : RunResult
        Spending, proof, the paper's claim and metrics. ``result.metrics`` is nan for a metric that cannot be measured,
        and ``result.metrics.reasons`` has the reason.
    pipeline : sklearn.pipeline.Pipeline or None
        From raw rows to classes or numbers; None if each party has a model that scikit-learn cannot represent.
    budget : AccountBudget
        The account after the run: ``left_epsilon``, ``charges``.
    says : Effects or None
        Effect of each column of a declared table; see :meth:`effects`.
    remembered : str
        A note, if the account ends with this process.
    lineage : Lineage or None
        The releases and data sets that the model rests on.
    root : str or None
        Folder that keeps its releases.
    """

    result: RunResult
    pipeline: Any
    budget: AccountBudget
    says: Effects | None = None
    remembered: str = ""
    lineage: Lineage | None = None
    root: str | None = None

    @property
    def guarantee(self) -> Proved | None:
        """The guarantee of all releases of the run; None if nothing is proved."""
        return self.result.proved

    def predict(self, rows: Any) -> pd.Series:
        """Return a class (or a number) for each row.

        Parameters
        ----------
        rows : frame of the table's columns (see :func:`unitball.train`), or array (m, d) if the set has no schema
        """
        return predicted(self.pipeline, rows)

    def predict_proba(self, rows: Any) -> pd.DataFrame:
        """Return the probability of each of two classes for each row, of a model that was measured with ``roc=True``.

        If people are protected, the calibration gives each person the same weight, however many rows they have; the
        frequency of a class among rows may differ.

        Parameters
        ----------
        rows : as for :meth:`predict`
        """
        if not hasattr(self.pipeline, "predict_proba"):
            raise InputError("this model has no probabilities: train two classes with roc=True to calibrate it")
        from tasks.tracking.row_scores import encoded

        # A delivery may be empty.
        with cells_hidden():
            found, classes = encoded(self.pipeline, rows), list(self.pipeline.classes_)
        given = len(found.features)
        probabilities = found.rest.predict_proba(found.features) if given else np.empty((0, len(classes)))
        return pd.DataFrame(probabilities, columns=classes, index=index_of(rows))

    def predict_interval(self, rows: Any, coverage: float = 0.9) -> pd.DataFrame:
        """Return an interval for each row, of a model of a number whose errors on held-out rows were released.

        With probability 0.95 over noise and held-out rows, a new row drawn as these were has its label, clipped to the
        declared range, in its interval with at least the requested probability; for one coverage, chosen beforehand.
        Nothing is charged.

        Parameters
        ----------
        rows : as for :meth:`predict`
        coverage : float
            From 0.5 to below 1.

        Returns
        -------
        data frame
            ``prediction``, ``prediction_low`` and ``prediction_high``, within the declared range.

        Raises
        ------
        storage.errors.InputError
            If the model was logged without released errors.
        dpalgos.conformal.UnreachableError
            If the noise or the number of held-out rows does not admit the coverage: which one can be reached, and which
            ε the requested one needs.
        """
        return covered(self.pipeline, rows, interval=coverage)

    def predict_set(self, rows: Any, coverage: float = 0.9) -> pd.Series:
        """Return a set of classes for each row, of a classifier that was measured with ``roc=True``.

        With probability 0.95 over noise and held-out rows, for every class at once, a new row of this class drawn as
        the held-out ones were has it in its set with at least the requested probability; for one coverage, chosen
        beforehand. Nothing is charged. A set may hold no class.

        Parameters
        ----------
        rows : as for :meth:`predict`
        coverage : float
            From 0.5 to below 1.

        Returns
        -------
        series of lists of str

        Raises
        ------
        storage.errors.InputError, dpalgos.conformal.UnreachableError
            As for :meth:`predict_interval`.
        """
        found: pd.Series = covered(self.pipeline, rows, sets=coverage)["prediction_set"]
        return found

    def effects(self) -> pd.DataFrame:
        """Return the effect of each column on the score, from weights and released counts.

        No row is read, so this is free.

        Returns
        -------
        data frame
            One line per part of a number's range, or per value: ``column``, ``kind``, ``of``, ``low``, ``high``,
            ``rows`` (noisy; 95 % margin from ``rows_low`` to ``rows_high``) and the model's scores there, with the
            other columns at a reference. Columns with the largest effects come first. Its ``attrs`` hold ``note`` (how
            to read it), ``reference`` and ``pairs`` of columns by the weight of their products.

        Raises
        ------
        storage.errors.InputError
            If the model takes no declared columns.
        """
        return effects_frame(self.says)

    def explain(self, rows: Any, *, permutations: int = 256, seed: int = 0) -> pd.DataFrame:
        """Return why rows have their scores: what each column adds, a Shapley value with its standard error.

        As :func:`unitball.explain`, of this model.

        Parameters
        ----------
        rows : as for :meth:`predict`
        permutations, seed : int
            As of :func:`unitball.explain`.

        Raises
        ------
        storage.errors.InputError
            As :func:`unitball.explain` does.
        """
        from tasks.tracking.explanations import basis_of, require_explainable

        if self.pipeline is None or self.lineage is None:
            raise InputError(
                "each party has a separate model, which scikit-learn cannot represent; explain a joint model"
            )
        require_explainable(self.pipeline)
        with spoken_in_python(), using_root(self.root):
            basis = basis_of(self.lineage, self.result.proved)
        return explained(self.pipeline, basis, rows, permutations=permutations, seed=seed)

    def by_group(self) -> pd.DataFrame:
        """Return one line per group, of a run that was measured with ``by="column"``: its rates and their 95 % margins.

        ``rows`` is noisy, as all numbers of private rows are; ``<rate>_low`` and ``<rate>_high`` are a margin's ends. A
        rate that cannot be measured is nan, and ``<rate>_reason`` says why. If people are protected, ``rows`` and all
        rates count people.
        """
        of = self.result.by_group
        if of is None:
            raise InputError('this model was not evaluated by group: train on a table with by="column"')
        lines = {
            group: {**metrics, **{f"{name}_reason": why for name, why in metrics.reasons.items()}}
            for group, metrics in of.metrics.items()
        }
        return pd.DataFrame.from_dict(lines, orient="index").rename_axis(of.column)

    def group_differences(self) -> pd.DataFrame:
        """Return one line per pair of groups, of a run that was measured with ``by="column"``: differences of rates.

        A rate of the first group (``group``) less that of the second (``less``), with the ends of its 95 % margin. Each
        margin holds by itself: of many differences 5 % are expected to lie outside theirs. What cannot be measured is
        as in :meth:`by_group`.
        """
        of = self.result.by_group
        if of is None:
            raise InputError('this model was not evaluated by group: train on a table with by="column"')
        lines = [
            {"group": one.group, "less": one.less, **one.metrics}
            | {f"{name}_reason": why for name, why in one.metrics.reasons.items()}
            for one in of.differences
        ]
        # One group has no differences; those of noisy counts have no rate of the majority.
        others = ("rows",) if of.times is None else ("rows", "majority_rate")
        rates = [name for one in of.metrics.values() for name in one if not name.startswith(others)]
        names = None if lines else list(dict.fromkeys(["group", "less", *rates]))
        return pd.DataFrame(lines, columns=names).set_index(["group", "less"])

    def to_frame(self) -> pd.DataFrame:
        """Return the run as one line: algorithm, spending, what metrics weigh, and the metrics.

        A metric that cannot be measured is nan, and ``<metric>_reason`` says why.

        ``metrics_weigh`` is ``"rows"``, or ``"people"``: each person counts as one, however many rows they have, and
        what metrics are by row was not measured.
        """
        shown = ("algorithm", "dataset", "trust", "epsilon_spent", "delta_spent", "measured_on")
        facts = {name: getattr(self.result, name) for name in shown}
        dataset = self.result.identity.dataset
        metrics = self.result.metrics
        weigh = {"metrics_weigh": dataset.unit.several} if metrics else {}
        reasons = {f"{name}_reason": why for name, why in metrics.reasons.items()}
        return pd.DataFrame([{**facts, **weigh, **metrics, **reasons}])

    def __repr__(self) -> str:
        result = self.result
        metric, said = ("accuracy", "accuracy") if result.identity.dataset.classes else ("r2", "R²")
        where = f" on {result.measured_on}" if result.measured_on else ""
        return "\n".join(
            [
                f"{result.algorithm} on {result.dataset}, {result.trust}",
                f"{said} {shown_metric(result, metric)}{where}" if metric in result.metrics else "nothing was measured",
                f"proved: {self.guarantee or 'nothing'}{self.remembered and f'; {self.remembered}'}",
                *filter(None, [rests_on(result)]),
                repr(self.budget).split("\n")[0],
            ]
        )

    def _repr_html_(self) -> str:
        return str(self.to_frame()._repr_html_())


@spoken_in_python()
def train(
    dataset: Any = "digits",
    *,
    schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    name: str | None = None,
    root: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train, charge, evaluate and log one model; as ``unitball train``.

    No server is started. If the root is being served (``unitball serve``), the run is a flow run of that server and
    appears on its pages; otherwise the steps are plain calls.

    Parameters
    ----------
    dataset : str or data frame
        A registered data set, or a bundled one of scikit-learn. Or rows, with the label among their columns: a data
        frame of pandas or polars, an Arrow table, an object with an Arrow stream, a mapping of column to cells, a list
        of records. Columns that the schema does not name are not read. Rows are registered first, as ``unitball
        ingest`` registers a file. Equal rows under an equal schema are the existing version, and the same run on them
        is free.
    schema : mapping or path, optional
        With rows: what each column may hold (page The schema of a table).
    name : str, optional
        With rows: name of the data set and of its model.
    root : path, optional
        Default: ``UNITBALL_ROOT`` or the user's own folder.
    **settings
        Fields of :class:`tasks.planning.configuration.TrainingConfig`, as the command's options: ``algorithm``,
        ``epsilon``, ``delta``, ``trust``, ``parties``, …. With rows also ``account``, ``epsilon_cap``, ``delta_cap``,
        ``on_violation``, ``group_size``, ``disjoint_people``, ``allow_idealised``, ``relation``, and
        ``visibility="public"`` with ``not_derived``. Default of
        ``epsilon``: 1 for public rows, and for private rows if that run is already charged.

    Raises
    ------
    storage.errors.PriceError
        If private rows would be charged and no ``epsilon`` is given; the message has the price, and nothing is charged.
    storage.errors.RefusedError
        If an algorithm without proof would read private rows, or a cap would be exceeded; nothing is released.
    storage.errors.InputError, dpalgos.parameters.ParameterError
        For settings that do not fit.
    """
    # With scikit-learn, which whoever asks for a budget does without.
    from unitball.tables import TERMS, bring_in, require_given

    given = not isinstance(dataset, str)
    require_given(dataset, schema, name)
    terms = {key: settings.pop(key) for key in TERMS if given and key in settings}
    # What does not fit is refused before rows are registered.
    config = checked("train", TrainingConfig, {"dataset": name or "rows" if given else dataset, **settings})
    with using_root(root):
        with one_at_a_time(config.dataset) if given else nullcontext():
            dataset = bring_in("train", dataset, schema, name, terms) if given else dataset
            ensure_registered(config.dataset, config.public_dataset, config.tuned_on)
            stated = with_epsilon(config, find_dataset(config.dataset))
            if config.tuned_on is not None:
                # Prefect takes seconds.
                from flows.federated_training import choose

                stated = choose(stated).config
            prepared = require_feasible(stated)
        if config.epsilon is None and (price := price_of([prepared])) is not None:
            raise price.refusal(f"give epsilon={prepared.config.epsilon:g}")
        config = prepared.config
        with on_running_server(current_root()) as served:
            # Prefect takes seconds, and reads which server there is.
            from flows import federated_training
            from tasks.records import record
            from tasks.runtime.steps import inline
            from tasks.tracking.lineage import Lineage
            from tasks.tracking.reporting import run_report
            from tasks.tracking.runs import logging_afterwards

            recorded = None
            if served:
                with quick_flows():
                    recorded = federated_training.training(prepared)(config)
            # What a flow run has released is stored, and read again at no cost.
            with inline():
                with logging_afterwards(find_dataset(config.dataset)):
                    run = federated_training.chain(prepared)
                run = run._replace(result=recorded or record(config, *run))
            report, account = run_report(config, run), read_budget(dataset)
            model, place = report.model, MEMORY if root == MEMORY else str(current_root())
    return TrainedModel(
        result=run.result,
        pipeline=None if model is None else model.pipeline,
        budget=account,
        says=None if model is None else model.effects,
        remembered=IN_MEMORY_ALONE.format(account.account) if root == MEMORY and account.epsilon_cap else "",
        lineage=None if model is None else Lineage.model_validate_json(model.lineage),
        root=place,
    )


def effects_frame(found: Effects | None) -> pd.DataFrame:
    """Return effects as a data frame; InputError where a model has none."""
    if found is None:
        raise InputError(
            "effects need declared columns, each with a range or its values, and this model has none: declare a schema"
        )
    return found.to_frame()


@spoken_in_python()
def predict(
    model: str,
    rows: Any,
    *,
    interval: float | None = None,
    sets: float | None = None,
    root: str | os.PathLike[str] | None = None,
) -> pd.Series | pd.DataFrame:
    """Return a registered model's class (or number) for each row.

    Parameters
    ----------
    model : str
        ``NAME`` for the newest version, ``NAME@champion`` or ``NAME/version``, as in ``digits.noisy-gd``.
    rows : frame of the table's columns (see :func:`unitball.train`), or array (m, d) where the set has no schema
        Of images: the path of a folder, a list of paths, a data frame whose column ``image`` holds the bytes of
        files, or an array of numbers in [0, 1].
    interval, sets : float, optional
        A coverage, as for :meth:`TrainedModel.predict_interval` and :meth:`TrainedModel.predict_set`.
    root : path, optional

    Returns
    -------
    series, or data frame
        With ``interval`` or ``sets`` a data frame of the columns that ``unitball predict`` writes.

    Raises
    ------
    storage.errors.InputError
        If there is no such model, naming those there are, or a row does not fit the schema.
    """
    from tasks.tracking.model_files import load_model
    from tasks.tracking.model_versions import find_model

    with using_root(root):
        pipeline = load_model(current_root(), find_model(current_root(), model))
    if interval is not None or sets is not None:
        return covered(pipeline, rows, interval=interval, sets=sets)
    return predicted(pipeline, rows)


@spoken_in_python()
def explain(
    model: str,
    rows: Any,
    *,
    permutations: int = 256,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Return why rows have their scores: what each column adds, a Shapley value with its standard error.

    The values of a row add up to its score less the mean score of reference rows: of two classes the log-odds of the
    second one (its score, where no probabilities were calibrated), of more classes the score of the predicted one, of a
    number the prediction. Reference rows are drawn from released one-way counts, each column independently of the
    others; no private row is read, and nothing is charged or stored. See :mod:`dpalgos.shapley`.

    Parameters
    ----------
    model : str
        ``NAME`` for the newest version, ``NAME@champion`` or ``NAME/version``.
    rows : frame of the table's columns
        As of :func:`unitball.predict`.
    permutations : int
        Orders of the columns, an even number from 4 on, with half as many reference rows. Errors fall with its root.
    seed : int
        Public, at least 0.
    root : path, optional

    Returns
    -------
    data frame
        A line per row and column, the largest absolute values of a row first: ``row`` (of a pandas frame its index),
        ``of`` (which score), ``score``, ``mean`` (of the reference rows), ``column``, ``value``, ``share`` (of the sum
        of all absolute values of the row) and ``error``. Its ``attrs`` hold ``note`` (how to read it, and what it rests
        on), ``permutations``, ``seed``, and ``epsilon`` and ``delta`` of the model and the counts together.

    Raises
    ------
    storage.errors.InputError
        If there is no such model, a row does not fit the schema, the model takes no declared columns (images), or no
        counts of its columns are released, with the way to get them.
    dpalgos.parameters.ParameterError
        For a number of orders, or a seed, beyond its bounds.
    """
    from tasks.tracking.explanations import basis_of_model, require_explainable
    from tasks.tracking.model_files import load_model
    from tasks.tracking.model_versions import find_model

    with using_root(root):
        version = find_model(current_root(), model)
        pipeline = load_model(current_root(), version)
        require_explainable(pipeline)
        basis = basis_of_model(current_root(), version)
    return explained(pipeline, basis, rows, permutations=permutations, seed=seed)


@cells_hidden()
def explained(pipeline: Any, basis: Basis, rows: Any, *, permutations: int, seed: int) -> pd.DataFrame:
    """Return why rows have their scores by a model as it is logged, and warn of cells that were clipped."""
    from tasks.tracking.explanations import explaining_pipeline
    from tasks.tracking.row_scores import encoded
    from unitball.screen import warn_of_clipped

    explaining = explaining_pipeline(pipeline, basis, permutations=permutations, seed=seed)
    found = encoded(pipeline, rows)
    warn_of_clipped(found.clipped, "the schema")
    return explaining.frame(found.features, index_of(rows))


@cells_hidden()
def predicted(pipeline: Any, rows: Any) -> pd.Series:
    """Return a prediction for each row, and warn of cells that the schema does not admit and that were clipped."""
    # With scikit-learn, which a question about a budget does without.
    from storage.encoder import PictureEncoder
    from tasks.tracking.row_scores import encoded, predictions_of
    from unitball.screen import warn_of_clipped

    if isinstance(pipeline[0], PictureEncoder):
        return _predicted_pictures(pipeline, rows)
    found = encoded(pipeline, rows)
    warn_of_clipped(found.clipped, "the schema")
    return pd.Series(predictions_of(found.rest, found.features), index=index_of(rows), name="prediction")


def index_of(rows: Any) -> Any:
    """Return what a pandas frame calls its rows; None of other rows."""
    from storage.frames import find_frame

    frame = find_frame(rows)
    return None if frame is None else frame.index


@cells_hidden()
def covered(pipeline: Any, rows: Any, *, interval: float | None = None, sets: float | None = None) -> pd.DataFrame:
    """Return predictions with their intervals or sets at a coverage."""
    # With scikit-learn, which whoever asks for a budget does without.
    from tasks.tracking.coverings import Covering
    from tasks.tracking.row_scores import scores_of

    found = scores_of(pipeline, rows, covering=Covering(interval, sets))
    if (index := index_of(rows)) is not None:
        found.index = index
    return found


def _predicted_pictures(pipeline: Any, rows: Any) -> pd.Series:
    """Return a prediction for each image, of files under their paths."""
    from storage.readers.picture_files import asked_pictures
    from tasks.tracking.row_scores import predictions_of

    encoder, paths = pipeline[0], None
    index = rows.index if isinstance(rows, pd.Series) else index_of(rows)
    if isinstance(rows, (str, os.PathLike)):
        asked = list(asked_pictures(Path(rows), 4096))
        index, paths = [name for one in asked for name in one.names], [path for one in asked for path in one.paths]
    elif isinstance(rows, (list, tuple)) and rows and all(isinstance(one, (str, os.PathLike)) for one in rows):
        index = paths = [str(one) for one in rows]
    if paths is None:
        return pd.Series(predictions_of(pipeline, rows), index=index, name="prediction")
    encoding = encoder.encode_files(paths)
    if (bad := next((place for place, why in enumerate(encoding.refusals) if why is not None), None)) is not None:
        raise InputError(f"{paths[bad]}: {encoding.refusals[bad]}")
    return pd.Series(predictions_of(pipeline[1:], encoding.features), index=index, name="prediction")


@spoken_in_python()
def results(sql: str = "SELECT * FROM runs", *, root: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Return results of all runs of a root, or what DuckDB answers to a question about them, as a data frame.

    Parameters
    ----------
    sql : str
        Over the tables ``runs`` and ``metrics``.
    root : path, optional

    Raises
    ------
    storage.errors.InputError
        For a question that DuckDB does not understand, or that reads anything else.
    """
    from tasks.experiments.results import query_results

    with using_root(root):
        return pd.DataFrame(query_results(sql))


@spoken_in_python()
def frontier(
    dataset: str = "digits",
    *,
    algorithms: Sequence[str] = ("unitball", "noisy-gd", "unitball-without-noise"),
    epsilons: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 8.0),
    seeds: int = 3,
    root: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Train every algorithm at every budget and seed on a public data set; the runs of ``unitball frontier``.

    Parameters
    ----------
    dataset : str
        A registered public data set.
    algorithms : sequence of str
        Named systems.
    epsilons : sequence of float
    seeds : int
        Of noise and partition, from 0.
    root : path, optional
        ``UNITBALL_ROOT`` or the user's own by default.
    **settings
        What all runs have in common, as of :func:`unitball.train`.

    Returns
    -------
    data frame
        One line per run: ``algorithm``, ``epsilon`` (none without noise), ``seed``, and its metrics. Of synthetic rows
        ``attrs["rests_on"]`` says on which releases all runs rest.

    Raises
    ------
    storage.errors.RefusedError
        For a private data set: it would be many charged runs, with public seeds.
    """
    with using_root(root):
        ensure_registered(dataset)
        if find_dataset(dataset).private:
            raise RefusedError(
                f"{dataset} is private, and a frontier trains many runs with public seeds; give a public set"
            )
        from flows.federated_training import chain_inline
        from flows.sweep import frontier_sweep

        config = checked("frontier", TrainingConfig, {"dataset": dataset, **settings})
        spec = frontier_sweep(config, algorithms, epsilons, seeds)
        runs = [(point.config, chain_inline(point.config).result) for point in spec.points()]
    frame = pd.DataFrame(
        [
            {"algorithm": run.algorithm, "epsilon": requested.epsilon, "seed": requested.partition_seed, **run.metrics}
            for requested, run in runs
        ]
    )
    if on := synthetic_of([run for _, run in runs]):
        frame.attrs["rests_on"] = on
    return frame


def plot(runs: pd.DataFrame, x: str = "epsilon", y: str = "accuracy", ax: Axes | None = None) -> Axes:
    """Draw a number of runs against another, one line per algorithm: the mean, and the range of its runs.

    Where runs have the columns ``<y>_low`` and ``<y>_high``, bars are the means of these 95 % margins.

    Parameters
    ----------
    runs : data frame
        Of :func:`frontier`, or of :func:`unitball.results` with these columns.
    x, y : str
        Columns. Runs without an ``x``, such as those without noise, are level lines.
    ax : matplotlib axes, optional
        To draw on; new ones otherwise.

    Returns
    -------
    matplotlib axes
    """
    import matplotlib.pyplot as plt

    axes = plt.subplots()[1] if ax is None else ax
    for number, (algorithm, own) in enumerate(runs.dropna(subset=[y]).groupby("algorithm", sort=False)):
        colour = f"C{number}"
        if own[x].isna().all():
            axes.axhline(own[y].mean(), color=colour, linestyle="--", label=algorithm)
            continue
        spread = own.groupby(x)[y].agg(["mean", "min", "max"])
        axes.plot(spread.index, spread["mean"], color=colour, marker="o", label=algorithm)
        axes.fill_between(spread.index, spread["min"], spread["max"], color=colour, alpha=0.2)
        if {f"{y}_low", f"{y}_high"} <= set(own) and own[f"{y}_low"].notna().any():
            ends = own.groupby(x)[[f"{y}_low", f"{y}_high"]].mean()
            mean = spread["mean"]
            off = [(mean - ends[f"{y}_low"]).clip(lower=0), (ends[f"{y}_high"] - mean).clip(lower=0)]
            axes.errorbar(spread.index, mean, yerr=off, color=colour, fmt="none", capsize=3)
    if x.endswith("epsilon"):
        axes.set_xscale("log")
    axes.set(xlabel="privacy budget ε" if x.endswith("epsilon") else x, ylabel=y)
    axes.legend()
    return axes
