"""Documents and archives: JSON, YAML, ZIP files and arrays, read within bounds; manifests, and the files they name."""

import hashlib
import io
import json
import math
import os
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from storage.errors import DamagedError, InputError, StorageError, require_format

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
        raise zipfile.BadZipFile("it is not a complete ZIP file, or it has a comment")
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
                raise StorageError(f"array {name!r} holds Python objects; a release may hold only numbers and text")
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

    It takes as much memory as ``data`` once more, also if the file claims more: members are not compressed, and an
    array has as many bytes as are there.

    Parameters
    ----------
    data : bytes
    place : object
        Where they are from, for messages.

    Raises
    ------
    DamagedError
        If it is not such a file.
    """
    try:
        with open_archive(io.BytesIO(data), _MOST_ARRAYS) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ValueError("an array is compressed, and Unitball never compresses one")
            if sum(entry.file_size for entry in entries) > len(data):
                raise ValueError("its arrays declare more bytes than the file has")
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


_MOST_BYTES = 1 << 24
_MOST_NODES = 1_000_000
_MOST_DEPTH = 100
# Longer numbers take time that grows with the square of their length: 1:1:1:… is one, to base 60.
_LONGEST_NUMBER = 400
_NUMBER = re.compile(r"\s*[-+.0-9]")
# A value of JSON takes some hundred bytes in memory, ten times its text at least.
_MOST_JSON, _MOST_JSON_NODES = 1 << 27, 2_000_000
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class WrittenNumber:
    """A number of a YAML document with what is written there, where that is not how the number is written in digits.

    A whole number is an int as well, another one a float. YAML 1.1 reads 01234 as 668, 1_000 as 1000 and 12:30:45 as
    45045; who expects a text looks at ``written``.
    """

    written: str

    def __repr__(self) -> str:
        return self.written


class _Whole(WrittenNumber, int):
    __str__ = int.__repr__


class _Fraction(WrittenNumber, float):
    __str__ = float.__repr__


class _Loader(_Parser):  # type: ignore[misc]  # one of two classes
    """The loader of all documents."""

    def number(self, kind: type[_Whole | _Fraction], node: Any) -> Any:
        whole = kind is _Whole
        value = self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)
        if repr(value) == node.value:
            return value
        number = kind(value)
        number.written = node.value
        return number

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        # Different texts, and one key: 8 and 0x8. Keys that are merged (<<) may stand twice.
        own = [
            key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode)
        ]
        first: dict[Any, Any] = {}
        for key in own:
            if (other := first.setdefault(self.construct_object(key, deep=True), key)) is not key:
                raise yaml.constructor.ConstructorError(
                    None, None, f"keys {other.value!r} and {key.value!r} are the same; omit one", key.start_mark
                )
        return super().construct_mapping(node, deep=deep)


_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: loader.number(_Whole, node))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: loader.number(_Fraction, node))


def read_text(path: Path, place: str) -> str:
    """Return the text of a document's file.

    Raises
    ------
    InputError
        If it cannot be read, is not UTF-8, or is larger than a document may be (16 MiB).
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        _require_size(len(data), _MOST_BYTES, place)
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {place}: {error}") from error


def read_yaml(path: Path, place: str | None = None) -> Any:
    """Return the value of a YAML file; raises as :func:`read_text` and :func:`parse_yaml` do."""
    return parse_yaml(read_text(path, place or str(path)), place or str(path))


def parse_yaml(text: str, place: str) -> Any:
    """Return the value of a YAML document; nothing in it is executed.

    Parameters
    ----------
    text : str
    place : str
        What the text is and where it is from, for messages.

    Raises
    ------
    InputError
        If it is not YAML, holds a key twice in one mapping or a value that does not exist (the 13th month), is longer
        than 16 MiB, nested more than a hundred levels deep, or unfolds (aliases of aliases) to more than a million
        values.
    """
    _require_size(len(text), _MOST_BYTES, place)
    try:
        _require_bounded(text, place)
        _require_distinct_keys(text, place)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{place} is not YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, MemoryError):
        raise InputError(f"{place} is nested too deeply") from None
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{place} holds an impossible value: {error}") from None


def as_text(place: str, value: Any, spelling: Callable[[Any], str | None] = str) -> Any:
    """Return a value of a document that stands for a text, as it was given, unless YAML has read another one.

    Parameters
    ----------
    place : str
        What holds it, for messages.
    value : object
        Text, or a number whose digits are the text.
    spelling : callable
        Returns the text that a value stands for there, of a text or a number.

    Raises
    ------
    InputError
        If it is a truth value, a day, a mapping or another value that is not text, or a number whose written form
        differs from its text: ``01234``.
    """
    if isinstance(value, bool):
        raise InputError(
            f"{place} holds {value!r}: YAML reads yes, no, on, off, true and false as truth values; put the word in "
            'quotes: "no"'
        )
    if not isinstance(value, (str, int, float)):
        raise InputError(f"{place} holds {value!r}, which YAML does not parse as text; put it in quotes")
    if isinstance(value, WrittenNumber) and spelling(value.written) != spelling(value):
        raise InputError(
            f"{place} holds {value.written}, which YAML reads as the number {value!s}; put it in quotes: "
            f'"{value.written}"'
        )
    return value


