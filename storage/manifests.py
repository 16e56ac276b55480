"""JSON manifests: canonical bytes, a digest of their own, and a format version; the digests of the files they name."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.documents import parse_json
from storage.errors import DamagedError, FormatVersionError, StorageError

_verified: dict[tuple[str, int, int], str] = {}


def canonical(value: Any) -> bytes:
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
    return hashlib.sha256(canonical(value)).hexdigest()


def dump(content: Mapping[str, Any], *, version: int) -> bytes:
    """Return the manifest as text for people, with ``format_version`` and its own digest."""
    body = {**content, "format_version": version}
    return (json.dumps({**body, "digest": digest(body)}, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def parse(data: bytes, place: Path | str, *, version: int) -> dict[str, Any]:
    """Return the manifest in ``data`` without its own digest.

    Raises
    ------
    FormatVersionError
        If a newer Unitball wrote it.
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
    if version_found > version:
        raise FormatVersionError(
            f"{place} has format version {version_found}, newer than {version}, the newest this Unitball reads; "
            "upgrade Unitball"
        )
    stated = body.pop("digest", None)
    if stated != digest(body):
        raise DamagedError(f"{place} is damaged: its digest does not match its content")
    return body


def read(path: Path) -> bytes:
    """Read a file.

    Raises
    ------
    StorageError
        If there is none or it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StorageError(f"{path} does not exist") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error


def load(path: Path, *, version: int) -> dict[str, Any]:
    """Read and check the manifest at ``path``; see :func:`read` and :func:`parse`."""
    return parse(read(path), path, version=version)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_file(path: Path, digest: str, way_out: str = "restore it from a back-up or ingest again") -> None:
    """Check a file against its digest, once a process and state of the file.

    Raises
    ------
    DamagedError
        If it is missing or differs, naming it.
    """
    try:
        state = path.stat()
        key = (str(path), state.st_mtime_ns, state.st_size)
        if key not in _verified:
            _verified[key] = file_digest(path)
    except OSError as error:
        raise DamagedError(f"{path} is missing or cannot be read: {error.strerror}; {way_out}") from error
    if _verified[key] != digest:
        raise DamagedError(f"{path} is damaged: its digest does not match; {way_out}")
