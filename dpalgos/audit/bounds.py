"""Lower bounds on what a mechanism costs: from events that tell two worlds apart, and from guesses of who is a member.

A mechanism's proof speaks of its output. What surrounds the output, a manifest, a size, a charged number, is an
observable like any other: the joint distribution of all of them must be (epsilon, delta)-indistinguishable on
neighbours, and :func:`compare` holds them against each other field by field.

Membership inference, and what a guarantee leaves it
----------------------------------------------------
Shadow models are trained on the same n records, of which each is in one of two states by an independent fair coin: the
row, or what the neighbouring relation puts in its place (another row, or a null record). A model's score of a row is
how well it fits it. For one row and one model, the attack compares the score with the scores of the other models that
held the row and of those that did not, each taken as normal, and says "member" where the likelihood ratio is large
(:func:`likelihood_ratios`, :func:`attack`).

Fix a row, the other records of a model and all other models. The two states of the row are neighbours, and the attack's
threshold on its ratio is a test of one against the other, which may use the other models as they are independent of
this one. Under a trade-off curve f its true positive rate is at most 1 − f(false positive rate). 1 − f is concave, so
the same holds for the rates averaged over rows, other records and models (Jensen), that is for one threshold on all
ratios. Hence, for the whole curve of such thresholds (:func:`bound_of`),

    advantage = max (TPR − FPR) ≤ max_α (1 − f(α) − α),   area under the ROC curve ≤ 1 − ∫ f(α) dα.

These are statements on expectations; measured rates scatter about them.

One run with many canaries
--------------------------
Of m canaries, each is in one of two states that the neighbouring relation tells apart: under ``replace-special`` the
row or a null record, under ``replace-one`` one row or another. Independent fair coins S ∈ {−1, 1}^m choose. An observer
of the output guesses r of the coins, and W guesses are right. For fixed other coins, the two states of coin i are
neighbours, so the mechanism S → output is private in each of its coordinates, for any other rows.

*Approximate DP* (Steinke, Nasr, Jagielski 2023, Theorem 5.2; :func:`tail_under_approximate_dp`). If it is (epsilon,
delta)-DP in each coordinate, and at most r coins are guessed,

    P(W ≥ v) ≤ P(B ≥ v) + 2 m δ max_{1≤i≤m} P(v > B ≥ v − i) / i,   B ~ Binomial(r, e^ε / (1 + e^ε)).

*A whole trade-off curve* (after Mahloujifar, Melis, Chaudhuri 2024; the proof for two states and exactly r guesses,
:func:`tail_under_curve`). Let the mechanism be f-DP in each coordinate, and g(y) the least type I error of a test of
power y, that is g inverts 1 − f: convex, increasing, g(y) ≤ y. For t ≥ 1 let E_i be the event that coin i is guessed
right and W ≥ t. Seen from the neighbour with coin i flipped, the same outputs are those where coin i is guessed wrong
and W ≥ t − 1. So P(E_i) = y has P(coin i guessed wrong, W ≥ t − 1) ≥ g(y), for each value of the other coins; g is
convex, so it holds for the averages over all coins and over i too (Jensen). With p_w = P(W = w),

    R_t = Σ_{w≥t} w p_w / m,   H_t = Σ_{w≥t} (r − w) p_w / m,   H_{t−1} ≥ g(R_t)   for t = 1 … r.

What is the largest τ = P(W ≥ v)? Mass at w > v instead of v raises R and lowers H, which makes no constraint easier
below, so all of τ may be put at v: R_v = τ v / m, H_v = τ (r − v) / m. Below, in order t = v, v − 1, …, 1, the least
p_{t−1} that gives H_{t−1} ≥ g(R_t) is best: putting δ more mass at t − 1 changes (R, H) by δ (t − 1, r − t + 1) / m,
and a difference (ΔR, ΔH) with ΔH ≥ 0 and ΔR ≥ ΔH (t − 2) / (r − t + 2) is handed on to the next level with the same
property, since R_new = R + (H_new − H)(t − 2) / (r − t + 2) and H_new = max(H, g(R)) grows with both; so the sum
R_0 + H_0 at the end is not smaller. But R_0 + H_0 = r / m for every distribution of W. So a τ for which the least sum
exceeds r / m is impossible, and the sum grows with τ: bisection finds the largest possible τ, rounded up.

Neither bound is tight for a single run: what the coins' guesses say of each other is given away.

References
----------
Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership inference attacks from first principles", IEEE S&P 2022.
Yeom, Giacomelli, Fredrikson, Jha, "Privacy risk in machine learning", CSF 2018 (the advantage).
Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023.
Mahloujifar, Melis, Chaudhuri, "Auditing f-differential privacy in one run", 2024.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom, nct, norm

from dpalgos.accounting.composition import components, gaussian_mu, lines, trade_off
from dpalgos.accounting.profiles import bisected, largest_fitting
from dpalgos.guarantees import Loss
from dpalgos.parameters import Bound, ParameterError
from dpalgos.rows import Floats, Ints

_LARGEST = 1e4


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
    return largest_fitting(refuted, 1.0, _close, most=_LARGEST) if refuted(0.0) else 0.0


def _close(low: float, high: float) -> bool:
    return high - low <= 2.0**-45 * max(1.0, abs(low), abs(high))


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
    # Far from both medians the score does not change: all runs there are to be one event, also if their last bits
    # differ.
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
    """Statistics that distinguish two worlds.

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
    first half of the runs and counted on the second (:func:`~dpalgos.audit.bounds.epsilon_lower_bound`), so
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
        raise ParameterError(f"{len(left)} and {len(right)} runs; give the same number for both worlds, at least two")
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


