"""Privacy filters: an account's spending over all plans, parties and partitions, and admission under its cap.

Setting
-------
A row is replaced; call the distributions of everything released P and Q. The analyst picks plan k (its algorithms and
so its cost) as any function of the outputs of plans 1 … k-1; a filter looks at the costs alone and stops the process
when they add up to too much. A plan is fixed when it is charged and enters by bounds on its whole curve, that of all
its releases together (:mod:`~dpalgos.accounting.composition`). ``H = H_{e^E}(P || Q)`` is the least delta at epsilon E
(see :mod:`~dpalgos.accounting.profiles`). What a plan costs the row is at most what it costs the row's party (below);
all sums add such costs and hold on every path.

Composing privacy-loss distributions of parameters that were chosen in view of outputs and stopping at the cap is *not*
among the filters: it is not a valid one ("f-differential privacy filters: validity and approximate solutions", arXiv
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
pair that is mu-Gaussian-DP with probability ``1 - s`` and tells everything otherwise, so it has the same form. Let
slack_k be these probabilities, ``sum slack_k <= S`` on every path. Let P', Q' be the distributions of the process in
which the pure pair is always drawn. On transcripts on which it was always drawn, P and Q have densities ``w dP'`` and
``w dQ'`` with the same ``w = prod (1 - slack_k) <= 1``, so these contribute at most ``∫ w max(0, dP' - e^E dQ') <=
H'``; the rest has P-probability at most S. Hence ``H <= S + H'``, with H' from the filter.

The best that applies
---------------------
The analyst may let outputs decide which filter serves best, so delta is divided: filter f gets ``D_f``, sum D_f <= D,
and a plan is admitted if afterwards *some* f finds the whole history within (E, D_f). Proof. Costs are non-negative, so
if f holds at the end it held all the time. Sort transcripts by the first f that holds at their end, into T_f. On T_f
the process coincides with the one that f alone stops, with distributions P_f, Q_f, so ``P(A ∩ T_f) = P_f(A ∩ T_f)``,
alike for Q, and for any event A ``P(A) - e^E Q(A) = sum_f [P_f(A ∩ T_f) - e^E Q_f(A ∩ T_f)] <= sum_f D_f <= D``.
(Without the division this is false: a test shows a process that exceeds D.) Basic sums of pure epsilons hold with ``D_f
= 0``, so they need no part of delta.

The parts may be any function of the account's first plan, since nothing was released when it was chosen.
:func:`delta_parts` gives 7/8 to the filter that would find the least epsilon after ten such plans and 1/16 to each
other, which costs the favourite less than 2 % of its mu^2 at epsilon 1 and delta 1e-5, instead of 12 % with thirds.

A single plan
-------------
If all that touches a row is one plan, its releases were fixed before any of them, and its tight composition at the full
D counts. Proof that this goes with the filters. Plans before the first one that touches the row have the same
distribution under P and Q; condition on them. That first plan is then a fixed one. Either some filter holds it: then
all transcripts are covered by the argument above, the single plan's included. Or none does, and none will after more
plans, so nothing that touches the row follows it: the transcript is that plan's, and H <= D is its tight composition's
statement.

Two plans at once
-----------------
Plans whose releases interleave are covered too: an interactive mechanism is an interactive post-processing of the pair
that its whole trade-off function allows (Vadhan, Zhang, "Concurrent composition theorems for differential privacy",
STOC 2023, Theorem 1.4), so concurrent composition costs no more than sequential, and every filter for (epsilon,
delta)-DP, f-DP or Rényi-DP extends to it (Haney, Shoemate, Tian, Vadhan, Vyrros, Xu, Zhang, "Concurrent composition for
interactive differential privacy with adaptive privacy-loss parameters", CCS 2023).

Filters one after the other
---------------------------
A filter's theorem covers plans that are chosen in view of outputs, not a cap that is. A raised cap is therefore the old
cap and an additional, *new* filter: filter j admits plans within its own (E_j, delta_j), each plan belongs wholly to
the filter in force when it was charged, and what an earlier filter had left is not carried over.

Let the deltas be a series fixed at opening with ``sum delta_j <= delta``, and ``E = sum of E_j`` over the filters that
were opened, a number that may depend on outputs, as each E_j may. Then for the distributions P, Q of everything
released,

    ``∫ max(0, dP - e^E dQ) <= delta``,

so that ``P(A, E <= x) <= e^x Q(A, E <= x) + delta`` for every event A and every x at once. Proof. Given all that
preceded filter j (which decides E_j), what is released under it has distributions p_j, q_j with ``∫ max(0, p_j -
e^{E_j} q_j) <= delta_j`` (by the filter's theorem). Put ``m_j = min(p_j, e^{E_j} q_j)``. The product of the m_j is at
most ``e^E dQ`` everywhere, and it lacks of dP what the first j with ``m_j < p_j`` lacks: in all at most the sum over j
of the P-mass of ``p_j - m_j``, which is at most ``sum delta_j``.

The series is ``15/16, 1/32, 1/64, …`` of delta: it adds up to delta for any number of raises, and the first
filter, the only one of most accounts, gives up less than 1 % of its mu^2 at epsilon 1 and delta 1e-5.

A first plan at the whole delta. As long as one plan is all that touches a row, its tight composition at the whole delta
counts. If that plan is not within (E_0, delta_0), no second filter may be opened: :func:`filter_in_force` is for
accounts whose earlier filters were checked at their own deltas, and :class:`Earlier` lists them for that check. Whether
such a plan exists is a function of the first plan that touches the row, which is fixed given what preceded it, so the
two cases do not mix: either the row's transcript is that plan's, or every filter holds at its own delta.

A lowered cap admits less from then on. This is not a separate theorem, since it was chosen in view of outputs: the
promise remains the highest cap. A cap that is raised again up to that height opens no filter.

Parties and partitions
----------------------
A *partition* divides an account's rows among parties, once and for all: by position or by the parties' own files, not
by what rows contain. Under replace-one a row's position, and so its party in every partition, is the same in both
neighbouring data sets. (Under add-remove-one the added row has one party a partition, and the same holds.)

A row pays only for the releases that read its party's rows, joint ones included: given what it does
pay for, all other outputs have the same distribution in both neighbours. So with ``c_k(a)`` what plan k of partition
``pi_k`` costs party a, a row in party ``a_pi`` of each partition pi costs ``sum_k c_k(a_{pi_k})``, and

    ``max over rows of sum_k c_k(a_{pi_k}) <= sum over partitions pi of max over its parties a of sum_{k in pi} c_k(a)``

for each quantity that adds up (mu^2, rho, epsilon, slack, delta). It is attained where some row lies in the worst
party of every partition; since partitions may cross in any way, nothing less is safe. Filters are monotone in these
sums, so a filter that holds for the bound holds for every row. With a single partition each party is judged by its own
sums, with the filter that is best for it: that filter is chosen for the row's party, so the argument above
applies row by row.

Groups
------
Where one person has up to k rows and no column says which, these may lie in several parties. Who the person is, and so
how many rows a_p lie at party p of a partition, is fixed before the first plan. Three things change.

*One filter for all parties.* A person in two parties is protected by no filter that holds for one of them only. So the
largest of each quantity over the parties is compared, and with it one filter holds for every person.

*Gaussian plans* are charged to the parties they read (:func:`dpalgos.accounting.costs.price`). Given all that was
released before, plan t costs this person ``q_t(a) <= sum over p of (a_p/k) q_t(e_p)``, and the ledger adds up
``S_p = sum over t of q_t(e_p)`` for party p. Adding up over plans, on every path of an adaptive choice,

    ``sum over t of q_t(a) <= sum over p of (a_p/k) S_p <= max over p of S_p``,

for mu^2 and for rho. The Gaussian-DP and zCDP filters need only a bound on the sum that holds on every path,
so they hold for the person. The mean over parties has the same weights a_p/k in every plan because the partition is
the same; another partition has other weights, and its maximum is added. Of basic sums each party pays the largest
epsilon and delta: a person in two parties pays the delta of every plan that reads either.

*All other plans* are charged to every party of the partition, whether or not it was read, at the largest cost, and so
are the parts of a mixture that do not add up like that.

The only plan of an account is one composition: Gaussian-DP of ``max over p of q(e_p)``, or for other losses what
:func:`~dpalgos.accounting.costs.price` shows of parties that pay alike.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from dpalgos.accounting.composition import components, compose
from dpalgos.accounting.costs import PlanCost, Totals
from dpalgos.accounting.profiles import (
    SMALLEST_DELTA,
    GaussianProfile,
    gaussian_epsilon,
    largest_fitting,
    mu_from_epsilon_delta,
    require_delta,
    rho_from_epsilon_delta,
    rho_of_mu,
    zcdp_delta,
    zcdp_epsilon,
)
from dpalgos.guarantees import Loss, rounded_up
from dpalgos.parameters import NON_NEGATIVE, Bounded, ParameterError, between

# Dyadic, so that the parts add up to 1 exactly.
_FAVOURITE, _OTHER = 7 / 8, 1 / 16


@dataclass(frozen=True, slots=True)
class Filter:
    """A rule that holds under full adaptivity: one quantity of the plans adds up, and is converted at the end.

    Parameters
    ----------
    name : str
    spent : callable
        The quantity, from the sums.
    smallest : callable
        Epsilon, from the quantity and delta.
    most : callable
        The largest quantity within (epsilon, delta).
    curve : callable
        Delta, from the quantity and epsilon.
    """

    name: str
    spent: Callable[[Totals], float]
    smallest: Callable[[float, float], float]
    most: Callable[[float, float], float]
    curve: Callable[[float, float], float]

    def epsilon(self, totals: Totals, delta: float) -> float:
        """Return the smallest epsilon at which these sums are within (epsilon, delta); infinite where there is none."""
        spent, left = self.spent(totals), _left(totals, delta)
        if spent == 0:
            return 0.0 if left >= 0 else math.inf
        return self.smallest(spent, left) if left >= SMALLEST_DELTA and math.isfinite(spent) else math.inf

    def holds(self, totals: Totals, epsilon: float, delta: float) -> bool:
        """Return whether these sums are within (epsilon, delta)."""
        spent, left = self.spent(totals), _left(totals, delta)
        if spent == 0 or left < SMALLEST_DELTA:
            return spent == 0 and left >= 0
        return spent <= self.most(epsilon, left)

    def may_reach(self, totals: Totals, epsilon: float, delta: float) -> bool:
        """Return whether :meth:`epsilon` may be this or less: quicker to tell than what it is."""
        spent = self.spent(totals)
        return math.isfinite(spent) and self.curve(spent, epsilon) <= _left(totals, delta)


def _mu(totals: Totals) -> float:
    # Squares, sums and root are each rounded once.
    return math.sqrt(totals.mu_squared) * (1 + 1e-15)


class _BasicFilter:
    name = "basic"

    def epsilon(self, totals: Totals, delta: float) -> float:
        return totals.epsilon if totals.delta <= delta else math.inf

    def holds(self, totals: Totals, epsilon: float, delta: float) -> bool:
        return totals.delta <= delta and totals.epsilon <= epsilon

    may_reach = holds


def _left(totals: Totals, delta: float) -> float:
    """Return what the slack leaves of delta, rounded down."""
    return math.nextafter(delta - totals.slack, -math.inf) if totals.slack > 0 else delta


FILTERS: Mapping[str, Filter | _BasicFilter] = {
    entry.name: entry
    for entry in (
        Filter(
            "gdp", _mu, gaussian_epsilon, mu_from_epsilon_delta, lambda mu, epsilon: GaussianProfile(mu).delta(epsilon)
        ),
        Filter("zcdp", attrgetter("rho"), zcdp_epsilon, rho_from_epsilon_delta, zcdp_delta),
        _BasicFilter(),
    )
}
# How many plans like the first the division of delta is chosen for; fewer where their deltas leave no room for so many.
_EXPECTED = (10, 3, 1)


def delta_parts(first: Iterable[PlanCost], delta: float, reserved: float = 0.0) -> Mapping[str, float]:
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
    best = math.inf, candidates[0]
    for count in _EXPECTED:
        many = Totals(*(count * value for value in one))
        best = min((FILTERS[name].epsilon(many, _FAVOURITE * delta), name) for name in candidates)
        if math.isfinite(best[0]):
            break
    return best[1]


def least_epsilon(totals: Totals, delta: float, parts: Mapping[str, float]) -> tuple[float, str]:
    """Return the smallest epsilon that some filter finds at its part of delta, and that filter's name."""
    best = math.inf, min(FILTERS)
    for name, part in sorted(parts.items(), key=lambda entry: -entry[1]):
        if math.isinf(best[0]) or FILTERS[name].may_reach(totals, best[0], part * delta):
            best = min(best, (FILTERS[name].epsilon(totals, part * delta), name))
    return best


