"""Rows in Parquet files: one format for data sets and shards, written and read in blocks."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import sparse

from storage.documents import file_digest, verify_file
from storage.errors import DamagedError, first_line
from storage.objects import ObjectStore, StoredPart
from storage.refs import Labels

Features = Any
"""A dense float array (m, d) or a SciPy CSR matrix of that shape."""

NULL_CLASS = -1
"""Stored class index of a null record, whose features are zero; among numeric labels, NaN."""

# A block of about 32 MB in float64: large enough for fast matrix products, small enough to hold several.
_BLOCK_ENTRIES = 1 << 22
_DECODED_ENTRIES = 1 << 18
_PART_BYTES = 1 << 27
# Numbers by which compression is judged.
_SAMPLE = 1 << 16

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The format of stored rows.

    Parameters
    ----------
    dimension : int
        Features a row.
    labels : Labels
        Class indices (int32) or real targets (float64).
    sparse : bool
        Rows as index and value lists instead of ``dimension`` numbers each.
    shares : bool
        Whether each row stores the number of its person's rows, and this person's place among the records.
    positions : bool
        Whether each row says where it stands among the rows that it is a copy of: those of shards do.
    """

    dimension: int
    labels: Labels
    sparse: bool = False
    shares: bool = False
    positions: bool = False

    @property
    def block_rows(self) -> int:
        """Rows of a block in memory; the same for equal formats, so that sums repeat bit by bit."""
        return max(16, min(8192, _BLOCK_ENTRIES // max(1, self.dimension)))

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row takes."""
        return max(1, 4 * self.dimension) if not self.sparse else 4096

    @property
    def part_rows(self) -> int:
        """Rows of one file; of people all, so that no number of files or of tasks says how many there are."""
        if self.shares:
            return sys.maxsize
        return max(self.block_rows, _PART_BYTES // self.row_bytes)

    @property
    def schema(self) -> Any:
        """The Arrow schema."""
        number = pa.field("item", pa.float32(), nullable=False)
        if self.sparse:
            features = pa.struct(
                [
                    pa.field("indices", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
                    pa.field("values", pa.list_(number), nullable=False),
                ]
            )
        else:
            features = pa.list_(number, self.dimension)
        label = pa.int32() if self.labels is Labels.CLASSES else pa.float64()
        fields = [pa.field("features", features, nullable=False), pa.field("label", label, nullable=False)]
        fields += [pa.field(name, pa.int32(), nullable=False) for name in ("share", "whose")] if self.shares else []
        fields += [pa.field("position", pa.int64(), nullable=False)] if self.positions else []
        return pa.schema(fields)

    def to_json(self) -> dict[str, Any]:
        """Return the format as JSON."""
        kept = {"shares": self.shares, "positions": self.positions}
        return {"dimension": self.dimension, "labels": str(self.labels), "sparse": self.sparse, **kept}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the format written by :meth:`to_json`."""
        more = {name: bool(value[name]) for name in ("shares", "positions")}
        return cls(int(value["dimension"]), Labels(value["labels"]), bool(value["sparse"]), **more)

    def encode(self, features: Features, labels: NDArray[np.generic], people: Sequence[NDArray[np.int32]] = ()) -> Any:
        """Return rows without positions as an Arrow record batch; features are rounded to float32.

        Of people, ``people`` are the rows' shares and the places of whose they are.
        """
        schema = self.schema
        kind = np.int32 if self.labels is Labels.CLASSES else np.float64
        columns = [pa.array(np.ascontiguousarray(labels, dtype=kind))]
        columns += [pa.array(one, pa.int32()) for one in people]
        if not self.sparse:
            dense = features.toarray() if sparse.issparse(features) else features
            flat = pa.array(np.ascontiguousarray(dense, dtype=np.float32).reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(flat, type=schema.field("features").type)
            return pa.RecordBatch.from_arrays([rows, *columns], schema=schema)
        matrix = sparse.csr_matrix(features, dtype=np.float32)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        offsets = pa.array(matrix.indptr.astype(np.int32))
        kinds = schema.field("features").type
        indices = pa.ListArray.from_arrays(offsets, pa.array(matrix.indices.astype(np.int32)), type=kinds[0].type)
        values = pa.ListArray.from_arrays(offsets, pa.array(matrix.data), type=kinds[1].type)
        rows = pa.StructArray.from_arrays([indices, values], fields=list(kinds))
        return pa.RecordBatch.from_arrays([rows, *columns], schema=schema)

    def decode(self, batch: Any) -> tuple[Features, NDArray[np.generic]]:
        """Return the float32 features (dense, or CSR where the format is sparse) and the labels of a batch."""
        labels: NDArray[np.generic] = _numbers(batch.column("label"))
        column = batch.column("features")
        if not self.sparse:
            return _numbers(column.flatten()).reshape(len(batch), self.dimension), labels
        indices, values = column.field("indices"), column.field("values")
        pointers = np.concatenate([[0], np.cumsum(_numbers(indices.value_lengths()), dtype=np.int64)])
        parts = (_numbers(values.flatten()), _numbers(indices.flatten()), pointers)
        return sparse.csr_matrix(parts, shape=(len(batch), self.dimension)), labels


class _ContentDigest:
    """SHA-256 over rows, the same however they are cut into blocks and files, and wherever they are copied from."""

    def __init__(self, layout: RowFormat) -> None:
        self._format = layout
        self._columns = [hashlib.sha256() for _ in range(4 + 2 * layout.shares)]

    def update(self, batch: Any) -> None:
        features, labels = self._format.decode(batch)
        if self._format.sparse:
            arrays = [np.diff(features.indptr).astype("<i8"), features.indices.astype("<i4"), features.data]
        else:
            arrays = [features]
        if self._format.shares:
            for digest, name in zip(self._columns[4:], ("share", "whose"), strict=True):
                digest.update(_numbers(batch.column(name)))
        for digest, array in zip(self._columns[:4], [labels, *arrays], strict=False):
            digest.update(np.ascontiguousarray(array).data)

    def hexdigest(self) -> str:
        kind = replace(self._format, positions=False)
        whole = hashlib.sha256(json.dumps(kind.to_json(), sort_keys=True).encode())
        for digest in self._columns:
            whole.update(digest.digest())
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The result of a writer: the files with their digests, the number of rows, and the digest of the rows."""

    files: Sequence[Sequence[str]]
    rows: int
    content: str


class RowWriter:
    """Writes ``part-00000.parquet``, … into a folder, in row groups of one block; what is not closed is nothing.

    Parameters
    ----------
    folder : Path
    layout : RowFormat
    put : callable, optional
        Moves a whole file elsewhere, by its digest, and gives its name there (:func:`storage.objects.row_objects`).
    """

    def __init__(self, folder: Path, layout: RowFormat, put: Callable[[Path, str], str] | None = None) -> None:
        self._folder = folder
        self._put = put
        self._format = layout
        self._schema = layout.schema
        self._digest = _ContentDigest(layout)
        self._pending: list[Any] = []
        self._files: list[tuple[str, str]] = []
        self._writer: Any = None
        self._in_part = 0
        self.pending_rows = 0
        self.rows = 0
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, batch: Any) -> None:
        """Append a record batch."""
        if not len(batch):
            return
        self._digest.update(batch)
        self._pending.append(batch)
        self.pending_rows += len(batch)
        self.rows += len(batch)
        while self.pending_rows >= self._format.block_rows:
            self._write_group(self._format.block_rows)

    def flush(self) -> None:
        """Write what is pending, as a separate row group."""
        if self.pending_rows:
            self._write_group(self.pending_rows)

    def _write_group(self, rows: int) -> None:
        table = pa.Table.from_batches(self._pending, schema=self._schema)
        if self._writer is None:
            # Statistics and dictionaries would cost time and tell nothing about a list column.
            self._writer = pq.ParquetWriter(
                self._folder / self._name,
                self._schema,
                use_dictionary=False,
                write_statistics=False,
                **self._compression(table),
            )
        self._writer.write_table(table.slice(0, rows).combine_chunks())
        rest = table.slice(rows)
        self._pending = rest.to_batches() if rest.num_rows else []
        self.pending_rows -= rows
        self._in_part += rows
        if self._in_part >= self._format.part_rows:
            self._close_part()

    def _compression(self, table: Any) -> dict[str, Any]:
        """Return how a file that begins with these rows is compressed: not at all where it would save a tenth or less.

        The digits of real numbers hardly shrink and take longer to unpack than to read.
        """
        zstd: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
        if self._format.sparse:
            return zstd
        features, _ = self._format.decode(table.slice(0, self._format.block_rows).combine_chunks().to_batches()[0])
        sample = features.reshape(-1)[:_SAMPLE].tobytes()
        return zstd if len(pa.Codec("zstd", 1).compress(sample)) < 0.9 * len(sample) else {"compression": "none"}

    @property
    def _name(self) -> str:
        return f"part-{len(self._files):05d}.parquet"

    def _close_part(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            path = self._folder / self._name
            digest = file_digest(path)
            self._files.append((path.name if self._put is None else self._put(path, digest), digest))
            self._in_part = 0

    def close(self) -> WrittenRows:
        """Write the remaining rows and return what was written."""
        self.flush()
        self._close_part()
        return WrittenRows(tuple(self._files), self.rows, self._digest.hexdigest())


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a stored data set or shard, readable any number of times, block by block, in a fixed order.

    Attributes
    ----------
    format : RowFormat
    files : tuple of Path or StoredPart
        In a folder, or in an object store.
    count : int
        Number of records: of rows, or of people with and without rows.
    stored : int
        Number of rows.
    """

    format: RowFormat
    files: tuple[Any, ...]
    count: int
    stored: int
    content: str = field(repr=False)

    @classmethod
    def open(
        cls,
        folder: Path,
        layout: RowFormat,
        written: WrittenRows,
        store: ObjectStore | None = None,
        records: int | None = None,
    ) -> Self:
        """Open what a :class:`RowWriter` left, its digests verified: now in ``folder``, at each reading in ``store``.

        ``records`` is the number of people where rows are people's.

        Raises
        ------
        DamagedError
            Naming the file.
        """
        files: list[Path | StoredPart] = []
        for name, digest in written.files:
            if store is None:
                verify_file(folder / name, digest)
            elif not store.has(name):
                raise DamagedError(f"{StoredPart(store, name, digest)} is missing; restore it or ingest again")
            files.append(folder / name if store is None else StoredPart(store, name, digest))
        count = written.rows if records is None else records
        return cls(layout, tuple(files), count, written.rows, written.content)

    @classmethod
    def from_json(cls, folder: Path, body: dict[str, Any], store: ObjectStore | None = None) -> Self:
        """Open what a manifest says of a shard: its ``format``, its ``rows``, and how many ``records`` they are."""
        written = WrittenRows(**body["rows"])
        return cls.open(folder, RowFormat.from_json(body["format"]), written, store, body.get("records"))

    @property
    def dimension(self) -> int:
        """Features a row."""
        return self.format.dimension

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield record batches of at most so many rows, of some columns or all."""
        for path in self.files:
            try:
                source = path.open() if isinstance(path, StoredPart) else path
                # From a disk, a megabyte at a time instead of whole columns of a row group.
                buffer = 0 if isinstance(path, StoredPart) else 1 << 20
                with pq.ParquetFile(source, pre_buffer=False, buffer_size=buffer) as file:
                    yield from file.iter_batches(rows, columns=columns)
            except (pa.ArrowException, OSError) as error:
                raise DamagedError(f"{path} cannot be read: {first_line(error)}; restore it or ingest again") from error

    def blocks(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.generic], NDArray[np.int32] | None]]:
        """Yield ``(features, labels, shares)``: (m, dimension) float32, read-only; (m,) int64 or float64; (m,) int32.

        Blocks have ``format.block_rows`` rows, the last may have fewer. ``shares`` says how many rows each row's person
        has in these files; None: each row is a separate record.
        """
        kind = np.int64 if self.format.labels is Labels.CLASSES else np.float64
        size, filled = min(self.format.block_rows, self.stored), 0
        # Arrow takes four times what it decodes, and keeps it: it decodes a megabyte.
        for batch in self.batches(min(self.format.block_rows, max(16, _DECODED_ENTRIES // max(1, self.dimension)))):
            while len(batch):
                if not filled:
                    features = np.empty((size, self.dimension), dtype=np.float32)
                    labels: NDArray[np.generic] = np.empty(size, dtype=kind)
                    shares = np.empty(size, dtype=np.int32) if self.format.shares else None
                part, batch = batch.slice(0, size - filled), batch.slice(size - filled)
                place = slice(filled, filled + len(part))
                read, labels[place] = self.format.decode(part)
                features[place] = read.toarray() if self.format.sparse else read
                if shares is not None:
                    shares[place] = _numbers(part.column("share"))
                filled = place.stop % size
                if not filled:
                    features.flags.writeable = False
                    yield features, labels, shares
        if filled:
            features.flags.writeable = False
            yield features[:filled], labels[:filled], None if shares is None else shares[:filled]

    def beside_features(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.generic], NDArray[np.int32] | None]]:
        """Yield ``(positions, labels, shares)`` of the blocks that :meth:`blocks` yields; features are not read.

        Of rows with positions alone.
        """
        kind = np.int64 if self.format.labels is Labels.CLASSES else np.float64
        names, size = ["position", "label", *(["share"] if self.format.shares else [])], self.format.block_rows
        waiting: list[Any] = []
        for batch in self.batches(size, names):
            waiting.append(batch)
            while sum(map(len, waiting)) >= size:
                whole = pa.Table.from_batches(waiting)
                yield _columns(whole.slice(0, size), names, kind)
                waiting = whole.slice(size).to_batches()
        if any(map(len, waiting)):
            yield _columns(pa.Table.from_batches(waiting), names, kind)

    def whose(self) -> NDArray[np.int32] | None:
        """Return the place of each row's person among the records, (stored,); None: each row is a separate record."""
        if not self.format.shares:
            return None
        places = [_numbers(batch.column("whose")) for batch in self.batches(self.format.block_rows, ["whose"])]
        return np.concatenate([np.zeros(0, dtype=np.int32), *places])

    def scanned(self) -> Any:
        """Return an Arrow data set over the files, for readers of some of their columns."""
        import pyarrow.dataset as ds

        store = next((file.store for file in self.files if isinstance(file, StoredPart)), None)
        paths = [file.store.path(file.name) if isinstance(file, StoredPart) else str(file) for file in self.files]
        return ds.dataset(paths, filesystem=None if store is None else store.filesystem, format="parquet")

    def by_file(self) -> list[Self]:
        """Return the rows file by file, each of the whole's count and fingerprint."""
        return [replace(self, files=(file,)) for file in self.files]

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the SHA-256 of the rows, kept with them; for keying noise, never published."""
        return np.frombuffer(bytes.fromhex(self.content), dtype=np.uint8)


def ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield items in order, each made in another thread while the one before it is worked on; no more are held."""
    # One context for all of them, as if they were made here: it bounds what readers take in.
    making, remaining, end = copy_context(), iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(making.run, lambda: next(remaining, end))
        while (item := following.result()) is not end:
            following = pool.submit(making.run, lambda: next(remaining, end))
            yield cast(_Item, item)


def _columns(table: Any, names: Sequence[str], kind: Any) -> Any:
    """Return positions, labels of a kind, and shares or None."""
    positions, labels, *shares = (_numbers(table.column(name).combine_chunks()) for name in names)
    return positions, labels.astype(kind), shares[0] if shares else None


def _numbers(array: Any) -> Any:
    """Return an Arrow array without nulls as NumPy's; pyarrow's own conversion would import pandas."""
    return np.from_dlpack(array)
