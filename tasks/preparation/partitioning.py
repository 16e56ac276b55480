"""Dividing rows among parties, those of a run or of each night of a horizon, and holding rows out for testing."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from dpalgos.errors import ParameterError
from dpalgos.metrics import held_out_fraction
from dpalgos.registry import AlgorithmSpec, lookup
from storage.arrivals import Arrival
from storage.catalog import Horizon
from storage.datasets import dataset_ref, open_dataset, origins
from storage.errors import InputError, RefusedError, StorageError
from storage.refs import DatasetRef, ShardRef
from storage.shards import open_shard, write_shards
from tasks.accounts.budget import relation_of, settled
from tasks.datasets.horizons import drafted_horizon, find_horizon, night_of_people, positions_of, require_appended
from tasks.planning.configuration import PartitionSettings, TrainingConfig
from tasks.planning.identity import identity
from tasks.planning.nights import StreamTerms, fix_terms, night_partition
from tasks.planning.plans import FeatureStep, Shards
from tasks.preparation.mapping import featured_ref, mapped_ref, plan_features
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog, open_releases

HELD_OUT = "test"
OWN_FILES = "own"
_PUBLIC_FRACTION = 0.2


def partition_rows(dataset: DatasetRef, config: TrainingConfig) -> Shards:
    """Divide a data set's rows among parties by a rule that is fixed before any row is looked at.

    Held-out rows are a party of the same partition: they are disjoint from the others', so an evaluation of them costs
    nobody else.

    Raises
    ------
    RefusedError
        If the rule depends on what private rows contain.
    InputError
        If there are not enough rows.
    """
    name, assignment = _assigned(dataset, config)
    layout = current_layout()
    shards = write_shards(layout, dataset, assignment, name)
    training = tuple(shard for shard in shards if shard.party != HELD_OUT)
    held_out = next((shard for shard in shards if shard.party == HELD_OUT), None)
    if dataset.test_rows:
        everything = {HELD_OUT: np.arange(dataset.test_rows, dtype=np.int64)}
        held_out = write_shards(layout, dataset, everything, f"{name}", part="test")[0]
    return Shards(training=training, held_out=held_out)


def planned_shards(dataset: DatasetRef, config: TrainingConfig, registered: DatasetRef | None = None) -> Shards | None:
    """Return the references that :func:`partition_rows` would return; no row is read.

    None where the partition depends on what rows contain.

    Parameters
    ----------
    dataset : DatasetRef
    config : TrainingConfig
    registered : DatasetRef, optional
        The version that ``dataset`` is mapped from, where that one is not stored yet.

    Raises
    ------
    RefusedError, InputError
        As :func:`partition_rows` does.
    """
    spec = _spec(dataset, config, origins(current_layout(), registered or dataset))
    if spec is not None and spec.build().content_dependent:
        return None
    name, assignment = _assigned(dataset, config, registered)
    sizes = {party: len(positions) for party, positions in assignment.items()}
    if dataset.test_rows:
        sizes[HELD_OUT] = dataset.test_rows
    shards = {party: ShardRef(dataset=dataset, partition=name, party=party, rows=rows) for party, rows in sizes.items()}
    held_out = shards.pop(HELD_OUT, None)
    return Shards(training=tuple(shards.values()), held_out=held_out)


def _assigned(
    dataset: DatasetRef, config: TrainingConfig, registered: DatasetRef | None = None
) -> tuple[str, dict[str, NDArray[np.int64]]]:
    """Return the partition's identity and each party's row positions."""
    files = origins(current_layout(), registered or dataset)
    fraction = _test_fraction(dataset, config)
    held = _held_out(dataset, fraction, config.partition_seed, files)
    training = np.ones(dataset.rows, dtype=np.bool_)
    training[held] = False
    kept = np.flatnonzero(training)
    spec = _spec(dataset, config, files)
    own = files if spec is None else ()
    rule: list[object] = [fraction, config.partition_seed, *(["by position"] if dataset.private else [])]
    name = identity(
        dataset=dataset.version,
        rule=OWN_FILES if spec is None else spec.name,
        parameters=dict(spec.parameters) if spec else list(own),
        held_out=rule if len(held) else None,
    )[:32]
    if spec is None:
        _require_owners(own)
        assignment = _own(own, kept)
        if empty := [party for party, inside in assignment.items() if not len(inside)]:
            raise InputError(f"party {empty[0]!r} has no training rows left; choose a smaller --test-fraction")
    else:
        assignment = _partition(dataset, spec, kept)
    return name, {**assignment, **({HELD_OUT: held} if len(held) else {})}


def _test_fraction(dataset: DatasetRef, config: TrainingConfig) -> float:
    """Return the share of rows to hold out: as asked for, or by a rule from public numbers."""
    if dataset.test_rows:
        return 0.0
    if config.test_fraction is not None:
        return config.test_fraction
    if not dataset.private:
        return _PUBLIC_FRACTION
    if not config.evaluation or config.epsilon is None:
        return 0.0
    return held_out_fraction(dataset.rows, len(dataset.classes), config.epsilon, config.stated_delta)


def _held_out(dataset: DatasetRef, fraction: float, seed: int, files: Sequence[tuple[str, int]]) -> NDArray[np.int64]:
    """Return the positions held out; positions and a public seed decide, never what rows contain.

    Of private rows each is decided by its own position within its file, so that it stays held out in every version
    that adds rows at the end, and a smaller fraction holds out fewer of the same rows. How many there are follows from
    n and the seed: it is public.

    Raises
    ------
    InputError
        If a fraction other than 0 would leave no row on either side.
    """
    if fraction == 0:
        return np.arange(0, dtype=np.int64)
    if dataset.private:
        places = [_places(seed, party, rows) for party, rows in files or [("", dataset.rows)]]
        held = np.flatnonzero(np.concatenate(places) < fraction)
    else:
        held = np.sort(np.random.default_rng([seed, 1]).permutation(dataset.rows)[: round(fraction * dataset.rows)])
    if not 0 < len(held) < dataset.rows:
        raise InputError(
            f"a test fraction of {fraction:g} holds out {len(held)} of {dataset.rows} {dataset.unit.several}; "
            f"choose one between {1 / dataset.rows:.3g} and {1 - 1 / dataset.rows:.3g}, or 0 to train on all"
        )
    return held


def held_out_rows(party: str, rows: int, fraction: float, seed: int) -> int:
    """Return how many of a party's own private rows are held out: public, from their number and a public seed."""
    return int(np.count_nonzero(_places(seed, party, rows) < fraction))


