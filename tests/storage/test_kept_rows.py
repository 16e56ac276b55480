"""Kept rows: whole or not there, of these rows alone, private, read by position by whichever shard, in both stores."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from storage import kept_rows, objects
from storage.atomic import discard
from storage.datasets import owners_of
from storage.errors import DamagedError
from storage.kept_rows import MANIFEST, KeptRows, has_kept, keep_rows, open_kept, remove_kept
from storage.layout import Layout
from storage.objects import ObjectStore, objects_of
from storage.people import People
from storage.refs import DatasetRef, ShardRef
from storage.shards import open_shard, write_shards
from storage.source import concatenate
from tasks.upkeep.checks import remove_orphans
from tests.support.data import flip, gathered, source_of, stored, synthetic, temporaries
from tests.support.forks import race
from tests.support.object_store import running_object_store, use_object_store

KEY, ROWS = "a-map", 600


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_object_store(tmp_path_factory.mktemp("moto") / "log") as endpoint:
        yield endpoint


@pytest.fixture(params=["files", "objects"])
def layout(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    if request.param == "objects":
        url = tmp_path.name.replace("_", "-").replace("[", "-").replace("]", "-")
        use_object_store(monkeypatch, request.getfixturevalue("endpoint"), url)
    return Layout(tmp_path / "root").prepare()


@pytest.fixture
def files(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def halves(features: NDArray[np.floating]) -> NDArray[np.float32]:
    return np.asarray(features[:, :3] / 2, dtype=np.float32)


def never(_: Any) -> Any:
    raise AssertionError("mapped again")


def version_of(layout: Layout, seed: int = 1, **more: Any) -> DatasetRef:
    return stored(layout, source_of(synthetic(ROWS, 6, seed=seed), **more), private=True)


def parties(rows: int, number: int, seed: int) -> dict[str, NDArray[np.int64]]:
    order = np.random.default_rng(seed).permutation(rows)
    return {str(party): part for party, part in enumerate(np.array_split(order, number))}


def one_party(layout: Layout, seed: int = 1) -> ShardRef:
    return write_shards(layout, version_of(layout, seed), {"a": np.arange(ROWS)}, "one")[0]


def opened(layout: Layout, shard: ShardRef, mapped: Any = never) -> KeptRows | None:
    return open_kept(layout, shard, open_shard(layout, shard), KEY, mapped)


def kept(layout: Layout, shard: ShardRef, part: str = "train") -> KeptRows:
    keep_rows(layout, shard.dataset, part, KEY, 3, halves)
    rows = opened(layout, shard)
    assert rows is not None
    return rows


def check(layout: Layout, shards: tuple[ShardRef, ...]) -> None:
    """Each shard's rows are those that the map gives of its own, in blocks of the same rows."""
    for shard in shards:
        rows, own = opened(layout, shard), open_shard(layout, shard)
        assert rows is not None
        assert (rows.count, rows.dimension) == (own.count, 3)
        assert np.array_equal(rows.fingerprint(), own.fingerprint())
        for (features, labels, shares), (before, wanted, counted) in zip(rows.blocks(), own.blocks(), strict=True):
            assert np.array_equal(features, halves(before))
            assert np.array_equal(labels, wanted)
            assert (None if shares is None else shares.tolist()) == (None if counted is None else counted.tolist())