def within_any(totals: Totals, epsilon: float, delta: float, parts: Mapping[str, float]) -> bool:
    """Return whether some filter finds the sums within epsilon and its part of delta."""
    return any(FILTERS[name].holds(totals, epsilon, part * delta) for name, part in parts.items())


RESERVED = 1 / 16
"""Of an account's delta, what is kept for the filters that raises open: half for the first, half of the rest each."""


GAUSSIAN_PART = (1 - RESERVED) * _FAVOURITE
"""Of an account's delta at opening, the favourite filter's part until a raise: 105/128.

The delta at which a plan of Gaussian losses alone is best stated. Such a plan enters the Gaussian-DP filter by mu^2,
and its delta by nothing; what it is stated at only says how much mu an epsilon buys. Under a cap (epsilon, delta) the
filter holds up to the mu with ``delta_mu(epsilon) = GAUSSIAN_PART delta``, so one run of the cap's epsilon stated at
this delta asks for exactly that mu: at a smaller delta it would ask for less, and leave room that no other filter can
use. It always fits alone: read at the whole delta its epsilon is less.

Rounding. 15/16, 7/8 and their product have few bits and are exact. The product with an account's delta is rounded once,
and is the same number as in :func:`delta_parts` times delta where Gaussian-DP is the favourite, so a run that is stated
at it, or below, fits the filter.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A filter that a raise has closed: it stays within (``epsilon``, ``delta``).

    Parameters
    ----------
    epsilon, delta : float
        Its own.
    changes : int
        How many changes of the cap preceded it.
    """

    epsilon: float
    delta: float
    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterInForce:
    """Position of an account in its series of filters.

    Parameters
    ----------
    promised : float
        The highest cap so far: the epsilon of the theorem, at the account's delta.
    earlier_epsilon : float
        The part of it that earlier filters hold, spent or not.
    delta : float
        What this filter may spend; for the first one the account's whole delta, of which ``reserved`` is for raises.
    reserved : float
        Share of ``delta`` that a plan may use only while it is the only one that touches a row.
    changes : int
        How many changes of the cap preceded this filter: plans charged after them belong to it.
    earlier : tuple of Earlier
    """

    promised: float
    earlier_epsilon: float
    delta: float
    reserved: float
    changes: int
    earlier: tuple[Earlier, ...]


