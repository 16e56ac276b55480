"""Registered rows before a release: brought into the unit ball, seen through public maps, divided among parties.

A map is public where no private row has a part in it: made from parameters, read from somebody's file, or learnt from
public rows. It costs nothing and is no release, but it is kept beside them, by its identity: a model is nothing without
what its rows pass through.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from dpalgos.features.public_map import FileMap, RowFeatures
from dpalgos.features.whitening import PublicRowsWhitening
from dpalgos.guarantees import Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.metrics import held_out_fraction
from dpalgos.models import opened
from dpalgos.normalisation import RowMap
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, construct, lookup
from dpalgos.rows import Array, Features, Floats, fits, pieces
from storage.arrivals import Arrival
from storage.catalog import Horizon
from storage.datasets import dataset_ref, is_complete, open_dataset, origins, transform_dataset, transformed_ref
from storage.errors import DamagedError, InputError, RefusedError, StorageError
from storage.objects import objects_of
from storage.refs import DatasetRef, ShardRef
from storage.releases import ReleaseStore
from storage.rowfiles import StoredRows
from storage.shards import has_mapped, open_mapped, open_shard, write_mapped, write_shards
from tasks.accounts.budget import opening_cap, relation_of, tenth
from tasks.datasets.horizons import drafted_horizon, find_horizon, night_of_people, positions_of, require_appended
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import AlgorithmSettings, PartitionSettings, TrainingConfig, split_features
from tasks.planning.identity import code_version, identity, source_digest
from tasks.planning.nights import StreamTerms, fix_terms, night_partition, planned_night, require_maps
from tasks.planning.plans import FeatureStep, Shards
from tasks.planning.resolution import admitted_normalisation, parameters_of
from tasks.preparation.streams import require_current, require_on_record, require_same_versions
from tasks.runtime.progress import say
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog, open_releases

# A shard of fewer rows, at the most that its people may have, is mapped faster than a folder is written.
_FEWEST_ROWS = 1000
# At most this share of the disk that is free goes to one shard's mapped rows: charges need the rest.
_SHARE_OF_DISK = 0.25
HELD_OUT = "test"
OWN_FILES = "own"
_PUBLIC_FRACTION = 0.2


def mapped_ref(dataset: DatasetRef, name: str) -> DatasetRef:
    """Return the reference that :func:`map_rows` would return; no row is read.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    recipe = identity(source=source_digest(cls))
    return transformed_ref(current_layout(), dataset, normalisation=name, recipe=recipe, unit_ball=cls.unit_ball)


def map_rows(dataset: DatasetRef, name: str) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    learnt = row_map(dataset, name)
    return transform_dataset(
        current_layout(),
        dataset,
        # What is made on the way is several times as large as the rows: as much as a core's cache holds.
        lambda rows: np.concatenate([learnt(rows[part]) for part in pieces(*rows.shape)]),
        normalisation=name,
        recipe=identity(source=source_digest(cls)),
        unit_ball=cls.unit_ball,
    )


def row_map(dataset: DatasetRef, name: str) -> RowMap:
    """Return the map of a normalisation; one that looks at rows learns it from the data set's."""
    stored = open_dataset(current_layout(), dataset)
    learner, blocks = AlgorithmSpec("normalisations", name).build(), stored.blocks()
    return cast(RowMap, learner.learn(np.asarray(features, dtype=np.float64) for features, *_ in blocks))


def is_stored_whole(dataset: DatasetRef) -> bool:
    """Whether a version is there."""
    return is_complete(current_layout(), dataset.version)


def seen_through(features: RowFeatures, rows: Features) -> NDArray[np.float32]:
    """Return rows (m, d) under a map, (m, k) in single precision: the same whether they are kept or mapped anew."""
    return np.asarray(features.apply(np.asarray(rows, dtype=np.float64)), dtype=np.float32)


