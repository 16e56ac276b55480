"""A company's Prefect, with its password, by Prefect's own variables; MLflow's is tested with tracking."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments import serving
from tasks.host.engine import prefect_database
from tasks.runtime.services import credentials
from tests.support.command_line import CommandLine
from tests.support.engines import Engine
from tests.support.serving import PATIENCE, UNITBALL, Served, environment, processes_of, wait_for

RUN = ("--dataset", "iris", "--algorithm", "noisy-gd", "--epsilon", "5", "--parties", "2")


def with_password(engine: Engine, password: str) -> dict[str, str]:
    return environment(PREFECT_API_URL=engine.url, PREFECT_API_AUTH_STRING=password, DO_NOT_TRACK="1")


def flow_runs() -> list[str]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return [run.name for run in client.read_flow_runs()]


def train(root: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *UNITBALL, "train", *RUN, "--seed", "77", "--json", "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=variables, cwd=root.parent)


@pytest.mark.nightly
def test_a_run_against_a_prefect_with_a_password(engine: Engine, tmp_path: Path) -> None:
    root = tmp_path / "root"
    engine.prepare(root)
    refused = train(root, with_password(engine, "unitball:wrong"))
    assert refused.returncode != 0
    assert "PREFECT_API_AUTH_STRING" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
    before = flow_runs()
    done = train(root, with_password(engine, credentials(engine.root).basic))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(flow_runs()) == len(before) + 1
    assert result["metrics"]["accuracy"] > 0.5
    # The server's database is the company's; rows, ledger and results are the root's.
    assert not prefect_database(root).exists()
    assert (root / "ledger.sqlite").exists()


def test_the_runner_alone_wants_a_server(commands: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    commands("serve", "--runner-only").refused(1, "PREFECT_API_URL", "PREFECT_API_AUTH_STRING")


@contextlib.contextmanager
def runner_alone(root: Path, served: Served, *arguments: str) -> Any:
    variables = environment(PREFECT_API_URL=served.api, PREFECT_API_AUTH_STRING=served.secret.basic, DO_NOT_TRACK="1")
    output = root.with_suffix(".output")
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *UNITBALL, "serve", "--runner-only", "--root", str(root), *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=root.parent,
        )
    try:
        wait_for("ready", lambda: "ready;" in output.read_text() or process.poll() is not None)
        yield process, output
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(300)


@pytest.mark.nightly
def test_the_runner_alone_on_a_shared_prefect(served: Served, engine: Engine, tmp_path: Path) -> None:
    """Its deployments run on its root; those of the other root stay, whatever it is stopped or started."""
    root = tmp_path / "root"
    engine.prepare(root)
    with runner_alone(root, served) as (process, output):
        assert process.wait(PATIENCE) != 0
        assert "another root" in output.read_text()
    theirs = {one["id"]: one["name"] for one in served.ask("/deployments/filter")}

    plan = yaml.safe_load(serving.DEPLOYMENTS.read_text())
    plan["deployments"] = [{**plan["deployments"][0], "name": "second-team"}]
    file = tmp_path / "prefect.yaml"
    file.write_text(yaml.safe_dump(plan))
    with runner_alone(root, served, "--prefect-file", str(file)) as (process, output):
        assert process.poll() is None, output.read_text()
        found = {one["id"]: one["name"] for one in served.ask("/deployments/filter")}
        assert theirs.items() < found.items()
        (ours,) = found.keys() - theirs.keys()
        config = {"dataset": "iris", "algorithm": "noisy-gd", "epsilon": 1.0}
        body = {"parameters": config, "state": {"type": "SCHEDULED"}}
        run = served.call("POST", f"/deployments/{ours}/create_flow_run", body)
        finished = served.finished(run["id"])
        assert finished["state_type"] == "COMPLETED", finished["state"]["message"]
        assert (root / "ledger.sqlite").exists()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(300) == 0
    assert not processes_of(root)
    assert theirs.items() <= {one["id"]: one["name"] for one in served.ask("/deployments/filter")}.items()
