"""Nights: the releases of a horizon, its terms, fixed with the first night, and the plan of each night."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import cast

from pydantic import BaseModel

from dpalgos.accounting.costs import PlanCost, allocate
from dpalgos.aggregators import Aggregator
from dpalgos.algorithms import Algorithm, OneSum, ProjectionAlgorithm
from dpalgos.column_maps import ColumnMap
from dpalgos.evaluators.column_histograms import ColumnHistograms, rank_error
from dpalgos.guarantees import GaussianMu, Guarantee, Loss, Neighbours, Setting, Trust, rounded_up
from dpalgos.mechanisms.factorisation import ToeplitzFactor, best_bands
from dpalgos.models import Artefact
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.systems.system import Scope
from dpalgos.trainers.continual import (
    NightSum,
    RunningSumModel,
    night_again,
    nightly_budget,
    require_gaussian_sum,
)
from storage.catalog import Horizon
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, ShardRef
from tasks.planning.configuration import (
    EvaluationSettings,
    HorizonSettings,
    Json,
    LossField,
    SettingField,
    TrainingConfig,
)
from tasks.planning.identity import code_version, identity, mathematics_version
from tasks.planning.plans import Draft, RunIdentity, RunPlan
from tasks.planning.releases import Planned, PlannedCombination, PlannedRelease, partition_key
from tasks.planning.resolution import Resolved, resolve, resolve_trust, with_given
from tasks.planning.rows import FeatureStep, Shards


class Stream(Planned):
    """The place of a release in a stream: one night of a horizon, charged with all others at once.

    Attributes
    ----------
    partition : str
        Of the data set's rows into horizons, for the ledger: rows of different horizons are disjoint. Where they are
        not (people, rows that come back), of one horizon alone.
    horizon : int
        Number of the horizon whose rows are read.
    nights, night : int
    bands : int or None
        Those that were asked for or found best; None where all are kept.
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
    epoch: str = ""

    @property
    def factor(self) -> ToeplitzFactor:
        """The factor of the running sums."""
        return ToeplitzFactor(
            nights=self.nights,
            bands=self.bands,
            participations=self.participations,
            separation=self.separation,
        )


def one_night(algorithm: AlgorithmSpec, budget: Loss, factor: ToeplitzFactor) -> OneSum:
    """Return the algorithm of one night by itself, where the whole horizon has a budget."""
    return cast(OneSum, algorithm.with_parameters(budget=nightly_budget(budget, factor)).build())


class PlannedNight(PlannedRelease):
    """The release of one night of a horizon: charged with all other nights, before the first.

    Attributes
    ----------
    stream : Stream
        Which night of which horizon.
    """

    stream: Stream

    def _outside(self) -> set[str]:
        # All nights are charged with the first, for any versions of rows and code of the others.
        return super()._outside() | {"dataset", "code"}

    @cached_property
    def key(self) -> str:
        """The identity: by its horizon and number."""
        return self._keys_of([self.stream.night])[0]

    def _keys_of(self, nights: Iterable[int], **changed: object) -> tuple[str, ...]:
        parts = self.model_dump(mode="json", exclude={"label", *self._outside()})
        # Which rows a night has is no part of its key, and is compared wherever it is taken for that night.
        stream = {**parts.pop("stream"), "arrived": None, "versions": None, **changed}
        return tuple(identity(**parts, stream={**stream, "night": night}) for night in nights)

    @property
    def stream_key(self) -> str:
        """Key that all nights of the stream share, and those that a lost ledger knew of under the same terms."""
        return self._keys_of([0], epoch=None)[0]

    @property
    def night_keys(self) -> tuple[str, ...]:
        """The identities of all nights of the horizon, the first first."""
        return self._keys_of(range(1, self.stream.nights + 1))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each party that are read: those of the night."""
        return self.stream.arrived

    @property
    def charged_parties(self) -> tuple[str, ...]:
        """The charged party in the ledger: the rows of a whole horizon."""
        return (f"horizon {self.stream.horizon}",)

    @property
    def charged_partition(self) -> str:
        """The partition that horizons are parts of."""
        return self.stream.partition

    @property
    def charged_keys(self) -> dict[str, str]:
        """All nights of the horizon, which have one price."""
        return {key: f"night {night} of {self.stream.nights}" for night, key in enumerate(self.night_keys, 1)}

    @property
    def charged_as(self) -> str:
        """Key under which all nights are charged."""
        return self.stream_key

    def build(self) -> Algorithm:
        """Return what sums a night's rows, with the horizon's budget."""
        assert self.budget is not None, "a night draws noise"
        return NightSum(
            inner=one_night(self.algorithm, self.budget, self.stream.factor),
            budget=self.budget,
            factor=self.stream.factor,
            night=self.stream.night,
        )

    def _proved(self, algorithm: Algorithm) -> Guarantee:
        proved = super()._proved(algorithm)
        # What the trust model adds, it adds in each night.
        own = algorithm.guarantee(self.setting).losses
        return dataclasses.replace(proved, losses=(*own, *proved.losses[len(own) :] * self.stream.nights))

    def drawn_again(self) -> Guarantee:
        """Return what is proved of this night where it is drawn once more: its own loss, not the whole horizon's."""
        assert self.budget is not None, "a night draws noise"
        proved = super()._proved(self.build())
        own = len(self.build().guarantee(self.setting).losses)
        return dataclasses.replace(proved, losses=(night_again(self.budget, self.stream.factor), *proved.losses[own:]))


