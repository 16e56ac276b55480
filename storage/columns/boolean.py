"""Yes or no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from storage.columns.column import (
    Column,
    Encoded,
    MissingRows,
    as_codes,
    column_type,
    declared_texts,
    typed_codes,
)
from storage.errors import InputError
from storage.source import canonical_label

_USUAL = MappingProxyType({"false": 0, "true": 1, "no": 0, "yes": 1, "f": 0, "t": 1, "n": 0, "y": 1, "0": 0, "1": 1})


@column_type("boolean")
@dataclass(frozen=True)
class Boolean(Column):
    """Yes or no, one feature.

    Parameters
    ----------
    values : (str, str) or None
        How no and yes are written, in this order; true/false, yes/no, t/f, y/n and 1/0 in any case where None.
    """

    keys: ClassVar[tuple[str, ...]] = ("values",)

    name: str
    values: tuple[str, ...] | None = None
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, given: Mapping[str, Any], place: str) -> Boolean:
        """Return the declared column."""
        if "values" not in given:
            return cls(name, None, missing)
        values = declared_texts(f"{place}: values", given["values"])
        if len(values) != 2:
            raise InputError(f"{place}: values are {list(values)}; declare two, what means no first")
        return cls(name, values, missing)

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return _USUAL if self.values is None else {self.values[0]: 0, self.values[1]: 1}

    @property
    def bound(self) -> str:
        """The two values."""
        return "true or false, yes or no, 1 or 0" if self.values is None else f"{self.values[0]} or {self.values[1]}"

    @property
    def written(self) -> frozenset[str]:
        """The two values, where declared."""
        return frozenset(self.values or ())

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """0 or 1; what is neither cannot be clipped."""
        if self.values is None:
            cells = [canonical_label(cell).lower() for cell in cells]
        codes = as_codes(cells, self._places)
        return Encoded(np.maximum(codes, 0).astype(np.float64)[:, None], codes < 0, codes < 0)

    def typed(self, cells: Any, markers: frozenset[str]) -> NDArray[Any] | None:
        """0 or 1, where every cell is one of the two values as declared, or in lower case."""
        codes = typed_codes(cells, self._places, markers)
        return None if codes is None else codes.astype(np.float64)[:, None]
