"""Reports on an account: cap, epsilon spent and left, each party's charges, and how many more runs fit."""

from dataclasses import asdict, dataclass
from typing import TypedDict

from dpalgos.accounting.spending import repeats_left, spent
from storage.catalog import DisjointLine
from storage.ledger import entries
from storage.ledger.charges import AccountTerms, Cap, ChargeRecord, History, PlanRequest
from storage.ledger.database import read_mark
from tasks.accounts.filters import FilterStatus, counted_as, finite_or_none, read_costs, sum_plans
from tasks.accounts.ledger import open_ledger
from tasks.accounts.pricing import AccountingPolicy
from tasks.datasets.registration import find_dataset
from tasks.runtime.stores import open_catalog, open_ledger_database

PUBLIC_DELTA = 1e-5
"""At which public data sets' accounts say what their runs would have cost."""
LOW = 0.8
"""Share of a cap above which its account's budget is called low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReading:
    """What some of an account's plans cost, read at the cap's delta: no guarantee of its own.

    Parameters
    ----------
    epsilon : float or None
        Of the rows that have paid most; None where it is infinite.
    delta : float
    cap : float or None
        Epsilon of the cap in force; None for public data.
    promised : float or None
        Epsilon of the theorem.
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
    def left(self) -> float | None:
        """What is left of the cap."""
        if self.cap is None:
            return None
        return 0.0 if self.epsilon is None else max(self.cap - self.epsilon, 0.0)

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


class PartyBudget(TypedDict):
    """What one party's rows have paid; epsilon is None where it is infinite."""

    party: str
    epsilon_spent: float | None
    delta_spent: float
    charges: list[ChargeLine]


class BudgetReport(TypedDict):
    """An account's cap, what it has spent, and the charges of each party, as JSON."""

    dataset: str
    account: str
    cap: dict[str, float] | None
    promised: dict[str, float] | None
    epsilon_spent: float | None
    delta_spent: float
    epsilon_left: float | None
    filter: str
    group_size: int
    unit: str
    meaning: str
    relation: str
    reserved: list[str]
    restored: list[str]
    behind: str | None
    disjoint: list[DisjointLine]
    parties: list[PartyBudget]


def _behind() -> str | None:
    database = open_ledger_database()
    # Read before the ledger, which may only grow in between.
    marks = [read_mark(path, database.chain) for path in database.marks]
    with entries.reading(database) as now:
        return next(filter(None, (entries.behind_mark(now, mark) for mark in marks)), None)


def budget_report(dataset: str) -> BudgetReport:
    """Return cap, spent, left, and the charges of each party.

    ``promised`` is the theorem: everything released from these rows, now and later under this cap, is (epsilon,
    delta)-DP together, however runs were chosen in view of earlier ones. ``epsilon_spent`` is a reading of what was
    charged, without a guarantee of its own: it was not fixed before.

    Public sets have no cap; what is shown is what their runs would have cost at delta 1e-5. ``behind`` says in what way
    the ledger lacks what its high-water marks have seen: what is shown is too little then, and nothing can be charged.
    """
    unit = find_dataset(dataset).unit
    ledger = open_ledger()
    account = open_catalog().account_of(dataset)
    cap, group = account.cap, account.group_size
    history = ledger.history(account.name)
    reading = read_account(history, cap, account)
    charges = ledger.charges_by_party(account.name)
    # A joint release is every party's charge; it is described once and shown by all.
    each = {charge.sequence: charge for records in charges.values() for charge in records}
    described = {sequence: _charge(charge) for sequence, charge in each.items()}
    return {
        "dataset": dataset,
        "account": account.name,
        "cap": asdict(cap) if cap else None,
        "promised": None if reading.promised is None else {"epsilon": reading.promised, "delta": reading.delta},
        "epsilon_spent": reading.epsilon,
        "delta_spent": reading.delta,
        "epsilon_left": reading.left,
        "filter": reading.filter,
        "group_size": group,
        "unit": str(unit),
        "meaning": unit.meaning("whose ε is counted here", group) if group > 1 else unit.meaning(),
        "relation": account.relation,
        "reserved": [one.name for one in ledger.reservations(account.name)],
        "restored": [one.recorded_at for one in history.plans if not one.releases],
        "behind": _behind(),
        "disjoint": open_catalog().disjoint_from(account.name),
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
    return {"account": account, "epsilon_spent": now.epsilon, "epsilon_cap": now.cap, "runs_left": runs_left(account)}
