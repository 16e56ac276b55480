"""The append-only chain of entries that ledger and catalogue are made of, and its high-water mark.

Every entry carries its number, the digest of the entry before it, and a SHA-256 over all of it, so that a changed,
removed or reordered entry no longer fits its neighbours. That its end was cut off the chain alone cannot show; the
high-water mark does: a file outside the database that names the last entry seen. It is written after the commit, so it
may lag behind the ledger (a kill in between) but is never ahead of it unless an older back-up was put in place.

The digests have no key: they find accidents, bad restores and edits by hand, not an adversary who may rewrite the whole
ledger and its mark.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Select, insert, select

from storage.atomic import locked_directory, write_bytes
from storage.database import Database, entries
from storage.errors import InputError, StorageError

__all__ = ["Entries", "Entry", "Kind", "check_chain", "reading", "require_name", "writing"]

_log = logging.getLogger(__name__)


class Kind(StrEnum):
    """What an entry records."""

    ACCOUNT = "account"
    CAP = "cap"
    CONSENT = "consent"
    DATASET = "dataset"
    PLAN = "plan"
    CHARGE = "charge"
    RECHARGE = "recharge"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the chain.

    Parameters
    ----------
    sequence : int
        Its number, from 1 without gaps: the order of everything; the clock is for people only.
    kind : Kind
    account : str
    subject : str
        What it is about: an account's, data set's or release's name.
    content : mapping
        The rest, as JSON.
    recorded_at : str
        Time of day in UTC, ISO 8601; informational.
    """

    sequence: int
    kind: Kind
    account: str
    subject: str
    content: Mapping[str, Any]
    recorded_at: str


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place in the chain: the ledger's identity, an entry's number and its digest."""

    ledger_id: str
    sequence: int
    digest: str


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def require_name(what: str, name: str) -> None:
    """Refuse a name that would not survive a database, a path or a line on a screen."""
    if not (0 < len(name) <= 200 and name.isprintable() and name == name.strip()):
        raise InputError(f"{what} is {name!r}; give 1 to 200 printable characters without spaces around them")


class Entries:
    """The entries as one transaction sees them; made by :func:`reading` and :func:`writing`."""

    def __init__(self, connection: Connection, ledger_id: str) -> None:
        self._connection = connection
        self._ledger_id = ledger_id

    def find(
        self, *kinds: Kind, account: str | None = None, subject: str | None = None, subjects: Sequence[str] = ()
    ) -> list[Entry]:
        """Return the entries of these kinds in their order, narrowed to an account, a subject or some subjects."""
        statement = select(entries).where(entries.c.kind.in_([str(kind) for kind in kinds]))
        if account is not None:
            statement = statement.where(entries.c.account == account)
        if subject is not None:
            statement = statement.where(entries.c.subject == subject)
        if subjects:
            statement = statement.where(entries.c.subject.in_(subjects))
        return [_entry(row) for row in self._rows(statement)]

    def at(self, sequence: int) -> Entry:
        """Return the entry of this number."""
        return _entry(self._connection.execute(select(entries).where(entries.c.sequence == sequence)).one())

    def append(self, kind: Kind, *, account: str, subject: str, content: Mapping[str, Any]) -> Entry:
        """Add one entry at the end of the chain."""
        last = self.last()
        fields = {
            "sequence": last.sequence + 1,
            "kind": str(kind),
            "account": account,
            "subject": subject,
            "recorded_at": _now(),
            "content": canonical(content),
            "previous": last.digest,
        }
        self._connection.execute(insert(entries).values(**fields, digest=_digest(fields)))
        return Entry(
            sequence=last.sequence + 1,
            kind=kind,
            account=account,
            subject=subject,
            content=json.loads(str(fields["content"])),
            recorded_at=str(fields["recorded_at"]),
        )

    def last(self) -> _Mark:
        """Return the end of the chain; number 0 where there is no entry yet."""
        statement = select(entries.c.sequence, entries.c.digest).order_by(entries.c.sequence.desc()).limit(1)
        row = self._connection.execute(statement).one_or_none()
        return _Mark(self._ledger_id, *row) if row is not None else _origin(self._ledger_id)

    def digest_at(self, sequence: int) -> str | None:
        """Return the digest of an entry, or None where there is none of this number."""
        if sequence == 0:
            return _origin(self._ledger_id).digest
        statement = select(entries.c.digest).where(entries.c.sequence == sequence)
        found: str | None = self._connection.execute(statement).scalar_one_or_none()
        return found

    def _rows(self, statement: Select[Any]) -> Sequence[Row[Any]]:
        return self._connection.execute(statement.order_by(entries.c.sequence)).all()

    def check(self) -> list[str]:
        """Return what is wrong with the chain itself, one sentence each."""
        problems = []
        before = _origin(self._ledger_id)
        for row in self._connection.execute(select(entries).order_by(entries.c.sequence)):
            if row.sequence != before.sequence + 1:
                to = f" to {row.sequence - 1}" if row.sequence > before.sequence + 2 else ""
                problems.append(f"entry {before.sequence + 1}{to} was removed")
            elif row.previous != before.digest:
                problems.append(f"entry {row.sequence} does not follow entry {before.sequence}: reordered or replaced")
            if _digest(row._asdict()) != row.digest:
                problems.append(f"entry {row.sequence} ({row.kind}) was changed: its digest does not match its content")
            before = _Mark(self._ledger_id, row.sequence, row.digest)
        return problems


@contextmanager
def reading(database: Database) -> Iterator[Entries]:
    """Read the entries in one transaction."""
    with database.transaction(write=False) as connection:
        yield Entries(connection, database.ledger_id)


@contextmanager
def writing(database: Database) -> Iterator[Entries]:
    """Read and append entries in one transaction that nobody else can write beside.

    Raises
    ------
    StorageError
        If the ledger is behind its high-water mark, so that some of what was spent would be forgotten, or cannot be
        written. Nothing was changed.
    """
    with database.transaction(write=True) as connection:
        found = Entries(connection, database.ledger_id)
        before = found.last()
        # Read under the write lock: whoever wrote the mark had committed before, so an honest ledger is not behind it.
        problem = _behind(found, _read_head(database.head))
        if problem is not None:
            raise StorageError(
                f"ledger {database.place}: {problem}. Nothing was charged. Put the newest ledger back; if it is lost, "
                f"count the budgets as spent, and remove {database.head} only if you answer for what is forgotten"
            )
        yield found
        after = found.last()
    if after != before:
        _advance_head(database.head, after)


def check_chain(database: Database) -> list[str]:
    """Return what is wrong with the chain and its high-water mark, one sentence each."""
    try:
        # Read before the ledger, which may only grow in between.
        head = _read_head(database.head)
        unreadable = None
    except StorageError as error:
        head, unreadable = None, str(error)
    with reading(database) as found:
        problems = [*found.check(), unreadable, _behind(found, head)]
    return [problem for problem in problems if problem is not None]


def _entry(row: Row[Any]) -> Entry:
    try:
        return Entry(
            sequence=row.sequence,
            kind=Kind(row.kind),
            account=row.account,
            subject=row.subject,
            content=json.loads(row.content),
            recorded_at=row.recorded_at,
        )
    except ValueError as error:
        raise StorageError(
            f"entry {row.sequence} of the ledger is damaged; put back the newest back-up of the ledger"
        ) from error


_HASHED = ("sequence", "previous", "kind", "account", "subject", "recorded_at", "content")


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical([fields[name] for name in _HASHED]).encode()).hexdigest()


def _origin(ledger_id: str) -> _Mark:
    return _Mark(ledger_id, 0, hashlib.sha256(f"unitball ledger {ledger_id}".encode()).hexdigest())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _behind(found: Entries, head: _Mark | None) -> str | None:
    """Say in what way the ledger lacks what its high-water mark has seen; None where it does not."""
    if head is None:
        return None
    last = found.last()
    if head.ledger_id != last.ledger_id:
        return "its high-water mark belongs to another ledger, so the ledger was replaced"
    if head.sequence > last.sequence:
        return (
            f"it ends at entry {last.sequence} but its high-water mark has seen entry {head.sequence}, "
            "so an older back-up was restored or its end was cut off"
        )
    if found.digest_at(head.sequence) != head.digest:
        return f"entry {head.sequence} is not the one its high-water mark has seen, so the ledger was rewritten"
    return None


def _read_head(path: Path | None) -> _Mark | None:
    if path is None:
        return None
    try:
        data = json.loads(path.read_text())
        return _Mark(str(data["ledger"]), int(data["sequence"]), str(data["digest"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"high-water mark {path} cannot be read ({error.strerror}); make it readable") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"high-water mark {path} is damaged; put it back from the newest back-up") from error


def _advance_head(path: Path | None, mark: _Mark) -> None:
    """Write the mark unless a newer one is there; a failure is logged only, because the entries are committed."""
    if path is None:
        return
    try:
        with locked_directory(path.parent):
            present = _read_head(path)
            if present is not None and present.sequence >= mark.sequence:
                return
            content = {"ledger": mark.ledger_id, "sequence": mark.sequence, "digest": mark.digest}
            write_bytes(path, canonical(content).encode())
    except (OSError, StorageError) as error:
        _log.warning("high-water mark %s could not be written (%s); the ledger itself is whole", path, error)