def filter_in_force(caps: Sequence[float], delta: float, reserved: float = RESERVED) -> FilterInForce:
    """Return the filter that an account's caps have led to.

    Parameters
    ----------
    caps : sequence of float
        Epsilon of the cap at opening and after each change, in order.
    delta : float
        The account's, at opening.
    reserved : float
        Share of it that the account kept for raises at opening, in (0, 1): the series is 1 - reserved, reserved / 2,
        reserved / 4, …

    Raises
    ------
    ParameterError
        Without a cap, or for a share outside (0, 1).
    """
    if not 0 < reserved < 1:
        raise ParameterError(f"the share of delta that is kept for raises is {reserved!r}; it must be between 0 and 1")
    if not caps:
        raise ParameterError("an account without a cap has no filter; give the epsilon of the opening cap")
    earlier: list[Earlier] = []
    promised, below, changes = caps[0], 0.0, 0
    for index, cap in enumerate(caps[1:], start=1):
        if cap > promised:
            # What a filter may hold is rounded down: its end less its beginning.
            share = _share(len(earlier), reserved) * delta
            held = promised if below == 0 else max(math.nextafter(promised - below, 0.0), 0.0)
            earlier.append(Earlier(epsilon=held, delta=share, changes=changes))
            promised, below, changes = cap, promised, index
    first = not earlier
    return FilterInForce(
        promised=promised,
        earlier_epsilon=below,
        delta=delta if first else _share(len(earlier), reserved) * delta,
        reserved=reserved if first else 0.0,
        changes=changes,
        earlier=tuple(earlier),
    )


