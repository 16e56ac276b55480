"""Attacks on the services: by another user, by a web page in the operator's browser, by a holder of the secret."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import sqlite3
import urllib.error
import urllib.request
import uuid
from base64 import b64encode
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deployments.specifications import read_deployments
from storage.errors import InputError
from storage.layout import Layout
from tasks.host.engine import prefect_database
from tasks.runtime.services import Credentials
from tests.support.command_line import CommandLine
from tests.support.serving import Served, processes_of, receiving, wait_for

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
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    try:
        connection.request(method, path, body, headers)
        got = connection.getresponse()
        got.read()
        return got.status, got.headers
    finally:
        connection.close()


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}|<[^>]*>", NOBODY, path)


@cache
def described(api: str) -> dict[str, Any]:
    """Return what a server of Prefect's says of its own routes: each time it takes it seconds."""
    with urllib.request.urlopen(api.removesuffix("/api") + "/openapi.json", timeout=300) as found:
        return dict(json.load(found))


def prefect_routes(api: str) -> list[tuple[str, str]]:
    """Return every route of the API, read from the description of it that the server itself gives."""
    paths = described(api)["paths"]
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
            no = (400, 403) if headers.get("Host") == "evil.example" else (401, 403)
            # MLflow breaks off where it is shown a scheme that it does not know.
            if status not in no and not (status == 500 and headers.get("Authorization") == "Bearer x"):
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
    assert served.secret.password not in json.dumps(described(served.api))
    for path in ("/", "/ui-settings"):
        with urllib.request.urlopen(address + path, timeout=300) as page:
            assert served.secret.password not in (text := page.read().decode())
    # The page asks where it came from, so it works through a proxy or a tunnel.
    assert json.loads(text)["api_url"] == "/api"


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


WEBSOCKETS = (
    "/events/in",
    "/events/out",
    "/logs/out",
    "/task_runs/subscriptions/scheduled",
    "/work_pools/unitball/workers/connect",
)


@pytest.mark.parametrize("path", WEBSOCKETS)
def test_websockets_refuse_too(path: str, served: Served) -> None:
    websocket_refused(served.api, path, served.secret)


def websocket_refused(api: str, path: str, secret: Credentials) -> None:
    """Check that a websocket takes the secret alone."""
    from websockets.exceptions import ConnectionClosed, InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    address = api.replace("http://", "ws://") + path

    def try_it(protocols: list[Subprotocol] | None, first: dict[str, Any]) -> Any:
        with connect(address, subprotocols=protocols, open_timeout=30) as socket:
            socket.send(json.dumps(first))
            return json.loads(socket.recv(timeout=300))

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
    # The pages of runs ask for model providers, and are told that there are none; nothing is sent elsewhere.
    proxy = "/ajax-api/2.0/mlflow/gateway-proxy"
    assert mlflow(served, "GET", f"{proxy}?gateway_path=http://evil.example/") == (200, {"endpoints": []})
    assert answer(served.mlflow, "POST", proxy, secret, b'{"gateway_path": "x"}')[0] == 403
    forged = {**secret, "Origin": "http://evil.example"}
    assert answer(served.mlflow, "POST", create, forged, b'{"name": "forged"}')[0] == 403


def test_prefect_answers_under_its_own_names_alone(served: Served) -> None:
    """Not even to who has the secret: a page under another name that leads here would be one of the server's own."""
    secret = {"Authorization": served.authorization, "Content-Type": "application/json"}
    port = urlsplit(served.api).port
    for name in ("127.0.0.1", "localhost"):
        assert answer(served.api, "GET", "/api/admin/version", {**secret, "Host": f"{name}:{port}"})[0] == 200
    for name in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", ""):
        for path in ("/api/admin/version", "/", "/api/health", "/docs"):
            assert answer(served.api, "GET", path, {**secret, "Host": name})[0] == 400, (name, path)


