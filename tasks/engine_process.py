"""What runs in the engine's own processes: making and upgrading databases, and the embedded Prefect server.

Run by file name, so that it needs nothing but Prefect and MLflow and no import path of its own.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel drops it with the process, so a kill leaves none behind."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def mark_of(database: Path) -> int:
    """Return the user version in the header of a SQLite file, 0 where there is no such file.

    Read from the header's bytes 60 to 63: opening a connection would cost more, and would make a missing file.
    """
    try:
        with database.open("rb") as file:
            return int.from_bytes(file.read(64)[60:64], "big")
    except FileNotFoundError:
        return 0


def make_database(target: Path, mark: int, workplace: Path, migrate: Callable[[Path], None]) -> None:
    """Bring ``target`` to the schema that ``mark`` stands for, whole or not at all.

    The work is done on a copy that is renamed at the end, so that a kill leaves either what was there or the finished
    database; the lock makes a second process wait and then find it finished.

    Parameters
    ----------
    mark : int
        Kept in the file itself (SQLite's user version), so that the schema and what is said of it cannot part.
    workplace : Path
        Folder for the copy and the lock, on the file system of ``target``.
    """
    with locked(workplace / f".lock-{target.name}"):
        if mark_of(target) == mark:
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
        descriptor = os.open(making, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        making.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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
            f"{source} has to be upgraded but is in use ({error}); stop the other runs and servers, then start again"
        ) from error


def migrate_prefect(database: Path) -> None:
    """Run Prefect's migrations on one SQLite file."""
    import anyio
    from prefect.server.database import provide_database_interface
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.database.dependencies import temporary_database_config

    async def upgrade() -> None:
        interface = provide_database_interface()
        await interface.create_db()
        await (await interface.engine()).dispose()

    with temporary_database_config(AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{database}")):
        anyio.run(upgrade)


def migrate_mlflow(database: Path, artifacts: Path) -> None:
    """Run MLflow's migrations on one SQLite file, and enter its default experiment."""
    from mlflow.store.db.utils import _upgrade_db
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import create_engine

    url = f"sqlite:///{database}"
    if database.exists():
        engine = create_engine(url)
        _upgrade_db(engine)
        engine.dispose()
    store = SqlAlchemyStore(url, artifacts.as_uri())
    store.engine.dispose()


def serve(descriptor: int) -> None:
    """Serve Prefect's API on an open socket until standard input ends, which it does when the parent is gone."""
    import uvicorn
    from prefect.server.api.server import create_app

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                print("ready", flush=True)

    server = Server(uvicorn.Config(create_app(ephemeral=True), log_level="error", lifespan="on"))

    def stop_with_parent() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True

    threading.Thread(target=stop_with_parent, daemon=True).start()
    with socket.socket(fileno=descriptor) as listener:
        server.run(sockets=[listener])


def main() -> None:
    """Make the databases that are asked for, then serve if a socket is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workplace", type=Path, required=True)
    parser.add_argument("--prefect", type=Path)
    parser.add_argument("--prefect-mark", type=int)
    parser.add_argument("--mlflow", type=Path)
    parser.add_argument("--mlflow-mark", type=int)
    parser.add_argument("--artifacts", type=Path)
    parser.add_argument("--socket", type=int)
    arguments = parser.parse_args()
    if arguments.prefect:
        make_database(arguments.prefect, arguments.prefect_mark, arguments.workplace, migrate_prefect)
    if arguments.mlflow:
        migrate = partial(migrate_mlflow, artifacts=arguments.artifacts)
        make_database(arguments.mlflow, arguments.mlflow_mark, arguments.workplace, migrate)
    if arguments.socket is not None:
        serve(arguments.socket)
        sys.stderr.flush()
        # All is on disk; unwinding the interpreter would only cost another second.
        os._exit(0)


if __name__ == "__main__":
    main()
