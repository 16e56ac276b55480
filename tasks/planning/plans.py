"""Plans: from a configuration to all releases of a run, with identity and price, before rows are read."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import SerializeAsAny, SerializerFunctionWrapHandler, model_serializer

from dpalgos.accounting.costs import Allocation, allocate, loss_of_deadline_misses, losses_under, tightened
from dpalgos.algorithms import ProjectionAlgorithm
from dpalgos.column_maps import ColumnMap
from dpalgos.evaluators.by_group import ConfusionByGroup, CountedByGroup
from dpalgos.evaluators.confusion import ConfusionMatrix
from dpalgos.evaluators.error_distribution import parts_for
from dpalgos.evaluators.noisy_sums import NoisySums
from dpalgos.evaluators.score_distribution import ScoreDistribution
from dpalgos.evaluators.scores_by_group import ScoresByGroup
from dpalgos.features.column_groups import ColumnGroups
from dpalgos.group_margins import GroupEstimates
from dpalgos.guarantees import (
    Claim,
    GaussianMu,
    Guarantee,
    Loss,
    Neighbours,
    PureEpsilon,
    Setting,
    SlackGaussian,
    Trust,
    loss_to_json,
)
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.systems.system import Scope
from dpalgos.trust.model import EVERYONE
from storage.refs import DatasetRef, ShardRef
from tasks.planning.configuration import BudgetSettings, Json, TrainingConfig
from tasks.planning.identity import code_version, identity
from tasks.planning.releases import Deadline, Planned, PlannedCombination, PlannedRelease
from tasks.planning.resolution import Resolved, resolve, resolve_trust
from tasks.planning.rows import FeatureStep


class RunIdentity(Planned):
    """The inputs of a run's key, which is their digest, so that a reader of both can check that they belong together.

    Attributes
    ----------
    models : tuple of str
        Keys of the releases that were trained; what these use they name themselves.
    model : str or None
        Key of what was made of them.
    dataset : DatasetRef
        The rows that were partitioned.
    system : str
    evaluation : (bool, tuple of str)
        Whether the run was to be measured, and the keys of the releases that measure it.
    target : (float or None, float)
        The epsilon and delta that were asked for.
    aim : str or None
        What the threshold of the scores is chosen for, by the releases that measure it.
    positive : str or None
        The positive one of two classes, as it was asked for or is declared; None for the last declared one.
    """

    models: tuple[str, ...]
    model: str | None
    dataset: DatasetRef
    system: str
    evaluation: tuple[bool, tuple[str, ...]]
    target: tuple[float | None, float]
    aim: str | None = None
    positive: str | None = None

    @model_serializer(mode="wrap")
    def _without_what_nobody_named(self, dumped: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out a positive class that nobody has named: such a run is what it was."""
        return {name: value for name, value in dumped(self).items() if name != "positive" or value is not None}

    @property
    def turned(self) -> bool:
        """Whether the positive class is the first declared one: then scores and classes are turned around."""
        classes = self.dataset.classes
        return len(classes) == 2 and self.positive == classes[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes as results list them: of two the positive one is last."""
        return self.dataset.classes[::-1] if self.turned else self.dataset.classes

    @property
    def key(self) -> str:
        """The run's key; computed, so that nothing else can bear it."""
        return identity(**self.model_dump(mode="json"))


class RunPlan(Planned):
    """Everything a run will release.

    Attributes
    ----------
    identity : RunIdentity
    counts : tuple of PlannedRelease
        How the columns of a table are distributed: of all rows that train, or as it was released before.
    before : tuple of str
        The keys of those counts and evaluations that were released before: they are not charged again, and what the run
        guarantees composes them.
    column_map : PlannedCombination or None
        What rows of a table are seen through first, made of counts, or of nothing that rows say.
    projections, models : tuple of PlannedRelease
        One a party, or one for all; no projections where all dimensions are kept.
    basis, model : PlannedCombination or None
        How they are put together.
    features : tuple of FeatureStep
        What rows have passed through before any release.
    split : dict
        How the budget was split over the stages, for reports.
    reasons : tuple of str
        Why these parts, where the system chooses them from public facts.
    warning : str or None
        What to say before anything is spent.
    drawn : tuple of PlannedRelease
        Releases of rows that drawn rows rest on which the run uses: no charge is due, and what the results guarantee
        composes them.
    synthetic : tuple of str
        The names of these drawn rows' data sets.
    drawn_person : str
        The column that names the people whom these releases protect; empty where a row is.
    """

    identity: SerializeAsAny[RunIdentity]
    system: str
    paper: str
    trust: str
    normalisation: str
    counts: tuple[PlannedRelease, ...] = ()
    before: tuple[str, ...] = ()
    column_map: PlannedCombination | None = None
    projections: tuple[PlannedRelease, ...]
    basis: PlannedCombination | None
    models: tuple[PlannedRelease, ...]
    model: SerializeAsAny[PlannedCombination] | None
    evaluations: tuple[PlannedRelease, ...]
    features: tuple[FeatureStep, ...] = ()
    split: Json
    claim: Claim | None
    sound_counterpart: str | None
    epsilon: float | None
    delta: float
    reasons: tuple[str, ...] = ()
    warning: str | None = None
    drawn: tuple[PlannedRelease, ...] = ()
    synthetic: tuple[str, ...] = ()
    drawn_person: str = ""

    @property
    def run_key(self) -> str:
        """Identity of the whole run."""
        return self.identity.key

    def paths(self) -> dict[str, list[str]]:
        """Return, for each released model by name, the keys that a row passes through: basis, then model."""
        if self.model is not None:
            return {EVERYONE: [*self.models[0].upstream, self.model.key]}
        named = {release.parties[0] if len(release.parties) == 1 else EVERYONE: release for release in self.models}
        return {name: [*release.upstream, release.key] for name, release in named.items()}

    @property
    def proved(self) -> bool:
        """Whether something is proved of every release that reads rows."""
        return all(guarantee.proved for guarantee in self.guarantees)

    def rows(self) -> dict[str, int]:
        """Return how many rows of each party the models are trained on."""
        return {party: rows for one in self.models for party, rows in zip(one.parties, one.setting.sizes, strict=True)}

    def losses_by_party(self) -> dict[str, tuple[Loss, ...]]:
        """Return what each party pays: the losses of all releases that read its rows, joint ones included."""
        losses_by_party: dict[str, list[Loss]] = {}
        for release in self.releases:
            if release.reads_rows:
                losses = release.guarantee().losses
                for party in release.parties:
                    losses_by_party.setdefault(party, []).extend(losses)
        return {party: tuple(losses) for party, losses in losses_by_party.items()}

    def composed_by_party(self) -> dict[str, tuple[Loss, ...]]:
        """Return what the run's results guarantee each party: what it pays, and what was released before of its rows.

        Counts that were released before include all rows of the version, of all parties, and so do those on which drawn
        rows rest. Evaluations belong to the parties whose rows they read.

        Raises
        ------
        ParameterError
            If drawn rows rest on releases about which nothing is proved under the run's relation.
        """
        relation = next((one.setting.neighbours for one in self.releases if one.reads_rows), Neighbours.REPLACE_ONE)
        # What the run rests on anyway is composed once.
        used = {one.key for one in (*self.counts, *self.projections, *self.evaluations)}
        drawn = [one.guarantee() for one in self.drawn if one.key not in used]
        paid = [loss for one in drawn for loss in losses_under(one, relation)]
        paid += [loss for one in self.counts if one.key in self.before for loss in one.guarantee().losses]
        measured = [one for one in self.evaluations if one.key in self.before]

        def measured_of(party: str) -> list[Loss]:
            return [loss for one in measured if party in one.parties for loss in one.guarantee().losses]

        return {party: (*own, *paid, *measured_of(party)) for party, own in self.losses_by_party().items()}

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases that the run makes, in order."""
        made = (*self.counts, *self.projections, *self.models, *self.evaluations)
        return tuple(one for one in made if one.key not in self.before)

    @property
    def guarantees(self) -> list[Guarantee]:
        """The guarantees of all releases of rows that the run makes or rests on."""
        before = (one for one in (*self.counts, *self.evaluations) if one.key in self.before)
        used = (*before, *self.releases, *self.drawn)
        return [release.guarantee() for release in used if release.reads_rows]

    @property
    def earlier(self) -> tuple[PlannedRelease, ...]:
        """The counts of all rows, released before, that counts of groups are combined with."""
        return tuple(one for one in self.evaluations if one.key in self.before)

    @property
    def groups(self) -> ColumnGroups | None:
        """The map from a row to its group, where the run is measured by group."""
        built = (one.build() for one in self.evaluations if not one.reads_rows)
        return next((one for one in built if isinstance(one, ColumnGroups)), None)

    @property
    def measured_by(self) -> str:
        """The cost of measuring by group, in a sentence; empty for runs without groups."""
        if self.groups is None:
            return ""
        several = f"{len(self.groups.names)} groups by {self.groups.column} ({', '.join(self.groups.names)})"
        built = [(one, one.build()) for one in self.evaluations]
        counting = next((one for one, of in built if isinstance(of, ConfusionByGroup)), None)
        if counting is None:
            return f"{several}, exactly, of public rows"
        algorithm, deviation = cast(ConfusionByGroup, counting.build()), noise_of(counting)
        before = next((noise_of(one) for one, of in built if isinstance(of, ConfusionMatrix)), None)
        noise, together = GroupEstimates.of_release(algorithm, deviation, before).deviations
        times = algorithm.times * together / deviation
        combined = ", combined with the counts of all rows that were released before" * (before is not None)
        scores = next((one.name for one, of in built if isinstance(of, ScoresByGroup)), None)
        each = "a confusion matrix each in one release"
        priced = f"{counting.name}, at the price of one matrix"
        if scores:
            each = "a confusion matrix each, and running sums of the scores of each, in two releases"
            priced = f"{counting.name} and {scores}, at the price of those of all rows"
        return (
            f"{several}: {each}, {priced}{combined};"
            f" noise of standard deviation {noise:.3g} on each count, and of {together:.3g} on those of all groups "
            f"together, {times:.3g} times that of a run that is not evaluated by group"
        )

    @property
    def training(self) -> dict[str, PlannedRelease | PlannedCombination]:
        """The training nodes by key: releases and their combinations, each after its inputs."""
        own = (one for one in self.counts if one.key not in self.before)
        given = (*own, self.column_map, *self.projections, self.basis, *self.models, self.model)
        return {node.key: node for node in given if node is not None}

    @property
    def partitions(self) -> set[str]:
        """The keys of the partitions whose rows its releases read."""
        return {one.inputs[0] for one in self.releases if one.reads_rows}

    @property
    def nodes(self) -> dict[str, PlannedRelease | PlannedCombination]:
        """The nodes that train and measure, by key, each after its inputs."""
        made = (one for one in self.evaluations if one.key not in self.before)
        return {**self.training, **{release.key: release for release in made}}


DESCRIBE = "describe"
"""What a description is called: a run without a model, of which counts of the rows are the evaluation."""


def description_run(
    dataset: DatasetRef, counts: PlannedRelease, one_way: Sequence[PlannedRelease], epsilon: float
) -> RunPlan:
    """Return the run that a description is: one release of counts, and the earlier ones that its numbers rest on.

    Parameters
    ----------
    dataset : DatasetRef
        The rows that are counted, as they are registered.
    counts : PlannedRelease
        What the description releases.
    one_way : sequence of PlannedRelease
        Released and charged before, of the same rows.
    epsilon : float
        Of ``counts``, at its delta.
    """
    before = tuple(one.key for one in one_way)
    identity = RunIdentity(
        models=(),
        model=None,
        dataset=dataset,
        system=DESCRIBE,
        evaluation=(True, (counts.key, *before)),
        target=(epsilon, counts.delta),
    )
    return RunPlan(
        identity=identity,
        system=DESCRIBE,
        paper="",
        trust=counts.trust.name,
        normalisation=dataset.normalisation,
        before=before,
        projections=(),
        basis=None,
        models=(),
        model=None,
        evaluations=(counts, *one_way),
        split={},
        claim=None,
        sound_counterpart=None,
        epsilon=epsilon,
        delta=counts.delta,
    )


def counts_before(measuring: Sequence[PlannedRelease]) -> list[str]:
    """Return the keys of the counts of all rows, released before, among what measures a run that counts groups.

    A run that counts the predictions of groups makes no matrix of all rows itself, and one that counts their scores no
    running sums of all rows.
    """
    built = {one.key: one.build() for one in measuring}
    found = []
    for by_group, of_all in ((ConfusionByGroup, ConfusionMatrix), (ScoresByGroup, ScoreDistribution)):
        if any(isinstance(one, by_group) for one in built.values()):
            found += [
                key for key, one in built.items() if isinstance(one, of_all) and not isinstance(one, CountedByGroup)
            ]
    return found


def noise_of(counting: PlannedRelease) -> float:
    """Return the standard deviation of the noise of each number of released sums, that of all parties together."""
    algorithm = cast(NoisySums, counting.build())
    return algorithm.deviation(counting.setting) * counting.setting.noise_factor


_STAGES = ("counts", "projection", "trainer")


Budgets = Mapping[str, Loss]


def draft_run(
    config: TrainingConfig,
    shards: Sequence[ShardRef],
    held_out: Sequence[ShardRef] = (),
    *,
    relation: Neighbours = Neighbours.REPLACE_ONE,
    features: Sequence[FeatureStep] = (),
    counted: Sequence[PlannedRelease] = (),
    groups: AlgorithmSpec | None = None,
    earlier: Sequence[PlannedRelease] = (),
    drawn_from: Sequence[str] = (),
) -> Draft:
    """Return everything about a run over the parties' shards but its budgets, which :meth:`Draft.fitted` gives it.

    Parameters
    ----------
    config : TrainingConfig
    shards : sequence of ShardRef
        The parties' training shards, in order; the same partition.
    held_out : sequence of ShardRef
        Rows a charged evaluation may read; several where each party holds out its own, which are then counted as the
        run's trust model has it.
    relation : Neighbours
        The account's, in force where the configuration names none.
    features : sequence of FeatureStep
        The public maps that these rows have passed through.
    counted : sequence of PlannedRelease
        Histograms of these columns that were released before: a public input.
    groups : AlgorithmSpec, optional
        The public map of a row to its group, where the configuration asks for measurements by group.
    earlier : sequence of PlannedRelease
        Counts of the same models' predictions and scores, released before: counts of groups are combined with
        them.
    drawn_from : sequence of str
        Keys of the syntheses whose drawn rows the run uses.

    Raises
    ------
    ParameterError, UnknownNameError
        For names and parameters that do not fit.
    InputError
        For a target dimension above the data's.
    """
    if config.horizon is not None:
        raise ParameterError(
            "only `unitball train` and `unitball schedule` release the nights of a horizon: omit --horizon here"
        )
    neighbours = config.neighbours or relation
    resolved = _resolved(config, shards, neighbours, counted)
    return Draft(
        config=config,
        resolved=resolved,
        trust=resolve_trust(config, resolved.trust),
        shards=tuple(shards),
        held_out=tuple(held_out),
        neighbours=neighbours,
        features=tuple(features),
        counted=tuple(counted),
        groups=groups,
        earlier=tuple(earlier),
        drawn_from=tuple(drawn_from),
    )


def _resolved(
    config: TrainingConfig, shards: Sequence[ShardRef], neighbours: Neighbours, counted: Sequence[PlannedRelease]
) -> Resolved:
    if config.basis is not None:
        counted = ()
    mu = math.sqrt(math.fsum(cast(GaussianMu, one.budget).mu ** 2 for one in counted))
    return resolve(config, shards[0].dataset, [shard.rows for shard in shards], neighbours, counted=mu)


def _allocate(
    resolved: Resolved, config: BudgetSettings, stages: Mapping[str, type[Loss]], *, share_delta: bool = False
) -> Allocation:
    """Split (epsilon, delta) over the stages that draw noise, each with the kind of loss it takes."""
    if config.epsilon is None:
        raise ParameterError(f"{resolved.name} draws noise: give a total budget, for example --epsilon 1")
    shares = {"counts": resolved.arrangement.counts_share, "projection": resolved.arrangement.projection_share}
    before = {stage: shares[stage] for stage in stages if stage in shares}
    weights = [before.get(stage, 1.0 - math.fsum(before.values())) for stage in stages] if len(stages) > 1 else [1.0]
    return allocate(list(stages.values()), weights, config.epsilon, config.stated_delta, share_delta=share_delta)


def _tightened(draft: Draft, budgets: dict[str, Loss], allocation: Allocation) -> dict[str, Loss]:
    """Scale the stages together until what the training parties pay meets the target from below.

    A paper's own system stays as it is: it adds its paper's noise for its paper's claim.
    """
    if draft.resolved.system.claim is not None:
        return budgets
    training = {shard.party for shard in draft.shards}

    def losses_by_party(losses: tuple[Loss, ...]) -> list[tuple[Loss, ...]]:
        plan = draft.plan(dict(zip(budgets, losses, strict=True)), {})
        return [losses_of_party for party, losses_of_party in plan.losses_by_party().items() if party in training]

    allocated = tightened(list(budgets.values()), losses_by_party, allocation.epsilon, allocation.delta_spent)
    return dict(zip(budgets, allocated, strict=True))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Everything about a run but its budgets."""

    config: TrainingConfig
    resolved: Resolved
    trust: AlgorithmSpec
    shards: tuple[ShardRef, ...]
    held_out: tuple[ShardRef, ...]
    neighbours: Neighbours
    features: tuple[FeatureStep, ...]
    counted: tuple[PlannedRelease, ...] = ()
    groups: AlgorithmSpec | None = None
    earlier: tuple[PlannedRelease, ...] = ()
    drawn_from: tuple[str, ...] = ()

    @property
    def stages(self) -> dict[str, type[Loss]]:
        """The stages that draw noise, each with the kind of loss that it takes."""
        parts = self.resolved.parts
        accepted = {part: lookup(spec.kind, spec.name).budgets for part, spec in parts.items() if part in _STAGES}
        return {stage: accepted[stage][0] for stage in _STAGES if accepted.get(stage)}

    @property
    def is_gaussian(self) -> bool:
        """Whether every loss of the plan is Gaussian, so that it spends no delta.

        Which kinds of losses there are does not depend on how much of each, so no budget is fitted to the target.

        Raises
        ------
        ParameterError, InputError
            As :meth:`fitted` does.
        """
        stages = self.stages
        budgets = dict(zip(stages, _allocate(self.resolved, self.config, stages).losses, strict=True)) if stages else {}
        plan = self.plan(budgets, {})
        kinds = {type(loss) for one in plan.releases if one.reads_rows for loss in one.guarantee().losses}
        return kinds == {GaussianMu}

    def at_delta(self, delta: float) -> Draft:
        """Return the draft of the same run at another delta.

        Parts that are chosen or described by delta are resolved once more: those of a system that chooses by public
        facts, and private selection. All others are the same at each delta.
        """
        config, resolved = self.config.model_copy(update={"delta": delta}), self.resolved
        if resolved.system.choose is not None or config.tune:
            resolved = _resolved(config, self.shards, self.neighbours, self.counted)
        return dataclasses.replace(self, config=config, resolved=resolved)

    def fitted(self) -> RunPlan:
        """Return the plan: the draft with budgets that meet the target.

        Raises
        ------
        ParameterError
            If there is no budget, or what it buys does not fit the parts.
        """
        stages = self.stages
        if not stages:
            return self.plan({}, {})
        allocation = _allocate(self.resolved, self.config, stages)
        budgets = dict(zip(stages, allocation.losses, strict=True))
        if allocation.composed > allocation.epsilon and self.plan(budgets, {}).proved:
            # What papers give each of their stages is more than the target together; proved stages share delta as well.
            allocation = _allocate(self.resolved, self.config, stages, share_delta=True)
            budgets = dict(zip(stages, allocation.losses, strict=True))
        budgets = _tightened(self, budgets, allocation)
        losses = [loss_to_json(budgets[stage]) for stage in stages]
        return self.plan(budgets, {**allocation.to_json(), "stages": list(stages), "losses": losses})

    def plan(self, budgets: Budgets, split: Json) -> RunPlan:
        """Return the plan under these budgets."""
        parts, arrangement, dataset = self.resolved.parts, self.resolved.arrangement, self.shards[0].dataset
        projections: tuple[PlannedRelease, ...] = ()
        basis: PlannedCombination | None = None
        dimension = dataset.dimension
        counts, column_map = self.column_map(budgets)
        before = tuple(one.key for one in (*(one for one in counts if one in self.counted), *self.earlier))
        # What rows pass through, one path a party or one for all.
        used: list[tuple[str, ...]] = [()]
        if column_map is not None:
            used = [(column_map.key,)]
            dimension = cast(ColumnMap, column_map.build()).output_dimension(dimension)
        if "projection" in parts:
            looks = lookup("projections", parts["projection"].name).reads_rows
            scope = arrangement.projection_scope if looks else Scope.JOINT
            projections = self._releases("projection", scope, dimension, used, budgets)
            basis = self._combination("basis_aggregation", projections, "basis") if scope is Scope.PARTY else None
            found = [basis.key] if basis else [release.key for release in projections]
            used = [(*used[0], key) for key in found]
            dimension = cast(ProjectionAlgorithm, projections[0].build()).output_dimension(dimension)
        models = self._releases("trainer", arrangement.trainer_scope, dimension, used, budgets)
        per_party = arrangement.trainer_scope is Scope.PARTY
        model = self._combination("model_aggregation", models, "model") if per_party else None
        evaluations = self._evaluations((*counts, *projections, *models), models, model)
        config, resolved = self.config, self.resolved
        return RunPlan(
            identity=RunIdentity(
                models=tuple(release.key for release in models),
                model=model.key if model else None,
                dataset=dataset,
                system=resolved.name,
                evaluation=(config.evaluation, tuple(release.key for release in evaluations)),
                target=(config.epsilon, config.stated_delta),
                aim=config.aim,
            ),
            system="+".join([resolved.name, *(step.label for step in self.features)]),
            paper=resolved.system.paper,
            trust=resolved.trust,
            normalisation=dataset.normalisation,
            counts=counts,
            before=before,
            column_map=column_map,
            projections=projections,
            basis=basis,
            models=models,
            model=model,
            evaluations=evaluations,
            features=self.features,
            split=split,
            claim=resolved.system.claim,
            sound_counterpart=resolved.system.sound_counterpart,
            epsilon=config.epsilon,
            delta=config.stated_delta,
            reasons=resolved.reasons,
            warning=resolved.warning,
        )

    @property
    def _classes(self) -> int:
        return max(len(self.shards[0].dataset.classes), 1)

    def release(
        self,
        spec: AlgorithmSpec,
        budget: Loss | None,
        group: Sequence[ShardRef],
        setting: Setting,
        upstream: Sequence[str],
        label: str,
        branches: tuple[int, ...] = (),
    ) -> PlannedRelease:
        """Return the plan of one release of a group's rows."""
        # Maps made from public parameters see no sums that would have to be formed somehow.
        trust = self._trust(setting.trust if lookup(spec.kind, spec.name).reads_rows else Trust.CENTRAL)
        return PlannedRelease(
            partition=self.shards[0].partition,
            dataset=self.shards[0].dataset.version,
            replicate=self.config.replicate,
            seed=self.config.seed,
            code=code_version(*spec.classes(), lookup(trust.kind, trust.name)),
            label=label,
            algorithm=spec,
            budget=budget,
            setting=setting,
            trust=trust,
            parties=tuple(shard.party for shard in group),
            upstream=tuple(upstream),
            account=group[0].dataset.account,
            delta=self.config.stated_delta,
            deadline=self._deadline if lookup(spec.kind, spec.name).reads_rows else None,
            outside=tuple(step.outside for step in self.features if step.outside),
            maps=group[0].dataset.maps,
            branches=branches,
            # What measures a model rests on the synthesis through it.
            drawn_from=self.drawn_from if spec.kind in ("projections", "trainers") else (),
        )

    @property
    def _deadline(self) -> Deadline | None:
        """Deadline at which releases of private rows appear; the time that public rows take is no secret."""
        if self.config.deadline is None or not self.shards[0].dataset.private:
            return None
        return Deadline(seconds=self.config.deadline, miss=self.config.deadline_miss)

    def _trust(self, name: str) -> AlgorithmSpec:
        """Return the run's trust model with its settings, or another, which has none."""
        return self.trust if name == self.trust.name else AlgorithmSpec("trusts", name)

    def column_map(self, budgets: Budgets) -> tuple[tuple[PlannedRelease, ...], PlannedCombination | None]:
        """Return the counts of all columns, where the map of a table's rows is made of any, and the map."""
        spec = self.resolved.parts.get("column_map")
        if spec is None:
            return (), None
        counts: tuple[PlannedRelease, ...] = ()
        if "counts" in self.resolved.parts:
            counts = self._releases("counts", Scope.JOINT, self.shards[0].dataset.dimension, [()], budgets)
        elif cast(ColumnMap, spec.build()).counted:
            counts = self.counted
        if counts:
            map_of_columns: type[ColumnMap] = lookup(spec.kind, spec.name)
            spec = spec.with_parameters(**map_of_columns.told([(one.build(), one.setting) for one in counts]))
        return counts, self._combined(spec, counts, "map of columns", weights=())

    def _setting(self, group: Sequence[ShardRef], dimension: int) -> Setting:
        return Setting(
            sizes=tuple(shard.rows for shard in group),
            dimension=dimension,
            classes=self._classes,
            neighbours=self.neighbours,
            trust=self.resolved.trust,
            noise_factor=self.trust.build().noise_factor(len(group)),
            rows_per_person=self.shards[0].dataset.rows_per_person,
        )

    def _releases(
        self, part: str, scope: Scope, dimension: int, uses: Sequence[tuple[str, ...]], budgets: Budgets
    ) -> tuple[PlannedRelease, ...]:
        groups = [(shard,) for shard in self.shards] if scope is Scope.PARTY else [self.shards]
        thing = {"counts": "columns", "projection": "basis", "trainer": "model"}[part]
        releases = []
        for index, group in enumerate(groups):
            setting = self._setting(group, dimension)
            # One path serves all; several are one a party, in the parties' order.
            upstream = uses[index] if len(uses) > 1 else uses[0]
            label = f"{thing} of " + (f"party {group[0].party}" if scope is Scope.PARTY else "all parties")
            spec = self.resolved.parts[part]
            releases.append(self.release(spec, budgets.get(part), group, setting, upstream, label))
        return tuple(releases)

    def _combination(self, part: str, planned: Sequence[PlannedRelease], label: str) -> PlannedCombination | None:
        spec = self.resolved.parts.get(part)
        if spec is None:
            return None
        total = sum(shard.rows for shard in self.shards)
        return self._combined(spec, planned, label, tuple(shard.rows / total for shard in self.shards))

    def _combined(
        self, spec: AlgorithmSpec, planned: Sequence[PlannedRelease], label: str, weights: tuple[float, ...]
    ) -> PlannedCombination:
        return PlannedCombination(
            partition=self.shards[0].partition,
            dataset=self.shards[0].dataset.version,
            replicate=self.config.replicate,
            seed=self.config.seed,
            code=code_version(lookup(spec.kind, spec.name)),
            label=label,
            algorithm=spec,
            upstream=tuple(release.key for release in planned),
            weights=weights,
        )

    def _evaluations(
        self, training: Sequence[PlannedRelease], models: Sequence[PlannedRelease], model: PlannedCombination | None
    ) -> tuple[PlannedRelease, ...]:
        """Plan how well each released model does on private held-out rows, and what tells the rows' groups apart.

        The held-out rows belong to no party that trains, so they have the run's whole budget to themselves: of the
        training's kind, so that measuring spends no delta where training spends none. Several models share it equally;
        the mean of their accuracies is then as noisy as that of one would be (Gaussian noise).
        """
        config, held_out, dataset = self.config, self.held_out, self.shards[0].dataset
        # Asked of every plan: it refuses what cannot run before anything is charged.
        guarantees = [release.guarantee() for release in training if release.reads_rows]
        if config.aim is not None:
            self._require_aim(len(models) if model is None else 1)
        groups = self._groups()
        if not config.evaluation or not dataset.private or config.epsilon is None or not held_out:
            return () if dataset.private else groups
        pure = not config.roc and all(
            one.proved and all(isinstance(loss, PureEpsilon) for loss in one.losses) for one in guarantees
        )
        paths = [(*models[0].upstream, model.key)] if model else [(*one.upstream, one.key) for one in models]
        several = (1 + config.roc) * len(paths)
        losses = self._evaluation_losses([PureEpsilon if pure else GaussianMu] * several)
        # A row's group stands before the scores of what is counted by group.
        grouped = tuple(one.key for one in groups)
        specs = [(self._evaluator(groups, losses[0], sum(shard.rows for shard in held_out)), grouped)]
        if config.roc:
            specs.append(self._scores(groups))
        trust = Trust.CENTRAL if len(held_out) == 1 else self.resolved.trust
        setting = Setting(
            sizes=tuple(shard.rows for shard in held_out),
            dimension=1 if self._classes <= 2 else self._classes,
            classes=self._classes,
            neighbours=self.neighbours,
            trust=trust,
            noise_factor=self._trust(trust).build().noise_factor(len(held_out)),
            rows_per_person=dataset.rows_per_person,
        )
        measuring = (
            self.release(
                spec,
                loss,
                held_out,
                dataclasses.replace(setting, dimension=len(grouping) + setting.dimension),
                (*grouping, *path),
                f"{spec.name} of held-out rows",
                (1, len(path)) if grouping else (),
            )
            for (path, (spec, grouping)), loss in zip(itertools.product(paths, specs), losses, strict=True)
        )
        return (*groups, *self.earlier, *measuring)

    def _groups(self) -> tuple[PlannedRelease, ...]:
        """Return the public map of a row to its group, if any is asked for: made like a release, and costs nothing."""
        config, dataset = self.config, self.shards[0].dataset
        if config.by is None:
            return ()
        if dataset.label_range is not None:
            raise ParameterError(
                f"by is {config.by}; groups are evaluated by counts of classes, and these labels are numeric: omit "
                "it, or register the rows with ranges of the label as classes"
            )
        if self.groups is None:
            raise ParameterError(f"by is {config.by}; groups need a declared column of a registered table")
        if dataset.private and not self.held_out:
            raise ParameterError(
                f"by is {config.by}; groups are evaluated on held-out rows, and this run holds none out: omit it, or "
                "give a --test-fraction above 0"
            )
        group = self.held_out or self.shards
        setting = Setting(
            sizes=tuple(shard.rows for shard in group),
            dimension=dataset.dimension,
            classes=self._classes,
            neighbours=self.neighbours,
            rows_per_person=dataset.rows_per_person,
        )
        return (self.release(self.groups, None, group, setting, (), f"groups by {config.by}"),)

    def _require_aim(self, models: int) -> None:
        """Refuse an aim that no released sums of scores serve."""
        private = self.config.evaluation and self.shards[0].dataset.private and self.config.epsilon is not None
        fault = None
        if not (private and self.held_out):
            fault = "a threshold needs a release of private held-out rows, and this run makes none; omit it"
        elif self._classes != 2:
            fault = f"a threshold needs two classes; this data set has {self._classes}"
        elif models != 1:
            fault = f"a threshold needs one model, and this run trains {models}; add an aggregation"
        if fault is not None:
            raise ParameterError(f"aim is {self.config.aim}; {fault}")

    def _evaluator(self, groups: Sequence[PlannedRelease], loss: Loss, rows: int) -> AlgorithmSpec:
        """Return what measures a model of this data set: confusions of classes, or errors in a declared range."""
        label_range = self.shards[0].dataset.label_range
        if groups:
            count = len(cast(ColumnGroups, groups[0].build()).names)
            name = "laplace-confusion-by-group" if isinstance(loss, PureEpsilon) else "confusion-by-group"
            return AlgorithmSpec("evaluators", name, self._counted_by(count))
        if label_range is None:
            return AlgorithmSpec(
                "evaluators", "laplace-confusion-matrix" if isinstance(loss, PureEpsilon) else "confusion-matrix"
            )
        if self.config.roc:
            raise ParameterError("--roc needs classes, and these labels are numeric; omit --roc")
        if not isinstance(loss, GaussianMu):
            return AlgorithmSpec("evaluators", "laplace-error-sums", {"label_range": list(label_range)})
        return AlgorithmSpec(
            "evaluators", "error-distribution", {"label_range": list(label_range), "parts": parts_for(rows, loss.mu)}
        )

    def _scores(self, groups: Sequence[PlannedRelease]) -> tuple[AlgorithmSpec, tuple[str, ...]]:
        """Return what counts the scores of a model, and what says the group of each row where they are by group.

        By group are those of two classes: of more there is no threshold whose rates groups would have.
        """
        # Most rows of a rare class's table share a bin at scale 1.
        parameters: dict[str, object] = {"scale": 2.0}
        if not groups or self._classes > 2:
            return AlgorithmSpec("evaluators", "score-distribution", parameters), ()
        count = len(cast(ColumnGroups, groups[0].build()).names)
        return (
            AlgorithmSpec("evaluators", "scores-by-group", {**parameters, **self._counted_by(count)}),
            tuple(one.key for one in groups),
        )

    def _counted_by(self, groups: int) -> dict[str, object]:
        """Return the parameters of what counts groups, of all rows too where these were not counted before."""
        return {"groups": groups, **({"alone": True} if self.earlier else {})}

    def _evaluation_losses(self, kinds: Sequence[type[Loss]]) -> tuple[Loss, ...]:
        """Split the run's (epsilon, delta) equally; deadline misses are paid first."""
        epsilon, delta, weights = (
            cast(float, self.config.epsilon),
            self.config.stated_delta,
            [1 / len(kinds)] * len(kinds),
        )
        losses = allocate(kinds, weights, epsilon, delta).losses
        if self._deadline is None:
            return losses
        # What less noise could reveal by deadline misses is more, so their price stays enough.
        price = [loss_of_deadline_misses((loss,), self._deadline.misses(1)) for loss in losses]
        slack = math.fsum(loss.slack if isinstance(loss, SlackGaussian) else 1.0 for loss in price)
        if slack >= delta:
            raise ParameterError(
                f"deadline misses of probability {self._deadline.miss:g} take {slack:.2g} of the total delta "
                f"{delta:g}: choose a larger --deadline and a smaller --deadline-miss"
            )
        return allocate(kinds, weights, epsilon, delta - slack).losses
