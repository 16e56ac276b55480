"""Rows, settings and noise for tests of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpalgos.algorithms import fit
from dpalgos.guarantees import Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.rows import ArrayRows, clip_to_unit_ball

__all__ = ["blobs", "fitted", "noise", "parties_of", "setting_of"]

Array = NDArray[np.float64]


def blobs(count: int, dimension: int, classes: int, seed: int, spread: float = 0.3) -> ArrayRows:
    """Return rows of norm 1 around one centre a class."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    features = random.normal(size=(classes, dimension))[labels] + spread * random.normal(size=(count, dimension))
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return ArrayRows(clip_to_unit_ball(features / norms), labels, block=16)


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
