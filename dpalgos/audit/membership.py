"""Membership inference, and lower bounds from one run with many canaries."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpalgos.accounting.composition import components, gaussian_mu, lines, trade_off
from dpalgos.audit.events import bisected, largest_refuted
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Loss
from dpalgos.parameters import Bound
from dpalgos.rows import Floats, Ints

_FEWEST = 8
_GRID, _SPLIT = 120, 0.1


@dataclass(frozen=True, slots=True)
class Attack:
    """How an attack does, or the most that a guarantee leaves it.

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
    if len(scores) < _FEWEST:
        raise ParameterError(f"{len(scores)} shadow models; at least {_FEWEST} are needed, and some dozens to see much")
    held, not_held = members.sum(axis=0), (~members).sum(axis=0)
    if min(held.min(), not_held.min()) < 3:
        raise ParameterError("a row was held by fewer than three models, or by all but two: train more shadow models")
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
    ratios: Floats = ((scores - means[1]) ** 2 - (scores - means[0]) ** 2) / (2.0 * variance)
    return ratios


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
"""The least type I error of a test of the given power, from a trade-off curve: ``g`` above."""

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
        raise ParameterError(f"{guesses} guesses of {len(scores)} coins; make between one and all")
    order = np.argsort(-scores, kind="stable")
    guessed = np.zeros(len(scores), dtype=np.int64)
    guessed[order[: (guesses + 1) // 2]] = 1
    guessed[order[len(order) - guesses // 2 :]] = -1
    return guessed


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
    possible = bisected(
        lambda power: _possible(math.exp(power), correct, guesses, canaries, curve), math.log(_SMALLEST), 0.0
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
