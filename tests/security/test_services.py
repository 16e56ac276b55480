"""Attacks on the services: by another user, by a web page in the operator's browser, by a holder of the secret."""

from __future__ import annotations

import http.client
import json
import re
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deployments.runner import read_deployments
from storage.errors import InputError
from storage.layout import Layout
from tasks.runtime.credentials import credentials
from tasks.runtime.engine import prefect_database
from tests.support.engines import Engine
from tests.support.serving import Served, processes_of, wait_for

# What answers without the secret, and nothing else: probes, and the page before anybody has logged in.
PREFECT_OPEN = {
    ("GET", "/api/health"),
    ("GET", "/api/ready"),
    ("GET", "/"),
    ("GET", "/v2/"),
    ("GET", "/ui-settings"),
    ("GET", "/docs"),
    ("GET", "/docs/oauth2-redirect"),
    ("GET", "/redoc"),
    ("GET", "/openapi.json"),
}
MLFLOW_OPEN = {
    ("GET", "/health"),
    ("GET", "/ajax-api/3.0/mlflow/server-info"),
    ("GET", "/api/3.0/mlflow/server-info"),
}
STRANGERS: list[dict[str, str]] = [
    {},
    {"Host": "evil.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://127.0.0.1:1", "Host": "localhost"},
    {"Authorization": "Basic dW5pdGJhbGw6Z3Vlc3NlZA=="},
    {"Authorization": "Bearer x"},
    {"Authorization": "Basic"},
    {"Prefect-Csrf-Token": "x", "Prefect-Csrf-Client": "x"},
]
NOBODY = "00000000-0000-0000-0000-000000000000"


