"""Plans: from a configuration to all releases of a run, with identity and price, before rows are read; their nodes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import not_
from typing import TypeVar, cast

import numpy as np
from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from dpalgos.accounting.costs import Allocation, allocate, loss_of_deadline_misses, tightened
from dpalgos.aggregators import Aggregator
from dpalgos.algorithms import Algorithm, OneSum, ProjectionAlgorithm
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
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.models import Artefact
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.secure.summation import Masking
from dpalgos.systems.system import Scope
from dpalgos.trainers.continual import NightSum, RunningSumModel, night_again, nightly_budget
from dpalgos.trust.model import EVERYONE, TrustModel
from storage.refs import DatasetRef, ShardRef
from tasks.planning.configuration import AlgorithmField, BudgetSettings, Json, LossField, SettingField, TrainingConfig
from tasks.planning.identity import code_version, identity
from tasks.planning.resolution import Resolved, resolve, resolve_trust


class _Planned(BaseModel, frozen=True, extra="forbid"):
    """A part of a plan."""


class Deadline(_Planned):
    """When a release of private rows appears, whatever the rows, and what is made of them before it.

    Attributes
    ----------
    seconds : float
        From the moment at which rows may be read; public, as everything that it was chosen by must be.
    overrun : float
        Declared bound on the probability of a deadline miss, as identities and manifests call it: that on any rows an
        attempt at the release takes longer, or that what is made of the rows before (normalised, seen through public
        maps, partitioned) does, above 0. Attempts that are cut short for reasons outside the rows are to be counted in.
    """

    seconds: float
    overrun: float

    def misses(self, attempts: int) -> float:
        """Return a bound on the probability that a release, or what is made of its rows before, misses a deadline.

        Everything that is done with the rows has a clock of its own: the preparation, once for all releases of a run,
        and then each attempt. If the preparation is late, no release is attempted. On any rows each of these clocks is
        missed with probability ``overrun`` at most, given that those before were kept; so at most so many times that
        is the probability that anything but the release at its instant is seen on the way to it, and
        :func:`dpalgos.accounting.costs.loss_of_deadline_misses` holds with it. Of a run's releases the first that reads
        somebody's rows would have to count the preparation. Each does: no release then rests on what others have paid.

        Parameters
        ----------
        attempts : int
            Tasks that each may miss the deadline: one, or one a party.
        """
        return (attempts + 1) * self.overrun


class Shards(_Planned):
    """The parties' training shards in order, and the rows held out.

    Attributes
    ----------
    training : tuple of ShardRef
    held_out : ShardRef or None
        Test rows: the data set's own, or a share of its training rows; None where all rows train.
    """

    training: tuple[ShardRef, ...]
    held_out: ShardRef | None = None

    @property
    def all(self) -> tuple[ShardRef, ...]:
        """The training shards and the held-out rows."""
        return self.training if self.held_out is None else (*self.training, self.held_out)

    def of(self, parties: Sequence[str]) -> list[ShardRef]:
        """Return the shards of some parties, in that order; ``"test"`` is the held-out rows."""
        known = {shard.party: shard for shard in self.all}
        return [known[party] for party in parties]


class FeatureStep(_Planned):
    """One public map that all rows of a run pass through before they are partitioned.

    Attributes
    ----------
    key : str
        Identity of the map: what it is made of, its code, the maps before it.
    label : str
        For people.
    dimension : int
        Features that come out.
    algorithm : AlgorithmSpec or None
        What makes it from public parameters; None where it is stored already or public rows make it.
    public : DatasetRef or None
        The public rows that it is learnt from.
    outside : str or None
        Whose rows the guarantee leaves out because of it, in one sentence.
    """

    key: str
    label: str
    dimension: int
    algorithm: AlgorithmField | None = None
    public: DatasetRef | None = None
    outside: str | None = None


class Stream(_Planned):
    """Which release of a stream a release is: that of one night of a horizon, charged with all others at once.

    Attributes
    ----------
    partition : str
        Of the data set's rows into horizons, for the ledger: rows of different horizons are disjoint. Where they are
        not (people, rows that come back), of one horizon alone.
    horizon : int
        Number of the horizon whose rows are read.
    nights, night : int
    bands : int or None
    participations, separation : int
        See :class:`~dpalgos.mechanisms.factorisation.ToeplitzFactor`.
    rows : str
        Identity of what rows pass through before they are stored: normalisation and public features.
    made_of : str
        Version of the code that a night's noise, unit and integers are made by
        (:func:`tasks.planning.nights.made_of`).
    epoch : str
        Since which restoration of the ledger the stream is (:meth:`storage.catalog.Catalog.epoch`); empty of public
        rows, and where the ledger was never restored.
    arrived : tuple of int
        Records of this night at each party.
    versions : tuple of str
        The registered version of each night so far, this one's last: whose rows the release is a sum of.
    """

    partition: str
    horizon: int
    nights: int
    night: int
    bands: int | None
    participations: int
    separation: int
    rows: str
    made_of: str
    arrived: tuple[int, ...]
    versions: tuple[str, ...]
    epoch: str = Field(default="", exclude_if=not_)

    @property
    def factor(self) -> ToeplitzFactor:
        """The factor of the running sums."""
        return ToeplitzFactor(
            nights=self.nights,
            bands=self.bands,
            participations=self.participations,
            separation=self.separation,
        )


class _Identified(_Planned):
    """What has an identity: a digest of everything that it says but its label.

    Attributes
    ----------
    label : str
        For people.
    code : str
        Version of the code and packages that compute it.
    dataset : str
        The version of the rows that everything is made of.
    partition : str
        How these rows are partitioned.
    repetition : int
        The run's replicate, as identities and manifests call it: another number is another release, drawn and charged
        anew.
    seed : int or None
        Public noise seed.
    upstream : tuple of str
        Keys of the releases that it uses, in turn.
    """

    label: str
    code: str
    dataset: str
    partition: str
    repetition: int
    seed: int | None
    upstream: tuple[str, ...]

    @property
    def key(self) -> str:
        """The identity; computed, so that nothing else can bear it."""
        return identity(**self.model_dump(mode="json", exclude={"label", *self._outside()}))

    def _outside(self) -> set[str]:
        return set()


class PlannedRelease(_Identified):
    """One release that will be made: what computes it, whose rows it reads, what it uses.

    Attributes
    ----------
    algorithm : AlgorithmSpec
        Without its budget.
    budget : Loss or None
        None where no noise is drawn.
    setting : Setting
    trust : AlgorithmSpec
        The trust model with its settings.
    parties : tuple of str
        Whose rows it reads.
    account : str
        The population that pays.
    delta : float
        At which its plan states its cost; must be below 1/n.
    deadline : Deadline or None
        When it appears. It changes no number but the charge, so it is part of the identity where there is one.
    outside : tuple of str
        Whose rows the guarantee leaves out, because maps that the rows went through were made of them; these maps are
        part of the identity as part of the data version.
    branches : tuple of int
        Where rows pass through several branches side by side: of how many of the upstream releases each is made, in
        order. None: through all in turn.
    """

    algorithm: AlgorithmField
    budget: LossField | None
    setting: SettingField
    trust: AlgorithmField
    parties: tuple[str, ...]
    account: str
    delta: float
    # Identities and manifests made before leave out what has no value here.
    deadline: Deadline | None = Field(default=None, exclude_if=not_)
    outside: tuple[str, ...] = Field(default=(), exclude_if=not_)
    stream: Stream | None = Field(default=None, exclude_if=not_)
    branches: tuple[int, ...] = Field(default=(), exclude_if=not_)

    @model_validator(mode="after")
    def _whole_branches(self) -> PlannedRelease:
        if self.branches and (min(self.branches) < 1 or sum(self.branches) != len(self.upstream)):
            raise ParameterError(f"branches {self.branches} are not made of the {len(self.upstream)} upstream releases")
        return self

    def _outside(self) -> set[str]:
        # What follows from the rest, or changes no number that is released.
        follows = {"account", "delta", "outside"}
        # All nights are charged when the first is, whatever versions of rows and code the others will have.
        return follows if self.stream is None else follows | {"dataset", "code"}

    @property
    def key(self) -> str:
        """The identity; of a night, by its horizon and number."""
        return super().key if self.stream is None else self._keys_of([self.stream.night])[0]

    def _keys_of(self, nights: Iterable[int], **changed: object) -> tuple[str, ...]:
        parts = self.model_dump(mode="json", exclude={"label", *self._outside()})
        # Which rows a night has is no part of its key, and is compared wherever it is taken for that night.
        stream = {**parts.pop("stream"), "arrived": None, "versions": None, **changed}
        return tuple(identity(**parts, stream={**stream, "night": night}) for night in nights)

    @property
    def stream_key(self) -> str:
        """What all nights of the stream have in common, and those that a lost ledger knew of under the same terms."""
        return self._keys_of([0], epoch=None)[0]

    @property
    def night_keys(self) -> tuple[str, ...]:
        """The identities of all nights of the horizon, the first first; empty where this is no night's release."""
        return () if self.stream is None else self._keys_of(range(1, self.stream.nights + 1))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each party that are read."""
        return self.setting.sizes if self.stream is None else self.stream.arrived

    @property
    def charged_parties(self) -> tuple[str, ...]:
        """Who pays, in the ledger: the parties whose rows are read, or the rows of a whole horizon."""
        return self.parties if self.stream is None else (f"horizon {self.stream.horizon}",)

    @property
    def charged_partition(self) -> str:
        """What these charged_parties are parts of."""
        return self.partition if self.stream is None else self.stream.partition

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return self.algorithm.name

    def build(self) -> Algorithm:
        """Return the algorithm with its budget."""
        if self.stream is not None and self.budget is not None:
            return NightSum(
                inner=one_night(self.algorithm, self.budget, self.stream.factor),
                budget=self.budget,
                factor=self.stream.factor,
                night=self.stream.night,
            )
        spec = self.algorithm if self.budget is None else self.algorithm.with_parameters(budget=self.budget)
        return cast(Algorithm, spec.build())

    def trust_model(self) -> TrustModel:
        """Return the trust model under which its sums are formed."""
        return cast(TrustModel, self.trust.build())

    @property
    def masking(self) -> Masking | None:
        """How its parties mask what they send; None where they do not."""
        return self.trust_model().masking(len(self.parties))

    @property
    def owner(self) -> str:
        """Whose release it is: a party's own, or everybody's."""
        return self.trust_model().owner(self.parties)

    @property
    def noise_contributors(self) -> tuple[str, ...]:
        """Whose secrets key the noise."""
        return self.trust_model().noise_contributors(self.parties)

    @property
    def reads_rows(self) -> bool:
        """Whether it looks at rows at all; maps made from public parameters do not, and cost nothing."""
        return bool(lookup(self.algorithm.kind, self.algorithm.name).reads_rows)

    @property
    def in_rounds(self) -> bool:
        """Whether its parties' messages to the server may be tasks of their own."""
        return self.reads_rows and self.trust_model().in_rounds(self.build(), self.setting)

    @property
    def travels(self) -> bool:
        """Whether it is sums over several parties, each of whom can send its part from elsewhere."""
        return self.reads_rows and self.trust_model().travels(self.build(), self.setting)

    def guarantee(self) -> Guarantee:
        """Return what is proved about the release, its time included where it has a deadline."""
        algorithm = self.build()
        proved = self.trust_model().guarantee(algorithm, self.setting)
        if self.stream is not None:
            # What the trust model adds, it adds in each night.
            own = algorithm.guarantee(self.setting).losses
            proved = replace(proved, losses=(*own, *proved.losses[len(own) :] * self.stream.nights))
        if self.outside and proved.proved:
            proved = replace(proved, assumptions=(*proved.assumptions, *self.outside))
        if self.deadline is None or not proved.proved:
            return proved
        # Each party's own task may miss it, and any of them is seen.
        attempts = len(self.parties) if self.in_rounds else 1
        return replace(
            proved,
            losses=(*proved.losses, loss_of_deadline_misses(proved.losses, self.deadline.misses(attempts))),
            assumptions=(
                *proved.assumptions,
                f"on any rows an attempt, or what is made of the rows before it, takes longer than "
                f"{self.deadline.seconds:g} s with probability at most {self.deadline.overrun:g}",
                "what follows the deadline takes a time that does not depend on the rows",
            ),
        )

    def drawn_again(self) -> Guarantee | None:
        """Return what is proved of this release where it is drawn once more, if that is less than at first.

        A night's guarantee is that of its whole horizon; drawn again, it is one night's.
        """
        if self.stream is None or self.budget is None:
            return None
        proved = self.trust_model().guarantee(self.build(), self.setting)
        own = len(self.build().guarantee(self.setting).losses)
        return replace(proved, losses=(night_again(self.budget, self.stream.factor), *proved.losses[own:]))


