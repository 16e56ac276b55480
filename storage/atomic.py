"""Writes that happen whole or not at all: a temporary neighbour, fsync, then one rename."""

import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.errors import StorageError

PREFIX = ".new-"
"""What temporary names begin with; whoever lists a folder skips names that begin with a dot."""

_OLD_SECONDS = 24 * 3600.0
_live: set[str] = set()
_swept: set[Path] = set()


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an operating-system error into a :class:`StorageError` of one line that names the place and the way out."""
    try:
        yield
    except OSError as error:
        what = error.strerror or type(error).__name__
        raise StorageError(
            f"cannot write {error.filename or place}: {what}; make the folder writable, free some space, or choose "
            "another one with --root",
            value=error.errno,
            way_out="--root",
        ) from error


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Give a temporary name in a folder; what still bears it on leaving is removed."""
    path = folder / f"{PREFIX}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
    _live.add(path.name)
    try:
        yield path
    finally:
        _remove(path)
        _live.discard(path.name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def private_folder(folder: Path, above: Path) -> None:
    """Make a folder and those between it and ``above``, which is made too, for their owner alone.

    Raises
    ------
    StorageError
        If they cannot be made.
    """
    with writing(folder):
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        missing = [folder, *folder.parents]
        for step in reversed(missing[: missing.index(above)]):
            step.mkdir(mode=0o700, exist_ok=True)


def sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _abandoned(path: Path) -> bool:
    host, _, rest = path.name.removeprefix(PREFIX).rpartition("-")[0].rpartition("-")
    if host == socket.gethostname() and rest.isdigit():
        if int(rest) == os.getpid():
            return path.name not in _live
        try:
            os.kill(int(rest), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
    try:
        return time.time() - path.stat().st_mtime > _OLD_SECONDS
    except OSError:
        return False


def clean(folder: Path) -> int:
    """Remove what killed writers left in ``folder``; return how many.

    A temporary name is abandoned when the process of this host that made it is gone, or after a day.
    """
    abandoned = [path for path in folder.glob(f"{PREFIX}*") if _abandoned(path)]
    for path in abandoned:
        _remove(path)
    return len(abandoned)


def sweep_once(folder: Path) -> None:
    """Call :func:`clean` on the first meeting of this process with ``folder``."""
    if folder not in _swept:
        _swept.add(folder)
        clean(folder)


def discard(path: Path) -> None:
    """Remove a folder at one stroke: it goes to a temporary name first, so that no reader meets a half of it."""
    with writing(path), _temporary(path.parent) as aside, suppress(FileNotFoundError):
        path.rename(aside)


@contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Hold an exclusive lock on a directory; it ends with the process, so a kill leaves none behind."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, made where it is missing; it ends with the process, as a directory's does."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def discard_unless(path: Path, is_whole: Callable[[], bool]) -> bool:
    """Remove a folder unless it is whole, checked under the lock of publishing; return whether it was removed."""
    with writing(path), locked_directory(path.parent):
        if is_whole():
            return False
        discard(path)
    return True


def _create(path: Path, mode: int, *parts: bytes) -> None:
    """Write a file that is not there yet, and wait until its content is on the disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` whole or not at all, replacing what is there.

    Raises
    ------
    StorageError
        If the folder cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_once(path.parent)
        with _temporary(path.parent) as temporary:
            _create(temporary, mode, data)
            temporary.replace(path)
            sync(path.parent)


def write_once(path: Path, *parts: bytes) -> None:
    """Write a file that only its owner reads, unless one is there: only the first writer succeeds.

    Parameters
    ----------
    path : Path
        Folders that are missing are made, for their owner alone.
    *parts : bytes
        Written one after another.

    Raises
    ------
    StorageError
        If the folder cannot be written.
    """
    with writing(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep_once(path.parent)
        with _temporary(path.parent) as fresh:
            _create(fresh, 0o600, *parts)
            # A hard link appears whole and, unlike a rename, never replaces what another process wrote first.
            with suppress(FileExistsError):
                os.link(fresh, path)
            sync(path.parent)


class Staging:
    """A folder under a temporary name, to be filled and then published under its own name.

    Attributes
    ----------
    path : Path
        Where to write.
    """

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self._durable = durable

    def publish(self, target: Path, is_whole: Callable[[], bool] = lambda: True) -> bool:
        """Rename the folder to ``target``; return False, and keep what is there, if that is whole.

        Parameters
        ----------
        target : Path
        is_whole : callable
            Says whether what lies at ``target`` is to be kept. It is called under the lock that is held for publishing
            into or discarding from this folder, so that a complete file that appears in between is never removed.
        """
        with writing(target):
            if self._durable:
                for folder, _, names in os.walk(self.path):
                    for name in names:
                        sync(Path(folder) / name)
                    sync(Path(folder))
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked_directory(target.parent):
                if os.path.lexists(target):
                    if is_whole():
                        return False
                    discard(target)
                self.path.rename(target)
                if self._durable:
                    sync(target.parent)
        return True


@contextmanager
def staging(parent: Path, *, durable: bool = True) -> Iterator[Staging]:
    """Open a folder under a temporary name in ``parent``; what is not published is removed on leaving.

    Parameters
    ----------
    durable : bool
        False for what can be made again from other stored files: it saves the waits for the disk, and a power
        cut is then noticed by the digests.
    """
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        sweep_once(parent)
    with _temporary(parent) as path:
        with writing(parent):
            path.mkdir(mode=0o700)
        yield Staging(path, durable=durable)
