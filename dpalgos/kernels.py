"""Kernels as functions of inner products, so that one routine serves dense and sparse rows alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.rows import Floats

__all__ = ["KERNELS", "GaussianKernel", "Kernel", "LinearKernel", "squared_norms"]

# Support vectors a block when scores are summed: the kernel matrix in memory is (rows, _BLOCK), never rows squared.
_BLOCK = 256


def squared_norms(features: Any) -> Floats:
    """Return the squared l2 norms (n,) of the rows of a dense or sparse (n, d) matrix."""
    if isinstance(features, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", features, features))
    return np.asarray(features.multiply(features).sum(axis=1), dtype=np.float64).ravel()


class Kernel(Protocol):
    """A positive semidefinite kernel of two rows."""

    def of_products(self, products: Floats, squares: Floats, square: float) -> Floats:
        """Return k(x_t, z) from the inner products x_t·z (m,), the squared norms of the x_t (m,) and of z.

        The products may be written over.
        """
        ...

    def diagonal(self, squares: Floats) -> Floats:
        """Return k(x_t, x_t) from the squared norms of the x_t."""
        ...

    def scores(self, features: Any, support: Any, coefficients: Floats) -> Floats:
        """Return Σ_s coefficients[s] k(x_t, support_s) for each row x_t of ``features``, (m,)."""
        ...


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """k(x, z) = x·z."""

    def of_products(self, products: Floats, squares: Floats, square: float) -> Floats:
        """Return the products."""
        return products

    def diagonal(self, squares: Floats) -> Floats:
        """Return the squared norms."""
        return squares

    def scores(self, features: Any, support: Any, coefficients: Floats) -> Floats:
        """Return the products with the one vector Σ_s coefficients[s] support_s."""
        return np.asarray(features @ (support.T @ coefficients))


@dataclass(frozen=True, slots=True)
class GaussianKernel:
    """k(x, z) = exp(−gamma ‖x − z‖²), the radial basis function.

    Parameters
    ----------
    gamma : float
        Positive.
    """

    gamma: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise ParameterError(f"gamma is {self.gamma!r}; it must be a finite number above 0, for example 1/features")

    def of_products(self, products: Floats, squares: Floats, square: float) -> Floats:
        """Return the exponential of the squared distance, which rounding must not make negative, over the products."""
        from dpalgos import _compiled_exponentials

        _compiled_exponentials.write_gaussian_kernel(products, squares, square, self.gamma)
        return products

    def diagonal(self, squares: Floats) -> Floats:
        """Return ones."""
        return np.ones_like(squares)

    def scores(self, features: Any, support: Any, coefficients: Floats) -> Floats:
        """Sum over blocks of support vectors."""
        squares, support_squares = squared_norms(features)[:, None], squared_norms(support)
        total = np.zeros(features.shape[0])
        for start in range(0, len(coefficients), _BLOCK):
            block = slice(start, start + _BLOCK)
            products = features @ support[block].T
            dense = products if isinstance(products, np.ndarray) else products.toarray()
            distances = np.maximum(squares + support_squares[block] - 2.0 * dense, 0.0)
            total += np.exp(-self.gamma * distances) @ coefficients[block]
        return total


KERNELS: Mapping[str, Callable[[float], Kernel]] = MappingProxyType(
    {"linear": lambda gamma: LinearKernel(), "rbf": GaussianKernel}
)
"""How to make each named kernel from gamma, which the linear one does not need."""
