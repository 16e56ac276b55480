"""Histograms of all columns of a table in one release: numbers by running sums, categories, classes, means.

*What is counted.* d columns: each number, in T equal parts of its declared range (end bins clip) and, outside their
order, a bin for missing cells; each category, a cell a declared value and one for missing; and the classes, or a real
label as one more number. A record is in one cell of each column, or in none of any where it is a null record. A
number's counts may be accompanied by the sum of its cells, centred to [−½, ½] of the range, for means that do not
depend on the width of bins.

*The vector*, integers from the row on. A plain count has the weight w, the sum of centred cells v = r w. A number's
counts go through the integer factor Ĉ = w C of running sums (:mod:`dpalgos.mechanisms.running_sums`), one factor a
column, so that every quantile has nearly the same noise; or are plain. Missing cells, categories and classes stand
outside the order, as plain counts.

*Sensitivity.* Columns are separate coordinates and a record's cells of different columns are free, so the square of
how far a record moves the vector is the sum over columns of the most that it moves each. Let ĉ_i be the columns of Ĉ
(of w times the unit matrix where counts are plain), ĉ the first, D = max ‖ĉ_i − ĉ_j‖² ≤ 2 ‖ĉ‖².

*A number, replace-one.* From bin i to bin j its counts move by ‖ĉ_i − ĉ_j‖² ≤ D and its centred sum by at most v:
D + v². Where a cell can be missing, from a bin to missing: ‖ĉ‖² + w², and v/2 in the sum: ‖ĉ‖² + w² + v²/4. So

    Δ_c² = max(D + v², ‖ĉ‖² + w² + v²/4)    (the second only where cells can be missing; 2 w² + v² where plain).

Since D ≤ 2 ‖ĉ‖² this is never more than 2 ‖ĉ‖² + v². For T = 64 D is 3.64 w² where 2 ‖ĉ‖² is 4.79 w², and ‖ĉ‖² + w²
is 3.39 w²: missing cells have no further cost where D is the larger.

*A category, and the classes, replace-one.* One cell loses w, another gains it: 2 w².

*A null record* adds nothing to any column: a record against it moves each column by at most ‖ĉ‖² + v²/4 (a number) or
w². Under replace-special that is all: Δ² = Σ (‖ĉ‖² + v²/4) + Σ w². Under replace-one it occurs too, and is less, column
by column, since ‖ĉ‖² ≤ D.

*Rows of one person*, k of them, add u = ⌊U/k⌋ each of the U units that a record adds, one k for all columns, and r w u
times a centred cell cut towards zero. So each is u/U times a point of the set that follows, and their sum a point of
its convex hull with zero: of each number, pairs (ĉ_i, m) with any |m| ≤ v/2, for cutting takes m towards zero and the
rounding of a product in float64 is monotone (its first factor is exact), or w in the missing bin and no m; of each
category w in one cell. A norm of differences is convex, so it is largest between extreme points of the product of
these sets over columns: those counted above. Neither how many rows a person has nor in which bins they lie matters.

*One factor through all columns* would not do: see :mod:`dpalgos.mechanisms.running_sums`; and neither would a d that
leaves categories and classes out, each of which moves by 2 w² as well.

*What an audit may claim of people*: between two persons of k equal rows each, in the cells of the worst pair of records
and for v = 0, the vector moves by k ⌊U/k⌋ / U times what two records move it by, above 1 − k/U ≥ 1 − 2⁻¹⁰: a person
is protected as a row is, to that factor, and not better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.columns import Column, bins_of, columns_of, numbers_of, value_of
from dpalgos.evaluators.noisy_sums import NoisySums, counted_cells
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.models import Statistic
from dpalgos.parameters import ParameterError, at_least, between
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints, Rows

MOST_BINS = 1024
"""Of a column: running sums cost 3.3 deviations there, and 2.65 with 128."""
_FEWEST_BINS, _BINS_FOR_NOISE = 32, 12.0
# Of one in the sum of centred cells: cells are cut to that.
_GRAIN = 10
_ROOM = 2.0**61


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the vector: lines of bins, missing cells, centred sums, categories, classes.

    Parameters
    ----------
    numbers : tuple of Column
        Each a line of bins; a numeric label is one more line, the last.
    categories : tuple of Column
    bins : int
        T, of each line.
    classes : int
        0 where the label is a number, or is not counted.
    label_range : (float, float) or None
        Of a numeric label.
    centred : bool
        Whether there are sums of centred cells, one a line.
    """

    numbers: tuple[Column, ...]
    categories: tuple[Column, ...]
    bins: int
    classes: int
    label_range: tuple[float, float] | None
    centred: bool

    @property
    def lines(self) -> int:
        """Numbers, a numeric label among them."""
        return len(self.numbers) + (self.label_range is not None)

    @property
    def lacking(self) -> tuple[int, ...]:
        """Lines of which cells can be missing."""
        return tuple(line for line, column in enumerate(self.numbers) if column.missing is not None)

    @property
    def outside(self) -> int:
        """Columns that have no line: categories, and the classes."""
        return len(self.categories) + (self.classes > 0)

    @property
    def counted(self) -> int:
        """d: all counted columns."""
        return self.lines + self.outside

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of the parts: lines, missing, centred sums, then each category, and the classes."""
        of_categories = (1 + (column.values or 0) for column in self.categories)
        lines = self.lines
        return (lines * self.bins, len(self.lacking), lines * self.centred, *of_categories, self.classes)

    def parts(self, vector: Floats) -> list[Floats]:
        """Return the parts of a vector."""
        return np.split(vector, np.cumsum(self.sizes)[:-1])


@cache
def _norm(bins: int, running: bool) -> tuple[int, int]:
    """Return w and ‖ĉ‖² of lines of so many bins: whole numbers."""
    coefficients = RunningSums(bins=bins).factor().coefficients if running else (1,)
    return coefficients[0], sum(entry * entry for entry in coefficients)


@cache
def _farthest(bins: int, running: bool) -> tuple[int, int, int]:
    """Return D of lines of so many bins, a whole number, and two bins whose columns are so far apart."""
    if not running:
        return 2, 0, bins - 1
    # Inner products of whole numbers below 2^53, exact in float64.
    columns = np.tril(scipy.linalg.toeplitz(RunningSums(bins=bins).factor().coefficients)).T.astype(np.float64)
    products = columns @ columns.T
    squares = np.diagonal(products)
    apart = squares[:, None] + squares[None, :] - 2.0 * products
    one, other = divmod(int(apart.argmax()), bins)
    return int(apart.max()), min(one, other), max(one, other)


def _root(squared: Fraction) -> float:
    """Return the square root, rounded up."""
    root = math.sqrt(squared)
    while Fraction(root) ** 2 < squared:
        root = math.nextafter(root, math.inf)
    return root


def squared_sensitivity(layout: Layout, neighbours: Neighbours, *, running: bool, mean_weight: float) -> Fraction:
    """Return Δ² of the encoded vector, exactly, with w whole: 64 through the factor and 1 for plain counts.

    Parameters
    ----------
    layout : Layout
    neighbours : Neighbours
    running : bool
    mean_weight : float
        r = v/w.
    """
    weight, first = _norm(layout.bins, running)
    farthest = _farthest(layout.bins, running)[0]
    centred = (weight * Fraction(mean_weight)) ** 2 if layout.centred else Fraction(0)
    if neighbours is not Neighbours.REPLACE_ONE:
        return layout.lines * (first + centred / 4) + layout.outside * weight**2
    never, lacking = farthest + centred, first + weight**2 + centred / 4
    some = len(layout.lacking)
    return (layout.lines - some) * never + some * max(never, lacking) + layout.outside * 2 * weight**2


def rank_error(rows: int, columns: int, mu: float, bins: int) -> float:
    """Return q: of running sums, the deviation of a rank's noise over all rows, by the bound √(2d)·‖c‖ on what moves.

    Public: from the number n of rows, of d counted columns, of bins, and the μ of the release. q = √(2d) ‖c‖² / (μ n):
    Δ = √(2d) ‖c‖, and decoding multiplies the noise by at most ‖c‖ again. Ranks are worth learning where it is below
    about 0.1.

    Parameters
    ----------
    rows, columns : int
    mu : float
    bins : int
    """
    weight, first = _norm(bins, True)
    return math.sqrt(2.0 * columns) * first / weight**2 / (mu * max(rows, 1))


def bins_for(rows: int, columns: int, mu: float) -> int:
    """Return the number T of bins of each number: a power of two from 32 to 1,024, by public numbers alone.

    The most of which ``T q`` (:func:`rank_error`) is at most 12. A bin then holds, of rows that are spread evenly, at
    least a twelfth of the noise of a running sum: finer ones cost little (‖c‖² grows like ln T/π), and where ranges are
    loose or values are spikes they are what tells values apart; isotonic regression pools them elsewhere. All are
    powers of two of equal parts of one range, so that releases of different budgets and sizes nest.

    Parameters
    ----------
    rows, columns : int
        n and d, all counted columns.
    mu : float
        Of the release.
    """
    bins = MOST_BINS
    while bins > _FEWEST_BINS and bins * rank_error(rows, columns, mu, bins) > _BINS_FOR_NOISE:
        bins //= 2
    return bins


@register("evaluators", "column-histograms")
@dataclass(frozen=True, kw_only=True)
class ColumnHistograms(NoisySums):
    """Count the cells of every column and the classes, and add up centred cells, in one vector of integers with noise.

    Features are cells, before rows are scaled (:class:`~dpalgos.columns.Column`).

    Guarantee
    ---------
    mu-GDP, exact. With the weights w of counts and v = r w of centred cells, in d columns of which d' are numbers, a
    numeric label among them, and c the first column of the factor C (the unit matrix where counts are plain): a record
    moves the vector in l2, squared, by at most

    *replace-one*: d' (D w^2 + v^2) + 2 (d - d') w^2, D = max |c_i - c_j|^2 <= 2 |c|^2; of a number whose cells can be
    missing, |c|^2 w^2 + w^2 + v^2/4 where that is more. Plain counts: 2 d w^2 + d' v^2.

    *replace-special*: d' (|c|^2 w^2 + v^2/4) + (d - d') w^2. Plain counts: d w^2 + d' v^2/4.

    Both by the module's proof, which holds for all rows of a person as for a row. Rounded Gaussian noise of scale
    ``sensitivity / mu`` on each integer (see ``mechanisms.distributions``).

    Parameters
    ----------
    budget : GaussianMu
    columns : sequence of Column, or of mappings of ``at``, ``values``, ``missing``; optional
        Which features are cells of what; each feature is a number that is never missing where None.
    bins : int
        T of each number, a power of two from 2 to 1,024 (:func:`bins_for` says how many).
    running : bool
        Whether counts of numbers go through the factor of running sums; plain where only bars are wanted.
    mean_weight : float
        r = v/w, a multiple of 1/64 up to 64; 0 for no sums of cells.
    label_range : (float, float), optional
        Of numeric labels: the label is then a number that is counted, clipped to it. Of no use where there are classes.

    References
    ----------
    Li, Miklau, Hay, McGregor, Rastogi, VLDB Journal 24 (2015) (factors of one table's counts); Dong, Roth, Su,
    "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    columns: Sequence[Column | Mapping[str, int]] | None = None
    bins: int = field(default=64, metadata=at_least(2))
    running: bool = True
    mean_weight: float = field(default=0.0, metadata=between(0.0, 64.0))
    label_range: tuple[float, float] | None = None
    fewest_classes: ClassVar[int] = 1
    source: ClassVar[str] = "ours; Fichtenberger, Henzinger, Upadhyay 2023 (the factor)"
    people: ClassVar[str] = (
        "each of k rows adds ⌊U/k⌋ of the U units that one record adds, and that share of its centred cells, rounded "
        "towards zero"
    )
    measured: ClassVar[str] = "counts through the factor of each column and centred sums, l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins & (self.bins - 1) or self.bins > MOST_BINS:
            raise ParameterError(
                f"bins is {self.bins}; it must be a power of two up to {MOST_BINS}, so that bins of different releases "
                "nest"
            )
        if not float(64.0 * self.mean_weight).is_integer():
            raise ParameterError(f"mean_weight is {self.mean_weight}; it must be a multiple of 1/64")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(map(Column.of, self.columns)))
        if self.label_range is not None:
            low, high = (float(end) for end in self.label_range)
            if not (math.isfinite(high - low) and low < high):
                raise ParameterError(f"label_range is {[low, high]}; it must be two finite numbers, low < high")
            object.__setattr__(self, "label_range", (low, high))

    def check(self, setting: Setting) -> None:
        """Raise where columns lie beyond the features, or sums would leave 64-bit integers."""
        super().check(setting)
        self.layout(setting)
        # No entry of a factor is above w, and a person's rows add no more than a record's.
        if setting.rows * self.units(setting) * self.weight * max(1.0, self.mean_weight) >= _ROOM:
            raise ParameterError(
                f"{setting.rows} records in units of {self.units(setting)} exceed 64-bit integers; declare fewer rows "
                "per person"
            )

    def layout(self, setting: Setting) -> Layout:
        """Return what stands where in the vector."""
        columns, real = columns_of(self.columns, setting.dimension), setting.classes <= 1
        return Layout(
            numbers=tuple(column for column in columns if column.is_number),
            categories=tuple(column for column in columns if not column.is_number),
            bins=self.bins,
            classes=0 if real else setting.classes,
            label_range=self.label_range if real else None,
            centred=self.mean_weight > 0,
        )

    @property
    def weight(self) -> int:
        """The integer w that a record adds to a plain count, of single rows in units of 1: 64 with running sums."""
        return _norm(self.bins, self.running)[0]

    def sums(self) -> RunningSums:
        """Return what each line is released through, where counts are not plain."""
        return RunningSums(bins=self.bins)

    def units(self, setting: Setting) -> int:
        """Return U: for people, and for centred cells, so fine that what is cut does not matter."""
        people = 0 if setting.rows_per_person == 1 else 10 + (setting.rows_per_person - 1).bit_length()
        return 1 << (people + (_GRAIN if self.mean_weight > 0 else 0))

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the encoded vector, in l2, rounded up."""
        layout = self.layout(setting)
        return _root(
            squared_sensitivity(layout, setting.neighbours, running=self.running, mean_weight=self.mean_weight)
        )

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the length of the vector."""
        return (sum(self.layout(setting).sizes),)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return rows in the bins whose columns are farthest apart, or one that misses cells; the first against null.

        Of categories the first value against the second one, or against a missing cell where there is one.
        """
        layout = self.layout(setting)
        left, right = np.zeros((2, setting.dimension))
        replaced = setting.neighbours is Neighbours.REPLACE_ONE
        weight, first = _norm(self.bins, self.running)
        farthest, *places = _farthest(self.bins, self.running)
        one, other = places if replaced else (0, 0)
        # In the first bin a cell at its lower edge is farthest from the middle, in the last one at its upper edge.
        ends = one / self.bins, 1.0 if other == self.bins - 1 else (other + 0.5) / self.bins
        centred = (weight * self.mean_weight) ** 2
        lost = first + weight**2 + centred / 4 > farthest + centred * (ends[1] - ends[0]) ** 2
        for column in layout.numbers:
            left[column.at], right[column.at] = ends
            if column.missing is not None and replaced and lost:
                left[column.at], right[column.missing] = 0.0, 1.0
        for column in layout.categories:
            left[column.at] = 1.0
            if column.values != 1:
                right[column.at + 1] = 1.0
        labels = (0.0, 1.0)
        if layout.label_range is not None:
            low, high = layout.label_range
            labels = (low + ends[0] * (high - low), low + ends[1] * (high - low))
        return one_row_apart(setting, left, right, labels=labels)

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts, in units, and centred sums of a block; lines do not yet go through the factor."""
        layout = self.layout(setting)
        cells, missing = numbers_of(features, layout.numbers)
        if layout.label_range is not None:
            low, high = layout.label_range
            label = (np.clip(np.asarray(labels, dtype=np.float64), low, high) - low) / (high - low)
            cells = np.concatenate([cells, label[:, None]], axis=1)
            missing = np.pad(missing, ((0, 0), (0, 1)))
        lines, span = layout.lines, layout.bins + 1
        # A missing cell's bin is the one behind the last.
        places = np.where(missing, layout.bins, bins_of(cells, layout.bins)) + span * np.arange(lines)
        counts = counted_cells(places, parts, (lines, span))
        centred = np.zeros(0, dtype=np.int64)
        if layout.centred:
            # Exact where they are multiplied: a whole number below 2^53 and a multiple of 1/64.
            times = (parts * (self.weight * self.mean_weight))[:, None]
            centred = np.trunc(np.where(missing, 0.0, times * (cells - 0.5))).astype(np.int64).sum(axis=0)
        values = [
            counted_cells(value_of(features, column), parts, (1 + (column.values or 0),))
            for column in layout.categories
        ]
        classes = centred[:0]
        if layout.classes:
            classes = counted_cells(np.asarray(labels, dtype=np.int64), parts, (layout.classes,))
        missed = counts[list(layout.lacking), -1]
        return np.concatenate([counts[:, :-1].ravel(), missed, centred, *values, classes])

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact vector: each line through its factor, the other counts times w."""
        layout = self.layout(setting)
        lines, missed, centred, *others = np.split(
            super().contribution(state, rows, setting), np.cumsum(layout.sizes)[:-1]
        )
        if self.running:
            lines = self.sums().encode(lines.reshape(layout.lines, layout.bins)).ravel()
        weight = self.weight
        return np.concatenate([lines, weight * missed, centred, *(weight * counts for counts in others)])

    def result(self, state: Ints, setting: Setting) -> Statistic:
        """Return the noisy vector in rows and shares of a range: running sums of each line, counts, sums of cells − ½.

        Negative numbers are left as they are.
        """
        layout = self.layout(setting)
        lines, missed, centred, *others = layout.parts(state / self.units(setting))
        lines = lines.reshape(layout.lines, layout.bins)
        running = self.sums().decode(lines) if self.running else np.cumsum(lines, axis=1)
        cells = centred / (self.weight * self.mean_weight) if layout.centred else centred
        counts = [counts / self.weight for counts in others]
        return Statistic(values=np.concatenate([running.ravel(), missed / self.weight, cells, *counts]))
