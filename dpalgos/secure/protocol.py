"""Steps of the secure-aggregation protocol: pure functions of messages, and of states stored before one leaves.

The four rounds of a party are :func:`advertise`, :func:`share` (with :func:`receive`), :func:`mask` and
:func:`unmask`; the first two are done once a session, the last two once a step.

What the server sees are messages only, and it says who of the senders broke the protocol. What has to be stored between
two of its functions is their result: :class:`AdvertisedKeys`, :class:`Agreement`, :class:`MaskedBlock`, and before
anything is unmasked the :class:`SurvivorSet`. A message that breaks the protocol raises a
:class:`~dpalgos.secure.primitives.ViolationError` naming its sender. The caller may leave that message out and call
again: the sender then counts as lost.

One key agreement, many steps
-----------------------------
In the protocol of Bonawitz et al. a lost party's key-agreement key is reconstructed. That opens its pair masks of
*all* steps, and of the earlier ones, which it survived, its own mask is open already: its inputs would be revealed.
Here nothing that is ever opened reaches beyond its step:

- For every step s a party makes two independent secrets from its seed by HKDF, b(s) and q(s), and Shamir-shares both,
  with independent polynomials. b(s) is the key of its own mask in step s.
- Its mask with a neighbour j in step s has the key k_j(s), which HKDF derives from the pair's shared key and s. The
  party locks each k_j(s) under q(s) (authenticated encryption) and leaves the locks with the server: the *escrow*.
- After step s the server is given b(s) of the survivors, or q(s) of the lost ones, from which it gets k_j(s) of their
  masks with survivors. For one party and one step an honest party gives a share of one of the two only.

What the server and colluders learn from step s are thus keys that are outputs of HKDF at inputs holding s, and shares
of independent polynomials below their threshold. Under the pseudo-randomness of HKDF they are independent of
everything used in other steps, so by a hybrid over the steps each step is as secure as a separate session: given
what was opened, the masked vectors are uniform subject to their sum. A party lost in one step may take part in the
next. A vector that arrives after the survivors were fixed stays hidden by b(s), which is then never opened.

What must be stored, and when
-----------------------------
Each function that returns a new state returns it with the message it allows. The caller stores the state *before* it
sends the message. A state that says that step s was masked refuses to mask another vector in it (two vectors under
one mask reveal their difference), and one that says it was unmasked refuses another survivor set (which reveals
single inputs). Repeating the same request repeats the same message, so a retry is safe. A party whose state is lost
is lost for the session; its seed is never made again.

References
----------
Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, figure 4 (honest but
curious); Bell et al., CCS 2020 (sparse graphs). For keys of single steps under one agreement compare Ma, Woods, Angel,
Polychroniadou, Rabin, "Flamingo: multi-round single-server secure aggregation", S&P 2023.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpalgos.parameters import ParameterError
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
    SparseGraph,
    ToParty,
    ToServer,
    UnmaskRequest,
    UnmaskResponse,
    Wire,
    numbers_digest,
    of_step,
    point,
)
from dpalgos.secure.primitives import (
    ELEMENT,
    KEY,
    PRIME,
    MessageError,
    RepeatedUseError,
    TooFewPartiesError,
    ViolationError,
    Words,
    add_stream,
    keystream,
    reconstruct,
    split,
    subtract_stream,
    to_bytes,
    to_integers,
    to_words,
)

_ZERO_NONCE = bytes(12)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyState(Wire):
    """All that a party has to remember of a session; secret.

    Parameters
    ----------
    parameters : RoundParameters
    party : int
    seed : bytes
        32 fresh random bytes of this session; everything secret is derived from it.
    roots : dict
        The key shared with each neighbour; empty before the introduction.
    held : dict
        By owner, the shares of all steps and both kinds that it holds: of its own secrets, and after the delivery of
        those of each neighbour that takes part.
    masked : dict
        For each step whose masks are used, the digests of the masked vector and of the vector without its masks.
    unmasked : dict
        For each step for which it has answered, the digest of the request.
    """

    parameters: RoundParameters
    party: Number
    seed: Digest
    roots: ByParty[Digest] = field(default_factory=dict)
    held: ByParty[bytes] = field(default_factory=dict)
    masked: dict[Number, tuple[Digest, Digest]] = field(default_factory=dict)
    unmasked: dict[Number, Digest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.party < self.parameters.tolerance.parties:
            raise ParameterError(f"party is {self.party}; it must be from 0 to {self.parameters.tolerance.parties - 1}")
        if len(self.seed) != KEY:
            raise ParameterError(f"give {KEY} fresh random bytes as a party's seed")

    def __repr__(self) -> str:
        return f"PartyState(party={self.party}, identity={self.parameters.identity!r})"


def join(parameters: RoundParameters, party: int, seed: bytes) -> PartyState:
    """Return the state with which a party enters a session.

    Parameters
    ----------
    parameters : RoundParameters
    party : int
        Its number, from 0 to N - 1.
    seed : bytes
        32 fresh bytes from a cryptographic generator, used for this session only. Must not be derived from anything
        that is there again after a crash: a party that lost its state must not be able to use the same masks twice.
    """
    return PartyState(parameters=parameters, party=party, seed=seed)


def advertise(state: PartyState) -> Advertisement:
    """Round 1: return the party's public key."""
    session = state.parameters.session
    public = keys.public_key(state.seed, session, state.party)
    return Advertisement(session=session, sender=state.party, public_key=public)


