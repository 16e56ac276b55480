"""Plans that would still fit under an account's cap, asked without a charge: one plan repeatedly, or several."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpalgos.accounting.costs import PlanCost
from dpalgos.accounting.spending import SummedHistory, repeats_left, status
from storage.ledger.charges import AccountTerms, Cap, History, PlanRequest
from tasks.accounts.filters import FilterStatus, counted_as
from tasks.accounts.ledger import open_ledger
from tasks.accounts.pricing import AccountingPolicy


@dataclass(frozen=True, slots=True)
class Spending:
    """An account with a cap, to ask what would fit; nothing is charged.

    Parameters
    ----------
    history : History
    terms : AccountTerms
    cap : Cap
    now : FilterStatus
    """

    history: History
    terms: AccountTerms
    cap: Cap
    now: FilterStatus

    def _priced(self, plan: PlanRequest) -> tuple[str, Mapping[str, PlanCost]]:
        # Of two prices the ledger takes the one that leaves more: by the first, no more is said to fit.
        price = AccountingPolicy().prices(plan.releases, plan.delta, self.terms)[0]
        return counted_as(self.history, plan.partition), price

    def repeats(self, plan: PlanRequest) -> int:
        """Return how many plans exactly like this one would be admitted one after the other."""
        return repeats_left(self.now.summed, self._priced(plan), self.now.limit)

    def _after(self, plans: Sequence[PlanRequest]) -> list[SummedHistory]:
        """Return the account before any plan, and after each."""
        priced = {id(plan): self._priced(plan) for plan in {id(plan): plan for plan in plans}.values()}
        sums = [self.now.summed]
        for plan in plans:
            sums.append(sums[-1].with_plan(*priced[id(plan)]))
        return sums

    def admitted(self, plans: Sequence[PlanRequest]) -> int:
        """Return how many plans would be admitted, in this order, before the first that is refused."""
        sums = self._after(plans)
        # Sums only grow, so what one more plan may not exceed no later one meets.
        within = bisect_left(range(1, len(sums)), True, key=lambda at: not status(sums[at], self.now.limit).admitted)
        return 0 if self.now.broken is not None else within

    def epsilon(self, plans: Sequence[PlanRequest]) -> float:
        """Return what is spent after these plans, at the cap's delta."""
        return status(self._after(plans)[-1], self.now.limit).after.epsilon


def spending(account: str) -> Spending | None:
    """Return an account with what was charged to it; None where it has no cap."""
    ledger = open_ledger()
    terms, history = ledger.account(account), ledger.history(account)
    if terms.cap is None:
        return None
    return Spending(history, terms, terms.cap, FilterStatus.of(history, terms.cap, terms))
