"""The engine under a root: Prefect's and MLflow's settings and databases, and the embedded Prefect server.

Prefect reads its settings when it is imported, so this module imports neither it nor MLflow at its top level.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import http.client
import importlib.metadata
import logging
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.atomic import writing
from storage.errors import StorageError
from storage.layout import Layout
from tasks.runtime import engine_process
from tasks.runtime.credentials import Credentials, credentials, use_own_server
from tasks.runtime.databases import recorded_server
from tasks.runtime.permissions import keep_private
from tasks.runtime.processes import LeashedProcess
from tasks.runtime.settings import EMBEDDED_VARIABLE, current_root
from tasks.runtime.tracking_server import has_own_database, own_database, require_server

STARTUP_SECONDS = 120

# Nothing is sent anywhere, and the console stays the command's own; what a user has set is left alone.
_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
}
# The embedded server has no page, no schedules and no automations, so it need not start them. Nor does a browser ever
# hold its password, which is what protection against forged requests is for.
_EMBEDDED_SERVER = {
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}


class EngineError(Exception):
    """Prefect's or MLflow's part could not be started; the message says where the details are."""


def prefect_database(root: Path) -> Path:
    """Return Prefect's SQLite file under a root."""
    return Layout(root).prefect / "prefect.db"


def _prefect_url(root: Path) -> str:
    server = recorded_server(root)
    return f"sqlite+aiosqlite:///{prefect_database(root)}" if server is None else server.database("prefect", "asyncpg")


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
        if recorded_server(root) is not None:
            # Prefect's server brings its own up to date; a file of MLflow's that is still there is to be moved.
            return cls(prefect=False, mlflow=Layout(root).mlflow_database.exists())
        return cls(
            prefect=not engine_process.is_sealed(prefect_database(root), home, _mark("prefect")),
            mlflow=not engine_process.is_sealed(Layout(root).mlflow_database, home, _mark("mlflow")),
        )


def has_databases(root: Path) -> bool:
    """Whether a run finds Prefect's and MLflow's databases as it needs them, and need not make them first."""
    needs = _Needs.of(root)
    return not ((needs.prefect and _own_server_wanted()) or (needs.mlflow and has_own_database(root)))


def keep_quiet() -> None:
    """Let Prefect and MLflow send nothing anywhere and leave the console alone, unless the user has said otherwise."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def _use_environment(root: Path) -> None:
    keep_quiet()
    home = Layout(root).prefect
    # Results are references and belong to this root, whoever serves the API.
    os.environ["PREFECT_LOCAL_STORAGE_PATH"] = str(home / "results")
    os.environ["PREFECT_RESULTS_DEFAULT_SERIALIZER"] = "json"
    if _own_server_wanted():
        os.environ["PREFECT_HOME"] = str(home)
        os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = _prefect_url(root)
    else:
        use_own_server(root)


def _own_server_wanted() -> bool:
    return os.environ.get("PREFECT_API_URL") in (None, "", os.environ.get(EMBEDDED_VARIABLE))


def _start(
    root: Path, arguments: Sequence[str], settings: Mapping[str, str], *, fd: int | None = None
) -> LeashedProcess:
    """Start one of the engine's own processes."""
    home = Layout(root).prefect
    # In the environment, which only the user can read, and not on the command line: an address may hold a password.
    environment = {**_QUIET, **os.environ, "MLFLOW_BACKEND_STORE_URI": own_database(root), **settings}
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", EMBEDDED_VARIABLE):
        environment.pop(name, None)
    # -P: the folder of the script must not come first on the import path, its modules bear common names.
    command = [sys.executable, "-P", engine_process.__file__, "--workplace", str(home), *arguments]
    process = LeashedProcess(command, home / "engine.log", environment, () if fd is None else (fd,))
    atexit.register(process.stop)
    return process


def _finish(process: LeashedProcess) -> None:
    """Wait for the end; raise with the last line of the log if it was not a good one."""
    if process.wait() != 0:
        raise EngineError(_reason(process))


