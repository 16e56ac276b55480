"""Kernels as functions of inner products, and rows of their matrices, kept while there is room for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import DTypeLike

from dpalgos.parameters import POSITIVE, Bounded
from dpalgos.rows import Features, Floats, Ints

# Scores are summed over blocks of so many support vectors and rows, whose kernel values stay in a core's cache. Sparse
# rows are made dense for it, as many at once as have so many entries.
_BLOCK_SUPPORT, _BLOCK_ROWS, _BLOCK_ENTRIES = 64, 1024, 2**22
# Up to this share of entries that are not zero, leaving zeros out is faster than the library's product.
_FEW = 0.4


def squared_norms(features: Any) -> Floats:
    """Return the squared l2 norms (n,) of the rows of a dense or sparse (n, d) matrix."""
    if isinstance(features, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", features, features))
    return np.asarray(features.multiply(features).sum(axis=1), dtype=np.float64).ravel()


def _dense(features: Any) -> Any:
    return features if isinstance(features, np.ndarray) else features.toarray()


def _products(columns: Any, points: Any) -> Floats:
    """Return the inner products (s, n) of rows, columns (d, n), with points (s, d)."""
    if np.count_nonzero(points) > _FEW * points.size:
        return np.ascontiguousarray(points @ columns, dtype=np.float64)
    from dpalgos import _compiled

    products = np.empty((points.shape[0], columns.shape[1]))
    for point, out in zip(points, products, strict=True):
        _compiled.dense_products(columns, point, out)
    return products


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """k(x, z) = x·z."""

    def of_products(self, products: Floats, squares: Floats, square: float) -> Floats:
        """Return k(x_t, z) from the inner products x_t·z (m,), the squared norms of the x_t (m,) and of z."""
        return products

    def diagonal(self, squares: Floats) -> Floats:
        """Return k(x_t, x_t) from the squared norms of the x_t."""
        return squares

    def scores(self, features: Any, support: Any, coefficients: Floats) -> Floats:
        """Return Σ_s coefficients[s] k(x_t, support_s) for each row x_t of ``features``, (m,)."""
        return np.asarray(features @ (support.T @ coefficients))


@dataclass(frozen=True, slots=True)
class GaussianKernel(Bounded):
    """k(x, z) = exp(−gamma ‖x − z‖²), the radial basis function.

    Parameters
    ----------
    gamma : float
        Positive.
    """

    gamma: float = field(metadata=POSITIVE)

    def of_products(self, products: Floats, squares: Floats, square: float) -> Floats:
        """Return the exponential of the squared distance, which rounding must not make negative, over the products."""
        from dpalgos import _compiled

        _compiled.write_gaussian_kernel(products, squares, square, self.gamma)
        return products

    def diagonal(self, squares: Floats) -> Floats:
        """Return ones."""
        return np.ones_like(squares)

    def scores(self, features: Any, support: Any, coefficients: Floats) -> Floats:
        """Sum over blocks of rows and of support vectors."""
        squares, support_squares = squared_norms(features), squared_norms(support)
        total = np.zeros(features.shape[0])
        most = max(1, _BLOCK_ENTRIES // max(1, features.shape[1]))
        for first in range(0, len(total), min(most, _BLOCK_ROWS)):
            rows = slice(first, first + min(most, _BLOCK_ROWS))
            columns = np.ascontiguousarray(_dense(features[rows]).T)
            for start in range(0, len(coefficients), min(most, _BLOCK_SUPPORT)):
                block = slice(start, start + min(most, _BLOCK_SUPPORT))
                products = _products(columns, _dense(support[block]))
                lengths = np.add.outer(support_squares[block], squares[rows])
                self.of_products(products.ravel(), lengths.ravel(), 0.0)
                total[rows] += coefficients[block] @ products
        return total


Kernel: TypeAlias = LinearKernel | GaussianKernel
KERNELS: Mapping[str, Callable[[float], Kernel]] = MappingProxyType(
    {"linear": lambda gamma: LinearKernel(), "rbf": GaussianKernel}
)
"""How to make each named kernel from gamma, which the linear one does not need."""


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
        (:func:`dpalgos.algorithms.machine_work`).
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
        """How far a remembered kernel value may be from the true one."""
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
