"""An account's budget over time: epsilon spent after each plan, and the day from which runs are refused."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import BaseModel

from storage.ledger.charges import History
from tasks.accounts.ledger import open_ledger
from tasks.accounts.reports import LOW, PUBLIC_DELTA, read_account, runs_left
from tasks.accounts.room import OneMore, one_more_run
from tasks.runtime.stores import open_catalog

# A picture has no room for more points, and a rate is that of the recent past.
_MOST_POINTS, _RECENT = 400, 10


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
        The epsilon of the cap in force.
    spent : float or None
        Epsilon spent until now, caps of before that were raised included; None where it is infinite.
    points : tuple of SpendingPoint
        Oldest first; of many, evenly chosen ones and the last.
    left : OneMore or None
        The largest epsilon of one more run; None for public data.
    runs_left : int or None
        How many more runs like the last one fit; None for public data and before the first run.
    refused_from : str or None
        Day (UTC) of the first run that would be refused, if runs like the last one go on at the mean rate of the last
        ten; None where there is no rate.
    """

    account: str
    datasets: tuple[str, ...]
    delta: float
    cap: float | None
    spent: float | None
    points: tuple[SpendingPoint, ...]
    left: OneMore | None = None
    runs_left: int | None
    refused_from: str | None

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
    left = runs_left(account)
    return BudgetHistory(
        account=account,
        datasets=tuple(datasets),
        delta=PUBLIC_DELTA if cap is None else cap.delta,
        cap=None if cap is None else cap.epsilon,
        spent=read_account(entered, cap, terms).epsilon,
        points=tuple(points),
        left=one_more_run(account),
        runs_left=left,
        refused_from=None if left is None else _refusal_day([plan.recorded_at for plan in plans], left),
    )


def budget_histories() -> list[BudgetHistory]:
    """Return the history of every account that a registered data set pays from, private ones first."""
    catalog = open_catalog()
    paying: dict[str, list[str]] = {}
    for dataset in catalog.datasets():
        paying.setdefault(dataset.account, []).append(dataset.name)
    histories = [budget_history(account, sorted(set(names))) for account, names in paying.items()]
    return sorted(histories, key=lambda one: (one.cap is None, one.account))


def _refusal_day(times: Sequence[str], left: int) -> str | None:
    recent = [datetime.fromisoformat(time) for time in times[-_RECENT:]]
    gap = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else timedelta()
    try:
        return (recent[-1] + (left + 1) * gap).date().isoformat() if gap else None
    except OverflowError:
        return None
