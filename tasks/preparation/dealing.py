"""Dealing rows to simulated parties, and holding rows out for testing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.datasets import open_dataset, origins
from storage.errors import InputError, RefusedError, StorageError
from storage.refs import DatasetRef, ShardRef
from storage.shards import open_shard, write_shards
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import identity
from tasks.planning.plans import Shards
from tasks.runtime.settings import current_layout

__all__ = ["HELD_OUT", "OWN_FILES", "are_stored_whole", "deal_rows", "planned_shards"]

HELD_OUT = "test"
OWN_FILES = "own"


def deal_rows(dataset: DatasetRef, config: TrainingConfig) -> Shards:
    """Deal a data set's rows to parties by a rule that is fixed before any row is looked at.

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


def planned_shards(dataset: DatasetRef, config: TrainingConfig) -> Shards | None:
    """Return the references that :func:`deal_rows` would return; no row is read.

    None where the partition depends on what rows contain.

    Raises
    ------
    RefusedError, InputError
        As :func:`deal_rows` does.
    """
    spec = _spec(dataset, config)
    if spec is not None and spec.build().content_dependent:
        return None
    name, assignment = _assigned(dataset, config)
    sizes = {party: len(positions) for party, positions in assignment.items()}
    if dataset.test_rows:
        sizes[HELD_OUT] = dataset.test_rows
    shards = {party: ShardRef(dataset=dataset, partition=name, party=party, rows=rows) for party, rows in sizes.items()}
    held_out = shards.pop(HELD_OUT, None)
    return Shards(training=tuple(shards.values()), held_out=held_out)


def _assigned(dataset: DatasetRef, config: TrainingConfig) -> tuple[str, dict[str, NDArray[np.int64]]]:
    """Return the partition's identity and each party's row positions."""
    held, kept = _split(dataset, config)
    spec = _spec(dataset, config)
    own = origins(current_layout(), dataset) if config.partition == OWN_FILES else ()
    name = identity(
        dataset=dataset.version,
        rule=config.partition,
        parameters=dict(spec.parameters) if spec else list(own),
        held_out=[config.test_fraction, config.partition_seed] if len(held) else None,
    )[:32]
    assignment = _own(own, kept) if spec is None else _deal(dataset, spec, kept)
    return name, {**assignment, **({HELD_OUT: held} if len(held) else {})}


def _split(dataset: DatasetRef, config: TrainingConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions held out and positions to train on; row positions and a public seed decide."""
    everything = np.arange(dataset.rows, dtype=np.int64)
    if dataset.test_rows or config.test_fraction == 0:
        return everything[:0], everything
    count = round(config.test_fraction * dataset.rows)
    if not 0 < count < dataset.rows:
        raise InputError(
            f"a test fraction of {config.test_fraction:g} holds out {count} of {dataset.rows} rows; "
            f"choose one between {1 / dataset.rows:.3g} and {1 - 1 / dataset.rows:.3g}, or 0 to train on all"
        )
    order = np.random.default_rng([config.partition_seed, 1]).permutation(dataset.rows)
    return np.sort(order[:count]), np.sort(order[count:])


def _spec(dataset: DatasetRef, config: TrainingConfig) -> AlgorithmSpec | None:
    """Return the rule as a specification; None where the parties' own files decide."""
    if config.partition == OWN_FILES:
        return None
    cls = lookup("partitions", config.partition)
    if cls.content_dependent and dataset.private:
        raise RefusedError(
            f"the partition {config.partition!r} depends on what rows contain and {dataset.name} is private; "
            f"use even, sized or the parties' own files"
        )
    offered: dict[str, object] = {
        "parties": config.parties,
        "sizes": list(config.sizes) if config.sizes else None,
        "rows_per_party": config.rows_per_party,
        "seed": config.partition_seed,
    }
    fields = cls.__dataclass_fields__
    given = {name: value for name, value in offered.items() if name in fields and value is not None}
    for name, value in config.parameters.items():
        owner, _, field = name.rpartition(".")
        if owner == "partition":
            if field not in fields:
                known = ", ".join(sorted(fields))
                raise ParameterError(f"the partition {config.partition!r} has no parameter {field!r}; it has: {known}")
            given[field] = value
    if "sizes" in fields and "sizes" not in given:
        raise InputError(f"the partition {config.partition!r} needs the parties' sizes: --sizes 50,100,500")
    return AlgorithmSpec("partitions", config.partition, given)


def _deal(dataset: DatasetRef, spec: AlgorithmSpec, kept: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    rule = spec.build()
    labels = None
    if rule.content_dependent:
        blocks = open_dataset(current_layout(), dataset).blocks()
        labels = np.concatenate([block for _, block in blocks])[kept]
    dealt = rule.assign(len(kept), labels)
    return {str(party): kept[positions] for party, positions in dealt.items()}


def _own(files: Sequence[tuple[str, int]], kept: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    if not files:
        raise InputError(
            "this data set has one owner; ingest the parties' own files: unitball ingest NAME --party PARTY=PATH"
        )
    assignment = {}
    start = 0
    for party, rows in files:
        inside = kept[(kept >= start) & (kept < start + rows)]
        if not len(inside):
            raise InputError(f"party {party!r} has no training rows left; choose a smaller --test-fraction")
        assignment[party] = inside
        start += rows
    return assignment


def are_stored_whole(shards: Shards) -> bool:
    """Whether all shards are there."""
    layout = current_layout()
    try:
        for shard in shards.all:
            open_shard(layout, shard)
    except StorageError:
        return False
    return True
