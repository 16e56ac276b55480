"""The engine under a root: Prefect's and MLflow's settings and databases, its servers, their processes.

Prefect reads its settings when it is imported, so this module imports neither it nor MLflow at its top level.

*What is used* of Prefect 3.8 and MLflow 3.17: Prefect's application (``create_app``) with its settings for
authentication, CSRF, CORS and leases; ``Runner.add_flow``, which runs a flow in memory; ``mlflow server --app-name
basic-auth``, whose password a wrapper sets.

*What is not*, with authentication on:

- Prefect's own ephemeral server: after ``kill -9`` of the command it goes on, and its port is chosen first and bound
  later, so that another user can take it and be shown the password; its first flow starts after 27 to 55 s, ours after
  18 to 35;
- ``prefect server start``: opens its port itself, does not end with the process that started it, and two at once meet
  ``database is locked``;
- ``prefect.serve``, work pools and ``prefect worker``: they follow entry points, pull steps and job variables that a
  holder of the secret sets on the server;
- process managers (``honcho``, ``supervisor``, ``circus``): after ``kill -9`` of the manager everything it had started
  goes on.

*What is kept by hand here*, and what fails without it (:mod:`tasks.host.engine_process` and
``deployments/serving.py`` have the rest):

- :func:`prepare_engine`, databases, server and imports side by side: one after the other they take the sum; together
  the first ``train`` of a root took 15 s, the next 10 s;
- :func:`wait_for_server`, one request on a port that is open already: Prefect's own way asks ten times a second; the
  end of a server that does not start is known at once;
- :func:`quick_flows`: each run waits up to a second for the heartbeat thread;
- ``marked_runs`` and ``crash_interrupted_runs`` of ``tasks/host/interrupted.py``:
  test_only_runs_of_dead_processes_are_called_crashed, test_the_runner_killed_in_the_middle,
  test_a_killed_command_leaves_no_server_and_no_run_that_runs_for_ever;
- :class:`GuardedProcess` and ``tasks/host/process_guard.py``: test_the_leash_ends_the_whole_process_group, and the
  last one above;
- ``use_own_server`` of ``tasks/runtime/services.py``: test_the_secret_is_shown_to_the_roots_own_server_only.
"""

import atexit
import base64
import fcntl
import gc
import hashlib
import http.client
import importlib.metadata
import json
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from storage.atomic import writing
from storage.errors import StorageError
from storage.layout import SERVED_VARIABLE, Layout
from tasks.host import engine_process, process_guard
from tasks.host.places import settle
from tasks.runtime.services import Credentials, credentials, running_servers, served_lock, use_own_server
from tasks.runtime.settings import (
    EMBEDDED_VARIABLE,
    MLFLOW_VARIABLE,
    current_root,
    has_own_database,
    keep_private,
    own_database,
    recorded_server,
    recorded_servers,
    require_server,
    restoring,
)

_LOG_LIMIT = 1_000_000


