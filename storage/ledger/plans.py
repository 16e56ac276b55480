"""Plans, charges and reservations as the entries tell them: what is paid, and what is set aside for a night to come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.errors import InputError, RefusedError
from storage.ledger.accounts import get_account
from storage.ledger.charges import Decision, History, PlanRecord, PlanRequest, ReleaseCharge
from storage.ledger.entries import Entries, Entry, Kind, require_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRecord:
    """One charged release.

    Parameters
    ----------
    key, label : str
    account : str
    parties : tuple of str
    guarantee : mapping
        As it was charged.
    again : mapping
        As it is charged where it is drawn once more; empty where that is the same.
    plan : PlanRecord
        What it was charged with.
    sequence : int
        Number of its own entry: the order of charges.
    recorded_at : str
        Informational time in UTC.
    """

    key: str
    label: str
    account: str
    parties: tuple[str, ...]
    guarantee: Mapping[str, Any]
    again: Mapping[str, Any]
    plan: PlanRecord
    sequence: int
    recorded_at: str


def require_plan(plan: PlanRequest) -> None:
    """Refuse a plan that names something twice, or what it is for badly."""
    require_name("the plan's partition", plan.partition)
    if not (math.isfinite(plan.delta) and 0 <= plan.delta < 1):
        raise InputError(f"the plan's delta is {plan.delta!r}; give a number from 0 to below 1")
    keys = [release.key for release in plan.releases]
    if len(set(keys)) != len(keys):
        raise InputError("a plan names one release twice; name each once")
    for release in plan.releases:
        require_name("the release's key", release.key)
        if not release.parties:
            raise InputError(f"release {release.key!r} names no party; name those whose rows it reads")
        for party in release.parties:
            require_name("the party's name", party)


def unpaid(entries: Entries, plan: PlanRequest) -> tuple[ReleaseCharge, ...]:
    """Return the releases this account has not paid for; refuse a key that stands for something else on record."""
    releases = {release.key: release for release in plan.releases}
    if not releases:
        return ()
    paid = set()
    for entry in entries.find(Kind.CHARGE, subjects=list(releases)):
        if entry.account == plan.account:
            _require_same(entry, releases[entry.subject], plan.partition)
            paid.add(entry.subject)
        elif get_account(entries, entry.account).private or get_account(entries, plan.account).private:
            raise RefusedError(
                f"release {entry.subject!r} was charged to account {entry.account!r} and cannot be charged to "
                f"{plan.account!r} as well; private rows belong to one account"
            )
    return tuple(release for release in plan.releases if release.key not in paid)


def _require_same(entry: Entry, release: ReleaseCharge, partition: str) -> None:
    content = entry.content
    same = (
        content["partition"] == partition
        and set(content["parties"]) == set(release.parties)
        and _alike(content["guarantee"], release.guarantee)
    )
    if not same:
        raise RefusedError(
            f"release {release.key!r} is on record with another guarantee, partition or parties; one identity must "
            "stand for one release, so nothing was charged"
        )


def _alike(left: Any, right: Any) -> bool:
    """Compare JSON; numbers up to the last bits, which differ between mathematical libraries."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_alike(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_alike, left, right))
    if isinstance(left, float) or isinstance(right, float):
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        return numbers and math.isclose(left, right, rel_tol=1e-9)
    return bool(left == right)


def append_plan(
    entries: Entries,
    plan: PlanRequest,
    new: Sequence[ReleaseCharge],
    decision: Decision,
    key_ids: Mapping[str, str],
    kind: Kind,
) -> int:
    """Enter a plan and the charges of its releases; return the number of the plan's entry."""
    content = {
        "partition": plan.partition,
        "delta": plan.delta,
        "run": plan.run,
        "releases": [release.key for release in new],
        "costs": decision.costs,
        "details": decision.details,
        "totals": decision.totals,
        "key_ids": dict(key_ids),
        "recharge": kind is Kind.RECHARGE,
    }
    (added,) = entries.extend(Kind.PLAN, account=plan.account, contents=[(plan.partition, content)])
    number = int(added["sequence"])
    contents = [
        (
            release.key,
            {
                "plan": number,
                "partition": plan.partition,
                "parties": list(release.parties),
                "guarantee": release.guarantee,
                "label": release.label,
                **({"stream": release.stream} if release.stream else {}),
                **({"again": release.again} if release.again else {}),
            },
        )
        for release in new
    ]
    entries.extend(kind, account=plan.account, contents=contents)
    return number


