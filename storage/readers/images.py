"""Readers of binary image files: IDX (MNIST's format) and CIFAR-10."""

import math
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy._core import multiarray
from numpy.typing import NDArray

from storage.errors import InputError
from storage.source import (
    Block,
    ReadOptions,
    Rows,
    Source,
    confirm,
    most_rows,
    open_binary,
    reading,
    register_reader,
    require_bytes,
    require_file,
    settle,
)

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


def _sizes(path: Path, axes: int) -> tuple[int, ...]:
    with reading(path), open_binary(path) as file:
        sizes = _header(file, path, axes)
    _pixels(sizes[1:], path)
    return sizes


def _pixels(axes: Sequence[int], path: Path) -> int:
    dimension = math.prod(axes)
    if not 0 < dimension <= _LARGEST:
        raise InputError(f"{path} claims {dimension} pixels an image; 1 to {_LARGEST} are read")
    return dimension


def _values(path: Path, axes: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the items of a file, some at once: (m, width), of labels (m, 1)."""
    with reading(path), open_binary(path) as file:
        count, *sizes = _header(file, path, axes)
        if count > most_rows():
            raise InputError(f"{path} claims {count} rows, more than {most_rows()}; if that is right: --max-rows")
        width = _pixels(sizes, path)
        total = count * width
        require_bytes(path, total)
        step = max(1, min(1024, _LARGEST // width))
        for start in range(0, count, step):
            rows = min(step, count - start)
            data = file.read(rows * width)
            if len(data) < rows * width:
                raise InputError(
                    f"{path} is truncated: its header promises {total} bytes, {start * width + len(data)} are there; "
                    "fetch the file again"
                )
            yield np.frombuffer(data, dtype=np.uint8).reshape(rows, width)
        if file.read(1):
            raise InputError(f"{path} goes on after the {total} bytes its header promises; fetch the file again")


def _labels(path: Path) -> NDArray[np.uint8]:
    return np.concatenate([np.zeros((0, 1), dtype=np.uint8), *_values(path, 1)])[:, 0]


def _images(images: Path, labels: Path) -> Iterator[Block]:
    """Yield the images of one file with the labels of another."""
    count, named = _sizes(images, 3)[0], _sizes(labels, 1)[0]
    if count != named:
        raise InputError(f"{images} has {count} images and {labels} has {named} labels; fetch both again")
    classes, start = _labels(labels), 0
    for pixels in _values(images, 3):
        stop = start + len(pixels)
        yield Block(pixels.astype(np.float32) / np.float32(255), classes[start:stop], place=str(images))
        start = stop


def _find(folder: Path, prefix: str, kind: str, axes: int) -> Path | None:
    places = (folder / f"{prefix}-{kind}{mark}idx{axes}-ubyte{end}" for mark in "-." for end in ("", ".gz"))
    return next(filter(Path.is_file, places), None)


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
    files: dict[str, tuple[Path, Path]] = {}
    for part, prefix in _PREFIXES.items():
        images, labels = _find(folder, prefix, "images", 3), _find(folder, prefix, "labels", 1)
        if images is not None and labels is not None:
            files[part] = images, labels
        elif images is not None or labels is not None or part == "train":
            kind, axes = ("images", 3) if images is None else ("labels", 1)
            raise InputError(f"{folder / prefix}-{kind}-idx{axes}-ubyte[.gz] does not exist; fetch it as well")
    shapes = {part: _sizes(images, 3)[1:] for part, (images, _) in files.items()}
    if len(set(shapes.values())) > 1:
        raise InputError(f"{folder}: training and test images differ in size: {shapes}")
    shape = shapes["train"]
    names = (str(value) for _, labels in files.values() for value in np.unique(_labels(labels)))
    dimension, classes, discovered = settle(options, str(folder), dimension=math.prod(shape), labels=names)
    return Source(
        format="idx",
        place=str(folder),
        dimension=dimension,
        classes=classes,
        parts={part: Rows(_images, both) for part, both in files.items()},
        found=discovered,
        image_shape=shape if len(shape) == 2 else None,
    )


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIMENSION = 3 * 32 * 32
_ROWS = 512
_RECORD = 1 + DIMENSION

Pixels = NDArray[np.uint8]


def _encode(text: str, encoding: str) -> bytes:
    # How pickles of protocol 2 spell bytes; no other codec belongs in one.
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r} is not admitted")
    return text.encode("latin-1")


_ADMITTED: MappingProxyType[tuple[str, str], Any] = MappingProxyType(
    {
        ("numpy.core.multiarray", "_reconstruct"): multiarray._reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): multiarray._reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
    }
)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles dictionaries of arrays and lists; anything else a pickle could call is refused."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which a batch of images does not need") from None


def _python_blocks(path: Path) -> Iterator[tuple[Pixels, NDArray[Any]]]:
    with reading(path), path.open("rb") as file:
        try:
            batch = _ArrayUnpickler(file, encoding="bytes").load()
            pixels, labels = batch[b"data"], batch[b"labels"]
            if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.nbytes > path.stat().st_size:
                raise TypeError("its data is no array of bytes that stand in it")
            # An array of any length is a few bytes of a pickle; as many labels as rows are not.
            labels = list(labels) if len(labels) == len(pixels) else []
        except EOFError as error:
            raise InputError(f"{path} is truncated; fetch the file again") from error
        except Exception as error:
            # A damaged pickle can raise nearly anything.
            raise InputError(f"{path} is no CIFAR-10 batch: {error!r:.200}; fetch the file again") from error
    if pixels.shape != (len(labels), DIMENSION):
        raise InputError(
            f"{path} has data of shape {pixels.shape} for {len(labels)} labels; expected rows of {DIMENSION}"
        )
    for start in range(0, len(labels), _ROWS):
        yield pixels[start : start + _ROWS], np.asarray(labels[start : start + _ROWS])


def _binary_blocks(path: Path) -> Iterator[tuple[Pixels, NDArray[Any]]]:
    done = 0
    with reading(path), path.open("rb") as file:
        while data := file.read(_ROWS * _RECORD):
            if len(data) % _RECORD:
                raise InputError(
                    f"{path} is truncated: {done + len(data)} bytes are no multiple of the {_RECORD} of a record; "
                    "fetch the file again"
                )
            done += len(data)
            records = np.frombuffer(data, dtype=np.uint8).reshape(-1, _RECORD)
            yield records[:, 1:], records[:, 0]


def _batches(files: Sequence[Path], blocks: Callable[[Path], Iterator[tuple[Pixels, NDArray[Any]]]]) -> Iterator[Block]:
    """Yield the images of some batches."""
    for path in files:
        row = 1
        for pixels, numbers in blocks(path):
            if numbers.dtype.kind not in "ui" or (numbers < 0).any() or (numbers >= len(CLASSES)).any():
                bad = next(place for place, value in enumerate(numbers.tolist()) if value not in range(len(CLASSES)))
                raise InputError(
                    f"{path}, row {row + bad}: label {numbers[bad]}; expected 0 to {len(CLASSES) - 1}; "
                    "fetch the file again"
                )
            row += len(numbers)
            yield Block(pixels.astype(np.float32) / np.float32(255), np.array(CLASSES)[numbers], place=str(path))


@register_reader("cifar10")
def read_cifar10(path: str | Path, options: ReadOptions) -> Source:
    """Read CIFAR-10, binary or python batches; pixels 0 to 255 become 0 to 1, the red plane first.

    Parameters
    ----------
    path : path
        The folder of ``data_batch_1`` … ``data_batch_5`` and ``test_batch`` (with ``.bin`` for the binary version).

    Notes
    -----
    The python batches are pickles. They are read by an unpickler that knows arrays and nothing else, so that a
    file from a stranger runs no code.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name the folder that holds data_batch_1[.bin]")
    for end, blocks in ((".bin", _binary_blocks), ("", _python_blocks)):
        train = sorted(folder.glob(f"data_batch_[0-9]{end}"))
        if not train:
            continue
        expected = [folder / f"data_batch_{number}{end}" for number in range(1, len(train) + 1)]
        if train != expected:
            missing = next(file for file in expected if file not in train)
            raise InputError(f"{missing} does not exist; fetch all batches")
        parts = {"train": Rows(_batches, (tuple(require_file(file) for file in train), blocks))}
        if (folder / f"test_batch{end}").exists():
            parts["test"] = Rows(_batches, ((require_file(folder / f"test_batch{end}"),), blocks))
        confirm(options, str(folder), dimension=DIMENSION, classes=CLASSES, label_range=None)
        return Source(
            format="cifar10",
            place=str(folder),
            dimension=DIMENSION,
            classes=CLASSES,
            parts=parts,
            image_shape=(3, 32, 32),
        )
    raise InputError(f"{folder} holds neither data_batch_1.bin nor data_batch_1; name the folder of the batches")
