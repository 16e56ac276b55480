"""Lower bounds on epsilon and mu from counts and from Gaussian outputs."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def gaussian_lower_bound(left: Floats, right: Floats, confidence: float) -> float:
    """Return a mu that the distance of two normal laws of equal variance exceeds or meets, at the given confidence.

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
