"""Mapped rows beside their shard: whole or not there, of these rows alone, private, and gone with the shard."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from storage.layout import Layout
from storage.refs import ShardRef
from storage.rowfiles import StoredRows
from storage.shards import MAPPED_MANIFEST, open_mapped, open_shard, remove_unused_mapped, write_mapped, write_shards
from tests.support.data import flip, gathered, source_of, stored, synthetic, temporaries

KEY = "a-map"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _dealt(layout: Layout, seed: int = 1, partition: str = "one") -> tuple[ShardRef, StoredRows]:
    ref = stored(layout, source_of(synthetic(60, 6, seed=seed)), private=True)
    (shard,) = write_shards(layout, ref, {"a": np.arange(60)}, partition)
    return shard, open_shard(layout, shard)


def _halves(features: NDArray[np.floating]) -> NDArray[np.float32]:
    return np.asarray(features[:, :3] / 2, dtype=np.float32)


def _written(layout: Layout, shard: ShardRef, rows: StoredRows) -> StoredRows:
    written = write_mapped(layout, shard, rows, KEY, 3, _halves)
    assert written is not None
    return written


def test_what_was_written_is_what_is_read(layout: Layout) -> None:
    shard, rows = _dealt(layout)
    assert open_mapped(layout, shard, rows, KEY) is None
    features, labels = gathered(rows)
    for found in (_written(layout, shard, rows), open_mapped(layout, shard, rows, KEY)):
        assert found is not None
        assert (found.count, found.dimension) == (60, 3)
        seen, own = gathered(found)
        assert np.array_equal(seen, _halves(features))
        assert np.array_equal(own, labels)
    assert open_mapped(layout, shard, rows, "another-map") is None
    for path in layout.parties.rglob("*"):
        assert not path.is_dir() or path.stat().st_mode & 0o077 == 0
    assert not temporaries(layout.root)


def test_a_killed_writer_leaves_nothing(layout: Layout) -> None:
    shard, rows = _dealt(layout)

    def killed(features: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_mapped(layout, shard, rows, KEY, 3, killed)
    assert open_mapped(layout, shard, rows, KEY) is None
    assert not temporaries(layout.root)


@pytest.mark.parametrize("name", [MAPPED_MANIFEST, "part-00000.parquet"])
def test_damage_is_noticed_and_mended(layout: Layout, name: str) -> None:
    shard, rows = _dealt(layout)
    _written(layout, shard, rows)
    (place,) = layout.parties.rglob(f"mapped/{KEY}/{name}")
    flip(place)
    assert open_mapped(layout, shard, rows, KEY) is None
    _written(layout, shard, rows)
    assert open_mapped(layout, shard, rows, KEY) is not None


def test_those_of_other_rows_are_not_taken(layout: Layout) -> None:
    (shard, rows), (other, others) = _dealt(layout), _dealt(layout, seed=2)
    _written(layout, shard, rows)
    (kept,), (place,) = layout.parties.rglob(f"mapped/{KEY}"), layout.parties.rglob(f"{other.dataset.version}")
    shutil.copytree(kept, place / "mapped" / KEY)
    assert open_mapped(layout, other, others, KEY) is None
    assert open_mapped(layout, shard, rows, KEY) is not None


def test_they_go_with_their_shard_and_where_nobody_asks_for_them(layout: Layout) -> None:
    shard, rows = _dealt(layout)
    _written(layout, shard, rows)
    assert remove_unused_mapped(layout, time.time() - 3600) == 0
    assert open_mapped(layout, shard, rows, KEY) is not None
    assert remove_unused_mapped(layout, time.time() + 1) == 1
    assert open_mapped(layout, shard, rows, KEY) is None
    _written(layout, shard, rows)
    flip(next(layout.parties.rglob(f"{shard.dataset.version}/part-00000.parquet")))
    # Dealt again, the shard takes the place of the damaged one.
    write_shards(layout, shard.dataset, {"a": np.arange(60)}, "one")
    assert not list(layout.parties.rglob("mapped"))
