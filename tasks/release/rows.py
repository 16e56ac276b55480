"""Rows of shards, seen through released artefacts in turn; opened by the door, and by whoever measures public rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.rows import Floats, Ints, Rows
from dpalgos.spreading import SpreadRows
from storage.layout import Layout
from storage.refs import ReleaseRef, ShardRef
from storage.shards import open_shard
from tasks.release.redaction import redacted
from tasks.release.storing import read_release
from tasks.runtime.cluster import map_over_workers, on_dask_worker
from tasks.runtime.settings import current_root

__all__ = ["RowMaps", "maps_of", "rows_of"]

RowMaps = Sequence[Callable[[Floats], Floats]]


class _MappedRows:
    """A party's rows seen through released artefacts (post-processing: the maps cost nothing more)."""

    def __init__(self, rows: Rows, maps: RowMaps, dimension: int) -> None:
        self._rows = rows
        self._maps = maps
        self._dimension = dimension

    @property
    def count(self) -> int:
        return self._rows.count

    @property
    def dimension(self) -> int:
        return self._dimension

    def blocks(self) -> Iterator[tuple[Floats, NDArray[np.generic]]]:
        for stored, labels in self._rows.blocks():
            features = np.asarray(stored, dtype=np.float64)
            for mapped in self._maps:
                features = mapped(features)
            yield features, labels

    def fingerprint(self) -> NDArray[np.uint8]:
        # The maps are part of the release's identity, which keys the noise already.
        return self._rows.fingerprint()


def maps_of(upstream: Sequence[ReleaseRef], branches: Sequence[int] = ()) -> RowMaps:
    """Open the released artefacts that rows pass through, in turn, or in several branches side by side.

    Parameters
    ----------
    upstream : sequence of ReleaseRef
    branches : sequence of int
        Lengths of the branches that ``upstream`` is made of; what comes out of each stands beside the others. None: all
        in turn.
    """
    opened = [read_release(reference).apply for reference in upstream]
    if not branches:
        return opened
    ends = list(itertools.accumulate(branches))
    return [_Beside([opened[end - length : end] for end, length in zip(ends, branches, strict=True)])]


@dataclass(frozen=True, slots=True)
class _Beside:
    """What comes out of several branches, side by side."""

    branches: Sequence[RowMaps]

    def __call__(self, features: Floats) -> Floats:
        return np.hstack([functools.reduce(_apply, branch, features) for branch in self.branches])


def _apply(features: Floats, mapped: Callable[[Floats], Floats]) -> Floats:
    return mapped(features)


def rows_of(shard: ShardRef, maps: RowMaps, dimension: int) -> Rows:
    """Open a shard, seen through released artefacts in turn; ``dimension`` features come out.

    On a Dask worker, a shard of several files is summed by all workers, a file at a time.
    """
    # Nothing is to be made for reading, and this is asked for each of many thousand parties.
    rows = open_shard(Layout(current_root()), shard)

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
