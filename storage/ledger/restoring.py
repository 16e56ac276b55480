"""The restoration of a ledger that is older than its high-water marks: what it lacks is recorded as spent."""

import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from storage.errors import InputError
from storage.ledger.charges import (
    Account,
    Cap,
    ChargePolicy,
    Decision,
    PlanRecord,
    PlanRequest,
    account_names,
    append_plan,
    find_account,
    get_account,
    history_of,
)
from storage.ledger.database import Database, read_mark
from storage.ledger.entries import Entries, Kind, behind_mark, writing


def restore(
    database: Database, policy: ChargePolicy, *, by: str, why: str, stated: Cap | None = None
) -> tuple[str, ...]:
    """Accept a ledger that is older than its high-water marks, by recording what it lacks as spent.

    For every account that the marks know, the difference between what it had spent by the newest mark and what
    this ledger says is recorded as one plan charged to every row; accounts that the ledger lacks are opened again.
    The entry begins a separate epoch (:meth:`storage.catalog.Catalog.epoch`), also where it records nothing.

    Parameters
    ----------
    database : Database
    policy : ChargePolicy
        Says what an account lacks.
    by, why : str
        Recorded.
    stated : Cap, optional
        What the owner says was spent beyond this ledger by each private account, at most; recorded where the marks
        do not say it. Also without any mark that is ahead.

    Returns
    -------
    tuple of str
        The accounts for which something was recorded.

    Raises
    ------
    InputError
        If no mark is ahead of the ledger and nothing is stated, or if a mark does not say what was spent and
        nothing is stated.
    StorageError
        If the chain itself is not in order: a rewritten ledger is not restored.
    """
    if not by.strip() or not why.strip():
        raise InputError("a restoration of a ledger is recorded with its author and its reason; give both")
    with writing(database, restoring=True) as entries:
        seen = [read_mark(path, database.chain) for path in database.marks]
        ahead = [mark for mark in seen if mark is not None and behind_mark(entries, mark) is not None]
        if not ahead and stated is None:
            raise InputError(
                "the ledger is as new as its high-water marks, so there is nothing to restore; if the marks are old "
                "too, state the spending since this back-up with --epsilon and --delta"
            )
        last = entries.last()
        own = [mark for mark in ahead if mark.link.ledger_id == last.ledger_id]
        newest = max(own, key=lambda mark: mark.link.sequence, default=None)
        known = newest.spent if newest is not None else {}
        unsaid = [name for name, spent in known.items() if not spent["totals"] and spent["opened"]["cap"]]
        if (unsaid or len(own) < len(ahead)) and stated is None:
            raise InputError(
                f"the high-water mark does not record the spending of {', '.join(unsaid) or 'this ledger'}; state an "
                "upper bound on the spending beyond this ledger with --epsilon and --delta"
            )
        for name, spent in known.items():
            if find_account(entries, name) is None:
                entries.append(Kind.ACCOUNT, account=name, subject=name, content=spent["opened"])
        recorded = []
        for name in account_names(entries):
            account, totals = get_account(entries, name), known.get(name, {}).get("totals")
            if account.private and (totals or stated is not None):
                recorded.append(name)
                _book(policy, entries, account, totals, stated)
        entries.append(
            Kind.RESTORE,
            account="",
            subject="ledger",
            content={
                "by": by,
                "why": why,
                "ended": last.sequence,
                "seen": newest.link.sequence if newest is not None else None,
                "stated": asdict(stated) if stated is not None else None,
                "accounts": recorded,
                # Unlike that of any other time the same back-up was put in place.
                "epoch": secrets.token_hex(16),
            },
        )
    return tuple(recorded)


def _book(
    policy: ChargePolicy, entries: Entries, account: Account, totals: Mapping[str, Any] | None, stated: Cap | None
) -> None:
    """Book what an account has spent beyond its plans, as one plan of a separate partition."""
    # Not less what is set aside: that may be returned.
    history = replace(history_of(entries, account.name), pending=())
    cost = (
        policy.shortfall(history, totals, account)
        if totals
        else policy.stated(stated.epsilon, stated.delta)
        if stated is not None
        else {}
    )
    partition = f"restored-{entries.last().sequence}"
    record = PlanRecord(partition, {"every row": cost})
    delta = account.cap.delta if account.cap is not None else 0.0
    with_it = replace(history, pending=(record,))
    stands = policy.decide(with_it, (), partition=partition, delta=delta, terms=account)
    plan = PlanRequest(account.name, partition, (), delta, run="restored ledger")
    decision = Decision(admitted=True, costs=record.costs, details=stands.details, totals=stands.totals)
    append_plan(entries, plan, (), decision, {}, Kind.CHARGE)
