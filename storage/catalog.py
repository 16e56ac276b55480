"""The catalogue: data sets, whose they are, whether private, with what schedules and horizons."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from storage.arrivals import Arrival
from storage.errors import InputError, RefusedError
from storage.ledger.charges import (
    DEFAULT_RELATION,
    PERSON,
    ROW,
    Account,
    Cap,
    account_cap,
    account_names,
    add_account,
    find_account,
    get_account,
    require_soft_limit,
    same_cap,
)
from storage.ledger.database import Database
from storage.ledger.entries import Entries, Entry, Kind, append, found, reading, require_name, writing
from storage.people import People
from storage.refs import Visibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One registered version of a data set.

    Parameters
    ----------
    name, version, account : str
    visibility : Visibility
    manifest : mapping
        Facts that the data set's own module keeps; nothing that reveals a row.
    people : People, optional
        What is declared of the people behind its rows.
    """

    name: str
    version: str
    account: str
    visibility: Visibility
    manifest: Mapping[str, Any]
    people: People | None = None


DisjointLine = TypedDict("DisjointLine", {"from": list[str], "reason": str, "recorded_at": str})
"""A declaration that an account's people are others than those of other accounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """So many nights of a data set, whose rows are disjoint from those of its other horizons; people come in each.

    Parameters
    ----------
    number : int
        From 1.
    nights : int
    participations, separation : int
        In how many of its nights one record may take part, and how far apart at least.
    arrivals : tuple of Arrival
        Nights in which records came, in order; not those in which none did.
    versions : tuple of str
        All versions that were compared, those without a new record included, in order.
    """

    number: int
    nights: int
    participations: int
    separation: int
    arrivals: tuple[Arrival, ...] = ()
    versions: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Whether all its nights have come."""
        return len(self.arrivals) == self.nights

    def taking_part(self, night: int, *, people: bool) -> tuple[Arrival, ...]:
        """Return whose records take part in a night: the night's own, and of people those whose turn it is again."""
        nights = range(night, 0, -self.separation)[: self.participations if people else 1]
        return tuple(self.arrivals[one - 1] for one in nights)


