"""Readers of binary image files: IDX (MNIST's format) and CIFAR's."""

import math
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        raise InputError(f"{path} is truncated: {len(magic)} bytes, an IDX file begins with 4; download the file again")
    if magic[:2] != b"\x00\x00" or magic[3] == 0:
        raise InputError(f"{path} is not an IDX file: it begins with {magic.hex()}, expected 0000")
    if magic[2] != _UNSIGNED_BYTES:
        raise InputError(
            f"{path} holds IDX type 0x{magic[2]:02x}; only unsigned bytes (0x08) are supported: convert it"
        )
    if (magic[3] == 1) != (axes == 1):
        raise InputError(f"{path} has {magic[3]} axes, expected {'one (labels)' if axes == 1 else 'several (images)'}")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise InputError(f"{path} is truncated in its header; download the file again")
    return struct.unpack(f">{magic[3]}I", sizes)


def _sizes(path: Path, axes: int) -> tuple[int, ...]:
    with reading(path), open_binary(path) as file:
        sizes = _header(file, path, axes)
    _pixels(sizes[1:], path)
    return sizes


def _pixels(axes: Sequence[int], path: Path) -> int:
    dimension = math.prod(axes)
    if not 0 < dimension <= _LARGEST:
        raise InputError(f"{path} claims {dimension} pixels per image; allowed are 1 to {_LARGEST}")
    return dimension


