"""What the server does in a round: it sees messages only, and says who of the senders broke the protocol.

Every function is pure. What has to be stored between two of them is their result: :class:`Roster`, :class:`Agreement`,
:class:`MaskedBlock`, and before anything is unmasked the :class:`SurvivorSet`.

A message that breaks the protocol raises a :class:`~dpalgos.secure.primitives.ViolationError` naming its sender. The
caller may leave that message out and call again: the sender then counts as lost.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpalgos.rows import Ints
from dpalgos.secure import primitives as keys
from dpalgos.secure.messages import (
    ESCROW,
    KINDS,
    LOCKED,
    SEALED,
    SELF,
    Advertisement,
    Delivery,
    Introduction,
    MaskedVector,
    MaskRequest,
    RoundParameters,
    ShareBundle,
    UnmaskRequest,
    UnmaskResponse,
    numbers_digest,
    point,
)
from dpalgos.secure.party import escrow_data, escrow_nonce
from dpalgos.secure.primitives import (
    ELEMENT,
    KEY,
    MODULUS_BITS,
    PRIME,
    MessageError,
    RepeatedUseError,
    TooFewPartiesError,
    ViolationError,
    Words,
    add_stream,
    reconstruct,
    subtract_stream,
    to_bytes,
    to_integers,
)
from dpalgos.secure.tolerance import Neighbourhoods, order_seed
from dpalgos.secure.wire import Wire

_Sent = TypeVar("_Sent", Advertisement, ShareBundle, MaskedVector, UnmaskResponse)


@dataclass(frozen=True, kw_only=True)
class Roster(Wire):
    """After round 1: who advertised which key.

    Parameters
    ----------
    parameters : RoundParameters
    members : tuple of int
        In increasing order.
    public_keys : bytes
        32 bytes each.
    """

    parameters: RoundParameters
    members: tuple[int, ...]
    public_keys: bytes

    def __post_init__(self) -> None:
        if len(self.public_keys) != KEY * len(self.members):
            raise MessageError("a roster has one key a member")

    @cached_property
    def neighbourhoods(self) -> Neighbourhoods:
        """Who masks with whom; in a sparse graph drawn from the digest of this roster."""
        seed = order_seed(self.encode()) if self.parameters.graph is not None else b""
        return Neighbourhoods(self.members, self.parameters.graph, seed)

    def key(self, member: int) -> bytes:
        """Return a member's public key."""
        place = bisect_left(self.members, member)
        return self.public_keys[KEY * place : KEY * (place + 1)]


@dataclass(frozen=True, kw_only=True)
class Agreement(Wire):
    """After round 2: the parties that take part, with what they left with the server.

    Parameters
    ----------
    roster : Roster
    bundles : tuple of ShareBundle
        In increasing order of the senders.
    """

    roster: Roster
    bundles: tuple[ShareBundle, ...]

    @property
    def parameters(self) -> RoundParameters:
        """The session's parameters."""
        return self.roster.parameters

    @cached_property
    def by_sender(self) -> Mapping[int, ShareBundle]:
        """The bundles by their senders."""
        return {bundle.sender: bundle for bundle in self.bundles}

    def neighbours(self, party: int) -> tuple[int, ...]:
        """Return the neighbours of a party that take part, in increasing order."""
        return tuple(peer for peer in self.by_sender[party].recipients if peer in self.by_sender)

    def expected(self, owner: int, holder: int, step: int, kind: int) -> bytes:
        """Return the commitment to a holder's share; ``holder`` -1 stands for the secret itself."""
        bundle = self.by_sender[owner]
        holders = len(bundle.recipients) + 1
        place = 0 if holder < 0 else 1 + bisect_left(bundle.recipients, holder) + (holder > owner)
        start = KEY * ((len(KINDS) * step + kind) * (holders + 1) + place)
        return bundle.commitments[start : start + KEY]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedBlock(Wire):
    """Round 3: the sum of some parties' masked vectors; blocks of disjoint parties can be merged.

    Parameters
    ----------
    session : bytes
    step : int
    senders : tuple of int
        In increasing order.
    digests : bytes
        Digest of each sender's words, 32 bytes each.
    words : bytes
        Their sum modulo 2^64, little-endian.
    """

    session: bytes
    step: int
    senders: tuple[int, ...]
    digests: bytes
    words: bytes


