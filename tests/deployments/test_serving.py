"""`unitball serve` for real: server, runner and MLflow; runs by schedule, event and hand; each part killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deployments.serving import ServeError, Serving, serve
from tasks.host import process_guard
from tasks.runtime.events import Event, log_event
from tasks.runtime.services import credentials_file
from tests.support.command_line import CommandLine
from tests.support.private_rows import ingestion, write_rows
from tests.support.processes import has_ended
from tests.support.serving import UNITBALL, Served, attacked, environment, free_port, rows_file, wait_for

SEED = 7


def test_addresses_are_printed_and_answer(served: Served) -> None:
    said = served.output.read_text()
    assert served.api in said
    assert served.mlflow in said
    assert str(credentials_file(served.root)) in said
    assert served.secret.password not in said
    for address in (served.api + "/health", served.api.removesuffix("/api"), served.mlflow + "/health"):
        with urllib.request.urlopen(address, timeout=300) as answer:
            assert answer.status == 200
    found = {one["name"]: one for one in served.ask("/deployments/filter")}
    assert set(found) == {
        *(
            "train",
            "audit",
            "budget",
            "score",
            "sweep",
            "reproduce",
            "compare",
            "describe",
            "synthesise",
            "reduce",
            "arrivals.nightly",
        ),
    }
    audit, arrivals = found["audit"], found["arrivals.nightly"]
    form = found["train"]["parameter_openapi_schema"]["properties"]
    assert list(form) == ["dataset", "epsilon", "algorithm", "trust", "features", "name", "seed", "more"]
    assert {"arrivals", "digits"} <= set(form["dataset"]["enum"])
    # What a data set's owner has set, and nothing for any other set.
    assert arrivals["parameters"]["dataset"] == "arrivals"
    assert [schedule["schedule"].get("cron") for schedule in arrivals["schedules"]] == ["0 3 * * *"]
    # The audit runs on a schedule only where somebody has asked for it.
    assert [(one["schedule"].get("cron"), one["active"]) for one in audit["schedules"]] == [("0 4 * * 0", False)]


@pytest.mark.nightly
@pytest.mark.parametrize(("field", "value"), [("epsilon", -3), ("algorithm", "no-such-algorithm")])
def test_a_bad_value_is_refused_by_its_name(field: str, value: Any, served: Served) -> None:
    """Before a run is made of it, where one would fail after its start."""
    words = ("--param", "dataset=digits", "--param", f"{field}={json.dumps(value)}")
    done = served.command("-m", "prefect", "deployment", "run", "federated-training/train", *words)
    assert done.returncode != 0
    assert field in done.stdout + done.stderr
    given = [run["parameters"] for run in served.ask("/flow_runs/filter")]
    assert value not in [one.get(field) for one in given], "a run was made of it"


@pytest.mark.nightly
def test_runs_of_one_data_set_go_one_after_the_other(served: Served) -> None:
    config: dict[str, Any] = {"dataset": "digits", "algorithm": "noisy-gd", "epsilon": 1.0}
    first, second = served.start_run(**config), served.start_run(**config, replicate=1)
    for run_id in (first, second):
        run = served.finished(run_id)
        assert run["state_type"] == "COMPLETED", run["state"]["message"]

    def span(run_id: str) -> tuple[str, str]:
        work = [task for task in served.tasks(run_id) if task["end_time"]]
        return min(task["start_time"] for task in work), max(task["end_time"] for task in work)

    early, late = sorted([span(first), span(second)])
    assert early[1] <= late[0], "two runs of one data set worked at the same time"


def _deployment(served: Served, name: str) -> dict[str, Any]:
    (found,) = (one for one in served.ask("/deployments/filter") if one["name"] == name)
    return dict(found)


def _dataset_of(run: dict[str, Any]) -> str | None:
    # Runs inside a run (of tasks, of flows that a command starts beside) have other parameters.
    dataset: str | None = run["parameters"].get("dataset")
    return dataset


@pytest.mark.nightly
def test_triggered_run(served: Served, tmp_path: Path) -> None:
    """A new version starts a run where its owner has said so; of a set without a schedule none does."""

    earlier = {run["id"] for run in served.runs()}

    def triggered() -> list[dict[str, Any]]:
        return [run for run in served.runs() if run["id"] not in earlier and _dataset_of(run) == "arrivals"]

    names = ("unscheduled", "unscheduled", "arrivals")
    paths = [rows_file(tmp_path / f"{number}.libsvm", 210 + number) for number in range(3)]
    outputs = served.unitball_each(
        *(
            ["ingest", name, "--format", "libsvm", "--path", path, "--public"]
            for name, path in zip(names, paths, strict=True)
        )
    )
    assert ["federated-training/arrivals.nightly" in output for output in outputs] == [False, False, True]
    (run,) = wait_for("a run after the event", triggered)
    assert not run["auto_scheduled"]
    finished = served.finished(run["id"])
    assert finished["state_type"] == "COMPLETED", finished["state"]["message"]
    assert "unscheduled" not in [_dataset_of(one) for one in served.runs()]


@pytest.mark.nightly
def test_a_run_from_a_notebook_is_found_on_the_pages(served: Served) -> None:
    """The running server and its secret are found from the root alone, and shown nowhere."""
    code = (
        "import unitball; model = unitball.train('iris', algorithm='noisy-gd', epsilon=1.0, parties=2); "
        "print(model.result.prefect_flow_run_id, model.pipeline is not None, unitball.train('iris', "
        "algorithm='noisy-gd', epsilon=1.0, parties=2).result.accuracy == model.result.accuracy)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(UNITBALL_ROOT=str(served.root), UNITBALL_LEDGER_MARK=os.environ["UNITBALL_LEDGER_MARK"]),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_id, pipeline, equal = done.stdout.split()
    assert (pipeline, equal) == ("True", "True")
    run = served.call("GET", f"/flow_runs/{run_id}")
    assert run["state_type"] == "COMPLETED"
    assert run["name"] == "noisy-gd on iris"
    assert served.secret.password not in done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("by", ["api", "command"])
def test_a_refusal_ends_in_a_state_of_that_name_and_is_not_retried(by: str, served: Served, tmp_path: Path) -> None:
    """Whatever a holder of the secret writes into the deployment or the run: another flow is not run."""
    # Rows of one account would be refused under another.
    path = rows_file(tmp_path / "rows.libsvm", 200, seed=len(by))
    declared = [
        "--dimension",
        "5",
        "--classes=-1,1",
        "--account",
        f"patients-{by}",
        "--epsilon-cap",
        "1",
        "--delta-cap",
        "1e-5",
    ]
    name = f"clinic-{by}"
    served.unitball("ingest", name, "--format", "libsvm", "--path", path, *declared)
    # The runner lists it in the form once it has looked at the ledger again.
    wait_for("the data set in the form", lambda: name in json.dumps(_deployment(served, "train")))
    canary = attacked(served, tmp_path)
    if by == "api":
        command = {"command": f"touch {canary}"}
        run_id = served.start_run(dataset=name, algorithm="noisy-gd", epsilon=5.0, delta=1e-5, job_variables=command)
    else:
        # The one that the pages of help name.
        asked = {"dataset": name, "algorithm": "noisy-gd", "epsilon": 5.0, "more": {"delta": 1e-5}}
        given = [word for key, value in asked.items() for word in ("--param", f"{key}={json.dumps(value)}")]
        done = served.command("-m", "prefect", "deployment", "run", "federated-training/train", *given)
        assert done.returncode == 0, done.stdout + done.stderr
        run_id = next(line.split("UUID:")[1].strip() for line in done.stdout.splitlines() if "UUID:" in line)
    finished = served.finished(run_id)
    assert (finished["state_type"], finished["state_name"]) == ("FAILED", "BudgetExhausted")
    assert "Refused for privacy" in finished["state"]["message"]
    assert finished["run_count"] == 1
    assert finished["name"] == f"noisy-gd on {name}", "another flow ran"
    assert not canary.exists()
    (alert,) = wait_for("the webhook", lambda: [one for one in served.alerts if one["about"].endswith(name)])
    assert alert["event"] == "unitball.run.refused"
    assert "remaining: one more run with Gaussian noise of epsilon up to" in alert["payload"]["reason"]
    report = json.loads(served.unitball("budget", name, "--json"))
    assert all(party["epsilon_spent"] <= 1 for party in report["parties"])


def test_scheduled_run(served: Served, served_commands: CommandLine, tmp_path: Path) -> None:
    """The schedule of the deployments' file has reached the server; with dates every few seconds it starts runs.

    Whatever a holder of the secret writes into the deployment: the runner runs the flow that it has imported. It lists
    data sets that come later, and sends alerts.
    """
    rows = write_rows(tmp_path / "rows.libsvm", 200)
    served_commands.succeeds(*ingestion(rows, name="clinic-later"))
    # Once it has looked at the ledger again.
    wait_for("the data set in the form", lambda: "clinic-later" in json.dumps(_deployment(served, "train")))
    canary = attacked(served, tmp_path)

    def scheduled() -> list[dict[str, Any]]:
        return [run for run in served.runs() if run["auto_scheduled"] and _dataset_of(run) == "wine"]

    train = _deployment(served, "train")
    (soon,) = (one for one in train["schedules"] if one["slug"] == "soon")
    assert not scheduled()
    # Whenever it is looked at, a date is near that has not passed.
    near = {"schedule": {"interval": 15}, "active": soon["active"], "slug": "near", "parameters": soon["parameters"]}
    at = f"/deployments/{train['id']}"
    (made,) = served.call("POST", f"{at}/schedules", [near])
    # New schedules alone are looked at once a minute, a deployment that was changed within five seconds.
    served.call("PATCH", at, {"description": train["description"]})
    run = wait_for("a scheduled run", scheduled)[0]
    served.call("DELETE", f"{at}/schedules/{made['id']}")
    finished = served.finished(run["id"])
    assert finished["state_type"] == "COMPLETED", finished["state"]["message"]
    assert finished["run_count"] == 1
    assert finished["name"] == "noisy-gd on wine", "another flow ran"
    assert not canary.exists()
    log_event(str(Event.REFUSED), dataset="clinic-later", details={"reason": "remaining: 1"})
    (alert,) = wait_for("the webhook", lambda: [one for one in served.alerts if one["about"].endswith("clinic-later")])
    assert (alert["event"], alert["payload"]["reason"]) == ("unitball.run.refused", "remaining: 1")


def charges(report: dict[str, Any], algorithm: str, before: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return what each party was charged for by the runs of one algorithm, keys of earlier charges apart."""
    return {
        party["party"]: sorted(
            charge["label"] for charge in party["charges"] if charge["run"] == algorithm and charge["key"] not in before
        )
        for party in report["parties"]
    }


