"""Rows of shards, seen through released artefacts in turn; opened by the door, and by whoever measures public rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpalgos.features.public_map import RowFeatures
from dpalgos.rows import Features, Ints, MappedRows, RowMap, Rows, fits
from dpalgos.spreading import SpreadRows
from storage.errors import RefusedError
from storage.layout import Layout
from storage.refs import ReleaseRef, ShardRef
from storage.shards import open_shard
from tasks.planning.plans import PlannedRelease
from tasks.preparation.mapped_rows import kept_rows, seen_through
from tasks.release.redaction import redacted
from tasks.release.storing import read_release
from tasks.runtime.cluster import map_over_workers, on_dask_worker
from tasks.runtime.settings import current_root

RowMaps = Sequence[RowMap]


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
        beside = [
            functools.reduce(lambda seen, one: one(np.asarray(seen, dtype=np.float64)), branch, features)
            for branch in self.branches
        ]
        return np.asarray(np.hstack(beside), dtype=np.float64)


def fitting_maps(planned: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef]) -> RowMaps:
    """Open what a release's rows are seen through, and refuse what does not fit them; no row is read.

    Raises
    ------
    RefusedError
        If the artefacts do not map rows of the shards' features to what the release is planned for.
    dpalgos.errors.ParameterError
        If they hold numbers that are not finite.
    """
    maps = maps_of(upstream, planned.branches)
    for given in {shard.dataset.dimension for shard in shards}:
        if not fits(maps, given, planned.setting.dimension):
            raise RefusedError(
                f"{planned.label} reads {planned.setting.dimension} features, and rows of {given} seen through "
                f"{', '.join(reference.key[:12] for reference in upstream) or 'nothing'} do not have them"
            )
    return maps


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
            return MappedRows(kept, maps[1:], dimension, rows)

    def seen(part: Rows) -> Rows:
        return MappedRows(part, maps, dimension) if maps else part

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
