"""The stages of a synthesis, by public numbers alone: shares of the budget, tables of each stage, their cells.

*Stages.* (a) One-way counts. (b) All pairs of columns × class in a few groups, from which the tree is chosen. (c) One
table per column: (column, parent, class), or (column, class) where it has no parent. The number of tables of each
stage, and so its sensitivity, does not depend on what an earlier one released.

*When (b) is worth its share.* Stage (b) has two uses. C and F are the numbers of groups per column in (b) and (c), as
means over the columns: a category has no more groups than declared values.

1. It sees dependence where its cells hold more rows than their noise: with P pairs, n/(C² K) rows per cell against a
   deviation of √(2P)/μ_b.
2. Each of its tables, summed, says how many rows of each class a column's C groups hold. The d − 1 tables of a column
   together say it with a variance of about C d/μ_b², and the table of stage (c) says each of F fine groups with
   2d/μ_c². Where a fine group holds fewer rows of a class than two deviations, n/(F K) < 2 √(2d)/μ_c, and a coarse one
   at least one deviation, n/(C K) ≥ √(C d)/μ_b, the coarse counts improve the margins, whether an edge is found or not.

Where neither holds, (b) is left out, and its share goes to (c): the columns are drawn independently given the class.

*Many columns.* P grows with the square of the number d of columns and μ_b stays. Above 60 columns (b) counts the pairs
that are named alone; where none is, it is left out.

Shares of μ² and both thresholds were chosen on training rows of Adult, nursery, letter and churn at ε from 0.1 to 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpalgos.columns import Column
from dpalgos.parameters import ParameterError

MOST_COLUMNS = 60
"""Of which all pairs are counted."""
PAIR_PARTS, PARTS, PARENT_PARTS, LABEL_PARTS = 4, 24, 10, 16
"""Groups per column in stage (b), and in (c) of a column and of its parent; parts of a numeric label's range."""
_SHARES = (0.35, 0.15)
# Deviations of noise, in rows of a class in a fine group.
_SPARSE = 2.0
# Of numbers above, by the size of all tables of stage (c).
_MOST_CELLS = 2**21


@dataclass(frozen=True, slots=True)
class Stages:
    """Releases of a synthesis.

    Parameters
    ----------
    shares : tuple of float
        Of μ², of stages (a), (b) and (c), of sum 1; 0 where a stage is left out or was paid before.
    pairs : tuple of (int, int)
        Of columns, of stage (b); none where it is left out.
    parts, parent_parts : int
        Groups of stage (c).
    label_parts : int
        K.
    reason : str
        Why there is a tree, or none.
    """

    shares: tuple[float, float, float]
    pairs: tuple[tuple[int, int], ...]
    parts: int
    parent_parts: int
    label_parts: int
    reason: str

    def counting_pairs(self, columns: int, label_range: Sequence[float] | None = None) -> dict[str, object]:
        """Return the parameters of stage (b), a release of ``pair-counts`` of rows seen through ``pair-groups``."""
        return self._counting(
            columns, [[one, other, columns] for one, other in self.pairs], [PAIR_PARTS] * columns, label_range
        )

    def counting_tree(self, columns: int, label_range: Sequence[float] | None = None) -> dict[str, object]:
        """Return the parameters of stage (c), a release of ``pair-counts`` of rows seen through ``tree-groups``."""
        if not self.pairs:
            return self._counting(
                columns, [[at, columns] for at in range(columns)], [self.parts] * columns, label_range
            )
        tables = [[at, columns + at, 2 * columns] for at in range(columns)]
        return self._counting(2 * columns, tables, [self.parts] * columns + [self.parent_parts] * columns, label_range)

    def _counting(
        self, features: int, tables: Sequence[Sequence[int]], cells: Sequence[int], label_range: Sequence[float] | None
    ) -> dict[str, object]:
        # Group g of the most that any feature has is (g + ½) of these parts.
        most = max(cells)
        return {
            "columns": [Column(at=at).to_json() for at in range(features)],
            "tables": [list(table) for table in tables],
            "edges": [[cell / most for cell in range(1, each)] for each in cells],
            "label_range": None if label_range is None else list(label_range),
            "label_edges": []
            if label_range is None
            else [part / self.label_parts for part in range(1, self.label_parts)],
        }


