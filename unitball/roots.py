"""Which root the calls of a notebook work on: one that is named, the user's, or one of this process alone."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from storage.errors import RefusedError
from tasks.runtime.environment import restoring
from tasks.runtime.settings import ROOT_VARIABLE, isolated_root

PROCESS = secrets.token_hex(16)
"""Names this process, so that what was made in another one is known to be."""
# A root is the environment's, which belongs to the whole process.
_LOCK = threading.RLock()
_PROCESS_ROOTS: dict[int, Path] = {}


@contextmanager
def using_root(root: str | os.PathLike[str] | None) -> Iterator[None]:
    """Work on a root; where none is named, on ``UNITBALL_ROOT`` or the user's own.

    Calls of several threads wait for each other.
    """
    with _LOCK, restoring([ROOT_VARIABLE]):
        if root is not None:
            os.environ[ROOT_VARIABLE] = str(Path(root).expanduser().resolve())
        yield


@contextmanager
def process_root() -> Iterator[None]:
    """Work on the root of this process: its accounts hold for all who spend from them here, and end with it.

    Raises
    ------
    RefusedError
        In a process that another one has started: each would have a ledger of its own, and spend the same cap again.
    """
    if multiprocessing.parent_process() is not None or multiprocessing.current_process().name != "MainProcess":
        raise RefusedError(other_process("this one was started by another"))
    with _LOCK:
        number = os.getpid()
        if number not in _PROCESS_ROOTS:
            if _PROCESS_ROOTS:
                raise RefusedError(other_process("this one is a copy of another"))
            folder = Path(tempfile.mkdtemp(prefix="unitball-"))
            _PROCESS_ROOTS[number] = folder
            atexit.register(_remove, number, folder)
        with isolated_root(_PROCESS_ROOTS[number] / "root"):
            yield


def charged_root(root: str | os.PathLike[str] | None) -> AbstractContextManager[None]:
    """Return the root whose ledger is charged: the one that is named, or that of this process alone."""
    return process_root() if root is None else using_root(root)


def other_process(what: str) -> str:
    """Return why an account without a root is of one process, and the way out."""
    return (
        f"the budget of private rows is kept in one process, and {what}; give root=FOLDER, whose ledger all processes "
        "charge, or leave n_jobs at 1"
    )


def _remove(number: int, folder: Path) -> None:
    # A fork runs its parent's exit handlers, too.
    if os.getpid() == number:
        shutil.rmtree(folder, ignore_errors=True)
