"""Rows of shards, seen through released artefacts."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.algorithms import Algorithm, Work, is_sum_algorithm
from dpalgos.features.public_map import RowFeatures
from dpalgos.models import Artefact
from dpalgos.rows import Block, Features, Ints, MappedRows, RowMap, Rows, Shares, SpreadRows, fits
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
from tasks.runtime.settings import current_root
from tasks.runtime.workers import Workers, workers_at_hand

RowMaps = Sequence[RowMap]


def maps_of(upstream: Sequence[ReleaseRef], branches: Sequence[int] = ()) -> RowMaps:
    """Open the released artefacts that rows pass through, in turn, or in several branches side by side.

    Parameters
    ----------
    upstream : sequence of ReleaseRef
    branches : sequence of int
        Lengths of the branches of ``upstream``; their outputs are concatenated. None: all
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
    """Outputs of several branches, side by side."""

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


# What a pass over other workers takes besides the sums themselves, in seconds; what one core does of a matrix product
# in a second; and what it takes to read a number of a row and encode it, which workers do anew at each pass.
_DISPATCH_SECONDS, _OPERATIONS, _NUMBER_SECONDS = 0.05, 1e10, 1e-8
# One file of a shard is cut into so many parts at most.
_MOST_PARTS = 8


def parts_of(work: Work, share: float, numbers: int, blocks: int, workers: int) -> int:
    """Return into how many parts rows of one file are cut so that summing them apart takes less than summing them here.

    Here rows are read and encoded once and kept; the workers do so at each of the passes. What it rests on is public:
    the plan's own work, and how many rows a shard has, each a record.

    Parameters
    ----------
    work : Work
        Of all parties.
    share : float
        Of their rows that are the shard's.
    numbers : int
        Rows × features of the shard.
    blocks : int
        Of its rows: parts are whole blocks.
    workers : int
        That the cluster has.
    """
    parts = min(_MOST_PARTS, blocks, workers)
    if parts < 2:
        return 1
    saved = work.operations * share / _OPERATIONS * (1.0 - 1.0 / parts)
    asked = work.passes * _DISPATCH_SECONDS + (work.passes - 1) * numbers * _NUMBER_SECONDS
    return parts if saved > asked else 1


def rows_of(shard: ShardRef, maps: RowMaps, dimension: int, planned: PlannedRelease | None = None) -> Rows:
    """Open a shard, seen through released artefacts in turn; ``dimension`` features come out.

    Where workers share the sums, a shard of several files is summed by all of them, a file at a time, and one file of
    which a planned release makes enough work is cut (:func:`parts_of`). A public map that comes first and is slow is
    applied once for the shard's version, and what it gives is kept; workers use what is kept and keep nothing.
    """
    # Nothing is to be made for reading, and this is asked for each of many thousand parties.
    rows = open_shard(Layout(current_root()), shard)
    workers = workers_at_hand()
    views, left = views_of(shard, maps)
    source: StoredRows | KeptRows = rows
    for passed, view in zip(range(len(views), 0, -1), views, strict=True):
        kept = kept_rows(shard, rows, view, make=workers is None)
        if kept is not None:
            source, left = kept, left[passed:]
            break
    if workers is None:
        return _seen(source, left, dimension)
    pieces: Sequence[Rows] = []
    if len(rows.files) > 1:
        pieces = source.by_file()
    elif planned is not None:
        pieces = _cut(source, rows, planned, workers)
    if len(pieces) < 2:
        return _seen(source, left, dimension)
    return SpreadRows(
        [_seen(part, left, dimension) for part in pieces],
        lambda contribution, parts: workers.map(functools.partial(_contribution, shard, contribution), parts),
    )


def _cut(source: StoredRows | KeptRows, rows: StoredRows, planned: PlannedRelease, workers: Workers) -> Sequence[Rows]:
    """Return the rows of a single file in parts, where it pays; of people never: how many rows they have is secret."""
    algorithm, setting = planned.build(), planned.setting
    if rows.format.shares or not (is_sum_algorithm(algorithm) and algorithm.additive):
        return []
    size = rows.format.block_rows
    blocks, share = -(-rows.stored // size), rows.stored / max(setting.rows, 1)
    work, numbers = algorithm.work(setting), rows.stored * max(rows.dimension, setting.dimension)
    # The cluster is asked last: it answers over the network.
    if parts_of(work, share, numbers, blocks, _MOST_PARTS) < 2:
        return []
    parts = parts_of(work, share, numbers, blocks, workers.count())
    ends = [blocks * part // parts for part in range(parts + 1)]
    return [_Blocks(source, start, stop) for start, stop in itertools.pairwise(ends)]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Some blocks of a party's rows, each of the whole's count and fingerprint; those before them are read over."""

    rows: StoredRows | KeptRows
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.rows.count

    @property
    def dimension(self) -> int:
        return self.rows.dimension

    def blocks(self) -> Iterator[Block]:
        return itertools.islice(self.rows.blocks(), self.start, self.stop)

    def whose(self) -> "Shares | None":
        # People's rows are not cut.
        return None

    def fingerprint(self) -> NDArray[np.uint8]:
        return self.rows.fingerprint()


def _seen(rows: Rows, maps: RowMaps, dimension: int) -> Rows:
    return MappedRows(rows, maps, dimension) if maps else rows


def _contribution(shard: ShardRef, contribution: Callable[[Rows], Ints], part: Rows) -> Ints:
    # A worker logs what is raised on it.
    with redacted(
        f"{shard.partition}-{shard.party}", f"a sum over rows of {shard.party}", private=shard.dataset.private
    ):
        return contribution(part)
