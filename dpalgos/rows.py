"""Rows as algorithms meet them: blocks of features and labels, made safe behind the door."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArrayRows", "Floats", "Ints", "Rows", "clip_to_unit_ball", "gather", "sanitise"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Rows(Protocol):
    """The rows of one party, readable any number of times, in a fixed order, block by block."""

    @property
    def count(self) -> int:
        """Number of rows (public under replace-one)."""
        ...

    @property
    def dimension(self) -> int:
        """Features a row."""
        ...

    def blocks(self) -> Iterator[tuple[Floats, NDArray[np.generic]]]:
        """Yield ``(features, labels)``: features (m, dimension) float64; labels (m,) class indices or real targets."""
        ...

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return a digest of the rows, for keying noise that is drawn before a value exists; never published."""
        ...


def clip_to_unit_ball(features: Floats, radius: float = 1.0) -> Floats:
    """Scale each row whose l2 norm exceeds ``radius`` onto the sphere; NaN and infinite rows become zero.

    Total: no input raises. The result's norms are at most ``radius`` in float64 up to one part in 10^15;
    mechanisms that need the bound exactly clip again in integers.
    """
    features = np.asarray(features, dtype=np.float64)
    bad: NDArray[np.bool_] = np.logical_not(np.isfinite(features).all(axis=1))
    if bad.any():
        features = np.where(bad[:, None], 0.0, features)
    # Dividing by the largest entry first keeps the square from overflowing.
    largest = np.abs(features).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    # A norm beyond float64 becomes infinite, and its row zero.
    with np.errstate(over="ignore"):
        norms = scale * np.sqrt(np.einsum("ij,ij->i", features / scale[:, None], features / scale[:, None]))
    factor = np.minimum(1.0, radius / np.maximum(norms, np.finfo(np.float64).tiny))
    return np.where((factor < 1.0)[:, None], features * factor[:, None], features)


def sanitise(features: Floats, labels: NDArray[np.generic], classes: int) -> tuple[Floats, Ints]:
    """Make a block safe for any classifier: rows into the unit ball, labels outside 0 … classes − 1 to 0.

    Total: no input raises because of what it contains.
    """
    numbers = np.asarray(labels)
    if np.issubdtype(numbers.dtype, np.floating):
        # Beyond the classes is beyond them, also where no integer is as large.
        numbers = np.clip(np.where(np.isfinite(numbers), numbers, -1.0), -1.0, float(classes))
    whole = numbers.astype(np.int64)
    return clip_to_unit_ball(features), np.where((whole >= 0) & (whole < classes), whole, 0)


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """Rows held in memory: features (n, d), labels (n,)."""

    features: Floats
    labels: NDArray[np.generic]
    block: int = 8192

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.features)

    @property
    def dimension(self) -> int:
        """Features a row."""
        return int(self.features.shape[1])

    def blocks(self) -> Iterator[tuple[Floats, NDArray[np.generic]]]:
        """Yield ``(features, labels)`` in order."""
        for start in range(0, self.count, self.block):
            yield self.features[start : start + self.block], self.labels[start : start + self.block]

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the SHA-256 digest of the features and labels."""
        import hashlib

        digest = hashlib.sha256(np.ascontiguousarray(self.features).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return np.frombuffer(digest.digest(), dtype=np.uint8)


def gather(rows: Rows, classes: int) -> tuple[Floats, Ints]:
    """Return all rows of a party as sanitised arrays, features (n, d) and labels (n,)."""
    parts = [sanitise(features, labels, classes) for features, labels in rows.blocks()]
    if not parts:
        return np.zeros((0, rows.dimension)), np.zeros(0, dtype=np.int64)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
