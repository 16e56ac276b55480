"""Rows, settings and noise for tests of algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpalgos import algorithms
from dpalgos.guarantees import Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.rows import ArrayRows, Floats, Ints, Rows, sanitise
from dpalgos.testing import blobs

__all__ = ["blobs", "fit", "fitted", "gather", "noise", "parties_of", "setting_of"]

Array = NDArray[np.float64]

fit: Callable[..., Any] = algorithms.fit
"""What comes out is each test's to know."""


def parties_of(rows: ArrayRows, parties: int) -> list[ArrayRows]:
    return [ArrayRows(rows.features[i::parties], rows.labels[i::parties], block=16) for i in range(parties)]


def setting_of(parties: Sequence[ArrayRows], classes: int, trust: Trust | None = None) -> Setting:
    return Setting(
        sizes=tuple(rows.count for rows in parties),
        dimension=parties[0].dimension,
        classes=classes,
        trust=trust or (Trust.LOCAL if len(parties) == 1 else Trust.CENTRAL),
    )


def noise(seed: int = 0) -> KeyedNoise:
    return KeyedNoise(public_secret(seed), "test")


def fitted(algorithm: Any, parties: Sequence[ArrayRows], classes: int, seed: int = 0) -> Any:
    return fit(algorithm, parties, setting_of(parties, classes), noise(seed))


def gather(rows: Rows, classes: int) -> tuple[Floats, Ints]:
    """Return all rows of a party as sanitised arrays, features (n, d) and labels (n,), null records included.

    For rows that are records of their own: whose they are is not said.
    """
    gathered, known, filled = np.zeros((rows.count, rows.dimension)), np.zeros(rows.count, dtype=np.int64), 0
    for features, labels, _ in rows.blocks():
        part = slice(filled, filled + len(labels))
        gathered[part], known[part] = sanitise(features, labels, classes)
        filled = part.stop
    return gathered[:filled], known[:filled]
