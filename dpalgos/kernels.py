"""Kernels as functions of inner products."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from dpalgos.parameters import POSITIVE, Bounded
from dpalgos.rows import Floats

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
