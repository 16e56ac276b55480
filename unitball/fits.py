"""Fit models on rows in memory: one plan, carried out in memory for public rows and by the door for private ones."""

import math
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dpalgos.accounting.composition import compose
from dpalgos.accounting.costs import allocate
from dpalgos.algorithms import fit
from dpalgos.column_maps import LearntColumns
from dpalgos.guarantees import GaussianMu, Loss, Numerics, PureEpsilon, Setting, Trust, rounded_up
from dpalgos.histograms import ColumnCounts
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import Statistic
from dpalgos.normalisation import RowMap
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import ArrayRows, Floats, Ints
from storage.errors import InputError, RefusedError
from storage.fingerprints import Fingerprints, drawn_versions, private_versions
from storage.layout import DRAWN, Layout
from storage.ledger.charges import PERSON
from storage.people import People, at_most, record_sizes
from storage.refs import DatasetRef, ReleaseRef, TableColumn, Visibility
from storage.secrets import root_secret
from tasks.accounts.ledger import require_account
from tasks.accounts.pricing import epsilon_of_person
from tasks.datasets.registration import RECOGNISED, accounts_of, find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import materialise
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.resolution import resolve
from tasks.planning.rows import Partition
from tasks.preparation.drawn import Drawn, drawn_behind
from tasks.preparation.paid_moments import NAME as MOMENTS
from tasks.preparation.partitions import positions_by_party, shards_of
from tasks.preparation.prepare import AllRows, prepare_over
from tasks.release.moments import LABEL, geometry, plan_moments
from tasks.release.preflight import require_feasible
from tasks.release.prices import price_of
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout, current_root
from tasks.runtime.stores import open_catalog, open_releases
from tasks.tracking.effects import counts_behind
from tasks.tracking.results import Proved, proved_of, proved_together
from unitball.guarantees import DRAWN_ROWS, IN_MEMORY_ALONE, NOT_REMEMBERED
from unitball.training import MEMORY, one_at_a_time, root_of_one_call, using_root
from unitball.wording import in_python

_IN_MEMORY = "rows in memory"
# Pays for one fit in a root that is removed with it.
_NO_ACCOUNT = "none"
# So many name a release for every command, and leave room in a terminal.
_KEY_DIGITS = 12


class BudgetError(BaseException):
    """A fit on private rows was refused; nothing was spent.

    Not an ``Exception``: scikit-learn's searches turn each of those into a score that is missing, and go on fitting.
    """


