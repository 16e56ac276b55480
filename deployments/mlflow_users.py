"""Who MLflow lets in: the administrator, whose password is the root's secret, and readers, who may write nothing."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from storage.atomic import write_bytes, writing
from storage.errors import InputError
from storage.layout import Layout
from tasks.runtime.credentials import USER, Credentials
from tasks.runtime.databases import recorded_server

if TYPE_CHECKING:
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
            raise InputError(f"there is no reader {name!r} of {Layout(root).root}")
        store.delete_user(name)
    path.unlink(missing_ok=True)
