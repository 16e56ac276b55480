"""Ignored columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from storage.columns.column import Column, Encoded, MissingRows


@dataclass(frozen=True, slots=True)
class Ignored(Column):
    """An ignored column."""

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
