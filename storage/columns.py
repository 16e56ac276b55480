"""The columns of declared tables: what every type of column can do, and the types."""

from __future__ import annotations

import difflib
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.cells import canonical, canonical_text, column_name, day_of, days, numbers
from storage.errors import InputError
from storage.people import MOST_ROWS, People, identifiers, named
from storage.recoding import Recoding, Rule, first_characters, items_of

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
    unclippable : bool array (m,)
        Those of them that cannot be clipped either.
    """

    values: NDArray[Any]
    outside: Flags
    unclippable: Flags

    def at(self, places: NDArray[Any]) -> Encoded:
        """Return some cells, any of them as often as it is named."""
        return Encoded(self.values[places], self.outside[places], self.unclippable[places])


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
    def written(self) -> frozenset[str]:
        """Canonical texts that are values of it even where they mark a missing cell elsewhere."""
        return frozenset()

    def read(self, cells: Any, decimal: str = ".") -> pa.StringArray | Floats:
        """Return what cells of one of the columns that it reads are to it: by this they are compared.

        Parameters
        ----------
        cells : Arrow array, or sequence of cells of any types
        decimal : {".", ","}
            What separates whole numbers from their fraction in text.

        Returns
        -------
        pyarrow.StringArray or float array, (m,)
            Canonical texts, unless it is a column of numbers (NaN where a cell is none) or of days (likewise, since
            1970-01-01).
        """
        return canonical(cells, decimal)

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """Return how many canonical texts each rule takes by which the column recodes; for their owner alone."""
        return {}

    @abstractmethod
    def encode(self, *values: Any) -> Encoded:
        """Encode what :meth:`read` gives of each column that it reads. Total.

        What is outside is clipped where that can be, what stands for a missing cell is not used. Where one is missing
        the result's values may be written to.
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
    declared = declaration.get("name") if isinstance(declaration, dict) else None
    if isinstance(declared, bool) or not isinstance(declared, (str, int)):
        raise InputError(f"{place}, column {number}: each column is a mapping with a name and a type")
    name, kind = column_name(declared), declaration.get("type")
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
    texts = []
    for value in values:
        text = canonical_text(value)
        if text is None:
            raise InputError(
                f"{place} holds {value!r}: which whole number a float from 2^53 on is, nobody knows; write its digits"
            )
        texts.append(text)
    if twice := named_twice(texts):
        raise InputError(f"{place} holds the same value twice, {twice}: {list(map(str, values))}")
    return tuple(texts)


def declared_codes(place: str, key: str, declaration: Mapping[str, Any]) -> Recoding:
    """Return what a declared list of values, or mapping of codes to values, says of cells."""
    declared, where = declaration.get(key), f"{place}: {key}"
    first = first_characters(place, declaration.get("first"))
    items = items_of(declared)
    if not declared or not (items or isinstance(declared, list)):
        raise InputError(
            f"{where} is {declared!r}; it must be a list of at least one value, or a mapping of codes to what they "
            'mean: {"1": north, "2": south}'
        )
    if items is None:
        written = declared_texts(where, declared)
        return Recoding.of(where, written, written, first, named=False)
    written = declared_texts(where, [code for code, _ in items])
    values = [declared_texts(where, [value])[0] for _, value in items]
    return Recoding.of(where, written, values, first, named=True)


def declared_range(place: str, value: Any) -> tuple[float, float]:
    """Return a declared range of finite numbers."""
    bounds = numbers(value) if isinstance(value, list) else np.zeros(0)
    if bounds.shape != (2,) or not np.isfinite(bounds).all() or not bounds[0] < bounds[1]:
        raise InputError(f"{place} is {value!r}; it must be two finite numbers, the smaller first: [0, 100]")
    return float(bounds[0]), float(bounds[1])


def clip(numbers: Floats, low: float, high: float) -> Encoded:
    """Return numbers clipped to a range; what is none cannot be clipped."""
    outside = ~((numbers >= low) & (numbers <= high))
    if not outside.any():
        return Encoded(numbers[:, None], outside, outside)
    unclippable = np.isnan(numbers)
    return Encoded(np.where(unclippable, low, np.clip(numbers, low, high))[:, None], outside, unclippable)


