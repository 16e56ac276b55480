"""Shards: one party's rows under one partition, in that party's own private store."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage import documents
from storage.atomic import Staging, private_folder, staging, writing
from storage.datasets import open_dataset, open_people, owners_of
from storage.errors import DamagedError, InputError, StorageError
from storage.layout import Layout
from storage.objects import objects_of, row_objects
from storage.people import Positions, record_sizes
from storage.refs import DatasetRef, ShardRef
from storage.rowfiles import RowFormat, RowWriter, StoredRows, ahead

FORMAT_VERSION = 1
MANIFEST = "shard.json"
# As many files as every system lets a process hold open, and what may wait in memory to be written to them.
_OPEN_AT_ONCE = 256
_PENDING_BYTES = 1 << 27
# Parties whose folders are made at once.
_TOGETHER = 4096


def _owners(assignment: Mapping[str, NDArray[np.int64]], rows: int, name: str, allow_empty: bool) -> NDArray[np.int32]:
    """Return the party's number of each record, -1 where it has none; refuse what is not a partition."""
    owners = np.full(rows, -1, dtype=np.int32)
    for number, (party, positions) in enumerate(assignment.items()):
        if len(positions) == 0 and allow_empty:
            continue
        if len(positions) == 0:
            raise InputError(f"party {party!r} has no rows: give it at least one, or choose fewer parties")
        if positions.min() < 0 or positions.max() >= rows:
            raise InputError(
                f"party {party!r} is assigned row {int(positions.max())}, and {name} has {rows} rows; request fewer "
                "rows"
            )
        taken = owners[positions]
        if (taken >= 0).any():
            other = list(assignment)[int(taken.max())]
            raise InputError(f"parties {other!r} and {party!r} are assigned the same row; parties must be disjoint")
        # Positions come in order as a rule, and there may be many: none is sorted again then.
        if not _is_increasing(positions) and len(np.unique(positions)) != len(positions):
            raise InputError(f"party {party!r} is assigned a row twice; list each row once")
        owners[positions] = number
    return owners


def _is_increasing(positions: NDArray[np.int64]) -> bool:
    return bool((positions[1:] > positions[:-1]).all())


def _digest(part: str, positions: NDArray[np.int64], among: NDArray[np.int64] | None = None) -> str:
    digest = hashlib.sha256(part.encode())
    for numbers in (positions, *(() if among is None else (among,))):
        ordered = numbers if _is_increasing(numbers) else np.sort(numbers)
        digest.update(len(ordered).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(ordered, dtype="<i8").data)
    return digest.hexdigest()


