"""Private selection: the cost of the best of several candidates, where secret coins decide which of them compete.

There are N candidates, fixed in public. Each is a mechanism that makes a model and a noisy score of it; their noise is
independent. All are run. A secret coin a candidate, heads with probability p, says whether it *enters*; the best score
among those that entered is released with its model, ties to the earlier one; if none entered, the first candidate. The
coins, their number, and the losers never leave.

Its guarantee
-------------
For two neighbours let δ be a function such that every candidate is (ε, δ(ε))-DP for every ε ≥ 0. With

- ε₁ ≥ 0 such that p δ(ε₁) ≤ (1 − p)(e^ε₁ − 1),
- c = (N − 1) ε₁ and W = p N + (1 − p)^N,

the release is (ε + c, W δ(ε))-DP for every ε ≥ 0. For N = 1 that is δ itself.

Proof. Let q_i be the density of candidate i's output y = (model, score), and F_i(y) the probability that candidate i's
score loses against y's (is smaller, or equal and i is later): an event of candidate i's output. Primes mark the other
neighbour. The output is candidate i's y with density

    A_i(y) = p q_i(y) Π_{l≠i} (1 − p + p F_l(y)),  and in addition (1 − p)^N q_1(y) for i = 1.

*A factor changes little.* F_l ≤ e^ε₁ F_l' + δ(ε₁), so

    1 − p + p F_l ≤ 1 − p + p e^ε₁ F_l' + p δ(ε₁) ≤ e^ε₁ (1 − p + p F_l'),

where the last step is the condition on ε₁. So the product of N − 1 factors changes by at most e^c. *The rest is one
candidate.* With t = e^(ε + c) and H the hockey-stick divergence,

    Σ_i ∫ max(0, A_i − t A_i') ≤ Σ_i ∫ p Π(1 − p + p F_l) max(0, q_i − t e^(−c) q_i') + (1 − p)^N H_t(q_1 ‖ q_1')
                               ≤ (p N + (1 − p)^N) δ(ε),

since the product is at most 1 and t e^(−c) = e^ε. What is released is a function of i and y. ∎

Without coins (p = 1) there is no ε₁: the best of all N candidates can cost N times as much, and so can a release that
tells how many entered. Random stopping (Liu, Talwar 2019; Papernot, Steinke 2022; Koskela, Redberg, Wang 2024) hides
the number of candidates too and costs about as much for a few of them, but its running time tells that number; here
all candidates are run, always.

References
----------
Liu, Talwar, "Private selection from private candidates", STOC 2019; Papernot, Steinke, "Hyperparameter tuning with
Rényi differential privacy", ICLR 2022; Cohen, Lyu, Nelson, Sarlós, Stemmer, "Generalized private selection and testing
with high confidence", ITCS 2023; Koskela, Redberg, Wang, "Privacy profiles for private selection", ICML 2024 (the
argument by hockey-stick divergences).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from mpmath import fp

from dpalgos.accounting.profiles import ROUNDING, GaussianProfile, mu_from_epsilon_delta, require_delta, require_epsilon
from dpalgos.parameters import Bound, ParameterError

Curve = Callable[[float], float]
# Natural logarithms below a single candidate's mu at which the search for a smaller one ends.
_LEAST = 60.0


def require_chance(probability: float) -> None:
    """Raise ParameterError unless the probability of entering lies strictly between 0 and 1."""
    if not 0.0 < probability < 1.0:
        raise ParameterError(
            f"the probability that a candidate enters is {probability!r}; it must lie strictly between 0 and 1, "
            "because with 1 the best candidate can cost as much as all"
        )


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return about where a function of the order of 1 is 0; its signs differ at both ends."""
    # Importing SciPy's root finders takes longer than everything else that is said of the algorithms.
    return float(fp.findroot(function, (low, high), solver="illinois", tol=1e-12, maxsteps=100, verify=False))


def entry_epsilon(delta: Curve, probability: float) -> float:
    """Return ε₁ with p δ(ε₁) ≤ (1 − p)(e^ε₁ − 1), nearly the least, rounded up.

    Parameters
    ----------
    delta : callable
        Upper bounds on a candidate's δ at each ε ≥ 0; falling.
    probability : float
        p, in (0, 1).
    """
    require_chance(probability)

    def excess(epsilon: float) -> float:
        allowed = (1.0 - probability) * math.expm1(epsilon) * (1.0 - ROUNDING)
        return probability * delta(epsilon) * (1.0 + ROUNDING) - allowed

    # No delta is above 1, so the condition holds here.
    high = -math.log1p(-probability) * (1.0 + 1e-9) + 1e-9
    if excess(0.0) <= 0.0:
        return 0.0
    scale = probability * delta(0.0)
    epsilon_bound, step = _root(lambda epsilon: excess(epsilon) / scale, 0.0, high), 1e-10
    while excess(epsilon_bound) > 0.0:
        epsilon_bound, step = epsilon_bound * (1.0 + step) + 1e-12, 2.0 * step
    return min(epsilon_bound, high)


