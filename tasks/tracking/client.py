"""A client of the MLflow that a root's runs go to, for one writer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from storage.layout import Layout
from tasks.runtime.engine import prepare_tracking
from tasks.runtime.engine_process import locked
from tasks.runtime.tracking_server import refusal, server_address, use_tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient


@contextmanager
def tracking_client(root: Path) -> Iterator[MlflowClient]:
    """Yield a client, MLflow's own functions pointed to the same place.

    Raises
    ------
    tasks.runtime.tracking_server.TrackingError
        If the server that was named refuses something; what was released is stored, and logging it again is free.
    """
    prepare_tracking(root)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    named = server_address()
    with locked(Layout(root).prefect / ".lock-tracking"), use_tracking_uri(root):
        try:
            yield MlflowClient()
        except MlflowException as error:
            if named is None:
                raise
            raise refusal(error) from error
