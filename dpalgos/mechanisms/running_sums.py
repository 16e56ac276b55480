"""Running sums of one table of counts, by the square-root factor: every count below an edge at nearly the same noise.

*The task.* A table holds counts of bins in the order of a value, x = (x_1 … x_T), one *line* for each thing that is
counted (a column, or the rows of one label). Wanted are the running sums S_t = x_1 + … + x_t of each line: how many
rows lie below each edge. Plain noisy counts give S_t with √t times the noise of one.

*The mechanism.* Each line goes through its own factor, the Toeplitz matrix Ĉ of integers
(:class:`~dpalgos.mechanisms.factorisation.ToeplitzFactor`): released is y = Ĉx + z, z independent rounded Gaussian
integers of standard deviation σ, and S = A Ĉ⁻¹ y with A the matrix of ones on and below the diagonal. What is released
is integers plus noise, what is decoded is post-processing. The noise of S_t has the deviation σ ‖(b_0 … b_{t−1})‖₂, b
the decoder's coefficients. One release holds all edges, so nothing here is continual; the factor is the one of nights.

*Sensitivity, for each relation.* Entries of Ĉ are not negative. Let ĉ_i be its i-th column. In a line a record may

- *enter or leave* a cell i: the line moves by ±ĉ_i, and ‖ĉ_i‖² ≤ ‖ĉ_1‖², for later columns are the first one, shifted
  and cut;
- *move* from cell i to cell j: by ĉ_j − ĉ_i, of ‖·‖² at most D = max ‖ĉ_i − ĉ_j‖² ≤ 2 ‖ĉ_1‖², since ⟨ĉ_i, ĉ_j⟩ ≥ 0.

Lines are separate coordinates, so squares add up: of a record that enters or leaves e lines and moves in m others
the table moves by at most √(e ‖ĉ_1‖² + m D), in l2 (:meth:`RunningSums.sensitivity`). A record that stands in one cell
of each of d lines, or in none where its cell is missing: under replace-special e = d; under replace-one at most e = 2
in one line, where one of the two records is elsewhere or not there, so that m = d where nothing can be missing, and √(2
d) ‖ĉ_1‖ holds always. A person's rows together are a convex combination of what single rows add, and of nothing; the
norm of a difference is convex, hence largest between single rows.

*A factor a line, never one through all.* Were the lines one after another in one vector and one factor, a row that is
in each of d lines would move Ĉx by ĉ_{i_1} + … + ĉ_{i_d}, whose inner products are positive: more than √d ‖ĉ_1‖. A row
of 10 lines of 64 bins against a null record moves it by 9.08 in units of the first coefficient, where 6.91 would be
booked.

References
----------
Fichtenberger, Henzinger, Upadhyay, "Constant matters: fine-grained error bound on differentially private continual
observation", ICML 2023 (the factor); Li, Miklau, Hay, McGregor, Rastogi, "The matrix mechanism: optimizing linear
counting queries under differential privacy", VLDB Journal 24 (2015) (factorisations of one table); Dong, Roth, Su,
"Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np

from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.parameters import COUNT, Bounded
from dpalgos.rows import Floats, Ints


@lru_cache(maxsize=8)
def _lower(column: tuple[int, ...]) -> Ints:
    """Return the lower triangular Toeplitz matrix (T, T) of its first column."""
    steps = np.subtract.outer(np.arange(len(column)), np.arange(len(column)))
    matrix = np.where(steps >= 0, np.array(column, dtype=np.int64)[np.maximum(steps, 0)], 0)
    matrix.flags.writeable = False
    return matrix


@cache
def _largest_move(column: tuple[int, ...]) -> int:
    """Return max ‖ĉ_i − ĉ_j‖² over two cells, exactly: an integer."""
    matrix = _lower(column)
    products = matrix.T @ matrix
    squares = np.diagonal(products)
    return int((squares[:, None] + squares[None, :] - 2 * products).max())


@cache
def _decoder(factor: ToeplitzFactor) -> Floats:
    """Return A Ĉ⁻¹, (T, T)."""
    matrix = np.zeros((factor.nights, factor.nights))
    for row in range(factor.nights):
        matrix[row, : row + 1] = factor.decoder(row + 1)
    matrix.flags.writeable = False
    return matrix


@lru_cache(maxsize=8)
def _covariance(factor: ToeplitzFactor) -> Floats:
    """Return A Ĉ⁻¹ (A Ĉ⁻¹)ᵀ, (T, T): cubic in T, and needed for every table that is read."""
    decoder = _decoder(factor)
    matrix = np.asarray(decoder @ decoder.T)
    matrix.flags.writeable = False
    return matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums(Bounded):
    """Running sums of lines of counts, each line through its own integer factor: how to encode, what it costs.

    The noise is not drawn here: Ĉx are integers, to which :class:`~dpalgos.mechanisms.distributions.RoundedGaussian` is
    added, calibrated to :meth:`sensitivity`, for a μ (see the module for the proof).

    Parameters
    ----------
    bins : int
        T, cells of each line in the order of their values; from 1 to
        :data:`~dpalgos.mechanisms.factorisation.LONGEST`.
    """

    bins: int = field(metadata=COUNT)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        self.factor()

    def factor(self) -> ToeplitzFactor:
        """Return Ĉ."""
        return ToeplitzFactor(nights=self.bins)

    def encode(self, counts: Ints) -> Ints:
        """Return Ĉx of each line, in integers, exactly.

        Parameters
        ----------
        counts : array (…, T) of int64
            Below 2^63 / (64 T) each.
        """
        return counts @ _lower(self.factor().coefficients).T

    def decode(self, released: Ints | Floats) -> Floats:
        """Return the running sums (…, T) of released lines (…, T): rows in this bin and in all before it.

        Entry after entry, each added to all sums behind it, so that they are rounded alike on every processor.
        """
        weights = self.factor().decoder(self.bins)[::-1]
        sums = np.zeros(np.shape(released))
        for entry in range(self.bins):
            sums[..., entry:] += weights[: self.bins - entry] * released[..., entry : entry + 1]
        return sums

    def sensitivity(self, *, entered: int, moved: int = 0) -> float:
        """Return how far a record moves the encoded lines in l2, rounded up.

        Parameters
        ----------
        entered : int
            e: lines of which one cell gains or loses one; 2 for a line twice, where another record is in none.
        moved : int
            m: lines in which one cell gains what another one loses.
        """
        column = self.factor().coefficients
        squared = entered * sum(entry * entry for entry in column) + moved * _largest_move(column)
        root = math.sqrt(squared)
        return root if Fraction(root) ** 2 >= squared else math.nextafter(root, math.inf)

    def covariance(self) -> Floats:
        """Return the covariance (T, T) of a line's decoded running sums, of noise of variance 1 on what is released."""
        return _covariance(self.factor())
