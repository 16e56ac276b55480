"""Admission: who may read which rows, at what cost, under which secrets; for a plan and again for each release."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol

from dpalgos.algorithms import require_people
from dpalgos.guarantees import Numerics, rounded_up
from storage.confined import MEMORY_VARIABLE, kept_memory
from storage.datasets import dataset_ref
from storage.errors import InputError, OverspendError, PriceError, RefusedError, StorageError
from storage.ledger.charges import PlanRequest, ReleaseCharge, of_cap
from storage.ledger.ledger import ChargeOutcome, Ledger
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from storage.shards import open_shard, shard_records
from tasks.accounts.ledger import open_ledger
from tasks.accounts.reports import runs_left
from tasks.accounts.room import one_more_run
from tasks.accounts.terms import tenth
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import Json
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.release.noise_secrets import key_identifiers
from tasks.release.readiness import Afterwards, require_ready
from tasks.runtime.settings import current_layout
from tasks.runtime.standing import Written, charging, is_told
from tasks.runtime.stores import open_releases

_MIB = 2**20
# Keys of releases whose price was agreed to, where a command plans again after it has shown one.
_AGREED: ContextVar[Set[str] | None] = ContextVar("agreed", default=None)


@contextlib.contextmanager
def charging_only(keys: Set[str] | None) -> Iterator[None]:
    """Refuse, while this is open, to charge an account that has a cap for other releases than these.

    What runs after the user has agreed to a price may plan again, also in another process. The charge then stays
    within the price, or is refused.

    Parameters
    ----------
    keys : set of str, optional
        Of the releases whose price was shown; None refuses nothing.
    """
    token = _AGREED.set(keys)
    try:
        yield
    finally:
        _AGREED.reset(token)


def require_memory(release: PlannedRelease) -> None:
    """Refuse an algorithm that holds all its rows where they are more than this process may hold.

    Raises
    ------
    InputError
        Naming what is needed, the limit and the way out.
    """
    held, limit = release.build().work(release.setting).held, kept_memory()
    if held > limit:
        raise InputError(
            f"{release.label} ({release.name}) holds {release.setting.most_rows:,} × {release.setting.dimension} rows "
            f"in memory, about {held / _MIB:,.0f} MiB, and {MEMORY_VARIABLE} allows {limit / _MIB:,.0f}. Nothing was "
            f"charged. Allow more memory ({MEMORY_VARIABLE}={-(-held // _MIB)}M), use more parties or fewer features, "
            "or choose an algorithm that streams rows, such as noisy-gd"
        )


def admit(
    releases: Sequence[PlannedRelease],
    shards: Sequence[ShardRef],
    *,
    run: str,
) -> Json:
    """Admit releases to the rows of these stored shards and charge together what was not charged before.

    A release's identity is a digest of what it does to whose rows (:attr:`PlannedRelease.key`), and the ledger
    remembers the identities that were charged. So it is enough to compare the identity's parts with what is at hand:
    account, data version, partition, party and size of every shard.

    Where the shards are those of some of a release's parties only, these parties do their part of a release that was
    charged before; nothing is charged then.

    Parameters
    ----------
    releases : sequence of PlannedRelease
    shards : sequence of ShardRef
    run : str
        For people: what runs.

    Returns
    -------
    dict
        Public numbers for reports: what was newly charged, spent, the filter in force.

    Raises
    ------
    RefusedError
        If a shard is not the one that a release was planned for; if rows are private and a release is unproved, holds
        in real arithmetic only without the owner's consent, is seeded publicly, or has a delta of 1/n or more; if the
        cap would be exceeded; or if part of a release is asked for that was not charged. Nothing is charged then.
    ParameterError
        If the trust model refuses the setting.
    """
    ledger = open_ledger()
    by_party = {shard.party: shard for shard in shards}
    # Comparing digests reads all rows, and no row is read before a deadline's clock runs.
    _require_stored(shards, whole=all(release.deadline is None for release in releases))
    readers = _admissible(ledger, releases, shards, run, None)
    if all(by_party.keys() >= set(release.parties) for release in readers.values()):
        return _charge(ledger, readers, run)
    for key, release in readers.items():
        _require_charged(key, release, ledger)
    return {}


class ChargedPlan(Protocol):
    """A plan that is charged together: a run, or the stages of a synthesis."""

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All that the plan releases."""
        ...

    @property
    def system(self) -> str:
        """Name of the plan."""
        ...

    @property
    def sound_counterpart(self) -> str | None:
        """Sound counterpart of a system whose proof fails."""
        ...


