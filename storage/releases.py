"""Releases: arrays with a manifest, written once, never changed; as folders of the root, or as objects."""

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from storage import documents
from storage.atomic import discard_unless, staging, writing
from storage.documents import pack_arrays, unpack_arrays
from storage.errors import DamagedError, StorageError
from storage.layout import Layout, path_component
from storage.ledger.database import Database
from storage.ledger.entries import Entries, Kind, found, reading
from storage.ledger.entries import writing as ledger_writing
from storage.objects import ObjectStore

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_ARRAYS = "arrays.npz"
_FOLDER = "releases"


class ReleaseStore:
    """The releases of one root, by key; their bytes lie in folders under the root.

    Parameters
    ----------
    layout : Layout
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def exists(self, key: str) -> bool:
        """Whether the release is stored; releases appear whole, so it is complete."""
        return (self._layout.release(key) / _MANIFEST).is_file()

    def _keys(self) -> Iterable[str]:
        """Return the keys of all releases that are there, and of what is left of damaged ones."""
        if not self._layout.releases.is_dir():
            return ()
        return [path.name for path in self._layout.releases.iterdir() if not path.name.startswith(".")]

    def _place(self, key: str) -> str:
        """Return where a release lies, for people."""
        return str(self._layout.release(key))

    def _part(self, key: str, name: str) -> bytes:
        """Return a file of a release: StorageError where there is no manifest, DamagedError where only that is."""
        path = self._layout.release(key) / name
        if name == _MANIFEST:
            return documents.read_stored(path)
        try:
            return path.read_bytes()
        except OSError as error:
            raise DamagedError(f"{path} is missing or cannot be read: {error.strerror}; {_WAY_OUT}") from error

    def _publish(self, key: str, digest: str, manifest: bytes, arrays: bytes) -> bool:
        """Store a release; return False, and change nothing, where another one is there."""
        with staging(self._layout.releases) as stage, writing(target := self._layout.release(key)):
            (stage.path / _ARRAYS).write_bytes(arrays)
            (stage.path / _MANIFEST).write_bytes(manifest)
            # A folder without its manifest is no release: somebody removed one of its files.
            return stage.publish(target, lambda: self.exists(key))

    def _discard_unless(self, key: str, is_sound: Callable[[], bool]) -> bool:
        """Remove a release unless it is sound, which nobody can change in between; return whether it went."""
        return discard_unless(self._layout.release(key), is_sound)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all stored releases, sorted."""
        return tuple(sorted(key for key in self._keys() if self.exists(key)))

    @staticmethod
    def digest_of(manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
        """Return the SHA-256 of a release: equal for equal values, from any writer at any time."""
        return _digest(manifest, pack_arrays(arrays))

    def write(self, key: str, manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
        """Store a release, whole or not at all; storing the same again changes nothing.

        Parameters
        ----------
        manifest : mapping
            Plain JSON; it gets ``format_version``.
        arrays : mapping of name to array
            No Python objects.

        Returns
        -------
        str
            The digest.

        Raises
        ------
        StorageError
            If another release is stored under this key: a release is never overwritten.
        """
        data = pack_arrays(arrays)
        digest = _digest(manifest, data)
        if self.exists(key):
            return self._same(key, digest)
        body = {"manifest": _stamped(manifest), "arrays": hashlib.sha256(data).hexdigest(), "release": digest}
        written = self._publish(key, digest, documents.dump_manifest(body, version=FORMAT_VERSION), data)
        return digest if written else self._same(key, digest)

    def files(self, key: str) -> dict[str, bytes]:
        """Return the bytes of a release's files by name, its digests verified as :meth:`read` does."""
        files = {name: self._part(key, name) for name in (_MANIFEST, _ARRAYS)}
        _require_whole(self._body(key, files[_MANIFEST]), files[_ARRAYS], self._place(key))
        return files

    @staticmethod
    def check(files: Mapping[str, bytes], place: Path | str) -> tuple[dict[str, Any], str]:
        """Return the manifest and the digest of a release that is given by its files' bytes, wherever they lie.

        Raises
        ------
        DamagedError
            If they do not match each other's digests, naming the place.
        """
        body = documents.parse_manifest(files[_MANIFEST], f"{place}/{_MANIFEST}", version=FORMAT_VERSION)
        return body["manifest"], _require_whole(body, files[_ARRAYS], place)

    @staticmethod
    def decode(files: Mapping[str, bytes], place: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return manifest and arrays of a release that is given by its files' bytes; raises as :meth:`check` does."""
        return ReleaseStore.check(files, place)[0], unpack_arrays(files[_ARRAYS], f"{place}/{_ARRAYS}")

    def _same(self, key: str, digest: str) -> str:
        body = self._body(key, self._part(key, _MANIFEST))
        if body["release"] != digest:
            raise StorageError(
                f"release {key} is stored with other values (digest {body['release'][:12]}, now {digest[:12]}); a "
                "release is never overwritten: request a new release with --replicate",
                value=digest,
                bound=body["release"],
                way_out="--replicate",
            )
        return digest

    def _body(self, key: str, data: bytes) -> dict[str, Any]:
        place = f"{self._place(key)}/{_MANIFEST}"
        body = documents.parse_manifest(data, place, version=FORMAT_VERSION)
        if (key_recorded := body["manifest"].get("key", key)) != key:
            raise DamagedError(f"{place} is the manifest of another release, {key_recorded}; {_WAY_OUT}")
        return body

    def manifest(self, key: str) -> dict[str, Any]:
        """Return what a release says of itself; its arrays are neither read nor verified."""
        return dict(self._body(key, self._part(key, _MANIFEST))["manifest"])

    def read(self, key: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return manifest and arrays of a release, its digests verified.

        Raises
        ------
        StorageError
            If it is not stored.
        DamagedError
            If a file does not match its digest, naming it.
        """
        body, data = self._body(key, self._part(key, _MANIFEST)), self._part(key, _ARRAYS)
        _require_whole(body, data, self._place(key))
        return body["manifest"], unpack_arrays(data, f"{self._place(key)}/{_ARRAYS}")

    def remove_damaged(self, *keys: str) -> tuple[str, ...]:
        """Remove those of ``keys`` (all, where none is named) that do not match their digests; return them.

        Sound releases are never removed. Where the party's secret is unchanged, the release is drawn again with
        the same noise.
        """
        removed = []
        for key in keys or sorted(self._keys()):
            # Reading takes long, and most releases are sound: only a suspect is looked at again under the lock.
            sound = partial(self._is_sound, key)
            if not sound() and self._discard_unless(key, sound):
                removed.append(key)
        return tuple(removed)

    def _is_sound(self, key: str) -> bool:
        try:
            self.read(key)
        except DamagedError:
            return False
        return True


_WAY_OUT = "restore it from a back-up, or remove it and run again: an unchanged secret draws the same noise"


def _require_whole(body: Mapping[str, Any], data: bytes, place: Path | str) -> str:
    """Return the digest of a release whose arrays are those that its manifest names."""
    digest = _digest(body["manifest"], data)
    if hashlib.sha256(data).hexdigest() != body["arrays"] or digest != body["release"]:
        raise DamagedError(f"{place}/{_ARRAYS} is damaged: its digest does not match; {_WAY_OUT}")
    return digest


def _stamped(manifest: Mapping[str, Any]) -> dict[str, Any]:
    # Through JSON and back, so that the digest is that of what will be read (tuples become lists, keys text).
    return dict(json.loads(documents.canonical_json({**manifest, "format_version": FORMAT_VERSION})))


def _digest(manifest: Mapping[str, Any], data: bytes) -> str:
    return hashlib.sha256(documents.canonical_json(_stamped(manifest)) + b"\0" + data).hexdigest()


class ObjectReleases(ReleaseStore):
    """Releases as objects ``releases/<key>/<digest>``: the length of the manifest, the manifest, the arrays.

    Two writers of one release may put two objects, if a library changed a value in its last bit. The order in which
    they appear does not decide between them: the ledger does, by a separate row, under its write lock, after the
    object is stored and before it is published. So that a release is made exactly once rests on the ledger alone. Each
    object that is read is compared with the digest in that row, which write access to the bucket cannot change.

    Parameters
    ----------
    store : ObjectStore
    database : Database
        Of the ledger.
    """

    def __init__(self, store: ObjectStore, database: Database) -> None:
        self._store = store
        self._database = database

    def exists(self, key: str) -> bool:
        """Whether the ledger names a copy of the release, and the copy is there."""
        name = self._named(key)
        return name is not None and self._store.has(name)

    def _keys(self) -> Iterable[str]:
        """Return the keys that the ledger names a copy of and that objects are there of."""
        there = {name.split("/")[1] for name in self._store.names(_FOLDER)}
        return {entry.subject for entry in found(self._database, Kind.STORED)} & there

    def _place(self, key: str) -> str:
        """Return the address of the copy that the ledger names, which holds all parts."""
        return f"{self._store.url.rstrip('/')}/{self._named(key) or f'{_FOLDER}/{key}'}"

    def _publish(self, key: str, digest: str, manifest: bytes, arrays: bytes) -> bool:
        """Put a separate object, then let the ledger decide."""
        name, whole = _name(key, digest), len(manifest).to_bytes(8, "big") + manifest + arrays
        # Of this name there can be nothing else, unless it was damaged.
        if self._store.get(name) != whole:
            self._store.put(name, io.BytesIO(whole))
        with ledger_writing(self._database) as entries:
            named = _last(entries, key)
            if named is None or (named != digest and not self._store.has(_name(key, named))):
                entries.append(Kind.STORED, account="", subject=key, content={"digest": digest})
                return True
            return named == digest

    def _discard_unless(self, key: str, is_sound: Callable[[], bool]) -> bool:
        """Remove the copy that the ledger names, under the ledger's write lock, which publishing takes."""
        with ledger_writing(self._database):
            name = self._named(key)
            if name is None or is_sound():
                return False
            self._store.remove(name)
        return True

    def _named(self, key: str) -> str | None:
        with reading(self._database) as entries:
            digest = _last(entries, key)
        return None if digest is None else _name(key, digest)

    def _part(self, key: str, name: str) -> bytes:
        """Return a part of the copy that the ledger names, the whole of it verified."""
        named, place = self._named(key), self._place(key)
        whole = None if named is None else self._store.get(named)
        if named is None or whole is None:
            raise StorageError(f"{place} does not exist")
        size = int.from_bytes(whole[:8], "big")
        if size > len(whole) - 8:
            raise DamagedError(f"{place} is damaged: it is cut off; restore it, or remove it and run again")
        parts = {_MANIFEST: whole[8 : 8 + size], _ARRAYS: whole[8 + size :]}
        # The object agrees with itself whoever wrote it: only the ledger says which one was stored.
        digest, stored = ReleaseStore.check(parts, key)[1], named.rpartition("/")[2]
        if digest != stored:
            raise DamagedError(
                f"{place} is another release (digest {digest[:12]}) than the ledger stored ({stored[:12]}): "
                "it was replaced; restore it, or remove it (unitball doctor --clean) and run again"
            )
        return parts[name]


def _name(key: str, digest: str) -> str:
    return f"{_FOLDER}/{path_component(key, 'release key')}/{digest}"


def _last(entries: Entries, key: str) -> str | None:
    stored = entries.find(Kind.STORED, subject=key)
    return None if not stored else str(stored[-1].content["digest"])
