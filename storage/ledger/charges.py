"""Charges: whose accounts they burden, the policy that prices them, and how the entries tell plans and reservations.

An account belongs to the people a data set is about, not to a file: its owner names it, and every version of a data set
of these people spends from it. Functions that take entries work inside a transaction of their caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from storage.errors import InputError, RefusedError
from storage.ledger.entries import Entries, Entry, Kind, require_name

ROW, PERSON = "row", "person"
"""The units of privacy: what neighbouring data sets differ in, one row, or all rows of one person."""

DEFAULT_RELATION = "replace-one"
"""The neighbouring relation of accounts whose owner names none."""
LARGEST_CAP = 1e6
"""The largest epsilon of a cap: so far go the formulas that charges are composed by."""


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
    """

    cap: Cap
    before: Cap
    by: str
    why: str
    recorded_at: str
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTerms:
    """An account's terms that the policy may need: its cap, changes of the cap, and what was agreed at opening.

    Parameters
    ----------
    cap : Cap or None
        The most it may spend now: the cap in force, or the soft limit below it; None for public data, which is
        recorded and never refused.
    relation : str
        The neighbouring relation its guarantees are stated under, fixed at opening.
    deltas : mapping
        The series of deltas that later caps may spend, fixed at opening; the policy's own JSON.
    changes : tuple of CapChange
        Oldest first.
    group_size : int
        The most rows one person has in it; 1 unless declared.
    """

    cap: Cap | None = None
    relation: str = DEFAULT_RELATION
    deltas: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[CapChange, ...] = ()
    group_size: int = 1

    @property
    def opening_cap(self) -> Cap | None:
        """The cap at opening; None for public data."""
        return self.changes[0].before if self.changes else self.cap

    @property
    def promised(self) -> float | None:
        """Epsilon that is guaranteed of the account: the highest cap so far, above one that was lowered."""
        caps = [self.cap, *(change.before for change in self.changes)]
        return max((cap.epsilon for cap in caps if cap is not None), default=None)


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
        The stream that this release belongs to. The guarantee covers all releases of the stream together, so it counts
        once for all those that are charged in one plan. Empty where the guarantee is the release's own.
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
    """One charged plan, or one that is set aside.

    Parameters
    ----------
    partition : str
    costs : mapping of party to JSON
        What each party paid; the policy's own JSON.
    sequence : int
        Number of its entry, see :class:`CapChange`.
    delta : float
        The delta at which its run states its cost.
    run : str
    releases : tuple of str
        Keys of what was charged with it; none where a restored ledger recorded it.
    key_ids : mapping of party to str
        Identities of the secrets in force when it was charged: noise may be drawn with these only.
    recharge : bool
        Whether a release was charged once more because a recomputation gave other bytes.
    recorded_at : str
        Informational time in UTC.
    """

    partition: str
    costs: Mapping[str, Mapping[str, Any]]
    sequence: int = 0
    delta: float = 0.0
    run: str = ""
    releases: tuple[str, ...] = ()
    key_ids: Mapping[str, str] = field(default_factory=dict)
    recharge: bool = False
    recorded_at: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """Spending of an account, as the policy sees it.

    Parameters
    ----------
    plans : sequence of PlanRecord
        Charged, oldest first.
    pending : sequence of PlanRecord
        Set aside, and counted as if it were charged now, which is the latest that it can have been.
    memo : dict
        What a policy has made of the plans, so that it need not add them up again: the ledger may hand it out again
        with a history that begins with these plans.
    """

    plans: Sequence[PlanRecord] = ()
    pending: Sequence[PlanRecord] = ()
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of the policy on a plan.

    Parameters
    ----------
    admitted : bool
    costs : mapping of party to JSON
        What each party pays for the new releases; stored with the plan.
    reason : str
        For a refusal: what is spent, and what would be.
    details : mapping
        Public numbers for reports: ``spent_before`` and ``spent_after``, the filter in force.
    totals : mapping
        What the account has spent with this plan, as :meth:`ChargePolicy.shortfall` reads it; stored with the plan and
        in the high-water marks.
    """

    admitted: bool
    costs: Mapping[str, Mapping[str, Any]]
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)


class ChargePolicy(Protocol):
    """Composition, handed to the ledger by its caller: storage knows no accounting.

    Must be a pure function of its arguments, and must raise for anything it does not understand.
    """

    def decide(
        self, history: History, new: Sequence[ReleaseCharge], *, partition: str, delta: float, terms: AccountTerms
    ) -> Decision:
        """Price the new releases and compare with the account's cap; where there is none, everything is admitted."""

    def shortfall(self, history: History, totals: Mapping[str, Any], terms: AccountTerms) -> Mapping[str, Any]:
        """Return the cost of one plan, paid by every row, that brings a history at least to these running totals."""

    def stated(self, epsilon: float, delta: float) -> Mapping[str, Any]:
        """Return the cost of a plan of which nothing is known but (epsilon, delta)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(AccountTerms):
    """One population's account.

    Parameters
    ----------
    name : str
    disjoint_people : bool
        Whether its owner declared that no person in it is in any account of `disjoint_from`.
    disjoint_from : tuple of str
    idealised_allowed : bool
        Whether its owner accepts guarantees that hold in real arithmetic only (floating-point noise).
    unit : str
        :data:`ROW` or :data:`PERSON`, fixed at opening.
    soft_limit : float or None
        Epsilon that the cap was lowered to at opening: the oldest of `changes`, in the entry that opened the account.
        So no charge precedes it, and an account that is opened again from a high-water mark has it.
    """

    name: str
    disjoint_people: bool = False
    disjoint_from: tuple[str, ...] = ()
    idealised_allowed: bool = False
    unit: str = ROW
    soft_limit: float | None = None

    @property
    def private(self) -> bool:
        """Whether the people's rows are private."""
        return self.cap is not None


