"""Releases: arrays with a manifest, written once, never changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from storage import manifests
from storage.atomic import discard_unless, staging, writing
from storage.documents import pack_arrays, unpack_arrays
from storage.errors import DamagedError, StorageError
from storage.layout import Layout

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_ARRAYS = "arrays.npz"


class Place(Protocol):
    """Where the bytes of releases lie: each whole or not at all, and the first one of a key stays."""

    def has(self, key: str) -> bool:
        """Whether a release is there; it is whole then."""
        ...

    def keys(self) -> Iterable[str]:
        """Return the keys of all releases that are there, and of what is left of damaged ones."""
        ...

    def shown(self, key: str, part: str) -> str:
        """Return where a part of a release lies, for people."""
        ...

    def manifest(self, key: str) -> bytes:
        """Return a release's manifest; StorageError where there is none."""
        ...

    def arrays(self, key: str) -> bytes:
        """Return a release's arrays; DamagedError where they are missing or cannot be read."""
        ...

    def publish(self, key: str, digest: str, manifest: bytes, arrays: bytes) -> bool:
        """Store a release; return False, and change nothing, where another one is there."""
        ...

    def discard_unless(self, key: str, is_sound: Callable[[], bool]) -> bool:
        """Remove a release unless it is sound, which nobody can change in between; return whether it went."""
        ...