def one_night(algorithm: AlgorithmSpec, budget: Loss, factor: ToeplitzFactor) -> OneSum:
    """Return the algorithm of one night by itself, where the whole horizon has a budget."""
    return cast(OneSum, algorithm.with_parameters(budget=nightly_budget(budget, factor)).build())


class PlannedCombination(_Identified):
    """Post-processing of releases by the server: costs nothing, has an identity all the same.

    Attributes
    ----------
    algorithm : AlgorithmSpec
        The aggregator.
    weights : tuple of float
        One for each upstream release; the parties' shares of all rows.
    """

    algorithm: AlgorithmField
    weights: tuple[float, ...]

    def build(self) -> Aggregator[Artefact]:
        """Return what combines."""
        return cast(Aggregator[Artefact], self.algorithm.build())

    def combine(self, artefacts: Sequence[Artefact]) -> Artefact:
        """Return what the server makes of the upstream artefacts, in order."""
        return self.build().combine(artefacts, np.array(self.weights))


class PlannedNightModel(PlannedCombination):
    """What the server makes of the nights so far: the running sum, and of that a model.

    Attributes
    ----------
    algorithm : AlgorithmSpec
        The trainer whose sums were released.
    budget : Loss
        Of the horizon.
    setting : Setting
    stream : Stream
    arrived : tuple of int
        Rows of each party so far.
    """

    budget: LossField
    setting: SettingField
    stream: Stream
    arrived: tuple[int, ...]

    def build(self) -> Aggregator[Artefact]:
        """Return what decodes the nights."""
        return cast(
            Aggregator[Artefact],
            RunningSumModel(
                inner=one_night(self.algorithm, self.budget, self.stream.factor),
                factor=self.stream.factor,
                setting=self.setting,
                sizes=self.arrived,
            ),
        )


