"""`make serve` for real: a server, a worker and MLflow; runs by schedule, by event and by hand, and a worker killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments import leash, serving
from deployments.serving import ServeError, Serving, main

REPOSITORY = Path(serving.__file__).parents[1]
# A loaded machine needs half a minute to import what a run needs.
PATIENCE = 240.0
SEED = 7
# A slow machine must be ready by then; the other tests come first.
SOON = 120.0
UNITBALL = ("-c", "from deployments.cli import main; main()")


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
    """A running `python -m deployments.serving`."""

    root: Path
    api: str
    mlflow: str
    process: subprocess.Popen[str]
    output: Path

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {"UNITBALL_ROOT": str(self.root), "PREFECT_API_URL": self.api, "DO_NOT_TRACK": "1"}
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=environment(PREFECT_HOME=str(self.root / "prefect"), COLUMNS="200", **variables),
        )

    def unitball(self, *arguments: str) -> str:
        done = self.command(*UNITBALL, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"{self.api}{path}", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that are not in the future."""
        found = self.ask("/flow_runs/filter", sort="START_TIME_ASC")
        return [run for run in found if run["state_type"] != "SCHEDULED"]

    def run(self, run_id: str) -> dict[str, Any]:
        return next(run for run in self.ask("/flow_runs/filter") if run["id"] == run_id)

    def tasks(self, run_id: str) -> list[dict[str, Any]]:
        return list(self.ask("/task_runs/filter", flow_runs={"id": {"any_": [run_id]}}))

    def start_run(self, **config: Any) -> str:
        parameter = f"config={json.dumps(config)}"
        done = self.command("-m", "prefect", "deployment", "run", "federated-training/nightly", "--param", parameter)
        assert done.returncode == 0, done.stdout + done.stderr
        return next(line.split("UUID:")[1].strip() for line in done.stdout.splitlines() if "UUID:" in line)

    def finished(self, run_id: str) -> dict[str, Any]:
        ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        wait_for(f"end of {run_id}", lambda: self.run(run_id)["state_type"] in ends)
        return self.run(run_id)

    def worker_processes(self) -> list[int]:
        """Return the worker and its runs, without the leash."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().decode(errors="replace")
                of_us = f"UNITBALL_ROOT={self.root}".encode() in (folder / "environ").read_bytes().split(b"\0")
                if of_us and leash.__file__ not in line and ("worker\0start" in line or "prefect.engine" in line):
                    found.append(int(folder.name))
        return found


def processes_of(root: Path) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"UNITBALL_ROOT={root}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serving")
    root, output = folder / "root", folder / "output"
    # The committed deployments, and one more schedule that a test can wait for.
    plan = yaml.safe_load(serving.DEPLOYMENTS.read_text())
    wine = {"config": {"dataset": "wine", "algorithm": "noisy-gd", "epsilon": 1.0}}
    plan["deployments"][0]["schedules"].append({"interval": 3600, "slug": "soon", "parameters": wine})
    plan["deployments"][0]["schedules"][-1]["anchor_date"] = _in_seconds(SOON)
    deployments = folder / "prefect.yaml"
    deployments.write_text(yaml.safe_dump(plan))
    ports = free_port(), free_port()
    with output.open("w") as file:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "deployments.serving",
                "--root",
                str(root),
                "--prefect-port",
                str(ports[0]),
                "--mlflow-port",
                str(ports[1]),
                "--prefect-file",
                str(deployments),
            ],
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        )
    served = Served(root, f"http://127.0.0.1:{ports[0]}/api", f"http://127.0.0.1:{ports[1]}", process, output)
    try:
        wait_for("ready", lambda: "ready;" in output.read_text() or process.poll() is not None)
        assert process.poll() is None, output.read_text()
        yield served
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0
        assert output.read_text().rstrip().endswith("stopped")
        assert "stopping: worker, MLflow, Prefect" in output.read_text()
        assert not processes_of(root)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(90)


def _in_seconds(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + seconds))


def test_addresses_are_printed_and_answer(served: Served) -> None:
    said = served.output.read_text()
    assert served.api in said
    assert served.mlflow in said
    for address in (served.api + "/health", served.api.removesuffix("/api"), served.mlflow):
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.status == 200
    (nightly,) = served.ask("/deployments/filter")
    assert nightly["name"] == "nightly"
    assert "0 3 * * *" in [schedule["schedule"].get("cron") for schedule in nightly["schedules"]]
    assert {"config"} <= set(nightly["parameter_openapi_schema"]["properties"])


def test_a_bad_value_is_refused_by_its_name(served: Served) -> None:
    done = served.command(
        "-m",
        "prefect",
        "deployment",
        "run",
        "federated-training/nightly",
        "--param",
        'config={"dataset": "digits", "epsilon": -3}',
    )
    assert done.returncode != 0
    assert "config.epsilon" in done.stdout + done.stderr
    configs = [run["parameters"].get("config", {}) for run in served.ask("/flow_runs/filter")]
    assert -3 not in [config.get("epsilon") for config in configs], "a run was made of it"


def test_runs_of_one_data_set_go_one_after_the_other(served: Served) -> None:
    config = {"dataset": "digits", "algorithm": "noisy-gd", "epsilon": 1.0}
    first, second = served.start_run(**config), served.start_run(**config, repetition=1)
    for run_id in (first, second):
        run = served.finished(run_id)
        assert run["state_type"] == "COMPLETED", run["state"]["message"]

    def span(run_id: str) -> tuple[str, str]:
        work = [task for task in served.tasks(run_id) if task["end_time"]]
        return min(task["start_time"] for task in work), max(task["end_time"] for task in work)

    early, late = sorted([span(first), span(second)])
    assert early[1] <= late[0], "two runs of one data set worked at the same time"


def rows_file(path: Path, rows: int) -> str:
    numbers = random.Random(3)
    lines = [
        f"{numbers.choice(('-1', '+1'))} " + " ".join(f"{index}:{numbers.uniform(-1, 1):.3f}" for index in range(1, 6))
        for _ in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_triggered_run(served: Served, tmp_path: Path) -> None:
    """A new version starts a run; the first registration does not."""

    def triggered() -> list[dict[str, Any]]:
        return [run for run in served.runs() if run["parameters"]["config"]["dataset"] == "arrivals"]

    for rows in (200, 210):
        assert not triggered()
        path = rows_file(tmp_path / f"{rows}.libsvm", rows)
        served.unitball("ingest", "arrivals", "--format", "libsvm", "--path", path, "--public")
    (run,) = wait_for("a run after the event", triggered)
    assert not run["auto_scheduled"]
    finished = served.finished(run["id"])
    assert finished["state_type"] == "COMPLETED", finished["state"]["message"]


def test_a_refusal_ends_in_a_state_of_that_name_and_is_not_retried(served: Served, tmp_path: Path) -> None:
    path = rows_file(tmp_path / "rows.libsvm", 200)
    declared = [
        "--dimension",
        "5",
        "--classes=-1,1",
        "--account",
        "patients",
        "--epsilon-cap",
        "1",
        "--delta-cap",
        "1e-5",
    ]
    served.unitball("ingest", "clinic", "--format", "libsvm", "--path", path, *declared)
    run_id = served.start_run(dataset="clinic", algorithm="noisy-gd", epsilon=5.0, delta=1e-5)
    finished = served.finished(run_id)
    assert (finished["state_type"], finished["state_name"]) == ("FAILED", "Refused")
    assert "Refused for privacy" in finished["state"]["message"]
    assert finished["run_count"] == 1
    report = json.loads(served.unitball("budget", "clinic", "--json"))
    assert all(party["epsilon_spent"] <= 1 for party in report["parties"])


def test_scheduled_run(served: Served) -> None:
    run = wait_for(
        "a scheduled run",
        lambda: [
            run for run in served.runs() if run["auto_scheduled"] and run["parameters"]["config"]["dataset"] == "wine"
        ],
    )[0]
    finished = served.finished(run["id"])
    assert finished["state_type"] == "COMPLETED", finished["state"]["message"]


def charges(report: dict[str, Any], algorithm: str) -> dict[str, list[str]]:
    """Return what each party was charged for by the runs of one algorithm."""
    return {
        party["party"]: sorted(charge["label"] for charge in party["charges"] if charge["run"] == algorithm)
        for party in report["parties"]
    }


@pytest.mark.nightly
def test_a_worker_killed_in_the_middle(served: Served, tmp_path: Path) -> None:
    """The worker and the run's process are killed after the charge; the next run finishes it, charged once."""
    config = {"dataset": "digits", "algorithm": "fed-dpdr-dpml", "epsilon": 1.0, "seed": SEED}
    killed = served.start_run(**config)

    def charged() -> bool:
        return any(
            task["name"].startswith("charge") and task["state_type"] == "COMPLETED" for task in served.tasks(killed)
        )

    wait_for("the charge", charged, every=0.02)
    for process in served.worker_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert served.run(killed)["state_type"] == "RUNNING", "the kill came too late to be in the middle"
    wait_for("a new worker", lambda: "the worker ended" in served.output.read_text())

    again = served.finished(served.start_run(**config))
    assert again["state_type"] == "COMPLETED", again["state"]["message"]
    after = json.loads(served.unitball("budget", "digits", "--json"))

    other = served.command(
        *UNITBALL,
        "train",
        "--root",
        str(tmp_path / "undisturbed"),
        "--dataset",
        "digits",
        "--algorithm",
        "fed-dpdr-dpml",
        "--epsilon",
        "1",
        "--seed",
        str(SEED),
        "--json",
    )
    assert other.returncode == 0, other.stderr
    undisturbed = json.loads(other.stdout)
    result = json.loads(
        served.unitball(
            "train",
            "--dataset",
            "digits",
            "--algorithm",
            "fed-dpdr-dpml",
            "--epsilon",
            "1",
            "--seed",
            str(SEED),
            "--json",
        )
    )
    assert result["cached"] is True
    assert result["metrics"] == undisturbed["metrics"]
    assert result["epsilon_spent"] == undisturbed["epsilon_spent"]
    only = json.loads(served.unitball("budget", "digits", "--json", "--root", str(tmp_path / "undisturbed")))
    assert any(charges(only, "fed-dpdr-dpml").values())
    assert charges(after, "fed-dpdr-dpml") == charges(only, "fed-dpdr-dpml"), "each release is charged once"
    wait_for("the killed run to be called crashed", lambda: served.run(killed)["state_type"] == "CRASHED")


