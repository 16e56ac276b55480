"""Opening plain and compressed files with errors that name the place."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from storage.errors import InputError

__all__ = ["open_binary", "reading", "require_file"]

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}


@contextmanager
def reading(place: str | Path) -> Iterator[None]:
    """Turn errors of files and decompressors into an :class:`InputError` that names the place and the way out."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{place} does not exist; check --path") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{place} is truncated or damaged: {error}; fetch the file again") from error
    except OSError as error:
        raise InputError(f"cannot read {place}: {error.strerror or error}; fetch the file again") from error


def open_binary(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed by its name's end (``.gz``, ``.bz2``)."""
    opener = _OPENERS.get(path.suffix, open)
    return cast(IO[bytes], opener(path, "rb"))


def require_file(path: str | Path) -> Path:
    """Return the path of a regular file that is not empty.

    Raises
    ------
    InputError
        Otherwise.
    """
    place = Path(path)
    with reading(place):
        if place.is_dir():
            raise InputError(f"{place} is a folder; name a file")
        if place.stat().st_size == 0:
            raise InputError(f"{place} is empty; it must hold at least one row")
    return place