def combination_of(body: Json) -> PlannedCombination:
    """Return the combination that a manifest describes.

    Raises
    ------
    pydantic.ValidationError
        If it describes none.
    """
    return (PlannedNightModel if "stream" in body else PlannedCombination).model_validate(body)


Node = PlannedRelease | PlannedCombination
"""A node of a plan: it has a key, and names its inputs by their keys."""

Made = TypeVar("Made")


def carry_out(
    nodes: Mapping[str, Node], make: Callable[[str, Node, list[Made]], Made], stored: Mapping[str, Made] | None = None
) -> dict[str, Made]:
    """Make each node of what its inputs became: the one place where a plan is walked.

    Parameters
    ----------
    nodes : mapping of key to Node
        In an order in which each comes after its inputs.
    make : callable
        From key, node and inputs to what the node becomes: a task, an artefact in memory, what parties answer.
    stored : mapping, optional
        By key what was made before.

    Returns
    -------
    dict
        What was made of the nodes, by key, in their order.
    """
    outputs: dict[str, Made] = {}
    for key, node in nodes.items():
        outputs[key] = make(
            key, node, [outputs[one] if one in outputs else (stored or {})[one] for one in node.upstream]
        )
    return outputs


class RunIdentity(_Planned):
    """What a run is: all that its key is the digest of, so that whoever has both can check that they belong together.

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
    """

    models: tuple[str, ...]
    model: str | None
    dataset: DatasetRef
    system: str
    evaluation: tuple[bool, tuple[str, ...]]
    target: tuple[float | None, float]
    # Runs without an aim keep the keys that they had before there were any.
    aim: str | None = Field(default=None, exclude_if=not_)

    @property
    def key(self) -> str:
        """The run's key; computed, so that nothing else can bear it."""
        return identity(**self.model_dump(mode="json"))


