"""Events that tell two worlds apart, learnt on one half of an experiment and counted on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.audit.clopper_pearson import epsilon_lower_bound
from dpalgos.rows import Floats

__all__ = ["Event", "Outputs", "bound_of_event", "learn_event"]

Outputs = Mapping[str, Floats]
"""Named observables of T runs, each (T, ·)."""

_THRESHOLDS = 60
# Deterministic outputs differ in their last bits where BLAS adds up in another order.
_DIGITS = 7


@dataclass(frozen=True, slots=True)
class Event:
    """A set of outputs: those whose score exceeds a threshold.

    Parameters
    ----------
    name : str
        Observable and score, for people.
    score : callable
        From observables of T runs to scores (T,).
    threshold : float
    left_is_rarer : bool
        Whether the event is the likelier one on the right neighbour.
    """

    name: str
    score: Callable[[Outputs], Floats]
    threshold: float
    left_is_rarer: bool

    def happens(self, outputs: Outputs) -> NDArray[np.bool_]:
        """Return in which runs the event happened, (T,)."""
        return np.asarray(self.score(outputs) > self.threshold)


def learn_event(left: Outputs, right: Outputs, delta: float, confidence: float) -> Event:
    """Return the event, of many tried, for which these runs show the largest epsilon.

    Tried are, for every observable: equality with a value that one world returns again and again (an output without
    noise), the projection on the difference of the means, likelihood ratios of independent Laplace and normal
    coordinates, and the distance to either world's median; each at thresholds over its range. The runs may not be used
    again for a bound.

    Parameters
    ----------
    left, right : mapping of str to array (T, ·)
        Observables on either neighbour.
    delta : float
    confidence : float
        At which candidates are compared; in (0, 1).

    References
    ----------
    Bichsel, Steffen, Bogunovic, Vechev, "DP-Sniper", IEEE S&P 2021 (events learnt on other runs than those counted).
    """
    best: tuple[float, Event] | None = None
    for name, score in _scores(left, right):
        ours, theirs = score(left), score(right)
        for threshold in _thresholds(np.concatenate([ours, theirs])):
            hits = int((ours > threshold).sum()), int((theirs > threshold).sum())
            for swapped in (False, True):
                first, second = (hits[1], hits[0]) if swapped else hits
                found = epsilon_lower_bound(first, len(ours), second, len(theirs), delta, confidence)
                # Ties, and experiments that show nothing, go to the event that differs most.
                value = found + 1e-6 * (first - second) / len(ours)
                if best is None or value > best[0]:
                    best = value, Event(name, score, float(threshold), swapped)
    assert best is not None
    return best[1]


def bound_of_event(event: Event, left: Outputs, right: Outputs, delta: float, confidence: float) -> float:
    """Return the lower bound on epsilon that an event shows on runs it was not learnt on."""
    first, second = event.happens(left), event.happens(right)
    if event.left_is_rarer:
        first, second = second, first
    return epsilon_lower_bound(int(first.sum()), len(first), int(second.sum()), len(second), delta, confidence)


def _thresholds(scores: Floats) -> Floats:
    finite = scores[np.isfinite(scores)]
    if not len(finite):
        return np.zeros(1)
    # Tails matter most where delta is small.
    tails = np.geomspace(1.0 / len(finite), 0.5, _THRESHOLDS // 2)
    levels = np.quantile(finite, np.concatenate([tails, 1.0 - tails]))
    return np.unique(np.concatenate([[finite.min() - 1.0], levels]))


def _scores(left: Outputs, right: Outputs) -> Iterator[tuple[str, Callable[[Outputs], Floats]]]:
    for name in left:
        ours, theirs = left[name], right[name]
        for world, values in (("left", ours), ("right", theirs)):
            usual = _usual(values)
            if usual is not None:
                yield f"{name} equals its usual value on the {world}", _Equal(name, usual)
        difference = ours.mean(axis=0) - theirs.mean(axis=0)
        spread = 0.5 * (ours.var(axis=0) + theirs.var(axis=0))
        floor = 1e-12 + 1e-9 * float(spread.max(initial=0.0))
        middle = 0.5 * (ours.mean(axis=0) + theirs.mean(axis=0))
        yield f"{name} along the difference of the means", _Linear(name, difference / (spread + floor), middle)
        medians = np.median(ours, axis=0), np.median(theirs, axis=0)
        width = np.maximum(np.abs(ours - medians[0]).mean(axis=0), np.abs(theirs - medians[1]).mean(axis=0)) + floor
        yield f"{name} by the likelihood ratio of Laplace noise", _Laplace(name, medians, width)
        variances = ours.var(axis=0) + floor, theirs.var(axis=0) + floor
        means = ours.mean(axis=0), theirs.mean(axis=0)
        yield f"{name} by the likelihood ratio of normal noise", _Normal(name, means, variances)


def _usual(values: Floats) -> Floats | None:
    """Return the value that at least a tenth of the runs return, up to rounding; None where there is none."""
    rounded = _rounded(values)
    found, counts = np.unique(rounded, axis=0, return_counts=True)
    return np.asarray(found[counts.argmax()]) if counts.max() >= max(2, len(values) / 10) else None


def _rounded(values: Floats) -> Floats:
    size = np.abs(values).max(axis=1, keepdims=True, initial=0.0)
    grain = 10.0 ** (np.floor(np.log10(np.where(size > 0, size, 1.0))) - _DIGITS + 1)
    # Half a grain off zero, where values without noise like to be.
    return np.asarray(np.floor(values / grain + 0.25) * grain)


@dataclass(frozen=True, slots=True)
class _Equal:
    name: str
    value: Floats

    def __call__(self, outputs: Outputs) -> Floats:
        near = np.abs(outputs[self.name] - self.value).max(axis=1, initial=0.0)
        return np.asarray(near <= 10.0 ** (2 - _DIGITS) * max(1e-300, np.abs(self.value).max(initial=0.0))).astype(
            float
        )


@dataclass(frozen=True, slots=True)
class _Linear:
    name: str
    direction: Floats
    middle: Floats

    def __call__(self, outputs: Outputs) -> Floats:
        return np.asarray((outputs[self.name] - self.middle) @ self.direction)


@dataclass(frozen=True, slots=True)
class _Laplace:
    name: str
    medians: tuple[Floats, Floats]
    width: Floats

    def __call__(self, outputs: Outputs) -> Floats:
        values = outputs[self.name]
        away = np.abs(values - self.medians[1]) - np.abs(values - self.medians[0])
        return np.asarray((away / self.width).sum(axis=1))


@dataclass(frozen=True, slots=True)
class _Normal:
    name: str
    means: tuple[Floats, Floats]
    variances: tuple[Floats, Floats]

    def __call__(self, outputs: Outputs) -> Floats:
        values = outputs[self.name]

        def density(world: int) -> Floats:
            away = (values - self.means[world]) ** 2 / self.variances[world]
            return np.asarray(-0.5 * (away + np.log(self.variances[world])).sum(axis=1))

        return density(0) - density(1)


def joined(parts: Sequence[Outputs]) -> dict[str, Floats]:
    """Return the observables of several batches of runs together."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
