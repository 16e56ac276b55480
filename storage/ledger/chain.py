"""How entries are chained: each carries the digest of the one before it and a keyed digest of its own.

The digest is an HMAC-SHA256 under a key derived from the root's secret and the ledger's identity, so that an entry
cannot be edited, made up or taken from another ledger without that secret. Entries that were written before digests had
a key carry a SHA-256; the first keyed entry seals them, because it carries the last one's digest.

What this does not show by itself: that the end was cut off, or that a whole older state was put back. High-water marks
do: files outside the database that name the last entry seen, and what every account had spent by then. One lies beside
the ledger, so that a ledger restored alone is noticed; one outside the root, so that a whole root put back is. They are
written after the commit: a mark may lag behind its ledger (a kill in between), and is ahead of it only where an older
state was put in place. A mark carries a keyed digest of its own.
"""

import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from storage.atomic import locked_directory, write_bytes
from storage.errors import StorageError

_log = logging.getLogger(__name__)

_HASHED = ("sequence", "previous", "kind", "account", "subject", "recorded_at", "content")

# Made once: making one takes longer than writing an entry.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


Fields = Mapping[Any, Any]
"""An entry's columns by name."""


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


@dataclass(frozen=True, slots=True)
class HighWaterMark:
    """What a high-water mark says.

    Parameters
    ----------
    link : Link
        The last entry seen.
    spent : mapping of account to JSON
        The account's properties and the policy's running totals, as of that entry.
    """

    link: Link
    spent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_mark(path: Path, chain: Chain) -> HighWaterMark | None:
    """Return the mark in a file, None where there is none.

    Raises
    ------
    StorageError
        If it cannot be read, is damaged or was edited.
    """
    try:
        data = json.loads(path.read_bytes())
        link = Link(str(data["ledger"]), int(data["sequence"]), str(data["digest"]))
        spent, mac = dict(data.get("spent", {})), str(data.get("mac", ""))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"high-water mark {path} cannot be read ({error.strerror}); make it readable") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"high-water mark {path} is damaged; put it back from the newest back-up") from error
    # Marks had no digest of their own before entries had keys.
    keyed = link.ledger_id == chain.ledger_id and link.sequence >= chain.keyed_from
    if keyed and not hmac.compare_digest(mac, _mac(chain, HighWaterMark(link, spent))):
        raise StorageError(f"high-water mark {path} was changed; put it back from the newest back-up")
    return HighWaterMark(link, spent)


def behind(last: Link, digest_at: Callable[[int], str | None], mark: HighWaterMark | None) -> str | None:
    """Say in what way a ledger lacks what its mark has seen; None where it does not.

    Parameters
    ----------
    last : Link
        The end of the ledger's chain.
    digest_at : callable
        Returns the digest of the entry of a number.
    mark : HighWaterMark or None
    """
    if mark is None:
        return None
    seen = mark.link
    if seen.ledger_id != last.ledger_id:
        return "its high-water mark belongs to another ledger, so the ledger was replaced"
    if seen.sequence > last.sequence:
        return (
            f"it ends at entry {last.sequence} but its high-water mark has seen entry {seen.sequence}, "
            "so an older back-up was restored or its end was cut off"
        )
    if digest_at(seen.sequence) != seen.digest:
        return f"entry {seen.sequence} is not the one its high-water mark has seen, so the ledger was rewritten"
    return None


def advance_mark(path: Path, mark: HighWaterMark, chain: Chain, *, restored: bool = False) -> None:
    """Write the mark unless a newer one is there; a failure is logged only, because the entries are committed.

    Parameters
    ----------
    restored : bool
        Whether what an older ledger lacked has been recorded, so that the mark may go back.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked_directory(path.parent):
            present = None if restored else read_mark(path, chain)
            if present is not None and present.link.sequence >= mark.link.sequence:
                return
            mark = HighWaterMark(mark.link, {**(present.spent if present else {}), **mark.spent})
            write_bytes(path, canonical({**_body(mark), "mac": _mac(chain, mark)}).encode(), mode=0o600)
    except (OSError, StorageError) as error:
        _log.warning("high-water mark %s could not be written (%s); the ledger itself is whole", path, error)


def _body(mark: HighWaterMark) -> dict[str, Any]:
    link = mark.link
    return {"ledger": link.ledger_id, "sequence": link.sequence, "digest": link.digest, "spent": dict(mark.spent)}


def _mac(chain: Chain, mark: HighWaterMark) -> str:
    return chain.mac("mark", _body(mark))
