"""Shards: one party's rows under one partition, in that party's own private store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage import manifests
from storage.atomic import Staging, discard, staging, writing
from storage.datasets import open_dataset
from storage.errors import DamagedError, InputError, StorageError
from storage.layout import Layout
from storage.refs import DatasetRef, ShardRef
from storage.rowfiles import RowFormat, RowWriter, StoredRows, WrittenRows

__all__ = ["FORMAT_VERSION", "MANIFEST", "open_shard", "write_shards"]

FORMAT_VERSION = 1
MANIFEST = "shard.json"
# As many files as every system lets a process hold open, and what may wait in memory to be written to them.
_OPEN_AT_ONCE = 256
_PENDING_BYTES = 1 << 27


def _owners(assignment: Mapping[str, NDArray[np.int64]], rows: int, name: str) -> NDArray[np.int32]:
    """Return the party's number of each row, -1 where it has none; refuse what is not a partition."""
    owners = np.full(rows, -1, dtype=np.int32)
    for number, (party, positions) in enumerate(assignment.items()):
        if len(positions) == 0:
            raise InputError(f"party {party!r} is empty: give it at least one row, or take fewer parties")
        if positions.min() < 0 or positions.max() >= rows:
            raise InputError(
                f"party {party!r} is given row {int(positions.max())}, {name} has {rows} rows; ask for fewer rows"
            )
        taken = owners[positions]
        if (taken >= 0).any():
            other = list(assignment)[int(taken.max())]
            raise InputError(f"parties {other!r} and {party!r} are given the same row; parties must be disjoint")
        owners[positions] = number
        if int((owners == number).sum()) != len(positions):
            raise InputError(f"party {party!r} is given a row twice; name each row once")
    return owners


def _existing(layout: Layout, ref: DatasetRef, partition: str, party: str, positions: str) -> int | None:
    """Return the rows of a sound stored shard, or None where it has to be written."""
    folder = layout.shard(party, partition, ref.version)
    try:
        if not (folder / MANIFEST).is_file():
            raise DamagedError(f"{folder} has no manifest")
        body = manifests.load(folder / MANIFEST, version=FORMAT_VERSION)
        StoredRows.open(folder, RowFormat.from_json(body["format"]), WrittenRows.from_json(body["rows"]))
    except DamagedError:
        # A shard is a copy of rows that the data set still holds, so it is simply written again.
        discard(folder)
        return None
    if body["positions"] != positions:
        raise StorageError(
            f"party {party!r} already holds other rows of {ref.name} under partition {partition}; a partition is fixed "
            "once it is made: name the new one differently"
        )
    return int(body["rows"]["rows"])


def write_shards(
    layout: Layout,
    ref: DatasetRef,
    assignment: Mapping[str, NDArray[np.int64]],
    partition: str,
    *,
    part: str = "train",
) -> tuple[ShardRef, ...]:
    """Deal rows to parties, streaming; sound shards that are there already are kept.

    Parameters
    ----------
    assignment : mapping of party to int64 array
        Row positions, each in at most one party. A shard keeps the data set's order of rows.
    partition : str
        Identity of the partition.
    part : {"train", "test"}
        Which rows are dealt.

    Returns
    -------
    tuple of ShardRef
        In the order of ``assignment``.

    Raises
    ------
    InputError
        If a party is empty, a row does not exist or is given twice.
    StorageError
        If the data set is damaged, or the same partition was made of other rows.
    """
    rows = open_dataset(layout, ref, part)
    given = {party: np.asarray(positions, dtype=np.int64) for party, positions in assignment.items()}
    owners = _owners(given, rows.count, ref.name)
    digests = {
        party: hashlib.sha256(part.encode() + np.sort(positions).astype("<i8").tobytes()).hexdigest()
        for party, positions in given.items()
    }
    numbers = {party: number for number, party in enumerate(given)}
    missing = [party for party in given if _existing(layout, ref, partition, party, digests[party]) is None]
    for start in range(0, len(missing), _OPEN_AT_ONCE):
        group = missing[start : start + _OPEN_AT_ONCE]
        _write_group(layout, ref, partition, rows, owners, {numbers[party]: party for party in group}, digests)
    return tuple(
        ShardRef(dataset=ref, partition=partition, party=party, rows=len(positions))
        for party, positions in given.items()
    )


def _write_group(
    layout: Layout,
    ref: DatasetRef,
    partition: str,
    rows: StoredRows,
    owners: NDArray[np.int32],
    group: Mapping[int, str],
    digests: Mapping[str, str],
) -> None:
    with ExitStack() as stack:
        stages: dict[int, Staging] = {}
        writers: dict[int, RowWriter] = {}
        for number, party in group.items():
            folder = layout.shard(party, partition, ref.version)
            _private_folder(layout, folder.parent)
            # Not durable: after a power cut the digest tells, and the shard is dealt again.
            stages[number] = stack.enter_context(staging(folder.parent, durable=False))
            writers[number] = RowWriter(stages[number].path, rows.format)
            stack.callback(writers[number].abandon)
        with writing(layout.parties):
            _deal(rows, owners, writers)
            for number, party in group.items():
                body = {
                    "dataset": ref.version,
                    "partition": partition,
                    "party": party,
                    "positions": digests[party],
                    "format": rows.format.to_json(),
                    "rows": writers[number].close().to_json(),
                }
                (stages[number].path / MANIFEST).write_bytes(manifests.dump(body, version=FORMAT_VERSION))
                stages[number].publish(layout.shard(party, partition, ref.version))


def _private_folder(layout: Layout, folder: Path) -> None:
    with writing(folder):
        layout.parties.mkdir(mode=0o700, parents=True, exist_ok=True)
        missing = [folder, *folder.parents]
        for step in reversed(missing[: missing.index(layout.parties)]):
            step.mkdir(mode=0o700, exist_ok=True)


def _deal(rows: StoredRows, owners: NDArray[np.int32], writers: Mapping[int, RowWriter]) -> None:
    mine = np.isin(owners, np.fromiter(writers, dtype=np.int32))
    before = 0
    for batch in rows.batches():
        here = np.flatnonzero(mine[before : before + len(batch)])
        local = owners[before : before + len(batch)][here]
        before += len(batch)
        if not len(here):
            continue
        order = np.argsort(local, kind="stable")
        dealt = _take(batch, here[order])
        local = local[order]
        starts = np.flatnonzero(np.diff(local, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(local)], strict=True):
            writers[int(local[start])].write(dealt.slice(start, stop - start))
        row_bytes = max(1, dealt.nbytes // len(dealt))
        while sum(writer.pending_rows for writer in writers.values()) * row_bytes > _PENDING_BYTES:
            max(writers.values(), key=lambda writer: writer.pending_rows).flush()


def _take(batch: Any, places: NDArray[np.int64]) -> Any:
    return batch.take(places)


def open_shard(layout: Layout, shard: ShardRef) -> StoredRows:
    """Open one party's rows, their digests verified once a process and state of the files.

    Raises
    ------
    StorageError
        If the shard is not stored or a file is damaged, naming it.
    """
    folder = layout.shard(shard.party, shard.partition, shard.dataset.version)
    body = manifests.load(folder / MANIFEST, version=FORMAT_VERSION)
    return StoredRows.open(folder, RowFormat.from_json(body["format"]), WrittenRows.from_json(body["rows"]))
