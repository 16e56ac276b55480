"""CIFAR-10 as it is given out: binary batches, or Python's pickles of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import InputError
from storage.readers.files import reading, require_file
from storage.readers.registry import register_reader
from storage.source import Block, ReadOptions, Source, confirm

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIMENSION = 3 * 32 * 32
_ROWS = 512
_RECORD = 1 + DIMENSION

Pixels = NDArray[np.uint8]


def _names() -> MappingProxyType[tuple[str, str], Any]:
    from numpy._core import multiarray

    def encode(text: str, encoding: str) -> bytes:
        # How pickles of protocol 2 spell bytes; no other codec belongs in one.
        if encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"codec {encoding!r} is not admitted")
        return text.encode("latin-1")

    reconstruct = multiarray._reconstruct
    return MappingProxyType(
        {
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): encode,
        }
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles dictionaries of arrays and lists; anything else a pickle could call is refused."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _names()[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which a batch of images does not need") from None


def _python_batch(path: Path) -> tuple[Pixels, list[Any]]:
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
    return pixels, labels


def _python_blocks(path: Path) -> Iterator[tuple[Pixels, NDArray[Any]]]:
    pixels, labels = _python_batch(path)
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


@dataclass(frozen=True, slots=True)
class _Batches:
    files: tuple[Path, ...]
    blocks: Callable[[Path], Iterator[tuple[Pixels, NDArray[Any]]]]

    def __iter__(self) -> Iterator[Block]:
        for path in self.files:
            row = 1
            for pixels, numbers in self.blocks(path):
                if numbers.dtype.kind not in "ui" or (numbers < 0).any() or (numbers >= len(CLASSES)).any():
                    bad = next(
                        place for place, value in enumerate(numbers.tolist()) if value not in range(len(CLASSES))
                    )
                    raise InputError(
                        f"{path}, row {row + bad}: label {numbers[bad]}; expected 0 to {len(CLASSES) - 1}; "
                        "fetch the file again"
                    )
                row += len(numbers)
                yield Block(pixels.astype(np.float32) / np.float32(255), np.array(CLASSES)[numbers], place=str(path))


_KINDS: MappingProxyType[str, Callable[[Path], Iterator[tuple[Pixels, NDArray[Any]]]]] = MappingProxyType(
    {".bin": _binary_blocks, "": _python_blocks}
)


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
    for end, blocks in _KINDS.items():
        train = sorted(folder.glob(f"data_batch_[0-9]{end}"))
        if not train:
            continue
        expected = [folder / f"data_batch_{number}{end}" for number in range(1, len(train) + 1)]
        if train != expected:
            missing = next(file for file in expected if file not in train)
            raise InputError(f"{missing} does not exist; fetch all batches")
        parts = {"train": _Batches(tuple(require_file(file) for file in train), blocks)}
        if (folder / f"test_batch{end}").exists():
            parts["test"] = _Batches((require_file(folder / f"test_batch{end}"),), blocks)
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
