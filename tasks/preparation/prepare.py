"""The plan of a run: everything that it will make, by keys, from references and from what the ledger says.

No row is read and nothing is recorded. What exists is known by its key; what does not is to be made, after it is
charged: *plan, charge, materialise*.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypedDict

from dpalgos.guarantees import GaussianMu, Neighbours
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec
from dpalgos.secure.primitives import SecureAggregationError
from storage.columns.declarations import shown
from storage.datasets import declared_table
from storage.errors import InputError, RefusedError
from storage.ledger.charges import Cap
from storage.refs import DatasetRef, ShardRef
from storage.schema import parse_schema
from tasks.accounts.ledger import open_ledger
from tasks.accounts.terms import gaussian_delta, opening_cap, relation_of, tenth
from tasks.datasets.registration import default_normalisation, find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.planning.nights import ArrivedRows, plan_night, planned_night
from tasks.planning.parts import Faults, check_parts
from tasks.planning.plans import RunPlan, is_gaussian, plan_run
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.resolution import resolve_normalisation, resolve_system
from tasks.planning.rows import FeatureStep, MappedRows, NormalisedRows, RowNode, Shards
from tasks.preparation.grouping import plan_groups
from tasks.preparation.nightly_rows import plan_nights, record_tonight
from tasks.preparation.normalisation import plan_normalisation, require_source
from tasks.preparation.paid_counts import described_columns, require_no_counts
from tasks.preparation.partitions import plan_partition, shards_of
from tasks.preparation.public_maps import plan_features, plan_mapping
from tasks.runtime.settings import current_layout

PlanNode = RowNode | ArrivedRows | PlannedRelease | PlannedCombination
"""A node of a plan: what is made of rows, a release, or what the server makes of releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The plan of a run.

    Attributes
    ----------
    config : TrainingConfig
        It names its delta.
    plan : RunPlan or None
        What is released. None where only what public rows contain decides whose they are: then :attr:`nodes` end with
        the partition that says so.
    shards : Shards
        The rows that the run's releases read, of a night tonight's; none where there is no plan yet.
    nodes : mapping of key to node
        All that is made, each after its inputs: normalised versions, public maps, mapped versions, partitions,
        releases, what the server makes of them, evaluations.
    released : tuple of str
        Keys of earlier releases that something of this is made of: those of earlier nights, counts of columns.
    """

    config: TrainingConfig
    plan: RunPlan | None
    shards: Shards
    nodes: Mapping[str, PlanNode]
    released: tuple[str, ...] = ()

    def is_of(self, config: TrainingConfig) -> bool:
        """Whether it is the plan of a configuration, which may name no delta."""
        return self.config in (config, config.model_copy(update={"delta": self.config.delta}))

    @property
    def pays_for_counts(self) -> bool:
        """Whether histograms of the columns are among what it releases itself."""
        return self.plan is not None and any(one.key not in self.plan.before for one in self.plan.counts)

    @property
    def whole(self) -> RunPlan:
        """The plan, where it does not wait for rows."""
        assert self.plan is not None, "the rows are divided first"
        return self.plan

    @property
    def releases(self) -> list[str]:
        """The keys of all releases, and of what the server makes of them, in order."""
        return [key for key, node in self.nodes.items() if isinstance(node, PlannedRelease | PlannedCombination)]

    @property
    def rows(self) -> dict[str, RowNode | ArrivedRows]:
        """What is made of rows, before and between releases."""
        made_of_rows = (
            node for node in self.nodes.values() if not isinstance(node, PlannedRelease | PlannedCombination)
        )
        return {node.key: node for node in made_of_rows}


class References(Protocol):
    """What is known of rows before any of them is read."""

    @property
    def cap(self) -> Cap | None:
        """The account's at its opening; None where nobody here knows one."""
        ...

    def is_gaussian(self, config: TrainingConfig) -> bool:
        """Whether every loss of the plan is Gaussian, so that it spends no delta."""
        ...

    def prepared(self, config: TrainingConfig) -> Prepared:
        """Return the plan of a configuration that names its delta."""
        ...


