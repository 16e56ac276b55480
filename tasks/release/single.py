"""Column statistics, released outside of runs: is a plan paid, its price, its room; and plans of one release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from dpalgos.accounting.costs import allocate
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.datasets import origins
from storage.errors import InputError, OverspendError, RefusedError
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.accounts.ledger import open_ledger
from tasks.accounts.room import OneMore, largest_that_fits
from tasks.accounts.terms import gaussian_delta, opening_cap, relation_of
from tasks.planning.configuration import Json, TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.plans import RunPlan, description_run
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import Partition
from tasks.preparation.drawn import drawn_behind
from tasks.preparation.partitions import make_partition, plan_partition, shards_of
from tasks.release.admission import ChargedPlan, admit, request_for, require_admissible
from tasks.release.door import make_release
from tasks.release.prices import Price, price_of_requests
from tasks.release.storing import stored_release
from tasks.runtime.settings import current_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class SinglePlan:
    """One release over every row of a version that is in no test file.

    Attributes
    ----------
    dataset : DatasetRef
        The registered version.
    partition : Partition or None
        Whose rows are whose: of all rows one party's, or by the parties' own files. None where each party has its rows
        in a separate root.
    planned : PlannedRelease
        Its algorithm, budget and setting are all that decoding takes, and its manifest has them.
    epsilon : float
        At the plan's delta, for a row or a person.
    at : callable
        From another epsilon to the plan that differs in it.
    table : dict or None
        The declared schema of such parties' rows; None where it is registered with the version.
    """

    dataset: DatasetRef
    partition: Partition | None
    planned: PlannedRelease
    epsilon: float
    at: Callable[[float], SinglePlan]
    table: Json | None = None

    @property
    def label(self) -> str:
        """For people: what is released."""
        return self.planned.label

    @property
    def delta(self) -> float:
        """At which epsilon is stated."""
        return self.planned.delta

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """The release."""
        return (self.planned,)

    @property
    def run(self) -> RunPlan:
        """The run that its description is."""
        return run_of(self)

    @property
    def system(self) -> str:
        """Name of the plan in the ledger."""
        return self.label

    @property
    def sound_counterpart(self) -> None:
        """None: it is proved."""
        return None

    @property
    def paid(self) -> bool:
        """As :func:`is_paid`."""
        return is_paid(self)

    @property
    def price(self) -> Price | None:
        """As :func:`price_of_plan`."""
        return price_of_plan(self)

    def require_affordable(self) -> None:
        """As :func:`require_affordable`."""
        require_affordable(self, self.at)

    def make(self) -> ReleaseRef:
        """Make the release, or return the stored one, which is free.

        Raises
        ------
        RefusedError
            If the account's cap would be exceeded: no row was read then, and nothing was charged.
        StorageError
            If the ledger is older than what was released.
        """
        stored = stored_release(self.planned)
        if stored is not None and self.paid:
            return stored
        self.require_affordable()
        assert self.partition is not None, "rows are here"
        shards = make_partition(self.partition).training
        if stored is not None:
            admit([self.planned], shards, run=self.planned.label)
            return stored
        return make_release(self.planned, shards)


def run_of(plan: SinglePlan, one_way: Sequence[PlannedRelease] = ()) -> RunPlan:
    """Return the run that a description is, with what drawn rows rest on.

    Parameters
    ----------
    plan : SinglePlan
        Of the counts.
    one_way : sequence of PlannedRelease
        Earlier releases that its numbers rest on.
    """
    run = description_run(plan.dataset, plan.planned, one_way, plan.epsilon)
    return drawn_behind([plan.dataset]).under(run)


class _Stated(ChargedPlan, Protocol):
    """Releases over a version's rows that are charged together, and the epsilon that they state."""

    @property
    def partition(self) -> Partition | None: ...

    @property
    def epsilon(self) -> float: ...

    @property
    def delta(self) -> float: ...

    @property
    def label(self) -> str: ...


def is_paid(plan: ChargedPlan) -> bool:
    """Whether all that a plan releases is already charged, so that it has no further cost.

    What was stopped after its charge is made with the same noise. What an older ledger has forgotten is charged again,
    as releases of runs are.
    """
    keys = {one.key for one in plan.releases}
    return open_ledger().charged(keys) == keys


def price_of_plan(plan: ChargedPlan) -> Price | None:
    """Return what a plan would charge; None for public rows, and where it is charged already."""
    request = request_for(plan.releases, plan.system)
    return None if request is None else price_of_requests([request])