class Catalog:
    """Data sets by name, in the ledger's database and its chain of entries.

    What holds at every time, in any order processes register: a name, and an account, is private or public for
    good; all versions of a name spend from one account unless its owner declared the people disjoint, which opens a
    new one; a private account has a cap; an account's unit, row or person, is fixed at opening, for all of its tables;
    tables whose people go by the same names (:attr:`storage.people.People.namespace`) are in one account.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(
        self,
        name: str,
        version: str,
        *,
        visibility: Visibility,
        manifest: Mapping[str, Any],
        account: str | None = None,
        cap: Cap | None = None,
        soft_limit: float | None = None,
        disjoint_people: str = "",
        overlapping: Sequence[str] = (),
        group_size: int | None = None,
        idealised_allowed: bool | None = None,
        relation: str | None = None,
        fingerprints: str | None = None,
        deltas: Mapping[str, Any] | None = None,
        people: People | None = None,
        sharing: Collection[str] = (),
    ) -> Registration:
        """Register a version of a data set, opening its account where it is new; the same again changes nothing.

        Parameters
        ----------
        name, version : str
        visibility : Visibility
        manifest : mapping
        account : str, optional
            The population. By default the account of the name's versions so far, and the name itself for a new name.
        cap : Cap, optional
            Needed when a private account is opened; afterwards it must be left out, or equal the cap at opening or the
            one in force.
        soft_limit : float, optional
            Epsilon that the cap is lowered to at the opening of the account; see
            :meth:`storage.ledger.ledger.Ledger.open_account`.
        disjoint_people : str
            The owner's declaration, with its reason, that no person in this version is in the name's earlier ones
            (which needs a new `account`) or in the overlapping accounts; empty where nothing is declared.
        overlapping : sequence of str
            Other accounts under which some of these rows are stored.
        group_size : int, optional
            The most rows one person has; 1 by default, and fixed once the account is open.
        idealised_allowed : bool, optional
            The owner's permission for floating-point noise; may be given or revoked with any version.
        relation : str, optional
            The neighbouring relation of the account's guarantees; fixed once the account is open.
        fingerprints : str, optional
            Digest of the version's row fingerprints, see :func:`storage.key_material.guard_material`.
        deltas : mapping, optional
            The series of deltas that later caps may spend, recorded when the account is opened; the policy's own JSON.
        people : People, optional
            What is declared of the people behind the rows; each row counts by itself where nothing is.
        sharing : collection of str
            Accounts under which people of the same namespace are stored: an older ledger that was restored may know
            nothing of them.

        Raises
        ------
        RefusedError
            If the name, the version or the account would change between private and public, or between rows and people,
            if a name would move to another account without a declaration, or people of a namespace at all, or if
            private data comes without a cap.
        InputError
            If the arguments contradict each other or what is on record.
        """
        require_name("the data set's name", name)
        require_name("the data set's version", version)
        with writing(self._database) as entries:
            earlier = [_registration(entry) for entry in entries.find(Kind.DATASET, subject=name)]
            _require_visibility(entries, name, version, visibility, earlier)
            chosen = account or (earlier[-1].account if earlier else name)
            same = [registration for registration in earlier if registration.version == version]
            repeated = bool(same) and same[-1].account == chosen
            if not repeated:
                _require_account(
                    entries, name, chosen, disjoint=bool(disjoint_people), overlapping=overlapping, earlier=earlier
                )
            _require_same_people(entries, name, chosen, people, visibility, earlier, sharing)
            _declare_disjoint(entries, name, chosen, disjoint_people, [*overlapping, *(one.account for one in earlier)])
            opened = find_account(entries, chosen)
            if opened is None:
                _require_cap_where_private(chosen, visibility, cap)
                asked = Account(
                    name=chosen,
                    cap=cap,
                    disjoint_people=bool(disjoint_people),
                    disjoint_from=tuple(dict.fromkeys(one.account for one in earlier)) if disjoint_people else (),
                    group_size=1 if group_size is None else group_size,
                    idealised_allowed=bool(idealised_allowed),
                    relation=relation or DEFAULT_RELATION,
                    deltas=deltas or {},
                    unit=ROW if people is None else PERSON,
                    soft_limit=soft_limit,
                )
                opened = add_account(entries, asked)
            else:
                _require_unit(opened, name, people)
                _require_agreement(opened, visibility, cap, soft_limit, group_size, relation)
                if idealised_allowed not in (None, opened.idealised_allowed):
                    content = {"idealised_allowed": idealised_allowed}
                    entries.append(Kind.CONSENT, account=opened.name, subject=opened.name, content=content)
            if repeated and same[-1] is earlier[-1] and same[-1].manifest == manifest:
                return same[-1]
            return _registration(
                entries.append(
                    Kind.DATASET,
                    account=opened.name,
                    subject=name,
                    content={
                        "version": version,
                        "visibility": str(visibility),
                        "manifest": manifest,
                        "disjoint_people": bool(disjoint_people) and not repeated,
                        "fingerprints": fingerprints,
                        **({} if people is None else {"people": asdict(people)}),
                    },
                )
            )

    def require_registrable(self, name: str, visibility: Visibility) -> None:
        """Refuse a name under which :meth:`register` would refuse any rows without declared people and cap.

        Raises
        ------
        RefusedError
            If the name or its account would change between private and public, or has people.
        InputError
            If it cannot be a name.
        """
        require_name("the data set's name", name)
        with reading(self._database) as entries:
            earlier = [_registration(entry) for entry in entries.find(Kind.DATASET, subject=name)]
            _require_visibility(entries, name, "", visibility, earlier)
            opened = find_account(entries, earlier[-1].account if earlier else name)
            if opened is not None:
                _require_unit(opened, name, None)
                _require_agreement(opened, visibility, None, None, None, None)

    def disjoint_from(self, account: str) -> list[DisjointLine]:
        """Return the declarations that an account's people are others than some other accounts', oldest first."""
        return [
            {"from": entry.content["from"], "reason": entry.content["reason"], "recorded_at": entry.recorded_at}
            for entry in found(self._database, Kind.DISJOINT, account=account)
        ]

    def undeclared(self, account: str, others: Sequence[str]) -> list[str]:
        """Return those of other accounts that no declaration says are disjoint from this one."""
        with reading(self._database) as entries:
            known = disjoint_accounts(entries, account)
        return [other for other in others if other != account and other not in known]

    def record_refusal(self, name: str, account: str, visibility: Visibility) -> None:
        """Record that rows were refused because they are private rows of this root."""
        append(self._database, Kind.REFUSAL, account=account, subject=name, content={"visibility": str(visibility)})

    def set_schedule(self, dataset: str, name: str, schedule: Mapping[str, Any]) -> None:
        """Record one of a data set's schedules, in the place of an earlier one of this name; an empty mapping ends it.

        Raises
        ------
        InputError
            If there is no such data set.
        """
        account, content = self.get(dataset).account, {"name": name, "schedule": dict(schedule)}
        append(self._database, Kind.SCHEDULE, account=account, subject=dataset, content=content)

    def schedules(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Return the schedules that stand, by data set and name."""
        newest = {
            (entry.subject, str(entry.content["name"])): entry.content["schedule"]
            for entry in found(self._database, Kind.SCHEDULE)
        }
        return {which: newest[which] for which in sorted(newest) if newest[which]}

    def horizons(self, name: str) -> list[Horizon]:
        """Return a data set's horizons, oldest first; all but the last are full."""
        with reading(self._database) as entries:
            opened = [entry.content for entry in entries.find(Kind.HORIZON, subject=name)]
            came = [entry.content for entry in entries.find(Kind.ARRIVAL, subject=name)]
        return [
            Horizon(
                number=number,
                **content,
                arrivals=tuple(
                    Arrival(**{**arrival, "by_file": tuple(arrival["by_file"])})
                    for arrival in came
                    if arrival["horizon"] == number and arrival["rows"]
                ),
                versions=tuple(one["version"] for one in came if one["horizon"] == number),
            )
            for number, content in enumerate(opened, 1)
        ]

    def open_horizon(self, name: str, *, nights: int, participations: int, separation: int) -> None:
        """Record that the rows of a data set that arrive from now on are those of a horizon.

        Raises
        ------
        InputError
            If there is no such data set.
        """
        content = {"nights": nights, "participations": participations, "separation": separation}
        append(self._database, Kind.HORIZON, account=self.get(name).account, subject=name, content=content)

    def record_arrival(self, name: str, arrival: Arrival) -> None:
        """Record what a version brought; the same again changes nothing."""
        account = self.get(name).account
        with writing(self._database) as entries:
            if all(entry.content["version"] != arrival.version for entry in entries.find(Kind.ARRIVAL, subject=name)):
                entries.append(Kind.ARRIVAL, account=account, subject=name, content=asdict(arrival))

    def fix_stream(self, name: str, key: str, terms: Mapping[str, Any]) -> Mapping[str, Any]:
        """Record what is released night after night, unless it was, and return what stands."""
        account = self.get(name).account
        with writing(self._database) as entries:
            if not entries.find(Kind.STREAM, subject=key):
                entries.append(Kind.STREAM, account=account, subject=key, content=dict(terms))
            return entries.find(Kind.STREAM, subject=key)[0].content

    def streams(self, account: str) -> list[Mapping[str, Any]]:
        """Return what is released night after night of an account's rows, oldest first."""
        with reading(self._database) as entries:
            return [entry.content for entry in entries.find(Kind.STREAM, account=account)]

    def epoch(self) -> str:
        """Return since which restoration of the ledger it is; empty where none was.

        What has been released under a key before an older ledger was put in place is not known of anything that this
        ledger says, so keys of what begins afterwards hold this.
        """
        restored = found(self._database, Kind.RESTORE)
        return str(restored[-1].content["epoch"]) if restored else ""

    def stream(self, key: str) -> Mapping[str, Any] | None:
        """Return what is released night after night under a key, None where nothing was fixed."""
        fixed = [entry.content for entry in found(self._database, Kind.STREAM) if entry.subject == key]
        return fixed[-1] if fixed else None

    def get(self, name: str) -> Registration:
        """Return the newest registration of a name.

        Raises
        ------
        InputError
            If there is none.
        """
        registrations = self.registrations(name)
        if not registrations:
            raise self._unknown(name)
        return registrations[-1]

    def _unknown(self, name: str) -> InputError:
        known = ", ".join(one.name for one in self.datasets()) or "none"
        return InputError(
            f"data set {name!r} does not exist (data sets: {known}); ingest it first", value=name, way_out="ingest"
        )

    def datasets(self) -> list[Registration]:
        """Return the newest registration of each name, sorted by name."""
        newest = {registration.name: registration for registration in self.registrations()}
        return [newest[name] for name in sorted(newest)]

    def registrations(self, name: str | None = None) -> list[Registration]:
        """Return all registrations, oldest first; those of one name where it is given."""
        return [_registration(entry) for entry in found(self._database, Kind.DATASET, subject=name)]

    def account(self, name: str) -> Account | None:
        """Return an account as it stands, or None where it was never opened."""
        with reading(self._database) as entries:
            return find_account(entries, name)

    def no_account(self, name: str) -> str:
        """Return that there is no private account of a name, and which there are."""
        with reading(self._database) as entries:
            known = [one for one in account_names(entries) if get_account(entries, one).private]
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        meant = f"; nearest: {nearest[0]!r}" if nearest else ""
        return f"account {name!r} does not exist (private accounts: {', '.join(map(repr, known)) or 'none'}{meant})"

    def account_of(self, name: str) -> Account:
        """Return the account that the newest version of a name spends from."""
        with reading(self._database) as entries:
            if registered := entries.find(Kind.DATASET, subject=name):
                return get_account(entries, _registration(registered[-1]).account)
        raise self._unknown(name)


