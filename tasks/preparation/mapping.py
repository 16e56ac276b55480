"""Versions of a data set brought into the unit ball, and shards seen through a public map."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpalgos.features.public_map import RowFeatures
from dpalgos.normalisation import RowMap
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import Features
from storage.datasets import is_complete, open_dataset, transform_dataset, transformed_ref
from storage.errors import StorageError
from storage.mapped import has_mapped, open_mapped, write_mapped
from storage.refs import DatasetRef, ShardRef
from storage.releases import ReleaseStore
from storage.rowfiles import StoredRows
from tasks.planning.identity import code_version, identity, source_of
from tasks.planning.resolution import admitted_normalisation
from tasks.runtime.settings import current_layout


def mapped_ref(dataset: DatasetRef, name: str) -> DatasetRef:
    """Return the reference that :func:`map_rows` would return; no row is read.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    recipe = identity(source=source_of(cls))
    return transformed_ref(current_layout(), dataset, normalisation=name, recipe=recipe, unit_ball=cls.unit_ball)


def map_rows(dataset: DatasetRef, name: str) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    return transform_dataset(
        current_layout(),
        dataset,
        row_map(dataset, name),
        normalisation=name,
        recipe=identity(source=source_of(cls)),
        unit_ball=cls.unit_ball,
    )


def row_map(dataset: DatasetRef, name: str) -> RowMap:
    """Return the map of a normalisation; one that looks at rows learns it from the data set's."""
    stored = open_dataset(current_layout(), dataset)
    learnt: RowMap = (
        AlgorithmSpec("normalisations", name)
        .build()
        .learn(np.asarray(features, dtype=np.float64) for features, *_ in stored.blocks())
    )
    return learnt


def is_stored_whole(dataset: DatasetRef) -> bool:
    """Whether a version is there."""
    return is_complete(current_layout(), dataset)


# A shard of fewer rows is mapped faster than a folder is written.
_FEWEST_ROWS = 1000
# At most this share of the disk that is free goes to one shard's mapped rows: charges need the rest.
_SHARE_OF_DISK = 0.25


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
        None where keeping them is not worth it, or there is no room: then they are mapped whenever they are read.
    """
    layout = current_layout()
    # Rows in an object store are kept nowhere else.
    if not features.kept or rows.parts or rows.stored < _FEWEST_ROWS:
        return None
    key = map_key(features)
    found = open_mapped(layout, shard, rows, key)
    if found is not None:
        return found
    try:
        if 4 * rows.stored * features.dimension > _SHARE_OF_DISK * shutil.disk_usage(layout.root).free:
            return None
        return write_mapped(layout, shard, rows, key, features.dimension, partial(seen_through, features))
    except (StorageError, OSError):
        return None