def _places(seed: int, party: str, rows: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each position in a party's file, which does not depend on how many follow."""
    name = int.from_bytes(hashlib.sha256(party.encode()).digest()[:8])
    return np.random.default_rng([seed, 2, name]).random(rows)


def _spec(dataset: DatasetRef, config: TrainingConfig, files: Sequence[tuple[str, int]]) -> AlgorithmSpec | None:
    """Return the rule as a specification; None where the parties' own files decide, as they do where there are any."""
    name = config.partition or (OWN_FILES if files else "even")
    if name == OWN_FILES:
        # Forms fill in the default, so that it cannot be told from not asking.
        if files and config.parties not in (len(files), TrainingConfig.model_fields["parties"].default):
            raise InputError(
                f"{dataset.name} has {len(files)} parties of its own, {config.parties} are asked for; leave --parties "
                "out, or divide its rows among simulated parties with --partition even"
            )
        return None
    cls = lookup("partitions", name)
    if cls.content_dependent and dataset.private:
        raise RefusedError(
            f"the partition {name!r} depends on what rows contain and {dataset.name} is private; "
            f"use even, sized or the parties' own files"
        )
    if cls.content_dependent and dataset.person:
        raise RefusedError(
            f"the partition {name!r} goes by the label of each row, and the rows of {dataset.name} are people's, who "
            f"are kept together with all theirs; use even, sized or the parties' own files"
        )
    offered: dict[str, object] = {
        "parties": config.parties,
        "sizes": list(config.sizes) if config.sizes else None,
        "rows_per_party": config.rows_per_party,
        "seed": config.partition_seed,
    }
    fields = cls.__dataclass_fields__
    parameters = {field: value for field, value in offered.items() if field in fields and value is not None}
    for parameter, value in config.parameters.items():
        owner, _, field = parameter.rpartition(".")
        if owner == "partition":
            if field not in fields:
                known = ", ".join(sorted(fields))
                raise ParameterError(f"the partition {name!r} has no parameter {field!r}; it has: {known}")
            parameters[field] = value
    if "sizes" in fields and "sizes" not in parameters:
        raise InputError(f"the partition {name!r} needs the parties' sizes: --sizes 50,100,500")
    return AlgorithmSpec("partitions", name, parameters)


def _partition(dataset: DatasetRef, spec: AlgorithmSpec, kept: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    rule = spec.build()
    labels = None
    if rule.content_dependent:
        blocks = open_dataset(current_layout(), dataset).blocks()
        labels = np.concatenate([labels for _, labels, _ in blocks])[kept]
    partitioned = rule.assign(len(kept), labels)
    return {str(party): kept[positions] for party, positions in partitioned.items()}


def _own(files: Sequence[tuple[str, int]], positions: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return those of some positions that stand in each party's file."""
    ends = np.cumsum([0, *(rows for _, rows in files)])
    return {
        party: positions[(positions >= start) & (positions < end)]
        for (party, _), (start, end) in zip(files, pairwise(ends.tolist()), strict=True)
    }


def _require_owners(files: Sequence[object]) -> None:
    if not files:
        raise InputError(
            "this data set has one owner; ingest the parties' own files: unitball ingest NAME --party PARTY=PATH"
        )


def are_stored_whole(shards: Shards) -> bool:
    """Whether all shards are there."""
    layout = current_layout()
    try:
        for shard in shards.all:
            open_shard(layout, shard)
    except StorageError:
        return False
    return True


class Night(BaseModel, frozen=True, extra="forbid"):
    """One night's rows.

    Attributes
    ----------
    night : int
        From 1.
    registered : DatasetRef
        The version that the rows came with.
    features : tuple of FeatureStep
    shards : tuple of ShardRef
        The parties' rows, or people whose turn it is; a party may have none.
    """

    night: int
    registered: DatasetRef
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
        :func:`tasks.planning.nights.fix_terms` do.
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
    unsaid = config.model_copy(update={"delta": None})
    if kept is None and settled(unsaid).delta == config.delta:
        # What runs took by themselves before they took a tenth of the cap's.
        kept = catalog.stream(_keys(unsaid.model_copy(update={"delta": unsaid.stated_delta}), horizon.number))
    if kept is None:
        first = _night(config, horizon, horizon.arrivals[0], normalisation)
        relation = relation_of(config.dataset)
        terms = fix_terms(config, horizon, first.shards, relation=relation, features=first.features)
        if fix:
            kept = catalog.fix_stream(config.dataset, keys[0], terms.model_dump(mode="json"))
            terms = StreamTerms.model_validate(kept)
    else:
        terms = StreamTerms.model_validate(kept)
    store = open_releases()
    stored = [store.exists(one) for one in terms.release.night_keys[:last]]
    pending = [arrival for arrival in horizon.arrivals if arrival.night == last or not stored[arrival.night - 1]]
    unreleased = tuple(_night(config, horizon, arrival, normalisation) for arrival in pending)
    people = bool(unreleased[-1].registered.person)
    each = [_sizes(config, horizon, night, people=people) for night in range(1, last + 1)]
    return Nights(
        terms=terms,
        unreleased=unreleased,
        arrived=tuple(sum(sizes) for sizes in zip(*each, strict=True)),
    )


# What configurations have gained since there are horizons, in order.
_GAINED = ("tune", "aim", "class_weight", "mirror")


def _keys(config: TrainingConfig, number: int) -> list[str]:
    """Return the names that what a horizon releases may stand under, a new one's first.

    A field that was not there when a horizon began is in no name of it: such a field is in a name where it is given.
    For a while unused ones were in names, too.
    """
    unused = [name for name in _GAINED if getattr(config, name) in (None, {})]
    dumped = (
        config.model_dump(mode="json", exclude={"evaluation", *unused[known:]}) for known in range(len(unused) + 1)
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
    return Night(night=arrival.night, registered=registered, features=features, shards=shards)


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
        _require_owners(files)
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
        _own(files, group)
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
    everything = {HELD_OUT: np.arange(stored.test_rows, dtype=np.int64)}
    return write_shards(current_layout(), stored, everything, night.shards[0].partition, part="test")[0]
