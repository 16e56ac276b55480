"""The database behind ledger and catalogue: tables, format, transactions, and the chain that its entries are.

Each entry carries the digest of the one before it and a separate keyed digest: an HMAC-SHA256 under a key derived
from the root's secret and the ledger's identity, so that an entry cannot be edited, made up or taken from elsewhere
without that secret.

What this does not show by itself: that the end was cut off, or that a whole older state was restored. High-water marks
do: files outside the database that name the last entry seen, and what every account had spent by then. One lies next to
the ledger, so that a ledger restored alone is noticed; one lies outside the root, so that a whole restored root is
noticed. They are written after the commit: a mark may lag behind its ledger (a kill in between), and is ahead of it
only where an older state was put in place. A mark carries a separate keyed digest.

*What a charge puts on the disk, and what a power cut would do without it.* SQLite makes five syncs a commit, and the
marks four, side by side:

- the journal's pages, its name, and then the number of its pages: a half-written database could not be rolled back;
- the database: the charge is lost after noise was drawn for it;
- the folder, after the journal was removed: the journal comes back and rolls the charge back;
- each mark's content, before its file is renamed: the mark is empty, and charges are refused until it is restored;
- each mark's folder, afterwards: the mark is an older one, and a ledger restored to that state is not noticed.

So none is left out. A write-ahead log would need one in place of SQLite's five. Charges would then lie in a second file
until it is folded in: a copy of the database's file alone would be an older ledger, and it would not do on a network's
file system. It is not used.
"""

import hmac
import importlib.util
import json
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from storage.atomic import locked_directory, sync, write_bytes
from storage.errors import InputError, SecretError, StorageError, first_line, require_format
from storage.layout import FINGERPRINTS
from storage.secrets import Secret, ledger_key

_log = logging.getLogger(__name__)

_HASHED = ("sequence", "previous", "kind", "account", "subject", "recorded_at", "content")

# Made once: making one takes longer than writing an entry.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


Fields = Mapping[Any, Any]
"""An entry's columns by name."""


def ledger_json(value: Any) -> str:
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
    """

    ledger_id: str
    secret: bytes = field(repr=False)

    def mac(self, purpose: str, value: Any) -> str:
        """Return the HMAC of a JSON value under this ledger's key, in hexadecimal."""
        key = _derived(self.secret, self.ledger_id, purpose)
        return hmac.digest(key, ledger_json(value).encode(), "sha256").hex()

    def key_id(self) -> str:
        """Return what tells, without telling the key, which key this is."""
        return self.mac("key", 0)

    def origin(self) -> Link:
        """Return the place before the first entry."""
        return Link(self.ledger_id, 0, self.mac("entry", 0))

    def digest(self, fields: Fields) -> str:
        """Return the digest of an entry."""
        return self.mac("entry", [fields[name] for name in _HASHED])

    def changed(self, fields: Fields) -> str | None:
        """Return the fault of an entry that differs from the written one; None where it is equal."""
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
    """Content of a high-water mark.

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
        spent, mac = dict(data["spent"]), str(data["mac"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"high-water mark {path} cannot be read ({error.strerror}); make it readable") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"high-water mark {path} is damaged; restore it from the newest back-up") from error
    # That of another ledger is keyed with another key; that it is another one is said by who compares the two.
    known = link.ledger_id == chain.ledger_id
    if known and not hmac.compare_digest(mac, _mac(chain, HighWaterMark(link, spent))):
        raise StorageError(f"high-water mark {path} was changed; restore it from the newest back-up")
    return HighWaterMark(link, spent)


def known_mark(path: Path, chain: Chain, memory: "Memory | None") -> HighWaterMark | None:
    """Return :func:`read_mark`, or the mark in memory if its file has not changed since.

    Each mark is a new file, and a commit and several syncs lie between two marks: no two have the same
    :func:`file_state`.
    """
    state = file_state(path)
    if memory is None or state is None:
        return read_mark(path, chain)
    held = memory.marks.get(path)
    if held is None or held[0] != state:
        mark = read_mark(path, chain)
        if mark is None:
            return None
        held = memory.marks[path] = state, mark
    return held[1]


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
            "so an older back-up was restored, its end was cut off, or another copy of this root was charged since "
            "(then work in that one)"
        )
    if digest_at(seen.sequence) != seen.digest:
        return (
            f"entry {seen.sequence} is not the one its high-water mark has seen, so the ledger was rewritten, or "
            "another copy of this root was charged since (then work in that one)"
        )
    return None


def advance_mark(
    path: Path, mark: HighWaterMark, chain: Chain, *, restored: bool = False, memory: "Memory | None" = None
) -> None:
    """Write the mark unless a newer one is there; a failure is logged only, because the entries are committed.

    Parameters
    ----------
    restored : bool
        Whether what an older ledger lacked has been recorded, so that the mark may go back.
    memory : Memory, optional
        Of marks that were read and written before.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked_directory(path.parent):
            present = None if restored else known_mark(path, chain, memory)
            if present is not None and present.link.sequence >= mark.link.sequence:
                return
            mark = HighWaterMark(mark.link, {**(present.spent if present else {}), **mark.spent})
            write_bytes(path, ledger_json({**_body(mark), "mac": _mac(chain, mark)}).encode(), mode=0o600)
            if memory is not None and (state := file_state(path)) is not None:
                memory.marks[path] = state, mark
    except (OSError, StorageError) as error:
        _log.warning("high-water mark %s could not be written (%s); the ledger itself is intact", path, error)


