"""Every kind of column of a schema, and what becomes of cells in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from storage.columns.column import Encoded
from storage.schema import Schema, Table, parse_schema

VALUES = ["0", "1.0", "2.5", 0.1, "1e-05", "007", "S\u00fcd", "Ost", "2026-01-31", "True", "17", "9007199254740993"]
VALUES += [
    "2026-01-31 13:05:00",
    "2026-01-31 12:05:00+00:00",
    "1 days",
    "05:06:07",
    "1.50",
    "-1",
    "False",
    "100",
    "FREE",
]
KINDS: dict[str, dict[str, Any]] = {
    "numbers": {"type": "numeric", "range": [0, 100]},
    "logarithms": {"type": "numeric", "range": [-1e6, 1e6], "scale": "log"},
    "money": {"type": "numeric", "range": [0, 100], "currency": "€", "thousands": ","},
    "values": {"type": "category", "values": [one for one in VALUES if one != "1.50"]},
    "values, the marker among them": {"type": "category", "values": ["99", "S\u00fcd"]},
    "bins": {"type": "category", "hash": 997},
    "codes": {"type": "category", "values": {"99": "many", "S\u00fcd": "south", "1.5": "south", "2*": "other"}},
    "beginnings": {"type": "category", "first": 2, "values": ["99", "S\u00fc", "Tr", "20"]},
    "bins of beginnings": {"type": "category", "first": 2, "hash": 31},
    "an order": {"type": "numeric", "ordered": ["1", "99", "S\u00fcd", "True"]},
    "flags": {"type": "boolean"},
    "many words": {"type": "boolean", "values": {"0": False, "1": True, "99": True, "S*": False}},
    "two words": {"type": "boolean", "values": ["0", "1"]},
    "days": {"type": "date", "range": ["2020-01-01", "2029-12-31"], "parts": ["days", "year", "month", "weekday"]},
    "classes": {"type": "label", "classes": {"1": "yes", "0": "no", "99": "S\u00fcd", "S\u00fcd": "x", "True": "true"}},
    "a target": {"type": "label", "range": [0, 50]},
    "people": {"type": "person"},
}
MARKERS = {"marker": ["", 99, "k.A.", "2026-03-29"], "rows": "drop"}


def schema_of(kind: str) -> Schema:
    others: list[dict[str, Any]] = [{"name": "other", "type": "boolean"}]
    others += [] if KINDS[kind]["type"] == "label" else [{"name": "label", "type": "label", "range": [0, 1]}]
    return parse_schema({"columns": [{"name": "x", **KINDS[kind]}, *others], "missing": MARKERS}, "schema")


def means(schema: Schema, cells: Any) -> tuple[Any, ...]:
    """Return all that becomes of cells in the first column of a schema."""
    (found,) = schema.examine(Table({"x": cells}, np.arange(len(cells)), "rows"), schema.columns[:1])
    values: Encoded = found.encoded
    # Of what is refused nothing is kept.
    kept = [
        None if gone else row
        for row, gone in zip(values.values.tolist(), values.unclippable | found.missing, strict=True)
    ]
    return found.missing.tolist(), values.outside.tolist(), values.unclippable.tolist(), kept