def share(state: PartyState, introduction: Introduction) -> tuple[PartyState, ShareBundle]:
    """Round 2: agree on keys with the neighbours and share this party's secrets of all steps.

    Raises
    ------
    ViolationError
        If the introduction is not for this party and session, names impossible neighbours or a bad key.
    TooFewPartiesError
        If too few neighbours are introduced to open a secret later.
    RepeatedUseError
        If other neighbours were introduced before.
    """
    parameters, session, party = state.parameters, state.parameters.session, state.party
    publics = introduction.public_keys
    require_for(state, introduction)
    if any(not 0 <= peer < parameters.tolerance.parties or peer == party for peer in publics):
        raise ViolationError(None, "introduced a party that does not exist, or a party to itself")
    own_public = keys.public_key(state.seed, session, party)
    if len({own_public, *publics.values()}) != len(publics) + 1:
        raise ViolationError(None, "introduced two parties with the same public key")
    if len(publics) + 1 < parameters.threshold:
        raise TooFewPartiesError("keys were advertised", len(publics) + 1, parameters.threshold)
    private = keys.private_key(state.seed, session, party)
    roots = {
        peer: keys.pair_root(private, session, party, peer, own_public, public) for peer, public in publics.items()
    }
    if state.roots and state.roots != roots:
        raise RepeatedUseError(f"party {party} was already introduced to other neighbours or keys in this session")

    holders = sorted((*roots, party))
    points = [point(holder) for holder in holders]
    secrets: list[bytes] = []
    # They grow by one step at a time, and but for the escrow by one kind.
    commitments: dict[int, list[bytes]] = {holder: [] for holder in holders}
    shares: dict[int, list[bytes]] = {holder: [] for holder in holders}
    escrow: dict[int, list[bytes]] = {peer: [] for peer in roots}
    for step in range(parameters.steps):
        for kind in KINDS:
            secret = keys.step_secret(state.seed, session, party, KINDS[kind], step)
            polynomial = keys.party_key(state.seed, session, party, "polynomial", step, kind)
            randomness = keystream(polynomial, ELEMENT * (parameters.threshold - 1))
            secrets.append(keys.commitment(session, party, step, kind, 0, to_bytes(secret)))
            for holder, value in zip(holders, split(secret, points, randomness), strict=True):
                shares[holder].append(to_bytes(value))
                digest = keys.commitment(session, party, step, kind, point(holder), to_bytes(value))
                commitments[holder].append(digest)
            if kind == ESCROW:
                lock = ChaCha20Poly1305(keys.escrow_key(to_bytes(secret), step))
                for peer, root in roots.items():
                    data = escrow_data(session, party, step)
                    escrow[peer].append(lock.encrypt(escrow_nonce(peer), keys.mask_key(root, step), data))
    bundle = ShareBundle(
        session=session,
        sender=party,
        ciphertexts={
            peer: ChaCha20Poly1305(keys.channel_key(root, party, peer)).encrypt(
                _ZERO_NONCE, b"".join(shares[peer]), channel_data(session, party, peer)
            )
            for peer, root in roots.items()
        },
        secrets=b"".join(secrets),
        commitments={holder: b"".join(digests) for holder, digests in commitments.items()},
        escrow={peer: b"".join(locked) for peer, locked in escrow.items()},
    )
    # What it holds of others' secrets came after this, where it is asked once more.
    return replace(state, roots=roots, held=state.held or {party: b"".join(shares[party])}), bundle


