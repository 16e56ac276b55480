"""A shard's rows seen through a public map, kept in the shard's own folder: as private as the rows, and gone with them.

They can be made again from the shard at any time, so nothing is lost where they are damaged, removed or cannot be
written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage import manifests
from storage.atomic import discard, staging, writing
from storage.errors import StorageError
from storage.layout import Layout, path_component
from storage.refs import ShardRef
from storage.rowfiles import RowFormat, RowWriter, StoredRows

FORMAT_VERSION = 1
MANIFEST = "mapped.json"
_FOLDER = "mapped"


def _place(layout: Layout, shard: ShardRef, key: str) -> Path:
    folder = layout.shard(shard.party, shard.partition, shard.dataset.version)
    return folder / _FOLDER / path_component(key, "key of a map")


def has_mapped(layout: Layout, shard: ShardRef, key: str) -> bool:
    """Whether rows of a shard were kept under a map; whether they are whole and of its rows, opening them tells."""
    return (_place(layout, shard, key) / MANIFEST).is_file()


def open_mapped(layout: Layout, shard: ShardRef, rows: StoredRows, key: str) -> StoredRows | None:
    """Open a shard's mapped rows, their digests verified; None where none are kept that are whole and of these rows.

    Parameters
    ----------
    rows : StoredRows
        The shard's.
    key : str
        The map's identity.
    """
    folder = _place(layout, shard, key)
    if not has_mapped(layout, shard, key):
        return None
    try:
        body = manifests.load(folder / MANIFEST, version=FORMAT_VERSION)
        rows_kept = StoredRows.from_json(folder, {**body, "records": rows.count})
    except StorageError:
        return None
    if body["of"] != rows.content or rows_kept.stored != rows.stored:
        return None
    # Says when they were last of use.
    with suppress(OSError):
        os.utime(folder / MANIFEST)
    return rows_kept


def write_mapped(
    layout: Layout,
    shard: ShardRef,
    rows: StoredRows,
    key: str,
    dimension: int,
    mapped: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> StoredRows | None:
    """Write what becomes of a shard's rows, whole or not at all, block by block, and open it.

    Parameters
    ----------
    rows, key
        As of :func:`open_mapped`.
    dimension : int
        Features that come out.
    mapped : callable
        Maps a block (m, d) to (m, dimension), which is rounded to single precision.

    Returns
    -------
    StoredRows or None
        None where they were removed again meanwhile.

    Raises
    ------
    StorageError
        If the folder cannot be written, or the rows cannot be read.
    """
    target, kept = _place(layout, shard, key), RowFormat(dimension, rows.format.labels, shares=rows.format.shares)
    with writing(target):
        target.parent.mkdir(mode=0o700, exist_ok=True)
    with staging(target.parent, durable=False) as stage, writing(target):
        writer = RowWriter(stage.path, kept)
        for features, labels, shares in rows.blocks():
            writer.write(kept.encode(mapped(features), labels, shares))
        body = {"of": rows.content, "format": kept.to_json(), "rows": writer.close().to_json()}
        (stage.path / MANIFEST).write_bytes(manifests.dump(body, version=FORMAT_VERSION))
        stage.publish(target, lambda: open_mapped(layout, shard, rows, key) is not None)
    return open_mapped(layout, shard, rows, key)


def remove_unused_mapped(layout: Layout, before: float) -> int:
    """Remove mapped rows that nobody has opened since a time, in seconds since 1970; return how many copies."""
    count = 0
    for manifest in layout.parties.glob(f"*/shards/*/*/{_FOLDER}/*/{MANIFEST}"):
        if manifest.stat().st_mtime < before:
            discard(manifest.parent)
            count += 1
    return count
