"""Pairs of neighbouring data sets, made up: what a sensitivity is attained on and an audit tells apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Setting
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats


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
    setting: Setting, left: Floats, right: Floats, *, labels: tuple[float, float] = (0, 0)
) -> NeighbouringPair:
    """Return data sets whose first records are ``left`` and ``right``; all others are null records.

    They are rows of the smallest party that has any, where one row weighs most. Under ``replace-special`` the right one
    is a null record too.

    Parameters
    ----------
    setting : Setting
    left, right : array (d,)
    labels : (float, float)
        Of the two rows: class indices, or real labels where the setting has one class.

    Raises
    ------
    ParameterError
        If no party has rows.
    """
    inhabited = [index for index, size in enumerate(setting.sizes) if size > 0]
    if not inhabited:
        raise ParameterError(f"the parties' sizes are {setting.sizes}; give one row at least, to differ in")
    party = min(inhabited, key=lambda index: setting.sizes[index])
    null = NULL_LABEL if setting.classes > 1 else math.nan

    def side(row: Floats, label: float) -> ArrayRows:
        features, known = np.zeros((setting.sizes[party], len(row))), np.full(setting.sizes[party], null)
        features[0], known[0] = row, label
        return ArrayRows(features, known.astype(np.int64) if setting.classes > 1 else known)

    if setting.neighbours.records == 1:
        right, labels = np.zeros_like(right), (labels[0], null)
    return NeighbouringPair(left=side(left, labels[0]), right=side(right, labels[1]), party=party)


def antipodal_pair(setting: Setting) -> NeighbouringPair:
    """Return e₁ against −e₁ in one class: ‖x − z‖ = 2, the most there is; against a null record, 1."""
    row = np.eye(1, setting.dimension)[0]
    return one_row_apart(setting, row, -row)


def orthogonal_pair(setting: Setting) -> NeighbouringPair:
    """Return e₁ against e₂ (zero where there is one feature): ‖xxᵀ − zzᵀ‖_F = √2, the most; against null, 1."""
    rows = np.eye(2, setting.dimension)
    return one_row_apart(setting, rows[0], rows[1])
