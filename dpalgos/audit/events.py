"""Events that tell two worlds apart: learnt on one half of an experiment, counted on the other, bounded from below.

A mechanism's proof speaks of its output. What surrounds the output, a manifest, a size, a charged number, is an
observable like any other: the joint distribution of all of them must be (epsilon, delta)-indistinguishable on
neighbours, and :func:`compare` holds them against each other field by field.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import betaincinv
from scipy.stats import nct, norm

from dpalgos.errors import ParameterError
from dpalgos.parameters import Bound
from dpalgos.rows import Floats

_STEPS, _LARGEST = 45, 1e4


def _require_counts(hits: int, trials: int, error: float) -> None:
    if not (trials >= 1 and 0 <= hits <= trials):
        raise ParameterError(f"{hits} hits in {trials} trials; hits must lie between 0 and a positive number of trials")
    Bound(0.0, 1.0, open_low=True, open_high=True).require("the error rate", error)


def probability_lower_bound(hits: int, trials: int, error: float) -> float:
    """Return a bound that the true probability falls below in at most a fraction ``error`` of experiments.

    References
    ----------
    Clopper, Pearson, "The use of confidence or fiducial limits", Biometrika 26 (1934): the p for which
    P(Binomial(trials, p) >= hits) = error.
    """
    _require_counts(hits, trials, error)
    return 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, error))


def probability_upper_bound(hits: int, trials: int, error: float) -> float:
    """Return a bound that the true probability exceeds in at most a fraction ``error`` of experiments."""
    return 1.0 - probability_lower_bound(trials - hits, trials, error)


def epsilon_lower_bound(hits_a: int, n_a: int, hits_b: int, n_b: int, delta: float, confidence: float) -> float:
    """Return an epsilon that the mechanism exceeds or meets, at the given confidence.

    Guarantee
    ---------
    If the mechanism is (epsilon, delta)-DP and A, B are neighbours, the value returned exceeds epsilon with probability
    at most 1 - confidence. Proof: with probability at least ``confidence``, P(E | A) >= L and P(E | B) <= U
    (Clopper-Pearson, each at half the error). Then P(E | A) <= e^epsilon P(E | B) + delta gives
    epsilon >= ln((L - delta) / U), and the same for the complement of E with the inputs exchanged gives
    epsilon >= ln((1 - U - delta) / (1 - L)).

    Parameters
    ----------
    hits_a, n_a : int
        How often the event happened in how many runs on A; the event must have been chosen beforehand or on other runs.
    hits_b, n_b : int
        The same on its neighbour B, where the event is to be rarer.
    delta : float
        In [0, 1).
    confidence : float
        In (0, 1); 1 - 1e-9 for a test that is never to fail by chance.
    """
    Bound(0.0, 1.0, open_high=True).require("delta", delta)
    error = (1.0 - confidence) / 2.0
    low = probability_lower_bound(hits_a, n_a, error)
    high = probability_upper_bound(hits_b, n_b, error)
    return max(0.0, _log_ratio(low - delta, high), _log_ratio(1.0 - high - delta, 1.0 - low))


def _log_ratio(numerator: float, denominator: float) -> float:
    return math.log(numerator / denominator) if numerator > 0 else 0.0


def largest_refuted(refuted: Callable[[float], bool]) -> float:
    """Return the largest parameter that is refuted, where all smaller ones are, rounded down; zero where none is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST and refuted(high):
        low, high = high, 2.0 * high
    return bisected(refuted, low, high)[0]


