"""The columns of declared tables: what every type of column can do, and the types."""

from __future__ import annotations

import difflib
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.errors import InputError
from storage.people import MOST_ROWS, People, identifiers, named
from storage.source import canonical_label

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


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

    def at(self, places: NDArray[Any]) -> Encoded:
        """Return some cells, any of them as often as it is named."""
        return Encoded(self.values[places], self.outside[places], self.hopeless[places])


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
    def plain(self) -> bool:
        """Whether its cells are numbers with nothing before, after or between their digits."""
        return self.decimal

    @property
    def written(self) -> frozenset[str]:
        """Texts that are values of it even where they mark a missing cell elsewhere."""
        return frozenset()

    @abstractmethod
    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Encode cells; those outside are clipped where that can be, what stands for a missing one is not used. Total.

        Where one is missing the result's values may be written to.
        """

    def place(self, values: Floats) -> Floats:
        """Return encoded numbers on [-1, 1] with the middle of the range at 0; one-hot features as they are."""
        numbers, others = np.split(np.asarray(values, dtype=np.float64), [self.numbers], axis=1)
        return np.concatenate([2.0 * numbers - 1.0, others], axis=1)

    def unplace(self, placed: Floats) -> Floats:
        """Return what :meth:`place` made its result from."""
        numbers, others = np.split(np.asarray(placed, dtype=np.float64), [self.numbers], axis=1)
        return np.concatenate([(numbers + 1.0) / 2.0, others], axis=1)


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


def as_numbers(cells: Sequence[Any] | Floats) -> Floats:
    """Return cells as numbers, NaN where they are none."""
    if isinstance(cells, np.ndarray):
        return cells
    # NumPy reads some others, such as times and lists, otherwise together than one by one.
    if set(map(type, cells)) <= {int, float, type(None)}:
        with suppress(OverflowError):
            return np.array(cells, dtype=np.float64)
    return np.array([as_number(cell) for cell in cells], dtype=np.float64)


def as_number(cell: Any) -> float:
    """Return a cell as a number, NaN where it is none."""
    try:
        # Python reads "1_0" as ten; no table means that.
        return float("nan") if isinstance(cell, str) and "_" in cell else float(cell)
    except (ValueError, TypeError, OverflowError):
        return float("nan")


def numbers_of(cells: Any, markers: frozenset[str]) -> Floats | None:
    """Return an Arrow array of texts as numbers; None unless all are numbers and none is missing."""
    # Only a marker that reads as a number could be taken for one.
    numeric = [marker for marker in markers if not np.isnan(as_number(marker))]
    try:
        if numeric and pc.any(pc.is_in(pc.utf8_trim_whitespace(cells), pa.array(numeric))).as_py():
            return None
        try:
            numbers = cells.cast(pa.float64())
        except pa.ArrowInvalid:
            numbers = pc.utf8_trim_whitespace(cells).cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    values: Floats = numbers.to_numpy(zero_copy_only=False)
    return None if np.isnan(values).any() else values


def clip(numbers: Floats, low: float, high: float) -> Encoded:
    """Return numbers clipped to a range; what is none cannot be clipped."""
    outside = ~((numbers >= low) & (numbers <= high))
    if not outside.any():
        return Encoded(numbers[:, None], outside, outside)
    hopeless = np.isnan(numbers)
    return Encoded(np.where(hopeless, low, np.clip(numbers, low, high))[:, None], outside, hopeless)


def as_codes(cells: Sequence[Any], places: Mapping[str, int]) -> NDArray[np.int64]:
    """Return which of the declared values each cell is, -1 where it is none."""
    return np.array([places.get(canonical_label(cell), -1) for cell in cells], dtype=np.int64)


def places_of(values: Sequence[str]) -> dict[str, int]:
    """Return the place of each declared value."""
    return {value: place for place, value in enumerate(values)}


def one_hot(codes: NDArray[np.int64], width: int) -> Floats:
    """Return one feature a value; zeros for the code -1."""
    values = np.zeros((len(codes), width))
    rows = np.flatnonzero(codes >= 0)
    values[rows, codes[rows]] = 1.0
    return values


def shown(values: Sequence[str]) -> str:
    """Return declared values for a message, the first dozen."""
    return ", ".join(values[:12]) + (", …" if len(values) > 12 else "")


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


_USUAL = MappingProxyType({"false": 0, "true": 1, "no": 0, "yes": 1, "f": 0, "t": 1, "n": 0, "y": 1, "0": 0, "1": 1})


@dataclass(frozen=True)
class Boolean(Column):
    """Yes or no, one feature.

    Parameters
    ----------
    values : (str, str) or None
        How no and yes are written, in this order; true/false, yes/no, t/f, y/n and 1/0 in any case where None.
    """

    keys: ClassVar[tuple[str, ...]] = ("values",)

    name: str
    values: tuple[str, ...] | None = None
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Boolean:
        """Return the declared column."""
        if "values" not in declaration:
            return cls(name, None, missing)
        values = declared_texts(f"{place}: values", declaration["values"])
        if len(values) != 2:
            raise InputError(f"{place}: values are {list(values)}; declare two, what means no first")
        return cls(name, values, missing)

    @property
    def bound(self) -> str:
        """The two values."""
        return "true or false, yes or no, 1 or 0" if self.values is None else f"{self.values[0]} or {self.values[1]}"

    @property
    def written(self) -> frozenset[str]:
        """The two values, where declared."""
        return frozenset(self.values or ())

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """0 or 1; what is neither cannot be clipped."""
        if self.values is None:
            cells = [canonical_label(cell).lower() for cell in cells]
        codes = as_codes(cells, places_of(self.values) if self.values else _USUAL)
        return Encoded(np.maximum(codes, 0).astype(np.float64)[:, None], codes < 0, codes < 0)


@dataclass(frozen=True)
class Category(Column):
    """One of declared values, one feature each (one-hot).

    Parameters
    ----------
    values : tuple of str
    hashed : bool
        Whether the values are the numbers of bins, 0 to their number less 1, and each text belongs to the bin of its
        CRC-32: any text then has a feature, which it shares with others.
    """

    keys: ClassVar[tuple[str, ...]] = ("values", "hash")

    name: str
    values: tuple[str, ...]
    missing: MissingRows | None = None
    hashed: bool = False

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Category:
        """Return the declared column."""
        if "hash" not in declaration:
            return cls(name, declared_texts(f"{place}: values", declaration.get("values")), missing)
        bins = declaration["hash"]
        if "values" in declaration or type(bins) is not int or not 2 <= bins <= _MOST_BINS:
            raise InputError(
                f"{place}: hash is {bins!r}; it must be a number of bins from 2 to {_MOST_BINS}, instead of values"
            )
        return cls(name, tuple(map(str, range(bins))), missing, hashed=True)

    @property
    def bound(self) -> str:
        """The values."""
        return "any text" if self.hashed else f"one of {shown(self.values)}"

    @property
    def written(self) -> frozenset[str]:
        """The values."""
        return frozenset(() if self.hashed else self.values)

    @property
    def features(self) -> tuple[str, ...]:
        """One a value."""
        return tuple(f"{self.name}{'#' if self.hashed else '='}{value}" for value in self.values)

    @property
    def numbers(self) -> int:
        """None."""
        return 0

    @property
    def groups(self) -> int:
        """All features are one group."""
        return 1

    @property
    def text(self) -> bool:
        """Whether no value reads as a number, nor as a truth value."""
        reads_as_flag = {value.lower() for value in self.values} & {"true", "false"}
        return not self.hashed and not reads_as_flag and bool(np.isnan(as_numbers(self.values)).all())

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """One-hot; an unknown value becomes zeros."""
        if self.hashed:
            cells = [
                str(zlib.crc32(canonical_label(cell).encode(errors="surrogatepass")) % len(self.values))
                for cell in cells
            ]
        codes = as_codes(cells, places_of(self.values))
        return Encoded(one_hot(codes, self.width), codes < 0, np.zeros(len(codes), dtype=bool))


_MOST_BINS = 4096

# Numbers come first, then the one-hot groups.
_PARTS = ("days", "year", "month", "weekday")
_MONTHS = tuple(f"{month:02d}" for month in range(1, 13))
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Date(Column):
    """Days in a declared range.

    Parameters
    ----------
    range : (date, date)
        The first and the last day.
    parts : tuple of str
        What of a day becomes features: ``days`` (since the first day of the range) and ``year``, numbers; ``month`` and
        ``weekday``, one-hot.
    formats : tuple of str
        As of :meth:`datetime.datetime.strptime`, the first that fits; ISO 8601 (2026-01-31, with a time or without)
        where there is none.
    """

    keys: ClassVar[tuple[str, ...]] = ("range", "parts", "format")

    name: str
    range: tuple[date, date]
    parts: tuple[str, ...] = ("days",)
    formats: tuple[str, ...] = ()
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Date:
        """Return the declared column."""
        bounds = declaration.get("range")
        days = [_day(value) for value in bounds] if isinstance(bounds, list) else []
        if len(days) != 2 or days[0] is None or days[1] is None or not days[0] < days[1]:
            raise InputError(
                f"{place}: range is {bounds!r}; it must be two days, the first one first: [2020-01-01, 2026-12-31]"
            )
        parts = declaration.get("parts", ["days"])
        if not isinstance(parts, list) or not parts or not set(map(str, parts)) <= set(_PARTS):
            raise InputError(f"{place}: parts are {parts!r}; they must be some of {', '.join(_PARTS)}")
        ordered = tuple(part for part in _PARTS if part in parts)
        return cls(name, (days[0], days[1]), ordered, _formats(declaration, place), missing)

    @property
    def bound(self) -> str:
        """The range and how days are written."""
        return f"a day from {self.range[0]} to {self.range[1]}, written {' or '.join(self.formats) or '2026-01-31'}"

    @property
    def features(self) -> tuple[str, ...]:
        """Those of its parts."""
        several = {"month": _MONTHS, "weekday": _WEEKDAYS}
        return tuple(
            f"{self.name} {part}{end}"
            for part in self.parts
            for end in ([f"={value}" for value in several[part]] if part in several else [""])
        )

    @property
    def numbers(self) -> int:
        """Days and year."""
        return len({"days", "year"} & set(self.parts))

    @property
    def groups(self) -> int:
        """Month and weekday."""
        return len(self.parts) - self.numbers

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Encode the parts, clipping to the ends of the range; what is no day cannot be clipped."""
        first, last = self.range
        days = [_day(cell, self.formats) for cell in cells]
        hopeless = np.array([day is None for day in days], dtype=bool)
        outside = np.array([day is None or not first <= day <= last for day in days], dtype=bool)
        within = [first if day is None else min(max(day, first), last) for day in days]
        years = max(last.year - first.year, 1)
        columns = {
            "days": np.array([(day - first).days / (last - first).days for day in within]).reshape(-1, 1),
            "year": np.array([(day.year - first.year) / years for day in within]).reshape(-1, 1),
            "month": one_hot(np.array([day.month - 1 for day in within], dtype=np.int64), 12),
            "weekday": one_hot(np.array([day.weekday() for day in within], dtype=np.int64), 7),
        }
        values = np.concatenate([columns[part] for part in self.parts], axis=1)
        values[hopeless] = 0.0
        return Encoded(values, outside, hopeless)


