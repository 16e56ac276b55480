"""What a release's secure sums leave on disk: the server's survivors, and with each party what it let be unmasked."""

from __future__ import annotations

import json
from collections.abc import Sequence

from storage.journal import Journal
from tasks.runtime.settings import current_layout

_NAME = "sums"


class StoredRecord:
    """The record of one release (a :class:`dpalgos.secure.record.SumRecord`).

    Parameters
    ----------
    key : str
        The release's identity.
    parties : sequence of str
        All its parties, in order; each keeps a file of its own in its private store.
    """

    def __init__(self, key: str, parties: Sequence[str]) -> None:
        layout = current_layout()
        self._server = Journal(layout.round(key) / _NAME)
        self._parties = [Journal(layout.party_round(party, key) / _NAME) for party in parties]

    def fix(self, step: str, survivors: tuple[int, ...]) -> tuple[int, ...]:
        """Store whose vectors a sum holds, and return whose were stored first, by whichever run."""
        return tuple(json.loads(self._server.add(step, json.dumps(survivors).encode())))

    def opened(self, party: int, step: str) -> bytes | None:
        """Return what a party has stored of a sum."""
        return self._parties[party].get(step)

    def open(self, party: int, step: str, entry: bytes) -> bytes:
        """Store what a party lets be unmasked, and return what it stored first."""
        return self._parties[party].add(step, entry)