def codes_of(texts: pa.StringArray, values: Sequence[str]) -> NDArray[np.int64]:
    """Return which of the declared values each canonical text is, -1 where it is none."""
    found = pc.index_in(texts, pa.array(values, pa.string()), skip_nulls=True).fill_null(-1)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.int64)


def recoded(texts: pa.StringArray, recoding: Recoding, values: Sequence[str]) -> NDArray[np.int64]:
    """Return which of the values each canonical text means, -1 where it means none."""
    coded, places = texts.dictionary_encode(), recoding.places(values)
    found = [places.get(text, -1) for text in coded.dictionary.to_pylist()]
    rows: NDArray[np.int32] = coded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    return np.array([*found, -1], dtype=np.int64)[rows]


def counted(texts: pa.StringArray) -> dict[str, int]:
    """Return how many cells are each canonical text."""
    return {each["values"]: each["counts"] for each in texts.drop_null().value_counts().to_pylist()}


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

    def encode(self, *values: Any) -> Encoded:
        """Nothing."""
        none = np.zeros(len(values[0]), dtype=bool)
        return Encoded(np.zeros((len(none), 0)), none, none)


USUAL_FLAGS = MappingProxyType(
    {"false": 0, "true": 1, "no": 0, "yes": 1, "f": 0, "t": 1, "n": 0, "y": 1, "0": 0, "1": 1}
)
"""How no and yes are usually written, in lower case."""
_FLAGS = ("false", "true")