def _formats(declaration: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """Return how days are written."""
    form = declaration.get("format", [])
    forms = form if isinstance(form, list) else [form]
    if not all(isinstance(one, str) for one in forms):
        raise InputError(f'{place}: format is {form!r}; it must be text such as "%d.%m.%Y", or a list of such texts')
    for one in forms:
        if not _names_days(one):
            raise InputError(
                f'{place}: format is {one!r}; it must name a year, a month and a day, such as "%d.%m.%Y" '
                "(a year or a month alone is a column of type numeric or category)"
            )
    return tuple(forms)


def _names_days(form: str) -> bool:
    """Return whether what is written in a format names its day, as read again."""
    try:
        return all(
            datetime.strptime(day.strftime(form), form).date() == day.date()
            for day in (datetime(2021, 3, 4, tzinfo=UTC), datetime(2024, 11, 30, tzinfo=UTC))
        )
    except (ValueError, re.error):
        return False


def _day(cell: Any, formats: Sequence[str] = ()) -> date | None:
    """Return the day that a cell names; None where it names none."""
    if isinstance(cell, datetime):
        with suppress(NotImplementedError, ValueError):  # pandas, of a day beyond Python's calendar, and of none
            return cell.date()
    elif isinstance(cell, date):
        return cell
    text = str(cell).strip()
    for form in formats or (None,):
        with suppress(ValueError):
            return (datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)).date()
    return None


