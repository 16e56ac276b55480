"""The column that names whose a row is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from storage.columns.column import Column, Encoded, MissingRows
from storage.errors import InputError
from storage.names import require_visible
from storage.people import MOST_ROWS, People, identifiers, named


@dataclass(frozen=True, slots=True)
class Person(Column):
    """Column of the person to whom a row belongs. The unit is a person with all rows; the column is not a feature.

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
            raise InputError(
                f"{place}: missing is {missing}; give refuse or drop, the only rules for a row without a person"
            )
        namespace = declaration.get("namespace", "")
        if not isinstance(namespace, str):
            raise InputError(f"{place}: namespace is {namespace!r}; it must be text, such as hospital-mrn")
        require_visible(f"{place}: namespace", namespace)
        return cls(name, People(name, declaration.get("rows_per_person", MOST_ROWS), namespace.strip()), missing)

    @property
    def bound(self) -> str:
        """Identifiers."""
        return "an identifier: text or a whole number (of floats, whole ones below 2^53)"

    def encode(self, *values: Any) -> Encoded:
        """Return identifiers in their one spelling; an ambiguous identifier cannot be clipped."""
        names = identifiers(values[0])
        nobody = ~named(names)
        return Encoded(names[:, None], nobody, nobody)
