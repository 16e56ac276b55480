"""Shapley values of columns: why a model gives a row its score, from the model and released counts alone.

*What is divided.* The score f of a row x, less the mean score of reference rows z. The value of a column is the mean,
over orders of the columns and over reference rows, of what the score gains where the column's cell changes from that of
z to that of x, the columns before it having changed already (Shapley 1953; Štrumbelj, Kononenko 2014). f is the whole
score: the map of columns, products of columns and the division by the row's norm are inside, so nothing is assumed of
its form. Closed forms hold where a row's norm is constant, which it is not here, and are not used. A column is a column
of the schema: all features that its cell becomes, its indicator of a missing cell among them, change together.

*Reference rows* (:func:`reference_rows`) are drawn by a public seed from released one-way counts, each column
independently of the others: no row is read, so this is post-processing. A number is a point inside its bin, by the
running sums bent to rise; a category, or a number of a few declared values, goes by the noisy counts projected on the
simplex; a cell is missing as often as is released. Columns of real rows depend on each other, so some reference rows
are like no row, and a column that merely goes along with another one has a value where the model looks at it.

*Estimate.* Orders come in antithetic pairs, an order and its reverse; each pair has one reference row, and all rows
that are explained have the same pairs. Along an order the gains add up to f(x) − f(z), so that the values of a row add
up, to rounding, to its score less the mean score of the reference rows used. Pairs are independent and equally
distributed: each value is unbiased for its expectation over the counts' distribution, and its standard error is the
deviation over the pairs divided by the root of their number. Of two columns a pair holds all orders.

References
----------
Shapley, "A value for n-person games", 1953. Castro, Gómez, Tejada, "Polynomial calculation of the Shapley value based
on sampling", Computers & Operations Research 36 (2009). Štrumbelj, Kononenko, "Explaining prediction models and
individual predictions with feature contributions", Knowledge and Information Systems 41 (2014). Mitchell, Cooper,
Frank, Holmes, "Sampling permutations for Shapley value estimation", JMLR 23 (2022) (antithetic orders).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpalgos.columns import Column, bins_of
from dpalgos.histograms import ColumnCounts
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats, Ints

PERMUTATIONS = 256
"""Orders of the columns by default: 128 antithetic pairs, each with a reference row."""
# Numbers of rows that are scored at a time.
_ENTRIES = 2**21

Score = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Player:
    """A column of the schema, with all that its cell becomes.

    Parameters
    ----------
    name : str
    features : tuple of int
        All its features, those that say that its cell is missing included.
    columns : tuple of Column
        What is counted of it: one, or of a date one for each of its parts.
    steps : tuple of int
        Of each of these how many declared values in equal steps a number has; 0 for any number within its range, and of
        a category.
    can_lack : bool
        Whether a category can have none of its declared values.
    """

    name: str
    features: tuple[int, ...]
    columns: tuple[Column, ...]
    steps: tuple[int, ...]
    can_lack: bool = False


@dataclass(frozen=True)
class ShapleyValues:
    """Contribution of each column to the scores of some rows.

    Parameters
    ----------
    chosen : array (m,) of int
        Which of the model's scores is divided: the only one, or the largest of the row.
    scores, means : array (m,)
        That score of each row, and its mean over the reference rows.
    values, errors : array (m, p)
        Of each column, and the standard error of each: over antithetic pairs, of orders and reference rows alike. The
        values of a row add up to ``scores - means``.
    """

    chosen: Ints
    scores: Floats
    means: Floats
    values: Floats
    errors: Floats

    @property
    def shares(self) -> Floats:
        """Of each column, the share of its absolute value in the sum of all absolute values of the row, (m, p)."""
        sizes = np.abs(self.values)
        total = sizes.sum(axis=1, keepdims=True)
        return np.asarray(np.divide(sizes, total, out=np.zeros_like(sizes), where=total > 0))


def on_simplex(counts: Floats) -> Floats:
    """Return noisy counts as shares: the nearest non-negative numbers with the same sum, over that sum.

    Where less than one row is left nothing is known, and all shares are equal.
    """
    total = float(counts.sum())
    if not total >= 1.0:
        return np.full(len(counts), 1.0 / len(counts))
    falling = np.sort(counts)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(counts) + 1)
    kept = int(np.flatnonzero(falling > excess)[-1])
    return np.asarray(np.maximum(counts - excess[kept], 0.0) / total)


def reference_rows(
    players: Sequence[Player], missing: Floats, counts: ColumnCounts, rows: int, *, seed: int = 0
) -> Floats:
    """Return encoded rows drawn from released one-way counts, (rows, dimension), each column by itself.

    Parameters
    ----------
    players : sequence of Player
    missing : array (dimension,)
        Features of a row whose cells are all missing: what is in no column stays as it is there.
    counts : ColumnCounts
        Released, of these columns in their order; a numeric label among them is ignored.
    rows : int
    seed : int
        Public, at least 0.

    Raises
    ------
    ParameterError
        If the counts belong to other columns.
    """
    columns = [column for player in players for column in player.columns]
    numbers = tuple(column for column in columns if column.is_number)
    categories = tuple(column for column in columns if not column.is_number)
    if counts.layout.numbers != numbers or counts.layout.categories != categories:
        raise ParameterError(
            "the counts are for different columns than the model's; give the counts of the model's table"
        )
    drawn = _Drawn(counts, *({column: at for at, column in enumerate(some)} for some in (numbers, categories)))
    # A row's numbers do not depend on how many rows there are.
    uniform = iter(np.random.default_rng([seed, 0]).random((rows, len(players) + len(columns))).T)
    found = np.tile(missing, (rows, 1))
    for player in players:
        lacking = next(uniform) < drawn.lacking(player)
        there = ~lacking
        found[np.ix_(there, player.features)] = 0.0
        for column, steps in zip(player.columns, player.steps, strict=True):
            own = next(uniform)[there]
            if column.is_number:
                found[there, column.at] = column.low + drawn.shares(column, steps, own) * (column.high - column.low)
            else:
                found[np.flatnonzero(there), column.at + drawn.places(column, own)] = column.high
    return found


@dataclass(frozen=True)
class _Drawn:
    """Cells from uniform numbers, by released counts."""

    counts: ColumnCounts
    lines: dict[Column, int]
    groups: dict[Column, int]

    @cached_property
    def _below(self) -> Floats:
        return self.counts.shares_below()

    def lacking(self, player: Player) -> float:
        """Return how often a column's cell is missing."""
        for column in player.columns:
            if column.is_number and column.missing is not None:
                line = self.lines[column]
                return float(on_simplex(np.array([self.counts.totals[line], self.counts.missing[line]]))[1])
        grouped = [column for column in player.columns if not column.is_number]
        if not grouped or not player.can_lack:
            return 0.0
        noisy = self.counts.categories[self.groups[grouped[0]]]
        return float(on_simplex(noisy)[-1]) if noisy.sum() >= 1.0 else 0.0

    def shares(self, column: Column, steps: int, uniform: Floats) -> Floats:
        """Return where numbers lie between the ends of their range."""
        line, bins = self.lines[column], self.counts.bins
        if 2 <= steps <= bins:
            values = np.arange(steps) / (steps - 1)
            return np.asarray(values[_places(on_simplex(self.counts.counts[line][bins_of(values, bins)]), uniform)])
        below = self._below[line]
        place = _places(np.diff(below), uniform)
        masses = below[place + 1] - below[place]
        within = np.divide(uniform - below[place], masses, out=np.full(len(place), 0.5), where=masses > 0)
        found = (place + np.clip(within, 0.0, 1.0)) / bins
        return found if steps < 2 else np.asarray(np.round(found * (steps - 1)) / (steps - 1))

    def places(self, column: Column, uniform: Floats) -> Ints:
        """Return which declared value each cell of a category has."""
        return _places(on_simplex(self.counts.categories[self.groups[column]][:-1]), uniform)