@dataclass(frozen=True)
class Label(Column):
    """What is to be predicted: one of declared classes, or a number in a declared range.

    Parameters
    ----------
    classes : tuple of str
        Their names in index order; empty for a number.
    range : (float, float) or None
    suffix : str
        What follows a class in the file and is cut off.
    codes : mapping of str to str
        How classes are written in the file where that is not their name.
    """

    keys: ClassVar[tuple[str, ...]] = ("classes", "range", "suffix")
    essential: ClassVar[bool] = True

    name: str
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    suffix: str = ""
    missing: MissingRows | None = None
    codes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Label:
        """Return the declared column."""
        if missing is not None and missing.keeps:
            raise InputError(f"{place}: missing is {missing}; a row without a label can only be refused or dropped")
        if ("classes" in declaration) == ("range" in declaration):
            raise InputError(f"{place} must have either classes or a range")
        if "range" in declaration:
            return cls(name, range=declared_range(f"{place}: range", declaration["range"]), missing=missing)
        declared = declaration["classes"]
        written = declared_texts(f"{place}: classes", list(declared) if isinstance(declared, (list, dict)) else None)
        classes = (
            declared_texts(f"{place}: classes", list(declared.values())) if isinstance(declared, dict) else written
        )
        if len(classes) < 2:
            raise InputError(f"{place}: classes are {list(classes)}; declare at least two")
        codes = dict(zip(written, classes, strict=True)) if isinstance(declared, dict) else {}
        return cls(name, classes, suffix=str(declaration.get("suffix", "")), missing=missing, codes=codes)

    @property
    def _texts(self) -> tuple[str, ...]:
        """How the classes are written, in index order."""
        return tuple(self.codes) or self.classes

    @property
    def bound(self) -> str:
        """Classes or range."""
        if self.range is not None:
            return f"a number in [{self.range[0]:g}, {self.range[1]:g}]"
        return f"one of {shown(self._texts)}"

    @property
    def decimal(self) -> bool:
        """Whether it is a number."""
        return self.range is not None

    @property
    def written(self) -> frozenset[str]:
        """How the classes are written."""
        return frozenset(self._texts)

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Return class names, or numbers clipped to the range; a label that is no class cannot be clipped."""
        if self.range is not None:
            return clip(as_numbers(cells), *self.range)
        if self.suffix:
            cells = [cell.strip().removesuffix(self.suffix) if isinstance(cell, str) else cell for cell in cells]
        codes = as_codes(cells, places_of(self._texts))
        return Encoded(np.array(self.classes)[codes][:, None], codes < 0, codes < 0)


_THOUSANDS = (
    "",
    ",",
    ".",
    "'",
    "\N{RIGHT SINGLE QUOTATION MARK}",
    " ",
    "\N{NO-BREAK SPACE}",
    "\N{NARROW NO-BREAK SPACE}",
)


def _signed_log(numbers: Any) -> Any:
    return np.sign(numbers) * np.log1p(np.abs(numbers))


@dataclass(frozen=True, slots=True)
class Numeric(Column):
    """Numbers in a declared range; without one (public sets only) they stay as they are.

    Parameters
    ----------
    range : (float, float) or None
    centre : float or None
        What lies at 0; the middle of the range (on its scale) where None.
    log : bool
        Whether the scale is sign(x) log(1 + |x|), for numbers whose sizes differ by orders of magnitude.
    currency : tuple of str
        What stands before or after a number and is no part of it: "€", "EUR".
    thousands : str
        What stands between groups of three digits, as in the file; none where empty.
    """

    keys: ClassVar[tuple[str, ...]] = ("range", "centre", "scale", "currency", "thousands")

    name: str
    range: tuple[float, float] | None
    missing: MissingRows | None = None
    centre: float | None = None
    log: bool = False
    currency: tuple[str, ...] = ()
    thousands: str = ""

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Numeric:
        """Return the declared column."""
        low, high = declared_range(f"{place}: range", declaration.get("range"))
        scale, centre = declaration.get("scale", "linear"), declaration.get("centre")
        if scale not in ("linear", "log"):
            raise InputError(f"{place}: scale is {scale!r}; it must be linear or log")
        if centre is not None:
            if not low <= (value := float(as_numbers([centre])[0])) <= high:
                raise InputError(f"{place}: centre is {centre!r}; it must be a number in the range [{low:g}, {high:g}]")
            centre = value
        currency, thousands = declaration.get("currency"), declaration.get("thousands", "")
        listed = currency if isinstance(currency, list) else [currency]
        signs = () if currency is None else declared_texts(f"{place}: currency", listed)
        if thousands not in _THOUSANDS:
            raise InputError(
                f"{place}: thousands is {thousands!r}; it must be one of {', '.join(map(repr, _THOUSANDS))}"
            )
        return cls(name, (low, high), missing, centre, scale == "log", signs, thousands)

    @property
    def bound(self) -> str:
        """The range."""
        return "a finite number" if self.range is None else f"a number in [{self.range[0]:g}, {self.range[1]:g}]"

    @property
    def decimal(self) -> bool:
        """They are numbers."""
        return True

    @property
    def plain(self) -> bool:
        """Whether neither a currency nor a mark between thousands is declared."""
        return not (self.currency or self.thousands)

    def _plain(self, cell: Any) -> Any:
        """Return a text without currency and thousands; as it is where its digits do not stand in groups of three.

        A decimal comma has become a point before, and a point between thousands a comma.
        """
        if not isinstance(cell, str):
            return cell
        text = cell.strip()
        for sign in self.currency:
            text = re.sub(rf"^([+-]?)\s*{re.escape(sign)}\s*|\s*{re.escape(sign)}$", r"\1", text)
        mark = "," if self.thousands == "." else self.thousands
        grouped = mark and re.fullmatch(rf"[+-]?\d{{1,3}}({re.escape(mark)}\d{{3}})+(\.\d*)?", text)
        return text.replace(mark, "") if grouped else text

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Scale to [0, 1], clipping to the ends of the range."""
        numbers = as_numbers(cells if self.plain else [self._plain(cell) for cell in cells])
        if self.range is None:
            hopeless = ~np.isfinite(numbers)
            return Encoded(numbers[:, None], hopeless, hopeless)
        low, high = self.range
        clipped = clip(numbers, low, high)
        return Encoded((clipped.values - low) / (high - low), clipped.outside, clipped.hopeless)

    def _line(self) -> tuple[float, float]:
        """Return what lies at 0 and what at a distance of 1 from it, on the column's scale."""
        assert self.range is not None
        low, high = _signed_log(np.array(self.range)) if self.log else np.array(self.range)
        centre = (low + high) / 2.0
        if self.centre is not None:
            centre = _signed_log(self.centre) if self.log else self.centre
        return float(centre), float(max(high - centre, centre - low))

    def place(self, values: Floats) -> Floats:
        """Return [0, 1] as [-1, 1]: the centre at 0, the end of the range that is further from it at -1 or 1."""
        if self.range is None:
            return values
        low, high = self.range
        centre, reach = self._line()
        numbers = low + values * (high - low)
        return np.asarray(((_signed_log(numbers) if self.log else numbers) - centre) / reach)

    def unplace(self, placed: Floats) -> Floats:
        """Return what :meth:`place` made its result from."""
        if self.range is None:
            return placed
        low, high = self.range
        centre, reach = self._line()
        numbers = placed * reach + centre
        if self.log:
            numbers = np.sign(numbers) * np.expm1(np.abs(numbers))
        return np.asarray((numbers - low) / (high - low))


