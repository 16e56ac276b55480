"""Exact integer sums of clipped gradients: what every gradient method of this package shows of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.arrays import Array
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.linear import LinearTask
from dpalgos.mechanisms.fixed_point import encode_rows, encoded_radius, outer_sensitivity
from dpalgos.rows import Floats, Ints, Rows

__all__ = ["EncodedRows", "GradientSums"]

# A party's encoded rows are kept between steps up to this many numbers, four bytes each.
_KEPT_ENTRIES = 2**27
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Unit vectors x/‖x‖ as integers (n, p), norms (n, 1), targets (n, m), weights in [0, 1] (n, 1)."""

    units: NDArray[np.float32]
    norms: Floats
    targets: Floats
    weights: Floats

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.units)

    @classmethod
    def joined(cls, parts: Sequence[EncodedRows]) -> EncodedRows:
        """Return the rows of several parts together."""
        return cls(
            units=np.concatenate([part.units for part in parts]),
            norms=np.concatenate([part.norms for part in parts]),
            targets=np.concatenate([part.targets for part in parts]),
            weights=np.concatenate([part.weights for part in parts]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSums:
    """Σ clip(∇ℓ(W; x, t)) over rows, in integers.

    Guarantee
    ---------
    A row's gradient r ⊗ x is written as (r‖x‖) ⊗ (x/‖x‖), its first factor clipped to norm ``clip``, both rounded to a
    grid and clipped again in integers. The sum of the outer products is exact, so one row moves it by at most the
    product of the two encoded radii in the Frobenius norm, and a replaced row by twice that
    (:func:`~dpalgos.mechanisms.fixed_point.outer_sensitivity`), at any weights. A null record is a zero row: its part
    is zero.

    Parameters
    ----------
    task : LinearTask
    clip : float
        Largest norm of a row's gradient, over all weight rows jointly.
    scale : float
        Grid units to each factor's radius, at most 2¹⁶.
    mean_weight : float
        Each row's own mean is shrunk by this factor first; 1 leaves rows as they are. :meth:`shrunk` is the symmetric
        linear map that does it.
    smallest_party : int, optional
        Where given, a party of n rows scales its gradients by ``smallest_party / n`` ≤ 1, so that the sum is that of
        the parties' means times ``smallest_party``.
    """

    task: LinearTask
    clip: float
    scale: float
    mean_weight: float = 1.0
    smallest_party: int | None = None

    def sensitivity(self, neighbours: Neighbours) -> float:
        """Return how far one record moves the integer sum, in l2."""
        left, right = encoded_radius(self.clip, self.scale / self.clip), encoded_radius(1.0, self.scale)
        return outer_sensitivity(left, right, neighbours)

    def decode(self, total: Ints) -> Floats:
        """Return the sum of gradients of an integer sum."""
        return np.asarray(total * (self.clip / self.scale**2))

    def shrunk(self, rows: Floats) -> Floats:
        """Return rows with their means shrunk."""
        if self.mean_weight == 1.0:
            return rows
        return np.asarray(rows - (1.0 - self.mean_weight) * rows.mean(axis=1, keepdims=True))

    def prepare(self, rows: Rows, setting: Setting) -> Rows | EncodedRows:
        """Encode a party's rows once, unless they are too many to keep."""
        width = self.task.shape(setting)[1]
        return rows if rows.count * width > _KEPT_ENTRIES else self._encoded(rows.blocks(), rows.count, setting)

    @staticmethod
    def merge(parties: Sequence[Rows | EncodedRows]) -> list[Rows | EncodedRows]:
        """Join the parties whose rows are encoded; each row keeps its party's weight."""
        encoded = [rows for rows in parties if isinstance(rows, EncodedRows)]
        merged: list[Rows | EncodedRows] = [rows for rows in parties if not isinstance(rows, EncodedRows)]
        if encoded:
            merged.append(EncodedRows.joined(encoded))
        return merged

    def total(self, weights: Floats, rows: Rows | EncodedRows, setting: Setting) -> Ints:
        """Return a party's integer sum at some weights (m, p)."""
        if isinstance(rows, EncodedRows):
            return self._sum(weights, rows)
        total = np.zeros(weights.shape, dtype=np.int64)
        for block in rows.blocks():
            total += self._sum(weights, self._encoded([block], rows.count, setting))
        return total

    def _encoded(self, blocks: Iterable[tuple[Floats, Array]], party: int, setting: Setting) -> EncodedRows:
        """Encode blocks of a party of ``party`` rows."""
        classes, width = self.task.shape(setting)
        weight = 1.0 if self.smallest_party is None else min(1.0, self.smallest_party / max(party, 1))
        parts = [EncodedRows(np.zeros((0, width), np.float32), *(np.zeros((0, size)) for size in (1, classes, 1)))]
        for features, labels in blocks:
            clean, targets = self.task.block(features, labels, setting)
            clean = self.shrunk(clean)
            norms = np.linalg.norm(clean, axis=1, keepdims=True)
            # At most 16 bits and a sign: float32 holds them exactly in half the memory.
            units = encode_rows(clean / np.where(norms > 0, norms, 1.0), 1.0, self.scale).astype(np.float32)
            parts.append(EncodedRows(units, norms, targets, np.full((len(clean), 1), weight)))
        return EncodedRows.joined(parts)

    def _sum(self, weights: Floats, rows: EncodedRows) -> Ints:
        """Sum r̃ ⊗ x̃ exactly.

        Both factors' entries are integers of at most 2¹⁶, so a block's 1024 products of at most 2³² and all their
        partial sums stay below 2⁵³ and are exact in float64.
        """
        total = np.zeros(weights.shape, dtype=np.int64)
        for start in range(0, rows.count, _BLOCK):
            block = slice(start, start + _BLOCK)
            units, norms = rows.units[block].astype(np.float64), rows.norms[block]
            scores = units @ (weights.T / self.scale) * norms
            residuals = self.task.loss.slope(scores, rows.targets[block]) * norms
            lengths = np.linalg.norm(residuals, axis=1, keepdims=True)
            factors = np.minimum(1.0, self.clip / np.maximum(lengths, np.finfo(np.float64).tiny))
            clipped = residuals * (factors * rows.weights[block])
            encoded = encode_rows(clipped, self.clip, self.scale / self.clip).astype(np.float64)
            total += (encoded.T @ units).astype(np.int64)
        return total