_LEAST_MODELS = 8
_GRID, _SPLIT = 120, 0.1


@dataclass(frozen=True, slots=True)
class Attack:
    """Success of an attack, or the largest success that a guarantee allows.

    Parameters
    ----------
    levels : array (m,)
        False positive rates, increasing from 0 to 1.
    rates : array (m,)
        True positive rates at these.
    """

    levels: Floats
    rates: Floats

    @property
    def advantage(self) -> float:
        """The largest difference of true and false positive rate."""
        return float((self.rates - self.levels).max())

    @property
    def area(self) -> float:
        """The area under the curve."""
        return float(np.trapezoid(self.rates, self.levels))

    def rate_at(self, level: float) -> float:
        """Return the true positive rate at the largest false positive rate of the curve that is at most ``level``."""
        place = int(np.searchsorted(self.levels, level, side="right")) - 1
        return float(self.rates[place])


def likelihood_ratios(scores: Floats, members: NDArray[np.bool_]) -> Floats:
    """Return the log-likelihood ratio of member to non-member for each model and row, (N, n).

    The normal distributions of a row's scores are fitted on all models but the one in question, with one variance for
    all rows and both states, which few models can tell.

    Parameters
    ----------
    scores : array (N, n)
        How well each of N models fits each of n rows.
    members : bool array (N, n)
        Which rows each model held.

    Raises
    ------
    ParameterError
        For fewer than 8 models, or a row that fewer than three models held, or fewer than three did not.
    """
    if len(scores) < _LEAST_MODELS:
        raise ParameterError(
            f"{len(scores)} shadow models; at least {_LEAST_MODELS} are needed, and several dozen for a useful bound"
        )
    held, not_held = members.sum(axis=0), (~members).sum(axis=0)
    if min(held.min(), not_held.min()) < 3:
        raise ParameterError(
            "a row was in the training set of fewer than three models, or of all but two: train more shadow models"
        )
    means = []
    for state in (members, ~members):
        # Without the model in question where it is in this state.
        total = np.where(state, scores, 0.0).sum(axis=0) - np.where(state, scores, 0.0)
        means.append(total / (state.sum(axis=0) - state))
    residual = scores - np.where(members, means[0], means[1])
    # Each model's own residuals are left out of its variance.
    squares = (residual**2).sum(axis=1)
    variance = (squares.sum() - squares) / (residual.size - residual.shape[1])
    variance = np.maximum(variance, 1e-12 * max(float(np.square(scores).mean()), 1e-300))[:, None]
    return np.asarray(((scores - means[1]) ** 2 - (scores - means[0]) ** 2) / (2.0 * variance))


def attack(ratios: Floats, members: NDArray[np.bool_]) -> Attack:
    """Return the ROC curve of one threshold on all ratios."""
    flat, states = ratios.ravel(), members.ravel()
    order = np.argsort(-flat, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(flat[order])), len(flat) - 1)
    hits, alarms = np.cumsum(states[order])[ends], np.cumsum(~states[order])[ends]
    levels, rates = alarms / max(int((~states).sum()), 1), hits / max(int(states.sum()), 1)
    return Attack(np.concatenate([[0.0], levels]), np.concatenate([[0.0], rates]))


def bound_of(losses_by_party: Sequence[Sequence[Loss]]) -> Attack:
    """Return the curve that no attack exceeds where each party pays one of these losses_by_party.

    The trade-off curve is bounded from below on a grid; between its points it is taken as the next one's, which is
    smaller, so that advantage and area are bounded from above.
    """
    # Small false positive rates are what matters to whoever is accused.
    levels = np.concatenate([[0.0], np.geomspace(1e-4, _SPLIT, _GRID)[:-1], np.linspace(_SPLIT, 1.0, _GRID)])
    missed = trade_off(losses_by_party, levels.tolist())
    return Attack(levels, 1.0 - np.append(missed[1:], 0.0))


TypeIError = Callable[[float], float]
"""The least type I error of a test of the given power, from a trade-off curve: g in the module's docstring."""

_SMALLEST = 1e-30