class GuardedProcess(subprocess.Popen[bytes]):
    """A command that ends, with its process group, when this process does.

    Parameters
    ----------
    command : sequence of str
    log : Path
        File to which its output is appended; emptied beyond a megabyte.
    environment : mapping of str to str
        The whole of it.
    pass_fds : tuple of int
        Open files that the command gets.

    Raises
    ------
    storage.errors.StorageError
        If the log cannot be written.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], pass_fds: tuple[int, ...] = ()
    ) -> None:
        self.log = log
        with writing(log), os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            if output.tell() > _LOG_LIMIT:
                output.truncate(0)
            self._logged_from = output.tell()
            super().__init__(
                # Isolated and without site packages: it needs neither, and starts in a few milliseconds.
                [sys.executable, "-I", "-S", process_guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=pass_fds,
                # Ctrl-C reaches the whole terminal; the order of stopping is this process's to choose.
                start_new_session=True,
            )

    def logged(self) -> list[str]:
        """Return the lines that it has written and that are not empty."""
        with self.log.open("rb") as file:
            file.seek(self._logged_from)
            return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]

    def trim_log(self) -> None:
        """Put a log aside that has grown beyond the limit, the one that was aside before it going.

        It is copied and cut, not renamed: the command has it open for appending.
        """
        with suppress(OSError):
            if self.log.stat().st_size > _LOG_LIMIT:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)
                self._logged_from = 0

    def stop(self) -> None:
        """End it, as the end of this process would: SIGTERM, and after a while SIGKILL to its group."""
        assert self.stdin is not None
        with suppress(BrokenPipeError):
            self.stdin.close()
        try:
            self.wait(process_guard.GRACE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()


STARTUP_SECONDS = 120
_SERVER_PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"

# Bytes that a full disk still has, by the sizes of its blocks.
_NO_ROOM = 2**20
# Nothing is sent anywhere, the console stays the command's own, and a message has room; what a user has set is left
# alone.
_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
    # What a message between parties may have (:mod:`tasks.federation.messages`): counts of a wide table are megabytes.
    "PREFECT_SERVER_API_MAX_PARAMETER_SIZE": str(64 * 2**20),
}
# The embedded server has no page, no schedules and no automations, so it need not start them. Nor does a browser ever
# hold its password, which is what protection against forged requests is for.
_EMBEDDED_SERVER = {
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    # It would import Prefect's integrations, Dask's among them, to see whether blocks are to be registered.
    "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # Each event of a task would be a separate transaction; the last ones are written when the server stops.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
}


class EngineError(Exception):
    """Prefect's or MLflow's part could not be started; the message says where the details are."""


def prefect_database(root: Path) -> Path:
    """Return Prefect's SQLite file under a root."""
    return Layout(root).prefect / "prefect.db"


@cache
def _mark(package: str) -> int:
    """Return a number that stands for the installed version of a package."""
    text = f"{package} {importlib.metadata.version(package)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % (2**31 - 1) + 1


def _missing_databases(root: Path, *, looked_at: bool = False) -> tuple[dict[str, object], dict[str, object]]:
    """Return what to ask the engine's processes for: Prefect's database, MLflow's; nothing where it is as it must be.

    The notes beside the files say so; the files themselves may be open in this very process.

    Parameters
    ----------
    root : Path
    looked_at : bool
        Whether databases on a server are looked at too, which may have been restored from a dump of an older version.
    """
    layout = Layout(root)
    files = {"prefect": prefect_database(root), "mlflow": layout.mlflow_database}
    made = {name: engine_process.is_stamped(file, layout.prefect, _mark(name)) for name, file in files.items()}
    prefect: dict[str, object] = {"prefect": str(files["prefect"]), "prefect_mark": _mark("prefect")}
    mlflow: dict[str, object] = {"mlflow": str(files["mlflow"]), "mlflow_mark": _mark("mlflow")}
    mlflow["artifacts"] = str(layout.artifacts)
    if recorded_server(root) is not None:
        # Prefect's server brings its own up to date; a file of MLflow's that is still there is to be moved.
        made = {"prefect": not looked_at, "mlflow": not (looked_at or files["mlflow"].exists())}
        prefect, mlflow = {"prefect_server": True}, {**mlflow, "mlflow_server": True}
    return ({} if made["prefect"] else prefect), ({} if made["mlflow"] else mlflow)


def keep_quiet() -> None:
    """Disable telemetry and console output of Prefect and MLflow, unless the user has set them."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def _use_environment(root: Path) -> None:
    keep_quiet()
    os.environ.update(_environment(root))
    if not _own_server_wanted():
        use_own_server(root)


def _environment(root: Path) -> dict[str, str]:
    """Return the settings of a root's own server, and of runs wherever the server is."""
    home = Layout(root).prefect
    # Results are references and belong to this root, whoever serves the API.
    settings = {
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "results"),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    }
    if _own_server_wanted():
        server, file = recorded_server(root), f"sqlite+aiosqlite:///{prefect_database(root)}"
        settings |= {
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": server.database("prefect", "asyncpg") if server else file,
            # A file is made before it is served (:mod:`tasks.host.engine_process`): a server need not look again.
            "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": str(server is not None).lower(),
        }
    return settings


def _own_server_wanted() -> bool:
    return os.environ.get("PREFECT_API_URL") in (None, "", os.environ.get(EMBEDDED_VARIABLE))


