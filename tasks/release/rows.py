"""Rows of shards, seen through released artefacts in turn; opened by the door, and by whoever measures public rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpalgos.features.public_map import RowFeatures
from dpalgos.rows import Features, Ints, Rows
from dpalgos.spreading import SpreadRows
from storage.layout import Layout
from storage.refs import ReleaseRef, ShardRef
from storage.shards import open_shard
from tasks.preparation.mapped_rows import kept_rows, seen_through
from tasks.release.redaction import redacted
from tasks.release.storing import read_release
from tasks.runtime.cluster import map_over_workers, on_dask_worker
from tasks.runtime.settings import current_root

__all__ = ["RowMaps", "maps_of", "rows_of"]

RowMaps = Sequence[Callable[[Features], Features]]


class _MappedRows:
    """A party's rows seen through released artefacts (post-processing: the maps cost nothing more).

    ``origin``: the party's own rows, where ``rows`` have passed through some of the maps already.
    """

    def __init__(self, rows: Rows, maps: RowMaps, dimension: int, origin: Rows | None = None) -> None:
        self._rows = rows
        self._maps = maps
        self._dimension = dimension
        self._origin = origin or rows

    @property
    def count(self) -> int:
        return self._rows.count

    @property
    def dimension(self) -> int:
        return self._dimension

    def blocks(self) -> Iterator[tuple[Features, NDArray[np.generic]]]:
        for stored, labels in self._rows.blocks():
            yield functools.reduce(_apply, self._maps, stored), labels

    def fingerprint(self) -> NDArray[np.uint8]:
        # The maps are part of the release's identity, which keys the noise already.
        return self._origin.fingerprint()


@dataclass(frozen=True, slots=True)
class _Public:
    """A public map, which gives the same numbers whether its rows are kept or mapped anew."""

    features: RowFeatures

    def __call__(self, rows: Features) -> Features:
        return seen_through(self.features, rows)


def maps_of(upstream: Sequence[ReleaseRef], branches: Sequence[int] = ()) -> RowMaps:
    """Open the released artefacts that rows pass through, in turn, or in several branches side by side.

    Parameters
    ----------
    upstream : sequence of ReleaseRef
    branches : sequence of int
        Lengths of the branches that ``upstream`` is made of; what comes out of each stands beside the others. None: all
        in turn.
    """
    opened = [_opened(read_release(reference)) for reference in upstream]
    if not branches:
        return opened
    ends = list(itertools.accumulate(branches))
    return [_Beside([opened[end - length : end] for end, length in zip(ends, branches, strict=True)])]


def _opened(artefact: Any) -> Callable[[Features], Features]:
    return _Public(artefact) if isinstance(artefact, RowFeatures) else artefact.apply


@dataclass(frozen=True, slots=True)
class _Beside:
    """What comes out of several branches, side by side."""

    branches: Sequence[RowMaps]

    def __call__(self, features: Features) -> Features:
        beside = [functools.reduce(_apply, branch, features) for branch in self.branches]
        return np.asarray(np.hstack(beside), dtype=np.float64)


def _apply(features: Features, mapped: Callable[[Features], Features]) -> Features:
    return mapped(np.asarray(features, dtype=np.float64))


def rows_of(shard: ShardRef, maps: RowMaps, dimension: int) -> Rows:
    """Open a shard, seen through released artefacts in turn; ``dimension`` features come out.

    On a Dask worker, a shard of several files is summed by all workers, a file at a time. Elsewhere a public map that
    comes first and is slow is applied once, and what it gives is kept with the shard.
    """
    # Nothing is to be made for reading, and this is asked for each of many thousand parties.
    rows = open_shard(Layout(current_root()), shard)
    if maps and isinstance(maps[0], _Public) and not on_dask_worker():
        kept = kept_rows(shard, rows, maps[0].features)
        if kept is not None:
            return _MappedRows(kept, maps[1:], dimension, rows)

    def seen(part: Rows) -> Rows:
        return _MappedRows(part, maps, dimension) if maps else part

    if len(rows.parts or rows.files) > 1 and on_dask_worker():
        return SpreadRows([seen(part) for part in rows.by_file()], functools.partial(_over_workers, shard))
    return seen(rows)


def _over_workers(shard: ShardRef, contribution: Callable[[Rows], Ints], parts: Sequence[Rows]) -> Iterator[Ints]:
    return map_over_workers(functools.partial(_contribution, shard, contribution), parts)


def _contribution(shard: ShardRef, contribution: Callable[[Rows], Ints], part: Rows) -> Ints:
    # A worker logs what is raised on it.
    with redacted(
        f"{shard.partition}-{shard.party}", f"a sum over rows of {shard.party}", private=shard.dataset.private
    ):
        return contribution(part)
