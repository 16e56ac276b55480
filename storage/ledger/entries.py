"""The append-only chain of entries that ledger and catalogue are made of, as transactions read and extend it.

Every entry that is read is checked against its own keyed digest, and a writer first checks the whole chain and the
high-water marks: decisions rest on entries that were not changed, removed, reordered or restored from an older state.
Those that decisions rest on are kept from that look, so that none is read twice.

Where the database has a :class:`~storage.ledger.database.Memory`, the next transaction looks on from where the chain
was found in order: on a file, as long as no other process has written to it; on a server, which does not report other
writers, for ten minutes after the last check of the whole. The digest of the last entry stands for all before it, for
it must still be there and all later entries must follow it: so each decision is made on entries that were once found
in order. The next check of the whole chain finds later changes. Other entries are looked up as ever: each by its
digest, and all of them counted.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from threading import Thread
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select

from storage.errors import InputError, StorageError
from storage.ledger.database import (
    Chain,
    Database,
    Fields,
    HighWaterMark,
    Known,
    Link,
    advance_mark,
    behind,
    entries,
    known_mark,
    ledger_json,
    read_mark,
)

_RELIED_ON_SECONDS = 600.0
"""How long what was read of a ledger on a server is relied on before the whole chain is looked at again."""


class Kind(StrEnum):
    """Kind of a ledger entry.

    A further kind is another format of the ledger: a version that does not know it cannot say what was spent.
    """

    ACCOUNT = "account"
    CAP = "cap"
    CONSENT = "consent"
    DATASET = "dataset"
    PLAN = "plan"
    CHARGE = "charge"
    RECHARGE = "recharge"
    OUTPUT = "output"
    RESTORE = "restore"
    """An older ledger was accepted; what it lacked was recorded."""
    DISJOINT = "disjoint"
    """The owner's declaration that the people of two accounts differ although rows agree."""
    REFUSAL = "refusal"
    """Rows were refused because they are private rows of this root."""
    MATERIAL = "material"
    """The digest of a file of key material that was made again, in the place of the registration's."""
    STORED = "stored"
    """Which copy in an object store is the release: its digest; the last one stands."""
    RESERVATION = "reservation"
    """A plan counts as spent before it is charged, see :mod:`storage.ledger.charges`."""
    COMMITMENT = "commitment"
    """A reservation ended: its plan was charged."""
    RETURN = "return"
    """A reservation ended: nothing was charged."""
    SCHEDULE = "schedule"
    """When a data set is trained on unasked; the last one of a name stands, an empty one ends it."""
    HORIZON = "horizon"
    """A data set's rows are released night after night, at one price, over so many nights."""
    ARRIVAL = "arrival"
    """How many rows a version of a data set in a horizon brought, and in which night."""
    STREAM = "stream"
    """What is released of a horizon's nights, fixed when the first of them is."""
    MODEL = "model"
    """A version of a registered model: what it is made of and the digest of its file."""
    AUDIT = "audit"
    """What an audit has said of an algorithm, or that its owner takes that back."""
    COMPARISON = "comparison"
    """How a version of a model has compared with the champion."""
    ANSWERS = "answers"
    """How many notes a party had of a release's sums, seeds and masked steps, when it last answered."""
    CHAMPION = "champion"
    """Which version of a model is champion from now on."""


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


_DECISIVE = frozenset(
    {
        Kind.ACCOUNT,
        Kind.CAP,
        Kind.CONSENT,
        Kind.DATASET,
        Kind.MATERIAL,
        Kind.PLAN,
        Kind.RESERVATION,
        Kind.COMMITMENT,
        Kind.RETURN,
    }
)
"""What decisions rest on."""

