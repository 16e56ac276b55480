"""A party behind a Prefect server, in one process: what it answers, and that a deployment chooses nothing it runs."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from httpx import ConnectError, ReadTimeout
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound

from deployments import federation
from flows.party import DATASET_VARIABLE, ROSTER_VARIABLE
from storage.secrets import root_secret
from tasks.datasets.registration import ingest
from tasks.federation.messages import Answer, Ask, Request, fingerprint, identity_key
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import current_layout
from tests.support.engines import Engine
from tests.support.private_rows import write_rows
from tests.support.serving import attacks
from tests.tasks.federation.test_federation import clinic


@pytest.fixture
def berlin(root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SyncPrefectClient, UUID]]:
    """Register a party's deployment, as it does when it serves."""
    ingest(clinic("berlin", write_rows(root.parent / "rows.txt", 60).path))
    own = fingerprint(identity_key(root_secret(current_layout())).public_key())
    roster = root.parent / "roster.yaml"
    roster.write_text(yaml.safe_dump({"parties": {"berlin": own, "lyon": "0" * 64}}))
    monkeypatch.setenv(DATASET_VARIABLE, "clinic")
    monkeypatch.setenv(ROSTER_VARIABLE, str(roster))
    with get_client(sync_client=True) as client:
        yield client, federation.registered("berlin")


def asked(client: SyncPrefectClient, deployment: UUID, request: Request, seconds: float = 120.0) -> Answer | None:
    """Ask as a coordinator does, while the party looks what waits for it."""
    found: list[Answer | None] = []
    # Which server it is, the engine of the tests keeps in the context, not in the environment.
    context = contextvars.copy_context()
    asking = threading.Thread(target=lambda: found.append(context.run(federation.posting(seconds), "berlin", request)))
    asking.start()
    while asking.is_alive():
        federation.answered(client, deployment)
    return found[0]


def test_a_request_is_answered_whatever_the_deployment_says_of_code(
    berlin: tuple[SyncPrefectClient, UUID], tmp_path: Path
) -> None:
    """Pull steps, another entry point and job variables, set by a holder of the coordinator's password."""
    client, deployment = berlin
    canary = tmp_path / "canary"
    canary.with_suffix(".py").write_text(f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n")
    for change in attacks(canary):
        client.request("PATCH", "/deployments/{id}", path_params={"id": deployment}, json=change).raise_for_status()
    assert client.read_deployment(deployment).pull_steps, "the attack did not arrive"
    answer = asked(client, deployment, Request(ask=Ask.DESCRIBE, config=TrainingConfig(dataset="x", trust="secagg")))
    assert answer is not None
    assert (answer.party, answer.status) == ("berlin", "done")
    assert not canary.exists()


def test_parameters_that_are_no_request_end_the_run_and_the_party_goes_on(
    berlin: tuple[SyncPrefectClient, UUID],
) -> None:
    client, deployment = berlin
    client.request(
        "PATCH", "/deployments/{id}", path_params={"id": deployment}, json={"enforce_parameter_schema": False}
    ).raise_for_status()
    for parameters in ({"request": {"ask": "rows", "config": {}}}, {"path": "/etc"}, {}):
        run = client.create_flow_run_from_deployment(deployment, parameters=parameters)
        assert federation.answered(client, deployment)
        state = client.read_flow_run(run.id).state
        assert state is not None
        assert state.is_failed()
    assert not federation.answered(client, deployment)


@pytest.mark.parametrize("failure", [ReadTimeout("slow"), ConnectError("gone")], ids=["slow", "gone"])
def test_a_coordinator_that_is_gone_is_said_in_a_line_and_once(
    failure: Exception,
    berlin: tuple[SyncPrefectClient, UUID],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """httpx's traceback was printed, three times a second."""
    seen: list[int] = []

    def gone(*_: object) -> bool:
        seen.append(1)
        if len(seen) in (1, 2, 3, 5):
            raise failure
        if len(seen) == 6:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(federation, "answered", gone)
    monkeypatch.setattr(federation, "registered", lambda name: berlin[1])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with caplog.at_level("WARNING"), pytest.raises(KeyboardInterrupt):
        federation.serve_party("clinic", Path(os.environ[ROSTER_VARIABLE]))
    said = [record for record in caplog.records if record.name == federation.__name__]
    assert not any(record.exc_info for record in said)
    lines = [record.getMessage() for record in said]
    assert len(lines) == 3, "gone, there again, gone"
    assert "does not answer" in lines[0]
    assert type(failure).__name__ in lines[0]
    assert lines[1] == "the coordinator's server answers again"
    assert lines[2] == lines[0]


def test_what_the_server_refuses_is_said_in_a_line(
    berlin: tuple[SyncPrefectClient, UUID], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, deployment = berlin

    def refuse(*_: object, **__: object) -> None:
        raise ObjectNotFound(ValueError("no such thing"))

    monkeypatch.setattr(client, "get_scheduled_flow_runs_for_deployments", refuse)
    with caplog.at_level("WARNING"):
        assert not federation.answered(client, deployment)
    (record,) = [one for one in caplog.records if one.name == federation.__name__]
    assert record.exc_info is None
    assert "could not answer a request: ObjectNotFound" in record.getMessage()
