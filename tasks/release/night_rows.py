"""A party's rows of one night, and what is kept of its nights before."""

import io
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dpalgos.rows import Block, Ints, Rows, Shares
from storage.errors import StorageError
from storage.refs import ShardRef
from tasks.planning.nights import PlannedNight
from tasks.preparation.streams import (
    Arrived,
    arrival_noted,
    notes_of,
    pack_sum,
    require_positions,
    unpack_sum,
)
from tasks.release.seen_rows import RowMaps, rows_of
from tasks.runtime.stores import open_releases


class NightRows:
    """A party's rows of one night of a stream (:class:`~dpalgos.rows.Rows`), and its nights before.

    A night's sum is kept write-once in the party's private folder: what a night has added to one release it adds to all
    later ones, also after a change of the rows or of libraries. It is bound to the rows that it was formed of: one of
    other rows than the plan names is refused (:mod:`tasks.preparation.streams`). A night that the party missed is
    formed when it is next asked for. Where the factor has fewer bands than the horizon nights, sums that no later night
    asks for are removed.

    Parameters
    ----------
    planned : PlannedNight
    shard : ShardRef
        Of tonight.
    maps : sequence of callable
        What rows pass through.
    """

    def __init__(self, planned: PlannedNight, shard: ShardRef, maps: RowMaps) -> None:
        self._night, self._dimension, self._maps = planned.stream.night, planned.setting.dimension, maps
        self._planned, self._shard = planned, shard
        self._notes = notes_of(planned, shard.party)
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

    def whose(self) -> "Shares | None":
        """Return the places of tonight's people."""
        return self._rows.whose()

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
        RefusedError
            If it was frozen, or came, with other rows than the plan names.
        """
        noted, kept = self._noted(night), self._notes.get(f"sum-{night}")
        if kept is None:
            require_positions(self._planned, noted, night)
            data = io.BytesIO()
            rows = self._rows if night == self._night else rows_of(noted.shard, self._maps, self._dimension)
            np.save(data, form(rows), allow_pickle=False)
            kept = self._notes.put(f"sum-{night}", pack_sum(noted, data.getvalue()))
            if night == self._night:
                self._notes.discard(f"sum-{self._expired}")
        frozen = unpack_sum(self._planned, night, noted, kept)
        return cast(Ints, np.load(io.BytesIO(frozen), allow_pickle=False))

    def _noted(self, night: int) -> Arrived:
        noted = arrival_noted(self._notes, self._planned, self._shard, night)
        if noted is None:
            raise StorageError(
                f"party {self._shard.party} has lost the record of the rows of night {night}: restore its private "
                "folder from a back-up; if they were removed permanently, the horizon ends here; start the next one "
                "with the versions after its last night"
            )
        return noted
