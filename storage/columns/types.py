"""The types of columns, by the names that schemas give them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from storage.cells import column_name
from storage.columns.categories import Boolean, Category
from storage.columns.column import Column
from storage.columns.dates import Date, Days
from storage.columns.declarations import known_keys, missing_rule
from storage.columns.ignored import Ignored
from storage.columns.label import Label
from storage.columns.numeric import Numeric
from storage.columns.person import Person
from storage.documents import as_text
from storage.errors import InputError
from storage.names import require_visible


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
    if declared is None:
        raise InputError(f"{place}, column {number}: a column must be a mapping with a name and a type")
    as_text(f"{place}, column {number}: name", declared, column_name)
    name, kind = column_name(declared), declaration.get("type")
    require_visible(f"{place}: the name of column {number}", name)
    where = f"{place}, column {name}"
    if not isinstance(kind, str) or kind not in TYPES:
        raise InputError(f"{where}: type is {kind!r}; it must be one of {', '.join(sorted(TYPES))}")
    cls = TYPES[kind]
    known_keys(where, declaration, ("name", "type", *(("missing",) if cls.used else ()), *cls.keys))
    return cls.parse(name, missing_rule(f"{where}: missing", declaration.get("missing")), declaration, where)


TYPES: Mapping[str, type[Column]] = MappingProxyType(
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
