"""The ledger: what every account has spent, charged before any noise exists, exactly once a release."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from storage.errors import InputError, OverspendError, RefusedError, StorageError
from storage.ledger.charges import (
    DEFAULT_RELATION,
    ROW,
    Account,
    Cap,
    CapChange,
    ChargePolicy,
    ChargeRecord,
    Decision,
    History,
    PlanRequest,
    ReleaseCharge,
    Reservation,
    account_cap,
    account_names,
    add_account,
    append_plan,
    charge_of,
    charge_record,
    described_cap,
    find_account,
    find_reservation,
    get_account,
    history_of,
    open_reservations,
    require_cap,
    require_open,
    require_plan,
    reserve_plan,
    same_cap,
    unpaid,
)
from storage.ledger.database import Database
from storage.ledger.entries import (
    Entries,
    Kind,
    check_chain,
    found,
    marks_of,
    reading,
    require_name,
    require_not_behind,
    writing,
)


class OutputOutcome(StrEnum):
    """The result of recording an output's digest."""

    RECORDED = "recorded"
    """The first output of this release."""
    UNCHANGED = "unchanged"
    """These bytes, or others that are made of the same, were recorded before."""
    RECHARGED = "recharged"
    """Made of something else than before: the noise was fresh, so the release was charged once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeOutcome:
    """Outcome of a charge.

    Parameters
    ----------
    charged : tuple of str
        Keys charged now.
    already_charged : tuple of str
        Keys that this account had paid for before; they are free.
    details : mapping
        The policy's public numbers (spent before and after, left, …); empty where nothing was left to charge.
    """

    charged: tuple[str, ...]
    already_charged: tuple[str, ...]
    details: Mapping[str, Any]


class Ledger:
    """Accounts and what they have spent.

    Every method is one transaction; what writes holds the ledger's write lock from its first statement, so that of two
    flows that race for the last of a budget exactly one wins. An error means that nothing was changed.

    Parameters
    ----------
    database : Database
    policy : ChargePolicy
        Composes and compares with the cap; where it raises, nothing is charged. Called with no new releases it must
        say where the account stands.

    Notes
    -----
    Guarantee. For every account with a cap, at every time: the plans on record, in their order, were each admitted by
    the policy in view of exactly the plans before them, and no release was drawn that is on no plan as long as callers
    draw only after :meth:`charge` returned its key. Hence if the policy is a valid filter under full adaptivity, the
    account's releases together satisfy its cap.

    Proof. Plans are appended only in :meth:`charge` and :meth:`record_output`, between reading the whole history and
    the commit, under one lock that every writer holds; the history is therefore the same at the decision and at the
    commit, and entries are never changed (triggers, and the chain shows it where they were removed). A restoration
    (:func:`storage.ledger.restoring.restore`) appends what was spent already, under the same lock; nothing is drawn on
    it.
    """

    def __init__(self, database: Database, policy: ChargePolicy) -> None:
        self._database = database
        self._policy = policy

    def open_account(
        self,
        name: str,
        cap: Cap | None,
        *,
        disjoint_from: Sequence[str] = (),
        group_size: int = 1,
        idealised_allowed: bool = False,
        relation: str = DEFAULT_RELATION,
        deltas: Mapping[str, Any] | None = None,
        unit: str = ROW,
        soft_limit: float | None = None,
    ) -> Account:
        """Open an account for a population; opening it again with the same terms changes nothing.

        The cap of an account that was changed since agrees with the one at its opening and with the one in force. A
        soft limit is a lowered cap from the first charge on: what is promised is the cap, the filter in force is that
        of the cap, and :meth:`raise_cap` up to the cap lifts it.

        Parameters
        ----------
        name : str
        cap : Cap or None
            None for public data.
        disjoint_from : sequence of str
            Accounts whose people are, on the owner's word, other people. Of an account that exists they are compared
            only where they are given.
        group_size : int
            The most rows that one person has.
        idealised_allowed : bool
            The owner's word that floating-point noise will do.
        relation : str
            The neighbouring relation that its guarantees are stated under.
        deltas : mapping, optional
            The series of deltas that later caps may spend; the policy's own JSON.
        unit : str
            What is protected: a row, or a person.
        soft_limit : float, optional
            Epsilon below the cap's, above which nothing is charged until it is lifted.

        Raises
        ------
        InputError
            If the soft limit is not below the cap, or if the account exists with other terms, naming each that differs.
        """
        asked = Account(
            name=name,
            cap=cap,
            disjoint_people=bool(disjoint_from),
            disjoint_from=tuple(disjoint_from),
            group_size=group_size,
            idealised_allowed=idealised_allowed,
            relation=relation,
            deltas=deltas or {},
            unit=unit,
            soft_limit=soft_limit,
        )
        with writing(self._database) as entries:
            present = find_account(entries, name) or add_account(entries, asked)
        if differing := _differing(present, asked):
            raise InputError(
                f"account {name!r} exists with different terms: {'; '.join(differing)}. Use it as it is, or change "
                f"its cap (recorded): unitball budget {name} --raise-epsilon-cap …"
            )
        return present

    def account(self, name: str) -> Account:
        """Return an account as it stands; InputError where there is none."""
        with reading(self._database) as entries:
            return get_account(entries, name)

    def accounts(self) -> list[Account]:
        """Return all accounts in the order in which they were opened."""
        with reading(self._database) as entries:
            return [get_account(entries, name) for name in account_names(entries)]

    def raise_cap(self, name: str, cap: Cap, *, by: str, why: str) -> Account:
        """Change an account's cap: an explicit act of its owner, itself recorded.

        The policy must find the history within the new cap, the change itself counted among the account's.

        Parameters
        ----------
        name : str
        cap : Cap
        by, why : str

        Raises
        ------
        OverspendError
            If the policy does not: more than the new cap is spent already, or nothing is left to raise it with.
        InputError
            If the account is public, or `by` or `why` is empty.
        """
        require_cap(cap)
        if not by.strip() or not why.strip():
            raise InputError("a cap change is recorded with its author and its reason; give both")
        with writing(self._database) as entries:
            account = get_account(entries, name)
            if account.cap is None:
                raise InputError(f"account {name!r} is public and has no cap to change")
            if cap == account.cap:
                return account
            change = CapChange(
                cap=cap, before=account.cap, by=by, why=why, recorded_at="", sequence=entries.last().sequence + 1
            )
            changed = replace(account, cap=cap, changes=(*account.changes, change))
            status = self._decide(entries, changed, (), partition="", delta=cap.delta)
            if not status.admitted:
                raise _overspent(
                    changed,
                    status,
                    f"the cap of account {name!r} cannot become epsilon {cap.epsilon:g} at delta {cap.delta:g}: "
                    f"{status.reason}",
                )
            entries.append(
                Kind.CAP,
                account=name,
                subject=name,
                content={
                    "cap": asdict(cap),
                    "before": asdict(account.cap),
                    "by": by,
                    "why": why,
                },
            )
            return get_account(entries, name)

    def charge(self, plan: PlanRequest, key_ids: Mapping[str, str]) -> ChargeOutcome:
        """Charge those releases of a plan that its account has not paid for, all or none.

        Parameters
        ----------
        plan : PlanRequest
        key_ids : mapping of party to str
            Identities of the parties' secrets, recorded with the plan: the noise of these releases may be drawn with
            them only, so that a lost secret never leads to a second draw.

        Raises
        ------
        OverspendError
            If the policy does not admit it.
        RefusedError
            If a key is on record with another guarantee, partition or parties, or under another account.
        InputError
            If there is no such account, or the plan is malformed.
        StorageError
            If the ledger cannot be written. In all cases nothing was charged.
        """
        require_plan(plan)
        with self._database.connected() as database:
            with reading(database) as entries:
                # The end first: on PostgreSQL each statement sees what was committed before it.
                end = entries.last()
                new = unpaid(entries, plan)
            # Most runs of a schedule meet their own releases again; they need not wait for the write lock.
            if new or not plan.releases:
                with writing(database) as entries:
                    account = get_account(entries, plan.account)
                    # Entries are only added: if the end is the same, no other process has paid in between.
                    if new := new if entries.last() == end else unpaid(entries, plan):
                        decision = self._require_admitted(entries, account, plan, new)
                        append_plan(entries, plan, new, decision, key_ids, Kind.CHARGE)
                        return _outcome(plan, new, decision.details)
            return _outcome(plan, ())

    def reserve(self, name: str, plan: PlanRequest) -> Decision:
        """Set aside what a plan will cost, all of it or nothing; asked again for the same, nothing changes.

        Other releases under the same name take the place of those that were set aside and never committed.

        Parameters
        ----------
        name : str
            What it is set aside for: the run.
        plan : PlanRequest

        Returns
        -------
        Decision
            Where the account stands with it.

        Raises
        ------
        OverspendError, RefusedError, InputError, StorageError
            As :meth:`charge` does; nothing was set aside then.
        """
        require_name("the run's name", name)
        require_plan(plan)
        with writing(self._database) as entries:
            account = get_account(entries, plan.account)
            new = unpaid(entries, plan)
            for reservation in open_reservations(entries, plan.account):
                if reservation.name == name and reservation.plan.releases == new:
                    new = ()
                elif reservation.name == name:
                    # Nothing was drawn under it: another version of the code asks for other releases.
                    content = {"reservation": reservation.sequence, "why": "reserved again for other releases"}
                    entries.append(Kind.RETURN, account=plan.account, subject=name, content=content)
            decision = self._require_admitted(entries, account, plan, new)
            if new:
                reserve_plan(entries, name, replace(plan, releases=new), decision)
            return decision

    def commit(self, account: str, name: str, key_ids: Mapping[str, str]) -> ChargeOutcome:
        """Charge what was reserved for a run, before any noise exists; done again, nothing changes.

        Parameters
        ----------
        account, name : str
        key_ids : mapping of party to str
            As for :meth:`charge`.

        Raises
        ------
        RefusedError
            If the reservation was returned.
        OverspendError
            If the cap was lowered since, so that it does not fit any more; nothing was charged then.
        InputError
            If nothing was reserved for this run.
        """
        with writing(self._database) as entries:
            reservation = find_reservation(entries, account, name)
            if reservation.end is Kind.COMMITMENT:
                return _outcome(reservation.plan, ())
            require_open(reservation)
            new = unpaid(entries, reservation.plan)
            entries.append(
                Kind.COMMITMENT, account=account, subject=name, content={"reservation": reservation.sequence}
            )
            if not new:
                return _outcome(reservation.plan, ())
            decision = self._require_admitted(entries, get_account(entries, account), reservation.plan, new)
            append_plan(entries, reservation.plan, new, decision, key_ids, Kind.CHARGE)
            return _outcome(reservation.plan, new, decision.details)

    def give_back(self, account: str, name: str, *, why: str) -> None:
        """Return what was reserved for a run; done again, nothing changes.

        Raises
        ------
        RefusedError
            If it was committed: noise may have been drawn and messages may have left.
        InputError
            If nothing was reserved for this run.
        """
        with writing(self._database) as entries:
            reservation = find_reservation(entries, account, name)
            if reservation.end is Kind.RETURN:
                return
            require_open(reservation)
            content = {"reservation": reservation.sequence, "why": why}
            entries.append(Kind.RETURN, account=account, subject=name, content=content)

    def reservations(self, account: str) -> list[Reservation]:
        """Return the account's open reservations, which count as spent, oldest first."""
        with reading(self._database) as entries:
            get_account(entries, account)
            return open_reservations(entries, account)

    def require_affordable(self, plan: PlanRequest) -> None:
        """Refuse what :meth:`charge` would refuse now, and write nothing.

        Raises
        ------
        OverspendError, RefusedError, InputError
            As :meth:`charge` does.
        StorageError
            If the ledger is behind a high-water mark.
        """
        require_plan(plan)
        seen = marks_of(self._database)
        with reading(self._database) as entries:
            account = get_account(entries, plan.account)
            if new := unpaid(entries, plan):
                require_not_behind(entries, seen, self._database.place)
                self._require_admitted(entries, account, plan, new)

    def _require_admitted(
        self, entries: Entries, account: Account, plan: PlanRequest, new: Sequence[ReleaseCharge]
    ) -> Decision:
        decision = self._decide(entries, account, new, partition=plan.partition, delta=plan.delta)
        if not decision.admitted:
            left = decision.reason or f"account {account.name!r} has too little budget left for this plan"
            raise _overspent(account, decision, left)
        return decision

    def is_charged(self, key: str) -> bool:
        """Whether a release was charged."""
        return bool(self.charged([key]))

    def charged(self, keys: Iterable[str]) -> set[str]:
        """Return those of some releases that were charged."""
        wanted = list(keys)
        return {entry.subject for entry in found(self._database, Kind.CHARGE, subjects=wanted)} if wanted else set()

    def charge_of(self, key: str) -> ChargeRecord:
        """Return the first charge of a release; InputError where it was never charged."""
        with reading(self._database) as entries:
            return charge_of(entries, key)

    def record_output(self, key: str, digest: str, made_of: str | None = None) -> OutputOutcome:
        """Record the digest of a charged release's bytes; to be called before these bytes are published.

        The first digest is kept. Bytes that are made of something else mean that the value before the noise differed in
        some bit and met fresh noise: two noisy copies of one value may exist, so the release is charged once more.

        Parameters
        ----------
        key, digest : str
        made_of : str, optional
            Digest of what the release is made of, where other bytes may be made of the same
            (:class:`dpalgos.made_of.MadeOf`); the bytes themselves by default.

        Raises
        ------
        OverspendError
            If that second charge does not fit; nothing is recorded, and the bytes must be discarded.
        RefusedError
            If the release was never charged.
        """
        require_name("the output's digest", digest)
        with writing(self._database) as entries:
            if not entries.find(Kind.CHARGE, subject=key):
                raise RefusedError(f"release {key!r} was never charged, so no output can be recorded; charge it first")
            recorded = [entry.content for entry in entries.find(Kind.OUTPUT, subject=key)]
            if digest in {one["digest"] for one in recorded}:
                return OutputOutcome.UNCHANGED
            known = made_of is not None and made_of in {one.get("made_of") for one in recorded}
            first = charge_of(entries, key)
            if recorded and not known:
                self._recharge(entries, first)
            content = {"digest": digest} if made_of is None else {"digest": digest, "made_of": made_of}
            entries.append(Kind.OUTPUT, account=first.account, subject=key, content=content)
            if known:
                return OutputOutcome.UNCHANGED
            return OutputOutcome.RECHARGED if recorded else OutputOutcome.RECORDED

    def require_current(self, key: str) -> None:
        """Refuse a charged release of which more may have been answered than this ledger knows.

        Raises
        ------
        RefusedError
            If the ledger is behind its high-water marks, or one that was behind them was accepted after the charge:
            draws in between are in no ledger, and the same pads and noise must not hide another value.
        """
        try:
            with writing(self._database) as entries:
                charged = max(entry.sequence for entry in entries.find(Kind.CHARGE, subject=key))
                restored = any(entry.sequence > charged for entry in entries.find(Kind.RESTORE))
        except StorageError as error:
            raise RefusedError(f"this root is older than its recorded answers: {error}") from None
        if restored:
            raise RefusedError(
                "the ledger was restored from a back-up after this release was charged, and its earlier "
                "answers are unknown; run with another --replicate, which is a new charge"
            )

    def count_answers(self, key: str, count: int) -> None:
        """Record, before an answer leaves, how many notes a party has of a charged release's sums; never fewer.

        Entries advance the high-water mark outside the root, so that a root, or its folder of notes, that was restored
        is noticed: it would use a pad twice.

        Raises
        ------
        RefusedError
            If it had more when it last answered.
        """
        with writing(self._database) as entries:
            known = max((entry.content["count"] for entry in entries.find(Kind.ANSWERS, subject=key)), default=0)
            if count < known:
                raise RefusedError(
                    f"its record of this release's sums was restored from an old back-up: it holds {count}, and "
                    f"answers were given from {known}; restore the newest back-up, or run with another --replicate, "
                    "which is a new charge"
                )
            if count > known:
                account = charge_of(entries, key).account
                entries.append(Kind.ANSWERS, account=account, subject=key, content={"count": count})

    def _recharge(self, entries: Entries, first: ChargeRecord) -> None:
        account = get_account(entries, first.account)
        new = (ReleaseCharge(first.key, first.parties, first.again or first.guarantee, first.label),)
        plan = PlanRequest(first.account, first.plan.partition, new, first.plan.delta, first.plan.run)
        decision = self._decide(entries, account, new, partition=plan.partition, delta=plan.delta)
        if not decision.admitted:
            raise _overspent(
                account,
                decision,
                f"release {first.key!r} was computed again with a different result, which must be charged again and "
                f"does not fit: {decision.reason}",
            )
        append_plan(entries, plan, new, decision, first.plan.key_ids, Kind.RECHARGE)

    def _decide(
        self,
        entries: Entries,
        account: Account,
        new: Sequence[ReleaseCharge],
        *,
        partition: str,
        delta: float,
    ) -> Decision:
        history = history_of(entries, account.name)
        decision = self._policy.decide(history, new, partition=partition, delta=delta, terms=account)
        unpriced = {party for release in new for party in release.parties} - set(decision.costs)
        if decision.admitted and unpriced:
            raise StorageError(f"the accounting returned no price for party {min(unpriced)!r}; nothing was charged")
        return decision

    def status(self, account: str) -> Decision:
        """Return what the policy says of an account's history at its cap, with nothing new."""
        with reading(self._database) as entries:
            account_entry = get_account(entries, account)
            delta = account_entry.cap.delta if account_entry.cap is not None else 0.0
            return self._decide(entries, account_entry, (), partition="", delta=delta)

    def history(self, account: str) -> History:
        """Return an account's plans and what it has set aside."""
        with reading(self._database) as entries:
            get_account(entries, account)
            return history_of(entries, account)

    def charges(self, account: str) -> list[ChargeRecord]:
        """Return an account's charges, re-charges included, oldest first."""
        with reading(self._database) as entries:
            get_account(entries, account)
            plans = {plan.sequence: plan for plan in history_of(entries, account).plans}
            charges = entries.find(Kind.CHARGE, Kind.RECHARGE, account=account)
            return [charge_record(entry, plans[entry.content["plan"]]) for entry in charges]

    def outputs(self, account: str) -> tuple[str, ...]:
        """Return the keys of an account's releases whose output was recorded, in the order in which they were made.

        It may be another order than that of their charges: one that was charged earlier may be made later.
        """
        with reading(self._database) as entries:
            get_account(entries, account)
            return tuple(dict.fromkeys(entry.subject for entry in entries.find(Kind.OUTPUT, account=account)))

    def charges_by_party(self, account: str) -> dict[str, list[ChargeRecord]]:
        """Return an account's charges by the party that pays, parties in the order of their first charge."""
        charges: dict[str, list[ChargeRecord]] = {}
        for charge in self.charges(account):
            for party in charge.parties:
                charges.setdefault(party, []).append(charge)
        return charges

    def verify(self, stored: Mapping[str, str] | None = None) -> list[str]:
        """Return what is wrong with the ledger, one sentence each; an empty list where nothing is.

        Finds a changed, removed or reordered entry by the chain, a cut-off end or a restored back-up by the high-water
        mark, and both also by releases that the ledger does not know.

        Parameters
        ----------
        stored : mapping of key to digest, optional
            The releases found in the store that had to be charged, with the digests of their bytes as they are now.
        """
        return [*check_chain(self._database), *self.verify_releases(stored or {})]

    def verify_releases(self, stored: Mapping[str, str]) -> list[str]:
        """Return what the ledger does not know of stored releases, one sentence each; see :meth:`verify`."""
        problems = []
        try:
            with reading(self._database) as entries:
                charged = {entry.subject for entry in entries.find(Kind.CHARGE)}
                outputs: dict[str, set[str]] = {}
                for entry in entries.find(Kind.OUTPUT):
                    outputs.setdefault(entry.subject, set()).add(entry.content["digest"])
        except StorageError as error:
            return [str(error)]
        for key, digest in sorted(stored.items()):
            if key not in charged:
                problems.append(
                    f"release {key} is stored but was never charged: an older back-up of the ledger was restored, "
                    "or the release was put there from elsewhere"
                )
            elif key not in outputs:
                problems.append(f"release {key} is stored but the ledger has no digest of it")
            elif digest not in outputs[key]:
                problems.append(f"release {key} was altered: its bytes are not the ones that the ledger recorded")
        return problems


