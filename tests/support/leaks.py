"""Looking for private values in everything a root keeps, packed files included."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

_DECIMAL = re.compile(rb"\d+\.\d+")


def needles_of(features: NDArray[np.float64], every: int = 7) -> list[bytes]:
    """Return what must be found nowhere: numbers of rows as text and as stored bytes, as they came and normalised.

    Two numbers in a row make eight bytes, which no file holds by chance; the numbers have six digits.
    """
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    found = []
    for rows in (features, features / norms, features / np.maximum(norms, 1.0)):
        for row in rows[::every]:
            # A number with trailing zeros may be the milliseconds of a time.
            if not (text := f"{row[0]:.6f}").endswith("00"):
                found.append(text.encode())
            found.append(repr(float(row[0])).encode()[:10])
            found.append(repr(float(np.float32(row[0]))).encode()[:10])
            for kind in ("<f4", "<f8"):
                found.append(row[:2].astype(kind).tobytes())
    return [needle for needle in dict.fromkeys(found) if len(needle) >= 8]


def _opened(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    yield name, data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from _opened(f"{name}!{member}", archive.read(member))
    elif data[:2] == b"\x1f\x8b":
        yield from _opened(f"{name}!", gzip.decompress(data))
    elif data[:4] == b"PAR1":
        for column in pq.read_table(io.BytesIO(data)).itercolumns():
            for chunk in column.chunks:
                yield f"{name}!values", str(chunk.to_pylist()).encode()
                for buffer in _buffers(chunk):
                    yield f"{name}!buffer", buffer


def _buffers(array: pa.Array) -> Iterator[bytes]:
    for buffer in array.buffers():
        if buffer is not None:
            yield buffer.to_pybytes()


def found_in(files: Iterable[Path], needles: list[bytes]) -> list[tuple[str, bytes]]:
    """Return where any of the needles lies, opened as far as files can be opened.

    A decimal number is not found at the end of another one: the seconds of a time, 30.462163, are not 0.462163.
    """
    hits = []
    for path in files:
        for name, data in _opened(str(path), path.read_bytes()):
            hits += [(name, needle) for needle in _begun(needles, data) if needle in data and _is_whole(needle, data)]
    return hits


def _begun(needles: list[bytes], data: bytes) -> list[bytes]:
    """Return the needles whose first bytes lie somewhere in the data: hundreds are looked for at once."""
    width = min(8, *map(len, needles), len(data))
    if width < 2:
        return needles
    cells = np.frombuffer(data, np.uint8)
    starts = {needle: needle[:width] for needle in needles}
    pairs = np.zeros(1 << 16, np.bool_)
    pairs[[int.from_bytes(start[:2], "little") for start in starts.values()]] = True
    candidates = pairs[cells[:-1] | cells[1:].astype(np.uint16) << 8]
    places = np.flatnonzero(candidates[: len(cells) - width + 1])
    found = np.zeros((len(places), 8), np.uint8)
    for at in range(width):
        found[:, at] = cells[places + at]
    heads = np.array([int.from_bytes(start, "little") for start in starts.values()], np.uint64)
    there = np.isin(heads, found.view("<u8").ravel())
    return [needle for needle, held in zip(starts, there, strict=True) if held]


def _is_whole(needle: bytes, data: bytes) -> bool:
    if not _DECIMAL.fullmatch(needle):
        return True
    return re.search(rb"(?<!\d)" + re.escape(needle), data) is not None
