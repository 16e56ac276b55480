"""Functions of a table's columns: what later rows are seen through, made of released counts alone.

*Of a number*, four functions of the bin that a cell lies in. From noisy counts the column's share of cells below every
edge is estimated, rising from 0 to 1 (:meth:`~dpalgos.histograms.ColumnCounts.shares_below`): the *released masses* of
its bins.

* linear: the bin's middle, less that of the released median, over (q₉₅ − q₀₅)/3.29 of the released quantiles, clipped
  at ±3;
* of degree 1, 2, 3: with the mid-rank r of a bin, half its own mass and all below it, the score s = Φ⁻¹(r), clipped at
  ±2.75; s, (s² − 1)/√2 and (s³ − 3s)/√6 are made orthonormal under the released masses, to the constant and to one
  another (Gram and Schmidt). A function with less than 2 % of its own variance left is omitted (two values have no
  square): it is 0, so that the number of features is public all the same. No function is scaled up by more than
  0.3^(−1/2), and all are clipped at ±4. Ties have the function of their mid-rank, wherever they lie.

So columns come centred, and no mean has to be paid for that. A missing cell is 0 in all functions, and 1 in its own
indicator.


*Of two numbers* products of their functions, clipped at ±4: of degree 1 and 1 (product), 2 and 1 (cubic product).
*Categories* one-hot; values that are too rare to be told from none share a feature, "other". Where nothing is counted
there is no such feature. Pairs of values may be added. A constant of 0.1 is last.

*The map* of a row, by itself: features times weights, over their norm. Of a level (:data:`LEVELS`) each block of
features has a share of the squared norm, split evenly among those that are not left out. It is made of public choices
and released counts: post-processing. A row with a value that is not a number stays a null record: all its features are
NaN, which every reader of rows replaces by zero.

*Numeric labels*: the map has in addition the range that they are clipped to (:mod:`dpalgos.features.label_range`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.columns import Column, bins_of, numbers_of, value_of
from dpalgos.features.label_range import label_range_of_counts
from dpalgos.features.public_map import RowFeatures
from dpalgos.histograms import ColumnCounts
from dpalgos.models import released_kind
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats, Ints

SCORE_BOUND, LINEAR_BOUND, FUNCTION_BOUND = 2.75, 3.0, 4.0
"""At which scores, linear functions, and functions and products of degrees 1 to 3 are clipped."""
LEAST_VARIANCE, FLOOR = 0.02, 0.3
"""Below the first a function is left out; below the second it is not scaled up to 1."""
CONSTANT = 0.1
# Between these quantiles lie 3.29 deviations of a normal distribution; less than a half per cent of the range is none.
_MIDDLE, _OUTER, _DEVIATIONS, _NARROWEST = 0.5, (0.05, 0.95), 3.29, 0.005
_RANKS = 1e-6
# Rows that are mapped at a time: their functions stay in a core's cache, or nearly.
_ROWS, _ENTRIES = 4096, 2**17

_SCORES = {"linear": 0.5, "score": 0.5, "value": 1.0}
LEVELS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "scores": _SCORES,
        "univariate": {**_SCORES, "square": 0.4, "cube": 0.3},
        "products": {**_SCORES, "square": 0.4, "cube": 0.4, "product": 0.4},
        "cubic": {**_SCORES, "square": 0.5, "cube": 0.5, "product": 0.5, "cubic-product": 0.5},
        "categories": {"value": 1.0, "value-pair": 1.0},
    }
)
"""Which functions a map has: of each block its share of a row's squared norm, before rows are brought to norm 1."""
_NAMES = tuple(LEVELS)
_OF_ONE = ("linear", "score", "square", "cube")


@dataclass(frozen=True, slots=True)
class Term:
    """One feature of the map.

    Parameters
    ----------
    function : str
        ``linear``, ``score``, ``square``, ``cube``, ``product``, ``cubic-product``, ``value``, ``other``, ``missing``,
        ``value-pair`` or ``constant``.
    columns : tuple of int
        Places among the numbers (``cubic-product``: that of the square first), or among the categories for values.
    values : tuple of int
        Of each category.
    """

    function: str
    columns: tuple[int, ...] = ()
    values: tuple[int, ...] = ()


