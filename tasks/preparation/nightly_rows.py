"""The rows of a horizon, night by night: which arrived when, and what is to be released of them."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from dpalgos.parameters import ParameterError
from storage.arrivals import Arrival
from storage.atomic import locked_directory
from storage.catalog import Horizon
from storage.datasets import dataset_ref, origins
from storage.refs import DatasetRef, ShardRef
from storage.shards import write_shards
from tasks.accounts.terms import relation_of
from tasks.datasets.horizons import drafted_horizon, night_of_people, positions_of, record_horizon, require_appended
from tasks.datasets.registration import default_normalisation, find_dataset
from tasks.planning.configuration import PartitionSettings, TrainingConfig
from tasks.planning.identity import identity
from tasks.planning.nights import (
    ArrivedRows,
    PlannedNight,
    StreamTerms,
    fix_terms,
    night_partition,
    planned_night,
    require_maps,
)
from tasks.planning.releases import PlannedRelease
from tasks.planning.resolution import resolve_normalisation, resolve_system
from tasks.planning.rows import FeatureStep, MappedRows, NormalisedRows, Shards
from tasks.preparation.normalisation import plan_normalisation, require_source
from tasks.preparation.paid_counts import described_columns, released_range, require_no_counts
from tasks.preparation.partitions import (
    HELD_OUT,
    OWN_FILES,
    own_positions,
    require_own_number,
    require_owners,
    write_test_rows,
)
from tasks.preparation.planned_maps import plan_features, plan_mapping
from tasks.preparation.streams import note_arrival, require_current, require_on_record, require_same_versions
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog, open_releases

_TOO_NOISY = (
    "histograms of the columns were released before, and they, or the nights of this budget, are too noisy to learn "
    "functions of columns: rows stay linear"
)


class Night(NamedTuple):
    """One night's rows.

    Attributes
    ----------
    night : int
        From 1.
    normalised : NormalisedRows
        The version that the rows came with, as it is mapped.
    mapped : MappedRows or None
        The same, seen through public maps.
    versions : tuple of str
        Those of all nights up to this one.
    own : bool
        Whether the parties' own files say whose the rows are.
    shards : tuple of ShardRef
        The parties' rows, or people whose turn it is; a party may have none.
    """

    night: int
    normalised: NormalisedRows
    mapped: MappedRows | None
    versions: tuple[str, ...]
    own: bool
    shards: tuple[ShardRef, ...]

    @property
    def features(self) -> tuple[FeatureStep, ...]:
        """The public maps that its rows pass through."""
        return () if self.mapped is None else self.mapped.maps

    def arrived(self, release: PlannedNight) -> ArrivedRows:
        """Return the node of its rows, which its release reads."""
        rows = self.shards[0].dataset
        tested = rows.test_rows > 0 and not rows.private
        held_out = self.shards[0].model_copy(update={"party": HELD_OUT, "rows": rows.test_rows}) if tested else None
        shards = Shards(training=self.shards, held_out=held_out)
        return ArrivedRows(release=release, registered=self.normalised.source, own=self.own, shards=shards)


class Nights(NamedTuple):
    """The nights of a horizon so far, tonight's arrival included, whether or not it is on record yet.

    Attributes
    ----------
    version : DatasetRef
        The newest, as registered, which tonight's rows came with.
    horizon : Horizon
    counted : tuple of str
        Keys of the histograms that were there when the terms were made; none where these were on record.
    terms : StreamTerms
    unreleased : tuple of Night
        Nights whose release is not stored, in order; the last night, tonight, in any case.
    arrived : tuple of int
        Rows of each party so far; of people all turns.
    """

    version: DatasetRef
    horizon: Horizon
    counted: tuple[str, ...]
    terms: StreamTerms
    unreleased: tuple[Night, ...]
    arrived: tuple[int, ...]


def record_tonight(config: TrainingConfig, nights: Nights) -> bool:
    """Record that tonight's rows arrived, as planned; a horizon is opened, and its terms fixed, with the first night.

    Parameters
    ----------
    config : TrainingConfig
        All of it says what a horizon releases.
    nights : Nights
        As they were planned.

    Returns
    -------
    bool
        Whether they are on record now. If not, rows arrived, or a horizon began, since they were planned: nothing was
        recorded, and they are to be planned again.

    Raises
    ------
    InputError, RefusedError
        As :func:`tasks.datasets.horizons.drafted_horizon` and :func:`tasks.datasets.horizons.require_appended` do;
        nothing is recorded then.
    """
    terms = nights.terms
    if terms.tells_parties_apart and not nights.unreleased[-1].own:
        store, keys = open_releases(), terms.release.night_keys
        for night in nights.unreleased:
            if not store.exists(keys[night.night - 1]):
                require_appended(config.dataset, night.normalised.source)
    # Versions are registered under the same lock, so that none comes in between.
    with locked_directory(current_layout().private):
        if not are_current(config, nights):
            return False
        record_horizon(config, nights.version)
        open_catalog().fix_stream(config.dataset, _key(config, nights.horizon.number), terms.model_dump(mode="json"))
    return True


def are_current(config: TrainingConfig, nights: Nights) -> bool:
    """Whether nights would be planned the same now: by the newest version, the horizon, its terms and histograms."""
    if find_dataset(config.dataset) != nights.version:
        return False
    horizon = drafted_horizon(config, nights.version)
    if (horizon.number, horizon.arrivals) != (nights.horizon.number, nights.horizon.arrivals):
        return False
    fixed = open_catalog().stream(_key(config, horizon.number))
    if fixed is not None:
        return StreamTerms.model_validate(fixed).model_dump(mode="json") == nights.terms.model_dump(mode="json")
    return nights.counted == tuple(one.key for one in _counted(config, _first_version(horizon)))


def plan_nights(config: TrainingConfig, version: DatasetRef) -> Nights:
    """Return the nights so far of the horizon that a run would be a night of; nothing is recorded, no row is read.

    Raises
    ------
    InputError, RefusedError, ParameterError
        As :func:`tasks.datasets.horizons.drafted_horizon` and :func:`tasks.planning.nights.fix_terms` do; and if what
        is kept of the horizon is not of the rows, the code or the ledger that it would go on with
        (:mod:`tasks.preparation.streams`).
    """
    horizon = drafted_horizon(config, version)
    terms, counted = _terms(config, horizon)
    last = len(horizon.arrivals)
    normalisation = _normalisation(config, columns=terms.column_map is not None)
    store = open_releases()
    stored = [store.exists(one) for one in terms.release.night_keys[:last]]
    pending = [arrival for arrival in horizon.arrivals if arrival.night == last or not stored[arrival.night - 1]]
    unreleased = tuple(_night(config, horizon, arrival, normalisation) for arrival in pending)
    _require_bound(terms, horizon, unreleased, stored)
    people = bool(unreleased[-1].normalised.source.person)
    each = [_sizes(config, horizon, night, people=people) for night in range(1, last + 1)]
    return Nights(
        version=version,
        horizon=horizon,
        counted=tuple(one.key for one in counted),
        terms=terms,
        unreleased=unreleased,
        arrived=tuple(sum(sizes) for sizes in zip(*each, strict=True)),
    )


def _terms(config: TrainingConfig, horizon: Horizon) -> tuple[StreamTerms, Sequence[PlannedRelease]]:
    """Return what a horizon releases, as it was fixed or as it would be now, and the histograms that were looked at."""
    catalog, key = open_catalog(), _key(config, horizon.number)
    kept = catalog.stream(key)
    if kept is not None:
        return StreamTerms.model_validate(kept), ()
    registered = _first_version(horizon)
    counted = _counted(config, registered)
    terms = _terms_on(config, horizon, _normalisation(config, columns=bool(counted)), counted)
    if counted and not terms.counts:
        terms = _terms_on(config, horizon, _normalisation(config, columns=False))
        terms = terms.model_copy(update={"reasons": (*terms.reasons, _TOO_NOISY)})
    # Somebody else may just have fixed it.
    require_on_record(terms.release, registered, fixed=catalog.stream(key) is not None)
    return terms, counted


def _first_version(horizon: Horizon) -> DatasetRef:
    return dataset_ref(current_layout(), horizon.arrivals[0].version)


def _counted(config: TrainingConfig, registered: DatasetRef) -> Sequence[PlannedRelease]:
    """Return the histograms that a map of columns may be made of: of the horizon's first version, or the one named.

    Raises
    ------
    InputError, ParameterError
        If the configuration names a version that has none, or no map would be made of them.
    """
    name = _normalisation(config, columns=True)
    rows = plan_normalisation(registered, name).rows
    if name == _normalisation(config, columns=False) or not rows.columns:
        require_no_counts(config)
        return ()
    relation, (_, _, trust, _) = config.neighbours or relation_of(config.dataset), resolve_system(config)
    return described_columns(registered, relation, trust, config.counts_of)


def _terms_on(
    config: TrainingConfig, horizon: Horizon, normalisation: str, counted: Sequence[PlannedRelease] = ()
) -> StreamTerms:
    """Return what a horizon would release of rows that are mapped so."""
    first = _night(config, horizon, horizon.arrivals[0], normalisation)
    return fix_terms(
        config,
        horizon,
        first.shards,
        relation=relation_of(config.dataset),
        features=first.features,
        epoch=open_catalog().epoch(),
        counted=counted,
        label_range=released_range(counted) if first.shards[0].dataset.label_range is not None else None,
    )


def _normalisation(config: TrainingConfig, *, columns: bool) -> str:
    """Return the row-local map of a horizon's rows, which leaves columns as they are encoded where a map follows."""
    return resolve_normalisation(config, default_normalisation(config.dataset), table=columns)


