"""Filters: how much may still be charged when every plan is chosen in view of what earlier plans released."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from dpalgos.accounting.costs import PlanCost, Totals
from dpalgos.accounting.profiles import (
    GaussianProfile,
    gaussian_epsilon,
    rho_from_epsilon_delta,
    zcdp_delta,
    zcdp_epsilon,
)
from dpalgos.errors import ParameterError
from dpalgos.mechanisms.gaussian import SMALLEST_DELTA, mu_from_epsilon_delta

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
        """Whether these sums are within (epsilon, delta)."""
        spent, left = self.spent(totals), _left(totals, delta)
        if spent == 0 or left < SMALLEST_DELTA:
            return spent == 0 and left >= 0
        return spent <= self.most(epsilon, left)

    def may_reach(self, totals: Totals, epsilon: float, delta: float) -> bool:
        """Whether :meth:`epsilon` may be this or less: quicker to tell than what it is."""
        spent = self.spent(totals)
        return math.isfinite(spent) and self.curve(spent, epsilon) <= _left(totals, delta)


def _mu(totals: Totals) -> float:
    # Squares, sums and root are each rounded once.
    return math.sqrt(totals.mu_squared) * (1 + 1e-15)


def _gaussian_curve(mu: float, epsilon: float) -> float:
    return GaussianProfile(mu).delta(epsilon)


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
        Filter("gdp", _mu, gaussian_epsilon, mu_from_epsilon_delta, _gaussian_curve),
        Filter("zcdp", attrgetter("rho"), zcdp_epsilon, rho_from_epsilon_delta, zcdp_delta),
        _BasicFilter(),
    )
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
    best = math.inf, candidates[0]
    for count in _EXPECTED:
        many = Totals(*(count * value for value in one))
        best = min((FILTERS[name].epsilon(many, _FAVOURITE * delta), name) for name in candidates)
        if math.isfinite(best[0]):
            break
    return best[1]


def least_epsilon(totals: Totals, delta: float, parts: Mapping[str, float]) -> tuple[float, str]:
    """Return the smallest epsilon that some filter finds at its part of delta, and that filter's name."""
    return _least_epsilon(totals, delta, tuple(parts.items()))


@functools.lru_cache(maxsize=4096)
def _least_epsilon(totals: Totals, delta: float, parts: tuple[tuple[str, float], ...]) -> tuple[float, str]:
    # What an account had spent before a plan is what it had spent after the plan before.
    best = math.inf, min(FILTERS)
    for name, part in sorted(parts, key=lambda entry: -entry[1]):
        if math.isinf(best[0]) or FILTERS[name].may_reach(totals, best[0], part * delta):
            best = min(best, (FILTERS[name].epsilon(totals, part * delta), name))
    return best


def within_any(totals: Totals, epsilon: float, delta: float, parts: Mapping[str, float]) -> bool:
    """Whether some filter finds the sums within epsilon and its part of delta."""
    return any(FILTERS[name].holds(totals, epsilon, part * delta) for name, part in parts.items())


RESERVED = 1 / 16
"""Of an account's delta, what is kept for the filters that raises open: half for the first, half of the rest each."""


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
    """Where an account stands in its series of filters.

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
        raise ParameterError("an account without a cap has no filter; give the epsilon of its cap at opening")
    earlier: list[Earlier] = []
    promised, below, changes = caps[0], 0.0, 0
    for index, cap in enumerate(caps[1:], start=1):
        if cap > promised:
            # What a filter may hold is rounded down: its end less its beginning.
            share = _share(len(earlier), reserved) * delta
            earlier.append(Earlier(epsilon=_difference(promised, below), delta=share, changes=changes))
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


def _difference(high: float, low: float) -> float:
    return high if low == 0 else max(math.nextafter(high - low, 0.0), 0.0)
