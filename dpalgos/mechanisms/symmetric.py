"""Release of symmetric matrices: each entry once, and off-diagonal noise smaller by the square root of two."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Loss, Numerics
from dpalgos.mechanisms.discrete_gaussian import DiscreteGaussian
from dpalgos.mechanisms.laplace import RadialLaplace
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.parameters import COUNT, Bounded
from dpalgos.rows import Floats, Ints, RandomStream

_Number = TypeVar("_Number", np.float64, np.int64)


def packed_size(dimension: int) -> int:
    """Return ``dimension * (dimension + 1) / 2``, the number of entries on and above the diagonal."""
    return dimension * (dimension + 1) // 2


def pack(matrix: NDArray[_Number]) -> NDArray[_Number]:
    """Return the upper triangle (d (d+1) / 2,) of a symmetric matrix (d, d), row by row, diagonal included."""
    places = np.arange(len(matrix))
    return matrix[places[:, None] <= places]


def unpack(vector: NDArray[_Number]) -> NDArray[_Number]:
    """Return the symmetric matrix whose upper triangle is given; the inverse of :func:`pack`."""
    dimension = _dimension(len(vector))
    rows, columns = np.triu_indices(dimension)
    matrix: NDArray[_Number] = np.zeros((dimension, dimension), dtype=vector.dtype)
    matrix[rows, columns] = vector
    matrix[columns, rows] = vector
    return matrix


def to_vector(matrix: Floats) -> Floats:
    """Map a symmetric matrix to a vector of the same length in l2: off-diagonal entries times sqrt(2).

    An isometry: |M|_F^2 = sum_i M_ii^2 + 2 sum_{i<j} M_ij^2 is the squared l2 norm of the vector. So a Frobenius
    sensitivity of symmetric matrices is the l2 sensitivity of their vectors.
    """
    return pack(matrix) * _weights(len(matrix))


@dataclass(frozen=True, slots=True)
class _SymmetricIntegers(Bounded):
    """A distribution of integers on the diagonal, and the same distribution of sigma / sqrt(2), rounded up, off it."""

    sigma: float
    dimension: int = field(metadata=COUNT)
    numerics: ClassVar[Numerics] = Numerics.EXACT
    distribution: ClassVar[type[RoundedGaussian] | type[DiscreteGaussian]]

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        self._distributions()

    def _distributions(self) -> tuple[RoundedGaussian | DiscreteGaussian, ...]:
        return self.distribution(self.sigma), self.distribution(math.nextafter(self.sigma / math.sqrt(2.0), math.inf))

    def total_variation(self) -> float:
        """Return an upper bound on the distance of one draw from its stated distribution."""
        return max(distribution.total_variation() for distribution in self._distributions())

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return the noise of one packed matrix; ``count`` must be its number of entries."""
        _require_packed(count, self.dimension)
        result = np.zeros(count, dtype=np.int64)
        diagonal, (on, off) = _diagonal(self.dimension), self._distributions()
        result[diagonal] = on.sample(self.dimension, stream)
        result[~diagonal] = off.sample(count - self.dimension, stream)
        return result


@dataclass(frozen=True, slots=True)
class SymmetricRoundedGaussian(_SymmetricIntegers):
    """Integer noise for the upper triangle of a symmetric integer matrix.

    ``RoundedGaussian(sigma)`` on the diagonal, ``RoundedGaussian(sigma / sqrt(2))`` off it.

    Guarantee
    ---------
    Added to the packed upper triangle of an integer matrix S of Frobenius sensitivity Delta_F (grid units):
    mu-Gaussian-DP with mu = Delta_F / sigma. Proof: the Gaussian mechanism releases v(S) + g, g ~ N(0, sigma^2 I),
    where v is :func:`to_vector`, an isometry, so its l2 sensitivity is Delta_F. Dividing its off-diagonal coordinates
    by sqrt(2) gives S_ii + g_ii and S_ij + g_ij / sqrt(2); rounding each gives S_ii + round(g_ii) and
    S_ij + round(g_ij / sqrt(2)), because S is an integer matrix. Both steps are post-processing. The integers released
    are the ones this distribution draws, sigma / sqrt(2) being rounded up. (The vector v(S) itself is no integer
    vector, so scaling first and rounding then would not be exact.)

    Numerics are ``exact``, with the total variation of :meth:`total_variation` a draw.

    Parameters
    ----------
    sigma : float
        Standard deviation on the diagonal before rounding, in grid units; from 2^-19 to 2^44.
    dimension : int
        Rows of the matrix.
    """

    distribution: ClassVar[type[RoundedGaussian]] = RoundedGaussian

    @classmethod
    def calibrated(cls, budget: Loss, sensitivity: float, dimension: int) -> SymmetricRoundedGaussian:
        """Return the noise of one packed matrix of given Frobenius sensitivity (grid units) that costs the budget."""
        return cls(RoundedGaussian.calibrated(budget, sensitivity).sigma, dimension)

    def mu(self, sensitivity: float) -> float:
        """Return the Gaussian-DP parameter for a Frobenius sensitivity in grid units, rounded up."""
        return RoundedGaussian(self.sigma).mu(sensitivity)