def answer(address: str, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, Any]:
    """Return status and headers."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        connection.request(method, path, body, headers)
        got = connection.getresponse()
        got.read()
        return got.status, got.headers
    finally:
        connection.close()


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}|<[^>]*>", NOBODY, path)


def prefect_routes(api: str) -> list[tuple[str, str]]:
    """Return every route of the API, read from the description of it that the server itself gives."""
    with urllib.request.urlopen(api.removesuffix("/api") + "/openapi.json", timeout=30) as found:
        paths = json.load(found)["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert len(routes) > 150
    return [(method, path if path.startswith("/api") else f"/api{path}") for method, path in routes]


def refused(address: str, routes: list[tuple[str, str]], allowed: set[tuple[str, str]]) -> None:
    """Check that each route but the allowed ones is refused to a stranger, and the first ones to every stranger."""
    answered = set()
    for number, (method, path) in enumerate(routes):
        for headers in STRANGERS if number % 25 == 0 else STRANGERS[:1]:
            body = None if method in ("GET", "HEAD") else b"{}"
            status, _ = answer(address, method, filled(path), {"Content-Type": "application/json", **headers}, body)
            # MLflow breaks off where it is shown a scheme that it does not know.
            if status not in (401, 403) and not (status == 500 and headers.get("Authorization") == "Bearer x"):
                answered.add((method, path))
    assert answered <= allowed, f"answered without the secret: {sorted(answered - allowed)}"


def test_prefects_api_answers_nobody_without_the_secret(served: Served) -> None:
    refused(served.api, prefect_routes(served.api), PREFECT_OPEN)


def test_the_open_paths_are_these(served: Served) -> None:
    address = served.api.removesuffix("/api")
    for method, path in sorted(PREFECT_OPEN):
        status, _ = answer(address, method, path, {})
        assert status == 200, (path, status)
    for path in ("/api//health", "/api/health/", "/api/HEALTH", "/api/x/health", "/api/version", "/api/openapi.json"):
        assert answer(address, "GET", path, {})[0] == 401, path
    # The paths that need no password must hold none.
    for path in ("/", "/ui-settings", "/openapi.json"):
        with urllib.request.urlopen(address + path, timeout=30) as page:
            assert served.secret.password not in page.read().decode()


def test_a_web_page_cannot_use_the_operators_browser(served: Served) -> None:
    """Neither may it read an answer, nor can it forge a request although the browser shows the password."""
    foreign = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    status, headers = answer(served.api, "OPTIONS", "/api/flows/filter", foreign)
    assert status == 400
    assert "Access-Control-Allow-Origin" not in headers
    forged = {"Origin": "http://evil.example", "Content-Type": "text/plain", "Authorization": served.authorization}
    assert answer(served.api, "POST", "/api/flows/filter", forged, b"{}")[0] == 403
    _, headers = answer(served.api, "GET", "/api/version", {**foreign, "Authorization": served.authorization})
    assert "Access-Control-Allow-Origin" not in headers
    for name in ("127.0.0.1", "localhost"):
        own = f"http://{name}:{urlsplit(served.api).port}"
        _, headers = answer(served.api, "OPTIONS", "/api/flows/filter", {**foreign, "Origin": own})
        assert headers["Access-Control-Allow-Origin"] == own


@pytest.mark.parametrize(
    "path",
    [
        "/events/in",
        "/events/out",
        "/logs/out",
        "/task_runs/subscriptions/scheduled",
        "/work_pools/unitball/workers/connect",
    ],
)
@pytest.mark.parametrize("whose", ["served", "embedded"])
def test_websockets_refuse_too(path: str, whose: str, served: Served, engine: Engine) -> None:
    from websockets.exceptions import ConnectionClosed, InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    api, secret = (served.api, served.secret) if whose == "served" else (engine.url, credentials(engine.root))
    address = api.replace("http://", "ws://") + path

    def try_it(protocols: list[Subprotocol] | None, first: dict[str, Any]) -> Any:
        with connect(address, subprotocols=protocols, open_timeout=30) as socket:
            socket.send(json.dumps(first))
            return json.loads(socket.recv(timeout=30))

    speaks = [Subprotocol("prefect")]
    attempts: list[tuple[list[Subprotocol] | None, dict[str, Any]]] = [
        (None, {"type": "filter", "filter": {}}),
        (speaks, {"type": "filter", "filter": {}}),
        (speaks, {"type": "auth"}),
        (speaks, {"type": "auth", "token": ""}),
        (speaks, {"type": "auth", "token": "unitball:guessed"}),
    ]
    for protocols, first in attempts:
        with pytest.raises((ConnectionClosed, InvalidStatus)):
            try_it(protocols, first)
    if path == "/events/out":
        assert try_it(speaks, {"type": "auth", "token": secret.basic}) == {"type": "auth_success"}


def test_the_embedded_server_answers_nobody_without_the_secret(engine: Engine) -> None:
    """Each `train` has a server of its own while it runs; it has no page, and no other path is open."""
    routes = prefect_routes(engine.url)
    refused(engine.url, routes[::3], PREFECT_OPEN)
    status, _ = answer(engine.url, "POST", "/api/work_pools/", {"Content-Type": "application/json"}, b"{}")
    assert status == 401


def test_mlflow_answers_nobody_without_the_secret(served: Served) -> None:
    from mlflow.server import app

    routes = [
        (method, str(rule.rule))
        for rule in app.url_map.iter_rules()
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
    ]
    assert len(routes) > 200
    routes += [("POST", "/v1/traces"), ("POST", "/graphql"), ("GET", "/ajax-api/3.0/jobs/x"), ("GET", "/openapi.json")]
    routes += [("POST", "/ajax-api/3.0/mlflow/assistant/message"), ("POST", "/gateway/x/invocations"), ("GET", "/docs")]
    static = {(method, path) for method, path in routes if path.startswith("/static-files/")}
    refused(
        served.mlflow, routes[::2], MLFLOW_OPEN | static | {("GET", "/health"), ("GET", "/static-files/<path:path>")}
    )


def test_mlflow_refuses_foreign_names_and_pages_even_with_the_secret(served: Served) -> None:
    path = "/api/2.0/mlflow/experiments/search?max_results=1"
    secret = {"Authorization": served.authorization, "Content-Type": "application/json"}
    assert answer(served.mlflow, "GET", path, secret)[0] == 200
    assert answer(served.mlflow, "GET", path, {**secret, "Host": "evil.example"})[0] == 403
    create = "/api/2.0/mlflow/experiments/create"
    forged = {**secret, "Origin": "http://evil.example"}
    assert answer(served.mlflow, "POST", create, forged, b'{"name": "forged"}')[0] == 403


def test_mlflow_gives_a_user_of_its_own_nothing_by_default(served: Served) -> None:
    """Who is given a name in MLflow sees what was granted to that name."""
    create = json.dumps({"username": "guest", "password": "a guest's password"}).encode()
    admin = {"Authorization": served.authorization, "Content-Type": "application/json"}
    assert answer(served.mlflow, "POST", "/api/2.0/mlflow/users/create", admin, create)[0] == 200
    guest = {"Authorization": "Basic Z3Vlc3Q6YSBndWVzdCdzIHBhc3N3b3Jk", "Content-Type": "application/json"}
    path = "/api/2.0/mlflow/experiments/get?experiment_id=0"
    assert answer(served.mlflow, "GET", path, admin)[0] == 200
    assert answer(served.mlflow, "GET", path, guest)[0] == 403


# What a holder of Prefect's secret may change of a deployment, each of which a work pool's worker would follow.
def attacks(canary: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    code = f"import pathlib; pathlib.Path({str(canary)!r}).touch()"
    shell = {"prefect.deployments.steps.run_shell_script": {"script": f"touch {canary}"}}
    yield "pull steps", {"pull_steps": [shell]}
    yield "entry point", {"entrypoint": f"{canary.with_suffix('.py')}:main", "path": str(canary.parent)}
    yield "job variables", {"job_variables": {"command": f"touch {canary}", "env": {"PYTHONSTARTUP": code}}}


def test_a_holder_of_the_secret_cannot_choose_what_runs(served: Served, tmp_path: Path) -> None:
    """Whatever a deployment on the server says of code, the runner runs the flow that it has imported."""
    canary = tmp_path / "canary"
    canary.with_suffix(".py").write_text(
        f"import pathlib\nfrom prefect import flow\npathlib.Path({str(canary)!r}).touch()\n"
        f"@flow\ndef main(config):\n    pathlib.Path({str(canary)!r}).touch()\n"
    )
    (deployment,) = [one for one in served.ask("/deployments/filter") if one["name"] == "train"]
    for _, change in attacks(canary):
        served.call("PATCH", f"/deployments/{deployment['id']}", change)
    (changed,) = [one for one in served.ask("/deployments/filter") if one["id"] == deployment["id"]]
    assert changed["pull_steps"], "the attack did not arrive"
    assert changed["entrypoint"].endswith(":main")
    body = {
        "parameters": {"config": {"dataset": "iris", "algorithm": "noisy-gd", "epsilon": 1.0}},
        "job_variables": {"command": f"touch {canary}"},
        "state": {"type": "SCHEDULED"},
    }
    run = served.call("POST", f"/deployments/{deployment['id']}/create_flow_run", body)
    finished = served.finished(run["id"])
    assert finished["state_type"] == "COMPLETED", finished["state"]["message"]
    assert finished["name"] == "noisy-gd on iris", "another flow ran"
    assert not canary.exists()


def test_a_work_pool_has_nobody_to_run_its_command(served: Served, tmp_path: Path) -> None:
    """No worker polls: a pool made by a holder of the secret, as it was attacked before, starts nothing."""
    canary = tmp_path / "canary"
    template = {"job_configuration": {"command": f"touch {canary}"}, "variables": {"type": "object", "properties": {}}}
    pool = {"name": "unitball", "type": "process", "base_job_template": template}
    served.call("POST", "/work_pools/", pool)
    flow = served.ask("/flows/filter")[0]["id"]
    spec = {"name": "theirs", "flow_id": flow, "work_pool_name": "unitball", "entrypoint": "os.getcwd"}
    theirs = served.call("POST", "/deployments/", spec)
    run = served.call("POST", f"/deployments/{theirs['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    assert not served.processes("worker start")
    # Other runs come and go meanwhile.
    ours = next(each["id"] for each in served.ask("/deployments/filter") if each["name"] == "train")
    config = {"config": {"dataset": "iris", "algorithm": "noisy-gd", "epsilon": 1.0}}
    created = served.call(
        "POST", f"/deployments/{ours}/create_flow_run", {"parameters": config, "state": {"type": "SCHEDULED"}}
    )
    assert served.finished(created["id"])["state_type"] == "COMPLETED"
    assert served.run(run["id"])["state_type"] == "SCHEDULED"
    assert not canary.exists()
    served.call("DELETE", f"/deployments/{theirs['id']}")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pull: [{prefect.deployments.steps.run_shell_script: {script: id}}]\ndeployments: []", "pull"),
        ("deployments: [{name: a, entrypoint: flows.federated_training.train, work_pool: {name: x}}]", "work_pool"),
        ("deployments: [{name: a, entrypoint: flows.federated_training.train, pull: []}]", "pull"),
        ("deployments: [{name: a}]", "entrypoint"),
        ("deployments: 7", "deployments"),
        ("[", "cannot read"),
        ("deployments: [{name: a, entrypoint: b, schedules: [{cron: never}]}]", "schedule"),
        ("deployments: [{name: a, entrypoint: b, triggers: [7]}]", "'a'"),
    ],
)
def test_a_file_of_deployments_that_asks_for_other_code_is_refused(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "prefect.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=named) as caught:
        read_deployments(path)
    assert "\n" not in str(caught.value)


def test_the_secret_is_nowhere_but_in_its_file(served: Served) -> None:
    """Not on a command line, in a log, a printed line, a database or an artifact."""
    password = served.secret.password.encode()
    assert processes_of(served.root)
    assert not [line for _, line in processes_of(served.root) if password.decode() in line]
    assert password.decode() not in served.output.read_text()
    secret_file = Layout(served.root).private / "services.secret"
    for path in served.root.rglob("*"):
        if path.is_file() and path != secret_file:
            assert password not in path.read_bytes(), path
    with closing(sqlite3.connect(prefect_database(served.root))) as connection:
        assert password.decode() not in "\n".join(connection.iterdump())


def test_the_page_logs_in_with_the_secret_and_not_without(served: Served) -> None:
    """The exchange that Prefect's page makes when somebody types the secret in."""
    check = "/api/admin/version"
    assert answer(served.api, "GET", check, {})[0] == 401
    assert answer(served.api, "GET", check, {"Authorization": served.authorization})[0] == 200
    wait_for("runs on the page", lambda: isinstance(served.ask("/flow_runs/filter"), list), 10)
