"""Messages of secure aggregation, and the parameters that bind a round: plain values with one byte form each."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, ClassVar, Self, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from dpalgos.parameters import COUNT, NATURAL, Bounded, ParameterError
from dpalgos.secure.primitives import ELEMENT, KEY, MessageError
from dpalgos.sentences import coded


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance(Bounded):
    """The fault model of a round.

    Parameters
    ----------
    parties : int
        N, at least 2.
    dropouts : int
        D: how many of them may be lost at any point before the round ends. With more the round fails.
    colluders : int
        C: how many of them may pool all they know with each other and with the server.
    """

    parties: int = field(metadata=NATURAL)
    dropouts: int = field(default=0, metadata=NATURAL)
    colluders: int = field(default=0, metadata=NATURAL)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.unknown_shares < 1:
            raise ParameterError(
                f"with {self.parties} parties, tolerating {self.dropouts} dropouts and {self.colluders} colluders "
                "leaves no noise that is unknown to the adversary: parties - dropouts - max(colluders, 1) must be at "
                "least 1; tolerate fewer dropouts or colluders, or add parties"
            )

    @property
    def quorum(self) -> int:
        """Parties that must remain at the end, N - D; also the number of shares that open a secret.

        It exceeds the number of colluders, so they cannot open anything by themselves.
        """
        return self.parties - self.dropouts

    @property
    def unknown_shares(self) -> int:
        """Noise shares in every released sum that no adversary knows: N - D - max(C, 1).

        At least N - D parties' shares are in the sum. The C colluders know theirs; without colluders, the one party
        that looks at the result still knows its own. The remaining shares have to carry the whole guarantee.
        """
        return self.parties - self.dropouts - max(self.colluders, 1)

    @property
    def forces_one_survivor_set(self) -> bool:
        """Whether even a server that breaks the protocol cannot have two survivor sets unmasked for one step.

        Every opening needs N - D parties and every honest party answers once a step, so two openings need
        2 (N - D - C) honest answers from N - C honest parties: impossible where 2 (N - D) > N + C.
        """
        return 2 * self.quorum > self.parties + self.colluders

    def assumptions(self) -> tuple[str, ...]:
        """Return what a guarantee under secure aggregation assumes, as codes (:mod:`dpalgos.sentences`)."""
        return (
            coded(
                "colluders",
                parties=self.parties,
                colluders=self.colluders,
                quorum=self.quorum,
                unknown_shares=self.unknown_shares,
            ),
            coded("one-survivor-set" if self.forces_one_survivor_set else "same-survivor-set"),
            coded("secure-primitives"),
        )


FAILURE = 2.0**-40


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFailure:
    """Upper bounds on what can go wrong with a random sparse graph.

    Parameters
    ----------
    privacy : float
        Probability that some party's colluding neighbours reach the share threshold, or that the honest survivors
        are not connected: then the server could learn the sum of a part of them.
    completion : float
        Probability that, with as many dropouts as tolerated, some party's remaining neighbours cannot open its
        secret: then the round fails and nothing is revealed.
    """

    privacy: float
    completion: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseGraph:
    """A Harary graph over a random order of the parties: everyone's neighbours are the k/2 before and after it.

    Parameters
    ----------
    degree : int
        k, even.
    threshold : int
        Shares, out of k neighbours' and the owner's own, that open a secret.

    Notes
    -----
    Failure bound (:meth:`failure`), for C colluders and D dropouts fixed without looking at the random order:

    1. *Collusion.* The colluders among a party's k neighbours are hypergeometric; the round is over at the latest when
       N - D parties are left to draw from, so P <= N P(Hyp(N - D - 1, C, k) >= threshold), by a union over parties.
    2. *Connection.* Walk round the circle of parties: without k/2 consecutive losses every honest survivor's next
       one is its neighbour, so all are connected. A given run of k/2 consists of lost parties (C + D of N) with
       probability binom(C + D, k/2) / binom(N, k/2); the union over N runs gives the bound. (Parties that never
       turned up are out of the graph already, which only makes the fraction smaller.)
    3. *Completion.* The dropouts among a party's neighbours are Hyp(N - 1, D, k); the round fails where more than
       k - threshold are lost: P <= N P(Hyp(N - 1, D, k) > k - threshold).

    All three fall exponentially with k, so k = O(log N).

    References
    ----------
    Bell, Bonawitz, Gascón, Lepoint, Raykova, "Secure single-server aggregation with (poly)logarithmic overhead",
    CCS 2020, section 3 and appendix (semi-honest case).
    """

    degree: int
    threshold: int

    def __post_init__(self) -> None:
        if self.degree < 2 or self.degree % 2:
            raise ParameterError(f"degree is {self.degree}; it must be an even number, at least 2")
        if not 1 <= self.threshold <= self.degree:
            raise ParameterError(f"threshold is {self.threshold}; it must be from 1 to the degree, {self.degree}")

    def failure(self, tolerance: Tolerance) -> GraphFailure:
        """Return the bounds above, rounded up."""
        parties, dropouts, colluders = tolerance.parties, tolerance.dropouts, tolerance.colluders
        collusion = parties * _hypergeometric_tail(tolerance.quorum - 1, colluders, self.degree, self.threshold)
        half, lost = self.degree // 2, colluders + dropouts
        run = math.exp(_log_binomial(lost, half) - _log_binomial(parties, half)) if lost >= half else 0.0
        completion = parties * _hypergeometric_tail(
            parties - 1, dropouts, self.degree, self.degree - self.threshold + 1
        )
        # The logarithms of factorials are good to about 1e-11 relative at these sizes.
        return GraphFailure(
            privacy=min(1.0, (collusion + parties * run) * (1 + 1e-6)), completion=min(1.0, completion * (1 + 1e-6))
        )

    @classmethod
    def smallest(cls, tolerance: Tolerance) -> Self | None:
        """Return the graph of least degree with both bounds at most :data:`FAILURE`; None where none is sparse."""
        largest = tolerance.quorum - 1
        for degree in range(2, largest + 1 - largest % 2, 2):
            for threshold in range(1, degree + 1):
                graph = cls(degree=degree, threshold=threshold)
                bounds = graph.failure(tolerance)
                if bounds.completion > FAILURE:
                    break
                if bounds.privacy <= FAILURE:
                    return graph
        return None


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _hypergeometric_tail(population: int, marked: int, draws: int, at_least: int) -> float:
    """Return P(X >= at_least) for X marked ones among ``draws`` from the population without replacement."""
    low, high = max(at_least, draws + marked - population, 0), min(marked, draws)
    whole = _log_binomial(population, draws)
    return min(
        1.0,
        math.fsum(
            math.exp(_log_binomial(marked, count) + _log_binomial(population - marked, draws - count) - whole)
            for count in range(low, high + 1)
        ),
    )


SELF, ESCROW = 0, 1
"""The two secrets a party shares out for each step: the key of its own mask, and the lock of its pair masks' keys."""
KINDS = {SELF: "self-mask", ESCROW: "escrow"}

