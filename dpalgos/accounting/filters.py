"""Filters: how much may still be charged when every plan is chosen in view of what earlier plans released.

Setting
-------
A row is replaced; call the laws of everything released P and Q. The analyst picks plan k (its algorithms and so its
cost) as any function of the outputs of plans 1 … k-1; a filter looks at the costs alone and stops the process when
they add up to too much. A plan is fixed when it is charged and enters by bounds on its whole curve, that of all its
releases together (:mod:`~dpalgos.accounting.domination`). ``H = H_{e^E}(P || Q)`` is the least delta at epsilon E (see
:mod:`~dpalgos.accounting.profiles`). What a plan costs the row is at most what it costs the row's party
(:mod:`~dpalgos.accounting.spending`); all sums below are of such costs and hold on every path.

Composing privacy-loss distributions of parameters that were chosen in view of outputs and stopping at the cap is *not*
among the filters: it is no valid one ("f-differential privacy filters: validity and approximate solutions", arXiv
2602.06756).

gdp: ``sum mu_k^2 <= B^2`` implies B-Gaussian-DP
------------------------------------------------
(Smith, Thakurta, "Fully adaptive composition for Gaussian differential privacy", 2022; Koskela, Tobaben, Honkela,
"Individual privacy accounting with Gaussian differential privacy", ICLR 2023.) Proof. Let W be Brownian motion with
drift s, s = 1 under P and 0 under Q. Given the past, plan k's pair of outputs is a post-processing of N(mu_k, 1)
against N(0, 1) (Blackwell's theorem), and such a draw is read off W's increment over the next ``mu_k^2`` units of
time, divided by mu_k: N(s mu_k, 1), independent of the past, since the interval's end is known at its start. So the
transcript is a post-processing of W up to time B^2, and W's likelihood ratio there depends on ``W(B^2) ~ N(s B^2,
B^2)`` alone: a pair that is N(B, 1) against N(0, 1).

zcdp: ``sum rho_k <= B`` implies B-zCDP
---------------------------------------
(Feldman, Zrnic, "Individual privacy accounting via a Rényi filter", NeurIPS 2021; Whitehouse, Ramdas, Rogers, Wu,
"Fully-adaptive composition in differential privacy", ICML 2023, also with slack.) Proof. Let Λ_k be the likelihood
ratio after k plans. For every alpha > 1, ``Λ_k^alpha exp(-(alpha-1) alpha sum_{j<=k} rho_j)`` is a supermartingale
under Q, because plan k's divergence given the past is at most ``alpha rho_k`` and rho_k is known before it. So
``E_Q[Λ^alpha] <= exp((alpha-1) alpha B)``.

basic: ``sum epsilon_k <= E`` and ``sum delta_k <= D`` implies (E, D)-DP
-----------------------------------------------------------------------
(Rogers, Roth, Ullman, Vadhan, "Privacy odometers and filters", NeurIPS 2016.) Proof: with the slack argument below for
delta_k, and ``Λ <= exp(sum epsilon_k)`` outside.

Slack
-----
An (epsilon, delta)-DP pair is, with probability ``1 - delta``, an epsilon-DP pair, and anything else otherwise
(Murtagh, Vadhan 2016, Lemma 3.2). A plan whose curve lies below ``s + (1 - s) H_t(G_mu)`` is a post-processing of the
pair that is mu-Gaussian-DP with probability ``1 - s`` and tells everything otherwise, so it is of the same form. Let
slack_k be these probabilities, ``sum slack_k <= S`` on every path. Let P', Q'
be the laws of the process in which the pure pair is always drawn. On transcripts on which it was always drawn, P and Q
have densities ``w dP'`` and ``w dQ'`` with the same ``w = prod (1 - slack_k) <= 1``, so these contribute at most ``∫ w
max(0, dP' - e^E dQ') <= H'``; the rest has P-probability at most S. Hence ``H <= S + H'``, with H' from the filter.

The best that applies
---------------------
The analyst may let outputs decide which filter serves best, so delta is divided: filter f gets ``D_f``, sum D_f <= D,
and a plan is admitted if afterwards *some* f finds the whole history within (E, D_f). Proof. Costs are non-negative,
so if f holds at the end it held all the time. Sort transcripts by the first f that holds at their end, into T_f. On
T_f the process coincides with the one that f alone stops, with laws P_f, Q_f, so ``P(A ∩ T_f) = P_f(A ∩ T_f)``, alike
for Q, and for any event A ``P(A) - e^E Q(A) = sum_f [P_f(A ∩ T_f) - e^E Q_f(A ∩ T_f)] <= sum_f D_f <= D``. (Without
the division this is false: a test shows a process that exceeds D.) Basic sums of pure epsilons hold with ``D_f = 0``,
so they need no part of delta.

The parts may be any function of the account's first plan, since nothing was released when it was chosen. :func:`shares`
gives 7/8 to the filter that would find the least epsilon after ten such plans and 1/16 to each other, which costs the
favourite less than 2 % of its mu^2 at epsilon 1 and delta 1e-5, instead of 12 % with thirds.

A single plan
-------------
If all that touches a row is one plan, its releases were fixed before any of them, and its tight composition at the full
D counts. Proof that this goes with the filters. Plans before the first one that touches the row have the same law under
P and Q; condition on them. That first plan is then a fixed one. Either some filter holds it: then all transcripts are
covered by the argument above, the single plan's included. Or none does, and none will after more plans, so nothing
that touches the row follows it: the transcript is that plan's, and H <= D is its tight composition's statement.

Two plans at once
-----------------
Plans whose releases interleave are covered too: an interactive mechanism is an interactive post-processing of the pair
that its whole trade-off function allows (Vadhan, Zhang, "Concurrent composition theorems for differential privacy",
STOC 2023, Theorem 1.4), so concurrent composition costs no more than sequential, and every filter for (epsilon,
delta)-DP, f-DP or Rényi-DP extends to it (Haney, Shoemate, Tian, Vadhan, Vyrros, Xu, Zhang, "Concurrent composition for
interactive differential privacy with adaptive privacy-loss parameters", CCS 2023).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from dpalgos.accounting.conversions import rho_from_epsilon_delta, zcdp_delta, zcdp_epsilon
from dpalgos.accounting.costs import PlanCost
from dpalgos.accounting.profiles import GaussianProfile, gaussian_epsilon
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta

_SMALLEST_DELTA = 1e-300
# Dyadic, so that the parts add up to 1 exactly.
_FAVOURITE, _OTHER = 7 / 8, 1 / 16


class Totals(NamedTuple):
    """Sums over plans of the quantities of :class:`~dpalgos.accounting.costs.PlanCost`."""

    mu_squared: float = 0.0
    rho: float = 0.0
    slack: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    @classmethod
    def of(cls, costs: Iterable[PlanCost]) -> Totals:
        """Add costs up, each sum rounded once."""
        rows = [(cost.mu_squared, cost.rho, cost.slack, cost.epsilon, cost.delta) for cost in costs]
        return cls(*map(math.fsum, zip(*rows, strict=True))) if rows else cls()

    def plus(self, other: Totals) -> Totals:
        """Return the sums of both."""
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))

    def largest(self, other: Totals) -> Totals:
        """Return the larger of each quantity."""
        return Totals(*(max(a, b) for a, b in zip(self, other, strict=True)))


class Filter(Protocol):
    """A rule that holds under full adaptivity."""

    name: str

    def epsilon(self, totals: Totals, delta: float) -> float:
        """Return the smallest epsilon at which these sums are within (epsilon, delta); infinite where there is none."""
        ...

    def holds(self, totals: Totals, epsilon: float, delta: float) -> bool:
        """Whether these sums are within (epsilon, delta)."""
        ...

    def may_reach(self, totals: Totals, epsilon: float, delta: float) -> bool:
        """Whether :meth:`epsilon` may be this or less: quicker to tell than what it is."""
        ...


class _GaussianFilter:
    name = "gdp"

    def epsilon(self, totals: Totals, delta: float) -> float:
        left = _left(totals, delta)
        if totals.mu_squared == 0:
            return 0.0 if left >= 0 else math.inf
        return gaussian_epsilon(_root(totals.mu_squared), left)

    def holds(self, totals: Totals, epsilon: float, delta: float) -> bool:
        left = _left(totals, delta)
        if totals.mu_squared == 0 or left < _SMALLEST_DELTA:
            return totals.mu_squared == 0 and left >= 0
        return _root(totals.mu_squared) <= mu_from_epsilon_delta(epsilon, left)

    def may_reach(self, totals: Totals, epsilon: float, delta: float) -> bool:
        return GaussianProfile(_root(totals.mu_squared)).delta(epsilon) <= _left(totals, delta)


class _ConcentratedFilter:
    name = "zcdp"

    def epsilon(self, totals: Totals, delta: float) -> float:
        left = _left(totals, delta)
        if totals.rho == 0:
            return 0.0 if left >= 0 else math.inf
        if left < _SMALLEST_DELTA or math.isinf(totals.rho):
            return math.inf
        return zcdp_epsilon(totals.rho, left)

    def holds(self, totals: Totals, epsilon: float, delta: float) -> bool:
        left = _left(totals, delta)
        if totals.rho == 0 or left < _SMALLEST_DELTA:
            return totals.rho == 0 and left >= 0
        return totals.rho <= rho_from_epsilon_delta(epsilon, left)

    def may_reach(self, totals: Totals, epsilon: float, delta: float) -> bool:
        return math.isfinite(totals.rho) and zcdp_delta(totals.rho, epsilon) <= _left(totals, delta)


class _BasicFilter:
    name = "basic"

    def epsilon(self, totals: Totals, delta: float) -> float:
        return totals.epsilon if totals.delta <= delta else math.inf

    def holds(self, totals: Totals, epsilon: float, delta: float) -> bool:
        return totals.delta <= delta and totals.epsilon <= epsilon

    may_reach = holds


def _root(square: float) -> float:
    # Squares, sums and root are each rounded once.
    return math.sqrt(square) * (1 + 1e-15)


def _left(totals: Totals, delta: float) -> float:
    """Return what the slack leaves of delta, rounded down."""
    return math.nextafter(delta - totals.slack, -math.inf) if totals.slack > 0 else delta


FILTERS: Mapping[str, Filter] = {
    entry.name: entry for entry in (_GaussianFilter(), _ConcentratedFilter(), _BasicFilter())
}
# How many plans like the first the division of delta is chosen for; fewer where their deltas leave no room for so many.
_EXPECTED = (10, 3, 1)


def shares(first: Iterable[PlanCost], delta: float, reserved: float = 0.0) -> Mapping[str, float]:
    """Return each filter's part of delta, from what the account's first plan costs its parties.

    They add up to 1, less what is ``reserved`` for later filters.
    """
    one = functools.reduce(Totals.largest, (Totals.of([cost]) for cost in first), Totals())
    favourite = _favourite(one, delta)
    return {name: (1 - reserved) * (_FAVOURITE if name == favourite else _OTHER) for name in FILTERS}


@functools.lru_cache(maxsize=1024)
def _favourite(one: Totals, delta: float) -> str:
    """Return the filter that needs the least epsilon for plans like this one."""
    # Basic sums of pure epsilons hold with no delta at all, so they are nobody's favourite.
    candidates = [name for name in FILTERS if name != "basic" or one.delta > 0]
    found = math.inf, candidates[0]
    for count in _EXPECTED:
        many = Totals(*(count * value for value in one))
        found = min((FILTERS[name].epsilon(many, _FAVOURITE * delta), name) for name in candidates)
        if math.isfinite(found[0]):
            break
    return found[1]


def least_epsilon(totals: Totals, delta: float, parts: Mapping[str, float]) -> tuple[float, str]:
    """Return the smallest epsilon that some filter finds at its part of delta, and that filter's name."""
    return _least_epsilon(totals, delta, tuple(parts.items()))


@functools.lru_cache(maxsize=4096)
def _least_epsilon(totals: Totals, delta: float, parts: tuple[tuple[str, float], ...]) -> tuple[float, str]:
    # What an account had spent before a plan is what it had spent after the plan before.
    found = math.inf, min(FILTERS)
    for name, part in sorted(parts, key=lambda entry: -entry[1]):
        if math.isinf(found[0]) or FILTERS[name].may_reach(totals, found[0], part * delta):
            found = min(found, (FILTERS[name].epsilon(totals, part * delta), name))
    return found


def within_any(totals: Totals, epsilon: float, delta: float, parts: Mapping[str, float]) -> bool:
    """Whether some filter finds the sums within epsilon and its part of delta."""
    return any(FILTERS[name].holds(totals, epsilon, part * delta) for name, part in parts.items())
