"""Between ledger and accountant: the policy that prices plans, and what people are told of an account over time."""

import base64
import getpass
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Self, TypedDict, cast

import numpy as np
from pydantic import BaseModel

from dpalgos.accounting.composition import as_selected
from dpalgos.accounting.costs import PlanCost, Totals, losses_under, price
from dpalgos.accounting.spending import (
    GAUSSIAN_PART,
    FilterCap,
    SummedHistory,
    admit,
    filter_in_force,
    repeats_left,
    spent,
    status,
    worst_totals,
)
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Guarantee,
    Loss,
    Neighbours,
    NoGuarantee,
    ZeroConcentrated,
    rounded_down,
)
from storage.catalog import DisjointLine
from storage.errors import InputError, RefusedError
from storage.ledger import entries
from storage.ledger.charges import (
    AccountTerms,
    Cap,
    ChargeRecord,
    Decision,
    History,
    PlanRecord,
    PlanRequest,
    ReleaseCharge,
    require_cap,
)
from storage.ledger.database import read_mark
from storage.ledger.ledger import Ledger
from tasks.datasets.registration import find_dataset
from tasks.planning.plans import RunPlan
from tasks.runtime.plots import BLUE, RED, png_of, styled_figure
from tasks.runtime.stores import open_catalog, open_ledger_database, open_releases

PUBLIC_DELTA = 1e-5
"""At which public data sets' accounts say what their runs would have cost."""

LOW = 0.8
"""Share of a cap above which its account's budget is called low."""

_NO_TERMS = AccountTerms()


@dataclass(frozen=True, slots=True)
class AccountingPolicy:
    """The accountant as the ledger sees it: prices plans and decides, from charges alone."""

    def decide(
        self, history: History, new: Sequence[ReleaseCharge], *, partition: str, delta: float, terms: AccountTerms
    ) -> Decision:
        """Price the new releases and compare with the cap; public data (no cap) are priced and admitted.

        A release proved under another relation than the account's is converted at its price or refused
        (:func:`dpalgos.accounting.costs.losses_under`). What has two prices (:meth:`prices`) is recorded with
        the one that leaves more: that admits the plan, and then that after which one more Gaussian plan may be largest.
        Costs and history alone decide on it, before anything is released, as they decide on the plan itself; so what is
        added up is chosen in view of earlier outputs at most, which is what filters allow. The charge records the price
        chosen, and nothing asks again.

        Raises
        ------
        ValueError
            For an unknown relation, and for add-remove-one.
        """
        prices, partition = self.prices(new, delta, terms), _now(history, partition)
        if terms.cap is None:
            return Decision(admitted=True, costs=_written(prices[0]))
        now = _Status.of(history, terms.cap, terms)
        decision = admit(now.summed, (partition, prices[0]), now.limit, otherwise=prices[1:])
        after = _summed(history, terms).with_plan(partition, decision.costs)
        return Decision(
            admitted=decision.admitted and now.broken is None,
            costs=_written({party: decision.costs.get(party, cost) for party, cost in prices[0].items()}),
            reason=now.broken or decision.reason,
            details={
                "spent_before": _finite(decision.before.epsilon),
                "spent_after": _finite(decision.after.epsilon),
                "left": decision.left,
                "filter": decision.after.filter,
                "cap": asdict(decision.cap),
            },
            totals={name: _finite(value) for name, value in worst_totals(after)._asdict().items()},
        )

    def prices(
        self, new: Sequence[ReleaseCharge], delta: float, terms: AccountTerms = _NO_TERMS
    ) -> list[dict[str, PlanCost]]:
        """Return what each party may be charged for new releases: one price, or two where one is a private selection.

        A selection is proved twice over (:class:`~dpalgos.guarantees.PrivateSelection`), and is recorded as all of its
        candidates, which spends no delta, or at its own (epsilon, delta).

        Raises
        ------
        ParameterError
            Where nothing is proved under the account's relation.
        """
        relation = Neighbours(terms.relation).in_force()
        guarantees = [(one.parties, Guarantee.from_json(dict(one.guarantee))) for one in _counted_once(new)]
        releases = [(parties, losses_under(guarantee, relation)) for parties, guarantee in guarantees]
        priced = [price(releases, delta, rows_per_person=terms.group_size)]
        if any(as_selected(losses) for _, losses in releases):
            selected = [(parties, as_selected(losses) or losses) for parties, losses in releases]
            # As the only plan of a row it is read off the whole curve, however it is added up with others.
            priced.append(
                {
                    party: replace(cost, losses=priced[0][party].losses)
                    for party, cost in price(selected, delta, rows_per_person=terms.group_size).items()
                }
            )
        return priced

    def lacking(
        self, history: History, totals: Mapping[str, float | None], terms: AccountTerms = _NO_TERMS
    ) -> dict[str, object]:
        """Return the cost of one plan, paid by every row, that brings a history at least to these running totals."""
        now = worst_totals(_summed(history, terms))._asdict()
        wanted = {name: math.inf if value is None else float(value) for name, value in totals.items()}
        # A difference is rounded up; from nothing it is exact.
        lacks = {
            name: math.nextafter(wanted[name] - spent, math.inf) if 0 < spent < wanted[name] else wanted[name] - spent
            for name, spent in now.items()
        }
        lacks = {name: max(value, 0.0) if not math.isnan(value) else math.inf for name, value in lacks.items()}
        return PlanCost(_losses(lacks), Totals(**lacks)).to_json()

    def stated(self, epsilon: float, delta: float) -> dict[str, object]:
        """Return the cost of a plan of which nothing is known but (epsilon, delta)."""
        return PlanCost.of([ApproximateDP(epsilon, delta)], delta).to_json()


