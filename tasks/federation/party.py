"""A party of a federation: its answers to requests, with its own rows, its own secrets and its own account.

What a coordinator may choose is the run (an algorithm that is proved, its budget) within the cap of the party's
account, and whose run it is: the parties of the roster, all of them. Everything else, the plan with its noise and its
price included, the party derives itself from what all parties have signed.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpalgos.parameters import ParameterError
from dpalgos.secure.messages import Advertisement, Introduction, RoundParameters
from dpalgos.secure.primitives import SecureAggregationError
from dpalgos.secure.rounds import Stage
from storage.datasets import declared_table, origins
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from storage.releases import ReleaseStore
from storage.rounds import PrivateNotes
from storage.secrets import root_secret
from tasks.accounts.ledger import open_ledger
from tasks.accounts.terms import relation_of
from tasks.datasets.registration import default_normalisation, find_dataset
from tasks.federation.messages import (
    CHARGED_BEFORE,
    Answer,
    Ask,
    Counted,
    Description,
    Purpose,
    Request,
    Roster,
    Sent,
    Signed,
    Status,
    fingerprint,
    identity_key,
    packed,
    unpacked,
)
from tasks.federation.protocol import (
    described,
    federated_plan,
    is_known_to_all,
    keys_of,
    made_of_sums,
    own_releases,
    release_body,
    require_carried,
    run_name,
    session_name,
    test_fraction,
)
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import identity, identity_json
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.resolution import resolve_normalisation
from tasks.planning.rows import Shards
from tasks.preparation.normalisation import make_normalised, plan_normalisation
from tasks.preparation.partitions import HELD_OUT, make_partition, plan_partition
from tasks.preparation.planned_maps import plan_mapping
from tasks.preparation.public_maps import make_map, make_mapped
from tasks.release.admission import commit, reserve
from tasks.release.door import combine, make_release
from tasks.release.rounds import PartyRounds, release_blocks, session_of
from tasks.release.storing import read_release, require_sent, store_combination, store_release, stored_release
from tasks.runtime.settings import current_layout, current_root

_LOG = logging.getLogger(__name__)
_SESSION = "federated-run"


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as a party has derived it: the plan that everybody shares, and its own, bound to its rows."""

    name: str
    shared: RunPlan
    own: RunPlan
    shards: Shards

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """Releases that read its rows: those that it pays for."""
        return own_releases(self.own, self.shards)

    def shard_of(self, release: PlannedRelease) -> ShardRef | None:
        """Return which of its shards a release reads; None for none."""
        shards = [shard for shard in self.shards.all if shard.party in release.parties] if release.reads_rows else []
        return shards[0] if shards else None


@dataclass(frozen=True, slots=True)
class _Asked:
    """Subject of a request: a release of the party's own plan, its name in the session, and the rows that it reads."""

    run: _Run
    release: PlannedRelease
    session: PlannedRelease
    shard: ShardRef


def own_name(dataset: str) -> str:
    """Return the name of the party whose rows a data set holds: it was ingested with one ``--party NAME=PATH``.

    Raises
    ------
    InputError
        If it holds no party's own file, or several parties'.
    """
    return _name_of(find_dataset(dataset))


def _name_of(registered: DatasetRef) -> str:
    parties, dataset = [name for name, _ in origins(current_layout(), registered)], registered.name
    if len(parties) != 1 or not registered.private:
        raise InputError(
            f"data set {dataset} holds the private rows of {len(parties)} parties; a party serves only its own: "
            f"unitball party ingest {dataset} --party NAME=FILE"
        )
    return parties[0]