class _Known(TypedDict):
    relation: Neighbours
    features: Sequence[FeatureStep]
    counted: Sequence[PlannedRelease]
    groups: AlgorithmSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRows:
    """References to all rows that a run reads: registered ones, or those of parties, of an audit or in memory.

    Attributes
    ----------
    training, held_out : sequence of ShardRef
        The parties' training shards, in order, and the rows that a charged evaluation may read: several where each
        party holds out its own.
    relation : Neighbours
        The account's, in force where the configuration names none.
    cap : Cap or None
    features : tuple of FeatureStep
        Public maps that the rows have passed through.
    nodes : mapping
        What is made of rows before the releases; nothing where they are at hand.
    counted : tuple of PlannedRelease
        Histograms of the rows' columns that were released before.
    groups : AlgorithmSpec or None
        The public map of a row to its group, where the run is measured by group.
    """

    training: Sequence[ShardRef]
    held_out: Sequence[ShardRef] = ()
    relation: Neighbours = Neighbours.REPLACE_ONE
    cap: Cap | None = None
    features: tuple[FeatureStep, ...] = ()
    nodes: Mapping[str, RowNode] = field(default_factory=dict)
    counted: tuple[PlannedRelease, ...] = ()
    groups: AlgorithmSpec | None = None

    def is_gaussian(self, config: TrainingConfig) -> bool:
        """Whether every loss of the plan is Gaussian."""
        return is_gaussian(config, self.training, self.held_out, **self._known)

    def prepared(self, config: TrainingConfig) -> Prepared:
        """Return the plan."""
        plan = plan_run(config, self.training, self.held_out, **self._known)
        shards = Shards(training=tuple(self.training), held_out=next(iter(self.held_out), None))
        nodes = {**self.nodes, **plan.nodes}
        return Prepared(config=config, plan=plan, shards=shards, nodes=nodes, released=plan.before)

    @property
    def _known(self) -> _Known:
        return {
            "relation": self.relation,
            "features": self.features,
            "counted": self.counted,
            "groups": self.groups,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """References to the rows of a horizon, of which the newest version's arrive tonight."""

    registered: DatasetRef
    cap: Cap | None

    def is_gaussian(self, config: TrainingConfig) -> bool:
        """Whether every loss of the horizon is Gaussian."""
        terms = plan_nights(config, self.registered).terms
        return all(isinstance(loss, GaussianMu) for loss in terms.release.guarantee().losses)

    def prepared(self, config: TrainingConfig) -> Prepared:
        """Return the plan of tonight, and of the nights of which nobody made a release."""
        nights = plan_nights(config, self.registered)
        tonight = nights.unreleased[-1]
        plan = plan_night(
            nights.terms, config, tonight.night, tonight.shards, tonight.versions, nights.arrived, tonight.features
        )
        nodes: dict[str, PlanNode] = {one.key: one for one in plan.projections}
        if plan.column_map is not None:
            nodes = {plan.column_map.key: plan.column_map, **nodes}
        for night in nights.unreleased:
            release = planned_night(nights.terms, night.night, night.shards, night.versions)
            arrived = night.arrived(release)
            row_nodes = _nodes_of(night.normalised, night.mapped)
            nodes |= {**row_nodes, arrived.key: arrived, release.key: release}
        model = plan.model
        assert model is not None, "a night has a model of all nights so far"
        nodes[model.key] = model
        released = (*plan.before, *(key for key in model.upstream if key not in nodes))
        return Prepared(config=config, plan=plan, shards=arrived.shards, nodes=nodes, released=released)


def prepare(config: TrainingConfig, divided: Shards | None = None) -> Prepared:
    """Return the plan of a run on registered rows: the one that a run charges and carries out.

    Parameters
    ----------
    config : TrainingConfig
        All of it says what a run is.
    divided : Shards, optional
        The rows as a partition has divided them that goes by what public rows contain: the one thing that must be made
        before the plan is whole. Without it, such a run has no plan yet.

    Raises
    ------
    InputError, ParameterError
        Naming every fault that can be told without reading rows.
    RefusedError
        If there is nothing else to say against it than that it may not touch private rows.
    """
    registered, faults = find_dataset(config.dataset), Faults()
    check_parts(config, registered, faults)
    cap, positive = opening_cap(config.dataset), config.positive or _declared_positive(registered)
    if config.horizon is not None:
        faults.raise_all()
        return with_positive(prepare_over(config, Tonight(registered=registered, cap=cap)), positive)
    name = resolve_normalisation(config, default_normalisation(config.dataset), table=bool(registered.columns))
    normalised = faults.of(lambda: require_source(plan_normalisation(registered, name)))
    source = registered if normalised is None else normalised.rows
    features = faults.of(lambda: plan_features(source, config)) or ()
    mapped = plan_mapping(source, features) if features else None
    groups = faults.of(lambda: plan_groups(registered, config, name))
    partition = faults.of(lambda: plan_partition(source if mapped is None else mapped.rows, config, registered))
    shards = divided
    if partition is not None and not partition.reads_rows:
        shards = faults.of(partial(shards_of, partition))
    faults.raise_all()
    assert normalised is not None, "what is not planned was a fault"
    assert partition is not None, "what is not planned was a fault"
    nodes = {**_nodes_of(normalised, mapped), partition.key: partition}
    if shards is None:
        # Public rows have no cap, so that the delta does not wait for them.
        named = config.model_copy(update={"delta": config.stated_delta})
        return Prepared(config=named, plan=None, shards=Shards(training=()), nodes=nodes)
    references = AllRows(
        training=shards.training,
        held_out=() if shards.held_out is None else (shards.held_out,),
        relation=relation_of(config.dataset),
        cap=cap,
        features=features,
        nodes=nodes,
        groups=groups,
    )
    counted: Sequence[PlannedRelease] = []
    if normalised.rows.columns:
        relation, (_, _, trust, _) = config.neighbours or references.relation, resolve_system(config)
        counted = described_columns(registered, relation, trust, config.counts_of)
    else:
        require_no_counts(config)
    return with_positive(_over_counts(config, references, counted), positive)


def _declared_positive(registered: DatasetRef) -> str | None:
    """Return the positive class that a table's schema declares."""
    table = declared_table(current_layout(), registered)
    return (
        None
        if table is None or "schema" not in table
        else parse_schema(table["schema"], registered.name).label.positive or None
    )


def with_positive(prepared: Prepared, positive: str | None) -> Prepared:
    """Return a plan whose results are of this one of two classes; None for the last declared one.

    What is released does not depend on it.

    Raises
    ------
    ParameterError
        If it is not one of two classes.
    """
    if positive is None or prepared.plan is None:
        return prepared
    found = prepared.plan.identity
    classes = found.dataset.classes
    if len(classes) != 2 or positive not in classes:
        there = f"the classes are {shown(classes)}" if classes else "the label is a number"
        raise ParameterError(f"positive is {positive!r}; it must be one of two classes, and {there}")
    named = found.model_copy(update={"positive": positive})
    return replace(prepared, plan=prepared.plan.model_copy(update={"identity": named}))


def _over_counts(config: TrainingConfig, references: AllRows, counted: Sequence[PlannedRelease]) -> Prepared:
    """Return the plan of a run whose map of columns may be made of histograms that were released before.

    Which were there when the run was charged is part of its releases' identities: of the plans that there have been,
    over none of them, the first, the first two, …, the one that is charged stays the run's, so that histograms that
    come later neither change it nor charge it again. A run that is not charged takes all that there are, if they are
    good enough (:func:`dpalgos.systems.tables.serves`).
    """
    prepared = prepare_over(config, references)
    ledger = open_ledger() if counted else None
    for number in range(1, len(counted) + 1):
        if ledger is None or ledger.is_charged(prepared.whole.models[0].key):
            break
        prepared = prepare_over(config, replace(references, counted=tuple(counted[:number])))
    return prepared


def prepare_over(config: TrainingConfig, references: References) -> Prepared:
    """Return the plan of a run over rows of which only references are known.

    Raises
    ------
    InputError, ParameterError, RefusedError
        As :func:`tasks.planning.plans.plan_run` and :func:`tasks.preparation.nightly_rows.plan_nights` do.
    """
    return with_positive(references.prepared(with_default_delta(config, references)), config.positive)


def with_default_delta(config: TrainingConfig, references: References) -> TrainingConfig:
    """Return a configuration that names its delta: where it does not, a share of the cap's at the account's opening.

    A plan of Gaussian losses alone spends no delta; it takes :data:`dpalgos.accounting.spending.GAUSSIAN_PART` of the
    cap's, at which its epsilon buys most. Every other plan takes a tenth, so that others have room. Both are constants
    of the account: neither what was charged nor a raised cap moves them, and so nor the run's identity and price.
    """
    if config.delta is not None:
        return config
    if references.cap is None:
        return config.model_copy(update={"delta": config.stated_delta})
    gaussian = config.model_copy(update={"delta": gaussian_delta(references.cap.delta)})
    if _spends_no_delta(gaussian, references):
        return gaussian
    return config.model_copy(update={"delta": tenth(references.cap.delta)})


def _spends_no_delta(config: TrainingConfig, references: References) -> bool:
    """Whether all that a run would release is Gaussian; what cannot be planned is refused by its plan, at any delta."""
    if config.epsilon is None:
        # How much of each there is does not change the kinds of losses.
        config = config.model_copy(update={"epsilon": 1.0})
    try:
        return references.is_gaussian(config)
    except RefusedError:
        # A horizon that must not go on is refused: at another delta it would be another horizon.
        if config.horizon is not None:
            raise
        return False
    except (InputError, ParameterError, SecureAggregationError):
        return False


def record_night(prepared: Prepared) -> Prepared:
    """Record that tonight's rows have arrived, and with the first night what its horizon releases; plan it as recorded.

    Raises
    ------
    InputError, RefusedError, ParameterError
        As :func:`tasks.preparation.nightly_rows.record_tonight` does.
    """
    config = prepared.config
    record_tonight(config, find_dataset(config.dataset))
    return prepare(config)


def _nodes_of(normalised: NormalisedRows, mapped: MappedRows | None) -> dict[str, RowNode]:
    """Return a normalised version and what it passes through, in order."""
    nodes: list[RowNode] = [normalised]
    for one in () if mapped is None else mapped.maps:
        nodes += [*([] if one.public is None else [one.public]), one]
    return {node.key: node for node in (*nodes, *([] if mapped is None else [mapped]))}