def selection_delta(delta: Curve, epsilon: float, candidates: int, probability: float) -> float:
    """Return an upper bound on the selection's δ at ε, rounded up; 1 where nothing is proved.

    Parameters
    ----------
    delta : callable
        Upper bounds on the δ of every candidate at each ε ≥ 0.
    epsilon : float
    candidates : int
        N.
    probability : float
        p with which a candidate enters, in (0, 1).

    Raises
    ------
    ParameterError
        For numbers out of range.
    """
    require_epsilon(epsilon)
    shift, weight = _selection_terms(delta, candidates, probability)
    return min(1.0, weight * delta(epsilon - shift)) if epsilon >= shift else 1.0


def _selection_terms(delta: Curve, candidates: int, probability: float) -> tuple[float, float]:
    """Return c and W of the guarantee of a private selection, rounded up."""
    Bound(1, whole=True).require("candidates", candidates)
    require_chance(probability)
    if candidates == 1:
        return 0.0, 1.0
    shift = (candidates - 1) * entry_epsilon(delta, probability) * (1.0 + ROUNDING)
    return shift, (probability * candidates + (1.0 - probability) ** candidates) * (1.0 + ROUNDING)


@lru_cache(maxsize=256)
def _gaussian_selection_terms(mu: float, candidates: int, probability: float) -> tuple[float, float]:
    return _selection_terms(GaussianProfile(mu).delta, candidates, probability)


@dataclass(frozen=True, slots=True)
class SelectionProfile:
    """The curve of the selection among mu-Gaussian-DP candidates: (ε + c, W δ_μ(ε))-DP for every ε at once.

    It describes one pair of data sets, neighbours or a group apart, for which every candidate is mu-Gaussian-DP; the
    (ε, δ) that a selection was calibrated to is one of its points.

    Parameters
    ----------
    mu : float
        Of each candidate, its score included.
    candidates : int
        N.
    chance : float
        p with which a candidate enters, in (0, 1).
    """

    mu: float
    candidates: int
    chance: float

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon at which :meth:`delta` is at most delta, rounded up; infinite without one."""
        require_delta(delta)
        shift, weight = _gaussian_selection_terms(self.mu, self.candidates, self.chance)
        each = max(math.nextafter(delta / weight, 0.0), 0.0)
        return (GaussianProfile(self.mu).epsilon(each) + shift) * (1.0 + 1e-15)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta, rounded up; 1 where nothing is proved."""
        require_epsilon(epsilon)
        shift, weight = _gaussian_selection_terms(self.mu, self.candidates, self.chance)
        return min(1.0, weight * GaussianProfile(self.mu).delta(epsilon - shift)) if epsilon >= shift else 1.0


@lru_cache(maxsize=256)
def candidate_mu(epsilon: float, delta: float, candidates: int, probability: float) -> float:
    """Return the largest μ, from below, of which the selection among μ-Gaussian-DP candidates is (ε, δ)-DP.

    Raises
    ------
    ParameterError
        For numbers out of range, δ = 0 among them, which no Gaussian noise has.
    """
    require_epsilon(epsilon)
    require_delta(delta)
    if epsilon == 0.0 or delta == 0.0:
        raise ParameterError(
            f"epsilon is {epsilon!r} and delta {delta!r}; candidates with Gaussian noise need both above 0"
        )

    def short(log_mu: float) -> float:
        """Return how far the logarithm of the selection's delta is above that of the budget."""
        loss = selection_delta(GaussianProfile(math.exp(log_mu)).delta, epsilon, candidates, probability)
        return math.log(max(loss, 1e-320)) - math.log(delta)

    # A single candidate may cost most.
    high = math.log(mu_from_epsilon_delta(epsilon, delta)) + 1e-6
    low = high - 1.0
    while short(low) > 0.0:
        low -= 1.0
        if low < high - _LEAST:
            raise ParameterError(
                f"epsilon {epsilon:g} and delta {delta:g} are too small for {candidates} candidates: tune fewer values"
            )
    mu = _root(short, low, high) if short(high) > 0.0 else high
    step = 1e-10
    while short(mu) > 0.0:
        mu, step = mu - step, 2.0 * step
    return math.exp(mu)