def charge_of(entries: Entries, key: str) -> ChargeRecord:
    """Return the first charge of a release; InputError where it was never charged."""
    charge = entries.find(Kind.CHARGE, subject=key)
    if not charge:
        raise InputError(f"release {key!r} was never charged; run what makes it")
    return charge_record(charge[0], _plan(entries.at(charge[0].content["plan"])))


def _plan(entry: Entry) -> PlanRecord:
    content = entry.content
    return PlanRecord(
        partition=content["partition"],
        costs=content["costs"],
        sequence=entry.sequence,
        delta=content["delta"],
        run=content["run"],
        releases=tuple(content["releases"]),
        key_ids=content["key_ids"],
        recharge=content["recharge"],
        recorded_at=entry.recorded_at,
    )


def history_of(entries: Entries, account: str) -> History:
    """Return an account's plans and what it has set aside, with what was noted of the plans before."""
    before: History = entries.notes.get(account, History())
    later = entries.find(Kind.PLAN, account=account)[len(before.plans) :]
    pending = [PlanRecord(one.plan.partition, one.costs) for one in open_reservations(entries, account)]
    history = History((*before.plans, *map(_plan, later)), pending, dict(before.notes))
    entries.notes[account] = history
    return history


def charge_record(entry: Entry, plan: PlanRecord) -> ChargeRecord:
    """Return the charge that an entry records."""
    content = entry.content
    return ChargeRecord(
        key=entry.subject,
        label=content["label"],
        account=entry.account,
        parties=tuple(content["parties"]),
        guarantee=content["guarantee"],
        again=content.get("again", {}),
        plan=plan,
        sequence=entry.sequence,
        recorded_at=entry.recorded_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One reservation.

    Parameters
    ----------
    sequence : int
        Number of its entry.
    name : str
        What its owner and the others call it: the run it is for.
    plan : PlanRequest
    costs : mapping
        What it counts as, the policy's own JSON.
    end : Kind or None
        How it ended; None while it is open.
    recorded_at : str
    """

    sequence: int
    name: str
    plan: PlanRequest
    costs: Mapping[str, Mapping[str, Any]]
    end: Kind | None
    recorded_at: str


def reserve_plan(entries: Entries, name: str, plan: PlanRequest, decision: Decision) -> None:
    """Enter a reservation that the policy has admitted."""
    releases = [asdict(one) for one in plan.releases]
    content = {
        "partition": plan.partition,
        "delta": plan.delta,
        "run": plan.run,
        "releases": releases,
        "costs": decision.costs,
    }
    entries.append(Kind.RESERVATION, account=plan.account, subject=name, content=content)


def open_reservations(entries: Entries, account: str) -> list[Reservation]:
    """Return the reservations of an account that are neither committed nor returned, oldest first."""
    return [_reservation(entry, None) for entry, end in _reservations(entries, account) if end is None]


def find_reservation(entries: Entries, account: str, name: str) -> Reservation:
    """Return the last reservation of a name.

    Raises
    ------
    InputError
        If there is none.
    """
    reservations = [(entry, end) for entry, end in _reservations(entries, account) if entry.subject == name]
    if not reservations:
        raise InputError(f"account {account!r} has reserved nothing for run {name!r}; a run is reserved for first")
    return _reservation(*reservations[-1])


def require_open(reservation: Reservation) -> None:
    """Refuse to commit or return a reservation that has ended.

    Raises
    ------
    RefusedError
    """
    if reservation.end is not None:
        what = "was charged: messages may have left" if reservation.end is Kind.COMMITMENT else "was returned"
        raise RefusedError(f"the reservation of run {reservation.name!r} {what}; nothing was changed")


def _reservations(entries: Entries, account: str) -> list[tuple[Entry, Kind | None]]:
    """Return each reservation of an account and how it ended."""
    kinds = (Kind.RESERVATION, Kind.COMMITMENT, Kind.RETURN)
    opened = entries.find(*kinds, account=account)
    ended = {entry.content["reservation"]: entry.kind for entry in opened if entry.kind is not Kind.RESERVATION}
    return [(one, ended.get(one.sequence)) for one in opened if one.kind is Kind.RESERVATION]


def _reservation(entry: Entry, end: Kind | None) -> Reservation:
    content = entry.content
    releases: Sequence[Mapping[str, Any]] = content["releases"]
    return Reservation(
        sequence=entry.sequence,
        name=entry.subject,
        plan=PlanRequest(
            account=entry.account,
            partition=content["partition"],
            releases=tuple(ReleaseCharge(**{**one, "parties": tuple(one["parties"])}) for one in releases),
            delta=content["delta"],
            run=content["run"],
        ),
        costs=content["costs"],
        end=end,
        recorded_at=entry.recorded_at,
    )
