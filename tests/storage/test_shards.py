"""Shards: every party gets its rows, once, in its own private store."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from itertools import count, islice
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from dpalgos.rows import Rows
from storage import shards
from storage.errors import InputError, StorageError
from storage.layout import Layout
from storage.refs import DatasetRef, Labels, ShardRef
from storage.rowfiles import RowFormat, StoredRows, ahead
from storage.shards import MANIFEST, open_shard, write_shards
from tests.support.data import files_of, flip, gathered, source_of, stored, synthetic, temporaries
from tests.support.stating import stating


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _dealt(rows: int, parties: int, seed: int) -> dict[str, NDArray[np.int64]]:
    order = np.random.default_rng(seed).permutation(rows)
    return {str(party): part for party, part in enumerate(np.array_split(order, parties))}


def _check(
    layout: Layout,
    made: tuple[ShardRef, ...],
    assignment: Mapping[str, NDArray[np.int64]],
    rows: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    assert [shard.party for shard in made] == list(assignment)
    for shard in made:
        positions = np.sort(assignment[shard.party])
        opened = open_shard(layout, shard)
        assert shard.rows == opened.count == len(positions)
        features, labels = gathered(opened)
        assert np.array_equal(features, rows[0][positions])
        assert np.array_equal(labels, rows[1][positions])


@pytest.mark.parametrize("private", [False, True])
def test_each_party_gets_its_rows(layout: Layout, private: bool) -> None:
    train = synthetic(503, 6, seed=101)
    ref = stored(layout, source_of(train), private=private)
    assignment = _dealt(503, 5, seed=102)
    _check(layout, write_shards(layout, ref, assignment, "even-5"), assignment, train)
    uneven = {"clinic-a": np.array([7, 3, 500]), "clinic-b": np.arange(10, 400), "rest": np.array([502])}
    _check(layout, write_shards(layout, ref, uneven, "sized"), uneven, train)
    for path in layout.parties.rglob("*"):
        if path.is_dir():
            assert path.stat().st_mode & 0o077 == 0
    assert not temporaries(layout.root)


def test_shards_are_rows_as_algorithms_meet_them(layout: Layout) -> None:
    train = synthetic(50, 6, seed=103)
    ref = stored(layout, source_of(train), private=True)
    (shard,) = write_shards(layout, ref, {"0": np.arange(50)}, "one")
    rows: Rows = open_shard(layout, shard)
    assert (rows.count, rows.dimension) == (50, 6)
    assert rows.fingerprint().dtype == np.uint8
    # The rows are the data set's, so is what keys noise drawn from them.
    assert len(list(rows.blocks())) == len(list(rows.blocks())) == 1


def test_test_rows_can_be_dealt(layout: Layout) -> None:
    train, test = synthetic(50, 6, seed=104), synthetic(20, 6, seed=105)
    ref = stored(layout, source_of(train, test))
    assignment = {"test": np.arange(20)}
    _check(layout, write_shards(layout, ref, assignment, "even", part="test"), assignment, test)


def test_sparse_and_real_rows_are_dealt_as_they_are(layout: Layout) -> None:
    matrix: Any = sparse.random(300, 2000, density=0.01, format="csr", dtype=np.float32, rng=106)
    labels = np.random.default_rng(107).uniform(0, 1, 300)
    ref = stored(layout, source_of((matrix, labels), sparse=True, label_range=(0.0, 1.0)))
    assignment = _dealt(300, 3, seed=108)
    made = write_shards(layout, ref, assignment, "even")
    assert open_shard(layout, made[0]).format.sparse
    _check(layout, made, assignment, (matrix.toarray().astype(np.float64), labels))


def test_more_parties_than_files_may_be_open(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_OPEN_AT_ONCE", 7)
    monkeypatch.setattr(shards, "_PENDING_BYTES", 600)
    monkeypatch.setattr(RowFormat, "block_rows", property(lambda _format: 32))
    train = synthetic(400, 6, seed=109)
    ref = stored(layout, source_of(train))
    for parties in (3, 40, 400):
        assignment = _dealt(400, parties, seed=parties)
        _check(layout, write_shards(layout, ref, assignment, f"even-{parties}"), assignment, train)


def test_small_parties_are_dealt_in_one_pass_and_as_the_large_ones_are(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[StoredRows] = []
    original = StoredRows.batches

    def batches(self: StoredRows, rows: int) -> Iterator[Any]:
        passes.append(self)
        return original(self, rows)

    # A pass opens an eighth of the files that it may.
    monkeypatch.setattr(shards, "_OPEN_AT_ONCE", 32)
    train = synthetic(113, 6, seed=119)
    ref = stored(layout, source_of(train))
    monkeypatch.setattr(StoredRows, "batches", batches)
    assignment = {str(party): np.array([112 - party]) for party in range(113)}
    made = write_shards(layout, ref, assignment, "together")
    assert len(passes) == 1, "as many passes as parties that may be open would read the rows four times"
    _check(layout, made, assignment, train)
    passes.clear()
    # No party is small any more.
    monkeypatch.setattr(shards, "_PENDING_BYTES", 0)
    streamed = write_shards(layout, ref, assignment, "streamed")
    assert len(passes) == 4
    for one, other in zip(made, streamed, strict=True):
        ours, theirs = open_shard(layout, one), open_shard(layout, other)
        assert [path.read_bytes() for path in ours.files] == [path.read_bytes() for path in theirs.files]
        assert np.array_equal(ours.fingerprint(), theirs.fingerprint())


def test_parties_held_together_stay_within_the_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_OPEN_AT_ONCE", 4)
    monkeypatch.setattr(shards, "_PENDING_BYTES", 800)
    sizes = dict(enumerate([1, 20, 21, 5, 19, 300, 20, 20, 20, 7, 21, 21, 21]))
    monkeypatch.setattr(RowFormat, "row_bytes", property(lambda _format: 10))
    groups = shards._groups(sizes, RowFormat(2, Labels.CLASSES))
    assert groups[:2] == [[2, 5, 10, 11], [12]], "20 rows of 10 bytes are a quarter of the memory"
    assert groups[2:] == [[0, 1, 3, 4, 6], [7, 8, 9]]
    assert all(10 * sum(sizes[party] for party in group) <= 800 for group in groups[2:])


def test_the_cut_into_row_groups_does_not_change_blocks(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowFormat, "block_rows", property(lambda _format: 32))
    ref = stored(layout, source_of(synthetic(400, 6, seed=110)))
    assignment = _dealt(400, 3, seed=111)
    plain = [open_shard(layout, shard) for shard in write_shards(layout, ref, assignment, "plain")]
    monkeypatch.setattr(shards, "_PENDING_BYTES", 600)
    flushed = [open_shard(layout, shard) for shard in write_shards(layout, ref, assignment, "flushed")]
    for ours, theirs in zip(plain, flushed, strict=True):
        assert [len(labels) for _, labels, _ in ours.blocks()] == [len(labels) for _, labels, _ in theirs.blocks()]
        assert np.array_equal(ours.fingerprint(), theirs.fingerprint())


def _refused(layout: Layout, ref: DatasetRef, assignment: Mapping[str, Any], message: str) -> None:
    before = files_of(layout.root)
    with pytest.raises(InputError, match=message):
        write_shards(layout, ref, assignment, "wrong")
    assert files_of(layout.root) == before


def test_what_is_no_partition_is_refused(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(50, 3, seed=112)))
    _refused(layout, ref, {"0": [1, 2], "1": []}, "party '1'")
    _refused(layout, ref, {"0": [1, 50]}, "party '0'.*row 50.*50")
    _refused(layout, ref, {"0": [-1, 3]}, "party '0' is assigned row")
    _refused(layout, ref, {"0": [1, 2], "b": [3, 2]}, "parties '0'.*'b'")
    _refused(layout, ref, {"0": [1, 2, 1]}, "party '0'.*twice")
    _refused(layout, ref, {"../0": [1, 2]}, r"'\.\./0'")


def test_sound_shards_are_kept_and_missing_ones_made(layout: Layout) -> None:
    train = synthetic(100, 4, seed=113)
    ref = stored(layout, source_of(train), private=True)
    assignment = _dealt(100, 3, seed=114)
    made = write_shards(layout, ref, assignment, "even")
    before = {path: path.stat().st_mtime_ns for path in layout.parties.rglob("*.parquet")}
    assert write_shards(layout, ref, assignment, "even") == made
    assert {path: path.stat().st_mtime_ns for path in layout.parties.rglob("*.parquet")} == before
    shutil.rmtree(layout.party("1"))
    assert write_shards(layout, ref, assignment, "even") == made
    _check(layout, made, assignment, train)
    kept = {path: time for path, time in before.items() if "/parties/1/" not in str(path)}
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())


@pytest.mark.parametrize("name", ["part-00000.parquet", MANIFEST])
def test_damage_is_named_and_dealing_again_mends_it(layout: Layout, name: str) -> None:
    train = synthetic(100, 4, seed=115)
    ref = stored(layout, source_of(train), private=True)
    assignment = _dealt(100, 3, seed=116)
    made = write_shards(layout, ref, assignment, "even")
    path = layout.shard("1", "even", ref.version) / name
    for damage in (flip, Path.unlink):
        damage(path)
        with pytest.raises(StorageError, match=name):
            open_shard(layout, made[1])
        assert write_shards(layout, ref, assignment, "even") == made
        _check(layout, made, assignment, train)
    assert not temporaries(layout.root)


def test_one_partition_does_not_change_its_rows(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(100, 4, seed=119)))
    write_shards(layout, ref, {"0": np.arange(50), "1": np.arange(50, 100)}, "even")
    with pytest.raises(StorageError, match="party '1'"):
        write_shards(layout, ref, {"0": np.arange(50), "1": np.arange(51, 100)}, "even")


def test_versions_under_one_partition_stand_side_by_side(layout: Layout) -> None:
    first, second = (stored(layout, source_of(synthetic(20, 4, seed=seed)), private=True) for seed in (120, 121))
    assignment = {"0": np.arange(10), "1": np.arange(10, 20)}
    made = [write_shards(layout, ref, assignment, "even") for ref in (first, second)]
    assert not np.array_equal(gathered(open_shard(layout, made[0][0]))[0], gathered(open_shard(layout, made[1][0]))[0])


def test_a_shard_that_is_not_there_is_named(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(20, 4, seed=122)))
    with pytest.raises(StorageError, check=stating(value="shard.json", bound="present")):
        open_shard(layout, ShardRef(dataset=ref, partition="even", party="0", rows=10))


def test_the_next_item_is_made_beside_the_one_before_and_no_more() -> None:
    """In order, in one context, never more than one ahead; an error comes out after what was before it."""
    made: list[int] = []
    bound: ContextVar[int] = ContextVar("bound")
    bound.set(3)

    def items() -> Iterator[int]:
        token = bound.set(bound.get() + 1)
        for number in range(bound.get() + 1):
            made.append(number)
            yield number
        # Fails where each item is made in a context of its own.
        bound.reset(token)
        raise InputError("after the last")

    taken = []
    reading = ahead(items())
    for number in islice(reading, 5):
        assert len(made) <= number + 2
        taken.append(number)
    assert taken == made == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="after the last"):
        next(reading)
    assert bound.get() == 3
    assert [*ahead(iter(()))] == []


def test_what_is_read_ahead_ends_with_its_reader() -> None:
    """Whoever stops early, by an error too, leaves no thread, and what was read is closed."""
    closed, before = Event(), threading.active_count()

    def items() -> Iterator[int]:
        try:
            yield from count()
        finally:
            closed.set()

    def stops() -> None:
        for number in ahead(items()):
            if number == 2:
                raise InputError("stop")

    with pytest.raises(InputError, match="stop"):
        stops()
    assert threading.active_count() == before
    assert closed.is_set()
