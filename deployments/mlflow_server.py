"""MLflow's server with its authentication application, the root's secret being its administrator's password.

Every request passes one place before MLflow sees it. Who shows the secret may write what Unitball and MLflow's pages
write of experiments, runs and models; who does not may only read. What else MLflow can do (proxies to other services,
assistants that run commands, webhooks, users made over the network) is refused to all. Files are read and written below
the root's folder of artifacts alone. Readers may write nothing.
"""

from __future__ import annotations

import argparse
import functools
import hmac
import os
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.atomic import write_bytes, writing
from storage.errors import InputError
from storage.layout import Layout
from tasks.runtime.services import USER, Credentials, credentials
from tasks.runtime.settings import keep_private, own_database, recorded_server
from tasks.tracking.runs import require_own_location

if TYPE_CHECKING:
    from flask import Response
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore


_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
# All of each kind, what is logged later included. What belongs to an experiment or a model follows it.
_READ = ("experiment", "registered_model")


def users_database(root: Path) -> str:
    """Return the address of the database of MLflow's users and their permissions."""
    server = recorded_server(root)
    file = Layout(root).private / "mlflow-users.db"
    return f"sqlite:///{file}" if server is None else server.database("mlflow_users")


@contextmanager
def _users(root: Path) -> Iterator[SqlAlchemyStore]:
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore()
    store.init_db(users_database(root))
    try:
        yield store
    finally:
        store.engine.dispose()


def set_password(root: Path, secret: Credentials) -> None:
    """Make the administrator's password the root's secret: MLflow itself sets it at its first start only."""
    with _users(root) as store:
        if not store.has_user(USER):
            store.create_user(USER, secret.password, is_admin=True)
        elif not store.authenticate_user(USER, secret.password):
            store.update_user(USER, password=secret.password, is_admin=True)


def _secret_file(root: Path, name: str) -> Path:
    if name == USER or not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be a reader's name: up to 32 small letters, digits, - and _, beginning with a letter, "
            f"and not {USER}"
        )
    return Layout(root).private / "readers" / f"{name}.secret"


def add_reader(root: Path, name: str) -> Path:
    """Let a user of MLflow read every experiment, run and model, later ones included; return the file of its secret.

    A reader that is there already gets a new password.

    Raises
    ------
    InputError
        If it cannot be a name.
    storage.errors.StorageError
        If the root cannot be written.
    """
    path, password = _secret_file(root, name), secrets.token_urlsafe(32)
    with _users(root) as store:
        if store.has_user(name):
            store.update_user(name, password=password, is_admin=False)
        else:
            store.create_user(name, password)
        for kind in _READ:
            store.grant_user_permission(name, kind, "*", "READ")
    with writing(path.parent):
        path.parent.mkdir(mode=0o700, exist_ok=True)
    write_bytes(path, f"{name}:{password}\n".encode(), mode=0o600)
    return path


def remove_reader(root: Path, name: str) -> None:
    """Take a reader's permission to read back.

    Raises
    ------
    InputError
        If there is no such reader.
    """
    path = _secret_file(root, name)
    with _users(root) as store:
        if not store.has_user(name):
            raise InputError(f"root {Layout(root).root} has no reader {name!r}")
        store.delete_user(name)
    path.unlink(missing_ok=True)


HOST = "127.0.0.1"
# Checking a password costs 0.2 s; one worker, which forgets at once what it is told to.
_CACHE_SECONDS = 300
_READING_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
# A GET that has the server send a request elsewhere.
_PROXY = re.compile(r".*/gateway-proxy/?")
# Questions that are asked by POST.
_SEARCHES = re.compile(
    r"/graphql|/(?:ajax-)?api/[23]\.0/?mlflow/(?:"
    r"(?:experiments|runs|logged-models|traces|datasets)/search|experiments/search-datasets"
    r"|registered-models/get-latest-versions|traces/(?:metrics|batchGetInfos|calculate-filter-correlation))"
)
_WRITES = re.compile(
    r"/(?:ajax-)?api/2\.0/mlflow/(?:"
    r"experiments/(?:create|update|delete|restore|set-experiment-tag|delete-experiment-tag)"
    r"|runs/(?:create|update|delete|restore|set-tag|delete-tag|log-batch|log-metric|log-parameter|log-inputs|log-model"
    r"|outputs)"
    r"|logged-models(?:/[\w-]+(?:/params|/tags(?:/[^/]+)?)?)?"
    r"|model-versions/(?:create|update|delete|set-tag|delete-tag|transition-stage)"
    r"|registered-models/(?:create|update|rename|delete|set-tag|delete-tag|alias)"
    r"|upload-artifact)"
)


def is_admitted(method: str, path: str, *, owner: bool) -> bool:
    """Whether a request may reach MLflow, which then asks who sends it and what that user may see.

    Parameters
    ----------
    method, path : str
    owner : bool
        Whether it shows the root's secret.
    """
    if method in _READING_METHODS:
        return not _PROXY.fullmatch(path)
    return bool(method == "POST" and _SEARCHES.fullmatch(path)) or (owner and bool(_WRITES.fullmatch(path)))


