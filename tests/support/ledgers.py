"""Ledgers for tests: a cheap policy, and short ways to ask for charges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.ledger.charges import AccountTerms, Cap, Decision, History, PlanRequest, ReleaseCharge
from storage.ledger.database import Database, Memory, open_database
from storage.ledger.entries import Kind, found
from storage.ledger.ledger import Ledger
from storage.secrets import Secret


@dataclass(frozen=True)
class SumOfEpsilons:
    """Basic composition: the sum over plans, the largest over parties; within a partition only."""

    def decide(
        self, history: History, new: Sequence[ReleaseCharge], *, partition: str, delta: float, terms: AccountTerms
    ) -> Decision:
        cap = terms.cap
        spent: dict[str, float] = {}
        for plan in (*history.plans, *history.pending):
            for party, cost in plan.costs.items():
                spent[party] = spent.get(party, 0.0) + cost["epsilon"]
        costs: dict[str, dict[str, float]] = {}
        for release in new:
            for party in release.parties:
                costs.setdefault(party, {"epsilon": 0.0})["epsilon"] += terms.group_size * release.guarantee["epsilon"]
        everybody = spent.pop("every row", 0.0)
        spent = {party: paid + everybody for party, paid in spent.items()} or {"0": everybody}
        before = max(spent.values(), default=0.0)
        after = max((spent.get(p, 0.0) + costs.get(p, {}).get("epsilon", 0.0) for p in {*spent, *costs}), default=0.0)
        admitted = cap is None or after <= cap.epsilon + 1e-9
        reason = "" if cap is None or admitted else f"{cap.epsilon - before:g} is left"
        details = {"spent_before": before, "spent_after": after}
        return Decision(admitted, costs, reason, details, totals={"epsilon": after})

    def shortfall(self, history: History, totals: Mapping[str, Any], terms: AccountTerms) -> dict[str, float]:
        now = self.decide(history, (), partition="", delta=0.0, terms=AccountTerms()).totals["epsilon"]
        return {"epsilon": max(totals["epsilon"] - now, 0.0)}

    def stated(self, epsilon: float, delta: float) -> dict[str, float]:
        return {"epsilon": epsilon}


class ForgetsParties(SumOfEpsilons):
    """A broken policy that admits everything and prices nothing."""

    def decide(self, *arguments: Any, **options: Any) -> Decision:
        return Decision(admitted=True, costs={})


def release(key: str, epsilon: float = 1.0, parties: Sequence[str] = ("0",)) -> ReleaseCharge:
    return ReleaseCharge(key=key, parties=tuple(parties), guarantee={"epsilon": epsilon}, label=f"label of {key}")


def request(*releases: ReleaseCharge, account: str = "clinic", partition: str = "even-5", run: str = "") -> PlanRequest:
    return PlanRequest(account=account, partition=partition, releases=releases, delta=1e-6, run=run)


KEY = Secret(b"the key of ledgers in tests only")


def opened(location: Path | str, **more: Any) -> Database:
    """Open a database with the tests' key, as a process does that has just begun."""
    return open_database(location, key=KEY, memory=Memory(), **more)


def open_ledger(location: Path | str, cap: float | None = None, account: str = "clinic", **more: Any) -> Ledger:
    """Open a ledger as each process does; with a cap, open the account too."""
    ledger = Ledger(opened(location, **more), SumOfEpsilons())
    if cap is not None:
        ledger.open_account(account, Cap(cap, 1e-5))
    return ledger


def spent(ledger: Ledger, account: str = "clinic") -> float:
    return float(ledger.status(account).details["spent_before"])


def outputs(ledger: Ledger, key: str) -> list[str]:
    """Return the digests that were recorded for a release, oldest first."""
    return [entry.content["digest"] for entry in found(database_of(ledger), Kind.OUTPUT, subject=key)]


def database_of(ledger: Ledger) -> Database:
    return ledger._database
