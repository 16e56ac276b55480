"""LIBSVM's text format: a label, then ascending ``index:value`` pairs counted from 1; plain, .gz or .bz2."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
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
    lone_return,
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


def _fault(text: bytes) -> str:
    """Return what is wrong with a line that is not read."""
    label, *pairs = text.split()
    if b":" in label:
        return f"the label is missing, the line begins with {_shown(label)}; write '<label> <index>:<value> …'"
    more = list(takewhile(lambda one: b":" not in one, pairs))
    # A blank beside a colon (1 : 2) makes no labels.
    follows = pairs[len(more)] if len(more) < len(pairs) else b":"
    if b"," in label or (more and not follows.startswith(b":") and not follows.endswith(b":")):
        labels = label.split(b",") if b"," in label else [label, *more]
        return f"{len(labels)} labels, {_shown(b','.join(labels))}; a row must have one: write one file per label"
    last = 0
    for pair in pairs:
        index, colon, value = pair.partition(b":")
        if not colon or not index.isdigit() or len(index) > _LONGEST_INDEX:
            return f"malformed pair {_shown(pair)}; expected '<index>:<value>' with a whole index from 1"
        if int(index) < 1:
            return (
                f"index {int(index)}; indices begin at 1: add 1 to each index of the file (scikit-learn writes such a "
                "file with zero_based=False)"
            )
        if int(index) <= last:
            return f"index {int(index)} after {last}; indices must ascend"
        last = int(index)
        if not value.isascii() or not math.isfinite(number(value.decode(errors="replace"))):
            return f"malformed value in {_shown(pair)}; expected a finite number, correct the row"
    return f"{_shown(text)} is not written as '<label> <index>:<value> …'; correct the row"


def _shown(text: bytes) -> str:
    return repr(text[:40].decode(errors="replace"))


def label_of(text: str) -> str:
    """Return the canonical text of a label; as it is where it has none, for it may be a number in a range."""
    return canonical_text(text) or text


def _require(good: object) -> None:
    """Raise a ValueError, as Arrow does, where something is not as it is written here; a closer look names it."""
    if not good:
        raise ValueError


_COLON, _NEWLINE, _LOWER = ord(":"), ord("\n"), 0b10_0000
_SEPARATES = np.zeros(256, dtype=bool)
_SEPARATES[list(b" \t\n\r\x0b\x0c:")] = True


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokens of a text: where each begins and ends, and which separator is before and after it."""

    text: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    before: NDArray[np.uint8]
    after: NDArray[np.uint8]
    colons: int

    @classmethod
    def of(cls, text: bytes) -> Self:
        """Return the tokens of a text that begins and ends with a separator."""
        characters = np.frombuffer(text, dtype=np.uint8)
        # Two comparisons take a tenth of a look-up for every character; what else is below a space is found after.
        places = np.flatnonzero((characters <= ord(" ")) | (characters == _COLON))
        tokens = characters[places]
        if not (parting := _SEPARATES[tokens]).all():
            places, tokens = places[parting], tokens[parting]
        apart = np.diff(places) > 1
        whole = slice(None) if apart.all() else apart
        starts, ends = places[:-1][whole] + 1, places[1:][whole]
        return cls(text, starts, ends, tokens[:-1][whole], tokens[1:][whole], int(np.count_nonzero(tokens == _COLON)))

    def texts(self, starts: NDArray[np.int64], ends: NDArray[np.int64], kind: Any) -> Any:
        """Return some tokens, ascending, as Arrow texts or bytes, each after a null for what is between.

        They refer to the text, which is not copied.
        """
        edges = np.zeros(2 * len(starts) + 1, dtype=np.int32)
        edges[1::2], edges[2::2] = starts, ends
        every_other = pa.py_buffer(b"\xaa" * -(-len(edges) // 8))
        buffers = [every_other, pa.py_buffer(edges), pa.py_buffer(self.text)]
        return pa.Array.from_buffers(kind, len(edges) - 1, buffers, null_count=len(starts))

    def labels(self, chosen: NDArray[np.int64]) -> NDArray[np.str_]:
        """Return some tokens as labels, of any bytes."""
        seen = self.texts(self.starts[chosen], self.ends[chosen], pa.binary()).drop_null().dictionary_encode()
        distinct = seen.dictionary.to_pylist()
        _require(not any(b"," in label for label in distinct))
        return np.asarray(
            np.array([label_of(label.decode(errors="replace")) for label in distinct])[np.asarray(seen.indices)]
        )

    def numbers(self, chosen: NDArray[np.int64], kind: type[_Number]) -> NDArray[_Number]:
        """Return some tokens as numbers, whole ones of decimal digits."""
        starts, ends = self.starts[chosen], self.ends[chosen]
        characters = np.frombuffer(self.text, dtype=np.uint8)
        if kind is np.int64:
            _require((ends - starts).max(initial=0) <= _LONGEST_INDEX)
            # Arrow reads hexadecimal digits, too, which begin with 0x.
            if b"x" in self.text or b"X" in self.text:
                _require(not (characters[starts + 1] | _LOWER == ord("x")).any())
        elif (signed := characters[starts] == ord("+")).any():
            # Arrow reads no plus sign.
            _require((characters[starts[signed] + 1] != ord("-")).all())
            starts = starts + signed
        numbers = self.texts(starts, ends, pa.string()).cast(pa.from_numpy_dtype(kind))
        return np.frombuffer(numbers.buffers()[1], dtype=kind)[1 : 2 * len(chosen) : 2]


def _parse(path: Path, number: int, text: bytes) -> _Rows:
    """Parse whole lines, ``number`` the first's, once those are left out that are blank, and comments."""
    try:
        _require(b"#" not in text)
        return _columns(b"\n" + text, np.arange(number, number + count_lines(text)))
    except ValueError:
        lines = _stripped(number, text)
    try:
        return _together(lines)
    except ValueError:
        raise _refusal(path, lines) from None


def _refusal(path: Path, lines: list[tuple[int, bytes]]) -> InputError:
    """Return the refusal of the first line that cannot be parsed."""

    def fails(count: int) -> bool:
        try:
            _together(lines[:count])
        except ValueError:
            return True
        return False

    # Some lines fail if one of them does.
    number, line = lines[bisect_left(range(1, len(lines)), True, key=fails)]
    if b"\r" in line:
        return lone_return(path, number)
    return InputError(f"{path}, line {number}: {_fault(line)}")


def _together(lines: list[tuple[int, bytes]]) -> _Rows:
    """Parse lines that come with their numbers."""
    return _columns(b"\n".join([b"", *(line for _, line in lines), b""]), np.array([number for number, _ in lines]))


def _columns(text: bytes, lines: NDArray[np.int64]) -> _Rows:
    """Parse lines of these numbers all at once, column by column; the text begins and ends with a newline."""
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
    return _Rows(tokens.labels(labels), pointers, columns - 1, np.ascontiguousarray(numbers), lines)


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
                f"{files['train']} has an index {largest}, more than {_LARGEST_INDEX}; if this is expected, declare "
                "the number with --dimension"
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