def admit_plan(plan: ChargedPlan, shards: Sequence[ShardRef]) -> Json:
    """Charge all releases of a plan together, before its shards are made.

    The references are compared with what is registered, and once more with what is stored when each release asks for
    its rows (:func:`admit`).

    Returns
    -------
    dict
        As of :func:`admit`.

    Raises
    ------
    RefusedError, ParameterError
        As :func:`admit` does; nothing is charged then.
    """
    ledger = open_ledger()
    for dataset in {shard.dataset for shard in shards}:
        _require_said(dataset, find_dataset(dataset.name))
    readers = _admissible(ledger, plan.releases, shards, plan.system, plan.sound_counterpart)
    return _charge(ledger, readers, plan.system)


@contextlib.contextmanager
def _saying_what_is_left(account: str) -> Iterator[None]:
    """Let the ledger's refusals, which knows what this plan costs, say first what is left of the account."""
    try:
        yield
    except OverspendError as refusal:
        left = one_more_run(account)
        raise refusal.leaving("" if left is None else left.said) from None


def require_admissible(
    releases: Sequence[PlannedRelease],
    shards: Sequence[ShardRef],
    *,
    run: str,
    sound_counterpart: str | None = None,
) -> None:
    """Refuse what :func:`admit` would refuse of releases, from references alone; nothing is charged.

    Parameters
    ----------
    releases : sequence of PlannedRelease
        Charged together.
    shards : sequence of ShardRef
    run : str
        For people: what runs.
    sound_counterpart : str, optional
        What a refusal of an unproved ``run`` names in its place.

    Raises
    ------
    RefusedError, ParameterError
        As :func:`admit` does.
    """
    ledger = open_ledger()
    readers = _admissible(ledger, releases, shards, run, sound_counterpart)
    if readers:
        ledger.require_affordable(_request(readers, run, ledger))


def require_plan_admissible(plan: ChargedPlan, shards: Sequence[ShardRef]) -> None:
    """Refuse what :func:`admit_plan` would refuse: :func:`require_admissible` of a plan's releases."""
    require_admissible(plan.releases, shards, run=plan.system, sound_counterpart=plan.sound_counterpart)


def request_of(plan: ChargedPlan, *, unpaid: bool = False) -> PlanRequest | None:
    """Return what a plan asks the ledger for; None where it reads no rows.

    ``unpaid``: None, too, where all of it was charged before.
    """
    return request_for(plan.releases, plan.system, unpaid=unpaid)


def request_for(releases: Sequence[PlannedRelease], run: str, *, unpaid: bool = False) -> PlanRequest | None:
    """Return what releases that are charged together ask the ledger for, as :func:`request_of` does.

    Parameters
    ----------
    releases : sequence of PlannedRelease
    run : str
        For people: what runs.
    unpaid : bool
    """
    ledger = open_ledger()
    readers = {release.key: release for release in releases if release.reads_rows}
    if not readers or (unpaid and not _unpaid(readers, ledger)):
        return None
    return _request(readers, run, ledger)


def runs_that_fit(plan: ChargedPlan) -> int | None:
    """Return how many more runs like this one would be admitted, each charged; None where nothing has a cap."""
    request = request_of(plan)
    return None if request is None else runs_left(request.account, request)