# Made once: an SQL expression takes longer to make than to run.
_IN_ORDER = select(entries).order_by(entries.c.sequence)
_AT = select(entries).where(entries.c.sequence == bindparam("sequence"))
_AFTER = _IN_ORDER.where(entries.c.sequence > bindparam("after"))
_LAST = select(entries.c.sequence, entries.c.digest).order_by(entries.c.sequence.desc()).limit(1)
_INSERT = insert(entries)
_COUNT = select(func.count()).select_from(entries)
_CONDITIONS = {
    "account": entries.c.account == bindparam("account"),
    "subject": entries.c.subject == bindparam("subject"),
    "subjects": entries.c.subject.in_(bindparam("subjects", expanding=True)),
}
_FOUND = {
    asked: _IN_ORDER.where(
        entries.c.kind.in_(bindparam("kinds", expanding=True)), *(_CONDITIONS[name] for name in asked)
    )
    for size in range(len(_CONDITIONS) + 1)
    for asked in combinations(_CONDITIONS, size)
}
"""The selections of entries of some kinds, by the names of the other conditions."""


def require_name(what: str, name: str) -> None:
    """Refuse a name that would not survive a database, a path or a line on a screen."""
    if not (0 < len(name) <= 200 and name.isprintable() and name == name.strip()):
        raise InputError(
            f"{what} is {name!r}; give 1 to 200 printable characters without spaces around them", value=name, bound=200
        )


