"""The rows of a horizon, night by night: which arrived when, and what is to be released of them."""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from pydantic import BaseModel

from dpalgos.parameters import ParameterError
from storage.arrivals import Arrival
from storage.catalog import Horizon
from storage.datasets import dataset_ref, origins
from storage.refs import DatasetRef, ShardRef
from storage.shards import write_shards
from tasks.accounts.budget import relation_of
from tasks.datasets.horizons import drafted_horizon, find_horizon, night_of_people, positions_of, require_appended
from tasks.planning.configuration import PartitionSettings, TrainingConfig
from tasks.planning.identity import identity
from tasks.planning.nights import StreamTerms, fix_terms, night_partition, planned_night, require_maps
from tasks.planning.plans import FeatureStep
from tasks.preparation.normalisation import mapped_ref
from tasks.preparation.partitions import OWN_FILES, own_positions, require_owners, write_test_rows
from tasks.preparation.public_maps import featured_ref, plan_features
from tasks.preparation.streams import require_current, require_on_record, require_same_versions
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog, open_releases


class Night(BaseModel, frozen=True, extra="forbid"):
    """One night's rows.

    Attributes
    ----------
    night : int
        From 1.
    registered : DatasetRef
        The version that the rows came with.
    versions : tuple of str
        Those of all nights up to this one.
    features : tuple of FeatureStep
    shards : tuple of ShardRef
        The parties' rows, or people whose turn it is; a party may have none.
    """

    night: int
    registered: DatasetRef
    versions: tuple[str, ...]
    features: tuple[FeatureStep, ...]
    shards: tuple[ShardRef, ...]


class Nights(BaseModel, frozen=True, extra="forbid"):
    """The nights of a horizon so far.

    Attributes
    ----------
    terms : StreamTerms
    unreleased : tuple of Night
        Nights whose release is not stored, in order; the last night, tonight, in any case.
    arrived : tuple of int
        Rows of each party so far; of people all turns.
    """

    terms: StreamTerms
    unreleased: tuple[Night, ...]
    arrived: tuple[int, ...]


def begin_nights(config: TrainingConfig, version: DatasetRef, normalisation: str) -> Nights:
    """Return the nights of the horizon so far; it is opened, and what it releases is fixed, with the first.

    Parameters
    ----------
    config : TrainingConfig
    version : DatasetRef
        The newest, as registered.
    normalisation : str

    Raises
    ------
    InputError, RefusedError, ParameterError
        As :func:`tasks.datasets.horizons.find_horizon`, :func:`tasks.datasets.horizons.require_appended` and
        :func:`tasks.planning.nights.fix_terms` do; and if what is kept of the horizon is not of the rows, the code or
        the ledger that it would go on with (:mod:`tasks.preparation.streams`).
    """
    # What cannot be released opens no horizon.
    drafted = preview_nights(config, version, normalisation)
    if drafted.terms.tells_parties_apart and not _uses_own_files(config, origins(current_layout(), version)):
        store, keys = open_releases(), drafted.terms.release.night_keys
        for night in drafted.unreleased:
            if not store.exists(keys[night.night - 1]):
                require_appended(config.dataset, night.registered)
    return _nights(config, find_horizon(config, version), normalisation, fix=True)


def preview_nights(config: TrainingConfig, version: DatasetRef, normalisation: str) -> Nights:
    """Return what :func:`begin_nights` would return; nothing is recorded, and no row is read."""
    return _nights(config, drafted_horizon(config, version), normalisation, fix=False)


def _nights(config: TrainingConfig, horizon: Horizon, normalisation: str, *, fix: bool) -> Nights:
    catalog, last = open_catalog(), len(horizon.arrivals)
    keys = _keys(config, horizon.number)
    kept = catalog.stream(keys)
    if kept is None:
        first = _night(config, horizon, horizon.arrivals[0], normalisation)
        relation, epoch = relation_of(config.dataset), catalog.epoch()
        terms = fix_terms(config, horizon, first.shards, relation=relation, features=first.features, epoch=epoch)
        # Somebody else may just have fixed it.
        require_on_record(terms.release, first.registered, fixed=catalog.stream(keys) is not None)
        if fix:
            kept = catalog.fix_stream(config.dataset, keys[0], terms.model_dump(mode="json"))
            terms = StreamTerms.model_validate(kept)
    else:
        terms = StreamTerms.model_validate(kept)
    store = open_releases()
    stored = [store.exists(one) for one in terms.release.night_keys[:last]]
    pending = [arrival for arrival in horizon.arrivals if arrival.night == last or not stored[arrival.night - 1]]
    unreleased = tuple(_night(config, horizon, arrival, normalisation) for arrival in pending)
    _require_bound(terms, horizon, unreleased, stored)
    people = bool(unreleased[-1].registered.person)
    each = [_sizes(config, horizon, night, people=people) for night in range(1, last + 1)]
    return Nights(
        terms=terms,
        unreleased=unreleased,
        arrived=tuple(sum(sizes) for sizes in zip(*each, strict=True)),
    )


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


