"""Versions of a data set that are made of another by a map of each row."""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from storage import documents
from storage.atomic import staging, write_bytes, writing
from storage.datasets import PARTS, counted_blocks, is_complete, load_manifest, publish_version
from storage.errors import StorageError
from storage.fingerprints import Fingerprints
from storage.layout import PEOPLE, Layout
from storage.objects import row_objects
from storage.refs import DatasetRef
from storage.rowfiles import RowFormat, RowWriter, ahead
from storage.secrets import root_secret
from storage.unit_ball import into_unit_ball

RowMap = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def transformed_ref(
    layout: Layout,
    ref: DatasetRef,
    *,
    normalisation: str,
    recipe: str = "",
    unit_ball: bool = True,
) -> DatasetRef:
    """Return the reference that :func:`transform_dataset` would return, whether or not that version is stored."""
    described = documents.canonical_json(["derived", ref.version, normalisation, recipe, ref.dimension, unit_ball])
    if ref.private:
        version = hmac.new(root_secret(layout), described, hashlib.sha256).hexdigest()[:32]
    else:
        version = hashlib.sha256(described).hexdigest()[:32]
    # What looks at whole rows leaves no column's range where it was.
    columns = ref.columns if normalisation == ref.normalisation else ()
    return ref.model_copy(update={"version": version, "normalisation": normalisation, "columns": columns})


def transform_dataset(
    layout: Layout,
    ref: DatasetRef,
    row_map: RowMap,
    *,
    normalisation: str,
    recipe: str = "",
    unit_ball: bool = True,
) -> DatasetRef:
    """Store a version whose rows are mapped block by block, by a map that looks at one row at a time.

    Parameters
    ----------
    row_map : callable
        Takes and returns float64 arrays of one row a row. Rows that come out not finite become zero: nothing here
        raises because of what rows contain.
    normalisation : str
        Name of the map, kept in the reference.
    recipe : str
        What else decides the result (parameters, a digest of the map's code); part of the version's name.
    unit_ball : bool
        Whether rows must be in the unit ball after rounding to float32 (see :func:`into_unit_ball`).

    Returns
    -------
    DatasetRef
        The same version for the same parent, map and recipe; it is not written again where it is stored. Versions
        of private sets are keyed with the root's secret.
    """
    target = transformed_ref(layout, ref, normalisation=normalisation, recipe=recipe, unit_ball=unit_ball)
    if is_complete(layout, target.version):
        return target
    body = load_manifest(layout, ref.version)
    row_format = RowFormat.from_json(body["format"])
    written = {}
    with staging(layout.datasets) as stage, writing(stage.path):
        prints = Fingerprints(root_secret(layout), columns=False, folder=stage.path) if ref.private else None
        for part in [part for part in PARTS if part in body["parts"]]:
            writer = RowWriter(stage.path / part, row_format, row_objects(layout))
            passing = (
                (
                    _mapped(
                        row_map(block[0].astype(np.float64)), (len(block[0]), ref.dimension), normalisation, unit_ball
                    ),
                    *block[1:],
                )
                for block in counted_blocks(layout, ref.version, body, part)
            )
            for mapped, labels, counted, whose in ahead(passing):
                if prints is not None:
                    prints.add(mapped[counted], whose)
                writer.write(row_format.encode(mapped, labels))
            written[part] = asdict(writer.close())
        changed = {
            "name": ref.name,
            "account": ref.account,
            "format": row_format.to_json(),
            "normalisation": normalisation,
            "parts": written,
            "parent": ref.version,
            "recipe": recipe,
            "columns": [column.model_dump(exclude_defaults=True) for column in target.columns],
        }
        if "people" in body:
            write_bytes(stage.path / PEOPLE, (layout.dataset(ref.version) / PEOPLE).read_bytes(), mode=0o600)
        # Places are of what was brought in.
        kept = {key: value for key, value in body.items() if key not in ("content_mac", "places")}
        return publish_version(layout, stage, target.version, {**kept, **changed}, prints)


def _mapped(rows: NDArray[np.float64], shape: tuple[int, int], name: str, unit_ball: bool) -> NDArray[np.float32]:
    if rows.shape != shape:
        raise StorageError(f"the row map {name!r} returns an array of shape {rows.shape}; expected {shape}")
    if unit_ball:
        return into_unit_ball(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = rows.astype(np.float32)
    stored[~np.isfinite(stored).all(axis=1)] = 0.0
    return stored
