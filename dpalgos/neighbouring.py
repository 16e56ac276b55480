"""Pairs of neighbouring data sets, and how much of a stated sensitivity a pair attains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Setting
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, Rows


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


def of_people(pair: NeighbouringPair, rows: int) -> NeighbouringPair:
    """Return neighbours that differ in one person, who has so many of the row in which they differed."""

    def side(single: ArrayRows) -> ArrayRows:
        times = np.where(np.arange(single.count) == 0, rows, 1)
        features, labels = np.repeat(single.features, times, axis=0), np.repeat(single.labels, times)
        return ArrayRows(features, labels, shares=np.repeat(times, times), people=single.count)

    return NeighbouringPair(left=side(pair.left), right=side(pair.right), party=pair.party)


def antipodal_pair(setting: Setting) -> NeighbouringPair:
    """Return e₁ against −e₁ in one class: ‖x − z‖ = 2, the most there is; against a null record, 1."""
    row = np.eye(1, setting.dimension)[0]
    return one_row_apart(setting, row, -row)


def orthogonal_pair(setting: Setting) -> NeighbouringPair:
    """Return e₁ against e₂ (zero where there is one feature): ‖xxᵀ − zzᵀ‖_F = √2, the most; against null, 1."""
    rows = np.eye(2, setting.dimension)
    return one_row_apart(setting, rows[0], rows[1])


@runtime_checkable
class Calibrated(Protocol):
    """An algorithm whose noise is calibrated to the sensitivity of one statistic of the rows.

    ``sensitivity`` is the supremum over neighbours under the relation of the setting, null records included, in the
    units of ``statistic``; rounding to a grid, where there is any, is added by the noise's distribution.
    """

    measured: ClassVar[str]
    """The statistic and the norm in which it moves, for people."""
    norm: ClassVar[int]
    """Order of that norm, 1 or 2."""

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the statistic, at most."""

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the exact statistic of one party's rows, without noise: for made-up rows, never for release."""

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the neighbours that the proof says are worst."""


def moved(algorithm: Calibrated, setting: Setting, pair: NeighbouringPair) -> float:
    """Return how far the statistic moves from one neighbour to the other, in its norm.

    Parameters
    ----------
    algorithm : Calibrated
    setting : Setting
    pair : NeighbouringPair
        Of made-up rows; the other parties' part of the statistic is the same on both sides.
    """
    difference = algorithm.statistic(pair.left, setting) - algorithm.statistic(pair.right, setting)
    return float(np.linalg.norm(difference.ravel(), ord=algorithm.norm))


def attained(algorithm: Calibrated, setting: Setting) -> float:
    """Return the share of the sensitivity by which the algorithm's own pair of neighbours moves its statistic."""
    return moved(algorithm, setting, algorithm.neighbouring_pair(setting)) / algorithm.sensitivity(setting)