class ArrivedRows(Planned):
    """The rows of one night, on their way to the parties' own stores.

    Attributes
    ----------
    release : PlannedNight
        That reads them.
    registered : DatasetRef
        The version that they came with.
    own : bool
        Whether the parties' files say whose they are; otherwise they go to the parties in turn.
    shards : Shards
        The parties' rows, or people whose turn it is; a party may have none. Held out are the data set's own test rows,
        where they are public.
    """

    release: PlannedNight
    registered: DatasetRef
    own: bool
    shards: Shards

    @property
    def key(self) -> str:
        """Of this night's partition of its version."""
        return partition_key(self.release.dataset, self.release.partition)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The version that is divided."""
        return (self.release.dataset,)


class PlannedNightModel(PlannedCombination):
    """The combination of the nights so far: the running sum, and a model of it.

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

    def build(self) -> Aggregator[Artefact, Artefact]:
        """Return what decodes the nights."""
        return cast(
            Aggregator[Artefact, Artefact],
            RunningSumModel(
                inner=one_night(self.algorithm, self.budget, self.stream.factor),
                factor=self.stream.factor,
                setting=self.setting,
                sizes=self.arrived,
            ),
        )


def release_of(body: Json) -> PlannedRelease:
    """Return the release that a manifest describes.

    Raises
    ------
    pydantic.ValidationError
        If it describes none.
    """
    return (PlannedNight if "stream" in body else PlannedRelease).model_validate(body)


def combination_of(body: Json) -> PlannedCombination:
    """Return the combination that a manifest describes.

    Raises
    ------
    pydantic.ValidationError
        If it describes none.
    """
    return (PlannedNightModel if "stream" in body else PlannedCombination).model_validate(body)


class NightIdentity(RunIdentity):
    """Identity of a night's run: the same when the run is repeated on another version of the rows."""

    @property
    def key(self) -> str:
        """The run's key, by the night and the model of all nights so far."""
        (night,) = self.models
        return identity(night=night, model=self.model, evaluation=self.evaluation[0])


class NightPlan(RunPlan):
    """Everything that the run of a night will release."""

    model: PlannedNightModel
    models: tuple[PlannedNight, ...]

    def rows(self) -> dict[str, int]:
        """Return how many rows of each party the model is trained on: those of all nights so far."""
        return dict(zip(self.models[0].parties, self.model.arrived, strict=True))


# Of a party's frozen sums; a factor of fewer bands keeps fewer of them.
_LARGEST_STATE = 2**32


