"""The engine under a root: Prefect's and MLflow's settings and databases, and the embedded Prefect server.

Prefect reads its settings when it is imported, so this module imports neither it nor MLflow at its top level.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import logging
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from storage.atomic import writing
from storage.errors import StorageError
from storage.layout import Layout
from tasks.runtime import engine_process

__all__ = [
    "EngineError",
    "EngineProcess",
    "prefect_database",
    "prepare_databases",
    "prepare_engine",
    "prepare_tracking",
    "quick_flows",
    "start_server",
    "tracking_uri",
]

STARTUP_SECONDS = 120
_LOG_LIMIT = 1_000_000
# Says that PREFECT_API_URL is a parent's embedded server and not the user's choice.
_EMBEDDED = "UNITBALL_EMBEDDED_API_URL"

# Nothing is sent anywhere, and the console stays the command's own; what a user has set is left alone.
_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(STARTUP_SECONDS),
}
# The embedded server has no page, no schedules and no automations, so it need not start them.
_EMBEDDED_SERVER = {
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}


class EngineError(Exception):
    """Prefect's or MLflow's part could not be started; the message says where the details are."""


def tracking_uri(root: Path) -> str:
    """Return MLflow's tracking URI for a root."""
    return f"sqlite:///{Layout(root).mlflow_database}"


def prefect_database(root: Path) -> Path:
    """Return Prefect's SQLite file under a root."""
    return Layout(root).prefect / "prefect.db"


def _mark(package: str) -> int:
    """Return a number that stands for the installed version of a package."""
    text = f"{package} {importlib.metadata.version(package)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % (2**31 - 1) + 1


@dataclass(frozen=True, slots=True)
class _Needs:
    """Which databases are not there, or were made by another version."""

    prefect: bool
    mlflow: bool

    @classmethod
    def of(cls, root: Path) -> _Needs:
        """Look at the notes beside the files; the files themselves may be open in this very process."""
        home = Layout(root).prefect
        return cls(
            prefect=not engine_process.is_sealed(prefect_database(root), home, _mark("prefect")),
            mlflow=not engine_process.is_sealed(Layout(root).mlflow_database, home, _mark("mlflow")),
        )