def map_key(features: RowFeatures) -> str:
    """Return the identity of a map: of the arrays that it is made of, and of the code that applies them."""
    return identity(
        kind=features.kind,
        arrays=ReleaseStore.digest_of({}, features.arrays()),
        code=code_version(*features.classes),
    )


def are_kept(shards: Iterable[ShardRef], features: RowFeatures) -> bool:
    """Whether all of some shards' rows are kept as the map shows them; none of them is read."""
    layout, key = current_layout(), map_key(features)
    return all(has_mapped(layout, shard, key) for shard in shards)


def kept_rows(shard: ShardRef, rows: StoredRows, features: RowFeatures) -> StoredRows | None:
    """Return a shard's rows as the map shows them, from disk; they are mapped and kept where they were not before.

    Parameters
    ----------
    rows : StoredRows
        The shard's.
    features : RowFeatures

    Returns
    -------
    StoredRows or None
        None where keeping them is not worth it, or there is no room: then they are mapped whenever they are read. Of
        people's rows that follows from how many people there are, and not from how many rows they have.
    """
    layout, most = current_layout(), shard.rows * shard.dataset.rows_per_person
    # Rows in an object store are kept nowhere else.
    if not features.kept or objects_of(layout) is not None or most < _FEWEST_ROWS:
        return None
    key = map_key(features)
    rows_kept = open_mapped(layout, shard, rows, key)
    if rows_kept is not None:
        return rows_kept
    try:
        if 4 * most * features.dimension > _SHARE_OF_DISK * shutil.disk_usage(layout.root).free:
            return None
        return write_mapped(layout, shard, rows, key, features.dimension, partial(seen_through, features))
    except (StorageError, OSError):
        return None


def plan_features(dataset: DatasetRef, config: AlgorithmSettings) -> tuple[FeatureStep, ...]:
    """Return the public maps that a configuration puts before everything else; no row is read.

    An encoder's file is read, tried on a synthetic row, and copied into the root by its content.

    Parameters
    ----------
    dataset : DatasetRef
        Normalised.
    config : AlgorithmSettings

    Raises
    ------
    InputError
        If a file is not there, or public rows do not fit.
    ParameterError
        If a parameter, or what a file says, does not fit the rows.
    RefusedError
        If rows to learn from are private, or those that are trained on.
    """
    steps: tuple[FeatureStep, ...] = ()
    if config.features is not None:
        name, file = split_features(config.features)
        parameters = parameters_of(config, "features")
        steps = (
            _from_parameters(dataset, name, parameters)
            if file is None
            else _from_file(dataset, name, file, parameters),
        )
    elif parameters_of(config, "features"):
        raise ParameterError("parameters of features are given and no features: choose --features, or leave them out")
    if config.public_dataset is not None:
        steps += (_from_public_rows(dataset, config, steps),)
    elif parameters_of(config, "public"):
        raise ParameterError("parameters of public rows are given and no rows: choose --public-dataset")
    return steps


def featured_ref(dataset: DatasetRef, features: Sequence[FeatureStep]) -> DatasetRef:
    """Return the reference that :func:`map_features` would return; no row is read."""
    if not features:
        return dataset
    return transformed_ref(
        current_layout(),
        dataset,
        normalisation=dataset.normalisation,
        recipe=features[-1].key,
        dimension=features[-1].dimension,
    )


def make_maps(dataset: DatasetRef, features: Sequence[FeatureStep]) -> list[RowFeatures]:
    """Make the maps that are not stored, and return all of them; the rows are not looked at."""
    maps: list[RowFeatures] = []
    for feature in features:
        maps.append(_made(feature, dataset, maps))
    return maps


