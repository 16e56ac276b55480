"""Exact integer sums of clipped gradients: what every gradient method of this package shows of the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpalgos.guarantees import Neighbours, Setting
from dpalgos.linear import LinearTask
from dpalgos.losses import write_slopes
from dpalgos.mechanisms.fixed_point import (
    encode_into,
    encoded_radius,
    inner_products,
    on_weight_grid,
    outer_products,
    outer_sensitivity,
    row_weights,
    squared_limit,
)
from dpalgos.parallel import accumulate, pieces
from dpalgos.resources import Reserved, Work, reserve
from dpalgos.rows import Block, Floats, Ints, Rows, clip_to_unit_ball, null_labels

# From this many products a sum on, the compiled ones are worth the start of the compiler.
_COMPILED_FROM = 2**23
# Rows that stay in a core's cache between their scores and their sum.
_PIECE_ENTRIES = 2**18
# Rows that a core takes at a time: enough of them to be worth handing over, few enough for all cores to end together.
_SHARE_ENTRIES = 2**20
# Up to this width rows are kept column after column: loops are then long, whatever the width.
_NARROW = 128
# Parties' blocks are joined up to this many rows.
_JOINED_ROWS = 4096


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """Some rows: unit vectors x/‖x‖ as integers (b, p), norms, targets (b, m), and what they weigh.

    A weight (b, 1) is that of the party, in [0, 1], over k of a person; a limit (b,) the squared norm that an encoded
    slope may have. Targets lie column after column in memory, and so do narrow rows' units.
    """

    units: NDArray[np.float32]
    norms: NDArray[np.float32]
    targets: NDArray[np.float32]
    weights: NDArray[np.float32]
    limits: Floats

    @classmethod
    def joined(cls, blocks: Sequence[EncodedBlock]) -> EncodedBlock:
        """Return some blocks as one."""
        units = np.concatenate([block.units for block in blocks])
        return cls(
            units=np.asarray(units, order=_order(units.shape[1])),
            norms=np.concatenate([block.norms for block in blocks]),
            targets=np.asfortranarray(np.concatenate([block.targets for block in blocks])),
            weights=np.concatenate([block.weights for block in blocks]),
            limits=np.concatenate([block.limits for block in blocks]),
        )

    def where(self, chosen: NDArray[np.bool_]) -> EncodedBlock:
        """Return some of the rows: those marked among the first of ``chosen``."""
        own = chosen[: len(self.units)]
        units = np.asarray(self.units[own], order=_order(self.units.shape[1]))
        targets = np.asfortranarray(self.targets[own])
        return EncodedBlock(units, self.norms[own], targets, self.weights[own], self.limits[own])


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """A party's encoded rows, kept in memory that is reserved while they are."""

    blocks: tuple[EncodedBlock, ...]
    memory: tuple[Reserved, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(len(block.units) for block in self.blocks)

    def shares(self, entries: int) -> Iterator[tuple[EncodedBlock, slice[int, int, None]]]:
        """Yield blocks and slices of them of at most about so many numbers."""
        for block in self.blocks:
            rows, width = block.units.shape
            for part in pieces(rows, width, entries):
                yield block, slice(part.start, min(part.stop, rows))

    def where(self, chosen: NDArray[np.bool_]) -> EncodedRows:
        """Return some of the rows, (count,) of them marked."""
        starts = np.cumsum([0, *(len(block.units) for block in self.blocks)])
        kept = (block.where(chosen[start:]) for block, start in zip(self.blocks, starts, strict=False))
        return EncodedRows(blocks=tuple(kept), memory=())


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSums:
    """Σ clip(∇ℓ(W; x, t)) over rows, in integers.

    Guarantee
    ---------
    A row's gradient r ⊗ x is written as (r‖x‖) ⊗ (x/‖x‖), its first factor clipped to norm ``clip``, both rounded to a
    grid and clipped again in integers. The sum of the outer products is exact, so one row moves it by at most the
    product of the two encoded radii in the Frobenius norm, and a replaced row by twice that
    (:func:`~dpalgos.mechanisms.fixed_point.outer_sensitivity`), at any weights. A null record is a zero row: its part
    is zero. Of a person's k rows each has a first factor, which makes no score, of 1/k of that norm at most: a person
    moves the sum by no more (:func:`~dpalgos.mechanisms.fixed_point.row_weights`).

    Parameters
    ----------
    task : LinearTask
        Its ``class_weight`` multiplies a row's first factor after it is clipped, which stays within its limit.
    clip : float
        Largest norm of a row's gradient, over all weight rows jointly.
    scale : float
        Grid units to each factor's radius, at most 2¹⁶.
    mean_weight : float
        Each row's own mean is shrunk by this factor first; 1 leaves rows as they are. :meth:`shrunk` is the symmetric
        linear map that does it.
    smallest_party : int, optional
        Where given, a party of n records scales its gradients by ``smallest_party / n`` ≤ 1, so that the sum is that of
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

    def weighing(self, class_weight: Sequence[float]) -> GradientSums:
        """Return the sums in which classes weigh this much; these, where nothing is given."""
        return replace(self, task=replace(self.task, class_weight=class_weight)) if class_weight else self

    def decode(self, total: Ints | Floats) -> Floats:
        """Return the sum of gradients of an integer sum."""
        return np.asarray(total * (self.clip / self.scale**2))

    def shrunk(self, rows: Floats) -> Floats:
        """Return rows with their means shrunk."""
        if self.mean_weight == 1.0:
            return rows
        return np.asarray(rows - (1.0 - self.mean_weight) * rows.mean(axis=1, keepdims=True))

    def work(self, setting: Setting, sums: int) -> Work:
        """Return the work of some sums: scores and outer products, and the slopes' functions."""
        scores = float(setting.most_rows) * self.task.shape(setting)[0]
        return Work(
            passes=sums,
            operations=4.0 * scores * self.task.shape(setting)[1] * sums,
            small_operations=scores * sums,
            kept=self._kept(setting.most_rows, setting),
        )

    def _kept(self, rows: int, setting: Setting) -> int:
        """Return the bytes of some rows encoded: units, targets, norm and weight in float32, a limit in float64."""
        return 4 * rows * (sum(self.task.shape(setting)) + 4)

    def prepare(
        self, rows: Rows, setting: Setting, seen: Callable[[Block], Block] = lambda block: block
    ) -> Rows | EncodedRows:
        """Encode a party's rows once, each block as it is ``seen``, unless too little memory is left to keep them."""
        memory = reserve(self._kept(rows.count * setting.rows_per_person, setting))
        if memory is None:
            return rows
        blocks = tuple(self._encoded(seen(block), rows.count, setting) for block in rows.blocks())
        return EncodedRows(blocks, (memory,))

    @staticmethod
    def merge(parties: Sequence[Rows | EncodedRows]) -> list[Rows | EncodedRows]:
        """Join the parties whose rows are encoded; each row keeps its party's weight."""
        encoded = [rows for rows in parties if isinstance(rows, EncodedRows)]
        merged: list[Rows | EncodedRows] = [rows for rows in parties if not isinstance(rows, EncodedRows)]
        if encoded:
            blocks = tuple(_joined(block for rows in encoded for block in rows.blocks))
            merged.append(EncodedRows(blocks, tuple(held for rows in encoded for held in rows.memory)))
        return merged

    def total(self, weights: Floats, rows: Rows | EncodedRows, setting: Setting) -> Ints:
        """Return a party's integer sum at some weights (m, p).

        The scores are exact, too, so that the sum does not depend on how rows are cut into blocks, whether they are
        kept, and how many cores add them up.
        """
        scored, unit = on_weight_grid(weights, encoded_radius(1.0, self.scale))
        compiled = self._compiled(setting)

        def add(total: Ints, share: tuple[EncodedBlock, slice[int, int, None]]) -> None:
            block, own = share
            for piece in pieces(own.stop - own.start, weights.shape[1], _PIECE_ENTRIES):
                part = slice(own.start + piece.start, min(own.start + piece.stop, own.stop))
                scores = inner_products(scored, block.units, part, compiled=compiled)
                scores *= (block.norms[part] / np.float64(self.scale * unit)).T
                slopes = self.encoded_slopes(
                    scores,
                    block,
                    part,
                    weighed=setting.rows_per_person > 1 or bool(self.task.class_weight),
                    compiled=compiled,
                )
                total += outer_products(slopes, block.units, part, compiled=compiled)

        def read(total: Ints, block: Block) -> None:
            encoded = self._encoded(block, rows.count, setting)
            add(total, (encoded, slice(0, len(encoded.units))))

        def zero() -> Ints:
            return np.zeros(weights.shape, dtype=np.int64)

        if isinstance(rows, EncodedRows):
            return np.asarray(sum(accumulate(zero, add, rows.shares(_SHARE_ENTRIES))))
        return np.asarray(sum(accumulate(zero, read, rows.blocks())))

    def encoded_slopes(
        self, scores: Floats, block: EncodedBlock, part: slice[int, int, None], *, weighed: bool, compiled: bool
    ) -> Floats:
        """Return the (r‖x‖) of some rows of a block, clipped and encoded, (m, b); their scores are overwritten.

        Entries are whole numbers of at most 2¹⁶, as those of the units are, so a block's products and all their partial
        sums stay below 2⁵³ (for up to 2²¹ rows) and are exact in float64.
        """
        norms, targets, weights = block.norms[part], block.targets[part], block.weights[part]
        limits = block.limits[part]
        if self.task.class_weight:
            weights = weights * self.task.class_weights(targets).astype(np.float32)[:, None]
        grid = self.scale / self.clip
        if compiled:
            from dpalgos import _compiled

            write_slopes(self.task.loss, scores, block.targets.T, part.start)
            _compiled.encode_columns(scores, norms[:, 0], weights[:, 0], self.clip, grid, limits)
            return scores
        # A row's norm is rounded by the order in which its entries lie.
        slopes = np.ascontiguousarray(self.task.loss.slope(scores.T, targets.astype(np.float64)) * norms)
        if weighed or self.smallest_party is not None:
            slopes = clip_to_unit_ball(slopes, self.clip) * weights
        return encode_into(np.empty(slopes.shape), slopes, self.clip, grid, (np.ones(len(slopes)), limits)).T

    def _compiled(self, setting: Setting) -> bool:
        """Whether all parties' sum is worth the start of the compiler; public, as what is compiled rounds otherwise."""
        return setting.rows * math.prod(self.task.shape(setting)) >= _COMPILED_FROM

    def _encoded(self, block: Block, party: int, setting: Setting) -> EncodedBlock:
        """Encode a block of a party of ``party`` records."""
        features, labels, shares = block
        classes, width = self.task.shape(setting)
        count = len(labels)
        weight = 1.0 if self.smallest_party is None else min(1.0, self.smallest_party / max(party, 1))
        # At most 16 bits and a sign: float32 holds them exactly in half the memory.
        units, targets = (
            np.empty((count, width), np.float32, _order(width)),
            np.empty((count, classes), np.float32, "F"),
        )
        norms, weights = np.empty((2, count, 1), np.float32)
        shares = np.ones(count, np.int64) if shares is None else shares
        limit = squared_limit(self.clip, self.scale / self.clip)
        factors, limits = row_weights(shares, limit)
        weights[:, 0] = weight * factors
        encoded = EncodedBlock(units, norms, targets, weights, limits)
        if features.dtype == np.float32 and self._compiled(setting):
            from dpalgos import _compiled

            null = null_labels(labels, setting.classes)
            grid = (self.scale, squared_limit(1.0, self.scale))
            for part in pieces(count, width):
                # Row after row, and then into columns: a row's entries there may be a power of two apart, which the
                # caches map to one place.
                lines = np.empty((len(features[part]), width), np.float32)
                arguments = (features[part], null[part], self.task.intercept_scaling, self.mean_weight)
                _compiled.encode_units(*arguments, *grid, lines, encoded.norms[part])
                encoded.units[part] = lines
            encoded.targets[:] = self.task.targets(labels, null, setting)
            return encoded
        for part in pieces(count, width):
            clean, encoded.targets[part] = self.task.block(features[part], labels[part], setting)
            clean = self.shrunk(clean)
            lengths = np.linalg.norm(clean, axis=1, keepdims=True)
            norms[part] = lengths
            encode_into(units[part], clean / np.where(lengths > 0, lengths, 1.0), 1.0, self.scale)
        return encoded


def _order(width: int) -> Literal["C", "F"]:
    """Return how units of this width lie in memory: row after row, or column after column."""
    return "F" if width <= _NARROW else "C"


def _joined(blocks: Iterator[EncodedBlock]) -> Iterator[EncodedBlock]:
    """Yield blocks of a few thousand rows, or of more where they come so."""
    held: list[EncodedBlock] = []
    rows = 0
    for block in blocks:
        held.append(block)
        rows += len(block.units)
        if rows >= _JOINED_ROWS:
            yield EncodedBlock.joined(held) if len(held) > 1 else block
            held, rows = [], 0
    if held:
        yield EncodedBlock.joined(held)
