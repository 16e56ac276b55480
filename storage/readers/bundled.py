"""The data sets that come with scikit-learn: no file, no network."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from storage.errors import InputError
from storage.readers.registry import register_reader
from storage.source import Block, ReadOptions, Source, confirm

# The range is that of the published targets; with None the labels are classes.
BUNDLED = MappingProxyType(
    {
        "breast_cancer": None,
        "diabetes": (25.0, 346.0),
        "digits": None,
        "iris": None,
        "wine": None,
    }
)
_IMAGES: Mapping[str, tuple[int, ...]] = MappingProxyType({"digits": (8, 8)})


@cache
def _load(name: str) -> Any:
    import sklearn.datasets

    return getattr(sklearn.datasets, f"load_{name}")()


@dataclass(frozen=True, slots=True)
class _Bundled:
    name: str

    def __iter__(self) -> Iterator[Block]:
        bunch = _load(self.name)
        labels = bunch.target
        if BUNDLED[self.name] is None:
            labels = np.asarray([str(value) for value in bunch.target_names])[labels]
        yield Block(np.asarray(bunch.data, dtype=np.float64), labels)


@register_reader("sklearn")
def read_bundled(path: str | Path, options: ReadOptions) -> Source:
    """Read a set that scikit-learn brings along; the path is its name.

    Parameters
    ----------
    path : str
        ``"digits"``, ``"iris"``, ``"wine"``, ``"breast_cancer"`` or ``"diabetes"`` (real labels).
    """
    name = str(path).replace("-", "_")
    if name not in BUNDLED:
        raise InputError(f"scikit-learn brings no set {str(path)!r} along; it has: {', '.join(BUNDLED)}")
    bunch = _load(name)
    label_range = BUNDLED[name]
    dimension = int(bunch.data.shape[1])
    classes = () if label_range else tuple(str(value) for value in bunch.target_names)
    confirm(options, name, dimension=dimension, classes=classes, label_range=label_range)
    return Source(
        format="sklearn",
        place=name,
        dimension=dimension,
        classes=classes,
        label_range=label_range,
        parts={"train": _Bundled(name)},
        image_shape=_IMAGES.get(name),
    )