def map_features(dataset: DatasetRef, features: Sequence[FeatureStep]) -> DatasetRef:
    """Make the maps that are not stored, and store a version of the rows seen through all of them.

    Raises
    ------
    RefusedError
        If a stored map is not one of such rows; none of them is read then.
    """
    maps = make_maps(dataset, features)
    if not fits([one.apply for one in maps], dataset.dimension, features[-1].dimension):
        raise RefusedError(
            f"{', '.join(one.label for one in features)} as stored do not map rows of {dataset.dimension} features to "
            f"{features[-1].dimension}; unitball doctor --clean removes damaged releases"
        )
    row_map = _through(maps)
    return transform_dataset(
        current_layout(),
        dataset,
        # How many rows people have is nobody's business.
        row_map if dataset.person else _counted(row_map, dataset.rows + dataset.test_rows),
        normalisation=dataset.normalisation,
        recipe=features[-1].key,
        dimension=features[-1].dimension,
    )


def planned_rows(
    config: TrainingConfig, registered: DatasetRef, normalisation: str
) -> tuple[tuple[FeatureStep, ...], Shards | None]:
    """Return the public maps and the shards of a run as :func:`prepare_rows` will make them; no row is read.

    No shards where the partition depends on what rows contain.

    Raises
    ------
    InputError, ParameterError, RefusedError
        As :func:`plan_features` and :func:`planned_shards` do.
    """
    mapped = mapped_ref(registered, normalisation)
    features = plan_features(mapped, config)
    return features, planned_shards(featured_ref(mapped, features), config, registered)


def prepare_rows(
    config: TrainingConfig, registered: DatasetRef, normalisation: str, features: Sequence[FeatureStep]
) -> Shards:
    """Normalise and map all rows and partition them: what a run does with rows before any release.

    The public maps are to be made already, so that nothing but rows is worked on.
    """
    dataset = map_rows(registered, normalisation)
    return partition_rows(map_features(dataset, features) if features else dataset, config)


def stored_map(key: str) -> RowFeatures:
    """Return a map that was made, by its identity."""
    manifest, arrays = open_releases().read(key)
    return cast(RowFeatures, opened(manifest["artefact"], arrays))


def public_map(spec: AlgorithmSpec, setting: Setting) -> RowFeatures:
    """Return a map made of parameters and the rows' dimension alone; made once for all runs of a root, then read back.

    Parameters
    ----------
    spec : AlgorithmSpec
        A :class:`~dpalgos.features.public_map.PublicMap` that is ``kept``: it draws no noise.
    setting : Setting
    """
    step = find_public_map(spec, setting)
    if step is not None:
        return step
    whole = spec.build().stored_as(spec, setting.dimension)
    key = _map_identity(whole, setting.dimension)
    stored = _store(key, spec.name, whole.build().fit((), setting, KeyedNoise(public_secret(0), key)))
    return cast(RowFeatures, spec.build().part_of(stored))


def find_public_map(spec: AlgorithmSpec, setting: Setting) -> RowFeatures | None:
    """Return what :func:`public_map` has made and kept; None where it has not. A damaged one is removed."""
    key = _map_identity(spec.build().stored_as(spec, setting.dimension), setting.dimension)
    if not open_releases().exists(key):
        return None
    try:
        return cast(RowFeatures, spec.build().part_of(stored_map(key)))
    except DamagedError:
        open_releases().remove_damaged(key)
        return None


def _through(maps: Sequence[RowFeatures]) -> Callable[[Floats], Floats]:
    def mapped(features: Floats) -> Floats:
        # No warning says what rows hold.
        with np.errstate(all="ignore"):
            for each in maps:
                features = each.apply(features)
        return features

    return mapped


def _from_parameters(dataset: DatasetRef, name: str, parameters: dict[str, object]) -> FeatureStep:
    spec = AlgorithmSpec("projections", name, parameters)
    algorithm = spec.build()
    key = _map_identity(spec, dataset.dimension)
    return FeatureStep(key=key, label=name, dimension=algorithm.output_dimension(dataset.dimension), algorithm=spec)


def _map_identity(spec: AlgorithmSpec, dimension: int) -> str:
    return identity(map=[spec.name, dict(spec.parameters), dimension], code=code_version(*spec.classes()))