def test_a_port_in_use_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option in ("--prefect-port", "--mlflow-port"):
            done = subprocess.run(
                [sys.executable, "-m", "deployments.serving", "--root", str(tmp_path / "root"), option, str(port)],
                capture_output=True,
                text=True,
                timeout=60,
                env=environment(UNITBALL_PREFECT_PORT=str(free_port()), UNITBALL_MLFLOW_PORT=str(free_port())),
            )
            assert done.returncode == 1
            assert f"port {port} on 127.0.0.1 cannot be used" in done.stderr
            assert option in done.stderr
            assert "Traceback" not in done.stderr
    assert not (tmp_path / "root").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefect_port": 0}, "prefect port is 0"),
        ({"mlflow_port": 70000}, "mlflow port is 70000"),
        ({"prefect_port": 5000, "mlflow_port": 5000}, "cannot share port 5000"),
        ({"runs": 0}, "runs is 0"),
        ({"prefect_file": Path("/nowhere/prefect.yaml")}, "no file /nowhere/prefect.yaml"),
    ],
)
def test_what_cannot_be_served(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ServeError, match=message):
        Serving(**({"root": Path("root")} | changes))


def test_a_port_that_is_no_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("UNITBALL_PREFECT_PORT", "many")
    monkeypatch.setattr(serving, "_Signals", lambda: type("Signals", (), {"starting": True})())
    assert main([]) == 1
    assert "UNITBALL_PREFECT_PORT is 'many', not a number" in capsys.readouterr().err


def test_the_leash_ends_what_went_its_own_way(tmp_path: Path) -> None:
    """A child in a session of its own that ignores SIGTERM ends with its grandparent all the same."""
    note = tmp_path / "pids"
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    held = subprocess.Popen(
        [sys.executable, "-P", leash.__file__, sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        env=environment(**{leash.MARK: "a-mark-of-this-test"}),
    )
    wait_for("both", lambda: note.exists() and len(note.read_text().split()) == 2, 30, 0.05)
    pids = [int(word) for word in note.read_text().split()]
    time.sleep(0.5)
    assert held.stdin is not None
    held.stdin.close()
    held.wait(60)
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
