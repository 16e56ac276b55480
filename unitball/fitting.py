"""One fit of an estimator, planned as any run is, and the root and accounts that the calls of a notebook work on."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpalgos.accounting.filters import RESERVED
from dpalgos.algorithms import fit
from dpalgos.errors import ParameterError
from dpalgos.guarantees import PureEpsilon
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.normalisation import RowMap
from dpalgos.registry import lookup
from dpalgos.rows import ArrayRows, Floats
from storage.errors import InputError, RefusedError
from storage.ledger.accounts import PERSON, ROW
from storage.ledger.charges import Cap
from storage.people import People, at_most, shares
from storage.refs import DatasetRef, ShardRef, Visibility
from tasks.accounts.budget import budget_report, open_ledger
from tasks.planning.configuration import TrainingConfig
from tasks.planning.planner import plan_run
from tasks.planning.plans import Node, PlannedCombination, RunPlan, carry_out
from tasks.planning.resolution import resolve_normalisation
from tasks.runtime.settings import ROOT_VARIABLE, isolated_root, restoring
from tasks.runtime.stores import open_catalog

PROCESS = secrets.token_hex(16)
"""Names this process, so that what was made in another one is known to be."""
# A root is the environment's, which belongs to the whole process.
_LOCK = threading.RLock()
_PROCESS_ROOTS: dict[int, Path] = {}


@contextmanager
def using_root(root: str | os.PathLike[str] | None) -> Iterator[None]:
    """Work on a root; where none is named, on ``UNITBALL_ROOT`` or the user's own.

    Calls of several threads wait for each other.
    """
    with _LOCK, restoring(ROOT_VARIABLE):
        if root is not None:
            os.environ[ROOT_VARIABLE] = str(Path(root).expanduser().resolve())
        yield


@contextmanager
def process_root() -> Iterator[None]:
    """Work on the root of this process: its accounts hold for all who spend from them here, and end with it.

    Raises
    ------
    RefusedError
        In a process that another one has started: each would have a ledger of its own, and spend the same cap again.
    """
    if multiprocessing.parent_process() is not None or multiprocessing.current_process().name != "MainProcess":
        raise RefusedError(other_process("this one was started by another"))
    with _LOCK:
        number = os.getpid()
        if number not in _PROCESS_ROOTS:
            if _PROCESS_ROOTS:
                raise RefusedError(other_process("this one is a copy of another"))
            folder = Path(tempfile.mkdtemp(prefix="unitball-"))
            _PROCESS_ROOTS[number] = folder
            atexit.register(_remove, number, folder)
        with isolated_root(_PROCESS_ROOTS[number] / "root"):
            yield


def charged_root(root: str | os.PathLike[str] | None) -> AbstractContextManager[None]:
    """Return the root whose ledger is charged: the one that is named, or that of this process alone."""
    return process_root() if root is None else using_root(root)


def other_process(what: str) -> str:
    """Return why an account without a root is of one process, and the way out."""
    return (
        f"the budget of private rows is kept in one process, and {what}; give root=FOLDER, whose ledger all processes "
        "charge, or leave n_jobs at 1"
    )


def _remove(number: int, folder: Path) -> None:
    # A fork runs its parent's exit handlers, too.
    if os.getpid() == number:
        shutil.rmtree(folder, ignore_errors=True)


def open_account(
    name: str,
    *,
    epsilon: float,
    delta: float,
    root: str | os.PathLike[str] | None = None,
    allow_idealised: bool = False,
    people: bool = False,
    group_size: int = 1,
) -> None:
    """Open the account of a population for estimators: what all fits on its rows together may spend.

    Called again with the same arguments, it changes nothing.

    Parameters
    ----------
    name : str
        Of the population, as estimators name it (``account=``).
    epsilon, delta : float
        The cap; delta below one over the number of rows.
    root : path, optional
        Whose ledger keeps the account. None: this process, and the account ends with it. That is for trying things
        out: rows whose account is forgotten have their whole budget again.
    allow_idealised : bool
        Admit algorithms that are proved in real arithmetic only.
    people : bool
        What is protected is a person with all rows, and no single row, for good; ``fit(…, groups=…)`` or a schema's
        column of type ``person`` says whose they are.
    group_size : int
        The most rows that one person has, where rows are protected; the account then counts what a person loses.

    Raises
    ------
    storage.errors.InputError
        If it exists with another cap or unit, or the cap bounds nothing.
    """
    with charged_root(root):
        terms = {"allow_idealised": allow_idealised, "people": people}
        opened(name, Cap(epsilon=epsilon, delta=delta), **terms, group_size=group_size)


def opened(name: str, cap: Cap, *, allow_idealised: bool = False, people: bool = False, group_size: int = 1) -> None:
    """Open an account in the current root."""
    open_ledger().open_account(
        name,
        cap,
        idealised_allowed=allow_idealised,
        deltas={"reserved": RESERVED},
        unit=PERSON if people else ROW,
        group_size=group_size,
    )


def _report(name: str) -> Mapping[str, Any] | None:
    """Return what is said of an account by its name, in the current root; None where there is none."""
    catalog = open_catalog()
    account = catalog.account(name)
    if account is None:
        return None
    paying = [one.name for one in catalog.datasets() if one.account == name]
    if paying:
        return budget_report(paying[0])
    cap = account.cap
    left = None if cap is None else cap.epsilon
    return {"account": name, "cap": cap and asdict(cap), "epsilon_spent": 0.0, "epsilon_left": left, "parties": []}


def budget(dataset: str, *, root: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Return what an account has spent, a line a party.

    Parameters
    ----------
    dataset : str
        A registered data set, or an account, such as an estimator's.
    root : path, optional
        ``UNITBALL_ROOT`` or the user's own by default; for an account that is not there, the one of this process.

    Returns
    -------
    data frame
        ``party``, ``epsilon_spent`` (at ``delta``), ``releases``. Its ``attrs`` hold what is of the whole account:
        ``account``, ``cap``, ``epsilon_spent``, ``epsilon_left``, ``filter``, ``relation``, ``unit``.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set or account.
    """
    report: Mapping[str, Any] | None = None
    if root is None and os.getpid() in _PROCESS_ROOTS:
        with process_root():
            report = _report(dataset)
    with using_root(root):
        # Otherwise it says which data sets there are.
        report = report or _report(dataset) or budget_report(dataset)
    table = pd.DataFrame(
        [
            {
                "party": party["party"],
                "epsilon_spent": party["epsilon_spent"],
                "delta": party["delta_spent"],
                "releases": len(party["charges"]),
            }
            for party in report["parties"]
        ],
        columns=["party", "epsilon_spent", "delta", "releases"],
    )
    table.attrs |= {name: value for name, value in report.items() if name not in ("parties", "dataset")}
    return table


