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

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpalgos.errors import ParameterError
from dpalgos.rows import Ints
from dpalgos.secure import primitives as keys
from dpalgos.secure.messages import (
    ESCROW,
    KINDS,
    OPENED,
    SEALED,
    SELF,
    Advertisement,
    ByParty,
    Delivery,
    Digest,
    Introduction,
    MaskedVector,
    Number,
    RoundParameters,
    ShareBundle,
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
            raise ParameterError(f"a party's seed is {KEY} fresh random bytes")

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
    require_for(state, introduction.session, introduction.recipient)
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
            for holder, value in zip(holders, split(secret, parameters.threshold, points, randomness), strict=True):
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
    require_for(state, delivery.session, delivery.recipient)
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
            f"a vector of {vector.size} numbers of type {vector.dtype}; this session adds {parameters.length} of int64"
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
    require_for(state, request.session, request.recipient)
    step = request.step
    if step not in state.masked:
        raise ViolationError(None, f"asked party {party} to unmask step {step}, which it has not masked")
    digest = hashlib.sha256(request.encode()).digest()
    if state.unmasked.get(step, digest) != digest:
        raise RepeatedUseError(
            f"party {party} refuses: it has already unmasked step {step} of {parameters.identity!r} for another "
            "survivor set; a second one would reveal single inputs. Repeat the round under a new identity"
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


def _has_received(state: PartyState) -> bool:
    return len(state.held) > 1