def _body(mark: HighWaterMark) -> dict[str, Any]:
    link = mark.link
    return {"ledger": link.ledger_id, "sequence": link.sequence, "digest": link.digest, "spent": dict(mark.spent)}


def _mac(chain: Chain, mark: HighWaterMark) -> str:
    return chain.mac("mark", _body(mark))


metadata = MetaData()

meta = Table(
    "ledger_meta",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

entries = Table(
    "ledger_entries",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("kind", String(20), nullable=False),
    Column("account", String(200), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("recorded_at", String(40), nullable=False),
    Column("content", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
)

Index("ledger_by_account", entries.c.account, entries.c.kind, entries.c.sequence)
Index("ledger_by_subject", entries.c.kind, entries.c.subject, entries.c.sequence)
_once = {
    "ledger_account_once": entries.c.kind == "account",
    "ledger_charge_once": entries.c.kind == "charge",
}
for _name, _where in _once.items():
    Index(_name, entries.c.account, entries.c.subject, unique=True, sqlite_where=_where, postgresql_where=_where)

# INSERT OR REPLACE deletes without firing a delete trigger, so the insert is guarded as well.
_SQLITE_TRIGGERS = (
    "CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger_entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger_entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger_entries "
    "WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM ledger_entries) "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)
_POSTGRESQL_TRIGGERS = (
    "CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$",
    "CREATE TRIGGER ledger_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries "
    "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()",
    "CREATE FUNCTION ledger_at_the_end() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN IF NEW.sequence IS DISTINCT FROM (SELECT coalesce(max(sequence), 0) + 1 FROM ledger_entries) "
    "THEN RAISE EXCEPTION 'the ledger is append-only'; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger_entries FOR EACH ROW EXECUTE FUNCTION ledger_at_the_end()",
)
for _dialect, _triggers in (("sqlite", _SQLITE_TRIGGERS), ("postgresql", _POSTGRESQL_TRIGGERS)):
    for _trigger in _triggers:
        _ddl = DDL(_trigger)  # type: ignore[no-untyped-call]  # SQLAlchemy's DDL has no types
        event.listen(entries, "after_create", _ddl.execute_if(dialect=_dialect))


FORMAT_VERSION = 1
"""The version of the schema that this code reads and writes."""

BUSY_SECONDS = 300.0
"""How long a transaction waits for the write lock: longer than 64 processes need to charge one after another."""

_STALLED_SECONDS = 120.0
"""How long PostgreSQL lets a transaction stand still; a decision takes well under a second."""

CREATION_LOCK = 0x756E6974
"""Key of PostgreSQL's advisory lock under which the schema is made; any constant of our own does."""

MOVED = "moved_to"
"""Name in the table of versions by which a ledger says that it is kept elsewhere now."""

Guard = Callable[[Any], None]
"""Takes the :class:`~storage.ledger.entries.Entries` of a writing transaction."""


@dataclass(frozen=True, slots=True)
class Known:
    """The findings of a ledger's last check; each transaction leaves new ones.

    Parameters
    ----------
    end : Link
        Up to where the chain was in order.
    state : tuple of int, optional
        What its file was then (:func:`file_state`).
    looked : float
        When (:func:`time.monotonic`) the whole chain was last checked.
    kept : mapping of kind to sequence of :class:`~storage.ledger.entries.Entry`
        The entries that decisions rest on.
    memo : mapping
        What was made of them.
    """

    end: Link
    state: tuple[int, ...] | None = None
    looked: float = 0.0
    kept: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    memo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Memory:
    """The memory of one ledger between transactions, as long as its creator keeps it.

    It saves time and changes no result: without one, each transaction that writes looks at the whole chain and reads
    each mark twice, and each opening reads the table of versions and makes an engine, which compiles its statements
    again.

    Parameters
    ----------
    known : Known, optional
        Of the last transaction that wrote.
    engine : sqlalchemy.Engine, optional
        It holds no connection.
    versions : tuple of state and mapping, optional
        A file's table of versions, and the file's state (:func:`file_state`) before it was read.
    marks : mapping of path to (state, HighWaterMark)
        The high-water marks, each with the state of its file.
    idle : list of process, state and sqlalchemy.Connection
        The connection of the last transaction and the file's state after it. Opening a connection, and reading the
        schema by it, takes three times as long as a transaction that reads.
    """

    known: Known | None = None
    engine: Engine | None = None
    versions: tuple[tuple[int, ...], dict[str, str]] | None = None
    marks: dict[Path, tuple[tuple[int, ...], HighWaterMark]] = field(default_factory=dict)
    idle: list[tuple[int, tuple[int, ...], Connection]] = field(default_factory=list)

    def versions_at(self, state: tuple[int, ...] | None) -> dict[str, str] | None:
        """Return the table of versions of a file that was not written to since it was read."""
        own = self.known.state if self.known is not None else None
        if state is None or self.versions is None or state not in (self.versions[0], own):
            return None
        return self.versions[1]

    def take(self, state: tuple[int, ...] | None) -> Connection | None:
        """Return the idle connection to a file that is unchanged since its last transaction; close any other.

        A file that was written, moved or replaced, or whose mode was changed, by any means, has another state. A
        forked process neither uses nor closes the connection of its parent.
        """
        try:
            process, known, connection = self.idle.pop()
        except IndexError:
            return None
        if process != os.getpid():
            _INHERITED.append(connection)
            return None
        if state is not None and state == known:
            return connection
        connection.close()
        return None

    def keep(self, connection: Connection, state: tuple[int, ...] | None) -> None:
        """Keep a connection whose transaction has ended; the last few ledgers of a process have one each.

        A file that was written just now has a state that the next write may not change.
        """
        if state is None or time.time_ns() - state[-1] < _TICK_NANOSECONDS:
            connection.close()
            return
        self.take(None)
        self.idle.append((os.getpid(), state, connection))
        _RECENT.pop(id(self), None)
        _RECENT[id(self)] = self
        if len(_RECENT) > _MOST_IDLE:
            # Another thread may do the same at the same time.
            with suppress(KeyError, RuntimeError, StopIteration):
                _RECENT.pop(next(iter(_RECENT))).take(None)


_MOST_IDLE = 8
# Times of files advance in steps of up to ten milliseconds.
_TICK_NANOSECONDS = 20_000_000
_RECENT: dict[int, Memory] = {}
# Idle connections of the process that this one was forked from.
_INHERITED: list[Connection] = []


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes with every write to a file, by any process; None where the file is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True, slots=True)
class Database:
    """An open database; made by :func:`open_database`.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        Without a pool, so that it may cross a fork; idle connections are in the memory.
    place : str
        Where it is, for messages; without any password.
    chain : Chain
        The ledger's identity (random, given when it was made) and the key of its entries' digests.
    marks : tuple of Path
        Files of the high-water marks, outside the database so that a restored back-up does not bring them along.
    guard : callable
        Called with the entries at the beginning of every writing transaction; raises where nothing may be written.
    memory : Memory or None
        What is remembered between transactions.
    connection : sqlalchemy.Connection or None
        What transactions use, one after another; None where each opens its own.
    """

    engine: Engine
    place: str
    chain: Chain
    marks: tuple[Path, ...]
    guard: Guard
    memory: Memory | None = None
    connection: Connection | None = None

    @property
    def is_file(self) -> bool:
        """Whether it is a file of SQLite's, and no server's."""
        return self.engine.dialect.name == "sqlite"

    def state(self) -> tuple[int, ...] | None:
        """Return a value that changes with every write to an SQLite file, by any process; None for a server."""
        return file_state(Path(self.place)) if self.is_file else None

    @contextmanager
    def connected(self) -> Iterator[Self]:
        """Open one connection for several transactions, one after another.

        Raises
        ------
        StorageError
            If the database cannot be opened.
        """
        with _transferred(self.place), self.engine.connect() as connection:
            yield replace(self, connection=connection)

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Connection]:
        """Open one transaction: committed when the body ends, rolled back when it raises.

        A writing transaction holds the write lock of the whole ledger from the start (``BEGIN IMMEDIATE``; on
        PostgreSQL a row lock), so what it reads cannot change before it writes.

        Raises
        ------
        StorageError
            If the database cannot be read or written; nothing was changed.
        FormatVersionError
            If it has another version now.
        """
        with self._lent() as where, _begin(where, self.place, write=write) as connection:
            _require_version(_read_meta(connection, lock=write), self.place)
            yield connection

    @contextmanager
    def _lent(self) -> Iterator[Connection | Engine]:
        """Lend what a transaction uses; a connection is kept for the next one if the transaction raises no error."""
        if self.connection is not None or self.memory is None or not self.is_file:
            yield self.connection or self.engine
            return
        with _transferred(self.place):
            connection = self.memory.take(self.state()) or self.engine.connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.memory.keep(connection, self.state())


def open_database(
    location: str | Path,
    *,
    key: Path | Secret | None = None,
    head: Path | None = None,
    marks: Path | None = None,
    guard: Guard = lambda entries: None,
    memory: Memory | None = None,
) -> Database:
    """Open the database at a path or URL; make it, whole or not at all, where there is none.

    Parameters
    ----------
    location : str or Path
        A file for SQLite (its directory must exist), or ``postgresql://…`` for several machines.
    key : Path or Secret, optional
        The secret that keys the entries' digests, or its file, which is made with a new ledger and never afterwards.
        By default ``private/root.key`` next to an SQLite file; must be given for PostgreSQL, and be the same on all
        machines.
    head : Path or None
        File of the high-water mark. By default next to an SQLite file (``ledger.sqlite`` → ``ledger.head``), and none
        for PostgreSQL.
    marks : Path or None
        Folder of a second high-water mark, outside the root, in a file named by the ledger's identity.
    guard : callable, optional
    memory : Memory, optional
        See :class:`Database`.

    Raises
    ------
    InputError
        If the URL has another scheme.
    FormatVersionError
        If another version of Unitball wrote it.
    StorageError
        If it cannot be opened or made, is not a ledger, or was removed although its high-water mark is there.
    SecretError
        If the key is missing or not the one that the ledger is keyed with.
    """
    url = _parse(location)
    if url is None:
        path = Path(location).absolute()
        head = head or path.with_suffix(".head")
        key = key or path.parent / "private" / "root.key"
        engine, place = (memory and memory.engine) or _sqlite_engine(path), str(path)
        _create_sqlite_file(path, head, key)
        state = file_state(path)
    elif key is None:
        raise InputError(
            "a ledger on PostgreSQL needs a key; give the key file shared by all machines that write to it"
        )
    else:
        engine, place = (memory and memory.engine) or _postgresql_engine(url), url.render_as_string(hide_password=True)
        state = None
        with _begin(engine, place, write=True) as connection:
            if not inspect(connection).has_table(meta.name):
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CREATION_LOCK})
                if not inspect(connection).has_table(meta.name):
                    _create_schema(connection, key)
    versions = memory.versions_at(state) if memory is not None else None
    if versions is None:
        versions = _read_versions(engine, place)
        if memory is not None:
            memory.engine, memory.versions = engine, None if state is None else (state, versions)
    chain = Chain(versions["ledger_id"], key if isinstance(key, Secret) else ledger_key(key))
    if not hmac.compare_digest(versions["key_id"], chain.key_id()):
        file = f"{key} is" if isinstance(key, Path) else "the key given is"
        raise SecretError(
            f"{file} not the key of ledger {place}; restore the right one from its back-up. Without it the ledger can "
            "neither be read nor charge"
        )
    outside = None if marks is None else marks / f"{chain.ledger_id}.json"
    return Database(
        engine=engine,
        place=place,
        chain=chain,
        marks=tuple(path for path in (head, outside) if path is not None),
        guard=guard,
        memory=memory,
    )


