"""Serve on one machine: Prefect server, MLflow and the runner of the flows on loopback, stopped in order.

What is kept by hand of serving, and what fails without it (:mod:`tasks.host.engine` says what of Prefect and MLflow
is used):

- ``_Part``, started again, unless it keeps dying: test_the_runner_killed_in_the_middle;
- ``_open_port``, the port asked for first, and kept: test_a_port_in_use_is_said_to_be;
- ``reap_orphaned_runs`` of ``deployments/runner.py``: a run whose process ended while the server's database was away
  stays in state Running, test_a_year_with_postgresql;
- ``root_tag`` there: on a shared server a start marks other people's runs as crashed,
  test_only_runs_of_dead_processes_are_called_crashed;
- ``by_name`` there, a run's process imports the flow: by value, the flow loses the types its annotations name, and
  every served run fails;
- ``read_deployments`` of ``deployments/specifications.py``, a closed list of what a ``prefect.yaml`` may say:
  test_a_file_of_deployments_that_asks_for_other_code_is_refused;
- ``_set_password`` of ``deployments/mlflow_server.py``: after ``unitball secret rotate`` MLflow would keep the
  old one.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.atomic import write_bytes, writing
from storage.layout import Layout
from tasks.host.engine import (
    EngineError,
    GuardedProcess,
    ask_server,
    being_served,
    prepare_databases,
    prepare_engine,
    start_server,
    wait_for_server,
)
from tasks.runtime.events import log_event
from tasks.runtime.services import credentials, credentials_file
from tasks.runtime.settings import (
    MLFLOW_VARIABLE,
    ROOT_VARIABLE,
    WEBHOOK_VARIABLE,
    DatabaseServer,
    prefect_address,
    prefect_pages,
    record_servers,
    recorded_server,
    require_webhook,
    webhook_address,
)
from tasks.runtime.stores import use_database_server

_UNIT = """\
# Save as ~/.config/systemd/user/unitball.service, then run: systemctl --user enable --now unitball
# To keep it running without a login, run: loginctl enable-linger
[Unit]
Description=Unitball: Prefect, MLflow and the runner of the flows
After=network.target

[Service]
Type=exec
Environment={root}
ExecStart={program} -P -m deployments serve
# As Ctrl-C: the runner stops first, the databases last, and then all remaining processes.
KillMode=mixed
TimeoutStopSec=90
Restart=on-failure
RestartSec=10
UMask=0077
NoNewPrivileges=true

[Install]
WantedBy=default.target
"""


def unit_of(root: Path) -> str:
    """Return the text of a unit that serves ``root`` with the Python that runs this.

    Notes
    -----
    A password in ``UNITBALL_DATABASE`` does not belong here: the root remembers its databases after the first
    ``unitball serve --database``.
    """
    return _UNIT.format(root=_quoted(f"UNITBALL_ROOT={root}"), program=_quoted(sys.executable))


def _quoted(text: str) -> str:
    # A percent sign begins a specifier, and a dollar a variable.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


SKIPPED = "skipped:"
"""What a line of the runner's begins with that says what is not served."""
DEPLOYMENTS = Path(__file__).with_name("prefect.yaml")
HOST = "127.0.0.1"
_START_SECONDS = 120.0
_DAY_SECONDS = 24 * 3600.0
# A part that dies is started again, unless it keeps dying.
_LIVES, _LIVES_SECONDS = 5, 300.0


