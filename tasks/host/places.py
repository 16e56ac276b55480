"""MLflow's places below a root, where the root lies now.

MLflow keeps absolute addresses of experiments' and runs' files. A root that was moved, copied or restored elsewhere
still has those of its old path, which are dead or name the files of another copy. So its database records the path of
its addresses, and the first process that opens it at another path rewrites them, in one transaction: a kill leaves all
of them old or all new, a second process waits and finds it done, and who has the database open reads the new ones.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from storage.errors import StorageError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Engine, Table

_BUSY_SECONDS = 60.0
_LOCK = 1970170213
"""Key of PostgreSQL's advisory lock; any constant of our own does."""


def settle(address: str, artifacts: Path, *, shown: str) -> bool:
    """Let every address below a root's folder of artifacts be one below that folder now; return whether it moved.

    Costs a question to the database where the root has not moved.

    Parameters
    ----------
    address : str
        SQLAlchemy's, of MLflow's own database, which must be there.
    artifacts : Path
        The folder, absolute.
    shown : str
        How messages name the database: without a password.

    Raises
    ------
    storage.errors.StorageError
        If the database cannot be read or written, or an address is longer than MLflow keeps; nothing was changed.
    """
    from sqlalchemy.exc import DBAPIError

    here = artifacts.as_uri()
    engine = _engine(address)
    try:
        with engine.connect() as connection:
            if _recorded(connection) == here:
                return False
        with _alone(engine) as connection:
            before = _recorded(connection)
            if before is None:
                _record(connection, here)
            elif before != here:
                _rewrite(connection, before, here)
            return before not in (None, here)
    except DBAPIError as error:
        raise StorageError(
            f"{shown} cannot be read or written: {first_line(error.orig)}; make it writable, or restore it from a "
            "back-up. Nothing in it was changed"
        ) from error
    finally:
        engine.dispose()


def _engine(address: str) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    # Transactions of a file are begun by hand: its driver begins none before the first change.
    of_file = {"connect_args": {"isolation_level": None, "timeout": _BUSY_SECONDS}}
    options = of_file if address.startswith("sqlite") else {}
    return create_engine(address, poolclass=NullPool, hide_parameters=True, **options)


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """Open a transaction beside which nobody else settles; on a file nobody else writes."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        yield connection


@cache
def _table() -> Table:
    """Return the table that says of which folder all addresses are; its one row is an address like any other."""
    from sqlalchemy import Column, MetaData, Table, Text

    return Table("unitball_place", MetaData(), Column("artifacts", Text, nullable=False))


def _recorded(connection: Connection) -> str | None:
    """Return the folder that the addresses are of; None in a database that was just made."""
    from sqlalchemy import inspect, select

    if not inspect(connection).has_table(_table().name):
        return None
    found = connection.execute(select(_table().c.artifacts)).scalar_one_or_none()
    return None if found is None else str(found)


def _record(connection: Connection, here: str) -> None:
    from sqlalchemy import insert

    _table().create(connection, checkfirst=True)
    connection.execute(insert(_table()).values(artifacts=here))


def _rewrite(connection: Connection, before: str, here: str) -> None:
    """Rewrite every text that is an address below the old folder, in any of the tables of MLflow."""
    from sqlalchemy import MetaData, String, func, literal, or_, update

    tables = MetaData()
    tables.reflect(connection)
    length = len(before)
    for table in tables.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, String):
                below = func.substr(column, 1, length + 1) == f"{before}/"
                moved = literal(here, String) + func.substr(column, length + 1)
                changed = update(table).where(or_(column == before, below)).values({column: moved})
                connection.execute(changed)