_FORM = "unitball-secagg-2"
_TAG = 16
LOCKED = KEY + _TAG
"""Bytes of one pair mask key under the escrow lock."""


def OPENED(steps: int) -> int:
    """Return the bytes of one holder's shares of both kinds for all steps, or of the commitments to them."""
    return len(KINDS) * ELEMENT * steps


def SEALED(steps: int) -> int:
    """Return the bytes of all shares that one party sends to one other, encrypted."""
    return OPENED(steps) + _TAG


def of_step(data: bytes, step: int, kind: int) -> bytes:
    """Return the share of a step and kind out of all of a holder's, or its commitment out of all."""
    start = ELEMENT * (len(KINDS) * step + kind)
    return data[start : start + ELEMENT]


def point(holder: int) -> int:
    """Return the place at which a holder's shares are taken; zero is the secret's."""
    return holder + 1


def numbers_digest(survivors: tuple[int, ...]) -> bytes:
    """Return the digest of who the survivors of a sum are, independent of their vectors and masks."""
    return hashlib.sha256(repr(survivors).encode()).digest()


_T = TypeVar("_T")
_Parts = TypeVar("_Parts", bound=Iterable[int])


def _ascending(parties: _Parts) -> _Parts:
    if list(parties) != sorted(set(parties)):
        raise ValueError("list parties in increasing order, each once")
    return parties


Number = Annotated[int, Field(ge=0, lt=2**63)]
Digest = Annotated[bytes, Field(min_length=KEY, max_length=KEY)]
"""A digest, a public key, or the share of a secret."""
Parties = Annotated[tuple[Number, ...], AfterValidator(_ascending)]
ByParty = Annotated[dict[Number, _T], AfterValidator(_ascending)]


class Wire:
    """A frozen dataclass with one byte form: its kind, and its fields as JSON.

    :meth:`decode` is strict: it accepts exactly the bytes that :meth:`encode` makes (no trailing bytes, no second
    spelling of a value), checks each field by its type and then runs the class's own checks, so that a parsed message
    is a checked one.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        head, adapter = _form(type(self))
        return head + adapter.dump_json(self, warnings="error")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a message of this kind back.

        Raises
        ------
        MessageError
            If the bytes are not the canonical form of such a message, or its own checks fail.
        """
        head, adapter = _form(cls)
        if not data.startswith(head):
            raise MessageError(
                f"expected a {cls.__name__} of this protocol version; finish a round with the version of Unitball "
                "that began it, or repeat it under a new identity (--replicate)"
            )
        try:
            message = cast(Self, adapter.validate_json(data[len(head) :]))
        except ValidationError as error:
            # Without the values, which may be secret.
            wrong = error.errors(include_input=False, include_context=False, include_url=False)
            faults = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong[:3])
            raise MessageError(f"this is not a {cls.__name__} ({'; '.join(faults)[:200]})") from None
        if message.encode() != data:
            raise MessageError(f"this is not the canonical form of a {cls.__name__}")
        return message