def _require_visibility(
    entries: Entries, name: str, version: str, visibility: Visibility, earlier: list[Registration]
) -> None:
    visibilities = {one.visibility for one in earlier} | {
        Visibility(entry.content["visibility"])
        for entry in entries.find(Kind.DATASET)
        if entry.content["version"] == version
    }
    for other in visibilities - {visibility}:
        raise RefusedError(
            f"data set {name!r} is registered as {other} and cannot be registered as {visibility}; "
            + (
                "private rows stay private"
                if other is Visibility.PRIVATE
                else "others may have read it already: give private rows another name"
            ),
            value=visibility,
            bound=other,
        )


def _declare_disjoint(entries: Entries, name: str, account: str, reason: str, others: Sequence[str]) -> None:
    known = disjoint_accounts(entries, account)
    declared = [other for other in dict.fromkeys(others) if other != account and other not in known]
    if declared and reason:
        content = {"from": declared, "reason": reason}
        entries.append(Kind.DISJOINT, account=account, subject=name, content=content)


def disjoint_accounts(entries: Entries, account: str) -> set[str]:
    """Return the accounts whose people, on their owner's word, are others than this one's."""
    opened = find_account(entries, account)
    declared = set(opened.disjoint_from) if opened is not None else set()
    for entry in entries.find(Kind.DISJOINT):
        if entry.account == account:
            declared.update(entry.content["from"])
        elif account in entry.content["from"]:
            declared.add(entry.account)
    return declared


