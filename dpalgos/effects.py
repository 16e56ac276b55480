"""Effects of columns: a model's scores along each column, the other columns at a reference.

From weights, declarations and released counts alone: the scored rows are synthetic: parts of ranges, declared values
and released medians. No private row is read, so this is post-processing without privacy cost. For any map, its scores
there are evaluated, not simulated: of Fourier features too they are the curve itself.

*The reference* is a made-up row: where columns were counted, each number at its released median and each category at
its most frequent value by the noisy counts; where nothing was counted, numbers at the middle of their declared range
and categories at their first declared value. There all other numbers are about 0, so that rows are short before they
are brought to norm 1 and one number moves the score far.

*A number's curve* has equal parts of the declared range. A part's score is the mean over the bins in it by their
released masses, so that a part of which most cells are one value says what the model makes of that value. A number of a
few declared values in equal steps has a score for each.

Effects do not add up to a row's score: rows are brought to norm 1, so that what one column does depends on how large
the functions of the others are, and products depend on both columns. A curve is that of a row which is ordinary in all
else, and no more. Pairs of columns are listed by the weights of their products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpalgos.column_margins import (
    Margins,
    bars,
    category_counts,
    most_bars,
    quartiles,
    rare_together,
    value_counts,
)
from dpalgos.columns import Column, bins_of
from dpalgos.features.column_functions import ColumnFunctions
from dpalgos.histograms import ColumnCounts
from dpalgos.models import AffineMap, LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats

POINTS = 64
"""Parts of a number's range at most: a power of two."""
_BARS = 32
# Numbers of made-up rows that are scored at a time: rows of many hashed columns are wide.
_ENTRIES = 2**22


@dataclass(frozen=True)
class Effect:
    """Scores along one column.

    Parameters
    ----------
    column : Column
    scores : array (m, K)
        Of parts of a number's range, from low to high, or of values.
    rows : Margins or None
        Noisy counts of rows with their margins, (m,), of each part or value; None where nothing was counted.
    rare_rows : Margins or None
        Of the rows with any of the rare values together, (1,); None of a number, and where nothing was counted.
    bars : int
        How many bars are worth drawing, of so many parts or values together each; 0 for none
        (:func:`dpalgos.column_margins.most_bars`).
    rare : array (m,)
        1 for a value whose count is too small to be told from none: these are shown, and encoded, as "other".
    missing : array (K,) or None
        The score where the cell is missing; None where it cannot be, or nothing says so.
    spread : float
        Standard deviation of the scores by the noisy counts (of all parts and values alike, where nothing was counted),
        the largest of the K.
    bar_rows : Margins or None
        Noisy counts of the bars with their margins, (bars,); None of values, and where nothing was counted.
    """

    column: Column
    scores: Floats
    rows: Margins | None
    rare_rows: Margins | None
    bars: int
    rare: Floats
    missing: Floats | None
    spread: float
    bar_rows: Margins | None = None


def reference_shares(columns: Sequence[Column], counts: ColumnCounts | None) -> list[float]:
    """Return where the reference lies on each column.

    Shares of a number's range; of a category the place of a value.

    Raises
    ------
    ParameterError
        If the counts belong to other columns.
    """
    if counts is None:
        return [0.5 if column.is_number else 0.0 for column in columns]
    layout = counts.layout
    numbers = [column for column in columns if column.is_number]
    categories = [column for column in columns if not column.is_number]
    if layout.numbers != tuple(numbers) or layout.categories != tuple(categories):
        raise ParameterError("the counts are for different columns than the model's; give the counts that its map uses")
    medians = iter(quartiles(counts, [0.5]).values[:, 0].tolist())
    frequent = iter([float(noisy[:-1].argmax()) for noisy in counts.categories])
    return [next(medians if column.is_number else frequent) for column in columns]


