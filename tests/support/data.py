"""Rows for tests: real data sets where the folder is there, small synthetic ones, and files of each format."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from storage.atomic import locked_directory
from storage.layout import Layout
from storage.publishing import confirm_registered
from storage.refs import DatasetRef, Visibility
from storage.rowfiles import StoredRows
from storage.source import Block, Source
from storage.staging import staged_dataset

REPOSITORY = Path(__file__).parents[2]

SCHEMA = """
header: false
columns:
  - {name: a, type: numeric, range: [0, 1]}
  - {name: b, type: numeric, range: [0, 1]}
  - {name: y, type: label, classes: ["no", "yes"]}
"""
"""Declares tables of two numbers and a label, without a line of names."""


def real_data(*steps: str) -> Path:
    """Return a path under ``UNITBALL_DATA`` (default ``../shared/data`` beside the repository), or skip the test."""
    path = REPOSITORY.joinpath(os.environ.get("UNITBALL_DATA", "../shared/data"), *steps).resolve()
    if not path.exists():
        pytest.skip(f"no real data at {path}: set UNITBALL_DATA to the folder of the data sets")
    return path


@dataclass(frozen=True)
class Arrays:
    """A part of a source, from arrays, cut into blocks."""

    features: Any
    labels: NDArray[Any]
    block: int = 7

    def __iter__(self) -> Any:
        for start in range(0, self.features.shape[0], self.block):
            yield Block(self.features[start : start + self.block], self.labels[start : start + self.block])


def source_of(
    train: tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
    *,
    classes: Sequence[str] = ("0", "1"),
    block: int = 7,
    **more: Any,
) -> Source:
    parts: dict[str, Iterable[Block]] = {"train": Arrays(train[0], np.asarray(train[1]), block)}
    if test is not None:
        parts["test"] = Arrays(test[0], np.asarray(test[1]), block)
    if "label_range" in more:
        classes = ()
    given: dict[str, Any] = {"format": "synthetic", "place": "synthetic", "classes": tuple(classes), **more}
    return Source(dimension=train[0].shape[1], parts=parts, **given)


def synthetic(rows: int, dimension: int, seed: int, classes: int = 2) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return float32-exact rows and labels in which every class occurs."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, dimension)).astype(np.float32).astype(np.float64)
    return features, np.arange(rows) % classes


def stored(
    layout: Layout,
    source: Source,
    *,
    private: bool = False,
    name: str = "rows",
    account: str | None = None,
    previous: Sequence[DatasetRef] = (),
) -> DatasetRef:
    """Store a source as a version, as ingestion does, without registering it; its account has its name unless given."""
    visibility = Visibility.PRIVATE if private else Visibility.PUBLIC
    with (
        staged_dataset(
            layout, source, name=name, account=name if account is None else account, visibility=visibility
        ) as staged,
        locked_directory(layout.private),
    ):
        version = staged.publish(previous)
        confirm_registered(layout, version.version)
        return version


def gathered(rows: StoredRows) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
    blocks = list(rows.blocks())
    return np.concatenate([block[0] for block in blocks]), np.concatenate([block[1] for block in blocks])


def flip(path: Path, place: float = 0.5) -> None:
    """Change one byte of a file, keeping its size; its time moves on, as it does for whatever damages files."""
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 0xFF
    path.write_bytes(bytes(data))
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000))


def temporaries(root: Path) -> list[Path]:
    return list(root.rglob(".new-*"))


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, prefix: str, images: NDArray[np.uint8], labels: NDArray[np.uint8], *, zipped: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        data = idx_bytes(array)
        path = folder / f"{prefix}-{kind}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(data) if zipped else data)
