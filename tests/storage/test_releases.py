"""Releases: bytes that depend on values alone, written once, never changed, damage named."""

from __future__ import annotations

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import atomic, documents
from storage import releases as module
from storage.errors import DamagedError, FormatVersionError, InputError, StorageError
from storage.layout import Layout
from storage.releases import ReleaseStore
from tests.support.data import files_of, flip, temporaries
from tests.support.forks import race
from tests.support.stating import stating

MANIFEST: dict[str, Any] = {
    "kind": "linear-model",
    "guarantee": {"mu": 0.1, "order": (1, 2)},
    "claim": None,
    "text": "ε",
    "by_class": {10: "a", 9: "b"},
}


def _arrays(seed: int = 131) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "weights": random.normal(size=(10, 7)),
        "basis": random.normal(size=(4, 3)),
        "bias": np.zeros(10),
        "scalar": np.float64(2.5),
        "counts": np.arange(4, dtype=np.int64),
        "names": np.array(["a", "bc"]),
        "empty": np.zeros((0, 3)),
    }


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


@pytest.fixture
def store(layout: Layout) -> ReleaseStore:
    return ReleaseStore(layout)


def test_a_release_comes_back(store: ReleaseStore) -> None:
    assert not store.exists("k1")
    digest = store.write("k1", MANIFEST, _arrays())
    assert store.exists("k1")
    manifest, arrays = store.read("k1")
    assert manifest == {**json.loads(json.dumps(MANIFEST)), "format_version": 1}
    assert list(arrays) == sorted(_arrays())
    for name, array in _arrays().items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == np.asarray(array).dtype
        assert arrays[name].shape == np.asarray(array).shape
    assert digest == store.digest_of(MANIFEST, _arrays()) == store.digest_of(manifest, arrays)
    assert store.keys() == ("k1",)


def test_the_bytes_depend_on_values_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ReleaseStore(Layout(tmp_path / "a").prepare())
    second = ReleaseStore(Layout(tmp_path / "b").prepare())
    digest = first.write("k", MANIFEST, _arrays())
    monkeypatch.setattr(time, "time", lambda: 4e9)
    shuffled: dict[str, Any] = {name: np.asfortranarray(array) for name, array in reversed(_arrays().items())}
    shuffled["scalar"] = np.float64(2.5)
    shuffled["weights"] = np.repeat(_arrays()["weights"], 2, axis=0)[::2]
    shuffled["counts"] = np.arange(4, dtype=">i8")
    assert second.write("k", dict(reversed(MANIFEST.items())), shuffled) == digest
    assert files_of(tmp_path / "a" / "releases") == files_of(tmp_path / "b" / "releases")
    # Pinned: another digest means that what is stored no longer verifies.
    assert ReleaseStore.digest_of({"kind": "x"}, {"w": np.arange(3.0)}) == (
        "7221c376cc136e2a96f7aa2f94b682aad3cffae0507e370eef9bc2e98541edc8"
    )


def test_every_value_changes_the_digest() -> None:
    base = ReleaseStore.digest_of(MANIFEST, _arrays())
    changed = _arrays()
    changed["weights"][3, 3] = np.nextafter(changed["weights"][3, 3], 9)
    assert ReleaseStore.digest_of(MANIFEST, changed) != base
    assert ReleaseStore.digest_of({**MANIFEST, "text": "e"}, _arrays()) != base
    renamed = {**_arrays(), "biases": _arrays()["bias"]}
    del renamed["bias"]
    assert ReleaseStore.digest_of(MANIFEST, renamed) != base
    assert ReleaseStore.digest_of(MANIFEST, {**_arrays(), "bias": np.zeros((10, 1))}) != base
    assert ReleaseStore.digest_of(MANIFEST, {**_arrays(), "bias": np.zeros(10, np.float32)}) != base


def test_a_release_is_never_overwritten(store: ReleaseStore, layout: Layout) -> None:
    digest = store.write("k1", MANIFEST, _arrays())
    before = files_of(layout.releases)
    assert store.write("k1", MANIFEST, _arrays()) == digest
    with pytest.raises(StorageError, match=r"k1.*--replicate", check=stating(way_out="--replicate")):
        store.write("k1", MANIFEST, _arrays(132))
    with pytest.raises(StorageError, check=stating(way_out="--replicate")):
        store.write("k1", {**MANIFEST, "text": "x"}, _arrays())
    assert files_of(layout.releases) == before