def reference_row(columns: Sequence[Column], missing: Floats, counts: ColumnCounts | None = None) -> Floats:
    """Return the features of the reference, (dimension,).

    Parameters
    ----------
    columns : sequence of Column
    missing : array (dimension,)
        Features of a row whose cells are all missing: what is in no column stays as it is there.
    counts : ColumnCounts, optional
        Released, of these columns; a numeric label among them is ignored.

    Raises
    ------
    ParameterError
        If the counts belong to other columns, or columns reach beyond the features.
    """
    row = missing.copy()
    last = max((place for column in columns for place in column.features), default=-1)
    if last >= len(row):
        raise ParameterError(f"columns extend to feature {last}, and rows have {len(row)}; give encoded rows")
    for column, share in zip(columns, reference_shares(columns, counts), strict=True):
        if column.missing is not None:
            row[column.missing] = 0.0
        if column.is_number:
            row[column.at] = column.low + share * (column.high - column.low)
        else:
            row[column.at + int(share)] = column.high
    return row


Score = Callable[[Floats], Floats]


def effects(
    score: Score,
    columns: Sequence[Column],
    missing: Floats,
    counts: ColumnCounts | None = None,
    steps: Sequence[int] | None = None,
    parts: Sequence[int] | None = None,
) -> list[Effect]:
    """Return the effect of each column on the scores of a model.

    Parameters
    ----------
    score : callable
        Of rows as they are encoded, (m, dimension): the model's scores (m, K), all maps included.
    columns : sequence of Column
        Of such a row.
    missing : array (dimension,)
        Features of a row whose cells are all missing.
    counts : ColumnCounts, optional
        Released, of these columns; without any all parts and values count alike.
    steps : sequence of int, optional
        How many values in equal steps of its range a number has; 0 for any number within it.
    parts : sequence of int, optional
        In how many parts a number's range goes at most, powers of two; :data:`POINTS` for all by default.

    Raises
    ------
    ParameterError
        As :func:`reference_row` does.
    """
    row = reference_row(columns, missing, counts)
    steps = [0] * len(columns) if steps is None else steps
    parts = [POINTS] * len(columns) if parts is None else parts
    lines = iter(range(len(columns)))
    groups = iter(range(len(columns)))
    found = []
    for column, several, most in zip(columns, steps, parts, strict=True):
        lost = None
        if column.missing is not None or not column.is_number:
            absent = row.copy()
            absent[list(column.features)] = missing[list(column.features)]
            lost = np.asarray(score(absent[None]))[0]
        if not column.is_number:
            found.append(_of_values(score, row, column, counts, next(groups), lost))
        elif 2 <= several <= (POINTS if counts is None else counts.bins):
            found.append(_of_steps(score, row, column, several, counts, next(lines), lost))
        else:
            found.append(_of_range(score, row, column, min(most, POINTS), counts, next(lines), lost))
    return found