def _share(number: int, reserved: float) -> float:
    return 1 - reserved if number == 0 else reserved * 2.0**-number


History = Sequence[tuple[str, Mapping[str, PlanCost]]]
"""Charged plans in order: the partition of each, and what it costs every party it touches."""

_NOTHING = "nothing"
_SINGLE = "single plan"
_MOST_REPEATS = 1_000_000
_ZERO = Totals()
_FEW = 64


@dataclass(frozen=True, slots=True)
class FilterCap(Bounded):
    """The most an account may spend over its life.

    Parameters
    ----------
    epsilon : float
    delta : float
        What the filter in force may spend.
    earlier : float
        The part of epsilon that earlier filters hold.
    reserved : float
        Share of delta that is kept for later filters: only a plan that is the only one of a row may use it.
    promised : float
        The highest cap so far, where epsilon is a cap lowered below it (a soft limit). It decides nothing and is named
        with the limit.

    Raises
    ------
    ParameterError
        If epsilon is not finite and at least 0, or delta is outside [0, 1).
    """

    epsilon: float = field(metadata=NON_NEGATIVE)
    delta: float = field(metadata=between(0.0, 1.0, open_high=True))
    earlier: float = field(default=0.0, metadata=NON_NEGATIVE)
    reserved: float = field(default=0.0, metadata=between(0.0, 1.0, open_high=True))
    promised: float = field(default=0.0, metadata=NON_NEGATIVE)

    @property
    def room(self) -> float:
        """Epsilon of the filter in force, rounded down; below 0 where the cap was lowered below earlier filters."""
        return math.nextafter(self.epsilon - self.earlier, -math.inf) if self.earlier > 0 else self.epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Cost of a history of plans.

    Parameters
    ----------
    epsilon : float
        The smallest cap at ``delta`` under which these plans would have been admitted; infinite where there is none.
    delta : float
    filter : str
        What proves it: ``"gdp"``, ``"zcdp"``, ``"basic"``, ``"single plan"`` (the tight composition of the only one),
        or ``"nothing"``.
    parties : mapping of partition to mapping of party to float
        Epsilon for the rows of each party: its own plans and the worst case of other partitions. Empty where only the
        whole was asked for.
    """

    epsilon: float
    delta: float
    filter: str
    parties: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a plan fits under a cap.

    Parameters
    ----------
    admitted : bool
    cap : FilterCap
    before, after : Spent
        At the cap's delta, without the new plan and with it; for the whole account.
    reason : str
        One sentence for people.
    costs : mapping of party to PlanCost
        What each party pays: of the prices offered, the one that leaves more.
    """

    admitted: bool
    cap: FilterCap
    before: Spent
    after: Spent
    reason: str
    costs: Mapping[str, PlanCost]


