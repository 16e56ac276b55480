"""Rows as public maps show them: one file of fixed width for each version, map and part, read by position.

A part is one owner's ingested training rows, or a version's test rows. The file holds its rows in their order, each
as so many little-endian float32 numbers and nothing between them, so that a shard of any partition finds its own by
their positions. It is as private as the rows and lies with them: next to the version, or in the private store of the
party whose rows they are. In a root with an object store the file is an object, and its manifest lies there.

All of it can be made again of the rows. A part that is missing, damaged or belongs to other rows is made again without
an error.
"""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from storage import documents
from storage.atomic import Staging, discard, locked_directory, private_folder, staging, writing
from storage.confined import kept_memory
from storage.datasets import open_dataset, owners_of
from storage.errors import DamagedError, StorageError
from storage.layout import Layout, path_component
from storage.objects import ObjectStore, objects_of, row_objects
from storage.refs import DatasetRef, ShardRef
from storage.rowfiles import StoredRows, ahead
from storage.shards import copied_from

FORMAT_VERSION = 1
MANIFEST = "kept.json"
_FILE = "rows.bin"
_NUMBER = np.dtype("<f4")
# Bytes that are read and thrown away rather than skipped, and the most that is read at once.
_GAP, _AT_ONCE = 1 << 16, 1 << 23
# Bytes of an object that are compared with one digest.
_BLOCK = 1 << 18

Mapped = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Maps a block of rows (m, d) to (m, dimension), each row by itself."""


def room_in_memory() -> int:
    """Return how many bytes of kept rows of an object store stay in this process: a quarter of what rows may take."""
    return kept_memory() // 4


class _Blocks:
    """Blocks of objects that this process has read and verified, those that were of use last; for its life.

    Where parties' rows lie everywhere in an object, each of them would ask for nearly all of it again.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self._lock, self._size = threading.Lock(), 0

    def get(self, key: tuple[str, str, int]) -> bytes | None:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: tuple[str, str, int], block: bytes) -> None:
        most = room_in_memory()
        with self._lock:
            if key not in self._held:
                self._held[key] = block
                self._size += len(block)
            while self._size > most:
                self._size -= len(self._held.popitem(last=False)[1])


