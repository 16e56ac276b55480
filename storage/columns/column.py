"""What every type of column can do, the register of types, and the column that is not looked at."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.errors import InputError
from storage.source import canonical_label

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Beyond it a number is not finite in float32, which whoever stores it says with its line.
_LARGEST = float(np.finfo(np.float32).max)


class MissingRows(StrEnum):
    """What happens to a row with a missing cell."""

    REFUSE = "refuse"
    """The ingestion stops, naming line and column."""
    DROP = "drop"
    """The row is left out; of private rows, it becomes a null record, which is counted and contributes nothing."""
    CONSTANT = "constant"
    """A missing number counts as the middle of its range (or the declared centre), a missing category as none."""
    INDICATOR = "indicator"
    """As ``constant``, and one more feature of the column says that the cell is missing."""

    @property
    def keeps(self) -> bool:
        """Whether a row with a missing cell is a row like others."""
        return self in (MissingRows.CONSTANT, MissingRows.INDICATOR)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Cells of a column as numbers in [0, 1].

    Attributes
    ----------
    values : array (m, width)
        Zero where nothing can be said.
    outside : bool array (m,)
        Cells the schema does not admit.
    hopeless : bool array (m,)
        Those of them that cannot be clipped either.
    """

    values: NDArray[Any]
    outside: Flags
    hopeless: Flags


class Column(ABC):
    """One declared column of a table.

    Attributes
    ----------
    name : str
    missing : MissingRows or None
        What happens to rows where it is missing; the schema's rule where None.
    """

    keys: ClassVar[tuple[str, ...]] = ()
    """What a schema may say of a column of this type beside ``name``, ``type`` and ``missing``."""
    used: ClassVar[bool] = True
    """Whether its cells are looked at."""
    essential: ClassVar[bool] = False
    """Whether it says what a row is, and is no feature: a row without it is of no use."""

    name: str
    missing: MissingRows | None

    @classmethod
    @abstractmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Column:
        """Return the column that a schema's mapping declares; raise an InputError that names the key otherwise."""

    @property
    @abstractmethod
    def bound(self) -> str:
        """What it admits, for messages."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of the file that it reads; of several, a cell is what they hold together."""
        return (self.name,)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features; the first ``numbers`` of them are numbers, the others belong to one-hot groups."""
        return (self.name,) if self.used and not self.essential else ()

    @property
    def numbers(self) -> int:
        """How many of its features are numbers."""
        return len(self.features)

    @property
    def groups(self) -> int:
        """How many one-hot groups its other features form."""
        return 0

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return len(self.features)

    @property
    def text(self) -> bool:
        """Whether its cells are text to whoever reads a table without a schema."""
        return False

    @property
    def decimal(self) -> bool:
        """Whether its cells are numbers with a decimal mark."""
        return False

    @property
    def written(self) -> frozenset[str]:
        """Texts that are values of it even where they mark a missing cell elsewhere."""
        return frozenset()

    @abstractmethod
    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Encode cells, none of them missing; those outside are clipped where that can be. Total."""

    def typed(self, cells: Any, markers: frozenset[str]) -> NDArray[Any] | None:
        """Encode an Arrow array of texts, each distinct one once; None where one is missing or not in order."""
        if self.reads != (self.name,):
            return None
        coded = cells.dictionary_encode()
        texts = coded.dictionary.to_pylist()
        if any(text.strip() in markers or '"' in text for text in texts):
            return None
        encoded = self.encode(texts)
        return None if encoded.outside.any() else encoded.values[coded.indices.to_numpy()]

    def place(self, values: Floats) -> Floats:
        """Return encoded numbers on [-1, 1] with the middle of the range at 0; one-hot features as they are."""
        placed = np.array(values, dtype=np.float64)
        placed[:, : self.numbers] = 2.0 * placed[:, : self.numbers] - 1.0
        return placed

    def unplace(self, placed: Floats) -> Floats:
        """Return what :meth:`place` made its result from."""
        values = np.array(placed, dtype=np.float64)
        values[:, : self.numbers] = (values[:, : self.numbers] + 1.0) / 2.0
        return values


_TYPES: dict[str, type[Column]] = {}
_Class = TypeVar("_Class", bound=type[Column])


def column_type(name: str) -> Callable[[_Class], _Class]:
    """Return a decorator that enters a class of columns under the name that schemas give the type."""

    def enter(cls: _Class) -> _Class:
        if name in _TYPES:
            raise ValueError(f"column type {name!r} is registered twice")
        _TYPES[name] = cls
        return cls

    return enter


@cache
def _discover() -> None:
    package = importlib.import_module("storage.columns")
    for module in pkgutil.iter_modules(package.__path__, prefix="storage.columns."):
        importlib.import_module(module.name)