class StreamTerms(BaseModel, frozen=True, extra="forbid"):
    """The terms of a horizon: everything that must not change before it ends.

    Attributes
    ----------
    system, paper : str
    release : PlannedRelease
        Of the first night; the others differ in night, rows and version.
    projection : PlannedRelease or None
        The public map that rows pass through, made in the first night.
    counts : tuple of PlannedRelease
        Histograms of a table's columns that had been released when the horizon began; what its models guarantee
        composes them.
    column_map : PlannedCombination or None
        Made of these: what rows of all nights are seen through first.
    reasons : tuple of str
    dimension : int
        Features of the rows as they are stored.
    classes : int
    epsilon : float
    """

    system: str
    paper: str
    release: PlannedNight
    projection: PlannedRelease | None
    counts: tuple[PlannedRelease, ...] = ()
    column_map: PlannedCombination | None = None
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
    epoch: str = "",
    counted: Sequence[PlannedRelease] = (),
    label_range: tuple[float, float] | None = None,
) -> StreamTerms:
    """Return what a horizon releases, from its first night's public facts.

    *Of a map of columns.* Histograms are separate releases, paid before the horizon began. Given them, the map is a
    constant: the same for both neighbours and in all nights, since the terms are fixed with the first. Rows are clipped
    to the unit ball behind it, so that a row moves its night's sum by what it would move it without a map, and the
    horizon costs what it did. Histograms and nights of the same rows add up (adaptive composition): a model's printed
    guarantee composes both, for all parties, whichever party's rows were counted; the ledger has charged each by
    itself. If a later description changed the map, frozen sums and new sums would use different features.

    A numeric label is clipped to the range that histograms say holds nearly all, in sums of all nights and in what is
    made of them: which range it is changes no guarantee, since labels are scaled to [−1, 1] by any.

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
    epoch : str
        Of the ledger (:meth:`storage.catalog.Catalog.epoch`).
    counted : sequence of PlannedRelease
        Histograms of the rows' columns that were released before, which a map of the columns may be made of; of rows
        whose columns are not known, none.
    label_range : (float, float), optional
        Of a numeric label, the range that these say holds nearly all.

    Raises
    ------
    ParameterError
        For what cannot be released night after night.
    """
    assert config.horizon is not None
    if config.epsilon is None:
        raise ParameterError("a horizon draws noise: give a total budget, for example --epsilon 1")
    factor = _factor_of(config, config.horizon)
    neighbours, dataset = config.neighbours or relation, shards[0].dataset
    expected = config.expected_rows or factor.nights * max(sum(shard.rows for shard in shards), 1)
    sizes = (max(1, math.ceil(expected / len(shards))),) * len(shards)
    resolved = _resolve(config, dataset, sizes, neighbours, factor, counted, label_range)
    trust = resolve_trust(config, resolved.trust)
    budget = allocate([GaussianMu], [1.0], config.epsilon, config.stated_delta).losses[0]
    draft = Draft(
        config=config,
        resolved=resolved,
        trust=trust,
        shards=tuple(shards),
        held_out=(),
        neighbours=neighbours,
        features=tuple(features),
        counted=tuple(counted),
    )
    counts, column_map = draft.column_map({})
    dimension, upstream = dataset.dimension, tuple[str, ...]()
    if column_map is not None:
        dimension, upstream = cast(ColumnMap, column_map.build()).output_dimension(dimension), (column_map.key,)
    projection = _public_map(draft, dimension, upstream)
    if projection is not None:
        dimension = cast(ProjectionAlgorithm, projection.build()).output_dimension(dimension)
        upstream = (*upstream, projection.key)
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
    label = f"night 1 of {factor.nights}"
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
        rows=_maps_of(dataset, features),
        made_of=made_of(trainer, trust, dataset.normalisation),
        # Public rows give the same releases in every root, and nobody pays for them.
        epoch=epoch if dataset.private else "",
        arrived=tuple(shard.rows for shard in shards),
        versions=(),
    )
    alone_in_time = draft.release(trainer, budget, shards, setting, upstream, label)
    release = PlannedNight(**{**dict(alone_in_time), "code": _code(trainer, trust)}, stream=stream)
    release.guarantee()
    return StreamTerms(
        system=resolved.name,
        paper=resolved.system.paper,
        release=release,
        projection=projection,
        counts=counts,
        column_map=column_map,
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


def _factor_of(config: HorizonSettings, nights: int) -> ToeplitzFactor:
    """Return the factor of a horizon, with the bands that were asked for or with the best of all.

    Numbers of nights alone decide (:func:`~dpalgos.mechanisms.factorisation.best_bands`): bands that followed rows
    would tell of them.
    """
    factor = ToeplitzFactor(
        nights=nights, bands=config.bands, participations=config.participations, separation=config.separation
    )
    return factor if config.bands is not None else dataclasses.replace(factor, bands=_best(factor, nights))


def _best(factor: ToeplitzFactor, most: int) -> int | None:
    """Return the best number of bands up to ``most``, None for all; ``most`` itself with one participation."""
    found = most
    if factor.participations > 1:
        found = best_bands(factor.nights, factor.participations, factor.separation, most)
    return None if found == factor.nights else found


def _bands_that_fit(config: HorizonSettings, factor: ToeplitzFactor, night: int) -> int | None:
    """Return how many nights' sums of ``night`` bytes a party keeps: the factor's, or the best that there is room for.

    Raises
    ------
    ParameterError
        If there is no room for those asked for, or for one.
    """
    most = _LARGEST_STATE // night
    if factor.kept_nights <= most:
        return factor.bands
    if config.bands is None and most:
        return _best(factor, most)
    raise ParameterError(
        f"each party would keep {factor.kept_nights} sums of earlier nights, {night / 2**30:.2g} GiB, and the limit "
        f"is {_LARGEST_STATE / 2**30:.2g} GiB: keep fewer nights (--bands {max(most, 1)}) or fewer features "
        "(--dimension)"
    )


def _said_of_bands(config: HorizonSettings, factor: ToeplitzFactor) -> tuple[str, ...]:
    if factor.bands == config.bands:
        return ()
    whole, best = dataclasses.replace(factor, bands=None), _factor_of(config, factor.nights)
    if factor == best:
        return (
            f"each party keeps its sums of {factor.bands} nights, at which noise over all nights is least: its root "
            f"mean square is {factor.root_mean_square_error:.3g} times that of one release, for "
            f"{whole.root_mean_square_error:.3g} with all {factor.nights} (override with --bands)",
        )
    return (
        f"each party keeps its sums of {factor.bands} nights, for which {_LARGEST_STATE / 2**30:.2g} GiB have room; "
        f"with {best.kept_nights} the noise would be {best.error_of(factor.nights):.2f} times",
    )


def _resolve(
    config: TrainingConfig,
    dataset: DatasetRef,
    sizes: tuple[int, ...],
    neighbours: Neighbours,
    factor: ToeplitzFactor,
    counted: Sequence[PlannedRelease],
    label_range: tuple[float, float] | None,
) -> Resolved:
    """Return the parts: those of the system, its trainer exchanged where that one is not one sum."""
    # A map is chosen by how much noise there will be: as if so many fewer rows were released once.
    worth = tuple(max(1, math.ceil(size / factor.error_of(factor.nights))) for size in sizes)
    resolution = resolve(config, dataset, worth, neighbours, nightly=rank_noise(counted))
    if resolution.arrangement.trainer_scope is Scope.PARTY:
        raise ParameterError(
            f"{resolution.name} releases one model per party, and a horizon releases one sum over all parties; choose "
            "--trust secagg or --trust central"
        )
    if config.algorithm == "unitball":
        table = dataset.image_shape is None and config.features is None and config.public_dataset is None
        name = "sufficient-statistics" if table or not dataset.classes else "class-means"
        # The recommended trainer takes steps, or is this one: of what was given all must fit this one as well.
        said = dataset if label_range is None else dataset.model_copy(update={"label_range": label_range})
        parts = with_given({**resolution.parts, "trainer": AlgorithmSpec("trainers", name)}, config, said)
        projection = parts.get("projection")
        learnt = projection is not None and lookup(projection.kind, projection.name).reads_rows
        if learnt:
            # Chosen for all rows at once; nobody has asked for it here.
            del parts["projection"]
        return dataclasses.replace(
            resolution,
            parts=parts,
            reasons=(
                *(resolution.reasons if dataset.columns else () if learnt else resolution.reasons[:1]),
                f"{name}: one sum a night, and post-processing",
            ),
            warning=None,
        )
    return resolution


def rank_noise(counted: Sequence[PlannedRelease]) -> float:
    """Return how well histograms tell ranks together, the deviation of a rank's noise over all rows; infinite of none.

    See :func:`dpalgos.evaluators.column_histograms.rank_error`. Several are combined by 1/σ², at the coarsest of their
    bins.
    """
    built = [(cast(ColumnHistograms, one.build()), one.setting) for one in counted]
    if not built:
        return math.inf
    # What one release would have to be.
    together = math.sqrt(math.fsum((one.budget.mu / setting.noise_factor) ** 2 for one, setting in built))
    setting = built[0][1]
    layout = built[0][0].layout(setting)
    bins = min(one.bins for one, _ in built)
    return rank_error(setting.rows, layout.counted, together, bins)


def _public_map(draft: Draft, dimension: int, upstream: Sequence[str]) -> PlannedRelease | None:
    """Return the map that rows of all nights pass through, which looks at none of them."""
    spec = draft.resolved.parts.get("projection")
    if spec is None:
        return None
    if lookup(spec.kind, spec.name).reads_rows:
        raise ParameterError(
            f"{spec.name} learns directions from rows that have not arrived yet; choose a map that reads no private "
            "rows (--projection public-whitening, --features …), or none"
        )
    dataset = draft.shards[0].dataset
    setting = Setting(
        sizes=tuple(shard.rows for shard in draft.shards),
        dimension=dimension,
        classes=max(len(dataset.classes), 1),
        trust=Trust.CENTRAL,
        rows_per_person=dataset.rows_per_person,
    )
    return draft.release(spec, None, draft.shards, setting, upstream, "map of all nights")


def _code(trainer: AlgorithmSpec, trust: AlgorithmSpec) -> str:
    return code_version(lookup(trainer.kind, trainer.name), lookup(trust.kind, trust.name), NightSum)


def made_of(trainer: AlgorithmSpec, trust: AlgorithmSpec, normalisation: str) -> str:
    """Return the version of the code that a night's noise, unit and integers are made by, 16 hex digits.

    Of the mathematics alone, as :func:`~tasks.planning.identity.code_version` reads it. Not of the numerical
    libraries': what they change in last bits is before the clip and the grid, and sums are frozen once they are formed.

    Parameters
    ----------
    trainer, trust : AlgorithmSpec
    normalisation : str
        Of the rows.
    """
    classes = (
        lookup(trainer.kind, trainer.name),
        lookup(trust.kind, trust.name),
        lookup("normalisations", normalisation),
    )
    return mathematics_version(*classes, NightSum)


def restarting(release: PlannedNight) -> str:
    """Return how a stream that cannot go on is begun again, and what that costs, in words.

    Under another replicate all nights have other keys. They are charged once more, at the price that the present ones
    were charged at, since the budget is part of either's keys.
    """
    stream = release.stream
    epsilon = PlanCost.of(release.guarantee().losses, release.delta).totals.epsilon
    return (
        f"Restart the horizon under new keys, which charges it again (epsilon {rounded_up(epsilon, 4):g} at "
        f"delta {release.delta:g} for {stream.nights} nights): the same command with --replicate "
        f"{release.replicate + 1}"
    )


def require_code(release: PlannedNight, normalisation: str) -> None:
    """Refuse a night whose noise, unit or integers would be made by other code than its horizon began with.

    Raises
    ------
    RefusedError
    """
    stream = release.stream
    if (now := made_of(release.algorithm, release.trust, normalisation)) != stream.made_of:
        raise RefusedError(
            f"the horizon of {release.label} began with code version {stream.made_of}, and this is version {now}; its "
            "nights must use one version. Continue with the version of Unitball that it began with. Or: "
            f"{restarting(release)}"
        )


def require_maps(release: PlannedNight, dataset: DatasetRef, features: Sequence[FeatureStep]) -> None:
    """Refuse a night whose rows would pass through other maps than those of its horizon's first night.

    Raises
    ------
    RefusedError
    """
    if (now := _maps_of(dataset, features)) != release.stream.rows:
        raise RefusedError(
            f"the features of {release.label} ({now[:12]}) differ from those of the horizon's first night, because a "
            "map or its library has changed since. Continue with the versions that it began with. Or: "
            f"{restarting(release)}"
        )


def _maps_of(dataset: DatasetRef, features: Sequence[FeatureStep]) -> str:
    return identity(normalisation=dataset.normalisation, features=[step.key for step in features])[:32]


def planned_night(
    terms: StreamTerms, night: int, shards: Sequence[ShardRef], versions: tuple[str, ...]
) -> PlannedNight:
    """Return the release of one night.

    Parameters
    ----------
    terms : StreamTerms
    night : int
        From 1.
    shards : sequence of ShardRef
        The parties' rows of that night, in order.
    versions : tuple of str
        The registered version of each night up to that one.

    Raises
    ------
    InputError
        If the rows have other features or classes, or other parties hold them, than when the horizon began.
    """
    first, dataset = terms.release, shards[0].dataset
    stream = first.stream
    begun = (terms.dimension, terms.classes, first.parties)
    now = (dataset.dimension, len(dataset.classes), tuple(shard.party for shard in shards))
    if now != begun:
        raise InputError(
            f"the rows of {dataset.name} have {now[0]} features, {now[1]} classes and the parties "
            f"{', '.join(now[2])}; its horizon began with {begun[0]}, {begun[1]} and {', '.join(begun[2])}, and its "
            "sums need rows of one kind"
        )
    return first.model_copy(
        update={
            "label": f"night {night} of {stream.nights}",
            "code": _code(first.algorithm, first.trust),
            "dataset": dataset.version,
            "stream": stream.model_copy(
                update={"night": night, "arrived": tuple(shard.rows for shard in shards), "versions": versions}
            ),
        }
    )


def plan_night(
    terms: StreamTerms,
    config: EvaluationSettings,
    night: int,
    shards: Sequence[ShardRef],
    versions: tuple[str, ...],
    arrived: tuple[int, ...],
    features: Sequence[FeatureStep] = (),
) -> NightPlan:
    """Return the plan of one night: its release, and the model of all nights so far.

    Parameters
    ----------
    terms : StreamTerms
    config : TrainingConfig
    night : int
    shards : sequence of ShardRef
        Of that night.
    versions : tuple of str
        The registered version of each night up to that one.
    arrived : tuple of int
        Rows of each party so far.
    features : sequence of FeatureStep

    Raises
    ------
    ParameterError
        If more rows have arrived than sums of the horizon can hold, or than its noise is made for.
    """
    tonight = planned_night(terms, night, shards, versions)
    stream, budget = tonight.stream, tonight.budget
    assert budget is not None
    inner, expected = one_night(tonight.algorithm, budget, stream.factor), tonight.setting.sizes
    require_gaussian_sum(inner, dataclasses.replace(tonight.setting, sizes=arrived), expected)
    model = PlannedNightModel(
        label=f"model of night {stream.night}",
        code=tonight.code,
        dataset=tonight.dataset,
        partition=tonight.partition,
        replicate=tonight.replicate,
        seed=tonight.seed,
        upstream=tonight.night_keys[:night],
        algorithm=tonight.algorithm,
        weights=(),
        budget=budget,
        setting=tonight.setting,
        stream=stream,
        arrived=arrived,
    )
    return NightPlan(
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
        counts=terms.counts,
        before=tuple(one.key for one in terms.counts),
        column_map=terms.column_map,
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
