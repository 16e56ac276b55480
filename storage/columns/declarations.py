"""Parts of a column's declaration, parsed: keys, values, codes and ranges, refused by place and key."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storage.cells import canonical_text, numbers
from storage.columns.column import MissingRows
from storage.documents import as_text
from storage.errors import InputError
from storage.names import require_visible
from storage.recoding import Recoding, first_characters, items_of


def known_keys(place: str, declaration: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a key that a schema does not have there, naming the nearest."""
    for key in declaration:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=3, cutoff=0.4) or list(known)
            raise InputError(f"{place} has no key {key!r}; nearest: {', '.join(near)}")


def named_twice(names: Sequence[str]) -> str | None:
    """Return the first name that stands there twice, in alphabetical order."""
    return min((name for name, times in Counter(names).items() if times > 1), default=None)


def missing_rule(place: str, rule: Any) -> MissingRows | None:
    """Return a declared rule for rows with missing cells, None where there is none."""
    if rule is None:
        return None
    if rule not in list(MissingRows):
        raise InputError(f"{place} is {rule!r}; it must be one of {', '.join(sorted(MissingRows))}")
    return MissingRows(rule)


def declared_texts(place: str, values: Any) -> tuple[str, ...]:
    """Return a declared list of values in their one spelling."""
    if not isinstance(values, list) or not values:
        raise InputError(f"{place} must be a list of at least one value")
    for value in values:
        if isinstance(value, Mapping | list):
            raise InputError(
                f"{place} holds {value!r}, which is not a text; if cells are codes, map each code to its meaning, "
                'the code first: {"<30": early, "NO": late}'
            )
        as_text(place, value, canonical_text)
    texts = []
    for value in values:
        text = canonical_text(value)
        if text is None:
            raise InputError(
                f"{place} holds {value!r}: a float of 2^53 or more does not identify a whole number; write its digits"
            )
        texts.append(require_visible(f"{place}: a value", text))
    if twice := named_twice(texts):
        raise InputError(f"{place} holds the same value twice, {twice}: {list(map(str, values))}")
    return tuple(texts)


def declared_codes(place: str, key: str, declaration: Mapping[str, Any]) -> Recoding:
    """Return what a declared list of values, or mapping of codes to values, says of cells."""
    declared, where = declaration.get(key), f"{place}: {key}"
    first = first_characters(place, declaration.get("first"))
    items = items_of(declared)
    if not declared or not (items or isinstance(declared, list)):
        raise InputError(
            f"{where} is {declared!r}; it must be a list of at least one value, or a mapping of codes to meanings: "
            '{"1": north, "2": south}'
        )
    if items is None:
        written = declared_texts(where, declared)
        return Recoding.of(where, written, written, first, named=False)
    written = declared_texts(where, [code for code, _ in items])
    values = [declared_texts(where, [value])[0] for _, value in items]
    return Recoding.of(where, written, values, first, named=True)


def declared_range(place: str, value: Any) -> tuple[float, float]:
    """Return a declared range of finite numbers."""
    bounds = numbers(value) if isinstance(value, list) else np.zeros(0)
    if bounds.shape != (2,) or not np.isfinite(bounds).all() or not bounds[0] < bounds[1]:
        raise InputError(f"{place} is {value!r}; it must be two finite numbers, the smaller first: [0, 100]")
    return float(bounds[0]), float(bounds[1])


def shown(values: Sequence[str]) -> str:
    """Return declared values for a message, the first dozen."""
    return ", ".join(values[:12]) + (", …" if len(values) > 12 else "")
