"""From a configuration to a plan: all releases of a run or a night, with identity and price, before rows are read."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import BaseModel

from dpalgos.accounting.calibration import Allocation, allocate, tightened
from dpalgos.accounting.costs import loss_of_deadline_misses
from dpalgos.algorithms import ProjectionAlgorithm
from dpalgos.continual import NightSum, require_gaussian_sum
from dpalgos.errors import ParameterError
from dpalgos.guarantees import GaussianMu, Loss, Neighbours, PureEpsilon, Setting, SlackGaussian, Trust, loss_to_json
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.systems.system import Scope
from storage.catalog import Horizon
from storage.errors import InputError
from storage.refs import DatasetRef, ShardRef
from tasks.planning.configuration import BudgetSettings, HorizonSettings, Json, TrainingConfig
from tasks.planning.identity import code_version, identity
from tasks.planning.plans import (
    Deadline,
    FeatureStep,
    NightIdentity,
    PlannedCombination,
    PlannedNightModel,
    PlannedRelease,
    RunIdentity,
    RunPlan,
    Stream,
    one_night,
)
from tasks.planning.resolution import Resolved, resolve, resolve_trust, with_given

_STAGES = ("projection", "trainer")
# Of a party's frozen sums; a factor of fewer bands keeps fewer of them.
_LARGEST_STATE = 2**32

Budgets = Mapping[str, Loss]


def plan_run(
    config: TrainingConfig,
    shards: Sequence[ShardRef],
    held_out: ShardRef | Sequence[ShardRef] | None = None,
    *,
    relation: Neighbours = Neighbours.REPLACE_ONE,
    features: Sequence[FeatureStep] = (),
) -> RunPlan:
    """Return the plan of one run over the parties' shards.

    Parameters
    ----------
    config : TrainingConfig
    shards : sequence of ShardRef
        The parties' training shards, in order; the same partition.
    held_out : ShardRef or sequence of ShardRef, optional
        Rows a charged evaluation may read; several where each party holds out its own, which are then counted as the
        run's trust model has it.
    relation : Neighbours
        The account's, in force where the configuration names none.
    features : sequence of FeatureStep
        The public maps that these rows have passed through.

    Raises
    ------
    ParameterError, UnknownNameError
        For names and parameters that do not fit.
    InputError
        For a target dimension above the data's.
    """
    if config.horizon is not None:
        raise ParameterError(
            "a horizon is released night by night by `unitball train` and `unitball schedule`, and by nothing else: "
            "leave --horizon out here"
        )
    neighbours = config.neighbours or relation
    resolved = resolve(config, shards[0].dataset, [shard.rows for shard in shards], neighbours)
    trust = resolve_trust(config, resolved.trust)
    draft = _Draft(
        config=config,
        resolved=resolved,
        trust=trust,
        shards=tuple(shards),
        held_out=(held_out,) if isinstance(held_out, ShardRef) else tuple(held_out or ()),
        neighbours=neighbours,
        features=tuple(features),
    )
    accepted = {part: lookup(spec.kind, spec.name).budgets for part, spec in resolved.parts.items() if part in _STAGES}
    stages = {stage: accepted[stage][0] for stage in _STAGES if accepted.get(stage)}
    if not stages:
        return draft.plan({}, {})
    allocation = _allocate(resolved, config, stages)
    budgets = dict(zip(stages, allocation.losses, strict=True))
    if allocation.composed > allocation.epsilon and draft.plan(budgets, {}).proved:
        # What papers give each of their stages is more than the target together; proved stages share delta as well.
        allocation = _allocate(resolved, config, stages, share_delta=True)
        budgets = dict(zip(stages, allocation.losses, strict=True))
    budgets = _tightened(draft, budgets, allocation)
    losses = [loss_to_json(budgets[stage]) for stage in stages]
    return draft.plan(budgets, {**allocation.to_json(), "stages": list(stages), "losses": losses})


def _allocate(
    resolved: Resolved, config: BudgetSettings, stages: Mapping[str, type[Loss]], *, share_delta: bool = False
) -> Allocation:
    """Split (epsilon, delta) over the stages that draw noise, each with the kind of loss it takes."""
    if config.epsilon is None:
        raise ParameterError(f"{resolved.name} draws noise: give a total budget, for example --epsilon 1")
    share = resolved.arrangement.projection_share
    shares = {"projection": share, "trainer": 1 - share}
    weights = [shares[stage] for stage in stages] if len(stages) > 1 else [1.0]
    return allocate(list(stages.values()), weights, config.epsilon, config.stated_delta, share_delta=share_delta)


def _tightened(draft: _Draft, budgets: dict[str, Loss], allocation: Allocation) -> dict[str, Loss]:
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
class _Draft:
    """Everything about a run but its budgets."""

    config: TrainingConfig
    resolved: Resolved
    trust: AlgorithmSpec
    shards: tuple[ShardRef, ...]
    held_out: tuple[ShardRef, ...]
    neighbours: Neighbours
    features: tuple[FeatureStep, ...]

    def plan(self, budgets: Budgets, split: Json) -> RunPlan:
        """Return the plan under these budgets."""
        parts, arrangement, dataset = self.resolved.parts, self.resolved.arrangement, self.shards[0].dataset
        projections: tuple[PlannedRelease, ...] = ()
        basis: PlannedCombination | None = None
        used: list[str] = []
        dimension = dataset.dimension
        if "projection" in parts:
            looks = lookup("projections", parts["projection"].name).reads_rows
            scope = arrangement.projection_scope if looks else Scope.JOINT
            projections = self._releases("projection", scope, dimension, (), budgets)
            basis = self._combination("basis_aggregation", projections, "basis") if scope is Scope.PARTY else None
            used = [basis.key] if basis else [release.key for release in projections]
            dimension = cast(ProjectionAlgorithm, projections[0].build()).output_dimension(dimension)
        models = self._releases("trainer", arrangement.trainer_scope, dimension, used, budgets)
        per_party = arrangement.trainer_scope is Scope.PARTY
        model = self._combination("model_aggregation", models, "model") if per_party else None
        evaluations = self._evaluations(models, model, pure=_is_pure((*projections, *models)))
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
    ) -> PlannedRelease:
        """Return the plan of one release of a group's rows."""
        # Maps made from public parameters see no sums that would have to be formed somehow.
        trust = self._trust(setting.trust if lookup(spec.kind, spec.name).reads_rows else Trust.CENTRAL)
        return PlannedRelease(
            partition=self.shards[0].partition,
            dataset=self.shards[0].dataset.version,
            repetition=self.config.repetition,
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
        )

    @property
    def _deadline(self) -> Deadline | None:
        """When releases of private rows appear; how long public rows take is nobody's secret."""
        if self.config.deadline is None or not self.shards[0].dataset.private:
            return None
        return Deadline(seconds=self.config.deadline, overrun=self.config.overrun)

    def _trust(self, name: str) -> AlgorithmSpec:
        """Return the run's trust model with its settings, or another, which has none."""
        return self.trust if name == self.trust.name else AlgorithmSpec("trusts", name)

    def _releases(
        self, part: str, scope: Scope, dimension: int, uses: Sequence[str], budgets: Budgets
    ) -> tuple[PlannedRelease, ...]:
        groups = [(shard,) for shard in self.shards] if scope is Scope.PARTY else [self.shards]
        thing = {"projection": "basis", "trainer": "model"}[part]
        releases = []
        for index, group in enumerate(groups):
            setting = Setting(
                sizes=tuple(shard.rows for shard in group),
                dimension=dimension,
                classes=self._classes,
                neighbours=self.neighbours,
                trust=self.resolved.trust,
                noise_factor=self.trust.build().noise_factor(len(group)),
                rows_per_person=self.shards[0].dataset.rows_per_person,
            )
            # One upstream release serves all; several are one a party, in the parties' order.
            upstream = () if not uses else (uses[index] if len(uses) > 1 else uses[0],)
            label = f"{thing} of " + (f"party {group[0].party}" if scope is Scope.PARTY else "all parties")
            spec = self.resolved.parts[part]
            releases.append(self.release(spec, budgets.get(part), group, setting, upstream, label))
        return tuple(releases)

    def _combination(self, part: str, planned: Sequence[PlannedRelease], label: str) -> PlannedCombination | None:
        spec = self.resolved.parts.get(part)
        if spec is None:
            return None
        total = sum(shard.rows for shard in self.shards)
        return PlannedCombination(
            partition=self.shards[0].partition,
            dataset=self.shards[0].dataset.version,
            repetition=self.config.repetition,
            seed=self.config.seed,
            code=code_version(lookup(spec.kind, spec.name)),
            label=label,
            algorithm=spec,
            upstream=tuple(release.key for release in planned),
            weights=tuple(shard.rows / total for shard in self.shards),
        )

    def _evaluations(
        self, models: Sequence[PlannedRelease], model: PlannedCombination | None, *, pure: bool
    ) -> tuple[PlannedRelease, ...]:
        """Plan how well each released model does on private held-out rows.

        The held-out rows belong to no party that trains, so they have the run's whole budget to themselves: of the
        training's kind, so that measuring spends no delta where training spends none. Several models share it equally;
        the mean of their accuracies is then as noisy as that of one would be (Gaussian noise).
        """
        config, held_out, dataset = self.config, self.held_out, self.shards[0].dataset
        if config.aim is not None:
            self._require_aim(len(models) if model is None else 1)
        if not config.evaluation or not dataset.private or config.epsilon is None or not held_out:
            return ()
        pure = pure and not config.roc
        specs = [self._evaluator(pure=pure)]
        if config.roc:
            # Most rows of a rare class's table share a bin at scale 1.
            specs.append(AlgorithmSpec("evaluators", "score-histogram", {"scale": 2.0}))
        paths = [(*models[0].upstream, model.key)] if model else [(*one.upstream, one.key) for one in models]
        losses = self._evaluation_losses([PureEpsilon if pure else GaussianMu] * (len(specs) * len(paths)))
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
        return tuple(
            self.release(spec, loss, held_out, setting, path, f"{spec.name} of held-out rows")
            for (path, spec), loss in zip(itertools.product(paths, specs), losses, strict=True)
        )

    def _require_aim(self, models: int) -> None:
        """Refuse an aim that no released histogram serves."""
        dataset, prefix = self.shards[0].dataset, f"aim is {self.config.aim}; "
        if not (self.config.evaluation and dataset.private and self.config.epsilon is not None and self.held_out):
            raise ParameterError(f"{prefix}a threshold is chosen by a release of private held-out rows; leave it out")
        if self._classes != 2:
            raise ParameterError(f"{prefix}a threshold is of two classes, and here are {self._classes}")
        if models > 1:
            raise ParameterError(f"{prefix}a threshold is of one model, and here are {models}; name an aggregation")

    def _evaluator(self, *, pure: bool) -> AlgorithmSpec:
        """Return what measures a model of this data set: confusions of classes, or errors in a declared range."""
        label_range = self.shards[0].dataset.label_range
        if label_range is None:
            return AlgorithmSpec("evaluators", "laplace-confusion-matrix" if pure else "confusion-matrix")
        if self.config.roc:
            raise ParameterError("a ROC is of classes, and these labels are numbers; leave --roc out")
        return AlgorithmSpec(
            "evaluators", "laplace-error-sums" if pure else "error-sums", {"label_range": list(label_range)}
        )

    def _evaluation_losses(self, kinds: Sequence[type[Loss]]) -> tuple[Loss, ...]:
        """Split the run's (epsilon, delta) equally; overruns of a deadline are paid first."""
        epsilon, delta, weights = (
            cast(float, self.config.epsilon),
            self.config.stated_delta,
            [1 / len(kinds)] * len(kinds),
        )
        losses = allocate(kinds, weights, epsilon, delta).losses
        if self._deadline is None:
            return losses
        # What less noise could reveal by overruns is more, so their price stays enough.
        price = [loss_of_deadline_misses((loss,), self._deadline.overrun) for loss in losses]
        slack = math.fsum(loss.slack if isinstance(loss, SlackGaussian) else 1.0 for loss in price)
        if slack >= delta:
            raise ParameterError(
                f"deadline misses of probability {self._deadline.overrun:g} cost {slack:.2g} of delta, which is "
                f"{delta:g} in all: choose a larger --deadline and a smaller --overrun"
            )
        return allocate(kinds, weights, epsilon, delta - slack).losses


