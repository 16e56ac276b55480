"""Which MLflow runs go to: the server that MLflow's own ``MLFLOW_TRACKING_URI`` names, or the root's own database."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from storage.errors import StorageError
from storage.layout import Layout
from tasks.runtime.databases import recorded_server
from tasks.runtime.environment import restoring

_VARIABLE = "MLFLOW_TRACKING_URI"
# Once, without MLflow's minutes of trying again: somebody waits for an answer.
_AT_ONCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
_GLOBAL = threading.RLock()
# Where MLflow's own functions point, and pointed before, while one root is worked on within another.
_POINTED: list[str] = []


class TrackingError(StorageError):
    """The MLflow server that was named does not answer, or refuses this user."""


def own_database(root: Path) -> str:
    """Return the address of a root's own MLflow database; on a server it may hold a password."""
    server = recorded_server(root)
    return f"sqlite:///{Layout(root).mlflow_database}" if server is None else server.database("mlflow")


def tracking_uri(root: Path) -> str:
    """Return where the runs of a root go: ``MLFLOW_TRACKING_URI``, or the root's own database."""
    # Not while MLflow is pointed elsewhere: it sets the variable itself for that moment.
    with _GLOBAL:
        return os.environ.get(_VARIABLE) or own_database(root)


def has_own_database(root: Path) -> bool:
    """Whether the runs of a root go to its own database."""
    return tracking_uri(root) == own_database(root)


def server_address() -> str | None:
    """Return the address of the server that was named, without a user or password in it; None where there is none."""
    parts = urlsplit(os.environ.get(_VARIABLE, ""))
    if parts.scheme not in ("http", "https"):
        return None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


@contextmanager
def use_tracking_uri(root: Path) -> Iterator[None]:
    """Point MLflow's own functions to where the runs of a root go, for this thread alone, and back afterwards."""
    with _GLOBAL:
        _POINTED.append(tracking_uri(root))
        try:
            _point(_POINTED[-1])
            yield
        finally:
            _POINTED.pop()
            _point(_POINTED[-1] if _POINTED else os.environ.get(_VARIABLE))


def _point(uri: str | None) -> None:
    """Point MLflow's own functions to an address, or nowhere, and keep ``MLFLOW_TRACKING_URI`` as the user has it.

    MLflow puts the address into its variable, too, where whoever looks meanwhile (another root that is worked on
    within, another thread, a process that starts) would take it for the user's choice, and might put it back for good.
    """
    import mlflow

    with restoring([_VARIABLE]):
        mlflow.set_tracking_uri(uri)


def require_server(root: Path) -> None:
    """Ask the server that was named whether it lets this user in, so that a run that cannot be logged never begins.

    Raises
    ------
    TrackingError
        If it does not answer or refuses, naming the variables to set.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with _GLOBAL, restoring(_AT_ONCE):
        os.environ.update(_AT_ONCE)
        try:
            MlflowClient(tracking_uri=tracking_uri(root)).search_experiments(max_results=1)
        except MlflowException as error:
            raise refusal(error) from error


def refusal(error: Exception) -> TrackingError:
    """Return what a server has refused, in one line without secrets."""
    address = server_address() or _VARIABLE
    said = " ".join(str(error).replace(os.environ.get(_VARIABLE, address).rstrip("/"), address).split())
    return TrackingError(
        f"MLflow at {address} refuses: {said:.300}; check {_VARIABLE}, MLFLOW_TRACKING_USERNAME and "
        f"MLFLOW_TRACKING_PASSWORD, or unset {_VARIABLE} to log under the root"
    )