class ServeError(EngineError):
    """Serving cannot begin or go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Addresses and parts to serve.

    Parameters
    ----------
    root : Path
    prefect_port, mlflow_port : int
        On loopback.
    runs : int
        Flow runs at once.
    prefect_file : Path
        Deployments to apply.
    database : DatabaseServer or None
        A PostgreSQL server that is to hold the root's databases from now on; None leaves them where they are.
    runner_only : bool
        The flows alone, on the Prefect server that ``PREFECT_API_URL`` names.
    keep_days : int
        How long flow runs, cached results and deleted MLflow runs are kept. What was charged and released stays.
    """

    root: Path
    prefect_port: int = 4210
    mlflow_port: int = 5000
    runs: int = 2
    prefect_file: Path = DEPLOYMENTS
    database: DatabaseServer | None = None
    runner_only: bool = False
    keep_days: int = 30

    def __post_init__(self) -> None:
        for name in ("prefect_port", "mlflow_port"):
            if not 1 <= getattr(self, name) <= 65535:
                raise ServeError(f"{name.replace('_', ' ')} is {getattr(self, name)}; ports go from 1 to 65535")
        if self.prefect_port == self.mlflow_port:
            raise ServeError(f"Prefect and MLflow cannot share port {self.prefect_port}; give them different ones")
        for name in ("runs", "keep_days"):
            if getattr(self, name) < 1:
                raise ServeError(f"{name.replace('_', ' ')} is {getattr(self, name)}; at least 1 is needed")
        if not self.prefect_file.is_file():
            raise ServeError(f"no file {self.prefect_file}; the deployments come from a prefect.yaml")

    @property
    def prefect_url(self) -> str:
        """Address of Prefect's pages; its API is below ``/api``."""
        return f"http://{HOST}:{self.prefect_port}"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow's pages."""
        return f"http://{HOST}:{self.mlflow_port}"

    def prefect_settings(self) -> dict[str, str]:
        """Return what makes the server refuse other web pages and other users, and keep leases through a restart."""
        return {
            "PREFECT_SERVER_API_HOST": HOST,
            "PREFECT_SERVER_API_PORT": str(self.prefect_port),
            # Relative: the page works behind a proxy and through a tunnel, under any name and port.
            "PREFECT_SERVER_UI_API_URL": "/api",
            # Whoever looks for a run is offered no other product.
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"{self.prefect_url},http://localhost:{self.prefect_port}",
            # In memory, which is the default, a slot that a killed run held would stay taken for ever.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            # To see whether its blocks are registered already takes the server longer than to register them.
            "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
            # Flow runs that ended long ago go, with their logs and artifacts; events go after a week anyway.
            "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
            "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(self.keep_days * int(_DAY_SECONDS)),
            # No worker polls here, and no flow pauses: the services for both run once per minute instead of every five
            # to fifteen seconds. A run that waits is shown as late within 45 s.
            "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_ENABLED": "false",
            "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "60",
            "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "60",
            "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "30",
        }