def _is_pure(training: Sequence[PlannedRelease]) -> bool:
    """Whether what trains a model spends a pure epsilon and nothing else."""
    guarantees = [release.guarantee() for release in training if release.reads_rows]
    return all(item.proved and all(isinstance(loss, PureEpsilon) for loss in item.losses) for item in guarantees)


class StreamTerms(BaseModel, frozen=True, extra="forbid"):
    """What is released night after night: everything that must not change before the horizon ends.

    Attributes
    ----------
    system, paper : str
    release : PlannedRelease
        Of the first night; the others differ in night, rows and version.
    projection : PlannedRelease or None
        The public map that rows pass through, made in the first night.
    reasons : tuple of str
    dimension : int
        Features of the rows as they are stored.
    classes : int
    epsilon : float
    """

    system: str
    paper: str
    release: PlannedRelease
    projection: PlannedRelease | None
    reasons: tuple[str, ...]
    dimension: int
    classes: int
    epsilon: float

    @property
    def tells_parties_apart(self) -> bool:
        """Whether what is seen of a night depends on who holds which row.

        Without dropouts and colluders it is the sum over all parties. With dropouts it is the sum over those that
        remain, and colluders know their own rows.
        """
        secure = self.release.trust.parameters
        return self.release.setting.trust == Trust.SECAGG and bool(secure.get("dropouts") or secure.get("colluders"))


