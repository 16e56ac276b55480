"""Rows as public maps show them: kept once for each version, map and part, where that is worth it."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpalgos.features.public_map import RowFeatures
from dpalgos.models import Projection
from dpalgos.rows import Array, Features
from storage.errors import StorageError
from storage.kept_rows import KeptRows, has_kept, keep_rows, open_kept, room_in_memory
from storage.objects import objects_of
from storage.refs import DatasetRef, ShardRef
from storage.releases import ReleaseStore
from storage.rowfiles import StoredRows
from storage.shards import copied_from, open_shard
from storage.unit_ball import into_unit_ball
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


Map = RowFeatures | Projection
"""What rows pass through that no private row has a part in: a function of one row at a time, or a basis."""

Mapped = NDArray[np.float32]


@dataclass(frozen=True)
class PublicView:
    """Rows as public maps show them, in turn: (m, d) → (m, k) in single precision, equal if mapped again.

    Parameters
    ----------
    maps : tuple of RowFeatures or Projection
    encoded : int
        How many of them come before everything else: what these make of rows is brought into the unit ball.
    """

    maps: tuple[Map, ...]
    encoded: int = 0

    def __call__(self, rows: Features) -> Mapped:
        """Map rows (m, d), each by itself; no warning says what they hold."""
        seen: Array = np.asarray(rows)
        with np.errstate(all="ignore"):
            for number, row_map in enumerate(self.maps, 1):
                seen = row_map.apply(np.asarray(seen, dtype=np.float64))
                if number == self.encoded:
                    seen = into_unit_ball(seen)
                elif number > self.encoded:
                    seen = np.asarray(seen, dtype=np.float32)
        return np.asarray(seen, dtype=np.float32)

    def then(self, other: "PublicView") -> "PublicView":
        """Return what another view, of no map that comes first, makes of these rows."""
        return PublicView((*self.maps, *other.maps), self.encoded)

    @property
    def dimension(self) -> int:
        """Numbers per row."""
        return self.maps[-1].dimension

    @property
    def kept(self) -> bool:
        """Whether its rows are worth keeping: those that were asked for before everything else, and of slow maps."""
        return len(self.maps) == self.encoded or getattr(self.maps[-1], "kept", False)

    @cached_property
    def key(self) -> str:
        """Its identity: of the maps (:func:`map_key`), and of which come first."""
        if len(self.maps) == 1 and not self.encoded:
            return map_key(self.maps[0])
        return identity(maps=[map_key(one) for one in self.maps], encoded=self.encoded)


def map_key(features: Map) -> str:
    """Return the identity of a map: of the arrays that it is made of, and of the code that applies them."""
    return identity(
        kind=features.kind,
        arrays=ReleaseStore.digest_of({}, features.arrays()),
        code=code_version(*features.classes),
    )


def are_kept(shards: Iterable[ShardRef], view: PublicView) -> bool:
    """Whether all rows of some shards' versions are kept under a view; none of them is read."""
    key = view.key
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
        Numbers per row of the map's output.
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
    """Return a shard's rows as public maps show them, from where its part's are kept; they are made where they are not.

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
    if not view.kept:
        return None
    layout = current_layout()
    found = open_kept(layout, shard, rows, view.key, view)
    if found is not None or not make:
        return found
    copied = copied_from(layout, shard)
    if not is_worth_keeping(shard.dataset, copied.part, copied.assigned):
        return None
    return open_kept(layout, shard, rows, view.key, view) if _kept(shard.dataset, copied.part, view, view) else None


def _kept(dataset: DatasetRef, part: str, view: PublicView, mapped: Callable[[Features], Mapped]) -> bool:
    """Keep a part's rows where there is room; return whether they are."""
    try:
        if has_room(dataset, part, view.dimension):
            keep_rows(current_layout(), dataset, part, view.key, view.dimension, mapped)
            return True
    except (StorageError, OSError):
        pass
    return False


def keep_parts(dataset: DatasetRef, view: PublicView, mapped: Callable[[Features], Mapped]) -> None:
    """Keep all rows of a version under a view, where there is room.

    Parameters
    ----------
    dataset : DatasetRef
        Stored.
    view : PublicView
    mapped : callable
        Does what the view does; it may say how far it is.
    """
    for part in ["train", *(["test"] if dataset.test_rows else [])]:
        _kept(dataset, part, view, mapped)


def keep_under(shards: Shards, views: Sequence[PublicView]) -> None:
    """Keep the rows of stored shards under views that releases will read them through.

    For work that has its own clock: what is kept is not made within a release's.
    """
    parts = {part_of(shard): shard for shard in shards.all}
    for view in views:
        for shard in parts.values():
            kept_rows(shard, open_shard(current_layout(), shard), view)
