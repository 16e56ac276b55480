"""Limits of deployed runs; the rest is tested against a real server in tests/deployments/test_serving.py."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectAlreadyExists, PrefectHTTPStatusError

from tasks.runtime import ending as deployed
from tasks.runtime.ending import AT_WORK, LEASE_SECONDS, limit_name, one_run_a_dataset


class Server:
    """Stands for the server: what was asked of it, in order."""

    def __init__(self, status: int | None = None) -> None:
        self.asked: list[Any] = []
        self.status = status

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def upsert_global_concurrency_limit_by_name(self, name: str, limit: int) -> None:
        self.asked.append((name, limit))
        if self.status is not None:
            request = httpx.Request("POST", "http://127.0.0.1/api")
            error = PrefectHTTPStatusError("no", request=request, response=httpx.Response(self.status, request=request))
            # As Prefect's client does.
            raise ObjectAlreadyExists(http_exc=error) if self.status == 409 else error


def use(monkeypatch: pytest.MonkeyPatch, server: Server, deployment_id: str | None) -> None:
    @contextmanager
    def concurrency(name: str, **settings: Any) -> Any:
        assert settings["lease_duration"] == LEASE_SECONDS
        server.asked.append(("enter", name))
        yield
        server.asked.append(("leave", name))

    monkeypatch.setattr(deployed, "get_client", lambda sync_client: server)
    monkeypatch.setattr(deployed, "concurrency", concurrency)
    monkeypatch.setattr(deployed, "deployment", type("Deployment", (), {"id": deployment_id}))


def test_a_run_of_a_deployment_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    use(monkeypatch, server, "an-id")
    with one_run_a_dataset("digits"):
        server.asked.append("work")
    name = limit_name("digits")
    entered = [("enter", name), ("enter", AT_WORK)]
    assert server.asked == [(name, 1), *entered, "work", ("leave", AT_WORK), ("leave", name)]
    assert limit_name("wine") != name


def test_a_run_without_a_deployment_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    use(monkeypatch, server, None)
    with one_run_a_dataset("digits"):
        pass
    assert server.asked == []


@pytest.mark.parametrize("parent", [None, "a-task-run"])
def test_a_run_that_has_no_parent_says_itself_that_no_deployment_started_it(
    parent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    use(monkeypatch, server, "of-the-parent")
    run = SimpleNamespace(deployment_id=None, parent_task_run_id=parent)
    monkeypatch.setattr(FlowRunContext, "get", lambda: SimpleNamespace(flow_run=run))
    with one_run_a_dataset("digits"):
        pass
    assert (("enter", limit_name("digits")) in server.asked) == (parent is not None)


def test_a_limit_made_by_another_run_in_the_same_moment_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(status=409)
    use(monkeypatch, server, "an-id")
    with one_run_a_dataset("digits"):
        pass
    assert ("leave", limit_name("digits")) in server.asked
    broken = Server(status=500)
    use(monkeypatch, broken, "an-id")
    with pytest.raises(PrefectHTTPStatusError), one_run_a_dataset("digits"):
        pass
