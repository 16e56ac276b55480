"""Stored versions: what goes in comes out, under a name that says what it should and no more."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import sparse

from dpalgos.normalisation import UnitNorm
from dpalgos.rows import clip_to_unit_ball, unit_rows
from storage import datasets, documents, rowfiles
from storage.datasets import (
    MANIFEST,
    dataset_ref,
    into_unit_ball,
    is_complete,
    open_dataset,
    transform_dataset,
    write_dataset,
)
from storage.errors import DamagedError, FormatVersionError, InputError, RefusedError, StorageError
from storage.fingerprints import row_fingerprints
from storage.layout import Layout
from storage.refs import DatasetRef, Labels, Visibility
from storage.rowfiles import RowFormat, RowWriter, StoredRows
from storage.secrets import root_secret
from storage.source import Block, Source
from tests.support.data import files_of, flip, gathered, source_of, stored, synthetic, temporaries
from tests.support.stating import stating


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _wide(rows: int, seed: int, dimension: int = 3000) -> tuple[Any, NDArray[np.int64]]:
    matrix = sparse.random(rows, dimension, density=0.004, format="csr", dtype=np.float32, rng=seed)
    return matrix, np.arange(rows) % 2


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("dimension", [1, 2, 30])
def test_dense_rows_come_back(layout: Layout, private: bool, dimension: int) -> None:
    train, test = synthetic(101, dimension, seed=1, classes=3), synthetic(13, dimension, seed=2, classes=3)
    names = np.array(["a", "b", "c"])
    named = [(features, names[labels]) for features, labels in (train, test)]
    ref = stored(layout, source_of(*named, classes=("a", "b", "c")), private=private)
    assert (ref.rows, ref.test_rows, ref.dimension, ref.classes) == (101, 13, dimension, ("a", "b", "c"))
    for part, (features, labels) in (("train", train), ("test", test)):
        rows = open_dataset(layout, ref, part)
        assert (rows.count, rows.dimension) == (len(labels), dimension)
        got, got_labels = gathered(rows)
        assert got.dtype == np.float32
        assert got_labels.dtype == np.int64
        assert np.array_equal(got, features)
        assert np.array_equal(got_labels, labels)
    assert dataset_ref(layout, ref.version) == ref


def test_sparse_rows_come_back_and_small_ones_are_stored_densely(layout: Layout) -> None:
    matrix, labels = _wide(200, seed=3)
    ref = stored(layout, source_of((matrix, labels), sparse=True))
    rows = open_dataset(layout, ref)
    assert rows.format.sparse
    features, got = gathered(rows)
    assert np.array_equal(features, matrix.toarray().astype(np.float64))
    assert np.array_equal(got, labels)
    small = stored(layout, source_of((matrix[:, :100], labels), sparse=True))
    assert not open_dataset(layout, small).format.sparse
    assert np.array_equal(gathered(open_dataset(layout, small))[0], matrix[:, :100].toarray())


def test_real_labels_come_back_exactly(layout: Layout) -> None:
    features, _ = synthetic(50, 3, seed=4)
    labels = np.random.default_rng(5).uniform(-1, 1, 50)
    ref = stored(layout, source_of((features, labels), label_range=(-1.0, 1.0)), private=True)
    assert (ref.labels, ref.label_range, ref.classes) == (Labels.REAL, (-1.0, 1.0), ())
    got = gathered(open_dataset(layout, ref))[1]
    assert got.dtype == np.float64
    assert np.array_equal(got, labels)


@settings(max_examples=25, deadline=None)
@given(some.data())
def test_any_float32_rows_come_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    layout = Layout(tmp_path_factory.mktemp("any")).prepare()
    numbers = some.floats(width=32, allow_nan=False, allow_infinity=False)
    rows = data.draw(some.integers(1, 40))
    features = data.draw(arrays(np.float32, (rows, data.draw(some.integers(1, 5))), elements=numbers))
    labels = data.draw(arrays(np.int64, rows, elements=some.integers(0, 2)))
    source = source_of((features, labels), classes="012", block=data.draw(some.integers(1, 9)))
    got, got_labels = gathered(open_dataset(layout, stored(layout, source, private=True)))
    assert got.astype(np.float32).tobytes() == features.tobytes()
    assert np.array_equal(got_labels, labels)


def test_rows_are_rounded_to_float32(layout: Layout) -> None:
    features = np.array([[1 / 3, math.pi], [1e-50, -0.1]])
    got = gathered(open_dataset(layout, stored(layout, source_of((features, [0, 1])))))[0]
    assert np.array_equal(got, features.astype(np.float32).astype(np.float64))


def test_blocks_parts_and_row_groups_do_not_change_what_is_read(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = synthetic(1000, 5, seed=6)
    monkeypatch.setattr(RowFormat, "block_rows", property(lambda _format: 64))
    monkeypatch.setattr(RowFormat, "part_rows", property(lambda _format: 300))
    ref = stored(layout, source_of(train, block=37))
    rows = open_dataset(layout, ref)
    assert len(rows.files) == 4
    assert [len(labels) for _, labels, _ in rows.blocks()] == [64] * 15 + [40]
    assert np.array_equal(gathered(rows)[0], train[0])
    # The same cut for other blocks on the way in: sums over blocks repeat bit by bit.
    other = open_dataset(other_root := Layout(tmp_path / "b").prepare(), stored(other_root, source_of(train, block=11)))
    assert [path.read_bytes() for path in rows.files] == [path.read_bytes() for path in other.files]


def test_what_hardly_shrinks_is_not_compressed(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    noise = random.standard_normal((300, 40), dtype=np.float32)
    for name, rows, codec in (("noise", noise, "UNCOMPRESSED"), ("counts", np.rint(noise), "ZSTD")):
        layout = RowFormat(40, Labels.CLASSES)
        writer = RowWriter(tmp_path / name, layout)
        writer.write(layout.encode(rows, np.zeros(300)))
        stored_rows = StoredRows.open(tmp_path / name, layout, writer.close())
        assert pq.ParquetFile(stored_rows.files[0]).metadata.row_group(0).column(0).compression == codec
        assert np.array_equal(np.concatenate([features for features, *_ in stored_rows.blocks()]), rows)


def test_public_versions_are_named_by_their_content(layout: Layout, tmp_path: Path) -> None:
    train, test = synthetic(60, 4, seed=7), synthetic(10, 4, seed=8)
    other_root = Layout(tmp_path / "other").prepare()
    ref = stored(layout, source_of(train, test, block=7), name="one")
    same = stored(other_root, source_of(train, test, block=60), name="two")
    assert same.version == ref.version
    assert (ref.name, same.name) == ("one", "two")
    again = stored(layout, source_of(train, test), name="three")
    assert (again.version, again.name, again.account) == (ref.version, "three", "three")
    assert len(list(layout.datasets.iterdir())) == 1
    features, labels = train
    changed = features.copy()
    changed[30, 2] = np.nextafter(np.float32(changed[30, 2]), np.float32(9))
    versions = {
        ref.version,
        stored(layout, source_of(train)).version,
        stored(layout, source_of((changed, labels), test)).version,
        stored(layout, source_of((features[::-1], labels[::-1]), test)).version,
        stored(layout, source_of((features, 1 - labels), test)).version,
        stored(layout, source_of(train, test, classes=("1", "0"))).version,
        stored(layout, source_of(train, test, classes=("0", "1", "2"))).version,
        stored(layout, source_of(test, train)).version,
    }
    assert len(versions) == 8


def test_private_versions_are_named_at_random_and_say_nothing(layout: Layout) -> None:
    train = synthetic(60, 4, seed=9)
    first, second = (stored(layout, source_of(train), private=True) for _ in range(2))
    assert first.version != second.version
    assert len(first.version) == 32
    public = stored(Layout(layout.root / "elsewhere").prepare(), source_of(train))
    text = (layout.dataset(first.version) / MANIFEST).read_text()
    assert public.version not in text
    shown = first.model_dump_json()
    for part in ("train",):
        content = open_dataset(layout, first, part).content
        assert content not in shown
        assert content not in repr(open_dataset(layout, first, part))


def test_the_same_private_rows_under_one_name_are_one_version(layout: Layout) -> None:
    train = synthetic(60, 4, seed=10)
    first = stored(layout, source_of(train), private=True)
    assert stored(layout, source_of(train, block=60), private=True, previous=(first,)) == first
    other = stored(layout, source_of(synthetic(60, 4, seed=11)), private=True, previous=(first,))
    assert other != first
    assert len(list(layout.datasets.iterdir())) == 2
    shutil.rmtree(layout.dataset(first.version))
    assert stored(layout, source_of(train), private=True, previous=(first,)) != first
    assert not temporaries(layout.root)


def test_nothing_private_is_learnt_from_rows(layout: Layout) -> None:
    train = synthetic(20, 4, seed=12)
    for found in ("dimension", "classes"):
        with pytest.raises(RefusedError, check=stating(value=(found,), bound="declared", way_out=f"--{found}")):
            stored(layout, source_of(train, found=frozenset({found})), private=True)
    assert list(layout.datasets.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "../a"])
def test_names_are_checked(layout: Layout, name: str) -> None:
    source = source_of(synthetic(4, 2, seed=13))
    with pytest.raises(InputError, match=r"^data set name"):
        write_dataset(layout, source, name=name, account="a", visibility=Visibility.PUBLIC)
    with pytest.raises(InputError, match=r"^account"):
        write_dataset(layout, source, name="a", account=name, visibility=Visibility.PUBLIC)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
@pytest.mark.parametrize("wide", [False, True])
def test_a_number_that_is_not_finite_is_refused_by_its_place(
    layout: Layout, private: bool, value: float, wide: bool
) -> None:
    features, labels = synthetic(30, 4, seed=14)
    features[17, 2] = value
    given: Any = sparse.csr_matrix(features) if wide else features
    with pytest.raises(InputError, match="row 18: feature 3"):
        stored(layout, source_of((given, labels), sparse=wide), private=private)
    assert list(layout.datasets.iterdir()) == []


def test_bad_labels_are_refused_by_their_place(layout: Layout) -> None:
    features, _ = synthetic(30, 4, seed=15)
    with pytest.raises(InputError, match=r"row 30: label '7'.*0, 1"):
        stored(layout, source_of((features, [0, 1] * 14 + [0, 7])))
    with pytest.raises(InputError, match="row 1: label 'x'"):
        stored(layout, source_of((features, [0, 1] * 15), (features, ["x"] * 30)))
    for bad in (math.nan, math.inf, 2.5, "x"):
        labels = np.array([0.0] * 29 + [bad], dtype=object)
        with pytest.raises(InputError, match=rf"train row 30: label {bad!r}.*\[-1, 2\]"):
            stored(layout, source_of((features, labels), label_range=(-1.0, 2.0)))


@pytest.mark.parametrize("private", [False, True])
def test_what_is_refused_is_refused_first_although_the_next_rows_are_read_beside_it(
    layout: Layout, private: bool
) -> None:
    """A reader a block ahead fails, too: what is said is what was wrong with the block before, and no more is read."""
    read = []

    class Failing:
        def __iter__(self) -> Any:
            for number in range(4):
                read.append(number)
                if number == 2:
                    raise InputError("the file ends within a row")
                yield Block(np.full((5, 3), math.nan if number == 1 else 0.5), np.arange(5) % 2)

    failing = Source(format="synthetic", place="here", dimension=3, classes=("0", "1"), parts={"train": Failing()})
    with pytest.raises(InputError, match="row 6: feature 1"):
        stored(layout, failing, private=private)
    assert read == [0, 1, 2]
    assert list(layout.datasets.iterdir()) == []


def test_empty_and_one_class_sets_are_refused(layout: Layout) -> None:
    features, _ = synthetic(30, 4, seed=16)
    with pytest.raises(InputError, check=stating(value=0, bound=1)):
        stored(layout, source_of((features[:0], [])))
    with pytest.raises(InputError, check=stating(value=1, bound=2)):
        stored(layout, source_of((features, [1] * 30), (features, [0, 1] * 15)))
    # How many classes private rows hold is theirs to keep.
    assert stored(layout, source_of((features, [0, 1] * 15), (features[:0], []))).test_rows == 0
    assert stored(layout, source_of((features, [1] * 30)), private=True).classes == ("0", "1")


def test_blocks_of_another_width_are_refused(layout: Layout) -> None:
    source = source_of(synthetic(30, 4, seed=17))
    object.__setattr__(source, "dimension", 5)
    with pytest.raises(InputError, match="5 features"):
        stored(layout, source)


def test_a_part_that_is_not_there_is_named(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(30, 4, seed=18)))
    with pytest.raises(InputError, match=r"data set rows.*: train"):
        open_dataset(layout, ref, "test")
    with pytest.raises(StorageError, check=stating(value="dataset.json", bound="present")):
        open_dataset(layout, ref.model_copy(update={"version": "none"}))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, _cut, _remove, _empty])
@pytest.mark.parametrize("which", ["part", "manifest"])
def test_damage_is_found_when_opened(layout: Layout, damage: Callable[[Path], None], which: str) -> None:
    ref = stored(layout, source_of(synthetic(300, 4, seed=19)), private=True)
    rows = open_dataset(layout, ref)
    path = rows.files[0] if which == "part" else layout.dataset(ref.version) / MANIFEST
    damage(path)
    with pytest.raises(StorageError, match=path.name):
        open_dataset(layout, ref)
    assert not is_complete(layout, ref.version)


@pytest.mark.parametrize("name", ["train/part-00000.parquet", MANIFEST])
@pytest.mark.parametrize("damage", [flip, _remove])
def test_ingesting_again_mends_a_damaged_version(layout: Layout, damage: Callable[[Path], None], name: str) -> None:
    train = synthetic(60, 4, seed=42)
    ref = stored(layout, source_of(train))
    derived = transform_dataset(layout, ref, _unit, normalisation="unit-norm")
    for version in (ref, derived):
        damage(layout.dataset(version.version) / name)
    assert stored(layout, source_of(train)) == ref
    assert transform_dataset(layout, ref, _unit, normalisation="unit-norm") == derived
    assert np.array_equal(gathered(open_dataset(layout, ref))[0], train[0])
    assert np.allclose(gathered(open_dataset(layout, derived))[0], _unit(train[0]), atol=1e-6)
    assert not temporaries(layout.root)


def test_every_flipped_byte_of_a_part_is_found(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(40, 3, seed=20)))
    path = open_dataset(layout, ref).files[0]
    whole = path.read_bytes()
    for place in np.linspace(0, 1, 23):
        flip(path, place)
        with pytest.raises(DamagedError, check=stating(value="part-00000.parquet", bound="digest")):
            open_dataset(layout, ref)
        path.write_bytes(whole)


def test_a_newer_format_is_refused(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(40, 3, seed=21)))
    path = layout.dataset(ref.version) / MANIFEST
    body = {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}
    path.write_bytes(documents.dump_manifest(body, version=datasets.FORMAT_VERSION + 1))
    with pytest.raises(FormatVersionError, match=r"version 2.*Unitball.*1", check=stating(value=2, bound=1)):
        open_dataset(layout, ref)


def test_digests_are_verified_once_a_state_of_the_file(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """What wrote a file has read it for its digest; it is read again where it may be another, and never otherwise."""
    ref = stored(layout, source_of(synthetic(40, 3, seed=22)))
    read: list[object] = []
    digest = hashlib.file_digest

    def counted(file: Any, kind: str) -> Any:
        read.append(file)
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    for _ in range(3):
        open_dataset(layout, ref)
    assert not read
    (path,) = layout.dataset(ref.version).rglob("part-*.parquet")
    flip(path)
    flip(path)
    open_dataset(layout, ref)
    assert len(read) == 1
    flip(path)
    with pytest.raises(DamagedError, match="digest", check=stating(value="part-00000.parquet", bound="digest")):
        open_dataset(layout, ref)
    flip(path)
    other = path.with_name("other")
    shutil.copy2(path, other)
    flip(other)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    with pytest.raises(DamagedError, match="digest", check=stating(value="part-00000.parquet", bound="digest")):
        open_dataset(layout, ref)


def test_fingerprints_of_parts_follow_their_rows(layout: Layout, tmp_path: Path) -> None:
    train, test = synthetic(60, 4, seed=23), synthetic(10, 4, seed=24)
    ref = stored(layout, source_of(train, test), private=True)
    rows = open_dataset(layout, ref)
    assert rows.fingerprint().shape == (32,)
    assert rows.fingerprint().dtype == np.uint8
    assert not np.array_equal(rows.fingerprint(), open_dataset(layout, ref, "test").fingerprint())
    other = Layout(tmp_path / "other").prepare()
    same = open_dataset(other, stored(other, source_of(train, block=3), private=True))
    assert np.array_equal(rows.fingerprint(), same.fingerprint())
    changed = train[0].copy()
    changed[0, 0] += 1
    less = open_dataset(other, stored(other, source_of((changed, train[1])), private=True))
    assert not np.array_equal(rows.fingerprint(), less.fingerprint())


def test_row_fingerprints_are_keyed_and_do_not_know_the_storage() -> None:
    features, _ = synthetic(50, 6, seed=25)
    features[features < 0] = 0
    dense = row_fingerprints(features, b"k" * 32)
    assert len(np.unique(dense)) == 50
    assert np.array_equal(dense, row_fingerprints(sparse.csr_matrix(features), b"k" * 32))
    negative_zero = np.where(features == 0, -0.0, features)
    assert np.array_equal(dense, row_fingerprints(negative_zero, b"k" * 32))
    assert not np.isin(dense, row_fingerprints(features, b"l" * 32)).any()
    # Columns count, not the values alone.
    assert not np.isin(dense, row_fingerprints(np.roll(features, 1, axis=1), b"k" * 32)).any()


@pytest.mark.parametrize("rows", [0, 1, 2, 30])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_fingerprint_is_the_keyed_digest_of_columns_and_values_whatever_rows_are_beside(
    rows: int, zeros: bool
) -> None:
    features = (synthetic(30, 6, seed=26)[0][:rows] + 2.0).astype(np.float32)
    # One zero in one row: the others are whole, and keep the fingerprints that they have without it.
    features[-1:, 2] *= not zeros
    expected = [
        hashlib.blake2b(
            np.flatnonzero(row).astype("<i4").tobytes() + row[row != 0].astype("<f4").tobytes(),
            key=b"k" * 32,
            digest_size=8,
        ).digest()
        for row in features
    ]
    assert row_fingerprints(features, b"k" * 32).astype("<u8").tobytes() == b"".join(expected)
    assert row_fingerprints(sparse.csr_matrix(features), b"k" * 32).astype("<u8").tobytes() == b"".join(expected)


def test_what_was_private_cannot_become_public(layout: Layout) -> None:
    features, labels = synthetic(1000, 6, seed=26)
    fresh, _ = synthetic(1000, 6, seed=27)
    stored(layout, source_of((features, labels)), private=True)
    # Other labels, another order, another cut, one row over and over: still the same private rows.
    shuffled = np.random.default_rng(28).permutation(1000)
    for rows in (
        features[shuffled][:100],
        np.concatenate([features[:20]] * 5),
        np.concatenate([fresh[:500], features]),
    ):
        with pytest.raises(RefusedError, match=r"synthetic.*public") as caught:
            stored(layout, source_of((rows, np.arange(len(rows)) % 2)))
        # Yes or no, never how much.
        assert "%" not in str(caught.value)
        assert not any(character.isdigit() for character in str(caught.value))
    # Some meeting by chance is admitted: up to 1 % of the distinct rows.
    mixed = np.concatenate([fresh[:990], features[:10]])
    assert stored(layout, source_of((mixed, labels))).rows == 1000
    with pytest.raises(RefusedError):
        stored(layout, source_of((np.concatenate([fresh[:989], features[:11]]), labels)))
    with pytest.raises(RefusedError):
        stored(layout, source_of((fresh, labels), (features, labels)))
    assert not temporaries(layout.root)


def test_a_small_private_set_within_a_large_public_one_is_found(layout: Layout) -> None:
    """One percent of either set: 20 of 5,000 public rows are all of the private ones."""
    small, large = synthetic(20, 6, seed=26), synthetic(4980, 6, seed=27)
    stored(layout, source_of(small), private=True)
    with pytest.raises(RefusedError):
        stored(layout, source_of((np.concatenate([large[0], small[0]]), np.arange(5000) % 2)))


def test_normalised_and_test_rows_of_private_sets_cannot_become_public_either(layout: Layout) -> None:
    train, test = synthetic(100, 6, seed=29), synthetic(100, 6, seed=30)
    ref = stored(layout, source_of(train, test), private=True)
    derived = transform_dataset(layout, ref, _unit, normalisation="unit-norm")
    for part, version in (("test", ref), ("train", derived), ("test", derived)):
        rows, labels = gathered(open_dataset(layout, version, part))
        with pytest.raises(RefusedError):
            stored(layout, source_of((rows, labels)))


def test_row_fingerprints_are_no_oracle_without_the_secret(layout: Layout) -> None:
    features, labels = synthetic(50, 6, seed=31)
    ref = stored(layout, source_of((features, labels)), private=True)
    kept = np.load(layout.dataset(ref.version) / "fingerprints.npy")
    assert np.isin(row_fingerprints(features, root_secret(layout)), kept).all()
    assert not np.isin(row_fingerprints(features, b""), kept).any()
    public = stored(layout, source_of(synthetic(50, 6, seed=32)))
    assert not (layout.dataset(public.version) / "fingerprints.npy").exists()


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def _exact_square(row: NDArray[np.float32]) -> float:
    """Return the squared norm: squares of float32 are exact in float64 and fsum adds exactly."""
    return math.fsum(float(value) ** 2 for value in row)


def test_rounding_to_float32_does_not_leave_the_unit_ball(layout: Layout) -> None:
    features, labels = synthetic(3000, 20, seed=33)
    plain = _unit(features).astype(np.float32)
    # Without the check about half of the rows are outside after rounding: the test would see it.
    assert np.mean([_exact_square(row) > 1 for row in plain]) > 0.2
    ref = transform_dataset(layout, stored(layout, source_of((features, labels))), _unit, normalisation="unit-norm")
    rows, _ = gathered(open_dataset(layout, ref))
    assert np.linalg.norm(rows, axis=1).max() <= 1
    squares = np.array([_exact_square(row) for row in rows.astype(np.float32)])
    assert squares.max() <= 1 + 1e-15
    assert squares.min() > 1 - 1e-6
    assert np.abs(rows - _unit(features)).max() < 3e-7


@pytest.mark.parametrize("width", [7, 8192, 8193, 20_000])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("row_map", [into_unit_ball, UnitNorm(), clip_to_unit_ball, unit_rows])
def test_a_row_is_mapped_alike_at_any_place(
    row_map: Any, order: Literal["C", "F"], width: int, random: np.random.Generator
) -> None:
    """Where a person has more rows, those of all after stand elsewhere; bits of theirs would follow."""
    rows = random.normal(size=(12, width))
    whole = row_map(rows.copy(order=order))
    for size in (1, 2, 5):
        pieces = [row_map(rows[start : start + size].copy(order=order)) for start in range(0, len(rows), size)]
        assert np.concatenate(pieces).tobytes() == whole.tobytes()


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64, some.tuples(some.integers(1, 4), some.integers(1, 6)), elements=some.floats()))
def test_into_unit_ball_is_total(rows: NDArray[np.float64]) -> None:
    kept = rows.copy()
    stored_rows = into_unit_ball(rows)
    assert np.array_equal(rows, kept, equal_nan=True)
    assert stored_rows.dtype == np.float32
    assert np.isfinite(stored_rows).all()
    back = stored_rows.astype(np.float64)
    assert (np.linalg.norm(back, axis=1) <= 1 + 1e-15).all()
    for given_row, row in zip(rows, back, strict=True):
        if not np.isfinite(given_row).all():
            assert not row.any()
        elif math.hypot(*given_row) <= 1 - 1e-6:
            assert np.array_equal(row, given_row.astype(np.float32).astype(np.float64))
        elif np.abs(given_row).max() < 1e150:
            assert np.allclose(row, given_row / max(1.0, math.hypot(*given_row)), atol=1e-6)


def test_unit_vectors_stay_as_they_are() -> None:
    assert np.array_equal(into_unit_ball(np.eye(5)), np.eye(5, dtype=np.float32))


def test_a_derived_version_is_named_by_its_recipe(layout: Layout, tmp_path: Path) -> None:
    train, test = synthetic(60, 4, seed=34), synthetic(10, 4, seed=35)
    ref = stored(layout, source_of(train, test))
    calls: list[int] = []

    def counted(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        calls.append(len(rows))
        return _unit(rows)

    first = transform_dataset(layout, ref, counted, normalisation="unit-norm")
    assert (first.normalisation, first.rows, first.test_rows) == ("unit-norm", 60, 10)
    assert calls == [60, 10]
    assert transform_dataset(layout, ref, counted, normalisation="unit-norm") == first
    assert calls == [60, 10]
    other = Layout(tmp_path / "other").prepare()
    elsewhere = transform_dataset(other, stored(other, source_of(train, test)), _unit, normalisation="unit-norm")
    assert elsewhere == first
    assert dataset_ref(layout, first.version) == first
    body = documents.load_manifest(layout.dataset(first.version) / MANIFEST, version=1)
    assert (body["parent"], body["recipe"]) == (ref.version, "")
    versions = {
        first.version,
        transform_dataset(layout, ref, _unit, normalisation="clip").version,
        transform_dataset(layout, ref, _unit, normalisation="unit-norm", recipe="2").version,
        transform_dataset(layout, ref, _unit, normalisation="unit-norm", unit_ball=False).version,
        transform_dataset(layout, first, _unit, normalisation="unit-norm").version,
    }
    assert len(versions) == 5


def test_a_derived_private_version_repeats_in_its_root_and_nowhere_else(layout: Layout, tmp_path: Path) -> None:
    train = synthetic(60, 4, seed=36)
    ref = stored(layout, source_of(train), private=True)
    first = transform_dataset(layout, ref, _unit, normalisation="unit-norm")
    shutil.rmtree(layout.dataset(first.version))
    assert transform_dataset(layout, ref, _unit, normalisation="unit-norm") == first
    other = Layout(tmp_path / "other").prepare()
    root_secret(other)
    shutil.copytree(layout.dataset(ref.version), other.dataset(ref.version))
    assert transform_dataset(other, ref, _unit, normalisation="unit-norm").version != first.version


def test_a_map_may_misbehave(layout: Layout) -> None:
    features, labels = synthetic(60, 4, seed=37)
    ref = stored(layout, source_of((features, labels)), private=True)

    def broken(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = rows * 100
        rows[3] = np.nan
        rows[4, 1] = np.inf
        rows[5, 0] = 1e300
        return rows

    # Behind the door nothing raises because of what rows hold.
    for unit_ball in (True, False):
        got = gathered(
            open_dataset(layout, transform_dataset(layout, ref, broken, normalisation="x", unit_ball=unit_ball))
        )
        assert not got[0][[3, 4]].any()
        assert np.isfinite(got[0]).all()
        assert np.array_equal(got[1], labels)
    with pytest.raises(StorageError, match=r"'wrong'.*shape \(60, 3\).*\(60, 4\)"):
        transform_dataset(layout, ref, lambda rows: rows[:, :3], normalisation="wrong")
    assert not temporaries(layout.root)


def test_sparse_sets_are_mapped_and_stay_sparse(layout: Layout) -> None:
    matrix, labels = _wide(100, seed=38)
    ref = stored(layout, source_of((matrix, labels), sparse=True), private=True)
    derived = transform_dataset(layout, ref, _unit, normalisation="unit-norm")
    rows = open_dataset(layout, derived)
    assert rows.format.sparse
    assert np.allclose(gathered(rows)[0], _unit(matrix.toarray().astype(np.float64)), atol=1e-6)


def test_references_are_json_and_show_no_digest_of_private_rows(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(60, 4, seed=39)), private=True)
    assert DatasetRef.model_validate_json(ref.model_dump_json()) == ref
    assert hash(ref) == hash(DatasetRef.model_validate_json(ref.model_dump_json()))


def test_a_failed_write_leaves_the_root_as_it_was(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(layout, source_of(synthetic(60, 4, seed=40)), private=True)
    before = files_of(layout.root)

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rowfiles.RowWriter, "_write_group", full)
    with pytest.raises(StorageError, match="No space", check=stating(way_out="--root")):
        stored(layout, source_of(synthetic(60, 4, seed=41)), private=True)
    assert files_of(layout.root) == before
