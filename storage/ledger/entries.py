"""The append-only chain of entries that ledger and catalogue are made of, as transactions read and extend it.

Every entry that is read is checked against its own keyed digest, and whoever writes first checks the whole chain from
the last entry that this process has found in order, and the high-water marks: what is decided rests on entries that
nobody changed, removed, reordered or put back from an older state.

What a process has read before it need not read again while it can rely on it: on a file that is as this process left
it; on a server, which does not tell who else writes, for ten minutes after the whole chain was found in order. The
digest of the last entry that was read then stands for all before it, for it must still be there and whatever came
later must follow it: so each decision is made on the entries that were once found in order, whatever somebody has made
of them since, and the next look at the whole chain says what that was. What was not read before is looked up as ever:
each entry by its digest, and all of them counted.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import combinations
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select

from storage.errors import InputError, StorageError
from storage.ledger import high_water_marks
from storage.ledger.chain import Chain, Link, canonical
from storage.ledger.database import Database, entries
from storage.ledger.high_water_marks import HighWaterMark

_in_order: dict[str, Link] = {}
"""Up to where this process has found the chain of a ledger (by its place) in order."""

_whole: dict[str, float] = {}
"""When (:func:`time.monotonic`) this process has last looked at the whole chain of a ledger (by its place)."""

_RELIED_ON_SECONDS = 600.0
"""How long what was read of a ledger on a server is relied on before the whole chain is looked at again."""

_left: dict[str, tuple[int, ...] | None] = {}
"""The state in which this process left the file of a ledger (by its place)."""

_seldom: dict[str, tuple[Link, list[Entry]]] = {}
"""The entries of :data:`_SELDOM` kinds that this process has read of a ledger (by its identity), and up to where."""


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
    SEAL = "seal"
    """The first entry with a keyed digest, in a ledger that began without."""
    """Other costs for a plan whose guarantee turned out wrong."""
    RESTORE = "restore"
    """An older ledger was accepted; what it lacked was booked."""
    DISJOINT = "disjoint"
    """The owner's declaration that the people of two accounts differ although rows agree."""
    REFUSAL = "refusal"
    """Rows were refused because they are private rows of this root."""
    MATERIAL = "material"
    """The digest of a file of key material that was stored before registrations carried one."""
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


_SELDOM = frozenset(
    {
        Kind.ACCOUNT,
        Kind.CAP,
        Kind.CONSENT,
        Kind.DATASET,
        Kind.MATERIAL,
        Kind.RESERVATION,
        Kind.COMMITMENT,
        Kind.RETURN,
    }
)
"""What every charge looks at and few charges add to."""

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
    "after": entries.c.sequence > bindparam("after"),
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
        raise InputError(f"{what} is {name!r}; give 1 to 200 printable characters without spaces around them")


