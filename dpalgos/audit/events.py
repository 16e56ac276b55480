"""Events that tell two worlds apart, learnt on one half of an experiment and counted on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.audit.clopper_pearson import epsilon_lower_bound
from dpalgos.rows import Floats

__all__ = ["Event", "Outputs", "bound_of_event", "fisher_score", "joined", "learn_event", "part_of"]

Outputs = Mapping[str, Floats]
"""Named observables of T runs, each (T, ·)."""

_THRESHOLDS = 60
# More runs than these make no score better.
_FITTED, _USUAL = 50_000, 2_000
# Deterministic outputs differ in their last bits where BLAS adds up in another order.
_DIGITS = 7
# Of scores with flat parts. Floating-point noise shows in the last bits what it hides (Mironov 2012); "idealised"
# guarantees say so, and are audited as what they are: statements about real numbers.
_PLACES = 9


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
    noise), the projection on the difference of the means, Fisher's linear discriminant (which sees noise that is used
    twice), and likelihood ratios of Laplace and normal laws fitted to either world (which see a support that moves);
    each at thresholds over its range. Scores are fitted on one half of the runs and events chosen on the other, so that
    a score of many parameters is not chosen for what it learnt by heart. None of them may be used again for a bound.

    Parameters
    ----------
    left, right : mapping of str to array (T, ·)
        Observables on either neighbour; four runs at least.
    delta : float
    confidence : float
        At which candidates are compared; in (0, 1).

    References
    ----------
    Bichsel, Steffen, Bogunovic, Vechev, "DP-Sniper", IEEE S&P 2021 (events learnt on other runs than those counted).
    """
    count = len(next(iter(left.values())))
    fitted = min(count // 2, _FITTED)
    parts = [part_of(world, 0, fitted) for world in (left, right)]
    chosen = [part_of(world, fitted, count) for world in (left, right)]
    best: tuple[float, Event] | None = None
    for name, score in _scores(*parts):
        ours, theirs = score(chosen[0]), score(chosen[1])
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


def fisher_score(left: Outputs, right: Outputs) -> Callable[[Outputs], Floats]:
    """Return the linear score of one observable that tells two normal laws of one covariance apart best.

    Parameters
    ----------
    left, right : mapping of one str to array (T, ·)
        Runs that are not scored afterwards.
    """
    (name,) = left
    ours, theirs = left[name], right[name]
    floor = 1e-12 + 1e-9 * float(ours.var(axis=0).max(initial=0.0))
    spreads = [np.atleast_2d(np.cov(values, rowvar=False, bias=True)) for values in (ours, theirs)]
    covariance = 0.5 * (spreads[0] + spreads[1])
    middle = 0.5 * (ours.mean(axis=0) + theirs.mean(axis=0))
    direction = _Ellipsoid.full(middle, covariance, floor).solve(ours.mean(axis=0) - theirs.mean(axis=0))
    return _Linear(name, direction, middle)


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
            usual = _usual(values[:_USUAL])
            if usual is not None:
                yield f"{name} equals its usual value on the {world}", _Equal(name, usual)
        means = ours.mean(axis=0), theirs.mean(axis=0)
        variances = ours.var(axis=0), theirs.var(axis=0)
        floor = 1e-12 + 1e-9 * float(np.maximum(*variances).max(initial=0.0))
        middle = 0.5 * (means[0] + means[1])
        direction = (means[0] - means[1]) / (0.5 * (variances[0] + variances[1]) + floor)
        yield f"{name} along the difference of the means", _Linear(name, direction, middle)
        if ours.shape[1] == 1:
            continue
        medians = np.median(ours, axis=0), np.median(theirs, axis=0)
        width = np.maximum(np.abs(ours - medians[0]).mean(axis=0), np.abs(theirs - medians[1]).mean(axis=0)) + floor
        yield f"{name} by the likelihood ratio of Laplace noise", _Laplace(name, medians, width)
        spreads = [_Ellipsoid.diagonal(mean, variance + floor) for mean, variance in zip(means, variances, strict=True)]
        yield f"{name} by the likelihood ratio of normal noise", _Normal(name, spreads[0], spreads[1])
        if 4 * ours.shape[1] <= len(ours):
            covariances = [np.cov(values, rowvar=False, bias=True) for values in (ours, theirs)]
            pooled = _Ellipsoid.full(middle, 0.5 * (covariances[0] + covariances[1]), floor)
            yield f"{name} along Fisher's discriminant", _Linear(name, pooled.solve(means[0] - means[1]), middle)
            spreads = [_Ellipsoid.full(mean, of, floor) for mean, of in zip(means, covariances, strict=True)]
            yield f"{name} by the likelihood ratio of correlated normal noise", _Normal(name, spreads[0], spreads[1])


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
        # Far from both medians the score does not change: all runs there are to be one event, whatever their last bits.
        return np.asarray(np.round((away / self.width).sum(axis=1), _PLACES))


@dataclass(frozen=True, slots=True)
class _Ellipsoid:
    """A normal law: mean (p,), axes (p, p) or None for the coordinates' own, variances along them (p,)."""

    mean: Floats
    axes: Floats | None
    variances: Floats

    @classmethod
    def diagonal(cls, mean: Floats, variances: Floats) -> _Ellipsoid:
        return cls(mean, None, variances)

    @classmethod
    def full(cls, mean: Floats, covariance: Floats, floor: float) -> _Ellipsoid:
        variances, axes = np.linalg.eigh(covariance)
        return cls(mean, axes, np.maximum(variances, 0.0) + floor)

    def log_density(self, values: Floats) -> Floats:
        away = values - self.mean if self.axes is None else (values - self.mean) @ self.axes
        return np.asarray(-0.5 * (away**2 / self.variances + np.log(self.variances)).sum(axis=1))

    def solve(self, vector: Floats) -> Floats:
        assert self.axes is not None
        return np.asarray(self.axes @ ((self.axes.T @ vector) / self.variances))


@dataclass(frozen=True, slots=True)
class _Normal:
    name: str
    left: _Ellipsoid
    right: _Ellipsoid

    def __call__(self, outputs: Outputs) -> Floats:
        values = outputs[self.name]
        return self.left.log_density(values) - self.right.log_density(values)


def joined(parts: Sequence[Outputs]) -> dict[str, Floats]:
    """Return the observables of several batches of runs together."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def part_of(outputs: Outputs, start: int, stop: int) -> dict[str, Floats]:
    """Return the observables of runs ``start`` … ``stop − 1``."""
    return {name: values[start:stop] for name, values in outputs.items()}