def _require_bound(terms: StreamTerms, horizon: Horizon, unreleased: Sequence[Night], stored: Sequence[bool]) -> None:
    """Refuse nights that are stored of other rows than the horizon's, and to go on under keys that mean others now."""
    versions = tuple(arrival.version for arrival in horizon.arrivals)
    tonight, released = unreleased[-1], [night for night, there in enumerate(stored, 1) if there]
    if released:
        require_same_versions(planned_night(terms, released[-1], tonight.shards, versions[: released[-1]]))
    for night in unreleased:
        if not stored[night.night - 1]:
            release, rows = planned_night(terms, night.night, night.shards, night.versions), night.shards[0].dataset
            require_on_record(release, rows, fixed=True)
            require_current(release, rows)
            require_maps(release, rows, night.features)


def _key(config: TrainingConfig, number: int) -> str:
    """Return the name that what a horizon releases stands under: all of its configuration, but how it is measured."""
    return identity(horizon=number, config=config.model_dump(mode="json", exclude={"evaluation", "positive"}))


def _night(config: TrainingConfig, horizon: Horizon, arrival: Arrival, normalisation: str) -> Night:
    registered = dataset_ref(current_layout(), arrival.version)
    normalised = require_source(plan_normalisation(registered, normalisation))
    features = plan_features(normalised.rows, config)
    mapped = plan_mapping(normalised.rows, features) if features else None
    files = origins(current_layout(), registered)
    own = _uses_own_files(config, files)
    if own:
        require_own_number(registered.name, config, files)
    parties = [name for name, _ in files] if own else [str(party) for party in range(config.parties)]
    partition = night_partition(registered, horizon.number, OWN_FILES if own else config.parties)
    sizes = _sizes(config, horizon, arrival.night, people=bool(registered.person))
    shards = tuple(
        ShardRef(
            dataset=normalised.rows if mapped is None else mapped.rows, partition=partition, party=party, rows=rows
        )
        for party, rows in zip(parties, sizes, strict=True)
    )
    versions = tuple(one.version for one in horizon.arrivals[: arrival.night])
    return Night(arrival.night, normalised, mapped, versions, own, shards)


