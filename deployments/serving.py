"""Serve on one machine: Prefect server, worker and MLflow on loopback, deployments applied, all stopped in order."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deployments import leash
from storage.atomic import writing
from storage.errors import StorageError
from storage.layout import Layout
from tasks.runtime.engine import EngineError, prepare_databases, start_server, tracking_uri
from tasks.runtime.settings import MLFLOW_VARIABLE, ROOT_VARIABLE, current_root

__all__ = ["POOL", "ServeError", "Serving", "main", "serve"]

POOL = "unitball"
DEPLOYMENTS = Path(__file__).with_name("prefect.yaml")
HOST = "127.0.0.1"
_START_SECONDS = 120.0
# Runs say every half minute that they live; after three silences the server calls them crashed.
_HEARTBEAT_SECONDS = 30
_SILENCE_SECONDS = 90
# A part that dies is started again, unless it keeps dying.
_LIVES, _LIVES_SECONDS = 5, 300.0


class ServeError(Exception):
    """Serving cannot begin or go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where and what to serve.

    Parameters
    ----------
    root : Path
    prefect_port, mlflow_port : int
        On loopback.
    runs : int
        Flow runs at once.
    prefect_file : Path
        Deployments to apply.
    """

    root: Path
    prefect_port: int = 4210
    mlflow_port: int = 5000
    runs: int = 2
    prefect_file: Path = DEPLOYMENTS

    def __post_init__(self) -> None:
        for name in ("prefect_port", "mlflow_port"):
            if not 1 <= getattr(self, name) <= 65535:
                raise ServeError(f"{name.replace('_', ' ')} is {getattr(self, name)}; ports go from 1 to 65535")
        if self.prefect_port == self.mlflow_port:
            raise ServeError(f"Prefect and MLflow cannot share port {self.prefect_port}; give them different ones")
        if self.runs < 1:
            raise ServeError(f"runs is {self.runs}; the worker needs at least 1")
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


class _Leashed:
    """A command that ends with this process, its output in a file."""

    def __init__(self, name: str, command: Sequence[str], log: Path, **environment: str) -> None:
        self.name, self.log = name, log
        self._command = [sys.executable, "-P", leash.__file__, *command]
        # One mark for all its lives: what an earlier one has left is ended with the last.
        self._environment = {**os.environ, **environment, leash.MARK: uuid.uuid4().hex}
        self._begun: list[float] = []
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._begun.append(time.monotonic())
        with writing(self.log), self.log.open("ab") as output:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def keep_alive(self) -> str | None:
        """Start it again if it has ended; return what there is to say.

        Raises
        ------
        ServeError
            If it has ended too often.
        """
        code = self.ended()
        if code is None:
            return None
        if len(self._begun) > _LIVES and time.monotonic() - self._begun[-_LIVES] < _LIVES_SECONDS:
            raise ServeError(
                f"the {self.name} ended {_LIVES} times in a few minutes, the last with {code}; see {self.log}"
            )
        self._process = self._start()
        return f"the {self.name} ended ({code}) and was started again; see {self.log}"

    def ended(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int:
        """Return the exit code when it ends by itself."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ServeError(f"{self.name} took more than {seconds:.0f} s; see {self.log}") from error

    def stop(self) -> None:
        """Let go of the leash and wait."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(leash.GRACE_SECONDS + 15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _open_port(port: int, option: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServeError(
            f"port {port} on {HOST} cannot be used ({error.strerror}); stop what uses it or choose another: {option}"
        ) from error
    return listener


def _wait_until(what: str, condition: Callable[[], bool], process: _Leashed) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if process.ended() is not None:
            raise ServeError(f"{process.name} ended with code {process.ended()} before it was ready; see {process.log}")
        if time.monotonic() > deadline:
            raise ServeError(f"{what} in {_START_SECONDS:.0f} s; see {process.log}")
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _make_pool() -> None:
    """Make the work pool; the one of an earlier time is kept as it is."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type=ProcessWorker.type, base_job_template=template))


def _watch_for_silent_runs() -> None:
    """Let the server call a run crashed when it no longer says that it lives; without this it runs for ever."""
    from datetime import timedelta

    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    name = "unitball: silent runs are crashed"
    ends = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "Refused")}
    automation = AutomationCore(
        name=name,
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ends},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=_SILENCE_SECONDS),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message="The run fell silent: its process has died.")],
    )
    with get_client(sync_client=True) as client:
        for existing in client.read_automations_by_name(name):
            client.delete_automation(existing.id)
        client.create_automation(automation)


def _worker_online() -> bool:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return any(worker.status == "ONLINE" for worker in client.read_workers_for_work_pool(POOL))


