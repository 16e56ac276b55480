"""A table's columns in their own units: names, values, and numbers where a share of a declared range lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from storage.columns.categories import Boolean, Category
from storage.columns.column import Column, Floats, MissingRows
from storage.columns.dates import Date
from storage.columns.numeric import Numeric, Ordered
from storage.datasets import declared_table
from storage.errors import InputError
from storage.refs import DatasetRef, OnViolation, Scaling
from storage.schema import Schema, parse_schema
from tasks.runtime.settings import current_layout

Kind = Literal["number", "date", "ordered", "boolean", "category", "hashed"]
Worth = float | str
# A declared value, and one of float32 that a part of the range holds: by more than that it is never rounded.
_ROUNDED = 2.0**-21


@dataclass(frozen=True)
class Scale:
    """One column of a version, of those that its reference lists, or its numeric label.

    Parameters
    ----------
    name : str
        The declared column's; of a part of a date, with the part.
    kind : str
    values : tuple of str
        Declared ones, in order; of a hashed column its bins, which are not the values of any row.
    numbers : callable, optional
        From shares of the range, as bins part it, to numbers in the column's units: rising. Days since 1970-01-01 of
        dates. None where there is no such number.
    log : bool
        Whether equal parts of the range are equal on a logarithmic scale.
    whole : bool
        Whether its numbers are whole.
    missing : MissingRows or None
        What became of rows where it is missing.
    can_lack : bool
        Whether a row that counts can have none of a category's declared values: where it is missing, or where values
        that are not declared were clipped to none.
    """

    name: str
    kind: Kind
    values: tuple[str, ...] = ()
    numbers: Callable[[Floats], Floats] | None = None
    log: bool = False
    whole: bool = False
    missing: MissingRows | None = None
    can_lack: bool = False

    @property
    def discrete(self) -> bool:
        """Whether a number is one of a few declared values, in equal steps of the range."""
        return self.kind in ("ordered", "boolean")

    def places(self, bins: int) -> list[int]:
        """Return in which of so many bins each declared value lies; none where two share one."""
        steps = max(len(self.values) - 1, 1)
        if not self.discrete or len(self.values) > bins:
            return []
        return [min(int((place / steps + _ROUNDED) * bins), bins - 1) for place in range(len(self.values))]

    def whole_bars(self, bins: int, most: int) -> list[tuple[str, int]]:
        """Return bars of equally many whole numbers, each with the last of so many bins that it holds.

        None where numbers are not whole or lie on a logarithmic scale, or two of them are not two bins apart: the end
        of a bar then does not lie between two whole numbers for sure. The last bar may hold fewer.
        """
        if not self.whole or self.log or self.numbers is None:
            return []
        low, high = (round(float(end)) for end in self.numbers(np.array([0.0, 1.0])))
        if bins < 2 * (high - low):
            return []
        width = math.ceil((high - low + 1) / most)
        found = []
        for first in range(low, high + 1, width):
            last = min(first + width - 1, high)
            end = bins if last == high else round((last + 0.5 - low) / (high - low) * bins)
            found.append((f"{first:,}" if first == last else f"{first:,} to {last:,}", end - 1))
        return found

    def exact(self, share: float, toward: int = 0) -> Worth | None:
        """Return what lies at a share of the range, where it need not be a whole number: of a mean."""
        return replace(self, whole=False).worth(share, toward)

    def most_parts(self, parts: int) -> int:
        """Return how many parts the range has at most, a power of two: each holds a whole number, where all are."""
        while self.whole and self.numbers is not None and parts > 1:
            edges = self.numbers(np.arange(parts + 1) / parts)
            if (np.diff(edges) >= 1.0).all():
                break
            parts //= 2
        return parts

    def part(self, low: float, high: float) -> tuple[Worth | None, Worth | None]:
        """Return the ends of a part of the range, from one share to another: of whole numbers the first and last in it.

        A part holds its lower end, and its upper one only at the end of the range.
        """
        if not self.whole:
            return self.worth(low), self.worth(high)
        first = self.worth(low, 1)
        last = self.worth(high, -1)
        assert self.numbers is not None, "whole numbers are numbers"
        assert isinstance(last, float), "of whole numbers"
        at_edge = abs(last - float(self.numbers(np.array([high]))[0])) < 1e-6 * max(1.0, abs(last))
        return first, last - 1.0 if at_edge and high < 1.0 else last

    def worth(self, share: float, toward: int = 0) -> Worth | None:
        """Return what lies at a share of the range: a number, a day, or a declared value; None at no finite share.

        Parameters
        ----------
        share : float
            In [0, 1].
        toward : int
            What is between days, or values in an order: -1 for the one below, 1 for the one above, 0 for the nearest.
        """
        if not math.isfinite(share):
            return None
        if self.values:
            steps = len(self.values) - 1
            place = round(share * steps)
            if toward and 0.0 < share < 1.0:
                # The first value from here on, or the last one before here.
                place = math.ceil((share - _ROUNDED) * steps) - (toward > 0)
            return self.values[min(max(place, 0), steps)]
        assert self.numbers is not None, "what has no values has numbers"
        number = float(self.numbers(np.array([share]))[0])
        if self.whole:
            near = round(number)
            # Edges that are whole numbers are them to the last bits alone.
            exact = abs(number - near) < 1e-6 * max(1.0, abs(number))
            return float(near if exact or not toward else math.floor(number) if toward < 0 else math.ceil(number))
        if self.kind != "date":
            return number
        days = math.floor(number) if toward < 0 else math.ceil(number) if toward > 0 else round(number)
        return (_EPOCH + timedelta(days=days)).isoformat()


_EPOCH = date(1970, 1, 1)


def declared_schema(dataset: DatasetRef, table: Mapping[str, object] | None = None) -> Schema:
    """Return the schema under which a version's rows were encoded; its files are not opened for rows.

    Parameters
    ----------
    dataset : DatasetRef
    table : dict, optional
        How raw rows become features, for rows that other roots hold. Default: as it is registered with the version.

    Raises
    ------
    InputError
        If it has none whose columns could be counted, naming what is missing.
    """
    table = declared_table(current_layout(), dataset) if table is None else table
    if table is None or "schema" not in table or not dataset.columns:
        why = (
            "its rows came without a schema"
            if table is None or "schema" not in table
            else "a numeric column of its schema has no range, which bins need"
        )
        raise InputError(
            f"{dataset.name} has no declared columns: {why}; ingest a table under a schema that declares each column"
        )
    return parse_schema(table["schema"], f"schema of {dataset.name}", scaling=None)


def scales_of(dataset: DatasetRef, table: Mapping[str, object] | None = None) -> tuple[Scale, ...]:
    """Return the scale of each of a version's columns, in their order.

    Parameters
    ----------
    dataset, table
        As for :func:`declared_schema`.

    Raises
    ------
    InputError
        As :func:`declared_schema` does.
    """
    schema = declared_schema(dataset, table)
    table = declared_table(current_layout(), dataset) if table is None else table
    found = scales_under(schema, clips=table is not None and OnViolation(str(table["on_violation"])).clips)
    assert len(found) == len(dataset.columns), "a schema's places are its columns', one by one"
    return found


def scales_under(schema: Schema, *, clips: bool) -> tuple[Scale, ...]:
    """Return the scale of each of a schema's places, in their order; ``clips``: an unknown category is none."""
    return tuple(scale for column in schema.inputs for scale in _scales(schema, column, clips))


