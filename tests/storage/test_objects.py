"""A root's rows and releases in an object store: named by content, verified at reading, decided by the ledger."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import objects
from storage import releases as store_of_releases
from storage.datasets import dataset_ref, open_dataset
from storage.errors import DamagedError, InputError, StorageError
from storage.layout import Layout
from storage.objects import ObjectStore, objects_of
from storage.refs import Labels
from storage.releases import ObjectReleases, ReleaseStore
from storage.results import query_dataset
from storage.shards import open_shard, write_shards
from tasks.upkeep.checks import remove_orphans
from tests.support.data import gathered, source_of, stored, synthetic
from tests.support.forks import die, killed, race
from tests.support.ledgers import opened
from tests.support.object_store import running_object_store, use_object_store
from tests.support.stating import stating

ROWS = synthetic(300, 6, seed=171)
ARRAYS = {"weights": np.arange(500.0)}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_object_store(tmp_path_factory.mktemp("moto") / "log") as endpoint:
        yield endpoint


@pytest.fixture
def layout(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    use_object_store(monkeypatch, endpoint, tmp_path.name.replace("_", "-"))
    return Layout(tmp_path / "root").prepare()


def bucket(layout: Layout) -> ObjectStore:
    found = objects_of(layout)
    assert found is not None
    return found


def put(layout: Layout, name: str, data: bytes) -> None:
    bucket(layout).put(name, io.BytesIO(data))


def releases(layout: Layout) -> ReleaseStore:
    return ObjectReleases(bucket(layout), opened(layout.ledger))


def test_a_release_comes_back_from_the_store(layout: Layout) -> None:
    store = releases(layout)
    assert not store.exists("k")
    with pytest.raises(StorageError, match="releases/k"):
        store.read("k")
    digest = store.write("k", {"kind": "model"}, ARRAYS)
    assert bucket(layout).names("releases") == [f"releases/k/{digest}"], "named by its content"
    manifest, arrays = releases(layout).read("k")
    assert manifest["kind"] == "model"
    assert np.array_equal(arrays["weights"], ARRAYS["weights"])
    assert store.write("k", {"kind": "model"}, ARRAYS) == digest
    assert store.keys() == ("k",)
    with pytest.raises(StorageError, check=stating(way_out="--replicate")):
        store.write("k", {"kind": "model"}, {"weights": np.zeros(3)})
    assert store.manifest("k") == manifest
    assert list(layout.releases.iterdir()) == []


def test_the_ledgers_row_decides_which_copy_is_the_release(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower writer whose object was there first has lost; so has one whose object appears later."""
    store, slower = releases(layout), releases(layout)
    decided: list[str] = []
    original = ObjectReleases._publish

    def overtaken(self: Any, key: str, digest: str, manifest: bytes, arrays: bytes) -> bool:
        put(layout, f"releases/{key}/{digest}", len(manifest).to_bytes(8, "big") + manifest + arrays)
        monkeypatch.undo()
        decided.append(store.write("k", {"kind": "faster"}, ARRAYS))
        return original(self, key, digest, manifest, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectReleases, "_publish", overtaken)
        monkeypatch = patch
        with pytest.raises(StorageError, check=stating(way_out="--replicate")):
            slower.write("k", {"kind": "slower"}, ARRAYS)
    assert len(bucket(layout).names("releases/k")) == 2
    assert releases(layout).read("k")[0]["kind"] == "faster"
    assert store.digest_of({"kind": "faster"}, ARRAYS) == decided[0]


