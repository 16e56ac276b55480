"""Columns of a table whose schema is a draft: their cells as numbers that need no declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import InputError
from storage.readers.files import require_file
from storage.readers.raw import raw_rows
from storage.schema import Schema, parse_schema, read_declaration
from storage.source import Block, ReadOptions, Source

__all__ = ["drafted_columns", "drafted_source"]

_ROWS = 4096
# Nothing is to be predicted: all rows are of one class.
_CLASSES = ("a row", "no row")

Encode = Callable[[Any, Schema], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class _Drafted:
    path: Path
    layout: Schema
    columns: tuple[str, ...]
    encode: Encode

    def __iter__(self) -> Iterator[Block]:
        for rows in raw_rows(self.path, self.layout, _ROWS):
            for name in self.columns:
                if name not in rows.columns:
                    raise InputError(f"{self.path} has no column {name!r}; it has: {', '.join(rows.columns)}")
            features = np.concatenate([self.encode(rows.columns[name], self.layout) for name in self.columns], axis=1)
            lines = np.asarray(rows.lines, dtype=np.int64)
            yield Block(features, np.full(len(lines), _CLASSES[0]), lines, place=str(self.path), unit=rows.unit)


def drafted_columns(draft: str | Path, kind: str) -> tuple[str, ...]:
    """Return the columns of a type in a drafted schema.

    Raises
    ------
    InputError
        If there are none, or it is no draft.
    """
    given = read_declaration(draft)
    found = given.get("columns") if isinstance(given, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) and "name" in one for one in found):
        raise InputError(f"{draft} is not a schema: it must be a mapping with a list of columns, each with a name")
    names = tuple(str(column["name"]) for column in found if column.get("type") == kind)
    if not names:
        raise InputError(f"{draft} has no column of type {kind} that could be drawn")
    return names


def drafted_source(
    format_name: str, path: str | Path, options: ReadOptions, *, kind: str, width: int, encode: Encode
) -> Source:
    """Return the columns of a type as a source: of the draft, the layout of the text counts.

    Nothing raises because of what rows contain, but for bytes that cannot be read.

    Parameters
    ----------
    kind : str
        The type of the columns.
    width : int
        Features of a column.
    encode : callable
        Takes a column's cells and the layout; returns (m, width). None stands for the cells of a row that has another
        number of them.
    """
    if options.schema is None:
        raise InputError(f"format {format_name} needs a drafted schema (--schema FILE.yaml)")
    columns = drafted_columns(options.schema, kind)
    given = read_declaration(options.schema)
    if len(given["columns"]) < 2:
        raise InputError(f"{options.schema} has one column; a table has a label and something to predict it from")
    # What the columns are is not declared yet, and a schema has a feature and a label.
    names = [{"name": column["name"], "type": "ignore"} for column in given["columns"]]
    names[0]["type"] = "boolean"
    names[-1] |= {"type": "label", "range": [0, 1]}
    layout = parse_schema({**given, "columns": names}, str(options.schema))
    return Source(
        format=format_name,
        place=str(path),
        dimension=width * len(columns),
        classes=_CLASSES,
        parts={"train": _Drafted(require_file(path), layout, columns, encode)},
    )
