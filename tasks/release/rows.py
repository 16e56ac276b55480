"""Rows behind the door: seen through released artefacts, and those of a night with the nights before."""

from __future__ import annotations

import functools
import io
import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpalgos.features.public_map import RowFeatures
from dpalgos.parallel import SpreadRows
from dpalgos.rows import Block, Features, Ints, MappedRows, RowMap, Rows, fits
from dpalgos.secure.primitives import SecureAggregationError
from storage.atomic import write_bytes
from storage.errors import RefusedError, StorageError
from storage.layout import Layout
from storage.refs import ReleaseRef, ShardRef
from storage.rounds import PrivateNotes
from storage.shards import open_shard
from tasks.planning.plans import PlannedRelease
from tasks.preparation.mapping import kept_rows, seen_through
from tasks.release.storing import read_release
from tasks.runtime.cluster import map_over_workers, on_dask_worker
from tasks.runtime.settings import current_layout, current_root
from tasks.runtime.stores import open_releases


class RedactedError(Exception):
    """An algorithm failed on private rows; its message and traceback are beside the rows, for their owner alone."""


@contextmanager
def redacted(key: str, label: str, *, private: bool) -> Iterator[None]:
    """Replace what is raised on private rows by an error without their values.

    Algorithms are total, so this is for their faults.

    Parameters
    ----------
    key, label : str
        Of the release that is being made.
    private : bool
        False lets everything through.

    Raises
    ------
    RedactedError
        In place of whatever was raised, except errors of storage, of secrets and of secure sums, which name no row.
    """
    try:
        yield
    except (StorageError, RefusedError, SecureAggregationError):
        raise
    except Exception:
        if not private:
            raise
        place = current_layout().private / "errors" / f"{key}.txt"
        write_bytes(place, traceback.format_exc().encode(), mode=0o600)
        raise RedactedError(
            f"{label} failed on private rows; the error may hold their values and is kept for their owner in {place}"
        ) from None


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
    for dimension in {shard.dataset.dimension for shard in shards}:
        if not fits(maps, dimension, planned.setting.dimension):
            raise RefusedError(
                f"{planned.label} reads {planned.setting.dimension} features, and rows of {dimension} seen through "
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


def note_arrival(stream_key: str, night: int, shard: ShardRef) -> None:
    """Let a party remember, for good, where the rows of one of its nights are."""
    notes = PrivateNotes(current_layout(), shard.party, stream_key)
    notes.put(f"arrived-{night}", shard.model_dump_json().encode())


class NightRows:
    """A party's rows of one night of a stream (:class:`~dpalgos.rows.Rows`), and its nights before.

    A night's sum is kept write-once in the party's private folder: what a night has added to one release it adds to all
    later ones, whatever becomes of the rows, of libraries and of the code. A night that the party missed is formed when
    it is next asked for. Where the factor has fewer bands than the horizon nights, sums that no later night asks for
    are removed.

    Parameters
    ----------
    planned : PlannedRelease
        With a stream.
    shard : ShardRef
        Of tonight.
    maps : sequence of callable
        What rows pass through.
    """

    def __init__(self, planned: PlannedRelease, shard: ShardRef, maps: RowMaps) -> None:
        assert planned.stream is not None
        self._night, self._dimension, self._maps = planned.stream.night, planned.setting.dimension, maps
        self._shard = shard
        self._notes = PrivateNotes(current_layout(), shard.party, planned.stream_key)
        self._before = planned.night_keys[: planned.stream.night - 1]
        # The night before was the last that asked for it, and is released.
        self._expired = planned.stream.night - planned.stream.factor.kept_nights

    @cached_property
    def _rows(self) -> Rows:
        return rows_of(self._shard, self._maps, self._dimension)

    @property
    def count(self) -> int:
        """Rows of tonight."""
        return self._shard.rows

    @property
    def dimension(self) -> int:
        """Features a row."""
        return self._dimension

    def blocks(self) -> Iterator[Block]:
        """Yield tonight's rows."""
        yield from self._rows.blocks()

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the digest of tonight's rows."""
        return self._rows.fingerprint()

    def released(self) -> list[Ints]:
        """Return what is stored of the nights before.

        Raises
        ------
        StorageError
            If one of them is not stored.
        """
        store = open_releases()
        return [store.read(key)[1]["values"] for key in self._before]

    def sum_of(self, night: int, form: Callable[[Rows], Ints]) -> Ints:
        """Return the sum of a night as it was frozen; where it was not, form it of that night's rows and freeze it.

        Raises
        ------
        StorageError
            If a night was neither frozen nor are its rows stored.
        """
        kept = self._notes.get(f"sum-{night}")
        if kept is None:
            data = io.BytesIO()
            np.save(data, form(self._rows if night == self._night else self._earlier(night)), allow_pickle=False)
            kept = self._notes.put(f"sum-{night}", data.getvalue())
            if night == self._night:
                self._notes.discard(f"sum-{self._expired}")
        frozen: Ints = np.load(io.BytesIO(kept), allow_pickle=False)
        return frozen

    def _earlier(self, night: int) -> Rows:
        noted = self._notes.get(f"arrived-{night}")
        if noted is None:
            raise StorageError(
                f"party {self._shard.party} has neither its sum of night {night} nor a note of where that night's rows "
                "are: restore its private folder from a back-up; if they were removed for good, the horizon ends here, "
                "and the next one begins with the versions after its last night"
            )
        shard = ShardRef.model_validate_json(noted)
        return rows_of(shard, self._maps, self._dimension)