@dataclass(frozen=True, slots=True)
class _TotalCost:
    """Losses that one party's rows (or any row) may have paid: sums, and the losses of a single plan."""

    totals: Totals = _ZERO
    plans: int = 0
    losses: tuple[Loss, ...] = ()

    def with_plans(self, totals: Totals, losses: tuple[Loss, ...], plans: int) -> _TotalCost:
        return _TotalCost(self.totals.plus(totals), self.plans + plans, losses if self.plans == 0 else ())

    def beside(self, other: _TotalCost) -> _TotalCost:
        """Return the total_cost of a row that pays this one and, in other partitions, the other."""
        return _TotalCost(self.totals.plus(other.totals), self.plans + other.plans, self.losses)

    def epsilon(self, delta: float, parts: Mapping[str, float]) -> tuple[float, str]:
        if self.plans == 0:
            return 0.0, _NOTHING
        if self.plans == 1:
            return compose(self.losses).epsilon(delta), _SINGLE
        return least_epsilon(self.totals, delta, parts)

    def within(self, epsilon: float, delta: float, parts: Mapping[str, float]) -> bool:
        if self.plans <= 1:
            return self.plans == 0 or compose(self.losses).delta(epsilon) <= delta
        return within_any(self.totals, epsilon, delta, parts)


def _grown(parts: tuple[float, ...], values: Iterable[float]) -> tuple[float, ...]:
    """Return numbers whose exact sum is that of ``parts`` and ``values``: few, since their bits do not overlap.

    Each step replaces two numbers by their rounded sum and its error, which float64 holds (Shewchuk 1997).
    """
    for value in values:
        if not math.isfinite(value) or math.inf in parts:
            return (math.inf,)
        kept, high = [], value
        for part in parts:
            large, small = (high, part) if abs(high) >= abs(part) else (part, high)
            high = large + small
            if low := small - (high - large):
                kept.append(low)
        parts = (*kept, high) if high else tuple(kept)
    return parts


@dataclass(frozen=True, slots=True)
class _Account:
    """Losses that one party's rows have paid in one partition, added up exactly."""

    sums: tuple[tuple[float, ...], ...] = ((),) * len(_ZERO)
    plans: int = 0
    losses: tuple[Loss, ...] = ()

    def with_cost(self, cost: PlanCost) -> _Account:
        grown = zip(self.sums, cost.totals, strict=True)
        return _Account(
            tuple(
                _grown(parts, (value,)) if len(parts) <= _FEW else _grown((), (*parts, value)) for parts, value in grown
            ),
            self.plans + 1,
            () if self.plans else cost.losses,
        )

    def total_cost(self) -> _TotalCost:
        """Return it with each sum rounded once."""
        return _TotalCost(Totals(*map(math.fsum, self.sums)), self.plans, self.losses if self.plans == 1 else ())


# Whom a plan of groups is charged to besides the parties it read; parties have names.
_EVERYBODY = ""