class _Part:
    """A process that is started again when it ends by itself."""

    def __init__(self, name: str, start: Callable[[], GuardedProcess]) -> None:
        self.name = name
        self._start = start
        self._begun = [time.monotonic()]
        self.process = start()

    def keep_alive(self) -> str | None:
        """Start it again if it has ended; return what there is to say.

        Raises
        ------
        ServeError
            If it has ended too often.
        """
        code = self.process.poll()
        if code is None:
            self.process.trim_log()
            return None
        log = self.process.log
        log_event("unitball.part.ended", details={"part": self.name, "code": code})
        if len(self._begun) > _LIVES and time.monotonic() - self._begun[-_LIVES] < _LIVES_SECONDS:
            raise ServeError(f"the {self.name} stopped {_LIVES} times within minutes, last with {code}; see {log}")
        self._begun.append(time.monotonic())
        self.process = self._start()
        return f"the {self.name} ended ({code}) and was started again; see {log}"

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until it reports that it is ready."""
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            if (code := self.process.poll()) is not None:
                reason = (self.process.logged() or ["no message"])[-1]
                raise ServeError(f"the {self.name} ended with code {code}: {reason} (see {self.process.log})")
            if time.monotonic() > deadline:
                raise ServeError(f"the {self.name} was not ready in {_START_SECONDS:.0f} s; see {self.process.log}")
            time.sleep(0.1)


def _open_port(port: int, option: str) -> socket.socket:
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        raise ServeError(
            f"port {port} on {HOST} cannot be used ({error.strerror}); stop what uses it or choose another: {option}"
        ) from error


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _part(stack: contextlib.ExitStack, root: Path, name: str, module: str, *arguments: str) -> _Part:
    """Start one of our own modules as a part that ends with the stack."""
    # With -m, each process that a part starts for a run would import the part's module first.
    command = [sys.executable, "-P", "-c", f"from deployments.{module} import main; main()", *arguments]
    logs = root / "logs"
    with writing(logs):
        logs.mkdir(mode=0o700, exist_ok=True)
    started = _Part(name, lambda: GuardedProcess(command, logs / f"{module}.log", os.environ))
    stack.callback(lambda: started.process.stop())
    return started


def _runner(stack: contextlib.ExitStack, serving: Serving, root: Path, *arguments: str) -> _Part:
    file = str(serving.prefect_file.absolute())
    runner = _part(stack, root, "runner", "runner", "--prefect-file", file, "--runs", str(serving.runs), *arguments)
    runner.wait_until(lambda: "serving" in runner.process.logged())
    return runner


@contextlib.contextmanager
def serve_runner(serving: Serving) -> Iterator[tuple[list[_Part], Callable[[], bool]]]:
    """Start the runner alone, on the Prefect server that ``PREFECT_API_URL`` names, and stop it at the end.

    Raises
    ------
    ServeError
        If the runner does not start: with what the server said.
    storage.errors.StorageError
        If the root cannot be written, or a named MLflow server refuses.
    """
    root = Layout(serving.root).root
    # Said before anything is started.
    webhook_address()
    os.environ[ROOT_VARIABLE] = str(root)
    prepare_engine(root)
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(being_served(root))
        keep_webhook(root)
        yield [_runner(stack, serving, root, "--shared")], there


def _forget_servers(root: Path, there: Callable[[], bool]) -> None:
    # Another root may lie there by now.
    if there():
        record_servers(root, {})


@contextlib.contextmanager
def serve(serving: Serving) -> Iterator[tuple[list[_Part], Callable[[], bool]]]:
    """Start everything, yield what to watch, and stop everything: runner, MLflow, then the server.

    Yields the processes, and what tells whether the root still lies there.

    Raises
    ------
    ServeError
        If a port is taken or a part does not start.
    storage.errors.InputError
        If ``UNITBALL_WEBHOOK`` is not an address that alerts may be sent to.
    storage.errors.StorageError
        If the root cannot be written, or another process serves it.
    """
    root = Layout(serving.root).root
    # Said before anything is started.
    webhook_address()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_open_port(serving.prefect_port, "--prefect-port"))
        # MLflow opens its port itself; asking first gives the clear line.
        _open_port(serving.mlflow_port, "--mlflow-port").close()
        os.environ[ROOT_VARIABLE] = str(root)
        # What an earlier serving has left must not be taken for a server of the user's own.
        for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_UI_URL"):
            os.environ.pop(name, None)
        if serving.database is not None:
            use_database_server(root, serving.database)
        prepare_databases(root)
        there = stack.enter_context(being_served(root))
        keep_webhook(root)
        secret = credentials(root)
        server = _Part("Prefect server", lambda: start_server(root, listener, serving.prefect_settings()))
        stack.callback(lambda: server.process.stop())
        mlflow = _part(
            stack, root, "MLflow server", "mlflow_server", "--root", str(root), "--port", str(serving.mlflow_port)
        )
        wait_for_server(ask_server((HOST, serving.prefect_port), secret), server.process)
        os.environ["PREFECT_API_URL"] = f"{serving.prefect_url}/api"
        # What Prefect prints leads to the same version of its pages as our own links.
        os.environ["PREFECT_UI_URL"] = prefect_pages(os.environ["PREFECT_API_URL"])
        os.environ["PREFECT_API_AUTH_STRING"] = secret.basic
        # Runs link to their pages there.
        os.environ[MLFLOW_VARIABLE] = serving.mlflow_url
        runner = _runner(stack, serving, root)
        mlflow.wait_until(lambda: _answers(f"{serving.mlflow_url}/health"))
        record_servers(root, {"prefect": f"{serving.prefect_url}/api", "mlflow": serving.mlflow_url})
        stack.callback(_forget_servers, root, there)
        yield [server, mlflow, runner], there


def _described(serving: Serving, root: Path) -> Iterator[tuple[str, str]]:
    """Yield what to know of what is being served."""
    if serving.runner_only:
        yield "Prefect", os.environ["PREFECT_API_URL"]
    else:
        api = f"{serving.prefect_url}/api"
        yield "Prefect", f"{prefect_pages(api)}   (export PREFECT_API_URL={api} PREFECT_UI_URL={prefect_pages(api)})"
        yield "MLflow", f"{serving.mlflow_url}/#/experiments?workflowType=machine_learning"
        yield "secret", f"{credentials_file(root)}   (its line for Prefect's page; name:password for MLflow's)"
    if server := recorded_server(root):
        yield "databases", server.shown
    yield "logs", str(root / "logs")


def _address_file(root: Path) -> Path:
    return Layout(root).private / "webhook.url"


def keep_webhook(root: Path) -> None:
    """Keep the address that ``UNITBALL_WEBHOOK`` names in the root, and in no process's environment.

    Not set, the one that is kept stays; set to nothing, it goes.

    Raises
    ------
    storage.errors.InputError
        If alerts may not be sent there.
    """
    address = webhook_address()
    if address is not None:
        write_bytes(_address_file(root), address.encode(), mode=0o600)
    elif WEBHOOK_VARIABLE in os.environ:
        _address_file(root).unlink(missing_ok=True)
    os.environ.pop(WEBHOOK_VARIABLE, None)


def read_webhook(root: Path) -> str | None:
    """Return the address to which alerts go, None where there is none.

    Raises
    ------
    storage.errors.InputError
        If what is kept is none.
    """
    file = _address_file(root)
    try:
        return require_webhook(file.read_bytes().decode(errors="replace"), str(file))
    except FileNotFoundError:
        return None


class _Interrupted(BaseException):
    """A signal came while something was being started."""


class _Signals:
    """Ctrl-C and SIGTERM: break off the start, later end the serving, and not disturb the stopping."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.starting = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, *_: object) -> None:
        self.end.set()
        if self.starting:
            self.starting = False
            raise _Interrupted


