"""ZIP files and the arrays in them, read within bounds: what is declared is compared with what is there first."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import DamagedError, StorageError

UNREADABLE = (
    zipfile.BadZipFile, zipfile.LargeZipFile, OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError,
    NotImplementedError, struct.error,
)  # fmt: skip
"""What reading a damaged ZIP file can raise; RuntimeError where it is encrypted."""

_END = struct.Struct("<4s4H2LH")
_LARGE_END = b"PK\x06\x07"
_MOST_LISTED = 1 << 24
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MOST_ARRAYS, _KINDS = 1000, "biufSU"


def open_archive(file: IO[bytes], most_members: int) -> zipfile.ZipFile:
    """Open a ZIP file whose list of members is bounded before it is read.

    Parameters
    ----------
    file : binary file
    most_members : int
        At most 65,535: larger lists have another format, which is not read.

    Raises
    ------
    zipfile.BadZipFile
        If it is none, has a comment, lists more members or one of them twice.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _END.size - 20))
    locator, end = (tail := file.read())[:4], tail[-_END.size :]
    if len(end) < _END.size or not end.startswith(b"PK\x05\x06"):
        raise zipfile.BadZipFile("it does not end as a ZIP file without a comment does")
    _, _, _, _, members, listed, _, _ = _END.unpack(end)
    if locator == _LARGE_END or members > most_members or listed > _MOST_LISTED:
        raise zipfile.BadZipFile(f"it lists more than {most_members:,} members")
    archive = zipfile.ZipFile(file)
    # What is read goes by the length of the list, not by the number that is stated.
    if len(archive.infolist()) > most_members:
        raise zipfile.BadZipFile(f"it lists more than {most_members:,} members")
    if len(archive.namelist()) != len(set(archive.namelist())):
        raise zipfile.BadZipFile("it names a member twice")
    return archive


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return an ``.npz`` file whose bytes depend on names, types, shapes and values alone; nothing is compressed.

    Raises
    ------
    StorageError
        If an array holds Python objects.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            array = np.asarray(arrays[name])
            if array.dtype.hasobject:
                raise StorageError(f"array {name!r} holds Python objects; a release holds numbers and text")
            plain = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
            data = io.BytesIO()
            np.lib.format.write_array(data, plain, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=_EPOCH)
            # Otherwise the entry names the system it was written on.
            entry.create_system = 3
            archive.writestr(entry, data.getvalue())
    return buffer.getvalue()


def unpack_arrays(data: bytes, place: object) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file that :func:`pack_arrays` or ``numpy.savez`` has written.

    It takes as much memory as ``data`` once more, whatever the file claims: members are not compressed, and an array
    has as many bytes as are there.

    Parameters
    ----------
    data : bytes
    place : object
        Where they are from, for messages.

    Raises
    ------
    DamagedError
        If it is no such file.
    """
    try:
        with open_archive(io.BytesIO(data), _MOST_ARRAYS) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ValueError("an array is compressed, which Unitball's never are")
            if sum(entry.file_size for entry in entries) > len(data):
                raise ValueError("its arrays claim more bytes than are there")
            return {entry.filename.removesuffix(".npy"): _array(archive.read(entry)) for entry in entries}
    except UNREADABLE as error:
        raise DamagedError(f"{place} is damaged or holds no arrays: {error}") from error


def _array(data: bytes) -> NDArray[Any]:
    file = io.BytesIO(data)
    if (version := np.lib.format.read_magic(file)) != (1, 0):
        raise ValueError(f"an array of format {version}")
    shape, in_columns, kind = np.lib.format.read_array_header_1_0(file)
    if kind.kind not in _KINDS or math.prod(shape) * kind.itemsize != len(data) - file.tell():
        raise ValueError(f"an array claims shape {shape} of {kind} and has {len(data) - file.tell()} bytes")
    flat = np.frombuffer(data, dtype=kind, offset=file.tell()).copy()
    return flat.reshape(shape[::-1]).T if in_columns else flat.reshape(shape)