class Party:
    """One party: answers requests about one data set, each any number of times.

    Parameters
    ----------
    dataset : str
        Its own, registered in its own root.
    roster : Roster
        Who takes part, with the fingerprints of their keys; the party's own among them.

    Raises
    ------
    InputError
        If the data set is not one party's, or the roster does not name it with its own key.
    """

    def __init__(self, dataset: str, roster: Roster) -> None:
        # Looked up once, since each request asks several times for what is public of it.
        self._registered = find_dataset(dataset)
        self._roster, self.name = roster, _name_of(self._registered)
        self._key = identity_key(root_secret(current_layout()))
        own = fingerprint(self._key.public_key())
        if roster.parties.get(self.name) != own:
            raise InputError(f"the roster lacks party {self.name!r} with its own key; add the line {self.name}: {own}")
        self._number = roster.names.index(self.name)

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request; nothing in it says more of the rows than releases and messages do.

        A refusal depends on the request, the registration and the charges alone. Other errors are logged here, and not
        reported to the coordinator.
        """
        try:
            return _ANSWERS[request.ask](self, request)
        except (RefusedError, ParameterError, InputError, SecureAggregationError) as refusal:
            return Answer(party=self.name, status=Status.REFUSED, reason=f"party {self.name} refuses: {refusal}")
        except Exception:
            _LOG.exception("a request to %s could not be answered", request.ask)
            reason = f"party {self.name} cannot {request.ask}: see the party's log"
            return Answer(party=self.name, status=Status.FAILED, reason=reason)

    def _signed(self, purpose: Purpose, run: str, body: str, **more: str | Sent) -> Answer:
        return Answer(party=self.name, signed=Signed.by(self._key, purpose, run, self.name, body), **more)

    # ── what is public of its rows ───────────────────────────────────────────────────────────────────────────────────

    def _describe(self, request: Request) -> Answer:
        body = self._description(request).written()
        table = declared_table(current_layout(), self._registered)
        message = packed(identity_json(table).encode()) if table is not None else ""
        return self._signed(Purpose.DESCRIPTION, "", body, message=message)

    def _description(self, request: Request) -> Description:
        reference = _normalised(self._registered, request.config, counted=request.counted is not None)
        table = declared_table(current_layout(), self._registered)
        return Description(
            party=self.name,
            rows=reference.rows,
            test_rows=reference.test_rows,
            dimension=reference.dimension,
            classes=reference.classes,
            label_range=reference.label_range,
            image_shape=reference.image_shape,
            columns=reference.columns,
            normalisation=reference.normalisation,
            table=identity(table=table) if table is not None else "",
            relation=relation_of(self._registered.name),
            version=reference.version,
            person=reference.person,
            rows_per_person=reference.rows_per_person,
        )

    # ── what it derives by itself ────────────────────────────────────────────────────────────────────────────────────

    def _planned(self, request: Request) -> _Run:
        """Return the run that all parties' descriptions and the configuration make, as everybody and as it sees it."""
        descriptions, own = described(self._roster, request.descriptions), self._description(request)
        if descriptions[self._number] != own:
            raise RefusedError("its rows differ from the request's description; start the run again")
        run = run_name(request.config, request.descriptions, request.counted)
        asked_for = request.config.model_dump_json()
        return _derived(current_root(), self._registered, self._number, asked_for, request.counted, descriptions, run)

    # ── its account ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _reserve(self, request: Request) -> Answer:
        planned = self._planned(request)
        assumed = self._require_floors(planned)
        run, roster = planned.name, self._roster.names
        keys = {one.key for one in planned.releases}
        said = CHARGED_BEFORE if open_ledger().charged(keys) == keys else ""
        reserve(
            planned.releases, planned.shards.all, name=run, run=f"run {run[:12]} over {len(roster)} parties{assumed}"
        )
        # Parties and coordinator must have derived the same: another version of the code would show here.
        return Answer(party=self.name, reason=said, message=packed(keys_of(planned.shared.releases).encode()))

    def _require_floors(self, run: _Run) -> str:
        """Refuse a plan below the owner's floors; return what the ledger records of the owner's consent."""
        masked = [masking for one in run.releases if (masking := one.masking) is not None]
        for masking in masked:
            self._roster.floors.require(masking)
        consented = any(masking.consistent_survivors for masking in masked)
        return ", consistent survivors assumed by its owner's consent" if consented else ""

    def _return(self, request: Request) -> Answer:
        run = self._planned(request)
        open_ledger().give_back(run.releases[0].account, run.name, why="another party refused, or did not answer")
        return Answer(party=self.name)

    def _commit(self, request: Request) -> Answer:
        run = self._planned(request)
        self._require_floors(run)
        commit(run.releases, run.shards.all, name=run.name)
        return self._signed(Purpose.CHARGE, run.name, keys_of(run.shared.releases))

    # ── its rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _charged(self, request: Request) -> _Asked:
        """Return the release that a request is about, once all of the run is charged.

        Raises
        ------
        RefusedError
            If it is not, or the release reads none of its rows.
        """
        run = self._planned(request)
        ledger = open_ledger()
        keys = {one.key for one in run.releases}
        if ledger.charged(keys) != keys:
            raise RefusedError(f"run {run.name[:12]} is not charged to its account; reserve and commit the run first")
        releases = run.own.releases
        release = releases[request.release] if request.release < len(releases) else None
        shard = None if release is None else run.shard_of(release)
        if release is None or shard is None:
            raise RefusedError(f"release {request.release} of this run reads none of its rows")
        ledger.require_current(release.key)
        return _Asked(run, release, run.shared.releases[request.release], shard)

    def _release(self, request: Request) -> Answer:
        charged = self._charged(request)
        if len(charged.release.parties) > 1:
            raise RefusedError("this is a sum over all parties, and a party never releases its own part")
        artefact = make_release(charged.release, [charged.shard], self._upstream(request, charged))
        body = release_body(charged.session.key, read_release(artefact))
        return self._signed(Purpose.RELEASE, charged.run.name, body, sent=Sent.stored(artefact.key))

    def _upstream(self, request: Request, charged: _Asked) -> list[ReleaseRef]:
        """Return what the rows are seen through: made here from public parameters or from its own rows, or sent.

        What was sent first stands: the same release seen through something else would be another one, unpaid.
        """
        nodes, sent = charged.run.own.training, iter(request.upstream)
        theirs = dict(zip(nodes, charged.run.shared.training, strict=True))

        def received(node: PlannedRelease | PlannedCombination, parts: Sequence[PlannedRelease]) -> ReleaseRef:
            return self._received(node, parts, theirs[node.key], next(sent, None))

        references = []
        for key in charged.release.upstream:
            node = nodes[key]
            if isinstance(node, PlannedCombination):
                sums = made_of_sums(node, nodes)
                if sums is None:
                    parts = [one for one in map(nodes.get, node.upstream) if isinstance(one, PlannedRelease)]
                    references.append(received(node, parts))
                else:
                    references.append(combine(node, [received(one, [one]) for one in sums]))
            elif not node.reads_rows:
                references.append(make_release(node, []))
            elif is_known_to_all(node):
                references.append(_stored(node, "comes first: it was not asked for yet"))
            else:
                references.append(received(node, [node]))
        return references

    def _received(
        self,
        planned: PlannedRelease | PlannedCombination,
        parts: Sequence[PlannedRelease],
        key: str,
        sent: Sent | None,
    ) -> ReleaseRef:
        if sent is None:
            return _stored(planned, "was not sent along, and its rows are to be seen through it")
        artefact = require_sent(planned, parts, key, sent.opened("the coordinator"))
        kept = (
            store_combination(planned, artefact)
            if isinstance(planned, PlannedCombination)
            else stored_release(planned) or store_release(planned, artefact, {})
        )
        before = read_release(kept).arrays()
        if ReleaseStore.digest_of({}, before) != ReleaseStore.digest_of({}, artefact.arrays()):
            raise RefusedError(f"it received a different {planned.label} before, and its rows may use only that one")
        return kept

    def _sums(self, request: Request, *, secure: bool) -> tuple[_Asked, PartyRounds]:
        """Return its side of a release that is formed of sums."""
        charged = self._charged(request)
        release = charged.release
        if not release.travels or len(release.parties) == 1 or (release.masking is not None) != secure:
            raise RefusedError(f"{release.label} under trust {release.trust.name} cannot be formed in this way")
        # Its vectors and noise are those of its own release, in any session: it takes part in one alone.
        notes = self._notes(charged)
        open_ledger().count_answers(release.key, notes.count())
        if notes.put(_SESSION, charged.session.key.encode()) != charged.session.key.encode():
            raise RefusedError(
                "it took part in another run with these rows, this algorithm and this budget, and noise must never be "
                "used twice; run with another --replicate, which is a new charge"
            )
        return charged, PartyRounds(release, self._number, request.block)

    def _notes(self, charged: _Asked) -> PrivateNotes:
        return PrivateNotes(current_layout().party_round(charged.release.parties[self._number], charged.release.key))

    def _sum(self, request: Request) -> Answer:
        charged, rounds = self._sums(request, secure=False)
        if request.step:
            rounds.learn(request.step - 1, unpacked(request.sum_before))
        answer = packed(rounds.noisy_sum(request.step, [charged.shard], self._upstream(request, charged)))
        open_ledger().count_answers(charged.release.key, self._notes(charged).count())
        return self._signed(Purpose.SUM, session_name(charged.run.name, charged.session.key, request.step), answer)

    def _round(self, stage: Stage, request: Request) -> Answer:
        charged, rounds = self._sums(request, secure=True)
        message = request.message.encode()
        sessions = len(release_blocks(charged.release))
        if request.block >= sessions:
            raise RefusedError(f"this release has {sessions} sessions, and number {request.block} was requested")
        if stage is Stage.ADVERTISE and RoundParameters.decode(message) != session_of(charged.session, request.block):
            raise RefusedError("the session's parameters differ from those of this run")
        signed_for = session_name(charged.run.name, charged.session.key, request.block)
        if stage is Stage.SHARE:
            self._require_authentic(signed_for, request, Introduction.decode(message))
        if stage is not Stage.MASK:
            sent = rounds.answer(stage, message).decode()
        else:
            if step := rounds.step_of(message):
                rounds.learn(step - 1, unpacked(request.sum_before))
            sent = rounds.answer(stage, message, [charged.shard], self._upstream(request, charged)).decode()
        open_ledger().count_answers(charged.release.key, self._notes(charged).count())
        if stage is Stage.ADVERTISE:
            return self._signed(Purpose.ADVERTISEMENT, signed_for, sent, message=sent)
        return Answer(party=self.name, message=sent)

    def _require_authentic(self, session: str, request: Request, introduction: Introduction) -> None:
        """Refuse public keys that the parties they are said to be of have not signed for this session."""
        keys = {}
        for signed in request.advertisements:
            advertisement = Advertisement.decode(self._roster.check(signed, Purpose.ADVERTISEMENT, session).encode())
            if advertisement.sender != self._roster.names.index(signed.party):
                raise RefusedError(f"party {signed.party!r} has signed a public key in another's name")
            keys[advertisement.sender] = advertisement.public_key
        for neighbour, public in introduction.public_keys.items():
            if keys.get(neighbour) != public:
                raise RefusedError(
                    f"the public key of party {self._roster.names[neighbour]!r} differs from the one it signed: the "
                    "message was changed in transit"
                )


