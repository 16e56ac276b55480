"""Rows of the kernel matrix, made when asked for and kept while there is room: never the whole matrix."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from dpalgos.kernels import Kernel, squared_norms
from dpalgos.rows import Floats, Ints

__all__ = ["KernelRows"]

_CACHE_BYTES = 200 * 2**20


class KernelRows:
    """The kernel matrix over the rows that are active, row by row, the least recently used forgotten first.

    Parameters
    ----------
    kernel : Kernel
    features : array or sparse matrix (n, d)
    cache_bytes : int
        What the remembered rows may take; two rows are always kept.
    """

    def __init__(self, kernel: Kernel, features: Any, cache_bytes: int = _CACHE_BYTES) -> None:
        self._kernel = kernel
        self._all = features
        self._all_squares = squared_norms(features)
        self._bytes = cache_bytes
        self._cached: OrderedDict[int, Floats] = OrderedDict()
        self._ids: Ints = np.arange(features.shape[0])
        self._features, self._squares = self._all, self._all_squares
        self.diagonal: Floats = kernel.diagonal(self._all_squares)

    def row(self, position: int) -> Floats:
        """Return k(x_t, x) over the active x_t, for the active row at ``position``."""
        key = int(self._ids[position])
        row = self._cached.get(key)
        if row is not None:
            self._cached.move_to_end(key)
            return row
        point = self._features[position]
        if not isinstance(point, np.ndarray):
            point = point.toarray().ravel()
        products = np.asarray(self._features @ point)
        row = self._kernel.of_products(products, self._squares, float(self._squares[position]))
        room = max(2, self._bytes // max(1, row.nbytes))
        while len(self._cached) >= room:
            self._cached.popitem(last=False)
        self._cached[key] = row
        return row

    def keep(self, kept: Ints) -> None:
        """Leave only the active rows at the positions ``kept`` active; what is cached is shortened, not lost."""
        self._ids = self._ids[kept]
        self._features, self._squares = self._all[self._ids], self._all_squares[self._ids]
        self.diagonal = self.diagonal[kept]
        for key in self._cached:
            self._cached[key] = self._cached[key][kept]

    def restore(self) -> None:
        """Make every row active again."""
        self._cached.clear()
        self._ids = np.arange(self._all.shape[0])
        self._features, self._squares = self._all, self._all_squares
        self.diagonal = self._kernel.diagonal(self._all_squares)

    def scores(self, at: Ints, support: Ints, coefficients: Floats) -> Floats:
        """Return Σ_s coefficients[s] k(x_t, x_support[s]) for the rows ``at``, whether active or not."""
        return self._kernel.scores(self._all[at], self._all[support], coefficients)
