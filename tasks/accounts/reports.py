"""Reports on an account: cap, spending, remaining budget, charges per plan and party, and how many more runs fit."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TypedDict

from dpalgos.accounting.composition import gaussian_mu
from dpalgos.accounting.spending import SummedHistory, repeats_left, spent
from storage.catalog import DisjointLine
from storage.ledger import entries
from storage.ledger.charges import (
    PERSON,
    Account,
    AccountTerms,
    Cap,
    ChargeRecord,
    History,
    PlanRecord,
    PlanRequest,
    of_cap,
)
from storage.ledger.database import read_mark
from storage.refs import Unit
from tasks.accounts.filters import FilterStatus, counted_as, finite_or_none, read_costs, sum_plans
from tasks.accounts.ledger import account_named, open_ledger
from tasks.accounts.pricing import AccountingPolicy
from tasks.accounts.room import one_more_run
from tasks.datasets.registration import find_dataset
from tasks.runtime.stores import open_catalog, open_ledger_database

PUBLIC_DELTA = 1e-5
"""At which public data sets' accounts say what their runs would have cost."""
LOW = 0.8
"""Share of a cap above which its account's budget is called low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReading:
    """The cost of some of an account's plans, read at the cap's delta: not a separate guarantee.

    Parameters
    ----------
    epsilon : float or None
        Of the rows that have paid most; None where it is infinite.
    delta : float
    cap : float or None
        Epsilon of the cap in force, or the soft limit; None for public data.
    promised : float or None
        Epsilon of the theorem: of the highest cap.
    filter : str
        How it was composed.
    earlier : float
        What filters hold that a raised cap has closed.
    parties : dict of str to float or None
        The same by the party that pays.
    """

    epsilon: float | None
    delta: float
    cap: float | None
    promised: float | None
    filter: str
    earlier: float
    parties: dict[str, float | None]

    @property
    def low(self) -> bool:
        """Whether more than :data:`LOW` of the cap is spent."""
        return self.cap is not None and (self.epsilon is None or self.epsilon > LOW * self.cap)


def read_account(history: History, cap: Cap | None, terms: AccountTerms) -> AccountReading:
    """Return what a history costs under a cap, or for public data at :data:`PUBLIC_DELTA`."""
    now = FilterStatus.of(history, cap, terms) if cap else None
    total = (
        spent(now.summed, now.limit.delta, now.limit.reserved)
        if now
        else spent(sum_plans(history, terms), PUBLIC_DELTA)
    )
    earlier = now.limit.earlier if now else 0.0
    worst: dict[str, float] = {}
    for parties in total.parties.values():
        for party, epsilon in parties.items():
            worst[party] = max(worst.get(party, 0.0), earlier + epsilon)
    return AccountReading(
        epsilon=finite_or_none(earlier + total.epsilon),
        delta=cap.delta if cap else PUBLIC_DELTA,
        cap=cap.epsilon if cap else None,
        promised=now.promised if now else None,
        filter=total.filter,
        earlier=earlier,
        parties={party: finite_or_none(epsilon) for party, epsilon in worst.items()},
    )


class ChargeLine(TypedDict):
    """One charge of an account."""

    key: str
    label: str
    run: str
    partition: str
    guarantee: dict[str, object]
    plan: int
    recharge: bool
    recorded_at: str


class PlanLine(TypedDict):
    """The cost of one charged plan, at its stated delta, or at the account's where that is infinite.

    None where both are infinite. ``epsilon`` is the largest that a party paid, and ``parties`` says how much each did;
    ``mu`` is the largest of Gaussian-DP, where all of it is.
    """

    plan: int
    run: str
    recorded_at: str
    recharge: bool
    epsilon: float | None
    delta: float
    mu: float | None
    parties: dict[str, float | None]


class LeftLine(TypedDict):
    """The remaining budget: :class:`tasks.accounts.room.OneMore`."""

    epsilon: float
    delta: float
    run: str


class PartyBudget(TypedDict):
    """The spending of one party's rows; epsilon is None where it is infinite."""

    party: str
    epsilon_spent: float | None
    delta_spent: float
    charges: list[ChargeLine]


class BudgetReport(TypedDict):
    """An account's cap, spending, remaining budget, and the charges of each party, as JSON.

    ``cap`` is the one in force, and ``promised`` the highest so far: they differ where a soft limit is in force.
    ``left`` is None for public rows, and where nothing can be charged. ``earlier`` is the part of what is spent that
    caps before a raised one hold.
    """

    datasets: list[str]
    account: str
    cap: dict[str, float] | None
    promised: dict[str, float] | None
    epsilon_spent: float | None
    delta_spent: float
    earlier: float
    left: LeftLine | None
    filter: str
    group_size: int
    unit: str
    meaning: str
    relation: str
    reserved: list[str]
    restored: list[str]
    behind: str | None
    disjoint: list[DisjointLine]
    plans: list[PlanLine]
    parties: list[PartyBudget]


def cap_of(report: BudgetReport) -> str:
    """Return the epsilon that an account's charges go by, with the promised one where a soft limit is below it."""
    cap, promised = report["cap"], report["promised"]
    return "" if cap is None else of_cap(cap["epsilon"], None if promised is None else promised["epsilon"])


def _behind() -> str | None:
    database = open_ledger_database()
    # Read before the ledger, which may only grow in between.
    marks = [read_mark(path, database.chain) for path in database.marks]
    with entries.reading(database) as now:
        return next(filter(None, (entries.behind_mark(now, mark) for mark in marks)), None)