@dataclass(frozen=True, kw_only=True)
class SurvivorSet(Wire):
    """Whose vectors a step's sum holds: fixed and stored before anything is unmasked, and never again.

    The key of a round is its session and step. Store this object under that key with a write that fails if there is
    one, and go on with the stored one, whatever the outcome; the parties' own states refuse a second one as well.

    Parameters
    ----------
    session : bytes
    step : int
    survivors : tuple of int
        In increasing order.
    vectors : bytes
        Digest of the very vectors that were received from them.
    """

    session: bytes
    step: int
    survivors: tuple[int, ...]
    vectors: bytes

    @cached_property
    def digest(self) -> bytes:
        """What requests and responses refer to it by."""
        return hashlib.sha256(self.encode()).digest()

    @cached_property
    def numbers(self) -> bytes:
        """What parties remember of whom it holds."""
        return numbers_digest(self.survivors)

    @cached_property
    def alive(self) -> frozenset[int]:
        """The survivors, for looking them up."""
        return frozenset(self.survivors)


def collect_advertisements(parameters: RoundParameters, messages: Iterable[Advertisement]) -> Roster:
    """Round 1: return the roster of all keys that arrived.

    Raises
    ------
    ViolationError
        Naming the sender of a message of another session, a second message, or a key that another party has.
    TooFewPartiesError
        If fewer than N - dropouts advertised.
    """
    received = _by_sender(parameters, messages, range(parameters.tolerance.parties))
    owners: dict[bytes, int] = {}
    for sender, message in received.items():
        if owners.setdefault(message.public_key, sender) != sender:
            raise ViolationError(sender, f"advertised the public key of party {owners[message.public_key]}")
    _require_quorum(parameters, "keys were advertised", len(received))
    return Roster(
        parameters=parameters,
        members=tuple(received),
        public_keys=b"".join(message.public_key for message in received.values()),
    )


def introduce(roster: Roster, party: int) -> Introduction:
    """Round 1: return what a party is told of its neighbours."""
    neighbours = roster.neighbourhoods.of(party)
    return Introduction(
        session=roster.parameters.session,
        recipient=party,
        neighbours=neighbours,
        public_keys=b"".join(roster.key(peer) for peer in neighbours),
    )


def collect_shares(roster: Roster, messages: Iterable[ShareBundle]) -> Agreement:
    """Round 2: return the agreement of all parties whose shares arrived.

    Raises
    ------
    ViolationError
        Naming the sender of a bundle for the wrong neighbours or of the wrong size.
    TooFewPartiesError
        If fewer than N - dropouts sent one.
    """
    parameters = roster.parameters
    received = _by_sender(parameters, messages, roster.members)
    for sender, bundle in received.items():
        if bundle.recipients != roster.neighbourhoods.of(sender):
            raise ViolationError(sender, "sent shares for other parties than its neighbours")
        count = len(bundle.recipients)
        sizes = (
            SEALED(parameters.steps) * count,
            KEY * len(KINDS) * parameters.steps * (count + 2),
            LOCKED * parameters.steps * count,
        )
        if (len(bundle.ciphertexts), len(bundle.commitments), len(bundle.escrow)) != sizes:
            raise ViolationError(sender, "sent shares, commitments or locks of the wrong length")
    _require_quorum(parameters, "secrets were shared", len(received))
    return Agreement(roster=roster, bundles=tuple(received.values()))


