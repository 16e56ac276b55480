"""What a party does in a round: messages in, messages out, and a state to be stored before each message is sent.

The four rounds are :func:`advertise`, :func:`share` (with :func:`receive`), :func:`mask` and :func:`unmask`; the
first two are done once a session, the last two once a step.

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
everything used in other steps, so by a hybrid over the steps each step is as secure as a session of its own: given
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

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpalgos.errors import ParameterError
from dpalgos.rows import Ints
from dpalgos.secure import primitives as keys
from dpalgos.secure.messages import (
    ESCROW,
    KINDS,
    PAIR,
    SEALED,
    SELF,
    Advertisement,
    Delivery,
    Introduction,
    MaskedVector,
    RoundParameters,
    ShareBundle,
    UnmaskRequest,
    UnmaskResponse,
    numbers_digest,
    point,
)
from dpalgos.secure.primitives import (
    ELEMENT,
    KEY,
    MODULUS_BITS,
    RepeatedUseError,
    TooFewPartiesError,
    ViolationError,
    add_stream,
    keystream,
    split,
    subtract_stream,
    to_bytes,
    to_words,
)
from dpalgos.secure.wire import Wire

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
    neighbours : tuple of int
        Whom it was introduced to; empty before.
    roots : bytes
        The key shared with each neighbour, 32 bytes each.
    own_shares : bytes
        Its own points of its own secrets.
    owners : tuple of int
        Itself and the neighbours that take part, in increasing order; empty before the delivery.
    held : bytes
        For each owner and step, the shares of both kinds that it holds.
    masked_steps, masked : tuple of int, bytes
        Steps whose masks are used, with the digests of the masked vectors (32 bytes each).
    vectors : bytes
        For each of these steps, the digest of the vector without its masks.
    unmasked_steps, unmasked : tuple of int, bytes
        Steps for which it has answered, with the digests of the requests.
    """

    parameters: RoundParameters
    party: int
    seed: bytes
    neighbours: tuple[int, ...] = ()
    roots: bytes = b""
    own_shares: bytes = b""
    owners: tuple[int, ...] = ()
    held: bytes = b""
    masked_steps: tuple[int, ...] = ()
    masked: bytes = b""
    vectors: bytes = b""
    unmasked_steps: tuple[int, ...] = ()
    unmasked: bytes = b""

    def __post_init__(self) -> None:
        if not 0 <= self.party < self.parameters.tolerance.parties:
            raise ParameterError(f"party is {self.party}; it must be from 0 to {self.parameters.tolerance.parties - 1}")
        if type(self.seed) is not bytes or len(self.seed) != KEY:
            raise ParameterError(f"a party's seed is {KEY} fresh random bytes")

    def root(self, peer: int) -> bytes:
        """Return the key shared with a neighbour."""
        place = self.neighbours.index(peer)
        return self.roots[KEY * place : KEY * (place + 1)]

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
    neighbours = introduction.neighbours
    require_for(state, introduction.session, introduction.recipient)
    if any(not 0 <= peer < parameters.tolerance.parties or peer == party for peer in neighbours):
        raise ViolationError(None, "introduced a party that does not exist, or a party to itself")
    publics = [introduction.public_keys[KEY * i : KEY * (i + 1)] for i in range(len(neighbours))]
    own_public = keys.public_key(state.seed, session, party)
    if len({own_public, *publics}) != len(publics) + 1:
        raise ViolationError(None, "introduced two parties with the same public key")
    if len(neighbours) + 1 < parameters.threshold:
        raise TooFewPartiesError("keys were advertised", len(neighbours) + 1, parameters.threshold)
    private = keys.private_key(state.seed, session, party)
    roots = [
        keys.pair_root(private, session, party, peer, own_public, public)
        for peer, public in zip(neighbours, publics, strict=True)
    ]
    if state.neighbours and (state.neighbours, state.roots) != (neighbours, b"".join(roots)):
        raise RepeatedUseError(f"party {party} was already introduced to other neighbours or keys in this session")

    holders = sorted((*neighbours, party))
    points = [0, *(point(holder) for holder in holders)]
    steps = parameters.steps
    commitments: list[bytes] = []
    escrow: list[bytes] = []
    # shares[holder] grows by both kinds of share of one step at a time.
    shares: list[list[bytes]] = [[] for _ in holders]
    for step in range(steps):
        for kind in KINDS:
            secret = keys.step_secret(state.seed, session, party, KINDS[kind], step)
            polynomial = keys.party_key(state.seed, session, party, "polynomial", step, kind)
            randomness = keystream(polynomial, ELEMENT * (parameters.threshold - 1))
            values = [to_bytes(value) for value in split(secret, parameters.threshold, points[1:], randomness)]
            sealed_secret = to_bytes(secret)
            commitments += [
                keys.commitment(session, party, step, kind, place, value)
                for place, value in zip(points, (sealed_secret, *values), strict=True)
            ]
            for held, value in zip(shares, values, strict=True):
                held.append(value)
            if kind == ESCROW:
                lock = ChaCha20Poly1305(keys.escrow_key(sealed_secret, step))
                escrow += [
                    lock.encrypt(escrow_nonce(peer), keys.mask_key(root, step), escrow_data(session, party, step))
                    for peer, root in zip(neighbours, roots, strict=True)
                ]
    own = holders.index(party)
    ciphertexts = [
        ChaCha20Poly1305(keys.channel_key(root, party, peer)).encrypt(
            _ZERO_NONCE, b"".join(held), channel_data(session, party, peer)
        )
        for peer, root, held in zip(neighbours, roots, shares[:own] + shares[own + 1 :], strict=True)
    ]
    bundle = ShareBundle(
        session=session,
        sender=party,
        recipients=neighbours,
        ciphertexts=b"".join(ciphertexts),
        commitments=b"".join(commitments),
        escrow=b"".join(escrow),
    )
    return replace(state, neighbours=neighbours, roots=b"".join(roots), own_shares=b"".join(shares[own])), bundle


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
    require_for(state, delivery.session, delivery.recipient)
    owners, steps = delivery.owners, parameters.steps
    if not set(owners) <= set(state.neighbours):
        raise ViolationError(None, "delivered shares of a party that was not introduced")
    needed = parameters.threshold
    if len(owners) + 1 < needed:
        raise TooFewPartiesError("secrets were shared", len(owners) + 1, needed)
    sealed = SEALED(steps)
    per_owner = len(KINDS) * steps * KEY
    if len(delivery.ciphertexts) != sealed * len(owners) or len(delivery.commitments) != per_owner * len(owners):
        raise ViolationError(None, "delivered shares of the wrong length")
    held = {party: state.own_shares}
    for place, owner in enumerate(owners):
        ciphertext = delivery.ciphertexts[sealed * place : sealed * (place + 1)]
        opened = ChaCha20Poly1305(keys.channel_key(state.root(owner), owner, party))
        try:
            shares = opened.decrypt(_ZERO_NONCE, ciphertext, channel_data(session, owner, party))
        except InvalidTag as error:
            raise ViolationError(owner, f"its shares for party {party} do not decrypt: altered or replayed") from error
        expected = delivery.commitments[per_owner * place : per_owner * (place + 1)]
        contents = b"".join(
            keys.commitment(session, owner, step, kind, point(party), _share(shares, step, kind))
            for step in range(steps)
            for kind in KINDS
        )
        if contents != expected:
            raise ViolationError(owner, f"its shares for party {party} do not match its commitments")
        held[owner] = shares
    everyone = tuple(sorted(held))
    packed = b"".join(held[owner] for owner in everyone)
    if state.owners and (state.owners, state.held) != (everyone, packed):
        raise RepeatedUseError(f"party {party} already received other shares in this session")
    return replace(state, owners=everyone, held=packed)


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
    _require_step(parameters, step)
    if vector.dtype != np.int64 or vector.size != parameters.length:
        raise ParameterError(
            f"a vector of {vector.size} numbers of type {vector.dtype}; this session adds {parameters.length} of int64"
        )
    if not state.owners:
        raise ViolationError(None, f"asked party {state.party} for a masked vector before shares were delivered")
    words = to_words(vector)
    secret = keys.step_secret(state.seed, parameters.session, state.party, KINDS[SELF], step)
    add_stream(words, to_bytes(secret))
    for peer in state.owners:
        if peer != state.party:
            # The pair's two signs are opposite, so that the mask leaves the sum.
            (add_stream if peer > state.party else subtract_stream)(words, keys.mask_key(state.root(peer), step))
    packed = words.tobytes()
    digest = hashlib.sha256(packed).digest()
    message = MaskedVector(session=parameters.session, sender=state.party, step=step, bits=MODULUS_BITS, words=packed)
    before = _recorded(state.masked_steps, state.masked, step)
    if before == digest:
        return state, message
    if before is not None:
        raise RepeatedUseError(
            f"party {state.party} has already used its masks of step {step} for another vector; "
            "repeat the round under a new identity"
        )
    vectors = state.vectors + digest_of(vector)
    steps = (*state.masked_steps, step)
    return replace(state, masked_steps=steps, masked=state.masked + digest, vectors=vectors), message


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
    require_for(state, request.session, request.recipient)
    step = request.step
    if step >= parameters.steps or _recorded(state.masked_steps, state.masked, step) is None:
        raise ViolationError(None, f"asked party {party} to unmask step {step}, which it has not masked")
    digest = hashlib.sha256(request.encode()).digest()
    before = _recorded(state.unmasked_steps, state.unmasked, step)
    if before is not None and before != digest:
        raise RepeatedUseError(
            f"party {party} refuses: it has already unmasked step {step} of {parameters.identity!r} for another "
            "survivor set; a second one would reveal single inputs. Repeat the round under a new identity"
        )
    if request.count < parameters.tolerance.quorum:
        raise TooFewPartiesError("vectors were masked", request.count, parameters.tolerance.quorum)
    if sorted(request.survivors + request.dropped) != list(state.owners) or party not in request.survivors:
        raise ViolationError(None, f"sent party {party} a survivor set that does not divide it and its neighbours")
    if len(request.survivors) > request.count:
        raise ViolationError(None, f"sent party {party} more survivors than it announced")
    if len(request.survivors) < parameters.threshold:
        raise TooFewPartiesError("vectors were masked in a neighbourhood", len(request.survivors), parameters.threshold)
    if parameters.graph is None and request.numbers != numbers_digest(request.survivors):
        raise ViolationError(None, f"sent party {party} the digest of other survivors than it named")
    kinds = {**dict.fromkeys(request.survivors, SELF), **dict.fromkeys(request.dropped, ESCROW)}
    size = PAIR * parameters.steps
    shares = [
        _share(state.held[size * place : size * (place + 1)], step, kinds[owner])
        for place, owner in enumerate(state.owners)
    ]
    response = UnmaskResponse(
        session=parameters.session,
        sender=party,
        step=step,
        survivor_set=request.survivor_set,
        owners=state.owners,
        kinds=bytes(kinds[owner] for owner in state.owners),
        shares=b"".join(shares),
    )
    if before is not None:
        return state, response
    return replace(state, unmasked_steps=(*state.unmasked_steps, step), unmasked=state.unmasked + digest), response


