"""Charges and reservations of budget: what is paid, and what is set aside for a night to come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from storage.errors import InputError, RefusedError
from storage.ledger.entries import Entries, Entry, Kind

DEFAULT_RELATION = "replace-one"
"""The neighbouring relation of accounts that were opened before accounts named theirs."""


@dataclass(frozen=True, slots=True)
class Cap:
    """The most an account may spend over its life: (epsilon, delta)."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapChange:
    """One recorded change of a cap.

    Parameters
    ----------
    cap, before : Cap
    by, why : str
    recorded_at : str
    sequence : int
        Number of its entry: plans with a smaller number were charged under `before`, later ones under `cap`.
    terms : mapping
        The policy's own JSON, such as which term of the account's series of deltas the new filter spends.
    """

    cap: Cap
    before: Cap
    by: str
    why: str
    recorded_at: str
    sequence: int = 0
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTerms:
    """What an account agreed at opening, and how its cap has changed since.

    Parameters
    ----------
    relation : str
        The neighbouring relation its guarantees are stated under, fixed at opening.
    deltas : mapping
        The series of deltas that later caps may spend, fixed at opening; the policy's own JSON.
    changes : tuple of CapChange
        Oldest first.
    """

    relation: str = DEFAULT_RELATION
    deltas: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[CapChange, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseCharge:
    """One release to be paid for.

    Parameters
    ----------
    key : str
        The release's identity.
    parties : tuple of str
        The parties of the partition whose rows it reads (one, or all of them).
    guarantee : mapping
        The guarantee as JSON; stored as it is, understood by the policy alone.
    label : str
        For people: ``"projection"``, ``"model of party 3"``.
    stream : str
        What this is one release of: the guarantee is of all releases of the stream together, so that of those that are
        charged in one plan it counts once. Empty where the guarantee is the release's own.
    again : mapping
        What this release costs where it is drawn once more, as a guarantee; empty where that is the guarantee.
    """

    key: str
    parties: tuple[str, ...]
    guarantee: Mapping[str, Any]
    label: str = ""
    stream: str = ""
    again: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All releases of one run, known before it starts and charged together.

    Parameters
    ----------
    account : str
    partition : str
        Identity of the partition the parties belong to.
    releases : tuple of ReleaseCharge
    delta : float
        The delta at which the run's cost is stated.
    run : str
        Free text for people (which algorithm, which run).
    """

    account: str
    partition: str
    releases: tuple[ReleaseCharge, ...]
    delta: float
    run: str = ""


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One charged plan as the policy sees it.

    Parameters
    ----------
    partition : str
    costs : mapping of party to JSON
        What each party paid; the policy's own JSON, as corrected if its guarantee turned out wrong.
    loss : mapping
        The plan's loss as a whole, such as a curve; the policy's own JSON, empty where it gave none.
    totals : mapping
        The account's running totals with this plan; the policy's own JSON, empty where it gave none.
    sequence : int
        Number of its entry, see :class:`CapChange`.
    notes : dict
        What a policy has made of the history up to this plan, so that it need not add it up again. The ledger hands out
        the same record behind the same records before it, or another one.
    """

    partition: str
    costs: Mapping[str, Mapping[str, Any]]
    loss: Mapping[str, Any] = field(default_factory=dict, compare=False)
    totals: Mapping[str, Any] = field(default_factory=dict, compare=False)
    sequence: int = field(default=0, compare=False)
    notes: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says about a plan.

    Parameters
    ----------
    admitted : bool
    costs : mapping of party to JSON
        What each party pays for the new releases; stored with the plan.
    reason : str
        For a refusal: what would be spent and what is left.
    details : mapping
        Public numbers for reports: spent before, spent after, left, the filter in force.
    loss : mapping
        The plan's loss as a whole, such as a curve; stored with the plan and handed back with the history.
    totals : mapping
        What the account has spent with this plan, as :meth:`ChargePolicy.lacking` reads it; stored with the plan and
        in the high-water marks.
    """

    admitted: bool
    costs: Mapping[str, Mapping[str, Any]]
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)


class ChargePolicy(Protocol):
    """Composition, handed to the ledger by its caller: storage knows no accounting.

    Must be a pure function of its arguments, and must raise for anything it does not understand.
    """

    def decide(
        self,
        history: Sequence[PlanRecord],
        new: Sequence[ReleaseCharge],
        *,
        partition: str,
        delta: float,
        cap: Cap | None,
        terms: AccountTerms,
    ) -> Decision:
        """Price the new releases and compare with the cap; ``cap`` None (public data) admits everything."""
        ...

    def lacking(self, history: Sequence[PlanRecord], totals: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the cost of one plan, paid by every row, that brings a history at least to these running totals."""
        ...

    def stated(self, epsilon: float, delta: float) -> Mapping[str, Any]:
        """Return the cost of a plan of which nothing is known but (epsilon, delta)."""
        ...


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
        loss=content["loss"],
        end=end,
        recorded_at=entry.recorded_at,
    )
