"""Audits from one training run with many canaries, each flipped by a coin of its own.

Of m canaries, each is in one of two states that the neighbouring relation tells apart: under ``replace-special`` the
row or a null record, under ``replace-one`` one row or another. Independent fair coins S ∈ {−1, 1}^m choose. Whoever
sees the output guesses r of the coins, and W guesses are right. For fixed other coins, the two states of coin i are
neighbours, so the mechanism S → output is private in each of its coordinates, whatever the other rows are.

*Approximate DP* (Steinke, Nasr, Jagielski 2023, Theorem 5.2). If it is (epsilon, delta)-DP in each coordinate, and at
most r coins are guessed,

    P(W ≥ v) ≤ P(B ≥ v) + 2 m δ max_{1≤i≤m} P(v > B ≥ v − i) / i,   B ~ Binomial(r, e^ε / (1 + e^ε)).

*A whole trade-off curve* (after Mahloujifar, Melis, Chaudhuri 2024; the proof for two states and exactly r guesses).
Let the mechanism be f-DP in each coordinate, and g(y) the least type I error of a test of power y, that is g inverts
1 − f: convex, increasing, g(y) ≤ y. For t ≥ 1 let E_i be the event that coin i is guessed right and W ≥ t. Seen from
the neighbour with coin i flipped, the same outputs are those where coin i is guessed wrong and W ≥ t − 1. So
P(E_i) = y has P(coin i guessed wrong, W ≥ t − 1) ≥ g(y), for each value of the other coins; g is convex, so it holds
for the averages over all coins and over i too (Jensen). With p_w = P(W = w),

    R_t = Σ_{w≥t} w p_w / m,   H_t = Σ_{w≥t} (r − w) p_w / m,   H_{t−1} ≥ g(R_t)   for t = 1 … r.

What is the largest τ = P(W ≥ v)? Mass at w > v instead of v raises R and lowers H, which makes no constraint easier
below, so all of τ may be put at v: R_v = τ v / m, H_v = τ (r − v) / m. Below, in order t = v, v − 1, …, 1, the least
p_{t−1} that gives H_{t−1} ≥ g(R_t) is best: putting δ more mass at t − 1 changes (R, H) by δ (t − 1, r − t + 1) / m,
and a difference (ΔR, ΔH) with ΔH ≥ 0 and ΔR ≥ ΔH (t − 2) / (r − t + 2) is handed on to the next level with the same
property, since R_new = R + (H_new − H)(t − 2) / (r − t + 2) and H_new = max(H, g(R)) grows with both; so the sum
R_0 + H_0 at the end is not smaller. But R_0 + H_0 = r / m for every law of W. So a τ for which the least sum exceeds
r / m is impossible, and the sum grows with τ: bisection finds the largest possible τ, rounded up.

Neither bound is tight for a single run: what the coins' guesses say of each other is given away.

References
----------
Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023.
Mahloujifar, Melis, Chaudhuri, "Auditing f-differential privacy in one run", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpalgos.accounting.composition import components, compose
from dpalgos.accounting.trade_off import gaussian_mu
from dpalgos.audit.bounds import largest_refuted
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Loss
from dpalgos.rows import Floats, Ints

TypeIError = Callable[[float], float]
"""The least type I error of a test of the given power, from a trade-off curve: ``g`` above."""

_STEPS = 45
_SMALLEST = 1e-30
_POINTS = 48
_DELTAS = (1e-12, 1e-9, 1e-6, 1e-3, 0.1)


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
        raise ParameterError(f"{guesses} guesses of {len(scores)} coins; make between one and all")
    order = np.argsort(-scores, kind="stable")
    made = np.zeros(len(scores), dtype=np.int64)
    made[order[: (guesses + 1) // 2]] = 1
    made[order[len(order) - guesses // 2 :]] = -1
    return made


def _require(correct: int, guesses: int, canaries: int) -> None:
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise ParameterError(
            f"{correct} of {guesses} guesses right, of {canaries} canaries; these numbers must not decrease, and at "
            "least one guess is made"
        )


def tail_under_approximate_dp(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many right guesses or more under (epsilon, delta)-DP.

    Parameters
    ----------
    correct, guesses, canaries : int
        v, r and m above; at most ``guesses`` are made.
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
        v, r and m above; exactly ``guesses`` are made.
    curve : TypeIError
        Never above the true one.
    """
    _require(correct, guesses, canaries)
    if _possible(1.0, correct, guesses, canaries, curve):
        return 1.0
    # Small probabilities matter: the search is on their logarithms.
    low, high = math.log(_SMALLEST), 0.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if _possible(math.exp(middle), correct, guesses, canaries, curve):
            low = middle
        else:
            high = middle
    return math.exp(high)


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
    profile = compose(losses)
    widest = next(epsilon for delta in _DELTAS if math.isfinite(epsilon := profile.epsilon(delta)))
    points = [(epsilon, profile.delta(epsilon)) for epsilon in np.linspace(0.0, widest, _POINTS).tolist()]

    def least(power: float) -> float:
        return max(
            0.0,
            *(math.exp(-epsilon) * (power - delta) for epsilon, delta in points),
            *(1.0 - delta - math.exp(min(epsilon, 700.0)) * (1.0 - power) for epsilon, delta in points),
        )

    return least


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
    if not 0 < confidence < 1:
        raise ParameterError(f"the confidence is {confidence!r}; it must lie strictly between 0 and 1")
    return 1.0 - confidence