def stages_for(
    rows: int,
    columns: int,
    classes: int,
    mu: float,
    *,
    paid: bool = False,
    named: Sequence[tuple[int, int]] = (),
    values: Sequence[int] = (),
    tree: bool | None = None,
) -> Stages:
    """Return the stages of a synthesis.

    Parameters
    ----------
    rows, columns : int
        n and d.
    classes : int
        K; 1 where the label is a number.
    mu : float
        Of the whole plan; of secure sums of several parties, what the noise of all is worth.
    paid : bool
        Whether one-way counts were released before.
    named : sequence of (int, int)
        Pairs of columns to be counted instead of all; a tree's edges are then chosen among these.
    values : sequence of int
        How many declared values each category has; the other columns are numbers.
    tree : bool, optional
        Whether pairs are counted. Default: by the rule.

    Raises
    ------
    ParameterError
        For a pair of columns that are not there.
    """
    for one, other in named:
        if not 0 <= min(one, other) < max(one, other) < columns:
            raise ParameterError(f"a pair is ({one}, {other}); name two different ones of {columns} columns")
    label_parts = classes if classes > 1 else LABEL_PARTS
    pairs = tuple(sorted({(min(pair), max(pair)) for pair in named}))
    if not pairs and columns <= MOST_COLUMNS:
        pairs = tuple(itertools.combinations(range(columns), 2))
    share, pair_share = 0.0 if paid else _SHARES[0], _SHARES[1]
    reason = (
        "No pairs are counted: one column has no pairs."
        if columns == 1
        else f"No pairs are counted: {columns} columns are more than {MOST_COLUMNS}, and no pair is named."
    )
    if pairs:
        groups, fine_groups = (
            math.fsum([(columns - len(values)) * most, *(min(most, one) for one in values)]) / columns
            for most in (PAIR_PARTS, PARTS)
        )
        cell = rows / (groups**2 * label_parts)
        noise = math.sqrt(2.0 * len(pairs)) / (mu * math.sqrt(pair_share))
        fine, of_fine = rows / (fine_groups * label_parts), math.sqrt(2.0 * columns / (1.0 - share - pair_share)) / mu
        coarse, of_coarse = groups * cell, math.sqrt(groups * columns / pair_share) / mu
        told, sparse = cell >= noise, fine < _SPARSE * of_fine and coarse >= of_coarse
        reason = (
            f"{'Pairs' if told or sparse else 'No pairs'} are counted: a cell of a pair's table ({len(pairs)} in all) "
            f"holds {cell:.3g} rows on average, {'at least' if told else 'less than'} its noise of {noise:.3g}"
        )
        if sparse and not told:
            reason += (
                f"; but its sums, {coarse:.3g} rows at a noise of {of_coarse:.3g}, improve counts by class, "
                f"{fine:.3g} rows at a noise of {of_fine:.3g}"
            )
        reason += "."
        pairs = pairs if (told or sparse if tree is None else tree) else ()
    if not pairs:
        pair_share = 0.0
    parts, parent_parts = PARTS, PARENT_PARTS if pairs else 1
    # Each group of pairs is split into groups of its column, so these are as many at least.
    while columns * parts * parent_parts * label_parts > _MOST_CELLS and parts >= 2 * PAIR_PARTS:
        parts //= 2
        parent_parts = max(parent_parts // 2, 2) if pairs else 1
    rest = 1.0 - share - pair_share
    return Stages((share, pair_share, rest), pairs, parts, parent_parts, label_parts, reason)
