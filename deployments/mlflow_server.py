"""MLflow's server with its authentication application, the root's secret being its administrator's password."""

from __future__ import annotations

import argparse
import configparser
import io
import os
from pathlib import Path

from storage.atomic import write_bytes
from storage.layout import Layout
from tasks.runtime.credentials import USER, Credentials, credentials
from tasks.runtime.databases import recorded_server
from tasks.runtime.permissions import keep_private
from tasks.runtime.tracking_server import own_database

__all__ = ["main"]

HOST = "127.0.0.1"
# Checking a password costs 0.2 s; one worker, which forgets at once what it is told to.
_CACHE_SECONDS = 300


def users_database(root: Path) -> str:
    """Return the address of the database of MLflow's users and their permissions."""
    server = recorded_server(root)
    file = Layout(root).private / "mlflow-users.db"
    return f"sqlite:///{file}" if server is None else server.database("mlflow_users")


def _configure(root: Path, secret: Credentials) -> None:
    # MLflow reads the file with interpolation, in which a percent sign is doubled.
    settings = configparser.ConfigParser()
    settings["mlflow"] = {
        "default_permission": "NO_PERMISSIONS",
        "database_uri": users_database(root).replace("%", "%%"),
        "admin_username": USER,
        "auth_cache_ttl_seconds": str(_CACHE_SECONDS),
    }
    text = io.StringIO()
    settings.write(text)
    path = Layout(root).private / "mlflow-auth.ini"
    write_bytes(path, text.getvalue().encode(), mode=0o600)
    os.environ.update(
        MLFLOW_AUTH_CONFIG_PATH=str(path),
        MLFLOW_AUTH_ADMIN_PASSWORD=secret.password,
        MLFLOW_FLASK_SERVER_SECRET_KEY=secret.derived("mlflow flask secret key"),
        # The job queues serve features that are not used here, and are seven processes.
        MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
        # Not on the command line, which every user of the machine can read: it may hold a password.
        MLFLOW_BACKEND_STORE_URI=own_database(root),
    )


def _set_password(root: Path, secret: Credentials) -> None:
    """Make the administrator's password the root's secret: MLflow itself sets it at its first start only."""
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore()
    store.init_db(users_database(root))
    if not store.has_user(USER):
        store.create_user(USER, secret.password, is_admin=True)
    elif not store.authenticate_user(USER, secret.password):
        store.update_user(USER, password=secret.password, is_admin=True)
    store.engine.dispose()


def main() -> None:
    """Serve one root on one port until SIGTERM."""
    keep_private()
    parser = argparse.ArgumentParser(prog="python -m deployments.mlflow_server", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    secret = credentials(arguments.root)
    _configure(arguments.root, secret)
    _set_password(arguments.root, secret)
    from mlflow.cli import cli

    artifacts = Layout(arguments.root).artifacts.as_uri()
    hosts = ",".join(f"{name}:{arguments.port}" for name in (HOST, "localhost"))
    where = ["--host", HOST, "--port", str(arguments.port), "--workers", "1", "--allowed-hosts", hosts]
    stores = ["--default-artifact-root", artifacts]
    cli(["server", "--app-name", "basic-auth", "--no-serve-artifacts", *stores, *where])


if __name__ == "__main__":
    main()
