"""Functions of normal scores: what a table's later rows are seen through, made of released counts alone.

*Scores.* From noisy counts each number's share of cells below every edge of its bins is estimated, rising from 0 to 1
(:meth:`~dpalgos.histograms.ColumnCounts.shares_below`). A cell in a bin between the shares a and b has the mid-rank
(a + b)/2, and the score Φ⁻¹ of it, clipped at a public bound: where values are ties it is that of their mid-rank,
wherever in the bin they lie. By a public rule ranks may rise inside a bin, over the part ``inside`` of it:

    rank(x) = (a + b)/2 ± inside (b − a)/2 at the bin's ends, scores linear between them.

Scores rise with the cell in any case. A missing cell has no score: all its functions are 0.

*Functions* of scores z, orthonormal where a column's scores are normal and independent of others': h₁ = z,
h₂ = (z² − 1)/√2, h₃ = (z³ − 3z)/√6; of two columns z_i z_j (degree 2) and h₂(z_i) z_j (degree 3), for all columns or,
where these would be too many, for sums of them with random signs. Categories one-hot; values that are too rare to be
told from none share a feature, "other". Cells as they are, on [−1, 1], may stand beside them.

*The map* of a row, by itself: functions times public weights, less released means, divided by their norm, and clipped
to the unit ball last. It is made of public choices and released counts: post-processing. A row with a number that is
none stays a null record: all its features are NaN, which whoever reads rows makes zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.columns import Column, bins_of, numbers_of, value_of
from dpalgos.evaluators.column_histograms import Layout
from dpalgos.features.public_map import RowFeatures
from dpalgos.histograms import ColumnCounts
from dpalgos.models import released_kind
from dpalgos.parameters import COUNT, NATURAL, NON_NEGATIVE, POSITIVE, SHARE, Bounded, ParameterError
from dpalgos.rows import Floats, Ints, clip_to_unit_ball, row_products

# Rows that are mapped at a time: their functions stay in a core's cache, or nearly.
_ROWS, _ENTRIES = 4096, 2**19
_MOST_DEGREE = 3


@dataclass(frozen=True, slots=True)
class Term:
    """What a feature of the map is.

    Parameters
    ----------
    function : str
        ``h1``, ``h2``, ``h3``, ``product``, ``h2-product``, ``linear``, ``value``, ``other`` or ``missing``.
    columns : tuple of int
        Places among the numbers (``h2-product``: that of h₂ first), or among the categories for a value.
    value : int or None
        Of a category.
    """

    function: str
    columns: tuple[int, ...]
    value: int | None = None


@released_kind("column-functions")
@dataclass(frozen=True, slots=True)
class ColumnFunctions(RowFeatures):
    """The map of a table's rows to functions of normal scores, in the unit ball.

    Parameters
    ----------
    numbers : array (c, 2) of int
        Of each number its feature, and the one that says that it is missing, or −1.
    scores : array (c, T, 2)
        At the lower and the upper end of each bin.
    categories : array (g, 2) of int
        Of each category its first feature, and how many values it has.
    others : array (values of all categories,)
        1 where a value is encoded as "other".
    mixing : array (c, k)
        What products are formed of: of the scores times this matrix. The unit matrix where it is of the scores.
    parts : array (2,) of int
        Degree (1, 2 or 3), and whether cells stand beside the functions.
    weights, means : array (D,)
        Of each function: by what it is multiplied, and what is then taken away.
    """

    numbers: Ints
    scores: Floats
    categories: Ints
    others: Floats
    mixing: Floats
    parts: Ints
    weights: Floats
    means: Floats

    kept: ClassVar[bool] = False

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return len(self.weights)

    @property
    def bins(self) -> int:
        """T."""
        return int(self.scores.shape[1])

    def columns(self) -> tuple[list[Column], list[Column]]:
        """Return the numbers and the categories."""
        numbers = [Column(at=int(at), missing=None if gone < 0 else int(gone)) for at, gone in self.numbers]
        return numbers, [Column(at=int(at), values=int(values)) for at, values in self.categories]

    def terms(self) -> list[Term]:
        """Return what each feature is, in order."""
        return _terms(*self.columns(), int(self.parts[0]), bool(self.parts[1]), int(self.mixing.shape[1]))

    def normal_scores(self, features: Floats) -> tuple[Floats, Floats]:
        """Return the scores of rows (m, c), 0 where a cell is missing; and 1 where it is there, else 0.

        Parameters
        ----------
        features : array (m, d)
            Finite.
        """
        cells, missing = numbers_of(features, self.columns()[0])
        return self._scored(cells), np.where(missing, 0.0, 1.0)

    def _scored(self, cells: Floats) -> Floats:
        bins, lines = self.bins, len(self.numbers)
        places = bins_of(cells, bins)
        low, high = (self.scores[:, :, end].ravel()[places + bins * np.arange(lines)] for end in (0, 1))
        # The end itself may be exceeded by rounding.
        return np.asarray(np.minimum(low + (cells * bins - places) * (high - low), high))

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, D), rows of norm 1 (or 0); NaN where a row has a number that is none."""
        features = np.asarray(features, dtype=np.float64)
        mapped = np.empty((len(features), self.dimension))
        step = max(16, min(_ROWS, _ENTRIES // max(self.dimension, 1)))
        for start in range(0, len(features), step):
            part = features[start : start + step]
            null = np.asarray(~np.isfinite(part).all(axis=1))
            functions = self._each(np.where(null[:, None], 0.0, part) if null.any() else part)
            functions *= self.weights[:, None]
            functions -= self.means[:, None]
            # One after the other, so that a row's norm is rounded alike at any place and beside any others.
            squares = np.zeros(len(part))
            for function in functions:
                squares += function * function
            functions /= np.sqrt(np.where(squares > 0, squares, 1.0))
            mapped[start : start + step] = clip_to_unit_ball(functions.T)
            mapped[start : start + step][null] = np.nan
        return mapped

    def functions(self, features: Floats) -> Floats:
        """Return the functions of finite rows (m, D), before weights."""
        return np.ascontiguousarray(self._each(np.asarray(features, dtype=np.float64)).T)

    def _each(self, features: Floats) -> Floats:
        """Return the functions of rows, (D, m): function after function in memory, so that loops are long."""
        numbers, categories = self.columns()
        cells, missing = numbers_of(features, numbers)
        there = np.where(missing, 0.0, 1.0)
        degree, beside = int(self.parts[0]), bool(self.parts[1])
        found = np.zeros((self.dimension, len(features)))
        room = _Room(found)
        first = self._scored(cells) * there
        scores, known = np.ascontiguousarray(first.T), np.ascontiguousarray(there.T)
        room.next(len(numbers))[:] = scores
        if degree >= 2:
            room.next(len(numbers))[:] = (scores**2 - 1.0) * (known / math.sqrt(2.0))
        if degree >= 3:
            room.next(len(numbers))[:] = (scores**3 - 3.0 * scores) / math.sqrt(6.0)
        if degree >= 2:
            self._products(room, first, scores, known, degree)
        if beside:
            room.next(len(numbers))[:] = (2.0 * cells.T - 1.0) * known
        start = 0
        for category in categories:
            values = int(category.values or 0)
            # What is missing is no value, and no other one.
            place = np.where(self.others[start : start + values] > 0, values, np.arange(values))
            said = value_of(features, category)
            there_is = np.flatnonzero(said < values)
            room.next(values + 1)[place[said[there_is]], there_is] = 1.0
            start += values
        for line, column in enumerate(numbers):
            if column.missing is not None:
                room.next(1)[0] = 1.0 - known[line]
        return found

    def _products(self, room: _Room, rows: Floats, scores: Floats, there: Floats, degree: int) -> None:
        count = self.mixing.shape[1]
        mixed, known = scores, there
        if self.mixing.shape != (count, count) or not np.array_equal(self.mixing, np.eye(count)):
            # Of sums nothing says whether a cell is missing, nor how large they are.
            bound = float(np.abs(self.scores).max(initial=0.0))
            mixed = np.ascontiguousarray(np.clip(row_products(rows, self.mixing), -bound, bound).T)
            known = np.ones_like(mixed)
        for one in range(count):
            room.next(count - one - 1)[:] = mixed[one] * mixed[one + 1 :]
        if degree >= 3:
            second = (mixed**2 - 1.0) * (known / math.sqrt(2.0))
            for one in range(count):
                room.next(one)[:] = second[one] * mixed[:one]
                room.next(count - one - 1)[:] = second[one] * mixed[one + 1 :]


class _Room:
    """Rows of an array, handed out one part after the other."""

    def __init__(self, array: Floats) -> None:
        self._array, self._used = array, 0

    def next(self, count: int) -> Floats:
        """Return the next so many rows, to be written to."""
        self._used += count
        return self._array[self._used - count : self._used]


def _terms(
    numbers: Sequence[Column], categories: Sequence[Column], degree: int, beside: bool, mixed: int
) -> list[Term]:
    """Return what the features of such a map are."""
    terms = [Term(f"h{power}", (place,)) for power in range(1, degree + 1) for place in range(len(numbers))]
    if degree >= 2:
        terms += [
            Term("product", (int(one), int(other))) for one, other in zip(*np.triu_indices(mixed, 1), strict=True)
        ]
    if degree >= 3:
        terms += [Term("h2-product", pair) for pair in itertools.permutations(range(mixed), 2)]
    if beside:
        terms += [Term("linear", (place,)) for place in range(len(numbers))]
    for place, category in enumerate(categories):
        terms += [Term("value", (place,), value) for value in range(category.values or 0)]
        terms.append(Term("other", (place,)))
    return terms + [Term("missing", (place,)) for place, column in enumerate(numbers) if column.missing is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRule(Bounded):
    """How a map of columns is made of released counts: public choices, and nothing that rows say.

    Parameters
    ----------
    degree : int
        1: h₁ alone; 2: h₂ and products of two columns; 3: h₃ and h₂·h₁ as well.
    second, third, one_hot, linear : float
        Weights of the functions of degree 2 and 3, of one-hot features and of cells beside them; ``linear`` is 0 where
        these are left out.
    bound : float
        At which scores are clipped.
    inside : float
        In [0, 1]: over which part of a bin ranks rise in it; 0 where a bin has one score.
    most_products : int
        Products, of both degrees, at most.
    seed : int
        Public: of the signs, where products would be more.
    centred : bool
        Whether means of single columns' functions and of one-hot features, as counts say them, are taken away.
    floor : float
        Deviations of its noise below which a count says nothing: a value is "other", a mean is 0.
    """

    degree: int = field(default=2, metadata=COUNT)
    second: float = field(default=0.5, metadata=POSITIVE)
    third: float = field(default=0.25, metadata=POSITIVE)
    one_hot: float = field(default=1.5, metadata=POSITIVE)
    linear: float = field(default=0.0, metadata=NON_NEGATIVE)
    bound: float = field(default=2.75, metadata=POSITIVE)
    inside: float = field(default=0.0, metadata=SHARE)
    most_products: int = field(default=2000, metadata=NATURAL)
    seed: int = field(default=0, metadata=NATURAL)
    centred: bool = False
    floor: float = field(default=3.0, metadata=NON_NEGATIVE)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.degree > _MOST_DEGREE:
            raise ParameterError(f"degree is {self.degree}; it must be at most {_MOST_DEGREE}")

    def mixed(self, numbers: int) -> int:
        """Return of how many numbers, or sums of numbers, products are formed: the most that the limit allows."""
        if self.degree == 1:
            return 0
        each = 0.5 if self.degree == 2 else 1.5
        fitting = (count for count in range(numbers, 1, -1) if each * count * (count - 1) <= self.most_products)
        return next(fitting, 0)

    def mixing(self, numbers: int) -> Floats:
        """Return the matrix (c, k) of what products are formed of.

        The unit matrix where all products are few enough. Otherwise each number goes into one of k sums, about as many
        into each, with a random sign, and over the root of how many there are: of normal scores the sums are normal.
        """
        count = self.mixed(numbers)
        if count == numbers or not count:
            return np.eye(numbers, count)
        random = np.random.default_rng(self.seed)
        places = random.permutation(numbers) % count
        matrix = np.zeros((numbers, count))
        matrix[np.arange(numbers), places] = random.choice([-1.0, 1.0], numbers)
        return np.asarray(matrix / np.sqrt(np.abs(matrix).sum(axis=0)))

    def terms(self, layout: Layout) -> list[Term]:
        """Return what the features of the map of such columns are: public before anything is counted."""
        numbers = layout.numbers
        return _terms(numbers, layout.categories, self.degree, self.linear > 0, self.mixed(len(numbers)))

    def dimension(self, layout: Layout) -> int:
        """Return the number of features of the map, public before anything is counted."""
        return len(self.terms(layout))

    def made(self, counts: ColumnCounts) -> ColumnFunctions:
        """Return the map of released counts.

        Parameters
        ----------
        counts : ColumnCounts
            A real label among them has no part in it.
        """
        layout = counts.layout
        numbers = len(layout.numbers)
        scores = self.scores_of(counts)
        terms = self.terms(layout)
        weight = {"h1": 1.0, "h2": self.second, "product": self.second, "h3": self.third, "h2-product": self.third}
        weight |= {"linear": self.linear, "value": self.one_hot, "other": self.one_hot, "missing": self.one_hot}
        weights = np.array([weight[term.function] for term in terms])
        means = self._means(counts, scores, terms) if self.centred else np.zeros(len(terms))
        return ColumnFunctions(
            numbers=np.array(
                [[column.at, -1 if column.missing is None else column.missing] for column in layout.numbers],
                dtype=np.int64,
            ).reshape(numbers, 2),
            scores=scores,
            categories=np.array(
                [[column.at, column.values or 0] for column in layout.categories], dtype=np.int64
            ).reshape(len(layout.categories), 2),
            others=np.concatenate([*counts.rare(self.floor), np.zeros(0)]),
            mixing=self.mixing(numbers),
            parts=np.array([self.degree, self.linear > 0], dtype=np.int64),
            weights=weights,
            means=weights * means,
        )

    def scores_of(self, counts: ColumnCounts) -> Floats:
        """Return the scores (c, T, 2) at the lower and upper end of each bin of the numbers that are no label."""
        shares = counts.shares_below()[: len(counts.layout.numbers)]
        below, above = shares[:, :-1], shares[:, 1:]
        middle, half = (below + above) / 2.0, self.inside * (above - below) / 2.0
        ranks = np.clip(np.stack([middle - half, middle + half], axis=2), 0.0, 1.0)
        scores = np.clip(scipy.special.ndtri(ranks), -self.bound, self.bound)
        # Ranks that are equal may have been rounded apart: scores rise all the same.
        flat = np.maximum.accumulate(scores.reshape(len(scores), 2 * counts.bins), axis=1)
        return np.asarray(flat.reshape(scores.shape))

    def _means(self, counts: ColumnCounts, scores: Floats, terms: Sequence[Term]) -> Floats:
        """Return the mean of each function over all rows, as counts say it; 0 where they do not, as of products."""
        numbers = len(counts.layout.numbers)
        shares = np.diff(counts.shares_below(), axis=1)[:numbers]
        places = (np.arange(counts.bins) + 0.5) / counts.bins
        present = np.maximum(counts.totals[:numbers], 0.0)
        lost = _at_least(counts.missing[:numbers], self.floor * counts.deviation)
        there = present / np.maximum(present + lost, 1.0)
        score = scores.mean(axis=2)
        of_number = {
            "h1": score,
            "h2": (score**2 - 1.0) / math.sqrt(2.0),
            "h3": (score**3 - 3.0 * score) / math.sqrt(6.0),
            "linear": np.broadcast_to(2.0 * places - 1.0, score.shape),
        }
        averages = {name: there * (shares * values).sum(axis=1) for name, values in of_number.items()}
        averages["missing"] = 1.0 - there
        kept = [np.append(_at_least(one[:-1], self.floor * counts.deviation), one[-1]) for one in counts.categories]
        wholes = [max(float(np.maximum(one, 0.0).sum()), 1.0) for one in counts.categories]

        def mean(term: Term) -> float:
            place = term.columns[0]
            if term.function == "value":
                assert term.value is not None
                return float(kept[place][term.value] / wholes[place])
            if term.function == "other":
                rest = float(counts.categories[place][:-1].sum() - kept[place][:-1].sum())
                return rest / wholes[place] if rest >= self.floor * counts.deviation else 0.0
            return float(averages[term.function][place]) if term.function in averages else 0.0

        return np.array([mean(term) for term in terms])


def _at_least(counts: Floats, least: float) -> Floats:
    """Return counts, 0 where they are below so many."""
    return np.where(counts >= least, np.maximum(counts, 0.0), 0.0)