def label_of(dataset: DatasetRef, table: Mapping[str, object] | None = None) -> Scale:
    """Return the scale of a version's label: its classes, or a number; arguments as for :func:`declared_schema`."""
    name = declared_schema(dataset, table).label.name
    if dataset.label_range is None:
        return Scale(name, "category", dataset.classes)
    low, high = dataset.label_range
    return Scale(name, "number", numbers=lambda shares: low + shares * (high - low))


def _scales(schema: Schema, column: Column, clips: bool) -> Iterator[Scale]:
    rule, log = schema.rule(column), getattr(column, "log", False) and schema.scaling is Scaling.CENTRED
    parts = column.parts if isinstance(column, Date) else ("",)
    lacks = rule.keeps or clips
    of_numbers = [part for part in parts if part in ("days", "year")] if isinstance(column, Date) else parts
    for place, part in zip(range(column.numbers), of_numbers, strict=False):
        name = column.name if part in ("", "days") else f"{column.name} {part}"
        if isinstance(column, Boolean):
            yield Scale(name, "boolean", ("false", "true"), missing=rule)
        elif isinstance(column, Ordered):
            yield Scale(name, "ordered", column.values, missing=rule)
        else:
            kind: Kind = "date" if part == "days" else "number"
            whole = bool(getattr(column, "whole", False))
            yield Scale(
                name, kind, numbers=partial(_numbers, schema, column, place, part), log=log, whole=whole, missing=rule
            )
    if isinstance(column, Category):
        marked = tuple(f"bin {value}" for value in column.values) if column.hashed else column.values
        yield Scale(column.name, "hashed" if column.hashed else "category", marked, missing=rule, can_lack=lacks)
    elif isinstance(column, Date):
        ends = np.cumsum([column.numbers, *column.groups])
        of_groups = (part for part in parts if part in ("month", "weekday"))
        for part, (start, stop) in zip(of_groups, pairwise(ends), strict=True):
            name = f"{column.name} {part}"
            values = tuple(one.removeprefix(f"{name}=") for one in column.features[start:stop])
            yield Scale(name, "category", values, missing=rule, can_lack=lacks)


def _numbers(schema: Schema, column: Column, place: int, part: str, shares: Floats) -> Floats:
    """Return the numbers at some shares of what a number's feature can be."""
    shares = np.asarray(shares, dtype=np.float64)
    if schema.scaling is Scaling.CENTRED:
        low, high = column.place(np.array([np.zeros(column.width), np.ones(column.width)]))[:, place]
        placed = np.zeros((len(shares), column.width))
        placed[:, place] = low + shares * (high - low)
        shares = np.clip(column.unplace(placed)[:, place], 0.0, 1.0)
    if isinstance(column, Date):
        first, last = column.range
        if part == "year":
            return np.asarray(first.year + shares * max(last.year - first.year, 1))
        return np.asarray((first - _EPOCH).days + shares * (last - first).days)
    assert isinstance(column, Numeric), "a column of numbers has a range"
    assert column.range is not None, "a version lists columns only where each has a range"
    low, high = column.range
    return np.asarray(low + shares * (high - low))


def same_columns(one: Sequence[Scale], other: Sequence[Scale]) -> str | None:
    """Return in which column two versions differ, so that their bins are not the same; None in none."""
    ends = np.linspace(0.0, 1.0, 5)
    for mine, its in zip(one, other, strict=False):
        alike = (mine.name, mine.kind, mine.values, mine.log) == (its.name, its.kind, its.values, its.log)
        if alike and mine.numbers is not None and its.numbers is not None:
            alike = bool(np.array_equal(mine.numbers(ends), its.numbers(ends)))
        if not alike:
            return mine.name
    return None if len(one) == len(other) else max(one, other, key=len)[min(len(one), len(other))].name