def bisected(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return the ends of what is left of an interval after halving, where something holds up to a point in it."""
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def gaussian_lower_bound(left: Floats, right: Floats, confidence: float) -> float:
    """Return a mu that the distance of two normals of equal variance exceeds or meets, at the given confidence.

    Guarantee
    ---------
    Assumes that the scores are independent draws of N(a + mu s, s²) and N(a, s²). Then the two-sample t statistic has
    the noncentral t distribution of 2T − 2 degrees of freedom and noncentrality mu √(T/2), exactly, which is increasing
    in mu: the bound returned exceeds mu with probability at most 1 − confidence. Said of any other distribution it is a
    fit, no bound.

    Parameters
    ----------
    left, right : array (T,)
        Scores of T runs on either neighbour, expected to be larger on the left.
    confidence : float
        In (0, 1).

    References
    ----------
    Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023 (Gaussian-DP fits).
    """
    count = min(len(left), len(right))
    pooled = math.sqrt(0.5 * (float(left[:count].var(ddof=1)) + float(right[:count].var(ddof=1))))
    if pooled == 0.0:
        return 0.0 if left.mean() == right.mean() else math.inf
    root = math.sqrt(count / 2.0)
    statistic = root * float(left[:count].mean() - right[:count].mean()) / pooled
    freedom = 2 * count - 2
    if freedom > 2000:
        # The noncentral t distribution is normal to three digits by then, with the variance that its statistic has.
        return max(
            0.0, (statistic - float(norm.isf(1 - confidence)) * math.sqrt(1 + statistic**2 / (2 * freedom))) / root
        )
    return largest_refuted(lambda mean: bool(nct.sf(statistic, freedom, mean or 1e-12) <= 1.0 - confidence)) / root


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
    """Return the log-likelihood ratio of two normals: means, variances and axes (None: the coordinates' own)."""

    def log_density(values: Floats, world: int) -> Floats:
        variances, axes = spreads[world]
        away = values - means[world] if axes is None else (values - means[world]) @ axes
        return np.asarray(-0.5 * (away**2 / variances + np.log(variances)).sum(axis=1))

    return lambda values: log_density(values, 0) - log_density(values, 1)


def part_of(outputs: Outputs, start: int, stop: int) -> dict[str, Floats]:
    """Return the observables of runs ``start`` … ``stop − 1``."""
    return {name: values[start:stop] for name, values in outputs.items()}


Value = str | float | Floats | None
"""A text, a number, a vector of numbers, or nothing."""

_FEWEST = 4

Observation = Mapping[str, Value]
"""What one run lets be seen, by field; a field may be missing, which is seen too."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What tells two worlds apart.

    Parameters
    ----------
    fields : int
        How many fields were compared.
    differing : tuple of str
        Fields without any noise: the same value in all runs of a world, and another one in the other world.
    lower_bound : float
        On epsilon at delta, at the confidence, without assumptions on any distribution.
    ceiling : float
        The largest bound that so many runs can show, at an event that always happens in one world and never in the
        other.
    trials : int
        Runs of each world that the bound was counted on.
    event : str
        The field and score that showed it.
    """

    fields: int
    differing: tuple[str, ...]
    lower_bound: float
    ceiling: float
    trials: int
    event: str


def compare(
    left: Sequence[Observation], right: Sequence[Observation], *, delta: float, confidence: float
) -> Comparison:
    """Compare what runs on two neighbours let be seen.

    Guarantee
    ---------
    If the whole observation is (epsilon, delta)-indistinguishable on neighbours and runs are independent,
    ``lower_bound`` exceeds epsilon with probability at most 1 − confidence: one event, of any field, is learnt on the
    first half of the runs and counted on the second (:func:`~dpalgos.audit.events.epsilon_lower_bound`), so
    that nothing is to be corrected for the number of fields. Codes given to texts are an injective renaming, and a
    field that is left out, because the first half shows nothing in it, can only make the bound smaller.

    The ceiling for T counted runs is the bound at T hits against none. At delta = 0 it is close to ln(T / ln(2 / (1 −
    confidence))), that is ln(T / 5.3) at 99 %: two-sided, where a bound on the rarer world alone would reach
    ln(T / 4.6).

    Parameters
    ----------
    left, right : sequences of Observation
        At least two runs each, as many on the right as on the left; two show what has no noise, and bound nothing.
    delta : float
        In [0, 1).
    confidence : float
        In (0, 1).

    Raises
    ------
    ParameterError
        For fewer runs, or unequally many.
    """
    if len(left) != len(right) or len(left) < 2:
        raise ParameterError(f"{len(left)} and {len(right)} runs; give equally many for either world, at least two")
    names = sorted({name for run in (*left, *right) for name in run})
    half = len(left) // 2
    seen: list[dict[str, Floats]] = [{}, {}]
    different = []
    for name in names:
        for suffix, values in _encoded([run.get(name) for run in (*left, *right)]).items():
            worlds = values[: len(left)], values[len(left) :]
            if not suffix and all(map(_constant, worlds)) and not _constant(values):
                different.append(name)
            # Chosen by what events are learnt on.
            if not _constant(np.concatenate([world[:half] for world in worlds])):
                for world, of in zip(seen, worlds, strict=True):
                    world[name + suffix] = of
    trials = len(left) - half
    bound, event = 0.0, "none: all runs look alike" if not seen[0] else "none: too few runs to learn an event on"
    if seen[0] and half >= _FEWEST:
        learnt, counted = ([part_of(world, *runs) for world in seen] for runs in ((0, half), (half, len(left))))
        learnt_event = learn_event(learnt[0], learnt[1], delta, confidence)
        bound = bound_of_event(learnt_event, counted[0], counted[1], delta, confidence)
        event = learnt_event.name
    return Comparison(
        fields=len(names),
        differing=tuple(different),
        lower_bound=bound,
        ceiling=epsilon_lower_bound(trials, trials, 0, trials, delta, confidence),
        trials=trials,
        event=event,
    )


def _constant(values: Floats) -> bool:
    return bool((values == values[0]).all())


def _encoded(values: Sequence[Value]) -> dict[str, Floats]:
    """Return a field's values in all runs as arrays (T, ·), by a suffix to its name; the first is all that it holds."""
    if all(isinstance(value, np.ndarray) for value in values):
        arrays = [np.asarray(value, dtype=np.float64).ravel() for value in values]
        width = max(map(len, arrays))
        # How long it is comes first, so that padding hides nothing.
        return {"": np.stack([np.concatenate([[len(array)], array, np.zeros(width - len(array))]) for array in arrays])}
    if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return {"": np.array(values, dtype=np.float64)[:, None]}
    texts = [repr(value.tolist()) if isinstance(value, np.ndarray) else repr(value) for value in values]
    codes = {text: float(code) for code, text in enumerate(sorted(set(texts)), start=1)}
    return {
        "": np.array([[codes[text]] for text in texts]),
        " (its length)": np.array([[float(len(text))] for text in texts]),
    }