def _use_environment(root: Path) -> None:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    home = Layout(root).prefect
    # Results are references and belong to this root, whoever serves the API.
    os.environ["PREFECT_LOCAL_STORAGE_PATH"] = str(home / "results")
    os.environ["PREFECT_RESULTS_DEFAULT_SERIALIZER"] = "json"
    if _own_server_wanted():
        os.environ["PREFECT_HOME"] = str(home)
        os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{prefect_database(root)}"
        os.environ["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "true"


def _own_server_wanted() -> bool:
    return os.environ.get("PREFECT_API_URL") in (None, "", os.environ.get(_EMBEDDED))


class EngineProcess:
    """One of the engine's own processes; it ends when this one does, however that happens."""

    def __init__(
        self,
        root: Path,
        arguments: list[str],
        *,
        listener: socket.socket | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        home = Layout(root).prefect
        self.log = home / "engine.log"
        environment = {**_QUIET, **os.environ, **settings}
        descriptors: tuple[int, ...] = ()
        if listener is not None:
            descriptors = (listener.fileno(),)
            arguments = [*arguments, "--socket", str(listener.fileno())]
        for name in ("PREFECT_API_URL", _EMBEDDED):
            environment.pop(name, None)
        with writing(self.log), self.log.open("ab") as log:
            if log.tell() > _LOG_LIMIT:
                log.truncate(0)
            self._start = log.tell()
            # -P: the folder of the script must not come first on the import path, its modules bear common names.
            self._process = subprocess.Popen(
                [sys.executable, "-P", engine_process.__file__, "--workplace", str(home), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                pass_fds=descriptors,
                # Ctrl-C is for the command; the server must still be there when the runs are marked as cancelled.
                start_new_session=True,
            )
        atexit.register(self.stop)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def wait_until_done(self) -> None:
        """Wait for the end; raise with the last line of the log if it was not a good one."""
        if self._process.wait() != 0:
            raise EngineError(self._last_words())

    def wait_until_ready(self) -> None:
        """Wait for the word that the server answers."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + STARTUP_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while remaining := max(0.0, deadline - time.monotonic()):
                if selector.select(remaining):
                    line = self._process.stdout.readline()
                    if line.strip() == b"ready":
                        return
                    if not line:
                        break
        if self._process.poll() is None and remaining == 0:
            self._process.kill()
            raise EngineError(f"the embedded Prefect server did not answer in {STARTUP_SECONDS} s; see {self.log}")
        self._process.wait()
        raise EngineError(self._last_words())

    def _last_words(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self._start)
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'the engine ended without a word'} (details in {self.log})"

    def stop(self) -> None:
        """End it: the end of its standard input is the sign."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_servers: dict[Path, EngineProcess] = {}


def _database_arguments(root: Path, needs: _Needs) -> tuple[list[str], list[str]]:
    layout = Layout(root)
    prefect = ["--prefect", str(prefect_database(root)), "--prefect-mark", str(_mark("prefect"))]
    mlflow = ["--mlflow", str(layout.mlflow_database), "--mlflow-mark", str(_mark("mlflow"))]
    mlflow += ["--artifacts", str(layout.artifacts)]
    return (prefect if needs.prefect else []), (mlflow if needs.mlflow else [])


def prepare_databases(root: Path) -> None:
    """Make Prefect's and MLflow's databases under ``root`` where they are missing or of another version.

    Each is made aside and renamed, so that a kill leaves nothing half-made; two processes at once make it once.

    Raises
    ------
    storage.errors.StorageError
        If the root cannot be written.
    EngineError
        If a migration fails, with its last line.
    """
    root = _usable(root)
    _use_environment(root)
    parts = [arguments for arguments in _database_arguments(root, _Needs.of(root)) if arguments]
    for process in [EngineProcess(root, arguments) for arguments in parts]:
        process.wait_until_done()


def prepare_tracking(root: Path) -> None:
    """Make MLflow's database alone; costs reading one header where it is there.

    Raises
    ------
    storage.errors.StorageError
        If the root cannot be written.
    EngineError
        If the migration fails, with its last line.
    """
    root = Layout(root).root
    if not _Needs.of(root).mlflow:
        return
    _usable(root)
    EngineProcess(root, _database_arguments(root, _Needs(prefect=False, mlflow=True))[1]).wait_until_done()


def start_server(root: Path, listener: socket.socket) -> EngineProcess:
    """Start a whole Prefect server (pages, schedules, automations) on an open socket; ready when it returns.

    The databases must be there (:func:`prepare_databases`). It ends with this process, or when it is stopped.

    Raises
    ------
    EngineError
        If it does not start.
    """
    host, port = listener.getsockname()[:2]
    settings = {
        "PREFECT_SERVER_API_HOST": str(host),
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_API_URL": f"http://{host}:{port}/api",
    }
    server = EngineProcess(Layout(root).root, ["--whole"], listener=listener, settings=settings)
    server.wait_until_ready()
    return server


def _usable(root: Path) -> Path:
    root = Layout(root).root
    if odd := sorted(set(str(root)) & set("?#%\n")):
        raise StorageError(f"the root {str(root)!r} contains {odd[0]!r}, which database addresses cannot carry")
    Layout(root).prepare()
    # A name of its own: threads of one process may look at once.
    with writing(root), tempfile.NamedTemporaryFile(dir=Layout(root).prefect, prefix=".probe-"):
        pass
    return root


def prepare_engine(root: Path) -> None:
    """Make Prefect and MLflow ready under ``root``: settings, databases, and a server of this process's own.

    Call it before anything imports Prefect. Where ``PREFECT_API_URL`` is set, that server is used and only the rest
    is done. Where Prefect is already imported (a test harness, a worker), its settings are fixed and are left alone.
    The server listens on a free loopback port and ends with this process, even if that is killed; nothing but
    loopback is contacted.

    Raises
    ------
    storage.errors.StorageError
        If the root cannot be written.
    EngineError
        If a database cannot be made or the server does not start.
    """
    if "prefect" in sys.modules:
        prepare_tracking(root)
        return
    root = _usable(root)
    _use_environment(root)
    if not _own_server_wanted():
        prepare_tracking(root)
        return
    if root in _servers and _servers[root].alive:
        return
    needs = _Needs.of(root)
    prefect_part, mlflow_part = _database_arguments(root, needs)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        server = EngineProcess(root, prefect_part, listener=listener, settings=_EMBEDDED_SERVER)
    migration = EngineProcess(root, mlflow_part) if mlflow_part else None
    os.environ["PREFECT_API_URL"] = os.environ[_EMBEDDED] = url
    # The imports take as long as the server's start and can go beside it.
    import mlflow.sklearn
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    import prefect  # noqa: F401

    # At exit the last events are sent within a second or two; that they are still on their way is no warning.
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)
    if migration is not None:
        migration.wait_until_done()
    server.wait_until_ready()
    _servers[root] = server


@contextmanager
def quick_flows() -> Iterator[None]:
    """Run flows without the heartbeat thread, whose end each flow run waits for up to a second.

    Heartbeats let a server notice that a worker's run has died; a run on the embedded server has nobody to notice.
    Does nothing where the server is not the embedded one.
    """
    if not os.environ.get(_EMBEDDED) or not _own_server_wanted():
        yield
        return
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield
