"""A table whose schema is a draft: cells as numbers that need no declaration, for finding out what the columns hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import InputError
from storage.readers.bins import encode_bins
from storage.readers.files import require_file
from storage.readers.keys import WIDTH, encode_keys
from storage.readers.raw import raw_rows
from storage.readers.registry import register_reader
from storage.schema import Schema, parse_schema, read_declaration
from storage.source import Block, ReadOptions, Source

_ROWS = 4096
# Nothing is to be predicted: all rows are of one class.
_CLASSES = ("a row", "no row")
# By type: how a cell becomes numbers, and how many; numbers come before texts.
_ENCODERS = {"numeric": (encode_bins, 1), "category": (encode_keys, WIDTH)}


@dataclass(frozen=True, slots=True)
class _Drafted:
    path: Path
    layout: Schema
    columns: Mapping[str, tuple[str, ...]]

    def __iter__(self) -> Iterator[Block]:
        for rows in raw_rows(self.path, self.layout, _ROWS):
            encoded = []
            for kind, names in self.columns.items():
                for name in names:
                    if name not in rows.columns:
                        raise InputError(f"{self.path} has no column {name!r}; it has: {', '.join(rows.columns)}")
                    encoded.append(_ENCODERS[kind][0](rows.columns[name], self.layout))
            features = np.concatenate(encoded, axis=1)
            lines = np.asarray(rows.lines, dtype=np.int64)
            yield Block(features, np.full(len(lines), _CLASSES[0]), lines, place=str(self.path), unit=rows.unit)


def drafted_columns(draft: str | Path) -> dict[str, tuple[str, ...]]:
    """Return the columns of a drafted schema that numbers or values can be drawn for, by type: numeric, category.

    Raises
    ------
    InputError
        If there are none, or it is no draft.
    """
    given = read_declaration(draft)
    found = given.get("columns") if isinstance(given, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) and "name" in one for one in found):
        raise InputError(f"{draft} is not a schema: it must be a mapping with a list of columns, each with a name")
    names = {kind: tuple(str(one["name"]) for one in found if one.get("type") == kind) for kind in _ENCODERS}
    if not any(names.values()):
        raise InputError(f"{draft} has no column of type {' or '.join(_ENCODERS)} that could be drawn")
    return names


@register_reader("table-draft", takes=("schema",))
def read_draft(path: str | Path, options: ReadOptions) -> Source:
    """Read the columns of a drafted schema whose type is known: numbers as public bins, then texts as their bytes.

    Nothing raises because of what rows contain, but for bytes that cannot be read: cells that are no number, and those
    of rows of another number of cells, lie in no bin and hold no text.

    Parameters
    ----------
    path : path
        CSV or Parquet.
    options : ReadOptions
        ``schema`` names the draft; columns of type numeric and category count, declared further or not, and how the
        text is laid out.
    """
    if options.schema is None:
        raise InputError("format table-draft needs a drafted schema (--schema FILE.yaml)")
    columns = drafted_columns(options.schema)
    given = read_declaration(options.schema)
    if len(given["columns"]) < 2:
        raise InputError(f"{options.schema} has one column; a table has a label and something to predict it from")
    # What the columns are is not declared yet, and a schema has a feature and a label.
    names = [{"name": column["name"], "type": "ignore"} for column in given["columns"]]
    names[0]["type"] = "boolean"
    names[-1] |= {"type": "label", "range": [0, 1]}
    layout = parse_schema({**given, "columns": names}, str(options.schema))
    return Source(
        format="table-draft",
        place=str(path),
        dimension=sum(_ENCODERS[kind][1] * len(named) for kind, named in columns.items()),
        classes=_CLASSES,
        parts={"train": _Drafted(require_file(path), layout, columns)},
    )
