"""Neighbouring data sets that a release is audited on: its proof's worst pair, and others made of it."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from dpalgos.algorithms import (
    Algorithm,
    NeighbouringPair,
    Refused,
    admission,
    of_people,
)
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats
from dpalgos.trainers.gradient_descent import GradientSumTrainer

_LONG = 1e3
# Rows of a person, where people are taken.
_HEAVY = 50


def audited_pairs(algorithm: Algorithm, setting: Setting) -> Iterator[tuple[str, NeighbouringPair, Algorithm, Setting]]:
    """Yield neighbours by name, with the algorithm to run on them and its setting."""
    worst = algorithm.neighbouring_pair(setting)
    yield "the worst pair of the proof", worst, algorithm, setting
    yield "the same, too long by far", _mapped(worst, lambda features: _LONG * features), algorithm, setting
    if setting.dimension > 1:
        yield "the same, turned to move all features", _mapped(worst, _turned), algorithm, setting
    if not isinstance(admission(type(algorithm)), Refused) and setting.rows_per_person == 1:
        heavy = dataclasses.replace(setting, rows_per_person=_HEAVY)
        yield f"the same, of a person with {_HEAVY} rows", of_people(worst, _HEAVY), algorithm, heavy
    if setting.classes > 1 and setting.neighbours is Neighbours.REPLACE_ONE:
        labels = worst.left.labels.copy()
        labels[0] = 1 - labels[0]
        flipped = NeighbouringPair(worst.left, ArrayRows(worst.left.features, labels), worst.party)
        yield "its left row with either label", flipped, algorithm, setting
    if isinstance(algorithm, GradientSumTrainer) and setting.classes == 2 and setting.dimension > 1:
        canaries = _canary_gradients(algorithm, setting, worst.party)
        yield "canary gradients of full length at steep weights", *canaries, setting


def _mapped(pair: NeighbouringPair, turn: Callable[[Floats], Floats]) -> NeighbouringPair:
    left, right = (ArrayRows(turn(rows.features), rows.labels) for rows in (pair.left, pair.right))
    return NeighbouringPair(left, right, pair.party)


def _turned(features: Floats) -> Floats:
    """Reflect rows so that the first feature's axis becomes (1, −1, 1, …)/√d; norms and angles stay."""
    dimension = features.shape[1]
    normal = -np.where(np.arange(dimension) % 2, -1.0, 1.0) / np.sqrt(dimension)
    normal[0] += 1.0
    return np.asarray(features - 2.0 * np.outer(features @ normal, normal) / (normal @ normal))


def _canary_gradients(
    algorithm: GradientSumTrainer[Floats], setting: Setting, party: int
) -> tuple[NeighbouringPair, Algorithm]:
    """Return rows whose gradients are as long as may be and opposite, and the descent begun at weights where they are.

    The server's first weights are public, and the guarantee holds for any weights. At steep weights along the first
    feature both rows lie far on the wrong side, where the slopes of all bounded losses are at their ends.
    """
    lean = 0.05
    side = float(np.sqrt(1.0 - lean**2))
    left, right = np.zeros((2, setting.sizes[party], setting.dimension))
    left[0, :2], right[0, :2] = (lean, side), (lean, -side)
    labels = np.full(setting.sizes[party], NULL_LABEL)
    labels[0] = 0
    other = labels.copy()
    if setting.neighbours.records == 1:
        right[0], other[0] = 0.0, NULL_LABEL
    pair = NeighbouringPair(ArrayRows(left, labels), ArrayRows(right, other), party)

    def moved(sign: float) -> tuple[float, _Started]:
        started = _Started(algorithm, _steep(algorithm, setting, sign * _LONG))
        sums = [algorithm.contribution(started.first, rows, setting) for rows in (pair.left, pair.right)]
        return float(np.linalg.norm((sums[0] - sums[1]).astype(np.float64))), started

    return pair, cast(Algorithm, max((moved(sign) for sign in (1.0, -1.0)), key=lambda each: each[0])[1])


def _steep(algorithm: GradientSumTrainer[Floats], setting: Setting, length: float) -> Floats:
    """Return a first state whose weights are long along the first feature, opposite for opposite classes."""
    state = algorithm.initial(setting)
    weights = algorithm.weights(state).copy()
    weights[:, 0] = length * np.linspace(1.0, -1.0, len(weights)) if len(weights) > 1 else length
    return weights if isinstance(state, np.ndarray) else dataclasses.replace(state, weights=weights)


@dataclass(frozen=True, slots=True)
class _Started:
    """A descent with another first state."""

    algorithm: GradientSumTrainer[Floats]
    first: Floats

    def initial(self, setting: Setting) -> Floats:
        return self.first

    def __getattr__(self, name: str) -> object:
        return getattr(self.algorithm, name)