def _parse(location: str | Path) -> URL | None:
    """Return PostgreSQL's URL with the driver that is installed, or None for a file."""
    if isinstance(location, Path) or "://" not in location:
        return None
    try:
        url = make_url(location)
    except (ArgumentError, ValueError):
        raise InputError(
            "the ledger's URL cannot be read; give a file, or postgresql://user@host:port/database"
        ) from None
    if url.get_backend_name() != "postgresql":
        raise InputError(
            f"the ledger's URL begins with {url.drivername!r}; give a file for SQLite, or "
            f"postgresql://user@host/database"
        )
    if importlib.util.find_spec("psycopg") is None:
        raise InputError(
            "PostgreSQL's driver is not installed; in a clone of Unitball: pip install '.[postgresql]', "
            "with a wheel: pip install 'FILE.whl[postgresql]'"
        )
    return url.set(drivername="postgresql+psycopg")


def _sqlite_engine(path: Path) -> Engine:
    def connect() -> sqlite3.Connection:
        # mode=rw: a ledger that vanished is an error, never an empty new one.
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous=EXTRA")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def _begin_explicitly(connection: Connection) -> None:
        write = connection.get_execution_options().get("unitball_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _postgresql_engine(url: URL) -> Engine:
    # READ COMMITTED: after the lock is granted, the next statement sees what its last holder committed.
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, isolation_level="READ COMMITTED")

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, record: object) -> None:
        connection.execute("SET synchronous_commit = on")
        connection.execute(f"SET lock_timeout = '{BUSY_SECONDS:g}s'")
        # A machine that loses its power or its network holds the lock no longer than this.
        connection.execute(f"SET idle_in_transaction_session_timeout = '{_STALLED_SECONDS:g}s'")
        connection.commit()

    return engine