@pytest.mark.nightly
def test_the_runner_killed_in_the_middle(served: Served, tmp_path: Path) -> None:
    """The runner is killed after the charge and takes its run along; the next run finishes it, charged once."""
    config: dict[str, Any] = {"dataset": "digits", "algorithm": "fed-dpdr-dpml", "epsilon": 1.0, "seed": SEED}
    words = [f"--{name}={value}" for name, value in config.items()]
    # Other tests have trained on this root, too.
    served.unitball("train", "--dataset", "digits", "--algorithm", "noisy-gd", "--epsilon", "1")
    paid = json.loads(served.unitball("budget", "digits", "--json"))
    before = [charge["key"] for party in paid["parties"] for charge in party["charges"]]
    killed = served.start_run(**config)

    def charged() -> bool:
        return any(
            task["name"].startswith("charge") and task["state_type"] == "COMPLETED" for task in served.tasks(killed)
        )

    wait_for("the charge", charged, every=0.02)
    for process in served.processes("deployments.runner"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert served.run(killed)["state_type"] == "RUNNING", "the kill came too late to be in the middle"
    wait_for("a new runner", lambda: "the runner ended" in served.output.read_text())

    again = served.finished(served.start_run(**config))
    assert again["state_type"] == "COMPLETED", again["state"]["message"]
    after = json.loads(served.unitball("budget", "digits", "--json"))

    other = served.command(*UNITBALL, "train", "--root", str(tmp_path / "undisturbed"), *words, "--json")
    assert other.returncode == 0, other.stderr
    undisturbed = json.loads(other.stdout)
    result = json.loads(served.unitball("train", *words, "--json"))
    assert result["cached"] is True
    assert result["metrics"] == undisturbed["metrics"]
    assert result["epsilon_spent"] == undisturbed["epsilon_spent"]
    only = json.loads(served.unitball("budget", "digits", "--json", "--root", str(tmp_path / "undisturbed")))
    assert any(charges(only, "fed-dpdr-dpml").values())
    assert charges(after, "fed-dpdr-dpml", before) == charges(only, "fed-dpdr-dpml"), "each release is charged once"
    wait_for("the killed run to be called crashed", lambda: served.run(killed)["state_type"] == "CRASHED")


@pytest.mark.parametrize("option", ["--prefect-port", "--mlflow-port"])
def test_a_port_in_use_is_said_to_be(option: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = {"prefect_port": free_port(), "mlflow_port": free_port()}
        asked = free | {option.removeprefix("--").replace("-", "_"): port}
        with pytest.raises(ServeError, match=f"port {port} on 127.0.0.1.*{option}"):
            serve(Serving(root=tmp_path / "root", **asked)).__enter__()
    assert not (tmp_path / "root" / "prefect" / "prefect.db").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefect_port": 0}, "prefect port.*0"),
        ({"mlflow_port": 70000}, "port.*70000"),
        ({"prefect_port": 5000, "mlflow_port": 5000}, "5000"),
        ({"runs": 0}, "runs.*0"),
        ({"prefect_file": Path("/nowhere/prefect.yaml")}, "file /nowhere/prefect.yaml"),
    ],
)
def test_what_cannot_be_served(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ServeError, match=message):
        Serving(**({"root": Path("root")} | changes))


def test_a_port_that_is_no_number(commands: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_PREFECT_PORT", "many")
    commands("serve").refused(2, "--prefect-port", "integer")
    assert not (commands.root / "prefect" / "prefect.db").exists(), "nothing was begun"


def test_the_leash_ends_the_whole_process_group(tmp_path: Path) -> None:
    """A grandchild that ignores SIGTERM ends with whoever holds the guard, and so does one that its parent left."""
    note = tmp_path / "pids"
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {stubborn!r}])\n"
        f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600 if len(sys.argv) == 1 else 0)\n"
    )
    for arguments in ([], ["leaves its child"]):
        note.unlink(missing_ok=True)
        held = subprocess.Popen(
            [sys.executable, "-I", "-S", process_guard.__file__, sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            env=environment(),
        )
        wait_for("both", lambda: note.exists() and len(note.read_text().split()) == 2, every=0.05)
        pids = [int(word) for word in note.read_text().split()]
        if not arguments:
            time.sleep(0.5)
            assert all(Path(f"/proc/{pid}").exists() for pid in pids)
            assert held.stdin is not None
            held.stdin.close()
        held.wait(300)
        for pid in pids:
            wait_for(f"the end of {pid}", partial(has_ended, pid), every=0.05)