def _admissible(
    ledger: Ledger,
    releases: Sequence[PlannedRelease],
    shards: Sequence[ShardRef],
    run: str,
    sound_counterpart: str | None,
) -> dict[str, PlannedRelease]:
    """Return the releases that read rows, by key, after all checks that need neither the rows nor the charges."""
    by_party = {shard.party: shard for shard in shards}
    # A map that reads no rows is the same map beside others: those of a horizon's later nights.
    readers = [release for release in releases if release.reads_rows]
    for release in readers:
        _require_bound(release, by_party)
    if any(shard.dataset.person for shard in shards):
        # By what is declared, and not by how many rows somebody has.
        for release in readers:
            require_people(*release.algorithm.classes())
    for release in readers:
        release.trust_model().require(release.build(), release.setting)
    keyed = {release.key: release for release in readers}
    for key, release in keyed.items():
        # What is stored is not made again.
        if not open_releases().exists(key):
            require_memory(release)
    private = next((shard.dataset for shard in shards if shard.dataset.private), None)
    if private is not None:
        _require_private(readers, private, ledger, run, sound_counterpart)
    return keyed


def reserve(releases: Sequence[PlannedRelease], shards: Sequence[ShardRef], *, name: str, run: str) -> None:
    """Set aside in a party's own account what its part of some releases will cost; nothing is charged yet.

    The party pays for its own rows, without regard to the other parties' accounts: a joint release costs each of its
    parties the whole guarantee.

    Parameters
    ----------
    releases : sequence of PlannedRelease
    shards : sequence of ShardRef
        The party's own: what trains, and what it holds out.
    name : str
        The run it is for.
    run : str
        For people: what runs.

    Raises
    ------
    RefusedError, ParameterError
        As :func:`admit` does; nothing was set aside then.
    """
    ledger = open_ledger()
    _require_stored(shards)
    readers = _admissible(ledger, releases, shards, run, None)
    # Who reserves is charged when the others have, and is not asked again.
    require_ready(Afterwards(current_layout(), [*readers.values()]))
    request = _request(readers, run, ledger, only=[shard.party for shard in shards])
    with _saying_what_is_left(request.account):
        ledger.reserve(name, request)


def commit(releases: Sequence[PlannedRelease], shards: Sequence[ShardRef], *, name: str) -> None:
    """Charge what a party has reserved, before its noise exists; what is charged already is left as it is.

    Raises
    ------
    RefusedError, InputError
        If it was returned, does not fit any more, or was never reserved.
    """
    ledger = open_ledger()
    unpaid = _unpaid({release.key: release for release in releases if release.reads_rows}, ledger)
    if unpaid:
        account, parties = unpaid[0].account, [shard.party for shard in shards]
        request = _request({one.key: one for one in unpaid}, name, ledger, only=parties)
        with _saying_what_is_left(account), _told_where_stopped(ledger, request, account) as told:
            told(ledger.commit(account, name, key_identifiers(unpaid[0].seed, parties)))


def require_upstream(planned: PlannedRelease | PlannedCombination, upstream: Sequence[ReleaseRef]) -> None:
    """Refuse artefacts other than those that something was planned of: they are part of its identity.

    Raises
    ------
    RefusedError
        Naming both.
    """
    if (keys := tuple(reference.key for reference in upstream)) != planned.upstream:
        raise RefusedError(
            f"{planned.label} is planned from {_short(planned.upstream)} and received {_short(keys)}; use the "
            "releases of its own plan"
        )


def _short(keys: Sequence[str]) -> str:
    return ", ".join(key[:12] for key in keys) or "no release"


def _require_stored(shards: Sequence[ShardRef], *, whole: bool = True) -> None:
    """Compare references, which anybody can write down, with what is stored under them, and with ``whole`` its digests.

    Without, only manifests are read, whose sizes and contents do not follow from how many rows there are.
    """
    layout = current_layout()
    for dataset in {shard.dataset for shard in shards}:
        _require_said(dataset, dataset_ref(layout, dataset.version))
    for shard in shards:
        if (open_shard(layout, shard).count if whole else shard_records(layout, shard)) != shard.rows:
            raise RefusedError(
                f"the reference to the rows of party {shard.party} states a number that differs from the stored rows",
                value=shard.rows,
                bound="stored",
            )


def _require_said(dataset: DatasetRef, stored: DatasetRef) -> None:
    if (stored.visibility, stored.private and stored.account, stored.person, stored.rows_per_person) != (
        dataset.visibility,
        dataset.private and dataset.account,
        dataset.person,
        dataset.rows_per_person,
    ):
        of = f", at most {stored.rows_per_person} of each {stored.person}" if stored.person else ""
        raise RefusedError(
            f"the reference to {dataset.name} differs from the stored rows: version {dataset.version} holds "
            f"{stored.visibility} rows of account {stored.account}{of}",
            value=dataset.version,
            bound="registered",
        )