def parse_column(number: int, declaration: Any, place: str) -> Column:
    """Return the column that one entry of a schema declares.

    Parameters
    ----------
    number : int
        Its place from 1, for messages.
    place : str
        The schema, for messages.

    Raises
    ------
    InputError
        Naming the column, the key and what is expected.
    """
    _discover()
    if not isinstance(declaration, dict) or not isinstance(declaration.get("name"), str):
        raise InputError(f"{place}, column {number}: each column is a mapping with a name and a type")
    name, kind = declaration["name"], declaration.get("type")
    where = f"{place}, column {name}"
    if not isinstance(kind, str) or kind not in _TYPES:
        raise InputError(f"{where}: type is {kind!r}; it must be one of {', '.join(sorted(_TYPES))}")
    cls = _TYPES[kind]
    known_keys(where, declaration, ("name", "type", *(("missing",) if cls.used else ()), *cls.keys))
    return cls.parse(name, missing_rule(f"{where}: missing", declaration.get("missing")), declaration, where)


def known_keys(place: str, declaration: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a key that a schema does not have there, naming the nearest."""
    for key in declaration:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=3, cutoff=0.4) or list(known)
            raise InputError(f"{place} has no key {key!r}; nearest: {', '.join(near)}")


def named_twice(names: Sequence[str]) -> str | None:
    """Return the first name that stands there twice, in alphabetical order."""
    return min((name for name, times in Counter(names).items() if times > 1), default=None)


def missing_rule(place: str, rule: Any) -> MissingRows | None:
    """Return a declared rule for rows with missing cells, None where there is none."""
    if rule is None:
        return None
    if rule not in list(MissingRows):
        raise InputError(f"{place} is {rule!r}; it must be one of {', '.join(sorted(MissingRows))}")
    return MissingRows(rule)


def declared_texts(place: str, values: Any) -> tuple[str, ...]:
    """Return a declared list of values in their one spelling."""
    if not isinstance(values, list) or not values:
        raise InputError(f"{place} must be a list of at least one value")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise InputError(f"{place} holds {value!r}, which YAML does not read as text; put it in quotes")
    texts = tuple(canonical_label(value) for value in values)
    if len(set(texts)) < len(texts):
        raise InputError(f"{place} holds the same value twice: {list(texts)}")
    return texts


def declared_range(place: str, value: Any) -> tuple[float, float]:
    """Return a declared range of finite numbers."""
    bounds = as_numbers(value) if isinstance(value, list) else np.zeros(0)
    if bounds.shape != (2,) or not np.isfinite(bounds).all() or not bounds[0] < bounds[1]:
        raise InputError(f"{place} is {value!r}; it must be two finite numbers, the smaller first: [0, 100]")
    return float(bounds[0]), float(bounds[1])


def as_numbers(cells: Sequence[Any]) -> Floats:
    """Return cells as numbers, NaN where they are none."""
    # Python, and so NumPy, reads "1_0" as ten; no table means that.
    if not any(isinstance(cell, str) and "_" in cell for cell in cells):
        with suppress(ValueError, TypeError):
            return np.array(cells, dtype=np.float64)
    return np.array([_number(cell) for cell in cells], dtype=np.float64)


def _number(cell: Any) -> float:
    try:
        return float("nan") if isinstance(cell, str) and "_" in cell else float(cell)
    except (ValueError, TypeError, OverflowError):
        return float("nan")


def typed_numbers(cells: Any, bounds: tuple[float, float] | None, markers: frozenset[str]) -> Floats | None:
    """Return an Arrow array of texts as numbers; None unless all are numbers within the bounds and none is missing."""
    # Only a marker that reads as a number could be taken for one.
    trimmed = None
    for marker in markers:
        if not np.isnan(_number(marker)):
            trimmed = pc.utf8_trim_whitespace(cells) if trimmed is None else trimmed
            if pc.any(pc.equal(trimmed, marker)).as_py():
                return None
    try:
        numbers = cells.cast(pa.float64())
    except pa.ArrowInvalid:
        try:
            numbers = pc.utf8_trim_whitespace(cells).cast(pa.float64())
        except pa.ArrowInvalid:
            return None
    values: Floats = numbers.to_numpy(zero_copy_only=False)
    low, high = bounds if bounds is not None else (-_LARGEST, _LARGEST)
    return values if ((values >= low) & (values <= high)).all() else None


def as_codes(cells: Sequence[Any], places: Mapping[str, int]) -> NDArray[np.int64]:
    """Return which of the declared values each cell is, -1 where it is none."""
    return np.array([places.get(canonical_label(cell), -1) for cell in cells], dtype=np.int64)


def one_hot(codes: NDArray[np.int64], width: int) -> Floats:
    """Return one feature a value; zeros for the code -1."""
    values = np.zeros((len(codes), width))
    rows = np.flatnonzero(codes >= 0)
    values[rows, codes[rows]] = 1.0
    return values


def shown(values: Sequence[str]) -> str:
    """Return declared values for a message, the first dozen."""
    return ", ".join(values[:12]) + (", …" if len(values) > 12 else "")


@column_type("ignore")
@dataclass(frozen=True, slots=True)
class Ignored(Column):
    """A column that is not looked at."""

    used: ClassVar[bool] = False

    name: str
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Ignored:
        """Return the declared column."""
        return cls(name)

    @property
    def bound(self) -> str:
        """Anything."""
        return "anything"

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Nothing."""
        none = np.zeros(len(cells), dtype=bool)
        return Encoded(np.zeros((len(cells), 0)), none, none)
