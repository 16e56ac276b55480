"""Tables over two columns from noisy counts: made consistent with one-way counts; margins, differences, Cramér's V.

All is post-processing of :class:`~dpalgos.evaluators.pair_counts.PairCounts` and of released one-way counts
(:class:`~dpalgos.histograms.ColumnCounts`) of the same rows.

*Consistency.* The released cells x have independent noise of variance σ². Let the one-way counts of the two columns, in
the same parts, be m = L x* plus noise of covariance V, with x* the exact cells and L the sums over rows and columns.
Least squares over both releases is

    x + σ² Lᵀ (σ² L Lᵀ + V)⁻¹ (m − L x)    with the covariance    σ² I − σ⁴ Lᵀ (σ² L Lᵀ + V)⁻¹ L,

exact and unbiased for Gaussian noise.

*Counts, shares* have the margins of :mod:`dpalgos.column_margins`: of this data's own value, by the noise alone, each
by itself. A *share* is that of a cell in its row. A *difference* is a share in one row less the share in all other
rows. Its margin is Gaussian to first order, and nothing is said where one of the two totals is below ten deviations of
its noise.

*Cramér's V* measures dependence, from 0 to 1. Let E be the cells that the table's margins would have if its columns
were independent. χ² = Σ (x − E)²/E is too large twice. The noise adds Σ Var(x − E)/E, which is subtracted. Drawing n
rows from independent columns adds (R − 1)(C − 1) on average, which Bergsma's term subtracts:

    φ² = (χ² − noise)/n − (R − 1)(C − 1)/(n − 1),    V² = max(φ², 0) / min(R̃ − 1, C̃ − 1),

R̃ = R − (R − 1)²/(n − 1), C̃ alike. Rows and columns so rare that their mean cell is within one deviation of the noise
are put together beforehand, for their E would be noise.

*The margin of V* holds for the population: it covers noise and sampling of n rows. Tables p_s = p₀ + s (p₁ − p₀) lie on
the line from independence p₀ to the released table p₁, negative cells cut to 0, and beyond. For each s, tables of n
rows are drawn from p_s, noise of the released covariance is added, and φ² is computed as above. The margin holds the V
of those s whose drawn φ² has the released φ² between its 2.5 % and 97.5 % points. So it begins at 0 exactly where the
released φ² is not above the 97.5 % point of independent columns with these margins: columns that are drawn
independently have a margin that holds 0 in 97.5 % of all releases.

References
----------
Bergsma, "A bias-correction for Cramér's V and Tschuprow's T", J. Korean Statistical Society 42 (2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpalgos.column_margins import WIDEST, Margins, of_counts, ratios
from dpalgos.histograms import ColumnCounts
from dpalgos.margins import PUBLIC_SEED, TWO_SIDED
from dpalgos.rows import Floats

MOST_CELLS = 1_024
"""Of a table: its covariance has the square of that."""
MOST_PARTS = 12
"""Of a number."""
_ENOUGH = 10.0
# Of the line from independence to the released table, and beyond.
_STEPS = np.concatenate([np.linspace(0.0, 1.0, 14), [1.08, 1.16, 1.25, 1.4, 1.6, 2.0, 3.0]])
_NUMBERS, _FEWEST, _MOST = 400_000, 300, 1_000


@dataclass(frozen=True)
class OneWay:
    """Released counts of one column in the cells of a table, missing ones last.

    Parameters
    ----------
    counts : array (cells,)
    covariance : array (cells, cells)
        Of their noise.
    """

    counts: Floats
    covariance: Floats


def one_way_of_number(counts: ColumnCounts, line: int, edges: Sequence[float]) -> OneWay | None:
    """Return a number's counts between edges; None where an edge lies within a bin.

    Parameters
    ----------
    counts : ColumnCounts
    line : int
    edges : sequence of float
        Inner ones, rising, in shares of the range.
    """
    ends = np.append(np.asarray(edges, dtype=np.float64) * counts.bins, counts.bins)
    if (ends != np.rint(ends)).any():
        return None
    lasts = ends.astype(np.int64) - 1
    looks = np.zeros((len(lasts), counts.bins))
    looks[np.arange(len(lasts)), lasts] = 1.0
    looks[1:] -= looks[:-1].copy()
    found, covariance = looks @ counts.sums[line], looks @ counts.covariance @ looks.T
    if line in counts.layout.lacking:
        found = np.append(found, counts.missing[line])
        covariance = np.pad(covariance, (0, 1))
        covariance[-1, -1] = counts.deviation**2
    return OneWay(found, covariance)


def one_way_of_values(counts: Floats, deviation: float, groups: Sequence[int] = ()) -> OneWay:
    """Return counts of a category's values, or of classes, put together in groups.

    Parameters
    ----------
    counts : array (cells,)
        With independent noise; a missing cell may be the last.
    deviation : float
        Of each.
    groups : sequence of int
        The group of each value, but of a missing cell, which is its own; none where each value is its own.
    """
    if not len(groups):
        return OneWay(counts, deviation**2 * np.eye(len(counts)))
    places = np.append(np.asarray(groups, dtype=np.int64), max(groups) + 1)[: len(counts)]
    looks = np.zeros((int(places.max()) + 1, len(counts)))
    looks[places, np.arange(len(counts))] = 1.0
    return OneWay(looks @ counts, deviation**2 * looks @ looks.T)


def parts_for(rows: int, deviation: float, most: int = MOST_PARTS) -> int:
    """Return in how many parts each of two numbers is counted, from 2 to ``most``, by public numbers alone.

    The most k for which the margin of a cell is no more than the mean cell of k × k.

    Parameters
    ----------
    rows : int
    deviation : float
        Of the noise of a cell.
    most : int
    """
    return int(np.clip(np.sqrt(rows / (TWO_SIDED * max(deviation, 1e-9))), 2, most))


def edges_of_equal_mass(counts: ColumnCounts, line: int, parts: int) -> tuple[float, ...]:
    """Return inner edges of so many parts with about as many cells each, at edges of released bins; fewer at spikes."""
    below = counts.shares_below()[line]
    wanted = np.arange(1, parts) / parts
    nearest = np.abs(below[1:-1, None] - wanted).argmin(axis=0) + 1 if counts.bins > 1 else np.zeros(0, dtype=np.int64)
    # Two neighbouring edges have to differ in cells: between them lies half a part at least.
    kept: list[int] = []
    for place in nearest.tolist():
        last = float(below[kept[-1]]) if kept else 0.0
        if min(below[place] - last, 1.0 - below[place]) >= 0.5 / parts:
            kept.append(place)
    return tuple(place / counts.bins for place in kept)


@dataclass(frozen=True)
class PairTable:
    """Noisy counts of a table over two columns and the covariance of their noise.

    Parameters
    ----------
    counts : array (R, C)
    covariance : array (R C, R C)
        Of the cells, row after row.
    rows : int
        n, public: all rows, null records among them.
    deviation : float
        Of the noise of a cell as it was released.
    """

    counts: Floats
    covariance: Floats
    rows: int
    deviation: float

    @classmethod
    def consistent(
        cls, counts: Floats, deviation: float, rows: int, one_way: tuple[OneWay | None, OneWay | None] = (None, None)
    ) -> PairTable:
        """Return a released table, made consistent with one-way counts of its columns where there are any.

        Parameters
        ----------
        counts : array (R, C)
        deviation : float
            Of each cell's independent noise.
        rows : int
        one_way : pair of OneWay or None
            Of rows and of columns.
        """
        size, cells = counts.size, counts.ravel()
        across, down = counts.shape
        sums = (np.kron(np.eye(across), np.ones(down)), np.kron(np.ones(across), np.eye(down)))
        known = [(looks, one) for looks, one in zip(sums, one_way, strict=True) if one is not None]
        if not known:
            return cls(counts, deviation**2 * np.eye(size), rows, deviation)
        looks = np.concatenate([each for each, _ in known])
        noise = np.zeros((len(looks), len(looks)))
        place = 0
        for _, one in known:
            noise[place : place + len(one.counts), place : place + len(one.counts)] = one.covariance
            place += len(one.counts)
        gain = deviation**2 * np.linalg.solve(deviation**2 * looks @ looks.T + noise, looks).T
        moved = cells + gain @ (np.concatenate([one.counts for _, one in known]) - looks @ cells)
        covariance = deviation**2 * (np.eye(size) - gain @ looks)
        return cls(moved.reshape(counts.shape), (covariance + covariance.T) / 2.0, rows, deviation)

    def of(self, rows: Sequence[int], columns: Sequence[int]) -> PairTable:
        """Return the table of some rows and columns."""
        places = (np.asarray(rows)[:, None] * self.counts.shape[1] + np.asarray(columns)).ravel()
        counts = self.counts[np.ix_(list(rows), list(columns))]
        return PairTable(counts, self.covariance[np.ix_(places, places)], self.rows, self.deviation)

    @property
    def turned(self) -> PairTable:
        """The table with its columns as rows."""
        places = np.arange(self.counts.size).reshape(self.counts.shape).T.ravel()
        return PairTable(self.counts.T, self.covariance[np.ix_(places, places)], self.rows, self.deviation)

    @property
    def _wider(self) -> float:
        """By what deviations are multiplied, so that 1.96 of them are half a row more, for rounding."""
        return 1.0 + 0.5 / (TWO_SIDED * max(self.deviation, 1e-9))

    @cached_property
    def _spread(self) -> Floats:
        return self.covariance * self._wider**2

    def cells(self) -> Margins:
        """Return the counts of all cells, (R, C)."""
        deviations = np.sqrt(np.maximum(np.diagonal(self._spread), 0.0)).reshape(self.counts.shape)
        return of_counts(self.counts, deviations, self.rows)

    def _totals(self) -> tuple[Floats, Floats]:
        """Return of each row its total (R,), and what covariance that has with each cell, (R, R C)."""
        across, down = self.counts.shape
        return self.counts.sum(axis=1), self._spread.reshape(across, down, -1).sum(axis=1)

    def totals(self) -> Margins:
        """Return the counts of all rows, (R,)."""
        total, shared = self._totals()
        across, down = self.counts.shape
        variances = np.einsum("rrc->r", shared.reshape(across, across, down))
        return of_counts(total, np.sqrt(np.maximum(variances, 0.0)), self.rows)

    def shares(self) -> Margins:
        """Return the share of each cell in its row, (R, C)."""
        total, shared = self._totals()
        across, down = self.counts.shape
        with_total = np.einsum("rrc->rc", shared.reshape(across, across, down))
        return ratios(
            self.counts,
            total[:, None],
            np.diagonal(self._spread).reshape(across, down),
            with_total.sum(axis=1, keepdims=True),
            with_total,
            (0.0, 1.0),
        )

    def differences(self) -> Margins:
        """Return the share of each cell in its row less its share in all other rows, (R, C)."""
        across, down = self.counts.shape
        total, shared = self._totals()
        of_totals = shared.reshape(across, across, down).sum(axis=2)
        rest = total.sum() - total
        of_rest = of_totals.sum() - 2.0 * of_totals.sum(axis=1) + np.diagonal(of_totals)
        known = np.minimum(total / np.sqrt(np.diagonal(of_totals)), rest / np.sqrt(np.maximum(of_rest, 1e-12)))
        values, half = np.zeros((2, across, down))
        for row in np.flatnonzero(known > _ENOUGH):
            here, there = self.counts[row] / total[row], (self.counts.sum(axis=0) - self.counts[row]) / rest[row]
            slopes = np.tile(-(np.eye(down) - there[:, None])[:, None] / rest[row], (1, across, 1))
            slopes[:, row] = (np.eye(down) - here[:, None]) / total[row]
            slopes = slopes.reshape(down, -1)
            values[row] = here - there
            half[row] = TWO_SIDED * np.sqrt(np.maximum((slopes @ self._spread * slopes).sum(axis=1), 0.0))
        said = (known > _ENOUGH)[:, None] & (half <= WIDEST)
        return Margins(values, values - half, values + half, said)

    def pooled(self) -> PairTable:
        """Return the table with rare rows put together, and rare columns: those whose mean cell is within the noise."""
        rows = _pools(self.counts.sum(axis=1), self.counts.shape[1] * max(self.deviation, 1.0))
        columns = _pools(self.counts.sum(axis=0), self.counts.shape[0] * max(self.deviation, 1.0))
        looks = np.kron(rows, columns)
        return PairTable(rows @ self.counts @ columns.T, looks @ self.covariance @ looks.T, self.rows, self.deviation)

    def association(self) -> Margins:
        """Return Cramér's V, corrected for noise and for the number of rows, (1,)."""
        # Turned, it is the same number, and drawn in the same order.
        table = (self if self.counts.shape[0] <= self.counts.shape[1] else self.turned).pooled()
        total = float(table.counts.sum())
        spread = float(np.sqrt(max(table.covariance.sum(), 0.0)))
        if min(table.counts.shape) < 2 or total <= max(_ENOUGH * spread, 4.0):
            return Margins(np.zeros(1), np.zeros(1), np.ones(1), np.zeros(1, dtype=np.bool_))
        found = float(table._squared(table.counts[None])[0])
        strengths, low, high = table._drawn()
        # Between two steps the points lie on straight lines; a held step is part of the margin in any case.
        held = (low <= found) & (found <= high)
        least = 0.0 if found <= high[0] else float(np.interp(found, np.maximum.accumulate(high), strengths))
        most = 1.0 if found > low[-1] else float(np.interp(found, np.maximum.accumulate(low), strengths))
        if held.any():
            least, most = min(least, float(strengths[held].min())), max(most, float(strengths[held].max()))
        value = min(max(table._strength(found), least), most)
        ends = np.array([value]), np.array([least]), np.array([most])
        return Margins(*ends, np.array([most - least <= WIDEST]))

    def _strength(self, squared: float) -> float:
        """Return V of φ²."""
        total = max(float(self.counts.sum()), 2.0)
        sides = [side - (side - 1) ** 2 / (total - 1) for side in self.counts.shape]
        return float(np.sqrt(np.clip(squared / max(min(sides) - 1.0, 1e-9), 0.0, 1.0)))

    @cached_property
    def _of_noise(self) -> Floats:
        """The variance of the noise of x − E of each cell, (R, C), to first order."""
        shares = [np.clip(self.counts.sum(axis=axis), 0.0, None) for axis in (1, 0)]
        left = [np.eye(len(one)) - (one / max(one.sum(), 1e-9))[:, None] for one in shares]
        looks = np.kron(left[0], left[1])
        return np.asarray((looks @ self.covariance * looks).sum(axis=1).reshape(self.counts.shape))

    def _squared(self, tables: Floats) -> Floats:
        """Return φ² of tables (S, R, C) that have this one's noise, (S,); it may be negative."""
        down, across = tables.sum(axis=2), tables.sum(axis=1)
        total = np.maximum(down.sum(axis=1), 2.0)
        expected = down[:, :, None] * across[:, None, :] / total[:, None, None]
        floor = 0.25 * max(self.deviation, 1.0)
        safe = np.maximum(expected, floor)
        chi = (np.square(tables - expected) / safe).sum(axis=(1, 2)) - (self._of_noise / safe).sum(axis=(1, 2))
        free = (tables.shape[1] - 1) * (tables.shape[2] - 1)
        return np.asarray(chi / total - free / (total - 1.0))

    def _drawn(self) -> tuple[Floats, Floats, Floats]:
        """Return V of tables from independence through the released one, and the 2.5 and 97.5 % points of their φ²."""
        random = np.random.default_rng(PUBLIC_SEED)
        draws = int(np.clip(_NUMBERS / self.counts.size, _FEWEST, _MOST))
        rows = max(round(float(self.counts.sum())), 2)
        released = np.maximum(self.counts, 0.0)
        released /= released.sum()
        alone = np.outer(released.sum(axis=1), released.sum(axis=0))
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        noise = (random.standard_normal((draws, self.counts.size)) @ root.T).reshape(draws, *self.counts.shape)
        strengths, low, high = np.empty((3, len(_STEPS)))
        for place, step in enumerate(_STEPS):
            shares = np.maximum(alone + step * (released - alone), 0.0)
            shares /= shares.sum()
            expected = np.outer(shares.sum(axis=1), shares.sum(axis=0))
            squared = float((np.square(shares - expected) / np.maximum(expected, 1e-300)).sum())
            strengths[place] = np.sqrt(min(squared / (min(shares.shape) - 1.0), 1.0))
            drawn = random.multinomial(rows, shares.ravel(), draws).reshape(noise.shape) + noise
            low[place], high[place] = np.quantile(self._squared(drawn), (0.025, 0.975))
        return strengths, low, high


def _pools(totals: Floats, least: float) -> Floats:
    """Return what adds up lines whose total is below ``least``, (kept, all), to the rarest of the others if need be."""
    rare = totals < least
    if rare.any() and not rare.all() and totals[rare].sum() < least:
        rare |= totals == totals[~rare].min()
    looks = [np.eye(len(totals))[place] for place in np.flatnonzero(~rare)]
    return np.array([*looks, rare.astype(np.float64)] if rare.any() else looks)
