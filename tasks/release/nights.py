"""A party's nights behind the door: tonight's rows, and exact sums of the nights before, frozen when first formed."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpalgos.rows import Array, Features, Ints, Rows
from storage.errors import StorageError
from storage.refs import ShardRef
from storage.rounds import PrivateNotes
from tasks.planning.plans import PlannedRelease
from tasks.release.rows import RowMaps, rows_of
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases


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

    def blocks(self) -> Iterator[tuple[Features, Array]]:
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
