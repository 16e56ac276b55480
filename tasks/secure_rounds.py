"""The rounds of secure aggregation as tasks: what parties do with their own rows, what the server does with messages.

Every task stores what it decides before anything made from it leaves, write-once, under the release's key. So a task
that is run again after a crash, on another worker or by a second run sends the very same message, and a sum is unmasked
for the one survivor set that was stored first. A party's seed is fresh randomness of the operating system, stored once;
it is never derived, so that who loses it can not use its masks twice.

A block is a few parties that one task simulates one after another; each of them uses its own notes, rows and secret.
The server's tasks are handed references to messages, never to shards.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from prefect import task

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
from dpalgos.secure.server import Agreement, MaskedBlock, Roster, SurvivorSet
from dpalgos.secure.wire import Wire
from storage.refs import ReleaseRef, ShardRef
from storage.rounds import MessageRef, PrivateNotes, RoundStore
from tasks.planning.plans import PlannedRelease, build
from tasks.release.door import admit, fixed_survivors, is_stored, own_part, store_release, stored_release, untold
from tasks.runtime.caching import BY_CONTENT
from tasks.runtime.progress import say
from tasks.runtime.retries import RETRIES
from tasks.runtime.settings import current_layout

__all__ = [
    "advertise",
    "agree",
    "decode",
    "fix_survivors",
    "introduce",
    "mask",
    "open_rounds",
    "reached",
    "share",
    "unmask",
]

_W = TypeVar("_W", bound=Wire)


def _nothing(step: str) -> None:
    del step


reached: Callable[[str], None] = _nothing
"""Called between storing and sending; replaced by the crash tests, which kill the process there."""


def _server(release: PlannedRelease) -> RoundStore:
    return RoundStore(current_layout(), release.key)


def _notes(release: PlannedRelease, party: int) -> PrivateNotes:
    return PrivateNotes(current_layout(), release.parties[party], release.key)


def _read(store: RoundStore | PrivateNotes, kind: type[_W], name: str) -> _W:
    return kind.decode(store.require(name))


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
    reached(f"kept {name}")


def _send(release: PlannedRelease, name: str, message: Wire) -> MessageRef:
    _server(release).put(name, message.encode())
    reached(f"sent {name}")
    return MessageRef(key=release.key, name=name)


def _each(
    release: PlannedRelease, block: list[int], kind: str, answer: Callable[[int, PrivateNotes], Wire]
) -> list[MessageRef]:
    """Let each party of a block send one message, unless it has been sent or is no longer needed."""
    sent = []
    for party in block:
        name = f"{kind}-{party}"
        known = is_stored(release.key) or _server(release).get(name) is not None
        message = MessageRef(key=release.key, name=name)
        sent.append(message if known else _send(release, name, answer(party, _notes(release, party))))
    return sent


def _messages(release: PlannedRelease, kind: type[_W], blocks: list[list[MessageRef]]) -> list[_W]:
    return [_read(_server(release), kind, message.name) for block in blocks for message in block]


@task(task_run_name="{release.label}: open the rounds", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def open_rounds(release: PlannedRelease, shards: list[ShardRef]) -> MessageRef:
    """Declare and charge, then fix what everybody knows before the session."""
    name = "parameters"
    if not is_stored(release.key):
        admit(release, shards)
        _send(
            release,
            name,
            RoundParameters(
                identity=f"{release.key}/0",
                tolerance=release.fault_model(),
                length=one_sum.length_of(build(release), release.public_facts()),
            ),
        )
    return MessageRef(key=release.key, name=name)


@task(task_run_name="{release.label}: advertise {block}", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def advertise(release: PlannedRelease, block: list[int], opened: MessageRef) -> list[MessageRef]:
    """Round 1, parties: draw a seed, once, and send a public key."""

    def answer(party: int, notes: PrivateNotes) -> Advertisement:
        parameters = _read(_server(release), RoundParameters, opened.name)
        fresh = at_party.join(parameters, party, secrets.token_bytes(KEY))
        # Whatever seed was stored first is the party's seed.
        state = PartyState.decode(notes.put("joined", fresh.encode()))
        reached("kept joined")
        return at_party.advertise(state)

    return _each(release, block, "advertisement", answer)


@task(task_run_name="{release.label}: introduce", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def introduce(release: PlannedRelease, opened: MessageRef, sent: list[list[MessageRef]]) -> MessageRef:
    """Round 1, server: fix who takes part, and tell everybody of its neighbours."""
    name = "roster"
    if not is_stored(release.key):
        store = _server(release)
        parameters = _read(store, RoundParameters, opened.name)
        found = at_server.collect_advertisements(parameters, _messages(release, Advertisement, sent))
        roster = Roster.decode(store.put(name, found.encode()))
        for party in roster.members:
            _send(release, f"introduction-{party}", at_server.introduce(roster, party))
    return MessageRef(key=release.key, name=name)


@task(task_run_name="{release.label}: share {block}", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def share(release: PlannedRelease, block: list[int], introduced: MessageRef) -> list[MessageRef]:
    """Round 2, parties: agree on keys with the neighbours and share the secrets of all masks."""
    del introduced

    def answer(party: int, notes: PrivateNotes) -> ShareBundle:
        introduction = _read(_server(release), Introduction, f"introduction-{party}")
        state, bundle = at_party.share(_read(notes, PartyState, "joined"), introduction)
        _keep(notes, "shared", state)
        return bundle

    return _each(release, block, "shares", answer)


@task(task_run_name="{release.label}: agree", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def agree(release: PlannedRelease, introduced: MessageRef, sent: list[list[MessageRef]]) -> MessageRef:
    """Round 2, server: fix the agreement and deliver everybody's shares."""
    name = "agreement"
    if not is_stored(release.key):
        store = _server(release)
        found = at_server.collect_shares(_read(store, Roster, introduced.name), _messages(release, ShareBundle, sent))
        agreement = Agreement.decode(store.put(name, found.encode()))
        for party in agreement.by_sender:
            _send(release, f"delivery-{party}", at_server.deliver(agreement, party))
    return MessageRef(key=release.key, name=name)


