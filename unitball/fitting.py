"""One fit of an estimator: planned as any run is; private rows go through the door, public ones stay in memory."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpalgos.algorithms import fit
from dpalgos.errors import ParameterError
from dpalgos.guarantees import PureEpsilon
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.normalisation import RowMap
from dpalgos.registry import lookup
from dpalgos.rows import ArrayRows, Floats
from storage.errors import InputError, RefusedError
from storage.ledger.accounts import PERSON
from storage.ledger.charges import Cap
from storage.people import People, at_most, shares
from storage.refs import DatasetRef, ShardRef, Visibility
from tasks.planning.configuration import TrainingConfig
from tasks.planning.planner import plan_run
from tasks.planning.plans import Node, PlannedCombination, RunPlan, carry_out
from tasks.planning.resolution import resolve_normalisation
from unitball.roots import charged_root, opened

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

    made = carry_out(plan.training, make)
    (path,) = plan.paths().values()
    return Fit(
        plan=plan,
        artefacts=tuple(made[key] for key in path),
        normalisation=normalisation,
        charges=_charges(plan, "none: the rows are public"),
    )


def row_map(normalisation: str) -> RowMap:
    """Return a row-local normalisation as a function of rows."""
    found: RowMap = lookup("normalisations", normalisation)().learn(())
    return found


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
            asked = (classes, label_range, account, root is not None, pure, grouped, disjoint_people)
            return _through_the_door(config, features, labels, *asked)
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
    from tasks.release.preflight import require_feasible
    from tasks.release.storing import read_release
    from tasks.runtime.settings import current_layout
    from tasks.runtime.stores import open_catalog

    population = account or DEFAULT_ACCOUNT
    known = open_catalog().account(population)
    if known is not None and (known.unit == PERSON) != (grouped is not None):
        way = "say whose rows they are: fit(…, groups=…)" if grouped is None else "open one of people for others"
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
            f"{config.algorithm or config.trainer} spends a delta and delta is 0; choose a delta, or an "
            "algorithm of pure epsilon"
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
