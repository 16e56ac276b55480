"""Fingerprints by which a version's rows are recognised: those of its source's kind, made again from stored rows."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from storage import documents
from storage.datasets import PARTS, counted_blocks, load_manifest
from storage.errors import StorageError
from storage.fingerprints import Fingerprints
from storage.layout import FINGERPRINTS, Layout
from storage.pictures.declaration import Pictures
from storage.pictures.summaries import summaries_of
from storage.refs import DatasetRef
from storage.schema import Schema, parse_schema
from storage.secrets import root_secret


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
