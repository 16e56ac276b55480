"""SIGKILL in the middle of every writer: nothing half-written is ever seen, and starting again gives the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import atomic, rowfiles
from storage.datasets import is_complete, open_dataset
from storage.errors import StorageError
from storage.layout import Layout
from storage.refs import DatasetRef
from storage.releases import ReleaseStore
from storage.results import append, query
from storage.rowfiles import RowFormat
from storage.shards import open_shard, write_shards
from storage.transforming import transform_dataset
from tests.support import forks
from tests.support.data import gathered, source_of, stored, synthetic, temporaries
from tests.support.forks import die, in_child, killed

TRAIN, TEST = synthetic(300, 6, seed=151), synthetic(40, 6, seed=152)
ASSIGNMENT = {"0": np.arange(0, 100), "1": np.arange(100, 180), "2": np.arange(180, 300)}


@dataclass(frozen=True)
class Stage:
    """A writer, and what must hold of its result."""

    write: Callable[[Layout], Any]
    check: Callable[[Layout], None]
    groups: int
    """How many row groups it writes."""
    publications: int = 1


def _halved(rows: Any) -> Any:
    return rows / 100


def _base(layout: Layout) -> DatasetRef:
    return stored(layout, source_of(TRAIN, TEST))


def _check_rows(layout: Layout, ref: DatasetRef, scale: float) -> None:
    for part, (features, labels) in (("train", TRAIN), ("test", TEST)):
        got, got_labels = gathered(open_dataset(layout, ref, part))
        assert np.allclose(got, features * scale, rtol=1e-6, atol=0)
        assert np.array_equal(got_labels, labels)


def _normalise(layout: Layout) -> DatasetRef:
    return transform_dataset(layout, _base(layout), _halved, normalisation="hundredth")


def _deal(layout: Layout) -> Any:
    return write_shards(layout, _base(layout), ASSIGNMENT, "even")


def _check_shards(layout: Layout) -> None:
    for shard in _deal(layout):
        features, _ = gathered(open_shard(layout, shard))
        assert np.array_equal(features, TRAIN[0][ASSIGNMENT[shard.party]])


ARRAYS = {"weights": np.arange(5000.0)}


def _release(layout: Layout) -> str:
    return ReleaseStore(layout).write("key", {"kind": "model"}, ARRAYS)


def _check_release(layout: Layout) -> None:
    manifest, arrays = ReleaseStore(layout).read("key")
    assert manifest["kind"] == "model"
    assert np.array_equal(arrays["weights"], ARRAYS["weights"])


def _results(layout: Layout) -> None:
    append(layout, [{"value": 1.5}], run="run")


def _check_results(layout: Layout) -> None:
    assert query(layout, "SELECT * FROM runs").to_pylist() == [{"value": 1.5}]


STAGES = {
    "dataset": Stage(_base, lambda layout: _check_rows(layout, _base(layout), 1.0), groups=12),
    "normalised": Stage(_normalise, lambda layout: _check_rows(layout, _normalise(layout), 0.01), groups=12),
    "shards": Stage(_deal, _check_shards, groups=11, publications=3),
    "release": Stage(_release, _check_release, groups=0),
    "results": Stage(_results, _check_results, groups=0),
}


def _die_at(call: int, owner: Any, name: str, *, after: bool) -> None:
    """Let the process die before or after the given call (counted from 1) of a method."""
    original = getattr(owner, name)
    left = [call]

    def counted(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            die()
        answer = original(*arguments, **options)
        if left[0] == 0:
            die()
        return answer

    setattr(owner, name, counted)


def _moments() -> list[Any]:
    found = []
    for name, stage in STAGES.items():
        for call in {1, stage.groups // 2, stage.groups} if stage.groups else set():
            found.append(pytest.param(name, call, rowfiles.RowWriter, "_write_group", True, id=f"{name}-group-{call}"))
        if name != "results":
            for call in range(1, stage.publications + 1):
                for after in (False, True):
                    when = "after" if after else "before"
                    found.append(
                        pytest.param(name, call, atomic.Staging, "publish", after, id=f"{name}-{when}-rename-{call}")
                    )
        # Shards are not synced: they can be dealt again.
        if name != "shards":
            found.append(pytest.param(name, 1, os, "fsync", True, id=f"{name}-fsync"))
    return found


def _small_blocks(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    patch(RowFormat, "block_rows", property(lambda _format: 32))
    patch(RowFormat, "part_rows", property(lambda _format: 96))


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    _small_blocks(monkeypatch.setattr)
    return Layout(tmp_path / "root").prepare()


@pytest.mark.parametrize(("name", "call", "owner", "method", "after"), _moments())
def test_a_killed_writer_leaves_nothing_half_written(
    layout: Layout, name: str, call: int, owner: Any, method: str, after: bool
) -> None:
    stage = STAGES[name]
    if name in ("normalised", "shards"):
        _base(layout)

    def body() -> None:
        _small_blocks()
        _die_at(call, owner, method, after=after)
        stage.write(layout)

    killed(body)
    _assert_nothing_half(layout)

    def again() -> None:
        _small_blocks()
        layout.prepare()
        stage.write(layout)
        stage.check(layout)

    in_child(again)
    _assert_nothing_half(layout)
    assert temporaries(layout.root) == []


def _assert_nothing_half(layout: Layout) -> None:
    """Whatever bears its final name is whole."""
    for folder in layout.datasets.iterdir():
        if not folder.name.startswith("."):
            assert is_complete(layout, folder.name)
    for manifest in layout.parties.rglob("shard.json"):
        if not any(step.startswith(".") for step in manifest.relative_to(layout.parties).parts):
            assert (manifest.parent / "part-00000.parquet").stat().st_size > 0
    for shard in layout.parties.glob("*/shards/*/[!.]*"):
        assert (shard / "shard.json").is_file()
    store = ReleaseStore(layout)
    for folder in layout.releases.iterdir():
        if not folder.name.startswith("."):
            store.read(folder.name)
    query(layout, "SELECT * FROM runs")


def _write_for_ever(layout: Layout, start: int, said: Any) -> None:
    for number in range(start, start + 1_000_000):
        stored(layout, source_of(synthetic(50, 4, seed=number)), private=True)
        ReleaseStore(layout).write(f"key{number}", {"n": number}, {"x": np.full(1000, number)})
        append(layout, [{"n": number}], run=f"run{number}")
        said.send(number)


def test_kills_at_any_moment_leave_nothing_half_written(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "root").prepare()
    random = np.random.default_rng(153)
    for start in range(0, 8_000, 1_000):
        heard, said = forks.Pipe(duplex=False)
        child = forks.start(_write_for_ever, layout, start, said)
        for _ in range(random.integers(1, 4)):
            assert heard.poll(60)
            heard.recv()
        time.sleep(random.uniform(0, 0.03))
        child.kill()
        child.join()
        _assert_nothing_half(layout)
    assert len(ReleaseStore(layout).keys()) >= 8
    numbers = [row["n"] for row in query(layout, "SELECT n FROM runs").to_pylist()]
    # What comes later in the loop is there only if what comes before it is.
    assert {f"key{number}" for number in numbers} <= set(ReleaseStore(layout).keys())
    assert len(list(layout.datasets.glob("[!.]*"))) >= len(ReleaseStore(layout).keys())


def test_the_check_for_halves_sees_a_half(layout: Layout) -> None:
    ref = _base(layout)
    (layout.dataset(ref.version) / "train" / "part-00001.parquet").unlink()
    with pytest.raises(AssertionError):
        _assert_nothing_half(layout)
    _base(layout)
    _assert_nothing_half(layout)
    _release(layout)
    (layout.release("key") / "arrays.npz").unlink()
    with pytest.raises(StorageError):
        _assert_nothing_half(layout)