@released_kind("column-functions")
@dataclass(frozen=True, slots=True)
class ColumnFunctions(RowFeatures):
    """The map of a table's rows to functions of its columns, in the unit ball.

    Parameters
    ----------
    columns : array (k, 3) of int
        Of each column its first feature, how many values a category has (−1: a number), and the feature that says that
        a number is missing, or −1; numbers first.
    ends : array (k, 2)
        Of each column's features, at the low and the high end.
    tables : array (c, 4, T)
        Of each number its functions by bin: linear, of degree 1, 2 and 3; zero where one is left out.
    others : array (values of all categories,)
        1 where a value is encoded as "other"; all 0 where nothing is counted.
    level : array (2,) of int
        Place among :data:`LEVELS`, and whether columns are counted.
    weights : array (D,)
        By what each feature is multiplied.
    label_range : array (2,) or (0,)
        Range that a numeric label is clipped to; empty where labels are classes.
    label_spread : array (3,) or (0,)
        Of a numeric label that is counted, the numbers of a :class:`~dpalgos.models.Spread`, by the same module.
    """

    columns: Ints
    ends: Floats
    tables: Floats
    others: Floats
    level: Ints
    weights: Floats
    label_range: Floats
    label_spread: Floats = field(default_factory=lambda: np.zeros(0))

    kept: ClassVar[bool] = False

    def __post_init__(self) -> None:
        numbers, categories = self.described()
        if not 0 <= int(self.level[0]) < len(_NAMES) or self.tables.shape[:2] != (len(numbers), len(_OF_ONE)):
            raise ParameterError("the arrays do not belong to a map by functions of columns; build the map again")
        if len(self.others) != sum(one.values or 0 for one in categories) or len(self.weights) != len(self.terms()):
            raise ParameterError(
                f"{len(self.weights)} weights are given, and these columns need a different number; build the map again"
            )

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return len(self.weights)

    @property
    def bins(self) -> int:
        """T."""
        return int(self.tables.shape[2])

    @property
    def blocks(self) -> Mapping[str, float]:
        """Blocks of functions, with each block's share of a row's squared norm (:data:`LEVELS`)."""
        return LEVELS[_NAMES[int(self.level[0])]]

    @property
    def counted(self) -> bool:
        """Whether columns are counted, so that values may be rare."""
        return bool(self.level[1])

    def described(self) -> tuple[list[Column], list[Column]]:
        """Return the numbers and the categories."""
        columns = [
            Column(
                at=int(at),
                values=None if values < 0 else int(values),
                missing=None if missing < 0 else int(missing),
                low=float(low),
                high=float(high),
            )
            for (at, values, missing), (low, high) in zip(self.columns, self.ends, strict=True)
        ]
        numbers = [column for column in columns if column.is_number]
        return numbers, columns[len(numbers) :]

    def terms(self) -> list[Term]:
        """Return what each feature is, in order."""
        return terms(*self.described(), _NAMES[int(self.level[0])], counted=self.counted)

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, D), rows of norm 1; NaN where a row has a number that is none."""
        features = np.asarray(features, dtype=np.float64)
        mapped = np.zeros((len(features), self.dimension))
        step = max(16, min(_ROWS, _ENTRIES // max(self.dimension, 1)))
        numbers, categories = self.described()
        for start in range(0, len(features), step):
            part = features[start : start + step]
            with np.errstate(over="ignore", invalid="ignore"):
                odd = np.flatnonzero(~np.isfinite(part.sum(axis=1)))
            null = odd[~np.isfinite(part[odd]).all(axis=1)]
            if null.size:
                part = part.copy()
                part[null] = 0.0
            self._map(part, numbers, categories, mapped[start : start + step])
            mapped[start + null] = np.nan
        return mapped

    def _map(self, features: Floats, numbers: Sequence[Column], categories: Sequence[Column], mapped: Floats) -> None:
        """Write the features of finite rows to (m, D), which holds zeros."""
        of_numbers = self._of_numbers(features, numbers)
        said = self._of_categories(features, categories, len(of_numbers))
        # One after the other, so that a row's norm is rounded alike at any place and beside any others.
        squares, square = np.full(len(features), self.weights[-1] ** 2), np.empty(len(features))
        for function in of_numbers:
            np.multiply(function, function, out=square)
            squares += square
        for _, _, weights in said:
            squares += weights**2
        # So much longer that no row leaves the ball by rounding, and a clip has nothing to do.
        scale = 1.0 / (np.sqrt(squares) * (1.0 + (8 + self.dimension) * 2.0**-53))
        of_numbers *= scale
        mapped[:, : len(of_numbers)] = of_numbers.T
        for rows, places, weights in said:
            mapped[rows, places] = (weights * scale)[rows]
        mapped[:, -1] = self.weights[-1] * scale

    def _of_numbers(self, features: Floats, numbers: Sequence[Column]) -> Floats:
        """Return functions of numbers times their weights, and then indicators, (D', m)."""
        blocks, count, rows = self.blocks, len(numbers), len(features)
        cells, missing = numbers_of(features, numbers)
        places = np.ascontiguousarray(bins_of(cells, self.bins).T)
        lacking = [line for line, column in enumerate(numbers) if column.missing is not None]
        kinds = [place for place, name in enumerate(_OF_ONE) if name in blocks]
        of_one = np.empty((len(_OF_ONE), count, rows))
        for line in range(count):
            for kind in kinds:
                # Bins are within the table.
                np.take(self.tables[line, kind], places[line], out=of_one[kind, line], mode="clip")
        for line in lacking:
            of_one[:, line, missing[:, line]] = 0.0
        found = np.empty((count * len(kinds) + _products(count, blocks) + len(lacking), rows))
        room = _Room(found)
        for kind in kinds:
            room.next(count)[:] = of_one[kind]
        first, second = of_one[1], of_one[2]
        if "product" in blocks:
            for one in range(count):
                np.multiply(first[one], first[one + 1 :], out=room.next(count - one - 1))
        if "cubic-product" in blocks:
            for one in range(count):
                np.multiply(second[one], first[:one], out=room.next(one))
                np.multiply(second[one], first[one + 1 :], out=room.next(count - one - 1))
        products = found[count * len(kinds) : len(found) - len(lacking)]
        np.clip(products, -FUNCTION_BOUND, FUNCTION_BOUND, out=products)
        room.next(len(lacking))[:] = missing[:, lacking].T
        found *= self.weights[: len(found), None]
        return found

    def _of_categories(
        self, features: Floats, categories: Sequence[Column], start: int
    ) -> list[tuple[Ints, Ints, Floats]]:
        """Return of each category, and pair, the rows that say a value, its feature there, and all rows' weights."""
        blocks, counted = self.blocks, self.counted
        found, values, used = [], [], 0
        for category in categories:
            size = int(category.values or 0)
            # What is missing is no value, and no other one.
            encoded = np.append(np.where(self.others[used : used + size] > 0, size, np.arange(size)), -1)
            values.append((size, encoded[value_of(features, category)]))
            used += size
        for size, value in values:
            found.append(self._said(value, start))
            start += size + counted
        if "value-pair" in blocks:
            for (size, one), (other_size, other) in itertools.combinations(values, 2):
                both = np.where((one < 0) | (other < 0), -1, one * other_size + other)
                found.append(self._said(both, start))
                start += size * other_size
        return found

    def _said(self, value: Ints, start: int) -> tuple[Ints, Ints, Floats]:
        rows = np.flatnonzero(value >= 0)
        places = value[rows] + start
        weights = np.zeros(len(value))
        weights[rows] = self.weights[places]
        return rows, places, weights


class _Room:
    """Rows of an array, handed out one part after the other."""

    def __init__(self, array: Floats) -> None:
        self._array, self._used = array, 0

    def next(self, count: int) -> Floats:
        """Return the next so many rows, to be written to."""
        self._used += count
        return self._array[self._used - count : self._used]


def _products(count: int, blocks: Mapping[str, float]) -> int:
    pairs = count * (count - 1) // 2
    return pairs * (("product" in blocks) + 2 * ("cubic-product" in blocks))


def terms(numbers: Sequence[Column], categories: Sequence[Column], level: str, *, counted: bool) -> list[Term]:
    """Return what the features of the map of such columns are: public before anything is counted.

    Parameters
    ----------
    numbers, categories : sequence of Column
    level : str
        One of :data:`LEVELS`.
    counted : bool
        Whether columns are counted, so that values may be rare.
    """
    blocks, count = LEVELS[level], len(numbers)
    found = [Term(name, (place,)) for name in _OF_ONE if name in blocks for place in range(count)]
    if "product" in blocks:
        found += [Term("product", pair) for pair in itertools.combinations(range(count), 2)]
    if "cubic-product" in blocks:
        found += [Term("cubic-product", pair) for pair in itertools.permutations(range(count), 2)]
    found += [Term("missing", (place,)) for place, column in enumerate(numbers) if column.missing is not None]
    for place, category in enumerate(categories):
        found += [Term("value", (place,), (value,)) for value in range(category.values or 0)]
        found += [Term("other", (place,))] * counted
    if "value-pair" in blocks:
        for (one, first), (other, second) in itertools.combinations(enumerate(categories), 2):
            values = itertools.product(range(first.values or 0), range(second.values or 0))
            found += [Term("value-pair", (one, other), pair) for pair in values]
    return [*found, Term("constant")]


def functions_of(shares: Floats) -> Floats:
    """Return the functions of numbers by bin, (c, 4, T), from their shares of cells below each edge, (c, T + 1).

    Linear, then of degree 1, 2 and 3; zero where one is left out.
    """
    lines, bins = shares.shape[0], shares.shape[1] - 1
    masses = np.diff(shares, axis=1)
    tables = np.zeros((lines, len(_OF_ONE), bins))
    score = np.clip(
        scipy.special.ndtri(np.clip((shares[:, :-1] + shares[:, 1:]) / 2.0, _RANKS, 1.0 - _RANKS)),
        -SCORE_BOUND,
        SCORE_BOUND,
    )
    middles = (np.arange(bins) + 0.5) / bins
    for line, below in enumerate(shares):
        low, median, high = (
            middles[min(int(np.searchsorted(below[1:], level)), bins - 1)] for level in (_OUTER[0], _MIDDLE, _OUTER[1])
        )
        width = max((high - low) / _DEVIATIONS, _NARROWEST)
        tables[line, 0] = np.clip((middles - median) / width, -LINEAR_BOUND, LINEAR_BOUND)
        basis = [np.ones(bins)]
        one = score[line]
        for degree, raw in enumerate((one, (one**2 - 1.0) / math.sqrt(2.0), (one**3 - 3.0 * one) / math.sqrt(6.0)), 1):
            left = raw
            for known in basis:
                left = left - (masses[line] * left * known).sum() * known
            variance = float((masses[line] * left**2).sum())
            if variance <= LEAST_VARIANCE:
                continue
            basis.append(left / math.sqrt(variance))
            tables[line, degree] = np.clip(left / math.sqrt(max(variance, FLOOR)), -FUNCTION_BOUND, FUNCTION_BOUND)
    return tables


def column_functions(
    columns: Sequence[Column], level: str, counts: ColumnCounts | None = None, label_range: Sequence[float] = ()
) -> ColumnFunctions:
    """Return the map of columns that released counts make.

    Parameters
    ----------
    columns : sequence of Column
    level : str
        One of :data:`LEVELS`.
    counts : ColumnCounts, optional
        Released, of these columns. None where nothing is counted: then there are no numbers.
    label_range : (float, float), or ()
        Declared, of a numeric label.

    Raises
    ------
    ParameterError
        If there is no such level, if the counts belong to other columns, or if numbers are not counted.
    """
    numbers = [column for column in columns if column.is_number]
    categories = [column for column in columns if not column.is_number]
    if level not in LEVELS:
        raise ParameterError(f"level is {level!r}; choose one of {', '.join(LEVELS)}")
    spread = np.zeros(0)
    if counts is None:
        if numbers:
            raise ParameterError(f"{len(numbers)} numeric columns need released counts; give these counts")
        tables, bins = np.zeros((0, len(_OF_ONE), 1)), 1
        others = [np.zeros(category.values or 0) for category in categories]
    else:
        if counts.layout.numbers != tuple(numbers) or counts.layout.categories != tuple(categories):
            raise ParameterError(
                "the counts are for different columns than the map's; release the counts of its columns"
            )
        bins = counts.bins
        tables = functions_of(counts.shares_below()[: len(numbers)])
        others = counts.rare()
        if counts.layout.label_range is not None:
            found = label_range_of_counts(counts)
            label_range, spread = found.ends, found.spread
    described = [
        (one.at, -1 if one.values is None else one.values, -1 if one.missing is None else one.missing)
        for one in (*numbers, *categories)
    ]
    ends = [(one.low, one.high) for one in (*numbers, *categories)]
    return ColumnFunctions(
        columns=np.array(described, dtype=np.int64).reshape(len(columns), 3),
        ends=np.array(ends, dtype=np.float64).reshape(len(columns), 2),
        tables=tables.reshape(len(numbers), len(_OF_ONE), bins),
        others=np.concatenate([*others, np.zeros(0)]),
        level=np.array([_NAMES.index(level), counts is not None], dtype=np.int64),
        weights=_weights(terms(numbers, categories, level, counted=counts is not None), level, tables, len(categories)),
        label_range=np.array(label_range, dtype=np.float64),
        label_spread=spread,
    )


def _weights(found: Sequence[Term], level: str, tables: Floats, categories: int) -> Floats:
    """Return the weight of each feature: the root of its part of its block's share."""
    there = np.asarray(tables.any(axis=2))
    blocks = dict(LEVELS[level])
    # A category has one value; of pairs too.
    members: dict[str, float] = {"value": categories, "value-pair": categories * (categories - 1) // 2}
    functions: dict[str, tuple[int, ...]] = {"product": (1, 1), "cubic-product": (2, 1)}
    functions |= {name: (kind,) for kind, name in enumerate(_OF_ONE)}

    def kept(term: Term) -> bool:
        of = functions[term.function]
        return all(there[place, kind] for place, kind in zip(term.columns, of, strict=True))

    for name in functions:
        members[name] = sum(kept(term) for term in found if term.function == name)
    # "Other" is a value; an indicator stands where the cell's own linear function and score would.
    blocks["other"], members["other"] = blocks["value"], members["value"]
    blocks["missing"], members["missing"] = blocks.get("linear", 0.0) + blocks.get("score", 0.0), len(tables)
    of_block = {name: math.sqrt(share / max(members.get(name, 1), 1)) for name, share in blocks.items()}
    return np.array([of_block.get(term.function, CONSTANT) for term in found])