def require_cap(cap: Cap) -> None:
    """Refuse a cap that bounds nothing, and one beyond what is accounted for."""
    if not 0 < cap.epsilon <= LARGEST_CAP:
        raise InputError(
            f"the cap's epsilon is {cap.epsilon!r}; give a number above 0 and at most {LARGEST_CAP:g}",
            value=cap.epsilon,
            bound=LARGEST_CAP,
        )
    if not 0 <= cap.delta < 1:
        raise InputError(
            f"the cap's delta is {cap.delta!r}; give a number from 0 to below 1, well below 1 / rows",
            value=cap.delta,
            bound=1,
        )


def require_soft_limit(cap: Cap | None, soft_limit: float | None) -> None:
    """Refuse a soft limit that is not below a cap."""
    if soft_limit is None:
        return
    if cap is None:
        raise InputError(
            f"the soft limit is epsilon {soft_limit:g}, and no cap is given; give both when opening an account, or "
            "change the cap of an existing account (--raise-epsilon-cap)"
        )
    if not 0 < soft_limit < cap.epsilon:
        raise InputError(
            f"the soft limit is epsilon {soft_limit!r}; give a number above 0 and below the cap's {cap.epsilon:g}, or "
            "omit it",
            value=soft_limit,
            bound=cap.epsilon,
        )


def same_cap(account: Account, cap: Cap | None, soft_limit: float | None = None) -> bool:
    """Whether a cap that is asked for is the account's own: at its opening, or in force."""
    if cap == account.opening_cap and soft_limit in (None, account.soft_limit):
        return True
    return soft_limit is None and cap == account.cap


def described_cap(cap: Cap | None, soft_limit: float | None = None) -> str:
    """Return a cap in words, with the soft limit below it."""
    if cap is None:
        return "none, of public rows"
    limit = "" if soft_limit is None else f" with a soft limit of epsilon {soft_limit:g}"
    return f"epsilon {cap.epsilon:g} at delta {cap.delta:g}{limit}"


def of_cap(limit: float, promised: float | None) -> str:
    """Return the epsilon that charges go by, and the promised cap where a soft limit is below it."""
    if promised is None or promised <= limit:
        return f"{limit:g}"
    return f"{limit:g} (a soft limit; the cap is {promised:g})"