def receive(state: PartyState, delivery: Delivery) -> PartyState:
    """Round 2, second half: decrypt and check the neighbours' shares.

    Raises
    ------
    ViolationError
        Naming the neighbour whose shares do not decrypt or do not match its commitments, or the server.
    TooFewPartiesError
        If too few neighbours take part.
    RepeatedUseError
        If another delivery came before.
    """
    parameters, session, party = state.parameters, state.parameters.session, state.party
    require_for(state, delivery)
    ciphertexts, steps = delivery.ciphertexts, parameters.steps
    if not set(ciphertexts) <= set(state.roots):
        raise ViolationError(None, "delivered shares of a party that was not introduced")
    if len(ciphertexts) + 1 < parameters.threshold:
        raise TooFewPartiesError("secrets were shared", len(ciphertexts) + 1, parameters.threshold)
    lengths = {len(one) for one in ciphertexts.values()}, {len(one) for one in delivery.commitments.values()}
    if tuple(delivery.commitments) != tuple(ciphertexts) or lengths != ({SEALED(steps)}, {OPENED(steps)}):
        raise ViolationError(None, "delivered shares of the wrong length")
    held = {party: state.held[party]}
    for owner, ciphertext in ciphertexts.items():
        opened = ChaCha20Poly1305(keys.channel_key(state.roots[owner], owner, party))
        try:
            shares = opened.decrypt(_ZERO_NONCE, ciphertext, channel_data(session, owner, party))
        except InvalidTag as error:
            raise ViolationError(owner, f"its shares for party {party} do not decrypt: altered or replayed") from error
        contents = b"".join(
            keys.commitment(session, owner, step, kind, point(party), of_step(shares, step, kind))
            for step in range(steps)
            for kind in KINDS
        )
        if contents != delivery.commitments[owner]:
            raise ViolationError(owner, f"its shares for party {party} do not match its commitments")
        held[owner] = shares
    held = dict(sorted(held.items()))
    if _has_received(state) and state.held != held:
        raise RepeatedUseError(f"party {party} already received other shares in this session")
    return replace(state, held=held)


def mask(state: PartyState, step: int, vector: Ints) -> tuple[PartyState, MaskedVector]:
    """Round 3: return contribution plus noise share under this step's masks.

    Parameters
    ----------
    state : PartyState
    step : int
        From 0 to steps - 1.
    vector : array of int64
        The contribution with the party's noise share added; as many numbers as the session's length.

    Raises
    ------
    ParameterError
        For a wrong step, length or type.
    RepeatedUseError
        If the step's masks have covered another vector before.
    """
    parameters = state.parameters
    if not 0 <= step < parameters.steps:
        raise ParameterError(
            f"step is {step}; this session has steps 0 to {parameters.steps - 1}: start another session for more"
        )
    if vector.dtype != np.int64 or vector.size != parameters.length:
        raise ParameterError(
            f"a vector of {vector.size} numbers of type {vector.dtype}; this session needs {parameters.length} "
            "numbers of type int64"
        )
    if not _has_received(state):
        raise ViolationError(None, f"asked party {state.party} for a masked vector before shares were delivered")
    words = to_words(vector)
    secret = keys.step_secret(state.seed, parameters.session, state.party, KINDS[SELF], step)
    add_stream(words, to_bytes(secret))
    for peer in state.held:
        if peer != state.party:
            # The pair's two signs are opposite, so that the mask leaves the sum.
            (add_stream if peer > state.party else subtract_stream)(words, keys.mask_key(state.roots[peer], step))
    packed = words.tobytes()
    used = hashlib.sha256(packed).digest(), digest_of(vector)
    if state.masked.get(step, used) != used:
        raise RepeatedUseError(
            f"party {state.party} has already used its masks of step {step} for another vector; "
            "repeat the round under a new identity"
        )
    message = MaskedVector(session=parameters.session, sender=state.party, step=step, words=packed)
    return replace(state, masked={**state.masked, step: used}), message


