"""One Prefect server for a whole test session, and roots that need no migration of their own."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.layout import Layout
from tasks.runtime import engine_process
from tasks.runtime.credentials import credentials
from tasks.runtime.engine import prefect_database
from tests.support.processes import clean_environment

_SERVE = """
import os, sys
from pathlib import Path
from tasks.runtime.engine import prepare_engine
prepare_engine(Path(sys.argv[1]))
print(os.environ["PREFECT_API_URL"], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Engine:
    """A running server, and the root it was started under: the pattern of prepared roots."""

    root: Path
    url: str

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Engine]:
        """Start a server in a process of its own, which ends with this one, and point this process's Prefect at it."""
        root = folder / "root"
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
                PREFECT_HOME: home,
                PREFECT_LOCAL_STORAGE_PATH: home / "results",
                PREFECT_RESULTS_DEFAULT_SERIALIZER: "json",
            }
            with temporary_settings(updates=settings, restore_defaults={PREFECT_FLOWS_HEARTBEAT_FREQUENCY}):
                yield cls(root, url)
                # What is still to be sent would be tried again and again at exit, when the server has gone.
                EventsWorker.drain_all(timeout=10)
                APILogWorker.drain_all(timeout=10)
        finally:
            server.stdin.close()
            server.wait(timeout=30)

    def prepare(self, root: Path) -> None:
        """Make a root ready for tracking by a copy of this one's empty database: migrations take ten seconds."""
        layout, pattern = Layout(root).prepare(), Layout(self.root)
        _copy(pattern.mlflow_database, layout.mlflow_database, layout.prefect)

    def prepare_served(self, root: Path) -> None:
        """Make a root ready to be served: with a copy of this one's Prefect database, runs and all."""
        self.prepare(root)
        _copy(prefect_database(self.root), prefect_database(root), Layout(root).prefect)


def _copy(source: Path, target: Path, workplace: Path) -> None:
    # Through SQLite, since the server may have it open.
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        old.backup(new)
    mark = engine_process.mark_of(target)
    engine_process.seal_of(target, workplace).write_text(f"{mark} {target.stat().st_ino}")
