"""One Prefect server for a whole test session, and roots that need no migration of their own."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import inspect
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import certifi
import pytest

from storage.atomic import locked_file
from storage.layout import Layout
from tasks.host import engine, engine_process, places
from tasks.host.engine import prefect_database, prepare_tracking
from tasks.runtime.services import credentials
from tasks.runtime.settings import has_own_database, recorded_server
from tests.support.processes import clean_environment

_SERVE = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from tasks.host import engine
# It runs no flow: what a run imports, it needs not. Nor Prefect, to look for runs of dead processes of a new root.
engine._import_ahead = lambda: None
sys.modules["tasks.host.interrupted"] = SimpleNamespace(has_dead_processes=lambda root: False)
engine.prepare_engine(Path(sys.argv[1]))
print(os.environ["PREFECT_API_URL"], flush=True)
sys.stdin.read()
"""

# What makes the databases, and what brings them up to date.
_MADE_BY = (engine, engine_process, places)
_MADE_WITH = ("alembic", "mlflow", "prefect", "sqlalchemy")

_DATABASES = """
import sys
from pathlib import Path
from tasks.host.engine import prepare_databases
prepare_databases(Path(sys.argv[1]))
"""


def pattern_name() -> str:
    """Return a name for unused databases, by the code and the versions that make them."""
    parts = [str(sys.version_info), *(importlib.metadata.version(name) for name in _MADE_WITH)]
    parts += [inspect.getsource(module) for module in _MADE_BY]
    return f"databases-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Engine:
    """A running server, the root it was started under, and a copy of that from before any run, for prepared roots."""

    root: Path
    url: str
    pattern: Path

    @classmethod
    @contextmanager
    def started(cls, folder: Path, pattern: Path) -> Iterator[Engine]:
        """Start a server in a process of its own, which ends with this one, and point this process's Prefect at it.

        Its databases are copies of those of ``pattern``.
        """
        root = folder / "root"
        prepare_served(pattern, root)
        # In a process of its own, since Prefect reads its settings when it is imported, which a test may have done.
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            assert url.startswith("http"), "the embedded server did not start"
            from prefect.events.worker import EventsWorker
            from prefect.logging.handlers import APILogWorker
            from prefect.settings import (
                PREFECT_API_AUTH_STRING,
                PREFECT_API_SSL_CERT_FILE,
                PREFECT_API_URL,
                PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
                PREFECT_HOME,
                PREFECT_LOCAL_STORAGE_PATH,
                PREFECT_RESULTS_DEFAULT_SERIALIZER,
                temporary_settings,
            )

            home = Layout(root).prefect
            settings = {
                PREFECT_API_URL: url,
                PREFECT_API_AUTH_STRING: credentials(root).basic,
                # Each client reads all authorities of the world, of which a server on loopback needs none.
                PREFECT_API_SSL_CERT_FILE: _one_authority(folder),
                PREFECT_HOME: home,
                PREFECT_LOCAL_STORAGE_PATH: home / "results",
                PREFECT_RESULTS_DEFAULT_SERIALIZER: "json",
                # The end of a heartbeat's thread costs each run up to a second.
                PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
            }
            with temporary_settings(updates=settings):
                yield cls(root, url, pattern)
                # What is still to be sent would be tried again and again at exit, when the server has gone.
                EventsWorker.drain_all(timeout=60)
                APILogWorker.drain_all(timeout=60)
        finally:
            server.stdin.close()
            server.wait(timeout=300)

    def prepare(self, root: Path) -> None:
        """Make a root ready for tracking by a copy of this one's empty database: migrations take ten seconds."""
        _prepare(self.pattern, root, prefect=False)


def prepare_served(pattern: Path, root: Path) -> None:
    """Make a root ready to be served, or for a command with a server of its own, by a copy of both databases."""
    _make(pattern)
    _prepare(pattern, root, prefect=True)


def _make(pattern: Path) -> None:
    """Make the pattern unless it exists, under another name: a killed session leaves nothing half-made."""
    with locked_file(pattern.with_suffix(".lock")):
        if not pattern.exists():
            fresh = pattern.with_suffix(".new")
            shutil.rmtree(fresh, ignore_errors=True)
            # In a separate process, since Prefect's settings of the root go into the environment.
            subprocess.run([sys.executable, "-c", _DATABASES, str(fresh)], check=True, env=clean_environment())
            fresh.rename(pattern)


@contextmanager
def tracking_copied(pattern: Path) -> Iterator[Callable[[Path], None]]:
    """Let roots that ask for MLflow's database in this process have a copy of the one that was made first."""
    honest = prepare_tracking

    def prepared(root: Path) -> None:
        wanted = has_own_database(root) and recorded_server(root) is None
        if wanted and not Layout(root).mlflow_database.exists():
            _make(pattern)
            _prepare(pattern, root, prefect=False)
        honest(root)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.tracking.runs.prepare_tracking", prepared)
        yield prepared


def _one_authority(folder: Path) -> str:
    end = "-----END CERTIFICATE-----"
    file = folder / "authority.pem"
    file.write_text(Path(certifi.where()).read_text().partition(end)[0] + end + "\n")
    return str(file)


def _prepare(pattern: Path, root: Path, *, prefect: bool) -> None:
    layout = Layout(root).prepare()
    _copy(Layout(pattern).mlflow_database, layout.mlflow_database, layout)
    if prefect:
        _copy(prefect_database(pattern), prefect_database(root), layout)


# Where MLflow's database names the folder of artifacts before the first run.
_PLACES = (("unitball_place", "artifacts"), ("experiments", "artifact_location"))


def _copy(source: Path, target: Path, layout: Layout) -> None:
    workplace, here = layout.prefect, layout.artifacts.as_uri()
    # Through SQLite, since the server may have it open.
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        old.backup(new)
        if target == layout.mlflow_database:
            # A root that was moved looks for the old place in all columns of all tables.
            ((before,),) = new.execute("SELECT artifacts FROM unitball_place")
            with new:
                for table, column in _PLACES:
                    new.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (before, here))
    target.chmod(0o600)
    mark = engine_process.high_water_mark_of(target)
    engine_process.stamp_of(target, workplace).write_text(f"{mark} {target.stat().st_ino}")