def overlap_refusal(name: str, accounts: Sequence[str]) -> str:
    """Return why rows that are stored under other accounts are refused, and the ways out."""
    return (
        f"rows of {name} are private rows of account {', '.join(map(repr, accounts))}, and a new name opens no new "
        f"budget; give --account {accounts[0]}, or declare that the people differ (recorded): --disjoint-people "
        '"reason"'
    )


def _require_account(
    entries: Entries,
    name: str,
    chosen: str,
    *,
    disjoint: bool,
    overlapping: Sequence[str],
    earlier: list[Registration],
) -> None:
    moves = bool(earlier) and chosen != earlier[-1].account
    taken = find_account(entries, chosen) is not None
    if disjoint and not earlier and not overlapping and not taken:
        raise InputError(f"no other account holds rows of {name!r}, so --disjoint-people has no effect; omit it")
    if disjoint and (taken if moves else not overlapping):
        raise InputError(
            f"disjoint people need a new account, and {chosen!r} already exists; choose another account name"
        )
    if moves and not disjoint:
        raise RefusedError(
            f"data set {name!r} spends from account {earlier[-1].account!r} and cannot move to {chosen!r}; omit the "
            "account, or declare disjoint people"
        )


def _require_cap_where_private(account: str, visibility: Visibility, cap: Cap | None) -> None:
    if visibility is Visibility.PRIVATE and cap is None:
        raise RefusedError(f"account {account!r} is private and new; give it a cap in epsilon and delta")
    if visibility is Visibility.PUBLIC and cap is not None:
        raise InputError(f"account {account!r} is public and takes no cap; omit it or register the rows as private")


