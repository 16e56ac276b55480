"""An append-only file of named entries, of which the first one under a name counts."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from storage.atomic import writing
from storage.errors import DamagedError

_CHECK = 16


class Journal:
    """Entries, each a line of a file: for many small ones, where a file each would wait for the disk too long.

    A line that a killed writer left unfinished is none, and is cut off by the next one.

    Parameters
    ----------
    path : Path
        Made when the first entry is added, for its owner alone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self._entries: dict[str, bytes] = {}
        self._known = False

    def get(self, name: str) -> bytes | None:
        """Return the entry of this name, None where there was none when the file was first read."""
        if not self._known:
            self._known = True
            with writing(self._path):
                try:
                    descriptor = os.open(self._path, os.O_RDONLY)
                except FileNotFoundError:
                    return None
                try:
                    self._catch_up(descriptor)
                finally:
                    os.close(descriptor)
        return self._entries.get(name)

    def add(self, name: str, value: bytes) -> bytes:
        """Enter a value under a name unless there is one, and return what stands: the caller goes on with that.

        It is on disk before this returns, also where another process was the one to write it.

        Raises
        ------
        StorageError
            If the file cannot be written.
        DamagedError
            If an entry of it was changed.
        """
        with writing(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                # Held to the end of the process at most, so a kill leaves no lock behind.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                first = os.fstat(descriptor).st_size == 0
                self._catch_up(descriptor)
                if name not in self._entries:
                    line = _line(name, value)
                    os.ftruncate(descriptor, self._read_to)
                    os.pwrite(descriptor, line, self._read_to)
                    self._read_to += len(line)
                    self._entries[name] = value
                os.fsync(descriptor)
                if first:
                    _sync(self._path.parent)
            finally:
                os.close(descriptor)
        return self._entries[name]

    def _catch_up(self, descriptor: int) -> None:
        """Read what was added since, by whomever, up to the last finished line."""
        size = os.fstat(descriptor).st_size
        fresh = os.pread(descriptor, size - self._read_to, self._read_to)
        for line in fresh.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            name, _, rest = line.decode().partition(" ")
            value = rest.partition(" ")[0]
            if not value or line != _line(name, bytes.fromhex(value)):
                raise DamagedError(
                    f"{self._path} is damaged: restore it from a backup, or ask for another release with --repetition"
                )
            self._entries.setdefault(name, bytes.fromhex(value))
            self._read_to += len(line)


def _line(name: str, value: bytes) -> bytes:
    body = f"{name} {value.hex()}"
    return f"{body} {hashlib.sha256(body.encode()).hexdigest()[:_CHECK]}\n".encode()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
