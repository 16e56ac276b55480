"""What every reader gives: blocks of rows with raw labels, and what is known of the set without looking at rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from storage.errors import InputError, RefusedError
from storage.layout import path_component
from storage.people import People
from storage.refs import OnViolation, Scaling

__all__ = ["Block", "OnViolation", "ReadOptions", "Source", "Tally", "canonical_label", "concatenate", "label_order"]


LARGEST_DIMENSION = 1 << 24
"""Features of a row; a block of sixteen such rows takes 2 GB in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the caller declares about a set.

    Parameters
    ----------
    dimension : int, optional
        Features a row.
    classes : tuple of str, optional
        Class names in index order.
    label_range : (float, float), optional
        For real labels instead of classes.
    discover : bool
        Whether what is not declared may be learnt from the rows: for public sets only.
    test : Path, optional
        File of test rows of their own.
    schema : Path, optional
        Declared schema of a table (YAML).
    on_violation : OnViolation
        What happens to rows outside the schema.
    scaling : str, optional
        What numbers of a table become, instead of what its schema says.
    image_shape : tuple of int, optional
        (height, width) or (channels, height, width) where rows are images.
    people : People, optional
        Of rows without a schema: the people behind them, and the column that names these.
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

    def __post_init__(self) -> None:
        if self.dimension is not None and self.dimension < 1:
            raise InputError(f"dimension is {self.dimension}: declare at least 1")
        if self.dimension is not None and self.dimension > LARGEST_DIMENSION:
            raise InputError(f"dimension is {self.dimension}: declare at most {LARGEST_DIMENSION}")
        if self.classes is not None and self.label_range is not None:
            raise InputError("classes and a label range are both declared: declare one of them")
        if self.classes is not None:
            names = tuple(canonical_label(name) for name in self.classes)
            if len(names) < 2 or len(set(names)) < len(names):
                raise InputError(f"classes are {list(self.classes)}: declare at least two, all different")
            object.__setattr__(self, "classes", names)
        if self.label_range is not None:
            low, high = self.label_range
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise InputError(f"label range is [{low}, {high}]: declare two finite numbers, the smaller first")
        object.__setattr__(self, "on_violation", OnViolation(self.on_violation))
        object.__setattr__(self, "scaling", None if self.scaling is None else Scaling(self.scaling))


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
        Which rows are null records: zero features, and a label that nobody reads.
    plain : array (m, d'), optional
        What rows are recognised by where they come back, if not the features: their cells in an encoding that does
        not depend on how numbers are scaled.
    people : array (m,) of str, optional
        Whose rows they are, in the one spelling of identifiers; None for rows that are nobody's, which are null.
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

    def kept(self, rows: NDArray[np.bool_]) -> Block:
        """Return some of the rows."""
        parts: dict[str, Any] = {
            name: None if (part := getattr(self, name)) is None else part[rows]
            for name in ("features", "labels", "lines", "null", "plain", "people")
        }
        return replace(self, **parts)


@dataclass(slots=True)
class Tally:
    """Counts of rows while they are read, complete once the blocks were read; not published for private data.

    Attributes
    ----------
    read : int
        Rows of the file.
    incomplete : int
        Those with a missing cell, whatever becomes of them.
    outside : int
        Those with a cell that the schema does not admit, or with another number of cells; rows that are left out for
        a missing cell are not looked at further.
    clipped, dropped, null : int
        Rows that were clipped, left out, or made null records.
    """

    read: int = 0
    incomplete: int = 0
    outside: int = 0
    clipped: int = 0
    dropped: int = 0
    null: int = 0

    def reset(self) -> None:
        """Begin again, as the blocks are read from the start."""
        self.read = self.incomplete = self.outside = self.clipped = self.dropped = self.null = 0

    def to_json(self) -> dict[str, int]:
        """Return the counts as JSON, with those of the rows that are kept as they are or clipped."""
        return {
            "read": self.read,
            "kept": self.read - self.dropped - self.null,
            "incomplete": self.incomplete,
            "outside": self.outside,
            "clipped": self.clipped,
            "dropped": self.dropped,
            "null": self.null,
        }


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
        Class names in index order; empty for real labels.
    label_range : (float, float) or None
    parts : mapping
        ``"train"`` and perhaps ``"test"`` to iterables of :class:`Block`, readable again from the start.
    found : frozenset of str
        What was learnt from the rows instead of declared: refused for private sets.
    sparse : bool
        Whether blocks are CSR matrices.
    tallies : mapping of part to Tally
    table : mapping, optional
        Of a table with a declared schema, what decides how raw rows become features, as JSON: the schema's document,
        and what happens to rows outside it.
    image_shape : tuple of int or None
        (height, width) or (channels, height, width) where rows are images, channel by channel, row by row.
    people : People, optional
        What is declared of the people behind rows; each row is a record of its own where nothing is.
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

    def __post_init__(self) -> None:
        shape = self.image_shape
        if shape is None:
            return
        if len(shape) not in (2, 3) or min(shape) < 1 or math.prod(shape) != self.dimension:
            raise InputError(
                f"{self.place}: the image shape is {list(shape)} and rows have {self.dimension} features; declare "
                "height,width or channels,height,width with that product"
            )


# Leading zeros ("007") and exponents belong to identifiers, which are not numbers to their owner.
_DECIMAL = re.compile(r"([+-]?)(0|[1-9][0-9]*)(?:\.([0-9]*))?")


@lru_cache(maxsize=4096)
def _canonical_text(text: str) -> str:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return text
    sign, whole, fraction = match[1], match[2], (match[3] or "").rstrip("0")
    number = f"{whole}.{fraction}" if fraction else whole
    return f"-{number}" if sign == "-" and number != "0" else number


def canonical_label(value: object) -> str:
    """Return the one spelling of a label: numbers without plus sign or trailing zeros, text without outer spaces.

    ``"+1"``, ``"1.0"`` and ``1`` are ``"1"``; ``"-1.0"`` is ``"-1"``; ``" <=50K"`` is ``"<=50K"``.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return _canonical_text(str(value).strip())


def cells_of(column: Any) -> Sequence[Any]:
    """Return the cells of a column, an Arrow array or a sequence; what Python has no value for is infinite.

    That is a day beyond its calendar, or bytes that are no text: of one row, so that it must not stop the others.
    """
    if not hasattr(column, "to_pylist"):
        return cast(Sequence[Any], column)
    try:
        return cast(list[Any], column.to_pylist())
    except (OverflowError, ValueError):
        return [_cell(one) for one in column]


def _cell(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return math.inf


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Return found labels in index order: by value where all are numbers, else by text."""
    names = sorted(set(labels))
    try:
        return tuple(sorted(names, key=float))
    except ValueError:
        return tuple(names)


def settle(
    options: ReadOptions,
    place: str,
    *,
    dimension: int | None,
    labels: Iterable[str] | None,
) -> tuple[int, tuple[str, ...], frozenset[str]]:
    """Join what is declared with what was found, refusing to learn from rows where that was not allowed.

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
    discovered = set()
    if options.dimension is None:
        discovered.add("dimension")
    if options.classes is None and options.label_range is None:
        discovered.add("classes")
    if discovered and not options.discover:
        raise undeclared(discovered, place)
    if options.dimension is not None and dimension is not None and dimension != options.dimension:
        raise InputError(f"{place} has {dimension} features a row, {options.dimension} are declared")
    size = options.dimension if options.dimension is not None else dimension
    if not size:
        raise InputError(f"{place} has no features; declare --dimension")
    if options.label_range is not None:
        return size, (), frozenset(discovered)
    if options.classes is not None:
        return size, options.classes, frozenset(discovered)
    classes = label_order(labels or ())
    if len(classes) > 1000:
        raise InputError(
            f"{place} has {len(classes)} different labels, more than the 1000 taken for classes; "
            "declare --classes, or --label-range for real labels"
        )
    return size, classes, frozenset(discovered)


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
            what = name.replace("_", " ")
            raise InputError(
                f"{place} has {what} {value}, declared is {declared}; leave the declaration out or correct it"
            )


def undeclared(names: Iterable[str], place: str) -> RefusedError:
    """Return the refusal to learn ``names`` from private rows."""
    ways = {"dimension": "--dimension", "classes": "--classes (or --label-range)"}
    missing = sorted(names)
    return RefusedError(
        f"{place} is private and its {' and '.join(missing)} would be learnt from the rows; "
        f"declare {' and '.join(ways[name] for name in missing)}"
    )


# Names that references use for something else than a party with rows of its own.
_RESERVED = ("all", "server", "test")


@dataclass(frozen=True, slots=True)
class _Chained:
    """The parties' training rows, one party after the other."""

    sources: tuple[tuple[str, Source], ...]

    def __iter__(self) -> Iterator[Block]:
        for party, source in self.sources:
            rows = 0
            for block in source.parts["train"]:
                rows += len(block.labels)
                yield replace(block, origin=party)
            if rows == 0:
                raise InputError(f"party {party!r} is empty: {source.place} holds no rows; leave the party out")


@dataclass(frozen=True, slots=True)
class _Joined:
    """Test rows of several files."""

    parts: tuple[Iterable[Block], ...]

    def __iter__(self) -> Iterator[Block]:
        for part in self.parts:
            yield from part


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
        raise InputError("no party was given; give each as NAME=PATH")
    pairs = tuple(sources.items())
    first_name, first = pairs[0]
    tests: list[Iterable[Block]] = []
    tallies: dict[str, Tally] = {}
    for name, source in pairs:
        if path_component(name, "party") in _RESERVED:
            raise InputError(f"party {name!r} has a reserved name; call it differently")
        for what in ("dimension", "classes", "label_range", "image_shape", "people"):
            ours, theirs = getattr(first, what), getattr(source, what)
            if ours != theirs:
                raise InputError(
                    f"parties {first_name!r} and {name!r} differ in {what.replace('_', ' ')}: {ours} and {theirs}; "
                    "declare one for all"
                )
        counted = dict(source.tallies)
        if "test" in source.parts and source.parts["test"] not in tests:
            tests.append(source.parts["test"])
        else:
            counted.pop("test", None)
        tallies.update({f"{part} of {name}": tally for part, tally in counted.items()})
    parts: dict[str, Iterable[Block]] = {"train": _Chained(pairs)}
    if tests:
        parts["test"] = _Joined(tuple(tests))
    return Source(
        format=first.format,
        place=", ".join(source.place for _, source in pairs),
        dimension=first.dimension,
        classes=first.classes,
        label_range=first.label_range,
        parts=parts,
        found=frozenset().union(*(source.found for _, source in pairs)),
        sparse=any(source.sparse for _, source in pairs),
        tallies=tallies,
        table=first.table,
        image_shape=first.image_shape,
        people=first.people,
    )
