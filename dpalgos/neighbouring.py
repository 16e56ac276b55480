"""Pairs of neighbouring data sets, made up: what a sensitivity is attained on and an audit tells apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Setting
from dpalgos.rows import ArrayRows, Floats

__all__ = ["NeighbouringPair", "antipodal_pair", "one_row_apart", "orthogonal_pair"]


@dataclass(frozen=True, slots=True)
class NeighbouringPair:
    """Two data sets of one party that differ in one row; the other parties' rows are the same on both sides.

    Parameters
    ----------
    left, right : ArrayRows
        Of the party that differs, as many rows as ``setting.sizes[party]`` says.
    party : int
        Its position in ``setting.sizes``.
    """

    left: ArrayRows
    right: ArrayRows
    party: int = 0


def one_row_apart(
    setting: Setting, left: Floats, right: Floats, *, labels: tuple[int, int] = (0, 0), party: int | None = None
) -> NeighbouringPair:
    """Return data sets whose first rows are ``left`` and ``right``; all others are zero and of class 0.

    Parameters
    ----------
    setting : Setting
    left, right : array (d,)
    labels : (int, int)
        Of the two rows.
    party : int, optional
        Whose rows; by default the smallest party that has any, where one row weighs most.

    Raises
    ------
    ParameterError
        If that party, or every party, has no rows.
    """
    inhabited = [index for index, size in enumerate(setting.sizes) if size > 0]
    if party is None and inhabited:
        party = min(inhabited, key=lambda index: setting.sizes[index])
    if party is None or setting.sizes[party] < 1:
        raise ParameterError(f"the parties' sizes are {setting.sizes}; give one row at least, to differ in")

    def side(row: Floats, label: int) -> ArrayRows:
        features, classes = np.zeros((setting.sizes[party], len(row))), np.zeros(setting.sizes[party], dtype=np.int64)
        features[0], classes[0] = row, label
        return ArrayRows(features, classes)

    return NeighbouringPair(left=side(left, labels[0]), right=side(right, labels[1]), party=party)


def antipodal_pair(setting: Setting) -> NeighbouringPair:
    """Return e₁ against −e₁ in one class: ‖x − z‖ = 2, so a gradient r ⊗ x with equal residuals moves by 2‖r‖."""
    row = np.eye(1, setting.dimension)[0]
    return one_row_apart(setting, row, -row)


def orthogonal_pair(setting: Setting) -> NeighbouringPair:
    """Return e₁ against e₂ (against zero where there is one feature): ‖xxᵀ − zzᵀ‖_F = √2, the most there is."""
    rows = np.eye(2, setting.dimension)
    return one_row_apart(setting, rows[0], rows[1])
