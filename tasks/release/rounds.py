"""The rounds of secure aggregation over stored messages: what parties do with their own rows, what the server does.

Everything that is decided is stored before anything made from it leaves, write-once, under the release's key. So what
is run again after a crash, on another worker or by a second run sends the very same message, and a sum is unmasked for
the one survivor set that was stored first. A party's seed is fresh randomness of the operating system, stored once; it
is never derived, so that who loses it can not use its masks twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from dpalgos.secure import one_sum
from dpalgos.secure import party as at_party
from dpalgos.secure import server as at_server
from dpalgos.secure.errors import RepeatedUseError
from dpalgos.secure.keys import KEY
from dpalgos.secure.messages import (
    Advertisement,
    Delivery,
    Introduction,
    MaskedVector,
    RoundParameters,
    ShareBundle,
    UnmaskRequest,
    UnmaskResponse,
)
from dpalgos.secure.party import PartyState
from dpalgos.secure.record import RecordedSum
from dpalgos.secure.server import Agreement, MaskedBlock, Roster, SurvivorSet
from dpalgos.secure.wire import Wire
from dpalgos.summation import SumAlgorithm
from dpalgos.trust.secagg import SecureAggregation
from storage.errors import RefusedError
from storage.refs import ReleaseRef, ShardRef
from storage.rounds import MessageRef, PrivateNotes, RoundStore
from tasks.planning.plans import PlannedRelease
from tasks.release import checkpoints
from tasks.release.admission import admit
from tasks.release.door import open_release
from tasks.release.records import StoredRecord
from tasks.release.storing import is_stored
from tasks.runtime.settings import current_layout

__all__ = ["Rounds"]

_W = TypeVar("_W", bound=Wire)


class Rounds:
    """The rounds of one release of one sum; each method may be run again at any time.

    Methods that take a block of parties do for each of them what that party does with its own notes, rows and secret;
    the others are the server's and are given messages alone.

    Parameters
    ----------
    planned : PlannedRelease
        Of which :attr:`~tasks.planning.plans.PlannedRelease.in_rounds` holds.
    """

    def __init__(self, planned: PlannedRelease) -> None:
        self._planned, self._key = planned, planned.key
        self._parties = planned.parties
        self._trust = cast(SecureAggregation, planned.trust_model())
        self._algorithm = cast(SumAlgorithm, planned.build())
        self._tolerance = self._trust.tolerance(len(planned.parties))
        self._server = RoundStore(current_layout(), self._key)
        self._sum = RecordedSum(StoredRecord(self._key, planned.parties), self._key, one_sum.STEP)

    def open(self, shards: Sequence[ShardRef]) -> MessageRef:
        """Declare and charge, then fix what everybody knows before the session."""
        if tuple(shard.party for shard in shards) != self._parties:
            raise RefusedError(f"{self._planned.label} is opened with the shards of all its parties, in their order")
        if not is_stored(self._key):
            admit([self._planned], shards, run=self._planned.name)
            length = one_sum.length_of(self._algorithm, self._planned.setting)
            self._send(
                "parameters", RoundParameters(identity=f"{self._key}/0", tolerance=self._tolerance, length=length)
            )
        return self._message("parameters")

    def advertise(self, block: Sequence[int], opened: MessageRef) -> list[MessageRef]:
        """Round 1, parties: draw a seed, once, and send a public key."""

        def answer(party: int, notes: PrivateNotes) -> Advertisement:
            fresh = at_party.join(self._read(RoundParameters, opened.name), party, secrets.token_bytes(KEY))
            # Whatever seed was stored first is the party's seed.
            state = PartyState.decode(notes.put("joined", fresh.encode()))
            checkpoints.reached("kept joined")
            return at_party.advertise(state)

        return self._each(block, "advertisement", answer)

    def introduce(self, opened: MessageRef, sent: Sequence[Sequence[MessageRef]]) -> MessageRef:
        """Round 1, server: fix who takes part, and tell everybody of its neighbours."""
        if not is_stored(self._key):
            parameters = self._read(RoundParameters, opened.name)
            found = at_server.collect_advertisements(parameters, self._messages(Advertisement, sent))
            roster = Roster.decode(self._server.put("roster", found.encode()))
            for party in roster.members:
                self._send(f"introduction-{party}", at_server.introduce(roster, party))
        return self._message("roster")

    def share(self, block: Sequence[int]) -> list[MessageRef]:
        """Round 2, parties: agree on keys with the neighbours and share the secrets of all masks."""

        def answer(party: int, notes: PrivateNotes) -> ShareBundle:
            introduction = self._read(Introduction, f"introduction-{party}")
            state, bundle = at_party.share(_note(notes, "joined"), introduction)
            _keep(notes, "shared", state)
            return bundle

        return self._each(block, "shares", answer)

    def agree(self, introduced: MessageRef, sent: Sequence[Sequence[MessageRef]]) -> MessageRef:
        """Round 2, server: fix the agreement and deliver everybody's shares."""
        if not is_stored(self._key):
            found = at_server.collect_shares(self._read(Roster, introduced.name), self._messages(ShareBundle, sent))
            agreement = Agreement.decode(self._server.put("agreement", found.encode()))
            for party in agreement.by_sender:
                self._send(f"delivery-{party}", at_server.deliver(agreement, party))
        return self._message("agreement")

    def mask(
        self, block: Sequence[int], shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef]
    ) -> list[MessageRef]:
        """Round 3, parties: each adds its noise share to what its own rows contribute, masks that and sends it."""
        own: Mapping[int, ShardRef] = dict(zip(block, shards, strict=True))

        def answer(party: int, notes: PrivateNotes) -> MaskedVector:
            with open_release(self._planned, [own[party]], upstream) as release:
                vector = one_sum.vector_of(
                    self._algorithm,
                    release.rows[0],
                    self._planned.setting,
                    self._tolerance,
                    party,
                    release.noises[0],
                )
            self._sum.vector(party, vector)
            kept = notes.get("masked")
            before = PartyState.decode(kept) if kept is not None else _note(notes, "shared")
            state = at_party.receive(before, self._read(Delivery, f"delivery-{party}"))
            state, message = at_party.mask(state, 0, vector)
            _keep(notes, "masked", state)
            notes.put("vector", self._sum.vectors[party])
            return message

        return self._each(block, "masked", answer)

    def fix_survivors(self, agreed: MessageRef, sent: Sequence[Sequence[MessageRef]]) -> MessageRef:
        """Round 3, server: add up, and decide once and for all whose vectors the sum holds, before it is unmasked."""
        if not is_stored(self._key):
            agreement = self._read(Agreement, agreed.name)
            kept = self._server.get("block")
            if kept is None:
                found = at_server.add_masked(agreement, 0, self._messages(MaskedVector, sent))
                # Too few vectors are not a block: nothing of them is ever opened.
                at_server.fix_survivors(agreement, found)
                kept = self._server.put("block", found.encode())
                checkpoints.reached("kept block")
            block = MaskedBlock.decode(kept)
            stored = self._server.get("survivors")
            fixed = at_server.fix_survivors(agreement, block, SurvivorSet.decode(stored) if stored else None)
            # The same record as of sums in one process: whichever way a release is made, one survivor set is opened.
            self._sum.fix(fixed.survivors)
            self._send("survivors", fixed)
            for party in fixed.survivors:
                self._send(f"request-{party}", at_server.request_unmasking(agreement, fixed, party))
        return self._message("survivors")

    def unmask(self, block: Sequence[int]) -> list[MessageRef]:
        """Round 4, parties: open own masks of the survivors and pair masks of the lost, for one survivor set only."""

        def answer(party: int, notes: PrivateNotes) -> UnmaskResponse:
            request = self._read(UnmaskRequest, f"request-{party}")
            kept = notes.get("unmasked")
            before = PartyState.decode(kept) if kept is not None else _note(notes, "masked")
            state, response = at_party.unmask(before, request)
            self._sum.vectors[party] = notes.require("vector")
            self._sum.open([party], request.survivors)
            _keep(notes, "unmasked", state)
            return response

        return self._each(block, "opened", answer)

    def decode(self, agreed: MessageRef, fixed: MessageRef, sent: Sequence[Sequence[MessageRef]]) -> ReleaseRef:
        """Round 4, server: open the sum, make the artefact of it and store that as the release."""
        with open_release(self._planned) as release:
            if release.stored is not None:
                return release.stored
            survivors = self._read(SurvivorSet, fixed.name)
            total = at_server.unmask_sum(
                self._read(Agreement, agreed.name),
                survivors,
                self._read(MaskedBlock, "block"),
                self._messages(UnmaskResponse, sent),
            )
            setting = self._planned.setting
            return release.store(one_sum.artefact_of(self._algorithm, total, survivors.survivors, setting))

    # ── messages and notes ───────────────────────────────────────────────────────────────────────────────────────────

    def _message(self, name: str) -> MessageRef:
        return MessageRef(key=self._key, name=name)

    def _read(self, kind: type[_W], name: str) -> _W:
        return kind.decode(self._server.require(name))

    def _send(self, name: str, message: Wire) -> MessageRef:
        self._server.put(name, message.encode())
        checkpoints.reached(f"sent {name}")
        return self._message(name)

    def _messages(self, kind: type[_W], blocks: Sequence[Sequence[MessageRef]]) -> list[_W]:
        return [self._read(kind, message.name) for block in blocks for message in block]

    def _each(self, block: Sequence[int], kind: str, answer: Callable[[int, PrivateNotes], Wire]) -> list[MessageRef]:
        """Let each party of a block send one message, unless it has been sent or is no longer needed."""
        sent = []
        for party in block:
            name = f"{kind}-{party}"
            known = is_stored(self._key) or self._server.get(name) is not None
            notes = PrivateNotes(current_layout(), self._parties[party], self._key)
            sent.append(self._message(name) if known else self._send(name, answer(party, notes)))
        return sent


def _note(notes: PrivateNotes, name: str) -> PartyState:
    return PartyState.decode(notes.require(name))


def _keep(notes: PrivateNotes, name: str, state: PartyState) -> None:
    """Store a party's state before the message that it allows leaves.

    Raises
    ------
    RepeatedUseError
        If the party went on from another state before.
    """
    if notes.put(name, state.encode()) != state.encode():
        raise RepeatedUseError(
            f"party {state.party} has already answered in this round with another value; a second one could reveal "
            "its input. Repeat the round under a new identity (--repetition)"
        )
    checkpoints.reached(f"kept {name}")