def _start(
    root: Path, asked: Mapping[str, object], settings: Mapping[str, str], *, fd: int | None = None
) -> GuardedProcess:
    """Start one of the engine's own processes."""
    home = Layout(root).prefect
    # In the environment, which only the user can read, and not on the command line: an address may hold a password.
    environment = {**_QUIET, **os.environ, "MLFLOW_BACKEND_STORE_URI": own_database(root), **settings}
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", EMBEDDED_VARIABLE):
        environment.pop(name, None)
    # -P: the folder of the script must not come first on the import path, its modules bear common names.
    command = [sys.executable, "-P", engine_process.__file__, json.dumps({"workplace": str(home), **asked})]
    process = GuardedProcess(command, home / "engine.log", environment, () if fd is None else (fd,))
    atexit.register(process.stop)
    return process


def _finish(process: GuardedProcess) -> None:
    """Wait for the end; raise with the last line of the log if it was not a good one."""
    if process.wait() != 0:
        raise EngineError(_reason(process))


def is_full(place: Path) -> bool:
    """Whether the disk that holds a folder has no room for anything."""
    return shutil.disk_usage(place).free < _NO_ROOM


def _reason(process: GuardedProcess) -> str:
    lines, place = process.logged(), process.log.parent
    # What was logged last is cut where nothing more could be written.
    if is_full(place):
        return f"the engine could not start, because the disk that holds {place} is full; free some space there"
    return f"{lines[-1] if lines else 'the engine ended without a message'} (details in {process.log})"


def ask_server(address: tuple[str, int], secret: Credentials) -> http.client.HTTPConnection:
    """Send a server that starts on an open port what it is to answer, for :func:`wait_for_server`.

    It makes its routes when it is asked first, which takes a third of a second: best while others import.
    """
    connection = http.client.HTTPConnection(*address, timeout=STARTUP_SECONDS)
    authorization = base64.b64encode(secret.basic.encode()).decode()
    connection.request("GET", "/api/admin/version", headers={"Authorization": f"Basic {authorization}"})
    return connection


def wait_for_server(connection: http.client.HTTPConnection, process: GuardedProcess) -> None:
    """Wait until the server has answered :func:`ask_server`: no polling.

    Raises
    ------
    EngineError
        If it ends, or does not answer in two minutes.
    """
    try:
        deadline = time.monotonic() + STARTUP_SECONDS
        # Where the port stays open in this process, a connection to a server that has ended would wait for ever.
        while not select.select([connection.sock], [], [], 0.2)[0]:
            if process.poll() is not None:
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


_servers: dict[Path, GuardedProcess] = {}


def _settle(root: Path) -> None:
    """Let MLflow's addresses be those of where the root lies now."""
    server, layout = recorded_server(root), Layout(root)
    shown = str(layout.mlflow_database) if server is None else f"MLflow's database on {server.shown}"
    settle(own_database(root), layout.artifacts, shown=shown)


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
    # Of what is there already looking costs little.
    for process in [_start(root, asked, {}) for asked in _missing_databases(root, looked_at=True) if asked]:
        _finish(process)
    _settle(root)


