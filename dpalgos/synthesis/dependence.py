"""Dependence of pairs of columns given the class, by noisy tables, and the tree of the strongest pairs.

*The statistic.* Of a class with N rows let x be the noisy table of a pair, p and q its shares by row and by column, and
r = x − N p qᵀ, N = Σ x. Q = Σ w(p) w(q) r²/N with w(p) = 1/(p + τ), τ² = s²/N, estimates n times a squared contingency.
Without noise Q is Pearson's X², and X²/N is φ², twice the mutual information of small dependence. With noise of
variance s² on each cell, cells in which few rows are expected would say little and count for much; τ bounds that.

Two terms come with it where the columns are independent given the class. Let C(p) = D_p − ppᵀ, D_p the diagonal matrix
of p, and R(p) = (I − p1ᵀ)(I − p1ᵀ)ᵀ.

*Sampling.* The table's own covariance is N C(p) ⊗ C(q).

*Noise.* Cells have independent noise. To first order r has that noise less its margins: covariance s² R(p) ⊗ R(q).

With W(p) the diagonal matrix of w(p), c(p) = tr W(p)C(p) and ρ(p) = tr W(p)R(p), they add c(p) c(q) + (s²/N) ρ(p) ρ(q)
on average. The *excess* of a pair is Σ over the classes of Q less both: 0 on average where the columns are independent
given the class, at any noise.

*Chance.* Under independence Q is a weighted sum of squares of normal numbers, Σ λ_i z_i², whose weights are the
eigenvalues of V = W C ⊗ W C + (s²/N) W R ⊗ W R. Its variance 2 tr V² and third cumulant 8 tr V³ are sums of products of
traces of single columns. With σ² and κ of all classes, and z the normal quantile of 1 − 0.05/pairs, the expansion of
Cornish and Fisher to the third cumulant,

    σ z + κ (z² − 1)/(6 σ²),

is what any pair of a table of independent columns exceeds with probability 1/20, where sampling is near to normal and
shares are known. A pair below does not become an edge.

*The tree.* Rows follow P(class) Π P(column | parent, class), so the tree that maximises the sum of conditional mutual
informations is the best (Chow and Liu). Edges are taken by their excess, the largest first, unless they close a circle.

Each sum is one number after the other (``cumsum``), and no function is more than a root: all processors agree.

References
----------
Chow, Liu, IEEE Trans. Inf. Theory 14 (1968); Friedman, Geiger, Goldszmidt, Machine Learning 29 (1997), section 4.2;
Cornish, Fisher, Revue de l'Institut International de Statistique 5 (1938).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from dpalgos.rows import Floats

_FALSE_ALARM = 0.05
# Of a table of nothing but noise: margins are one row at least.
_ONE_ROW = 1.0


@dataclass(frozen=True, slots=True)
class Dependence:
    """The dependence of a pair of columns by noisy tables.

    Parameters
    ----------
    excess : float
        Q of all classes less what sampling and noise add.
    chance : float
        What any pair exceeds with a probability of about 1/20, where all columns are independent given the class.
    """

    excess: float
    chance: float

    @property
    def beyond_chance(self) -> bool:
        """Whether it is more than noise and sampling give."""
        return self.excess > self.chance


def added(numbers: Floats, axis: int = -1) -> Floats:
    """Return sums along an axis, each one number after the other."""
    return np.asarray(np.take(np.cumsum(numbers, axis=axis), -1, axis=axis))


def dependence(table: Floats, deviation: float, pairs: int) -> Dependence:
    """Return how far a pair depends on each other given the class.

    Parameters
    ----------
    table : array (K, A, B)
        Noisy counts by class, and of the cells of both columns.
    deviation : float
        s, of the noise of a count.
    pairs : int
        Of how many pairs the one beyond chance is looked for.
    """
    excess = variance = third = 0.0
    for counts in np.asarray(table, dtype=np.float64):
        total = max(float(added(added(counts))), _ONE_ROW)
        rows, columns = _shares(added(counts)), _shares(added(counts.T))
        noise = deviation**2 / total
        one, other = _side(rows, math.sqrt(noise)), _side(columns, math.sqrt(noise))
        residual = counts - total * rows[:, None] * columns[None, :]
        weighed = residual * residual * one.weights[:, None] * other.weights[None, :]
        powers = [
            [product * noise**at for at, product in enumerate(map(math.prod, zip(*each, strict=True)))]
            for each in zip(one.traces, other.traces, strict=True)
        ]
        excess += float(added(added(weighed))) / total - (powers[0][0] + powers[0][1])
        variance += 2.0 * (powers[1][0] + 2.0 * powers[1][1] + powers[1][2])
        third += 8.0 * (powers[2][0] + 3.0 * (powers[2][1] + powers[2][2]) + powers[2][3])
    quantile = NormalDist().inv_cdf(1.0 - _FALSE_ALARM / max(pairs, 1))
    skewness = third / variance * (quantile**2 - 1.0) / 6.0 if variance > 0.0 else 0.0
    return Dependence(excess, math.sqrt(variance) * quantile + skewness)


def _shares(margins: Floats) -> Floats:
    """Return shares by noisy margins; none of them is less than a row."""
    raised = np.maximum(margins, _ONE_ROW)
    return np.asarray(raised / float(added(raised)))


@dataclass(frozen=True, slots=True)
class _Side:
    """Of one column of a pair the weights w, and traces of words of WC and WR, by length, and by how many are WR."""

    weights: Floats
    traces: tuple[tuple[float, ...], ...]


def _side(shares: Floats, floor: float) -> _Side:
    size = len(shares)
    squares = shares[:, None] * shares[None, :]
    weights = 1.0 / (shares + floor)
    # W^½ · W^½ is symmetric and has the eigenvalues of W times the matrix.
    scale = np.sqrt(weights[:, None] * weights[None, :])
    sampling = scale * (np.diag(shares) - squares)
    noise = scale * (np.eye(size) - shares[:, None] - shares[None, :] + size * squares)

    def trace(one: Floats, other: Floats) -> float:
        return float(added(added(one * other)))

    def product(one: Floats, other: Floats) -> Floats:
        return added(one[:, :, None] * other[None, :, :], axis=1)

    twice, again = product(sampling, sampling), product(noise, noise)
    return _Side(
        weights,
        (
            (float(added(np.diagonal(sampling))), float(added(np.diagonal(noise)))),
            (trace(sampling, sampling), trace(sampling, noise), trace(noise, noise)),
            (trace(twice, sampling), trace(twice, noise), trace(sampling, again), trace(again, noise)),
        ),
    )


def spanning_forest(found: Mapping[tuple[int, int], Dependence], columns: int) -> tuple[int, ...]:
    """Return the parent of each column, −1 of a root, in the forest of the strongest dependences beyond chance.

    Parameters
    ----------
    found : mapping of pair to Dependence
        Pairs (i, j), i < j.
    columns : int

    Returns
    -------
    tuple of int
        The root of each tree is its column of most excess over all its edges, the first of equal ones.
    """
    edges = sorted((pair for pair in found if found[pair].beyond_chance), key=lambda pair: (-found[pair].excess, pair))
    tree = list(range(columns))

    def root(column: int) -> int:
        while tree[column] != column:
            column = tree[column]
        return column

    beside: list[list[int]] = [[] for _ in range(columns)]
    strength = [0.0] * columns
    for one, other in edges:
        if root(one) != root(other):
            tree[root(one)] = root(other)
            beside[one].append(other)
            beside[other].append(one)
            strength[one] += found[one, other].excess
            strength[other] += found[one, other].excess
    parents = [-1] * columns
    seen: set[int] = set()
    for start in sorted(range(columns), key=lambda column: (-strength[column], column)):
        if start in seen:
            continue
        seen.add(start)
        waiting = [start]
        while waiting:
            column = waiting.pop(0)
            for child in sorted(beside[column]):
                if child not in seen:
                    seen.add(child)
                    parents[child] = column
                    waiting.append(child)
    return tuple(parents)