class NightIdentity(RunIdentity):
    """What a night's run is: the same, whatever version of the rows it is carried out on once more."""

    @property
    def key(self) -> str:
        """The run's key, by the night and the model of all nights so far."""
        (night,) = self.models
        return identity(night=night, model=self.model, evaluation=self.evaluation[0])


class RunPlan(_Planned):
    """Everything a run will release.

    Attributes
    ----------
    identity : RunIdentity
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
    """

    identity: SerializeAsAny[RunIdentity]
    system: str
    paper: str
    trust: str
    normalisation: str
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
        return all(release.guarantee().proved for release in self.releases if release.reads_rows)

    def rows(self) -> dict[str, int]:
        """Return how many rows of each party the models are trained on."""
        if isinstance(self.model, PlannedNightModel):
            return dict(zip(self.models[0].parties, self.model.arrived, strict=True))
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

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases, in order."""
        return self.projections + self.models + self.evaluations

    @property
    def training(self) -> dict[str, Node]:
        """What trains, by key: releases and what the server makes of them, each after its inputs."""
        basis, model = (() if one is None else (one,) for one in (self.basis, self.model))
        return {node.key: node for node in (*self.projections, *basis, *self.models, *model)}


# ── from a configuration to a plan ────────────────────────────────────────────────────────────────────────────────────


_STAGES = ("projection", "trainer")

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
    draft, stages = _drafted(config, shards, held_out, relation, features)
    if not stages:
        return draft.plan({}, {})
    allocation = _allocate(draft.resolved, config, stages)
    budgets = dict(zip(stages, allocation.losses, strict=True))
    if allocation.composed > allocation.epsilon and draft.plan(budgets, {}).proved:
        # What papers give each of their stages is more than the target together; proved stages share delta as well.
        allocation = _allocate(draft.resolved, config, stages, share_delta=True)
        budgets = dict(zip(stages, allocation.losses, strict=True))
    budgets = _tightened(draft, budgets, allocation)
    losses = [loss_to_json(budgets[stage]) for stage in stages]
    return draft.plan(budgets, {**allocation.to_json(), "stages": list(stages), "losses": losses})


def is_gaussian(
    config: TrainingConfig,
    shards: Sequence[ShardRef],
    held_out: ShardRef | None = None,
    *,
    relation: Neighbours = Neighbours.REPLACE_ONE,
    features: Sequence[FeatureStep] = (),
) -> bool:
    """Whether every loss of the plan that :func:`plan_run` would return is Gaussian: it spends no delta.

    Which kinds of losses there are does not depend on how much of each, so no budget is fitted to the target.

    Raises
    ------
    ParameterError, UnknownNameError, InputError
        As :func:`plan_run` does.
    """
    draft, stages = _drafted(config, shards, held_out, relation, features)
    budgets = dict(zip(stages, _allocate(draft.resolved, config, stages).losses, strict=True)) if stages else {}
    plan = draft.plan(budgets, {})
    kinds = {type(loss) for one in plan.releases if one.reads_rows for loss in one.guarantee().losses}
    return kinds == {GaussianMu}


def _drafted(
    config: TrainingConfig,
    shards: Sequence[ShardRef],
    held_out: ShardRef | Sequence[ShardRef] | None,
    relation: Neighbours,
    features: Sequence[FeatureStep],
) -> tuple[Draft, dict[str, type[Loss]]]:
    """Return everything about a run but its budgets, and which stages draw noise, each with the kind it takes."""
    if config.horizon is not None:
        raise ParameterError(
            "a horizon is released night by night by `unitball train` and `unitball schedule`, and by nothing else: "
            "leave --horizon out here"
        )
    neighbours = config.neighbours or relation
    resolved = resolve(config, shards[0].dataset, [shard.rows for shard in shards], neighbours)
    trust = resolve_trust(config, resolved.trust)
    draft = Draft(
        config=config,
        resolved=resolved,
        trust=trust,
        shards=tuple(shards),
        held_out=(held_out,) if isinstance(held_out, ShardRef) else tuple(held_out or ()),
        neighbours=neighbours,
        features=tuple(features),
    )
    accepted = {part: lookup(spec.kind, spec.name).budgets for part, spec in resolved.parts.items() if part in _STAGES}
    return draft, {stage: accepted[stage][0] for stage in _STAGES if accepted.get(stage)}


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
        evaluations = self._evaluations((*projections, *models), models, model)
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
            repetition=self.config.replicate,
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
        return Deadline(seconds=self.config.deadline, overrun=self.config.deadline_miss)

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
            repetition=self.config.replicate,
            seed=self.config.seed,
            code=code_version(lookup(spec.kind, spec.name)),
            label=label,
            algorithm=spec,
            upstream=tuple(release.key for release in planned),
            weights=tuple(shard.rows / total for shard in self.shards),
        )

    def _evaluations(
        self, training: Sequence[PlannedRelease], models: Sequence[PlannedRelease], model: PlannedCombination | None
    ) -> tuple[PlannedRelease, ...]:
        """Plan how well each released model does on private held-out rows.

        The held-out rows belong to no party that trains, so they have the run's whole budget to themselves: of the
        training's kind, so that measuring spends no delta where training spends none. Several models share it equally;
        the mean of their accuracies is then as noisy as that of one would be (Gaussian noise).
        """
        config, held_out, dataset = self.config, self.held_out, self.shards[0].dataset
        # Asked of every plan: it refuses what cannot run before anything is charged.
        guarantees = [release.guarantee() for release in training if release.reads_rows]
        if config.aim is not None:
            self._require_aim(len(models) if model is None else 1)
        if not config.evaluation or not dataset.private or config.epsilon is None or not held_out:
            return ()
        pure = not config.roc and all(
            one.proved and all(isinstance(loss, PureEpsilon) for loss in one.losses) for one in guarantees
        )
        specs = [self._evaluator(pure=pure)]
        if config.roc:
            # Most rows of a rare class's table share a bin at scale 1.
            specs.append(AlgorithmSpec("evaluators", "score-distribution", {"scale": 2.0}))
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
        """Refuse an aim that no released sums of scores serve."""
        private = self.config.evaluation and self.shards[0].dataset.private and self.config.epsilon is not None
        wanted = {
            "a threshold is chosen by a release of private held-out rows; leave it out": private and self.held_out,
            f"a threshold is of two classes, and here are {self._classes}": self._classes == 2,
            f"a threshold is of one model, and here are {models}; name an aggregation": models == 1,
        }
        if faults := [fault for fault, met in wanted.items() if not met]:
            raise ParameterError(f"aim is {self.config.aim}; {faults[0]}")

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
                f"deadline misses of probability {self._deadline.overrun:g} cost {slack:.2g} of delta, which is "
                f"{delta:g} in all: choose a larger --deadline and a smaller --deadline-miss"
            )
        return allocate(kinds, weights, epsilon, delta - slack).losses