def budget_report(name: str) -> BudgetReport:
    """Return cap, spending, remaining budget, and the charges of each plan and each party.

    ``promised`` is the theorem: everything released from these rows, now and later under this cap, is (epsilon,
    delta)-DP together, however runs were chosen in view of earlier ones. ``epsilon_spent`` is a reading of what was
    charged, without a separate guarantee: it was not fixed before.

    Public sets have no cap; what is shown is what their runs would have cost at delta 1e-5. ``behind`` says in what way
    the ledger lacks what its high-water marks have seen: what is shown is too little then, and nothing can be charged.

    Parameters
    ----------
    name : str
        A registered data set, or an account.

    Raises
    ------
    InputError
        If there is neither.
    """
    account = account_named(name)
    paying = sorted({one.name for one in open_catalog().datasets() if one.account == account.name})
    # The named one's own: a draft's rows have no column of people yet.
    unit = find_dataset(name if name in paying else paying[0]).unit if paying else _unit_of(account)
    ledger, behind = open_ledger(), _behind()
    cap, group = account.cap, account.group_size
    history = ledger.history(account.name)
    reading = read_account(history, cap, account)
    charges = ledger.charges_by_party(account.name)
    # A joint release is every party's charge; it is described once and shown by all.
    each = {charge.sequence: charge for records in charges.values() for charge in records}
    described = {sequence: _charge(charge) for sequence, charge in each.items()}
    left = None if behind else one_more_run(account.name)
    return {
        "datasets": paying,
        "account": account.name,
        "cap": asdict(cap) if cap else None,
        "promised": None if reading.promised is None else {"epsilon": reading.promised, "delta": reading.delta},
        "epsilon_spent": reading.epsilon,
        "delta_spent": reading.delta,
        "earlier": reading.earlier,
        "left": None if left is None else {"epsilon": left.epsilon, "delta": left.delta, "run": left.run},
        "filter": reading.filter,
        "group_size": group,
        "unit": str(unit),
        "meaning": unit.meaning("whose ε is counted here", group) if group > 1 else unit.meaning(),
        "relation": account.relation,
        "reserved": [one.name for one in ledger.reservations(account.name)],
        "restored": [one.recorded_at for one in history.plans if not one.releases],
        "behind": behind,
        "disjoint": open_catalog().disjoint_from(account.name),
        "plans": list(_plans(history, reading.delta, group)),
        "parties": [
            {
                "party": party,
                "epsilon_spent": reading.parties.get(party, reading.earlier),
                "delta_spent": reading.delta,
                "charges": [described[charge.sequence] for charge in records],
            }
            for party, records in charges.items()
        ],
    }


def _unit_of(account: Account) -> Unit:
    """Return the unit of an account that no rows pay from yet, whose column of people nobody has named."""
    return Unit("of people" if account.unit == PERSON else "")


def _plans(history: History, at: float, group: int) -> Iterator[PlanLine]:
    """Yield what each plan cost, oldest first; what a restored ledger recorded has no releases and is no plan."""
    for plan in history.plans:
        if not plan.releases:
            continue
        delta, each = _epsilons(plan, at, group)
        mus = [gaussian_mu(cost.losses) for cost in read_costs(plan.costs).values()]
        yield {
            "plan": plan.sequence,
            "run": plan.run,
            "recorded_at": plan.recorded_at,
            "recharge": plan.recharge,
            "epsilon": finite_or_none(max(each.values(), default=0.0)),
            "delta": delta,
            "mu": max((mu for mu in mus if mu is not None), default=None) if None not in mus else None,
            "parties": {party: finite_or_none(epsilon) for party, epsilon in each.items()},
        }


def _epsilons(plan: PlanRecord, at: float, group: int) -> tuple[float, dict[str, float]]:
    """Return what each party was charged, and at which delta; of Gaussian losses tightly at the plan's.

    A plan that releases values at their own delta (a draft) has none left for its Gaussian noise, and states no
    finite epsilon: it is read by itself at the account's delta then, as what is spent is.
    """
    costs = read_costs(plan.costs)
    each = {party: cost.totals.epsilon for party, cost in costs.items()}
    if at > plan.delta and not all(math.isfinite(epsilon) for epsilon in each.values()):
        alone = spent(SummedHistory(groups=group > 1).with_plan(plan.partition, costs), at)
        return at, dict(alone.parties[plan.partition])
    return plan.delta, each


def _charge(charge: ChargeRecord) -> ChargeLine:
    return {
        "key": charge.key,
        "label": charge.label,
        "run": charge.plan.run,
        "partition": charge.plan.partition,
        "guarantee": dict(charge.guarantee),
        "plan": charge.plan.sequence,
        "recharge": charge.plan.recharge,
        "recorded_at": charge.recorded_at,
    }


def runs_left(account: str, plan: PlanRequest | None = None) -> int | None:
    """Return how many more plans like a given one, or the last one, fit; None for public accounts, or without one."""
    ledger = open_ledger()
    found, history = ledger.account(account), ledger.history(account)
    if found.cap is None or (plan is None and not history.plans):
        return None
    if plan is None:
        last = history.plans[-1]
        priced = counted_as(history, last.partition), read_costs(last.costs)
    else:
        priced = counted_as(history, plan.partition), AccountingPolicy().prices(plan.releases, plan.delta, found)[0]
    now = FilterStatus.of(history, found.cap, found)
    return repeats_left(now.summed, priced, now.limit)


def low_budget(account: str) -> dict[str, str | float | None]:
    """Return what to say of an account of whose cap more than :data:`LOW` is spent; nothing of any other."""
    ledger = open_ledger()
    terms = ledger.account(account)
    now = read_account(ledger.history(account), terms.cap, terms)
    if not now.low:
        return {}
    return {
        "account": account,
        "epsilon_spent": now.epsilon,
        "epsilon_cap": now.cap,
        "epsilon_promised": now.promised,
        "runs_left": runs_left(account),
    }
