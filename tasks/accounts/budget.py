"""Between ledger and accountant: the policy that prices plans, and what people are told of an account."""

from __future__ import annotations

import getpass
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict, cast

from dpalgos.accounting.composition import as_selected
from dpalgos.accounting.costs import PlanCost, Totals, losses_under, price
from dpalgos.accounting.spending import (
    RESERVED,
    Admission,
    FilterCap,
    SummedHistory,
    admit,
    filter_in_force,
    repeats_left,
    spent,
    status,
    worst_totals,
)
from dpalgos.guarantees import ApproximateDP, GaussianMu, Guarantee, Loss, Neighbours, NoGuarantee, ZeroConcentrated
from storage.catalog import DisjointLine
from storage.errors import InputError, RefusedError
from storage.ledger.charges import (
    AccountTerms,
    Cap,
    ChargeRecord,
    Decision,
    History,
    PlanRequest,
    ReleaseCharge,
    require_cap,
)
from storage.ledger.ledger import Ledger
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.runtime.stores import open_catalog, open_ledger_database, open_releases

PUBLIC_DELTA = 1e-5
"""At which public data sets' accounts say what their runs would have cost."""

LOW = 0.8
"""Share of a cap above which its account's budget is called low."""

_NO_TERMS = AccountTerms()


@dataclass(frozen=True, slots=True)
class AccountingPolicy:
    """The accountant as the ledger sees it: prices plans and decides, from charges alone.

    Parameters
    ----------
    rows_per_person : int
        Group size of the account.
    """

    rows_per_person: int = 1

    def for_group(self, size: int) -> AccountingPolicy:
        """Return the policy for people of up to ``size`` rows."""
        return AccountingPolicy(rows_per_person=size)

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
        prices = self.prices(new, delta, terms)
        if terms.cap is None:
            return Decision(admitted=True, costs=_written(prices[0]))
        now = _Status.of(history, terms.cap, terms)
        decision = admit(now.summed, (partition, prices[0]), now.limit, otherwise=prices[1:])
        after = _summed(history).with_plan(partition, decision.costs)
        return Decision(
            admitted=decision.admitted and now.broken is None,
            costs=_written({party: decision.costs.get(party, cost) for party, cost in prices[0].items()}),
            reason=now.broken or decision.reason,
            details=_details(decision),
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
        priced = [price(releases, delta, rows_per_person=self.rows_per_person)]
        if any(as_selected(losses) for _, losses in releases):
            selected = [(parties, as_selected(losses) or losses) for parties, losses in releases]
            priced.append(price(selected, delta, rows_per_person=self.rows_per_person))
        return priced

    def lacking(self, history: History, totals: Mapping[str, float | None]) -> dict[str, object]:
        """Return the cost of one plan, paid by every row, that brings a history at least to these running totals."""
        now = worst_totals(_summed(history))._asdict()
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


def _details(admission: Admission) -> dict[str, object]:
    return {
        "spent_before": _finite(admission.before.epsilon),
        "spent_after": _finite(admission.after.epsilon),
        "left": admission.left,
        "filter": admission.after.filter,
        "cap": asdict(admission.cap),
    }


def _read_costs(written: Mapping[str, Mapping[str, object]]) -> dict[str, PlanCost]:
    costs: dict[str, PlanCost] = {}
    last: tuple[Mapping[str, object], PlanCost] | None = None
    for party, cost in written.items():
        # Neighbours mostly paid the same.
        if last is None or last[0] != cost:
            last = cost, PlanCost.from_json(dict(cost))
        costs[party] = last[1]
    return costs


def _summed(history: History, start: int = 0, end: float = math.inf) -> SummedHistory:
    """Add up the plans that were charged from one entry to another, and after the last of all what is set aside."""
    first, last = (bisect_left(history.plans, place, key=lambda plan: plan.sequence) for place in (start, end))
    done, summed = history.notes.get((start, end), (first, SummedHistory()))
    for plan in history.plans[done:last]:
        summed = summed.with_plan(plan.partition, _read_costs(plan.costs))
    history.notes[start, end] = last, summed
    for plan in () if end < math.inf else history.pending:
        summed = summed.with_plan(plan.partition, _read_costs(plan.costs))
    return cast(SummedHistory, summed)


def relation_of(dataset: str) -> Neighbours:
    """Return the neighbouring relation of a data set's account, fixed at opening."""
    return Neighbours(open_catalog().account_of(dataset).relation)


def tenth(delta: float) -> float:
    """Return the delta of a run that leaves room for others under a cap of this delta."""
    return float(f"{delta / 10:.6g}")


def settled(config: TrainingConfig) -> TrainingConfig:
    """Return a configuration that names its delta: where it does not, a tenth of the cap's of the rows' account."""
    if config.delta is not None:
        return config
    find_dataset(config.dataset)
    cap = open_catalog().account_of(config.dataset).cap
    return config.model_copy(update={"delta": config.stated_delta if cap is None else tenth(cap.delta)})


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
    def of(cls, history: History, cap: Cap, terms: AccountTerms) -> _Status:
        changes = sorted(terms.changes, key=lambda change: change.sequence)
        opening = changes[0].before if changes else cap
        starts = [0, *(change.sequence for change in changes)]
        # A delta that was lowered is kept to; one that was raised was never in the series.
        in_force = filter_in_force(
            [opening.epsilon, *(change.cap.epsilon for change in changes)],
            min(opening.delta, cap.delta),
            # Accounts that were opened before they recorded their series have this one.
            float(terms.deltas.get("reserved", RESERVED)),
        )
        bounds = [*(starts[closed.changes] for closed in in_force.earlier), starts[in_force.changes]]
        broken = None
        for closed, start, end in zip(in_force.earlier, bounds, bounds[1:], strict=False):
            held = status(_summed(history, start, end), FilterCap(closed.epsilon, closed.delta))
            if not held.admitted:
                broken = (
                    "a raised cap opens a new filter, and earlier charges have spent the delta that is kept for it: "
                    f"{held.reason}; a first run at a smaller delta would have left it"
                )
        return cls(
            limit=FilterCap(cap.epsilon, in_force.delta, earlier=in_force.earlier_epsilon, reserved=in_force.reserved),
            summed=_summed(history, bounds[-1]),
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
    total = spent(now.summed, now.limit.delta, now.limit.reserved) if now else spent(_summed(history), PUBLIC_DELTA)
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
    disjoint: list[DisjointLine]
    parties: list[PartyBudget]


def budget_report(dataset: str) -> BudgetReport:
    """Return cap, spent, left, and the charges of each party.

    ``promised`` is the theorem: everything released from these rows, now and later under this cap, is (epsilon,
    delta)-DP together, however runs were chosen in view of earlier ones. ``epsilon_spent`` is a reading of what was
    charged, without a guarantee of its own: it was not fixed before.

    Public sets have no cap; what is shown is what their runs would have cost at delta 1e-5.
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
        priced = last.partition, _read_costs(last.costs)
    else:
        policy = AccountingPolicy().for_group(found.group_size)
        priced = plan.partition, policy.prices(plan.releases, plan.delta, found)[0]
    now = _Status.of(history, found.cap, found)
    return repeats_left(now.summed, priced, now.limit)


def account_reading(account: str) -> dict[str, object]:
    """Return what an account has spent and left, as a charge's outcome names it."""
    return dict(open_ledger().status(account).details)


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
