"""IDX folders: MNIST's names, plain or gzipped; every way they can be broken has its own error."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError
from storage.layout import Layout
from storage.source import ReadOptions, read_source
from tests.support.data import flip, gathered, idx_bytes, stored, temporaries, write_idx

PUBLIC = ReadOptions(discover=True)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _folder(tmp_path: Path, *, zipped: bool = False, rows: int = 30) -> Path:
    random = np.random.default_rng(71)
    folder = tmp_path / "idx"
    images = random.integers(0, 256, (rows, 4, 3), dtype=np.uint8)
    write_idx(folder, "train", images, (np.arange(rows) % 3).astype(np.uint8), zipped=zipped)
    write_idx(folder, "t10k", images[:6], (np.arange(6) % 3).astype(np.uint8), zipped=zipped)
    return folder


@pytest.mark.parametrize("zipped", [False, True])
def test_pixels_become_zero_to_one_and_labels_classes(tmp_path: Path, layout: Layout, zipped: bool) -> None:
    folder = _folder(tmp_path, zipped=zipped)
    source = read_source("idx", folder, PUBLIC)
    assert (source.dimension, source.classes) == (12, ("0", "1", "2"))
    ref = stored(layout, source)
    assert (ref.rows, ref.test_rows, ref.image_shape) == (30, 6, (4, 3))
    random = np.random.default_rng(71)
    pixels = random.integers(0, 256, (30, 4, 3), dtype=np.uint8).reshape(30, 12)
    features, labels = gathered(open_dataset(layout, ref))
    assert np.array_equal(features, (pixels.astype(np.float32) / np.float32(255)).astype(np.float64))
    assert np.array_equal(labels, np.arange(30) % 3)
    assert gathered(open_dataset(layout, ref, "test"))[0].shape == (6, 12)


def test_a_folder_without_test_files_has_no_test_part(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    for path in folder.glob("t10k*"):
        path.unlink()
    assert list(read_source("idx", folder, PUBLIC).parts) == ["train"]


def test_a_shape_that_is_declared_must_be_the_headers(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    assert read_source("idx", folder, ReadOptions(discover=True, image_shape=(4, 3))).image_shape == (4, 3)
    with pytest.raises(InputError, match=r"\[3, 4\].*\[4, 3\]"):
        read_source("idx", folder, ReadOptions(discover=True, image_shape=(3, 4)))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _header_only(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6])


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _magic(path: Path) -> None:
    path.write_bytes(b"PK" + path.read_bytes()[2:])


def _floats(path: Path) -> None:
    path.write_bytes(b"\0\0\x0d" + path.read_bytes()[3:])


def _huge(path: Path) -> None:
    path.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 30, 1 << 31, 1 << 31))


def _fewer(path: Path) -> None:
    path.write_bytes(idx_bytes(np.zeros((29, 4, 3), dtype=np.uint8)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "images-idx3-ubyte.*360.*355"),
        (_header_only, "truncated in"),
        (_longer, "longer than the 360 bytes"),
        (_empty, "0 bytes.*4"),
        (_magic, "IDX.*504b0803"),
        (_floats, "IDX.*0x0d"),
        (_huge, "4611686018427387904"),
        (_fewer, "29 images.*30 labels"),
    ],
)
def test_damaged_images_are_refused_and_leave_nothing(
    tmp_path: Path, layout: Layout, damage: object, message: str
) -> None:
    folder = _folder(tmp_path)
    assert callable(damage)
    damage(folder / "train-images-idx3-ubyte")
    with pytest.raises(InputError, match=message):
        stored(layout, read_source("idx", folder, PUBLIC))
    assert list(layout.datasets.iterdir()) == []
    assert not temporaries(layout.root)


def test_a_cut_or_damaged_gzip_is_refused(tmp_path: Path, layout: Layout) -> None:
    folder = _folder(tmp_path, zipped=True)
    path = folder / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"images-idx3-ubyte.gz.*truncated"):
        stored(layout, read_source("idx", folder, PUBLIC))
    path.write_bytes(b"no gzip at all")
    with pytest.raises(InputError, match="Not a gzipped file"):
        read_source("idx", folder, PUBLIC)
    path.write_bytes(whole)
    flip(path)
    with pytest.raises(InputError, match=r"images-idx3-ubyte.gz"):
        stored(layout, read_source("idx", folder, PUBLIC))
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-5]))
    with pytest.raises(InputError, match=r"360 bytes.*355"):
        stored(layout, read_source("idx", folder, PUBLIC))
    assert list(layout.datasets.iterdir()) == []


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"folder.*train-images-idx3-ubyte"):
        read_source("idx", tmp_path / "none", PUBLIC)
    folder = _folder(tmp_path)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte"):
        read_source("idx", folder, PUBLIC)
    (folder / "train-images-idx3-ubyte").unlink()
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.*exist"):
        read_source("idx", folder, PUBLIC)


def test_train_and_test_images_must_be_of_one_size(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    write_idx(folder, "t10k", np.zeros((3, 5, 5), dtype=np.uint8), np.zeros(3, dtype=np.uint8), zipped=False)
    with pytest.raises(InputError, match="size"):
        read_source("idx", folder, PUBLIC)


def test_what_is_declared_must_be_right(tmp_path: Path, layout: Layout) -> None:
    folder = _folder(tmp_path)
    with pytest.raises(RefusedError, match=r"--classes.*--dimension"):
        read_source("idx", folder)
    with pytest.raises(InputError, match=r"12 features.*13"):
        read_source("idx", folder, ReadOptions(dimension=13, classes=("0", "1", "2")))
    declared = read_source("idx", folder, ReadOptions(dimension=12, classes=("0", "1")))
    assert not declared.found
    with pytest.raises(InputError, match=r"row 3: label '2'.*0, 1"):
        stored(layout, declared, private=True)
    assert list(layout.datasets.iterdir()) == []
