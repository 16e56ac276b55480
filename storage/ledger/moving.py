"""Ledgers taken elsewhere: excerpts for exports, and whole ledgers moved to another database."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, func, insert, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from storage.errors import InputError, StorageError, first_line
from storage.ledger.database import CREATION_LOCK, MOVED, Database, meta, metadata
from storage.ledger.database import entries as table
from storage.ledger.entries import Kind, reading, writing

FIELDS = tuple(column.name for column in table.columns)
"""What an entry is made of, its digest included."""

_INSUFFICIENT_PRIVILEGE = "42501"
_DUPLICATE_DATABASE = "42P04"


def extract(database: Database, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entries that speak of releases, in their order, each a mapping of :data:`FIELDS`.

    These are the openings of the accounts that paid and the changes of their caps, the plans that the releases were
    charged with, all charges of these plans, and the digests of the releases' outputs.

    Parameters
    ----------
    database : Database
    keys : sequence of str
    """
    if not keys:
        return []
    with reading(database) as entries:
        charges = entries.find(Kind.CHARGE, Kind.RECHARGE, subjects=list(keys))
        plans = {int(charge.content["plan"]) for charge in charges}
        numbers = plans | {entry.sequence for entry in entries.find(Kind.OUTPUT, subjects=list(keys))}
        for account in {charge.account for charge in charges}:
            paid = entries.find(Kind.CHARGE, Kind.RECHARGE, account=account)
            opened = [*entries.find(Kind.ACCOUNT, subject=account), *entries.find(Kind.CAP, account=account)]
            with_them = [charge for charge in paid if int(charge.content["plan"]) in plans]
            numbers |= {entry.sequence for entry in (*opened, *with_them)}
        return [entries.written(number) for number in sorted(numbers)]


def linked(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with the order of extracted entries, as far as that shows without the ledger's key.

    Neighbours in the chain are linked: an entry carries the digest of the one before it. Between others nothing is
    known, and that a digest is the one of its content only the holder of the key can tell (:func:`unlike`).
    """
    for before, after in pairwise(rows):
        if after["sequence"] <= before["sequence"]:
            yield f"entry {after['sequence']} stands after entry {before['sequence']}"
        elif after["sequence"] == before["sequence"] + 1 and after["previous"] != before["digest"]:
            yield f"entry {after['sequence']} does not follow entry {before['sequence']}: reordered or replaced"


def unlike(database: Database, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield in what extracted entries differ from those of the ledger they were taken from, at hand with its key."""
    with reading(database) as entries:
        newest = entries.last().sequence
        for row in rows:
            if database.chain.changed(row) is not None:
                yield f"entry {row['sequence']} was changed: its keyed digest does not match its content"
            elif row["sequence"] > newest or entries.written(row["sequence"]) != dict(row):
                yield f"entry {row['sequence']} is not the one in the ledger {database.place}"


def is_retired(path: Path) -> bool:
    """Whether the file of a ledger says of itself that it has moved."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT 1 FROM ledger_meta WHERE name = ?", (MOVED,)).fetchone() is not None


def move_ledger(source: Database, url: str, *, moved: Callable[[], None]) -> None:
    """Copy every entry to an empty database, or the rest to one where an earlier attempt was killed; retire the file.

    The file's write lock is held from the first read until the file says of itself that it has moved: a process that
    waits to charge in the old place is refused then, and finds the new one when it runs again.

    Parameters
    ----------
    source : Database
        Of the root's own file.
    url : str
        Of PostgreSQL. The key stays the same.
    moved : callable
        Called when all is copied and before the file is retired: notes the new place. A kill before it leaves the old
        place in force, and the move can be repeated at any time.

    Raises
    ------
    StorageError
        If the ledger is not in order or behind its marks, or PostgreSQL refuses; the old place stays in force.
    InputError
        If another ledger lives there.
    """
    # Without what is remembered of it, the whole chain is looked at.
    with writing(replace(source, memory=None)) as entries:
        connection = entries.connection
        _copy(connection, url)
        moved()
        connection.execute(insert(meta).values(name=MOVED, value="PostgreSQL"))


def _copy(source: Connection, url: str) -> None:
    place = make_url(url).set(drivername="postgresql+psycopg")
    shown = place.render_as_string(hide_password=True)
    try:
        with create_engine(place, poolclass=NullPool, hide_parameters=True).begin() as target:
            target.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CREATION_LOCK})
            if not inspect(target).has_table(meta.name):
                metadata.create_all(target)
                target.execute(insert(meta), [dict(row) for row in source.execute(select(meta)).mappings()])
            _require_same(source, target, shown)
            there = target.execute(select(func.coalesce(func.max(table.c.sequence), 0))).scalar_one()
            rest = select(table).where(table.c.sequence > there).order_by(table.c.sequence)
            if rows := [dict(row) for row in source.execute(rest).mappings()]:
                target.execute(insert(table), rows)
    except DBAPIError as error:
        raise StorageError(f"PostgreSQL at {shown}: {first_line(error.orig)}; the ledger stays where it is") from None


def _require_same(source: Connection, target: Connection, shown: str) -> None:
    """Refuse a database whose chain does not begin as this one, or that goes on where this one does."""
    identity = select(meta.c.value).where(meta.c.name == "ledger_id")
    last = select(table.c.sequence, table.c.digest).order_by(table.c.sequence.desc()).limit(1)
    ends = [row for each in (source, target) if (row := each.execute(last).one_or_none()) is not None]
    shared = min((sequence for sequence, _ in ends), default=0) if len(ends) == 2 else 0
    link = select(table.c.digest).where(table.c.sequence == shared)
    if any(
        source.execute(what).scalar_one_or_none() != target.execute(what).scalar_one_or_none()
        for what in (identity, link)
    ):
        raise InputError(f"{shown} holds another ledger; name another database")


def make_databases(url: str, names: Sequence[str], *, shown: str, owner: str = "") -> None:
    """Make those databases that are missing.

    Parameters
    ----------
    url : str
        SQLAlchemy's URL of a database that is there, such as ``postgres``.
    names : sequence of str
    shown : str
        How messages name the server: without a password.
    owner : str
        Their owner, where an administrator has to make them.

    Raises
    ------
    StorageError
        If the server does not answer, or this user may not make databases: with the statements for an administrator.
    """
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, isolation_level="AUTOCOMMIT")
    missing = list(names)
    try:
        with engine.connect() as connection:
            there = set(connection.execute(text("SELECT datname FROM pg_database")).scalars())
            missing = [name for name in names if name not in there]
            for name in missing:
                try:
                    connection.execute(text(f"CREATE DATABASE \"{name}\" ENCODING 'UTF8' TEMPLATE template0"))
                except DBAPIError as error:
                    # Another process may just have made it.
                    if getattr(error.orig, "sqlstate", None) != _DUPLICATE_DATABASE:
                        raise
    except DBAPIError as error:
        reason = first_line(error.orig)
        if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
            raise StorageError(f"PostgreSQL at {shown}: {reason}; start it or correct the URL") from None
        whose = f' OWNER "{owner}"' if owner else ""
        wanted = " ".join(f'CREATE DATABASE "{name}"{whose};' for name in missing)
        raise StorageError(f"PostgreSQL at {shown}: {reason}; let an administrator run: {wanted}") from None


def has_ledger(url: str) -> bool:
    """Whether a database holds a ledger, of whichever root."""
    with create_engine(url, poolclass=NullPool, hide_parameters=True).connect() as connection:
        return inspect(connection).has_table(meta.name)