def _written(costs: Mapping[str, PlanCost]) -> dict[str, dict[str, object]]:
    # Parties mostly pay the same.
    each = {cost: cost.to_json() for cost in set(costs.values())}
    return {party: each[cost] for party, cost in costs.items()}


def epsilon_of_person(plan: RunPlan, rows: int, delta: float | None = None) -> float:
    """Return what a run costs a person of up to so many rows, at the run's delta if none is given."""
    releases = [(one.parties, one.guarantee().losses) for one in plan.releases if one.reads_rows]
    return max(
        (
            cost.totals.epsilon
            for cost in price(releases, plan.delta if delta is None else delta, rows_per_person=rows).values()
        ),
        default=0.0,
    )


def _counted_once(new: Sequence[ReleaseCharge]) -> list[ReleaseCharge]:
    """Return the charges, of those of one stream the first: its guarantee is that of all of them together.

    Raises
    ------
    ValueError
        If releases of one stream do not say the same.
    """
    kept: dict[str, ReleaseCharge] = {}
    for charge in new:
        first = kept.setdefault(charge.stream or charge.key, charge)
        if charge.stream and (first.guarantee, first.parties) != (charge.guarantee, charge.parties):
            raise ValueError(f"releases of the stream {charge.stream} differ in their guarantee or their parties")
    return list(kept.values())


def _losses(lacks: Mapping[str, float]) -> tuple[Loss, ...]:
    """Return what plans cost that are known by their sums alone, by the first filter under which these are finite."""
    if math.isfinite(lacks["mu_squared"]) and lacks["slack"] < 1:
        return GaussianMu(math.nextafter(math.sqrt(lacks["mu_squared"]), math.inf)), ApproximateDP(0.0, lacks["slack"])
    if math.isfinite(lacks["rho"]) and lacks["slack"] < 1:
        return ZeroConcentrated(lacks["rho"]), ApproximateDP(0.0, lacks["slack"])
    if math.isfinite(lacks["epsilon"]) and lacks["delta"] < 1:
        return (ApproximateDP(lacks["epsilon"], lacks["delta"]),)
    return (NoGuarantee("the plans of a lost ledger"),)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _read_costs(written: Mapping[str, Mapping[str, object]]) -> dict[str, PlanCost]:
    costs: dict[str, PlanCost] = {}
    last: tuple[Mapping[str, object], PlanCost] | None = None
    for party, cost in written.items():
        # Neighbours mostly paid the same.
        if last is None or last[0] != cost:
            last = cost, PlanCost.from_json(dict(cost))
        costs[party] = last[1]
    return costs