def _require_distinct_keys(text: str, place: str) -> None:
    """Refuse a mapping with a key that stands there twice, of which YAML would take the last without a word."""
    # Of each open collection the keys so far, None for a list; and of a mapping whether a key comes next.
    keys: list[set[str] | None] = []
    key_next: list[bool] = []
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            keys.pop()
            key_next.pop()
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        if keys and (known := keys[-1]) is not None:
            if key_next[-1] and isinstance(event, yaml.ScalarEvent) and event.value != "<<":
                if event.value in known:
                    line = "" if event.start_mark is None else f", line {event.start_mark.line + 1}"
                    raise InputError(f"{place}{line}: key {event.value!r} is given twice; remove one")
                known.add(event.value)
            key_next[-1] = not key_next[-1]
        if isinstance(event, yaml.CollectionStartEvent):
            keys.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
            key_next.append(True)


def _require_bounded(text: str, place: str) -> None:
    """Go through the parser's events, which make no values, and refuse what would unfold to too much."""
    sizes: list[float] = [0]
    anchors: dict[str, float] = {}
    unclosed: list[str | None] = []
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            # One that is not closed yet lies within itself, which has no end.
            sizes[-1] += math.inf if event.anchor in unclosed else anchors.get(str(event.anchor), 0)
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > _LONGEST_NUMBER and (event.tag or event.implicit[0]) and _NUMBER.match(event.value):
                raise InputError(f"{place} holds a number of {len(event.value):,} characters; put text in quotes")
            sizes[-1] += 1
            if event.anchor:
                anchors[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            unclosed.append(event.anchor)
            if len(sizes) > _MOST_DEPTH:
                raise InputError(f"{place} is nested more than {_MOST_DEPTH} levels deep; write it flatter")
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = sizes.pop(), unclosed.pop()
            sizes[-1] += size
            if anchor:
                anchors[anchor] = size
        if sizes[-1] > _MOST_NODES:
            raise InputError(
                f"{place} expands to more than {_MOST_NODES:,} values; write fewer of them, or fewer aliases"
            )


def parse_json(data: bytes | str, place: str) -> Any:
    """Return the value of a JSON document.

    Parameters
    ----------
    data : bytes or str
    place : str
        What it is and where it is from, for messages.

    Raises
    ------
    InputError
        If it is not JSON as RFC 8259 has it (NaN and infinities are none, nor is a number that would become one),
        names a key twice, is larger than 128 MiB,
        nested too deeply, or holds more than two million values.
    """
    _require_size(len(data), _MOST_JSON, place)
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    # At least as many as there are values: what stands in texts is counted, too.
    if text.count(b",") + text.count(b"[") + text.count(b"{") > _MOST_JSON_NODES:
        raise InputError(f"{place} holds more than {_MOST_JSON_NODES:,} values, the limit for a document")
    try:
        return json.loads(data, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise InputError(f"{place} is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{place} is not JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError(f"it names {Counter(name for name, _ in pairs).most_common(1)[0][0][:60]!r} twice")
    return document


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _require_size(size: int, most: int, place: str) -> None:
    if size > most:
        raise InputError(f"{place} is longer than {most:,} bytes, the limit for a document")


# Of files as they were; whoever has written one has read its digest from it, and need not read it again.
_digests: dict[tuple[int, int, int, int], str] = {}


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of ``value``: sorted keys, no spaces, no NaN.

    Raises
    ------
    StorageError
        If it holds something JSON has no word for.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise StorageError(f"a manifest must be plain JSON without NaN or infinities: {error}") from error


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def dump_manifest(content: Mapping[str, Any], *, version: int) -> bytes:
    """Return the manifest as text for people, with ``format_version`` and its own digest."""
    body = {**content, "format_version": version}
    return (json.dumps({**body, "digest": digest(body)}, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def parse_manifest(data: bytes, place: Path | str, *, version: int) -> dict[str, Any]:
    """Return the manifest in ``data`` without its own digest.

    Raises
    ------
    FormatVersionError
        If another version of Unitball wrote it.
    DamagedError
        If it is not JSON or its digest does not match.
    """
    try:
        body = parse_json(data, str(place))
        if not isinstance(body, dict):
            raise ValueError("not an object")
        version_found = int(body["format_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{place} is damaged: not a manifest ({error})") from error
    require_format(place, version_found, version)
    stated = body.pop("digest", None)
    if stated != digest(body):
        raise DamagedError(f"{place} is damaged: its digest does not match its content")
    return body


def read_stored(path: Path) -> bytes:
    """Read a file.

    Raises
    ------
    StorageError
        If there is none or it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StorageError(f"{path} does not exist", value=path.name, bound="present") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error


def load_manifest(path: Path, *, version: int) -> dict[str, Any]:
    """Read and check the manifest at ``path``; see :func:`read_stored` and :func:`parse_manifest`."""
    return parse_manifest(read_stored(path), path, version=version)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read once a process and state of the file."""
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        key = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
        if key not in _digests:
            _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _digests[key]


def verify_file(path: Path, digest: str, way_out: str = "restore it from a back-up or ingest again") -> None:
    """Check a file against its digest (:func:`file_digest`).

    Raises
    ------
    DamagedError
        If it is missing or differs, naming it.
    """
    try:
        intact = file_digest(path) == digest
    except OSError as error:
        raise DamagedError(
            f"{path} is missing or cannot be read: {error.strerror}; {way_out}", value=path.name, bound="present"
        ) from error
    if not intact:
        raise DamagedError(f"{path} is damaged: its digest does not match; {way_out}", value=path.name, bound="digest")
