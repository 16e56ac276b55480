"""One declaration for many columns: a list of names, or a pattern, which the names of a file's columns settle."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from storage.cells import column_name
from storage.documents import as_text
from storage.errors import InputError

ANY = "*"
"""What stands for any characters in a pattern."""


def spread(columns: Sequence[Any], place: str) -> list[tuple[int, Any]]:
    """Return one declaration a column with its entry's place from 1; other entries stay as they are.

    Raises
    ------
    InputError
        If an entry's ``names`` are none, name a column twice, or hold a pattern that no file has settled.
    """
    found: list[tuple[int, Any]] = []
    for number, entry in enumerate(columns, start=1):
        if not isinstance(entry, dict) or "names" not in entry:
            found.append((number, entry))
            continue
        names = _names(number, entry, place)
        if patterns := [name for name in names if ANY in name]:
            raise InputError(
                f"{place}, column {number}: names holds the pattern {patterns[0]!r}, which needs a file's line of "
                "column names; list the columns"
            )
        rest = {key: value for key, value in entry.items() if key != "names"}
        found += [(number, {"name": name, **rest}) for name in names]
    return found


def patterned(data: Any) -> bool:
    """Whether a declaration names columns by a pattern."""
    columns = data.get("columns") if isinstance(data, Mapping) else None
    entries = [entry for entry in columns if isinstance(entry, dict)] if isinstance(columns, list) else []
    listed = [entry.get("names") for entry in entries]
    return any(ANY in str(name) for names in listed for name in (names if isinstance(names, list) else [names]))


def settled(data: Mapping[str, Any], place: str, there: Sequence[str]) -> dict[str, Any]:
    """Return a declaration with the names of a file's columns in place of its patterns.

    They are in their own order (by text, numbers within it by value): what a row becomes does not depend on the
    order of a file's columns.

    Parameters
    ----------
    data : mapping
        A schema's declaration.
    place : str
        The schema, for messages.
    there : sequence of str
        The names of the file's columns.

    Raises
    ------
    InputError
        If a pattern matches no column, or a column that something else names, too.
    """
    by: dict[str, str] = {}
    columns: list[Any] = []
    for number, entry in enumerate(data["columns"], start=1):
        if not isinstance(entry, dict) or ("names" not in entry and "name" not in entry):
            columns.append(entry)
            continue
        listed = [column_name(entry["name"])] if "names" not in entry else _names(number, entry, place)
        names: list[str] = []
        for wanted in listed:
            pattern = "names" in entry and ANY in wanted
            matches = _matching(wanted, there) if pattern else [wanted]
            if not matches:
                few = ", ".join(there[:20]) + (", …" if len(there) > 20 else "")
                raise InputError(
                    f"{place}, column {number}: the pattern {wanted!r} of names matches no column of the file, which "
                    f"has: {few}; correct it or omit it"
                )
            for name in matches:
                what = f"the pattern {wanted!r}" if pattern else f"the name {name!r}"
                if name in by and (pattern or by[name].startswith("the pattern")):
                    raise InputError(
                        f"{place}, column {number}: {what} and {by[name]} both match the column {name!r}; declare a "
                        "column once: list the names instead of a pattern"
                    )
                by[name] = what
            names += matches
        columns.append(entry if "names" not in entry else {**entry, "names": names})
    return {**data, "columns": columns}


def _names(number: int, entry: Mapping[str, Any], place: str) -> list[str]:
    """Return the names and patterns of an entry."""
    given, where = entry["names"], f"{place}, column {number}"
    example = 'a list of names, [metformin, insulin], or a pattern, "diag_*"'
    if "name" in entry:
        raise InputError(f"{where} has a name, {entry['name']!r}, and names; give one of the two")
    if isinstance(given, str) and ANY not in given:
        raise InputError(f"{where}: names is {given!r}; it must be {example}; a single column uses name")
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names:
        raise InputError(f"{where}: names is {given!r}; it must be {example}")
    for one in names:
        if not column_name(as_text(f"{where}: names", one, column_name)):
            raise InputError(f"{where}: names holds {one!r}, which is empty; name a column")
    names = list(map(column_name, names))
    if (twice := next((one for one, times in Counter(names).items() if times > 1), None)) is not None:
        raise InputError(f"{where}: names holds {twice!r} twice; omit one")
    return names


def _matching(pattern: str, there: Sequence[str]) -> list[str]:
    """Return the columns that a pattern matches."""
    form = re.compile(".*".join(map(re.escape, pattern.split(ANY))), flags=re.S)
    return sorted((name for name in there if form.fullmatch(name)), key=_natural)


def _natural(name: str) -> tuple[list[str | int], str]:
    """Return what names are ordered by: diag_2 before diag_10."""
    # Texts and numbers alternate, so that like is compared with like.
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name