def mlflow(
    served: Served, method: str, path: str, body: Any = None, authorization: str | None = None
) -> tuple[int, dict[str, Any]]:
    """Ask MLflow with the secret, or as somebody else; return status and answer."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {"Authorization": authorization or served.authorization, "Content-Type": "application/json"}
    request = urllib.request.Request(served.mlflow + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as got:
            status, said = got.status, got.read()
    except urllib.error.HTTPError as error:
        status, said = error.code, error.read()
    try:
        return status, json.loads(said)
    except ValueError:
        return status, {"said": said.decode(errors="replace")}


@cache
def mlflow_writes() -> list[tuple[str, str]]:
    """Return every route of MLflow's that changes something or asks by a body: of both of its applications."""
    from mlflow.server import app
    from mlflow.server.fastapi_app import create_fastapi_app

    flask = {
        (method, str(rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS", "GET"}
    }
    described = create_fastapi_app(app).openapi()["paths"]
    native = {(method.upper(), path) for path, methods in described.items() for method in methods if method != "get"}
    users = {
        (method, f"/{api}/2.0/mlflow/{what}")
        for api in ("api", "ajax-api")
        for method, what in (
            ("POST", "users/create"),
            ("PATCH", "users/update-password"),
            ("PATCH", "users/update-admin"),
            ("DELETE", "users/delete"),
        )
    }
    users |= {
        ("POST", f"/api/3.0/mlflow/{what}") for what in ("roles/create", "roles/assign", "users/permissions/grant")
    }
    assert len(flask) > 150
    assert len(native) > 10
    return sorted(flask | native | users | {("POST", "/v1/traces"), ("POST", "/api/2.0/mlflow/users/create-ui")})


# Names of fields by which an endpoint of MLflow's takes a place to read or write, or what leads there.
def everything(place: str, experiment: str) -> dict[str, Any]:
    names = ("artifact_location", "artifactLocation", "artifact_uri", "source", "url", "path", "config", "root", "cwd")
    return {
        **dict.fromkeys(names, place),
        **dict.fromkeys(("name", "key", "value", "user_id", "username", "model_name", "prompt"), "attack"),
        **dict.fromkeys(("experiment_id", "experimentId"), experiment),
        "experiment_ids": [experiment],
        "tags": [{"key": "mlflow.artifactLocation", "value": place}],
        "password": "a long password of theirs",
        "is_admin": True,
    }


def state_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_secret_writes_no_file_outside_the_folder_of_artifacts(served: Served, tmp_path: Path) -> None:
    """By MLflow: experiments with a location of one's own in every spelling, every endpoint that writes, and uploads
    into an experiment whose location is foreign."""
    root, artifacts = served.root, Layout(served.root).artifacts
    (tmp_path / "target").mkdir()
    private = state_of(Layout(root).private / "readers")
    places = [str(tmp_path / "target"), str(Layout(root).private), str(root), "/"]
    encoded = str(tmp_path / "target").replace("t", "%74")
    spelled = [
        *(f"{scheme}{place}" for place in places for scheme in ("", "file:", "file://", "file://localhost", "FILE://")),
        f"file://{encoded}",
        f"{artifacts}/../private",
        f"file://{artifacts}/%2e%2e/private",
        f"file://{artifacts}/x/..%2f..%2f..%2fprivate",
        f"{artifacts}x",
        "../private",
        "private",
        "s3://bucket/x",
        "http://127.0.0.1:1/x",
        "ftp://127.0.0.1/x",
        "mlflow-artifacts:/x",
        "runs:/x",
        "models:/x/1",
        "dbfs:/x",
        f"sqlite:///{tmp_path}/target/x.db",
    ]
    for number, place in enumerate(spelled):
        for api in ("api", "ajax-api"):
            body = {"name": f"attack {number}", ("artifact_location" if api == "api" else "artifactLocation"): place}
            status, said = mlflow(served, "POST", f"/{api}/2.0/mlflow/experiments/create", body)
            assert status >= 400, (place, said)
    inside = {"name": "inside", "artifact_location": (artifacts / "inside").as_uri()}
    status, said = mlflow(served, "POST", "/api/2.0/mlflow/experiments/create", inside)
    assert status == 200, said
    good = said["experiment_id"]
    # An experiment of an outside place, however it came into the database.
    status, said = mlflow(served, "POST", "/api/2.0/mlflow/experiments/create", {"name": "foreign"})
    old = said["experiment_id"]
    with closing(sqlite3.connect(Layout(root).mlflow_database)) as connection, connection:
        changed = "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?"
        connection.execute(changed, ((tmp_path / "target").as_uri(), int(old)))
    runs = {}
    for experiment in (good, old):
        status, said = mlflow(served, "POST", "/api/2.0/mlflow/runs/create", {"experiment_id": experiment})
        assert status == 200, said
        runs[experiment] = said["run"]["info"]["run_id"]
    upload = "/ajax-api/2.0/mlflow/upload-artifact?run_uuid={}&path={}"
    assert mlflow(served, "POST", upload.format(runs[good], "note.txt"), b"theirs")[0] == 200
    assert (artifacts / "inside" / runs[good] / "artifacts" / "note.txt").read_bytes() == b"theirs"
    status, said = mlflow(served, "POST", upload.format(runs[old], "note.txt"), b"theirs")
    assert status == 400, said
    assert "is not below" in str(said)
    for path in ("../../x", "/x", "..%2f..%2f..%2fprivate%2fx", "%2e%2e/x", "a/../../../x", str(tmp_path / "target/x")):
        assert mlflow(served, "POST", upload.format(runs[good], path), b"theirs")[0] >= 400, path
    # Reading is no other way in: the rows' owner alone reads what lies beside the artifacts.
    for path in (
        f"/get-artifact?run_uuid={runs[old]}&path=note.txt",
        f"/get-artifact?run_uuid={runs[good]}&path=..%2f..%2f..%2f..%2fprivate%2froot.key",
        f"/ajax-api/2.0/mlflow/artifacts/list?run_id={runs[old]}",
    ):
        assert mlflow(served, "GET", path)[0] >= 400, path
    mlflow(served, "POST", "/api/2.0/mlflow/registered-models/create", {"name": "theirs"})
    source = {"name": "theirs", "source": Layout(root).private.as_uri(), "run_id": runs[good]}
    mlflow(served, "POST", "/api/2.0/mlflow/model-versions/create", source)
    path = "/model-versions/get-artifact?name=theirs&version=1&path=root.key"
    assert mlflow(served, "GET", path)[0] >= 400
    # Whatever else there is.
    admitted = set()
    for method, route in mlflow_writes():
        for place in (str(tmp_path / "target"), (tmp_path / "target").as_uri()):
            body = {**everything(place, old), "run_id": runs[old], "run_uuid": runs[old]}
            query = f"?run_uuid={runs[old]}&run_id={runs[old]}&path=x"
            status, said = mlflow(served, method, filled(route) + query, body)
            if status != 403:
                admitted.add(re.sub(r"^/(?:ajax-)?api/[23]\.0/?mlflow/", "", route).split("/")[0])
    expected = {"experiments", "runs", "logged-models", "model-versions", "registered-models", "upload-artifact"}
    assert admitted <= expected | {"", "traces", "datasets"}, sorted(admitted)
    assert not list((tmp_path / "target").rglob("*"))
    assert state_of(Layout(root).private / "readers") == private
    users = sqlite3.connect(Layout(root).private / "mlflow-users.db").execute("SELECT username FROM users").fetchall()
    assert ("attack",) not in users


def test_a_reader_sees_all_of_mlflow_and_writes_nothing(served: Served, served_commands: CommandLine) -> None:
    """Experiments, runs and models, later ones included; tried on every writing endpoint of both applications."""
    served_commands.succeeds("secret", "add", "anna", "--reader")
    file = Layout(served.root).private / "readers" / "anna.secret"
    assert file.stat().st_mode & 0o777 == 0o600
    anna = f"Basic {b64encode(file.read_bytes().strip()).decode()}"
    # Made later than the reader.
    created = mlflow(served, "POST", "/api/2.0/mlflow/experiments/create", {"name": "later"})[1]["experiment_id"]
    run = mlflow(served, "POST", "/api/2.0/mlflow/runs/create", {"experiment_id": created})[1]["run"]["info"]["run_id"]
    mlflow(served, "POST", f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path=card.md", b"# card")
    mlflow(served, "POST", "/api/2.0/mlflow/registered-models/create", {"name": "seen"})
    version = {"name": "seen", "source": f"runs:/{run}/model", "run_id": run, "description": "the card"}
    assert mlflow(served, "POST", "/api/2.0/mlflow/model-versions/create", version)[0] == 200
    found = mlflow(served, "POST", "/ajax-api/2.0/mlflow/experiments/search", {"max_results": 100}, anna)[1]
    assert "later" in {one["name"] for one in found["experiments"]}
    found = mlflow(served, "POST", "/ajax-api/2.0/mlflow/runs/search", {"experiment_ids": [created]}, anna)[1]
    assert [one["info"]["run_id"] for one in found["runs"]] == [run]
    for path, holds in (
        (f"/ajax-api/2.0/mlflow/runs/get?run_id={run}", run),
        (f"/get-artifact?run_uuid={run}&path=card.md", "# card"),
        ("/ajax-api/2.0/mlflow/model-versions/get?name=seen&version=1", "the card"),
        ("/ajax-api/2.0/mlflow/registered-models/search", "seen"),
    ):
        status, said = mlflow(served, "GET", path, authorization=anna)
        assert status == 200, (path, said)
        assert holds in json.dumps(said), path

    def shown() -> list[str]:
        with closing(sqlite3.connect(Layout(served.root).mlflow_database)) as connection:
            return [line for line in connection.iterdump() if line.startswith("INSERT")]

    before, files = shown(), state_of(Layout(served.root).artifacts)
    answered = set()
    for method, route in mlflow_writes():
        body = {
            **everything("x", created),
            "run_id": run,
            "run_uuid": run,
            "name": "seen",
            "version": "1",
            "alias": "a",
        }
        path = filled(route) + f"?run_uuid={run}&run_id={run}&path=x"
        status, _ = mlflow(served, method, path, body, anna)
        if status != 403:
            answered.add(route)
    questions = ("search", "graphql", "search-datasets", "get-latest-versions", "metrics", "batchGetInfos")
    assert {route.rpartition("/")[2] for route in answered} <= {*questions, "calculate-filter-correlation"}
    assert shown() == before
    assert state_of(Layout(served.root).artifacts) == files
    for shown_twice in ([anna, served.authorization], [served.authorization, anna]):
        connection = http.client.HTTPConnection(urlsplit(served.mlflow).netloc, timeout=300)
        connection.putrequest("POST", "/api/2.0/mlflow/experiments/create")
        for value in shown_twice:
            connection.putheader("Authorization", value)
        content = b'{"name": "smuggled"}'
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content)
        assert connection.getresponse().status in (401, 403)
        connection.close()
    # It opens nothing else.
    assert answer(served.api, "GET", "/api/admin/version", {"Authorization": anna})[0] == 401
    served_commands.succeeds("secret", "remove", "anna")
    assert not file.exists()


def test_the_webhooks_address_is_not_on_the_server(served: Served) -> None:
    """It often holds a token; who has the server's secret reads every block, with its secrets."""
    address = (Layout(served.root).private / "webhook.url").read_text()
    found = served.ask("/block_documents/filter", include_secrets=True)
    assert address not in json.dumps(found)
    assert address not in json.dumps(served.ask("/automations/filter"))
    with closing(sqlite3.connect(prefect_database(served.root))) as connection:
        assert address not in "\n".join(connection.iterdump())
    for pid, line in processes_of(served.root):
        # Who starts it has given it the address, as its root's owner.
        if " serve " not in line:
            assert address.encode() not in Path(f"/proc/{pid}/environ").read_bytes(), line


@pytest.mark.nightly
def test_a_work_pool_has_nobody_to_run_its_command(served: Served, tmp_path: Path) -> None:
    """No worker polls: a pool made by a holder of the secret starts nothing."""
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
    config: dict[str, Any] = {"dataset": "iris", "algorithm": "noisy-gd", "epsilon": 1.0}
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
        ("[", "not YAML"),
        ("deployments: [{name: a, entrypoint: flows.federated_training.train, schedules: [{cron: never}]}]", "cron"),
        ("deployments: [{name: a, entrypoint: flows.federated_training.train, triggers: [7]}]", "'a'"),
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
    wait_for("runs on the page", lambda: isinstance(served.ask("/flow_runs/filter"), list))


def test_what_every_holder_of_the_password_can_do(served: Served, tmp_path: Path) -> None:
    """Each line of the table in docs/security.md: what Prefect's open-source server cannot keep from who is let in."""
    config: dict[str, Any] = {"dataset": "iris", "algorithm": "noisy-gd", "epsilon": 1.0}
    (train,) = [one for one in served.ask("/deployments/filter") if one["name"] == "train"]
    # Starts runs (one of an earlier test's, where there is one), and reads what they were given and what they said.
    earlier = [
        one["id"]
        for one in served.runs()
        if one["parameters"].get("dataset") in ("iris", "wine") and one["state_type"] == "COMPLETED"
    ]
    run = earlier[0] if earlier else served.start_run(**config)
    assert served.finished(run)["state_type"] == "COMPLETED"
    assert served.run(run)["parameters"]["algorithm"] == "noisy-gd"
    assert served.ask("/artifacts/filter")
    assert isinstance(served.ask("/logs/filter"), list)
    # Stops one, says that it was something else, and removes it.
    waiting = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2099-01-01T00:00:00Z"}}
    later = {"parameters": config, "state": waiting}
    stopped = served.call("POST", f"/deployments/{train['id']}/create_flow_run", later)["id"]
    for state in ("CANCELLED", "COMPLETED"):
        served.ask(f"/flow_runs/{stopped}/set_state", state={"type": state}, force=True)
        assert served.run(stopped)["state_type"] == state
    served.call("DELETE", f"/flow_runs/{stopped}")
    assert stopped not in {one["id"] for one in served.ask("/flow_runs/filter")}
    # Changes what a deployment is given and when; it comes back at the next start.
    served.call("PATCH", f"/deployments/{train['id']}", {"parameters": {**config, "epsilon": 9.0}})
    (changed,) = [one for one in served.ask("/deployments/filter") if one["name"] == "train"]
    assert changed["parameters"]["epsilon"] == 9.0
    served.call("PATCH", f"/deployments/{train['id']}", {"parameters": train["parameters"]})
    # Lets everybody wait.
    limit = "/v2/concurrency_limits/unitball.at-work"
    before = served.call("GET", limit)["limit"]
    served.call("PATCH", limit, {"limit": 0})
    assert served.call("GET", limit)["limit"] == 0
    served.call("PATCH", limit, {"limit": before})
    # Shows a budget that is none on the run's page.
    forged = {"key": "budget", "type": "markdown", "data": "nothing is spent", "flow_run_id": run}
    assert served.ask("/artifacts/", **forged)["data"] == "nothing is spent"
    # Reads what others keep on the server.
    assert served.ask("/variables/", name="theirs", value="kept")["value"] == "kept"
    assert [one["value"] for one in served.ask("/variables/filter") if one["name"] == "theirs"] == ["kept"]
    # Has the server send a request, by an event of its own; the operator is sent no alert for a forged one.
    with receiving() as (address, received):
        (kind,) = [one for one in served.ask("/block_types/filter") if one["slug"] == "webhook"]
        schemas = {"block_type_id": {"any_": [kind["id"]]}}
        schema = served.ask("/block_schemas/filter", block_schemas=schemas)[0]["id"]
        spec = {"name": "theirs", "block_type_id": kind["id"], "block_schema_id": schema}
        data = {"url": address, "allow_private_urls": True}
        block = served.ask("/block_documents/", **spec, data=data)["id"]
        refused_run = "unitball.run.refused"
        trigger = {"type": "event", "posture": "Reactive", "expect": [refused_run], "threshold": 1, "within": 0}
        sends = [{"type": "call-webhook", "block_document_id": block, "payload": '{"sent": true}'}]
        automation = served.ask("/automations/", name="theirs", trigger=trigger, actions=sends)["id"]
        alerts = len(served.alerts)
        event = {
            "occurred": "2030-01-01T00:00:00Z",
            "event": refused_run,
            "resource": {"prefect.resource.id": "unitball.dataset.forged"},
            "id": str(uuid.uuid4()),
        }

        def sent() -> bool:
            event.update(id=str(uuid.uuid4()), occurred=datetime.now(UTC).isoformat())
            served.call("POST", "/events", [event])
            return bool(received)

        wait_for("the server's request", sent, every=2)
        served.call("DELETE", f"/automations/{automation}")
        assert not [one for one in served.alerts[alerts:] if "forged" in one["about"]]


NAMES = ("name", "key", "slug", "tag")


def filled_by(schema: Any, defined: dict[str, Any], place: str, depth: int = 0) -> Any:
    """Return a body of a schema, with a place wherever text is asked for."""
    if depth > 4:
        return None
    if "$ref" in schema:
        return filled_by(defined[schema["$ref"].rpartition("/")[2]], defined, place, depth + 1)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return filled_by(schema[several][0], defined, place, depth)
    if "enum" in schema or "const" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    match schema.get("type"):
        case "object":
            # A name with a slash in it is refused before anything is done.
            found = {
                name: "theirs" if name in NAMES else filled_by(one, defined, place, depth + 1)
                for name, one in schema.get("properties", {}).items()
            }
            return found or {"path": place, "script": f"touch {place}"}
        case "array":
            return [filled_by(schema.get("items", {}), defined, place, depth + 1)]
        case "string" if schema.get("format") == "uuid":
            return NOBODY
        case "string" if schema.get("format") == "date-time":
            return "2030-01-01T00:00:00Z"
        case "string":
            return place
        case "boolean":
            return True
        case "integer" | "number":
            return 1
    return place


def test_the_secret_writes_no_file_by_prefect(served: Served, tmp_path: Path) -> None:
    """Every endpoint that writes, with a place wherever text is asked for; blocks, automations and variables that name
    files; what is loaded from a block or rendered as a template on the server."""
    target = tmp_path / "target"
    target.mkdir()
    watched = Layout(served.root)
    before = state_of(watched.private) | state_of(watched.releases)
    told = described(served.api)
    defined, tried, taken = told["components"]["schemas"], 0, 0
    ours = {one["id"] for one in served.ask("/deployments/filter")}
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            # Neither the server's own data nor what the other tests of this server need is to go.
            if method == "get" or any(word in f"{method} {path}" for word in ("clear", "drop", "delete")):
                continue
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            body = filled_by(schema, defined, f"file://{target}/x") if schema else None
            try:
                served.call(method.upper(), filled(path).removeprefix("/api"), body)
                taken += 1
            except urllib.error.HTTPError as error:
                # What it is about was looked for.
                taken += error.code == 404
            tried += 1
    assert tried > 100
    assert taken > tried // 3, f"{tried - taken} of {tried} were refused for their form: nothing was tried"
    (kind,) = [one for one in served.ask("/block_types/filter") if one["slug"] == "local-file-system"] or [None]
    if kind is not None:
        (schema,) = served.ask("/block_schemas/filter", block_schemas={"block_type_id": {"any_": [kind["id"]]}})[:1]
        data = {"basepath": str(target)}
        spec = {"name": "theirs", "data": data, "block_schema_id": schema["id"], "block_type_id": kind["id"]}
        block = served.ask("/block_documents/", **spec)
        served.call("PATCH", f"/deployments/{min(ours)}", {"storage_document_id": block["id"], "path": str(target)})
    render = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os.popen('touch x') }}"
    with contextlib.suppress(urllib.error.HTTPError):
        served.ask("/templates/validate", template=render)
    assert not list(target.rglob("*"))
    # Runs that were started write more.
    assert {path: Path(path).read_bytes() for path in before} == before