def account_cap(account: Account) -> str:
    """Return an account's cap in words: at its opening and, where it was changed since, in force."""
    opened = described_cap(account.opening_cap, account.soft_limit)
    unchanged = len(account.changes) == (account.soft_limit is not None)
    return opened if unchanged else f"{opened} at its opening, {described_cap(account.cap)} in force"


def require_small_delta(delta: float, rows: int) -> None:
    """Refuse a delta at which releasing one row in the clear would pass for private.

    A mechanism that publishes one of `rows` rows at random is ``(0, 1/rows)``-private, so a delta of ``1/rows`` or more
    gives no protection.

    Raises
    ------
    RefusedError
        If ``delta >= 1 / rows``.
    """
    if rows < 1:
        raise InputError(f"the data set has {rows} rows; private data needs at least 1 row")
    if not delta * rows < 1:
        raise RefusedError(
            f"delta is {delta:g}, which is not below 1/n = {1 / rows:.3g} for n = {rows} rows; "
            f"give a smaller one, such as {0.1 / rows:.1g}"
        )


def find_account(entries: Entries, name: str) -> Account | None:
    """Return an account as it stands now, or None for an unknown name."""
    opened = entries.find(Kind.ACCOUNT, subject=name)
    if not opened:
        return None
    content = opened[0].content
    opening, limit = content["cap"] and Cap(**content["cap"]), content.get("soft_limit")
    lowered = () if limit is None else (_lowered_at_opening(opened[0], opening, limit),)
    changes = lowered + tuple(
        CapChange(
            cap=Cap(**entry.content["cap"]),
            before=Cap(**entry.content["before"]),
            by=entry.content["by"],
            why=entry.content["why"],
            recorded_at=entry.recorded_at,
            sequence=entry.sequence,
        )
        for entry in entries.find(Kind.CAP, account=name)
    )
    consents = [content, *(entry.content for entry in entries.find(Kind.CONSENT, account=name))]
    return Account(
        name=name,
        cap=changes[-1].cap if changes else opening,
        changes=changes,
        disjoint_people=bool(content["disjoint_people"]),
        disjoint_from=tuple(content["disjoint_from"]),
        group_size=int(content["group_size"]),
        idealised_allowed=bool(consents[-1]["idealised_allowed"]),
        relation=content["relation"],
        deltas=content["deltas"],
        unit=content["unit"],
        soft_limit=limit,
    )


def _lowered_at_opening(entry: Entry, cap: Cap, soft_limit: float) -> CapChange:
    return CapChange(
        cap=Cap(soft_limit, cap.delta),
        before=cap,
        by="",
        why="soft limit at opening",
        recorded_at=entry.recorded_at,
        sequence=entry.sequence,
    )


def get_account(entries: Entries, name: str) -> Account:
    """Return an account as it stands now; InputError for an unknown name."""
    account = find_account(entries, name)
    if account is None:
        known = ", ".join(account_names(entries)) or "none"
        raise InputError(f"account {name!r} does not exist (accounts: {known}); register its data set first")
    return account


def account_names(entries: Entries) -> list[str]:
    """Return the names of all accounts in the order in which they were opened."""
    return [entry.subject for entry in entries.find(Kind.ACCOUNT)]