def require_affordable(plan: _Stated, at: Callable[[float], _Stated]) -> None:
    """Refuse what the account has no room for, or may not be read; nothing is charged.

    Parameters
    ----------
    plan : ChargedPlan
        With its partition, epsilon and delta.
    at : callable
        From another epsilon to the plan that differs in it: a refusal names the largest that the account has room for.

    Raises
    ------
    RefusedError, ParameterError
        As the door does.
    """
    if is_paid(plan):
        return

    def require_at(epsilon: float) -> None:
        other = plan if epsilon == plan.epsilon else at(epsilon)
        assert other.partition is not None, "rows are here"
        require_admissible(other.releases, shards_of(other.partition).training, run=other.system)

    def fits(epsilon: float) -> bool:
        try:
            require_at(epsilon)
        except (RefusedError, ParameterError):
            return False
        return True

    try:
        require_at(plan.epsilon)
    except OverspendError as refusal:
        largest = largest_that_fits(fits, plan.epsilon)
        left = OneMore(epsilon=largest, delta=plan.delta, run=f"one more release of {plan.label}")
        said = f"{left.said}; epsilon {plan.epsilon:g} does not fit"
        raise refusal.leaving(said, left.epsilon) from None


def plan_single(
    dataset: DatasetRef,
    spec_of: Callable[[float], AlgorithmSpec],
    label: str,
    epsilon: float,
    *,
    delta: float | None = None,
    trust: str | None = None,
    replicate: int = 0,
) -> SinglePlan:
    """Return the plan of one release with Gaussian noise over a version's rows; no row is read, nothing is charged.

    Parameters
    ----------
    dataset : DatasetRef
        As registered.
    spec_of : callable
        From the μ that the noise of all parties together has to the algorithm, without its budget.
    label : str
        For people: what is released.
    epsilon : float
        Above 0, at delta.
    delta : float, optional
        What a run of Gaussian losses alone takes of the account's cap where None
        (:func:`~tasks.accounts.terms.gaussian_delta`); 1e-5 of public rows.
    trust : str, optional
        Of several parties' own files: local where None. One party's rows are its own curator's.
    replicate : int
        Another number is another release, drawn and charged again.

    Raises
    ------
    InputError
        If Gaussian noise has no delta, or there is one party and a trust model.
    ParameterError
        For numbers beyond their bounds, or a trust model that does not admit it.
    """
    named = TrainingConfig(dataset=dataset.name, epsilon=epsilon, delta=delta, test_fraction=0.0, evaluation=False)
    if not (several := bool(origins(current_layout(), dataset))):
        named = named.model_copy(update={"partition": "even", "parties": 1})
    cap = opening_cap(dataset.name)
    if delta is None and cap is not None:
        named = named.model_copy(update={"delta": gaussian_delta(cap.delta)})
    if not named.stated_delta > 0:
        raise InputError(
            f"{label} use Gaussian noise, which needs a delta above 0, and delta is {named.stated_delta:g}: give "
            f"--delta, below the delta of the cap of account {dataset.account}"
        )
    partition = plan_partition(dataset, named)
    shards = shards_of(partition).training
    chosen = AlgorithmSpec("trusts", trust or str(Trust.LOCAL) if several else str(Trust.CENTRAL))
    if trust is not None and not several:
        raise InputError(
            f"{dataset.name} has one party's rows, so --trust has no effect; omit it, or ingest the parties' own "
            f"files: unitball ingest {dataset.name} --party PARTY=PATH"
        )
    config = named.model_copy(update={"replicate": replicate})
    planned = counting_release(config, shards, spec_of, label, chosen, relation_of(dataset.name))

    def at(other: float) -> SinglePlan:
        # Of the same delta, which another epsilon does not move.
        return plan_single(dataset, spec_of, label, other, delta=named.stated_delta, trust=trust, replicate=replicate)

    return SinglePlan(dataset=dataset, partition=partition, planned=planned, epsilon=epsilon, at=at)


def counting_release(
    config: TrainingConfig,
    shards: Sequence[ShardRef],
    spec_of: Callable[[float], AlgorithmSpec],
    label: str,
    trust: AlgorithmSpec,
    relation: Neighbours,
) -> PlannedRelease:
    """Return one release with Gaussian noise over some shards, wherever these are.

    Parameters
    ----------
    config : TrainingConfig
        Of which epsilon, delta and replicate are read.
    shards : sequence of ShardRef
        One per party.
    spec_of : callable
        As for :func:`plan_single`.
    label : str
    trust : AlgorithmSpec
    relation : Neighbours
    """
    assert config.epsilon is not None, "it is stated"
    first = shards[0]
    (budget,) = allocate([GaussianMu], [1.0], config.epsilon, config.stated_delta).losses
    factor = trust.build().noise_factor(len(shards))
    spec = spec_of(cast(GaussianMu, budget).mu / factor)
    return PlannedRelease(
        label=label,
        code=code_version(lookup(spec.kind, spec.name), lookup(trust.kind, trust.name)),
        dataset=first.dataset.version,
        partition=first.partition,
        replicate=config.replicate,
        seed=None,
        upstream=(),
        algorithm=spec,
        budget=budget,
        setting=Setting(
            sizes=tuple(shard.rows for shard in shards),
            dimension=first.dataset.dimension,
            classes=max(len(first.dataset.classes), 1),
            neighbours=relation,
            trust=trust.name,
            noise_factor=factor,
            rows_per_person=first.dataset.rows_per_person,
        ),
        trust=trust,
        parties=tuple(shard.party for shard in shards),
        account=first.dataset.account,
        delta=config.stated_delta,
        drawn_from=first.dataset.drawn_from,
    )
