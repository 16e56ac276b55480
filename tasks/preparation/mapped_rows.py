"""Rows as public maps show them: kept once for each version, map and part, where that is worth it."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpalgos.features.public_map import RowFeatures
from dpalgos.rows import Features
from storage.errors import StorageError
from storage.kept_rows import KeptRows, has_kept, keep_rows, open_kept, room_in_memory
from storage.objects import objects_of
from storage.refs import DatasetRef, ShardRef
from storage.releases import ReleaseStore
from storage.rowfiles import StoredRows
from storage.shards import copied_from, open_shard
from tasks.planning.identity import code_version, identity
from tasks.planning.rows import Shards
from tasks.preparation.partitions import HELD_OUT
from tasks.runtime.settings import current_layout

# A part of fewer rows, at the most that its people may have, is mapped faster than files are written.
_FEWEST_ROWS = 1000
# A partition of less than this share of a part's records reads its rows anew rather than have all of them mapped: a
# night's rows are few, and are read a few times.
_LEAST_SHARE = 0.25
# At most this share of the disk that is free goes to one part's mapped rows: charges need the rest.
_SHARE_OF_DISK = 0.25


@dataclass(frozen=True)
class PublicView:
    """Rows as a public map shows them: (m, d) → (m, k) in single precision, the same whether kept or mapped anew.

    Parameters
    ----------
    features : RowFeatures
    """

    features: RowFeatures

    def __call__(self, rows: Features) -> NDArray[np.float32]:
        """Map rows (m, d), each by itself; no warning says what they hold."""
        with np.errstate(all="ignore"):
            return np.asarray(self.features.apply(np.asarray(rows, dtype=np.float64)), dtype=np.float32)

    @cached_property
    def key(self) -> str:
        """The map's identity (:func:`map_key`)."""
        return map_key(self.features)


def map_key(features: RowFeatures) -> str:
    """Return the identity of a map: of the arrays that it is made of, and of the code that applies them."""
    return identity(
        kind=features.kind,
        arrays=ReleaseStore.digest_of({}, features.arrays()),
        code=code_version(*features.classes),
    )


def are_kept(shards: Iterable[ShardRef], features: RowFeatures) -> bool:
    """Whether all rows of some shards' versions are kept as the map shows them; none of them is read."""
    key = map_key(features)
    parts = {(shard.dataset, part_of(shard)) for shard in shards}
    return all(has_kept(current_layout(), dataset, part, key) for dataset, part in parts)


def part_of(shard: ShardRef) -> str:
    """Return the part of its version that a shard's rows are of: held-out rows are the version's own test rows."""
    return "test" if shard.party == HELD_OUT and shard.dataset.test_rows else "train"


def has_room(dataset: DatasetRef, part: str, dimension: int) -> bool:
    """Whether a part's rows may be kept under a map: by how many there may be, which is public, and what is free.

    On the disk they take a quarter of what is free at most: charges need the rest, and what goes to an object store is
    written there first. An object store is asked for blocks of rows, and where parties' rows lie everywhere, nearly all
    of it is asked for by each of them: so there they take no more than may stay in memory.

    Parameters
    ----------
    dataset : DatasetRef
    part : {"train", "test"}
    dimension : int
        Numbers a row that the map gives.
    """
    layout = current_layout()
    most = 4 * dimension * dataset.rows_per_person * (dataset.rows if part == "train" else dataset.test_rows)
    if objects_of(layout) is not None and most > room_in_memory():
        return False
    return most <= _SHARE_OF_DISK * shutil.disk_usage(layout.root).free


def is_worth_keeping(dataset: DatasetRef, part: str, assigned: int) -> bool:
    """Whether a part's rows are kept for a partition that has so many of its records: from public numbers alone."""
    records = dataset.rows if part == "train" else dataset.test_rows
    return records * dataset.rows_per_person >= _FEWEST_ROWS and assigned >= _LEAST_SHARE * records


def kept_rows(shard: ShardRef, rows: StoredRows, view: PublicView, *, make: bool = True) -> KeptRows | None:
    """Return a shard's rows as the map shows them, from where its part's are kept; they are kept where they were not.

    Parameters
    ----------
    rows : StoredRows
        The shard's.
    view : PublicView
    make : bool
        False: not where they are not kept yet.

    Returns
    -------
    KeptRows or None
        None where keeping them is not worth it, or there is no room: then they are mapped whenever they are read. Of
        people's rows that follows from how many people there are, and not from how many rows they have.
    """
    if not view.features.kept:
        return None
    layout = current_layout()
    found = open_kept(layout, shard, rows, view.key, view)
    if found is not None or not make:
        return found
    dataset, copied, dimension = shard.dataset, copied_from(layout, shard), view.features.dimension
    if not is_worth_keeping(dataset, copied.part, copied.assigned):
        return None
    try:
        if not has_room(dataset, copied.part, dimension):
            return None
        keep_rows(layout, dataset, copied.part, view.key, dimension, view)
        return open_kept(layout, shard, rows, view.key, view)
    except (StorageError, OSError):
        return None


def keep_under(shards: Shards, maps: Sequence[RowFeatures]) -> None:
    """Keep the rows of stored shards under maps that releases will read them through.

    For work that has a clock of its own: what is kept is not made within a release's.
    """
    parts = {part_of(shard): shard for shard in shards.all}
    for features in maps:
        for shard in parts.values():
            kept_rows(shard, open_shard(current_layout(), shard), PublicView(features))
