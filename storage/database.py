"""The database behind the ledger and the catalogue: where it is, how it is made, and its transactions.

SQLite with a rollback journal and ``synchronous=EXTRA``: a committed charge survives SIGKILL and power loss, the ledger
is one file that can be copied, and a killed writer is rolled back by whoever opens it next. PostgreSQL by URL where
several machines write. Every writing transaction holds the one write lock from its first statement, because all entries
form one chain.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
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
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from storage.atomic import locked_directory
from storage.errors import FormatVersionError, InputError, StorageError

__all__ = ["FORMAT_VERSION", "MIGRATIONS", "Database", "open_database"]

FORMAT_VERSION = 1
"""The version of the schema that this code reads and writes."""

MIGRATIONS: dict[int, Callable[[Connection], None]] = {}
"""From a version to the next: each takes an open transaction, in which the version is raised as well."""

BUSY_SECONDS = 300.0
"""How long a transaction waits for the write lock: longer than 64 processes need to charge one after another."""

_STALLED_SECONDS = 120.0
"""How long PostgreSQL lets a transaction stand still; a decision takes well under a second."""

_CREATION_LOCK = 0x756E6974
"""Key of PostgreSQL's advisory lock under which the schema is made; any constant of our own does."""

_metadata = MetaData()

meta = Table(
    "ledger_meta",
    _metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

entries = Table(
    "ledger_entries",
    _metadata,
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
        _ddl = DDL(_trigger)  # type: ignore[no-untyped-call]
        event.listen(entries, "after_create", _ddl.execute_if(dialect=_dialect))


@dataclass(frozen=True, slots=True)
class Database:
    """An open database; made by :func:`open_database`.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        Without a pool, so that it may cross a fork.
    place : str
        Where it is, for messages; without any password.
    ledger_id : str
        Random name given when it was made; ties the chain and its high-water mark to this ledger.
    head : Path or None
        File of the high-water mark, outside the database so that a restored back-up does not bring it along.
    """

    engine: Engine
    place: str
    ledger_id: str
    head: Path | None

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
            If another process has migrated it beyond this code.
        """
        with _begin(self.engine, self.place, write=write) as connection:
            _require_version(_read_meta(connection, lock=write), self.place)
            yield connection


def open_database(location: str | Path, *, head: Path | None = None) -> Database:
    """Open the database at a path or URL; make it, whole or not at all, where there is none; migrate an older one.

    Parameters
    ----------
    location : str or Path
        A file for SQLite (its directory must exist), or ``postgresql://…`` for several machines.
    head : Path or None
        File of the high-water mark. By default beside an SQLite file (``ledger.sqlite`` → ``ledger.head``), and none
        for PostgreSQL.

    Raises
    ------
    InputError
        If the URL is of another kind.
    FormatVersionError
        If it was written by a newer Unitball.
    StorageError
        If it cannot be opened or made, is not a ledger, or was removed although its high-water mark is there.
    """
    url = _parse(location)
    if url is None:
        path = Path(location).absolute()
        head = head or path.with_suffix(".head")
        engine, place = _sqlite_engine(path), str(path)
        _create_sqlite_file(path, head)
    else:
        engine, place = _postgresql_engine(url), url.render_as_string(hide_password=True)
        with _begin(engine, place, write=True) as connection:
            if not inspect(connection).has_table(meta.name):
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
                if not inspect(connection).has_table(meta.name):
                    _create_schema(connection)
    return Database(engine=engine, place=place, ledger_id=_migrate(engine, place), head=head)


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
            f"the ledger's URL begins with {url.drivername!r}; give a file for SQLite, or postgresql://user@host/database"
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
def _begin(engine: Engine, place: str, *, write: bool) -> Iterator[Connection]:
    try:
        with engine.connect().execution_options(unitball_write=write) as connection, connection.begin():
            yield connection
    except DBAPIError as error:
        raise StorageError(f"ledger {place}: {_explain(error)}") from error


_EXPLANATIONS: Mapping[str, str] = {
    "SQLITE_READONLY": "cannot be written; nothing was charged. Make the file and its directory writable and run again",
    "SQLITE_FULL": "the disk is full; nothing was charged. Free some space and run again",
    "SQLITE_IOERR": "the disk refuses to read or write; nothing was charged. Look at the disk and its free space",
    "SQLITE_BUSY": f"another process has held it for more than {BUSY_SECONDS:g} s; nothing was charged. Run again",
    "SQLITE_CANTOPEN": "cannot be opened; nothing was charged. Check that the file and its directory may be written",
    "SQLITE_CORRUPT": "is damaged; nothing was charged. Put back the newest back-up",
    "SQLITE_NOTADB": "is not a ledger; nothing was charged. Move the file away or put back the newest back-up",
}


def _explain(error: DBAPIError) -> str:
    name = getattr(error.orig, "sqlite_errorname", "")
    for prefix, explanation in _EXPLANATIONS.items():
        if name.startswith(prefix):
            return explanation
    reason = (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
    return f"{reason}. Run again: what was charged is never charged twice"


def _create_sqlite_file(path: Path, head: Path) -> None:
    """Make the file under a temporary name and rename it: a kill leaves nothing half-made under the real name."""
    # Read before the ledger is looked for: a mark that is there now means that the ledger was there before.
    marked = head.exists()
    if path.exists():
        return
    if marked:
        raise StorageError(
            f"ledger {path} is missing but {head.name} is there, so what was spent would be forgotten; "
            f"put the ledger back (or, if it is to begin anew, remove {head.name} as well)"
        )
    try:
        with locked_directory(path.parent):
            if path.exists():
                return
            temporary = path.with_name(f".{path.name}.new")
            for left_over in (temporary, temporary.with_name(temporary.name + "-journal")):
                left_over.unlink(missing_ok=True)
            temporary.touch(mode=0o666)
            with _begin(_sqlite_engine(temporary), str(path), write=True) as connection:
                _create_schema(connection)
            temporary.replace(path)
            sync_directory(path.parent)
    except OSError as error:
        raise StorageError(
            f"ledger {path} cannot be made ({error.strerror}); give a root whose directory exists and may be written"
        ) from error


def _create_schema(connection: Connection) -> None:
    _metadata.create_all(connection)
    values = {"format_version": str(FORMAT_VERSION), "ledger_id": secrets.token_hex(16)}
    connection.execute(insert(meta), [{"name": name, "value": value} for name, value in values.items()])


def _read_meta(connection: Connection, *, lock: bool) -> dict[str, str]:
    # The row lock is PostgreSQL's write lock; SQLite holds one since BEGIN IMMEDIATE and ignores the clause.
    statement = select(meta.c.name, meta.c.value).order_by(meta.c.name)
    rows = connection.execute(statement.with_for_update() if lock else statement)
    return {row.name: row.value for row in rows}


def _version(found: Mapping[str, str], place: str) -> int:
    version = found.get("format_version", "")
    if not version.isdigit() or "ledger_id" not in found:
        raise StorageError(f"ledger {place} is damaged: its table of versions is; put back the newest back-up")
    return int(version)


def _require_version(found: Mapping[str, str], place: str) -> None:
    version = _version(found, place)
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"ledger {place} has format version {version}, this Unitball reads {FORMAT_VERSION}; use a newer Unitball"
        )


def _migrate(engine: Engine, place: str) -> str:
    """Bring the database to this version, one recorded step after another, and return the ledger's identity."""
    with _begin(engine, place, write=False) as connection:
        if not inspect(connection).has_table(meta.name):
            raise StorageError(f"ledger {place} is a database without a ledger; move it away and run again")
        found = _read_meta(connection, lock=False)
    if _version(found, place) < FORMAT_VERSION:
        with _begin(engine, place, write=True) as connection:
            version = _version(_read_meta(connection, lock=True), place)
            while version < FORMAT_VERSION:
                if version not in MIGRATIONS:
                    raise StorageError(
                        f"ledger {place} has format version {version}, which cannot be migrated to {FORMAT_VERSION}; "
                        "open it once with a Unitball between the two"
                    )
                MIGRATIONS[version](connection)
                version += 1
                connection.execute(update(meta).where(meta.c.name == "format_version").values(value=str(version)))
            found = _read_meta(connection, lock=False)
    _require_version(found, place)
    return found["ledger_id"]


def sync_directory(directory: Path) -> None:
    """Put a rename in this directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