def _require_bound(release: PlannedRelease, shards: Mapping[str, ShardRef]) -> None:
    """Compare a release with the shards of its parties, as far as they are at hand."""
    for party, rows in zip(release.parties, release.sizes, strict=True):
        shard = shards.get(party)
        if shard is None:
            continue
        for what, planned, bound in (
            ("account", release.account, shard.dataset.account),
            ("data version", release.dataset, shard.dataset.version),
            ("public maps", release.maps, shard.dataset.maps),
            ("partition", release.partition, shard.partition),
            ("number of rows", rows, shard.rows),
            ("rows of a person", release.setting.rows_per_person, shard.dataset.rows_per_person),
        ):
            if planned != bound:
                raise RefusedError(
                    f"{release.label} is planned for a shard of party {party} with {what} {planned}, and is given one "
                    f"with {what} {bound}; plan and charge the release for these rows",
                    value=bound,
                    bound=planned,
                )
    if not shards.keys() & set(release.parties) and shards:
        raise RefusedError(
            f"{release.label} is planned for the parties {', '.join(release.parties[:5])} and is given the rows of "
            f"{', '.join(sorted(shards)[:5])}"
        )


def _require_private(
    readers: Sequence[PlannedRelease], dataset: DatasetRef, ledger: Ledger, run: str, sound_counterpart: str | None
) -> None:
    if any(release.seed is not None for release in readers):
        raise RefusedError(
            f"{dataset.name} is private, and anyone who knows the seed can subtract the noise; omit --seed"
        )
    # Publishing one of n rows at random is (0, 1/n)-private, so the release that reads the most rows sets the bound.
    most = max((release.setting.rows for release in readers), default=0)
    for release in readers:
        if release.delta * most >= 1:
            cap = ledger.account(dataset.account).cap
            expected = " (--expected-rows)" if release.charged_as else ""
            raise RefusedError(
                f"delta {release.delta:g} is 1/n or more for a release of n = {most} rows{expected} and protects no "
                f"row; choose --delta {tenth(1 / most if cap is None else min(cap.delta, 1 / most)):g}"
                + " or a smaller --expected-rows"
                * bool(release.charged_as),
                value=release.delta,
                bound=1 / most,
                way_out="--delta",
            )
        guarantee = release.guarantee()
        if not guarantee.proved:
            counterpart = sound_counterpart or release.build().sound_counterpart
            way_out = (
                f"its sound counterpart is {counterpart}"
                if counterpart
                else "only proved algorithms run on private rows: unitball algorithms --proved"
            )
            raise RefusedError(
                f"{dataset.name} is private and {run} is not proved; {way_out}. The reason: {guarantee.reason}",
                value=run,
                bound="proved",
                way_out=counterpart or "unitball algorithms --proved",
            )
        if guarantee.numerics is Numerics.IDEALISED and not ledger.account(dataset.account).idealised_allowed:
            raise RefusedError(
                f"{release.name} is proved in real arithmetic only (idealised) and the account {dataset.account} does "
                f"not allow that; unitball ingest … --allow-idealised, or an exact algorithm such as noisy-gd"
            )


def _require_charged(key: str, release: PlannedRelease, ledger: Ledger) -> None:
    if not ledger.is_charged(key):
        raise RefusedError(f"{release.label} was not charged, so no noise is drawn for it")
    account = ledger.charge_of(key).account
    if account != release.account and (ledger.account(account).private or ledger.account(release.account).private):
        raise RefusedError(f"{release.label} was charged to account {account}, not to {release.account}")


