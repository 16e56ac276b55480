"""A second actor placed between check and act, by name and not by luck: what is whole is never removed by anybody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import atomic, rounds, shards
from storage import datasets as datasets_module
from storage import secrets as secrets_module
from storage.datasets import MANIFEST, open_dataset
from storage.errors import StorageError
from storage.layout import Layout
from storage.releases import ReleaseStore
from storage.rounds import RoundStore
from storage.rowfiles import StoredRows
from storage.secrets import party_secret
from storage.shards import open_shard, write_shards
from tests.support.data import flip, gathered, source_of, stored, synthetic, temporaries
from tests.support.stating import stating

ROWS = synthetic(60, 4, seed=171)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _after_first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], Any]) -> list[Any]:
    """Let a second actor act right after the first call of a check has answered; return what it did."""
    check = getattr(owner, name)
    done: list[Any] = []

    def checked(*arguments: Any, **options: Any) -> Any:
        try:
            return check(*arguments, **options)
        finally:
            if not done:
                done.append(None)
                done[0] = act()

    monkeypatch.setattr(owner, name, checked)
    return done


def test_a_release_published_after_the_check_stays(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ReleaseStore(layout), ReleaseStore(layout)
    _after_first(monkeypatch, ReleaseStore, "exists", lambda: second.write("k", {"kind": "model"}, {"x": np.ones(3)}))
    with pytest.raises(StorageError, check=stating(way_out="--replicate")):
        first.write("k", {"kind": "model"}, {"x": np.zeros(3)})
    assert np.array_equal(first.read("k")[1]["x"], np.ones(3))
    assert not temporaries(layout.root)


def test_a_release_mended_after_the_check_stays(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = ReleaseStore(layout), ReleaseStore(layout)
    values = {"x": np.ones(3)}
    store.write("k", {"kind": "model"}, values)
    flip(layout.release("k") / "arrays.npz")

    def mend() -> str:
        assert other.remove_damaged("k") == ("k",)
        return other.write("k", {"kind": "model"}, values)

    _after_first(monkeypatch, ReleaseStore, "read", mend)
    assert store.remove_damaged("k") == ()
    assert np.array_equal(store.read("k")[1]["x"], values["x"])


def test_a_half_release_makes_room(layout: Layout) -> None:
    store = ReleaseStore(layout)
    layout.release("k").mkdir()
    (layout.release("k") / "arrays.npz").write_bytes(b"half")
    store.write("k", {"kind": "model"}, {"x": np.ones(3)})
    assert np.array_equal(store.read("k")[1]["x"], np.ones(3))


def test_a_version_mended_after_the_check_stays(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = stored(layout, source_of(ROWS))
    part = layout.dataset(ref.version) / "train" / "part-00000.parquet"
    flip(part)
    removed: list[Path] = []
    discard = atomic.discard

    def told(path: Path) -> None:
        assert not datasets_module.is_complete(layout, ref.version), "what is removed here is whole"
        removed.append(path)
        discard(path)

    monkeypatch.setattr(atomic, "discard", told)
    # The check is made under the lock of publication, so the second actor has to wait for the act.
    second = threading.Thread(target=lambda: stored(layout, source_of(ROWS)))

    def begin() -> None:
        second.start()
        second.join(0.5)

    _after_first(monkeypatch, datasets_module, "is_complete", begin)
    stored(layout, source_of(ROWS))
    second.join(300)
    assert removed == [layout.dataset(ref.version)]
    assert np.array_equal(gathered(open_dataset(layout, ref))[0], ROWS[0])
    assert not temporaries(layout.root)


def test_a_shard_dealt_after_the_check_stays(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = stored(layout, source_of(ROWS))
    deal = {"0": np.arange(60)}
    (shard,) = write_shards(layout, ref, deal, "even")
    folder = layout.shard("0", "even", ref.version)
    flip(folder / "part-00000.parquet")

    def second() -> int:
        write_shards(layout, ref, deal, "even")
        return folder.stat().st_ino

    done = _after_first(monkeypatch, shards._Partitioning, "has", second)
    write_shards(layout, ref, deal, "even")
    assert folder.stat().st_ino == done[0]
    assert np.array_equal(gathered(open_shard(layout, shard))[0], ROWS[0])


def test_a_partition_dealt_otherwise_after_the_check_is_refused(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = stored(layout, source_of(ROWS))
    _after_first(
        monkeypatch, shards._Partitioning, "has", lambda: write_shards(layout, ref, {"0": np.arange(10)}, "even")
    )
    with pytest.raises(StorageError, match=r"party '0'.*partition even"):
        write_shards(layout, ref, {"0": np.arange(10, 20)}, "even")
    (shard,) = write_shards(layout, ref, {"0": np.arange(10)}, "even")
    assert np.array_equal(gathered(open_shard(layout, shard))[0], ROWS[0][:10])


def test_of_two_secrets_the_first_one_stays(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    done = _after_first(monkeypatch, secrets_module, "_read", lambda: party_secret(layout, "0"))
    assert party_secret(layout, "0") == done[0]


def test_of_two_messages_the_first_one_stays(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    done = _after_first(
        monkeypatch, rounds.RoundStore, "_read", lambda: RoundStore(layout.round("key")).put("keys-0", b"second actor")
    )
    assert RoundStore(layout.round("key")).put("keys-0", b"first actor") == done[0] == b"second actor"


def test_the_files_of_a_sound_version_are_those_that_were_read(layout: Layout) -> None:
    """Ingesting the same rows again replaces nothing: somebody may be reading them."""
    ref = stored(layout, source_of(ROWS))
    before = (layout.dataset(ref.version) / MANIFEST).stat().st_ino
    assert isinstance(open_dataset(layout, ref), StoredRows)
    stored(layout, source_of(ROWS))
    assert (layout.dataset(ref.version) / MANIFEST).stat().st_ino == before