def _uses_own_files(config: PartitionSettings, files: Sequence[object]) -> bool:
    """Return whether the parties' files partition the rows; otherwise each night's go to parties in turn.

    Raises
    ------
    ParameterError
        For another rule.
    """
    if config.partition not in (None, "even", OWN_FILES) or config.sizes or config.rows_per_party:
        raise ParameterError(
            "a horizon assigns rows to parties in turn or by the parties' files; omit --partition "
            f"{config.partition or ''}, --sizes and --rows-per-party"
        )
    if config.partition == OWN_FILES:
        require_owners(files)
    return bool(files) and config.partition != "even"


def _sizes(config: PartitionSettings, horizon: Horizon, night: int, *, people: bool) -> tuple[int, ...]:
    """Return how many records of each party take part in a night: from public numbers of who came when."""
    each = [
        arrival.by_file
        if _uses_own_files(config, arrival.by_file)
        else [len(range(party, arrival.rows, config.parties)) for party in range(config.parties)]
        for arrival in horizon.taking_part(night, people=people)
    ]
    return tuple(map(sum, zip_longest(*each, fillvalue=0)))


def make_arrived(node: ArrivedRows) -> Shards:
    """Write the parties' shards of one night; those that are there are kept.

    Each party notes what and where, for later nights.
    """
    registered, planned = node.registered, node.shards
    horizon = next(
        opened
        for opened in open_catalog().horizons(registered.name)
        if registered.version in {arrival.version for arrival in opened.arrivals}
    )
    if registered.person:
        groups, among = night_of_people(registered, horizon, node.release.stream.night)
    else:
        arrival = horizon.arrivals[node.release.stream.night - 1]
        groups, among = [positions_of(registered, arrival, registered.name)], None
    files = origins(current_layout(), registered)
    parties = [shard.party for shard in planned.training]
    # Whoever comes back is placed as at first, among those who came in the same night.
    each = [
        own_positions(files, group)
        if node.own
        else {party: group[number :: len(parties)] for number, party in enumerate(parties)}
        for group in groups
    ]
    partitioned = {party: np.concatenate([one[party] for one in each]) for party in parties}
    stored, partition = planned.training[0].dataset, planned.training[0].partition
    shards = write_shards(current_layout(), stored, partitioned, partition, allow_empty=True, among=among)
    if planned.held_out is not None:
        write_test_rows(stored, partition)
    for shard in shards:
        note_arrival(node.release, shard)
    return planned.model_copy(update={"training": shards})
