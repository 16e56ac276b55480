"""LIBSVM's text format: a label, then ascending ``index:value`` pairs counted from 1; plain, .gz or .bz2."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from storage.cells import canonical_text, number
from storage.errors import InputError
from storage.source import (
    Block,
    ReadOptions,
    Rows,
    Source,
    bounded_blocks,
    count_lines,
    register_reader,
    require_file,
    settle,
)

# Rows of a block, and bytes that are parsed at once: parsed, text takes some twenty times its size in memory.
_LINES = 8192
_BYTES = 1 << 20
_LARGEST_INDEX = 1 << 22
# Digits that 64 bits surely hold.
_LONGEST_INDEX = 18

_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some parsed lines: labels, row pointers, zero-based columns, values, line numbers."""

    labels: NDArray[np.str_]
    pointers: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    lines: NDArray[np.int64]


def _stripped(number: int, text: bytes) -> list[tuple[int, bytes]]:
    """Return (line number, text) without comments and blank lines."""
    lines = enumerate((line.partition(b"#")[0].strip() for line in text.split(b"\n")), number)
    return [(place, line) for place, line in lines if line]


def _pairs(place: str, text: bytes) -> tuple[list[int], list[float]]:
    """Return the indices and the values of one line; refuse what is wrong with it."""
    label, *pairs = text.split()
    if b":" in label:
        shown = label[:40].decode(errors="replace")
        raise InputError(
            f"{place}: the label is missing, the line begins with {shown!r}; write '<label> <index>:<value> …'"
        )
    indices, values = [0], []
    for pair in pairs:
        shown = pair[:40].decode(errors="replace")
        index, colon, value = pair.partition(b":")
        if not colon or not index.isdigit() or len(index) > _LONGEST_INDEX:
            raise InputError(f"{place}: malformed pair {shown!r}; expected '<index>:<value>' with a whole index from 1")
        if int(index) < 1:
            raise InputError(f"{place}: index {int(index)}; indices begin at 1")
        if int(index) <= indices[-1]:
            raise InputError(f"{place}: index {int(index)} after {indices[-1]}; indices must ascend")
        indices.append(int(index))
        values.append(number(value.decode(errors="replace")))
        if not math.isfinite(values[-1]):
            raise InputError(f"{place}: malformed value in {shown!r}; expected a finite number, correct the row")
    return indices[1:], values


def label_of(text: str) -> str:
    """Return the canonical text of a label; as it is where it has none, for it may be a number in a range."""
    return canonical_text(text) or text


def _require(good: object) -> None:
    """Raise a ValueError, as Arrow does, where something is not as it is written here; a closer look names it."""
    if not good:
        raise ValueError


_COLON, _NEWLINE = ord(":"), ord("\n")
_SEPARATES = np.zeros(256, dtype=bool)
_SEPARATES[list(b" \t\n\r\x0b\x0c:")] = True


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What separators part in a text: where each token begins and ends, and which separator is before and after it."""

    text: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    before: NDArray[np.uint8]
    after: NDArray[np.uint8]
    colons: int

    @classmethod
    def of(cls, text: bytes) -> Self:
        """Return the tokens of an ASCII text that begins and ends with a separator."""
        characters = np.frombuffer(text, dtype=np.uint8)
        # Two comparisons take a tenth of a look-up for every character; what else is below a space is found after.
        places = np.flatnonzero((characters <= ord(" ")) | (characters == _COLON))
        tokens = characters[places]
        _require(_SEPARATES[tokens].all() and characters.max() < 128)
        apart = np.diff(places) > 1
        whole = slice(None) if apart.all() else apart
        starts, ends = places[:-1][whole] + 1, places[1:][whole]
        return cls(text, starts, ends, tokens[:-1][whole], tokens[1:][whole], int(np.count_nonzero(tokens == _COLON)))

    def texts(self, chosen: NDArray[np.int64]) -> Any:
        """Return some tokens, their numbers ascending, as Arrow texts, each after a null for what is between.

        They refer to the text, which is not copied.
        """
        edges = np.zeros(2 * len(chosen) + 1, dtype=np.int32)
        edges[1::2], edges[2::2] = self.starts[chosen], self.ends[chosen]
        every_other = pa.py_buffer(b"\xaa" * -(-len(edges) // 8))
        buffers = [every_other, pa.py_buffer(edges), pa.py_buffer(self.text)]
        return pa.Array.from_buffers(pa.string(), len(edges) - 1, buffers, null_count=len(chosen))

    def numbers(self, chosen: NDArray[np.int64], kind: type[_Number]) -> NDArray[_Number]:
        """Return some tokens as numbers."""
        numbers = self.texts(chosen).cast(pa.from_numpy_dtype(kind))
        return np.frombuffer(numbers.buffers()[1], dtype=kind)[1 : 2 * len(chosen) : 2]


def _parse(path: Path, number: int, text: bytes) -> _Rows:
    """Parse whole lines, ``number`` the first's: all at once where none is blank, indented or has a comment."""
    try:
        _require(b"#" not in text)
        return _columns(b"\n" + text, np.arange(number, number + count_lines(text)))
    except ValueError:
        lines = _stripped(number, text)
    try:
        return _columns(b"\n".join([b"", *(line for _, line in lines), b""]), np.array([place for place, _ in lines]))
    except ValueError:
        return _line_by_line(path, lines)


