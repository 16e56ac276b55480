"""What a party does when it is asked: everything with its own rows, its own secrets and its own account.

What a coordinator may choose is the run (an algorithm that is proved, its budget) within the cap of the party's
account, and whose run it is: the parties of the roster, all of them. Everything else, the plan with its noise and its
price included, the party derives itself from what all parties have signed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from dpalgos.errors import ParameterError
from dpalgos.secure.errors import SecureAggregationError
from dpalgos.secure.messages import Advertisement, Introduction, RoundParameters
from dpalgos.secure.rounds import Stage
from storage.datasets import declared_table, origins
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, ShardRef
from storage.releases import ReleaseStore
from storage.rounds import PrivateNotes
from storage.secrets import root_secret
from tasks.accounts.budget import open_ledger, relation_of
from tasks.datasets.description import default_normalisation, find_dataset
from tasks.federation.messages import (
    Answer,
    Ask,
    Description,
    Purpose,
    Request,
    Roster,
    Signed,
    Status,
    fingerprint,
    identity_key,
    packed,
    unpacked,
)
from tasks.federation.planning import described, federated_plan, own_releases, run_name
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import identity
from tasks.planning.plans import PlannedRelease
from tasks.planning.resolution import resolve_normalisation
from tasks.preparation.dealing import deal_rows
from tasks.preparation.mapping import map_rows
from tasks.release.admission import commit, reserve
from tasks.release.door import make_release
from tasks.release.rounds import PartyRounds, session_of
from tasks.runtime.settings import current_layout

__all__ = ["Party", "own_name"]

_LOG = logging.getLogger(__name__)
_SESSION = "federated-run"


def own_name(dataset: str) -> str:
    """Return the name of the party whose rows a data set holds: it was ingested with one ``--party NAME=PATH``.

    Raises
    ------
    InputError
        If it holds no party's own file, or several parties'.
    """
    reference = find_dataset(dataset)
    parties = [name for name, _ in origins(current_layout(), reference)]
    if len(parties) != 1 or not reference.private:
        raise InputError(
            f"data set {dataset} holds the private rows of {len(parties)} parties; a party serves its own alone: "
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
        self._dataset, self._roster, self.name = dataset, roster, own_name(dataset)
        self._key = identity_key(root_secret(current_layout()))
        own = fingerprint(self._key.public_key())
        if roster.parties.get(self.name) != own:
            raise InputError(
                f"the roster does not name party {self.name!r} with its own key; its line is: {self.name}: {own}"
            )
        self._number = roster.names.index(self.name)

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request; nothing in it says more of the rows than releases and messages do.

        A refusal depends on the request, the registration and the charges alone. What goes wrong otherwise is logged
        here, and said to nobody else.
        """
        try:
            return _ANSWERS[request.ask](self, request)
        except (RefusedError, ParameterError, InputError, SecureAggregationError) as refusal:
            return Answer(party=self.name, status=Status.REFUSED, reason=f"party {self.name} refuses: {refusal}")
        except Exception:
            _LOG.exception("a request to %s could not be answered", request.ask)
            reason = f"party {self.name} cannot {request.ask}: its own log says why"
            return Answer(party=self.name, status=Status.FAILED, reason=reason)

    # ── what is public of its rows ───────────────────────────────────────────────────────────────────────────────────

    def _describe(self, request: Request) -> Answer:
        body = self._description(request.config).model_dump_json()
        return Answer(party=self.name, signed=Signed.by(self._key, Purpose.DESCRIPTION, "", self.name, body))

    def _description(self, config: TrainingConfig) -> Description:
        reference, shard = self._rows(config)
        table = declared_table(current_layout(), find_dataset(self._dataset))
        return Description(
            party=self.name,
            rows=shard.rows,
            dimension=reference.dimension,
            classes=reference.classes,
            label_range=reference.label_range,
            normalisation=reference.normalisation,
            table=identity(table=table) if table is not None else "",
            relation=relation_of(self._dataset),
            version=reference.version,
        )

    def _rows(self, config: TrainingConfig) -> tuple[DatasetRef, ShardRef]:
        own = TrainingConfig(dataset=self._dataset, epsilon=config.epsilon, evaluation=False)
        wanted = own.model_copy(update={"normalisation": config.normalisation})
        name = resolve_normalisation(wanted, default_normalisation(self._dataset))
        reference = map_rows(find_dataset(self._dataset), name)
        (shard,) = deal_rows(reference, own).training
        return reference, shard

    # ── its account ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _planned(
        self, request: Request
    ) -> tuple[str, tuple[PlannedRelease, ...], tuple[PlannedRelease, ...], ShardRef]:
        """Return the run, the session's releases, its own releases, and its own shard."""
        said = described(self._roster, request.descriptions)
        if said[self._number] != self._description(request.config):
            raise RefusedError("its rows were described otherwise than they are now; begin the run again")
        run, (reference, shard) = run_name(request.config, request.descriptions), self._rows(request.config)
        shared = federated_plan(request.config, said, run)
        own = federated_plan(request.config, said, run, (reference, shard.partition))
        return run, own_releases(shared, self.name), own_releases(own, self.name), shard

    def _reserve(self, request: Request) -> Answer:
        run, shared, own, shard = self._planned(request)
        reserve(own, shard, name=run, run=f"run {run[:12]} over {len(self._roster.names)} parties")
        # Parties and coordinator must have derived the same: another version of the code would show here.
        return Answer(party=self.name, message=packed(",".join(one.key for one in shared).encode()))

    def _return(self, request: Request) -> Answer:
        run, _, own, _ = self._planned(request)
        open_ledger().give_back(own[0].account, run, why="another party refused, or did not answer")
        return Answer(party=self.name)

    def _commit(self, request: Request) -> Answer:
        run, _, own, shard = self._planned(request)
        commit(own, shard, name=run)
        return Answer(party=self.name)

    # ── its rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _charged(self, request: Request) -> tuple[str, PlannedRelease, PlannedRelease, ShardRef]:
        run, shared, own, shard = self._planned(request)
        (session,), (release,) = shared, own
        if not open_ledger().is_charged(release.key):
            raise RefusedError(f"run {run[:12]} is not charged to its account; a run is reserved and committed first")
        return run, session, release, shard

    def _release(self, request: Request) -> Answer:
        _, _, release, shard = self._charged(request)
        if len(release.parties) > 1:
            raise RefusedError("this run forms a secure sum; its own part of it is no release")
        maps = [make_release(one, []) for one in self._maps(request) if one.key in release.upstream]
        files = ReleaseStore(current_layout()).files(make_release(release, [shard], maps).key)
        return Answer(party=self.name, message=packed(files["arrays.npz"]), manifest=packed(files["manifest.json"]))

    def _maps(self, request: Request) -> tuple[PlannedRelease, ...]:
        """Return the maps made from public parameters that its rows are seen through."""
        said, (reference, shard) = described(self._roster, request.descriptions), self._rows(request.config)
        run = run_name(request.config, request.descriptions)
        return federated_plan(request.config, said, run, (reference, shard.partition)).projections

    def _round(self, stage: Stage, request: Request) -> Answer:
        run, session, release, shard = self._charged(request)
        if len(release.parties) == 1:
            raise RefusedError("this run releases each party's own model; no sum is formed")
        # Its vector and noise are those of its own release, whatever the session: it takes part in one alone.
        notes = PrivateNotes(current_layout(), self.name, release.key)
        if notes.put(_SESSION, session.key.encode()) != session.key.encode():
            raise RefusedError(
                "it has taken part in another run with these rows, this algorithm and this budget, and the same noise "
                "hides one sum only; ask with another --repetition, which is charged anew"
            )
        message = unpacked(request.message)
        if stage is Stage.ADVERTISE and RoundParameters.decode(message) != session_of(session):
            raise RefusedError("the session's parameters are not those of this run")
        if stage is Stage.SHARE:
            self._require_authentic(run, request, Introduction.decode(message))
        maps = [make_release(one, []) for one in self._maps(request) if one.key in release.upstream]
        shards = [shard] if stage is Stage.MASK else []
        sent = packed(PartyRounds(release, self._number).answer(stage, message, shards, maps))
        signed = None
        if stage is Stage.ADVERTISE:
            signed = Signed.by(self._key, Purpose.ADVERTISEMENT, run, self.name, sent)
        return Answer(party=self.name, message=sent, signed=signed)

    def _require_authentic(self, run: str, request: Request, introduction: Introduction) -> None:
        """Refuse public keys that the parties they are said to be of have not signed for this run."""
        keys = {}
        for one in request.advertisements:
            said = Advertisement.decode(unpacked(self._roster.check(one, Purpose.ADVERTISEMENT, run)))
            if said.sender != self._roster.names.index(one.party):
                raise RefusedError(f"party {one.party!r} has signed a public key in another's name")
            keys[said.sender] = said.public_key
        size = len(introduction.public_keys) // max(len(introduction.neighbours), 1)
        for place, neighbour in enumerate(introduction.neighbours):
            if keys.get(neighbour) != introduction.public_keys[place * size : (place + 1) * size]:
                raise RefusedError(
                    f"the public key of party {self._roster.names[neighbour]!r} is not the one that it has signed: "
                    "somebody stands between"
                )


_ANSWERS: Mapping[Ask, Callable[[Party, Request], Answer]] = MappingProxyType(
    {
        Ask.DESCRIBE: Party._describe,
        Ask.RESERVE: Party._reserve,
        Ask.RETURN: Party._return,
        Ask.COMMIT: Party._commit,
        Ask.RELEASE: Party._release,
        **{
            Ask(stage.value): functools.partial(lambda stage, party, request: party._round(stage, request), stage)
            for stage in Stage
        },
    }
)
