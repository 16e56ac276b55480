"""Two ways to recognise rows: fingerprints, computed from stored rows, and the lineage that drawn rows carry."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage import documents
from storage.datasets import PARTS, counted_blocks, load_manifest
from storage.errors import InputError, StorageError
from storage.fingerprints import Fingerprints
from storage.layout import FINGERPRINTS, Layout
from storage.pictures.declaration import Pictures
from storage.pictures.summaries import summaries_of
from storage.refs import DatasetRef
from storage.schema import Schema, parse_schema
from storage.secrets import root_secret

LINEAGE = "unitball.lineage"
"""Key of the metadata of a Parquet file or an Arrow table under which its lineage stands, as JSON."""
BESIDE = ".lineage.json"
"""Suffix of the file that holds the lineage of a CSV file."""


def lineage_of_file(path: Path) -> Mapping[str, Any]:
    """Return the lineage that a file of drawn rows carries; nothing of others.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    beside = path.with_name(path.name + BESIDE)
    if beside.is_file():
        return _lineage(beside.read_bytes(), str(beside))
    found = None
    if path.suffix == ".parquet" and path.is_file():
        try:
            found = (pq.read_schema(path).metadata or {}).get(LINEAGE.encode())
        except (OSError, pa.ArrowException):
            # What else is wrong with the file, its reader says.
            return {}
    return {} if found is None else _lineage(found, f"{path}, metadata {LINEAGE}")


def lineage_of_rows(rows: Any) -> Mapping[str, Any]:
    """Return the lineage that drawn rows in memory carry: in the ``attrs`` of a frame, or as Arrow's metadata."""
    attributes = getattr(rows, "attrs", None)
    if isinstance(attributes, Mapping) and "synthesis" in attributes:
        return _required(attributes, "the attrs of the data frame")
    kept = getattr(getattr(rows, "schema", None), "metadata", None) or {}
    found = kept.get(LINEAGE.encode()) if isinstance(kept, Mapping) else None
    return {} if found is None else _lineage(found, f"the metadata {LINEAGE} of the rows")


def _lineage(text: bytes, place: str) -> Mapping[str, Any]:
    try:
        return _required(documents.parse_json(text, place), place)
    except ValueError as error:
        raise InputError(f"{place}: the lineage of synthetic rows cannot be read ({error}); restore it") from error


def _required(found: Any, place: str) -> Mapping[str, Any]:
    lineage: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    key = lineage.get("synthesis")
    if not (isinstance(key, str) and len(key) == 64 and set(key) <= set("0123456789abcdef")):
        raise InputError(f"{place}: the lineage of synthetic rows names no synthesis; restore it")
    return lineage


def fingerprints_for(
    table: Mapping[str, Any] | None,
    place: str,
    *,
    key: bytes,
    folder: Path,
    patterns: bool = True,
    columns: bool = True,
) -> Fingerprints:
    """Return what takes the fingerprints of rows as they pass.

    Parameters
    ----------
    table : mapping or None
        How the rows are declared, as :attr:`storage.source.Source.table` has it.
    place : str
        Where it is declared, for errors.
    key, folder, patterns, columns
        See :class:`storage.fingerprints.Fingerprints`.
    """
    schema = _schema_of(table, place) if patterns else None
    return Fingerprints(
        key,
        patterns=patterns,
        columns=columns,
        cells=None if schema is None else schema.cells,
        summaries=_summaries_of(table),
        folder=folder,
    )


def remake_fingerprints(layout: Layout, version: str, *, exact: bool = True) -> bool:
    """Make a private version's fingerprints again from its rows; return False where the rows are not whole.

    Without ``exact``, those whose digest is on record stay as they are. Of a table's rows they are the same up to
    rounding, which patterns and sketches forgive: the numbers that were read are made again from features in float32
    (:meth:`storage.schema.Schema.plain`).
    """
    try:
        body = load_manifest(layout, version)
        # What was derived keeps the declaration of the table that it was derived from.
        derived, folder = "parent" in body, layout.dataset(version)
        table = None if derived else body["table"]
        schema = _schema_of(table, version)
        prints = fingerprints_for(table, version, key=root_secret(layout), folder=folder, columns=not derived)
        for part in PARTS:
            if part in body["parts"]:
                for features, _, counted, whose in counted_blocks(layout, version, body, part):
                    known = features[counted]
                    prints.add(known if schema is None else schema.plain(known), whose)
    except StorageError:
        return False
    prints.save(folder, exact=exact)
    return True


def fingerprints_digest(layout: Layout, ref: DatasetRef) -> str | None:
    """Return the digest of a private version's fingerprints, for its registration; None for a public one."""
    return documents.file_digest(layout.dataset(ref.version) / FINGERPRINTS) if ref.private else None


def _schema_of(table: Mapping[str, Any] | None, place: str) -> Schema | None:
    """Return the schema of rows that were a table's; None of others, whose numbers are stored as they were read."""
    return None if table is None or "schema" not in table else parse_schema(table["schema"], place)


def _summaries_of(table: Mapping[str, Any] | None) -> Callable[[Any], Any] | None:
    """Return what summaries rows of images are recognised by; None of others."""
    return None if table is None or "pictures" not in table else summaries_of(Pictures.from_document(table["pictures"]))