def _columns(text: bytes, lines: NDArray[np.int64]) -> _Rows:
    """Parse lines of these numbers all at once, column by column; the text begins and ends with a newline."""
    # Arrow reads whole numbers in hexadecimal digits, too; one letter is found many times as fast as two.
    _require(not (b"x" in text and b"0x" in text) and not (b"X" in text and b"0X" in text))
    tokens = _Tokens.of(text)
    # Each line begins right after its predecessor's end.
    first = tokens.before == _NEWLINE
    labels, pairs = np.flatnonzero(first), np.flatnonzero(~first)
    indices, values = pairs[0::2], pairs[1::2]
    # A label in each line, then an index, a colon, a value, and nothing else.
    _require(len(labels) == len(lines) and len(indices) == len(values) == tokens.colons)
    _require((tokens.after[indices] == _COLON).all() and (tokens.starts[values] == tokens.ends[indices] + 1).all())
    pointers = np.searchsorted(indices, np.append(labels, len(first)))
    columns, numbers = tokens.numbers(indices, np.int64), tokens.numbers(values, np.float64)
    steps = np.diff(columns, prepend=0)
    starts = pointers[:-1][np.diff(pointers) > 0]
    steps[starts] = columns[starts]
    _require((steps > 0).all() and np.isfinite(numbers).all())
    labels_seen = tokens.texts(labels).drop_null().dictionary_encode()
    names = np.array([label_of(name) for name in labels_seen.dictionary.to_pylist()])
    return _Rows(names[np.asarray(labels_seen.indices)], pointers, columns - 1, np.ascontiguousarray(numbers), lines)


def _line_by_line(path: Path, chunk: list[tuple[int, bytes]]) -> _Rows:
    """Parse lines one after another, naming the first that is malformed."""
    pairs = [_pairs(f"{path}, line {number}", text) for number, text in chunk]
    columns = np.array([index for indices, _ in pairs for index in indices], dtype=np.int64)
    values = np.array([value for _, several in pairs for value in several], dtype=np.float64)
    labels = np.array([label_of(text.split()[0].decode(errors="replace")) for _, text in chunk])
    pointers = np.cumsum([0, *(len(indices) for indices, _ in pairs)])
    return _Rows(labels, pointers, columns - 1, values, np.array([number for number, _ in chunk], dtype=np.int64))


def _read(path: Path, dimension: int) -> Iterator[Block]:
    """Yield the rows of a file, some thousands at a time."""
    for rows in (_parse(path, *block) for block in bounded_blocks(path, _BYTES)):
        if rows.columns.max(initial=-1) >= dimension:
            entry = int(np.argmax(rows.columns >= dimension))
            line = rows.lines[np.searchsorted(rows.pointers, entry, side="right") - 1]
            raise InputError(
                f"{path}, line {line}: index {rows.columns[entry] + 1} is beyond the {dimension} declared features; "
                "declare a larger --dimension"
            )
        shape = (len(rows.labels), dimension)
        features = sparse.csr_matrix((rows.values, rows.columns, rows.pointers), shape=shape)
        for start in range(0, len(rows.labels), _LINES):
            part = slice(start, start + _LINES)
            yield Block(features[part], rows.labels[part], rows.lines[part], place=str(path))


@register_reader("libsvm", takes=("test",))
def read_libsvm(path: str | Path, options: ReadOptions) -> Source:
    """Read LIBSVM text, plain, .gz or .bz2.

    Parameters
    ----------
    path : path
        The training rows; ``options.test`` names a file of test rows.

    Notes
    -----
    Zeros are left out in this format, so the number of features cannot be known from a part of the rows: declare it,
    or, for a public set, let both files be scanned for the largest index.
    """
    files = {"train": require_file(path)}
    if options.test is not None:
        files["test"] = require_file(options.test)
    dimension, labels = None, None
    unknown_labels = options.classes is None and options.label_range is None
    if options.discover and (options.dimension is None or unknown_labels):
        largest, names = 0, set()
        for file in files.values():
            for block in bounded_blocks(file, _BYTES):
                rows = _parse(file, *block)
                largest = max(largest, int(rows.columns.max(initial=-1)) + 1)
                if unknown_labels:
                    names.update(np.unique(rows.labels).tolist())
        labels = names
        dimension = largest if options.dimension is None else None
        if largest > _LARGEST_INDEX and options.dimension is None:
            raise InputError(
                f"{files['train']} has an index {largest}, more than {_LARGEST_INDEX}; if that is right, declare as "
                "many features with --dimension"
            )
    size, classes, discovered = settle(options, str(files["train"]), dimension=dimension, labels=labels)
    return Source(
        format="libsvm",
        place=str(files["train"]),
        dimension=size,
        classes=classes,
        label_range=options.label_range,
        parts={part: Rows(_read, (file, size)) for part, file in files.items()},
        found=discovered,
        sparse=True,
    )