@contextmanager
def _begin(where: Engine | Connection, place: str, *, write: bool) -> Iterator[Connection]:
    with (
        _transferred(place),
        nullcontext(where) if isinstance(where, Connection) else where.connect() as connection,
        connection.execution_options(unitball_write=write).begin(),
    ):
        yield connection


@contextmanager
def _transferred(place: str) -> Iterator[None]:
    """Say what a database refuses in a line, without its parameters."""
    try:
        yield
    except DBAPIError as error:
        raise StorageError(f"ledger {place}: {_explain(error)}") from error


_EXPLANATIONS: Mapping[str, str] = {
    "SQLITE_READONLY": "cannot be written; nothing was charged. Make the file and its directory writable and run again",
    "SQLITE_FULL": "the disk is full; nothing was charged. Free some space and run again",
    "SQLITE_IOERR": "the disk refuses to read or write; nothing was charged. Look at the disk and its free space",
    "SQLITE_BUSY": f"another process has held it for more than {BUSY_SECONDS:g} s; nothing was charged. Run again",
    "SQLITE_CANTOPEN": "cannot be opened; nothing was charged. Check that the file and its directory may be written",
    "SQLITE_CORRUPT": "is damaged; nothing was charged. Restore the newest back-up",
    "SQLITE_NOTADB": "is not a ledger; nothing was charged. Move the file away or restore the newest back-up",
}