class Entries:
    """The entries as one transaction sees them; made by :func:`reading` and :func:`writing`."""

    def __init__(self, connection: Connection, chain: Chain, known: Known | None = None) -> None:
        self.connection = connection
        self._chain = chain
        self._known = known
        self._end: Link | None = None
        self.uncounted = False
        """Whether entries before those that were looked at may have been removed since they were found in order."""
        self.kept: dict[str, list[Entry]] | None = None
        """The entries of :data:`_DECISIVE` kinds, where they were found in order."""
        self.memo: dict[str, Any] = {}
        """What was made of :attr:`kept`, remembered with it once all is committed."""

    def find(
        self, *kinds: Kind, account: str | None = None, subject: str | None = None, subjects: Sequence[str] = ()
    ) -> list[Entry]:
        """Return the entries of these kinds in their order, those of an account or of subjects only.

        Where something is to be written, that one of them was removed is noticed; but not of `subjects`: ask only for
        subjects whose absence no one can profit from.
        """
        decisive = not subjects and _DECISIVE.issuperset(kinds)
        if decisive and self._known is not None and self._known.end == self.last():
            self.rely_on(self._known)
        if decisive and self.kept is not None:
            matching = [
                entry
                for kind in kinds
                for entry in self.kept.get(kind, ())
                if account in (None, entry.account) and subject in (None, entry.subject)
            ]
            return matching if len(kinds) == 1 else sorted(matching, key=lambda entry: entry.sequence)
        conditions = {"account": account, "subject": subject, "subjects": list(subjects) or None}
        parameters = {name: value for name, value in conditions.items() if value is not None}
        if self.uncounted and not subjects:
            if self.connection.execute(_COUNT).scalar_one() != self.last().sequence:
                raise StorageError(f"the ledger cannot be trusted: entries were removed. {_NOTHING_CHARGED}")
            self.uncounted = False
        rows = self.connection.execute(
            _FOUND[tuple(parameters)], {"kinds": [str(kind) for kind in kinds], **parameters}
        )
        return [self._checked(row) for row in rows.mappings()]

    def at(self, sequence: int) -> Entry:
        """Return the entry of this number."""
        return _entry(self.written(sequence))

    def written(self, sequence: int) -> dict[str, Any]:
        """Return the columns of the entry of this number, its digest checked."""
        row = self.connection.execute(_AT, {"sequence": sequence}).mappings().one()
        self._checked(row)
        return dict(row)

    def _checked(self, row: Fields) -> Entry:
        changed = self._chain.changed(row)
        if changed is not None:
            raise StorageError(f"the ledger cannot be trusted: {changed}. {_NOTHING_CHARGED}")
        return _entry(row)

    def append(self, kind: Kind, *, account: str, subject: str, content: Mapping[str, Any]) -> Entry:
        """Add one entry at the end of the chain."""
        (fields,) = self.extend(account, [(kind, subject, content)])
        return _entry(fields)

    def extend(self, account: str, contents: Iterable[tuple[Kind, str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Add entries, each a kind, a subject and its content, at the end of the chain; return their columns."""
        last, now = self.last(), _now()
        added: list[dict[str, Any]] = []
        for kind, subject, content in contents:
            fields: dict[str, Any] = {
                "sequence": last.sequence + 1,
                "kind": str(kind),
                "account": account,
                "subject": subject,
                "recorded_at": now,
                "content": ledger_json(content),
                "previous": last.digest,
            }
            last = Link(last.ledger_id, last.sequence + 1, self._chain.digest(fields))
            added.append({**fields, "digest": last.digest})
        self.connection.execute(_INSERT, added)
        self._end = last
        self._keep(added)
        return added

    def last(self) -> Link:
        """Return the end of the chain; number 0 where there is no entry yet."""
        if self._end is None:
            row = self.connection.execute(_LAST).one_or_none()
            self._end = Link(self._chain.ledger_id, *row) if row is not None else self._chain.origin()
        return self._end

    def digest_at(self, sequence: int) -> str | None:
        """Return the digest of an entry, or None for an unknown number."""
        if sequence in (0, self.last().sequence):
            return self.last().digest if sequence else self._chain.origin().digest
        row = self.connection.execute(_AT, {"sequence": sequence}).one_or_none()
        return None if row is None else str(row.digest)

    def spent_since(self, sequence: int) -> dict[str, Mapping[str, Any]]:
        """Return, for each account with plans after an entry, its properties and its newest running totals."""
        plans = [entry for entry in self.find(Kind.PLAN) if entry.sequence > sequence]
        totals = {entry.account: entry.content["totals"] for entry in plans}
        opened = {entry.account: entry.content for entry in self.find(Kind.ACCOUNT)}
        return {account: {"opened": opened[account], "totals": of} for account, of in totals.items()}

    def rely_on(self, known: Known) -> None:
        """Have at hand what was found in order before."""
        self.kept, self.memo = {kind: list(of) for kind, of in known.kept.items()}, dict(known.memo)
        self._known = None

    def check(self, known: Known | None = None) -> list[str]:
        """Look at the chain, from where it was found in order on; return what is wrong with it, one sentence each."""
        known = known or Known(self._chain.origin())
        self.rely_on(known)

        def later() -> Iterator[Fields]:
            for row in self.connection.execute(_AFTER, {"after": known.end.sequence}).mappings():
                self._keep([row])
                yield row

        problems = list(self._chain.problems(later(), known.end)) if known.end != self.last() else []
        if problems:
            self.kept = None
        return problems

    def _keep(self, rows: Iterable[Fields]) -> None:
        for row in rows:
            if self.kept is not None and row["kind"] in _DECISIVE:
                self.kept.setdefault(row["kind"], []).append(_entry(row))


_RESTORE = "unitball ledger restore"
_NOTHING_CHARGED = f"Nothing was charged. Restore the newest back-up of the ledger, then: {_RESTORE}"


@contextmanager
def reading(database: Database) -> Iterator[Entries]:
    """Read the entries in one transaction."""
    with database.transaction(write=False) as connection:
        yield Entries(connection, database.chain, _remembered(database))


def found(database: Database, *kinds: Kind, **of: Any) -> list[Entry]:
    """Return the entries of these kinds, read in a separate transaction; see :meth:`Entries.find`."""
    with reading(database) as entries:
        return entries.find(*kinds, **of)


def append(database: Database, kind: Kind, *, account: str = "", subject: str, content: Mapping[str, Any]) -> None:
    """Add one entry in a separate transaction."""
    with writing(database) as entries:
        entries.append(kind, account=account, subject=subject, content=content)


@contextmanager
def writing(database: Database, *, restoring: bool = False) -> Iterator[Entries]:
    """Read and append entries in one transaction that excludes other writers.

    Parameters
    ----------
    restoring : bool
        Whether this transaction books what the ledger lacks, so that it may be behind its high-water marks.

    Raises
    ------
    StorageError
        If an entry was changed or removed, if the ledger is behind a high-water mark, so that some of what was spent
        would be forgotten, or if it cannot be written. Nothing was changed.
    """
    with database.transaction(write=True) as connection:
        entries = Entries(connection, database.chain)
        before, known, now = entries.last(), _remembered(database), time.monotonic()
        if known is not None and entries.digest_at(known.end.sequence) != known.end.digest:
            known = None
        # Read under the write lock: whoever wrote a mark had committed before, so an honest ledger is not behind it.
        seen = marks_of(database) if not restoring else []
        if problems := entries.check(known):
            raise StorageError(
                f"ledger {database.place}: {problems[0]}. {_NOTHING_CHARGED}", bound="chain", way_out=_RESTORE
            )
        require_not_behind(entries, seen, database.place)
        entries.uncounted = known is not None and not database.is_file
        database.guard(entries)
        yield entries
        after = entries.last()
        newest = min((mark.link.sequence if mark and mark.spent else 0 for mark in seen), default=0)
        spent = entries.spent_since(newest) if after != before and database.marks else {}
    if database.memory is not None:
        looked = now if known is None else known.looked
        database.memory.known = Known(after, database.state(), looked, entries.kept or {}, entries.memo)
    if after != before:
        _advance_marks(database, HighWaterMark(after, spent), restored=restoring)


def _advance_marks(database: Database, mark: HighWaterMark, *, restored: bool) -> None:
    """Write all high-water marks in parallel: each waits for a disk twice, and a charge waits for all of them."""
    if not database.marks:
        return
    first, *others = database.marks

    def advance(path: Path) -> None:
        # An error of a mark is logged by what writes it.
        advance_mark(path, mark, database.chain, restored=restored, memory=database.memory)

    threads = [Thread(target=advance, args=(path,)) for path in others]
    for thread in threads:
        thread.start()
    try:
        advance(first)
    finally:
        for thread in threads:
            thread.join()


def marks_of(database: Database) -> list[HighWaterMark | None]:
    """Return what the high-water marks say; read before a transaction that only reads, which they may not be ahead of.

    Raises
    ------
    StorageError
        If one cannot be read, is damaged or was edited.
    """
    return [known_mark(path, database.chain, database.memory) for path in database.marks]


def require_not_behind(entries: Entries, seen: Iterable[HighWaterMark | None], place: str) -> None:
    """Refuse a ledger that lacks what a high-water mark has seen.

    Raises
    ------
    StorageError
        Saying in what way, and the way out.
    """
    for problem in filter(None, (behind_mark(entries, mark) for mark in seen)):
        raise StorageError(f"ledger {place}: {problem}. {_NOTHING_CHARGED}", bound="high-water mark", way_out=_RESTORE)


def _remembered(database: Database) -> Known | None:
    """Return what was found in order before, where it can be relied on as long as its end is still there."""
    known = database.memory.known if database.memory is not None else None
    if known is None or not (database.is_file or time.monotonic() - known.looked < _RELIED_ON_SECONDS):
        return None
    return known if database.state() == known.state else None


def behind_mark(entries: Entries, mark: HighWaterMark | None) -> str | None:
    """Say in what way the ledger lacks what a high-water mark has seen; None where it does not."""
    return behind(entries.last(), entries.digest_at, mark)


def check_chain(database: Database) -> list[str]:
    """Return what is wrong with the chain and its high-water marks, one sentence each."""
    seen, problems = [], []
    for path in database.marks:
        try:
            # Read before the ledger, which may only grow in between.
            seen.append(read_mark(path, database.chain))
        except StorageError as error:
            problems.append(str(error))
    with reading(database) as entries:
        lacks = dict.fromkeys(behind_mark(entries, mark) for mark in seen)
        return [*entries.check(), *problems, *filter(None, lacks)]


def _entry(row: Fields) -> Entry:
    try:
        return Entry(
            sequence=row["sequence"],
            kind=Kind(row["kind"]),
            account=row["account"],
            subject=row["subject"],
            content=json.loads(row["content"]),
            recorded_at=row["recorded_at"],
        )
    except ValueError as error:
        raise StorageError(
            f"entry {row['sequence']} of the ledger is damaged; restore the newest back-up of the ledger"
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