def add_account(entries: Entries, account: Account) -> Account:
    """Open an account that does not exist yet, with a soft limit where `account` names one."""
    require_name("the account's name", account.name)
    require_name("the neighbouring relation", account.relation)
    if account.cap is not None:
        require_cap(account.cap)
    require_soft_limit(account.cap, account.soft_limit)
    if account.group_size < 1:
        raise InputError(
            f"the group size is {account.group_size}; give the maximum number of rows per person, at least 1"
        )
    if account.unit not in (ROW, PERSON) or (account.unit == PERSON and account.group_size > 1):
        raise InputError(
            f"account {account.name!r} would be of unit {account.unit!r} and group size {account.group_size}; give "
            f"{ROW}, or {PERSON} without a group size, since a person counts once with any number of rows"
        )
    for other in account.disjoint_from:
        get_account(entries, other)
    content = asdict(account)
    del content["name"], content["changes"]
    if account.soft_limit is None:
        del content["soft_limit"]
    entries.append(Kind.ACCOUNT, account=account.name, subject=account.name, content=content)
    return get_account(entries, account.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRecord(ReleaseCharge):
    """One charged release, as it was charged.

    Parameters
    ----------
    account : str
    plan : PlanRecord
        What it was charged with.
    sequence : int
        Number of its own entry: the order of charges.
    recorded_at : str
        Informational time in UTC.
    """

    account: str
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
            raise InputError(f"release {release.key!r} names no party; name the parties whose rows it reads")
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
            release, content = releases[entry.subject], entry.content
            if (
                content["partition"] != plan.partition
                or set(content["parties"]) != set(release.parties)
                or not _alike(content["guarantee"], release.guarantee)
            ):
                raise RefusedError(
                    f"release {release.key!r} is recorded with a different guarantee, partition or parties; an "
                    "identity must name one release. Nothing was charged"
                )
            paid.add(entry.subject)
        elif get_account(entries, entry.account).private or get_account(entries, plan.account).private:
            raise RefusedError(
                f"release {entry.subject!r} was charged to account {entry.account!r} and cannot be charged to "
                f"{plan.account!r} as well; private rows belong to one account"
            )
    return tuple(release for release in plan.releases if release.key not in paid)


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
) -> None:
    """Enter a plan and the charges of its releases."""
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
    number = entries.last().sequence + 1
    charges = (
        (
            kind,
            release.key,
            {
                "plan": number,
                "partition": plan.partition,
                "parties": list(release.parties),
                "guarantee": release.guarantee,
                "label": release.label,
                "stream": release.stream,
                "again": release.again,
            },
        )
        for release in new
    )
    entries.extend(plan.account, [(Kind.PLAN, plan.partition, content), *charges])


def charge_of(entries: Entries, key: str) -> ChargeRecord:
    """Return the first charge of a release; InputError where it was never charged."""
    charge = entries.find(Kind.CHARGE, subject=key)
    if not charge:
        raise InputError(f"release {key!r} was never charged; run the command that makes it")
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
    before: History = entries.memo.get(account, History())
    later = entries.find(Kind.PLAN, account=account)[len(before.plans) :]
    pending = [PlanRecord(one.plan.partition, one.costs) for one in open_reservations(entries, account)]
    history = History((*before.plans, *map(_plan, later)), pending, dict(before.memo))
    entries.memo[account] = history
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
        stream=content["stream"],
        again=content["again"],
        plan=plan,
        sequence=entry.sequence,
        recorded_at=entry.recorded_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One reservation.

    A reservation counts as spent from its entry on. It ends in one of two ways, each a separate entry: *committed*,
    when its plan is charged, before any noise exists; or *returned*, which only one that was never committed can be. So
    nothing is released under a reservation that could come back, and a refusal that it caused depended on charges
    alone.

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
    """

    sequence: int
    name: str
    plan: PlanRequest
    costs: Mapping[str, Mapping[str, Any]]
    end: Kind | None


def reserve_plan(entries: Entries, name: str, plan: PlanRequest, decision: Decision) -> None:
    """Enter a reservation that the policy has admitted."""
    content = {
        "partition": plan.partition,
        "delta": plan.delta,
        "run": plan.run,
        "releases": [asdict(one) for one in plan.releases],
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
        raise InputError(f"account {account!r} holds no reservation for run {name!r}; reserve before committing")
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
    opened = entries.find(Kind.RESERVATION, Kind.COMMITMENT, Kind.RETURN, account=account)
    ended = {entry.content["reservation"]: entry.kind for entry in opened if entry.kind is not Kind.RESERVATION}
    return [(one, ended.get(one.sequence)) for one in opened if one.kind is Kind.RESERVATION]


def _reservation(entry: Entry, end: Kind | None) -> Reservation:
    content = entry.content
    return Reservation(
        sequence=entry.sequence,
        name=entry.subject,
        plan=PlanRequest(
            account=entry.account,
            partition=content["partition"],
            releases=tuple(ReleaseCharge(**{**one, "parties": tuple(one["parties"])}) for one in content["releases"]),
            delta=content["delta"],
            run=content["run"],
        ),
        costs=content["costs"],
        end=end,
    )
