"""What a plan is made of: releases that will be made, and how the server puts them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import not_
from typing import TypeVar, cast

import numpy as np
from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from dpalgos.accounting.costs import loss_of_deadline_misses
from dpalgos.aggregators import Aggregator
from dpalgos.algorithms import Algorithm, OneSum
from dpalgos.continual import NightSum, RunningSumModel, night_again, nightly_budget
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Claim, Guarantee, Loss
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.models import Artefact
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.secure.summation import Masking
from dpalgos.trust.model import EVERYONE, TrustModel
from storage.refs import DatasetRef, ShardRef
from tasks.planning.configuration import AlgorithmField, Json, LossField, SettingField
from tasks.planning.identity import identity


class _Planned(BaseModel, frozen=True, extra="forbid"):
    """A part of a plan."""


class Deadline(_Planned):
    """When a release of private rows appears, whatever the rows.

    Attributes
    ----------
    seconds : float
        From the moment at which rows may be read; public, as everything that it was chosen by must be.
    overrun : float
        Declared bound on the probability, on any rows, that an attempt at the release takes longer, above 0. Attempts
        that are cut short for reasons outside the rows are to be counted in.
    """

    seconds: float
    overrun: float


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
    arrived : tuple of int
        Records of this night at each party.
    """

    partition: str
    horizon: int
    nights: int
    night: int
    bands: int | None
    participations: int
    separation: int
    rows: str
    arrived: tuple[int, ...]

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
        Another number is another release, drawn and charged anew.
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

    def _keys_of(self, nights: Iterable[int]) -> tuple[str, ...]:
        parts = self.model_dump(mode="json", exclude={"label", *self._outside()})
        stream = {**parts.pop("stream"), "arrived": None}
        return tuple(identity(**parts, stream={**stream, "night": night}) for night in nights)

    @property
    def stream_key(self) -> str:
        """What all nights of the stream have in common."""
        return self._keys_of([0])[0]

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
        # Each party's own task may overrun, and any of them is seen.
        attempts = len(self.parties) if self.in_rounds else 1
        return replace(
            proved,
            losses=(*proved.losses, loss_of_deadline_misses(proved.losses, attempts * self.deadline.overrun)),
            assumptions=(
                *proved.assumptions,
                f"on any rows an attempt takes longer than {self.deadline.seconds:g} s with probability at most "
                f"{self.deadline.overrun:g}",
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

    @property
    def combinations(self) -> tuple[PlannedCombination, ...]:
        """What is put together of releases, in order."""
        return tuple(one for one in (self.basis, self.model) if one is not None)
