"""What readers share: their register, found by walking this package, and files opened within bounds."""

import bz2
import codecs
import difflib
import gzip
import importlib
import io
import pkgutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from storage.errors import InputError
from storage.source import ReadOptions, Source

Read = Callable[[str | Path, ReadOptions], Source]


@dataclass(frozen=True, slots=True)
class Reader:
    """One format.

    Attributes
    ----------
    read : callable
        ``read(path, options) -> Source``.
    takes : frozenset of str
        Which of ``test``, ``schema``, ``on_violation`` and ``scaling`` it understands; others are refused instead of
        ignored.
    summary : str
        The first line of its docstring.
    """

    read: Read
    takes: frozenset[str]
    summary: str


_READERS: dict[str, Reader] = {}
_OPTIONAL = ("test", "schema", "on_violation", "scaling")


def register_reader(name: str, *, takes: tuple[str, ...] = ()) -> Callable[[Read], Read]:
    """Return a decorator that enters a read function under ``name``."""

    def enter(read: Read) -> Read:
        if name in _READERS:
            raise ValueError(f"reader {name!r} is registered twice")
        _READERS[name] = Reader(read, frozenset(takes), (read.__doc__ or "").strip().split("\n")[0])
        return read

    return enter


@cache
def _discover() -> None:
    package = importlib.import_module("storage.readers")
    for module in pkgutil.iter_modules(package.__path__, prefix="storage.readers."):
        importlib.import_module(module.name)


def reader_names() -> dict[str, str]:
    """Return the formats and what they are, sorted by name."""
    _discover()
    return {name: _READERS[name].summary for name in sorted(_READERS)}


def read_source(format_name: str, path: str | Path, options: ReadOptions | None = None) -> Source:
    """Open ``path`` with the reader of ``format_name``.

    Raises
    ------
    InputError
        If there is no such format (naming the nearest), an option is not one of this format, or the data are bad.
    RefusedError
        If something would be learnt from the rows and ``options.discover`` is not set.
    """
    _discover()
    reader = _READERS.get(format_name)
    if reader is None:
        near = difflib.get_close_matches(format_name, _READERS, n=3, cutoff=0.4) or sorted(_READERS)
        raise InputError(f"no format is called {format_name!r}; nearest: {', '.join(near)}")
    options = options or ReadOptions()
    plain: Any = ReadOptions()
    for name in _OPTIONAL:
        value = getattr(options, name)
        if name not in reader.takes and value != getattr(plain, name):
            raise InputError(f"format {format_name} takes no {name.replace('_', ' ')} (given: {value}); leave it out")
    source = reader.read(path, options)
    if options.image_shape in (None, source.image_shape):
        return source
    if source.image_shape is not None:
        raise InputError(
            f"the image shape is declared {list(options.image_shape or ())} and {source.place} says "
            f"{list(source.image_shape)}; leave it out"
        )
    return replace(source, image_shape=options.image_shape)


COMPRESSED = (".gz", ".bz2")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
LONGEST_LINE = 1 << 23
"""Bytes of a line of text; parsed, it takes some twenty times as much memory."""
_MOST_ROWS = 100_000_000
_MOST_BYTES = 1 << 36
# Tables shrink by a factor of five to twenty; what unfolds to more than this is a trap, or is declared.
_MOST_UNFOLDED = 32
_ALWAYS_UNFOLDED = 1 << 28


@dataclass(frozen=True, slots=True)
class _Limits:
    rows: int = _MOST_ROWS
    bytes: int | None = None


_USUAL = _Limits()
_limits: ContextVar[_Limits] = ContextVar("limits", default=_USUAL)


@contextmanager
def limited(*, rows: int | None = None, size: int | None = None) -> Iterator[None]:
    """Bound what readers take in while this is open.

    Parameters
    ----------
    rows : int, optional
        Rows of a part; 100 million by default.
    size : int, optional
        Bytes of a file, after decompression. By default 64 GiB, and for a compressed file the larger of 256 MiB and 32
        times its size.
    """
    token = _limits.set(_Limits(_MOST_ROWS if rows is None else rows, size))
    try:
        yield
    finally:
        _limits.reset(token)


def most_rows() -> int:
    """Return the most rows that a part may hold."""
    return _limits.get().rows


class _Bounded(io.RawIOBase):
    """A file that raises where more is read from it than its bound; it is closed with this one."""

    def __init__(self, file: IO[bytes], path: Path | str, bound: int) -> None:
        self._file, self._path, self._bound, self._read = file, path, bound, 0

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self._read += len(data)
        if self._read > self._bound:
            raise InputError(
                f"{self._path} holds more than {self._bound} bytes; if that is right, declare as many with --max-bytes"
            )
        buffer[: len(data)] = data
        return len(data)


def open_text(path: Path, encoding: str) -> IO[bytes]:
    """Open a text file for reading as UTF-8 bytes, whatever its encoding; see :func:`open_binary`.

    Raises
    ------
    UnicodeError
        While reading, where the text is not in that encoding (see :func:`reading`). Bytes of UTF-8 are passed on as
        they are.
    """
    file = open_binary(path)
    if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii"):
        return file
    recoded: Any = pa.transcoding_input_stream(pa.PythonFile(file, mode="r"), encoding, "utf-8")
    return cast(IO[bytes], io.BufferedReader(recoded, 1 << 20))


def bounded_lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers from 1; refuse one that is longer than :data:`LONGEST_LINE`."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise _too_long(path, number)
        yield number, line


def bounded_blocks(file: IO[bytes], path: Path, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield about ``size`` bytes of whole lines at a time, and the number of the first of them, from 1.

    Every line ends with a newline, the last one, too. One longer than :data:`LONGEST_LINE` is refused.
    """
    number, held = 1, b""
    while data := file.read(size):
        held += data
        first, last = held.find(b"\n"), held.rfind(b"\n")
        if max(first, len(held) if last < 0 else 0) > LONGEST_LINE:
            raise _too_long(path, number)
        if last >= 0:
            block, held = held[: last + 1], held[last + 1 :]
            yield number, block
            number += block.count(b"\n")
    if held:
        yield number, held + b"\n"


def _too_long(path: Path, number: int) -> InputError:
    return InputError(f"{path}, line {number} is longer than {LONGEST_LINE} bytes; break it or convert the file")


@contextmanager
def reading(place: str | Path) -> Iterator[None]:
    """Turn errors of files and decompressors into an :class:`InputError` that names the place and the way out."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{place} does not exist; check --path") from None
    except UnicodeError as error:
        raise InputError(
            f"{place} is not in the declared encoding: {error}; declare another one or convert the file"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{place} is truncated or damaged: {error}; fetch the file again") from error
    except OSError as error:
        raise InputError(f"cannot read {place}: {error.strerror or error}; fetch the file again") from error


def open_binary(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed by its name's end (``.gz``, ``.bz2``), within the bounds in force."""
    opener = _OPENERS.get(path.suffix)
    bound = _MOST_BYTES if opener is None else max(_ALWAYS_UNFOLDED, _MOST_UNFOLDED * path.stat().st_size)
    return bounded(cast(IO[bytes], (opener or open)(path, "rb")), path, bound)


def bounded(file: IO[bytes], path: Path | str, bound: int = _MOST_BYTES) -> IO[bytes]:
    """Return a file that raises an InputError where more is read than was declared, or than ``bound``."""
    declared = _limits.get().bytes
    return cast(IO[bytes], io.BufferedReader(_Bounded(file, path, bound if declared is None else declared), 1 << 20))


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