def write_shards(
    layout: Layout,
    ref: DatasetRef,
    assignment: Mapping[str, NDArray[np.int64]],
    partition: str,
    *,
    part: str = "train",
    allow_empty: bool = False,
    among: NDArray[np.int64] | None = None,
) -> tuple[ShardRef, ...]:
    """Divide rows among parties, streaming; sound shards that are there already are kept.

    Parameters
    ----------
    assignment : mapping of party to int64 array
        Positions of records, each in at most one party: of rows, or of people, whose rows go where they go. A shard
        keeps the data set's order of rows.
    partition : str
        Identity of the partition.
    part : {"train", "test"}
        Which rows.
    allow_empty : bool
        Whether a party may have no row.
    among : int64 array, optional
        For people: positions of the rows that count, here and in the number of a person's rows. Default: all.

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
    positions_of = {party: np.asarray(positions, dtype=np.int64) for party, positions in assignment.items()}
    records = {"train": ref.rows, "test": ref.test_rows}[part] if ref.person else rows.count
    owners = _owners(positions_of, records, ref.name, allow_empty)
    digests = {party: _digest(part, positions, among) for party, positions in positions_of.items()}
    sizes = {party: len(positions) for party, positions in positions_of.items()}
    people, kept = open_people(layout, ref), rows.format
    beside: tuple[Positions, ...] = ()
    if people is not None:
        whose = people.positions.get(part, np.zeros(0, dtype=np.int32))
        if among is not None:
            counted = np.isin(np.arange(len(whose)), among)
            whose = np.where(counted, whose, np.int32(-1))
        # Without a record, the last owner is looked up, and not taken.
        owners = np.where(whose >= 0, owners[whose], np.int32(-1)) if len(whose) else owners[:0]
        # A person has all rows in one shard, so that they are counted once, over the whole part.
        kept = replace(rows.format, shares=True)
        places = np.full(records, -1, dtype=np.int32)
        for positions in positions_of.values():
            places[np.sort(positions)] = np.arange(len(positions), dtype=np.int32)
        # Of a row that nobody has, as above, the last place is looked up, and not taken.
        beside = (record_sizes(whose, records), places[whose] if len(whose) else whose)
    kept = replace(kept, positions=True)
    sources = _sources(owners_of(layout, ref, part), owners, list(positions_of))
    copied = {"part": part, "of": rows.content, "assigned": sum(sizes.values())}
    partitioning = _Partitioning(layout, ref, partition, rows, kept, owners, beside, sizes, digests, sources, copied)
    missing = {number: party for number, party in enumerate(positions_of) if not partitioning.has(party)}
    stored = np.bincount(owners[owners >= 0], minlength=len(positions_of))
    for group in _groups({number: int(stored[number]) for number in missing}, rows.format):
        partitioning.write({number: missing[number] for number in group})
    return tuple(
        ShardRef(dataset=ref, partition=partition, party=party, rows=len(positions))
        for party, positions in positions_of.items()
    )


def _sources(
    files: Mapping[str, Sequence[tuple[int, int]]], owners: NDArray[np.int32], parties: Sequence[str]
) -> dict[str, list[str]]:
    """Return of each party whose files it has rows of; ``owners`` says which party has each row."""
    found: dict[str, list[str]] = {party: [] for party in parties}
    for file, spans in files.items():
        having = np.unique(np.concatenate([owners[start:stop] for start, stop in spans]))
        for number in having[having >= 0]:
            found[parties[number]].append(file)
    return found


def _groups(sizes: Mapping[int, int], layout: RowFormat) -> list[list[int]]:
    """Return parties in groups for one pass over the rows each: as many large ones as may be open; small ones.

    The rows of small ones wait in memory all together, so that no file of them is open before the last row has passed.
    """
    whole = _PENDING_BYTES // layout.row_bytes
    most = min(whole // _OPEN_AT_ONCE, layout.block_rows - 1)
    large = [number for number, size in sizes.items() if size > most]
    groups = [large[start : start + _OPEN_AT_ONCE] for start in range(0, len(large), _OPEN_AT_ONCE)]
    small: list[list[int]] = [[]]
    room = whole
    for number, size in sizes.items():
        if size <= most:
            if size > room or len(small[-1]) == _TOGETHER:
                small.append([])
                room = whole
            small[-1].append(number)
            room -= size
    return [*groups, *filter(None, small)]


@dataclass(frozen=True, slots=True)
class _Partitioning:
    """One partition of one data set, on its way from the data set's rows to the parties' folders."""

    layout: Layout
    ref: DatasetRef
    partition: str
    rows: StoredRows
    format: RowFormat
    owners: NDArray[np.int32]
    beside: tuple[Positions, ...]
    records: Mapping[str, int]
    digests: Mapping[str, str]
    sources: Mapping[str, Sequence[str]]
    copied: Mapping[str, Any]

    def has(self, party: str) -> bool:
        """Whether the party's shard is stored and sound.

        Raises
        ------
        StorageError
            If the party holds other rows under this partition: another process may have written them just now.
        """
        folder = self.layout.shard(party, self.partition, self.ref.version)
        try:
            if not (folder / MANIFEST).is_file():
                return False
            body = documents.load_manifest(folder / MANIFEST, version=FORMAT_VERSION)
            StoredRows.from_json(folder, body, objects_of(self.layout))
        except DamagedError:
            # A shard is a copy of rows that the data set still holds, so it is simply written again.
            return False
        if body["positions"] != self.digests[party]:
            raise StorageError(
                f"party {party!r} already holds other rows of {self.ref.name} under partition {self.partition}; a "
                "partition is fixed once stored: give the new one another name"
            )
        return True

    def write(self, group: Mapping[int, str]) -> None:
        """Write all shards of a group side by side while the rows pass."""
        with ExitStack() as stack:
            stages: dict[int, Staging] = {}
            for number, party in group.items():
                folder = self.layout.shard(party, self.partition, self.ref.version).parent
                private_folder(folder, self.layout.parties)
                # Not durable: after a power cut the digest tells, and the shard is written again.
                stages[number] = stack.enter_context(staging(folder, durable=False))
            stack.enter_context(writing(self.layout.parties))
            writers = {
                number: RowWriter(stages[number].path, self.format, row_objects(self.layout, party))
                for number, party in group.items()
            }
            for partitioned in ahead(self._passing(group)):
                for number, batch in partitioned:
                    writers[number].write(batch)
                row_bytes = max(
                    1, sum(batch.nbytes for _, batch in partitioned) // sum(len(batch) for _, batch in partitioned)
                )
                while sum(writer.pending_rows for writer in writers.values()) * row_bytes > _PENDING_BYTES:
                    max(writers.values(), key=lambda writer: writer.pending_rows).flush()
            for number, party in group.items():
                body = {
                    "dataset": self.ref.version,
                    "partition": self.partition,
                    "party": party,
                    "positions": self.digests[party],
                    "files": self.sources[party],
                    **self.copied,
                    "format": self.format.to_json(),
                    "rows": asdict(writers[number].close()),
                    **({"records": self.records[party]} if self.beside else {}),
                }
                (stages[number].path / MANIFEST).write_bytes(documents.dump_manifest(body, version=FORMAT_VERSION))
                shard = self.layout.shard(party, self.partition, self.ref.version)
                stages[number].publish(shard, partial(self.has, party))

    def _passing(self, group: Collection[int]) -> Iterator[list[tuple[int, Any]]]:
        """Yield, block by block, who gets which rows."""
        mine = np.isin(self.owners, np.fromiter(group, dtype=np.int32))
        before = 0
        for batch in self.rows.batches(self.format.block_rows):
            here = np.flatnonzero(mine[before : before + len(batch)])
            local = self.owners[before : before + len(batch)][here]
            start, before = before, before + len(batch)
            if not len(here):
                continue
            order = np.argsort(local, kind="stable")
            positions = start + here[order]
            beside = [*(one[positions] for one in self.beside), positions]
            partitioned = pa.RecordBatch.from_arrays(
                [*batch.take(here[order]).columns, *map(pa.array, beside)], schema=self.format.schema
            )
            local = local[order]
            starts = np.flatnonzero(np.diff(local, prepend=-1))
            yield [
                (int(local[start]), partitioned.slice(start, stop - start))
                for start, stop in zip(starts, [*starts[1:], len(local)], strict=True)
            ]


def open_shard(layout: Layout, shard: ShardRef) -> StoredRows:
    """Open one party's rows, their digests verified once a process and state of the files.

    Raises
    ------
    StorageError
        If the shard is not stored or a file is damaged, naming it.
    """
    folder = layout.shard(shard.party, shard.partition, shard.dataset.version)
    return StoredRows.from_json(folder, _manifest(layout, shard), objects_of(layout))


def digest_of_positions(layout: Layout, shard: ShardRef) -> str:
    """Return the digest of which positions of its data set's rows a shard holds; for its party alone.

    Raises
    ------
    StorageError
        If the shard is not stored.
    """
    return str(_manifest(layout, shard)["positions"])


def shard_records(layout: Layout, shard: ShardRef) -> int:
    """Return how many records a stored shard has, by its manifest alone; its rows are not verified.

    Raises
    ------
    StorageError
        If the shard is not stored, or its manifest is damaged.
    """
    body = _manifest(layout, shard)
    return int(body.get("records", body["rows"]["rows"]))


class Copied(NamedTuple):
    """The rows of a version that a shard's rows are copies of.

    Attributes
    ----------
    part : {"train", "test"}
    files : tuple of str
        Whose files they stand in; empty names where there is one owner.
    of : str
        Digest of the part's rows.
    assigned : int
        Records of the part that the whole partition has: public.
    """

    part: str
    files: tuple[str, ...]
    of: str
    assigned: int


def copied_from(layout: Layout, shard: ShardRef) -> Copied:
    """Return where a shard's rows stand in their version, by its manifest alone.

    Raises
    ------
    StorageError
        If the shard is not stored.
    """
    body = _manifest(layout, shard)
    return Copied(body["part"], tuple(body["files"]), body["of"], body["assigned"])


def _manifest(layout: Layout, shard: ShardRef) -> Any:
    folder = layout.shard(shard.party, shard.partition, shard.dataset.version)
    return documents.load_manifest(folder / MANIFEST, version=FORMAT_VERSION)