def guess(scores: Floats, guesses: int) -> Ints:
    """Return guesses of m coins, (m,): 1 for the highest scores, −1 for the lowest, 0 where none is made.

    Half of the guesses go either way, since coins are fair; ties go by position.

    Parameters
    ----------
    scores : array (m,)
        Larger where the output looks more like a canary in its first state.
    guesses : int
        How many are made, at most m.
    """
    if not 1 <= guesses <= len(scores):
        raise ParameterError(f"{guesses} guesses for {len(scores)} coins; make between one and all")
    order = np.argsort(-scores, kind="stable")
    guessed = np.zeros(len(scores), dtype=np.int64)
    guessed[order[: (guesses + 1) // 2]] = 1
    guessed[order[len(order) - guesses // 2 :]] = -1
    return guessed


def _require(correct: int, guesses: int, canaries: int) -> None:
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise ParameterError(
            f"{correct} of {guesses} guesses are right, with {canaries} canaries; give numbers with right <= guesses "
            "<= canaries and at least one guess"
        )


def tail_under_approximate_dp(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many right guesses or more under (epsilon, delta)-DP.

    Parameters
    ----------
    correct, guesses, canaries : int
        v, r and m in the module's docstring; at most ``guesses`` are made.
    epsilon, delta : float
    """
    _require(correct, guesses, canaries)
    share = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, share))
    if delta == 0.0:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, share))
    worst = float((below / np.arange(1, len(below) + 1)).max(initial=0.0))
    return min(1.0, tail + 2.0 * canaries * delta * worst)


def tail_under_curve(correct: int, guesses: int, canaries: int, curve: TypeIError) -> float:
    """Return a bound on the probability of so many right guesses or more under a trade-off curve.

    Parameters
    ----------
    correct, guesses, canaries : int
        v, r and m in the module's docstring; exactly ``guesses`` are made.
    curve : TypeIError
        Never above the true one.
    """
    _require(correct, guesses, canaries)
    if _possible(1.0, correct, guesses, canaries, curve):
        return 1.0
    # Small probabilities matter: the search is on their logarithms.
    possible = bisected(
        lambda power: _possible(math.exp(power), correct, guesses, canaries, curve), math.log(_SMALLEST), 0.0, _close
    )
    return math.exp(possible[1])


def _possible(tail: float, correct: int, guesses: int, canaries: int, curve: TypeIError) -> bool:
    """Whether so many right guesses or more may have this probability."""
    right, wrong = tail * correct / canaries, tail * (guesses - correct) / canaries
    for level in range(correct - 1, -1, -1):
        more = max(0.0, curve(min(right, 1.0)) - wrong)
        wrong += more
        right += more * level / (guesses - level)
        if right + wrong > guesses / canaries:
            return False
    return True


def gaussian_curve(mu: float) -> TypeIError:
    """Return the curve of mu-Gaussian DP."""
    return lambda power: float(ndtr(ndtri(power) - mu))


def curve_of(losses: Sequence[Loss]) -> TypeIError:
    """Return a curve that is never above what these losses together prove.

    Gaussian losses have theirs. Otherwise each (epsilon, delta) of the composed privacy profile bounds the power of a
    test of type I error x by both delta + e^epsilon x and 1 − e^−epsilon (1 − delta − x), so the least x at power y is
    at least max(e^−epsilon (y − delta), 1 − delta − e^epsilon (1 − y)); the largest over points is returned.

    Raises
    ------
    ParameterError
        If nothing is proved.
    """
    if components(losses).unproved is not None:
        raise ParameterError("nothing is proved, so there is no curve")
    mu = gaussian_mu(losses)
    if mu is not None:
        return gaussian_curve(mu)
    deltas, rises, falls = lines(tuple(losses))
    return lambda power: float(
        np.maximum(falls * (power - deltas), 1.0 - deltas - rises * (1.0 - power)).max(initial=0.0)
    )


def epsilon_lower_bound_of_guesses(
    correct: int, guesses: int, canaries: int, *, delta: float, confidence: float
) -> float:
    """Return an epsilon that the mechanism exceeds or meets at delta, at the given confidence.

    Guarantee
    ---------
    If the mechanism is (epsilon, delta)-DP in the relation by which canaries are flipped, the value returned exceeds
    epsilon with probability at most 1 − confidence: the largest epsilon at which so many right guesses have
    probability at most 1 − confidence, rounded down.
    """
    error = _error(confidence)
    return largest_refuted(
        lambda epsilon: tail_under_approximate_dp(correct, guesses, canaries, epsilon, delta) <= error
    )


def mu_lower_bound_of_guesses(correct: int, guesses: int, canaries: int, *, confidence: float) -> float:
    """Return a mu: that the mechanism is Gaussian-DP with any smaller one is refuted at the given confidence."""
    _require(correct, guesses, canaries)
    error = _error(confidence)
    return largest_refuted(lambda mu: not _possible(error, correct, guesses, canaries, gaussian_curve(mu)))


def _error(confidence: float) -> float:
    Bound(0.0, 1.0, open_low=True, open_high=True).require("the confidence", confidence)
    return 1.0 - confidence