@contextlib.contextmanager
def serve(serving: Serving) -> Iterator[list[_Leashed]]:
    """Start everything, yield the processes to watch, and stop everything: worker, MLflow, then the server.

    Raises
    ------
    ServeError
        If a port is taken or a part does not start.
    storage.errors.StorageError
        If the root cannot be written.
    """
    root = Layout(serving.root).root
    with contextlib.ExitStack() as stack:
        prefect_port = stack.enter_context(_open_port(serving.prefect_port, "--prefect-port"))
        # MLflow opens its port itself; asking first gives the clear line.
        _open_port(serving.mlflow_port, "--mlflow-port").close()
        os.environ[ROOT_VARIABLE] = str(root)
        # An address left from an earlier serving must not be taken for a server of the user's own.
        os.environ.pop("PREFECT_API_URL", None)
        prepare_databases(root)
        server = start_server(root, prefect_port)
        prefect_port.close()
        stack.callback(server.stop)
        os.environ["PREFECT_API_URL"] = f"{serving.prefect_url}/api"
        os.environ["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = str(_HEARTBEAT_SECONDS)
        # Runs link to their pages there.
        os.environ[MLFLOW_VARIABLE] = f"http://{HOST}:{serving.mlflow_port}"
        logs = root / "logs"
        with writing(logs):
            logs.mkdir(exist_ok=True)
        # The job queues serve features that are not used here, and are seven processes.
        without_jobs = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        mlflow = _Leashed("MLflow server", _mlflow_command(serving), logs / "mlflow.log", **without_jobs)
        stack.callback(mlflow.stop)
        _make_pool()
        _watch_for_silent_runs()
        deploy = _Leashed("prefect deploy", _deploy_command(serving), logs / "deploy.log")
        stack.callback(deploy.stop)
        if code := deploy.wait(_START_SECONDS):
            raise ServeError(f"the deployments could not be applied (prefect deploy: {code}); see {deploy.log}")
        worker = _Leashed("worker", _worker_command(serving), logs / "worker.log")
        stack.callback(worker.stop)
        _wait_until("the worker did not report", _worker_online, worker)
        _wait_until("MLflow did not answer", lambda: _answers(f"{serving.mlflow_url}/health"), mlflow)
        yield [worker, mlflow]


def _prefect(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "prefect", *arguments]


def _deploy_command(serving: Serving) -> list[str]:
    return _prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(serving.prefect_file.absolute()))


def _worker_command(serving: Serving) -> list[str]:
    return _prefect("worker", "start", "--pool", POOL, "--type", "process", "--limit", str(serving.runs))


def _mlflow_command(serving: Serving) -> list[str]:
    places = ["--backend-store-uri", tracking_uri(serving.root)]
    places += ["--default-artifact-root", Layout(serving.root).artifacts.as_uri(), "--no-serve-artifacts"]
    where = ["--host", HOST, "--port", str(serving.mlflow_port), "--workers", "1"]
    return [sys.executable, "-P", "-m", "mlflow", "server", *places, *where]


def _arguments(arguments: Sequence[str] | None) -> Serving:
    def from_environment(name: str, default: int) -> int:
        value = os.environ.get(name, "")
        if not value:
            return default
        try:
            return int(value)
        except ValueError:
            raise ServeError(f"{name} is {value!r}, not a number") from None

    parser = argparse.ArgumentParser(prog="python -m deployments.serving", description=__doc__)
    parser.add_argument("--root", type=Path, help=f"where all state lies (also {ROOT_VARIABLE})")
    parser.add_argument("--prefect-port", type=int, help="also UNITBALL_PREFECT_PORT; 4210")
    parser.add_argument("--mlflow-port", type=int, help="also UNITBALL_MLFLOW_PORT; 5000")
    parser.add_argument("--runs", type=int, default=2, help="flow runs at once")
    parser.add_argument("--prefect-file", type=Path, default=DEPLOYMENTS, help="deployments to apply")
    given = parser.parse_args(arguments)
    return Serving(
        root=current_root() if given.root is None else given.root,
        prefect_port=given.prefect_port or from_environment("UNITBALL_PREFECT_PORT", 4210),
        mlflow_port=given.mlflow_port or from_environment("UNITBALL_MLFLOW_PORT", 5000),
        runs=given.runs,
        prefect_file=given.prefect_file,
    )


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit code."""
    signals = _Signals()
    try:
        serving = _arguments(arguments)
        print("starting Prefect, MLflow and the worker …", flush=True)
        with serve(serving) as processes:
            signals.starting = False
            print(f"Prefect   {serving.prefect_url}   (export PREFECT_API_URL={serving.prefect_url}/api)")
            print(f"MLflow    {serving.mlflow_url}/#/experiments?workflowType=machine_learning")
            print(f"logs      {Layout(serving.root).root / 'logs'}")
            print("ready; Ctrl-C stops everything", flush=True)
            while not signals.end.wait(0.5):
                for process in processes:
                    if news := process.keep_alive():
                        print(news, flush=True)
            print("stopping: worker, MLflow, Prefect …", flush=True)
    except _Interrupted:
        print("interrupted before all was ready; stopped", flush=True)
        return 1
    except (ServeError, EngineError, StorageError) as error:
        signals.starting = False
        print(f"unitball: {error}", file=sys.stderr)
        return 1
    print("stopped", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
