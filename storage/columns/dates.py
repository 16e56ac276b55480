"""Columns of dates: parts of the calendar, or days since a first one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from storage.cells import column_name, day_of, days, two_digit_year
from storage.columns.coding import one_hot
from storage.columns.column import Column, Encoded, Floats, MissingRows
from storage.columns.numeric import Numeric
from storage.documents import as_text
from storage.errors import InputError

# Numbers come first, then the one-hot groups.
_PARTS = ("days", "year", "month", "weekday")
_MONTHS = tuple(f"{month:02d}" for month in range(1, 13))
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CALENDAR = MappingProxyType({"month": _MONTHS, "weekday": _WEEKDAYS})
"""The values of the parts of a date that are one-hot."""


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
        where there is none. A year of two digits gets the century that brings it into the range; a range of a hundred
        years or more would admit two.
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
            raise InputError(f"{place}: range is {bounds!r}; it must be two days in order: [2020-01-01, 2026-12-31]")
        parts = declaration.get("parts", ["days"])
        if not isinstance(parts, list) or not parts or not set(map(str, parts)) <= set(_PARTS):
            raise InputError(f"{place}: parts are {parts!r}; they must be some of {', '.join(_PARTS)}")
        ordered = tuple(part for part in _PARTS if part in parts)
        formats = _formats(declaration, place)
        if ends[1].year - ends[0].year >= _CENTURY and (short := next(filter(two_digit_year, formats), None)):
            raise InputError(
                f"{place}: format is {short!r}with two-digit years, which are ambiguous in the range {ends[0]} to "
                f"{ends[1]} (for {ends[0].year % _CENTURY:02d}); declare a range of fewer than {_CENTURY} years, or "
                "write years with four digits (%Y)"
            )
        return cls(name, (ends[0], ends[1]), ordered, formats, missing)

    @property
    def bound(self) -> str:
        """The range and how days are written."""
        return f"a day from {self.range[0]} to {self.range[1]}, written {' or '.join(self.formats) or '2026-01-31'}"

    @property
    def features(self) -> tuple[str, ...]:
        """Those of its parts."""
        return tuple(
            f"{self.name} {part}{end}"
            for part in self.parts
            for end in ([f"={value}" for value in CALENDAR[part]] if part in CALENDAR else [""])
        )

    @property
    def numbers(self) -> int:
        """Days and year."""
        return len({"days", "year"} & set(self.parts))

    @property
    def groups(self) -> tuple[int, ...]:
        """Month and weekday."""
        return tuple(len(CALENDAR[part]) for part in self.parts if part in CALENDAR)

    def read(self, cells: Any, decimal: str = ".") -> pa.StringArray | Floats:
        """Return days."""
        return days(cells, self.formats, (self.range[0].year, self.range[1].year))

    def encode(self, *values: Any) -> Encoded:
        """Encode the parts, clipping to the ends of the range; an invalid day cannot be clipped."""
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
_CENTURY = 100


def _formats(declaration: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """Return how days are written."""
    form = declaration.get("format", [])
    forms = form if isinstance(form, list) else [form]
    if not all(isinstance(one, str) for one in forms):
        raise InputError(f'{place}: format is {form!r}; it must be text such as "%d.%m.%Y", or a list of such texts')
    for written in forms:
        if not _names_days(written):
            raise InputError(
                f'{place}: format is {written!r}; it must name a year, a month and a day, such as "%d.%m.%Y" '
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


@dataclass(frozen=True, slots=True)
class Days(Numeric):
    """Number of days between two dates of the same row, in a declared range.

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
        if not isinstance(between, list) or len(between) != 2:
            raise InputError(f"{place}: between is {between!r}; it must name two columns: [admitted, discharged]")
        formats = _formats(declaration, place)
        if short := next(filter(two_digit_year, formats), None):
            raise InputError(
                f"{place}: format is {short!r}with two-digit years, which leave the century open; write years with "
                "four digits (%Y)"
            )
        scaled = cls.of_range(name, missing, declaration, place)
        return cls(
            name,
            scaled.range,
            missing,
            scaled.centre,
            scaled.log,
            between=tuple(column_name(as_text(f"{place}: between", one, column_name)) for one in between),
            formats=formats,
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
        """Scale the number of days to [0, 1], clipping to the ends of the range; an invalid day cannot be clipped."""
        first, last = values
        return Numeric.encode(self, last - first)