def prepare_tracking(root: Path) -> None:
    """Make MLflow's database alone, or ask the server that was named; costs reading one header where it is there.

    Raises
    ------
    tasks.runtime.settings.TrackingError
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
    if missing := _missing_databases(root)[1]:
        _usable(root)
        _finish(_start(root, missing, {}))
    _settle(root)


def start_server(root: Path, listener: socket.socket, settings: Mapping[str, str]) -> GuardedProcess:
    """Start a whole Prefect server (pages, schedules, automations) on an open socket, behind the root's secret.

    The databases must be there (:func:`prepare_databases`). It ends with this process, or when it is stopped;
    :func:`ask_server` and :func:`wait_for_server` wait until it answers.

    Parameters
    ----------
    root : Path
    listener : socket.socket
        Bound and listening; it stays open here, so that no other process can answer at its address while the server
        restarts.
    settings : mapping of str to str
        Prefect's settings as environment variables.
    """
    asked = {"socket": listener.fileno(), "whole": True}
    return _start(root, asked, {_SERVER_PASSWORD: credentials(root).basic, **settings}, fd=listener.fileno())


def _usable(root: Path) -> Path:
    root = Layout(root).root
    if odd := sorted(set(str(root)) & set("?#%\n")):
        raise StorageError(
            f"the root {str(root)!r} contains {odd[0]!r}, which database addresses cannot contain; choose another root"
        )
    keep_private()
    Layout(root).prepare()
    # A separate name: threads of one process may look at once.
    with writing(root), tempfile.NamedTemporaryFile(dir=Layout(root).prefect, prefix=".probe-"):
        pass
    return root


def _import_ahead() -> None:
    """Import what a run needs. What is imported stays: looking for garbage in it costs a sixth of the time."""
    gc.disable()
    # skops imports all packages of scikit-learn to list its estimators; this one imports Dask, and holds none.
    adapter = "sklearn.externals.array_api_compat.dask"
    left_out = adapter not in sys.modules
    if left_out:
        sys.modules[adapter] = None  # type: ignore[assignment]  # no such module
    try:
        # First, because it walks every module that is there.
        import skops.io  # noqa: F401 - imported ahead of its use

        # isort: split
        import mlflow.sklearn
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - imported ahead of its use
        import prefect  # noqa: F401 - imported ahead of its use
    finally:
        if left_out:
            del sys.modules[adapter]
        gc.freeze()
        gc.enable()


def import_flow(place: str) -> object:
    """Import what a run needs and return the flow at ``module.function``: for a process that is started for one run.

    Parameters
    ----------
    place : str
    """
    # As a command does.
    gc.set_threshold(50_000)
    _import_ahead()
    from prefect.flows import load_flow_from_entrypoint

    return load_flow_from_entrypoint(place, use_placeholder_flow=False)


@dataclass(frozen=True, slots=True)
class _Starting:
    """A server that was started, what it was asked, and what makes MLflow's database meanwhile."""

    server: GuardedProcess
    asked: http.client.HTTPConnection
    migration: GuardedProcess | None


_ahead: dict[Path, _Starting] = {}


def _begin(root: Path) -> _Starting:
    secret = credentials(root)
    prefect_part, mlflow_part = _missing_databases(root)
    # The port is bound here and handed over, so that nobody else can answer there and be shown the secret.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begin = {**prefect_part, "socket": listener.fileno(), "whole": False}
        settings = {**_environment(root), **_EMBEDDED_SERVER, _SERVER_PASSWORD: secret.basic}
        server = _start(root, begin, settings, fd=listener.fileno())
        asked = ask_server(listener.getsockname()[:2], secret)
    return _Starting(server, asked, _start(root, mlflow_part, {}) if mlflow_part and has_own_database(root) else None)


@contextmanager
def started_ahead(root: Path, module: str) -> Iterator[None]:
    """Start the server of a run while the run is still checked: :func:`prepare_engine` waits for it.

    Only for the first run of a process, whose checks first import what they need. Where they raise, it is stopped.

    Parameters
    ----------
    root : Path
    module : str
        Name of the module of the checks.
    """
    if module not in sys.modules and "prefect" not in sys.modules and _own_server_wanted() and has_own_database(root):
        root = _usable(root)
        _ahead[root] = _begin(root)
    try:
        if root in _ahead:
            # Before the modules of the checks: skops looks each function of SciPy up in all modules, in their order.
            import scipy.special  # noqa: F401 - imported ahead of its use
        yield
    except BaseException:
        if (begun := _ahead.pop(root, None)) is not None:
            begun.asked.close()
            for process in (begun.server, begun.migration):
                if process is not None:
                    process.stop()
        raise


