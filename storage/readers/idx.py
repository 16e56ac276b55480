"""IDX files as MNIST has them: images and labels in files of fixed names, plain or gzipped."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from storage.errors import InputError
from storage.readers.files import most_rows, open_binary, reading
from storage.readers.registry import register_reader
from storage.source import Block, ReadOptions, Source, settle

_UNSIGNED_BYTES = 0x08
_LARGEST = 1 << 22
_PREFIXES = {"train": "train", "test": "t10k"}


def _header(file: IO[bytes], path: Path, axes: int) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4:
        raise InputError(f"{path} is truncated: {len(magic)} bytes, an IDX file begins with 4; fetch the file again")
    if magic[:2] != b"\x00\x00" or magic[3] == 0:
        raise InputError(f"{path} is not an IDX file: it begins with {magic.hex()}, expected 0000")
    if magic[2] != _UNSIGNED_BYTES:
        raise InputError(f"{path} holds IDX type 0x{magic[2]:02x}; only unsigned bytes (0x08) are read: convert it")
    if (magic[3] == 1) != (axes == 1):
        raise InputError(f"{path} has {magic[3]} axes, expected {'one (labels)' if axes == 1 else 'several (images)'}")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise InputError(f"{path} is truncated in its header; fetch the file again")
    return struct.unpack(f">{magic[3]}I", sizes)


def _take(file: IO[bytes], path: Path, size: int, done: int, total: int) -> NDArray[np.uint8]:
    data = file.read(size)
    if len(data) < size:
        raise InputError(
            f"{path} is truncated: its header promises {total} bytes, {done + len(data)} are there; "
            "fetch the file again"
        )
    return np.frombuffer(data, dtype=np.uint8)


def _require_end(file: IO[bytes], path: Path, total: int) -> None:
    if file.read(1):
        raise InputError(f"{path} goes on after the {total} bytes its header promises; fetch the file again")


def _labels(path: Path) -> NDArray[np.uint8]:
    with reading(path), open_binary(path) as file:
        (count,) = _header(file, path, 1)
        if count > most_rows():
            raise InputError(f"{path} claims {count} labels, more than {most_rows()}; if that is right: --max-rows")
        labels = _take(file, path, count, 0, count)
        _require_end(file, path, count)
    return labels


def _pixels(axes: Sequence[int], path: Path) -> int:
    dimension = math.prod(axes)
    if not 0 < dimension <= _LARGEST:
        raise InputError(f"{path} claims {dimension} pixels an image; 1 to {_LARGEST} are read")
    return dimension


def _shape(path: Path) -> tuple[int, ...]:
    with reading(path), open_binary(path) as file:
        axes = _header(file, path, 3)[1:]
        _pixels(axes, path)
        return axes


@dataclass(frozen=True, slots=True)
class _Images:
    images: Path
    labels: Path

    def __iter__(self) -> Iterator[Block]:
        labels = _labels(self.labels)
        with reading(self.images), open_binary(self.images) as file:
            count, *axes = _header(file, self.images, 3)
            dimension = _pixels(axes, self.images)
            if count != len(labels):
                raise InputError(
                    f"{self.images} has {count} images and {self.labels} has {len(labels)} labels; fetch both again"
                )
            total = count * dimension
            step = max(1, min(1024, _LARGEST // dimension))
            for start in range(0, count, step):
                rows = min(step, count - start)
                pixels = _take(file, self.images, rows * dimension, start * dimension, total)
                features = pixels.reshape(rows, dimension).astype(np.float32) / np.float32(255)
                yield Block(features, labels[start : start + rows], place=str(self.images))
            _require_end(file, self.images, total)


def _find(folder: Path, prefix: str, kind: str, axes: int) -> Path | None:
    stem = f"{prefix}-{kind}"
    for name in (f"{stem}-idx{axes}-ubyte", f"{stem}.idx{axes}-ubyte"):
        for end in ("", ".gz"):
            if (folder / (name + end)).is_file():
                return folder / (name + end)
    return None


@register_reader("idx")
def read_idx(path: str | Path, options: ReadOptions) -> Source:
    """Read a folder of IDX files under MNIST's names, plain or .gz; pixels 0 to 255 become 0 to 1.

    Parameters
    ----------
    path : path
        Folder with ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte``, and perhaps ``t10k-…`` as test rows.
    """
    folder = Path(path)
    if options.label_range is not None:
        raise InputError(f"{folder} holds classes, a label range is declared; leave it out")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name the folder that holds train-images-idx3-ubyte[.gz]")
    parts: dict[str, _Images] = {}
    for part, prefix in _PREFIXES.items():
        images, labels = _find(folder, prefix, "images", 3), _find(folder, prefix, "labels", 1)
        if images is not None and labels is not None:
            parts[part] = _Images(images, labels)
        elif images is not None or labels is not None or part == "train":
            kind, axes = ("images", 3) if images is None else ("labels", 1)
            raise InputError(f"{folder / prefix}-{kind}-idx{axes}-ubyte[.gz] does not exist; fetch it as well")
    shapes = {part: _shape(files.images) for part, files in parts.items()}
    if len(set(shapes.values())) > 1:
        raise InputError(f"{folder}: training and test images differ in size: {shapes}")
    shape = shapes["train"]
    names = None
    if options.classes is None and options.discover:
        names = {str(value) for files in parts.values() for value in np.unique(_labels(files.labels))}
    dimension, classes, found = settle(options, str(folder), dimension=math.prod(shape), labels=names)
    return Source(
        format="idx",
        place=str(folder),
        dimension=dimension,
        classes=classes,
        parts=parts,
        found=found,
        image_shape=shape if len(shape) == 2 else None,
    )
