"""Columns of a declared set of values: booleans and categories."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.columns.coding import codes_of, counted, one_hot, recoded
from storage.columns.column import Column, Encoded, MissingRows
from storage.columns.declarations import declared_codes, declared_texts, shown
from storage.errors import InputError
from storage.recoding import Recoding, first_characters, items_of

USUAL_FLAGS = MappingProxyType(
    {"false": 0, "true": 1, "no": 0, "yes": 1, "f": 0, "t": 1, "n": 0, "y": 1, "0": 0, "1": 1}
)
"""How no and yes are usually written, in lower case."""
_FLAGS = ("false", "true")


@dataclass(frozen=True)
class Boolean(Column):
    """Yes or no, one feature.

    Parameters
    ----------
    recoding : Recoding or None
        Codes of ``"false"`` and ``"true"``; true/false, yes/no, t/f, y/n and 1/0 in any case where None.
    """

    keys: ClassVar[tuple[str, ...]] = ("values",)

    name: str
    recoding: Recoding | None = None
    missing: MissingRows | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Boolean:
        """Return the declared column."""
        if "values" not in declaration:
            return cls(name, None, missing)
        declared, where = declaration["values"], f"{place}: values"
        if (items := items_of(declared)) is None:
            values = declared_texts(where, declared)
            if len(values) != 2:
                raise InputError(
                    f"{place}: values are {list(values)}; declare two values, no first, or the meaning of each code: "
                    '{"No": false, "Up": true, "Down": true}'
                )
            return cls(name, Recoding.of(where, values, _FLAGS, None, named=False), missing)
        for code, meant in items:
            if not isinstance(meant, bool):
                raise InputError(f"{where}: {code!r} means {meant!r}; it must be true or false, without quotes")
        if len({meant for _, meant in items}) != 2:
            raise InputError(f"{where} are {dict(items)}; declare codes of true and of false")
        codes, meanings = declared_texts(where, [code for code, _ in items]), [_FLAGS[meant] for _, meant in items]
        return cls(name, Recoding.of(where, codes, meanings, None, named=True), missing)

    @property
    def bound(self) -> str:
        """The two values."""
        if self.recoding is None:
            return "true or false, yes or no, 1 or 0"
        no, yes = ([code for code, value in self.recoding.rules.items() if value == flag] for flag in _FLAGS)
        return f"{shown(no)} or {shown(yes)}"

    @property
    def written(self) -> frozenset[str]:
        """The codes, where declared."""
        return frozenset(() if self.recoding is None else self.recoding.written)

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """By code, where more than two are declared."""
        several = self.recoding is not None and (self.recoding.open_ended or len(self.recoding.declared) > 2)
        return self.recoding.taken(counted(texts)) if self.recoding is not None and several else {}

    def encode(self, *values: Any) -> Encoded:
        """0 or 1; what is neither cannot be clipped."""
        (texts,) = values
        if self.recoding is not None:
            codes = recoded(texts, self.recoding, _FLAGS)
        else:
            usual = codes_of(pc.utf8_lower(texts), tuple(USUAL_FLAGS))
            codes = np.array([*USUAL_FLAGS.values(), -1])[usual]
        return Encoded(np.maximum(codes, 0).astype(np.float64)[:, None], codes < 0, codes < 0)


@dataclass(frozen=True)
class Category(Column):
    """One of declared values, one feature each (one-hot).

    Parameters
    ----------
    values : tuple of str
    hashed : bool
        Whether the values are the numbers of bins, 0 to their number less 1, and each text belongs to the bin of its
        CRC-32: any text then has a feature, which it shares with others.
    recoding : Recoding or None
        Which codes mean the values; each means itself where None.
    """

    keys: ClassVar[tuple[str, ...]] = ("values", "hash", "first")

    name: str
    values: tuple[str, ...]
    missing: MissingRows | None = None
    hashed: bool = False
    recoding: Recoding | None = None

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Category:
        """Return the declared column."""
        if "hash" not in declaration:
            if "values" not in declaration:
                raise InputError(
                    f"{place}: neither values nor hash is given; list the admitted values, or give a number of bins "
                    f"for any text (hash: 64, from 2 to {_MOST_BINS})"
                )
            recoding = declared_codes(place, "values", declaration)
            return cls(name, recoding.values, missing, recoding=recoding)
        bins = declaration["hash"]
        if "values" in declaration or type(bins) is not int or not 2 <= bins <= _MOST_BINS:
            raise InputError(
                f"{place}: hash is {bins!r}; it must be a number of bins from 2 to {_MOST_BINS}, instead of values"
            )
        recoding = Recoding((), first_characters(place, declaration.get("first")))
        return cls(name, tuple(map(str, range(bins))), missing, hashed=True, recoding=recoding)

    @property
    def _texts(self) -> tuple[str, ...]:
        """Texts that are admitted as they are written."""
        return self.values if self.recoding is None else tuple(self.recoding.rules)

    @property
    def bound(self) -> str:
        """The values."""
        ending = "" if self.recoding is None else self.recoding.ending
        return ("any text" if self.hashed else f"one of {shown(self._texts)}") + ending

    @property
    def written(self) -> frozenset[str]:
        """The values, or the codes that mean them."""
        if self.recoding is not None:
            return self.recoding.written
        return frozenset(() if self.hashed else self.values)

    @property
    def features(self) -> tuple[str, ...]:
        """One a value."""
        return tuple(f"{self.name}{'#' if self.hashed else '='}{value}" for value in self.values)

    @property
    def numbers(self) -> int:
        """None."""
        return 0

    @property
    def groups(self) -> tuple[int, ...]:
        """All features are one group."""
        return (self.width,)

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """By code or prefix, where these are not the values themselves."""
        return self.recoding.taken(counted(texts)) if self.recoding is not None and self.recoding.renames else {}

    def encode(self, *values: Any) -> Encoded:
        """One-hot; an unknown value becomes zeros."""
        (texts,) = values
        if self.hashed:
            cut = str if self.recoding is None else self.recoding.cut
            coded = texts.dictionary_encode()
            bins = [zlib.crc32(cut(text).encode()) % len(self.values) for text in coded.dictionary.to_pylist()]
            places = coded.indices.fill_null(len(bins)).to_numpy(zero_copy_only=False)
            codes = np.array([*bins, -1], dtype=np.int64)[places]
        elif self.recoding is None:
            codes = codes_of(texts, self.values)
        else:
            codes = recoded(texts, self.recoding, self.values)
        return Encoded(one_hot(codes, self.width), codes < 0, np.zeros(len(codes), dtype=bool))


_MOST_BINS = 4096
