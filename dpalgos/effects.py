"""Effects of columns: a model's scores along each histogram, the other columns at their released medians.

From weights and released counts alone: the rows that are scored are made up of bins, values and medians, and nothing is
measured on anybody's rows, so this is post-processing. Effects do not add up to a row's score: rows are brought to norm
1, so that what one column does depends on how large the functions of the others are; a curve is that of a row which is
ordinary in all else, and no more. Whatever the map is, its scores there are evaluated, not simulated: of Fourier
features too they are the curve itself.

Pairs of columns are listed by the weights of their products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpalgos.column_margins import quartiles
from dpalgos.columns import Column
from dpalgos.features.column_functions import ColumnFunctions
from dpalgos.histograms import ColumnCounts
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats


@dataclass(frozen=True)
class Effect:
    """Scores along one column.

    Parameters
    ----------
    column : Column
    places : array (m,)
        Middles of a number's bins in shares of its range, or the places of a category's values.
    scores : array (m, K)
        Of rows that lie there, and at the medians in all other columns.
    counts : array (m,)
        Rows there, noisy.
    missing : array (K,) or None
        The score where the cell is missing; None where it cannot be.
    """

    column: Column
    places: Floats
    scores: Floats
    counts: Floats
    missing: Floats | None


def ordinary_row(counts: ColumnCounts, dimension: int) -> Floats:
    """Return a made-up row (dimension,): numbers at their released medians, categories at their most frequent value."""
    layout, row = counts.layout, np.zeros(dimension)
    medians = quartiles(counts, [0.5]).values[:, 0]
    for column, median in zip(layout.numbers, medians, strict=False):
        row[column.at] = _feature(column, median)
    for column, noisy in zip(layout.categories, counts.categories, strict=True):
        row[column.at + int(noisy[:-1].argmax())] = column.high
    return row


def _feature(number: Column, cell: Floats | float) -> Floats | float:
    """Return the feature of a number's cell, in shares of its range."""
    return number.low + (number.high - number.low) * cell


def effects(
    score: Callable[[Floats], Floats], counts: ColumnCounts, dimension: int, bins: int | None = None
) -> list[Effect]:
    """Return the effect of each number, and then of each category, on the scores of a model.

    Parameters
    ----------
    score : callable
        Of rows of cells (m, dimension): the model's scores (m, K), all maps included.
    counts : ColumnCounts
        Released; a real label among them has no effect.
    dimension : int
        Features of a row of cells.
    bins : int, optional
        Of a number's curve; those of the counts by default.

    Raises
    ------
    ParameterError
        If the columns reach beyond the features.
    """
    shown = counts if bins is None else counts.coarser(bins)
    layout = shown.layout
    columns = (*layout.numbers, *layout.categories)
    if any(place >= dimension for column in columns for place in column.features):
        raise ParameterError(f"the columns reach beyond {dimension} features; give the features of a row of cells")
    row = ordinary_row(counts, dimension)
    found = []
    for line, column in enumerate(layout.numbers):
        places = (np.arange(shown.bins) + 0.5) / shown.bins
        rows = np.tile(row, (shown.bins, 1))
        rows[:, column.at] = _feature(column, places)
        missing = None
        if column.missing is not None:
            lost = row.copy()
            lost[column.missing] = 1.0
            missing = np.asarray(score(lost[None]))[0]
        found.append(Effect(column, places, np.asarray(score(rows)), shown.counts[line], missing))
    for column, noisy in zip(layout.categories, shown.categories, strict=True):
        values = int(column.values or 0)
        rows = np.tile(row, (values + 1, 1))
        rows[:, column.at : column.at + values] = column.high * np.eye(values + 1, values)
        scores = np.asarray(score(rows))
        found.append(Effect(column, np.arange(values, dtype=np.float64), scores[:-1], noisy[:-1], scores[-1]))
    return found


def pairs_by_weight(weights: Floats, functions: ColumnFunctions, most: int = 10) -> list[tuple[int, int, float]]:
    """Return the pairs of numbers whose products weigh most in a linear model, the heaviest first.

    Parameters
    ----------
    weights : array (K, D)
        Of a linear model of rows behind the map.
    functions : ColumnFunctions
    most : int
        Pairs at most.

    Returns
    -------
    list of (int, int, float)
        Places among the numbers, and the l2 norm over the K scores and over the pair's products, cubic ones included,
        each with its weight in the map.
    """
    squares: dict[tuple[int, int], float] = {}
    for place, term in enumerate(functions.terms()):
        if term.function in ("product", "cubic-product"):
            one, other = sorted(term.columns)
            own = float(np.square(weights[:, place] * functions.weights[place]).sum())
            squares[one, other] = squares.get((one, other), 0.0) + own
    heaviest = sorted(squares, key=lambda pair: (-squares[pair], pair))[:most]
    return [(one, other, squares[one, other] ** 0.5) for one, other in heaviest if squares[one, other] > 0]
