"""Events that tell two worlds apart, learnt on one half of an experiment and counted on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpalgos.audit.bounds import epsilon_lower_bound
from dpalgos.rows import Floats

Outputs = Mapping[str, Floats]
"""Named observables of T runs, each (T, ·)."""

_Score = Callable[[Floats], Floats]
"""From one observable of T runs, (T, ·), to scores (T,)."""

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


def learn_event(left: Outputs, right: Outputs, delta: float, confidence: float) -> Event:
    """Return the event, of many tried, for which these runs show the largest epsilon.

    Tried are, for every observable: equality with a value that one world returns again and again (an output without
    noise), the projection on the difference of the means, Fisher's linear discriminant (which sees noise that is used
    twice), and likelihood ratios of Laplace and normal distributions fitted to either world (which see a support that
    moves); each at thresholds over its range. Scores are fitted on one half of the runs and events chosen on the other,
    so that a score of many parameters is not chosen for what it learnt by heart. None of them may be used again for a
    bound.

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
    chosen = [part_of(world, fitted, count) for world in (left, right)]
    best: tuple[float, Event] | None = None
    for name, score in _scores(part_of(left, 0, fitted), part_of(right, 0, fitted)):
        scores = [score(world) for world in chosen]
        for threshold in _thresholds(np.concatenate(scores)):
            for swapped in (False, True):
                event = Event(name, score, float(threshold), swapped)
                hits = _hits(event, scores)
                # Ties, and experiments that show nothing, go to the event that differs most.
                value = _bound(hits, count - fitted, delta, confidence) + 1e-6 * (hits[0] - hits[1]) / (count - fitted)
                if best is None or value > best[0]:
                    best = value, event
    assert best is not None
    return best[1]


def bound_of_event(event: Event, left: Outputs, right: Outputs, delta: float, confidence: float) -> float:
    """Return the lower bound on epsilon that an event shows on runs it was not learnt on, as many of either world."""
    scores = [event.score(world) for world in (left, right)]
    return _bound(_hits(event, scores), len(scores[0]), delta, confidence)


def _hits(event: Event, scores: Sequence[Floats]) -> list[int]:
    """Return how often an event happened in the world where it is likelier, and in the other."""
    hits = [int((of > event.threshold).sum()) for of in scores]
    return hits[::-1] if event.left_is_rarer else hits


def _bound(hits: Sequence[int], count: int, delta: float, confidence: float) -> float:
    return epsilon_lower_bound(hits[0], count, hits[1], count, delta, confidence)


def fisher_score(ours: Floats, theirs: Floats) -> _Score:
    """Return the linear score of one observable that tells two normal distributions of one covariance apart best.

    Parameters
    ----------
    ours, theirs : array (T, ·)
        Runs on the left and on the right that are not scored afterwards.
    """
    means = [values.mean(axis=0) for values in (ours, theirs)]
    covariances = [np.atleast_2d(np.cov(values, rowvar=False, bias=True)) for values in (ours, theirs)]
    variances, axes = _principal(0.5 * (covariances[0] + covariances[1]), _floor(ours, theirs))
    return _linear(axes @ ((axes.T @ (means[0] - means[1])) / variances), 0.5 * (means[0] + means[1]))


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
        for text, score in _scores_of(left[name], right[name]):
            yield f"{name} {text}", partial(_scored, name, score)


def _scored(name: str, score: _Score, outputs: Outputs) -> Floats:
    return score(outputs[name])


def _scores_of(ours: Floats, theirs: Floats) -> Iterator[tuple[str, _Score]]:
    worlds = (ours, theirs)
    for side, values in zip(("left", "right"), worlds, strict=True):
        usual = _usual(values[:_USUAL])
        if usual is not None:
            yield f"equals its usual value on the {side}", _equal(usual)
    means, variances = ([moment(values, axis=0) for values in worlds] for moment in (np.mean, np.var))
    floor = _floor(ours, theirs)
    direction = (means[0] - means[1]) / (0.5 * (variances[0] + variances[1]) + floor)
    yield "along the difference of the means", _linear(direction, 0.5 * (means[0] + means[1]))
    if ours.shape[1] == 1:
        return
    medians = [np.median(values, axis=0) for values in worlds]
    spreads = [np.abs(values - middle).mean(axis=0) for values, middle in zip(worlds, medians, strict=True)]
    yield "by the likelihood ratio of Laplace noise", _laplace(medians[0], medians[1], np.maximum(*spreads) + floor)
    yield "by the likelihood ratio of normal noise", _normal(means, [(each + floor, None) for each in variances])
    if 4 * ours.shape[1] <= len(ours):
        yield "along Fisher's discriminant", fisher_score(ours, theirs)
        covariances = [_principal(np.cov(values, rowvar=False, bias=True), floor) for values in worlds]
        yield "by the likelihood ratio of correlated normal noise", _normal(means, covariances)


def _floor(ours: Floats, theirs: Floats) -> float:
    return 1e-12 + 1e-9 * float(np.maximum(ours.var(axis=0), theirs.var(axis=0)).max(initial=0.0))


def _usual(values: Floats) -> Floats | None:
    """Return the value that at least a tenth of the runs return, up to rounding; None where there is none."""
    size = np.abs(values).max(axis=1, keepdims=True, initial=0.0)
    grain = 10.0 ** (np.floor(np.log10(np.where(size > 0, size, 1.0))) - _DIGITS + 1)
    # Half a grain off zero, where values without noise like to be.
    rounded = np.floor(values / grain + 0.25) * grain
    outputs, counts = np.unique(rounded, axis=0, return_counts=True)
    return np.asarray(outputs[counts.argmax()]) if counts.max() >= max(2, len(values) / 10) else None


def _equal(value: Floats) -> _Score:
    tolerance = 10.0 ** (2 - _DIGITS) * max(1e-300, np.abs(value).max(initial=0.0))
    return lambda values: (np.abs(values - value).max(axis=1, initial=0.0) <= tolerance).astype(np.float64)


def _linear(direction: Floats, middle: Floats) -> _Score:
    return lambda values: np.asarray((values - middle) @ direction)


def _laplace(left: Floats, right: Floats, width: Floats) -> _Score:
    # Far from both medians the score does not change: all runs there are to be one event, whatever their last bits.
    return lambda values: np.round(((np.abs(values - right) - np.abs(values - left)) / width).sum(axis=1), _PLACES)


def _principal(covariance: Floats, floor: float) -> tuple[Floats, Floats]:
    """Return the variances along the principal axes, (p,), and these axes, (p, p)."""
    variances, axes = np.linalg.eigh(covariance)
    return np.maximum(variances, 0.0) + floor, axes


def _normal(means: Sequence[Floats], spreads: Sequence[tuple[Floats, Floats | None]]) -> _Score:
    """Return the log-likelihood ratio of two normal laws: means, variances and axes (None: the coordinates' own)."""

    def log_density(values: Floats, world: int) -> Floats:
        variances, axes = spreads[world]
        away = values - means[world] if axes is None else (values - means[world]) @ axes
        return np.asarray(-0.5 * (away**2 / variances + np.log(variances)).sum(axis=1))

    return lambda values: log_density(values, 0) - log_density(values, 1)


def part_of(outputs: Outputs, start: int, stop: int) -> dict[str, Floats]:
    """Return the observables of runs ``start`` … ``stop − 1``."""
    return {name: values[start:stop] for name, values in outputs.items()}