def unmask(state: PartyState, request: UnmaskRequest) -> tuple[PartyState, UnmaskResponse]:
    """Round 4: open own masks of the survivors and pair masks of the lost, for this step and this survivor set only.

    Raises
    ------
    RepeatedUseError
        If this party has answered for the step with another survivor set.
    TooFewPartiesError
        If the survivor set is smaller than the round tolerates.
    ViolationError
        If the request is not for this party, session and a step it has masked, or does not divide its neighbours.
    """
    parameters, party = state.parameters, state.party
    require_for(state, request)
    step = request.step
    if step not in state.masked:
        raise ViolationError(None, f"asked party {party} to unmask step {step}, which it has not masked")
    digest = hashlib.sha256(request.encode()).digest()
    if state.unmasked.get(step, digest) != digest:
        raise RepeatedUseError(
            f"party {party} refuses: it already unmasked step {step} of {parameters.identity!r} for another survivor "
            "set, and a second set would reveal single inputs. Repeat the round under a new identity"
        )
    if request.count < parameters.tolerance.quorum:
        raise TooFewPartiesError("vectors were masked", request.count, parameters.tolerance.quorum)
    if sorted(request.survivors + request.dropped) != list(state.held) or party not in request.survivors:
        raise ViolationError(None, f"sent party {party} a survivor set that does not divide it and its neighbours")
    if len(request.survivors) > request.count:
        raise ViolationError(None, f"sent party {party} more survivors than it announced")
    if len(request.survivors) < parameters.threshold:
        raise TooFewPartiesError("vectors were masked in a neighbourhood", len(request.survivors), parameters.threshold)
    if parameters.graph is None and request.numbers != numbers_digest(request.survivors):
        raise ViolationError(None, f"sent party {party} the digest of other survivors than it named")
    kinds = {**dict.fromkeys(request.survivors, SELF), **dict.fromkeys(request.dropped, ESCROW)}
    response = UnmaskResponse(
        session=parameters.session,
        sender=party,
        step=step,
        survivor_set=request.survivor_set,
        shares={owner: of_step(shares, step, kinds[owner]) for owner, shares in state.held.items()},
    )
    return replace(state, unmasked={**state.unmasked, step: digest}), response


def digest_of(vector: Ints) -> bytes:
    """Return what a party remembers a vector by."""
    return hashlib.sha256(vector.tobytes()).digest()


def require_for(state: PartyState, message: ToParty) -> None:
    """Refuse a message of another session or for another party.

    Raises
    ------
    ViolationError
        By the server.
    """
    if message.session != state.parameters.session:
        raise ViolationError(None, f"sent party {state.party} a message of another session")
    if message.recipient != state.party:
        raise ViolationError(None, f"sent party {state.party} a message that is for party {message.recipient}")


def escrow_data(session: bytes, owner: int, step: int) -> bytes:
    """Return what an escrow lock is bound to."""
    return keys.context("escrow", session, owner, step)


def channel_data(session: bytes, sender: int, recipient: int) -> bytes:
    """Return what encrypted shares are bound to."""
    return keys.context("shares", session, sender, recipient)


def escrow_nonce(peer: int) -> bytes:
    """Return the nonce of one pair's lock; each escrow key locks every neighbour's mask key once."""
    return peer.to_bytes(12, "big")


def _has_received(state: PartyState) -> bool:
    return len(state.held) > 1


_Sent = TypeVar("_Sent", bound=ToServer)


