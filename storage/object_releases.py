"""Releases in an object store: objects named by their content, and a row of the ledger that says which is the release.

Two writers of one release may put two objects, if a library changed a value in its last bit. Neither the store's
conditional put nor the order in which its objects appear decides between them: the ledger does, under its write lock,
after the object is there and before anybody is told. So that a release is made exactly once rests on the ledger alone.
What is read is compared with the digest in that row, which whoever may write to the bucket cannot change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from storage.errors import DamagedError, StorageError
from storage.layout import path_component
from storage.ledger.database import Database
from storage.ledger.entries import Entries, Kind, found, reading, writing
from storage.objects import ObjectStore
from storage.releases import ReleaseStore

_FOLDER = "releases"


class ObjectReleases:
    """Releases as objects ``releases/<key>/<digest>``: the length of the manifest, the manifest, the arrays.

    Parameters
    ----------
    store : ObjectStore
    database : Database
        Of the ledger.
    """

    def __init__(self, store: ObjectStore, database: Database) -> None:
        self._store = store
        self._database = database

    def has(self, key: str) -> bool:
        """Whether the ledger names a copy of the release, and the copy is there."""
        name = self._named(key)
        return name is not None and self._store.has(name)

    def keys(self) -> Iterable[str]:
        """Return the keys that the ledger names a copy of and that objects are there of."""
        there = {name.split("/")[1] for name in self._store.names(_FOLDER)}
        return {entry.subject for entry in found(self._database, Kind.STORED)} & there

    def shown(self, key: str, part: str = "") -> str:
        """Return the address of the copy that the ledger names, which holds all parts."""
        return f"{self._store.url.rstrip('/')}/{self._named(key) or f'{_FOLDER}/{key}'}"

    def manifest(self, key: str) -> bytes:
        """Return the manifest."""
        return self._halves(key)[0]

    def arrays(self, key: str) -> bytes:
        """Return the arrays."""
        return self._halves(key)[1]

    def publish(self, key: str, digest: str, manifest: bytes, arrays: bytes) -> bool:
        """Put an object of its own, then let the ledger decide."""
        name, whole = _name(key, digest), len(manifest).to_bytes(8, "big") + manifest + arrays
        # Of this name there can be nothing else, unless it was damaged.
        if not self._store.create(name, whole) and self._store.get(name) != whole:
            self._store.replace(name, whole)
        with writing(self._database) as entries:
            named = _last(entries, key)
            if named is None or (named != digest and not self._store.has(_name(key, named))):
                entries.append(Kind.STORED, account="", subject=key, content={"digest": digest})
                return True
            return named == digest

    def discard_unless(self, key: str, is_sound: Callable[[], bool]) -> bool:
        """Remove the copy that the ledger names, under the ledger's write lock, which publishing takes."""
        with writing(self._database):
            name = self._named(key)
            if name is None or is_sound():
                return False
            self._store.remove(name)
        return True

    def _named(self, key: str) -> str | None:
        digest = self._digest(key)
        return None if digest is None else _name(key, digest)

    def _digest(self, key: str) -> str | None:
        with reading(self._database) as entries:
            return _last(entries, key)

    def _halves(self, key: str) -> tuple[bytes, bytes]:
        digest = self._digest(key)
        whole = None if digest is None else self._store.get(_name(key, digest))
        if whole is None:
            raise StorageError(f"{self.shown(key)} does not exist")
        size = int.from_bytes(whole[:8], "big")
        if size > len(whole) - 8:
            raise DamagedError(f"{self.shown(key)} is damaged: it is cut off; restore it, or remove it and run again")
        manifest, arrays = whole[8 : 8 + size], whole[8 + size :]
        # The object agrees with itself whoever wrote it: only the ledger says which one was stored.
        body = ReleaseStore.check({"manifest.json": manifest, "arrays.npz": arrays}, Path(key))[1]
        if digest is not None and body != digest:
            raise DamagedError(
                f"{self.shown(key)} is another release (digest {body[:12]}) than the ledger stored ({digest[:12]}): "
                "somebody has replaced it; restore it, or remove it (unitball doctor --clean) and run again"
            )
        return manifest, arrays


def _name(key: str, digest: str) -> str:
    return f"{_FOLDER}/{path_component(key, 'release key')}/{digest}"


def _last(entries: Entries, key: str) -> str | None:
    stored = entries.find(Kind.STORED, subject=key)
    return None if not stored else str(stored[-1].content["digest"])
