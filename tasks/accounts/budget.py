"""Between ledger and accountant: the policy that prices plans, and what people are told of an account."""

from __future__ import annotations

import getpass
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpalgos.accounting.costs import PlanCost, price
from dpalgos.accounting.scaling import losses_under
from dpalgos.accounting.spending import Admission, admit, repeats_left, spent, standing, worst_totals
from dpalgos.accounting.spending import Cap as AccountingCap
from dpalgos.guarantees import ApproximateDP, Guarantee, Loss, Neighbours, NoGuarantee
from storage.accounts import require_cap, require_small_delta
from storage.charges import AccountTerms, Cap, Decision, PlanRecord, ReleaseCharge
from storage.errors import InputError, RefusedError
from storage.ledger import Ledger
from storage.refs import DatasetRef
from storage.releases import ReleaseStore
from tasks.accounts.books import open_books, open_catalog
from tasks.ingestion import find_dataset
from tasks.runtime.settings import current_layout

__all__ = [
    "AccountingPolicy",
    "budget_report",
    "nights_left",
    "open_ledger",
    "raise_cap",
    "relation_of",
    "verify_books",
]

_NO_TERMS = AccountTerms()
History = list[tuple[str, Mapping[str, PlanCost]]]


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
        self,
        history: Sequence[PlanRecord],
        new: Sequence[ReleaseCharge],
        *,
        partition: str,
        delta: float,
        cap: Cap | None,
        terms: AccountTerms = _NO_TERMS,
    ) -> Decision:
        """Price the new releases and compare with the cap; public data (no cap) are priced and admitted.

        A release proved under another relation than the account's is converted at its price or refused
        (:func:`dpalgos.accounting.scaling.losses_under`).

        Raises
        ------
        ValueError
            For an unknown relation, and for add-remove-one.
        """
        relation = Neighbours(terms.relation).in_force()
        releases = [
            (charge.parties, losses_under(Guarantee.from_json(dict(charge.guarantee)), relation)) for charge in new
        ]
        costs = price(releases, delta, rows_per_person=self.rows_per_person)
        written = {party: cost.to_json() for party, cost in costs.items()}
        if cap is None:
            return Decision(admitted=True, costs=written)
        before: History = _history(history)
        limit = AccountingCap(cap.epsilon, cap.delta)
        admission = admit(before, (partition, costs), limit) if new else standing(before, limit)
        after = [*before, (partition, costs)] if new else before
        return Decision(
            admitted=admission.admitted,
            costs=written,
            reason=admission.reason,
            details=_details(admission),
            totals={name: _finite(value) for name, value in worst_totals(after)._asdict().items()},
        )

    def lacking(self, history: Sequence[PlanRecord], totals: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cost of one plan, paid by every row, that brings a history at least to these running totals."""
        now = worst_totals(_history(history))
        wanted = {name: math.inf if value is None else float(value) for name, value in totals.items()}
        lacks = {
            name: math.nextafter(max(wanted[name] - value, 0.0), math.inf) for name, value in now._asdict().items()
        }
        loss: Loss = (
            ApproximateDP(lacks["epsilon"], lacks["delta"])
            if math.isfinite(lacks["epsilon"]) and lacks["delta"] < 1
            else NoGuarantee("the plans of a lost ledger")
        )
        return PlanCost(losses=(loss,), **lacks).to_json()

    def stated(self, epsilon: float, delta: float) -> dict[str, Any]:
        """Return the cost of a plan of which nothing is known but (epsilon, delta)."""
        return PlanCost.of([ApproximateDP(epsilon, delta)], delta).to_json()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _details(admission: Admission) -> dict[str, Any]:
    return {
        "spent_before": _finite(admission.before.epsilon),
        "spent_after": _finite(admission.after.epsilon),
        "left": admission.left,
        "filter": admission.after.filter,
        "cap": asdict(admission.cap),
    }


def _history(plans: Sequence[PlanRecord]) -> History:
    return [
        (plan.partition, {party: PlanCost.from_json(dict(cost)) for party, cost in plan.costs.items()})
        for plan in plans
    ]


def relation_of(dataset: str) -> Neighbours:
    """Return the neighbouring relation of a data set's account, fixed at opening."""
    return Neighbours(open_catalog().account_of(dataset).relation)


def open_ledger() -> Ledger:
    """Open the ledger with the accountant behind it."""
    return Ledger(open_books(), AccountingPolicy())


def budget_report(dataset: str) -> dict[str, Any]:
    """Return cap, spent, left, and the charges of each party.

    Public sets have no cap; what is shown is what their runs would have cost at delta 1e-5.
    """
    find_dataset(dataset)
    ledger = open_ledger()
    account = open_catalog().account_of(dataset)
    cap = account.cap
    delta = cap.delta if cap else 1e-5
    plans = ledger.plans(account.name)
    history = _history([plan.record() for plan in plans])
    total = spent(history, delta)
    charges = ledger.charges_by_party(account.name)
    # A joint release is every party's charge; it is told once and shown by all.
    each = {charge.sequence: charge for found in charges.values() for charge in found}
    told = {sequence: _charge(charge) for sequence, charge in each.items()}
    worst: dict[str, float] = {}
    for parties in total.parties.values():
        for party, epsilon in parties.items():
            worst[party] = max(worst.get(party, 0.0), epsilon)
    return {
        "dataset": dataset,
        "account": account.name,
        "cap": asdict(cap) if cap else None,
        "epsilon_spent": _finite(total.epsilon),
        "delta_spent": delta,
        "epsilon_left": max(cap.epsilon - total.epsilon, 0.0) if cap else None,
        "filter": total.filter,
        "group_size": account.group_size,
        "relation": account.relation,
        "disjoint": [
            {"from": list(one.accounts), "reason": one.reason, "recorded_at": one.recorded_at}
            for one in open_catalog().disjoint_from(account.name)
        ],
        "parties": [
            {
                "party": party,
                "epsilon_spent": _finite(worst.get(party, 0.0)),
                "delta_spent": delta,
                "charges": [told[charge.sequence] for charge in found],
            }
            for party, found in charges.items()
        ],
    }


def _charge(charge: Any) -> dict[str, Any]:
    return {
        "key": charge.key,
        "label": charge.label,
        "run": charge.run,
        "partition": charge.partition,
        "guarantee": dict(charge.guarantee),
        "plan": charge.plan,
        "recharge": charge.recharge,
        "recorded_at": charge.recorded_at,
    }


def nights_left(account: str) -> int | None:
    """Return how many more plans like the last one fit; None for public accounts and before the first plan."""
    ledger = open_ledger()
    cap = ledger.account(account).cap
    plans = ledger.plans(account)
    if cap is None or not plans:
        return None
    history = _history([plan.record() for plan in plans])
    return repeats_left(history, history[-1], AccountingCap(cap.epsilon, cap.delta))


def raise_cap(dataset: str, epsilon: float | None, delta: float | None, reason: str) -> None:
    """Raise the cap of a data set's account, on record.

    Raises
    ------
    InputError
        Without a reason.
    RefusedError
        For public sets, and for a delta of 1/n or more.
    """
    account = open_catalog().account_of(dataset)
    if account.cap is None:
        raise RefusedError(f"{dataset} is public and has no cap")
    if not reason.strip():
        raise InputError("a cap is raised for good and on record: say why with --reason")
    cap = Cap(
        epsilon=account.cap.epsilon if epsilon is None else epsilon,
        delta=account.cap.delta if delta is None else delta,
    )
    require_cap(cap)
    most = max(
        DatasetRef.model_validate(one.manifest["reference"]).rows
        for one in open_catalog().registrations()
        if one.account == account.name
    )
    require_small_delta(cap.delta, most)
    open_ledger().raise_cap(account.name, cap, by=getpass.getuser(), why=reason)


def verify_books() -> list[str]:
    """Check the ledger's chain and every stored release against it; one sentence a problem."""
    store = ReleaseStore(current_layout())
    problems = []
    stored = {}
    keys = store.keys()
    for key in keys:
        try:
            manifest, arrays = store.read(key)
        except Exception as error:
            problems.append(str(error))
            continue
        # Post-processing and maps made from public parameters were never charged, and need not be.
        if "post_processing" not in manifest and manifest.get("reads_rows", True):
            stored[key] = store.digest_of(manifest, arrays)
    return problems + open_ledger().verify(stored)
