"""Class means behind noisy sums, shrunk towards their common mean by as much as noise hides: post-processing.

Numbers are stored with a release, so each is made by steps whose rounding IEEE arithmetic defines
(:mod:`dpalgos.elementary`): sums over rows in their order, and :func:`math.fsum`, which rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpalgos.rows import Floats, squared_norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrinkage:
    """Constants of the shrinkage, public and fixed: found on training rows (``benchmarks/shrinkage.py``).

    Parameters
    ----------
    first : int
        Coordinates in the first block; see :func:`blocks`.
    plain_from : float
        Means stay as they are in a block in which τ² is above so many times v_c for every class.
    sure : float
        See :meth:`ClassMeans.differ`.
    """

    first: int = 32
    plain_from: float = 3.0
    sure: float = 3.0


SHRINKAGE = Shrinkage()


def blocks(dimension: int, first: int) -> Iterator[slice[int, int, None]]:
    """Yield blocks of coordinates: the ``first`` ones, as many again, and then always as many as there were before.

    They follow the coordinates' own order, which is that of a public map or of an earlier release. Along directions in
    which these noisy means happen to differ most, their noise would pass for a difference of the classes.
    """
    start, stop = 0, first
    while start < dimension:
        yield slice(start, min(stop, dimension))
        start, stop = stop, 2 * stop


@dataclass(frozen=True, slots=True)
class ClassMeans:
    """Means that follow from one noisy sum of each class: post-processing of the sums.

    Parameters
    ----------
    means : array (K, d)
        M_c = m_c + e_c, m_c the exact mean and e_c independent noise.
    variance : array (K,)
        v_c, of each coordinate of e_c.
    counts : array (K,)
        n̂_c, estimated rows of each class; none near 0.
    noisy_counts : array (K,)
        Rows of each class as they were released, before any floor.
    """

    means: Floats
    variance: Floats
    counts: Floats
    noisy_counts: Floats

    @property
    def shares(self) -> Floats:
        """w_c = n̂_c/Σ n̂ (K,)."""
        return np.asarray(self.counts / math.fsum(self.counts))

    @property
    def common(self) -> Floats:
        """G = Σ w_c M_c (d,)."""
        return np.asarray((self.shares[:, None] * self.means).sum(axis=0))

    def spread(self, part: slice[int, int, None]) -> float:
        """Return τ², how far class means lie apart in a block of coordinates: a variance per coordinate.

        Notes
        -----
        *Expectation.* Given the noisy counts, w_c and v_c are constants, and the sums' noise is independent of that of
        the counts. In one coordinate, with ḡ = Σ w_c m_c,

            Σ w_c (M_c − G)² = Σ w_c M_c² − G²,
            E Σ w_c M_c² = Σ w_c m_c² + Σ w_c v_c,
            E G² = ḡ² + Σ w_c² v_c,

        so that E Σ w_c (M_c − G)² = Σ w_c (m_c − ḡ)² + Σ w_c (1 − w_c) v_c. Where the m_c are drawn independently, of
        one mean and of variance τ², the first term is itself on average τ² (1 − Σ w_c²), by the same equations with
        τ² in the place of every v_c. Hence, over a block of k coordinates,

            τ² = max(0, [Σ w_c ‖M_c − G‖²/k − Σ w_c (1 − w_c) v_c] / (1 − Σ w_c²)),

        which has the expectation τ² before the cut at 0. Without the last divisor, two equal classes would have half of
        it; with v_c in the place of (1 − w_c) v_c, unequal classes with much noise would be below 0. Where n̂_c is not
        the exact n_c, m_c is (n_c/n̂_c) times the exact mean; the noise's variance is v_c all the same.
        """
        shares, apart = self.shares, squared_norms(self.means[:, part] - self.common[part])
        seen = math.fsum(shares * apart) / (part.stop - part.start)
        noise = math.fsum(shares * (1.0 - shares) * self.variance)
        return max(0.0, float(seen - noise) / (1.0 - math.fsum(shares**2)))

    def differ(self, constants: Shrinkage = SHRINKAGE) -> bool:
        """Return whether all means together lie farther apart than noise alone is expected to make them.

        Σ n̂_c² ‖M_c − G‖² weighs every class's noise alike, and each of its d coordinates is by noise alone
        Σ n̂_c² (v_c (1 − 2 w_c) + Σ w_j² v_j). It has about K d degrees of freedom, so that its standard deviation is
        about √(2 / (K d)) of that. Where one class is frequent, guessing is hard to exceed, and the means must be
        farther apart than that by ``constants.sure`` (1 − 1/(K max w_c)) deviations: 0 of them where classes are equal.
        """
        shares, squares = self.shares, self.counts**2
        common = math.fsum(shares**2 * self.variance)
        noise = math.fsum(squares * (self.variance * (1.0 - 2.0 * shares) + common)) * self.means.shape[1]
        uneven = 1.0 - 1.0 / (len(shares) * float(shares.max()))
        beyond = 1.0 + constants.sure * uneven * math.sqrt(2.0 / self.means.size)
        return bool(math.fsum(squares * squared_norms(self.means - self.common)) > beyond * noise)

    def kept(self, constants: Shrinkage = SHRINKAGE) -> Floats:
        """Return h (K, d), the part of each M_c − G that is kept: τ²/(τ² + v_c) by blocks; 1 where noise is small."""
        kept = np.zeros(self.means.shape)
        if not self.differ(constants):
            return kept
        for part in blocks(self.means.shape[1], constants.first):
            spread = self.spread(part)
            if spread > constants.plain_from * float(self.variance.max()):
                kept[:, part] = 1.0
            elif spread > 0.0:
                kept[:, part] = (spread / (spread + self.variance))[:, None]
        return kept

    def discriminant(self, constants: Shrinkage = SHRINKAGE) -> tuple[Floats, Floats]:
        """Return weights (K, d) and intercepts (K,) of scores x·m_c − ½‖m_c‖², m_c = G + h_c (M_c − G).

        The nearest of the shrunk means has the largest score. (To subtract the noise's part from ‖M_c‖² and to leave
        M_c as it is would make rows of all classes nearest to the classes with the most noise, which are the rare
        ones.) Where no difference is seen, or every τ² is 0, the weights are 0 and the scores are the shares of the
        noisy counts: all rows get the class with the largest.
        """
        kept = self.kept(constants)
        if not kept.any():
            total = max(math.fsum(np.maximum(self.noisy_counts, 0.0)), 1.0)
            return np.zeros(self.means.shape), np.asarray(self.noisy_counts / total)
        shrunk = self.common + kept * (self.means - self.common)
        return shrunk, -0.5 * squared_norms(shrunk)