def _reason(process: LeashedProcess) -> str:
    lines = process.logged()
    return f"{lines[-1] if lines else 'the engine ended without a message'} (details in {process.log})"


def wait_for_server(address: tuple[str, int], process: LeashedProcess) -> None:
    """Wait until the server answers on a port that was open before it started: one request, no polling.

    Raises
    ------
    EngineError
        If it ends, or does not answer in two minutes.
    """
    connection = http.client.HTTPConnection(*address, timeout=STARTUP_SECONDS)
    try:
        connection.request("GET", "/api/health")
        deadline = time.monotonic() + STARTUP_SECONDS
        # Where the port stays open in this process, a connection to a server that has ended would wait for ever.
        while not select.select([connection.sock], [], [], 0.2)[0]:
            if process.exit_code() is not None:
                raise EngineError(_reason(process))
            if time.monotonic() > deadline:
                raise TimeoutError
        status = connection.getresponse().status
    except TimeoutError:
        process.stop()
        raise EngineError(f"the Prefect server did not answer in {STARTUP_SECONDS} s; see {process.log}") from None
    except OSError:
        process.wait()
        raise EngineError(_reason(process)) from None
    finally:
        connection.close()
    if status != 200:
        process.stop()
        raise EngineError(f"the Prefect server answered with {status}; see {process.log}")


_servers: dict[Path, LeashedProcess] = {}


def _database_arguments(root: Path, needs: _Needs) -> tuple[list[str], list[str]]:
    layout = Layout(root)
    if recorded_server(root) is not None:
        move = ["--mlflow-server", "--mlflow", str(layout.mlflow_database), "--artifacts", str(layout.artifacts)]
        return (["--prefect-server"] if needs.prefect else []), (move if needs.mlflow else [])
    prefect = ["--prefect", str(prefect_database(root)), "--prefect-mark", str(_mark("prefect"))]
    mlflow = ["--mlflow", str(layout.mlflow_database), "--mlflow-mark", str(_mark("mlflow"))]
    mlflow += ["--artifacts", str(layout.artifacts)]
    return (prefect if needs.prefect else []), (mlflow if needs.mlflow else [])


def prepare_databases(root: Path) -> None:
    """Make Prefect's and MLflow's databases of ``root`` where they are missing or of another version.

    A file is made aside and renamed, so that a kill leaves nothing half-made; two processes at once make it once.
    PostgreSQL's are upgraded where they are, one transaction a step; what a root kept in MLflow's file before is moved.

    Raises
    ------
    storage.errors.StorageError
        If the root cannot be written.
    EngineError
        If a migration fails, with its last line.
    """
    root = _usable(root)
    _use_environment(root)
    # A server's databases may have been restored from a dump of an older version: what is there already costs little.
    needs = _Needs.of(root) if recorded_server(root) is None else _Needs(prefect=True, mlflow=True)
    parts = [arguments for arguments in _database_arguments(root, needs) if arguments]
    for process in [_start(root, arguments, {}) for arguments in parts]:
        _finish(process)


def prepare_tracking(root: Path) -> None:
    """Make MLflow's database alone, or ask the server that was named; costs reading one header where it is there.

    Raises
    ------
    tasks.runtime.tracking_server.TrackingError
        If a server was named and refuses.
    storage.errors.StorageError
        If the root cannot be written.
    EngineError
        If the migration fails, with its last line.
    """
    root = Layout(root).root
    if not has_own_database(root):
        require_server(root)
        return
    if not _Needs.of(root).mlflow:
        return
    _usable(root)
    _finish(_start(root, _database_arguments(root, _Needs(prefect=False, mlflow=True))[1], {}))


def _authentication(secret: Credentials) -> dict[str, str]:
    return {"PREFECT_SERVER_API_AUTH_STRING": secret.basic}