def test_a_slower_writer_of_other_values_is_refused(store: ReleaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = atomic.Staging.publish

    def slow(self: atomic.Staging, target: Path, *more: Any) -> bool:
        monkeypatch.setattr(atomic.Staging, "publish", publish)
        store.write("k1", MANIFEST, _arrays(132))
        return publish(self, target, *more)

    monkeypatch.setattr(atomic.Staging, "publish", slow)
    with pytest.raises(StorageError, check=stating(way_out="--replicate")):
        store.write("k1", MANIFEST, _arrays())
    assert np.array_equal(store.read("k1")[1]["weights"], _arrays(132)["weights"])


def test_racing_writers_leave_one_release(store: ReleaseStore, layout: Layout) -> None:
    answers = race(4, lambda number: store.write("k", MANIFEST, _arrays(number)))
    stored = store.digest_of(*store.read("k"))
    assert answers.count("StorageError") == 3
    assert stored in answers
    assert not temporaries(layout.root)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(b"[1, 2]")


@pytest.mark.parametrize("name", ["manifest.json", "arrays.npz"])
@pytest.mark.parametrize("damage", [flip, _cut, _empty, _garbage])
def test_damage_is_named(store: ReleaseStore, layout: Layout, name: str, damage: Callable[[Path], None]) -> None:
    store.write("k1", MANIFEST, _arrays())
    store.write("k2", MANIFEST, _arrays())
    damage(layout.release("k1") / name)
    with pytest.raises(DamagedError, match=name):
        store.read("k1")
    assert store.remove_damaged() == ("k1",)
    assert store.keys() == ("k2",)
    assert store.remove_damaged() == ()
    assert store.write("k1", MANIFEST, _arrays())
    assert store.read("k1")
    assert not temporaries(layout.root)


def test_every_flipped_byte_is_found(store: ReleaseStore, layout: Layout) -> None:
    store.write("k", MANIFEST, _arrays())
    for name in ("manifest.json", "arrays.npz"):
        path = layout.release("k") / name
        whole = path.read_bytes()
        for place in np.linspace(0, 0.999, 60):
            flip(path, place)
            with pytest.raises(DamagedError):
                store.read("k")
            path.write_bytes(whole)
    store.read("k")


def test_a_release_without_arrays_is_damaged_and_one_without_manifest_is_none(
    store: ReleaseStore, layout: Layout
) -> None:
    store.write("k1", MANIFEST, _arrays())
    (layout.release("k1") / "arrays.npz").unlink()
    with pytest.raises(DamagedError, match=r"arrays\.npz is missing"):
        store.read("k1")
    assert store.remove_damaged("k1") == ("k1",)
    store.write("k2", MANIFEST, _arrays())
    (layout.release("k2") / "manifest.json").unlink()
    assert not store.exists("k2")
    assert store.keys() == ()
    with pytest.raises(StorageError, match=r"manifest.json", check=stating(value="manifest.json", bound="present")):
        store.read("k2")
    assert store.write("k2", MANIFEST, _arrays())
    assert store.read("k2")


def test_manifest_and_arrays_of_two_releases_cannot_be_swapped(store: ReleaseStore, layout: Layout) -> None:
    store.write("k1", MANIFEST, _arrays())
    store.write("k2", MANIFEST, _arrays(133))
    (layout.release("k1") / "arrays.npz").write_bytes((layout.release("k2") / "arrays.npz").read_bytes())
    with pytest.raises(DamagedError):
        store.read("k1")


def test_a_sound_release_is_not_removed(store: ReleaseStore) -> None:
    store.write("k1", MANIFEST, _arrays())
    assert store.remove_damaged("k1") == ()
    assert store.exists("k1")


def test_python_objects_and_odd_manifests_are_refused(store: ReleaseStore) -> None:
    with pytest.raises(StorageError, match=r"'x'.*Python"):
        store.write("k", MANIFEST, {"x": np.array([{}], dtype=object)})
    for odd in ({"x": float("nan")}, {"x": np.float64("inf")}, {"x": {1, 2}}, {"x": Path("a")}):
        with pytest.raises(StorageError, match="plain JSON"):
            store.write("k", odd, _arrays())
    assert not store.exists("k")
    with pytest.raises(InputError):
        store.write("../k", MANIFEST, _arrays())


def test_a_pickle_in_place_of_an_array_is_not_opened(store: ReleaseStore, layout: Layout) -> None:
    store.write("k", MANIFEST, _arrays())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, archive.open("weights.npy", "w") as file:
        np.lib.format.write_array(file, np.array([{}], dtype=object), allow_pickle=True)
    path = layout.release("k") / "arrays.npz"
    path.write_bytes(buffer.getvalue())
    # Even where its digest is right, as one who may write the root could make it.
    body = documents.load_manifest(layout.release("k") / "manifest.json", version=1)
    body["arrays"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    body["release"] = module._digest(body["manifest"], buffer.getvalue())
    (layout.release("k") / "manifest.json").write_bytes(documents.dump_manifest(body, version=1))
    with pytest.raises((DamagedError, ValueError)):
        store.read("k")


def test_a_newer_release_is_refused_and_not_removed(store: ReleaseStore, layout: Layout) -> None:
    store.write("k", MANIFEST, _arrays())
    path = layout.release("k") / "manifest.json"
    body = documents.load_manifest(path, version=1)
    path.write_bytes(documents.dump_manifest(body, version=2))
    with pytest.raises(FormatVersionError, match=r"version 2.*Unitball.*1", check=stating(value=2, bound=1)):
        store.read("k")
    with pytest.raises(FormatVersionError):
        store.remove_damaged()
    assert path.exists()


def test_a_release_and_private_folders_are_their_owners_alone(store: ReleaseStore, layout: Layout) -> None:
    store.write("k", MANIFEST, _arrays())
    assert layout.release("k").stat().st_mode & 0o777 == 0o700
    assert layout.private.stat().st_mode & 0o777 == 0o700
