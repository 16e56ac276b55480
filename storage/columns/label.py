"""The label: the column that is predicted, as classes or as numbers of a range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from storage.cells import canonical_text, canonical_texts, numbers
from storage.columns.coding import clip, codes_of, counted, recoded
from storage.columns.column import Column, Encoded, Floats, MissingRows
from storage.columns.declarations import declared_codes, declared_range, shown
from storage.documents import as_text
from storage.errors import InputError
from storage.recoding import Recoding


@dataclass(frozen=True)
class Label(Column):
    """The label: one of the declared classes, or a number in a declared range.

    Parameters
    ----------
    classes : tuple of str
        Their names in index order; empty for a number.
    range : (float, float) or None
    suffix : str
        What follows a class in the file and is cut off.
    recoding : Recoding or None
        Which codes mean the classes; each means itself where None.
    positive : str
        Of two classes the one that is looked for; empty where none is declared. Rows are encoded alike with it.
    """

    keys: ClassVar[tuple[str, ...]] = ("classes", "range", "suffix", "first", "positive")
    essential: ClassVar[bool] = True

    name: str
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    suffix: str = ""
    missing: MissingRows | None = None
    recoding: Recoding | None = None
    positive: str = ""

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Label:
        """Return the declared column."""
        if missing is not None and missing.keeps:
            raise InputError(
                f"{place}: missing is {missing}; give refuse or drop, the only rules for a row without a label"
            )
        if ("classes" in declaration) == ("range" in declaration):
            raise InputError(f"{place} must have either classes or a range")
        if "range" in declaration:
            if "positive" in declaration:
                raise InputError(f"{place}: positive applies to classes, and this label is numeric; omit it")
            if "first" in declaration:
                raise InputError(f"{place}: first applies to classes, and this label is numeric; omit it")
            return cls(name, range=declared_range(f"{place}: range", declaration["range"]), missing=missing)
        recoding = declared_codes(place, "classes", declaration)
        if len(recoding.values) < 2:
            raise InputError(f"{place}: classes are {list(recoding.values)}; declare at least two")
        suffix = str(as_text(f"{place}: suffix", declaration.get("suffix", "")))
        positive = canonical_text(as_text(f"{place}: positive", declaration.get("positive", ""), canonical_text)) or ""
        if positive and (len(recoding.values) != 2 or positive not in recoding.values):
            raise InputError(
                f"{place}: positive is {positive!r}; it must be one of two classes, and the classes are "
                f"{shown(recoding.values)}; correct or omit it"
            )
        return cls(name, recoding.values, suffix=suffix, missing=missing, recoding=recoding, positive=positive)

    @property
    def _texts(self) -> tuple[str, ...]:
        """The written names of the classes."""
        return self.classes if self.recoding is None else tuple(self.recoding.rules)

    @property
    def bound(self) -> str:
        """Classes or range."""
        if self.range is not None:
            return f"a number in [{self.range[0]:g}, {self.range[1]:g}]"
        return f"one of {shown(self._texts)}" + ("" if self.recoding is None else self.recoding.ending)

    @property
    def written(self) -> frozenset[str]:
        """The written names of the classes."""
        return frozenset(self.classes) if self.recoding is None else self.recoding.written

    def read(self, cells: Any, decimal: str = ".") -> pa.StringArray | Floats:
        """Return canonical texts without the suffix, or numbers."""
        if self.range is not None:
            return numbers(cells, decimal)
        return canonical_texts(cells, decimal, (lambda text: text.removesuffix(self.suffix)) if self.suffix else None)

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """By code or prefix, where these are not the classes themselves."""
        return self.recoding.taken(counted(texts)) if self.recoding is not None and self.recoding.renames else {}

    def encode(self, *values: Any) -> Encoded:
        """Return class names, or numbers clipped to the range; a label outside the classes cannot be clipped."""
        (given,) = values
        if self.range is not None:
            return clip(given, *self.range)
        known = self.recoding
        codes = codes_of(given, self.classes) if known is None else recoded(given, known, self.classes)
        return Encoded(np.array(self.classes)[codes][:, None], codes < 0, codes < 0)