def _places(shares: Floats, uniform: Floats) -> Ints:
    """Return which part each uniform number lies in; a part without a share has none."""
    ends = np.cumsum(shares)
    last = int(np.flatnonzero(shares > 0)[-1])
    return np.minimum(np.searchsorted(ends, uniform, side="right"), last)


@dataclass(frozen=True)
class Explainer:
    """Divides scores among columns, with the same orders and reference rows for every row.

    Parameters
    ----------
    score : callable
        Of rows as they are encoded, (m, dimension): the model's scores (m, K), all maps included.
    players : sequence of Player
    reference : array (pairs, dimension)
        A row a pair, of :func:`reference_rows`.
    seed : int
        Public, at least 0.

    Raises
    ------
    ParameterError
        If there are fewer than two pairs, or no column.
    """

    score: Score
    players: Sequence[Player]
    reference: Floats
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.reference) < 2 or not self.players:
            raise ParameterError(
                f"{len(self.reference)} reference rows and {len(self.players)} columns are given; give at least two "
                "rows (for a standard error) and one column"
            )

    @cached_property
    def _ranks(self) -> Ints:
        """Of each pair's order the place of each column, (pairs, p)."""
        drawn = np.random.default_rng([self.seed, 1]).random((len(self.reference), len(self.players)))
        return np.argsort(np.argsort(drawn, axis=1), axis=1)

    @cached_property
    def _scored(self) -> Floats:
        """Scores of the reference rows, (pairs, K)."""
        return np.asarray(self.score(self.reference), dtype=np.float64)

    @property
    def scores_per_row(self) -> int:
        """Number of scored rows per explained row."""
        return 2 * len(self.reference) * (len(self.players) - 1) + 1

    def values(self, rows: Floats) -> ShapleyValues:
        """Return the values of each row's columns; a row's do not depend on the other rows.

        Parameters
        ----------
        rows : array (m, dimension)
            Encoded.
        """
        pairs, players = self._ranks.shape
        if not len(rows):
            return ShapleyValues(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), *np.zeros((2, 0, players)))
        scores = np.asarray(self.score(rows), dtype=np.float64)
        chosen = scores.argmax(axis=1)
        own = np.take_along_axis(scores, chosen[:, None], axis=1)[:, 0]
        values, errors = np.empty((2, len(rows), players))
        width = max(2 * (players - 1) * rows.shape[1], 1)
        some = max(min(pairs, _ENTRIES // width), 1)
        step = max(_ENTRIES // (width * some), 1)
        for start in range(0, len(rows), step):
            at = slice(start, start + step)
            gains = np.concatenate([*self._gains(rows[at], own[at], chosen[at], some)], axis=1)
            values[at] = gains.mean(axis=1)
            errors[at] = gains.std(axis=1, ddof=1) / np.sqrt(pairs)
        return ShapleyValues(chosen, own, self._scored.mean(axis=0)[chosen], values, errors)

    def _gains(self, rows: Floats, own: Floats, chosen: Ints, some: int) -> Iterable[Floats]:
        """Yield each column's mean gain over both orders of some pairs at a time, (m, pairs, p)."""
        count, players = len(rows), len(self.players)
        owner = np.full(rows.shape[1], players)
        for place, player in enumerate(self.players):
            owner[list(player.features)] = place
        for first in range(0, len(self.reference), some):
            ranks, reference = self._ranks[first : first + some], self.reference[first : first + some]
            both = np.stack([ranks, players - 1 - ranks], axis=1)
            pairs = len(ranks)
            # Columns that have changed after so many steps, (pairs, 2, p - 1, p); what is no column's is the same.
            changed = both[:, :, None, :] < np.arange(1, players)[:, None]
            taken = np.pad(changed, ((0, 0), (0, 0), (0, 0), (0, 1)))[..., owner]
            mixed = np.where(taken[None], rows[:, None, None, None, :], reference[None, :, None, None, :])
            along = np.empty((count, pairs, 2, players + 1))
            along[..., 0] = self._scored[first : first + some][:, chosen].T[:, :, None]
            along[..., -1] = own[:, None, None]
            if players > 1:
                found = np.asarray(self.score(mixed.reshape(-1, rows.shape[1])), dtype=np.float64)
                found = found.reshape(count, -1, found.shape[1])
                of_chosen = np.take_along_axis(found, chosen[:, None, None], axis=2)
                along[..., 1:-1] = of_chosen.reshape(count, pairs, 2, players - 1)
            # The gain at each step belongs to the column that has this place in the order.
            gains = np.take_along_axis(np.diff(along, axis=-1), np.broadcast_to(both, (count, *both.shape)), axis=-1)
            yield gains.mean(axis=2)


def explainer_of(
    score: Score,
    players: Sequence[Player],
    missing: Floats,
    counts: ColumnCounts,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Explainer:
    """Return what divides a model's scores among columns.

    Parameters
    ----------
    score, players
        As of :class:`Explainer`.
    missing, counts
        As of :func:`reference_rows`.
    permutations : int
        Orders of the columns, an even number from 4 on; half as many reference rows.
    seed : int
        Public, at least 0.

    Raises
    ------
    ParameterError
        For another number, or counts of other columns.
    """
    if permutations < 4 or permutations % 2:
        raise ParameterError(f"permutations is {permutations}; it must be an even number of at least 4")
    if seed < 0:
        raise ParameterError(f"seed is {seed}; it must be at least 0")
    reference = reference_rows(players, missing, counts, permutations // 2, seed=seed)
    return Explainer(score, tuple(players), reference, seed)
