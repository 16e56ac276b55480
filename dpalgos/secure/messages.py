"""What travels in a round, and the public parameters it is bound to: plain values with one byte form each."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, ClassVar, Self, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from dpalgos.errors import ParameterError
from dpalgos.parameters import COUNT, Bounded
from dpalgos.secure.primitives import ELEMENT, KEY, MessageError
from dpalgos.secure.tolerance import SparseGraph, Tolerance

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
    """Return the digest of who the survivors of a sum are, whatever they sent and whatever masked it."""
    return hashlib.sha256(repr(survivors).encode()).digest()


_T = TypeVar("_T")
_Parts = TypeVar("_Parts", bound=Iterable[int])


def _ascending(parties: _Parts) -> _Parts:
    if list(parties) != sorted(set(parties)):
        raise ValueError("parties must be in increasing order, each once")
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
                f"a {cls.__name__} of this protocol's version belongs here; a round that another version of Unitball "
                "began is ended with that one, or repeated under a new identity (--repetition)"
            )
        try:
            message = cast(Self, adapter.validate_json(data[len(head) :]))
        except ValidationError as error:
            # Without the values, which may be secret.
            wrong = error.errors(include_input=False, include_context=False, include_url=False)
            faults = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong[:3])
            raise MessageError(f"this is no {cls.__name__} ({'; '.join(faults)[:200]})") from None
        if message.encode() != data:
            raise MessageError(f"this is not the one form of a {cls.__name__}")
        return message


@cache
def _adapter(kind: type) -> TypeAdapter[object]:
    return TypeAdapter(kind)


def _form(kind: type) -> tuple[bytes, TypeAdapter[object]]:
    return f"{_FORM} {kind.__name__} ".encode(), _adapter(kind)


@dataclass(frozen=True, kw_only=True)
class RoundParameters(Wire, Bounded):
    """What everybody knows before a session starts; its digest enters every key, so nothing carries over.

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
        None: everybody masks with everybody.
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
                f"degree {self.graph.degree} is not below the {self.tolerance.quorum} parties that must remain; "
                "leave the graph out: with so few parties everybody masks with everybody"
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
class Advertisement(Wire):
    """Round 1, party to server: a public key."""

    session: Digest
    sender: Number
    public_key: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction(Wire):
    """Round 1, server to party: the public keys of the neighbours it will mask with."""

    session: Digest
    recipient: Number
    public_keys: ByParty[Digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBundle(Wire):
    """Round 2, party to server: encrypted shares for its neighbours, and what the server keeps.

    Parameters
    ----------
    session : bytes
    sender : int
    ciphertexts : dict
        For each of the sender's neighbours, its shares of all steps, encrypted for it.
    secrets : bytes
        For each step and kind, the digest of the secret.
    commitments : dict
        For each holder (the sender and its neighbours), step and kind, the digest of the holder's share.
    escrow : dict
        For each neighbour and step, the key of the pair's mask, encrypted under the step's escrow secret.
    """

    session: Digest
    sender: Number
    ciphertexts: ByParty[bytes]
    secrets: bytes
    commitments: ByParty[bytes]
    escrow: ByParty[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Wire):
    """Round 2, server to party: the shares its neighbours sent it, with their commitments.

    Parameters
    ----------
    session : bytes
    recipient : int
    ciphertexts : dict
        From each of the recipient's neighbours that take part.
    commitments : dict
        For each of them, step and kind, the digest of the recipient's share.
    """

    session: Digest
    recipient: Number
    ciphertexts: ByParty[bytes]
    commitments: ByParty[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRequest(Wire):
    """Round 3, server to party: send the vector of a step.

    Parameters
    ----------
    session : bytes
    recipient : int
    step : int
    delivery : Delivery or None
        The neighbours' shares, with the session's first step.
    """

    session: Digest
    recipient: Number
    step: Number
    delivery: Delivery | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedVector(Wire):
    """Round 3, party to server: contribution plus noise share plus masks, modulo 2^64, little-endian words."""

    session: Digest
    sender: Number
    step: Number
    words: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskRequest(Wire):
    """Round 4, server to party: who survived the step, as far as this party is concerned.

    Parameters
    ----------
    session : bytes
    recipient : int
    step : int
    survivor_set : bytes
        Digest of the whole survivor set, the same for everybody.
    count : int
        Its size.
    numbers : bytes
        Digest of the survivors' numbers alone (:func:`numbers_digest`): equal in a repetition under fresh masks.
    survivors, dropped : tuple of int
        The recipient and its neighbours, divided: whose own masks are to be opened, and whose pair masks.
    """

    session: Digest
    recipient: Number
    step: Number
    survivor_set: Digest
    count: Number
    numbers: Digest
    survivors: Parties
    dropped: Parties


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskResponse(Wire):
    """Round 4, party to server: one share for each owner, of the one kind that the survivor set asks for.

    Parameters
    ----------
    session : bytes
    sender : int
    step : int
    survivor_set : bytes
    shares : dict
        By owner.
    """

    session: Digest
    sender: Number
    step: Number
    survivor_set: Digest
    shares: ByParty[Digest]