def night_partition(dataset: DatasetRef, horizon: int, rule: str | int) -> str:
    """Return the name of the partition of a horizon's rows.

    Parameters
    ----------
    dataset : DatasetRef
        Any version.
    horizon : int
        Its number.
    rule : str or int
        What partitions each night's rows: the parties' own files, or in turn to so many parties.
    """
    return identity(dataset=dataset.name, account=dataset.account, horizon=horizon, rule=rule)[:32]


def fix_terms(
    config: TrainingConfig,
    horizon: Horizon,
    shards: Sequence[ShardRef],
    *,
    relation: Neighbours,
    features: Sequence[FeatureStep] = (),
) -> StreamTerms:
    """Return what a horizon releases, from its first night's public facts.

    Parameters
    ----------
    config : TrainingConfig
    horizon : Horizon
        Whose rows are released.
    shards : sequence of ShardRef
        The parties' rows of the first night, in order.
    relation : Neighbours
        The account's, in force where the configuration names none.
    features : sequence of FeatureStep
        Public maps that rows have passed through.

    Raises
    ------
    ParameterError
        For what cannot be released night after night.
    """
    assert config.horizon is not None
    if config.epsilon is None:
        raise ParameterError("a horizon draws noise: give its budget, for example --epsilon 1")
    factor = ToeplitzFactor(
        nights=config.horizon,
        bands=config.bands,
        participations=config.participations,
        separation=config.separation,
    )
    neighbours, dataset = config.neighbours or relation, shards[0].dataset
    expected = config.expected_rows or factor.nights * max(sum(shard.rows for shard in shards), 1)
    sizes = (max(1, math.ceil(expected / len(shards))),) * len(shards)
    resolved = _resolve(config, dataset, sizes, neighbours, factor)
    trust = resolve_trust(config, resolved.trust)
    budget = allocate([GaussianMu], [1.0], config.epsilon, config.stated_delta).losses[0]
    draft = _Draft(
        config=config,
        resolved=resolved,
        trust=trust,
        shards=tuple(shards),
        held_out=(),
        neighbours=neighbours,
        features=tuple(features),
    )
    projection, dimension = _public_map(draft), dataset.dimension
    if projection is not None:
        dimension = cast(ProjectionAlgorithm, projection.build()).output_dimension(dimension)
    setting = Setting(
        sizes=sizes,
        dimension=dimension,
        classes=max(len(dataset.classes), 1),
        neighbours=neighbours,
        trust=resolved.trust,
        noise_factor=trust.build().noise_factor(len(shards)),
        rows_per_person=dataset.rows_per_person,
    )
    trainer = resolved.parts["trainer"]
    # What depends on sizes would be released, and then there would be no model of the nights: one row is the fewest.
    inner = require_gaussian_sum(one_night(trainer, budget, factor), setting, (1,) * len(sizes))
    bands = _bands_that_fit(config, factor, 8 * math.prod(inner.sum_shape(setting)))
    if bands != factor.bands:
        factor = dataclasses.replace(factor, bands=bands)
        require_gaussian_sum(one_night(trainer, budget, factor), setting)
    alone = [horizon.number] if config.participations > 1 or dataset.person else []
    upstream, label = () if projection is None else (projection.key,), f"night 1 of {factor.nights}"
    stream = Stream(
        # Rows that may come back, and people, who are in each horizon, are in no part of a partition: what such a
        # horizon costs is added to all others.
        partition=identity(account=dataset.account, dataset=dataset.name, nights=alone)[:32],
        horizon=horizon.number,
        nights=factor.nights,
        night=1,
        bands=factor.bands,
        participations=factor.participations,
        separation=factor.separation,
        rows=identity(normalisation=dataset.normalisation, features=[step.key for step in features])[:32],
        arrived=tuple(shard.rows for shard in shards),
    )
    release = draft.release(trainer, budget, shards, setting, upstream, label)
    release = release.model_copy(update={"code": _code(trainer, trust), "stream": stream})
    release.guarantee()
    return StreamTerms(
        system=resolved.name,
        paper=resolved.system.paper,
        release=release,
        projection=projection,
        reasons=(
            *resolved.reasons,
            f"{factor.nights} nights at one price: the last running sum has {factor.error_of(factor.nights):.2f} times "
            "the noise of one release of all rows",
            *_said_of_bands(config, factor),
        ),
        dimension=dataset.dimension,
        classes=len(dataset.classes),
        epsilon=config.epsilon,
    )


