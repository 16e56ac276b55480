"""What the server does in a round: it sees messages only, and says who of the senders broke the protocol.

Every function is pure. What has to be stored between two of them is their result: :class:`Roster`, :class:`Agreement`,
:class:`MaskedBlock`, and before anything is unmasked the :class:`SurvivorSet`.

A message that breaks the protocol raises a :class:`~dpalgos.secure.primitives.ViolationError` naming its sender. The
caller may leave that message out and call again: the sender then counts as lost.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
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
    OPENED,
    SEALED,
    SELF,
    Advertisement,
    ByParty,
    Delivery,
    Digest,
    Introduction,
    MaskedVector,
    MaskRequest,
    Number,
    Parties,
    RoundParameters,
    ShareBundle,
    UnmaskRequest,
    UnmaskResponse,
    Wire,
    numbers_digest,
    of_step,
    point,
)
from dpalgos.secure.party import escrow_data, escrow_nonce
from dpalgos.secure.primitives import (
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
from dpalgos.secure.tolerance import SparseGraph

_Sent = TypeVar("_Sent", Advertisement, ShareBundle, MaskedVector, UnmaskResponse)


def neighbourhoods(members: tuple[int, ...], graph: SparseGraph | None, seed: bytes) -> dict[int, tuple[int, ...]]:
    """Return everybody's neighbours in one session, in increasing order; the same for all who know the roster.

    Parameters
    ----------
    members : tuple of int
        The parties that advertised a key, in increasing order.
    graph : SparseGraph or None
        None: everybody is everybody's neighbour.
    seed : bytes
        Public, 32 bytes, fixed only when the roster is (its digest), so that nobody's place was known before.
    """
    if graph is None:
        return {party: tuple(member for member in members if member != party) for party in members}
    words = np.frombuffer(keys.keystream(seed, 8 * len(members)), dtype="<u8")
    order = [members[place] for place in np.argsort(words, kind="stable")]
    reach = range(-(graph.degree // 2), graph.degree // 2 + 1)
    around = ({order[(place + far) % len(order)] for far in reach} for place in range(len(order)))
    return {party: tuple(sorted(near - {party})) for party, near in zip(order, around, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Roster(Wire):
    """After round 1: who advertised which key.

    Parameters
    ----------
    parameters : RoundParameters
    public_keys : dict
        By party.
    """

    parameters: RoundParameters
    public_keys: ByParty[Digest]

    @cached_property
    def neighbours(self) -> Mapping[int, tuple[int, ...]]:
        """Who masks with whom; in a sparse graph drawn from the digest of this roster, bound to its purpose."""
        seed = hashlib.sha256(keys.context("order", self.encode())).digest()
        return neighbourhoods(tuple(self.public_keys), self.parameters.graph, seed)


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
        return tuple(peer for peer in self.by_sender[party].ciphertexts if peer in self.by_sender)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedBlock(Wire):
    """Round 3: the sum of the masked vectors that arrived.

    Parameters
    ----------
    session : bytes
    step : int
    digests : dict
        Of each sender's words.
    words : bytes
        Their sum modulo 2^64, little-endian.
    """

    session: Digest
    step: Number
    digests: ByParty[Digest]
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

    session: Digest
    step: Number
    survivors: Parties
    vectors: Digest

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
    public_keys = {sender: message.public_key for sender, message in received.items()}
    return Roster(parameters=parameters, public_keys=public_keys)


def introduce(roster: Roster, party: int) -> Introduction:
    """Round 1: return what a party is told of its neighbours."""
    public_keys = {peer: roster.public_keys[peer] for peer in roster.neighbours[party]}
    return Introduction(session=roster.parameters.session, recipient=party, public_keys=public_keys)


def collect_shares(roster: Roster, messages: Iterable[ShareBundle]) -> Agreement:
    """Round 2: return the agreement of all parties whose shares arrived.

    Raises
    ------
    ViolationError
        Naming the sender of a bundle for the wrong neighbours or of the wrong size.
    TooFewPartiesError
        If fewer than N - dropouts sent one.
    """
    parameters, steps = roster.parameters, roster.parameters.steps
    received = _by_sender(parameters, messages, roster.public_keys)
    for sender, bundle in received.items():
        near = roster.neighbours[sender]
        of_parties = (
            (bundle.ciphertexts, near, SEALED(steps)),
            (bundle.commitments, tuple(sorted((*near, sender))), OPENED(steps)),
            (bundle.escrow, near, LOCKED * steps),
        )
        if any(tuple(parts) != parties for parts, parties, _ in of_parties):
            raise ViolationError(sender, "sent shares for other parties than its neighbours")
        if len(bundle.secrets) != OPENED(steps) or any(
            len(part) != size for parts, _, size in of_parties for part in parts.values()
        ):
            raise ViolationError(sender, "sent shares, commitments or locks of the wrong length")
    _require_quorum(parameters, "secrets were shared", len(received))
    return Agreement(roster=roster, bundles=tuple(received.values()))


def deliver(agreement: Agreement, party: int) -> Delivery:
    """Round 2: return what a party is sent of its neighbours' shares."""
    sent = {owner: agreement.by_sender[owner] for owner in agreement.neighbours(party)}
    return Delivery(
        session=agreement.parameters.session,
        recipient=party,
        ciphertexts={owner: bundle.ciphertexts[party] for owner, bundle in sent.items()},
        commitments={owner: bundle.commitments[party] for owner, bundle in sent.items()},
    )