def _from_file(dataset: DatasetRef, name: str, file: str, parameters: dict[str, object]) -> FeatureStep:
    cls = lookup("encoders", name)
    encoder: FileMap = construct(cls, name, parameters)
    content = _content(Path(file).expanduser(), encoder.largest)
    features = encoder.read(content, dataset.dimension)
    outside = encoder.outside(content)
    # The map's arrays hold the file, so that the outside sentence's digest and the identity are of the same bytes.
    digest = ReleaseStore.digest_of({}, features.arrays())
    key = identity(map=[name, digest, dataset.dimension], code=code_version(cls))
    _store(key, name, features)
    return FeatureStep(key=key, label=name, dimension=features.dimension, outside=outside)


def _content(path: Path, largest: int) -> bytes:
    try:
        if not path.is_file():
            raise InputError(f"there is no file {path}: name the encoder's file, as in --features onnx:encoder.onnx")
        if (size := path.stat().st_size) > largest:
            raise InputError(f"{path} has {size} bytes; an encoder's file has at most {largest}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _from_public_rows(dataset: DatasetRef, config: AlgorithmSettings, before: Sequence[FeatureStep]) -> FeatureStep:
    public = find_dataset(str(config.public_dataset))
    registered = find_dataset(dataset.name)
    if public.private:
        raise RefusedError(
            f"{public.name} is private: what is learnt from its rows would have to be charged; name a public set"
        )
    if public.version == registered.version or public.account == registered.account:
        raise RefusedError(
            f"{public.name} holds the rows that are trained on: what is learnt from them is no public map; name a set "
            "of other rows"
        )
    if public.dimension != registered.dimension:
        raise InputError(
            f"{public.name} has {public.dimension} features a row and {registered.name} {registered.dimension}; "
            "public rows are of the same kind as those that are trained on"
        )
    parameters = parameters_of(config, "public")
    learner = construct(PublicRowsWhitening, "public", parameters)
    if learner.head > 0 and public.classes != registered.classes:
        raise InputError(
            f"public.head asks for a head trained on {public.name}, whose classes are not those of {registered.name}; "
            "leave it out"
        )
    dimension = before[-1].dimension if before else dataset.dimension
    key = identity(
        map=["public-rows", parameters, dataset.normalisation, dimension],
        rows=public.version,
        before=[step.key for step in before],
        code=code_version(PublicRowsWhitening),
    )
    return FeatureStep(
        key=key,
        label="public-rows",
        dimension=learner.output_dimension(dimension, public.rows, max(len(public.classes), 1)),
        algorithm=AlgorithmSpec("", "public", parameters),
        public=public,
        outside=f"the public rows of {public.name}, which features are centred and whitened by, are not protected",
    )


def _made(feature: FeatureStep, dataset: DatasetRef, before: Sequence[RowFeatures]) -> RowFeatures:
    if open_releases().exists(feature.key):
        return stored_map(feature.key)
    assert feature.algorithm is not None
    if feature.public is None:
        setting = Setting(sizes=(), dimension=dataset.dimension, classes=max(len(dataset.classes), 1))
        row_features: RowFeatures = feature.algorithm.build().fit(
            (), setting, KeyedNoise(public_secret(0), feature.key)
        )
    else:
        rows = map_rows(feature.public, dataset.normalisation)
        through = _through(before)
        width = before[-1].dimension if before else rows.dimension
        learner = construct(PublicRowsWhitening, "public", feature.algorithm.parameters)
        row_features = learner.learn(_Mapped(rows, through), width, rows.rows, max(len(rows.classes), 1))
    return _store(feature.key, feature.label, row_features)


def _counted(row_map: Callable[[Floats], Floats], rows: int) -> Callable[[Floats], Floats]:
    done = 0

    def mapped(features: Floats) -> Floats:
        nonlocal done
        mapped_rows = row_map(features)
        done += len(features)
        say("features", f"{done:,} of {rows:,} rows", done / rows)
        return mapped_rows

    return mapped


class _Mapped:
    """The rows of a stored version under a map, block by block, as often as they are read."""

    def __init__(self, rows: DatasetRef, through: Callable[[Floats], Floats]) -> None:
        self._rows, self._through = rows, through

    def __iter__(self) -> Iterator[tuple[Floats, Array]]:
        for features, labels, _ in open_dataset(current_layout(), self._rows).blocks():
            yield self._through(np.asarray(features, dtype=np.float64)), labels


def _store(key: str, label: str, row_features: RowFeatures) -> RowFeatures:
    manifest = {"format_version": 1, "key": key, "artefact": row_features.kind, "label": label, "reads_rows": False}
    open_releases().write(key, manifest, row_features.arrays())
    return row_features


# ── the parties' shards ───────────────────────────────────────────────────────────────────────────────────────────────


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
    write_shards(current_layout(), dataset, assignment, name)
    if dataset.test_rows:
        _write_test_rows(dataset, name)
    return _references(dataset, name, assignment)


def _write_test_rows(dataset: DatasetRef, name: str) -> ShardRef:
    everything = {HELD_OUT: np.arange(dataset.test_rows, dtype=np.int64)}
    return write_shards(current_layout(), dataset, everything, name, part="test")[0]


def _references(dataset: DatasetRef, name: str, assignment: Mapping[str, NDArray[np.int64]]) -> Shards:
    """Return the shards of a partition; of held-out rows the data set's own test rows, where it has any."""
    sizes = {party: len(positions) for party, positions in assignment.items()}
    if dataset.test_rows:
        sizes[HELD_OUT] = dataset.test_rows
    shards = {party: ShardRef(dataset=dataset, partition=name, party=party, rows=rows) for party, rows in sizes.items()}
    held_out = shards.pop(HELD_OUT, None)
    return Shards(training=tuple(shards.values()), held_out=held_out)


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
    return _references(dataset, *_assigned(dataset, config, registered))


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
    cap = opening_cap(dataset.name)
    # The account's own, so that all its runs of one epsilon hold out the same rows, whatever delta each takes: another
    # partition of the same rows would be charged on top.
    return private_fraction(config, dataset.rows, len(dataset.classes), None if cap is None else tenth(cap.delta))


def private_fraction(config: TrainingConfig, rows: int, classes: int, delta: float | None = None) -> float:
    """Return the share of private rows to hold out: as asked for, or by a rule from public numbers.

    Parameters
    ----------
    config : TrainingConfig
    rows, classes : int
    delta : float, optional
        A tenth of the cap's; the run's own where nobody here knows a cap.
    """
    if config.test_fraction is not None:
        return config.test_fraction
    if not config.evaluation or config.epsilon is None or not rows:
        return 0.0
    return held_out_fraction(rows, classes, config.epsilon, config.stated_delta if delta is None else delta)


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
    given = parameters_of(config, "partition")
    if unknown := [field for field in given if field not in fields]:
        known = ", ".join(sorted(fields))
        raise ParameterError(f"the partition {name!r} has no parameter {unknown[0]!r}; it has: {known}")
    if config.rows_per_party is not None and "rows_per_party" not in fields:
        raise InputError(f"the partition {name!r} takes no --rows-per-party; leave one of them out")
    parameters = {field: value for field, value in offered.items() if field in fields and value is not None} | given
    if "sizes" in fields and "sizes" not in parameters:
        raise InputError(f"the partition {name!r} needs the parties' sizes: --sizes 50,100,500")
    return AlgorithmSpec("partitions", name, parameters)


def _partition(dataset: DatasetRef, spec: AlgorithmSpec, kept: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    rule = spec.build()
    labels = None
    if rule.content_dependent:
        blocks = open_dataset(current_layout(), dataset).blocks()
        labels = np.concatenate([labels for _, labels, _ in blocks])[kept]
    return {str(party): kept[positions] for party, positions in rule.assign(len(kept), labels).items()}


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
    dumped = (config.hashed(without=["evaluation", *unused[known:]]) for known in range(len(unused) + 1))
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
    return _write_test_rows(stored, night.shards[0].partition)
