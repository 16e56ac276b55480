"""One of declared values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from storage.columns.column import (
    Column,
    Encoded,
    MissingRows,
    as_codes,
    as_numbers,
    column_type,
    declared_texts,
    one_hot,
    shown,
    typed_codes,
)


@column_type("category")
@dataclass(frozen=True)
class Category(Column):
    """One of declared values, one feature each (one-hot)."""

    keys: ClassVar[tuple[str, ...]] = ("values",)

    name: str
    values: tuple[str, ...]
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, given: Mapping[str, Any], place: str) -> Category:
        """Return the declared column."""
        return cls(name, declared_texts(f"{place}: values", given.get("values")), missing)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {value: place for place, value in enumerate(self.values)}

    @property
    def bound(self) -> str:
        """The values."""
        return f"one of {shown(self.values)}"

    @property
    def written(self) -> frozenset[str]:
        """The values."""
        return frozenset(self.values)

    @property
    def features(self) -> tuple[str, ...]:
        """One a value."""
        return tuple(f"{self.name}={value}" for value in self.values)

    @property
    def numbers(self) -> int:
        """None."""
        return 0

    @property
    def groups(self) -> int:
        """All features are one group."""
        return 1

    @property
    def text(self) -> bool:
        """Whether no value reads as a number, nor as a truth value."""
        reads_as_flag = {value.lower() for value in self.values} & {"true", "false"}
        return not reads_as_flag and bool(np.isnan(as_numbers(self.values)).all())

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """One-hot; an unknown value becomes zeros."""
        codes = as_codes(cells, self._places)
        return Encoded(one_hot(codes, self.width), codes < 0, np.zeros(len(codes), dtype=bool))

    def typed(self, cells: Any, markers: frozenset[str]) -> NDArray[Any] | None:
        """One-hot, where all values are declared."""
        codes = typed_codes(cells, self._places, markers)
        return None if codes is None else one_hot(codes, self.width)