def neighbourhoods(members: tuple[int, ...], graph: SparseGraph | None, seed: bytes) -> dict[int, tuple[int, ...]]:
    """Return each party's neighbours in one session, in increasing order; all who know the advertised keys agree.

    Parameters
    ----------
    members : tuple of int
        The parties that advertised a key, in increasing order.
    graph : SparseGraph or None
        None: all parties are neighbours of each other.
    seed : bytes
        Public, 32 bytes, fixed only when these keys are (its digest), so that no party's place was known before.
    """
    if graph is None:
        return {party: tuple(member for member in members if member != party) for party in members}
    words = np.frombuffer(keys.keystream(seed, 8 * len(members)), dtype="<u8")
    order = [members[place] for place in np.argsort(words, kind="stable")]
    reach = range(-(graph.degree // 2), graph.degree // 2 + 1)
    around = ({order[(place + far) % len(order)] for far in reach} for place in range(len(order)))
    return {party: tuple(sorted(near - {party})) for party, near in zip(order, around, strict=True)}


@dataclass(frozen=True, kw_only=True)
class AdvertisedKeys(Wire):
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
        """The parties that mask with each other; the digest of these keys draws a sparse graph, for its purpose."""
        seed = hashlib.sha256(keys.context("order", self.encode())).digest()
        return neighbourhoods(tuple(self.public_keys), self.parameters.graph, seed)


@dataclass(frozen=True, kw_only=True)
class Agreement(Wire):
    """After round 2: the parties that take part, with what they left with the server.

    Parameters
    ----------
    advertised_keys : AdvertisedKeys
    bundles : tuple of ShareBundle
        In increasing order of the senders.
    """

    advertised_keys: AdvertisedKeys
    bundles: tuple[ShareBundle, ...]

    @property
    def parameters(self) -> RoundParameters:
        """The session's parameters."""
        return self.advertised_keys.parameters

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
    """Parties whose vectors a step's sum holds: fixed and stored before anything is unmasked, and never again.

    The key of a round is its session and step. Store this object under that key with a write that fails if there is
    one, and go on with the stored one, for any outcome; the parties' own states refuse a second one as well.

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
        """Digest by which requests and responses refer to it."""
        return hashlib.sha256(self.encode()).digest()

    @cached_property
    def numbers(self) -> bytes:
        """Digest of the survivors' numbers, which parties remember."""
        return numbers_digest(self.survivors)

    @cached_property
    def alive(self) -> frozenset[int]:
        """The survivors, for looking them up."""
        return frozenset(self.survivors)


def collect_advertisements(parameters: RoundParameters, messages: Iterable[Advertisement]) -> AdvertisedKeys:
    """Round 1: return all keys that arrived.

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
    return AdvertisedKeys(parameters=parameters, public_keys=public_keys)


def introduce(advertised_keys: AdvertisedKeys, party: int) -> Introduction:
    """Round 1: return what a party is told of its neighbours."""
    public_keys = {peer: advertised_keys.public_keys[peer] for peer in advertised_keys.neighbours[party]}
    return Introduction(session=advertised_keys.parameters.session, recipient=party, public_keys=public_keys)


def collect_shares(advertised_keys: AdvertisedKeys, messages: Iterable[ShareBundle]) -> Agreement:
    """Round 2: return the agreement of all parties whose shares arrived.

    Raises
    ------
    ViolationError
        Naming the sender of a bundle for the wrong neighbours or of the wrong size.
    TooFewPartiesError
        If fewer than N - dropouts sent one.
    """
    parameters, steps = advertised_keys.parameters, advertised_keys.parameters.steps
    received = _by_sender(parameters, messages, advertised_keys.public_keys)
    for sender, bundle in received.items():
        near = advertised_keys.neighbours[sender]
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
    return Agreement(advertised_keys=advertised_keys, bundles=tuple(received.values()))


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
        raise MessageError("the block of masked vectors belongs to another session")
    _require_quorum(parameters, "vectors were masked", len(block.digests))
    fixed = _survivors_of(block)
    if stored is not None and stored != fixed:
        raise RepeatedUseError(
            f"the survivors of step {block.step} of {parameters.identity!r} are already fixed, and another set would "
            "reveal single inputs. Continue with the stored set and vectors, or repeat the round under a new identity"
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
        raise RepeatedUseError(
            "the masked vectors differ from those for which the survivor set was fixed; repeat the round under a new "
            "identity"
        )
    alive = survivors.alive
    received = _by_sender(parameters, messages, alive)
    pieces: dict[int, list[tuple[int, int]]] = {}
    for sender, message in received.items():
        _check_response(agreement, survivors, message)
        for owner, returned in message.shares.items():
            pieces.setdefault(owner, []).append((point(sender), int.from_bytes(returned, "big")))
    _require_quorum(parameters, "the sum was unmasked", len(received))

    total: Words = np.frombuffer(block.words, dtype="<u8").copy()
    for owner in agreement.by_sender:
        held = pieces.get(owner, [])
        if owner in alive:
            subtract_stream(total, _open(agreement, owner, step, SELF, held))
        elif exposed := [peer for peer in agreement.neighbours(owner) if peer in alive]:
            secret = _open(agreement, owner, step, ESCROW, held)
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
        raise ViolationError(owner, f"sent {KINDS[kind]} shares that do not match its commitment")
    return secret


def _remove_pair_masks(
    agreement: Agreement, total: Words, owner: int, step: int, secret: bytes, exposed: Iterable[int]
) -> None:
    """Remove the masks between a lost party and survivors, which nothing cancels."""
    bundle, session = agreement.by_sender[owner], agreement.parameters.session
    lock = ChaCha20Poly1305(keys.escrow_key(secret, step))
    for peer in exposed:
        locked = bundle.escrow[peer][LOCKED * step : LOCKED * (step + 1)]
        try:
            key = lock.decrypt(escrow_nonce(peer), locked, escrow_data(session, owner, step))
        except InvalidTag as error:
            raise ViolationError(
                owner, f"committed to a different key than that of its mask with party {peer}"
            ) from error
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