class _Admission:
    """An ASGI application that passes on what is admitted."""

    def __init__(self, app: Any, secret: Credentials) -> None:
        self._app = app
        self._owner = b"Basic " + b64encode(secret.basic.encode())

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            shown = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
            # The header as a whole, and no second one: nothing is left to be read differently by MLflow.
            owner = len(shown) == 1 and hmac.compare_digest(shown[0], self._owner)
            if not is_admitted(scope["method"], scope["path"], owner=owner):
                from fastapi.responses import JSONResponse, PlainTextResponse

                if owner and scope["method"] == "GET" and _PROXY.fullmatch(scope["path"]):
                    # Each page of runs asks which model providers there are, and shows a refusal as an error.
                    await JSONResponse({"endpoints": []})(dict(scope), receive, send)
                    return
                text = "Not served here, or only to the owner of this root: see the page Security."
                await PlainTextResponse(text, status_code=403)(dict(scope), receive, send)
                return
        await self._app(scope, receive, send)


def _confine(artifacts: Path) -> None:
    """Let this process's MLflow make experiments, and open files, below a folder alone."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry as repositories
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    def require_own(location: str) -> None:
        try:
            require_own_location(artifacts, location)
        except InputError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error

    def confined(repository: Callable[..., Any], location: str, **options: Any) -> Any:
        require_own(location)
        return repository(location, **options)

    for scheme, original in list(repositories.get_registered_artifact_repositories().items()):
        # Runs and models only name a location, which is opened by the same registry.
        if scheme not in ("runs", "models"):
            repositories.register(scheme, functools.partial(confined, original))
    create = SqlAlchemyStore.create_experiment

    def create_experiment(store: Any, name: str, artifact_location: str | None = None, tags: Any = None) -> str:
        if artifact_location:
            require_own(artifact_location)
        return str(create(store, name, artifact_location, tags))

    SqlAlchemyStore.create_experiment = create_experiment


# MLflow's pages ask the browser whether an experiment is of traces or of runs. Default: traces. On the first visit they
# open an assistant, which this server refuses, so that an error would be the first thing on the page.
_RUNS_FIRST = b"""<head><script>
localStorage["mlflow.workflowType_v1"] ??= '"machine_learning"';
localStorage["mlflow.assistant.fab.autoOpenedOnFirstLoad_v1"] ??= "true";
</script>"""


def _open_on_runs(response: Response) -> Response:
    """Let MLflow's page open on runs, and its assistant stay closed, unless the browser keeps another choice."""
    from flask import request

    if request.path == "/" and response.mimetype == "text/html":
        response.direct_passthrough = False
        response.set_data(response.get_data().replace(b"<head>", _RUNS_FIRST, 1))
    return response


def _configure(root: Path, secret: Credentials, port: int) -> None:
    # MLflow reads the file with interpolation, in which a percent sign is doubled.
    settings = {
        "default_permission": "NO_PERMISSIONS",
        "database_uri": users_database(root).replace("%", "%%"),
        "admin_username": USER,
        "auth_cache_ttl_seconds": str(_CACHE_SECONDS),
    }
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    path = Layout(root).private / "mlflow-auth.ini"
    write_bytes(path, f"[mlflow]\n{lines}".encode(), mode=0o600)
    os.environ.update(
        MLFLOW_AUTH_CONFIG_PATH=str(path),
        MLFLOW_AUTH_ADMIN_PASSWORD=secret.password,
        MLFLOW_FLASK_SERVER_SECRET_KEY=secret.derived("mlflow flask secret key"),
        # A route that no rule of MLflow's decides on is closed to all but the administrator.
        MLFLOW_BASIC_AUTH_FAIL_CLOSED="true",
        # The job queues serve features that are not used here, and are seven processes.
        MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
        MLFLOW_SERVER_ALLOWED_HOSTS=",".join(f"{name}:{port}" for name in (HOST, "localhost")),
    )


def main() -> None:
    """Serve one root on one port until SIGTERM."""
    keep_private()
    parser = argparse.ArgumentParser(prog="python -m deployments.mlflow_server", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    secret, artifacts = credentials(arguments.root), Layout(arguments.root).artifacts
    _configure(arguments.root, secret, arguments.port)
    set_password(arguments.root, secret)
    import uvicorn
    from mlflow.server.constants import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR

    # What `mlflow server` hands to its workers; this process is the only one.
    os.environ.update(
        {
            BACKEND_STORE_URI_ENV_VAR: own_database(arguments.root),
            ARTIFACT_ROOT_ENV_VAR: artifacts.as_uri(),
            "_MLFLOW_SGI_NAME": "uvicorn",
            "_MLFLOW_IN_JOB_EXECUTOR": "false",
        }
    )
    from mlflow.server import app
    from mlflow.server.auth import create_app

    app.after_request(_open_on_runs)
    _confine(artifacts)
    uvicorn.run(_Admission(create_app(), secret), host=HOST, port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