def _differing(present: Account, asked: Account) -> list[str]:
    """Return which terms of an account are not those that are asked for, each with both."""
    differing = []
    if not same_cap(present, asked.cap, asked.soft_limit):
        differing.append(f"cap {account_cap(present)}, and not {described_cap(asked.cap, asked.soft_limit)}")
    for what, name in (("unit", "unit"), ("relation", "relation"), ("group size", "group_size")):
        if (held := getattr(present, name)) != (wanted := getattr(asked, name)):
            differing.append(f"{what} {held}, and not {wanted}")
    if present.idealised_allowed != asked.idealised_allowed:
        held, wanted = ("allowed" if one.idealised_allowed else "not allowed" for one in (present, asked))
        differing.append(f"idealised numerics {held}, and not {wanted}")
    if asked.disjoint_from and present.disjoint_from != asked.disjoint_from:
        differing.append(f"declared disjoint from {', '.join(present.disjoint_from) or 'no account'}")
    return differing


def _outcome(
    plan: PlanRequest, new: Sequence[ReleaseCharge], details: Mapping[str, Any] = MappingProxyType({})
) -> ChargeOutcome:
    charged = tuple(release.key for release in new)
    return ChargeOutcome(
        charged=charged,
        already_charged=tuple(release.key for release in plan.releases if release.key not in charged),
        details=details,
    )


def _overspent(account: Account, decision: Decision, reason: str) -> OverspendError:
    """Return the refusal of a charge, with what the account would have spent and its cap."""
    after = decision.details.get("spent_after")
    return OverspendError(reason, value=after, bound=None if account.cap is None else account.cap.epsilon)
