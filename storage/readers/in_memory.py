"""Rows in memory under a declared schema, as a source like those of files."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from storage.frames import Frame
from storage.readers.declared import declared_source
from storage.refs import OnViolation
from storage.schema import Schema, Table, parse_schema, read_declaration
from storage.several import patterned, settled
from storage.source import ReadOptions, Source

FORMAT = "frame"
"""What rows in memory are called where others are called by their file's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredFrame:
    """Rows in memory, and what declares them.

    Attributes
    ----------
    frame : Frame
    schema : mapping or path
        The document of a :class:`storage.schema.Schema`, or the YAML file that holds it.
    lineage : mapping
        Of drawn rows, what they carry of what they are drawn from (:func:`storage.recognition.lineage_of_rows`).
    """

    frame: Frame
    schema: Mapping[str, Any] | Path
    lineage: Mapping[str, Any] = field(default_factory=dict)


def document_of(schema: Mapping[str, Any] | os.PathLike[str] | str, frame: Frame) -> tuple[Any, str]:
    """Return a declaration as YAML would give it, with the frame's columns in place of patterns, and what it is called.

    Raises
    ------
    storage.errors.InputError
        If there is no such file, or a pattern takes no column.
    """
    if isinstance(schema, Mapping):
        document, called = _plain(schema), "schema"
    else:
        called = os.fspath(schema)
        document = read_declaration(called)
    return (settled(document, called, frame.names) if patterned(document) else document), called


def _plain(value: Any) -> Any:
    """Return mappings, sequences and numbers of NumPy as YAML has them."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def _tables(given: Frame, schema: Schema, _: OnViolation) -> Iterator[Table]:
    """Yield the rows of a frame, the columns that a schema looks at, converted once."""
    batch = given.batch(schema.needed)
    for start in range(0, given.rows, schema.block_rows):
        part = batch.slice(start, schema.block_rows)
        cells = dict(zip(part.schema.names, part.columns, strict=True))
        lines = np.arange(start + 1, start + 1 + part.num_rows, dtype=np.int64)
        yield Table(cells, lines, "the data frame", unit="row")


def frame_source(given: DeclaredFrame, options: ReadOptions) -> Source:
    """Return the source of rows in memory.

    Raises
    ------
    storage.errors.InputError
        For what does not fit the schema.
    """
    document, called = document_of(given.schema, given.frame)
    schema = replace(parse_schema(document, called, options.scaling), keeps_rows=not options.discover)
    return declared_source(FORMAT, "the data frame", options, schema, {"train": (_tables, [given.frame])})