def test_a_lost_or_damaged_copy_is_said_to_be_and_written_again(layout: Layout) -> None:
    store = releases(layout)
    name = f"releases/k/{store.write('k', {'kind': 'model'}, ARRAYS)}"
    whole = bucket(layout).get(name)
    assert whole is not None
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[: len(whole) // 2], whole[:9], b"\xff" * 20):
        put(layout, name, damaged)
        with pytest.raises(DamagedError):
            store.read("k")
        assert store.remove_damaged("k") == ("k",)
        assert not store.exists("k")
        store.write("k", {"kind": "model"}, ARRAYS)
        assert bucket(layout).get(name) == whole
    assert store.remove_damaged() == ()
    bucket(layout).remove(name)
    # What was the release is lost, and what is drawn now is another copy: the ledger names that one.
    store.write("k", {"kind": "other"}, ARRAYS)
    assert store.read("k")[0]["kind"] == "other"


def test_a_release_that_the_buckets_writer_replaced_is_not_read(layout: Layout, tmp_path: Path) -> None:
    """Whole and sound in itself, under the name of the one that was stored: the ledger's digest is another."""
    store, forger = releases(layout), ReleaseStore(Layout(tmp_path / "forger").prepare())
    name = f"releases/k/{store.write('k', {'kind': 'model'}, ARRAYS)}"
    for manifest, arrays in (({"kind": "model"}, {"weights": -ARRAYS["weights"]}), ({"kind": "basis"}, ARRAYS)):
        key = manifest["kind"]
        forger.write(key, manifest, arrays)
        forged = forger.files(key)
        head = forged["manifest.json"]
        put(layout, name, len(head).to_bytes(8, "big") + head + forged["arrays.npz"])
        for look in (store.read, store.manifest, store.files):
            with pytest.raises(DamagedError, match="another release"):
                look("k")
    assert store.remove_damaged() == ("k",)
    store.write("k", {"kind": "model"}, ARRAYS)
    assert np.array_equal(store.read("k")[1]["weights"], ARRAYS["weights"])


@pytest.mark.parametrize("step", ["put", "writing"])
def test_a_writer_killed_in_between_is_repeated(layout: Layout, step: str) -> None:
    def body() -> None:
        if step == "put":
            objects.ObjectStore.put = die  # type: ignore[method-assign]  # in a child
        else:
            store_of_releases.ledger_writing = die  # type: ignore[attr-defined]  # in a child
        releases(layout).write("k", {"kind": "model"}, ARRAYS)

    killed(body)
    assert not releases(layout).exists("k")
    releases(layout).write("k", {"kind": "model"}, ARRAYS)
    assert releases(layout).exists("k")
    assert len(bucket(layout).names("releases/k")) == 1


@pytest.mark.parametrize("equal", [True, False])
def test_a_race_of_16_writers(layout: Layout, equal: bool) -> None:
    """With equal values all have stored it; with different ones exactly one has, and all read that one."""
    releases(layout)

    def body(number: int) -> str:
        store = releases(layout)
        kind = "same" if equal else f"writer {number}"
        store.write("k", {"kind": kind}, ARRAYS)
        return str(store.read("k")[0]["kind"])

    answers = race(16, body)
    winner = releases(layout).read("k")[0]["kind"]
    assert Counter(answers) == ({"same": 16} if equal else {winner: 1, "StorageError": 15})


def test_rows_lie_in_the_store_alone(layout: Layout) -> None:
    ref = stored(layout, source_of(ROWS, ROWS), private=True)
    assert not list(layout.root.rglob("*.parquet"))
    names = bucket(layout).names("datasets")
    assert names
    for part in ("train", "test"):
        features, labels = gathered(open_dataset(layout, ref, part))
        assert np.allclose(features, ROWS[0], rtol=1e-6)
        assert np.array_equal(labels, ROWS[1])
    # The plain digest would say whether a guess of the rows is right.
    for name in names:
        data = bucket(layout).get(name)
        assert data is not None
        assert hashlib.sha256(data).hexdigest() not in name
    shards = write_shards(layout, ref, {"a": np.arange(100), "b": np.arange(100, 300)}, "even")
    assert {name.split("/")[1] for name in bucket(layout).names("parties")} == {"a", "b"}
    assert np.allclose(gathered(open_shard(layout, shards[1]))[0], ROWS[0][100:], rtol=1e-6)
    assert not list(layout.root.rglob("*.parquet"))


def test_sql_over_a_public_set(layout: Layout) -> None:
    ref = stored(layout, source_of(ROWS), private=False)
    assert ref.labels is Labels.CLASSES
    answer = query_dataset(layout, ref, "SELECT count(*) AS n FROM train a JOIN train b USING (label)")
    assert answer.to_pylist()[0]["n"] == sum(count**2 for count in Counter(ROWS[1].tolist()).values())


def test_damaged_rows_are_noticed_at_reading(layout: Layout) -> None:
    ref = stored(layout, source_of(ROWS), private=True)
    (name,) = bucket(layout).names("datasets")
    data = bucket(layout).get(name)
    assert data is not None
    rows = open_dataset(layout, ref)
    put(layout, name, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedError, match=r"parquet.*digest"):
        gathered(rows)
    bucket(layout).remove(name)
    with pytest.raises(DamagedError, match="parquet is missing"):
        open_dataset(layout, ref)


class _Dying:
    """A file system whose uploads end with the process, after the bytes and before the object is there."""

    def __init__(self, files: Any) -> None:
        self._files = files

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[Any]:
        yield self._files.open_output_stream(path)
        die()


@pytest.mark.parametrize("when", ["in the middle", "after it"])
def test_a_killed_upload_leaves_nothing_and_is_repeated(layout: Layout, when: str) -> None:
    def body() -> None:
        original: Any = objects._client
        if when == "in the middle":
            objects._client = lambda *where: _Dying(original(*where))  # type: ignore[assignment]  # in a child
        else:
            unlink = Path.unlink

            def dying(path: Path, missing_ok: bool = False) -> None:
                (die if path.suffix == ".parquet" else unlink)(path, missing_ok)

            setattr(Path, "unlink", dying)  # noqa: B010 - in a child
        stored(layout, source_of(ROWS), private=True)

    killed(body)
    assert not [path for path in layout.datasets.iterdir() if not path.name.startswith(".")]
    assert len(bucket(layout).names("datasets")) == (0 if when == "in the middle" else 1)
    layout.prepare()
    ref = stored(layout, source_of(ROWS), private=True)
    assert np.allclose(gathered(open_dataset(layout, dataset_ref(layout, ref.version)))[0], ROWS[0], rtol=1e-6)
    assert len(bucket(layout).names("datasets")) == 1


def test_objects_that_no_version_names_go_after_a_day(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = stored(layout, source_of(ROWS), private=True)
    write_shards(layout, ref, {"a": np.arange(300)}, "whole")
    for name in ("datasets/orphan.parquet", "parties/a/orphan.parquet"):
        put(layout, name, b"left")
    assert remove_orphans(layout) == 0, "a writer may still be at work"
    monkeypatch.setattr(objects, "_OLD", timedelta(0))
    assert remove_orphans(layout) == 2
    assert len(gathered(open_dataset(layout, ref))[0]) == 300


@pytest.mark.parametrize(
    "url", ["s3://bucket", "gs://bucket/prefix", "s3:///prefix", "s3://bucket/prefix?x=1", "bucket"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="s3://bucket/prefix"):
        ObjectStore(url)


def test_private_rows_do_not_cross_a_network_in_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:9000")
    with pytest.raises(InputError, match="https://"):
        ObjectStore("s3://bucket/prefix")


def test_a_root_remembers_where_its_rows_are(layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = layout.objects
    monkeypatch.delenv("UNITBALL_OBJECTS")
    assert Layout(layout.root).prepare().objects == url
    other = Layout(tmp_path / "other").prepare()
    assert other.objects is None
    monkeypatch.setenv("UNITBALL_OBJECTS", "s3://elsewhere/prefix")
    for root in (layout, other):
        with pytest.raises(InputError, match="UNITBALL_OBJECTS"):
            root.prepare()


def test_a_store_that_refuses_is_one_line_without_secrets(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_ATTEMPTS", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StorageError) as caught:
        bucket(layout).get("releases/x/y")
    assert "\n" not in str(caught.value)
    assert "a-secret-of-tests" not in str(caught.value)
    with pytest.raises(StorageError, match="object store"):
        stored(layout, source_of(ROWS), private=True)
