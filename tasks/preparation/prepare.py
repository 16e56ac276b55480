"""The plan of a run: everything that it will make, by keys, from references and from what the ledger says.

No row is read and nothing is recorded. What exists is known by its key; what does not is to be made, after it is
charged: *plan, charge, materialise*.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

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
from tasks.planning.plans import Draft, RunPlan, draft_run
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.resolution import resolve_normalisation, resolve_system
from tasks.planning.rows import FeatureStep, MappedRows, NormalisedRows, Partition, RowNode, Shards
from tasks.preparation.drawn import drawn_behind, tuned_on
from tasks.preparation.grouping import plan_groups
from tasks.preparation.nightly_rows import Nights, are_current, plan_nights, record_tonight
from tasks.preparation.normalisation import plan_normalisation, require_source
from tasks.preparation.paid_counts import described_columns, require_no_counts
from tasks.preparation.paid_moments import paid_moments, with_dimension
from tasks.preparation.partitions import plan_partition, shards_of
from tasks.preparation.planned_maps import plan_features, plan_mapping
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases

PlanNode = RowNode | ArrivedRows | PlannedRelease | PlannedCombination
"""A node of a plan: what is made of rows, a release, or what the server makes of releases."""


class LookedUp(NamedTuple):
    """The facts by which registered rows were planned, to be looked up again.

    Attributes
    ----------
    version : str
        The data set's newest; empty where rows are nowhere registered.
    columns : bool
        Whether histograms of its columns were looked for.
    counted : tuple of str
        The keys of those that were there.
    missing : tuple of str
        The keys of the counts of all rows that a run by group would be combined with, were they there.
    """

    version: str = ""
    columns: bool = False
    counted: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


_NOTHING = LookedUp()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """The whole plan of a run.

    Attributes
    ----------
    config : TrainingConfig
        It names its delta.
    plan : RunPlan
        What is released.
    shards : Shards
        The rows that the run's releases read, of a night tonight's.
    nodes : mapping of key to node
        All that is made, each after its inputs: normalised versions, public maps, mapped versions, partitions,
        releases, what the server makes of them, evaluations.
    released : tuple of str
        Keys of earlier releases that something of this is made of: those of earlier nights, counts of columns,
        counts of all rows.
    looked_up : LookedUp
        For :func:`is_current`.
    """

    config: TrainingConfig
    plan: RunPlan
    shards: Shards
    nodes: Mapping[str, PlanNode]
    released: tuple[str, ...] = ()
    looked_up: LookedUp = _NOTHING

    @property
    def releases(self) -> list[str]:
        """The keys of all releases, and of what the server makes of them, in order."""
        return [key for key, node in self.nodes.items() if isinstance(node, PlannedRelease | PlannedCombination)]

    @property
    def rows(self) -> dict[str, RowNode | ArrivedRows]:
        """The nodes made from rows, before and between releases."""
        made_of_rows = (
            node for node in self.nodes.values() if not isinstance(node, PlannedRelease | PlannedCombination)
        )
        return {node.key: node for node in made_of_rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedNight(PreparedRun):
    """The whole plan of a night, and of the nights before it without a release.

    Attributes
    ----------
    nights : Nights
        The horizon as it stands with tonight's rows: what :func:`record_night` puts on record.
    """

    nights: Nights


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitingPartition:
    """A run on public rows of which only what they contain decides whose they are, so that there is no plan yet.

    Attributes
    ----------
    config : TrainingConfig
        It names its delta.
    registered : DatasetRef
    nodes : mapping of key to node
        What is made of rows, each after its inputs; the partition comes last.
    partition : Partition
        What divides the rows.
    features : tuple of FeatureStep
        Public maps that the rows have passed through.
    columns : bool
        Whether it is known which features are which column's.
    groups : AlgorithmSpec or None
        The public map of a row to its group, where the run is measured by group.
    """

    config: TrainingConfig
    registered: DatasetRef
    nodes: Mapping[str, RowNode]
    partition: Partition
    features: tuple[FeatureStep, ...]
    columns: bool
    groups: AlgorithmSpec | None

    @property
    def rows(self) -> Mapping[str, RowNode]:
        """The nodes made from rows: all of them."""
        return self.nodes


Prepared = PreparedRun | AwaitingPartition
"""What there is to know of a run before it is charged: its whole plan, or what has to be made before there is one."""


def whole(prepared: Prepared) -> PreparedRun:
    """Return a plan without nodes that wait for others.

    Raises
    ------
    InputError
        If only the rows' content decides on it.
    """
    if isinstance(prepared, AwaitingPartition):
        raise InputError(
            f"partition {prepared.config.partition} depends on the contents of rows, so the plan is known only when "
            "the run starts; choose another partition"
        )
    return prepared


class Drafted(Protocol):
    """All of a run but its budgets."""

    @property
    def is_gaussian(self) -> bool:
        """Whether every loss of the plan is Gaussian, so that it spends no delta."""
        ...

    def at_delta(self, delta: float) -> "Drafted":
        """Return the draft at another delta."""
        ...

    def prepared(self) -> PreparedRun:
        """Return the plan: the draft with budgets fitted to the target."""
        ...


class References(Protocol):
    """The facts about rows that are known before any row is read."""

    @property
    def cap(self) -> Cap | None:
        """The account's at its opening; None where none is known here."""
        ...

    def draft(self, config: TrainingConfig) -> Drafted:
        """Return all of a run but its budgets, at the delta that the configuration names."""
        ...


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
    earlier : tuple of PlannedRelease
        Counts of the predictions and scores of the run's models that were released before, where it is measured by
        group.
    drawn_from : tuple of str
        Keys of the syntheses whose drawn rows the run uses.
    """

    training: Sequence[ShardRef]
    held_out: Sequence[ShardRef] = ()
    relation: Neighbours = Neighbours.REPLACE_ONE
    cap: Cap | None = None
    features: tuple[FeatureStep, ...] = ()
    nodes: Mapping[str, RowNode] = field(default_factory=dict)
    counted: tuple[PlannedRelease, ...] = ()
    groups: AlgorithmSpec | None = None
    earlier: tuple[PlannedRelease, ...] = ()
    drawn_from: tuple[str, ...] = ()

    def draft(self, config: TrainingConfig) -> Drafted:
        """Return all of a run but its budgets."""
        draft = draft_run(
            config,
            self.training,
            self.held_out,
            relation=self.relation,
            features=self.features,
            counted=self.counted,
            groups=self.groups,
            earlier=self.earlier,
            drawn_from=self.drawn_from,
        )
        return _DraftedRun(references=self, draft=draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DraftedRun:
    references: AllRows
    draft: Draft

    @property
    def is_gaussian(self) -> bool:
        return self.draft.is_gaussian

    def at_delta(self, delta: float) -> Drafted:
        return replace(self, draft=self.draft.at_delta(delta))

    def prepared(self) -> PreparedRun:
        plan, rows = self.draft.fitted(), self.references
        shards = Shards(training=tuple(rows.training), held_out=next(iter(rows.held_out), None))
        nodes = {**rows.nodes, **plan.nodes}
        return PreparedRun(config=self.draft.config, plan=plan, shards=shards, nodes=nodes, released=plan.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """References to the rows of a horizon, of which the newest version's arrive tonight."""

    registered: DatasetRef
    cap: Cap | None

    def draft(self, config: TrainingConfig) -> Drafted:
        """Return the nights so far; the horizon's budget is part of its terms."""
        return _DraftedNight(references=self, config=config, nights=plan_nights(config, self.registered))


