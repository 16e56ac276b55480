"""Stored versions: what goes in comes out, under a name that says what it should and no more."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import sparse

from storage import datasets, documents
from storage.datasets import MANIFEST, dataset_ref, is_complete, open_dataset
from storage.errors import DamagedError, FormatVersionError, InputError, StorageError
from storage.fingerprints import row_fingerprints
from storage.layout import Layout
from storage.refs import DatasetRef, Labels
from storage.rowfiles import RowFormat, RowWriter, StoredRows
from storage.secrets import root_secret
from storage.transforming import transform_dataset
from tests.support.data import flip, gathered, source_of, stored, synthetic, temporaries
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


def test_references_are_json_and_show_no_digest_of_private_rows(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(60, 4, seed=39)), private=True)
    assert DatasetRef.model_validate_json(ref.model_dump_json()) == ref
    assert hash(ref) == hash(DatasetRef.model_validate_json(ref.model_dump_json()))
