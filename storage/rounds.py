"""The rounds of a secure aggregation: states of parties and messages, each written once and never again.

What a party remembers lies in its own private store, what was sent lies with the server. Nothing here knows the
protocol: names and bytes, of which the first ones stored are the ones.
"""

import fcntl
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from storage.atomic import sync, write_once, writing
from storage.errors import DamagedError, StorageError, require_format
from storage.layout import path_component

FORMAT_VERSION = 1
_MAGIC = b"unitball-round "
_DIGEST = hashlib.sha256().digest_size
_CHECK = 16


class RoundStore:
    """Files of one folder, each written once: the first to store a name wins.

    Parameters
    ----------
    folder : Path
        Of what the server of one release's rounds received, decided and sent (:meth:`storage.layout.Layout.round`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes) -> bytes:
        """Store under a name unless something is, and return what is stored: the caller goes on with that.

        It is on disk before this returns, also where another process or an earlier run was the one to write it.
        """
        path = self._folder / path_component(name, "message name")
        content = self._read(path)
        if content is None:
            write_once(path, _MAGIC + b"%d\n" % FORMAT_VERSION, hashlib.sha256(data).digest(), data)
            content = self._read(path)
        if content is None:
            raise StorageError(f"{path} vanished while it was being written; try again")
        return content

    def get(self, name: str) -> bytes | None:
        """Return what is stored under a name, None where nothing is."""
        return self._read(self._folder / path_component(name, "message name"))

    def require(self, name: str) -> bytes:
        """Return what is stored under a name.

        Raises
        ------
        StorageError
            If nothing is.
        """
        content = self.get(name)
        if content is None:
            raise StorageError(f"{self._folder / name} is missing: run the earlier round first")
        return content

    def _read(self, path: Path) -> bytes | None:
        try:
            whole = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}; its owner must be able to read it") from error
        head, _, body = whole.partition(b"\n")
        version = head.removeprefix(_MAGIC)
        known = head.startswith(_MAGIC) and version.isdigit()
        if known:
            require_format(path, int(version), FORMAT_VERSION)
        if not known or hashlib.sha256(body[_DIGEST:]).digest() != body[:_DIGEST]:
            raise DamagedError(
                f"{path} is damaged: its digest does not match; restore it from a back-up, or start another round with "
                "--replicate"
            )
        return body[_DIGEST:]


class PrivateNotes(RoundStore):
    """The notes of one party on one release's rounds: secret, in its private store.

    Parameters
    ----------
    folder : Path
        Of one party and release (:meth:`storage.layout.Layout.party_round`).
    """

    def count(self) -> int:
        """Return how many notes there are."""
        return len(self.names())

    def names(self) -> list[str]:
        """Return the names of all notes, sorted."""
        there = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(path.name for path in there if not path.name.startswith("."))

    def discard(self, name: str) -> None:
        """Remove what nothing will ask for again; nothing stored under the name is fine."""
        (self._folder / path_component(name, "message name")).unlink(missing_ok=True)


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

    def get(self, name: str) -> bytes | None:
        """Return the entry of this name, None where there is none."""
        if name not in self._entries:
            with writing(self._path), suppress(FileNotFoundError), self._path.open("rb") as file:
                # Whoever adds one holds the lock until it is on the disk.
                fcntl.flock(file, fcntl.LOCK_SH)
                self._catch_up(file.fileno())
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
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                descriptor = file.fileno()
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
                    sync(self._path.parent)
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
                    f"{self._path} is damaged: restore it from a back-up, or request another release with --replicate"
                )
            self._entries.setdefault(name, bytes.fromhex(value))
            self._read_to += len(line)


def _line(name: str, value: bytes) -> bytes:
    body = f"{name} {value.hex()}"
    return f"{body} {hashlib.sha256(body.encode()).hexdigest()[:_CHECK]}\n".encode()
