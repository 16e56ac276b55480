"""`unitball serve` in a test: started once a session, asked with its secret."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments import serving
from deployments.cli import entry_point
from tasks.host import process_guard
from tasks.planning.asked import FIELDS
from tasks.runtime.services import Credentials, credentials

REPOSITORY = Path(serving.__file__).parents[1]
# A loaded machine needs half a minute to import what a run needs.
PATIENCE = 240.0
UNITBALL = ("-c", "from deployments.cli import main; main()")
# Several commands, and a form feed after what each prints.
_EACH = """
import json, sys
from deployments.cli import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        if ended.code:
            raise
    print(end="\\f", flush=True)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW", "UNITBALL"))}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", **more}


def wait_for(what: str, found: Callable[[], Any], seconds: float = PATIENCE, every: float = 0.5) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(every)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


@dataclass
class Served:
    """A running `unitball serve`."""

    root: Path
    api: str
    mlflow: str
    process: subprocess.Popen[str]
    output: Path
    alerts: list[dict[str, Any]] = field(default_factory=list)
    """What the webhook has received."""
    _token: tuple[str, float] = ("", 0.0)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {"UNITBALL_ROOT": str(self.root), "PREFECT_API_URL": self.api, "DO_NOT_TRACK": "1"}
        if arguments[:2] == ("-m", "prefect") or any("--root" in argument for argument in arguments):
            # Our own commands find it by themselves, for the server of their root.
            variables["PREFECT_API_AUTH_STRING"] = self.secret.basic
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=environment(PREFECT_HOME=str(self.root / "prefect"), COLUMNS="200", **variables),
        )

    def unitball(self, *arguments: str) -> str:
        (said,) = self.unitball_each(list(arguments))
        return said

    def unitball_each(self, *commands: list[str]) -> list[str]:
        """Run commands of ours in one process, which spends seconds on its imports; return what each printed."""
        done = self.command("-c", _EACH, json.dumps(commands))
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\f")[:-1]

    @property
    def secret(self) -> Credentials:
        """The root's secret."""
        return credentials(self.root)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> urllib.request.Request:
        """Return a request to Prefect's API as it stands, without the secret."""
        data = None if body is None else json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return urllib.request.Request(
            f"{self.api}{path}", data, {"Content-Type": "application/json", **headers}, method=method
        )

    @property
    def authorization(self) -> str:
        """The header that shows the secret."""
        return f"Basic {b64encode(self.secret.basic.encode()).decode()}"

    def token(self) -> str:
        """Return a token against forged requests: one is good for an hour."""
        if time.monotonic() > self._token[1]:
            asked = self.request("GET", "/csrf-token?client=tests", Authorization=self.authorization)
            with urllib.request.urlopen(asked, timeout=30) as answer:
                self._token = (json.load(answer)["token"], time.monotonic() + 600)
        return self._token[0]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Prefect's API with the secret and a token against forged requests."""
        request = self.request(
            method,
            path,
            body,
            Authorization=self.authorization,
            Prefect_Csrf_Token=self.token(),
            Prefect_Csrf_Client="tests",
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def ask(self, path: str, **body: Any) -> Any:
        return self.call("POST", path, body)

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that are not in the future."""
        begun = {"state": {"type": {"not_any_": ["SCHEDULED"]}}}
        return list(self.ask("/flow_runs/filter", sort="START_TIME_ASC", flow_runs=begun))

    def run(self, run_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/flow_runs/{run_id}"))

    def tasks(self, run_id: str) -> list[dict[str, Any]]:
        return list(self.ask("/task_runs/filter", flow_runs={"id": {"any_": [run_id]}}))

    def start_run(self, *, job_variables: dict[str, Any] | None = None, **config: Any) -> str:
        """Start a run of the deployment ``train`` as Prefect's page does: a command of Prefect's takes five seconds.

        What is no field of the form goes where the form has it.
        """
        (train,) = (one["id"] for one in self.ask("/deployments/filter") if one["name"] == "train")
        fields = {name: config.pop(name) for name in FIELDS if name in config}
        body = {"parameters": {**fields, "more": config}, "state": {"type": "SCHEDULED"}}
        if job_variables is not None:
            body["job_variables"] = job_variables
        return str(self.call("POST", f"/deployments/{train}/create_flow_run", body)["id"])

    def finished(self, run_id: str) -> dict[str, Any]:
        ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

        def ended() -> dict[str, Any] | None:
            run = self.run(run_id)
            return run if run["state_type"] in ends else None

        return dict(wait_for(f"end of {run_id}", ended))

    def processes(self, *parts: str) -> list[int]:
        """Return the processes of this serving whose command line has one of these parts, without their guards."""
        return [
            pid
            for pid, line in processes_of(self.root)
            if process_guard.__file__ not in line and any(part in line for part in parts)
        ]


def rows_file(path: Path, rows: int, seed: int = 3) -> str:
    numbers = random.Random(seed)
    lines = [
        f"{numbers.choice(('-1', '+1'))} " + " ".join(f"{index}:{numbers.uniform(-1, 1):.3f}" for index in range(1, 6))
        for _ in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def processes_of(root: Path) -> list[tuple[int, str]]:
    """Return the processes that work for a root, with their command lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"UNITBALL_ROOT={root}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(folder.name), line))
    return found


@contextlib.contextmanager
def receiving() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Listen on loopback for a webhook; yield its address and what it receives."""
    received: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/alerts", received
        server.shutdown()


@contextlib.contextmanager
def started(
    folder: Path,
    expected: signal.Signals | None = None,
    *arguments: str,
    prepare: Callable[[Path], None] | None = None,
) -> Iterator[Served]:
    """Serve the root below a folder until the context is left, or until a signal that the caller sends.

    Further arguments are those of `unitball serve`; ``prepare`` brings more into the root before.

    The end by Ctrl-C is checked: in order, with nothing left.
    """
    root, output = folder / "root", folder / "output"
    # The committed deployments, and one more schedule, which a test brings nearer.
    plan = yaml.safe_load(serving.DEPLOYMENTS.read_text())
    wine = {"dataset": "wine", "algorithm": "noisy-gd", "epsilon": 1.0}
    soon = {"interval": 86400, "slug": "soon", "parameters": wine, "anchor_date": in_seconds(43200)}
    plan["deployments"][0]["schedules"] = [soon]
    deployments = folder / "prefect.yaml"
    deployments.write_text(yaml.safe_dump(plan))
    ports = free_port(), free_port()
    rows = rows_file(folder / "arrivals.libsvm", 200)
    _prepare(
        root,
        ["ingest", "arrivals", "--format", "libsvm", "--path", rows, "--public"],
        ["schedule", "arrivals", "--nightly", "--on-new-version", "--algorithm", "noisy-gd", "--epsilon", "1"],
    )
    if prepare is not None:
        prepare(root)
    with receiving() as (webhook, alerts):
        with output.open("w") as file:
            process = subprocess.Popen(
                [
                    sys.executable,
                    *UNITBALL,
                    "serve",
                    "--root",
                    str(root),
                    "--prefect-port",
                    str(ports[0]),
                    "--mlflow-port",
                    str(ports[1]),
                    "--prefect-file",
                    str(deployments),
                    *arguments,
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment(UNITBALL_WEBHOOK=webhook),
            )
        served = Served(
            root, f"http://127.0.0.1:{ports[0]}/api", f"http://127.0.0.1:{ports[1]}", process, output, alerts
        )
        try:
            wait_for("ready", lambda: "ready;" in output.read_text() or process.poll() is not None)
            assert process.poll() is None, output.read_text()
            yield served
            if expected is not None:
                return
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 0
            assert output.read_text().rstrip().endswith("stopped")
            assert "stopping: runner, MLflow, Prefect" in output.read_text()
            assert not processes_of(root)
            assert "never awaited" not in (root / "logs" / "runner.log").read_text()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(300)


def attacks(canary: Path) -> tuple[dict[str, Any], ...]:
    """Return changes of a deployment that a work pool's worker would follow; each would make the file."""
    code = f"import pathlib; pathlib.Path({str(canary)!r}).touch()"
    shell = {"prefect.deployments.steps.run_shell_script": {"script": f"touch {canary}"}}
    return (
        {"pull_steps": [shell]},
        {"entrypoint": f"{canary.with_suffix('.py')}:main", "path": str(canary.parent)},
        {"job_variables": {"command": f"touch {canary}", "env": {"PYTHONSTARTUP": code}}},
    )


def attacked(served: Served, folder: Path) -> Path:
    """Change whatever a work pool's worker would follow of ``train``, as a holder of Prefect's secret may.

    Returns the file that each of the changes would make.
    """
    canary = folder / "canary"
    code = f"import pathlib; pathlib.Path({str(canary)!r}).touch()"
    canary.with_suffix(".py").write_text(
        f"{code}\nfrom prefect import flow\n@flow\ndef main(config):\n    {code.replace('; ', chr(10) + '    ')}\n"
    )
    (deployment,) = [one for one in served.ask("/deployments/filter") if one["name"] == "train"]
    for change in attacks(canary):
        served.call("PATCH", f"/deployments/{deployment['id']}", change)
    (changed,) = [one for one in served.ask("/deployments/filter") if one["id"] == deployment["id"]]
    assert changed["pull_steps"], "the attack did not arrive"
    assert changed["entrypoint"].endswith(":main")
    return canary


def prepared(root: Path, *arguments: str) -> None:
    """Run a command on a root that is not served yet."""
    _prepare(root, list(arguments))


def _prepare(root: Path, *commands: list[str]) -> None:
    # In this process: one of its own imports for seconds.
    for arguments in commands:
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
            patch.setenv("UNITBALL_ROOT", str(root))
            with pytest.raises(SystemExit) as ended:
                entry_point.main(arguments)
        assert not ended.value.code, arguments


def in_seconds(seconds: float) -> str:
    """Return a moment so many seconds from now, as schedules write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + seconds))