def test_rows_are_kept_once_for_all_partitions(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another partition, number of parties or held-out share maps nothing again."""
    monkeypatch.setattr(kept_rows, "_GAP", 40)
    monkeypatch.setattr(kept_rows, "_AT_ONCE", 500)
    monkeypatch.setattr(kept_rows, "_BLOCK", 130)
    monkeypatch.setattr("storage.rowfiles.RowFormat.block_rows", property(lambda _format: 32))
    ref = version_of(layout)
    assert not has_kept(layout, ref, "train", KEY)
    first = write_shards(layout, ref, parties(ROWS, 5, seed=1), "five")
    assert opened(layout, first[0]) is None
    keep_rows(layout, ref, "train", KEY, 3, halves)
    assert has_kept(layout, ref, "train", KEY)
    check(layout, first)
    check(layout, write_shards(layout, ref, parties(ROWS, 5, seed=2), "other"))
    check(layout, write_shards(layout, ref, parties(ROWS, 9, seed=1), "nine"))
    few: Mapping[str, NDArray[np.int64]] = {"a": np.array([599, 0, 17]), "test": np.array([300])}
    check(layout, write_shards(layout, ref, few, "few"))
    # A part that is whole is not mapped again.
    keep_rows(layout, ref, "train", KEY, 3, never)
    assert not has_kept(layout, ref, "train", "another-map")
    (manifest,) = layout.private.rglob(MANIFEST)
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in (manifest.parent, *manifest.parents[1:4]))
    assert not temporaries(layout.root)
    assert bool(list(layout.private.rglob("rows.bin"))) == (objects_of(layout) is None)


def test_test_rows_are_a_part_of_their_own(files: Layout) -> None:
    ref = version_of(files, test=synthetic(50, 6, seed=2))
    (shard,) = write_shards(files, ref, {"test": np.arange(50)}, "p", part="test")
    keep_rows(files, ref, "train", KEY, 3, halves)
    assert opened(files, shard) is None
    kept(files, shard, "test")
    check(files, (shard,))


def sources(layout: Layout, people: bool = False) -> DatasetRef:
    random, each = np.random.default_rng(3), {}
    for number, name in enumerate(("beech", "ash", "cedar")):
        rows = synthetic(100 + number, 6, seed=number)
        source = source_of(rows)
        if people:
            (block,) = source_of(rows, block=1000).parts["train"]
            named = np.array([f"{name}{who}" for who in random.integers(0, 40, len(rows[1]))], dtype=object)
            source = replace(source, parts={"train": [replace(block, people=named)]}, people=People("p", 64))
        each[name] = source
    return stored(layout, concatenate(each), private=True)


@pytest.mark.parametrize("people", [False, True])
def test_each_owners_rows_lie_in_the_owners_own_store(files: Layout, people: bool) -> None:
    ref = sources(files, people)
    owners = owners_of(files, ref, "train")
    assert sorted(owners) == ["ash", "beech", "cedar"]
    shards = write_shards(files, ref, parties(ref.rows, 4, seed=1), "mixed")
    keep_rows(files, ref, "train", KEY, 3, halves)
    check(files, shards)
    places = {path.parent for path in files.private.rglob(MANIFEST)}
    assert places == {files.party(owner) / "kept" / ref.version / "train" / KEY for owner in owners}
    # What goes with a party's folder is that party's, and made again it alone is mapped.
    shutil.rmtree(files.party("ash"))
    assert not has_kept(files, ref, "train", KEY)
    seen: list[int] = []

    def counted(features: Any) -> Any:
        seen.append(len(features))
        return halves(features)

    keep_rows(files, ref, "train", KEY, 3, counted)
    assert sum(seen) == sum(stop - start for start, stop in owners["ash"])
    check(files, write_shards(files, ref, parties(ref.rows, 4, seed=1), "mixed"))


def test_a_killed_writer_leaves_nothing(layout: Layout) -> None:
    shard = one_party(layout)

    def killed(features: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep_rows(layout, shard.dataset, "train", KEY, 3, killed)
    assert opened(layout, shard) is None
    assert not temporaries(layout.root)
    kept(layout, shard)


def test_two_processes_at_once_map_them_once(files: Layout) -> None:
    shard = one_party(files)

    def make(_: int) -> tuple[int, bool]:
        mapped: list[int] = []

        def counted(features: Any) -> Any:
            mapped.append(len(features))
            time.sleep(0.2)
            return halves(features)

        keep_rows(files, shard.dataset, "train", KEY, 3, counted)
        rows = opened(files, shard)
        return sum(mapped), rows is not None and len(gathered_of(rows)[0]) == ROWS

    assert sorted(race(2, make)) == [(0, True), (ROWS, True)]


def gathered_of(rows: Any) -> Any:
    return gathered(rows)


def the_object(layout: Layout) -> tuple[ObjectStore, str]:
    store = objects_of(layout)
    assert store is not None
    (name,) = (name for name in store.names("") if name.endswith(".bin"))
    return store, name


@pytest.mark.parametrize("how", ["manifest", "rows", "end", "gone"])
def test_what_is_damaged_is_made_again_and_no_error(layout: Layout, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = one_party(layout)
    kept(layout, shard)
    monkeypatch.setattr(kept_rows, "_blocks", kept_rows._Blocks())
    if how == "manifest":
        flip(next(layout.private.rglob(MANIFEST)))
    elif objects_of(layout) is None:
        place = next(layout.private.rglob("rows.bin"))
        if how == "rows":
            flip(place)
        elif how == "end":
            place.write_bytes(place.read_bytes()[:-4])
        else:
            place.unlink()
    else:
        store, name = the_object(layout)
        data = bytearray(store.get(name) or b"")
        data[len(data) // 2] ^= 0xFF
        damaged = layout.root / "damaged"
        damaged.write_bytes(data if how == "rows" else data[:-4])
        if how == "gone":
            store.remove(name)
        else:
            with damaged.open("rb") as file:
                store.put(name, file)
    rows = opened(layout, shard, halves)
    if rows is not None:
        # An object is compared with its digests when it is read: then the rows are mapped again, and it is forgotten.
        assert np.array_equal(gathered_of(rows)[0], halves(gathered(open_shard(layout, shard))[0]))
    assert opened(layout, shard) is None
    kept(layout, shard)
    check(layout, (shard,))


def test_what_goes_while_it_is_read_is_mapped_instead(files: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.rowfiles.RowFormat.block_rows", property(lambda _format: 32))
    shard = one_party(files)
    kept(files, shard)
    rows = opened(files, shard, halves)
    assert rows is not None
    found = []
    for number, (features, labels, _) in enumerate(rows.blocks()):
        found.append((features, labels))
        if number == 3:
            discard(next(files.private.rglob(MANIFEST)).parent)
    whole, wanted = gathered(open_shard(files, shard))
    assert np.array_equal(np.concatenate([one for one, _ in found]), halves(whole))
    assert np.array_equal(np.concatenate([one for _, one in found]), wanted)
    with pytest.raises(DamagedError):
        rows._files[0].file.take(np.array([0]), np.empty((1, 3), np.float32))


def test_those_of_other_rows_are_not_taken(layout: Layout) -> None:
    shard, other = one_party(layout), one_party(layout, seed=2)
    kept(layout, shard)
    (place,) = layout.private.rglob(f"train/{KEY}")
    shutil.copytree(place, layout.kept(other.dataset.version, "train") / KEY)
    assert opened(layout, other) is None
    shutil.copytree(place, layout.kept(shard.dataset.version, "train") / "other")
    assert open_kept(layout, shard, open_shard(layout, shard), "other", never) is None
    assert opened(layout, shard) is not None


def test_they_go_with_their_version_and_where_nobody_asks_for_them(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_OLD", objects._OLD * 0)
    ref = sources(layout)
    (shard,) = write_shards(layout, ref, {"a": np.arange(ref.rows)}, "one")
    kept(layout, shard)
    assert remove_kept(layout, time.time() - 3600) == 0
    if objects_of(layout) is not None:
        assert remove_orphans(layout) == 0
    assert opened(layout, shard) is not None
    assert remove_kept(layout, time.time() + 1) == 3
    assert opened(layout, shard) is None
    store = objects_of(layout)
    assert store is None or not [name for name in store.names("") if name.endswith(".bin")]
    kept(layout, shard)
    discard(layout.dataset(ref.version))
    assert remove_kept(layout, 0.0) == 3
    assert not list(layout.private.rglob(MANIFEST))


def test_an_object_is_read_once_for_all_parties_and_what_stays_is_bounded(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_object_store(monkeypatch, endpoint, "once")
    layout, fetched = Layout(tmp_path / "root").prepare(), []
    honest = ObjectStore.ranges

    def noted(self: ObjectStore, name: str, places: Any) -> Any:
        asked = list(places)
        fetched.extend(asked)
        return honest(self, name, asked)

    monkeypatch.setattr(ObjectStore, "ranges", noted)
    monkeypatch.setattr(kept_rows, "_blocks", blocks := kept_rows._Blocks())
    monkeypatch.setattr(kept_rows, "_BLOCK", 120)
    ref = version_of(layout)
    shards = write_shards(layout, ref, parties(ROWS, 8, seed=1), "eight")
    keep_rows(layout, ref, "train", KEY, 3, halves)
    check(layout, shards)
    size = ROWS * 12
    assert sum(length for _, length in fetched) == size, "each block once"
    assert len(fetched) < len(shards) + ROWS * 12 // 120
    check(layout, shards)
    assert sum(length for _, length in fetched) == size
    monkeypatch.setattr(kept_rows, "room_in_memory", lambda: 1000)
    check(layout, write_shards(layout, ref, parties(ROWS, 2, seed=2), "others"))
    monkeypatch.setattr(kept_rows, "_blocks", blocks := kept_rows._Blocks())
    check(layout, shards[:3])
    assert blocks._size <= 1000
    assert blocks._size == sum(map(len, blocks._held.values()))
