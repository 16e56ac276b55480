"""From a configuration to a plan: every release of a run, with its identity and price, before any row is read."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict, cast

from dpalgos.accounting.calibration import Allocation, allocate, tightened
from dpalgos.accounting.costs import loss_of_deadline_misses
from dpalgos.errors import ParameterError
from dpalgos.guarantees import GaussianMu, Loss, Neighbours, PureEpsilon, Setting, SlackGaussian, Trust, loss_to_json
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.systems.system import Scope
from storage.refs import ShardRef
from tasks.planning.configuration import BudgetSettings, Json, TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.plans import Deadline, FeatureStep, PlannedCombination, PlannedRelease, RunIdentity, RunPlan
from tasks.planning.resolution import Resolved, resolve, resolve_trust

_STAGES = ("projection", "trainer")

Budgets = Mapping[str, Loss]


class _Common(TypedDict):
    """What every identity of a run holds."""

    partition: str
    dataset: str
    repetition: int
    seed: int | None


class _Reducing(Protocol):
    """A projection: the dimension of what it makes is public before any row is read."""

    def output_dimension(self, dimension: int) -> int: ...


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
    if draft.resolved.claim is not None:
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
            dimension = cast(_Reducing, projections[0].build()).output_dimension(dimension)
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
            system=self._name,
            paper=resolved.paper,
            trust=resolved.trust,
            normalisation=dataset.normalisation,
            projections=projections,
            basis=basis,
            models=models,
            model=model,
            evaluations=evaluations,
            features=self.features,
            split=split,
            claim=resolved.claim,
            sound_counterpart=resolved.sound_counterpart,
            epsilon=config.epsilon,
            delta=config.stated_delta,
            reasons=resolved.reasons,
            warning=resolved.warning,
        )

    @property
    def _name(self) -> str:
        return "+".join([self.resolved.name, *(step.label for step in self.features)])

    @property
    def _classes(self) -> int:
        return max(len(self.shards[0].dataset.classes), 1)

    def _common(self) -> _Common:
        return {
            "partition": self.shards[0].partition,
            "dataset": self.shards[0].dataset.version,
            "repetition": self.config.repetition,
            "seed": self.config.seed,
        }

    def _release(
        self,
        spec: AlgorithmSpec,
        budget: Loss | None,
        group: Sequence[ShardRef],
        setting: Setting,
        upstream: Sequence[str],
        label: str,
    ) -> PlannedRelease:
        # Maps made from public parameters see no sums that would have to be formed somehow.
        trust = self._trust(setting.trust if lookup(spec.kind, spec.name).reads_rows else Trust.CENTRAL)
        return PlannedRelease(
            **self._common(),
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
            releases.append(self._release(spec, budgets.get(part), group, setting, upstream, label))
        return tuple(releases)

    def _combination(self, part: str, planned: Sequence[PlannedRelease], label: str) -> PlannedCombination | None:
        spec = self.resolved.parts.get(part)
        if spec is None:
            return None
        total = sum(shard.rows for shard in self.shards)
        return PlannedCombination(
            **self._common(),
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
            self._release(spec, loss, held_out, setting, path, f"{spec.name} of held-out rows")
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