def request_masking(agreement: Agreement, step: int, party: int) -> MaskRequest:
    """Round 3: return what a party is asked; with the session's first step, its neighbours' shares."""
    delivery = deliver(agreement, party) if step == 0 else None
    return MaskRequest(session=agreement.parameters.session, recipient=party, step=step, delivery=delivery)


def add_masked(agreement: Agreement, step: int, messages: Iterable[MaskedVector]) -> MaskedBlock:
    """Round 3: return the sum of the masked vectors, which are not kept: memory does not grow with their number.

    Raises
    ------
    ViolationError
        Naming the sender of a vector of another session, step or length, or of a second one.
    """
    parameters = agreement.parameters
    total: Words = np.zeros(parameters.length, dtype="<u8")
    digests = {}
    for message in _each_once(parameters, messages, agreement.by_sender):
        sender, words = message.sender, message.words
        if message.step != step:
            raise ViolationError(
                sender, f"sent its vector of step {message.step} in step {step}: replayed or reordered"
            )
        if len(words) != 8 * parameters.length:
            raise ViolationError(
                sender, f"sent {len(words)} bytes; a vector of {parameters.length} numbers has {8 * parameters.length}"
            )
        np.add(total, np.frombuffer(words, dtype="<u8"), out=total)
        digests[sender] = hashlib.sha256(words).digest()
    return MaskedBlock(
        session=parameters.session, step=step, digests=dict(sorted(digests.items())), words=total.tobytes()
    )


def _survivors_of(block: MaskedBlock) -> SurvivorSet:
    vectors = hashlib.sha256(b"".join(block.digests.values())).digest()
    return SurvivorSet(session=block.session, step=block.step, survivors=tuple(block.digests), vectors=vectors)


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
    _require_quorum(parameters, "vectors were masked", len(block.digests))
    fixed = _survivors_of(block)
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
    if _survivors_of(block) != survivors:
        raise RepeatedUseError("the masked vectors are not those that the survivor set was fixed on")
    received = _by_sender(parameters, messages, survivors.alive)
    alive = survivors.alive
    pieces: dict[int, list[tuple[int, int]]] = {}
    for sender, message in received.items():
        _check_response(agreement, survivors, message)
        for owner, returned in message.shares.items():
            share = int.from_bytes(returned, "big")
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
    near = {sender, *agreement.neighbours(sender)}
    for owner, share in message.shares.items():
        if owner not in near:
            raise ViolationError(sender, f"returned a share of party {owner} that it cannot hold")
        if int.from_bytes(share, "big") >= PRIME:
            raise ViolationError(sender, f"returned a share of party {owner} that is not a field element")
        kind = SELF if owner in survivors.alive else ESCROW
        expected = of_step(agreement.by_sender[owner].commitments[sender], step, kind)
        if keys.commitment(session, owner, step, kind, point(sender), share) != expected:
            raise ViolationError(sender, f"returned a wrong {KINDS[kind]} share of party {owner}")


def _open(agreement: Agreement, owner: int, step: int, kind: int, pieces: Sequence[tuple[int, int]]) -> bytes:
    """Return a secret from the shares of its holders."""
    threshold = agreement.parameters.threshold
    if len(pieces) < threshold:
        raise TooFewPartiesError("shares were returned to a neighbourhood", len(pieces), threshold)
    points, shares = zip(*sorted(pieces)[:threshold], strict=True)
    secret = to_bytes(reconstruct(points, shares))
    session = agreement.parameters.session
    if keys.commitment(session, owner, step, kind, 0, secret) != of_step(
        agreement.by_sender[owner].secrets, step, kind
    ):
        raise ViolationError(owner, f"sent {KINDS[kind]} shares that do not give the secret it committed to")
    return secret


def _remove_pair_masks(
    agreement: Agreement, total: Words, owner: int, step: int, secret: bytes, exposed: tuple[int, ...]
) -> None:
    """Remove the masks between a lost party and survivors, which nothing cancels."""
    bundle, session = agreement.by_sender[owner], agreement.parameters.session
    lock = ChaCha20Poly1305(keys.escrow_key(secret, step))
    for peer in exposed:
        locked = bundle.escrow[peer][LOCKED * step : LOCKED * (step + 1)]
        try:
            key = lock.decrypt(escrow_nonce(peer), locked, escrow_data(session, owner, step))
        except InvalidTag as error:
            raise ViolationError(owner, f"locked away another key than that of its mask with party {peer}") from error
        # The survivor added the stream if the lost party's number is the higher one.
        (subtract_stream if owner > peer else add_stream)(total, key)


def _each_once(parameters: RoundParameters, messages: Iterable[_Sent], allowed: Container[int]) -> Iterator[_Sent]:
    """Yield the messages as they come, each checked to be the only one of a party of this session."""
    seen: set[int] = set()
    for message in messages:
        sender, kind = message.sender, type(message).__name__
        if sender not in allowed:
            raise ViolationError(sender, f"sent a {kind} although it is not in this round")
        if message.session != parameters.session:
            raise ViolationError(sender, f"sent a {kind} of another session: replayed")
        if sender in seen:
            raise ViolationError(sender, f"sent two messages of the kind {kind}")
        seen.add(sender)
        yield message


def _by_sender(parameters: RoundParameters, messages: Iterable[_Sent], allowed: Container[int]) -> dict[int, _Sent]:
    return dict(sorted((message.sender, message) for message in _each_once(parameters, messages, allowed)))


def _require_quorum(parameters: RoundParameters, stage: str, remaining: int) -> None:
    if remaining < parameters.tolerance.quorum:
        raise TooFewPartiesError(stage, remaining, parameters.tolerance.quorum)