@dataclass(frozen=True)
class SummedHistory:
    """An account's history, added up plan by plan, so that one more costs the same after a thousand as after ten.

    Immutable: :meth:`with_plan` returns a new one that shares what has not changed.

    Attributes
    ----------
    accounts : mapping of partition to mapping of party to what its rows have paid
    first : tuple of PlanCost
        What the first plan that cost anything cost its parties.
    groups : bool
        Whether one person may have rows in several parties of a partition.
    plans : int
        How many plans cost anything.
    """

    accounts: Mapping[str, Mapping[str, _Account]] = field(default_factory=dict)
    first: tuple[PlanCost, ...] = ()
    groups: bool = False
    plans: int = 0

    @classmethod
    def of(cls, history: Iterable[tuple[str, Mapping[str, PlanCost]]], *, groups: bool = False) -> SummedHistory:
        """Add a history up."""
        paid: dict[str, dict[str, list[PlanCost]]] = {}
        first: tuple[PlanCost, ...] = ()
        plans = 0
        for partition, costs in history:
            nonzero = _nonzero(costs)
            first, plans = first or tuple(nonzero.values()), plans + bool(nonzero)
            for party, cost in (_of_groups(nonzero) if groups else nonzero).items():
                paid.setdefault(partition, {}).setdefault(party, []).append(cost)
        accounts = {
            name: {
                party: _Account(tuple(zip(*(cost.totals for cost in of), strict=True)), len(of), of[0].losses)
                for party, of in parties.items()
            }
            for name, parties in paid.items()
        }
        return cls(accounts, first, groups, plans)

    @functools.cached_property
    def total_costs(self) -> Mapping[str, Mapping[str, _TotalCost]]:
        """Return the total cost of each party's rows in each partition, each sum rounded once."""
        return {name: self._with_common(name, parties) for name, parties in self.accounts.items()}

    def _with_common(self, partition: str, parties: Mapping[str, _Account]) -> dict[str, _TotalCost]:
        paid = {party: account.total_cost() for party, account in parties.items() if party != _EVERYBODY}
        if not self.groups:
            return paid
        common, alone = self.unread(partition), self.plans == 1
        # Of several plans none is anybody's only one.
        return {
            party: _TotalCost(total.totals.plus(common.totals), self.plans, total.losses if alone else ())
            for party, total in paid.items()
        }

    def unread(self, partition: str) -> _TotalCost:
        """Return what the rows of a party have paid that no plan has read: the same for each party of the partition."""
        everybody = self.accounts.get(partition, {}).get(_EVERYBODY)
        return _TotalCost() if everybody is None else _TotalCost(everybody.total_cost().totals, self.plans)

    def with_plan(self, partition: str, costs: Mapping[str, PlanCost]) -> SummedHistory:
        """Return the history with one more plan."""
        nonzero, before = _nonzero(costs), self.accounts.get(partition, {})
        if not nonzero:
            return self
        charged = _of_groups(nonzero) if self.groups else nonzero
        # Most parties have paid the same and pay the same; each distinct sum is formed once.
        requested = {party: (before.get(party, _Account()), cost) for party, cost in charged.items()}
        formed = {(account, cost): account.with_cost(cost) for account, cost in set(requested.values())}
        changed = {party: formed[pair] for party, pair in requested.items()}
        return SummedHistory(
            {**self.accounts, partition: {**before, **changed}},
            self.first or tuple(nonzero.values()),
            self.groups,
            self.plans + 1,
        )

    def elsewhere(self, partition: str) -> _TotalCost:
        """Return the worst that a row may have paid in the other partitions."""
        return _worst(
            _largest(total_costs.values()) for name, total_costs in self.total_costs.items() if name != partition
        )

    def rows(self) -> list[_TotalCost]:
        """Return costs that bound every row's, or person's: the parties' own, or one for all where they may meet."""
        if len(self.total_costs) == 1 and not (self.groups and self.plans > 1):
            (total_costs,) = self.total_costs.values()
            return list(set(total_costs.values()))
        return [_worst(_largest(total_costs.values()) for total_costs in self.total_costs.values())]

    def epsilon(self, delta: float, reserved: float = 0.0) -> tuple[float, str]:
        """Return the largest epsilon over rows, and what proves it."""
        worst = 0.0, _NOTHING
        parts = delta_parts(self.first, delta, reserved)
        for total_cost in sorted(self.rows(), key=lambda total_cost: total_cost.totals.rho, reverse=True):
            # Most parties pay no more than the first; asking whether they do is cheaper than asking how much they pay.
            if worst[1] == _NOTHING or not math.isfinite(worst[0]) or not total_cost.within(worst[0], delta, parts):
                worst = max(worst, total_cost.epsilon(delta, parts))
        return worst


def _nonzero(costs: Mapping[str, PlanCost]) -> dict[str, PlanCost]:
    """Leave out what costs nothing: it depends on nobody's rows."""
    return {party: cost for party, cost in costs.items() if not cost.is_zero}


def _of_groups(costs: Mapping[str, PlanCost]) -> dict[str, PlanCost]:
    """Return a plan's costs as they are added up where one person may have rows in several parties."""
    if not costs:
        return {}
    gaussian = all(cost.is_gaussian for cost in costs.values())
    worst = functools.reduce(Totals.largest, (cost.totals for cost in costs.values()))
    own = {party: PlanCost(cost.losses, _own_part(cost.totals, gaussian=gaussian)) for party, cost in costs.items()}
    return {**own, _EVERYBODY: PlanCost((), _common_part(worst, gaussian=gaussian))}


def _own_part(totals: Totals, *, gaussian: bool) -> Totals:
    """Return what of a plan of groups the party pays whose rows it read: see the module's docstring."""
    return Totals(mu_squared=totals.mu_squared, rho=totals.rho) if gaussian else _ZERO


def _common_part(worst: Totals, *, gaussian: bool) -> Totals:
    """Return what of a plan of groups every party pays, from the largest that one pays."""
    return Totals(epsilon=worst.epsilon, delta=worst.delta) if gaussian else worst


