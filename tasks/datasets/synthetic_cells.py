"""Drawn places of columns as raw cells of a schema: declared values, and points of a public grid within bins.

Nothing here sees a row. A bin of a number holds 64 points, rounded to as many digits as tell them apart, or the whole
numbers in it; a bin without any takes the nearest one, and one with more than 2^32 has equally spaced ones of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

import numpy as np

from dpalgos.rows import Floats, Ints
from dpalgos.synthesis.drawing import MOST_POINTS, Drawing, Drawn
from storage.columns.categories import Boolean, Category
from storage.columns.column import Column
from storage.columns.dates import Date, Days
from storage.columns.label import Label
from storage.columns.numeric import Numeric, Ordered
from storage.columns.person import Person
from storage.errors import InputError
from storage.recoding import Recoding
from storage.refs import DatasetRef
from storage.schema import Schema
from tasks.datasets.scales import Scale, declared_schema, label_of, scales_of

_POINTS = 64
_BEYOND = 2.0**63
_EPOCH = date(1970, 1, 1)


def require_drawable(schema: Schema) -> None:
    """Refuse a schema of which a column's raw cells do not follow from its features.

    Raises
    ------
    InputError
        Naming all such columns, and the way out of each.
    """
    if refused := [said for column in schema.inputs if (said := _undrawable(column))]:
        raise InputError(f"no synthetic rows can be drawn under this schema: {'; '.join(refused)}")


def _undrawable(column: Column) -> str:
    """Return why a column's raw cells do not follow from its features, and the way out; empty where they do."""
    if isinstance(column, Category) and column.hashed:
        return (
            f"column {column.name} is hashed, and a bin does not determine a value; declare its values, or give it the "
            "type ignore"
        )
    if isinstance(column, Days):
        return (
            f"column {column.name} is computed from {' and '.join(column.between)} and does not determine them; "
            "declare both as dates, or give it the type ignore"
        )
    if isinstance(column, Date) and "days" not in column.parts:
        return f"column {column.name} has the parts {', '.join(column.parts)}, which do not determine the day; add days"
    if isinstance(column, Numeric) and column.whole and column.range is not None:
        low, high = column.range
        if low < -_BEYOND or high >= _BEYOND or high - low >= _BEYOND:
            return (
                f"column {column.name} has whole numbers from {low:g} to {high:g}, and drawn ones have 64 bits; "
                "declare a narrower range, or omit whole"
            )
    return ""


def places_written(dataset: DatasetRef) -> dict[str, int]:
    """Return by which of the counted columns each column of the table is written: of a date by its days, the first."""
    found, at = {}, 0
    for column in declared_schema(dataset).columns:
        if column.width and not isinstance(column, Label | Person):
            found[column.name] = at
            at += column.numbers + len(column.groups)
    return found


def raw_cells(dataset: DatasetRef, drawing: Drawing, drawn: Drawn, bins: int) -> dict[str, list[object]]:
    """Return drawn rows as the cells of a table: by column, in the schema's order, None where a cell is missing.

    Parameters
    ----------
    dataset : DatasetRef
        The version whose columns were counted.
    drawing : Drawing
    drawn : Drawn
        Places of its columns, in their order.
    bins : int
        T, of each number.
    """
    schema, scales, written = declared_schema(dataset), scales_of(dataset), places_written(dataset)
    found: dict[str, list[object]] = {}
    for column in schema.columns:
        if isinstance(column, Label):
            found[column.name] = _label(dataset, column, drawing, drawn.labels, bins)
        elif isinstance(column, Person):
            found[column.name] = [f"synthetic-{row + 1}" for row in range(drawing.rows)]
        elif column.width:
            at = written[column.name]
            found[column.name] = list(_cells(column, scales[at], drawing, f"{at}", drawn.places[:, at], bins))
        else:
            # So that what reads the owner's file by its columns reads drawn rows too.
            found[column.name] = [None] * drawing.rows
    return found