_blocks = _Blocks()


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """A file of rows.

    Parameters
    ----------
    path : Path
    dimension : int
        Numbers a row.
    """

    path: Path
    dimension: int

    def take(self, places: NDArray[np.int64], into: NDArray[np.float32]) -> None:
        """Read the rows at increasing places; those that lie close to each other at once."""
        offsets = places * (_NUMBER.itemsize * self.dimension)
        apart = (np.diff(offsets) > _GAP) | (np.diff(offsets // _AT_ONCE) > 0)
        starts = [0, *(np.flatnonzero(apart) + 1).tolist()]
        try:
            with self.path.open("rb", buffering=0) as file:
                for start, stop in zip(starts, [*starts[1:], len(places)], strict=True):
                    first, count = int(places[start]), int(places[stop - 1] - places[start]) + 1
                    if count == stop - start:
                        self._read(file, int(offsets[start]), into[start:stop])
                    else:
                        read = np.empty((count, self.dimension), dtype=_NUMBER)
                        self._read(file, int(offsets[start]), read)
                        into[start:stop] = read[places[start:stop] - first]
        except OSError as error:
            raise DamagedError(f"{self.path} cannot be read: {error.strerror}") from error

    def _read(self, file: IO[bytes], offset: int, rows: NDArray[np.float32]) -> None:
        file.seek(offset)
        left = memoryview(rows.data).cast("B")
        while left:
            read = file.readinto(left)  # type: ignore[attr-defined]  # a raw file has it
            if not read:
                raise DamagedError(f"{self.path} is damaged: it ends before its last row")
            left = left[read:]


@dataclass(frozen=True, slots=True)
class _InStore:
    """An object of rows, read in blocks, each verified.

    Parameters
    ----------
    store : ObjectStore
    name : str
    dimension : int
        Numbers a row.
    digests : tuple of str
        Of its blocks.
    place : Path
        The folder of its manifest: without it, the rows are made again.
    """

    store: ObjectStore
    name: str
    dimension: int
    digests: tuple[str, ...] = field(repr=False)
    place: Path

    def take(self, places: NDArray[np.int64], into: NDArray[np.float32]) -> None:
        """Read the rows at increasing places: the blocks that hold them, neighbours at once."""
        each = block_rows(self.dimension)
        numbers, starts = np.unique(places // each, return_index=True)
        ends = [*starts[1:].tolist(), len(places)]
        for number, start, stop, block in zip(
            numbers.tolist(), starts.tolist(), ends, self._read(numbers.tolist()), strict=True
        ):
            rows = np.frombuffer(block, dtype=_NUMBER).reshape(-1, self.dimension)
            into[start:stop] = rows[places[start:stop] - number * each]

    def _read(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """Yield blocks, from this process where it has them."""
        known = {number: _blocks.get(self._key(number)) for number in numbers}
        fetched = self._fetched([number for number, block in known.items() if block is None])
        for block in known.values():
            yield next(fetched) if block is None else block

    def _fetched(self, numbers: Sequence[int]) -> Iterator[bytes]:
        size = block_rows(self.dimension) * _NUMBER.itemsize * self.dimension
        runs: list[list[int]] = []
        for number in numbers:
            if runs and runs[-1][-1] == number - 1 and len(runs[-1]) < max(1, _AT_ONCE // size):
                runs[-1].append(number)
            else:
                runs.append([number])
        read = self.store.ranges(self.name, ((run[0] * size, len(run) * size) for run in runs))
        try:
            for run, data in zip(runs, read, strict=True):
                for place, number in enumerate(run):
                    block = data[place * size : (place + 1) * size]
                    if hashlib.sha256(block).hexdigest() != self.digests[number]:
                        raise DamagedError(f"{self.store.url.rstrip('/')}/{self.name} is damaged")
                    _blocks.put(self._key(number), block)
                    yield block
        except DamagedError:
            with suppress(StorageError):
                discard(self.place)
            raise

    def _key(self, number: int) -> tuple[str, str, int]:
        return self.store.url, self.name, number


def block_rows(dimension: int) -> int:
    """Return how many rows of so many numbers have one digest in an object store."""
    return max(1, _BLOCK // (_NUMBER.itemsize * dimension))


@dataclass(frozen=True, slots=True)
class _Owned:
    """One owner's rows under a map, and which of the part's rows they are: spans of them, one after another."""

    file: _OnDisk | _InStore
    spans: tuple[tuple[int, int], ...]

    def take(self, positions: NDArray[np.int64], into: NDArray[np.float32]) -> None:
        """Read those of the part's rows at increasing positions that are here."""
        before = 0
        for start, stop in self.spans:
            here = slice(*np.searchsorted(positions, [start, stop]).tolist())
            if here.start < here.stop:
                self.file.take(positions[here] - start + before, into[here])
            before += stop - start


class KeptRows:
    """A shard's rows as a public map shows them, block by block: features from kept files, all else from the shard.

    Blocks are those of the shard's own rows, so that the same numbers pass in the same order, kept or not.

    Parameters
    ----------
    own : StoredRows
        The shard's.
    dimension : int
        Features that the map gives.
    files : sequence
        Of the owners whose rows the shard has.
    mapped : callable
        The map: of what cannot be read any more.
    """

    def __init__(self, own: StoredRows, dimension: int, files: Sequence[_Owned], mapped: Mapped) -> None:
        self.own, self.dimension, self._files, self._mapped = own, dimension, files, mapped
        self._held: list[Any] | None = None

    @property
    def count(self) -> int:
        """Number of records: of rows, or of people with and without rows."""
        return self.own.count

    def blocks(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.generic], NDArray[np.int32] | None]]:
        """Yield ``(features, labels, shares)`` as :meth:`storage.rowfiles.StoredRows.blocks` does."""
        done = 0
        try:
            for positions, labels, shares in self._beside():
                features = np.empty((len(positions), self.dimension), dtype=_NUMBER)
                for owned in self._files:
                    owned.take(positions, features)
                features.flags.writeable = False
                yield features, labels, shares
                done += 1
        except StorageError:
            # They may be removed or damaged while they are read; the shard's own rows are not.
            for features, labels, shares in islice(self.own.blocks(), done, None):
                yield self._mapped(features), labels, shares

    def _beside(self) -> Iterator[Any]:
        """Yield positions, labels and shares; from an object store they are read once, since it gives whole files.

        They take less than the features do that stay in this process (:func:`room_in_memory`).
        """
        if self._held is not None:
            yield from self._held
        elif any(isinstance(one.file, _InStore) for one in self._files):
            self._held = list(self.own.beside_features())
            yield from self._held
        else:
            yield from self.own.beside_features()

    def whose(self) -> NDArray[np.int32] | None:
        """Return that of the shard's own rows."""
        return self.own.whose()

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return that of the shard's own rows."""
        return self.own.fingerprint()

    def by_file(self) -> "list[KeptRows]":
        """Return the rows file by file of the shard's, each of the whole's count and fingerprint."""
        return [KeptRows(own, self.dimension, self._files, self._mapped) for own in self.own.by_file()]


def has_kept(layout: Layout, ref: DatasetRef, part: str, key: str) -> bool:
    """Whether all rows of a part are kept under a map; whether they are whole and of its rows, opening them tells."""
    try:
        owners = owners_of(layout, ref, part)
    except StorageError:
        return False
    return all((_folder(layout, ref.version, part, owner, key) / MANIFEST).is_file() for owner in owners)


def open_kept(layout: Layout, shard: ShardRef, rows: StoredRows, key: str, mapped: Mapped) -> KeptRows | None:
    """Open a shard's rows as a map shows them; None where not all are kept that are whole and of the shard's version.

    Digests are verified once a process and state of the files; of an object, a block whenever it is fetched.

    Parameters
    ----------
    rows : StoredRows
        The shard's.
    key : str
        The map's identity.
    mapped : callable
        See :class:`KeptRows`.

    Raises
    ------
    StorageError
        If the shard is not stored.
    """
    copied = copied_from(layout, shard)
    opened = []
    for owner in copied.files:
        folder = _folder(layout, shard.dataset.version, copied.part, owner, key)
        found = _opened(layout, folder, key, copied.of)
        if found is None:
            return None
        opened.append(found)
    dimensions = {owned.file.dimension for owned in opened}
    return KeptRows(rows, dimensions.pop(), opened, mapped) if len(dimensions) == 1 else None


def keep_rows(layout: Layout, ref: DatasetRef, part: str, key: str, dimension: int, mapped: Mapped) -> None:
    """Write a part's mapped rows, in one pass, for each owner of whom it is not kept whole.

    A second process that needs rows of the same version at that time waits, and finds them.

    Parameters
    ----------
    ref : DatasetRef
    part : {"train", "test"}
    key : str
        The map's identity.
    dimension : int
        Numbers per row of the map's output.
    mapped : callable
        A row's bits do not depend on the other rows.

    Raises
    ------
    StorageError
        If they cannot be written, or the rows cannot be read.
    """
    beside = layout.kept_beside(ref.version)
    private_folder(beside, layout.datasets)
    with writing(beside), locked_directory(beside):
        rows, owners = open_dataset(layout, ref, part), owners_of(layout, ref, part)
        folders = {owner: _folder(layout, ref.version, part, owner, key) for owner in owners}
        missing = {
            owner: spans
            for owner, spans in owners.items()
            if _opened(layout, folders[owner], key, rows.content) is None
        }
        body = {"of": rows.content, "map": key, "part": part, "dimension": dimension}
        with ExitStack() as stack:
            writers: dict[str, _Writer] = {}
            for owner, block, last in ahead(_passing(rows, missing, mapped)):
                if owner not in writers:
                    writers[owner] = _Writer(layout, stack, owner, folders[owner], {**body, "spans": missing[owner]})
                writers[owner].write(block)
                if last:
                    writers.pop(owner).publish()


def _passing(
    rows: StoredRows, missing: Mapping[str, Sequence[tuple[int, int]]], mapped: Mapped
) -> Iterator[tuple[str, NDArray[np.float32], bool]]:
    """Yield whose rows come next, as the map shows them, and whether they are that owner's last."""
    last = {owner: spans[-1][1] for owner, spans in missing.items()}
    spans = sorted((start, stop, owner) for owner, of_owner in missing.items() for start, stop in of_owner)
    before = 0
    for features, _, _ in rows.blocks() if spans else ():
        end = before + len(features)
        for start, stop, owner in spans:
            here = slice(max(start, before), min(stop, end))
            if here.start < here.stop:
                block = mapped(features[here.start - before : here.stop - before])
                yield owner, block, here.stop == last[owner]
        spans = [span for span in spans if span[1] > end]
        before = end


class _Writer:
    """Writes one owner's rows under a temporary name and publishes them whole."""

    def __init__(self, layout: Layout, stack: ExitStack, owner: str, folder: Path, body: Mapping[str, Any]) -> None:
        private_folder(folder.parent, layout.private)
        # Not durable: after a power cut the digest tells, and they are made again.
        self._stage: Staging = stack.enter_context(staging(folder.parent, durable=False))
        self._layout, self._owner, self._folder, self._body = layout, owner, folder, body
        self._path = self._stage.path / _FILE
        with writing(self._path):
            self._file = stack.enter_context(self._path.open("xb"))

    def write(self, block: NDArray[np.float32]) -> None:
        if block.shape[1:] != (self._body["dimension"],):
            raise StorageError(
                f"a map returned rows of shape {block.shape[1:]}; expected {self._body['dimension']} numbers per row"
            )
        with writing(self._path):
            self._file.write(np.ascontiguousarray(block, dtype=_NUMBER).data)

    def publish(self) -> None:
        with writing(self._path):
            self._file.close()
            digest = documents.file_digest(self._path)
            put = row_objects(self._layout, self._owner or None)
            blocks = None if put is None else _digests(self._path, self._body["dimension"])
            name = _FILE if put is None else put(self._path, digest)
            body = {**self._body, "file": [name, digest], "blocks": blocks}
            (self._stage.path / MANIFEST).write_bytes(documents.dump_manifest(body, version=FORMAT_VERSION))
        key, of = self._body["map"], self._body["of"]
        self._stage.publish(self._folder, lambda: _opened(self._layout, self._folder, key, of) is not None)


def _digests(path: Path, dimension: int) -> list[str]:
    size = block_rows(dimension) * _NUMBER.itemsize * dimension
    with path.open("rb") as file:
        return [hashlib.sha256(block).hexdigest() for block in iter(lambda: file.read(size), b"")]


def _folder(layout: Layout, version: str, part: str, owner: str, key: str) -> Path:
    return layout.kept(version, part, owner) / path_component(key, "key of a map")


def _opened(layout: Layout, folder: Path, key: str, of: str) -> _Owned | None:
    """Open one owner's rows; None where they are not whole, or not those of the map and of the part's rows."""
    store = objects_of(layout)
    try:
        body = documents.load_manifest(folder / MANIFEST, version=FORMAT_VERSION)
        if body["of"] != of or body["map"] != key:
            return None
        spans, dimension = tuple((start, stop) for start, stop in body["spans"]), body["dimension"]
        name, digest = body["file"]
        if store is None:
            documents.verify_file(folder / name, digest)
            file: _OnDisk | _InStore = _OnDisk(folder / name, dimension)
        else:
            file = _InStore(store, name, dimension, tuple(body["blocks"]), folder)
            if _blocks.get((store.url, file.name, 0)) is None and not store.has(file.name):
                return None
    except StorageError:
        return None
    # Says when they were last of use.
    with suppress(OSError):
        os.utime(folder / MANIFEST)
    return _Owned(file, spans)


def _manifests(layout: Layout) -> Iterator[Path]:
    yield from layout.datasets.glob(f"[!.]*/kept/*/[!.]*/{MANIFEST}")
    yield from layout.parties.glob(f"*/kept/*/*/[!.]*/{MANIFEST}")


def kept_objects(layout: Layout) -> list[str]:
    """Return the names of the objects that kept rows lie in.

    Raises
    ------
    StorageError
        If a manifest cannot be read: what it names would be taken for abandoned.
    """
    return [documents.load_manifest(path, version=FORMAT_VERSION)["file"][0] for path in _manifests(layout)]


def remove_kept(layout: Layout, before: float) -> int:
    """Remove kept rows last opened before a time (seconds since 1970), unreadable ones, and those without a version.

    Returns
    -------
    int
        How many files went.
    """
    count = 0
    for manifest in _manifests(layout):
        try:
            used, body = manifest.stat().st_mtime, documents.load_manifest(manifest, version=FORMAT_VERSION)
        except (OSError, StorageError):
            used, body = None, None
        of_party = manifest.is_relative_to(layout.parties)
        if used is None or used < before or (of_party and not layout.dataset(manifest.parts[-4]).exists()):
            discard(manifest.parent)
            store = objects_of(layout)
            if store is not None and body is not None:
                with suppress(StorageError):
                    store.remove(body["file"][0])
            count += 1
    return count