def _charge(ledger: Ledger, releases: Mapping[str, PlannedRelease], run: str) -> Json:
    if not releases:
        return {"charged": 0, "already_charged": 0}
    request = _request(releases, run, ledger)
    # Only what is still to be paid names secrets: a lost one must not be made anew for a release already charged.
    unpaid = _unpaid(releases, ledger)
    _require_agreed(ledger, request)
    if unpaid:
        require_ready(Afterwards(current_layout(), unpaid))
    contributors = list(dict.fromkeys(contributor for release in unpaid for contributor in release.noise_contributors))
    identifiers = key_identifiers(unpaid[0].seed, contributors) if unpaid else {}
    with (
        _saying_what_is_left(request.account),
        _told_where_stopped(ledger, request if unpaid else None, request.account) as told,
    ):
        outcome = ledger.charge(request, identifiers)
        told(outcome)
    _record_stored(ledger, outcome.charged)
    return {"charged": len(outcome.charged), "already_charged": len(outcome.already_charged), **outcome.details}


def _require_agreed(ledger: Ledger, request: PlanRequest) -> None:
    """Refuse releases that are not among those whose price was agreed to, where a price was."""
    agreed = _AGREED.get()
    if agreed is None or ledger.account(request.account).cap is None:
        return
    asked = {release.key: release.label for release in request.releases}
    others = asked.keys() - ledger.charged(asked.keys()) - agreed
    if others:
        names = ", ".join(sorted({asked[key] for key in others}))
        raise PriceError(
            f"nothing was charged; the plan ({names}) differs from the one whose price was shown, because the data "
            "set or its releases have changed since. Request the price again"
        )


@contextlib.contextmanager
def _told_where_stopped(
    ledger: Ledger, unpaid: PlanRequest | None, account: str
) -> Iterator[Callable[[ChargeOutcome], None]]:
    """Let who stops this process hear what is charged within; yields what takes the outcome."""

    def cap() -> str | None:
        terms = ledger.account(account)
        return None if terms.cap is None else of_cap(terms.cap.epsilon, terms.promised)

    def broken_off() -> Written | None:
        keys = () if unpaid is None else [one.key for one in unpaid.releases]
        charged = len(ledger.charged(keys))
        return Written(charged, cap=cap()) if charged else None

    with charging(account, broken_off) as told:
        yield lambda outcome: told(
            Written(
                len(outcome.charged),
                before=_shown(outcome.details.get("spent_before")),
                after=_shown(outcome.details.get("spent_after")),
                # Asked once: each release of a run comes by here, and finds itself charged.
                cap=None if is_told(account) and not outcome.charged else cap(),
            )
        )


def _shown(epsilon: object) -> float | None:
    return rounded_up(epsilon, 4) if isinstance(epsilon, float) else None


def _record_stored(ledger: Ledger, charged: Sequence[str]) -> None:
    """Record what is stored of releases that were charged just now: an older ledger has forgotten its digests."""
    store = open_releases()
    for key in filter(store.exists, charged):
        # What is damaged is said where it is read.
        with contextlib.suppress(StorageError):
            ledger.record_output(key, store.digest_of(*store.read(key)))


def _unpaid(releases: Mapping[str, PlannedRelease], ledger: Ledger) -> list[PlannedRelease]:
    charged = ledger.charged(releases)
    return [release for key, release in releases.items() if key not in charged]


def _request(
    releases: Mapping[str, PlannedRelease], run: str, ledger: Ledger, only: Sequence[str] | None = None
) -> PlanRequest:
    first = next(iter(releases.values()))
    charges = [charge for release in releases.values() for charge in _charges(release, ledger)]
    if only is not None:
        charges = [replace(one, parties=tuple(party for party in one.parties if party in only)) for one in charges]
    return PlanRequest(
        account=first.account,
        partition=first.charged_partition,
        releases=tuple({charge.key: charge for charge in charges}.values()),
        delta=first.delta,
        run=run,
    )


def _charges(release: PlannedRelease, ledger: Ledger) -> Iterator[ReleaseCharge]:
    """Yield what a release is charged as: by itself, or with all others of its kind of one price."""
    guarantee = release.guarantee().to_json()
    if ledger.is_charged(release.key):
        yield ReleaseCharge(release.key, release.charged_parties, guarantee, release.label, release.charged_as)
        return
    drawn_again = release.drawn_again()
    again = {} if drawn_again is None else drawn_again.to_json()
    for key, label in release.charged_keys.items():
        yield ReleaseCharge(key, release.charged_parties, guarantee, label, release.charged_as, again)