@task(task_run_name="{release.label}: mask {block}", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def mask(
    release: PlannedRelease,
    block: list[int],
    shards: list[ShardRef],
    upstream: list[ReleaseRef],
    agreed: MessageRef,
) -> list[MessageRef]:
    """Round 3, parties: each adds its noise share to what its own rows contribute, masks that and sends it."""
    del agreed
    own = dict(zip(block, shards, strict=True))

    def answer(party: int, notes: PrivateNotes) -> MaskedVector:
        rows, noise = own_part(release, own[party], upstream)
        facts, tolerance = release.public_facts(), release.fault_model()
        with untold(release, own[party]):
            vector = one_sum.vector_of(build(release), rows, facts, tolerance, party, noise)
        kept = notes.get("masked")
        before = PartyState.decode(kept) if kept is not None else _read(notes, PartyState, "shared")
        state = at_party.receive(before, _read(_server(release), Delivery, f"delivery-{party}"))
        state, message = at_party.mask(state, 0, vector)
        _keep(notes, "masked", state)
        return message

    return _each(release, block, "masked", answer)


@task(task_run_name="{release.label}: fix survivors", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def fix_survivors(release: PlannedRelease, agreed: MessageRef, sent: list[list[MessageRef]]) -> MessageRef:
    """Round 3, server: add up, and decide once and for all whose vectors the sum holds, before anything is unmasked."""
    name = "survivors"
    if not is_stored(release.key):
        store = _server(release)
        agreement = _read(store, Agreement, agreed.name)
        kept = store.get("block")
        if kept is None:
            found = at_server.add_masked(agreement, 0, _messages(release, MaskedVector, sent))
            # Too few vectors are not a block: nothing of them is ever opened.
            at_server.fix_survivors(agreement, found)
            kept = store.put("block", found.encode())
            reached("kept block")
        block = MaskedBlock.decode(kept)
        stored = store.get(name)
        fixed = at_server.fix_survivors(agreement, block, SurvivorSet.decode(stored) if stored is not None else None)
        # The same record as of sums in one process: whichever way a release is made, one survivor set is opened.
        if fixed_survivors(release.key, one_sum.STEP, fixed.survivors) != fixed.survivors:
            raise RepeatedUseError(
                f"the survivors of {release.label} were fixed before and were others; a second sum would reveal "
                "single inputs. Repeat it under a new identity (--repetition)"
            )
        _send(release, name, fixed)
        for party in fixed.survivors:
            _send(release, f"request-{party}", at_server.request_unmasking(agreement, fixed, party))
    return MessageRef(key=release.key, name=name)


@task(task_run_name="{release.label}: unmask {block}", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def unmask(release: PlannedRelease, block: list[int], fixed: MessageRef) -> list[MessageRef]:
    """Round 4, parties: open own masks of the survivors and pair masks of the lost, for one survivor set only."""
    del fixed

    def answer(party: int, notes: PrivateNotes) -> UnmaskResponse:
        request = _read(_server(release), UnmaskRequest, f"request-{party}")
        kept = notes.get("unmasked")
        before = PartyState.decode(kept) if kept is not None else _read(notes, PartyState, "masked")
        state, response = at_party.unmask(before, request)
        _keep(notes, "unmasked", state)
        return response

    return _each(release, block, "opened", answer)


@task(task_run_name="{release.label}", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def decode(release: PlannedRelease, agreed: MessageRef, fixed: MessageRef, sent: list[list[MessageRef]]) -> ReleaseRef:
    """Round 4, server: open the sum, make the artefact of it and store that as the release."""
    stored = stored_release(release)
    if stored is not None:
        return stored
    store = _server(release)
    survivors = _read(store, SurvivorSet, fixed.name)
    total = at_server.unmask_sum(
        _read(store, Agreement, agreed.name),
        survivors,
        _read(store, MaskedBlock, "block"),
        _messages(release, UnmaskResponse, sent),
    )
    artefact = one_sum.artefact_of(build(release), total, survivors.survivors, release.public_facts())
    reference = store_release(release, artefact)
    say("training" if release.kind == "trainers" else "reduction", release.label)
    return reference