class _Folders:
    """Releases as folders under the root.

    Parameters
    ----------
    layout : Layout
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def has(self, key: str) -> bool:
        """Whether a release is there."""
        return (self._layout.release(key) / _MANIFEST).is_file()

    def keys(self) -> Iterable[str]:
        """Return the names of all folders."""
        if not self._layout.releases.is_dir():
            return ()
        return [path.name for path in self._layout.releases.iterdir() if not path.name.startswith(".")]

    def shown(self, key: str, part: str) -> str:
        """Return the path of a file."""
        return str(self._layout.release(key) / part)

    def manifest(self, key: str) -> bytes:
        """Read the manifest."""
        return manifests.read(self._layout.release(key) / _MANIFEST)

    def arrays(self, key: str) -> bytes:
        """Read the arrays."""
        path = self._layout.release(key) / _ARRAYS
        try:
            return path.read_bytes()
        except OSError as error:
            raise DamagedError(f"{path} is missing or cannot be read: {error.strerror}; {_WAY_OUT}") from error

    def publish(self, key: str, digest: str, manifest: bytes, arrays: bytes) -> bool:
        """Write a folder under a temporary name and rename it."""
        with staging(self._layout.releases) as stage, writing(target := self._layout.release(key)):
            (stage.path / _ARRAYS).write_bytes(arrays)
            (stage.path / _MANIFEST).write_bytes(manifest)
            # A folder without its manifest is no release: somebody removed one of its files.
            return stage.publish(target, lambda: self.has(key))

    def discard_unless(self, key: str, is_sound: Callable[[], bool]) -> bool:
        """Remove a folder, looked at under the lock that publishing takes."""
        return discard_unless(self._layout.release(key), is_sound)


class ReleaseStore:
    """The releases of one root, by key.

    Parameters
    ----------
    layout : Layout
    place : Place, optional
        Where their bytes lie; by default folders under the root.
    """

    def __init__(self, layout: Layout, place: Place | None = None) -> None:
        self._place = place or _Folders(layout)

    def exists(self, key: str) -> bool:
        """Whether the release is stored; releases appear whole, so it is complete."""
        return self._place.has(key)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all stored releases, sorted."""
        return tuple(sorted(key for key in self._place.keys() if self.exists(key)))

    @staticmethod
    def digest_of(manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
        """Return the SHA-256 of a release: equal for equal values, whatever wrote them and when."""
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
        written = self._place.publish(key, digest, manifests.dump(body, version=FORMAT_VERSION), data)
        return digest if written else self._same(key, digest)

    def files(self, key: str) -> dict[str, bytes]:
        """Return the bytes of a release's files by name, its digests verified as :meth:`read` does."""
        self.read(key)
        return {_MANIFEST: self._place.manifest(key), _ARRAYS: self._place.arrays(key)}

    @staticmethod
    def check(files: Mapping[str, bytes], place: Path) -> tuple[dict[str, Any], str]:
        """Return the manifest and the digest of a release that is given by its files' bytes, wherever they lie.

        Raises
        ------
        DamagedError
            If they do not match each other's digests, naming the place.
        """
        body = manifests.parse(files[_MANIFEST], place / _MANIFEST, version=FORMAT_VERSION)
        manifest: dict[str, Any] = body["manifest"]
        return manifest, _require_whole(body, files[_ARRAYS], place / _ARRAYS)

    @staticmethod
    def decode(files: Mapping[str, bytes], place: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return manifest and arrays of a release that is given by its files' bytes; raises as :meth:`check` does."""
        manifest, _ = ReleaseStore.check(files, place)
        return manifest, unpack_arrays(files[_ARRAYS], place / _ARRAYS)

    def _same(self, key: str, digest: str) -> str:
        body = self._manifest(key)
        if body["release"] != digest:
            raise StorageError(
                f"release {key} is stored with other values (digest {body['release'][:12]}, now {digest[:12]}); a "
                "release is never overwritten: ask for a new one with --repetition"
            )
        return digest

    def _manifest(self, key: str) -> dict[str, Any]:
        place = self._place.shown(key, _MANIFEST)
        body = manifests.parse(self._place.manifest(key), place, version=FORMAT_VERSION)
        if (key_recorded := body["manifest"].get("key", key)) != key:
            raise DamagedError(f"{place} is the manifest of another release, {key_recorded}; {_WAY_OUT}")
        return body

    def manifest(self, key: str) -> dict[str, Any]:
        """Return what a release says of itself; its arrays are neither read nor verified."""
        body: dict[str, Any] = self._manifest(key)["manifest"]
        return body

    def read(self, key: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return manifest and arrays of a release, its digests verified.

        Raises
        ------
        StorageError
            If it is not stored.
        DamagedError
            If a file does not match its digest, naming it.
        """
        body, data = self._manifest(key), self._place.arrays(key)
        _require_whole(body, data, self._place.shown(key, _ARRAYS))
        manifest = body["manifest"]
        return manifest, unpack_arrays(data, self._place.shown(key, _ARRAYS))

    def remove_damaged(self, *keys: str) -> tuple[str, ...]:
        """Remove those of ``keys`` (all, where none is named) that do not match their digests; return them.

        Sound releases are never removed. Where the party's secret is unchanged, the release is drawn again with
        the same noise.
        """
        removed = []
        for key in keys or sorted(self._place.keys()):
            # Reading takes long, and most releases are sound: only a suspect is looked at again under the lock.
            sound = partial(self._is_sound, key)
            if not sound() and self._place.discard_unless(key, sound):
                removed.append(key)
        return tuple(removed)

    def _is_sound(self, key: str) -> bool:
        try:
            self.read(key)
        except DamagedError:
            return False
        return True


_WAY_OUT = "restore it from a backup, or remove it and run again: an unchanged secret draws the same noise"


def _require_whole(body: Mapping[str, Any], data: bytes, path: Path | str) -> str:
    """Return the digest of a release whose arrays are those that its manifest names."""
    digest = _digest(body["manifest"], data)
    if hashlib.sha256(data).hexdigest() != body["arrays"] or digest != body["release"]:
        raise DamagedError(f"{path} is damaged: its digest does not match; {_WAY_OUT}")
    return digest


def _stamped(manifest: Mapping[str, Any]) -> dict[str, Any]:
    # Through JSON and back, so that the digest is that of what will be read (tuples become lists, keys text).
    plain: dict[str, Any] = json.loads(manifests.canonical({**manifest, "format_version": FORMAT_VERSION}))
    return plain


def _digest(manifest: Mapping[str, Any], data: bytes) -> str:
    return hashlib.sha256(manifests.canonical(_stamped(manifest)) + b"\0" + data).hexdigest()