@dataclass(frozen=True, slots=True)
class Days(Numeric):
    """How many days lie between two dates of the same row, as a number in a declared range.

    Parameters
    ----------
    between : (str, str)
        The columns of the earlier and the later day; the number is negative where they lie the other way round.
    formats : tuple of str
        How both are written, as of :class:`Date`.
    """

    keys: ClassVar[tuple[str, ...]] = ("between", "range", "centre", "scale", "format")

    between: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Days:
        """Return the declared column."""
        between = declaration.get("between")
        if not isinstance(between, list) or len(between) != 2 or not all(isinstance(one, str) for one in between):
            raise InputError(f"{place}: between is {between!r}; it must name two columns: [admitted, discharged]")
        number = Numeric.parse(name, missing, declaration, place)
        return cls(
            name, number.range, missing, number.centre, number.log, (), "", tuple(between), _formats(declaration, place)
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """The two columns."""
        return self.between

    @property
    def bound(self) -> str:
        """The range and how days are written."""
        low, high = self.range or (0.0, 0.0)
        written = " or ".join(self.formats) or "2026-01-31"
        return f"{low:g} to {high:g} days from {self.between[0]} to {self.between[1]}, written {written}"

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Scale the number of days to [0, 1], clipping to the ends of the range; what is no day cannot be clipped."""
        pairs = [(_day(first, self.formats), _day(last, self.formats)) for first, last in cells]
        return Numeric.encode(self, [(last - first).days if first and last else None for first, last in pairs])


@dataclass(frozen=True, slots=True)
class Person(Column):
    """Whose row it is: what is protected is a person with all rows, and no feature.

    Parameters
    ----------
    people : People
        What is declared of them.
    """

    keys: ClassVar[tuple[str, ...]] = ("namespace", "rows_per_person")
    essential: ClassVar[bool] = True

    name: str
    people: People
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Person:
        """Return the declared column."""
        if missing is not None and missing.keeps:
            raise InputError(f"{place}: missing is {missing}; a row that is nobody's can only be refused or dropped")
        namespace = declaration.get("namespace", "")
        if not isinstance(namespace, str):
            raise InputError(f"{place}: namespace is {namespace!r}; it must be text, such as hospital-mrn")
        return cls(name, People(name, declaration.get("rows_per_person", MOST_ROWS), namespace.strip()), missing)

    @property
    def bound(self) -> str:
        """Identifiers."""
        return "an identifier: text or a whole number (of floats, whole ones up to 2^53)"

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Return identifiers in their one spelling; what names nobody surely cannot be clipped."""
        names = identifiers(cells)
        nobody = ~named(names)
        return Encoded(names[:, None], nobody, nobody)


_TYPES: Mapping[str, type[Column]] = MappingProxyType(
    {
        "ignore": Ignored,
        "boolean": Boolean,
        "category": Category,
        "date": Date,
        "label": Label,
        "numeric": Numeric,
        "days": Days,
        "person": Person,
    }
)
"""The types by the names that schemas give them."""
