"""Needs of a run after its charge, tried before it, so that no run is charged and then fails for want of them.

Each precondition is a function under :func:`precondition`, tried at every charge. What only some runs do afterwards,
such as logging, they say themselves, around their charge (:func:`needing`). A precondition raises in one line that
names what is wanting and the way out; the charge is not made then. All that adds 1 ms to a charge, and 50 ms to a run
that is logged. A run whose releases are all paid already is not tried.
"""

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storage.atomic import writing
from storage.errors import InputError, StorageError
from storage.layout import Layout
from storage.objects import objects_of
from storage.results import TABLES
from tasks.planning.releases import PlannedRelease

_MB = 1_000_000
# Databases with their journals, pages and pictures of one run: measured, 0.5 MB, and in a new root 4 MB.
_LEAST_BYTES = 8 * _MB
_NUMBER_BYTES = 8
_PROBE = b"\0" * 4096


@dataclass(frozen=True, slots=True)
class Afterwards:
    """Steps that follow a charge.

    Parameters
    ----------
    layout : Layout
    releases : sequence of PlannedRelease
        Those that are charged, and so will be made.
    """

    layout: Layout
    releases: Sequence[PlannedRelease] = ()

    def least_bytes(self) -> int:
        """Return the bytes that must be free, told from public facts alone.

        One number per feature for each model of any kind, and what every run leaves in databases and pages.
        How much copies of rows take once they are compressed depends on what they are, so nothing that is refused or
        said may rest on it.
        """
        numbers = sum(one.setting.dimension for one in self.releases if one.algorithm.kind == "trainers")
        return _LEAST_BYTES + _NUMBER_BYTES * numbers


Precondition = Callable[[Afterwards], None]

_PRECONDITIONS: list[Precondition] = []
_ALSO: ContextVar[tuple[Callable[[], None], ...]] = ContextVar("what is also tried before a charge", default=())


def precondition(check: Precondition) -> Precondition:
    """Register what is tried before every charge: a function that raises StorageError or InputError."""
    _PRECONDITIONS.append(check)
    return check


@contextmanager
def needing(check: Callable[[], None]) -> Iterator[None]:
    """Let this thread's charges try something more: what is done with the releases afterwards."""
    token = _ALSO.set((*_ALSO.get(), check))
    try:
        yield
    finally:
        _ALSO.reset(token)


def require_ready(afterwards: Afterwards) -> None:
    """Try all that a run needs after its charge.

    Raises
    ------
    StorageError, InputError
        Naming what is wanting and the way out; nothing was charged.
    """
    for check in _PRECONDITIONS:
        require(partial(check, afterwards))
    for also in _ALSO.get():
        require(also)


def require(check: Callable[[], None]) -> None:
    """Try one thing before anything is charged.

    Raises
    ------
    StorageError, InputError
        As the check does; nothing was charged.
    """
    try:
        check()
    except (StorageError, InputError) as error:
        raise error.saying(f"{error}. Nothing was charged") from error


def try_folder(folder: Path) -> None:
    """Write a block into a folder, under no name.

    Raises
    ------
    StorageError
        If that cannot be done.
    """
    with writing(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.write(_PROBE)
        file.flush()


def _folders(layout: Layout) -> list[Path]:
    """Return the folders that runs write to, the one for temporary files included."""
    below = [layout.root, layout.private, layout.parties, layout.releases, layout.results, layout.prefect]
    # Of results each table has its own, which may be elsewhere; what else lies there is no run's.
    below += [path for table in TABLES if (path := layout.results / table).is_dir()]
    return [*below, Path(tempfile.gettempdir())]


@precondition
def _writable(afterwards: Afterwards) -> None:
    for folder in _folders(afterwards.layout):
        try_folder(folder)


@precondition
def _room(afterwards: Afterwards) -> None:
    least = afterwards.least_bytes()
    for folder in _folders(afterwards.layout):
        disk = shutil.disk_usage(folder)
        # Some file systems say nothing of their size. How much is free is not told: stored rows, whose size is private,
        # are part of what is not, and a run's message goes to Prefect.
        if disk.total and disk.free < least:
            raise StorageError(
                f"less than {least / _MB:,.1f} MB are free on the disk of {folder}, which may be too little to store "
                "the release after its charge; free some space"
            )


@precondition
def _object_store(afterwards: Afterwards) -> None:
    store = objects_of(afterwards.layout)
    if store is not None:
        # One name, over and over: a bucket may forbid removing.
        store.put("tried", io.BytesIO(b""))