def _values(path: Path, axes: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the items of a file, some at once: (m, width), of labels (m, 1)."""
    with reading(path), open_binary(path) as file:
        count, *sizes = _header(file, path, axes)
        if count > most_rows():
            raise InputError(
                f"{path} claims {count} rows, more than {most_rows()}; if this is expected, give --max-rows"
            )
        width = _pixels(sizes, path)
        total = count * width
        require_bytes(path, total)
        step = max(1, min(1024, _LARGEST // width))
        for start in range(0, count, step):
            rows = min(step, count - start)
            data = file.read(rows * width)
            if len(data) < rows * width:
                raise InputError(
                    f"{path} is truncated: its header states {total} bytes, {start * width + len(data)} are there; "
                    "download the file again"
                )
            yield np.frombuffer(data, dtype=np.uint8).reshape(rows, width)
        if file.read(1):
            raise InputError(f"{path} is longer than the {total} bytes that its header states; download the file again")


def _labels(path: Path) -> NDArray[np.uint8]:
    return np.concatenate([np.zeros((0, 1), dtype=np.uint8), *_values(path, 1)])[:, 0]


def _images(images: Path, labels: Path, names: Sequence[str] | None, last: bool) -> Iterator[Block]:
    """Yield the images of one file with the labels of another.

    Parameters
    ----------
    images, labels : Path
    names : sequence of str, optional
        What labels from 0 on are called.
    last : bool
        Whether channels are the last axis; rows have them first.
    """
    count, named = _sizes(images, 3)[0], _sizes(labels, 1)[0]
    if count != named:
        raise InputError(f"{images} has {count} images and {labels} has {named} labels; download both again")
    classes, start = _labels(labels), 0
    if names is not None and (beyond := np.flatnonzero(classes >= len(names))).size:
        row = int(beyond[0])
        raise InputError(
            f"{labels}, row {row + 1}: label {classes[row]}, and {len(names)} classes are declared, the first of which "
            "is 0; declare all with --classes"
        )
    called = classes if names is None else np.array(names, dtype=object)[classes]
    channels = _sizes(images, 3)[-1]
    for pixels in _values(images, 3):
        stop = start + len(pixels)
        if last:
            pixels = pixels.reshape(len(pixels), -1, channels).transpose(0, 2, 1).reshape(len(pixels), -1)
        yield Block(pixels.astype(np.float32) / np.float32(255), called[start:stop], place=str(images))
        start = stop


def _find(folder: Path, prefix: str, kind: str, *axes: int) -> Path | None:
    ends = [f"idx{number}-ubyte{end}" for number in axes for end in ("", ".gz")]
    places = (folder / f"{prefix}-{kind}{mark}{end}" for mark in "-." for end in ends)
    return next(filter(Path.is_file, places), None)


def _shape_of(axes: tuple[int, ...]) -> tuple[tuple[int, ...] | None, bool]:
    """Return the shape of images by their axes, None where these are none, and whether channels are the last axis."""
    if len(axes) == 2:
        return axes, False
    if len(axes) == 3 and axes[0] in (1, 3):
        return axes, False
    if len(axes) == 3 and axes[2] in (1, 3):
        return (axes[2], *axes[:2]), True
    return None, False


@register_reader("idx")
def read_idx(path: str | Path, options: ReadOptions) -> Source:
    """Read a folder of IDX files under MNIST's names, plain or .gz; pixels 0 to 255 become 0 to 1.

    Parameters
    ----------
    path : path
        Folder with ``train-images-idx3-ubyte`` (or ``idx4``) and ``train-labels-idx1-ubyte``, and perhaps ``t10k-…`` as
        test rows. Images have two axes, or three with one channel or three as the first or the last.
    options : ReadOptions
        Declared classes that are whole numbers are labels; others are the names of the labels 0, 1, ….
    """
    folder = Path(path)
    if options.label_range is not None:
        raise InputError(f"{folder} holds classes, but a label range is declared; omit it")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name the folder that holds train-images-idx3-ubyte[.gz]")
    files: dict[str, tuple[Path, Path]] = {}
    for part, prefix in _PREFIXES.items():
        images, labels = _find(folder, prefix, "images", 3, 4), _find(folder, prefix, "labels", 1)
        if images is not None and labels is not None:
            files[part] = images, labels
        elif images is not None or labels is not None or part == "train":
            kind, axes = ("images", 3) if images is None else ("labels", 1)
            raise InputError(f"{folder / prefix}-{kind}-idx{axes}-ubyte[.gz] does not exist; fetch it as well")
    shapes = {part: _sizes(images, 3)[1:] for part, (images, _) in files.items()}
    if len(set(shapes.values())) > 1:
        raise InputError(f"{folder}: training and test images differ in size: {shapes}")
    sizes = shapes["train"]
    shape, last = _shape_of(sizes)
    called = options.classes
    if called is not None and all(name.lstrip("+-").isdecimal() for name in called):
        called = None
    names = (str(value) for _, labels in files.values() for value in np.unique(_labels(labels)))
    dimension, classes, discovered = settle(options, str(folder), dimension=math.prod(sizes), labels=names)
    return Source(
        format="idx",
        place=str(folder),
        dimension=dimension,
        classes=classes,
        parts={part: Rows(_images, (*both, called, last)) for part, both in files.items()},
        found=discovered,
        image_shape=shape,
    )


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIMENSION = 3 * 32 * 32
_ROWS = 512

Pixels = NDArray[np.uint8]


def _encode(text: str, encoding: str) -> bytes:
    # How pickles of protocol 2 spell bytes; no other codec belongs in one.
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r} is not allowed")
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
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch of images needs") from None


def _python_blocks(path: Path) -> Iterator[tuple[Pixels, NDArray[Any]]]:
    with reading(path), path.open("rb") as file:
        try:
            batch = _ArrayUnpickler(file, encoding="bytes").load()
            pixels, labels = batch[b"data"], batch[b"labels"]
            if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.nbytes > path.stat().st_size:
                raise TypeError("its data is not an array of bytes")
            # An array of any length is a few bytes of a pickle; as many labels as rows are not.
            labels = list(labels) if len(labels) == len(pixels) else []
        except EOFError as error:
            raise InputError(f"{path} is truncated; download the file again") from error
        except Exception as error:
            # A damaged pickle can raise nearly anything.
            raise InputError(f"{path} is not a CIFAR-10 batch: {error!r:.200}; download the file again") from error
    if pixels.shape != (len(labels), DIMENSION):
        raise InputError(
            f"{path} has data of shape {pixels.shape} for {len(labels)} labels; expected rows of {DIMENSION}"
        )
    for start in range(0, len(labels), _ROWS):
        yield pixels[start : start + _ROWS], np.asarray(labels[start : start + _ROWS])


def _records(path: Path, labels: int) -> Iterator[tuple[Pixels, NDArray[Any]]]:
    """Yield the images of records that begin with some label bytes, and the last of these: the finest label."""
    done, size = 0, labels + DIMENSION
    with reading(path), path.open("rb") as file:
        while data := file.read(_ROWS * size):
            if len(data) % size:
                raise InputError(
                    f"{path} is truncated: {done + len(data)} bytes are not a multiple of the {size} of a record; "
                    "download the file again"
                )
            done += len(data)
            records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
            yield records[:, labels:], records[:, labels - 1]


def _binary_blocks(path: Path) -> Iterator[tuple[Pixels, NDArray[Any]]]:
    return _records(path, 1)


def _fine_blocks(path: Path) -> Iterator[tuple[Pixels, NDArray[Any]]]:
    return _records(path, 2)


def _batches(
    files: Sequence[Path], blocks: Callable[[Path], Iterator[tuple[Pixels, NDArray[Any]]]], classes: Sequence[str]
) -> Iterator[Block]:
    """Yield the images of some batches."""
    for path in files:
        row = 1
        for pixels, numbers in blocks(path):
            if numbers.dtype.kind not in "ui" or (numbers < 0).any() or (numbers >= len(classes)).any():
                bad = next(place for place, value in enumerate(numbers.tolist()) if value not in range(len(classes)))
                raise InputError(
                    f"{path}, row {row + bad}: label {numbers[bad]}; expected 0 to {len(classes) - 1}; "
                    "declare as many names as there are classes with --classes, or fetch the file again"
                )
            row += len(numbers)
            yield Block(pixels.astype(np.float32) / np.float32(255), np.array(classes)[numbers], place=str(path))


@register_reader("cifar10")
def read_cifar10(path: str | Path, options: ReadOptions) -> Source:
    """Read CIFAR-10 or others in its form, binary or python batches; pixels 0 to 255 become 0 to 1, red first.

    Parameters
    ----------
    path : path
        The folder of ``data_batch_1`` … ``data_batch_5`` and ``test_batch`` (with ``.bin`` for the binary version).
    options : ReadOptions
        Declared classes are the names of the labels 0, 1, …, up to 256; CIFAR-10's by default.

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
        files = {"train": tuple(require_file(file) for file in train)}
        if (folder / f"test_batch{end}").exists():
            files["test"] = (require_file(folder / f"test_batch{end}"),)
        return _source("cifar10", folder, options, files, blocks, options.classes or CLASSES)
    raise InputError(f"{folder} holds neither data_batch_1.bin nor data_batch_1; name the folder of the batches")


_FINE_NAMES = "fine_label_names.txt"


@register_reader("cifar100")
def read_cifar100(path: str | Path, options: ReadOptions) -> Source:
    """Read CIFAR-100 or others in its binary form with their fine labels; pixels 0 to 255 become 0 to 1, red first.

    Parameters
    ----------
    path : path
        The folder of ``train.bin``, perhaps ``test.bin``, and ``fine_label_names.txt`` unless classes are declared.
    options : ReadOptions
        Declared classes are the names of the fine labels 0, 1, ….
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name the folder that holds train.bin")
    classes = options.classes
    if classes is None:
        names = require_file(folder / _FINE_NAMES)
        with reading(names):
            classes = ReadOptions(classes=tuple(names.read_text("utf-8").split())).classes or ()
    files = {"train": (require_file(folder / "train.bin"),)}
    if (folder / "test.bin").exists():
        files["test"] = (require_file(folder / "test.bin"),)
    return _source("cifar100", folder, options, files, _fine_blocks, classes)


def _source(
    name: str,
    folder: Path,
    options: ReadOptions,
    files: Mapping[str, tuple[Path, ...]],
    blocks: Callable[[Path], Iterator[tuple[Pixels, NDArray[Any]]]],
    classes: tuple[str, ...],
) -> Source:
    if len(classes) > 256:
        raise InputError(
            f"{folder}: {len(classes)} classes are declared; a label is one byte, so at most 256 are possible"
        )
    confirm(options, str(folder), dimension=DIMENSION, classes=classes, label_range=None)
    return Source(
        format=name,
        place=str(folder),
        dimension=DIMENSION,
        classes=classes,
        parts={part: Rows(_batches, (batches, blocks, classes)) for part, batches in files.items()},
        image_shape=(3, 32, 32),
    )