def prepare_engine(root: Path) -> None:
    """Make Prefect and MLflow ready under ``root``: settings, databases, and a server of this process's own.

    Call it before anything imports Prefect. Where ``PREFECT_API_URL`` is set, that server is used and only the rest
    is done. Where Prefect is already imported (a test harness, a served run), its settings are fixed and are left
    alone. The server listens on a free loopback port, refuses clients without the root's secret, and ends with
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
    if root in _servers and _servers[root].poll() is None:
        return
    begun = _ahead.pop(root, None) or _begin(root)
    os.environ["PREFECT_API_URL"] = os.environ[EMBEDDED_VARIABLE] = f"http://127.0.0.1:{begun.asked.port}/api"
    os.environ["PREFECT_API_AUTH_STRING"] = credentials(root).basic
    # The imports take as long as the server's start and can go beside it.
    _import_ahead()
    # At exit the last events are sent within a second or two; that they are still on their way is no warning.
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)
    if begun.migration is not None:
        _finish(begun.migration)
    if has_own_database(root):
        _settle(root)
    wait_for_server(begun.asked, begun.server)
    _servers[root] = begun.server
    from tasks.host import interrupted

    if interrupted.has_dead_processes(root):
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            interrupted.crash_interrupted_runs(client, root)


@contextmanager
def quick_flows() -> Iterator[None]:
    """Run flows of this process: marked as its own, and on the embedded server without the heartbeat thread.

    By the mark the next start finds the runs of a process that was killed. The end of the heartbeat thread costs each
    flow run up to a second; heartbeats let a server notice that a run has died, and a run on the embedded server, which
    dies with it, has no observer.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from tasks.host.interrupted import marked_runs

    embedded = os.environ.get(EMBEDDED_VARIABLE) and _own_server_wanted()
    with ExitStack() as stack:
        stack.enter_context(marked_runs(current_root()))
        if embedded:
            # Prefect reads all its settings anew for it.
            stack.enter_context(temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}))
        yield


_ATTEMPTS, _PAUSE = 20, 0.05


@contextmanager
def being_served(root: Path) -> Iterator[Callable[[], bool]]:
    """Hold the lock that says that this process serves a root; the kernel drops it with the process.

    Until it is left, neither this process nor one that it starts creates the root again where it was moved from.

    Yields what tells whether the root still lies there (:func:`lying_there`).

    Raises
    ------
    StorageError
        If another process serves it.
    """
    with served_lock(root).open("ab") as file:
        for attempt in range(_ATTEMPTS):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Whoever looks holds it, shared, for an instant.
                if attempt == _ATTEMPTS - 1:
                    where = ", ".join(sorted(recorded_servers(root).values())) or "by a starting process"
                    raise StorageError(
                        f"{root} is already being served ({where}): stop that server first, or give another --root"
                    ) from None
                time.sleep(_PAUSE)
        with lying_there(root) as there, restoring(SERVED_VARIABLE):
            os.environ[SERVED_VARIABLE] = str(root.resolve())
            yield there


@contextmanager
def lying_there(root: Path) -> Iterator[Callable[[], bool]]:
    """Yield what tells whether a root that is being served still lies where it did: moved, its path names nothing.

    Or another root that a process at that path has made or found.
    """
    with served_lock(root).open("rb") as file:

        def there() -> bool:
            try:
                # Held open, since a file system may number files anew that nobody has open.
                return os.path.samestat(os.fstat(file.fileno()), served_lock(root).stat())
            except FileNotFoundError:
                return False

        yield there


@contextmanager
def on_running_server(root: Path) -> Iterator[bool]:
    """Run flows of this process on the Prefect server of a root that is being served; yield whether there is one.

    Where ``PREFECT_API_URL`` is set, that server is the user's choice and is left alone.
    """
    servers = {} if os.environ.get("PREFECT_API_URL") else running_servers(root)
    if "prefect" not in servers:
        yield False
        return
    keep_quiet()
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_LOCAL_STORAGE_PATH,
        PREFECT_RESULTS_DEFAULT_SERIALIZER,
        temporary_settings,
    )

    # Results are references and belong to this root, whoever serves the API.
    changed = {
        PREFECT_API_URL: servers["prefect"],
        PREFECT_API_AUTH_STRING: credentials(root).basic,
        PREFECT_LOCAL_STORAGE_PATH: Layout(root).prefect / "results",
        PREFECT_RESULTS_DEFAULT_SERIALIZER: "json",
    }
    # Where pages link to.
    linked = {"PREFECT_API_URL": servers["prefect"], MLFLOW_VARIABLE: servers.get("mlflow", "")}
    with restoring(*linked), temporary_settings(updates=changed):
        os.environ.update({name: value for name, value in linked.items() if value})
        yield True