_PUBLIC = "public rows"
# Where nothing names an account or opens it, it holds what one fit costs.
DEFAULT_ACCOUNT = "unnamed"


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


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a fit leaves.

    Attributes
    ----------
    plan : RunPlan
    artefacts : tuple
        What an encoded row passes through, the model last.
    normalisation : str
    charges : data frame
        A line a release: its label, its loss, to which account it was charged.
    """

    plan: RunPlan
    artefacts: tuple[Any, ...]
    normalisation: str
    charges: pd.DataFrame


def fit_public(
    config: TrainingConfig,
    features: Floats,
    labels: Any,
    *,
    classes: Sequence[str],
    label_range: tuple[float, float] | None,
    seed: int | None,
    grouped: Grouped | None = None,
) -> Fit:
    """Plan a run over public rows and carry it out in memory.

    Parameters
    ----------
    config : TrainingConfig
    features : array (m, d)
    labels : array (m,)
        Class indices, or real targets.
    classes : sequence of str
        Empty for real targets.
    label_range : (float, float) or None
    seed : int or None
        Of the noise; drawn afresh where there is none.
    grouped : Grouped, optional
        Whose rows they are.

    Raises
    ------
    ParameterError, InputError
        For parameters that do not fit.
    """
    normalisation = resolve_normalisation(config, None)
    records = len(features) if grouped is None else grouped.records
    whose = (
        {} if grouped is None else {"person": grouped.people.column, "rows_per_person": grouped.people.rows_per_person}
    )
    dataset = DatasetRef(
        **whose,
        name=_PUBLIC,
        version=_PUBLIC,
        account=_PUBLIC,
        visibility=Visibility.PUBLIC,
        rows=records,
        test_rows=0,
        dimension=features.shape[1],
        classes=tuple(classes),
        label_range=label_range,
        normalisation=normalisation,
    )
    plan = plan_run(config, [ShardRef(dataset=dataset, partition=_PUBLIC, party="0", rows=records)])
    given = ArrayRows(features, labels) if grouped is None else grouped.weighed(features, labels)
    mapped = row_map(normalisation)(given.features)
    secret = secrets.token_bytes(32) if seed is None else public_secret(seed)

    def make(key: str, node: Node, inputs: list[Any]) -> Any:
        if isinstance(node, PlannedCombination):
            return node.combine(inputs)
        seen = mapped
        for one in inputs:
            seen = one.apply(seen)
        return fit(node.build(), [replace(given, features=seen)], node.setting, KeyedNoise(secret, key))

    outputs = carry_out(plan.training, make)
    (path,) = plan.paths().values()
    return Fit(
        plan=plan,
        artefacts=tuple(outputs[key] for key in path),
        normalisation=normalisation,
        charges=_charges(plan, "none: the rows are public"),
    )


def row_map(normalisation: str) -> RowMap:
    """Return a row-local normalisation as a function of rows."""
    learnt: RowMap = lookup("normalisations", normalisation)().learn(())
    return learnt


def fit_private(
    config: TrainingConfig,
    features: Floats,
    labels: Any,
    *,
    classes: Sequence[str],
    label_range: tuple[float, float] | None,
    account: str | None,
    root: str | os.PathLike[str] | None,
    pure: bool,
    grouped: Grouped | None = None,
    disjoint_people: str = "",
) -> Fit:
    """Register encoded rows under an account and train on them as a flow does; the ledger is charged.

    Equal rows under equal parameters are the same release: it is charged once.

    Parameters
    ----------
    config : TrainingConfig
        Its data set is named after the account.
    features : array (m, d)
        Encoded from declarations alone.
    labels, classes, label_range
        As in :func:`fit_public`.
    account : str or None
    root : path or None
        Whose ledger is charged; that of this process where there is none.
    pure : bool
        Refuse what would spend a delta.
    grouped : Grouped, optional
        Whose rows they are.
    disjoint_people : str
        The reason why their people are others than those of other accounts, where that is declared.

    Raises
    ------
    BudgetError
        If the account does not admit the run, or something unproved would read the rows.
    ParameterError, InputError
        For parameters that do not fit.
    """
    try:
        with charged_root(root):
            settings = (classes, label_range, account, root is not None, pure, grouped, disjoint_people)
            return _through_the_door(config, features, labels, *settings)
    except RefusedError as refusal:
        # The ways out in the words of Python.
        words = re.sub(r"--account (\S+?)(?=,|$)", r"account='\1'", str(refusal))
        raise BudgetError(words.replace('--disjoint-people "', 'disjoint_people="')) from None


def _through_the_door(
    config: TrainingConfig,
    features: Floats,
    labels: Any,
    classes: Sequence[str],
    label_range: tuple[float, float] | None,
    account: str | None,
    kept: bool,
    pure: bool,
    grouped: Grouped | None,
    disjoint_people: str,
) -> Fit:
    from tasks.datasets.registration import ingest
    from tasks.datasets.request import IngestRequest
    from tasks.release.door import read_release
    from tasks.release.preflight import require_feasible
    from tasks.runtime.settings import current_layout
    from tasks.runtime.stores import open_catalog

    population = account or DEFAULT_ACCOUNT
    known = open_catalog().account(population)
    if known is not None and (known.unit == PERSON) != (grouped is not None):
        way = (
            "say whose rows they are: fit(…, groups=…)"
            if grouped is None
            else "other rows may go to one of people: open_account(…, people=True)"
        )
        raise RefusedError(f"account {population!r} is of unit {known.unit}, for good; {way}")
    if known is None:
        if kept:
            raise InputError(
                f"this root has no account {population!r}; open it: "
                f"unitball.open_account({population!r}, epsilon=…, delta=…, root=…)"
            )
        cap = Cap(epsilon=cast(float, config.epsilon), delta=0.0 if pure else config.stated_delta)
        opened(population, cap, people=grouped is not None)
    named = config.model_copy(update={"dataset": f"{population}.fits"})
    with tempfile.TemporaryDirectory(dir=current_layout().private, prefix="fit-") as folder:
        path = Path(folder, "rows.parquet")
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.astype(np.float32).ravel()), features.shape[1])
        kind = pa.string() if classes else pa.float64()
        column = [classes[int(label)] for label in labels] if classes else labels
        whose = {} if grouped is None else {grouped.people.column: pa.array(grouped.names, pa.string())}
        pq.write_table(pa.table({**whose, "features": lists, "label": pa.array(column, kind)}), path)
        stored = ingest(
            IngestRequest(
                name=named.dataset,
                format="parquet",
                path=path,
                account=population,
                dimension=features.shape[1],
                classes=tuple(classes) or None,
                label_range=label_range,
                people=None if grouped is None else grouped.people,
                group_size=1 if known is None else known.group_size,
                disjoint_people=disjoint_people,
            )
        )
    if pure:
        _require_pure(named, stored)
    require_feasible(named)
    from flows.federated_training import chain_inline

    chained = chain_inline(named)
    (references,) = chained.models.values()
    return Fit(
        plan=chained.plan,
        artefacts=tuple(read_release(reference) for reference in references),
        normalisation=chained.dataset.normalisation,
        charges=_charges(chained.plan, population),
    )


def _require_pure(config: TrainingConfig, dataset: DatasetRef) -> None:
    from tasks.planning.resolution import resolve

    parts = [lookup(part.kind, part.name) for part in resolve(config, dataset).parts.values()]
    budgets = [part.budgets for part in parts if getattr(part, "budgets", ())]
    if any(accepted[0] is not PureEpsilon for accepted in budgets):
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