def _summed(history: History, terms: AccountTerms, start: int = 0, end: float = math.inf) -> SummedHistory:
    """Add up the plans that were charged from one entry to another, and after the last of all what is set aside.

    Plans before and after a restoration of the ledger are in different partitions (:func:`restore_ledger`).
    """
    first, last = (bisect_left(history.plans, place, key=lambda plan: plan.sequence) for place in (start, end))
    done, summed, restored = history.notes.get((start, end)) or (
        first,
        SummedHistory(groups=terms.group_size > 1),
        _restored(history.plans[:first]),
    )
    for plan in history.plans[done:last]:
        restored = restored if plan.releases else plan.partition
        summed = summed.with_plan(_since(restored, plan.partition), _read_costs(plan.costs))
    history.notes[start, end] = last, summed, restored
    for plan in () if end < math.inf else history.pending:
        summed = summed.with_plan(_since(restored, plan.partition), _read_costs(plan.costs))
    return cast(SummedHistory, summed)


def _restored(plans: Sequence[PlanRecord]) -> str:
    """Return the partition of the last plan that a restoration recorded, empty where there is none."""
    return next((one.partition for one in reversed(plans) if not one.releases), "")


def _since(restored: str, partition: str) -> str:
    """Return what a partition is added up as, after a restoration if there was one."""
    return f"{partition} since {restored}" if restored else partition


def _now(history: History, partition: str) -> str:
    """Return what one more plan's partition is added up as."""
    return _since(_restored(history.plans), partition)


def relation_of(dataset: str) -> Neighbours:
    """Return the neighbouring relation of a data set's account, fixed at opening."""
    return Neighbours(open_catalog().account_of(dataset).relation)


def tenth(delta: float) -> float:
    """Return the delta of a run that leaves room for others under a cap of this delta."""
    return float(f"{delta / 10:.6g}")


def gaussian_delta(delta: float) -> float:
    """Return the delta of a run of Gaussian losses alone under a cap of this delta: six digits, as it is printed.

    Rounded down, so that under a cap of the run's own epsilon the filter holds all of it.
    """
    return rounded_down(GAUSSIAN_PART * delta, 6)


def opening_cap(dataset: str) -> Cap | None:
    """Return the cap with which a data set's account was opened, whatever it was changed to since; None if public."""
    account = open_catalog().account_of(dataset)
    return account.changes[0].before if account.changes else account.cap


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
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
            held = status(_summed(history, terms, start, end), FilterCap(closed.epsilon, closed.delta))
            if not held.admitted:
                broken = (
                    "a raised cap opens a new filter, and earlier charges have spent the delta that is kept for it: "
                    f"{held.reason}; a first run at a smaller delta would have left it"
                )
        return cls(
            limit=FilterCap(cap.epsilon, in_force.delta, earlier=in_force.earlier_epsilon, reserved=in_force.reserved),
            summed=_summed(history, terms, bounds[-1]),
            promised=in_force.promised,
            broken=broken,
        )


