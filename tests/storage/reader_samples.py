"""A small set in every format; a reader without a row here fails the contract test."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.pictures.declaration import Pictures, Pixels
from storage.source import ReadOptions
from tests.support.data import write_idx
from tests.support.pictures import write_pictures

DECLARED = ReadOptions(dimension=2, classes=("0", "1"))
FEATURES = [[1.0, 0.5], [2.0, 0.0], [3.0, 1.0]]
LABELS = [0, 1, 0]
SCHEMA = """scaling: unit-interval
columns:
  - {name: a, type: numeric, range: [0, 10]}
  - {name: b, type: numeric, range: [0, 1]}
  - {name: y, type: label, classes: ["0", "1"]}
"""


@dataclass(frozen=True)
class Sample:
    """What to open, declared in full as for private data; how many training rows there are, of how many features.

    ``features`` and ``labels`` (class indices) are what is read, where the format can hold any numbers.
    """

    path: str | Path
    rows: int = 3
    dimension: int = 2
    options: ReadOptions = field(default=DECLARED)
    features: list[list[float]] | None = None
    labels: list[int] | None = None


def _cifar10(folder: Path) -> Sample:
    pixels = np.zeros((4, 3072), dtype=np.uint8)
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": [0, 1, 2, 3]}, protocol=2))
    return Sample(folder, 4, 3072, ReadOptions(), labels=[0, 1, 2, 3])


def _csv(folder: Path) -> Sample:
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "rows.csv").write_text("a,b,y\n1,0.5,0\n2,0,1\n3,1,0\n")
    return Sample(folder / "rows.csv", options=ReadOptions(schema=folder / "schema.yaml"), labels=LABELS)


def _idx(folder: Path) -> Sample:
    images = np.full((4, 2, 3), 255, dtype=np.uint8)
    write_idx(folder / "idx", "train", images, np.array([0, 1, 1, 0], dtype=np.uint8), zipped=False)
    options = ReadOptions(dimension=6, classes=("0", "1"))
    return Sample(folder / "idx", 4, 6, options, features=np.ones((4, 6)).tolist(), labels=[0, 1, 1, 0])


def _file(name: str, write: Callable[[Path], object]) -> Callable[[Path], Sample]:
    """Return what makes a sample of one file that holds ``FEATURES`` and ``LABELS``."""

    def make(folder: Path) -> Sample:
        write(folder / name)
        return Sample(folder / name, features=FEATURES, labels=LABELS)

    return make


def _draft(folder: Path) -> Sample:
    columns = "{name: a, type: category}, {name: x, type: numeric}, {name: y, type: label}"
    (folder / "draft.yaml").write_text(f"columns: [{columns}]")
    (folder / "rows.csv").write_text("a,x,y\nA,1,0\n,0,1\nAB,0.5,0\n")
    # 1 lies in the powers of two from 2^0 on, 0.5 in that from 2^-1; bin 51 is around 0. Numbers come first.
    features = [[place, *[0.0] * 32] for place in (62.0, 51.0, 61.0)]
    features[0][1] = features[2][1] = ord("A") / 255
    features[2][2] = ord("B") / 255
    options = ReadOptions(schema=folder / "draft.yaml")
    return Sample(folder / "rows.csv", dimension=33, options=options, features=features, labels=[0, 0, 0])


def _cifar100(folder: Path) -> Sample:
    records = np.zeros((4, 3074), dtype=np.uint8)
    records[:, 1] = [0, 1, 2, 1]
    (folder / "train.bin").write_bytes(records.tobytes())
    return Sample(folder, 4, 3072, ReadOptions(classes=("a", "b", "c")), labels=[0, 1, 2, 1])


def _images(folder: Path) -> Sample:
    write_pictures(folder / "set", {"0/a.png": 255, "1/b.png": 51, "0/c.png": 0})
    options = ReadOptions(classes=("0", "1"), pictures=Pictures(side=1, pixels=Pixels.GREY))
    return Sample(folder / "set", dimension=1, options=options, features=[[1.0], [0.2], [0.0]], labels=LABELS)


def _sklearn(folder: Path) -> Sample:
    return Sample("iris", 150, 4, ReadOptions())


SAMPLES: dict[str, Callable[[Path], Sample]] = {
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "csv": _csv,
    "idx": _idx,
    "images": _images,
    "libsvm": _file("rows", lambda path: path.write_text("0 1:1 2:0.5\n1 1:2\n0 1:3 2:1\n")),
    "parquet": _file("a.parquet", lambda path: pq.write_table(pa.table({"features": FEATURES, "label": LABELS}), path)),
    "sklearn": _sklearn,
    "table-draft": _draft,
}
