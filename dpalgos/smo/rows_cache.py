"""Rows of the kernel matrix, made when asked for and kept while there is room: never the whole matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpalgos.kernels import Kernel, squared_norms
from dpalgos.rows import Floats, Ints

__all__ = ["KernelRows"]

_CACHE_BYTES = 200 * 2**20
# Up to this share of entries that are not zero, leaving zeros out is faster than the library's product.
_FEW = 0.25


class KernelRows:
    """The kernel matrix over the rows that are active, row by row, the least recently used forgotten first.

    Attributes
    ----------
    held : array (places, active)
        The rows that are remembered.
    places : int array (active,)
        Where in ``held`` the row of each position is; −1 where it is not.
    used : int array (places,)
        When each was asked for last, by ``clock``.
    clock : int

    Parameters
    ----------
    kernel : Kernel
    features : array or sparse matrix (n, d)
    cache_bytes : int
        What the remembered rows may take; two rows are always kept.
    """

    held: Floats
    places: Ints
    used: Ints
    clock: int
    diagonal: Floats

    def __init__(self, kernel: Kernel, features: Any, cache_bytes: int = _CACHE_BYTES) -> None:
        self._kernel = kernel
        dense = isinstance(features, np.ndarray)
        self._all: Any = (
            np.ascontiguousarray(features, dtype=np.float64) if dense else features.tocsr().astype(np.float64)
        )
        self._few = dense and np.count_nonzero(features) <= _FEW * features.size
        self._all_squares = squared_norms(features)
        rows = features.shape[0]
        # The system gives memory to what is written to only.
        self._memory = np.empty(min(max(cache_bytes // 8, 2 * rows), rows * rows))
        self.restore()

    def row(self, position: int) -> Floats:
        """Return k(x_t, x) over the active x_t, for the active row at ``position``; valid until two others are."""
        place = int(self.places[position])
        if place < 0:
            place = self._make(position)
        self.clock += 1
        self.used[place] = self.clock
        row: Floats = self.held[place]
        return row

    def _make(self, position: int) -> int:
        place = int(self.used.argmin())
        if self._positions[place] >= 0:
            self.places[self._positions[place]] = -1
        row = self.held[place]
        self._write_products(int(self._ids[position]), row)
        row[:] = self._kernel.of_products(row, self._squares, float(self._squares[position]))
        self.places[position], self._positions[place] = place, position
        return place

    def _write_products(self, number: int, out: Floats) -> None:
        """Write the inner products of the active rows with one of all rows."""
        from dpalgos.smo import compiled

        columns = self._columns
        if columns is None:
            np.matmul(self._features, self._all[number], out=out)
        elif isinstance(columns, np.ndarray):
            compiled.dense_products(columns, self._all[number], out)
        else:
            own = slice(self._all.indptr[number], self._all.indptr[number + 1])
            point = self._all.indices[own], self._all.data[own]
            compiled.sparse_products(columns.indptr, columns.indices, columns.data, *point, out)

    def keep(self, kept: Ints) -> None:
        """Leave only the active rows at the positions ``kept`` active; what is cached of them is shortened."""
        self._activate(self._ids[kept])
        self.diagonal = self.diagonal[kept]
        before, places, used = self.held, self.places[kept], self.used
        self._divide(len(kept))
        # In ascending order, a shortened row is written over rows that have been moved or are no longer wanted.
        remembered = np.flatnonzero(places >= 0)
        for place, position in enumerate(remembered[np.argsort(places[remembered])]):
            self.held[place] = before[places[position], kept]
            self.used[place] = used[places[position]]
            self.places[position], self._positions[place] = place, position

    def restore(self) -> None:
        """Make every row active again."""
        self._activate(np.arange(self._all.shape[0]))
        self.diagonal = self._kernel.diagonal(self._all_squares)
        self.clock = 0
        self._divide(len(self._ids))

    def _activate(self, ids: Ints) -> None:
        """Lay the active rows out, column after column where a point's zeros are to cost nothing."""
        self._ids, self._squares = ids, self._all_squares[ids]
        self._features = self._all if len(ids) == self._all.shape[0] else self._all[ids]
        self._columns: Any = None
        if not isinstance(self._features, np.ndarray):
            self._columns = self._features.tocsc()
        elif self._few:
            self._columns = np.ascontiguousarray(self._features.T)

    def _divide(self, active: int) -> None:
        """Divide the memory into empty places for rows over so many positions."""
        places = min(self._memory.size // max(active, 1), active)
        self.held = self._memory[: places * active].reshape(places, active)
        self.places = np.full(active, -1)
        self.used = np.full(places, -1)
        self._positions: Ints = np.full(places, -1)

    def scores(self, at: Ints, support: Ints, coefficients: Floats) -> Floats:
        """Return Σ_s coefficients[s] k(x_t, x_support[s]) for the rows ``at``, whether active or not."""
        return self._kernel.scores(self._all[at], self._all[support], coefficients)