def start_server(root: Path, listener: socket.socket, settings: Mapping[str, str]) -> LeashedProcess:
    """Start a whole Prefect server (pages, schedules, automations) on an open socket, behind the root's secret.

    The databases must be there (:func:`prepare_databases`). It ends with this process, or when it is stopped;
    :func:`wait_for_server` waits until it answers.

    Parameters
    ----------
    root : Path
    listener : socket.socket
        Bound and listening; it stays open here, so that nobody else can answer at its address while the server is
        started again.
    settings : mapping of str to str
        Prefect's settings as environment variables.
    """
    arguments = ["--whole", "--socket", str(listener.fileno())]
    return _start(root, arguments, {**_authentication(credentials(root)), **settings}, fd=listener.fileno())


def _usable(root: Path) -> Path:
    root = Layout(root).root
    if odd := sorted(set(str(root)) & set("?#%\n")):
        raise StorageError(f"the root {str(root)!r} contains {odd[0]!r}, which database addresses cannot carry")
    keep_private()
    Layout(root).prepare()
    # A name of its own: threads of one process may look at once.
    with writing(root), tempfile.NamedTemporaryFile(dir=Layout(root).prefect, prefix=".probe-"):
        pass
    return root


def _import_ahead() -> None:
    """Import what a run needs. What is imported stays: looking for garbage in it costs a sixth of the time."""
    gc.disable()
    try:
        # First, because it walks every module that is there.
        import skops.io  # noqa: F401 - imported ahead of its use

        # isort: split
        import mlflow.sklearn
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - imported ahead of its use
        import prefect  # noqa: F401 - imported ahead of its use
    finally:
        gc.freeze()
        gc.enable()


def prepare_engine(root: Path) -> None:
    """Make Prefect and MLflow ready under ``root``: settings, databases, and a server of this process's own.

    Call it before anything imports Prefect. Where ``PREFECT_API_URL`` is set, that server is used and only the rest
    is done. Where Prefect is already imported (a test harness, a served run), its settings are fixed and are left
    alone. The server listens on a free loopback port, refuses whoever does not have the root's secret, and ends with
    this process, even if that is killed; nothing but loopback is contacted.

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
    if not has_own_database(root):
        # At once: not after a server was started for a run that cannot be logged.
        require_server(root)
    if root in _servers and _servers[root].exit_code() is None:
        return
    secret = credentials(root)
    prefect_part, mlflow_part = _database_arguments(root, _Needs.of(root))
    # The port is bound here and handed over, so that nobody else can answer there and be shown the secret.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        arguments = [*prefect_part, "--socket", str(listener.fileno())]
        settings = {**_EMBEDDED_SERVER, **_authentication(secret)}
        server = _start(root, arguments, settings, fd=listener.fileno())
    migration = _start(root, mlflow_part, {}) if mlflow_part and has_own_database(root) else None
    os.environ["PREFECT_API_URL"] = os.environ[EMBEDDED_VARIABLE] = f"http://127.0.0.1:{address[1]}/api"
    os.environ["PREFECT_API_AUTH_STRING"] = secret.basic
    # The imports take as long as the server's start and can go beside it.
    _import_ahead()
    # At exit the last events are sent within a second or two; that they are still on their way is no warning.
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)
    if migration is not None:
        _finish(migration)
    wait_for_server(address, server)
    _servers[root] = server
    from tasks.runtime import interrupted

    if interrupted.has_dead_processes(root):
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            interrupted.crash_interrupted_runs(client, root)


@contextmanager
def quick_flows() -> Iterator[None]:
    """Run flows of this process: marked as its own, and on the embedded server without the heartbeat thread.

    By the mark the next start finds the runs of a process that was killed. The end of the heartbeat thread costs each
    flow run up to a second; heartbeats let a server notice that a run has died, and a run on the embedded server, which
    dies with it, has nobody to notice.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from tasks.runtime.interrupted import marked_runs

    embedded = os.environ.get(EMBEDDED_VARIABLE) and _own_server_wanted()
    changed = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} if embedded else {}
    with marked_runs(current_root()), temporary_settings(updates=changed):
        yield