def digest_of(vector: Ints) -> bytes:
    """Return what a party remembers a vector by."""
    return hashlib.sha256(vector.tobytes()).digest()


def vector_digest(state: PartyState, step: int) -> bytes:
    """Return the digest of the vector that a step's masks have covered.

    Raises
    ------
    ViolationError
        If none was masked.
    """
    digest = _recorded(state.masked_steps, state.vectors, step)
    if digest is None:
        raise ViolationError(None, f"asked party {state.party} of step {step}, which it has not masked")
    return digest


def require_for(state: PartyState, session: bytes, recipient: int) -> None:
    """Refuse a message of another session or for another party.

    Raises
    ------
    ViolationError
        By the server.
    """
    if session != state.parameters.session:
        raise ViolationError(None, f"sent party {state.party} a message of another session")
    if recipient != state.party:
        raise ViolationError(None, f"sent party {state.party} a message that is for party {recipient}")


def escrow_data(session: bytes, owner: int, step: int) -> bytes:
    """Return what an escrow lock is bound to."""
    return keys.context("escrow", session, owner, step)


def channel_data(session: bytes, sender: int, recipient: int) -> bytes:
    """Return what encrypted shares are bound to."""
    return keys.context("shares", session, sender, recipient)


def escrow_nonce(peer: int) -> bytes:
    """Return the nonce of one pair's lock; each escrow key locks every neighbour's mask key once."""
    return peer.to_bytes(12, "big")


def _share(shares: bytes, step: int, kind: int) -> bytes:
    start = PAIR * step + ELEMENT * kind
    return shares[start : start + ELEMENT]


def _recorded(steps: tuple[int, ...], digests: bytes, step: int) -> bytes | None:
    """Return the digest recorded for a step, None where there is none."""
    if step not in steps:
        return None
    place = steps.index(step)
    return digests[KEY * place : KEY * (place + 1)]


def _require_step(parameters: RoundParameters, step: int) -> None:
    if not 0 <= step < parameters.steps:
        raise ParameterError(
            f"step is {step}; this session has steps 0 to {parameters.steps - 1}: start another session for more"
        )