def run(serving: Serving) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit code.

    Raises
    ------
    ServeError, tasks.host.engine.EngineError, storage.errors.StorageError
        If a part does not start, or keeps ending; everything is stopped then.
    """
    if serving.runner_only and not prefect_address():
        raise ServeError(
            "--runner-only needs a running Prefect server: set PREFECT_API_URL to its address, and "
            "PREFECT_API_AUTH_STRING to its password"
        )
    signals = _Signals()
    print(f"starting {'' if serving.runner_only else 'Prefect, MLflow and '}the runner …", flush=True)
    try:
        with (serve_runner if serving.runner_only else serve)(serving) as (parts, there):
            signals.starting = False
            root = Layout(serving.root).root
            for line in parts[-1].process.logged():
                if line.startswith(SKIPPED):
                    print(line)
            for name, value in _described(serving, root):
                print(f"{name:<10}{value}")
            print("ready; Ctrl-C stops everything", flush=True)
            log_event("unitball.serving.started")
            tidy = [sys.executable, "-P", "-m", "deployments.tidying", "--days", str(serving.keep_days)]
            tidying = None
            due = time.monotonic()
            while not signals.end.wait(0.5):
                if not there():
                    raise ServeError(
                        f"{root} was moved, replaced or removed while being served, and all services were stopped; "
                        "serve it at its present path: unitball serve --root PATH"
                    )
                for part in parts:
                    if news := part.keep_alive():
                        print(news, flush=True)
                # What is older than its time goes, once a day, in a separate process.
                if time.monotonic() >= due and (tidying is None or tidying.poll() is not None):
                    tidying = GuardedProcess(tidy, root / "logs" / "tidying.log", os.environ)
                    due += _DAY_SECONDS
            print(f"stopping: runner{'' if serving.runner_only else ', MLflow, Prefect'} …", flush=True)
            log_event("unitball.serving.stopped")
    except _Interrupted:
        print("interrupted before all was ready; stopped", flush=True)
        return 1
    finally:
        signals.starting = False
    print("stopped", flush=True)
    return 0
