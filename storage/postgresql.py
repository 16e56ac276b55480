"""Databases of one PostgreSQL server, made where they are missing."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from storage.errors import StorageError
from storage.ledger.database import meta

_INSUFFICIENT_PRIVILEGE = "42501"
_DUPLICATE_DATABASE = "42P04"


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
        Who is to own them where somebody else has to make them.

    Raises
    ------
    StorageError
        If the server does not answer, or this user may not make databases: with the statements for whoever may.
    """
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, isolation_level="AUTOCOMMIT")
    missing = list(names)
    try:
        with engine.connect() as connection:
            there = set(connection.execute(text("SELECT datname FROM pg_database")).scalars())
            missing = [name for name in names if name not in there]
            for name in missing:
                _make(connection, name)
    except DBAPIError as error:
        reason = (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
        if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
            raise StorageError(f"PostgreSQL at {shown}: {reason}; start it or correct the URL") from None
        whose = f' OWNER "{owner}"' if owner else ""
        wanted = " ".join(f'CREATE DATABASE "{name}"{whose};' for name in missing)
        raise StorageError(f"PostgreSQL at {shown}: {reason}; let an administrator run: {wanted}") from None


def _make(connection: Connection, name: str) -> None:
    try:
        connection.execute(text(f"CREATE DATABASE \"{name}\" ENCODING 'UTF8' TEMPLATE template0"))
    except DBAPIError as error:
        # Another process may just have made it.
        if getattr(error.orig, "sqlstate", None) != _DUPLICATE_DATABASE:
            raise


def has_ledger(url: str) -> bool:
    """Whether a database holds a ledger, of whichever root."""
    with create_engine(url, poolclass=NullPool, hide_parameters=True).connect() as connection:
        return inspect(connection).has_table(meta.name)
