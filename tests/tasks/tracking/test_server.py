"""A team's MLflow server with authentication, named as MLflow's own users name it."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from storage.layout import Layout
from tasks.host.engine import prepare_tracking
from tasks.runtime.settings import TrackingError, isolated_root, own_database, server_address, use_tracking_uri
from tasks.tracking.runs import (
    PARENT,
    POINT_KEY,
    Entries,
    SweepTracker,
    runs_with,
    track_run,
    tracking_client,
    try_logging,
)
from tests.support.processes import clean_environment
from tests.support.tracking import comparison_path
from tests.tasks.tracking.test_runs import a_report

PASSWORD = "correct horse battery staple"
NAMES = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


# The command, whose server is a process that imports all of it once more, in one process.
_SERVER = """
import os, runpy, sys
import mlflow.server

def here(command, *, extra_env, **_):
    os.environ.update(extra_env)
    sys.argv = command[2:]
    runpy.run_module("uvicorn", run_name="__main__")

mlflow.server._exec_cmd = here
sys.argv = ["mlflow", "server", "--app-name", "basic-auth", *sys.argv[1:]]
runpy.run_module("mlflow", run_name="__main__")
"""


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, tracking_copied: Callable[[Path], None]
) -> Iterator[tuple[str, Path]]:
    """Start a server by its documented command; return its address and folder."""
    folder = tmp_path_factory.mktemp("server")
    tracking_copied(folder / "made")
    settings = folder / "auth.ini"
    settings.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder}/users.db\nadmin_username = admin\n"
        f"admin_password = {PASSWORD}\nauth_cache_ttl_seconds = 600\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    stores = ["--backend-store-uri", f"sqlite:///{Layout(folder / 'made').mlflow_database}"]
    stores += ["--artifacts-destination", str(folder / "artifacts")]
    where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVER, *stores, *where],
        env=clean_environment(
            MLFLOW_AUTH_CONFIG_PATH=str(settings),
            MLFLOW_FLASK_SERVER_SECRET_KEY="of this test",
            MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
            MLFLOW_DISABLE_TELEMETRY="true",
        ),
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("wb"),
        start_new_session=True,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 600
        while not _answers(address):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.3)
        yield address, folder
    finally:
        os.killpg(process.pid, 15)
        process.wait(300)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/health", timeout=300).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Layout(tmp_path / "root").prepare().root


def _log_in(monkeypatch: pytest.MonkeyPatch, address: str, password: str) -> None:
    for name, value in zip(NAMES, (address, "admin", password), strict=True):
        monkeypatch.setenv(name, value)


def test_runs_models_and_artifacts_go_to_the_server(
    server: tuple[str, Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    _log_in(monkeypatch, address, PASSWORD)
    report = a_report()
    run_id = track_run(root, report)
    assert track_run(root, report) == run_id, "logged once"
    assert comparison_path(root, "digits")
    assert os.environ["MLFLOW_TRACKING_URI"] == address

    import mlflow

    client = mlflow.MlflowClient(tracking_uri=address)
    run = client.get_run(run_id)
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    assert run.data.metrics["accuracy"] == 0.8
    assert len(client.search_runs([run.info.experiment_id])) == 1
    raw = np.random.default_rng(3).normal(size=(10, 8))
    assert report.model is not None
    loaded = mlflow.sklearn.load_model("models:/digits.fed/1")
    assert loaded.predict(raw).tolist() == report.model.pipeline.predict(raw).tolist()
    stored = [path.name for path in (folder / "artifacts").rglob("*") if path.is_file()]
    assert {"result.json", "model.skops"} <= set(stored)
    assert not Layout(root).mlflow_database.exists()
    assert not list(Layout(root).artifacts.iterdir())


def test_an_unfinished_run_of_another_root_is_left_alone(
    server: tuple[str, Path], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _log_in(monkeypatch, server[0], PASSWORD)
    report = a_report(run_key="shared", model=None)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=server[0])
    elsewhere = track_run(Layout(tmp_path / "other").prepare().root, report)
    client.update_run(elsewhere, status="RUNNING")
    mine = track_run(root, report)
    assert mine != elsewhere
    assert client.get_run(elsewhere).info.lifecycle_stage == "active"


def test_a_sweep_goes_to_the_server(server: tuple[str, Path], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _log_in(monkeypatch, server[0], PASSWORD)
    sweep = SweepTracker(root, experiment="a-sweep", key="k", name="A sweep", tags={"paper": "none"})
    sweep.write("1", Entries(name="one", metrics={"accuracy": 0.5}))
    sweep.write("2", Entries(name="two"), error="no")
    sweep.close(metrics={"points": 2}, files={"sweep.json": "{}"}, note="Why?")
    again = SweepTracker(root, experiment="a-sweep", key="k", name="A sweep", tags={"paper": "none"})
    assert again.run_id == sweep.run_id
    again.write("1", Entries(name="one", metrics={"accuracy": 0.5}))
    again.write("2", Entries(name="two"), error="no")
    with tracking_client(root) as client:
        experiment = client.get_run(sweep.run_id).info.experiment_id
        children = runs_with(client, experiment, PARENT, sweep.run_id)
    assert sorted((one.data.tags[POINT_KEY], one.info.status) for one in children) == [
        ("1", "FINISHED"),
        ("2", "FAILED"),
    ]


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_refusal_is_said_before_anything_is_charged(
    server: tuple[str, Path], root: Path, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    _log_in(monkeypatch, server[0].replace("://", "://somebody:secret@"), password)
    with pytest.raises(TrackingError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        prepare_tracking(root)
    assert server_address() == server[0]
    assert server[0] in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_who_may_only_read_an_experiment_is_told_before_anything_is_charged(
    server: tuple[str, Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _log_in(monkeypatch, server[0], PASSWORD)
    try_logging(root, "of-the-team")
    # What was tried has left nothing.
    assert not list((server[1] / "artifacts").rglob(".tried-*"))
    from mlflow.server import get_app_client

    get_app_client("basic-auth", tracking_uri=server[0]).create_user("clerk", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "clerk")
    with pytest.raises(TrackingError, match=r"ermission.*MLFLOW_TRACKING_URI"):
        try_logging(root, "of-the-team")


def test_a_server_that_does_not_answer_is_said_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once: MLflow by itself asks again and again, for minutes."""
    asked: list[int] = []

    class HangingUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.client_address[1])

    with socketserver.TCPServer(("127.0.0.1", 0), HangingUp) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        _log_in(monkeypatch, address, "")
        with pytest.raises(TrackingError, match=f"MLflow.*{address}.*refuses"):
            prepare_tracking(root)
        server.shutdown()
    assert len(asked) == 1


def test_where_runs_go_never_shows_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another root that is worked on within, as an audit does, leaves MLflow pointed to where it was: nowhere."""
    import mlflow

    monkeypatch.delenv(NAMES[0], raising=False)
    mlflow.set_tracking_uri(None)
    outer, inner = (Layout(tmp_path / name).prepare().root for name in ("outer", "inner"))
    with use_tracking_uri(outer):
        assert NAMES[0] not in os.environ
        assert mlflow.get_tracking_uri() == own_database(outer)
        with isolated_root(inner), use_tracking_uri(inner):
            assert mlflow.get_tracking_uri() == own_database(inner)
        assert mlflow.get_tracking_uri() == own_database(outer)
    assert NAMES[0] not in os.environ
    assert not mlflow.is_tracking_uri_set()