def _require_agreement(
    account: Account,
    visibility: Visibility,
    cap: Cap | None,
    soft_limit: float | None,
    group_size: int | None,
    relation: str | None,
) -> None:
    if account.private != (visibility is Visibility.PRIVATE):
        held = "private" if account.private else "public"
        raise RefusedError(
            f"account {account.name!r} is {held} and cannot hold {visibility} rows; choose another account"
        )
    require_soft_limit(cap, soft_limit)
    if cap is not None and not same_cap(account, cap, soft_limit):
        raise InputError(
            f"account {account.name!r} exists and its cap is {account_cap(account)}; omit the cap and the soft limit, "
            f"or change the cap (recorded): unitball budget {account.name} --raise-epsilon-cap …"
        )
    if group_size is not None and group_size != account.group_size:
        held = f"{account.group_size} rows per person" if account.unit == ROW else "people, with however many rows"
        raise InputError(
            f"account {account.name!r} was opened for {held}, which is fixed; omit the group size {group_size}"
        )
    if relation is not None and relation != account.relation:
        raise InputError(
            f"account {account.name!r} was opened under {account.relation}, which is fixed; omit the neighbouring "
            f"relation {relation}, or open another account"
        )


def _require_unit(account: Account, name: str, people: People | None) -> None:
    if account.unit == PERSON and people is None:
        raise RefusedError(
            f"account {account.name!r} has the unit person, and {name} does not name the person of its rows; declare "
            "the column of type person in its schema, or give --person (for images also --person-from)"
        )
    if account.unit == ROW and people is not None:
        # Nor is there a price at which its charges would become people's: they hold where the number of a person's
        # rows is known, and neighbours of people differ in it.
        raise RefusedError(
            f"account {account.name!r} has the unit row, which is fixed: its releases reveal the number of rows, "
            f"which no group size protects. Declare no people (here: column {people.column}; in a schema give it the "
            "type ignore), or ingest rows without an account under another account"
        )


def _require_same_people(
    entries: Entries,
    name: str,
    account: str,
    people: People | None,
    visibility: Visibility,
    earlier: list[Registration],
    sharing: Collection[str],
) -> None:
    """Refuse what is declared of people in another way than before; decided by declarations, never by who is there."""
    if people is None:
        return
    before = next((one.people for one in reversed(earlier) if one.account == account and one.people), people)
    if before != people:
        raise RefusedError(
            f"the people of data set {name!r} were declared as {before} and now as {people}. This is fixed "
            "at the first ingest: repeat the first declaration, or ingest the rows as a data set of another name, "
            f"under account {account!r}"
        )
    # What is public of somebody is in no account that is kept.
    named = people.namespace if visibility is Visibility.PRIVATE else ""
    registered = map(_registration, entries.find(Kind.DATASET) if named else ())
    same = [
        registration.account
        for registration in registered
        if registration.people and (registration.visibility, registration.people.namespace) == (visibility, named)
    ]
    for other in (*same, *sharing):
        if other != account:
            raise RefusedError(
                f"people of namespace {named!r} belong to account {other!r}, and {name} would be in {account!r}; give "
                f"--account {other}, or another namespace if the identifiers belong to different people"
            )


def _registration(entry: Entry) -> Registration:
    content = entry.content
    return Registration(
        name=entry.subject,
        version=content["version"],
        account=entry.account,
        visibility=Visibility(content["visibility"]),
        manifest=content["manifest"],
        people=People(**content["people"]) if "people" in content else None,
    )