def _explain(error: DBAPIError) -> str:
    name = getattr(error.orig, "sqlite_errorname", "")
    for prefix, explanation in _EXPLANATIONS.items():
        if name.startswith(prefix):
            return explanation
    return f"{first_line(error.orig)}. Run again: no release is charged twice"


def _create_sqlite_file(path: Path, head: Path, key: Path | Secret) -> None:
    """Make the file under a temporary name and rename it: a kill leaves nothing half-made under the real name."""
    # Read before the ledger is looked for: a mark that is there now means that the ledger was there before.
    marked = head.exists()
    if path.exists():
        return
    if marked:
        raise StorageError(
            f"ledger {path} is missing but {head.name} exists, so a new ledger would lose the record of spending; "
            f"restore the ledger from a back-up (or, to start a new ledger, remove {head.name} as well)"
        )
    kept = next(path.parent.glob(f"private/datasets/[!.]*/{FINGERPRINTS}"), None)
    if kept is not None:
        raise StorageError(
            f"private rows are stored (in {kept.parent}) and their ledger is missing, so a new ledger would lose the "
            f"record of spending; restore {path} from its newest back-up"
        )
    try:
        with locked_directory(path.parent):
            if path.exists():
                return
            temporary = path.with_name(f".{path.name}.new")
            for left_over in (temporary, temporary.with_name(temporary.name + "-journal")):
                left_over.unlink(missing_ok=True)
            temporary.touch(mode=0o600)
            with _begin(_sqlite_engine(temporary), str(path), write=True) as connection:
                _create_schema(connection, key)
            temporary.replace(path)
            sync(path.parent)
    except OSError as error:
        raise StorageError(
            f"ledger {path} cannot be created ({error.strerror}); give a root whose directory exists and is writable"
        ) from error


