"""Rows as public maps show them, kept beside the rows where that is worth it."""

import shutil
from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpalgos.features.public_map import RowFeatures
from dpalgos.rows import Features
from storage.errors import StorageError
from storage.objects import objects_of
from storage.refs import ShardRef
from storage.releases import ReleaseStore
from storage.rowfiles import StoredRows
from storage.shards import has_mapped, open_mapped, write_mapped
from tasks.planning.identity import code_version, identity
from tasks.runtime.settings import current_layout

# A shard of fewer rows, at the most that its people may have, is mapped faster than a folder is written.
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