class Target(NamedTuple):
    """Labels as algorithms take them, with names of their classes or the range that holds them."""

    labels: NDArray[Any]
    classes: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """People whose rows are fitted on, where the unit is a person.

    Attributes
    ----------
    people : People
    names : array (m,) of str
    """

    people: People
    names: NDArray[Any]

    @property
    def records(self) -> int:
        """Number of people."""
        return len(np.unique(self.names))


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Encoded rows, and what is public of them.

    Attributes
    ----------
    features : array (m, d)
    target : Target
    grouped : Grouped or None
        None where each row is a separate record.
    columns : tuple of TableColumn
        Which features are which column's.
    normalisation : str
        The row-local map that comes before the releases.
    recognised_by : array (m, d'), optional
        What rows are recognised by (:meth:`storage.schema.Schema.plain`); the features where None.
    cells : callable, optional
        Gives what patterns are made of (:meth:`storage.schema.Schema.cells`).
    synthesis : str
        Key of the synthesis that draws the rows by the lineage that they carry; empty where they carry none.
    """

    features: Floats
    target: Target
    grouped: Grouped | None
    columns: tuple[TableColumn, ...]
    normalisation: str
    recognised_by: Floats | None = None
    cells: Callable[[Any], Any] | None = None
    synthesis: str = ""

    @property
    def records(self) -> int:
        """Rows, or people."""
        return len(self.target.labels) if self.grouped is None else self.grouped.records

    def divided(self, parts: Mapping[str, Ints]) -> dict[str, ArrayRows]:
        """Return the rows of each part, given by the positions of its records: all rows of a person go where it goes.

        Of people with more rows than are taken, the first are; each row says how many of them its person has.
        """
        features, labels = self.features, self.target.labels
        if self.grouped is None:
            everyone = np.arange(len(labels))
            return {
                name: ArrayRows(features, labels)
                if np.array_equal(chosen, everyone)
                else ArrayRows(features[chosen], labels[chosen])
                for name, chosen in parts.items()
            }
        whose = np.unique(self.grouped.names, return_inverse=True)[1].astype(np.int32)
        order = np.arange(len(whose), dtype=np.uint64)
        kept = at_most(whose, order, np.zeros(len(whose)), self.grouped.people.rows_per_person)
        counted = record_sizes(kept, self.records)
        rows = {}
        for name, chosen in parts.items():
            own = np.flatnonzero((kept >= 0) & np.isin(whose, chosen))
            rows[name] = ArrayRows(
                features[own],
                labels[own],
                shares=counted[own],
                people=len(chosen),
                places=np.searchsorted(np.sort(chosen), whose[own]),
            )
        return rows


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Result of a fit.

    Attributes
    ----------
    plan : RunPlan
    maps : list
        What an encoded row passes through before the model.
    model : LinearModel or KernelModel
    counts : ColumnCounts or None
        Behind a map of columns.
    statistics : mapping of key to Statistic
        What was released of the held-out rows.
    normalisation : str
    account : str
        Who pays.
    remembered : str
        What is to be said where no account remembers this fit, or not for long.
    """

    plan: RunPlan
    maps: list[Any]
    model: Any
    counts: ColumnCounts | None
    statistics: Mapping[str, Statistic]
    normalisation: str
    account: str
    remembered: str = ""

    @property
    def path(self) -> list[str]:
        """The keys of what a row passes through, the model's last."""
        (path,) = self.plan.paths().values()
        return path

    @property
    def charges(self) -> list[dict[str, Any]]:
        """Name, price, payer and first digits of the key of each release that reads rows."""
        return [
            charge_of(release, self._epsilon(release), self.account)
            for release in self.plan.releases
            if release.reads_rows
        ]

    def _epsilon(self, release: PlannedRelease) -> float:
        """Return what a release costs by itself, at the delta of the fit; infinite where nothing is proved."""
        proved, guarantee = proved_of(self.plan), release.guarantee()
        if proved is None or not guarantee.proved:
            return math.inf
        return rounded_up(compose(guarantee.losses).epsilon(proved.delta), 4)


def charge_of(release: PlannedRelease, epsilon: float, account: str) -> dict[str, Any]:
    """Return a line of ``charges_``: what a release is and costs, who pays, and the beginning of its key."""
    return {
        "epsilon": epsilon,
        "release": release.label,
        "loss": ", ".join(str(loss) for loss in release.guarantee().losses),
        "algorithm": release.name,
        "account": account,
        "key": release.key[:_KEY_DIGITS],
    }


def row_map(normalisation: str) -> RowMap:
    """Return a row-local normalisation as a function of rows."""
    return cast(RowMap, lookup("normalisations", normalisation)().learn(()))


def _planned(config: TrainingConfig, rows: Encoded) -> tuple[RunPlan, Partition]:
    """Plan a run over rows of which only public facts are known; nothing is opened, stored or charged.

    The rows are planned as private ones, whoever they are of, so that what is held out is counted with noise.

    Raises
    ------
    ParameterError
        For parameters that do not fit, a delta of 0 for what spends one among them.
    InputError
        If a part would have no rows.
    """
    people = None if rows.grouped is None else rows.grouped.people
    dataset = DatasetRef(
        **({} if people is None else {"person": people.column, "rows_per_person": people.rows_per_person}),
        name=_IN_MEMORY,
        version=_IN_MEMORY,
        account=_IN_MEMORY,
        visibility=Visibility.PRIVATE,
        rows=rows.records,
        test_rows=0,
        dimension=rows.features.shape[1],
        classes=rows.target.classes,
        label_range=rows.target.label_range,
        normalisation=rows.normalisation,
        columns=rows.columns if rows.normalisation == "none" else (),
    )
    if config.delta == 0:
        _require_pure(config, dataset)
    partition = Partition(
        name=_IN_MEMORY,
        rows=dataset,
        rule=AlgorithmSpec("partitions", "even", {"parties": 1, "seed": config.partition_seed}),
        files=(),
        fraction=config.test_fraction or 0.0,
        seed=config.partition_seed,
    )
    shards = shards_of(partition)
    held_out = () if shards.held_out is None else (shards.held_out,)
    return prepare_over(config, AllRows(training=shards.training, held_out=held_out)).plan, partition


def _require_pure(config: TrainingConfig, dataset: DatasetRef) -> None:
    parts = [lookup(part.kind, part.name) for part in resolve(config, dataset).parts.values()]
    if any(part.budgets[0] is not PureEpsilon for part in parts if getattr(part, "budgets", ())):
        raise ParameterError(
            f"{config.system} spends a delta, and delta is 0; give a delta above 0, or choose an algorithm of pure "
            "epsilon"
        )


def fit_in_memory(config: TrainingConfig, rows: Encoded, random_state: Any) -> Fitted:
    """Plan a run over public rows and carry it out, its noise from a public seed or drawn afresh."""
    plan, partition = _planned(config, rows)
    drawn = _drawn_among(rows)
    plan = drawn.under(plan)
    given = rows.divided({name: np.sort(chosen) for name, chosen in positions_by_party(partition).items()})
    mapped = {name: row_map(rows.normalisation)(part.features) for name, part in given.items()}
    secret = _secret_of(random_state)

    def make(node: PlannedRelease | PlannedCombination, inputs: list[Any]) -> Any:
        if isinstance(node, PlannedCombination):
            return node.combine(inputs)
        (part,) = node.parties
        seen = mapped[part]
        for one in inputs:
            seen = one.apply(seen)
        return fit(
            node.build().informed(inputs),
            [replace(given[part], features=seen)],
            node.setting,
            KeyedNoise(secret, node.key),
        )

    outputs = materialise(plan.nodes, make, at_hand=plan.partitions)
    (path,) = plan.paths().values()
    learnt, counts = None if plan.column_map is None else plan.column_map.build(), None
    if isinstance(learnt, LearntColumns) and plan.column_map is not None:
        counts = learnt.counts_of([outputs[key] for key in plan.column_map.upstream])
    *maps, model = (outputs[key] for key in path)
    return Fitted(
        plan=plan,
        maps=maps,
        model=model,
        counts=counts,
        statistics={one.key: outputs[one.key] for one in plan.evaluations},
        normalisation=rows.normalisation,
        account="none: the rows are public",
        remembered=DRAWN_ROWS.format(" and ".join(drawn.names)) if drawn.releases else "",
    )


def _drawn_among(rows: Encoded) -> Drawn:
    """Return what public rows rest on that carry a lineage or are found among those of derived sets of the root.

    A tenth of them, as at an ingestion; here no declaration overrides it, for there is nowhere to record one.

    Raises
    ------
    RefusedError
        If a release of the chain is not stored in the current root: no epsilon could be stated.
    """
    with using_root(None):
        # Nothing is made where there is no root yet.
        there = Layout(current_root()).marker.exists()
        versions = drawn_versions(layout := current_layout()) if there else []
        if not versions and not rows.synthesis:
            return Drawn()
        if rows.synthesis and (not there or not open_releases().exists(rows.synthesis)):
            raise RefusedError(
                f"the rows carry the lineage of synthesis {rows.synthesis[:12]}, which is not stored in the current "
                "root, so that no epsilon could be stated: set UNITBALL_ROOT to the root where they were drawn"
            )
        prints = Fingerprints(root_secret(layout), columns=False, cells=rows.cells)
        prints.add(rows.features if rows.recognised_by is None else rows.recognised_by)
        alike = {one for one in versions if prints.share_drawn(layout.dataset(one) / DRAWN) >= RECOGNISED}
        known = [DatasetRef.model_validate(one.manifest["reference"]) for one in open_catalog().registrations()]
        found = [one for one in known if one.version in alike]
        if rows.synthesis not in {"", *(one.synthesis for one in found)}:
            found += [one for one in known if one.synthesis == rows.synthesis][:1]
        return drawn_behind(found)


def _secret_of(random_state: Any) -> bytes:
    """Return what noise on public rows is drawn from: a public seed, or fresh bytes."""
    if random_state is None:
        return secrets.token_bytes(32)
    return public_secret(int(check_random_state(random_state).randint(2**31 - 1)))


def fit_through_the_door(
    config: TrainingConfig,
    rows: Encoded,
    account: str | None,
    *,
    root: str | os.PathLike[str] | None,
    disjoint_people: str,
    agreed: bool,
) -> Fitted:
    """Register encoded rows under an account and train on them as a flow does; the ledger is charged.

    Equal rows under equal parameters are the same release: it is charged once, whichever process asks. Fits on other
    rows of the account, folds and subsets among them, are other versions, whose charges add up.

    Parameters
    ----------
    config : TrainingConfig
    rows : Encoded
    account : str or None
        Who pays; without one the fit is charged to a separate account, which is forgotten.
    root : path, optional
        Whose ledger keeps the account.
    disjoint_people : str
    agreed : bool
        Whether the user has stated this epsilon; otherwise nothing is charged, and only what is stored is returned.

    Raises
    ------
    BudgetError
        If the account does not admit it, or the user has not agreed to the price; nothing is spent.
    ParameterError, InputError
        For what does not fit, an account that does not exist among it.
    """
    try:
        # What does not fit is refused before rows are registered.
        planned, _ = _planned(config, rows)
        if account is None:
            return _fit_once(config, rows, planned, agreed=agreed)
        with using_root(root):
            terms = _terms_of(account, people=rows.grouped is not None)
            fitted = _fitted(config, rows, account, {**terms, "disjoint_people": disjoint_people}, agreed=agreed)
            return replace(fitted, remembered=IN_MEMORY_ALONE.format(account) if root == MEMORY else "")
    except RefusedError as refusal:
        raise BudgetError(_in_estimators(str(refusal))) from None
    except (ParameterError, InputError) as error:
        raise error.saying(_in_estimators(str(error))) from None


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """Result of a fit of a basis.

    Attributes
    ----------
    planned : PlannedRelease
    statistic : Statistic
        The released moments.
    account : str
        Who pays.
    person : str
        The column that names the people who are protected; empty where a row is.
    remembered : str
        What is to be said where no account remembers this fit, or not for long.
    """

    planned: PlannedRelease
    statistic: Statistic
    account: str
    person: str
    remembered: str = ""

    @property
    def charges(self) -> list[dict[str, Any]]:
        """Name, price, payer and first digits of the key of the release."""
        alone = self.proved_with(self.planned.guarantee().losses)
        return [charge_of(self.planned, rounded_up(alone.epsilon, 4), self.account)]

    def proved_with(self, losses: tuple[Loss, ...]) -> Proved:
        """Return what is proved of the release composed with others: all their losses."""
        guarantee = self.planned.guarantee()
        proved = proved_together(
            {losses}, [guarantee], delta=self.planned.delta, trust=self.planned.trust.name, person=self.person
        )
        assert proved is not None, "Gaussian noise has a guarantee"
        return proved


def moments_in_memory(rows: Encoded, epsilon: float, delta: float, center: bool, random_state: Any) -> Reduced:
    """Form second moments of public rows, with noise from a public seed or drawn afresh.

    Raises
    ------
    RefusedError
        If the rows are drawn from releases: scores of public rows do not carry what they rest on.
    """
    if names := _drawn_among(rows).names:
        raise RefusedError(
            f"the rows are among the synthetic rows of {' and '.join(names)}, and scores do not carry the releases "
            f"that these are drawn from: train on them with unitball.train({names[0]!r}, …), which composes these"
        )
    records, width = rows.records, rows.features.shape[1]
    (budget,) = allocate([GaussianMu], [1.0], epsilon, delta).losses
    people = 1 if rows.grouped is None else rows.grouped.people.rows_per_person
    trust = AlgorithmSpec("trusts", str(Trust.CENTRAL))
    planned = PlannedRelease(
        label=LABEL,
        code="",
        dataset=_IN_MEMORY,
        partition=_IN_MEMORY,
        replicate=0,
        seed=None,
        upstream=(),
        algorithm=AlgorithmSpec("evaluators", MOMENTS, {**geometry(rows.columns, width), "center": center}),
        budget=budget,
        setting=Setting(sizes=(records,), dimension=width, classes=1, trust=trust.name, rows_per_person=people),
        trust=trust,
        parties=("0",),
        account=_IN_MEMORY,
        delta=delta,
    )
    # In the precision in which a root stores rows.
    stored = replace(rows, features=cast(Floats, rows.features.astype(np.float32)))
    (given,) = stored.divided({"0": np.arange(records)}).values()
    noise = KeyedNoise(_secret_of(random_state), planned.key)
    released = fit(planned.build(), [given], planned.setting, noise)
    return Reduced(
        planned=planned,
        statistic=cast(Statistic, released),
        account="none: the rows are public",
        person=_person(rows),
    )


def moments_through_the_door(
    rows: Encoded,
    account: str | None,
    *,
    epsilon: float,
    delta: float,
    center: bool,
    replicate: int,
    root: str | os.PathLike[str] | None,
    disjoint_people: str,
    agreed: bool,
) -> Reduced:
    """Register encoded rows under an account and release their second moments; the ledger is charged.

    Equal rows under equal parameters are the same release, for any later use.

    Parameters
    ----------
    rows : Encoded
    account : str or None
        Who pays; without one the release is charged to a separate account, which is forgotten.
    epsilon, delta : float
    center : bool
        Whether moments are about a released mean.
    replicate : int
    root : path, optional
    disjoint_people : str
    agreed : bool
        Whether the user has stated this epsilon.

    Raises
    ------
    BudgetError
        If the account does not admit it, or the user has not agreed to the price; nothing is spent.
    ParameterError, InputError
        For what does not fit.
    """

    def reduced(name: str, terms: Mapping[str, Any]) -> Reduced:
        called = f"{name}.fits"
        with one_at_a_time(called):
            with _requested(called, name, rows, terms) as request:
                ingest(request)
            dataset = find_dataset(called)
            plan = plan_moments(dataset, epsilon, delta=delta, center=center, replicate=replicate)
        if not agreed and (price := plan.price) is not None:
            raise price.refusal(f"give epsilon={epsilon:g}")
        statistic = read_release(plan.make())
        return Reduced(planned=plan.planned, statistic=statistic, account=name, person=_person(rows))

    try:
        if account is not None:
            with using_root(root):
                terms = _terms_of(account, people=rows.grouped is not None)
                made = reduced(account, {**terms, "disjoint_people": disjoint_people})
                return replace(made, remembered=IN_MEMORY_ALONE.format(account) if root == MEMORY else "")
        _require_unknown(rows)
        if not agreed:
            raise RefusedError(
                f"nothing was released; the price is epsilon {epsilon:g} at delta {delta:g}, and no account records "
                f"it: give epsilon={epsilon:g}, and account= if you have one"
            )
        with root_of_one_call():
            once = reduced(_NO_ACCOUNT, {"epsilon_cap": epsilon, "delta_cap": delta})
            return replace(once, remembered=NOT_REMEMBERED)
    except RefusedError as refusal:
        raise BudgetError(_in_estimators(str(refusal))) from None
    except (ParameterError, InputError) as error:
        raise error.saying(_in_estimators(str(error))) from None


def _person(rows: Encoded) -> str:
    return "" if rows.grouped is None else rows.grouped.people.column


def _in_estimators(text: str) -> str:
    return in_python(text).replace("replicate", "repetition")


def _fit_once(config: TrainingConfig, rows: Encoded, planned: RunPlan, *, agreed: bool) -> Fitted:
    """Fit without an account that outlives the call.

    Raises
    ------
    RefusedError
        If an account of the current root knows these rows, what is planned needs the consent that an account holds, or
        the user has not agreed to the price.
    """
    _require_proved_and_exact(planned)
    _require_unknown(rows)
    if not agreed:
        cost, of = epsilon_of_person(planned, 1), "a row" if rows.grouped is None else "a person"
        raise RefusedError(
            f"nothing was released; the price of this fit is epsilon {rounded_up(cost, 4):g} at delta "
            f"{config.stated_delta:g} for {of}, and no account records it: give epsilon={config.epsilon:g}, and "
            "account= if you have one"
        )
    with root_of_one_call():
        terms = {"epsilon_cap": config.epsilon, "delta_cap": config.stated_delta}
        return replace(_fitted(config, rows, _NO_ACCOUNT, terms, agreed=True), remembered=NOT_REMEMBERED)


def _require_unknown(rows: Encoded) -> None:
    """Refuse rows that an account of the current root knows, where none is named."""
    if accounts := _accounts_of(rows):
        raise RefusedError(
            f"these rows are private rows of account {', '.join(map(repr, accounts))}, and a fit without an account "
            f"is not recorded there; give account={accounts[0]!r}, or, if the people differ, a separate account and "
            'disjoint_people="reason"'
        )


def _accounts_of(rows: Encoded) -> tuple[str, ...]:
    """Return the accounts of the current root that know some of these rows."""
    with using_root(None):
        # Nothing is made where there is no root yet.
        if not Layout(current_root()).marker.exists() or not private_versions(current_layout()):
            return ()
        with _requested(_NO_ACCOUNT, _NO_ACCOUNT, rows, {}) as request:
            return accounts_of(request)


def _fitted(config: TrainingConfig, rows: Encoded, account: str, terms: Mapping[str, Any], *, agreed: bool) -> Fitted:
    """Bring rows in, plan, charge and make the run in the current root."""
    named = config.model_copy(update={"dataset": f"{account}.fits"})
    with one_at_a_time(named.dataset):
        with _requested(named.dataset, account, rows, terms) as request:
            ingest(request)
        prepared = require_feasible(named)
    if not agreed and (price := price_of([prepared])) is not None:
        raise price.refusal(f"give epsilon={config.epsilon:g}")
    # Prefect takes seconds.
    from flows.federated_training import chain
    from tasks.runtime.steps import inline

    with inline():
        chained = chain(prepared)
    (references,) = chained.models.values()
    *maps, model = (read_release(reference) for reference in references)
    return Fitted(
        plan=chained.plan,
        maps=maps,
        model=model,
        counts=counts_behind(references),
        statistics={
            one.key: read_release(ReleaseRef(key=one.key, kind=Statistic.kind, party=one.owner))
            for one in chained.plan.evaluations
        },
        normalisation=chained.dataset.normalisation,
        account=account,
    )


@contextmanager
def _requested(name: str, account: str, rows: Encoded, terms: Mapping[str, Any]) -> Iterator[IngestRequest]:
    """Write encoded rows below the current root for as long as they are read; yield what asks to register them."""
    target, people = rows.target, None if rows.grouped is None else rows.grouped.people
    with tempfile.TemporaryDirectory(dir=current_layout().private, prefix="fit-") as folder:
        path = Path(folder, "rows.parquet")
        width = rows.features.shape[1]
        numbers = pa.FixedSizeListArray.from_arrays(pa.array(rows.features.astype(np.float32).ravel()), width)
        kind = pa.string() if target.classes else pa.float64()
        column = np.take(target.classes, target.labels) if target.classes else target.labels
        whose = {} if rows.grouped is None else {rows.grouped.people.column: pa.array(rows.grouped.names, pa.string())}
        pq.write_table(pa.table({**whose, "features": numbers, "label": pa.array(column, kind)}), path)
        yield IngestRequest(
            **terms,
            name=name,
            format="parquet",
            path=path,
            account=account,
            dimension=width,
            classes=target.classes or None,
            label_range=target.label_range,
            people=people,
            columns=rows.columns,
        )


def _terms_of(account: str, *, people: bool) -> dict[str, Any]:
    """Return what is said of the account that pays.

    Raises
    ------
    InputError
        If there is none of this name in the current root, naming those there are.
    RefusedError
        If it is of another unit.
    """
    known = require_account(account)
    if (known.unit == PERSON) != people:
        way = (
            "for other rows open an account of people: open_account(…, people=True)"
            if people
            else "name the person of each row: fit(…, groups=…)"
        )
        raise RefusedError(f"account {account!r} has the unit {known.unit}, which is fixed; {way}")
    return {"group_size": known.group_size}


def _require_proved_and_exact(planned: RunPlan) -> None:
    """Refuse what only an account's owner admits of private rows.

    Raises
    ------
    RefusedError
    """
    guarantees = {release.name: release.guarantee() for release in planned.releases}
    for name, guarantee in guarantees.items():
        if not guarantee.proved:
            raise RefusedError(
                f"{name} is not proved, and the rows are private; choose a proved algorithm. The reason: "
                f"{guarantee.reason}"
            )
    for name, guarantee in guarantees.items():
        if guarantee.numerics is Numerics.IDEALISED:
            raise RefusedError(
                f"{name} is proved in real arithmetic only (idealised), which an account must allow: "
                "unitball.open_account(…, epsilon=…, delta=…, allow_idealised=True) and account=…; or choose an exact "
                "algorithm, such as algorithm='noisy-gd'"
            )