class Entries:
    """The entries as one transaction sees them; made by :func:`reading` and :func:`writing`."""

    def __init__(self, connection: Connection, chain: Chain, *, relied_on: bool = False, writing: bool = False) -> None:
        self._connection = connection
        self._chain = chain
        self.writing = writing
        self._checked_after = 0
        self._counted = False
        self._end: Link | None = None
        self._digests: dict[int, str] = {}
        self._few: list[Entry] | None = None
        self._plans: list[Entry] = []
        self._committed: list[Callable[[Link], None]] = []
        self.relied_on = relied_on
        """Whether what this process has read before, and whose digest is still in its place, need not be read again."""

    def find(
        self,
        *kinds: Kind,
        account: str | None = None,
        subject: str | None = None,
        subjects: Sequence[str] = (),
        after: int = 0,
    ) -> list[Entry]:
        """Return the entries of these kinds in their order, of an account, subjects, or later ones only.

        Where something is to be written, that one of them was removed is noticed; but not of `subjects`, of which only
        those are to be asked for whose lack gains nobody anything.
        """
        if self.writing and self.relied_on and not subjects and not after and _SELDOM.issuperset(kinds):
            return [
                entry
                for entry in self._seldom_entries()
                if entry.kind in kinds and account in (None, entry.account) and subject in (None, entry.subject)
            ]
        conditions = {
            "account": account,
            "subject": subject,
            "subjects": list(subjects) or None,
            "after": after or None,
        }
        parameters = {name: value for name, value in conditions.items() if value is not None}
        if not subjects:
            self._require_all_after(after)
        rows = self._connection.execute(
            _FOUND[tuple(parameters)], {"kinds": [str(kind) for kind in kinds], **parameters}
        )
        return [self._entry(row) for row in rows.all()]

    def _seldom_entries(self) -> list[Entry]:
        """Return the entries of :data:`_SELDOM` kinds; what this process has read before is not read again."""
        if self._few is None:
            end = self.last()
            place, known = _seldom.get(end.ledger_id, (None, []))
            if place is None or self.digest_at(place.sequence) != place.digest:
                place, known = self._chain.origin(), []
            if place != end:
                self._require_all_after(place.sequence)
                kinds = [str(kind) for kind in sorted(_SELDOM)]
                rows = self._connection.execute(_FOUND["after",], {"kinds": kinds, "after": place.sequence})
                known = [*known, *map(self._entry, rows.all())]
            self._few = known
        return self._few

    def remember(self) -> None:
        """Keep, for this process's next transaction, what was read and written: all was committed."""
        if self._few is not None:
            _seldom[self._chain.ledger_id] = self.last(), self._few
        for call in self._committed:
            call(self.last())

    def once_committed(self, call: Callable[[Link], None]) -> None:
        """Call, once all is committed, with the end of the chain."""
        self._committed.append(call)

    def at(self, sequence: int) -> Entry:
        """Return the entry of this number."""
        return self._entry(self._connection.execute(_AT, {"sequence": sequence}).one())

    def written(self, sequence: int) -> dict[str, Any]:
        """Return the columns of the entry of this number, its digest checked."""
        row = self._connection.execute(select(entries).where(entries.c.sequence == sequence)).one()
        self._entry(row)
        return dict(row._mapping)

    def _entry(self, row: Row[Any]) -> Entry:
        changed = self._chain.changed(row._mapping)
        if changed is not None:
            raise StorageError(f"the ledger cannot be relied on: {changed}. {_NOTHING_CHARGED}")
        return _entry(row)

    def append(self, kind: Kind, *, account: str, subject: str, content: Mapping[str, Any]) -> Entry:
        """Add one entry at the end of the chain."""
        (fields,) = self._add(kind, account, [(subject, content)])
        added = Entry(
            sequence=fields["sequence"],
            kind=kind,
            account=account,
            subject=subject,
            content=json.loads(fields["content"]),
            recorded_at=fields["recorded_at"],
        )
        if kind is Kind.PLAN:
            self._plans.append(added)
        return added

    def extend(self, kind: Kind, *, account: str, contents: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Add entries of one kind, each a subject and its content, at the end of the chain."""
        self._add(kind, account, contents)

    def _add(self, kind: Kind, account: str, contents: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        last = self.last()
        added: list[dict[str, Any]] = []
        for subject, content in contents:
            fields: dict[str, Any] = {
                "sequence": last.sequence + 1,
                "kind": str(kind),
                "account": account,
                "subject": subject,
                "recorded_at": _now(),
                "content": canonical(content),
                "previous": last.digest,
            }
            last = Link(last.ledger_id, last.sequence + 1, self._chain.digest(fields))
            added.append({**fields, "digest": last.digest})
        if added:
            self._connection.execute(_INSERT, added)
            self._end = last
        if kind in _SELDOM:
            self._few = None
        return added

    def last(self) -> Link:
        """Return the end of the chain; number 0 where there is no entry yet."""
        if self._end is None or not self.writing:
            row = self._connection.execute(_LAST).one_or_none()
            self._end = Link(self._chain.ledger_id, *row) if row is not None else self._chain.origin()
        return self._end

    def digest_at(self, sequence: int) -> str | None:
        """Return the digest of an entry, or None where there is none of this number."""
        if sequence == 0:
            return self._chain.origin().digest
        if self._end is not None and sequence == self._end.sequence:
            return self._end.digest
        if sequence not in self._digests:
            row = self._connection.execute(_AT, {"sequence": sequence}).one_or_none()
            if row is None:
                return None
            self._digests[sequence] = str(row.digest)
        return self._digests[sequence]

    def spent_since(self, sequence: int, before: int) -> dict[str, Mapping[str, Any]]:
        """Return the account's properties and running totals of each plan after an entry, the newest an account.

        Parameters
        ----------
        sequence : int
        before : int
            Number of the last entry when this transaction began.
        """
        plans = self._plans if sequence >= before else self.find(Kind.PLAN, after=sequence)
        totals = {entry.account: entry.content.get("totals", {}) for entry in plans}
        opened = {entry.account: entry.content for entry in self.find(Kind.ACCOUNT)} if totals else {}
        return {account: {"opened": opened[account], "totals": of} for account, of in totals.items()}

    def check(self, after: Link | None = None) -> list[str]:
        """Return what is wrong with the chain itself from a place on, one sentence each."""
        start = after or self._chain.origin()
        if start == self.last():
            return []
        rows = self._connection.execute(_AFTER, {"after": start.sequence})
        return list(self._chain.problems(rows.mappings(), start))

    def is_complete(self) -> bool:
        """Whether there are as many entries as the last one's number says, all of them counted."""
        return bool(self._connection.execute(_COUNT).scalar_one() == self.last().sequence)

    def checked_after(self, place: Link) -> None:
        """Note that this transaction has looked at what follows a place only, on a server that may have lost others."""
        self._checked_after = place.sequence

    def _require_all_after(self, sequence: int) -> None:
        if sequence >= self._checked_after or self._counted:
            return
        if not self.is_complete():
            raise StorageError(f"the ledger cannot be relied on: entries were removed. {_NOTHING_CHARGED}")
        self._counted = True


_NOTHING_CHARGED = "Nothing was charged. Put back the newest back-up of the ledger, and see: unitball ledger restore"


@contextmanager
def reading(database: Database) -> Iterator[Entries]:
    """Read the entries in one transaction."""
    with database.transaction(write=False) as connection:
        yield Entries(connection, database.chain, relied_on=_is_relied_on(database))


@contextmanager
def writing(database: Database, *, restoring: bool = False) -> Iterator[Entries]:
    """Read and append entries in one transaction that nobody else can write beside.

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
        entries = Entries(connection, database.chain, relied_on=_is_relied_on(database), writing=True)
        before = entries.last()
        # Read under the write lock: whoever wrote a mark had committed before, so an honest ledger is not behind it.
        seen = [high_water_marks.read(path, database.chain) for path in database.marks] if not restoring else []
        _require_order(database, entries, seen)
        database.guard(entries)
        yield entries
        after = entries.last()
        newest = min((mark.link.sequence if mark and mark.spent else 0 for mark in seen), default=0)
        spent = entries.spent_since(newest, before.sequence) if after != before and database.marks else {}
    entries.remember()
    _in_order[database.place] = after
    _left[database.place] = database.state()
    if after != before:
        for path in database.marks:
            high_water_marks.advance(path, HighWaterMark(after, spent), database.chain, restored=restoring)


def _is_relied_on(database: Database) -> bool:
    state = database.state()
    if state is None:
        return time.monotonic() - _whole.get(database.place, -math.inf) < _RELIED_ON_SECONDS
    return state == _left.get(database.place)


def _require_order(database: Database, entries: Entries, seen: Sequence[HighWaterMark | None]) -> None:
    known = _in_order.get(database.place)
    if known is not None and entries.digest_at(known.sequence) != known.digest:
        known = None
    if known is not None and not entries.relied_on:
        # Somebody else wrote to a file: where what was in order is still there, the rest is looked at.
        known = known if database.is_file and entries.is_complete() else None
    problems = entries.check(known)
    problems += [problem for mark in seen if (problem := lacking(entries, mark)) is not None]
    if problems:
        raise StorageError(f"ledger {database.place}: {problems[0]}. {_NOTHING_CHARGED}")
    if known is None:
        _whole[database.place] = time.monotonic()
        entries.relied_on = True
    elif not database.is_file:
        entries.checked_after(known)


def lacking(entries: Entries, mark: HighWaterMark | None) -> str | None:
    """Say in what way the ledger lacks what a high-water mark has seen; None where it does not."""
    return high_water_marks.behind(entries.last(), entries.digest_at, mark)


def check_chain(database: Database) -> list[str]:
    """Return what is wrong with the chain and its high-water marks, one sentence each."""
    seen, problems = [], []
    for path in database.marks:
        try:
            # Read before the ledger, which may only grow in between.
            seen.append(high_water_marks.read(path, database.chain))
        except StorageError as error:
            problems.append(str(error))
    with reading(database) as entries:
        behind = dict.fromkeys(problem for mark in seen if (problem := lacking(entries, mark)) is not None)
        return [*entries.check(), *problems, *behind]


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