def _made_up(score: Score, row: Floats, count: int, put: Callable[[Floats, int], None]) -> Floats:
    """Return the scores of so many rows like one, in which ``put`` writes what differs from a place on, (count, K)."""
    step, found = max(_ENTRIES // len(row), 1), []
    for start in range(0, count, step):
        rows = np.tile(row, (min(step, count - start), 1))
        put(rows, start)
        found.append(np.asarray(score(rows)))
    return np.concatenate(found)


def _along(score: Score, row: Floats, column: Column, shares: Floats) -> Floats:
    cells = column.low + shares * (column.high - column.low)

    def put(rows: Floats, start: int) -> None:
        rows[:, column.at] = cells[start : start + len(rows)]

    return _made_up(score, row, len(shares), put)


def _of_range(
    score: Score,
    row: Floats,
    column: Column,
    most: int,
    counts: ColumnCounts | None,
    line: int,
    missing: Floats | None,
) -> Effect:
    if counts is None:
        scores = _along(score, row, column, (np.arange(most) + 0.5) / most)
        return _effect(column, scores, np.ones(most), missing=missing)
    bins = counts.bins
    parts = min(most, bins)
    of_bins = _along(score, row, column, (np.arange(bins) + 0.5) / bins)
    masses = np.diff(counts.shares_below()[line]).reshape(parts, -1)
    total = masses.sum(axis=1, keepdims=True)
    # Where no cell is said to lie all its bins count alike.
    weights = np.where(total > 0, masses / np.where(total > 0, total, 1.0), 1.0 / masses.shape[1])
    scores = np.einsum("pb,pbk->pk", weights, of_bins.reshape(parts, -1, of_bins.shape[1]))
    effect = _effect(column, scores, total[:, 0], rows=_of_line(bars(counts.coarser(parts)), line), missing=missing)
    drawn = most_bars(counts, min(_BARS, parts))
    return replace(effect, bars=drawn, bar_rows=_of_line(bars(counts.coarser(drawn)), line) if drawn else None)


def _of_line(found: Margins, line: int) -> Margins:
    return Margins(found.values[line], found.low[line], found.high[line], found.measured[line])


def _of_steps(
    score: Score,
    row: Floats,
    column: Column,
    steps: int,
    counts: ColumnCounts | None,
    line: int,
    missing: Floats | None,
) -> Effect:
    shares = np.arange(steps) / (steps - 1)
    scores = _along(score, row, column, shares)
    if counts is None:
        return _effect(column, scores, np.ones(steps), missing=missing)
    rows = value_counts(counts, line, bins_of(shares, counts.bins).tolist())
    return _effect(column, scores, rows.values, rows=rows, missing=missing)


def _of_values(
    score: Score,
    row: Floats,
    column: Column,
    counts: ColumnCounts | None,
    group: int,
    missing: Floats | None,
) -> Effect:
    values = int(column.values or 0)

    def put(rows: Floats, start: int) -> None:
        rows[:, column.at : column.at + values] = 0.0
        rows[np.arange(len(rows)), column.at + start + np.arange(len(rows))] = column.high

    scores = _made_up(score, row, values, put)
    if counts is None:
        return _effect(column, scores, np.ones(values), missing=missing)
    found = category_counts(counts)[group]
    known = Margins(found.values[:-1], found.low[:-1], found.high[:-1], found.measured[:-1])
    effect = _effect(column, scores, known.values, rows=known, missing=missing)
    return replace(effect, rare=counts.rare()[group], rare_rows=rare_together(counts)[group])


def _effect(
    column: Column,
    scores: Floats,
    weights: Floats,
    *,
    rows: Margins | None = None,
    missing: Floats | None,
) -> Effect:
    known = weights.sum() > 0
    shares = weights / weights.sum() if known else np.full(len(weights), 1.0 / len(weights))
    variance = shares @ scores**2 - (shares @ scores) ** 2
    return Effect(
        column=column,
        scores=scores,
        rows=rows,
        rare_rows=None,
        bars=0 if rows is None else len(scores),
        rare=np.zeros(len(scores)),
        missing=missing,
        spread=math.sqrt(max(float(variance.max()), 0.0)),
    )


def linear_behind(path: Sequence[object]) -> LinearModel | None:
    """Return the linear model of rows before all of a path's maps but the first; None where they are not affine.

    Parameters
    ----------
    path : sequence
        Maps that rows pass through, and the model last.
    """
    *maps, model = path
    if not isinstance(model, LinearModel):
        return None
    for one in reversed(maps[1:]):
        if not isinstance(one, AffineMap):
            return None
        model = one.before(model)
    return model


def pairs_by_weight(weights: Floats, functions: ColumnFunctions, most: int = 10) -> list[tuple[Column, Column, float]]:
    """Return the pairs of columns whose products weigh most in a linear model, the heaviest first.

    Parameters
    ----------
    weights : array (K, D)
        Of a linear model of rows behind the map.
    functions : ColumnFunctions
    most : int
        Pairs at most.

    Returns
    -------
    list of (Column, Column, float)
        The l2 norm over the K scores and over the pair's products, cubic ones and pairs of values included, each with
        its weight in the map.
    """
    numbers, categories = functions.described()
    squares: dict[tuple[Column, Column], float] = {}
    for place, term in enumerate(functions.terms()):
        if len(term.columns) == 2:
            known = categories if term.values else numbers
            one, other = (known[column] for column in sorted(term.columns))
            own = float(np.square(weights[:, place] * functions.weights[place]).sum())
            squares[one, other] = squares.get((one, other), 0.0) + own
    heaviest = sorted(squares, key=lambda pair: (-squares[pair], pair[0].at, pair[1].at))[:most]
    return [(one, other, squares[one, other] ** 0.5) for one, other in heaviest if squares[one, other] > 0]
