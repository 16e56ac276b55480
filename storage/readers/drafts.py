"""Tables whose schema is a draft: columns as public bins of numbers and bytes of texts, to draw ranges from."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.cells import column_name
from storage.columns.categories import Category
from storage.columns.numeric import Numeric
from storage.errors import InputError
from storage.readers.raw_tables import raw_rows
from storage.schema import Schema, parse_schema, read_declaration
from storage.several import spread
from storage.source import Block, ReadOptions, Rows, Source, most_rows, register_reader, require_file

_SMALLEST, _LARGEST = -10, 40
_ZERO = _LARGEST - _SMALLEST + 1
BINS = 2 * _ZERO + 1
"""Bins of a number: powers of two from 2^-10 to 2^40 of either sign, and one for what is nearer to 0."""


def bins_of(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bin of each number, ascending with it; -1 for cells that are not numbers."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.clip(np.floor(np.log2(np.abs(numbers))), _SMALLEST - 1, _LARGEST) - _SMALLEST + 1
    return np.where(np.isnan(numbers), -1.0, _ZERO + np.sign(numbers) * np.nan_to_num(steps))


def range_of_bins(first: int, last: int) -> tuple[float, float]:
    """Return the ends of some bins in a row; the bin around 0 ends at 0 where it is the first or the last."""
    low = 0.0 if first == _ZERO else _edge(first, outer=first < _ZERO)
    high = 0.0 if last == _ZERO > first else _edge(last, outer=last > _ZERO) if last != _ZERO else 2.0**_SMALLEST
    return low, high


def _edge(place: int, *, outer: bool) -> float:
    """Return the end of a bin that is further from 0, or the nearer one."""
    exponent = abs(place - _ZERO) - 1 + _SMALLEST
    return float(np.sign(place - _ZERO)) * 2.0 ** (exponent + outer)


def encode_bins(column: Any, layout: Schema) -> NDArray[np.float64]:
    """Return the bin of each cell, (m, 1); -1 for cells that are not numbers, or are missing."""
    numbers, missing = layout.read(Numeric("", None), column)
    return bins_of(np.where(missing, np.nan, numbers))[:, None]


WIDTH = 32
"""Bytes of a text that count, in UTF-8; longer ones that begin alike are one."""


def text_of(key: NDArray[np.float64]) -> str:
    """Return the text of a key's bytes; what was cut within a character loses it."""
    return bytes(key.astype(np.uint8)).rstrip(b"\0").decode("utf-8", errors="ignore")


def encode_keys(column: Any, layout: Schema) -> NDArray[np.float64]:
    """Return the bytes of each cell's text as 255ths, (m, WIDTH); zeros where a cell is missing."""
    texts, missing = layout.read(Category("", ()), column)
    coded = pc.filter(texts, pa.array(~missing)).dictionary_encode()
    keys = np.zeros((len(texts), WIDTH), dtype=np.uint8)
    known = np.zeros((len(coded.dictionary) + 1, WIDTH), dtype=np.uint8)
    for place, text in enumerate(coded.dictionary.to_pylist()):
        data = text.encode()[:WIDTH]
        known[place, : len(data)] = np.frombuffer(data, dtype=np.uint8)
    keys[~missing] = known[coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)]
    return keys / 255.0


_ROWS = 4096
# Nothing is to be predicted: all rows are of one class.
_CLASSES = ("a row", "no row")
# By type: how a cell becomes numbers, and how many; numbers come before texts.
_ENCODERS = {"numeric": (encode_bins, 1), "category": (encode_keys, WIDTH)}


def _drafted(path: Path, layout: Schema, columns: Mapping[str, Sequence[str]]) -> Iterator[Block]:
    """Yield the rows of a table whose schema is a draft; rows that are nobody's count nowhere."""
    drawn = [(kind, name) for kind, names in columns.items() for name in names]
    person = [] if layout.people is None else [layout.people.column]
    for rows in raw_rows(path, layout, _ROWS, most=most_rows()):
        for name in (*(name for _, name in drawn), *person):
            if name not in rows.columns:
                raise InputError(f"{path} has no column {name!r}; it has: {', '.join(rows.columns)}")
        features = np.concatenate([_ENCODERS[kind][0](rows.columns[name], layout) for kind, name in drawn], axis=1)
        labels = np.full(len(features), _CLASSES[0])
        people = None
        for name in person:
            people = layout.whose(rows.columns[name])
        yield Block(features, labels, rows.lines, place=rows.place, unit=rows.unit, people=people)


def drafted_columns(draft: str | Path) -> dict[str, tuple[str, ...]]:
    """Return the columns of a drafted schema that numbers or values can be drawn for, by type: numeric, category.

    Raises
    ------
    InputError
        If there are no columns, or the file is not a draft.
    """
    declaration = read_declaration(draft)
    columns = declaration.get("columns") if isinstance(declaration, dict) else None
    columns = [one for _, one in spread(columns, str(draft))] if isinstance(columns, list) else None
    if columns is None or not all(isinstance(one, dict) and "name" in one for one in columns):
        raise InputError(f"{draft} is not a schema: it must be a mapping with a list of columns, each with a name")
    names = {kind: tuple(column_name(one["name"]) for one in columns if one.get("type") == kind) for kind in _ENCODERS}
    if not any(names.values()):
        raise InputError(
            f"{draft} has no column of type {' or '.join(_ENCODERS)} whose range could be released; declare one"
        )
    return names


def draft_layout(draft: str | Path) -> Schema:
    """Return a schema that says how a drafted table is laid out and for whose rows, with nothing true of its columns.

    Raises
    ------
    InputError
        If it has one column alone.
    """
    declaration = read_declaration(draft)
    # What the columns are is not declared yet, but for whose rows they are; and a schema has a feature and a label.
    names = [
        one if one.get("type") == "person" else {"name": one["name"], "type": "ignore"}
        for _, one in spread(declaration["columns"], str(draft))
    ]
    others = [one for one in names if one["type"] == "ignore"]
    if len(others) < 2:
        raise InputError(f"{draft} has one column; a table needs a label and at least one column to predict it from")
    others[0]["type"] = "boolean"
    others[-1] |= {"type": "label", "range": [0, 1]}
    return parse_schema({**declaration, "columns": names}, str(draft))


@register_reader("table-draft", takes=("schema",))
def read_draft(path: str | Path, options: ReadOptions) -> Source:
    """Read the columns of a drafted schema whose type is known: numbers as public bins, then texts as their bytes.

    Nothing raises because of what rows contain, but for bytes that cannot be read: cells that are not numbers, and
    cells of rows with another number of cells, lie in no bin and hold no text.

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
    columns, layout = drafted_columns(options.schema), draft_layout(options.schema)
    return Source(
        format="table-draft",
        place=str(path),
        dimension=sum(_ENCODERS[kind][1] * len(named) for kind, named in columns.items()),
        classes=_CLASSES,
        parts={"train": Rows(_drafted, (require_file(path), layout, columns))},
        people=layout.people,
    )
