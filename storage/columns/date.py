"""Days in a declared range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, ClassVar

import numpy as np

from storage.columns.column import Column, Encoded, MissingRows, column_type, one_hot
from storage.errors import InputError

# Numbers come first, then the one-hot groups.
_PARTS = ("days", "year", "month", "weekday")
_MONTHS = tuple(f"{month:02d}" for month in range(1, 13))
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@column_type("date")
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
    format : str or None
        As of :meth:`datetime.datetime.strptime`; ISO 8601 (2026-01-31, with a time or without) where None.
    """

    keys: ClassVar[tuple[str, ...]] = ("range", "parts", "format")

    name: str
    range: tuple[date, date]
    parts: tuple[str, ...] = ("days",)
    format: str | None = None
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, given: Mapping[str, Any], place: str) -> Date:
        """Return the declared column."""
        bounds = given.get("range")
        days = [_day(value, None) for value in bounds] if isinstance(bounds, list) else []
        if len(days) != 2 or days[0] is None or days[1] is None or not days[0] < days[1]:
            raise InputError(
                f"{place}: range is {bounds!r}; it must be two days, the first one first: [2020-01-01, 2026-12-31]"
            )
        parts = given.get("parts", ["days"])
        if not isinstance(parts, list) or not parts or not set(map(str, parts)) <= set(_PARTS):
            raise InputError(f"{place}: parts are {parts!r}; they must be some of {', '.join(_PARTS)}")
        form = given.get("format")
        if form is not None and not isinstance(form, str):
            raise InputError(f'{place}: format is {form!r}; it must be text such as "%d.%m.%Y"')
        ordered = tuple(part for part in _PARTS if part in parts)
        return cls(name, (days[0], days[1]), ordered, form, missing)

    @property
    def bound(self) -> str:
        """The range and how days are written."""
        return f"a day from {self.range[0]} to {self.range[1]}, written {self.format or '2026-01-31'}"

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
        days = [_day(cell, self.format) for cell in cells]
        hopeless = np.array([day is None for day in days], dtype=bool)
        outside = np.array([day is None or not first <= day <= last for day in days], dtype=bool)
        within = [first if day is None else min(max(day, first), last) for day in days]
        years = max(last.year - first.year, 1)
        columns = {
            "days": np.array([[(day - first).days / (last - first).days] for day in within]),
            "year": np.array([[(day.year - first.year) / years] for day in within]),
            "month": one_hot(np.array([day.month - 1 for day in within], dtype=np.int64), 12),
            "weekday": one_hot(np.array([day.weekday() for day in within], dtype=np.int64), 7),
        }
        values = np.concatenate([columns[part].reshape(len(days), -1) for part in self.parts], axis=1)
        values[hopeless] = 0.0
        return Encoded(values, outside, hopeless)


def _day(cell: Any, form: str | None) -> date | None:
    """Return the day that a cell names; None where it names none."""
    if isinstance(cell, datetime):
        return cell.date()
    if isinstance(cell, date):
        return cell
    try:
        text = str(cell).strip()
        return (datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)).date()
    except ValueError:
        return None