def open_ledger() -> Ledger:
    """Open the ledger with the accountant behind it."""
    return Ledger(open_ledger_database(), AccountingPolicy())


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
    now = _Status.of(history, cap, terms) if cap else None
    total = (
        spent(now.summed, now.limit.delta, now.limit.reserved) if now else spent(_summed(history, terms), PUBLIC_DELTA)
    )
    earlier = now.limit.earlier if now else 0.0
    worst: dict[str, float] = {}
    for parties in total.parties.values():
        for party, epsilon in parties.items():
            worst[party] = max(worst.get(party, 0.0), earlier + epsilon)
    return AccountReading(
        epsilon=_finite(earlier + total.epsilon),
        delta=cap.delta if cap else PUBLIC_DELTA,
        cap=cap.epsilon if cap else None,
        promised=now.promised if now else None,
        filter=total.filter,
        earlier=earlier,
        parties={party: _finite(epsilon) for party, epsilon in worst.items()},
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
        return next(filter(None, (entries.lacking(now, mark) for mark in marks)), None)


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
        priced = _now(history, last.partition), _read_costs(last.costs)
    else:
        priced = _now(history, plan.partition), AccountingPolicy().prices(plan.releases, plan.delta, found)[0]
    now = _Status.of(history, found.cap, found)
    return repeats_left(now.summed, priced, now.limit)


def low_budget(account: str) -> dict[str, str | float | None]:
    """Return what to say of an account of whose cap more than :data:`LOW` is spent; nothing of any other."""
    ledger = open_ledger()
    terms = ledger.account(account)
    now = read_account(ledger.history(account), terms.cap, terms)
    if not now.low:
        return {}
    return {"account": account, "epsilon_spent": now.epsilon, "epsilon_cap": now.cap, "runs_left": runs_left(account)}


def change_cap(dataset: str, epsilon: float, reason: str) -> None:
    """Raise or lower the epsilon of the cap of a data set's account, on record.

    Raising a cap keeps the old filter and opens a new one (:mod:`dpalgos.accounting.spending`); delta is fixed when
    the account is opened, because the filters of all raises share it.

    Raises
    ------
    InputError
        Without a reason.
    RefusedError
        For public sets.
    OverspendError
        If more than a lower cap is spent, or the filters before a higher one did not keep to their deltas.
    """
    account = open_catalog().account_of(dataset)
    if account.cap is None:
        raise RefusedError(f"{dataset} is public and has no cap")
    if not reason.strip():
        raise InputError("a cap is changed for good and on record: say why with --reason")
    cap = Cap(epsilon=epsilon, delta=account.cap.delta)
    require_cap(cap)
    open_ledger().raise_cap(account.name, cap, by=getpass.getuser(), why=reason)


def verify_ledger() -> list[str]:
    """Check the ledger's chain and every stored release against it; one sentence a problem."""
    return [*open_ledger().verify(), *check_releases()]


def check_releases() -> list[str]:
    """Check every stored release against its digests and the ledger's; one sentence a problem."""
    store = open_releases()
    problems = []
    stored = {}
    for key in store.keys():
        try:
            manifest, arrays = store.read(key)
        except Exception as error:
            problems.append(str(error))
            continue
        # Post-processing and maps made from public parameters were never charged, and need not be; what parties of
        # their own have made they have charged.
        if not {"post_processing", "charged_by"} & manifest.keys() and manifest.get("reads_rows", True):
            stored[key] = store.digest_of(manifest, arrays)
    return problems + open_ledger().verify_releases(stored)


def restore_ledger(reason: str, epsilon: float | None, delta: float | None) -> tuple[str, ...]:
    """Accept a ledger older than its high-water marks, by recording what it lacks as spent; return the accounts.

    *What is booked, and why it is enough.* A row is in one part (party, horizon) of each partition, and an account has
    spent the sum over partitions of the largest part. Let the lost ledger's parts have come to b_p by the mark, these
    to a_p; of the b_p only the largest sum is known, M. What is booked for every row is M less the largest sum of the
    a_p. A row of part p has lost b_p, up to M, and from now on loses what part p is charged, c_p. So plans after a
    restoration are in partitions of their own: the account has then spent max_p a_p + (M − max_p a_p) + max_p c_p,
    which is no less than b_p + c_p, whichever part the row is in. (In the same partitions it would be max_p (a_p + c_p)
    + M − max_p a_p: where the lost ledger had charged one horizon and the older one another, of the same μ, nothing
    would be missing, and rows of the first could be charged again for nothing.) Of a horizon that begins again:
    :mod:`tasks.preparation.streams`.

    Parameters
    ----------
    reason : str
        Recorded.
    epsilon, delta : float, optional
        What the owner says was spent beyond this ledger, where no mark says it.

    Raises
    ------
    InputError
        Without a reason, with half of a statement, or where there is nothing to restore.
    """
    if (epsilon is None) != (delta is None):
        raise InputError("what was spent has two numbers: give both --epsilon and --delta")
    stated = None if epsilon is None or delta is None else Cap(epsilon, delta)
    if stated is not None:
        require_cap(stated)
    return open_ledger().restore(by=getpass.getuser(), why=reason, stated=stated)


# ── over time ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    points : tuple of SpendingPoint
        Oldest first; of many, evenly chosen ones and the last.
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
    points: tuple[SpendingPoint, ...]
    runs_left: int | None
    refused_from: str | None

    @property
    def spent(self) -> float | None:
        """Epsilon spent until now; None where it is infinite."""
        return self.points[-1].epsilon if self.points else 0.0

    @property
    def low(self) -> bool:
        """Whether more than :data:`LOW` of the cap is spent."""
        return self.cap is not None and (self.spent is None or self.spent > LOW * self.cap)


def budget_history(account: str, datasets: Sequence[str] = ()) -> BudgetHistory:
    """Return how an account was spent, from its charges alone.

    A reading, like ``epsilon_spent`` of :func:`budget_report`: what is guaranteed is the cap.

    Parameters
    ----------
    account : str
    datasets : sequence of str
        Those that pay from it.
    """
    ledger = open_ledger()
    terms, plans = ledger.account(account), ledger.history(account).plans
    cap = terms.cap
    step = max(1, -(-len(plans) // _MOST_POINTS))
    points: list[SpendingPoint] = []
    notes: dict[object, object] = {}
    for end in range(len(plans) - (len(plans) - 1) // step * step, len(plans) + 1, step):
        last = plans[end - 1]
        # Under the cap that was in force then.
        changes = tuple(change for change in terms.changes if change.sequence < last.sequence)
        in_force = terms.changes[len(changes)].before if len(changes) < len(terms.changes) else cap
        then = read_account(History(plans[:end], notes=notes), in_force, replace(terms, changes=changes))
        points.append(SpendingPoint(at=last.recorded_at, epsilon=then.epsilon, cap=then.cap, parties=then.parties))
    left = runs_left(account)
    return BudgetHistory(
        account=account,
        datasets=tuple(datasets),
        delta=PUBLIC_DELTA if cap is None else cap.delta,
        cap=None if cap is None else cap.epsilon,
        points=tuple(points),
        runs_left=left,
        refused_from=None if left is None else _forecast([plan.recorded_at for plan in plans], left),
    )


def budget_histories() -> list[BudgetHistory]:
    """Return the history of every account that a registered data set pays from, private ones first."""
    catalog = open_catalog()
    paying: dict[str, list[str]] = {}
    for dataset in catalog.datasets():
        paying.setdefault(dataset.account, []).append(dataset.name)
    histories = [budget_history(account, sorted(set(names))) for account, names in paying.items()]
    return sorted(histories, key=lambda one: (one.cap is None, one.account))


def _forecast(times: Sequence[str], left: int) -> str | None:
    recent = [datetime.fromisoformat(time) for time in times[-_RECENT:]]
    gap = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else timedelta()
    try:
        return (recent[-1] + (left + 1) * gap).date().isoformat() if gap else None
    except OverflowError:
        return None


# More lines than that nobody tells apart: those of the parties that have paid most.
_MOST_PARTIES, _MOST_ACCOUNTS = 8, 12


def budget_table(histories: Sequence[BudgetHistory]) -> list[dict[str, str]]:
    """Return a line an account: spent, cap, share, how many more runs fit, from when on runs are refused."""
    return [
        {
            "account": one.account,
            "data sets": ", ".join(one.datasets),
            "epsilon spent": _epsilon(one.spent),
            "cap": "none (public)" if one.cap is None else f"{one.cap:g}",
            "spent of it": "–" if one.cap is None else _share(one.spent, one.cap),
            "delta": f"{one.delta:g}",
            "more runs like the last": "–" if one.runs_left is None else str(one.runs_left),
            "refused from": one.refused_from or "–",
        }
        for one in histories
    ]


def _epsilon(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.4g}"


def _share(spent: float | None, cap: float) -> str:
    # Rounded up: a share is never shown smaller than it is.
    return "all" if spent is None else f"{math.ceil(100 * spent / cap)} %"


def draw_budgets(histories: Sequence[BudgetHistory]) -> bytes:
    """Return a PNG: for each account epsilon spent against its cap over time, a thin line a party.

    Beyond twelve accounts those whose share of the cap is largest are drawn.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    chosen = sorted(histories, key=_fullness, reverse=True)[:_MOST_ACCOUNTS]
    columns = min(len(chosen), 2) or 1
    lines = -(-len(chosen) // columns) or 1
    with styled_figure(4.6 * columns, 2.6 * lines) as figure:
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(chosen) :]:
            axes.set_axis_off()
        for axes, one in zip(grid.flat, chosen, strict=False):
            times = [datetime.fromisoformat(point.at) for point in one.points]
            for party in _parties(one):
                paid = np.array([point.parties.get(party, 0.0) for point in one.points], dtype=float)
                axes.step(times, paid, where="post", color=BLUE, linewidth=0.6, alpha=0.5)
            spent = np.array([point.epsilon for point in one.points], dtype=float)
            axes.step(times, spent, where="post", color=BLUE, marker=".")
            if one.cap is not None and times:
                axes.step(times, [point.cap for point in one.points], where="post", color=RED, linestyle="--")
                axes.set_ylim(0, 1.08 * max(one.cap, *(point.cap or 0.0 for point in one.points)))
            left = "" if one.runs_left is None else f"; {one.runs_left} more runs like the last"
            subtitle = (
                "nothing charged yet" if not one.points else f"ε = {_epsilon(one.spent)} at δ = {one.delta:g}{left}"
            )
            axes.set_title(f"{one.account}\n{subtitle}", fontsize=8.5, loc="left")
            if not times:
                # Otherwise an empty day of 1970.
                axes.set_axis_off()
                continue
            margin = max((times[-1] - times[0]) / 20, timedelta(hours=1))
            axes.set_xlim(times[0] - margin, times[-1] + margin)
            locator = AutoDateLocator(maxticks=6)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        return png_of(figure, 110)


def _fullness(one: BudgetHistory) -> float:
    if one.cap is None:
        return -1.0
    return math.inf if one.spent is None else one.spent / one.cap


def _parties(one: BudgetHistory) -> list[str]:
    last = one.points[-1].parties if one.points else {}
    paid = sorted(last.items(), key=lambda each: math.inf if each[1] is None else each[1], reverse=True)
    return [party for party, _ in paid[:_MOST_PARTIES]]


def budget_page(histories: Sequence[BudgetHistory], picture: bytes) -> str:
    """Return one self-contained HTML page over all accounts: the picture, and a table of where they stand."""
    import pandas as pd

    lines = pd.DataFrame(budget_table(histories), columns=None if histories else ["no account"])
    shown = base64.b64encode(picture).decode()
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Budgets</title>'
        "<style>body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
        "td,th{border-bottom:1px solid #ddd;padding:.3em .8em;text-align:left}img{max-width:100%}</style>"
        "<h1>Budgets</h1><p>Spent of each account's cap: a reading of its charges. What is guaranteed is the cap.</p>"
        f'{lines.to_html(index=False, border=0)}<p><img alt="epsilon spent against cap over time" '
        f'src="data:image/png;base64,{shown}"></p></html>\n'
    )
