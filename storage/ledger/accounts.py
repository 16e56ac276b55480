"""Accounts: the populations whose privacy budgets are spent, as the entries tell them.

An account belongs to the people a data set is about, not to a file: its owner names it, and every version of a data set
of these people spends from it. Functions here work inside a transaction of their caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.errors import InputError, RefusedError
from storage.ledger.charges import DEFAULT_RELATION, AccountTerms, Cap, CapChange
from storage.ledger.entries import Entries, Entry, Kind, require_name

ROW, PERSON = "row", "person"
"""The units of privacy: what neighbouring data sets differ in, one row, or all rows of one person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One population's account.

    Parameters
    ----------
    name : str
    cap : Cap or None
        The most it may spend over its life; None for public data, which is recorded and never refused.
    disjoint_people : bool
        Whether its owner declared that no person in it is in any account of `disjoint_from`.
    disjoint_from : tuple of str
    group_size : int
        The most rows one person has in it; 1 unless declared.
    idealised_allowed : bool
        Whether its owner accepts guarantees that hold in real arithmetic only (floating-point noise).
    relation : str
        The neighbouring relation its guarantees are stated under, fixed at opening.
    deltas : mapping
        The series of deltas that later caps may spend, fixed at opening; the policy's own JSON.
    unit : str
        :data:`ROW` or :data:`PERSON`, fixed at opening.
    opened_at : str
        Informational time in UTC.
    """

    name: str
    cap: Cap | None
    disjoint_people: bool = False
    disjoint_from: tuple[str, ...] = ()
    group_size: int = 1
    idealised_allowed: bool = False
    relation: str = DEFAULT_RELATION
    deltas: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ROW
    opened_at: str = ""

    @property
    def private(self) -> bool:
        """Whether the people's rows are somebody's secret."""
        return self.cap is not None


def require_cap(cap: Cap) -> None:
    """Refuse a cap that bounds nothing."""
    if not (math.isfinite(cap.epsilon) and cap.epsilon > 0):
        raise InputError(f"the cap's epsilon is {cap.epsilon!r}; give a finite number above 0")
    if not 0 <= cap.delta < 1:
        raise InputError(f"the cap's delta is {cap.delta!r}; give a number from 0 to below 1, well below 1 / rows")


def require_small_delta(delta: float, rows: int) -> None:
    """Refuse a delta at which releasing one row in the clear would pass for private.

    A mechanism that publishes one of `rows` rows at random is ``(0, 1/rows)``-private, so a delta of ``1/rows`` or more
    promises nothing to anybody.

    Raises
    ------
    RefusedError
        If ``delta >= 1 / rows``.
    """
    if rows < 1:
        raise InputError(f"there are {rows} rows; private data needs at least 1 row")
    if not delta * rows < 1:
        raise RefusedError(
            f"delta is {delta:g}, which is not below 1/n = {1 / rows:.3g} for n = {rows} rows; "
            f"give a smaller one, such as {0.1 / rows:.1g}"
        )


def find_account(entries: Entries, name: str) -> Account | None:
    """Return an account as it stands now, or None where there is none of this name."""
    opened = entries.find(Kind.ACCOUNT, subject=name)
    if not opened:
        return None
    content = opened[0].content
    cap = content["cap"]
    allowed = bool(content["idealised_allowed"])
    for change in entries.find(Kind.CAP, Kind.CONSENT, account=name):
        if change.kind is Kind.CAP:
            cap = change.content["cap"]
        else:
            allowed = bool(change.content["idealised_allowed"])
    return Account(
        name=name,
        cap=Cap(**cap) if cap is not None else None,
        disjoint_people=bool(content["disjoint_people"]),
        disjoint_from=tuple(content["disjoint_from"]),
        group_size=int(content["group_size"]),
        idealised_allowed=allowed,
        relation=content.get("relation", DEFAULT_RELATION),
        deltas=content.get("deltas", {}),
        unit=content.get("unit", ROW),
        opened_at=opened[0].recorded_at,
    )


def get_account(entries: Entries, name: str) -> Account:
    """Return an account as it stands now; InputError where there is none of this name."""
    account = find_account(entries, name)
    if account is None:
        known = ", ".join(account_names(entries)) or "none"
        raise InputError(f"there is no account {name!r} (accounts: {known}); register its data set first")
    return account


def account_names(entries: Entries) -> list[str]:
    """Return the names of all accounts in the order in which they were opened."""
    return [entry.subject for entry in entries.find(Kind.ACCOUNT)]


def add_account(entries: Entries, account: Account) -> Account:
    """Open an account that does not exist yet."""
    require_name("the account's name", account.name)
    require_name("the neighbouring relation", account.relation)
    if account.cap is not None:
        require_cap(account.cap)
    if account.group_size < 1:
        raise InputError(f"the group size is {account.group_size}; give the most rows that one person has, at least 1")
    if account.unit not in (ROW, PERSON) or (account.unit == PERSON and account.group_size > 1):
        raise InputError(
            f"account {account.name!r} would be of unit {account.unit!r} and group size {account.group_size}; give "
            f"{ROW}, or {PERSON} without a group size: a person counts once, with however many rows"
        )
    for other in account.disjoint_from:
        get_account(entries, other)
    content = asdict(account)
    del content["name"], content["opened_at"]
    if account.unit == ROW:
        # Said of people only: accounts of rows, and all that was made of them, are as ever.
        del content["unit"]
    entries.append(Kind.ACCOUNT, account=account.name, subject=account.name, content=content)
    return get_account(entries, account.name)


def account_terms(entries: Entries, account: Account) -> AccountTerms:
    """Return what the policy may need of an account besides its plans."""
    changes = tuple(map(_cap_change, entries.find(Kind.CAP, account=account.name)))
    return AccountTerms(relation=account.relation, deltas=account.deltas, changes=changes)


def _cap_change(entry: Entry) -> CapChange:
    content = entry.content
    return CapChange(
        cap=Cap(**content["cap"]),
        before=Cap(**content["before"]),
        by=content["by"],
        why=content["why"],
        recorded_at=entry.recorded_at,
        sequence=entry.sequence,
    )
