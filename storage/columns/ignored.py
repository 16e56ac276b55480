"""A column that is not looked at: identifiers, free text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from storage.columns.column import Column, Encoded, MissingRows, column_type


@column_type("ignore")
@dataclass(frozen=True, slots=True)
class Ignored(Column):
    """A column that is not looked at."""

    used: ClassVar[bool] = False

    name: str
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, given: Mapping[str, Any], place: str) -> Ignored:
        """Return the declared column."""
        return cls(name)

    @property
    def features(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def numbers(self) -> int:
        """None."""
        return 0

    @property
    def bound(self) -> str:
        """Anything."""
        return "anything"

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Nothing."""
        none = np.zeros(len(cells), dtype=bool)
        return Encoded(np.zeros((len(cells), 0)), none, none)