def _bands_that_fit(config: HorizonSettings, factor: ToeplitzFactor, night: int) -> int | None:
    """Return how many nights' sums of ``night`` bytes a party keeps: those asked for, or as many as there is room for.

    Raises
    ------
    ParameterError
        If there is no room for those asked for, or for one.
    """
    most = _LARGEST_STATE // night
    if factor.kept_nights <= most:
        return factor.bands
    if config.bands is None and most:
        return most
    raise ParameterError(
        f"each party would keep {factor.kept_nights} frozen sums of {night / 2**30:.2g} GiB, and the most is "
        f"{_LARGEST_STATE / 2**30:.2g} GiB: keep fewer nights (--bands {max(most, 1)}, at more noise) or fewer "
        "features (--dimension)"
    )


def _said_of_bands(config: HorizonSettings, factor: ToeplitzFactor) -> tuple[str, ...]:
    if factor.bands == config.bands:
        return ()
    whole = dataclasses.replace(factor, bands=None).error_of(factor.nights)
    return (
        f"each party keeps its sums of {factor.bands} nights, for which {_LARGEST_STATE / 2**30:.2g} GiB have room; "
        f"with all {factor.nights} the noise would be {whole:.2f} times",
    )


def _resolve(
    config: TrainingConfig,
    dataset: DatasetRef,
    sizes: tuple[int, ...],
    neighbours: Neighbours,
    factor: ToeplitzFactor,
) -> Resolved:
    """Return the parts: those of the system, its trainer exchanged where that one is not one sum."""
    # A map is chosen by how much noise there will be: as if so many fewer rows were released once.
    worth = tuple(max(1, math.ceil(size / factor.error_of(factor.nights))) for size in sizes)
    resolution = resolve(config, dataset, worth, neighbours)
    if resolution.arrangement.trainer_scope is Scope.PARTY:
        raise ParameterError(
            f"{resolution.name} releases each party's own model, and a horizon releases one sum of all; choose --trust "
            "secagg or --trust central"
        )
    if config.algorithm == "unitball":
        table = dataset.image_shape is None and config.features is None and config.public_dataset is None
        name = "sufficient-statistics" if table or not dataset.classes else "class-means"
        # The recommended trainer takes steps, or is this one: of what was given all must fit this one as well.
        parts = with_given({**resolution.parts, "trainer": AlgorithmSpec("trainers", name)}, config, dataset)
        projection = parts.get("projection")
        learnt = projection is not None and lookup(projection.kind, projection.name).reads_rows
        if learnt:
            # Chosen for all rows at once; nobody has asked for it here.
            del parts["projection"]
        return dataclasses.replace(
            resolution,
            parts=parts,
            reasons=(*(() if learnt else resolution.reasons[:1]), f"{name}: one sum a night, and post-processing"),
            warning=None,
        )
    return resolution