def _cells(
    column: Column, scale: Scale, drawing: Drawing, step: str, places: Ints, bins: int
) -> Iterator[float | int | str | None]:
    if isinstance(column, Category):
        values = len(scale.values)
        if scale.missing is None or not scale.missing.keeps:
            # A row without it would be refused: what noise or clipped values have counted there is drawn among these.
            others = drawing.points(step, np.zeros_like(places), np.array([values]))
            places = np.where(places == values, others, places)
        with_missing = [*_written(column.recoding, scale.values), None]
        yield from (with_missing[place] for place in places)
        return
    if isinstance(column, Boolean | Ordered):
        steps = len(scale.values) - 1
        nearest = np.rint((np.minimum(places, bins - 1) + 0.5) / bins * steps).astype(np.int64)
        recoding = column.recoding if isinstance(column, Boolean) else None
        written = _written(recoding, scale.values)
        yield from (None if place == bins else written[value] for place, value in zip(places, nearest, strict=True))
        return
    numbers = _numbers(scale, drawing, step, np.minimum(places, bins - 1), bins)
    if isinstance(column, Date):
        form = column.formats[0] if column.formats else "%Y-%m-%d"
        for place, number in zip(places, numbers, strict=True):
            yield None if place == bins else (_EPOCH + timedelta(days=int(number))).strftime(form)
        return
    for place, number in zip(places, numbers.tolist(), strict=True):
        yield None if place == bins else number


def _label(dataset: DatasetRef, label: Label, drawing: Drawing, places: Ints, bins: int) -> list[object]:
    if dataset.label_range is None:
        written = _written(label.recoding, dataset.classes)
        return [written[place] for place in places]
    return list(_numbers(label_of(dataset), drawing, "label", places, bins).tolist())


def _written(recoding: Recoding | None, values: Sequence[str]) -> list[str]:
    """Return how each value is written in a file: of several codes by the first that is declared."""
    if recoding is None:
        return list(values)
    codes: dict[str, str] = {}
    for rule in recoding.declared:
        codes.setdefault(rule.value, rule.code)
    return [codes[value] for value in values]


def _numbers(scale: Scale, drawing: Drawing, step: str, places: Ints, bins: int) -> Floats | Ints:
    """Return a point of the grid in each bin, whole where the column's numbers are."""
    assert scale.numbers is not None, "what has no values has numbers"
    edges = np.asarray(scale.numbers(np.arange(bins + 1) / bins), dtype=np.float64)
    if scale.whole or scale.kind == "date":
        # A part holds its lower edge, and edges that are whole are so to the last bits alone.
        near = np.rint(edges)
        edges = np.where(np.abs(edges - near) < 1e-6 * np.maximum(1.0, np.abs(edges)), near, edges)
        first, last = np.ceil(edges[:-1]), np.ceil(edges[1:]) - 1.0
        last[-1] = np.floor(edges[-1])
        middle = np.clip(np.rint((edges[:-1] + edges[1:]) / 2.0), np.ceil(edges[0]), np.floor(edges[-1]))
        held = last >= first
        first = np.where(held, first, middle).astype(np.int64)
        points = np.where(held, last - first + 1, 1).astype(np.int64)
        # Rounded up; 1 where one draw reaches each of a bin's numbers.
        apart = -(-points // MOST_POINTS)
        drawn = drawing.points(step, places, -(-points // apart))
        return np.asarray(first[places] + drawn * apart[places], dtype=np.int64)
    low, width = edges[:-1][places], np.diff(edges)[places]
    point = drawing.points(step, places, np.full(bins, _POINTS, dtype=np.int64))
    digits = 10.0 ** np.ceil(-np.log10(width / _POINTS))
    return np.asarray(np.clip(np.rint((low + (point + 0.5) / _POINTS * width) * digits) / digits, edges[0], edges[-1]))