# What configurations have gained since there are horizons, in order.
_GAINED = ("tune", "aim", "class_weight", "mirror")


def _keys(config: TrainingConfig, number: int) -> list[str]:
    """Return the names that what a horizon releases may stand under, a new one's first.

    A field that was not there when a horizon began is in no name of it: such a field is in a name where it is given.
    For a while unused ones were in names, too.
    """
    unused = [name for name in _GAINED if getattr(config, name) in (None, {})]
    dumped = (
        config.model_dump(mode="json", by_alias=True, exclude={"evaluation", *unused[known:]})
        for known in range(len(unused) + 1)
    )
    return [identity(horizon=number, config=one) for one in dumped]


def _night(config: TrainingConfig, horizon: Horizon, arrival: Arrival, normalisation: str) -> Night:
    registered = dataset_ref(current_layout(), arrival.version)
    mapped = mapped_ref(registered, normalisation)
    features = plan_features(mapped, config)
    stored = featured_ref(mapped, features)
    files = origins(current_layout(), registered)
    own = _uses_own_files(config, files)
    parties = [name for name, _ in files] if own else [str(party) for party in range(config.parties)]
    partition = night_partition(registered, horizon.number, OWN_FILES if own else config.parties)
    sizes = _sizes(config, horizon, arrival.night, people=bool(registered.person))
    shards = tuple(
        ShardRef(dataset=stored, partition=partition, party=party, rows=rows)
        for party, rows in zip(parties, sizes, strict=True)
    )
    versions = tuple(one.version for one in horizon.arrivals[: arrival.night])
    return Night(night=arrival.night, registered=registered, versions=versions, features=features, shards=shards)


def _uses_own_files(config: PartitionSettings, files: Sequence[object]) -> bool:
    """Return whether the parties' files partition the rows; otherwise each night's go to parties in turn.

    Raises
    ------
    ParameterError
        For another rule.
    """
    if config.partition not in (None, "even", OWN_FILES) or config.sizes or config.rows_per_party:
        raise ParameterError(
            f"the rows of a night go to the parties in turn, or by the parties' own files; leave "
            f"--partition {config.partition or ''}, "
            "--sizes and --rows-per-party out"
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


def partition_night(config: PartitionSettings, night: Night) -> tuple[ShardRef, ...]:
    """Write the parties' shards of one night; those that are there are kept."""
    horizon = next(
        one
        for one in open_catalog().horizons(night.registered.name)
        if night.registered.version in {arrival.version for arrival in one.arrivals}
    )
    if night.registered.person:
        groups, among = night_of_people(night.registered, horizon, night.night)
    else:
        groups, among = [positions_of(night.registered, horizon.arrivals[night.night - 1], night.registered.name)], None
    files = origins(current_layout(), night.registered)
    parties = [shard.party for shard in night.shards]
    # Whoever comes back is placed as at first, among those who came in the same night.
    each = [
        own_positions(files, group)
        if _uses_own_files(config, files)
        else {party: group[number :: len(parties)] for number, party in enumerate(parties)}
        for group in groups
    ]
    partitioned = {party: np.concatenate([one[party] for one in each]) for party in parties}
    stored, partition = night.shards[0].dataset, night.shards[0].partition
    return write_shards(current_layout(), stored, partitioned, partition, allow_empty=True, among=among)


def partition_test_rows(night: Night) -> ShardRef | None:
    """Write the data set's own test rows as a shard, where it has any and they are public."""
    stored = night.shards[0].dataset
    if not stored.test_rows or stored.private:
        return None
    return write_test_rows(stored, night.shards[0].partition)
