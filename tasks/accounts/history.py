"""An account's budget over time: epsilon spent after each plan."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel

from storage.ledger.charges import History
from tasks.accounts.ledger import open_ledger
from tasks.accounts.reports import LOW, PUBLIC_DELTA, read_account, runs_left
from tasks.accounts.room import OneMore, one_more_run

# A picture has no room for more points.
_MOST_POINTS = 400


class SpendingPoint(BaseModel, frozen=True):
    """An account after one charged plan.

    Attributes
    ----------
    at : str
        UTC, ISO 8601.
    epsilon : float or None
        Spent at the cap's delta by the rows that have paid most; None where it is infinite.
    cap : float or None
        The cap that was in force; None for public data.
    parties : dict
        The same by the party that pays, over all partitions.
    """

    at: str
    epsilon: float | None
    cap: float | None
    parties: dict[str, float | None]


class BudgetHistory(BaseModel, frozen=True):
    """An account's budget: spent against cap over time, and how many more runs fit.

    Attributes
    ----------
    account : str
    datasets : tuple of str
        The data sets that pay from it.
    delta : float
        At which epsilon is read: the cap's, or 1e-5 for public data.
    cap : float or None
        The epsilon of the cap in force, or the soft limit.
    promised : float or None
        The epsilon of the highest cap so far.
    spent : float or None
        Epsilon spent until now, caps of before that were raised included; None where it is infinite.
    points : tuple of SpendingPoint
        Oldest first; of many, evenly chosen ones and the last.
    left : OneMore or None
        The largest epsilon of one more run; None for public data.
    runs_left : int or None
        How many more runs like the last one fit; None for public data and before the first run.
    refused_from : str or None
        Day of the first scheduled run that would be refused, as forecast by
        :func:`tasks.release.forecasts.budget_histories`; None where no scheduled run would be, or no forecast was
        made.
    """

    account: str
    datasets: tuple[str, ...]
    delta: float
    cap: float | None
    promised: float | None
    spent: float | None
    points: tuple[SpendingPoint, ...]
    left: OneMore | None = None
    runs_left: int | None
    refused_from: str | None = None

    @property
    def low(self) -> bool:
        """Whether more than :data:`LOW` of the cap is spent."""
        return self.cap is not None and (self.spent is None or self.spent > LOW * self.cap)


def budget_history(account: str, datasets: Sequence[str] = ()) -> BudgetHistory:
    """Return how an account was spent, from its charges alone.

    A reading, like ``epsilon_spent`` of :func:`tasks.accounts.reports.budget_report`: what is guaranteed is the cap.

    Parameters
    ----------
    account : str
    datasets : sequence of str
        Those that pay from it.
    """
    ledger = open_ledger()
    terms, entered = ledger.account(account), ledger.history(account)
    plans = entered.plans
    cap = terms.cap
    step = max(1, -(-len(plans) // _MOST_POINTS))
    points: list[SpendingPoint] = []
    memo: dict[object, object] = {}
    for end in range(len(plans) - (len(plans) - 1) // step * step, len(plans) + 1, step):
        last = plans[end - 1]
        # Under the cap that was in force then.
        changes = tuple(change for change in terms.changes if change.sequence < last.sequence)
        in_force = terms.changes[len(changes)].before if len(changes) < len(terms.changes) else cap
        then = read_account(History(plans[:end], memo=memo), in_force, replace(terms, changes=changes))
        points.append(SpendingPoint(at=last.recorded_at, epsilon=then.epsilon, cap=then.cap, parties=then.parties))
    return BudgetHistory(
        account=account,
        datasets=tuple(datasets),
        delta=PUBLIC_DELTA if cap is None else cap.delta,
        cap=None if cap is None else cap.epsilon,
        promised=terms.promised,
        spent=read_account(entered, cap, terms).epsilon,
        points=tuple(points),
        left=one_more_run(account),
        runs_left=runs_left(account),
    )
