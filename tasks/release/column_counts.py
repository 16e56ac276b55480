"""Histograms of a version's columns as releases: planned, priced, paid once on the account, and found again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from dpalgos.accounting.costs import allocate
from dpalgos.evaluators.column_histograms import ColumnHistograms, bins_for
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.histograms import ColumnCounts
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.datasets import origins
from storage.errors import InputError, OverspendError, RefusedError
from storage.refs import DatasetRef, ReleaseRef
from tasks.accounts.ledger import open_ledger
from tasks.accounts.room import OneMore, largest_that_fits
from tasks.accounts.terms import gaussian_delta, opening_cap, relation_of
from tasks.datasets.registration import find_dataset
from tasks.datasets.scales import declared_schema
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import Partition
from tasks.preparation.paid_counts import NAME, counted_columns
from tasks.preparation.partitions import make_partition, plan_partition, shards_of
from tasks.release.admission import admit, request_for, require_admissible
from tasks.release.door import make_release
from tasks.release.prices import DESCRIPTION_EPSILON, Price, price_of_requests
from tasks.release.storing import read_release, stored_release
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog

_RUN = "histograms of the columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsPlan:
    """One release of all columns' histograms, over every row of a version that is in no test file.

    Attributes
    ----------
    dataset : DatasetRef
        The registered version.
    partition : Partition
        Whose rows are whose: of all rows one party's, or by the parties' own files.
    planned : PlannedRelease
        Its algorithm, budget and setting are all that decoding takes, and its manifest has them.
    epsilon : float
        At the plan's delta, for a row or a person.
    """

    dataset: DatasetRef
    partition: Partition
    planned: PlannedRelease
    epsilon: float

    @property
    def paid(self) -> bool:
        """Whether it is charged already, and costs nothing more; what was stopped then is made with the same noise.

        What an older ledger has forgotten is charged again, as releases of runs are.
        """
        return open_ledger().is_charged(self.planned.key)


def version_of(name: str, version: str | None = None) -> DatasetRef:
    """Return a registered version of a data set; the newest where none is named.

    Raises
    ------
    InputError
        If there is none, naming those that there are.
    """
    newest = find_dataset(name)
    if version in (None, newest.version):
        return newest
    known = {one.version: one for one in open_catalog().registrations(name)}
    if version not in known:
        raise InputError(
            f"{name} has no version {version!r}; it has, from the oldest on: {', '.join(known)} "
            "(`unitball datasets --json` names the newest)"
        )
    return DatasetRef.model_validate(known[version].manifest["reference"])


def plan_counts(
    dataset: DatasetRef, epsilon: float | None = None, *, delta: float | None = None, trust: str | None = None
) -> CountsPlan:
    """Return the plan of the histograms of a version's columns; no row is read and nothing is charged.

    Counts go through running sums and means are taken from them: with sums of centred cells beside the counts, of as
    narrow a margin as theirs (weight 1), all other margins would be 8 to 13 % wider, for n = 300 to 84,000 rows of 6 to
    15 columns. The number of bins is :func:`~dpalgos.evaluators.column_histograms.bins_for` of n, d and μ.

    Parameters
    ----------
    dataset : DatasetRef
        As registered.
    epsilon : float, optional
        Above 0, at delta; :data:`~tasks.release.prices.DESCRIPTION_EPSILON` where None.
    delta : float, optional
        What a run of Gaussian losses alone takes of the account's cap where None
        (:func:`~tasks.accounts.terms.gaussian_delta`); 1e-5 of public rows.
    trust : str, optional
        Of several parties' own files: local where None. One party's rows are its own curator's.

    Raises
    ------
    InputError
        If the version has no declared columns, or Gaussian noise has no delta.
    ParameterError
        For numbers beyond their bounds, or a trust model that does not admit it.
    """
    declared_schema(dataset)
    epsilon = DESCRIPTION_EPSILON if epsilon is None else epsilon
    named = TrainingConfig(dataset=dataset.name, epsilon=epsilon, delta=delta, test_fraction=0.0, evaluation=False)
    if not (several := bool(origins(current_layout(), dataset))):
        named = named.model_copy(update={"partition": "even", "parties": 1})
    cap = opening_cap(dataset.name)
    if delta is None and cap is not None:
        named = named.model_copy(update={"delta": gaussian_delta(cap.delta)})
    if not named.stated_delta > 0:
        raise InputError(
            f"histograms take Gaussian noise, which has a delta, and here delta is {named.stated_delta:g}: "
            f"give --delta, below that of the cap of account {dataset.account}"
        )
    partition = plan_partition(dataset, named)
    shards = shards_of(partition).training
    (budget,) = allocate([GaussianMu], [1.0], epsilon, named.stated_delta).losses
    chosen = AlgorithmSpec("trusts", trust or str(Trust.LOCAL) if several else str(Trust.CENTRAL))
    if trust is not None and not several:
        raise InputError(
            f"{dataset.name} has one party's rows, which are counted by their own curator; leave --trust out, or "
            f"ingest the parties' own files: unitball ingest {dataset.name} --party PARTY=PATH"
        )
    model = lookup(chosen.kind, chosen.name)
    factor = chosen.build().noise_factor(len(shards))
    mu = cast(GaussianMu, budget).mu / factor
    columns = counted_columns(dataset)
    parameters: dict[str, object] = {
        "columns": columns,
        "bins": bins_for(dataset.rows, len(columns) + 1, mu),
        "label_range": None if dataset.label_range is None else list(dataset.label_range),
    }
    planned = PlannedRelease(
        label=_RUN,
        code=code_version(lookup("evaluators", NAME), model),
        dataset=dataset.version,
        partition=partition.name,
        replicate=0,
        seed=None,
        upstream=(),
        algorithm=AlgorithmSpec("evaluators", NAME, parameters),
        budget=budget,
        setting=Setting(
            sizes=tuple(shard.rows for shard in shards),
            dimension=dataset.dimension,
            classes=max(len(dataset.classes), 1),
            neighbours=relation_of(dataset.name),
            trust=chosen.name,
            noise_factor=factor,
            rows_per_person=dataset.rows_per_person,
        ),
        trust=chosen,
        parties=tuple(shard.party for shard in shards),
        account=dataset.account,
        delta=named.stated_delta,
    )
    return CountsPlan(dataset=dataset, partition=partition, planned=planned, epsilon=epsilon)


def price_of_counts(plan: CountsPlan) -> Price | None:
    """Return what the histograms would charge; None for public rows, and where they are charged already."""
    request = request_for([plan.planned], _RUN)
    return None if request is None else price_of_requests([request])


def require_affordable(plan: CountsPlan) -> None:
    """Refuse what the account has no room for, or may not be read; nothing is charged.

    Raises
    ------
    RefusedError, ParameterError
        As the door does.
    """
    if plan.paid:
        return
    try:
        _require_admissible(plan)
    except OverspendError as refusal:
        left = OneMore(epsilon=_largest(plan), delta=plan.planned.delta, run=f"one more release of {_RUN}")
        raise refusal.leaving(left.said, left.epsilon) from None


def _require_admissible(plan: CountsPlan) -> None:
    require_admissible([plan.planned], shards_of(plan.partition).training, run=_RUN)


def _largest(plan: CountsPlan) -> float:
    """Return the largest epsilon below a refused one that is admitted; 0 where none is."""
    trust = plan.planned.trust.name if len(plan.planned.parties) > 1 else None

    def fits(epsilon: float) -> bool:
        try:
            _require_admissible(plan_counts(plan.dataset, epsilon, delta=plan.planned.delta, trust=trust))
        except (RefusedError, ParameterError):
            return False
        return True

    return largest_that_fits(fits, plan.epsilon)


def make_counts(plan: CountsPlan) -> ReleaseRef:
    """Release the histograms, or return the release that there is, which costs nothing.

    Raises
    ------
    RefusedError
        If the account's cap would be exceeded: no row was read then, and nothing was charged.
    StorageError
        If the ledger is older than what was released.
    """
    stored = stored_release(plan.planned)
    if stored is not None and plan.paid:
        return stored
    require_affordable(plan)
    shards = make_partition(plan.partition).training
    if stored is not None:
        admit([plan.planned], shards, run=_RUN)
        return stored
    return make_release(plan.planned, shards)


def counts_of(planned: PlannedRelease) -> ColumnCounts:
    """Return the counts of a stored release.

    Raises
    ------
    RefusedError
        If it is not stored.
    """
    stored = stored_release(planned)
    if stored is None:
        raise RefusedError(f"{planned.label} of version {planned.dataset} are not released")
    algorithm = cast(ColumnHistograms, planned.build())
    return ColumnCounts.of_release(read_release(stored).values, algorithm, planned.setting)