@dataclass(frozen=True)
class Boolean(Column):
    """Yes or no, one feature.

    Parameters
    ----------
    recoding : Recoding or None
        Codes of ``"false"`` and ``"true"``; true/false, yes/no, t/f, y/n and 1/0 in any case where None.
    """

    keys: ClassVar[tuple[str, ...]] = ("values",)

    name: str
    recoding: Recoding | None = None
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Boolean:
        """Return the declared column."""
        if "values" not in declaration:
            return cls(name, None, missing)
        declared, where = declaration["values"], f"{place}: values"
        if (items := items_of(declared)) is None:
            values = declared_texts(where, declared)
            if len(values) != 2:
                raise InputError(
                    f"{place}: values are {list(values)}; declare two, what means no first, or what each code means: "
                    '{"No": false, "Up": true, "Down": true}'
                )
            return cls(name, Recoding.of(where, values, _FLAGS, None, named=False), missing)
        for code, meant in items:
            if not isinstance(meant, bool):
                raise InputError(f"{where}: {code!r} means {meant!r}; it must be true or false, without quotes")
        if len({meant for _, meant in items}) != 2:
            raise InputError(f"{where} are {dict(items)}; declare codes of true and of false")
        codes, meanings = declared_texts(where, [code for code, _ in items]), [_FLAGS[meant] for _, meant in items]
        return cls(name, Recoding.of(where, codes, meanings, None, named=True), missing)

    @property
    def bound(self) -> str:
        """The two values."""
        if self.recoding is None:
            return "true or false, yes or no, 1 or 0"
        no, yes = ([code for code, value in self.recoding.rules.items() if value == flag] for flag in _FLAGS)
        return f"{shown(no)} or {shown(yes)}"

    @property
    def written(self) -> frozenset[str]:
        """The codes, where declared."""
        return frozenset(() if self.recoding is None else self.recoding.written)

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """By code, where more than two are declared."""
        several = self.recoding is not None and (self.recoding.open_ended or len(self.recoding.declared) > 2)
        return self.recoding.taken(counted(texts)) if self.recoding is not None and several else {}

    def encode(self, *values: Any) -> Encoded:
        """0 or 1; what is neither cannot be clipped."""
        (texts,) = values
        if self.recoding is not None:
            codes = recoded(texts, self.recoding, _FLAGS)
        else:
            usual = codes_of(pc.utf8_lower(texts), tuple(USUAL_FLAGS))
            codes = np.array([*USUAL_FLAGS.values(), -1])[usual]
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
    recoding : Recoding or None
        Which codes mean the values; each means itself where None.
    """

    keys: ClassVar[tuple[str, ...]] = ("values", "hash", "first")

    name: str
    values: tuple[str, ...]
    missing: MissingRows | None = None
    hashed: bool = False
    recoding: Recoding | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Category:
        """Return the declared column."""
        if "hash" not in declaration:
            recoding = declared_codes(place, "values", declaration)
            return cls(name, recoding.values, missing, recoding=recoding)
        bins = declaration["hash"]
        if "values" in declaration or type(bins) is not int or not 2 <= bins <= _MOST_BINS:
            raise InputError(
                f"{place}: hash is {bins!r}; it must be a number of bins from 2 to {_MOST_BINS}, instead of values"
            )
        recoding = Recoding((), first_characters(place, declaration.get("first")))
        return cls(name, tuple(map(str, range(bins))), missing, hashed=True, recoding=recoding)

    @property
    def _texts(self) -> tuple[str, ...]:
        """What is admitted as it is written."""
        return self.values if self.recoding is None else tuple(self.recoding.rules)

    @property
    def bound(self) -> str:
        """The values."""
        ending = "" if self.recoding is None else self.recoding.ending
        return ("any text" if self.hashed else f"one of {shown(self._texts)}") + ending

    @property
    def written(self) -> frozenset[str]:
        """The values, or the codes that mean them."""
        if self.recoding is not None:
            return self.recoding.written
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

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """By code or prefix, where these are not the values themselves."""
        return self.recoding.taken(counted(texts)) if self.recoding is not None and self.recoding.renames else {}

    def encode(self, *values: Any) -> Encoded:
        """One-hot; an unknown value becomes zeros."""
        (texts,) = values
        if self.hashed:
            cut = str if self.recoding is None else self.recoding.cut
            coded = texts.dictionary_encode()
            bins = [zlib.crc32(cut(text).encode()) % len(self.values) for text in coded.dictionary.to_pylist()]
            places = coded.indices.fill_null(len(bins)).to_numpy(zero_copy_only=False)
            codes = np.array([*bins, -1], dtype=np.int64)[places]
        elif self.recoding is None:
            codes = codes_of(texts, self.values)
        else:
            codes = recoded(texts, self.recoding, self.values)
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
        ends = [day_of(str(value)) for value in bounds] if isinstance(bounds, list) else []
        if len(ends) != 2 or ends[0] is None or ends[1] is None or not ends[0] < ends[1]:
            raise InputError(
                f"{place}: range is {bounds!r}; it must be two days, the first one first: [2020-01-01, 2026-12-31]"
            )
        parts = declaration.get("parts", ["days"])
        if not isinstance(parts, list) or not parts or not set(map(str, parts)) <= set(_PARTS):
            raise InputError(f"{place}: parts are {parts!r}; they must be some of {', '.join(_PARTS)}")
        ordered = tuple(part for part in _PARTS if part in parts)
        return cls(name, (ends[0], ends[1]), ordered, _formats(declaration, place), missing)

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

    def read(self, cells: Any, decimal: str = ".") -> pa.StringArray | Floats:
        """Return days."""
        return days(cells, self.formats)

    def encode(self, *values: Any) -> Encoded:
        """Encode the parts, clipping to the ends of the range; what is no day cannot be clipped."""
        (given,) = values
        first, last = ((day - _EPOCH).days for day in self.range)
        unclippable = np.isnan(given)
        outside = ~((given >= first) & (given <= last))
        within = np.clip(np.where(unclippable, first, given), first, last).astype(np.int64)
        calendar = within.astype("datetime64[D]")
        years = calendar.astype("datetime64[Y]").astype(np.int64) + _EPOCH.year - self.range[0].year
        columns = {
            "days": ((within - first) / (last - first))[:, None],
            "year": (years / max(self.range[1].year - self.range[0].year, 1))[:, None],
            "month": one_hot(calendar.astype("datetime64[M]").astype(np.int64) % 12, 12),
            # The first of January 1970 was a Thursday.
            "weekday": one_hot((within + 3) % 7, 7),
        }
        encoded = np.concatenate([columns[part] for part in self.parts], axis=1)
        encoded[unclippable] = 0.0
        return Encoded(encoded, outside, unclippable)


_EPOCH = date(1970, 1, 1)


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
    recoding : Recoding or None
        Which codes mean the classes; each means itself where None.
    """

    keys: ClassVar[tuple[str, ...]] = ("classes", "range", "suffix", "first")
    essential: ClassVar[bool] = True

    name: str
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    suffix: str = ""
    missing: MissingRows | None = None
    recoding: Recoding | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Label:
        """Return the declared column."""
        if missing is not None and missing.keeps:
            raise InputError(f"{place}: missing is {missing}; a row without a label can only be refused or dropped")
        if ("classes" in declaration) == ("range" in declaration):
            raise InputError(f"{place} must have either classes or a range")
        if "range" in declaration:
            if "first" in declaration:
                raise InputError(f"{place}: first counts characters of classes, and a number has none; leave it out")
            return cls(name, range=declared_range(f"{place}: range", declaration["range"]), missing=missing)
        recoding = declared_codes(place, "classes", declaration)
        if len(recoding.values) < 2:
            raise InputError(f"{place}: classes are {list(recoding.values)}; declare at least two")
        suffix = str(declaration.get("suffix", ""))
        return cls(name, recoding.values, suffix=suffix, missing=missing, recoding=recoding)

    @property
    def _texts(self) -> tuple[str, ...]:
        """How the classes are written."""
        return self.classes if self.recoding is None else tuple(self.recoding.rules)

    @property
    def bound(self) -> str:
        """Classes or range."""
        if self.range is not None:
            return f"a number in [{self.range[0]:g}, {self.range[1]:g}]"
        return f"one of {shown(self._texts)}" + ("" if self.recoding is None else self.recoding.ending)

    @property
    def written(self) -> frozenset[str]:
        """How the classes are written."""
        return frozenset(self.classes) if self.recoding is None else self.recoding.written

    def read(self, cells: Any, decimal: str = ".") -> pa.StringArray | Floats:
        """Return canonical texts without the suffix, or numbers."""
        if self.range is not None:
            return numbers(cells, decimal)
        return canonical(cells, decimal, (lambda text: text.removesuffix(self.suffix)) if self.suffix else None)

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """By code or prefix, where these are not the classes themselves."""
        return self.recoding.taken(counted(texts)) if self.recoding is not None and self.recoding.renames else {}

    def encode(self, *values: Any) -> Encoded:
        """Return class names, or numbers clipped to the range; a label that is no class cannot be clipped."""
        (given,) = values
        if self.range is not None:
            return clip(given, *self.range)
        known = self.recoding
        codes = codes_of(given, self.classes) if known is None else recoded(given, known, self.classes)
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

    keys: ClassVar[tuple[str, ...]] = ("range", "centre", "scale", "currency", "thousands", "ordered")

    name: str
    range: tuple[float, float] | None
    missing: MissingRows | None = None
    centre: float | None = None
    log: bool = False
    currency: tuple[str, ...] = ()
    thousands: str = ""

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Column:
        """Return the declared column; one of ordered values where these are declared instead of a range."""
        if "ordered" in declaration:
            return Ordered.parse(name, missing, declaration, place)
        return cls.of_range(name, missing, declaration, place)

    @classmethod
    def of_range(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Numeric:
        """Return the column of numbers in a declared range."""
        low, high = declared_range(f"{place}: range", declaration.get("range"))
        scale, centre = declaration.get("scale", "linear"), declaration.get("centre")
        if scale not in ("linear", "log"):
            raise InputError(f"{place}: scale is {scale!r}; it must be linear or log")
        if centre is not None:
            if not low <= (value := float(numbers([centre])[0])) <= high:
                raise InputError(f"{place}: centre is {centre!r}; it must be a number in the range [{low:g}, {high:g}]")
            centre = value
        currency, thousands = declaration.get("currency"), declaration.get("thousands", "")
        listed = currency if isinstance(currency, list) else [currency]
        signs = () if currency is None else declared_texts(f"{place}: currency", listed)
        if thousands not in _THOUSANDS:
            raise InputError(
                f"{place}: thousands is {thousands!r}; it must be one of {', '.join(map(repr, _THOUSANDS))}"
            )
        return Numeric(name, (low, high), missing, centre, scale == "log", signs, thousands)

    @property
    def bound(self) -> str:
        """The range."""
        return "a finite number" if self.range is None else f"a number in [{self.range[0]:g}, {self.range[1]:g}]"

    def _plain(self, text: str) -> str:
        """Return a text without currency and thousands; as it is where its digits do not stand in groups of three.

        A decimal comma has become a point before, and a point between thousands a comma.
        """
        for sign in self.currency:
            text = re.sub(rf"^([+-]?)\s*{re.escape(sign)}\s*|\s*{re.escape(sign)}$", r"\1", text)
        mark = "," if self.thousands == "." else self.thousands
        grouped = mark and re.fullmatch(rf"[+-]?\d{{1,3}}({re.escape(mark)}\d{{3}})+(\.\d*)?", text)
        return text.replace(mark, "") if grouped else text

    def read(self, cells: Any, decimal: str = ".") -> pa.StringArray | Floats:
        """Return numbers."""
        return numbers(cells, decimal, self._plain if self.currency or self.thousands else None)

    def encode(self, *values: Any) -> Encoded:
        """Scale to [0, 1], clipping to the ends of the range."""
        (given,) = values
        if self.range is None:
            unclippable = ~np.isfinite(given)
            return Encoded(given[:, None], unclippable, unclippable)
        low, high = self.range
        clipped = clip(given, low, high)
        return Encoded((clipped.values - low) / (high - low), clipped.outside, clipped.unclippable)

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
class Ordered(Column):
    """Values in a declared order, such as brackets of ages, as one number: the place among them.

    Parameters
    ----------
    values : tuple of str
        The first lies at the lower end of the range, the last at the upper, and the others in equal steps between.
        A number within a bracket is none of them: it is outside the schema, and there is no end that it is beyond.
    """

    name: str
    values: tuple[str, ...]
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Ordered:
        """Return the declared column."""
        if beside := [key for key in Numeric.keys if key in declaration and key != "ordered"]:
            raise InputError(
                f"{place} has ordered and {beside[0]}; values in an order have no {beside[0]}, leave one out"
            )
        values = declared_texts(f"{place}: ordered", declaration["ordered"])
        if len(values) < 2:
            raise InputError(f"{place}: ordered is {list(values)}; declare at least two values, from low to high")
        return cls(name, values, missing)

    @property
    def bound(self) -> str:
        """The values."""
        return f"one of {shown(self.values)}"

    @property
    def written(self) -> frozenset[str]:
        """The values."""
        return frozenset(self.values)

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """By value."""
        rules = (Rule(value, f"{place} of {len(self.values)}") for place, value in enumerate(self.values, start=1))
        return Recoding(tuple(rules)).taken(counted(texts))

    def encode(self, *values: Any) -> Encoded:
        """Return the place in [0, 1]; what is none of the values cannot be clipped."""
        (texts,) = values
        codes = codes_of(texts, self.values)
        return Encoded((np.maximum(codes, 0) / (len(self.values) - 1))[:, None], codes < 0, codes < 0)


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
        if (
            not isinstance(between, list)
            or len(between) != 2
            or not all(isinstance(one, (str, int)) for one in between)
        ):
            raise InputError(f"{place}: between is {between!r}; it must name two columns: [admitted, discharged]")
        scaled = cls.of_range(name, missing, declaration, place)
        return cls(
            name,
            scaled.range,
            missing,
            scaled.centre,
            scaled.log,
            between=tuple(map(column_name, between)),
            formats=_formats(declaration, place),
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

    def read(self, cells: Any, decimal: str = ".") -> pa.StringArray | Floats:
        """Return days."""
        return days(cells, self.formats)

    def encode(self, *values: Any) -> Encoded:
        """Scale the number of days to [0, 1], clipping to the ends of the range; what is no day cannot be clipped."""
        first, last = values
        return Numeric.encode(self, last - first)


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
        return "an identifier: text or a whole number (of floats, whole ones below 2^53)"

    def encode(self, *values: Any) -> Encoded:
        """Return identifiers in their one spelling; what names nobody surely cannot be clipped."""
        names = identifiers(values[0])
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
