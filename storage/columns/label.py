"""What is to be predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    declared_range,
    declared_texts,
    shown,
    typed_codes,
    typed_numbers,
)
from storage.errors import InputError


@column_type("label")
@dataclass(frozen=True)
class Label(Column):
    """What is to be predicted: one of declared classes, or a number in a declared range.

    Parameters
    ----------
    classes : tuple of str
        Their names in index order; empty for a number.
    range : (float, float) or None
    suffix : str
        What follows a class in the file and is cut off.
    codes : mapping of str to str
        How classes are written in the file where that is not their name.
    """

    keys: ClassVar[tuple[str, ...]] = ("classes", "range", "suffix")

    name: str
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    suffix: str = ""
    missing: MissingRows | None = None
    codes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, given: Mapping[str, Any], place: str) -> Label:
        """Return the declared column."""
        if missing is not None and missing.keeps:
            raise InputError(f"{place}: missing is {missing}; a row without a label can only be refused or dropped")
        if ("classes" in given) == ("range" in given):
            raise InputError(f"{place} must have either classes or a range")
        if "range" in given:
            return cls(name, range=declared_range(f"{place}: range", given["range"]), missing=missing)
        found = given["classes"]
        written = declared_texts(f"{place}: classes", list(found) if isinstance(found, (list, dict)) else None)
        classes = declared_texts(f"{place}: classes", list(found.values())) if isinstance(found, dict) else written
        if len(classes) < 2:
            raise InputError(f"{place}: classes are {list(classes)}; declare at least two")
        codes = dict(zip(written, classes, strict=True)) if isinstance(found, dict) else {}
        return cls(name, classes, suffix=str(given.get("suffix", "")), missing=missing, codes=codes)

    @cached_property
    def _places(self) -> dict[str, int]:
        written = self.codes or dict.fromkeys(self.classes)
        return {text: place for place, text in enumerate(written)}

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
        """Classes or range."""
        if self.range is not None:
            return f"a number in [{self.range[0]:g}, {self.range[1]:g}]"
        return f"one of {shown(tuple(self._places))}"

    @property
    def decimal(self) -> bool:
        """Whether it is a number."""
        return self.range is not None

    @property
    def written(self) -> frozenset[str]:
        """How the classes are written."""
        return frozenset(self._places)

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Return class names, or numbers clipped to the range; a label that is no class cannot be clipped."""
        if self.range is not None:
            numbers = as_numbers(cells)
            low, high = self.range
            outside = ~((numbers >= low) & (numbers <= high))
            return Encoded(np.clip(numbers, low, high)[:, None], outside, np.isnan(numbers))
        if self.suffix:
            cells = [cell.removesuffix(self.suffix) if isinstance(cell, str) else cell for cell in cells]
        codes = as_codes(cells, self._places)
        return Encoded(np.array(self.classes)[codes][:, None], codes < 0, codes < 0)

    def typed(self, cells: Any, markers: frozenset[str]) -> NDArray[Any] | None:
        """Return class names or numbers, where all are declared or in the range."""
        if self.range is not None:
            numbers = typed_numbers(cells, self.range, markers)
            return None if numbers is None else numbers[:, None]
        codes = typed_codes(cells, self._places, markers, self.suffix)
        return None if codes is None else np.array(self.classes)[codes][:, None]
