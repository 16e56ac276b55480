"""The interface of readers: their options, the blocks and sources they return, their register, bounded files."""

import bz2
import codecs
import difflib
import gzip
import importlib
import io
import math
import pkgutil
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from storage.cells import canonical_text
from storage.errors import InputError, RefusedError
from storage.layout import path_component
from storage.names import require_visible
from storage.people import People
from storage.pictures.declaration import Pictures
from storage.pictures.places import PlacesByParty
from storage.refs import OnViolation, Scaling, TableColumn

LARGEST_DIMENSION = 1 << 24
"""Features of a row; a block of sixteen such rows takes 2 GB in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The caller's declaration of a set.

    Parameters
    ----------
    dimension : int, optional
        Features a row.
    classes : tuple of str, optional
        Class names in index order.
    label_range : (float, float), optional
        For numeric labels instead of classes.
    discover : bool
        Whether what is not declared may be learnt from the rows: for public sets only.
    test : Path, optional
        File of separate test rows.
    schema : Path, optional
        Declared schema of a table (YAML).
    on_violation : OnViolation
        What happens to rows outside the schema.
    scaling : str, optional
        What numbers of a table become, instead of what its schema says.
    image_shape : tuple of int, optional
        (height, width) or (channels, height, width) where rows are images.
    people : People, optional
        Of rows without a schema: the people behind them, and the column that names these; without a name, the column
        that the format itself has for them.
    pictures : Pictures, optional
        How images are read.
    person_from : str, optional
        A regular expression whose one group is the person in the name of an image's file.
    earlier : mapping of part to sequence of bytes
        Of a folder of images, the paths that earlier versions held (:mod:`storage.pictures.places`).
    told : callable
        Is told of each image that is left out, and why: for the owner's screen alone.
    noted : callable
        Is told before any row is read what may be wrong with whose images they are: for the owner's screen alone.
    """

    dimension: int | None = None
    classes: tuple[str, ...] | None = None
    label_range: tuple[float, float] | None = None
    discover: bool = False
    test: Path | None = None
    schema: Path | None = None
    on_violation: OnViolation = OnViolation.REFUSE
    scaling: Scaling | None = None
    image_shape: tuple[int, ...] | None = None
    people: People | None = None
    pictures: Pictures | None = None
    person_from: str | None = None
    earlier: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    told: Callable[[str], object] = lambda line: None
    noted: Callable[[str], object] = lambda line: None

    def __post_init__(self) -> None:
        if self.dimension is not None and not 1 <= self.dimension <= LARGEST_DIMENSION:
            raise InputError(f"dimension is {self.dimension}: declare at least 1 and at most {LARGEST_DIMENSION}")
        if self.classes is not None and self.label_range is not None:
            raise InputError("classes and a label range are both declared: declare one of them")
        if self.classes is not None:
            names = tuple(canonical_text(name) for name in self.classes)
            if len(names) < 2 or len(set(names)) < len(names) or None in names:
                raise InputError(f"classes are {list(self.classes)}: declare at least two, all different")
            object.__setattr__(self, "classes", names)
        if self.label_range is not None:
            low, high = self.label_range
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise InputError(f"label range is [{low}, {high}]: declare two finite numbers, the smaller first")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows as a format has them.

    Attributes
    ----------
    features : array (m, d) or CSR matrix
    labels : array (m,)
        Raw labels: text, or numbers.
    lines : int array (m,), optional
        Where the rows stand in the file, for messages.
    unit : str
        What ``lines`` counts: ``"line"`` or ``"row"``.
    place : str
        The file, for messages.
    origin : str
        Which party's own file the rows come from; empty where there is only one owner.
    null : bool array (m,), optional
        Which rows are null records: zero features, and a label that is not read.
    plain : array (m, d'), optional
        What rows are recognised by where they come back, if not the features: their cells in an encoding that does
        not depend on how numbers are scaled.
    people : array (m,) of str, optional
        Whose rows they are, in the one spelling of identifiers; None for rows without a person, which are null.
    """

    features: Any
    labels: NDArray[Any]
    lines: NDArray[np.int64] | None = None
    place: str = ""
    unit: str = "line"
    origin: str = ""
    null: NDArray[np.bool_] | None = None
    plain: NDArray[Any] | None = None
    people: NDArray[Any] | None = None

    def kept(self, rows: NDArray[np.bool_]) -> Self:
        """Return some of the rows."""
        parts: dict[str, Any] = {
            name: None if (part := getattr(self, name)) is None else part[rows]
            for name in ("features", "labels", "lines", "null", "plain", "people")
        }
        return replace(self, **parts)


@dataclass(frozen=True, slots=True)
class Rows:
    """The blocks that a function yields of some arguments, readable again from the start."""

    blocks: Callable[..., Iterator[Block]]
    arguments: tuple[Any, ...]

    def __iter__(self) -> Iterator[Block]:
        return self.blocks(*self.arguments)


class Tally(Counter[str]):
    """Counts of rows while they are read, complete once the blocks were read; not published for private data.

    ``read`` are rows of the file, ``incomplete`` those with a missing cell, under any rule for them. ``outside`` are
    those with a cell that the schema does not admit, or with another number of cells; rows that are left out for a
    missing cell are not checked further. Others were ``clipped``, ``dropped``, or made ``null`` records.

    Attributes
    ----------
    cells : Counter of str
        How many cells of each column were clipped.
    """

    def __init__(self, **counts: int) -> None:
        super().__init__(counts)
        self.cells: Counter[str] = Counter()

    def clear(self) -> None:
        """Begin again."""
        super().clear()
        self.cells.clear()

    def to_json(self) -> dict[str, int]:
        """Return the counts as JSON, with those of the rows that are kept as they are or clipped."""
        counts = {name: self[name] for name in ("read", "incomplete", "outside", "clipped", "dropped", "null")}
        return {**counts, "kept": self["read"] - self["dropped"] - self["null"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A set of rows about to be ingested.

    Attributes
    ----------
    format : str
        Name of the reader.
    place : str
        File or name, for messages.
    dimension : int
    classes : tuple of str
        Class names in index order; empty for numeric labels.
    label_range : (float, float) or None
    parts : mapping
        ``"train"`` and perhaps ``"test"`` to iterables of :class:`Block`, readable again from the start.
    found : frozenset of str
        What was learnt from the rows instead of declared: refused for private sets.
    sparse : bool
        Whether blocks are CSR matrices.
    tallies : mapping of part to Tally
    table : mapping, optional
        What decides how raw rows become features, as JSON: the document of a table's ``schema`` or the declaration of
        ``pictures``, and what happens to rows outside it (``on_violation``).
    image_shape : tuple of int or None
        (height, width) or (channels, height, width) where rows are images, channel by channel, row by row.
    people : People, optional
        What is declared of the people behind rows; each row is a separate record where nothing is.
    columns : tuple of TableColumn
        Which features are which declared column's; empty where none are declared.
    expected : mapping of part to int
        How many rows there will be, where that is known before they are read.
    places : mapping of party to part to Places
        Of a private folder's images.
    """

    format: str
    place: str
    dimension: int
    parts: Mapping[str, Iterable[Block]]
    classes: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None
    found: frozenset[str] = frozenset()
    sparse: bool = False
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    table: Mapping[str, Any] | None = None
    image_shape: tuple[int, ...] | None = None
    people: People | None = None
    columns: tuple[TableColumn, ...] = ()
    expected: Mapping[str, int] = field(default_factory=dict)
    places: PlacesByParty = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.classes:
            require_visible(f"{self.place}: a class", name)
        shape = self.image_shape
        if shape is not None and (len(shape) not in (2, 3) or min(shape) < 1 or math.prod(shape) != self.dimension):
            raise InputError(
                f"{self.place}: the image shape is {list(shape)} and rows have {self.dimension} features; declare "
                "height,width or channels,height,width with that product"
            )


def settle(
    options: ReadOptions,
    place: str,
    *,
    dimension: int | None,
    labels: Iterable[str] | None,
) -> tuple[int, tuple[str, ...], frozenset[str]]:
    """Join what is declared with what was found, refusing to learn from rows where that was not allowed.

    Found labels are checked only where no classes are declared: those of numbers are in the order of their values.

    Returns
    -------
    dimension, classes, found

    Raises
    ------
    RefusedError
        If something is not declared and nothing may be learnt.
    InputError
        If what was found contradicts what is declared.
    """
    declared = {"dimension": options.dimension, "classes": options.classes or options.label_range}
    discovered = frozenset(name for name, value in declared.items() if value is None)
    if discovered and not options.discover:
        raise undeclared(discovered, place)
    if options.dimension is not None and dimension is not None and dimension != options.dimension:
        raise InputError(
            f"{place} has {dimension} features per row, but {options.dimension} are declared; correct --dimension"
        )
    size = options.dimension if options.dimension is not None else dimension
    if not size:
        raise InputError(f"{place} has no features; declare --dimension")
    if "classes" not in discovered:
        return size, options.classes or (), discovered
    classes = sorted(set(labels or ()))
    with suppress(ValueError):
        classes = sorted(classes, key=float)
    if len(classes) > 1000:
        raise InputError(
            f"{place} has {len(classes)} different labels, above the limit of 1000 undeclared classes; declare "
            "--classes, or --label-range for numeric labels"
        )
    return size, tuple(classes), discovered


def confirm(
    options: ReadOptions,
    place: str,
    *,
    dimension: int,
    classes: tuple[str, ...],
    label_range: tuple[float, float] | None,
) -> None:
    """Refuse options that contradict what a format or a schema says of itself.

    Raises
    ------
    InputError
        Naming both.
    """
    known = {"dimension": dimension, "classes": classes or None, "label_range": label_range}
    for name, value in known.items():
        declared = getattr(options, name)
        if declared is not None and declared != value:
            raise InputError(
                f"{place} has {name.replace('_', ' ')} {value}, but {declared} is declared; correct or omit the "
                "declaration"
            )


def undeclared(names: Iterable[str], place: str) -> RefusedError:
    """Return the refusal to learn ``names`` from private rows."""
    ways = {"dimension": "--dimension", "classes": "--classes (or --label-range)", "pixels": "--pixels"}
    missing = sorted(names)
    return RefusedError(
        f"{place} is private, and its {' and '.join(missing)} must not be learnt from the rows; declare "
        f"{' and '.join(ways[name] for name in missing)}",
        value=tuple(missing),
        bound="declared",
        way_out=ways[missing[0]].split()[0],
    )


# Names that references use for something else than a party with its own rows.
_RESERVED = ("all", "server", "test")


def _chained(*parts: tuple[str, str, Iterable[Block]]) -> Iterator[Block]:
    """Yield the rows of several files, each with the party whose they are and its name; test rows are no party's."""
    for party, place, part in parts:
        rows = 0
        for block in part:
            rows += len(block.labels)
            yield replace(block, origin=party)
        if party and not rows:
            raise InputError(f"party {party!r} is empty: {place} holds no rows; omit the party")


def concatenate(sources: Mapping[str, Source]) -> Source:
    """Join the parties' own sources into one, each row marked with its party.

    All must declare the same dimension and labels. ``origins`` of the stored set then gives each party's rows. A test
    file that several parties name is read once.

    Raises
    ------
    InputError
        If they differ, a party's name cannot be one, or, while reading, one of them is empty.
    """
    if not sources:
        raise InputError("no party is given; give each party as NAME=PATH")
    first_name, first = next(iter(sources.items()))
    tests: list[Iterable[Block]] = []
    tallies: dict[str, Tally] = {}
    for name, source in sources.items():
        if path_component(name, "party") in _RESERVED:
            raise InputError(f"party {name!r} has a reserved name; give it another name")
        for what in ("dimension", "classes", "label_range", "image_shape", "people", "columns"):
            ours, theirs = getattr(first, what), getattr(source, what)
            if ours != theirs:
                raise InputError(
                    f"parties {first_name!r} and {name!r} differ in {what.replace('_', ' ')}: {ours} and {theirs}; "
                    "declare one value for all"
                )
        if first.table != source.table and "pictures" in (first.table or {}):
            raise InputError(
                f"parties {first_name!r} and {name!r} have different pixel types; declare one with --pixels"
            )
        if first.table != source.table:
            raise InputError(
                f"the schema's patterns match different columns for parties {first_name!r} and {name!r}; list the "
                "names, or give all files the same columns"
            )
        counted = dict(source.tallies)
        if "test" in source.parts and source.parts["test"] not in tests:
            tests.append(source.parts["test"])
        else:
            counted.pop("test", None)
        tallies.update({f"{part} of {name}": tally for part, tally in counted.items()})
    train = tuple((name, source.place, source.parts["train"]) for name, source in sources.items())
    parts = {"train": Rows(_chained, train)}
    if tests:
        parts["test"] = Rows(_chained, tuple(("", "", part) for part in tests))
    return replace(
        first,
        place=", ".join(source.place for source in sources.values()),
        parts=parts,
        found=frozenset().union(*(source.found for source in sources.values())),
        sparse=any(source.sparse for source in sources.values()),
        tallies=tallies,
        expected={"train": sum(one.expected["train"] for one in sources.values())}
        if all("train" in one.expected for one in sources.values())
        else {},
        places={party: parts for party, source in sources.items() for parts in source.places.values()},
    )


Read = Callable[[str | Path, ReadOptions], Source]


_READERS: dict[str, tuple[Read, frozenset[str]]] = {}
"""By name what reads a format, and which of the optional options it understands; others are refused, not ignored."""
_OPTIONAL = ("test", "schema", "on_violation", "scaling", "people", "pictures", "person_from")


def register_reader(name: str, *, takes: tuple[str, ...] = ()) -> Callable[[Read], Read]:
    """Return a decorator that enters a read function under ``name``."""

    def enter(read: Read) -> Read:
        if name in _READERS:
            raise ValueError(f"reader {name!r} is registered twice")
        _READERS[name] = read, frozenset(takes)
        return read

    return enter


@cache
def _discover() -> None:
    package = importlib.import_module("storage.readers")
    for module in pkgutil.iter_modules(package.__path__, prefix="storage.readers."):
        importlib.import_module(module.name)


def reader_names() -> dict[str, str]:
    """Return the formats and what they are, the first line of each reader's docstring, sorted by name."""
    _discover()
    return {name: (_READERS[name][0].__doc__ or "").strip().split("\n")[0] for name in sorted(_READERS)}


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
    if format_name not in _READERS:
        near = difflib.get_close_matches(format_name, _READERS, n=3, cutoff=0.4) or sorted(_READERS)
        raise InputError(f"format {format_name!r} is unknown; nearest: {', '.join(near)}")
    read, takes = _READERS[format_name]
    options = options or ReadOptions()
    plain: Any = ReadOptions()
    for name in _OPTIONAL:
        value = getattr(options, name)
        if name not in takes and value != getattr(plain, name):
            raise InputError(
                f"format {format_name} takes no {name.replace('_', ' ')} (given: {value}); omit it",
                value=name,
                bound=format_name,
            )
    source = read(path, options)
    if options.image_shape in (None, source.image_shape):
        return source
    if source.image_shape is not None:
        raise InputError(
            f"the image shape is declared as {list(options.image_shape or ())}, and {source.place} has "
            f"{list(source.image_shape)}; omit the declaration"
        )
    return replace(source, image_shape=options.image_shape)


COMPRESSED = (".gz", ".bz2")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
LONGEST_LINE = 1 << 23
"""Bytes of a line of text; parsed, it takes some twenty times as much memory."""
_MOST_ROWS = 100_000_000
_MOST_BYTES = 1 << 36
# Tables shrink by a factor of five to twenty; what expands to more than this is a trap, or is declared.
_MOST_UNFOLDED = 32
_ALWAYS_UNFOLDED = 1 << 28


# Rows of a part, and bytes of a file where they are declared.
_limits: ContextVar[tuple[int, int | None]] = ContextVar("limits", default=(_MOST_ROWS, None))


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
    token = _limits.set((_MOST_ROWS if rows is None else rows, size))
    try:
        yield
    finally:
        _limits.reset(token)


def most_rows() -> int:
    """Return the most rows that a part may hold."""
    return _limits.get()[0]


def declared_bytes() -> int | None:
    """Return the most bytes of a file, where they are declared."""
    return _limits.get()[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaysOut:
    """Remedies that messages about a file name: by default those of ingestion."""

    missing: str = "check --path"
    too_large: str = "if that is right, declare as many with --max-bytes"
    undeclared: str = "let the schema declare the file's encoding (latin-1, cp1252, utf-16), or convert the file"
    encoding: str = "declare another one or convert the file"


_PREDICTED = _WaysOut(
    missing="check --input",
    too_large="decompress it first, or split it",
    undeclared="convert the file to UTF-8",
    encoding="convert the file to this one",
)
_INGESTED = _WaysOut()
_ways: ContextVar[_WaysOut] = ContextVar("ways", default=_INGESTED)


@contextmanager
def predicting() -> Iterator[None]:
    """Let messages about files name what can be done where rows are predicted: the schema is the model's by then."""
    token = _ways.set(_PREDICTED)
    try:
        yield
    finally:
        _ways.reset(token)


def not_utf8(path: Path, line: int, byte: int) -> InputError:
    """Return the refusal of a byte where UTF-8 is declared, or no encoding is."""
    return InputError(f"{path}, line {line}: byte {byte:#04x} is not UTF-8; {_ways.get().undeclared}")


def require_bytes(path: Path, size: int) -> None:
    """Raise an InputError where a file says of itself that it holds more than is admitted, before it is read."""
    if size > (bound := _most_bytes(path)):
        raise _too_large(path, bound)


def _most_bytes(path: Path) -> int:
    """Return how many bytes of a file are read, unpacked: as declared, or by its size where it is packed."""
    declared = _limits.get()[1]
    if declared is not None or path.suffix not in _OPENERS:
        return _MOST_BYTES if declared is None else declared
    return max(_ALWAYS_UNFOLDED, _MOST_UNFOLDED * path.stat().st_size)


def _too_large(path: Path | str, bound: int) -> InputError:
    return InputError(f"{path} holds more than {bound} bytes; {_ways.get().too_large}")


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
            raise _too_large(self._path, self._bound)
        buffer[: len(data)] = data
        return len(data)


_PACKED = {b"\x1f\x8b": ("gzip", ".gz"), b"BZh": ("bzip2", ".bz2"), b"PK\x03\x04": ("zip", "")}


def require_text(path: Path) -> None:
    """Raise an InputError where a file that is to be text is packed, and is not named as what is unpacked while read.

    A spreadsheet is a zip archive as well.
    """
    if path.suffix in _OPENERS or not path.is_file():
        return
    with path.open("rb") as file:
        first = file.read(4)
    for mark, (kind, ending) in _PACKED.items():
        if first.startswith(mark):
            way = (
                f"rename it to {path.name}{ending}, and Unitball decompresses it while reading"
                if ending
                else "decompress it first"
            )
            way = way if ending else f"{way}; save a spreadsheet as CSV"
            raise InputError(f"{path} is compressed with {kind} but lacks its file ending: {way}")


def open_text(path: Path, encoding: str) -> IO[bytes]:
    """Open a text file for reading as UTF-8 bytes, from any encoding; see :func:`open_binary`.

    Raises
    ------
    InputError
        While reading, where the text is not in that encoding, naming the line. Bytes of UTF-8 are passed on as they
        are.
    """
    require_text(path)
    file = open_binary(path)
    if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii"):
        return file
    return cast(IO[bytes], io.BufferedReader(_Recoded(file, path, encoding), 1 << 20))


class _Recoded(io.RawIOBase):
    """A text as UTF-8. What cannot be decoded is refused once what stands before it was read."""

    def __init__(self, file: IO[bytes], path: Path, encoding: str) -> None:
        self._file, self._path, self._encoding = file, path, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready, self._lines, self._ended = b"", 0, False
        self._refusal: Exception | None = None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._ended:
            if self._refusal is not None:
                raise self._refusal
            data = self._file.read(1 << 18)
            self._ready, self._ended = self._recoded(data).encode(), not data and self._refusal is None
            self._lines += count_lines(self._ready)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _recoded(self, data: bytes) -> str:
        before = self._decoder.getstate()
        try:
            return self._decoder.decode(data, not data)
        except UnicodeDecodeError as error:
            # Bytes that the decoder still held come first.
            self._decoder.setstate(before)
            text = self._decoder.decode(data[: max(error.start - len(before[0]), 0)])
            self._refusal = InputError(
                f"{self._path}, line {self._lines + text.count(chr(10)) + 1}: byte {error.object[error.start]:#04x} is "
                f"not {self._encoding}, the declared encoding; {_ways.get().encoding}"
            )
            return text


def bounded_lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers from 1; refuse one that is longer than :data:`LONGEST_LINE`."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise _too_long(path, number, line)
        yield number, line


def bounded_blocks(path: Path, size: int, encoding: str = "utf-8") -> Generator[tuple[int, bytes], None, None]:
    """Yield about ``size`` bytes of whole lines of a text at a time, and the number of the first of them, from 1.

    Every line ends with a newline, the last one, too. One longer than :data:`LONGEST_LINE` is refused.
    """
    number, held = 1, b""
    with reading(path), open_text(path, encoding) as file:
        while data := file.read(size):
            held += data
            first, last = held.find(b"\n"), held.rfind(b"\n")
            if max(first, len(held) if last < 0 else 0) > LONGEST_LINE:
                raise _too_long(path, number, held)
            if last >= 0:
                block, held = held[: last + 1], held[last + 1 :]
                yield number, block
                number += count_lines(block)
        if held:
            yield number, held + b"\n"


def count_lines(text: bytes) -> int:
    """Return how many newlines a text has: some ten times as fast as bytes count them."""
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n")))


def lone_return(path: Path, number: int) -> InputError:
    """Return the refusal of a carriage return that ends a line without a newline after it."""
    return InputError(
        f"{path}, line {number}: a line ends with a single carriage return (an old Mac format); convert line ends to "
        "newlines (a quoted CSV cell may contain one)"
    )


def _too_long(path: Path, number: int, text: bytes) -> InputError:
    if b"\r" in text[:LONGEST_LINE]:
        return lone_return(path, number)
    return InputError(f"{path}, line {number} is longer than {LONGEST_LINE} bytes; break it or convert the file")


@contextmanager
def reading(place: str | Path) -> Iterator[None]:
    """Turn errors of files and decompressors into an :class:`InputError` that names the place and the way out."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{place} does not exist; {_ways.get().missing}") from None
    except UnicodeError as error:
        raise InputError(f"{place} is not in the declared encoding: {error}; {_ways.get().encoding}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{place} is truncated or damaged: {error}; download the file again") from error
    except OSError as error:
        raise InputError(f"cannot read {place}: {error.strerror or error}; download the file again") from error


def open_binary(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed by its name's end (``.gz``, ``.bz2``), within the bounds in force."""
    opened = _OPENERS.get(path.suffix, open)(path, "rb")
    return cast(IO[bytes], io.BufferedReader(_Bounded(opened, path, _most_bytes(path)), 1 << 20))


def bounded(file: IO[bytes], place: str) -> IO[bytes]:
    """Return what is fetched from a place as a file that raises an InputError where more is read than is admitted."""
    declared = _limits.get()[1]
    return cast(
        IO[bytes], io.BufferedReader(_Bounded(file, place, _MOST_BYTES if declared is None else declared), 1 << 20)
    )


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
