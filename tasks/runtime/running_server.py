"""The servers of a root that is being served now: known by a lock, asked with the root's secret."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import StorageError
from storage.layout import Layout
from tasks.runtime.credentials import credentials
from tasks.runtime.engine import keep_quiet
from tasks.runtime.environment import restoring
from tasks.runtime.settings import MLFLOW_VARIABLE, recorded_servers

_ATTEMPTS, _PAUSE = 20, 0.05


def _lock_file(root: Path) -> Path:
    return Layout(root).prefect / ".lock-served"


@contextmanager
def being_served(root: Path) -> Iterator[None]:
    """Hold the lock that says that this process serves a root; the kernel drops it with the process.

    Raises
    ------
    StorageError
        If another process serves it.
    """
    with _lock_file(root).open("ab") as file:
        for attempt in range(_ATTEMPTS):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Whoever looks holds it, shared, for an instant.
                if attempt == _ATTEMPTS - 1:
                    where = ", ".join(sorted(recorded_servers(root).values())) or "by a process that is starting"
                    raise StorageError(
                        f"{root} is being served already ({where}): stop that first, or name another --root"
                    ) from None
                time.sleep(_PAUSE)
        yield


def running_servers(root: Path) -> dict[str, str]:
    """Return the addresses of the servers of a root that is being served now: ``prefect`` (its API) and ``mlflow``.

    What a killed process has noted down is not among them: its ports may be anybody's, and whoever answers there must
    not be shown the secret. The process that holds the lock keeps Prefect's port open as long.
    """
    try:
        with _lock_file(root).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return {}
    except BlockingIOError:
        return recorded_servers(root)
    return {}


@contextmanager
def on_running_server(root: Path) -> Iterator[bool]:
    """Run flows of this process on the Prefect server of a root that is being served; yield whether there is one.

    Where ``PREFECT_API_URL`` is set, that server is the user's choice and is left alone.
    """
    found = {} if os.environ.get("PREFECT_API_URL") else running_servers(root)
    if "prefect" not in found:
        yield False
        return
    keep_quiet()
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_LOCAL_STORAGE_PATH,
        PREFECT_RESULTS_DEFAULT_SERIALIZER,
        temporary_settings,
    )

    # Results are references and belong to this root, whoever serves the API.
    changed = {
        PREFECT_API_URL: found["prefect"],
        PREFECT_API_AUTH_STRING: credentials(root).basic,
        PREFECT_LOCAL_STORAGE_PATH: Layout(root).prefect / "results",
        PREFECT_RESULTS_DEFAULT_SERIALIZER: "json",
    }
    # Where pages link to.
    linked = {"PREFECT_API_URL": found["prefect"], MLFLOW_VARIABLE: found.get("mlflow", "")}
    with restoring(linked), temporary_settings(updates=changed):
        os.environ.update({name: value for name, value in linked.items() if value})
        yield True
