"""Reservations: what an account has set aside for a plan that is charged once all other parties have set aside theirs.

A reservation counts as spent from its entry on. It ends in one of two ways, each an entry of its own: *committed*, when
its plan is charged, before any noise exists; or *returned*, which only one that was never committed can be. So nothing
is released under a reservation that could come back, and a refusal that it caused depended on charges alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.errors import InputError, RefusedError
from storage.ledger.charges import Decision, PlanRecord, PlanRequest, ReleaseCharge
from storage.ledger.entries import Entries, Entry, Kind


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
    costs, loss : mapping
        What it counts as, the policy's own JSON.
    end : Kind or None
        How it ended; None while it is open.
    recorded_at : str
    """

    sequence: int
    name: str
    plan: PlanRequest
    costs: Mapping[str, Mapping[str, Any]]
    loss: Mapping[str, Any]
    end: Kind | None
    recorded_at: str

    def record(self, sequence: int) -> PlanRecord:
        """Return what it counts as, if it were charged as the entry of this number."""
        return PlanRecord(self.plan.partition, self.costs, self.loss, {}, sequence)


def reserve_plan(entries: Entries, name: str, plan: PlanRequest, decision: Decision) -> None:
    """Enter a reservation that the policy has admitted."""
    releases = [asdict(one) for one in plan.releases]
    content = {
        "partition": plan.partition,
        "delta": plan.delta,
        "run": plan.run,
        "releases": releases,
        "costs": decision.costs,
        "loss": decision.loss,
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
    found = [(entry, end) for entry, end in _reservations(entries, account) if entry.subject == name]
    if not found:
        raise InputError(f"account {account!r} has reserved nothing for run {name!r}; a run is reserved for first")
    return _reservation(*found[-1])


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
    found = entries.find(*kinds, account=account)
    ended = {entry.content["reservation"]: entry.kind for entry in found if entry.kind is not Kind.RESERVATION}
    return [(one, ended.get(one.sequence)) for one in found if one.kind is Kind.RESERVATION]


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
        loss=content["loss"],
        end=end,
        recorded_at=entry.recorded_at,
    )
