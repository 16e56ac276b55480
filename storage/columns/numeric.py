"""Columns of numbers in a declared range, or of values in a declared order, as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from storage.cells import numbers
from storage.columns.coding import clip, codes_of, counted
from storage.columns.column import Column, Encoded, Floats, MissingRows
from storage.columns.declarations import declared_range, declared_texts, shown
from storage.errors import InputError
from storage.recoding import Recoding, Rule

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
        Text before or after a number that is not part of it: "€", "EUR".
    thousands : str
        What stands between groups of three digits, as in the file; none where empty.
    whole : bool
        Whether its numbers are whole: what is released of it is then said in whole numbers. Rows are encoded alike.
    """

    keys: ClassVar[tuple[str, ...]] = ("range", "centre", "scale", "currency", "thousands", "whole", "ordered")

    name: str
    range: tuple[float, float] | None
    missing: MissingRows | None = None
    centre: float | None = None
    log: bool = False
    currency: tuple[str, ...] = ()
    thousands: str = ""
    whole: bool = False

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
        whole = declaration.get("whole", False)
        if not isinstance(whole, bool):
            raise InputError(f"{place}: whole is {whole!r}; it must be true or false")
        if whole and not (low.is_integer() and high.is_integer()):
            raise InputError(f"{place}: range is [{low:g}, {high:g}] and whole is true; its ends must be whole numbers")
        return Numeric(name, (low, high), missing, centre, scale == "log", signs, thousands, whole)

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
        A number within a bracket is outside the schema and cannot be clipped, because it lies beyond neither end.
    """

    name: str
    values: tuple[str, ...]
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Ordered:
        """Return the declared column."""
        if beside := [key for key in Numeric.keys if key in declaration and key != "ordered"]:
            raise InputError(f"{place} has ordered and {beside[0]}, which exclude each other; remove one")
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
        """Return the place in [0, 1]; an unknown value cannot be clipped."""
        (texts,) = values
        codes = codes_of(texts, self.values)
        return Encoded((np.maximum(codes, 0) / (len(self.values) - 1))[:, None], codes < 0, codes < 0)