@dataclass(frozen=True, slots=True, kw_only=True)
class _DraftedNight:
    references: Tonight
    config: TrainingConfig
    nights: Nights

    @property
    def is_gaussian(self) -> bool:
        return all(isinstance(loss, GaussianMu) for loss in self.nights.terms.release.guarantee().losses)

    def at_delta(self, delta: float) -> Drafted:
        # At another delta it is another horizon, which may be on record.
        return self.references.draft(self.config.model_copy(update={"delta": delta}))

    def prepared(self) -> PreparedNight:
        nights = self.nights
        tonight = nights.unreleased[-1]
        plan = plan_night(
            nights.terms, self.config, tonight.night, tonight.shards, tonight.versions, nights.arrived, tonight.features
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
        return PreparedNight(
            config=self.config, plan=plan, shards=arrived.shards, nodes=nodes, released=released, nights=nights
        )


def prepare(config: TrainingConfig) -> Prepared:
    """Return the plan of a run on registered rows: the one that a run charges and carries out.

    Parameters
    ----------
    config : TrainingConfig
        All of it says what a run is.

    Returns
    -------
    Prepared
        An :class:`AwaitingPartition` where the partition goes by what public rows contain: once these are divided,
        :func:`prepare_divided` makes it whole.

    Raises
    ------
    InputError, ParameterError
        Naming every fault that can be told without reading rows.
    RefusedError
        If there is nothing else to say against it than that it may not touch private rows.
    """
    registered, faults = find_dataset(config.dataset), Faults()
    if config.basis is not None:
        config = with_dimension(config, registered)
    check_parts(config, registered, faults)
    if config.horizon is not None:
        _require_not_drawn(config, registered)
        faults.raise_all()
        tonight = prepare_over(config, Tonight(registered=registered, cap=opening_cap(config.dataset)))
        return with_positive(tonight, config.positive or _declared_positive(registered))
    name = resolve_normalisation(config, default_normalisation(config.dataset), table=bool(registered.columns))
    normalised = faults.of(lambda: require_source(plan_normalisation(registered, name)))
    source = registered if normalised is None else normalised.rows
    features = faults.of(lambda: plan_features(source, config)) or ()
    mapped = plan_mapping(source, features) if features else None
    groups = faults.of(lambda: plan_groups(registered, config, name))
    faults.of(lambda: tuned_on(config, registered))
    partition = faults.of(lambda: plan_partition(source if mapped is None else mapped.rows, config, registered))
    shards = None
    if partition is not None and not partition.reads_rows:
        shards = faults.of(partial(shards_of, partition))
    faults.raise_all()
    assert normalised is not None, "what is not planned was a fault"
    assert partition is not None, "what is not planned was a fault"
    undivided = AwaitingPartition(
        config=config,
        registered=registered,
        nodes={**_nodes_of(normalised, mapped), partition.key: partition},
        partition=partition,
        features=features,
        columns=bool(normalised.rows.columns),
        groups=groups,
    )
    if shards is None:
        # Public rows have no cap, so that the delta does not wait for them.
        return replace(undivided, config=config.model_copy(update={"delta": config.stated_delta}))
    return prepare_divided(undivided, shards)


def prepare_comparison(config: TrainingConfig) -> Prepared:
    """Return the plan whose held-out rows compare a run's model with the champion.

    It is that of the same run without a horizon. All rows of a horizon train, so of its plan only the test rows that a
    public set has itself are held out.
    """
    if config.horizon is None:
        return prepare(config)
    return prepare(config.model_copy(update={"horizon": None, "test_fraction": 0.0}))


def require_held_out(config: TrainingConfig, held_out: ShardRef | None) -> ShardRef:
    """Return the held-out rows that compare a run's model with the champion.

    Raises
    ------
    InputError
        If there are none; the message says the way out.
    """
    if held_out is None:
        way = "--test-fraction" if config.horizon is None else "--test-fraction and without --horizon"
        raise InputError(f"{config.dataset} has no held-out rows to compare models on; train with {way}")
    return held_out


def prepare_divided(undivided: AwaitingPartition, shards: Shards) -> PreparedRun:
    """Return the plan of a run whose rows are divided.

    Parameters
    ----------
    undivided : AwaitingPartition
    shards : Shards
        What its partition has made of the rows.

    Raises
    ------
    InputError, ParameterError, RefusedError
        As :func:`prepare_over` does.
    """
    config = undivided.config
    chosen = tuned_on(config, undivided.registered)
    used = [undivided.registered, *(step.public.rows for step in undivided.features if step.public is not None)]
    drawn = drawn_behind([*used, *([] if chosen is None else [chosen])])
    references = AllRows(
        training=shards.training,
        held_out=() if shards.held_out is None else (shards.held_out,),
        relation=relation_of(config.dataset),
        cap=opening_cap(config.dataset),
        features=undivided.features,
        nodes=undivided.nodes,
        groups=undivided.groups,
        drawn_from=drawn.syntheses,
    )
    if config.basis is not None:
        prepared = prepare_over(config, replace(references, counted=(paid_moments(config, undivided.registered),)))
        prepared = replace(prepared, looked_up=LookedUp(undivided.registered.version), plan=drawn.under(prepared.plan))
        return with_positive(prepared, config.positive or _declared_positive(undivided.registered))
    if not undivided.columns:
        require_no_counts(config)
    looked_up, counted = _look_up(config, undivided.registered, columns=undivided.columns)
    prepared, references = _over_counts(config, references, counted)
    earlier = _earlier(config, references, prepared)
    stored = all(map(open_releases().exists, (one.key for one in earlier)))
    if earlier and stored:
        prepared = _over_earlier(config, references, prepared, earlier)
    missing = () if stored else tuple(one.key for one in earlier)
    looked_up = looked_up._replace(missing=missing)
    prepared = replace(prepared, looked_up=looked_up, plan=drawn.under(prepared.plan))
    return with_positive(prepared, config.positive or _declared_positive(undivided.registered))


def _declared_positive(registered: DatasetRef) -> str | None:
    """Return the positive class that a table's schema declares."""
    table = declared_table(current_layout(), registered)
    return (
        None
        if table is None or "schema" not in table
        else parse_schema(table["schema"], registered.name).label.positive or None
    )


def _require_not_drawn(config: TrainingConfig, registered: DatasetRef) -> None:
    """Refuse nights that would rest on drawn rows: all nights are charged with the first, before these are there."""
    used = [registered, *([] if config.public_dataset is None else [find_dataset(config.public_dataset)])]
    if drawn := [one.name for one in used if one.synthesis]:
        raise InputError(
            f"{drawn[0]} holds synthetic rows, whose releases a horizon's epsilon does not include: omit --horizon, "
            "or choose other rows"
        )


def with_positive(prepared: PreparedRun, positive: str | None) -> PreparedRun:
    """Return a plan whose results describe this one of two classes; None for the last declared one.

    What is released does not depend on it.

    Raises
    ------
    ParameterError
        If it is not one of two classes.
    """
    if positive is None:
        return prepared
    found = prepared.plan.identity
    classes = found.dataset.classes
    if len(classes) != 2 or positive not in classes:
        there = f"the classes are {shown(classes)}" if classes else "the label is a number"
        raise ParameterError(f"positive is {positive!r}; it must be one of two classes, but {there}")
    named = found.model_copy(update={"positive": positive})
    return replace(prepared, plan=prepared.plan.model_copy(update={"identity": named}))


def is_current(prepared: Prepared) -> bool:
    """Whether a plan that was looked at before would be made again as it is: of rows that are registered.

    A version may have been registered since, a night may have come, and histograms of the columns may have been
    released: then these are free for the run, and its own counts would be paid for out of the training's share.
    The counts of all rows that counts of groups are combined with may have been released as well.
    """
    config = prepared.config
    if isinstance(prepared, PreparedNight):
        return are_current(config, prepared.nights)
    registered = find_dataset(config.dataset)
    if isinstance(prepared, AwaitingPartition):
        return registered == prepared.registered
    known = prepared.looked_up
    if registered.version != known.version or (known.missing and all(map(open_releases().exists, known.missing))):
        return False
    looked_up, _ = _look_up(config, registered, columns=known.columns)
    return looked_up._replace(missing=known.missing) == known


def _look_up(
    config: TrainingConfig, registered: DatasetRef, *, columns: bool
) -> tuple[LookedUp, Sequence[PlannedRelease]]:
    """Return what a run is planned by, and the histograms that its map of columns may be made of."""
    if not columns:
        return LookedUp(registered.version), ()
    relation, (_, _, trust, _) = config.neighbours or relation_of(config.dataset), resolve_system(config)
    counted = described_columns(registered, relation, trust, config.counts_of)
    return LookedUp(registered.version, columns, tuple(one.key for one in counted)), counted


def _over_counts(
    config: TrainingConfig, references: AllRows, counted: Sequence[PlannedRelease]
) -> tuple[PreparedRun, AllRows]:
    """Return the plan of a run whose map of columns may be made of histograms that were released before, and of what.

    Which were there when the run was charged is part of its releases' identities: of the plans that there have been,
    over none of them, the first, the first two, …, the one that is charged stays the run's, so that histograms that
    come later neither change it nor charge it again. A run that is not charged takes all that there are, if they are
    good enough (:func:`dpalgos.systems.tables.serves`). At most one of the plans is charged; the newest is looked at
    first, and the others only where the account has been charged for something else than these histograms.
    """
    over = replace(references, counted=tuple(counted))
    newest = prepare_over(config, over), over
    if not counted:
        return newest
    ledger = open_ledger()
    paid = {charge.key for charge in ledger.charges(counted[0].account)} - {one.key for one in counted}
    if not paid or _is_among(newest[0], paid):
        return newest
    for number in reversed(range(len(counted))):
        over = replace(references, counted=tuple(counted[:number]))
        try:
            earlier = prepare_over(config, over)
        except (InputError, ParameterError, RefusedError, SecureAggregationError):
            # What cannot be planned without the newer histograms was not charged without them.
            continue
        if _is_among(earlier, paid):
            return earlier, over
    return newest


def _is_among(prepared: PreparedRun, paid: Container[str]) -> bool:
    return prepared.plan.models[0].key in paid


def _earlier(config: TrainingConfig, references: AllRows, prepared: PreparedRun) -> tuple[PlannedRelease, ...]:
    """Return what the same run counts of all rows where it is not measured by group; nothing of public rows."""
    if config.by is None or not any(one.reads_rows for one in prepared.plan.evaluations):
        return ()
    plain = prepare_over(config.model_copy(update={"by": None}), replace(references, groups=None)).plan
    own = {one.key for one in prepared.plan.evaluations}
    return tuple(one for one in plain.evaluations if one.key not in own)


def _over_earlier(
    config: TrainingConfig, references: AllRows, prepared: PreparedRun, earlier: tuple[PlannedRelease, ...]
) -> PreparedRun:
    """Return the plan of a run by group whose counts of all rows were released before.

    A run that has counted all rows with its groups, and was charged before these were there, stays what it is.
    """
    over = prepare_over(config, replace(references, earlier=earlier))
    own = {one.key for one in prepared.plan.evaluations} - {one.key for one in over.plan.evaluations}
    return prepared if open_ledger().charged(own) else over


def prepare_over(config: TrainingConfig, references: References) -> PreparedRun:
    """Return the plan of a run over rows of which only references are known.

    It is drafted once, and budgets are fitted to that draft. A configuration that names no delta takes a share of the
    cap's at the account's opening, by the kinds of losses in the draft. A plan of Gaussian losses alone spends no
    delta; it takes :data:`dpalgos.accounting.spending.GAUSSIAN_PART` of the cap's, at which its epsilon buys most.
    Every other plan takes a tenth, so that others have room. Both are constants of the account: neither what was
    charged nor a raised cap moves them, and so nor the run's identity and price. Where a system chooses its parts by
    delta, the kinds are those of the parts at the first of the two.

    Raises
    ------
    InputError, ParameterError, RefusedError
        As :func:`tasks.planning.plans.draft_run` and :func:`tasks.preparation.nightly_rows.plan_nights` do.
    """
    return with_positive(_drafted_at_its_delta(config, references).prepared(), config.positive)


def _drafted_at_its_delta(config: TrainingConfig, references: References) -> Drafted:
    if config.delta is not None:
        return references.draft(config)
    if references.cap is None:
        return references.draft(config.model_copy(update={"delta": config.stated_delta}))
    usual = config.model_copy(update={"delta": tenth(references.cap.delta)})
    draft = _drafted(config.model_copy(update={"delta": gaussian_delta(references.cap.delta)}), references)
    if draft is None:
        # What cannot be planned is refused by its plan, at any delta.
        return references.draft(usual)
    drafted, gaussian = draft
    return drafted if gaussian else drafted.at_delta(usual.stated_delta)


def _drafted(config: TrainingConfig, references: References) -> tuple[Drafted, bool] | None:
    """Return a draft and whether all its losses are Gaussian; None where there is none at this delta."""
    try:
        drafted = references.draft(config)
        return drafted, drafted.is_gaussian
    except RefusedError:
        # A horizon that must not go on is refused: at another delta it would be another horizon.
        if config.horizon is not None:
            raise
        return None
    except (InputError, ParameterError, SecureAggregationError):
        return None


def record_night(prepared: PreparedNight) -> bool:
    """Record that tonight's rows have arrived, and with the first night what its horizon releases, as planned.

    Returns
    -------
    bool
        Whether that is on record. If not, rows arrived since, nothing was recorded, and the night is planned again.

    Raises
    ------
    InputError, RefusedError
        As :func:`tasks.preparation.nightly_rows.record_tonight` does.
    """
    return record_tonight(prepared.config, prepared.nights)


def _nodes_of(normalised: NormalisedRows, mapped: MappedRows | None) -> dict[str, RowNode]:
    """Return a normalised version and what it passes through, in order."""
    nodes: list[RowNode] = [normalised]
    for one in () if mapped is None else mapped.maps:
        nodes += [*([] if one.public is None else [one.public]), one]
    return {node.key: node for node in (*nodes, *([] if mapped is None else [mapped]))}