@dataclass(frozen=True, slots=True)
class SymmetricRoundedRadial(RadialLaplace):
    """Radial Laplace noise for the upper triangle of a symmetric integer matrix, rounded to integers.

    Guarantee
    ---------
    Added to the packed upper triangle of an integer matrix S of Frobenius sensitivity Delta_F (grid units):
    epsilon-DP with epsilon = Delta_F / scale. Proof: :func:`to_vector` is an isometry, so the radial mechanism on
    it in d (d+1) / 2 dimensions is epsilon-DP; its inverse and rounding are post-processing, and since S is an integer
    matrix, S + round(N) = round(S + N). Numerics are ``idealised``, as the radial distribution's.

    Parameters
    ----------
    scale : float
        Delta_F / epsilon in grid units.
    dimension : int
        Rows of the matrix.
    """

    dimension: int = field(metadata=COUNT)

    def sample(self, count: int, stream: RandomStream) -> Ints:  # type: ignore[override]  # integers
        """Return the noise of one packed matrix; ``count`` must be its number of entries."""
        _require_packed(count, self.dimension)
        return np.rint(RadialLaplace.sample(self, count, stream) / _weights(self.dimension)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class SymmetricDiscreteGaussian(_SymmetricIntegers):
    """Integer noise for the upper triangle of a symmetric integer matrix, with a zCDP guarantee.

    ``DiscreteGaussian(sigma)`` on the diagonal, ``DiscreteGaussian(sigma / sqrt(2))`` off it.

    Guarantee
    ---------
    Added to the packed upper triangle of an integer matrix of Frobenius sensitivity Delta_F (grid units): rho-zCDP
    with rho = Delta_F^2 / (2 sigma^2). Proof: for a difference V of neighbouring matrices the Rényi divergence of
    order alpha of one coordinate is at most alpha V_ii^2 / (2 sigma^2) on the diagonal and
    alpha V_ij^2 / (2 sigma^2 / 2) off it (Canonne, Kamath, Steinke 2020, Proposition 5); coordinates are independent,
    so they add up to alpha (sum_i V_ii^2 + 2 sum_{i<j} V_ij^2) / (2 sigma^2) = alpha |V|_F^2 / (2 sigma^2).

    Numerics are ``exact``, with the total variation of :meth:`total_variation` a draw charged to delta.

    Parameters
    ----------
    sigma : float
        Parameter on the diagonal, in grid units; from 2^-19 to 2^44.
    dimension : int
        Rows of the matrix.
    """

    distribution: ClassVar[type[DiscreteGaussian]] = DiscreteGaussian

    @property
    def largest(self) -> int:
        """As for one discrete Gaussian, of the diagonal."""
        return DiscreteGaussian(self.sigma).largest

    def rho(self, sensitivity: float) -> float:
        """Return the zCDP parameter for a Frobenius sensitivity in grid units, rounded up."""
        return DiscreteGaussian(self.sigma).rho(sensitivity)


def _require_packed(count: int, dimension: int) -> None:
    if count != packed_size(dimension):
        raise ParameterError(
            f"{count} entries were asked of a distribution of symmetric {dimension} x {dimension} matrices; "
            f"their packed upper triangle has {packed_size(dimension)}"
        )


def _diagonal(dimension: int) -> NDArray[np.bool_]:
    rows, columns = np.triu_indices(dimension)
    return np.asarray(rows == columns)


def _weights(dimension: int) -> Floats:
    return np.where(_diagonal(dimension), 1.0, math.sqrt(2.0))


def _dimension(size: int) -> int:
    dimension = (math.isqrt(8 * size + 1) - 1) // 2
    if packed_size(dimension) != size:
        raise ParameterError(f"{size} entries are no packed symmetric matrix; the sizes are d (d + 1) / 2")
    return dimension