@cache
def _adapter(kind: type) -> TypeAdapter[object]:
    return TypeAdapter(kind)


def _form(kind: type) -> tuple[bytes, TypeAdapter[object]]:
    return f"{_FORM} {kind.__name__} ".encode(), _adapter(kind)


@dataclass(frozen=True, kw_only=True)
class RoundParameters(Wire, Bounded):
    """Parameters that all parties know before a session; their digest enters every key, so nothing carries over.

    A session is one key agreement and a fixed number of sums (steps) of equal length under it.

    Parameters
    ----------
    identity : str
        Names the release (and, within it, the session). A round that has to be repeated gets a new one.
    tolerance : Tolerance
    length : int
        Numbers in every vector.
    steps : int
        Sums under this key agreement.
    graph : SparseGraph or None
        None: all parties mask with each other.
    """

    identity: str
    tolerance: Tolerance
    length: int = field(metadata=COUNT)
    steps: int = field(default=1, metadata=COUNT)
    graph: SparseGraph | None = None

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if not self.identity:
            raise ParameterError("identity is empty; name the release the round belongs to")
        if self.graph is not None and self.graph.degree >= self.tolerance.quorum:
            raise ParameterError(
                f"degree {self.graph.degree} is not below the {self.tolerance.quorum} parties that must remain; omit "
                "the graph, so that every pair shares masks"
            )

    @cached_property
    def session(self) -> bytes:
        """The digest that stands for these parameters in every message."""
        return hashlib.sha256(self.encode()).digest()

    @property
    def threshold(self) -> int:
        """Shares that open a secret."""
        return self.graph.threshold if self.graph is not None else self.tolerance.quorum


@dataclass(frozen=True, slots=True, kw_only=True)
class ToServer(Wire):
    """A message of a party in a session, which :attr:`RoundParameters.session` identifies."""

    session: Digest
    sender: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ToParty(Wire):
    """Message of the server to one party in a session."""

    session: Digest
    recipient: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement(ToServer):
    """Round 1, party to server: a public key."""

    public_key: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction(ToParty):
    """Round 1, server to party: the public keys of the neighbours it will mask with."""

    public_keys: ByParty[Digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBundle(ToServer):
    """Round 2, party to server: encrypted shares for its neighbours, and what the server keeps.

    Parameters
    ----------
    ciphertexts : dict
        For each of the sender's neighbours, its shares of all steps, encrypted for it.
    secrets : bytes
        For each step and kind, the digest of the secret.
    commitments : dict
        For each holder (the sender and its neighbours), step and kind, the digest of the holder's share.
    escrow : dict
        For each neighbour and step, the key of the pair's mask, encrypted under the step's escrow secret.
    """

    ciphertexts: ByParty[bytes]
    secrets: bytes
    commitments: ByParty[bytes]
    escrow: ByParty[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(ToParty):
    """Round 2, server to party: the shares its neighbours sent it, with their commitments.

    Parameters
    ----------
    ciphertexts : dict
        From each of the recipient's neighbours that take part.
    commitments : dict
        For each of them, step and kind, the digest of the recipient's share.
    """

    ciphertexts: ByParty[bytes]
    commitments: ByParty[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRequest(ToParty):
    """Round 3, server to party: send the vector of a step.

    Parameters
    ----------
    step : int
    delivery : Delivery or None
        The neighbours' shares, with the session's first step.
    """

    step: Number
    delivery: Delivery | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedVector(ToServer):
    """Round 3, party to server: contribution plus noise share plus masks, modulo 2^64, little-endian words."""

    step: Number
    words: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskRequest(ToParty):
    """Round 4, server to party: who survived the step, as far as this party is concerned.

    Parameters
    ----------
    step : int
    survivor_set : bytes
        Digest of the whole survivor set, the same for all parties.
    count : int
        Its size.
    numbers : bytes
        Digest of the survivors' numbers alone (:func:`numbers_digest`): equal in a repetition under fresh masks.
    survivors, dropped : tuple of int
        The recipient and its neighbours, divided: whose own masks are to be opened, and whose pair masks.
    """

    step: Number
    survivor_set: Digest
    count: Number
    numbers: Digest
    survivors: Parties
    dropped: Parties


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskResponse(ToServer):
    """Round 4, party to server: one share for each owner, of the one kind that the survivor set asks for.

    Parameters
    ----------
    step : int
    survivor_set : bytes
    shares : dict
        By owner.
    """

    step: Number
    survivor_set: Digest
    shares: ByParty[Digest]