def _public_map(draft: _Draft) -> PlannedRelease | None:
    """Return the map that rows of all nights pass through, which looks at none of them."""
    spec = draft.resolved.parts.get("projection")
    if spec is None:
        return None
    if lookup(spec.kind, spec.name).reads_rows:
        raise ParameterError(
            f"{spec.name} learns directions from rows that have not come yet; choose a map that looks at none "
            "(--projection public-whitening, --features …), or none"
        )
    dataset = draft.shards[0].dataset
    setting = Setting(
        sizes=tuple(shard.rows for shard in draft.shards),
        dimension=dataset.dimension,
        classes=max(len(dataset.classes), 1),
        trust=Trust.CENTRAL,
        rows_per_person=dataset.rows_per_person,
    )
    return draft.release(spec, None, draft.shards, setting, (), "map of all nights")


def _code(trainer: AlgorithmSpec, trust: AlgorithmSpec) -> str:
    return code_version(lookup(trainer.kind, trainer.name), lookup(trust.kind, trust.name), NightSum)


def planned_night(terms: StreamTerms, night: int, shards: Sequence[ShardRef]) -> PlannedRelease:
    """Return the release of one night.

    Parameters
    ----------
    terms : StreamTerms
    night : int
        From 1.
    shards : sequence of ShardRef
        The parties' rows of that night, in order.

    Raises
    ------
    InputError
        If the rows have other features or classes, or other parties hold them, than when the horizon began.
    """
    first, dataset = terms.release, shards[0].dataset
    stream = cast(Stream, first.stream)
    begun = (terms.dimension, terms.classes, first.parties)
    now = (dataset.dimension, len(dataset.classes), tuple(shard.party for shard in shards))
    if now != begun:
        raise InputError(
            f"the rows of {dataset.name} have {now[0]} features, {now[1]} classes and the parties {', '.join(now[2])}; "
            f"its horizon began with {begun[0]}, {begun[1]} and {', '.join(begun[2])}, and its sums add up rows of one "
            "kind only"
        )
    return first.model_copy(
        update={
            "label": f"night {night} of {stream.nights}",
            "code": _code(first.algorithm, first.trust),
            "dataset": dataset.version,
            "stream": stream.model_copy(update={"night": night, "arrived": tuple(shard.rows for shard in shards)}),
        }
    )