def deliver(agreement: Agreement, party: int) -> Delivery:
    """Round 2: return what a party is sent of its neighbours' shares."""
    steps = agreement.parameters.steps
    owners = agreement.neighbours(party)
    ciphertexts, commitments = [], []
    sealed = SEALED(steps)
    for owner in owners:
        bundle = agreement.by_sender[owner]
        start = sealed * bisect_left(bundle.recipients, party)
        ciphertexts.append(bundle.ciphertexts[start : start + sealed])
        commitments += [agreement.expected(owner, party, step, kind) for step in range(steps) for kind in KINDS]
    return Delivery(
        session=agreement.parameters.session,
        recipient=party,
        owners=owners,
        ciphertexts=b"".join(ciphertexts),
        commitments=b"".join(commitments),
    )


def request_masking(agreement: Agreement, step: int, party: int) -> MaskRequest:
    """Round 3: return what a party is asked; with the session's first step, its neighbours' shares."""
    delivery = deliver(agreement, party) if step == 0 else None
    return MaskRequest(session=agreement.parameters.session, recipient=party, step=step, delivery=delivery)


def add_masked(agreement: Agreement, step: int, messages: Iterable[MaskedVector]) -> MaskedBlock:
    """Round 3: return the sum of some masked vectors; may be none.

    Raises
    ------
    ViolationError
        Naming the sender of a vector of another session, step, length or modulus, or of a second one.
    """
    parameters = agreement.parameters
    received = _by_sender(parameters, messages, agreement.by_sender)
    total: Words = np.zeros(parameters.length, dtype="<u8")
    digests = []
    for sender, message in received.items():
        if message.step != step:
            raise ViolationError(
                sender, f"sent its vector of step {message.step} in step {step}: replayed or reordered"
            )
        if message.bits != MODULUS_BITS:
            raise ViolationError(sender, f"masked modulo 2^{message.bits}; this session adds modulo 2^{MODULUS_BITS}")
        if len(message.words) != 8 * parameters.length:
            raise ViolationError(
                sender,
                f"sent {len(message.words)} bytes; a vector of {parameters.length} numbers has {8 * parameters.length}",
            )
        np.add(total, np.frombuffer(message.words, dtype="<u8"), out=total)
        digests.append(hashlib.sha256(message.words).digest())
    return MaskedBlock(
        session=parameters.session,
        step=step,
        senders=tuple(received),
        digests=b"".join(digests),
        words=total.tobytes(),
    )


