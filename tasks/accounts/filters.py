"""An account's plans, added up for the series of privacy filters that its cap has opened."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, cast

from dpalgos.accounting.costs import PlanCost
from dpalgos.accounting.spending import FilterCap, SummedHistory, filter_in_force, status
from storage.ledger.charges import AccountTerms, Cap, History, PlanRecord


def finite_or_none(value: float) -> float | None:
    """Return a number as JSON holds it: None where it is infinite."""
    return value if math.isfinite(value) else None


def read_costs(written: Mapping[str, Mapping[str, object]]) -> dict[str, PlanCost]:
    """Return what each party was charged, from the JSON that an entry of the ledger holds."""
    costs: dict[str, PlanCost] = {}
    last: tuple[Mapping[str, object], PlanCost] | None = None
    for party, cost in written.items():
        # Neighbours mostly paid the same.
        if last is None or last[0] != cost:
            last = cost, PlanCost.from_json(dict(cost))
        costs[party] = last[1]
    return costs


def sum_plans(history: History, terms: AccountTerms, start: int = 0, end: float = math.inf) -> SummedHistory:
    """Add up the plans that were charged from one entry to another, and after the last of all what is set aside.

    Plans before and after a restoration of the ledger are in different partitions
    (:func:`tasks.accounts.ledger.restore_ledger`).
    """
    first, last = (bisect_left(history.plans, place, key=lambda plan: plan.sequence) for place in (start, end))
    done, summed, restored = history.memo.get((start, end)) or (
        first,
        SummedHistory(groups=terms.group_size > 1),
        _restored(history.plans[:first]),
    )
    for plan in history.plans[done:last]:
        restored = restored if plan.releases else plan.partition
        summed = summed.with_plan(_since(restored, plan.partition), read_costs(plan.costs))
    history.memo[start, end] = last, summed, restored
    for plan in () if end < math.inf else history.pending:
        summed = summed.with_plan(_since(restored, plan.partition), read_costs(plan.costs))
    return cast(SummedHistory, summed)


def _restored(plans: Sequence[PlanRecord]) -> str:
    """Return the partition of the last plan that a restoration recorded, empty where there is none."""
    return next((one.partition for one in reversed(plans) if not one.releases), "")


def _since(restored: str, partition: str) -> str:
    """Return what a partition is added up as, after a restoration if there was one."""
    return f"{partition} since {restored}" if restored else partition


def counted_as(history: History, partition: str) -> str:
    """Return what one more plan's partition is added up as."""
    return _since(_restored(history.plans), partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterStatus:
    """An account in its series of filters.

    Parameters
    ----------
    limit : FilterCap
        What the filter in force admits.
    summed : SummedHistory
        The plans that were charged under it, added up.
    promised : float
        The epsilon of the theorem: the highest cap so far.
    broken : str or None
        Why an earlier filter did not keep to its own delta.
    """

    limit: FilterCap
    summed: SummedHistory
    promised: float
    broken: str | None

    @classmethod
    def of(cls, history: History, cap: Cap, terms: AccountTerms) -> Self:
        """Return where a history stands under a cap and its changes; `cap` is the one in force."""
        changes = sorted(terms.changes, key=lambda change: change.sequence)
        opening = changes[0].before if changes else cap
        starts = [0, *(change.sequence for change in changes)]
        # A delta that was lowered is kept to; one that was raised was never in the series.
        in_force = filter_in_force(
            [opening.epsilon, *(change.cap.epsilon for change in changes)],
            min(opening.delta, cap.delta),
            float(terms.deltas["reserved"]),
        )
        bounds = [*(starts[closed.changes] for closed in in_force.earlier), starts[in_force.changes]]
        broken = None
        for closed, start, end in zip(in_force.earlier, bounds, bounds[1:], strict=False):
            held = status(sum_plans(history, terms, start, end), FilterCap(closed.epsilon, closed.delta))
            if not held.admitted:
                broken = (
                    "a raised cap opens a new filter, and earlier charges have spent the delta reserved for it: "
                    f"{held.reason}; a first run with a smaller delta would have left it"
                )
        return cls(
            limit=FilterCap(
                cap.epsilon,
                in_force.delta,
                earlier=in_force.earlier_epsilon,
                reserved=in_force.reserved,
                promised=in_force.promised,
            ),
            summed=sum_plans(history, terms, bounds[-1]),
            promised=in_force.promised,
            broken=broken,
        )
