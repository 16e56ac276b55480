"""Partitions: which rows each party has, and which are held out, by a rule from public facts."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpalgos.metrics import held_out_fraction
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.datasets import open_dataset, origins
from storage.errors import InputError, RefusedError, StorageError
from storage.refs import DatasetRef, ShardRef
from storage.shards import open_shard, write_shards
from tasks.accounts.budget import opening_cap, tenth
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import identity
from tasks.planning.plans import FeatureStep, Shards
from tasks.planning.resolution import parameters_of
from tasks.preparation.normalisation import map_rows, mapped_ref
from tasks.preparation.public_maps import featured_ref, map_features, plan_features
from tasks.runtime.settings import current_layout

HELD_OUT = "test"


OWN_FILES = "own"


_PUBLIC_FRACTION = 0.2


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
        write_test_rows(dataset, name)
    return _references(dataset, name, assignment)


def write_test_rows(dataset: DatasetRef, name: str) -> ShardRef:
    """Write a data set's own test rows as the held-out shard of a partition."""
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
        require_owners(own)
        assignment = own_positions(own, kept)
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


def own_positions(files: Sequence[tuple[str, int]], positions: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return those of some positions that stand in each party's file."""
    ends = np.cumsum([0, *(rows for _, rows in files)])
    return {
        party: positions[(positions >= start) & (positions < end)]
        for (party, _), (start, end) in zip(files, pairwise(ends.tolist()), strict=True)
    }


def require_owners(files: Sequence[object]) -> None:
    """Refuse the parties' own files as a partition of a data set that has none."""
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