def plan_night(
    terms: StreamTerms,
    config: TrainingConfig,
    night: int,
    shards: Sequence[ShardRef],
    arrived: tuple[int, ...],
    features: Sequence[FeatureStep] = (),
) -> RunPlan:
    """Return the plan of one night: its release, and the model of all nights so far.

    Parameters
    ----------
    terms : StreamTerms
    config : TrainingConfig
    night : int
    shards : sequence of ShardRef
        Of that night.
    arrived : tuple of int
        Rows of each party so far.
    features : sequence of FeatureStep

    Raises
    ------
    ParameterError
        If more rows have arrived than sums of the horizon can hold, or than its noise is made for.
    """
    tonight = planned_night(terms, night, shards)
    stream, budget = cast(Stream, tonight.stream), tonight.budget
    assert budget is not None
    inner, expected = one_night(tonight.algorithm, budget, stream.factor), tonight.setting.sizes
    require_gaussian_sum(inner, dataclasses.replace(tonight.setting, sizes=arrived), expected)
    model = PlannedNightModel(
        label=f"model of night {stream.night}",
        code=tonight.code,
        dataset=tonight.dataset,
        partition=tonight.partition,
        repetition=tonight.repetition,
        seed=tonight.seed,
        upstream=tonight.night_keys[:night],
        algorithm=tonight.algorithm,
        weights=(),
        budget=budget,
        setting=tonight.setting,
        stream=stream,
        arrived=arrived,
    )
    return RunPlan(
        identity=NightIdentity(
            models=(tonight.key,),
            model=model.key,
            dataset=shards[0].dataset,
            system=terms.system,
            evaluation=(config.evaluation, ()),
            target=(terms.epsilon, tonight.delta),
        ),
        system=terms.system,
        paper=terms.paper,
        trust=tonight.setting.trust,
        normalisation=shards[0].dataset.normalisation,
        projections=() if terms.projection is None else (terms.projection,),
        basis=None,
        models=(tonight,),
        model=model,
        evaluations=(),
        features=tuple(features),
        split={},
        claim=None,
        sound_counterpart=None,
        epsilon=terms.epsilon,
        delta=tonight.delta,
        reasons=terms.reasons,
    )
