"""Rows of shards, seen through released artefacts."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpalgos.algorithms import Algorithm
from dpalgos.features.public_map import RowFeatures
from dpalgos.models import Artefact
from dpalgos.rows import Features, Ints, MappedRows, RowMap, Rows, SpreadRows, fits
from storage.errors import RefusedError
from storage.kept_rows import KeptRows
from storage.layout import Layout
from storage.refs import ReleaseRef, ShardRef
from storage.rowfiles import StoredRows
from storage.shards import open_shard
from tasks.planning.releases import PlannedRelease
from tasks.preparation.mapped_rows import PublicView, kept_rows
from tasks.preparation.public_maps import views_of
from tasks.release.redaction import redacted
from tasks.release.storing import read_release
from tasks.runtime.cluster import map_over_workers, on_dask_worker
from tasks.runtime.settings import current_root

RowMaps = Sequence[RowMap]


def maps_of(upstream: Sequence[ReleaseRef], branches: Sequence[int] = ()) -> RowMaps:
    """Open the released artefacts that rows pass through, in turn, or in several branches side by side.

    Parameters
    ----------
    upstream : sequence of ReleaseRef
    branches : sequence of int
        Lengths of the branches that ``upstream`` is made of; what comes out of each stands beside the others. None: all
        in turn.
    """
    artefacts = [read_release(reference) for reference in upstream]
    maps = [PublicView((one,)) if isinstance(one, RowFeatures) else one.apply for one in artefacts]
    if not branches:
        return maps
    ends = list(itertools.accumulate(branches))
    return [_Beside([maps[end - length : end] for end, length in zip(ends, branches, strict=True)])]


def algorithm_of(planned: PlannedRelease, used: Sequence[Artefact] | None = None) -> Algorithm:
    """Return what computes a release, told what the releases say that it is planned to use.

    Of classes nothing is told, so nothing is read.

    Parameters
    ----------
    planned : PlannedRelease
    used : sequence of Artefact, optional
        These releases, in order; read from this root where None.
    """
    algorithm = planned.build()
    if planned.setting.classes > 1 or not planned.upstream:
        return algorithm
    if used is None:
        used = [read_release(ReleaseRef(key=key, kind="", party="")) for key in planned.upstream]
    return algorithm.informed(used)


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
    dpalgos.parameters.ParameterError
        If they hold numbers that are not finite.
    """
    maps = maps_of(upstream, planned.branches)
    for dimension in {shard.dataset.dimension for shard in shards}:
        if not fits(maps, dimension, planned.setting.dimension):
            raise RefusedError(
                f"{planned.label} reads {planned.setting.dimension} features, and rows of {dimension} seen through "
                f"{', '.join(reference.key[:12] for reference in upstream) or 'nothing'} do not have them"
            )
    return maps


def rows_of(shard: ShardRef, maps: RowMaps, dimension: int) -> Rows:
    """Open a shard, seen through released artefacts in turn; ``dimension`` features come out.

    On a Dask worker, a shard of several files is summed by all workers, a file at a time. A public map that comes first
    and is slow is applied once for the shard's version, and what it gives is kept; on a worker it is used where it is.
    """
    # Nothing is to be made for reading, and this is asked for each of many thousand parties.
    rows = open_shard(Layout(current_root()), shard)
    spread = on_dask_worker()
    views, left = views_of(shard, maps)
    source: StoredRows | KeptRows = rows
    for passed, view in zip(range(len(views), 0, -1), views, strict=True):
        kept = kept_rows(shard, rows, view, make=not spread)
        if kept is not None:
            source, left = kept, left[passed:]
            break
    if spread and len(rows.files) > 1:
        return SpreadRows(
            [_seen(part, left, dimension) for part in source.by_file()],
            lambda contribution, parts: map_over_workers(functools.partial(_contribution, shard, contribution), parts),
        )
    return _seen(source, left, dimension)


def _seen(rows: Rows, maps: RowMaps, dimension: int) -> Rows:
    return MappedRows(rows, maps, dimension) if maps else rows


def _contribution(shard: ShardRef, contribution: Callable[[Rows], Ints], part: Rows) -> Ints:
    # A worker logs what is raised on it.
    with redacted(
        f"{shard.partition}-{shard.party}", f"a sum over rows of {shard.party}", private=shard.dataset.private
    ):
        return contribution(part)