def _create_schema(connection: Connection, key: Path | Secret) -> None:
    metadata.create_all(connection)
    secret = key if isinstance(key, Secret) else ledger_key(key, create=True)
    chain = Chain(secrets.token_hex(16), secret)
    values = {
        "format_version": str(FORMAT_VERSION),
        "ledger_id": chain.ledger_id,
        "key_id": chain.key_id(),
    }
    connection.execute(insert(meta), [{"name": name, "value": value} for name, value in values.items()])


# Made once: an SQL expression takes longer to make than to run.
_META = select(meta.c.name, meta.c.value).order_by(meta.c.name)
_LOCKED_META = _META.with_for_update()


def _read_meta(connection: Connection, *, lock: bool) -> dict[str, str]:
    # The row lock is PostgreSQL's write lock; SQLite has held one since BEGIN IMMEDIATE.
    if lock and connection.dialect.name != "sqlite":
        connection.execute(_LOCKED_META)
    # Read after the lock is granted: what waited for it does not see rows that its last holder added.
    return {row.name: row.value for row in connection.execute(_META)}


def _require_version(meta: Mapping[str, str], place: str) -> None:
    if MOVED in meta:
        raise StorageError(f"ledger {place} was moved to {meta[MOVED]}; nothing was charged. Run again")
    version = meta.get("format_version", "")
    if version.isdigit():
        way_out = "use the Unitball that wrote it, or another root. Nothing was charged"
        require_format(f"ledger {place}", int(version), FORMAT_VERSION, way_out)
    if not version.isdigit() or not {"ledger_id", "key_id"} <= meta.keys():
        raise StorageError(f"ledger {place} is damaged: its table of versions is damaged; restore the newest back-up")


def _read_versions(engine: Engine, place: str) -> dict[str, str]:
    """Return the table of versions of a database that this code reads."""
    with _begin(engine, place, write=False) as connection:
        if not inspect(connection).has_table(meta.name):
            raise StorageError(f"ledger {place} is a database without a ledger; move it away and run again")
        versions = _read_meta(connection, lock=False)
    _require_version(versions, place)
    return versions
