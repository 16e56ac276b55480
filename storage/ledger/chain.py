"""How entries are chained: each carries the digest of the one before it and a keyed digest of its own.

The digest is an HMAC-SHA256 under a key derived from the root's secret and the ledger's identity, so that an entry
cannot be edited, made up or taken from another ledger without that secret. Entries that were written before digests had
a key carry a SHA-256; the first keyed entry seals them, because it carries the last one's digest.

What this does not show by itself: that the end was cut off, or that a whole older state was put back
(see :mod:`storage.ledger.high_water_marks`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

_HASHED = ("sequence", "previous", "kind", "account", "subject", "recorded_at", "content")

# Made once: making one takes longer than writing an entry.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


class Fields(Protocol):
    """An entry's columns by name: a mapping, or a row of the database."""

    def __getitem__(self, name: str, /) -> Any: ...


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, ASCII."""
    return _ENCODER.encode(value)


@lru_cache(maxsize=64)
def _derived(secret: bytes, ledger_id: str, purpose: str) -> bytes:
    return hmac.digest(secret, f"unitball ledger {ledger_id} {purpose}".encode(), "sha256")


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the chain: the ledger's identity, an entry's number and its digest."""

    ledger_id: str
    sequence: int
    digest: str


@dataclass(frozen=True, slots=True)
class Chain:
    """The digests of one ledger.

    Parameters
    ----------
    ledger_id : str
    secret : bytes
        The root's secret; what is used is derived from it and the ledger's identity.
    keyed_from : int
        Number of the first entry whose digest is keyed; 0 where all are, the beginning included.
    """

    ledger_id: str
    secret: bytes = field(repr=False)
    keyed_from: int = 0

    def mac(self, purpose: str, value: Any) -> str:
        """Return the HMAC of a JSON value under this ledger's key, in hexadecimal."""
        key = _derived(self.secret, self.ledger_id, purpose)
        return hmac.digest(key, canonical(value).encode(), "sha256").hex()

    def key_id(self) -> str:
        """Return what tells, without telling the key, which key this is and from which entry on it is used."""
        return self.mac("key", self.keyed_from)

    def origin(self) -> Link:
        """Return the place before the first entry."""
        if self.keyed_from == 0:
            return Link(self.ledger_id, 0, self.mac("entry", 0))
        return Link(self.ledger_id, 0, hashlib.sha256(f"unitball ledger {self.ledger_id}".encode()).hexdigest())

    def digest(self, fields: Fields) -> str:
        """Return the digest of an entry."""
        hashed = [fields[name] for name in _HASHED]
        if fields["sequence"] >= self.keyed_from:
            return self.mac("entry", hashed)
        return hashlib.sha256(canonical(hashed).encode()).hexdigest()

    def changed(self, fields: Fields) -> str | None:
        """Say that an entry is not the one that was written; None where it is."""
        if hmac.compare_digest(self.digest(fields), str(fields["digest"])):
            return None
        return f"entry {fields['sequence']} ({fields['kind']}) was changed: its digest does not match its content"

    def problems(self, rows: Iterable[Fields], after: Link) -> Iterator[str]:
        """Yield what is wrong with entries that should follow a place, one sentence each."""
        before = after
        for row in rows:
            sequence = row["sequence"]
            if sequence != before.sequence + 1:
                to = f" to {sequence - 1}" if sequence > before.sequence + 2 else ""
                yield f"entry {before.sequence + 1}{to} was removed"
            elif row["previous"] != before.digest:
                yield f"entry {sequence} does not follow entry {before.sequence}: reordered or replaced"
            changed = self.changed(row)
            if changed is not None:
                yield changed
            before = Link(self.ledger_id, sequence, row["digest"])