def _summed(history: History | SummedHistory) -> SummedHistory:
    return history if isinstance(history, SummedHistory) else SummedHistory.of(history)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An account as it is before one more plan of a partition, so that many such plans can be tried."""

    # What parties have paid and are to pay: those that paid the same and are to pay the same stand and fall together.
    parties: frozenset[tuple[_TotalCost, PlanCost | None]]
    elsewhere: _TotalCost
    parts: Mapping[str, float]
    groups: bool
    first: bool

    @classmethod
    def of(cls, summed: SummedHistory, partition: str, costs: Mapping[str, PlanCost], cap: FilterCap) -> _Candidate:
        before = summed.total_costs.get(partition, {})
        return cls(
            frozenset((before.get(party, summed.unread(partition)), costs.get(party)) for party in (*before, *costs)),
            summed.elsewhere(partition),
            delta_parts(summed.first or costs.values(), cap.delta, cap.reserved),
            summed.groups,
            summed.plans == 0,
        )

    def fits(self, paid: Callable[[PlanCost], Totals], cap: FilterCap, plans: int) -> bool:
        """Return whether so many plans, for which parties pay this in all, are within the cap."""
        if self.groups:
            rows = self._groups(paid, plans)
        else:
            rows = {
                before if cost is None else before.with_plans(paid(cost), cost.losses, plans)
                for before, cost in self.parties
            }
        if self.elsewhere.plans > 0:
            rows = {_largest(rows).beside(self.elsewhere)}
        return cap.room >= 0 and all(one.within(cap.room, cap.delta, self.parts) for one in rows)

    def _groups(self, paid: Callable[[PlanCost], Totals], plans: int) -> set[_TotalCost]:
        costs = [cost for _, cost in self.parties if cost is not None]
        gaussian = all(cost.is_gaussian for cost in costs)
        common = _common_part(functools.reduce(Totals.largest, map(paid, costs), _ZERO), gaussian=gaussian)
        rows = {
            before.with_plans(common, (), plans)
            if cost is None
            else before.with_plans(_own_part(paid(cost), gaussian=gaussian).plus(common), cost.losses, plans)
            for before, cost in self.parties
        }
        return rows if self.first and plans == 1 else {_largest(rows)}


def _largest(total_costs: Iterable[_TotalCost]) -> _TotalCost:
    """Return a cost no smaller than any of these in any sum.

    Used where plans of another partition come on top, so that it is never a single plan's.
    """
    return _TotalCost(functools.reduce(Totals.largest, (one.totals for one in total_costs), Totals()), 2)


def _worst(total_costs: Iterable[_TotalCost]) -> _TotalCost:
    """Add up over partitions."""
    return functools.reduce(_TotalCost.beside, total_costs, _TotalCost())


def spent(history: History | SummedHistory, delta: float, reserved: float = 0.0) -> Spent:
    """Return what a history costs at delta: every party, and the account as a whole.

    A reading of what was charged, not a theorem: what is promised of an account is its cap, because a filter's
    guarantee is for a number that was fixed before.

    Parameters
    ----------
    history : SummedHistory, or sequence of (partition, mapping of party to PlanCost)
        In the order in which the plans were charged.
    delta : float
    reserved : float
        Share of delta that is kept for later filters.

    Raises
    ------
    ParameterError
        If delta is outside [0, 1).
    """
    require_delta(delta)
    summed = _summed(history)
    parts = delta_parts(summed.first, delta, reserved)
    parties = {}
    for partition, total_costs in summed.total_costs.items():
        elsewhere = summed.elsewhere(partition)
        epsilons = {
            total_cost: total_cost.beside(elsewhere).epsilon(delta, parts)[0]
            for total_cost in set(total_costs.values())
        }
        parties[partition] = {party: epsilons[total_cost] for party, total_cost in total_costs.items()}
    epsilon, name = summed.epsilon(delta, reserved)
    return Spent(epsilon=epsilon, delta=delta, filter=name, parties=parties)


def worst_totals(history: History | SummedHistory) -> Totals:
    """Return bounds, over all rows, on the sums that filters compare: over partitions, of the largest over parties."""
    return _worst(_largest(parties.values()) for parties in _summed(history).total_costs.values()).totals


def _whole(summed: SummedHistory, cap: FilterCap) -> Spent:
    epsilon, name = summed.epsilon(cap.delta, cap.reserved)
    return Spent(epsilon=epsilon, delta=cap.delta, filter=name, parties={})


def _with_earlier(spent: Spent, cap: FilterCap) -> Spent:
    """Add what earlier filters hold, rounded up."""
    if cap.earlier == 0:
        return spent
    return dataclasses.replace(spent, epsilon=math.nextafter(cap.earlier + spent.epsilon, math.inf))


def status(history: History | SummedHistory, cap: FilterCap) -> Admission:
    """Return where an account stands under a cap, with nothing new; admitted if what is charged is within it."""
    return apply_filter(history, ("", {}), cap)


def apply_filter(
    history: History | SummedHistory,
    new: tuple[str, Mapping[str, PlanCost]],
    cap: FilterCap,
    *,
    otherwise: Sequence[Mapping[str, PlanCost]] = (),
) -> Admission:
    """Decide on the next plan.

    A plan is admitted if, with it, every row is within the cap by some filter or
    by the tight composition of the only plan that touches it. A plan without privacy cost is always admitted.

    Parameters
    ----------
    history : SummedHistory, or sequence of (partition, mapping of party to PlanCost)
        All plans charged to the account, in order.
    new : (partition, mapping of party to PlanCost)
    cap : FilterCap
    otherwise : sequence of mapping of party to PlanCost
        Other prices that are proved of the same plan. Taken is one that is admitted, and of several the one after which
        there is room for most: for one more Gaussian plan of the largest mu.

    Notes
    -----
    Guarantee. If every plan of an account was admitted, everything released from its rows together is
    (cap.epsilon, cap.delta)-DP, however each plan was chosen in view of earlier releases. Proofs: the docstrings of
    this module. What is decided depends on costs only. Which of several prices
    is added up is decided by costs and history before the plan releases anything, so it is known given the past, as the
    filters' proofs ask of a plan's cost; it must be recorded and never be decided again.
    """
    summed = _summed(history)
    prices = [_nonzero(costs) for costs in (new[1], *otherwise)]
    after = [summed.with_plan(new[0], costs) for costs in prices]
    current, reached = _whole(summed, cap), [_whole(one, cap) for one in after]
    best = 0
    if otherwise:
        rooms = [
            (reached[at].epsilon <= cap.room, _room(one, new[0], prices[at], cap), -reached[at].epsilon)
            for at, one in enumerate(after)
        ]
        best = rooms.index(max(rooms))
    costs = prices[best]
    admitted = reached[best].epsilon <= cap.room or (bool(new[1]) and not costs)
    before, now = _with_earlier(current, cap), _with_earlier(reached[best], cap)
    return Admission(
        admitted=admitted,
        cap=cap,
        before=before,
        after=now,
        reason=_reason(admitted, cap, before, now, costs),
        costs=costs,
    )


def _room(summed: SummedHistory, partition: str, costs: Mapping[str, PlanCost], cap: FilterCap) -> float:
    """Return the largest mu of one more Gaussian plan of these parties that the filters would admit."""
    candidate = _Candidate.of(summed, partition, costs, cap)

    def fits(mu: float) -> bool:
        paid = Totals(mu * mu, rho_of_mu(mu), 0.0, math.inf, math.inf)
        # Counted as two, so that no single plan's composition is asked for.
        return candidate.fits(lambda cost: paid, cap, plans=2)

    return largest_fitting(fits, 1.0, lambda low, high: high - low <= 1e-8 * high or high <= 2.0**-60, most=2.0**40)


def _reason(admitted: bool, cap: FilterCap, before: Spent, after: Spent, costs: Mapping[str, PlanCost]) -> str:
    lowered = cap.promised > cap.epsilon
    limit = f"the {'soft limit' if lowered else 'cap'} of epsilon {cap.epsilon:g}" + (
        f" (the earlier cap of {cap.earlier:g}, plus later charges at delta {cap.delta:g})"
        if cap.earlier > 0
        else f" at delta {cap.delta:g}"
    )
    limit += f" (the cap is epsilon {cap.promised:g})" if lowered else ""
    spent_before, spent_after = (_said(one, cap) for one in (before, after))
    so_far = f"spent {spent_before} at delta {cap.delta:g}"
    if not costs and admitted and after.epsilon > cap.epsilon:
        return f"this plan spends nothing; {so_far}"
    if admitted:
        return f"within {limit}: {so_far} before, {spent_after} spent after (composition: {after.filter})"
    if not costs:
        return f"epsilon {spent_after} at delta {cap.delta:g} is spent already; give at least that"
    why = next((reason for cost in costs.values() if (reason := components(cost.losses).unproved) is not None), None)
    if why is not None:
        return f"this plan has no proved guarantee ({why}), so no cap admits it; {so_far}"
    would = (
        f"would bring the account from epsilon {spent_before} to {spent_after} (composition: {after.filter})"
        if math.isfinite(after.epsilon)
        else f"spends more delta than remains, so that no epsilon holds at delta {cap.delta:g} ({so_far})"
    )
    return f"this plan {would}, above {limit}"


def _said(spent: Spent, cap: FilterCap) -> str:
    # Not from the next float above a sum: of a cap of 2 before, that would be said to be 2.001.
    exact = math.nextafter(spent.epsilon, -math.inf) if cap.earlier > 0 else spent.epsilon
    return f"{rounded_up(exact, 4):g}"


def repeats_left(history: History | SummedHistory, new: tuple[str, Mapping[str, PlanCost]], cap: FilterCap) -> int:
    """Return how many plans exactly like the new one would be admitted one after the other.

    At most a million are counted.
    """
    costs = _nonzero(new[1])
    if not costs:
        return _MOST_REPEATS
    candidate = _Candidate.of(_summed(history), new[0], costs, cap)

    def fits(number: float) -> bool:
        times = round(number)
        return candidate.fits(lambda cost: Totals(*(times * value for value in cost.totals)), cap, times)

    # From a power of two the middles are whole numbers until both ends are neighbours.
    most = largest_fitting(fits, 1.0, lambda low, high: high - low <= 1, most=_MOST_REPEATS)
    return min(round(most), _MOST_REPEATS)