def merge_masked(blocks: Sequence[MaskedBlock]) -> MaskedBlock:
    """Round 3: return the sum of blocks of one session and step.

    Raises
    ------
    ViolationError
        Naming a party that is in two blocks.
    MessageError
        If the blocks are of different sessions or steps, or there is none.
    """
    if len({(block.session, block.step, len(block.words)) for block in blocks}) != 1:
        raise MessageError("blocks to be merged must be of one session and step, at least one")
    digests: dict[int, bytes] = {}
    total: Words = np.zeros(len(blocks[0].words) // 8, dtype="<u8")
    for block in blocks:
        for place, sender in enumerate(block.senders):
            if sender in digests:
                raise ViolationError(sender, "its vector is in two blocks")
            digests[sender] = block.digests[KEY * place : KEY * (place + 1)]
        np.add(total, np.frombuffer(block.words, dtype="<u8"), out=total)
    senders = tuple(sorted(digests))
    return MaskedBlock(
        session=blocks[0].session,
        step=blocks[0].step,
        senders=senders,
        digests=b"".join(digests[sender] for sender in senders),
        words=total.tobytes(),
    )


def fix_survivors(agreement: Agreement, block: MaskedBlock, stored: SurvivorSet | None = None) -> SurvivorSet:
    """Round 3, last act: decide whose vectors the sum holds. To be stored before :func:`request_unmasking`.

    Parameters
    ----------
    agreement : Agreement
    block : MaskedBlock
        The sum of all vectors that arrived in time; stored as well.
    stored : SurvivorSet, optional
        What was stored for this session and step before, if anything was.

    Raises
    ------
    TooFewPartiesError
        If fewer than N - dropouts sent a vector.
    RepeatedUseError
        If another survivor set was stored: unmasking both would reveal single inputs.
    """
    parameters = agreement.parameters
    if block.session != parameters.session:
        raise MessageError("the block of masked vectors is of another session")
    _require_quorum(parameters, "vectors were masked", len(block.senders))
    fixed = SurvivorSet(
        session=block.session,
        step=block.step,
        survivors=block.senders,
        vectors=hashlib.sha256(block.digests).digest(),
    )
    if stored is not None and stored != fixed:
        raise RepeatedUseError(
            f"the survivors of step {block.step} of {parameters.identity!r} are fixed already; another set would "
            "reveal single inputs. Go on with the stored set and vectors, or repeat the round under a new identity"
        )
    return fixed


def request_unmasking(agreement: Agreement, survivors: SurvivorSet, party: int) -> UnmaskRequest:
    """Round 4: return what a survivor is asked; the survivor set must have been stored before."""
    near = sorted((party, *agreement.neighbours(party)))
    alive = survivors.alive
    return UnmaskRequest(
        session=survivors.session,
        recipient=party,
        step=survivors.step,
        survivor_set=survivors.digest,
        count=len(survivors.survivors),
        numbers=survivors.numbers,
        survivors=tuple(peer for peer in near if peer in alive),
        dropped=tuple(peer for peer in near if peer not in alive),
    )


def unmask_sum(
    agreement: Agreement, survivors: SurvivorSet, block: MaskedBlock, messages: Iterable[UnmaskResponse]
) -> Ints:
    """Round 4: return the exact sum of the survivors' vectors.

    Parameters
    ----------
    agreement : Agreement
    survivors : SurvivorSet
        As stored.
    block : MaskedBlock
        As stored; it must be the one that the survivor set was fixed on.
    messages : iterable of UnmaskResponse

    Returns
    -------
    array (length,) of int64

    Raises
    ------
    ViolationError
        Naming a party that answered twice, for another step or set, with a share that it does not hold, with both kinds
        of share for one peer, with the wrong kind, or with a wrong share; or that sent inconsistent shares or locks.
    TooFewPartiesError
        If fewer than N - dropouts answered, or too few of some party's neighbours.
    """
    parameters, step = agreement.parameters, survivors.step
    if (block.session, block.step, block.senders) != (survivors.session, step, survivors.survivors) or (
        hashlib.sha256(block.digests).digest() != survivors.vectors
    ):
        raise RepeatedUseError("the masked vectors are not those that the survivor set was fixed on")
    received = _by_sender(parameters, messages, survivors.survivors)
    alive = survivors.alive
    pieces: dict[int, list[tuple[int, int]]] = {}
    for sender, message in received.items():
        _check_response(agreement, survivors, message)
        for place, owner in enumerate(message.owners):
            share = int.from_bytes(message.shares[ELEMENT * place : ELEMENT * (place + 1)], "big")
            pieces.setdefault(owner, []).append((point(sender), share))
    _require_quorum(parameters, "the sum was unmasked", len(received))

    total: Words = np.frombuffer(block.words, dtype="<u8").copy()
    for owner in agreement.by_sender:
        kind = SELF if owner in alive else ESCROW
        exposed = () if kind == SELF else tuple(peer for peer in agreement.neighbours(owner) if peer in alive)
        if kind == ESCROW and not exposed:
            continue
        secret = _open(agreement, owner, step, kind, pieces.get(owner, []))
        if kind == SELF:
            subtract_stream(total, secret)
        else:
            _remove_pair_masks(agreement, total, owner, step, secret, exposed)
    return to_integers(total)


def _check_response(agreement: Agreement, survivors: SurvivorSet, message: UnmaskResponse) -> None:
    sender, step, session = message.sender, survivors.step, survivors.session
    if message.step != step or message.survivor_set != survivors.digest:
        raise ViolationError(sender, f"answered for step {message.step} or another survivor set: replayed or reordered")
    seen: dict[int, int] = {}
    near = {sender, *agreement.neighbours(sender)}
    for place, owner in enumerate(message.owners):
        kind = message.kinds[place]
        if kind not in KINDS or owner not in near:
            raise ViolationError(sender, f"returned a share of party {owner} that it cannot hold")
        if seen.setdefault(owner, kind) != kind:
            raise ViolationError(sender, f"returned both kinds of share for party {owner}; its input would be revealed")
        if kind != (SELF if owner in survivors.alive else ESCROW):
            raise ViolationError(sender, f"returned the {KINDS[kind]} share of party {owner} instead of the other")
        share = message.shares[ELEMENT * place : ELEMENT * (place + 1)]
        if int.from_bytes(share, "big") >= PRIME:
            raise ViolationError(sender, f"returned a share of party {owner} that is not a field element")
        if keys.commitment(session, owner, step, kind, point(sender), share) != agreement.expected(
            owner, sender, step, kind
        ):
            raise ViolationError(sender, f"returned a wrong {KINDS[kind]} share of party {owner}")
    if len(seen) != len(message.owners):
        raise ViolationError(sender, "returned a share twice")


def _open(agreement: Agreement, owner: int, step: int, kind: int, pieces: Sequence[tuple[int, int]]) -> bytes:
    """Return a secret from the shares of its holders."""
    threshold = agreement.parameters.threshold
    if len(pieces) < threshold:
        raise TooFewPartiesError("shares were returned to a neighbourhood", len(pieces), threshold)
    points, shares = zip(*sorted(pieces)[:threshold], strict=True)
    secret = to_bytes(reconstruct(points, shares))
    session = agreement.parameters.session
    if keys.commitment(session, owner, step, kind, 0, secret) != agreement.expected(owner, -1, step, kind):
        raise ViolationError(owner, f"sent {KINDS[kind]} shares that do not give the secret it committed to")
    return secret


def _remove_pair_masks(
    agreement: Agreement, total: Words, owner: int, step: int, secret: bytes, exposed: tuple[int, ...]
) -> None:
    """Remove the masks between a lost party and survivors, which nothing cancels."""
    bundle, session = agreement.by_sender[owner], agreement.parameters.session
    lock = ChaCha20Poly1305(keys.escrow_key(secret, step))
    for peer in exposed:
        start = LOCKED * (len(bundle.recipients) * step + bisect_left(bundle.recipients, peer))
        try:
            key = lock.decrypt(
                escrow_nonce(peer), bundle.escrow[start : start + LOCKED], escrow_data(session, owner, step)
            )
        except InvalidTag as error:
            raise ViolationError(owner, f"locked away another key than that of its mask with party {peer}") from error
        # The survivor added the stream if the lost party's number is the higher one.
        (subtract_stream if owner > peer else add_stream)(total, key)


def _by_sender(parameters: RoundParameters, messages: Iterable[_Sent], allowed: Iterable[int]) -> dict[int, _Sent]:
    """Return messages by sender, in increasing order, each of this session and of a party that may send one."""
    session, senders = parameters.session, allowed if isinstance(allowed, (range, Mapping)) else set(allowed)
    received: dict[int, _Sent] = {}
    for message in messages:
        if message.sender not in senders:
            raise ViolationError(message.sender, f"sent a {type(message).__name__} although it is not in this round")
        if message.session != session:
            raise ViolationError(message.sender, f"sent a {type(message).__name__} of another session: replayed")
        if message.sender in received:
            raise ViolationError(message.sender, f"sent two messages of the kind {type(message).__name__}")
        received[message.sender] = message
    return dict(sorted(received.items()))


def _require_quorum(parameters: RoundParameters, stage: str, remaining: int) -> None:
    if remaining < parameters.tolerance.quorum:
        raise TooFewPartiesError(stage, remaining, parameters.tolerance.quorum)
