"""Rows behind a slow public map are mapped once, and the same numbers are seen whether they are kept or not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpalgos.features.hog import HogFeatures
from dpalgos.features.scattering import ScatteringFeatures
from dpalgos.features.side_by_side import SideBySideFeatures
from dpalgos.features.whitening import PublicWhitening, WhitenedFeatures
from dpalgos.guarantees import Setting
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import Rows
from storage.layout import Layout
from storage.refs import ShardRef
from storage.shards import open_shard, write_shards
from storage.source import Block, Source
from tasks.preparation import mapped_rows, public_maps
from tasks.release import seen_rows as release_rows
from tasks.release.seen_rows import RowMaps, rows_of
from tests.support.data import flip, stored

ROWS, PIXELS, DIRECTIONS = 1100, 64, 5
SPEC = AlgorithmSpec(
    "projections", "public-whitening", {"images": 40, "components": DIRECTIONS, "feature_parameters": {"scales": 1}}
)


@pytest.fixture(scope="module")
def whitening() -> WhitenedFeatures:
    layout = np.array([1, 8, 8, 1, 2, 2])
    inner = ScatteringFeatures(layout=layout, power=np.array([0.5]))
    random = np.random.default_rng(1)
    return WhitenedFeatures.of(inner, random.random(inner.dimension), random.normal(size=(inner.dimension, DIRECTIONS)))


@pytest.fixture
def shard(root: Path) -> ShardRef:
    layout, random = Layout(root).prepare(), np.random.default_rng(2)
    images = random.random((ROWS, PIXELS)) / 8
    images[3] = 0.0
    block = Block(images, random.integers(0, 2, ROWS))
    source = Source(format="synthetic", place="made up", dimension=PIXELS, parts={"train": [block]}, classes=("0", "1"))
    ref = stored(layout, source, private=True, name="images")
    return write_shards(layout, ref, {"a": np.arange(ROWS)}, "one")[0]


def maps(whitening: WhitenedFeatures, monkeypatch: pytest.MonkeyPatch) -> RowMaps:
    monkeypatch.setattr(release_rows, "read_release", lambda _: whitening)
    return release_rows.maps_of([SimpleNamespace()])  # type: ignore[list-item]  # nothing is read of it


def seen(rows: Rows) -> Sequence[Any]:
    blocks = list(rows.blocks())
    return np.concatenate([block for block, *_ in blocks]), np.concatenate([labels for _, labels, _ in blocks])


def test_kept_rows_are_those_that_are_mapped_anew(
    shard: ShardRef, root: Path, whitening: WhitenedFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = maps(whitening, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(mapped_rows, "_FEWEST_ROWS", ROWS + 1)
        anew = rows_of(shard, path, DIRECTIONS)
        expected = seen(anew)
    assert not list(root.rglob("kept.json"))
    first = rows_of(shard, path, DIRECTIONS)
    monkeypatch.setattr(WhitenedFeatures, "transform", lambda *_: pytest.fail("mapped again"))
    for rows in (first, rows_of(shard, path, DIRECTIONS)):
        assert (rows.count, rows.dimension) == (ROWS, DIRECTIONS)
        assert all(np.array_equal(one, other) for one, other in zip(seen(rows), expected, strict=True))
        # Noise that is drawn first is keyed by the party's own rows, not by their copy.
        assert np.array_equal(rows.fingerprint(), open_shard(Layout(root), shard).fingerprint())
    # A further map meets double precision.
    (doubles, *_) = next(iter(rows_of(shard, [*path, lambda given: given + 0.0], DIRECTIONS).blocks()))
    assert doubles.dtype == np.float64


def test_another_map_has_rows_of_its_own(
    shard: ShardRef, whitening: WhitenedFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = seen(rows_of(shard, maps(whitening, monkeypatch), DIRECTIONS))
    turned = WhitenedFeatures.of(whitening.map, whitening.mean, -whitening.basis)
    other, _ = seen(rows_of(shard, maps(turned, monkeypatch), DIRECTIONS))
    assert np.array_equal(other, -one)
    with monkeypatch.context() as patch:
        patch.setattr(mapped_rows, "code_version", lambda *_: "another")
        assert mapped_rows.map_key(whitening) != mapped_rows.map_key(turned)
        changed = mapped_rows.map_key(whitening)
    assert changed != mapped_rows.map_key(whitening)


def test_kept_rows_are_bound_to_the_code_of_every_map_within(
    whitening: WhitenedFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = HogFeatures(layout=np.array([1, 8, 8, 4, 9, 2]))
    both = SideBySideFeatures.of([whitening.map, other])
    nested = WhitenedFeatures.of(both, np.zeros(both.dimension), np.eye(both.dimension, DIRECTIONS))
    versions = dict.fromkeys([WhitenedFeatures, SideBySideFeatures, ScatteringFeatures, HogFeatures], "as it was")
    monkeypatch.setattr(mapped_rows, "code_version", lambda *classes: ", ".join(versions[cls] for cls in classes))
    before = mapped_rows.map_key(nested)
    for cls in versions:
        with monkeypatch.context() as patch:
            patch.setitem(versions, cls, "another")
            assert mapped_rows.map_key(nested) != before, cls
    assert mapped_rows.map_key(nested) == before


@pytest.mark.parametrize("missing", ["disk", "permission"])
def test_where_nothing_can_be_kept_rows_are_mapped_all_the_same(
    shard: ShardRef, root: Path, whitening: WhitenedFeatures, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4 * ROWS * DIRECTIONS))
    else:

        def refused(*_: object, **__: object) -> None:
            raise OSError("read-only")

        monkeypatch.setattr(mapped_rows, "keep_rows", refused)
    rows, _ = seen(rows_of(shard, maps(whitening, monkeypatch), DIRECTIONS))
    assert rows.shape == (ROWS, DIRECTIONS)
    assert not list(root.rglob("kept.json"))


def test_few_rows_of_a_part_are_mapped_anew_unless_all_are_kept_already(
    shard: ShardRef, root: Path, whitening: WhitenedFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A night's rows are few, and are read a few times; how many a partition has is public."""
    path = maps(whitening, monkeypatch)
    few, *_ = write_shards(Layout(root), shard.dataset, {"a": np.arange(0, ROWS, 9), "b": np.arange(1, ROWS, 9)}, "few")
    expected = seen(rows_of(few, path, DIRECTIONS))
    assert not list(root.rglob("kept.json"))
    (quarter,) = write_shards(Layout(root), shard.dataset, {"a": np.arange(0, ROWS, 4)}, "quarter")
    rows_of(quarter, path, DIRECTIONS)
    assert list(root.rglob("kept.json"))
    monkeypatch.setattr(WhitenedFeatures, "transform", lambda *_: pytest.fail("mapped again"))
    found = seen(rows_of(few, path, DIRECTIONS))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_an_object_store_keeps_what_may_stay_in_memory(
    shard: ShardRef, whitening: WhitenedFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 * DIRECTIONS * ROWS
    assert mapped_rows.has_room(shard.dataset, "train", DIRECTIONS)
    monkeypatch.setenv("UNITBALL_MEMORY", str(4 * size - 4))
    assert mapped_rows.has_room(shard.dataset, "train", DIRECTIONS)
    monkeypatch.setattr(mapped_rows, "objects_of", lambda _: object())
    assert not mapped_rows.has_room(shard.dataset, "train", DIRECTIONS)
    monkeypatch.setenv("UNITBALL_MEMORY", str(4 * size))
    assert mapped_rows.has_room(shard.dataset, "train", DIRECTIONS)


def test_a_map_that_takes_long_is_made_once_for_a_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Layout(root).prepare()
    setting, calls = Setting(sizes=(), dimension=PIXELS, classes=2), []
    inner, random = ScatteringFeatures(np.array([1, 8, 8, 1, 8, 4]), np.array([0.5])), np.random.default_rng(3)

    def make(self: PublicWhitening, dimension: int) -> WhitenedFeatures:
        calls.append(dimension)
        basis = np.random.default_rng(4).normal(size=(inner.dimension, self.components))
        return WhitenedFeatures.of(inner, random.random(inner.dimension), basis)

    monkeypatch.setattr(PublicWhitening, "fit", lambda self, *_: make(self, PIXELS))
    first = public_maps.public_map(SPEC, setting)
    again = public_maps.public_map(SPEC, setting)
    assert len(calls) == 1
    assert all(np.array_equal(array, again.arrays()[name]) for name, array in first.arrays().items())
    fewer = public_maps.public_map(SPEC.with_parameters(components=4), setting)
    assert len(calls) == 1, "fewer directions are the first of what is stored"
    np.testing.assert_array_equal(fewer.arrays()["basis"], first.arrays()["basis"][:, :4])
    public_maps.public_map(SPEC.with_parameters(floor=0.5), setting)
    assert len(calls) == 2
    for place in root.rglob("arrays.npz"):
        flip(place)
    public_maps.public_map(SPEC, setting)
    public_maps.public_map(SPEC, setting)
    assert len(calls) == 3
