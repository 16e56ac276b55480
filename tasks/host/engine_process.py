"""The engine's own processes: making and upgrading databases, and the embedded Prefect server.

It is run by file name, so it needs only Prefect and MLflow, and no import path.

What fails without it:

- :func:`make_database`, a migration on a copy, renamed at the end, under a lock: test_killed_in_its_first_migration,
  test_three_processes_at_once_on_a_fresh_root_offline;
- ``_copy_idle``, no upgrade of a database in use: test_no_upgrade_under_somebodys_feet,
  test_a_damaged_database_is_said_to_be_one;
- :func:`is_stamped`, whether a database is made, told without opening it: test_no_upgrade_under_somebodys_feet (opening
  and closing drops this process's locks), test_nothing_is_started_where_all_is_there;
- :func:`serve`, an open port handed over, SQLite's write lock taken at the beginning of a transaction:
  test_a_killed_command_leaves_no_server_and_no_run_that_runs_for_ever; three runs at once of 40 tasks took 1.6 to 3.1 s
  each with the lock first, 1.4 to 5.8 s without.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sqlite3
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from storage.atomic import locked_file, sync
from tasks.host.places import settle

_LOOK = timedelta(seconds=1)

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, AsyncSessionTransaction


def high_water_mark_of(database: Path) -> int:
    """Return the user version in the header of a SQLite file, 0 where there is no such file.

    Only for a process that has no connection to the file: closing the file drops all locks this process holds on it,
    those of SQLite included.
    """
    try:
        with database.open("rb") as file:
            return int.from_bytes(file.read(64)[60:64], "big")
    except FileNotFoundError:
        return 0


def stamp_of(database: Path, workplace: Path) -> Path:
    """Return the path of the marker file of a finished database, for readers that must not open the database."""
    return workplace / f".made-{database.name}"


def is_stamped(database: Path, workplace: Path, mark: int) -> bool:
    """Whether ``database`` is known to have the schema that ``mark`` stands for, without opening it.

    The note names the file by its number, so that it does not speak for another one in its place.
    """
    try:
        return stamp_of(database, workplace).read_text() == f"{mark} {database.stat().st_ino}"
    except (FileNotFoundError, NotADirectoryError):
        return False


def _stamp(database: Path, workplace: Path, mark: int) -> None:
    note = workplace / f".making-{stamp_of(database, workplace).name}"
    note.write_text(f"{mark} {database.stat().st_ino}")
    note.replace(stamp_of(database, workplace))


def make_database(target: Path, mark: int, workplace: Path, migrate: Callable[[Path], None]) -> None:
    """Bring ``target`` to the schema that ``mark`` stands for, whole or not at all.

    The work is done on a copy that is renamed at the end, so that a kill leaves either what was there or the finished
    database; the lock makes a second process wait and then find it finished.

    Parameters
    ----------
    mark : int
        Kept in the file itself (SQLite's user version), so that the schema and its version cannot differ; the marker
        file only saves opening the database.
    workplace : Path
        Folder for the copy and the lock, on the file system of ``target``.
    """
    with locked_file(workplace / f".lock-{target.name}"):
        if high_water_mark_of(target) == mark:
            _stamp(target, workplace, mark)
            return
        making = workplace / f".making-{target.name}"
        for left in workplace.glob(f"{making.name}*"):
            left.unlink()
        if target.exists():
            _copy_idle(target, making)
        migrate(making)
        with closing(sqlite3.connect(making)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute(f"PRAGMA user_version = {mark:d}")
        sync(making)
        making.replace(target)
        _stamp(target, workplace, mark)
        sync(target.parent)


def _copy_idle(source: Path, copy: Path) -> None:
    """Copy a database that nobody else has open."""
    try:
        with closing(sqlite3.connect(source, timeout=1)) as connection, closing(sqlite3.connect(copy)) as other:
            # Leaving the write-ahead mode takes the only connection: it proves the file idle, and folds in the log,
            # which would otherwise be replayed over the upgraded file.
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.rollback()
            connection.backup(other)
    except sqlite3.OperationalError as error:
        raise SystemExit(
            f"{source} needs an upgrade but is in use ({error}); stop the other runs and servers, then start again"
        ) from error
    except sqlite3.DatabaseError as error:
        raise SystemExit(
            f"{source} is damaged ({error}); restore it from a back-up, or move it away to start with an empty one"
        ) from error


def migrate_prefect(database: Path) -> None:
    """Run Prefect's migrations on one SQLite file, in this thread.

    They are 34,000 statements. Prefect's own engine hands each of them to another thread and waits, which takes twice
    as long in all.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.database.dependencies import temporary_database_config
    from sqlalchemy import Connection, create_engine, event

    class Here(AioSqliteConfiguration):
        """Stands for its own engine and connection; of these, migrations use what is below."""

        async def engine(self) -> AsyncEngine:
            return cast("AsyncEngine", self)

        async def dispose(self) -> None:
            engine.dispose()

        @asynccontextmanager
        async def connect(self) -> AsyncGenerator[Here, None]:
            with engine.connect() as self.connection:
                yield self

        async def run_sync(self, migrations: Callable[[Connection], None]) -> None:
            migrations(self.connection)

    here = Here(connection_url=f"sqlite+aiosqlite:///{database}")
    engine = create_engine(f"sqlite:///{database}", connect_args={"isolation_level": None})
    event.listen(engine, "connect", here.setup_sqlite)
    event.listen(engine, "begin", here.begin_sqlite_stmt)
    with temporary_database_config(here):
        upgrade_prefect()


def upgrade_prefect() -> None:
    """Run Prefect's migrations on the database that its settings name."""
    import anyio
    from prefect.server.database import provide_database_interface

    async def upgrade() -> None:
        interface = provide_database_interface()
        await interface.create_db()
        await (await interface.engine()).dispose()

    anyio.run(upgrade)


@contextmanager
def unsynced() -> Iterator[None]:
    """Let connections that are opened meanwhile not wait for the disk: for a copy that is synced when it is whole.

    Each statement of MLflow's migrations is a transaction. For a new file SQLite would wait for the disk 1,100 times,
    which takes seconds.
    """
    from sqlalchemy import Engine, event

    def no_wait(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", no_wait)
    try:
        yield
    finally:
        event.remove(Engine, "connect", no_wait)


def migrate_mlflow(database: Path, artifacts: Path) -> None:
    """Run MLflow's migrations on one SQLite file, and enter its default experiment.

    Parameters
    ----------
    database : Path
        A copy that is synced afterwards, or removed.
    artifacts : Path
    """
    from mlflow.store.db.utils import _upgrade_db
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import create_engine

    url = f"sqlite:///{database}"
    with unsynced():
        if database.exists():
            engine = create_engine(url)
            _upgrade_db(engine)
            engine.dispose()
        store = SqlAlchemyStore(url, artifacts.as_uri())
        store.engine.dispose()
        settle(url, artifacts, shown=str(database))


def upgrade_mlflow(url: str, artifacts: Path, earlier: Path) -> None:
    """Run MLflow's migrations on PostgreSQL; move what an earlier SQLite file holds, in one transaction.

    Parameters
    ----------
    url : str
    artifacts : Path
    earlier : Path
        Where it is there, it is brought to this version first, and renamed when all is copied. A kill in between
        leaves the file, and the next start does it again.
    """
    from mlflow.store.db.utils import _upgrade_db
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import create_engine, inspect

    engine = create_engine(url)
    if inspect(engine).has_table("experiments"):
        _upgrade_db(engine)
    store = SqlAlchemyStore(url, artifacts.as_uri())
    if earlier.exists():
        copy = earlier.with_name(f".moving-{earlier.name}")
        copy.unlink(missing_ok=True)
        _copy_idle(earlier, copy)
        migrate_mlflow(copy, artifacts)
        _copy_tables(create_engine(f"sqlite:///{copy}"), engine)
        copy.unlink()
        earlier.replace(earlier.with_name(f"{earlier.name}.moved"))
    store.engine.dispose()
    engine.dispose()


def _copy_tables(source: Engine, target: Engine) -> None:
    """Replace the rows of a database's tables by those of another one with the same schema."""
    from sqlalchemy import Integer, MetaData, func, insert, select, text

    tables = MetaData()
    tables.reflect(source)
    wanted = MetaData()
    wanted.reflect(target)
    names = ", ".join(f'"{name}"' for name in wanted.tables if name != "alembic_version")
    with source.connect() as old, target.begin() as new:
        new.execute(text(f"TRUNCATE {names} CASCADE"))
        for table in wanted.sorted_tables:
            if table.name == "alembic_version" or table.name not in tables.tables:
                continue
            # Read with the target's types: SQLite has no booleans, and says so nowhere.
            for rows in old.execution_options(yield_per=1000).execute(select(table)).mappings().partitions():
                new.execute(insert(table), [dict(row) for row in rows])
            for column in table.primary_key:
                if isinstance(column.type, Integer) and column.autoincrement and column.server_default is not None:
                    last = new.execute(select(func.max(column))).scalar_one()
                    new.execute(select(func.setval(func.pg_get_serial_sequence(table.name, column.name), last or 1)))


@contextmanager
def _locked_on_server(url: str) -> Iterator[None]:
    """Hold a lock that a PostgreSQL server drops with the connection: one upgrade at a time."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.pool import NullPool

    place = make_url(url).set(drivername="postgresql+psycopg")
    with create_engine(place, poolclass=NullPool).connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(1970170212)"))
        yield


def serve(descriptor: int, *, whole: bool) -> None:
    """Serve Prefect's API on an open socket until SIGTERM.

    Parameters
    ----------
    whole : bool
        With pages, schedules and automations; otherwise what runs of one process need.
    """
    import uvicorn
    from docket import Worker
    from fastapi.middleware.trustedhost import TrustedHostMiddleware
    from prefect.server.api import background_workers
    from prefect.server.api.server import create_app
    from prefect.server.database import provide_database_interface
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.database.dependencies import temporary_database_config
    from prefect.settings import get_current_settings

    class WaitingSqlite(AioSqliteConfiguration):
        """Takes the write lock when a transaction begins.

        A transaction that reads first and writes later fails at once if another one has written in between; the
        client then waits two seconds and tries again. Waiting for the lock takes milliseconds.
        """

        @asynccontextmanager
        async def begin_transaction(
            self, session: AsyncSession, with_for_update: bool = False
        ) -> AsyncGenerator[AsyncSessionTransaction, None]:
            async with super().begin_transaction(session, with_for_update=True) as transaction:
                yield transaction

    # Prefect's worker looks four times a second for what is due every few seconds.
    slower = partial(Worker, minimum_check_interval=_LOOK, scheduling_resolution=_LOOK)
    vars(background_workers)["Worker"] = slower
    # Prefect's page asks an analytics service for its configuration, under any settings, and shows pictures from
    # elsewhere: browsers are told to fetch from this machine alone, under either of its names.
    here = " ".join(f"{scheme}://{name}:*" for scheme in ("http", "ws") for name in ("127.0.0.1", "localhost"))
    policy = f"default-src 'self' {here} 'unsafe-inline' 'unsafe-eval' data: blob:"
    headers = [("Content-Security-Policy", policy)]
    # A name of somebody else's that leads here would make their page one of this server's own.
    named = TrustedHostMiddleware(create_app(ephemeral=not whole), ["127.0.0.1", "localhost"])
    config = uvicorn.Config(named, log_level="error", lifespan="on", headers=headers)
    server = uvicorn.Server(config)
    url = get_current_settings().server.database.connection_url
    assert url is not None
    address = url.get_secret_value()
    files = address.startswith("sqlite")
    database = WaitingSqlite(connection_url=address) if files else provide_database_interface().database_config
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=descriptor) as listener, temporary_database_config(database):
        server.run(sockets=[listener])


def main() -> None:
    """Make the databases that are asked for, in JSON, then serve if a socket is given."""
    os.umask(0o077)
    # Nearly all that is made until requests come is modules, which stay.
    gc.disable()
    asked = json.loads(sys.argv[1])
    workplace = Path(asked["workplace"])
    if "prefect" in asked:
        make_database(Path(asked["prefect"]), asked["prefect_mark"], workplace, migrate_prefect)
    if "prefect_server" in asked:
        with _locked_on_server(os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"]):
            upgrade_prefect()
    if "mlflow_server" in asked:
        url = os.environ["MLFLOW_BACKEND_STORE_URI"]
        with _locked_on_server(url):
            upgrade_mlflow(url, Path(asked["artifacts"]), Path(asked["mlflow"]))
    elif "mlflow" in asked:
        migrate = partial(migrate_mlflow, artifacts=Path(asked["artifacts"]))
        make_database(Path(asked["mlflow"]), asked["mlflow_mark"], workplace, migrate)
    if "socket" in asked:
        serve(asked["socket"], whole=asked["whole"])
        sys.stderr.flush()
        sys.stdout.flush()
        # All is on disk; unwinding the interpreter would only cost another second.
        os._exit(0)


if __name__ == "__main__":
    main()