@functools.lru_cache(maxsize=4)
def _derived(
    root: Path,
    registered: DatasetRef,
    number: int,
    run_asked_for: str,
    counted: Counted | None,
    descriptions: tuple[Description, ...],
    run: str,
) -> _Run:
    """Return a run as a party sees it; derived once for its many requests, from public facts alone.

    Raises
    ------
    RefusedError
        If the party's rows are partitioned otherwise than everybody expects.
    """
    del root
    config = TrainingConfig.model_validate_json(run_asked_for)
    shared = federated_plan(config, descriptions, run, counted=counted)
    reference = _normalised(registered, config, counted=counted is not None)
    if shared.features:
        for feature in shared.features:
            make_map(feature)
        reference = make_mapped(plan_mapping(reference, shared.features))
    partitioning = TrainingConfig(dataset=registered.name, test_fraction=test_fraction(config, descriptions))
    shards = make_partition(plan_partition(reference, partitioning))
    own = federated_plan(config, descriptions, run, (number, shards), counted)
    sizes = {shard.party: shard.rows for shard in shards.all}
    for release in own_releases(own, shards):
        for party, rows in zip(release.parties, release.sizes, strict=True):
            if party in (descriptions[number].party, HELD_OUT) and sizes[party] != rows:
                raise RefusedError("its rows are partitioned differently from its description; start the run again")
    return _Run(run, shared, own, shards)


def _normalised(registered: DatasetRef, config: TrainingConfig, *, counted: bool) -> DatasetRef:
    require_carried(config)
    if counted:
        # Cells are counted as they were ingested.
        return registered
    name = resolve_normalisation(config, default_normalisation(registered.name), table=bool(registered.columns))
    return make_normalised(plan_normalisation(registered, name))


def _stored(planned: PlannedRelease | PlannedCombination, refusal: str) -> ReleaseRef:
    reference = stored_release(planned)
    if reference is None:
        raise RefusedError(f"{planned.label} {refusal}")
    return reference


_ANSWERS: Mapping[Ask, Callable[[Party, Request], Answer]] = {
    Ask.DESCRIBE: Party._describe,
    Ask.RESERVE: Party._reserve,
    Ask.RETURN: Party._return,
    Ask.COMMIT: Party._commit,
    Ask.RELEASE: Party._release,
    Ask.SUM: Party._sum,
    **{
        Ask(stage.value): functools.partial(lambda stage, party, request: party._round(stage, request), stage)
        for stage in Stage
    },
}
