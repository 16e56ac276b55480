"""Scaling a plan's stages together until what its releases really cost meets the target from below."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from dpalgos.accounting.composition import compose
from dpalgos.accounting.scaling import scaled
from dpalgos.guarantees import Loss

# How close the composed epsilon comes to the target, from below, and how often that is tried.
_TIGHT, _TRIES = 1e-4, 20
_LEAST = 2.0**-20


def tightened(
    budgets: Sequence[Loss],
    bills: Callable[[tuple[Loss, ...]], Collection[tuple[Loss, ...]]],
    epsilon: float,
    delta: float,
) -> tuple[Loss, ...]:
    """Return the stages' budgets, all scaled alike, with which the dearest bill comes to epsilon at delta.

    A stage may cost less than its budget looks: ten pure releases of a tenth each compose with a Gaussian more tightly
    than one pure release. Or more: the sparse graph of a secure sum may fail, which is charged on top.

    Parameters
    ----------
    budgets : sequence of Loss
        One a stage, as they were split.
    bills : callable
        What the releases under given budgets cost each party whose rows they read: the parties that the budgets are
        for, and no others. (Held-out rows are a party of their own that pays for its evaluation alone; counted here,
        it would meet the target at once and leave the training what it had been given roughly.)
    epsilon, delta : float
        The target.

    Returns
    -------
    tuple of Loss
        The budgets as they were where the bill meets the target already, proves nothing, or is above the target with
        any noise.
    """

    def at(factor: float) -> tuple[Loss, ...]:
        return tuple(scaled(loss, factor) for loss in budgets)

    def cost(factor: float) -> float:
        return max((compose(bill).epsilon(delta) for bill in set(bills(at(factor)))), default=0.0)

    first = cost(1.0)
    if not math.isfinite(first) or epsilon * (1 - _TIGHT) <= first <= epsilon:
        return tuple(budgets)
    if first > epsilon:
        # Costs grow about as the factor does, so twice the excess is nearly always enough.
        low, high = max(1 - 2 * (first / epsilon - 1), 0.5), 1.0
        while cost(low) > epsilon:
            low, high = low / 2, low
            if low < _LEAST:
                return tuple(budgets)
        if high - low <= _TIGHT / 2:
            return at(low)
    else:
        low, high = 1.0, 2.0
        while cost(high) <= epsilon and high < 64:
            low, high = high, 2 * high
    for _ in range(_TRIES):
        middle = (low + high) / 2
        spent = cost(middle)
        low, high = (middle, high) if spent <= epsilon else (low, middle)
        if epsilon * (1 - _TIGHT) <= spent <= epsilon:
            break
    return at(low)
