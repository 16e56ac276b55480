"""Rows of a kernel's matrix over rows that are active, kept while there is room for them."""

from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from dpalgos.kernels import Kernel, squared_norms
from dpalgos.rows import Features, Floats, Ints

_CACHE_BYTES = 200 * 2**20
# Kernel values are rounded to float32 where the largest k(x, x) is in this range, so that neither the large ones
# overflow nor those that matter lose digits.
_SINGLE = (1e-25, 1e30)


class KernelRows:
    """The kernel matrix over the rows that are active, row by row, the least recently used forgotten first.

    A kernel value is summed in float64 in the order of the features and then rounded to float32, as LIBSVM does it: so
    neither what else is active nor what is remembered changes it, and twice as many rows fit as in float64.

    Attributes
    ----------
    held : array (places, active), float32 or float64
        The rows that are remembered.
    places : int array (active,)
        Where in ``held`` the row of each position is; −1 where it is not.
    used : int array (places,)
        When each was asked for last, by ``clock``.
    clock : int
    diagonal : array (active,)
        Not rounded.

    Parameters
    ----------
    kernel : Kernel
    features : array or sparse matrix (n, d)
    cache_bytes : int
        What the remembered rows may take; two rows are always kept. The door counts them in what SMO holds
        (:func:`dpalgos.published.machines.machine_work`).
    """

    held: Features
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
        with np.errstate(over="ignore"):
            single = dense and np.array_equal(self._all.astype(np.float32), self._all)
        # Rows once stored are float32, in which they take half the time to go through.
        self._column_type: DTypeLike = np.float32 if single else np.float64
        self._all_squares = squared_norms(self._all)
        largest = float(kernel.diagonal(self._all_squares).max(initial=0.0))
        self._largest = largest
        self._type: DTypeLike = np.float32 if _SINGLE[0] <= largest <= _SINGLE[1] else np.float64
        rows = features.shape[0]
        size = min(cache_bytes, rows * rows * np.dtype(self._type).itemsize)
        # The system gives memory to what is written to only.
        self._memory = np.empty(max(-(-size // 8), 2 * rows))
        self.restore(np.arange(rows))

    @property
    def rounded(self) -> bool:
        """Whether rows are rounded to float32."""
        return self._type == np.float32

    @property
    def rounding(self) -> float:
        """Largest distance of a stored kernel value from the true one."""
        return self._largest * 0.5 * float(np.finfo(self._type).eps)

    def widen(self) -> None:
        """Keep rows in float64 from now on; those that are held are forgotten."""
        self._type = np.float64
        self._divide(len(self._ids))

    def row(self, position: int) -> Features:
        """Return k(x_t, x) over the active x_t, for the active row at ``position``; valid until two others are."""
        place = int(self.places[position])
        if place < 0:
            place = self._make(position)
        self.clock += 1
        self.used[place] = self.clock
        return cast(Features, self.held[place])

    def _make(self, position: int) -> int:
        place = int(self.used.argmin())
        if self._positions[place] >= 0:
            self.places[self._positions[place]] = -1
        self._write_products(int(self._ids[position]), self._products)
        square = float(self._squares[position])
        self.held[place] = self._kernel.of_products(self._products, self._squares, square)
        self.places[position], self._positions[place] = place, position
        return place

    def _write_products(self, number: int, out: Floats) -> None:
        """Write the inner products of the active rows with one of all rows."""
        from dpalgos import _compiled

        columns = self._columns
        if isinstance(columns, np.ndarray):
            _compiled.dense_products(columns, self._all[number], out)
        else:
            own = slice(self._all.indptr[number], self._all.indptr[number + 1])
            point = self._all.indices[own], self._all.data[own]
            _compiled.sparse_products(columns.indptr, columns.indices, columns.data, *point, out)

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

    def restore(self, order: Ints) -> None:
        """Make every row active again, in that order."""
        self._activate(order)
        self.diagonal = self._kernel.diagonal(self._squares)
        self.clock = 0
        self._divide(len(self._ids))

    def _activate(self, ids: Ints) -> None:
        """Lay the active rows out column after column, so that a point's zeros cost nothing."""
        self._ids, self._squares = ids, self._all_squares[ids]
        self._columns: Any
        if isinstance(self._all, np.ndarray):
            self._columns = np.ascontiguousarray(self._all[ids].T, dtype=self._column_type)
        else:
            self._columns = self._all[ids].tocsc()
        self._products = np.empty(len(ids))

    def _divide(self, active: int) -> None:
        """Divide the memory into empty places for rows over so many positions."""
        memory = self._memory.view(self._type)
        places = min(memory.size // max(active, 1), active)
        self.held = memory[: places * active].reshape(places, active)
        self.places = np.full(active, -1)
        self.used = np.full(places, -1)
        self._positions: Ints = np.full(places, -1)

    def scores(self, at: Ints, support: Ints, coefficients: Floats) -> Floats:
        """Return Σ_s coefficients[s] k(x_t, x_support[s]) for the rows ``at``, active or not, in float64."""
        return self._kernel.scores(self._all[at], self._all[support], coefficients)
