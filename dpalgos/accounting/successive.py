"""Filters one after the other: what an account promises whose cap its owner raises in view of what was released.

A filter's theorem covers plans that are chosen in view of outputs, not a cap that is. A raised cap is therefore the old
cap and a *new* filter beside it: filter j admits plans within its own (E_j, delta_j), each plan belongs wholly to the
filter in force when it was charged, and what an earlier filter had left is not carried over.

Guarantee
---------
Let the deltas be a series fixed at opening with ``sum delta_j <= delta``, and ``E = sum of E_j`` over the filters that
were opened, a number that may depend on outputs, as each E_j may. Then for the laws P, Q of everything released,

    ``∫ max(0, dP - e^E dQ) <= delta``,

so that ``P(A, E <= x) <= e^x Q(A, E <= x) + delta`` for every event A and every x at once. Proof. Given all that
preceded filter j (which decides E_j), what is released under it has laws p_j, q_j with ``∫ max(0, p_j - e^{E_j} q_j)
<= delta_j`` (:mod:`~dpalgos.accounting.filters`). Put ``m_j = min(p_j, e^{E_j} q_j)``. The product of the m_j is at
most ``e^E dQ`` everywhere, and it lacks of dP what the first j with ``m_j < p_j`` lacks: in all at most the sum over j
of the P-mass of ``p_j - m_j``, which is at most ``sum delta_j``.

The series is ``15/16, 1/32, 1/64, …`` of delta: it adds up to delta whatever the number of raises, and the first
filter, the only one of most accounts, gives up less than 1 % of its mu^2 at epsilon 1 and delta 1e-5.

A first plan at the whole delta. As long as one plan is all that touches a row, its tight composition at the whole delta
counts. If that plan is not within (E_0, delta_0), no second filter may be opened: :func:`filter_in_force` is for
accounts whose earlier filters were checked at their own deltas, and :class:`Earlier` lists them for that check. Whether
such a plan exists is a function of the first plan that touches the row, which is fixed given what preceded it, so the
two cases do not mix: either the row's transcript is that plan's, or every filter holds at its own delta.

A lowered cap admits less from then on. It is no theorem of its own, since it was chosen in view of outputs: what is
promised stays the highest cap. A cap that is raised again up to that height opens no filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpalgos.errors import ParameterError

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
